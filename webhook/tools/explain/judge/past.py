"""What a pod held, and what the pods before it held, in words and in amounts that would do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from webhook.core.kinds.histories import advise, measured_runs, peak_bytes
from webhook.core.words import amount, counted, exactly, shortened
from webhook.names import GPU_MEMORY_ANNOTATION, VRAM_RESOURCE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from webhook.core.kinds.histories import History
    from webhook.core.kinds.nodes import NodeFigures
    from webhook.core.kinds.workloads import Workload
    from webhook.tools.shared.pod import ClusterPod

HISTORY: Final = "history"
_GIB: Final = 2**30
_COARSE_FROM: Final = 8 * _GIB
_LONGEST_NAME: Final = 80


def enough_for(peak_bytes: int) -> int:
    """Return the smallest round request that covers a peak: whole 256Mi, above 8Gi whole Gi."""
    grain = _GIB if peak_bytes > _COARSE_FROM else _GIB // 4
    return max(1, -(-peak_bytes // grain)) * grain


def peak_words(peak_bytes: int | None, cap_bytes: int) -> str:
    """Say what was held at most: `peak 6.1Gi of 16Gi`."""
    peak = (
        "no peak was measured, the cap was"
        if peak_bytes is None
        else (f"peak {amount(peak_bytes)} of")
    )
    return f"{peak} {exactly(cap_bytes)}"


def stops_words(stops: int) -> str:
    """Say how often something was stopped."""
    if not stops:
        return "nothing was stopped"
    return "something was stopped " + ("once" if stops == 1 else f"{stops} times")


def find_history(histories: Iterable[History], workload: Workload) -> History | None:
    """Return the history of a workload."""
    for one in histories:
        if (one.kind, one.workload) == (workload.kind, workload.name):
            return one
    return None


def history_notes(
    history: History | None,
    asked_bytes: int,
    nodes: Iterable[NodeFigures] | None,
    pod: ClusterPod | None,
) -> Iterator[tuple[str, str]]:
    """Say what the last pods of a workload held, and what would do: of this one, if it exists."""
    peak = peak_bytes(history) if history else None
    if history is None or peak is None:
        return
    sizes = [gpu.usable_bytes for node in nodes or () for gpu in node.gpus]
    advice = advise(history, asked_bytes, max(sizes, default=None))
    whose = f"{history.kind} {shortened(history.workload, _LONGEST_NAME)}"
    runs, known = len(history.runs), measured_runs(history)
    last = "the last pod" if runs == 1 else f"the last {counted(runs, 'pod')}"
    of = (
        f"{last} of {whose}"
        if known == runs
        else f"of {last} of {whose} {known} were measured, and"
    )
    said = f"{of} peaked at {amount(peak)}"
    if advice.amount_bytes is not None:
        would = exactly(advice.amount_bytes)
        said += f"; {would} would do     -> {line_for(pod, advice.amount_bytes)}"
    yield HISTORY, said


def line_for(pod: ClusterPod | None, amount_bytes: int) -> str:
    """Say what to write, so that a pod like this one gets so much on each of its GPUs.

    | the pod's annotation gpu-memory | then |
    | --- | --- |
    | is one quantity, or the pod is gone | the annotation, to be copied |
    | is a list by container | the sum of its entries |
    | is absent: its containers say it themselves | the sum of their limits, per GPU |
    """
    asks = exactly(amount_bytes)
    if pod is None:
        return f"{GPU_MEMORY_ANNOTATION}: {asks}"
    written = pod.annotations.get(GPU_MEMORY_ANNOTATION)
    if not isinstance(written, str):
        return f"{asks} per GPU in the limits {VRAM_RESOURCE}"
    if "=" in written:
        return f"{asks} in sum over the containers in {GPU_MEMORY_ANNOTATION}"
    return f"{GPU_MEMORY_ANNOTATION}: {asks}"
