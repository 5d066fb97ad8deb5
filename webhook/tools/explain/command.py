"""The command `explain`."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

import click

from webhook.options import (
    ExitCode,
    cluster_options,
    complete_names,
    connect_to_cluster,
    output_option,
)
from webhook.tools.explain.render import as_json, as_text
from webhook.tools.render.output import supports_unicode
from webhook.tools.snapshot.objects import NODE, POD, WorkloadKind, find_kind

_WORDS: Final = f"{__name__}.words"
"""Key in click's `meta` for the arguments before the one being completed."""
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


def _subject(
    context: click.Context, _parameter: click.Parameter, words: tuple[str, ...]
) -> tuple[WorkloadKind, str]:
    """Parse `eval-4`, `deployment llama` or `deployment/llama`."""
    if context.resilient_parsing:
        context.meta[_WORDS] = words
        return POD, ""
    *before, last = words
    inside, slash, name = last.rpartition("/")
    kinds = [*before, *([inside] if slash else [])]
    if len(kinds) > 1:
        raise click.BadParameter("one object is explained; write KIND NAME, as deployment llama")
    kind = find_kind(kinds[0]) if kinds else POD
    if not _NAME.fullmatch(name):
        raise click.BadParameter(f"{name[:80]!r} is no name that Kubernetes allows")
    if NODE.is_called(kind.name):
        raise click.UsageError(
            f"explain is for pods and what creates them; for a node: vramwarden top --node {name}"
        )
    return kind, name


def _complete(context: click.Context, _: click.Parameter, begun: str) -> list[str]:
    """Return completions: names of pods, or of objects of the kind given before."""
    word, slash, name = begun.rpartition("/")
    before = context.meta.get(_WORDS) or ("pod",)
    kind = find_kind(word if slash else before[-1])
    paths = [f"{kind.path}/namespaces/{{namespace}}/{kind.plural}"] if kind.path else []
    return [f"{word}{slash}{completion}" for completion in complete_names(context, paths, name)]


@click.command("explain")
@click.argument(
    "subject",
    nargs=-1,
    required=True,
    metavar="[KIND] NAME|KIND/NAME",
    callback=_subject,
    shell_complete=_complete,
)
@cluster_options
@output_option("Lines for people, or everything for programs.")
def explain_command(
    *,
    subject: tuple[WorkloadKind, str],
    namespace: str | None,
    context: str | None,
    kubeconfig: Path | None,
    output: str,
) -> None:
    """Explain why a pod waits, was denied or was stopped, and what to change.

    Takes a pod, or what creates pods: deployment, job, replicaset, statefulset, daemonset, cronjob,
    also by kubectl's short names, or any other kind, whose pods are found by their owners. It reads
    with your own rights: the role view in one namespace is enough. What you may not read is left
    out and named. For a pod without GPU memory it creates a copy in your name, as a dry run.

    \b
    vramwarden explain eval-4
    vramwarden explain deployment llama -n team-a
    vramwarden explain job/embed -o json
    vramwarden explain pytorchjob/train

    Exit code 0: nothing is wrong; 1: something blocks or was stopped, or nothing has that name; 2:
    wrong usage; 3: the cluster did not answer, or you may not read it.
    """  # noqa: D301 - click wants the character, not two
    # Imported here, because it would slow down every --help.
    from webhook.tools.explain.diagnosis import diagnose  # noqa: PLC0415
    from webhook.tools.snapshot.cluster import reading_cluster  # noqa: PLC0415
    from webhook.tools.snapshot.namespace import NamespaceSnapshot  # noqa: PLC0415

    with reading_cluster():
        cluster = connect_to_cluster(kubeconfig, context, namespace)
        found = diagnose(NamespaceSnapshot(cluster.kube, cluster.namespace), *subject)
    ascii_only = not supports_unicode(sys.stdout)
    text = as_json(found) if output == "json" else as_text(found, ascii_only=ascii_only)
    click.echo(text, nl=False)
    if found.has_problem:
        click.get_current_context().exit(ExitCode.FOUND)
