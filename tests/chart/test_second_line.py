"""The second line: the API server alone denies what asks for GPU memory and was not translated."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
from hypothesis import given

from tests.chart.admission_policies import is_denied_by
from tests.chart.fenced import Fenced
from tests.support.charts import NAMESPACE
from tests.support.pods import a_container, a_pod, a_request
from tests.support.strategies import asking_pods
from webhook.adapters.policy.files import shipped_policy_path
from webhook.adapters.policy.source import PolicySource
from webhook.core.admission.decide import Outcome, Phase, decide
from webhook.core.policy.cluster import UNKNOWN, Cluster, SlicedNode
from webhook.core.policy.match import Subject, matches_any
from webhook.core.policy.values import Action

NAME = "vramwarden-second-line"
VRAM = "vramwarden.io/vram"
SHIPPED = PolicySource(shipped_policy_path(), "vramwarden/enforcer:1").current


@pytest.fixture(scope="module")
def cluster(control_plane, helm):
    """Be a cluster with nothing of us except the second line."""
    found = Fenced(control_plane, helm, NAME)
    yield found
    found.close()


@pytest.fixture
def shipped(cluster):
    """Put the second line of the shipped policy into force."""
    return cluster.under(SHIPPED)


def translated(pod, policy=SHIPPED, cluster=UNKNOWN, **request):
    decision = decide(a_request(pod, **request), policy, cluster, Phase.MUTATE)
    assert decision.outcome is Outcome.MUTATED, decision.message
    return decision.obj


def explicit(amount="8Gi"):
    return a_pod(containers=[a_container(resources={"limits": {VRAM: amount}})])


ASKING = {
    "annotation": a_pod("8Gi"),
    "explicit": explicit(),
    "list": a_pod("main=8Gi"),
    "init container": a_pod(
        initContainers=[a_container("init", resources={"limits": {VRAM: "8Gi"}})]
    ),
}


@pytest.mark.parametrize("pod", ASKING.values(), ids=ASKING)
def test_an_untranslated_pod_is_denied_in_our_name(shipped, pod):
    why = shipped.denies(pod)
    assert is_denied_by(why, NAME)
    assert "vramwarden: the pod asks for GPU memory and was not translated" in why
    assert "Create it again" in why


def damaged():
    """Yield what may become of a translated pod, and a word of the denial."""

    def without(pod, *path):
        holder = pod
        for key in path[:-1]:
            holder = holder[key]
        del holder[path[-1]]
        return pod

    def cap(pod, **entry):
        sidecar = pod["spec"]["initContainers"][0]
        assert sidecar["env"][0]["name"] == "VRAM_CAP_BYTES"
        sidecar["env"][0] = {"name": "VRAM_CAP_BYTES", **entry}
        return pod

    def changed(pod, **fields):
        pod.update(fields)
        return pod

    def base():
        return copy.deepcopy(translated(a_pod("8Gi")))

    yield "the sidecar", without(base(), "spec", "initContainers", 0), "lacks the sidecar"
    yield "the cap", cap(base()), "lacks the sidecar"
    yield "the number", cap(base(), value="none"), "lacks the sidecar"
    yield "the shared processes", without(base(), "spec", "shareProcessNamespace"), "lacks"
    unshared = base()
    changed(unshared["spec"], shareProcessNamespace=False)
    yield "its process namespace", unshared, "lacks the sidecar"
    renamed = base()
    changed(renamed["spec"]["initContainers"][0], name="other")
    yield "the sidecar's name", renamed, "lacks the sidecar"
    unlabelled = base()
    changed(unlabelled["metadata"], labels={"vramwarden.io/managed": "false"})
    yield "the label's value", unlabelled, "was not translated"
    yield "the label", without(base(), "metadata", "labels"), "was not translated"
    yield (
        "the mark",
        without(base(), "metadata", "annotations", "vramwarden.io/admitted"),
        "was not",
    )
    yield "the amount", without(base(), "spec", "containers", 0, "resources"), "was not translated"


@pytest.mark.parametrize(("what", "pod", "words"), list(damaged()))
def test_a_pod_that_lost_what_translation_added_is_denied(shipped, what, pod, words):
    why = shipped.denies(pod)
    assert is_denied_by(why, NAME)
    assert words in why


@pytest.mark.parametrize(
    "pod",
    [
        a_pod(),
        a_pod(annotations={"example.com/a": "1"}, labels={"app": "web"}),
        a_pod(containers=[a_container(resources={"limits": {"nvidia.com/gpu": "1"}})]),
        a_pod(initContainers=[a_container("init", env=[{"name": "A", "value": "1"}])]),
    ],
)
def test_a_pod_that_asks_for_nothing_is_created(shipped, pod):
    assert shipped.denies(pod) == ""


@given(asking_pods())
def test_what_the_webhook_translates_is_never_denied(cluster, pod):
    cluster.under(SHIPPED)
    pod = copy.deepcopy(pod)
    pod["spec"].pop("someFieldOfTheFuture", None)
    decision = decide(a_request(pod), SHIPPED, UNKNOWN, Phase.MUTATE)
    if decision.outcome is Outcome.MUTATED:
        assert not is_denied_by(cluster.denies(decision.obj), NAME)
        assert is_denied_by(cluster.denies(pod), NAME)


@pytest.mark.parametrize(
    "namespace", ["kube-system", "gpu-operator", "nvidia-device-plugin", NAMESPACE, "kube-flannel"]
)
def test_namespaces_that_are_exempt_by_name_are_left_alone(shipped, namespace):
    assert shipped.denies(a_pod("8Gi"), namespace) == ""


@pytest.mark.parametrize("namespace", ["my-kube-x", "kube", "gpu-operator-2", "a-nvidia-b"])
def test_namespaces_that_are_called_nearly_so_are_not(shipped, namespace):
    assert is_denied_by(shipped.denies(a_pod("8Gi"), namespace), NAME)


def test_namespaces_that_are_exempt_by_label_are_left_alone(shipped):
    shipped.namespace("labelled", {"vramwarden.io/webhook": "disabled"})
    assert shipped.denies(a_pod("8Gi"), "labelled") == ""


def test_mirror_pods_of_kubelets_are_left_alone_and_forged_ones_are_not(shipped):
    pod = a_pod(
        annotations={
            "kubernetes.io/config.mirror": "1",
            "kubernetes.io/config.hash": "1",
            "kubernetes.io/config.source": "file",
            "vramwarden.io/gpu-memory": "8Gi",
        },
        nodeName="node-1",
    )
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1"}}
    uid = shipped.api.apply(node)["metadata"]["uid"]
    pod["metadata"]["ownerReferences"] = [
        {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": uid, "controller": True}
    ]
    kubelet = shipped.api.acting_as("system:node:node-1", "system:nodes", "system:authenticated")
    assert shipped.denies(pod, api=kubelet) == ""
    assert is_denied_by(shipped.denies(pod), NAME)


MIXED = {
    "10-first.yaml": """\
# A comment before, and two documents.
apiVersion: vramwarden.io/v1alpha1
kind: VRAMPolicy
metadata: {name: one}
spec:
  rules:
  - {name: watched, match: {namespaces: ["watched-*", "w"]}, action: Warn}
  - {name: audited, match: {namespaces: [audited]}, action: Audit}
  - {name: ignored, match: {namespaces: ["*-ignored"]}, action: Ignore}
  - {name: trusted, match: {namespaces: [trusted]}, enforcement: {by: None}, placement: None}
--- # the second
apiVersion: vramwarden.io/v1alpha1
kind: VRAMPolicy
metadata: {name: two}
spec:
  rules:
  - name: free
    match: {namespaces: ["team-*"], podLabels: {tier: free, example.com/kind: a}}
    action: Warn
  - {name: plain, match: {namespaces: [plain]}, enforcement: {style: Container}}
""",
    "20-second.yml": """\
apiVersion: vramwarden.io/v1alpha1
kind: VRAMPolicy
metadata: {name: three}
spec:
  rules:
  - {name: late, match: {namespaces: ["watched-*", "team-*", "*-team"]}}
""",
}
NAMESPACES = [
    "watched-a",
    "w",
    "ww",
    "wx",
    "watched",
    "audited",
    "x-ignored",
    "ignored",
    "trusted",
    "team-a",
    "a-team",
    "plain",
    "team-team",
    "unheard-of",
    "default",
]


def files(folder, texts):
    folder.mkdir()
    for name, text in texts.items():
        (folder / name).write_text(text)
    return PolicySource(folder, "vramwarden/enforcer:1").current


@pytest.fixture
def mixed(cluster, tmp_path):
    policy = files(tmp_path / "policies", MIXED)
    return cluster.under(policy), policy


@pytest.mark.parametrize("namespace", NAMESPACES)
@pytest.mark.parametrize(
    "labels",
    [{}, {"tier": "free"}, {"tier": "free", "example.com/kind": "a"}, {"tier": "x"}],
    ids=str,
)
def test_it_reads_the_rules_as_the_webhook_does(mixed, namespace, labels):
    cluster, policy = mixed
    pod = a_pod("8Gi", labels=labels)
    rule = policy.rule_for(Subject(namespace=namespace, pod_labels=labels))
    enforced = rule is not None and rule.action is Action.ENFORCE
    # Which of its pods a rule with labels governs is for the webhook alone.
    first = next(
        (one for one in policy.rules if matches_any(namespace, one.match.namespaces)), None
    )
    decided = first is not None and not first.match.pod_labels
    assert is_denied_by(cluster.denies(pod, namespace), NAME) == (enforced and decided)
    if enforced:
        done = translated(pod, policy, namespace=namespace)
        assert cluster.denies(done, namespace) == ""


def test_a_rule_without_sidecar_still_needs_our_mark(mixed):
    cluster, policy = mixed
    done = translated(a_pod("8Gi"), policy, namespace="trusted")
    assert "initContainers" not in done["spec"]
    del done["metadata"]["annotations"]["vramwarden.io/admitted"]
    assert is_denied_by(cluster.denies(done, "trusted"), NAME)


PLUGINS = {
    "10-plugins.yaml": """\
apiVersion: vramwarden.io/v1alpha1
kind: VRAMPolicy
metadata: {name: plugins}
spec:
  classes: {sliced: {accounting: MIG}}
  rules:
  - {name: sliced, match: {namespaces: [sliced]}, accounting: MIG}
  - name: slotted
    match: {namespaces: [slotted]}
    accounting: CapOnly
    classes: {allowed: []}
  - {name: both, match: {namespaces: [both]}}
"""
}
SLICED = {"vramwarden.io/gpu-class": "sliced"}


@pytest.mark.parametrize(
    ("namespace", "notes", "has_sidecar"),
    [("sliced", {}, False), ("slotted", {}, True), ("both", SLICED, False), ("both", {}, True)],
)
def test_what_a_plugin_counts_needs_no_amount_of_ours(
    cluster, tmp_path, namespace, notes, has_sidecar
):
    policy = files(tmp_path / "policies", PLUGINS)
    cluster.under(policy)
    node = SlicedNode({"1g.10gb": 9728 * 2**20})
    known = policy, Cluster(sliced_nodes=(node,))
    for asking in (a_pod("8Gi", annotations=notes), explicit()):
        assert is_denied_by(cluster.denies(asking, namespace), NAME)
        asking["metadata"].setdefault("annotations", {}).update(notes)
        done = translated(asking, *known, namespace=namespace)
        assert cluster.denies(done, namespace) == ""
        assert ("initContainers" in done["spec"]) is has_sidecar
        unmarked = copy.deepcopy(done)
        del unmarked["metadata"]["annotations"]["vramwarden.io/admitted"]
        assert is_denied_by(cluster.denies(unmarked, namespace), NAME)
        if namespace == "slotted":
            done["spec"]["initContainers"] = []
            assert "lacks the sidecar" in cluster.denies(done, namespace)


@pytest.mark.parametrize(
    "texts", [{}, {"a.yaml": ""}, {"a.yaml": "# nothing\n"}], ids=["no file", "empty", "comment"]
)
def test_without_rules_every_pod_is_left_alone(cluster, texts, tmp_path):
    cluster.under(files(tmp_path / "policies", texts))
    assert cluster.denies(a_pod("8Gi")) == ""


def test_a_share_in_place_of_a_whole_gpu_is_held_as_any_other(cluster):
    limits = {"nvidia.com/gpu": "1"}
    pod = a_pod(containers=[a_container(resources={"limits": limits, "requests": limits})])
    *first, default = SHIPPED.rules
    sharing = replace(default, translate_whole_gpu_bytes=16 * 2**30)
    policy = replace(SHIPPED, rules=(*first, sharing))
    fenced = cluster.under(policy)
    shared = translated(pod, policy)
    fenced.create(shared)
    fenced.create(pod)  # nobody has to have been called for it
    del shared["metadata"]["annotations"]["vramwarden.io/admitted"]
    assert "was not translated" in fenced.denies(shared)
