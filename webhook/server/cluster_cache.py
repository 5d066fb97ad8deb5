"""Keeps in mind what decisions follow from beside the policy: what the cluster has.

| known | for rules | without an answer |
| --- | --- | --- |
| whether there is a RuntimeClass `nvidia` | with runtimeClassName `Auto` | there is none |
| nodes with slices of GPUs (MIG) | with accounting `MIG` | there are none |
| whether the driver of some node holds caps, by placement | with driverLimit `Require` | no word |
| labels of namespaces | that ask for some, and those alone | the review is not answered |

Placement follows the nodes whose memory our own agent advertises. Those with slices are others: an
agent leaves GPUs in MIG mode alone. Of a cluster without such nodes the API server sends nothing.
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
from webhook.adapters.kube.namespaces import PATH, labelled
from webhook.core.nvidia.device_plugin import MIXED_STRATEGY_LABEL, read_mig_profiles
from webhook.core.policy.cluster import Cluster, Namespaces, SlicedNode
from webhook.core.policy.model import Accounting, Policy, Rollout
from webhook.names import NVIDIA_RUNTIME_CLASS
from webhook.server.log import JsonLog
from webhook.server.mirror import Mirror

T = TypeVar("T")

KNOWN_WITHIN_S: Final = 10.0
"""How long a replica that cannot find out stays unready: what is decided without may be poorer, but
a pod that nobody decides about is denied for certain."""


class ClusterCache:
    """Follows what decisions need to know; may be read from any thread.

    The labels of a namespace that is not known may not be guessed. It is a few milliseconds old as
    a rule, and the API server asks again in a second; its `failurePolicy` says what becomes of a
    pod where that does not help.
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
        """Send no request yet; `policy` returns the one in force, `limits` what `Cluster` says."""
        self._limits = limits
        self._kube = kube
        self._policy = policy
        self._log = log
        self._clock = clock
        self._started_s = clock()
        self._changing = Lock()
        self._known = Cluster(rollout), frozenset[str]()
        """What is known, and which labels of namespaces that has; replaced as a whole."""
        self._of_rules: tuple[tuple[Any, ...], frozenset[str]] = ((), frozenset())
        self._serves: Mirror[Any] | None = None
        """What follows the labels that are known now."""
        self._latest: Mirror[Any] | None = None
        """What follows those for which rules ask now."""
        self._wanted: frozenset[str] = frozenset()
        self._has_known_labels = False
        # The rights get and watch for the RuntimeClass `nvidia` alone are enough.
        path, name = "/apis/node.k8s.io/v1/runtimeclasses", NVIDIA_RUNTIME_CLASS
        classes = Collection(kube=kube, path=path, project=_name_of, name=name)
        mixed = ",".join(f"{key}={value}" for key, value in MIXED_STRATEGY_LABEL.items())
        nodes = Collection(kube=kube, path="/api/v1/nodes", project=_slices_of, labels=mixed)
        self.classes = self._mirror("RuntimeClasses", classes, self._use_classes)
        self.nodes = self._mirror("nodes with slices", nodes, self._use_nodes)

    def start(self) -> None:
        """Begin to follow on daemon threads."""
        self._started_s = self._clock()
        self.classes.start()
        self.nodes.start()
        self.policy_changed()

    def obstacle(self) -> str:
        """Return why no traffic should come yet; empty once all is known, cannot be, or need not.

        A replica that cannot find out can still judge pods whose rules ask for none of it.
        """
        if self._clock() - self._started_s >= KNOWN_WITHIN_S:
            return ""
        policy = self._policy()
        missing = []
        if not self.classes.is_settled:
            missing.append(f"RuntimeClass {NVIDIA_RUNTIME_CLASS} not read yet")
        asks = any(Accounting.MIG in policy.accountings_for(rule) for rule in policy.rules)
        if asks and not self.nodes.is_settled:
            missing.append("nodes with slices (MIG) not read yet")
        knows = self._has_known_labels or (self._latest and self._latest.is_settled)
        if self._wanted_by(policy) and not knows:
            missing.append("labels of namespaces not read yet")
        return "; ".join(missing)

    def known_for(self, policy: Policy) -> Cluster:
        """Return what is known; of namespaces nothing, where the policy asks for other labels."""
        limits = self._limits()
        if limits is not self._known[0].limits:
            self._replace(limits=limits)
        cluster, labels = self._known  # once: another thread may replace it
        return cluster if self._wanted_by(policy) <= labels else replace(cluster, namespaces={})

    def policy_changed(self) -> None:
        """Follow the labels for which the policy in force asks; called by one thread at a time."""
        begun = self.follow_labels()
        if begun:
            begun.start()

    def follow_labels(self) -> Mirror[Any] | None:
        """Return what follows from now on; None where that goes on already, or need not begin.

        What was followed for the policy before serves on until the other one is known.
        """
        wanted = self._wanted_by(self._policy())
        if wanted == self._wanted:
            return None
        with self._changing:
            if self._latest and self._latest is not self._serves:
                self._latest.stop()
            self._wanted, self._latest = wanted, None
        if not wanted:
            self._use_labels(None, wanted, {})
            return None
        followed = Collection(kube=self._kube, path=PATH, project=partial(labelled, wanted=wanted))
        self._latest = mirror = self._mirror(
            "namespaces", followed, lambda found: self._use_labels(mirror, wanted, found)
        )
        return mirror

    def _mirror(
        self,
        what: str,
        collection: Collection[tuple[str, T]],
        use: Callable[[Mapping[str, T]], None],
    ) -> Mirror[tuple[str, T]]:
        """Return what follows objects and hands them on by name; each time as another mapping."""
        known: dict[str, T] = {}

        def on_list(things: Sequence[tuple[str, T]]) -> None:
            nonlocal known
            known = dict(things)
            use(known)

        def on_change(kind: str, thing: tuple[str, T]) -> None:
            nonlocal known
            known = {**known, thing[0]: thing[1]}
            if kind == "DELETED":
                del known[thing[0]]
            use(known)

        return Mirror(what, collection, on_list, on_change, self._log)

    def _use_classes(self, found: Mapping[str, None]) -> None:
        names = frozenset(found)
        if names != self._known[0].runtime_classes or not self.classes.is_listed:
            self._replace(runtime_classes=names)
            self._log.info("RuntimeClass", name=NVIDIA_RUNTIME_CLASS, exists=bool(names))

    def _use_nodes(self, found: Mapping[str, SlicedNode]) -> None:
        """Keep what is new."""
        nodes = tuple(found[name] for name in sorted(found) if found[name].profiles)
        if nodes != self._known[0].sliced_nodes:
            self._replace(sliced_nodes=nodes)
            profiles = sorted({profile for node in nodes for profile in node.profiles})
            self._log.info("slices of GPUs", nodes=len(nodes), profiles=profiles)

    def _use_labels(
        self, mirror: Mirror[Any] | None, wanted: frozenset[str], found: Namespaces
    ) -> None:
        """Answer from now on by what a mirror found, if it was not stopped meanwhile."""
        with self._changing:
            if mirror and mirror.is_over:
                return
            if self._serves and self._serves is not mirror:
                self._serves.stop()
            self._serves, self._has_known_labels = mirror, True
            self._known = replace(self._known[0], namespaces=found), wanted

    def _replace(self, **known: Any) -> None:
        with self._changing:
            cluster, labels = self._known
            self._known = replace(cluster, **known), labels

    def _wanted_by(self, policy: Policy) -> frozenset[str]:
        rules, wanted = self._of_rules
        if policy.rules is not rules:
            wanted = policy.namespace_labels
            self._of_rules = policy.rules, wanted
        return wanted


def _name_of(found: Json) -> tuple[str, None]:
    return str(found["metadata"]["name"]), None


def _slices_of(node: Json) -> tuple[str, SlicedNode]:
    metadata = node["metadata"]
    labels = metadata.get("labels") or {}
    return str(metadata["name"]), SlicedNode(read_mig_profiles(labels), labels)
