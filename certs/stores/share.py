"""Reconcile a Secret and the caBundles, as one of several replicas."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Protocol

from certs.pki.names import tidy
from certs.pki.pem import Bundle, CertificatesError
from certs.rotation.authority import Terms
from certs.rotation.replica import (
    Configuration,
    Memory,
    Publish,
    Store,
    StoredBundle,
    View,
    due,
    to_serve,
    why_not_ready,
)
from certs.rotation.rotate import Advance, SetAction, announce

# Each conflict means that another replica did what was due.
_ATTEMPTS = 20


class ConflictError(Exception):
    """Say that somebody else wrote first; read again."""


class SharedCluster(Protocol):
    """Read and write what replicas share; each call may raise CertificatesError."""

    @property
    def title(self) -> str:
        """Return what messages call the Secret."""

    def secret(self) -> StoredBundle:
        """Return what the Secret holds."""

    def configurations(self) -> tuple[Configuration, ...]:
        """Return our webhook configurations, those that exist."""

    def store(self, bundle: Bundle, before: StoredBundle) -> None:
        """Make the Secret hold this set; raises ConflictError where it changed since."""

    def publish(self, configuration: Configuration, bundles: Iterable[tuple[str, bytes]]) -> None:
        """Give webhooks these caBundles; raises ConflictError where it changed since."""


@dataclass(frozen=True, slots=True)
class Round:
    """Hold what one round found and did.

    ``unready`` says why an API server might reject the certificate, ``failures`` what could not
    be done and why; both are empty when nothing is wrong.
    """

    served: Bundle
    done: tuple[Store | Publish, ...]
    unready: str
    failures: tuple[str, ...]


class Replica:
    """One of several equal replicas: does what is due, and knows which certificate to serve."""

    def __init__(
        self,
        cluster: SharedCluster,
        names: Iterable[str],
        terms: Terms | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Take part for a service of these names; raises CertificatesError for impossible ones."""
        self._cluster = cluster
        self._names = tidy(names)
        self._terms = terms or Terms()
        self._clock = clock
        self._now = now
        self._memory = Memory()

    def round(self) -> Round:
        """Do what is due, one step after the other, and return what to serve.

        Raises CertificatesError where the Secret cannot be read, is missing and cannot be created,
        or holds something broken. Then go on serving what was served.
        """
        done: list[Store | Publish] = []
        failed: dict[object, str] = {}
        for _ in range(_ATTEMPTS):
            view, failures = self._observe()
            steps = [step for step in self._due(view) if _target(step) not in failed]
            if not steps:
                return self._settle(view, done, [*failures, *failed.values()])
            try:
                self._perform(steps[0], view)
            except ConflictError:
                continue
            except CertificatesError as error:
                failed[_target(steps[0])] = str(error)
            else:
                done.append(steps[0])
        raise self._restless()

    def rotate(self) -> Advance:
        """Announce another CA, which rounds bring into force; raises CertificatesError."""
        for _ in range(_ATTEMPTS):
            stored = self._cluster.secret()
            if not stored.version:
                cure = "have a set issued there first"
                raise CertificatesError(self._cluster.title, "does not exist", cure)
            with self._placing_errors():
                outcome = announce(stored.bundle, self._now(), self._terms)
            try:
                if outcome.action is not SetAction.KEPT:
                    self._cluster.store(outcome.bundle, stored)
            except ConflictError:
                continue
            return outcome
        raise self._restless()

    def _observe(self) -> tuple[View, list[str]]:
        stored = self._cluster.secret()
        configurations: tuple[Configuration, ...] | None = None
        failures = []
        try:
            configurations = self._cluster.configurations()
        except CertificatesError as error:
            failures.append(str(error))
        # Read after the answer: what it shows is at least as old.
        now_s = self._clock()
        self._memory = self._memory.having_observed(configurations, now_s)
        now = self._now()
        names, terms = self._names, self._terms
        return View(
            stored=stored,
            configurations=configurations,
            memory=self._memory,
            now=now,
            now_s=now_s,
            names=names,
            terms=terms,
        ), failures

    def _due(self, view: View) -> tuple[Store | Publish, ...]:
        with self._placing_errors():
            return due(view)

    @contextmanager
    def _placing_errors(self) -> Iterator[None]:
        """Name the Secret in an error about a part of its set."""
        try:
            yield
        except CertificatesError as error:
            where = f"{self._cluster.title}, {error.where}"
            raise CertificatesError(where, error.what, error.cure) from error

    def _perform(self, step: Store | Publish, view: View) -> None:
        if isinstance(step, Store):
            self._cluster.store(step.bundle, view.stored)
        else:
            self._cluster.publish(step.configuration, step.bundles)

    def _settle(self, view: View, done: list[Store | Publish], failures: list[str]) -> Round:
        if not view.stored.bundle.certificate_pem:
            cure = "; ".join(failures)
            raise CertificatesError(self._cluster.title, "holds no certificate", cure)
        served = to_serve(view)
        self._memory = replace(self._memory, served=served)
        return Round(served, tuple(done), why_not_ready(view, served), tuple(failures))

    def _restless(self) -> CertificatesError:
        what = "and the caBundles change faster than we can follow"
        return CertificatesError(self._cluster.title, what, "find out who else writes them")


def _target(step: Store | Publish) -> object:
    return step.configuration.title if isinstance(step, Publish) else Store
