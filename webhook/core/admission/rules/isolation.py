"""Rules that keep a pod's processes under the sidecar's control and off the node."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

from webhook.core.admission.gate import is_gate
from webhook.core.admission.rules.case import Case
from webhook.core.admission.sidecar.injection import is_enforcer, is_enforcer_volume
from webhook.core.admission.sidecar.security_context import (
    ROOT_UID,
    container_user,
    read_security_field,
)
from webhook.core.formatting import shorten
from webhook.core.pod.fields import (
    Json,
    get_boolean,
    get_integer,
    get_object,
    get_objects,
    get_string,
    get_strings,
)
from webhook.core.pod.findings import WRITTEN_BY_ANOTHER, Finding, Reason, annotation_path, quote
from webhook.core.pod.views import Container, Pod
from webhook.core.policy.model import Isolation, Rule
from webhook.names import (
    ADMITTED_ANNOTATION,
    BINDING_ANNOTATIONS,
    CAP_BYTES_ENV,
    ENFORCER_COMMAND,
    ENFORCER_CONTAINER,
    GATE_PATH,
    GATE_VOLUME,
    GPU_MEMORY_ANNOTATION,
    MANAGED_LABEL,
    OUR_VOLUMES,
)

DEFAULT_CAPABILITIES: Final = frozenset(
    {
        *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD"),
        *("NET_BIND_SERVICE", "NET_RAW", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
    }
)
"""Capabilities in containerd of a container that sets none (`defaultUnixCaps` of package oci)."""
# Init container that JupyterHub's chart adds to notebook pods (KubeSpawner).
_OF_JUPYTERHUB: Final = "block-cloud-metadata"
_WITHOUT_IPTABLES: Final = (
    "write singleuser.cloudMetadata.blockWithIptables: false in the values of JupyterHub's chart"
)
# CRI-O's deprecated key, which CRI-O still reads, and the new key (pkg/annotations/v2).
_USER_NAMESPACES: Final = ("io.kubernetes.cri-o.userns-mode", "userns-mode.crio.io")
_NO_GPU: Final = f"pods in user namespaces do not start with a GPU; {WRITTEN_BY_ANOTHER}"
# Maximum number of allowed paths, and of command words, in a message.
_MAX_SHOWN: Final = 8
_STATE: Final = ("kubelet", "containerd", "containers", "docker", "cni", "etcd", "rancher", "k0s")
_HARMFUL: Final = (
    *("/dev/", "/proc/", "/sys/", "/run/", "/var/run/", "/etc/"),
    *(f"/var/lib/{name}/" for name in _STATE),
)
_HARMLESS: Final = ("/dev/shm/", "/dev/hugepages/", "/etc/localtime/")  # noqa: S108 - a node's paths
_MARKS: Final = (ADMITTED_ANNOTATION, *BINDING_ANNOTATIONS)


def privileged_containers(case: Case) -> Iterator[Finding]:
    """Rule: no container can reach a GPU that it was not given, or stop the sidecar.

    Fields: spec.[initContainers,containers][*].securityContext
    Allowed values: not privileged; the capabilities that runtimes add by default, and the rule's
    `capabilities`
    """
    for container in case.pod.containers:
        for path, what, capability in find_cap_bypasses(container, case.rule):
            if capability:
                yield Finding(Reason.CAPABILITY, path, _capability_advice(what, capability, case))
                continue
            do, end = "remove it", WRITTEN_BY_ANOTHER
            if container.name == _OF_JUPYTERHUB:
                do, end = _WITHOUT_IPTABLES, "JupyterHub's chart adds it to pods of notebooks"
            detail = f"{do}; {what}, and so reaches every GPU of its node; {end}"
            yield Finding(Reason.PRIVILEGED_CONTAINER, path, detail)


def _capability_advice(what: str, capability: str, case: Case) -> str:
    rule = case.rule
    do = "remove it"
    if capability == "SYS_PTRACE":  # kubectl debug --copy-to adds it without a profile
        do += f", or use {debug_profile(case.pod, rule)}"
    if capability != "ALL":
        do += ", or ask your platform team for a rule whose capabilities name it"
    return f"{do}; {what}, which rule {quote(rule.name)} does not allow; {WRITTEN_BY_ANOTHER}"


def host_ipc(case: Case) -> Iterator[Finding]:
    """Rule: a pod has its own IPC namespace.

    Fields: spec.hostIPC
    Allowed values: false or absent
    """
    if get_boolean(case.pod.spec, "hostIPC", "spec"):
        detail = (
            "remove hostIPC and mount an emptyDir with medium Memory at /dev/shm; with it the pod "
            "shares memory segments, and through them GPU memory, with others on the node"
        )
        yield Finding(Reason.HOST_IPC, "spec.hostIPC", detail)


def user_namespace(case: Case) -> Iterator[Finding]:
    """Rule: a pod is in the node's user namespace, in which runtimes can give it a GPU.

    Fields: spec.hostUsers, the annotations of CRI-O for user namespaces
    Allowed values: hostUsers true or absent; annotations absent or empty
    """
    pod = case.pod
    if get_boolean(pod.spec, "hostUsers", "spec") is False:
        yield Finding(Reason.USER_NAMESPACE, "spec.hostUsers", f"remove the line; {_NO_GPU}")
    for key in filter(pod.annotations.get, _USER_NAMESPACES):
        detail = f"remove the annotation; {_NO_GPU}"
        yield Finding(Reason.USER_NAMESPACE, annotation_path(key), detail)


def host_paths(case: Case) -> Iterator[Finding]:
    """Rule: no volume gives access to a GPU that a container was not given, or to the kubelet.

    Fields: spec.volumes[*].hostPath.path
    Allowed values: paths that the rule's `hostPaths` allow
    """
    pod, rule = case.pod, case.rule
    for index, volume in enumerate(get_objects(pod.spec, "volumes", "spec")):
        if volume.get("hostPath") is None:
            continue
        path = f"spec.volumes[{index}].hostPath"
        host_path = get_string(
            get_object(volume, "hostPath", f"spec.volumes[{index}]"), "path", path
        )
        if host_path and not may_mount(host_path, rule.host_paths):
            yield Finding(Reason.HOST_PATH, f"{path}.path", _host_path_advice(host_path, rule))


def may_mount(host_path: str, allowed: tuple[str, ...] | None) -> bool:
    """Return True if a rule's `hostPaths` allow a host path; None means Safe.

    Only the name counts: the target of a symbolic link on the node is unknown at admission.

    | the path, normalized | Safe | a list |
    | --- | --- | --- |
    | /dev/shm, /dev/hugepages, /etc/localtime, and below | yes | if listed |
    | a path to devices, container runtimes or the kubelet, and below | no | if listed |
    | a parent of such a path: /, /var, /var/lib | no | if listed |
    | any other | yes | if listed |

    A path is listed if it is in the list, or below a path in the list.
    """
    path = posixpath.normpath(f"/{host_path.lstrip('/')}").rstrip("/") + "/"
    if allowed is not None:
        return path.startswith(_folders(allowed))
    if path.startswith(_HARMLESS):
        return True
    return not path.startswith(_HARMFUL) and not any(
        harmful.startswith(path) for harmful in _HARMFUL
    )


@lru_cache(maxsize=64)
def _folders(paths: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{path.rstrip('/')}/" for path in paths)


def _host_path_advice(host_path: str, rule: Rule) -> str:
    instead = (
        f"mount one of {', '.join(rule.host_paths[:_MAX_SHOWN])}, or " if rule.host_paths else ""
    )
    why = f"rule {quote(rule.name)} does not allow {quote(host_path)}"
    if rule.host_paths is None:
        why = f"{quote(host_path)} may lead to the node's devices, container runtime or kubelet"
    ask = "ask your platform team for a rule whose hostPaths name it"
    return f"{instead}remove the volume and its mounts, or {ask}; {why}; {WRITTEN_BY_ANOTHER}"


def non_root(case: Case) -> Iterator[Finding]:
    """Rule: under `isolation: NonRoot` no container has the sidecar's user, or can become it.

    Fields: spec.securityContext, spec.[initContainers,containers][*].securityContext
    Allowed values: runAsNonRoot true, a runAsUser other than 0, allowPrivilegeEscalation false;
    anything under `isolation: Any`
    """
    if case.rule.isolation is not Isolation.NON_ROOT:
        return
    for container in case.pod.containers:
        for path, what, do in find_root_settings(container, case.pod):
            detail = f"{do}; {what}, which rule {quote(case.rule.name)} does not allow"
            yield Finding(Reason.PRIVILEGED_CONTAINER, path, detail)


def find_root_settings(container: Container, pod: Pod) -> Iterator[tuple[str, str, str]]:
    """Yield path, effect and advice for each setting by which a container may be root."""
    path = f"{container.path}.securityContext"
    if read_security_field(get_boolean, container, pod, "runAsNonRoot") is not True:
        what = f"container {quote(container.name)} may run as root"
        yield f"{path}.runAsNonRoot", what, "set runAsNonRoot: true"
    user = container_user(container, pod)
    if user is None or user == ROOT_UID:
        is_what = "has no runAsUser" if user is None else "runs as root"
        what = f"container {quote(container.name)} {is_what}"
        yield f"{path}.runAsUser", what, "set runAsUser to the image's user id, which is not 0"
    context = container.security_context()
    if get_boolean(context, "allowPrivilegeEscalation", path) is not False:
        what = f"container {quote(container.name)} may become root"
        yield f"{path}.allowPrivilegeEscalation", what, "set allowPrivilegeEscalation: false"


DEBUG_PROFILE: Final = "kubectl debug --profile=baseline"
"""Profile that works in every pod under `isolation: Any`: it sets nothing."""
_NON_ROOT_PROFILE: Final = "kubectl debug --profile=restricted"
"""Profile for `isolation: NonRoot`: it forbids root and sets no user."""


def debug_profile(pod: Pod, rule: Rule) -> str:
    """Return a profile of `kubectl debug` that works in a pod with VRAM.

    Source: k8s.io/kubectl/pkg/cmd/debug/profiles.go. `general`, the default, adds SYS_PTRACE.
    `sysadmin` is privileged. `netadmin` adds NET_ADMIN and NET_RAW, which a rule may not allow.
    `baseline` sets nothing. `restricted` sets all that `isolation: NonRoot` requires except a user,
    which comes from the pod or from a file for `--custom`.
    """
    if rule.isolation is not Isolation.NON_ROOT:
        return DEBUG_PROFILE
    context = get_object(pod.spec, "securityContext", "spec")
    if get_integer(context, "runAsUser", "spec.securityContext") not in {None, ROOT_UID}:
        return _NON_ROOT_PROFILE
    return f"{_NON_ROOT_PROFILE} --custom=FILE, with securityContext.runAsUser in FILE"


def find_cap_bypasses(
    container: Container, rule: Rule, allowed: frozenset[str] = DEFAULT_CAPABILITIES
) -> list[tuple[str, str, str]]:
    """Return path, effect and capability of each security setting that could defeat the cap.

    `given` and the rule's capabilities are allowed. As in container runtimes, case is ignored, and
    a capability may begin with `CAP_`.
    """
    context = container.security_context()
    found: list[tuple[str, str, str]] = []
    if not context:
        return found
    path = f"{container.path}.securityContext"
    if get_boolean(context, "privileged", path):
        what = f"container {quote(container.name)} is privileged"
        found.append((f"{path}.privileged", what, ""))
    capabilities = get_object(context, "capabilities", path)
    for index, name in enumerate(get_strings(capabilities, "add", f"{path}.capabilities")):
        bare = name.upper().removeprefix("CAP_")
        if bare not in allowed and bare not in rule.capabilities:
            what = f"container {quote(container.name)} adds the capability {shorten(bare, 64)}"
            found.append((f"{path}.capabilities.add[{index}]", what, bare))
    return found


def reserved_names(case: Case) -> Iterator[Finding]:
    """Rule: the names of the sidecar and of our volumes are reserved, and judged by content.

    Fields: spec.[initContainers,containers][*], spec.volumes[*]
    Allowed values: a container that runs the enforcer's command, in a pod that requests VRAM;
    emptyDirs as the sidecar's volumes. Only the gate's volume may be mounted, as translation does
    it in a pod that requests VRAM. Translation replaces all of these, and any volume with the name
    of the gate's.
    """
    pod = case.pod
    for container in pod.enforcers:
        if not (case.requests_vram and is_enforcer(container)):
            yield Finding(
                Reason.RESERVED_NAME, f"{container.path}.name", _foreign_enforcer_advice(container)
            )
    for index, volume in _find_our_names(pod.spec, "volumes", "spec"):
        if volume["name"] != GATE_VOLUME and not is_enforcer_volume(volume):
            detail = f"give the volume another name; {volume['name']} is reserved"
            yield Finding(Reason.RESERVED_NAME, f"spec.volumes[{index}].name", detail)
    for container in pod.containers:
        for path, mount in find_reserved_mounts(container):
            if mount["name"] != GATE_VOLUME or not (case.requests_vram and is_gate(mount)):
                detail = f"remove the mount; {reservation_reason(mount)}"
                yield Finding(Reason.RESERVED_NAME, path, detail)


def _foreign_enforcer_advice(container: Container) -> str:
    do = "give the container another name"
    command, arguments = (
        get_strings(container.raw, key, container.path) for key in ("command", "args")
    )
    run = [*command, *arguments]
    has_cap = any(entry["name"] == CAP_BYTES_ENV for entry in container.env())
    if run != [*ENFORCER_COMMAND] and has_cap:
        before, after = (quote(" ".join(words[:_MAX_SHOWN])) for words in (ENFORCER_COMMAND, run))
        return (
            f"{do}, or have the other webhook leave it out; its command changed from {before} to "
            f"{after}; {WRITTEN_BY_ANOTHER}"
        )
    return f"{do}; {ENFORCER_CONTAINER} is reserved"


def gate_path(case: Case) -> Iterator[Finding]:
    """Rule: a container with the gate has no other mount at the gate's path.

    Fields: spec.[initContainers,containers][*].volumeMounts[*].mountPath
    Allowed values: any path outside of /run/vram-gate; any path in containers without VRAM, and
    under rules whose containers have no gate
    """
    if not case.rule.gates_workload:
        return
    for container in case.pod.containers:
        if container.name not in case.demand.amounts:
            continue
        for index, mount in enumerate(get_objects(container.raw, "volumeMounts", container.path)):
            path = f"{container.path}.volumeMounts[{index}]"
            at = get_string(mount, "mountPath", path)
            # A cheap check before the path is normalized.
            if GATE_VOLUME in at and mount.get("name") != GATE_VOLUME and _is_at_gate(at):
                detail = (
                    f"mount {quote(get_string(mount, 'name', path))} at another path, such as "
                    f"/mnt; vramwarden mounts its volume {GATE_VOLUME} at {GATE_PATH}"
                )
                yield Finding(Reason.RESERVED_NAME, f"{path}.mountPath", detail)


def _is_at_gate(path: str) -> bool:
    # In most images /var/run is a link to /run.
    path = posixpath.normpath(f"/{path.lstrip('/')}").removeprefix("/var")
    return path == GATE_PATH or path.startswith(f"{GATE_PATH}/")


def reserved_marks(case: Case) -> Iterator[Finding]:
    """Rule: only pods that we admitted have our label and annotations.

    Fields: metadata.labels[vramwarden.io/managed], the annotations admitted, gpu, visible-devices,
    gpu-memory-fraction and gpu-waits
    Allowed values: absent in a pod without a demand; in a pod with one, those of a binding are
    absent after translation, which removes them
    """
    pod = case.pod
    marks: tuple[str, ...] = _MARKS
    paths = []
    if not case.requests_vram:
        paths = [f"metadata.labels[{MANAGED_LABEL}]"] if MANAGED_LABEL in pod.labels else []
        detail = (
            f"remove it, or ask with the annotation {GPU_MEMORY_ANNOTATION}; only vramwarden "
            "writes this, on pods that ask for VRAM"
        )
    else:
        marks = () if case.mutating else BINDING_ANNOTATIONS
        detail = (
            "remove the annotation; the GPU is chosen when the pod is bound to a node; "
            f"{WRITTEN_BY_ANOTHER}"
        )
    paths += [annotation_path(key) for key in marks if key in pod.annotations]
    for path in paths:
        yield Finding(Reason.RESERVED_NAME, path, detail)


def find_reserved_mounts(container: Container) -> list[tuple[str, Json]]:
    """Return each mount of a vramwarden volume with its path.

    Through such a mount a container could forge a heartbeat or bypass the gate.
    """
    ours = _find_our_names(container.raw, "volumeMounts", container.path)
    return [(f"{container.path}.volumeMounts[{index}].name", mount) for index, mount in ours]


def reservation_reason(mount: Json) -> str:
    """Return the reason why no other container may mount a vramwarden volume."""
    if mount["name"] == GATE_VOLUME:
        return f"the volume {GATE_VOLUME} keeps containers waiting until their pod has a GPU"
    return f"volumes called {mount['name']} are reserved for vramwarden's sidecar"


def _find_our_names(holder: Mapping[str, Any], key: str, path: str) -> list[tuple[int, Json]]:
    """Return the list entries that are named like a vramwarden volume, with their indices."""
    found = []
    for index, entry in enumerate(get_objects(holder, key, path)):
        name = entry.get("name")
        # For most entries only the name is read, and no path is built.
        if (type(name) is not str or name in OUR_VOLUMES) and get_string(
            entry, "name", path, f"{key}[{index}]"
        ):
            found.append((index, entry))
    return found
