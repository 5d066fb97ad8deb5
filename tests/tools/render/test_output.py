"""Untrusted strings in the output of each command: control characters are not printed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from tests.support.clusters import NOW_S, a_gpu, held
from webhook.core.kinds.histories import Advice, History
from webhook.tools.advise.command import as_text as advise_text
from webhook.tools.check.checks import Check, CheckOutcome
from webhook.tools.check.render import as_text as check_text
from webhook.tools.explain.render import as_text as explain_text
from webhook.tools.explain.report import Diagnosis, State
from webhook.tools.problems.problem import Code, Problem, ProblemSubject, Severity
from webhook.tools.problems.recreation import PodOutcome
from webhook.tools.render.output import Column, table, write_lines
from webhook.tools.report.render import as_text as report_text
from webhook.tools.report.report import DeniedGroup, OverCap, RecreatedPod, RolloutReport
from webhook.tools.simulate.comparison import Comparison, GpuCounts
from webhook.tools.simulate.fetch import TodayObjects
from webhook.tools.simulate.render import as_text as simulate_text
from webhook.tools.snapshot.objects import FactUnavailable
from webhook.tools.snapshot.workloads import WorkloadState

EVIL = "\x1b]0;owned\x07\x1b[2J\u202emoc\u200b\x9b31m\r\nPod is fine"


def explain():
    cause = Problem(Code.NOT_FOUND, Severity.ERROR, EVIL, EVIL)
    texts = {"notes": ((EVIL, EVIL),), "left_out": (EVIL,)}
    subject = ProblemSubject(EVIL, EVIL, EVIL)
    pod = Diagnosis(subject=subject, state=State.PENDING, sentence=EVIL)
    return explain_text(replace(pod, problems=(cause,), pod=pod, **texts))


def check():
    row = Check("check", EVIL, lambda _: None)
    problem = Problem(Code.TAINT, Severity.ERROR, EVIL, EVIL, ProblemSubject("Node", EVIL))
    found = [
        CheckOutcome("nodes", row, (problem, replace(problem, code=Code.NO_ROOM))),
        CheckOutcome("nodes", row, seen=EVIL),
        CheckOutcome("nodes", row, unavailable=FactUnavailable(EVIL)),
    ]
    return check_text(found, is_before=False, ascii_only=False, colour=False)


def report():
    pod = RecreatedPod(PodOutcome.DENIED, EVIL, EVIL)
    denied = WorkloadState(kind=EVIL, name=EVIL, namespace=EVIL, denial=EVIL)
    over = OverCap(pod, EVIL, a_gpu(24), held("1", 8), 0)
    return report_text(
        RolloutReport(
            policy=EVIL, counts=Counter([PodOutcome.DENIED, PodOutcome.EXEMPT]),
            exempt_namespaces=1, why_default_scope=EVIL,
            denied=[DeniedGroup(EVIL, EVIL, EVIL, EVIL, 1, 1, EVIL, EVIL)],
            denied_workloads=[denied], over_cap=[over],
            missing=[EVIL], now_s=NOW_S,
        )
    )  # fmt: skip


def simulate():
    found = Comparison(
        products={EVIL: GpuCounts()},
        elsewhere=GpuCounts(),
        pods=0,
        whole=Counter({EVIL: 1}),
        sliced=[EVIL],
        blocked=[],
    )
    return simulate_text(found, TodayObjects(left_out={EVIL: [EVIL]}))


def advise():
    return advise_text([(History(EVIL, EVIL, EVIL), Advice(None, EVIL))], "")


@pytest.mark.parametrize("command", [explain, check, report, simulate, advise])
def test_no_text_of_others_acts_on_a_terminal_or_begins_a_line(command):
    text = command()
    assert "Pod is fine" in text
    assert all(char.isprintable() for char in text.replace("\n", ""))
    assert not any(line.lstrip().startswith("Pod is fine") for line in text.splitlines())


def test_a_text_that_is_too_long_is_cut():
    assert len(write_lines(["x" * 10**6])) == 4096 + len("\n")


def test_only_bars_keep_characters_that_are_not_ascii():
    bars = Column(
        title="", texts=[""], draw=lambda row, width: f"{row}".ljust(width, "█"), drawn_width=3
    )
    columns = [Column(title="a\x1b", texts=["ä"]), bars]
    assert table(columns, None, "") == ["a?  -1█", "?   0██"]
