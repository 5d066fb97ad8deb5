"""POST /mutate over TLS, as by an API server: latency, throughput, CPU time per request."""

from __future__ import annotations

import statistics
from contextlib import ExitStack

from tests.bench import peers, settings
from tests.bench.baseline import sides
from tests.bench.figures import against, cpu_s, resident_bytes
from tests.bench.load import load
from tests.bench.servers import empty, on_core, temporary_folder, webhook

CONNECTIONS = (1, 8)


def bench_over_tls():
    with temporary_folder() as folder, ExitStack() as stack:
        servers = [stack.enter_context(webhook(side, folder)) for side in sides()]
        servers.append(stack.enter_context(empty(folder)))
        if peers.named():
            plane = peers.control_plane(stack)
            servers += [server for _, server in peers.all_started(stack, folder, plane)]
        print(
            f"POST of the recorded annotated pod over TLS, kept alive, each server on one core, "
            f"medians of {settings.ROUNDS} rounds of {settings.SECONDS:g} s; x: baseline / this"
        )
        for server in servers:
            patch = server.patch()
            said = f"{len(patch)} operations" if patch else "no patch"
            print(f"  {server.label} answers with {said}")
        figures = measured(servers)
        resident = {server.label: resident_bytes(server.pid) / 2**20 for server in servers}
    print(
        f"  {'':<15}{'connections':>12}{'p50 µs':>9}{'x':>7}{'p99 µs':>9}{'x':>7}"
        f"{'requests/s':>12}{'x':>7}{'CPU µs':>9}{'x':>7}"
    )
    for connections in CONNECTIONS:
        for server in servers:
            show(server.label, connections, figures)
    held = ", ".join(f"{label} {mib:.0f}" for label, mib in resident.items())
    print(f"  resident after that, MiB: {held}")


def measured(servers):
    """Return (p50 µs, p99 µs, µs per request, CPU µs per request) per round, alternating."""
    figures = {}
    with on_core(-1):
        for _ in range(settings.ROUNDS):
            for connections in CONNECTIONS:
                for server in servers:
                    before_s = cpu_s(server.pid)
                    run = load(server.target(), connections, duration_s=settings.SECONDS)
                    cpu_us = (cpu_s(server.pid) - before_s) / run.answers * 1e6
                    figures.setdefault((server.label, connections), []).append(
                        (run.percentile_us(0.5), run.percentile_us(0.99), 1e6 / run.rate, cpu_us)
                    )
    return figures


def show(label, connections, figures):
    columns = list(zip(*figures[label, connections], strict=True))
    baseline = figures.get(("baseline", connections))
    cells = ""
    for number, (column, width) in enumerate(zip(columns, (9, 9, 12, 9), strict=True)):
        value = statistics.median(column)
        cells += f"{1e6 / value if number == 2 else value:{width}.0f}"
        base = baseline and [figure[number] for figure in baseline]
        cells += against(base, column)
    print(f"  {label:<15}{connections:>12}{cells}")
