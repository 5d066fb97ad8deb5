"""Parameters of the fence for a policy, and their seal."""

from __future__ import annotations

import functools
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.pods import A100, a_policy, a_rule
from webhook.adapters.policy.files import PolicySource, shipped_policy_path
from webhook.core.policy.fence import (
    GPUS_KEY,
    MAX_RULES_BYTES,
    MAX_WHOLE_GPUS_BYTES,
    RULES_KEY,
    fence_data,
)
from webhook.core.policy.match import Match, Subject, matches_any
from webhook.core.policy.model import (
    Accounting,
    Action,
    EnforceBy,
    GPUClass,
    Placement,
    Rollout,
    VisibleDevices,
)

ALL = "translated sidecar sidecar-gate marks variables annotations void"
IN_CONTAINERS = ALL.replace("sidecar sidecar-gate", "container-gates")
UNPLACED = {"placement": Placement.NONE}


def lines(*rules, rollout=Rollout.ENFORCE, **policy):
    return fence_data(a_policy(*rules, **policy), rollout)[RULES_KEY].splitlines()


@functools.cache
def shipped_policy():
    return PolicySource(shipped_policy_path(), "vramwarden/enforcer:1").current


def test_the_shipped_policy_leaves_the_system_alone_and_holds_all_else():
    shipped = shipped_policy()
    data = fence_data(shipped)
    system, default = data[RULES_KEY].splitlines()
    assert system.startswith(r"^(kube\-.*|vramwarden\-system|vramwarden\-sentry|gpu\-operator|")
    assert system.endswith(r"|amazon\-cloudwatch)$ - ^$ -")
    assert default == f"^(.*)$ - ^$ - {ALL}"


BRINGING = {
    **dict.fromkeys(("nvidia.com/gpu", "nvidia.com/mig-1g.5gb", "nvidia.com/a100-40gb"), True),
    **dict.fromkeys(("nvidia.com/GH100_H100_PCIE", "nvidia.com/gpu-nic", "amd.com/gpu"), True),
    **dict.fromkeys(("tencent.com/vcuda-core", "aliyun.com/gpu-mem", "vramwarden.io/vram"), True),
    **dict.fromkeys(("amd.com/gpumem", "amd.com/gpucores", "amd.com/cpx_nps4"), True),
    **dict.fromkeys(("amd.com/nic", "amd.com/vnic", "xamd.com/gpu"), False),
    "deviceclass.resource.kubernetes.io/gpu.amd.com": True,
    "deviceclass.resource.kubernetes.io/mig.nvidia.com": True,
    "deviceclass.resource.kubernetes.io/nvidia-h100": True,
    "deviceclass.resource.kubernetes.io/compute-domain-default-channel.nvidia.com": False,
    **dict.fromkeys(("nvidia.com/hostdev", "nvidia.com/sriov_resource", "rdma/hca"), False),
    **dict.fromkeys(("nvidia.com/mlnxnics", "nvidia.com/resibp12s0", "nvidiaxcom/gpu"), False),
    **dict.fromkeys(("cpu", "example.com/fpga", "mellanox.com/hostdev", "openshift.io/x"), False),
}


@pytest.mark.parametrize(("resource", "brings"), BRINGING.items())
def test_what_brings_gpus_is_the_same_for_webhook_and_fence(resource, brings):
    shipped = shipped_policy()
    bringing, networks = fence_data(shipped)[GPUS_KEY].split(" ")
    below = resource.startswith("nvidia.com/") and not re.search(networks, resource)
    assert bool(re.search(bringing, resource) or below) is brings
    # For vramwarden's own resource the webhook's message says more than that it may bring GPUs.
    assert shipped.may_provide_gpus(resource) is (brings and resource != "vramwarden.io/vram")


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({}, ALL),
        ({"enforcement": {"by": EnforceBy.NONE}}, IN_CONTAINERS),
        ({"enforcement": {"by": EnforceBy.SENTRY}}, IN_CONTAINERS),
        (UNPLACED, ALL.replace("sidecar-gate", "sees-all")),
        (
            {**UNPLACED, "enforcement": {"by": EnforceBy.SENTRY}},
            ALL.replace("sidecar sidecar-gate", "sees-all"),
        ),
        ({"accounting": Accounting.MIG}, ALL.replace("sidecar sidecar-gate", "plugin")),
        ({"accounting": Accounting.CAP_ONLY}, ALL.replace("sidecar-gate", "plugin sees-all")),
        ({"visible_devices": VisibleDevices.VOID}, ALL.replace("variables ", "")),
        ({"visible_devices": VisibleDevices.IGNORE}, "translated sidecar sidecar-gate marks"),
        ({"action": Action.WARN}, ""),
        ({"action": Action.AUDIT}, ""),
        ({"action": Action.IGNORE}, ""),
        ({"pod_labels": {"tier": "free"}}, ""),
        ({"service_accounts": ("trainer",)}, ""),
        ({"exception": Match(service_accounts=("trainer",))}, ""),
    ],
)
def test_words_say_what_a_rule_has_held(rule, words):
    assert lines(a_rule(**rule)) == [f"^(.*)$ - ^$ - {words}".strip()]


A, B = Match(namespaces=("a-*",)), Match(namespace_labels={"b/c": "", "a": "d"})


@pytest.mark.parametrize(
    ("match", "fields"),
    [
        (A, r"^(a\-.*)$ - ^$ -"),
        (B, "^(.*)$ a=d,b/c= ^$ -"),
        (Match(exception=A), r"^(.*)$ - ^(a\-.*)$ -"),
        (Match(exception=B), "^(.*)$ - ^(.*)$ a=d,b/c="),
        (replace(A, exception=replace(B, namespaces=("x",))), r"^(a\-.*)$ - ^(x)$ a=d,b/c="),
    ],
)
def test_fields_say_which_namespaces_a_rule_is_for(match, fields):
    assert lines(a_rule(match=match)) == [f"{fields} {ALL}"]
    # If the API server cannot see a criterion, the line is for all pods that might match.
    for more in ({"pod_labels": {"x": "y"}}, {"action": Action.IGNORE}):
        rule = {"match": match, **more} if "action" in more else {"match": replace(match, **more)}
        assert lines(a_rule(**rule)) == [fields]
    if match.exception:
        wider = replace(match, exception=replace(match.exception, service_accounts=("x",)))
        assert lines(a_rule(match=wider)) == [" ".join([*fields.split(" ")[:2], "^$ -"])]


@pytest.mark.parametrize(
    ("allowed", "words"),
    [(("*",), ALL.replace("sidecar sidecar-gate", "sidecar-gate plugin")), (("a100",), ALL)],
)
def test_a_class_that_pods_may_name_counts_for_all_of_them(allowed, words):
    sliced = GPUClass("sliced", {}, (), Accounting.MIG)
    classes = {"sliced": sliced, "a100": A100}
    assert lines(a_rule(allowed_classes=allowed), classes=classes) == [f"^(.*)$ - ^$ - {words}"]


def test_while_a_policy_is_observed_only_pods_with_a_demand_are_held_to_it():
    rule = a_rule(placement=Placement.NONE)
    assert lines(rule, rollout=Rollout.OBSERVE) == ["^(.*)$ - ^$ - translated sidecar sees-all"]


def test_lines_stand_in_the_order_of_the_rules():
    rules = [a_rule(namespaces=(name,)) for name in ("b", "a-*", "*")]
    assert lines(*rules) == [f"^({name})$ - ^$ - {ALL}" for name in ("b", r"a\-.*", ".*")]


def test_a_policy_without_rules_has_no_lines():
    assert fence_data(a_policy(rules=()))[RULES_KEY] == ""


NAMES = st.text(alphabet="ab-*", min_size=1, max_size=6)


@given(st.lists(st.lists(NAMES, max_size=3), max_size=3), st.text(alphabet="ab-", max_size=8))
def test_a_pattern_matches_what_its_rule_does(patterns, namespace):
    rules = [a_rule(namespaces=tuple(names)) for names in patterns]
    for rule, line in zip(rules, lines(*rules) if rules else [], strict=True):
        pattern = line.split(" ")[0]
        assert bool(re.search(pattern, namespace)) == rule.match.matches(
            Subject(namespace=namespace)
        )
        assert bool(re.search(pattern, namespace)) == (
            not rule.match.namespaces or matches_any(namespace, rule.match.namespaces)
        )


def test_rules_beyond_the_bound_are_left_to_the_webhook():
    rules = [a_rule(namespaces=(f"namespace-number-{number}",)) for number in range(1000)]
    text = fence_data(a_policy(*rules))[RULES_KEY]
    assert MAX_RULES_BYTES - 200 < len(text) <= MAX_RULES_BYTES
    *kept, last = text.splitlines()
    assert kept == lines(*rules[: len(kept)])
    assert last == "^(.*)$ - ^$ -"
    few = rules[: len(kept)]
    assert len(lines(*few)) == len(kept)


def test_a_list_of_whole_gpus_beyond_the_bound_is_every_resource_with_a_domain():
    names = tuple(f"example.com/device-{number}" for number in range(1000))
    assert len("|".join(names)) > MAX_WHOLE_GPUS_BYTES
    data = fence_data(a_policy(whole_gpu_resources=names))
    assert data[GPUS_KEY].split(" ")[0] == "/"
