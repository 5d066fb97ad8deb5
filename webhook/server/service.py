"""Composition root of the webhook, and gunicorn's worker, which drains before it ends.

On SIGTERM the worker sends `Connection: close` with every response. It ends when no connection is
left, or after `DRAIN_S`. If it closed a connection whose last response announced keep-alive, the
caller's next POST could meet an EOF, which the API server does not retry.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Any, Final, TypeVar

import uvloop
from gunicorn.app.base import BaseApplication
from gunicorn.workers.base import Worker

from webhook.adapters.kube.client import Kube
from webhook.adapters.kube.release_objects import FenceApi
from webhook.adapters.policy.files import PolicySource
from webhook.core.policy.cluster import Cluster
from webhook.core.policy.model import Policy, Rollout
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
from webhook.server.registration import BindPath, Registration
from webhook.server.reviews import PodReviews, TemplateReviews
from webhook.server.router import Router

P = TypeVar("P", bound="ServerPart")

_BACKLOG: Final = 2048  # gunicorn's default
_GC_THRESHOLD: Final = 100_000
"""Number of allocations before the garbage collector runs; Python's default is 700."""
_HOST_ERRORS: Final = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})
"""Errors of `bind` that are caused by the host, not by the port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Addresses, certificates, policies and optional parts of the server."""

    policy: Path
    certificates: Callable[[Metrics, JsonLog], CertificateKeeper]
    """Called after the ports are bound."""
    host: str
    port: int
    operations_host: str
    operations_port: int | None
    """Port of probes and metrics; None for the default port or, if that is taken, any free one."""
    enforcer_image: str
    api_servers: Sequence[IPv4Network | IPv6Network] = ()
    """Known addresses of API servers."""
    registration: Callable[[BindPath, JsonLog], Registration] | None = None
    """Registers the path of /bind; None if another program or an admin registers it."""
    rollout: Rollout = Rollout.ENFORCE
    kube: Kube | None = None
    """This process's only connection to the API server; None without a cluster."""
    placement_namespace: str = ""
    """Namespace of the assignment lists and the fence's rules. If empty, the server assigns no
    GPU, writes no rules and does not watch the cluster."""
    key: bytes = b""
    """Key shared by all replicas, which seals the fence's rules."""


class CannotListenError(Exception):
    """The server cannot listen. States the address, the reason and the wrong setting."""

    def __init__(self, part: str, host: str, port: int | None, error: Exception) -> None:
        is_unknown = isinstance(error, socket.gaierror | UnicodeError)
        is_host_wrong = is_unknown or getattr(error, "errno", None) in _HOST_ERRORS
        where = host if is_host_wrong or port is None else format_address(host, port)
        reason = getattr(error, "strerror", None) or "not a host name"
        super().__init__(f"{where} cannot be listened on ({reason})")
        self.setting = f"{part}{'host' if is_host_wrong else 'port'}"


class Service(BaseApplication):  # type: ignore[misc]  # gunicorn is not typed
    """The webhook as a gunicorn application: a master and one worker process.

    There is one worker, because a process has one policy in force and one set of counters. Replicas
    scale the webhook.
    """

    def __init__(self, settings: ServerSettings) -> None:
        """Bind the ports, then prepare certificate and policy.

        Raises CannotListenError, CertificatesError, PolicyInvalidError or KubeError.
        """
        self._settings = settings
        with _listening("", settings.host, settings.port):
            self._listener, self.port = _listen(settings.host, settings.port)
        operations = settings.operations_host, settings.operations_port
        with _listening("operations_", *operations):
            self._operations = bind_port(*operations)
        self._log = JsonLog()
        self._metrics = Metrics()
        self._health = Health()
        self._parts: list[ServerPart] = []
        self.certificates = self._add_part(settings.certificates(self._metrics, self._log))
        if settings.registration:
            self._add_part(settings.registration(self.certificates.bind_path, self._log))
        kube, namespace = settings.kube, settings.placement_namespace
        self._policies = PolicySource(settings.policy, settings.enforcer_image)
        on_policy_change: list[Callable[[], None]] = []
        placement: PlacementService | None = None
        view_for: Callable[[Policy], Cluster] = partial(_fixed_view, Cluster(settings.rollout))
        if kube and namespace:
            fence = FenceApi(kube, namespace), self._policy, settings.rollout
            keeper = self._add_part(FenceKeeper(*fence, settings.key, self._log))
            if not settings.key:
                self._log.warning("there is no key: what fences read is not proven to be ours")
            following = kube, self._policy, settings.rollout, self._log
            cache = self._add_part(ClusterCache(*following, limits=lambda: placed.limits()))  # noqa: PLW0108 - assigned below
            view_for = cache.view_for
            placing = self._metrics, self._log, self._policy, view_for
            placed = placement = self._add_part(PlacementService(kube, namespace, *placing))
            on_policy_change += keeper.policy_changed, cache.policy_changed
        reporting = self._metrics, self._log
        # Added last, so that the other parts have started before a reload notifies them.
        self._policy_reload = self._add_part(
            PolicyReload(self._policies, *reporting, on_policy_change)
        )
        binder = placement.binder if placement else None
        warn: dict[str, Any] = {"warn": placement.advisor.warn} if placement else {}
        more: dict[str, Any] = {"more": placement.advisor.warn_author} if placement else {}
        self._bindings = BindingReviews(binder, *reporting)
        self._reviews = PodReviews(self._policy, *reporting, view_for=view_for, **warn)
        self._templates = TemplateReviews(self._policy, *reporting, view_for=view_for, **more)
        if kube:
            kube.disconnect()
        super().__init__()

    @property
    def operations_port(self) -> int:
        """Port of probes and metrics."""
        return self._operations.server_port

    def load_config(self) -> None:
        """Set gunicorn's options."""
        options: dict[str, Any] = {
            "bind": [f"fd://{self._listener}"],
            "proc_name": "vramwarden",
            "worker_class": DrainingWorker,
            "workers": 1,
            "graceful_timeout": int(DRAIN_S) + 5,
            "logger_class": ServerLogger,
            "loglevel": "warning",
            "post_worker_init": self._worker_started,
            # With a read-only root file system, heartbeat files of workers fit nowhere else.
            "worker_tmp_dir": "/dev/shm" if os.access("/dev/shm", os.W_OK) else None,  # noqa: S108
            "control_socket_disable": True,
        }
        for name, value in options.items():
            self.cfg.set(name, value)

    def load(self) -> Callable[[asyncio.AbstractEventLoop, socket.socket], Connections]:
        """Return the function that creates the worker's connections."""
        return self._serve

    def _serve(self, loop: asyncio.AbstractEventLoop, listener: socket.socket) -> Connections:
        """Return the TLS port's connections; start the event loop's heartbeat."""
        self._beating = loop.create_task(_beat(self._health.beat))
        self._log.info(
            "serving",
            address=format_address(self._settings.host, self.port),
            policy=self._policies.current.short_digest,
            rules=[rule.name for rule in self._policies.current.rules],
            certificates=str(self.certificates),
            operations=format_address(self._settings.operations_host, self._operations.server_port),
        )
        context = self.certificates.listening_context()
        connect = partial(Connection, self.router())
        closed, api_servers = self._metrics.count_closed, self._settings.api_servers
        connections = Connections(loop, listener, context, connect, closed, api_servers)
        self._metrics.in_flight.set_function(lambda: connections.in_flight)
        return connections

    def router(self) -> Router:
        """Return the router for the TLS port's requests."""
        return Router(
            self._reviews,
            self._bindings,
            self._metrics,
            self._log,
            is_bind_path=self.certificates.bind_path.accepts,
            templates=self._templates,
        )

    def _worker_started(self, worker: Any) -> None:
        """Start the background parts; called by gunicorn in the worker, after the fork."""
        # A large review consists of 200,000 objects, and none is garbage before the review is
        # answered. The collector would traverse them a dozen times while the event loop waits.
        gc.freeze()
        gc.set_threshold(_GC_THRESHOLD)
        self._health.serve_while(lambda: not worker.draining)
        self._policy_reload.show()
        self._operations.start(create_app(self._health, self._metrics, self._details))
        for part in self._parts:
            part.start()

    def _add_part(self, part: P) -> P:
        """Register a background part, which is started after the fork and delays readiness."""
        self._parts.append(part)
        self._health.add_obstacle(part.obstacle)
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


def _fixed_view(cluster: Cluster, _policy: Policy) -> Cluster:
    """Return the same view for every policy, for a server that does not watch the cluster."""
    return cluster


@contextmanager
def _listening(part: str, host: str, port: int | None) -> Iterator[None]:
    try:
        yield
    except (OSError, UnicodeError) as error:
        raise CannotListenError(part, host, port, error) from error


def _listen(host: str, port: int) -> tuple[int, int]:
    """Listen; return the socket's descriptor, which gunicorn takes over, and the port.

    Gunicorn would try five times, only after certificates are issued, and then end with a message
    that suggests no fix.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        # Like gunicorn: a restart need not wait for connections of the previous process.
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


def format_address(host: str, port: int) -> str:
    """Return host and port as one string, as in a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


DRAIN_S: Final = 10.0
"""Time in seconds in which idle connections may send one more review each."""

QUIET_S: Final = 1.0
"""Time in seconds without any connection after which draining ends. A call that was routed here
before the replica became unready may still be connecting."""

_BEAT_S: Final = 1.0
_POLL_S: Final = 0.1


class DrainingWorker(Worker):  # type: ignore[misc]  # gunicorn is not typed
    """The worker process: one event loop, which runs the application's connections."""

    draining = False

    def init_process(self) -> None:
        """Create the event loop, which also handles signals."""
        self.loop = uvloop.new_event_loop()
        asyncio.set_event_loop(self.loop)
        super().init_process()

    def init_signals(self) -> None:
        """Handle signals on the event loop, between two reviews."""
        for number in self.SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        self.loop.add_signal_handler(signal.SIGTERM, self._begin_to_drain)
        for number in (signal.SIGQUIT, signal.SIGINT):
            self.loop.add_signal_handler(number, self.loop.stop)
        self.loop.add_signal_handler(signal.SIGUSR1, self.log.reopen_files)
        self.loop.add_signal_handler(signal.SIGWINCH, lambda: None)
        # Gunicorn sends this signal to a worker whose heartbeat has stopped.
        self.loop.add_signal_handler(signal.SIGABRT, sys.exit, 1)

    def run(self) -> None:
        """Serve until the loop is stopped."""
        listener = self.sockets[0].sock
        self._connections: Connections = self.wsgi(self.loop, listener)
        self._connections.start()
        self._beat()
        self.loop.run_forever()
        self._connections.close()
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self.loop.close()

    def _beat(self) -> None:
        """Send the master a heartbeat every second; end if the master is gone."""
        self.notify()
        if self.ppid == os.getppid():
            self.loop.call_later(_BEAT_S, self._beat)
        else:
            self.loop.stop()

    def _begin_to_drain(self) -> None:
        if not self.draining:
            self.draining = self._connections.is_draining = True
            self._draining = self.loop.create_task(self._drain())

    async def _drain(self) -> None:
        now_s = last_seen_s = self.loop.time()
        deadline_s = now_s + DRAIN_S
        while now_s < min(deadline_s, last_seen_s + QUIET_S):
            await asyncio.sleep(_POLL_S)
            now_s = self.loop.time()
            if self._connections.slots:
                last_seen_s = now_s
        # The connections that are still open are idle.
        self.loop.stop()
