"""What options about certificates mean, for `serve` and `certs` alike."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from certs import Terms
from webhook.cli.programs import duration

if TYPE_CHECKING:
    from collections.abc import Callable

    from click import Context, Parameter

_Command = TypeVar("_Command", bound="Callable[..., Any]")


def default_certificate_folder() -> Path:
    """Return where `serve` keeps its own certificates (XDG Base Directory Specification)."""
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "vramwarden" / "certs"


def secret_option(
    name: str, *, text: str, required: bool = False, may_be_bare: bool = False
) -> Callable[[_Command], _Command]:
    """Take NAMESPACE/NAME of the Secret that replicas share.

    One that `may_be_bare` has no namespace where none is written: "".
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
    default="vramwarden",
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
    " written into; with a Secret the caBundle, too.  [default: vramwarden, with a Secret]",
)
"""Of a server, which also writes there without a Secret."""
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
    """Return the terms with another overlap, which is the longest that a CA ever waits."""
    usual = Terms()
    return Terms(overlap_s=overlap_s, settle_s=min(usual.settle_s, overlap_s))
