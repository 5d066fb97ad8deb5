"""Scripted incidents of the enforcer's judgement."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tests.core.enforcement.observations import CAP, LOADER, MIB, TRAINER, names, run_script, using
from webhook.core.enforcement.messages import explain_end
from webhook.core.enforcement.model import UNIDENTIFIED, Freed, Process, ReportBlind, Terminate
from webhook.core.enforcement.step import name_victim, step

OVER, BLIND = using((TRAINER, 1500)), using(fault="GPU is lost")
AGAIN, STRANGER = Process(100, 1050), Process(300, UNIDENTIFIED)
SEEN = {
    ".": using((TRAINER, 600), (LOADER, 400)),
    "=": using((TRAINER, 1020)),
    "+": using((TRAINER, 1021)),
    "O": OVER,
    "B": using((TRAINER, 1500), (LOADER, 1400)),
    "L": using((LOADER, 1400)),
    "A": using((AGAIN, 400)),
    "S": using((TRAINER, 600), (STRANGER, 1500)),
    "s": using((STRANGER, 1500)),
    "K": using((TRAINER, 1500), (LOADER, None)),
    "k": using((TRAINER, None), (LOADER, 1400)),
    "2": using((TRAINER, 900, "GPU-a"), (TRAINER, 900, "GPU-b")),
    "t": using((TRAINER, 600), (TRAINER, 900)),
    "?": BLIND,
    "-": using(),
}
"""Observation of one second of an incident, keyed by its letter in the pattern."""
WHO = {TRAINER: " trainer", LOADER: " loader", AGAIN: " again", STRANGER: " stranger", None: ""}
INCIDENTS = {
    "a pod within its cap is left alone": ("." * 100, ""),
    "use up to cap and tolerance is no excess": ("=" * 10, ""),
    "a mebibyte more is one": ("++", "1 Terminate trainer"),
    "one sample over is not enough": (".O" * 10, ""),
    "term, then kill after the grace, then the memory is back": (
        "OOOOOOOOO--",
        "1 Terminate trainer, 6 Kill trainer, 9 Freed trainer",
    ),
    "a victim that obeys is not killed": ("OO-", "1 Terminate trainer, 2 Freed trainer"),
    "no second process is stopped while the first one is on its way": (
        "BBBBBB",
        "1 Terminate trainer",
    ),
    "a process without a figure is not stopped for the excess of another": (
        "Bk",
        "1 Terminate loader",
    ),
    "an excess that stays costs the next process": (
        "BBLLL",
        "1 Terminate trainer, 2 Freed trainer, 3 Terminate loader",
    ),
    "a process that outlives its kill is given up for the next": (
        "B" * 40,
        "1 Terminate trainer, 6 Kill trainer, 36 GiveUp trainer, 36 Terminate loader",
    ),
    "a grace of zero kills at once": ("OO", "1 Terminate trainer, 1 Kill trainer"),
    "each GPU is held to the cap by itself": ("22222", ""),
    "a process listed twice counts once by its largest figure": ("ttttt", ""),
    "a PID that is somebody else now is another process": (
        "OOAAAAAAA",
        "1 Terminate trainer, 2 Freed trainer",
    ),
    "an excess that is known is acted on although another figure is not": (
        "KKK",
        "1 Terminate trainer",
    ),
    "a victim that cannot be seen for a moment is not taken for gone": (
        "OO????O",
        "1 Terminate trainer, 6 Kill trainer",
    ),
    "a process that nobody could identify is counted and never stopped": (
        "SSsss",
        "1 Terminate trainer, 2 Freed trainer, 3 EndPod",
    ),
}


def played(pattern, cap=CAP):
    """Play an incident second by second; return its timed actions and final state."""
    log, state = run_script([(second, SEEN[item]) for second, item in enumerate(pattern)], cap)
    done = [
        f"{second} {'GiveUp' if getattr(item, 'returned', 1) is False else type(item).__name__}"
        f"{WHO[getattr(item, 'process', None)]}"
        for second, item in log
    ]
    return ", ".join(done), log, state


CAPS = {"a grace of zero kills at once": replace(CAP, grace_s=0.0)}
"""Cap of an incident, if it is not the usual one, keyed by the incident's name."""


@pytest.mark.parametrize("incident", INCIDENTS)
def test_an_incident_goes_as_scripted(incident):
    pattern, want = INCIDENTS[incident]
    done, _, state = played(pattern, CAPS.get(incident, CAP))
    assert done == want
    gone = re.findall("(?:Freed|GiveUp)( [a-z]+)", want)
    assert [WHO[victim.process] for victim in state.victims] == [
        who for who in re.findall("Terminate( [a-z]+)", want) if who not in gone
    ]


def test_a_victim_is_reported_by_the_command_that_it_has_when_it_is_stopped():
    before, other = Process(100, 1000, "sh -c train"), Process(101, 1001, "loader")
    seen = using((before, 1500), (other, 10))
    _, state = run_script([(0, seen), (1, seen)])
    named = name_victim(state, Process(100, 1000, "python train.py"))
    (kill,) = step(named, seen, CAP, 6)[1]
    (freed,) = step(named, using((other, 10)), CAP, 2)[1]
    assert [item.process.command for item in (kill, freed)] == ["python train.py"] * 2


@pytest.mark.parametrize("who", [LOADER, Process(100, 1)])
def test_only_the_victim_itself_is_renamed(who):
    _, state = run_script([(t, using((TRAINER, 1500), (LOADER, 10))) for t in (0, 1)])
    assert name_victim(state, replace(who, command="other")).victims == state.victims
    assert [victim.process.command for victim in name_victim(state, who).victims] == [""]


def test_the_process_that_grew_last_is_stopped_not_the_largest():
    grown = using((TRAINER, 800), (LOADER, 300))
    script = [(0, using((TRAINER, 800), (LOADER, 100))), (1, grown), (2, grown)]
    ((now_s, action),) = run_script(script)[0]
    assert (now_s, type(action), action.process) == (2, Terminate, LOADER)
    assert action.excess.used_bytes == 300 * MIB
    assert action.excess.sum_bytes == action.excess.peak_bytes == 1100 * MIB
    assert (action.excess.grew_bytes, action.excess.grew_within_s) == (200 * MIB, 1)


@pytest.mark.parametrize(
    ("usages", "want"),
    [
        ([(TRAINER, 700), (LOADER, 600)], TRAINER),  # both observed at once: the largest is stopped
        ([(TRAINER, 650), (LOADER, 650)], LOADER),  # equal sizes: the youngest
        ([(Process(1, 1), 900), (LOADER, 300)], LOADER),  # PID 1 is never stopped
        ([(Process(7, 5000), 900), (LOADER, 300)], LOADER),  # the enforcer never stops itself
        ([(TRAINER, 900, "GPU-a"), (LOADER, 1100, "GPU-b")], LOADER),  # judged by GPU
    ],
)
def test_ties_are_broken_by_size_then_youth_and_some_are_never_stopped(usages, want):
    log, _ = run_script([(t, using(*usages)) for t in range(2)])
    ((_, action),) = log
    assert (action.process, action.excess.gpu) == (want, (*usages[-1], "GPU-0")[2])


def test_memory_that_is_back_is_told_with_its_amount_and_how_long_it_took():
    *_, (_, freed) = played("OOOOOOOOO-")[1]
    assert freed == Freed(TRAINER, "GPU-0", 1500 * MIB, 8, returned=True)


def test_a_process_that_may_not_be_signalled_is_given_up_and_then_the_pod_ends():
    seen = [OVER, OVER, using((TRAINER, 1500), rejected=[TRAINER]), OVER, OVER]
    log, _ = run_script(enumerate(seen))
    assert names(log) == [(1, "Terminate"), (3, "EndPod")]
    assert explain_end(log[-1][1]) == (
        "over the VRAM cap on GPU GPU-0: the pod holds 1.5Gi, the cap is 1000Mi, and none of its "
        "processes can be stopped from here; the pod's peak was 1.5Gi, so write "
        "vramwarden.io/gpu-memory: 1.75Gi (the peak and 15 %)"
    )


@pytest.mark.parametrize("mib", [None, 0])
def test_unknown_is_not_zero_and_never_a_reason_to_kill(mib):
    log, _ = run_script([(t, using((TRAINER, mib))) for t in range(0, 130, 10)])
    ((now_s, report),) = log
    assert (now_s, report.blind) == (60, True)
    assert "process 100 without a figure" in report.why


def test_blindness_ends_the_pod_where_the_policy_says_so():
    cap = replace(CAP, tolerance_bytes=0, terminate_when_blind=True)
    log, _ = run_script([(t, BLIND) for t in range(0, 80, 10)], cap)
    assert names(log) == [(60, "ReportBlind"), (60, "EndPod")]
    assert "GPU is lost" in log[-1][1].why


def test_sight_that_comes_back_is_reported_only_where_blindness_was():
    script = [(0, BLIND), (30, using()), (40, BLIND), (101, BLIND), (102, using((TRAINER, 10)))]
    log, _ = run_script(script)
    assert [(t, a.blind) for t, a in log if isinstance(a, ReportBlind)] == [
        (101, True),
        (102, False),
    ]


@pytest.mark.parametrize("gpu", ["GPU-0", "GPU-1"])
def test_a_victim_on_a_gpu_that_was_seen_is_let_go_although_another_gpu_is_at_fault(gpu):
    seen = [OVER, OVER, using(fault="a GPU is lost", listed_at_s={gpu: 2})]
    log, state = run_script(enumerate(seen))
    let_go = gpu == "GPU-0"
    assert names(log) == [(1, "Terminate"), (2, "Freed")][: 1 + let_go]
    assert len(state.victims) == 1 - let_go


def test_growth_is_told_between_the_lists_that_show_it_not_between_looks_at_old_ones():
    """Lists are read at 0, 10 and 10.5 s. Observations in between repeat the first list."""
    script = [(t, using((TRAINER, 800), listed_at_s={"GPU-0": 0})) for t in range(10)]
    script += [(t, using((TRAINER, 1500), listed_at_s={"GPU-0": t})) for t in (10, 10.5)]
    ((now_s, action),) = run_script(script)[0]
    assert now_s == 10.5
    assert (action.excess.grew_bytes, action.excess.grew_within_s) == (700 * MIB, 10)
