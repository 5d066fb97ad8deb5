"""Processes in a cgroup with a memory limit, as in a container."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.cluster_programs import wait_until

CGROUPS: Final = Path("/sys/fs/cgroup")


class MemoryLimit:
    """A cgroup, version 1 or 2."""

    def __init__(self, path: Path, *, unified: bool) -> None:
        self.path = path
        self._unified = unified

    def add(self, pid: int) -> None:
        """Move a process into the cgroup. Its later children start in the cgroup."""
        (self.path / "cgroup.procs").write_text(str(pid))

    def kills(self) -> int:
        """Return the number of processes that the kernel killed to free memory."""
        name = "memory.events" if self._unified else "memory.oom_control"
        return self._figures(name).get("oom_kill", 0)

    def resident_bytes(self) -> int:
        """Return the memory that cannot be reclaimed."""
        return self._figures("memory.stat")["anon" if self._unified else "total_rss"]

    def _figures(self, name: str) -> dict[str, int]:
        lines = (self.path / name).read_text().splitlines()
        return {word: int(figure) for word, figure in map(str.split, lines)}


@contextlib.contextmanager
def memory_limit(limit_bytes: int) -> Iterator[MemoryLimit]:
    """Create a cgroup with this limit and without swap; remove it when its processes have ended."""
    unified = (CGROUPS / "cgroup.controllers").exists()
    path = (CGROUPS if unified else CGROUPS / "memory") / f"vramwarden-test-{os.getpid()}"
    try:
        if unified:
            (CGROUPS / "cgroup.subtree_control").write_text("+memory")
        path.mkdir()
        limit = "memory.max" if unified else "memory.limit_in_bytes"
        (path / limit).write_text(str(limit_bytes))
        for swap in ("memory.swap.max", "memory.swappiness"):
            if (path / swap).exists():
                (path / swap).write_text("0")
    except OSError as error:
        with contextlib.suppress(OSError):
            path.rmdir()
        pytest.skip(f"no cgroup that limits memory can be made here: {error}")
    try:
        yield MemoryLimit(path, unified=unified)
    finally:
        wait_until(f"{path} empty", lambda: not (path / "cgroup.procs").read_text())
        path.rmdir()
