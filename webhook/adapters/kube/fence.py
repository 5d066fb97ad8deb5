"""The ConfigMap that all replicas write: the rules that the fence reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from webhook.adapters.kube.bounded_json import Json
from webhook.adapters.kube.certificates import LABELS
from webhook.adapters.kube.client import Kube, core_path
from webhook.adapters.kube.follow import Collection

CONFIG_MAP: Final = "vramwarden-fence"
_LABELS: Final = {**LABELS, "app.kubernetes.io/component": "fence"}


class FenceApi:
    """The fence's ConfigMap; every method raises KubeError."""

    def __init__(self, kube: Kube, namespace: str) -> None:
        self._kube = kube
        self.now_s = kube.now_s
        self._config_maps = core_path("namespaces", namespace, "configmaps")

    def read(self) -> Json | None:
        """Read the ConfigMap; None where it does not exist."""
        return self._kube.find(f"{self._config_maps}/{CONFIG_MAP}")

    def write(self, data: Mapping[str, str], found: Json | None) -> None:
        """Set these keys, unless somebody wrote since `found` was read; other keys stay.

        Raises KubeError, `conflict` where somebody did.
        """
        metadata: Json = {"name": CONFIG_MAP, "labels": _LABELS}
        body: Json = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
        if found is None:
            self._kube.create(self._config_maps, {**body, "data": dict(data)})
            return
        metadata["resourceVersion"] = found["metadata"]["resourceVersion"]
        body["data"] = {**(found.get("data") or {}), **data}
        self._kube.replace(f"{self._config_maps}/{CONFIG_MAP}", body)

    def followed(self) -> Collection[None]:
        """Return the ConfigMap for `follow`, which then reports that it changed, not how."""
        return Collection(
            kube=self._kube, path=self._config_maps, project=lambda _found: None, name=CONFIG_MAP
        )
