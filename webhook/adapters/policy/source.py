"""The policy in force, of files that change: the last good one is kept."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from webhook.adapters.policy.files import (
    PolicyInvalidError,
    Snapshot,
    parse_snapshot,
    proven,
    take_snapshot,
)
from webhook.core.policy.values import Rollout

if TYPE_CHECKING:
    from pathlib import Path

    from webhook.adapters.yaml_documents import Problem
    from webhook.core.policy.values import Policy


@dataclass(frozen=True, slots=True)
class Reload:
    """What reading the files brought: a new policy, new problems, or nothing new."""

    loaded: bool = False
    problems: tuple[Problem, ...] = ()

    @property
    def unchanged(self) -> bool:
        """Whether there is nothing to report since the last read."""
        return not self.loaded and not self.problems


class PolicySource:
    """Holds the policy in force: the last one that was valid.

    `current` is one attribute that `refresh` replaces as a whole, so any thread may read it. Only
    one thread may call `refresh`; how often is the caller's business.

    The `rollout` is the server's, not the files': their examples say what holds without it, and
    replicas that differ in it accept each other's pods.
    """

    def __init__(self, path: Path, enforcer_image: str, rollout: Rollout = Rollout.ENFORCE) -> None:
        self._path = path
        self._enforcer_image = enforcer_image
        self._rollout = rollout
        snapshot = take_snapshot(path)
        self.current: Policy = self._read(snapshot)
        self.problems: tuple[Problem, ...] = ()
        """What is wrong with the files as they are; empty while they are those in force."""
        self._seen = self._key(snapshot)

    def refresh(self) -> Reload:
        """Read the files again; raises nothing that the files could cause.

        | files | `current` | `problems` | answer |
        | --- | --- | --- | --- |
        | as at the last read | stays | stay | unchanged |
        | valid | replaced | cleared | loaded |
        | not valid, or gone | stays | replaced | the problems, once |
        """
        try:
            snapshot = take_snapshot(self._path)
        except PolicyInvalidError as error:
            return self._rejected(error.problems, ("", error.problems))
        key = self._key(snapshot)
        if key == self._seen:
            return Reload()
        try:
            self.current = self._read(snapshot)
        except PolicyInvalidError as error:
            return self._rejected(error.problems, key)
        self._seen, self.problems = key, ()
        return Reload(loaded=True)

    def _read(self, snapshot: Snapshot) -> Policy:
        policy = proven(parse_snapshot(snapshot, self._enforcer_image))
        return replace(policy, rollout=self._rollout)

    def _key(self, snapshot: Snapshot) -> tuple[str, tuple[Problem, ...]]:
        return snapshot.digest(self._enforcer_image), snapshot.unreadable

    def _rejected(
        self, problems: tuple[Problem, ...], key: tuple[str, tuple[Problem, ...]]
    ) -> Reload:
        if key == self._seen:
            return Reload()
        self._seen, self.problems = key, problems
        return Reload(problems=problems)
