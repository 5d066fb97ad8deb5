"""The driver's memory limit of a cgroup, from driver r615 on, and how a pod is judged under it.

Sources: nvml.h of r615 (nvmlDeviceSetMemoryLimits_v1), memacct.c of NVIDIA's open kernel modules
615.71.09.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from webhook.core.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable

NO_LIMIT: Final = (1 << 64) - 1
"""NVML_DEVICE_MEMORY_LIMIT_MAX."""

CONTEXT_BYTES: Final = 600 * 2**20
"""Upper bound for the size of a CUDA context, which the lists show and the driver may not count.

H100 and H200 with driver 580 took 518 MiB (`tests/gpu/README.md`); other GPUs may need somewhat
more. Memory that libraries load later is not added: it belongs within the cap. Whether r615 counts
a context has not been measured.
"""

MOST_CONTEXTS: Final = 2
"""Maximum number of uncounted contexts of a pod on one GPU: a program's and its child's.

Without a maximum, many processes could hold memory that the driver does not count.
"""

DRIVER_LIMITS: Final = ("Auto", "Require")
"""Values of the annotation `driver-limit` under which containers wait for the limit."""


@dataclass(frozen=True, slots=True)
class Limit:
    """Limit of a cgroup on a GPU, in bytes."""

    soft_bytes: int
    hard_bytes: int
    """`NO_LIMIT` for none."""
    used_bytes: int
    """Memory that counts: no managed memory, none allocated before the limit, no IPC import."""


def judged_bytes(figures: Iterable[int], counted_bytes: int | None, cap_bytes: int) -> int:
    """Return the amount of a pod on a GPU that is compared with its cap.

    `figures` has the listed bytes of each process. `counted_bytes` is the driver's figure.

    | the driver | amount |
    | --- | --- |
    | has no limit (None) | the sum of the list |
    | counts all of the sum, or more | the sum of the list |
    | counts less | the sum, less the part of the difference that contexts can explain |

    Contexts explain at most `CONTEXT_BYTES` of each of the `MOST_CONTEXTS` largest processes, never
    more than the process holds, and in total never more than the cap.
    """
    largest = sorted(figures, reverse=True)
    listed_bytes = sum(largest)
    if counted_bytes is None:
        return listed_bytes
    contexts_bytes = sum(min(held, CONTEXT_BYTES) for held in largest[:MOST_CONTEXTS])
    uncounted_bytes = max(0, listed_bytes - counted_bytes)
    return listed_bytes - min(uncounted_bytes, contexts_bytes, cap_bytes)
