"""Files for forks, editors and git hooks."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

import pytest
import yaml

from tests.support.paths import ROOT

SCRIPT = ROOT / ".ci" / "commit-msg"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TITLE = "t" * 60


def test_what_runs_before_a_commit_is_what_make_lint_runs():
    lint = re.search(r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    before = [hook["entry"] for hook in repository["hooks"] if "stages" not in hook]
    assert before == lint[1].replace("\t", "").replace("$(BIN)", ".venv/bin").splitlines()


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_sets_up_and_runs_what_everybody_runs(path):
    (job,) = yaml.safe_load(path.read_text())["jobs"].values()
    *setup, last = [step["run"] for step in job["steps"] if "run" in step]
    assert last == ".ci/run"
    assert not re.search(r"\bmake\b|pytest|ruff|mypy", " ".join(setup))


@pytest.fixture
def git(tmp_path):
    """Return a function that runs git in a temporary repository."""

    def run(*arguments):
        settings = "-c user.name=a -c user.email=a@example -c init.defaultBranch=main"
        command = ["git", "-C", tmp_path, *settings.split(), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    run("init")
    run("commit", "--allow-empty", "--message", "Begin")
    return run


def ask(tmp_path, *arguments):
    """Return the exit code of the script and its output without the commit's name."""
    done = subprocess.run(
        [SCRIPT, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    said = [line.partition(": ")[2] for line in done.stderr.splitlines()]
    return done.returncode, *said


@pytest.mark.parametrize(
    ("message", "files", "said"),
    [
        pytest.param(TITLE, 2, (), id="two files need no body"),
        pytest.param(f"{TITLE}\n\nWhy.\n", 3, (), id="three files with a body"),
        pytest.param(TITLE, 3, ("3 files change; say why in the body",), id="three files without"),
        pytest.param(
            f"{TITLE}\n\n", 3, ("3 files change; say why in the body",), id="an empty line is none"
        ),
        pytest.param(
            TITLE + "t", 1, ("the title has 61 characters; at most 60",), id="a title too long"
        ),
        pytest.param("é" * 60, 1, (), id="characters, not bytes"),
    ],
)
def test_a_commit_is_asked_for_a_short_title_and_a_why(git, tmp_path, message, files, said):
    for number in range(files):
        (tmp_path / f"{number}").touch()
    git("add", "--all")
    written = tmp_path / ".git" / "COMMIT_EDITMSG"
    written.write_text(f"{message}\n# a comment is no body\n# ---- >8 ----\ndiff\n")
    assert ask(tmp_path, str(written)) == (len(said), *said)
    git("commit", "--message", message)
    assert ask(tmp_path, "--since", "main~1") == (len(said), *said)


def test_a_merge_is_rejected_and_what_was_there_before_is_not_asked(git, tmp_path):
    git("checkout", "-b", "other")
    git("commit", "--allow-empty", "--message", "Other")
    git("checkout", "-b", "third", "main")
    git("commit", "--allow-empty", "--message", TITLE + " of before")
    git("tag", "before")
    git("merge", "--no-ff", "--no-commit", "other")
    assert ask(tmp_path, ".git/MERGE_MSG") == (1, "rebase in place of it")
    git("commit", "--message", "Merge")
    assert ask(tmp_path, "--since", "before") == (1, "a merge: rebase in place of it")
    assert ask(tmp_path, "--since", "third") == (0,)
    assert ask(tmp_path, "--since", "nowhere") == (0,)


STUB = """\
#!/bin/sh
# Python, uv and what they put into the environment: each says what it was asked to do.
name=$(basename "$0")
echo "$name $*" >> asked
case "$name $*" in
*"$(cat fails 2>/dev/null || echo nothing)"*) exit 1 ;;
*" venv "*)
    for last; do :; done
    rm -rf "$last" && mkdir -p "$last/bin"
    for made in pip python vramwarden; do cp "$0" "$last/bin/$made"; done ;;
esac
"""
PIP = "pip install --quiet --disable-pip-version-check --no-compile"
BY_PIP = ["python3 -m venv --clear .venv", f"{PIP} pip>=25.1"]
BY_UV = ["uv venv --quiet --clear --seed --python python3 .venv"]
ALONE, DEV = "--editable .", "--editable . --group dev"
UV_INSTALLS = "uv pip install --quiet --python .venv/bin/python"


@pytest.fixture
def made(tmp_path):
    """Return a function that runs make targets with stubs and returns the stubs' arguments."""
    if shutil.which("make") is None:
        pytest.skip("make is not on PATH")
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("python3", "uv"):
        (tmp_path / name).write_text(STUB)
        (tmp_path / name).chmod(0o755)

    def run(*targets, uv="", fails="nothing"):
        (tmp_path / "fails").write_text(fails)
        (tmp_path / "asked").write_text("")
        path = f"{tmp_path}:{os.environ['PATH']}"
        command = ["make", *targets, f"UV={uv}"]
        done = subprocess.run(
            command, cwd=tmp_path, env={"PATH": path}, capture_output=True, check=False
        )
        return done.returncode, (tmp_path / "asked").read_text().splitlines()

    run.folder = tmp_path
    return run


def test_the_demo_installs_what_users_need_and_the_tests_the_rest(made):
    assert made("demo") == (0, [*BY_PIP, f"{PIP} {ALONE}", "vramwarden demo"])
    assert made("demo") == (0, ["vramwarden demo"])
    assert made(".venv/.ready") == (0, [f"{PIP} {DEV}"])
    assert made(".venv/.ready", "demo") == (0, ["vramwarden demo"])


def test_who_has_the_rest_has_what_the_demo_needs(made):
    assert made(".venv/.ready") == (0, [*BY_PIP, f"{PIP} {DEV}"])
    assert made("demo") == (0, ["vramwarden demo"])


@pytest.mark.parametrize("target", [".venv/.installed", ".venv/.ready"])
def test_what_was_interrupted_begins_again_with_an_empty_environment(made, target):
    install = f"{PIP} {DEV if target.endswith('ready') else ALONE}"
    assert made("demo")[0] == 0
    installed = (made.folder / ".venv" / ".installed").stat().st_mtime_ns
    os.utime(
        made.folder / "pyproject.toml", ns=(installed + 1, installed + 1)
    )  # file timestamps are coarse
    assert made(target, fails="--editable") == (2, [install])
    assert made(target) == (0, [*BY_PIP, install])


def test_where_uv_is_it_installs_and_where_it_fails_pip_does(made):
    demo = [*BY_UV, f"{UV_INSTALLS} {ALONE}", "vramwarden demo"]
    assert made("demo", uv="uv") == (0, demo)
    assert made("clean", uv="uv") == (0, [])
    fallen_back = [*BY_UV, *BY_PIP, f"{UV_INSTALLS} {ALONE}", f"{PIP} {ALONE}", "vramwarden demo"]
    assert made("demo", uv="uv", fails="uv ") == (0, fallen_back)
