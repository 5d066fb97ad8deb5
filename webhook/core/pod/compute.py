"""CPU and memory of a pod: its quality-of-service class, and what its containers request."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Final

from webhook.core.pod.fields import mapping
from webhook.core.pod.quantity import amount_or
from webhook.core.pod.views import Pod, effective_amount

_COUNTED: Final = frozenset({"cpu", "memory"})
_ZERO: Final = Fraction(0)


def is_guaranteed(pod: Pod) -> bool:
    """Say whether Kubernetes' quality-of-service class of a pod is Guaranteed without our sidecar.

    | `spec.resources` | the containers, init containers among them | |
    | --- | --- | --- |
    | absent | each: limits of CPU and memory above zero, requests equal to them or not set | yes |
    | absent | any other | no |
    | limits of CPU and memory above zero, requests equal to them | any | yes |
    | any other, also an empty one | any | no |

    The API server sets requests in `spec.resources` that are missing before it asks us: to what the
    containers request, else to the limits. So they are not missing in a pod that is Guaranteed.
    Source: `ComputePodQOS` in k8s.io/kubernetes/pkg/apis/core/v1/helper/qos, and KEP-2837.
    """
    if pod.spec.get("resources") is not None:
        of_pod = mapping(pod.spec, "resources", "spec")
        requests, limits = (
            mapping(of_pod, kind, "spec.resources") for kind in ("requests", "limits")
        )
        return requests.keys() >= _COUNTED and _are_equal(requests, limits)
    for container in pod.containers:
        if not _are_equal(container.resources("requests"), container.resources("limits")):
            return False
    return True


def _are_equal(requests: Mapping[str, object], limits: Mapping[str, object]) -> bool:
    if not limits.keys() >= _COUNTED:
        return False
    for resource in _COUNTED:
        limit = limits[resource]
        request = requests.get(resource, limit)
        amount = _amount(limit)
        if (request != limit and _amount(request) != amount) or amount.numerator <= 0:
            return False
    return True


def requested(pod: Pod, resource: str) -> Fraction:
    """Return what the user's containers request of a resource together."""
    amounts = {
        container.name: _amount(written)
        for container in pod.containers
        if (
            written := container.resources("requests").get(resource)
            or container.resources("limits").get(resource)
        )
    }
    return effective_amount(pod.containers, amounts, _ZERO)


def limited(pod: Pod, resource: str) -> tuple[Fraction, bool]:
    """Return the limits of the user's containers together, and whether one has none."""
    amounts = {
        container.name: _amount(written)
        for container in pod.containers
        if (written := container.resources("limits").get(resource))
    }
    unlimited = len(amounts) < len(pod.containers)
    return effective_amount(pod.containers, amounts, _ZERO), unlimited


def _amount(written: object) -> Fraction:
    return amount_or(written, _ZERO)
