"""What probes and Prometheus read, also while others keep connections open."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from tests.sentry.worlds import OTHER
from webhook.adapters.kube.client import KubeError
from webhook.sentry import program
from webhook.sentry.audit import Unmanaged
from webhook.sentry.health import LATE_S, Health
from webhook.sentry.metrics import SentryMetrics
from webhook.sentry.observer import SeenGpu
from webhook.sentry.serving import MOST_CONNECTIONS, SILENT_S, serve
from webhook.sentry.settings import SentrySettings


@pytest.fixture
def clock():
    return [1000.0]


@pytest.fixture
def health(clock):
    return Health(lambda: clock[0])


@pytest.fixture
def metrics():
    return SentryMetrics("n1")


@pytest.fixture
def port(health, metrics):
    return serve("127.0.0.1", 0, health, metrics)


def ask(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_the_kernel_ends_it_where_it_is_stuck():
    stuck = (
        "import signal, time; from webhook.sentry import health; health.LATE_S = 0.5\n"
        "health.Health(alarm=signal.alarm); time.sleep(60)"
    )
    ended = subprocess.run([sys.executable, "-c", stuck], check=False)
    assert ended.returncode == -signal.SIGALRM


def test_each_pause_moves_the_end():
    alarms = []
    Health(alarm=alarms.append).expect(10.5)
    assert alarms == [60, 71]


def test_the_program_has_the_kernel_as_its_clock(monkeypatch):
    made = []
    monkeypatch.setattr(program, "Health", lambda **given: made.append(given) or Health())
    monkeypatch.setattr(program.signal, "signal", lambda *_: None)
    monkeypatch.setattr(program, "connect", no_api_server)
    assert program.sentry(SentrySettings("n1", "sys")) == program.FAILED
    assert made == [{"alarm": signal.alarm}]


def no_api_server(_):
    raise KubeError("none")


def test_it_is_live_while_looks_come_and_ready_while_they_are_worth_something(port, health, clock):
    assert ask(port, "/livez") == (200, "ok\n")
    assert ask(port, "/readyz") == (503, "no look yet\n")
    health.obstacle = ""
    health.expect(10.0)
    clock[0] += 10.0 + LATE_S
    assert [ask(port, path)[0] for path in ("/livez", "/readyz")] == [200, 200]
    clock[0] += 1.0
    assert ask(port, "/livez") == ask(port, "/readyz") == (503, "a look has been due for 61 s\n")


def test_other_paths_are_named(port):
    assert ask(port, "/") == (404, "this port has /livez, /readyz and /metrics\n")


def test_silent_connections_keep_nobody_else_out(port):
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(3 * MOST_CONNECTIONS)]
    assert ask(port, "/livez") == (200, "ok\n")
    silent[0].settimeout(SILENT_S / 2)
    assert silent[0].recv(1) == b""  # the oldest was closed
    for one in silent:
        one.close()


def samples(metrics):
    text = metrics.exposition().decode()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


UNMANAGED = 'vramwarden_gpu_memory_unmanaged_bytes{gpu="1",node="n1",pod_uid="%s",uuid="gpu-abc"}'


def test_who_is_gone_leaves_no_figure_and_what_is_unknown_is_absent(metrics):
    before = samples(metrics)
    assert not [name for name in before if "unmanaged" in name or "last_look" in name]
    gpu = SeenGpu("GPU-ABC", 1, 0)
    metrics.show(5.0, (Unmanaged(gpu, OTHER, 300), Unmanaged(gpu, "", 200)))
    shown = samples(metrics)
    assert {name: one for name, one in shown.items() if "unmanaged" in name} == {
        UNMANAGED % OTHER: 300.0,
        UNMANAGED % "": 200.0,
    }
    assert shown['vramwarden_sentry_last_look_timestamp_seconds{node="n1"}'] == 5.0
    metrics.show(6.0, ())
    assert not [name for name in samples(metrics) if "unmanaged" in name]


def test_looks_and_stops_are_counted(metrics):
    metrics.looked(0.02)
    metrics.stopped("pod")
    shown = samples(metrics)
    assert shown['vramwarden_sentry_look_duration_seconds_count{node="n1"}'] == 1.0
    assert shown['vramwarden_sentry_stops_total{node="n1",of="pod"}'] == 1.0
    assert shown['vramwarden_sentry_stops_total{node="n1",of="process"}'] == 0.0
