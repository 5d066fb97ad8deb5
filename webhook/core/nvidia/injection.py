"""Annotations and mounts that give containers NVIDIA's GPUs without environment variables.

Sources: NVIDIA Container Toolkit 1.20, the plugins for NRI and the modes of its runtime; the
Container Device Interface, "CDI device names"; containerd/nri, plugins/device-injector;
GoogleCloudPlatform/container-engine-accelerators, nri_device_injector; cri-o, pkg/annotations/v2.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from webhook.core.bounds import MAX_INJECTING_ANNOTATIONS, MAX_TEXT_LENGTH
from webhook.core.pod.fields import Json


class ValueKind(Enum):
    """Kind of the values that an injector's annotation lists."""

    CDI = auto()
    """Names of the Container Device Interface: `vendor.com/class=name`."""
    DEVICES = auto()
    """Device nodes, by path or by number."""
    MOUNTS = auto()


# Kind of the value, and True if the injector parses it as YAML.
INJECTORS: Final[Mapping[str, tuple[ValueKind, bool]]] = {
    "nvidia.cdi.k8s.io": (ValueKind.CDI, False),
    "cdi.k8s.io": (ValueKind.CDI, False),
    "cdi-devices.nri.io": (ValueKind.CDI, True),
    "cdi-devices.noderesource.dev": (ValueKind.CDI, True),
    "devices.gke.io": (ValueKind.DEVICES, True),
    "devices.nri.io": (ValueKind.DEVICES, True),
    "devices.noderesource.dev": (ValueKind.DEVICES, True),
    "io.kubernetes.cri-o.Devices": (ValueKind.DEVICES, False),
    "devices.crio.io": (ValueKind.DEVICES, False),
    "mounts.nri.io": (ValueKind.MOUNTS, True),
    "mounts.noderesource.dev": (ValueKind.MOUNTS, True),
}
"""Annotations by which runtimes and NRI plugins inject devices, keyed by the whole annotation
key or its prefix before the slash."""
LIKE_INJECTORS: Final = "^(nvidia[.]cdi|cdi|devices[.]|mounts[.]|io[.]kubernetes[.]cri-o[.]D)"
"""RE2 pattern of the annotation keys that API servers send to the webhook: those of all injectors,
and few others.

It is short because the API server charges its length times the length of all keys against the cost
limit of one expression.
"""


WHOLE_GPU_KIND: Final = "gpu"
# CDI classes that show no GPU, like the variables NVIDIA_GDS, NVIDIA_MOFED and NVIDIA_GDRCOPY.
_WITHOUT_GPU: Final = frozenset({"gds", "mofed", "gdrcopy"})
# In `vendor.com/class=name` the vendor is nvidia.com or a subdomain. The vendor is searched for
# anywhere in the value, since some injectors split at commas and others parse YAML.
_NVIDIA_DEVICE: Final = re.compile(
    r"(?<![A-Za-z0-9_-])nvidia\.com/(?:([A-Za-z0-9_.-]+)=([A-Za-z0-9_.:-]+))?"
)
# Names of GPUs for virtual machines in NVIDIA's sandbox device plugin: pgpu, GH100_H100_PCIE.
_PASSED_THROUGH: Final = re.compile(r"pgpu|[A-Z].*")
# Characters by which YAML hides a string from a search: escapes, tags (`!!binary`), directives.
_HIDING: Final = re.compile(r"[\\!%]")
_APART: Final = re.compile(r"[\s\"',:\[\]{}]+")
_CARD: Final = re.compile(r"/dev/nvidia[0-9]+")
_BESIDE_CARD: Final = re.compile(r"/dev/nvidia(ctl|-uvm.*|-caps.*)")
# Injectors compare names of fields case-insensitively.
_MAJOR: Final = re.compile("major", re.IGNORECASE)
_PLAIN_MAJOR: Final = re.compile(
    r"major[\"']?\s*:\s*(0|[1-9][0-9]*)\s*(?:[,}#\n]|$)", re.IGNORECASE
)
_NVIDIAS_MAJOR: Final = "195"
_RENDERERS_MAJOR: Final = "226"
_SOURCE: Final = re.compile(r"(?<![\w./-])source(?![\w./-])", re.IGNORECASE)
_PLAIN_SOURCE: Final = re.compile(
    r"(?<![\w./-])source[\"']?\s*:\s*[\"']?(/[\w./@+-]*)[\"']?(?=[\s,}]|$)", re.IGNORECASE
)
_TYPE: Final = re.compile(r"(?<![\w./-])type(?![\w./-])", re.IGNORECASE)
_BIND: Final = re.compile(
    r"(?<![\w./-])type[\"']?\s*:\s*[\"']?(?:bind|none)(?![\w./-])", re.IGNORECASE
)

_MOUNTS_ROOT: Final = "/var/run/nvidia-container-devices"
# Searching for the name is faster than normalizing the path of every mount.
_MOUNTS_NAME: Final = _MOUNTS_ROOT.rpartition("/")[2]

SHOWS_UNCOUNTED: Final = "it shows GPUs that nobody accounts for"
UNCOUNTED: Final = f"remove it; {SHOWS_UNCOUNTED}"
_HIDDEN: Final = "write it without backslash, ! and %; with these it may name any device"


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectedDevices:
    """Devices and mounts in an injector's annotation that matter for GPUs."""

    cards: frozenset[str] = frozenset()
    """Names or paths of single whole GPUs."""
    control_devices: bool = False
    """True if it has devices that are useless without a GPU, such as /dev/nvidiactl."""
    passthrough: bool = False
    """True if it has GPUs for virtual machines, which no driver of the node uses."""
    renders: bool = False
    """True if it has devices for rendering and transcoding, of any vendor."""
    mounted_paths: tuple[str, ...] = ()
    """Paths of the node that are mounted."""
    violation: str = ""
    """Remedy for a value that no resource of the pod justifies; empty if there is none."""
    unreadable_mounts: str = ""
    """Remedy for mounts that cannot be read; empty if all can be read."""

    @property
    def shows_gpus(self) -> bool:
        """True if it shows NVIDIA's GPUs, whether or not the pod may have them."""
        return bool(self.cards or self.control_devices or self.passthrough or self.violation)


_UNREAD: Final = InjectedDevices(
    violation="remove some annotations that inject devices; at most "
    f"{MAX_INJECTING_ANNOTATIONS} are read, with {MAX_TEXT_LENGTH} characters in all"
)


def read_injections(
    annotations: Mapping[str, str], before: Mapping[str, str]
) -> Iterator[tuple[str, InjectedDevices]]:
    """Yield each annotation that gives a pod devices, with the devices.

    Annotations with the same value in `before` are skipped. Values beyond the bounds are not
    parsed.
    """
    left, count = MAX_TEXT_LENGTH, 0
    for key, value in annotations.items():
        injector = INJECTORS.get(key.partition("/")[0])
        if injector is None or before.get(key) == value:
            continue
        left -= len(value)
        count += 1
        if left < 0 or count > MAX_INJECTING_ANNOTATIONS:
            yield key, _UNREAD
        else:
            yield key, _named(*injector, value)


def _named(names: ValueKind, is_yaml: bool, value: str) -> InjectedDevices:
    if is_yaml and _HIDING.search(value):
        return InjectedDevices(violation=_HIDDEN)
    if names is ValueKind.CDI:
        return _named_by_cdi(value)
    if names is ValueKind.DEVICES:
        return _named_by_paths(value)
    if _MOUNTS_NAME in value:
        return InjectedDevices(violation=f"remove it; a mount at {_MOUNTS_ROOT} chooses GPUs")
    mounted_paths = tuple(_PLAIN_SOURCE.findall(value))
    if ".." in value or len(mounted_paths) != len(_SOURCE.findall(value)):
        unreadable_mounts = "write `source: /path` for each mount; a source cannot be read"
    elif len(_BIND.findall(value)) != len(_TYPE.findall(value)):
        unreadable_mounts = "write `type: bind` for each mount; no other type is judged"
    else:
        unreadable_mounts = ""
    return InjectedDevices(mounted_paths=mounted_paths, unreadable_mounts=unreadable_mounts)


def _named_by_cdi(value: str) -> InjectedDevices:
    cards, passthrough = set(), False
    for found in _NVIDIA_DEVICE.finditer(value):
        kind, name = found[1], found[2]
        if kind in _WITHOUT_GPU:
            continue
        if kind == WHOLE_GPU_KIND and name != "all" and ":" not in name and name[:4] != "MIG-":
            cards.add(found[0])
        elif kind and name != "all" and _PASSED_THROUGH.fullmatch(kind):
            passthrough = True
        else:
            return InjectedDevices(violation=UNCOUNTED)
    return InjectedDevices(cards=frozenset(cards), passthrough=passthrough)


def _named_by_paths(value: str) -> InjectedDevices:
    majors = _PLAIN_MAJOR.findall(value)
    if len(majors) != len(_MAJOR.findall(value)):
        return InjectedDevices(
            violation="write each `major` as a plain number, e.g. `major: 10`; one cannot be read"
        )
    cards, beside, renders = set(), False, _RENDERERS_MAJOR in majors
    violation = UNCOUNTED if _NVIDIAS_MAJOR in majors else ""
    for text in _APART.split(value):
        if "nvidia" not in text and "char" not in text and "dri" not in text:
            continue
        path = posixpath.normpath(f"/{text.lstrip('/')}")
        renders = renders or "/dri/" in f"{path}/"
        if text.startswith("/") and _CARD.fullmatch(path):
            cards.add(path)
        elif text.startswith("/") and _BESIDE_CARD.fullmatch(path):
            beside = True
        elif "nvidia" in path or "/char/" in f"{path}/":
            violation = UNCOUNTED
    return InjectedDevices(
        cards=frozenset(cards), control_devices=beside, renders=renders, violation=violation
    )


def is_passthrough(resource: str) -> bool:
    """Return True if a resource is a GPU for a virtual machine (Kata)."""
    domain, _, name = resource.partition("/")
    return domain == "nvidia.com" and _PASSED_THROUGH.fullmatch(name) is not None


def find_device_mounts(mounts: Iterable[Json]) -> Iterator[int]:
    """Yield the index of each mount whose path selects GPUs for NVIDIA's runtime.

    The runtime compares the prefix of the cleaned path, with or without a slash after it.
    """
    for index, mount in enumerate(mounts):
        path = mount.get("mountPath")
        if (
            type(path) is str
            and _MOUNTS_NAME in path
            and posixpath.normpath("/" + path.lstrip("/")).startswith(_MOUNTS_ROOT)
        ):
            yield index
