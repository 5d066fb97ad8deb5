"""Decisions about pods of one template: what is remembered is what would be decided."""

from __future__ import annotations

import copy
import gc
import json
import tracemalloc
from dataclasses import replace

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.admission.test_laws import RULES
from tests.support.pods import a_container, a_pod, a_policy, a_request, a_rule
from tests.support.strategies import ANY_JSON, asking_pods
from webhook.core.admission.decide import Phase, decide
from webhook.core.policy.match import NamespaceUnknownError
from webhook.core.policy.slices import SlicedNode
from webhook.core.policy.values import Rollout, VisibleDevices
from webhook.server import remembered
from webhook.server.remembered import MOST, MOST_SEEN, RememberedDecisions

TOKENS = ("kube-api-access-2bcdf", "kube-api-access-x4b7z")


def with_token(pod, token):
    """Return a pod as the ServiceAccount plugin leaves it."""
    pod = copy.deepcopy(pod)
    spec = pod["spec"]
    spec["volumes"] = [*(spec.get("volumes") or []), {"name": token, "projected": {"sources": []}}]
    mount = {"name": token, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}
    for field in ("containers", "initContainers"):
        for container in spec.get(field) or []:
            container["volumeMounts"] = [*(container.get("volumeMounts") or []), mount]
    return pod


@pytest.fixture
def decided(monkeypatch):
    """Count what is decided, and not only remembered."""
    calls = []

    def counted(request, policy, phase):
        calls.append(request)
        return decide(request, policy, phase)

    monkeypatch.setattr(remembered, "decide", counted)
    return calls


def times(decided, *pods, policy=None, memory=None, phase=Phase.MUTATE, **request):
    """Decide pods one after the other; return how many were decided, and not only remembered."""
    memory, policy = memory or RememberedDecisions(), policy or a_policy()
    before = len(decided)
    for pod in pods:
        asked = a_request(pod, **request)
        assert memory.decide(asked, policy, phase) == decide(asked, policy, phase)
    return len(decided) - before


def test_a_template_is_decided_twice_and_then_known(decided):
    pods = [with_token(a_pod("8Gi"), TOKENS[number % 2]) for number in range(10)]
    for number, pod in enumerate(pods):
        pod["metadata"] |= {"name": f"train-{number}", "uid": str(number), "managedFields": [{}]}
    patched = [decide(a_request(pod), a_policy(), Phase.MUTATE).obj for pod in pods]
    assert times(decided, *pods) == 2
    assert times(decided, *patched, phase=Phase.VALIDATE) == 2


@given(asking_pods(), RULES, st.dictionaries(st.sampled_from(["name", "uid", "x"]), ANY_JSON))
def test_what_is_remembered_of_a_pod_is_what_would_be_decided_of_another(pod, rule, others):
    policy, memory = a_policy(rule), RememberedDecisions()
    pod, others = orjson.loads(json.dumps([pod, others]))  # as a body is read: no greater numbers
    first, second = (with_token(pod, token) for token in TOKENS)
    second["metadata"] |= others
    second["status"] = others
    for phase in Phase:
        for comes, by in ((first, "a"), (first, "b"), (second, "c")):
            asked = a_request(comes, user=by, groups=(by,), name=by)
            known, wanted = memory.decide(asked, policy, phase), decide(asked, policy, phase)
            assert known == wanted
            assert known.obj == wanted.obj


@pytest.mark.parametrize(
    "change",
    [
        lambda pod: pod["metadata"]["annotations"].update({"vramwarden.io/gpu-memory": "9Gi"}),
        lambda pod: pod["metadata"].update(labels={"a": "b"}),
        lambda pod: pod["spec"].update(hostNetwork=True),
        lambda pod: pod["spec"]["containers"][0].update(image="other"),
        lambda pod: pod["spec"]["volumes"].reverse(),
        lambda pod: pod["spec"]["volumes"].append({"name": TOKENS[1]}),
    ],
)
def test_another_template_is_decided_by_itself(decided, change):
    pod = with_token(a_pod("8Gi", volumes=[{"name": "data"}]), TOKENS[0])
    other = copy.deepcopy(pod)
    change(other)
    memory = RememberedDecisions()
    assert times(decided, pod, pod, pod, memory=memory) == 2
    assert times(decided, other, memory=memory) == 1


def test_a_pod_in_another_namespace_is_decided_by_itself(decided):
    memory, pod = RememberedDecisions(), a_pod("8Gi")
    assert times(decided, pod, pod, pod, memory=memory, namespace="team-a") == 2
    assert times(decided, pod, memory=memory, namespace="team-b") == 1


WHO = [
    {"user": "ada"},
    {"groups": ("interns",)},
    {"namespace_labels": {"tier": "intern"}},
    {"user": "ada", "groups": ("interns", "staff")},
    {},
]
ASKING = [
    a_rule(name="ada", users=("ada",), programs=("pytorch",)),
    a_rule(name="interns", groups=("interns",), programs=("jax",)),
    a_rule(name="labelled", namespace_labels={"tier": "intern"}, programs=("cupy",)),
    a_rule(name="rest"),
]


@given(st.lists(st.sampled_from(WHO), max_size=12), st.permutations(ASKING))
def test_who_creates_a_pod_and_where_decides_as_if_nothing_were_remembered(who, rules):
    policy, memory = a_policy(*rules), RememberedDecisions()
    for one in who:
        asked = a_request(a_pod("8Gi"), **{"namespace_labels": {}, **one})
        for phase in Phase:
            assert memory.decide(asked, policy, phase) == decide(asked, policy, phase)


def test_creators_under_one_rule_share_what_is_remembered(decided):
    memory, pod = RememberedDecisions(), a_pod("8Gi")
    policy = a_policy(a_rule(name="ada", users=("ada",)), a_rule(name="rest"))
    assert times(decided, pod, pod, pod, memory=memory, policy=policy, user="bob") == 2
    assert times(decided, pod, memory=memory, policy=policy, user="eve") == 0
    assert times(decided, pod, memory=memory, policy=policy, user="ada") == 1


def test_a_namespace_that_is_not_known_is_no_template(decided):
    memory = RememberedDecisions()
    asked = a_request(a_pod("8Gi"))
    for _ in range(3):
        with pytest.raises(NamespaceUnknownError):
            memory.decide(asked, a_policy(ASKING[2]), Phase.MUTATE)


@pytest.mark.parametrize(
    "place",
    [
        lambda pod: pod["metadata"].update(labels={"a": TOKENS[0]}),
        lambda pod: pod["metadata"]["annotations"].update(a=f"for {TOKENS[0]}"),
        lambda pod: pod["spec"]["containers"][0].update(name=TOKENS[0]),
        lambda pod: pod["spec"]["containers"][0].update(env=[{"name": TOKENS[0]}]),
        lambda pod: pod["spec"].update(imagePullSecrets=[{"name": TOKENS[0]}]),
    ],
)
def test_a_name_of_the_token_that_stands_elsewhere_too_is_not_left_out(decided, place):
    pod = with_token(a_pod("8Gi"), TOKENS[0])
    place(pod)
    assert times(decided, pod, pod, pod, pod) == 4


@pytest.mark.parametrize(
    ("pod", "request_"),
    [
        (a_pod("8GB"), {}),
        (a_pod("8Gi", hostPID=True), {}),
        (a_pod("8Gi", annotations={"vramwarden.io/gpu-mem": "1"}), {}),
        (a_pod("8Gi", containers=[{"name": 1}]), {}),
        (a_pod("8Gi"), {"groups": ("system:nodes",)}),
        (a_pod("8Gi"), {"operation": "UPDATE", "old": a_pod("8Gi")}),
        (a_pod("8Gi"), {"operation": "CREATE", "subresource": "resize"}),
        ({"spec": a_pod("8Gi")["spec"]}, {}),
    ],
)
def test_what_its_user_is_told_of_and_what_is_no_creation_is_decided_each_time(
    decided, pod, request_
):
    assert times(decided, pod, pod, pod, pod, **request_) == 4


def test_a_patch_that_names_the_token_is_not_remembered(decided):
    # Two volumes of one name: the list is set as a whole, and the token's volume is in it.
    same = [{"name": "vram-enforcer-run", "emptyDir": {}}] * 2
    pod = with_token(a_pod("8Gi", volumes=same), TOKENS[0])
    memory, policy = RememberedDecisions(), a_policy()
    for token in (*TOKENS, *TOKENS):
        pod = with_token(a_pod("8Gi", volumes=same), token)
        found = memory.decide(a_request(pod), policy, Phase.MUTATE)
        assert token in str(found.patch)
    assert len(decided) == 4


def test_a_patch_that_quotes_much_of_a_pod_is_not_remembered(decided):
    # Two variables of one name: the list is set as a whole.
    pod = a_pod("8Gi", containers=[a_container(env=[{"name": "A"}] * 1000)])
    assert times(decided, pod, pod, pod, pod) == 4


@pytest.mark.parametrize("count", [10, 100, 180, 1000])
def test_what_a_tenant_writes_takes_little_memory(count):
    memory, policy, pods = RememberedDecisions(), a_policy(), 8
    env = orjson.dumps([{"name": "A"}] * count)
    tracemalloc.start()
    try:
        for number in [*range(pods)] * 2:
            pod = a_pod("8Gi", labels={"app": str(number)})
            pod["spec"]["containers"] = [a_container(env=orjson.loads(env))]
            memory.decide(a_request(pod), policy, Phase.MUTATE)
        del pod
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < pods * 2**16
    finally:
        tracemalloc.stop()


def test_under_another_policy_all_is_decided_anew(decided):
    env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    asking, plain = a_pod("8Gi"), a_pod(containers=[a_container(env=env)])
    memory = RememberedDecisions()
    policy = a_policy(a_rule(visible_devices=VisibleDevices.VOID))
    edited = replace(policy, digest="0" * 64)
    observed = replace(edited, rollout=Rollout.OBSERVE)
    told = replace(observed, runtime_classes=frozenset({"nvidia"}))
    sliced = replace(told, sliced_nodes=(SlicedNode({"1g.10gb": 1}),))
    for other in (policy, edited, observed, told, sliced):
        assert times(decided, asking, asking, asking, policy=other, memory=memory) == 2
        assert times(decided, plain, policy=other, memory=memory) == 1


def test_a_policy_that_is_replaced_meanwhile_leaves_no_decision_of_the_one_before():
    class Digest(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other):
            while replacing:
                memory.decide(a_request(replacing.pop()), new, Phase.MUTATE)
            return super().__eq__(other)

    memory, pod, replacing = RememberedDecisions(), a_pod("8Gi"), []
    old, again = (replace(a_policy(), digest=Digest("0" * 64)) for _ in range(2))
    new = replace(a_policy(a_rule(programs=("pytorch",))), digest="1" * 64)
    memory.decide(a_request(pod), old, Phase.MUTATE)
    replacing.append(pod)  # as another thread would, while this one compares
    memory.decide(a_request(pod), again, Phase.MUTATE)
    assert replacing == []
    wanted = decide(a_request(pod), new, Phase.MUTATE)
    assert memory.decide(a_request(pod), new, Phase.MUTATE) == wanted


def test_a_memory_has_a_bound(decided):
    memory, policy = RememberedDecisions(), a_policy()
    for number in range(MOST_SEEN + 2 * MOST):
        pod = a_pod("8Gi", labels={"app": str(number)})
        for _ in range(2 if number < MOST + 2 else 1):
            memory.decide(a_request(pod), policy, Phase.MUTATE)
            assert len(memory._memory.known) <= MOST
            assert len(memory._memory.seen) <= MOST_SEEN
    assert all(decision.before == {} for decision in memory._memory.known.values())
