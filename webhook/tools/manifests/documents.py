"""Manifests: from text to documents, to their pods and pod templates, and back to text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import yaml

from webhook.adapters.yaml_documents import BoundedReader, Path, StopError
from webhook.core.admission.stray_keys import (
    StrayKey,
    find_stray_keys,
    is_open,
    is_unknown,
    search_stray_keys,
)
from webhook.core.admission.workload_review import pod_of
from webhook.core.pod.fields import Json, find_string
from webhook.core.pod.patch import Operation, apply_patch
from webhook.core.pod.pod_templates import Form, Template, TooMuchToSearchError
from webhook.core.pod.template_search import (
    find_templates,
    find_unjudged_fields,
    is_builtin_kind,
    is_builtin_without_pods,
)
from webhook.names import PREFIX
from webhook.tools.manifests.reading import (
    KUBECTL,
    Layout,
    ManifestError,
    read_json,
    read_yaml,
)
from webhook.tools.manifests.writing import fresh, rewrite

# What kubectl takes for a separator; YAML forbids such a line inside a scalar.
_SEPARATOR: Final = re.compile(r"^---(?=[ \t\r\n]|\Z)", re.MULTILINE)
_HEADER: Final = re.compile(r"\ufeff?(?:---[ \t]*(?:#[^\n]*)?(?:\r?\n|\Z)|---[ \t]+)?")
_GIVES_VRAM: Final = "LimitRange"
"""Kind of Kubernetes that makes no pods, and changes them."""
_KEEPS_BLANK_LINES: Final = re.compile(r"[|>][0-9]*\+")


@dataclass(frozen=True, slots=True)
class ManifestDocument:
    """One document: its part of the text, and what kubectl reads in it."""

    text: str
    value: Any
    layout: Layout | None
    """How it is indented; None where it is JSON."""
    first_line: int = 1
    """Where in its file it begins."""

    @property
    def as_yaml(self) -> str:
        """The document as YAML, in its own words where they are YAML."""
        return self.text if self.layout is not None else fresh(self.value)


@dataclass(frozen=True, slots=True)
class ManifestObject:
    """One object of a document: an item where the document is a list."""

    kind: str
    version: str
    value: Json
    at: Path
    """Where in the document it stands."""

    def targets(self) -> Iterator[Target]:
        """Yield its pods and pod templates, and keys that nobody judges, as one target.

        Of a kind of which every template is known such keys have no effect. Raises ManifestError
        if it is too large.
        """
        try:
            found = find_templates(self.value, self.kind, self.version, _read_field)
            is_own = is_builtin_kind(self.kind, self.version)
            templates = [one for one in found if is_own or not is_open(one)]
            elsewhere = search_stray_keys(self.value, self.version, templates)
            others = tuple(find_unjudged_fields(self.value, self.kind, self.version))
        except TooMuchToSearchError as error:
            name = find_string(self.value, "metadata", "name") or "(no name)"
            raise ManifestError(f"{self.kind} {name} {error}") from None
        is_known = bool(found) and (is_own or any(one.form is Form.CONTAINER for one in found))
        is_apart = bool(elsewhere) and (not is_known or len(templates) < len(found))
        stray = find_stray_keys(self.value, self.kind, templates, () if is_apart else elsewhere)
        if is_apart or (stray and not found):
            templates = [*templates, Template((), None, Form.ELSEWHERE)]
        if templates and others:
            first = replace(templates[0], unjudged=(*others, *templates[0].unjudged))
            templates = [first, *templates[1:]]
        for template in templates:
            own = [one for one in stray if template.path in (one.paths or [templates[0].path])]
            keys = (*own, *(elsewhere if template.form is Form.ELSEWHERE else ()))
            yield Target(self, template, keys, is_one_of_many=len(templates) > 1)


@dataclass(frozen=True, slots=True)
class Target:
    """A pod, or an object that holds a pod template."""

    object: ManifestObject
    found: Template
    stray: tuple[StrayKey, ...] = ()
    """Keys that nothing reads in their place and that are meant for this template.

    Of an object whose pods may be made elsewhere, these are the keys that no template has.
    """
    is_one_of_many: bool = False
    """Whether the object holds more than this one."""

    @property
    def unread(self) -> Iterator[StrayKey]:
        """Keys that nothing reads, not even a controller that makes pods elsewhere."""
        kind, version = self.object.kind, self.object.version
        is_known = self.found.form is not Form.ELSEWHERE or is_builtin_without_pods(kind, version)
        for one in self.stray if kind != _GIVES_VRAM else ():
            is_unread = is_known or bool(one.cure) or is_unknown(one.key)
            if is_unread and not one.is_in_text:
                yield one

    @property
    def at(self) -> Path:
        """Where in the document the pod or the template stands."""
        return (*self.object.at, *self.found.path)

    @property
    def pod(self) -> Json:
        """The pod that the API server would send: the manifest's, or one made from the template."""
        return pod_of(self.found, find_string(self.object.value, "metadata", "name"))

    def changes(self, patch: Iterable[Operation]) -> dict[Path, list[Operation]]:
        """Return what a patch of the pod changes in the document, by where it stands."""
        operations = list(patch)
        above = self.found.metadata_path
        if above is None:
            return {self.at: operations}
        of_metadata = [one for one in operations if one["path"].startswith("/metadata")]
        of_spec = [one for one in operations if one not in of_metadata]
        return {(*self.object.at, *above): of_metadata, self.at: of_spec}


def read_documents(text: str) -> list[ManifestDocument]:
    """Split a text as kubectl does and read each document; raises ManifestError with the line."""
    starts = [0, *(match.start() for match in _SEPARATOR.finditer(text) if match.start())]
    ends = [*starts[1:], len(text)]
    documents: list[ManifestDocument] = []
    first_line = 1
    for start, end in zip(starts, ends, strict=True):
        header = _header(text[start:end])
        try:
            documents.extend(_read_part(text[start:end], header, first_line))
        except ManifestError as error:
            first = first_line + header.count("\n")
            line = first + (error.line - 1 if error.line else 0)
            raise ManifestError(str(error), line) from error
        except RecursionError:
            raise ManifestError("nested too deeply; flatten it") from None
        first_line += text.count("\n", start, end)
    return documents


def _read_part(text: str, header: str, first_line: int) -> Iterator[ManifestDocument]:
    """Yield the document between two separators, or the stream of JSON objects."""
    body = text[len(header) :]
    if body.lstrip().startswith("{"):
        try:
            objects = read_json(body)
        except json.JSONDecodeError:
            pass
        else:
            start = 0
            for end, value in objects:
                part = (header if not start else "") + body[start:end]
                yield ManifestDocument(part, value, None, first_line)
                first_line += part.count("\n")
                start = end
            return
    value, layout = read_yaml(body)
    if value is not None and not isinstance(value, dict) and not _is_of_others(value):
        what = "a list" if isinstance(value, list) else "a plain value"
        detail = f"{what} at the top level; write an object, several of them in a kind: List"
        raise ManifestError(detail)
    yield ManifestDocument(text, value, layout, first_line)


def _is_of_others(value: object) -> bool:
    """Say whether it is a list as other programs have them: JSON patches, playbooks."""
    return isinstance(value, list) and all(
        isinstance(one, dict) and not find_string(one, "kind") for one in value
    )


def _read_field(text: str) -> Any:
    """Return the value of the YAML or JSON in a field; raises ValueError."""
    if text.lstrip().startswith("{"):
        try:
            return json.loads(text)
        except RecursionError:
            raise ManifestError("nested too deeply; flatten it") from None
        except json.JSONDecodeError:
            pass
    return read_yaml(text)[0]


def find_objects(
    value: Any, at: Path = (), of: str = "", version: str = ""
) -> Iterator[ManifestObject]:
    """Yield the objects of a document, going into lists.

    Items of a typed list such as PodList may leave out kind and version: `of` and `version` say.
    """
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from find_objects(item, (*at, index), of, version)
    if not isinstance(value, dict):
        return
    kind, version = find_string(value, "kind") or of, find_string(value, "apiVersion") or version
    items = value.get("items")
    if kind.endswith("List") and isinstance(items, list):
        if PREFIX in str(value.get("metadata")):  # no list has annotations or labels
            yield ManifestObject(kind, "v1", {**value, "items": None}, at)
        for index, item in enumerate(items):
            yield from find_objects(item, (*at, "items", index), kind.removesuffix("List"), version)
        return
    yield ManifestObject(kind, version, value, at)


def changed(
    document: ManifestDocument, changes: Mapping[Path, Iterable[Operation]]
) -> ManifestDocument:
    """Return a document with JSON Patch operations applied to the pods at the given paths."""
    changes = {path: list(operations) for path, operations in changes.items() if operations}
    if not changes:
        return document
    value = document.value
    for path, operations in changes.items():
        value = _patched(value, path, list(operations))
    if document.layout is None:
        return replace(document, text=_header(document.text) + fresh(value), value=value)
    header = _header(document.text)
    body, tail = _parted(document.text[len(header) :])
    text = rewrite(body.replace("\r\n", "\n"), changes, value, document.layout)
    if "\r\n" in body:
        text = text.replace("\n", "\r\n")
    return replace(document, text=header + text + tail, value=value)


def _parted(body: str) -> tuple[str, str]:
    """Cut off the comments and blank lines at the end, unless a block scalar keeps blank lines.

    ruamel attaches them to the last value, and would move or lose them with it.
    """
    end = len(body)
    if _KEEPS_BLANK_LINES.search(body):
        return body, ""
    while end:
        start = body.rfind("\n", 0, end - 1) + 1
        if body[start:end].strip() and body[start] != "#":
            break
        end = start
    return body[:end], body[end:]


def _patched(value: Any, path: Path, operations: list[Operation]) -> Any:
    """Return a copy along the path, its end patched; what an alias shares is changed only here."""
    if not path:
        pod = {**value}
        if any(one["path"].startswith("/metadata") for one in operations):
            pod["metadata"] = value.get("metadata") or {}
        return apply_patch(pod, operations)
    key, *rest = path
    copied = value.copy()
    copied[key] = _patched(value[key], tuple(rest), operations)
    return copied


def _header(text: str) -> str:
    match = _HEADER.match(text)
    return match[0] if match else ""


def join(texts: Iterable[str]) -> str:
    """Join documents to one stream, with a separator wherever the next one brings none."""
    joined = ""
    for text in texts:
        if joined and not joined.endswith("\n"):
            joined += "\n"
        if joined.strip() and text.strip() and not _SEPARATOR.search(_first_line(text)):
            joined += "---\n"
        joined += text
    return joined


def _first_line(text: str) -> str:
    return text.removeprefix("\ufeff").lstrip().split("\n", 1)[0]


_UNREAD: Final = object()


@dataclass(slots=True)
class LineIndex:
    """The lines of one document that was read already; parsed again where one is asked for."""

    text: str
    first_line: int = 1
    """Of the text, in its file."""
    _root: Any = field(default=_UNREAD, init=False, repr=False)

    def of(self, path: Path) -> int:
        """Return the line of a path, or of the nearest thing around it."""
        if self._root is _UNREAD:
            try:
                self._root = next(BoundedReader(self.text, KUBECTL).documents(), None)
            except (StopError, yaml.YAMLError):  # JSON that is no YAML, as with tabs
                self._root = None
        return self.first_line + line_of(self._root, path)


def line_of(node: Any, path: Path) -> int:
    """Return the line of a path, or of the nearest thing around it, counted from 0."""
    line = node.start_mark.line if node else 0
    for part in path:
        if isinstance(part, int) and isinstance(node, yaml.SequenceNode) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line
        elif isinstance(part, str) and isinstance(node, yaml.MappingNode):
            pairs = [pair for pair in node.value if pair[0].value == part]
            if not pairs:
                break
            line, node = pairs[0][0].start_mark.line, pairs[0][1]
        else:
            break
    return int(line)
