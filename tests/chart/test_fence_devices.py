"""GPUs named by hand are denied by the API server alone, where the rule denies them."""

from __future__ import annotations

import copy
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chart.admission_policies import is_denied_by, parameter
from tests.chart.fenced import Fenced
from tests.support.control_planes import wait_until
from tests.support.injectors import DENIED, HONEST, asking
from tests.support.pods import a_container, a_pod, a_policy, a_request, a_rule
from webhook.core.admission.decide import Outcome, Phase, decide
from webhook.core.pod import complexity
from webhook.core.policy.cluster import UNKNOWN
from webhook.core.policy.fence import fence_data
from webhook.core.policy.values import Action, Placement, Rollout, VisibleDevices

NAME = "vramwarden-second-line"
VISIBLE, VRAM = "NVIDIA_VISIBLE_DEVICES", "vramwarden.io/vram"
DENYING = a_policy()
OURS = {"fieldRef": {"fieldPath": "metadata.annotations['vramwarden.io/visible-devices']"}}
BEFORE = {"fieldRef": {"fieldPath": "metadata.annotations['vramwarden.io/gpu']"}}


@pytest.fixture(scope="module")
def cluster(control_plane, helm):
    """Be a cluster with nothing of us except the second line."""
    found = Fenced(control_plane, helm, NAME)
    yield found
    found.close()


@pytest.fixture
def denying(cluster):
    return cluster.under(DENYING)


def visible(**entry):
    return a_container(env=[{"name": "A", "value": "all"}, {"name": VISIBLE, **entry}])


SHOWING = {
    "all": {"value": "all"},
    "an index": {"value": "0"},
    "a GPU": {"value": "GPU-1"},
    "another variable": {"value": "$(A)"},
    "another annotation": {"valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['a']"}}},
    "our annotation": {"valueFrom": OURS},
    "our annotation of before": {"valueFrom": BEFORE},
    "a ConfigMap": {"valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}},
}


@pytest.mark.parametrize("entry", SHOWING.values(), ids=SHOWING)
@pytest.mark.parametrize("field", ["containers", "initContainers"])
def test_a_variable_that_shows_gpus_is_denied(denying, entry, field):
    pod = a_pod(**{"containers": [a_container("other")], field: [visible(**entry)]})
    why = denying.denies(pod)
    assert is_denied_by(why, NAME)
    assert "NVIDIA_VISIBLE_DEVICES set by hand shows GPUs that nobody accounts for" in why


@pytest.mark.parametrize("entry", [{"value": "void"}, {"value": "none"}, {"value": ""}, {}])
def test_a_variable_that_shows_none_is_not(denying, entry):
    assert denying.denies(a_pod(containers=[visible(**entry)])) == ""


LENIENT = {
    "Ignore": a_policy(a_rule(visible_devices=VisibleDevices.IGNORE)),
    "Warn": a_policy(a_rule(action=Action.WARN)),
    "Audit": a_policy(a_rule(action=Action.AUDIT)),
    "an ignoring rule": a_policy(a_rule(action=Action.IGNORE)),
    "no rule": replace(DENYING, rules=()),
    "a rule for others": a_policy(a_rule(namespaces=("other-*",))),
    "a rule by labels": a_policy(a_rule(pod_labels={"tier": "free"}), a_rule()),
    "Observe": fence_data(a_policy(), Rollout.OBSERVE),
}
CDI = a_pod(annotations={"nvidia.cdi.k8s.io/container.main": "nvidia.com/gpu=all"})
MARKED = a_pod(labels={"vramwarden.io/managed": "true"}, annotations={"vramwarden.io/gpu": "GPU-1"})


@pytest.mark.parametrize("policy", LENIENT.values(), ids=LENIENT)
def test_what_no_rule_denies_is_left_alone(cluster, policy):
    """In all three ways of showing GPUs: by variable, by annotation, by a debugging container."""
    cluster.under(policy)
    assert cluster.denies(a_pod(containers=[visible(value="all")])) == ""
    assert cluster.denies(CDI) == ""
    pod = cluster.create(a_pod(), dry_run=False)
    debugger = {"spec": {"ephemeralContainers": [{**visible(value="all"), "name": "debug"}]}}
    assert cluster.rejects(pod, debugger, "/ephemeralcontainers") == ""


def test_what_can_be_voided_is_left_alone_and_an_annotation_cannot(cluster):
    cluster.under(a_policy(a_rule(visible_devices=VisibleDevices.VOID)))
    assert cluster.denies(a_pod(containers=[visible(value="all")])) == ""
    assert is_denied_by(cluster.denies(CDI), NAME)


@pytest.mark.parametrize("name", ["Warn", "Audit", "an ignoring rule", "no rule", "Observe"])
def test_marks_without_a_demand_are_left_alone_where_no_rule_enforces(cluster, name):
    assert cluster.under(LENIENT[name]).denies(MARKED) == ""


def test_while_a_policy_is_observed_pods_with_a_demand_are_held_to_it(cluster):
    cluster.under(LENIENT["Observe"])
    assert "was not translated" in cluster.denies(a_pod("8Gi"))


@pytest.mark.parametrize(
    "pod",
    [
        a_pod(labels={"vramwarden.io/managed": "true"}),
        *(
            a_pod(annotations={f"vramwarden.io/{key}": "1"})
            for key in ("gpu", "visible-devices", "gpu-memory-fraction", "gpu-waits")
        ),
    ],
)
def test_marks_without_a_demand_are_denied(denying, pod):
    why = denying.denies(pod)
    assert is_denied_by(why, NAME)
    assert "are written by vramwarden alone; remove them" in why


def translated(policy=DENYING, **pod):
    decision = decide(a_request(a_pod("8Gi", **pod)), policy, UNKNOWN, Phase.MUTATE)
    assert decision.outcome is Outcome.MUTATED, decision.message
    return copy.deepcopy(decision.obj)


@pytest.mark.parametrize("key", ["gpu", "visible-devices", "gpu-memory-fraction", "gpu-waits"])
def test_a_translated_pod_brings_no_annotation_of_a_binding_along(denying, key):
    pod = translated()
    assert denying.denies(pod) == ""
    pod["metadata"]["annotations"][f"vramwarden.io/{key}"] = "1"
    assert "are written by vramwarden alone; remove them" in denying.denies(pod)
    # With a demand a pod is held to that while a policy is observed, too.
    denying.under(LENIENT["Observe"])
    assert "are written by vramwarden alone; remove them" in denying.denies(pod)
    denying.under(DENYING)


def test_what_translation_writes_is_allowed_where_it_writes_it_and_nowhere_else(cluster, denying):
    both = [a_container(), a_container("second")]
    pod = translated(containers=both)
    main, second = pod["spec"]["containers"]
    assert VRAM in main["resources"]["limits"]
    for ours in (OURS, BEFORE):
        main["env"] = [{"name": VISIBLE, "valueFrom": ours}]
        assert denying.denies(pod) == ""
    main["env"] = [{"name": VISIBLE, "value": "all"}]
    assert is_denied_by(denying.denies(pod), NAME)
    main["env"], second["env"] = [], [{"name": VISIBLE, "valueFrom": OURS}]
    assert is_denied_by(denying.denies(pod), NAME)
    # Where a rule chooses no GPUs, translation shows all of them.
    everywhere = a_policy(a_rule(placement=Placement.NONE))
    pod = translated(everywhere, containers=both)
    cluster.under(everywhere)
    assert {"name": VISIBLE, "value": "all"} in pod["spec"]["containers"][0]["env"]
    assert cluster.denies(pod) == ""
    pod["spec"]["containers"][1]["env"] = [{"name": VISIBLE, "value": "all"}]
    assert is_denied_by(cluster.denies(pod), NAME)


def test_the_sidecars_name_is_no_way_to_a_gpu(denying):
    sidecar = {**visible(valueFrom=OURS), "name": "vram-enforcer"}
    assert is_denied_by(denying.denies(a_pod(containers=[sidecar])), NAME)
    pod = denying.create(a_pod(), dry_run=False)
    change = {"spec": {"ephemeralContainers": [sidecar]}}
    assert is_denied_by(denying.rejects(pod, change, "/ephemeralcontainers"), NAME)
    pod = translated()
    pod["spec"]["initContainers"][0]["env"].append(sidecar["env"][1])
    assert denying.denies(pod) == ""


ANNOTATIONS = {
    "one container": {"nvidia.cdi.k8s.io/container.main": "nvidia.com/gpu=all"},
    "the pod": {"nvidia.cdi.k8s.io/pod": "nvidia.com/gpu=0"},
    "the bare key": {"nvidia.cdi.k8s.io": "nvidia.com/gpu=0"},
    "CRI-O's": {"cdi.k8s.io/x": "k8s.device-plugin.nvidia.com/gpu=0"},
    "management": {"nvidia.cdi.k8s.io/pod": "management.nvidia.com/gpu=all"},
    "second of two": {"cdi.k8s.io/x": "example.com/fpga=0,nvidia.com/gpu=0"},
    "after a blank": {"cdi.k8s.io/x": "example.com/fpga=0, runtime.nvidia.com/gpu=0"},
}


@pytest.mark.parametrize("annotations", ANNOTATIONS.values(), ids=ANNOTATIONS)
def test_an_annotation_that_shows_gpus_is_denied_also_later(denying, annotations):
    why = denying.denies(a_pod(annotations=annotations))
    assert is_denied_by(why, NAME)
    assert "an annotation by which devices are injected" in why
    pod = denying.create(a_pod(), dry_run=False)
    assert is_denied_by(denying.rejects(pod, {"metadata": {"annotations": annotations}}), NAME)


@pytest.mark.parametrize(
    "annotations",
    [
        {"cdi.k8s.io/x": "example.com/fpga=0"},
        {"cdi.k8s.io/x": "my-nvidia.com/gpu=0"},
        {"cdi.k8s.io/x": "nvidia.com.example.com/gpu=0"},
        {"example.com/cdi.k8s.io": "nvidia.com/gpu=0"},
        {"cdi.k8s.iox": "nvidia.com/gpu=0"},
    ],
)
def test_an_annotation_that_shows_none_is_not(denying, annotations):
    assert denying.denies(a_pod(annotations=annotations)) == ""


@pytest.mark.parametrize(
    ("pod", "why"),
    [
        *((pod, "") for pod in HONEST.values()),
        *((pod, "shows GPUs that nobody accounts for") for pod in DENIED.values()),
    ],
    ids=[*HONEST, *DENIED],
)
def test_it_denies_what_the_webhook_does_and_nothing_honest(denying, pod, why):
    """At creation, which for a pod with a demand follows translation, and later."""
    (key, *_) = pod["metadata"]["annotations"]
    value = pod["metadata"]["annotations"].pop(key)
    asks = bool(pod["metadata"]["annotations"])
    before = translated(containers=pod["spec"]["containers"]) if asks else copy.deepcopy(pod)
    pod["metadata"]["annotations"][key] = value
    after = copy.deepcopy(before)
    after["metadata"].setdefault("annotations", {})[key] = value
    assert why in denying.denies(after)
    assert bool(denying.denies(after)) is bool(why)
    stored = denying.create(before, dry_run=False)
    found = denying.rejects(stored, {"metadata": {"annotations": {key: value}}})
    assert bool(found) is bool(why)
    assert why in found


def test_one_of_them_among_more_annotations_than_anybody_has_is_denied(denying):
    """What is gone through is bounded by what the webhook would read."""
    bound = complexity.ENTRIES.most_of(translated=True)
    notes = {f"example.com/a{number}": "" for number in range(bound)}
    few = {key: value for key, value in notes.items() if key != "example.com/a0"}
    assert denying.denies(a_pod(annotations={**few, "cdi.k8s.io/b": ""})) == ""
    assert is_denied_by(denying.denies(a_pod(annotations={**notes, "cdi.k8s.io/b": ""})), NAME)


def test_a_rule_may_let_some_of_them_pass(cluster):
    cluster.under(a_policy(a_rule(device_annotations=("devices.gke.io/*", "cdi.k8s.io/x"))))
    for key, lets in (("devices.gke.io/pod", True), ("devices.gke.io", False)):
        assert bool(cluster.denies(asking(key, "- path: /dev/nvidia0"))) is not lets
    for key, lets in (("cdi.k8s.io/x", True), ("cdi.k8s.io/xx", False)):
        assert bool(cluster.denies(asking(key, "nvidia.com/gpu=all"))) is not lets


def test_a_pod_that_has_such_an_annotation_already_is_updated_as_before(cluster):
    cluster.under(LENIENT["no rule"])
    pod = cluster.create(CDI, dry_run=False)
    cluster.under(DENYING)
    assert cluster.rejects(pod, {"metadata": {"labels": {"app": "web"}}}) == ""
    assert cluster.rejects(pod, {"metadata": {"annotations": {"a": "1"}}}) == ""
    (key,) = CDI["metadata"]["annotations"]
    assert cluster.rejects(pod, {"metadata": {"annotations": {key: None}}}) == ""
    change = {"metadata": {"annotations": {key: "nvidia.com/gpu=1"}}}
    assert is_denied_by(cluster.rejects(pod, change), NAME)


def test_debugging_containers_are_judged_when_they_are_added(cluster):
    showing = {**visible(value="all"), "name": "showing"}
    cluster.under(LENIENT["no rule"])
    pod = cluster.create(a_pod(), dry_run=False)
    metadata = pod["metadata"]
    path = f"/api/v1/namespaces/default/pods/{metadata['name']}/ephemeralcontainers"
    kind = "application/strategic-merge-patch+json"
    change = {"spec": {"ephemeralContainers": [showing]}}
    cluster.alice.request("PATCH", path, change, content_type=kind)
    cluster.under(DENYING)

    def adding(**container):
        change = {"spec": {"ephemeralContainers": [{**container, "name": "new"}]}}
        return cluster.rejects(pod, change, "/ephemeralcontainers")

    assert adding(**a_container()) == ""
    assert adding(**visible(value="void")) == ""
    assert is_denied_by(adding(**visible(value="0")), NAME)
    assert is_denied_by(adding(**visible(valueFrom=OURS)), NAME)


ENTRIES = st.lists(
    st.sampled_from(
        [*SHOWING.values(), {"value": "void"}, {"value": "none"}, {"value": ""}, {}]
    ).map(lambda entry: {"name": VISIBLE, **entry})
    | st.just({"name": "A", "value": "all"}),
    max_size=2,
)


CDI_ANNOTATIONS = st.dictionaries(
    st.sampled_from(["nvidia.cdi.k8s.io/pod", "nvidia.cdi.k8s.io", "cdi.k8s.io/x", "a.com/x"]),
    st.sampled_from(["nvidia.com/gpu=0", "a.nvidia.com/gpu=0", "xnvidia.com/a=b", "a.com/b=c"]),
    max_size=2,
)


@given(ENTRIES, ENTRIES, CDI_ANNOTATIONS)
def test_it_judges_as_the_webhook_does(cluster, first, second, annotations):
    cluster.under(DENYING)
    pod = a_pod(
        containers=[a_container(env=first)],
        initContainers=[a_container("init", env=second)],
        annotations=annotations,
    )
    decision = decide(a_request(pod), DENYING, UNKNOWN, Phase.VALIDATE)
    assert bool(cluster.denies(pod)) == (decision.outcome is Outcome.DENIED)


def test_exempt_namespaces_are_left_alone(denying):
    denying.namespace("labelled-devices", {"vramwarden.io/webhook": "disabled"})
    for namespace in ("labelled-devices", "nvidia-driver", "kube-system"):
        for pod in (a_pod(containers=[visible(value="all")]), CDI, MARKED):
            assert denying.denies(pod, namespace) == ""


LARGE = {
    "variables": a_pod(containers=[a_container(env=[{"name": "A"}] * 2561)]),
    "containers": a_pod(containers=[a_container(f"c{number}") for number in range(515)]),
    "annotations": a_pod(annotations={f"a{number}": "" for number in range(2561)}),
    "resources": a_pod(
        containers=[
            a_container(resources={"limits": {f"a.com/{number}": "1" for number in range(67)}})
        ]
    ),
}


@pytest.mark.parametrize("pod", LARGE.values(), ids=LARGE)
def test_a_pod_too_large_to_judge_is_denied(denying, pod):
    """Or its size would be a way past it; the API server would spend seconds on longer lists."""
    assert is_denied_by(denying.denies(pod), NAME)
    assert denying.denies(pod, "nvidia-driver") == ""


@pytest.mark.parametrize("count", [4000, 60_000])
def test_a_large_pod_costs_no_more_time_than_a_request_may_take(denying, count):
    env = [{"name": "A"} for _ in range(count)]
    pod = a_pod(containers=[a_container(env=[*env, {"name": VISIBLE, "value": "all"}])])
    started_s = time.monotonic()
    assert is_denied_by(denying.denies(pod), NAME)
    assert time.monotonic() - started_s < 10  # 33 s for the larger one before it was bounded


def test_without_the_parameter_nothing_is_denied(cluster, api):
    cluster.under(DENYING)
    pod = a_pod(containers=[visible(value="all")])
    assert is_denied_by(cluster.denies(pod), NAME)
    api.delete(parameter())
    wait_until("it is gone", lambda: cluster.denies(pod) == "")
    assert cluster.denies(a_pod("8Gi")) == ""
    cluster.line.remove()
