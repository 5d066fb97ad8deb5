"""What a check found, in words for people and with a name for programs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from webhook.core import words
from webhook.tools.snapshot.objects import Unreadable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable


class Level(StrEnum):
    """What a finding means."""

    OK = "ok"
    WARNING = "warning"
    """It works, and there is something to know or to improve."""
    FAILED = "failed"
    """Something does not work, or will not."""
    NOT_CHECKED = "notLookedAt"
    """Neither good nor bad: it could not be seen."""


NEEDS_RIGHT: Final = "needs the right to "
"""How it begins why something was not seen, where a right is missing."""


class NobodySees(Unreadable):
    """That something cannot be seen by asking, whatever one's rights: not yet, or never."""


@dataclass(frozen=True, slots=True)
class CheckFinding:
    """What a check found."""

    level: Level
    detail: str = ""
    """A sentence without a full stop; empty where the check's title says it all."""
    cure: str = ""
    """What to do, with the command to type; there is one for a warning and a failure."""
    about: tuple[str, ...] = ()
    """Names of the objects that it is about."""
    visible: bool = True
    """Where it could not be seen: whether somebody with more rights could."""


def ok(detail: str = "") -> CheckFinding:
    """Return that all is well."""
    return CheckFinding(Level.OK, detail)


def warning(detail: str, cure: str, about: Iterable[str] = ()) -> CheckFinding:
    """Return what works, but not as well as it could."""
    return CheckFinding(Level.WARNING, detail, cure, tuple(about))


def failed(detail: str, cure: str, about: Iterable[str] = ()) -> CheckFinding:
    """Return what does not work."""
    return CheckFinding(Level.FAILED, detail, cure, tuple(about))


def named(names: Collection[str]) -> str:
    """Return the first names by the alphabet, and how many more there are; JSON has more."""
    return words.named(sorted(names))
