"""Terms of a pod's cap: size, enforcer and grace period.

The terms of a pod with a sidecar are read from the sidecar's environment variables, which the
sidecar itself reads and no tenant can edit. The terms of any other mutated pod are in the rule that
admitted the pod. A pod that bypassed admission can have any sidecar or mark, which only affects its
own enforcement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from webhook.core.bounds import MAX_WORD_LENGTH
from webhook.core.enforcement.parameters import (
    GRACE,
    POLL_INTERVAL,
    Span,
    parse_cap,
    parse_stops,
    parse_tolerance,
)
from webhook.core.pod.duration import parse_seconds
from webhook.core.pod.fields import as_object, find_object, get_string_map
from webhook.core.pod.gpus import DriverLimit, EnforceBy
from webhook.core.pod.views import ADMITTED_PATTERN, Pod, read_service_account
from webhook.core.policy.match import Subject
from webhook.names import (
    ADMITTED_ANNOTATION,
    CAP_BYTES_ENV,
    DRIVER_LIMIT_ANNOTATION,
    DRIVER_LIMIT_ENV,
    ENFORCER_COMMAND,
    GPU_ANNOTATION,
    GRACE_ENV,
    NODE_DRIVER_LIMIT_LABEL,
    ON_EXCESS_ENV,
    POLL_INTERVAL_ENV,
    TOLERANCE_ENV,
)

GRACE_S: Final = parse_seconds(GRACE.default)
"""Default grace period between SIGTERM and SIGKILL, in seconds."""

CONFIRMING_S: Final = 0.5
"""Longest pause between two measurements over the cap, in seconds (`JUDGING_S` of the sidecar's
guard)."""

_READ: Final = (
    *(CAP_BYTES_ENV, TOLERANCE_ENV, POLL_INTERVAL_ENV, GRACE_ENV, ON_EXCESS_ENV),
    DRIVER_LIMIT_ENV,
)
_LIMIT_PATH: Final = f"metadata.annotations['{DRIVER_LIMIT_ANNOTATION}']"
_LIMIT_MODES: Final = frozenset(DriverLimit)
_COMMAND: Final = list(ENFORCER_COMMAND)


@dataclass(frozen=True, slots=True, kw_only=True)
class CapTerms:
    """A pod's cap on each of its GPUs, and how the cap is enforced: the sentry's input."""

    cap_bytes: int
    tolerance_bytes: int
    delay_s: float
    """Delay of the sentry in seconds: one poll and one confirmation. For a pod with a sidecar
    also the grace period, which a healthy sidecar may use."""
    enforce: bool
    """True if the sentry may stop the pod; otherwise it only measures the pod."""
    reports: bool = False
    """True if the sentry may not stop the pod, but reports the stops that it would make."""
    limit: DriverLimit = DriverLimit.OFF
    """Driver limit of the pod; Off in the entry of a node whose driver does not enforce caps."""
    by: EnforceBy = EnforceBy.SIDECAR
    """Enforcer of the cap, as decided when the entry was written."""
    grace_s: float = GRACE_S
    """Grace period between SIGTERM and SIGKILL, in seconds."""

    @property
    def ceiling_bytes(self) -> int:
        """Bytes per GPU above which the pod is over its cap."""
        return self.cap_bytes + self.tolerance_bytes


@dataclass(frozen=True, slots=True)
class Admission:
    """Admission of a mutated pod without a sidecar. Identifies the rule with the pod's terms."""

    rule: str
    subject: Subject
    """Properties that rules match, without the namespace's labels. Contains the pod labels that
    the policy matched when the pod was read."""


def read_terms(
    pod: Pod, memory_bytes: int, asked: Callable[[], Iterable[str]]
) -> tuple[CapTerms, Admission | None]:
    """Return a pod's terms, given its amount on each GPU. Never fails.

    | containers of the reserved name | their variables | `admitted` | terms |
    | --- | --- | --- | --- |
    | one, with our command alone | each once at most, as it accepts | any | those variables', by \
Sidecar; the cap is at most the amount |
    | any other | any other | well-formed | the defaults, by Sentry, until `terms_by_rule` |
    | any other | any other | anything else | the defaults, by None: the pod is measured only |

    `asked` returns the keys of the pod labels that the policy matches. The driver's limit:

    | the sidecar's variable for it | the pod | its limit |
    | --- | --- | --- |
    | as we write it | has its GPUs | the annotation `driver-limit`, Off without one |
    | as we write it | has none, and selects nodes whose driver holds caps | Require |
    | as we write it | has none | Auto |
    | absent, or the pod is not by Sidecar | any | Off |
    """
    of_sidecar = _read_sidecar_terms(pod, memory_bytes)
    if of_sidecar:
        return of_sidecar, None
    mark = ADMITTED_PATTERN.fullmatch(pod.annotations.get(ADMITTED_ANNOTATION, ""))
    if not mark:
        return build_terms(memory_bytes, EnforceBy.NONE), None
    labels = pod.labels
    admission = _shared_admission(
        mark["rule"],
        str(as_object(pod.raw.get("metadata")).get("namespace")),
        tuple((key, labels[key]) for key in asked() if key in labels),
        read_service_account(pod.raw),
    )
    return build_terms(memory_bytes, EnforceBy.SENTRY), admission


# Many pods have the same admission.
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


shared_terms = lru_cache(maxsize=1024)(CapTerms)
"""Return one shared value for all pods with the same terms, to save memory."""


def with_limit(terms: CapTerms, limit: DriverLimit) -> CapTerms:
    """Return the same terms with another driver limit."""
    return terms if terms.limit is limit else _limited(terms, limit)


@lru_cache(maxsize=1024)
def _limited(terms: CapTerms, limit: DriverLimit) -> CapTerms:
    return replace(terms, limit=limit)


def _read_sidecar_terms(pod: Pod, memory_bytes: int) -> CapTerms | None:
    written = _sidecar_variables(pod)
    if written is None:
        return None
    cap, *others = written
    try:
        return build_terms(min(parse_cap(cap), memory_bytes), EnforceBy.SIDECAR, *others)
    except ValueError:
        return None


def _sidecar_variables(pod: Pod) -> list[str] | None:
    """Return the sidecar's environment variables in the order of `_READ`; None without a sidecar.

    An unset variable is empty. The driver limit's variable is replaced by the limit. The rest of
    the environment is not read, since this runs for each change of a pod.
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
            value, field = entry.get("value") or "", find_object(entry, "valueFrom", "fieldRef")
            if name == DRIVER_LIMIT_ENV and field.get("fieldPath") == _LIMIT_PATH:
                value = _read_driver_limit(pod)
            elif name == DRIVER_LIMIT_ENV or entry.get("valueFrom"):
                return None
            if name in found or len(value) > MAX_WORD_LENGTH:
                return None
            found[name] = value.strip()
    return [found.get(name, "") for name in _READ]


def _read_driver_limit(pod: Pod) -> DriverLimit:
    if pod.annotations.get(GPU_ANNOTATION):
        written = pod.annotations.get(DRIVER_LIMIT_ANNOTATION, "")
        return DriverLimit(written) if written in _LIMIT_MODES else DriverLimit.OFF
    selected = get_string_map(pod.spec, "nodeSelector", "spec").get(NODE_DRIVER_LIMIT_LABEL)
    return DriverLimit.REQUIRE if selected == "true" else DriverLimit.AUTO


# Keyed by amounts and strings of policies. A string that bypassed admission only costs memory.
@lru_cache(maxsize=256)
def build_terms(
    cap_bytes: int,
    by: EnforceBy,
    tolerance: str = "",
    poll: str = "",
    grace: str = "",
    excess: str = "",
    limit: str = DriverLimit.OFF,
) -> CapTerms:
    """Return terms; an empty string means the default. Raises ValueError."""
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
