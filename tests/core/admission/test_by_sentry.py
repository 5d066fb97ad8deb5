"""The sentry's pods are like pods with a sidecar, but without its requirements."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest

from tests.core.admission.decisions import (
    BY_SENTRY,
    RICH_RULE,
    a_full_pod,
    a_hardened_pod,
    assert_unchanged,
    decide_pod,
    translate,
)
from tests.support.pods import RULE
from webhook.core.admission.decision import Phase
from webhook.core.policy.model import EnforceBy, Placement
from webhook.names import NODE_ENFORCEMENT_LABEL, NODE_SENTRY_LABEL

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def by_sentry(rule):
    return replace(rule, enforcement=replace(rule.enforcement, by=EnforceBy.SENTRY))


def without_sidecar(pod):
    pod = copy.deepcopy(pod)
    spec = pod["spec"]
    spec["initContainers"] = spec["initContainers"][1:]
    del spec["shareProcessNamespace"], spec["volumes"]
    for term in spec["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]:
        (required,) = (
            one for one in term["matchExpressions"] if one["key"] == NODE_ENFORCEMENT_LABEL
        )
        required |= {"key": NODE_SENTRY_LABEL, "operator": "In", "values": ["true"]}
    return pod


@pytest.mark.parametrize("rule", [RULE, RICH_RULE], ids=["default", "rich"])
@pytest.mark.parametrize("memory", ["main=8Gi", "main=8Gi,second=4Gi", "init=4Gi", "side=4Gi"])
def test_all_but_the_sidecar_and_its_node_is_as_by_sidecar(memory, rule):
    pod, rule = a_full_pod(memory), replace(rule, placement=Placement.NONE)
    assert translate(pod, by_sentry(rule)) == without_sidecar(translate(pod, rule))


@pytest.mark.parametrize("rule", [BY_SENTRY, by_sentry(RICH_RULE)], ids=["default", "rich"])
@pytest.mark.parametrize("memory", ["main=8Gi", "main=8Gi,second=4Gi", "init=4Gi", "side=4Gi"])
def test_no_container_comes_and_no_process_namespace_is_shared(memory, rule):
    pod = a_full_pod(memory)
    after = translate(pod, rule)["spec"]
    for field in ("containers", "initContainers"):
        assert [one["name"] for one in after[field]] == [one["name"] for one in pod["spec"][field]]
    assert "shareProcessNamespace" not in after


def test_a_restricted_pod_is_stored_in_the_users_own_security_context():
    pod = a_hardened_pod(restricted=True, users=(1000, None))
    after = translate(pod, BY_SENTRY)
    assert_unchanged(decide_pod(after, BY_SENTRY, Phase.VALIDATE))
    for field in ("containers", "initContainers"):
        for before, now in zip(pod["spec"][field], after["spec"][field], strict=True):
            assert now["securityContext"] == before["securityContext"]
