"""VRAMPolicy objects: policies beside those of the folder, their status, the last good set.

Rights: get, list, watch on `vrampolicies`, patch on `vrampolicies/status`; in our namespace get on
the ConfigMap `vramwarden-policy-objects`.
"""

from __future__ import annotations

import json
import zlib
from base64 import b64decode, b64encode
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import orjson

from webhook.adapters.bounds import MOST_POLICY_BYTES
from webhook.adapters.kube.client import joined
from webhook.adapters.kube.follow import Collection
from webhook.core.policy.fence import seal_age_s
from webhook.names import SEEING_API_VERSION, VRAM_POLICIES_PATH, VRAM_POLICY_KIND

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from webhook.adapters.kube.client import Json, Kube

LAST_GOOD: Final = "vramwarden-policy-objects"
"""The ConfigMap with the objects of the last set that was in force."""
_KEY: Final = "objects.v1"
"""Of its `data`; 0.2.0 had it in `binaryData`."""
_MOST_LAST_GOOD_BYTES: Final = 4 * 2**20
"""Of the last good set, unpacked: JSON in JSON, in which each quote is two characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPolicy:
    """An object as it is stored."""

    name: str
    uid: str
    version: str
    """Its `resourceVersion`."""
    generation: int
    data: bytes
    """What somebody wrote, as JSON: equal for equal content, in every replica."""
    status: Mapping[str, Any]


class PoliciesApi:
    """The API server as far as policies are concerned; every method raises KubeError."""

    def __init__(self, kube: Kube, namespace: str) -> None:
        """Send no request yet; the last good set is kept in `namespace`, if it is not empty."""
        self._kube = kube
        self.now_s = kube.now_s
        self._namespace = namespace
        self._config_maps = joined("namespaces", namespace, "configmaps")
        self.all = Collection(kube=kube, path=VRAM_POLICIES_PATH, keep=read_stored)
        """For `follow`."""

    def read(self) -> list[StoredPolicy]:
        """Read all of them."""
        return self._kube.list_all(VRAM_POLICIES_PATH, read_stored)[0]

    def write_status(self, stored: StoredPolicy, status: Json) -> StoredPolicy:
        """Write a status, unless somebody wrote the object since; return it as it is stored."""
        body = {"metadata": {"resourceVersion": stored.version}, "status": status}
        path = f"{VRAM_POLICIES_PATH}/{quote(stored.name, safe='')}/status"
        return read_stored(self._kube.merge(path, body))

    def last_good(self, key: bytes | None = None) -> list[tuple[str, bytes]] | None:
        """Return names and contents of the last good set; None where nothing readable is kept.

        With a key, also where no replica sealed it with that one: what is to be in force then is
        not what somebody stored with the webhook's token.
        """
        if not self._namespace:
            return None
        found = self._kube.find(f"{self._config_maps}/{LAST_GOOD}") or {}
        data = found.get("data") or {}
        if key is not None and seal_age_s(data, (_KEY,), key, 0.0) == inf:
            return None
        return _last_good({**(found.get("binaryData") or {}), **data})


def read_stored(found: Json) -> StoredPolicy:
    """Read an object; of one that is too large, its name and that it is."""
    metadata = found.get("metadata") or {}
    name, status = str(metadata.get("name")), found.get("status")
    written: Json = {"apiVersion": SEEING_API_VERSION, "kind": VRAM_POLICY_KIND}
    written |= {"metadata": {"name": name}, "spec": found.get("spec")}
    return StoredPolicy(
        name=name,
        uid=str(metadata.get("uid")),
        version=str(metadata.get("resourceVersion")),
        generation=int(metadata.get("generation") or 0),
        data=_as_json(written)[: MOST_POLICY_BYTES + 1],
        status=status if isinstance(status, dict) else {},
    )


def _as_json(written: Json) -> bytes:
    """Write an object as JSON, whatever it holds: one that fails would hide all the others.

    The schema leaves examples' pods open: in them anything nests as deep as its author likes, and
    numbers have more than 64 bits. Of such a number orjson makes a float, and so do we: a watch is
    read by it, and a list is not.
    """
    for made in (lambda: written, lambda: orjson.loads(json.dumps(written))):
        with suppress(TypeError, ValueError, RecursionError):
            return orjson.dumps(made(), option=orjson.OPT_SORT_KEYS)
    return orjson.dumps({**written, "spec": "cannot be read: it is nested too deeply"})


def last_good_data(objects: Iterable[tuple[str, bytes]]) -> dict[str, str]:
    """Return the `data` that keeps a set for replicas that start beside an invalid object."""
    texts = [[name, data.decode()] for name, data in sorted(objects)]
    return {_KEY: b64encode(zlib.compress(orjson.dumps(texts), 9)).decode()}


def _last_good(data: Mapping[str, str]) -> list[tuple[str, bytes]] | None:
    try:
        packed = b64decode(data[_KEY])
        unpacked = zlib.decompressobj().decompress(packed, _MOST_LAST_GOOD_BYTES)
        return [(str(name), str(data).encode()) for name, data in orjson.loads(unpacked)]
    except (LookupError, ValueError, TypeError, zlib.error):
        return None
