"""`policy check -` and `policy test -` read standard input."""

from __future__ import annotations

import pytest

from tests.support.commands import runner
from tests.support.paths import POLICIES
from webhook.adapters.yaml_documents import MAX_BYTES
from webhook.cli.main import main

HEAD = "apiVersion: vramwarden.io/v1alpha1\nkind: VRAMPolicy\nmetadata: {name: a}\nspec:\n"


def policy(command, text):
    return runner().invoke(main, ["policy", command, "-"], input=text)


def test_a_valid_policy_is_said_to_be_so():
    text = (POLICIES / "default.yaml").read_text()
    done = policy("check", text)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith("standard input: valid: 2 rules, ")
    done = policy("test", text)
    assert done.exit_code == 0
    assert done.stdout.splitlines()[-1].startswith("standard input: ")
    assert done.stdout.splitlines()[-1].endswith(" 0 failed")


def test_a_problem_names_standard_input_and_the_line():
    done = policy("check", f"{HEAD}  rulez: []\n")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith(
        "standard input:5: spec.rulez: unknown field; did you mean rules?"
    )


@pytest.mark.parametrize("text", ["", f"{HEAD}  rules: []\n"])
def test_one_without_rules_brings_a_warning(text):
    done = policy("check", text)
    assert done.exit_code == 0
    assert done.stderr == ("warning: standard input: no rule in it, so every pod is left alone\n")


def test_no_more_is_read_than_a_file_may_have():
    done = policy("check", "#" * (MAX_BYTES + 100))
    assert done.exit_code == 1
    assert "standard input: is larger than 1048576 bytes" in done.stderr
