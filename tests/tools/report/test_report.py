"""`vramwarden report`: whom the policy would deny, who would be stopped, what is not known."""

from __future__ import annotations

import json

import pytest

from tests.support.commands import runner
from tests.support.injectors import DENIED, HONEST
from tests.support.pods import a_container, a_pod
from webhook.adapters.kube.client import KubeError
from webhook.adapters.kube.policies import LAST_GOOD, last_good_data
from webhook.cli.main import main
from webhook.core.admission.decide import Phase, decide
from webhook.core.admission.templates import creation_of
from webhook.core.kinds.nodes import GpuFigures, NodeFigures, PodFigures, write_gpu_node
from webhook.core.policy.cluster import UNKNOWN
from webhook.options import ReachedCluster
from webhook.tools.report import command
from webhook.tools.report import judge as judging

GIB, NOW_S = 2**30, 10_000.0
POLICY = """\
apiVersion: vramwarden.io/v1alpha1
kind: VRAMPolicy
metadata: {name: looking}
spec:
  rules:
  - {name: looks, match: {namespaces: ["team-*"]}, action: Audit, memory: {max: 40Gi}}
  - {name: ignores, match: {namespaces: [kube-system]}, action: Ignore}
"""
METRICS = """\
# HELP vramwarden_admission_requests_total Reviews.
# TYPE vramwarden_admission_requests_total counter
vramwarden_admission_requests_total{webhook="mutate",operation="CREATE",decision="audited",reason="TooLarge"} 3.0
vramwarden_admission_requests_total{webhook="mutate",operation="CREATE",decision="allowed",reason=""} 9.0
vramwarden_admission_requests_total{webhook="validate",operation="CREATE",decision="audited",reason="TooLarge"} 3.0
"""  # noqa: E501 - as it is served


def stored(name, memory=None, namespace="team-a", owner="", **more):
    """Return a pod as the API server holds it."""
    pod = a_pod(memory, nodeName="n1", **more)
    pod["metadata"] |= {"name": name, "namespace": namespace, "uid": f"uid-{name}"}
    if owner:
        of = {"apiVersion": "batch/v1", "kind": "Job", "name": owner, "controller": True}
        pod["metadata"]["ownerReferences"] = [of]
    return pod


def translated(name, policy):
    pod = stored(name, "8Gi")
    node = pod["spec"].pop("nodeName")
    pod = decide(creation_of(pod, "team-a"), policy, UNKNOWN, Phase.MUTATE).obj
    return {**pod, "spec": {**pod["spec"], "nodeName": node}}


class FakeKube:
    """Answers as an API server; what is a KubeError is raised."""

    def __init__(self):
        self.pods = [
            stored("wrong-1", "8GB", owner="wrong"),
            stored("wrong-2", "8GB", owner="wrong"),
            stored("large", "80Gi", hostPID=True),
            stored("right", "8Gi"),
            stored("plain"),
            stored("system", "8GB", "kube-system"),
            stored("elsewhere", "8GB", "other"),
        ]
        self.texts = {"looking.yaml": POLICY, "README": "not read"}
        self.nodes = []
        self.namespaces = []
        self.kept = None
        self.metrics = METRICS
        self.asked = []

    def now_s(self):
        return NOW_S

    def list_all(self, path, keep, **query):
        self.asked.append((path, query))
        if path == "/api/v1/namespaces":
            self._raise(self.namespaces)
            return [keep(one) for one in self.namespaces], "1"
        self._raise(self.pods)
        wanted = path.split("/")[-2] if "/namespaces/" in path else ""
        found = [pod for pod in self.pods if wanted in ("", pod["metadata"]["namespace"])]
        return [keep(pod) for pod in found], "1"

    def list_cached(self, _path, keep):
        self._raise(self.nodes)
        return [keep(write_gpu_node(node)) for node in self.nodes]

    def list_first(self, _path, keep, _most, **_query):
        ports = [{"name": "operations", "containerPort": 8081}]
        replica = {
            "metadata": {"name": "webhook-1"},
            "spec": {"containers": [{"ports": ports}]},
            "status": {"startTime": "1970-01-01T01:46:40Z"},
        }
        return [keep(replica)]

    def text(self, path, _most_bytes):
        self.asked.append((path, {}))
        self._raise(self.metrics)
        return self.metrics

    def find(self, path):
        self.asked.append((path, {}))
        if "/configmaps/" not in path:
            self._raise(self.namespaces)
            found = (one for one in self.namespaces if one["metadata"]["name"] in path.split("/"))
            return next(found, None)
        self._raise(self.texts)
        if path.endswith(f"/{LAST_GOOD}"):
            return self.kept
        return None if self.texts is None else {"data": self.texts}

    def _raise(self, answer):
        if isinstance(answer, KubeError):
            raise answer


@pytest.fixture
def kube(monkeypatch):
    made = FakeKube()
    monkeypatch.setattr(command, "reach", lambda *_: ReachedCluster(made, "default"))
    return made


def run(*arguments):
    return runner().invoke(main, ["report", *arguments])


def forbidden():
    return KubeError("forbidden", code=403)


def test_it_says_whom_the_policy_in_force_would_deny_and_why(kube):
    done = run()
    assert done.exit_code == 1, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("If every rule enforced (vramwarden-system/vramwarden-policies, ")
    assert lines[0].endswith("), of 5 pods that it governs:")
    assert "3 pods would be denied." in lines
    (wrong,) = [line for line in lines if " InvalidQuantity " in line]
    assert wrong.split() == ["team-a", "looks", "Audit", "InvalidQuantity", "2", "1", "wrong-1"]
    assert "8GB is not a Kubernetes quantity; use 8G or 8Gi" in lines[lines.index(wrong) + 1]
    assert any(line.split()[3:4] == ["HostPID"] for line in lines)
    assert any(line.split()[3:4] == ["TooLarge"] for line in lines)
    assert "1 pod would get the GPU memory asked for." in lines
    assert "No pod would have been stopped." in lines
    assert "Replica webhook-1 counted in 60m: audited 3 (TooLarge 3)." in lines
    assert ("/api/v1/pods", {"fieldSelector": judging_selector()}) in kube.asked


def judging_selector():
    return "status.phase!=Succeeded,status.phase!=Failed"


def test_programs_read_the_same(kube):
    report = json.loads(run("-o", "json").stdout)
    assert (report["kind"], report["pods"], report["deniedPods"]) == ("RolloutReport", 5, 3)
    first = report["denied"][0]
    assert (first["reason"], first["pods"], first["workloads"]) == ("InvalidQuantity", 2, 1)
    assert first["action"] == "Audit"
    assert report["replicas"][0]["reviews"] == {"audited": {"TooLarge": 3}}
    assert report["missing"] == []


def test_who_would_have_been_stopped_is_named_with_its_first_time(kube):
    pod = stored("right", "8Gi", labels={"vramwarden.io/managed": "true"})
    kube.pods = [pod]
    held = PodFigures(
        uid="uid-right",
        cap_bytes=8 * GIB,
        used_bytes=0,
        peak_bytes=12 * GIB,
        stops=0,
        would_stop=3,
        would_stop_since_s=NOW_S - 7200,
    )
    hidden = PodFigures(
        uid="uid-of-somebody-else",
        cap_bytes=8 * GIB,
        used_bytes=0,
        peak_bytes=12 * GIB,
        stops=0,
        would_stop=3,
        would_stop_since_s=NOW_S - 7200,
    )
    calm = PodFigures(uid="uid-right", cap_bytes=8 * GIB, used_bytes=0, peak_bytes=GIB, stops=0)
    gpus = tuple(
        GpuFigures(
            uuid=f"GPU-{number}",
            index=number,
            product="L4",
            total_bytes=24 * GIB,
            usable_bytes=24 * GIB,
            pods=pods,
        )
        for number, pods in enumerate([(held, hidden), (calm,)])
    )
    kube.nodes = [
        NodeFigures(
            name="n1", observed_s=NOW_S, driver_version="580", enforcement="sidecar", gpus=gpus
        )
    ]
    done = run()
    assert done.exit_code == 1
    assert "No pod would be denied." in done.stdout
    (row,) = [line for line in done.stdout.splitlines() if line.startswith("team-a")]
    assert row.split() == ["team-a", "right", "n1", "0", "8Gi", "12Gi", "3", "2h", "ago"]
    (found,) = json.loads(run("-o", "json").stdout)["overCap"]
    assert (found["times"], found["since"]) == (3, "1970-01-01T00:46:40Z")


def test_what_we_translated_is_not_held_against_it(kube, tmp_path):
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY.replace("Audit", "Enforce"))
    policy = command._policy(kube, path, "")[0]
    kube.pods = [translated("right", policy)]
    done = run("--policy", str(path))
    assert (done.exit_code, done.stderr) == (0, "")
    assert "No pod would be denied." in done.stdout
    assert "would get the GPU memory" not in done.stdout


def test_what_users_and_kubelets_added_later_is_not_judged(kube):
    debugger = {"name": "debug", "image": "x", "env": [{"name": "NVIDIA_VISIBLE_DEVICES"}]}
    mirror = {"annotations": {"kubernetes.io/config.mirror": "x"}}
    kube.pods = [
        stored("debugged", "8Gi", ephemeralContainers=[debugger]),
        stored("static", hostPID=True, **mirror),
    ]
    assert run().exit_code == 0


def test_one_namespace_and_a_policy_that_is_not_installed(kube, tmp_path):
    path = tmp_path / "next.yaml"
    path.write_text(POLICY.replace("team-*", "other"))
    done = run("-n", "other", "--policy", str(path))
    assert done.exit_code == 1
    assert "1 pod would be denied." in done.stdout
    assert str(path) in done.stdout
    assert kube.asked[0][0] == "/api/v1/namespaces/other/pods"


def test_what_may_not_be_read_is_named_and_the_rest_is_shown(kube):
    kube.nodes, kube.metrics = forbidden(), forbidden()
    done = run()
    assert done.exit_code == 1
    assert "Not known: no figures of GPUs: you may not list gpunodes" in done.stdout
    assert (
        "you may not list pods, and get pods/proxy, in namespace vramwarden-system" in done.stdout
    )
    kube.metrics = "{no metrics"
    assert "their metrics cannot be read" in run().stdout


@pytest.mark.parametrize("what", ["pods", "texts"])
def test_without_pods_or_a_policy_there_is_no_report(kube, what):
    setattr(kube, what, forbidden())
    done = run()
    assert (done.exit_code, done.stdout) == (3, "")
    assert done.stderr.startswith("Error: ")
    if what == "pods":
        assert "you may not list pods in all namespaces; name one of yours with -n" in done.stderr


def test_where_nothing_is_installed_it_says_which_options_help(kube):
    kube.texts = None
    done = run()
    assert done.exit_code == 3
    assert "--release" in done.stderr
    assert "--policy" in done.stderr


def test_a_policy_that_is_not_valid_fails(kube, tmp_path):
    path = tmp_path / "next.yaml"
    path.write_text(POLICY.replace("Audit", "audit"))
    done = run("--policy", str(path))
    assert done.exit_code == 1
    assert "did you mean Audit" in done.stderr


def test_what_tenants_write_makes_no_report_without_bounds(kube, monkeypatch):
    monkeypatch.setattr(judging, "MOST_GROUPS", 3)
    kube.pods = [stored(f"p{number}", "8GB", f"team-{number}") for number in range(5)]
    kube.pods += [{"metadata": {"name": "giant", "namespace": "team-a"}, "spec": "too large"}]
    kube.pods += [{"metadata": {"namespace": "team-a", "name": "odd"}, "spec": {"containers": 5}}]
    long = [a_container("x" * 200, securityContext={"privileged": True}) for _ in range(40)]
    kube.pods += [stored("long", "8Gi", "team-0", containers=long)]
    report = json.loads(run("-o", "json").stdout)
    assert (report["deniedPods"], len(report["denied"])) == (7, 3)
    assert all(len(one["message"]) <= judging.LONGEST_SENTENCE for one in report["denied"])
    assert report["missing"] == ["what becomes of 1 pod, too large to be read"]


LABELS = """\
apiVersion: vramwarden.io/v1alpha1
kind: VRAMPolicy
metadata: {name: labels}
spec:
  rules:
  - {name: free, match: {namespaces: [open]}, memory: {max: 40Gi}}
  - {name: interns, match: {namespaceLabels: {tier: intern}}, memory: {max: 1Gi}}
  - {name: rest}
"""


@pytest.fixture
def labelled(kube):
    kube.texts = {"labels.yaml": LABELS}
    kube.pods = [stored(f"of-{name}", "8Gi", name) for name in ("open", "team-a", "team-b")]
    for name, labels in (("team-a", {"tier": "intern", "other": "x"}), ("team-b", None)):
        metadata = {"name": name, "labels": labels}
        kube.namespaces.append({"metadata": metadata, "spec": {}})
    return kube


@pytest.mark.parametrize("namespace", ["", "team-a"])
def test_rules_by_labels_of_namespaces_are_judged_by_these(labelled, namespace):
    report = json.loads(run("-o", "json", "-n", namespace).stdout)
    (found,) = report["denied"]
    assert (found["rule"], found["reason"], found["namespace"]) == ("interns", "TooLarge", "team-a")
    assert (report["pods"], report["missing"]) == (1 if namespace else 3, [])


@pytest.mark.parametrize("namespace", ["", "team-a"])
def test_namespaces_whose_labels_may_not_be_read_are_named(labelled, namespace):
    labelled.namespaces = forbidden()
    report = json.loads(run("-o", "json", "-n", namespace).stdout)
    verb, where, pods = "list", "team-a, team-b", "2 pods"
    if namespace:
        verb, where, pods = "get", "team-a", "1 pod"
    (missing,) = report["missing"]
    assert missing == (
        f"what becomes of {pods} in {where}: rules ask for labels of these namespaces, which you "
        f"may not read; ask an administrator for the right to {verb} namespaces"
    )
    assert (report["denied"], report["pods"]) == ([], 0 if namespace else 1)
    assert report["policy"].startswith("vramwarden-system/vramwarden-policies, ")


def test_a_namespace_that_came_later_and_an_api_server_that_fails_are_named_too(labelled):
    del labelled.namespaces[1]
    (missing,) = json.loads(run("-o", "json").stdout)["missing"]
    assert missing.startswith("what becomes of 1 pod in team-b: ")
    assert missing.endswith(", which were not there yet")
    labelled.namespaces = KubeError("overloaded", code=500)
    (missing,) = json.loads(run("-o", "json").stdout)["missing"]
    assert missing.endswith(", but: overloaded")


def test_without_such_rules_no_namespace_is_read(kube):
    kube.namespaces = forbidden()
    assert json.loads(run("-o", "json").stdout)["missing"] == []
    assert not [path for path, _ in kube.asked if path == "/api/v1/namespaces"]


def test_a_pod_that_a_list_brings_twice_counts_once(kube):
    kube.pods += kube.pods
    assert json.loads(run("-o", "json").stdout)["deniedPods"] == 3


def test_policies_that_are_objects_are_in_force_beside_the_files(kube):
    spec = {"rules": [{"name": "small", "match": {"namespaces": ["*"]}, "memory": {"max": "1Gi"}}]}
    written = {
        "apiVersion": "vramwarden.io/v1alpha1",
        "kind": "VRAMPolicy",
        "metadata": {"name": "aaa"},
        "spec": spec,
    }
    kube.kept = {"data": last_good_data([("aaa", json.dumps(written).encode())])}
    kube.pods = [stored("elsewhere", "8Gi", "other")]
    report = json.loads(run("-o", "json").stdout)
    assert [one["rule"] for one in report["denied"]] == ["small"]
    assert report["policy"].startswith("vramwarden-system/vramwarden-policies and 1 object, ")


def test_pods_that_a_runtime_would_give_gpus_are_named_before_anybody_denies_them(kube):
    pods = {"injected": DENIED["a slice"], "honest": HONEST["TCPXO"]}
    kube.pods = [
        {**stored(name), "metadata": stored(name)["metadata"] | {"annotations": notes}}
        | {"spec": {**pod["spec"], "nodeName": "n1"}}
        for name, pod in pods.items()
        for notes in [pod["metadata"]["annotations"]]
    ]
    (found,) = [line for line in run().stdout.splitlines() if " VisibleDevicesOverride " in line]
    assert found.split()[-1] == "injected"
