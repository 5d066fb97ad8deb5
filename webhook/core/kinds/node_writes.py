"""When a node's figures are written again: soon where they moved, seldom where they did not.

A thousand nodes write into one etcd, and nobody reads most of them at most times.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from webhook.core.kinds.nodes import MOST_PODS, GpuFigures, NodeFigures

LEAST_S: Final = 15.0
"""Between two writes of a node, whatever happens there."""

REGULAR_S: Final = 60.0
"""After it figures are written that did not move: who reads them sees that they are not old."""

JITTER_S: Final = 5.0
"""Most of what is added to that, and of what passes before the first write of a node: nodes that
started together must not write together."""

MOVED_BYTES: Final = 256 * 2**20
MOVED_PERCENT: Final = 2
"""Of the GPU: a figure moved where it differs by the larger of the two."""


def due_after_s(written: NodeFigures | None, newest: NodeFigures, jitter_s: float) -> float:
    """Return how long after the last write the newest figures are to be written, in seconds.

    Before any, it counts from when it was read that there is none.

    | written last | of a GPU, since then | due after |
    | --- | --- | --- |
    | nothing, as far as we know | | the node's jitter |
    | figures | a figure moved, was not known before, or is not known now | `LEAST_S` |
    | figures | it, a pod with a promise or a holder without one came or went | `LEAST_S` |
    | figures | one more stop, done or only reported; other health, names, versions | `LEAST_S` |
    | figures | another word on how a pod is held, or on the driver's limit | `LEAST_S` |
    | figures | whether the sentry acts, or whether a GPU is measured, has changed | `LEAST_S` |
    | figures | a pod does something, or nothing any longer, and none of the above | as below |
    | figures | nothing of these | `REGULAR_S` and the node's jitter |
    """
    jitter_s = min(max(jitter_s, 0.0), JITTER_S)
    if written is None:
        return jitter_s
    return LEAST_S if has_moved(written, newest) else REGULAR_S + jitter_s


def has_moved(before: NodeFigures, now: NodeFigures) -> bool:
    """Say whether figures differ by so much that they are written before it is time."""
    if _names(before) != _names(now):
        return True
    pairs = zip(before.gpus, now.gpus, strict=True)
    return any(
        _moved(was, one, max(MOVED_BYTES, now_gpu.total_bytes * MOVED_PERCENT // 100))
        for was_gpu, now_gpu in pairs
        for was, one in zip(_amounts(was_gpu), _amounts(now_gpu), strict=True)
    )


def _names(node: NodeFigures) -> object:
    """Return everything written that is no amount: where it differs, amounts cannot be compared."""
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
                [(pod.uid, pod.stops, pod.would_stop, pod.held_by) for pod in gpu.pods[:MOST_PODS]],
                list(gpu.unmanaged)[:MOST_PODS],
            )
            for gpu in node.gpus
        ],
    )


def _amounts(gpu: GpuFigures) -> Iterator[int | None]:
    yield from (gpu.total_bytes, gpu.usable_bytes, gpu.promised_bytes, gpu.used_bytes)
    yield from (gpu.free_bytes, gpu.unattributed_bytes)
    for pod in gpu.pods[:MOST_PODS]:
        yield from (pod.cap_bytes, pod.used_bytes, pod.peak_bytes)
    yield from islice(gpu.unmanaged.values(), MOST_PODS)


def _moved(before: int | None, now: int | None, bound: int) -> bool:
    if before is None or now is None:
        return before is not now
    return abs(now - before) >= bound
