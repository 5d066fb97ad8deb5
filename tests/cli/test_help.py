"""`vramwarden --help` shows every command once, with its full summary."""

from __future__ import annotations

import re

import pytest

from tests.support.run_command import runner
from webhook.cli.main import main
from webhook.options import ExitCode


def test_help_shows_each_command_once_with_its_full_summary():
    said = runner().invoke(main, ["--help"], terminal_width=80).stdout
    assert sorted(re.findall(r"^  ([a-z]+)  +\S", said, re.MULTILINE)) == main.list_commands(None)
    assert said.count("...") == 1  # in the usage line


@pytest.mark.parametrize(
    ("word", "meant"),
    [("toppp", " Did you mean 'top'?"), ("explian", " Did you mean 'explain'?"), ("x", "")],
)
def test_a_mistyped_command_gets_a_suggestion(word, meant):
    done = runner().invoke(main, [word, "--help"])
    assert done.exit_code == ExitCode.WRONG
    assert done.stderr.endswith(f"Error: No such command {word!r}.{meant}\n")


@pytest.mark.process  # click asks bash for its version
def test_help_describes_exit_codes_and_completion():
    said = runner().invoke(main, ["--help"], terminal_width=80).stdout
    codes = dict(re.findall(r"^ +([0-9])  (.*)$", said, re.MULTILINE))
    assert codes == {str(int(code)): code.meaning for code in ExitCode}
    for shell, script in re.findall(r"(_VRAMWARDEN_COMPLETE=(\w+_source)) vramwarden", said):
        done = runner().invoke(main, prog_name="vramwarden", env=dict([shell.split("=")]))
        assert "_VRAMWARDEN_COMPLETE=" + script.replace("source", "complete") in done.stdout
