"""`vramwarden explain` for any arguments and stored objects."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.api_server import ApiServer
from tests.support.clusters import GIB, NOW_S, a_gpu, a_node, a_pod, held
from tests.support.strategies import ANY_JSON
from tests.tools.situations.runs import run
from tests.tools.situations.scenes import a_deployment, a_workload, unscheduled
from webhook.tools.explain.diagnosis import diagnose, newest_with_problem
from webhook.tools.explain.render import as_json, as_text
from webhook.tools.snapshot.namespace import NamespaceSnapshot
from webhook.tools.snapshot.objects import POD
from webhook.tools.snapshot.pod import ClusterPod

H100 = {"product": "H100-80GB"}
NODES = [
    a_node("n1", a_gpu(79, held("train-0", 40, 25, 38), held("other", 16), **H100), a_gpu(9)),
    a_node("n2", a_gpu(22, free_bytes=6 * GIB)),
]
FIGURES, SEEN = [node.figures for node in NODES], {node.read.name: node.read for node in NODES}
WAITS = a_pod("p", "30Gi", status=unscheduled("0/2 nodes are available: 2 Insufficient x/y."))


@pytest.fixture
def explain():
    """Return a function that runs the command in namespace team-a with the given objects."""
    api = ApiServer()
    api.now_s = lambda: NOW_S
    api.add(WAITS, *(stored for node in NODES for stored in (node.stored,)))

    def asked(*words, stored=(), denied=()):
        api.add(*stored).denied |= {*denied}
        return run(api, ["explain", *words, "-n", "team-a"])

    return asked


WORKLOADS = [
    *(*a_deployment("train", WAITS), a_workload("StatefulSet", "train", WAITS)),
    *(a_workload(kind, "train", WAITS) for kind in ("ReplicaSet", "DaemonSet", "Job")),
    a_workload("CronJob", "train", WAITS) | {"apiVersion": "batch/v1"},
]


@pytest.mark.parametrize(
    ("words", "title"),
    [
        ("p", "Pod"), ("pod p", "Pod"), ("pods p", "Pod"), ("po/p", "Pod"),
        ("deployment train", "Deployment"), ("Deploy/train", "Deployment"),
        ("deployments.apps train", "Deployment"), ("deployments.v1.apps/train", "Deployment"),
        ("rs train", "ReplicaSet"), ("sts train", "StatefulSet"), ("ds train", "DaemonSet"),
        ("jobs train", "Job"), ("job.batch/train", "Job"), ("cj train", "CronJob"),
    ],
)  # fmt: skip
def test_a_kind_is_written_as_kubectl_takes_it(explain, words, title):
    name = words.replace("/", " ").split()[-1]
    assert explain(*words.split(), stored=WORKLOADS)[0].startswith(f"{title} team-a/{name} has ")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["a/b/x"], 1, "a/b team-a/x has no pods"),
        (["foo/x"], 1, "the known kinds are pod, deployment, replicaset, statefulset, daemonset, "),
        (["jobs.batch.volcano.sh/x"], 1, "jobs.batch.volcano.sh team-a/x has no pods."),
        (["node/n1"], 2, "for a node: vramwarden top --node n1"),
        (["no", "n1"], 2, "for a node: vramwarden top --node n1"),
        (["pod", "a", "b"], 2, "one object is explained; write KIND NAME, as deployment llama"),
        (["pod", "deployment/a"], 2, "one object is explained; write KIND NAME"),
        (["pod", "A"], 2, "'A' is no name that Kubernetes allows"),
        ([], 2, "Missing argument '[KIND] NAME|KIND/NAME'"),
        (["deployment/"], 2, "'' is no name"),
    ],
    ids=str,
)
def test_what_cannot_be_explained_is_said(explain, words, code, said):
    text, found = explain(*words)
    assert (found, said in text) == (code, True)


def test_a_pod_that_the_user_may_not_read_is_three(explain):
    text, code = explain("p", denied=[("get", "pods")])
    assert (code, "needs the right to get pods" in text) == (3, True)


def snapshot(pod, *, nodes=FIGURES, shared=SEEN, log=(), **more):
    """Return a snapshot of a cluster with this object as pod `p`."""
    found = NamespaceSnapshot(ApiServer().kube(now_s=lambda: NOW_S), "team-a")
    found.find_pod, found.log = lambda _: ClusterPod(pod), lambda _: list(log)
    pods = [ClusterPod(a_pod("train-0", "40Gi", node="n1", gpus="GPU-n1-0"))]
    facts = {"gpu_nodes": nodes, "shared_nodes": shared, "pods": pods, "histories": ()}
    vars(found).update(facts | more)
    return found


def explained(pod, **facts):
    return diagnose(snapshot(pod, **facts), POD, "p")


WORDS = (
    "metadata spec status conditions type PodScheduled nodeName containers name annotations "
    "vramwarden.io/gpu-memory vramwarden.io/gpu uid initContainerStatuses state terminated "
    "message affinity nodeAffinity requiredDuringSchedulingIgnoredDuringExecution priority "
    "nodeSelectorTerms matchExpressions key operator values tolerations nodeSelector "
    "ownerReferences limits resources vramwarden.io/vram phase Pending"
)
KEYS = st.sampled_from(WORDS.split())
ANY = ANY_JSON | st.dictionaries(KEYS, ANY_JSON | KEYS | st.dictionaries(KEYS, ANY_JSON | KEYS))
PATHS = st.sampled_from(
    [
        *([], ["metadata"], ["metadata", "annotations"], ["metadata", "ownerReferences"]),
        *(["metadata", "creationTimestamp"], ["spec"], ["spec", "affinity"], ["spec", "priority"]),
        *(["spec", "tolerations"], ["spec", "nodeSelector"], ["spec", "schedulingGates"]),
        *(["status"], ["status", "conditions"], ["status", "initContainerStatuses"]),
        ["status", "startTime"],
    ]
)


def replaced(value, path, new):
    """Return a copy of a value with the part at a path replaced."""
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else {}
    return copy | {path[0]: replaced(copy.get(path[0]), path[1:], new)}


def printable(text):
    return all(char.isprintable() for row in text.splitlines() for char in row)


NODE_NAMES, LOGS = st.sampled_from(["", "n1"]), st.lists(st.text(max_size=50))


@given(PATHS, ANY | st.lists(ANY, max_size=3), NODE_NAMES, st.booleans(), LOGS)
def test_whatever_a_pod_says_it_is_explained(path, value, node, is_seen, log):
    pod = replaced(a_pod("p", "30Gi", node=node), path, value)
    facts = {} if is_seen else {"nodes": None, "shared": None}
    found = explained(pod if isinstance(pod, dict) else {}, log=log, **facts)
    assert printable(as_text(found))
    assert as_json(found).isascii()


def test_line_breaks_of_others_become_single_spaces_and_nothing_else_is_moved():
    notes = {"vramwarden.io/gpu-waits": "no room\r\n\n\there\u2028now  still"}
    found = explained(a_pod("p", "8Gi", node="n1", annotations=notes))
    assert "✗ no room here now  still\n    → wait" in as_text(found)


def test_in_ascii_there_is_nothing_else():
    found = explained(a_pod("p", "30Gi", status=unscheduled("für heute")))
    said = as_text(found, ascii_only=True)
    assert said.isascii()
    assert "\n[x] the scheduler says: f\\xfcr heute" in said
    assert "\n    -> ask for 23Gi or less, or wait" in said


@pytest.mark.parametrize("size", [4096, 2**20])
def test_long_texts_of_others_are_cut_where_they_are_printed(size):
    long = "x, " * size
    notes = {"vramwarden.io/admitted": long, "vramwarden.io/gpu-waits": long}
    for more in ({"status": unscheduled(long)}, {"node": "n1"}):
        assert len(as_text(explained(a_pod("p", "30Gi", annotations=notes, **more)))) < 8000


def test_of_a_thousand_nodes_few_lines_are_drawn():
    many = [replace(FIGURES[0], name=f"n{n:04}") for n in range(1000)]
    found = explained(a_pod("p", "30Gi"), nodes=many, shared=None)
    assert len(json.loads(as_json(found))["nodes"]) == 1000
    assert len(as_text(found).splitlines()) < 25


def a_ready_pod(name, age_s, ready="True", *, restarts=0, phase="Running", held="True"):
    conditions = [{"type": "Ready", "status": ready}]
    conditions += [{"type": "vramwarden.io/CapHeld", "status": held}]
    containers = [{"name": "main", "restartCount": restarts}]
    status = {"phase": phase, "conditions": conditions, "containerStatuses": containers}
    return ClusterPod(a_pod(name, age_s=age_s, status=status))


OLD, NEW = a_ready_pod("old", 100), a_ready_pod("new", 10)
ILL, NEWER_ILL = a_ready_pod("ill", 100, "False"), a_ready_pod("newer-ill", 50, "False")
RESTARTED = a_ready_pod("restarted", 100, restarts=2)
DONE = a_ready_pod("done", 10, "False", phase="Succeeded")
STOPPED = a_ready_pod("stopped", 100, held="False")


@pytest.mark.parametrize(
    ("pods", "chosen"),
    [
        pytest.param([], None, id="no pods"),
        pytest.param([OLD, NEW], NEW, id="no problem"),
        pytest.param([ILL, NEWER_ILL, NEW], NEWER_ILL, id="two with a problem"),
        pytest.param([RESTARTED, DONE], RESTARTED, id="a restart is a problem, a good end is none"),
        pytest.param([STOPPED, NEW], STOPPED, id="stopped by the sentry, and ready"),
    ],
)
def test_of_a_workload_the_newest_pod_with_a_problem_is_explained(pods, chosen):
    assert newest_with_problem(pods) is chosen
