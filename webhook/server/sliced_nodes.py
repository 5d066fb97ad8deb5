"""Keeps in mind which slices of GPUs (MIG) the cluster's nodes have, for rules that ask for them.

Placement follows the nodes whose memory our own agent advertises. These are others: an agent leaves
GPUs in MIG mode alone. Of a cluster without such nodes the API server sends nothing here.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from webhook.adapters.kube.follow import Collection
from webhook.core.nvidia.plugin import MIXED, read_profiles
from webhook.core.policy.slices import SlicedNode
from webhook.core.policy.values import Accounting
from webhook.server.known import Known

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from webhook.adapters.kube.client import Json, Kube
    from webhook.core.policy.values import Policy
    from webhook.server.log import JsonLog

Named = tuple[str, SlicedNode]
"""A node's name, and its slices."""


class SlicedNodes(Known[Named]):
    """Follows the nodes that offer slices by profile, and no others."""

    def __init__(
        self,
        kube: Kube,
        log: JsonLog,
        policy: Callable[[], Policy],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Send no request yet; `policy` returns the one in force."""
        super().__init__("nodes with slices", followed(kube), log, clock)
        self._policy = policy
        self._nodes: dict[str, SlicedNode] = {}
        self._known: tuple[SlicedNode, ...] = ()

    def obstacle(self) -> str:
        """Return why no traffic should come yet; empty where no rule asks for slices."""
        if self.is_settled:
            return ""
        policy = self._policy()
        asks = any(Accounting.MIG in policy.accountings_of(rule) for rule in policy.rules)
        return "nodes with slices (MIG) not read yet" if asks else ""

    def told(self, policy: Policy) -> Policy:
        """Return a policy that knows what is known of the cluster."""
        return replace(policy, sliced_nodes=self._known) if self._known else policy

    def _take_all(self, things: Sequence[Named]) -> None:
        self._know(dict(things))

    def _take(self, kind: str, thing: Named) -> None:
        name, node = thing
        rest = {other: known for other, known in self._nodes.items() if other != name}
        self._know(rest if kind == "DELETED" else rest | {name: node})

    def _know(self, nodes: dict[str, SlicedNode]) -> None:
        """Keep what is new; decisions are remembered for as long as it is the same."""
        if nodes == self._nodes:
            return
        self._nodes = nodes
        self._known = tuple(nodes[name] for name in sorted(nodes) if nodes[name].profiles)
        profiles = {profile for node in self._known for profile in node.profiles}
        self._log.info("slices of GPUs", nodes=len(self._known), profiles=sorted(profiles))


def followed(kube: Kube) -> Collection[Named]:
    """Return the nodes with slices for `follow`."""
    selector = ",".join(f"{key}={value}" for key, value in MIXED.items())
    return Collection(kube, "/api/v1/nodes", _read, labels=selector)


def _read(node: Json) -> Named:
    metadata = node["metadata"]
    labels = metadata.get("labels") or {}
    return str(metadata["name"]), SlicedNode(read_profiles(labels), labels)
