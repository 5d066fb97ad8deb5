"""`vramwarden certs install`, `rotate`, `status --secret`: certificates in a cluster, by hand."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from certs import CertificatesError, Replica, Store, holds, service_names
from webhook.cli.certs.options import configuration_option, secret_option, service_option
from webhook.options import Failure

if TYPE_CHECKING:
    from collections.abc import Callable

    from certs import Bundle, Round, SharedCluster
    from webhook.adapters.kube.certificates import CertificatesApi


def cluster_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Take where the cluster is."""
    where = click.option(
        "--kubeconfig",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Where the API server is.  [default: KUBECONFIG, the pod's account, ~/.kube/config]",
    )
    which = click.option("--context", "kube_context", help="Context of the kubeconfig.")
    return where(which(command))


@click.command("install")
@secret_option("--secret", required=True, text="The Secret that all replicas share.")
@service_option
@click.option("--name", "names", multiple=True, help="A further DNS name or address.")
@configuration_option
@cluster_options
def install(
    *,
    secret: tuple[str, str],
    service: str,
    names: tuple[str, ...],
    webhook_configuration: str,
    kubeconfig: Path | None,
    kube_context: str | None,
) -> None:
    """Issue certificates into a Secret, or adopt what it holds; put the CA into the caBundles.

    What each replica of `serve --cert-secret` does by itself, once and by hand. Safe to repeat.
    """
    wanted = (*service_names(service, secret[0]), *names)
    try:
        cluster = cluster_of(secret, webhook_configuration, kubeconfig, kube_context)
        found = Replica(cluster, wanted).round()
    except CertificatesError as error:
        raise Failure(str(error)) from error
    _report(cluster, found)


@click.command("rotate")
@secret_option("--secret", required=True, text="The Secret that all replicas share.")
@configuration_option
@cluster_options
def rotate(
    *,
    secret: tuple[str, str],
    webhook_configuration: str,
    kubeconfig: Path | None,
    kube_context: str | None,
) -> None:
    """Announce another CA, before the old one expires.

    The replicas publish it beside the old one, issue from it after their --ca-overlap, and forget
    the old one when none of its certificates can be valid any more.
    """
    try:
        cluster = cluster_of(secret, webhook_configuration, kubeconfig, kube_context)
        replica = Replica(cluster, ())
        outcome = replica.rotate()
        click.echo(f"{cluster.title}: {outcome.action} ({'; '.join(outcome.reasons)})")
        found = replica.round()
    except CertificatesError as error:
        raise Failure(str(error)) from error
    _report(cluster, found)


def cluster_of(
    secret: tuple[str, str],
    webhook_configuration: str,
    kubeconfig: Path | None = None,
    kube_context: str | None = None,
) -> CertificatesApi:
    """Return the cluster that options name; ends the command where none is known."""
    # Imported here: the client takes a moment, and 35 MiB.
    from webhook.adapters.kube.certificates import CertificatesApi  # noqa: PLC0415
    from webhook.adapters.kube.client import NoClusterError, connect  # noqa: PLC0415

    try:
        # Once: a round is repeated by whoever asked for it.
        kube = connect(kubeconfig, context=kube_context, tries=1)
    except NoClusterError as error:
        raise Failure(str(error)) from error
    return CertificatesApi(kube, *secret, (webhook_configuration,))


def bundle_lines(cluster: SharedCluster, bundle: Bundle) -> tuple[tuple[str, bool], ...]:
    """Return each webhook, and whether its caBundle holds all CAs; raises CertificatesError."""
    return tuple(
        (f"{one.title}, {webhook}", holds(pem, bundle))
        for one in cluster.configurations()
        for webhook, pem in one.bundles
    )


def _report(cluster: SharedCluster, found: Round) -> None:
    for step in found.done:
        if isinstance(step, Store):
            click.echo(f"{cluster.title}: {step.action} ({'; '.join(step.reasons)})")
        else:
            webhooks = ", ".join(webhook for webhook, _ in step.bundles)
            click.echo(f"{step.configuration.title}: caBundle written ({webhooks})")
    if not found.done:
        click.echo(f"{cluster.title}: kept")
    if found.failures:
        raise Failure("\n".join(found.failures))
    if found.unready:
        click.echo(f"warning: {found.unready}", err=True)
