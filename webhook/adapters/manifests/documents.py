"""Manifests: from text to documents, to their pods and pod templates, and back to text."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from webhook.adapters.manifests.json_reading import NotJsonError, read_json
from webhook.adapters.manifests.reading import Layout, ManifestError, read_yaml
from webhook.adapters.manifests.writing import fresh, rewrite
from webhook.core.pod.patch import apply_patch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from webhook.adapters.yaml_documents import Path
    from webhook.core.pod.fields import Json
    from webhook.core.pod.patch import Operation


class _Shape(NamedTuple):
    """Which API groups a kind belongs to, and where its pod or pod template stands."""

    groups: frozenset[str]
    path: tuple[str, ...]


_APPS: Final = _Shape(frozenset({"apps", "extensions"}), ("spec", "template"))
_SHAPES: Final[Mapping[str, _Shape]] = {
    "Pod": _Shape(frozenset({""}), ()),
    "PodTemplate": _Shape(frozenset({""}), ("template",)),
    "ReplicationController": _Shape(frozenset({""}), ("spec", "template")),
    "DaemonSet": _APPS,
    "Deployment": _APPS,
    "ReplicaSet": _APPS,
    "StatefulSet": _APPS,
    "Job": _Shape(frozenset({"batch"}), ("spec", "template")),
    "CronJob": _Shape(frozenset({"batch"}), ("spec", "jobTemplate", "spec", "template")),
}

# What kubectl takes for a separator; YAML forbids such a line inside a scalar.
_SEPARATOR: Final = re.compile(r"^---(?=[ \t\r\n]|\Z)", re.MULTILINE)
_HEADER: Final = re.compile(r"\ufeff?(?:---[ \t]*(?:#[^\n]*)?(?:\r?\n|\Z)|---[ \t]+)?")
_KEEPS_BLANK_LINES: Final = re.compile(r"[|>][0-9]*\+")


@dataclass(frozen=True, slots=True)
class ManifestDocument:
    """One document: its part of the text, and what kubectl reads in it."""

    text: str
    value: Any
    layout: Layout | None
    """How it is indented; None where it is JSON."""

    @property
    def as_yaml(self) -> str:
        """The document as YAML, in its own words where they are YAML."""
        return self.text if self.layout is not None else fresh(self.value)


@dataclass(frozen=True, slots=True)
class Target:
    """A pod, or an object that holds a pod template."""

    kind: str
    owner: Json
    """The object itself."""
    at: Path
    """Where in the document the pod or the template stands."""
    field: str
    """The same path within the object, for messages; empty for a pod."""
    template: Json | None
    """None where there is none."""

    @property
    def pod(self) -> Json:
        """The pod that the API server would send: the manifest's, or one made from the template."""
        template = self.template or {}
        if not self.field:
            return template
        metadata = template.get("metadata")
        if metadata is None or isinstance(metadata, dict):
            name = text_of(self.owner, "metadata", "name")
            metadata = {"generateName": f"{name}-", **(metadata or {})}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
        return {**pod, "spec": template["spec"]} if "spec" in template else pod


def text_of(holder: Any, *path: str) -> str:
    """Return a nested string, empty where there is none."""
    for part in path:
        holder = holder.get(part) if isinstance(holder, dict) else None
    return holder if isinstance(holder, str) else ""


def read_documents(text: str) -> list[ManifestDocument]:
    """Split a text as kubectl does and read each document; raises ManifestError with the line."""
    starts = [0, *(match.start() for match in _SEPARATOR.finditer(text) if match.start())]
    ends = [*starts[1:], len(text)]
    documents: list[ManifestDocument] = []
    for start, end in zip(starts, ends, strict=True):
        header = _header(text[start:end])
        try:
            documents.extend(_read_part(text[start:end], header))
        except ManifestError as error:
            first = text.count("\n", 0, start + len(header)) + 1
            line = first + (error.line - 1 if error.line else 0)
            raise ManifestError(str(error), line) from error
        except RecursionError:
            raise ManifestError("nested too deeply; flatten it") from None
    return documents


def _read_part(text: str, header: str) -> Iterator[ManifestDocument]:
    """Yield the document between two separators, or the stream of JSON objects."""
    body = text[len(header) :]
    if body.lstrip().startswith("{"):
        try:
            objects = read_json(body)
        except NotJsonError:
            pass
        else:
            start = 0
            for end, value in objects:
                yield ManifestDocument((header if not start else "") + body[start:end], value, None)
                start = end
            return
    value, layout = read_yaml(body)
    if value is not None and not isinstance(value, dict):
        what = "a list" if isinstance(value, list) else "a plain value"
        detail = f"{what} at the top level; write an object, several of them in a kind: List"
        raise ManifestError(detail)
    yield ManifestDocument(text, value, layout)


def find_targets(value: Any, at: Path = (), of: str = "", version: str = "") -> Iterator[Target]:
    """Yield the pods and pod templates of an object, going into lists.

    Items of a typed list such as PodList may leave out kind and version: `of` and `version` say.
    """
    if not isinstance(value, dict):
        return
    kind, version = text_of(value, "kind") or of, text_of(value, "apiVersion") or version
    items = value.get("items")
    if kind.endswith("List") and isinstance(items, list):
        for index, item in enumerate(items):
            yield from find_targets(item, (*at, "items", index), kind.removesuffix("List"), version)
        return
    shape = _SHAPES.get(kind)
    group = version.rpartition("/")[0]
    if shape is None or (version and group not in shape.groups):
        return
    template: Any = value
    for part in shape.path:
        template = template.get(part) if isinstance(template, dict) else None
    found = template if isinstance(template, dict) else None
    yield Target(kind, value, (*at, *shape.path), ".".join(shape.path), found)


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
        pod = {**value, "metadata": value.get("metadata") or {}}
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
