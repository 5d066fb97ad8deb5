"""`vramwarden sentry`: holds the caps of a node's pods from outside."""

from __future__ import annotations

import sys
from typing import Any

import click

from webhook.cli.programs import holds_caps, require_place
from webhook.names import LIMITER_FOLDER
from webhook.sentry.settings import HOST, METRICS_PORT, SentrySettings


@click.command("sentry")
@holds_caps
@click.option(
    "--act/--no-act",
    default=True,
    show_default=True,
    help="Stop pods over their caps that no sidecar stops, as root with KILL; or only report.",
)
@click.option(
    "--pod-metrics/--no-pod-metrics",
    default=True,
    show_default=True,
    help="Show cap, use, peak and stops of each pod on /metrics, by its name.",
)
@click.option("--host", default=HOST, show_default=True, help="Where to answer probes.")
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    default=METRICS_PORT,
    show_default=True,
    help="Port of /metrics, /livez and /readyz; 0 for any that is free.",
)
@click.option(
    "--pod-name",
    default="",
    envvar="POD_NAME",
    show_envvar=True,
    help="Name of our own pod, for the Events.",
)
@click.option(
    "--limiter-folder",
    default=LIMITER_FOLDER,
    show_default=True,
    help="Where this node's limiter, if it has one, leaves what it did.",
)
def sentry_command(*, node: str, namespace: str, **settings: Any) -> None:
    """Hold the pods of this node to their VRAM caps where no sidecar does.

    Runs on each GPU node with hostPID until SIGTERM; one JSON line per event on standard output.

    Exit codes: 0 stopped, 1 failed, 75 a new container is needed for a new driver, 142 the driver
    kept it waiting for a minute.
    """
    require_place(node, namespace)
    # Imported here: pynvml and kubernetes would slow down every other command.
    from webhook.sentry.loop import sentry  # noqa: PLC0415

    sys.exit(sentry(SentrySettings(node=node, namespace=namespace, **settings)))
