"""Logs and termination messages that the sidecar's own code writes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from webhook.core.enforcement.messages import LogMessage
from webhook.core.enforcement.model import (
    EndPod,
    Excess,
    Freed,
    Kill,
    NothingToStop,
    Process,
    ReportBlind,
    ReportExcess,
    StopContainer,
    Terminate,
)
from webhook.core.enforcement.termination_message import TerminationMessage, write_message
from webhook.sidecar.events import report_action
from webhook.sidecar.journal import EnforcerJournal
from webhook.tools.problems.enforcer_log import read_log

MIB = 2**20
TRAINER = Process(41, 1, "python train.py", "c" * 64)
EXCESS = Excess(
    gpu="GPU-a",
    used_bytes=9000 * MIB,
    sum_bytes=9100 * MIB,
    cap_bytes=8192 * MIB,
    peak_bytes=9100 * MIB,
    grew_bytes=100 * MIB,
    grew_within_s=1.0,
)


class Written:
    """Lines written by a sidecar's journal."""

    def __init__(self, folder) -> None:
        self.message = folder / "termination"
        self.message.touch()
        self.log = (folder / "log").open("wb", buffering=0)
        self.file = folder / "log"
        self.journal = EnforcerJournal(self.log.fileno(), str(self.message))

    def lines(self, *actions) -> list[str]:
        for action in actions:
            report_action(self.journal, action, 5.0)
        return self.file.read_text().splitlines()


@pytest.fixture
def written(tmp_path):
    made = Written(tmp_path)
    yield made
    made.log.close()


def test_what_would_be_stopped_is_heard_as_a_report_and_no_stop(written):
    heard = read_log(written.lines(ReportExcess(EXCESS, TRAINER)), written.message.read_text())
    assert (heard.stops, heard.blind) == ((), "")
    (report,) = heard.reports
    assert (report.message, report.peak_bytes) == (LogMessage.WOULD_STOP, 9100 * MIB)
    assert "; nothing is stopped: the policy only reports" in report.why
    (left,) = read_log([], written.message.read_text()).reports  # the log may no longer exist
    assert left.why == report.why


@pytest.mark.parametrize(
    ("end", "peak_bytes"),
    [
        (EndPod("", process=TRAINER, excess=EXCESS), 9100 * MIB),
        (
            EndPod("", nothing_to_stop=NothingToStop("GPU-a", 9100 * MIB, 8192 * MIB, 9100 * MIB)),
            9100 * MIB,
        ),
        (EndPod("blind for 60 s: no figure of process 12"), None),
    ],
    ids=["stops were not enough", "none can be stopped", "blind"],
)
def test_each_way_to_stop_is_heard(end, peak_bytes, written):
    freed = Freed(TRAINER, "GPU-a", 9000 * MIB, 2.41, returned=True)
    first = Terminate(TRAINER, EXCESS), Kill(TRAINER, "GPU-a"), freed
    lines = written.lines(*first, StopContainer("c", EXCESS, TRAINER), end)
    stops = read_log(lines).stops
    ways = [LogMessage.STOPPING, LogMessage.STOPPING_CONTAINER, LogMessage.ENDING_POD]
    assert [stop.message for stop in stops] == ways
    assert stops[0].why.startswith("over the VRAM cap on GPU GPU-a: process 41 (python train.py)")
    assert stops[0].at_s is not None
    assert (stops[0].peak_bytes, stops[-1].peak_bytes) == (9100 * MIB, peak_bytes)


def test_the_last_word_on_measuring_counts(written):
    blind = ReportBlind(blind=True, since_s=0.0, why="no figure of process 12")
    lines = written.lines(blind)
    assert read_log(lines).blind == "no figure of process 12"
    lines = written.lines(ReportBlind(blind=False, since_s=0.0, why=""))
    assert read_log(lines).blind == ""


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (["waiting for the driver's limit"], "0"),
        (["waiting for the driver's limit", "held by the driver"], ""),
        (["not held by the driver", "held by the driver, late"], ""),
        (["held by the driver", "not held by the driver"], "1"),
    ],
)
def test_the_last_word_on_the_driver_counts(said, why):
    lines = [json.dumps({"msg": line, "why": str(number)}) for number, line in enumerate(said)]
    assert read_log(lines).not_held == why


def test_the_termination_message_counts_where_the_log_is_gone(written):
    lines = written.lines(Terminate(TRAINER, EXCESS))
    message = written.message.read_text() + write_message(TerminationMessage(1, {}, 1, 60))
    (stop,) = read_log((), message).stops
    assert stop.why == read_log(lines).stops[0].why
    assert stop.at_s is None
    assert read_log(lines, message) == read_log(lines)
    later = json.dumps({"msg": "measuring again", "why": "w"})
    assert read_log([later], "cannot measure: no figure\n").blind == ""


@pytest.mark.parametrize("cut", [60, 4096])
def test_a_verdict_that_was_cut_is_known_by_its_beginning(cut, written):
    excess = replace(EXCESS, gpu="GPU-" + "x" * 5000)
    lines = written.lines(Terminate(TRAINER, excess))
    assert len(read_log(lines, written.message.read_text()[:cut]).stops) == 1


@pytest.mark.parametrize(("failed", "blind"), [(True, "no driver"), (False, "")])
def test_a_self_test_failed_where_the_exit_code_says_so(failed, blind):
    assert read_log((), "self-test: no driver\n", self_test_failed=failed).blind == blind


def test_a_failed_self_test_is_heard_from_the_log():
    line = json.dumps({"msg": "self-test", "why": "no driver", "ability": "blind"})
    assert read_log([line]).blind == "no driver"
    assert read_log([line, line.replace("blind", "full")]).blind == ""


@pytest.mark.parametrize(
    "line",
    [
        "",
        "no JSON",
        "[1]",
        "7",
        '{"msg": 7}',
        '{"msg": ["stopping a process"]}',
        '{"msg": "another"}',
        '{"msg": "self-test", "ability": []}',
        "[" * 5000,
    ],
)
def test_what_no_enforcer_writes_is_passed_over(line):
    assert read_log([line]).stops == ()


def test_what_a_tenant_forges_has_no_type():
    forged = {"why": ["w"], "peak_bytes": "much", "ts": 7, "ability": ["blind"]}
    (stop,) = read_log([json.dumps({"msg": "stopping a process", **forged})]).stops
    assert (stop.why, stop.peak_bytes, stop.at_s, stop.blind) == ("", None, None, False)


@pytest.mark.parametrize("peak_bytes", [-1, True, 1.5, 2**50 + 1, None])
def test_a_peak_that_no_gpu_has_is_none(peak_bytes):
    line = json.dumps({"msg": "stopping a process", "why": "w", "peak_bytes": peak_bytes})
    assert read_log([line]).stops[0].peak_bytes is None
