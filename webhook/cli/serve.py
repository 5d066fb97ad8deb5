"""`vramwarden serve`: the webhook."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Any

import click

from certs import CertificatesError, service_names
from webhook.adapters.policy.files import PolicyInvalidError, shipped_policy_path
from webhook.cli.certs import (
    OVERLAP_OPTION,
    REGISTERING_OPTION,
    SERVICE_OPTION,
    folder_option,
    rotation_periods,
    secret_option,
)
from webhook.cli.program_options import DOCUMENTATION_OPTION
from webhook.core.policy.model import Rollout
from webhook.names import WEBHOOK_CONFIGURATION
from webhook.options import (
    ENFORCER_IMAGE_VARIABLE,
    Failure,
    default_enforcer_image,
    policy_failure,
    rollout_option,
)
from webhook.server.certificates import CertificateKeeper

_PORT = click.IntRange(0, 65535)
_MIN_KEY_BYTES = 32


def _parse_networks(
    _context: click.Context, _option: click.Parameter, texts: tuple[str, ...]
) -> list[IPv4Network | IPv6Network]:
    """Parse CIDRs like a NetworkPolicy, which ignores host bits."""
    try:
        return [ip_network(text, strict=False) for text in texts]
    except ValueError as error:
        raise click.BadParameter(f"{error}; write it as 192.0.2.0/24 or 2001:db8::/32") from error


@click.command("serve")
@click.option(
    "--policy",
    type=click.Path(exists=True, path_type=Path),
    help="Folder of policy files, or one file.  [default: the shipped policy]",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address of the TLS port.")
@click.option(
    "--port", type=_PORT, default=8443, show_default=True, help="TLS port, for reviews; 0 is any."
)
@click.option(
    "--operations-host",
    default="127.0.0.1",
    show_default=True,
    help="Address of the plain port.",
)
@click.option(
    "--operations-port",
    type=_PORT,
    help="Plain port, for /livez, /readyz and /metrics.  [default: 8080, or any if that is taken]",
)
@click.option(
    "--api-server",
    "api_servers",
    metavar="CIDR",
    multiple=True,
    callback=_parse_networks,
    help="Addresses of API servers, which can connect however many other clients do.",
)
@folder_option(
    text="Folder with tls.crt and tls.key; a certificate is issued into an empty one."
    "  [default: a temporary one]"
)
@click.option(
    "--cert-name",
    multiple=True,
    help="A further DNS name or address for the certificate that is issued.",
)
@secret_option(
    "--cert-secret", text="Secret with the certificates of all replicas, instead of a folder."
)
@SERVICE_OPTION
@REGISTERING_OPTION
@OVERLAP_OPTION
@click.option(
    "--placement-namespace",
    metavar="NAMESPACE",
    envvar="VRAMWARDEN_PLACEMENT_NAMESPACE",
    show_envvar=True,
    help="Assign GPUs at binding; store assignment lists and the fence's rules in this namespace.",
)
@click.option(
    "--key-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Key of all replicas: it seals the fence's rules, and the path of bind depends on it.",
)
@click.option(
    "--enforcer-image",
    envvar=ENFORCER_IMAGE_VARIABLE,
    show_envvar=True,
    help="Image of the sidecar if a rule names none.  [default: this release's]",
)
@DOCUMENTATION_OPTION
@rollout_option
@click.pass_context
def serve_command(
    context: click.Context,
    /,
    policy: Path | None,
    host: str,
    operations_host: str,
    cert_dir: Path | None,
    cert_name: tuple[str, ...],
    cert_secret: tuple[str, str] | None,
    service: str,
    webhook_configuration: str | None,
    ca_overlap: float,
    placement_namespace: str | None,
    key_file: Path | None,
    enforcer_image: str | None,
    documentation_url: str,
    rollout: str,
    **others: Any,
) -> None:
    """Serve admission reviews over TLS until SIGTERM, then drain.

    Without options it serves the shipped policy on loopback, and issues a certificate.
    """
    if cert_secret and cert_dir:
        raise click.UsageError("certificates are in a folder or in a Secret; drop one of the two")
    # Imported here because gunicorn and Flask would slow down every other command.
    from webhook.adapters.kube.certificates import CertificatesApi  # noqa: PLC0415
    from webhook.adapters.kube.connection import connect  # noqa: PLC0415
    from webhook.adapters.kube.errors import KubeError  # noqa: PLC0415
    from webhook.adapters.kube.release_objects import RegistrationApi  # noqa: PLC0415
    from webhook.server.certificates import FolderKeeper, SecretKeeper  # noqa: PLC0415
    from webhook.server.registration import SETTLE_S, Registration  # noqa: PLC0415
    from webhook.server.service import CannotListenError, ServerSettings, Service, format_address  # noqa: PLC0415

    key = _read_key(key_file)
    keeper: Callable[..., CertificateKeeper]
    registration: Callable[..., Registration] | None = None
    needs_cluster = cert_secret or webhook_configuration or placement_namespace
    try:
        kube = connect() if needs_cluster else None
        if kube and cert_secret:
            webhook_configuration = webhook_configuration or WEBHOOK_CONFIGURATION
            cluster = CertificatesApi(
                kube.with_retries(1),
                *cert_secret,
                (webhook_configuration,),
                documentation_url=documentation_url,
            )
            names = (*service_names(service, cert_secret[0]), *cert_name)
            keeper = partial(SecretKeeper, cluster, names, rotation_periods(ca_overlap), key=key)
        else:
            folder = cert_dir or context.with_resource(_temporary_folder())
            keeper = partial(FolderKeeper, folder, _certificate_names(host, cert_name), key=key)
        if kube and webhook_configuration:
            api = RegistrationApi(kube.with_retries(1), webhook_configuration)
            settle_s = min(SETTLE_S, ca_overlap)
            registration = partial(Registration, api, settle_s=settle_s)
        settings = ServerSettings(
            policy=policy or shipped_policy_path(),
            certificates=keeper,
            registration=registration,
            host=host,
            operations_host=operations_host,
            enforcer_image=enforcer_image or default_enforcer_image(),
            rollout=Rollout(rollout),
            kube=kube,
            placement_namespace=placement_namespace or "",
            key=key,
            **others,
        )
        server = Service(settings)
    except (CertificatesError, KubeError) as error:
        raise Failure(str(error)) from error
    except PolicyInvalidError as error:
        raise policy_failure(error.problems) from error
    except CannotListenError as error:
        raise Failure(f"{error}; choose --{error.setting.replace('_', '-')}") from error
    click.echo(f"certificates: {server.certificates} (CA for clients: ca.crt)", err=True)
    reviews = format_address(host, server.port)
    operations = format_address(operations_host, server.operations_port)
    click.echo(f"reviews:      https://{reviews}/mutate and /validate", err=True)
    if not registration:
        # The user registers this path by hand. In a cluster the path must not be logged.
        path = server.certificates.bind_path.current
        click.echo(f"bindings:     https://{reviews}{path}", err=True)
    click.echo(f"operations:   http://{operations}/readyz", err=True)
    server.run()


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    """Create a folder that is deleted when this process ends."""
    process = os.getpid()
    folder = Path(tempfile.mkdtemp(prefix="vramwarden-"))
    try:
        yield folder
    finally:
        # The worker is a fork of this process, so it leaves this block, too.
        if os.getpid() == process:
            shutil.rmtree(folder, ignore_errors=True)


def _read_key(path: Path | None) -> bytes:
    """Return the key, or empty bytes if the file, and thus the key's Secret, is missing."""
    try:
        key = path.read_bytes().strip() if path else None
    except FileNotFoundError:
        key = None
    except OSError as error:
        raise Failure(f"{path} cannot be read ({error.strerror}); it is to hold a key") from error
    if key is not None and len(key) < _MIN_KEY_BYTES:
        raise Failure(f"{path}: a key has {_MIN_KEY_BYTES} bytes or more; make it by "
                      "`openssl rand -hex 32`")  # fmt: skip
    return key or b""


def _certificate_names(host: str, further: tuple[str, ...]) -> tuple[str, ...]:
    names = ["localhost", "127.0.0.1", "::1", *further]
    if host not in {"0.0.0.0", "::", ""}:  # noqa: S104 - all addresses are no name
        names.append(host)
    else:
        names.append(socket.gethostname())
    return tuple(dict.fromkeys(names))
