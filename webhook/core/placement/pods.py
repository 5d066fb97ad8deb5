"""A pod's GPU demand, its terms of enforcement and its GPU annotations.

The demand is the amount in `resources`, which the scheduler and the kubelet check. An annotation is
checked by our webhooks alone, and exempt namespaces have none of them: a pod there that only has
the annotation `gpu-memory: 8GB` reserves nothing.

The terms of a pod with a sidecar are read from that, as it reads them itself: a tenant cannot edit
the sidecar of a pod. Those of any other mutated pod are in the rule that admitted it. A pod that
bypassed admission can have any sidecar or mark. That only affects its own enforcement.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from webhook.core.bounds import LONGEST_REASON, LONGEST_WORD
from webhook.core.enforcement.bounds import (
    GRACE,
    POLL_INTERVAL,
    Span,
    parse_cap,
    parse_stops,
    parse_tolerance,
)
from webhook.core.formatting import MAX_BYTES
from webhook.core.nvidia.programs import usable_bytes
from webhook.core.nvidia.variables import DeviceNames, format_visible_devices
from webhook.core.placement.fit import Need
from webhook.core.pod.demand import read_demand
from webhook.core.pod.duration import parse_seconds
from webhook.core.pod.fields import as_object, part, strings
from webhook.core.pod.gpus import MOST_GPUS, UUID, DriverLimit, EnforceBy, Gpu
from webhook.core.pod.quantity import MIB, QuantityError, parse_quantity
from webhook.core.pod.views import MARK, Container, Pod, effective_amount, service_account_of
from webhook.core.policy.cluster import Cluster
from webhook.core.policy.match import NamespaceUnknownError, Subject
from webhook.core.policy.values import Policy
from webhook.names import (
    ADMITTED_ANNOTATION,
    CAP_BYTES_ENV,
    DRIVER_LIMIT_ANNOTATION,
    DRIVER_LIMIT_ENV,
    ENFORCER_COMMAND,
    GPU_ANNOTATION,
    GPU_MEMORY_FRACTION_ANNOTATION,
    GRACE_ENV,
    NODE_DRIVER_LIMIT_LABEL,
    ON_EXCESS_ENV,
    POLL_INTERVAL_ENV,
    TOLERANCE_ENV,
    VISIBLE_DEVICES_ANNOTATION,
    VRAM_RESOURCE,
)

if TYPE_CHECKING:
    from webhook.core.placement.assignments import PodState

GRACE_S: Final = parse_seconds(GRACE.default)
"""Default grace period between SIGTERM and SIGKILL, in seconds."""

CONFIRMING_S: Final = 0.5
"""The longest pause between two measurements over the cap (`JUDGING_S` of the sidecar's guard)."""

_READ: Final = (
    *(CAP_BYTES_ENV, TOLERANCE_ENV, POLL_INTERVAL_ENV, GRACE_ENV, ON_EXCESS_ENV),
    DRIVER_LIMIT_ENV,
)
_LIMIT_PATH: Final = f"metadata.annotations['{DRIVER_LIMIT_ANNOTATION}']"
_LIMITS: Final = frozenset(DriverLimit)
_COMMAND: Final = list(ENFORCER_COMMAND)
_PARTS: Final = 10_000  # a fraction is written with four decimals


def counted_need(pod: Pod) -> tuple[Need | None, str]:
    """Return what a pod takes on each of its GPUs, and why its demand cannot be read, if so.

    | amounts in `resources` | annotations | on each GPU |
    | --- | --- | --- |
    | none, or more than 2^63-1 bytes, which no kubelet admits | any | nothing |
    | some | can be read | the pod's effective amount, divided by `gpu-count` |
    | some | cannot be read, or contradict the amounts | all of that amount |

    The last row may count a GPU too much for a pod that has several, and never too little: no GPU
    holds more of a pod than the kubelet admitted for all of them.
    """
    containers = (*pod.enforcers, *pod.containers)
    try:
        amounts = {container.name: _requested(container) for container in containers}
        total = math.ceil(effective_amount(containers, amounts, Fraction(0)))
    except QuantityError:
        return None, ""
    if not 0 < total <= MAX_BYTES:
        return None, ""
    demand, findings = read_demand(pod)
    count = demand.gpu_count if demand else 1
    need = Need(min(-(-total // (count * MIB)) * MIB, MAX_BYTES), count)
    return need, "" if demand else next(map(str, findings), "")[:LONGEST_REASON]


def named_gpus(written: str) -> tuple[str, ...]:
    """Return the GPUs that an annotation `gpu` names, each once; what is no UUID is left out.

    Whoever may patch `pods/status` can write it, so it is bounded.
    """
    parts = written.split(",", MOST_GPUS)[:MOST_GPUS]
    return tuple(dict.fromkeys(filter(UUID.fullmatch, parts)))


def _requested(container: Container) -> Fraction:
    """Return what scheduler and kubelet count; the API server copies a limit to its request."""
    requests, limits = container.resources("requests"), container.resources("limits")
    return parse_quantity(requests.get(VRAM_RESOURCE, limits.get(VRAM_RESOURCE, "0")))


@dataclass(frozen=True, slots=True, kw_only=True)
class CapTerms:
    """A pod's cap on each of its GPUs, and its terms: the sentry's input."""

    cap_bytes: int
    tolerance_bytes: int
    delay_s: float
    """Delay of the sentry, in seconds: one poll and one confirmation, and by Sidecar also the
    grace, which a healthy sidecar may take."""
    enforce: bool
    """Whether the sentry may stop the pod; otherwise it is only measured."""
    reports: bool = False
    """Whether the sentry, which may not stop the pod, reports what it would stop."""
    limit: DriverLimit = DriverLimit.OFF
    """Whether the driver is to hold it; in the entry of a node without such a driver it is Off."""
    by: EnforceBy = EnforceBy.SIDECAR
    """Enforcer of the cap, as decided when the entry was written."""
    grace_s: float = GRACE_S
    """Grace period between SIGTERM and SIGKILL, in seconds."""


@dataclass(frozen=True, slots=True)
class Admission:
    """Admission of a mutated pod without a sidecar, by which the rule with its terms is found."""

    rule: str
    """Name of the rule that admitted it."""
    subject: Subject
    """Properties that rules match, without the labels of the namespace. Of the pod's own labels it
    has those that the policy asked for when the pod was read."""


def read_terms(
    pod: Pod, memory_bytes: int, asked: Callable[[], Iterable[str]]
) -> tuple[CapTerms, Admission | None]:
    """Return a pod's terms, given its amount on each GPU; never fails.

    | containers of the reserved name | their variables | `admitted` | terms |
    | --- | --- | --- | --- |
    | one, with our command alone | each once at most, as it accepts | any | those variables', by \
Sidecar; the cap is at most the amount |
    | any other | any other | well-formed | the defaults, by Sentry, until `terms_by_rule` |
    | any other | any other | anything else | the defaults, by None: the pod is measured only |

    `asked` returns the keys of pod labels that the policy asks for. The driver's limit:

    | the sidecar's variable for it | the pod | its limit |
    | --- | --- | --- |
    | as we write it | has its GPUs | the annotation `driver-limit`, Off without one |
    | as we write it | has none, and selects nodes whose driver holds caps | Require |
    | as we write it | has none | Auto |
    | absent, or the pod is not by Sidecar | any | Off |
    """
    of_sidecar = _of_sidecar(pod, memory_bytes)
    if of_sidecar:
        return of_sidecar, None
    mark = MARK.fullmatch(pod.annotations.get(ADMITTED_ANNOTATION, ""))
    if not mark:
        return _terms(memory_bytes, EnforceBy.NONE), None
    labels = pod.labels
    admission = _shared_admission(
        mark["rule"],
        str(as_object(pod.raw.get("metadata")).get("namespace")),
        tuple((key, labels[key]) for key in asked() if key in labels),
        service_account_of(pod.raw),
    )
    return _terms(memory_bytes, EnforceBy.SENTRY), admission


# Many pods have the same.
@lru_cache(maxsize=1024)
def _shared_admission(
    rule: str, namespace: str, labels: tuple[tuple[str, str], ...], account: str
) -> Admission:
    subject = Subject(
        namespace=namespace,
        pod_labels=dict(labels),
        namespace_labels=None,
        service_account=account,
    )
    return Admission(rule, subject)


def terms_by_rule(pod: PodState, policy: Policy, cluster: Cluster) -> CapTerms | None:
    """Return the terms of a pod under the policy in force.

    | the pod | the policy has | terms |
    | --- | --- | --- |
    | has a sidecar, or was not mutated | any rules | as read from the pod |
    | any other | the rule that admitted it, and it matches the pod's namespace | that rule's |
    | any other | another rule that matches the pod | that rule's, the first |
    | any other | neither | the defaults |
    | any other | a rule that depends on labels of the namespace, which are unknown | None |

    By a rule, the cap is the pod's amount on each GPU, by Sentry unless the rule is by None.
    """
    admission = pod.admission
    if admission is None or pod.need is None:
        return pod.terms
    memory_bytes, namespace = pod.need.memory_bytes, admission.subject.namespace
    subject = replace(admission.subject, namespace_labels=cluster.labels_of(namespace))
    admitting = (rule for rule in policy.rules if rule.name == admission.rule)
    try:
        rule = next((rule for rule in admitting if rule.match.holds_namespace(subject)), None)
        rule = rule or policy.rule_for(subject)
    except NamespaceUnknownError:
        return None
    if rule is None:
        return _terms(memory_bytes, EnforceBy.SENTRY)
    held = rule.enforcement
    return _terms(
        memory_bytes,
        EnforceBy.NONE if held.by is EnforceBy.NONE else EnforceBy.SENTRY,
        held.tolerance,
        held.poll_interval,
        held.grace,
        held.on_excess,
    )


shared_terms = lru_cache(maxsize=1024)(CapTerms)
"""Return the one value for all pods with the same terms: many have the same."""


def with_limit(terms: CapTerms, limit: DriverLimit) -> CapTerms:
    """Return the same terms with this driver's limit."""
    return terms if terms.limit is limit else _limited(terms, limit)


@lru_cache(maxsize=1024)
def _limited(terms: CapTerms, limit: DriverLimit) -> CapTerms:
    return replace(terms, limit=limit)


def _of_sidecar(pod: Pod, memory_bytes: int) -> CapTerms | None:
    written = _written(pod)
    if written is None:
        return None
    cap, *others = written
    try:
        return _terms(min(parse_cap(cap), memory_bytes), EnforceBy.SIDECAR, *others)
    except ValueError:
        return None


def _written(pod: Pod) -> list[str] | None:
    """Return the sidecar's variables in the order of `_READ`, empty where unset; None for no such.

    That of the driver's limit stands for what it promises. The rest of the environment is not read:
    this is done for each change of a pod.
    """
    if len(pod.enforcers) != 1:
        return None
    (enforcer,) = pod.enforcers
    if enforcer.raw.get("command") != _COMMAND or enforcer.raw.get("args"):
        return None
    found: dict[str, str] = {}
    for entry in enforcer.env():
        name = entry["name"]
        if name in _READ:
            value, field = entry.get("value") or "", part(entry, "valueFrom", "fieldRef")
            if name == DRIVER_LIMIT_ENV and field.get("fieldPath") == _LIMIT_PATH:
                value = _limit_of(pod)
            elif name == DRIVER_LIMIT_ENV or entry.get("valueFrom"):
                return None
            if name in found or len(value) > LONGEST_WORD:
                return None
            found[name] = value.strip()
    return [found.get(name, "") for name in _READ]


def _limit_of(pod: Pod) -> DriverLimit:
    if pod.annotations.get(GPU_ANNOTATION):
        written = pod.annotations.get(DRIVER_LIMIT_ANNOTATION, "")
        return DriverLimit(written) if written in _LIMITS else DriverLimit.OFF
    selected = strings(pod.spec, "nodeSelector", "spec").get(NODE_DRIVER_LIMIT_LABEL)
    return DriverLimit.REQUIRE if selected == "true" else DriverLimit.AUTO


# By amounts and by texts of policies; a text that got past admission costs others only the memory.
@lru_cache(maxsize=256)
def _terms(
    cap_bytes: int,
    by: EnforceBy,
    tolerance: str = "",
    poll: str = "",
    grace: str = "",
    excess: str = "",
    limit: str = DriverLimit.OFF,
) -> CapTerms:
    """Return terms; an empty text stands for the default. Raises ValueError."""
    stops = parse_stops(excess)
    tolerance_bytes = parse_tolerance(tolerance, cap_bytes)
    poll_s, grace_s = _seconds(poll, POLL_INTERVAL), _seconds(grace, GRACE)
    delay_s = poll_s + min(poll_s, CONFIRMING_S)
    if by is EnforceBy.SIDECAR:
        delay_s += grace_s
    enforced = by is not EnforceBy.NONE
    return shared_terms(
        cap_bytes=cap_bytes,
        tolerance_bytes=tolerance_bytes,
        delay_s=round(delay_s, 3),
        enforce=enforced and stops,
        reports=enforced and not stops,
        by=by,
        grace_s=grace_s,
        limit=DriverLimit(limit or DriverLimit.OFF),
    )


def _seconds(text: str, span: Span) -> float:
    least_s, most_s = map(parse_seconds, (span.least, span.most))
    return parse_seconds(text or span.default, least_s, most_s)


def gpu_annotations(
    uuids: Sequence[str],
    gpus: Iterable[Gpu],
    names: DeviceNames,
    cap_bytes: int,
    limit: DriverLimit = DriverLimit.OFF,
) -> dict[str, str]:
    """Return what gives a pod these GPUs of a node: for people and the sidecar, for its containers.

    `gpus` are those that the node shows, `names` those that its container runtime resolves,
    `cap_bytes` is the pod's amount on each of its GPUs, `limit` what it is promised of the driver's
    limit, Off also where the node has none. Under a limit programs take that for the size of the
    card (cuMemGetInfo). Raises ValueError for `DeviceNames.NONE`.
    """
    totals = {gpu.uuid: gpu.total_bytes or gpu.memory_bytes for gpu in gpus}
    seen = [totals.get(uuid) for uuid in uuids] if limit is DriverLimit.OFF else [cap_bytes]
    given = {
        GPU_ANNOTATION: ",".join(uuids),
        VISIBLE_DEVICES_ANNOTATION: format_visible_devices(uuids, names),
        GPU_MEMORY_FRACTION_ANNOTATION: memory_fraction(cap_bytes, seen),
    }
    if limit is not DriverLimit.OFF:
        given[DRIVER_LIMIT_ANNOTATION] = limit.value
    return given


def memory_fraction(cap_bytes: int, totals_bytes: Iterable[int | None]) -> str:
    """Return the share of the memory that a framework sees that it may take, like `0.1234`.

    What a program may use (`usable_bytes`) of the total, rounded down; the smallest over all GPUs,
    since a program is told one.

    | a GPU | its fraction |
    | --- | --- |
    | of a known size | as above, at least 0.0001 and at most 1.0000 |
    | that the node does not show, so that nobody knows its size | 0.0001 |

    Never 0, of which no program could make any use. With a cap of 1800Mi or more and GPUs of less
    than 5 TiB, fraction and context together never exceed the cap.
    """
    usable = usable_bytes(cap_bytes)
    parts = [usable * _PARTS // total if total else 0 for total in totals_bytes]
    whole, rest = divmod(min(max(1, min(parts, default=0)), _PARTS), _PARTS)
    return f"{whole}.{rest:04}"
