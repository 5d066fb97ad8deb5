"""The policy in force, of files and objects that change: the last good one is kept."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from webhook.adapters.policy.files import (
    PolicyInvalidError,
    PolicyText,
    Snapshot,
    parse_policy,
    read_files,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from webhook.adapters.yaml_documents import Problem
    from webhook.core.policy.values import Policy


@dataclass(frozen=True, slots=True)
class Reload:
    """What reading the files brought: a new policy, new problems, or nothing new."""

    loaded: bool = False
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class PolicyReview:
    """What became of the objects that were read last, with the files beside them."""

    policy: Policy
    """The one in force."""
    in_force: Mapping[str, bytes]
    """What it holds of objects, by their names in the list."""
    read: Mapping[str, bytes]
    """What was read last, in force or not."""
    problems: tuple[Problem, ...] = ()
    """What keeps it from being in force; empty where it is."""


class PolicySource:
    """Holds the policy in force: the last one that was valid.

    `judged` and `current` are each one attribute that `refresh` replaces as a whole, so any thread
    may read them. Only one thread may call `refresh`; how often is the caller's business.

    Files and objects are judged as one set: a set that lacks one of its parts could allow what the
    whole denies, so no part comes into force beside one that is not valid. At a start there is no
    last good set. Then `remembered` returns the objects of the last one that any replica had, for
    an object that somebody stored must not keep the webhook from starting; without them the start
    fails, as it does for files, for a policy without them might be the wider one.
    """

    def __init__(
        self,
        path: Path,
        enforcer_image: str,
        objects: Callable[[], tuple[PolicyText, ...]] = lambda: (),
        remembered: Callable[[], tuple[PolicyText, ...] | None] = lambda: None,
    ) -> None:
        """Read; raises PolicyInvalidError where nothing can be in force."""
        self._path = path
        self._enforcer_image = enforcer_image
        self._objects = objects
        snapshot, read = self._read_all()
        self.problems: tuple[Problem, ...] = ()
        """What is wrong with the files as they are; empty while they are those in force."""
        try:
            self.current: Policy = self._read(snapshot)
        except PolicyInvalidError as error:
            last_good = remembered()
            if last_good is None:
                raise
            snapshot, read = read_files(path).beside(last_good), _by_name(last_good)
            try:
                self.current = self._read(snapshot)
            except PolicyInvalidError:
                raise error from None
        self.judged = PolicyReview(self.current, read, read)
        self._seen = self._key(snapshot)

    def refresh(self) -> Reload:
        """Read the files and objects again; raises nothing that they could cause.

        | files and objects | `current` | `problems` | answer |
        | --- | --- | --- | --- |
        | as at the last read | stays | stay | unchanged |
        | valid | replaced | cleared | loaded |
        | not valid, or gone | stays | replaced | the problems, once |
        """
        try:
            snapshot, read = self._read_all()
        except PolicyInvalidError as error:
            return self._rejected(error.problems, ("", error.problems), self.judged.read)
        key = self._key(snapshot)
        if key == self._seen:
            return Reload()
        try:
            current = self._read(snapshot)
        except PolicyInvalidError as error:
            return self._rejected(error.problems, key, read)
        self.current = current
        self._seen, self.problems = key, ()
        self.judged = PolicyReview(current, read, read)
        return Reload(loaded=True)

    def _read_all(self) -> tuple[Snapshot, Mapping[str, bytes]]:
        """Read files and objects; return them as one, and the objects' contents by name."""
        objects = self._objects()
        return read_files(self._path).beside(objects), _by_name(objects)

    def _read(self, snapshot: Snapshot) -> Policy:
        return parse_policy(snapshot, self._enforcer_image)

    def _key(self, snapshot: Snapshot) -> tuple[str, tuple[Problem, ...]]:
        return snapshot.digest(self._enforcer_image), snapshot.unreadable

    def _rejected(
        self,
        problems: tuple[Problem, ...],
        key: tuple[str, tuple[Problem, ...]],
        read: Mapping[str, bytes],
    ) -> Reload:
        if key == self._seen:
            return Reload()
        self._seen, self.problems = key, problems
        self.judged = replace(self.judged, read=read, problems=problems)
        return Reload(problems=problems)


def _by_name(objects: Iterable[PolicyText]) -> Mapping[str, bytes]:
    return {one.name: one.data for one in objects}
