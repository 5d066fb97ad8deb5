"""What the four commands say of every situation is recorded, and no two contradict each other."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from tests.support.recordings import assert_recorded, how
from tests.tools.situations import bound, checks, denied, variants, waiting  # noqa: F401 - they register
from tests.tools.situations.claims import claims, disagreements
from tests.tools.situations.runs import CRASHED, record
from tests.tools.situations.scenes import SITUATIONS

pytestmark = pytest.mark.process  # Helm renders the chart
RECORDED = Path(__file__).parent / "recorded"


@pytest.mark.parametrize("name", SITUATIONS)
def test_commands_say_what_is_recorded(name):
    title, make = SITUATIONS[name]
    assert_recorded(RECORDED / f"{name}.txt", record(make(), title))


def test_every_recording_is_of_a_situation():
    assert {one.stem for one in RECORDED.iterdir()} == {*SITUATIONS}, how()


DISAGREE = {
    "denied-at-creation": {"denied workloads of the cluster"},
    "denied-job": {"denied workloads of the cluster"},
    "limit-range-adds-a-gpu": {"denied workloads of the cluster"},
    "out-of-quota": {"denied workloads of the cluster"},
    "webhook-unreachable": {"denied workloads of the cluster"},
}
"""What commands still disagree about, by situation."""


def recording(name):
    return (RECORDED / f"{name}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", SITUATIONS)
def test_no_two_commands_disagree(name):
    assert disagreements(recording(name)) == DISAGREE.get(name, set())


COMPARED = (
    *("free", "not shared", "lack of room", "has waited", "use", "peak", "denied workloads"),
    "enough",
)


@pytest.mark.parametrize("about", COMPARED)
def test_claims_are_compared(about):
    commands = defaultdict(list)
    for name in SITUATIONS:
        for one in claims(recording(name)):
            if one.about == about:
                commands[name, one.subject].append(one.command)
    by_one = about == "enough"  # which one command says several times
    assert any(len(said if by_one else {*said}) > 1 for said in commands.values())


def test_no_command_crashes():
    assert {name for name in SITUATIONS if CRASHED in recording(name)} == set()
