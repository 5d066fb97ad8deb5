"""Golden cases: `input.yaml` results in `expected.yaml` and `expected.txt` (findings).

A case may have its own `policy.yaml`. Values and comments are compared, but not the YAML library's
spacing.
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tests.support.golden_files import assert_recorded, how, recorded
from tests.support.paths import GOLDEN
from tests.support.pods import a_policy
from tests.support.policies import load
from tests.tools.admit.runs import run_in_full
from webhook.core.policy.model import Action, EnforceBy
from webhook.tools.manifests.documents import read_documents

CASES = sorted(path.name for path in GOLDEN.iterdir() if path.is_dir())
FILES = {"input.yaml", "expected.yaml", "expected.txt"}


def comments(text: str) -> list[str]:
    return re.findall(r"(?m)(?:^|\s)(#.*)$", text)


def values(text: str) -> list[object]:
    return [document.value for document in read_documents(text)]


@pytest.mark.parametrize("case", CASES)
def test_manifests_come_out_as_recorded(case):
    folder = GOLDEN / case
    policy = folder / "policy.yaml"
    result = run_in_full(
        (folder / "input.yaml").read_text(),
        # The policy's digest changes with each release, which would invalidate all recordings.
        policy=replace(load(policy), digest=a_policy().digest) if policy.exists() else None,
        namespace="team-a",
    )
    expected = recorded(folder / "expected.yaml", result.out)
    assert values(result.out) == values(expected), how()
    assert comments(result.out) == comments(expected), how()
    assert_recorded(folder / "expected.txt", f"{result.err}exit code {result.code}\n")
    assert {path.name for path in folder.iterdir()} - {policy.name} == FILES


def test_every_action_and_every_enforcer_has_a_case():
    actions = {f"action-{action.lower()}" for action in Action}
    enforcers = {f"enforcer-{by.lower()}" for by in EnforceBy}
    missing = (actions | enforcers) - set(CASES)
    assert not missing, (
        f"add input.yaml and policy.yaml in tests/golden/ for {missing}; then {how()}"
    )


@pytest.mark.parametrize("case", CASES)
def test_no_recorded_comment_gets_lost(case):
    folder = GOLDEN / case
    before, after = ((folder / name).read_text() for name in ("input.yaml", "expected.yaml"))
    left = iter(comments(after))  # an expanded alias may repeat its comments
    assert all(comment in left for comment in comments(before))
