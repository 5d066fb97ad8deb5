"""Content of /proc/PID/cgroup on each kind of node, for the program and for another process."""

from __future__ import annotations

from dataclasses import dataclass

OURS = "0a1b2c3d-1111-4222-8333-444455556666"
THEIRS = "feedface-aaaa-4bbb-9ccc-dddd00001111"
OTHERS = "12345678-90ab-4cde-8f01-23456789abcd"
STATIC = "0123456789abcdef0123456789abcdef"
OUR_ID = "11" * 32
ID = "c0ffee" + "ab" * 29
OTHER_ID = "d00d" * 16


def systemd(uid):
    """Return a UID as in systemd's slice names."""
    return uid.replace("-", "_")


@dataclass(frozen=True)
class Tree:
    """Cgroup paths on a kind of node, without the hierarchies."""

    ours: str
    theirs: str
    pod: str = THEIRS
    container: str = ID

    def lines(self, *controllers):
        """Return the program's file and the other process's, in hierarchies with these names."""
        return tuple(
            "".join(f"{number}:{name}:{path}\n" for number, name in enumerate(controllers or [""]))
            for path in (self.ours, self.theirs)
        )


BURST = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{systemd(THEIRS)}.slice"
BEST = "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod"
CONTAINERD = f"{BEST}{systemd(OURS)}.slice/cri-containerd-{OUR_ID}.scope"
CRIO = f"{BEST}{systemd(OURS)}.slice/crio-{OUR_ID}.scope"
FS = f"/kubepods/besteffort/pod{OURS}/{OUR_ID}"
KIND = "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods"
KIND_OURS = f"{KIND}-besteffort.slice/kubelet-kubepods-besteffort-pod{systemd(OURS)}.slice"
KIND_THEIRS = f"{KIND}-burstable.slice/kubelet-kubepods-burstable-pod{systemd(THEIRS)}.slice"
NESTED = f"/system.slice/docker-{'99' * 32}.scope/kubelet/kubepods"
SCOPE = f"cri-containerd-{ID}.scope"
LIKE_ANOTHER = f"kubepods-burstable-pod{systemd(OTHERS)}.slice/cri-containerd-{OTHER_ID}.scope"

TREES = {
    "systemd, containerd, burstable": Tree(CONTAINERD, f"{BURST}/{SCOPE}"),
    "systemd, containerd, guaranteed": Tree(
        CONTAINERD, f"/kubepods.slice/kubepods-pod{systemd(THEIRS)}.slice/{SCOPE}"
    ),
    "k3s, besteffort": Tree(CONTAINERD, f"{BEST}{systemd(THEIRS)}.slice/{SCOPE}"),
    "CRI-O": Tree(CRIO, f"{BURST}/crio-{ID}.scope"),
    "CRI-O with crun's child": Tree(f"{CRIO}/container", f"{BURST}/crio-{ID}.scope/container"),
    "cri-dockerd": Tree(
        f"{BEST}{systemd(OURS)}.slice/docker-{OUR_ID}.scope", f"{BURST}/docker-{ID}.scope"
    ),
    "cgroupfs, burstable": Tree(FS, f"/kubepods/burstable/pod{THEIRS}/{ID}"),
    "cgroupfs, guaranteed": Tree(FS, f"/kubepods/pod{THEIRS}/{ID}"),
    "kind": Tree(f"{KIND_OURS}/cri-containerd-{OUR_ID}.scope", f"{KIND_THEIRS}/{SCOPE}"),
    "a kubelet with a cgroupRoot, cgroupfs": Tree(
        f"/kubelet/kubepods/besteffort/pod{OURS}/{OUR_ID}",
        f"/kubelet/kubepods/burstable/pod{THEIRS}/{ID}",
    ),
    "a node that is a container": Tree(
        f"{NESTED}/besteffort/pod{OURS}/{OUR_ID}", f"{NESTED}/pod{THEIRS}/{ID}"
    ),
    "a static pod, cgroupfs": Tree(FS, f"/kubepods/burstable/pod{STATIC}/{ID}", STATIC),
    "a static pod, systemd": Tree(
        CONTAINERD,
        f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{STATIC}.slice/{SCOPE}",
        STATIC,
    ),
    "a pod's own cgroup": Tree(CONTAINERD, BURST, container=""),
    "a process of the node": Tree(CONTAINERD, "/system.slice/containerd.service", "", ""),
    "the root": Tree(CONTAINERD, "/", "", ""),
    "a child that a tenant named like another pod": Tree(
        CONTAINERD, f"{BURST}/{SCOPE}/kubepods.slice/{LIKE_ANOTHER}"
    ),
    "the same with cgroupfs": Tree(
        FS, f"/kubepods/burstable/pod{THEIRS}/{ID}/kubepods/burstable/pod{OTHERS}/{OTHER_ID}"
    ),
    "a child that a tenant named like a container": Tree(
        CONTAINERD, f"{BURST}/{SCOPE}/cri-containerd-{OTHER_ID}.scope"
    ),
    "a cgroup that was removed": Tree(CONTAINERD, f"{BURST}/{SCOPE} (deleted)"),
    "another root than ours": Tree(
        f"/kubelet/kubepods/besteffort/pod{OURS}/{OUR_ID}",
        f"/elsewhere/kubepods/burstable/pod{THEIRS}/{ID}",
        "",
        "",
    ),
    "a node's container whose pods are not ours": Tree(
        f"{NESTED}/pod{OURS}/{OUR_ID}", f"/kubepods/burstable/pod{THEIRS}/{ID}", "", ""
    ),
    "ourselves": Tree(CONTAINERD, CONTAINERD, OURS, ""),
    "we are in no pod": Tree("/user.slice/session-1.scope", f"{BURST}/{SCOPE}", "", ""),
    "private: ourselves": Tree("/", "/", OURS, ""),
    "private: below us": Tree("/", f"/{LIKE_ANOTHER}", OURS, ""),
    "private: beside us in our pod": Tree("/", f"/../cri-containerd-{ID}.scope", OURS, ""),
    "private: named like another pod, in our pod": Tree("/", f"/../{LIKE_ANOTHER}", OURS, ""),
    "private: a pod of the same quality": Tree(
        "/", f"/../../kubepods-besteffort-pod{systemd(THEIRS)}.slice/{SCOPE}"
    ),
    "private: a pod of another quality": Tree(
        "/", f"/../../../kubepods-burstable.slice/{BURST.rpartition('/')[2]}/{SCOPE}"
    ),
    "private, cgroupfs": Tree("/", f"/../../../burstable/pod{THEIRS}/{ID}"),
    "private, CRI-O with crun's child": Tree(
        "/", f"/../../../{BURST.rpartition('/')[2]}/crio-{ID}.scope/container"
    ),
    "private: a tenant's child": Tree(
        "/", f"/../../kubepods-besteffort-pod{systemd(THEIRS)}.slice/{SCOPE}/{LIKE_ANOTHER}"
    ),
    "private: a process of the node": Tree("/", "/../../../../system.slice/x.service", "", ""),
    "private: the root": Tree("/", "/../../../..", "", ""),
}
