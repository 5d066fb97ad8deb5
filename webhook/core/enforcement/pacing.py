"""When to read what: the device's total often, the costlier process lists seldom.

On an H100 with driver 580, NVML's memory total takes 10 microseconds, a process list 34 with one
process and 627 with 48; on a laptop's GPU milliseconds (MangoHud pull request 2104). A list holds
the driver's locks. So lists are read where the total says that something moved, where an excess is
being judged, and now and then.
"""

from __future__ import annotations

from typing import Final

from webhook.core.frozen import dataclass

MOVED_BYTES: Final = 64 * 2**20
"""A total that moved by less since the last list is noise of contexts and caches."""

LIST_EVERY_S: Final = 10.0
"""However stable the total, processes come and go, and managed memory hides in it."""

LIST_FLOOR_S: Final = 1.0
"""Lists are never read more often, except over the cap."""

SLOW_CALL_S: Final = 0.02
"""Where a list takes this long, the GPU is crowded: read it half as often."""


@dataclass(frozen=True, slots=True)
class Pace:
    """What the last read of the lists left to compare with."""

    listed_at_s: float = float("-inf")
    listed_total_bytes: int | None = None
    call_s: float = 0.0
    highest_bytes: int = 0
    """The highest total at which lists were read: a peak of the pod lies there, if it is alone."""

    def after(self, now_s: float, total_bytes: int | None, call_s: float) -> Pace:
        """Return the pace once lists were read."""
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
    """Say whether this observation must read the process lists.

    | judging an excess | total | since the last lists | lists |
    | --- | --- | --- | --- |
    | yes | any | any | yes |
    | no | any | under the floor | no |
    | no | unknown | over the floor | yes |
    | no | any, of a pod that is limited | over the floor | yes |
    | no | moved, over the cap | over the floor | yes |
    | no | moved, higher than ever | over the floor | yes |
    | no | any other | over the ceiling | yes |
    | no | any other | between | no |

    While the total itself is within the cap no pod can be over it. Then only time counts, and that
    peaks are to be seen: a total higher than at any list shows one, of a pod that is alone on its
    GPU. So many lists fit into a GPU's memory that this costs little.

    Where the driver holds a limit, `total_bytes` is what it counts of the pod: the card's total is
    the limit's in there (nvml.h of r615). What it does not count moves neither, so lists alone show
    that, and who holds it is to be stopped as soon as elsewhere.
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
