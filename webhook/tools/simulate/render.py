"""Result of the simulation as text or JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from webhook.core.formatting import format_count, join_names
from webhook.core.pod.quantity import format_bytes
from webhook.tools.render.output import plain_table, write_json, write_lines
from webhook.tools.simulate.comparison import Comparison, sum_counts
from webhook.tools.simulate.fetch import TodayObjects

_HEADS: Final = ("PRODUCT", "NODES", "GPUS", "HELD NOW", "AS SHARES")
_KEYS: Final = ("nodes", "gpus", "gpusHeldNow", "gpusAsShares")
_ASSUMED: Final = (
    "pods are placed in the order of their creation, each on the first node with room",
    "VRAM and node selectors count; CPU, memory, taints, affinity and priority do not",
    "the default scheduler spreads pods, and may need more GPUs",
    "usable memory that no agent reports is the memory less 512Mi or 1.5 %",
    "pods with parts of GPUs hold as few GPUs as possible",
    "a node is shared or has whole GPUs, so pods that keep whole GPUs may need nodes of their own",
)


def as_text(found: Comparison, objects: TodayObjects) -> str:
    """Return the result as text."""
    return write_lines(_lines(found, objects))


def _lines(found: Comparison, objects: TodayObjects) -> Iterator[str]:
    if not found.products:
        sliced, others = (
            format_count(len(objects.nodes), "node"),
            format_count(objects.others, "node"),
        )
        yield f"No GPU is there to share: {others} without GPUs, {sliced} with MIG slices alone."
        return
    total = sum_counts(found.elsewhere, *found.products.values())
    blocked = f"; {format_count(len(found.blocked), 'pod')} would not fit" if found.blocked else ""
    yield f"whole GPUs today {total.held:,}, as shares {total.shares:,}{blocked}"
    yield ""
    elsewhere = {"(no known node)": found.elsewhere} if any(found.elsewhere) else {}
    rows = {**found.products, **elsewhere, "total": total}
    cells = [[name, *(f"{count:,}" for count in counts)] for name, counts in rows.items()]
    yield from plain_table(_HEADS, cells, _HEADS[1:])
    yield ""
    if found.whole:
        kept, names = (
            format_count(found.whole.total(), "GPU"),
            join_names(dict(found.whole.most_common())),
        )
        yield f"Stay whole: {kept} of {names}; give a size by --size"
    if found.blocked:
        needs = (
            f"{pod.path} ({need.gpu_count} x {format_bytes(need.memory_bytes)})"
            for pod, need in found.blocked
        )
        yield f"Would not fit: {join_names(needs)}"
    if left_out := _left_out(found, objects):
        reasons = (
            f"{format_count(len(pods), 'pod')} {why} ({join_names(pods, 1)})"
            for why, pods in left_out.items()
        )
        yield f"Left out: {'; '.join(reasons)}"
    yield "Assumed:"
    yield from (f"  {item}" for item in _ASSUMED)


def _left_out(found: Comparison, objects: TodayObjects) -> dict[str, list[str]]:
    sliced = {"with MIG slices": found.sliced} if found.sliced else {}
    return objects.left_out | sliced


def as_json(found: Comparison, objects: TodayObjects) -> str:
    """Return the result as JSON."""
    total = sum_counts(found.elsewhere, *found.products.values())
    return write_json(
        {
            "wholeGPUsToday": total.held,
            "gpusAsShares": total.shares,
            "gpusHeldNow": total.held - found.elsewhere.held,
            "gpusAskedForByWaitingPods": found.elsewhere.held,
            "gpusOfPodsThatStayWhole": found.whole.total(),
            "nodes": total.nodes,
            "gpus": total.gpus,
            "pods": found.pods,
            "products": [
                {"name": name, **dict(zip(_KEYS, counts, strict=True))}
                for name, counts in found.products.items()
            ],
            "stayWhole": found.whole,
            "wouldNotFit": [
                {"pod": pod.path, "gpus": need.gpu_count, "memoryBytes": need.memory_bytes}
                for pod, need in found.blocked
            ],
            "leftOut": _left_out(found, objects),
            "assumed": _ASSUMED,
        }
    )
