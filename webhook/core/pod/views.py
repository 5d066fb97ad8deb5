"""Read-only views of a pod and its containers, and the sums of their requests and limits."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, TypeVar

from webhook.core.pod.fields import Json, get_object, get_objects, get_string, get_string_map
from webhook.core.pod.findings import MalformedObjectError
from webhook.core.pod.quantity import parse_quantity_or
from webhook.names import ENFORCER_CONTAINER, MAX_LABEL_LENGTH

Number = TypeVar("Number", int, Fraction)

ADMITTED_PATTERN: Final = re.compile(
    rf"v1 (?P<rule>[a-z0-9.-]{{1,{MAX_LABEL_LENGTH}}}) (?P<digest>[0-9a-f]{{12}})"
)
"""Regular expression that matches the annotation `admitted`: rule name and policy digest."""


# These classes are not frozen, although instances never change. Each review creates several, and
# creating a frozen instance takes four times as long.


@dataclass(slots=True, kw_only=True)
class Container:
    """One container of a pod, with its path and its kind."""

    field: str
    """`containers`, `initContainers` or `ephemeralContainers`."""
    index: int
    name: str
    raw: Json
    is_sidecar: bool
    """True for a native sidecar: an init container with `restartPolicy: Always` (KEP-753)."""
    path: str
    """Field path in the form that Kubernetes' messages use."""
    _resources: dict[str, Mapping[str, str]] = dataclasses.field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def is_ordinary_init(self) -> bool:
        """True for an init container that must end before the next container starts."""
        return self.field == "initContainers" and not self.is_sidecar

    def resources(self, kind: str) -> Mapping[str, str]:
        """Return `requests` or `limits`, with each amount as a string."""
        amounts = self._resources.get(kind)
        if amounts is None:
            amounts = self._resources[kind] = self._read_resources(kind)
        return amounts

    def _read_resources(self, kind: str) -> Mapping[str, str]:
        resources = get_object(self.raw, "resources", self.path)
        amounts = get_object(resources, kind, self.path, "resources")
        for value in amounts.values():
            if type(value) is not str:
                path = f"{self.path}.resources.{kind}"
                return {key: _amount(each, f"{path}[{key}]") for key, each in amounts.items()}
        return amounts

    def env(self) -> list[Json]:
        """Return the environment variables, each with a string as name and value."""
        entries = get_objects(self.raw, "env", self.path)
        for index, entry in enumerate(entries):
            name, value = entry.get("name"), entry.get("value")
            if type(name) is not str:
                raise MalformedObjectError(f"{self.path}.env[{index}].name", "a string", name)
            if value is not None and type(value) is not str:
                raise MalformedObjectError(f"{self.path}.env[{index}].value", "a string", value)
        return entries

    def security_context(self) -> Mapping[str, Any]:
        """Return the container's own security context."""
        return get_object(self.raw, "securityContext", self.path)


@dataclass(slots=True, kw_only=True)
class Pod:
    """Parts of a pod that most rules read, checked once."""

    raw: Json
    spec: Mapping[str, Any]
    annotations: Mapping[str, str]
    labels: Mapping[str, str]
    containers: tuple[Container, ...]
    """The user's containers: `spec.containers`, then `spec.initContainers`, without the sidecar."""
    enforcers: tuple[Container, ...]
    """Containers with the sidecar's reserved name, whether vramwarden added them or not."""


def preview_changes(
    pod: Pod, annotations: Mapping[str, str], removed: Mapping[str, Collection[str]]
) -> Pod:
    """Return a view with added annotations and without the containers' `removed` resources."""
    return dataclasses.replace(
        pod,
        annotations={**pod.annotations, **annotations},
        containers=tuple(
            _remove_resources(container, names)
            if (names := removed.get(container.name))
            else container
            for container in pod.containers
        ),
    )


def _remove_resources(container: Container, names: Collection[str]) -> Container:
    resources = dict(get_object(container.raw, "resources", container.path))
    for kind in ("limits", "requests"):
        amounts = container.resources(kind)
        resources[kind] = {name: amount for name, amount in amounts.items() if name not in names}
    return dataclasses.replace(container, raw={**container.raw, "resources": resources})


def read_pod(raw: Json) -> Pod:
    """Return the view of a pod. Raises MalformedObjectError if the API forbids a field's type."""
    spec = get_object(raw, "spec", "")
    user: list[Container] = []
    enforcers: list[Container] = []
    for field in ("containers", "initContainers"):
        for container in read_containers(spec, field):
            (enforcers if container.name == ENFORCER_CONTAINER else user).append(container)
    return Pod(
        raw=raw,
        spec=spec,
        annotations=read_annotations(raw),
        labels=read_labels(raw),
        containers=tuple(user),
        enforcers=tuple(enforcers),
    )


def read_annotations(raw: Json) -> Mapping[str, str]:
    """Return a pod's annotations. Raises MalformedObjectError."""
    return get_string_map(get_object(raw, "metadata"), "annotations", "metadata", by_hand=True)


def read_labels(raw: Json) -> Mapping[str, str]:
    """Return a pod's labels. Raises MalformedObjectError."""
    return get_string_map(get_object(raw, "metadata"), "labels", "metadata", by_hand=True)


def read_service_account(raw: Json) -> str:
    """Return the name of a pod's ServiceAccount. Raises MalformedObjectError.

    The API server's ServiceAccount plugin sets `default` before it calls webhooks. A manifest may
    have no name or only the deprecated field.
    """
    spec = get_object(raw, "spec")
    name = get_string(spec, "serviceAccountName", "spec") or get_string(
        spec, "serviceAccount", "spec"
    )
    return name or "default"


def read_containers(spec: Mapping[str, Any], field: str) -> list[Container]:
    """Return the containers in one field of the pod's spec."""
    containers = []
    for index, raw in enumerate(get_objects(spec, field, "spec")):
        path = f"spec.{field}[{index}]"
        name = raw.get("name")
        if type(name) is not str:
            raise MalformedObjectError(f"{path}.name", "a string", name)
        is_sidecar = (
            field == "initContainers" and get_string(raw, "restartPolicy", path) == "Always"
        )
        containers.append(
            Container(
                field=field, index=index, name=name, raw=raw, is_sidecar=is_sidecar, path=path
            )
        )
    return containers


def requested_amounts(container: Container) -> dict[str, str]:
    """Return a container's requests, keyed by resource. Limits override requests."""
    return {**container.resources("requests"), **container.resources("limits")}


def effective_amount(
    containers: Iterable[Container], amounts: Mapping[str, Number], zero: Number
) -> Number:
    """Return Kubernetes' effective request: the largest amount that a pod needs at one time.

    The result is the maximum of the sum over app containers and native sidecars, and of each
    ordinary init container's amount plus the amounts of the sidecars started before (KEP-753).
    `amounts` is keyed by container name.
    """
    running = started = peak = zero
    for container in containers:
        amount = amounts.get(container.name, zero)
        if container.is_ordinary_init:
            peak = max(peak, started + amount)
        else:
            running += amount
            if container.is_sidecar:
                started += amount
    return max(running, peak)


def _amount(value: object, path: str) -> str:
    """Return a quantity as a string. In a manifest it may be a number."""
    if type(value) is str:
        return value
    if type(value) in (int, float):
        return str(value)
    raise MalformedObjectError(path, "a quantity", value)


_QOS_RESOURCES: Final = frozenset({"cpu", "memory"})
_ZERO: Final = Fraction(0)


def is_guaranteed(pod: Pod) -> bool:
    """Return True if the pod's QoS class is Guaranteed without vramwarden's sidecar.

    | `spec.resources` | the containers, including init containers | |
    | --- | --- | --- |
    | absent | each: limits of CPU and memory above zero, requests equal to them or not set | yes |
    | absent | any other | no |
    | limits of CPU and memory above zero, requests equal to them | any | yes |
    | any other, also an empty one | any | no |

    Before it calls webhooks, the API server sets missing requests in `spec.resources` to the sum of
    the containers' requests or to the limits. So a Guaranteed pod has requests and limits. Source:
    `ComputePodQOS` in k8s.io/kubernetes/pkg/apis/core/v1/helper/qos, and KEP-2837.
    """
    if pod.spec.get("resources") is not None:
        of_pod = get_object(pod.spec, "resources", "spec")
        requests, limits = (
            get_object(of_pod, kind, "spec.resources") for kind in ("requests", "limits")
        )
        return requests.keys() >= _QOS_RESOURCES and _are_equal(requests, limits)
    for container in pod.containers:
        if not _are_equal(container.resources("requests"), container.resources("limits")):
            return False
    return True


def _are_equal(requests: Mapping[str, object], limits: Mapping[str, object]) -> bool:
    if not limits.keys() >= _QOS_RESOURCES:
        return False
    for resource in _QOS_RESOURCES:
        limit = limits[resource]
        request = requests.get(resource, limit)
        amount = _quantity(limit)
        if (request != limit and _quantity(request) != amount) or amount.numerator <= 0:
            return False
    return True


def total_request(pod: Pod, resource: str) -> Fraction:
    """Return the effective request of the user's containers for a resource."""
    amounts = {
        container.name: _quantity(written)
        for container in pod.containers
        if (
            written := container.resources("requests").get(resource)
            or container.resources("limits").get(resource)
        )
    }
    return effective_amount(pod.containers, amounts, _ZERO)


def total_limit(pod: Pod, resource: str) -> tuple[Fraction, bool]:
    """Return the effective limit of the user's containers, and True if a container has no limit."""
    amounts = {
        container.name: _quantity(written)
        for container in pod.containers
        if (written := container.resources("limits").get(resource))
    }
    unlimited = len(amounts) < len(pod.containers)
    return effective_amount(pod.containers, amounts, _ZERO), unlimited


def _quantity(written: object) -> Fraction:
    return parse_quantity_or(written, _ZERO)
