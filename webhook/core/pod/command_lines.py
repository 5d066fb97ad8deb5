"""Command lines of containers, as far as `command`, `args` and `env` show them.

The kubelet replaces `$(NAME)` in all of them. A shell replaces `$NAME` and `${NAME}` in its line.
The words after that line reach a program only if the line names them (POSIX, `sh -c`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from webhook.core.bounds import MOST_READ, MOST_TEXTS

if TYPE_CHECKING:
    from webhook.core.pod.fields import Json
    from webhook.core.pod.views import Container

END: Final = "\0"
"""End of a word in `CommandLine.text`; no word of a manifest has it."""
GAP: Final = r"[\s\0]+"
"""Pattern for what separates words, of a list and of a shell's line."""

_SHELLS: Final = frozenset({"sh", "bash", "dash", "ash", "zsh", "ksh", "busybox"})
_SHELL_WITHIN: Final = 16  # words before the name of a shell: `tini -g -- bash -c`
_LINE_OPTION: Final = re.compile(r"[-+][A-Za-z]*c[A-Za-z]*")
_NOT_RUN: Final = re.compile(r"\\\n|(?:^|(?<=\s))#[^\n]*", re.MULTILINE)
"""Line continuations and comments of a shell's line."""
_POSITIONAL: Final = re.compile(r"\$(?:[@*0-9]|\{[@*0-9])")


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a command line, and the field that has it."""

    path: str
    text: str


@dataclass(slots=True)
class CommandLine:
    """The words that a container's programs get."""

    words: list[Word]
    """Without those that a shell ignores."""
    text: str
    """The same words, each followed by `END`; a shell's line begins a line."""
    line: Word | None
    """The line that a shell runs."""
    ignored: list[Word]
    """Words after that line, which no program gets."""
    env: list[Json]

    def word_at(self, offset: int) -> Word:
        """Return the word that has an offset of `text`."""
        return self.words[self.text.count(END, 0, offset)]


def read_command_line(container: Container) -> CommandLine | None:
    """Read what a container runs; None if it is too much to read, or no list."""
    words: list[Word] = []
    for field in ("command", "args"):
        value = container.raw.get(field) or []
        if type(value) is not list or len(value) > MOST_TEXTS:
            return None
        words += [
            Word(f"{container.path}.{field}[{index}]", text)
            for index, text in enumerate(value)
            if type(text) is str
        ]
    env = container.env()
    if len(env) > MOST_TEXTS:
        return None
    length = sum(len(word.text) for word in words)
    length += sum(len(entry["name"]) + len(entry.get("value") or "") for entry in env)
    if length > MOST_READ:
        return None
    at = _find_line(words)
    if at is None:
        return CommandLine(words, _joined(words, None), None, [], env)
    line = Word(words[at].path, _NOT_RUN.sub(" ", words[at].text))
    after = words[at + 1 :]
    is_used = _POSITIONAL.search(line.text) is not None
    kept = [*words[:at], line, *(after if is_used else ())]
    return CommandLine(kept, _joined(kept, line), line, [] if is_used else after, env)


def _joined(words: list[Word], line: Word | None) -> str:
    texts = [word.text.replace(END, " ") + END for word in words]
    if line is not None:
        at = words.index(line)
        texts[at] = f"\n{texts[at]}"
    return "".join(texts)


def _find_line(words: list[Word]) -> int | None:
    """Return the index of a shell's line: `sh -c LINE`, `bash -euo pipefail -c LINE`."""
    for start, word in enumerate(words[:_SHELL_WITHIN]):
        if word.text.rpartition("/")[2] not in _SHELLS:
            continue
        for index in range(start + 1, len(words) - 1):
            option, before = words[index].text, words[index - 1].text
            if _LINE_OPTION.fullmatch(option):
                return index + 1
            takes_value = index > start + 1 and before[:1] in {"-", "+"} and before.endswith("o")
            if option[:1] not in {"-", "+"} and option not in _SHELLS and not takes_value:
                break
    return None
