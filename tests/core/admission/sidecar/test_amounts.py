"""CPU and memory of the sidecar, by QoS class and pod-level resources."""

from __future__ import annotations

import copy

import pytest

from tests.core.admission.decisions import (
    another_policy,
    assert_admitted,
    assert_denied,
    assert_unchanged,
    decide_pod,
    find_container,
    translate,
)
from tests.support.pods import a_container, a_pod, a_rule
from webhook.core.admission.decision import Phase
from webhook.core.policy.model import ResourceAmounts

BOTH = {"cpu": "2", "memory": "4Gi"}
EQUAL = {"requests": BOTH, "limits": BOTH}
GUARANTEED = ("200m", "200m")


def of_pod(request, limit, memory="4Gi"):
    amounts = {"requests": request, "limits": limit}
    return {kind: {"cpu": cpu, "memory": memory} for kind, cpu in amounts.items() if cpu}


def asking(resources=None, pod_level=None, **spec):
    more = {"resources": pod_level} if pod_level is not None else {}
    return a_pod("8Gi", containers=[a_container(resources=resources or {})], **more, **spec)


CASES = {
    "nothing": (asking(), ("10m", "1")),
    "requests": (asking({"requests": BOTH}), ("10m", "1")),
    "limits below the sidecar's": (asking({"limits": {"cpu": "100m"}}), ("10m", "1")),
    "Guaranteed": (asking(EQUAL), GUARANTEED),
    "Guaranteed, requests not set": (asking({"limits": BOTH}), GUARANTEED),
    "Guaranteed but for an init container": (
        asking(EQUAL, initContainers=[a_container("init")]),
        ("10m", "1"),
    ),
    "pod-level, Guaranteed": (asking(None, EQUAL), GUARANTEED),
    "pod-level, Guaranteed, just enough room": (
        asking({"requests": {"cpu": "800m"}}, of_pod("1", "1")),
        GUARANTEED,
    ),
    # In this case the QoS class does not depend on the sidecar's amounts. A lack of room only costs
    # time.
    "pod-level, Guaranteed, too little room": (
        asking({"requests": {"cpu": "801m"}}, of_pod("1", "1")),
        ("10m", "1"),
    ),
    "pod-level, Guaranteed, small": (asking(None, of_pod("100m", "100m")), ("10m", "100m")),
    "pod-level, a smaller limit": (asking(None, of_pod("20m", "500m")), ("10m", "500m")),
    "pod-level, a larger limit": (asking(None, of_pod("20m", "1500m")), ("10m", "1")),
    "pod-level, the same limit": (asking(None, of_pod("20m", "1000m")), ("10m", "1")),
    "pod-level, no limit": (asking(None, of_pod("20m", None)), ("10m", "1")),
    "pod-level, no requests": (asking(None, of_pod(None, "1")), ("10m", "1")),
}


@pytest.mark.parametrize(("pod", "cpu"), CASES.values(), ids=CASES)
def test_the_sidecar_asks_for_what_the_pods_class_allows(pod, cpu):
    request, limit = cpu
    assert find_container(translate(pod), "vram-enforcer")["resources"] == {
        "requests": {"cpu": request, "memory": "64Mi"},
        "limits": {"cpu": limit, "memory": "64Mi"},
    }


def as_stored(pod):
    """Return a pod with the requests that the API server derives from limits."""
    pod = copy.deepcopy(pod)
    spec = pod["spec"]
    containers = [*spec["containers"], *spec.get("initContainers", ())]
    for holder in containers:
        resources = holder.get("resources") or {}
        if "limits" in resources:
            resources["requests"] = {**resources["limits"], **resources.get("requests", {})}
    of_pod = spec.get("resources") or {}
    if "limits" in of_pod:
        sums = {"cpu": "10m", "memory": "64Mi"} if "requests" not in of_pod else {}
        of_pod["requests"] = {**of_pod["limits"], **sums, **of_pod.get("requests", {})}
    return pod


@pytest.mark.parametrize("pod", [pod for pod, _ in CASES.values()], ids=CASES)
def test_the_class_is_judged_without_the_sidecar_also_after_the_api_servers_defaults(pod):
    stored = as_stored(translate(pod))
    assert_unchanged(decide_pod(stored))
    assert_unchanged(decide_pod(stored, phase=Phase.VALIDATE))


@pytest.mark.parametrize(
    ("before", "after", "cpu"),
    [({}, EQUAL, GUARANTEED), (EQUAL, {}, ("10m", "1"))],
    ids=["becomes Guaranteed", "is Guaranteed no more"],
)
def test_a_pod_that_comes_again_in_another_class_gets_the_amounts_of_that_one(before, after, cpu):
    pod = translate(asking(before))
    vram = find_container(pod, "main")["resources"]
    for kind in ("requests", "limits"):
        vram[kind] = {"vramwarden.io/vram": "8Gi", **after.get(kind, {})}
    resources = find_container(translate(pod), "vram-enforcer")["resources"]
    assert (resources["requests"]["cpu"], resources["limits"]["cpu"]) == cpu


USUAL = (("10m", "64Mi"), ("1", "64Mi"))
GIVEN = {
    # The rule's amounts, the pod; expected requests and limits.
    "all": (
        ResourceAmounts("20m", "500m", "64Mi", "96Mi"),
        {},
        (("20m", "64Mi"), ("500m", "96Mi")),
    ),
    "nothing": (ResourceAmounts(), {}, USUAL),
    "limits": (
        ResourceAmounts(cpu_limit="2", memory_limit="96Mi"),
        {},
        (("2", "96Mi"), ("2", "96Mi")),
    ),
    "small requests": (
        ResourceAmounts("50m", None, "48Mi", None),
        {},
        (("50m", "48Mi"), ("1", "64Mi")),
    ),
    "large requests": (
        ResourceAmounts("2", None, "96Mi", None),
        {},
        (("2", "96Mi"), ("2", "96Mi")),
    ),
    "memory": (ResourceAmounts(memory_limit="96Mi"), {}, (("10m", "96Mi"), ("1", "96Mi"))),
    "memory, Guaranteed": (
        ResourceAmounts(memory_limit="96Mi"),
        {"resources": EQUAL},
        (("200m", "96Mi"), ("200m", "96Mi")),
    ),
    "equal, Guaranteed": (
        ResourceAmounts("500m", "500m", "96Mi", "96Mi"),
        {"resources": EQUAL},
        (("500m", "96Mi"), ("500m", "96Mi")),
    ),
    "unequal, Guaranteed": (
        ResourceAmounts("20m", "500m"),
        {"resources": EQUAL},
        (("20m", "64Mi"), ("500m", "64Mi")),
    ),
    # The API server accepts no container limit above the pod's.
    "pod-level, a smaller limit": (
        ResourceAmounts("20m", "1"),
        {"pod_level": of_pod("30m", "500m")},
        (("20m", "64Mi"), ("500m", "64Mi")),
    ),
    "pod-level, a larger limit": (
        ResourceAmounts("20m", "2"),
        {"pod_level": of_pod("30m", "3")},
        (("20m", "64Mi"), ("2", "64Mi")),
    ),
}


@pytest.mark.parametrize(("given", "pod", "wanted"), GIVEN.values(), ids=GIVEN)
def test_what_a_rule_gives_comes_in_place_of_the_usual_amounts(given, pod, wanted):
    rule = a_rule(enforcement={"resources": given})
    after = translate(asking(**pod), rule)
    kinds = zip(("requests", "limits"), wanted, strict=True)
    assert find_container(after, "vram-enforcer")["resources"] == {
        kind: {"cpu": cpu, "memory": memory} for kind, (cpu, memory) in kinds
    }
    assert_admitted(after, rule)


def test_a_pod_without_room_for_what_the_rule_gives_is_denied():
    rule = a_rule(enforcement={"resources": ResourceAmounts("1", "1")})
    decision = decide_pod(asking(None, of_pod("500m", "4")), rule)
    assert_denied(decision, "EnforcementImpossible", "spec.resources.requests[cpu]")
    assert "which needs 1 of cpu beside the containers" in decision.message


@pytest.mark.parametrize(
    ("ours", "stored"),
    [("1000000000", "1G"), ("1000m", "1"), ("1G", "1000000000")],
)
def test_an_amount_that_the_api_server_writes_in_other_words_is_ours(ours, stored):
    rule = a_rule(enforcement={"resources": ResourceAmounts(ours, ours)})
    pod = translate(asking(), rule)
    for amounts in find_container(pod, "vram-enforcer")["resources"].values():
        assert amounts["cpu"] == ours
        amounts["cpu"] = stored
    assert decide_pod(pod, rule).patch == ()
    assert_unchanged(decide_pod(pod, rule, Phase.VALIDATE))


@pytest.mark.parametrize("amount", ["2G", "", "x", None])
def test_another_amount_than_the_rule_gives_is_replaced_and_not_stored(amount):
    rule = a_rule(enforcement={"resources": ResourceAmounts(memory_limit="1000000000")})
    clean = translate(asking(), rule)
    pod = copy.deepcopy(clean)
    limits = find_container(pod, "vram-enforcer")["resources"]["limits"]
    if amount is None:
        del limits["memory"]
    else:
        limits["memory"] = amount
    assert decide_pod(pod, rule).obj == clean
    assert decide_pod(pod, rule, Phase.VALIDATE).reasons == ("Unmutated",)


@pytest.mark.parametrize(
    "before", [ResourceAmounts(), ResourceAmounts("20m", "500m", "64Mi", "96Mi")]
)
@pytest.mark.parametrize("now", [ResourceAmounts(), ResourceAmounts("1", "1", "1Gi", "1Gi")])
def test_amounts_of_another_policy_are_stored_and_replaced_in_a_pod_that_comes_again(before, now):
    pod = translate(asking(), a_rule(enforcement={"resources": before}))
    rule = a_rule(enforcement={"resources": now})
    policy = another_policy(rule)
    assert_unchanged(decide_pod(pod, phase=Phase.VALIDATE, policy=policy))
    assert decide_pod(pod, rule).obj == translate(asking(), rule)


@pytest.mark.parametrize("cpu", ["10m", "200m", "1"])
@pytest.mark.parametrize("resources", [{}, EQUAL], ids=["Burstable", "Guaranteed"])
def test_during_an_upgrade_the_amounts_of_any_release_are_stored(resources, cpu):
    pod = translate(asking(resources))
    amounts = {"cpu": cpu, "memory": "64Mi"}
    ours = find_container(pod, "vram-enforcer")
    ours["resources"] = {"requests": amounts, "limits": amounts}
    ours["startupProbe"]["initialDelaySeconds"] = 5
    policy = another_policy()
    assert_unchanged(decide_pod(pod, phase=Phase.VALIDATE, policy=policy))


def test_the_first_probe_comes_at_once_and_waits():
    probe = find_container(translate(asking()), "vram-enforcer")["startupProbe"]
    assert "initialDelaySeconds" not in probe  # 0, which the API server omits
    assert probe["exec"]["command"] == ["/opt/vramwarden/bin/vram-enforcer-probe", "startup", "25"]
