"""The annotation `gpu-memory`: one amount, or a list of amounts by container."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import get_close_matches
from itertools import filterfalse, islice
from typing import Final, NamedTuple

from webhook.core.bounds import MAX_DEMAND_FINDINGS, MAX_WORD_LENGTH
from webhook.core.formatting import shorten
from webhook.core.pod.findings import Finding, Reason, annotation_path, quote
from webhook.core.pod.quantity import (
    QuantityError,
    QuantityTooSmallError,
    parse_vram,
    parse_vram_resource,
)
from webhook.core.pod.views import Pod
from webhook.names import (
    ADMITTED_ANNOTATION,
    DEFAULT_CONTAINER_ANNOTATION,
    GPU_MEMORY_ANNOTATION,
    MAX_LABEL_LENGTH,
    VRAM_RESOURCE,
)

MEMORY_PATH: Final = annotation_path(GPU_MEMORY_ANNOTATION)
_SEPARATED_OTHERWISE: Final = re.compile("[:;]|=[^,=]*=")
"""Regular expression that matches a wrong separator. Names and sizes contain no `:` or `;`."""
_COMMA: Final = re.compile("(?<![0-9]),|,(?![0-9]+ *[A-Za-z]* *(?:,|$))")
"""Regular expression that matches a comma between list entries, but not a decimal comma."""
_WITH_DECIMALS: Final = re.compile("[0-9.]*,[0-9,.]+ *[A-Za-z]*")
_PLAIN: Final = re.compile(r"[0-9A-Za-z.,/%+-]{1,64}")
_SHOWN_NAMES: Final = 10
_MOST_COMPARED: Final = 2
"""Maximum number of unknown names that are compared with known names, which takes time."""
_OF_DEVICE_PLUGIN: Final = "nvidia.com/"

HELPER_CONTAINERS: Final = {
    # service meshes
    "istio-proxy": "Istio",
    "linkerd-proxy": "Linkerd",
    "consul-dataplane": "Consul",
    "envoy-sidecar": "Consul before 1.0",
    "kuma-sidecar": "Kuma, Kong Mesh",
    "envoy": "AWS App Mesh, Open Service Mesh",
    "xray-daemon": "AWS X-Ray",
    # storage
    "gke-gcsfuse-sidecar": "Cloud Storage FUSE",
    "fluid-fuse": "Fluid",
    "fuse-sidecar": "home-made injectors of FUSE mounts",
    "jfs-mount": "JuiceFS",
    "git-sync": "git-sync",
    # databases, identities and secrets
    "cloud-sql-proxy": "Cloud SQL",
    "cloudsql-proxy": "Cloud SQL",
    "alloydb-auth-proxy": "AlloyDB",
    "vault-agent": "Vault",
    "azwi-proxy": "Azure Workload Identity",
    # requests
    "daprd": "Dapr",
    "queue-proxy": "Knative",
    "kube-rbac-proxy": "kube-rbac-proxy",
    "oauth-proxy": "OpenShift",
    "oauth2-proxy": "oauth2-proxy",
    "traffic-agent": "Telepresence",
    # logs, metrics and traces
    "datadog-agent-injected": "Datadog",
    "datadog-agent": "Datadog",
    "otc-container": "OpenTelemetry operator",
    "otel-collector": "OpenTelemetry",
    "jaeger-agent": "Jaeger operator",
    "cloudwatch-agent": "Amazon CloudWatch",
    "fluent-bit": "Fluent Bit",
    "fluentd": "Fluentd",
    "filebeat": "Filebeat",
    "promtail": "Promtail",
    "metrics-logger-and-collector": "Katib",
    # workflows and continuous integration
    "wait": "Argo Workflows",
    "airflow-xcom-sidecar": "Airflow",
    "autoscaler": "KubeRay",
    "jnlp": "Jenkins",
}
"""Products, keyed by the name of the container that each product adds to pods.

The names are from the products' source code. Such a container only gets VRAM if the annotation
names it or it has an explicit amount. Names that a user's program may have, such as `nginx`,
`agent` or `server`, are left out.
"""
_NUMBER: Final = re.compile("-[0-9]{1,3}$")
"""Regular expression that matches the number that an injector appends, as in `fluid-fuse-0`."""


class Gap(NamedTuple):
    """Missing or malformed amount for which the message suggests another."""

    reason: Reason
    path: str
    sentence: str
    """Message without the suggestion."""
    container: str
    """Container that the amount is for; empty if there is none."""
    error: QuantityError | None = None
    """Parse error of a malformed amount; None if the amount is missing."""
    where: str = ""
    """Text after the suggestion if the value belongs in several fields."""


Faults = list[Finding | Gap]


def read_memory(pod: Pod, memory: str, faults: Faults) -> dict[str, int]:
    """Return the valid amounts of the annotation `gpu-memory`, in bytes, keyed by container."""
    if _SEPARATED_OTHERWISE.search(memory):
        wrong = "is not read as a list; separate entries with a comma, name=size"
    elif "=" in memory:
        return _read_list(pod, memory, faults)
    elif "," in memory and not _WITH_DECIMALS.fullmatch(memory):
        wrong = "is a list without names; write name=size for each container"
    else:
        name = find_default_container(pod, faults)
        amount_bytes = read_amount(memory, MEMORY_PATH, name, faults)
        return {name: amount_bytes} if amount_bytes and name else {}
    faults.append(_list_gap(pod, f"{quote(memory)} {wrong}"))
    return {}


def _list_gap(pod: Pod, sentence: str) -> Gap:
    return Gap(Reason.INVALID_QUANTITY, MEMORY_PATH, sentence, find_default_container(pod, []))


def _read_list(pod: Pod, memory: str, faults: Faults) -> dict[str, int]:
    known = dict.fromkeys(container.name for container in pod.containers)
    entries = [
        (entry, *(part.strip(" ") for part in entry.partition("=")))
        for entry in _COMMA.split(memory)
    ]
    listed = {name for _, name, *_ in entries}
    free = [name for name in known if name not in listed]
    amounts: dict[str, int] = {}
    for entry, name, equals, size in entries:
        if len(faults) >= MAX_DEMAND_FINDINGS:
            break
        prefix = f"{shorten(name, MAX_WORD_LENGTH)}="
        if not equals or not name:
            faults.append(_list_gap(pod, f"the entry {quote(entry)} is not of the form name=size"))
        elif name not in known:
            near = _find_similar(name, free) if len(faults) < _MOST_COMPARED else ""
            sentence = _describe_unknown(name, known, near) + ("" if free else "; remove the entry")
            faults.append(Finding(Reason.UNKNOWN_CONTAINER, MEMORY_PATH, sentence))
            if free:
                other = near or free[0]
                free.remove(other)
                amounts[other] = read_amount(size, MEMORY_PATH, other, faults, prefix)
        elif name in amounts:
            sentence = f"container {quote(name)} stands twice in the list; keep one entry"
            faults.append(Finding(Reason.INVALID_QUANTITY, MEMORY_PATH, sentence))
        else:
            amounts[name] = read_amount(size, MEMORY_PATH, name, faults, prefix)
    return {name: amount_bytes for name, amount_bytes in amounts.items() if amount_bytes}


def read_amount(text: str, path: str, container: str, faults: Faults, prefix: str = "") -> int:
    """Return an amount in bytes. Return 0 and add a fault if the amount is malformed.

    An amount in the annotation (path MEMORY_PATH) is rounded up to a MiB.
    """
    try:
        return parse_vram(text) if path == MEMORY_PATH else parse_vram_resource(text)
    except QuantityError as error:
        too_small = isinstance(error, QuantityTooSmallError)
        reason = Reason.TOO_SMALL if too_small else Reason.INVALID_QUANTITY
        shown = prefix + (text if _PLAIN.fullmatch(text) else quote(text))
        faults.append(Gap(reason, path, shown, container, error))
        return 0


def find_default_container(pod: Pod, faults: Faults) -> str:
    """Return the container that gets a single amount, or an empty string.

    | first one that exists | container |
    | --- | --- |
    | the annotation `kubectl.kubernetes.io/default-container` | the one that it names |
    | exactly one container that already has VRAM | that one |
    | a container in spec.containers that is not a known helper | the first of them |
    | any container in spec.containers | the first |

    If the named container does not exist, add a fault and ignore the annotation.
    """
    found = next(iter(default_candidates(pod)), "")
    named = pod.annotations.get(DEFAULT_CONTAINER_ANNOTATION)
    if named is None and found:
        return found
    if named is None:
        path, sentence = "spec.containers", "the pod has no container that could get the VRAM"
    else:
        known = dict.fromkeys(container.name for container in pod.containers)
        if named in known:
            return named
        path = annotation_path(DEFAULT_CONTAINER_ANNOTATION)
        sentence = _describe_unknown(named, known, _find_similar(named, known))
    faults.append(Finding(Reason.UNKNOWN_CONTAINER, path, sentence))
    return found


def default_candidates(pod: Pod) -> list[str]:
    """Return the candidates for a single amount. The first candidate is the default."""
    having = containers_with_vram(pod)
    if len(having) == 1:
        return having
    apps = [container.name for container in pod.containers if container.field == "containers"]
    return [*filterfalse(is_helper_container, apps)] or apps


def containers_with_vram(pod: Pod) -> list[str]:
    """Return the containers that already have VRAM.

    In a translated pod, a resource of NVIDIA's device plugin may replace VRAM.
    """
    having = _containers_requesting(pod, VRAM_RESOURCE.__eq__)
    if not having and ADMITTED_ANNOTATION in pod.annotations:
        return _containers_requesting(pod, lambda resource: resource.startswith(_OF_DEVICE_PLUGIN))
    return having


def _containers_requesting(pod: Pod, is_wanted: Callable[[str], bool]) -> list[str]:
    return [
        container.name
        for container in pod.containers
        if any(any(map(is_wanted, container.resources(kind))) for kind in ("limits", "requests"))
    ]


def is_helper_container(name: str) -> bool:
    """Return True if a container of this name is a known helper."""
    return name in HELPER_CONTAINERS or _NUMBER.sub("", name) in HELPER_CONTAINERS


def ambiguous_containers(pod: Pod) -> list[str]:
    """Return the candidates for a single amount if there are several and the pod names none."""
    found = [] if DEFAULT_CONTAINER_ANNOTATION in pod.annotations else default_candidates(pod)
    return found if len(found) > 1 else []


def _describe_unknown(name: str, known: Collection[str], nearest: str) -> str:
    shown = (shorten(name, MAX_WORD_LENGTH) for name in islice(known, _SHOWN_NAMES))
    have = ", ".join(shown) + ", ..." * (len(known) > _SHOWN_NAMES)
    write = f"write {nearest} in place of {name}; " if nearest else ""
    return f"{write}the pod has no container {quote(name)}; it has {have or 'none'}"


def _find_similar(name: str, names: Iterable[str]) -> str:
    """Return the known name that was probably meant, or an empty string."""
    compared = [name for name in islice(names, _SHOWN_NAMES) if len(name) <= MAX_LABEL_LENGTH]
    return next(iter(get_close_matches(name[:MAX_LABEL_LENGTH], compared, n=1)), "")


def annotation_value(pod: Pod, amounts: Mapping[str, str]) -> str:
    """Return the annotation's value: a single amount if unambiguous, otherwise a list."""
    if [*amounts] == [find_default_container(pod, [])] and not ambiguous_containers(pod):
        return next(iter(amounts.values()))
    return ", ".join(f"{name}={amount}" for name, amount in amounts.items())


def annotation_value_for(pod: Pod, name: str, value: str) -> str:
    """Return the annotation's value; a single amount is for `name` or the default container."""
    return (
        value
        if "=" in value
        else annotation_value(pod, {name or find_default_container(pod, []): value})
    )
