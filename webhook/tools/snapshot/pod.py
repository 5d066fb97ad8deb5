"""A pod as commands read it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Final

from webhook.core.formatting import join_names
from webhook.core.kinds.nodes import read_time
from webhook.core.kinds.workloads import Workload, find_workload
from webhook.core.placement.fit import Need
from webhook.core.placement.pod_state import PodState, parse_gpu_uuids, read_pod_state
from webhook.core.pod.demand import GPU_COUNT_PATTERN, read_demand
from webhook.core.pod.fields import Json, as_object, as_objects, find_object, find_string
from webhook.core.pod.findings import MalformedObjectError, quote
from webhook.core.pod.other_products import SHARED_GPU, WHOLE_GPU
from webhook.core.pod.quantity import QuantityError, parse_vram
from webhook.core.pod.views import ADMITTED_PATTERN, read_pod
from webhook.core.pod.whole_gpus import has_whole_gpu
from webhook.names import (
    ADMITTED_ANNOTATION,
    DRIVER_LIMIT_ANNOTATION,
    ENFORCER_CONTAINER,
    GATE_VARIABLE,
    GPU_ANNOTATION,
    GPU_COUNT_ANNOTATION,
    GPU_MEMORY_ANNOTATION,
    GPU_WAITS_ANNOTATION,
    MANAGED_LABEL,
)
from webhook.tools.snapshot.objects import CachedProperty, ClusterObject

_NODES: Final = re.compile(r"^[0-9]+/[0-9]+ nodes are available: ")
_PREEMPTION: Final = re.compile(r"\.? ?(preemption: |no new claims to deallocate).*", re.DOTALL)
_PULLS: Final = frozenset(
    {"ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull"}
)
LIMIT_GRACE_S: Final = 30.0
"""Time after which commands report a pod that waits for its driver limit, in seconds."""
BOUND_WHILE_AWAY: Final = (
    "it was bound while vramwarden was away, and gets a GPU when vramwarden is back"
)
"""Default reason for a pod without a GPU, if no replica wrote one."""
_NOT_CREATED: Final = "CreateContainerConfigError"
_GATED: Final = f"missing value for {GATE_VARIABLE}"
_CONTAINERS: Final = ("initContainers", "containers")


def scheduler_reasons(message: str) -> list[str]:
    """Return the parts of the scheduler's message, except those about preemption.

    Source: FitError.Error in kubernetes/pkg/scheduler/framework/types.go.
    """
    beginning = _NODES.match(message)
    if not beginning:
        return [message] if message else []
    parts = _PREEMPTION.sub("", message[beginning.end() :])
    return [reason.strip(" .") for reason in parts.split(", ") if reason.strip(" .")]


class ClusterPod(ClusterObject):
    """A pod that the user may read.

    The pod's owner can change its annotations. They are shown, but never used for counts.
    """

    @CachedProperty
    def node(self) -> str:
        """Name of the node; empty if the pod has none."""
        return self._text("spec", "nodeName")

    @CachedProperty
    def phase(self) -> str:
        """Phase, such as `Running`."""
        return self._text("status", "phase")

    @CachedProperty
    def status(self) -> str:
        """Status as `kubectl get pods` prints it: `Running`, `Init:0/1`, `Terminating`."""
        return "Terminating" if self.part("metadata").get("deletionTimestamp") else self.phase

    @property
    def has_ended(self) -> bool:
        """True if the pod has ended and holds no memory."""
        return self.phase in {"Succeeded", "Failed"}

    @CachedProperty
    def managed(self) -> bool:
        """True if the webhook admitted the pod with VRAM."""
        return self.labels.get(MANAGED_LABEL) == "true"

    @CachedProperty
    def workload(self) -> Workload:
        """Workload that creates the pod."""
        return find_workload(self.part("metadata"))

    @CachedProperty
    def gpus(self) -> tuple[str, ...]:
        """UUIDs in the annotation `gpu`."""
        return parse_gpu_uuids(self._text("metadata", "annotations", GPU_ANNOTATION))

    @CachedProperty
    def state(self) -> PodState:
        """State for placement; includes the need of a pod that has `plugin_devices`.

        Placement does not count the memory of such a pod, so only the scheduler knows where it
        fits.
        """
        found = read_pod_state(self.raw)
        if found.need is None and self.plugin_devices:
            with suppress(MalformedObjectError):
                demand = read_demand(read_pod(self.raw))[0]
                need = demand and Need(demand.per_gpu_bytes, demand.gpu_count)
                return replace(found, need=need, at_binding=False)
        return found

    @CachedProperty
    def plugin_devices(self) -> str:
        """Description of MIG slices or time-slicing replicas from NVIDIA's device plugin."""
        from webhook.core.nvidia.device_plugin import is_mig_slice  # noqa: PLC0415 - not for `top`

        devices = [
            f"{amount} {resource}"
            for container in self._containers()
            for resource, amount in find_object(container, "resources", "limits").items()
            if is_mig_slice(resource) or resource in {WHOLE_GPU, SHARED_GPU}
        ]
        return join_names(devices, 4) if self.managed and devices else ""

    @CachedProperty
    def requested_bytes(self) -> int | None:
        """Request per GPU, in bytes.

        None if only the metadata is known and the annotation is not a single quantity. The sum of
        an amount list depends on the containers.
        """
        if need := self._need():
            return need.memory_bytes
        try:
            return parse_vram(self._text("metadata", "annotations", GPU_MEMORY_ANNOTATION))
        except QuantityError:
            return None

    @CachedProperty
    def gpu_count(self) -> int:
        """Number of requested GPUs."""
        if need := self._need():
            return need.gpu_count
        text = self._text("metadata", "annotations", GPU_COUNT_ANNOTATION)
        return int(text) if GPU_COUNT_PATTERN.fullmatch(text) else 1

    def _need(self) -> Need | None:
        return self.state.need if "spec" in self.raw else None

    @CachedProperty
    def is_gated(self) -> bool:
        """True if the kubelet creates no containers because the pod has no GPU yet.

        A row of a table has the kubelet's reason but not its message.
        """
        if self.gpus:
            return False
        return any(map(is_container_gated, self.container_statuses())) or self.status.endswith(
            _NOT_CREATED
        )

    @CachedProperty
    def waiting_reason(self) -> str:
        """Reason why the pod is bound without a GPU; empty if it is not.

        The reason is the annotation `gpu-waits`, else `BOUND_WHILE_AWAY` if the pod is gated.
        """
        written = self._text("metadata", "annotations", GPU_WAITS_ANNOTATION)
        return written or (BOUND_WHILE_AWAY if self.is_gated else "")

    @CachedProperty
    def waits_for_limit_s(self) -> float | None:
        """Unix time since the sidecar waits for the driver's limit; None if it does not wait.

        The sidecar waits if the pod has the annotation `driver-limit` and its startup probe has not
        passed.
        """
        if DRIVER_LIMIT_ANNOTATION not in self.annotations:
            return None
        for status in self.enforcer_statuses():
            if status.get("started") is not True:
                return read_time(find_object(status, "state", "running").get("startedAt"))
        return None

    @CachedProperty
    def has_sidecar(self) -> bool:
        """True if the pod has a container `vram-enforcer`."""
        return any(container.get("name") == ENFORCER_CONTAINER for container in self._containers())

    @CachedProperty
    def scheduler_message(self) -> str:
        """Message of the scheduler; empty if the pod has a node."""
        found = self.condition("PodScheduled", "False")
        return found.message if found else ""

    @CachedProperty
    def rule(self) -> str:
        """Quoted name of the rule that admitted the pod; empty if unknown."""
        mark = ADMITTED_PATTERN.fullmatch(
            self._text("metadata", "annotations", ADMITTED_ANNOTATION)
        )
        return quote(mark["rule"]) if mark else ""

    @CachedProperty
    def policy_digest(self) -> str:
        """First digits of the digest of the policy that admitted the pod; empty if unknown."""
        mark = ADMITTED_PATTERN.fullmatch(
            self._text("metadata", "annotations", ADMITTED_ANNOTATION)
        )
        return mark["digest"] if mark else ""

    @CachedProperty
    def component(self) -> str:
        """Component of vramwarden (`webhook`, `agent` or `sentry`); empty for other pods."""
        return self._text("metadata", "labels", "app.kubernetes.io/component")

    @CachedProperty
    def not_ready(self) -> str:
        """Reason why the pod is not ready; empty if it is ready or has ended."""
        if self.has_ended or self.ready:
            return ""
        ready = self.condition("Ready")
        waits = map(_waiting, as_objects(self.part("status").get("containerStatuses")))
        written = next((f"{reason} {message}".strip() for reason, message in waits if reason), "")
        return written or (ready.message if ready else "") or "it is not ready"

    @CachedProperty
    def pull_failure(self) -> tuple[str, str] | None:
        """Sidecar image that cannot be pulled and the kubelet's message, or None."""
        for sidecar in self.enforcer_statuses():
            reason, message = _waiting(sidecar)
            if reason in _PULLS:
                return find_string(sidecar, "image"), message or reason
        return None

    @CachedProperty
    def healthy(self) -> bool:
        """True if the pod is managed, its sidecar has started, and it waits for nothing."""
        states = [as_object(sidecar.get("state")) for sidecar in self.enforcer_statuses()]
        has_run = any(state.get("running") or state.get("terminated") for state in states)
        quiet = not (self.has_ended or self.pull_failure or self.waiting_reason)
        return self.managed and has_run and quiet

    @CachedProperty
    def has_whole_gpus(self) -> bool:
        """True if the pod has whole GPUs from a device plugin."""
        return has_whole_gpu(self.raw)

    def as_created(self) -> Json:
        """Return the pod as its author created it, without fields set later."""
        added = {"nodeName", "ephemeralContainers"}
        spec = {key: value for key, value in self.part("spec").items() if key not in added}
        return {"metadata": self.part("metadata"), "spec": spec}

    def container_statuses(self) -> Iterator[Json]:
        """Yield the statuses of all containers, native sidecars first."""
        for field in ("initContainerStatuses", "containerStatuses"):
            yield from as_objects(self.part("status").get(field))

    def enforcer_statuses(self) -> list[Json]:
        """Return the status of the sidecar in a list, which is empty without a sidecar."""
        return [
            status
            for status in self.container_statuses()
            if status.get("name") == ENFORCER_CONTAINER
        ]

    def enforcer_termination(self) -> Json:
        """Return the sidecar's last termination, or an empty object if it never ended."""
        times = (
            (sidecar, when)
            for sidecar in self.enforcer_statuses()
            for when in ("state", "lastState")
        )
        return next(filter(None, (find_object(*time, "terminated") for time in times)), {})

    def _containers(self) -> list[Json]:
        spec = self.part("spec")
        return [container for key in _CONTAINERS for container in as_objects(spec.get(key))]


def is_container_gated(status: Json) -> bool:
    """Return True if a container is not created because its pod has no GPU yet."""
    reason, message = _waiting(status)
    return reason == _NOT_CREATED and _GATED in message


def _waiting(status: Json) -> tuple[str, str]:
    waiting = find_object(status, "state", "waiting")
    return str(waiting.get("reason") or ""), str(waiting.get("message") or "")
