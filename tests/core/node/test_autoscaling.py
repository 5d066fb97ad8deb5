"""Node templates for autoscalers."""

from __future__ import annotations

import pytest

from webhook.core.node.autoscaling import group_tags, node_overlay, node_pool_patch, selected_labels
from webhook.core.node.state import NodeState

LABELS = {
    "vramwarden.io/gpu": "true",
    "vramwarden.io/gpu-memory-mib": "81920",
    "vramwarden.io/enforcement": "sidecar",
    "vramwarden.io/device-names": "uuid",
}
STATE = NodeState(
    160 * 2**30,
    {**LABELS, "vramwarden.io/gpu-count": "2", "vramwarden.io/gpu-memory-free-mib.3": None},
)
KEY = "startup-taint.cluster-autoscaler.kubernetes.io/vramwarden"
NODE = {"metadata": {"name": "n", "labels": {"node.kubernetes.io/instance-type": "p4d.24xlarge"}}}


def test_the_labels_are_those_by_which_pods_select():
    assert selected_labels(NODE, STATE) == LABELS
    shown = {"metadata": {"labels": {"vramwarden.io/device-names": "none"}}}
    without = NodeState(1, {"vramwarden.io/gpu": "true", "vramwarden.io/enforcement": None})
    assert selected_labels(shown, without) == {
        "vramwarden.io/gpu": "true",
        "vramwarden.io/device-names": "none",
    }


def test_the_labels_of_a_node_that_is_advertised_are_its_own():
    """A command started by `kubectl exec` would detect other device names than the agent."""
    own = {
        "vramwarden.io/device-names": "runtime.nvidia.com",
        "vramwarden.io/driver-limit": "true",
        "vramwarden.io/sentry": "true",
    }
    shown = LABELS | own
    capacity = {"vramwarden.io/vram": "160Gi"}
    node = {"metadata": {"labels": shown}, "status": {"capacity": capacity}}
    assert selected_labels(node, STATE) == shown


def test_a_group_has_a_tag_for_the_resource_each_label_and_the_taint():
    template = "k8s.io/cluster-autoscaler/node-template"
    tags = {
        f"{template}/resources/vramwarden.io/vram": "160Gi",
        **{f"{template}/label/{key}": value for key, value in LABELS.items()},
    }
    assert group_tags(NODE, STATE, "") == tags
    assert group_tags(NODE, STATE, KEY) == {**tags, f"{template}/taint/{KEY}": "true:NoSchedule"}


def test_a_tag_is_one_that_aws_accepts():
    """Limits are 128 and 256 characters (Tag your Amazon EC2 resources, "Tag restrictions")."""
    for key, value in group_tags(NODE, STATE, KEY).items():
        assert len(key) <= 128
        assert len(value) <= 256


@pytest.mark.parametrize(
    ("labels", "name", "kind"),
    [
        (NODE["metadata"]["labels"], "vramwarden-p4d.24xlarge", "p4d.24xlarge"),
        (
            {"node.kubernetes.io/instance-type": "Standard_NC24ads_A100_v4"},
            "vramwarden-standard-nc24ads-a100-v4",
            "Standard_NC24ads_A100_v4",
        ),
        ({}, "vramwarden-instance-type", "INSTANCE-TYPE"),
    ],
)
def test_an_overlay_adds_the_resource_to_the_instance_type(labels, name, kind):
    requirement = {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": [kind]}
    assert node_overlay({"metadata": {"labels": labels}}, STATE) == {
        "apiVersion": "karpenter.sh/v1alpha1",
        "kind": "NodeOverlay",
        "metadata": {"name": name},
        "spec": {"requirements": [requirement], "capacity": {"vramwarden.io/vram": "160Gi"}},
    }


def test_a_pool_has_the_labels_and_the_startup_taint():
    metadata = {"labels": LABELS}
    assert node_pool_patch(NODE, STATE, "") == {"spec": {"template": {"metadata": metadata}}}
    taint = {"key": KEY, "value": "true", "effect": "NoSchedule"}
    template = {"metadata": metadata, "spec": {"startupTaints": [taint]}}
    assert node_pool_patch(NODE, STATE, KEY) == {"spec": {"template": template}}
