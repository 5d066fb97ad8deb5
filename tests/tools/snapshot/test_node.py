"""Facts of nodes about their GPUs."""

from __future__ import annotations

import pytest

from tests.support.clusters import GIB, a_gpu, a_node


@pytest.mark.parametrize(
    ("node", "said"),
    [
        (a_node("n", said=16), True),
        (a_node("n", a_gpu(16)), False),
        (a_node("n"), False),
        (a_node("n", amounts={"vramwarden.io/vram": 16 * GIB}), False),
    ],
    ids=["said", "measured", "no GPU", "of somebody else"],
)
def test_an_amount_is_said_where_the_agent_advertises_it_and_no_gpu(node, said):
    assert node.read.is_configured == said
