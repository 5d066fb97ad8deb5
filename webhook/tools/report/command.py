"""The command `report`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from webhook.core.words import named
from webhook.names import DEFAULT_NAMESPACE
from webhook.options import (
    NAMESPACES,
    ExitCode,
    NoCluster,
    connection_options,
    default_enforcer_image,
    first_of,
    names_of,
    namespace_option,
    output_option,
    policy_failure,
    reach,
)
from webhook.tools.report.show import RolloutReport, as_json, as_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from webhook.adapters.kube.client import Kube
    from webhook.core.policy.values import Policy
    from webhook.tools.shared.release import Scope


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
    shell_complete=names_of(NAMESPACES),
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
    """Say whom the policy would deny and who would be stopped, if every rule enforced.

    It judges the pods that run now as if they were created again, under the policy in force or the
    one that you pass, with Enforce in place of Audit and Warn. Pods of exempt namespaces, which
    vramwarden never sees, are only counted. Who would have been stopped is known for pods whose
    policy says onExcess: Report. It acts with your own rights and changes nothing; who created a
    pod is not stored, so rules by users and groups are judged as for nobody. Where rules ask for
    labels of namespaces, you need the right to read these.

    \b
    vramwarden report                        all namespaces, the policy in force
    vramwarden report -n team-a              one namespace
    vramwarden report --policy next.yaml     what a policy would do that you have not installed

    Exit code 0: nobody would be denied or stopped; 1: somebody would, or the policy is not valid;
    2: wrong usage; 3: the cluster did not answer, or you may not read what would say it.
    """  # noqa: D301 - click wants the character, not two
    # Imported here: the client and policies would slow down every --help.
    from webhook.adapters.policy.files import PolicyInvalidError  # noqa: PLC0415
    from webhook.tools.shared.read import reading  # noqa: PLC0415

    try:
        with reading():
            kube = reach(kubeconfig, context, None).kube
            policy, where = _policy(kube, path, release)
            found = report(kube, policy, where, namespace or "", release)
    except PolicyInvalidError as error:
        raise policy_failure(error) from error
    click.echo(as_json(found) if output == "json" else as_text(found), nl=False)
    change = ExitCode.FOUND if found.would_change else ExitCode.DONE
    unknown = ExitCode.UNANSWERED if found.unjudged else ExitCode.DONE
    click.get_current_context().exit(first_of((change, unknown)))


def report(kube: Kube, policy: Policy, where: str, namespace: str, release: str) -> RolloutReport:
    """Read what the user may read, and judge it; raises KubeError where pods cannot be read."""
    from webhook.adapters.kube.client import KubeError  # noqa: PLC0415 - as above
    from webhook.tools.report.judge import RolloutJudge  # noqa: PLC0415
    from webhook.tools.report.read import read_counters  # noqa: PLC0415
    from webhook.tools.shared.read import (  # noqa: PLC0415
        read_each_pod,
        read_gpu_nodes,
        why_no_figures,
        why_no_pods,
    )

    scope, why_usual = _scope(kube, release)
    wanted = policy.namespace_labels | scope.labels
    labels, why_no_labels = _namespace_labels(kube, wanted, namespace)
    judged, missing = RolloutJudge(policy, scope, labels), []
    try:
        read_each_pod(kube, namespace, judged.add)
    except KubeError as error:
        raise NoCluster(why_no_pods(error, namespace)) from error
    try:
        nodes = read_gpu_nodes(kube)
    except KubeError as error:
        nodes = []
        missing.append(why_no_figures(error))
    counters, why = read_counters(kube, release)
    if why:
        missing.append(why)
    missing += judged.missing(why_no_labels)
    if why_no_labels and scope.labels:
        keys = named(scope.labels)
        missing.append(f"which namespaces are exempt by their label {keys}, {why_no_labels}")
    return RolloutReport(
        policy=f"{where}, {policy.short_digest}",
        pods=judged.pods,
        denied_pods=judged.denied_pods,
        untranslated=judged.untranslated,
        exempt_pods=judged.exempt_pods,
        exempt_namespaces=judged.exempt_namespaces,
        why_usual=why_usual,
        denied=judged.denied(),
        over_cap=judged.over_cap(nodes),
        counted=counters,
        missing=missing,
        unjudged=judged.unjudged if why_no_labels else 0,
        now_s=kube.now_s(),
    )


def _scope(kube: Kube, release: str) -> tuple[Scope, str]:
    """Return which namespaces count, and why that is by the chart's defaults; raises KubeError."""
    from webhook.adapters.kube.client import KubeError  # noqa: PLC0415 - as above
    from webhook.tools.shared.release import read_scope, usual_scope  # noqa: PLC0415

    try:
        found = read_scope(kube)
    except KubeError as error:
        if not error.forbidden:
            raise
        return usual_scope(release), "you may not read vramwarden's webhook configuration"
    return (found, "") if found else (usual_scope(release), "there is no webhook configuration")


def _namespace_labels(
    kube: Kube, wanted: frozenset[str], namespace: str
) -> tuple[Mapping[str, Mapping[str, str] | None], str]:
    """Return the wanted labels by namespace, or why they are not known."""
    from webhook.adapters.kube.client import KubeError  # noqa: PLC0415 - as above
    from webhook.adapters.kube.namespaces import read_labels  # noqa: PLC0415

    try:
        return (read_labels(kube, namespace, wanted) if wanted else {}), ""
    except KubeError as error:
        verb = "get" if namespace else "list"
        cure = f"ask an administrator for the right to {verb} namespaces"
        return {}, f"which you may not read; {cure}" if error.forbidden else f"but: {error}"


def _policy(kube: Kube, path: Path | None, release: str) -> tuple[Policy, str]:
    """Return the policy and where it is from; raises PolicyInvalidError or KubeError."""
    from webhook.adapters.kube.client import KubeError  # noqa: PLC0415 - as above
    from webhook.adapters.policy.files import load_policy  # noqa: PLC0415
    from webhook.tools.shared.release import POLICIES, read_policy  # noqa: PLC0415

    if path is not None:
        return load_policy(path, enforcer_image=default_enforcer_image()), str(path)
    try:
        found = read_policy(kube, release)
    except KubeError as error:
        if error.forbidden:
            raise NoCluster(f"{error}; name a policy of your own with --policy") from error
        raise
    if found is None:
        raise NoCluster(
            f"there is no policy in force: namespace {release} has no ConfigMap {POLICIES}; name "
            "the namespace of the release with --release, or a policy with --policy"
        )
    return found
