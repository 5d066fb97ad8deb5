"""Random reviews: search for the most expensive ones, and tests of those."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any, Final

from tests.support.paths import ROOT
from tests.support.pods import a_review, as_the_api_server_writes_it
from tests.support.policies import load
from webhook.core.admission.decision import Phase
from webhook.core.policy.model import Policy
from webhook.server.log import JsonLog
from webhook.server.metrics import Metrics
from webhook.server.placement.reviews import BindingReviews
from webhook.server.reviews import PodReviews

Json = dict[str, Any]
Parts = dict[str, Any]
"""Choice for each part; the first choice if a part is absent."""

OURS: Final = "vramwarden.io/"
_NUMBERS: Final = (0, 1, 2, 8, 31, 32, 33, 40, 64, 100, 256, 300, 1000)
_RESOURCES: Final = (
    *("nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores"),
    *("nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb", "nvidia.com/mig-2g.20gb", "amd.com/gpu"),
    *("aliyun.com/gpu-mem", "volcano.sh/vgpu-memory", "volcano.sh/vgpu-number", "memory"),
    *("vramwardn.io/vram", "vramwarden.io/vramm", "vramwarden.io/gpu-memory", "example.com/r"),
)
_AMOUNTS: Final = ("1Gi", "8Gi", "8GB", "8 GB", "9 GB", "8", "0", "1", "2", "0.5", "1e3", "", "x")
_EACH: Final = ("{c}=8GB", "{c}=8", "{c}=64Mi", "{c}=8Gi", "d-{c}=8GB", "{c}:8", "{c}=1e3")
_KEYS: Final = ("gpu-mem{n}", "gpumemory{n}", "gpu-cout{n}", "gpu-clas{n}", "vram{n}", "{n}")
_DOMAINS: Final = (OURS, "vramwardn.io/", "vram-warden.io/", "example.com/", "")
_VISIBLE: Final = "NVIDIA_VISIBLE_DEVICES"

CHOICES: Final[dict[str, tuple[Any, ...]]] = {
    "policy": ("default", "gpu-classes", "mig", "strict", "whole-cards", "framework-memory"),
    "containers": (1, 2, 8, 16, 31, 32, 33, 64, 128, 256),
    "init": (0, 1, 2),
    "vram": (None, *_AMOUNTS),
    "vram request": (None, *_AMOUNTS),
    "resources": _NUMBERS[:7],
    "first resource": tuple(range(len(_RESOURCES))),
    "limit": (None, *_AMOUNTS),
    "request": (None, *_AMOUNTS),
    "memory": (None, *_AMOUNTS, "8,8,8", "c0=1Gi", *_EACH),
    "count": (None, "2", "two", "0", "9999", "1.5"),
    "class": (None, "t4", "a100-80gb", "nope"),
    "default container": (None, "c0", "none"),
    "keys": _NUMBERS,
    "key": _KEYS,
    "domain": _DOMAINS,
    "value": _AMOUNTS,
    "other keys": _NUMBERS,
    "labels": _NUMBERS,
    "label": (None, *_AMOUNTS),
    "injectors": _NUMBERS[:9],
    "injector": ("cdi.k8s.io/n{n}", "devices.gke.io/c{n}", "mounts.nri.io/container.c{n}"),
    "injected": (
        *("nvidia.com/gpu=0", "nvidia.com/gpu=all", "path: /dev/nvidia0\n", "major: 195, path: x "),
        *("- source: /a/b, type: bind\n", "source source type type ", "/dev/dri/../nvidia1 "),
    ),
    "injected times": _NUMBERS[1:],
    "variables": _NUMBERS,
    "variable": (_VISIBLE, "A{n}", "CUDA_MPS_X{n}", "NVIDIA_X{n}", "XLA_PYTHON_CLIENT_PREALLOCATE"),
    "set to": ("all", "void", "$(A1)$(A2)", "x", None),
    "sources": _NUMBERS[:7],
    "arguments": _NUMBERS,
    "argument": ("--gpu-memory-utilization=0.9", "serve", "--mem-fraction-static", "$(A1)"),
    "image": ("x", "vllm/vllm-openai", "nvcr.io/nvidia/tritonserver"),
    "mounts": _NUMBERS,
    "mount path": ("/a/{n}", "/var/run/nvidia-container-devices/all", "/dev/nvidia{n}"),
    "mounted": ("v{n}", "vram-enforcer", "v0"),
    "capabilities": _NUMBERS[:10],
    "capability": ("X{n}", "SYS_ADMIN", "KILL", "ALL"),
    "privileged": (None, True),
    "user": (None, 0, 1000),
    "volumes": _NUMBERS,
    "volume": ({}, {"hostPath": {"path": "/"}}, {"hostPath": {"path": "/a/../dev"}}, {"csi": {}}),
    "terms": _NUMBERS,
    "expressions": _NUMBERS[:9],
    "expression": ("a{n}", "vramwarden.io/gpu", "nvidia.com/gpu.product", "kubernetes.io/hostname"),
    "tolerations": _NUMBERS,
    "node selector": _NUMBERS,
    "node": (None, "g1"),
    "claims": _NUMBERS,
    "host": (None, True),
    "pod amount": (None, *_AMOUNTS),
    "runtime class": (None, "nvidia"),
    "marks": (True, False),
    "old": ("amounts", "annotations", "same", "spec", "nothing", "marks"),
    "debuggers": _NUMBERS[1:],
}
"""Possible choices for each part of a review."""
OPERATIONS: Final = ("create", "update", "resize", "debug", "bind")
_SIZES: Final = [
    name for name, choices in CHOICES.items() if choices in (_NUMBERS, _NUMBERS[1:])
] + ["containers", "resources", "injectors", "expressions", "capabilities"]
_INNER: Final = {
    "containers": (
        *("variables", "sources", "arguments", "mounts", "capabilities", "resources"),
        "debuggers",
    ),
    "debuggers": ("variables", "sources", "arguments", "mounts", "capabilities", "resources"),
    "terms": ("expressions",),
    "injectors": ("injected times",),
}
"""Number of inner parts in each other part."""
UNEQUAL_AMOUNTS: Final = {"containers": 256, "vram": "8 GB", "vram request": "9 GB"}
"""An update that once took 4.7 s, because each amount was compared with all others."""
NAMES_OF_OTHERS: Final = {
    "containers": 32,
    "resources": 3,
    "limit": "8",
    "request": "8 GB",
    "memory": "8,8,8",
    "keys": 40,
    "domain": "vramwardn.io/",
}
"""A creation that was once evaluated again for each hint."""

_TOLD: Final = Metrics(), JsonLog(io.BytesIO())


@cache
def _policy(name: str) -> Policy:
    folder = ROOT / "policies"
    return load(folder / f"{name}.yaml" if name == "default" else folder / f"examples/{name}.yaml")


def answer(operation: str, phase: Phase, parts: Parts, body: bytes) -> Callable[[], object]:
    """Return a function that answers a review with a new policy and checks the response."""
    if operation == "bind":
        return lambda: BindingReviews(None, *_TOLD).begin(body)
    policy = _policy(parts.get("policy", "default"))
    return lambda: PodReviews(lambda: policy, *_TOLD).answer(phase, body)


def drawn(random: Random, parts: Parts, most: int) -> Parts:
    """Return the parts with up to `most` of them chosen again at random."""
    names = random.sample(list(CHOICES), random.randint(1, most))
    again = {name: random.choice(CHOICES[name]) for name in names}
    for name in _SIZES:
        if name in parts and name not in again and random.random() < 0.1:
            again[name] = max(1, int(parts[name] * random.choice((0.5, 0.8, 1.2, 2))))
    return {name: item for name, item in {**parts, **again}.items() if item != CHOICES[name][0]}


def fitting(random: Random, operation: str, parts: Parts, most_bytes: int) -> tuple[Parts, bytes]:
    """Return parts reduced until their review fits `most_bytes`, and the review."""
    for outer, names in _INNER.items():
        most = most_bytes // 20 // max(1, parts.get(outer, 1))
        parts = {**parts, **{name: min(parts[name], most) for name in names if name in parts}}
    while len(body := review(operation, parts)) > most_bytes:
        name = random.choice([size for size in _SIZES if parts.get(size, 0) > 1])
        parts = {**parts, name: parts[name] * 2 // 3}
    return parts, body


def review(operation: str, parts: Parts) -> bytes:
    """Return a review composed of these parts, in the API server's format."""
    choice = {name: parts.get(name, choices[0]) for name, choices in CHOICES.items()}
    metadata = _metadata(choice, marked=operation != "create")
    if operation == "bind":
        obj = {"kind": "Binding", "metadata": metadata, "target": {"name": "g1"}}
        binding = {"kind": {"group": "", "version": "v1", "kind": "Binding"}}
        return as_the_api_server_writes_it(a_review(obj, subResource="binding", **binding))
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": _spec(choice)}
    if operation == "create":
        return as_the_api_server_writes_it(a_review(pod))
    new = {**pod, "spec": dict(pod["spec"])}
    if operation == "debug":
        many = range(choice["debuggers"])
        new["spec"]["ephemeralContainers"] = [_container(choice, f"d{n}", n) for n in many]
    subresource = {"resize": "resize", "debug": "ephemeralcontainers"}.get(operation, "")
    changed = a_review(
        new, operation="UPDATE", subResource=subresource, oldObject=_old(choice["old"], pod)
    )
    return as_the_api_server_writes_it(changed)


def _old(differs: str, pod: Json) -> Json:
    """Return the pod before an update of the part `differs`."""
    metadata, spec = pod["metadata"], pod["spec"]
    if differs == "amounts":
        plain = [{**container, "resources": {}} for container in spec["containers"]]
        return {**pod, "spec": {**spec, "containers": plain}}
    if differs == "annotations":
        return {**pod, "metadata": {**metadata, "annotations": {}}}
    if differs == "marks":
        return {**pod, "metadata": {**metadata, "labels": {}}}
    if differs == "spec":
        return {**pod, "spec": {"containers": [{"name": "c0", "image": "x"}]}}
    return {"metadata": {}, "spec": {"containers": []}} if differs == "nothing" else pod


def _metadata(choice: Parts, *, marked: bool) -> Json:
    asked = {"gpu-memory": choice["memory"], "gpu-count": choice["count"]}
    asked["gpu-class"] = choice["class"]
    annotations = {f"{OURS}{key}": value for key, value in asked.items() if value is not None}
    if choice["memory"] in _EACH:
        names = _names(choice)
        annotations[f"{OURS}gpu-memory"] = ",".join(
            choice["memory"].format(c=name) for name in names
        )
    if choice["default container"]:
        annotations["kubectl.kubernetes.io/default-container"] = choice["default container"]
    near = {
        choice["domain"] + choice["key"].format(n=n): choice["value"] for n in range(choice["keys"])
    }
    text = choice["injected"] * choice["injected times"]
    injectors = {choice["injector"].format(n=n): text for n in range(choice["injectors"])}
    annotations |= near | injectors | {f"a{n}": "" for n in range(choice["other keys"])}
    labels = {f"vramwardn.io/gpu-mem{n}": "8GB" for n in range(choice["labels"])}
    if choice["label"] is not None:
        labels |= {f"{OURS}gpu-memory": choice["label"], f"{OURS}gpu-count": choice["label"]}
    if marked and choice["marks"]:
        labels[f"{OURS}managed"] = "true"
        annotations[f"{OURS}admitted"] = "v1 default 0123456789ab"
    name = {"name": "train", "namespace": "team-a", "uid": "49011d28"}
    return {**name, "annotations": annotations, "labels": labels}


def _names(choice: Parts) -> list[str]:
    return [f"c{n}" for n in range(choice["containers"])]


def _spec(choice: Parts) -> Json:
    containers = [_container(choice, name, n) for n, name in enumerate(_names(choice))]
    split = len(containers) * choice["init"] // 3
    expressions = [
        {"key": choice["expression"].format(n=n), "operator": "In", "values": ["true"]}
        for n in range(choice["expressions"])
    ]
    spec: Json = {
        "containers": containers[split:],
        "initContainers": containers[:split],
        "volumes": [{"name": f"v{n}", **choice["volume"]} for n in range(choice["volumes"])],
        "tolerations": [{"key": f"t{n}"} for n in range(choice["tolerations"])],
        "nodeSelector": {f"s{n}": "" for n in range(choice["node selector"])},
        "resourceClaims": [{"name": f"r{n}"} for n in range(choice["claims"])],
        "nodeName": choice["node"],
        "runtimeClassName": choice["runtime class"],
        "hostPID": choice["host"],
        "hostIPC": choice["host"],
    }
    if choice["terms"]:
        terms = {"nodeSelectorTerms": [{"matchExpressions": expressions}] * choice["terms"]}
        spec["affinity"] = {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}
        }
    if choice["pod amount"] is not None:
        spec["resources"] = {"limits": {f"{OURS}vram": choice["pod amount"], "memory": "1"}}
    return {field: value for field, value in spec.items() if value}


def _container(choice: Parts, name: str, number: int) -> Json:
    first = choice["first resource"]
    names = [
        _RESOURCES[(first + n) % len(_RESOURCES)] + (str(n) if n >= len(_RESOURCES) else "")
        for n in range(choice["resources"])
    ]
    resources: Json = {}
    for field, of_vram, of_others in (
        ("limits", choice["vram"], choice["limit"]),
        ("requests", choice["vram request"], choice["request"]),
    ):
        resources[field] = {} if of_vram is None else {f"{OURS}vram": of_vram}
        resources[field] |= {} if of_others is None else dict.fromkeys(names, of_others)
    variable: Json = {} if choice["set to"] is None else {"value": choice["set to"]}
    many = {name: range(choice[name]) for name in ("variables", "mounts", "capabilities")}
    container: Json = {
        "name": name,
        "image": choice["image"],
        "resources": {field: amounts for field, amounts in resources.items() if amounts},
        "env": [{"name": choice["variable"].format(n=n), **variable} for n in many["variables"]],
        "envFrom": [{"configMapRef": {"name": "m"}}] * choice["sources"],
        "args": [choice["argument"]] * choice["arguments"],
        "volumeMounts": [
            {
                "name": choice["mounted"].format(n=n),
                "mountPath": choice["mount path"].format(n=n),
            }
            for n in many["mounts"]
        ],
    }
    security: Json = {"privileged": choice["privileged"], "runAsUser": choice["user"]}
    if choice["capabilities"]:
        added = [choice["capability"].format(n=n) for n in many["capabilities"]]
        security["capabilities"] = {"add": added}
    container["securityContext"] = {key: value for key, value in security.items() if value}
    if number % 2:
        container["restartPolicy"] = "Always"
    return {field: value for field, value in container.items() if value}
