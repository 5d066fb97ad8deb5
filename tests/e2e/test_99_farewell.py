"""`helm test` passes. Then the release is uninstalled and no longer blocks anything."""

from __future__ import annotations

import contextlib
import time

from tests.e2e.pods import pod, statuses
from tests.support.control_planes import ApiError, wait_until
from tests.support.run_command import vramwarden
from webhook.names import NODE_SHARE_LABEL, PREFIX

GROUP = "/apis/admissionregistration.k8s.io/v1"
KINDS = (
    "mutatingwebhookconfigurations",
    "validatingwebhookconfigurations",
    "validatingadmissionpolicies",
    "validatingadmissionpolicybindings",
)


def test_helm_test_passes(release):
    began = time.monotonic()
    assert "Phase:          Succeeded" in release.test()
    print(f"helm test: {time.monotonic() - began:.1f} s")


def test_the_pod_under_its_cap_was_left_alone_all_the_time(team, quiet):
    found = team.wait_ready(quiet)
    assert {status["restartCount"] for status in statuses(found).values()} == {0}
    assert "over the VRAM cap" not in team.log(quiet, "vram-enforcer")


def test_after_helm_uninstall_pods_are_created_at_once(cluster, team, release):
    began = time.monotonic()
    release.uninstall()
    print(f"helm uninstall: {time.monotonic() - began:.1f} s")
    assert team.create(pod("plain", None, ["true"]))["metadata"]["uid"]
    for kind in filter(cluster.api.serves, KINDS):
        found = [item["metadata"]["name"] for item in cluster.api.list(f"{GROUP}/{kind}")]
        assert not [name for name in found if "vramwarden" in name]


def test_and_soon_after_so_are_those_that_ask_for_vram(cluster, team):
    """The API server needs a moment to forget a deleted ValidatingAdmissionPolicy."""
    asks = pod("asks", "1Gi", ["true"], schedulerName="nobody")
    began = time.monotonic()

    def created():
        with contextlib.suppress(ApiError):
            return team.create(asks)

    made = team.wait("a pod that asks for VRAM created", created, timeout=30)
    print(f"pods that ask for VRAM are created: {time.monotonic() - began:.1f} s")
    assert "initContainers" not in made["spec"]


def test_clean_removes_what_the_agent_wrote_on_nodes(cluster, release):
    """Helm does not wait for pods. While agents end, `clean` refuses to run."""

    def clean(*options):
        return vramwarden("clean", "--kubeconfig", cluster.kubeconfig, *options)

    def cleaned():
        done = clean()
        assert done.returncode in {0, 1}, done.stderr
        assert done.returncode == 0 or "still end" in done.stderr, done.stderr
        return done.returncode == 0

    wait_until("the agents ended, and the nodes are clean", cleaned, timeout=120)
    for node in cluster.api.list("/api/v1/nodes"):
        metadata = node["metadata"]
        keys = [*metadata["labels"], *metadata.get("annotations", {}), *node["status"]["capacity"]]
        keys += [condition["type"] for condition in node["status"]["conditions"]]
        assert {key for key in keys if key.startswith(PREFIX)} <= {NODE_SHARE_LABEL}
    assert clean("--all").returncode == 0
    assert clean("--all").stdout == "nothing of vramwarden is left\n"


def test_and_what_runs_keeps_running(team, quiet):
    found = team.wait_ready(quiet)
    assert {status["restartCount"] for status in statuses(found).values()} == {0}
