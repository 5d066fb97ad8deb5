"""Output for continuous integration: GitHub annotations, and JUnit reports.

Sources: docs.github.com, "Workflow commands for GitHub Actions"; the JUnit XML that GitLab, Jenkins
and others read (testmoapp/junitxml describes it).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from webhook.tools.manifests.reading import STANDARD_INPUT, input_name
from webhook.tools.render.output import printable

_STANDARD_INPUT: Final = input_name(STANDARD_INPUT)


def annotation(command: str, file: str, line: int, text: str, title: str = "") -> str:
    """Return a GitHub workflow command: `error`, `warning` or `notice`.

    `line` 0 refers to the whole file.
    """
    properties = {} if file == _STANDARD_INPUT else {"file": file}
    properties |= {"line": str(line)} if line else {}
    properties["title"] = title or "vramwarden"
    written = ",".join(f"{key}={_property(value)}" for key, value in properties.items())
    return f"::{command} {written}::{_data(text)}\n"


def _data(text: str) -> str:
    """Escape a string for GitHub's runner, so that it cannot begin a workflow command."""
    escaped = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return printable(escaped)


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


@dataclass(frozen=True, slots=True, kw_only=True)
class JUnitCase:
    """A test case of a JUnit report."""

    name: str
    file: str
    line: int = 0
    """Line in the file; 0 for the whole file."""
    failure: tuple[str, str] | None = None
    """Kind and message of the failure, one sentence per line; None if the case passed."""
    is_error: bool = False
    """True if no decision could be made."""
    output: tuple[str, ...] = ()
    """Lines of additional output."""


def junit(name: str, suites: Mapping[str, Sequence[JUnitCase]]) -> str:
    """Return a JUnit report with one suite per file."""
    every = [case for cases in suites.values() for case in cases]
    lines = ['<?xml version="1.0" encoding="UTF-8"?>']
    lines.append(f'<testsuites name="{_xml(name)}" {_totals(every)}>')
    for suite, cases in suites.items():
        lines.append(f'  <testsuite name="{_xml(suite)}" {_totals(cases)}>')
        for case in cases:
            lines += _case(case)
        lines.append("  </testsuite>")
    lines.append("</testsuites>")
    return "\n".join(lines) + "\n"


def _totals(cases: Sequence[JUnitCase]) -> str:
    errors = sum(case.is_error for case in cases)
    failures = sum(case.failure is not None for case in cases) - errors
    return f'tests="{len(cases)}" failures="{failures}" errors="{errors}"'


def _case(case: JUnitCase) -> Iterator[str]:
    about = {"name": case.name, "classname": case.file, "file": case.file}
    about |= {"line": str(case.line)} if case.line else {}
    written = " ".join(f'{key}="{_xml(value)}"' for key, value in about.items())
    yield f"    <testcase {written}>"
    if case.failure:
        kind, why = case.failure
        tag = "error" if case.is_error else "failure"
        lines = "\n".join(map(_xml, why.split("\n")))
        yield f'      <{tag} type="{_xml(kind)}" message="{_xml(why)}">{lines}</{tag}>'
    if case.output:
        yield "      <system-out>" + "\n".join(map(_xml, case.output)) + "</system-out>"
    yield "    </testcase>"


def _xml(text: str) -> str:
    """Escape a string for XML, which forbids control characters even as references."""
    return escape(printable(text))
