"""Facts about the cluster that decisions depend on, in addition to the policy.

| fact | needed by | assumed while unknown |
| --- | --- | --- |
| the RuntimeClass `nvidia` exists | rules with runtimeClassName `Auto` | no |
| nodes with GPU slices (MIG) | rules with accounting `MIG` | no such nodes |
| a node's driver enforces caps (from placement) | rules with driverLimit `Require` | unknown |
| namespace labels | rules that select by namespace label | nothing: reviews are not answered |

Placement watches the nodes whose memory the node agent advertises. Nodes with slices are watched
here, because an agent ignores GPUs in MIG mode. Without such nodes the API server sends nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import Any, Final, TypeVar

from webhook.adapters.kube.bounded_json import Json
from webhook.adapters.kube.client import Kube
from webhook.adapters.kube.follow import Collection
from webhook.adapters.kube.namespaces import PATH, select_labels
from webhook.core.nvidia.device_plugin import MIXED_STRATEGY_LABEL, read_mig_profiles
from webhook.core.policy.cluster import Cluster, Namespaces, SlicedNode
from webhook.core.policy.model import Accounting, Policy, Rollout
from webhook.names import NVIDIA_RUNTIME_CLASS
from webhook.server.informer import Informer
from webhook.server.log import JsonLog

T = TypeVar("T")

SETTLE_TIMEOUT_S: Final = 10.0
"""Time in seconds after which a replica becomes ready although facts are unknown. Decisions
without them may be worse, but without any ready replica every pod is denied."""


class ClusterCache:
    """Watches facts about the cluster; may be read from any thread.

    The labels of an unknown namespace are never guessed. Such a namespace is usually a few
    milliseconds old, and the API server calls again after a second. If the namespace is still
    unknown then, the `failurePolicy` decides about the pod.
    """

    def __init__(
        self,
        kube: Kube,
        policy: Callable[[], Policy],
        rollout: Rollout,
        log: JsonLog,
        clock: Callable[[], float] = time.monotonic,
        limits: Callable[[], bool | None] = lambda: None,
    ) -> None:
        """`policy` returns the policy in force, and `limits` the value of `Cluster.limits`."""
        self._limits = limits
        self._kube = kube
        self._policy = policy
        self._log = log
        self._clock = clock
        self._started_s = clock()
        self._lock = Lock()
        self._state = Cluster(rollout), frozenset[str]()
        """The known facts, and the names of the namespace labels in them. Replaced as a whole."""
        self._label_cache: tuple[tuple[Any, ...], frozenset[str]] = ((), frozenset())
        """The last rules, and the names of the labels that they select by."""
        self._serving: Informer[Any] | None = None
        """Informer that reported the labels in `_state`."""
        self._latest: Informer[Any] | None = None
        """Informer of the labels that the current rules select by."""
        self._wanted: frozenset[str] = frozenset()
        self._has_labels = False
        # The permissions get and watch for only the RuntimeClass `nvidia` are enough.
        path, name = "/apis/node.k8s.io/v1/runtimeclasses", NVIDIA_RUNTIME_CLASS
        classes = Collection(kube=kube, path=path, project=_read_class, name=name)
        mixed = ",".join(f"{key}={value}" for key, value in MIXED_STRATEGY_LABEL.items())
        nodes = Collection(kube=kube, path="/api/v1/nodes", project=_read_slices, labels=mixed)
        self.classes = self._informer("RuntimeClasses", classes, self._use_classes)
        self.nodes = self._informer("nodes with slices", nodes, self._use_nodes)

    def start(self) -> None:
        """Start the daemon threads."""
        self._started_s = self._clock()
        self.classes.start()
        self.nodes.start()
        self.policy_changed()

    def obstacle(self) -> str:
        """Return why this replica is not ready yet; empty if every needed fact is known.

        Also empty if a fact may not be read, and after `SETTLE_TIMEOUT_S`: the replica can still
        judge pods whose rules do not need the fact.
        """
        if self._clock() - self._started_s >= SETTLE_TIMEOUT_S:
            return ""
        policy = self._policy()
        missing = []
        if not self.classes.is_settled:
            missing.append(f"RuntimeClass {NVIDIA_RUNTIME_CLASS} not read yet")
        needs_slices = any(Accounting.MIG in policy.accountings_for(rule) for rule in policy.rules)
        if needs_slices and not self.nodes.is_settled:
            missing.append("nodes with slices (MIG) not read yet")
        are_labels_settled = self._has_labels or (self._latest and self._latest.is_settled)
        if self._wanted_labels(policy) and not are_labels_settled:
            missing.append("labels of namespaces not read yet")
        return "; ".join(missing)

    def view_for(self, policy: Policy) -> Cluster:
        """Return the facts for a policy, without namespaces until all needed labels are known."""
        limits = self._limits()
        if limits is not self._state[0].limits:
            self._replace(limits=limits)
        cluster, labels = self._state  # read once: another thread may replace it
        return cluster if self._wanted_labels(policy) <= labels else replace(cluster, namespaces={})

    def policy_changed(self) -> None:
        """Watch the labels that the policy selects by; called by one thread at a time."""
        informer = self.follow_labels()
        if informer:
            informer.start()

    def follow_labels(self) -> Informer[Any] | None:
        """Return a new informer of namespace labels, or None if no new one is needed.

        The informer for the previous policy is used until the new one has listed all namespaces.
        """
        wanted = self._wanted_labels(self._policy())
        if wanted == self._wanted:
            return None
        with self._lock:
            if self._latest and self._latest is not self._serving:
                self._latest.stop()
            self._wanted, self._latest = wanted, None
        if not wanted:
            self._use_labels(None, wanted, {})
            return None
        followed = Collection(
            kube=self._kube, path=PATH, project=partial(select_labels, wanted=wanted)
        )
        self._latest = informer = self._informer(
            "namespaces", followed, lambda labels: self._use_labels(informer, wanted, labels)
        )
        return informer

    def _informer(
        self,
        title: str,
        collection: Collection[tuple[str, T]],
        use: Callable[[Mapping[str, T]], None],
    ) -> Informer[tuple[str, T]]:
        """Return an informer that calls `use` at each change with the objects, keyed by name."""
        by_name: dict[str, T] = {}

        def on_list(listed: Sequence[tuple[str, T]]) -> None:
            nonlocal by_name
            by_name = dict(listed)
            use(by_name)

        def on_change(event_type: str, changed: tuple[str, T]) -> None:
            nonlocal by_name
            name, value = changed
            by_name = {**by_name, name: value}
            if event_type == "DELETED":
                del by_name[name]
            use(by_name)

        return Informer(title, collection, on_list, on_change, self._log)

    def _use_classes(self, by_name: Mapping[str, None]) -> None:
        names = frozenset(by_name)
        if names != self._state[0].runtime_classes or not self.classes.is_listed:
            self._replace(runtime_classes=names)
            self._log.info("RuntimeClass", name=NVIDIA_RUNTIME_CLASS, exists=bool(names))

    def _use_nodes(self, by_name: Mapping[str, SlicedNode]) -> None:
        """Store and log the nodes if they have changed."""
        nodes = tuple(by_name[name] for name in sorted(by_name) if by_name[name].profiles)
        if nodes != self._state[0].sliced_nodes:
            self._replace(sliced_nodes=nodes)
            profiles = sorted({profile for node in nodes for profile in node.profiles})
            self._log.info("slices of GPUs", nodes=len(nodes), profiles=profiles)

    def _use_labels(
        self, informer: Informer[Any] | None, wanted: frozenset[str], namespaces: Namespaces
    ) -> None:
        """Use an informer's labels from now on, unless the informer has been stopped."""
        with self._lock:
            if informer and informer.is_stopped:
                return
            if self._serving and self._serving is not informer:
                self._serving.stop()
            self._serving, self._has_labels = informer, True
            self._state = replace(self._state[0], namespaces=namespaces), wanted

    def _replace(self, **facts: Any) -> None:
        with self._lock:
            cluster, labels = self._state
            self._state = replace(cluster, **facts), labels

    def _wanted_labels(self, policy: Policy) -> frozenset[str]:
        rules, wanted = self._label_cache
        if policy.rules is not rules:
            wanted = policy.namespace_labels
            self._label_cache = policy.rules, wanted
        return wanted


def _read_class(runtime_class: Json) -> tuple[str, None]:
    return str(runtime_class["metadata"]["name"]), None


def _read_slices(node: Json) -> tuple[str, SlicedNode]:
    metadata = node["metadata"]
    labels = metadata.get("labels") or {}
    return str(metadata["name"]), SlicedNode(read_mig_profiles(labels), labels)
