"""Why a pod without a node waits that is counted on a node as a whole, and on none of its GPUs.

So are pods of a rule with `placement: None`: the scheduler compares what they ask for with what the
node has in all, less what pods there were promised.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from webhook.core.kinds.nodes import NodeFigures
from webhook.core.words import amount, exactly, named
from webhook.names import GPU_MEMORY_ANNOTATION
from webhook.tools.explain.judge.eligible import why_not
from webhook.tools.explain.judge.report import Cause, Severity
from webhook.tools.explain.judge.room import Blocker

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from webhook.core.placement.fit import Need
    from webhook.tools.snapshot.node import ClusterNode
    from webhook.tools.snapshot.pod import ClusterPod

COUNTED: Final = "its rule chooses no GPU; a node counts by what all its GPUs have free together"
_MOST_NAMED: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeNode:
    """What a node has in all for pods that are counted so."""

    name: str
    total_bytes: int
    promised: Mapping[str, int]
    """To which of its pods, by UID."""

    @property
    def free_bytes(self) -> int:
        """What nobody was promised."""
        return max(0, self.total_bytes - sum(self.promised.values()))


def whole_nodes(
    pod: ClusterPod, nodes: Mapping[str, ClusterNode], pods: Sequence[ClusterPod], now_s: float
) -> list[WholeNode] | None:
    """Return the nodes on which a pod may run now (Unix time), the freest first.

    None where nobody knows what one of the `pods` there was promised.
    """
    promised: dict[str, dict[str, int]] = {name: {} for name in nodes}
    for one in pods:
        if one.node in promised:
            if one.asked_bytes is None:
                return None
            promised[one.node][one.uid] = one.asked_bytes * one.gpu_count
    found = [
        WholeNode(name=name, total_bytes=node.vram_bytes, promised=promised[name])
        for name, node in nodes.items()
        if why_not(pod, _figures_of(node), node, now_s) is None
    ]
    return sorted(found, key=lambda one: (-one.free_bytes, one.name))


def _figures_of(node: ClusterNode) -> NodeFigures:
    """Return what stands for a node's figures: it may have none."""
    return NodeFigures(
        name=node.name, observed_s=0.0, driver_version="", enforcement=node.enforcement
    )


def why_no_whole_node(
    need: Need, nodes: Sequence[WholeNode], names: Mapping[str, str]
) -> Cause | None:
    """Return why none of the nodes has room; None where one has, or there is none.

    | of the nodes | cause |
    | --- | --- |
    | one has as much free | none |
    | none has as much in all | TooLarge |
    | otherwise | NoRoom |
    """
    wants = need.memory_bytes * need.gpu_count
    if not nodes or nodes[0].free_bytes >= wants:
        return None
    most = max(one.total_bytes for one in nodes)
    if most < wants:
        detail = f"no node has {exactly(wants)}: the largest has {amount(most, down=True)}, so this"
        fix = f"ask for {amount(most // need.gpu_count, down=True)} or less"
        return Cause(
            Severity.ERROR,
            Blocker.TOO_LARGE,
            f"{detail} pod will never start",
            f"{fix} ({GPU_MEMORY_ANNOTATION})",
        )
    freest = nodes[0]
    free = f"{amount(freest.free_bytes, down=True)} of {amount(freest.total_bytes, down=True)}"
    detail = f"no node has {exactly(wants)} free now; {freest.name} has {free}"
    less = freest.free_bytes // need.gpu_count
    ask = f"ask for {amount(less, down=True)} or less, or " if less else ""
    return Cause(Severity.ERROR, Blocker.NO_ROOM, detail, f"{ask}{_wait(wants, nodes, names)}")


def _wait(wants: int, nodes: Sequence[WholeNode], names: Mapping[str, str]) -> str:
    """Say for whom to wait: pods of the user's that make room by ending, the smallest first."""
    making = sorted(
        (held, names[uid])
        for node in nodes
        for uid, held in node.promised.items()
        if uid in names and node.free_bytes + held >= wants
    )
    if not making:
        return "wait until pods end"
    return f"wait for {named([name for _, name in making[:_MOST_NAMED]])} to end"
