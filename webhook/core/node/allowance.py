"""How many patches of a node are allowed for now: a token bucket, and time is an argument."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Allowance:
    """`most` things at once, and then one in `every_s` seconds."""

    most: int
    every_s: float
    spent: float = 0.0
    """Of the most, how many were taken and have not come back."""
    counted_s: float = 0.0


def take(allowance: Allowance, now_s: float) -> Allowance | None:
    """Return what is left once one more thing happens now; None where it may not yet.

    | left of the most | since the last one | one more |
    | --- | --- | --- |
    | one or more | any time | may happen |
    | less than one | less than it takes to come back | may not |
    | less than one | that long, or longer | may happen |

    Never more than the most come back, however long nothing happened.
    """
    spent = max(0.0, allowance.spent - (now_s - allowance.counted_s) / allowance.every_s)
    if allowance.most - spent < 1:
        return None
    return replace(allowance, spent=spent + 1, counted_s=now_s)
