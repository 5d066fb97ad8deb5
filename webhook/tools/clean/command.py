"""The command `clean`."""

from __future__ import annotations

from pathlib import Path

import click

from webhook.options import (
    ExitCode,
    Failure,
    NoCluster,
    choose_exit_code,
    connect_to_cluster,
    connection_options,
)
from webhook.tools.render.output import write_lines


@click.command("clean")
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Also what another installation would use again: the label vramwarden.io/share of nodes, "
    "and the kinds GPUNode and VRAMHistory with all objects.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@connection_options
def clean_command(
    *, everything: bool, dry_run: bool, kubeconfig: Path | None, context: str | None
) -> None:
    """Remove what an uninstalled release left in the cluster.

    From nodes it removes the labels, annotations, amounts and conditions that begin with
    vramwarden.io/. Webhook configurations, admission policies and roles with vramwarden's label are
    left only if the namespace was deleted before the release; they are removed as well. Pods stay
    as they are. It acts with your own rights, prints one line per node and kind, and can be
    repeated. While vramwarden is installed it removes nothing and exits with 1.

    \b
    vramwarden clean --dry-run     what would be removed
    vramwarden clean               all that another installation writes again
    vramwarden clean --all         also the label share, and what was measured

    Exit code 0: done; 1: vramwarden is still installed; 2: wrong usage; 3: the cluster did not
    answer or denied something, or you have too few rights.
    """  # noqa: D301 - click wants the character, not two
    # Imported here: the client would slow down every --help.
    from webhook.adapters.kube.errors import KubeError  # noqa: PLC0415
    from webhook.tools.clean.remove import Cleaner, why_installed  # noqa: PLC0415
    from webhook.tools.snapshot.objects import FactUnavailable  # noqa: PLC0415

    codes: list[ExitCode] = []

    def report(text: str, code: ExitCode) -> None:
        click.echo(write_lines([text]), nl=False, err=code is not ExitCode.DONE)
        codes.append(code)

    try:
        kube = connect_to_cluster(kubeconfig, context, None).kube
        if why := why_installed(kube):
            raise Failure(why)
        Cleaner(kube, report, dry_run=dry_run, everything=everything).run()
    except KubeError as error:
        raise NoCluster(str(error)) from error
    except FactUnavailable as error:
        raise NoCluster(error.why) from error
    if not codes:
        click.echo("nothing of vramwarden is left")
    click.get_current_context().exit(choose_exit_code(codes))
