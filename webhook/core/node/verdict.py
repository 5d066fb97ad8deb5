"""The verdict on a node's sharing: its agent writes it, and everything else reads it.

It is the annotation `vramwarden.io/sharing`, written as `Code: sentence`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Self

from webhook.core.bounds import LONGEST_STORED
from webhook.core.formatting import replace_unprintable
from webhook.core.pod.fields import as_object
from webhook.names import NODE_SHARING_ANNOTATION


class SharingCode(StrEnum):
    """Whether a node is shared, or why not.

    From these `make generate` writes the table of codes. The sentence behind a code gives the cause
    and the remedy for that node.
    """

    means: str

    def __new__(cls, value: str, means: str) -> Self:
        """Make a member whose value is the first text."""
        code = str.__new__(cls, value)
        code._value_ = value
        code.means = means
        return code

    SHARED = ("Shared", "every GPU of the node that has memory to share is shared")
    SOME_UNFIT = (
        "SomeGPUsUnfit",
        "the node is shared, except for GPUs without memory of their own",
    )
    NONE_FIT = ("NoUsableGPU", "the node has no GPU that could be shared")
    NOT_SHARED = (
        "NotShared",
        "another allocator gives the GPUs away, or the label `share` is not `true`",
    )
    IN_USE = (
        "InUse",
        "the node is shared once no pod has a whole GPU and at most 256Mi are in use on each",
    )
    SETTLING = (
        "Settling",
        "the agent still waits for the driver, a replica, or signs of another allocator",
    )
    DRAINING = (
        "Draining",
        "another allocator came, or `share` changed: pods keep their VRAM, and no other gets any",
    )


_CODES: Final = {code.value: code for code in SharingCode}
_OPEN: Final = frozenset({SharingCode.SHARED, SharingCode.SOME_UNFIT})


@dataclass(frozen=True, slots=True)
class SharingVerdict:
    """Whether a node is shared, and why not."""

    code: SharingCode
    sentence: str
    """Cause and remedy; at most 256 printable characters are written and read."""

    def __str__(self) -> str:
        """Return the value of the annotation."""
        return f"{self.code}: {replace_unprintable(self.sentence, LONGEST_STORED)}"


def read_sharing(node: Mapping[str, Any]) -> SharingVerdict | None:
    """Return the verdict that a node carries; None if there is none, or no agent wrote it so."""
    code, colon, sentence = str(_written(node) or "").partition(": ")
    if code not in _CODES or not colon:
        return None
    return SharingVerdict(_CODES[code], replace_unprintable(sentence, LONGEST_STORED))


def why_closed(node: Mapping[str, Any]) -> str:
    """Return the reason why no further pod may get a GPU of a node; empty if one may.

    | the annotation | closed |
    | --- | --- |
    | absent | no |
    | Shared or SomeGPUsUnfit | no |
    | any other code | yes, by its sentence |
    | anything else | yes |

    An agent writes the annotation before it advertises a GPU, and again after it was removed.
    """
    verdict = read_sharing(node)
    if verdict is None:
        is_absent = _written(node) is None
        return "" if is_absent else f"its annotation {NODE_SHARING_ANNOTATION} cannot be read"
    return "" if verdict.code in _OPEN else verdict.sentence or str(verdict.code)


def _written(node: Mapping[str, Any]) -> object:
    return as_object(as_object(node.get("metadata")).get("annotations")).get(
        NODE_SHARING_ANNOTATION
    )
