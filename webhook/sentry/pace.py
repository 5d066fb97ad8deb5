"""How long to wait for the next look."""

from __future__ import annotations

from typing import Final

ENDING_S: Final = 0.25
JUDGING_S: Final = 0.5
HOLDING_S: Final = 1.0
LISTED_S: Final = 10.0
IDLE_S: Final = 60.0

SHARE: Final = 20
"""A look may take so small a part of the time, since it wakes GPUs and holds the driver's locks."""

SHARE_OVER: Final = 4
"""While a pod is over its cap, which lasts for seconds, looks may take more."""


def pause_s(
    took_s: float, *, ending: bool, judging: bool, may_act: bool, listed: bool, held: bool
) -> float:
    """Return how long to wait after a look that took so long, in seconds.

    | a pod was stopped | is over its cap | may be stopped | is listed, or holds memory | pause |
    | --- | --- | --- | --- | --- |
    | yes | any | any | any | 0.25 |
    | no | yes | any | any | 0.5 |
    | no | no | yes | any | 1 |
    | no | no | no | yes | 10 |
    | no | no | no | no | 60 |

    And never less than `SHARE` times what the look took; in the first two rows, `SHARE_OVER` times.
    """
    least_s = (SHARE_OVER if ending or judging else SHARE) * took_s
    if ending:
        return max(ENDING_S, least_s)
    if judging:
        return max(JUDGING_S, least_s)
    if may_act:
        return max(HOLDING_S, least_s)
    return max(LISTED_S if listed or held else IDLE_S, least_s)
