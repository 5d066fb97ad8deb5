"""Which of the watch's reports of a node are older than the answer to our own patch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

OWN_ECHO_S: Final = 5.0
"""The watch reports our own patches, too, and the state between two of them."""


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
