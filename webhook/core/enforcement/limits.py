"""The driver's own limit of a cgroup, from driver r615 on: what it is, and what is judged under it.

Sources: nvml.h of r615 (nvmlDeviceSetMemoryLimits_v1), memacct.c of NVIDIA's open kernel modules
615.71.09.
"""

from __future__ import annotations

from typing import Final

from webhook.core.frozen import dataclass

NO_LIMIT: Final = (1 << 64) - 1
"""NVML_DEVICE_MEMORY_LIMIT_MAX."""

WAIT_S: Final = 2.0
"""So long a sidecar waits for its pod's limit under `Auto`."""

CONTEXT_BYTES: Final = 600 * 2**20
"""Of each process, what the lists may show and the driver may not count: a CUDA context. 518 MiB
were seen on an H100 with driver 580; whether r615 counts it, no hardware has said yet."""

MOST_CONTEXTS: Final = 8
"""Of a pod, that are let pass so: else a crowd of processes could hold what nobody counts."""

REQUIRE: Final = "Require"
DRIVER_LIMITS: Final = ("Auto", REQUIRE)
"""What the annotation `driver-limit` says: go on where the limit does not come, or wait for it."""


@dataclass(frozen=True, slots=True)
class Limit:
    """What the driver holds a cgroup to on a GPU, in bytes."""

    soft_bytes: int
    hard_bytes: int
    """`NO_LIMIT` for none."""
    used_bytes: int
    """What it counts: no managed memory, nothing from before the limit, no import by IPC."""


def judged_bytes(listed_bytes: int, processes: int, counted_bytes: int | None) -> int:
    """Return what a pod is judged by that holds so much by the lists, in so many processes.

    | the driver | judged |
    | --- | --- |
    | holds no limit: it counts nothing | what is listed |
    | counts all of it, or more | what is listed |
    | counts less | what is listed, less the difference, at most a context for each of eight |
    """
    if counted_bytes is None:
        return listed_bytes
    uncounted = max(0, listed_bytes - counted_bytes)
    return listed_bytes - min(uncounted, min(processes, MOST_CONTEXTS) * CONTEXT_BYTES)
