"""What an enforcer said, read back from what it writes."""

from __future__ import annotations

import json

import pytest

from webhook.core.enforcement.step import (
    EndPod,
    Excess,
    Freed,
    Kill,
    Powerless,
    Process,
    ReportBlind,
    ReportExcess,
    StopContainer,
    Terminate,
)
from webhook.core.enforcement.termination_message import (
    TerminationMessage,
    write_message,
)
from webhook.sidecar.events import report
from webhook.sidecar.journal import EnforcerJournal
from webhook.tools.explain.judge.stops import Said, read_log

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
    """What a sidecar's journal writes."""

    def __init__(self, folder) -> None:
        self.message = folder / "termination"
        self.message.touch()
        self.log = (folder / "log").open("wb", buffering=0)
        self.file = folder / "log"
        self.journal = EnforcerJournal(self.log.fileno(), str(self.message))

    def lines(self, *actions) -> list[str]:
        for action in actions:
            report(self.journal, action, 5.0)
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
    assert report.reason is Said.WOULD_STOP
    assert (report.sum_bytes, report.peak_bytes, report.pid) == (9100 * MIB, 9100 * MIB, 41)
    assert "; nothing is stopped: the policy only reports" in report.why
    (left,) = read_log([], written.message.read_text()).reports  # its log may be gone
    assert left.why == report.why


def test_what_nobody_could_stop_is_heard_without_a_process(written):
    over = Powerless("GPU-a", 9100 * MIB, 8192 * MIB, 9100 * MIB)
    (report,) = read_log(written.lines(ReportExcess(over))).reports
    assert (report.pid, report.sum_bytes) == (None, 9100 * MIB)


def test_a_stop_is_heard_with_its_figures_and_how_it_went_on(written):
    freed = Freed(TRAINER, "GPU-a", 9000 * MIB, 2.41, returned=True)
    heard = read_log(written.lines(Terminate(TRAINER, EXCESS), Kill(TRAINER, "GPU-a"), freed))
    (stop,) = heard.stops
    assert stop.reason is Said.STOPPING
    assert stop.why.startswith("over the VRAM cap on GPU GPU-a: process 41 (python train.py)")
    assert stop.at_s is not None
    assert (stop.sum_bytes, stop.cap_bytes) == (9100 * MIB, 8192 * MIB)
    assert stop.peak_bytes == 9100 * MIB
    assert (stop.pid, stop.command, stop.container) == (41, "python train.py", "c" * 64)
    assert (stop.killed, stop.freed_after_s) == (True, 2.41)
    assert heard.blind == ""


def test_each_way_to_stop_is_heard(written):
    end = EndPod("", process=TRAINER, excess=EXCESS)
    lines = written.lines(Terminate(TRAINER, EXCESS), StopContainer("c", EXCESS, TRAINER), end)
    reasons = [stop.reason for stop in read_log(lines).stops]
    assert reasons == [Said.STOPPING, Said.STOPPING_CONTAINER, Said.ENDING_POD]


def test_of_memory_that_did_not_come_back_nobody_says_that_it_did(written):
    stuck = Freed(TRAINER, "GPU-a", 0, 35.0, returned=False)
    (stop,) = read_log(written.lines(Terminate(TRAINER, EXCESS), stuck)).stops
    assert stop.freed_after_s is None


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
    lines = [json.dumps({"msg": one, "why": str(number)}) for number, one in enumerate(said)]
    assert read_log(lines).not_held == why


def test_the_termination_message_counts_where_the_log_is_gone(written):
    lines = written.lines(Terminate(TRAINER, EXCESS))
    message = written.message.read_text() + write_message(TerminationMessage(1, {}, 1, 60))
    (stop,) = read_log((), message).stops
    assert stop.why == read_log(lines).stops[0].why
    assert stop.at_s is None
    assert len(read_log(lines, message).stops) == 1


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
    line = json.dumps(
        {
            "msg": "stopping a process",
            "why": ["w"],
            "command": 5,
            "pid": 10**30,
            "peak_bytes": -1,
            "sum_bytes": "much",
            "ts": 7,
        }
    )
    (stop,) = read_log([line]).stops
    assert (stop.why, stop.command) == ("", "")
    assert (stop.pid, stop.peak_bytes, stop.sum_bytes, stop.at_s) == (None, None, None, None)


@pytest.mark.parametrize("after", ["1e999", "NaN", "-5.0", '"2"', "true", "9" * 400])
def test_a_time_that_is_none_breaks_nothing(after):
    stopping = json.dumps({"msg": "stopping a process", "why": "w", "pid": 1})
    line = f'{{"msg": "memory came back", "pid": 1, "after_s": {after}}}'
    (stop,) = read_log([stopping, line]).stops
    assert stop.freed_after_s is None
