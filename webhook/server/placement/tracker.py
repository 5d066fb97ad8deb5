"""Pods with a demand and nodes with GPUs, as reported by watches.

A watch may be stale, so it is never the only basis of a placement (`assignment_lists`). It saves
requests, and it reports when a pod frees its GPUs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import Final, TypeVar

from webhook.adapters.kube.follow import Collection
from webhook.adapters.kube.placement import GpuNode, PlacementApi, Question
from webhook.core.placement.pod_state import PodState
from webhook.server.informer import Informer
from webhook.server.log import JsonLog
from webhook.server.metrics import PlacementMetrics

T = TypeVar("T")

_REMEMBERED: Final = 10_000
"""Maximum number of deleted pods that are remembered, to save requests about them."""


class Tracker:
    """Follows pods and nodes on its own threads; may be read from any thread."""

    def __init__(
        self,
        api: PlacementApi,
        metrics: PlacementMetrics,
        log: JsonLog,
        on_ended: Callable[[PodState], None] = lambda _pod: None,
        on_pending: Callable[[PodState], None] = lambda _pod: None,
        on_node_removed: Callable[[str], None] = lambda _node: None,
        on_nodes_changed: Callable[[set[str]], None] = lambda _nodes: None,
        on_asked: Callable[[Question], None] = lambda _question: None,
    ) -> None:
        """Store the callbacks without starting the threads.

        `on_ended` is called with each pod that finished or is gone, `on_pending` with each pod that
        was bound without the GPUs that it needs, `on_node_removed` with each removed node,
        `on_nodes_changed` with new and changed nodes, and `on_asked` with each new question of a
        node agent.
        """
        self._metrics = metrics
        self._log = log
        self._on_ended = on_ended
        self._on_pending = on_pending
        self._on_node_removed = on_node_removed
        self._on_nodes_changed = on_nodes_changed
        self._on_asked = on_asked
        self._questions: dict[str, Question] = {}
        self._lock = Lock()
        self._pods: dict[str, PodState] = {}
        self._by_name: dict[str, str] = {}
        self._by_node: dict[str, set[str]] = {}
        self._pending: dict[str, dict[str, PodState]] = {}
        self._gone: deque[str] = deque()
        self._nodes: dict[str, GpuNode] = {}
        self._largest_bytes: int | None = None
        self._limits: bool | None = None
        self._failing: dict[str, str] = {}
        self.pods = self._informer("pods", api.pods, self._on_pods, self._on_pod)
        self.nodes = self._informer("nodes", api.nodes, self._on_nodes, self._on_node)
        questions = self._on_questions, self._on_question
        self.questions = self._informer("agent_requests", api.questions, *questions)
        metrics.waiting.set_function(lambda: len(self.pending_pods()))

    def start(self) -> None:
        """Start the daemon threads."""
        for informer in (self.pods, self.nodes, self.questions):
            informer.start()

    def obstacle(self) -> str:
        """Return why bindings cannot be answered reliably yet; empty after the first lists."""
        listed = {"pods": self.pods.is_listed, "nodes": self.nodes.is_listed}
        missing = [what for what, is_listed in listed.items() if not is_listed]
        why = "; ".join(self._failing.values())
        return f"{' and '.join(missing)} not read yet{why and f': {why}'}" if missing else ""

    def pod(self, uid: str) -> PodState | None:
        """Return a pod by UID, even if it was reported as deleted."""
        return self._pods.get(uid)

    def knows_pod(self, name: str) -> bool:
        """Return True if a pod with a demand has this `namespace/name`."""
        return name in self._by_name

    def node(self, name: str) -> GpuNode | None:
        """Return a node with the GPU label, or None; it may not list its GPUs yet."""
        return self._nodes.get(name)

    def largest_gpu_bytes(self) -> int | None:
        """Return the usable memory of the largest GPU of all nodes, or None if no GPU is known."""
        return self._largest_bytes

    def has_driver_limit(self) -> bool | None:
        """Return True if any node's driver enforces caps, or None while nodes are not known."""
        return self._limits

    def pods_for(self, node: str, uids: Iterable[str]) -> dict[str, PodState]:
        """Return the known states of these pods and of all pods on a node."""
        with self._lock:
            wanted = {*uids, *self._by_node.get(node, ())}
            return {uid: self._pods[uid] for uid in wanted if uid in self._pods}

    def nodes_with_pods(self) -> set[str]:
        """Return the nodes with bound pods that have not ended."""
        with self._lock:
            return set(self._by_node)

    def pending_pods(self, node: str = "") -> list[PodState]:
        """Return the bound pods that have no GPU yet, on one node or on all nodes."""
        with self._lock:
            if node:
                return list(self._pending.get(node, {}).values())
            return [pod for there in self._pending.values() for pod in there.values()]

    def nodes_with_pending(self, nodes: Iterable[str] | None = None) -> list[str]:
        """Return the names of all or the given nodes on which pods are pending."""
        with self._lock:
            if nodes is None:
                return list(self._pending)
            return [node for node in nodes if node in self._pending]

    def _informer(
        self,
        what: str,
        collection: Collection[T],
        on_list: Callable[[Sequence[T]], None],
        on_change: Callable[[str, T], None],
    ) -> Informer[T]:
        on_watch = partial(self._on_watch, what)
        return Informer(what, collection, on_list, on_change, self._log, on_watch=on_watch)

    def _on_watch(self, what: str, why: str) -> None:
        self._metrics.watch_failed.labels(what).set(bool(why))
        if why:
            self._failing[what] = why
            self._log.once(what, "error", "placement cannot watch; retrying", why, what=what)
        elif self._failing.pop(what, None):
            self._log.over(what, "placement watches again", what=what)

    def _on_nodes(self, nodes: Sequence[GpuNode]) -> None:
        before, self._nodes = self._nodes, {node.name: node for node in nodes}
        for node in nodes:
            self._log_unread_gpus(node)
        self._summarize_nodes()
        for name in before.keys() - self._nodes.keys():
            self._on_node_removed(name)
        self._on_nodes_changed({node.name for node in nodes if before.get(node.name) != node})

    def _on_node(self, kind: str, node: GpuNode) -> None:
        if kind == "DELETED":
            self._nodes.pop(node.name, None)
            self._log.forget(f"gpus of {node.name}")
            self._summarize_nodes()
            self._on_node_removed(node.name)
        elif self._nodes.get(node.name) != node:
            self._nodes[node.name] = node
            self._log_unread_gpus(node)
            self._summarize_nodes()
            self._on_nodes_changed({node.name})

    def _log_unread_gpus(self, node: GpuNode) -> None:
        """Log once that a node lists malformed GPUs, for example after its token was stolen."""
        about, what = (
            f"gpus of {node.name}",
            "GPUs of a node's list that are malformed are not used",
        )
        if node.unread:
            self._log.once(about, "warning", what, node.unread, node=node.name)
        else:
            self._log.over(about, "all GPUs of a node's list can be read again", node=node.name)

    def _on_questions(self, questions: Sequence[Question]) -> None:
        for name in self._questions.keys() - {question.node for question in questions}:
            self._on_question("DELETED", self._questions[name])
        for question in questions:
            self._on_question("MODIFIED", question)

    def _on_question(self, kind: str, question: Question) -> None:
        if kind == "DELETED":
            self._questions.pop(question.node, None)
            if question.node not in self._nodes:
                self._on_node_removed(question.node)
        elif question.asked and self._questions.get(question.node) != question:
            self._questions[question.node] = question
            self._on_asked(question)

    def _summarize_nodes(self) -> None:
        gpus = (gpu for node in self._nodes.values() for gpu in node.gpus)
        self._largest_bytes = max((gpu.memory_bytes for gpu in gpus), default=None)
        self._limits = any(node.driver_limit for node in self._nodes.values())

    def _on_pods(self, pods: Sequence[PodState]) -> None:
        """Apply a complete list of pods. Known pods that are missing from the list are gone."""
        listed = {pod.uid for pod in pods}
        for uid, pod in list(self._pods.items()):
            if uid not in listed and not pod.gone:
                self._on_pod("DELETED", pod)
        for pod in pods:
            self._on_pod("MODIFIED", pod)

    def _on_pod(self, kind: str, pod: PodState) -> None:
        gone = kind == "DELETED"
        with self._lock:
            before = self._pods.get(pod.uid)
            now = pod if pod.gone is gone else replace(pod, gone=gone)
            self._pods[pod.uid] = now
            if now.node and not _has_ended(now):
                self._by_node.setdefault(now.node, set()).add(pod.uid)
            elif now.node:
                self._forget_on_node(now)
            if gone:
                self._remember_gone(pod)
            else:
                self._by_name[pod.name] = pod.uid
            there = self._pending.get(before.node if before else now.node, {})
            is_new = pod.uid not in there
            waits = now.pending is not None and not gone
            if waits:
                self._pending.setdefault(now.node, {})[pod.uid] = now
            elif before and there.pop(pod.uid, None) and not there:
                del self._pending[before.node]
        if waits and is_new:
            self._on_pending(now)
        if _has_ended(now) and not (before and _has_ended(before)):
            self._on_ended(now)

    def _forget_on_node(self, pod: PodState) -> None:
        uids = self._by_node.get(pod.node, set())
        uids.discard(pod.uid)
        if not uids:
            self._by_node.pop(pod.node, None)

    def _remember_gone(self, pod: PodState) -> None:
        """Remember a deleted pod, and drop the oldest if there are too many."""
        if self._by_name.get(pod.name) == pod.uid:
            del self._by_name[pod.name]
        self._gone.append(pod.uid)
        if len(self._gone) > _REMEMBERED:
            oldest = self._pods.get(self._gone.popleft())
            if oldest and oldest.gone:  # the pod may have got its label back
                del self._pods[oldest.uid]


def _has_ended(pod: PodState) -> bool:
    return pod.finished or pod.gone
