"""Keep the shared set in a Kubernetes cluster: a Secret and webhook configurations.

All certificates lie in one Secret of type ``kubernetes.io/tls``, under the names of the files in
a folder, so each change of them is one write and nothing is ever half there. Every write names the
version it is based on; the API server refuses one that comes too late (HTTP 409).
"""

import json
import os
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from certs.errors import CertificatesError
from certs.pem import Bundle
from certs.replica import Stored
from certs.share import ConflictError
from certs.trust import Configuration

# To connect, and to wait for an answer.
_TIMEOUT_S = (5.0, 10.0)
_WATCH_S = 300
_CONFLICT = 409
_NOT_FOUND = 404
_AS_US = {"field_manager": "vramwarden-certs"}
_LABELS = {"app.kubernetes.io/name": "vramwarden", "app.kubernetes.io/managed-by": "vramwarden"}

Json = dict[str, Any]
Watch = Callable[[], Iterator[None]]


def connect(kubeconfig: str | None = None, context: str | None = None) -> Any:
    """Return the client of a cluster; nothing is asked of it yet.

    It is the one that the arguments or ``KUBECONFIG`` name; else, in a pod, the one around it;
    else that of ``~/.kube/config``. Raises CertificatesError where that is none.
    """
    from kubernetes import client, config  # noqa: PLC0415 - takes a moment and 35 MiB

    loading: Any = config  # not typed, as the rest is
    configuration = client.Configuration()
    # A round is repeated anyway, and urllib3 would write about each attempt.
    configuration.retries = False
    named = kubeconfig or context or os.environ.get("KUBECONFIG")
    try:
        if not named and "KUBERNETES_SERVICE_HOST" in os.environ:
            loading.load_incluster_config(client_configuration=configuration)
        else:
            loading.load_kube_config(
                kubeconfig, context, client_configuration=configuration, persist_config=False
            )
    # The last four are what it raises for a kubeconfig of another form.
    except (config.ConfigException, OSError, ValueError, TypeError, LookupError) as error:
        cure = "name a kubeconfig, or run in a pod with a service account"
        raise CertificatesError("the cluster", f"is not known ({error})", cure) from error
    return client.ApiClient(configuration)


class KubernetesCluster:
    """The Secret and the webhook configurations of one release."""

    def __init__(
        self, api_client: Any, namespace: str, name: str, configurations: Iterable[str]
    ) -> None:
        from kubernetes import client  # noqa: PLC0415 - as above

        self._core = client.CoreV1Api(api_client)
        registration = client.AdmissionregistrationV1Api(api_client)
        self._namespace = namespace
        self._name = name
        self._names = tuple(configurations)
        # kind -> read, patch, list
        self._kinds: dict[str, tuple[Any, Any, Any]] = {
            "MutatingWebhookConfiguration": (
                registration.read_mutating_webhook_configuration,
                registration.patch_mutating_webhook_configuration,
                registration.list_mutating_webhook_configuration,
            ),
            "ValidatingWebhookConfiguration": (
                registration.read_validating_webhook_configuration,
                registration.patch_validating_webhook_configuration,
                registration.list_validating_webhook_configuration,
            ),
        }

    @property
    def title(self) -> str:
        """Return what people call the Secret."""
        return f"Secret {self._namespace}/{self._name}"

    def secret(self) -> Stored:
        """Return what the Secret holds; raises CertificatesError where it cannot be read."""
        found = _asked(
            f"{self.title} (get)", self._core.read_namespaced_secret, self._name, self._namespace
        )
        if found is None:
            return Stored(Bundle(), "")
        files = {name: b64decode(text) for name, text in (found.get("data") or {}).items()}
        return Stored(Bundle.from_files(files), found["metadata"]["resourceVersion"])

    def configurations(self) -> tuple[Configuration, ...]:
        """Return those of the configurations that exist, of both kinds."""
        found = []
        for kind, (read, _, _) in self._kinds.items():
            for name in self._names:
                one = _asked(f"{kind} {name} (get)", read, name)
                if one is not None:
                    found.append(_configuration(kind, one))
        return tuple(found)

    def store(self, bundle: Bundle, before: Stored) -> None:
        """Make the Secret hold this set; labels and whatever else is there stay."""
        data: Json = {name: b64encode(text).decode() for name, text in bundle.files().items()}
        if before.version:
            gone = dict.fromkeys(before.bundle.files().keys() - data.keys())
            body: Json = {"metadata": {"resourceVersion": before.version}, "data": data | gone}
            patch = self._core.patch_namespaced_secret
            _written(f"{self.title} (patch)", patch, self._name, self._namespace, body)
            return
        body = {
            "metadata": {"name": self._name, "labels": _LABELS},
            "type": "kubernetes.io/tls",
            "data": data,
        }
        create = self._core.create_namespaced_secret
        if _asked(f"{self.title} (create)", create, self._namespace, body, **_AS_US) is None:
            cure = f"create the namespace {self._namespace}"
            raise CertificatesError(self.title, "has no namespace to be in", cure)

    def publish(self, configuration: Configuration, bundles: Iterable[tuple[str, bytes]]) -> None:
        """Give webhooks these caBundles; a strategic merge patch finds them by name."""
        webhooks = [
            {"name": name, "clientConfig": {"caBundle": b64encode(pem).decode()}}
            for name, pem in bundles
        ]
        body = {"metadata": {"resourceVersion": configuration.version}, "webhooks": webhooks}
        patch = self._kinds[configuration.kind][1]
        _written(f"{configuration.title} (patch)", patch, configuration.name, body)

    def watches(self) -> tuple[Watch, ...]:
        """Return, for each object, what yields whenever it changed; it ends after some minutes."""
        secret = self._core.list_namespaced_secret
        return (
            partial(_changes, secret, self._name, self._namespace),
            *(
                partial(_changes, follow, name)
                for _, _, follow in self._kinds.values()
                for name in self._names
            ),
        )


def _configuration(kind: str, found: Json) -> Configuration:
    bundles = tuple(
        (webhook["name"], b64decode(webhook["clientConfig"].get("caBundle") or ""))
        for webhook in found.get("webhooks") or ()
    )
    metadata = found["metadata"]
    return Configuration(kind, metadata["name"], metadata["resourceVersion"], bundles)


def _asked(where: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> Json | None:
    """Call the API server for an object; None where there is none.

    The answer is read here: the client's models differ between its versions, JSON does not.
    """
    from kubernetes.client import ApiException  # noqa: PLC0415 - as above
    from urllib3.exceptions import HTTPError  # noqa: PLC0415 - comes with it

    try:
        answer = call(*arguments, _preload_content=False, _request_timeout=_TIMEOUT_S, **options)
        found: Json = json.loads(answer.data)
    except ApiException as error:
        if error.status == _NOT_FOUND:
            return None
        if error.status == _CONFLICT:
            raise ConflictError(where) from error
        raise CertificatesError(where, f"failed ({_said(error)})", _cure(error.status)) from error
    except (HTTPError, OSError, ValueError) as error:
        cure = "see whether the API server can be reached from here"
        raise CertificatesError(where, f"failed ({error})", cure) from error
    return found


def _written(where: str, call: Callable[..., Any], *arguments: Any) -> None:
    if _asked(where, call, *arguments, **_AS_US) is None:
        raise ConflictError(f"{where}: what was there a moment ago is gone")


def _changes(follow: Callable[..., Any], name: str, *namespace: str) -> Iterator[None]:
    """Watch one object; what changed is for the next look to see."""
    from kubernetes.client import ApiException  # noqa: PLC0415 - as above
    from urllib3.exceptions import HTTPError  # noqa: PLC0415 - likewise

    try:
        answer = follow(
            *namespace,
            watch=True,
            field_selector=f"metadata.name={name}",
            timeout_seconds=_WATCH_S,
            _preload_content=False,
            _request_timeout=(_TIMEOUT_S[0], _WATCH_S + _TIMEOUT_S[1]),
        )
        for _ in answer.stream():
            yield
    except (ApiException, HTTPError, OSError) as error:
        cure = "see whether the API server can be reached and allows it"
        raise CertificatesError(f"{name} (watch)", f"failed ({error})", cure) from error


def _said(error: Any) -> str:
    """Return the API server's own sentence, where it gave one."""
    try:
        return str(json.loads(error.body)["message"])
    except (TypeError, ValueError, KeyError):
        return f"{error.status} {error.reason}".strip()


def _cure(status: int) -> str:
    if status in {401, 403}:
        return "grant it, as certs/README.md lists"
    return "see what the API server says"
