"""Assembly of placement for one replica."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from webhook.adapters.kube.client import Kube
from webhook.adapters.kube.histories import HistoriesApi
from webhook.adapters.kube.placement import PlacementApi
from webhook.core.placement.cap_terms import CapTerms
from webhook.core.placement.pod_state import PodState, terms_by_rule
from webhook.core.pod.gpus import Gpu
from webhook.core.policy.cluster import Cluster
from webhook.core.policy.model import Policy
from webhook.server.histories import Advisor, HistoryCache
from webhook.server.history_writer import HistoryWriter
from webhook.server.log import JsonLog
from webhook.server.metrics import HistoryMetrics, Metrics, PlacementMetrics
from webhook.server.placement.assignment_gc import AssignmentGC
from webhook.server.placement.assignment_lists import AssignmentLists
from webhook.server.placement.binder import Binder
from webhook.server.placement.late_assigner import LateAssigner
from webhook.server.placement.maintenance import ListMaintenance
from webhook.server.placement.tracker import Tracker
from webhook.server.placement.whole_gpu_answers import WholeGpuAnswers

ANSWER_S: Final = 3.0
"""Timeout of a request on a thread that bindings share; longer than `reviews.DEADLINE_S`."""


class PlacementService:
    """Placement at binding for one replica."""

    def __init__(
        self,
        kube: Kube,
        namespace: str,
        metrics: Metrics,
        log: JsonLog,
        policy: Callable[[], Policy],
        view_for: Callable[[Policy], Cluster],
    ) -> None:
        """`policy` returns the policy in force, and `view_for` the cluster's state for it."""
        self._policy = policy
        self._view_for = view_for

        api = partial(PlacementApi, namespace=namespace, asked=lambda: policy().pod_labels)
        at_once = api(kube.with_retries(1, ANSWER_S))
        histories = HistoriesApi(kube)
        counted = PlacementMetrics(metrics)
        self._known = HistoryCache(histories, log)
        self._recorder = HistoryWriter(
            histories, self._known, self._find_gpus, HistoryMetrics(metrics), log
        )
        self._late = LateAssigner(api(kube.with_retries(1)), counted, log)
        self._tracker = Tracker(
            api(kube, saw=self._recorder.on_pod),
            counted,
            log,
            self._ended,
            self._late.on_pending,
            lambda node: self._lists.forget(node),  # noqa: PLW0108 - it is made below
            lambda nodes: self._late.on_nodes_changed(nodes, self._tracker),
            lambda question: self._maintenance.on_question(question),  # noqa: PLW0108 - as above
        )
        self._lists = AssignmentLists(
            at_once, self._tracker, counted, self._late.on_pending, find_terms=self._find_terms
        )
        self.binder = Binder(at_once, self._tracker, self._lists)
        gc = AssignmentGC(at_once, self._tracker, self._lists, self._find_terms)
        patient = api(kube)
        answers = WholeGpuAnswers(patient, self._lists)
        self._maintenance = ListMaintenance(patient, log, self._lists, gc, answers)
        self.limits = self._tracker.has_driver_limit
        self.advisor = Advisor(self._known, self._tracker.largest_gpu_bytes)

    def start(self) -> None:
        """Start all daemon threads."""
        self._tracker.start()
        self._maintenance.start()
        self._late.start(self._lists, self._tracker)
        self._known.informer.start()
        self._recorder.start()

    def _ended(self, pod: PodState) -> None:
        self._maintenance.on_ended(pod)
        self._late.on_ended(pod, self._tracker)
        self._recorder.on_end(pod)

    def _find_terms(self, pod: PodState) -> CapTerms | None:
        """Return the terms of a new entry, under the policy in force."""
        policy = self._policy()
        return terms_by_rule(pod, policy, self._view_for(policy))

    def _find_gpus(self, node: str) -> Sequence[Gpu]:
        found = self._tracker.node(node)
        return found.gpus if found else ()

    def obstacle(self) -> str:
        """Return why the replica is not ready; empty once pods and nodes were listed."""
        return self._tracker.obstacle()
