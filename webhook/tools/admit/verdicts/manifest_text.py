"""Decisions about the pods of one manifest file, with or without `--migrate`."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from webhook.adapters.yaml_documents import Path
from webhook.core.pod.fields import find_string
from webhook.core.pod.findings import MalformedObjectError
from webhook.core.pod.patch import Operation
from webhook.core.pod.pod_templates import CONTAINER_FIELDS, Form, Template, parse_path
from webhook.core.pod.template_search import find_kind_ignoring_case
from webhook.core.policy.cluster import Cluster
from webhook.core.policy.model import Policy
from webhook.names import GROUP_VERSION, VRAM_POLICY_KIND
from webhook.tools.admit.migration.foreign_pod import (
    Migration,
    Note,
    Origin,
    notes_about_object,
    read_foreign_pod,
    requests_without_pod,
)
from webhook.tools.admit.migration.rewrite import migrate
from webhook.tools.admit.verdicts.creation import as_sent
from webhook.tools.admit.verdicts.decide import decide_target
from webhook.tools.admit.verdicts.verdict import PodVerdict, Remark, VerdictKind
from webhook.tools.manifests.bounds import LEAST_WRITTEN, MOST_GROWTH
from webhook.tools.manifests.documents import (
    LineIndex,
    ManifestDocument,
    ManifestObject,
    Target,
    changed,
    find_objects,
    read_documents,
)
from webhook.tools.manifests.reading import ManifestError

_CONTAINER_PATH: Final = len(("spec", "containers", 0))
_OPENING: Final = "{{"
_ACTION: Final = re.compile(
    r"\{\{-?\s*(?:\.|/\*|(?:if|else|end|range|with|include|template|define|tpl|toYaml)\b)"
)
"""Regular expression that matches a Helm action. Argo Workflows use other braces."""
UNRENDERED: Final = (
    "looks like a Helm template that is not rendered; run: helm template CHART | "
    "vramwarden admit -f -"
)


@dataclass(frozen=True, slots=True)
class ObjectWithoutPod:
    """An object without a pod template, and its line in the file."""

    object: ManifestObject
    line: int
    notes: tuple[Remark, ...] = ()
    """Notes from the migration of this object."""

    @property
    def is_policy(self) -> bool:
        """True for a VRAMPolicy object, which `policy check` validates."""
        return (self.object.kind, self.object.version) == (VRAM_POLICY_KIND, GROUP_VERSION)


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestText:
    """A manifest file: its documents before and after admission, and the verdicts on its pods."""

    name: str
    text: str = ""
    before: list[ManifestDocument] = field(default_factory=list)
    after: list[ManifestDocument] = field(default_factory=list)
    verdicts: list[PodVerdict] = field(default_factory=list)
    others: list[ObjectWithoutPod] = field(default_factory=list)
    unreadable: Remark | None = None
    """Reason why the file is unreadable; all other fields are empty then."""
    is_migrated: bool = False
    """True if `after` is the result of a migration, without admission."""


def decide_text(
    name: str,
    text: str,
    policy: Policy,
    cluster: Cluster,
    namespace: str,
    namespace_labels: Mapping[str, str],
    origin: Origin | None,
    *,
    is_strict: bool = False,
) -> ManifestText:
    """Decide the pods of one file. Raises ManifestError, also for unrendered Helm templates."""
    before = read_documents(text)
    after: list[ManifestDocument] = []
    verdicts: list[PodVerdict] = []
    others: list[ObjectWithoutPod] = []
    for read in before:
        lines = LineIndex(read.text, read.first_line)
        changes: dict[Path, list[Operation]] = {}
        for found in find_objects(read.value):
            _check(found, lines)
        document, migrations = _migrate_document(read, origin) if origin else (read, {})
        for found in find_objects(document.value):
            judged = [
                decide_target(target, policy, cluster, namespace, lines, namespace_labels)
                for target in _targets(found, origin)
            ]
            if origin:
                made = [(item, migrations.get(item.target.at)) for item in judged]
                # This patch applies to the manifest as written, before the migration.
                judged = [
                    replace(item, migration=became, patch=became.operations if became else ())
                    for item, became in made
                ]
            for verdict in judged if not origin else ():
                changes |= verdict.target.changes(verdict.patch)
            if is_strict:
                judged = [replace(item, is_strict=True) for item in judged]
            if not judged and found.value:
                notes = _notes_about(found, origin, lines) if origin else ()
                others.append(ObjectWithoutPod(found, lines.of(found.at), notes))
            verdicts += judged
        after.append(_check_size(changed(document, changes), read, changes))
    return ManifestText(
        name=name,
        text=text,
        before=before,
        after=after,
        verdicts=verdicts,
        others=others,
        is_migrated=origin is not None,
    )


def _targets(found: ManifestObject, origin: Origin | None) -> list[Target]:
    """Return the targets of an object, or the object itself if only a migration concerns it."""
    targets = list(found.targets())
    if not targets and origin and _find_requests(found, origin):
        targets.append(Target(found, Template((), None, Form.ELSEWHERE)))
    return targets


def _find_requests(found: ManifestObject, origin: Origin) -> tuple[Note, ...]:
    return requests_without_pod(found.value, found.kind, found.version, origin.product)


def _check(found: ManifestObject, lines: LineIndex) -> None:
    """Raise ManifestError for an unrendered template or a misspelt kind."""
    paths = (("kind",), ("metadata", "name"), ("metadata", "namespace"))
    if any(_OPENING in find_string(found.value, *path) for path in paths):
        raise ManifestError(UNRENDERED, lines.of(found.at))
    meant = find_kind_ignoring_case(found.kind, found.version)
    if meant:
        detail = f'"{found.kind}" is no kind of Kubernetes; write kind: {meant}'
        raise ManifestError(detail, lines.of((*found.at, "kind")))


def _check_size(
    document: ManifestDocument, read: ManifestDocument, changes: Mapping[Path, list[Operation]]
) -> ManifestDocument:
    """Return the document. Raises ManifestError if it is too large for its source.

    The limit is needed because indentation and aliases can multiply the output.
    """
    added = sum(len(json.dumps(operations)) for operations in changes.values())
    most = MOST_GROWTH * (len(read.text) + added) + LEAST_WRITTEN
    written = max(len(document.text), len(json.dumps(document.value)))
    if written > most:
        detail = (
            f"it would be written with {written:,} characters, more than {most:,}, the most for "
            "its length; indent it less, and write its aliases out"
        )
        raise ManifestError(detail, read.first_line)
    return document


def _migrate_document(
    document: ManifestDocument, origin: Origin
) -> tuple[ManifestDocument, dict[Path, Migration]]:
    """Return a migrated document, and the migration of each pod keyed by its path.

    Raises ManifestError if an object is too large.
    """
    migrations: dict[Path, Migration] = {}
    changes: dict[Path, list[Operation]] = {}
    objects = find_objects(document.value)
    for target in (target for found in objects for target in _targets(found, origin)):
        migration = _build_migration(target, origin)
        if migration is None:
            continue
        migrations[target.at] = migration
        for path, operations in target.changes(migration.operations).items():
            changes.setdefault(path, []).extend(operations)
    return changed(document, changes), migrations


def _build_migration(target: Target, origin: Origin) -> Migration | None:
    """Migrate one pod. Return None for a malformed pod, which admission reports."""
    if target.found.pod is None:
        problems = _find_requests(target.object, origin)
        return Migration(origin.product.name, problems=problems) if problems else None
    try:
        source = read_foreign_pod(as_sent(target.pod), target.found, target.object.value)
        made = migrate(source, origin)
    except MalformedObjectError:
        return None
    if made.operations and _has_parts_elsewhere(target.found):
        cure = f"write {made.asks}" if made.asks else f"remove what {made.product} read"
        by_hand = f"{target.object.kind} is not rewritten; by hand, {cure}"
        problem = Note("metadata.annotations", by_hand)
        return Migration(made.product, problems=(problem,), notes=made.notes)
    return made


def _has_parts_elsewhere(template: Template) -> bool:
    """Return True if several edits would be needed to change the containers of a template."""
    if template.form is not Form.CONTAINER:
        return template.form is Form.INLINE
    return any(
        field[1:2] in {(name,) for name in CONTAINER_FIELDS}
        and (len(field) > _CONTAINER_PATH or "podSpecPatch" in at or "templateDefaults" in at)
        for field, at in template.places.items()
    )


def _notes_about(found: ManifestObject, origin: Origin, lines: LineIndex) -> tuple[Remark, ...]:
    """Return a note for each field without an equivalent in an object without a pod."""
    return tuple(
        Remark(lines.of((*found.at, *parse_path(note.path))), str(note), path=note.path)
        for note in notes_about_object(found.value, found.kind, found.version, origin.product)
    )


def counts(sources: Iterable[ManifestText]) -> dict[str, int]:
    """Count pods and pod templates by result, in the order of the summary."""
    found = Counter(verdict.sort for source in sources for verdict in source.verdicts)
    return {sort.value: found[sort] for sort in VerdictKind if found[sort]}


def unreadable(name: str, text: str, error: ManifestError) -> ManifestText:
    """Return an unreadable file, with the line and message of the error."""
    if found := _ACTION.search(text):
        remark = Remark(text.count("\n", 0, found.start()) + 1, UNRENDERED)
    else:
        remark = Remark(error.line or 0, str(error))
    return ManifestText(name=name, unreadable=remark)
