"""Bounds on the size of a pod, checked by lengths alone, before anything that grows with them.

No honest pod comes near one of them: etcd holds 1.5 MiB, and a kubelet starts a few dozen
containers.

Translation adds to a pod, and what it made is judged again: in the validating phase, and whenever
it comes again. So a pod that bears our mark may have more, by what translation adds; a quarter more
where a policy says how much that is. Whoever forges the mark gains no more.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from webhook.core.pod.findings import Finding, Reason, annotation_path
from webhook.names import ADMITTED_ANNOTATION, ASKING_ANNOTATIONS, BINDING_ANNOTATIONS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from webhook.core.pod.fields import Json

CONTAINER_FIELDS: Final = ("containers", "initContainers", "ephemeralContainers")
"""Where a pod's containers stand."""


@dataclass(frozen=True, slots=True)
class Bound:
    """How many of something a pod may have."""

    most: int
    what: str
    cure: str = "remove some"
    ours: int = 0
    """How many more a pod may have that translation added to."""

    def most_of(self, *, translated: bool) -> int:
        """Return how many a pod may have."""
        return self.most + self.ours if translated else self.most


CONTAINERS: Final = Bound(256, "containers", "split the pod", ours=1)
VARIABLES: Final = Bound(1024, "variables", "take some from a ConfigMap with envFrom", ours=256)
ALL_VARIABLES: Final = Bound(8192, "variables in all", VARIABLES.cure, ours=2048)
SOURCES: Final = Bound(256, "sources of variables")
VOLUMES: Final = Bound(1024, "volumes", ours=3)
MOUNTS: Final = Bound(1024, "mounts")
ALL_MOUNTS: Final = Bound(8192, "mounts in all", ours=3)
RESOURCES: Final = Bound(32, "resources", ours=1)
CLAIMS: Final = Bound(256, "resource claims")
CAPABILITIES: Final = Bound(64, "capabilities")
AFFINITY_TERMS: Final = Bound(256, "affinity terms", ours=2)
EXPRESSIONS: Final = Bound(64, "expressions in one term", ours=3)
TOLERATIONS: Final = Bound(256, "tolerations", ours=64)
PULL_SECRETS: Final = Bound(256, "pull secrets", ours=64)
ENTRIES: Final = Bound(1024, "entries", ours=256)
CHARACTERS: Final = Bound(4096, "characters", "shorten it")

_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
_OUR_ANNOTATIONS: Final = (*ASKING_ANNOTATIONS, ADMITTED_ANNOTATION, *BINDING_ANNOTATIONS)


def too_complex(pod: Json) -> tuple[Finding, ...]:
    """Return what of a pod is too much to judge: one finding per bound, at its first place.

    The pod is as it came: a field of a wrong type counts as nothing here, and is found when it is
    read. At most 257 containers are visited, and of those nothing but lengths.

    | of | counted |
    | --- | --- |
    | the pod | containers of all three kinds, volumes, tolerations |
    | the pod | pull secrets, resource claims |
    | the pod | terms of node, pod and pod anti-affinity together, required and preferred |
    | the pod | annotations, labels and the node selector, each; the length of each of ours |
    | each term of node affinity | matchExpressions |
    | each container | env, envFrom, volumeMounts, requests, limits, claims, each |
    | each container | capabilities, added and dropped together |
    | all containers | env, volumeMounts |
    """
    found: dict[Bound, Finding] = {}
    translated = _is_translated(pod)
    for bound, path, count in _counts(pod):
        most = bound.most_of(translated=translated)
        if count > most and bound not in found:
            detail = f"has {count} {bound.what}; at most {most} are judged, so {bound.cure}"
            found[bound] = Finding(Reason.TOO_COMPLEX, path, detail)
    return tuple(found.values())


def _is_translated(pod: Json) -> bool:
    mark = _object(_object(pod, "metadata"), "annotations").get(ADMITTED_ANNOTATION)
    return type(mark) is str and mark.startswith("v1 ")


def _counts(pod: Json) -> Iterator[tuple[Bound, str, int]]:
    metadata, spec = _object(pod, "metadata"), _object(pod, "spec")
    annotations = _object(metadata, "annotations")
    yield ENTRIES, "metadata.annotations", len(annotations)
    yield ENTRIES, "metadata.labels", len(_object(metadata, "labels"))
    yield ENTRIES, "spec.nodeSelector", len(_object(spec, "nodeSelector"))
    for key in _OUR_ANNOTATIONS if annotations else ():
        value = annotations.get(key)
        if type(value) is str:
            yield CHARACTERS, annotation_path(key), len(value)
    yield VOLUMES, "spec.volumes", len(_list(spec, "volumes"))
    yield TOLERATIONS, "spec.tolerations", len(_list(spec, "tolerations"))
    yield PULL_SECRETS, "spec.imagePullSecrets", len(_list(spec, "imagePullSecrets"))
    yield CLAIMS, "spec.resourceClaims", len(_list(spec, "resourceClaims"))
    if spec.get("affinity"):
        yield from _affinity_counts(_object(spec, "affinity"))
    yield from _container_counts(spec)


def _affinity_counts(affinity: Json) -> Iterator[tuple[Bound, str, int]]:
    node = _object(affinity, "nodeAffinity")
    required = _list(_object(node, _REQUIRED), "nodeSelectorTerms")
    count = len(required) + len(_list(node, _PREFERRED))
    for kind in ("podAffinity", "podAntiAffinity"):
        terms = _object(affinity, kind)
        count += len(_list(terms, _REQUIRED)) + len(_list(terms, _PREFERRED))
    yield AFFINITY_TERMS, "spec.affinity", count
    path = f"spec.affinity.nodeAffinity.{_REQUIRED}.nodeSelectorTerms"
    for index, term in enumerate(islice(required, AFFINITY_TERMS.most_of(translated=True))):
        if type(term) is dict:
            yield EXPRESSIONS, f"{path}[{index}]", len(_list(term, "matchExpressions"))


def _container_counts(spec: Json) -> Iterator[tuple[Bound, str, int]]:
    count = variables = mounts = 0
    most = CONTAINERS.most_of(translated=True)
    for field in CONTAINER_FIELDS:
        containers = _list(spec, field)
        # Beyond the bound nothing is visited, however many there are.
        for index, container in enumerate(islice(containers, max(0, most - count))):
            if type(container) is not dict:
                continue
            env, mounted = _list(container, "env"), _list(container, "volumeMounts")
            variables += len(env)
            mounts += len(mounted)
            for bound, path, size in _sizes(container, env, mounted):
                if size > bound.most:  # rarely, so that few paths are built
                    yield bound, f"spec.{field}[{index}].{path}", size
        count += len(containers)
    yield ALL_VARIABLES, "spec.containers", variables
    yield ALL_MOUNTS, "spec.containers", mounts
    yield CONTAINERS, "spec.containers", count


def _sizes(
    container: Json, env: list[Any], mounted: list[Any]
) -> tuple[tuple[Bound, str, int], ...]:
    resources = _object(container, "resources")
    granted = _object(_object(container, "securityContext"), "capabilities")
    capabilities = len(_list(granted, "add")) + len(_list(granted, "drop"))
    return (
        (VARIABLES, "env", len(env)),
        (SOURCES, "envFrom", len(_list(container, "envFrom"))),
        (MOUNTS, "volumeMounts", len(mounted)),
        (RESOURCES, "resources.requests", len(_object(resources, "requests"))),
        (RESOURCES, "resources.limits", len(_object(resources, "limits"))),
        (CLAIMS, "resources.claims", len(_list(resources, "claims"))),
        (CAPABILITIES, "securityContext.capabilities", capabilities),
    )


_NOTHING: Final[Json] = {}
_EMPTY: Final[list[Any]] = []


def _object(holder: Json, key: str) -> Json:
    value = holder.get(key)
    return value if type(value) is dict else _NOTHING


def _list(holder: Json, key: str) -> list[Any]:
    value = holder.get(key)
    return value if type(value) is list else _EMPTY
