"""The two sides of a comparison: the working tree and an installed commit."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.bench import settings
from tests.support.paths import ROOT

CACHE = ROOT / ".bench"


@dataclass(frozen=True, slots=True)
class Side:
    """A commit to run: the interpreter of its environment, and its files."""

    label: str
    python: Path
    root: Path


OURS = Side("ours", Path(sys.executable), ROOT)


class Unusable(Exception):  # noqa: N818 - a reason to go on without
    """Raised if the baseline is unavailable; has the reason in one line."""


class Failed(Unusable):
    """Raised if a program that fetches or installs the baseline failed."""


def sides():
    """Return the working tree and, if available, the baseline; print which."""
    try:
        commit = _commit(settings.BASELINE)
        found = _installed(commit)
    except Unusable as reason:
        print(f"baseline: skipped: {reason}")
        return [OURS]
    print(f"baseline: {_git('log', '-1', '--format=%h of %cs, %s', commit).strip()}")
    return [found, OURS]


def _commit(name):
    if not name:
        raise Unusable("BENCH_BASELINE is empty")
    try:
        return _git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}").strip()
    except Failed:
        raise Unusable(
            f"git has no commit {name} here; fetch it (`git fetch --unshallow` in a shallow clone) "
            "or name another by BENCH_BASELINE"
        ) from None


def _installed(commit):
    """Check out a commit and install it once, with the libraries of this environment."""
    folder = CACHE / commit
    tree, environment, versions = folder / "tree", folder / "venv", folder / "versions.txt"
    side = Side("baseline", environment / "bin" / "python", tree)
    uv = shutil.which("uv", path=Path(sys.executable).parent) or shutil.which("uv")
    if uv is None:
        raise Unusable("there is no uv to install it with; `make bench` brings it")
    freeze = [uv, "pip", "freeze", "--quiet", "--exclude-editable", f"--python={sys.executable}"]
    wanted = f"# {sys.base_prefix}\n{_run(*freeze)}"
    if versions.exists() and versions.read_text() == wanted:
        return side
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    _git("archive", f"--output={folder / 'tree.tar'}", commit)
    tree.mkdir()
    _run("tar", "--extract", f"--file={folder / 'tree.tar'}", f"--directory={tree}")
    _run(uv, "venv", "--quiet", f"--python={sys.executable}", str(environment))
    # Both sides use the same version of each library, so that libraries are not compared.
    beside = folder / "versions.new"
    beside.write_text(wanted)
    install = [uv, "pip", "install", "--quiet", f"--python={side.python}"]
    _run(*install, f"--constraint={beside}", f"--editable={tree}")
    beside.rename(versions)
    return side


def _git(*arguments):
    return _run("git", "-C", str(ROOT), *arguments)


def _run(*command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise Unusable(f"there is no {error.filename}") from None
    if done.returncode:
        words = done.stderr.split("\n")
        line = next((line.strip() for line in words if line.strip()), "no reason given")
        raise Failed(f"{' '.join(command[:3])} failed: {line}")
    return done.stdout
