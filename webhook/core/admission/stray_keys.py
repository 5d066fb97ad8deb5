"""Keys of ours that stand where nothing reads them: beside a pod template, above it, in its spec.

The pod is judged again with the keys moved, so that their author reads at once what is wrong then.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from webhook.core.admission.rules.hints import (
    SHOWN,
    candidates,
    is_unread,
    is_unread_label,
    key_meant,
    replacement,
    written,
)
from webhook.core.bounds import LONGEST_KEY, MOST_HINT_KEYS
from webhook.core.pod.carried import is_filled_in
from webhook.core.pod.demand import read_demand
from webhook.core.pod.fields import as_object, as_objects, part
from webhook.core.pod.findings import Finding, Reason, annotation_path
from webhook.core.pod.shapes import CONTAINER_FIELDS, shown_path
from webhook.core.pod.views import read_pod
from webhook.core.words import shortened
from webhook.names import (
    ASKING_ANNOTATIONS,
    GPU_COUNT_ANNOTATION,
    GPU_MEMORY_ANNOTATION,
    PREFIX,
    VRAM_RESOURCE,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from webhook.core.admission.decide import Decision
    from webhook.core.pod.carried import Carried
    from webhook.core.pod.fields import Json
    from webhook.core.pod.shapes import Path, Template

_OF_FORM: Final = frozenset({Reason.INVALID_QUANTITY, Reason.INVALID_COUNT, Reason.TOO_SMALL})
"""Reasons that an amount is wrong for, whatever its pod and the rule."""
_METADATA: Final = ("annotations", "labels")
_SHOWN_PLACES: Final = 2


class StrayKey(NamedTuple):
    """A key outside the metadata of pods, and the annotation that it is meant to be."""

    path: Path
    key: str
    meant: str
    value: str
    templates: tuple[Template, ...]
    """Templates it may be meant for, the likeliest first."""

    @property
    def warning(self) -> str:
        """The line to write, and the reason."""
        places = list(dict.fromkeys(one.annotations_field for one in self.templates))
        if not places:
            return f"{self._shown}: remove it; nothing reads it here"
        where = f"under {' or '.join(places[:_SHOWN_PLACES])}"
        if self.key == self.meant and self.path[-2] != "labels":
            return f"{self._shown}: put it {where}; nothing reads it here"
        line = written(self.meant, self.value)
        return f"{self._shown}: write {line} {where}; nothing reads this key"

    @property
    def _shown(self) -> str:
        return shown_path((*self.path[:-1], shortened(self.key, LONGEST_KEY)))


def find_stray_keys(
    owner: Json, templates: Sequence[Template], elsewhere: Iterable[Carried] = ()
) -> list[StrayKey]:
    """Return the keys in the metadata above templates that none of these has, and others.

    `elsewhere` are keys that were found in other places of the object.
    """
    found: list[StrayKey] = []
    templates = [one for one in templates if one.pod is not None]
    for path, holder in _above(owner, templates):
        below = [one for one in templates if one.path[: len(path)] == path]
        for field in _METADATA:
            for key, value in _unread(part(holder, "metadata", field), field):
                if not any(_has(one, key) for one in below):
                    found.append(_stray((*path, "metadata", field, key), key, value, below))
    for one in elsewhere:
        inside = [each for each in templates if one.path[: len(each.path)] == each.path]
        found.append(_stray(one.path, one.key, one.value, inside or templates))
    return found[:SHOWN]


def _above(owner: Json, templates: Sequence[Template]) -> Iterator[tuple[Path, Json]]:
    """Yield the objects whose metadata the pods do not get: the owner, and holders of templates.

    Where pods get the object's metadata, that is the template itself.
    """
    seen: set[Path] = set()
    for template in templates:
        lengths = range(len(template.path))
        if template.metadata_path is not None:
            lengths = range(len(template.path), len(template.path) + 1)
        for length in lengths:
            path = template.path[:length]
            holder: Any = owner
            for key in path:
                holder = holder[key]
            if path not in seen and type(holder) is dict:
                seen.add(path)
                yield path, holder


def _unread(keys: Json, field: str) -> Iterator[tuple[str, Any]]:
    """Yield the keys of metadata that ask for VRAM, nearly do, or have our prefix for nothing."""
    ours = (key for key in islice(keys, MOST_HINT_KEYS) if key.startswith(PREFIX))
    for key in islice(ours, SHOWN):
        is_asking = key in ASKING_ANNOTATIONS
        if is_asking or (is_unread(key) if field == "annotations" else is_unread_label(key)):
            yield key, keys[key]
    for key in candidates(keys):
        value = keys[key]
        is_known = key.startswith(PREFIX) or (field == "labels" and "/" not in key)
        if not is_known and type(value) is str and replacement(key, value):
            yield key, value


def _stray(path: Path, key: str, value: Any, templates: Sequence[Template]) -> StrayKey:
    """Return a key with the annotation that it is meant to be, and the templates it may be for."""
    text = value if type(value) is str else str(value)
    meant = (key, text) if key in ASKING_ANNOTATIONS else replacement(key, text)
    if key == VRAM_RESOURCE:
        meant = GPU_MEMORY_ANNOTATION, text
    elif meant is None and (ours := key_meant(key)):
        meant = ours, text
    if meant is None:
        return StrayKey(path, key, "", "", ())
    free = [one for one in templates if not _has(one, meant[0])]
    return StrayKey(path, key, *meant, tuple(sorted(free, key=_asks_for_no_gpu)))


def _has(template: Template, key: str) -> bool:
    return any(key in part(template.pod, "metadata", field) for field in _METADATA)


def _asks_for_no_gpu(template: Template) -> bool:
    """Return True if no container of a template limits a resource for GPUs."""
    spec = part(template.pod, "spec")
    return not any(
        "gpu" in str(name)
        for field in CONTAINER_FIELDS
        for container in as_objects(spec.get(field))
        for name in part(container, "resources", "limits")
    )


def warnings_about(
    strays: Sequence[StrayKey],
    template: Template,
    pod: Json,
    decide: Callable[[Json], Decision],
    known: Iterable[Finding],
) -> Iterator[str]:
    """Yield the lines to write in place of keys, and the findings about the pod with them.

    The template is the likeliest for all of them. `pod` is its pod, about which the findings are
    known, with their paths in the object.
    """
    written_out = (one for one in strays if one.value and not is_filled_in(one.value))
    moved = {one.meant: one for one in written_out if one.templates}
    decision = _decision_with(pod, moved, decide) if moved else None
    wrong: dict[str, list[str]] = {}
    beside: list[str] = []
    before = {(one.reason, one.path) for one in known}
    for finding in decision.findings if decision else ():
        at = {annotation_path(key): stray for key, stray in moved.items()}.get(finding.path)
        shown = template.shown(finding.path)
        if at is not None:
            wrong.setdefault(at.meant, []).append(finding.detail)
        elif (finding.reason, shown) not in before:
            beside.append(f"{shown}: beside that, {finding.reason}: {finding.detail}")
    for one in strays:
        yield "; ".join((one.warning, *wrong.get(one.meant, ())))
    yield from beside[:SHOWN]


def _decision_with(
    pod: Json, moved: Mapping[str, StrayKey], decide: Callable[[Json], Decision]
) -> Decision:
    metadata = as_object(pod.get("metadata"))
    own = as_object(metadata.get("annotations"))
    annotations = {**own, **{key: one.value for key, one in moved.items()}}
    return decide({**pod, "metadata": {**metadata, "annotations": annotations}})


def wrong_amounts(key: str, value: object, path: str) -> Iterator[Finding]:
    """Yield the findings about a key that asks for VRAM, at a path, whatever pod it is for.

    A number is read as its digits, since a chart may put it in quotes.
    """
    if type(value) is bool or not isinstance(value, str | int | float) or is_filled_in(value):
        return
    text = str(value)
    annotations: Json = {GPU_MEMORY_ANNOTATION: text} if key == GPU_MEMORY_ANNOTATION else {}
    entries = (entry.partition("=") for entry in text.split(","))
    names = dict.fromkeys(name.strip(" ") for name, equals, _ in entries if equals) or ("main",)
    first: Json = {}
    if key == GPU_COUNT_ANNOTATION:
        annotations = {key: text, GPU_MEMORY_ANNOTATION: "1Gi"}
    elif key == VRAM_RESOURCE:
        first = {"resources": {"limits": {key: text}}}
    containers = [{"name": name, **first} for name in names]
    pod = {"metadata": {"annotations": annotations}, "spec": {"containers": containers}}
    for finding in read_demand(read_pod(pod))[1]:
        if finding.reason in _OF_FORM:
            yield replace(finding, path=path)
