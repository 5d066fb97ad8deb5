"""Read what `vramwarden simulate --today` compares: from a cluster or files, object by object.

Of an object only a few fields stay in memory: most pods of a large cluster have no GPU.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from webhook.adapters.kube.reading import ListReader, MalformedError
from webhook.adapters.yaml_documents import Problem
from webhook.core.kinds.histories import Verdict, advise, peak_bytes, read_history, with_margin
from webhook.core.kinds.nodes import read_time
from webhook.core.kinds.workloads import Workload, workload_of
from webhook.core.node.state import read_inventory
from webhook.core.pod.gpus import Gpu
from webhook.core.pod.lenient import as_object
from webhook.core.pod.quantity import MIB, QuantityError, parse_vram
from webhook.core.policy.patterns import matches_any
from webhook.names import VRAM_HISTORY_KIND
from webhook.tools.shared.manifests.documents import read_documents
from webhook.tools.shared.manifests.reading import ManifestError
from webhook.tools.simulate.judge.asked import AskError, asked_of
from webhook.tools.simulate.judge.offered import Offered, Source, offered_of, usable_estimate
from webhook.tools.simulate.judge.shares import TodayNode, TodayPod
from webhook.tools.simulate.reading import UnreadableError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from webhook.core.kinds.histories import History
    from webhook.tools.simulate.short import Size

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
_FINISHED: Final = frozenset({"Succeeded", "Failed"})
_GIVEN: Final = re.compile(r"(?:([^=]+)=)?(?:([1-9][0-9]?)x)?([^x=]+)")
_MOST_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class GivenMemory:
    """What `--gpu-memory` says of nodes."""

    nodes: str
    """A name or `*` pattern; empty where it is for those of which nobody says it."""
    count: int | None
    total_bytes: int


@dataclass(frozen=True, slots=True)
class _Pod:
    """A pod with GPUs, before its node and size are known."""

    namespace: str
    name: str
    workload: Workload
    pod: TodayPod


@dataclass(slots=True)
class Seen:
    """What was read so far."""

    nodes: list[tuple[TodayNode, Offered | None]] = field(default_factory=list)
    """Of those with GPUs, what others say of them; None where our agent said it."""
    pods: list[_Pod] = field(default_factory=list)
    histories: dict[tuple[str, str], int] = field(default_factory=dict)
    """Per GPU, by namespace and workload."""
    left_out: Counter[str] = field(default_factory=Counter)
    unreadable: str = ""
    notes: list[str] = field(default_factory=list)
    """What else the reader of the answer should know."""
    others: int = 0
    """Nodes without GPUs."""

    def keep(self, value: Json, of: str = "") -> None:
        """Read an object of any kind; `of` is the kind of a list's items that leave it out."""
        kind = value.get("kind") or of
        items = value.get("items")
        if isinstance(kind, str) and kind.endswith("List") and isinstance(items, list):
            for item in filter(None, map(as_object, items)):
                self.keep(item, kind.removesuffix("List"))
        elif kind == "Pod":
            self.keep_pod(value)
        elif kind == "Node":
            self.keep_node(value)
        elif kind == VRAM_HISTORY_KIND and (history := read_history(value)):
            self.keep_history(history)

    def add(self, other: Seen) -> None:
        """Add what was read elsewhere."""
        self.nodes += other.nodes
        self.pods += other.pods
        self.histories |= other.histories
        self.left_out += other.left_out
        self.others += other.others

    def keep_history(self, history: History) -> None:
        """Keep what a history advises, where it knows enough."""
        peak, verdict = peak_bytes(history), advise(history).verdict
        if peak is not None and verdict not in (Verdict.FEW, Verdict.FILLS):
            workload = Workload(history.kind, history.workload)
            self.histories[history.namespace, str(workload)] = with_margin(peak)

    def keep_pod(self, raw: Json) -> None:
        """Keep a pod that has or waits for GPUs; finished ones and those of the system are not."""
        metadata, spec, status = (as_object(raw.get(key)) for key in ("metadata", "spec", "status"))
        namespace, name = (_text(metadata.get(key)) for key in ("namespace", "name"))
        try:
            asked = asked_of(raw)
        except AskError as error:
            self.unreadable = self.unreadable or f"{namespace}/{name}: {error}"
            self.left_out[f"{_UNREADABLE} (first: {self.unreadable})"] += 1
            return
        if asked is None:
            if spec.get("resourceClaims"):
                self.left_out[_CLAIMS] += 1
            return
        if _text(status.get("phase")) in _FINISHED:
            self.left_out[_ENDED] += 1
            return
        if matches_any(namespace, _SYSTEM):
            self.left_out[_IN_SYSTEM] += 1
            return
        selector = as_object(spec.get("nodeSelector"))
        workload = workload_of(metadata)
        pod = TodayPod(
            f"{namespace or 'default'}/{name}",
            asked,
            _text(spec.get("nodeName")),
            tuple(sorted((str(key), str(value)) for key, value in selector.items())),
            read_time(metadata.get("creationTimestamp")) or 0.0,
            f"{namespace or 'default'} {workload}",
        )
        self.pods.append(_Pod(namespace or "default", name, workload, pod))

    def keep_node(self, raw: Json) -> None:
        """Keep a node with GPUs."""
        metadata = as_object(raw.get("metadata"))
        name = _text(metadata.get("name"))
        labels = {str(key): str(one) for key, one in as_object(metadata.get("labels")).items()}
        # A failure of a GPU is over before anybody has come over.
        ours = tuple(replace(gpu, healthy=True) for gpu in read_inventory(raw).gpus)
        if ours:
            self.nodes.append((TodayNode(name, ours, labels), None))
            return
        offered = offered_of(raw)
        if offered is None:
            self.others += 1
            return
        node = TodayNode(name, (), labels, offered.replicas, offered.is_sliced)
        self.nodes.append((node, offered))

    def sized_pods(self, sizes: Sequence[Size], otherwise_bytes: int | None) -> list[TodayPod]:
        """Return the pods with what files, histories and `--as` say of their size."""
        return [
            replace(
                one.pod,
                given_bytes=_given(sizes, one),
                history_bytes=self.histories.get((one.namespace, str(one.workload))),
                otherwise_bytes=otherwise_bytes,
            )
            for one in self.pods
        ]

    def sized_nodes(
        self, given: Sequence[GivenMemory]
    ) -> tuple[list[TodayNode], Mapping[Source, int]]:
        """Return the nodes with their GPUs, and how many nodes each source describes.

        Raises UnreadableError with the names of those whose memory nobody says.
        """
        nodes: list[TodayNode] = []
        sources: Counter[Source] = Counter()
        unknown = []
        wanted = {key for one in self.pods for key, _ in one.pod.selector}
        for node, offered in self.nodes:
            labels = {key: value for key, value in node.labels.items() if key in wanted}
            source, gpus = Source.AGENT, node.gpus
            if offered is not None:
                said = _with_given(node.name, offered, given)
                totals = [one for one in said.totals_bytes if one is not None]
                if len(totals) < len(said.totals_bytes) or not said.counted:
                    unknown.append(node.name)
                    continue
                source, gpus = said.source, _gpus(node.name, totals, said.product)
            nodes.append(replace(node, gpus=gpus, labels=labels))
            if gpus:
                sources[source] += 1
        if unknown:
            raise UnreadableError([Problem("", 0, "", _unknown(unknown))])
        return nodes, sources


def read_objects(name: str, text: str, seen: Seen) -> None:
    """Read a file of objects, JSON object by object; raises UnreadableError."""
    if text.lstrip().startswith("{") and _read_json(text, seen):
        return
    try:
        for document in read_documents(text):
            if document.value:
                seen.keep(document.value)
    except ManifestError as error:
        raise UnreadableError([Problem(name, error.line or 0, "", str(error))]) from error


def _read_json(text: str, seen: Seen) -> bool:
    """Read a stream of objects and lists, if it is one; of any other text nothing is kept."""
    found, at, end = Seen(), 0, len(text.rstrip())
    try:
        while at < end:
            at = _read_list(text, at, found)
    except MalformedError:
        return False
    seen.add(found)
    return True


def _read_list(text: str, at: int, found: Seen) -> int:
    # An API server's list says its kind before its items, and kubectl's items say their own.
    reader: ListReader[None] = ListReader(
        lambda item: found.keep(item, _text(reader.rest.get("kind")).removesuffix("List"))
    )
    at = reader.read(text, at)
    found.keep(reader.rest)
    return at


def read_given(text: str) -> GivenMemory:
    """Read `80Gi`, `4x24Gi`, `old-*=24Gi` or `old-*=4x24Gi`; raises ValueError with a sentence."""
    match = _GIVEN.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not [NODES=][COUNTx]SIZE; write e.g. 80Gi or 'old-*=4x24Gi'")
    try:
        total_bytes = parse_vram(match[3])
    except QuantityError as error:
        raise ValueError(f"{match[3]!r} {error}") from error
    return GivenMemory(match[1] or "", int(match[2]) if match[2] else None, total_bytes)


def _with_given(name: str, offered: Offered, given: Sequence[GivenMemory]) -> Offered:
    """Return what a node offers with what the user says of it, who knows best of a node by name."""
    is_known = offered.counted and None not in offered.totals_bytes
    for one in given:
        applies = matches_any(name, (one.nodes,)) if one.nodes else not is_known
        count = one.count or (len(offered.totals_bytes) if offered.counted else 0)
        if applies and count:
            totals = (one.total_bytes,) * count
            return replace(offered, source=Source.GIVEN, totals_bytes=totals, counted=True)
    return offered


def _gpus(name: str, totals: Sequence[int], product: str) -> tuple[Gpu, ...]:
    return tuple(
        Gpu(f"GPU-{name}-{index}", max(MIB, usable_estimate(total)), product, index, total)
        for index, total in enumerate(totals)
    )


def _given(sizes: Sequence[Size], one: _Pod) -> int | None:
    """Return what the first size says that fits; a workload goes by `llama` or `Deployment/llama`.

    A pod that nothing creates, by its own name.
    """
    names = (str(one.workload), one.workload.name, one.name)
    for size in sizes:
        if matches_any(one.namespace, (size.namespace,)) and any(
            matches_any(name, (size.workload,)) for name in names
        ):
            return size.memory_bytes
    return None


def _unknown(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MOST_NAMED])
    more = f" and {len(names) - _MOST_NAMED:,} more" if len(names) > _MOST_NAMED else ""
    return (
        f"nobody says how much memory the GPUs of {shown}{more} have; pass "
        f"--gpu-memory 80Gi, or by node --gpu-memory '{names[0]}=8x80Gi', or install GPU feature "
        "discovery"
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
