"""Run the four commands in a situation, and record their output and requests."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from unittest.mock import patch

from tests.support.api_server import ApiServer
from tests.support.run_command import runner
from tests.tools.situations.bound import ROWS
from tests.tools.situations.scenes import TEAM, Situation, has_role_view
from webhook import __version__
from webhook.adapters.kube import connection
from webhook.cli.main import main

COMMANDS = ("explain", "check", "top", "report")
CRASHED = "crashed: "
PLAIN = "running"
_PODS = re.compile(r"\bof \d+ pods?\b(?= to which)")
_DIGEST = re.compile(r"\b[0-9a-f]{12}\b")


def arguments(command: str, situation: Situation) -> list[str]:
    if command == "check":
        return [command] if situation.installed else [command, "--pre"]
    everywhere = command == "report" and has_role_view not in situation.changes
    about = [situation.about] if command == "explain" else []
    return [command, *about, *([] if everywhere else ["-n", TEAM])]


def run(api: ApiServer, words: list[str]) -> tuple[str, int]:
    """Return the output of a command on both streams, and its exit code."""
    with patch.object(connection, "connect", lambda *_, **__: api.kube()):
        done = runner().invoke(main, words, prog_name="vramwarden", env={"COLUMNS": "150"})
    crash = done.exception
    if crash and not isinstance(crash, SystemExit):
        return f"{done.stdout}{CRASHED}{type(crash).__name__}: {crash}\n", done.exit_code
    return done.stdout + done.stderr, done.exit_code


def record(title: str, situation: Situation) -> str:
    """Record all commands. A section equal to that of `running` is only named."""
    found, plain = _sections(situation), _plain()
    is_plain = situation is ROWS[PLAIN][1]
    same = [] if is_plain else [command for command in COMMANDS if found[command] == plain[command]]
    if is_plain:
        found["check"] = section(situation, "check", whole=True)
    parts = [f"# {title}", *(text for item, text in found.items() if item not in same)]
    if same:
        parts.append(f"As in {PLAIN}.txt: {', '.join(same)}")
    return "\n\n".join(parts) + "\n"


def record_each(command: str, rows: Mapping[str, Situation]) -> str:
    """Record one command in each of these situations."""
    heading = f"$ vramwarden {command}\n"
    parts = {title: section(row, command).removeprefix(heading) for title, row in rows.items()}
    return "\n".join(f"# {title}\n{text}\n" for title, text in parts.items())


def read_each(recording: str) -> dict[str, str]:
    """Return the parts of a recording, keyed by title."""
    _, *parts = re.split("^# (.*)\n", recording, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def complete(recording: str, plain: str) -> str:
    """Return a recording with the sections of `running` that it only names."""
    text, _, same = recording.rstrip("\n").partition(f"\n\nAs in {PLAIN}.txt: ")
    sections = plain.split("\n\n$ vramwarden ")[1:]
    added = [section.rstrip("\n") for section in sections if section.split()[0] in same.split(", ")]
    return "\n\n$ vramwarden ".join([text, *added]) + "\n"


@cache
def _plain() -> dict[str, str]:
    return _sections(ROWS[PLAIN][1])


def _sections(situation: Situation) -> dict[str, str]:
    return {name: section(situation, name) for name in COMMANDS}


def section(situation: Situation, command: str, *, whole: bool = False) -> str:
    """Return the output of a command, with its arguments and exit code.

    For `check`, only problems are returned unless `whole` is true.
    """
    return "\n".join(_lines(situation, arguments(command, situation), whole=whole))


def _lines(situation: Situation, words: list[str], *, whole: bool) -> Iterator[str]:
    api = situation.stored()
    text, code = run(api, words)
    if words[0] == "check" and not whole:
        text = not_ok(text)
    if words[0] == "report":
        text = _PODS.sub("of N pods", text.replace("\n\n", "\n"))
    yield f"$ vramwarden {' '.join(words)}"
    yield from same_in_each_release(text).splitlines()
    yield f"exit code {code}"
    if words[0] == "explain":
        yield f"requests: {', '.join(requests(api))}"


def requests(api: ApiServer) -> list[str]:
    """Return method and path of all requests, in order."""
    return [f"{request.method} {request.path}" for request in api.asked]


def not_ok(text: str) -> str:
    """Return the problems in the output of `check`, and its last line."""
    lines, kept, keeps = text.splitlines(), [], False
    for line in lines[:-1]:
        keeps = line[:2] in {"✗ ", "! ", "? ", "- "} or (keeps and line.startswith(" "))
        kept += [line] * keeps
    return "\n".join([*kept, lines[-1]])


def same_in_each_release(text: str) -> str:
    """Return a text without values that depend on the release: version and policy digests."""
    return _DIGEST.sub("0123456789ab", text.replace(__version__, "VERSION"))
