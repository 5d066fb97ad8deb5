"""`vramwarden --help` names every command once, and says what it does in full."""

from __future__ import annotations

import re

import pytest

from tests.support.run_command import runner
from webhook.cli.main import main
from webhook.options import ExitCode


def test_help_has_each_command_once_and_cuts_no_sentence():
    said = runner().invoke(main, ["--help"], terminal_width=80).stdout
    assert sorted(re.findall(r"^  ([a-z]+)  +\S", said, re.MULTILINE)) == main.list_commands(None)
    assert said.count("...") == 1  # of the usage


@pytest.mark.parametrize(
    ("word", "meant"),
    [("toppp", " Did you mean 'top'?"), ("explian", " Did you mean 'explain'?"), ("x", "")],
)
def test_a_mistyped_command_is_answered_with_what_was_meant(word, meant):
    done = runner().invoke(main, [word, "--help"])
    assert done.exit_code == ExitCode.WRONG
    assert done.stderr.endswith(f"Error: No such command {word!r}.{meant}\n")


@pytest.mark.process  # click asks bash for its version
def test_help_says_what_exit_codes_mean_and_how_to_complete():
    said = runner().invoke(main, ["--help"], terminal_width=80).stdout
    codes = dict(re.findall(r"^ +([0-9])  (.*)$", said, re.MULTILINE))
    assert codes == {str(int(one)): one.meaning for one in ExitCode}
    for shell, script in re.findall(r"(_VRAMWARDEN_COMPLETE=(\w+_source)) vramwarden", said):
        done = runner().invoke(main, prog_name="vramwarden", env=dict([shell.split("=")]))
        assert "_VRAMWARDEN_COMPLETE=" + script.replace("source", "complete") in done.stdout
