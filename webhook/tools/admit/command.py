"""`vramwarden admit`: the webhook's own decision, offline, for the pods in manifests."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, TextIO

import click

from webhook.adapters.policy.files import PolicyInvalidError, load_policy, shipped_policy_path
from webhook.core.policy.cluster import UNKNOWN_CLUSTER, Cluster, SlicedNode
from webhook.core.policy.model import Policy, Rollout
from webhook.options import default_enforcer_image, policy_failure, rollout_option
from webhook.tools.admit.inputs import (
    files,
    read_labels,
    read_mig_profiles,
    read_namespace,
    read_origin,
    read_size,
)
from webhook.tools.admit.migration.foreign_pod import Origin
from webhook.tools.admit.migration.requests import PRODUCTS
from webhook.tools.admit.output.write import Output, show
from webhook.tools.admit.verdicts.manifest_text import ManifestText, decide_text, unreadable
from webhook.tools.manifests.reading import STANDARD_INPUT, ManifestError, input_name, read_source
from webhook.tools.render.output import count_progress, printable


def admit(
    texts: Iterable[tuple[str, str | ManifestError]],
    policy: Policy,
    namespace: str,
    output: Output,
    stdout: TextIO,
    stderr: TextIO,
    *,
    verbose: bool = False,
    strict: bool = False,
    origin: Origin | None = None,
    namespace_labels: Mapping[str, str] | None = None,
    cluster: Cluster = UNKNOWN_CLUSTER,
) -> int:
    """Decide every pod in the manifests, given as (name, text), and write the results.

    An unreadable input is given as the reason instead of its text. Return the exit code: 2 if an
    input is unreadable (the others are decided, but no manifests are written). Return 1 if a pod is
    denied or not migrated, if nothing reads a vramwarden key, or, with `strict`, if there is a
    warning. Otherwise return 0. With an origin, manifests are first migrated from that product and
    written as migrated.
    """
    sources: list[ManifestText] = []
    about = (policy, cluster, namespace, namespace_labels or {}, origin)
    for name, text in texts:
        try:
            if isinstance(text, ManifestError):
                raise text
            sources.append(decide_text(name, text, *about, is_strict=strict))
        except ManifestError as error:
            sources.append(unreadable(name, text if isinstance(text, str) else "", error))
    if not any(source.unreadable or any(doc.value for doc in source.before) for source in sources):
        names = ", ".join(source.name for source in sources)
        stderr.write(f"Error: {names}: no objects in it; pass manifests with a kind\n")
        return 2
    show(sources, output, stdout, stderr, verbose=verbose)
    if any(source.unreadable for source in sources):
        return 2
    return 0 if all(verdict.passed for source in sources for verdict in source.verdicts) else 1


_EXAMPLES: Final = """\b
Examples:
  vramwarden admit deployment.yaml
  vramwarden admit -f deployment.yaml -o diff
  vramwarden admit -R manifests/ -n team-a -o github
  vramwarden admit -R manifests/ --migrate hami -o diff
  helm template chart/ | vramwarden admit
  kubectl kustomize overlay/ | vramwarden admit -f -
"""


def _names(
    context: click.Context, _parameter: click.Parameter, names: tuple[str, ...]
) -> tuple[str, ...]:
    """Combine FILES with the files of -f. Without either, read standard input if it is piped."""
    names = (*context.params.pop("filenames"), *names)
    if names or context.resilient_parsing:
        return names
    if sys.stdin is None or sys.stdin.isatty():
        raise click.UsageError(
            "no manifest is named; write a file, as deployment.yaml, or - for standard input"
        )
    return (STANDARD_INPUT,)


_FILE: Final = click.Path(readable=False)
"""Completed as a path. Files are opened later, so one unreadable file does not hide the others."""


@click.command("admit", epilog=_EXAMPLES)
@click.argument("names", nargs=-1, metavar="[FILES|-]", type=_FILE, callback=_names)
@click.option(
    "-f",
    "--filename",
    "filenames",
    multiple=True,
    metavar="FILE|-",
    type=_FILE,
    is_eager=True,
    help="A file, a folder or -, as FILES. May be given several times.",
)
@click.option("-R", "--recursive", is_flag=True, help="Read the subfolders of folders as well.")
@click.option(
    "--policy",
    "policy_path",
    type=click.Path(exists=True, path_type=Path),
    help="Folder of policy files, or one file.  [default: the shipped policy]",
)
@click.option(
    "-n",
    "--namespace",
    default="default",
    show_default=True,
    callback=read_namespace,
    help="Namespace of objects that name none.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice([output.value for output in Output]),
    help="Manifests after admission: yaml, json, or a diff. Each pod's JSON patch. What is added, "
    "in ten lines a pod: summary. Verdicts for continuous integration: github (annotations of a "
    "workflow), junit (XML) or report (JSON).  [default: on a terminal summary, else yaml]",
)
@click.option("--strict", is_flag=True, help="Warnings fail, too: exit code 1.")
@click.option("-v", "--verbose", is_flag=True, help="Name objects without a pod template as well.")
@click.option(
    "--migrate",
    "product",
    type=click.Choice([*PRODUCTS]),
    help="First rewrite manifests that ask another product, as their author would do it; print "
    "them so, and judge them.",
)
@click.option(
    "--gpu-memory",
    metavar="SIZE",
    callback=read_size,
    help="With --migrate: what a whole GPU becomes, e.g. 16Gi; percentages and fractions are parts "
    "of it.",
)
@click.option(
    "--gpu-memory-unit",
    "unit",
    metavar="SIZE",
    callback=read_size,
    help="With --migrate: what one of the product's units of memory is, where its installation "
    "changes that, e.g. 1Mi.  [default: hami 1Mi, gpushare 1Gi]",
)
@rollout_option
@click.option(
    "--runtime-class",
    "runtime_classes",
    multiple=True,
    metavar="NAME",
    help="A RuntimeClass that the cluster has, for rules that choose by it (runtimeClassName: "
    "Auto). May be given several times.",
)
@click.option(
    "--namespace-label",
    "namespace_labels",
    multiple=True,
    callback=read_labels,
    metavar="KEY=VALUE",
    help="A label of the namespaces, for rules that ask for it. May be given several times.",
)
@click.option(
    "--mig-profile",
    "mig_profiles",
    multiple=True,
    metavar="NAME=SIZE",
    callback=read_mig_profiles,
    help="A slice (MIG) that a node of the cluster has, for rules with accounting: MIG, and its "
    "memory, e.g. 1g.10gb=9728Mi. May be given several times.",
)
@click.pass_context
def admit_command(
    context: click.Context,
    names: tuple[str, ...],
    policy_path: Path | None,
    namespace: str,
    output: str | None,
    *,
    recursive: bool,
    strict: bool,
    verbose: bool,
    rollout: str,
    runtime_classes: tuple[str, ...],
    product: str | None,
    gpu_memory: int | None,
    unit: int | None,
    namespace_labels: dict[str, str],
    mig_profiles: dict[str, int],
) -> None:
    """Show what the webhook would do to every pod and pod template in manifests.

    FILES are files, folders (their *.yaml, *.yml and *.json), or - for standard input. Without any,
    what is piped in is read.

    Pod templates are found in objects of every kind, by their shape. Manifests go to standard
    output, changed only where admission changes them; verdicts, each with its file and line, and
    their count go to standard error. A denied object is printed unchanged.

    With --migrate, manifests of another product are rewritten first, and printed so instead; what
    has no counterpart is named.

    An object with keys of ours whose pods are made elsewhere gets a line of its own; what is
    wrong with its amounts is denied.

    Exit code 0: all allowed; 1: something denied, not migrated, or a key of ours that nothing
    reads, with --strict also a warning; 2: wrong usage, or a file that cannot be read: the others
    are judged, and no manifests printed.
    """
    origin = read_origin(product, gpu_memory, unit)
    image = default_enforcer_image()
    try:
        policy = load_policy(policy_path or shipped_policy_path(), enforcer_image=image)
    except PolicyInvalidError as error:
        raise policy_failure(error.problems) from error
    nodes = (SlicedNode(mig_profiles),) if mig_profiles else ()
    cluster = Cluster(Rollout(rollout), frozenset(runtime_classes), nodes)
    stdout, stderr = (_stream(stream) for stream in (sys.stdout, sys.stderr))

    def say(line: str) -> None:
        stderr.write(f"{printable(line)}\n")

    read = files(names, say, recursive=recursive)
    texts = [(input_name(name), _text_or_error(name)) for name in read]
    form = Output(output or (Output.SUMMARY if stdout.isatty() else Output.YAML))
    code = admit(
        count_progress(texts, f"judged {{}} of {len(texts):,} files"),
        policy,
        namespace,
        form,
        stdout,
        stderr,
        verbose=verbose,
        strict=strict,
        origin=origin,
        namespace_labels=namespace_labels,
        cluster=cluster,
    )
    context.exit(code)


def _text_or_error(name: str) -> str | ManifestError:
    try:
        return read_source(name)
    except ManifestError as error:
        return error


def _stream(stream: TextIO) -> TextIO:
    """Return a stream that writes UTF-8 and keeps line endings, in any locale."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(encoding="utf-8", newline="")
    return stream
