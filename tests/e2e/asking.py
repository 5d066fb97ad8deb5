"""Run the `vramwarden` command as users do."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.tools.situations.claims import disagreements

_CHANGING = ("has waited", "use", "peak")
_FIGURES_S = 150.0
"""Time until figures reflect a change of the node, in seconds; sentries read it every 60 s."""


def ask(kubeconfig: Path, *arguments: str, code: int | None = 0) -> str:
    """Run the command; return its output. `code` is the expected exit code; None means 0 or 1."""
    done = subprocess.run(
        [sys.executable, "-m", "webhook.cli", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "KUBECONFIG": str(kubeconfig), "COLUMNS": "100"},
    )
    expected = {0, 1} if code is None else {code}
    assert done.returncode in expected, (done.returncode, done.stdout, done.stderr)
    return done.stdout


def diagnose(kubeconfig: Path, subject: str, namespace: str) -> str:
    """Return the output of `explain`, `check`, `top` and `report`, which must agree.

    They may differ for about a minute, while figures are older than the data of nodes. Claims that
    change within seconds are not compared.
    """
    where = ("-n", namespace)
    commands = (("explain", subject, *where), ("check",), ("top", *where), ("report", *where))
    began = time.monotonic()
    while True:
        said = "\n".join(
            f"$ vramwarden {' '.join(command)}\n{ask(kubeconfig, *command, code=None)}exit code -\n"
            for command in commands
        )
        differ = {
            disagreement
            for disagreement in disagreements(said)
            if not disagreement.startswith(_CHANGING)
        }
        if not differ or time.monotonic() - began > _FIGURES_S:
            print(said, f"they agree after {time.monotonic() - began:.0f} s")
            assert not differ
            return said
        time.sleep(5)
