"""Certificates that replicas share: a Secret, and the caBundles of webhook configurations.

One Secret of type `kubernetes.io/tls` contains the whole certificate set, so each change is one
write and the set is never incomplete. Every write names the version that it is based on. If another
replica wrote first, the API server rejects the write (HTTP 409), and the replica reads again.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from certs import (
    Bundle,
    CaBundleUpdate,
    CertificatesError,
    Replica,
    SetAction,
    SetUpdate,
    WebhookConfiguration,
)
from webhook.adapters.kube.bounded_json import Json
from webhook.adapters.kube.client import Kube, core_path
from webhook.adapters.kube.errors import KubeError
from webhook.adapters.kube.follow import Collection
from webhook.core.documentation import Page

LABELS: Final = {
    "app.kubernetes.io/name": "vramwarden",
    "app.kubernetes.io/managed-by": "vramwarden",
}
_REGISTRATION: Final = "/apis/admissionregistration.k8s.io/v1"
KINDS: Final = {
    "MutatingWebhookConfiguration": f"{_REGISTRATION}/mutatingwebhookconfigurations",
    "ValidatingWebhookConfiguration": f"{_REGISTRATION}/validatingwebhookconfigurations",
}
_ATTEMPTS: Final = 20
"""Maximum number of reads per round. Each conflict means that another replica made progress."""


class ConflictError(Exception):
    """The object has changed since it was read; read it again."""


@dataclass(frozen=True, slots=True)
class StoredBundle:
    """Certificate set in a Secret."""

    bundle: Bundle
    version: str
    """`resourceVersion` of the Secret; empty if it does not exist."""


@dataclass(frozen=True, slots=True)
class Round:
    """Result of one round."""

    served: Bundle
    done: tuple[SetUpdate | CaBundleUpdate, ...]
    unready: str
    """Reason why an API server might reject the served certificate; empty if all accept it."""
    failures: tuple[str, ...]


class CertificatesApi:
    """Access to the Secret and the webhook configurations of one release."""

    def __init__(
        self,
        kube: Kube,
        namespace: str,
        name: str,
        configurations: Iterable[str],
        *,
        documentation_url: str = "",
    ) -> None:
        self._kube = kube
        self._documentation_url = documentation_url
        self.namespace = namespace
        self.name = name
        self._configurations = tuple(configurations)
        self._secrets = core_path("namespaces", namespace, "secrets")
        self.is_unanswered = False
        """True if a request got no response, or a permission is missing."""
        self.title = f"Secret {namespace}/{name}"

    def round(self, replica: Replica) -> Round:
        """Execute all due steps in order; return the result.

        Raises CertificatesError if the Secret is unreadable or malformed, or is missing and cannot
        be created. The caller then continues to serve its previous certificates.
        """
        done: list[SetUpdate | CaBundleUpdate] = []
        failed: dict[str, str] = {}
        for _ in range(_ATTEMPTS):
            stored = self.secret()
            configurations: tuple[WebhookConfiguration, ...] | None = None
            failures = []
            try:
                configurations = self.configurations()
            except CertificatesError as error:
                failures.append(str(error))
            replica.observe(configurations)
            with self._locating_errors():
                due = replica.due_steps(stored.bundle, configurations)
            step = next((found for found in due if self._target(found) not in failed), None)
            if step is None:
                failures += failed.values()
                if not stored.bundle.certificate_pem:
                    what, cure = "holds no certificate", "; ".join(failures)
                    raise CertificatesError(self.title, what, cure)
                served = replica.select_served(stored.bundle)
                unready = replica.unready_reason(configurations)
                return Round(served, tuple(done), unready, tuple(failures))
            try:
                if isinstance(step, CaBundleUpdate):
                    self.publish(step.configuration, step.bundles)
                else:
                    self.store(step.bundle, stored)
            except ConflictError:
                continue
            except CertificatesError as error:
                failed[self._target(step)] = str(error)
            else:
                done.append(step)
        raise self._too_many_conflicts()

    def rotate(self, replica: Replica) -> SetUpdate:
        """Add a new CA, which later rounds bring into use; raises CertificatesError."""
        for _ in range(_ATTEMPTS):
            stored = self.secret()
            if not stored.version:
                cure = "have a set issued there first"
                raise CertificatesError(self.title, "does not exist", cure)
            with self._locating_errors():
                outcome = replica.announce(stored.bundle)
            try:
                if outcome.action is not SetAction.KEPT:
                    self.store(outcome.bundle, stored)
            except ConflictError:
                continue
            return outcome
        raise self._too_many_conflicts()

    def secret(self) -> StoredBundle:
        """Return the stored certificates; raises CertificatesError if they are unreadable."""
        found = self._found(self.title, self._secret_path)
        if found is None:
            return StoredBundle(Bundle(), "")
        files = {name: b64decode(text) for name, text in (found.get("data") or {}).items()}
        return StoredBundle(Bundle.from_files(files), found["metadata"]["resourceVersion"])

    def configurations(self) -> tuple[WebhookConfiguration, ...]:
        """Return the existing webhook configurations, of both kinds."""
        found = (
            (kind, self._found(f"{kind} {name}", f"{path}/{quote(name, safe='')}"))
            for kind, path in KINDS.items()
            for name in self._configurations
        )
        return tuple(_configuration(kind, raw) for kind, raw in found if raw is not None)

    def store(self, bundle: Bundle, before: StoredBundle) -> None:
        """Store the certificate set in the Secret; keep the Secret's labels and other data."""
        data: Json = {name: b64encode(text).decode() for name, text in bundle.files().items()}
        if before.version:
            gone = dict.fromkeys(before.bundle.files().keys() - data.keys())
            body: Json = {"metadata": {"resourceVersion": before.version}, "data": data | gone}
            self._patch(self.title, self._secret_path, body)
            return
        metadata = {"name": self.name, "labels": LABELS}
        body = {"metadata": metadata, "type": "kubernetes.io/tls", "data": data}
        try:
            self._kube.create(self._secrets, body)
        except KubeError as error:
            if error.not_found:
                cure = f"create the namespace {self.namespace}"
                raise CertificatesError(self.title, "has no namespace", cure) from error
            raise self._failure(f"{self.title} (create)", error) from error

    def publish(
        self, configuration: WebhookConfiguration, bundles: Iterable[tuple[str, bytes]]
    ) -> None:
        """Set the caBundles of webhooks, keyed by name, by a strategic merge patch."""
        webhooks = [
            {"name": name, "clientConfig": {"caBundle": b64encode(pem).decode()}}
            for name, pem in bundles
        ]
        body = {"metadata": {"resourceVersion": configuration.version}, "webhooks": webhooks}
        path = f"{KINDS[configuration.kind]}/{quote(configuration.name, safe='')}"
        self._patch(configuration.title, path, body)

    def watched_objects(self) -> tuple[Collection[None], ...]:
        """Return collections for `follow` that report changes of these objects."""
        paths = ((path, name) for path in KINDS.values() for name in self._configurations)
        named = ((self._secrets, self.name), *paths)
        return tuple(
            Collection(kube=self._kube, path=path, project=_nothing, name=name)
            for path, name in named
        )

    @contextmanager
    def _locating_errors(self) -> Iterator[None]:
        """Add the Secret's name to errors about its contents."""
        try:
            yield
        except CertificatesError as error:
            raise CertificatesError(
                f"{self.title}, {error.location}", error.problem, error.cure
            ) from error

    def _target(self, step: SetUpdate | CaBundleUpdate) -> str:
        return step.configuration.title if isinstance(step, CaBundleUpdate) else self.title

    def _too_many_conflicts(self) -> CertificatesError:
        what = "and the caBundles change faster than we can follow"
        return CertificatesError(self.title, what, "find out who else writes them")

    @property
    def _secret_path(self) -> str:
        return f"{self._secrets}/{quote(self.name, safe='')}"

    def _found(self, title: str, path: str) -> Json | None:
        try:
            return self._kube.find(path)
        except KubeError as error:
            raise self._failure(f"{title} (get)", error) from error

    def _patch(self, title: str, path: str, body: Json) -> None:
        try:
            self._kube.patch(path, body)
        except KubeError as error:
            if error.not_found:
                raise ConflictError(f"{title} was deleted meanwhile") from error
            raise self._failure(f"{title} (patch)", error) from error

    def _failure(self, where: str, error: KubeError) -> Exception:
        self.is_unanswered |= error.is_inconclusive
        if error.conflict:
            return ConflictError(where)
        if error.code in {401, 403}:
            cure = f"grant it as in {Page.CERTIFICATE_RIGHTS.url(self._documentation_url)}"
        elif error.code:
            cure = "see what the API server says"
        else:
            cure = "check that the API server can be reached from here"
        return CertificatesError(where, f"failed ({error})", cure)


def _nothing(_found: Json) -> None:
    """Return None, so that no private key stays in memory."""


def _configuration(kind: str, found: Json) -> WebhookConfiguration:
    bundles = tuple(
        (webhook["name"], b64decode(webhook["clientConfig"].get("caBundle") or ""))
        for webhook in found.get("webhooks") or ()
    )
    metadata = found["metadata"]
    return WebhookConfiguration(kind, metadata["name"], metadata["resourceVersion"], bundles)
