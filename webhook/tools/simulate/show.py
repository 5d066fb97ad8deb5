"""What `vramwarden simulate` writes: text for people, or JSON for programs."""

from __future__ import annotations

import json
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from webhook.core.pod.quantity import format_bytes
from webhook.core.words import counted, named
from webhook.tools.simulate.judge.offered import GpuSource
from webhook.tools.simulate.judge.packing import BlockedBy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from webhook.tools.simulate.judge.comparison import Comparison, Tallies

_GIB: Final = 2**30
_MOST_NAMED: Final = 10
_LABEL: Final = 46
_CELL: Final = 12
_MODEL: Final = (
    "the scheduler is a simple model: it counts VRAM and node selectors, not CPU, memory, taints, "
    "affinity or priority; pods come in the order in which they were created"
)
_BY_SOURCE: Final = {
    GpuSource.GFD: "the node's label nvidia.com/gpu.memory, which describes one kind of GPU",
    GpuSource.HAMI: "what HAMi registers, which its deviceMemoryScaling may have enlarged",
    GpuSource.GPUSHARE: "aliyun.com/gpu-mem in GiB, the default unit of gpushare",
    GpuSource.GIVEN: "--gpu-memory",
}
_WHOLE: Final = (
    "a node is shared or offers whole GPUs, so pods that stay whole may need nodes of their own"
)
_REPLICAS: Final = (
    "pods with replicas say neither which GPU they have nor how much of it: at least so many GPUs "
    "are held"
)


def assumptions(found: Comparison, sources: Mapping[GpuSource, int]) -> list[str]:
    """Return what the answer rests on; `sources` are how many nodes each describes."""
    estimated = [
        f"{number:,} by {_BY_SOURCE[source]}"
        for source, number in sorted(sources.items())
        if source in _BY_SOURCE
    ]
    said = [_MODEL]
    if estimated:
        said.insert(
            0,
            "what is usable of a GPU is an estimate on these nodes, its memory less 512Mi or "
            f"1.5 %, which the agent measures later: {'; '.join(estimated)}",
        )
    if found.has_replicas:
        said.append(_REPLICAS)
    if found.kept:
        said.append(_WHOLE)
    return said


def as_text(found: Comparison, left_out: Mapping[str, int], assumed: Sequence[str]) -> str:
    """Write it for people."""
    return "".join(f"{line.rstrip()}\n" for line in _lines(found, left_out, assumed))


def _lines(found: Comparison, left_out: Mapping[str, int], assumed: Sequence[str]) -> Iterator[str]:
    blocked = found.packed.blocked
    answer = f"whole GPUs today {found.whole_today:,}, as shares {found.shares:,}"
    if blocked:
        answer += f"; {counted(blocked.total(), 'pod')} would not fit"
    yield answer
    yield ""
    yield _row("", ["GPUs"])
    usable = f"on {counted(found.nodes, 'node')} ({_amount(found.memory_bytes)} usable)"
    for label, number in (
        ("held by pods now", found.held),
        ("asked for by pods that wait", found.wanted),
        ("needed as shares", found.shares),
        ("  of pods that stay whole", found.kept),
        ("  whatever the order, at least", found.fewest + found.kept),
        ("  if the scheduler spreads, as by default", len(found.spread.gpus) + found.kept),
        (usable, found.gpus),
    ):
        yield _row(label, [f"{number:,}"])
    yield ""
    yield _freed(found)
    yield from _table("by product", ("nodes", "GPUs", "held now", "as shares"), found.products)
    yield from _table("pods by what they ask for today", ("pods", "as shares"), found.hows)
    yield ""
    yield _row("pods by how their size is known", ["pods"])
    for by, number in found.sizes.items():
        yield _row(f"  {by.value}", [f"{number:,}"])
    if found.unsized:
        named_first = dict(islice(found.unsized.items(), _MOST_NAMED))
        yield from _table("stay whole", ("pods", "GPUs"), named_first)
        if len(found.unsized) > _MOST_NAMED:
            yield f"  and {counted(len(found.unsized) - _MOST_NAMED, 'workload')} more"
        yield "  give them a size: --size 8Gi (pods of one GPU), or by workload --sizes FILE"
    if blocked:
        yield ""
        yield _row("would not fit", ["pods"])
    for why, number, first in _unfit(found):
        yield _row(f"  {why}", [f"{number:,}"])
        yield f"    first: {first}"
    if left_out or found.slices:
        yield ""
        yield "Left out:"
    for why, number in _left_out(found, left_out).items():
        yield f"  {why}: {number:,}"
    yield ""
    yield "Assumed:"
    for one in assumed:
        yield f"  {one}"


def _freed(found: Comparison) -> str:
    """Say which nodes would be free."""
    names = found.free_nodes
    if not names:
        return "No node that has pods now would be free."
    nodes, gpus = counted(len(names), "node"), counted(found.free_gpus, "GPU")
    return f"Free of pods would be {nodes} with {gpus}: {named(names, _MOST_NAMED)}"


def _unfit(found: Comparison) -> list[tuple[str, int, str]]:
    """Return why pods would not fit, how many, and the first of them."""
    blocked, examples = found.packed.blocked, found.packed.examples
    return [
        (cause.value, blocked[cause], ": ".join(filter(None, examples[cause])))
        for cause in BlockedBy
        if cause in blocked
    ]


def _left_out(found: Comparison, left_out: Mapping[str, int]) -> dict[str, int]:
    """Return what was not counted, and how much of it."""
    slices = {"pods on MIG slices, which stay as they are": found.slices} if found.slices else {}
    return {**left_out, **slices}


def _table(name: str, heads: Sequence[str], rows: Tallies) -> Iterator[str]:
    yield ""
    yield _row(name, heads)
    for row, counts in rows.items():
        yield _row(f"  {row}", [f"{one:,}" for one in counts])


def _row(label: str, cells: Sequence[str]) -> str:
    return f"{label:<{_LABEL}}" + "".join(f"{cell:>{_CELL}}" for cell in cells)


def _amount(amount_bytes: int) -> str:
    """Write bytes in whole GiB; small ones exactly."""
    if amount_bytes < 100 * _GIB:
        return format_bytes(amount_bytes)
    return f"{(amount_bytes + _GIB // 2) // _GIB:,}Gi"


def as_json(found: Comparison, left_out: Mapping[str, int], assumed: Sequence[str]) -> str:
    """Write everything for programs; amounts are in bytes."""
    value = {
        "wholeGPUsToday": found.whole_today,
        "gpusAsShares": found.shares,
        "gpusHeldNow": found.held,
        "gpusAskedForByWaitingPods": found.wanted,
        "gpusOfPodsThatStayWhole": found.kept,
        "gpusAsSharesAtLeast": found.fewest + found.kept,
        "gpusAsSharesIfSpread": len(found.spread.gpus) + found.kept,
        "nodes": found.nodes,
        "gpus": found.gpus,
        "memoryBytes": found.memory_bytes,
        "pods": found.pods,
        "podsThatWouldNotFit": found.packed.blocked.total(),
        "freeNodes": list(found.free_nodes),
        "freeNodesGPUs": found.free_gpus,
        "products": _objects(found.products, ("nodes", "gpus", "gpusHeldNow", "gpusAsShares")),
        "asks": _objects(found.hows, ("pods", "podsAsShares")),
        "sizes": {by.name: number for by, number in found.sizes.items()},
        "stayWhole": _objects(found.unsized, ("pods", "gpus")),
        "wouldNotFit": [
            {"why": why, "pods": number, "first": first} for why, number, first in _unfit(found)
        ],
        "leftOut": _left_out(found, left_out),
        "assumed": list(assumed),
    }
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _objects(rows: Tallies, keys: Sequence[str]) -> list[dict[str, Any]]:
    return [{"name": name, **dict(zip(keys, counts, strict=True))} for name, counts in rows.items()]
