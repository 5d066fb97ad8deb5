"""What `vramwarden explain` says of every state: the report, and the lines as they are recorded."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from tests.core.admission.plugins import translated, under
from tests.support.clusters import GIB, RULE
from tests.support.paths import TESTS
from tests.support.pods import a_pod
from tests.support.recordings import assert_recorded
from tests.tools.explain.scene import NO_TROUBLE, cases
from webhook.core.enforcement.log_messages import LogMessage
from webhook.core.pod.findings import Reason
from webhook.core.pod.quantity import parse_vram
from webhook.tools.explain.judge.eligible import Mismatch
from webhook.tools.explain.judge.report import OtherReason, State
from webhook.tools.explain.judge.room import Blocker
from webhook.tools.explain.show import as_json, as_text

if TYPE_CHECKING:
    from enum import Enum

FOLDER = TESTS / "tools" / "explain" / "explained"
CASES = cases()


@pytest.mark.parametrize("name", CASES)
def test_every_state_is_named_with_its_reasons_and_what_would_be_enough(name):
    case = CASES[name]
    enough = case.report.enough
    assert case.report.state == case.state
    assert ", ".join(cause.reason.value for cause in case.report.causes) == case.reasons
    amounts = (enough.start_now_bytes, enough.run_bytes, enough.admit_bytes)
    assert [amount and amount / GIB for amount in amounts] == [case.start, case.run, case.admit]


def test_each_line_to_write_is_translated_under_the_rule_and_asks_for_more():
    fixes = {
        name: re.findall(r"^vramwarden\.io/gpu-memory: (\S+)$", cause.fix)
        for name, case in CASES.items()
        for cause in case.report.causes
        if cause.reason in {OtherReason.CAP_HIT, LogMessage.STOPPING}
    }
    assert {"cap-hit", "cap-hit-ended", "gone-filled", "stopped"} <= fixes.keys()
    for amounts in fixes.values():
        for amount in amounts:
            assert translated(a_pod(amount), under(RULE))
            assert parse_vram(amount) > 8 * GIB


def test_where_something_is_to_be_done_the_command_fails():
    assert {name for name, case in CASES.items() if not case.report.is_trouble} == NO_TROUBLE


@pytest.mark.parametrize("name", CASES)
def test_what_people_read_is_as_recorded(name):
    assert_recorded(FOLDER / f"{name}.txt", as_text(CASES[name].report))


def test_nothing_is_recorded_of_a_state_that_is_not_tried():
    assert {file.stem for file in FOLDER.iterdir()} == set(CASES)


def test_every_state_is_tried():
    assert {case.report.state for case in CASES.values()} == set(State)


def test_every_cause_of_a_wait_is_tried():
    tried = {cause.reason for case in CASES.values() for cause in case.report.causes}
    nodes = {node.reason for case in CASES.values() for node in case.report.nodes}
    assert set(OtherReason) <= tried
    assert set(Blocker) <= tried
    assert set(Mismatch) <= tried | nodes


@pytest.mark.parametrize("name", CASES)
def test_programs_read_the_same_and_reasons_of_a_closed_set(name):
    report = CASES[name].report
    value = json.loads(as_json(report))
    assert (value["apiVersion"], value["kind"]) == ("vramwarden.io/v1alpha1", "ExplainReport")
    assert value["state"] == report.state.value
    assert value["headline"] == report.headline
    sets: tuple[type[Enum], ...] = (Reason, Blocker, Mismatch, LogMessage, OtherReason)
    closed = {str(member.value) for one in sets for member in one}
    of_nodes = {node["reason"] for node in value["nodes"] if "reason" in node}
    assert {cause["reason"] for cause in value["causes"]} | of_nodes <= closed
    assert [cause["detail"] for cause in value["causes"]] == [one.detail for one in report.causes]
    assert [node["fits"] for node in value["nodes"]] == [node.fits for node in report.nodes]
