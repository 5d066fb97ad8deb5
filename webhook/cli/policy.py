"""`vramwarden policy`: check, test and describe policy files."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click

from webhook.adapters.bounds import MOST_POLICY_BYTES
from webhook.adapters.policy.build import DefinedTwice
from webhook.adapters.policy.files import (
    DocumentProblem,
    PolicyInvalidError,
    PolicyText,
    Snapshot,
    UnreadablePolicy,
    parse_policy,
    place_of,
    read_files,
)
from webhook.adapters.policy.schema import json_schema
from webhook.core.admission.policy_examples import run_example
from webhook.core.formatting import format_count
from webhook.core.policy.model import Example, Policy
from webhook.core.policy.rule_coverage import PolicyWarning, policy_warnings
from webhook.options import default_enforcer_image, output_option
from webhook.tools.manifests.ci import JUnitCase, annotation, junit
from webhook.tools.manifests.files import STANDARD_INPUT, name_of_input

_PATHS = click.argument(
    "paths",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, path_type=Path, allow_dash=True),
)
_OUTPUT = output_option(
    "For people, or for continuous integration: github (annotations of a workflow) or junit (XML).",
    *("github", "junit"),
)


@click.group("policy")
def policy_group() -> None:
    """Check, test and describe policy files."""


@policy_group.command("check")
@_PATHS
@_OUTPUT
@click.pass_context
def check(context: click.Context, paths: tuple[Path, ...], output: str) -> None:
    """Validate policies: the form of each file, and its examples.

    Each PATH is a folder of policy files or one file; - is standard input. Exit code 1 if one is
    not valid, with every problem as file:line: path: what is wrong.
    """
    context.exit(_report("check", [_read(path) for path in paths], output, _say_check))


@policy_group.command("test")
@_PATHS
@click.option("--failed-only", is_flag=True, help="Show only examples that fail.")
@_OUTPUT
@click.pass_context
def test(
    context: click.Context, paths: tuple[Path, ...], output: str, *, failed_only: bool
) -> None:
    """Run the examples of policies and show each; exit code 1 where one fails.

    Each PATH is a folder of policy files or one file; - is standard input.
    """
    say = partial(_say_test, failed_only=failed_only)
    context.exit(_report("test", [_read(path) for path in paths], output, say))


@policy_group.command("schema")
def schema() -> None:
    """Print the JSON Schema (draft 2020-12) of a policy file, for editors."""
    click.echo(json.dumps(json_schema(), indent=2, ensure_ascii=False))


@dataclass(frozen=True, slots=True)
class _Checked:
    """What is wrong with the policy of one path."""

    path: Path
    policy: Policy | None = None
    """None where it cannot be used."""
    problems: tuple[DocumentProblem, ...] = ()
    warnings: tuple[PolicyWarning, ...] = ()
    examples: tuple[tuple[Example, tuple[str, ...]], ...] = ()
    """Each with what differs from what it expects."""

    @property
    def name(self) -> str:
        return name_of_input(str(self.path))

    @property
    def failed(self) -> int:
        return sum(bool(mismatches) for _, mismatches in self.examples)

    @property
    def passed(self) -> bool:
        return self.policy is not None and not self.failed


def _read(path: Path) -> _Checked:
    """Read a policy and run its examples."""
    try:
        snapshot = _snapshot(path)
        policy = parse_policy(snapshot, default_enforcer_image(), run_examples=False)
    except PolicyInvalidError as error:
        return _Checked(path, problems=_as_alternatives(path, error.problems))
    warnings = [*policy_warnings(policy)]
    if not policy.rules:
        what = "rule" if snapshot.files else "*.yaml"
        nothing = f"no {what} in it, so every pod is left alone"
        warnings.insert(0, PolicyWarning(name_of_input(str(path)), nothing))
    examples = tuple((example, run_example(example, policy)) for example in policy.examples)
    return _Checked(path, policy, warnings=tuple(warnings), examples=examples)


def _as_alternatives(
    path: Path, problems: tuple[DocumentProblem, ...]
) -> tuple[DocumentProblem, ...]:
    """Return one problem for a folder whose files are each a policy of its own, as examples are."""
    twice = [problem for problem in problems if isinstance(problem, DefinedTwice)]
    if not twice[1:] or len(twice) < len(problems) or not path.is_dir():
        return problems
    detail = (
        f"{len(twice)} names are defined twice, so its files are no policy together; where each is "
        f"meant to stand alone, run: vramwarden policy check {path / '*.yaml'}"
    )
    return (twice[0], DocumentProblem(str(path), 0, "", detail))


def _report(
    command: str, results: Sequence[_Checked], output: str, say: Callable[[_Checked], None]
) -> int:
    """Write all results; return the exit code: 2 where a file cannot be read, 1 for the rest."""
    if output == "junit":
        suites = {one.name: list(_cases(one)) for one in results}
        click.echo(junit(f"vramwarden policy {command}", suites), nl=False)
    for one in results:
        if output == "github":
            click.echo("".join(_annotations(one)), nl=False)
            continue
        for problem in one.problems:
            click.echo(str(problem), err=True)
        for warning in one.warnings:
            click.echo(f"warning: {warning}", err=True)
        if output == "text" and one.policy is not None:
            say(one)
    problems = [problem for one in results for problem in one.problems]
    if any(isinstance(problem, UnreadablePolicy) for problem in problems):
        return 2
    return 0 if all(one.passed for one in results) else 1


def _say_check(one: _Checked) -> None:
    for example, mismatches in one.examples:
        for mismatch in mismatches:
            click.echo(f"{example.where}: example {example.name!r}: {mismatch}", err=True)
    if one.policy is not None and one.passed:
        rules = format_count(len(one.policy.rules), "rule")
        classes = format_count(len(one.policy.classes), "class")
        examples = format_count(len(one.examples), "example")
        verb = "passes" if len(one.examples) == 1 else "pass"
        click.echo(f"{one.name}: valid: {rules}, {classes}, {examples} {verb}")


def _say_test(one: _Checked, *, failed_only: bool) -> None:
    for example, mismatches in one.examples:
        if failed_only and not mismatches:
            continue
        word = click.style("FAIL", fg="red") if mismatches else click.style("ok", fg="green") + "  "
        click.echo(f"{word}  {example.where}: {example.name}")
        for mismatch in mismatches:
            click.echo(f"      {mismatch}")
    click.echo(f"{one.name}: {len(one.examples) - one.failed} passed, {one.failed} failed")


def _annotations(one: _Checked) -> Iterator[str]:
    for problem in one.problems:
        text = f"{problem.path}: {problem.detail}" if problem.path else problem.detail
        yield annotation("error", problem.file, problem.line, text, "InvalidPolicy")
    for warning in one.warnings:
        yield annotation("warning", *place_of(warning.where), warning.text)
    for example, mismatches in one.examples:
        for mismatch in mismatches:
            text = f"example {example.name!r}: {mismatch}"
            yield annotation("error", *place_of(example.where), text, "FailedExample")


def _cases(one: _Checked) -> Iterator[JUnitCase]:
    """Yield a case for each example, and one for all else of a policy."""
    yield JUnitCase(
        name=one.name,
        file=one.problems[0].file if one.problems else one.name,
        line=one.problems[0].line if one.problems else 0,
        failure=("InvalidPolicy", "\n".join(map(str, one.problems))) if one.problems else None,
        said=tuple(f"warning: {warning}" for warning in one.warnings),
    )
    for example, mismatches in one.examples:
        file, line = place_of(example.where)
        failure = ("FailedExample", "; ".join(mismatches)) if mismatches else None
        yield JUnitCase(name=example.name, file=file, line=line, failure=failure)


def _snapshot(path: Path) -> Snapshot:
    if str(path) != STANDARD_INPUT:
        return read_files(path)
    name, content = name_of_input(STANDARD_INPUT), sys.stdin.buffer.read(MOST_POLICY_BYTES + 1)
    return Snapshot((PolicyText(name, name, content),))
