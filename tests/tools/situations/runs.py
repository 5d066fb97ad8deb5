"""Run the four commands in a situation, and write down what they say and ask."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING
from unittest.mock import patch

from tests.support.commands import runner
from tests.tools.situations.scenes import SITUATIONS, TEAM
from webhook import __version__
from webhook.adapters.kube import client
from webhook.cli.main import main

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.api_server import ApiServer
    from tests.tools.situations.scenes import Situation

CRASHED = "crashed: "
PLAIN = "running"
"""The situation in which nothing is wrong."""
_PODS = re.compile(r"\bof \d+ pods?\b(?= to which)")
_DIGEST = re.compile(r"\b[0-9a-f]{12}\b")


def commands(situation: Situation) -> dict[str, list[str]]:
    """Return the arguments of the commands that are asked, by name."""
    arguments = {
        "explain": [situation.about, "-n", TEAM],
        "check": [*situation.options],
        "top": ["-n", TEAM],
        "report": ["-n", TEAM] if situation.views else [],
    }
    return {name: [name, *arguments.get(name, ())] for name in situation.commands}


def run(api: ApiServer, arguments: list[str]) -> tuple[str, int]:
    """Return what a command writes on both streams, and its exit code."""
    with patch.object(client, "connect", lambda *_, **__: api.kube()):
        done = runner().invoke(main, arguments, prog_name="vramwarden", env={"COLUMNS": "150"})
    crash = done.exception
    if crash and not isinstance(crash, SystemExit):
        return f"{done.stdout}{CRASHED}{type(crash).__name__}: {crash}\n", done.exit_code
    return done.stdout + done.stderr, done.exit_code


def record(name: str) -> str:
    """Return the recording of a situation; sections as in that of `running` are only named."""
    title, make = SITUATIONS[name]
    found = _sections(make())
    same = [one for one, text in found.items() if name != PLAIN and text == _plain().get(one)]
    parts = [f"# {title}", *(text for one, text in found.items() if one not in same)]
    if same:
        parts.append(f"As in {PLAIN}.txt: {', '.join(same)}")
    return "\n\n".join(parts) + "\n"


def complete(recording: str, plain: str) -> str:
    """Return a recording with the sections of `running` that it names."""
    text, _, same = recording.rstrip("\n").partition(f"\n\nAs in {PLAIN}.txt: ")
    sections = plain.split("\n\n$ vramwarden ")[1:]
    added = [one.rstrip("\n") for one in sections if one.split()[0] in same.split(", ")]
    return "\n\n$ vramwarden ".join([text, *added]) + "\n"


@cache
def _plain() -> dict[str, str]:
    return _sections(replace(SITUATIONS[PLAIN].make(), whole=False))


def _sections(situation: Situation) -> dict[str, str]:
    """Return what each command writes, with its arguments and exit code."""
    return {
        name: "\n".join(_section(situation, name, arguments))
        for name, arguments in commands(situation).items()
    }


def _section(situation: Situation, name: str, arguments: list[str]) -> Iterator[str]:
    api = situation.stored()
    text, code = run(api, arguments)
    if name == "check" and not situation.whole:
        text = not_ok(text)
    if name == "report":
        text = _PODS.sub("of N pods", text.replace("\n\n", "\n"))
    yield f"$ vramwarden {' '.join(arguments)}"
    yield from same_in_each_release(text).splitlines()
    yield f"exit code {code}"
    if name == "explain":
        yield f"requests: {', '.join(requests(api))}"


def requests(api: ApiServer) -> list[str]:
    """Return method and path of what was asked, in order, without the query."""
    return [f"{one.method} {one.path}" for one in api.asked]


def not_ok(text: str) -> str:
    """Return what `check` writes of what is not as it should be, and its last line."""
    lines, kept, keeps = text.splitlines(), [], False
    for line in lines[:-1]:
        keeps = line[:2] in {"✗ ", "! ", "? ", "- "} or (keeps and line.startswith(" "))
        kept += [line] * keeps
    return "\n".join([*kept, lines[-1]])


def same_in_each_release(text: str) -> str:
    """Return a text without what differs between releases: version and digests of policies."""
    return _DIGEST.sub("0123456789ab", text.replace(__version__, "VERSION"))
