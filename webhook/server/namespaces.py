"""Keeps in mind the labels of namespaces for which rules ask: no review carries them."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

from webhook.adapters.kube.client import KubeError
from webhook.adapters.kube.follow import Changed, Collection, Failed, Listed, follow
from webhook.adapters.kube.namespaces import PATH, labelled

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from webhook.adapters.kube.client import Kube
    from webhook.adapters.kube.follow import Report
    from webhook.adapters.kube.namespaces import Labelled
    from webhook.core.pod.request import Request
    from webhook.core.policy.values import Policy
    from webhook.server.log import JsonLog

    Json = dict[str, Any]

KNOWN_WITHIN_S: Final = 10.0
"""How long a replica that cannot find out stays unready: it can still judge pods whose rules ask
for no labels."""

POLL_S: Final = 2.0
"""How soon a reloaded policy is seen that asks for other labels."""

_ABOUT: Final = "namespaces"


class Namespaces:
    """Follows all namespaces while the policy asks for labels of theirs; safe from any thread.

    | the API server says | known |
    | --- | --- |
    | nothing yet | none |
    | which exist, and each change | their labels, those alone for which rules ask |
    | that we may not read them | as before, so at first none |
    | nothing more | as before |

    The labels of a namespace that is not known may not be guessed. It is a few milliseconds old as
    a rule, and the API server asks again in a second; its `failurePolicy` says what becomes of a
    pod where that does not help.
    """

    def __init__(
        self,
        kube: Kube,
        policy: Callable[[], Policy],
        log: JsonLog,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Send no request yet; `policy` returns the one in force."""
        self._kube = kube
        self._policy = policy
        self._log = log
        self._clock = clock
        self._started_s = clock()
        self._of_rules: tuple[tuple[Any, ...], frozenset[str]] = ((), frozenset())
        self._known = self._latest = _Followed(frozenset(), log, self._use)
        self._is_known = False

    def start(self) -> None:
        """Begin to follow on daemon threads."""
        self._started_s = self._clock()
        Thread(target=self._run, name="namespaces", daemon=True).start()

    def obstacle(self) -> str:
        """Return why no traffic should come yet; empty once it is known, cannot be, or need not."""
        settled = self._is_known or self._latest.is_forbidden
        if settled or self._clock() - self._started_s >= KNOWN_WITHIN_S:
            return ""
        return "labels of namespaces not read yet" if self._wanted_by(self._policy()) else ""

    def told(self, request: Request, policy: Policy) -> Request:
        """Return a request that knows its namespace's labels, where the policy asks for any."""
        wanted = self._wanted_by(policy)
        if not wanted:
            return request
        known = self._known  # once: another thread may replace it
        labels = known.labels.get(request.namespace) if wanted <= known.wanted else None
        return request if labels is None else replace(request, namespace_labels=labels)

    def keep(self) -> Callable[[], None] | None:
        """Return what follows from now on; None where that goes on already, or need not begin.

        What was followed for the policy before serves on until the other one is known.
        """
        wanted = self._wanted_by(self._policy())
        if wanted == self._latest.wanted:
            return None
        self._latest.is_over = self._latest is not self._known
        self._latest = _Followed(wanted, self._log, self._use)
        if not wanted:
            self._use(self._latest)
            return None
        return partial(self._latest.follow, self._kube)

    def _use(self, followed: _Followed) -> None:
        """Answer from what is followed and known now."""
        before, self._known, self._is_known = self._known, followed, True
        before.is_over = before is not followed

    def _wanted_by(self, policy: Policy) -> frozenset[str]:
        rules, wanted = self._of_rules
        if policy.rules is not rules:
            wanted = policy.namespace_labels
            self._of_rules = policy.rules, wanted
        return wanted

    def _run(self) -> None:
        while True:
            begin = self.keep()
            if begin:
                Thread(target=begin, name="namespaces-watch", daemon=True).start()
            time.sleep(POLL_S)


class _OverError(Exception):
    """Ends what follows labels for which no rule asks any more."""


class _Followed:
    """All namespaces, with those of their labels that are wanted."""

    def __init__(
        self, wanted: frozenset[str], log: JsonLog, known: Callable[[_Followed], None]
    ) -> None:
        self.wanted = wanted
        self.labels: dict[str, Mapping[str, str] | None] = {}
        self.is_over = False
        self.is_forbidden = False
        self._log = log
        self._say_known = known

    def follow(self, kube: Kube) -> None:
        """Follow them until it is over, which is seen when a watch ends at the latest."""
        with suppress(_OverError):
            follow(Collection(kube, PATH, self.labelled), self.hear, sleep=self.sleep)

    def sleep(self, pause_s: float) -> None:
        """Sleep, which `follow` does after every watch; raises _OverError where it is over."""
        time.sleep(pause_s)
        self._end_if_over()

    def labelled(self, found: Json) -> Labelled:
        """Keep of a namespace what is wanted."""
        return labelled(found, self.wanted)

    def hear(self, report: Report[Labelled]) -> None:
        """Take a report of `follow`."""
        self._end_if_over()
        match report:
            case Listed(namespaces, watched):
                self.labels = dict(namespaces)
                self._say_known(self)
                if watched:
                    self._log.over(_ABOUT, "namespaces are followed again")
            case Changed(kind, (name, labels)):
                self.labels[name] = labels
                if kind == "DELETED":
                    del self.labels[name]
            case Failed(KubeError() as error):
                self.is_forbidden = self.is_forbidden or error.forbidden
                self._log.once(_ABOUT, "error", "namespaces cannot be followed", str(error))
            case Failed():
                self._log.exception("following namespaces failed")

    def _end_if_over(self) -> None:
        if self.is_over:
            raise _OverError
