"""`vramwarden policy`: check, test and schema, for files, folders and standard input."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.support.golden_files import assert_recorded
from tests.support.paths import POLICIES, ROOT
from tests.support.policies import HEAD
from tests.support.run_command import runner
from webhook.adapters.bounds import MOST_POLICY_BYTES
from webhook.cli.main import main

RECORDED = Path(__file__).with_name("recorded")
BAD = f"{HEAD}  rules:\n  - name: one\n    acton: Enforce\n    memory: {{max: 40GB}}\n"
FAILING = f"""\
{HEAD}  rules:
  - name: one
  examples:
  - name: everything is denied
    pod: {{namespace: a, annotations: {{vramwarden.io/gpu-memory: 8Gi}}}}
    expect: {{allowed: false}}
"""
MIXED = f"""\
{FAILING}\
  - name: a pod without a demand is allowed
    pod: {{namespace: a}}
    expect: {{allowed: true}}
"""
NO_RULES = f"{HEAD}  rules: []\n"
UNREACHED = f"""\
{HEAD}  rules:
  - {{name: labelled, match: {{podLabels: {{tier: gold}}}}, action: Ignore}}
  - {{name: everybody}}
  - {{name: team, match: {{namespaces: [team-a]}}}}
"""
BOTH = pytest.mark.parametrize("command", ["check", "test"])


@pytest.mark.parametrize(
    ("command", "path"),
    [("check", "policies/default.yaml"), ("test", "policies/examples/mig.yaml")],
)
def test_the_output_for_a_shipped_policy(monkeypatch, command, path):
    monkeypatch.chdir(ROOT)
    done = runner().invoke(main, ["policy", command, path])
    assert done.exit_code == 0, done.stderr
    assert_recorded(RECORDED / f"policy-{command}.txt", done.stdout)


def policy(*arguments, **options):
    return runner().invoke(main, ["policy", *map(str, arguments)], **options)


@pytest.fixture
def written(tmp_path):
    """Write a policy file; return the file's path."""

    def write(text, name="policy.yaml"):
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


@BOTH
def test_the_shipped_policies_are_valid(command):
    files = sorted((ROOT / "policies" / "examples").glob("*.yaml"))
    done = policy(command, ROOT / "policies", *files)
    assert done.exit_code == 0, done.stderr
    assert len(files) >= 6


@BOTH
def test_all_errors_of_a_file_are_shown_with_file_line_and_path(written, command):
    file = written(BAD)
    done = policy(command, file)
    assert done.exit_code == 1
    first, second = done.stderr.splitlines()[:2]
    assert first.startswith(f"{file}:7: spec.rules[0].acton: unknown field")
    assert "action" in first
    assert second.startswith(f"{file}:8: spec.rules[0].memory.max: ")
    assert "40G or 40Gi" in second


def test_a_failing_example_is_shown_and_fails_the_check(written):
    shown, check = (policy(command, written(FAILING)) for command in ("test", "check"))
    assert (shown.exit_code, check.exit_code) == (1, 1)
    assert "FAIL" in shown.stdout
    assert "0 passed, 1 failed" in shown.stdout
    assert "everything is denied" in check.stderr


def test_all_paths_are_checked_although_the_first_is_bad(written):
    done = policy("check", written(BAD), ROOT / "policies")
    assert done.exit_code == 1
    assert "valid: 2 rules" in done.stdout


@BOTH
def test_a_file_that_cannot_be_read_is_exit_code_2(written, command):
    folder = written(BAD, "a.yaml").parent
    (folder / "b.yaml").symlink_to("nowhere")
    done = policy(command, folder)
    assert done.exit_code == 2
    *_, last = done.stderr.splitlines()
    assert last == f"{folder}/b.yaml: cannot be read: no such file or directory"


def test_alternative_policies_in_one_folder_are_one_problem():
    folder = ROOT / "policies" / "examples"
    done = policy("check", folder)
    first, second = done.stderr.splitlines()
    assert (done.exit_code, done.stdout) == (1, "")
    assert " is defined twice; it stands in " in first
    assert second.startswith(f"{folder}: ")
    assert second.endswith(
        " names are defined twice, so its files are no policy together; where each is meant to "
        f"stand alone, run: vramwarden policy check {folder}/*.yaml"
    )


def test_one_name_defined_twice_and_other_problems_are_all_shown(written):
    folder = written(FAILING, "a.yaml").parent
    written(FAILING, "b.yaml")
    (only,) = policy("check", folder).stderr.splitlines()
    assert only.startswith(f"{folder}/b.yaml:6: spec.rules[0].name: ")
    written(BAD, "c.yaml")
    assert len(policy("check", folder).stderr.splitlines()) == 3


@BOTH
def test_problems_are_written_for_continuous_integration(written, command):
    bad, failing, doubtful = (
        written(text, f"{name}.yaml")
        for name, text in (("bad", BAD), ("failing", FAILING), ("doubtful", UNREACHED))
    )
    github = policy(command, bad, failing, doubtful, "-o", "github")
    assert (github.exit_code, github.stderr) == (1, "")
    begins = [
        f"::error file={bad},line=7,title=InvalidPolicy::spec.rules[0].acton: unknown field",
        f"::error file={bad},line=8,title=InvalidPolicy::spec.rules[0].memory.max: ",
        f"::error file={failing},line=8,title=FailedExample::example 'everything is denied': ",
        f'::warning file={doubtful},line=6,title=vramwarden::rule "labelled" matches by',
        f'::warning file={doubtful},line=8,title=vramwarden::rule "team" applies to no pod',
    ]
    for line, begin in zip(github.stdout.splitlines(), begins, strict=True):
        assert line.startswith(begin)
    junit = policy(command, bad, failing, doubtful, "-o", "junit")
    root = ET.fromstring(junit.stdout)  # noqa: S314 - our own
    assert junit.exit_code == 1
    assert root.attrib == {
        "name": f"vramwarden policy {command}",
        "tests": "4",
        "failures": "2",
        "errors": "0",
    }
    kinds = [item.attrib["type"] for item in root.iter("failure")]
    assert kinds == ["InvalidPolicy", "FailedExample"]


@BOTH
def test_a_folder_without_policy_files_is_valid_with_a_warning(written, command):
    folder = written(BAD, "default.yaml.off").parent
    done = policy(command, folder)
    assert done.exit_code == 0
    assert done.stderr == f"warning: {folder}: no *.yaml in it, so every pod is left alone\n"


@pytest.mark.parametrize("where", ["file", "folder", "standard input"])
def test_policies_without_a_rule_are_valid_with_a_warning(written, where):
    file = written(NO_RULES, "none.yml")
    path = {"file": file, "folder": file.parent}.get(where, "-")
    done = policy("check", path, input=NO_RULES)
    name = where if path == "-" else path
    assert (done.exit_code, done.stdout, done.stderr) == (
        *(0, f"{name}: valid: 0 rules, 0 classes, 0 examples pass\n"),
        f"warning: {name}: no rule in it, so every pod is left alone\n",
    )


def test_counts_are_in_singular_and_a_policy_with_rules_has_no_warning(written):
    text = FAILING.replace("allowed: false", "allowed: true")
    file = written(text.replace("spec:\n", "spec:\n  classes: {t4: {}}\n"))
    done = policy("check", file)
    assert done.stdout == f"{file}: valid: 1 rule, 1 class, 1 example passes\n"
    assert done.stderr == ""


@BOTH
def test_rules_without_effect_are_warned_about(written, command):
    file = written(UNREACHED)
    done = policy(command, file)
    assert done.exit_code == 0
    labelled, team = done.stderr.splitlines()
    assert labelled.startswith(f'warning: {file}:6: rule "labelled" matches by podLabels, which')
    assert team == (
        f'warning: {file}:8: rule "team" applies to no pod: "everybody" in {file}:7 matches all of '
        "its pods before it; move it up, or narrow what stands before it"
    )


@pytest.mark.parametrize("arguments", [["check"], ["check", "/nowhere"], ["chck"], ["schema", "x"]])
def test_wrong_usage_is_exit_code_2(arguments):
    assert policy(*arguments).exit_code == 2


def test_the_schema_is_the_shipped_one():
    shipped = json.loads((ROOT / "policies" / "policy.schema.json").read_text())
    assert json.loads(policy("schema").stdout) == shipped


def test_passing_examples_can_be_omitted(written):
    file = written(MIXED)
    shown, failed = policy("test", file), policy("test", "--failed-only", file)
    lines = [
        f"FAIL  {file}:8: everything is denied",
        "      wanted allowed: false, got allowed (mutated by rule one)",
        f"ok    {file}:11: a pod without a demand is allowed",
        f"{file}: 1 passed, 1 failed",
    ]
    assert (shown.exit_code, shown.stdout.splitlines()) == (1, lines)
    del lines[2]
    assert (failed.exit_code, failed.stdout.splitlines()) == (1, lines)


def test_a_terminal_shows_results_in_colour(written):
    shown = policy("test", written(MIXED), color=True).stdout
    assert "\x1b[31mFAIL\x1b[0m  " in shown
    assert "\x1b[32mok\x1b[0m    " in shown


def test_standard_input_is_read_as_one_file():
    text = (POLICIES / "default.yaml").read_text()
    check, examples = (policy(command, "-", input=text) for command in ("check", "test"))
    assert (check.exit_code, check.stderr, examples.exit_code) == (0, "", 0)
    assert check.stdout.startswith("standard input: valid: 2 rules, ")
    last = examples.stdout.splitlines()[-1]
    assert last.startswith("standard input: ")
    assert last.endswith(" 0 failed")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            f"{HEAD}  rulez: []\n",
            "standard input:5: spec.rulez: unknown field; did you mean rules?",
        ),
        # The file is read only up to the maximum size.
        ("#" * (MOST_POLICY_BYTES + 100), "standard input: is larger than 1048576 bytes"),
    ],
    ids=["unknown", "large"],
)
def test_a_problem_names_standard_input_and_the_line(text, said):
    done = policy("check", "-", input=text)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith(said)


def test_standard_input_without_a_policy_is_a_warning():
    done = policy("check", "-", input="")
    assert done.exit_code == 0
    assert done.stderr == "warning: standard input: no rule in it, so every pod is left alone\n"
