"""What is kept of a cluster's objects: of nodes with GPUs, of pods that have or want some.

Of an object only a few fields stay in memory: most pods of a large cluster have no GPU.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from webhook.core.kinds.histories import Verdict, advise, peak_bytes, read_history, with_margin
from webhook.core.kinds.workloads import Workload
from webhook.core.pod.fields import as_object
from webhook.core.pod.gpus import Gpu
from webhook.core.pod.quantity import MIB
from webhook.core.policy.match import matches_any
from webhook.core.words import named
from webhook.names import VRAM_HISTORY_KIND
from webhook.tools.shared.facts import Unreadable
from webhook.tools.shared.node import ClusterNode
from webhook.tools.shared.pod import ClusterPod
from webhook.tools.simulate.judge.asked import AskError, asked_of
from webhook.tools.simulate.judge.comparison import TodayPod
from webhook.tools.simulate.judge.offered import (
    GpuSource,
    SizeIndex,
    TodayNode,
    offered_of,
    usable_estimate,
    with_given,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from webhook.core.kinds.histories import History
    from webhook.tools.simulate.judge.offered import GivenMemory, Offered, Size

    Json = dict[str, Any]

_SYSTEM: Final = (
    *("kube-system", "gpu-operator", "nvidia-gpu-operator", "nvidia-device-plugin"),
    "hami-system",
    # Where a pod of KAI holds the GPU that others have parts of.
    *("kai-resource-reservation", "runai-reservation"),
)
_IN_SYSTEM: Final = "pods of namespaces of the system with GPUs"
_ENDED: Final = "pods that finished"
_CLAIMS: Final = "pods with resource claims (DRA), whose GPUs nobody counts here"
_UNREADABLE: Final = "pods whose GPUs cannot be read"
_MOST_NAMED: Final = 5


class NoGPUs(Unreadable):
    """That nobody says that there are GPUs to share."""


@dataclass(slots=True, kw_only=True)
class TodayObjects:
    """What was read of a cluster so far, object by object."""

    nodes: list[tuple[TodayNode, Offered | None]] = field(default_factory=list)
    """Of those with GPUs, what others say of them; None where our agent said it."""
    pods: list[tuple[TodayPod, Workload]] = field(default_factory=list)
    """Before their sizes are known."""
    histories: dict[tuple[str, str], int] = field(default_factory=dict)
    """Per GPU, by namespace and workload."""
    left_out: Counter[str] = field(default_factory=Counter)
    unreadable: str = ""
    """The first pod whose GPUs cannot be read, and why."""
    notes: list[str] = field(default_factory=list)
    """What else the reader of the answer should know."""
    others: int = 0
    """Nodes without GPUs."""

    def add(self, value: Json, of: str = "") -> None:
        """Read an object of any kind; `of` is the kind of a list's items that leave it out."""
        kind = value.get("kind") or of
        items = value.get("items")
        if isinstance(kind, str) and kind.endswith("List") and isinstance(items, list):
            for item in filter(None, map(as_object, items)):
                self.add(item, kind.removesuffix("List"))
        elif kind == "Pod":
            self.add_pod(value)
        elif kind == "Node":
            self.add_node(value)
        elif kind == VRAM_HISTORY_KIND and (history := read_history(value)):
            self.add_history(history)

    def merge(self, other: TodayObjects) -> None:
        """Add what was read elsewhere."""
        self.nodes += other.nodes
        self.pods += other.pods
        self.histories |= other.histories
        self.left_out += other.left_out
        self.others += other.others

    def add_history(self, history: History) -> None:
        """Keep what a history advises, where it knows enough."""
        peak, verdict = peak_bytes(history), advise(history).verdict
        if peak is not None and verdict not in (Verdict.FEW, Verdict.FILLS, Verdict.DENIED):
            workload = Workload(history.kind, history.workload)
            self.histories[history.namespace, str(workload)] = with_margin(peak)

    def add_pod(self, raw: Json) -> None:
        """Keep a pod that has or waits for GPUs; finished ones and those of the system are not."""
        read = ClusterPod(raw)
        try:
            asked = asked_of(raw)
        except AskError as error:
            self.unreadable = self.unreadable or f"{read.path}: {error}"
            self.left_out[f"{_UNREADABLE} (first: {self.unreadable})"] += 1
            return
        if asked is None:
            if read.part("spec").get("resourceClaims"):
                self.left_out[_CLAIMS] += 1
            return
        if read.ended:
            self.left_out[_ENDED] += 1
            return
        if matches_any(read.namespace, _SYSTEM):
            self.left_out[_IN_SYSTEM] += 1
            return
        namespace, selector = read.namespace or "default", read.part("spec", "nodeSelector")
        pod = TodayPod(
            name=f"{namespace}/{read.name}",
            asked=asked,
            node=read.node,
            selector=tuple(sorted((str(key), str(value)) for key, value in selector.items())),
            created_s=read.created_s or 0.0,
            workload=f"{namespace} {read.workload}",
        )
        self.pods.append((pod, read.workload))

    def add_node(self, raw: Json) -> None:
        """Keep a node with GPUs."""
        read = ClusterNode(raw)
        # A failure of a GPU is over before anybody has come over.
        ours = tuple(replace(gpu, healthy=True) for gpu in read.gpus)
        if ours:
            self.nodes.append((TodayNode(read.name, ours, read.labels), None))
            return
        offered = offered_of(read)
        if offered is None:
            self.others += 1
            return
        node = TodayNode(read.name, (), read.labels, offered.replicas, offered.is_sliced)
        self.nodes.append((node, offered))

    def sized_pods(self, sizes: Sequence[Size], otherwise_bytes: int | None) -> list[TodayPod]:
        """Return the pods with what files, histories and `--size` say of their size."""
        found, index = [], SizeIndex(sizes)
        for pod, workload in self.pods:
            namespace, _, name = pod.name.partition("/")
            found.append(
                replace(
                    pod,
                    given_bytes=index.find(namespace, name, workload),
                    history_bytes=self.histories.get((namespace, str(workload))),
                    otherwise_bytes=otherwise_bytes,
                )
            )
        return found

    def sized_nodes(
        self, given: Sequence[GivenMemory]
    ) -> tuple[list[TodayNode], Mapping[GpuSource, int]]:
        """Return the nodes with their GPUs, and how many nodes each source describes.

        Raises NoGPUs where there are none, and Unreadable where nobody says the memory of some.
        """
        nodes: list[TodayNode] = []
        sources: Counter[GpuSource] = Counter()
        unknown = []
        wanted = {key for pod, _ in self.pods for key, _ in pod.selector}
        for node, offered in self.nodes:
            labels = {key: value for key, value in node.labels.items() if key in wanted}
            source, gpus = GpuSource.AGENT, node.gpus
            if offered is not None:
                said = with_given(node.name, offered, given)
                totals = [one for one in said.totals_bytes if one is not None]
                if len(totals) < len(said.totals_bytes) or not said.counted:
                    unknown.append(node.name)
                    continue
                source, gpus = said.source, _gpus(node.name, totals, said.product)
            nodes.append(replace(node, gpus=gpus, labels=labels))
            if gpus:
                sources[source] += 1
        if unknown:
            raise Unreadable(_unknown(unknown))
        if not sources:
            raise NoGPUs(self._no_gpus())
        return nodes, sources

    def _no_gpus(self) -> str:
        if self.nodes:
            return "all GPUs of these nodes are divided by MIG, and vramwarden shares whole ones"
        if self.others:
            return (
                f"none of {self.others:,} nodes says that it has GPUs: neither vramwarden's agent, "
                "nor GPU feature discovery, nor HAMi, nor a device plugin has written to it"
            )
        return "there are no nodes"


def _gpus(name: str, totals: Sequence[int], product: str) -> tuple[Gpu, ...]:
    return tuple(
        Gpu(
            uuid=f"GPU-{name}-{index}",
            memory_bytes=max(MIB, usable_estimate(total)),
            product=product,
            index=index,
            total_bytes=total,
        )
        for index, total in enumerate(totals)
    )


def _unknown(names: Sequence[str]) -> str:
    return (
        f"nobody says how much memory the GPUs of {named(names, _MOST_NAMED)} have; pass "
        f"--gpu-memory 80Gi, or by node --gpu-memory '{names[0]}=8x80Gi', or install GPU feature "
        "discovery"
    )
