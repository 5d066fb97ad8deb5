"""Pod and container of a process, parsed from its cgroups.

The kubelet creates a cgroup per pod, and the runtime one per container below it. A container's own
child cgroups belong to the container, whatever their names are, so the first pod in a path counts.
Only root on the node can move a process to a cgroup above.

Sources: the kubelet's pkg/kubelet/cm/pod_container_manager_linux.go and cgroup_manager_linux.go
(the names), containerd, cri-o and cri-dockerd (the scopes), cgroup_namespaces(7), proc(5).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_UID: Final = (
    "[0-9a-f]{8}([-_])[0-9a-f]{4}{SEP}[0-9a-f]{4}{SEP}[0-9a-f]{4}{SEP}[0-9a-f]{12}|[0-9a-f]{32}"
).replace("{SEP}", r"\2")
_POD: Final = re.compile(rf"(?:.*-)?pod({_UID})(?:\.slice)?", re.DOTALL)
"""Regular expression that matches the name of a pod's cgroup. The UID of a static pod is a hash
without dashes. The systemd cgroup drivers write `_` for `-`."""

_ONLY_UID: Final = re.compile("[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}")
"""Regular expression that matches a UID as the API server writes it."""

_CONTAINER: Final = re.compile(r"(?:[a-z][a-z0-9-]*-)?([0-9a-f]{64})(?:\.scope)?")
_QUALITY: Final = re.compile(r"(?:[^/]*-)?(kubepods|burstable|besteffort)(?:\.slice)?")
"""Regular expression that matches the name of a cgroup between the kubelet's root and a pod."""
_QUALITIES: Final = ("burstable", "besteffort")
"""QoS classes with a separate cgroup. Guaranteed pods are directly below `kubepods`."""

_DELETED: Final = " (deleted)"


@dataclass(frozen=True, slots=True)
class ProcessOwner:
    """Pod and container of a process; both empty if it belongs to no pod."""

    pod: str
    """UID of the pod, as `comparable_uid` returns it."""
    container: str = ""
    """Container ID of 64 hex digits; empty in the pod's own cgroup."""


NO_POD: Final = ProcessOwner("")


def comparable_uid(uid: str) -> str:
    """Return a pod's UID in lower case, with `-` for `_`, for comparison.

    The API server's UIDs have this form; cgroup names of systemd do not. Dashes are kept: a static
    pod's UID has none, so it cannot be confused with another pod's.
    """
    return uid.lower().replace("_", "-")


def find_owner(cgroups: str, own_cgroups: str, own_uid: str) -> ProcessOwner:
    """Return the owner of a process, given its /proc/PID/cgroup, ours, and our pod's UID.

    "Our" refers to the calling program. Each hierarchy has a line: one with cgroup v2, several with
    v1. Our line decides how to read the process's line:

    | our line | its line | the process belongs to |
    | --- | --- | --- |
    | PREFIX, our `pod<uid>`, ... | PREFIX, ..., `pod<uid>`, ... | the first such pod after PREFIX |
    | | PREFIX without a pod after it | no pod |
    | | does not begin with PREFIX | no pod |
    | `/`: a separate cgroup namespace | `/`, or anything without `/..` before | our own pod |
    | | `/../x`, once up | our own pod |
    | | `/../../x`, twice or more | the first pod in x, if any |
    | anything else | any | not read: the owner is unknown |

    PREFIX is the path above our pod, without the kubelet's cgroups for QoS classes (`kubepods*`,
    `burstable`, `besteffort`), since other pods have other classes. It is empty on most nodes, the
    kubelet's `cgroupRoot` on others, and a long path if the node is itself a container.

    The container is the first name with 64 hex digits after the pod. If hierarchies name different
    pods, there is no owner. A process belongs to our pod only if all hierarchies say so, since
    every process is at the root of an unused hierarchy. Names of cgroups have no line breaks
    (cgroup_mkdir of the kernel).
    """
    ours, own = _lines(own_cgroups), comparable_uid(own_uid)
    read = [
        _parse_relative_path(path, own)
        if ours[hierarchy] == "/"
        else _parse_root_path(path, ours[hierarchy], own)
        for hierarchy, path in _lines(cgroups).items()
        if _is_known(ours.get(hierarchy), own)
    ]
    others = {place for place in read if place.pod not in ("", own)}
    if len({place.pod for place in others}) > 1:
        return NO_POD
    if not others:
        return ProcessOwner(own) if read and all(place.pod == own for place in read) else NO_POD
    containers = {place.container for place in others} - {""}
    return ProcessOwner(others.pop().pod, containers.pop() if len(containers) == 1 else "")


def parse_pod_uid(name: str) -> str:
    """Return the pod UID in a directory name, as `comparable_uid` does; empty if there is none."""
    found = _POD.fullmatch(name)
    return comparable_uid(found[1]) if found else ""


def parse_container_id(name: str) -> str:
    """Return the container ID of 64 hex digits in a directory name; empty if there is none."""
    found = _CONTAINER.fullmatch(name)
    return found[1] if found else ""


def find_kubepods(path: str, own_uid: str) -> str:
    """Return the kubelet's directory of all pods, given a path that names our own pod.

    It includes everything above, such as `cgroupRoot` or the cgroup of a node that is a container.
    The result is empty if the path does not name our pod, or the kubelet has no such directory
    (`cgroupsPerQOS: false`).
    """
    uids, own = _uids(path), comparable_uid(own_uid)
    if not own or own not in uids:
        return ""
    above = _parts(path)[: uids.index(own)]
    while above and (found := _QUALITY.fullmatch(above[-1])) and found[1] in _QUALITIES:
        above.pop()
    found = _QUALITY.fullmatch(above[-1]) if above else None
    return "/".join(above) if found and found[1] == "kubepods" else ""


def list_pod_directories(kubepods: str, uid: str) -> tuple[str, ...]:
    """Return the possible directories of a pod's cgroup, one per QoS class.

    Empty if `uid` is not a pod's UID. The kubelet's cgroup driver determines the names:

    | driver: kubelet's directory | guaranteed | burstable; best effort is similar |
    | --- | --- | --- |
    | systemd: `kubepods.slice` | `kubepods-pod<uid>.slice` | ... below `kubepods-burstable.slice` |
    | cgroupfs: `kubepods` | `pod<uid>` | `burstable/pod<uid>` |

    systemd's names repeat all names above them, and have `_` for `-` in a UID.
    """
    if not _ONLY_UID.fullmatch(uid):
        return ()
    name = kubepods.rpartition("/")[2]
    stem = name.removesuffix(".slice")
    if stem == name:
        below = (f"{kubepods}/{quality}" for quality in _QUALITIES)
        return tuple(f"{above}/pod{uid}" for above in (kubepods, *below))
    pod = f"pod{uid.replace('-', '_')}.slice"
    stems = (f"{stem}-{quality}" for quality in _QUALITIES)
    return (
        f"{kubepods}/{stem}-{pod}",
        *(f"{kubepods}/{stem}.slice/{stem}-{pod}" for stem in stems),
    )


def _lines(cgroups: str) -> dict[str, str]:
    """Return the path in each hierarchy, keyed by controllers; the key is empty for cgroup v2."""
    lines = (line.split(":", 2) for line in cgroups.split("\n"))
    return {parts[1]: parts[2] for parts in lines if len(parts) == 3}  # noqa: PLR2004 - proc(5)


def _is_known(our_path: str | None, own: str) -> bool:
    return our_path is not None and (our_path == "/" or own in _uids(our_path)) and own != ""


def _parse_root_path(path: str, our_path: str, own: str) -> ProcessOwner:
    prefix = _parts(our_path)[: _uids(our_path).index(own)]
    while prefix and _QUALITY.fullmatch(prefix[-1]):
        prefix.pop()
    parts = _parts(path)
    if parts[: len(prefix)] != prefix:
        return NO_POD
    return _first_pod(parts[len(prefix) :])


def _parse_relative_path(path: str, own: str) -> ProcessOwner:
    parts = _parts(path)
    ups = 0
    while parts[ups : ups + 1] == [".."]:
        ups += 1
    return ProcessOwner(own) if ups <= 1 else _first_pod(parts[ups:])


def _first_pod(parts: list[str]) -> ProcessOwner:
    for at, part in enumerate(parts):
        if uid := parse_pod_uid(part):
            return ProcessOwner(
                uid, next(filter(None, map(parse_container_id, parts[at + 1 :])), "")
            )
    return NO_POD


def _uids(path: str) -> list[str]:
    """Return the UID in each part of a path; an empty string for parts without one."""
    return [parse_pod_uid(part) for part in _parts(path)]


def _parts(path: str) -> list[str]:
    return path.removesuffix(_DELETED).strip("/").split("/")
