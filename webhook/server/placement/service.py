"""Placement, assembled: the API server, what is known of its objects, and the binder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from webhook.adapters.kube.client import connect
from webhook.adapters.kube.placement import PlacementApi
from webhook.server.metrics import PlacementMetrics
from webhook.server.placement.binder import Binder
from webhook.server.placement.tidying import Tidying
from webhook.server.placement.tracker import Tracker

if TYPE_CHECKING:
    from webhook.server.log import JsonLog
    from webhook.server.metrics import Metrics

ANSWER_S: Final = 3.0
"""The API server waits at most 10 s for us, and a denial in time is better than none."""


class PlacementService:
    """Placement at binding for one replica."""

    def __init__(self, namespace: str, metrics: Metrics, log: JsonLog) -> None:
        """Send no request yet; raises NoClusterError where no cluster is configured."""
        api = PlacementApi(connect(tries=1, answer_s=ANSWER_S), namespace)
        self._tidying = Tidying(PlacementApi(connect(), namespace), log)
        counted = PlacementMetrics(metrics)
        followed = PlacementApi(connect(), namespace)
        self._tracker = Tracker(followed, counted, log, self._tidying.ended)
        self.binder = Binder(api, self._tracker, counted)

    def start(self) -> None:
        """Watch pods and nodes on daemon threads."""
        self._tracker.start()
        self._tidying.start(self.binder)

    def obstacle(self) -> str:
        """Return why no traffic should come yet; empty once pods and nodes are known."""
        return self._tracker.obstacle()
