"""Histories kept by replicas on a real API server, with the chart's kinds and permissions."""

from __future__ import annotations

import time

import pytest

from tests.chart.accounts import forget, kinds_known, webhook_account
from tests.chart.fenced import MERGE
from tests.support.charts import NAMESPACE
from tests.support.control_planes import wait_until
from tests.support.pods import a_container, a_pod, a_review
from tests.support.run_command import runner
from tests.support.server_process import running
from webhook.cli.main import main
from webhook.core.enforcement.termination_message import TerminationMessage, write_message
from webhook.core.kinds.nodes import write_time

TEAM = "histories"
HISTORIES = f"/apis/vramwarden.io/v1alpha1/namespaces/{TEAM}/vramhistories"
GIB = 2**30


class Cluster:
    """An API server with the kinds, the webhook's permissions, and pods that end."""

    def __init__(self, control_plane, kinds, token):
        self.api, self.kubeconfig = control_plane.api, control_plane.kubeconfig
        self.kinds, self.token = kinds, token

    def histories(self):
        return self.api.list(HISTORIES)

    def runs(self, name):
        """Return the pods in a history and their peaks in MiB, given the object's name."""
        found = [each for each in self.histories() if each["metadata"]["name"] == name]
        return {run["pod"]: run.get("peakMi") for each in found for run in each["status"]["runs"]}

    def ends(self, name, peak_bytes, job="embed", **metadata):
        """Create a pod that has ended with this peak in its termination message."""
        amounts = {"vramwarden.io/vram": "16Gi"}
        resources = {"limits": amounts, "requests": amounts}
        containers = [a_container(resources=resources), a_container("vram-enforcer")]
        pod = a_pod(containers=containers, labels={"vramwarden.io/managed": "true"}, nodeName="n1")
        owner = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": job,
            "uid": "u",
            "controller": True,
        }
        pod["metadata"] |= {"name": name, "namespace": TEAM, "ownerReferences": [owner], **metadata}
        self.api.create(pod)
        self.says(name, peak_bytes, phase="Succeeded")

    def says(self, name, peak_bytes, **status):
        now_s = time.time()
        words = write_message(TerminationMessage(16 * GIB, {"GPU-a": peak_bytes}, 0, 1_000))
        ended = {"exitCode": 0, "finishedAt": write_time(now_s), "message": f"all is well\n{words}"}
        container = {
            "name": "vram-enforcer", "image": "x", "imageID": "", "ready": False, "restartCount": 0,
            "state": {"terminated": ended},
        }  # fmt: skip
        status |= {"startTime": write_time(now_s - 1_000), "containerStatuses": [container]}
        path = f"/api/v1/namespaces/{TEAM}/pods/{name}/status"
        self.api.request("PATCH", path, {"status": status}, content_type=MERGE)

    def clear(self):
        for pod in self.api.list(f"/api/v1/namespaces/{TEAM}/pods"):
            self.api.delete(pod | {"apiVersion": "v1", "kind": "Pod"}, gracePeriodSeconds="0")


@pytest.fixture(scope="module")
def cluster(control_plane, helm, tmp_path_factory):
    api, objects = control_plane.api, helm.render()
    api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TEAM}})
    control_plane.ensure_service_account(TEAM)
    with (
        kinds_known(api, objects) as kinds,
        webhook_account(control_plane, objects, tmp_path_factory.mktemp("cluster")) as token,
    ):
        made = Cluster(control_plane, kinds, token)
        yield made
        made.clear()


def warnings(server, **metadata):
    pod = a_pod("16Gi")
    pod["metadata"] |= {"name": "next", "namespace": TEAM, **metadata}
    return server.review(a_review(pod, namespace=TEAM)).get("warnings", [])


OWNED = {"ownerReferences": [{"kind": "Job", "name": "embed", "controller": True}]}


def test_two_replicas_make_one_history_of_pods_that_end_and_both_warn(
    cluster, tmp_path, monkeypatch
):
    monkeypatch.setenv("KUBECONFIG", str(cluster.token))
    where = f"--placement-namespace={NAMESPACE}"
    peaks = {f"embed-{number}": 6 * GIB - number * 2**20 for number in range(5)}
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with running(tmp_path / "a", where) as first, running(tmp_path / "b", where) as second:
        for name, peak_bytes in peaks.items():
            cluster.ends(name, peak_bytes)
        # The pod is deleted, as in a rollout. Its termination message arrives before it disappears.
        cluster.ends("gone", GIB, job="short", finalizers=["example.com/stays"])
        cluster.api.request("DELETE", f"/api/v1/namespaces/{TEAM}/pods/gone")
        cluster.api.request(
            "PATCH", f"/api/v1/namespaces/{TEAM}/pods/gone",
            {"metadata": {"finalizers": None}}, content_type=MERGE,
        )  # fmt: skip
        wanted = {name: peak_bytes // 2**20 for name, peak_bytes in peaks.items()}
        wait_until("all have their run", lambda: cluster.runs("job-embed") == wanted, timeout=90)
        wait_until(
            "so has the deleted one",
            lambda: cluster.runs("job-short") == {"gone": 1024},
            timeout=90,
        )
        path = "metadata.annotations[vramwarden.io/gpu-memory]"
        say = f"{path}: asks for 16Gi; the last 5 pods of Job embed peaked at 6Gi; 7Gi would do"
        for server in (first, second):
            wait_until("it warns", lambda server=server: warnings(server, **OWNED))
            assert warnings(server, **OWNED) == [f"{say} (vramwarden advise)"]
            assert warnings(server) == []
            log = server.log_file.read_text()
            assert "failed" not in log, log
            assert "cannot be" not in log, log
    (history,) = [each for each in cluster.histories() if each["metadata"]["name"] == "job-embed"]
    summary = {"runs": "5", "asks": "16Gi", "peak": "6Gi", "advice": "7Gi"}
    assert history["status"]["summary"] == summary


def test_the_command_shows_it_and_a_replica_that_begins_changes_nothing(
    cluster, tmp_path, monkeypatch
):
    before = cluster.histories()
    assert before
    ended = runner().invoke(main, ["advise", "-n", TEAM, "--kubeconfig", str(cluster.kubeconfig)])
    assert ended.exit_code == 0, ended.output
    assert [line.split()[:2] for line in ended.output.splitlines()[1:]] == [
        ["Job/embed", "5"], ["Job/short", "1"],
    ]  # fmt: skip
    monkeypatch.setenv("KUBECONFIG", str(cluster.token))
    # This simulates that the key's Secret does not exist yet.
    options = (f"--placement-namespace={NAMESPACE}", f"--key-file={tmp_path}/none")
    with running(tmp_path, *options) as server:
        assert [line["msg"] for line in server.log() if "no key" in line["msg"]] == [
            "there is no key: what fences read is not proven to be ours"
        ]
        cluster.ends("later", 7 * GIB)
        wait_until("it is added", lambda: len(cluster.runs("job-embed")) == 6, timeout=120)
        assert warnings(server, **OWNED)
    after = {each["metadata"]["name"]: each for each in cluster.histories()}
    for each in before:
        kept = after[each["metadata"]["name"]]["status"]["runs"]
        assert kept[: len(each["status"]["runs"])] == each["status"]["runs"]


def test_where_the_kind_is_unknown_the_command_says_what_is_missing(cluster):
    forget(cluster.api, cluster.kinds)
    ended = runner().invoke(main, ["advise", "-n", TEAM, "--kubeconfig", str(cluster.kubeconfig)])
    assert ended.exit_code == 3
    assert "this cluster does not serve VRAMHistory" in ended.output
