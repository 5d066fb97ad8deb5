"""Hypothesis strategies shared by the property tests."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from tests.support.pods import a_pod

Json = dict[str, Any]

NAMES = ["trainer", "loader", "proxy", "fetch", "tune"]
SIZES = ["64Mi", "512Mi", "8Gi", "7.5G", "8e9", "1.1Gi"]
EXPLICIT_SIZES = ["64Mi", "8192Mi", "7500M", "8e9", "8000000001"]

ANY_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(["8Gi", "void", "Always", "vram-enforcer", "main", "-1", "true"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)

ENV = st.lists(
    st.sampled_from(
        [
            {"name": "A", "value": "1"},
            {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"},
            {"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"},
            {"name": "NVIDIA_VISIBLE_DEVICES", "value": ""},
            {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "all"},
            {"name": "VRAMWARDEN_GPU_MEMORY_MIB", "value": "4096"},
            {"name": "VRAMWARDEN_GPU_MEMORY_FRACTION", "value": "0.1"},
            {
                "name": "VRAMWARDEN_GPU_MEMORY_FRACTION",
                "valueFrom": {
                    "fieldRef": {
                        "fieldPath": "metadata.annotations['vramwarden.io/gpu-memory-fraction']"
                    }
                },
            },
            {"name": "VRAMWARDEN_GPU_ASSIGNMENT", "value": "0.5"},
            {"name": "CUPY_GPU_MEMORY_LIMIT", "value": "3665821696"},
            {"name": "XLA_CLIENT_MEM_FRACTION", "value": "$(VRAMWARDEN_GPU_MEMORY_FRACTION)"},
        ]
    ),
    max_size=4,
)
RESOURCES = st.sampled_from(
    [
        None,
        {},
        {"limits": {"cpu": "1"}},
        {"requests": {"memory": "1Gi"}, "limits": {"memory": "1Gi"}},
        {"limits": None, "requests": {"cpu": "100m"}},
        {"limits": {"cpu": "1", "memory": "1Gi"}},
    ]
)
ROOMY = {"cpu": "8", "memory": "16Gi"}
LITTLE = {"limits": {"cpu": "500m"}}
# Pod-level resources (KEP-2837) that are large enough for all containers and the sidecar.
POD_LEVEL = st.sampled_from(
    [
        None,
        {},
        {"requests": ROOMY},
        LITTLE,
        {"limits": ROOMY},
        {"requests": ROOMY, "limits": ROOMY},
    ]
)
AFFINITIES = st.sampled_from(
    [
        None,
        {},
        {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
        {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": None}},
        {
            "podAntiAffinity": {},
            "nodeAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "weight": 7,
                        "preference": {
                            "matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]
                        },
                    }
                ]
            },
        },
        {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "a", "operator": "Exists"}]},
                        {
                            "matchFields": [
                                {"key": "metadata.name", "operator": "In", "values": ["n"]}
                            ]
                        },
                        {},
                    ]
                }
            }
        },
    ]
)
# Security contexts: one for the containers of a pod, one for the pod.
PROFILES = st.sampled_from(
    [
        None,
        {},
        {"appArmorProfile": {"type": "Unconfined"}},
        {"appArmorProfile": {"type": "Localhost", "localhostProfile": "gpu"}, "runAsUser": None},
        {"appArmorProfile": {"type": "RuntimeDefault"}, "seLinuxOptions": {}},
        {"appArmorProfile": None, "seLinuxOptions": {"type": "", "level": "s0:c1,c2"}},
    ]
)


@st.composite
def containers(draw: st.DrawFn, names: list[str], *, init: bool) -> list[Json]:
    """Draw containers for the names; init containers may be native sidecars."""
    drawn = []
    for name in names:
        container: Json = {"name": name, "image": "example"}
        env = draw(ENV)
        if env or draw(st.booleans()):
            container["env"] = env
        if draw(st.booleans()):
            container["envFrom"] = [{"configMapRef": {"name": "settings"}}]
        resources = draw(RESOURCES)
        if resources is not None:
            container["resources"] = resources
        if init and draw(st.booleans()):
            container["restartPolicy"] = "Always"
        drawn.append(container)
    return drawn


MODELS = [{"name": "models", "hostPath": {"path": "/data/models"}}]
MOUNTED = [
    {"name": "data", "emptyDir": {}},
    {"name": "vram-gate", "configMap": {"name": "of-the-user", "optional": True}},
]
GATE = {"name": "vram-gate", "readOnly": True, "subPathExpr": "$(VRAMWARDEN_GPU_ASSIGNMENT)"}
DATA = {"name": "data", "mountPath": "/data"}
MOUNTS = st.sampled_from(
    [
        *([], [DATA], [{**GATE, "mountPath": "/run/vram-gate"}], [{**GATE, "mountPath": "/old"}]),
        [{**GATE, "mountPath": "/old"}, DATA, {**GATE, "mountPath": "/run/vram-gate"}],
    ]
)
"""Mounts of `MOUNTED`, including mounts of the gate that an earlier mutation may have left."""


@st.composite
def asking_pods(draw: st.DrawFn) -> Json:
    """Draw a valid pod with a demand."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=5, unique=True))
    split = draw(st.integers(1, len(names)))
    getting = draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    amounts = {name: draw(st.sampled_from(SIZES)) for name in getting}
    explicit: dict[str, str] = {}
    how = draw(st.sampled_from(["list", "one quantity", "explicit"]))
    memory = draw(st.sampled_from(SIZES)) if how == "one quantity" else None
    if how == "list":
        memory = ", ".join(f"{name}={size}" for name, size in amounts.items())
    elif how == "explicit":
        explicit = {name: draw(st.sampled_from(EXPLICIT_SIZES)) for name in getting}
    spec: Json = {}
    profiles = draw(PROFILES)
    if split < len(names) or draw(st.booleans()):
        spec["initContainers"] = draw(containers(names[split:], init=True))
    affinity = draw(AFFINITIES)
    if affinity is not None:
        spec["affinity"] = affinity
    spec.update(
        draw(
            st.fixed_dictionaries(
                {},
                optional={
                    "nodeSelector": st.sampled_from([None, {}, {"disk": "ssd"}]),
                    "tolerations": st.sampled_from([None, [], [{"operator": "Exists"}]]),
                    "volumes": st.sampled_from([None, [], [{"name": "v", "emptyDir": {}}], MODELS]),
                    "imagePullSecrets": st.sampled_from(
                        [None, [], [{"name": "own"}], [{"name": "registry"}, {"name": "own"}]]
                    ),
                    "shareProcessNamespace": st.sampled_from([None, True]),
                    "hostNetwork": st.booleans(),
                    "resources": POD_LEVEL,
                    "securityContext": PROFILES,
                    "someFieldOfTheFuture": ANY_JSON,
                },
            )
        )
    )
    mounted = draw(st.booleans())
    if mounted:
        spec["volumes"] = [*(spec.get("volumes") or ()), *MOUNTED]
    pod = a_pod(memory, containers=draw(containers(names[:split], init=False)), **spec)
    pod["metadata"].setdefault("annotations", {})
    for field in ("containers", "initContainers"):
        for container in pod["spec"].get(field) or ():
            if profiles is not None:
                container["securityContext"] = profiles
            limits = (container.get("resources") or {}).get("limits") or {}
            if mounted:
                container["volumeMounts"] = draw(MOUNTS)
            if spec.get("resources") == LITTLE and "cpu" in limits:
                del container["resources"]  # the API server rejects limits above the pod's
            if container["name"] in explicit:
                own = container["resources"] = dict(container.get("resources") or {})
                amount = {"vramwarden.io/vram": explicit[container["name"]]}
                own["limits"] = {**(own.get("limits") or {}), **amount}
    if draw(st.booleans()):
        pod["metadata"]["annotations"]["vramwarden.io/gpu-count"] = draw(
            st.sampled_from(["1", "2", "8"])
        )
    if draw(st.booleans()):
        pod["metadata"]["labels"] = draw(st.sampled_from([None, {}, {"app": "x"}]))
    return json.loads(json.dumps(pod))  # decoded JSON shares no objects
