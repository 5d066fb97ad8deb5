"""Hand-written reviews of Bindings."""

from __future__ import annotations


def review(**request):
    """Return the review of a Binding as an API server sends it, with some fields replaced."""
    metadata = {"name": "train", "namespace": "team", "uid": "49011d28"}
    usual = {
        "uid": "5350b18d",
        "kind": {"group": "", "version": "v1", "kind": "Binding"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "subResource": "binding",
        "name": "train",
        "namespace": "team",
        "operation": "CREATE",
        "userInfo": {"username": "system:kube-scheduler"},
        "object": {
            "kind": "Binding",
            "apiVersion": "v1",
            "metadata": metadata,
            "target": {"kind": "Node", "name": "node1"},
        },
        "oldObject": None,
        "dryRun": False,
    }
    body = {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"}
    return {**body, "request": {**usual, **request}}
