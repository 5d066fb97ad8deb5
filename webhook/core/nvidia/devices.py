"""The other ways than variables by which containers are shown NVIDIA's GPUs.

Sources: NVIDIA Container Toolkit 1.20, the plugins for NRI and the modes of its runtime; the
Container Device Interface, "CDI device names".
"""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from webhook.core.pod.fields import Json

LIKE_INJECTORS: Final = "^(nvidia[.]cdi|cdi)"
"""Which keys API servers send us (RE2): these, and few others. It is short because its length times
that of all keys is what it costs there, of what one expression may."""
_CDI_KEYS: Final = ("nvidia.cdi.k8s.io", "cdi.k8s.io/")
# In `vendor.com/class=name` the vendor is nvidia.com or a domain below it. Wherever it stands: one
# reader of such values splits them at commas, the next reads YAML.
_NVIDIA_DEVICE: Final = re.compile(r"(?<![A-Za-z0-9_-])nvidia\.com/")

_MOUNTS_ROOT: Final = "/var/run/nvidia-container-devices"
# Quicker than to normalise the path of every mount.
_MOUNTS_NAME: Final = _MOUNTS_ROOT.rpartition("/")[2]


def cdi_keys(annotations: Mapping[str, str], before: Mapping[str, str]) -> Iterator[str]:
    """Yield the annotations by which a container runtime gives a pod NVIDIA's devices.

    Not those that it had `before`, with the same value.
    """
    for key, value in annotations.items():
        if key.startswith(_CDI_KEYS) and _NVIDIA_DEVICE.search(value) and before.get(key) != value:
            yield key


def device_mounts(mounts: Iterable[Json]) -> Iterator[int]:
    """Yield the index of each mount by whose path NVIDIA's runtime is told which GPUs to show.

    It compares the beginning of the cleaned path, a slash behind it or not.
    """
    for index, mount in enumerate(mounts):
        path = mount.get("mountPath")
        if type(path) is str and _MOUNTS_NAME in path and _chooses_devices(path):
            yield index


def _chooses_devices(mount_path: str) -> bool:
    return posixpath.normpath("/" + mount_path.lstrip("/")).startswith(_MOUNTS_ROOT)
