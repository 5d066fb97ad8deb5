"""A policy with every kind of field, and replacements for any part of it."""

from __future__ import annotations

from hypothesis import strategies as st

WHOLE = {
    "apiVersion": "vramwarden.io/v1alpha1",
    "kind": "VRAMPolicy",
    "metadata": {"name": "test"},
    "spec": {
        "wholeGPUResources": ["nvidia.com/gpu"],
        "classes": {
            "a": {
                "nodeSelector": {"b": "c"},
                "tolerations": [{"key": "a", "operator": "Equal", "value": "b"}],
            }
        },
        "rules": [
            {
                "name": "a",
                "match": {"namespaces": ["*"], "podLabels": {"a": "b"}},
                "action": "Enforce",
                "memory": {"min": "1Gi", "max": "2Gi"},
                "gpuCount": {"max": 1},
                "classes": {"allowed": ["*"], "default": None},
                "nodeSelector": {"a": "b"},
                "tolerations": [{"key": "a", "effect": "NoExecute", "tolerationSeconds": 5}],
                "runtimeClassName": "nvidia",
                "env": [{"name": "A", "value": "b"}, {"name": "B", "valueFrom": {"fieldRef": {}}}],
                "programs": ["jax", "ollama"],
                "visibleDevices": "Void",
                "isolation": "Any",
                "hostPaths": ["/data"],
                "capabilities": ["NET_ADMIN", "IPC_LOCK"],
                "resourceClaims": "Ignore",
                "placement": "Binding",
                "enforcement": {
                    "by": "Sidecar",
                    "driverLimit": "Require",
                    "grace": "5s",
                    "tolerance": "2%",
                    "image": "x",
                    "resources": {"requests": {"cpu": "10m"}, "limits": {"memory": "64Mi"}},
                },
            }
        ],
        "examples": [
            {
                "name": "a",
                "pod": {
                    "namespace": "a",
                    "labels": {"a": "b"},
                    "annotations": {"vramwarden.io/gpu-memory": "1Gi"},
                    "spec": {
                        "nodeSelector": {},
                        "volumes": [],
                        "tolerations": [],
                        "securityContext": {"runAsUser": 5},
                        "containers": [
                            {
                                "name": "a",
                                "image": "b",
                                "env": [{"name": "A", "value": "b"}],
                                "resources": {"limits": {"vramwarden.io/vram": "1Gi"}},
                                "securityContext": {"capabilities": {"drop": ["ALL"]}},
                            }
                        ],
                    },
                },
                "runtimeClasses": ["nvidia"],
                "migProfiles": {"1g.10gb": "9728Mi"},
                "expect": {
                    "allowed": True,
                    "reasons": [],
                    "rule": "a",
                    "vram": "1Gi",
                    "resources": {"vramwarden.io/vram": "1Gi"},
                    "runtimeClassName": "nvidia",
                },
            }
        ],
    },
}


def places(value, path=()):
    """Yield the path of each value in a nested value, including itself."""
    yield path
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(inner, (*path, key))


def replaced(value, path, new):
    if not path:
        return new
    copy = value.copy()
    copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=6)
    | st.sampled_from(["*", "8Gi", "a", "5s", "2%", "None", "Enforce", "nvidia.com/gpu"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["name", "a", "max", "key"]), inner, max_size=3)
    ),
    max_leaves=8,
)
