"""Migrate a pod from another product to vramwarden."""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.support.pods import a_container, a_pod
from webhook.core.pod.fields import Json
from webhook.core.pod.patch import apply_patch
from webhook.core.pod.template_search import find_templates
from webhook.names import GPU_COUNT_ANNOTATION, GPU_MEMORY_ANNOTATION
from webhook.tools.admit.migration.foreign_pod import Origin, read_foreign_pod
from webhook.tools.admit.migration.requests import PRODUCTS
from webhook.tools.admit.migration.rewrite import migrate

GIB = 2**30


class Moved(NamedTuple):
    """A migrated pod, and the output."""

    pod: Json
    asks: str
    notes: list[str]
    problems: list[str]

    @property
    def memory(self) -> str | None:
        return self.annotations.get(GPU_MEMORY_ANNOTATION)

    @property
    def count(self) -> str | None:
        return self.annotations.get(GPU_COUNT_ANNOTATION)

    @property
    def annotations(self) -> dict[str, str]:
        return self.pod["metadata"].get("annotations", {})


def limits(**amounts: str) -> Json:
    """Return limits for resources of nvidia.com, with `_` in their names for `-`."""
    return {f"nvidia.com/{name.replace('_', '-')}": amount for name, amount in amounts.items()}


def a_limited(name: str = "main", **amounts: str) -> Json:
    return a_container(name, resources={"limits": limits(**amounts)})


def move(
    product: str, pod: Json, *, gpu_bytes: int | None = None, unit_bytes: int | None = None
) -> Moved:
    (template,) = find_templates(pod, "Pod", "v1")
    source = read_foreign_pod(pod, template, pod)
    made = migrate(source, Origin(PRODUCTS[product], gpu_bytes, unit_bytes))
    after = apply_patch(pod, made.operations)
    return Moved(after, made.asks, [*map(str, made.notes)], [*map(str, made.problems)])


def moved_limits(product: str, scale: dict[str, Any] | None = None, **amounts: str) -> Moved:
    """Migrate a pod with one container that has these limits."""
    return move(product, a_pod(containers=[a_limited(**amounts)]), **(scale or {}))
