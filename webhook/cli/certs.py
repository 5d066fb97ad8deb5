"""`vramwarden certs`, and the options about certificates that `serve` has, too."""

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
    CertificatesError,
    CertificateStatus,
    Publish,
    Replica,
    Status,
    Terms,
    create,
    describe,
    holds,
    read,
    service_names,
    uses,
)
from webhook.adapters.kube.certificates import CertificatesApi, Round
from webhook.cli.programs import duration
from webhook.names import WEBHOOK_CONFIGURATION
from webhook.options import (
    ExitCode,
    Failure,
    NoCluster,
    WrongInput,
    cluster_options,
    output_option,
    reach,
)

Bundles = tuple[tuple[str, bool], ...]

_Command = TypeVar("_Command", bound="Callable[..., Any]")


def secret_option(
    name: str, *, text: str, required: bool = False, may_be_bare: bool = False
) -> Callable[[_Command], _Command]:
    """Take NAMESPACE/NAME of the Secret that replicas share.

    If it `may_be_bare`, a name without a namespace is accepted, and the namespace is "".
    """
    form = "[NAMESPACE/]NAME" if may_be_bare else "NAMESPACE/NAME"

    def read(_context: Context, _option: Parameter, text: str | None) -> tuple[str, str] | None:
        if text is None:
            return None
        namespace, slash, name = text.rpartition("/")
        if not name or "/" in namespace or not (namespace if slash else may_be_bare):
            raise click.BadParameter(f"write {form}")
        return namespace, name

    return click.option(
        name,
        metavar=form,
        callback=read,
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
    help="The Service, in the Secret's namespace, that its certificate is for.",
)
CONFIGURATION_OPTION = click.option(
    "--webhook-configuration",
    metavar="NAME",
    default=WEBHOOK_CONFIGURATION,
    show_default=True,
    envvar="VRAMWARDEN_WEBHOOK_CONFIGURATION",
    show_envvar=True,
    help="Webhook configurations, of both kinds, whose caBundle goes with the Secret.",
)
REGISTERING_OPTION = click.option(
    "--webhook-configuration",
    metavar="NAME",
    envvar="VRAMWARDEN_WEBHOOK_CONFIGURATION",
    show_envvar=True,
    help="Webhook configurations, of both kinds, that the path of bind and the owner are"
    " written into; with a Secret the caBundle, too."
    f"  [default: {WEBHOOK_CONFIGURATION}, with a Secret]",
)
"""Option of `serve`, which writes there without a Secret as well."""
OVERLAP_OPTION = click.option(
    "--ca-overlap",
    metavar="DURATION",
    callback=duration(),
    default="24h",
    show_default=True,
    envvar="VRAMWARDEN_CA_OVERLAP",
    show_envvar=True,
    help="How long a new CA is published before it signs, with a Secret.",
)


def overlapping(overlap_s: float) -> Terms:
    """Return the terms with another overlap; no CA waits longer than that to settle."""
    usual = Terms()
    return Terms(overlap_s=overlap_s, settle_s=min(usual.settle_s, overlap_s))


def folder_option(*, text: str, required: bool = False) -> Callable[[_Command], _Command]:
    """Take the folder of certificates."""
    folder = click.Path(file_okay=False, path_type=Path)
    return click.option("--cert-dir", type=folder, required=required, help=text)


_SECRET = secret_option(
    "--secret", required=True, text="The Secret that all replicas share.", may_be_bare=True
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
    wanted = [*names]
    if service is not None:
        name, dot, namespace = service.partition(".")
        if not (name and dot and namespace) or "." in namespace:
            raise click.BadParameter("write NAME.NAMESPACE", param_hint="--service")
        wanted.extend(service_names(name, namespace))
    try:
        create(cert_dir, wanted or ("localhost", "127.0.0.1", "::1"), datetime.now(UTC))
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
    """Issue certificates into a Secret, or adopt what it holds; put the CA into the caBundles.

    What each replica of `serve --cert-secret` does by itself, once and by hand. Safe to repeat.

    Exit code 0: done; 1: something cannot be written; 2: wrong usage; 3: the cluster did not
    answer, or you may not do it.
    """
    cluster = cluster_of(secret, **where)
    wanted = (*service_names(service, cluster.namespace), *names)
    try:
        found = cluster.round(Replica(wanted))
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
        replica = Replica(())
        outcome = cluster.rotate(replica)
        click.echo(f"{cluster.title}: another CA is {'; '.join(outcome.reasons)}")
        found = cluster.round(replica)
    except CertificatesError as error:
        raise _failure(cluster, str(error)) from error
    _report(cluster, found)


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

    With --secret also whether each caBundle holds the CAs.

    Exit code 0: nothing is wrong; 1: something is; 2: wrong usage; 3: the cluster did not answer,
    or you may not read it.
    """
    if secret and cert_dir:
        raise click.UsageError("--cert-dir is a folder, --secret is not; drop one of the two")
    bundles: Bundles | None = None
    if secret:
        cluster = cluster_of(secret, **where)
        name = f"{cluster.namespace}/{cluster.name}"
        place, what, cure = f"secret    {name}", f"the Secret {name}", f"install --secret {name}"
        try:
            held = cluster.secret()
            bundles = _bundle_lines(cluster, held.bundle)
        except CertificatesError as error:
            raise _failure(cluster, str(error)) from error
        stored, there = held.bundle, bool(held.version)
    elif cert_dir:
        place, what = f"folder    {cert_dir}", str(cert_dir)
        cure = f"issue --cert-dir {shlex.quote(what)}"
        try:
            stored, there = read(cert_dir), cert_dir.exists()
        except CertificatesError as error:
            raise WrongInput(str(error)) from error
    else:
        raise click.UsageError("name a folder by --cert-dir, or a Secret by --secret")
    now = datetime.now(UTC)
    found = describe(stored, now)
    nothing = stored == Bundle()
    problems = [*found.problems, *_lacks(bundles)]
    if nothing:
        lacks = "holds no certificates" if there else "does not exist"
        problems = [f"{what} {lacks}; run: vramwarden certs {cure}"]
    if output == "json":
        click.echo(json.dumps(_as_json(found, uses(stored, now), bundles, problems), indent=2))
    elif not nothing:
        click.echo(place)
        for role, certificate, use in _roles(found, uses(stored, now)):
            click.echo(_as_line(role, certificate, use))
        for webhook, holds in bundles or ():
            click.echo(f"caBundle  {webhook}: {'holds' if holds else 'lacks'} the CA")
        who = "by the replicas" if secret and found.issues else "by whoever issued it"
        click.echo(f"renewal   {who}")
    for problem in problems:
        click.echo(f"problem: {problem}", err=True)
    context.exit(ExitCode.FOUND if problems else ExitCode.DONE)


def _lacks(bundles: Bundles | None) -> list[str]:
    if bundles is None:
        return []
    cure = "a replica of `serve --cert-secret` puts it there, or `certs install`"
    lacking = [f"{webhook}: the caBundle lacks the CA; {cure}" for webhook, h in bundles if not h]
    return lacking or ([] if bundles else ["there is no webhook configuration of that name"])


def _roles(found: Status, used: Sequence[str]) -> Iterator[tuple[str, CertificateStatus, str]]:
    """Yield each certificate with its role and its use."""
    if found.serving:
        names = ", ".join(found.serving.names)
        yield "serving", found.serving, f"for {names}" if names else ""
    for authority, use in zip(found.authorities, used, strict=True):
        yield "ca", authority, use


def _as_line(role: str, certificate: CertificateStatus, use: str) -> str:
    due = certificate.renewal_due
    words = [f"renewal due {due:%Y-%m-%d}"] if due else []
    words += [use] if use else []
    until = f"{certificate.days_left:.1f} days left (until {certificate.not_after:%Y-%m-%d})"
    return ", ".join((f"{role:<9} {until}", *words))


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
            "renewalDue": due.isoformat() if (due := certificate.renewal_due) else None,
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
    """Return the cluster that options name; end the command if none is known."""
    # Imported here: the client takes a moment, and 35 MiB.
    from webhook.adapters.kube.certificates import CertificatesApi  # noqa: PLC0415

    # Once: the user repeats the command.
    reached = reach(kubeconfig, context, namespace, tries=1)
    of, name = secret
    return CertificatesApi(reached.kube, of or reached.namespace, name, (webhook_configuration,))


def _failure(cluster: CertificatesApi, sentences: str) -> click.ClickException:
    return (NoCluster if cluster.is_unanswered else Failure)(sentences)


def _bundle_lines(cluster: CertificatesApi, bundle: Bundle) -> tuple[tuple[str, bool], ...]:
    """Return each webhook, and True if its caBundle holds all CAs; raises CertificatesError."""
    return tuple(
        (f"{one.title}, {webhook}", holds(pem, bundle))
        for one in cluster.configurations()
        for webhook, pem in one.bundles
    )


def _report(cluster: CertificatesApi, found: Round) -> None:
    for step in found.done:
        if isinstance(step, Publish):
            webhooks = ", ".join(webhook for webhook, _ in step.bundles)
            click.echo(f"{step.configuration.title}: caBundle written ({webhooks})")
        else:
            click.echo(f"{cluster.title}: {step.action} ({'; '.join(step.reasons)})")
    if not found.done:
        click.echo(f"{cluster.title}: kept")
    if found.failures:
        raise _failure(cluster, "\n".join(found.failures))
    if found.unready:
        click.echo(f"warning: {found.unready}", err=True)
