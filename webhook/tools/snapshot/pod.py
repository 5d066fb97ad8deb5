"""A pod of the cluster, as tools read it."""

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
from webhook.tools.snapshot.objects import ClusterObject, LazyFact

_NODES: Final = re.compile(r"^[0-9]+/[0-9]+ nodes are available: ")
_PREEMPTION: Final = re.compile(r"\.? ?(preemption: |no new claims to deallocate).*", re.DOTALL)
_PULLS: Final = frozenset(
    {"ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull"}
)
LIMIT_COMES_S: Final = 30.0
"""Grace period before commands report a pod that waits for its limit, in seconds."""
AWAY: Final = "it was bound while vramwarden was away, and gets a GPU when vramwarden is back"
"""Reason of a pod without a GPU for which no replica has written one yet."""
_NOT_CREATED: Final = "CreateContainerConfigError"
_GATED: Final = f"missing value for {GATE_VARIABLE}"
_CONTAINERS: Final = ("initContainers", "containers")


def scheduler_says(message: str) -> list[str]:
    """Return the parts of the scheduler's message, without those about preemption.

    Source: FitError.Error in kubernetes/pkg/scheduler/framework/types.go.
    """
    beginning = _NODES.match(message)
    if not beginning:
        return [message] if message else []
    parts = _PREEMPTION.sub("", message[beginning.end() :])
    return [one.strip(" .") for one in parts.split(", ") if one.strip(" .")]


class ClusterPod(ClusterObject):
    """A pod that the user may read.

    Its annotations are its owner's, and are shown, never counted.
    """

    @LazyFact
    def node(self) -> str:
        """Name of its node; empty while it has none."""
        return self._text("spec", "nodeName")

    @LazyFact
    def phase(self) -> str:
        """Phase, such as `Running`."""
        return self._text("status", "phase")

    @LazyFact
    def status(self) -> str:
        """Status as `kubectl get pods` prints it: `Running`, `Init:0/1`, `Terminating`."""
        return "Terminating" if self.part("metadata").get("deletionTimestamp") else self.phase

    @property
    def ended(self) -> bool:
        """True if it holds nothing any more."""
        return self.phase in {"Succeeded", "Failed"}

    @LazyFact
    def managed(self) -> bool:
        """True if the webhook gave it VRAM."""
        return self.labels.get(MANAGED_LABEL) == "true"

    @LazyFact
    def workload(self) -> Workload:
        """Workload that creates such pods."""
        return find_workload(self.part("metadata"))

    @LazyFact
    def gpus(self) -> tuple[str, ...]:
        """UUIDs in its annotation `gpu`."""
        return parse_gpu_uuids(self._text("metadata", "annotations", GPU_ANNOTATION))

    @LazyFact
    def state(self) -> PodState:
        """State as placement reads it; of a pod with a `plugin` also its need, which is no claim.

        vramwarden does not count that memory, so only the scheduler knows where it has room.
        """
        found = read_pod_state(self.raw)
        if found.need is None and self.plugin:
            with suppress(MalformedObjectError):
                demand = read_demand(read_pod(self.raw))[0]
                need = demand and Need(demand.per_gpu_bytes, demand.gpu_count)
                return replace(found, need=need, at_binding=False)
        return found

    @LazyFact
    def plugin(self) -> str:
        """Slices of MIG or slots of time-slicing that NVIDIA's device plugin gives it, in words."""
        from webhook.core.nvidia.device_plugin import is_mig_slice  # noqa: PLC0415 - `top` needs it for few pods

        asked = [
            f"{amount} {resource}"
            for container in self._containers()
            for resource, amount in find_object(container, "resources", "limits").items()
            if is_mig_slice(resource) or resource in {WHOLE_GPU, SHARED_GPU}
        ]
        return join_names(asked, 4) if self.managed and asked else ""

    @LazyFact
    def requested_bytes(self) -> int | None:
        """Request per GPU; None if only its metadata is known, and has no single quantity.

        The sum of a list by container depends on the containers.
        """
        if need := self._need():
            return need.memory_bytes
        try:
            return parse_vram(self._text("metadata", "annotations", GPU_MEMORY_ANNOTATION))
        except QuantityError:
            return None

    @LazyFact
    def gpu_count(self) -> int:
        """Number of GPUs that it requests."""
        if need := self._need():
            return need.gpu_count
        text = self._text("metadata", "annotations", GPU_COUNT_ANNOTATION)
        return int(text) if GPU_COUNT_PATTERN.fullmatch(text) else 1

    def _need(self) -> Need | None:
        return self.state.need if "spec" in self.raw else None

    @LazyFact
    def is_gated(self) -> bool:
        """Return True if the kubelet creates none of its containers with VRAM, for want of a GPU.

        A row of a table has the reason without the message.
        """
        if self.gpus:
            return False
        return any(map(is_container_gated, self.statuses())) or self.status.endswith(_NOT_CREATED)

    @LazyFact
    def waits(self) -> str:
        """Reason why it is bound without a GPU: its annotation `gpu-waits`, or else the gate."""
        said = self._text("metadata", "annotations", GPU_WAITS_ANNOTATION)
        return said or (AWAY if self.is_gated else "")

    @LazyFact
    def waits_for_limit_s(self) -> float | None:
        """Time since when its sidecar waits for the driver's limit (Unix time); else None.

        It waits if the pod has the annotation `driver-limit` and the startup probe fails.
        """
        if DRIVER_LIMIT_ANNOTATION not in self.annotations:
            return None
        starting = (one for one in self.sidecars() if one.get("started") is not True)
        began = (
            read_time(find_object(one, "state", "running").get("startedAt")) for one in starting
        )
        return next(began, None)

    @LazyFact
    def has_sidecar(self) -> bool:
        """Return True if it has a container `vram-enforcer`."""
        return any(one.get("name") == ENFORCER_CONTAINER for one in self._containers())

    @LazyFact
    def unscheduled(self) -> str:
        """Message of the scheduler, if it has no node."""
        found = self.condition("PodScheduled", "False")
        return found.message if found else ""

    @LazyFact
    def rule(self) -> str:
        """Name of the rule that admitted it, in quotes; empty where none is said."""
        mark = ADMITTED_PATTERN.fullmatch(
            self._text("metadata", "annotations", ADMITTED_ANNOTATION)
        )
        return quote(mark["rule"]) if mark else ""

    @LazyFact
    def policy_digest(self) -> str:
        """First digits of the digest of the policy that admitted it; empty if none is stated."""
        mark = ADMITTED_PATTERN.fullmatch(
            self._text("metadata", "annotations", ADMITTED_ANNOTATION)
        )
        return mark["digest"] if mark else ""

    @LazyFact
    def component(self) -> str:
        """Component of vramwarden: `webhook`, `agent` or `sentry`; empty for other pods."""
        return self._text("metadata", "labels", "app.kubernetes.io/component")

    @LazyFact
    def not_ready(self) -> str:
        """Reason why it is not ready; empty if it is, or has ended."""
        if self.ended or self.ready:
            return ""
        ready = self.condition("Ready")
        waits = map(_waiting, as_objects(self.part("status").get("containerStatuses")))
        said = next((f"{reason} {message}".strip() for reason, message in waits if reason), "")
        return said or (ready.message if ready else "") or "it is not ready"

    @LazyFact
    def pull_failure(self) -> tuple[str, str] | None:
        """Image of the sidecar that cannot be pulled, and the kubelet's message; else None."""
        for one in self.sidecars():
            reason, message = _waiting(one)
            if reason in _PULLS:
                return find_string(one, "image"), message or reason
        return None

    @LazyFact
    def healthy(self) -> bool:
        """True if it is managed, its sidecar has run, and it waits for nothing."""
        states = [as_object(one.get("state")) for one in self.sidecars()]
        has_run = any(one.get("running") or one.get("terminated") for one in states)
        quiet = not (self.ended or self.pull_failure or self.waits)
        return self.managed and has_run and quiet

    @LazyFact
    def whole(self) -> bool:
        """True if it has whole GPUs, by a resource of a device plugin."""
        return has_whole_gpu(self.raw)

    def as_created(self) -> Json:
        """Return the pod as its author creates it, without what was added since."""
        added = {"nodeName", "ephemeralContainers"}
        spec = {key: value for key, value in self.part("spec").items() if key not in added}
        return {"metadata": self.part("metadata"), "spec": spec}

    def statuses(self) -> Iterator[Json]:
        """Yield the statuses of all containers, native sidecars first."""
        for field in ("initContainerStatuses", "containerStatuses"):
            yield from as_objects(self.part("status").get(field))

    def sidecars(self) -> list[Json]:
        """Return the status of its enforcer's container; empty without one."""
        return [one for one in self.statuses() if one.get("name") == ENFORCER_CONTAINER]

    def enforcer_ended(self) -> Json:
        """Return the end of its enforcer, now or before its last restart; empty without one."""
        times = ((one, when) for one in self.sidecars() for when in ("state", "lastState"))
        return next(filter(None, (find_object(*time, "terminated") for time in times)), {})

    def _containers(self) -> list[Json]:
        spec = self.part("spec")
        return [one for key in _CONTAINERS for one in as_objects(spec.get(key))]


def is_container_gated(status: Json) -> bool:
    """Return True if a container is not created since its pod has no GPU yet."""
    reason, message = _waiting(status)
    return reason == _NOT_CREATED and _GATED in message


def _waiting(status: Json) -> tuple[str, str]:
    waiting = find_object(status, "state", "waiting")
    return str(waiting.get("reason") or ""), str(waiting.get("message") or "")
