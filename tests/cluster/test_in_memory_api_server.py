"""The in-memory API server responds like a real one to the requests of one client."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from itertools import islice

import pytest

from tests.support.api_server import ApiServer
from tests.support.cluster_programs import free_port
from tests.support.control_planes import wait_until
from tests.support.gpu_nodes import CRD
from webhook.adapters.kube.connection import connect
from webhook.adapters.kube.errors import KubeError
from webhook.adapters.kube.follow import ANY_VERSION

NODES, PODS = "/api/v1/nodes", "/api/v1/namespaces/scripted/pods"
MAPS = "/api/v1/namespaces/scripted/configmaps"
EVENTS = "/apis/events.k8s.io/v1/namespaces/scripted/events"
HOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
GPU_NODES = "/apis/vramwarden.io/v1alpha1/gpunodes"
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
GONE = "/api/v1/namespaces/scripted/nothings"
SHOWN = ("data", "labels", "annotations", "phase", "capacity", "spec", "note", "series")
"""Compared fields; no defaults, since the in-memory server sets none."""


class Script:
    """Requests in order, and their results, which are equal on all API servers."""

    def __init__(self, kube) -> None:
        self.kube = kube
        self.outcomes: list[tuple] = []
        self.versions: dict[str, str] = {}

    def does(self, what: str, ask) -> object:
        """Send a request. Record its result, and whether the object's version changed."""
        try:
            found = ask()
        except KubeError as error:
            self.outcomes.append((what, error.code))
            return None
        self.outcomes.append((what, self._shown(found)))
        return found

    def _shown(self, found):
        if isinstance(found, list | tuple):
            return [self._shown(item) for item in found]
        if not isinstance(found, dict):
            return found
        if "type" in found and "object" in found:  # an event of a watch
            return found["type"], self._shown(found["object"])
        metadata = found.get("metadata") or {}
        version, key = metadata.get("resourceVersion"), metadata.get("uid")
        changed = self.versions.get(key) != version
        self.versions[key] = version
        parts = metadata | (found.get("status") or {}) | {k: found[k] for k in SHOWN if k in found}
        shown = {key: parts[key] for key in ("name", "namespace", *SHOWN) if parts.get(key)}
        shown["spec"] = shown.get("spec", {}).get("rules")
        return shown | {"changed": changed, "kind": found.get("kind")}


def play(kube) -> list[tuple]:
    """Send every request of the script and return the results."""
    script = Script(kube)
    _config_maps(script, kube)
    _nodes_and_pods(script, kube)
    _ours(script, kube)
    _others(script, kube)
    return script.outcomes


def a_map(name, labels=None, **data):
    metadata = {"name": name, "labels": labels or {}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def _config_maps(script, kube):
    does, one = script.does, f"{MAPS}/one"
    does("read what is not there", lambda: kube.read(one))
    does("find what is not there", lambda: kube.find(one))
    made = does("create", lambda: kube.create(MAPS, a_map("one", a="1")))
    does("create it again", lambda: kube.create(MAPS, a_map("one")))
    versioned = {**a_map("x"), "metadata": {"name": "x", "resourceVersion": "7"}}
    does("create with a version", lambda: kube.create(MAPS, versioned))
    does("read", lambda: kube.read(one))
    does("merge", lambda: kube.merge(one, {"data": {"a": None, "b": "2"}}))
    does("merge nothing new", lambda: kube.merge(one, {"data": {"b": "2"}}))
    stale = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}}
    does("merge with an old version", lambda: kube.merge(one, stale | {"data": {"b": "3"}}))
    does("replace with an old version", lambda: kube.replace(one, made))
    does("replace without a version", lambda: kube.replace(one, a_map("one", c="4")))
    other = {"name": "one", "uid": "7a0f1b1e-0000-4000-8000-000000000000"}
    does("merge into another uid", lambda: kube.merge(one, {"metadata": other}))
    does("replace another uid", lambda: kube.replace(one, a_map("one") | {"metadata": other}))
    does("replace what is not there", lambda: kube.replace(f"{MAPS}/none", a_map("none")))
    does("patch what is not there", lambda: kube.merge(f"{MAPS}/none", {"data": {}}))
    does("a dry run", lambda: kube.dry_run_create(MAPS, a_map("dry", d="1"))[0])
    does("which stores nothing", lambda: kube.find(f"{MAPS}/dry"))
    does("delete another uid", lambda: kube.delete(one, uid="none"))
    does("delete another version", lambda: kube.delete(one, version="1"))
    for number in range(5):
        labels = {"even": str(number % 2 == 0).lower()}
        body = a_map(f"many-{number}", labels)
        does("create some", lambda body=body: kube.create(MAPS, body))
    since = kube.list_versioned(MAPS, dict)[1]
    for labels in ("even=true", "even==false", "even!=true,even", "even", "even=true,even=false"):
        does(f"list {labels}", lambda q=labels: kube.list_all(MAPS, dict, labelSelector=q))
    does("list by name", lambda: kube.list_all(MAPS, dict, fieldSelector="metadata.name=one"))
    does("list by data", lambda: kube.list_all(MAPS, dict, fieldSelector="data.a=1"))
    does("list from the cache", lambda: len(kube.list_cached(MAPS, dict, labelSelector="even")))
    does("list an unknown kind", lambda: kube.list_all(GONE, dict))
    does("label", lambda: kube.merge(f"{MAPS}/many-1", {"metadata": {"labels": {"even": "true"}}}))
    does("change", lambda: kube.merge(f"{MAPS}/many-2", {"data": {"a": "1"}}))
    does("unlabel", lambda: kube.merge(f"{MAPS}/many-4", {"metadata": {"labels": {"even": None}}}))
    does("delete", lambda: kube.delete(f"{MAPS}/many-0"))
    does("delete again", lambda: kube.delete(f"{MAPS}/many-0"))
    query = {"labelSelector": "even=true", "resourceVersion": since}
    does("watch by label", lambda: watched(kube, MAPS, 4, **query))
    query = {"fieldSelector": "metadata.name=many-2", "resourceVersion": since}
    does("watch one", lambda: watched(kube, MAPS, 1, **query))
    does(
        "watch from nowhere",
        lambda: watched(kube, MAPS, 2, labelSelector="even=true", resourceVersion=ANY_VERSION),
    )


def watched(kube, path, most, **query):
    """Return the first events of a watch, sorted by name if versions are unordered.

    A real API server whose cache is older than etcd for three seconds responds with 504; then
    retry.
    """
    for left in reversed(range(20)):
        found = kube.watch(path, lasting_s=60, **query)
        changes = ({"type": kind, "object": thing} for kind, thing in found if kind != "BOOKMARK")
        try:
            events, by_name = list(islice(changes, most)), query["resourceVersion"] == ANY_VERSION
        except KubeError as error:
            if error.code == 504 and left:
                continue
            raise
        return sorted(
            events, key=lambda event: event["object"]["metadata"]["name"] if by_name else ""
        )
    return []


def _nodes_and_pods(script, kube):
    does, node = script.does, f"{NODES}/scripted"
    capacity = {"status": {"capacity": {"vramwarden.io/vram": "8"}}}
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "scripted"}}
    does("create a node", lambda: kube.create(NODES, body))
    does("change its status", lambda: kube.patch_node("scripted", capacity, status=True))
    more = {"status": {"capacity": {"vramwarden.io/vram": "9"}}, "metadata": {"labels": {"a": "b"}}}
    does("its own path leaves the status", lambda: kube.patch_node("scripted", more))
    named = {"metadata": {"annotations": {"a": "b"}}, **capacity}
    does(
        "the status' path takes annotations",
        lambda: kube.patch_node("scripted", named, status=True),
    )
    does("read its status", lambda: kube.read(f"{node}/status"))
    pod = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {"managed": "true"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]}, "status": {"phase": "Running"},
    }  # fmt: skip
    does("a pod begins without a status", lambda: kube.create(PODS, pod))
    does("annotate", lambda: kube.patch(f"{PODS}/p", {"metadata": {"annotations": {"a": "b"}}}))
    ended = {"status": {"phase": "Succeeded"}}
    for fields in ("spec.nodeName=", "spec.nodeName=n", "status.phase!=Succeeded", "status.podIP="):
        does(fields, lambda q=fields: kube.list_all(PODS, dict, fieldSelector=q))
    does("a pod's own path leaves the status", lambda: kube.merge(f"{PODS}/p", ended))
    does("a pod's status", lambda: kube.merge(f"{PODS}/p/status", ended))
    does(
        "of all namespaces",
        lambda: kube.list_all("/api/v1/pods", dict, labelSelector="managed=true"),
    )
    does(
        "rows",
        lambda: kube.list_rows(
            PODS, lambda row: [row["cells"][key] for key in ("Name", "Status", "Node")]
        ),
    )
    uid = (kube.find(f"{PODS}/p") or {"metadata": {"uid": ""}})["metadata"]["uid"]
    does("delete the pod that it is", lambda: kube.delete(f"{PODS}/p", uid=uid))
    does("it is gone", lambda: kube.find(f"{PODS}/p"))


def _current(kube, path):
    """Return the content of the API server's cache, or None while the last write is missing."""
    cached = kube.list_cached(path, dict)
    return cached if cached == kube.list_all(path, dict) else None


def _ours(script, kube):
    does, one = script.does, f"{GPU_NODES}/n"
    body = {"apiVersion": "vramwarden.io/v1alpha1", "kind": "GPUNode", "metadata": {"name": "n"}}
    does("create one of ours", lambda: kube.create(GPU_NODES, body | {"status": {"phase": "a"}}))
    does("its status has no path", lambda: kube.merge(f"{one}/status", {"status": {"phase": "b"}}))
    does("a strategic patch", lambda: kube.patch(one, {"status": {"phase": "b"}}))
    does("a merge patch", lambda: kube.merge(one, {"status": {"phase": "b"}}))
    does("list ours", lambda: wait_until("a current cache", lambda: _current(kube, GPU_NODES)))
    does("replace ours without a version", lambda: kube.replace(one, body))


def _others(script, kube):
    does = script.does
    hook = {
        "name": "a.example.com", "clientConfig": {"url": "https://a.example.com"},
        "sideEffects": "None", "admissionReviewVersions": ["v1"],
    }  # fmt: skip
    body = {
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "scripted"}, "webhooks": [hook, hook | {"name": "b.example.com"}],
    }  # fmt: skip
    does("create webhooks", lambda: kube.create(HOOKS, body))
    change = {"name": "b.example.com", "clientConfig": {"url": "https://c.example.com"}}
    does("change one", lambda: urls(kube.patch(f"{HOOKS}/scripted", {"webhooks": [change]})))
    about = {"kind": "Pod", "namespace": "scripted", "name": "p", "uid": "u"}
    event = {
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"generateName": "p-"},
        "regarding": about, "reason": "Because", "note": "why", "type": "Warning", "action": "Try",
        "eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "vramwarden.io/x",
        "reportingInstance": "one",
    }  # fmt: skip
    made = kube.create(EVENTS, event)
    does("an event gets a name", lambda: made["metadata"]["name"].startswith("p-"))
    series = {"series": {"count": 2, "lastObservedTime": "2026-01-01T00:00:01.000000Z"}}
    does("a series", lambda: kube.merge(f"{EVENTS}/{made['metadata']['name']}", series)["series"])
    may = {"spec": {"resourceAttributes": {"verb": "list", "resource": "pods"}}}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", **may}
    does("ask for a right", lambda: kube.create(REVIEWS, review)["status"]["allowed"])


def urls(found):
    return [hook["clientConfig"]["url"] for hook in found["webhooks"]]


def test_both_doors_of_the_one_in_memory_lead_to_the_same(tmp_path):
    with ApiServer(tmp_path) as served:
        assert play(connect(served.kubeconfig, tries=1)) == play(ApiServer().kube())


def test_one_that_went_away_answers_on_no_connection_and_may_come_back(tmp_path):
    api = ApiServer(tmp_path, port=free_port())
    for _ in range(2):
        with api:
            kube = connect(api.kubeconfig, tries=1)
            assert kube.list_all(NODES, dict) == []
        with pytest.raises(KubeError):
            kube.list_all(NODES, dict)


def test_the_one_in_memory_answers_as_a_real_one(control_plane):
    api, kube = control_plane.api, connect(control_plane.kubeconfig, tries=1)
    api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "scripted"}})
    control_plane.ensure_service_account("scripted")
    api.apply(CRD)
    wait_until(GPU_NODES, lambda: _serves(kube, GPU_NODES))
    real = play(kube)
    assert play(ApiServer().kube()) == real


def test_what_is_written_stays_although_its_answer_is_lost():
    api = ApiServer()
    api.fails("POST", api.loses_the_answer)
    with pytest.raises(KubeError, match="does not answer"):
        api.kube().create(MAPS, a_map("one", a="1"))
    assert api.kube().read(f"{MAPS}/one")["data"] == {"a": "1"}


@pytest.mark.parametrize("served", [True, False])
def test_an_answer_that_waits_keeps_nobody_waiting_and_its_parts_arrive_one_by_one(
    tmp_path, served
):
    happened = []

    def parts():
        yield b'{"metadata":'
        kube.create(MAPS, a_map("meanwhile"))
        yield b'{"name":"slow"}}'

    def wait(_request):
        happened.append(kube.find(f"{MAPS}/meanwhile"))
        return 200, parts()

    with ApiServer(tmp_path) if served else nullcontext(ApiServer()) as api:
        kube = connect(api.kubeconfig, tries=1) if served else api.kube()
        api.fails("GET .*/slow", wait)
        assert kube.read(f"{MAPS}/slow") == {"metadata": {"name": "slow"}}
        assert (happened, kube.read(f"{MAPS}/meanwhile")["kind"]) == ([None], "ConfigMap")


def test_a_name_that_it_makes_up_is_free():
    api = ApiServer()
    for _ in range(5000):  # one million names are possible
        api.kube().create(MAPS, {"metadata": {"generateName": "one-"}})
    assert len(api.objects) == 5000


def test_when_it_stops_watches_end_and_nobody_answers(tmp_path):
    with ApiServer(tmp_path) as api:
        kube = connect(api.kubeconfig, tries=1)
        since = kube.list_versioned(MAPS, dict)[1]
        events = kube.watch(MAPS, lasting_s=60, resourceVersion=since)
        api.stop()
        assert list(events) == []
        with pytest.raises(KubeError):
            kube.list_all(MAPS, dict)
        assert len(api.asked) == 2


def _serves(kube, path):
    with suppress(KubeError):
        kube.list_all(path, dict)
        return True
    return False
