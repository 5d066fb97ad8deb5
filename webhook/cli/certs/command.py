"""`vramwarden certs`: issue certificates, install them into a cluster, and show their status."""

from __future__ import annotations

import json
import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from certs import (
    Bundle,
    CertificatesError,
    Replica,
    Store,
    describe,
    ensure,
    holds,
    read,
    service_names,
    uses,
)
from webhook.cli.certs.options import (
    CONFIGURATION_OPTION,
    SERVICE_OPTION,
    default_certificate_folder,
    secret_option,
)
from webhook.options import (
    ExitCode,
    Failure,
    NoCluster,
    WrongInput,
    cluster_options,
    output_option,
    reach,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from certs import CertificateStatus, Round, SharedCluster, Status
    from webhook.adapters.kube.certificates import CertificatesApi

    Bundles = tuple[tuple[str, bool], ...]

_FOLDER = click.option(
    "--cert-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder.  [default: the one `serve` uses]",
)
_SECRET = secret_option(
    "--secret", required=True, text="The Secret that all replicas share.", may_be_bare=True
)


@click.group("certs")
def certs_group() -> None:
    """Issue certificates, install them into a cluster, and show their status."""


@certs_group.command("issue")
@_FOLDER
@click.option("--name", "names", multiple=True, help="A DNS name or address to serve under.")
@click.option("--service", metavar="NAME.NAMESPACE", help="A Service, with all its DNS names.")
def issue(cert_dir: Path | None, names: tuple[str, ...], service: str | None) -> None:
    """Create or renew a CA and a serving certificate in a folder.

    Safe to repeat. Certificates of somebody else in the folder are left as they are. Without
    names: localhost.
    """
    folder = cert_dir or default_certificate_folder()
    wanted = [*names]
    if service is not None:
        name, dot, namespace = service.partition(".")
        if not (name and dot and namespace) or "." in namespace:
            raise click.BadParameter("write NAME.NAMESPACE", param_hint="--service")
        wanted.extend(service_names(name, namespace))
    try:
        outcome = ensure(folder, wanted or ("localhost", "127.0.0.1", "::1"), datetime.now(UTC))
    except (CertificatesError, ValueError) as error:
        raise WrongInput(str(error)) from error
    reasons = f" ({'; '.join(outcome.reasons)})" if outcome.reasons else ""
    click.echo(f"{folder}: {outcome.action}{reasons}")
    for problem in outcome.problems:
        click.echo(f"warning: {problem}", err=True)


@certs_group.command("install")
@_SECRET
@SERVICE_OPTION
@click.option("--name", "names", multiple=True, help="A further DNS name or address.")
@CONFIGURATION_OPTION
@cluster_options
def install(
    *,
    secret: tuple[str, str],
    service: str,
    names: tuple[str, ...],
    **where: Any,
) -> None:
    """Issue certificates into a Secret, or adopt what it holds; put the CA into the caBundles.

    What each replica of `serve --cert-secret` does by itself, once and by hand. Safe to repeat.

    Exit code 0: done; 1: something cannot be written; 2: wrong usage; 3: the cluster did not
    answer, or you may not do it.
    """
    cluster = cluster_of(secret, **where)
    wanted = (*service_names(service, cluster.namespace), *names)
    try:
        found = Replica(cluster, wanted).round()
    except CertificatesError as error:
        raise _failure(cluster, str(error)) from error
    _report(cluster, found)


@certs_group.command("rotate")
@_SECRET
@CONFIGURATION_OPTION
@cluster_options
def rotate(*, secret: tuple[str, str], **where: Any) -> None:
    """Announce another CA, before the old one expires.

    The replicas publish it beside the old one, issue from it after their --ca-overlap, and forget
    the old one when none of its certificates can be valid any more.

    Exit code 0: done; 1: there is none to rotate, or something cannot be written; 2: wrong usage;
    3: the cluster did not answer, or you may not do it.
    """
    cluster = cluster_of(secret, **where)
    try:
        replica = Replica(cluster, ())
        outcome = replica.rotate()
        click.echo(f"{cluster.title}: another CA is {'; '.join(outcome.reasons)}")
        found = replica.round()
    except CertificatesError as error:
        raise _failure(cluster, str(error)) from error
    _report(cluster, found)


@certs_group.command("status")
@_FOLDER
@secret_option("--secret", text="Read this Secret instead of a folder.", may_be_bare=True)
@CONFIGURATION_OPTION
@cluster_options
@output_option("Lines for people, or everything for programs.")
@click.pass_context
def show(
    context: click.Context,
    /,
    *,
    cert_dir: Path | None,
    secret: tuple[str, str] | None,
    output: str,
    **where: Any,
) -> None:
    """Show certificates, their names and their days left.

    With --secret also whether each caBundle holds the CAs.

    Exit code 0: nothing is wrong; 1: something is; 2: wrong usage; 3: the cluster did not answer,
    or you may not read it.
    """
    if secret and cert_dir:
        raise click.UsageError("--cert-dir is a folder, --secret is not; drop one of the two")
    folder = cert_dir or default_certificate_folder()
    place, bundles = f"folder    {folder}", None
    cluster = cluster_of(secret, **where) if secret else None
    try:
        if cluster:
            secret = cluster.namespace, cluster.name
            held = cluster.secret()
            stored, there = held.bundle, bool(held.version)
            place, bundles = f"secret    {'/'.join(secret)}", _bundle_lines(cluster, stored)
        else:
            stored, there = read(folder), folder.exists()
    except CertificatesError as error:
        raise (_failure(cluster, str(error)) if cluster else WrongInput(str(error))) from error
    now = datetime.now(UTC)
    found = describe(stored, now)
    nothing = stored == Bundle()
    problems = [*found.problems, *_lacks(bundles)]
    if nothing:
        problems = [_nothing(cert_dir, folder, secret, there=there)]
    if output == "json":
        click.echo(json.dumps(_as_json(found, uses(stored, now), bundles, problems), indent=2))
    elif not nothing:
        click.echo(place)
        for role, certificate, use in _roles(found, uses(stored, now)):
            click.echo(_as_line(role, certificate, use))
        for webhook, holds in bundles or ():
            click.echo(f"caBundle  {webhook}: {'holds' if holds else 'lacks'} the CA")
        who = "by `serve` and by hand" if found.issues else "by whoever issued it"
        click.echo(f"renewal   {who}")
    for problem in problems:
        click.echo(f"problem: {problem}", err=True)
    context.exit(ExitCode.FOUND if problems else ExitCode.DONE)


def _nothing(
    cert_dir: Path | None, folder: Path, secret: tuple[str, str] | None, *, there: bool
) -> str:
    """Say that there are no certificates, and which command makes some."""
    if secret:
        name = "/".join(secret)
        what = f"the Secret {name}"
        cure = f"install --secret {name}"
    else:
        what = str(folder)
        cure = f"issue --cert-dir {shlex.quote(what)}" if cert_dir else "issue"
    lacks = "holds no certificates" if there else "does not exist"
    return f"{what} {lacks}; run: vramwarden certs {cure}"


def _lacks(bundles: Bundles | None) -> list[str]:
    if bundles is None:
        return []
    cure = "a replica of `serve --cert-secret` puts it there, or `certs install`"
    lacking = [f"{webhook}: the caBundle lacks the CA; {cure}" for webhook, h in bundles if not h]
    return lacking or ([] if bundles else ["there is no webhook configuration of that name"])


def _roles(found: Status, used: Sequence[str]) -> Iterator[tuple[str, CertificateStatus, str]]:
    """Yield each certificate with its role and what it is for."""
    if found.serving:
        names = ", ".join(found.serving.names)
        yield "serving", found.serving, f"for {names}" if names else ""
    for authority, use in zip(found.authorities, used, strict=True):
        yield "ca", authority, use


def _as_line(role: str, certificate: CertificateStatus, use: str) -> str:
    return (
        f"{role:<9} {certificate.days_left:.1f} days left (until {certificate.not_after:%Y-%m-%d}),"
        f" renewal due {certificate.renewal_due:%Y-%m-%d}{', ' * bool(use)}{use}"
    )


def _as_json(
    found: Status, used: Sequence[str], bundles: Bundles | None, problems: list[str]
) -> dict[str, Any]:
    certificates = [
        {
            "role": role,
            "use": use,
            "subject": certificate.subject,
            "names": list(certificate.names),
            "notBefore": certificate.not_before.isoformat(),
            "notAfter": certificate.not_after.isoformat(),
            "daysLeft": round(certificate.days_left, 2),
            "renewalDue": certificate.renewal_due.isoformat(),
            "sha256": certificate.fingerprint_sha256,
        }
        for role, certificate, use in _roles(found, used)
    ]
    shown = {"certificates": certificates, "ownIssuer": found.issues, "problems": problems}
    if bundles is not None:
        shown["caBundles"] = [{"webhook": name, "holdsCA": holds} for name, holds in bundles]
    return shown


def cluster_of(
    secret: tuple[str, str],
    webhook_configuration: str,
    kubeconfig: Path | None,
    context: str | None,
    namespace: str | None,
) -> CertificatesApi:
    """Return the cluster that options name; ends the command where none is known."""
    # Imported here: the client takes a moment, and 35 MiB.
    from webhook.adapters.kube.certificates import CertificatesApi  # noqa: PLC0415

    # Once: a round is repeated by whoever asked for it.
    reached = reach(kubeconfig, context, namespace, tries=1)
    of, name = secret
    return CertificatesApi(reached.kube, of or reached.namespace, name, (webhook_configuration,))


def _failure(cluster: CertificatesApi, sentences: str) -> click.ClickException:
    return (NoCluster if cluster.is_unanswered else Failure)(sentences)


def _bundle_lines(cluster: SharedCluster, bundle: Bundle) -> tuple[tuple[str, bool], ...]:
    """Return each webhook, and whether its caBundle holds all CAs; raises CertificatesError."""
    return tuple(
        (f"{one.title}, {webhook}", holds(pem, bundle))
        for one in cluster.configurations()
        for webhook, pem in one.bundles
    )


def _report(cluster: CertificatesApi, found: Round) -> None:
    for step in found.done:
        if isinstance(step, Store):
            click.echo(f"{cluster.title}: {step.action} ({'; '.join(step.reasons)})")
        else:
            webhooks = ", ".join(webhook for webhook, _ in step.bundles)
            click.echo(f"{step.configuration.title}: caBundle written ({webhooks})")
    if not found.done:
        click.echo(f"{cluster.title}: kept")
    if found.failures:
        raise _failure(cluster, "\n".join(found.failures))
    if found.unready:
        click.echo(f"warning: {found.unready}", err=True)
