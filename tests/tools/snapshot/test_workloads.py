"""Workloads: desired number of pods, denials and owned pods."""

from __future__ import annotations

import pytest

from tests.support.api_server import ApiServer
from tests.support.clusters import a_pod
from webhook.tools.snapshot.namespace import NamespaceSnapshot
from webhook.tools.snapshot.objects import (
    CRON_JOB,
    DAEMON_SET,
    DEPLOYMENT,
    JOB,
    STATEFUL_SET,
    find_kind,
)
from webhook.tools.snapshot.workloads import (
    MOST_BETWEEN,
    MOST_READ,
    read_workload,
    read_workload_by_pods,
)

PODS = "/api/v1/namespaces/team-a/pods"
EVENTS = "/api/v1/namespaces/team-a/events"
LABELS = {"app": "train"}
DENIED = 'admission webhook "mutate.vramwarden.io" denied the request: TooLarge: x: y'


@pytest.fixture
def api():
    return ApiServer()


def snapshot(api, *stored):
    return NamespaceSnapshot(api.add(*stored).kube(), "team-a")


def read(api, kind, *stored):
    return read_workload(snapshot(api, *stored), kind, "train")


def a_workload(kind, spec=None, status=None, *, name="train", owner="", **metadata):
    """Return a workload with its name as UID; `owner` is the UID of its controller."""
    owners = [{"controller": True, "uid": owner}] if owner else []
    own = {"namespace": "team-a", "name": name, "uid": name, "ownerReferences": owners}
    return {
        "apiVersion": kind.path.removeprefix("/apis/"),
        "kind": kind.name,
        "metadata": own | metadata,
        "spec": {"selector": {"matchLabels": LABELS}} | (spec or {}),
        "status": status or {},
    }


def a_pod_of(owner, name="a", status="Running"):
    return a_pod(name, owner=owner, labels=LABELS, status=status)


def an_event(name, message, at, reason="FailedCreate", kind="Job", about="train"):
    involved = {"involvedObject": {"uid": about, "kind": kind, "name": about}, "type": "Warning"}
    metadata = {"namespace": "team-a", "name": name}
    event = {"apiVersion": "v1", "kind": "Event", "metadata": metadata, "message": message}
    return event | involved | {"reason": reason, "lastTimestamp": f"2026-01-0{at}T00:00:00Z"}


def a_condition(kind, **more):
    return {"conditions": [{"type": kind, "status": "True", **more}]}


def paths(api):
    return [request.path for request in api.asked]


@pytest.mark.parametrize(
    ("kind", "spec", "status", "wanted"),
    [
        (DEPLOYMENT, {}, {}, 1),
        (DEPLOYMENT, {"replicas": 0}, {}, 0),
        (STATEFUL_SET, {"replicas": "7"}, {}, 1),
        (DAEMON_SET, {}, {"desiredNumberScheduled": 4}, 4),
        (DAEMON_SET, {}, {}, 0),
        (JOB, {"parallelism": 3, "completions": 5}, {"succeeded": 4}, 1),
        (JOB, {"parallelism": 3}, {}, 3),
        (JOB, {"suspend": True}, {}, 0),
        (JOB, {}, {"completionTime": "2026-01-01T00:00:00Z"}, 0),
        (JOB, {}, a_condition("FailureTarget"), 0),
        (JOB, {}, {"conditions": [{"type": "Failed", "status": "False"}]}, 1),
        (CRON_JOB, {}, {}, 0),
    ],
)
def test_how_many_pods_there_should_be(api, kind, spec, status, wanted):
    assert read(api, kind, a_workload(kind, spec, status)).desired == wanted


def test_the_newest_event_about_a_creation_is_the_denial(api):
    old, new = an_event("old", "older", 1), an_event("new", "newer", 2)
    other = an_event("other", "other", 3, reason="Killing")
    found = read(api, JOB, a_workload(JOB), new, old, other)
    assert (found.denial, found.from_dry_run) == ("newer", False)


def test_what_may_not_be_read_is_named_and_the_rest_is_read(api):
    api.denied |= {("list", "events"), ("list", "replicasets"), ("list", "pods")}
    cluster = snapshot(api, a_workload(DEPLOYMENT))
    assert read_workload(cluster, DEPLOYMENT, "train").desired == 1
    assert cluster.left_out == {
        "the ReplicaSets of this Deployment": "needs the right to list replicasets",
        "its pods": "needs the right to list pods",
        "Events": "needs the right to list events",
    }


@pytest.mark.parametrize(
    ("kind", "names"), [(STATEFUL_SET, {"runs"}), (JOB, {"runs", "evicted"})], ids=["set", "job"]
)
def test_a_pod_that_failed_is_news_of_a_job_alone(api, kind, names):
    pods = [
        a_pod_of(f"{kind.name}/train", *arguments)
        for arguments in (("runs",), ("evicted", "Failed"))
    ]
    found = read(api, kind, a_workload(kind), *pods)
    assert ({pod.name for pod in found.pods}, found.running) == (names, 1)


def test_of_a_cron_job_the_newest_job_is_read(api):
    def a_job(name, day, owner):
        at = f"2026-01-0{day}T00:00:00Z"
        return a_workload(JOB, name=name, owner=owner, creationTimestamp=at)

    jobs = [a_job("old", 1, "train"), a_job("new", 2, "train"), a_job("other", 3, "x")]
    pods = [a_pod_of(f"Job/{name}", f"of-{name}") for name in ("old", "new", "other")]
    found = read(api, CRON_JOB, a_workload(CRON_JOB), *jobs, *pods)
    assert (found.kind, [pod.name for pod in found.pods]) == ("CronJob", ["of-new"])


# Objects of other kinds, found by their pods


def owned(api, word, name, *stored):
    return read_workload_by_pods(snapshot(api, *stored), find_kind(word), name)


def below(owner, name="a", version="kubeflow.org/v1", **more):
    """Return a pod whose owner, `Kind/name`, may have any kind."""
    kind, _, whose = owner.partition("/")
    made_by = {"apiVersion": version, "kind": kind, "name": whose, "controller": True, "uid": whose}
    return a_pod(name, metadata={"ownerReferences": [made_by]}, **more)


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        *(
            (word, "PyTorchJob")
            for word in ("pytorchjob", "pytorchjobs", "pytorchjobs.kubeflow.org")
        ),
        *(("arrays", "Array"), ("policies", "Policy"), ("meshes", "Mesh"), ("boxes", "Box")),
    ],
)
def test_an_object_of_any_kind_is_found_by_its_pods_and_not_read(api, word, kind):
    stored = (below(f"{kind}/ddp"), below(f"{kind}/ddp-2", "b"), a_pod("c"))
    found = owned(api, word, "ddp", *stored)
    assert (found.kind, found.desired, found.running) == (kind, None, 1)
    assert [pod.name for pod in found.pods] == ["a"]
    assert paths(api) == [PODS, f"{PODS}/a"]


def test_owners_in_between_are_read(api):
    job = a_workload(JOB, name="set-workers-0", owner="set")
    job["metadata"]["ownerReferences"][0] |= {"kind": "JobSet", "name": "set"}
    found = owned(api, "jobsets", "set", job, below("Job/set-workers-0", "b", "batch/v1"))
    assert (found.kind, [pod.name for pod in found.pods]) == ("JobSet", ["b"])


def test_many_owners_and_pods_cost_few_requests(api):
    pods = [below(f"Odd/x-{n}", f"p-{n}", "odd.example/v1") for n in range(20)]
    assert owned(api, "strange", "x", *pods) is None
    assert len(api.asked) == 1 + MOST_BETWEEN + 1  # and a request for Events
    api.asked.clear()
    mine = [below("Odd/mine", f"q-{n}") for n in range(25)]
    assert owned(api, "odd", "mine", *mine).running == 25
    assert len(api.asked) == 1 + MOST_READ


@pytest.mark.parametrize("version", ["", "../v1", "a/b/v1", "x" * 999], ids=range(4))
def test_an_owner_of_no_version_is_not_read(api, version):
    assert owned(api, "set", "x", below("Odd/x-1", version=version)) is None
    assert paths(api) == [PODS, EVENTS]


def test_pods_that_have_ended_count_if_there_are_no_others(api):
    done, runs = (below("Workflow/w", phase, status=phase) for phase in ("Succeeded", "Running"))
    assert [pod.name for pod in owned(api, "workflow", "w", done).pods] == ["Succeeded"]
    assert [pod.name for pod in owned(api, "workflow", "w", runs).pods] == ["Running"]


def test_of_an_object_without_pods_the_event_of_its_denial_is_read(api):
    said = f"Error creating: {DENIED}"
    events = (
        an_event("a", said, 1, kind="PyTorchJob"),
        an_event("b", said + "2", 2, kind="Service"),
        an_event("c", "all is well", 3, kind="PyTorchJob"),
    )
    found = owned(api, "pytorchjob", "train", *events)
    assert (found.kind, found.denial, found.pods) == ("PyTorchJob", said, ())
