"""Best fit on the generated workload of the bench."""

from __future__ import annotations

from tests.bench.orders import ORDERS, generate, replay


def test_best_fit_needs_no_more_gpus_than_first_fit_and_this_no_more_than_worst_fit():
    """With few nodes, best fit may need one or two more by chance."""
    nodes, pods = generate(1000, 100)
    best, first, worst = (replay(nodes, pods, order) for order in ORDERS.values())
    assert best.gpus <= first.gpus <= worst.gpus
    assert best.gpu_bytes <= first.gpu_bytes <= worst.gpu_bytes
    assert best.never <= first.never <= worst.never
    assert [item.at_once + item.later + item.never for item in (best, first, worst)] == [1000] * 3
