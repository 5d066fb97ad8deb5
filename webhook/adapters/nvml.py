"""Access to NVML: GPUs, their memory in use, and the processes that use it.

Callers are responsible for threads, retries, pauses and logging. No other file imports `pynvml`,
which takes 6 of the 8 MB of an enforcer.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, Self

from webhook.core.enforcement.driver_limit import Limit
from webhook.core.nvidia.drivers import (
    Fault,
    ScannedGpu,
    classify_error,
    explain_fault,
    has_wide_entries,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

# pynvml imports a function of `ctypes.util` and never calls it. That module loads subprocess,
# tempfile and shutil, which would take a seventh of the sidecar's start time.
_STAND_IN: Final = None if "ctypes.util" in sys.modules else SimpleNamespace(find_library=None)
if _STAND_IN:
    sys.modules["ctypes.util"] = _STAND_IN  # type: ignore[assignment]
import pynvml  # noqa: E402 - see above

if _STAND_IN:
    del sys.modules["ctypes.util"]

_LISTS: Final = ("Compute", "Graphics", "MPSCompute")
_FIRST_SIZE: Final = 128
_MAX_SIZE: Final = 65_536
"""Maximum number of entries in a process list. The open driver truncates lists at 950
(NV2080_CTRL_GPU_GET_PIDS_MAX_COUNT); other drivers may not."""
_TRIES: Final = 4
_NOT_AVAILABLE: Final = (1 << 64) - 1
_DRIVER_FAULTS: Final = frozenset(
    {Fault.LIBRARY_MISSING, Fault.DRIVER_DOWN, Fault.DRIVER_CHANGED, Fault.LIBRARY_TOO_OLD}
)
_UNSUPPORTED: Final = frozenset({Fault.NOT_SUPPORTED, Fault.LIBRARY_TOO_OLD})


class _SetLimits(ctypes.Structure):
    """nvmlSetMemoryLimits_v1_t of r615's nvml.h; pynvml defines it from 13.615 on."""

    _fields_ = (
        ("cgroup", ctypes.c_char_p),
        ("soft", ctypes.c_ulonglong),
        ("hard", ctypes.c_ulonglong),
    )


class _GetLimits(ctypes.Structure):
    _fields_ = (*_SetLimits._fields_, ("used", ctypes.c_ulonglong))


class _WideEntry(ctypes.Structure):
    """nvmlProcessInfo_t of drivers for which `has_wide_entries` is true."""

    _fields_ = (*pynvml.c_nvmlProcessInfo_v2_t._fields_, ("protected", ctypes.c_ulonglong))


class NvmlError(Exception):
    """A failed call of NVML."""

    def __init__(self, function: str, code: int, *, gpu: str = "", detail: str = "") -> None:
        self.function = function
        self.code = code
        self.gpu = gpu
        """UUID of the GPU; empty if the call concerns no GPU, or the UUID is unreadable."""
        self.fault = classify_error(code)
        about = f"{gpu}: " if gpu else ""
        more = f": {detail}" if detail else ""
        super().__init__(f"{about}{explain_fault(self.fault)} ({function} returned {code}{more})")


class LimitDeniedError(NvmlError):
    """The driver rejects this limit for this cgroup."""

    def __init__(self, function: str, code: int, *, gpu: str) -> None:
        super().__init__(function, code, gpu=gpu, detail="it denies this limit of this cgroup")
        self.fault = Fault.UNKNOWN


class Nvml:
    """NVML from `open` to `close`; every method raises `NvmlError`.

    GPUs are identified by UUID, since indexes and handles change when a GPU is lost. Only `devices`
    obtains handles, so that the caller decides when to retry a lost GPU. Older drivers lack
    features:

    | driver version | missing feature | effect |
    | --- | --- | --- |
    | before r510 | version 3 of the lists, 2 of the memory | versions 2 and 1, without a reserve |
    | 535.43 to 535.86 | the usual entries of the lists | the wide entries are read |
    | before r570 | the recovery action | `recovery_action` of `NodeNvml` returns None |
    | before r615 | limits of cgroups | `limit` returns None, `set_limit` False |

    `webhook.core.nvidia.drivers.classify_driver` returns whether process lists can be trusted.
    """

    def __init__(self, only: Iterable[str] | None = None) -> None:
        """`only` contains the UUIDs of the visible GPUs; None means all."""
        self._only = None if only is None else frozenset(only)
        self._is_open = False
        self._handles: dict[str, Any] = {}
        self.unreachable: tuple[NvmlError, ...] = ()
        """Errors of the GPUs that the last call of `devices` left out."""
        self._entry: Any = pynvml.c_nvmlProcessInfo_v2_t
        self._buffer = (self._entry * _FIRST_SIZE)()

    def open(self) -> Self:
        """Load the library and initialize it; without effect if it is open.

        A library that was not found is searched for again. A loaded library stays loaded, even if
        its file is removed.
        """
        if not self._is_open:
            _call("nvmlInitWithFlags", pynvml.nvmlInit)
            self._is_open = True
        return self

    def close(self) -> None:
        """Shut down the library; errors are ignored, since the driver may be gone."""
        self._handles.clear()
        if self._is_open:
            self._is_open = False
            with contextlib.suppress(NvmlError):
                _call("nvmlShutdown", pynvml.nvmlShutdown)

    def reopen(self) -> None:
        """Close and open NVML after the driver was down; call `devices` again afterwards.

        If that fails, NVML stays closed, and the call can be repeated.
        """
        self.close()
        self.open()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def driver_version(self) -> str:
        """Return the version of the driver, for `webhook.core.nvidia.drivers.classify_driver`."""
        return str(_call("nvmlSystemGetDriverVersion", pynvml.nvmlSystemGetDriverVersion))

    def devices(self) -> tuple[ScannedGpu, ...]:
        """Find all GPUs again; return those that respond, in NVML's order.

        Errors of the other GPUs are in `unreachable`, so that a lost GPU does not hide the rest.
        Raises an error if no GPU responds, or the whole driver fails. Returns an empty tuple if
        there is no GPU.
        """
        self._handles.clear()
        self.unreachable = ()
        if has_wide_entries(self.driver_version()):
            self._entry = _WideEntry
            self._buffer = (_WideEntry * _FIRST_SIZE)()
        found: list[ScannedGpu] = []
        errors: list[NvmlError] = []
        for index in range(_call("nvmlDeviceGetCount_v2", pynvml.nvmlDeviceGetCount)):
            try:
                device = self._open_gpu(index)
            except NvmlError as error:
                if error.fault in _DRIVER_FAULTS:
                    raise
                errors.append(error)
            else:
                found += [device] if device is not None else []
        if self._only is not None:
            absent = self._only - set(self._handles) - {error.gpu for error in errors}
            errors = [error for error in errors if error.gpu or absent]
            errors += [_not_found(uuid) for uuid in sorted(absent)]
        self.unreachable = tuple(errors)
        if errors and not found:
            raise errors[0]
        return tuple(found)

    def device_used_bytes(self, uuid: str) -> int | None:
        """Return the memory that all processes use on a GPU; None if the GPU does not report it.

        The call takes 10 us on an H100. Reading a process list takes 34 us with one process and 627
        us with 48. The result excludes the driver's reserve, except on drivers older than R510.
        """
        memory = self._with_handle(uuid, self._read_memory)
        return None if memory is None else memory[2]

    def processes(self, uuid: str) -> dict[int, int | None]:
        """Return the memory in use on a GPU, keyed by the PID of each listed process.

        From driver 535.113.01 on, PIDs belong to the caller's PID namespace; before, to the host's.
        None means that the driver reports no amount, or 0, which means unknown.

        A process is listed several times if it is a client of the driver more than once, or is in
        several lists. Its largest amount counts. PID 0, a process outside the caller's PID
        namespace, is left out.
        """
        largest: dict[int, int] = {}
        for kind in _LISTS:
            for pid, used_bytes in self._with_handle(uuid, self._read_list, kind):
                largest[pid] = max(largest.get(pid, 0), used_bytes)
        return {pid: used or None for pid, used in largest.items() if pid}

    def limit(self, uuid: str, cgroup: str) -> Limit | None:
        """Return the driver's memory limit of a cgroup on a GPU; requires no privilege.

        `cgroup` is the absolute path of a cgroup v2 directory in the caller's mount namespace. With
        the back end `misc`, the limit of the cgroup or of its nearest limited ancestor is returned.
        The result is None if there is no limit, before r615, and with the back end `dmem` if the
        cgroup lacks its files. The driver does not distinguish these cases.
        """
        limits = _GetLimits(cgroup=cgroup.encode())
        found = self._with_handle(uuid, self._read_limits, "nvmlDeviceGetMemoryLimits_v1", limits)
        return None if found is None else Limit(found.soft, found.hard, found.used)

    def set_limit(self, uuid: str, cgroup: str, soft_bytes: int, hard_bytes: int) -> bool:
        """Set the driver's memory limit of a cgroup; requires CAP_SYS_ADMIN on the node.

        Returns False if the driver or the GPU does not support limits. Raises LimitDeniedError if
        more memory is already in use, or the path is not a cgroup.
        """
        limits = _SetLimits(cgroup=cgroup.encode(), soft=soft_bytes, hard=hard_bytes)
        return (
            self._with_handle(uuid, self._read_limits, "nvmlDeviceSetMemoryLimits_v1", limits)
            is not None
        )

    def _open_gpu(self, index: int) -> ScannedGpu | None:
        """Obtain the handle of the GPU with this index; return None if it is not in `only`."""
        handle = _call("nvmlDeviceGetHandleByIndex_v2", pynvml.nvmlDeviceGetHandleByIndex, index)
        uuid = _call("nvmlDeviceGetUUID", pynvml.nvmlDeviceGetUUID, handle)
        if self._only is not None and uuid not in self._only:
            return None
        device = self._describe(uuid, handle, index)
        self._handles[uuid] = handle
        return device

    def _describe(self, uuid: str, handle: Any, index: int) -> ScannedGpu:
        name = _call("nvmlDeviceGetName", pynvml.nvmlDeviceGetName, handle, gpu=uuid)
        total_bytes, reserved_bytes, _ = self._read_memory(uuid, handle) or (None, None, None)
        modes = _call_supported(
            "nvmlDeviceGetMigMode", pynvml.nvmlDeviceGetMigMode, handle, gpu=uuid
        )
        total_bytes = total_bytes or None  # 0 means unknown
        usable_bytes = None if total_bytes is None else total_bytes - (reserved_bytes or 0)
        return ScannedGpu(
            uuid=uuid,
            product=name,
            index=index,
            usable_bytes=usable_bytes,
            mig=bool(modes and modes[0]),
            total_bytes=total_bytes,
        )

    def _with_handle(self, uuid: str, read: Callable[..., Any], *arguments: Any) -> Any:
        """Call `read` with a GPU's UUID and handle; drop the handle if the GPU is lost."""
        if not self._is_open:
            raise NvmlError("nvmlInitWithFlags", pynvml.NVML_ERROR_UNINITIALIZED, gpu=uuid)
        if uuid not in self._handles:
            raise _not_found(uuid)
        try:
            return read(uuid, self._handles[uuid], *arguments)
        except NvmlError as error:
            if error.fault is Fault.GPU_LOST:
                del self._handles[uuid]
            raise

    def _read_limits(self, uuid: str, handle: Any, name: str, limits: Any) -> Any:
        """Fill the structure; return None if the driver has no limit or does not support limits.

        Errors of a cgroup have codes that mean a lost GPU in other calls.
        """
        try:
            return _call_supported(name, _call_limits, name, handle, limits, gpu=uuid)
        except NvmlError as error:
            if error.code == pynvml.NVML_ERROR_NOT_FOUND:
                return None
            if error.code == pynvml.NVML_ERROR_INVALID_ARGUMENT:
                raise LimitDeniedError(name, error.code, gpu=uuid) from None
            raise

    def _read_memory(self, uuid: str, handle: Any) -> tuple[int, int | None, int] | None:
        """Return total, reserved and used bytes; reserved is None with version 1 of the call."""
        read, version = pynvml.nvmlDeviceGetMemoryInfo, pynvml.nvmlMemory_v2
        memory = _call_supported("nvmlDeviceGetMemoryInfo_v2", read, handle, version, gpu=uuid)
        if memory is not None:
            return memory.total, memory.reserved, memory.used
        memory = _call_supported("nvmlDeviceGetMemoryInfo", read, handle, gpu=uuid)
        return None if memory is None else (memory.total, None, memory.used)

    def _read_list(self, uuid: str, handle: Any, kind: str) -> list[tuple[int, int]]:
        """Return PID and bytes of each entry of a list; 0 bytes mean unknown.

        GPUs and drivers may lack the lists for graphics or MPS, which then count as empty. The
        compute list is required. Version 3, from R510 on, has the layout of version 2, except with
        the drivers of `has_wide_entries`.
        """
        name = f"nvmlDeviceGet{kind}RunningProcesses"
        try:
            try:
                return self._read_entries(uuid, handle, f"{name}_v3")
            except NvmlError as error:
                if error.fault is not Fault.LIBRARY_TOO_OLD:
                    raise
            return self._read_entries(uuid, handle, f"{name}_v2")
        except NvmlError as error:
            if error.fault in _UNSUPPORTED and kind != "Compute":
                return []
            raise

    def _read_entries(self, uuid: str, handle: Any, name: str) -> list[tuple[int, int]]:
        """Return the entries of a process list; the buffer is reused and grows with the list.

        pynvml's wrapper requests the length first, which doubles the time, and raises an error if
        the list has grown before the second call.
        """
        for _ in range(_TRIES):
            count = _call(name, _fill_buffer, name, handle, self._buffer, gpu=uuid)
            if count <= len(self._buffer):
                listed = self._buffer[:count]
                return [(entry.pid, entry.usedGpuMemory % _NOT_AVAILABLE) for entry in listed]
            size = max(count, 2 * len(self._buffer))
            self._buffer = (self._entry * min(size, _MAX_SIZE))()
        raise NvmlError(name, pynvml.NVML_ERROR_INSUFFICIENT_SIZE, gpu=uuid)


def _call(name: str, function: Callable[..., Any], *arguments: Any, gpu: str = "") -> Any:
    """Call a function of pynvml, and convert its exceptions to NvmlError."""
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        loading = error.__context__ if isinstance(error.__context__, OSError) else ""
        raise NvmlError(name, int(error.value), gpu=gpu, detail=str(loading)) from None
    except pynvml.NVMLLibraryMismatchError:  # not a subclass of NVMLError
        raise NvmlError(name, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, gpu=gpu) from None
    except UnicodeDecodeError as error:
        raise NvmlError(name, pynvml.NVML_ERROR_UNKNOWN, gpu=gpu, detail=str(error)) from None


def _call_supported(name: str, function: Callable[..., Any], *arguments: Any, gpu: str) -> Any:
    """Return the result of `_call`, or None if the GPU or the library does not support it."""
    try:
        return _call(name, function, *arguments, gpu=gpu)
    except NvmlError as error:
        if error.fault not in _UNSUPPORTED:
            raise
        return None


def _call_limits(name: str, handle: Any, limits: Any) -> Any:
    """Call a limit function by its pointer; pynvml defines these functions from 13.615 on."""
    pointer = pynvml._nvmlGetFunctionPointer(name)  # noqa: SLF001 - see `_fill_buffer`
    code = pointer(handle, ctypes.byref(limits))
    if code != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(code)
    return limits


def _fill_buffer(name: str, handle: Any, buffer: Any) -> int:
    """Fill the buffer; return the number of entries, even if more than fit.

    `_nvmlGetFunctionPointer` and the structure are the same in pynvml 12.560 to 13.615.
    """
    count = ctypes.c_uint(len(buffer))
    pointer = pynvml._nvmlGetFunctionPointer(name)  # noqa: SLF001 - see above
    code = pointer(handle, ctypes.byref(count), buffer)
    if code == pynvml.NVML_ERROR_INSUFFICIENT_SIZE:
        return max(int(count.value), len(buffer) + 1)
    if code != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(code)
    return int(count.value)


def call_if_supported(name: str, *arguments: Any, gpu: str) -> Any:
    """Call a pynvml function by its name, or return None if the GPU or library lacks it."""
    return _call_supported(name, getattr(pynvml, name), *arguments, gpu=gpu)


def _not_found(uuid: str) -> NvmlError:
    return NvmlError("nvmlDeviceGetHandleByUUID", pynvml.NVML_ERROR_GPU_NOT_FOUND, gpu=uuid)
