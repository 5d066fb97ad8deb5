"""Options, failures and defaults that programs and tools share: durations, rollout, which cluster.

A failure is a sentence on standard error and exit code 1; wrong usage is click's 2. Who asks a
cluster acts with the user's own rights.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from webhook import __version__
from webhook.core.pod.duration import parse_seconds
from webhook.names import ENFORCER_IMAGE_REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Callable

    from webhook.adapters.kube.client import Kube
    from webhook.adapters.policy.files import PolicyInvalidError

_Command = TypeVar("_Command", bound="Callable[..., Any]")

ENFORCER_IMAGE_VARIABLE = "VRAMWARDEN_ENFORCER_IMAGE"
ANSWER_S = 30.0
"""A person waits; a list of all nodes may take a while."""


NODE_OPTION = click.option(
    "--node", default="", envvar="NODE_NAME", show_envvar=True, help="The node that this is."
)
KUBECONFIG_OPTION = click.option(
    "--kubeconfig",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where the API server is.  [default: KUBECONFIG, the pod's account, ~/.kube/config]",
)


class Failure(click.ClickException):
    """Ends the command with exit code 1."""

    exit_code = 1


class NoCluster(click.ClickException):
    """Ends a command that could read nothing."""

    exit_code = 3


def default_enforcer_image() -> str:
    """Return the image that rules use where they name none: this release's, or the platform's."""
    return os.environ.get(ENFORCER_IMAGE_VARIABLE) or f"{ENFORCER_IMAGE_REPOSITORY}:{__version__}"


def default_certificate_folder() -> Path:
    """Return where `serve` keeps its own certificates (XDG Base Directory Specification)."""
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "vramwarden" / "certs"


def policy_failure(error: PolicyInvalidError) -> Failure:
    """Return the failure that lists all problems of a policy, one per line."""
    lines = [str(problem) for problem in error.problems]
    return Failure("\n".join(["the policy is not valid:", *lines]))


def duration(least_s: float = 0.0, most_s: float = float("inf")) -> Callable[..., float]:
    """Return what reads a duration within bounds, as the callback of an option."""

    def read(_context: click.Context, _option: click.Parameter, text: str) -> float:
        try:
            return parse_seconds(text, least_s, most_s)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error

    return read


def kernel_driver_option(command: _Command) -> _Command:
    """Take the file that shows a driver, which agent and sentry share, as `kernel_driver`."""
    from webhook.core.node.driver import KERNEL_DRIVER  # noqa: PLC0415 - tools need none of it

    return click.option(
        "--kernel-driver",
        metavar="FILE",
        default=KERNEL_DRIVER,
        envvar="VRAMWARDEN_KERNEL_DRIVER",
        show_envvar=True,
        show_default=True,
        help="The file that exists while the kernel has a driver.",
    )(command)


def rollout_option(command: _Command) -> _Command:
    """Take the option --rollout, which the server and `admit` share."""
    from webhook.core.policy.values import Rollout  # noqa: PLC0415 - agents read durations here

    return click.option(
        "--rollout",
        type=click.Choice([rollout.value for rollout in Rollout]),
        default=Rollout.ENFORCE.value,
        show_default=True,
        help="Observe: only warn of what is wrong with pods that ask for no VRAM, and "
        "void nothing.",
    )(command)


@dataclass(frozen=True, slots=True)
class ReachedCluster:
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


def reach(kubeconfig: Path | None, context: str | None, namespace: str | None) -> ReachedCluster:
    """Find the API server; raises NoClusterError where none is known, and asks nothing yet."""
    # Imported here: the client would slow down every --help.
    from webhook.adapters.kube.client import connect, namespace_of  # noqa: PLC0415

    kube = connect(kubeconfig, context=context, tries=2, answer_s=ANSWER_S)
    return ReachedCluster(kube, namespace or namespace_of(kubeconfig, context) or "default")
