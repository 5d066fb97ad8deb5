"""Nodes and pods of simulations, in MiB."""

from __future__ import annotations

from tests.support.gpus import a_gpu
from webhook.core.placement.fit import Need
from webhook.core.pod.quantity import MIB
from webhook.tools.simulate.replay.cluster import SimulatedNode, SimulatedPod


def a_node(name="n1", *sizes, **labels):
    """Return a node with GPUs of these MiB."""
    gpus = tuple(a_gpu(f"{name}-{index}", mib, index) for index, mib in enumerate(sizes))
    return SimulatedNode(name, gpus, labels)


def a_pod(mib, count=1, name="p", arrival_s=0.0, duration_s=None, **selector):
    need = Need(mib * MIB, count)
    return SimulatedPod(name, need, arrival_s, duration_s, tuple(selector.items()))
