"""Which paths of its node a pod with VRAM may mount.

By their names alone: where a symbolic link on the node leads is not known at admission.
"""

from __future__ import annotations

import posixpath
from typing import Final

_STATE: Final = ("kubelet", "containerd", "containers", "docker", "cni", "etcd", "rancher", "k0s")
_HARMFUL: Final = (
    *("/dev", "/proc", "/sys", "/run", "/var/run", "/etc"),
    *(f"/var/lib/{name}" for name in _STATE),
)
_HARMLESS: Final = ("/dev/shm", "/dev/hugepages", "/etc/localtime")  # noqa: S108 - a node's paths


def may_mount(host_path: str, allowed: tuple[str, ...] | None) -> bool:
    """Say whether a rule's `hostPaths` let a path of the node in; None stands for Safe.

    | the path, normalised | Safe | a list |
    | --- | --- | --- |
    | /dev/shm, /dev/hugepages, /etc/localtime, and below | yes | where listed |
    | what leads to devices, container runtimes or the kubelet, and below | no | where listed |
    | a parent of such a path: /, /var, /var/lib | no | where listed |
    | any other | yes | where listed |

    A path is listed where it is one of the list, or below one.
    """
    path = posixpath.normpath(f"/{host_path.lstrip('/')}")
    if allowed is not None:
        return _is_below(path, allowed)
    if _is_below(path, _HARMLESS):
        return True
    return not _is_below(path, _HARMFUL) and not any(_is_below(one, (path,)) for one in _HARMFUL)


def _is_below(path: str, others: tuple[str, ...]) -> bool:
    return path in others or any(path.startswith(f"{other.rstrip('/')}/") for other in others)
