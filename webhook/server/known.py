"""What a replica keeps in mind of the cluster because decisions follow from it: a base for that."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from threading import Thread
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from webhook.adapters.kube.client import KubeError
from webhook.adapters.kube.follow import Changed, Failed, Listed, follow

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from webhook.adapters.kube.follow import Collection, Report
    from webhook.core.policy.values import Policy
    from webhook.server.log import JsonLog

T = TypeVar("T")

KNOWN_WITHIN_S: Final = 10.0
"""How long a replica that cannot find out stays unready: what is decided without may be poorer, but
a pod that nobody decides about is denied for certain."""


class Known(ABC, Generic[T]):
    """Follows objects of the API server; may be read from any thread.

    | the API server says | known |
    | --- | --- |
    | nothing yet | none |
    | what exists, and each change | that |
    | that we may not read it | as before, so at first none |
    | nothing more | as before |
    """

    def __init__(
        self,
        what: str,
        followed: Collection[T],
        log: JsonLog,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Send no request yet; `what` names the objects in the log, as `the RuntimeClass`."""
        self._what = what
        self._followed = followed
        self._log = log
        self._clock = clock
        self._started_s = clock()
        self._answered = False

    def start(self) -> None:
        """Begin to follow on a daemon thread."""
        self._started_s = self._clock()
        name = type(self).__name__
        Thread(target=follow, args=(self._followed, self.hear), name=name, daemon=True).start()

    @property
    def is_settled(self) -> bool:
        """Whether it is known, or cannot be."""
        return self._answered or self._clock() - self._started_s >= KNOWN_WITHIN_S

    @abstractmethod
    def obstacle(self) -> str:
        """Return why no traffic should come yet; empty for no reason."""

    @abstractmethod
    def told(self, policy: Policy) -> Policy:
        """Return a policy that knows what is known of the cluster."""

    @abstractmethod
    def _take_all(self, things: Sequence[T]) -> None:
        """Take a complete list."""

    @abstractmethod
    def _take(self, kind: str, thing: T) -> None:
        """Take a change."""

    def hear(self, report: Report[T]) -> None:
        """Take a report of `follow`."""
        match report:
            case Listed(things, watched):
                self._take_all(things)
                self._answered = True
                if watched:
                    self._log.over(self._what, f"{self._what} are followed again")
            case Changed(kind, thing):
                self._take(kind, thing)
            case Failed(KubeError() as error):
                self._answered = self._answered or error.forbidden
                message = f"{self._what} cannot be followed"
                self._log.once(self._what, "error", message, str(error))
            case Failed():
                self._log.exception(f"following {self._what} failed")
