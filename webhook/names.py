"""Every annotation, label, resource, variable and container name that others rely on; no logic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIX: Final = "vramwarden.io/"
DEFAULT_NAMESPACE: Final = "vramwarden-system"
"""Of a release, where nobody says otherwise."""

# What a developer writes on a pod.
GPU_MEMORY_ANNOTATION: Final = PREFIX + "gpu-memory"
"""VRAM per GPU: one quantity, or a list by container."""
GPU_CLASS_ANNOTATION: Final = PREFIX + "gpu-class"
"""Name of a class in the policy."""
GPU_COUNT_ANNOTATION: Final = PREFIX + "gpu-count"
"""Number of GPUs, each with that much memory."""
ASKING_ANNOTATIONS: Final = (GPU_MEMORY_ANNOTATION, GPU_CLASS_ANNOTATION, GPU_COUNT_ANNOTATION)
"""All of them."""

# What we write on a pod.
ADMITTED_ANNOTATION: Final = PREFIX + "admitted"
"""`v1 <rule name> <first 12 hex digits of the policy's digest>`."""
IN_PLACE_OF_ANNOTATION: Final = PREFIX + "in-place-of"
"""The resource in whose place a rule gave the pod its share: for people and tools."""
GPU_ANNOTATION: Final = PREFIX + "gpu"
"""UUIDs of the GPUs given at binding or late, comma-separated: for people, tools, the sidecar."""
VISIBLE_DEVICES_ANNOTATION: Final = PREFIX + "visible-devices"
"""The same GPUs as the node's container runtime spells them: what containers read."""
GPU_MEMORY_FRACTION_ANNOTATION: Final = PREFIX + "gpu-memory-fraction"
"""The share of its GPU that a program may use."""
GPU_WAITS_ANNOTATION: Final = PREFIX + "gpu-waits"
"""Why a pod that is bound has no GPU yet."""
DRIVER_LIMIT_ANNOTATION: Final = PREFIX + "driver-limit"
"""`Auto` or `Require`: the pod's node can have the driver hold its cap; absent elsewhere."""
BINDING_ANNOTATIONS: Final = (
    GPU_ANNOTATION,
    VISIBLE_DEVICES_ANNOTATION,
    GPU_MEMORY_FRACTION_ANNOTATION,
    DRIVER_LIMIT_ANNOTATION,
    GPU_WAITS_ANNOTATION,
)
"""What only a binding, or the late assignment in its place, writes."""
OUR_ANNOTATIONS: Final = (*ASKING_ANNOTATIONS, ADMITTED_ANNOTATION, *BINDING_ANNOTATIONS)
"""What is asked for, by which rule it was admitted, what was given: no update changes them."""
MANAGED_LABEL: Final = PREFIX + "managed"
"""`"true"` on every pod that has a demand."""

VRAM_RESOURCE: Final = PREFIX + "vram"
"""The extended resource: bytes, requests equal to limits."""

# What the node agent writes on a node.
NODE_GPU_LABEL: Final = PREFIX + "gpu"
NODE_GPU_MEMORY_LABEL: Final = PREFIX + "gpu-memory-mib"
"""Usable MiB of the node's largest single GPU, an integer for the operator `Gt`."""
NODE_GPU_MEMORY_FREE_LABEL: Final = PREFIX + "gpu-memory-free-mib"
"""Free MiB of the GPU that has most; with `.2` to `.16` behind it, on each of so many GPUs.

Rounded down, and seconds old. It changes, so no pod may require it, only prefer it.
"""
NODE_GPU_COUNT_LABEL: Final = PREFIX + "gpu-count"
NODE_GPU_PRODUCT_LABEL: Final = PREFIX + "gpu-product"
NODE_DRIVER_LABEL: Final = PREFIX + "driver-version"
NODE_ENFORCEMENT_LABEL: Final = PREFIX + "enforcement"
"""`sidecar` where a sidecar can measure, else `none`."""
ENFORCED_BY_SIDECAR: Final = "sidecar"
NOT_ENFORCED: Final = "none"
NODE_ENFORCEMENTS: Final = (ENFORCED_BY_SIDECAR, NOT_ENFORCED)
NODE_SENTRY_LABEL: Final = PREFIX + "sentry"
"""`"true"` if a sentry that may act measures every shared GPU of the node; absent otherwise."""
NODE_DEVICE_NAMES_LABEL: Final = PREFIX + "device-names"
"""Which names of GPUs the node's container runtime resolves; see `core.nvidia.device_names`."""
NODE_DRIVER_LIMIT_LABEL: Final = DRIVER_LIMIT_ANNOTATION
"""`"true"` where the limiter proved that the driver holds cgroups to an amount; else absent."""
NODE_GPUS_ANNOTATION: Final = PREFIX + "gpus"
"""JSON list, one object per GPU: `uuid`, `memory` (usable bytes), `total` (bytes), `product`,
`index`, and `healthy: false` for one that must not be chosen now."""

NODE_ASKS_LABEL: Final = PREFIX + "whole-gpu-pods"
"""The agent's question which pods on its node have whole GPUs, named by its value; the webhook's
replicas answer in the node's list of assignments."""
NODE_SHARING_ANNOTATION: Final = PREFIX + "sharing"
"""Whether the node is shared and why not, as `Code: sentence`; see `core.node.node_fields`."""
NODE_DRA_ANNOTATION: Final = PREFIX + "dra-driver"
"""The DRA drivers that offer the node's GPUs, or did five minutes ago, with commas."""

LONGEST_LABEL: Final = 63
"""Characters of a label's value, and of a key behind its domain, as Kubernetes bounds them."""
LONGEST_NAME: Final = 253
"""Of an object's name, as of a node or a ConfigMap, and of a key's domain."""
LONGEST_PAIR: Final = LONGEST_NAME + 1 + LONGEST_LABEL
"""Of a pod by its namespace and name, and of a key with its domain."""

# What a cluster admin writes on a node.
NODE_SHARE_LABEL: Final = PREFIX + "share"
"""`"true"`: share its GPUs although a device plugin offers them whole; `"false"`: never do."""

# What a cluster admin writes on a namespace.
EXEMPT_LABEL: Final = PREFIX + "webhook"
"""`disabled`: no pod of the namespace is reviewed."""

# What containers with VRAM know of their cap.
GPU_MEMORY_MIB_ENV: Final = "VRAMWARDEN_GPU_MEMORY_MIB"
"""What the container asked for, per GPU."""
GPU_MEMORY_FRACTION_ENV: Final = "VRAMWARDEN_GPU_MEMORY_FRACTION"
"""The annotation `gpu-memory-fraction`."""

# What the webhook writes in its own namespace.
ASSIGNMENTS_LABEL: Final = PREFIX + "gpu-assignments"
"""`"true"` on each ConfigMap that says which pods have which GPUs of a node."""
ASSIGNMENTS_NODE_ANNOTATION: Final = PREFIX + "node"
"""The node whose assignments a ConfigMap holds."""

DOCUMENTATION_URL_ENV: Final = "VRAMWARDEN_DOCUMENTATION_URL"
"""Variable of webhook and agent: the chart's value `documentationURL`."""

WEBHOOK_CONFIGURATION: Final = "zz-vramwarden"
"""Default name of both webhook configurations.

The API server calls mutating webhooks in the order of these names
(k8s.io/apiserver/pkg/admission/configuration/mutating_webhook_manager.go), so it sorts late.
"""

# The sidecar.
ENFORCER_CONTAINER: Final = "vram-enforcer"
ENFORCER_COMMAND: Final = ("python3", "-I", "-m", "webhook.sidecar")
ENFORCER_PROBE: Final = "/opt/vramwarden/bin/vram-enforcer-probe"
"""The kubelet's probes of it: a script of /bin/sh, in its image (webhook/sidecar/probe.sh)."""

ENFORCER_IMAGE_REPOSITORY: Final = "vramwarden/enforcer"
ENFORCER_RUN_VOLUME: Final = "vram-enforcer-run"
"""Holds the heartbeat: the sidecar's root is read-only."""
ENFORCER_RUN_PATH: Final = "/run/vram-enforcer"
ENFORCER_NO_TOKEN_VOLUME: Final = "vram-enforcer-no-token"  # noqa: S105 - a volume's name
"""An empty volume over the token's path keeps the ServiceAccount plugin from adding a token."""

# The gate, which keeps containers from being created before their pod has its GPU.
GATE_VOLUME: Final = "vram-gate"
GATE_PATH: Final = "/run/vram-gate"
GATE_VARIABLE: Final = "VRAMWARDEN_GPU_ASSIGNMENT"
"""The annotation `gpu-memory-fraction`; see `core.admission.gate`."""

OUR_VOLUMES: Final = (ENFORCER_RUN_VOLUME, ENFORCER_NO_TOKEN_VOLUME, GATE_VOLUME)
"""Volumes that no container may mount except as translation does."""

GPUS_ENV: Final = "VRAM_GPUS"
"""The annotation `gpu`."""
DRIVER_LIMIT_ENV: Final = "VRAM_DRIVER_LIMIT"
"""The annotation `driver-limit`, as it was when the sidecar's container started."""
CAP_BYTES_ENV: Final = "VRAM_CAP_BYTES"
POLL_INTERVAL_ENV: Final = "VRAM_POLL_INTERVAL"
GRACE_ENV: Final = "VRAM_GRACE"
TOLERANCE_ENV: Final = "VRAM_TOLERANCE"
BLIND_AFTER_ENV: Final = "VRAM_BLIND_AFTER"
WHEN_BLIND_ENV: Final = "VRAM_WHEN_BLIND"
ON_EXCESS_ENV: Final = "VRAM_ON_EXCESS"
"""`Stop` if unset, or `Report`."""

POD_RESTART_EXIT_CODE: Final = 88
"""The sidecar ends with it where the whole pod must start anew."""

# What the limiter leaves on its node, for the sentry.
LIMITER_FOLDER: Final = "/run/vramwarden-limiter"
"""Folder of the node that the limiter writes and the sentry reads (`core.node.limiter_state`)."""

# What the sentry writes.
CAP_HELD_CONDITION: Final = PREFIX + "CapHeld"
"""Type of a pod's condition: `False` where the sentry stopped the pod for what it held."""
SENTRY_ACTING_CONDITION: Final = PREFIX + "SentryActing"
"""Type of a node's condition, written by its agent: `False` while `NODE_SENTRY_LABEL` is absent."""
SENTRY_REPORTER: Final = PREFIX + "sentry"
AGENT_REPORTER: Final = PREFIX + "agent"
"""The `reportingController` of each one's Events."""

# What is shown to people: the objects of our own API group.
API_GROUP: Final = PREFIX.rstrip("/")
SEEING_API_VERSION: Final = PREFIX + "v1alpha1"
GPU_NODE_KIND: Final = "GPUNode"
GPU_NODES: Final = "gpunodes"
"""Cluster-scoped, one per node with GPUs, written by its sentry."""
GPU_NODES_PATH: Final = f"/apis/{SEEING_API_VERSION}/{GPU_NODES}"
VRAM_HISTORY_KIND: Final = "VRAMHistory"
VRAM_HISTORIES: Final = "vramhistories"
"""In the namespace of the workload, written by the webhook."""
VRAM_POLICY_KIND: Final = "VRAMPolicy"
"""Kind of policy files; the API server has no objects of it."""
WORKLOAD_LABEL: Final = PREFIX + "workload"
"""On a pod, by its developer: the workload's name for histories, where the controller's does not
serve."""

READ_KEYS: Final[Mapping[tuple[str, str], tuple[str, ...]]] = {
    ("Pod", "annotations"): (*OUR_ANNOTATIONS, IN_PLACE_OF_ANNOTATION),
    ("Pod", "labels"): (MANAGED_LABEL, WORKLOAD_LABEL),
    ("Node", "annotations"): (
        *(NODE_GPUS_ANNOTATION, NODE_SHARING_ANNOTATION, NODE_DRA_ANNOTATION),
    ),
    ("Node", "labels"): (
        *(NODE_GPU_LABEL, NODE_GPU_MEMORY_LABEL, NODE_GPU_MEMORY_FREE_LABEL, NODE_GPU_COUNT_LABEL),
        *(f"{NODE_GPU_MEMORY_FREE_LABEL}.{count}" for count in range(2, 17)),
        *(NODE_GPU_PRODUCT_LABEL, NODE_DRIVER_LABEL, NODE_ENFORCEMENT_LABEL, NODE_SENTRY_LABEL),
        *(NODE_DEVICE_NAMES_LABEL, NODE_DRIVER_LIMIT_LABEL, NODE_ASKS_LABEL, NODE_SHARE_LABEL),
    ),
    ("Namespace", "labels"): (EXEMPT_LABEL,),
    ("ConfigMap", "annotations"): (ASSIGNMENTS_NODE_ANNOTATION,),
    ("ConfigMap", "labels"): (ASSIGNMENTS_LABEL,),
}
"""Keys by the kind of object and the field of its metadata in which they are read or written.

Rules of a policy may read further labels.
"""

# Names that belong to others.
DEFAULT_CONTAINER_ANNOTATION: Final = "kubectl.kubernetes.io/default-container"
MIRROR_POD_ANNOTATION: Final = "kubernetes.io/config.mirror"
NODES_GROUP: Final = "system:nodes"
TOKEN_PATH: Final = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105 - a path, not a token
APP_ARMOR_ANNOTATION_PREFIX: Final = "container.apparmor.security.beta.kubernetes.io/"
"""Before a container's name. API servers make the field `appArmorProfile` of it after mutation."""
OS_LABEL: Final = "kubernetes.io/os"
NVIDIA_RUNTIME_CLASS: Final = "nvidia"
"""The RuntimeClass that NVIDIA's GPU Operator, k3s and others make."""
