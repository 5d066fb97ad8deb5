"""Whether the node is to say that its driver holds caps, by the GPUNode that its sentry writes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NoReturn

from webhook.adapters.kube.client import KubeError
from webhook.adapters.kube.gpu_nodes import read_figures

if TYPE_CHECKING:
    from collections.abc import Callable

    from webhook.adapters.kube.client import Kube
    from webhook.core.kinds.nodes import NodeFigures

FRESH_S: Final = 240.0
"""What was seen longer ago says nothing of now: a sentry writes each 65 s, what it saw in the last
60 s, and tries again for as long. For so long the label stays where the object cannot be read."""


@dataclass(frozen=True, slots=True)
class FiguresSeen:
    """The node's GPUNode as it is stored; None where there is none."""

    figures: NodeFigures | None


@dataclass(frozen=True, slots=True)
class FiguresUnread:
    """The node's GPUNode cannot be read for now."""

    why: str


def watch_figures(
    kube: Kube, node: str, every_s: float, send: Callable[[FiguresSeen | FiguresUnread], object]
) -> NoReturn:
    """Report the node's GPUNode so often, forever; a sentry writes it each minute, mostly."""
    while True:
        try:
            send(FiguresSeen(read_figures(kube, node, cached=True)))
        except KubeError as error:
            send(FiguresUnread(str(error)))
        time.sleep(every_s)


class LimitLabel:
    """Remembers the node's GPUNode as it was read last."""

    def __init__(self, started_s: float) -> None:
        """Prepare, at this Unix time."""
        self._started_s = started_s
        self._seen: FiguresSeen | None = None

    def on_figures(self, seen: FiguresSeen) -> None:
        """Remember what was read."""
        self._seen = seen

    def holds(self, now_s: float) -> bool | None:
        """Return whether the driver holds caps, at this Unix time; None: nobody knows yet.

        | the GPUNode, read last | seen by its sentry | its proof | |
        | --- | --- | --- | --- |
        | was not read, for less than `FRESH_S` | | | nobody knows |
        | was not read for longer | | | no |
        | does not exist | | | no |
        | exists | longer than `FRESH_S` ago | any | no |
        | exists | since then | holds | yes |
        | exists | since then | does not hold, or there is none | no |
        """
        if self._seen is None:
            return None if abs(now_s - self._started_s) < FRESH_S else False
        figures = self._seen.figures
        if figures is None or abs(now_s - figures.observed_s) > FRESH_S:
            return False
        return figures.limit is not None and figures.limit.holds
