"""Keeps in mind whether the cluster has the RuntimeClass that rules with `Auto` choose."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from webhook.adapters.kube.follow import Collection
from webhook.names import NVIDIA_RUNTIME_CLASS
from webhook.server.known import Known

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from webhook.adapters.kube.client import Json, Kube
    from webhook.core.policy.values import Policy
    from webhook.server.log import JsonLog


class RuntimeClasses(Known[str]):
    """Follows the RuntimeClass `nvidia`, and no other."""

    def __init__(
        self, kube: Kube, log: JsonLog, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Send no request yet."""
        super().__init__("RuntimeClasses", followed(kube), log, clock)
        self._known: frozenset[str] = frozenset()

    def obstacle(self) -> str:
        """Return why no traffic should come yet; empty once it is known, or cannot be."""
        return "" if self.is_settled else f"RuntimeClass {NVIDIA_RUNTIME_CLASS} not read yet"

    def told(self, policy: Policy) -> Policy:
        """Return a policy that knows what is known of the cluster."""
        return replace(policy, runtime_classes=self._known) if self._known else policy

    def _take_all(self, things: Sequence[str]) -> None:
        self._know(frozenset(things))

    def _take(self, kind: str, thing: str) -> None:
        rest = self._known - {thing}
        self._know(rest if kind == "DELETED" else rest | {thing})

    def _know(self, names: frozenset[str]) -> None:
        if names != self._known or not self._answered:
            self._known = names
            self._log.info("RuntimeClass", name=NVIDIA_RUNTIME_CLASS, exists=bool(names))


def followed(kube: Kube) -> Collection[str]:
    """Return the RuntimeClass `nvidia` for `follow`; the rights get and watch for it are enough."""
    path = "/apis/node.k8s.io/v1/runtimeclasses"
    return Collection(kube, path, _name_of, name=NVIDIA_RUNTIME_CLASS)


def _name_of(found: Json) -> str:
    return str(found["metadata"]["name"])
