"""The sentry's account says of pods of its own node that their cap was not held, and no more."""

from __future__ import annotations

import contextlib
import copy
import json
import uuid
from dataclasses import replace
from functools import partial

import pytest
import urllib3

from tests.chart.admission_policies import BINDING, POLICY, apply, is_denied_by
from tests.chart.fenced import STRATEGIC
from tests.chart.recorded_reviews import denial
from tests.support.charts import NAMESPACE, one
from tests.support.control_planes import Api, ApiError, wait_until
from tests.support.pods import a_pod
from webhook import names
from webhook.adapters.journal import Journal
from webhook.adapters.kube.client import KubeError, connect
from webhook.adapters.kube.gpu_nodes import COLLECTION as GPU_NODES
from webhook.adapters.kube.gpu_nodes import read_figures, read_own_node, write_figures
from webhook.core.kinds.nodes import (
    MOST_PODS,
    GpuFigures,
    NodeFigures,
    PodFigures,
    read_gpu_node,
    write_gpu_node,
    write_time,
)
from webhook.core.placement.assignments import config_map_name
from webhook.core.pod.gpus import MOST_GPUS
from webhook.nodekit.events import EventWriter
from webhook.sentry.loop import report_of_pod
from webhook.sentry.writer import GpuNodeWriter

NAME = "vramwarden-sentry"
FENCE = "vramwarden-accounts"
RIGHTS = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding")
IN_THE_RELEASE = ("Role", "RoleBinding")
OWN, OTHER = "watched-1", "watched-2"
LABEL = {"vramwarden.io/managed": "true"}
HELD = {
    "type": names.CAP_HELD_CONDITION,
    "status": "False",
    "reason": names.CAP_EXCEEDED_REASON,
    "message": "python (pid 41) held 61.3Gi on GPU-1, more than 60Gi",
    "lastTransitionTime": "2026-11-22T12:00:00Z",
}
KUBELET = {
    "phase": "Running",
    "podIP": "10.1.0.7",
    "podIPs": [{"ip": "10.1.0.7"}],
    "startTime": "2026-11-22T11:00:00Z",
    "conditions": [
        {"type": "PodScheduled", "status": "True"},
        {"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-22T11:00:00Z"},
    ],
    "containerStatuses": [
        {
            "name": "main",
            "image": "example",
            "imageID": "",
            "ready": True,
            "restartCount": 0,
            "state": {"running": {"startedAt": "2026-11-22T11:00:00Z"}},
        }
    ],
}


class Sentries:
    """A cluster with the sentry's rights and its fence; sentries of any node, and their pods."""

    def __init__(self, control_plane, pool):
        self.api = control_plane.api
        self._url, self._pool = control_plane.url, pool
        self.made = []

    def of(self, node):
        """Return what a sentry of a node is to the API server; of no pod where that is None."""
        name = f"sentry-{uuid.uuid4().hex[:8]}"
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        if node is not None:
            container = {"name": "sentry", "image": "example"}
            spec = {"nodeName": node or None, "serviceAccountName": NAME, "containers": [container]}
            metadata = {"name": name, "namespace": NAME}
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
            self.made.append(self.api.create(pod))
            uid = self.made[-1]["metadata"]["uid"]
            bound = {"kind": "Pod", "apiVersion": "v1", "name": name, "uid": uid}
            request["spec"] = {"boundObjectRef": bound}
        path = f"/api/v1/namespaces/{NAME}/serviceaccounts/{NAME}/token"
        token = self.api.request("POST", path, request)["status"]["token"]
        found = Api(self._url, self._pool, {"Authorization": f"Bearer {token}"})
        found.pod, found.token = name, token
        return found

    def pod(self, node=OWN, labels=LABEL, **status):
        """Make a pod that runs on a node."""
        metadata = {"name": f"p-{uuid.uuid4().hex[:8]}", "namespace": "default", "labels": labels}
        spec = {"nodeName": node} if node else {}
        pod = a_pod(**spec)
        pod["metadata"].update(metadata, annotations={"example.com/a": "1"})
        self.made.append(self.api.create(pod))
        change = {"status": {**KUBELET, **status}}
        return self.api.request("PATCH", f"{path_of(pod)}/status", change, content_type=STRATEGIC)

    def close(self):
        for pod in self.made:
            self.api.delete(pod, gracePeriodSeconds="0")


def path_of(pod):
    return f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}"


def told(condition=HELD, **status):
    return {"status": {"conditions": [condition], **status}}


def patch(sentry, pod, change, part="/status", kind=STRATEGIC, **query):
    return sentry.request("PATCH", f"{path_of(pod)}{part}", change, content_type=kind, **query)


def tries(sentry, pod, change, kind=STRATEGIC):
    """Try to change a pod's status; return why it is denied, or nothing."""
    return denial(lambda: patch(sentry, pod, change, kind=kind, dryRun="All"))


@pytest.fixture(scope="module")
def cluster(control_plane, helm):
    api, objects = control_plane.api, helm.render()
    made = [one(objects, kind, NAME) for kind in (*RIGHTS, *IN_THE_RELEASE)]
    for name in (NAMESPACE, NAME, "default"):
        api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    control_plane.ensure_service_account("default")
    for name in (OWN, OTHER):
        api.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    for thing in made:
        api.apply(thing)
    for kind in (POLICY, BINDING):
        apply(api, one(objects, kind, FENCE))
    with urllib3.PoolManager(ca_certs=str(control_plane.state / "ca.crt")) as pool:
        found = Sentries(control_plane, pool)
        found.sentry = found.of(OWN)
        found.running = found.pod()

        def in_force():
            return is_denied_by(
                tries(found.sentry, found.running, {"status": {"phase": "x"}}), FENCE
            )

        wait_until("it is in force", in_force)
        yield found
        found.close()
    for thing in (one(objects, BINDING, FENCE), one(objects, POLICY, FENCE), *made):
        api.delete(thing)
    for name in (OWN, OTHER):
        api.request("DELETE", f"/api/v1/nodes/{name}")


def conditions(pod):
    return {one["type"]: one["status"] for one in pod["status"]["conditions"]}


def test_it_says_of_a_pod_of_its_node_that_its_cap_was_not_held(cluster):
    pod = cluster.pod()
    after = patch(cluster.sentry, pod, told())
    assert conditions(after) == {"PodScheduled": "True", "Ready": "True", HELD["type"]: "False"}
    assert {**after["status"], "conditions": []} == {**pod["status"], "conditions": []}
    # Once more, of a pod whose kubelet has written since.
    ready = [{"type": "Ready", "status": "False"}]
    patch(cluster.api, pod, {"status": {"conditions": ready}})
    after = patch(cluster.sentry, pod, told({**HELD, "message": "again"}))
    assert conditions(after) == {"PodScheduled": "True", "Ready": "False", HELD["type"]: "False"}
    assert [one["message"] for one in after["status"]["conditions"] if "message" in one] == [
        "again"
    ]


def test_it_says_so_of_a_pod_of_which_nothing_was_said(cluster):
    pod = cluster.pod(conditions=None, containerStatuses=None)
    assert tries(cluster.sentry, pod, told()) == ""


@pytest.fixture
def events(cluster, control_plane, tmp_path):
    """Return what the sentry's own code writes with."""
    config = json.loads(control_plane.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": cluster.sentry.token}
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    said = []
    kube = connect(tmp_path / "kubeconfig", tries=1)
    found = EventWriter(
        kube, Journal(said.append), node=OWN, reporter=names.SENTRY_REPORTER,
        instance=cluster.sentry.pod, action="Audit",
    )  # fmt: skip
    yield found
    assert said == []


def test_what_the_sentry_writes_is_let_through(cluster, events):
    pod = cluster.pod()
    name, uid = (pod["metadata"][key] for key in ("name", "uid"))
    for stopped in (True, False, True):
        assert not events.write(report_of_pod(f"default/{name}", uid, "why", stopped=stopped))
    events.report_node(names.UNMANAGED_REASON, "who holds what")
    assert not events.write(events.waiting.get_nowait())
    after = cluster.api.request("GET", path_of(pod))
    assert conditions(after) == {"PodScheduled": "True", "Ready": "True", HELD["type"]: "False"}
    about = {"fieldSelector": f"reportingComponent={names.SENTRY_REPORTER}"}
    written = cluster.api.list("/api/v1/namespaces/default/events", **about)
    counted = {one["reason"]: (one.get("series") or {}).get("count") for one in written}
    assert (len(written), counted) == (
        2,
        {names.CAP_EXCEEDED_REASON: 3, names.UNMANAGED_REASON: None},
    )
    for event in written:
        cluster.api.delete({**event, "apiVersion": "v1", "kind": "Event"})


NOT_ITS_OWN = {
    "a pod of another node": {"node": OTHER},
    "a pod of no node": {"node": ""},
    "a pod without VRAM": {"labels": {}},
    "a pod that only looks like one with VRAM": {"labels": {"vramwarden.io/managed": "no"}},
}


@pytest.mark.parametrize("pod", NOT_ITS_OWN.values(), ids=NOT_ITS_OWN)
def test_it_says_nothing_of_other_pods(cluster, pod):
    why = tries(cluster.sentry, cluster.pod(**pod), told())
    assert is_denied_by(why, FENCE)
    assert "only pods with VRAM of its own node" in why


def test_another_nodes_sentry_writes_what_this_one_may_not(cluster):
    pod = cluster.pod(node=OTHER)
    assert tries(cluster.of(OTHER), pod, told()) == ""
    assert is_denied_by(tries(cluster.sentry, pod, told()), FENCE)


def test_a_token_that_names_no_node_writes_nothing(cluster):
    nobody = cluster.of(None)
    for pod in (cluster.running, cluster.pod(node="")):
        assert "only pods with VRAM of its own node" in tries(nobody, pod, told())
    assert is_denied_by(denial(lambda: nobody.create(an_event(pod="x"), dry_run=True)), FENCE)
    nowhere = cluster.of("")
    event = an_event("Node", "", pod=nowhere.pod)
    assert is_denied_by(denial(lambda: nowhere.create(event, dry_run=True)), FENCE)


OTHER_CHANGES = {
    "the phase": told(phase="Failed"),
    "the reason": told(reason="Evicted"),
    "its address": told(podIP="10.1.0.8", podIPs=[{"$patch": "replace"}, {"ip": "10.1.0.8"}]),
    "its containers": told(containerStatuses=[{"name": "main", "restartCount": 7}]),
    "its sidecars": told(initContainerStatuses=[{"name": "vram-enforcer", "ready": False}]),
    "its node's address": told(hostIP="10.0.0.9"),
    "when it started": told(startTime=None),
    "readiness": {"status": {"conditions": [HELD, {"type": "Ready", "status": "False"}]}},
    "a condition of others": {
        "status": {"conditions": [HELD, {"type": "example.com/x", "status": "True"}]}
    },
    "a condition taken away": {
        "status": {"conditions": [HELD, {"type": "Ready", "$patch": "delete"}]}
    },
    "a label": {**told(), "metadata": {"labels": {"a": "b"}}},
    "our label": {**told(), "metadata": {"labels": {"vramwarden.io/managed": None}}},
    "an annotation": {**told(), "metadata": {"annotations": {"vramwarden.io/gpu": "GPU-1"}}},
    "an annotation taken away": {**told(), "metadata": {"annotations": {"example.com/a": None}}},
    "a finalizer": {**told(), "metadata": {"finalizers": ["example.com/x"]}},
}


@pytest.mark.parametrize("change", OTHER_CHANGES.values(), ids=OTHER_CHANGES)
def test_it_changes_nothing_else_of_a_pod(cluster, change):
    why = tries(cluster.sentry, cluster.running, change)
    assert is_denied_by(why, FENCE)
    assert "nothing of a pod but its condition" in why


@pytest.mark.parametrize(
    "change",
    [
        told({**HELD, "status": "True"}),
        told({**HELD, "status": "Unknown"}),
        told({**HELD, "reason": "Other"}),
        told({**HELD, "reason": None}),
    ],
    ids=["held", "unknown", "another reason", "no reason"],
)
def test_it_says_nothing_but_that_the_cap_was_exceeded(cluster, change):
    why = tries(cluster.sentry, cluster.running, change)
    assert is_denied_by(why, FENCE)
    assert "only write that vramwarden.io/CapHeld is False" in why


def test_it_does_not_take_back_what_it_said(cluster):
    pod = cluster.pod(conditions=[*KUBELET["conditions"], HELD])
    gone = {"type": HELD["type"], "$patch": "delete"}
    why = tries(cluster.sentry, pod, {"status": {"conditions": [gone]}})
    assert "only write that vramwarden.io/CapHeld is False" in why


def test_it_may_do_nothing_else_with_pods(cluster):
    path = path_of(cluster.running)
    for method, where in (("GET", path), ("DELETE", path), ("PUT", f"{path}/status")):
        with pytest.raises(ApiError, match=r"cannot (get|delete|update)"):
            cluster.sentry.request(method, where, cluster.running)
    with pytest.raises(ApiError, match="cannot patch"):
        patch(cluster.sentry, cluster.running, {"metadata": {"labels": {"a": "b"}}}, part="")


def test_others_write_status_and_events_as_before(cluster):
    pod = cluster.pod(node=OTHER)
    assert tries(cluster.api, pod, {"status": {"phase": "Failed"}}) == ""
    assert denial(lambda: cluster.api.create(an_event(pod="x"), dry_run=True)) == ""


def an_event(kind="Pod", name="train", namespace="default", pod=None, **fields):
    about = {"apiVersion": "v1", "kind": kind, "name": name, "uid": name}
    if kind == "Pod":
        about["namespace"] = namespace
    metadata = {"generateName": "made-up-", "namespace": namespace}
    event = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": metadata,
        "eventTime": "2026-11-22T12:00:00.000000Z",
        "regarding": about,
        "type": "Warning",
        "reason": names.CAP_EXCEEDED_REASON,
        "action": "Stop",
        "note": "an example",
        "reportingController": names.SENTRY_REPORTER,
        "reportingInstance": pod,
    }
    return {key: value for key, value in {**event, **fields}.items() if value is not None}


def writes(cluster, event):
    """Try to write an Event; return why it is denied, or nothing."""
    event = copy.deepcopy(event)
    event.setdefault("reportingInstance", cluster.sentry.pod)
    return denial(lambda: cluster.sentry.create(event, dry_run=True))


def test_it_writes_events_of_pods_and_of_its_node(cluster):
    cluster.api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team-a"}})
    unmanaged = names.UNMANAGED_REASON
    assert writes(cluster, an_event()) == ""
    assert writes(cluster, an_event(namespace="team-a")) == ""
    assert writes(cluster, an_event("Node", OWN, reason=unmanaged)) == ""


FORGED = {
    "as another reporter": an_event(reportingController="kubelet"),
    "as nearly this one": an_event(reportingController="vramwarden.io/sentry-2"),
    "as another pod of ours": an_event(pod="vramwarden-sentry-other"),
    "about something else": an_event(reason="Killing"),
}
NAMELESS = {
    "as nobody": an_event(reportingController=None),
    "as no pod": an_event(pod=""),
    "without a reason": an_event(reason=None),
}


@pytest.mark.parametrize("event", FORGED.values(), ids=FORGED)
def test_it_writes_events_as_itself_alone(cluster, event):
    why = writes(cluster, event)
    assert is_denied_by(why, FENCE)
    assert "Events only as vramwarden.io/sentry" in why


@pytest.mark.parametrize("event", NAMELESS.values(), ids=NAMELESS)
def test_what_does_not_say_who_says_it_is_no_event(cluster, event):
    assert "Required value" in writes(cluster, event)


def test_the_older_kind_of_event_it_may_not_write(cluster):
    """It has fields that the fence does not know."""
    event = an_event(pod=cluster.sentry.pod, apiVersion="v1", eventTime=None, regarding=None)
    event |= {"involvedObject": an_event()["regarding"], "message": event.pop("note")}
    with pytest.raises(ApiError, match="cannot create"):
        cluster.sentry.create(event, dry_run=True)


def test_of_events_it_changes_its_own_alone(cluster):
    series = {"series": {"count": 2, "lastObservedTime": "2026-11-22T12:00:01.000000Z"}}
    merge = {"content_type": "application/merge-patch+json", "dryRun": "All"}

    def counts(event):
        made = cluster.api.create(event)
        path = f"/apis/events.k8s.io/v1/namespaces/default/events/{made['metadata']['name']}"
        try:
            return denial(lambda: cluster.sentry.request("PATCH", path, series, **merge))
        finally:
            cluster.api.request("DELETE", path)

    assert counts(an_event(pod=cluster.sentry.pod)) == ""
    for others in (an_event(pod="x"), an_event(pod=cluster.sentry.pod, reportingController="y/z")):
        assert is_denied_by(counts(others), FENCE)


@pytest.mark.parametrize(
    "event",
    [
        an_event("Node", OTHER),
        an_event("Node", ""),
        an_event("Namespace", OWN),
        an_event(""),
        an_event("pod"),
    ],
    ids=["another node", "no node", "something else", "no kind", "no kind that exists"],
)
def test_it_writes_no_events_of_others(cluster, event):
    why = writes(cluster, event)
    assert is_denied_by(why, FENCE)
    assert "Events of pods and of its own node only" in why


def test_it_reads_the_lists_of_who_has_which_gpu_and_no_secret(cluster):
    path = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
    found = {"apiVersion": "v1", "kind": "ConfigMap"}
    found["metadata"] = {"name": config_map_name(OWN), "namespace": NAMESPACE}
    cluster.api.create(found)
    try:
        assert cluster.sentry.get(found)["metadata"]["name"] == config_map_name(OWN)
    finally:
        cluster.api.delete(found)
    for where in (path, "/api/v1/namespaces/default/configmaps", "/api/v1/secrets", "/api/v1/pods"):
        with pytest.raises(ApiError, match="cannot list"):
            cluster.sentry.request("GET", where)
    with pytest.raises(ApiError, match="cannot delete"):
        cluster.sentry.request("DELETE", f"{path}/gpu-assignments-x")


def figures(node=OWN, **gpu):
    uid = "6d0c1111-0000-4000-8000-000000000001"
    pods = (
        PodFigures(
            uid=uid,
            cap_bytes=2**34,
            used_bytes=2**33,
            peak_bytes=2**33 + 5,
            stops=1,
            would_stop=2,
            would_stop_since_s=1_799_000_000.0,
        ),
    )
    others = {"": 2**30, "91ab-2": 3 * 2**30}
    one = GpuFigures(
        uuid="GPU-8f1", index=0, product="NVIDIA H100", total_bytes=80 * 2**30,
        usable_bytes=79 * 2**30, promised_bytes=2**34, used_bytes=2**34, free_bytes=63 * 2**30,
        unattributed_bytes=5,
        pods=pods, unmanaged=others,
    )  # fmt: skip
    return NodeFigures(
        name=node,
        observed_s=1_800_000_000.0,
        driver_version="580.95.05",
        enforcement="sidecar",
        gpus=(replace(one, **gpu),),
    )


@pytest.fixture(scope="module")
def crds(control_plane, helm):
    """Install the kinds, and wait until the API server knows them."""
    objects = helm.render()
    made = [one for one in objects if one["kind"] == "CustomResourceDefinition"]
    for crd in made:
        control_plane.api.apply(crd)

    def known():
        return not denial(lambda: control_plane.api.request("GET", GPU_NODES))

    wait_until("the kinds are known", known)
    yield made
    for crd in made:
        control_plane.api.delete(crd)


@pytest.fixture
def kube(cluster, control_plane, tmp_path):
    """Return what the sentry's own code asks the API server with."""
    config = json.loads(control_plane.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": cluster.sentry.token}
    (tmp_path / "own").write_text(json.dumps(config))
    return connect(tmp_path / "own", tries=1)


@pytest.fixture
def written(cluster, crds, kube):
    """Have the sentry write the figures of its node; return them as they are stored."""
    write_figures(kube, figures(), read_own_node(kube, OWN).uid)
    yield cluster.api.request("GET", f"{GPU_NODES}/{OWN}")
    with contextlib.suppress(ApiError):
        cluster.api.request("DELETE", f"{GPU_NODES}/{OWN}")


def test_without_the_kind_the_writer_says_so(cluster, kube, control_plane, helm):
    """It stands before those that install it; Helm leaves it where it was installed before."""
    for each in helm.render():
        if each["kind"] == "CustomResourceDefinition":
            with contextlib.suppress(ApiError):
                control_plane.api.delete(each)
    unknown = partial(denial, lambda: control_plane.api.request("GET", GPU_NODES))
    wait_until("the kind is gone", unknown)
    said = []
    writer = GpuNodeWriter(kube, OWN, Journal(said.append), 0.0)
    writer.offer(figures())
    writer.step(lambda _: None)
    (line,) = said
    assert json.loads(line)["msg"].startswith("the cluster knows no GPUNode")


def test_it_writes_the_figures_of_its_node_and_reads_them_again(cluster, kube, written):
    node = cluster.api.request("GET", f"/api/v1/nodes/{OWN}")["metadata"]
    assert written["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Node", "name": OWN, "uid": node["uid"]}
    ]
    assert written["status"] == write_gpu_node(figures())["status"]
    less = figures(promised_bytes=None, used_bytes=None, free_bytes=None, unattributed_bytes=None)
    write_figures(kube, less, node["uid"])
    stored = cluster.api.request("GET", f"{GPU_NODES}/{OWN}")
    assert stored["status"] == write_gpu_node(less)["status"]
    assert read_figures(kube, OWN) == read_gpu_node(write_gpu_node(less))


def test_the_sentrys_writer_lives_with_a_deleted_object(cluster, kube, written):
    said, sent, now_s = [], [], [0.0]
    writer = GpuNodeWriter(kube, OWN, Journal(said.append), 0.0, clock=lambda: now_s[0])
    writer.step(sent.append)
    for second in range(3):
        now_s[0] += 60.0
        writer.offer(replace(figures(), observed_s=1_900_000_000.0 + second))
        writer.step(sent.append)
        found = cluster.api.request("GET", f"{GPU_NODES}/{OWN}")
        assert found["status"]["observedAt"] == write_time(1_900_000_000.0 + second)
        cluster.api.request("DELETE", f"{GPU_NODES}/{OWN}")
    assert ([bool(one.gpus) for one in sent], said) == ([True], [])


def test_it_writes_the_figures_of_no_other_node(cluster, crds, kube):
    with pytest.raises(KubeError, match="the GPUNode of its own node only"):
        write_figures(kube, figures(OTHER))
    cluster.api.create(write_gpu_node(figures(OTHER)))
    try:
        with pytest.raises(KubeError, match="the GPUNode of its own node only"):
            write_figures(kube, figures(OTHER))
        nobody = cluster.of(None)
        why = denial(lambda: nobody.create(write_gpu_node(figures()), dry_run=True))
        assert is_denied_by(why, FENCE)
        for method in ("DELETE", "PUT"):
            with pytest.raises(ApiError, match=r"cannot (delete|update)"):
                cluster.sentry.request(method, f"{GPU_NODES}/{OWN}", write_gpu_node(figures()))
    finally:
        cluster.api.request("DELETE", f"{GPU_NODES}/{OTHER}")


@pytest.mark.parametrize(
    "metadata",
    [
        {"labels": {"a": "team-a"}},
        {"annotations": {"a": "team-a"}},
        {"finalizers": ["example.com/x"]},
    ],
    ids=["labels", "annotations", "finalizers"],
)
def test_it_writes_nothing_but_figures(cluster, written, metadata):
    merge = {"content_type": "application/merge-patch+json", "dryRun": "All"}
    path = f"{GPU_NODES}/{OWN}"
    why = denial(lambda: cluster.sentry.request("PATCH", path, {"metadata": metadata}, **merge))
    assert is_denied_by(why, FENCE)
    assert "nothing of a GPUNode but figures" in why
    # What others added stays, and does not keep it from writing.
    cluster.api.request("PATCH", path, {"metadata": metadata | {"finalizers": None}}, **merge)


def test_no_name_of_a_namespace_or_a_pod_can_stand_in_it(cluster, crds, kube):
    """Fields that the kind does not have are pruned, and what it has holds no name."""
    made = write_gpu_node(figures())
    made["spec"] = {"namespace": "team-a"}
    made["status"]["namespace"] = made["status"]["gpus"][0]["team-a"] = "team-a"
    made["status"]["summary"]["pod"] = "team-a"
    made["status"]["gpus"][0]["pods"][0] |= {"namespace": "team-a", "pod": "team-a"}
    made["status"]["gpus"][0]["unmanaged"][0]["command"] = "team-a"
    stored = cluster.sentry.create(made)
    try:
        assert stored["status"] == write_gpu_node(figures())["status"]
        assert "team-a" not in str({**stored, "metadata": {}})
    finally:
        cluster.api.request("DELETE", f"{GPU_NODES}/{OWN}")
    for where in ("pods", "unmanaged"):
        made = write_gpu_node(figures())
        made["status"]["gpus"][0][where][0]["uid"] = "team-x"
        assert "in body should match" in denial(lambda it=made: cluster.sentry.create(it))


def test_what_is_too_large_is_no_figure_and_the_most_is(cluster, crds):
    def stored(gpus=1, pods=1):
        gpu = write_gpu_node(figures())["status"]["gpus"][0]
        gpu |= {"pods": gpu["pods"] * pods, "unmanaged": gpu["unmanaged"][:1] * pods}
        made = write_gpu_node(figures())
        made["status"]["gpus"] = [gpu] * gpus
        return denial(lambda: cluster.sentry.create(made, dry_run=True))

    assert stored(MOST_GPUS, 1) == stored(1, MOST_PODS) == ""
    assert "must have at most" in stored(MOST_GPUS + 1)
    assert "must have at most" in stored(1, MOST_PODS + 1)


def as_table(cluster):
    """Ask as kubectl does, which shows what the API server has put into columns."""
    accept = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
    return Api(cluster.api.url, cluster.api._pool, {**cluster.api._headers, **accept})


def test_kubectl_shows_figures_as_columns(cluster, written):
    shown = as_table(cluster).request("GET", GPU_NODES)
    columns = [one["name"] for one in shown["columnDefinitions"]]
    assert columns == [
        "Name", "GPUs", "Usable", "Promised", "Used", "Largest-Free", "Unmanaged", "Seen",
    ]  # fmt: skip
    (row,) = shown["rows"]
    assert row["cells"][:7] == [OWN, 1, "79Gi", "16Gi", "16Gi", "63Gi", "4Gi"]


def test_who_may_view_one_namespace_reads_figures_of_nodes_and_no_history_elsewhere(
    cluster, crds, control_plane, helm, written
):
    """`view` is aggregated by the controller manager; here its rule is bound by itself."""
    objects = helm.render()
    roles = [one(objects, "ClusterRole", f"vramwarden-{name}") for name in ("gpunodes", "view")]
    assert roles[1]["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"] == "true"
    bound = one(objects, "ClusterRoleBinding", "vramwarden-gpunodes")
    user = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "ann"}
    here = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "ann", "namespace": "default"},
        "roleRef": {**bound["roleRef"], "name": "vramwarden-view"},
        "subjects": [user],
    }
    made = [*roles, bound, here]
    for thing in made:
        cluster.api.apply(thing)
    ann = cluster.api.acting_as("ann", "system:authenticated")
    group = "/apis/vramwarden.io/v1alpha1"
    try:

        def reads(path):
            return denial(lambda: ann.request("GET", group + path))

        wait_until("she may", lambda: reads("/gpunodes") == "")
        wait_until("she may", lambda: reads("/namespaces/default/vramhistories") == "")
        assert "cannot list" in reads("/namespaces/kube-system/vramhistories")
        assert "cannot list" in reads("/vramhistories")
        cluster.api.delete(bound)
        wait_until("she may not", lambda: "cannot list" in reads("/gpunodes"))
    finally:
        for thing in made:
            with contextlib.suppress(ApiError):
                cluster.api.delete(thing)


def test_a_history_is_stored_as_it_is_written(cluster, crds):
    run = {
        "pod": "embed-29411-8tq5w", "endedAt": "2026-11-22T12:00:00Z", "askedMi": 8192, "gpus": 1,
        "peakMi": 7000, "stops": 0, "seconds": 11520.5, "product": "NVIDIA H100",
    }  # fmt: skip
    history = {
        "apiVersion": names.SEEING_API_VERSION,
        "kind": names.VRAM_HISTORY_KIND,
        "metadata": {"name": "job-embed", "namespace": "default"},
        "status": {
            "workload": {"kind": "Job", "name": "embed"},
            "summary": {"runs": "20", "asks": "8Gi", "peak": "6.8Gi", "advice": "8Gi"},
            "advice": "largest peak + 15 %",
            "runs": [run] * 20,
        },
    }
    path = "/apis/vramwarden.io/v1alpha1/namespaces/default/vramhistories"
    stored = cluster.api.create(copy.deepcopy(history))
    try:
        assert stored["status"] == history["status"]
        (row,) = as_table(cluster).request("GET", path)["rows"]
        assert row["cells"] == ["job-embed", "20", "8Gi", "6.8Gi", "8Gi"]
        history["status"]["runs"].append(run)
        too_many = {**history, "metadata": {"name": "x", "namespace": "default"}}
        assert "must have at most" in denial(lambda: cluster.api.create(too_many))
    finally:
        cluster.api.request("DELETE", f"{path}/job-embed")
