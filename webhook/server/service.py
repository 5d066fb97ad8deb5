"""Composition root of the webhook: settings in, gunicorn running until it is stopped."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Any, Final, TypeVar

from gunicorn.app.base import BaseApplication

from webhook.adapters.kube.client import Kube
from webhook.adapters.kube.release_objects import FenceApi
from webhook.adapters.policy.files import PolicySource
from webhook.core.policy.cluster import Cluster
from webhook.core.policy.model import Policy, Rollout
from webhook.server.bind_path import BindPath
from webhook.server.certificates import CertificateKeeper
from webhook.server.cluster_cache import ClusterCache
from webhook.server.connections import Connections
from webhook.server.fence import FenceKeeper
from webhook.server.http import Connection
from webhook.server.log import JsonLog, ServerLogger
from webhook.server.metrics import Metrics
from webhook.server.operations import Health, ServerPart, bind_port, create_app
from webhook.server.placement.reviews import BindingReviews
from webhook.server.placement.service import PlacementService
from webhook.server.policies import PolicyReload
from webhook.server.registration import Registration
from webhook.server.reviews import PodReviews, TemplateReviews
from webhook.server.router import Router
from webhook.server.worker import DRAIN_S, DrainingWorker

P = TypeVar("P", bound="ServerPart")

_BACKLOG: Final = 2048  # gunicorn's own
_GARBAGE: Final = 100_000
"""Objects made before the collector runs; Python's own figure is 700."""
_NOT_OURS: Final = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Where to listen and what to serve with."""

    policy: Path
    certificates: Callable[[Metrics, JsonLog], CertificateKeeper]
    """Called once the ports are taken."""
    host: str
    port: int
    operations_host: str
    operations_port: int | None
    """None means the default one or, where that is taken, any."""
    enforcer_image: str
    api_servers: Sequence[IPv4Network | IPv6Network] = ()
    """Where API servers are, as far as that is known."""
    registration: Callable[[BindPath, JsonLog], Registration] | None = None
    """Registers the path of bind; None where somebody else does."""
    rollout: Rollout = Rollout.ENFORCE
    kube: Kube | None = None
    """The process' one connection; None for a server that knows no cluster."""
    placement_namespace: str = ""
    """Where the lists of who has which GPU are kept, and the fence's rules; empty for a server that
    neither places nor writes them, and follows no cluster."""
    key: bytes = b""
    """Seals the fence's rules; the same in all replicas."""


class CannotListenError(Exception):
    """A port that cannot be listened on: where, why, and which setting is at fault."""

    def __init__(self, part: str, host: str, port: int | None, error: Exception) -> None:
        unknown = isinstance(error, socket.gaierror | UnicodeError)
        by_host = unknown or getattr(error, "errno", None) in _NOT_OURS
        where = host if by_host or port is None else address(host, port)
        why = getattr(error, "strerror", None) or "not a host name"
        super().__init__(f"{where} cannot be listened on ({why})")
        self.setting = f"{part}{'host' if by_host else 'port'}"


class Service(BaseApplication):  # type: ignore[misc]  # gunicorn is not typed
    """The webhook under gunicorn, which is the master of one worker process.

    One process holds one policy and one set of counters; a platform scales by replicas.
    """

    def __init__(self, settings: ServerSettings) -> None:
        """Take the ports, then prepare certificate and policy.

        Raises CannotListenError, CertificatesError, PolicyInvalidError, KubeError.
        """
        self._settings = settings
        with _listening("", settings.host, settings.port):
            self._listener, self.port = _listen(settings.host, settings.port)
        where = settings.operations_host, settings.operations_port
        with _listening("operations_", *where):
            self._operations = bind_port(*where)
        self._log = JsonLog()
        self._metrics = Metrics()
        self._health = Health()
        self._parts: list[ServerPart] = []
        self.certificates = self._part(settings.certificates(self._metrics, self._log))
        if settings.registration:
            self._part(settings.registration(self.certificates.bind_path, self._log))
        kube, namespace = settings.kube, settings.placement_namespace
        self._policies = PolicySource(settings.policy, settings.enforcer_image)
        dependents: list[Callable[[], None]] = []
        placement: PlacementService | None = None
        known_for: Callable[[Policy], Cluster] = partial(_alone, Cluster(settings.rollout))
        if kube and namespace:
            rules = FenceApi(kube, namespace), self._policy, settings.rollout
            keeper = self._part(FenceKeeper(*rules, settings.key, self._log))
            if not settings.key:
                self._log.warning("there is no key: what fences read is not proven to be ours")
            known = kube, self._policy, settings.rollout, self._log
            cache = self._part(ClusterCache(*known, limits=lambda: placed.limits()))  # noqa: PLW0108 - made below
            known_for = cache.known_for
            of_pods = self._metrics, self._log, self._policy, known_for
            placed = placement = self._part(PlacementService(kube, namespace, *of_pods))
            dependents += keeper.policy_changed, cache.policy_changed
        told = self._metrics, self._log
        # The last part, so that the others have started before a reload reaches them.
        self._policy_reload = self._part(PolicyReload(self._policies, *told, dependents))
        binder = placement.binder if placement else None
        warn: dict[str, Any] = {"warn": placement.advisor.warn} if placement else {}
        more: dict[str, Any] = {"more": placement.advisor.warn_author} if placement else {}
        self._bindings = BindingReviews(binder, *told)
        self._reviews = PodReviews(self._policy, *told, known_for=known_for, **warn)
        self._templates = TemplateReviews(self._policy, *told, known_for=known_for, **more)
        if kube:
            kube.disconnect()
        super().__init__()

    @property
    def operations_port(self) -> int:
        """Where probes and metrics are served."""
        return self._operations.server_port

    def load_config(self) -> None:
        """Configure gunicorn."""
        options: dict[str, Any] = {
            "bind": [f"fd://{self._listener}"],
            "proc_name": "vramwarden",
            "worker_class": DrainingWorker,
            "workers": 1,
            "graceful_timeout": int(DRAIN_S) + 5,
            "logger_class": ServerLogger,
            "loglevel": "warning",
            "post_worker_init": self._worker_started,
            # A read-only root has no other place for the workers' heartbeat files.
            "worker_tmp_dir": "/dev/shm" if os.access("/dev/shm", os.W_OK) else None,  # noqa: S108
            "control_socket_disable": True,
        }
        for name, value in options.items():
            self.cfg.set(name, value)

    def load(self) -> Callable[[asyncio.AbstractEventLoop, socket.socket], Connections]:
        """Return what the worker runs."""
        return self._serve

    def _serve(self, loop: asyncio.AbstractEventLoop, listener: socket.socket) -> Connections:
        """Make the TLS port's connections, and let the event loop show that it turns."""
        self._beating = loop.create_task(_beat(self._health.beat))
        self._log.info(
            "serving",
            address=address(self._settings.host, self.port),
            policy=self._policies.current.short_digest,
            rules=[rule.name for rule in self._policies.current.rules],
            certificates=str(self.certificates),
            operations=address(self._settings.operations_host, self._operations.server_port),
        )
        context = self.certificates.context()
        connect = partial(Connection, self.router())
        closed, api_servers = self._metrics.count_closed, self._settings.api_servers
        connections = Connections(loop, listener, context, connect, closed, api_servers)
        self._metrics.in_flight.set_function(lambda: connections.in_flight)
        return connections

    def router(self) -> Router:
        """Return what answers requests."""
        return Router(
            self._reviews,
            self._bindings,
            self._metrics,
            self._log,
            binds_at=self.certificates.bind_path.answers,
            templates=self._templates,
        )

    def _worker_started(self, worker: Any) -> None:
        """Start, after the fork, what runs beside the reviews."""
        # A large review is 200,000 objects, and not one of them is garbage until it is answered.
        # The collector would go through them a dozen times while the event loop waits.
        gc.freeze()
        gc.set_threshold(_GARBAGE)
        self._health.serve_while(lambda: not worker.draining)
        self._policy_reload.show()
        self._operations.start(create_app(self._health, self._metrics, self._details))
        for part in self._parts:
            part.start()

    def _part(self, part: P) -> P:
        """Take what runs beside the reviews; no traffic comes before it says so."""
        self._parts.append(part)
        self._health.wait_for(part.obstacle)
        return part

    def _policy(self) -> Policy:
        return self._policies.current

    def _details(self) -> dict[str, str]:
        problems = self._policies.problems
        return {
            "policy": self._policies.current.short_digest,
            "policy problems": "; ".join(map(str, problems)) or "none",
            "certificates": str(self.certificates),
        }


def _alone(cluster: Cluster, _policy: Policy) -> Cluster:
    """Return what a server knows that follows no cluster."""
    return cluster


@contextmanager
def _listening(part: str, host: str, port: int | None) -> Iterator[None]:
    try:
        yield
    except (OSError, UnicodeError) as error:
        raise CannotListenError(part, host, port, error) from error


def _listen(host: str, port: int) -> tuple[int, int]:
    """Listen; return the socket's descriptor, which gunicorn takes over, and the port.

    Gunicorn itself would try five times, after certificates are issued, and end without saying
    what to do.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        # As gunicorn has it: a restart need not wait for connections of the one before.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except (OSError, UnicodeError):
        listener.close()
        raise
    port = listener.getsockname()[1]
    return listener.detach(), port


async def _beat(beat: Callable[[], None]) -> None:
    while True:
        beat()
        await asyncio.sleep(1.0)


def address(host: str, port: int) -> str:
    """Return how an address is written, in URLs too."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
