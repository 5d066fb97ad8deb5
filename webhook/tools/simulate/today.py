"""`vramwarden simulate --today`: how many GPUs today's pods would need as shares."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import click

from webhook.adapters.kube.client import KubeError
from webhook.adapters.kube.histories import HistoriesApi
from webhook.adapters.yaml_documents import Problem
from webhook.core.pod.quantity import QuantityError, parse_vram
from webhook.options import Failure, reach
from webhook.tools.shared.manifests.files import name_of_input, read_text
from webhook.tools.simulate.judge.offered import Source
from webhook.tools.simulate.judge.today import compare
from webhook.tools.simulate.kube import read_nodes, read_pods, why_unlisted
from webhook.tools.simulate.reading import NO_SIZES, UnreadableError, read_sizes
from webhook.tools.simulate.short import Found, short_sizes
from webhook.tools.simulate.today_output import TodayReport
from webhook.tools.simulate.today_reading import GivenMemory, Seen, read_given, read_objects

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from webhook.tools.simulate.judge.today import Today
    from webhook.tools.simulate.short import Size

_COLUMNS: Final = ("namespace", "workload", "memory")
_MODEL: Final = (
    "the scheduler is a simple model: it counts VRAM and node selectors, not CPU, memory, taints, "
    "affinity or priority; pods come in the order in which they were created"
)
_BY_SOURCE: Final = {
    Source.GFD: "the node's label nvidia.com/gpu.memory, which describes one kind of GPU",
    Source.HAMI: "what HAMi registers, which its deviceMemoryScaling may have enlarged",
    Source.GPUSHARE: "aliyun.com/gpu-mem in GiB, the default unit of gpushare",
    Source.GIVEN: "--gpu-memory",
}
_WHOLE: Final = (
    "a node is shared or offers whole GPUs, so pods that stay whole may need nodes of their own"
)
_REPLICAS: Final = (
    "pods with replicas say neither which GPU they have nor how much of it: at least so many GPUs "
    "are held"
)


@dataclass(frozen=True, slots=True)
class TodayOptions:
    """What the user said."""

    files: tuple[str, ...]
    """Of nodes and pods; none: the cluster is asked."""
    kubeconfig: Path | None
    context: str | None
    otherwise: str | None
    sizes: str | None
    gpu_memory: tuple[str, ...]


def run_today(options: TodayOptions) -> TodayReport:
    """Read and compare; raises UnreadableError, Failure where the cluster cannot be asked."""
    otherwise_bytes = _size(options.otherwise) if options.otherwise else None
    given = _given(options.gpu_memory)
    sizes: Sequence[Size] = read_size_file(options.sizes) if options.sizes else ()
    seen = Seen()
    for name in options.files:
        read_objects(name_of_input(name), read_text(name), seen)
    if not options.files:
        _read_cluster(options, seen)
    nodes, sources = seen.sized_nodes(given)
    if not any(node.gpus for node in nodes):
        raise UnreadableError([Problem("", 0, "", _no_gpus(seen))])
    today = compare(nodes, seen.sized_pods(sizes, otherwise_bytes))
    return TodayReport(today, dict(seen.left_out), (*_assumed(today, sources), *seen.notes))


def read_size_file(name: str) -> list[Size]:
    """Read CSV with a line of names, or YAML; raises UnreadableError."""
    shown, text = name_of_input(name), read_text(name)
    first = next(iter(text.split("\n", 1)), "")
    if {one.strip() for one in first.split(",")} <= set(_COLUMNS) and "memory" in first:
        return _read_csv(shown, text)
    return read_sizes(shown, text)


def _read_csv(name: str, text: str) -> list[Size]:
    rows = csv.DictReader(text.splitlines(), skipinitialspace=True)
    found, problems = Found(), []
    for row in rows:
        entry = {key.strip(): one.strip() for key, one in row.items() if key and one}
        short_sizes([entry], (), found)
        problems += [Problem(name, rows.line_num, "", detail) for _, detail in found.wrong]
        if None in row:
            detail = "has more cells than the first line; put a pattern with a comma in quotes"
            problems.append(Problem(name, rows.line_num, "", detail))
        found.wrong.clear()
    if not found.sizes and not problems:
        problems.append(Problem(name, 0, "", NO_SIZES))
    if problems:
        raise UnreadableError(problems)
    return found.sizes


def _read_cluster(options: TodayOptions, seen: Seen) -> None:
    try:
        kube = reach(options.kubeconfig, options.context, None).kube
        read_pods(kube, seen.keep_pod)
        read_nodes(kube, seen.keep_node)
    except KubeError as error:
        raise Failure(why_unlisted(error)) from error
    try:
        for history in HistoriesApi(kube).of():
            seen.keep_history(history)
    except KubeError as error:
        if error.forbidden:
            seen.notes.append("no VRAMHistory says a size: you may not list them, if there are any")
        elif not error.not_found:  # without vramwarden there are none
            seen.notes.append(f"no VRAMHistory says a size: {error}")


def _size(text: str) -> int:
    try:
        return parse_vram(text)
    except QuantityError as error:
        raise click.UsageError(f"--as: {text!r} {error}") from error


def _given(texts: Sequence[str]) -> list[GivenMemory]:
    try:
        return [read_given(text) for text in texts]
    except ValueError as error:
        raise click.UsageError(f"--gpu-memory: {error}") from error


def _no_gpus(seen: Seen) -> str:
    if seen.nodes:
        return "all GPUs of these nodes are divided by MIG, and vramwarden shares whole ones"
    if seen.others:
        return (
            f"none of {seen.others:,} nodes says that it has GPUs: neither vramwarden's agent, nor "
            "GPU feature discovery, nor HAMi, nor a device plugin has written to it"
        )
    return "no node in it; pass the output of: kubectl get nodes,pods -A -o json"


def _assumed(today: Today, sources: Mapping[Source, int]) -> list[str]:
    estimated = [
        f"{number:,} by {_BY_SOURCE[source]}"
        for source, number in sorted(sources.items())
        if source in _BY_SOURCE
    ]
    found = [_MODEL]
    if estimated:
        found.insert(
            0,
            "what is usable of a GPU is an estimate on these nodes, its memory less 512Mi or "
            f"1.5 %, which the agent measures later: {'; '.join(estimated)}",
        )
    if today.has_replicas:
        found.append(_REPLICAS)
    if today.kept:
        found.append(_WHOLE)
    return found
