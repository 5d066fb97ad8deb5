"""Golden cases: `input.yaml`, and the `expected.yaml` and `expected.txt` (findings) it leads to.

Values and comments are compared, not spacing, which is the YAML library's own.
"""

from __future__ import annotations

import os
import re

import pytest

from tests.cli.admit_runs import run
from tests.support.paths import GOLDEN
from webhook.adapters.manifests.documents import read_documents

CASES = sorted(path.name for path in GOLDEN.iterdir() if path.is_dir())
FILES = {"input.yaml", "expected.yaml", "expected.txt"}
UPDATE = "UPDATE_GOLDEN"
HOW = f"set {UPDATE}=1 to write what comes out now, and read the difference before committing it"


def comments(text: str) -> list[str]:
    return re.findall(r"(?m)(?:^|\s)(#.*)$", text)


def values(text: str) -> list[object]:
    return [document.value for document in read_documents(text)]


@pytest.mark.parametrize("case", CASES)
def test_manifests_come_out_as_recorded(case):
    folder = GOLDEN / case
    result = run((folder / "input.yaml").read_text(), namespace="team-a")
    report = f"{result.err}exit code {result.code}\n"
    if os.environ.get(UPDATE):
        (folder / "expected.yaml").write_text(result.out)
        (folder / "expected.txt").write_text(report)
    assert {path.name for path in folder.iterdir()} == FILES, f"{folder} needs {FILES}; {HOW}"
    expected = (folder / "expected.yaml").read_text()
    assert values(result.out) == values(expected), HOW
    assert comments(result.out) == comments(expected), HOW
    assert report == (folder / "expected.txt").read_text(), HOW


@pytest.mark.parametrize("case", CASES)
def test_no_recorded_comment_gets_lost(case):
    folder = GOLDEN / case
    before, after = ((folder / name).read_text() for name in ("input.yaml", "expected.yaml"))
    left = iter(comments(after))  # what an alias stood for may show its comments once more
    assert all(comment in left for comment in comments(before))
