"""Time until a replica is ready, and its memory when idle and after load."""

from __future__ import annotations

import statistics
import time

from tests.bench import settings
from tests.bench.baseline import sides
from tests.bench.figures import against, resident_bytes
from tests.bench.load import load
from tests.bench.servers import (
    RECORDED,
    Server,
    on_core,
    replica,
    temporary_folder,
    wait_until_ready,
)

CONNECTIONS = 8
STARTS = min(settings.ROUNDS, 5)


def bench_replicas():
    both = sides()
    taken = {side.label: [] for side in both}
    with temporary_folder() as folder:
        for number in range(STARTS + 1):
            for side in both:
                figures = lived(side, folder)
                if number:  # each first start compiles, and the very first creates certificates
                    taken[side.label].append(figures)
    print(
        f"one replica on one core, medians of {STARTS} starts; load: "
        f"{CONNECTIONS} connections for {settings.SECONDS:g} s; x: baseline / this"
    )
    print(f"  {'':<10}{'ready ms':>10}{'x':>7}{'idle MiB':>10}{'x':>7}{'loaded MiB':>12}{'x':>7}")
    for side in both:
        cells = ""
        for number, width in enumerate((10, 10, 12)):
            own, base = (
                [figures[number] for figures in taken.get(label, ())]
                for label in (side.label, "baseline")
            )
            cells += f"{statistics.median(own):{width}.0f}"
            cells += against(base, own)
        print(f"  {side.label:<10}{cells}")


def lived(side, folder):
    """Start a replica, load and stop it; return ms until ready, MiB idle, and MiB after load."""
    with on_core(-1):
        started_s = time.perf_counter()
        with replica(side, folder) as (process, port, operations_port):
            wait_until_ready(side.label, process, operations_port)
            ready_ms = (time.perf_counter() - started_s) * 1e3
            time.sleep(0.5)
            idle = resident_bytes(process.pid)
            ca = folder / "certs/ca.crt"
            server = Server(side.label, process.pid, port, ca, RECORDED.read_bytes())
            load(server.target(), CONNECTIONS, duration_s=settings.SECONDS)
            return ready_ms, idle / 2**20, resident_bytes(process.pid) / 2**20
