"""Shared parts of commands: exit codes, options, the cluster connection, and completion.

A failure is a sentence on standard error and one of the exit codes below. Commands access a cluster
with the user's permissions. Options of programs are in `cli.program_options`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import click

from webhook import __version__
from webhook.adapters.kube.impersonation import NO_LIMIT_S, Identity
from webhook.names import ENFORCER_IMAGE_REPOSITORY, GPU_NODES_PATH

if TYPE_CHECKING:  # the client would slow down every --help
    from webhook.adapters.kube.client import Kube

_Command = TypeVar("_Command", bound="Callable[..., Any]")


class ExitCode(IntEnum):
    """Exit codes of commands, with their meanings."""

    meaning: str

    def __new__(cls, code: int, meaning: str) -> Self:
        """Create a member with a number and a meaning."""
        made = int.__new__(cls, code)
        made._value_, made.meaning = code, meaning
        return made

    DONE = 0, "done, allowed, or nothing is wrong"
    FOUND = 1, "it found what is wrong: a denial, an invalid policy, a failed check"
    WRONG = 2, "wrong usage, or input that cannot be read"
    UNANSWERED = 3, "the cluster did not answer, or you have too few rights"


def choose_exit_code(codes: Iterable[int]) -> ExitCode:
    """Return one exit code for several: the first of 2, 1 and 3 that occurs, otherwise 0."""
    met = set(codes)
    order = (ExitCode.WRONG, ExitCode.FOUND, ExitCode.UNANSWERED)
    return next((item for item in order if item in met), ExitCode.DONE)


class Failure(click.ClickException):
    """Ends a command that found a problem or failed."""

    exit_code = ExitCode.FOUND


class WrongInput(click.ClickException):
    """Ends a command whose input cannot be read."""

    exit_code = ExitCode.WRONG


class NoCluster(click.ClickException):
    """Ends a command that could not read from a cluster."""

    exit_code = ExitCode.UNANSWERED


def policy_failure(problems: Iterable[object]) -> Failure:
    """Return a failure that lists all problems of a policy, one per line."""
    return Failure("\n".join(["the policy is not valid:", *map(str, problems)]))


# Shared by tools and the server.

ENFORCER_IMAGE_VARIABLE = "VRAMWARDEN_ENFORCER_IMAGE"


def default_enforcer_image() -> str:
    """Return the default sidecar image: from the environment, or this release's image."""
    return os.environ.get(ENFORCER_IMAGE_VARIABLE) or f"{ENFORCER_IMAGE_REPOSITORY}:{__version__}"


def rollout_option(command: _Command) -> _Command:
    """Add the option --rollout."""
    from webhook.core.policy.model import Rollout  # noqa: PLC0415 - few commands need it

    return click.option(
        "--rollout",
        type=click.Choice([rollout.value for rollout in Rollout]),
        default=Rollout.ENFORCE.value,
        show_default=True,
        help="Observe: only warn of what is wrong with pods that ask for no VRAM, and "
        "void nothing.",
    )(command)


# Shared by tools: output form, cluster and user.


def output_option(text: str, *others: str) -> Callable[[_Command], _Command]:
    """Add the option --output: `text` for users, or other forms, usually `json`."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(["text", *(others or ("json",))]),
        default="text",
        show_default=True,
        help=text,
    )


def cluster_options(command: _Command) -> _Command:
    """Add kubectl's options for the cluster: `kubeconfig`, `context`, `namespace`."""
    return connection_options(
        namespace_option("The namespace.  [default: the kubeconfig's, else `default`]")(command)
    )


def namespace_option(text: str) -> Callable[[_Command], _Command]:
    """Add the option --namespace, with `text` as its help."""
    return click.option(
        "-n",
        "--namespace",
        metavar="NS",
        callback=_strip_equals,
        shell_complete=name_completer(NAMESPACES),
        help=text,
    )


def _strip_equals(
    _context: click.Context, _option: click.Parameter, text: str | None
) -> str | None:
    """Remove the equals sign from the value of `-n=team-a`, like kubectl."""
    return text.removeprefix("=") or None if text else None


KUBECTL_OPTIONS: Final = frozenset(
    ("--as", "--as-group", "--as-uid", "--as-user-extra", "--context", "--kubeconfig")
) | {"-n", "--namespace", "--request-timeout"}
"""Names of the options that `cluster_options` adds, all of which take a value."""
TIMEOUT_S: Final = 30.0
"""Timeout of a request in seconds. A user is waiting, but a list of all nodes takes a while."""
_IDENTITY: Final = f"{__name__}.identity"
"""Key of the user's identity in click's `meta`."""
_LIMIT_HELP: Final = (
    "How long the answer to one request may take, e.g. 5s; 0: as long as it does.  [default: 30s]"
)
_GO_DURATION: Final = re.compile(r"([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")
_GO_UNITS_S: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3} | {
    "s": 1.0, "m": 60.0, "h": 3600.0
}  # fmt: skip


def connection_options(command: _Command) -> _Command:
    """Add kubectl's connection options, without --namespace.

    `kubeconfig` and `context` are parameters of the command. Only `connect_to_cluster` reads the
    other options: --as, --as-group, --as-uid, --as-user-extra and --request-timeout.
    """
    kubeconfig = click.option(
        "--kubeconfig",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="How to reach the API server.  [default: as kubectl finds it]",
    )
    context = click.option(
        "--context",
        metavar="NAME",
        shell_complete=_complete_contexts,
        help="A context of the kubeconfig.",
    )
    return kubeconfig(context(_person_options(command)))


def _person_options(command: _Command) -> _Command:
    for option in (
        _identity_option(
            "--request-timeout", "limit_s", _parse_timeout, metavar="TIME", help=_LIMIT_HELP
        ),
        _identity_option(
            "--as-user-extra", "extra", _parse_extra, multiple=True, hidden=True, help="KEY=VALUE."
        ),
        _identity_option("--as-uid", "uid", hidden=True, help="The UID of --as."),
        _identity_option(
            "--as-group", "groups", multiple=True, metavar="GROUP", help="A group of --as."
        ),
        _identity_option("--as", "user", metavar="USER", help="Act as somebody else, as kubectl."),
    ):
        command = option(command)
    return command


def _identity_option(
    name: str, field: str, read: Callable[[Any], Any] = lambda value: value, **more: Any
) -> Callable[[_Command], _Command]:
    """Return an option for `connect_to_cluster` that is not a parameter of the command."""

    def keep(context: click.Context, _option: click.Parameter, value: Any) -> None:
        if value is not None and value != ():
            context.meta.setdefault(_IDENTITY, {})[field] = read(value)

    return click.option(name, f"asks_{field}", expose_value=False, callback=keep, **more)


def _parse_extra(pairs: Iterable[str]) -> tuple[tuple[str, str], ...]:
    for pair in pairs:
        if "=" not in pair:
            raise click.BadParameter(f"{pair!r} is no KEY=VALUE")
    return tuple((key, value) for key, _, value in (pair.partition("=") for pair in pairs))


def _parse_timeout(text: str) -> float | None:
    """Parse a timeout like kubectl: seconds or a Go duration; empty means the default.

    Source: client-go, `clientcmd.ParseTimeout`.
    """
    if not text:
        return None
    unsigned = text.removeprefix("+")
    if re.fullmatch(r"[0-9]{1,18}", unsigned):
        limit_s = float(unsigned)
    else:
        parts = [match.group(0, 1, 3) for match in _GO_DURATION.finditer(unsigned[:64])]
        if not parts or "".join(whole for whole, _, _ in parts) != unsigned:
            raise click.BadParameter(f"{text[:64]!r} is no time; write e.g. 5, 10s or 1m30s")
        limit_s = sum(float(number) * _GO_UNITS_S[unit] for _, number, unit in parts)
    return min(limit_s, NO_LIMIT_S)


@dataclass(frozen=True, slots=True)
class ClusterConnection:
    """Connection to an API server with the user's permissions."""

    kube: Kube
    namespace: str
    """Namespace from the option or the kubeconfig's context, or `default`."""


def connect_to_cluster(
    kubeconfig: Path | None, context: str | None, namespace: str | None, *, tries: int = 2
) -> ClusterConnection:
    """Return the connection that the command's options describe, without sending a request.

    Raises NoCluster if no cluster is configured, and WrongInput if the named cluster is unusable.
    """
    # Imported here because the client would slow down every --help.
    from webhook.adapters.kube.connection import connect  # noqa: PLC0415
    from webhook.adapters.kube.errors import NoClusterError  # noqa: PLC0415

    running = click.get_current_context(silent=True)
    identity = Identity(**(running.meta.get(_IDENTITY, {}) if running else {}))
    try:
        kube = connect(
            kubeconfig, context=context, tries=tries, timeout_s=TIMEOUT_S, identity=identity
        )
    except NoClusterError as error:
        raise (WrongInput if error.is_named else NoCluster)(str(error)) from error
    return ClusterConnection(kube, namespace or kube.namespace or "default")


# Completion.

Complete = Callable[[click.Context, click.Parameter, str], list[str]]
"""Completes a word, given the options typed so far and the incomplete word."""

NAMESPACES: Final = "/api/v1/namespaces"
PODS: Final = "/api/v1/namespaces/{namespace}/pods"
NODES: Final = (GPU_NODES_PATH, "/api/v1/nodes")
"""Paths of collections with node names. Users may often list GPUNodes, one per node with GPUs."""
_COMPLETION_TIMEOUT_S: Final = 2.0
"""Timeout of a completion, in seconds."""


def name_completer(*paths: str) -> Complete:
    """Return a completion with the names in the first collection that is not empty.

    `{namespace}` in a path is the user's namespace. Timeouts and failures give no names.
    """

    def complete(context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
        return complete_names(context, paths, begun)

    return complete


def complete_names(context: click.Context, paths: Iterable[str], begun: str) -> list[str]:
    """Return the names that begin with `begun`; see `name_completer`."""

    def read() -> list[str]:
        from webhook.adapters.kube.errors import KubeError  # noqa: PLC0415 - as in `connect_to_cluster`

        with context.scope(cleanup=False):
            typed = (context.params.get(name) for name in ("kubeconfig", "context", "namespace"))
            reached = connect_to_cluster(*typed, tries=1)
        for path in paths:
            with suppress(KubeError):
                if names := reached.kube.list_names(path.format(namespace=reached.namespace)):
                    return names
        return []

    return [name for name in _read_with_timeout(read) if name.startswith(begun)]


def _complete_contexts(context: click.Context, _: click.Parameter, begun: str) -> list[str]:
    def read() -> list[str]:
        from webhook.adapters.kube.connection import Kubeconfig  # noqa: PLC0415 - as in `connect_to_cluster`

        return Kubeconfig(context.params.get("kubeconfig")).contexts()

    return [name for name in _read_with_timeout(read) if name.startswith(begun)]


def _read_with_timeout(read: Callable[[], list[str]]) -> list[str]:
    """Read on a thread that is abandoned after a timeout, since even DNS may take long."""
    found: list[str] = []

    def run() -> None:
        with suppress(Exception):  # a shell cannot show the error
            found.extend(read())

    thread = Thread(target=run, name="completion", daemon=True)
    thread.start()
    thread.join(_COMPLETION_TIMEOUT_S)
    return [] if thread.is_alive() else found
