"""Generated files and blocks are up to date; `make generate` writes them."""

from __future__ import annotations

import difflib
import re
import shutil
import subprocess
import sys

import pytest

from deploy import generate
from tests.support.paths import ROOT

TARGETS = sorted(generate.targets())


@pytest.mark.parametrize("path", TARGETS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_is_derived_is_up_to_date(path):
    shown = str(path.relative_to(ROOT))
    there, made = (text.splitlines() for text in (path.read_text(), generate.content(path)))
    difference = list(difflib.unified_diff(there, made, shown, "generated", lineterm=""))
    if difference:
        pytest.fail("\n".join([f"{shown} is stale; run make generate", *difference]))


@pytest.mark.parametrize("name", generate.BLOCKS)
def test_every_block_stands_in_one_file(name):
    bearing = [path for path in TARGETS if name in generate.block_names(path)]
    assert len(bearing) == 1, (
        f"put <!-- generated: {name} --> and <!-- end --> where it belongs, once: {bearing}"
    )


@pytest.fixture
def copy(tmp_path):
    """Return a copy of the generated files and their sources."""
    for name in {path.relative_to(ROOT).parts[0] for path in TARGETS} | {"deploy", "policies"}:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tmp_path / name)
        else:
            shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def generated(copy):
    return subprocess.run(
        [sys.executable, copy / "deploy" / "generate.py"],
        env={"PATH": "", "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def emptied(text: str) -> str:
    """Return a text with empty blocks and the images of another release."""
    text = re.sub(
        r"( generated: .*?\n).*?^(<!--|#) end", r"\1\2 end", text, flags=re.MULTILINE | re.DOTALL
    )
    return re.sub(r"(vramwarden/vramwarden:)\d+\.\d+\.\d+", r"\g<1>0.0.1", text)


def test_what_is_stale_is_written_and_named(copy):
    targets = [path.relative_to(ROOT) for path in TARGETS]
    for path in targets:
        text = (copy / path).read_text()
        is_whole = path.suffix in {".json", ".svg"} or path.parent.name == "files"
        (copy / path).write_text("" if is_whole else emptied(text))
        assert (copy / path).read_text() != text
    done = generated(copy)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == sorted(map(str, targets))
    for path in targets:
        assert (copy / path).read_text() == (ROOT / path).read_text()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (
            "<!-- generated: chart-value -->\n<!-- end -->\n",
            "no block is called chart-value; there",
        ),
        ("<!-- generated: chart-values -->\n| a |\n", "block chart-values has no end"),
        (
            "<!-- generated: chart-values -->\n<!-- generated: denial-reasons -->\n<!-- end -->\n",
            "block chart-values has no end before <!-- generated: denial-reasons -->",
        ),
    ],
)
def test_a_block_that_is_marked_wrongly_is_told_and_left(copy, wrong, said):
    document = copy / "policies" / "wrong.md"
    document.write_text(wrong)
    done = generated(copy)
    assert done.returncode == 1
    assert f"policies/wrong.md is left as it is: {said}" in done.stderr
    assert document.read_text() == wrong
