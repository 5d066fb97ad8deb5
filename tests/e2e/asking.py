"""Asks the cluster by our command, as a person does."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def ask(kubeconfig: Path, *arguments: str, code: int = 0) -> str:
    """Run the command; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "webhook.cli", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "KUBECONFIG": str(kubeconfig), "COLUMNS": "100"},
    )
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done.stdout
