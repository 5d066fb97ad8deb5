"""State of a pod with a demand, as placement needs it.

A pod counts with its amount in `resources`, which the scheduler and the kubelet check. Annotations
are only checked by the webhook, and not in exempt namespaces. In an exempt namespace, a pod with
only the annotation `gpu-memory: 8GB` reserves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from sys import intern

from webhook.core.bounds import MAX_REASON_LENGTH, MAX_SENTENCE_LENGTH
from webhook.core.formatting import MAX_BYTES
from webhook.core.nvidia.variables import CHOSEN_PATH, VISIBLE_DEVICES_ENV
from webhook.core.placement.cap_terms import Admission, CapTerms, build_terms, read_terms
from webhook.core.placement.fit import Need
from webhook.core.pod.demand import read_demand
from webhook.core.pod.fields import Json, as_object, get_object, get_string
from webhook.core.pod.findings import MalformedObjectError
from webhook.core.pod.gpus import MAX_GPUS, UUID_PATTERN, DriverLimit, EnforceBy
from webhook.core.pod.quantity import MIB, QuantityError, parse_quantity
from webhook.core.pod.views import Container, Pod, effective_amount, read_pod
from webhook.core.pod.whole_gpus import has_ended
from webhook.core.policy.cluster import Cluster
from webhook.core.policy.match import NamespaceUnknownError
from webhook.core.policy.model import Policy
from webhook.names import GPU_ANNOTATION, GPU_WAITS_ANNOTATION, VRAM_RESOURCE


@dataclass(frozen=True, slots=True)
class PendingAssignment:
    """State of a bound pod that has no GPU yet."""

    has_controller: bool = False
    """True if a controller replaces the pod after it is deleted."""
    last_message: str = ""
    """Annotation `gpu-waits`, cut to the maximum length that vramwarden writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodState:
    """State of a pod with a demand."""

    uid: str
    name: str
    """`namespace/name`."""
    need: Need | None
    """Need on each of the pod's GPUs; None if the pod requests nothing in `resources`."""
    at_binding: bool = True
    """True if the pod's GPUs are chosen at binding; otherwise it sees all GPUs of the node."""
    node: str = ""
    uuids: tuple[str, ...] = ()
    finished: bool = False
    """True if the pod ran to its end, which cannot be undone."""
    gone: bool = False
    """True if a watch reported the pod as deleted. The pod may only have lost the watched label,
    so nothing is freed before the API server confirms the deletion."""
    unreadable: str = ""
    """Reason why the pod's demand cannot be read. Such a pod bypassed admission."""
    terms: CapTerms | None = None
    """Terms as read from the pod; None if the pod needs no GPU memory."""
    admission: Admission | None = None
    """Admission by the rule with the terms of the pod's entry, see `terms_by_rule`; otherwise
    None."""
    pending: PendingAssignment | None = None
    """State of a bound pod that has no GPU yet; otherwise None."""

    @property
    def needs_placement(self) -> bool:
        """True if the pod's GPUs must be chosen at binding."""
        return self.need is not None and self.at_binding and not self.finished

    @property
    def limit(self) -> DriverLimit:
        """Driver limit promised by the pod's terms."""
        return self.terms.limit if self.terms else DriverLimit.OFF

    def limit_on(self, *, driver_limits: bool) -> DriverLimit:
        """Return the pod's driver limit, given whether the node's driver enforces caps.

        A limit written together with the pod's GPUs is final.
        """
        return self.limit if driver_limits or self.uuids else DriverLimit.OFF


def read_pod_state(raw: Json, asked: Callable[[], Iterable[str]] = tuple) -> PodState:
    """Return the state of a stored pod. Never fails.

    A pod that no API server would store takes no GPU. `asked` returns the keys of the pod labels
    that the policy in force matches.
    """
    metadata, finished = as_object(raw.get("metadata")), has_ended(raw)
    uid, name = str(metadata.get("uid")), f"{metadata.get('namespace')}/{metadata.get('name')}"
    try:
        pod = read_pod(raw)
        node = get_string(get_object(raw, "spec", ""), "nodeName", "spec")
        need, unreadable = read_need(pod)
        at_binding = _is_placed_at_binding(pod)
        terms, admission = read_terms(pod, need.memory_bytes, asked) if need else (None, None)
    except MalformedObjectError:
        return PodState(uid=uid, name=name, need=None, finished=finished)
    # Many pods share GPUs and nodes, so each string is stored once.
    uuids = tuple(map(intern, parse_gpu_uuids(pod.annotations.get(GPU_ANNOTATION, ""))))
    found = PodState(
        uid=uid,
        name=name,
        need=need,
        at_binding=at_binding,
        node=intern(node),
        uuids=uuids,
        finished=finished,
        gone=False,
        unreadable=unreadable,
        terms=terms,
        admission=admission,
    )
    return _with_pending(found, pod)


def _with_pending(state: PodState, pod: Pod) -> PodState:
    """Return the state with `pending` set if the pod is bound and has no GPU yet.

    A pod that is being deleted is not pending, since the kubelet starts no more containers.
    """
    if not state.needs_placement or not state.node or state.uuids or state.unreadable:
        return state
    metadata = as_object(pod.raw.get("metadata"))
    if metadata.get("deletionTimestamp"):
        return state
    owners = metadata.get("ownerReferences")
    pending = PendingAssignment(
        has_controller=isinstance(owners, list)
        and any(as_object(owner).get("controller") for owner in owners),
        last_message=pod.annotations.get(GPU_WAITS_ANNOTATION, "")[:MAX_SENTENCE_LENGTH],
    )
    return replace(state, pending=pending)


def _is_placed_at_binding(pod: Pod) -> bool:
    for container in pod.containers:
        for entry in container.env():
            reference = get_object(get_object(entry, "valueFrom", ""), "fieldRef", "")
            if entry["name"] == VISIBLE_DEVICES_ENV and reference.get("fieldPath") == CHOSEN_PATH:
                return True
    return False


def may_use_gpus(pod: PodState | None, node: str) -> bool:
    """Return True if a pod may use GPUs of the node, now or later, or if the pod is unknown."""
    return pod is None or (not pod.finished and pod.node in {"", node})


def read_need(pod: Pod) -> tuple[Need | None, str]:
    """Return a pod's need on each GPU, and the reason why its demand cannot be read, or "".

    | amounts in `resources` | annotations | on each GPU |
    | --- | --- | --- |
    | none, or more than 2^63-1 bytes, which no kubelet admits | any | nothing |
    | some | can be read | the pod's effective amount, divided by `gpu-count` |
    | some | cannot be read, or contradict the amounts | all of that amount |

    The last row may count too much on each GPU of a pod with several GPUs, but never too little:
    the pod has no more on one GPU than the kubelet admitted for all of them.
    """
    containers = (*pod.enforcers, *pod.containers)
    try:
        amounts = {container.name: _requested_vram(container) for container in containers}
        total = math.ceil(effective_amount(containers, amounts, Fraction(0)))
    except QuantityError:
        return None, ""
    if not 0 < total <= MAX_BYTES:
        return None, ""
    demand, findings = read_demand(pod)
    count = demand.gpu_count if demand else 1
    need = Need(min(-(-total // (count * MIB)) * MIB, MAX_BYTES), count)
    return need, "" if demand else next(map(str, findings), "")[:MAX_REASON_LENGTH]


def parse_gpu_uuids(written: str) -> tuple[str, ...]:
    """Return the distinct GPU UUIDs in the annotation `gpu`; anything else is ignored.

    The number is bounded, since every user who may patch `pods/status` can write the annotation.
    """
    parts = written.split(",", MAX_GPUS)[:MAX_GPUS]
    return tuple(dict.fromkeys(filter(UUID_PATTERN.fullmatch, parts)))


def _requested_vram(container: Container) -> Fraction:
    requests, limits = container.resources("requests"), container.resources("limits")
    return parse_quantity(requests.get(VRAM_RESOURCE, limits.get(VRAM_RESOURCE, "0")))


def terms_by_rule(pod: PodState, policy: Policy, cluster: Cluster) -> CapTerms | None:
    """Return the terms of a pod under the policy in force.

    | the pod | the policy has | terms |
    | --- | --- | --- |
    | has a sidecar, or was not mutated | any rules | as read from the pod |
    | any other | the rule that admitted it, and it matches the pod's namespace | that rule's |
    | any other | another rule that matches the pod | that rule's, the first |
    | any other | neither | the defaults |
    | any other | a rule that depends on labels of the namespace, which are unknown | None |

    Under a rule, the cap is the pod's amount on each GPU. The enforcer is the sentry, unless the
    rule's enforcer is None.
    """
    admission = pod.admission
    if admission is None or pod.need is None:
        return pod.terms
    memory_bytes, namespace = pod.need.memory_bytes, admission.subject.namespace
    subject = replace(admission.subject, namespace_labels=cluster.labels_for(namespace))
    admitting = (rule for rule in policy.rules if rule.name == admission.rule)
    try:
        rule = next((rule for rule in admitting if rule.match.matches_namespace(subject)), None)
        rule = rule or policy.rule_for(subject)
    except NamespaceUnknownError:
        return None
    if rule is None:
        return build_terms(memory_bytes, EnforceBy.SENTRY)
    enforcement = rule.enforcement
    return build_terms(
        memory_bytes,
        EnforceBy.NONE if enforcement.by is EnforceBy.NONE else EnforceBy.SENTRY,
        enforcement.tolerance,
        enforcement.poll_interval,
        enforcement.grace,
        enforcement.on_excess,
    )
