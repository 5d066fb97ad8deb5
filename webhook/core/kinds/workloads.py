"""Workloads: the creators of pods, by which histories and `top workloads` group pods.

A pod's name does not identify the next pod of the same Deployment. So pods are grouped by their
creator's name, without the parts that change with each rollout or run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from webhook.core.bounds import MAX_OWNERS
from webhook.core.pod.fields import as_object, as_objects
from webhook.names import WORKLOAD_LABEL

POD: Final = "Pod"
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
"""Regular expression that matches names of owners. The API server accepts any string."""
_KIND: Final = re.compile(r"[A-Za-z][A-Za-z0-9]{0,62}")
_LABEL: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_HASHED: Final = {
    "pod-template-hash": "Deployment",
    "rollouts-pod-template-hash": "Rollout",
}
"""Labels whose value is the suffix of a ReplicaSet's name, and the kind that owns the
ReplicaSet."""
_SCHEDULED: Final = re.compile(r"(.+)-[0-9]{8,10}")
"""Regular expression for a CronJob's Job, with the suffix of minutes since 1970."""
_RANDOM: Final = re.compile(r"(.+)-(?=[2-9]*[b-z])[bcdfghjklmnpqrstvwxz2456789]{5}")
"""Regular expression for `generateName`: k8s.io/apimachinery/pkg/util/rand, `SafeEncodeString`."""
_NAMED_BY_HAND: Final = frozenset(
    {"ReplicaSet", "StatefulSet", "DaemonSet", "ReplicationController"}
)


@dataclass(frozen=True, slots=True)
class Workload:
    """Creator of similar pods."""

    kind: str
    """Kind, such as `Deployment`, or `Pod` for a pod without an owner."""
    name: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"


def find_workload(metadata: Mapping[str, Any]) -> Workload:
    """Return the workload of a pod, given the pod's metadata. Never fails.

    | controller | the pod has | workload |
    | --- | --- | --- |
    | ReplicaSet llama-5d9c7 | label pod-template-hash=5d9c7 | Deployment llama |
    | ReplicaSet llama-5d9c7 | label rollouts-pod-template-hash=5d9c7 | Rollout llama |
    | ReplicaSet llama-5d9c7 | neither, or another hash | ReplicaSet llama-5d9c7 |
    | Job embed-29384756 | any | CronJob embed |
    | Job embed | any | Job embed |
    | Job embed-x7k2p | any | Job embed |
    | StatefulSet db-x7k2p | any | StatefulSet db-x7k2p |
    | PyTorchJob ddp | any | PyTorchJob ddp |
    | PyTorchJob ddp-x7k2p | generateName worker- | PyTorchJob worker |
    | PyTorchJob ddp-x7k2p | generateName ddp-x7k2p-worker- | PyTorchJob ddp |
    | PyTorchJob ddp-x7k2p | no generateName | PyTorchJob ddp |
    | none | generateName try- | Pod try |
    | none | no generateName | Pod and its own name |
    | any | label vramwarden.io/workload=mine | of the kind above, mine |

    A label value that Kubernetes would not store is ignored. So is an owner without kind or name.
    """
    labels = as_object(metadata.get("labels"))
    return _renamed(_by_controller(metadata, labels), labels)


def _renamed(found: Workload, labels: Mapping[str, Any]) -> Workload:
    named = labels.get(WORKLOAD_LABEL)
    if isinstance(named, str) and _LABEL.fullmatch(named):
        return Workload(found.kind, named)
    return found


def predict_workload(kind: str, name: str, pod: Mapping[str, Any]) -> Workload:
    """Return the result that `find_workload` will have for the pods of a workload.

    | it is | then |
    | --- | --- |
    | a Job | as for a pod with that controller: it may be one of many Jobs of a CronJob |
    | anything else | itself |
    | any, and its pods are labeled vramwarden.io/workload=mine | of that kind, mine |
    """
    found = Workload(kind, _name(name))
    if kind == "Job":
        owner = {"kind": kind, "name": name, "controller": True}
        found = _by_controller({"ownerReferences": [owner]}, {})
    return _renamed(found, as_object(pod.get("labels")))


def _by_controller(metadata: Mapping[str, Any], labels: Mapping[str, Any]) -> Workload:
    prefix = metadata.get("generateName")
    generated = _name(prefix.rstrip("-.")) if isinstance(prefix, str) else ""
    owner = _controller(metadata.get("ownerReferences"))
    if owner is None:
        return Workload(POD, generated or _name(metadata.get("name")))
    kind, name = owner.kind, owner.name
    if kind == "ReplicaSet":
        for label, whose in _HASHED.items():
            of_hash, dash, ending = name.rpartition("-")
            if of_hash and dash and ending == labels.get(label):
                return Workload(whose, of_hash)
    if kind == "Job" and (scheduled := _SCHEDULED.fullmatch(name)):
        return Workload("CronJob", scheduled[1])
    if kind not in _NAMED_BY_HAND and (drawn := _RANDOM.fullmatch(name)):
        own = bool(generated) and not generated.startswith(name)
        return Workload(kind, generated if own else drawn[1])
    return owner


def _controller(owners: object) -> Workload | None:
    for owner in as_objects(owners, MAX_OWNERS):
        if owner.get("controller") is True:
            kind, name = owner.get("kind"), _name(owner.get("name"))
            if isinstance(kind, str) and _KIND.fullmatch(kind) and name:
                return Workload(kind, name)
    return None


def _name(value: object) -> str:
    return value if isinstance(value, str) and _NAME.fullmatch(value) else ""
