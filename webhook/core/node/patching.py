"""How a node is patched: how often, what comes back of it, and its startup taint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from webhook.core.pod.fields import Json

OWN_ECHO_S: Final = 5.0
"""The watch reports our own patches, too, and the state between two of them."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """A token bucket: `most` things at once, and then one in `every_s` seconds."""

    most: int
    every_s: float
    spent: float = 0.0
    """Of the most, how many were taken and have not come back."""
    counted_s: float = 0.0

    def spend(self, now_s: float) -> Self | None:
        """Return what is left once one more thing happens now; None where it may not yet.

        | left of the most | since the last one | one more |
        | --- | --- | --- |
        | one or more | any time | may happen |
        | less than one | less than it takes to come back | may not |
        | less than one | that long, or longer | may happen |

        Never more than the most come back, however long nothing happened.
        """
        spent = max(0.0, self.spent - (now_s - self.counted_s) / self.every_s)
        if self.most - spent < 1:
            return None
        return replace(self, spent=spent + 1, counted_s=now_s)


def is_echo(node: Mapping[str, Any], known: Mapping[str, Any] | None, since_patch_s: float) -> bool:
    """Say whether a node that was reported is older than the one that is known.

    | our last patch | resource versions | an echo |
    | --- | --- | --- |
    | a moment ago | lower than the known one's | yes |
    | a moment ago | as high or higher | no |
    | a moment ago | one of them is no decimal number, or no node is known | no |
    | longer ago, or never | any: a backup may have been restored | no |

    Resource versions are decimal numbers that grow (KEP-5504); a node with another one is no echo.
    """
    if known is None or since_patch_s >= OWN_ECHO_S:
        return False
    before, now = (one["metadata"]["resourceVersion"] for one in (known, node))
    return before.isdecimal() and now.isdecimal() and int(now) < int(before)


def without_taint(node: Mapping[str, Any], key: str) -> Json | None:
    """Return the merge patch that takes the taints of a key off a node; None where it has none.

    The startup taint keeps autoscalers waiting for a node until its agent has spoken. A merge patch
    replaces the whole list, so it names the version of the node that was read: where somebody added
    a taint since, the API server answers with a conflict.
    """
    taints = (node.get("spec") or {}).get("taints") or []
    left = [taint for taint in taints if taint.get("key") != key]
    if not key or len(left) == len(taints):
        return None
    version = node["metadata"]["resourceVersion"]
    return {"metadata": {"resourceVersion": version}, "spec": {"taints": left or None}}
