"""Objects of a release that all replicas write: webhook configurations, and the fence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, urlsplit

from webhook.adapters.kube.bounded_json import Json
from webhook.adapters.kube.certificates import KINDS, LABELS
from webhook.adapters.kube.client import Kube, core_path
from webhook.adapters.kube.follow import Collection

BIND_WEBHOOK: Final = "bind.vramwarden.io"


@dataclass(frozen=True, slots=True, kw_only=True)
class BindRegistration:
    """Registration of /bind in one webhook configuration."""

    kind: str
    name: str
    version: str
    bind: str | None
    """Path of the bind webhook; empty for none, None if the configuration has no bind webhook."""
    url: str
    """URL of the bind webhook; empty if the API server calls it by a Service."""
    namespace: str
    """Namespace of the Service; empty if the API server calls webhooks by URL."""
    owned: bool
    """True if the namespace owns the configuration."""

    @property
    def title(self) -> str:
        """Kind and name."""
        return f"{self.kind} {self.name}"


class RegistrationApi:
    """Access to the webhook configurations of one name and both kinds; methods raise KubeError."""

    def __init__(self, kube: Kube, name: str) -> None:
        self._kube = kube
        self._name = name

    def read(self) -> tuple[BindRegistration, ...]:
        """Return the existing configurations."""
        found = ((kind, self._kube.find(self._path(kind))) for kind in KINDS)
        return tuple(_read_registration(kind, raw) for kind, raw in found if raw is not None)

    def write_path(self, configuration: BindRegistration, path: str) -> None:
        """Set the path of the bind webhook; raises a conflict if the configuration has changed."""
        if configuration.url:
            target: Json = {"url": urlsplit(configuration.url)._replace(path=path).geturl()}
        else:
            target = {"service": {"path": path}}
        self._patch(
            configuration, {"webhooks": [{"name": BIND_WEBHOOK, "clientConfig": target}]}, {}
        )

    def write_owner(self, configuration: BindRegistration) -> None:
        """Set the namespace as owner, so that the configuration is garbage-collected with it.

        A namespace can be the owner since both are cluster-scoped. Raises a conflict if the
        configuration has changed.
        """
        uid = self._kube.read(core_path("namespaces", configuration.namespace))["metadata"]["uid"]
        owner = {
            "apiVersion": "v1",
            "kind": "Namespace",
            "name": configuration.namespace,
            "uid": uid,
        }
        self._patch(configuration, {}, {"ownerReferences": [owner]})

    def watched_object(self) -> Collection[None]:
        """Return a collection for `follow` that reports changes of the configuration."""
        path = KINDS["MutatingWebhookConfiguration"]
        return Collection(kube=self._kube, path=path, project=lambda _found: None, name=self._name)

    def _path(self, kind: str) -> str:
        return f"{KINDS[kind]}/{quote(self._name, safe='')}"

    def _patch(self, configuration: BindRegistration, body: Json, metadata: Json) -> None:
        """Apply a strategic merge patch, which merges webhooks by name and owners by UID."""
        body["metadata"] = {"resourceVersion": configuration.version, **metadata}
        self._kube.patch(self._path(configuration.kind), body)


def _read_registration(kind: str, found: Json) -> BindRegistration:
    metadata = found["metadata"]
    targets = {webhook["name"]: webhook["clientConfig"] for webhook in found.get("webhooks") or ()}
    services = [target["service"] for target in targets.values() if target.get("service")]
    namespace = services[0]["namespace"] if services else ""
    bind, url = None, ""
    if target := targets.get(BIND_WEBHOOK):
        url = target.get("url") or ""
        bind = urlsplit(url).path if url else (target.get("service") or {}).get("path") or ""
    owned = any(
        (owner.get("kind"), owner.get("name")) == ("Namespace", namespace)
        for owner in metadata.get("ownerReferences") or ()
    )
    version = metadata["resourceVersion"]
    return BindRegistration(
        kind=kind,
        name=metadata["name"],
        version=version,
        bind=bind,
        url=url,
        namespace=namespace,
        owned=owned,
    )


CONFIG_MAP: Final = "vramwarden-fence"
_LABELS: Final = {**LABELS, "app.kubernetes.io/component": "fence"}


class FenceApi:
    """Access to the ConfigMap with the fence's rules; every method raises KubeError."""

    def __init__(self, kube: Kube, namespace: str) -> None:
        self._kube = kube
        self.now_s = kube.now_s
        self._config_maps = core_path("namespaces", namespace, "configmaps")

    def read(self) -> Json | None:
        """Return the ConfigMap, or None if it does not exist."""
        return self._kube.find(f"{self._config_maps}/{CONFIG_MAP}")

    def write(self, data: Mapping[str, str], found: Json | None) -> None:
        """Set keys of the ConfigMap that was read as `found`; keep its other keys.

        Raises a conflict if the ConfigMap has changed since it was read.
        """
        metadata: Json = {"name": CONFIG_MAP, "labels": _LABELS}
        body: Json = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
        if found is None:
            self._kube.create(self._config_maps, {**body, "data": dict(data)})
            return
        metadata["resourceVersion"] = found["metadata"]["resourceVersion"]
        body["data"] = {**(found.get("data") or {}), **data}
        self._kube.replace(f"{self._config_maps}/{CONFIG_MAP}", body)

    def watched_object(self) -> Collection[None]:
        """Return a collection for `follow` that reports changes of the ConfigMap."""
        return Collection(
            kube=self._kube, path=self._config_maps, project=lambda _found: None, name=CONFIG_MAP
        )
