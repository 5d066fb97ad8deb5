"""What a ResourceSlice says of a node's GPUs: that a DRA driver gives them away by resource claims.

Source: KEP-4381 and the API `resource.k8s.io/v1`, which Kubernetes serves from 1.34 on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from webhook.core.pod.lenient import as_object, as_objects

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

_MOST_DEVICES: Final = 128  # the API's own bounds on a slice and on a device
_MOST_ATTRIBUTES: Final = 64


@dataclass(frozen=True, slots=True)
class Slice:
    """What a driver offers of a node, as far as it names devices."""

    name: str
    driver: str
    texts: frozenset[str]
    """All of its devices' attributes that are strings."""


def read_slice(found: Mapping[str, Any]) -> Slice:
    """Read a ResourceSlice; what is not of its type is not there."""
    spec = as_object(found.get("spec"))
    return Slice(
        str(as_object(found.get("metadata")).get("name")),
        str(spec.get("driver")),
        frozenset(
            attribute["string"]
            for device in as_objects(spec.get("devices"), _MOST_DEVICES)
            for attribute in list(as_object(device.get("attributes")).values())[:_MOST_ATTRIBUTES]
            if isinstance(attribute, dict) and isinstance(attribute.get("string"), str)
        ),
    )


def claimants(slices: Iterable[Slice], uuids: Collection[str]) -> tuple[str, ...]:
    """Return the drivers that offer one of these GPUs, sorted.

    Drivers of channels and NICs, as NVIDIA's for compute domains, name no GPU.
    """
    return tuple(sorted({one.driver for one in slices if not one.texts.isdisjoint(uuids)}))
