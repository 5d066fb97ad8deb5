"""Translation of a pod with a demand, in ordered and idempotent steps.

Each step reads the original pod and records its edits, which become the patch. No two steps edit
the same place, so no step depends on another step's edits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import lru_cache
from typing import Final

from webhook.core.admission.accounting import (
    CountedAmounts,
    count_amounts,
    preferred_node_term,
    write_amounts,
)
from webhook.core.admission.gate import MOUNT, VARIABLE, VOLUME
from webhook.core.admission.sidecar.container import ENFORCER_VOLUMES
from webhook.core.admission.sidecar.injection import insert_enforcer, remove_enforcers
from webhook.core.admission.sidecar.security_context import (
    APP_ARMOR_ANNOTATION,
    has_current_app_armor_annotation,
)
from webhook.core.nvidia.programs import configure_programs, set_cap_variables
from webhook.core.nvidia.variables import (
    DeviceNames,
    hide_devices,
    hide_devices_unless_set,
    leave_to_device_plugin,
    show_devices,
    unset_widening,
)
from webhook.core.pod.demand import Demand
from webhook.core.pod.fields import Json, replace_by_name
from webhook.core.pod.patch import Edits
from webhook.core.pod.quantity import format_bytes
from webhook.core.pod.views import Container, Pod
from webhook.core.policy.cluster import Cluster
from webhook.core.policy.model import (
    AUTO_RUNTIME_CLASS,
    Accounting,
    EnforceBy,
    GPUClass,
    Placement,
    Policy,
    Rule,
    VisibleDevices,
)
from webhook.names import (
    ADMITTED_ANNOTATION,
    BINDING_ANNOTATIONS,
    ENFORCED_BY_SIDECAR,
    GATE_VARIABLE,
    GATE_VOLUME,
    GPU_MEMORY_ANNOTATION,
    MANAGED_LABEL,
    NODE_DEVICE_NAMES_LABEL,
    NODE_ENFORCEMENT_LABEL,
    NODE_SENTRY_LABEL,
    NOT_ENFORCED,
    OUR_VOLUMES,
)

_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
_NODE_AFFINITY: Final = "/spec/affinity/nodeAffinity"
RESOLVES_NAMES: Final = {
    "key": NODE_DEVICE_NAMES_LABEL,
    "operator": "NotIn",
    "values": [DeviceNames.NONE.value],
}
"""Expression that excludes nodes on which no device name shows a GPU. Unlabeled nodes are kept."""


def mutate_pod(
    pod: Pod,
    demand: Demand,
    rule: Rule,
    policy: Policy,
    cluster: Cluster,
    enforcer: Json | None,
    *,
    stored: bool = False,
) -> Edits:
    """Return the edits that translate a pod, given the rule for the pod's class.

    `enforcer` is the sidecar's container, or None if the rule has no sidecar. A pod that is about
    to be `stored` may lack parts that are only decided at creation: advice to the scheduler, and a
    RuntimeClass that depends on the cluster. The pod's sidecar may have the additions that
    `find_changes` tolerates.
    """
    edits = Edits()
    gpu_class = policy.class_for(demand.gpu_class or rule.default_class)
    counted = count_amounts(pod, demand, rule, policy, cluster, stored=stored)
    gated = demand.amounts if rule.gates_workload else ()
    for container in pod.containers:  # steps 1 and 4, and the gate of step 5
        place, has_gate = f"/spec/{container.field}/{container.index}", container.name in gated
        write_amounts(edits, place, container.raw, counted)
        env: list[Json] = container.raw.get("env") or []
        edits.change(place, "env", env, _env(container.raw, env, demand, rule))
        mounts: list[Json] = container.raw.get("volumeMounts") or []
        mounted = replace_by_name(mounts, GATE_VOLUME, MOUNT if has_gate else None)
        edits.change(place, "volumeMounts", mounts, mounted)
    _select_nodes(edits, pod, rule, gpu_class)
    _choose_nodes(edits, pod, demand, rule, counted, stored=stored)
    _tolerate(edits, pod, rule, gpu_class)
    _set_runtime_class(edits, pod, rule, cluster, stored=stored)
    if enforcer is None:  # step 5: the sidecar
        remove_enforcers(edits, pod)
    else:
        insert_enforcer(edits, pod, demand, enforcer, stored=stored)
    _set_volumes(edits, pod, rule, enforcer)
    keeps = enforcer is not None and has_current_app_armor_annotation(pod, demand)
    _mark(edits, pod, demand, rule, policy, keeps=keeps)
    return edits


def edit_variables(
    containers: Iterable[Container], edit: Callable[[list[Json]], list[Json]]
) -> Edits:
    """Return the edits of the containers' environment variables."""
    edits = Edits()
    for container in containers:
        env: list[Json] = container.raw.get("env") or []
        edits.change(f"/spec/{container.field}/{container.index}", "env", env, edit(env))
    return edits


def _select_nodes(edits: Edits, pod: Pod, rule: Rule, gpu_class: GPUClass | None) -> None:
    """Set the node selector (step 2)."""
    selector = pod.spec.get("nodeSelector")
    missing = {
        key: value
        for key, value in rule.node_selector_for(gpu_class).items()
        if not selector or selector.get(key) != value
    }
    edits.merge("/spec", "nodeSelector", selector, missing)


def required_node_terms(rule: Rule) -> list[Json]:
    """Return the required node affinity that does not depend on amounts.

    MIG slices need no vramwarden program on their node.
    """
    return [] if rule.accounting is Accounting.MIG else [*_enforcing_nodes(rule), RESOLVES_NAMES]


def _enforcing_nodes(rule: Rule) -> list[Json]:
    """Return the required node affinity for nodes that can enforce caps as the rule requires.

    | `enforcement.by` | GPUs are given by | required |
    | --- | --- | --- |
    | Sidecar | vramwarden | `enforcement In [sidecar]` |
    | Sidecar | NVIDIA's device plugin | `enforcement NotIn [none]`: the agent labels only \
nodes that it shares |
    | Sentry | vramwarden | `sentry In ["true"]` |
    | None | either | nothing |
    """
    by = rule.enforcement.by
    if by is EnforceBy.NONE:
        return []
    if rule.uses_device_plugin:
        return [{"key": NODE_ENFORCEMENT_LABEL, "operator": "NotIn", "values": [NOT_ENFORCED]}]
    if by is EnforceBy.SENTRY:
        return [{"key": NODE_SENTRY_LABEL, "operator": "In", "values": ["true"]}]
    return [{"key": NODE_ENFORCEMENT_LABEL, "operator": "In", "values": [ENFORCED_BY_SIDECAR]}]


def _choose_nodes(
    edits: Edits, pod: Pod, demand: Demand, rule: Rule, counted: CountedAmounts, *, stored: bool
) -> None:
    """Set required and preferred node affinity (step 2)."""
    expressions = [*counted.on_nodes, *required_node_terms(rule)]
    preferred = []
    if rule.placement is Placement.BINDING and not stored:
        preference = {"matchExpressions": [preferred_node_term(demand)]}
        preferred.append({"weight": 100, "preference": preference})
    affinity = pod.spec.get("affinity")
    present = affinity.get("nodeAffinity") if affinity else None
    if present:
        _require_on_nodes(edits, present, expressions, counted.replaced_labels)
        _prefer_nodes(edits, present, preferred)
        return
    ours: Json = {_REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": expressions}]}}
    if preferred:
        ours[_PREFERRED] = preferred
    edits.merge("/spec", "affinity", affinity, {"nodeAffinity": ours})


def _require_on_nodes(
    edits: Edits, present: Json, expressions: list[Json], replaced: Collection[str]
) -> None:
    """Add expressions to every term of the required node affinity.

    Expressions with `replaced` labels are removed. Terms are alternatives, so each term needs all
    expressions. An empty term matches no node (API documentation of NodeSelectorTerm) and stays
    empty.
    """
    required = present.get(_REQUIRED)
    terms = required.get("nodeSelectorTerms") if required else None
    if not terms:
        ours = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
        edits.merge(_NODE_AFFINITY, _REQUIRED, required, ours)
        return
    for index, term in enumerate(terms):
        found = term.get("matchExpressions") or []
        if found or term.get("matchFields"):
            missing = [each for each in expressions if each not in found]
            place = f"{_NODE_AFFINITY}/{_REQUIRED}/nodeSelectorTerms/{index}"
            outdated = [
                expression
                for expression in found
                if any(expression.get("key") == label for label in replaced)
                and expression.get("operator") == "Gt"
                and expression not in expressions
            ]
            if outdated:
                kept = [expression for expression in found if expression not in outdated]
                edits.put(place, "matchExpressions", [*kept, *missing])
                continue
            edits.append(place, "matchExpressions", found, missing)


def _prefer_nodes(edits: Edits, present: Json, preferred: list[Json]) -> None:
    """Prefer nodes whose agent reports enough GPUs with free memory, to avoid denied bindings.

    This affinity is not required: the kubelet checks required affinity again when it restarts
    (kubernetes/kubernetes issue 73948), and the free memory changes. Users' preferences stay. The
    added preference has the greatest weight, since a node without free GPU memory cannot run the
    pod.
    """
    found = present.get(_PREFERRED) or []
    missing = [preference for preference in preferred if preference not in found]
    edits.append(_NODE_AFFINITY, _PREFERRED, found, missing)


def _tolerate(edits: Edits, pod: Pod, rule: Rule, gpu_class: GPUClass | None) -> None:
    """Add the rule's tolerations, then the class's (step 3)."""
    present: list[Json] = pod.spec.get("tolerations") or []
    missing: list[Json] = []
    for toleration in (*rule.tolerations, *(gpu_class.tolerations if gpu_class else ())):
        if toleration not in present and toleration not in missing:
            missing.append(toleration)
    edits.append("/spec", "tolerations", present, missing)


def _set_runtime_class(
    edits: Edits, pod: Pod, rule: Rule, cluster: Cluster, *, stored: bool
) -> None:
    """Set the RuntimeClass if the pod names none (step 3)."""
    if pod.spec.get("runtimeClassName"):
        return
    if stored and rule.runtime_class_name == AUTO_RUNTIME_CLASS:
        return  # the cluster's RuntimeClasses may have changed since the pod was created
    runtime_class = cluster.runtime_class_for(rule)
    if runtime_class:
        edits.put("/spec", "runtimeClassName", runtime_class)


def _env(container: Json, env: list[Json], demand: Demand, rule: Rule) -> list[Json]:
    amount = demand.amounts.get(container["name"])
    if amount is None:
        env = _with_gate(env, gated=False)
        # A container without VRAM sees no GPU and has no cap.
        hide = (
            hide_devices_unless_set
            if rule.visible_devices is VisibleDevices.IGNORE
            else hide_devices
        )
        return hide(set_cap_variables(env, None, fraction=False))
    # The annotation is the pod's fraction. With two containers, neither may use all of it.
    fraction = rule.chooses_gpus and len(demand.amounts) == 1
    if not container.get("envFrom"):
        return _env_for_vram(env, amount, rule, rule.programs, fraction=fraction)
    # `env` overrides `envFrom`, so a user may configure programs but not widen access to GPUs.
    return unset_widening(_env_for_vram(env, amount, rule, (), fraction=fraction))


def _with_gate(env: list[Json], *, gated: bool) -> list[Json]:
    return replace_by_name(env, GATE_VARIABLE, VARIABLE if gated else None)


def _env_for_vram(
    env: list[Json], amount: int, rule: Rule, programs: tuple[str, ...], *, fraction: bool
) -> list[Json]:
    gated, chosen = rule.gates_workload, rule.chooses_gpus
    if not rule.env and not rule.uses_device_plugin:
        ours = _default_env(amount, programs, chosen=chosen, fraction=fraction, gated=gated)
        if not env:
            return ours
        if env == ours:
            return env  # already translated
    env = _with_gate(env, gated=gated)
    if rule.uses_device_plugin:
        env = set_cap_variables(
            leave_to_device_plugin(env, defaults=rule.env), amount, fraction=fraction
        )
    else:
        env = set_cap_variables(env, amount, fraction=fraction)
        env = show_devices(env, chosen=chosen, defaults=rule.env)
    return configure_programs(env, programs, amount)


# Most containers have no variables. Containers with equal amounts share the list, which is never
# changed.
@lru_cache(maxsize=256)
def _default_env(
    amount: int, programs: tuple[str, ...], *, chosen: bool, fraction: bool, gated: bool
) -> list[Json]:
    env = set_cap_variables(_with_gate([], gated=gated), amount, fraction=fraction)
    env = show_devices(env, chosen=chosen, defaults=())
    return configure_programs(env, programs, amount)


def _set_volumes(edits: Edits, pod: Pod, rule: Rule, enforcer: Json | None) -> None:
    """Set the volumes, each in place of a volume of its name (step 5)."""
    wanted = {volume["name"]: volume for volume in ENFORCER_VOLUMES} if enforcer else {}
    if rule.chooses_gpus:
        wanted[GATE_VOLUME] = VOLUME
    present: list[Json] = pod.spec.get("volumes") or []
    after = present
    for name in OUR_VOLUMES:
        after = replace_by_name(after, name, wanted.get(name))
    edits.change("/spec", "volumes", present, after)


def _mark(
    edits: Edits, pod: Pod, demand: Demand, rule: Rule, policy: Policy, *, keeps: bool
) -> None:
    """Set the label that selects managed pods, and the annotation `admitted` (step 6).

    Annotations of a binding are removed: they belong to the pod from which this pod was copied.
    `keeps` is True if the sidecar's AppArmor annotation is kept. If slices or slots replace
    explicit amounts, the annotation `gpu-memory` requests the same amounts.
    """
    metadata = pod.raw.get("metadata")
    if metadata is None:
        edits.put("", "metadata", metadata := {})
    if pod.labels.get(MANAGED_LABEL) != "true":
        edits.merge("/metadata", "labels", metadata.get("labels"), {MANAGED_LABEL: "true"})
    for key in BINDING_ANNOTATIONS if keeps else (*BINDING_ANNOTATIONS, APP_ARMOR_ANNOTATION):
        if key in pod.annotations:
            edits.remove("/metadata/annotations", key)
    mark = f"v1 {rule.name} {policy.short_digest}"
    written = (
        {} if pod.annotations.get(ADMITTED_ANNOTATION) == mark else {ADMITTED_ANNOTATION: mark}
    )
    if rule.uses_device_plugin and GPU_MEMORY_ANNOTATION not in pod.annotations:
        amounts = demand.amounts.items()
        written[GPU_MEMORY_ANNOTATION] = ", ".join(
            f"{name}={format_bytes(amount)}" for name, amount in amounts
        )
    edits.merge("/metadata", "annotations", metadata.get("annotations"), written)
