"""`vramwarden policy`: check, test and the schema, of files, folders and standard input."""

from __future__ import annotations

import json

import pytest

from tests.support.commands import runner
from tests.support.paths import POLICIES, ROOT
from tests.support.policies import HEAD
from webhook.adapters.bounds import MOST_POLICY_BYTES
from webhook.cli.main import main

BAD = """\
apiVersion: vramwarden.io/v1alpha1
kind: VRAMPolicy
metadata: {name: bad}
spec:
  rules:
  - name: one
    acton: Enforce
    memory: {max: 40GB}
"""
FAILING = """\
apiVersion: vramwarden.io/v1alpha1
kind: VRAMPolicy
metadata: {name: failing}
spec:
  rules:
  - name: one
  examples:
  - name: everything is denied
    pod: {namespace: a, annotations: {vramwarden.io/gpu-memory: 8Gi}}
    expect: {allowed: false}
"""


def policy(*arguments, **options):
    return runner().invoke(main, ["policy", *map(str, arguments)], **options)


@pytest.mark.parametrize("command", ["check", "test"])
def test_the_shipped_policies_are_valid(command):
    files = sorted((ROOT / "policies" / "examples").glob("*.yaml"))
    done = policy(command, ROOT / "policies", *files)
    assert done.exit_code == 0, done.stderr
    assert len(files) >= 6


@pytest.mark.parametrize("command", ["check", "test"])
def test_all_errors_of_a_file_are_shown_with_file_line_and_path(tmp_path, command):
    file = tmp_path / "bad.yaml"
    file.write_text(BAD)
    done = policy(command, file)
    assert done.exit_code == 1
    lines = done.stderr.splitlines()
    assert lines[0].startswith(f"{file}:7: spec.rules[0].acton: unknown field")
    assert "action" in lines[0]
    assert lines[1].startswith(f"{file}:8: spec.rules[0].memory.max: ")
    assert "40G or 40Gi" in lines[1]


def test_a_failing_example_is_shown_and_fails_the_check(tmp_path):
    file = tmp_path / "failing.yaml"
    file.write_text(FAILING)
    done = policy("test", file)
    assert done.exit_code == 1
    assert "FAIL" in done.stdout
    assert "0 passed, 1 failed" in done.stdout
    check = policy("check", file)
    assert check.exit_code == 1
    assert "everything is denied" in check.stderr


def test_all_paths_are_checked_although_the_first_is_bad(tmp_path):
    (tmp_path / "bad.yaml").write_text(BAD)
    done = policy("check", tmp_path / "bad.yaml", ROOT / "policies")
    assert done.exit_code == 1
    assert "valid: 2 rules" in done.stdout


@pytest.mark.parametrize("command", ["check", "test"])
def test_a_folder_without_policy_files_is_valid_with_a_warning(tmp_path, command):
    (tmp_path / "default.yaml.off").write_text(BAD)
    done = policy(command, tmp_path)
    assert done.exit_code == 0
    assert done.stderr == (f"warning: {tmp_path}: no *.yaml in it, so every pod is left alone\n")


def test_policy_files_without_a_rule_are_valid_with_a_warning(tmp_path):
    file = tmp_path / "none.yml"
    file.write_text(FAILING.partition("  rules:")[0] + "  rules: []\n")
    for path in (file, tmp_path):
        done = policy("check", path)
        assert done.exit_code == 0
        assert done.stderr == f"warning: {path}: no rule in it, so every pod is left alone\n"
        assert done.stdout == f"{path}: valid: 0 rules, 0 classes, 0 examples pass\n"


def test_one_is_counted_as_one_and_a_policy_with_rules_brings_no_warning(tmp_path):
    file = tmp_path / "one.yaml"
    spec = FAILING.replace("allowed: false", "allowed: true")
    file.write_text(spec.replace("spec:\n", "spec:\n  classes: {t4: {}}\n"))
    done = policy("check", file)
    assert done.stdout == f"{file}: valid: 1 rule, 1 class, 1 example passes\n"
    assert done.stderr == ""


def test_a_rule_for_people_is_valid_with_a_warning():
    file = ROOT / "policies" / "examples" / "interns-by-group.yaml"
    done = policy("check", file)
    assert done.exit_code == 0
    assert done.stderr.startswith(f"warning: {file}:")
    assert (
        ': rule "interns" governs no pods of Deployments, Jobs and the like: a controller'
        in done.stderr
    )
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", [["check"], ["check", "/nowhere"], ["chck"], ["schema", "x"]])
def test_wrong_usage_is_exit_code_2(arguments):
    assert policy(*arguments).exit_code == 2


def test_the_schema_is_the_shipped_one():
    done = policy("schema")
    assert json.loads(done.stdout) == json.loads(
        (ROOT / "policies" / "policy.schema.json").read_text()
    )


MIXED = (
    FAILING
    + """\
  - name: a pod without a demand is allowed
    pod: {namespace: a}
    expect: {allowed: true}
"""
)


def test_examples_that_hold_may_be_left_out(tmp_path):
    file = tmp_path / "mixed.yaml"
    file.write_text(MIXED)
    shown = policy("test", file)
    mismatch = "      wanted allowed: false, got allowed (mutated by rule one)"
    assert shown.stdout.splitlines() == [
        f"FAIL  {file}:8: everything is denied",
        mismatch,
        f"ok    {file}:11: a pod without a demand is allowed",
        f"{file}: 1 passed, 1 failed",
    ]
    failed = policy("test", "--failed-only", file)
    assert (shown.exit_code, failed.exit_code) == (1, 1)
    kept = [line for line in shown.stdout.splitlines() if not line.startswith("ok")]
    assert failed.stdout.splitlines() == kept


def test_a_terminal_shows_the_words_in_colour(tmp_path):
    file = tmp_path / "mixed.yaml"
    file.write_text(MIXED)
    shown = policy("test", file, color=True).stdout
    assert "\x1b[31mFAIL\x1b[0m  " in shown
    assert "\x1b[32mok\x1b[0m    " in shown


UNREACHED = BAD.partition("  rules:")[0] + (
    "  rules:\n"
    "  - {name: labelled, match: {podLabels: {tier: gold}}, action: Ignore}\n"
    "  - {name: everybody}\n"
    "  - {name: team, match: {namespaces: [team-a]}}\n"
)


@pytest.mark.parametrize("command", ["check", "test"])
def test_rules_that_hardly_do_what_they_say_are_warned_of(tmp_path, command):
    file = tmp_path / "policy.yaml"
    file.write_text(UNREACHED)
    done = policy(command, file)
    assert done.exit_code == 0
    labelled, team = done.stderr.splitlines()
    assert labelled.startswith(f'warning: {file}:6: rule "labelled" matches by podLabels, which')
    assert team == (
        f'warning: {file}:8: rule "team" governs no pod: "everybody" in {file}:7 matches all of '
        "its pods before it; move it up, or narrow what stands before it"
    )


def test_standard_input_is_read_as_one_file():
    text = (POLICIES / "default.yaml").read_text()
    done = policy("check", "-", input=text)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith("standard input: valid: 2 rules, ")
    done = policy("test", "-", input=text)
    assert done.exit_code == 0
    assert done.stdout.splitlines()[-1].startswith("standard input: ")
    assert done.stdout.splitlines()[-1].endswith(" 0 failed")


def test_a_problem_names_standard_input_and_the_line():
    done = policy("check", "-", input=f"{HEAD}  rulez: []\n")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith(
        "standard input:5: spec.rulez: unknown field; did you mean rules?"
    )


@pytest.mark.parametrize("text", ["", f"{HEAD}  rules: []\n"])
def test_standard_input_without_rules_brings_a_warning(text):
    done = policy("check", "-", input=text)
    assert done.exit_code == 0
    assert done.stderr == ("warning: standard input: no rule in it, so every pod is left alone\n")


def test_no_more_of_standard_input_is_read_than_a_file_may_have():
    done = policy("check", "-", input="#" * (MOST_POLICY_BYTES + 100))
    assert done.exit_code == 1
    assert "standard input: is larger than 1048576 bytes" in done.stderr
