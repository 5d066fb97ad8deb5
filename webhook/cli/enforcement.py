"""`vramwarden sentry`, `limiter` and `enforce`: the programs that enforce caps."""

from __future__ import annotations

import sys
from typing import Any

import click

from webhook.cli.program_options import enforcement_options, require_node_and_namespace
from webhook.limiter.settings import CGROUPS, LimiterSettings
from webhook.names import LIMITER_FOLDER
from webhook.sentry.settings import HOST, METRICS_PORT, SentrySettings
from webhook.sidecar.__main__ import TERMINATION_LOG, start
from webhook.sidecar.heartbeat import RUN_FOLDER


@click.command("sentry")
@enforcement_options
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
@click.option("--host", default=HOST, show_default=True, help="Address for probes and metrics.")
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
    help="Name of this program's pod, for its Events.",
)
@click.option(
    "--limiter-folder",
    default=LIMITER_FOLDER,
    show_default=True,
    help="Folder in which this node's limiter, if there is one, stores its results.",
)
def sentry_command(*, node: str, namespace: str, **settings: Any) -> None:
    """Enforce the VRAM caps of this node's pods that no sidecar enforces.

    Runs on each GPU node with hostPID until SIGTERM; one JSON line per event on standard output.

    Exit codes: 0 stopped, 1 failed, 75 a new container is needed for a new driver, 142 the driver
    did not answer for a minute.
    """
    require_node_and_namespace(node, namespace)
    # Imported here because pynvml and kubernetes would slow down every other command.
    from webhook.sentry.loop import sentry  # noqa: PLC0415

    sys.exit(sentry(SentrySettings(node=node, namespace=namespace, **settings)))


@click.command("limiter")
@enforcement_options
@click.option(
    "--cgroups",
    metavar="FOLDER",
    default=CGROUPS,
    show_default=True,
    help="Mount point of the node's cgroups (version 2).",
)
@click.option(
    "--dmem/--no-dmem",
    default=False,
    show_default=True,
    help="Enable the kernel's controller dmem for each pod, if the driver uses it for limits.",
)
@click.option(
    "--folder",
    metavar="FOLDER",
    default=LIMITER_FOLDER,
    show_default=True,
    help="Folder in which the results are stored, for the sentry.",
)
def limiter_command(*, node: str, namespace: str, **settings: Any) -> None:
    """Let the driver enforce the VRAM caps of this node's pods, from driver r615 on.

    Runs on each GPU node with SYS_ADMIN until SIGTERM; one JSON line per event on standard output.

    Exit codes: 0 stopped, 1 failed, 75 a new container is needed for a new driver, 142 the driver
    did not answer for a minute.
    """
    require_node_and_namespace(node, namespace)
    # Imported here because pynvml and kubernetes would slow down every other command.
    from webhook.limiter.loop import limiter  # noqa: PLC0415

    sys.exit(limiter(LimiterSettings(node=node, namespace=namespace, **settings)))


@click.command("enforce")
@click.option(
    "--self-test",
    is_flag=True,
    help="Report what can be enforced here, and exit. On a node's shell run it by `unshare --pid "
    "--fork --mount-proc`: in the node's own process namespace it always fails.",
)
@click.option(
    "--run-folder",
    type=click.Path(file_okay=False),
    default=RUN_FOLDER,
    show_default=True,
    help="Folder of the heartbeat.",
)
@click.option(
    "--termination-log",
    type=click.Path(dir_okay=False),
    default=TERMINATION_LOG,
    show_default=True,
    help="File for the last verdict; written only if it exists.",
)
def enforce_command(*, self_test: bool, run_folder: str, termination_log: str) -> None:
    """Enforce a VRAM cap on the processes of this PID namespace, as the sidecar does in a pod.

    Settings come from the environment: VRAM_CAP_BYTES (per GPU; the only one without a default),
    VRAM_GPUS (which ones; all if it is not set), VRAM_POLL_INTERVAL, VRAM_GRACE, VRAM_TOLERANCE,
    VRAM_BLIND_AFTER, VRAM_WHEN_BLIND, VRAM_ON_EXCESS (Stop; Report stops nothing) and
    VRAM_DRIVER_LIMIT (Auto or Require; empty asks the driver for no limit).

    The same program is `python -m webhook.sidecar`, which needs only pynvml.

    Exit codes: 0 stopped, 70 the self-test failed, 75 the driver changed, 88 the pod must restart,
    142 the self-test hung.
    """
    sys.exit(start(run_folder, termination_log, only_test=self_test))
