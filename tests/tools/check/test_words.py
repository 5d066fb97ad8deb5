"""What findings say: which cause is named first, and the command to type."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.checked import BEFORE, INSTALLED, a_node, a_shared_node, a_workload, checked_pod
from tests.support.pods import a_container, a_pod
from webhook.core.pod.whole import Slice
from webhook.tools.check.judge.facts import DryRun, of_interest, read_gpu_claim
from webhook.tools.check.judge.findings import named, shortened
from webhook.tools.check.judge.table import run
from webhook.tools.shared.pod import ClusterPod

WHOLE = {"nvidia.com/gpu": "8"}
SHARE = {"vramwarden.io/share": "true"}


def finding(name, facts):
    results = {one.check.id: one.finding for one in run(facts, pre=facts.webhook is None)}
    return results.get(name)


def said(name, facts):
    found = finding(name, facts)
    return found and found.detail


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("v1.29.0", "1.29 has no admission policies"),
        ("v1.30.0", "1.30; fence.void and podRestart need 1.36"),
        ("v1.35.9", "1.35; fence.void and podRestart need 1.36"),
        ("v1.36.0", "1.36"),
    ],
)
def test_what_a_version_lacks_is_said(version, words):
    text = said("kubernetes-version", replace(BEFORE, version=version))
    assert text.removesuffix(", so nothing holds without us") == words
    has_fence = finding("admission-policies", replace(BEFORE, version=version)) is not None
    assert has_fence == (version >= "v1.30")
    of_release = replace(INSTALLED, version=version)
    for name in ("fence-policies", "fence-rules"):
        assert (finding(name, of_release) is not None) == has_fence


def test_a_restart_of_the_pod_needs_a_version_that_has_it():
    strict = replace(INSTALLED, policy=replace(INSTALLED.policy, restarts=("strict",)))
    assert finding("policy-features", replace(strict, version="v1.35.0")).level == "warning"
    assert finding("policy-features", replace(strict, version="v1.36.0")).level == "ok"


def test_nodes_that_are_shared_both_ways_are_named_apart_from_those_that_are_not_shared():
    asked = a_shared_node("n1", SHARE, allocatable=WHOLE)
    kept = a_node("n2", allocatable=WHOLE)
    both = a_shared_node("n3", allocatable=WHOLE)
    found = finding("whole-gpus", replace(INSTALLED, nodes=(asked, kept)))
    assert (found.level, found.about) == ("warning", ("n2",))
    assert "`kubectl label node n2 nvidia.com/gpu.deploy.device-plugin=false`" in found.cure
    found = finding("whole-gpus", replace(INSTALLED, nodes=(asked, kept, both)))
    assert (found.level, found.about) == ("failed", ("n3",))
    found = finding("whole-gpus", replace(INSTALLED, nodes=(asked,)))
    assert "n1 offers nvidia.com/gpu and is shared as well" in found.detail


def test_where_the_plugin_does_not_heed_its_label_the_cure_is_another():
    label = {"nvidia.com/gpu.deploy.device-plugin": "false"}
    for node in (
        a_node(labels=label, allocatable=WHOLE),
        a_shared_node(labels=label, allocatable=WHOLE),
    ):
        cure = finding("whole-gpus", replace(INSTALLED, nodes=(node,))).cure
        assert "the plugin does not heed it: give its DaemonSet the affinity" in cure
        assert "kubectl label node n1 nvidia.com" not in cure


def a_pod_on_n1(name, *, limits=None, status=None, **spec):
    containers = [a_container("main", resources={"limits": limits or {}})]
    pod = a_pod(containers=containers, nodeName="n1", **spec)
    pod["metadata"]["name"] = name
    return {**pod, "status": {"phase": "Running", **(status or {})}}


CLAIM = {
    "metadata": {"namespace": "team-a", "name": "gpu"},
    "status": {"allocation": {"devices": {"results": [{"driver": "gpu.nvidia.com"}]}}},
}


def test_pods_that_have_gpus_by_other_ways_are_named_with_their_nodes():
    claims = [{"name": "a", "resourceClaimName": "gpu"}]
    raw = [
        a_pod_on_n1("whole", limits={"nvidia.com/gpu": "1"}),
        a_pod_on_n1("claims", resourceClaims=claims),
        a_pod_on_n1("nothing"),
        a_pod_on_n1("over", limits={"nvidia.com/gpu": "1"}, status={"phase": "Succeeded"}),
        a_pod(containers=[a_container("main", resources={"limits": {"nvidia.com/gpu": "1"}})]),
    ]
    pods = tuple(filter(None, map(of_interest, map(ClusterPod, raw))))
    found = finding("whole-gpu-pods", replace(INSTALLED, pods=pods))
    assert found.about == ("team-a/whole",)
    assert found.detail == (
        "pods have whole GPUs where others have VRAM, so a card may be given twice: "
        "team-a/whole on n1"
    )
    assert "`kubectl drain n1 --ignore-daemonsets" in found.cure
    other = {
        **CLAIM,
        "status": {"allocation": {"devices": {"results": [{"driver": "nic.example"}]}}},
    }
    assert (read_gpu_claim(CLAIM), read_gpu_claim(other)) == ("team-a/gpu", "")
    facts = replace(INSTALLED, pods=pods, claimed=frozenset({read_gpu_claim(CLAIM)}))
    assert finding("resource-claims", facts).about == ("team-a/claims",)


def test_a_driver_that_offers_shared_gpus_is_named_with_their_node():
    one = Slice("n1-gpu.nvidia.com-x", "gpu.nvidia.com", frozenset({"GPU-a"}))
    found = finding("resource-claims", replace(INSTALLED, nodes=(a_shared_node(slices=[one]),)))
    assert found.detail == (
        "the DRA driver gpu.nvidia.com offers GPUs that pods with VRAM get, too: n1"
    )
    assert found.cure.startswith("take the driver off the node")
    # What the agent saw is believed where nobody else may read it, and of a driver that restarts.
    seen = a_node(metadata={"annotations": {"vramwarden.io/dra-driver": "gpu.nvidia.com"}})
    assert said("resource-claims", replace(INSTALLED, nodes=(seen,))) == "of n1 alone, not shared"
    assert said("advertised", replace(INSTALLED, nodes=(seen,))) == "none is to be shared"


def test_a_broken_gpu_is_named_with_its_fault_and_an_xid_with_how_to_take_it_back():
    lost = {"uuid": "GPU-b", "index": 1, "healthy": False}
    facts = replace(INSTALLED, nodes=(a_shared_node(gpus=({}, lost)),))
    found = finding("gpus-answer", facts)
    assert found.detail == "nothing new is placed on GPU 1 of n1 (is lost or unhealthy)"
    assert "forget-xids" not in found.cure
    lost |= {"fault": "Xid 79", "xid": 79}
    facts = replace(INSTALLED, nodes=(a_shared_node(gpus=({}, lost)),))
    found = finding("gpus-answer", facts)
    assert found.detail == "nothing new is placed on GPU 1 of n1 (Xid 79)"
    assert "`kubectl annotate node n1 vramwarden.io/forget-xids=true`" in found.cure


def test_a_rule_whose_slots_have_another_name_is_told_theirs():
    labels = {"nvidia.com/gpu.replicas": "4", "vramwarden.io/share": "false"}
    node = a_node(labels=labels, allocatable={"nvidia.com/gpu.shared": "4"})
    policy = replace(INSTALLED.policy, slots=(("notebooks", "nvidia.com/gpu"),))
    found = finding("time-slicing", replace(INSTALLED, nodes=(node,), policy=policy))
    assert found.detail == (
        "pods of rule notebooks ask for nvidia.com/gpu, and nodes offer nvidia.com/gpu.shared"
    )
    assert found.cure == "set timeSlicedResource: nvidia.com/gpu.shared in that rule"


def test_a_driver_that_is_too_old_is_named_and_one_that_is_not_is_no_cause():
    none = {"vramwarden.io/enforcement": "none"}
    old = a_shared_node("n1", none | {"vramwarden.io/driver-version": "535.129.03"})
    new = a_shared_node("n2", none)
    found = finding("enforcement", replace(INSTALLED, nodes=(new, old)))
    assert "driver 535.129.03 does not report processes' memory" in found.detail
    assert found.cure == "upgrade the driver there to 565.57.01 or newer"
    found = finding("enforcement", replace(INSTALLED, nodes=(new,)))
    assert "though the driver is new enough" in found.detail


def test_without_an_agent_no_node_is_blamed():
    facts = replace(INSTALLED, agent=None, nodes=(a_node(),))
    assert finding("advertised", facts) is None
    assert finding("agents", facts).level == "warning"


def test_of_a_node_that_is_not_shared_yet_it_is_said_for_what_its_agent_waits():
    asks = a_node(labels={"vramwarden.io/whole-gpu-pods": "1800000000"})
    found = finding("advertised", replace(INSTALLED, nodes=(asks, a_node("n2", age_s=9))))
    assert (found.level, found.about) == ("warning", ("n1", "n2"))
    why = "n1: its agent waits for a replica of the webhook to say which pods there have whole GPUs"
    assert found.detail == why
    assert found.cure.startswith("wait; if vramwarden.io/vram is missing in ten minutes, see why: ")


def test_nodes_that_show_their_memory_are_counted():
    assert said("advertised", INSTALLED) == "160Gi on 2 of 2 nodes"
    whole = replace(INSTALLED, nodes=(a_node(allocatable=WHOLE),))
    assert said("advertised", whole) == "none is to be shared"


def test_an_unready_agent_is_named_with_its_own_reason():
    pods = (
        checked_pod("x/sentry-y", component="sentry", node="n1", not_ready="of the sentry"),
        checked_pod("x/agent-x", component="agent", node="", not_ready="no driver yet"),
    )
    facts = replace(INSTALLED, agent=a_workload("agent", ready=1), own_pods=pods)
    found = finding("agents", facts)
    assert found.detail == "ready: 1 of 2 nodes: no driver yet (node unknown)"
    assert found.cure == "`kubectl -n vramwarden-system describe pods agent-x`"
    assert found.about == ()


def test_figures_may_be_three_minutes_old():
    at_s = {"n1": INSTALLED.now_s - 180, "n2": INSTALLED.now_s}
    assert finding("figures", replace(INSTALLED, gpu_nodes=at_s)).level == "ok"
    ahead_s = {"n1": INSTALLED.now_s + 181, "n2": INSTALLED.now_s}
    assert finding("figures", replace(INSTALLED, gpu_nodes=ahead_s)).about == ("n1",)


def test_a_sidecar_that_waits_for_an_image_without_a_name_counts():
    facts = replace(
        INSTALLED, pods=(checked_pod("a/b", managed=True, pull_failure=("", "no such image")),)
    )
    assert finding("sidecar-image", facts).level == "failed"


def test_a_policy_that_is_missing_is_named_by_its_value():
    names = INSTALLED.fences - {"vramwarden-debuggers"}
    facts = replace(INSTALLED, fences=names, fence_bindings=names)
    assert finding("fence-policies", facts).level == "warning"
    assert finding("fence-policies", facts).about == ("fence.sidecar",)


def test_the_void_is_named_where_it_stands():
    names = INSTALLED.fences | {"vramwarden-void"}
    facts = replace(INSTALLED, fences=names, fence_bindings=names)
    assert said("fence-policies", INSTALLED) == "secondLine, sidecar, enforcer, exemption, accounts"
    assert (
        said("fence-policies", facts) == "secondLine, sidecar, enforcer, exemption, accounts, void"
    )


CAUSES = {
    "x509: certificate signed by unknown authority": "does not trust its certificate",
    "x509: certificate has expired or is not yet valid": "has expired",
    'no endpoints available for service "vramwarden-webhook"': "no replica is ready",
    "connect: connection refused": "nobody listens",
    "context deadline exceeded": "does not answer in time",
    'service "vramwarden-webhook" not found': "its Service is gone",
    "something new": "the API server does not reach it",
}


@pytest.mark.parametrize(("answer", "why"), CAUSES.items())
def test_why_an_api_server_does_not_reach_it_is_said(answer, why):
    run_dry = DryRun(
        created=False, answer=f'failed calling webhook "mutate.vramwarden.io": {answer}'
    )
    found = finding("pod-asks", replace(INSTALLED, asks=run_dry))
    assert why in found.detail.partition(": failed calling")[0]
    assert found.cure
    assert "{}" not in found.cure


def test_names_and_counts_are_short():
    assert named(["b", "a"]) == "a, b"
    assert named(["d", "c", "b", "a"]) == "a, b, c and 1 more"
    assert shortened("a\n b") == "a b"
    assert shortened("x" * 400) == "x" * 299 + "…"


def test_a_certificate_warns_from_a_week_on_and_fails_once_it_has_expired():
    def level(name, days):
        certificate = replace(INSTALLED.certificate, days_left=days)
        authorities = (replace(INSTALLED.authorities[0], days_left=days),)
        facts = replace(INSTALLED, certificate=certificate, authorities=authorities)
        return finding(name, facts).level

    for name in ("certificate", "ca-bundle"):
        found = [level(name, days) for days in (0.0, 0.1, 7.0, 7.1)]
        assert found == ["failed", "warning", "warning", "ok"]


def test_who_denied_a_good_pod_is_said():
    ours = 'admission webhook "mutate.vramwarden.io" denied the request: TooLarge: no'
    for answer, words in ((ours, "the policy denies it: "), ("exceeded quota", "it was denied: ")):
        text = said("pod-asks", replace(INSTALLED, asks=DryRun(created=False, answer=answer)))
        assert text == f"in namespace default {words}{answer}"


def test_further_problems_of_a_policy_are_counted():
    for problems, more in ((("one",), "one"), (("one", "two", "three"), "one and 2 more")):
        facts = replace(INSTALLED, policy=replace(INSTALLED.policy, problems=problems))
        assert said("policy-valid", facts) == more


def test_a_release_without_a_version_is_not_called_one():
    facts = replace(INSTALLED, webhook=a_workload(version=""))
    assert said("release", facts).startswith("of an unknown version in namespace")
    assert "the release unknown" in said("release-version", facts)
    assert said("release", INSTALLED) == "0.1.0 in namespace vramwarden-system"


def test_containers_that_void_left_alone_for_a_device_are_found_by_their_resources():
    pod = a_pod(
        containers=[
            a_container("net", resources={"limits": {"rdma/hca": "1", "cpu": "1"}}),
            a_container("claims", resources={"requests": {"a/b": "1"}, "claims": [{"name": "x"}]}),
            a_container(
                "named",
                resources={"limits": {"a/b": "1"}},
                env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}],
            ),
            a_container("own", resources={"limits": {"x.kubernetes.io/y": "1"}}),
        ]
    )
    found = of_interest(ClusterPod(pod))
    assert (found.path, found.devices) == ("team-a/train", {("rdma/hca",)})
    del pod["spec"]["containers"][0]
    assert of_interest(ClusterPod(pod)) is None
