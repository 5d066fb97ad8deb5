"""The loop's turns: reports that it receives and makes, and when it has to end."""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import replace
from itertools import pairwise
from signal import SIGKILL, SIGTERM
from types import SimpleNamespace

import pytest

from tests.sentry.fakes import ID, OTHER, TRAINER, Driver, an_assignment, cap_terms, sentry_terms
from tests.support.fake_proc import put, status_lines
from webhook.adapters.host_environment import Fact
from webhook.adapters.journal import Journal
from webhook.adapters.kube.node_objects import AssignmentsSeen, AssignmentsUnread, OwnNode
from webhook.adapters.processes import Delivery
from webhook.core.kinds.nodes import (
    GpuFigures,
    NodeFigures,
    PodFigures,
    read_gpu_node,
    write_gpu_node,
)
from webhook.core.node.access import CHANGED_AFTER_S
from webhook.core.node.limiter_state import (
    STATE_FILE,
    LimiterState,
    LimitEvent,
    PodLimitState,
    write_limiter_state,
)
from webhook.core.nvidia.drivers import Proof
from webhook.core.placement.cap_terms import CapTerms
from webhook.node_programs.program import NewContainerNeededError
from webhook.sentry import actions, loop
from webhook.sentry.assignments import MALFORMED, UNREAD
from webhook.sentry.endpoints import Liveness, SentryMetrics
from webhook.sentry.killer import PodEnd
from webhook.sentry.loop import Sentry
from webhook.sentry.program_reports import LimiterReport
from webhook.sentry.scanner import DUTY
from webhook.sentry.settings import SentrySettings

GIB = 2**30
NOBODY = 4_999_999  # larger than the PID of any process
SEEN = AssignmentsSeen({TRAINER: an_assignment()})
NOTHING_STORED = NodeFigures(name="n1", observed_s=0.0, driver_version="", enforcement="")


class Bench:
    """A sentry without threads, whose /proc is a folder."""

    def __init__(self, proc, clock, pod_uid="", **settings):
        self.clock, self.driver, self.said = clock, Driver("GPU-a"), []
        self.liveness = Liveness(lambda: clock[0])
        self.metrics = SentryMetrics("n1")
        self.sentry = Sentry(
            SentrySettings(node="n1", namespace="sys", proc=str(proc), pod_uid=pod_uid, **settings),
            None, self.driver, Journal(self.said.append), self.metrics, self.liveness,
        )  # fmt: skip

    def events(self):
        return [json.loads(line)["msg"] for line in self.said]

    def hold(self, held, pid=50):
        """List a process with this amount."""
        self.driver.lists["GPU-a"] = {pid: held} if held else {}
        self.driver.used["GPU-a"] = held

    def run(self, seconds):
        for _ in range(2 * seconds):
            self.sentry.step(self.clock[0])
            self.clock[0] += 0.5

    def pods(self):
        shown = self.metrics._snapshot.shown[0]
        return shown, shown.gpus[0].pods

    def reported(self):
        waiting = self.sentry._events.waiting
        return [waiting.get_nowait() for _ in range(waiting.qsize())]


def nobody(_pid):
    raise ProcessLookupError


@pytest.fixture
def over(tmp_path, clock, monkeypatch):
    """Return a function that creates a sentry and a pod that holds 5 GiB of 1000 MiB.

    No process of this machine is signalled, even if its PID is the name of a folder there.
    """
    monkeypatch.setattr(os, "pidfd_open", nobody)

    def make(pid=50, line=None, **settings):
        put(tmp_path, os.getpid(), cgroup=f"0::/kubepods/pod{OTHER}/{ID}\n")
        put(tmp_path, pid, cgroup=f"0::/kubepods/pod{TRAINER}/{ID}\n")
        bench = Bench(tmp_path, clock, pod_uid=OTHER, **settings)
        bench.sentry.on_report(AssignmentsSeen({TRAINER: line or an_assignment()}))
        bench.hold(5 * GIB, pid)
        return bench

    return make


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    times = SimpleNamespace(monotonic=lambda: now[0], time=time.time)
    for module in (loop, actions):
        monkeypatch.setattr(module, "time", times)
    return now


@pytest.fixture
def bench(tmp_path, clock):
    made = Bench(tmp_path, clock)
    made.sentry._obstacle = ""  # its own cgroup is not in the test's folder
    return made


def test_it_is_ready_once_it_can_place_processes_has_the_list_and_sees_the_gpus(tmp_path, clock):
    bench = Bench(tmp_path, clock)
    bench.sentry.step(0.0)
    assert bench.liveness.unready().startswith("our own cgroup names no pod")
    bench.sentry._obstacle = ""
    bench.sentry.step(1.0)
    assert bench.liveness.unready() == UNREAD
    bench.sentry.on_report(AssignmentsUnread("forbidden"))
    bench.sentry.step(2.0)
    assert bench.liveness.unready() == f"{UNREAD}: forbidden"
    bench.sentry.on_report(SEEN)
    bench.driver.codes["open"] = 9
    bench.sentry.step(3.0)
    assert bench.liveness.unready().startswith("the NVIDIA driver is not loaded")
    bench.driver.codes.clear()
    bench.sentry.step(4.0)
    assert bench.liveness.unready() == ""


@pytest.mark.parametrize(
    ("act", "obstacle", "rights", "acts"),
    [
        (True, "", True, True),
        (False, "", True, False),
        (True, "the pod needs hostPID: true", True, False),
        (True, "", None, False),
    ],
)
def test_it_shows_whether_it_can_stop_processes(
    act, obstacle, rights, acts, tmp_path, clock, monkeypatch
):
    monkeypatch.setattr(loop, "_obstacle", lambda _: obstacle)
    monkeypatch.setattr(loop.host_environment, "check_own_permission", lambda: Fact(rights, ""))
    made = Bench(tmp_path, clock, act=act)
    made.sentry.on_report(SEEN)
    made.sentry.step(clock[0])
    assert made.pods()[0].acts is acts


def test_a_list_is_news_where_it_differs(bench):
    assert [bench.sentry.on_report(SEEN), bench.sentry.on_report(SEEN)] == [True, False]
    assert bench.sentry.on_report(AssignmentsSeen({})) is True


@pytest.mark.parametrize("read", [{}, {TRAINER: replace(an_assignment(), terms=None)}])
def test_a_malformed_list_ends_no_cap_and_proves_no_sentry(bench, offered, read):
    sentry = bench.sentry
    sentry._status._acts = True
    sentry.on_report(NOTHING_STORED)
    malformed = AssignmentsSeen(read, complete=False)
    for message in (malformed, SEEN, malformed, SEEN, AssignmentsSeen({})):
        sentry.on_report(message)
        sentry.step(bench.clock[0])
        offered[-1] = offered[-1].acts, set(sentry._assignments.capped), bench.liveness.unready()
    unread = f"{UNREAD}: {MALFORMED}"
    assert offered == [
        (False, set(), unread),
        (True, {TRAINER}, ""),
        (False, {TRAINER}, ""),
        (True, {TRAINER}, ""),
        (True, set(), ""),
    ]
    followed = ["cannot be followed", "is followed again"] * 2
    assert [
        event.split("what ")[1] for event in bench.events() if "promised what" in event
    ] == followed


def test_a_uid_is_found_whatever_its_case(bench):
    bench.sentry.on_report(AssignmentsSeen({TRAINER.upper(): an_assignment()}))
    assignments = bench.sentry._assignments
    assert set(assignments.capped) == set(assignments.listed) == {TRAINER}


def test_a_bug_of_a_thread_ends_the_sentry(bench, clock):
    bench.sentry._inbox.put(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        bench.sentry._wait(clock[0], 60.0, 0.0)


def test_the_newest_figures_are_written_as_it_ends(bench, monkeypatch):
    written = []
    monkeypatch.setattr(bench.sentry._inbox, "start", lambda *_: None)
    monkeypatch.setattr(bench.sentry._writer, "write_last", lambda: written.append(True))
    bench.sentry._inbox.put(InterruptedError())
    with pytest.raises(InterruptedError):
        bench.sentry.run()
    assert written == [True]


def test_unmanaged_memory_is_reported_once_and_again_after_it_was_gone(tmp_path, bench, clock):
    put(tmp_path, 50, cgroup="0::/system.slice/x.service\n")
    bench.sentry.on_report(SEEN)
    for second, held in enumerate((GIB, 2 * GIB, 0, GIB, 2**20)):
        bench.driver.lists["GPU-a"] = {50: held} if held else {}
        bench.sentry.step(100.0 * second)
    assert bench.events().count("unmanaged memory") == 2
    said = [
        (item.reason, item.action, item.sentence.partition(" on ")[0]) for item in bench.reported()
    ]
    assert said == 2 * [("VRAMUnmanaged", "Audit", "1Gi")]


def test_unfollowed_or_where_nothing_is_shared_unmanaged_memory_is_absent(tmp_path, bench, clock):
    put(tmp_path, 50, cgroup="0::/system.slice/x.service\n")
    bench.driver.lists["GPU-a"] = {50: GIB}
    shown = []
    for message, not_shared in (
        (None, ""),
        (SEEN, "nvidia.com/gpu is offered"),
        (SEEN, ""),
        (AssignmentsUnread("down"), ""),
        (AssignmentsSeen({}, watched=False), ""),
        (SEEN, ""),
    ):
        bench.sentry._writer.own = OwnNode("u-1", "sidecar", not_shared)
        if message:
            bench.sentry.on_report(message)
        clock[0] += 100.0
        bench.sentry.step(clock[0])
        shown.append(b"vramwarden_gpu_memory_unmanaged_bytes{" in bench.metrics.exposition())
        assert bench.events().count("unmanaged memory") == sum(shown)
    assert shown == [False, False, True, False, False, True]


def test_a_driver_that_was_replaced_needs_a_new_container(bench):
    bench.sentry.step(1000.0)
    bench.driver.codes["open"] = 18
    bench.sentry.step(1001.0)
    with pytest.raises(NewContainerNeededError):
        bench.sentry.step(1001.0 + CHANGED_AFTER_S)


def test_a_driver_that_gives_no_figure_acts_on_nobody(tmp_path, bench):
    put(tmp_path, 50, cgroup="0::/\n")
    bench.sentry.on_report(AssignmentsSeen({TRAINER: an_assignment(), OTHER: an_assignment("*")}))
    bench.driver.lists["GPU-a"] = {50: None}
    bench.driver.used["GPU-a"] = None
    for second in range(60):
        bench.sentry.step(float(second))
    assert (bench.events(), bench.reported()) == ([], [])


def test_what_the_limiter_says_is_shown_and_told_of_pods_on_the_list(tmp_path, bench, offered):
    told = tuple(LimitEvent(number, TRAINER, "an image set 1Gi") for number in (1, 2))
    state = LimiterState(
        written_s=time.time(), started_s=1.0, proof=Proof(holds=True, back_end="misc"), events=told,
        limited=(PodLimitState(TRAINER, "GPU-a", 1, 0, late=True),),
    )  # fmt: skip
    (tmp_path / STATE_FILE).write_text(write_limiter_state(state))
    bench.sentry._limits = bench.sentry._status._limits = LimiterReport(str(tmp_path))
    bench.sentry.step(0.0)
    assert bench.reported() == []
    bench.sentry.on_report(SEEN)
    bench.sentry.on_report(NOTHING_STORED)
    for second in (1.0, 2.0):
        bench.sentry.step(second)
    first, second = bench.reported()
    about = {"kind": "Pod", "namespace": "team", "name": "train", "uid": TRAINER}
    assert (first.about, first.reason, first.sentence, first.condition) == (
        about, "VRAMLimitReset", "an image set 1Gi", None,
    )  # fmt: skip
    assert first == second
    assert bench.events() == ["what became of a pod's limit"] * 2
    assert [item.limit for item in offered] == [state.proof] * 2
    assert offered[-1].gpus[0].pods[0].held_by == "driver, late"


def test_the_last_scan_is_the_last_that_saw_the_driver(bench):
    def last():
        lines = bench.metrics.exposition().decode().splitlines()
        return [line for line in lines if line.startswith("vramwarden_sentry_last_scan_")]

    assert last() == []
    bench.sentry.step(0.0)
    seen = last()
    bench.driver.codes["devices"] = 999
    bench.sentry.step(1.0)
    assert (len(seen), last()) == (1, seen)


def test_who_cannot_be_stopped_is_tried_more_seldom_the_longer_that_takes(over, clock):
    bench = over()
    tried_s, again = [], []

    def end(*_, **more):
        again.append(more["again"])
        tried_s.append(clock[0])
        clock[0] += 1.0
        return PodEnd(0, 0, sure=True)

    bench.sentry._actions._killer.end = end
    bench.run(100)
    assert again == [False] + [True] * (len(tried_s) - 1) != [False]
    assert min(later - item for item, later in pairwise(tried_s)) >= DUTY


@pytest.mark.parametrize("act", [True, False])
def test_a_process_has_the_number_that_its_owner_sees(tmp_path, over, act):
    bench = over(act=act)
    status = f"{status_lines(50)}NSpid:\t50\t7\n"
    put(tmp_path, 50, cgroup=f"0::/kubepods/pod{TRAINER}/{ID}\n", status=status)
    bench.run(50)
    assert "process 7 (" in json.loads(bench.said[0])["why"]
    assert act or "process 7 (" in bench.reported()[0].sentence


@pytest.fixture
def signals(monkeypatch):
    """Return the signals that are sent, with the arguments of the killer."""
    found = []

    def stop(_self, owner, held, *, sidecar, number):
        found.append((owner.process.pid, number, sidecar, held))
        return Delivery.DELIVERED

    monkeypatch.setattr(actions.Killer, "stop", stop)
    return found


@pytest.mark.parametrize(
    ("terms", "events", "sent", "words"),
    [
        (sentry_terms(grace_s=3.0), ["stopping", "killing"], [SIGTERM, SIGKILL], 0),
        (sentry_terms(grace_s=0.0), ["stopping"], [SIGKILL], 0),
        (cap_terms(), ["stopping"], [SIGKILL], 1),
    ],
)
def test_only_by_sentry_a_process_has_a_grace_and_messages_name_no_sidecar(
    over, signals, terms, events, sent, words
):
    bench = over(line=an_assignment(terms=terms))
    bench.run(30)
    assert bench.events()[: len(events)] == [f"{event} a process" for event in events]
    by_sidecar = bool(words)
    assert signals == [(50, number, by_sidecar, {ID: 5 * GIB}) for number in sent]
    labels = f'enforcer="{terms.by}",node="n1",target="process"'
    stops = f"vramwarden_sentry_stops_total{{{labels}}} 1.0\n"
    assert stops in bench.metrics.exposition().decode()
    first, *_ = bench.reported()
    assert first.sentence.count("its sidecar did not stop it within 11.5 s") == words
    assert first.sentence.count("sidecar") == words
    assert (first.reason, first.condition["type"]) == ("VRAMCapExceeded", "vramwarden.io/CapHeld")
    if "killing" in events:
        whys = [json.loads(line)["why"] for line in bench.said]
        assert whys[1].endswith("is still there 3 s after SIGTERM")


def test_the_list_of_a_gpu_is_read_at_each_scan_until_its_pod_is_idle(over):
    bench = over()
    bench.run(1)
    bench.hold(0)
    bench.driver.calls.clear()
    bench.run(5)
    assert bench.driver.calls.count("list GPU-a") == 2


def test_it_scans_as_often_as_pods_by_sentry_are_to_be_measured(bench, clock):
    pauses_s = []
    for terms in (cap_terms(), sentry_terms(1.5), sentry_terms(0.8)):
        bench.sentry.on_report(AssignmentsSeen({TRAINER: an_assignment(terms=terms)}))
        pauses_s.append(bench.sentry.pause_s(bench.sentry.step(clock[0])))
    assert pauses_s == [1.0, 1.0, 0.4]


def test_a_process_that_ended_in_its_grace_is_not_killed(tmp_path, over, signals):
    """The driver may list the process for another moment."""
    bench = over(line=an_assignment(terms=sentry_terms(grace_s=3.0)))
    bench.run(3)
    assert [number for _, number, *_ in signals] == [SIGTERM]
    shutil.rmtree(tmp_path / "50")
    bench.run(3)
    assert ([number for _, number, *_ in signals], "killing a process" in bench.events()) == (
        [SIGTERM], False,
    )  # fmt: skip


def test_by_sentry_a_pod_ends_without_a_word_of_a_sidecar(tmp_path, over, signals):
    bench = over(line=an_assignment(terms=sentry_terms(grace_s=3.0)))
    ends, listed = [], []

    def end(_uid, holders, _held, **more):
        listed.append({holder.process.pid for holder in holders})
        ends.append(more)
        return PodEnd(1, 0, sure=True)

    bench.sentry._actions._killer.end = end
    bench.run(2)
    put(tmp_path, 60, cgroup=f"0::/kubepods/pod{TRAINER}/{ID}\n")
    put(tmp_path, 61, cgroup=f"0::/kubepods/pod{OTHER}/{ID}\n")
    bench.hold(5 * GIB, 60)
    bench.driver.lists["GPU-a"] |= {61: GIB, 62: GIB}
    bench.run(3)
    assert {end["sidecar"] for end in ends} == {False}
    assert listed[0] == {60}
    assert "ending a pod" in bench.events()
    assert not any("sidecar" in item.sentence for item in bench.reported())


MEASURED = CapTerms(cap_bytes=GIB, tolerance_bytes=0, delay_s=6.5, enforce=False, reports=False)


@pytest.mark.parametrize(
    ("terms", "act", "why"),
    [
        (replace(MEASURED, reports=True), True, "the policy only reports (onExcess: Report)"),
        (replace(MEASURED, reports=True), False, "the policy only reports (onExcess: Report)"),
        (replace(MEASURED, enforce=True), False, "the sentry only reports"),
    ],
)
def test_an_excess_is_reported_once_counted_and_nobody_is_stopped(over, terms, act, why):
    bench = over(line=replace(an_assignment(), terms=terms), act=act)
    bench.sentry._actions._killer = None  # stopping a process would fail
    for held in (5 * GIB, 0, 5 * GIB):
        bench.hold(held)
        bench.run(30)
    assert bench.events() == ["a pod is over its cap"] * 2
    reports = bench.reported()
    assert [report.condition for report in reports] == [None, None]
    assert all(report.sentence.endswith(f"; nothing is stopped: {why}") for report in reports)
    assert b'vramwarden_sentry_would_stop_total{node="n1"} 2.0' in bench.metrics.exposition()
    shown, (figures,) = bench.pods()
    assert (figures.would_stop, figures.stops) == (2, None)
    assert figures.would_stop_since_s <= time.time()
    assert read_gpu_node(write_gpu_node(shown)).gpus[0].pods[0].would_stop == 2


def test_a_pod_that_nobody_holds_is_measured_and_not_reported(over):
    bench = over(line=replace(an_assignment(), terms=MEASURED))
    bench.run(50)
    assert bench.events() == []


def stored(**of_pod):
    """Return the figures that the previous sentry stored for the pod."""
    gpu = GpuFigures(
        uuid="GPU-a", index=0, product="H200", total_bytes=80 * GIB, usable_bytes=79 * GIB,
        pods=(PodFigures(uid=TRAINER, cap_bytes=GIB, **of_pod),),
    )  # fmt: skip
    return replace(NOTHING_STORED, observed_s=100.0, enforcement="sidecar", gpus=(gpu,))


def test_what_was_reported_is_kept_by_the_sentry_that_comes_after(bench):
    bench.sentry.on_report(SEEN)
    bench.sentry.on_report(stored(would_stop=3, would_stop_since_s=50.0))
    bench.sentry._status.would_stop(TRAINER, 200.0)
    bench.sentry.step(1.0)
    _, (found,) = bench.pods()
    assert (found.would_stop, found.would_stop_since_s) == (4, 50.0)
    bench.sentry.on_report(AssignmentsSeen({}))
    bench.sentry.step(2.0)
    assert bench.sentry._status._would_stop == {}


def test_an_end_that_finds_nobody_to_stop_is_told_and_logged_once(tmp_path, over):
    """The process ended, and the driver still lists it. The pod has no other process."""
    bench = over(pid=NOBODY)
    bench.run(1)
    shutil.rmtree(tmp_path / str(NOBODY))
    bench.run(50)
    ends = ["ending a pod", "nobody could be stopped"]
    assert [event for event in bench.events() if event != "unmanaged memory"] == ends
    assert [report.condition for report in bench.reported()] == [None]


def test_a_pod_of_which_nobody_can_be_stopped_is_told_and_logged_once(over):
    """An example is memory of a process without a PID in the pod, logged each second otherwise."""
    bench = over()
    bench.run(100)
    assert bench.events() == [
        "stopping a process", "a signal was rejected", "ending a pod", "nobody could be stopped",
    ]  # fmt: skip
    (report,) = bench.reported()
    assert (report.about["uid"], report.condition) == (TRAINER, None)
    assert report.sentence.endswith("nobody of it could be stopped, and it holds the memory still")


@pytest.fixture
def offered(bench):
    found = []
    bench.sentry._writer.offer = found.append
    return found


def test_nothing_is_offered_before_it_is_known_what_is_stored_and_that_counts(bench, offered):
    """Otherwise a start would overwrite the stored peaks by its own small ones."""
    bench.sentry.on_report(SEEN)
    bench.sentry.step(0.0)
    assert offered == []
    bench.sentry.on_report(stored(used_bytes=0, peak_bytes=7 * GIB, stops=3))
    bench.sentry.step(1.0)
    ((shown,),) = [node.gpus for node in offered]
    assert [(pod.peak_bytes, pod.stops) for pod in shown.pods] == [(7 * GIB, 3)]


def test_where_nothing_was_stored_the_first_scan_is_offered(bench, offered):
    bench.sentry.on_report(NOTHING_STORED)
    bench.sentry.step(1.0)
    assert [gpu.uuid for node in offered for gpu in node.gpus] == ["GPU-a"]


def test_stops_are_no_metric_before_it_is_known_how_many_there_were(bench):
    """Otherwise a counter that rises to the stored number would look like that many new stops."""
    bench.sentry.on_report(SEEN)
    bench.sentry._stats.stats = {TRAINER: (2, None)}
    bench.sentry.step(0.0)
    assert b"vramwarden_pod_stops_total{" not in bench.metrics.exposition()
    bench.sentry.on_report(NOTHING_STORED)
    bench.sentry.step(1.0)
    assert b"vramwarden_pod_stops_total{" in bench.metrics.exposition()


def test_who_cannot_place_processes_says_of_nobody_what_is_held(tmp_path, clock):
    put(tmp_path, 50, cgroup=f"0::/kubepods/pod{TRAINER}/{ID}\n")
    bench = Bench(tmp_path, clock)
    bench.driver.lists["GPU-a"] = {50: GIB}
    bench.sentry.on_report(SEEN)
    clock[0] += 100.0
    bench.sentry.step(clock[0])
    shown = bench.metrics.exposition()
    assert b"vramwarden_gpu_memory_used_bytes{" in shown
    for name in (b"gpu_memory_unmanaged", b"gpu_memory_unattributed", b"pod_memory_used"):
        assert b"vramwarden_%s_bytes{" % name not in shown
    assert (bench.reported(), "unmanaged memory" in bench.events()) == ([], False)


def test_what_was_stopped_is_counted_for_its_pod(over):
    bench = over()
    bench.sentry._actions._killer.stop = lambda *_, **__: Delivery.DELIVERED
    bench.sentry._actions._killer.end = lambda *_, **__: PodEnd(1, 0, sure=True)
    bench.sentry.on_report(NOTHING_STORED)
    bench.run(100)
    _, (pod,) = bench.pods()
    exposed = bench.metrics.exposition().decode()
    counted = sum(
        float(line.rpartition(" ")[2])
        for line in exposed.splitlines()
        if line.startswith("vramwarden_sentry_stops_total{")
    )
    assert "ending a pod" in bench.events()
    assert {(item.action, bool(item.condition)) for item in bench.reported()} == {("Stop", True)}
    assert pod.stops == counted > 1
