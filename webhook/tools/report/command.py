"""The command `report`."""

from __future__ import annotations

from pathlib import Path

import click

from webhook.names import DEFAULT_NAMESPACE
from webhook.options import (
    NAMESPACES,
    ExitCode,
    choose_exit_code,
    connect_to_cluster,
    connection_options,
    name_completer,
    namespace_option,
    output_option,
    policy_failure,
)
from webhook.tools.report.render import as_json, as_text


@click.command("report")
@connection_options
@namespace_option("Only this one.  [default: all]")
@click.option(
    "--policy",
    "path",
    type=click.Path(exists=True, path_type=Path),
    metavar="PATH",
    help="A policy file or folder.  [default: the one in force]",
)
@click.option(
    "--release",
    shell_complete=name_completer(NAMESPACES),
    default=DEFAULT_NAMESPACE,
    show_default=True,
    metavar="NS",
    help="The namespace that vramwarden is installed in.",
)
@output_option("Tables, or everything for programs.")
def report_command(
    *,
    kubeconfig: Path | None,
    context: str | None,
    namespace: str | None,
    path: Path | None,
    release: str,
    output: str,
) -> None:
    """List the pods that would be denied or stopped if every rule enforced.

    It judges the pods that run now as if they were created again, under the policy in force or the
    one that you pass, with Enforce in place of Audit and Warn. Pods of exempt namespaces, which
    vramwarden never sees, are only counted. A workload whose pods are denied now has no pod to
    judge, and is listed with the reason. Which pods would have been stopped is known only where
    their policy says onExcess: Report. It reads with your own rights and changes nothing. Where
    rules select by labels of namespaces, you need the right to read namespaces.

    \b
    vramwarden report                        all namespaces, the policy in force
    vramwarden report -n team-a              one namespace
    vramwarden report --policy next.yaml     what a policy would do that you have not installed

    Exit code 0: no pod is or would be denied or stopped; 1: one is, or the policy is not valid;
    2: wrong usage; 3: the cluster did not answer, or you may not read what would say it.
    """  # noqa: D301 - click wants the character, not two
    # Imported here, because client and policies would slow down every --help.
    from webhook.adapters.policy.files import PolicyInvalidError  # noqa: PLC0415
    from webhook.tools.problems.recreation import PodOutcome  # noqa: PLC0415
    from webhook.tools.report.fetch import choose_policy, read_report  # noqa: PLC0415
    from webhook.tools.snapshot.cluster import reading_cluster  # noqa: PLC0415
    from webhook.tools.snapshot.namespace import NamespaceSnapshot  # noqa: PLC0415

    try:
        with reading_cluster():
            kube = connect_to_cluster(kubeconfig, context, None).kube
            policy, where = choose_policy(kube, path, release)
            snapshot = NamespaceSnapshot(kube, namespace or "")
            found = read_report(snapshot, policy, where, release)
    except PolicyInvalidError as error:
        raise policy_failure(error.problems) from error
    click.echo(as_json(found) if output == "json" else as_text(found), nl=False)
    change = ExitCode.FOUND if found.has_findings else ExitCode.DONE
    unknown = ExitCode.UNANSWERED if found.counts[PodOutcome.UNKNOWN] else ExitCode.DONE
    click.get_current_context().exit(choose_exit_code((change, unknown)))
