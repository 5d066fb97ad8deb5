"""What the enforcer can do here, checked before any workload starts: the kubelet waits for it."""

from __future__ import annotations

import enum
import os
from typing import TYPE_CHECKING, Any

from webhook.adapters import host_environment, processes
from webhook.adapters.nvml import NvmlError
from webhook.core.frozen import dataclass
from webhook.core.nvidia.drivers import explain_support, supports_sidecar

if TYPE_CHECKING:
    from collections.abc import Iterator

    from webhook.adapters.host_environment import Fact
    from webhook.adapters.nvml import Nvml


class Ability(enum.Enum):
    """What the enforcer can do once everything has been checked."""

    FULL = "full"
    """Measures, and stops what is over the cap."""
    OBSERVE = "observe"
    """Measures, but its signals do not reach the workload: an excess ends with exit code 88."""
    BLIND = "blind"
    """Cannot measure; the workload does not start."""


@dataclass(frozen=True, slots=True)
class SelfCheck:
    """One thing that was checked."""

    name: str
    holds: bool | None
    """None where it is unknown: that keeps no workload from starting."""
    reason: str


@dataclass(frozen=True, slots=True)
class SelfTest:
    """The outcome."""

    checks: tuple[SelfCheck, ...]

    @property
    def ability(self) -> Ability:
        """What follows from the checks."""
        failed = {check.name for check in self.checks if check.holds is False}
        if failed - {"permission"}:
            return Ability.BLIND
        return Ability.OBSERVE if failed else Ability.FULL

    @property
    def why(self) -> str:
        """The sentences of what failed; of the driver where nothing did."""
        failed = [check.reason for check in self.checks if check.holds is False]
        return " ".join(failed) or next(
            (check.reason for check in self.checks if check.name == "driver"), ""
        )

    def values(self) -> dict[str, Any]:
        """Return the checks for the log line."""
        return {
            "ability": self.ability.value,
            "checks": {
                check.name: {"holds": check.holds, "reason": check.reason} for check in self.checks
            },
        }


def self_test(nvml: Nvml, *, proc: str = "/proc") -> SelfTest:
    """Check all that the cap depends on; leaves NVML open where it could be opened.

    | check | where it fails |
    | --- | --- |
    | kernel | gVisor, WSL: no figures of single processes |
    | process-namespace | the node's own, or proc is another's: PIDs would mean strangers |
    | shared-processes | the sidecar is alone in its namespace |
    | library | libnvidia-ml.so.1 is missing or does not fit the driver |
    | driver | older than 570 |
    | gpus | none visible, one of them in MIG mode, or its lists cannot be read |
    | permission | a process that already exists cannot be signalled |
    """
    return SelfTest((*_surroundings(proc), *_driver(nvml)))


def _surroundings(proc: str) -> Iterator[SelfCheck]:
    yield _check("kernel", host_environment.check_kernel(proc=proc))
    namespace = host_environment.check_pid_namespace(proc=proc)
    # Where even this cannot be read, PIDs cannot be trusted to mean our own processes.
    yield SelfCheck("process-namespace", namespace.holds or False, namespace.reason)
    shared = host_environment.check_shared_process_namespace(proc=proc)
    # A container that does not share is PID 1 of its own; else only cgroups say so, not surely.
    alone = shared.holds is False and os.getpid() == 1
    yield SelfCheck("shared-processes", False if alone else shared.holds or None, shared.reason)
    yield _check("permission", _permission(proc))


def _check(name: str, fact: Fact) -> SelfCheck:
    return SelfCheck(name, fact.holds, fact.reason)


def _permission(proc: str) -> Fact:
    """Check each existing process; at the pod's start there is none yet."""
    spared = {1, os.getpid(), *processes.ancestors(os.getpid(), proc=proc)}
    for pid in processes.pids(proc=proc):
        process = None if pid in spared else processes.identify(pid, proc=proc)
        if process is not None:
            fact = host_environment.check_permission(process, proc=proc)
            if fact.holds is False:
                return fact
    return host_environment.check_own_permission(proc=proc)


def _driver(nvml: Nvml) -> Iterator[SelfCheck]:
    try:
        nvml.open()
        version = nvml.driver_version()
    except NvmlError as error:
        yield SelfCheck("library", holds=False, reason=_sentence(error))
        return
    yield SelfCheck("library", holds=True, reason="libnvidia-ml.so.1 was loaded and started.")
    works = supports_sidecar(version)
    yield SelfCheck("driver", works, f"{_capital(explain_support(version))}.")
    yield _gpus(nvml)


def _gpus(nvml: Nvml) -> SelfCheck:
    try:
        devices = nvml.devices()
        for device in devices:
            if device.mig:
                why = f"GPU {device.uuid} is in MIG mode, which reports no memory per process."
                return SelfCheck("gpus", holds=False, reason=why)
            nvml.device_used_bytes(device.uuid)
            nvml.processes(device.uuid)
    except NvmlError as error:
        return SelfCheck("gpus", holds=False, reason=_sentence(error))
    if not devices:
        why = "The driver shows no GPU to this container."
        return SelfCheck("gpus", holds=False, reason=why)
    shown = ", ".join(f"{device.uuid} ({device.product})" for device in devices)
    missing = "".join(f" Not answering: {_sentence(error)}" for error in nvml.unreachable)
    return SelfCheck("gpus", holds=True, reason=f"Visible: {shown}.{missing}")


def _sentence(error: NvmlError) -> str:
    return f"{_capital(str(error))}."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
