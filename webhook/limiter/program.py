"""The program from its start to its exit code."""

from __future__ import annotations

from typing import NoReturn

from webhook import __version__
from webhook.adapters.journal import Journal
from webhook.adapters.kube.client import Kube
from webhook.adapters.node_nvml import NodeNvml
from webhook.limiter.loop import Limiter
from webhook.limiter.settings import LimiterSettings
from webhook.nodekit.program import run_program


def limiter(settings: LimiterSettings) -> int:
    """Have the driver hold a node's pods until SIGTERM; returns the exit code.

    That of `run_program`; 142 (128 and SIGALRM, as the sentry's) where the driver did not answer
    for a minute.
    """

    def work(kube: Kube, journal: Journal) -> NoReturn:
        started = {"node": settings.node, "version": __version__, "dmem": settings.dmem}
        journal.event("info", "started", api=kube.url, **started)
        Limiter(settings, kube, NodeNvml(), journal).run()

    return run_program(settings.kubeconfig, work)
