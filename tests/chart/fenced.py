"""A cluster with one policy of the fence, nothing else of vramwarden, and a tenant."""

from __future__ import annotations

import contextlib
import copy
import uuid
from collections.abc import Iterator
from typing import Any

from tests.chart.admission_policies import Line
from tests.chart.recorded_reviews import denial
from tests.support.charts import Helm
from tests.support.control_planes import Api, ControlPlane, needs, wait_until
from webhook.core.policy.fence import RULES_KEY, fence_data
from webhook.core.policy.model import Policy, Rollout

Json = dict[str, Any]

ALICE = "alice"
"""Tenant who may do everything with pods, but only in namespaces created for her."""
PODS = [
    f"pods{part}"
    for part in ("", "/ephemeralcontainers", "/resize", "/status", "/exec", "/attach", "/log")
]
MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"


class Fenced:
    def __init__(self, control_plane: ControlPlane, helm: Helm, name: str) -> None:
        self.control_plane = control_plane
        self.api = control_plane.api
        self.alice = self.api.acting_as(ALICE, "system:authenticated")
        self.objects = helm.render({"fence": {"void": True}})
        self.line = Line(self.api, name, self._probe)
        self._namespaces: set[str] = set()
        self._pods: list[Json] = []
        self._probed: Json | None = None

    def under(self, policy: Policy | Json | None = None) -> Fenced:
        """Install the policy of the fence with the rules of a vramwarden policy."""
        self.line.use(self.objects, policy)
        return self

    def close(self) -> None:
        """Delete the created objects."""
        self.line.remove()
        for pod in self._pods:
            self.api.delete(pod, gracePeriodSeconds="0")

    def namespace(self, name: str, labels: Json | None = None) -> str:
        """Create a namespace once, with a ServiceAccount and the tenant's permissions."""
        if name in self._namespaces:
            return name
        metadata = {"name": name, "labels": labels or {}}
        if name not in {"default", "kube-system"}:
            self.api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        self.control_plane.ensure_service_account(name)
        allow(self.api, ALICE, name, {"apiGroups": [""], "resources": PODS, "verbs": ["*"]})
        self._namespaces.add(name)
        return name

    def create(
        self, pod: Json, namespace: str = "default", api: Api | None = None, *, dry_run: bool = True
    ) -> Json:
        pod = copy.deepcopy(pod)
        pod["metadata"].update(namespace=self.namespace(namespace), name=f"p-{uuid.uuid4().hex}")
        found = (api or self.alice).create(pod, dry_run=dry_run)
        if not dry_run:
            self._pods.append(pod)
        return found

    def denies(self, pod: Json, namespace: str = "default", api: Api | None = None) -> str:
        """Try to create a pod; return the denial's message, or "" if it was created."""
        return denial(lambda: self.create(pod, namespace, api))

    def patch(
        self,
        pod: Json,
        change: Json,
        part: str = "",
        api: Api | None = None,
        kind: str = STRATEGIC,
        *,
        dry_run: bool = True,
    ) -> Json:
        if part:
            needs(self.api, f"pods{part}")
        metadata = pod["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}{part}"
        query = {"dryRun": "All"} if dry_run else {}
        return (api or self.alice).request("PATCH", path, change, content_type=kind, **query)

    def rejects(self, pod: Json, change: Json, part: str = "", api: Api | None = None) -> str:
        """Try to change a pod; return the denial's message, or "" if it was changed."""
        return denial(lambda: self.patch(pod, change, part, api))

    def _probe(self, mark: str) -> Json:
        """Create a pod and change an existing one, since some policies only see one of the two."""
        metadata: Json = {"labels": {"probe": mark}, "annotations": {"vramwarden.io/probe": mark}}
        spec = {"containers": [{"name": "main", "image": "example"}]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": spec}
        self.create({**pod, "metadata": dict(metadata)}, api=self.api)
        if self._probed is None:
            self._probed = self.create(pod, api=self.api, dry_run=False)
        metadata["annotations"] = {"vramwarden.io/gpu-waits": "a mark, which some judge alone"}
        metadata["labels"]["vramwarden.io/managed"] = "ours"
        for part in ("", "/status"):
            self.patch(self._probed, {"metadata": metadata}, part, self.api)
        return self._probed


def with_observed(policy: Policy, observed: Policy) -> Json:
    """Return the rules in force, preceded by those of a policy that is only observed."""
    first, data = fence_data(observed, Rollout.OBSERVE), fence_data(policy)
    return {**data, RULES_KEY: first[RULES_KEY] + data[RULES_KEY]}


@contextlib.contextmanager
def mirrored(fenced: Fenced, pod: Json) -> Iterator[tuple[Api, Json]]:
    """Create a node; yield its kubelet's client and the mirror pod of a static pod."""
    name = f"node-{uuid.uuid4().hex[:8]}"
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
    uid = fenced.api.apply(node)["metadata"]["uid"]
    notes = {"config.mirror": "1", "config.hash": "1", "config.source": "file"}
    pod = copy.deepcopy(pod)
    pod["spec"]["nodeName"] = name
    pod["metadata"].setdefault("annotations", {}).update(
        {f"kubernetes.io/{key}": value for key, value in notes.items()}
    )
    pod["metadata"]["ownerReferences"] = [
        {"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid, "controller": True}
    ]
    groups = ("system:nodes", "system:authenticated")
    yield fenced.api.acting_as(f"system:node:{name}", *groups), pod
    fenced.api.delete(node)


def allow(api: Api, user: str, namespace: str, rule: Json) -> None:
    """Grant a user permissions in a namespace."""
    _bind(api, user, user, rule, namespace)


@contextlib.contextmanager
def granted(api: Api, user: str, rule: Json) -> Iterator[None]:
    """Grant a user permissions in the cluster until the block ends."""
    made = _bind(api, user, f"test-{uuid.uuid4().hex[:8]}", rule)
    try:
        yield
    finally:
        for thing in made:
            api.delete(thing)
        wait_until("the right is gone", lambda: not _may(api, user, rule))


def _bind(api: Api, user: str, name: str, rule: Json, namespace: str = "") -> list[Json]:
    group = "rbac.authorization.k8s.io"
    scope = "" if namespace else "Cluster"
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    subject = {"kind": "User", "name": user, "apiGroup": group}
    reference = {"kind": f"{scope}Role", "name": name, "apiGroup": group}
    head = {"apiVersion": f"{group}/v1", "metadata": metadata}
    role = {**head, "kind": f"{scope}Role", "rules": [rule]}
    bound = {"subjects": [subject], "roleRef": reference}
    binding = {**head, "kind": f"{scope}RoleBinding", **bound}
    made = [api.apply(thing) for thing in (binding, role)]
    wait_until("the right is granted", lambda: _may(api, user, rule, namespace))
    return made


def _may(api: Api, user: str, rule: Json, namespace: str = "") -> bool:
    """Return True if the user has the permission; the API server learns of it by a watch."""
    resource, _, part = rule["resources"][-1].partition("/")
    attributes = {
        "namespace": namespace,
        "verb": rule["verbs"][-1],
        "group": rule["apiGroups"][-1],
        "resource": resource,
        "subresource": part,
    }
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user, "resourceAttributes": attributes},
    }
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    return bool(api.request("POST", path, review)["status"]["allowed"])
