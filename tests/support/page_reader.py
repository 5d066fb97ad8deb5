"""Run the commands of the pages in a clone, against a cluster, as a reader would."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support.control_planes import find_binary
from tests.support.paths import ROOT

CLONED = ("deploy", "policies")


class Reader:
    """Run commands in a folder with parts of a clone and the tests' programs on PATH.

    `replaced` has values for the placeholders of the pages.
    """

    def __init__(self, folder: Path, kubeconfig: Path, replaced: dict[str, str] | None = None):
        self.folder = folder
        self.replaced = replaced or {}
        self._assigned = ""
        programs = folder / ".venv" / "bin"
        programs.mkdir(parents=True)
        (programs / "kubectl").symlink_to(str(find_binary("kubectl")))
        ours = programs / "vramwarden"
        ours.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m webhook.cli "$@"\n')
        ours.chmod(0o755)
        for name in CLONED:
            (folder / name).symlink_to(ROOT / name)
        self.env = {
            **{name: text for name, text in os.environ.items() if not name.startswith("XDG_")},
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "KUBECONFIG": str(kubeconfig),
            "HOME": str(folder),
            "COLUMNS": "100",
        }

    def run(self, command: str, *codes: int) -> str:
        """Run a command, require one of the exit codes (default: 0), and return the output."""
        for words, here in self.replaced.items():
            command = re.sub(rf"\b{words}\b(?!:)", here, command)
        script = self._assigned + command
        if re.match(r"[A-Z]+=\S+$", command):
            self._assigned = f"{script}\n"
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", script],
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=900,
        )
        said = done.stdout + done.stderr
        print(f"$ {command}\n{said}")
        assert done.returncode in (codes or {0}), f"{command}: exit code {done.returncode}\n{said}"
        return said
