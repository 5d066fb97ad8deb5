"""The policy in force, read from files that change; the last valid one is kept."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from webhook.adapters.policy.files import PolicyInvalidError, Snapshot, parse_policy, read_files
from webhook.adapters.yaml_documents import DocumentProblem
from webhook.core.policy.values import Policy


@dataclass(frozen=True, slots=True)
class Reload:
    """Result of reading the files: a new policy, new problems, or nothing new."""

    loaded: bool = False
    problems: tuple[DocumentProblem, ...] = ()


class PolicySource:
    """Holds the policy in force: the last one that was valid.

    `current` is one attribute that `refresh` replaces as a whole, so any thread may read it. Only
    one thread may call `refresh`; how often is the caller's business.
    """

    def __init__(self, path: Path, enforcer_image: str) -> None:
        """Read the policy; raises PolicyInvalidError if it is not valid."""
        self._path = path
        self._enforcer_image = enforcer_image
        snapshot = read_files(path)
        self.current: Policy = parse_policy(snapshot, enforcer_image)
        self.problems: tuple[DocumentProblem, ...] = ()
        """Problems of the files as last read; empty while those files are in force."""
        self._seen = self._key(snapshot)

    def refresh(self) -> Reload:
        """Read the files again; raises nothing that they could cause.

        | files | `current` | `problems` | answer |
        | --- | --- | --- | --- |
        | as at the last read | stays | stay | unchanged |
        | valid | replaced | cleared | loaded |
        | not valid, or gone | stays | replaced | the problems, once |
        """
        try:
            snapshot = read_files(self._path)
        except PolicyInvalidError as error:
            return self._rejected(error.problems, ("", error.problems))
        key = self._key(snapshot)
        if key == self._seen:
            return Reload()
        try:
            self.current = parse_policy(snapshot, self._enforcer_image)
        except PolicyInvalidError as error:
            return self._rejected(error.problems, key)
        self._seen, self.problems = key, ()
        return Reload(loaded=True)

    def _key(self, snapshot: Snapshot) -> tuple[str, tuple[DocumentProblem, ...]]:
        return snapshot.digest(self._enforcer_image), snapshot.unreadable

    def _rejected(
        self, problems: tuple[DocumentProblem, ...], key: tuple[str, tuple[DocumentProblem, ...]]
    ) -> Reload:
        if key == self._seen:
            return Reload()
        self._seen, self.problems = key, problems
        return Reload(problems=problems)
