"""What commands that ask a cluster share: which one, which namespace, and how they fail.

They act with the user's own rights, and import only what that takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    from webhook.adapters.kube.client import Kube

_Command = TypeVar("_Command", bound="Callable[..., Any]")

ANSWER_S = 30.0
"""A person waits; a list of all nodes may take a while."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """An API server as the user reaches it."""

    kube: Kube
    namespace: str
    """The user's: named, else of the kubeconfig's context, else `default`."""


def cluster_options(command: _Command) -> _Command:
    """Take which cluster is asked, as kubectl does: `kubeconfig`, `context`, `namespace`."""
    namespace = click.option(
        "-n",
        "--namespace",
        metavar="NS",
        help="The namespace.  [default: the kubeconfig's, else `default`]",
    )
    return connection_options(namespace(command))


def output_option(text: str) -> Callable[[_Command], _Command]:
    """Take what is written, `text` for people or `json` for programs, as `output`."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help=text,
    )


def connection_options(command: _Command) -> _Command:
    """Take which cluster is asked, and no namespace: `kubeconfig`, `context`."""
    context = click.option("--context", metavar="NAME", help="A context of the kubeconfig.")
    kubeconfig = click.option(
        "--kubeconfig",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="How to reach the API server.  [default: as kubectl finds it]",
    )
    return kubeconfig(context(command))


def reach(
    kubeconfig: Path | None, context: str | None, namespace: str | None, *, tries: int = 2
) -> Cluster:
    """Find the API server; raises NoClusterError where none is known, and asks nothing yet."""
    # Imported here: the client would slow down every --help.
    from webhook.adapters.kube.client import connect, namespace_of  # noqa: PLC0415

    kube = connect(kubeconfig, context=context, tries=tries, answer_s=ANSWER_S)
    return Cluster(kube, namespace or namespace_of(kubeconfig, context) or "default")
