"""GPUNode on a real API server: definition, and figures a few seconds old."""

from __future__ import annotations

import time

from tests.support.clusters import NOW_S
from tests.support.control_planes import ApiError, wait_until
from webhook.core.kinds.nodes import write_gpu_node, write_time

CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "gpunodes.vramwarden.io"},
    "spec": {
        "group": "vramwarden.io",
        "scope": "Cluster",
        "names": {"kind": "GPUNode", "plural": "gpunodes"},
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": True,
                    }
                },
            }
        ],
    },
}
"""Definition with the parts that readers need."""
_NAMED = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": "tests-gpunodes"}}
_RBAC = {"apiGroup": "rbac.authorization.k8s.io"}
READABLE_BY_ALL = (
    _NAMED
    | {
        "kind": "ClusterRole",
        "rules": [
            {
                "apiGroups": ["vramwarden.io"],
                "resources": ["gpunodes"],
                "verbs": ["get", "list", "watch"],
            }
        ],
    },
    _NAMED
    | {
        "kind": "ClusterRoleBinding",
        "roleRef": _RBAC | {"kind": "ClusterRole", "name": "tests-gpunodes"},
        "subjects": [_RBAC | {"kind": "Group", "name": "system:authenticated"}],
    },
)
"""The chart's RBAC rule that lets all users read GPUNodes."""
GPU_NODES_PATH = "/apis/vramwarden.io/v1alpha1/gpunodes"


def may_view(user: str, namespace: str):
    """Return the binding of a user to the role `view` in a namespace."""
    # A controller, which does not run here, would compose `view` from this role.
    role = _RBAC | {"kind": "ClusterRole", "name": "system:aggregate-to-view"}
    return _NAMED | {
        "kind": "RoleBinding",
        "metadata": {"name": user, "namespace": namespace},
        "roleRef": role,
        "subjects": [_RBAC | {"kind": "User", "name": user}],
    }


def define(api):
    """Define GPUNode. Return when the API server serves it."""
    api.apply(CRD)
    wait_until("GPUNode is served", lambda: _served(api))


def _served(api):
    try:
        api.list(GPU_NODES_PATH)
    except ApiError:
        return False
    return True


def store(api, nodes):
    """Create the objects of the nodes. Figures keep their age relative to the test's clock."""
    for node in nodes:
        written = write_gpu_node(node)
        written["status"]["observedAt"] = write_time(time.time() - (NOW_S - node.observed_s))
        api.request("POST", GPU_NODES_PATH, written)
