"""Pods that request devices from container runtimes and plugins by annotations."""

from __future__ import annotations

from typing import Final

from tests.support.pods import Json, a_container, a_pod

ALL: Final = "nvidia.com/gpu=all"
CARDS: Final = tuple(f"nvidia{index}" for index in range(8))


def nodes(*names: str) -> str:
    """Return device nodes in the format of NRI plugins."""
    return "".join(f"- path: /dev/{name}\n" for name in names)


def asking(key: str, value: str, *limits: Json, memory: str | None = None) -> Json:
    """Return a pod with an annotation and one container per item of `limits`."""
    containers = [
        a_container(f"c{index}", resources={"limits": each}) for index, each in enumerate(limits)
    ]
    return a_pod(memory, annotations={key: value}, containers=containers or None)


GPU, SLICE, SLOT = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "nvidia.com/gpu.shared"
TCPX, TCPXO = (f"devices.gke.io/container.tcpx{o}-daemon" for o in ("", "o"))
DAEMONS: Final = nodes(*CARDS, "nvidiactl", "nvidia-uvm")
RENDERERS: Final = "- path: /dev/dri/renderD128\n  type: c\n  major: 226\n  minor: 128\n"

HONEST: Final = {
    # Google Kubernetes Engine: GPUDirect-TCPX, GPUDirect-TCPXO, fractional G4 GPUs.
    "TCPX": asking(TCPX, DAEMONS, {}, {GPU: "8"}),
    "TCPXO": asking(TCPXO, f"{DAEMONS}{nodes('dmabuf_import_helper')}", {}, {GPU: "8"}),
    "G4": asking("devices.gke.io/container.c0", nodes("nvidia-caps/nvidia-cap1"), {GPU: "1"}),
    # NVIDIA's guide to Kata and confidential containers.
    "Kata": asking("cdi.k8s.io/gpu", "nvidia.com/pgpu=0", {"nvidia.com/pgpu": "1"}),
    "Kata by model": asking(
        "cdi.k8s.io/gpu", "nvidia.com/pgpu=0", {"nvidia.com/GH100_H100_PCIE": "1"}
    ),
    "its own card": asking("cdi.k8s.io/gpu", "nvidia.com/gpu=gpu0", {GPU: "1"}),
    "two of two": asking("cdi.k8s.io/gpu", "nvidia.com/gpu=0,nvidia.com/gpu=1", {GPU: "2"}),
    "GPUDirect": asking("cdi.k8s.io/x", "nvidia.com/gds=all,nvidia.com/mofed=all"),
    "GDRCopy beside VRAM": asking("nvidia.cdi.k8s.io/pod", "nvidia.com/gdrcopy=all", memory="8Gi"),
    "network cards": asking("cdi.k8s.io/x", "mellanox.com/net-rdma=0000:3b:00.2", {"rdma/hca": 1}),
    "InfiniBand": asking(
        "devices.nri.io/pod", "- path: /dev/infiniband/uverbs0\n  type: c\n  major: 231\n"
    ),
    "Intel in Kata": asking(
        "cdi-devices.noderesource.dev/container.c0", "- gpu.intel.com/igpu=tc\n"
    ),
    "transcoding": asking("devices.noderesource.dev/pod", RENDERERS),
    "transcoding by CRI-O": asking(
        "io.kubernetes.cri-o.Devices", "/dev/dri/card0:/dev/dri/card0:rw"
    ),
    "podman in a pod": asking("devices.crio.io", "/dev/fuse,/dev/net/tun"),
    "FUSE beside VRAM": asking("io.kubernetes.cri-o.Devices", "/dev/fuse", memory="8Gi"),
    "a mount": asking("mounts.nri.io", "- {source: /run/x, destination: /x, type: bind}"),
    "a mount beside VRAM": asking(
        "mounts.nri.io/pod",
        "- source: /data/sources\n  destination: /etc/x\n  type: bind\n  options: [bind, ro]\n",
        memory="8Gi",
    ),
}
"""Pods that are admitted."""


def _of_kind(major: str) -> str:
    return f"- path: /dev/x\n  type: c\n  {major}\n  minor: 0\n"


DENIED: Final = {
    **{key: asking(key, ALL) for key in ("nvidia.cdi.k8s.io", "cdi.k8s.io")},
    **{
        key: asking(key, f"- {ALL}")
        for key in ("cdi-devices.nri.io", "cdi-devices.noderesource.dev")
    },
    **{
        key: asking(f"{key}/pod", nodes("nvidia0"))
        for key in ("devices.gke.io", "devices.nri.io", "devices.noderesource.dev")
    },
    **{
        key: asking(key, "/dev/fuse,/dev/nvidia0:/dev/x:rwm")
        for key in ("io.kubernetes.cri-o.Devices", "devices.crio.io")
    },
    **{
        key: asking(key, "- {source: /x, destination: /var/run/nvidia-container-devices/all}")
        for key in ("mounts.nri.io", "mounts.noderesource.dev")
    },
    "beside VRAM": asking("devices.gke.io/container.c0", nodes("nvidiactl"), memory="8Gi"),
    "renderers beside VRAM": asking("devices.nri.io", RENDERERS, memory="8Gi"),
    "a slice": asking("nvidia.cdi.k8s.io/pod", ALL, {SLICE: "1"}),
    "a slice for a card": asking("nvidia.cdi.k8s.io/pod", "nvidia.com/gpu=0", {SLICE: "1"}),
    "a slice for controls": asking(
        "devices.gke.io", nodes("nvidia-caps/nvidia-cap1"), {SLICE: "1"}
    ),
    "a slot": asking("devices.gke.io", nodes("nvidia0"), {SLOT: "1"}),
    "another's GPU": asking("cdi.k8s.io/x", ALL, {"amd.com/gpu": "1"}),
    "all of one": asking("cdi.k8s.io/x", ALL, {GPU: "1"}),
    "all of those passed through": asking(
        "cdi.k8s.io/x", "nvidia.com/pgpu=all", {"nvidia.com/pgpu": "1"}
    ),
    "two of one": asking("devices.gke.io", nodes("nvidia0", "nvidia1"), {GPU: "1"}),
    "passed through, without": asking("cdi.k8s.io/gpu", "nvidia.com/pgpu=0"),
    "one of those for all": asking("cdi.k8s.io/gpu", "nvidia.com/gpu=0", {"nvidia.com/pgpu": "1"}),
    "another class": asking("cdi.k8s.io/x", "k8s.gpu.nvidia.com/device=gpu-0"),
    "an escape": asking("cdi-devices.nri.io", '- "\\x6evidia.com/gpu=all"'),
    "an escape in a path": asking("devices.gke.io", '- path: "/dev/nvid\\u0069a0"'),
    "a tag": asking("devices.nri.io", "- path: !!binary L2Rldi9udmlkaWEw"),
    "a directive": asking("mounts.nri.io", "%TAG ! tag:yaml.org,2002:\n--- []"),
    "by its number": asking("devices.nri.io", _of_kind("major: 195")),
    "by its number in JSON": asking("devices.nri.io", '[{"path":"/dev/x","MAJOR":195}]'),
    "in octal": asking("devices.nri.io", _of_kind("major: 0303")),
    "in hex": asking("devices.nri.io", _of_kind("major: 0xC3")),
    "as a fraction": asking("devices.nri.io", _of_kind("major: 195.0")),
    "by an alias": asking("devices.nri.io", "- {path: /dev/x, uid: &n 195, major: *n}"),
    "by a key's alias": asking("devices.nri.io", "- {path: /dev/x, type: &k major, *k : 195}"),
    "by a link": asking("devices.gke.io", nodes("x/..//char/195:0")),
    "by a detour": asking("devices.gke.io", nodes("nvidia0/../nvidia1"), {GPU: "0"}),
    "a long one": asking("devices.gke.io", nodes("fuse") * 1024),
}
"""Pods that both the webhook and the API server's policies alone deny."""
