"""Problems of bound pods: newest stop, number of stops, and a sufficient request."""

from __future__ import annotations

import pytest

from tests.support.clusters import GIB, NOW_S, a_gpu, a_node, a_pod, held
from tests.tools.situations.scenes import log_line
from webhook.core.enforcement.termination_message import TerminationMessage, write_message
from webhook.tools.explain.report import bound_notes
from webhook.tools.problems.bound_pod import BoundPod, find_excess_reports, find_stops
from webhook.tools.problems.enforcer_log import read_log
from webhook.tools.snapshot.pod import ClusterPod


def bound(lines=(), message="", *, before="", node=None, status=None):
    now, last = ({"terminated": {"exitCode": 0, "message": text}} for text in (message, before))
    sidecar = {"name": "vram-enforcer", "state": now, "lastState": last, "restartCount": 0}
    status = {"initContainerStatuses": [sidecar]} | (status or {})
    pod = ClusterPod(a_pod("p", "8Gi", node="n1", gpus="GPU-n1-0", status=status))
    nodes = [node] if node else None
    return BoundPod(pod=pod, log=read_log(lines, message), nodes=nodes, now_s=NOW_S)


STOPS = [
    log_line(1000 - n, "warning", "stopping a process", why=f"stop {n}", pid=n) for n in range(3)
]
TWELVE = write_message(TerminationMessage(8 * GIB, {"GPU-n1-0": 10 * GIB}, 12, 60))
WITHIN = write_message(TerminationMessage(8 * GIB, {"GPU-n1-0": 6 * GIB}, 0, 60))
BLIND = "blind for 60 s: no figure of process 12"


@pytest.mark.parametrize(
    ("lines", "message", "said", "amount"),
    [
        (STOPS[:1], "", "stopped 16m ago: stop 0", ""),
        (STOPS, "", "stopped 16m ago (3 times so far): stop 2", ""),
        (STOPS, TWELVE, "stopped 16m ago (12 times so far): stop 2", "12Gi"),
        ((), TWELVE, "something was stopped 12 times for what the pod held", "12Gi"),
        ((), f"the pod must restart: {BLIND}\n{WITHIN}", f"stopped earlier: {BLIND}", "10Gi"),
    ],
    ids=["once", "three times", "more than the log has", "without a log", "blind"],
)
def test_of_stops_the_newest_is_shown_with_their_number(lines, message, said, amount):
    (problem,) = find_stops(bound(lines, message))
    assert problem.message == said
    assert problem.fix == (f"vramwarden.io/gpu-memory: {amount}" if amount else "")


def test_stops_before_a_restart_of_the_sidecar_count():
    (problem,) = find_stops(bound(message=TWELVE, before=TWELVE))
    assert problem.message == "something was stopped 24 times for what the pod held"


@pytest.mark.parametrize(
    ("peak", "stops", "fix"), [(8, 0, None), (8.1, 0, "10Gi"), (8.1, 1, None), (None, 0, None)]
)
def test_an_excess_of_which_nothing_was_stopped_has_a_line_to_write(peak, stops, fix):
    node = a_node("n1", a_gpu(79, held("p", 8, 6, peak, stops))).figures
    found = [report.fix for report in find_excess_reports(bound(node=node))]
    assert found == ([f"vramwarden.io/gpu-memory: {fix}"] if fix else [])


@pytest.mark.parametrize(
    ("others", "said"),
    [
        (61, "fits now (10Gi are free there)"),
        (69, "fits once this one ends (2Gi are free there)"),
        (70, "does not fit, even once this one ends (1Gi are free there)"),
    ],
)
def test_whether_a_larger_pod_fits_counts_what_this_one_frees(others, said):
    node = a_node("n1", a_gpu(79, held("p", 8, 8, 8.4, 1), held("others", others))).figures
    notes = dict(bound_notes(bound(STOPS, node=node)))
    assert notes["on that GPU"] == f"such a pod {said}"
    assert "on that GPU" not in dict(bound_notes(bound(node=NODE)))


NODE = a_node("n1", a_gpu(79, held("p", 8, 6, 6))).figures
