"""Containers that nobody promised a device see none, by the API server alone."""

from __future__ import annotations

import copy
import uuid
from dataclasses import replace

import pytest

from tests.chart.admission_policies import GROUP, apply, parameter, write_parameter
from tests.chart.fenced import Fenced
from tests.chart.recorded_reviews import denial
from tests.support.charts import one
from tests.support.control_planes import wait_until
from tests.support.pods import a_container, a_pod, a_policy, a_request, a_rule
from tests.support.webhook_configurations import installed
from webhook.core.admission.decide import Outcome, Phase, decide
from webhook.core.pod.complexity import UNREAD
from webhook.core.policy.cluster import UNKNOWN
from webhook.core.policy.fence import fence_data
from webhook.core.policy.match import Match
from webhook.core.policy.values import WHOLE_GPU_RESOURCES, Action, Rollout, VisibleDevices

NAME = "vramwarden-void"
KIND = "MutatingAdmissionPolicy"
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
VOID = {"name": VISIBLE, "value": "void"}
OTHER = {"name": "A", "value": "1"}
VOIDING = a_policy(whole_gpu_resources=WHOLE_GPU_RESOURCES)


class Voiding(Fenced):
    """Puts the policy into force with the rules of a policy of ours."""

    rules = None

    def under(self, policy=None):
        if policy == self.rules:
            return self
        mark = uuid.uuid4().hex
        write_parameter(self.api, policy, probe=mark)
        found = copy.deepcopy(one(self.objects, KIND, NAME))
        # Under our conditions, too, so that it shows when they are in force.
        patch = "JSONPatch{op: 'add', path: '/metadata/annotations', value: {'probe': %s}}"
        probing = "object.metadata.?labels[?'probe'].orValue('') == 'x' ? [%s] : []" % (
            patch % "params.data['probe']"
        )
        expression = {"jsonPatch": {"expression": probing}, "patchType": "JSONPatch"}
        probe = {**found, "metadata": {"name": "probe"}, "spec": copy.deepcopy(found["spec"])}
        probe["spec"].pop("variables")
        conditions = probe["spec"]["matchConditions"]
        probe["spec"]["matchConditions"] = [
            condition for condition in conditions if condition["name"] != "a-rule-may-void"
        ]
        probe["spec"]["mutations"] = [expression]
        binding = one(self.objects, f"{KIND}Binding", NAME)
        bound = {**binding, "metadata": {"name": "probe"}, "spec": {**binding["spec"]}}
        bound["spec"]["policyName"] = "probe"
        for thing in (found, binding, probe, bound):
            apply(self.api, thing)
        pod = a_pod(labels={"probe": "x"})

        def holds():
            seen = self.create(pod, api=self.api)["metadata"].get("annotations", {})
            return seen.get("probe") == mark

        wait_until(f"{NAME} is in force", holds)
        self.rules = policy
        return self

    def close(self):
        version = GROUP.removeprefix("/apis/")
        for kind in (f"{KIND}Binding", KIND):
            for name in (NAME, "probe"):
                self.api.delete({"apiVersion": version, "kind": kind, "metadata": {"name": name}})
        for pod in self._pods:
            self.api.delete(pod, gracePeriodSeconds="0")


@pytest.fixture(scope="module")
def cluster(control_plane, helm):
    """Be a cluster with nothing of us except this policy."""
    found = Voiding(control_plane, helm, NAME)
    yield found
    found.close()


@pytest.fixture
def voiding(cluster):
    return cluster.under(VOIDING)


def envs(pod, field="containers"):
    return [container.get("env", []) for container in pod["spec"].get(field, [])]


@pytest.mark.parametrize("field", ["containers", "initContainers"])
def test_each_container_is_voided_and_keeps_its_variables(voiding, field):
    several = [
        a_container("bare"),
        a_container("empty", env=[]),
        a_container("other", env=[OTHER]),
        a_container("from", envFrom=[{"configMapRef": {"name": "m"}}]),
        a_container("cuda", env=[{"name": "CUDA_VERSION", "value": "12.4"}]),
        a_container("zero", resources={"limits": {"nvidia.com/gpu": "0"}}),
        a_container("own", resources={"limits": {"cpu": "1", "hugepages-2Mi": "2Mi"}}),
        a_container("native", resources={}, restartPolicy=None),
        a_container("rdma", resources={"limits": {"rdma/hca": "1"}}),
        a_container("card", resources={"limits": {"nvidia.com/hostdev": "1"}}),
        a_container("fpga", resources={"limits": {"example.com/fpga": "2"}}),
    ]
    pod = a_pod(**{"containers": [a_container()], field: several})
    found = voiding.create(pod)
    cuda = {"name": "CUDA_VERSION", "value": "12.4"}
    expected = [[VOID], [VOID], [OTHER, VOID], [VOID], [cuda, VOID], *[[VOID]] * 6]
    assert envs(found, field) == expected
    if field == "initContainers":
        assert envs(found) == [[VOID]]


@pytest.mark.parametrize(
    "entry",
    [
        {"value": "all"},
        {"value": "void"},
        {"value": ""},
        {"valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}},
    ],
)
def test_a_container_that_names_the_variable_is_the_rules_to_judge(voiding, entry):
    named = {"name": VISIBLE, **entry}
    found = voiding.create(a_pod(containers=[a_container(env=[named]), a_container("other")]))
    kept, voided = envs(found)
    assert [item.get("value", "") for item in kept] == [entry.get("value", "")]
    assert len(kept) == 1
    assert voided == [VOID]


PROMISED = {
    "a whole GPU": {"resources": {"limits": {"nvidia.com/gpu": "1"}}},
    "VRAM": {"resources": {"limits": {"vramwarden.io/vram": "8Gi"}}},
    "a slice": {"resources": {"limits": {"nvidia.com/mig-1g.10gb": "1"}}},
    "a GPU of another name": {"resources": {"limits": {"nvidia.com/a100": "1"}}},
    "another product's": {"resources": {"limits": {"tencent.com/vcuda-core": "10"}}},
    "a device of a class": {
        "resources": {"limits": {"deviceclass.resource.kubernetes.io/gpu.nvidia.com": "1"}}
    },
    "a claim": {"resources": {"claims": [{"name": "gpu"}]}},
    "the sidecar": {"name": "vram-enforcer"},
}


@pytest.mark.parametrize("promised", PROMISED.values(), ids=PROMISED)
@pytest.mark.parametrize("field", ["containers", "initContainers"])
def test_a_container_that_was_promised_a_device_is_left_alone(voiding, promised, field):
    claims = [{"name": "gpu", "resourceClaimName": "gpu"}]
    spec = {"containers": [a_container("other")], "resourceClaims": claims}
    spec[field] = [{**a_container("promised"), **promised}, a_container("next")]
    found = voiding.create(a_pod(**spec))
    assert envs(found, field) == [[], [VOID]]


def test_new_debugging_containers_are_voided(voiding, cluster):
    cluster.under(LEFT_ALONE["no rule"])
    pod = cluster.create(a_pod(), dry_run=False)
    path = f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}/ephemeralcontainers"
    change = {"spec": {"ephemeralContainers": [a_container("old")]}}
    kind = "application/strategic-merge-patch+json"
    cluster.alice.request("PATCH", path, change, content_type=kind)
    cluster.under(VOIDING)
    new = [
        a_container("bare"),
        a_container("other", env=[OTHER]),
        a_container("named", env=[{"name": VISIBLE, "value": "none"}]),
    ]
    change = {"spec": {"ephemeralContainers": new}}
    found = voiding.patch(pod, change, "/ephemeralcontainers")
    by_name = {one["name"]: one.get("env", []) for one in found["spec"]["ephemeralContainers"]}
    none = [{"name": VISIBLE, "value": "none"}]
    assert by_name == {"old": [], "bare": [VOID], "other": [OTHER, VOID], "named": none}
    assert envs(found) == [[]]  # made before, and not this request's


def test_updates_void_nothing(voiding, cluster):
    cluster.under(LEFT_ALONE["no rule"])
    pod = cluster.create(a_pod(), dry_run=False)
    cluster.under(VOIDING)
    found = voiding.patch(pod, {"metadata": {"labels": {"app": "web"}}})
    assert envs(found) == [[]]


LEFT_ALONE = {
    "Ignore": a_policy(a_rule(visible_devices=VisibleDevices.IGNORE)),
    "Warn": a_policy(a_rule(action=Action.WARN)),
    "Audit": a_policy(a_rule(action=Action.AUDIT)),
    "an ignoring rule": a_policy(a_rule(action=Action.IGNORE), a_rule()),
    "no rule": a_policy(a_rule(namespaces=("other-*",))),
    "a rule by labels": a_policy(a_rule(pod_labels={"tier": "free"}), a_rule()),
    "Observe": fence_data(a_policy(), Rollout.OBSERVE),
}


@pytest.mark.parametrize("policy", LEFT_ALONE.values(), ids=LEFT_ALONE)
def test_where_the_rule_does_not_say_so_nothing_is_voided(cluster, policy):
    assert envs(cluster.under(policy).create(a_pod())) == [[]]


@pytest.mark.parametrize("value", [VisibleDevices.DENY, VisibleDevices.VOID])
def test_the_first_rule_of_the_namespace_counts(cluster, value):
    policy = a_policy(
        a_rule(namespaces=("team-*",), visible_devices=value),
        a_rule(namespaces=("*",), visible_devices=VisibleDevices.IGNORE),
    )
    cluster.under(policy)
    assert envs(cluster.create(a_pod(), "team-v")) == [[VOID]]
    assert envs(cluster.create(a_pod(), "another-team-v")) == [[]]


def test_exempt_namespaces_are_left_alone(voiding):
    voiding.namespace("labelled-void", {"vramwarden.io/webhook": "disabled"})
    for namespace in ("labelled-void", "nvidia-void", "kube-system"):
        assert envs(voiding.create(a_pod(), namespace)) == [[]]


def test_mirror_pods_are_left_alone_and_forged_ones_are_not(voiding):
    pod = a_pod(
        annotations={
            "kubernetes.io/config.mirror": "1",
            "kubernetes.io/config.hash": "1",
            "kubernetes.io/config.source": "file",
        },
        nodeName="node-void",
    )
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-void"}}
    uid = voiding.api.apply(node)["metadata"]["uid"]
    pod["metadata"]["ownerReferences"] = [
        {"apiVersion": "v1", "kind": "Node", "name": "node-void", "uid": uid, "controller": True}
    ]
    groups = ("system:nodes", "system:authenticated")
    kubelet = voiding.api.acting_as("system:node:node-void", *groups)
    assert envs(voiding.create(pod, api=kubelet)) == [[]]
    assert envs(voiding.create(pod)) == [[VOID]]
    voiding.api.delete(node)


def test_translation_comes_after_it_and_shows_containers_their_gpu(voiding):
    """The webhook gets a container with VRAM voided, and denies nothing for it."""
    pod = a_pod("8Gi", containers=[a_container(env=[OTHER]), a_container("second")])
    voided = voiding.create(pod)
    assert envs(voided) == [[OTHER, VOID], [VOID]]
    for policy in (VOIDING, a_policy(a_rule(visible_devices=VisibleDevices.VOID))):
        decision = decide(a_request(voided), policy, UNKNOWN, Phase.MUTATE)
        assert decision.outcome is Outcome.MUTATED, decision.message
        plain = decide(a_request(pod), policy, UNKNOWN, Phase.MUTATE).obj

        def named(found):
            return [
                sorted((entry["name"], str(entry)) for entry in env if entry["name"] == VISIBLE)
                for env in envs(found)
            ]

        assert named(decision.obj) == named(plain)
        assert envs(decision.obj)[1] == [VOID]
        assert VOID not in envs(decision.obj)[0]


def test_a_plain_pod_is_voided_without_a_call_of_ours(voiding, helm):
    """Webhooks are asked after it, so none of our conditions may take `void` for a matter of ours.

    Nobody listens where these lead, and all of them are made `Fail`.
    """
    objects = helm.render()
    kinds = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
    configurations = copy.deepcopy([one(objects, kind) for kind in kinds])
    for webhook in (hook for found in configurations for hook in found["webhooks"]):
        webhook.update(clientConfig={"url": "https://127.0.0.1:1/"}, failurePolicy="Fail")
    with installed(voiding.api, *configurations):
        wait_until(
            "the webhooks are in force", lambda: denial(lambda: voiding.create(a_pod("8Gi")))
        )
        found = voiding.create(a_pod(initContainers=[a_container("init")]))
        assert (envs(found), envs(found, "initContainers")) == ([[VOID]], [[VOID]])
        whole = a_container(env=[{"name": VISIBLE, "value": "all"}])
        assert "failed calling webhook" in denial(lambda: voiding.create(a_pod(containers=[whole])))


def test_a_pod_too_large_to_judge_is_left_to_the_second_line(voiding):
    env = [{"name": f"A{number}"} for number in range(UNREAD["variables"] + 1)]
    assert VOID not in envs(voiding.create(a_pod(containers=[a_container(env=env)])))[0]
    assert VOID in envs(voiding.create(a_pod(containers=[a_container(env=env[:-1])])))[0]


def test_without_the_parameter_nothing_is_voided(cluster, api):
    cluster.under(VOIDING)
    api.delete(parameter())
    wait_until("it is gone", lambda: envs(cluster.create(a_pod())) == [[]])
    cluster.rules = None


def test_the_labels_of_a_namespace_decide_which_rule_governs(cluster):
    interns = {"namespace_labels": {"tier": "intern"}}
    staff = a_rule(name="staff", visible_devices=VisibleDevices.IGNORE)
    excepted = a_rule(name="excepted", exception=Match(**interns))
    for name, labels in {"void-interns": {"tier": "intern"}, "void-staff": {}}.items():
        cluster.namespace(name, labels)
    pod = a_pod()
    for rules, voided in (
        ([a_rule(name="interns", **interns), staff], {"void-interns"}),
        ([excepted, staff], {"void-staff"}),
        ([replace(staff, match=Match(**interns)), a_rule(name="rest")], {"void-staff"}),
        ([a_rule(name="who", users=("bob",)), a_rule(name="rest")], set()),
    ):
        cluster.under(a_policy(*rules))
        for name in ("void-interns", "void-staff"):
            found = cluster.create(pod, name)
            assert envs(found) == ([[VOID]] if name in voided else [[]]), (rules, name)
