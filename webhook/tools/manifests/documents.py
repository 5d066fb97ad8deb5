"""Documents of a manifest, their objects and pod templates, and edits of them."""

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
    has_placeholder,
    is_unknown_key,
    search_stray_keys,
)
from webhook.core.admission.workload_review import pod_from_template
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
from webhook.tools.manifests.reading import KUBECTL, Layout, ManifestError, read_json, read_yaml
from webhook.tools.manifests.writing import dump_yaml, rewrite

# kubectl's document separator. YAML forbids such a line inside a scalar.
_SEPARATOR: Final = re.compile(r"^---(?=[ \t\r\n]|\Z)", re.MULTILINE)
_HEADER: Final = re.compile(r"\ufeff?(?:---[ \t]*(?:#[^\n]*)?(?:\r?\n|\Z)|---[ \t]+)?")
_LIMIT_RANGE: Final = "LimitRange"
"""Kind that creates no pods but adds resources to new pods."""
_KEEPS_BLANK_LINES: Final = re.compile(r"[|>][0-9]*\+")


@dataclass(frozen=True, slots=True)
class ManifestDocument:
    """A document: its part of the text, and the value that kubectl reads from it."""

    text: str
    value: Any
    layout: Layout | None
    """Indentation of the YAML; None for JSON."""
    first_line: int = 1
    """Line number of the document's first line in the file."""

    @property
    def as_yaml(self) -> str:
        """The document as YAML; unchanged if it already is YAML."""
        return self.text if self.layout is not None else dump_yaml(self.value)


@dataclass(frozen=True, slots=True)
class ManifestObject:
    """An object of a document, or one item if the document is a list."""

    kind: str
    version: str
    value: Json
    at: Path
    """Path in the document."""

    def targets(self) -> Iterator[Target]:
        """Yield a target per pod and pod template, and one for vramwarden keys elsewhere.

        If all templates of the kind are known, keys elsewhere have no effect, and there is no
        target for them. Raises ManifestError if the object is too large.
        """
        try:
            found = find_templates(self.value, self.kind, self.version, _read_field)
            is_own = is_builtin_kind(self.kind, self.version)
            templates = [template for template in found if is_own or not has_placeholder(template)]
            elsewhere = search_stray_keys(self.value, self.version, templates)
            others = tuple(find_unjudged_fields(self.value, self.kind, self.version))
        except TooMuchToSearchError as error:
            name = find_string(self.value, "metadata", "name") or "(no name)"
            raise ManifestError(f"{self.kind} {name} {error}") from None
        is_known = bool(found) and (
            is_own or any(template.form is Form.CONTAINER for template in found)
        )
        is_apart = bool(elsewhere) and (not is_known or len(templates) < len(found))
        stray = find_stray_keys(self.value, self.kind, templates, () if is_apart else elsewhere)
        if is_apart or (stray and not found):
            templates = [*templates, Template((), None, Form.ELSEWHERE)]
        if templates and others:
            first = replace(templates[0], unjudged=(*others, *templates[0].unjudged))
            templates = [first, *templates[1:]]
        for template in templates:
            own = [key for key in stray if template.path in (key.paths or [templates[0].path])]
            keys = (*own, *(elsewhere if template.form is Form.ELSEWHERE else ()))
            yield Target(self, template, keys, is_one_of_many=len(templates) > 1)


@dataclass(frozen=True, slots=True)
class Target:
    """A pod or pod template in an object."""

    object: ManifestObject
    found: Template
    stray: tuple[StrayKey, ...] = ()
    """Misplaced keys that are meant for this template.

    For an object whose pods may be created elsewhere, these are the keys outside of templates.
    """
    is_one_of_many: bool = False
    """True if the object has several pods or templates."""

    @property
    def unread(self) -> Iterator[StrayKey]:
        """Keys that nothing reads, not even another controller that creates the pods."""
        kind, version = self.object.kind, self.object.version
        is_known = self.found.form is not Form.ELSEWHERE or is_builtin_without_pods(kind, version)
        for key in self.stray if kind != _LIMIT_RANGE else ():
            is_unread = is_known or bool(key.cure) or is_unknown_key(key.key)
            if is_unread and not key.is_in_text:
                yield key

    @property
    def at(self) -> Path:
        """Path of the pod or the template in the document."""
        return (*self.object.at, *self.found.path)

    @property
    def pod(self) -> Json:
        """The pod that the webhook would receive, built from the template if necessary."""
        return pod_from_template(self.found, find_string(self.object.value, "metadata", "name"))

    def changes(self, patch: Iterable[Operation]) -> dict[Path, list[Operation]]:
        """Return the operations of a patch of the pod, keyed by path in the document."""
        operations = list(patch)
        above = self.found.metadata_path
        if above is None:
            return {self.at: operations}
        of_metadata = [
            operation for operation in operations if operation["path"].startswith("/metadata")
        ]
        of_spec = [operation for operation in operations if operation not in of_metadata]
        return {(*self.object.at, *above): of_metadata, self.at: of_spec}


def read_documents(text: str) -> list[ManifestDocument]:
    """Split a text into documents like kubectl. Raises ManifestError with the line."""
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
    """Yield the document between two separators, or each object of a JSON stream."""
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
    if value is not None and not isinstance(value, dict) and not _is_foreign_list(value):
        what = "a list" if isinstance(value, list) else "a plain value"
        detail = f"{what} at the top level; write an object, several of them in a kind: List"
        raise ManifestError(detail)
    yield ManifestDocument(text, value, layout, first_line)


def _is_foreign_list(value: object) -> bool:
    """Return True for a list that is no Kubernetes list, such as a JSON patch or a playbook."""
    return isinstance(value, list) and all(
        isinstance(item, dict) and not find_string(item, "kind") for item in value
    )


def _read_field(text: str) -> Any:
    """Parse YAML or JSON in a string field. Raises ValueError."""
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
    """Yield the objects of a document, including items of lists.

    `of` and `version` are the default kind and version for items of typed lists such as PodList.
    """
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from find_objects(item, (*at, index), of, version)
    if not isinstance(value, dict):
        return
    kind, version = find_string(value, "kind") or of, find_string(value, "apiVersion") or version
    items = value.get("items")
    if kind.endswith("List") and isinstance(items, list):
        if PREFIX in str(value.get("metadata")):  # lists have no annotations or labels
            yield ManifestObject(kind, "v1", {**value, "items": None}, at)
        for index, item in enumerate(items):
            yield from find_objects(item, (*at, "items", index), kind.removesuffix("List"), version)
        return
    yield ManifestObject(kind, version, value, at)


def changed(
    document: ManifestDocument, changes: Mapping[Path, Iterable[Operation]]
) -> ManifestDocument:
    """Return a document with JSON Patch operations applied at the paths."""
    changes = {path: list(operations) for path, operations in changes.items() if operations}
    if not changes:
        return document
    value = document.value
    for path, operations in changes.items():
        value = _apply_at(value, path, list(operations))
    if document.layout is None:
        return replace(document, text=_header(document.text) + dump_yaml(value), value=value)
    header = _header(document.text)
    body, tail = _split_trailing_comments(document.text[len(header) :])
    text = rewrite(body.replace("\r\n", "\n"), changes, value, document.layout)
    if "\r\n" in body:
        text = text.replace("\n", "\r\n")
    return replace(document, text=header + text + tail, value=value)


def _split_trailing_comments(body: str) -> tuple[str, str]:
    """Split a text into its content and the comments and blank lines at its end.

    ruamel attaches such lines to the last value, and would move or lose them with the value. The
    text is not split if a block scalar keeps its blank lines.
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


def _apply_at(value: Any, path: Path, operations: list[Operation]) -> Any:
    """Return a value with JSON Patch operations applied at a path.

    Containers along the path are copied, so that other aliases of them do not change.
    """
    if not path:
        pod = {**value}
        if any(operation["path"].startswith("/metadata") for operation in operations):
            pod["metadata"] = value.get("metadata") or {}
        return apply_patch(pod, operations)
    key, *rest = path
    copied = value.copy()
    copied[key] = _apply_at(value[key], tuple(rest), operations)
    return copied


def _header(text: str) -> str:
    match = _HEADER.match(text)
    return match[0] if match else ""


def join(texts: Iterable[str]) -> str:
    """Join documents into one stream, adding missing separators."""
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
    """Line numbers of a document, which is parsed again on first use."""

    text: str
    first_line: int = 1
    """Line number of the document's first line in the file."""
    _root: Any = field(default=_UNREAD, init=False, repr=False)

    def of(self, path: Path) -> int:
        """Return the line of a path, or of its innermost parent that exists."""
        if self._root is _UNREAD:
            try:
                self._root = next(BoundedReader(self.text, KUBECTL).documents(), None)
            except (StopError, yaml.YAMLError):  # JSON that is not YAML, for example with tabs
                self._root = None
        return self.first_line + find_line(self._root, path)


def find_line(node: Any, path: Path) -> int:
    """Return the line of a path, or of its innermost parent that exists, counted from 0."""
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
