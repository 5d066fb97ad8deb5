"""A cluster with the parts of the fence that need no rules, vramwarden's accounts, and tenants."""

from __future__ import annotations

import contextlib
import copy
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import urllib3

from tests.chart.admission_policies import BINDING, POLICY, apply
from tests.chart.fenced import MERGE, STRATEGIC, allow, granted
from tests.chart.recorded_reviews import denial
from tests.support.api_client import token_of
from tests.support.charts import NAMESPACE, Helm, a_namespace, one
from tests.support.control_planes import Api, ControlPlane, wait_until
from tests.support.pods import a_container, a_pod
from tests.support.schedulers import SCHEDULER
from webhook import names
from webhook.adapters.kube.certificates import KINDS
from webhook.core.node.events import EventReason

Json = dict[str, Any]

SENTRY = "vramwarden-sentry"
"""Account and namespace of the sentry."""
OURS = (SENTRY, "vramwarden-agent", "vramwarden-webhook")
RIGHTS = {"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}
ACCOUNTS, ENFORCER, EXEMPTION = (
    f"vramwarden-{name}" for name in ("accounts", "enforcer", "exemption")
)
FENCES = (ACCOUNTS, ENFORCER, EXEMPTION)
OWN, OTHER = "watched-1", "watched-2"
"""Node of the agent and the sentry under test, and another node."""
TAINT = "startup-taint.cluster-autoscaler.kubernetes.io/vramwarden"
LABEL = {"vramwarden.io/managed": "true"}
EXEMPT_LABEL = "vramwarden.io/webhook"
GPU, VISIBLE, FRACTION, LIMIT, WAITS = names.BINDING_ANNOTATIONS
GIVEN = {GPU: "GPU-1", VISIBLE: "GPU-1", FRACTION: "0.1000"}
HELD = {
    "type": names.CAP_HELD_CONDITION,
    "status": "False",
    "reason": EventReason.CAP_EXCEEDED,
    "message": "python (pid 41) held 61.3Gi on GPU-1, more than 60Gi",
    "lastTransitionTime": "2026-11-22T12:00:00Z",
}
RUNNING = {
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
"""Status of a running pod, as a kubelet writes it."""
SIDECAR = a_container("vram-enforcer", restartPolicy="Always")
PODS: dict[str, Json] = {
    "waits": {"annotations": {WAITS: "no GPU of the node has 8Gi free"}},
    "is bound": {},
    "is not bound": {"node": ""},
    "has no label of ours": {"labels": {}},
    "has another label": {"labels": {"vramwarden.io/managed": "no"}},
    "has a GPU": {"annotations": GIVEN},
    "has an empty GPU": {"annotations": {GPU: ""}},
    "is on another node": {"node": OTHER},
    "has no status": {"conditions": None, "containerStatuses": None},
    "was told of": {"conditions": [*RUNNING["conditions"], HELD]},
    "has the sidecar": {"node": "", "spec": {"initContainers": [SIDECAR]}},
    "names the sidecar as default": {
        "node": "",
        "spec": {"containers": [a_container(), a_container("vram-enforcer")]},
        "annotations": {"kubectl.kubernetes.io/default-container": "vram-enforcer"},
    },
    **{
        f"is in {namespace}": {
            "spec": {"containers": [a_container("vram-enforcer")]},
            "node": "",
            "namespace": namespace,
        }
        for namespace in ("labelled-rights", "nvidia-rights")
    },
}
"""Existing pods, keyed by their special property. By default, they run on the watched node."""
ALL = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
OF_NAMESPACES = {
    "apiGroups": [""],
    "resources": ["namespaces", "namespaces/status", "namespaces/finalize"],
    "verbs": ["*"],
}
ENTERS = {"apiGroups": ["vramwarden.io"], "resources": ["enforcers"], "verbs": ["exec"]}
EXEMPTS = {"apiGroups": ["vramwarden.io"], "resources": ["namespaces"], "verbs": ["exempt"]}


class Fences:
    """The installed fence; actors and pods have names."""

    def __init__(self, control_plane: ControlPlane, objects: list[Json], url_pool: Any) -> None:
        self.control_plane = control_plane
        self.admin = control_plane.api
        self.objects = objects
        self._pool = url_pool
        self._made: list[Json] = []
        self._pods: dict[str, Json] = {}
        self._who = {"the administrator": self.admin}
        for user in ("alice", "bob", "carol", "dora", SCHEDULER):
            self._who[user] = self.admin.acting_as(user, "system:authenticated")

    def who(self, name: str) -> Api:
        """Return the client of an actor, such as `the agent of another node`."""
        if name not in self._who:
            words = name.split()
            node = {"no": None, "nowhere": "", "another": OTHER}.get(words[-2], OWN)
            self._who[name] = self._by_token(words[1], node if "of" in words else OWN)
        return self._who[name]

    def _by_token(self, part: str, node: str | None) -> Api:
        """Return the client of a vramwarden account, as a pod on a node, or as no pod for None."""
        account, namespace = f"vramwarden-{part}", SENTRY if part == "sentry" else NAMESPACE
        name = f"{part}-{uuid.uuid4().hex[:8]}"
        spec: Json = {}
        if node is not None:
            pod = a_pod(nodeName=node or None, serviceAccountName=account)
            pod["metadata"] = {"name": name, "namespace": namespace}
            self._made.append(self.admin.create(pod))
            uid = self._made[-1]["metadata"]["uid"]
            bound = {"kind": "Pod", "apiVersion": "v1", "name": name, "uid": uid}
            spec = {"boundObjectRef": bound}
        token = token_of(self.admin, namespace, account, **spec)
        headers = {"Authorization": f"Bearer {token}"}
        found = Api(self.control_plane.url, self._pool, headers)
        found.pod, found.token = name, token
        return found

    def kubeconfig(self, who: str, folder: Path) -> Path:
        """Write a kubeconfig with a token of a vramwarden account, for vramwarden's code."""
        config = json.loads(self.control_plane.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": self.who(who).token}
        config["contexts"][0]["context"]["namespace"] = NAMESPACE
        (folder / "kubeconfig").write_text(json.dumps(config))
        return folder / "kubeconfig"

    def pod(self, name: str) -> Json:
        """Return one of `PODS`, created on first use."""
        if name not in self._pods:
            self._pods[name] = self.make(**PODS[name])
        return self._pods[name]

    def make(
        self,
        node: str = OWN,
        namespace: str = "default",
        labels: Json = LABEL,
        annotations: Json | None = None,
        spec: Json | None = None,
        **status: Any,
    ) -> Json:
        pod = a_pod(**({"nodeName": node} if node else {}), **(spec or {}))
        notes = {"example.com/a": "1", **(annotations or {})}
        name = f"p-{uuid.uuid4().hex[:8]}"
        pod["metadata"] = {
            "name": name, "namespace": namespace, "labels": labels, "annotations": notes
        }  # fmt: skip
        self._made.append(self.admin.create(pod))
        change = {"status": {**RUNNING, **status}}
        path = f"{path_of(pod)}/status"
        return self.admin.request("PATCH", path, change, content_type=STRATEGIC)

    def read(self, pod: Json) -> Json:
        return self.admin.request("GET", path_of(pod))

    def use(self, objects: list[Json], wanted: str) -> None:
        """Install another version of the accounts' fence, recognized by the text `wanted`."""
        apply(self.admin, one(objects, POLICY, ACCOUNTS))
        change = {"spec": {"unschedulable": True}}
        path = f"/api/v1/nodes/{OWN}"
        agent = self.who("the agent")

        def says() -> str:
            return denial(
                lambda: agent.request("PATCH", path, change, content_type=MERGE, dryRun="All")
            )

        wait_until(f"the fence says {wanted}", lambda: wanted in says())

    def close(self) -> None:
        """Delete the pods."""
        for pod in self._made:
            self.admin.delete(pod, gracePeriodSeconds="0")


def path_of(pod: Json, part: str = "") -> str:
    """Return the API path of a pod or its subresource."""
    metadata = pod["metadata"]
    return f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}{part}"


def registrations(objects: list[Json]) -> list[Json]:
    """Return vramwarden's webhook configurations without denials; one entry has a URL."""
    found = copy.deepcopy([one(objects, kind) for kind in KINDS])
    for each in found:
        for webhook in each["webhooks"]:
            webhook["failurePolicy"] = "Ignore"
            webhook["rules"] = [{**webhook["rules"][0], "apiGroups": ["tests"]}]
    plain = found[-1]["webhooks"][1]
    plain["clientConfig"] = {"url": "https://example.com/validate"}
    del plain["matchConditions"]
    return found


@contextlib.contextmanager
def fences_in_force(control_plane: ControlPlane, helm: Helm) -> Iterator[Fences]:
    """Install the fence, its accounts and its users until the block ends."""
    api, objects = control_plane.api, helm.render()
    made: list[Json] = [
        thing
        for thing in objects
        if thing["kind"] in RIGHTS and thing["metadata"]["name"].startswith(OURS)
    ]
    made += registrations(objects)
    for name in (OWN, OTHER):
        metadata = {"name": name, "labels": {"example.com/rack": "7"}}
        made.append({"apiVersion": "v1", "kind": "Node", "metadata": metadata})
    for name in (NAMESPACE, SENTRY, "default", "labelled-rights", "nvidia-rights"):
        labels = {EXEMPT_LABEL: "disabled"} if name.startswith("labelled") else {}
        api.apply(a_namespace(name, labels))
        control_plane.ensure_service_account(name)
    for thing in made:
        api.apply(thing)
    pairs = [one(objects, kind, name) for name in FENCES for kind in (POLICY, BINDING)]
    for thing in pairs:
        apply(api, thing)
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(
            urllib3.PoolManager(ca_certs=str(control_plane.state / "ca.crt"))
        )
        for namespace in ("default", "labelled-rights", "nvidia-rights"):
            for user in ("alice", "bob", "carol"):
                allow(api, user, namespace, ALL)
        for user, rule in (
            *(("alice", ENTERS), ("carol", OF_NAMESPACES)),
            *(("dora", OF_NAMESPACES), ("dora", EXEMPTS)),
        ):
            stack.enter_context(granted(api, user, rule))
        found = Fences(control_plane, objects, pool)
        stack.callback(found.close)
        wait_until("each is in force", lambda: _say(found) == list(FENCES))
        yield found
        for thing in (*reversed(pairs), *made):
            api.delete(thing)
        wait_until("none is in force", lambda: not _say(found))


def _say(fences: Fences) -> list[str]:
    """Return the fences that deny their probe."""
    path = path_of(fences.pod("has the sidecar"))
    labelled = {"name": "made", "labels": {EXEMPT_LABEL: "x"}}
    said = (
        denial(
            lambda: fences.who("the webhook").request(
                "PATCH", f"{path}/status", {"metadata": {"labels": {"a": "b"}}}, dryRun="All",
                content_type=MERGE,
            )
        ),
        denial(
            lambda: fences.who("bob").request("POST", f"{path}/attach", container="vram-enforcer")
        ),
        denial(
            lambda: fences.who("carol").create(
                {"apiVersion": "v1", "kind": "Namespace", "metadata": labelled}, dry_run=True
            )
        ),
    )  # fmt: skip
    return [name for name, why in zip(FENCES, said, strict=True) if name in why]
