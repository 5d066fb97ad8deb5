"""`vramwarden certs`: issue certificates, and show what there is."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from certs import CertificatesError, ensure, service_names, status
from webhook.adapters.settings import default_certificate_folder
from webhook.cli.failures import Failure

if TYPE_CHECKING:
    from certs import CertificateStatus, Status

_FOLDER = click.option(
    "--cert-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder.  [default: the one `serve` uses]",
)


@click.group("certs")
def certs_group() -> None:
    """Issue certificates, and show what there is."""


@certs_group.command("issue")
@_FOLDER
@click.option("--name", "names", multiple=True, help="A DNS name or address to serve under.")
@click.option("--service", metavar="NAME.NAMESPACE", help="A Service, with all its DNS names.")
def issue(cert_dir: Path | None, names: tuple[str, ...], service: str | None) -> None:
    """Make a folder hold a CA and a serving certificate; renew them where that is due.

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
        raise Failure(str(error)) from error
    reasons = f" ({'; '.join(outcome.reasons)})" if outcome.reasons else ""
    click.echo(f"{folder}: {outcome.action}{reasons}")
    for problem in outcome.problems:
        click.echo(f"warning: {problem}", err=True)


@certs_group.command("status")
@_FOLDER
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text")
@click.pass_context
def show(context: click.Context, cert_dir: Path | None, output: str) -> None:
    """Show certificates, their names and their days left; exit code 1 where something is wrong."""
    folder = cert_dir or default_certificate_folder()
    try:
        found = status(folder, datetime.now(UTC))
    except CertificatesError as error:
        raise Failure(str(error)) from error
    if output == "json":
        click.echo(json.dumps(_as_json(found), indent=2))
    else:
        click.echo(f"folder    {folder}")
        for role, certificate in _roles(found):
            click.echo(_as_line(role, certificate))
        who = "by `serve` and `certs issue`" if found.issues else "by whoever issued it"
        click.echo(f"renewal   {who}")
    for problem in found.problems:
        click.echo(f"problem: {problem}", err=True)
    context.exit(1 if found.problems else 0)


def _roles(found: Status) -> list[tuple[str, CertificateStatus]]:
    serving = [("serving", found.serving)] if found.serving else []
    return [*serving, *(("ca", authority) for authority in found.authorities)]


def _as_line(role: str, certificate: CertificateStatus) -> str:
    names = f", for {', '.join(certificate.names)}" if certificate.names else ""
    return (
        f"{role:<9} {certificate.days_left:.1f} days left (until {certificate.not_after:%Y-%m-%d}),"
        f" renewal due {certificate.renewal_due:%Y-%m-%d}{names}"
    )


def _as_json(found: Status) -> dict[str, Any]:
    certificates = [
        {
            "role": role,
            "subject": certificate.subject,
            "names": list(certificate.names),
            "notBefore": certificate.not_before.isoformat(),
            "notAfter": certificate.not_after.isoformat(),
            "daysLeft": round(certificate.days_left, 2),
            "renewalDue": certificate.renewal_due.isoformat(),
            "sha256": certificate.fingerprint_sha256,
        }
        for role, certificate in _roles(found)
    ]
    return {
        "certificates": certificates,
        "ownIssuer": found.issues,
        "problems": list(found.problems),
    }
