"""The program from its start to its exit code."""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from typing import TYPE_CHECKING, Final

from webhook import __version__
from webhook.adapters import surroundings
from webhook.adapters.journal import Journal
from webhook.adapters.kube.client import KubeError, connect
from webhook.adapters.nvml import Nvml
from webhook.sentry.health import Health
from webhook.sentry.loop import NewContainerNeededError, Sentry
from webhook.sentry.metrics import SentryMetrics
from webhook.sentry.serving import serve

if TYPE_CHECKING:
    from webhook.sentry.settings import SentrySettings

STOPPED: Final = 0
FAILED: Final = 1
NEW_CONTAINER: Final = 75


def sentry(settings: SentrySettings) -> int:
    """Hold the caps of a node's pods until SIGTERM; returns the exit code.

    | exit code | means |
    | --- | --- |
    | 0 | stopped by SIGTERM |
    | 1 | no API server is known, the port is taken, or a bug |
    | 75 | the driver came, was replaced, or we lost its devices: a new container is needed |
    | 142 | nothing was seen for a minute longer than intended (128 and SIGALRM) |
    """
    # Where stdout is closed, its descriptor may soon be another file's.
    journal = Journal(partial(os.write, 1 if sys.stdout else -1))
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    health = Health(alarm=signal.alarm)
    metrics = SentryMetrics(settings.node, of_pods=settings.pod_metrics)
    try:
        kube = connect(settings.kubeconfig)
        try:
            port = serve(settings.host, settings.metrics_port, health, metrics)
        except OSError as error:
            where = f"{settings.host}:{settings.metrics_port} cannot be served: {error}"
            journal.event("error", "no port", why=f"{where}; use --host and --metrics-port")
            return FAILED
        started = {"node": settings.node, "version": __version__, "act": settings.act, "port": port}
        journal.event("info", "started", api=kube.url, **started)
        rights = surroundings.own_rights(proc=settings.proc)
        if settings.act and not rights.holds:
            journal.event("warning", "others' processes are out of reach", why=rights.reason)
        Sentry(settings, kube, Nvml(), journal, metrics, health).run()
    except _StoppedError:
        journal.event("info", "stopped")
        return STOPPED
    except KubeError as error:
        journal.event("error", "no API server", why=str(error))
        return FAILED
    except NewContainerNeededError as error:
        journal.event("error", "a new container is needed", why=str(error))
        return NEW_CONTAINER
    raise AssertionError  # the loop only ends by an exception


class _StoppedError(Exception):
    """SIGTERM or SIGINT."""


def _stop(_number: int, _frame: object) -> None:
    raise _StoppedError
