"""What `vramwarden simulate --today` writes: text for people, or JSON; `today_page` writes HTML."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from webhook.tools.simulate.output import WORDS, amount, counted
from webhook.tools.simulate.replay.cluster import Cause

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from webhook.tools.simulate.judge.today import Row, Today

_MOST_NAMED: Final = 10
_LABEL: Final = 46
_CELL: Final = 12
PRODUCTS: Final = ("nodes", "GPUs", "held now", "as shares")
HOWS: Final = ("pods", "as shares")
UNSIZED: Final = ("pods", "GPUs")


@dataclass(frozen=True, slots=True)
class TodayReport:
    """The answer, and what it rests on."""

    today: Today
    left_out: Mapping[str, int]
    """By why."""
    assumed: tuple[str, ...]
    """Sentences."""


def sentence(today: Today) -> str:
    """Return the answer in one line."""
    said = f"whole GPUs today {today.today:,}, as shares {today.shares:,}"
    if today.packed.never:
        said += f"; {counted(today.packed.never, 'pod')} would not fit"
    return said


def figures(today: Today) -> list[tuple[str, int]]:
    """Return the lines of the first table."""
    found = [("held by pods now", today.held), ("asked for by pods that wait", today.wanted)]
    found += [("needed as shares", today.shares), ("  of pods that stay whole", today.kept)]
    found += [
        ("  whatever the order, at least", today.fewest + today.kept),
        ("  if the scheduler spreads, as by default", today.spread.gpus_used + today.kept),
        (f"on {counted(today.nodes, 'node')} ({amount(today.memory_bytes)} usable)", today.gpus),
    ]
    return found


def freed(today: Today) -> str:
    """Say which nodes would be free."""
    if not today.free_nodes:
        return "No node that has pods now would be free."
    names = named(today.free_nodes)
    nodes, gpus = counted(len(today.free_nodes), "node"), counted(today.free_gpus, "GPU")
    return f"Free of pods would be {nodes} with {gpus}: {names}"


def named(names: Sequence[str]) -> str:
    """Return the first of many names."""
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more:,} more" if more > 0 else "")


def unfit(today: Today) -> list[tuple[str, int, str]]:
    """Return why pods would not fit, how many, and the first of them."""
    blocked, examples = today.packed.blocked, today.packed.examples
    return [
        (WORDS[cause], blocked[cause], ": ".join(filter(None, examples[cause])))
        for cause in Cause
        if cause in blocked
    ]


def left_out(report: TodayReport) -> list[tuple[str, int]]:
    """Return what was not counted, and how much of it."""
    slices = report.today.slices
    found = [("pods on MIG slices, which stay as they are", slices)] if slices else []
    return [*report.left_out.items(), *found]


def hint(today: Today) -> str:
    """Say what to give where pods stay whole for want of a size; empty where none do."""
    if not today.unsized:
        return ""
    return "give them a size with --as 8Gi (pods of one GPU), or by workload with --sizes FILE"


def today_as_text(report: TodayReport) -> str:
    """Write it for people."""
    return "".join(f"{line}".rstrip() + "\n" for line in _lines(report))


def _lines(report: TodayReport) -> Iterator[str]:
    today = report.today
    yield sentence(today)
    yield ""
    yield _row("", ["GPUs"])
    for label, number in figures(today):
        yield _row(label, [f"{number:,}"])
    yield ""
    yield freed(today)
    yield from _table("by product", PRODUCTS, today.products)
    yield from _table("pods by what they ask for today", HOWS, today.hows)
    yield ""
    yield _row("pods by how their size is known", ["pods"])
    for by, number in today.sizes.items():
        yield _row(f"  {by.value}", [f"{number:,}"])
    if today.unsized:
        yield from _table("stay whole", UNSIZED, today.unsized[:_MOST_NAMED])
        if len(today.unsized) > _MOST_NAMED:
            yield f"  and {counted(len(today.unsized) - _MOST_NAMED, 'workload')} more"
        yield f"  {hint(today)}"
    if today.packed.blocked:
        yield ""
        yield _row("would not fit", ["pods"])
    for why, number, first in unfit(today):
        yield _row(f"  {why}", [f"{number:,}"])
        yield f"    first: {first}"
    if left_out(report):
        yield ""
        yield "Left out:"
    for why, number in left_out(report):
        yield f"  {why}: {number:,}"
    yield ""
    yield "Assumed:"
    for one in report.assumed:
        yield f"  {one}"


def _table(name: str, heads: Sequence[str], rows: Sequence[Row]) -> Iterator[str]:
    yield ""
    yield _row(name, heads)
    for row in rows:
        yield _row(f"  {row.name}", [f"{one:,}" for one in row.counts])


def _row(label: str, cells: Sequence[str]) -> str:
    return f"{label:<{_LABEL}}" + "".join(f"{cell:>{_CELL}}" for cell in cells)


def today_as_json(report: TodayReport) -> str:
    """Write everything for programs; amounts are in bytes."""
    today = report.today
    value = {
        "wholeGPUsToday": today.today,
        "gpusAsShares": today.shares,
        "gpusHeldNow": today.held,
        "gpusAskedForByWaitingPods": today.wanted,
        "gpusOfPodsThatStayWhole": today.kept,
        "gpusAsSharesAtLeast": today.fewest + today.kept,
        "gpusAsSharesIfSpread": today.spread.gpus_used + today.kept,
        "nodes": today.nodes,
        "gpus": today.gpus,
        "memoryBytes": today.memory_bytes,
        "pods": today.pods,
        "podsThatWouldNotFit": today.packed.never,
        "freeNodes": list(today.free_nodes),
        "freeNodesGPUs": today.free_gpus,
        "products": _objects(today.products, ("nodes", "gpus", "gpusHeldNow", "gpusAsShares")),
        "asks": _objects(today.hows, ("pods", "podsAsShares")),
        "sizes": {by.name: number for by, number in today.sizes.items()},
        "stayWhole": _objects(today.unsized, ("pods", "gpus")),
        "wouldNotFit": [
            {"why": why, "pods": number, "first": first} for why, number, first in unfit(today)
        ],
        "leftOut": dict(left_out(report)),
        "assumed": list(report.assumed),
    }
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _objects(rows: Sequence[Row], keys: Sequence[str]) -> list[dict[str, Any]]:
    return [{"name": row.name, **dict(zip(keys, row.counts, strict=True))} for row in rows]
