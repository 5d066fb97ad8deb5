"""What beside pods is written for another product, and what to write instead: nothing is changed.

Kubernetes counts an extended resource in a quota by its requests alone, and HAMi counts the limits
itself (pkg/device/quota.go); our resource is counted by Kubernetes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from webhook.core.pod.lenient import as_object
from webhook.names import VRAM_RESOURCE
from webhook.tools.admit.judge.migration.edits import goes
from webhook.tools.admit.judge.migration.values import Note

if TYPE_CHECKING:
    from collections.abc import Iterator

    from webhook.core.pod.fields import Json
    from webhook.tools.admit.judge.migration.values import Product

_PATH: Final = "spec.hard"
_QUOTA: Final = f"requests.{VRAM_RESOURCE}"


def notes_about(obj: Json, kind: str, version: str, product: Product) -> Iterator[Note]:
    """Yield a note for each of an object's names that the product reads."""
    if kind == "ResourceQuota" and version in {"v1", ""}:
        for name, amount in as_object(as_object(obj.get("spec")).get("hard")).items():
            if goes(product, name.partition(".")[2]):
                detail = (
                    f"{amount} bounds no share; add {_QUOTA} with the bytes that the namespace "
                    "may ask for, e.g. 80Gi"
                )
                yield Note(f"{_PATH}[{name}]", detail)
    elif why := product.objects.get(f"{version.partition('/')[0]}/{kind}"):
        yield Note("kind", why)
