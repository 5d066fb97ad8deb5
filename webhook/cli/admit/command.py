"""`vramwarden admit`: the webhook's own decision, offline, for the pods in manifests."""

from __future__ import annotations

import io
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from webhook.adapters.manifests.documents import changed, find_targets, read_documents
from webhook.adapters.manifests.files import STANDARD_INPUT, name_of_input, read_text
from webhook.adapters.manifests.reading import ManifestError
from webhook.adapters.policy.files import PolicyInvalidError, load_policy, shipped_policy_path
from webhook.adapters.settings import default_enforcer_image
from webhook.cli.admit.output import ManifestText, Output, show
from webhook.cli.admit.verdict import judge
from webhook.cli.failures import policy_failure
from webhook.cli.rollout import rollout_option
from webhook.core.policy.values import Rollout

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import TextIO

    from webhook.core.policy.values import Policy

_SUFFIXES = frozenset({".yaml", ".yml", ".json"})


def admit(
    texts: Iterable[tuple[str, str]],
    policy: Policy,
    namespace: str,
    output: Output,
    stdout: TextIO,
    stderr: TextIO,
    *,
    colour: bool,
) -> int:
    """Decide every pod in the manifests, given as (name, text), and write the results.

    Returns the exit code: 0 all allowed, 1 something denied, 2 a manifest that cannot be read, and
    then only the reason is written. Colours appear only on streams that are terminals.
    """
    sources = []
    for name, text in texts:
        try:
            sources.append(_source(name, text, policy, namespace))
        except ManifestError as error:
            place = f"{name}:{error.line}" if error.line else name
            stderr.write(f"Error: {place}: {error}\n")
            return 2
    if not any(document.value for source in sources for document in source.before):
        names = ", ".join(source.name for source in sources)
        stderr.write(f"Error: {names}: no objects in it; pass manifests with a kind\n")
        return 2
    show(sources, output, stdout, stderr, colour=colour)
    verdicts = [verdict for source in sources for verdict in source.verdicts]
    return 0 if all(verdict.allowed for verdict in verdicts) else 1


def _source(name: str, text: str, policy: Policy, namespace: str) -> ManifestText:
    before = read_documents(text)
    after, verdicts = [], []
    for document in before:
        judged = [judge(target, policy, namespace) for target in find_targets(document.value)]
        patches = {verdict.target.at: verdict.patch for verdict in judged}
        after.append(changed(document, patches))
        verdicts += judged
    return ManifestText(name, text, before, after, verdicts)


@click.command("admit")
@click.option(
    "-f",
    "--filename",
    "names",
    multiple=True,
    required=True,
    metavar="FILE|-",
    help="Manifests: a file, a folder (its *.yaml, *.yml and *.json), or - for standard input. "
    "May be given several times.",
)
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
    help="Namespace of objects that name none.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice([output.value for output in Output]),
    default=Output.YAML.value,
    show_default=True,
    help="The manifests after admission, each pod's JSON Patch, or a diff of the YAML.",
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
@click.pass_context
def admit_command(
    context: click.Context,
    names: tuple[str, ...],
    policy_path: Path | None,
    namespace: str,
    output: str,
    rollout: str,
    runtime_classes: tuple[str, ...],
) -> None:
    """Show what the webhook would do to every pod and pod template in manifests.

    Manifests go to standard output, changed only where admission changes them; findings go to
    standard error. A denied object is printed unchanged.

    Exit code 0: all allowed; 1: something denied; 2: wrong usage.
    """
    image = default_enforcer_image()
    try:
        policy = load_policy(policy_path or shipped_policy_path(), enforcer_image=image)
        known = frozenset(runtime_classes)
        policy = replace(policy, rollout=Rollout(rollout), runtime_classes=known)
    except PolicyInvalidError as error:
        raise policy_failure(error) from error
    texts = [(name_of_input(name), read_text(name)) for name in _files(names)]
    stdout, stderr = (_stream(stream) for stream in (sys.stdout, sys.stderr))
    colour = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    context.exit(admit(texts, policy, namespace, Output(output), stdout, stderr, colour=colour))


def _stream(stream: TextIO) -> TextIO:
    """Return a stream that writes UTF-8 and leaves line ends alone, whatever the locale says."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(encoding="utf-8", newline="")
    return stream


def _files(names: Iterable[str]) -> Iterator[str]:
    """Yield the files: those of a folder in the order of their names."""
    for name in names:
        path = Path(name)
        if name == STANDARD_INPUT or not path.is_dir():
            yield name
            continue
        found = sorted(
            item for item in path.iterdir() if item.suffix in _SUFFIXES and item.is_file()
        )
        if not found:
            wanted = "no *.yaml, *.yml or *.json in it"
            raise click.UsageError(f"{name}: {wanted}; name a folder that holds manifests")
        yield from map(str, found)
