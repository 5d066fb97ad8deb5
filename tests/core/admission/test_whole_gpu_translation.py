"""Pods under `translateWholeGPU` get a share in place of one whole GPU, or keep the GPU."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.admission.decisions import GI, assert_unchanged
from tests.core.admission.test_laws import RULES, defaulted
from tests.support.pods import a_container, a_pod, a_policy, a_request, a_rule
from tests.support.strategies import asking_pods
from webhook.core.admission.decide import decide
from webhook.core.admission.decision import Outcome, Phase
from webhook.core.admission.workload_review import advise, verify_patch
from webhook.core.pod.demand import read_demand
from webhook.core.pod.patch import apply_patch, condense
from webhook.core.pod.views import read_pod
from webhook.core.policy.cluster import UNKNOWN_CLUSTER, Cluster
from webhook.core.policy.gpu_resources import WHOLE_GPU_RESOURCES
from webhook.core.policy.model import Action, Rollout

GPU = "nvidia.com/gpu"
PATH = f"spec.containers[0].resources.limits[{GPU}]"
TAKEN = (
    f'{PATH}: rule "default" gives 16Gi of a GPU in place of a whole one; for another size write '
    "vramwarden.io/gpu-memory in its place; for a whole GPU ask your platform team"
)


def a_policy_that_shares(**rule):
    rule.setdefault("translate_whole_gpu_bytes", 16 * GI)
    return a_policy(a_rule(**rule), whole_gpu_resources=WHOLE_GPU_RESOURCES)


def gpus(amount="1", name="main", **more):
    """Return a container with `amount` whole GPUs, as the API server stores it."""
    amounts = {"cpu": "1", GPU: amount, **more}
    return a_container(name, resources={"limits": amounts, "requests": dict(amounts)})


def a_whole_pod(*containers, **fields):
    return a_pod(containers=list(containers) or [gpus()], **fields)


def decided(pod, policy=None, phase=Phase.MUTATE, cluster=UNKNOWN_CLUSTER, **fields):
    return decide(a_request(pod, **fields), policy or a_policy_that_shares(), cluster, phase)


def test_a_pod_with_one_whole_gpu_gets_a_share_in_its_place():
    pod = a_whole_pod()
    before = copy.deepcopy(pod)
    decision = decided(pod)
    assert (decision.outcome, decision.warnings) == (Outcome.MUTATED, (TAKEN,))
    assert pod == before == decision.original
    wanted = a_pod("main=16Gi", containers=[a_container(resources=both({"cpu": "1"}))])
    wanted["metadata"]["annotations"]["vramwarden.io/in-place-of"] = GPU
    assert decision.obj == decided(wanted).obj
    amounts = {"cpu": "1", "vramwarden.io/vram": "16Gi"}
    assert decision.obj["spec"]["containers"][0]["resources"] == both(amounts)


def both(amounts):
    return {"limits": dict(amounts), "requests": dict(amounts)}


@pytest.mark.parametrize(
    ("pod", "where"),
    [
        (a_whole_pod(a_container(resources={"limits": {GPU: 1}})), "containers[0]"),
        (a_whole_pod(a_container(resources={"limits": {GPU: "1000m"}})), "containers[0]"),
        (a_whole_pod(a_container("web"), gpus()), "containers[1]"),
        (a_pod(initContainers=[gpus(name="fetch")]), "initContainers[0]"),
        (a_pod(initContainers=[gpus(name="f") | {"restartPolicy": "Always"}]), "initContainers[0]"),
    ],
)
def test_whichever_container_asks_for_it(pod, where):
    decision = decided(pod)
    assert decision.warnings == (TAKEN.replace("containers[0]", where),)
    demand, findings = read_demand(read_pod(decision.obj))
    assert (demand.per_gpu_bytes, demand.gpu_count, findings) == (16 * GI, 1, ())
    assert len(demand.amounts) == 1
    assert GPU not in str(decision.obj["spec"])


SILENT = [
    a_whole_pod(gpus("2")),
    a_whole_pod(gpus("0")),
    a_whole_pod(gpus(), gpus(name="second")),
    a_whole_pod(gpus(), initContainers=[gpus(name="fetch")]),
    a_whole_pod(gpus(), gpus("0", name="second")),
    a_whole_pod(gpus(**{"nvidia.com/mig-1g.5gb": "1"})),
    a_whole_pod(gpus(), a_container("second", resources={"limits": {"amd.com/gpu": "1"}})),
    a_whole_pod(resourceClaims=[{"name": "nic", "resourceClaimName": "one"}]),
    a_whole_pod(a_container(resources={"limits": {"nvidia.com/gpu.shared": "1"}})),
    a_pod(),
]


@pytest.mark.parametrize("pod", SILENT)
def test_what_asks_for_more_or_otherwise_is_left_in_silence(pod):
    decision = decided(pod)
    assert (decision.outcome, decision.patch, decision.warnings) == (Outcome.ALLOWED, (), ())


@pytest.mark.parametrize("rule", [{"translate_whole_gpu_bytes": None}, {"action": Action.AUDIT}])
def test_a_rule_that_does_not_say_so_or_only_records_leaves_it(rule):
    decision = decided(a_whole_pod(), a_policy_that_shares(**rule))
    assert (decision.outcome, decision.patch, decision.warnings) == (Outcome.ALLOWED, (), ())
    ignored = decided(a_whole_pod(), a_policy_that_shares(action=Action.IGNORE))
    assert (ignored.outcome, ignored.patch) == (Outcome.SKIPPED, ())


def test_a_rule_that_warns_gives_the_share():
    decision = decided(a_whole_pod(), a_policy_that_shares(action=Action.WARN))
    assert (decision.outcome, decision.warnings) == (Outcome.MUTATED, (TAKEN,))


def test_while_a_rollout_observes_the_pod_reads_what_it_will_be():
    decision = decided(a_whole_pod(), cluster=Cluster(Rollout.OBSERVE))
    assert_unchanged(decision)
    (said,) = decision.warnings
    assert said.startswith(
        f'{PATH}: after the rollout, rule "default" gives 16Gi of a GPU in place'
    )


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"hostPID": True}, "HostPID: spec.hostPID: "),
        ({"nodeSelector": {"vramwarden.io/gpu": "false"}}, "NodeSelectorConflict: "),
        ({"tolerations": {}}, "spec.tolerations: must be a list, not an object"),
    ],
)
@pytest.mark.parametrize("action", [Action.ENFORCE, Action.WARN])
def test_what_would_be_denied_as_a_share_keeps_its_gpu_and_reads_why(fields, why, action):
    decision = decided(a_whole_pod(**fields), a_policy_that_shares(action=action))
    assert_unchanged(decision)
    (said,) = decision.warnings
    start = f'{PATH}: the pod keeps its whole GPU, for a share of 16Gi by rule "default" would be '
    assert said.startswith(f"{start}denied: {why}")


@pytest.mark.parametrize("action", [Action.ENFORCE, Action.WARN])
def test_a_pod_that_names_its_node_gets_neither(action):
    decision = decided(a_whole_pod(nodeName="node1"), a_policy_that_shares(action=action))
    assert (decision.reasons, decision.patch) == (("NodeNamePreset",), ())
    assert decision.allowed is (action is Action.WARN)


@pytest.mark.parametrize(
    ("pod", "reason"),
    [
        (a_pod("8Gi", containers=[gpus()]), "WholeGPUAndShare"),
        (a_pod("8GB", containers=[gpus()]), "InvalidQuantity"),
        (a_whole_pod(annotations={"vramwarden.io/gpu-class": "a100"}), "InvalidQuantity"),
        (a_whole_pod(gpus("500m")), "FractionalWholeGPU"),
        (a_whole_pod(a_container(resources={"requests": {GPU: "1"}})), "RequestsLimitsMismatch"),
        (
            a_whole_pod(a_container(resources={"requests": {GPU: "1"}, "limits": {GPU: "2"}})),
            "RequestsLimitsMismatch",
        ),
    ],
)
def test_what_was_denied_beside_a_whole_gpu_still_is(pod, reason):
    decision = decided(pod)
    assert decision.outcome is Outcome.DENIED
    assert reason in decision.reasons
    assert decision.notes == ()


def test_a_fault_of_a_pod_without_a_demand_is_denied_as_ever():
    pod = a_whole_pod(gpus() | {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]})
    decision = decided(pod)
    assert decision == decided(pod, a_policy_that_shares(translate_whole_gpu_bytes=None))
    assert decision.reasons == ("VisibleDevicesOverride",)


def test_only_a_creation_before_it_is_stored_is_translated():
    pod = a_whole_pod()
    stored = decided(pod, phase=Phase.VALIDATE)
    assert (stored.outcome, stored.warnings) == (Outcome.ALLOWED, ())
    labelled = a_whole_pod(labels={"app": "x"})
    for phase in Phase:
        for subresource in ("", "resize"):
            assert_unchanged(
                decided(labelled, phase=phase, operation="UPDATE", old=pod, subresource=subresource)
            )


def test_what_the_rule_gave_cannot_be_changed_afterwards():
    shared = decided(a_whole_pod()).obj
    whole = copy.deepcopy(shared)
    del whole["metadata"]["annotations"]["vramwarden.io/gpu-memory"]
    changed = decided(whole, operation="UPDATE", old=shared, phase=Phase.VALIDATE)
    assert changed.reasons == ("Immutable",)


def test_the_warning_fits_into_what_the_api_server_returns():
    policy = a_policy_that_shares(name="a-rule-of-a-research-group")
    containers = [gpus(name="c") if n == 99 else a_container(f"c{n}") for n in range(100)]
    (said,) = decided(a_whole_pod(*containers), policy).warnings
    assert len(said) <= 256


def test_the_author_of_a_workload_reads_it_too():
    owner = {"metadata": {"name": "train"}, "spec": {"template": a_whole_pod()}}
    request = a_request(owner, kind="apps/Deployment")
    (said,) = advise(request, a_policy_that_shares(), UNKNOWN_CLUSTER).warnings
    assert said == f"spec.template.{TAKEN}"


@st.composite
def whole_pods(draw):
    """Draw a pod with one whole GPU in place of a demand."""
    pod = draw(asking_pods())
    annotations = pod["metadata"]["annotations"]
    for key in [key for key in annotations if key.startswith("vramwarden.io/")]:
        del annotations[key]
    if not annotations and draw(st.booleans()):
        del pod["metadata"]["annotations"]
    containers = [*pod["spec"]["containers"], *pod["spec"].get("initContainers", ())]
    for container in containers:
        ((container.get("resources") or {}).get("limits") or {}).pop("vramwarden.io/vram", None)
    container = draw(st.sampled_from(containers))
    resources = container["resources"] = container.get("resources") or {}
    for kind in ("limits", "requests"):
        resources[kind] = {**(resources.get(kind) or {}), GPU: "1"}
    return pod


@given(whole_pods(), RULES)
def test_laws_hold_for_what_was_a_whole_gpu(pod, rule):
    policy = a_policy_that_shares(
        **{
            name: getattr(rule, name)
            for name in ("placement", "visible_devices", "programs", "env", "enforcement")
        }
    )
    decision = decided(pod, policy)
    assert decision.outcome is Outcome.MUTATED, decision.message
    verify_patch(
        a_request(pod), decision.patch, policy, UNKNOWN_CLUSTER
    )  # translating twice changes nothing more, and the pod may be stored
    sent = condense(pod, decision.patch, "spec")
    assert apply_patch(pod, sent) == decision.obj
    assert decided(defaulted(decision.obj), policy).patch == ()
    assert GPU not in str(decision.obj["spec"].get("containers"))
