"""Summary of what admission adds to a pod, in about ten lines, for `-o summary`.

A diff has about 140 lines. The additions are computed from the pod before and after admission, so
the summary is correct under any policy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from webhook.core.pod.fields import Json, as_objects, find_object
from webhook.core.pod.quantity import MIB, format_bytes
from webhook.names import (
    CAP_BYTES_ENV,
    ENFORCER_CONTAINER,
    NODE_GPU_MEMORY_FREE_LABEL,
    NODE_GPU_MEMORY_LABEL,
    VRAM_RESOURCE,
)
from webhook.tools.admit.verdicts.verdict import PodVerdict, VerdictKind, remarks

_WIDTH: Final = 11
_POD_FIELDS: Final = ("shareProcessNamespace", "runtimeClassName")
_OPERATORS: Final = {"In": "in", "NotIn": "not in"}
_AFFINITY: Final = ("affinity", "nodeAffinity")
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"


def describe(file: str, verdict: PodVerdict) -> Iterator[str]:
    """Yield the decision about a pod, and what admission adds or finds."""
    is_audited = verdict.sort is VerdictKind.LEFT_ALONE and verdict.findings
    decided = "left alone (audit)" if is_audited else verdict.sort.value
    shown = decided if verdict.findings else verdict.summary
    yield f"{file}:{verdict.line}: {verdict.title}: {shown}"
    if verdict.findings:
        for finding in verdict.findings:
            yield f"  {file}:{finding.line}: {finding.text}"
        if verdict.guidance:
            yield f"  {verdict.guidance}"
    elif verdict.is_translated and verdict.decision:
        for what, added in _added(verdict.target.pod, verdict.decision.obj):
            if added:
                yield f"  {what:{_WIDTH}} {added}"
    for word, item in remarks(verdict):
        yield f"  {word:{_WIDTH}} {file}:{item.line}: {item.text}"


def _added(before: Json, after: Json) -> Iterator[tuple[str, str]]:
    old, new = find_object(before, "spec"), find_object(after, "spec")
    was, now = _containers(old), _containers(new)
    amounts = (
        f"{name} {limits[VRAM_RESOURCE]}"
        for name, item in now.items()
        if VRAM_RESOURCE in (limits := _limits(item))
    )
    yield "VRAM", ", ".join(amounts)
    # The pod uses a MIG slice or a time-slicing replica instead of VRAM.
    others = (
        f"{name} {resource}: {amount}"
        for name, item in now.items()
        if name != ENFORCER_CONTAINER
        for resource, amount in _limits(item).items()
        if resource != VRAM_RESOURCE and resource not in _limits(was.get(name, {}))
    )
    yield "resources", ", ".join(others)
    yield "sidecar", _sidecar(now[ENFORCER_CONTAINER]) if ENFORCER_CONTAINER in now else ""
    yield (
        "nodes",
        "; ".join(map(_describe_requirement, _added_items(list(_nodes(old)), list(_nodes(new))))),
    )
    yield (
        "prefers",
        "; ".join(
            map(_describe_requirement, _added_items(list(_preferred(old)), list(_preferred(new))))
        ),
    )
    tolerations = _added_items(
        as_objects(old.get("tolerations")), as_objects(new.get("tolerations"))
    )
    yield "tolerations", ", ".join(str(toleration.get("key", "all")) for toleration in tolerations)
    variables = (
        f"{name}: {', '.join(_variables(was.get(name, {}), item))}"
        for name, item in now.items()
        if name != ENFORCER_CONTAINER and _variables(was.get(name, {}), item)
    )
    yield "variables", "; ".join(variables)
    volumes = _added_items(as_objects(old.get("volumes")), as_objects(new.get("volumes")))
    yield "volumes", ", ".join(str(volume.get("name")) for volume in volumes)
    fields = (f"{key}: {_shown(new[key])}" for key in _POD_FIELDS if new.get(key) != old.get(key))
    yield "pod", ", ".join(fields)
    for field in ("labels", "annotations"):
        had = find_object(before, "metadata", field)
        has = find_object(after, "metadata", field)
        yield field, ", ".join(f"{key}={value}" for key, value in has.items() if key not in had)


def _sidecar(container: Json) -> str:
    env = {item.get("name"): item.get("value") for item in as_objects(container.get("env"))}
    cap = env.get(CAP_BYTES_ENV)
    limits = _limits(container)
    bounds = ", ".join(f"{amount} {name}" for name, amount in limits.items())
    held = f"cap {format_bytes(int(cap))} per GPU; " if cap else ""
    return f"{ENFORCER_CONTAINER} ({held}limits {bounds})"


def _limits(container: Json) -> Json:
    return find_object(container, "resources", "limits")


def _nodes(spec: Json) -> Iterator[Json]:
    for key, value in find_object(spec, "nodeSelector").items():
        yield {"key": key, "operator": "In", "values": [value]}
    for term in as_objects(find_object(spec, *_AFFINITY, _REQUIRED).get("nodeSelectorTerms")):
        yield from as_objects(term.get("matchExpressions"))


def _preferred(spec: Json) -> Iterator[Json]:
    for term in as_objects(find_object(spec, *_AFFINITY).get(_PREFERRED)):
        yield from as_objects(find_object(term, "preference").get("matchExpressions"))


def _describe_requirement(expression: Json) -> str:
    """Describe a node requirement that admission added.

    Only memory is compared by `Gt`, in MiB.

    | added | in words |
    | --- | --- |
    | `vramwarden.io/gpu-memory-mib Gt 8191` | `GPUs of at least 8Gi` |
    | `vramwarden.io/gpu-memory-free-mib.2 Gt 8191` | `GPUs with at least 8Gi free` |
    | another label, `Gt 8191` | `nvidia.com/mig-1g.10gb.memory of at least 8Gi` |
    | a label in one value | `vramwarden.io/gpu=true` |
    | otherwise | `vramwarden.io/device-names not in none` |
    """
    key, operator = str(expression.get("key")), str(expression.get("operator"))
    values = [str(value) for value in expression.get("values") or ()]
    if operator == "Gt":
        least = f"at least {format_bytes((int(values[0]) + 1) * MIB)}"
        if key.startswith(NODE_GPU_MEMORY_FREE_LABEL):
            return f"GPUs with {least} free"
        return f"{'GPUs' if key == NODE_GPU_MEMORY_LABEL else key} of {least}"
    if operator == "In" and len(values) == 1:
        return f"{key}={values[0]}"
    return f"{key} {_OPERATORS.get(operator, operator)} {', '.join(values)}".rstrip()


def _variables(before: Json, after: Json) -> list[str]:
    """Return the names of added environment variables, with the value if it hides GPUs."""
    added = _added_items(as_objects(before.get("env")), as_objects(after.get("env")))
    return [
        f"{item.get('name')}=void" if item.get("value") == "void" else str(item.get("name"))
        for item in added
    ]


def _containers(spec: Json) -> dict[str, Json]:
    fields = ("initContainers", "containers")
    return {str(item.get("name")): item for field in fields for item in as_objects(spec.get(field))}


def _added_items(before: list[Any], after: list[Any]) -> list[Any]:
    return [
        item for index, item in enumerate(after) if item not in before and item not in after[:index]
    ]


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
