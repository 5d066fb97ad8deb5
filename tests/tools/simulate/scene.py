"""Nodes of small scenes, whose GPUs have a few MiB."""

from __future__ import annotations

from tests.support.gpus import a_gpu
from webhook.tools.simulate.judge.offered import TodayNode


def a_node(name="n1", *sizes, replicas=1, is_sliced=False, **labels):
    """Return a node with GPUs of these MiB."""
    gpus = tuple(a_gpu(f"{name}-{index}", mib, index) for index, mib in enumerate(sizes))
    return TodayNode(name, gpus, labels, replicas, is_sliced)
