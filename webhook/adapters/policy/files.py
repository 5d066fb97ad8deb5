"""Loading policies from files, ConfigMaps and folders that change, and running their examples."""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

import webhook
from webhook.adapters.bounds import MOST_POLICY_BYTES
from webhook.adapters.policy.build import PolicyDocument, build_policy
from webhook.adapters.policy.models import PolicyFile
from webhook.adapters.policy.schema import sentences
from webhook.adapters.yaml_documents import Document, DocumentProblem, read_documents, show_path
from webhook.core.admission.policy_examples import run_example
from webhook.core.bounds import MAX_SHOWN_FINDINGS
from webhook.core.policy.model import Policy

__all__ = [
    "DocumentProblem",
    "PolicyInvalidError",
    "PolicyText",
    "Snapshot",
    "UnreadablePolicy",
    "load_config_map",
    "load_policy",
    "parse_policy",
    "read_files",
    "shipped_policy_path",
    "split_location",
]

_SUFFIXES: Final = frozenset({".yaml", ".yml"})
_CONFIG_MAP_DATA: Final = "..data"
"""Symbolic link by which the kubelet replaces all files of a mounted ConfigMap atomically."""
_WORDS_IN: Final = frozenset({"driverLimit"})
"""Fields with the value Off, which YAML 1.1 reads as a boolean."""


class PolicyInvalidError(ValueError):
    """A policy is invalid; `problems` contains every problem."""

    def __init__(self, problems: Iterable[DocumentProblem]) -> None:
        self.problems: tuple[DocumentProblem, ...] = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


@dataclass(frozen=True, slots=True)
class UnreadablePolicy(DocumentProblem):
    """A file that cannot be read, so its validity is unknown."""


@dataclass(frozen=True, slots=True)
class PolicyText:
    """A file of a policy."""

    name: str
    shown: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The bytes of a policy's files at one moment."""

    files: tuple[PolicyText, ...]
    unreadable: tuple[DocumentProblem, ...] = ()

    def digest(self, enforcer_image: str, release: str = webhook.__version__) -> str:
        """Return a SHA-256 of all inputs of the mutation: files, the sidecar's image, release.

        Two releases may mutate a pod differently under one policy, even if its rules pin the
        sidecar's image. A replica must not expect its own release's mutation in pods that another
        release admitted.
        """
        digest = hashlib.sha256()
        parts = [enforcer_image.encode("utf-8", "surrogatepass"), release.encode()]
        for file in self.files:
            parts += [file.name.encode("utf-8", "surrogateescape"), file.data]
        for part in parts:
            digest.update(len(part).to_bytes(8, "big"))  # no two lists have the same digest
            digest.update(part)
        return digest.hexdigest()


def load_policy(path: Path, *, enforcer_image: str, run_examples: bool = True) -> Policy:
    """Return the policy in a file or a folder; raises PolicyInvalidError with all problems."""
    return parse_policy(read_files(path), enforcer_image, run_examples=run_examples)


def load_config_map(data: Mapping[str, str], where: str, *, enforcer_image: str) -> Policy:
    """Return the policy in a ConfigMap's data; raises PolicyInvalidError with all problems.

    Its digest equals the digest of the same files in a folder.
    """
    files = [
        PolicyText(
            name,
            f"{where}/{name}",
            data[name].encode("utf-8", "surrogatepass")[: MOST_POLICY_BYTES + 1],
        )
        for name in sorted(data)
        if Path(name).suffix in _SUFFIXES and not name.startswith(".")
    ]
    return parse_policy(Snapshot(tuple(files)), enforcer_image)


def shipped_policy_path() -> Path:
    """Return the path of the default policy in the package or in a source checkout."""
    package = Path(webhook.__file__).parent
    shipped = package / "shipped" / "default.yaml"
    return shipped if shipped.exists() else package.parent / "policies" / "default.yaml"


def read_files(path: Path) -> Snapshot:
    """Read a file, or all files of a folder; raises PolicyInvalidError if there is none.

    Symbolic links of a folder are resolved once. ConfigMap mounts and git-sync replace a folder by
    changing a link, so the result is never a mixture of old and new files.
    """
    try:
        if not path.is_dir():
            return Snapshot((PolicyText(path.name, str(path), _read(path)),))
        data = path / _CONFIG_MAP_DATA
        root = (data if data.is_symlink() or data.exists() else path).resolve(strict=True)
        names = sorted(entry.name for entry in root.iterdir() if _is_policy(entry))
    except OSError as error:
        raise PolicyInvalidError([_unreadable(str(path), error)]) from None
    files, unreadable = [], []
    for name in names:
        shown = str(path / name)
        try:
            files.append(PolicyText(name, shown, _read(root / name, regular=True)))
        except OSError as error:
            unreadable.append(_unreadable(shown, error))
    return Snapshot(tuple(files), tuple(unreadable))


def _is_policy(entry: Path) -> bool:
    return entry.suffix in _SUFFIXES and not entry.name.startswith(".") and not entry.is_dir()


def _read(path: Path, *, regular: bool = False) -> bytes:
    """Read a file up to one byte over the limit; with `regular` reject pipes, which would block."""
    if regular and not stat.S_ISREG(path.stat().st_mode):
        raise OSError("it is not a regular file")
    with path.open("rb") as file:
        return file.read(MOST_POLICY_BYTES + 1)


def _unreadable(file: str, error: OSError) -> DocumentProblem:
    reason = error.strerror or str(error)
    return UnreadablePolicy(file, 0, "", f"cannot be read: {reason[:1].lower()}{reason[1:]}")


def parse_policy(snapshot: Snapshot, enforcer_image: str, *, run_examples: bool = True) -> Policy:
    """Return the policy of a snapshot; raises PolicyInvalidError with all problems.

    The policy's examples are run if there is no other problem.
    """
    problems = list(snapshot.unreadable)
    sources: list[PolicyDocument] = []
    unusable_classes: set[str] = set()
    for file in snapshot.files:
        documents, found = read_documents(file.shown, file.data, _WORDS_IN)
        for document in documents:
            source = _validate_document(file.shown, document, found)
            if source is None:
                unusable_classes.update(_class_names(document.value))
            else:
                sources.append(source)
        problems.extend(_shortened(file.shown, found))
    policy, found = build_policy(
        sources,
        unusable_classes,
        digest=snapshot.digest(enforcer_image),
        enforcer_image=enforcer_image,
    )
    problems.extend(found)
    if problems:
        raise PolicyInvalidError(_ordered(problems))
    if run_examples and (failed := [*_failures(policy)]):
        raise PolicyInvalidError(failed)
    return policy


def _validate_document(
    file: str, document: Document, problems: list[DocumentProblem]
) -> PolicyDocument | None:
    """Validate a document; add its schema problems and its YAML problems to `problems`."""
    try:
        return PolicyDocument(file, document, PolicyFile.model_validate(document.value))
    except ValidationError as error:
        reported = {(problem.line, problem.path) for problem in problems}
        for path, detail in sentences(error):
            problem = DocumentProblem(file, document.line(path), show_path(path), detail)
            if (problem.line, problem.path) not in reported:
                problems.append(problem)
    return None


def _class_names(value: Any) -> Iterator[str]:
    spec = value.get("spec") if isinstance(value, dict) else None
    classes = spec.get("classes") if isinstance(spec, dict) else None
    if isinstance(classes, dict):
        yield from classes


def _shortened(file: str, problems: list[DocumentProblem]) -> list[DocumentProblem]:
    """Return the problems, truncated to a readable number."""
    left_out = len(problems) - MAX_SHOWN_FINDINGS
    if left_out <= 0:
        return problems
    shown = _ordered(problems)[:MAX_SHOWN_FINDINGS]
    return [*shown, DocumentProblem(file, 0, "", f"and {left_out} more problems")]


def _ordered(problems: list[DocumentProblem]) -> list[DocumentProblem]:
    """Return the problems sorted by file and line; those without a line are last per file."""
    return sorted(problems, key=lambda found: (found.file, not found.line, found.line))


def _failures(policy: Policy) -> Iterator[DocumentProblem]:
    for example in policy.examples:
        for mismatch in run_example(example, policy):
            yield DocumentProblem(
                *split_location(example.where), f"example {example.name!r}", mismatch
            )


def split_location(where: str) -> tuple[str, int]:
    """Return file and line of a location; the line is 0 if the location has none."""
    file, _, line = where.rpartition(":")
    return file, int(line) if line.isdecimal() else 0


@dataclass(frozen=True, slots=True)
class Reload:
    """Result of reading the files again; no field is set if nothing has changed."""

    loaded: bool = False
    problems: tuple[DocumentProblem, ...] = ()


class PolicySource:
    """The current policy: the last valid one, read from files that change.

    `refresh` replaces the attribute `current` as a whole, so any thread may read it. Only one
    thread may call `refresh`.
    """

    def __init__(self, path: Path, enforcer_image: str) -> None:
        self._path = path
        self._enforcer_image = enforcer_image
        snapshot = read_files(path)
        self.current: Policy = parse_policy(snapshot, enforcer_image)
        self.problems: tuple[DocumentProblem, ...] = ()
        """Problems of the files as last read; empty if their policy is the current one."""
        self._last_key = self._key(snapshot)

    def refresh(self) -> Reload:
        """Read the files again; invalid or missing files do not raise an error.

        | files | `current` | `problems` | result |
        | --- | --- | --- | --- |
        | unchanged | stays | stay | unchanged |
        | valid | replaced | cleared | loaded |
        | invalid or missing | stays | replaced | the problems, once |
        """
        try:
            snapshot = read_files(self._path)
        except PolicyInvalidError as error:
            return self._rejected(error.problems, ("", error.problems))
        key = self._key(snapshot)
        if key == self._last_key:
            return Reload()
        try:
            self.current = parse_policy(snapshot, self._enforcer_image)
        except PolicyInvalidError as error:
            return self._rejected(error.problems, key)
        self._last_key, self.problems = key, ()
        return Reload(loaded=True)

    def _key(self, snapshot: Snapshot) -> tuple[str, tuple[DocumentProblem, ...]]:
        return snapshot.digest(self._enforcer_image), snapshot.unreadable

    def _rejected(
        self, problems: tuple[DocumentProblem, ...], key: tuple[str, tuple[DocumentProblem, ...]]
    ) -> Reload:
        if key == self._last_key:
            return Reload()
        self._last_key, self.problems = key, problems
        return Reload(problems=problems)
