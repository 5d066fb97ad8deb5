"""`vramwarden enforce`: the sidecar's program, by hand."""

from __future__ import annotations

import sys

import click

from webhook.sidecar.__main__ import TERMINATION_LOG, start
from webhook.sidecar.heartbeat import RUN_FOLDER


@click.command("enforce")
@click.option(
    "--self-test",
    is_flag=True,
    help="Say what could be enforced here, and exit. On a node's shell run it by `unshare --pid "
    "--fork --mount-proc`: in the node's own process namespace it always fails.",
)
@click.option(
    "--run-folder",
    type=click.Path(file_okay=False),
    default=RUN_FOLDER,
    show_default=True,
    help="Where the heartbeat is.",
)
@click.option(
    "--termination-log",
    type=click.Path(dir_okay=False),
    default=TERMINATION_LOG,
    show_default=True,
    help="File for the last verdict; written only where it exists.",
)
def enforce_command(*, self_test: bool, run_folder: str, termination_log: str) -> None:
    """Hold the processes of this PID namespace to a VRAM cap, as the sidecar does in a pod.

    Settings come from the environment: VRAM_CAP_BYTES (per GPU; the only one without a default),
    VRAM_GPUS (which ones; all if it is not set), VRAM_POLL_INTERVAL, VRAM_GRACE, VRAM_TOLERANCE,
    VRAM_BLIND_AFTER, VRAM_WHEN_BLIND, VRAM_ON_EXCESS (Stop; Report stops nothing) and
    VRAM_DRIVER_LIMIT (Auto or Require; empty asks the driver for no limit).

    The same program is `python -m webhook.sidecar`, which needs only pynvml.

    Exit codes: 0 stopped, 70 the self-test failed, 75 the driver changed, 88 the pod must restart,
    142 the self-test hung.
    """
    sys.exit(start(run_folder, termination_log, only_test=self_test))
