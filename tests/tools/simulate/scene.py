"""Clusters and workloads for `vramwarden simulate`."""

from __future__ import annotations

import json

SCENE = """\
nodes:
- {name: big, count: 2, gpus: 8x80Gi, labels: {zone: a}}
- {name: old, gpus: [24Gi, 16Gi]}
pods:
- {name: train, count: 5, memory: 60Gi, gpus: 2, nodeSelector: {zone: a}}
- {name: job, count: 9, memory: 8Gi, arrival: 1h, every: 5m, duration: 30m}
- {name: huge, memory: 100Gi}
"""


def gpus(*mib):
    return json.dumps(
        [
            {
                "uuid": f"GPU-{index}",
                "memory": one * 2**20,
                "total": one * 2**20 + 7,
                "product": "H200",
                "index": index,
                # A replay lasts longer than most failures of a GPU.
                "healthy": False,
            }
            for index, one in enumerate(mib)
        ]
    )


def node(name="n1", written=None, **labels):
    annotations = {} if written is None else {"vramwarden.io/gpus": written}
    metadata = {"name": name, "labels": labels, "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata}


def pod(name="p", memory="5Gi", *, status=None, created=None, **spec):
    metadata = {"name": name, "namespace": "team"}
    if memory:
        metadata["annotations"] = {"vramwarden.io/gpu-memory": memory}
    if created:
        metadata["creationTimestamp"] = created
    spec = {"containers": [{"name": "main"}], **spec}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    return {**pod, "status": status} if status else pod


def listed(*items):
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
