"""NVML queries of the node's own programs: modes, samples of processes, and health of GPUs.

The sidecar needs none of them, so it does not load this module.
"""

from __future__ import annotations

from typing import Any, Final

from webhook.adapters.nvml import Nvml, NvmlError, call_if_supported

_SUCCESS, _NOT_FOUND = 0, 6  # nvmlReturn_t of nvml.h
_RECOVERY_ACTION: Final = 230
"""NVML_FI_DEV_GET_GPU_RECOVERY_ACTION of nvml.h; pynvml has a name for it from 12.570 on."""


class NodeNvml(Nvml):
    """`Nvml` with the queries of agent, sentry and limiter; every method raises `NvmlError`."""

    def modes(self, uuid: str) -> tuple[int, int]:
        """Return a GPU's compute mode and virtualization mode; 0 if it does not support them.

        They are nvmlComputeMode_t and nvmlGpuVirtualizationMode_t of nvml.h. The default is 0.
        """
        found: tuple[int, int] = self._with_handle(uuid, self._read_modes)
        return found

    def process_samples(self, uuid: str, since_us: int) -> dict[int, tuple[int, bool]] | None:
        """Return the driver's samples of processes on a GPU since a time, by PID.

        Each has the time of its newest sample (Unix, in microseconds), and True if the process was
        active since then. Activity of less than 1 % is reported as none. The driver keeps samples
        for some 14 s. While no process is active, it keeps sampling the last active one (driver 580
        on an H100). The call takes 1.4 ms. None if the GPU does not support it.
        """
        found: dict[int, tuple[int, bool]] | None = self._with_handle(
            uuid, self._read_samples, since_us
        )
        return found

    def recovery_action(self, uuid: str) -> int | None:
        """Return the recovery action that a GPU needs, 0 for none; None if it is unknown.

        It is nvmlDeviceGpuRecoveryAction_t, which drivers support from r570 on.
        """
        found: int | None = self._with_handle(uuid, self._read_recovery_action)
        return found

    def row_remapping(self, uuid: str) -> tuple[bool, bool]:
        """Return whether a remapping of memory rows is pending, and whether one has failed.

        Both are False if the GPU does not support it: before Ampere, or without ECC.
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
            return {}  # no process was active since
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
