"""Names of annotations, labels, resources, variables and containers; contains no logic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIX: Final = "vramwarden.io/"
DEFAULT_NAMESPACE: Final = "vramwarden-system"
"""Default namespace of a release."""

# Set on a pod by its developer.
GPU_MEMORY_ANNOTATION: Final = PREFIX + "gpu-memory"
"""VRAM per GPU: one quantity, or a list of quantities keyed by container."""
GPU_CLASS_ANNOTATION: Final = PREFIX + "gpu-class"
"""Name of a GPU class in the policy."""
GPU_COUNT_ANNOTATION: Final = PREFIX + "gpu-count"
"""Number of GPUs, each with the requested memory."""
REQUEST_ANNOTATIONS: Final = (GPU_MEMORY_ANNOTATION, GPU_CLASS_ANNOTATION, GPU_COUNT_ANNOTATION)
"""All annotations of a request."""

# Set on a pod by vramwarden.
ADMITTED_ANNOTATION: Final = PREFIX + "admitted"
"""`v1 <rule name> <first 12 hex digits of the policy's digest>`."""
IN_PLACE_OF_ANNOTATION: Final = PREFIX + "in-place-of"
"""Resource that a rule replaced by a share of a GPU; for users and tools."""
GPU_ANNOTATION: Final = PREFIX + "gpu"
"""UUIDs of the assigned GPUs, comma-separated; for users, tools and the sidecar."""
VISIBLE_DEVICES_ANNOTATION: Final = PREFIX + "visible-devices"
"""Names of the assigned GPUs for the node's container runtime; for containers."""
GPU_MEMORY_FRACTION_ANNOTATION: Final = PREFIX + "gpu-memory-fraction"
"""Fraction of each GPU's memory that a program may use."""
GPU_WAITS_ANNOTATION: Final = PREFIX + "gpu-waits"
"""Reason why a bound pod has no GPU yet."""
DRIVER_LIMIT_ANNOTATION: Final = PREFIX + "driver-limit"
"""`Auto` or `Require` if the driver of the pod's node can enforce the cap; otherwise absent."""
BINDING_ANNOTATIONS: Final = (
    GPU_ANNOTATION,
    VISIBLE_DEVICES_ANNOTATION,
    GPU_MEMORY_FRACTION_ANNOTATION,
    DRIVER_LIMIT_ANNOTATION,
    GPU_WAITS_ANNOTATION,
)
"""Annotations that only a binding or a late assignment writes."""
OUR_ANNOTATIONS: Final = (*REQUEST_ANNOTATIONS, ADMITTED_ANNOTATION, *BINDING_ANNOTATIONS)
"""Annotations of request, admission and assignment. No update may change them."""
MANAGED_LABEL: Final = PREFIX + "managed"
"""`"true"` on every pod that has a demand."""

VRAM_RESOURCE: Final = PREFIX + "vram"
"""The extended resource: bytes, with requests equal to limits."""

# Set on a node by the node agent.
NODE_GPU_LABEL: Final = PREFIX + "gpu"
NODE_GPU_MEMORY_LABEL: Final = PREFIX + "gpu-memory-mib"
"""Usable MiB of the node's largest GPU, as an integer for the operator `Gt`."""
NODE_GPU_MEMORY_FREE_LABEL: Final = PREFIX + "gpu-memory-free-mib"
"""Free MiB of the GPU with the most; with suffix `.2` to `.16`, free MiB on each of that many GPUs.

The value is rounded down, and a few seconds old. Since it changes, pods only prefer nodes by it.
"""
NODE_GPU_COUNT_LABEL: Final = PREFIX + "gpu-count"
NODE_GPU_PRODUCT_LABEL: Final = PREFIX + "gpu-product"
NODE_DRIVER_LABEL: Final = PREFIX + "driver-version"
NODE_ENFORCEMENT_LABEL: Final = PREFIX + "enforcement"
"""`sidecar` if a sidecar can measure on the node, otherwise `none`."""
ENFORCED_BY_SIDECAR: Final = "sidecar"
NOT_ENFORCED: Final = "none"
NODE_ENFORCEMENTS: Final = (ENFORCED_BY_SIDECAR, NOT_ENFORCED)
NODE_SENTRY_LABEL: Final = PREFIX + "sentry"
"""`"true"` if a sentry that may stop processes measures every shared GPU; otherwise absent."""
NODE_DEVICE_NAMES_LABEL: Final = PREFIX + "device-names"
"""Names of GPUs that the node's container runtime resolves; see `core.nvidia.device_names`."""
NODE_DRIVER_LIMIT_LABEL: Final = DRIVER_LIMIT_ANNOTATION
"""`"true"` if the limiter proved that the driver limits cgroups; otherwise absent."""
NODE_GPUS_ANNOTATION: Final = PREFIX + "gpus"
"""JSON list, one object per GPU: `uuid`, `memory` (usable bytes), `total` (bytes), `product`,
`index`, and `healthy: false` for a GPU that must not be chosen now."""

NODE_QUESTION_LABEL: Final = PREFIX + "whole-gpu-pods"
"""The agent's question which pods on the node have whole GPUs. The value identifies the
question. The webhook's replicas answer in the node's assignment list."""
NODE_SHARING_ANNOTATION: Final = PREFIX + "sharing"
"""State of sharing and its reason, as `Code: sentence`; see `core.node.node_fields`."""
NODE_DRA_ANNOTATION: Final = PREFIX + "dra-driver"
"""Comma-separated DRA drivers that offer the node's GPUs, or did within the last five minutes."""

MAX_LABEL_LENGTH: Final = 63
"""Kubernetes' maximum length of a label value, and of a key without its domain, in characters."""
MAX_NAME_LENGTH: Final = 253
"""Kubernetes' maximum length of an object name and of a key's domain, in characters."""
MAX_QUALIFIED_NAME_LENGTH: Final = MAX_NAME_LENGTH + 1 + MAX_LABEL_LENGTH
"""Maximum length of a pod's `namespace/name`, and of a key with its domain, in characters."""

# Set on a node by a cluster admin.
NODE_SHARE_LABEL: Final = PREFIX + "share"
"""`"true"`: share the GPUs even if a device plugin offers them whole; `"false"`: never share."""

# Set on a namespace by a cluster admin.
EXEMPT_LABEL: Final = PREFIX + "webhook"
"""`disabled`: pods of the namespace are not reviewed."""

# Environment of containers with VRAM.
GPU_MEMORY_MIB_ENV: Final = "VRAMWARDEN_GPU_MEMORY_MIB"
"""VRAM that the container requests per GPU, in MiB."""
GPU_MEMORY_FRACTION_ENV: Final = "VRAMWARDEN_GPU_MEMORY_FRACTION"
"""Value of the annotation `gpu-memory-fraction`."""

# Set by the webhook on ConfigMaps in its namespace.
ASSIGNMENTS_LABEL: Final = PREFIX + "gpu-assignments"
"""`"true"` on each ConfigMap that contains a node's assignment list."""
ASSIGNMENTS_NODE_ANNOTATION: Final = PREFIX + "node"
"""Name of the node that the assignment list belongs to."""

DOCUMENTATION_URL_ENV: Final = "VRAMWARDEN_DOCUMENTATION_URL"
"""Environment variable of webhook and agent with the chart's value `documentationURL`."""

WEBHOOK_CONFIGURATION: Final = "zz-vramwarden"
"""Default name of both webhook configurations.

The API server calls mutating webhooks in alphabetical order of these names, so this one is late
(k8s.io/apiserver/pkg/admission/configuration/mutating_webhook_manager.go).
"""

# The sidecar.
ENFORCER_CONTAINER: Final = "vram-enforcer"
ENFORCER_COMMAND: Final = ("python3", "-I", "-m", "webhook.sidecar")
ENFORCER_PROBE: Final = "/opt/vramwarden/bin/vram-enforcer-probe"
"""Script for the kubelet's probes, in the sidecar's image (webhook/sidecar/probe.sh)."""

ENFORCER_IMAGE_REPOSITORY: Final = "vramwarden/enforcer"
ENFORCER_RUN_VOLUME: Final = "vram-enforcer-run"
"""Volume for the heartbeat, because the sidecar's root file system is read-only."""
ENFORCER_RUN_PATH: Final = "/run/vram-enforcer"
ENFORCER_NO_TOKEN_VOLUME: Final = "vram-enforcer-no-token"  # noqa: S105 - a volume's name
"""Empty volume at the token's path, so that the ServiceAccount plugin adds no token."""

# The gate: no container is created before its pod has a GPU.
GATE_VOLUME: Final = "vram-gate"
GATE_PATH: Final = "/run/vram-gate"
GATE_VARIABLE: Final = "VRAMWARDEN_GPU_ASSIGNMENT"
"""Environment variable from the annotation `gpu-memory-fraction`; see `core.admission.gate`."""

OUR_VOLUMES: Final = (ENFORCER_RUN_VOLUME, ENFORCER_NO_TOKEN_VOLUME, GATE_VOLUME)
"""Volumes that containers may only mount in the way that translation does."""

GPUS_ENV: Final = "VRAM_GPUS"
"""Value of the annotation `gpu`."""
DRIVER_LIMIT_ENV: Final = "VRAM_DRIVER_LIMIT"
"""Value of the annotation `driver-limit` when the sidecar's container started."""
CAP_BYTES_ENV: Final = "VRAM_CAP_BYTES"
POLL_INTERVAL_ENV: Final = "VRAM_POLL_INTERVAL"
GRACE_ENV: Final = "VRAM_GRACE"
TOLERANCE_ENV: Final = "VRAM_TOLERANCE"
BLIND_AFTER_ENV: Final = "VRAM_BLIND_AFTER"
WHEN_BLIND_ENV: Final = "VRAM_WHEN_BLIND"
ON_EXCESS_ENV: Final = "VRAM_ON_EXCESS"
"""`Stop` (also if unset) or `Report`."""

POD_RESTART_EXIT_CODE: Final = 88
"""Exit code with which the sidecar makes the kubelet restart all containers of the pod."""

# Written by the limiter for the sentry.
LIMITER_FOLDER: Final = "/run/vramwarden-limiter"
"""Folder on the node that the limiter writes and the sentry reads (`core.node.limiter_state`)."""

# Conditions and reporters.
CAP_HELD_CONDITION: Final = PREFIX + "CapHeld"
"""Type of a pod condition: `False` if the sentry stopped the pod for an excess."""
SENTRY_ACTING_CONDITION: Final = PREFIX + "SentryActing"
"""Type of a node condition that the agent writes: `False` without `NODE_SENTRY_LABEL`."""
SENTRY_REPORTER: Final = PREFIX + "sentry"
AGENT_REPORTER: Final = PREFIX + "agent"
"""`reportingController` in the Events of sentry and agent."""

# Objects of vramwarden's API group.
API_GROUP: Final = PREFIX.rstrip("/")
GROUP_VERSION: Final = PREFIX + "v1alpha1"
GPU_NODE_KIND: Final = "GPUNode"
GPU_NODES: Final = "gpunodes"
"""Cluster-scoped objects, one per node with GPUs, written by the sentry."""
GPU_NODES_PATH: Final = f"/apis/{GROUP_VERSION}/{GPU_NODES}"
VRAM_HISTORY_KIND: Final = "VRAMHistory"
VRAM_HISTORIES: Final = "vramhistories"
"""Objects in the namespace of their workload, written by the webhook."""
VRAM_POLICY_KIND: Final = "VRAMPolicy"
"""Kind of policy files. The API server has no such objects."""
WORKLOAD_LABEL: Final = PREFIX + "workload"
"""Pod label, set by a developer: the workload's name in histories, instead of the controller's."""

KNOWN_KEYS: Final[Mapping[tuple[str, str], tuple[str, ...]]] = {
    ("Pod", "annotations"): (*OUR_ANNOTATIONS, IN_PLACE_OF_ANNOTATION),
    ("Pod", "labels"): (MANAGED_LABEL, WORKLOAD_LABEL),
    ("Node", "annotations"): (
        *(NODE_GPUS_ANNOTATION, NODE_SHARING_ANNOTATION, NODE_DRA_ANNOTATION),
    ),
    ("Node", "labels"): (
        *(NODE_GPU_LABEL, NODE_GPU_MEMORY_LABEL, NODE_GPU_MEMORY_FREE_LABEL, NODE_GPU_COUNT_LABEL),
        *(f"{NODE_GPU_MEMORY_FREE_LABEL}.{count}" for count in range(2, 17)),
        *(NODE_GPU_PRODUCT_LABEL, NODE_DRIVER_LABEL, NODE_ENFORCEMENT_LABEL, NODE_SENTRY_LABEL),
        *(NODE_DEVICE_NAMES_LABEL, NODE_DRIVER_LIMIT_LABEL, NODE_QUESTION_LABEL, NODE_SHARE_LABEL),
    ),
    ("Namespace", "labels"): (EXEMPT_LABEL,),
    ("ConfigMap", "annotations"): (ASSIGNMENTS_NODE_ANNOTATION,),
    ("ConfigMap", "labels"): (ASSIGNMENTS_LABEL,),
}
"""Metadata keys that vramwarden reads or writes, keyed by kind of object and metadata field.

Policy rules may also match other labels.
"""

# Names of other projects.
DEFAULT_CONTAINER_ANNOTATION: Final = "kubectl.kubernetes.io/default-container"
MIRROR_POD_ANNOTATION: Final = "kubernetes.io/config.mirror"
NODES_GROUP: Final = "system:nodes"
TOKEN_PATH: Final = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105 - a path, not a token
APP_ARMOR_ANNOTATION_PREFIX: Final = "container.apparmor.security.beta.kubernetes.io/"
"""Prefix of a container's name. API servers set the field `appArmorProfile` after mutation."""
OS_LABEL: Final = "kubernetes.io/os"
NVIDIA_RUNTIME_CLASS: Final = "nvidia"
"""RuntimeClass that NVIDIA's GPU Operator, k3s and others create."""
