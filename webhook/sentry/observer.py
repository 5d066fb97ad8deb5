"""One look at all GPUs: open NVML, look, close; who holds what is remembered while they hold it."""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Final

from webhook.adapters.nvml import NvmlError
from webhook.adapters.processes import started_s
from webhook.core.node.driver import KERNEL_DRIVER
from webhook.core.nvidia.drivers import DriverClass, Fault, driver_class, explain_driver

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from webhook.adapters.node_processes import NodeProcesses, Owner
    from webhook.adapters.nvml import Device, Nvml

LIST_EVERY_S: Final = 10.0
"""However little of a GPU is in use, its processes come and go."""

CHECK_EVERY_S: Final = 10.0
"""How often a process that stays listed is asked whether it still lives, while its pod is calm."""

FORGET_AFTER_S: Final = 60.0
"""How long a GPU may fail to answer before it is forgotten who held its memory."""


@dataclass(frozen=True, slots=True)
class SeenGpu:
    """A GPU as this look saw it."""

    uuid: str
    index: int
    used_bytes: int | None
    """By everybody; None where it does not report it."""
    product: str = ""
    total_bytes: int | None = None
    usable_bytes: int | None = None
    """Less what the driver keeps for itself; both None for one that has no memory of its own."""


@dataclass(frozen=True, slots=True)
class Held:
    """What one listed process holds on one GPU."""

    pid: int
    owner: Owner | None
    """None where it ended before anybody could see whose it was."""
    used_bytes: int | None
    """None where the driver gives no figure: unknown is not zero."""
    dead: bool = False
    """It ended, and its memory stays: others have its files open."""


@dataclass(frozen=True, slots=True)
class Look:
    """What all GPUs showed at one moment."""

    gpus: tuple[SeenGpu, ...] = ()
    lists: Mapping[str, tuple[Held, ...]] = field(default_factory=dict)
    """By UUID; of the GPUs whose lists were read this time."""
    failed: str = ""
    """Why not everything could be seen; empty where it could."""
    fault: Fault | None = None
    """Set where nothing could be seen."""
    driver_loaded: bool = False
    """With a fault: whether the node's kernel has a driver."""
    took_s: float = 0.0
    driver_version: str = ""
    """Empty where no driver answered."""

    def held_by_containers(self, pod: str) -> Mapping[str, int]:
        """Return what each container of a pod that was listed holds over all GPUs, in bytes."""
        sums: Counter[str] = Counter()
        for one in chain(*self.lists.values()):
            if one.owner is not None and one.owner.place.pod == pod:
                sums[one.owner.place.container] += one.used_bytes or 0
        return sums


@dataclass(slots=True)
class _Known:
    """Whose a listed pid is, and when that was last checked."""

    owner: Owner
    checked_s: float
    dead: bool = False


def _boot_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Observer:
    """Looks at the GPUs, and remembers whose the listed processes are."""

    def __init__(
        self,
        nvml: Nvml,
        node: NodeProcesses,
        *,
        kernel_driver: str = KERNEL_DRIVER,
        outermost: bool = True,
        boot_s: Callable[[], float] = _boot_s,
    ) -> None:
        """Prepare; `outermost` is whether our processes' numbers are the kernel's own."""
        self._boot_s = boot_s
        self._nvml = nvml
        self._node = node
        self._kernel_driver = kernel_driver
        self._outermost = outermost
        self._known: dict[int, _Known] = {}
        self._listed: dict[str, frozenset[int]] = {}
        """The pids of each GPU's last list."""
        self._listed_s: dict[str, float] = {}
        self._nobodys_s: dict[int, float] = {}
        """When pids were first listed that were nobody's, in seconds since the node started."""

    def look(
        self,
        now_s: float,
        above: Callable[[str], int | None],
        pods: Collection[str] = (),
    ) -> Look:
        """Return what the GPUs show; never raises.

        `above` says above which use of a GPU its list has to be read, None for none:

        | in use | since the last list | list |
        | --- | --- | --- |
        | more than that, or unknown | any | yes |
        | not more, or there is no bound | LIST_EVERY_S or more | yes |
        | not more, or there is no bound | less | no |

        Each process of `pods` is asked whether it lives; those of others now and then.
        """
        started_s = time.monotonic()
        try:
            with self._nvml:
                version = self._nvml.driver_version()
                if not self._is_trusted(version):
                    look = Look(failed=explain_driver(version), driver_version=version)
                else:
                    look = replace(self._look(now_s, above, pods), driver_version=version)
        except NvmlError as error:
            loaded = os.path.exists(self._kernel_driver)  # noqa: PTH110 - Path's may raise
            look = Look(failed=str(error), fault=error.fault, driver_loaded=loaded)
        return replace(look, took_s=time.monotonic() - started_s)

    def _look(
        self,
        now_s: float,
        above: Callable[[str], int | None],
        pods: Collection[str],
    ) -> Look:
        gpus: list[SeenGpu] = []
        lists: dict[str, tuple[Held, ...]] = {}
        failed: list[str] = []
        for device in self._devices():
            if device.mig:
                continue
            uuid = device.uuid
            try:
                used_bytes = self._nvml.device_used_bytes(uuid)
                sizes = device.total_bytes, device.usable_bytes
                gpus.append(SeenGpu(uuid, device.index, used_bytes, device.name, *sizes))
                bound = above(uuid)
                over = bound is not None and (used_bytes is None or used_bytes > bound)
                due = now_s - self._listed_s.get(uuid, float("-inf")) >= LIST_EVERY_S
                if over or due:
                    lists[uuid] = self._list(uuid, now_s, pods)
            except NvmlError as error:
                failed.append(str(error))
        failed += [str(error) for error in self._nvml.unreachable]
        self._forget(now_s)
        return Look(tuple(gpus), lists, "; ".join(failed))

    def _is_trusted(self, version: str) -> bool:
        """Say whether a driver's lists mean our processes, and have their figures.

        | the driver | on a node of its own | where the node is itself a container |
        | --- | --- | --- |
        | works in containers | yes | yes |
        | lists host PIDs, or is blind in containers | yes | no: others' numbers, or figures |
        | lays its lists out in its own way | no | no |
        """
        kind = driver_class(version)
        if kind is DriverClass.UNREADABLE:
            return False
        return self._outermost or kind is DriverClass.WORKS

    def _devices(self) -> tuple[Device, ...]:
        """Return the GPUs that answer; where none does, but the driver does, none."""
        try:
            return self._nvml.devices()
        except NvmlError:
            if not self._nvml.unreachable:
                raise
            return ()

    def _list(self, uuid: str, now_s: float, pods: Collection[str]) -> tuple[Held, ...]:
        listed = self._nvml.processes(uuid)
        held = tuple(self._held(one.pid, one.used_bytes, now_s, pods) for one in listed)
        self._listed[uuid] = frozenset(one.pid for one in listed)
        self._listed_s[uuid] = now_s
        return held

    def _held(self, pid: int, used_bytes: int | None, now_s: float, pods: Collection[str]) -> Held:
        """Say whose a listed process is.

        | the pid was listed before | it is now | the memory is |
        | --- | --- | --- |
        | no | somebody's | theirs |
        | no | nobody's | nobody's |
        | as nobody's | of somebody who started before that | theirs |
        | as nobody's | of somebody who started since then | nobody's |
        | by a process that lives | the same | theirs |
        | by a process that ended | nobody's | still of that process's pod |
        | by a process that ended | another's, of the same pod | theirs |
        | by a process that ended | another's, of another pod | unknown: whose part is how large |

        So who ends while others keep its files open does not get rid of what it holds, and nobody
        pays for a number that was another pod's.
        """
        known = self._known.get(pid)
        if known is None:
            owner = self._node.owner(pid)
            since_s = self._nobodys_s.get(pid)
            if owner is None or (since_s is not None and started_s(owner.process) > since_s):
                self._nobodys_s.setdefault(pid, self._boot_s())
                return Held(pid, None, used_bytes)
            self._known[pid] = _Known(owner, now_s)
            return Held(pid, owner, used_bytes)
        asked = known.owner.place.pod in pods or now_s - known.checked_s >= CHECK_EVERY_S
        if asked or known.dead:
            known.checked_s = now_s
            known.dead = self._node.is_gone(known.owner.process)
        if not known.dead:
            return Held(pid, known.owner, used_bytes)
        owner = self._node.owner(pid)
        if owner is None:
            return Held(pid, known.owner, used_bytes, dead=True)
        if owner.place.pod != known.owner.place.pod:
            return Held(pid, known.owner, None, dead=True)
        self._known[pid] = _Known(owner, now_s)
        return Held(pid, owner, used_bytes)

    def _forget(self, now_s: float) -> None:
        """Forget GPUs that are gone for long, and who is no longer listed anywhere."""
        for uuid, at_s in tuple(self._listed_s.items()):
            if now_s - at_s > FORGET_AFTER_S:
                del self._listed_s[uuid], self._listed[uuid]
        listed = frozenset[int]().union(*self._listed.values())
        self._known = {pid: known for pid, known in self._known.items() if pid in listed}
        self._nobodys_s = {pid: at_s for pid, at_s in self._nobodys_s.items() if pid in listed}
