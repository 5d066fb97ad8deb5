"""Faults of containers, pods, demands and debugging containers, each with its path."""

from __future__ import annotations

from typing import Any

from tests.core.admission.decisions import (
    CONFIG_MAP,
    VISIBLE,
    capability,
    host_path,
    limits,
    request_and_limit,
    variable,
)
from webhook.core.pod.findings import Reason

MEMORY = "metadata.annotations[vramwarden.io/gpu-memory]"
COUNT = "metadata.annotations[vramwarden.io/gpu-count]"
CLASS = "metadata.annotations[vramwarden.io/gpu-class]"
SHM = "/dev/shm"  # noqa: S108 - a path of the node, not a file
OTHER_FIELD = {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.annotations['gpus']"}}
ADDED = "securityContext.capabilities.add[-1]"

PRIVILEGED, SEES, OF_DRIVER, WHOLE = (
    Reason.PRIVILEGED_CONTAINER,
    Reason.VISIBLE_DEVICES_OVERRIDE,
    Reason.DRIVER_VARIABLE,
    Reason.WHOLE_GPU_AND_SHARE,
)
IS_PRIVILEGED = {"securityContext": {"privileged": True}}
SECRET = {"secretKeyRef": {"name": "s", "key": "k"}}
MPS, IMEX = "CUDA_MPS_PIPE_DIRECTORY", "NVIDIA_IMEX_CHANNELS"
DEFEATING = (
    *("ALL", "SYS_ADMIN", "SYS_PTRACE", "SYS_MODULE", "SYS_RAWIO", "SYS_RESOURCE", "SYS_NICE"),
    *("DAC_READ_SEARCH", "CHECKPOINT_RESTORE", "PERFMON", "MAC_OVERRIDE", "BPF", "CAP_SYS_ADMIN"),
    *("SYS_ADMIN_X", " KILL", "CAP_CAP_CHOWN", "sys_admin", "all"),
)
OF_THE_DRIVER = (
    *("NVIDIA_GPU_MEMORY_LIMIT", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "NVIDIA_MIG_CONFIG_DEVICES"),
    *("NVIDIA_MIG_MONITOR_DEVICES", "NVIDIA_NVSWITCH", MPS, IMEX),
)
SEEN = ("all", "0", "0,1", "GPU-5d4ea1", "MIG-1", " void", "VOID", "$(X)", "nvidia")
SOURCES = {"config map": CONFIG_MAP, "secret": SECRET, "another annotation": OTHER_FIELD}
AMOUNTS = (
    ("nvidia.com/gpu", "1"),
    ("nvidia.com/gpu", 2),
    ("nvidia.com/gpu", "2000m"),
    ("amd.com/gpu", "1"),
    ("nvidia.com/mig-1g.10gb", "1"),
    ("nvidia.com/a100-40gb", "1"),
    ("tencent.com/vcuda-core", "10"),
)

CONTAINER_FAULTS: list[tuple[Reason, str, Any, str]] = [
    (PRIVILEGED, "privileged", IS_PRIVILEGED, "securityContext.privileged"),
    *((Reason.CAPABILITY, name, capability(name), ADDED) for name in DEFEATING),
    *((SEES, f"sees {value!r}", variable(VISIBLE, value), "env[-1]") for value in SEEN),
    *((SEES, f"sees by {name}", variable(VISIBLE, **SOURCES[name]), "env[-1]") for name in SOURCES),
    (SEES, "void beside valueFrom", variable(VISIBLE, "void", **CONFIG_MAP), "env[-1]"),
    *((OF_DRIVER, name, variable(name, "0"), "env[-1]") for name in OF_THE_DRIVER),
    (OF_DRIVER, "MPS by config map", variable(MPS, **CONFIG_MAP), "env[-1]"),
    *(
        (WHOLE, f"{name} {amount}", limits(name, amount), f"resources.limits[{name}]")
        for name, amount in AMOUNTS
    ),
    (
        *(WHOLE, "request and limit", request_and_limit("nvidia.com/gpu", "1", "1")),
        "resources.limits[nvidia.com/gpu]",
    ),
    (WHOLE, "claim", {"resources": {"claims": [{"name": "gpu"}]}}, "resources.claims"),
]


DENIED_PATHS = (
    *("/", "/dev", "/dev/", "//dev", "/./dev", "/dev/dri/card0", f"{SHM}/../nvidia0", f"{SHM}oo"),
    *("/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-caps", "dev/nvidia0"),
    *("/proc", "/proc/1/root/dev", "/sys", "/sys/fs/cgroup", "/run", "/run/nvidia/driver"),
    *("/var/run", "/var/run/containerd/containerd.sock", "/etc", "/etc/cdi"),
    *("/etc/localtime/../cdi", "/etc/localtimes", "/var", "/var/", "/var/lib"),
    *("/var/lib/kubelet", "/var/lib/kubelet/device-plugins", "/var/lib/./containerd"),
    *("/var/lib/containers", "/var/lib/docker", "/var/lib/cni", "/var/lib/etcd"),
    *("/var/lib/rancher/k3s", "/var/lib/k0s", "/data/../var/lib/docker/x", "/data/.."),
)

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
        (Reason.HOST_PATH, host_path(path), "spec.volumes[-1].hostPath.path")
        for path in DENIED_PATHS
    ),
    (Reason.HOST_IPC, {"hostIPC": True}, "spec.hostIPC"),
    (Reason.USER_NAMESPACE, {"hostUsers": False}, "spec.hostUsers"),
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
    *(
        (reason, "8Gi", {key: value}, f"metadata.annotations[{key}]")
        for reason, key, value in (
            (Reason.DEVICE_INJECTION, "cdi.k8s.io/x", "nvidia.com/gpu=all"),
            (Reason.HOST_PATH, "mounts.nri.io/pod", "- {source: /dev, destination: /x}"),
            (Reason.USER_NAMESPACE, "io.kubernetes.cri-o.userns-mode", "auto"),
            (Reason.USER_NAMESPACE, "userns-mode.crio.io", "private:uidmapping=0:100000:65536"),
        )
    ),
]


FROM_MAP = {"configMapKeyRef": {"name": "m", "key": "k"}}
DEBUGGER_FAULTS = [
    *((variable(VISIBLE, value), "env[0]") for value in ("all", "0", "GPU-1")),
    (variable(VISIBLE, **FROM_MAP), "env[0]"),
    (variable("NVIDIA_GPU_MEMORY_LIMIT", "1"), "env[0]"),
    (variable(MPS, "/mps"), "env[0]"),
    (variable(MPS, **FROM_MAP), "env[0]"),
    (variable(IMEX, "0"), "env[0]"),
    (IS_PRIVILEGED, "securityContext.privileged"),
    *(
        (
            {"securityContext": {"capabilities": {"add": ["NET_ADMIN", name]}}},
            "securityContext.capabilities.add[1]",
        )
        for name in ("SYS_PTRACE", "SYS_ADMIN", "ALL", "CAP_KILL", "sys_rawio")
    ),
    ({"targetContainerName": "vram-enforcer"}, "targetContainerName"),
]
