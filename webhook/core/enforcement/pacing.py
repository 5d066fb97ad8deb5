"""Pace of reads: a device's memory total is read often, the costlier process lists rarely.

On an H100 with driver 580, reading NVML's memory total takes 10 microseconds, and a process list 34
with one process and 627 with 48. On a laptop's GPU a list takes milliseconds (MangoHud pull request
2104) and holds the driver's locks. Therefore lists are read if the total changed, while an excess
is judged, and at a low rate.
"""

from __future__ import annotations

from typing import Final

from webhook.core.frozen import dataclass

MOVED_BYTES: Final = 64 * 2**20
"""Smallest change of the total that counts, in bytes; smaller changes are noise of contexts and
caches."""

LIST_EVERY_S: Final = 10.0
"""Maximum time between reads of lists, in seconds. Managed memory and new processes may not
change the total."""

LIST_FLOOR_S: Final = 1.0
"""Minimum time between reads of lists, in seconds, except while an excess is judged."""

SLOW_CALL_S: Final = 0.02
"""Duration of reading a list, in seconds, above which lists are read half as often."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Figures from the last read of the lists."""

    listed_at_s: float = float("-inf")
    listed_total_bytes: int | None = None
    call_s: float = 0.0
    highest_bytes: int = 0
    """Highest total at which lists were read: the pod's peak, if it is alone on the GPU."""

    def after(self, now_s: float, total_bytes: int | None, call_s: float) -> Pace:
        """Return the pace after lists were read."""
        highest_bytes = max(self.highest_bytes, total_bytes or 0)
        return Pace(now_s, total_bytes, call_s, highest_bytes)


def wants_lists(
    pace: Pace,
    total_bytes: int | None,
    cap_bytes: int,
    now_s: float,
    *,
    judging: bool,
    limited: bool = False,
) -> bool:
    """Return True if this observation must read the process lists.

    The floor is the minimum time between lists, the ceiling the maximum.

    | judging an excess | total | time since the last lists | lists |
    | --- | --- | --- | --- |
    | yes | any | any | yes |
    | no | any | under the floor | no |
    | no | unknown | over the floor | yes |
    | no | any, of a pod that is limited | over the floor | yes |
    | no | changed, over the cap | over the floor | yes |
    | no | changed, higher than ever | over the floor | yes |
    | no | any other | over the ceiling | yes |
    | no | any other | between | no |

    While the total is within the cap, no pod can be over it. Lists are then read by time, and for
    peaks: a new highest total is a peak of a pod that is alone on its GPU. A GPU's memory limits
    the number of such reads.

    Under a driver limit, `total_bytes` is the memory that the driver counts for the pod (nvml.h of
    r615). Memory that the driver does not count does not change a total, so only lists show it.
    """
    if judging:
        return True
    since_s = now_s - pace.listed_at_s
    slow = 2.0 if pace.call_s > SLOW_CALL_S else 1.0
    if since_s < LIST_FLOOR_S * slow:
        return False
    if limited or total_bytes is None or pace.listed_total_bytes is None:
        return True
    moved = abs(total_bytes - pace.listed_total_bytes) >= MOVED_BYTES
    peaks = total_bytes >= pace.highest_bytes + MOVED_BYTES
    return (moved and total_bytes > cap_bytes) or peaks or since_s >= LIST_EVERY_S * slow
