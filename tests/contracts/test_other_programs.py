"""Commands of tests/e2e/README.md that build other projects' programs, run in fake clones."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.command_coverage import commands_of
from tests.support.nvml_stub import compiler
from tests.support.other_programs import STRANGERS, find, why_not

GIT = """\
#!/bin/sh
cp -r "$FAKE_CLONES/$(basename "$3")" .
"""
# Like NVIDIA's bindings, it calls a function that only the driver's library has.
MAIN = """\
package main

// #cgo LDFLAGS: -Wl,--export-dynamic -Wl,--unresolved-symbols=ignore-in-object-files
// int of_the_driver(void);
import "C"
import "os"

func main() {
	if len(os.Args) > 1 {
		C.of_the_driver()
	}
}
"""
MAKEFILES = {"NVIDIA_TOOLKIT": ".", "NVIDIA_MOCK": "pkg/gpu/mocknvml"}
"""Folder in which the commands run `make`, keyed by clone. In other clones they run `go build`."""

ROOTS = {"KUBE_STATE_METRICS": "package main\n\nfunc main() {}\n"}
"""Source of programs that is in the root folder of the clone."""


def make_clone(variable: str, clone: Path) -> None:
    """Write the minimum that a repository's build needs."""
    files = STRANGERS[variable].files
    if variable in MAKEFILES:
        folder = clone / MAKEFILES[variable]
        folder.mkdir(parents=True)
        (folder / "Makefile").write_text(f"all cmds:\n\ttouch {' '.join(files)}\n")
        return
    for name in files:
        folder = clone if variable in ROOTS else clone / "cmd" / name
        folder.mkdir(parents=True)
        (folder / "main.go").write_text(ROOTS.get(variable, MAIN))
    (clone / "go.mod").write_text("module example\n\ngo 1.21\n")


def test_the_commands_build_programs_that_start_without_a_driver(tmp_path, monkeypatch):
    missing = [name for name in ("bash", "go", "make") if not shutil.which(name)]
    missing += ["a C compiler"] * (compiler() is None)
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    for variable, stranger in STRANGERS.items():
        make_clone(variable, tmp_path / "clones" / Path(stranger.repository).name)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "git").write_text(GIT)
    (tmp_path / "bin" / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_CLONES", str(tmp_path / "clones"))
    monkeypatch.delenv("CGO_LDFLAGS_ALLOW", raising=False)
    monkeypatch.setenv("NVIDIA_TOOLKIT", str(tmp_path / "nvidia-container-toolkit"))
    commands = [command for _, command in commands_of(__file__)]
    done = subprocess.run(
        ["bash", "-e", "-c", "\n".join([*commands, f"printenv {' '.join(STRANGERS)}"])],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for variable, folder in zip(
        STRANGERS, done.stdout.splitlines()[-len(STRANGERS) :], strict=True
    ):
        monkeypatch.setenv(variable, folder)
        assert why_not(variable) == ""
        for name in STRANGERS[variable].files if variable not in MAKEFILES else ():
            subprocess.run([str(find(variable, name))], check=True, timeout=10)
