"""Connection to the API server, from a kubeconfig or a pod's service account, as kubectl does."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any, Final, Self

import yaml
from kubernetes import client, config
from kubernetes.config import kube_config
from kubernetes.config.config_exception import ConfigException

from webhook.adapters.kube.bounded_json import Json, return_freed_memory
from webhook.adapters.kube.client import Kube
from webhook.adapters.kube.errors import NoClusterError
from webhook.adapters.kube.impersonation import Identity
from webhook.adapters.kube.transport import TIMEOUT_S, TRIES, socket_options

_config: Any = config
_kube_config: Any = kube_config
"""Untyped aliases: these two modules have no type annotations."""
_POD_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_MALFORMED: Final = (ValueError, TypeError, AttributeError)
"""Exceptions that the Kubernetes client raises for a malformed kubeconfig."""
_CONNECTIONS: Final = 32
"""Maximum number of connections kept open: one for each thread of a replica."""


class KubeconfigError(Exception):
    """No configuration names an API server, or it is unusable; the message is one sentence."""

    def __init__(self, sentence: str, *, is_named: bool) -> None:
        super().__init__(sentence)
        self.is_named = is_named
        """True if the user named the unusable part: a file, a context or an identity."""


def connect(
    kubeconfig: Path | None = None,
    *,
    context: str | None = None,
    tries: int = TRIES,
    timeout_s: float = TIMEOUT_S,
    identity: Identity | None = None,
) -> Kube:
    """Return a connection to the API server, found as kubectl does; send no request.

    `context` names one of a kubeconfig, so the pod's service account is not used with it. Commands
    pass an `identity`. Then failures address the user as `you`, and the identity's time limit
    replaces `timeout_s`. Raises NoClusterError.

    | configured | used |
    | --- | --- |
    | `kubeconfig` | that file |
    | `KUBECONFIG` | the files that it lists |
    | neither, in a pod | the pod's service account |
    | neither, elsewhere | `~/.kube/config` |
    """
    return_freed_memory()
    settings = client.Configuration()
    settings.retries = False  # `transport` retries instead
    settings.connection_pool_maxsize = _CONNECTIONS
    found = Kubeconfig(kubeconfig, context)
    try:
        api_client, namespace, headers = found.load(settings, identity or Identity())
    except KubeconfigError as error:
        raise NoClusterError(str(error), is_named=error.is_named) from error
    pool: Any = api_client.rest_client.pool_manager
    pool.connection_pool_kw["socket_options"] = socket_options()
    kube = Kube(api_client, tries, timeout_s, headers=headers, namespace=namespace)
    return kube if identity is None else kube.for_user(identity.limit_s)


class Kubeconfig:
    """Connection settings: a kubeconfig, or the pod's service account if no context is given."""

    def __init__(self, kubeconfig: Path | None, context: str | None = None) -> None:
        by_variable = os.environ.get("KUBECONFIG", "")
        named = str(kubeconfig) if kubeconfig else by_variable
        self._context = context
        self._files = named or str(_kube_config.KUBE_CONFIG_DEFAULT_LOCATION)
        self._in_pod = "KUBERNETES_SERVICE_HOST" in os.environ and not named and not context
        self._is_named = bool(named or context)
        self._is_option = bool(kubeconfig or context)
        self._cure = "name a file in KUBECONFIG"
        if kubeconfig:
            self._source = f"the kubeconfig {kubeconfig}"
            self._cure = "name another file with --kubeconfig"
        elif self._in_pod:
            self._source = "this pod's service account"
        else:
            self._source = f"KUBECONFIG={named}" if named else "a kubeconfig (~/.kube/config)"

    def contexts(self) -> list[str]:
        """Return the names of the contexts; raises any error of reading and parsing the files."""
        merged = _kube_config.KubeConfigMerger(self._files)
        return [str(context["name"]) for context in merged.config.value["contexts"]]

    def load(
        self, settings: client.Configuration, identity: Identity
    ) -> tuple[Any, str, tuple[tuple[str, str], ...]]:
        """Return a client, its namespace, and the headers for impersonation.

        The namespace is empty if none is configured. Raises KubeconfigError.
        """
        try:
            namespace, user = self._load_pod(settings) if self._in_pod else self._load(settings)
            api_client = client.ApiClient(settings)
        except (ConfigException, yaml.YAMLError, OSError, LookupError, *_MALFORMED) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            is_named = self._is_named
            if not self._in_pod and not self._exists():
                reason, is_named = "there is no such file", self._is_option
            sentence = f"no API server is known from {self._source}: {reason}; {self._cure}"
            raise KubeconfigError(sentence, is_named=is_named) from error
        try:
            return api_client, namespace, tuple(identity.with_kubeconfig_user(user).headers())
        except ValueError as error:
            raise KubeconfigError(f"{self._source}: {error}", is_named=True) from error

    def _exists(self) -> bool:
        files = filter(None, self._files.split(os.pathsep))
        return any(Path(file).expanduser().exists() for file in files)

    def _load_pod(self, settings: client.Configuration) -> tuple[str, Json]:
        _config.load_incluster_config(client_configuration=settings)
        try:
            return _POD_NAMESPACE.read_text(encoding="utf-8").strip(), {}
        except (OSError, ValueError):
            return "", {}

    def _load(self, settings: client.Configuration) -> tuple[str, Json]:
        """Load the kubeconfig files; return the namespace and the entry of the user.

        The first file that sets a value wins, as with kubectl. A failed credential plugin raises an
        error. Otherwise requests would be anonymous, or made as another user.
        """
        merged = _kube_config.KubeConfigMerger(self._files)
        if merged.config is None:
            raise ConfigException("it holds nothing")
        for path in reversed(merged.paths):
            if current := merged.config_files[path].get("current-context"):
                merged.config.value["current-context"] = current
        loader = _kube_config.KubeConfigLoader(merged.config, self._context or None)
        with _CapturedErrors() as errors:
            loader.load_and_set(settings)
        if errors.texts:
            raise ConfigException(errors.texts[-1])
        chosen = loader.current_context.get("context") or {}
        users = (
            user for user in merged.config.value["users"] if user["name"] == chosen.get("user")
        )
        user = next((found["user"] for found in users if found.value.get("user")), None)
        return str(chosen.get("namespace") or ""), {} if user is None else user.value


class _CapturedErrors(logging.Handler):
    """Handler that collects the errors a library logs instead of raising them; prints nothing."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())

    def __enter__(self) -> Self:
        logging.getLogger().addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger().removeHandler(self)
