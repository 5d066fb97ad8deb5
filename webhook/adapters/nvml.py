"""The only access to NVML: GPUs, their memory in use, and the processes that hold it.

Threads, retries, pauses and logging are the caller's. No other file imports `pynvml`, which takes
6 MB of a process that has 8.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, Self

from webhook.core.enforcement.limits import Limit
from webhook.core.nvidia.drivers import (
    Fault,
    ScannedGpu,
    classify_error,
    explain_fault,
    has_wide_entries,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

# pynvml imports a name of it that it never calls; it would load subprocess, tempfile and shutil,
# a seventh of a sidecar's start.
_STANDS_IN: Final = None if "ctypes.util" in sys.modules else SimpleNamespace(find_library=None)
if _STANDS_IN:
    sys.modules["ctypes.util"] = _STANDS_IN  # type: ignore[assignment]
import pynvml  # noqa: E402 - see above

if _STANDS_IN:
    del sys.modules["ctypes.util"]

_LISTS: Final = ("Compute", "Graphics", "MPSCompute")
_FIRST_SIZE: Final = 128
_LARGEST_SIZE: Final = 65_536
"""The open driver cuts a list at 950 (NV2080_CTRL_GPU_GET_PIDS_MAX_COUNT); others may not."""
_TRIES: Final = 4
_NOT_AVAILABLE: Final = (1 << 64) - 1
_OF_ALL_GPUS: Final = frozenset(
    {Fault.LIBRARY_MISSING, Fault.DRIVER_DOWN, Fault.DRIVER_CHANGED, Fault.LIBRARY_TOO_OLD}
)
_ABSENT: Final = frozenset({Fault.NOT_SUPPORTED, Fault.LIBRARY_TOO_OLD})
_RECOVERY_ACTION: Final = 230
"""NVML_FI_DEV_GET_GPU_RECOVERY_ACTION of nvml.h; pynvml has a name for it from 12.570 on."""


class _SetLimits(ctypes.Structure):
    """nvmlSetMemoryLimits_v1_t of r615's nvml.h, which pynvml has from 13.615 on."""

    _fields_ = (
        ("cgroup", ctypes.c_char_p),
        ("soft", ctypes.c_ulonglong),
        ("hard", ctypes.c_ulonglong),
    )


class _GetLimits(ctypes.Structure):
    """nvmlGetMemoryLimits_v1_t."""

    _fields_ = (*_SetLimits._fields_, ("used", ctypes.c_ulonglong))


class _WideEntry(ctypes.Structure):
    """nvmlProcessInfo_t of the drivers of `has_wide_entries`."""

    _fields_ = (*pynvml.c_nvmlProcessInfo_v2_t._fields_, ("protected", ctypes.c_ulonglong))


class NvmlError(Exception):
    """A call that NVML did not answer."""

    def __init__(self, function: str, code: int, *, gpu: str = "", detail: str = "") -> None:
        self.function = function
        self.code = code
        """NVML's own, nvmlReturn_t."""
        self.gpu = gpu
        """The GPU's UUID, or empty where no GPU is meant or its UUID could not be read."""
        self.fault = classify_error(code)
        about = f"{gpu}: " if gpu else ""
        more = f": {detail}" if detail else ""
        super().__init__(f"{about}{explain_fault(self.fault)} ({function} returned {code}{more})")


class LimitDeniedError(NvmlError):
    """The driver does not take this limit for this cgroup."""

    def __init__(self, function: str, code: int, *, gpu: str) -> None:
        super().__init__(function, code, gpu=gpu, detail="it denies this limit of this cgroup")
        self.fault = Fault.UNKNOWN


class Nvml:
    """NVML from `open` to `close`; every method raises `NvmlError`.

    GPUs are named by UUID, since numbers and handles change when one is lost. Handles come from
    `devices` alone, so that the caller decides when a lost GPU is asked again. What older drivers
    lack:

    | before | is missing | then |
    | --- | --- | --- |
    | r510 | version 3 of the lists; version 2 of the memory | versions 2 and 1, without a reserve |
    | 535.87 | from 535.43 on: the usual entries of the lists | they are read as they are |
    | r570 | the recovery action | `recovery` returns None |
    | r615 | limits of cgroups | `limit` returns None, `set_limit` False |

    `webhook.core.nvidia.drivers.classify_driver` returns whether process lists can be trusted.
    """

    def __init__(self, only: Iterable[str] | None = None) -> None:
        """See the GPUs with these UUIDs, or all where None."""
        self._only = None if only is None else frozenset(only)
        self._is_open = False
        self._handles: dict[str, Any] = {}
        self.unreachable: tuple[NvmlError, ...] = ()
        """Why GPUs are missing from what `devices` returned last."""
        self._entry: Any = pynvml.c_nvmlProcessInfo_v2_t
        self._buffer = (self._entry * _FIRST_SIZE)()

    def open(self) -> Self:
        """Load the library and start it; without effect where it is open.

        A library that was not found is searched for again; one that was loaded stays, whatever
        becomes of its file.
        """
        if not self._is_open:
            _ask("nvmlInitWithFlags", pynvml.nvmlInit)
            self._is_open = True
        return self

    def close(self) -> None:
        """Release the library; never raise, since a driver that is gone cannot be asked."""
        self._handles.clear()
        if self._is_open:
            self._is_open = False
            with contextlib.suppress(NvmlError):
                _ask("nvmlShutdown", pynvml.nvmlShutdown)

    def reopen(self) -> None:
        """Close and open NVML after the driver was down; `devices` has to be called again.

        Where it fails, NVML stays closed; retry it.
        """
        self.close()
        self.open()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def driver_version(self) -> str:
        """Return the version of the driver, for `webhook.core.nvidia.drivers.classify_driver`."""
        return str(_ask("nvmlSystemGetDriverVersion", pynvml.nvmlSystemGetDriverVersion))

    def devices(self) -> tuple[ScannedGpu, ...]:
        """Find all GPUs again, and return those that answer, in NVML's order.

        One that does not answer is in `unreachable`, so that a lost GPU does not hide the others.
        Raises where none answers, or the driver as a whole fails; returns nothing where the driver
        shows us no GPU.
        """
        self._handles.clear()
        self.unreachable = ()
        if has_wide_entries(self.driver_version()):
            self._entry = _WideEntry
            self._buffer = (_WideEntry * _FIRST_SIZE)()
        found: list[ScannedGpu] = []
        missed: list[NvmlError] = []
        for index in range(_ask("nvmlDeviceGetCount_v2", pynvml.nvmlDeviceGetCount)):
            try:
                device = self._open_gpu(index)
            except NvmlError as error:
                if error.fault in _OF_ALL_GPUS:
                    raise
                missed.append(error)
            else:
                found += [device] if device is not None else []
        if self._only is not None:
            absent = self._only - set(self._handles) - {error.gpu for error in missed}
            missed = [error for error in missed if error.gpu or absent]
            missed += [_not_found(uuid) for uuid in sorted(absent)]
        self.unreachable = tuple(missed)
        if missed and not found:
            raise missed[0]
        return tuple(found)

    def device_used_bytes(self, uuid: str) -> int | None:
        """Return what is in use on a GPU by everybody; None where the GPU does not report it.

        Cheap: 10 us on an H100, where one list takes 34 us with one process and 627 with 48.
        Without the driver's reserve, except on drivers older than R510.
        """
        memory = self._about(uuid, self._memory)
        return None if memory is None else memory[2]

    def processes(self, uuid: str) -> dict[int, int | None]:
        """Return what every process that the driver lists on a GPU holds there, by PID.

        Those are of our own PID namespace, from driver 535.113.01 on; host PIDs before. None where
        the driver gives no figure, or 0: unknown is not zero.

        A process is listed several times where it is a client of the driver more than once, or
        of several lists: its largest figure counts. PID 0 stands for a process outside our PID
        namespace and is left out.
        """
        largest: dict[int, int] = {}
        for kind in _LISTS:
            for pid, used_bytes in self._about(uuid, self._list, kind):
                largest[pid] = max(largest.get(pid, 0), used_bytes)
        return {pid: used or None for pid, used in largest.items() if pid}

    def limit(self, uuid: str, cgroup: str) -> Limit | None:
        """Return what the driver holds a cgroup to on a GPU; it needs no right.

        `cgroup` is an absolute path of a directory of cgroup v2 as we see it. With the back end
        misc the answer is that of the nearest of its ancestors, itself included, that has a limit.
        None where there is none, before r615, and where the back end is dmem and the cgroup has not
        its files: the driver does not tell these apart.
        """
        limits = _GetLimits(cgroup=cgroup.encode())
        found = self._about(uuid, self._limits, "nvmlDeviceGetMemoryLimits_v1", limits)
        return None if found is None else Limit(found.soft, found.hard, found.used)

    def set_limit(self, uuid: str, cgroup: str, soft_bytes: int, hard_bytes: int) -> bool:
        """Have the driver hold a cgroup to an amount; needs CAP_SYS_ADMIN of the node.

        Return whether this driver and GPU can, as far as the call tells. Raises LimitDeniedError
        where the amount is less than what is counted already, or the path is no cgroup.
        """
        limits = _SetLimits(cgroup=cgroup.encode(), soft=soft_bytes, hard=hard_bytes)
        return self._about(uuid, self._limits, "nvmlDeviceSetMemoryLimits_v1", limits) is not None

    def modes(self, uuid: str) -> tuple[int, int]:
        """Return a GPU's compute mode and its virtualization mode; 0, the usual one, for neither.

        As nvmlComputeMode_t and nvmlGpuVirtualizationMode_t of nvml.h have them.
        """
        found: tuple[int, int] = self._about(uuid, self._modes)
        return found

    def ran(self, uuid: str, since_us: int) -> dict[int, tuple[int, bool]] | None:
        """Return which processes the driver sampled on a GPU since a time, by PID.

        Each with the time of its newest sample (Unix, in microseconds) and whether it did anything
        in that span; what takes less than a hundredth of it is shown as nothing. The driver keeps
        some 14 s, and goes on sampling who ran last while nobody runs (driver 580 on an H100). The
        call takes 1.4 ms. None where the GPU does not offer it.
        """
        found: dict[int, tuple[int, bool]] | None = self._about(uuid, self._samples, since_us)
        return found

    def recovery(self, uuid: str) -> int | None:
        """Return the recovery action that a GPU asks for, 0 for none; None where it does not say.

        An `nvmlDeviceGpuRecoveryAction_t`, which drivers have from r570 on.
        """
        found: int | None = self._about(uuid, self._recovery)
        return found

    def remaps(self, uuid: str) -> tuple[bool, bool]:
        """Say of a GPU's memory whether the remapping of a row is pending, and whether one failed.

        Neither where the GPU does not offer it: before Ampere, or without ECC.
        """
        rows = self._about(uuid, self._remaps)
        return (bool(rows[2]), bool(rows[3])) if rows else (False, False)

    def _open_gpu(self, index: int) -> ScannedGpu | None:
        """Keep the handle of the GPU at this place; None for one that is not ours to see."""
        handle = _ask("nvmlDeviceGetHandleByIndex_v2", pynvml.nvmlDeviceGetHandleByIndex, index)
        uuid = _ask("nvmlDeviceGetUUID", pynvml.nvmlDeviceGetUUID, handle)
        if self._only is not None and uuid not in self._only:
            return None
        device = self._describe(uuid, handle, index)
        self._handles[uuid] = handle
        return device

    def _describe(self, uuid: str, handle: Any, index: int) -> ScannedGpu:
        name = _ask("nvmlDeviceGetName", pynvml.nvmlDeviceGetName, handle, gpu=uuid)
        total_bytes, reserved_bytes, _ = self._memory(uuid, handle) or (None, None, None)
        modes = _ask_if_supported(
            "nvmlDeviceGetMigMode", pynvml.nvmlDeviceGetMigMode, handle, gpu=uuid
        )
        whole = total_bytes or None  # a total of 0 is none
        usable_bytes = None if whole is None else whole - (reserved_bytes or 0)
        return ScannedGpu(
            uuid=uuid,
            product=name,
            index=index,
            usable_bytes=usable_bytes,
            mig=bool(modes and modes[0]),
            total_bytes=whole,
        )

    def _about(self, uuid: str, ask: Callable[..., Any], *arguments: Any) -> Any:
        """Ask about one GPU, and drop its handle where that is lost."""
        if not self._is_open:
            raise NvmlError("nvmlInitWithFlags", pynvml.NVML_ERROR_UNINITIALIZED, gpu=uuid)
        if uuid not in self._handles:
            raise _not_found(uuid)
        try:
            return ask(uuid, self._handles[uuid], *arguments)
        except NvmlError as error:
            if error.fault is Fault.GPU_LOST:
                del self._handles[uuid]
            raise

    def _limits(self, uuid: str, handle: Any, name: str, limits: Any) -> Any:
        """Fill the structure; None where the driver does not offer it, or has no limit there.

        What is wrong with a cgroup has codes that elsewhere mean a GPU that is gone.
        """
        try:
            return _ask_if_supported(name, _limits_by_pointer, name, handle, limits, gpu=uuid)
        except NvmlError as error:
            if error.code == pynvml.NVML_ERROR_NOT_FOUND:
                return None
            if error.code == pynvml.NVML_ERROR_INVALID_ARGUMENT:
                raise LimitDeniedError(name, error.code, gpu=uuid) from None
            raise

    def _modes(self, uuid: str, handle: Any) -> tuple[int, int]:
        compute = pynvml.nvmlDeviceGetComputeMode
        name, virtual = "nvmlDeviceGetVirtualizationMode", pynvml.nvmlDeviceGetVirtualizationMode
        return (
            int(_ask_if_supported("nvmlDeviceGetComputeMode", compute, handle, gpu=uuid) or 0),
            int(_ask_if_supported(name, virtual, handle, gpu=uuid) or 0),
        )

    def _samples(self, uuid: str, handle: Any, since_us: int) -> dict[int, tuple[int, bool]] | None:
        name, ask = "nvmlDeviceGetProcessUtilization", pynvml.nvmlDeviceGetProcessUtilization
        try:
            samples = _ask_if_supported(name, ask, handle, since_us, gpu=uuid)
        except NvmlError as error:
            if error.code != pynvml.NVML_ERROR_NOT_FOUND:
                raise
            return {}  # nobody ran since
        if samples is None:
            return None
        return {
            int(one.pid): (
                int(one.timeStamp),
                any((one.smUtil, one.memUtil, one.encUtil, one.decUtil)),
            )
            for one in samples
        }

    def _recovery(self, uuid: str, handle: Any) -> int | None:
        name, ask = "nvmlDeviceGetFieldValues", pynvml.nvmlDeviceGetFieldValues
        fields = _ask_if_supported(name, ask, handle, [_RECOVERY_ACTION], gpu=uuid)
        if fields is None or fields[0].nvmlReturn != pynvml.NVML_SUCCESS:
            return None
        return int(fields[0].value.uiVal)

    def _remaps(self, uuid: str, handle: Any) -> Any:
        name, ask = "nvmlDeviceGetRemappedRows", pynvml.nvmlDeviceGetRemappedRows
        return _ask_if_supported(name, ask, handle, gpu=uuid)

    def _memory(self, uuid: str, handle: Any) -> tuple[int, int | None, int] | None:
        """Return total, reserved and used bytes; reserved is None where only version 1 exists."""
        ask, version = pynvml.nvmlDeviceGetMemoryInfo, pynvml.nvmlMemory_v2
        memory = _ask_if_supported("nvmlDeviceGetMemoryInfo_v2", ask, handle, version, gpu=uuid)
        if memory is not None:
            return memory.total, memory.reserved, memory.used
        memory = _ask_if_supported("nvmlDeviceGetMemoryInfo", ask, handle, gpu=uuid)
        return None if memory is None else (memory.total, None, memory.used)

    def _list(self, uuid: str, handle: Any, kind: str) -> list[tuple[int, int]]:
        """Return PID and bytes of each entry of a list, 0 for no figure.

        GPUs and drivers may lack graphics or MPS, and nothing runs there then; without a compute
        list nothing can be measured. Both versions have one layout, except as `has_wide_entries`
        returns; R510 brought v3.
        """
        name = f"nvmlDeviceGet{kind}RunningProcesses"
        try:
            try:
                return self._entries_of(uuid, handle, f"{name}_v3")
            except NvmlError as error:
                if error.fault is not Fault.LIBRARY_TOO_OLD:
                    raise
            return self._entries_of(uuid, handle, f"{name}_v2")
        except NvmlError as error:
            if error.fault in _ABSENT and kind != "Compute":
                return []
            raise

    def _entries_of(self, uuid: str, handle: Any, name: str) -> list[tuple[int, int]]:
        """Fill a buffer that is kept from call to call and grows with the list.

        pynvml's own wrapper asks for the length first, which doubles the price, and raises where
        the list has grown by the second call.
        """
        for _ in range(_TRIES):
            count = _ask(name, _fill, name, handle, self._buffer, gpu=uuid)
            if count <= len(self._buffer):
                listed = self._buffer[:count]
                return [(entry.pid, entry.usedGpuMemory % _NOT_AVAILABLE) for entry in listed]
            size = max(count, 2 * len(self._buffer))
            self._buffer = (self._entry * min(size, _LARGEST_SIZE))()
        raise NvmlError(name, pynvml.NVML_ERROR_INSUFFICIENT_SIZE, gpu=uuid)


def _ask(name: str, function: Callable[..., Any], *arguments: Any, gpu: str = "") -> Any:
    """Make one call to the vendor's binding; turn each of its exceptions into NvmlError."""
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        loading = error.__context__ if isinstance(error.__context__, OSError) else ""
        raise NvmlError(name, int(error.value), gpu=gpu, detail=str(loading)) from None
    except pynvml.NVMLLibraryMismatchError:  # not an NVMLError, for reasons of its own
        raise NvmlError(name, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, gpu=gpu) from None
    except UnicodeDecodeError as error:
        raise NvmlError(name, pynvml.NVML_ERROR_UNKNOWN, gpu=gpu, detail=str(error)) from None


def _ask_if_supported(name: str, function: Callable[..., Any], *arguments: Any, gpu: str) -> Any:
    """Do as `_ask`, but return None where the GPU or the library does not have it."""
    try:
        return _ask(name, function, *arguments, gpu=gpu)
    except NvmlError as error:
        if error.fault not in _ABSENT:
            raise
        return None


def _limits_by_pointer(name: str, handle: Any, limits: Any) -> Any:
    """Call as `_fill` does: releases of pynvml before 13.615 have no name for it."""
    pointer = pynvml._nvmlGetFunctionPointer(name)  # noqa: SLF001 - see `_fill`
    code = pointer(handle, ctypes.byref(limits))
    if code != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(code)
    return limits


def _fill(name: str, handle: Any, buffer: Any) -> int:
    """Fill the buffer and return how many entries there are, even if more than fit.

    The function is called by pynvml's pointer: `_nvmlGetFunctionPointer` and the structure are the
    same from 12.560 to 13.615.
    """
    count = ctypes.c_uint(len(buffer))
    pointer = pynvml._nvmlGetFunctionPointer(name)  # noqa: SLF001 - see above
    code = pointer(handle, ctypes.byref(count), buffer)
    if code == pynvml.NVML_ERROR_INSUFFICIENT_SIZE:
        return max(int(count.value), len(buffer) + 1)
    if code != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(code)
    return int(count.value)


def _not_found(uuid: str) -> NvmlError:
    return NvmlError("nvmlDeviceGetHandleByUUID", pynvml.NVML_ERROR_GPU_NOT_FOUND, gpu=uuid)
