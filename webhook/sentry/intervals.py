"""How long to wait for the next scan."""

from __future__ import annotations

from math import inf
from typing import Final

ENDING_S: Final = 0.25
JUDGING_S: Final = 0.5
HOLDING_S: Final = 1.0
LISTED_S: Final = 10.0
IDLE_S: Final = 45.0
"""Figures are written once a minute: at 60 s they would be older than two minutes now and then."""

DUTY: Final = 20
HURRY: Final = 2
SOON_S: Final = 2.5
"""An excess that is seen so late is still ended in fifteen seconds: it is judged for 11.5."""


def pause_s(
    took_s: float,
    *,
    ending: bool,
    judging: bool,
    may_act: bool,
    listed: bool,
    held: bool,
    poll_s: float = inf,
) -> float:
    """Return how long to wait after a scan that took so long, in seconds.

    `poll_s` is the shortest poll interval of pods that only the sentry holds, `inf` without such.

    | a pod was stopped | is over its cap | may be stopped | is listed, or holds memory | pause |
    | --- | --- | --- | --- | --- |
    | yes | any | any | any | 0.25 |
    | no | yes | any | any | the smaller of 0.5 and `poll_s`, at least 0.25 |
    | no | no | yes | any | the smaller of 1 and `poll_s`, at least 0.25 |
    | no | no | no | yes | 10 |
    | no | no | no | no | 45 |

    And so long after a scan that took long, since it wakes GPUs and holds the driver's locks:

    | a pod was stopped, or is over | may be stopped | pause at least |
    | --- | --- | --- |
    | yes | any | `HURRY` times what it took |
    | no | yes, and there is a `poll_s` | `HURRY` times |
    | no | yes | `DUTY` times, or `SOON_S` where that is less; but `HURRY` times in any case |
    | no | no | `DUTY` times, at most `IDLE_S`; but `HURRY` times in any case |

    A tenant can make scans slow, by CPU alone, and must not gain the time by it. Figures that are
    older than two minutes prove no sentry, so a slow driver is scanned that often as well.
    """
    poll_s = max(poll_s, ENDING_S)
    if ending or judging:
        return max(ENDING_S if ending else min(JUDGING_S, poll_s), HURRY * took_s)
    if may_act:
        rest_s = min(DUTY * took_s, SOON_S) if poll_s == inf else 0.0
        return max(min(HOLDING_S, poll_s), HURRY * took_s, rest_s)
    least_s = LISTED_S if listed or held else IDLE_S
    return max(least_s, HURRY * took_s, min(DUTY * took_s, IDLE_S))
