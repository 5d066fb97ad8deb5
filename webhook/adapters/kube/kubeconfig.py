"""Where the API server is and who asks it, found as kubectl finds it: in files, or in a pod."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any, Final, Self

import yaml
from kubernetes import client, config
from kubernetes.config import kube_config
from kubernetes.config.config_exception import ConfigException

from webhook.adapters.kube.impersonation import Identity

Json = dict[str, Any]

_config: Any = config
_kube_config: Any = kube_config
"""Neither has types."""
_POD_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_MALFORMED: Final = (ValueError, TypeError, AttributeError)
"""What the client raises where a kubeconfig has the wrong form."""


class KubeconfigError(Exception):
    """No configuration names an API server, or it cannot be used: a sentence."""

    def __init__(self, sentence: str, *, is_named: bool) -> None:
        super().__init__(sentence)
        self.is_named = is_named
        """Somebody named what cannot be used: a file, a context, whom to act as."""


class Kubeconfig:
    """What names the API server; a `context` is one of a kubeconfig, so no pod's account then."""

    def __init__(self, kubeconfig: Path | None, context: str | None = None) -> None:
        """Find out which; nothing is read yet."""
        by_variable = os.environ.get("KUBECONFIG", "")
        named = str(kubeconfig) if kubeconfig else by_variable
        self._context = context
        self._files = named or str(_kube_config.KUBE_CONFIG_DEFAULT_LOCATION)
        self._in_pod = "KUBERNETES_SERVICE_HOST" in os.environ and not named and not context
        self._is_named = bool(named or context)
        self._is_chosen = bool(kubeconfig or context)
        self._cure = "name a file in KUBECONFIG"
        if kubeconfig:
            self._where = f"the kubeconfig {kubeconfig}"
            self._cure = "name another file with --kubeconfig"
        elif self._in_pod:
            self._where = "this pod's service account"
        else:
            self._where = f"KUBECONFIG={named}" if named else "a kubeconfig (~/.kube/config)"

    def contexts(self) -> list[str]:
        """Return the names of the contexts; raises whatever is wrong."""
        merged = _kube_config.KubeConfigMerger(self._files)
        return [str(one["name"]) for one in merged.config.value["contexts"]]

    def load(
        self, settings: client.Configuration, identity: Identity
    ) -> tuple[Any, str, tuple[tuple[str, str], ...]]:
        """Return a client, the namespace, and the headers by which it acts as somebody.

        The namespace is empty where none is said. Raises KubeconfigError.
        """
        try:
            namespace, user = self._pod(settings) if self._in_pod else self._file(settings)
            api_client = client.ApiClient(settings)
        except (ConfigException, yaml.YAMLError, OSError, LookupError, *_MALFORMED) as error:
            said = " ".join(str(error).split()) or type(error).__name__
            is_named = self._is_named
            if not self._in_pod and not self._exists():
                said, is_named = "there is no such file", self._is_chosen
            sentence = f"no API server is known from {self._where}: {said}; {self._cure}"
            raise KubeconfigError(sentence, is_named=is_named) from error
        try:
            return api_client, namespace, tuple(identity.with_kubeconfig_user(user).headers())
        except ValueError as error:
            raise KubeconfigError(f"{self._where}: {error}", is_named=True) from error

    def _exists(self) -> bool:
        files = filter(None, self._files.split(os.pathsep))
        return any(Path(one).expanduser().exists() for one in files)

    def _pod(self, settings: client.Configuration) -> tuple[str, Json]:
        _config.load_incluster_config(client_configuration=settings)
        try:
            return _POD_NAMESPACE.read_text(encoding="utf-8").strip(), {}
        except (OSError, ValueError):
            return "", {}

    def _file(self, settings: client.Configuration) -> tuple[str, Json]:
        """Read files; return the namespace, and what is said of the user.

        Of several the first that has something counts, as with kubectl. A program that is to give
        credentials and fails ends it: without them somebody else, or nobody, would ask.
        """
        merged = _kube_config.KubeConfigMerger(self._files)
        if merged.config is None:
            raise ConfigException("it holds nothing")
        for path in reversed(merged.paths):
            if current := merged.config_files[path].get("current-context"):
                merged.config.value["current-context"] = current
        loader = _kube_config.KubeConfigLoader(merged.config, self._context or None)
        with _Said() as said:
            loader.load_and_set(settings)
        if said.texts:
            raise ConfigException(said.texts[-1])
        chosen = loader.current_context.get("context") or {}
        users = (one for one in merged.config.value["users"] if one["name"] == chosen.get("user"))
        user = next((one["user"] for one in users if one.value.get("user")), None)
        return str(chosen.get("namespace") or ""), {} if user is None else user.value


class _Said(logging.Handler):
    """Keeps what a library logs as an error, in place of raising it, and shows none of it."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a text."""
        self.texts.append(record.getMessage())

    def __enter__(self) -> Self:
        logging.getLogger().addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger().removeHandler(self)
