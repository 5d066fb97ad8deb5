"""Command lines of containers: the arguments in `command`, `args` and `env`.

The kubelet replaces `$(NAME)` in these fields. A shell replaces `$NAME` and `${NAME}` in its
script. Arguments after the script of `sh -c` reach a program only if the script refers to them
(POSIX).
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from webhook.core.bounds import MAX_ARGUMENTS, MAX_TEXT_LENGTH
from webhook.core.pod.views import Container

SEPARATOR_PATTERN: Final = r"[\s\0]+"
"""Regular expression that matches a separator between words in a list or a shell script."""
OWN_VARIABLE_PREFIX: Final = "VRAMWARDEN_"
"""Prefix of the environment variables that vramwarden adds to containers with VRAM."""

_MOST_OF_POD: Final = 2 * MAX_TEXT_LENGTH
"""Maximum number of characters in a pod's command lines. Longer command lines are not judged."""
_END: Final = "\0"
"""Terminator of a word in `Words.text`."""
_ONE_SPELLING: Final = str.maketrans(f"{string.ascii_uppercase}-", f"{string.ascii_lowercase}_")
_SHELL: Final = re.compile(
    r"(?<![^\0/])(?:ba|da|a|z|k)?sh\0(?:(?:[-+][^\0]*|pipefail)\0)*?[-+][A-Zabd-z]*c[A-Za-z]*\0"
)
"""Regular expression that matches the arguments before a script: `tini -- bash -euo pipefail
-c`."""
_NOT_RUN: Final = re.compile(r"\\\n|(?:^|(?<=\s))#[^\n]*", re.MULTILINE)
"""Regular expression that matches line continuations and comments in a shell script."""
_POSITIONAL: Final = re.compile(r"\$(?:[@*0-9]|\{[@*0-9])")
# Possessive quantifiers, and one search for an unclosed quote, keep the time linear in the length.
_COMMAND: Final = re.compile(
    r"""(?:\$\([^()]*\)|"[^"]*"|'[^']*'|`[^`]*`|[<>]&|&>|\\[;&|]|[^;&|\n])++"""
)
"""Regular expression that matches one command of a shell script."""
_KEPT: Final = re.compile(
    r"""(?:(?:\w\+?=|<<<\s?)(?:"[^"]*|'[^']*|\([^()]*)|(?<!\w)set __(?:(?!set __)[^;&|\n])*"""
    r"""|(?<=[\s)])\{\s(?:[^{}]|\$\{[^{}]*\})*)\Z"""
)
"""Regular expression that matches the start of a command stored in a variable or a function."""


class Word(NamedTuple):
    """One command-line argument, or one environment variable as `NAME=value`."""

    path: str
    """Path of the field that holds the argument or the variable's value."""
    text: str
    variable: str = ""
    """Name of the environment variable; empty for an argument."""


class Words:
    """Words joined to one string, so that one search covers all of them."""

    def __init__(self, words: list[Word]) -> None:
        self.words = words
        self.text = "".join(word.text.replace(_END, " ") + _END for word in words)
        self.plain = self.text.translate(_ONE_SPELLING)
        """Lowercase string with `_` for `-`: one spelling for flags and variables."""

    def at(self, found: re.Match[str], group: str | int = 0) -> Word:
        """Return the word that contains the start of a matched group."""
        return self.words[self.text.count(_END, 0, found.start(group))]

    def written(self, found: re.Match[str], group: str | int = 0) -> str:
        """Return the original spelling of a group that matched in `plain`."""
        return self.text[found.start(group) : found.end(group)]


class CommandLine(NamedTuple):
    """Command line and environment variables of a container."""

    words: Words
    """Arguments that reach programs, then environment variables except vramwarden's. A shell
    script begins a new line."""
    end: int
    """Offset of the first environment variable."""
    line: Word | None
    """Script that a shell runs; None without a shell."""
    ignored: Words
    """Arguments after the script that reach no program."""

    def given_to(self, start: re.Match[str] | None) -> str:
        """Return the part of `words.plain` that may reach the program started at `start`.

        In a shell script, this part ends with the program's own command, unless a variable or a
        function holds that command.
        """
        plain = self.words.plain
        if start is None or self.words.at(start) is not self.line:
            return plain[: self.end]
        line_end = plain.index(_END, start.start())
        ends = (command.end() for command in _COMMAND.finditer(plain, 0, line_end))
        is_kept = _KEPT.search(plain, 0, start.start())
        end = next((end for end in ends if end > start.start() and not is_kept), line_end)
        return plain[:end] + plain[line_end : self.end]


def read_command_line(container: Container) -> CommandLine | None:
    """Return a container's command line, or None if it is too long or not a list."""
    words: list[Word] = []
    for field in ("command", "args"):
        value = container.raw.get(field) or []
        if type(value) is not list or len(value) > MAX_ARGUMENTS:
            return None
        words += [
            Word(f"{container.path}.{field}[{index}]", text)
            for index, text in enumerate(value)
            if type(text) is str
        ]
    env = container.env()
    if len(env) > MAX_ARGUMENTS:
        return None
    variables = [
        Word(f"{container.path}.env[{index}].value", f"{name}={entry.get('value') or ''}", name)
        for index, entry in enumerate(env)
        if not (name := entry["name"]).startswith(OWN_VARIABLE_PREFIX)
    ]
    if sum(len(word.text) for word in (*words, *variables)) > MAX_TEXT_LENGTH:
        return None
    line, ignored = None, []
    text = Words(words).text
    script = container.raw.get("source")  # of an Argo template
    if type(script) is str and len(script) <= MAX_TEXT_LENGTH and _SHELL.search(f"{text}-c{_END}"):
        words += [Word("", "-c"), Word(f"{container.path}.source", script)]
        text = Words(words).text
    shell = _SHELL.search(text)
    at = text.count(_END, 0, shell.end()) if shell else len(words)
    if at < len(words):
        line = words[at]._replace(text="\n" + _NOT_RUN.sub(" ", words[at].text))
        after = words[at + 1 :]
        ignored = [] if _POSITIONAL.search(line.text) else after
        words = [*words[:at], line, *(() if ignored else after)]
    end = sum(len(word.text) for word in words) + len(words)
    return CommandLine(Words([*words, *variables]), end, line, Words(ignored))


def read_command_lines(
    containers: Iterable[Container],
) -> Iterator[tuple[Container, CommandLine]]:
    """Yield the containers of a pod with their command lines, up to `_MOST_OF_POD` characters."""
    left = _MOST_OF_POD
    for container in containers:
        line = read_command_line(container)
        if line is None:
            continue
        left -= len(line.words.text)
        if left < 0:
            return
        yield container, line
