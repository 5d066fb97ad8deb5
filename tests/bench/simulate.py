"""What `vramwarden simulate` takes, by the size of the cluster in a file."""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.figures import children_s, row
from tests.support.foreign_clusters import a_pod, gfd_node, hami, kai, listed, whole

PODS = (1000, 5000, 20_000, 50_000)
PODS_PER_NODE = 25
MEMORY_MIB = {24576: 4, 40960: 1, 49140: 2, 81920: 3}


_PROGRAM = """
import sys
from webhook.cli.main import main
try:
    main()
finally:
    from pathlib import Path
    from tests.bench.figures import kib
    print(kib(Path("/proc/self/status"), "VmHWM"), file=sys.stderr)
"""


def bench_simulate():
    row("pods", "nodes", "wall s", "CPU s", "MiB")
    for pods in PODS:
        nodes = pods // PODS_PER_NODE
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "cluster.json"
            file.write_text(listed(*generate(pods, nodes)))
            sizes = Path(folder) / "sizes.csv"
            sizes.write_text("workload,memory\nwhole-*,8Gi\n")
            arguments = ["simulate", "--nodes", str(file), "--sizes", str(sizes)]
            started_s, before_s = time.perf_counter(), children_s()
            done = subprocess.run(
                [sys.executable, "-c", _PROGRAM, *arguments],
                capture_output=True,
                text=True,
                check=True,
            )
            wall_s, cpu_s = time.perf_counter() - started_s, children_s() - before_s
        row(pods, nodes, f"{wall_s:.2f}", f"{cpu_s:.2f}", int(done.stderr) // 1024)


def generate(pods, nodes, seed=0):
    """Yield nodes and pods of several products; half of the pods' memory fits."""
    drawn = random.Random(seed)
    for number in range(nodes):
        (memory,) = drawn.choices([*MEMORY_MIB], [*MEMORY_MIB.values()])
        yield gfd_node(
            f"n{number}", drawn.choice([2, 4, 8]), str(memory), str(memory), zone=f"z{number % 3}"
        )
    for number in range(pods):
        node, kind = f"n{drawn.randrange(nodes)}", drawn.random()
        if kind < 0.5:
            pod = whole(f"whole-{number}", node)
        elif kind < 0.85:
            pod = hami(f"hami-{number}", node, drawn.choice([2, 4, 8, 16, 30, 40]) * 1024)
        elif kind < 0.95:
            pod = kai(f"kai-{number}", node, **{"gpu-memory": drawn.randrange(1000, 40_000)})
        else:
            pod = a_pod(f"two-{number}", node, **{"nvidia.com/gpu": 2, "nvidia.com/gpumem": 8192})
        if drawn.random() < 0.1:
            pod["spec"]["nodeSelector"] = {"zone": drawn.choice(["z0", "z1", "z2"])}
        yield pod
