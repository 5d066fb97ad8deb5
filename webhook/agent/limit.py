"""Whether the node is to say that its driver holds caps, by the GPUNode that its sentry writes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NoReturn

from webhook.adapters.kube.client import KubeError
from webhook.adapters.kube.gpu_nodes import read_figures
from webhook.core.nvidia.drivers import Fault

if TYPE_CHECKING:
    from collections.abc import Callable

    from webhook.adapters.kube.client import Kube
    from webhook.core.kinds.nodes import NodeFigures
    from webhook.core.node.inventory import Scan

FRESH_S: Final = 240.0
"""What was seen longer ago says nothing of now: a sentry writes each 65 s, what it saw in the last
60 s, and tries again for as long. For so long the label stays where the object cannot be read."""


_GONE: Final = {Fault.LIBRARY_MISSING, Fault.DRIVER_DOWN, Fault.DRIVER_CHANGED}


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
    """The node's GPUNode as it was read last, and the driver as it was scanned last."""

    def __init__(self, started_s: float) -> None:
        """Prepare, at this Unix time."""
        self._started_s = started_s
        self._seen: FiguresSeen | None = None
        self._version = ""
        """The driver's; empty before it first answered."""
        self._gone = False

    def on_figures(self, seen: FiguresSeen) -> None:
        """Remember what was read."""
        self._seen = seen

    def on_scan(self, scan: Scan) -> None:
        """Remember which driver answered; any other failure of a scan may be over in a moment."""
        if scan.fault is None:
            self._version, self._gone = scan.driver_version, False
        elif scan.fault in _GONE:
            self._gone = True

    def holds(self, now_s: float) -> bool | None:
        """Return whether the driver holds caps, at this Unix time; None if that is not known yet.

        | the driver, by our own scans | the GPUNode, read last | seen by its sentry | its proof | |
        | --- | --- | --- | --- | --- |
        | is gone, or of another version than the sentry saw | any | any | any | no |
        | any other | was not read, for less than `FRESH_S` | | | not known |
        | any other | was not read for longer | | | no |
        | any other | does not exist | | | no |
        | any other | exists | longer than `FRESH_S` ago | any | no |
        | has not answered yet | exists | since then | holds | not known |
        | the one that the sentry saw | exists | since then | holds | yes |
        | any other | exists | since then | does not hold, or there is none | no |
        """
        if self._gone:
            return False
        if self._seen is None:
            return None if abs(now_s - self._started_s) < FRESH_S else False
        figures = self._seen.figures
        if figures is None or abs(now_s - figures.observed_s) > FRESH_S:
            return False
        if figures.limit is None or not figures.limit.holds:
            return False
        return figures.driver_version == self._version if self._version else None
