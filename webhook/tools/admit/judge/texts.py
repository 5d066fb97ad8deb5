"""One text with manifests, judged: each pod as it is, or as `--migrate` rewrites it first."""

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
from webhook.tools.admit.judge.creation import as_sent
from webhook.tools.admit.judge.migration.foreign_pod import (
    Migration,
    Note,
    Origin,
    notes_about_object,
    read_foreign_pod,
    requests_without_pod,
)
from webhook.tools.admit.judge.migration.rewrite import migrate
from webhook.tools.admit.judge.verdict import JudgedPod, Remark, Sort, judge
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
"""Argo's Workflows have braces as well: `{{inputs.parameters.image}}`."""
UNRENDERED: Final = (
    "looks like a Helm template that is not rendered; run: helm template CHART | "
    "vramwarden admit -f -"
)


@dataclass(frozen=True, slots=True)
class Other:
    """An object without a pod template, and where it stands."""

    object: ManifestObject
    line: int
    notes: tuple[Remark, ...] = ()
    """Notes of a migration about it."""

    @property
    def is_policy(self) -> bool:
        """Whether it is one of ours, which `policy check` judges."""
        return (self.object.kind, self.object.version) == (VRAM_POLICY_KIND, GROUP_VERSION)


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestText:
    """One text with manifests: its documents before and after, and the verdicts in it."""

    name: str
    text: str = ""
    before: list[ManifestDocument] = field(default_factory=list)
    after: list[ManifestDocument] = field(default_factory=list)
    verdicts: list[JudgedPod] = field(default_factory=list)
    others: list[Other] = field(default_factory=list)
    unreadable: Remark | None = None
    """Why it cannot be read; then there is nothing else of it."""
    is_migrated: bool = False
    """Whether the documents after are rewritten for us, and not admitted."""


def judge_text(
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
    """Judge the pods of one text; raises ManifestError, also for what is no manifest yet."""
    before = read_documents(text)
    after: list[ManifestDocument] = []
    verdicts: list[JudgedPod] = []
    others: list[Other] = []
    for read in before:
        lines = LineIndex(read.text, read.first_line)
        changes: dict[Path, list[Operation]] = {}
        for found in find_objects(read.value):
            _check(found, lines)
        document, migrations = _rewritten(read, origin) if origin else (read, {})
        for found in find_objects(document.value):
            judged = [
                judge(target, policy, cluster, namespace, lines, namespace_labels)
                for target in _targets(found, origin)
            ]
            if origin:
                made = [(one, migrations.get(one.target.at)) for one in judged]
                # The patch is then that of the manifest.
                judged = [
                    replace(one, migration=became, patch=became.operations if became else ())
                    for one, became in made
                ]
            for verdict in judged if not origin else ():
                changes |= verdict.target.changes(verdict.patch)
            if is_strict:
                judged = [replace(one, is_strict=True) for one in judged]
            if not judged and found.value:
                notes = _notes_about(found, origin, lines) if origin else ()
                others.append(Other(found, lines.of(found.at), notes))
            verdicts += judged
        after.append(_bounded(changed(document, changes), read, changes))
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
    """Return the targets of an object: itself if it has none, and something is to be migrated."""
    targets = list(found.targets())
    if not targets and origin and _requests_of(found, origin):
        targets.append(Target(found, Template((), None, Form.ELSEWHERE)))
    return targets


def _requests_of(found: ManifestObject, origin: Origin) -> tuple[Note, ...]:
    return requests_without_pod(found.value, found.kind, found.version, origin.product)


def _check(found: ManifestObject, lines: LineIndex) -> None:
    """Reject what is no object of Kubernetes although it may be read as one."""
    paths = (("kind",), ("metadata", "name"), ("metadata", "namespace"))
    if any(_OPENING in find_string(found.value, *path) for path in paths):
        raise ManifestError(UNRENDERED, lines.of(found.at))
    meant = find_kind_ignoring_case(found.kind, found.version)
    if meant:
        detail = f'"{found.kind}" is no kind of Kubernetes; write kind: {meant}'
        raise ManifestError(detail, lines.of((*found.at, "kind")))


def _bounded(
    document: ManifestDocument, read: ManifestDocument, changes: Mapping[Path, list[Operation]]
) -> ManifestDocument:
    """Return a document; raises ManifestError where it is out of proportion to what was read.

    An author's indentation and aliases would otherwise multiply what is written.
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


def _rewritten(
    document: ManifestDocument, origin: Origin
) -> tuple[ManifestDocument, dict[Path, Migration]]:
    """Return a document in our words, and what became of each pod in it, by where it stands.

    Raises ManifestError where one of its objects is too large.
    """
    migrations: dict[Path, Migration] = {}
    changes: dict[Path, list[Operation]] = {}
    objects = find_objects(document.value)
    for target in (target for found in objects for target in _targets(found, origin)):
        migration = _migration(target, origin)
        if migration is None:
            continue
        migrations[target.at] = migration
        for path, operations in target.changes(migration.operations).items():
            changes.setdefault(path, []).extend(operations)
    return changed(document, changes), migrations


def _migration(target: Target, origin: Origin) -> Migration | None:
    """Rewrite one pod; None where there is none, or nobody can read it: admission says why."""
    if target.found.pod is None:
        problems = _requests_of(target.object, origin)
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
    """Return True if no edit at one place changes the containers of a template."""
    if template.form is not Form.CONTAINER:
        return template.form is Form.INLINE
    return any(
        field[1:2] in {(name,) for name in CONTAINER_FIELDS}
        and (len(field) > _CONTAINER_PATH or "podSpecPatch" in at or "templateDefaults" in at)
        for field, at in template.places.items()
    )


def _notes_about(found: ManifestObject, origin: Origin, lines: LineIndex) -> tuple[Remark, ...]:
    """Return what has no counterpart of an object that holds no pod."""
    return tuple(
        Remark(lines.of((*found.at, *parse_path(note.path))), str(note), path=note.path)
        for note in notes_about_object(found.value, found.kind, found.version, origin.product)
    )


def counts(sources: Iterable[ManifestText]) -> dict[str, int]:
    """Count the pods and pod templates by what became of them, in the order of the words."""
    found = Counter(verdict.sort for source in sources for verdict in source.verdicts)
    return {sort.value: found[sort] for sort in Sort if found[sort]}


def unreadable(name: str, text: str, error: ManifestError) -> ManifestText:
    """Return a text that cannot be read, with the line and what to do."""
    if found := _ACTION.search(text):
        remark = Remark(text.count("\n", 0, found.start()) + 1, UNRENDERED)
    else:
        remark = Remark(error.line or 0, str(error))
    return ManifestText(name=name, unreadable=remark)
