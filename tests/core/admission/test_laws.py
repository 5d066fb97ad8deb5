"""Properties that hold for all pods, tested with random pods."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import jsonpatch
import orjson
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from tests.core.admission.device_plugin import A100, H200, a_sliced_node
from tests.support.other_webhooks import (
    CHANGES,
    ORDERS,
    changed,
    holders,
    is_denied,
    names_another_webhook,
)
from tests.support.paths import REVIEWS
from tests.support.pods import a_container, a_pod, a_policy, a_request, a_review, a_rule
from tests.support.strategies import ANY_JSON, asking_pods
from webhook.adapters.review_json import BadReviewError, read_review, write_review
from webhook.core.admission.decide import decide
from webhook.core.admission.decision import Outcome, Phase
from webhook.core.nvidia.programs import Program
from webhook.core.pod.quantity import canonicalize
from webhook.core.policy.cluster import UNKNOWN_CLUSTER, Cluster
from webhook.core.policy.model import (
    AUTO_RUNTIME_CLASS,
    Accounting,
    Action,
    DriverLimit,
    EnforceBy,
    Isolation,
    Placement,
    PodRestart,
    ResourceAmounts,
    ResourceClaims,
    RunAs,
    VisibleDevices,
)
from webhook.names import ENFORCER_CONTAINER, GATE_VOLUME

RULES = st.builds(
    a_rule,
    placement=st.sampled_from(Placement),
    visible_devices=st.sampled_from(VisibleDevices),
    host_paths=st.sampled_from([None, ("/data", "/mnt/models"), ("/",)]),
    resource_claims=st.sampled_from(ResourceClaims),
    runtime_class_name=st.sampled_from([None, AUTO_RUNTIME_CLASS, "other"]),
    tolerations=st.sampled_from([(), ({"key": "gpu", "operator": "Exists"},)]),
    env=st.sampled_from([(), ({"name": "XLA_PYTHON_CLIENT_PREALLOCATE", "value": "false"},)]),
    programs=st.lists(st.sampled_from([*Program]), unique=True).map(tuple),
    default_class=st.sampled_from([None, "a100"]),
    enforcement=st.fixed_dictionaries(
        {
            "by": st.sampled_from(EnforceBy),
            "driver_limit": st.sampled_from(DriverLimit),
            "run_as": st.sampled_from([RunAs.AUTO, RunAs.ROOT]),
            "pod_restart": st.sampled_from(PodRestart),
            "resources": st.sampled_from(
                [
                    ResourceAmounts(),
                    ResourceAmounts("20m", None, None, "1000000000"),
                    ResourceAmounts("50m", "50m"),
                ]
            ),
        }
    ),
)


# Clusters known to different replicas that decide on one pod.
CLASSES = [frozenset(), frozenset({"nvidia"}), frozenset({"runc"})]
CLUSTERS = st.sampled_from([Cluster(runtime_classes=one) for one in CLASSES])


def defaulted(pod):
    """Return a pod as the API server stores it, with defaults for each field that is read."""
    after = copy.deepcopy(pod)
    for field in ("containers", "initContainers"):
        for container in after["spec"].get(field) or []:
            for entry in container.get("env") or []:
                if "fieldRef" in entry.get("valueFrom", {}):
                    entry["valueFrom"]["fieldRef"].setdefault("apiVersion", "v1")
    return after


def mutated(pod, policy, cluster=UNKNOWN_CLUSTER):
    decision = decide(a_request(pod), policy, cluster, Phase.MUTATE)
    assert decision.allowed, decision.message
    return decision


@given(asking_pods(), RULES, CLUSTERS)
def test_mutating_twice_equals_mutating_once(pod, rule, cluster):
    policy = a_policy(rule)
    once = mutated(pod, policy, cluster)
    assert once.outcome is Outcome.MUTATED
    for stored in (once.obj, defaulted(once.obj)):
        twice = mutated(stored, policy, cluster)
        assert twice.patch == ()
        assert twice.obj == stored


@given(asking_pods(), RULES, CLUSTERS, CLUSTERS)
def test_the_patch_applied_to_the_original_has_no_findings(pod, rule, cluster, since):
    policy = a_policy(rule)
    translated = jsonpatch.apply_patch(pod, list(mutated(pod, policy, cluster).patch))
    decision = decide(a_request(translated), policy, since, Phase.VALIDATE)
    assert (decision.outcome, decision.findings) == (Outcome.ALLOWED, ())


PLUGINS = st.sampled_from([Accounting.MIG, Accounting.CAP_ONLY])
# Nodes with slices known to different replicas that decide on one pod.
NODES = [a_sliced_node(A100), a_sliced_node(H200)]
SLICED = st.lists(st.sampled_from(NODES), min_size=1, max_size=2, unique_by=id)


@given(asking_pods(), RULES, PLUGINS, SLICED, SLICED)
def test_the_same_holds_where_a_plugin_gives_gpus(pod, rule, accounting, nodes, nodes_since):
    one_gpu = pod["metadata"]["annotations"].get("vramwarden.io/gpu-count", "1") == "1"
    assume(accounting is Accounting.MIG or one_gpu)
    rule = replace(rule, accounting=accounting)
    policy, cluster = a_policy(rule), Cluster(sliced_nodes=tuple(nodes))
    once = mutated(pod, policy, cluster)
    for stored in (once.obj, defaulted(once.obj)):
        assert mutated(stored, policy, cluster).patch == ()
    since = Cluster(sliced_nodes=tuple(nodes_since))
    decision = decide(a_request(once.obj), policy, since, Phase.VALIDATE)
    assert (decision.outcome, decision.findings) == (Outcome.ALLOWED, ())
    # Another replica that mutates the pod again may know other slices.
    again = mutated(once.obj, policy, since)
    decision = decide(a_request(again.obj), policy, cluster, Phase.VALIDATE)
    assert (decision.outcome, decision.findings) == (Outcome.ALLOWED, ())
    assert again.obj == mutated(pod, policy, since).obj


@given(asking_pods(), RULES, RULES)
def test_a_pod_that_comes_again_with_another_demand_is_shown_what_a_new_one_is(pod, rule, other):
    """All parts that depend on the demand are the same as in a first creation.

    The same holds if another webhook inserted a variable before vramwarden's.
    """
    for field in ("containers", "initContainers"):
        for container in pod["spec"].get(field) or []:
            env = container.get("env") or []
            container["env"] = [entry for entry in env if "VRAMWARDEN" not in str(entry)]
    again = copy.deepcopy(mutated(pod, a_policy(other)).obj)
    for container in again["spec"]["containers"]:
        container["env"] = [{"name": "OTEL_SERVICE_NAME", "value": "x"}, *container["env"]]
    for holder in (pod, again):
        holder["metadata"]["annotations"]["vramwarden.io/gpu-memory"] = "2Gi"
        for field in ("containers", "initContainers"):
            for container in holder["spec"].get(field) or []:
                for amounts in (container.get("resources") or {}).values():
                    (amounts or {}).pop("vramwarden.io/vram", None)
    # Under Deny some of these pods are denied for the GPUs that they show.
    policy = a_policy(replace(rule, visible_devices=VisibleDevices.VOID))
    fresh, restored = mutated(pod, policy).obj, mutated(again, policy).obj
    for container in fresh["spec"]["containers"]:
        kept = next(c for c in restored["spec"]["containers"] if c["name"] == container["name"])
        assert shown(kept) == shown(container)


def shown(container):
    names = ("VRAMWARDEN_GPU_MEMORY_MIB", "VRAMWARDEN_GPU_MEMORY_FRACTION", *AMOUNTS)
    return [entry for entry in container["env"] if entry["name"] in names]


class Denied(Exception):  # noqa: N818 - a verdict, not an error
    """Raised with the message of a denial."""


def admitted(pod, policy, phase):
    decision = decide(a_request(pod), policy, UNKNOWN_CLUSTER, phase)
    if not decision.allowed:
        raise Denied(decision.message)
    return defaulted(decision.obj)


def stored_beside(pod, policy, name, sorts, again):
    """Return a pod as stored if another webhook is called before or after vramwarden's."""
    if sorts == "before":
        pod = admitted(changed(pod, name), policy, Phase.MUTATE)
        if again == "IfNeeded":
            pod = admitted(changed(pod, name), policy, Phase.MUTATE)
    else:
        pod = changed(admitted(pod, policy, Phase.MUTATE), name)
        pod = admitted(pod, policy, Phase.MUTATE)
        if again == "IfNeeded":
            pod = changed(pod, name)
    return admitted(pod, policy, Phase.VALIDATE)


@given(asking_pods(), RULES, st.sampled_from(sorted(CHANGES)), st.sampled_from(ORDERS))
def test_another_webhook_moves_no_vram_or_the_denial_names_it(pod, rule, name, order):
    policy = a_policy(rule)
    usual = mutated(pod, policy).obj
    try:
        stored = stored_beside(pod, policy, name, *order)
    except Denied as denied:
        assert is_denied(name, *order)
        assert names_another_webhook(str(denied))
        return
    assert holders(stored) == holders(usual)
    for container in usual["spec"]["containers"]:
        kept = next(c for c in stored["spec"]["containers"] if c["name"] == container["name"])
        assert shown(kept) == shown(container)


AMOUNTS = ("CUPY_GPU_MEMORY_LIMIT", "JULIA_CUDA_HARD_MEMORY_LIMIT")


HARDENED = {"runAsNonRoot": True, "runAsUser": 1000, "allowPrivilegeEscalation": False}


@given(asking_pods(), RULES)
def test_under_non_root_nobody_but_the_sidecar_may_be_root(pod, rule):
    policy = a_policy(replace(rule, isolation=Isolation.NON_ROOT))
    assert decide(a_request(pod), policy, UNKNOWN_CLUSTER, Phase.MUTATE).reasons == (
        "PrivilegedContainer",
    )
    for field in ("containers", "initContainers"):
        for container in pod["spec"].get(field) or []:
            container["securityContext"] = {**(container.get("securityContext") or {}), **HARDENED}
    once = mutated(pod, policy).obj
    assert mutated(once, policy).patch == ()
    decision = decide(a_request(once), policy, UNKNOWN_CLUSTER, Phase.VALIDATE)
    assert (decision.outcome, decision.findings) == (Outcome.ALLOWED, ())
    roots = [
        container["name"]
        for field in ("containers", "initContainers")
        for container in once["spec"].get(field) or []
        if container["securityContext"]["runAsUser"] == 0
    ]
    assert roots == [ENFORCER_CONTAINER] * (rule.enforcement.by is EnforceBy.SIDECAR)


@given(asking_pods(), RULES)
def test_a_pod_that_is_decided_is_never_changed_itself(pod, rule):
    before = copy.deepcopy(pod)
    decide(a_request(pod), a_policy(rule), UNKNOWN_CLUSTER, Phase.MUTATE)
    assert pod == before


@given(asking_pods(), RULES)
def test_everything_else_in_the_pod_stays_as_it_was(pod, rule):
    after = copy.deepcopy(mutated(pod, a_policy(rule)).obj)
    ours = {
        "metadata": {"labels", "annotations"},
        "spec": {
            "affinity",
            "containers",
            "initContainers",
            "nodeSelector",
            "runtimeClassName",
            "shareProcessNamespace",
            "tolerations",
            "volumes",
        },
    }
    for part, fields in ours.items():
        for field in (pod[part].keys() | after[part].keys()) - fields:
            assert after[part][field] == pod[part][field]
    for field in ("containers", "initContainers"):
        kept = [c for c in after["spec"].get(field) or [] if c["name"] != ENFORCER_CONTAINER]
        for old, new in zip(pod["spec"].get(field) or [], kept, strict=True):
            without = {"env", "resources", "volumeMounts"}
            assert {k: v for k, v in old.items() if k not in without} == {
                k: v for k, v in new.items() if k not in without
            }
            before, mounts = (
                [m for m in each.get("volumeMounts") or [] if m["name"] != GATE_VOLUME]
                for each in (old, new)
            )
            assert mounts == before


def with_vram(pod):
    """Return the counted resources, keyed by container name."""
    counted = {}
    for container in (*pod["spec"]["containers"], *(pod["spec"].get("initContainers") or ())):
        for kind, amounts in (container.get("resources") or {}).items():
            for name, amount in (amounts or {}).items():
                if "/" in name:
                    counted[container["name"], kind, name] = amount
    return counted


@given(asking_pods(), RULES)
def test_an_explicit_amount_is_left_as_it_is_written(pod, rule):
    written, after = with_vram(pod), with_vram(mutated(pod, a_policy(rule)).obj)
    assert {key: after[key] for key in written} == written
    if written:  # a request equal to the limit is added
        assert {key[0] for key in after} == {key[0] for key in written}
        assert {canonicalize(amount) for amount in after.values()} == {
            canonicalize(amount) for amount in written.values()
        }


FIRST_OF_ALL = st.sampled_from(
    [a_container("stranger"), a_container("istio-proxy"), a_container("x", resources={})]
)


@example(pod=a_pod("8Gi"), rule=a_rule(), accounting=Accounting.VRAM, first=a_container("x"))
@given(asking_pods(), RULES, st.sampled_from(Accounting), FIRST_OF_ALL)
def test_a_container_that_is_prepended_later_moves_no_vram(pod, rule, accounting, first):
    """Another webhook prepends a container to the pod, which is then judged again."""
    one_gpu = pod["metadata"]["annotations"].get("vramwarden.io/gpu-count", "1") == "1"
    assume(accounting is not Accounting.CAP_ONLY or one_gpu)
    policy = a_policy(replace(rule, accounting=accounting))
    cluster = Cluster(sliced_nodes=(a_sliced_node(A100),))
    once = mutated(pod, policy, cluster).obj
    prepended = copy.deepcopy(once)
    prepended["spec"]["containers"].insert(0, copy.deepcopy(first))
    twice = mutated(prepended, policy, cluster)
    assert with_vram(twice.obj) == with_vram(once)
    assert not any("without a name" in note for note in twice.notes)
    decision = decide(a_request(twice.obj), policy, cluster, Phase.VALIDATE)
    assert (decision.outcome, decision.findings) == (Outcome.ALLOWED, ())


@given(asking_pods(), RULES)
def test_a_pod_without_its_translation_is_not_stored(pod, rule):
    decision = decide(a_request(pod), a_policy(rule), UNKNOWN_CLUSTER, Phase.VALIDATE)
    assert decision.outcome is Outcome.DENIED
    assert decision.reasons == ("Unmutated",)


@given(asking_pods(), st.sampled_from([Action.WARN, Action.AUDIT]))
def test_a_pod_allowed_in_spite_of_findings_is_not_mutated(pod, action):
    pod["spec"]["hostPID"] = True
    decision = decide(
        a_request(pod), a_policy(a_rule(action=action)), UNKNOWN_CLUSTER, Phase.MUTATE
    )
    assert decision.allowed
    assert decision.reasons == ("HostPID",)
    assert decision.patch == ()


def paths_of(value, path=()):
    """Yield the path of every value inside a JSON value."""
    yield path
    children = {dict: dict.items, list: enumerate}.get(type(value), lambda _: ())(value)
    for key, child in children:
        yield from paths_of(child, (*path, key))


def replaced(value, path, new):
    """Return a copy of a JSON value with another value at a path."""
    value = copy.deepcopy(value)
    *parents, last = path
    holder = value
    for key in parents:
        holder = holder[key]
    holder[last] = new
    return value


RECORDED = [
    json.loads((REVIEWS / name).read_text())
    for name in (
        "mutate-pod-from-replicaset-two-containers-init-native-sidecar.json",
        "mutate-pod-whole-gpu-half.json",
        "validate-pod-ephemeralcontainers-visible-devices-all.json",
        "validate-pod-resize.json",
    )
]
RICH_POD = a_pod(
    "trainer=8Gi",
    containers=[
        {
            "name": "trainer",
            "image": "x",
            "command": ["a"],
            "args": ["b"],
            "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}],
            "resources": {"limits": {"vramwarden.io/vram": "8Gi"}, "claims": []},
            "securityContext": {
                "privileged": False,
                "runAsUser": 1,
                "runAsNonRoot": True,
                "capabilities": {"add": ["CHOWN"], "drop": ["ALL"]},
                "seccompProfile": {"type": "RuntimeDefault"},
                "allowPrivilegeEscalation": False,
            },
        }
    ],
    nodeSelector={"a": "b"},
    os={"name": "linux"},
    volumes=[{"name": "v", "hostPath": {"path": "/data"}}],
    tolerations=[{"operator": "Exists"}],
    resourceClaims=[],
    runtimeClassName="nvidia",
    securityContext={"runAsUser": 1},
    affinity={
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]
            }
        }
    },
)
RECORDED.append(a_review(RICH_POD))
RECORDED.append(a_review(mutated(RICH_POD, a_policy()).obj))
PLACES = [(review, path) for review in RECORDED for path in paths_of(review) if path]
KEY_OF_A_TERM = next(one for one in PLACES if one[1][-1] == "key" and "matchExpressions" in one[1])


@example(place=KEY_OF_A_TERM, new=[], phase=Phase.MUTATE, rule=a_rule())
@given(place=st.sampled_from(PLACES), new=ANY_JSON, phase=st.sampled_from(Phase), rule=RULES)
def test_any_json_in_place_of_any_field_gets_an_answer(place, new, phase, rule):
    review, path = place
    body = json.dumps(replaced(review, path, new)).encode()
    try:
        request = read_review(body)
    except BadReviewError as error:
        assert str(error)
        return
    decision = decide(request, a_policy(rule), UNKNOWN_CLUSTER, phase)
    answer = orjson.loads(write_review(request.uid, decision))
    assert answer["response"]["uid"] == request.uid
    assert answer["response"]["allowed"] is decision.allowed
    assert ("patch" in answer["response"]) == ("patchType" in answer["response"])


@pytest.mark.parametrize("value", ["", " ", "0", "-1", "8GB", "NaN", "1e999", "0x8", "8Gi,"])
def test_nothing_malformed_means_no_limit(value):
    for phase in Phase:
        assert not decide(a_request(a_pod(value)), a_policy(), UNKNOWN_CLUSTER, phase).allowed
