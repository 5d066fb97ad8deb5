"""`deploy/coming-over.md`: its example, its commands, and the names in it."""

from __future__ import annotations

import io
import re
import shlex
import sys

import pytest

from tests.support.command_coverage import commands_of
from tests.support.paths import ROOT
from webhook.cli.main import main
from webhook.tools.admit.migration.requests import PRODUCTS

PAGE = (ROOT / "deploy" / "coming-over.md").read_text()
BEFORE, AFTER = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
(SAID,) = re.findall(r"(?<=\n\n)```\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
COMMANDS = [command for _, command in commands_of(__file__)]
PIPED = re.findall(r"\| (vramwarden admit [^`]+)`", PAGE)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "manifests").mkdir()
    for name in ("manifests/infer.yaml", "infer.yaml"):
        (tmp_path / name).write_text(BEFORE)
    return tmp_path


@pytest.fixture
def admit(folder, monkeypatch, capsys):
    """Return a function that runs `vramwarden admit` in the folder: exit code, output, errors."""

    def run(*arguments, stdin=""):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        with pytest.raises(SystemExit) as ended:
            main(["admit", *arguments])
        return ended.value.code, *capsys.readouterr()

    return run


def test_the_example_becomes_what_stands_there(admit):
    assert admit("-f", "infer.yaml", "--migrate", "hami") == (0, AFTER, SAID)


def test_there_are_commands_to_run():
    assert (len(COMMANDS), len(PIPED)) == (2, 1)


@pytest.mark.parametrize("line", [*COMMANDS, *PIPED])
def test_the_commands_run(admit, line):
    _, _, *arguments = shlex.split(line.partition(">")[0])
    code, _, said = admit(*arguments, stdin=BEFORE)
    assert code == 0
    assert said.endswith("1 migrated, 1 translated\n")


@pytest.mark.parametrize("name", sorted(PRODUCTS))
def test_every_name_that_is_known_of_a_product_is_there(name):
    product = PRODUCTS[name]
    assert f"`--migrate {name}`" in PAGE
    tables = (product.resources, product.annotations, product.labels, product.variables)
    known = [item for table in (*tables, product.node_labels, product.objects) for item in table]
    assert [item for item in known if f"`{item.removesuffix('*')}" not in PAGE] == []
