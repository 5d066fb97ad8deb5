"""What can be wrong with a container, a pod, a demand and a debugger, each with its path."""

from __future__ import annotations

from typing import Any

from tests.core.admission.decisions import (
    CONFIG_MAP,
    VISIBLE,
    capability,
    host_path,
    limits,
    variable,
)
from webhook.core.pod.findings import Reason

MEMORY = "metadata.annotations[vramwarden.io/gpu-memory]"
COUNT = "metadata.annotations[vramwarden.io/gpu-count]"
CLASS = "metadata.annotations[vramwarden.io/gpu-class]"
SHM = "/dev/shm"  # noqa: S108 - a path of the node, not a file
OTHER_FIELD = {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.annotations['gpus']"}}
ADDED = "securityContext.capabilities.add[-1]"

CONTAINER_FAULTS: list[tuple[Reason, str, Any, str]] = [
    (
        Reason.PRIVILEGED_CONTAINER,
        "privileged",
        {"securityContext": {"privileged": True}},
        "securityContext.privileged",
    ),
    *(
        (Reason.PRIVILEGED_CONTAINER, name, capability(name), ADDED)
        for name in (
            "ALL",
            "SYS_ADMIN",
            "SYS_PTRACE",
            "SYS_MODULE",
            "SYS_RAWIO",
            "SYS_RESOURCE",
            "SYS_NICE",
            "DAC_READ_SEARCH",
            "CHECKPOINT_RESTORE",
            "PERFMON",
            "MAC_OVERRIDE",
            "SYS_ADMIN_X",
            " KILL",
            "CAP_CAP_CHOWN",
            "BPF",
            "CAP_SYS_ADMIN",
            "sys_admin",
            "all",
        )
    ),
    *(
        (Reason.VISIBLE_DEVICES_OVERRIDE, f"sees {value!r}", variable(VISIBLE, value), "env[-1]")
        for value in ("all", "0", "0,1", "GPU-5d4ea1", "MIG-1", " void", "VOID", "$(X)", "nvidia")
    ),
    *(
        (Reason.VISIBLE_DEVICES_OVERRIDE, f"sees by {name}", variable(VISIBLE, **source), "env[-1]")
        for name, source in (
            ("config map", CONFIG_MAP),
            ("secret", {"secretKeyRef": {"name": "s", "key": "k"}}),
            ("another annotation", OTHER_FIELD),
        )
    ),
    (
        Reason.VISIBLE_DEVICES_OVERRIDE,
        "void beside valueFrom",
        variable(VISIBLE, "void", **CONFIG_MAP),
        "env[-1]",
    ),
    *(
        (Reason.VISIBLE_DEVICES_OVERRIDE, name, variable(name, "0"), "env[-1]")
        for name in (
            "NVIDIA_GPU_MEMORY_LIMIT",
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
            "CUDA_MPS_PIPE_DIRECTORY",
            "NVIDIA_MIG_CONFIG_DEVICES",
            "NVIDIA_MIG_MONITOR_DEVICES",
            "NVIDIA_IMEX_CHANNELS",
            "NVIDIA_NVSWITCH",
        )
    ),
    (
        Reason.VISIBLE_DEVICES_OVERRIDE,
        "MPS by config map",
        variable("CUDA_MPS_PIPE_DIRECTORY", **CONFIG_MAP),
        "env[-1]",
    ),
    *(
        (
            Reason.WHOLE_GPU_AND_SHARE,
            f"{resource} {amount}",
            limits(resource, amount),
            f"resources.limits[{resource}]",
        )
        for resource, amount in (
            ("nvidia.com/gpu", "1"),
            ("nvidia.com/gpu", 2),
            ("nvidia.com/gpu", "2000m"),
            ("amd.com/gpu", "1"),
            ("nvidia.com/mig-1g.10gb", "1"),
            ("nvidia.com/a100-40gb", "1"),
            ("tencent.com/vcuda-core", "10"),
        )
    ),
    (
        Reason.WHOLE_GPU_AND_SHARE,
        "request and limit",
        {"resources": {kind: {"nvidia.com/gpu": "1"} for kind in ("requests", "limits")}},
        "resources.limits[nvidia.com/gpu]",
    ),
    (
        Reason.WHOLE_GPU_AND_SHARE,
        "claim",
        {"resources": {"claims": [{"name": "gpu"}]}},
        "resources.claims",
    ),
]


SPEC_FAULTS: list[tuple[Reason, Any, str]] = [
    (Reason.HOST_PID, {"hostPID": True}, "spec.hostPID"),
    (
        Reason.PROCESS_NAMESPACE_NOT_SHARED,
        {"shareProcessNamespace": False},
        "spec.shareProcessNamespace",
    ),
    (Reason.NODE_NAME_PRESET, {"nodeName": "node-1"}, "spec.nodeName"),
    (Reason.UNSUPPORTED_OS, {"os": {"name": "windows"}}, "spec.os.name"),
    (
        Reason.UNSUPPORTED_OS,
        {"nodeSelector": {"kubernetes.io/os": "windows"}},
        "spec.nodeSelector[kubernetes.io/os]",
    ),
    (
        Reason.NODE_SELECTOR_CONFLICT,
        {"nodeSelector": {"vramwarden.io/gpu": "false"}},
        "spec.nodeSelector[vramwarden.io/gpu]",
    ),
    (
        Reason.NODE_SELECTOR_CONFLICT,
        {"nodeSelector": {"vramwarden.io/gpu": ""}},
        "spec.nodeSelector[vramwarden.io/gpu]",
    ),
    (
        Reason.WHOLE_GPU_AND_SHARE,
        {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}]},
        "spec.resourceClaims",
    ),
    *(
        (Reason.PRIVILEGED_CONTAINER, host_path(path), "spec.volumes[-1].hostPath.path")
        for path in (
            "/dev",
            "/dev/",
            "/dev/nvidia0",
            "/dev/nvidiactl",
            "/dev/nvidia-caps",
            "/dev/dri/card0",
            "//dev",
            "/./dev",
            f"{SHM}/../nvidia0",
            f"{SHM}oo",
            "/",
            "dev/nvidia0",
            *("/proc", "/proc/1/root/dev", "/sys", "/sys/fs/cgroup", "/run", "/run/nvidia/driver"),
            *("/var/run", "/var/run/containerd/containerd.sock", "/etc", "/etc/cdi"),
            *("/etc/localtime/../cdi", "/etc/localtimes", "/var", "/var/", "/var/lib"),
            *("/var/lib/kubelet", "/var/lib/kubelet/device-plugins", "/var/lib/./containerd"),
            *("/var/lib/containers", "/var/lib/docker", "/var/lib/cni", "/var/lib/etcd"),
            *("/var/lib/rancher/k3s", "/var/lib/k0s", "/data/../var/lib/docker/x", "/data/.."),
        )
    ),
    (Reason.PRIVILEGED_CONTAINER, {"hostIPC": True}, "spec.hostIPC"),
    (
        Reason.RESERVED_NAME,
        {
            "volumes": [
                {"name": "v", "emptyDir": {}},
                {"name": "vram-enforcer-run", "hostPath": {"path": "/data"}},
            ]
        },
        "spec.volumes[-1].name",
    ),
]


DEMAND_FAULTS: list[tuple[Reason, str | None, dict[str, str], str]] = [
    (Reason.INVALID_QUANTITY, "8GB", {}, MEMORY),
    (Reason.INVALID_QUANTITY, "0", {}, MEMORY),
    (Reason.INVALID_QUANTITY, "", {}, MEMORY),
    (Reason.INVALID_QUANTITY, "main=8Gi,main=8Gi", {}, MEMORY),
    (Reason.TOO_SMALL, "8192", {}, MEMORY),
    (Reason.TOO_SMALL, "1Ki", {}, MEMORY),
    (Reason.UNKNOWN_CONTAINER, "other=8Gi", {}, MEMORY),
    (
        Reason.UNKNOWN_CONTAINER,
        "8Gi",
        {"kubectl.kubernetes.io/default-container": "other"},
        "metadata.annotations[kubectl.kubernetes.io/default-container]",
    ),
    (Reason.INVALID_COUNT, "8Gi", {"vramwarden.io/gpu-count": "0"}, COUNT),
    (Reason.INVALID_COUNT, "8Gi", {"vramwarden.io/gpu-count": "half"}, COUNT),
    (Reason.INVALID_COUNT, None, {"vramwarden.io/gpu-count": "1"}, COUNT),
    (Reason.INVALID_QUANTITY, None, {"vramwarden.io/gpu-class": "a100"}, CLASS),
    (Reason.UNKNOWN_CLASS, "8Gi", {"vramwarden.io/gpu-class": "h100"}, CLASS),
    (Reason.UNKNOWN_CLASS, "8Gi", {"vramwarden.io/gpu-class": ""}, CLASS),
    (Reason.UNKNOWN_CLASS, "8Gi", {"vramwarden.io/gpu-class": "A100"}, CLASS),
    (Reason.TOO_LARGE, "79Gi", {"vramwarden.io/gpu-class": "a100"}, MEMORY),
]


FROM_MAP = {"configMapKeyRef": {"name": "m", "key": "k"}}
DEBUGGER_FAULTS = [
    *((variable(VISIBLE, value), "env[0]") for value in ("all", "0", "GPU-1")),
    (variable(VISIBLE, **FROM_MAP), "env[0]"),
    (variable("NVIDIA_GPU_MEMORY_LIMIT", "1"), "env[0]"),
    (variable("CUDA_MPS_PIPE_DIRECTORY", "/mps"), "env[0]"),
    (variable("CUDA_MPS_PIPE_DIRECTORY", **FROM_MAP), "env[0]"),
    (variable("NVIDIA_IMEX_CHANNELS", "0"), "env[0]"),
    ({"securityContext": {"privileged": True}}, "securityContext.privileged"),
    *(
        (
            {"securityContext": {"capabilities": {"add": ["NET_ADMIN", name]}}},
            "securityContext.capabilities.add[1]",
        )
        for name in ("SYS_PTRACE", "SYS_ADMIN", "ALL", "CAP_KILL", "sys_rawio")
    ),
    ({"targetContainerName": "vram-enforcer"}, "targetContainerName"),
]
