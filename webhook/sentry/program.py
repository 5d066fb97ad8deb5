"""The program from its start to its exit code."""

from __future__ import annotations

import signal
from typing import NoReturn

from webhook import __version__
from webhook.adapters import host_environment
from webhook.adapters.journal import Journal
from webhook.adapters.kube.client import Kube
from webhook.adapters.node_nvml import NodeNvml
from webhook.nodekit.program import NotStartedError, run_program
from webhook.sentry.loop import Sentry
from webhook.sentry.metrics import SentryMetrics
from webhook.sentry.probes import Liveness, serve
from webhook.sentry.settings import SentrySettings


def sentry(settings: SentrySettings) -> int:
    """Hold the caps of a node's pods until SIGTERM; returns the exit code.

    That of `run_program`; 1 also where the port is taken, and 142 (128 and SIGALRM) where nothing
    was seen for a minute longer than intended.
    """
    liveness = Liveness(alarm=signal.alarm)
    metrics = SentryMetrics(settings.node, of_pods=settings.pod_metrics)

    def work(kube: Kube, journal: Journal) -> NoReturn:
        try:
            port = serve(settings.host, settings.metrics_port, liveness, metrics)
        except OSError as error:
            where = f"{settings.host}:{settings.metrics_port} cannot be served: {error}"
            raise NotStartedError("no port", f"{where}; use --host and --metrics-port") from error
        started = {"node": settings.node, "version": __version__, "act": settings.act, "port": port}
        journal.event("info", "started", api=kube.url, **started)
        rights = host_environment.own_rights(proc=settings.proc)
        if settings.act and not rights.holds:
            journal.event("warning", "others' processes are out of reach", why=rights.reason)
        Sentry(settings, kube, NodeNvml(), journal, metrics, liveness).run()

    return run_program(settings.kubeconfig, work)
