"""Responses to probes and Prometheus, also while many connections are open."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from dataclasses import replace

import pytest
from prometheus_client import generate_latest

from tests.sentry.fakes import OTHER
from tests.support.cluster_programs import wait_until
from webhook.adapters import plain_http
from webhook.adapters.bounds import MAX_PROBE_BYTES, MOST_CONNECTIONS
from webhook.adapters.kube.errors import KubeError
from webhook.core.kinds.nodes import GpuFigures, NodeFigures, PodFigures
from webhook.core.nvidia.drivers import ScannedGpu
from webhook.core.policy.model import EnforceBy
from webhook.node_programs import program as shell
from webhook.sentry import endpoints as module
from webhook.sentry import loop
from webhook.sentry.endpoints import LATE_S, MAX_PODS, Liveness, SentryMetrics, serve
from webhook.sentry.settings import SentrySettings
from webhook.server.metrics import Metrics
from webhook.server.operations import Health as ServerHealth
from webhook.server.operations import bind_port, create_app

SAMPLE_LIMIT = 5000  # of the chart's PodMonitor


@pytest.fixture
def clock():
    return [1000.0]


@pytest.fixture
def health(clock):
    return Liveness(lambda: clock[0])


@pytest.fixture
def metrics():
    return SentryMetrics("n1")


@pytest.fixture
def port(health, metrics):
    return serve("127.0.0.1", 0, health, metrics)


def ask(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_the_kernel_ends_it_where_it_is_stuck():
    stuck = "import signal; from webhook.sentry import endpoints; endpoints.LATE_S = 0.5\n"
    stuck += "endpoints.Liveness(alarm=signal.alarm); signal.pause()"
    ended = subprocess.run([sys.executable, "-c", stuck], check=False)
    assert ended.returncode == -signal.SIGALRM


def test_each_pause_moves_the_end():
    alarms = []
    Liveness(alarm=alarms.append).expect(10.5)
    assert alarms == [60, 71]


def test_the_program_has_the_kernel_as_its_clock(monkeypatch):
    made = []
    monkeypatch.setattr(loop, "Liveness", lambda **given: made.append(given) or Liveness())
    monkeypatch.setattr(shell.signal, "signal", lambda *_: None)
    monkeypatch.setattr(shell, "connect", no_api_server)
    assert loop.sentry(SentrySettings(node="n1", namespace="sys")) == shell.FAILED
    assert made == [{"alarm": signal.alarm}]


def no_api_server(_):
    raise KubeError("none")


def test_it_is_live_while_looks_come_and_ready_while_they_are_worth_something(port, health, clock):
    assert ask(port, "/livez") == (200, "ok\n")
    assert ask(port, "/readyz") == (503, "no scan yet\n")
    health.obstacle = ""
    health.expect(10.0)
    clock[0] += 10.0 + LATE_S
    assert [ask(port, path)[0] for path in ("/livez", "/readyz")] == [200, 200]
    clock[0] += 1.0
    assert ask(port, "/livez") == ask(port, "/readyz") == (503, "a scan has been due for 61 s\n")


def test_other_paths_are_named(port):
    assert ask(port, "/") == (404, "this port has /livez, /readyz and /metrics\n")


@pytest.fixture(params=["sentry", "webhook"])
def plain(request, port):
    """Return each program's plain HTTP port."""
    if request.param == "sentry":
        return port
    return bind_port("127.0.0.1", 0).start(create_app(ServerHealth(), Metrics(), dict))


def threads():
    return sum("process_request_thread" in item.name for item in threading.enumerate())


@pytest.mark.parametrize("source", ["127.0.0.1", "127.0.0.2"])
def test_silent_connections_keep_nobody_else_out(plain, source):
    before, address = threads(), ("127.0.0.1", plain)
    mine = socket.create_connection(address)
    silent = [
        socket.create_connection(address, 60, (source, 0)) for _ in range(3 * MOST_CONNECTIONS)
    ]
    assert ask(plain, "/livez") == (200, "ok\n")
    # The thread of a connection that was closed ends a moment later.
    wait_until("no more threads", lambda: threads() - before <= MOST_CONNECTIONS)
    assert silent[0].recv(1) == b""  # the oldest was closed
    mine.sendall(b"GET /livez HTTP/1.0\r\n\r\n")
    # A connection from an address without other connections is not closed.
    assert (mine.recv(12) == b"HTTP/1.0 200") is (source != "127.0.0.1")
    for item in (mine, *silent):
        item.close()


def test_a_request_has_an_end_however_it_comes(plain, monkeypatch):
    monkeypatch.setattr(plain_http, "REQUEST_S", 0.3)
    with socket.create_connection(("127.0.0.1", plain)) as slow:
        slow.sendall(b"GET /livez HTTP/1.1\r\n")
        slow.settimeout(0.05)
        came = None
        for _ in range(1200):  # a minute
            with contextlib.suppress(OSError):
                slow.sendall(b"x")
            with contextlib.suppress(TimeoutError):
                came = slow.recv(1)
                break
    assert came == b""


def test_headers_are_read_up_to_a_bound(plain):
    with socket.create_connection(("127.0.0.1", plain), timeout=60) as greedy:
        start = b"GET /livez HTTP/1.1\r\na: "
        greedy.sendall(start + b"x" * (MAX_PROBE_BYTES - len(start)))
        assert greedy.recv(12) == b"HTTP/1.0 200"


def test_however_often_metrics_are_asked_for_they_are_written_once_for_each_change(
    monkeypatch, metrics
):
    """Every pod of the cluster can request them, and formatting takes the loop's own core."""
    written = []
    monkeypatch.setattr(
        module, "generate_latest", lambda of: written.append(of) or generate_latest(of)
    )
    for change in (
        lambda: metrics.show(*shown(used_bytes=8), {}, 1.0),
        lambda: metrics.scanned(0.1),
        lambda: metrics.stopped("pod", EnforceBy.SENTRY),
        lambda: metrics.show(*shown(used_bytes=9), {}, 2.0),
    ):
        before = samples(metrics)
        change()
        after = [samples(metrics) for _ in range(3)]
        assert after[0] != before
        assert after == after[:1] * 3
    assert len(written) == 5


def samples(metrics):
    text = metrics.exposition().decode()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


UNMANAGED = 'vramwarden_gpu_memory_unmanaged_bytes{gpu="1",node="n1",pod_uid="%s",uuid="gpu-abc"}'


def shares(count, **figures):
    """Return this number of pods, for each GPU."""
    values = {"cap_bytes": 10, "used_bytes": 4, "peak_bytes": 5, "stops": 1} | figures
    return tuple(PodFigures(uid=f"u{n}", **({"processes": 2} | values)) for n in range(count))


def shown(*pods, gpus=("GPU-ABC",), on=None, **figures):
    """Return figures with these pods on each GPU, or on the first few, and the pods' names."""
    values = {"promised_bytes": 70, "used_bytes": 60, "free_bytes": -5, "unattributed_bytes": 3}
    found = tuple(
        GpuFigures(
            uuid=uuid,
            index=1 + n,
            product="H200",
            total_bytes=100,
            usable_bytes=90,
            pods=pods if on is None or n < on else (),
            **(values | figures),
        )
        for n, uuid in enumerate(gpus)
    )
    names = {pod.uid: f"team/p{pod.uid.removeprefix('u')}" for pod in pods}
    return NodeFigures(
        name="n1", observed_s=5.0, driver_version="580", enforcement="sidecar", gpus=found
    ), names


OF_GPU = 'gpu="1",node="n1",uuid="gpu-abc"'
OF_POD = 'gpu="1",namespace="%s",node="n1",pod="%s",uuid="gpu-abc"'


def seen(metrics):
    """Return the samples, except those of scans and of the sentry's own stops."""
    ours = "vramwarden_sentry_"
    return {name: sample for name, sample in samples(metrics).items() if not name.startswith(ours)}


def test_who_is_gone_leaves_no_figure_and_what_is_unknown_is_absent(metrics):
    assert seen(metrics) == {}
    gpu = ScannedGpu(uuid="GPU-ABC", product="H200", index=1, usable_bytes=None)
    metrics.show(*shown(), {gpu: {OTHER: 300, "": 200}}, 5.0)
    found = samples(metrics)
    assert {name: item for name, item in found.items() if "unmanaged" in name} == {
        UNMANAGED % OTHER: 300.0,
        UNMANAGED % "": 200.0,
    }
    last = 'vramwarden_sentry_last_scan_timestamp_seconds{node="n1"}'
    assert found[last] == 5.0
    metrics.show(*shown(gpus=()), {}, None)
    assert seen(metrics) == {}
    assert samples(metrics)[last] == 5.0


def test_every_figure_of_a_gpu_and_of_a_pod_has_its_name(metrics):
    metrics.show(*shown(*shares(1)), {}, 5.0)
    info = 'driver_version="580",enforcement="sidecar",gpu="1",node="n1",product="H200"'
    pod = OF_POD % ("team", "p0")
    assert seen(metrics) == {
        f'vramwarden_gpu_info{{{info},uuid="gpu-abc"}}': 1.0,
        f"vramwarden_gpu_healthy{{{OF_GPU}}}": 1.0,
        f"vramwarden_gpu_memory_total_bytes{{{OF_GPU}}}": 100.0,
        f"vramwarden_gpu_memory_usable_bytes{{{OF_GPU}}}": 90.0,
        f"vramwarden_gpu_memory_promised_bytes{{{OF_GPU}}}": 70.0,
        f"vramwarden_gpu_memory_used_bytes{{{OF_GPU}}}": 60.0,
        f"vramwarden_gpu_memory_free_bytes{{{OF_GPU}}}": -5.0,
        f"vramwarden_gpu_memory_unattributed_bytes{{{OF_GPU}}}": 3.0,
        f"vramwarden_pod_memory_cap_bytes{{{pod}}}": 10.0,
        f"vramwarden_pod_memory_used_bytes{{{pod}}}": 4.0,
        f"vramwarden_pod_memory_peak_bytes{{{pod}}}": 5.0,
        f"vramwarden_pod_processes{{{pod}}}": 2.0,
        'vramwarden_pod_stops_total{namespace="team",node="n1",pod="p0"}': 1.0,
    }


def test_what_is_not_known_has_no_series(metrics):
    unknown = {"promised_bytes": None, "used_bytes": None, "free_bytes": None}
    (share,) = shares(1, used_bytes=None, peak_bytes=None, stops=None, processes=None)
    metrics.show(*shown(share, **unknown, unattributed_bytes=None), {}, 5.0)
    assert sorted(name.partition("{")[0] for name in seen(metrics)) == [
        "vramwarden_gpu_healthy",
        "vramwarden_gpu_info",
        "vramwarden_gpu_memory_total_bytes",
        "vramwarden_gpu_memory_usable_bytes",
        "vramwarden_pod_memory_cap_bytes",
    ]


def test_pods_beyond_the_most_are_summed_without_a_peak(metrics):
    metrics.show(*shown(*shares(MAX_PODS + 3)), {}, 5.0)
    found = seen(metrics)
    other = OF_POD % ("_other", "_other")
    assert {name: item for name, item in found.items() if "_other" in name} == {
        f"vramwarden_pod_memory_cap_bytes{{{other}}}": 30.0,
        f"vramwarden_pod_memory_used_bytes{{{other}}}": 12.0,
        f"vramwarden_pod_processes{{{other}}}": 6.0,
        'vramwarden_pod_stops_total{namespace="_other",node="n1",pod="_other"}': 3.0,
    }
    caps = [name for name in found if "pod_memory_cap" in name]
    assert len(caps) == MAX_PODS + 1
    assert f'pod="p{MAX_PODS - 1}"' in caps[-2]
    metrics.show(*shown(*shares(MAX_PODS + 1), PodFigures(uid="z", cap_bytes=10)), {}, 5.0)
    assert f"vramwarden_pod_memory_used_bytes{{{other}}}" not in seen(metrics)


def test_a_full_node_stays_below_what_prometheus_takes(metrics):
    gpus = tuple(f"GPU-{n}" for n in range(64))
    gpu = ScannedGpu(uuid="GPU-0", product="H200", index=1, usable_bytes=None)
    unmanaged = {gpu: {f"u{n}": n + 1 for n in range(2000)}}
    pods = shares(300, idle_since_s=1.0)
    metrics.show(*shown(*pods, gpus=gpus), unmanaged, 5.0)
    assert len(samples(metrics)) <= SAMPLE_LIMIT
    metrics.show(*shown(*pods, gpus=gpus, on=4), unmanaged, 5.0)
    assert 4000 < len(samples(metrics)) <= SAMPLE_LIMIT


def test_for_how_long_a_pod_does_nothing_is_told_once_and_never_as_0_of_who_is_not_known(metrics):
    idle, unknown = shares(2)
    pods = (replace(idle, idle_since_s=2.0), unknown)
    metrics.show(*shown(*pods, gpus=("GPU-A", "GPU-B")), {}, 5.0)
    name = "vramwarden_sentry_pod_idle_seconds"
    found = {key: sample for key, sample in samples(metrics).items() if key.startswith(name)}
    assert found == {f'{name}{{namespace="team",node="n1",pod="p0"}}': 3.0}


def test_without_series_of_pods_no_pod_is_named():
    metrics = SentryMetrics("n1", of_pods=False)
    metrics.show(*shown(*shares(3)), {}, 5.0)
    assert "vramwarden_gpu_memory_used_bytes" in str(seen(metrics))
    assert "team" not in metrics.exposition().decode()


def test_names_are_as_prometheus_wants_them(metrics, promtool):
    gpu = ScannedGpu(uuid="GPU-ABC", product="H200", index=1, usable_bytes=None)
    metrics.show(*shown(*shares(1)), {gpu: {"": 200}}, 5.0)
    assert promtool("check", "metrics", given=metrics.exposition().decode()) == (0, "")


def test_scans_and_stops_are_counted(metrics):
    metrics.scanned(0.02)
    metrics.stopped("pod", EnforceBy.SENTRY)
    shown = samples(metrics)
    assert shown['vramwarden_sentry_scan_duration_seconds_count{node="n1"}'] == 1.0
    stops = {
        labels: shown[f"vramwarden_sentry_stops_total{{{labels}}}"]
        for target in ("process", "pod")
        for by in ("Sidecar", "Sentry")
        for labels in [f'enforcer="{by}",node="n1",target="{target}"']
    }
    assert {labels for labels, count in stops.items() if count} == {
        'enforcer="Sentry",node="n1",target="pod"'
    }
