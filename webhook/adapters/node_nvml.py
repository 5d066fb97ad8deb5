"""NVML queries of the node programs: GPU modes, process samples, and GPU health.

The sidecar does not need them, so it does not load this module.
"""

from __future__ import annotations

from typing import Any, Final

from webhook.adapters.nvml import Nvml, NvmlError, call_if_supported

_SUCCESS, _NOT_FOUND = 0, 6  # nvmlReturn_t of nvml.h
_RECOVERY_ACTION: Final = 230
"""NVML_FI_DEV_GET_GPU_RECOVERY_ACTION of nvml.h; pynvml has a name for it from 12.570 on."""


class NodeNvml(Nvml):
    """`Nvml` with further queries of agent, sentry and limiter; every method raises `NvmlError`."""

    def modes(self, uuid: str) -> tuple[int, int]:
        """Return a GPU's compute mode and virtualization mode; 0 for a mode it does not support.

        They are nvmlComputeMode_t and nvmlGpuVirtualizationMode_t of nvml.h. The default is 0.
        """
        found: tuple[int, int] = self._with_handle(uuid, self._read_modes)
        return found

    def process_samples(self, uuid: str, since_us: int) -> dict[int, tuple[int, bool]] | None:
        """Return samples of the processes on a GPU, keyed by PID; None if the GPU has no samples.

        A value has the time of the newest sample (Unix, in microseconds), and True if the process
        was active since `since_us`. Activity of less than 1 % counts as none. The driver keeps
        samples for about 14 s. While no process is active, it keeps sampling the process that was
        active last (driver 580 on an H100). The call takes 1.4 ms.
        """
        found: dict[int, tuple[int, bool]] | None = self._with_handle(
            uuid, self._read_samples, since_us
        )
        return found

    def recovery_action(self, uuid: str) -> int | None:
        """Return the recovery action that a GPU needs; 0 for none, None if unknown.

        The action is nvmlDeviceGpuRecoveryAction_t, which drivers support from r570 on.
        """
        found: int | None = self._with_handle(uuid, self._read_recovery_action)
        return found

    def row_remapping(self, uuid: str) -> tuple[bool, bool]:
        """Return whether remapping of memory rows is pending, and whether remapping has failed.

        Both are False if the GPU does not support row remapping: before Ampere, or without ECC.
        """
        rows = self._with_handle(uuid, self._read_remapped_rows)
        return (bool(rows[2]), bool(rows[3])) if rows else (False, False)

    def _read_modes(self, uuid: str, handle: Any) -> tuple[int, int]:
        names = "nvmlDeviceGetComputeMode", "nvmlDeviceGetVirtualizationMode"
        compute, virtual = (call_if_supported(name, handle, gpu=uuid) or 0 for name in names)
        return int(compute), int(virtual)

    def _read_samples(
        self, uuid: str, handle: Any, since_us: int
    ) -> dict[int, tuple[int, bool]] | None:
        name = "nvmlDeviceGetProcessUtilization"
        try:
            samples = call_if_supported(name, handle, since_us, gpu=uuid)
        except NvmlError as error:
            if error.code != _NOT_FOUND:
                raise
            return {}  # no process has been active since then
        if samples is None:
            return None
        return {
            int(sample.pid): (
                int(sample.timeStamp),
                any((sample.smUtil, sample.memUtil, sample.encUtil, sample.decUtil)),
            )
            for sample in samples
        }

    def _read_recovery_action(self, uuid: str, handle: Any) -> int | None:
        name = "nvmlDeviceGetFieldValues"
        fields = call_if_supported(name, handle, [_RECOVERY_ACTION], gpu=uuid)
        if fields is None or fields[0].nvmlReturn != _SUCCESS:
            return None
        return int(fields[0].value.uiVal)

    def _read_remapped_rows(self, uuid: str, handle: Any) -> Any:
        return call_if_supported("nvmlDeviceGetRemappedRows", handle, gpu=uuid)
