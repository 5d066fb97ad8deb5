"""Limits on the size of a pod, checked by lengths alone before any other work on the pod.

No ordinary pod comes near a limit: an object in etcd has at most 1.5 MiB, and a kubelet starts a
few dozen containers.

A translated pod is judged again in the validating phase and in each later review. Therefore a pod
with the annotation `admitted` may also have the entries that translation adds. If the policy
determines their number, the limit is a quarter higher. A forged annotation gains only these
entries.

CEL expressions in the API server run before this code: the chart's matchConditions and admission
policies. In API servers up to 1.36 their time grows with the square of a list's length. An
expression that costs more than 1,000,000 units fails, which denies the pod. Therefore each list
that a tenant can lengthen has a second limit in `CEL_LIMITS`. This limit is twice the first limit,
so that CEL evaluates every pod that was admitted here. Longer lists are denied. `make generate`
writes both limits into the chart.

Highest cost of the chart's expressions in Kubernetes 1.36.2:

| a pod has | at most | cost | share of the budget |
| --- | --- | --- | --- |
| annotations, with keys of 24 letters | 2,560 | 209,992 | 21 % |
| the same, with keys of 256 KiB in all | 2,560 | 599,112 | 60 % |
| annotations that an update replaces, with keys of 127 letters | 1,024 | 508,110 | 51 % |
| variables, 1,024 in a container | 20,480 | 145,772 | 15 % |
| variables, 40 in a container | 20,480 | 203,336 | 20 % |
| mounts | 16,896 | 172,238 | 17 % |
| containers with the gate, 40 variables and 33 mounts in each | 512 | 147,929 | 15 % |
| containers | 514 | 63,333 | 6 % |
| volumes | 2,054 | 14,459 | 1 % |
| resources | 2,564 | 83,895 | 8 % |
| resources with a domain, all of 7,168 characters | 256 | 247,860 | 25 % |
| the same, and the longest pattern for GPUs | 256 | 650,894 | 65 % |
| all of these, with keys of 24 letters | | 464,068 | 46 % |
| the same, and the longest pattern for GPUs | | 844,704 | 84 % |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from webhook.core.pod.fields import Json
from webhook.core.pod.findings import Finding, Reason, annotation_path
from webhook.names import ADMITTED_ANNOTATION, MANAGED_LABEL, OUR_ANNOTATIONS, VRAM_RESOURCE

CONTAINER_FIELDS: Final = ("containers", "initContainers", "ephemeralContainers")
"""Fields of a pod's spec that list containers."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Maximum number of items of one kind in a pod."""

    most: int
    what: str
    """Plural noun for messages."""
    cure: str = "remove some"
    ours: int = 0
    """Number of items that translation may add."""

    def max_count(self, *, translated: bool) -> int:
        """Return the maximum number in a pod, translated or not."""
        return self.most + self.ours if translated else self.most


CONTAINERS: Final = Bound(256, "containers", "split the pod", ours=1)
VARIABLES: Final = Bound(1024, "variables", "take some from a ConfigMap with envFrom", ours=256)
ALL_VARIABLES: Final = Bound(8192, "variables in all", VARIABLES.cure, ours=2048)
SOURCES: Final = Bound(256, "sources of variables")
VOLUMES: Final = Bound(1024, "volumes", ours=3)
MOUNTS: Final = Bound(1024, "mounts", ours=1)
ALL_MOUNTS: Final = Bound(8192, "mounts in all", ours=256)
RESOURCES: Final = Bound(32, "resources", ours=1)
ALL_RESOURCES: Final = Bound(1024, "resources in all", ours=258)
DOMAIN_RESOURCES: Final = Bound(64, "resources with a domain in all", ours=64)
"""Resources such as `nvidia.com/gpu`, without VRAM, which each container may have.

Translation adds MIG slices to these resources. A node has at most seven slices on each of sixteen
GPUs.
"""
DOMAIN_CHARACTERS: Final = Bound(
    2048, "characters in the names of resources with a domain", ours=1536
)
CLAIMS: Final = Bound(256, "resource claims")
CAPABILITIES: Final = Bound(64, "capabilities")
AFFINITY_TERMS: Final = Bound(256, "affinity terms", ours=2)
EXPRESSIONS: Final = Bound(64, "expressions in one term", ours=16)
"""Expressions in a required term of node affinity.

Translation adds three expressions, or four with CapOnly. With MIG, it adds one for each profile
that the pod gets. No GPU model has more than sixteen profiles.
"""
TOLERATIONS: Final = Bound(256, "tolerations", ours=64)
ENTRIES: Final = Bound(1024, "entries", ours=256)
CHARACTERS: Final = Bound(4096, "characters", "shorten it")

CEL_LIMITS: Final[Mapping[str, int]] = {
    name: 2 * bound.max_count(translated=True)
    for name, bound in {
        "containers": CONTAINERS,
        "variables": VARIABLES,
        "allVariables": ALL_VARIABLES,
        "volumes": VOLUMES,
        "mounts": MOUNTS,
        "allMounts": ALL_MOUNTS,
        "resources": RESOURCES,
        "allResources": ALL_RESOURCES,
        "domainResources": DOMAIN_RESOURCES,
        "domainCharacters": DOMAIN_CHARACTERS,
        "entries": ENTRIES,
    }.items()
}
"""Maximum lengths of lists that CEL expressions evaluate, keyed by chart value."""
UPDATE_LIMITS: Final[Mapping[str, int]] = {
    "tolerations": TOLERATIONS.most,
    "affinityTerms": AFFINITY_TERMS.most,
    "expressions": EXPRESSIONS.most,
    "entries": ENTRIES.most,
}
"""Lengths of lists above which the API server sends an update to the webhook."""

_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"

_Bounds = tuple[tuple[str, type[Json] | type[list[Any]], Bound], ...]
"""Fields of an object, with their types and maximum lengths."""
Excess = dict[Bound, tuple[Finding, int]]
"""Finding and measured number, keyed by exceeded limit."""
_Measured = tuple[Bound, str, int]
"""An exceeded limit, the path of the field, and the number in it."""

_METADATA_BOUNDS: Final[_Bounds] = (("annotations", dict, ENTRIES), ("labels", dict, ENTRIES))
_NODE_BOUNDS: Final[_Bounds] = (("nodeSelector", dict, ENTRIES),)
_SPEC_BOUNDS: Final[_Bounds] = (
    ("volumes", list, VOLUMES),
    ("tolerations", list, TOLERATIONS),
    ("resourceClaims", list, CLAIMS),
)
_CONTAINER_BOUNDS: Final[_Bounds] = (
    ("env", list, VARIABLES),
    ("envFrom", list, SOURCES),
    ("volumeMounts", list, MOUNTS),
)
_RESOURCE_BOUNDS: Final[_Bounds] = (
    ("requests", dict, RESOURCES),
    ("limits", dict, RESOURCES),
    ("claims", list, CLAIMS),
)


def find_excesses(pod: Json) -> Excess:
    """Return the exceeded limits, each with its first finding and the largest number measured.

    The pod is unchecked: a field of a wrong type counts as empty here and is reported when it is
    read. At most 257 containers are visited. Only the lengths of their fields and the names of at
    most 33 resources per container are read.

    | of | counted |
    | --- | --- |
    | the pod | containers of all three kinds, volumes, tolerations, resource claims |
    | the pod | terms of node, pod and pod anti-affinity together, required and preferred |
    | the pod | annotations, labels and the node selector, each; the length of each of ours |
    | each term of node affinity | matchExpressions |
    | each container | env, envFrom, volumeMounts, requests, limits, claims, each |
    | each container | capabilities, added and dropped together |
    | all containers | env, volumeMounts, resources |
    | all containers | resources with a domain, and the characters of their names |
    """
    excesses = _measure_pod(pod)
    if not excesses:
        return {}
    found: Excess = {}
    translated = _is_translated(pod)
    for bound, path, count in excesses:
        most = bound.max_count(translated=translated)
        if count > most and (bound not in found or count > found[bound][1]):
            detail = f"{bound.cure}; it has {count} {bound.what}, and at most {most} are judged"
            finding = Finding(Reason.TOO_COMPLEX, path, detail)
            found[bound] = (found[bound][0] if bound in found else finding, count)
    return found


def find_growth(pod: Json, excess: Excess, before: Json | None) -> tuple[Finding, ...]:
    """Return the findings of `excess` if a pod with vramwarden's marks is larger than before.

    Marks can be forged, and a pod above the limits is not judged. Without this check, a pod of any
    size with forged marks would be admitted, and an admitted pod could grow beyond the limits. A
    stored pod of this size stays admitted as long as it does not grow.
    """
    if not excess or not (_is_marked(pod) or (before and _is_marked(before))):
        return ()
    known = find_excesses(before) if before and _is_marked(before) else {}
    return tuple(
        finding
        for bound, (finding, count) in excess.items()
        if bound not in known or count > known[bound][1]
    )


def _is_marked(pod: Json) -> bool:
    metadata = _object(pod, "metadata")
    return MANAGED_LABEL in _object(metadata, "labels") or ADMITTED_ANNOTATION in _object(
        metadata, "annotations"
    )


def _is_translated(pod: Json) -> bool:
    mark = _object(_object(pod, "metadata"), "annotations").get(ADMITTED_ANNOTATION)
    return type(mark) is str and mark.startswith("v1 ")


def _measure_pod(pod: Json) -> list[_Measured]:
    over: list[_Measured] = []
    metadata, spec = _object(pod, "metadata"), _object(pod, "spec")
    _measure(over, metadata, _METADATA_BOUNDS, "metadata")
    _measure(over, spec, _NODE_BOUNDS, "spec")
    annotations = _object(metadata, "annotations")
    for key in OUR_ANNOTATIONS if annotations else ():
        value = annotations.get(key)
        if type(value) is str and len(value) > CHARACTERS.most:
            over.append((CHARACTERS, annotation_path(key), len(value)))
    _measure(over, spec, _SPEC_BOUNDS, "spec")
    if spec.get("affinity"):
        _measure_affinity(over, _object(spec, "affinity"))
    _measure_containers(over, spec)
    return over


def _measure(over: list[_Measured], holder: Json, bounds: _Bounds, *path: str) -> None:
    """Add to `over` the fields that are too long. Paths are only joined for these fields."""
    for key, kind, bound in bounds:
        value = holder.get(key)
        if value and type(value) is kind and len(value) > bound.most:
            over.append((bound, ".".join((*path, key)), len(value)))


def _measure_affinity(over: list[_Measured], affinity: Json) -> None:
    node = _object(affinity, "nodeAffinity")
    required = _list(_object(node, _REQUIRED), "nodeSelectorTerms")
    count = len(required) + len(_list(node, _PREFERRED))
    for kind in ("podAffinity", "podAntiAffinity"):
        terms = _object(affinity, kind)
        count += len(_list(terms, _REQUIRED)) + len(_list(terms, _PREFERRED))
    if count > AFFINITY_TERMS.most:
        over.append((AFFINITY_TERMS, "spec.affinity", count))
    path = f"spec.affinity.nodeAffinity.{_REQUIRED}.nodeSelectorTerms"
    for index, term in enumerate(islice(required, AFFINITY_TERMS.max_count(translated=True))):
        expressions = _list(term, "matchExpressions") if type(term) is dict else ()
        if len(expressions) > EXPRESSIONS.most:
            over.append((EXPRESSIONS, f"{path}[{index}]", len(expressions)))


def _measure_containers(over: list[_Measured], spec: Json) -> None:
    count = variables = mounts = resources = 0
    names: list[str] = []
    most = CONTAINERS.max_count(translated=True)
    for field in CONTAINER_FIELDS:
        containers = _list(spec, field)
        if not containers:
            continue
        # Containers beyond the limit are not visited.
        for index, container in enumerate(islice(containers, max(0, most - count))):
            if type(container) is not dict:
                continue
            variables += len(_list(container, "env"))
            mounts += len(_list(container, "volumeMounts"))
            amounts = _larger_resources(container)
            resources += len(amounts)
            if amounts and len(amounts) <= RESOURCES.max_count(translated=True):
                names += [name for name in amounts if "/" in name and name != VRAM_RESOURCE]
            found: list[_Measured] = []
            _measure_container(found, container)
            for bound, path, size in found:
                over.append((bound, f"spec.{field}[{index}].{path}", size))
        count += len(containers)
    for bound, total in (
        (ALL_VARIABLES, variables),
        (ALL_MOUNTS, mounts),
        (ALL_RESOURCES, resources),
        (DOMAIN_RESOURCES, len(names)),
        (DOMAIN_CHARACTERS, sum(map(len, names))),
        (CONTAINERS, count),
    ):
        if total > bound.most:
            over.append((bound, "spec.containers", total))


def _larger_resources(container: Json) -> Json:
    """Return the larger of a container's request and limit for each resource.

    The API server copies each limit to the requests, and a resource with a domain has both.
    """
    resources = container.get("resources")
    if type(resources) is not dict or not resources:
        return _NOTHING
    requests, limits = _object(resources, "requests"), _object(resources, "limits")
    return limits if len(limits) > len(requests) else requests


def _measure_container(over: list[_Measured], container: Json) -> None:
    _measure(over, container, _CONTAINER_BOUNDS)
    resources = container.get("resources")
    if type(resources) is dict and resources:
        _measure(over, resources, _RESOURCE_BOUNDS, "resources")
    context = container.get("securityContext")
    if type(context) is dict and context:
        granted = _object(context, "capabilities")
        count = len(_list(granted, "add")) + len(_list(granted, "drop"))
        if count > CAPABILITIES.most:
            over.append((CAPABILITIES, "securityContext.capabilities", count))


_NOTHING: Final[Json] = {}
_EMPTY: Final[list[Any]] = []


def _object(holder: Json, key: str) -> Json:
    value = holder.get(key)
    return value if type(value) is dict else _NOTHING


def _list(holder: Json, key: str) -> list[Any]:
    value = holder.get(key)
    return value if type(value) is list else _EMPTY
