"""Cost of a binding and of a change to a node or pod, by number of nodes and pods."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.bench.agent import bench_agent
from tests.bench.figures import row
from tests.bench.placement_memory import bench_memory

NODES, PODS = (10, 100, 1000), (100, 1000, 10_000)
CROWDED, WAITING = (10, 100, 1000), (10, 100, 1000)


def bench_placement() -> None:
    """Print the costs by nodes and pods, the agent's cost, and a replica's memory."""
    print(
        "one replica: MiB resident; ms for the first list; us for a stranger's binding, and for one"
    )
    print(
        "of ours, which asks so often; us for an event of a node, of a pod, and of one that ended,"
    )
    print(
        "with what is written for it; ms for a round of tidying. What the client sends counts, what"
    )
    print("answers does not")
    heads = "nodes pods MiB list stranger binding asks node pod ended round"
    row(*heads.split())
    for nodes in NODES:
        for pods in PODS:
            row(nodes, pods, *_in_a_child("measured", nodes, pods))
    print("all on one node of 8 GPUs: us per binding, bytes of its list")
    row("pods", "binding", "bytes")
    for pods in CROWDED:
        row(pods, *_in_a_child("crowded", 1, pods))
    print("many wait on one full node: ms, reads and writes for a pod that ends there each 30 s")
    row("waiting", "ms", "reads", "writes")
    for many in WAITING:
        row(many, *_in_a_child("waiting", 1, many))
    bench_agent()
    bench_memory()


def _in_a_child(function: str, *arguments: int) -> list[float]:
    """Measure in a new process, whose memory contains nothing else."""
    command = [sys.executable, "-m", "tests.bench.placement_rows", function, *map(str, arguments)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


if __name__ == "__main__":
    bench_placement()
