"""Effect of attacks on a replica: another client's latencies in ms, and the replica's memory.

Client, attackers and replica share this machine, so the figures are worse than in a cluster.
"""

from __future__ import annotations

import contextlib
import os
import socket
import statistics
import tempfile
from pathlib import Path

from tests.bench.figures import percentile
from tests.support.hostile_requests import (
    BODIES,
    Damage,
    after,
    crowding,
    peak_bytes,
    posting,
    slow,
    watched,
)
from tests.support.server_process import running

SECONDS = float(os.environ.get("BENCH_SECONDS", "4"))
CLIENTS = 4


def show(title, server, damage):
    cells = ""
    for seconds in damage.waits_s.values():
        figures = (statistics.median(seconds), percentile(seconds, 0.99), max(seconds))
        cells += "".join(f"{figure * 1e3:8.1f}" for figure in figures)
    told = " ".join(f"{status}: {count}" for status, count in sorted(damage.told.items()))
    print(f"  {title:<18}{cells}{peak_bytes(server) / 2**20:8.0f}  {told}")


def bench_attacks():
    print()
    print(f"a bystander's wait while {CLIENTS} clients post, p50 p99 max in ms; peak memory in MiB")
    print(f"  {'':<18}{'review':>24}{'binding':>24}{'/livez':>24}{'MiB':>8}  attackers were told")
    bodies = {"nothing": None, **{name: make() for name, make in BODIES.items()}}
    for title, body in bodies.items():
        with tempfile.TemporaryDirectory() as folder, running(Path(folder)) as server:
            damage = Damage()
            clients = CLIENTS if body else 0
            with posting(server, body or b"", clients, damage.told):
                watched(server, damage, after(SECONDS))
            show(title, server, damage)
    program = "tests.server.slow_judge"
    with tempfile.TemporaryDirectory() as folder, running(Path(folder), program=program) as server:
        damage = Damage()
        with posting(server, slow(3, note="x" * 10**5), CLIENTS, damage.told):
            watched(server, damage, after(SECONDS))
        show("3 s each", server, damage)
    with (
        tempfile.TemporaryDirectory() as folder,
        running(Path(folder)) as server,
        contextlib.ExitStack() as stack,
    ):
        for _ in range(1100):
            address = ("127.0.0.1", server.port)
            held = socket.create_connection(address, source_address=("127.0.0.2", 0))
            stack.enter_context(held)
        damage = watched(server, Damage(), after(SECONDS))
        show("1100 connections", server, damage)
    for addresses in (1, 100):
        with (
            tempfile.TemporaryDirectory() as folder,
            running(Path(folder), "--api-server=127.0.0.1/32") as server,
            crowding(server, addresses),
        ):
            damage = watched(server, Damage(), after(SECONDS), on_new_connections=True)
            show(f"crowd of {addresses}", server, damage)
