"""Nodes for the tests of sharing, with the verdict on them."""

from __future__ import annotations

from webhook.core.node.sharing import SharingInputs, judge
from webhook.names import NODE_SHARE_LABEL

SHARING = "vramwarden.io/sharing"
PLUGIN, DRA = "nvidia.com/gpu.deploy.device-plugin", "nvidia.com/gpu.deploy.dra-driver"
HAMI_REMEDY = "by removing the node's label `gpu`"
GPU_LIST = '[{"uuid":"GPU-a","memory":1048576,"product":"x","index":0}]'


def make_node(allocatable=None, label=None, **more):
    labels = {} if label is None else {NODE_SHARE_LABEL: label}
    status = {} if allocatable is None else {"allocatable": allocatable}
    return {"metadata": {"name": "n", "labels": labels}, "status": status, **more}


def node_with_verdict(verdict):
    annotations = {} if verdict is None else {SHARING: verdict}
    return {"metadata": {"annotations": annotations}}


def judge_with(node, **inputs):
    defaults = {"is_advertised": False, "has_pods": False, "in_use": ()}
    return judge(node, SharingInputs(**defaults | inputs))
