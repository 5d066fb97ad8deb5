"""In-memory API server with a cluster of any size, whose objects are created on request.

Only vramwarden's reading, deciding and writing are measured, without sockets or an API server. Of
pods and nodes, only the numbers are stored.
"""

from __future__ import annotations

import functools
import json
import time
from collections import Counter

import jsonpatch

from tests.support.api_server import ApiServer, Denied
from tests.support.pods import a_pod, a_request
from webhook.adapters.kube.bounded_json import return_freed_memory
from webhook.adapters.policy.files import load_policy, shipped_policy_path
from webhook.core.admission.decide import decide
from webhook.core.admission.decision import Phase
from webhook.core.node.inventory import Inventory, TrackedGpu
from webhook.core.node.state import build_desired_state
from webhook.core.placement.assignment_codec import config_map_name, write_assignments
from webhook.core.placement.assignments import Assignment
from webhook.core.pod.gpus import Gpu
from webhook.core.policy.cluster import UNKNOWN_CLUSTER

NAMESPACE = "vramwarden-system"
GIB = 2**30
LISTS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
POD_BYTES, NODE_BYTES = 5 * 2**10, 12 * 2**10
"""JSON size of a typical pod with a demand, and of a node with its images and conditions."""

SINCE_S = 1_700_000_000


class StoredCluster(ApiServer):
    """Nodes with 8 GPUs, and pods of 1 GiB that are bound to the nodes in turn."""

    def __init__(self, nodes: int, pods: int, *, gpu_bytes: int = 2**50, waiting: int = 0) -> None:
        """Create a cluster whose last `waiting` pods were bound without a GPU."""
        super().__init__()
        return_freed_memory()  # as `connect` does
        self.answers = [self._made]
        self.nodes, self.pods, self.waiting = nodes, pods, waiting
        self.gpus = [
            Gpu(
                uuid=_uuid(i),
                memory_bytes=gpu_bytes,
                product="NVIDIA H200",
                index=i,
                total_bytes=gpu_bytes,
            )
            for i in range(8)
        ]
        self.lists: dict[str, dict] = {}
        self.ended: set[str] = set()
        self.version = 1000
        self.own_s = 0.0
        self.counted: Counter[str] = Counter()
        """Number of requests by method and kind; storing the requests would take memory."""
        self._pod = json.dumps(_pod())
        self._node = json.dumps(_node(self.gpus))
        for node in range(min(nodes, pods)):
            self._put_list(node, range(node, pods - waiting, nodes))

    def timed(self, work) -> float:
        """Return the CPU time of some work in this process, in seconds."""
        started_s, before_s = time.thread_time(), self.own_s
        work()
        return time.thread_time() - started_s - (self.own_s - before_s)

    def pod_text(self, number: int, *, phase: str = "Running", bound: bool = True) -> str:
        self.version += 1
        text = self._pod.replace("@number", str(number)).replace("@version", str(self.version))
        text = text.replace("@phase", phase).replace("@uid", uid(number))
        if bound:
            text = text.replace('"@spec"', f'"n{number % self.nodes}"')
        else:
            text = text.replace('"nodeName": "@spec", ', "")
        if not bound or number >= self.pods - self.waiting:
            return text.replace('"vramwarden.io/gpu": "@gpu", ', "")
        return text.replace("@gpu", _uuid(number // self.nodes % 8))

    def node_text(self, number: int) -> str:
        """Return a node as JSON; one label differs each time."""
        self.version += 1
        text = self._node.replace("@number", str(number))
        return text.replace("@version", str(self.version))

    def _put_list(self, node: int, numbers: range) -> None:
        entries = {
            uid(number): Assignment(
                pod=f"team/train-{number}",
                uuids=(_uuid(number // self.nodes % 8),),
                memory_bytes=GIB,
                since_s=SINCE_S,
            )
            for number in numbers
        }
        self._put({"metadata": {"name": config_map_name(f"n{node}"),
                                "annotations": {"vramwarden.io/node": f"n{node}"}},
                   "data": write_assignments(entries)})  # fmt: skip

    def _put(self, config_map: dict) -> dict:
        self.version += 1
        config_map["metadata"]["resourceVersion"] = str(self.version)
        self.lists[f"{LISTS}/{config_map['metadata']['name']}"] = config_map
        return config_map

    def kube(self, **more):
        """Return the client; the time for responses is not counted."""
        found = super().kube(**more)
        request = found._pool.request

        def timed(*asked, **how):
            started_s = time.thread_time()
            try:
                return request(*asked, **how)
            finally:
                self.own_s += time.thread_time() - started_s

        found._pool.request = timed
        return found

    def _made(self, request):
        self.asked.clear()
        method, path, query = request.method, request.path, request.query
        *_, kind, name = path.removesuffix("/status").split("/")
        is_collection = name in {"pods", "nodes", "configmaps"}
        self.counted[f"{method} {name if is_collection else kind}"] += 1
        if "limit" in query:
            return 200, self._one_page(path, query)
        if method in {"PUT", "POST"} and LISTS in path:
            return 200, json.dumps(self._put(request.body))
        found = None
        if path in self.lists:
            found = json.dumps(self.lists[path])
        elif kind == "pods" and name not in self.ended:
            found = self.pod_text(int(name.rpartition("-")[2]))
        elif kind == "nodes":
            found = self.node_text(int(name[1:]))
        elif name == "selfsubjectaccessreviews":
            found = '{"status": {"allowed": true}}'
        if found is None:
            raise Denied(404, "not found")
        return 200, found

    def _one_page(self, path, query):
        if path == LISTS:
            made = [json.dumps(item) for item in self.lists.values()]
        begin, limit = int(query.get("continue", 0)), int(query["limit"])
        if path.endswith("/nodes"):
            many, make = self.nodes, self.node_text
        elif path.endswith("/pods"):
            many, make = self.pods, self.pod_text
        else:
            many, make = len(made), made.__getitem__
        end = min(many, begin + limit)
        metadata = {"resourceVersion": "9"} | ({"continue": str(end)} if end < many else {})
        items = ",".join(map(make, range(begin, end)))
        return f'{{"metadata":{json.dumps(metadata)},"items":[{items}]}}'


def uid(number: int) -> str:
    return f"00000000-0000-4000-8000-{10**11 + number}"


def event(kind: str, thing: str) -> bytearray:
    return bytearray(f'{{"type":"{kind}","object":{thing}}}'.encode())


def _uuid(index: int) -> str:
    return f"GPU-00000000-0000-4000-8000-{index:012}"


@functools.cache
def _pod():
    """Return a pod as mutated by the webhook and stored by an API server."""
    plain = a_pod("1Gi")
    policy = load_policy(shipped_policy_path(), enforcer_image="example")
    decided = decide(a_request(plain), policy, UNKNOWN_CLUSTER, Phase.MUTATE)
    pod = jsonpatch.apply_patch(plain, list(decided.patch))
    metadata = pod["metadata"]
    metadata["annotations"] = {"vramwarden.io/gpu": "@gpu", **metadata["annotations"]}
    pod["metadata"] = {
        "name": "train-@number", "namespace": "team", "uid": "@uid",
        "resourceVersion": "@version",
        **{key: metadata[key] for key in ("annotations", "labels")},
    }  # fmt: skip
    pod["spec"] = {"nodeName": "@spec", **pod["spec"]}
    pod["status"] = {"phase": "@phase", "podIP": "10.0.0.1"}
    return _padded(pod, POD_BYTES)


def _node(gpus):
    inventory = Inventory(
        tracked=tuple(map(TrackedGpu, gpus)), driver_version="570.86.15", enforcement="sidecar",
        device_names="uuid", advertised=True,
    )  # fmt: skip
    state = build_desired_state(inventory, {})
    metadata = {"name": "n@number", "uid": "uid-n@number", "resourceVersion": "@version",
                "labels": {**state.labels, "changes": "@version"},
                "annotations": dict(state.annotations)}  # fmt: skip
    images = [{"names": [f"registry.example/team/image-{n}@sha256:{n:064}"], "sizeBytes": n}
              for n in range(50)]  # fmt: skip
    return _padded({"metadata": metadata, "spec": {}, "status": {"images": images}}, NODE_BYTES)


def _padded(thing, size):
    """Pad an object to the size of a stored one, in its managed fields."""
    fields: dict = {}
    thing["metadata"]["managedFields"] = [{"fieldsV1": {"f:spec": fields}}]
    while len(json.dumps(thing)) < size:
        fields[f"f:field-{len(fields)}"] = {".": {}, "f:name": {}}
    return thing
