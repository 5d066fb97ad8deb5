"""Faults and near faults of a pod, and pods that are not judged."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.core.admission.decisions import (
    EVERYWHERE,
    a_full_pod,
    assert_admitted,
    assert_denied,
    assert_unchanged,
    decide_pod,
    host_path,
    limits,
    merge_fields,
    merge_into_container,
    resolve_last_index,
    translate,
    variable,
)
from tests.core.admission.faults import SHM, SPEC_FAULTS
from tests.support.pods import a_rule
from webhook.core.admission.decision import Outcome, Phase
from webhook.core.pod.findings import Reason
from webhook.core.policy.cluster import Cluster
from webhook.core.policy.model import Action, DriverLimit, EnforceBy, Rollout


@pytest.mark.parametrize(("reason", "fields", "path"), SPEC_FAULTS, ids=str)
def test_a_pod_with_a_fault_is_denied_and_found_again_when_it_is_stored(reason, fields, path):
    pod = a_full_pod(**fields)
    for phase in Phase:
        assert_denied(decide_pod(pod, phase=phase), reason, resolve_last_index(path, pod))
    if reason is not Reason.RESERVED_NAME:
        pod = translate(a_full_pod())
        merge_fields(pod["spec"], fields)
        assert_denied(decide_pod(pod, phase=Phase.VALIDATE), reason, resolve_last_index(path, pod))


FINE_PATHS = (
    *(SHM, f"{SHM}/", f"{SHM}/x", "/dev/hugepages", "/devices", "/dev/../x", "/data", "/data/dev"),
    *("/data/dev/nvidia0", "data", "/mnt/models", "/home", "/opt", "/etc/localtime", "/processes"),
    *("/var/lib/models", "/var/lib/kubelets", "/var/log", "/var/running", "/runs", "/srv/run"),
)


@pytest.mark.parametrize(
    "fields",
    [
        {"hostIPC": False},
        {"hostNetwork": True},
        {"nodeName": ""},
        {"nodeSelector": {"kubernetes.io/hostname": "node-1"}},
        {"nodeSelector": {"vramwarden.io/gpu": "true", "kubernetes.io/os": "linux"}},
        {"os": {"name": "linux"}},
        {"resourceClaims": []},
        {"schedulerName": "other"},
        *map(host_path, FINE_PATHS),
        {"volumes": [{"name": "dev", "emptyDir": {}}, {"name": "vram-enforcer", "emptyDir": {}}]},
    ],
    ids=str,
)
def test_a_pod_that_is_nearly_at_fault_is_admitted_and_stored(fields):
    assert_admitted(a_full_pod(**fields))


PROCESS_NAMESPACES = {
    ("hostPID", EnforceBy.SIDECAR, True): "HostPID",
    ("hostPID", EnforceBy.SENTRY, True): "HostPID",
    ("shareProcessNamespace", EnforceBy.SIDECAR, False): "ProcessNamespaceNotShared",
}
"""Field, enforcer and value of each denied process namespace; all others are admitted."""


@pytest.mark.parametrize("value", [True, False, None])
@pytest.mark.parametrize("by", EnforceBy)
@pytest.mark.parametrize("field", ["hostPID", "shareProcessNamespace"])
def test_the_process_namespace_is_the_users_as_far_as_the_cap_can_be_held(field, by, value):
    pod, rule = a_full_pod(**{field: value}), a_rule(enforcement={"by": by})
    reason = PROCESS_NAMESPACES.get((field, by, value))
    if reason is None:
        assert_admitted(pod, rule)
        shares = field == "shareProcessNamespace" and by is EnforceBy.SIDECAR
        assert translate(pod, rule)["spec"][field] == (True if shares else value)
        return
    for phase in Phase:
        assert_denied(decide_pod(pod, rule, phase), reason, f"spec.{field}")


@pytest.mark.parametrize(
    ("by", "why"),
    [
        (EnforceBy.SIDECAR, "the sidecar that holds the cap needs the pod's own process namespace"),
        (
            EnforceBy.SENTRY,
            "processes of the pod could stop the node's sentry, which holds the cap",
        ),
    ],
)
def test_what_is_said_of_the_nodes_processes_is_true_of_the_enforcer(by, why):
    (finding,) = decide_pod(a_full_pod(hostPID=True), a_rule(enforcement={"by": by})).findings
    assert finding.detail == f"remove hostPID; {why}"


@pytest.mark.parametrize("action", [Action.WARN, Action.AUDIT])
@pytest.mark.parametrize("by", EnforceBy)
def test_a_rule_that_denies_nothing_translates_no_pod_that_sees_the_nodes_processes(by, action):
    rule = a_rule(action=action, enforcement={"by": by})
    decision = decide_pod(a_full_pod(hostPID=True), rule)
    reasons = () if by is EnforceBy.NONE else ("HostPID",)
    assert (decision.allowed, decision.reasons) == (True, reasons)
    assert bool(decision.patch) is (by is EnforceBy.NONE and action is Action.WARN)


def test_a_pod_without_a_demand_may_do_all_this():
    pod = a_full_pod(
        None,
        hostPID=True,
        nodeName="node-1",
        shareProcessNamespace=False,
        os={"name": "windows"},
        nodeSelector={"vramwarden.io/gpu": "false"},
        resourceClaims=[{"name": "gpu"}],
        **host_path("/dev"),
    )
    merge_into_container(pod, "main", {"securityContext": {"privileged": True}})
    merge_into_container(pod, "second", variable("CUDA_MPS_PIPE_DIRECTORY", "/mps"))
    for phase in Phase:
        assert_unchanged(decide_pod(pod, phase=phase))


# --- spec.nodeName at creation


BRINGING = (
    *("nvidia.com/gpu", "amd.com/gpu", "nvidia.com/mig-1g.10gb", "nvidia.com/gpu.shared"),
    *("nvidia.com/x", "tencent.com/vcuda-core"),
)


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("container", EVERYWHERE)
@pytest.mark.parametrize("resource", BRINGING)
def test_only_the_scheduler_binds_a_pod_with_whole_gpus(resource, container, phase):
    pod = a_full_pod(None, nodeName="node-1")
    merge_into_container(pod, container, limits(resource, "1"))
    decision = decide_pod(pod, phase=phase)
    assert_denied(decision, "NodeNamePreset", "spec.nodeName")
    assert "nodeSelector kubernetes.io/hostname" in decision.message
    assert "DaemonSet" in decision.message
    observed = decide_pod(pod, phase=phase, cluster=Cluster(Rollout.OBSERVE))
    assert (observed.outcome, observed.reasons) == (Outcome.WARNED, ("NodeNamePreset",))
    ignored = decide_pod(pod, a_rule(action=Action.IGNORE), phase)
    assert ignored.reasons == ("RuleIgnores",)
    pod["metadata"]["annotations"] = MIRROR
    assert decide_pod(pod, phase=phase, groups=("system:nodes",)).reasons == ("MirrorPod",)


@pytest.mark.parametrize(
    ("resource", "node"),
    [
        *((("nvidia.com/gpu", "1"), node) for node in ("", None)),
        *((resource, "node-1") for resource in (("nvidia.com/gpu", "0"), ("rdma/hca", "1"))),
        (("nvidia.com/hostdev", "1"), "node-1"),
    ],
)
def test_a_pod_without_whole_gpus_or_node_name_is_left_alone(resource, node):
    pod = a_full_pod(None, nodeName=node)
    merge_into_container(pod, "main", limits(*resource))
    assert_unchanged(decide_pod(pod))


# --- mirror pods


MIRROR = {"kubernetes.io/config.mirror": "hash"}


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize(
    ("annotations", "groups", "skipped"),
    [
        (MIRROR, ("system:nodes", "system:authenticated"), True),
        ({"kubernetes.io/config.mirror": ""}, ("system:nodes",), True),
        (MIRROR, ("system:authenticated",), False),
        (MIRROR, (), False),
        (MIRROR, ("system:nodes:x",), False),
        ({}, ("system:nodes",), False),
    ],
)
def test_only_a_pod_that_a_kubelet_mirrors_is_left_alone(annotations, groups, skipped, phase):
    pod = a_full_pod(hostPID=True, nodeName="node-1", annotations=annotations)
    decision = decide_pod(pod, phase=phase, groups=groups)
    if skipped:
        assert (decision.allowed, decision.patch) == (True, ())
        assert decision.reasons == ("MirrorPod",)
    else:
        assert not decision.allowed
        assert decision.reasons == ("NodeNamePreset", "HostPID")


LIMITED = "vramwarden.io/driver-limit"
REQUIRES = a_rule(default_class="a100", enforcement={"driver_limit": DriverLimit.REQUIRE})
OF_THE_RULE = {"vramwarden.io/gpu": "true", "nvidia.com/gpu.product": "A100"}


@pytest.mark.parametrize("selector", [{}, {LIMITED: "true"}, {LIMITED: "false"}], ids=str)
@pytest.mark.parametrize("limit", DriverLimit)
def test_who_requires_the_drivers_limit_selects_nodes_that_have_it_beside_all_others(
    limit, selector
):
    rule = replace(REQUIRES, enforcement=replace(REQUIRES.enforcement, driver_limit=limit))
    pod = a_full_pod(nodeSelector=selector)
    if limit is DriverLimit.REQUIRE and "false" in selector.values():
        path = f"spec.nodeSelector[{LIMITED}]"
        for phase in Phase:
            assert_denied(decide_pod(pod, rule, phase), Reason.NODE_SELECTOR_CONFLICT, path)
        return
    required = {LIMITED: "true"} if limit is DriverLimit.REQUIRE else {}
    assert translate(pod, rule)["spec"]["nodeSelector"] == OF_THE_RULE | selector | required


@pytest.mark.parametrize(
    ("rule", "limits", "warned"),
    [
        (REQUIRES, False, 1),
        (REQUIRES, True, 0),
        (REQUIRES, None, 0),
        (a_rule(), False, 0),
    ],
)
def test_where_no_node_has_the_limit_that_a_pod_requires_it_is_warned_and_not_denied(
    rule, limits, warned
):
    decision = decide_pod(a_full_pod(), rule, cluster=Cluster(limits=limits))
    assert decision.allowed
    said = (
        f"spec.nodeSelector[{LIMITED}]: rule default requires a node whose driver holds caps, and "
        "no node has that label now: the pod waits until one has"
    )
    assert decision.notes == (said,) * warned
    stored = decide_pod(decision.obj, rule, Phase.VALIDATE, cluster=Cluster(limits=limits))
    assert (stored.allowed, stored.notes) == (True, ())
