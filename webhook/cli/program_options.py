"""Options that several programs in a cluster share, such as the node and its namespace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from webhook.core.node.access import KERNEL_DRIVER
from webhook.core.pod.duration import parse_seconds
from webhook.names import DOCUMENTATION_URL_ENV

NODE_OPTION = click.option(
    "--node", default="", envvar="NODE_NAME", show_envvar=True, help="Name of this node."
)
NAMESPACE_OPTION = click.option(
    "--namespace",
    default="",
    help="Namespace of the webhook's GPU assignments: the release's.",
)
POD_UID_OPTION = click.option(
    "--pod-uid",
    default="",
    envvar="POD_UID",
    show_envvar=True,
    help="UID of this program's pod, which shows how the node names cgroups.",
)
KUBECONFIG_OPTION = click.option(
    "--kubeconfig",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Kubeconfig of the API server.  [default: KUBECONFIG, the pod's account, ~/.kube/config]",
)
DOCUMENTATION_OPTION = click.option(
    "--documentation-url",
    metavar="PATTERN",
    default="",
    envvar=DOCUMENTATION_URL_ENV,
    show_envvar=True,
    help="URL of the documentation's pages, with {page} in it, for messages that refer to one.",
)
KERNEL_DRIVER_OPTION = click.option(
    "--kernel-driver",
    metavar="FILE",
    default=KERNEL_DRIVER,
    envvar="VRAMWARDEN_KERNEL_DRIVER",
    show_envvar=True,
    show_default=True,
    help="File that exists while the kernel has an NVIDIA driver.",
)


def enforcement_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of the programs that enforce a node's assignment list: sentry and limiter."""
    options = KUBECONFIG_OPTION, KERNEL_DRIVER_OPTION, POD_UID_OPTION, NAMESPACE_OPTION, NODE_OPTION
    for option in options:
        command = option(command)
    return command


def require_node_and_namespace(node: str, namespace: str) -> None:
    """Raise UsageError if the node or the assignment list's namespace is not given."""
    if not node:
        raise click.UsageError("no node is named; use --node or set NODE_NAME")
    if not namespace:
        raise click.UsageError("no namespace is named; use --namespace, the release's")


def duration_parser(least_s: float = 0.0, most_s: float = float("inf")) -> Callable[..., float]:
    """Return an option callback that parses a duration within bounds, in seconds."""

    def parse(_context: click.Context, _option: click.Parameter, text: str) -> float:
        try:
            return parse_seconds(text, least_s, most_s)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error

    return parse
