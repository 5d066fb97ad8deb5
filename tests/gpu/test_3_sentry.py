"""The sentry on a real GPU: which processes it stops, how fast, and which processes ran."""

import contextlib
import json
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.gpu.machine import MIB, NAMESPACE, ROOT, Program, cgroup_root, cgroups, mib, within
from tests.support.api_server import ApiServer
from tests.support.measurement_table import answer

UIDS = [f"0000000{number}-1111-2222-3333-444444444444" for number in range(5)]
"""UIDs of the sentry's pod, two pods by Sidecar without a sidecar, and two by Sentry."""

CAP_BYTES = 2048 * MIB
LATE_S, GRACE_S = 1.5, 2.0
WAIT_S = 40
POD = (*NAMESPACE, "sh", "-c", '"$0" "$@"; exit $?')


def lines(gpu):
    """Return the node's assignments for pods with a cap."""
    return "\n".join(
        json.dumps({
            "uid": uid, "pod": f"team/{uid[:8]}", "gpus": [gpu], "memory": CAP_BYTES, "since": 1,
            "cap": CAP_BYTES, "tolerance": 0, "late_s": LATE_S,
            "by": "Sidecar" if uid in UIDS[:3] else "Sentry", "grace_s": GRACE_S, "act": True,
        })
        for uid in UIDS[1:]
    )  # fmt: skip


@pytest.fixture
def node(gpu, tmp_path):
    if not cgroup_root():
        pytest.skip("no cgroup of version 2 can be made here")
    paths = [
        f"kubepods/burstable/pod{uid}/{container}"
        for uid in UIDS
        for container in (uid[7] * 64, "f" * 64)
    ]
    with cgroups(*paths) as made, ApiServer(tmp_path) as api:
        api.put("/api/v1/nodes/n1", {"metadata": {"uid": "node-uid", "labels": {}}})
        data = {"assignments": lines(gpu)}
        api.put("/api/v1/namespaces/sys/configmaps/gpu-assignments-n1", {"data": data})
        for uid in UIDS[1:]:
            api.put(f"/api/v1/namespaces/team/pods/{uid[:8]}", {"metadata": {"uid": uid}})
        with (tmp_path / "log").open("w") as log:
            sentry = subprocess.Popen(
                [*within(container(made, 0)), sys.executable, "-m", "webhook.cli", "sentry",
                 "--node=n1", "--namespace=sys", f"--pod-uid={UIDS[0]}", "--metrics-port=0",
                 f"--kubeconfig={api.kubeconfig}"],
                stdout=log, cwd=ROOT,
            )  # fmt: skip
            try:
                yield api, made, tmp_path / "log"
            finally:
                sentry.terminate()
                sentry.wait(WAIT_S)


def seen_of(api, uid):
    """Return a pod's figures from the newest GPUNode."""
    nodes = [body for _, path, body in api.sent("POST", "PATCH") if "/gpunodes" in path]
    pods = [pod for gpu in nodes[-1]["status"]["gpus"] for pod in gpu["pods"]] if nodes else []
    return next((pod for pod in pods if pod["uid"] == uid), {})


def container(made, number, *, sandbox=False):
    """Return the cgroup of a pod's program or of its sandbox."""
    return made[2 * number + sandbox]


@pytest.mark.parametrize("shares", [False, True], ids=["own", "shared"])
@pytest.mark.parametrize("handles", [False, True], ids=["plain", "handler"])
def test_by_sentry_a_program_over_its_cap_is_stopped_without_a_sidecar(
    handles, shares, node, nvml, gpu
):
    """The program is PID 1 of its own PID namespace, or of its sandbox's."""
    _, made, log = node
    with contextlib.ExitStack() as ending:
        sandboxes = [sandbox(container(made, number, sandbox=True)) for number in (3, 4)]
        for found_sandbox in sandboxes:
            ending.enter_context(found_sandbox)
            ending.callback(found_sandbox.kill)
        before = NAMESPACE
        if shares:
            (first,) = wait_for(lambda: children(sandboxes[1].pid))
            before = ("nsenter", f"--target={first}", "--pid", "--mount")  # to use its /proc
        neighbour = Program(*NAMESPACE, cgroup=container(made, 3))
        ending.callback(neighbour.end)
        loud = Program(*before, cgroup=container(made, 4))
        ending.callback(loud.end)
        neighbour.does(f"alloc {512 * MIB}")
        assert not handles or loud.does("handle") == "ok"
        assert wait_for(lambda: asked(log, "readyz") == "ok\n")
        used_bytes = nvml.device_used_bytes(gpu)
        grown_s = time.monotonic()
        loud.does(f"alloc {4096 * MIB}")
        with contextlib.suppress(subprocess.TimeoutExpired):
            loud.process.wait(WAIT_S)
        ended_s = time.monotonic() - grown_s
        wait_for(lambda: nvml.device_used_bytes(gpu) <= used_bytes, 0.02)
        given_back_s = time.monotonic() - grown_s
        which = "handles SIGTERM" if handles else "has no handler"
        where = "the sandbox's" if shares else "its own"
        answer(
            f"by sentry, {which}, in {where} namespace: excess to its end, to memory given back",
            f"{ended_s:.2f} s, {given_back_s:.2f} s",
        )
        assert loud.process.poll() is not None, log.read_text()
        assert (ended_s >= LATE_S + GRACE_S) is handles, log.read_text()
        assert nvml.device_used_bytes(gpu) <= used_bytes
        events = [json.loads(line) for line in log.read_text().splitlines()]
        signals = ["stopping a process", *["killing a process"] * handles]
        assert [event["msg"] for event in events if event.get("uid") == UIDS[4]][
            : len(signals)
        ] == signals
        assert not any(event.get("uid") == UIDS[3] for event in events)
        assert [found_sandbox.poll() for found_sandbox in (*sandboxes, neighbour.process)] == [
            None
        ] * 3


def sandbox(cgroup):
    """Start the first process of a PID namespace in its own cgroup."""
    return subprocess.Popen([*within(cgroup), *NAMESPACE, "sleep", "600"])


def children(pid):
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_who_has_no_sidecar_is_stopped_and_its_neighbour_is_seen(node):
    api, made, log = node
    honest, over = container(made, 1), container(made, 2)
    quiet, loud = Program(*POD, cgroup=honest), Program(*POD, cgroup=over)
    quiet.does(f"alloc {512 * MIB}")
    wait_for(lambda: "usedMi" in seen_of(api, UIDS[1]))
    grown_s = time.monotonic()
    loud.does(f"alloc {4096 * MIB}")
    with contextlib.suppress(subprocess.TimeoutExpired):
        loud.process.wait(WAIT_S)
    assert loud.process.poll() == 128 + 9, log.read_text()
    answer(
        "no sidecar: excess to the pod's end by the sentry", f"{time.monotonic() - grown_s:.1f} s"
    )
    assert quiet.process.poll() is None
    used = seen_of(api, UIDS[1])["usedMi"] * MIB
    answer("a pod with 512Mi allocated, by GPUNode", mib(used))
    assert 512 * MIB <= used < CAP_BYTES
    loud.end()
    began_s = time.monotonic()
    idle = wait_for(lambda: idle_s(log).get(UIDS[1][:8]))
    answer(
        "held 512Mi and did nothing: first told after, then",
        f"{time.monotonic() - began_s:.0f} s, {idle:.0f} s",
    )
    quiet.does("write 12 s")
    assert wait_for(lambda: UIDS[1][:8] not in idle_s(log))
    quiet.end()


def wait_for(check, every_s=0.2):
    """Return the result of a check when it is true, or the last result."""
    deadline_s = time.monotonic() + WAIT_S
    while not (found := check()) and time.monotonic() < deadline_s:
        time.sleep(every_s)
    return found


def asked(log, path):
    """Return the response from the sentry's port, or "" without a response."""
    try:
        port = json.loads(log.read_text().splitlines()[0])["port"]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=5) as answered:
            return answered.read().decode()
    except (IndexError, OSError, ValueError):  # the sentry is still starting
        return ""


def idle_s(log):
    """Return pods' idle times from the sentry's metrics."""
    families = text_string_to_metric_families(asked(log, "metrics"))
    return {
        sample.labels["pod"]: sample.value
        for family in families
        for sample in family.samples
        if sample.name == "vramwarden_sentry_pod_idle_seconds"
    }
