"""Put the rules together: which of them judge which pod."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from webhook.core.admission.mutation import PREFERENCES, mutate_pod
from webhook.core.admission.rules.amounts import (
    bounds,
    gpu_class_known,
    whole_gpu_and_share,
    whole_gpus,
)
from webhook.core.admission.rules.devices import (
    visible_devices_of_demand,
    visible_devices_without_demand,
)
from webhook.core.admission.rules.isolation import privileged_pod, process_namespace, reserved_names
from webhook.core.admission.rules.nodes import node_name, node_selector, operating_system
from webhook.core.admission.sidecar.recognition import holds, is_enforcer
from webhook.core.nvidia.variables import VISIBLE_DEVICES_ENV, visible_devices
from webhook.core.pod.fields import items, mapping
from webhook.core.pod.findings import Finding, Reason
from webhook.core.pod.patch import make_patch
from webhook.core.pod.quantity import QuantityError, parse_quantity
from webhook.names import ADMITTED_ANNOTATION, MANAGED_LABEL, VRAM_RESOURCE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from webhook.core.pod.demand import Demand
    from webhook.core.pod.fields import Json
    from webhook.core.pod.views import Pod
    from webhook.core.policy.values import Policy, Rule

_MARK: Final = re.compile(r"v1 [a-z0-9.-]+ (?P<digest>[0-9a-f]{12})")
_SHOWN_DIFFERENCES: Final = 4
_OURS: Final = tuple(visible_devices(chosen=chosen) for chosen in (True, False))


def check_any_pod(pod: Pod, policy: Policy) -> Iterator[Finding]:
    """Yield what is wrong with any governed pod, with or without a demand."""
    for container in (*pod.containers, *pod.enforcers):
        yield from whole_gpus(container, policy)


def check_without_demand(pod: Pod, rule: Rule) -> Iterator[Finding]:
    """Yield what is wrong with a pod that asks for no VRAM; none of its containers is ours."""
    yield from visible_devices_without_demand(pod, rule)
    yield from reserved_names(pod, None)


def check_asking(pod: Pod, demand: Demand | None, rule: Rule, policy: Policy) -> Iterator[Finding]:
    """Yield what is wrong with a pod that asks for VRAM, even where its demand cannot be read."""
    yield from whole_gpu_and_share(pod, policy)
    yield from operating_system(pod)
    yield from node_name(pod)
    yield from privileged_pod(pod, rule)
    yield from visible_devices_of_demand(pod, demand.amounts if demand else None, rule)
    yield from gpu_class_known(pod, rule, policy)
    yield from node_selector(pod, rule, policy)
    yield from reserved_names(pod, rule.enforcement.image if rule.has_sidecar else None)
    if rule.has_sidecar:
        yield from process_namespace(pod)
    if demand is not None:
        yield from bounds(demand, rule, policy)


def check_shape(pod: Pod) -> None:
    """Read the fields that translation edits; raises MalformedObjectError for a wrong type."""
    spec = pod.spec
    affinity = mapping(mapping(spec, "affinity", "spec"), "nodeAffinity", "spec.affinity")
    path = "spec.affinity.nodeAffinity"
    field = "requiredDuringSchedulingIgnoredDuringExecution"
    terms = items(mapping(affinity, field, path), "nodeSelectorTerms", f"{path}.{field}")
    for index, term in enumerate(terms):
        items(term, "matchExpressions", f"{path}.{field}.nodeSelectorTerms[{index}]")
    items(affinity, "preferredDuringSchedulingIgnoredDuringExecution", path)
    items(spec, "tolerations", "spec")
    items(spec, "volumes", "spec")


def check_translated(
    pod: Pod, demand: Demand, rule: Rule, policy: Policy, enforcer: Json | None
) -> Iterator[Finding]:
    """Rule: a pod with a demand has all that translation adds, unharmed, when it is stored.

    A pod admitted under the policy in force must be exactly what translation would make of it. One
    that bears another policy's digest was translated by a replica that loaded its policy a moment
    earlier or later; it is held to what no policy changes. Under either, what only advises the
    scheduler may be missing: releases differ in it, also under one policy, and other webhooks may
    have their own opinion, and no limit rests on it.
    """
    mark = _MARK.fullmatch(pod.annotations.get(ADMITTED_ANNOTATION, ""))
    if mark and mark["digest"] != policy.short_digest:
        missing = list(_missing_essentials(pod, demand, enforcer))
    else:
        wanted = mutate_pod(pod, demand, rule, policy, enforcer)
        paths = [operation["path"] for operation in make_patch(pod.raw, wanted)]
        missing = [_dotted(path) for path in paths if not path.startswith(PREFERENCES)]
    if missing:
        shown = list(dict.fromkeys(missing))
        more = f" and {len(shown) - _SHOWN_DIFFERENCES} more" * (len(shown) > _SHOWN_DIFFERENCES)
        detail = (
            "create the pod again; if it stays so, tell your platform team that vramwarden's "
            "mutating webhook did not run, or that another webhook changed the pod after it "
            f"(missing: {', '.join(shown[:_SHOWN_DIFFERENCES])}{more})"
        )
        yield Finding(Reason.UNMUTATED, shown[0], detail)


def _missing_essentials(pod: Pod, demand: Demand, enforcer: Json | None) -> Iterator[str]:
    for container in pod.containers:
        visible = [entry for entry in container.env() if entry["name"] == VISIBLE_DEVICES_ENV]
        if container.name not in demand.amounts:
            if not visible:
                yield f"{container.path}.env"
            continue
        amount_bytes = demand.resource_bytes(container.name)
        for kind in ("requests", "limits"):
            if not _equals(container.resources(kind).get(VRAM_RESOURCE), amount_bytes):
                yield f"{container.path}.resources.{kind}"
        if len(visible) != 1 or visible[0] not in _OURS:
            yield f"{container.path}.env"
    if pod.labels.get(MANAGED_LABEL) != "true":
        yield f"metadata.labels[{MANAGED_LABEL}]"
    if enforcer is None:
        return
    if pod.spec.get("shareProcessNamespace") is not True:
        yield "spec.shareProcessNamespace"
    image = enforcer["image"]
    if not any(is_enforcer(found, image) and holds(found, enforcer) for found in pod.enforcers):
        yield "spec.initContainers"


def _equals(written: str | None, amount_bytes: int) -> bool:
    try:
        return written is not None and parse_quantity(written) == amount_bytes
    except QuantityError:
        return False


def _dotted(pointer: str) -> str:
    """Show a JSON pointer as a field path, to the depth that tells a reader where to look."""
    parts = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
    match parts:
        case ["metadata", ("annotations" | "labels") as kind, key, *_]:
            return f"metadata.{kind}[{key}]"
    shown = ""
    for part in parts[:4]:
        shown += f"[{part}]" if part.isdigit() else f".{part}" if shown else part
    return shown
