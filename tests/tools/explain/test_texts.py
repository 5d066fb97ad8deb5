"""Whatever is stored, a pod is explained: in bounds, and without a character that acts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tools.explain.scene import (
    DENIED,
    EVAL,
    EVAL_OWNER,
    GIB,
    NODES,
    NOW_S,
    facts,
    line,
    stored,
    workload,
)
from webhook.core.kinds.nodes import write_time
from webhook.tools.explain.judge.explain import explain_pod, explain_workload, newest_in_trouble
from webhook.tools.explain.judge.report import PodFacts
from webhook.tools.explain.show import as_json, as_text
from webhook.tools.shared.pod import ClusterPod

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
    pod = replaced(stored("p", "30Gi", node=node), path, value)
    given = facts("p", pod if isinstance(pod, dict) else {}, log=tuple(log))
    report = explain_pod(given if reads_nodes else replace(given, nodes=None, seen=None))
    assert printable(as_text(report))
    assert as_json(report).isascii()


@given(OBJECTS)
def test_whatever_stands_in_place_of_a_pod_it_is_explained(pod):
    assert as_text(explain_pod(facts("p", pod)))


def test_no_character_that_a_terminal_acts_on_is_written():
    evil = "\x1b]0;owned\x07\x1b[2J\u202emoc\u200b\x9b31m\r\nPod is fine"
    condition = {"type": "PodScheduled", "status": "False", "message": evil}
    report = explain_pod(facts("p", stored("p", "30Gi", status={"conditions": [condition]})))
    assert evil in report.causes[1].detail
    said = as_text(report)
    assert printable(said)
    assert not any(row.startswith("Pod is fine") for row in said.splitlines())


def test_line_breaks_of_others_become_single_spaces_and_nothing_else_is_moved():
    waits = "no room\r\n\n\there\u2028now  still"
    pod = stored("p", "8Gi", node="n1", annotations={"vramwarden.io/gpu-waits": waits})
    assert "✗ no room here now  still\n    -> wait" in as_text(explain_pod(facts("p", pod)))


def test_what_would_start_now_is_by_figures_of_now_where_any_node_has_room_by_them():
    old = replace(NODES[0], name="old", observed_s=NOW_S - 86_400)
    pod = stored("p", "30Gi")
    report = explain_pod(facts("p", pod, nodes=(old, NODES[1]), seen=None))
    assert (report.enough.start_now_node, report.enough.start_now_bytes) == ("n2", 6 * GIB)
    alone = explain_pod(facts("p", pod, nodes=(old,), seen=None))
    notes = dict(alone.notes)
    assert notes["would start now"] == "23Gi (on old, by figures of 24h ago)"


def test_of_runs_of_which_some_were_not_measured_no_more_is_claimed():
    runs = (*EVAL.runs[:10], *(replace(run, peak_bytes=None) for run in EVAL.runs[10:]))
    pod = stored("eval-4", "30Gi", metadata=EVAL_OWNER)
    report = explain_pod(facts("eval-4", pod, histories=(replace(EVAL, runs=runs),)))
    assert dict(report.notes)["history"] == (
        "of the last 12 pods of Job eval 10 were measured, and peaked at 17.2Gi; 20Gi would do     "
        "-> vramwarden.io/gpu-memory: 20Gi"
    )


@pytest.mark.parametrize("size", [4096, 2**20])
def test_long_texts_of_others_are_cut_before_they_are_looked_at(size):
    long = "x, " * size
    pod = stored(
        "p",
        "30Gi",
        annotations={"vramwarden.io/admitted": long, "vramwarden.io/gpu-waits": long},
        status={"conditions": [{"type": "PodScheduled", "status": "False", "message": long}]},
    )
    assert len(as_text(explain_pod(facts("p", pod)))) < 8000
    bound = explain_pod(
        facts("p", stored("p", "8Gi", node="n1", annotations={"vramwarden.io/gpu-waits": long}))
    )
    assert len(as_text(bound)) < 4000
    refused = explain_workload(workload(refusals=(DENIED + "TooLarge: " + long, long)), None)
    assert len(as_text(refused)) < 10_000


def test_of_many_stops_the_newest_are_shown_and_the_others_counted():
    log = [
        line(1000 - n, "stopping a process", why=f"stop {n}", pid=n, peak_bytes=2**30)
        for n in range(9)
    ]
    report = explain_pod(facts("p", stored("p", "8Gi", node="n1", gpus="GPU-n1-0"), log=tuple(log)))
    details = [cause.detail.rpartition(": ")[2] for cause in report.causes]
    assert details[:3] == ["stop 8", "stop 7", "stop 6"]
    assert details[3:] == ["6 more, as the log of container vram-enforcer says"]


def test_what_would_have_been_enough_and_fits_no_more_on_that_gpu_is_said():
    log = (line(60, "stopping a process", why="w", pid=1, peak_bytes=90 * 2**30),)
    pod = stored("train-1", "60Gi", node="n3", gpus="GPU-n3-1")
    report = explain_pod(facts("train-1", pod, log=log))
    assert report.enough.run_bytes == 90 * 2**30
    assert dict(report.notes)["would have been enough"].endswith(
        "so a new pod of 90Gi does not fit there once this one ends"
    )


def test_of_a_thousand_nodes_few_lines_are_drawn():
    many = tuple(replace(NODES[0], name=f"n{n:04}") for n in range(1000))
    report = explain_pod(facts("p", stored("p", "30Gi"), nodes=many, seen=None))
    assert len(report.nodes) == 1000
    assert len(as_text(report).splitlines()) < 25


def a_pod_of(name, created, ready, *, restarts=0, phase="Running"):
    return ClusterPod(
        {
            "metadata": {"name": name, "creationTimestamp": write_time(created)},
            "status": {
                "phase": phase,
                "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
                "containerStatuses": [{"name": "main", "restartCount": restarts}],
            },
        }
    )


@pytest.mark.parametrize(
    ("pods", "chosen"),
    [
        ([], None),
        ([("old", 1, True), ("new", 2, True)], "new"),
        ([("ill", 1, False), ("new", 2, True)], "ill"),
        ([("ill", 1, False), ("newer-ill", 2, False), ("new", 3, True)], "newer-ill"),
    ],
)
def test_of_a_workload_the_newest_pod_in_trouble_is_explained(pods, chosen):
    found = newest_in_trouble([a_pod_of(*pod) for pod in pods])
    assert (found and found.name) == chosen


def test_a_restart_is_trouble_and_a_good_end_is_none():
    restarted = a_pod_of("restarted", 1, True, restarts=2)
    done = a_pod_of("done", 2, False, phase="Succeeded")
    assert newest_in_trouble([restarted, done]) is restarted


def test_what_the_sentry_stopped_is_in_trouble_though_it_is_ready():
    stopped = a_pod_of("stopped", 1, True)
    held = {"type": "vramwarden.io/CapHeld", "status": "False"}
    stopped.raw["status"]["conditions"].append(held)
    assert newest_in_trouble([stopped, a_pod_of("new", 2, True)]) is stopped


def test_a_pod_that_is_in_no_history_is_unknown_and_names_like_it_are_named():
    report = explain_pod(
        PodFacts(
            namespace="ns", name="trian", now_s=NOW_S, pod=None, names={"u": "train", "v": "web"}
        )
    )
    assert report.causes[0].fix == "did you mean train?"
    assert report.is_trouble
