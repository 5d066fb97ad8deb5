"""Rules about annotations and mounts by which a container runtime shows GPUs to a pod."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import islice
from typing import Final

from webhook.core.admission.rules.case import Case
from webhook.core.admission.rules.isolation import may_mount
from webhook.core.admission.rules.oversized_pods import is_managed
from webhook.core.admission.sidecar.security_context import APP_ARMOR_ANNOTATION
from webhook.core.nvidia import injection
from webhook.core.nvidia.injection import InjectedDevices
from webhook.core.pod.fields import get_objects
from webhook.core.pod.findings import WRITTEN_BY_ANOTHER, Finding, Reason, annotation_path, quote
from webhook.core.pod.other_products import WHOLE_GPU
from webhook.core.pod.quantity import parse_quantity_or
from webhook.core.pod.views import Container, effective_amount
from webhook.core.policy.model import VisibleDevices
from webhook.names import ENFORCER_CONTAINER, GPU_MEMORY_ANNOTATION

# Maximum number of findings about annotations. A pod may have any number of annotations.
_MAX_FINDINGS: Final = 16
_OF_ENFORCER: Final = (f"/{ENFORCER_CONTAINER}", f".{ENFORCER_CONTAINER}")
HOW_TO_REQUEST_GPUS: Final = (
    f"GPUs come with the annotation {GPU_MEMORY_ANNOTATION}, or whole with {WHOLE_GPU}"
)
NOT_COUNTED: Final = f"{injection.SHOWS_UNCOUNTED}; {HOW_TO_REQUEST_GPUS}"


def device_annotations(case: Case) -> Iterator[Finding]:
    """Rule: no annotation makes a container runtime, or a plug-in of it, give the pod GPUs.

    Fields: metadata.annotations, those of `INJECTORS`
    Allowed values: devices that are not NVIDIA's; any if the rule's visibleDevices is Ignore, and
    those of the pod before an update. Without a demand as many GPUs as its containers limit of
    whole nvidia.com/gpu, and cards for virtual machines together with such a resource, but none if
    its creator set spec.nodeName. With a demand no renderers, and mounts that the rule's
    `hostPaths` allow

    Under Void such an annotation is denied, too. A variable can be voided, but an annotation has no
    such value, and a removed one would return with the next apply.
    """
    before = {} if case.old is case.pod else case.old.annotations
    found = _annotation_findings(case, before, managed=_is_managed(case))
    yield from islice(found, _MAX_FINDINGS)


def _is_managed(case: Case) -> bool:
    return case.requests_vram or (case.old is not case.pod and is_managed(case.old.raw))


def enforcer_annotations(case: Case) -> Iterator[Finding]:
    """Rule: no annotation makes a container runtime, or a plug-in of it, change the sidecar.

    Fields: metadata.annotations whose key ends in the sidecar's name, after a slash or a dot
    Allowed values: none with a demand, except the key for AppArmor, which the API server may
    write, and those of the pod before an update

    Runtimes and plug-ins use such keys for one container: `mounts.nri.io/container.NAME`,
    `io.kubernetes.cri-o.UnifiedCgroup.NAME`.
    """
    before = {} if case.old is case.pod else case.old.annotations
    keys = [
        key
        for key, value in case.pod.annotations.items()
        if key.endswith(_OF_ENFORCER) and key != APP_ARMOR_ANNOTATION and before.get(key) != value
    ]
    if keys and _is_managed(case):
        why = (
            f"would change {ENFORCER_CONTAINER}, which holds the VRAM cap"
            if case.has_sidecar
            else f"names the container {ENFORCER_CONTAINER}, which the pod does not have"
        )
        for key in keys[:_MAX_FINDINGS]:
            detail = f"remove it; it {why}"
            yield Finding(Reason.RESERVED_NAME, annotation_path(key), detail)


def _annotation_findings(
    case: Case, before: Mapping[str, str], *, managed: bool
) -> Iterator[Finding]:
    rule = case.rule
    judges = rule.visible_devices is not VisibleDevices.IGNORE
    if not judges and not managed:
        return
    has = _Cards(case)
    for key, devices in injection.read_injections(case.pod.annotations, before):
        path = annotation_path(key)
        shows = devices.shows_gpus or (managed and devices.renders)
        if judges and shows and (managed or not has.covers(devices)):
            violation = devices.violation or injection.UNCOUNTED
            detail = f"{violation}; {HOW_TO_REQUEST_GPUS}; {WRITTEN_BY_ANOTHER}"
            yield Finding(Reason.DEVICE_INJECTION, path, detail)
        allowed = (may_mount(source, rule.host_paths) for source in devices.mounted_paths)
        if managed and (devices.unreadable_mounts or not all(allowed)):
            detail = devices.unreadable_mounts or (
                "remove it, or ask your platform team for a rule whose hostPaths name it; it "
                f"mounts a path of the node that rule {quote(rule.name)} does not allow; "
                f"{WRITTEN_BY_ANOTHER}"
            )
            yield Finding(Reason.HOST_PATH, path, detail)


class _Cards:
    """Cards that the annotations of a pod without a demand may name.

    All annotations together may name as many cards as the pod's containers have whole GPUs in their
    limits: the daemons of Google's TCPX and TCPXO see another container's cards. A slice allows no
    card, since an annotation names whole cards. In a pod whose creator names its node no resource
    counts, since no scheduler has checked that the pod gets it.
    """

    def __init__(self, case: Case) -> None:
        self._annotations = case.pod.annotations
        self._containers = () if case.names_node else case.pod.containers

    def covers(self, devices: InjectedDevices) -> bool:
        """Return True if the pod may have all cards that an annotation names."""
        if devices.violation or (devices.passthrough and not self._passes_through):
            return False
        return self._enough if devices.cards or devices.control_devices else True

    @cached_property
    def _passes_through(self) -> bool:
        return any(
            injection.is_passthrough(resource) and _amount(amount)
            for container in self._containers
            for resource, amount in container.resources("limits").items()
        )

    @cached_property
    def _enough(self) -> bool:
        whole = {
            one.name: _amount(one.resources("limits").get(WHOLE_GPU, "0"))
            for one in self._containers
        }
        injections = injection.read_injections(self._annotations, {})
        cards = {card for _, devices in injections for card in devices.cards}
        return 0 < effective_amount(self._containers, whole, 0) >= len(cards)


def _amount(text: str) -> int:
    return max(0, int(parse_quantity_or(text, 0)))


def device_mounts(case: Case) -> Iterator[Finding]:
    """Rule: no mount makes the container runtime show GPUs.

    Fields: spec.[initContainers,containers][*].volumeMounts[*].mountPath
    Allowed values: none below /var/run/nvidia-container-devices; any if the rule's visibleDevices
    is Ignore
    """
    if case.rule.visible_devices is VisibleDevices.IGNORE:
        return
    for container in case.pod.containers:
        for path in find_device_mounts(container):
            detail = f"remove the mount; {NOT_COUNTED}; {WRITTEN_BY_ANOTHER}"
            yield Finding(Reason.VISIBLE_DEVICES_OVERRIDE, path, detail)


def find_device_mounts(container: Container) -> list[str]:
    """Return the path of each mount by which a container would see GPUs."""
    mounts = get_objects(container.raw, "volumeMounts", container.path)
    return [
        f"{container.path}.volumeMounts[{index}].mountPath"
        for index in injection.find_device_mounts(mounts)
    ]
