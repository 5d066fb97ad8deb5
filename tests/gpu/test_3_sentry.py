"""The sentry on a real GPU: it stops who has no sidecar, and sees who ran."""

import contextlib
import json
import subprocess
import sys
import time
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.gpu.machine import (
    MIB,
    NAMESPACE,
    ROOT,
    Program,
    answer,
    cgroup_root,
    cgroups,
    mib,
    within,
)
from tests.support.api_server import ApiServer

UIDS = [f"0000000{number}-1111-2222-3333-444444444444" for number in range(3)]
CAP_BYTES = 2048 * MIB
WAIT_S = 40
POD = (*NAMESPACE, "sh", "-c", '"$0" "$@"; exit $?')
"""The first process of a pod's namespace is its sandbox's, which nobody stops."""


def lines(gpu):
    """Return the node's list: two pods with a cap, which a sidecar would have held."""
    return "\n".join(
        json.dumps({
            "uid": uid, "pod": f"team/{uid[:8]}", "gpus": [gpu], "memory": CAP_BYTES, "since": 1,
            "cap": CAP_BYTES, "tolerance": 0, "late_s": 1.5,
            "by": "Sidecar", "grace_s": 1.0, "act": True,
        })
        for uid in UIDS[1:]
    )  # fmt: skip


@pytest.fixture
def node(gpu, tmp_path):
    if not cgroup_root():
        pytest.skip("no cgroup of version 2 can be made here")
    paths = [f"kubepods/burstable/pod{uid}/{uid[7] * 64}" for uid in UIDS]
    with cgroups(*paths) as made, ApiServer(tmp_path) as api:
        api.put("/api/v1/nodes/n1", {"metadata": {"uid": "node-uid", "labels": {}}})
        data = {"assignments": lines(gpu)}
        api.put("/api/v1/namespaces/sys/configmaps/gpu-assignments-n1", {"data": data})
        for uid in UIDS[1:]:
            api.put(f"/api/v1/namespaces/team/pods/{uid[:8]}", {"metadata": {"uid": uid}})
        with (tmp_path / "log").open("w") as log:
            sentry = subprocess.Popen(
                [*within(made[0]), sys.executable, "-m", "webhook.cli", "sentry", "--node=n1",
                 "--namespace=sys", f"--pod-uid={UIDS[0]}", "--metrics-port=0",
                 f"--kubeconfig={api.kubeconfig}"],
                stdout=log, cwd=ROOT,
            )  # fmt: skip
            try:
                yield api, made, tmp_path / "log"
            finally:
                sentry.terminate()
                sentry.wait(WAIT_S)


def seen_of(api, uid):
    """Return what the newest GPUNode says of a pod."""
    nodes = [body for _, path, body in api.sent("POST", "PATCH") if "/gpunodes" in path]
    pods = [pod for gpu in nodes[-1]["status"]["gpus"] for pod in gpu["pods"]] if nodes else []
    return next((pod for pod in pods if pod["uid"] == uid), {})


def test_who_has_no_sidecar_is_stopped_and_its_neighbour_is_seen(node):
    api, (_, honest, over), log = node
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


def wait_for(check):
    """Return what a check returns once it is true, or at last."""
    deadline_s = time.monotonic() + WAIT_S
    while not (found := check()) and time.monotonic() < deadline_s:
        time.sleep(0.5)
    return found


def idle_s(log):
    """Return what the sentry's metrics say of idleness, by pod."""
    port = json.loads(log.read_text().splitlines()[0])["port"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answered:
        text = answered.read().decode()
    families = text_string_to_metric_families(text)
    return {
        one.labels["pod"]: one.value
        for family in families
        for one in family.samples
        if one.name == "vramwarden_sentry_pod_idle_seconds"
    }
