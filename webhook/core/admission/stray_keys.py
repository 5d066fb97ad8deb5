"""vramwarden keys in places that nothing reads, and the places that their author meant.

| keys | function |
| --- | --- |
| in an object's metadata, and in that above a template; also near misses | `find_stray_keys` |
| in any other place of an object; in its texts if it has no template | `search_stray_keys` |
| in a bound that does not bound VRAM | `find_ineffective_bounds` |

The pod is judged again with the keys in the right place, so that their author gets all findings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from difflib import get_close_matches
from itertools import chain, islice
from typing import Any, Final, NamedTuple

from webhook.core.admission.controller_gpu_counts import requests_gpus
from webhook.core.admission.decision import Decision
from webhook.core.admission.rules.near_misses import (
    MAX_HINTS,
    NOTHING_READS,
    annotation_line,
    closest_key,
    find_intended,
    find_near_misses,
    find_unread,
)
from webhook.core.bounds import MAX_COMPARED_KEYS, MAX_KEY_LENGTH, MAX_TEMPLATES
from webhook.core.formatting import shorten
from webhook.core.pod.demand import read_demand
from webhook.core.pod.fields import Json, find_object
from webhook.core.pod.findings import Finding, Reason, annotation_path
from webhook.core.pod.pod_templates import (
    CONTAINER_FIELDS,
    METADATA_FIELDS,
    Path,
    Template,
    TooMuchToSearchError,
    as_object_list,
    format_path,
    iterate_items,
    value_at,
    visit_values,
)
from webhook.core.pod.views import read_pod
from webhook.names import (
    API_GROUP,
    GPU_MEMORY_ANNOTATION,
    KNOWN_KEYS,
    PREFIX,
    REQUEST_ANNOTATIONS,
    VRAM_POLICY_KIND,
    VRAM_RESOURCE,
    WORKLOAD_LABEL,
)

_FORM_REASONS: Final = frozenset({Reason.INVALID_QUANTITY, Reason.INVALID_COUNT, Reason.TOO_SMALL})
"""Reasons of findings about the format of an amount, which depend on no pod and no rule."""
_SHOWN_PLACES: Final = 2
_HOLDS_AMOUNTS: Final = ("limits", "requests")
_ASKING: Final = (*REQUEST_ANNOTATIONS, VRAM_RESOURCE)
_IN_TEXT: Final = re.compile(rf"({'|'.join(map(re.escape, _ASKING))})[\"']?[ \t]*:")
_KNOWN: Final = frozenset(chain((VRAM_RESOURCE,), *KNOWN_KEYS.values()))
_QUOTA: Final = f"requests.{VRAM_RESOURCE}"
_CURES: Final = {
    "TrainJob": f"write {VRAM_RESOURCE} under spec.trainer.resourcesPerNode.limits; no pod gets "
    "the metadata of a TrainJob"
}
"""Advice for keys in the metadata of kinds that do not copy the keys to their pods."""
_POLICY_IN_TEXT: Final = f"kind: {VRAM_POLICY_KIND}"


class StrayKey(NamedTuple):
    """Key in a place that nothing reads."""

    path: Path
    """Path of the key in the object, or of the string that contains the key."""
    key: str
    value: Any
    """Value of the key, or the string that contains the key."""
    is_in_text: bool = False
    intended: str = ""
    """vramwarden annotation that the key probably means; empty if unclear."""
    templates: tuple[Template, ...] = ()
    """Templates that the key may be meant for. Templates that request GPUs come first."""
    requesting_count: int = 0
    """Number of these templates that request GPUs."""
    cure: str = ""
    """Advice and its reason if the key is meant for no template."""

    @property
    def field(self) -> str:
        """Path of the key, in the form used in messages."""
        if self.is_in_text:
            return format_path(self.path)
        return f"{format_path(self.path[:-1])}[{shorten(self.key, MAX_KEY_LENGTH)}]"

    @property
    def paths(self) -> list[Path]:
        """Paths of the templates that have the key if its author follows the warning."""
        return [
            template.path
            for template in self.templates[: _SHOWN_PLACES if self.requesting_count > 1 else 1]
        ]

    @property
    def warning(self) -> str:
        """The line to write, and the reason."""
        field = _metadata_field(self.intended)
        paths = (format_path(template.place(("metadata", field))) for template in self.templates)
        places = list(dict.fromkeys(paths))
        if not places:
            return f"{self.field}: {self.cure or 'remove it; nothing reads it here'}"
        conjunction = " and " if self.requesting_count > 1 else " or "
        where = f"under {conjunction.join(places[:_SHOWN_PLACES])}"
        if self.key == self.intended and (self.path[-2] != "labels" or field == "labels"):
            return f"{self.field}: put it {where}; nothing reads it here"
        line = annotation_line(self.intended, self.value)
        return f"{self.field}: write {line} {where}; {NOTHING_READS}"


def is_placeholder(value: object) -> bool:
    """Return True if a pipeline, a chart or a template fills in a value."""
    return type(value) is str and any(mark in value for mark in ("{{", "${", "$("))


def has_placeholder(template: Template) -> bool:
    """Return True if amounts of a template contain placeholders."""
    annotations = find_object(template.pod, "metadata", "annotations")
    return any(is_placeholder(annotations.get(key)) for key in REQUEST_ANNOTATIONS)


def find_stray_keys(
    owner: Json, kind: str, templates: Sequence[Template], elsewhere: Iterable[StrayKey] = ()
) -> list[StrayKey]:
    """Return keys in an object's metadata, or above its templates, that no template has.

    `elsewhere` contains keys found in other places of the object, which are also returned.
    """
    found: list[StrayKey] = []
    paths: Iterable[Path] = [()]
    if templates:
        templates = [each for each in templates if each.pod is not None]
        # If the pods get an object's metadata, no level between the object and its template has
        # metadata.
        paths = dict.fromkeys(
            each.path[:length]
            for each in templates
            for length in range(len(each.path) + 1)
            if (length == len(each.path)) is (each.metadata_path is not None)
        )
    requesting = [each.path for each in templates if requests_gpus(owner, each)]
    for path in paths:
        below = tuple(one for one in templates if one.path[: len(path)] == path)
        for field in METADATA_FIELDS:
            keys = find_object(value_at(owner, path), "metadata", field)
            ours = islice(find_unread(keys, "" if path else kind, field), MAX_COMPARED_KEYS)
            near = (key for key, _ in find_near_misses(keys, field)) if below else ()
            for key in (*ours, *near):
                if not any(
                    find_object(one.pod, "metadata", field).get(key) == keys[key] for one in below
                ):
                    at, cure = (*path, "metadata", field, key), _CURES.get(kind, "")
                    read = get_close_matches(key, KNOWN_KEYS.get((kind, field), ()), 1, 0.9)
                    if read and read[0] not in keys and not closest_key(key):
                        line = annotation_line(read[0], keys[key])
                        cure = f"write {line} in its place; {NOTHING_READS}"
                    found.append(StrayKey(at, key, keys[key], templates=below, cure=cure))
    for stray in elsewhere:
        inside = [one for one in templates if stray.path[: len(one.path)] == one.path]
        found.append(stray._replace(templates=tuple(inside or templates)))
    requesting = [each.path for each in templates if requests_gpus(owner, each)]
    return [_with_meaning(one, requesting) for one in found[:MAX_HINTS]]


def _metadata_field(key: str) -> str:
    return "labels" if key == WORKLOAD_LABEL else "annotations"


def _with_meaning(stray: StrayKey, requesting: Sequence[Path]) -> StrayKey:
    """Return a stray key with its intended annotation and the templates without this annotation."""
    key, text = stray.key, str(stray.value)
    intended = (closest_key(key), text) if key.startswith(PREFIX) else find_intended(key, text)
    if key == WORKLOAD_LABEL:
        intended = key, text
    if intended is None or not intended[0]:
        return stray._replace(templates=())
    at = "metadata", _metadata_field(intended[0])
    without_key = [
        template
        for template in stray.templates
        if intended[0] not in find_object(template.pod, *at)
    ]
    without_key.sort(key=lambda template: template.path not in requesting)
    number = sum(template.path in requesting for template in without_key)
    return stray._replace(
        intended=intended[0],
        value=intended[1],
        templates=tuple(without_key),
        requesting_count=number,
    )


def stray_key_warnings(
    strays: Sequence[StrayKey],
    template: Template,
    pod: Json,
    decide: Callable[[Json], Decision],
    known_findings: Iterable[Finding],
) -> Iterator[str]:
    """Yield the lines to write in place of keys, and the findings about the pod with these lines.

    All keys are meant for the template, and `pod` is its pod. `known_findings` are the findings
    about this pod, with paths in the object. Of two templates, the first gets the lines.
    """
    moved = {
        annotation_path(stray.intended): stray
        for stray in strays
        if stray.templates and stray.value and not is_placeholder(stray.value)
    }
    amounts = {stray.intended: stray.value for stray in moved.values()}
    annotations = {**find_object(pod, "metadata", "annotations"), **amounts}
    metadata = {**find_object(pod, "metadata"), "annotations": annotations}
    wrong: dict[str, list[str]] = {}
    further: list[str] = []
    before = {(finding.reason, finding.path) for finding in known_findings}
    for finding in decide({**pod, "metadata": metadata}).findings if moved else ():
        shown = template.shown(finding.path)
        if finding.path in moved:
            wrong.setdefault(finding.path, []).append(finding.detail)
        elif (finding.reason, shown) not in before:
            further.append(f"{shown}: beside that, {finding.reason}: {finding.detail}")
    own = (stray for stray in strays if template.path in (stray.paths[:1] or [template.path]))
    for stray in own:
        yield "; ".join((stray.warning, *wrong.get(annotation_path(stray.intended), ())))
    yield from further[:MAX_HINTS]


def find_invalid_amounts(key: str, value: object, path: str) -> Iterator[Finding]:
    """Yield the findings about the value of a key that requests VRAM, for any pod.

    A number is read as a string, since a chart may quote it.
    """
    if type(value) is bool or not isinstance(value, str | int | float) or is_placeholder(value):
        return
    text = str(value)
    entries = (entry.partition("=") for entry in text.split(","))
    names = dict.fromkeys(name.strip(" ") for name, equals, _ in entries if equals) or ("main",)
    limits = {key: text} if key == VRAM_RESOURCE else {}
    annotations = {} if limits else {GPU_MEMORY_ANNOTATION: "1Gi", key: text}
    containers = [{"name": name, "resources": {"limits": limits}} for name in names]
    pod = {"metadata": {"annotations": annotations}, "spec": {"containers": containers}}
    for finding in read_demand(read_pod(pod))[1]:
        if finding.reason in _FORM_REASONS:
            yield replace(finding, path=path)


def search_stray_keys(
    obj: Json, version: str, templates: Sequence[Template]
) -> tuple[StrayKey, ...]:
    """Return the keys in an object that request VRAM and that no template of the object has.

    Every map is searched. If the object has no template, its strings are searched for YAML with
    such a key, since a chart's values may be one string. Raises TooMuchToSearchError.
    """
    if version.rpartition("/")[0] == API_GROUP:
        return ()
    read_paths = {at for template in templates for at in _paths_read(template)}
    read_paths |= {
        ("metadata", field, key) for field in METADATA_FIELDS for key in REQUEST_ANNOTATIONS
    }
    found: list[StrayKey] = []

    def enter(value: Any, path: Path) -> bool:
        if type(value) is dict:
            requests = [key for key in REQUEST_ANNOTATIONS if key in value]
            if path[-1:] and path[-1] in _HOLDS_AMOUNTS and VRAM_RESOURCE in value:
                requests.append(VRAM_RESOURCE)
            found.extend(
                StrayKey(at, key, value[key])
                for key in requests
                if (at := (*path, key)) not in read_paths
            )
        for key, one in iterate_items(value) if not templates else ():
            if type(one) is str and PREFIX in one and _POLICY_IN_TEXT not in one:
                asking = _IN_TEXT.findall(one)[:1]
                found.extend(StrayKey((*path, key), first, one, True) for first in asking)
        if len(found) > MAX_TEMPLATES:
            raise TooMuchToSearchError(
                f"carries more than {MAX_TEMPLATES:,} keys of ours; split it"
            )
        return True

    visit_values(obj, enter)
    return (*found, *find_ineffective_bounds(obj, version))


def find_ineffective_bounds(obj: Json, version: str) -> Iterator[StrayKey]:
    """Yield each key in a quota or a limit range that does not limit VRAM.

    A ResourceQuota counts only `requests.` of an extended resource
    (https://kubernetes.io/docs/concepts/policy/resource-quotas/). A LimitRange adds the amounts to
    every container.
    """
    if version not in {"v1", ""}:
        return
    kind, hard = obj.get("kind"), find_object(obj, "spec", "hard")
    for key in hard if kind == "ResourceQuota" else ():
        _, ours, name = key.partition(PREFIX)
        if not ours or key == _QUOTA:
            continue
        is_vram = closest_key(name) == GPU_MEMORY_ANNOTATION and _QUOTA not in hard
        do = f"write {_QUOTA}: {hard[key]}" if is_vram else "remove it"
        why = "Kubernetes counts only requests" if ours + name == VRAM_RESOURCE else "no pod asks"
        why = f"{why} for this resource, so the line bounds nothing"
        yield StrayKey(("spec", "hard", key), key, hard[key], cure=f"{do}; {why}")
    limits = as_object_list(find_object(obj, "spec").get("limits")) if kind == "LimitRange" else ()
    for index, limit in enumerate(limits):
        for field, amounts in limit.items():
            if type(amounts) is dict and VRAM_RESOURCE in amounts:
                do = f"remove it, and bound VRAM by a ResourceQuota of {_QUOTA}"
                why = "a LimitRange gives VRAM to every container of the namespace"
                path = ("spec", "limits", index, field, VRAM_RESOURCE)
                amount = amounts[VRAM_RESOURCE]
                yield StrayKey(path, VRAM_RESOURCE, amount, cure=f"{do}; {why}")


def is_unknown_key(key: str) -> bool:
    """Return True if a key has vramwarden's prefix and nothing reads it."""
    return key.startswith(PREFIX) and key not in _KNOWN


def _paths_read(template: Template) -> Iterator[Path]:
    """Yield the paths at which vramwarden reads its keys for a template."""
    spec = find_object(template.pod, "spec")
    amounts = [
        ("spec", field, index, "resources", kind)
        for field in CONTAINER_FIELDS
        for index, _ in enumerate(as_object_list(spec.get(field)))
        for kind in _HOLDS_AMOUNTS
    ]
    metadata = [("metadata", field) for field in METADATA_FIELDS]
    for key in _ASKING:
        yield from (template.place((*at, key)) for at in (*metadata, *amounts))
        for length in range(len(template.path) + 1):
            yield from ((*template.path[:length], *at, key) for at in metadata)
