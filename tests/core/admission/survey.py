"""What other GPU-sharing projects test, asked of ours: one case for each row of our survey.

The rows are those of the survey's table of peers' tests, in its order; each is written again with
our annotation and our reasons. A row without a counterpart stands in `ELSEWHERE` with the cause.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.admission.decisions import VISIBLE
from tests.support.pods import a_container, a_pod

COUNT = "vramwarden.io/gpu-count"
CLASS = "vramwarden.io/gpu-class"

ELSEWHERE = {
    17: "no sharing mode to choose: MPS is not ours",
    40: "quota of a namespace: Kubernetes' ResourceQuota counts vramwarden.io/vram",
    41: "quota, as 40; the exact boundary of a rule is in test_rules_demand",
    42: "quota, as 40; the product with the count is row 12",
    43: "quota, as 40; the peak of init containers is in test_demand and row 57",
    44: "quota, as 40; the peak of init containers is in test_demand and row 57",
    45: "quota that follows running pods, as 40",
    46: "quota of zero, as 40; a size of zero is row 53",
    47: "quota edited in use, as 40",
    48: "no sizes in percent",
    51: "no sizes in percent; sums beyond an int64 are in test_demand",
    58: "placement at binding: the free memory of each GPU",
    60: "no GPU is set aside on its node's annotation",
    68: "HTTP: tests/server",
    72: "HTTP: tests/server",
    74: "the node agent: usable memory in whole MiB",
    75: "policy files: tests/adapters/policy",
    76: "placement at binding: several GPUs",
    78: "placement at binding: the sum on one GPU",
    79: "quota, as 40; a share beside a MIG slice is row 3",
    80: "placement at binding; who sees the GPU is row 29",
    81: "a whole cluster with its scheduler: tests/cluster",
}
TESTED: set[int] = set()


def row(number: int, peer: str, words: str, *values: Any):
    """Name a case by its row, and note that the row is tested."""
    TESTED.add(number)
    return pytest.param(*values, id=f"row-{number:02}-{peer}-{words.replace(' ', '-')}")


def seeing(value: str | None = None, source=None, name: str = "main", **more: Any):
    entry = {"name": VISIBLE, "value": value} if source is None else {"name": VISIBLE}
    return a_container(
        name, env=[entry if source is None else entry | {"valueFrom": source}], **more
    )


def limited(amount: Any, resource: str = "nvidia.com/gpu", name: str = "main", **more: Any):
    return a_container(name, resources={"limits": {resource: amount}}, **more)


def counted(count: str, memory: str | None = None, **more: Any):
    return a_pod(memory, annotations={COUNT: count}, **more)
