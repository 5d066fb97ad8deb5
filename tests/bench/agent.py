"""Cost of an agent for its node, and of 1,000 idle agents for the API server."""

from __future__ import annotations

import contextlib
import gc
import json
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median

from tests.agent.stepped import CDI, NODE
from tests.bench.figures import kib, row
from tests.bench.stored_cluster import GIB, SINCE_S, StoredCluster, event
from tests.support.api_server import ApiServer
from tests.support.cluster_programs import wait_until
from tests.support.nvml_stub import build, compiler
from tests.support.scripted_nvml import AgentProcess, ScriptedNvml, a_device
from webhook.adapters.journal import Journal
from webhook.adapters.kube import client
from webhook.adapters.kube.follow import Collection, follow
from webhook.adapters.kube.node_objects import WATCH_S, AssignmentsSeen, NodeSeen
from webhook.agent.loop import LONGEST_WAIT_S, Agent
from webhook.agent.scanner import scan
from webhook.agent.settings import INTERVAL_S, AgentSettings
from webhook.core.placement.assignment_codec import read_assignments, write_assignments
from webhook.core.placement.assignments import Assignment

GPUS, PODS, ROUNDS, TIMES = (1, 8, 16), 100, 5, 200
HOUR_S = 3600.0


def bench_agent() -> None:
    """Print a table by number of GPUs, and the requests of many agents."""
    print(f"\nnode agent: us of CPU; a list is of {PODS} pods")
    heads = ("GPUs", "turn", "scan", "node event", "own echo", "list", "writes", "ms per hour")
    row(*heads, width=11)
    for gpus in GPUS:
        row(gpus, *_measured(gpus), width=11)
    asked = _asked_in_an_hour()
    print(
        "1,000 idle agents, per minute: "
        + ", ".join(f"{count / 60 * 1000:,.0f} {what}" for what, count in asked.items())
    )
    if compiler():
        print(f"its process, idle: {_resident()}")


def _measured(gpus: int) -> list[float]:
    nvml = ScriptedNvml(*(a_device(f"{n:036}", 140_000, n) for n in range(gpus)))
    api = ApiServer()
    api.put(NODE, json.loads(StoredCluster(1, 0).node_text(0)))
    journal = Journal(lambda _line: None)
    with tempfile.TemporaryDirectory() as folder:
        settings = AgentSettings(node="n", access=CDI, namespace="sys", run_folder=folder)
        agent = Agent(settings, api.kube(), nvml, journal)

        def turn(*messages):
            agent._beat()
            for message in messages:
                agent._on_report(message)
            now_s = time.monotonic()
            agent._reconcile(now_s)
            agent._check_driver(now_s)

        def a_scan():
            turn(scan(nvml))

        def an_event():
            return event("MODIFIED", json.dumps(api.put(NODE, api.objects[NODE])))

        def heard(line):
            turn(NodeSeen(client._read_event(line, complete=True)[1]))

        def a_list(data):
            turn(AssignmentsSeen(read_assignments(data)[0]))

        turn(NodeSeen(api.objects[NODE]), AssignmentsSeen({}))
        for _ in range(3):
            a_scan()
        turn(NodeSeen(api.objects[NODE]))
        sent = len(api.sent())
        figures = [
            _median_us(turn),
            _median_us(a_scan),
            _median_us(heard, an_event),
        ]
        writes = len(api.sent()) - sent
        agent._patched_s = float("inf")  # recent, however long this takes
        old = event(
            "MODIFIED", json.dumps(api.objects[NODE] | {"metadata": {"resourceVersion": "1"}})
        )
        figures.append(_median_us(heard, lambda: old))
        uuids = [gpu.uuid for gpu in agent._inventory.gpus]
        entries = {
            f"uid-{n}": Assignment(
                pod=f"team/p{n}", uuids=(uuids[n % gpus],), memory_bytes=GIB, since_s=SINCE_S
            )
            for n in range(PODS)
        }
        figures.append(_median_us(a_list, lambda: write_assignments(entries)))
    per_hour_us = figures[0] * HOUR_S / LONGEST_WAIT_S + figures[1] * HOUR_S / INTERVAL_S
    return [*(round(figure) for figure in figures), writes, round(per_hour_us / 1e3)]


def _median_us(work, make=None) -> float:
    found = []
    for _ in range(ROUNDS):
        given = [(make(),) if make else () for _ in range(TIMES)]
        gc.collect()
        started_s = time.thread_time()
        for item in given:
            work(*item)
        found.append((time.thread_time() - started_s) / TIMES * 1e6)
    return median(found)


class _OverError(BaseException):
    """Raised to end the hour."""


def _asked_in_an_hour() -> Counter:
    """Return an agent's requests per hour while it watches its node and its assignments."""
    quiet, now_s = ApiServer(), 0.0
    quiet.put("/api/v1/nodes/n", {})

    def wait(seconds):
        nonlocal now_s
        now_s += seconds
        if now_s > HOUR_S:
            raise _OverError

    def watch(request):
        wait(float(request.query["timeoutSeconds"]))

    quiet.fails("watch=", watch, forever=True)
    one = Collection(kube=quiet.kube(), path="/api/v1/nodes", project=lambda node: node, name="n")
    with contextlib.suppress(_OverError):
        follow(one, lambda _: None, watch_s=WATCH_S, clock=lambda: now_s, sleep=wait)
    asked = Counter("watch" if "watch" in request.query else "read" for request in quiet.asked)
    return asked + asked


def _resident() -> str:
    """Return the memory of a real agent with a driver for 8 GPUs."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with ApiServer(folder) as server:
            server.put("/api/v1/nodes/n", json.loads(StoredCluster(1, 0).node_text(0)))
            script = "driver 570.86.15\n" + "".join(
                f"gpu GPU-{n:036} total={140 * GIB} reserved={GIB}\n" for n in range(8)
            )
            options = ("--node=n", f"--kubeconfig={server.kubeconfig}")
            agent = AgentProcess(folder, build(folder), *options)
            agent.script(script)
            with agent:
                wait_until("the agent", lambda: "GPUs" in (folder / "agent.log").read_text())
                time.sleep(3)
                mib = kib(Path(f"/proc/{agent.process.pid}/status"), "VmRSS") / 1024
    return f"{mib:.0f} MiB resident"


if __name__ == "__main__":
    bench_agent()
