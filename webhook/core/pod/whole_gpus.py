"""Pods with GPUs or parts of GPUs from another product, and the GPUs of DRA drivers.

| request of the pod | field that shows it |
| --- | --- |
| NVIDIA's device plugin, HAMi, other products | resources of a container |
| Dynamic Resource Allocation, by a claim | the claim, after it is allocated |
| Dynamic Resource Allocation, by a resource's name (1.34) | the same, and the pod's status |

Slices (`nvidia.com/mig-*`) do not count: they are parts of GPUs in MIG mode, which vramwarden does
not share.

A ResourceSlice lists the GPUs that a DRA driver allocates. Source: KEP-4381 and the API
`resource.k8s.io/v1`, which Kubernetes serves from 1.34 on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from webhook.core.pod.fields import as_object, as_objects
from webhook.core.pod.other_products import OTHER_PRODUCT_RESOURCES, WHOLE_GPU
from webhook.core.pod.quantity import parse_quantity_or

DRA_DRIVER: Final = "gpu.nvidia.com"
AMD_DRA_DRIVER: Final = "gpu.amd.com"
"""DRA driver of AMD GPUs, which have no UUID that NVML reports."""

MAX_CLAIMS: Final = 16
"""Maximum number of claims read per pod. Further claims are unknown."""


def is_gpu_resource(resource: str) -> bool:
    """Return True if a resource provides GPUs that another product allocates."""
    return resource.startswith(WHOLE_GPU) or resource in OTHER_PRODUCT_RESOURCES


def is_positive_amount(amount: object) -> bool:
    """Return True if an amount is above 0 or malformed."""
    return parse_quantity_or(amount, 1) > 0


def has_ended(pod: Mapping[str, Any]) -> bool:
    """Return True if a pod has ended, which is final."""
    return str(as_object(pod.get("status")).get("phase")) in {"Succeeded", "Failed"}


def _has_node(pod: Mapping[str, Any]) -> bool:
    """Return True if a pod was bound by a scheduler or admitted by a kubelet, and has not ended.

    A pod that was created with `spec.nodeName` has no device until its kubelet admits it. The API
    server sets the condition `PodScheduled` when it stores a Binding
    (kubernetes/pkg/registry/core/pod/storage/storage.go, setPodNodeAndMetadata). A kubelet sets
    this condition and `startTime` with its first status (pkg/kubelet/kubelet_pods.go,
    generateAPIPodStatus). So a bound pod counts before its kubelet has admitted it.
    """
    status = as_object(pod.get("status"))
    conditions = as_objects(status.get("conditions"))
    scheduled = any(
        condition.get("type") == "PodScheduled" and condition.get("status") == "True"
        for condition in conditions
    )
    return (scheduled or bool(status.get("startTime"))) and not has_ended(pod)


def has_whole_gpu(pod: Mapping[str, Any]) -> bool:
    """Return True if a pod has GPUs from another product. GPUs of its claims do not count.

    | the pod | has |
    | --- | --- |
    | is too large to be read | some: its resources are unknown |
    | ended, or was neither bound by a scheduler nor admitted by a kubelet | none |
    | requests a positive or malformed amount of such a resource | some |
    | its status maps such a resource to a claim | some |
    """
    spec, status = pod.get("spec"), as_object(pod.get("status"))
    if not isinstance(spec, dict):
        return not has_ended(pod)
    if not _has_node(pod):
        return False
    holders = (spec, *as_objects(spec.get("containers")), *as_objects(spec.get("initContainers")))
    extended = as_object(status.get("extendedResourceClaimStatus"))
    mappings = as_objects(extended.get("requestMappings"))
    return any(is_gpu_resource(str(mapping.get("resourceName"))) for mapping in mappings) or any(
        is_gpu_resource(name) and is_positive_amount(amount)
        for holder in holders
        for kind in ("requests", "limits")
        for name, amount in as_object(as_object(holder.get("resources")).get(kind)).items()
    )


def find_claim_names(pod: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of a pod's ResourceClaims, at most `MAX_CLAIMS` + 1.

    Return no names for a pod that has ended or was neither bound nor admitted.
    """
    if not _has_node(pod):
        return ()
    spec, status = as_object(pod.get("spec")), as_object(pod.get("status"))
    claims = (
        *as_objects(spec.get("resourceClaims"), MAX_CLAIMS + 1),
        *as_objects(status.get("resourceClaimStatuses"), MAX_CLAIMS + 1),
        as_object(status.get("extendedResourceClaimStatus")),
    )
    names = (claim.get("resourceClaimName") for claim in claims)
    return tuple(dict.fromkeys(str(name) for name in names if name))[: MAX_CLAIMS + 1]


def find_claim_drivers(claim: Mapping[str, Any]) -> frozenset[str]:
    """Return the drivers of a ResourceClaim's devices; empty if the claim is not allocated."""
    allocation = as_object(as_object(claim.get("status")).get("allocation"))
    results = as_objects(as_object(allocation.get("devices")).get("results"))
    return frozenset(str(result.get("driver")) for result in results)


_MAX_DEVICES: Final = 128  # API limits for a slice and for a device
_MAX_ATTRIBUTES: Final = 64


@dataclass(frozen=True, slots=True)
class ResourceSlice:
    """Identities of the devices in a ResourceSlice."""

    name: str
    driver: str
    texts: frozenset[str]
    """Values of the string attributes of all devices."""


def read_resource_slice(found: Mapping[str, Any]) -> ResourceSlice:
    """Parse a ResourceSlice. Malformed values are ignored."""
    spec = as_object(found.get("spec"))
    return ResourceSlice(
        str(as_object(found.get("metadata")).get("name")),
        str(spec.get("driver")),
        frozenset(
            attribute["string"]
            for device in as_objects(spec.get("devices"), _MAX_DEVICES)
            for attribute in list(as_object(device.get("attributes")).values())[:_MAX_ATTRIBUTES]
            if isinstance(attribute, dict) and isinstance(attribute.get("string"), str)
        ),
    )


def find_dra_drivers(slices: Iterable[ResourceSlice], uuids: Collection[str]) -> tuple[str, ...]:
    """Return the drivers, sorted, that offer one of these GPUs or any AMD GPU.

    Drivers of other devices, such as NVIDIA's driver for compute domains, list no GPU.
    """
    return tuple(
        sorted(
            {
                found_slice.driver
                for found_slice in slices
                if found_slice.driver == AMD_DRA_DRIVER or not found_slice.texts.isdisjoint(uuids)
            }
        )
    )
