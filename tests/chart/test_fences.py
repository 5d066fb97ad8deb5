"""Parts of the fence that need no rules: actor, attempt and response for each object.

A row has an actor, an attempt, and the policy and sentence that deny it, or another component's
answer; without these it is allowed. Our own code under the fence is tested in
test_fences_and_our_code.py, the parts with rules in test_second_line.py and test_fence_devices.py.
"""

from __future__ import annotations

import copy
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from tests.chart.admission_policies import GROUP, is_denied_by
from tests.chart.fenced import MERGE, STRATEGIC
from tests.chart.fences import (
    ACCOUNTS,
    ENFORCER,
    EXEMPT_LABEL,
    EXEMPTION,
    FRACTION,
    GIVEN,
    GPU,
    HELD,
    LABEL,
    LIMIT,
    OTHER,
    OWN,
    TAINT,
    VISIBLE,
    WAITS,
    Fences,
    path_of,
)
from tests.chart.recorded_reviews import denial
from tests.support.api_client import Api
from tests.support.charts import NAMESPACE
from tests.support.schedulers import SCHEDULER
from webhook import names
from webhook.adapters.kube.certificates import KINDS
from webhook.adapters.kube.release_objects import BIND_WEBHOOK
from webhook.core.node.events import EventReason
from webhook.core.placement.assignment_codec import config_map_name
from webhook.names import ASSIGNMENTS_LABEL, ASSIGNMENTS_NODE_ANNOTATION, WEBHOOK_CONFIGURATION

Tries = Callable[[Fences, Api], Any]

Json = dict[str, Any]

AGENT, SENTRY, WEBHOOK = "the agent", "the sentry", "the webhook"
ADMIN, TENANT = "the administrator", "bob"
MUTATING, VALIDATING = (f"{GROUP}/{kind.lower()}s/{WEBHOOK_CONFIGURATION}" for kind in KINDS)
ENTRIES = {MUTATING: "mutate.vramwarden.io", VALIDATING: "validate.vramwarden.io"}
CA = "YSBDQQ=="

# Expected messages: the policy (empty for another component) and a sentence.
SAYS = {
    "waiting pods": "only pods with VRAM that are bound and have no GPU yet",
    "annotations": "only annotations of a pod, through its status",
    "marks": "only vramwarden.io/gpu-waits, or in its place vramwarden.io/gpu",
    "the CA": "only the CA and the path of bind",
    "the owner": "no owner but its namespace",
    "agent's node": "its own node only",
    "agent's spec": "may not change a node's spec",
    "agent's prefix": "only what begins with vramwarden.io/",
    "agent's status": "nothing of a node's status but amounts and its condition",
    "agent's Events": "Events of its own node only",
    "agent's name": "Events only as vramwarden.io/agent",
    "agent's taint": f"may take the taint {TAINT} off, and change nothing else",
    "sentry's pods": "only pods with VRAM of its own node",
    "sentry's condition": "nothing of a pod but its condition",
    "CapHeld": "only write that vramwarden.io/CapHeld is False",
    "sentry's Events": "Events only as vramwarden.io/sentry",
    "scheduler": "only a scheduler binds a pod with VRAM",
    "its node's Events": "Events of pods and of its own node only",
}
NO_NODE = ("", "does not have a host assigned")
"""Response without a kubelet after the request was allowed."""
ENTERED = (ENFORCER, "Name another container with --container")
EXEMPTED = (EXEMPTION, "by who may `exempt` on `namespaces`")


def row(what: str, who: str, tries: Tries, *answers: tuple[str, str] | str):
    """Return a row; a key of `SAYS` selects a sentence of the accounts' policy."""
    said = [answer if isinstance(answer, tuple) else (ACCOUNTS, SAYS[answer]) for answer in answers]
    return pytest.param(who, tries, said, id=f"{who}: {what}")


def rows(what: str, who: str, tries: Callable[[Any], Tries], cases: Json, *answers: Any) -> list:
    """Return a row per case, with the case's name in the description."""
    return [row(what.format(name), who, tries(case), *answers) for name, case in cases.items()]


def no(verb: str) -> tuple[str, str]:
    """Return RBAC's message for a missing permission."""
    return "", f"cannot {verb} "


def check(fences: Fences, who: str, tries: Tries, said: list[tuple[str, str]]) -> None:
    actor = fences.who(who)
    why = denial(lambda: tries(fences, actor))
    if not said:
        assert why == ""
        return
    assert any(text in why and is_denied_by(why, name) is bool(name) for name, text in said), why


# Attempts, on existing objects


def asks(method: str, path: str, body: Json | None = None, **query: str) -> Tries:
    return lambda _, api: api.request(method, path, body, **query)


def patches(path: str, change: Json, kind: str = MERGE) -> Tries:
    return lambda _, api: api.request("PATCH", path, change, content_type=kind, dryRun="All")


def writes(pod: str, change: Json, part: str = "/status", kind: str = STRATEGIC) -> Tries:
    """Change one of `PODS`, by default its status."""
    return lambda fences, api: api.request(
        "PATCH", path_of(fences.pod(pod), part), change, content_type=kind, dryRun="All"
    )


def annotates(pod: str, notes: Json) -> Tries:
    return writes(pod, {"metadata": {"annotations": notes}}, kind=MERGE)


def uses(method: str, pod: str, part: str = "", **query: str) -> Tries:
    """Send a request about one of `PODS`; a write sends the pod unchanged."""

    def tries(fences: Fences, api: Api) -> Any:
        found = fences.pod(pod)
        body = found if method == "PUT" else None
        return api.request(method, path_of(found, part), body, dryRun="All", **query)

    return tries


def binds(pod: str, part: str = "/binding", **metadata: Json) -> Tries:
    """Bind one of `PODS`; an empty part means the older collection of bindings."""

    def tries(fences: Fences, api: Api) -> Any:
        found = fences.pod(pod)
        about = {"name": found["metadata"]["name"], "namespace": found["metadata"]["namespace"]}
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {**about, **metadata},
            "target": {"apiVersion": "v1", "kind": "Node", "name": OWN},
        }
        path = (
            path_of(found, part) if part else f"{path_of(found).rpartition('/pods/')[0]}/bindings"
        )
        return api.request("POST", path, body, dryRun="All")

    return tries


def an_event(kind: str = "Pod", name: str = "train", namespace: str = "default", **fields: Any):
    """Return an Event without the fields that are None."""
    about = {"apiVersion": "v1", "kind": kind, "name": name, "uid": name}
    if kind == "Pod":
        about["namespace"] = namespace
    event = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"generateName": "made-up-", "namespace": namespace},
        "eventTime": "2026-11-22T12:00:00.000000Z",
        "regarding": about,
        "type": "Warning",
        "reason": EventReason.CAP_EXCEEDED,
        "action": "Stop",
        "note": "an example",
        **fields,
    }
    return {key: value for key, value in event.items() if value is not None}


REPORTERS = {"agent": names.AGENT_REPORTER, "sentry": names.SENTRY_REPORTER}


def instance_of(api: Api) -> str:
    """Return the name of the pod in which the client runs."""
    return getattr(api, "pod", "") or "replica"


def says(part: str, *about: str, **fields: Any) -> Tries:
    """Write an Event as a vramwarden program does, in the name of its own pod."""
    event = an_event(*about, **{"reportingController": REPORTERS[part], **fields})

    def tries(_: Fences, api: Api) -> Json:
        return api.create({"reportingInstance": instance_of(api), **event}, dry_run=True)

    return tries


def touches(method: str, part: str, *about: str, **fields: Any) -> Tries:

    def tries(fences: Fences, api: Api) -> Json:
        event = an_event(*about, **{"reportingController": REPORTERS[part], **fields})
        made = fences.admin.create({"reportingInstance": instance_of(api), **event})
        path = f"/apis/events.k8s.io/v1/namespaces/default/events/{made['metadata']['name']}"
        series = {"series": {"count": 2, "lastObservedTime": "2026-11-22T12:00:01.000000Z"}}
        body, kind = (series, MERGE) if method == "PATCH" else (made, "application/json")
        try:
            return api.request(method, path, body, content_type=kind, dryRun="All")
        finally:
            fences.admin.request("DELETE", path)

    return tries


def node(change: Json, name: str = OWN) -> Tries:
    """Change a node or its status, as the agent does."""
    part, kind = ("/status", STRATEGIC) if "status" in change else ("", MERGE)
    return patches(f"/api/v1/nodes/{name}{part}", change, kind)


def notes(**fields: Any) -> Json:
    return {"metadata": fields}


# The webhook: pods that wait

WAITING = {
    "gives it a GPU": {**GIVEN, WAITS: None},
    **{
        f"and the limit {item}": {**GIVEN, LIMIT: item, WAITS: None} for item in ("Auto", "Require")
    },
    "says another reason": {WAITS: "another reason"},
    "takes the reason away": {WAITS: None},
    "changes nothing": {},
}
IN_PART = {
    "the GPU alone": {GPU: "GPU-1", WAITS: None},
    "the devices alone": {VISIBLE: "GPU-1", WAITS: None},
    "the fraction alone": {FRACTION: "0.1000"},
    "all but the GPU": {VISIBLE: "GPU-1", FRACTION: "0.1000"},
    "all but the fraction": {GPU: "GPU-1", VISIBLE: "GPU-1", WAITS: None},
    **{f"{key} empty": {**GIVEN, key: "", WAITS: None} for key in (GPU, VISIBLE, FRACTION)},
    **{f"the limit {item!r}": {**GIVEN, LIMIT: item, WAITS: None} for item in ("", "Off", "true")},
    "the limit alone": {LIMIT: "Auto"},
    "the limit without a fraction": {GPU: "GPU-1", VISIBLE: "GPU-1", LIMIT: "Auto", WAITS: None},
    "a GPU and another reason": {**GIVEN, WAITS: "still"},
    "a GPU and the reason": GIVEN,
    "another's annotation changed": {**GIVEN, WAITS: None, "example.com/a": "2"},
    "another's annotation taken away": {**GIVEN, WAITS: None, "example.com/a": None},
    "another's annotation alone": {"example.com/b": "1"},
    "the amount": {**GIVEN, WAITS: None, "vramwarden.io/gpu-memory": "1Mi"},
    "the mark of admission": {WAITS: "x", "vramwarden.io/admitted": "v1 x y"},
}
BESIDES = {
    "a label": notes(labels={"app": "web"}),
    "our label": notes(labels={"vramwarden.io/managed": None}),
    "a finalizer": notes(finalizers=["example.com/x"]),
    "the phase": {"status": {"phase": "Failed"}},
    "a condition": {"status": {"conditions": [{"type": "Ready", "status": "True"}]}},
}
NOT_WAITING = (
    "is not bound", "has no label of ours", "has another label", "has a GPU", "has an empty GPU"
)  # fmt: skip


def besides(change: Json) -> Tries:
    """Give a pod its GPU, and also change another field."""
    metadata = {**change.get("metadata", {}), "annotations": {**GIVEN, WAITS: None}}
    return writes("waits", {**change, "metadata": metadata}, kind=MERGE)


SECRETS_PATH = f"/api/v1/namespaces/{NAMESPACE}/secrets"
WAITING_PODS = [
    *rows("{} of a pod that waits", WEBHOOK, lambda it: annotates("waits", it), WAITING),
    *rows("{} of a pod that is bound", WEBHOOK, lambda it: annotates("is bound", it), WAITING),
    *rows("writes {}", WEBHOOK, lambda it: annotates("waits", it), IN_PART, "marks"),
    *rows("changes {}", WEBHOOK, besides, BESIDES, "annotations"),
    *(
        row(f"{what}, a pod that {pod}", WEBHOOK, tries(pod), "waiting pods")
        for pod in NOT_WAITING
        for what, tries in {
            "gives it a limit": lambda pod: annotates(pod, {LIMIT: "Auto"}),
            "gives another GPU": lambda pod: annotates(pod, {**GIVEN, GPU: "GPU-2"}),
            "says a reason": lambda pod: annotates(pod, {WAITS: "x"}),
            "takes the GPU away": lambda pod: annotates(pod, {GPU: None}),
            "deletes": lambda pod: uses("DELETE", pod),
        }.items()
    ),
    row("deletes a pod that waits", WEBHOOK, uses("DELETE", "waits")),
    row("writes status", ADMIN, writes("has a GPU", BESIDES["a label"] | BESIDES["the phase"])),
    row("deletes a pod that has a GPU", TENANT, uses("DELETE", "has a GPU")),
    row("reads the key", WEBHOOK, asks("GET", f"{SECRETS_PATH}/vramwarden-key"), no("get")),
    row("lists secrets", WEBHOOK, asks("GET", SECRETS_PATH), no("list")),
]


# The webhook: where the API server sends reviews

ELSEWHERE = {
    "another Service": {"service": {"name": "other"}},
    "another namespace": {"service": {"namespace": "other"}},
    "another port": {"service": {"port": 8443}},
    "another path": {"service": {"path": "/other"}},
    "no path": {"service": {"path": None}},
    "a server of one's own": {"url": "https://example.com/mutate", "service": None},
}
SECRETS = {
    "apiGroups": [""],
    "apiVersions": ["v1"],
    "resources": ["secrets"],
    "operations": ["CREATE"],
}
WIDER = {
    "rules": {"rules": [SECRETS]},
    "conditions": {"matchConditions": [{"name": "all", "expression": "true"}]},
    "no conditions": {"matchConditions": None},
    "namespaces": {"namespaceSelector": {"matchExpressions": None}},
    "objects": {"objectSelector": {"matchLabels": {"a": "b"}}},
    "a policy": {"failurePolicy": "Fail"},
    "a time": {"timeoutSeconds": 30},
    "a reinvocation": {"reinvocationPolicy": "Never"},
    "one more": {
        "name": "more.vramwarden.io",
        "clientConfig": {"url": "https://example.com/all"},
        "rules": [SECRETS],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    },
    "one less": {"$patch": "delete"},
}


def calls(entry: Json, path: str = MUTATING) -> Tries:
    """Change one webhook of a configuration, by default vramwarden's."""
    return patches(path, {"webhooks": [{"name": ENTRIES[path], **entry}]}, STRATEGIC)


def registered(change: Json) -> Tries:
    return patches(MUTATING, change, STRATEGIC)


def to(target: Json, path: str = MUTATING, **entry: str) -> Tries:
    return calls({"clientConfig": {"caBundle": CA, **target}, **entry}, path)


def owned_by(kind: str, name: str) -> Json:
    return notes(ownerReferences=[{"apiVersion": "v1", "kind": kind, "name": name, "uid": "1"}])


METADATA = {
    "a label": notes(labels={"a": "b"}),
    "an injector of CAs": notes(annotations={"cert-manager.io/inject-ca-from": "other/other"}),
    "a finalizer": notes(finalizers=["example.com/x"]),
    "another namespace as owner": owned_by("Namespace", "default"),
    "a node as owner": owned_by("Node", NAMESPACE),
}
ADVICE = "advise.vramwarden.io"
CALLED = [
    *rows("has mutation sent to {}", WEBHOOK, to, ELSEWHERE, "the CA"),
    *rows("has validation sent to {}", WEBHOOK, lambda it: to(it, VALIDATING), ELSEWHERE, "the CA"),
    *(
        row(f"has bindings sent to {what}", WEBHOOK,
            to(ELSEWHERE[what], name=BIND_WEBHOOK), "the CA")
        for what in ("another Service", "a server of one's own")
    ),
    *(row(f"writes the CA of {ENTRIES[path]}", WEBHOOK, to({}, path)) for path in ENTRIES),
    row("writes the CA where somebody set a URL", WEBHOOK, to({}, VALIDATING, name=ADVICE)),
    *(
        row(f"changes {what} where somebody set it", WEBHOOK,
            calls({"name": ADVICE, **entry}, VALIDATING), "the CA")
        for what, entry in {
            "a URL": {"clientConfig": {"url": "https://example.com/other"}},
            "a first condition": {"matchConditions": [{"name": "none", "expression": "false"}]},
        }.items()
    ),
    *rows("widens {}", WEBHOOK, calls, WIDER, "the CA"),
    row("leaves none", WEBHOOK, registered({"webhooks": None}), "the CA"),
    *rows("gives it {}", WEBHOOK, registered, METADATA, "the owner"),
    row("gives it its namespace", WEBHOOK, registered(owned_by("Namespace", NAMESPACE))),
    row("widens rules", ADMIN, calls(WIDER["rules"])),
    row("gives it another owner", ADMIN, registered(owned_by("Namespace", "default"))),
]  # fmt: skip


# The agent: its node

LABELS = {
    "vramwarden.io/gpu": "true",
    "vramwarden.io/gpu-memory-mib": "81920",
    names.NODE_QUESTION_LABEL: "1764000000",
    names.NODE_SENTRY_LABEL: "true",
}
ACTING = {
    "type": names.SENTRY_ACTING_CONDITION, "status": "False", "reason": "NoSentry", "message": "x",
    "lastTransitionTime": "2026-11-27T20:00:00Z",
}  # fmt: skip
PREFIXED = {
    "another's label": notes(labels={"example.com/rack": "8"}),
    "a label that draws pods": notes(labels={"disk": "ssd"}),
    "a label taken away": notes(labels={"example.com/rack": None}),
    "another's annotation": notes(annotations={"example.com/a": "1"}),
    "another's capacity": {"status": {"capacity": {"nvidia.com/gpu": "8"}}},
    "another's allocatable": {"status": {"allocatable": {"cpu": "1000"}}},
}
SPECS = {
    "a taint": {"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}},
    "no more pods": {"spec": {"unschedulable": True}},
}
STATUS = {
    "where the API server finds its kubelet": {
        "status": {"addresses": [{"type": "InternalIP", "address": "10.9.9.9"}]}
    },
    "whether it is ready": {"status": {"conditions": [{"type": "Ready", "status": "False"}]}},
    "that it is not ready, beside its own condition": {
        "status": {"conditions": [ACTING, {"type": "Ready", "status": "False"}]}
    },
    "another's condition": {"status": {"conditions": [{**ACTING, "type": "example.com/x"}]}},
    "what it runs": {"status": {"nodeInfo": {"kubeletVersion": "v1.0.0"}}},
    "that it is never deleted": notes(finalizers=["example.com/a"]),
    "with whom it is deleted": owned_by("Pod", "a"),
}
SHOWS = {
    "labels": notes(labels=LABELS),
    "amounts": {"status": {"capacity": {"vramwarden.io/vram": "1Gi"}}},
    "that no sentry acts": {"status": {"conditions": [ACTING]}},
    "that a sentry acts": {"status": {"conditions": [{**ACTING, "status": "True"}]}},
    "nothing of its sentry": {
        "status": {"conditions": [{"type": names.SENTRY_ACTING_CONDITION, "$patch": "delete"}]}
    },
}
MAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
ELSEWHERE_READ = ("/api/v1/namespaces/default/configmaps", "/api/v1/secrets")
LIST_OF_OWN = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": config_map_name(OWN), "namespace": NAMESPACE},
}
NODES = [
    *rows("changes {}", AGENT, node, PREFIXED, "agent's prefix"),
    *rows("changes {}", AGENT, node, SPECS, "agent's spec"),
    *rows("changes {}", AGENT, node, STATUS, "agent's status"),
    *rows("shows {}", AGENT, node, SHOWS),
    *rows("shows {} on another node", AGENT, lambda it: node(it, OTHER), SHOWS, "agent's node"),
    *rows("shows {}", "the agent of another node", lambda it: node(it, OTHER), SHOWS),
    row("changes another's label", ADMIN, node(PREFIXED["another's label"])),
    *(
        row(f"lists {path}", AGENT, asks("GET", path), no("list"))
        for path in ELSEWHERE_READ
    ),
    *(
        row(f"{verb}s the list of who has its GPUs", AGENT,
            asks(method, f"{MAPS}/{config_map_name(OWN)}", LIST_OF_OWN), no(verb))
        for verb, method in (("update", "PUT"), ("delete", "DELETE"))
    ),
]  # fmt: skip


# The sentry: pods of its node


def tells(condition: Json = HELD, **status: Any) -> Json:
    return {"status": {"conditions": [condition], **status}}


OTHER_CHANGES = {
    "the phase": tells(phase="Failed"),
    "the reason": tells(reason="Evicted"),
    "its address": tells(podIP="10.1.0.8", podIPs=[{"$patch": "replace"}, {"ip": "10.1.0.8"}]),
    "its containers": tells(containerStatuses=[{"name": "main", "restartCount": 7}]),
    "its sidecars": tells(initContainerStatuses=[{"name": "vram-enforcer", "ready": False}]),
    "its node's address": tells(hostIP="10.0.0.9"),
    "when it started": tells(startTime=None),
    "readiness": {"status": {"conditions": [HELD, {"type": "Ready", "status": "False"}]}},
    "a condition of others": {
        "status": {"conditions": [HELD, {"type": "example.com/x", "status": "True"}]}
    },
    "a condition taken away": {
        "status": {"conditions": [HELD, {"type": "Ready", "$patch": "delete"}]}
    },
    "a label": {**tells(), **notes(labels={"a": "b"})},
    "our label": {**tells(), **notes(labels={"vramwarden.io/managed": None})},
    "an annotation": {**tells(), **notes(annotations={GPU: "GPU-1"})},
    "an annotation taken away": {**tells(), **notes(annotations={"example.com/a": None})},
    "a finalizer": {**tells(), **notes(finalizers=["example.com/x"])},
}
SAID = {
    "that the cap was held": tells({**HELD, "status": "True"}),
    "that it does not know": tells({**HELD, "status": "Unknown"}),
    "another reason": tells({**HELD, "reason": "Other"}),
    "no reason": tells({**HELD, "reason": None}),
}
TAKEN_BACK = {"status": {"conditions": [{"type": HELD["type"], "$patch": "delete"}]}}
NOT_ITS_OWN = ("is on another node", "is not bound", "has no label of ours", "has another label")
CAPS = [
    *(
        row(f"says so of a pod that {pod}", SENTRY, writes(pod, tells()))
        for pod in ("is bound", "has no status")
    ),
    *(
        row(f"says so of a pod that {pod}", SENTRY, writes(pod, tells()), "sentry's pods")
        for pod in NOT_ITS_OWN
    ),
    row("says so", "the sentry of another node", writes("is on another node", tells())),
    *(
        row(f"says so of a pod that {pod}", "the sentry of no pod",
            writes(pod, tells()), "sentry's pods")
        for pod in ("is bound", "is not bound")
    ),
    *rows("changes {}", SENTRY, lambda it: writes("is bound", it), OTHER_CHANGES,
          "sentry's condition"),
    *rows("says {}", SENTRY, lambda it: writes("is bound", it), SAID, "CapHeld"),
    row("takes back what it said", SENTRY, writes("was told of", TAKEN_BACK), "CapHeld"),
    row("gets a pod", SENTRY, uses("GET", "is bound"), no("get")),
    row("deletes a pod", SENTRY, uses("DELETE", "is bound"), no("delete")),
    row("updates a pod", SENTRY, uses("PUT", "is bound", "/status"), no("update")),
    row("patches a pod", SENTRY, writes("is bound", notes(labels={"a": "b"}), ""), no("patch")),
    row("writes status", ADMIN, writes("is on another node", {"status": {"phase": "Failed"}})),
    *(
        row(f"lists {path}", SENTRY, asks("GET", path), no("list"))
        for path in (MAPS, *ELSEWHERE_READ, "/api/v1/pods")
    ),
    row("deletes a list", SENTRY, asks("DELETE", f"{MAPS}/gpu-assignments-x"), no("delete")),
]  # fmt: skip


# Bindings while no replica responds: vramwarden's keys are not removed.

ALL_GPUS = {GPU: "GPU-1,GPU-2", VISIBLE: "all"}
KEYS = {
    "all GPUs": {"annotations": ALL_GPUS},
    "an annotation of ours": {"annotations": {"vramwarden.io/new": ""}},
    "our label": {"labels": LABEL},
}
BINDINGS = [
    *(
        row(f"binds a pod by {part or 'the collection'}", TENANT, binds("is not bound", part))
        for part in ("/binding", "")
    ),
    row("binds with keys of others", TENANT, binds("is not bound", annotations={"a.io/b": "1"})),
    *(
        row(f"binds with {what} by {part or 'the collection'}", who,
            binds("is not bound", part, **keys), *said)
        for who, said in ((TENANT, ["scheduler"]), (ADMIN, ["scheduler"]), (SCHEDULER, []))
        for what, keys in KEYS.items()
        for part in ("/binding", "")
    ),
    *(
        row(f"binds one that is in {namespace}", TENANT,
            binds(f"is in {namespace}", annotations=ALL_GPUS))
        for namespace in ("labelled-rights", "nvidia-rights")
    ),
]  # fmt: skip


# Events of agent and sentry

OLDER = {"apiVersion": "v1", "eventTime": None, "regarding": None, "note": None, "message": "x"}
MINE = ("Node", OWN)
EVENTS = [
    row("of a pod", WEBHOOK, says("sentry"), no("create")),
    row("of its node", AGENT, says("agent", *MINE)),
    *rows("of {}", AGENT, lambda it: says("agent", *it), {
        "another node": ("Node", OTHER),
        "a pod": ("Pod", OWN),
        "no kind that exists": ("node", OWN),
        "no name": ("Node", ""),
        "no kind": ("", OWN),
    }, "agent's Events"),
    row("as another", AGENT, says("agent", *MINE, reportingController="x/y"), "agent's name"),
    *rows("of {}", "the agent of no pod", lambda it: says("agent", "Node", it),
          {"our node": OWN, "no node": ""}, "agent's Events"),
    row("of the node of an agent", ADMIN, says("agent", "Node", OTHER)),
    row("elsewhere", AGENT, says("agent", *MINE, NAMESPACE), no("create")),
    row("gets one", AGENT, touches("GET", "agent", *MINE), no("get")),
    row("updates one", AGENT, touches("PUT", "agent", *MINE), no("update")),
    row("deletes one", AGENT, touches("DELETE", "agent", *MINE), no("delete")),
    row("of a pod", SENTRY, says("sentry")),
    row("of a pod elsewhere", SENTRY, says("sentry", "Pod", "train", "labelled-rights")),
    row("of its node", SENTRY, says("sentry", *MINE, reason=EventReason.UNMANAGED)),
    *rows("{}", SENTRY, lambda it: says("sentry", **it), {
        "as another reporter": {"reportingController": "kubelet"},
        "as nearly this one": {"reportingController": "vramwarden.io/sentry-2"},
        "as another pod of ours": {"reportingInstance": "vramwarden-sentry-other"},
        "about something else": {"reason": "Killing"},
    }, "sentry's Events"),
    *rows("{}", SENTRY, lambda it: says("sentry", **it), {
        "as nobody": {"reportingController": None},
        "as no pod": {"reportingInstance": ""},
        "without a reason": {"reason": None},
    }, ("", "Required value")),
    *rows("of {}", SENTRY, lambda it: says("sentry", *it), {
        "another node": ("Node", OTHER),
        "no node": ("Node", ""),
        "something else": ("Namespace", OWN),
        "no kind": ("", "train"),
        "no kind that exists": ("pod", "train"),
    }, "its node's Events"),
    row("of a pod", "the sentry of no pod", says("sentry", reportingInstance="x"),
        "sentry's Events"),
    row("of no node", "the sentry of nowhere pod", says("sentry", "Node", ""), "its node's Events"),
    # The Event has fields that the fence does not know.
    row("of the older kind", SENTRY,
        says("sentry", **OLDER, involvedObject=an_event()["regarding"]), no("create")),
    row("of others", ADMIN, says("sentry")),
    row("counts its own", SENTRY, touches("PATCH", "sentry")),
    row("counts another pod's", SENTRY, touches("PATCH", "sentry", reportingInstance="x"),
        "sentry's Events"),
    row("counts another's", SENTRY, touches("PATCH", "sentry", reportingController="y/z"),
        "sentry's Events"),
]  # fmt: skip


# Entering the sidecar, and exempting a namespace


def enters(how: str, pod: str = "has the sidecar", container: str = "vram-enforcer") -> Tries:
    """Start a program in a container, or attach to the container."""
    query = {"stdout": "true", **({"command": "id"} if how == "exec" else {})}
    if container:
        query["container"] = container
    return lambda fences, api: api.request("POST", path_of(fences.pod(pod), f"/{how}"), **query)


def labels(namespace: str, part: str, **wanted: str | None) -> Tries:
    """Change labels of a namespace in one of three ways; `ours` is the label that exempts."""
    change = {{"ours": EXEMPT_LABEL}.get(key, key): value for key, value in wanted.items()}

    def tries(_: Fences, api: Api) -> Json:
        path = f"/api/v1/namespaces/{namespace}"
        if part != "/finalize":
            return patches(path + part, notes(labels=change))(_, api)
        found = api.request("GET", path)
        after = {**(found["metadata"].get("labels") or {}), **change}
        found["metadata"]["labels"] = {k: v for k, v in after.items() if v is not None}
        return api.request("PUT", path + part, found, dryRun="All")

    return tries


def makes(**wanted: str) -> Tries:
    found = {{"ours": EXEMPT_LABEL}.get(key, key): value for key, value in wanted.items()}
    metadata = {"name": f"made-{uuid.uuid4().hex[:8]}", "labels": found}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
    return lambda _, api: api.create(namespace, dry_run=True)


DEFAULT, EXEMPT = "default", "labelled-rights"
RIGHTS = [
    *(
        row(f"{how}, {what}", who, enters(how, *where), *answers)
        for how in ("exec", "attach")
        for what, who, where, answers in (
            ("the sidecar", TENANT, (), [ENTERED]),
            ("her container", TENANT, ("has the sidecar", "main"), [NO_NODE]),
            ("no container", TENANT, ("has the sidecar", ""), [NO_NODE]),
            # Only clients use the annotation for the default container.
            ("no container, and the sidecar is the default", TENANT,
             ("names the sidecar as default", ""),
             [("", "a container name must be specified"), NO_NODE]),
            ("the sidecar, with the right to", "alice", (), [NO_NODE]),
            ("the sidecar", ADMIN, (), [NO_NODE]),
            ("that name where an exempt label is", TENANT, ("is in labelled-rights",), [NO_NODE]),
            ("that name where an exempt name is", TENANT, ("is in nvidia-rights",), [NO_NODE]),
        )
    ),
    *(
        row(f"{what}, by {part or 'itself'}", who, labels(namespace, part, **wanted), *answers)
        for part in ("", "/status", "/finalize")
        for what, who, namespace, wanted, answers in (
            ("exempts", "carol", DEFAULT, {"ours": "disabled"}, [EXEMPTED]),
            ("writes another value", "carol", DEFAULT, {"ours": "x"}, [EXEMPTED]),
            ("writes no value", "carol", DEFAULT, {"ours": ""}, [EXEMPTED]),
            ("takes it away", "carol", EXEMPT, {"ours": None}, [EXEMPTED]),
            ("takes its value away", "carol", EXEMPT, {"ours": "x"}, [EXEMPTED]),
            ("labels what is exempt", "carol", EXEMPT, {"app": "web"}, []),
            ("labels what is not", "carol", DEFAULT, {"app": "web"}, []),
            ("exempts, with the right to", "dora", DEFAULT, {"ours": "disabled"}, []),
            ("exempts", ADMIN, DEFAULT, {"ours": "disabled"}, []),
        )
    ),
    *(
        row(f"makes a namespace with {wanted}", who, makes(**wanted), *answers)
        for who, wanted, answers in (
            *(("carol", {"ours": value}, [EXEMPTED]) for value in ("disabled", "x", "")),
            ("carol", {"app": "web"}, []),
            ("carol", {}, []),
            ("dora", {"ours": "disabled"}, []),
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("who", "tries", "said"), [*WAITING_PODS, *CALLED, *NODES, *CAPS, *BINDINGS, *EVENTS, *RIGHTS]
)
def test_what_the_api_server_answers(fences, who, tries, said):
    check(fences, who, tries, said)


# The startup taint, if the chart sets one

OURS = {"key": TAINT, "value": "true", "effect": "NoSchedule"}
TWICE = {"key": TAINT, "effect": "NoExecute"}
THEIRS = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
THREE = {"taints": [THEIRS, OURS, TWICE]}


@pytest.mark.parametrize(
    ("before", "spec", "said", "name"),
    [
        pytest.param(THREE, {"taints": [THEIRS]}, [], OWN, id="all of its own"),
        pytest.param({"taints": [OURS]}, {"taints": None}, [], OWN, id="the only one"),
        *(
            pytest.param(THREE, spec, ["agent's taint"], OWN, id=what)
            for what, spec in {
                "another taint": {"taints": [OURS]},
                "all taints": {"taints": None},
                "a taint added": {"taints": [THEIRS, {"key": "a", "effect": "NoExecute"}]},
                "a taint changed": {"taints": [{**THEIRS, "effect": "NoExecute"}]},
                "one of two of its own": {"taints": [THEIRS, OURS]},
                "something besides": {"taints": [THEIRS], "unschedulable": True},
                "something else": {"unschedulable": True},
                "an address besides": {"taints": [THEIRS], "podCIDR": "10.9.0.0/24"},
            }.items()
        ),
        pytest.param(
            {"taints": [OURS], "unschedulable": True},
            {"taints": None, "unschedulable": None},
            ["agent's taint"],
            OWN,
            id="a cordon besides",
        ),
        pytest.param({"taints": [OURS]}, {"taints": None}, ["agent's node"], OTHER, id="elsewhere"),
    ],
)
def test_the_agent_takes_its_startup_taint_off_and_nothing_else(tainted, before, spec, said, name):
    path, nothing = f"/api/v1/nodes/{name}", {"taints": None, "unschedulable": None}
    for made in ({"providerID": "example://1", **before}, spec, nothing):
        if made is spec:
            check(tainted, *row("", AGENT, node({"spec": spec}, name), *said).values)
        else:
            tainted.admin.request("PATCH", path, {"spec": made}, content_type=MERGE)


# ConfigMaps that the webhook creates, changes and deletes

LONG = ".".join(["n" * 60] * 4)
HASHED = config_map_name(LONG)


@pytest.mark.parametrize(
    ("name", "node", "allowed"),
    [
        ("gpu-assignments-node-1", "node-1", "create change delete"),
        (HASHED, LONG, "create change delete"),
        ("gpu-assignments-node-1", "", "change delete"),
        ("gpu-assignments-node-1", "node-2", "change delete"),
        ("gpu-assignments-", "", "change delete"),
        (HASHED, "node-1", "change delete"),
        ("vramwarden-fence", "", "create change"),
        ("vramwarden-policies", "", ""),
        ("kube-root-ca.crt", "", ""),
        ("my-gpu-assignments-node-1", "node-1", ""),
    ],
)
def test_it_writes_no_config_map_but_its_own_and_deletes_lists_alone(fences, name, node, allowed):
    us, admin = fences.who(WEBHOOK), fences.admin
    metadata = {"name": name + ("node-1" if name.endswith("-") else ""), "namespace": NAMESPACE}
    if node:
        metadata["labels"] = {ASSIGNMENTS_LABEL: "true"}
        metadata["annotations"] = {ASSIGNMENTS_NODE_ANNOTATION: node}
    made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"whole": "{}"}}
    unnamed = copy.deepcopy(made)
    del unnamed["metadata"]["name"]
    unnamed["metadata"]["generateName"] = name
    path = f"{MAPS}/{metadata['name']}"
    admin.delete(made)
    said = {
        "create": denial(lambda: us.create(made, dry_run=True)),
        "a name that is made up": denial(lambda: us.create(unnamed, dry_run=True)),
    }
    admin.create(made)
    said["change"] = denial(lambda: us.request("PUT", path, made, dryRun="All"))
    said["delete"] = denial(lambda: us.request("DELETE", path, dryRun="All"))
    admin.delete(made)
    assert {what for what, why in said.items() if not why} == set(allowed.split())
    assert all(is_denied_by(why, ACCOUNTS) for why in said.values() if why)


# ConfigMaps that the programs of a node read


@pytest.mark.parametrize("who", [AGENT, SENTRY])
def test_programs_of_a_node_read_config_maps_of_the_release_and_no_more(fences, who):
    """See SECURITY.md: lists are named after nodes, which RBAC cannot express."""

    def may(verb, resource="configmaps", namespace=NAMESPACE):
        attributes = {"verb": verb, "resource": resource, "namespace": namespace}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        return fences.who(who).request("POST", path, review)["status"]["allowed"]

    assert may("get")
    assert may("watch")
    for verb in ("list", "create", "update", "patch", "delete", "deletecollection"):
        assert not may(verb), verb
    for resource in ("secrets", "pods", "serviceaccounts"):
        assert not may("get", resource), resource
    assert not may("get", namespace="default")
