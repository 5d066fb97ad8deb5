"""Whatever is stored, a pod is explained: in bounds, and without a character that acts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.clusters import GIB, NOW_S, a_pod
from tests.tools.explain.scene import (
    DENIED,
    EVAL,
    NODES,
    explained,
    facts,
    line,
    of_enforcer,
    scheduled,
    workload,
)
from webhook.core.enforcement.termination_message import TerminationMessage, write_message
from webhook.tools.explain.judge.explain import explain_pod, explain_workload, newest_in_trouble
from webhook.tools.explain.judge.report import State
from webhook.tools.explain.show import as_json, as_text
from webhook.tools.snapshot.pod import ClusterPod

WORDS = (
    "metadata spec status conditions type PodScheduled nodeName containers name annotations "
    "vramwarden.io/gpu-memory vramwarden.io/gpu uid initContainerStatuses state terminated "
    "message affinity nodeAffinity requiredDuringSchedulingIgnoredDuringExecution "
    "nodeSelectorTerms matchExpressions key operator values tolerations nodeSelector "
    "ownerReferences limits resources vramwarden.io/vram phase Pending"
)
KEYS = st.sampled_from(WORDS.split())
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-1, 2**40)
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | KEYS
    | st.sampled_from(["vram-enforcer", "8Gi", "Failed", "False", "2026-01-01T00:00:00Z"])
)
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=20,
)
OBJECTS = st.dictionaries(KEYS, JSON, max_size=5)


def printable(text: str) -> bool:
    return all(one.isprintable() for row in text.splitlines() for one in row)


def replaced(value, path, new):
    """Return a value with another one at a path."""
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else {}
    copy[path[0]] = replaced(copy.get(path[0]), path[1:], new)
    return copy


PATHS = st.sampled_from(
    [
        (),
        ("metadata",),
        ("metadata", "annotations"),
        ("metadata", "ownerReferences"),
        ("metadata", "creationTimestamp"),
        ("spec", "affinity"),
        ("spec", "tolerations"),
        ("spec", "nodeSelector"),
        ("spec", "schedulingGates"),
        ("status",),
        ("status", "conditions"),
        ("status", "initContainerStatuses"),
        ("status", "startTime"),
    ]
)


@given(PATHS, JSON, st.sampled_from(["", "n1"]), st.booleans(), st.lists(st.text(max_size=50)))
def test_whatever_a_pod_says_it_is_explained(path, value, node, reads_nodes, log):
    pod = replaced(a_pod("p", "30Gi", node=node), path, value)
    given = facts("p", pod if isinstance(pod, dict) else {}, log=tuple(log))
    report = explain_pod(given if reads_nodes else replace(given, nodes=None, seen=None))
    assert printable(as_text(report))
    assert as_json(report).isascii()


@given(OBJECTS)
def test_whatever_stands_in_place_of_a_pod_it_is_explained(pod):
    assert as_text(explain_pod(facts("p", pod)))


def test_no_character_that_a_terminal_acts_on_is_written():
    evil = "\x1b]0;owned\x07\x1b[2J\u202emoc\u200b\x9b31m\r\nPod is fine"
    report = explained("p", "30Gi", status=scheduled(evil))
    assert evil in report.causes[1].detail
    said = as_text(report)
    assert printable(said)
    assert not any(row.startswith("Pod is fine") for row in said.splitlines())


def test_in_ascii_there_is_nothing_else():
    report = explained("p", "30Gi", status=scheduled("für heute"))
    said = as_text(report, ascii_only=True)
    assert said.isascii()
    assert "\n[x] no GPU has 30Gi free now" in said
    assert "\n    -> ask for 23Gi or less, or wait" in said
    assert "f\\xfcr heute" in said


def test_line_breaks_of_others_become_single_spaces_and_nothing_else_is_moved():
    waits = "no room\r\n\n\there\u2028now  still"
    report = explained("p", "8Gi", node="n1", annotations={"vramwarden.io/gpu-waits": waits})
    assert "✗ no room here now  still\n    → wait" in as_text(report)


def test_what_would_start_now_is_by_figures_of_now_where_any_node_has_room_by_them():
    old = replace(NODES[0], name="old", observed_s=NOW_S - 86_400)
    report = explained("p", "30Gi", nodes=(old, NODES[1]), seen=None)
    assert (report.enough.start_now_node, report.enough.start_now_bytes) == ("n2", 6 * GIB)
    alone = explained("p", "30Gi", nodes=(old,), seen=None)
    assert dict(alone.notes)["would start now"] == "23Gi (on old, by figures of 24h ago)"


def test_of_runs_of_which_some_were_not_measured_no_more_is_claimed():
    runs = (*EVAL.runs[:10], *(replace(run, peak_bytes=None) for run in EVAL.runs[10:]))
    history = replace(EVAL, runs=runs)
    report = explained("eval-4", "30Gi", owner="Job/eval", histories=(history,))
    assert dict(report.notes)["history"] == (
        "of the last 12 pods of Job eval 10 were measured, and peaked at 17.2Gi; 20Gi would do: "
        "vramwarden.io/gpu-memory: 20Gi"
    )


@pytest.mark.parametrize("size", [4096, 2**20])
def test_long_texts_of_others_are_cut_where_they_are_printed(size):
    long = "x, " * size
    notes = {"vramwarden.io/admitted": long, "vramwarden.io/gpu-waits": long}
    waits = explained("p", "30Gi", annotations=notes, status=scheduled(long))
    assert len(as_text(waits)) < 8000
    assert len(as_text(explained("p", "8Gi", node="n1", annotations=notes))) < 8000
    refused = explain_workload(workload(refusals=(DENIED + "TooLarge: " + long, long)), None)
    assert len(as_text(refused)) < 10_000


STOPS = tuple(line(1000 - n, "stopping a process", why=f"stop {n}") for n in range(3))
TWELVE = write_message(TerminationMessage(8 * GIB, {"GPU-n1-0": 10 * GIB}, 12, 60))
WITHIN = write_message(TerminationMessage(8 * GIB, {"GPU-n1-0": 6 * GIB}, 0, 60))
BLIND = "blind for 60 s: no figure of process 12"


@pytest.mark.parametrize(
    ("log", "message", "detail", "fix"),
    [
        (STOPS[:1], "", "16m ago: stop 0", ""),
        (STOPS, "", "16m ago (3 times so far): stop 2", ""),
        (STOPS, TWELVE, "16m ago (12 times so far): stop 2", "12Gi"),
        ((), TWELVE, "something was stopped 12 times for what the pod held", "12Gi"),
        ((), f"the pod must restart: {BLIND}\n{WITHIN}", f"before: {BLIND}", ""),
    ],
    ids=["once", "three times", "more than the log has", "without a log", "blind"],
)
def test_of_stops_the_newest_is_shown_with_their_number(log, message, detail, fix):
    status = of_enforcer("terminated", exitCode=0, message=message)
    report = explained("p", "8Gi", node="n1", gpus="GPU-n1-0", log=log, status=status)
    assert report.state is State.STOPPED
    (cause,) = report.causes
    assert (cause.detail, cause.fix.removeprefix("vramwarden.io/gpu-memory: ")) == (detail, fix)


def test_an_amount_that_does_not_fit_on_that_gpu_any_more_is_said():
    log = (line(60, "stopping a process", why="w", pid=1, peak_bytes=90 * 2**30),)
    report = explained("train-1", "60Gi", node="n3", gpus="GPU-n3-1", log=log)
    assert report.enough.run_bytes == 104 * 2**30
    assert report.causes[0].fix.startswith("no GPU here has 104Gi: ")
    assert dict(report.notes)["would do"].endswith(
        "so a new pod of 104Gi does not fit there once this one ends"
    )


def test_of_a_thousand_nodes_few_lines_are_drawn():
    many = tuple(replace(NODES[0], name=f"n{n:04}") for n in range(1000))
    report = explained("p", "30Gi", nodes=many, seen=None)
    assert len(report.nodes) == 1000
    assert len(as_text(report).splitlines()) < 25


def a_ready_pod(name, age_s, ready="True", *, restarts=0, phase="Running", conditions=()):
    status = {
        "phase": phase,
        "conditions": [{"type": "Ready", "status": ready}, *conditions],
        "containerStatuses": [{"name": "main", "restartCount": restarts}],
    }
    return ClusterPod(a_pod(name, age_s=age_s, status=status))


OLD, NEW = a_ready_pod("old", 100), a_ready_pod("new", 10)
ILL, NEWER_ILL = a_ready_pod("ill", 100, "False"), a_ready_pod("newer-ill", 50, "False")
RESTARTED = a_ready_pod("restarted", 100, restarts=2)
DONE = a_ready_pod("done", 10, "False", phase="Succeeded")
CAP_NOT_HELD = {"type": "vramwarden.io/CapHeld", "status": "False"}
STOPPED = a_ready_pod("stopped", 100, conditions=[CAP_NOT_HELD])


@pytest.mark.parametrize(
    ("pods", "chosen"),
    [
        pytest.param([], None, id="no pods"),
        pytest.param([OLD, NEW], NEW, id="no trouble"),
        pytest.param([ILL, NEW], ILL, id="one in trouble"),
        pytest.param([ILL, NEWER_ILL, NEW], NEWER_ILL, id="two in trouble"),
        pytest.param([RESTARTED, DONE], RESTARTED, id="a restart is trouble, a good end is none"),
        pytest.param([STOPPED, NEW], STOPPED, id="stopped by the sentry, and ready"),
    ],
)
def test_of_a_workload_the_newest_pod_in_trouble_is_explained(pods, chosen):
    assert newest_in_trouble(pods) is chosen


def test_a_pod_that_is_in_no_history_is_unknown_and_names_like_it_are_named():
    report = explain_pod(facts("trian", None, names={"u": "train", "v": "web"}))
    assert report.causes[0].fix == "did you mean train?"
    assert report.is_trouble
