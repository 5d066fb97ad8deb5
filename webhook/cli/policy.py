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
    read_files,
    split_location,
)
from webhook.adapters.policy.schema import json_schema
from webhook.core.admission.policy_examples import run_example
from webhook.core.formatting import format_count
from webhook.core.policy.model import Example, Policy
from webhook.core.policy.rule_coverage import PolicyWarning, policy_warnings
from webhook.options import default_enforcer_image, output_option
from webhook.tools.manifests.ci import JUnitCase, annotation, junit
from webhook.tools.manifests.reading import STANDARD_INPUT, input_name

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
    context.exit(_report("check", [_read(path) for path in paths], output, _print_check))


@policy_group.command("test")
@_PATHS
@click.option("--failed-only", is_flag=True, help="Show only examples that fail.")
@_OUTPUT
@click.pass_context
def test(
    context: click.Context, paths: tuple[Path, ...], output: str, *, failed_only: bool
) -> None:
    """Run the examples of policies and show each; exit code 1 if one fails.

    Each PATH is a folder of policy files or one file; - is standard input.
    """
    print_result = partial(_print_test, failed_only=failed_only)
    context.exit(_report("test", [_read(path) for path in paths], output, print_result))


@policy_group.command("schema")
def schema() -> None:
    """Print the JSON Schema (draft 2020-12) of a policy file, for editors."""
    click.echo(json.dumps(json_schema(), indent=2, ensure_ascii=False))


@dataclass(frozen=True, slots=True)
class _CheckedPolicy:
    """The policy of one path, and its problems."""

    path: Path
    policy: Policy | None = None
    """The policy; None if it is invalid."""
    problems: tuple[DocumentProblem, ...] = ()
    warnings: tuple[PolicyWarning, ...] = ()
    examples: tuple[tuple[Example, tuple[str, ...]], ...] = ()
    """Examples, each with its differences from the expected result."""

    @property
    def name(self) -> str:
        return input_name(str(self.path))

    @property
    def failed(self) -> int:
        return sum(bool(mismatches) for _, mismatches in self.examples)

    @property
    def passed(self) -> bool:
        return self.policy is not None and not self.failed


def _read(path: Path) -> _CheckedPolicy:
    """Read a policy and run its examples."""
    try:
        snapshot = _read_snapshot(path)
        policy = parse_policy(snapshot, default_enforcer_image(), run_examples=False)
    except PolicyInvalidError as error:
        return _CheckedPolicy(path, problems=_join_alternatives(path, error.problems))
    warnings = [*policy_warnings(policy)]
    if not policy.rules:
        what = "rule" if snapshot.files else "*.yaml"
        nothing = f"no {what} in it, so every pod is left alone"
        warnings.insert(0, PolicyWarning(input_name(str(path)), nothing))
    examples = tuple((example, run_example(example, policy)) for example in policy.examples)
    return _CheckedPolicy(path, policy, warnings=tuple(warnings), examples=examples)


def _join_alternatives(
    path: Path, problems: tuple[DocumentProblem, ...]
) -> tuple[DocumentProblem, ...]:
    """Join the problems of a folder in which each file is a separate policy, like the examples."""
    twice = [problem for problem in problems if isinstance(problem, DefinedTwice)]
    if not twice[1:] or len(twice) < len(problems) or not path.is_dir():
        return problems
    detail = (
        f"{len(twice)} names are defined twice, so its files are no policy together; where each is "
        f"meant to stand alone, run: vramwarden policy check {path / '*.yaml'}"
    )
    return (twice[0], DocumentProblem(str(path), 0, "", detail))


def _report(
    command: str,
    results: Sequence[_CheckedPolicy],
    output: str,
    print_result: Callable[[_CheckedPolicy], None],
) -> int:
    """Print all results; return the exit code: 2 if a file is unreadable, 1 for other problems."""
    if output == "junit":
        suites = {result.name: list(_junit_cases(result)) for result in results}
        click.echo(junit(f"vramwarden policy {command}", suites), nl=False)
    for result in results:
        if output == "github":
            click.echo("".join(_annotations(result)), nl=False)
            continue
        for problem in result.problems:
            click.echo(str(problem), err=True)
        for warning in result.warnings:
            click.echo(f"warning: {warning}", err=True)
        if output == "text" and result.policy is not None:
            print_result(result)
    problems = [problem for result in results for problem in result.problems]
    if any(isinstance(problem, UnreadablePolicy) for problem in problems):
        return 2
    return 0 if all(result.passed for result in results) else 1


def _print_check(result: _CheckedPolicy) -> None:
    for example, mismatches in result.examples:
        for mismatch in mismatches:
            click.echo(f"{example.where}: example {example.name!r}: {mismatch}", err=True)
    if result.policy is not None and result.passed:
        rules = format_count(len(result.policy.rules), "rule")
        classes = format_count(len(result.policy.classes), "class")
        examples = format_count(len(result.examples), "example")
        verb = "passes" if len(result.examples) == 1 else "pass"
        click.echo(f"{result.name}: valid: {rules}, {classes}, {examples} {verb}")


def _print_test(result: _CheckedPolicy, *, failed_only: bool) -> None:
    for example, mismatches in result.examples:
        if failed_only and not mismatches:
            continue
        word = click.style("FAIL", fg="red") if mismatches else click.style("ok", fg="green") + "  "
        click.echo(f"{word}  {example.where}: {example.name}")
        for mismatch in mismatches:
            click.echo(f"      {mismatch}")
    click.echo(
        f"{result.name}: {len(result.examples) - result.failed} passed, {result.failed} failed"
    )


def _annotations(result: _CheckedPolicy) -> Iterator[str]:
    for problem in result.problems:
        text = f"{problem.path}: {problem.detail}" if problem.path else problem.detail
        yield annotation("error", problem.file, problem.line, text, "InvalidPolicy")
    for warning in result.warnings:
        yield annotation("warning", *split_location(warning.where), warning.text)
    for example, mismatches in result.examples:
        for mismatch in mismatches:
            text = f"example {example.name!r}: {mismatch}"
            yield annotation("error", *split_location(example.where), text, "FailedExample")


def _junit_cases(result: _CheckedPolicy) -> Iterator[JUnitCase]:
    """Yield one test case per example, and one for all other problems of a policy."""
    yield JUnitCase(
        name=result.name,
        file=result.problems[0].file if result.problems else result.name,
        line=result.problems[0].line if result.problems else 0,
        failure=("InvalidPolicy", "\n".join(map(str, result.problems)))
        if result.problems
        else None,
        output=tuple(f"warning: {warning}" for warning in result.warnings),
    )
    for example, mismatches in result.examples:
        file, line = split_location(example.where)
        failure = ("FailedExample", "; ".join(mismatches)) if mismatches else None
        yield JUnitCase(name=example.name, file=file, line=line, failure=failure)


def _read_snapshot(path: Path) -> Snapshot:
    if str(path) != STANDARD_INPUT:
        return read_files(path)
    name, content = input_name(STANDARD_INPUT), sys.stdin.buffer.read(MOST_POLICY_BYTES + 1)
    return Snapshot((PolicyText(name, name, content),))
