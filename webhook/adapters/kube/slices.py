"""Follow the ResourceSlices of a node: by them a DRA driver says which devices it gives away.

Source: KEP-4381 and the API `resource.k8s.io/v1`, which Kubernetes serves from 1.34 on.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from webhook.adapters.kube.client import KubeError
from webhook.adapters.kube.follow import Changed, Collection, Failed, Listed, follow
from webhook.core.node.slices import Slice, read_slice

if TYPE_CHECKING:
    from collections.abc import Callable

    from webhook.adapters.kube.client import Kube
    from webhook.adapters.kube.follow import Report

    Send = Callable[["SlicesSeen | SlicesUnread"], None]

PATH: Final = "/apis/resource.k8s.io/v1/resourceslices"
REFUSED_S: Final = 300.0
"""Between tries where the API server does not serve slices, or not to us."""
TRIES: Final = 3
"""So often in a row it must fail before that is reported: rights that were just granted take a
second to count, and what was read until then still holds."""


@dataclass(frozen=True, slots=True)
class SlicesSeen:
    """All slices of the node as they are now."""

    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True)
class SlicesUnread:
    """The slices of the node cannot be read for now."""

    why: str
    refused: bool
    """The API server does not serve them, or not to us; nothing was lost on the way."""


def slices_of(kube: Kube, node: str) -> Collection[Slice]:
    """Return the slices of a node for `follow`, or to be read once."""
    return Collection(kube, PATH, read_slice, fields=f"spec.nodeName={node}")


def watch_slices(kube: Kube, node: str, send: Send) -> None:
    """Report the slices of a node, each change of them, and each failure, forever."""
    known: dict[str, Slice] = {}
    failures, refused = 0, False

    def hear(report: Report[Slice]) -> None:
        nonlocal known, failures, refused
        match report:
            case Listed(things):
                known = {one.name: one for one in things}
            case Changed(kind, one):
                known.pop(one.name, None)
                if kind != "DELETED":
                    known[one.name] = one
            case Failed(KubeError() as error):
                failures += 1
                refused = error.not_found or (error.forbidden and failures >= TRIES)
                if refused or failures >= TRIES:
                    send(SlicesUnread(str(error), refused))
                return
            case Failed(error):
                raise error
        failures, refused = 0, False
        send(SlicesSeen(tuple(known.values())))

    follow(
        slices_of(kube, node),
        hear,
        sleep=lambda pause_s: time.sleep(REFUSED_S if refused else pause_s),
    )
