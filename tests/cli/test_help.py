"""`vramwarden --help` names every command once, and says what it does in full."""

from __future__ import annotations

import re

from tests.support.commands import runner
from webhook.cli.main import main


def test_help_has_each_command_once_and_cuts_no_sentence():
    said = runner().invoke(main, ["--help"], terminal_width=80).stdout
    assert sorted(re.findall(r"^  ([a-z]+)  +\S", said, re.MULTILINE)) == main.list_commands(None)
    assert said.count("...") == 1  # of the usage
