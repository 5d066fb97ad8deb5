"""`vramwarden limiter`: has a node's driver hold pods to their caps, where it can."""

from __future__ import annotations

import sys
from typing import Any

import click

from webhook.cli.programs import holds_caps, require_place
from webhook.limiter.settings import CGROUPS, LimiterSettings
from webhook.names import LIMITER_FOLDER


@click.command("limiter")
@holds_caps
@click.option(
    "--cgroups",
    metavar="FOLDER",
    default=CGROUPS,
    show_default=True,
    help="Where the node's cgroups (version 2) are mounted.",
)
@click.option(
    "--dmem/--no-dmem",
    default=False,
    show_default=True,
    help="Enable the kernel's controller dmem down to each pod, where the driver limits by it.",
)
@click.option(
    "--folder",
    metavar="FOLDER",
    default=LIMITER_FOLDER,
    show_default=True,
    help="Where to leave what was done, for the sentry.",
)
def limiter_command(*, node: str, namespace: str, **settings: Any) -> None:
    """Have the driver hold the pods of this node to their VRAM caps, from driver r615 on.

    Runs on each GPU node with SYS_ADMIN until SIGTERM; one JSON line per event on standard output.

    Exit codes: 0 stopped, 1 failed, 75 a new container is needed for a new driver, 142 the driver
    kept it waiting for a minute.
    """
    require_place(node, namespace)
    # Imported here: pynvml and kubernetes would slow down every other command.
    from webhook.limiter.loop import limiter  # noqa: PLC0415

    sys.exit(limiter(LimiterSettings(node=node, namespace=namespace, **settings)))
