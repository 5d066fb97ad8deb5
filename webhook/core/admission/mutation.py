"""Translate a pod with a demand: ordered steps, each a no-op where it already holds.

Dicts are copied along the changed paths only; what a step leaves alone is shared with the pod that
came in, which is never changed. The differ in `webhook.core.pod.patch` is fast because of it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from webhook.core.admission.accounting import count, preferred_on_nodes, required_on_nodes
from webhook.core.admission.sidecar.placing import place_enforcer, remove_enforcer
from webhook.core.admission.tiers import tier_of
from webhook.core.nvidia.device_names import DeviceNames
from webhook.core.nvidia.programs import configure_programs, show_cap
from webhook.core.nvidia.variables import (
    hide_devices,
    hide_unless_set,
    hide_visible,
    show_devices,
)
from webhook.core.policy.values import GPUClass, Placement, Policy, Rule, VisibleDevices
from webhook.names import (
    ADMITTED_ANNOTATION,
    BINDING_ANNOTATIONS,
    ENFORCER_CONTAINER,
    MANAGED_LABEL,
    NODE_DEVICE_NAMES_LABEL,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from webhook.core.pod.demand import Demand
    from webhook.core.pod.fields import Json
    from webhook.core.pod.views import Pod

_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
RESOLVES_NAMES: Final = {
    "key": NODE_DEVICE_NAMES_LABEL,
    "operator": "NotIn",
    "values": [DeviceNames.NONE.value],
}
"""Not where no name shows a GPU; a node without the label has an older agent, and is fine."""
PREFERENCES: Final = f"/spec/affinity/nodeAffinity/{_PREFERRED}"
"""Where a pod's advice to the scheduler stands, as a JSON pointer."""


def mutate_pod(pod: Pod, demand: Demand, rule: Rule, policy: Policy, enforcer: Json | None) -> Json:
    """Return the translated pod; the order of the steps is part of the contract.

    `enforcer` is the sidecar's container, None where the rule has none.
    """
    gpu_class = policy.class_for(demand.gpu_class or rule.default_class)
    spec: Json = dict(pod.spec)
    # Step 1: requests and limits.
    _edit_containers(spec, lambda container: count(container, demand))
    _select_nodes(spec, demand, rule, gpu_class)
    _tolerate(spec, rule, gpu_class)
    runtime_class = policy.runtime_class_of(rule)
    if runtime_class and not spec.get("runtimeClassName"):
        spec["runtimeClassName"] = runtime_class
    _edit_containers(spec, lambda container: _set_env(container, demand, rule))
    # Step 5: what holds the cap in the pod.
    if enforcer is None:
        remove_enforcer(spec)
    else:
        place_enforcer(spec, pod, demand, rule, enforcer)
    metadata = dict(pod.raw.get("metadata") or {})
    _mark(metadata, rule, policy)
    return {**pod.raw, "metadata": metadata, "spec": spec}


def void_visible_devices(pod: Pod) -> Json:
    """Return a pod without a demand, its hand-set NVIDIA_VISIBLE_DEVICES replaced by `void`."""
    spec: Json = dict(pod.spec)
    _edit_containers(spec, lambda container: _edit_env(container, hide_visible))
    return {**pod.raw, "spec": spec}


def hide_devices_from(pod: Pod, names: Collection[str]) -> Json:
    """Return the pod, its debugging containers of these names without a view of GPUs."""
    before = pod.spec.get("ephemeralContainers") or []
    after = [
        _edit_env(container, hide_unless_set) if container["name"] in names else container
        for container in before
    ]
    return {**pod.raw, "spec": {**pod.spec, "ephemeralContainers": after}}


def _edit_containers(spec: Json, edit: Callable[[Json], Json]) -> None:
    """Apply an edit to every container of the user."""
    for field in ("containers", "initContainers"):
        before = spec.get(field)
        if not before:
            continue
        after = [
            container if container["name"] == ENFORCER_CONTAINER else edit(container)
            for container in before
        ]
        if any(new is not old for new, old in zip(after, before, strict=True)):
            spec[field] = after


def _select_nodes(spec: Json, demand: Demand, rule: Rule, gpu_class: GPUClass | None) -> None:
    """Step 2: node selector, required affinity for what that cannot say, and advice."""
    wanted = {**rule.node_selector, **(gpu_class.node_selector if gpu_class else {})}
    selector = spec.get("nodeSelector") or {}
    if any(selector.get(key) != value for key, value in wanted.items()):
        spec["nodeSelector"] = {**selector, **wanted}
    tier = tier_of(rule).node_terms
    _require_on_nodes(spec, [required_on_nodes(demand), *tier, RESOLVES_NAMES])
    if rule.placement is Placement.BINDING:
        _prefer_free_memory(spec, demand)


def _require_on_nodes(spec: Json, expressions: list[Json]) -> None:
    """Add expressions to every term of the required node affinity.

    Terms are alternatives, so each needs them. An empty term matches no node at all (API doc of
    NodeSelectorTerm); adding to it would open it, so it stays empty.
    """
    affinity = spec.get("affinity") or {}
    node_affinity = affinity.get("nodeAffinity") or {}
    required = node_affinity.get(_REQUIRED) or {}
    before = required.get("nodeSelectorTerms") or []
    after = [_with_expressions(term, expressions) for term in before] or [
        {"matchExpressions": expressions}
    ]
    if before and all(new is old for new, old in zip(after, before, strict=True)):
        return
    node_affinity = {**node_affinity, _REQUIRED: {**required, "nodeSelectorTerms": after}}
    spec["affinity"] = {**affinity, "nodeAffinity": node_affinity}


def _with_expressions(term: Json, expressions: list[Json]) -> Json:
    present = term.get("matchExpressions") or []
    if not present and not term.get("matchFields"):
        return term
    missing = [expression for expression in expressions if expression not in present]
    return {**term, "matchExpressions": [*present, *missing]} if missing else term


def _prefer_free_memory(spec: Json, demand: Demand) -> None:
    """Prefer nodes whose agent reports room on as many GPUs, so that few bindings are denied.

    Never required: the kubelet checks required affinity again when it restarts
    (kubernetes/kubernetes issue 73948), and this figure changes. Users' own preferences stay; ours
    has the greatest weight, since a node where no GPU has room cannot take the pod.
    """
    preference = {"matchExpressions": [preferred_on_nodes(demand)]}
    wanted = {"weight": 100, "preference": preference}
    affinity = spec["affinity"]  # `_require_on_nodes` made it
    node_affinity = affinity["nodeAffinity"]
    present = node_affinity.get(_PREFERRED) or []
    if wanted not in present:
        node_affinity = {**node_affinity, _PREFERRED: [*present, wanted]}
        spec["affinity"] = {**affinity, "nodeAffinity": node_affinity}


def _tolerate(spec: Json, rule: Rule, gpu_class: GPUClass | None) -> None:
    """Step 3: the rule's tolerations, then the class's."""
    present: list[Json] = spec.get("tolerations") or []
    wanted = (*rule.tolerations, *(gpu_class.tolerations if gpu_class else ()))
    missing: list[Json] = []
    for toleration in wanted:
        if toleration not in present and toleration not in missing:
            missing.append(toleration)
    if missing:
        spec["tolerations"] = [*present, *missing]


def _set_env(container: Json, demand: Demand, rule: Rule) -> Json:
    """Steps 3 and 4: the rule's environment, which GPUs the container sees, what programs know."""
    amount = demand.amounts.get(container["name"])
    if amount is None:
        return _edit_env(container, partial(_hide, rule=rule))
    # The annotation is of the whole pod: of two containers neither may take all of it.
    fraction = rule.chooses_gpus and len(demand.amounts) == 1
    # What envFrom brings, `env` would override.
    programs = () if container.get("envFrom") else rule.programs

    def edit(env: list[Json]) -> list[Json]:
        env = show_cap(env, amount, fraction=fraction)
        env = show_devices(env, chosen=rule.chooses_gpus, defaults=rule.env)
        return configure_programs(env, programs, amount)

    return _edit_env(container, edit)


def _hide(env: list[Json], rule: Rule) -> list[Json]:
    """Hide the GPUs from a container without VRAM, which also has no cap."""
    hide = hide_unless_set if rule.visible_devices is VisibleDevices.IGNORE else hide_devices
    return hide(show_cap(env, None, fraction=False))


def _edit_env(container: Json, edit: Callable[[list[Json]], list[Json]]) -> Json:
    before: list[Json] = container.get("env") or []
    after = edit(before)
    return container if after is before else {**container, "env": after}


def _mark(metadata: Json, rule: Rule, policy: Policy) -> None:
    """Step 6: the label that selects managed pods, and what admitted this one.

    What a binding wrote is of the pod that this one was copied from.
    """
    labels: Mapping[str, Any] = metadata.get("labels") or {}
    if labels.get(MANAGED_LABEL) != "true":
        metadata["labels"] = {**labels, MANAGED_LABEL: "true"}
    annotations: Mapping[str, Any] = metadata.get("annotations") or {}
    mark = f"v1 {rule.name} {policy.short_digest}"
    after = {key: value for key, value in annotations.items() if key not in BINDING_ANNOTATIONS}
    after[ADMITTED_ANNOTATION] = mark
    if after != annotations:
        metadata["annotations"] = after
