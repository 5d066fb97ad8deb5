"""Cost of `vramwarden top` with 1000 nodes of 8 GPUs each, on a real API server."""

from __future__ import annotations

import gzip
import os
import resource
import subprocess
import sys
import time

from tests.bench.figures import children_s
from tests.support.clusters import NOW_S, a_cluster, many_nodes
from tests.support.control_planes import MISSING, ControlPlane, available
from tests.support.gpu_nodes import GPU_NODES_PATH, define, store
from webhook.adapters.kube.connection import connect
from webhook.tools.snapshot.cluster import read_gpu_nodes
from webhook.tools.top.report import build_report
from webhook.tools.top.terminal import Terminal, as_lines

NODES = 1000
ROUNDS = 3
_MIB = 2**20


def bench_top():
    if not available():
        print(MISSING)
        return
    with ControlPlane() as control_plane:
        define(control_plane.api)
        store(control_plane.api, a_cluster(many_nodes(NODES)).figures)
        _parts(control_plane)
        _whole(control_plane)


def _parts(control_plane):
    listed = control_plane.api._pool.request(
        "GET", f"{control_plane.api.url}{GPU_NODES_PATH}?resourceVersion=0", retries=False
    ).data
    packed = len(gzip.compress(listed, 1))
    print(
        f"list of {NODES} GPUNodes of 8 GPUs with 4 pods: {len(listed) / _MIB:.1f} MiB, "
        f"{packed / _MIB:.2f} MiB as gzip"
    )
    kube = connect(control_plane.kubeconfig)
    read_s, join_s, draw_s = [], [], []
    for _ in range(ROUNDS):
        started_s = time.perf_counter()
        nodes = read_gpu_nodes(kube)
        read_s.append(time.perf_counter() - started_s)
        started_s = time.perf_counter()
        report = build_report(nodes, [], NOW_S)
        join_s.append(time.perf_counter() - started_s)
        started_s = time.perf_counter()
        as_lines(report, Terminal(width=120))
        draw_s.append(time.perf_counter() - started_s)
    print(
        f"best of {ROUNDS}: asked, received and read in {min(read_s):.2f} s, "
        f"joined in {min(join_s):.2f} s, drawn in {min(draw_s):.2f} s"
    )


def _whole(control_plane):
    command = [sys.executable, "-m", "webhook.cli", "top"]
    for options in ([], ["-o", "wide"], ["-o", "json"]):
        taken_s, cpu_s = [], []
        for _ in range(ROUNDS):
            started_s, before_s = time.perf_counter(), children_s()
            subprocess.run(
                [*command, *options],
                env={**os.environ, "KUBECONFIG": str(control_plane.kubeconfig)},
                stdout=subprocess.DEVNULL,
                check=True,
            )
            taken_s.append(time.perf_counter() - started_s)
            cpu_s.append(children_s() - before_s)
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        said = " ".join(["top", *options])
        print(
            f"{said}: {min(taken_s):.2f} s from start to end, {min(cpu_s):.2f} s of CPU, "
            f"{peak:.0f} MiB at most so far"
        )
