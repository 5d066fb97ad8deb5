"""Cgroups (version 2) of the node's pods, below a mount of the node's cgroup file system.

The kubelet's directory of pods is derived from the limiter's own pod: the name of that pod's
directory contains its UID, and the directory contains this process. That works in the node's cgroup
namespace and in a private one, as unprivileged containers have. In both, `cgroup.procs` shows this
process by its own PID, and processes of other PID namespaces as 0. Directories of pods are not
searched for other pods, so a directory created by a tenant is never mistaken for the kubelet's.

A path is opened component by component, and no symbolic link is followed. NVML then gets the path
as a string, as NVIDIA documents it. The path keeps referring to the same directory: a cgroup file
system has no symbolic links and no rename, only root on the node creates and removes directories
down to a pod's, and the name of a pod's directory has a UID, which is never reused.
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
"""Maximum number of directories searched for the limiter's own cgroup."""
MOST_LEAVES: Final = 512
"""Maximum number of cgroups read below a pod's cgroup. A pod has at most 256 containers
(`TooComplex`), a sidecar and a sandbox, which are read first. A tenant can create any number
of cgroups below them."""
DEEPEST_LEAF: Final = 2
"""Depth of a container's cgroup below its pod's, including crun's cgroup `container` below it."""
DMEM: Final = "dmem"
_LONGEST_FILE: Final = 2**16
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW


@dataclass(frozen=True, slots=True)
class Leaf:
    """Cgroup below a pod's cgroup."""

    path: str
    number: int
    container: str
    """Container ID of 64 hex digits; empty if the name has none."""
    runs: bool


class NodeCgroups:
    """Cgroups below a mount; all paths are relative to the mount."""

    def __init__(self, mount: str, own_uid: str) -> None:
        """`own_uid` is the UID of the limiter's pod."""
        self._mount = mount
        self._own_uid = own_uid
        self.own_pod = ""
        """Path of the limiter's pod; empty until found. `own_leaf` is the path of its container."""
        self.own_leaf = ""
        self._kubepods = ""

    def find_own(self) -> str:
        """Find the limiter's own cgroup; return the reason of a failure, empty after success."""
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
        """Return the path of a pod's cgroup; empty if it does not exist."""
        paths = list_pod_directories(self._kubepods, uid) if self._kubepods else ()
        return next(filter(self.exists, paths), "")

    def exists(self, path: str) -> bool:
        """Return True if the cgroup exists."""
        try:
            os.close(self._open(path))
        except OSError:
            return False
        return True

    def leaves(self, pod: str) -> tuple[Leaf, ...]:
        """Return the cgroups below a pod's cgroup, nearest first; empty if the pod's is gone."""
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
        """Return the path of a cgroup for NVML; raises OSError if the cgroup does not exist."""
        os.close(self._open(path))
        return f"{self._mount}/{path}"

    def offers_dmem(self) -> bool:
        """Return True if the kernel has the dmem controller."""
        return DMEM in self._read("", "cgroup.controllers").split()

    def enable_dmem(self, path: str) -> None:
        """Enable the dmem controller for all cgroups below this one; raises OSError.

        Without effect on a kernel without dmem. Setting a limit then shows what the driver
        supports.
        """
        if not self.offers_dmem():
            return
        parts = path.split("/") if path else []
        for depth in range(len(parts) + 1):
            above = "/".join(parts[:depth])
            if DMEM not in self._read(above, "cgroup.subtree_control").split():
                self._write(above, "cgroup.subtree_control", f"+{DMEM}")

    def _holds_us(self, pod: str) -> bool:
        """Find the limiter's container below a pod; return False if it is not there."""
        me = str(os.getpid())
        inside = (leaf.path for leaf in self.leaves(pod))
        here = (item for item in inside if me in self._read(item, "cgroup.procs").split())
        found = next(here, "").removeprefix(f"{pod}/").partition("/")[0]
        self.own_leaf = f"{pod}/{found}" if found else ""
        return bool(found)

    def _runs(self, path: str) -> bool:
        return "populated 1" in self._read(path, "cgroup.events")

    def _directories(self, path: str) -> Iterator[tuple[str, str]]:
        """Yield path and name of directories below `path`, nearest first; skip those below pods."""
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
        """Return names and inode numbers of a directory's subdirectories; empty if it is gone."""
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
        """Open a directory below the mount, component by component; raises OSError."""
        descriptor = os.open(self._mount, _DIRECTORY)
        for part in path.split("/") if path else ():
            try:
                below = os.open(part, _DIRECTORY, dir_fd=descriptor)
            finally:
                os.close(descriptor)
            descriptor = below
        return descriptor

    def _read(self, path: str, file: str) -> str:
        """Return the content of a cgroup's file; empty if the file or the cgroup does not exist."""
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
        """Open a cgroup's file for the duration of a block; raises OSError."""
        at = self._open(path)
        try:
            descriptor = os.open(file, flags | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=at)
        finally:
            os.close(at)
        try:
            yield descriptor
        finally:
            os.close(descriptor)
