"""The command `check`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from webhook import __version__
from webhook.options import (
    NAMESPACES,
    connect_to_cluster,
    connection_options,
    name_completer,
    namespace_option,
    output_option,
)


@click.command("check")
@click.option("--pre", is_flag=True, help="Check whether the cluster can take vramwarden.")
@namespace_option(
    "The release's namespace.  [default: where the webhook configurations lead, else "
    "vramwarden-system]"
)
@click.option(
    "--test-namespace",
    shell_complete=name_completer(NAMESPACES),
    default="default",
    show_default=True,
    metavar="NS",
    help="Where pods are created as a dry run: a namespace to which the policy applies.",
)
@output_option("One line per check, or a CheckReport for programs.")
@connection_options
@click.pass_context
def check_command(
    click_context: click.Context,
    *,
    pre: bool,
    namespace: str | None,
    test_namespace: str,
    output: str,
    kubeconfig: Path | None,
    context: str | None,
) -> None:
    """Check whether what is installed works, or with --pre whether the cluster can take it.

    Prints one line per check; where you have to do something, the next line says what. It reads
    with your own rights, and names what they did not let it check. It reports that vramwarden works
    only if it could make every check of the webhook and the fence, and at least half of all checks.
    It changes nothing: pods are created as a dry run.

    Exit code 0: it works; 1: something has failed; 2: wrong usage; 3: the cluster did not answer,
    or nothing has failed and your rights show too little.
    """
    # Imported here, because client, certificates and policies would slow down every --help.
    from webhook.tools.check.checks import find_verdict, run_checks  # noqa: PLC0415
    from webhook.tools.check.render import as_json, as_text  # noqa: PLC0415
    from webhook.tools.render.output import supports_colour, supports_unicode  # noqa: PLC0415
    from webhook.tools.snapshot.cluster import reading_cluster  # noqa: PLC0415
    from webhook.tools.snapshot.installation import Installation  # noqa: PLC0415

    with reading_cluster():
        facts = Installation(
            connect_to_cluster(kubeconfig, context, namespace).kube,
            __version__,
            is_before=pre,
            namespace=namespace,
            test_namespace=test_namespace,
        )
        outcomes = run_checks(facts)
        report = as_json(outcomes, facts) if output == "json" else ""
    if not report:
        ascii_only, colour = not supports_unicode(sys.stdout), supports_colour(sys.stdout)
        report = as_text(outcomes, is_before=pre, ascii_only=ascii_only, colour=colour)
    sys.stdout.write(report)
    click_context.exit(find_verdict(outcomes).value)
