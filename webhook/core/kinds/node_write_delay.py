"""Delay until a node's figures are written again, depending on how much they changed.

A thousand nodes write to one etcd, and most figures are rarely read.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from webhook.core.kinds.nodes import MAX_PODS, GpuFigures, NodeFigures

MIN_INTERVAL_S: Final = 15.0
"""Minimum interval between two writes of a node, in seconds."""

MAX_INTERVAL_S: Final = 60.0
"""Interval at which unchanged figures are written, in seconds. Proves that figures are current."""

JITTER_S: Final = 5.0
"""Maximum delay in seconds of a node's first write, also added to `MAX_INTERVAL_S`. Spreads the
writes of nodes that started together."""

SIGNIFICANT_BYTES: Final = 256 * 2**20
SIGNIFICANT_PERCENT: Final = 2
"""Minimum significant change, as a percentage of the GPU's memory."""


def get_write_delay_s(written: NodeFigures | None, newest: NodeFigures, jitter_s: float) -> float:
    """Return the delay from the last write until the newest figures are due, in seconds.

    Before the first write, the delay counts from the time at which the object was found missing.

    | written last | of a GPU, since then | due after |
    | --- | --- | --- |
    | nothing, as far as known | | the node's jitter |
    | figures | a significant change; or a figure became known or unknown | `MIN_INTERVAL_S` |
    | figures | a GPU, a pod with an amount or an unmanaged pod came or went | `MIN_INTERVAL_S` |
    | figures | one more stop, done or only reported | `MIN_INTERVAL_S` |
    | figures | other health, names or versions | `MIN_INTERVAL_S` |
    | figures | another enforcer of a pod, or state of the driver limit | `MIN_INTERVAL_S` |
    | figures | the sentry acts, or a GPU is measured, or no longer | `MIN_INTERVAL_S` |
    | figures | a pod became busy or idle, and none of the above | as below |
    | figures | nothing of these | `MAX_INTERVAL_S` and the node's jitter |
    """
    jitter_s = min(max(jitter_s, 0.0), JITTER_S)
    if written is None:
        return jitter_s
    return MIN_INTERVAL_S if has_significant_change(written, newest) else MAX_INTERVAL_S + jitter_s


def has_significant_change(before: NodeFigures, now: NodeFigures) -> bool:
    """Return True if figures differ enough to be written early."""
    if _fields_without_amounts(before) != _fields_without_amounts(now):
        return True
    pairs = zip(before.gpus, now.gpus, strict=True)
    return any(
        _moved(
            was, amount, max(SIGNIFICANT_BYTES, now_gpu.total_bytes * SIGNIFICANT_PERCENT // 100)
        )
        for was_gpu, now_gpu in pairs
        for was, amount in zip(_amounts(was_gpu), _amounts(now_gpu), strict=True)
    )


def _fields_without_amounts(node: NodeFigures) -> object:
    """Return all written fields but amounts. If these differ, amounts are not comparable."""
    return (
        node.driver_version,
        node.enforcement,
        node.acts,
        node.not_shared,
        node.held,
        node.limit,
        [
            (
                (gpu.uuid, gpu.index, gpu.product, gpu.healthy, gpu.fault, gpu.measured),
                [(pod.uid, pod.stops, pod.would_stop, pod.held_by) for pod in gpu.pods[:MAX_PODS]],
                list(gpu.unmanaged)[:MAX_PODS],
            )
            for gpu in node.gpus
        ],
    )


def _amounts(gpu: GpuFigures) -> Iterator[int | None]:
    yield from (gpu.total_bytes, gpu.usable_bytes, gpu.promised_bytes, gpu.used_bytes)
    yield from (gpu.free_bytes, gpu.unattributed_bytes)
    for pod in gpu.pods[:MAX_PODS]:
        yield from (pod.cap_bytes, pod.used_bytes, pod.peak_bytes)
    yield from islice(gpu.unmanaged.values(), MAX_PODS)


def _moved(before: int | None, now: int | None, bound: int) -> bool:
    if before is None or now is None:
        return before is not now
    return abs(now - before) >= bound
