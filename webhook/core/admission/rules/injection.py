"""Rules about the ways besides variables by which a container runtime shows a pod GPUs."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from webhook.core.nvidia import devices
from webhook.core.pod.fields import items
from webhook.core.pod.findings import Finding, Reason, annotation_path
from webhook.core.pod.quantity import QuantityError, parse_quantity
from webhook.core.policy.values import VisibleDevices
from webhook.names import GPU_MEMORY_ANNOTATION

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from webhook.core.admission.rules.case import Case
    from webhook.core.pod.views import Container

# A pod may have any number of annotations.
_SHOWN: Final = 16
_HOW_GPUS_COME: Final = (
    f"GPUs come with the annotation {GPU_MEMORY_ANNOTATION}, or whole with nvidia.com/gpu"
)


def device_annotations(case: Case) -> Iterable[Finding]:
    """Rule: no annotation makes the container runtime give the pod NVIDIA's devices.

    Fields: metadata.annotations[nvidia.cdi.k8s.io*], metadata.annotations[cdi.k8s.io/*]
    Allowed values: devices of other vendors than nvidia.com and its subdomains; any in a pod with
    whole GPUs, where the rule's visibleDevices is Ignore, and those of the pod before an update

    Under Void it denies, too: a variable can be voided, but an annotation has no such value, and
    one that is taken off would come back with the next apply.
    """
    pod = case.pod
    if case.rule.visible_devices is VisibleDevices.IGNORE:
        return ()
    before = {} if case.old is pod else case.old.annotations
    keys = list(islice(devices.cdi_keys(pod.annotations, before), _SHOWN))
    if not keys or _has_whole_gpus(case):
        return ()
    detail = f"shows the pod GPUs that nobody accounts for; remove it: {_HOW_GPUS_COME}"
    return [Finding(Reason.VISIBLE_DEVICES_OVERRIDE, annotation_path(key), detail) for key in keys]


def device_mounts(case: Case) -> Iterator[Finding]:
    """Rule: no mount tells the container runtime which GPUs to show.

    Fields: spec.[initContainers,containers][*].volumeMounts[*].mountPath
    Allowed values: none below /var/run/nvidia-container-devices; any where the rule's
    visibleDevices is Ignore
    """
    if case.rule.visible_devices is VisibleDevices.IGNORE:
        return
    for container in case.pod.containers:
        for path in mounts_of_devices(container):
            detail = f"shows GPUs that nobody accounts for; remove the mount: {_HOW_GPUS_COME}"
            yield Finding(Reason.VISIBLE_DEVICES_OVERRIDE, path, detail)


def mounts_of_devices(container: Container) -> list[str]:
    """Return the path of each mount by which a container would be shown GPUs."""
    mounts = items(container.raw, "volumeMounts", container.path)
    return [
        f"{container.path}.volumeMounts[{index}].mountPath"
        for index in devices.device_mounts(mounts)
    ]


def _has_whole_gpus(case: Case) -> bool:
    return any(
        case.policy.is_whole_gpu(resource) and _is_positive(amount)
        for container in case.pod.containers
        for resource, amount in container.resources("limits").items()
    )


def _is_positive(amount: str) -> bool:
    try:
        return parse_quantity(amount) > 0
    except QuantityError:
        return False
