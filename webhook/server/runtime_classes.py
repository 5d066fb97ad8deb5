"""Keeps in mind whether the cluster has the RuntimeClass that rules with `Auto` choose."""

from __future__ import annotations

import time
from dataclasses import replace
from threading import Thread
from typing import TYPE_CHECKING, Final

from webhook.adapters.kube.client import KubeError
from webhook.adapters.kube.follow import Changed, Collection, Failed, Listed, follow
from webhook.names import NVIDIA_RUNTIME_CLASS

if TYPE_CHECKING:
    from collections.abc import Callable

    from webhook.adapters.kube.client import Json, Kube
    from webhook.adapters.kube.follow import Report
    from webhook.core.policy.values import Policy
    from webhook.server.log import JsonLog

KNOWN_WITHIN_S: Final = 10.0
"""How long a replica that cannot find out stays unready: a pod that is translated without the class
may get no GPU, but one that is denied gets none for certain."""


class RuntimeClasses:
    """Follows the RuntimeClass `nvidia`, and no other; may be read from any thread.

    | the API server says | known |
    | --- | --- |
    | nothing yet | none |
    | what exists, and each change | that |
    | that we may not read it | as before, so at first none |
    | nothing more | as before |
    """

    def __init__(
        self, kube: Kube, log: JsonLog, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Send no request yet."""
        self._followed = followed(kube)
        self._log = log
        self._clock = clock
        self._started_s = clock()
        self._answered = False
        self._known: frozenset[str] = frozenset()

    def start(self) -> None:
        """Begin to follow on a daemon thread."""
        self._started_s = self._clock()
        name = "runtime-classes"
        Thread(target=follow, args=(self._followed, self.hear), name=name, daemon=True).start()

    def obstacle(self) -> str:
        """Return why no traffic should come yet; empty once it is known, or cannot be."""
        if self._answered or self._clock() - self._started_s >= KNOWN_WITHIN_S:
            return ""
        return f"RuntimeClass {NVIDIA_RUNTIME_CLASS} not read yet"

    def told(self, policy: Policy) -> Policy:
        """Return a policy that knows what is known of the cluster."""
        return replace(policy, runtime_classes=self._known) if self._known else policy

    def hear(self, report: Report[str]) -> None:
        """Take a report of `follow`."""
        match report:
            case Listed(names, watched):
                self._know(frozenset(names))
                if watched:
                    self._log.over(_ABOUT, "the RuntimeClass is followed again")
            case Changed(kind, name):
                rest = self._known - {name}
                self._know(rest if kind == "DELETED" else rest | {name})
            case Failed(KubeError() as error):
                self._answered = self._answered or error.forbidden
                self._log.once(_ABOUT, "error", "the RuntimeClass cannot be followed", str(error))
            case Failed():
                self._log.exception("following the RuntimeClass failed")

    def _know(self, names: frozenset[str]) -> None:
        if names != self._known or not self._answered:
            self._known, self._answered = names, True
            self._log.info("RuntimeClass", name=NVIDIA_RUNTIME_CLASS, exists=bool(names))


_ABOUT: Final = "runtime class"


def followed(kube: Kube) -> Collection[str]:
    """Return the RuntimeClass `nvidia` for `follow`; the rights get and watch for it are enough."""
    path = "/apis/node.k8s.io/v1/runtimeclasses"
    return Collection(kube, path, _name_of, name=NVIDIA_RUNTIME_CLASS)


def _name_of(found: Json) -> str:
    return str(found["metadata"]["name"])
