"""Options of what runs in a cluster: durations, which node, by which driver."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from webhook.core.node.access import KERNEL_DRIVER
from webhook.core.pod.duration import parse_seconds
from webhook.names import DOCUMENTATION_URL_ENV

NODE_OPTION = click.option(
    "--node", default="", envvar="NODE_NAME", show_envvar=True, help="The node that this is."
)
LISTS_OPTION = click.option(
    "--namespace",
    default="",
    help="Namespace of the webhook's GPU assignments: the release's.",
)
POD_UID_OPTION = click.option(
    "--pod-uid",
    default="",
    envvar="POD_UID",
    show_envvar=True,
    help="UID of our own pod, by which the node's names of cgroups are learned.",
)
KUBECONFIG_OPTION = click.option(
    "--kubeconfig",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where the API server is.  [default: KUBECONFIG, the pod's account, ~/.kube/config]",
)
DOCUMENTATION_OPTION = click.option(
    "--documentation-url",
    metavar="PATTERN",
    default="",
    envvar=DOCUMENTATION_URL_ENV,
    show_envvar=True,
    help="URL of the documentation's pages, with {page} in it, for messages that name one.",
)
KERNEL_DRIVER_OPTION = click.option(
    "--kernel-driver",
    metavar="FILE",
    default=KERNEL_DRIVER,
    envvar="VRAMWARDEN_KERNEL_DRIVER",
    show_envvar=True,
    show_default=True,
    help="The file that exists while the kernel has a driver.",
)


def holds_caps(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of what holds the caps of a node's pods by its list: sentry and limiter."""
    options = KUBECONFIG_OPTION, KERNEL_DRIVER_OPTION, POD_UID_OPTION, LISTS_OPTION, NODE_OPTION
    for option in options:
        command = option(command)
    return command


def require_place(node: str, namespace: str) -> None:
    """Raise UsageError where a program does not know its node, or where its list is."""
    if not node:
        raise click.UsageError("no node is named; use --node or set NODE_NAME")
    if not namespace:
        raise click.UsageError("no namespace is named; use --namespace, the release's")


def duration(least_s: float = 0.0, most_s: float = float("inf")) -> Callable[..., float]:
    """Return what reads a duration within bounds, as the callback of an option."""

    def read(_context: click.Context, _option: click.Parameter, text: str) -> float:
        try:
            return parse_seconds(text, least_s, most_s)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error

    return read
