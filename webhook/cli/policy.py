"""`vramwarden policy`: check, test and describe policy files."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from webhook.adapters.bounds import MOST_POLICY_BYTES
from webhook.adapters.policy.files import (
    PolicyInvalidError,
    PolicyText,
    Snapshot,
    parse_policy,
    read_files,
)
from webhook.adapters.policy.schema import json_schema
from webhook.core.admission.examples import run_example
from webhook.core.policy.reach import policy_warnings
from webhook.core.words import counted
from webhook.options import default_enforcer_image

if TYPE_CHECKING:
    from webhook.core.policy.values import Policy

_STANDARD_INPUT = Path("-")
_PATHS = click.argument(
    "paths",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, path_type=Path, allow_dash=True),
)


@click.group("policy")
def policy_group() -> None:
    """Check, test and describe policy files."""


@policy_group.command("check")
@_PATHS
@click.pass_context
def check(context: click.Context, paths: tuple[Path, ...]) -> None:
    """Validate policies: the form of each file, and its examples.

    Each PATH is a folder of policy files or one file; - is standard input, for example of
    `kubectl get vrampolicy NAME -o yaml`. Exit code 1 where one is not valid, with every problem as
    file:line: path: what is wrong.
    """
    results = [_check(path) for path in paths]
    context.exit(0 if all(results) else 1)


@policy_group.command("test")
@_PATHS
@click.option("--failed-only", is_flag=True, help="Show only examples that fail.")
@click.pass_context
def test(context: click.Context, paths: tuple[Path, ...], *, failed_only: bool) -> None:
    """Run the examples of policies and show each; exit code 1 where one fails.

    Each PATH is a folder of policy files or one file; - is standard input.
    """
    results = [_test(path, failed_only=failed_only) for path in paths]
    context.exit(0 if all(results) else 1)


@policy_group.command("schema")
def schema() -> None:
    """Print the JSON Schema (draft 2020-12) of a policy file, for editors."""
    click.echo(json.dumps(json_schema(), indent=2, ensure_ascii=False))


def _check(path: Path) -> bool:
    policy = _read(path)
    if policy is None:
        return False
    failures = [
        f"{example.where}: example {example.name!r}: {mismatch}"
        for example in policy.examples
        for mismatch in run_example(example, policy)
    ]
    for failure in failures:
        click.echo(failure, err=True)
    if not failures:
        rules, classes = counted(len(policy.rules), "rule"), counted(len(policy.classes), "class")
        examples = counted(len(policy.examples), "example")
        verb = "passes" if len(policy.examples) == 1 else "pass"
        click.echo(f"{_shown(path)}: valid: {rules}, {classes}, {examples} {verb}")
    return not failures


def _test(path: Path, *, failed_only: bool) -> bool:
    policy = _read(path)
    if policy is None:
        return False
    failed = 0
    for example in policy.examples:
        mismatches = run_example(example, policy)
        failed += bool(mismatches)
        if failed_only and not mismatches:
            continue
        word = click.style("FAIL", fg="red") if mismatches else click.style("ok", fg="green") + "  "
        click.echo(f"{word}  {example.where}: {example.name}")
        for mismatch in mismatches:
            click.echo(f"      {mismatch}")
    click.echo(f"{_shown(path)}: {len(policy.examples) - failed} passed, {failed} failed")
    return not failed


def _read(path: Path) -> Policy | None:
    """Read a policy and warn of what it hardly means; None after its problems were shown."""
    try:
        snapshot = _snapshot(path)
        policy = parse_policy(snapshot, default_enforcer_image(), run_examples=False)
        if not policy.rules:
            what = "rule" if snapshot.files else "*.yaml"
            click.echo(
                f"warning: {_shown(path)}: no {what} in it, so every pod is left alone", err=True
            )
        for warning in policy_warnings(policy):
            click.echo(f"warning: {warning}", err=True)
    except PolicyInvalidError as error:
        for problem in error.problems:
            click.echo(str(problem), err=True)
        return None
    return policy


def _snapshot(path: Path) -> Snapshot:
    if path != _STANDARD_INPUT:
        return read_files(path)
    text = PolicyText(_shown(path), _shown(path), sys.stdin.buffer.read(MOST_POLICY_BYTES + 1))
    return Snapshot((text,))


def _shown(path: Path) -> str:
    return "standard input" if path == _STANDARD_INPUT else str(path)
