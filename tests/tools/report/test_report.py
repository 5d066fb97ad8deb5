"""`vramwarden report`: pods that would be denied or stopped, and unknown facts."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

import pytest

from tests.support import charts
from tests.support.api_server import ApiServer
from tests.support.clusters import NOW_S, a_cluster, a_gpu, a_node, a_pod, ago, held
from tests.support.device_annotations import DENIED, HONEST
from tests.support.golden_files import assert_recorded
from tests.support.pods import a_container
from tests.support.policies import SHIPPED
from tests.support.run_command import reached, runner
from tests.tools.situations.scenes import a_workload, failed_create
from webhook.cli.main import main
from webhook.tools.report import command
from webhook.tools.snapshot import workloads
from webhook.tools.snapshot.admission_rules import POLICIES

RECORDED = Path(__file__).with_name("recorded.txt")
EXAMPLES = SHIPPED[-1].parent
DIGEST = re.compile(r"(?<=vramwarden-policies, )[0-9a-f]{12}")
"""Regular expression for a policy digest, which depends on the release."""
RELEASE = "vramwarden-system"
POLICY = """\
apiVersion: vramwarden.io/v1alpha1
kind: VRAMPolicy
metadata: {name: looking}
spec:
  rules:
  - {name: looks, match: {namespaces: ["team-*"]}, action: Audit, memory: {max: 40Gi}}
  - {name: ignores, match: {namespaces: [kube-system]}, action: Ignore}
"""

# Running pods that bypassed admission.
running = partial(a_pod, node="n1", rule=None)
WRONG = [running(f"wrong-{number}", "8GB", owner="Job/wrong") for number in (1, 2)]
RIGHT, PLAIN = running("right", "8Gi"), running("plain")
LARGE = running("large", "80Gi", hostPID=True)
ELSEWHERE = running("elsewhere", "8GB", namespace="other")
PODS = [
    *(*WRONG, LARGE, RIGHT, PLAIN, ELSEWHERE),
    running("system", "8GB", namespace="kube-system"),
    running("done", "8GB", status="Succeeded"),
]


def a_config_map(name, data):
    metadata = {"namespace": RELEASE, "name": name}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


@pytest.fixture
def api(monkeypatch):
    replica = a_pod("webhook-1", namespace=RELEASE)
    policy = a_config_map(POLICIES, {"looking.yaml": POLICY, "README": "not read"})
    api = a_cluster([], [replica], policy).stored_in(ApiServer())
    monkeypatch.setattr(command, "connect_to_cluster", reached(api))
    return api


def run(*arguments):
    return runner().invoke(main, ["report", *arguments])


def reported(*arguments):
    return json.loads(run("-o", "json", *arguments).stdout)


def test_it_says_whom_the_policy_in_force_would_deny_and_why(api):
    api.add(*PODS)
    done = run()
    assert done.exit_code == 1, done.stderr
    assert_recorded(RECORDED, DIGEST.sub("0123456789ab", done.stdout))


def test_programs_read_the_same(api):
    over = held("right", 8, 0, 12, would_stop=3, would_stop_since_s=NOW_S - 7200)
    hidden = held("of-another-namespace", 8, 0, 12, would_stop=3, would_stop_since_s=NOW_S)
    api.add(*PODS)
    a_cluster([a_node("n1", a_gpu(24, over, hidden))], [a_pod("right", "8Gi")]).stored_in(api)
    report = reported()
    assert (report["kind"], report["pods"], report["deniedPods"]) == ("RolloutReport", 5, 3)
    message = report["denied"][0].pop("message")
    assert message.startswith("InvalidQuantity: metadata.annotations[")
    of_team = {"namespace": "team-a", "rule": "looks", "action": "Audit"}
    found = {"reason": "InvalidQuantity", "pods": 2, "workloads": 1, "example": "wrong-1"}
    assert report["denied"][0] == of_team | found
    where = {"namespace": "team-a", "pod": "right", "node": "n1", "gpu": 0}
    peak = {"capBytes": 8 * 2**30, "peakBytes": 12 * 2**30, "times": 3, "since": ago(7200)}
    assert report["overCap"] == [where | peak]
    assert report["missing"] == []


def says(message, webhook="mutate.vramwarden.io"):
    return f'admission webhook "{webhook}" denied the request: {message}'


OURS = says("InvalidQuantity: metadata.annotations[vramwarden.io/gpu-memory]: 8GB is none")
UNREACHABLE = 'failed calling webhook "mutate.{}": connection refused'
FENCE = (
    "ValidatingAdmissionPolicy 'vramwarden-second-line' with binding 'x' denied request: "
    "vramwarden: create the pod again; it is not translated. If it is denied again, ask"
)
QUOTA = 'pods "train-" is forbidden: exceeded quota: gpus'
TEMPLATE = running("train", "8GB")


def controller(kind, owner=None, name="train", **more):
    kind_of, _, name_of = (owner or "").partition("/")
    owners = [{"kind": kind_of, "name": name_of, "uid": name_of, "controller": True}]
    return a_workload(
        kind, name, TEMPLATE, metadata={"ownerReferences": owners * bool(owner)}, **more
    )


def failed_set(message, owner=None, name="train-5d9c7", replicas=1, created=0):
    condition = {"type": "ReplicaFailure", "status": "True", "message": message}
    status = {"replicas": created, "conditions": [condition]}
    return controller("ReplicaSet", owner, name, replicas=replicas, status=status)


def event(about, message=OURS, age_s=60):
    made = failed_create(about, message, age_s)
    made["metadata"]["name"] += str(age_s)
    return made


JOB, SET = event("Job/train"), event("StatefulSet/train")
OLD_SET = failed_set(OURS, "Deployment/train", "train-7f8e9", 3, 1)
DENIED_NOW = {
    "a Deployment": ([failed_set(OURS, "Deployment/train", replicas=3)], {"Deployment/train": 3}),
    "two sets of it": ([failed_set(OURS, "Deployment/train"), OLD_SET], {"Deployment/train": 3}),
    "a bare ReplicaSet": ([failed_set(OURS), event("ReplicaSet/train-5d9c7")],
                          {"ReplicaSet/train-5d9c7": 1}),
    "a ReplicaSet without the condition": ([controller("ReplicaSet"), event("ReplicaSet/train")],
                                           {}),
    "a quota": ([failed_set(QUOTA, "Deployment/train"), event("Job/train", QUOTA),
                 controller("Job")], {}),
    "the fence": ([failed_set(FENCE)], {"ReplicaSet/train-5d9c7": 1}),
    "another webhook": ([failed_set(says("no", "pods.example.com"))], {}),
    "our webhook does not answer": ([failed_set(UNREACHABLE.format("vramwarden.io"))],
                                    {"ReplicaSet/train-5d9c7": 1}),
    "another does not answer": ([failed_set(UNREACHABLE.format("example.com"))], {}),
    "a Job": ([JOB, controller("Job", parallelism=2, completions=5)], {"Job/train": 2}),
    "a Job that has its pods now": ([JOB, controller("Job", status={"active": 1})], {}),
    "a Job that is complete": ([JOB, controller("Job", status={"completionTime": "now"})], {}),
    "a Job that is gone": ([JOB], {}),
    "a Job that a quota denied since": ([JOB, event("Job/train", QUOTA, 30), controller("Job")],
                                        {}),
    "a Job that a quota denied before": ([JOB, event("Job/train", QUOTA, 100), controller("Job")],
                                         {"Job/train": 1}),
    "a CronJob": ([event(f"Job/{name}") for name in "ab"]
                  + [controller("Job", "CronJob/night", name) for name in "ab"],
                  {"CronJob/night": 2}),
    "a StatefulSet": ([SET, controller("StatefulSet", replicas=3, status={"replicas": 1})],
                      {"StatefulSet/train": 2}),
    "a DaemonSet": ([event("DaemonSet/train"), controller("DaemonSet", status={
                        "desiredNumberScheduled": 4, "currentNumberScheduled": 1})],
                    {"DaemonSet/train": 3}),
    "a kind of others": ([event("PyTorchJob/train")], {"PyTorchJob/train": None}),
    "no name": ([event("Job/"), event("Job/..", age_s=61)], {}),
}  # fmt: skip


def denied_now():
    return {f"{workload['kind']}/{workload['name']}": workload.get("missingPods") for workload in
            reported()["deniedWorkloads"]}  # fmt: skip


@pytest.mark.parametrize("name", DENIED_NOW)
def test_workloads_whose_pods_are_denied_now_are_counted(api, name):
    objects, expected = DENIED_NOW[name]
    api.add(*objects)
    assert denied_now() == expected
    assert run().exit_code == bool(expected)


def test_denied_workloads_are_named_as_far_as_rights_reach(api):
    api.add(failed_set(OURS), event("ReplicaSet/train-5d9c7"), JOB, controller("Job"))
    missing = []
    for denied, expected in {
        ("get", "jobs"): {"ReplicaSet/train-5d9c7": 1, "Job/train": None},
        ("list", "replicasets"): {"ReplicaSet/train-5d9c7": 1, "Job/train": None},
        ("list", "events"): {},
    }.items():
        api.denied.add(denied)
        assert denied_now() == expected
        missing = reported()["missing"]
    right = "needs the right to list {} in all namespaces; name one of yours with -n"
    assert missing == [
        f"ReplicaSets that cannot create pods: {right.format('replicasets')}",
        f"other workloads that cannot create pods: {right.format('events')}",
    ]


def test_without_figures_nothing_is_said_of_caps(api):
    api.add(a_pod("right", "8Gi", node="n1"))
    report = reported()
    assert report["missing"] == ["figures of GPUs: no node has reported yet"]
    assert "overCap" not in report


def test_few_denied_workloads_are_read_and_all_are_counted(api, monkeypatch):
    monkeypatch.setattr(workloads, "MOST_FAILED", 2)
    for name in "abc":
        api.add(controller("Job", name=name), event(f"Job/{name}"))
    assert sorted(denied_now().values(), key=str) == [1, 1, None]


def test_a_pod_counts_once_for_each_reason(api):
    api.add(running("twice", containers=[a_container(name, env=[ALL_GPUS]) for name in "ab"]))
    (found,) = reported()["denied"]
    assert (found["pods"], found["workloads"]) == (1, 1)


def test_a_stored_pod_is_not_told_of_other_webhooks(api):
    forged = a_pod("forged", "8Gi", node="n1", annotations={"vramwarden.io/gpu-memory": "8GB"})
    api.add(forged)
    (found,) = reported()["denied"]
    assert "another webhook" not in found["message"]


def test_what_users_added_later_is_not_judged(api):
    debugger = {"name": "debug", "image": "x", "env": [{"name": "NVIDIA_VISIBLE_DEVICES"}]}
    api.add(running("debugged", "8Gi", ephemeralContainers=[debugger]))
    assert run().exit_code == 0


def test_one_namespace_and_a_policy_that_is_not_installed(api, tmp_path):
    api.add(*PODS)
    path = tmp_path / "next.yaml"
    path.write_text(POLICY.replace("team-*", "other"))
    done = run("-n", "other", "--policy", str(path))
    assert done.exit_code == 1
    assert "1 pod would be denied." in done.stdout
    assert str(path) in done.stdout
    pods = [request.path for request in api.asked if request.path.endswith("/pods")]
    assert pods[0] == "/api/v1/namespaces/other/pods"
    assert "/api/v1/pods" not in pods


@pytest.mark.parametrize(
    ("denied", "options", "said"),
    [
        (("list", "pods"), (), "needs the right to list pods in all namespaces; name one of yours"),
        (("get", "configmaps"), (), "; name a policy of your own with --policy"),
        (None, ("--release", "elsewhere"), "with --release, or a policy with --policy"),
    ],
)
def test_without_pods_or_a_policy_there_is_no_report(api, denied, options, said):
    api.denied.add(denied)
    done = run(*options)
    assert (done.exit_code, done.stdout) == (3, "")
    assert said in done.stderr


def test_what_tenants_write_is_counted_or_named_as_unread(api):
    api.add(
        *(running(f"p{number}", "8GB", namespace=f"team-{number}") for number in range(5)),
        running("giant") | {"spec": "too large"},
        running("odd") | {"spec": {"containers": 5}},
    )
    report = reported()
    assert (report["deniedPods"], len(report["denied"])) == (6, 6)
    assert report["missing"] == ["what becomes of 1 pod: too large to be read"]


LABELS = """\
apiVersion: vramwarden.io/v1alpha1
kind: VRAMPolicy
metadata: {name: labels}
spec:
  rules:
  - {name: free, match: {namespaces: [open]}, memory: {max: 40Gi}}
  - name: interns
    match: {namespaces: ["team-*"], namespaceLabels: {tier: intern}}
    memory: {max: 1Gi}
  - {name: rest, match: {namespaces: ["team-*"]}}
"""


def a_namespace(name, **labels):
    metadata = {"name": name, "labels": labels}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata, "spec": {}}


@pytest.fixture
def labelled(api):
    """Return an API server with a policy for namespace labels, and pods in three namespaces."""
    pods = [running(f"of-{name}", "8Gi", namespace=name) for name in ("open", "team-a", "team-b")]
    policy = a_config_map(POLICIES, {"labels.yaml": LABELS})
    namespaces = (a_namespace("team-a", tier="intern", other="x"), a_namespace("team-b"))
    return api.add(policy, *namespaces, *pods)


@pytest.mark.parametrize("namespace", ["", "team-a"])
def test_rules_by_labels_of_namespaces_are_judged_by_these(labelled, namespace):
    report = reported("-n", namespace)
    (found,) = report["denied"]
    assert (found["rule"], found["reason"], found["namespace"]) == ("interns", "TooLarge", "team-a")
    assert (report["pods"], report["missing"]) == (1 if namespace else 3, [])


@pytest.mark.parametrize(
    ("namespace", "verb", "what", "judged"),
    [("", "list", "2 pods in team-a, team-b", 1), ("team-a", "get", "1 pod in team-a", 0)],
)
def test_namespaces_whose_labels_may_not_be_read_are_named(labelled, namespace, verb, what, judged):
    labelled.denied.add((verb, "namespaces"))
    report = reported("-n", namespace)
    (missing,) = report["missing"]
    why = f"by labels of namespaces: needs the right to {verb} namespaces"
    assert missing == f"what becomes of {what}, {why}"
    assert (report["denied"], report["pods"]) == ([], judged)
    assert run("-n", namespace).exit_code == 3  # no denial, as far as the user may read
    labelled.add(running("wrong", "8GB", namespace="open"))
    assert run().exit_code == 1


def test_a_namespace_that_came_later_is_named(labelled):
    labelled.remove("/api/v1/namespaces/team-b")
    (missing,) = reported()["missing"]
    assert missing.startswith("what becomes of 1 pod in team-b, ")
    assert missing.endswith(": these namespaces are new")


def test_without_such_rules_no_namespace_is_read(api):
    api.add(*PODS).denied.add(("list", "namespaces"))
    assert reported()["missing"] == []
    assert "/api/v1/namespaces" not in [request.path for request in api.asked]


renders = pytest.mark.process  # Helm renders the chart
ALL_GPUS = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}


def plugin(namespace):
    """Return a pod of NVIDIA's device plugin, which sees all GPUs of its node."""
    container = a_container(env=[ALL_GPUS], securityContext={"privileged": True})
    name = "nvidia-device-plugin"
    return running(name, uid=namespace, namespace=namespace, containers=[container])


@pytest.fixture(scope="module")
def manifests():
    return charts.rendered()


@pytest.fixture(scope="module")
def configurations(manifests):
    return [
        manifest for manifest in manifests if manifest["kind"] == "MutatingWebhookConfiguration"
    ]


@pytest.fixture(scope="module")
def system(manifests):
    """Return a pod of each vramwarden program, and pods of NVIDIA's device plugin."""
    ours = [
        running(f"{manifest['metadata']['name']}-x", namespace=manifest["metadata"]["namespace"])
        | {"spec": manifest["spec"]["template"]["spec"] | {"nodeName": "n1"}}
        for manifest in manifests
        if manifest["kind"] in {"DaemonSet", "Deployment"}
    ]
    return [*ours, *map(plugin, ("gpu-operator", "kube-system", "nvidia-device-plugin"))]


@renders
@pytest.mark.parametrize("is_installed", [True, False], ids=["installed", "before"])
@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_beside_our_own_pods_and_nvidias_every_shipped_policy_denies_nobody(
    api, path, is_installed, configurations, system
):
    api.add(*(configurations if is_installed else []), *system)
    report = reported("--policy", str(path))
    assert [pod for pod in system if pod["metadata"]["name"].startswith("vramwarden-sentry")]
    assert (report["denied"], report["missing"]) == ([], [])
    exempt = (report["exemptPods"], report["exemptNamespaces"])
    assert exempt == (len(system) + 1, 5)  # including the replica in the fixture
    assert run("--policy", str(path)).exit_code == 0


@renders
def test_namespaces_with_the_label_are_exempt_and_the_same_pod_elsewhere_is_denied(
    api, configurations
):
    names = {"labelled": {"vramwarden.io/webhook": "disabled"}, "other": {}}
    api.add(*configurations, *(a_namespace(name, **labels) for name, labels in names.items()))
    api.add(*map(plugin, names))
    done = run("--policy", str(EXAMPLES / "cap-a-team.yaml"))
    assert "1 pod would be denied." in done.stdout
    assert "2 pods in 2 exempt namespaces are not judged.\n" in done.stdout
    api.denied.add(("list", "namespaces"))
    (missing,) = reported("--policy", str(EXAMPLES / "strict.yaml"))["missing"]
    assert missing.startswith("which namespaces are exempt by their label vramwarden.io/webhook: ")


def test_without_the_right_to_webhooks_the_charts_defaults_are_exempt(api):
    api.add(running("system", "8GB", namespace="kube-system"))
    api.denied.add(("list", "mutatingwebhookconfigurations"))
    why = "the chart's defaults: needs the right to list mutatingwebhookconfigurations"
    assert f"2 pods in 2 exempt namespaces are not judged, by {why}.\n" in run().stdout


def test_pods_that_a_runtime_would_give_gpus_are_named_before_anybody_denies_them(api):
    for name, pod in {"injected": DENIED["a slice"], "honest": HONEST["TCPXO"]}.items():
        notes = pod["metadata"]["annotations"]
        api.add(running(name, annotations=notes, **pod["spec"]))
    (found,) = [line for line in run().stdout.splitlines() if " DeviceInjection " in line]
    assert found.split()[-1] == "injected"
