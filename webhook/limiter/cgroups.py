"""The node's cgroups (version 2), beneath a mount of them, and where in them pods are.

The kubelet's directory of all pods is found where our own is: the one that is named by our pod's
UID and holds this very process. That works in a cgroup namespace of our own, as unprivileged
containers have it, and in the node's, since `cgroup.procs` names us by our number in both, and
others' processes, which are in other PID namespaces, by 0. No directory of a pod is searched for
another, so nothing that a tenant makes is taken for the kubelet's.

A path is opened component by component and no symbolic link is followed. NVML then gets the path as
text, as NVIDIA documents it, and that stays the same directory: a cgroup file system has no
symbolic links and cannot rename (`cgroup2` has no such operation), and down to the pod's directory
root of the node alone makes and removes any; its name holds a UID, which never comes again.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from webhook.core.node.cgroups import (
    find_kubepods,
    list_pod_directories,
    parse_container_id,
    parse_pod_uid,
)

MOST_SEARCHED: Final = 10_000
"""Directories, until our own is found."""
MOST_LEAVES: Final = 512
"""Number of cgroups read below a pod's. It has at most 256 containers (`TooComplex`), a sidecar and
a sandbox, which come first; a tenant may make any number below its own."""
DEEPEST_LEAF: Final = 2
"""Below a pod's: a container's, and `container` below that, where crun puts its processes."""
DMEM: Final = "dmem"
_LONGEST_FILE: Final = 2**16
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW


@dataclass(frozen=True, slots=True)
class Leaf:
    """A cgroup below a pod's."""

    path: str
    """Below the mount."""
    number: int
    """The kernel's own of this directory."""
    container: str
    """64 hex digits; empty where its name has none."""
    runs: bool
    """Whether it has processes."""


class NodeCgroups:
    """The cgroups beneath a mount; every path is relative to it."""

    def __init__(self, mount: str, own_uid: str) -> None:
        """Prepare; `own_uid` is our own pod's."""
        self._mount = mount
        self._own_uid = own_uid
        self.own_pod = ""
        """Our own pod's, once it was found; and our container's."""
        self.own_leaf = ""
        self._kubepods = ""

    def find_own(self) -> str:
        """Find out where we are; return why that cannot be, or nothing."""
        if self._kubepods and self._holds_us(self.own_pod):
            return ""
        self.own_pod = self.own_leaf = self._kubepods = ""
        if not os.path.lexists(f"{self._mount}/cgroup.controllers"):
            return f"{self._mount} is no mount of cgroup v2, which the driver's limits need"
        for path, name in self._directories(""):
            if parse_pod_uid(name) == self._own_uid != "" and self._holds_us(path):
                self.own_pod, self._kubepods = path, find_kubepods(path, self._own_uid)
                if self._kubepods:
                    return ""
        return (
            f"our own pod has no cgroup of its own in {self._mount}: set POD_UID to its UID; where"
            " the kubelet has cgroupsPerQOS: false, no pod has one, and none can be held to a cap"
        )

    def pod(self, uid: str) -> str:
        """Return where a pod's cgroup is; empty where it has none, or none yet."""
        paths = list_pod_directories(self._kubepods, uid) if self._kubepods else ()
        return next(filter(self.exists, paths), "")

    def exists(self, path: str) -> bool:
        """Say whether there is such a cgroup."""
        try:
            os.close(self._open(path))
        except OSError:
            return False
        return True

    def leaves(self, pod: str) -> tuple[Leaf, ...]:
        """Return what is below a pod's, nearest first; nothing where it is gone."""
        found: list[Leaf] = []
        above = [(pod, "")]
        for _ in range(DEEPEST_LEAF):
            level: list[tuple[str, str]] = []
            for path, container in above:
                for name, number in self._below(path, MOST_LEAVES - len(found)):
                    below, its = f"{path}/{name}", container or parse_container_id(name)
                    found.append(Leaf(below, number, its, self._runs(below)))
                    level.append((below, its))
            above = level
        return tuple(found)

    def for_driver(self, path: str) -> str:
        """Return the path for NVML of a cgroup that is there; raises OSError where it is not."""
        os.close(self._open(path))
        return f"{self._mount}/{path}"

    def offers_dmem(self) -> bool:
        """Say whether the kernel has the controller."""
        return DMEM in self._read("", "cgroup.controllers").split()

    def enable_dmem(self, path: str) -> None:
        """Have everything below this cgroup have the controller's files; raises OSError.

        Without effect on a kernel without it: what the driver can do there, it says itself.
        """
        if not self.offers_dmem():
            return
        parts = path.split("/") if path else []
        for depth in range(len(parts) + 1):
            above = "/".join(parts[:depth])
            if DMEM not in self._read(above, "cgroup.subtree_control").split():
                self._write(above, "cgroup.subtree_control", f"+{DMEM}")

    def _holds_us(self, pod: str) -> bool:
        """Find our container's in a pod's; false where it is in none of them."""
        me = str(os.getpid())
        inside = (leaf.path for leaf in self.leaves(pod))
        here = (one for one in inside if me in self._read(one, "cgroup.procs").split())
        found = next(here, "").removeprefix(f"{pod}/").partition("/")[0]
        self.own_leaf = f"{pod}/{found}" if found else ""
        return bool(found)

    def _runs(self, path: str) -> bool:
        return "populated 1" in self._read(path, "cgroup.events")

    def _directories(self, path: str) -> Iterator[tuple[str, str]]:
        """Yield those beneath, nearest first, and of pods only their own."""
        waiting, left = deque([path]), MOST_SEARCHED
        while waiting and left > 0:
            above = waiting.popleft()
            for name, _ in self._below(above, left):
                left -= 1
                below = f"{above}/{name}" if above else name
                yield below, name
                if not parse_pod_uid(name):
                    waiting.append(below)

    def _below(self, path: str, most: int) -> list[tuple[str, int]]:
        """Return names and numbers of directories in one; none where it is gone."""
        found: list[tuple[str, int]] = []
        with contextlib.suppress(OSError):
            descriptor = self._open(path)
            try:
                with os.scandir(descriptor) as entries:
                    for entry in entries:
                        if len(found) >= most:
                            break
                        if entry.is_dir(follow_symlinks=False):
                            found.append((entry.name, entry.inode()))
            finally:
                os.close(descriptor)
        return found

    def _open(self, path: str) -> int:
        """Open a directory beneath the mount, component by component; raises OSError."""
        descriptor = os.open(self._mount, _DIRECTORY)
        for part in path.split("/") if path else ():
            try:
                below = os.open(part, _DIRECTORY, dir_fd=descriptor)
            finally:
                os.close(descriptor)
            descriptor = below
        return descriptor

    def _read(self, path: str, file: str) -> str:
        """Return a file of a cgroup; empty where it, or its cgroup, is not there."""
        try:
            with self._file(path, file, os.O_RDONLY) as descriptor:
                return os.read(descriptor, _LONGEST_FILE).decode(errors="replace")
        except OSError:
            return ""

    def _write(self, path: str, file: str, text: str) -> None:
        with self._file(path, file, os.O_WRONLY) as descriptor:
            os.write(descriptor, text.encode())

    @contextlib.contextmanager
    def _file(self, path: str, file: str, flags: int) -> Iterator[int]:
        """Open a file of a cgroup for the length of a block; raises OSError."""
        at = self._open(path)
        try:
            descriptor = os.open(file, flags | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=at)
        finally:
            os.close(at)
        try:
            yield descriptor
        finally:
            os.close(descriptor)
