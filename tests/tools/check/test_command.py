"""What `vramwarden check` writes, and how it fails."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.checked import (
    BEFORE,
    INSTALLED,
    NOW_S,
    a_node,
    a_shared_node,
    a_workload,
    checked_pod,
)
from tests.support.policies import HEAD
from tests.support.recordings import assert_recorded
from webhook.tools.check.installed import read_authorities, read_certificate, read_policy
from webhook.tools.check.judge.facts import SOUND, DryRun, Facts
from webhook.tools.check.judge.table import run, verdict
from webhook.tools.check.show import as_json, as_text
from webhook.tools.snapshot.objects import Unreadable

RECORDED = Path(__file__).parent / "golden"

NOT_SHARED = {
    "annotations": {
        "vramwarden.io/sharing": "NotShared: a device plugin offers the GPUs whole "
        "(nvidia.com/gpu); label the node nvidia.com/gpu.deploy.device-plugin=false, "
        "or share both ways (vramwarden.io/share=true)"
    }
}
TROUBLED = replace(
    INSTALLED,
    nodes=(
        a_shared_node("n1", {"vramwarden.io/device-names": "none"}),
        *(a_node(f"n{number}", metadata=NOT_SHARED) for number in range(2, 7)),
    ),
    node_count=9,
    webhook=a_workload(ready=1),
    asks=DryRun(
        created=False,
        answer='Internal error occurred: failed calling webhook "mutate.vramwarden.io": failed to '
        "call webhook: tls: failed to verify certificate: x509: certificate signed by unknown "
        "authority",
    ),
    certificate=Unreadable("needs the right to get secrets"),
    pods=(
        checked_pod("team-a/\x1b[2Jeval", managed=True, waits="no GPU of n1 has 8Gi free"),
        SOUND,
    ),
)
UNSEEN = Unreadable("needs the right to list nodes")
FEW_RIGHTS = replace(
    INSTALLED,
    nodes=UNSEEN,
    pods=Unreadable("needs the right to list pods in all namespaces"),
    certificate=Unreadable("needs the right to get secrets"),
    **dict.fromkeys(("agent", "sentry"), Unreadable("needs the right to get daemonsets")),
)
CASES = {
    "before.txt": (BEFORE, "text"),
    "installed.txt": (INSTALLED, "text"),
    "troubled.txt": (TROUBLED, "text"),
    "troubled-ascii.txt": (TROUBLED, "ascii"),
    "troubled.json": (TROUBLED, "json"),
    "few-rights.txt": (FEW_RIGHTS, "text"),
}


def written(facts, form):
    pre = facts.webhook is None
    results = run(facts, pre=pre)
    if form == "json":
        return as_json(results, facts, pre=pre)
    return as_text(results, pre=pre, ascii_only=form == "ascii", colour=False)


@pytest.mark.parametrize("name", CASES)
def test_reports_come_out_as_recorded(name):
    assert_recorded(RECORDED / name, written(*CASES[name]))


def test_nothing_else_is_recorded():
    assert {path.name for path in RECORDED.iterdir()} == set(CASES)


def test_in_ascii_there_is_nothing_else_and_no_terminal_is_steered():
    assert written(TROUBLED, "ascii").isascii()
    for form in ("text", "ascii"):
        assert "\x1b" not in written(TROUBLED, form)
    coloured = as_text(run(TROUBLED, pre=False), pre=False, ascii_only=False, colour=True)
    assert {part[:3] for part in coloured.split("\x1b[")[1:]} == {"32m", "33m", "31m", "2m-", "0m "}


BOUND_YET = replace(INSTALLED, pods=())
"""No pod has a sidecar yet: nobody can see whether its image can be pulled."""


@pytest.mark.parametrize(
    ("facts", "said", "code"),
    [
        (INSTALLED, "works", 0),
        (replace(INSTALLED, webhook=a_workload(ready=1)), "works", 0),
        (BOUND_YET, "works", 0),
        (TROUBLED, "failed", 1),
        (FEW_RIGHTS, "unknown", 3),
        (replace(FEW_RIGHTS, wrong=DryRun(created=True)), "failed", 1),
        (replace(INSTALLED, nodes=UNSEEN), "works", 0),
        (replace(INSTALLED, certificate=UNSEEN), "unknown", 3),
        (replace(INSTALLED, fences=UNSEEN), "unknown", 3),
        (replace(INSTALLED, webhook=UNSEEN), "unknown", 3),
        (BEFORE, "works", 0),
        (replace(BEFORE, runtime_class=UNSEEN), "works", 0),
        (replace(BEFORE, nodes=UNSEEN), "unknown", 3),
    ],
)
def test_it_works_where_enough_was_looked_at_and_nothing_has_failed(facts, said, code):
    pre = facts.webhook is None
    assert verdict(run(facts, pre=pre)).value == code
    report = json.loads(written(facts, "json"))
    assert (report["verdict"], report["passed"]) == (said, said == "works")
    last = written(facts, "text").splitlines()[-1]
    assert last[0] == {"works": "✓", "failed": "✗", "unknown": "?"}[said]
    assert (" works: " in last or " can be installed here: " in last) == (said == "works")


@pytest.mark.parametrize(
    ("why", "said"),
    [
        ("needs the right to get secrets", "ask a cluster admin"),
        ("another version", "it is said above why"),
    ],
)
def test_who_is_asked_for_rights_lacks_some(why, said):
    shown = written(replace(INSTALLED, certificate=Unreadable(why)), "text")
    assert re.search(rf"\b1 of \d+ was not looked at: {said}", shown)


def read(policies, version="0.1.0"):
    facts = Facts(
        url="u",
        version="v1.36.2",
        now_s=NOW_S,
        command="0.1.0",
        webhook=a_workload(version=version),
    )
    return read_policy(policies, facts)


BROKEN = {"a.yaml": "kind: What\n", "notes.txt": "no policy"}


def test_a_policy_of_another_version_is_not_judged_by_this_one():
    assert read(BROKEN).problems
    assert isinstance(read(BROKEN, version="0.2.0"), Unreadable)
    assert read(None) is None
    assert read({"notes.txt": "no policy"}).rules == 0


WEEK = """\
apiVersion: vramwarden.io/v1alpha1
kind: VRAMPolicy
metadata: {name: week}
spec:
  rules:
  - {name: others, match: {namespaces: [team-a]}}
  - {name: looking, match: MATCH, action: Audit}
"""


@pytest.mark.parametrize(
    ("match", "tried_by"),
    [
        ("{}", ("looking", "Audit")),
        ("{namespaces: [team-b]}", ("", "")),
        ("{namespaceLabels: {tier: one}}", ("", "")),
    ],
)
def test_the_rule_for_pods_that_are_tried_is_known_where_names_decide(match, tried_by):
    assert read({"a.yaml": WEEK.replace("MATCH", match)}).tried_by == tried_by


def test_a_bundle_without_a_certificate_says_so():
    empty, *_ = INSTALLED.own_webhooks
    broken = replace(empty, ca_pem=b"-----BEGIN CERTIFICATE-----\nnope")
    secret = ("gpu/tls", {"tls.crt": b"what"})
    assert [one.problem for one in read_authorities((empty, broken), secret, NOW_S)] == [
        "caBundle is empty",
        "caBundle holds no readable certificate",
    ]
    found = read_certificate(secret, NOW_S)
    assert found.problem == "there is no readable certificate in it"
    assert read_certificate(None, NOW_S) is None


def test_who_holds_the_caps_is_read_from_the_rules_that_judge_pods():
    rules = f"""{HEAD}  rules:
  - {{name: a, match: {{namespaces: [a]}}, action: Ignore}}
  - {{name: b, match: {{namespaces: [b]}}, accounting: MIG}}
  - {{name: c, match: {{namespaces: [c]}}, action: Audit, enforcement: {{by: Sentry}}}}
"""
    assert read({"a.yaml": rules}).enforcers == {"None", "Sentry"}
