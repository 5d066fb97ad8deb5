"""Under any policy, whole GPUs and partitions by other means are denied in a pod with VRAM."""

from __future__ import annotations

import functools

import pytest

from tests.support.pods import a_container, a_pod, a_request
from tests.support.policies import SHIPPED, load
from webhook.core.admission.decide import decide
from webhook.core.admission.decision import Outcome, Phase
from webhook.core.pod.findings import Reason
from webhook.core.policy.cluster import Cluster
from webhook.core.policy.gpu_resources import WHOLE_GPU_RESOURCES
from webhook.core.policy.match import Subject
from webhook.core.policy.model import Accounting, Action

RESOURCES = [
    "nvidia.com/mig-1g.10gb",
    "nvidia.com/gpu.shared",
    "nvidia.com/gpumem-percentage",
    "volcano.sh/vgpu-memory",
    *("amd.com/gpu", "amd.com/gpumem", "amd.com/dpx_nps2"),
    "deviceclass.resource.kubernetes.io/gpu.nvidia.com",
    *(name for name in WHOLE_GPU_RESOURCES if "*" not in name),
]


loaded = functools.cache(load)


def a_subject(example):
    """Return a pod without labels in the namespace of an example."""
    labels = example.namespace_labels
    return Subject(namespace=example.namespace, namespace_labels=labels)


def decided(policy, example, resource):
    """Return the decision on a pod that requests VRAM and another resource."""
    container = a_container(resources={"limits": {resource: "1"}})
    request = a_request(
        a_pod("8Gi", containers=[container]),
        namespace=example.namespace,
    )
    cluster = Cluster(namespaces={example.namespace: example.namespace_labels})
    return decide(request, policy, cluster, Phase.MUTATE)


@pytest.mark.parametrize("resource", RESOURCES)
@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_every_shipped_policy_denies_a_share_beside_a_whole_gpu(file, resource):
    policy = loaded(file)
    # Namespaces of the policy's own examples, since some policies apply to no other namespace.
    judged = [
        (example, rule)
        for example in policy.examples
        if (rule := policy.rule_for(a_subject(example))) and rule.action is not Action.IGNORE
    ]
    assert judged
    for example, rule in judged:
        found = decided(policy, example, resource)
        if rule.accounting is Accounting.CAP_ONLY and resource == rule.time_sliced_resource:
            assert found.outcome is Outcome.MUTATED  # the slot that the rule itself sets
            continue
        assert Reason.WHOLE_GPU_AND_SHARE in found.reasons
        assert (found.outcome is Outcome.DENIED) is (rule.action is Action.ENFORCE)


def test_the_default_policy_names_what_counts_where_none_does():
    assert load(SHIPPED[0]).whole_gpu_resources == WHOLE_GPU_RESOURCES
