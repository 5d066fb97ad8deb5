"""Our webhook configurations: where /bind is called, and to which namespace they belong."""

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
class Registered:
    """What we need of one webhook configuration."""

    kind: str
    name: str
    version: str
    bind: str | None
    """The path at which bind is called, empty for none; None where it is not among the webhooks."""
    url: str
    """Where bind is called by URL, that URL."""
    namespace: str
    """Of the Service that is called; empty where webhooks are called by URL."""
    owned: bool
    """Whether that namespace is among the owners."""

    @property
    def title(self) -> str:
        """Return its kind and name."""
        return f"{self.kind} {self.name}"


class RegistrationApi:
    """The webhook configurations of one name, of both kinds; methods raise KubeError."""

    def __init__(self, kube: Kube, name: str) -> None:
        self._kube = kube
        self._name = name

    def read(self) -> tuple[Registered, ...]:
        """Return those that exist."""
        found = ((kind, self._kube.find(self._path(kind))) for kind in KINDS)
        return tuple(_registered(kind, one) for kind, one in found if one is not None)

    def write_path(self, registered: Registered, path: str) -> None:
        """Have bind called at another path; a conflict where it changed since."""
        if registered.url:
            target: Json = {"url": urlsplit(registered.url)._replace(path=path).geturl()}
        else:
            target = {"service": {"path": path}}
        self._patch(registered, {"webhooks": [{"name": BIND_WEBHOOK, "clientConfig": target}]}, {})

    def write_owner(self, registered: Registered) -> None:
        """Make it go with its namespace; a conflict where it changed since.

        The garbage collector deletes what is cluster-scoped with an owner that is, too.
        """
        uid = self._kube.read(core_path("namespaces", registered.namespace))["metadata"]["uid"]
        owner = {"apiVersion": "v1", "kind": "Namespace", "name": registered.namespace, "uid": uid}
        self._patch(registered, {}, {"ownerReferences": [owner]})

    def followed(self) -> Collection[None]:
        """Return the configuration that holds bind for `follow`, which reports that it changed."""
        path = KINDS["MutatingWebhookConfiguration"]
        return Collection(kube=self._kube, path=path, project=lambda _found: None, name=self._name)

    def _path(self, kind: str) -> str:
        return f"{KINDS[kind]}/{quote(self._name, safe='')}"

    def _patch(self, registered: Registered, body: Json, metadata: Json) -> None:
        """Merge as strategic merge patches do: webhooks by name, owners by uid."""
        body["metadata"] = {"resourceVersion": registered.version, **metadata}
        self._kube.patch(self._path(registered.kind), body)


def _registered(kind: str, found: Json) -> Registered:
    metadata = found["metadata"]
    targets = {one["name"]: one["clientConfig"] for one in found.get("webhooks") or ()}
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
    return Registered(
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
