"""A developer with the role `view` in one namespace sees use, reasons for stops, and advice."""

from __future__ import annotations

import json
import time

import pytest

from tests.e2e.asking import ask, diagnose
from tests.e2e.pods import GIB, holding, job, pod
from tests.support.api_client import account_kubeconfig
from tests.support.control_planes import ApiError

CAP, HELD, GROWN, OVER = 8 * GIB, GIB, 3 * GIB, 12 * GIB
GROUP = "/apis/vramwarden.io/v1alpha1"
EARLIER = 4
"""Number of runs added to a history; advice needs five runs and a total of one hour."""
ENOUGH = "2.5Gi"
"""Advice after a peak of 2 GiB: 15 % more, rounded up to a multiple of 256 MiB."""


@pytest.fixture(scope="module")
def viewer(gpu_node, make_team, tmp_path_factory):
    """Return a developer who may view one namespace, and a team with more permissions."""
    team = make_team()
    of = {"name": "developer", "namespace": team.namespace}
    team.api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": of})
    group = "rbac.authorization.k8s.io"
    team.api.create(
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": of,
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "view"},
            "subjects": [{"kind": "ServiceAccount", **of}],
        }
    )
    written = tmp_path_factory.mktemp("developer") / "kubeconfig"
    return Viewer(
        team,
        account_kubeconfig(team.api, gpu_node.kubeconfig, team.namespace, "developer", written),
    )


class Viewer:
    """Runs commands as a developer."""

    def __init__(self, team, kubeconfig):
        self.team = team
        self._kubeconfig = kubeconfig

    def ask(self, *arguments, code=0, kubeconfig=None):
        return ask(kubeconfig or self._kubeconfig, *arguments, code=code)

    def used(self, name):
        """Return the bytes that `top` shows for a pod of the namespace, or None."""
        report = json.loads(self.ask("top", "-o", "json"))
        (found,) = [found_pod for found_pod in report["pods"] if found_pod["name"] == name] or [{}]
        return found.get("usedBytes")

    def history(self, name):
        path = f"{GROUP}/namespaces/{self.team.namespace}/vramhistories/{name}"
        try:
            return self.team.api.request("GET", path)["status"]["runs"]
        except ApiError:
            return []


def test_top_shows_a_pods_use_rising(viewer):
    team = viewer.team
    grows = holding(f"hold {HELD}; wait_for grow; hold {GROWN}; forever")
    team.create(pod("grows", "8Gi", grows))
    team.wait_ready("grows")
    team.wait("its use in top", lambda: viewer.used("grows") == HELD)
    team.run("grows", "touch", "/scene/grow")
    began = time.monotonic()
    team.wait("its use rising", lambda: viewer.used("grows") == GROWN)
    print(f"top shows that a pod's use rose: {time.monotonic() - began:.1f} s later")
    print(viewer.ask("top"))


def test_explain_tells_where_it_runs_and_how_much_it_holds(viewer):
    said = viewer.ask("explain", "grows")
    print(said)
    assert "runs on" in said
    assert "8Gi" in said
    assert "3Gi" in said
    viewer.team.delete_pod("grows")


def test_explain_tells_of_a_stop_with_figure_and_cure(viewer):
    team = viewer.team
    team.create(job("over", "8Gi", holding(f"hold {HELD}; wait_for grow; hold {OVER}; forever")))
    (found,) = team.wait("its pod", lambda: team.pods(labelSelector="job-name=over"))
    name = found["metadata"]["name"]
    team.wait_ready(name)
    team.run(name, "touch", "/scene/grow")
    team.wait_ended(name)
    said = viewer.ask("explain", "job/over", code=1)
    print(said)
    assert "the pod's peak was 12Gi" in said
    assert "→ vramwarden.io/gpu-memory: 14Gi" in said
    diagnose(team.cluster.kubeconfig, "job/over", team.namespace)


@pytest.fixture(scope="module")
def ended(viewer):
    """Run a Job that uses a quarter of its request, like four earlier runs."""
    team = viewer.team
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 3600))
    runs = [
        {
            "pod": f"eval-{number}",
            "endedAt": at,
            "askedMi": CAP // 2**20,
            "gpus": 1,
            "peakMi": 1024,
            "stops": 0,
            "seconds": 1000,
        }
        for number in range(EARLIER)
    ]
    team.create(
        {
            "apiVersion": "vramwarden.io/v1alpha1",
            "kind": "VRAMHistory",
            "metadata": {"name": "job-eval"},
            "status": {"workload": {"kind": "Job", "name": "eval"}, "runs": runs},
        }
    )
    done = job("eval", "8Gi", holding(f"hold {2 * GIB}; wait_for end"))
    made = team.create(done)
    (found,) = team.wait("its pod", lambda: team.pods(labelSelector="job-name=eval"))
    name = found["metadata"]["name"]
    team.wait_ready(name)
    time.sleep(5)  # the sidecar measures every second
    team.run(name, "touch", "/scene/end")
    assert team.wait_ended(name)["exitCode"] == 0
    team.wait("its run kept", lambda: len(viewer.history("job-eval")) > EARLIER)
    return made, name


def test_a_jobs_peak_is_kept_after_it_ended(viewer, ended):
    _, name = ended
    *_, last = viewer.history("job-eval")
    assert (last["pod"], last["peakMi"], last["stops"]) == (name, 2048, 0)
    print(viewer.ask("explain", name))
    said = viewer.ask("advise")
    print(said)
    assert ENOUGH in said


def test_the_next_pod_of_it_gets_a_warning_with_the_number(viewer, ended, gpu_node):
    made, _ = ended
    owner = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": "eval",
        "uid": made["metadata"]["uid"],
        "controller": True,
    }
    again = pod("eval-again", "8Gi", ["true"])
    again["metadata"] |= {"ownerReferences": [owner], "namespace": viewer.team.namespace}
    create = ("create", "--dry-run=server", "-f", "-")

    def warned():
        done = gpu_node.kubectl(*create, stdin=json.dumps(again))
        assert done.returncode == 0, done.stderr
        return ENOUGH in done.stderr and done.stderr

    print(viewer.team.wait("a warning", warned))


@pytest.mark.parametrize("before", [[], ["--pre"]])
def test_check_finds_nothing_broken(viewer, gpu_node, before):
    said = viewer.ask("check", *before, kubeconfig=gpu_node.kubeconfig)
    print(said)
    assert " 0 failed" in said
