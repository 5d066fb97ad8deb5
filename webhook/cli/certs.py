"""`vramwarden certs`, and the certificate options that `serve` shares."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import click
from click import Context, Parameter

from certs import (
    Bundle,
    CaBundleUpdate,
    CertificatesError,
    CertificateStatus,
    Replica,
    RotationPeriods,
    Status,
    authority_uses,
    describe,
    has_all_authorities,
    issue_into_folder,
    read_folder,
    service_names,
)
from webhook.adapters.kube.certificates import CertificatesApi, Round
from webhook.cli.program_options import duration_parser
from webhook.names import WEBHOOK_CONFIGURATION
from webhook.options import (
    ExitCode,
    Failure,
    NoCluster,
    WrongInput,
    cluster_options,
    connect_to_cluster,
    output_option,
)

CaBundles = tuple[tuple[str, bool], ...]
"""Webhook names, each with True if the webhook's caBundle contains all CAs."""

_Command = TypeVar("_Command", bound="Callable[..., Any]")


def secret_option(
    name: str, *, text: str, required: bool = False, may_be_bare: bool = False
) -> Callable[[_Command], _Command]:
    """Return an option for NAMESPACE/NAME of the Secret that replicas share.

    If `may_be_bare`, a name without a namespace is accepted, and the namespace is "".
    """
    form = "[NAMESPACE/]NAME" if may_be_bare else "NAMESPACE/NAME"

    def parse_name(
        _context: Context, _option: Parameter, text: str | None
    ) -> tuple[str, str] | None:
        if text is None:
            return None
        namespace, slash, name = text.rpartition("/")
        if not name or "/" in namespace or not (namespace if slash else may_be_bare):
            raise click.BadParameter(f"write {form}")
        return namespace, name

    return click.option(
        name,
        metavar=form,
        callback=parse_name,
        required=required,
        envvar="VRAMWARDEN_CERT_SECRET",
        show_envvar=True,
        help=text,
    )


SERVICE_OPTION = click.option(
    "--service",
    metavar="NAME",
    default="vramwarden-webhook",
    show_default=True,
    envvar="VRAMWARDEN_CERT_SERVICE",
    show_envvar=True,
    help="Service in the Secret's namespace, for which the certificate is issued.",
)
CONFIGURATION_OPTION = click.option(
    "--webhook-configuration",
    metavar="NAME",
    default=WEBHOOK_CONFIGURATION,
    show_default=True,
    envvar="VRAMWARDEN_WEBHOOK_CONFIGURATION",
    show_envvar=True,
    help="Webhook configurations, of both kinds, whose caBundle is reconciled with the Secret.",
)
REGISTERING_OPTION = click.option(
    "--webhook-configuration",
    metavar="NAME",
    envvar="VRAMWARDEN_WEBHOOK_CONFIGURATION",
    show_envvar=True,
    help="Webhook configurations, of both kinds, into which the path of bind and the owner are"
    " written; with a Secret the caBundle, too."
    f"  [default: {WEBHOOK_CONFIGURATION}, with a Secret]",
)
"""Option of `serve`, which writes to the configurations even without a Secret."""
OVERLAP_OPTION = click.option(
    "--ca-overlap",
    metavar="DURATION",
    callback=duration_parser(),
    default="24h",
    show_default=True,
    envvar="VRAMWARDEN_CA_OVERLAP",
    show_envvar=True,
    help="How long a new CA is published before it signs, with a Secret.",
)


def rotation_periods(overlap_s: float) -> RotationPeriods:
    """Return the default periods with this overlap, which also limits the settling time."""
    settle_s = min(RotationPeriods().settle_s, overlap_s)
    return RotationPeriods(overlap_s=overlap_s, settle_s=settle_s)


def folder_option(*, text: str, required: bool = False) -> Callable[[_Command], _Command]:
    """Return an option for the folder that contains the certificates."""
    folder = click.Path(file_okay=False, path_type=Path)
    return click.option("--cert-dir", type=folder, required=required, help=text)


_SECRET = secret_option(
    "--secret", required=True, text="Secret that all replicas share.", may_be_bare=True
)


@click.group("certs")
def certs_group() -> None:
    """Issue certificates, install them into a cluster, and show their status."""


@certs_group.command("issue")
@folder_option(text="The folder; it must hold no certificates yet.", required=True)
@click.option("--name", "names", multiple=True, help="A DNS name or address to serve under.")
@click.option("--service", metavar="NAME.NAMESPACE", help="A Service, with all its DNS names.")
def issue(cert_dir: Path, names: tuple[str, ...], service: str | None) -> None:
    """Create a CA and a serving certificate in a folder.

    Nothing is overwritten, and nothing renews them. Without names: localhost.
    """
    all_names = [*names]
    if service is not None:
        name, dot, namespace = service.partition(".")
        if not (name and dot and namespace) or "." in namespace:
            raise click.BadParameter("write NAME.NAMESPACE", param_hint="--service")
        all_names.extend(service_names(name, namespace))
    try:
        issue_into_folder(
            cert_dir, all_names or ("localhost", "127.0.0.1", "::1"), datetime.now(UTC)
        )
    except CertificatesError as error:
        raise WrongInput(str(error)) from error
    click.echo(f"{cert_dir}: issued")


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
    """Issue certificates into a Secret, or use those in it; put the CA into the caBundles.

    It does once what each replica of `serve --cert-secret` does by itself. Safe to repeat.

    Exit code 0: done; 1: something cannot be written; 2: wrong usage; 3: the cluster did not
    answer, or you may not do it.
    """
    cluster = connect_cluster(secret, **where)
    all_names = (*service_names(service, cluster.namespace), *names)
    try:
        result = cluster.round(Replica(all_names))
    except CertificatesError as error:
        raise _failure(cluster, str(error)) from error
    _report(cluster, result)


@certs_group.command("rotate")
@_SECRET
@CONFIGURATION_OPTION
@cluster_options
def rotate(*, secret: tuple[str, str], **where: Any) -> None:
    """Announce another CA, before the old one expires.

    The replicas publish it in addition to the old one, issue from it after their --ca-overlap, and
    remove the old one when none of its certificates can be valid any more.

    Exit code 0: done; 1: there is none to rotate, or something cannot be written; 2: wrong usage;
    3: the cluster did not answer, or you may not do it.
    """
    cluster = connect_cluster(secret, **where)
    try:
        replica = Replica(())
        outcome = cluster.rotate(replica)
        click.echo(f"{cluster.title}: another CA is {'; '.join(outcome.reasons)}")
        result = cluster.round(replica)
    except CertificatesError as error:
        raise _failure(cluster, str(error)) from error
    _report(cluster, result)


@certs_group.command("status")
@folder_option(text="Read this folder.")
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

    With --secret it also shows whether each caBundle contains the CAs.

    Exit code 0: nothing is wrong; 1: something is; 2: wrong usage; 3: the cluster did not answer,
    or you may not read it.
    """
    if secret and cert_dir:
        raise click.UsageError("--cert-dir is a folder, --secret is not; drop one of the two")
    bundles: CaBundles | None = None
    if secret:
        cluster = connect_cluster(secret, **where)
        name = f"{cluster.namespace}/{cluster.name}"
        heading, title, cure = f"secret    {name}", f"the Secret {name}", f"install --secret {name}"
        try:
            in_secret = cluster.secret()
            bundles = _read_ca_bundles(cluster, in_secret.bundle)
        except CertificatesError as error:
            raise _failure(cluster, str(error)) from error
        stored, exists = in_secret.bundle, bool(in_secret.version)
    elif cert_dir:
        heading, title = f"folder    {cert_dir}", str(cert_dir)
        cure = f"issue --cert-dir {shlex.quote(title)}"
        try:
            stored, exists = read_folder(cert_dir), cert_dir.exists()
        except CertificatesError as error:
            raise WrongInput(str(error)) from error
    else:
        raise click.UsageError("name a folder by --cert-dir, or a Secret by --secret")
    now = datetime.now(UTC)
    status, uses = describe(stored, now), authority_uses(stored, now)
    is_empty = stored == Bundle()
    problems = [*status.problems, *_ca_bundle_problems(bundles)]
    if is_empty:
        problem = "holds no certificates" if exists else "does not exist"
        problems = [f"{title} {problem}; run: vramwarden certs {cure}"]
    if output == "json":
        click.echo(json.dumps(_build_json(status, uses, bundles, problems), indent=2))
    elif not is_empty:
        click.echo(heading)
        for role, certificate, use in _roles(status, uses):
            click.echo(_format_line(role, certificate, use))
        for webhook, is_complete in bundles or ():
            click.echo(f"caBundle  {webhook}: {'holds' if is_complete else 'lacks'} the CA")
        renewer = "by the replicas" if secret and status.has_ca_key else "by whoever issued it"
        click.echo(f"renewal   {renewer}")
    for problem in problems:
        click.echo(f"problem: {problem}", err=True)
    context.exit(ExitCode.FOUND if problems else ExitCode.DONE)


def _ca_bundle_problems(bundles: CaBundles | None) -> list[str]:
    if bundles is None:
        return []
    cure = "a replica of `serve --cert-secret` puts it there, or `certs install`"
    problems = [
        f"{webhook}: the caBundle lacks the CA; {cure}"
        for webhook, is_complete in bundles
        if not is_complete
    ]
    return problems or ([] if bundles else ["there is no webhook configuration of that name"])


def _roles(status: Status, uses: Sequence[str]) -> Iterator[tuple[str, CertificateStatus, str]]:
    """Yield each certificate with its role and a description of its use."""
    if status.serving:
        names = ", ".join(status.serving.names)
        yield "serving", status.serving, f"for {names}" if names else ""
    for authority, use in zip(status.authorities, uses, strict=True):
        yield "ca", authority, use


def _format_line(role: str, certificate: CertificateStatus, use: str) -> str:
    due = certificate.renewal_due
    notes = [f"renewal due {due:%Y-%m-%d}"] if due else []
    notes += [use] if use else []
    until = f"{certificate.days_left:.1f} days left (until {certificate.not_after:%Y-%m-%d})"
    return ", ".join((f"{role:<9} {until}", *notes))


def _build_json(
    status: Status, uses: Sequence[str], bundles: CaBundles | None, problems: list[str]
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
            "renewalDue": due.isoformat() if (due := certificate.renewal_due) else None,
            "sha256": certificate.fingerprint_sha256,
        }
        for role, certificate, use in _roles(status, uses)
    ]
    document = {
        "certificates": certificates,
        "ownIssuer": status.has_ca_key,
        "problems": problems,
    }
    if bundles is not None:
        document["caBundles"] = [
            {"webhook": webhook, "holdsCA": is_complete} for webhook, is_complete in bundles
        ]
    return document


def connect_cluster(
    secret: tuple[str, str],
    webhook_configuration: str,
    kubeconfig: Path | None,
    context: str | None,
    namespace: str | None,
) -> CertificatesApi:
    """Return the API of the selected cluster, or end the command if no cluster can be used."""
    # Imported here because the client needs 35 MiB and time to load.
    from webhook.adapters.kube.certificates import CertificatesApi  # noqa: PLC0415

    # A single attempt: the user can repeat the command.
    reached = connect_to_cluster(kubeconfig, context, namespace, tries=1)
    given_namespace, name = secret
    return CertificatesApi(
        reached.kube, given_namespace or reached.namespace, name, (webhook_configuration,)
    )


def _failure(cluster: CertificatesApi, sentences: str) -> click.ClickException:
    return (NoCluster if cluster.is_unanswered else Failure)(sentences)


def _read_ca_bundles(cluster: CertificatesApi, bundle: Bundle) -> CaBundles:
    """Return for each webhook whether its caBundle contains all CAs; raises CertificatesError."""
    return tuple(
        (f"{configuration.title}, {webhook}", has_all_authorities(pem, bundle))
        for configuration in cluster.configurations()
        for webhook, pem in configuration.bundles
    )


def _report(cluster: CertificatesApi, result: Round) -> None:
    for step in result.done:
        if isinstance(step, CaBundleUpdate):
            webhooks = ", ".join(webhook for webhook, _ in step.bundles)
            click.echo(f"{step.configuration.title}: caBundle written ({webhooks})")
        else:
            click.echo(f"{cluster.title}: {step.action} ({'; '.join(step.reasons)})")
    if not result.done:
        click.echo(f"{cluster.title}: kept")
    if result.failures:
        raise _failure(cluster, "\n".join(result.failures))
    if result.unready:
        click.echo(f"warning: {result.unready}", err=True)
