"""Recorded output of commands in all situations. No two commands may disagree."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

from deploy.references import problem_codes
from tests.support.golden_files import assert_recorded, how
from tests.support.pods import a_request
from tests.tools.situations import bound, checks, denied, waiting
from tests.tools.situations.claims import claims, disagreements
from tests.tools.situations.runs import (
    CRASHED,
    PLAIN,
    arguments,
    complete,
    read_each,
    record,
    record_each,
    run,
    same_in_each_release,
)
from tests.tools.situations.scenes import TEAM, policy_of, unseen
from webhook.core.admission.decide import decide
from webhook.core.admission.decision import Outcome, Phase
from webhook.core.node.events import EventReason
from webhook.core.pod.findings import Reason
from webhook.core.pod.quantity import parse_vram
from webhook.core.policy.cluster import Cluster
from webhook.tools.problems.problem import Code

pytestmark = pytest.mark.process  # Helm renders the chart
RECORDED = Path(__file__).parent / "recorded"
ROWS = {**waiting.ROWS, **bound.ROWS, **denied.ROWS}
ONE_COMMAND = {
    "explain": {**waiting.EXPLAINED, **bound.EXPLAINED, **denied.EXPLAINED},
    "check": checks.ROWS,
}
EXPLAINED = {name: situation for name, (_, situation) in ROWS.items()} | ONE_COMMAND["explain"]


@pytest.mark.parametrize("name", ROWS)
def test_commands_say_what_is_recorded(name):
    assert_recorded(RECORDED / f"{name}.txt", record(*ROWS[name]))


@pytest.mark.parametrize("command", ONE_COMMAND)
def test_a_command_says_what_is_recorded(command):
    assert_recorded(RECORDED / f"{command}.txt", record_each(command, ONE_COMMAND[command]))


def test_every_recording_is_of_a_situation():
    assert {path.stem for path in RECORDED.iterdir()} == {*ROWS, *ONE_COMMAND}, how()


def read(name):
    return (RECORDED / f"{name}.txt").read_text(encoding="utf-8")


def recording(name):
    return complete(read(name), read(PLAIN)) if name in ROWS else read_each(read("explain"))[name]


@pytest.mark.parametrize("name", EXPLAINED)
def test_no_two_commands_disagree(name):
    assert disagreements(recording(name)) == set()


COMPARED = (
    *("free", "not shared", "lack of room", "has waited", "use", "peak", "denied workloads"),
    *("over its cap", "enough"),
)


@pytest.mark.parametrize("about", COMPARED)
def test_claims_are_compared(about):
    found = defaultdict(list)
    for name in EXPLAINED:
        for claim in claims(recording(name)):
            if claim.about == about:
                found[name, claim.subject].append(claim.command)
    by_one = about == "enough"  # one command mentions this several times
    assert any(len(said if by_one else {*said}) > 1 for said in found.values())


def test_no_command_crashes():
    assert [path.stem for path in RECORDED.iterdir() if CRASHED in read(path.stem)] == []


@cache
def explained(name):
    """Return the JSON of `explain`, followed by its part about the pod, and the exit code."""
    found = EXPLAINED[name]
    text, code = run(found.stored(), [*arguments("explain", found), "-o", "json"])
    value = json.loads(same_in_each_release(text))
    return [value, *filter(None, [value.get("pod")])], code


@pytest.mark.parametrize("name", EXPLAINED)
def test_programs_read_the_same(name):
    said, code = explained(name)
    text = recording(name).partition("$ vramwarden explain")[2].partition("\n$ ")[0]
    assert (said[0]["apiVersion"], said[0]["kind"]) == ("vramwarden.io/v1alpha1", "ExplainReport")
    problems = [problem for part in said for problem in part["problems"]]
    texts = [part["headline"] for part in said] + [problem["message"] for problem in problems]
    texts += [problem["fix"] for problem in problems if "fix" in problem]
    texts += [note["text"] for part in said for note in part["notes"]]
    assert [sentence for sentence in texts if " ".join(sentence.split()) not in text] == []
    assert f"exit code {code}\n" in text
    assert code == int(any(problem["severity"] != "info" for problem in problems))
    nodes = [node for part in said for node in part["nodes"]]
    assert {problem["code"] for problem in (*problems, *nodes) if "code" in problem} <= CODES
    assert [node["fits"] for node in nodes] == ["code" not in node for node in nodes]


CODES = {str(member) for kind in (Code, Reason, EventReason) for member in kind}
LINE = re.compile(r"^    → vramwarden\.io/gpu-memory: (\S+)$", re.MULTILINE)


def test_each_line_to_write_is_admitted_and_asks_for_more():
    lines = {name: LINE.findall(recording(name)) for name in EXPLAINED}
    lines = {name: amounts for name, amounts in lines.items() if amounts}
    assert len(lines) > 5
    assert "stopped-by-the-sidecar" in lines
    for name, amounts in lines.items():
        for amount in amounts:
            request = a_request(unseen("p", amount), namespace=TEAM)
            policy = policy_of(EXPLAINED[name].rules)
            assert decide(request, policy, Cluster(), Phase.MUTATE).outcome is Outcome.MUTATED
            assert parse_vram(amount) > 8 * 2**30


def test_every_code_about_pods_is_documented_and_said_in_a_situation():
    documented = [*problem_codes()]
    assert [code for code, *_ in documented] == [*Code]
    said = {
        str(item["code"])
        for name in EXPLAINED
        for part in explained(name)[0]
        for item in (*part["problems"], *part["nodes"])
        if "code" in item
    }
    assert {code for code, about, _ in documented if about.startswith("A pod")} <= said
