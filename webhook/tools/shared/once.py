"""For who counts objects while they are read: a list may bring one more than once.

`Kube.list_all` asks again for a page that is too large, takes too long or has expired, and what it
returns has each object once; but it has called `keep` for those that it discards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from webhook.core.pod.lenient import as_object

if TYPE_CHECKING:
    from collections.abc import Callable

    Json = dict[str, Any]


def once(keep: Callable[[Json], None]) -> Callable[[Json], None]:
    """Return what hands an object to `keep` only the first time, by its uid, or else its name."""
    taken: set[str] = set()

    def kept(found: Json) -> None:
        metadata = as_object(found.get("metadata"))
        uid = str(metadata.get("uid") or f"{metadata.get('namespace')}/{metadata.get('name')}")
        if uid not in taken:
            taken.add(uid)
            keep(found)

    return kept
