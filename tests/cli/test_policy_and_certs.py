"""The commands around policies and certificates, run as a user runs them."""

from __future__ import annotations

import json
import stat
import subprocess
import sys

import pytest

from tests.support.commands import runner
from tests.support.paths import ROOT
from webhook.cli.policy import policy_group

pytestmark = pytest.mark.process

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


def vramwarden(*arguments, **env):
    return subprocess.run(
        [sys.executable, "-m", "webhook.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=env or None,
    )


@pytest.mark.parametrize("command", ["check", "test"])
def test_the_shipped_policies_are_valid(command):
    files = sorted((ROOT / "policies" / "examples").glob("*.yaml"))
    done = vramwarden("policy", command, ROOT / "policies", *files)
    assert done.returncode == 0, done.stderr
    assert len(files) >= 6


@pytest.mark.parametrize("command", ["check", "test"])
def test_all_errors_of_a_file_are_shown_with_file_line_and_path(tmp_path, command):
    file = tmp_path / "bad.yaml"
    file.write_text(BAD)
    done = vramwarden("policy", command, file)
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert lines[0].startswith(f"{file}:7: spec.rules[0].acton: unknown field")
    assert "action" in lines[0]
    assert lines[1].startswith(f"{file}:8: spec.rules[0].memory.max: ")
    assert "40G or 40Gi" in lines[1]


def test_a_failing_example_is_shown_and_fails_the_check(tmp_path):
    file = tmp_path / "failing.yaml"
    file.write_text(FAILING)
    done = vramwarden("policy", "test", file)
    assert done.returncode == 1
    assert "FAIL" in done.stdout
    assert "0 passed, 1 failed" in done.stdout
    check = vramwarden("policy", "check", file)
    assert check.returncode == 1
    assert "everything is denied" in check.stderr


def test_all_paths_are_checked_although_the_first_is_bad(tmp_path):
    (tmp_path / "bad.yaml").write_text(BAD)
    done = vramwarden("policy", "check", tmp_path / "bad.yaml", ROOT / "policies")
    assert done.returncode == 1
    assert "valid: 2 rules" in done.stdout


@pytest.mark.parametrize("command", ["check", "test"])
def test_a_folder_without_policy_files_is_valid_with_a_warning(tmp_path, command):
    (tmp_path / "default.yaml.off").write_text(BAD)
    done = vramwarden("policy", command, tmp_path)
    assert done.returncode == 0
    assert done.stderr == (f"warning: {tmp_path}: no *.yaml in it, so every pod is left alone\n")


def test_policy_files_without_a_rule_are_valid_with_a_warning(tmp_path):
    file = tmp_path / "none.yml"
    file.write_text(FAILING.partition("  rules:")[0] + "  rules: []\n")
    for path in (file, tmp_path):
        done = vramwarden("policy", "check", path)
        assert done.returncode == 0
        assert done.stderr == f"warning: {path}: no rule in it, so every pod is left alone\n"
        assert done.stdout == f"{path}: valid: 0 rules, 0 classes, 0 examples pass\n"


def test_one_is_counted_as_one_and_a_policy_with_rules_brings_no_warning(tmp_path):
    file = tmp_path / "one.yaml"
    spec = FAILING.replace("allowed: false", "allowed: true")
    file.write_text(spec.replace("spec:\n", "spec:\n  classes: {t4: {}}\n"))
    done = vramwarden("policy", "check", file)
    assert done.stdout == f"{file}: valid: 1 rule, 1 class, 1 example passes\n"
    assert done.stderr == ""


def test_a_rule_for_people_is_valid_with_a_warning():
    file = ROOT / "policies" / "examples" / "interns-by-group.yaml"
    done = vramwarden("policy", "check", file)
    assert done.returncode == 0
    assert done.stderr.startswith(f"warning: {file}:")
    assert (
        ': rule "interns" governs no pods of Deployments, Jobs and the like: a controller'
        in done.stderr
    )
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", [["check"], ["check", "/nowhere"], ["chck"], ["schema", "x"]])
def test_wrong_usage_is_exit_code_2(arguments):
    assert vramwarden("policy", *arguments).returncode == 2


def test_the_schema_is_the_shipped_one():
    done = vramwarden("policy", "schema")
    assert json.loads(done.stdout) == json.loads(
        (ROOT / "policies" / "policy.schema.json").read_text()
    )


def test_certificates_are_issued_once_kept_and_shown(tmp_path):
    folder = tmp_path / "certs"
    first = vramwarden("certs", "issue", "--cert-dir", folder, "--service", "vramwarden.system")
    assert (first.returncode, first.stderr) == (0, "")
    assert f"{folder}: issued" in first.stdout
    assert stat.S_IMODE((folder / "tls.key").stat().st_mode) == 0o600
    again = vramwarden("certs", "issue", "--cert-dir", folder, "--service", "vramwarden.system")
    assert f"{folder}: kept" in again.stdout

    shown = vramwarden("certs", "status", "--cert-dir", folder)
    assert shown.returncode == 0
    assert "days left" in shown.stdout
    assert "vramwarden.system.svc" in shown.stdout
    found = json.loads(vramwarden("certs", "status", "--cert-dir", folder, "-o", "json").stdout)
    assert {one["role"] for one in found["certificates"]} == {"serving", "ca"}
    assert found["problems"] == []


def test_status_of_an_empty_folder_is_a_problem(tmp_path):
    done = vramwarden("certs", "status", "--cert-dir", tmp_path)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("service", ["vramwarden", "a.b.c", ".b", "a."])
def test_a_service_is_name_and_namespace(tmp_path, service):
    done = vramwarden("certs", "issue", "--cert-dir", tmp_path, "--service", service)
    assert done.returncode == 2
    assert "NAME.NAMESPACE" in done.stderr


def test_the_demo_shows_a_translation_and_a_denial():
    done = vramwarden("demo")
    assert done.returncode == 0, done.stderr
    assert "+        vramwarden.io/vram: 8Gi" in done.stdout
    assert "+  - name: vram-enforcer" in done.stdout
    assert "Error from server (Forbidden): admission webhook" in done.stdout
    assert "FractionalWholeGPU: spec.containers[0].resources.limits[nvidia.com/gpu]" in done.stdout
    assert "\x1b[" not in done.stdout


MIXED = (
    FAILING
    + """\
  - name: a pod without a demand is allowed
    pod: {namespace: a}
    expect: {allowed: true}
"""
)


def invoke(*arguments, **options):
    return runner().invoke(policy_group, arguments, **options)


def test_examples_that_hold_may_be_left_out(tmp_path):
    file = tmp_path / "mixed.yaml"
    file.write_text(MIXED)
    shown = invoke("test", str(file))
    mismatch = "      wanted allowed: false, got allowed (mutated by rule one)"
    assert shown.stdout.splitlines() == [
        f"FAIL  {file}:8: everything is denied",
        mismatch,
        f"ok    {file}:11: a pod without a demand is allowed",
        f"{file}: 1 passed, 1 failed",
    ]
    failed = invoke("test", "--failed-only", str(file))
    assert (shown.exit_code, failed.exit_code) == (1, 1)
    kept = [line for line in shown.stdout.splitlines() if not line.startswith("ok")]
    assert failed.stdout.splitlines() == kept


def test_a_terminal_shows_the_words_in_colour(tmp_path):
    file = tmp_path / "mixed.yaml"
    file.write_text(MIXED)
    shown = invoke("test", str(file), color=True).stdout
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
    done = vramwarden("policy", command, file)
    assert done.returncode == 0
    labelled, team = done.stderr.splitlines()
    assert labelled.startswith(f'warning: {file}:6: rule "labelled" matches by podLabels, which')
    assert team == (
        f'warning: {file}:8: rule "team" governs no pod: "everybody" in {file}:7 matches all of '
        "its pods before it; move it up, or narrow what stands before it"
    )
