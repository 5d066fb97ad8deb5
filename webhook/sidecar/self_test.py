"""Self-test of the enforcer, for which the kubelet waits before it starts workload containers."""

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
    """Ability of the enforcer according to the self-test."""

    FULL = "full"
    """Measures, and stops processes above the cap."""
    OBSERVE = "observe"
    """Measures, but cannot signal the workload: an excess ends the enforcer with exit code 88."""
    BLIND = "blind"
    """Cannot measure; the workload does not start."""


@dataclass(frozen=True, slots=True)
class SelfCheck:
    """Result of one check."""

    name: str
    passed: bool | None
    """Result; None if unknown, which does not keep a workload from starting."""
    reason: str


@dataclass(frozen=True, slots=True)
class SelfTest:
    """Results of all checks."""

    checks: tuple[SelfCheck, ...]

    @property
    def ability(self) -> Ability:
        """Ability that follows from the checks."""
        failed = {check.name for check in self.checks if check.passed is False}
        if failed - {"permission"}:
            return Ability.BLIND
        return Ability.OBSERVE if failed else Ability.FULL

    @property
    def why(self) -> str:
        """Reasons of the failed checks, or of the driver check if none failed."""
        failed = [check.reason for check in self.checks if check.passed is False]
        return " ".join(failed) or next(
            (check.reason for check in self.checks if check.name == "driver"), ""
        )

    def values(self) -> dict[str, Any]:
        """Return the checks as log values."""
        return {
            "ability": self.ability.value,
            "checks": {
                check.name: {"holds": check.passed, "reason": check.reason} for check in self.checks
            },
        }


def self_test(nvml: Nvml, *, proc: str = "/proc") -> SelfTest:
    """Run all checks that the cap depends on; NVML stays open if it could be opened.

    | check | fails if |
    | --- | --- |
    | kernel | gVisor, WSL: no figures of single processes |
    | process-namespace | it is the node's, or `proc` belongs to another one: PIDs would differ |
    | shared-processes | the sidecar is alone in its namespace |
    | library | libnvidia-ml.so.1 is missing or does not fit the driver |
    | driver | it is older than 570 |
    | gpus | none is visible, one is in MIG mode, or its lists cannot be read |
    | permission | an existing process cannot be signalled |
    """
    return SelfTest((*_check_environment(proc), *_check_driver(nvml)))


def _check_environment(proc: str) -> Iterator[SelfCheck]:
    yield _from_fact("kernel", host_environment.check_kernel(proc=proc))
    namespace = host_environment.check_pid_namespace(proc=proc)
    # If this cannot be read, PIDs might be those of another namespace.
    yield SelfCheck("process-namespace", namespace.holds or False, namespace.reason)
    shared = host_environment.check_shared_process_namespace(proc=proc)
    # In a pod that does not share its process namespace the sidecar is PID 1. Otherwise only
    # cgroups can tell, and they are not certain.
    alone = shared.holds is False and os.getpid() == 1
    yield SelfCheck("shared-processes", False if alone else shared.holds or None, shared.reason)
    yield _from_fact("permission", _check_permission(proc))


def _from_fact(name: str, fact: Fact) -> SelfCheck:
    return SelfCheck(name, fact.holds, fact.reason)


def _check_permission(proc: str) -> Fact:
    """Check each existing process; when the pod starts there is none yet."""
    spared = {1, os.getpid(), *processes.ancestors(os.getpid(), proc=proc)}
    for pid in processes.pids(proc=proc):
        process = None if pid in spared else processes.identify(pid, proc=proc)
        if process is not None:
            fact = host_environment.check_permission(process, proc=proc)
            if fact.holds is False:
                return fact
    return host_environment.check_own_permission(proc=proc)


def _check_driver(nvml: Nvml) -> Iterator[SelfCheck]:
    try:
        nvml.open()
        version = nvml.driver_version()
    except NvmlError as error:
        yield SelfCheck("library", passed=False, reason=_sentence(error))
        return
    yield SelfCheck("library", passed=True, reason="libnvidia-ml.so.1 was loaded and started.")
    works = supports_sidecar(version)
    yield SelfCheck("driver", works, f"{_capital(explain_support(version))}.")
    yield _check_gpus(nvml)


def _check_gpus(nvml: Nvml) -> SelfCheck:
    try:
        devices = nvml.devices()
        for device in devices:
            if device.mig:
                why = f"GPU {device.uuid} is in MIG mode, which reports no memory per process."
                return SelfCheck("gpus", passed=False, reason=why)
            nvml.device_used_bytes(device.uuid)
            nvml.processes(device.uuid)
    except NvmlError as error:
        return SelfCheck("gpus", passed=False, reason=_sentence(error))
    if not devices:
        why = "The driver shows no GPU to this container."
        return SelfCheck("gpus", passed=False, reason=why)
    gpus = ", ".join(f"{device.uuid} ({device.product})" for device in devices)
    missing = "".join(f" Not answering: {_sentence(error)}" for error in nvml.unreachable)
    return SelfCheck("gpus", passed=True, reason=f"Visible: {gpus}.{missing}")


def _sentence(error: NvmlError) -> str:
    return f"{_capital(str(error))}."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
