"""Keys of ours that ask for VRAM where no template of an object has them: nobody judged them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from webhook.core.bounds import MOST_TEMPLATES
from webhook.core.pod.fields import part
from webhook.core.pod.shapes import (
    CONTAINER_FIELDS,
    TooMuchToSearchError,
    in_order,
    objects_in,
    shown_path,
    walk,
)
from webhook.names import (
    API_GROUP,
    ASKING_ANNOTATIONS,
    PREFIX,
    VRAM_POLICY_KIND,
    VRAM_RESOURCE,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from webhook.core.pod.fields import Json
    from webhook.core.pod.shapes import Path, Template

_HOLDS_AMOUNTS: Final = ("limits", "requests")
_IN_TEXT: Final = re.compile(
    rf"({'|'.join(map(re.escape, ASKING_ANNOTATIONS))}|{re.escape(VRAM_RESOURCE)})[\"']?[ \t]*:"
)
_QUOTA: Final = f"requests.{VRAM_RESOURCE}"
_POLICY_IN_TEXT: Final = f"kind: {VRAM_POLICY_KIND}"


class Carried(NamedTuple):
    """A key of ours that asks for VRAM and that no template has."""

    path: Path
    """Its place in the object, or that of the text that holds it."""
    key: str
    value: Any
    """The amount, or the text that holds it."""
    is_in_text: bool = False

    @property
    def field(self) -> str:
        """Its place as messages write it."""
        above = shown_path(self.path[:-1])
        return shown_path(self.path) if self.is_in_text else f"{above}[{self.key}]"


def is_filled_in(value: object) -> bool:
    """Return True if a pipeline, a chart or a template fills in a value."""
    return type(value) is str and any(mark in value for mark in ("{{", "${", "$("))


def is_open(template: Template) -> bool:
    """Return True if amounts of a template are still to be filled in."""
    annotations = part(template.pod, "metadata", "annotations")
    return any(is_filled_in(annotations.get(key)) for key in ASKING_ANNOTATIONS)


def carried_keys(obj: Json, version: str, templates: Iterable[Template]) -> tuple[Carried, ...]:
    """Return where keys of ours that ask stand in an object and no template of it has them.

    That is every key of a map, and where the object has no template, also each text that holds one
    as YAML would, once: values of a chart may be one text. A comment holds none. Raises
    TooMuchToSearchError.
    """
    if version.rpartition("/")[0] == API_GROUP:
        return ()
    templates = list(templates)
    judged = {at for template in templates for at in _judged(template)}
    found: list[Carried] = []

    def enter(value: Any, path: Path) -> bool:
        if type(value) is dict:
            asked = [key for key in ASKING_ANNOTATIONS if key in value]
            if path[-1:] and path[-1] in _HOLDS_AMOUNTS and VRAM_RESOURCE in value:
                asked.append(VRAM_RESOURCE)
            found.extend(
                Carried(at, key, value[key]) for key in asked if (at := (*path, key)) not in judged
            )
        for key, one in in_order(value) if not templates else ():
            if type(one) is str and (asked_in := _asked_in(one)):
                found.append(Carried((*path, key), asked_in, one, True))
        if len(found) > MOST_TEMPLATES:
            raise TooMuchToSearchError(
                f"carries more than {MOST_TEMPLATES:,} keys of ours; split it"
            )
        return True

    walk(obj, enter)
    kind = obj.get("kind")
    bounds = useless_bounds(obj, kind, version) if type(kind) is str else ()
    found += [one for one, _ in bounds]
    return tuple(found)


def useless_bounds(obj: Json, kind: str, version: str) -> Iterator[tuple[Carried, str]]:
    """Yield each bound on VRAM that Kubernetes does not count as one, and its cure.

    Of an extended resource a ResourceQuota counts only `requests.`
    (https://kubernetes.io/docs/concepts/policy/resource-quotas/). A LimitRange gives its amounts to
    every container.
    """
    if version not in {"v1", ""}:
        return
    hard = part(obj, "spec", "hard")
    for key in (f"limits.{VRAM_RESOURCE}", VRAM_RESOURCE) if kind == "ResourceQuota" else ():
        if key in hard:
            do = f"write {_QUOTA}: {hard[key]}" if _QUOTA not in hard else "remove it"
            why = "Kubernetes counts only requests of this resource, so the line bounds nothing"
            yield Carried(("spec", "hard", key), key, hard[key]), f"{do}; {why}"
    limits = objects_in(part(obj, "spec").get("limits")) if kind == "LimitRange" else ()
    for index, limit in enumerate(limits):
        for field, amounts in limit.items():
            if type(amounts) is dict and VRAM_RESOURCE in amounts:
                do = f"remove it, and bound VRAM by a ResourceQuota of {_QUOTA}"
                why = "a LimitRange gives VRAM to every container of the namespace"
                path = ("spec", "limits", index, field, VRAM_RESOURCE)
                yield Carried(path, VRAM_RESOURCE, amounts[VRAM_RESOURCE]), f"{do}; {why}"


def _asked_in(text: str) -> str:
    """Return the first key that a text asks with; empty for none, and for a policy."""
    found = _IN_TEXT.search(text) if PREFIX in text else None
    return found[1] if found and _POLICY_IN_TEXT not in text else ""


def _judged(template: Template) -> Iterator[Path]:
    """Yield where each key of ours may stand that admission reads of a template, or warns of."""
    for field in ("annotations", "labels"):
        for key in ASKING_ANNOTATIONS:
            yield template.place(("metadata", field, key))
    # Above the template they are found as stray keys.
    for depth in range(len(template.path) + 1):
        for field in ("annotations", "labels"):
            for key in ASKING_ANNOTATIONS:
                yield (*template.path[:depth], "metadata", field, key)
    spec = part(template.pod, "spec")
    for field in CONTAINER_FIELDS:
        for index, _ in enumerate(objects_in(spec.get(field))):
            for kind in _HOLDS_AMOUNTS:
                for key in (*ASKING_ANNOTATIONS, VRAM_RESOURCE):
                    yield template.place(("spec", field, index, "resources", kind, key))
