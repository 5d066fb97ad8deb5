"""Watches of a node's objects: reports, and the frequency of requests."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

import pytest

from tests.adapters.kube.scripts import Enough, Script, an_event, an_object
from tests.agent.test_free_memory import taken, taking
from tests.support.api_server import ApiServer
from webhook.adapters.kube import node_objects
from webhook.adapters.kube.node_objects import (
    REFUSED_S,
    SLICES,
    WATCH_S,
    AssignmentsSeen,
    AssignmentsUnread,
    FiguresSeen,
    FiguresUnread,
    NodeSeen,
    NodeUnread,
    SlicesSeen,
    SlicesUnread,
    watch_assignments,
    watch_figures,
    watch_node,
    watch_slices,
)
from webhook.core.kinds.nodes import read_gpu_node
from webhook.core.placement.assignment_codec import (
    WholeGpuPods,
    write_assignments,
    write_whole_gpu_pods,
)
from webhook.core.pod.whole_gpus import ResourceSlice, find_dra_drivers, read_resource_slice

NODE, LATER = an_object("7", "n"), an_object("8", "n")
SEEN, SEEN_LATER, GONE = NodeSeen(NODE), NodeSeen(LATER), NodeSeen(None)
UNWATCHED = NodeSeen(NODE, watched=False)
DOWN, DENIED = NodeUnread("0"), NodeUnread("403")
WHOLE = WholeGpuPods("7", 1, ("ns/whole",))


@pytest.fixture
def reports_to(monkeypatch):
    """Return a function that runs a watch until the end of a script, and returns its reports.

    Reasons of failures are reduced to the status code, 0 if there was no response.
    """

    def play(script, watch, *of):
        unhurried = partial(
            node_objects.follow,
            clock=lambda: script.clock_s,
            sleep=script.sleep,
            jitter=lambda _, most: most,
        )
        monkeypatch.setattr(node_objects, "follow", unhurried)
        sent = []
        with pytest.raises(Enough):
            watch(script.kube(), *of, sent.append)
        return [
            replace(message, why=_code(message.why)) if hasattr(message, "why") else message
            for message in sent
        ]

    return play


def _code(why):
    found = re.search(r"answers (\d+)", why)
    return found[1] if found else "0"


@pytest.mark.parametrize(
    ("reads", "watches", "reports", "since", "slept"),
    [
        pytest.param(
            [NODE, LATER], [[("MODIFIED", LATER), ("DELETED", LATER)], []],
            [SEEN, SEEN_LATER, GONE, SEEN_LATER], ["7", "8"], [1, 1],
            id="it and each change are reported from the version that was read",
        ),
        pytest.param(
            [404], [[("ADDED", NODE)]], [GONE, SEEN], ["0"], [1],
            id="one that does not exist is reported and waited for",
        ),
        pytest.param(
            [*[0] * 6, NODE, 0], [[]], [*[DOWN] * 6, SEEN, DOWN], ["7"],
            [1, 2, 4, 8, 15, 15, 1, 1],
            id="pauses double up to a bound until a watch succeeds",
        ),
        pytest.param(
            [NODE] * 3, [403] * 3, [UNWATCHED, DENIED] * 3, ["7", "7", "7"], [1, 2, 4],
            id="where only the watch is denied reads go on and its pauses grow",
        ),
        pytest.param(
            [NODE, LATER], [[0], []], [SEEN, DOWN, SEEN_LATER], ["7", "8"], [1, 1],
            id="a watch that breaks off is started again",
        ),
    ],
)  # fmt: skip
def test_a_node_is_reported(reports_to, reads, watches, reports, since, slept):
    script = Script(reads, watches)
    assert reports_to(script, watch_node, "n") == reports
    assert (script.watch_versions, script.slept) == (since, slept)
    assert {path for path, _ in script.reads} == {"/api/v1/nodes/n"}
    query = {"watch": "true", "fieldSelector": "metadata.name=n", "timeoutSeconds": "300"}
    assert [asked for _, asked in script.watches[: len(since)]] == [
        query | {"resourceVersion": version} for version in since
    ]


def test_a_node_where_nothing_changes_costs_the_api_server_a_request_in_two_minutes(monkeypatch):
    quiet = ApiServer()
    quiet.put("/api/v1/nodes/n", {})
    now_s = 0.0

    def sleep(seconds):
        nonlocal now_s
        now_s += seconds
        if now_s > 3600:
            raise Enough

    def last(request):
        sleep(float(request.query["timeoutSeconds"]))

    quiet.fails("watch=true", last, forever=True)
    unhurried = partial(node_objects.follow, clock=lambda: now_s, sleep=sleep)
    monkeypatch.setattr(node_objects, "follow", unhurried)
    with pytest.raises(Enough):
        watch_node(quiet.kube(), "n", lambda _: None)
    assert len(quiet.asked) <= 2 * 3600 / (0.75 * WATCH_S) + 2


MAPS = "/api/v1/namespaces/ns/configmaps"


def config_map(mib, version="7", whole=None):
    data = {**write_assignments(taking(mib)), **write_whole_gpu_pods(whole)}
    return {"metadata": {"resourceVersion": version}, "data": data}


def edited(data):
    return {"metadata": {"resourceVersion": "7"}, "data": data}


def damaged(mib):
    return AssignmentsSeen(taking(mib), complete=False)


@pytest.mark.parametrize(
    ("reads", "watches", "reports", "since", "slept"),
    [
        pytest.param(
            [config_map(1)],
            [[("MODIFIED", config_map(2, "8")), an_event("BOOKMARK", "9"),
              ("DELETED", config_map(2, "10")), ("ADDED", config_map(3, "11", WHOLE))]],
            [taken(1), taken(2), taken(0), AssignmentsSeen(taking(3), whole=WHOLE)], ["7"], [1],
            id="it and each change are reported from the version that was read",
        ),
        pytest.param(
            [404], [[("ADDED", config_map(3))]], [taken(0), taken(3)], ["0"], [1],
            id="where there is none all is free, and it is waited for",
        ),
        pytest.param([edited(None)], [[]], [damaged(0)], ["7"], [1], id="without data"),
        pytest.param([edited({})], [[]], [damaged(0)], ["7"], [1], id="with none"),
        pytest.param([edited({"a": "{"})], [[]], [damaged(0)], ["7"], [1], id="edited"),
        pytest.param(
            [edited({"a": "{", **write_assignments(taking(5))})], [[]], [taken(5)], ["7"], [1],
            id="a key that somebody added counts for nothing",
        ),
        pytest.param(
            [edited({"assignments": "{\n" + write_assignments(taking(5))["assignments"]})],
            [[]], [damaged(5)], ["7"], [1],
            id="of what somebody edited what can be read counts",
        ),
        pytest.param(
            [403, 0, 0, config_map(1)], [403],
            [AssignmentsUnread("403"), AssignmentsUnread("0"), AssignmentsUnread("0"),
             AssignmentsSeen(taking(1), watched=False), AssignmentsUnread("403")],
            ["7"], [1, 2, 4, 8],
            id="failures are reported and pauses grow",
        ),
    ],
)  # fmt: skip
def test_who_has_which_gpus_is_reported(reports_to, reads, watches, reports, since, slept):
    script = Script(reads, watches)
    assert reports_to(script, watch_assignments, "ns", "n") == reports
    assert (script.watch_versions, script.slept) == (since, slept)
    assert {path for path, _ in script.reads} == {f"{MAPS}/gpu-assignments-n"}
    assert {path for path, _ in script.watches} == {MAPS}


GPU_NODES = "/apis/vramwarden.io/v1alpha1/gpunodes"


def a_gpu_node(at, version="7"):
    written = {"observedAt": f"2026-11-27T20:00:{at:02}Z", "acts": True}
    return {"metadata": {"name": "n", "resourceVersion": version}, "status": written}


def figures(at, **more):
    return FiguresSeen(read_gpu_node(a_gpu_node(at)), **more)


@pytest.mark.parametrize(
    ("reads", "watches", "reports", "slept"),
    [
        pytest.param(
            [a_gpu_node(1)],
            [[("MODIFIED", a_gpu_node(2, "8")), ("DELETED", a_gpu_node(2, "9"))]],
            [figures(1), figures(2), FiguresSeen(None)], [1],
            id="it and each change are reported",
        ),
        pytest.param(
            [404], [[("ADDED", a_gpu_node(3))]], [FiguresSeen(None), figures(3)], [1],
            id="where there is none it is waited for",
        ),
        pytest.param(
            [404], [404], [FiguresSeen(None, watched=False)], [1],
            id="a cluster that does not know the kind",
        ),
        pytest.param(
            [403, a_gpu_node(1)], [403],
            [FiguresUnread("403"), figures(1, watched=False), FiguresUnread("403")], [1, 2],
            id="failures are reported",
        ),
    ],
)  # fmt: skip
def test_the_gpu_node_is_reported(reports_to, reads, watches, reports, slept):
    script = Script(reads, watches)
    assert reports_to(script, watch_figures, "n") == reports
    assert script.slept == slept
    assert {path for path, _ in script.reads} == {f"{GPU_NODES}/n"}
    assert {query["fieldSelector"] for _, query in script.watches} <= {"metadata.name=n"}


def a_slice(name, driver, *texts, version="6"):
    attributes = [{"attributes": {"uuid": {"string": text}}} for text in texts]
    metadata = {"name": name, "resourceVersion": version}
    return {"metadata": metadata, "spec": {"driver": driver, "devices": attributes}}


GPU = ResourceSlice("gpus", "gpu.nvidia.com", frozenset({"GPU-a"}))
CHANNEL = ResourceSlice("channels", "compute-domain.nvidia.com", frozenset({"channel"}))
MOVED = ResourceSlice("gpus", "gpu.nvidia.com", frozenset({"GPU-b"}))


def stored(resource_slice):
    return a_slice(resource_slice.name, resource_slice.driver, *resource_slice.texts)


def listed(*slices):
    return 200, {"metadata": {"resourceVersion": "5"}, "items": [stored(found) for found in slices]}


def refused(code):
    return SlicesUnread(code, refused=True)


@pytest.mark.parametrize(
    ("reads", "watches", "reports", "slept"),
    [
        pytest.param(
            [listed(GPU), listed()],
            [[("ADDED", stored(CHANNEL)), ("MODIFIED", stored(MOVED)),
              ("DELETED", stored(CHANNEL)), 410], []],
            [SlicesSeen((GPU,)), SlicesSeen((GPU, CHANNEL)), SlicesSeen((CHANNEL, MOVED)),
             SlicesSeen((MOVED,)), SlicesSeen(())], [1, 1],
            id="all are reported at each change",
        ),
        pytest.param([404], [], [refused("404")], [REFUSED_S], id="not served"),
        pytest.param([403] * 2, [], [], [1, 2], id="just granted?"),
        pytest.param([403] * 3, [], [refused("403")], [1, 2, REFUSED_S], id="not granted"),
        pytest.param([0] * 3, [], [SlicesUnread("0", refused=False)], [1, 2, 4], id="an outage"),
        pytest.param(
            [403, 403, listed(), 403], [[]], [SlicesSeen(())], [1, 2, 1, 1], id="granted"
        ),
        pytest.param(
            [403] * 3 + [listed(), 0], [[]], [refused("403"), SlicesSeen(())],
            [1, 2, REFUSED_S, 1, 1],
            id="granted late",
        ),
    ],
)  # fmt: skip
def test_slices_are_reported_and_a_failure_that_may_pass_is_not_at_once(
    reports_to, monkeypatch, reads, watches, reports, slept
):
    script = Script(reads, watches)
    monkeypatch.setattr(node_objects.time, "sleep", script.sleep)
    assert reports_to(script, watch_slices, "n") == reports
    assert script.slept == slept
    fields = {query["fieldSelector"] for _, query in (*script.reads, *script.watches)}
    assert fields == {"spec.nodeName=n"}
    assert {path for path, _ in script.reads} == {SLICES}


@pytest.mark.parametrize(
    ("watch", "found", "of"),
    [
        (watch_node, NODE, ("n",)),
        (watch_assignments, config_map(1), ("ns", "n")),
        (watch_slices, listed(GPU), ("n",)),
        (watch_figures, a_gpu_node(1), ("n",)),
    ],
    ids=["node", "assignments", "slices", "figures"],
)
def test_a_bug_ends_the_thread(watch, found, of):
    with pytest.raises(ZeroDivisionError):
        watch(Script([found], [[]]).kube(), *of, lambda _: 1 / 0)


@pytest.mark.parametrize(
    ("spec", "texts"),
    [
        ({"devices": [{"attributes": {"uuid": {"string": "GPU-a"}}}]}, {"GPU-a"}),
        ({"devices": [{"attributes": {"n": {"int": 1}, "b": {"bool": True}}}]}, set()),
        ({"devices": [{}, {"attributes": None}, 7, {"attributes": {"a": "GPU-a"}}]}, set()),
        ({"devices": {"a": 1}}, set()),
        ({"devices": [{}] * 128 + [{"attributes": {"uuid": {"string": "GPU-a"}}}]}, set()),
        (None, set()),
    ],
)
def test_a_slice_is_read_as_far_as_it_can_be(spec, texts):
    found = read_resource_slice({"metadata": {"name": "one"}, "spec": spec})
    assert (found.name, found.texts) == ("one", frozenset(texts))


def test_claimants_are_who_names_one_of_the_gpus():
    assert find_dra_drivers([MOVED, CHANNEL, GPU], {"GPU-a"}) == ("gpu.nvidia.com",)
    assert find_dra_drivers([MOVED, CHANNEL], {"GPU-a"}) == ()
    amd = ResourceSlice("amd", "gpu.amd.com", frozenset({"0000:03:00.0"}))
    assert find_dra_drivers([amd, GPU], {"GPU-a"}) == ("gpu.amd.com", "gpu.nvidia.com")
