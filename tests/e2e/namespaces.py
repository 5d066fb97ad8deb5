"""Mount, process and network namespaces and cgroups for a node on this machine."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

from tests.support.cluster_programs import start, stop, wait_until

CGROUPS = Path("/sys/fs/cgroup")
INIT = Path(__file__).with_name("node_init.py")


@dataclass(frozen=True)
class Network:
    """256 addresses: a link from this machine to the node, Services and pods."""

    whole: ipaddress.IPv4Network

    @cached_property
    def machine(self) -> str:
        """Address of the link on this machine."""
        return str(self.whole[1])

    @cached_property
    def node(self) -> str:
        """Address of the link on the node."""
        return str(self.whole[2])

    @cached_property
    def services(self) -> ipaddress.IPv4Network:
        """Address range of Services; the first address is the Service `kubernetes`."""
        return list(self.whole.subnets(new_prefix=26))[1]

    @cached_property
    def pods(self) -> ipaddress.IPv4Network:
        """Address range of pods."""
        return list(self.whole.subnets(new_prefix=25))[1]


def free_network() -> Network:
    """Return a network to which this machine has no route."""
    listed = subprocess.run(
        ["ip", "-json", "-4", "route", "show", "table", "all"], capture_output=True, check=True
    )
    routes = [entry["dst"] for entry in json.loads(listed.stdout or "[]")]
    used = [ipaddress.IPv4Network(route) for route in routes if route != "default"]
    for candidate in ipaddress.IPv4Network("10.224.0.0/12").subnets(new_prefix=24):
        if not any(candidate.overlaps(network) for network in used):
            return Network(candidate)
    raise OSError("no free network of 256 addresses within 10.224.0.0/12")


class Namespaces:
    """Namespaces that are created on entry. On exit, they end with everything in them."""

    def __init__(self, folder: Path, network: Network) -> None:
        self._folder = folder
        self._network = network
        self._link = f"vwe2e{os.getpid()}"

    def __enter__(self) -> Self:
        self._process = start(
            self._folder / "namespaces.log",
            "unshare",
            *("--mount", "--pid", "--net", "--fork", "--kill-child", "--mount-proc"),
            *("--", sys.executable, "-I", str(INIT), str(self._folder / "namespaces.ready")),
        )
        try:
            wait_until("the node's namespaces", self._ready)
            self._connect()
        except BaseException:
            stop(self._process)
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        stop(self._process)
        # The kernel would delete the link only after the last connection has expired.
        with contextlib.suppress(RuntimeError):
            run("ip", "link", "delete", self._link)

    @property
    def command(self) -> tuple[str, ...]:
        """Command that starts a program in these namespaces."""
        return ("nsenter", f"--target={self._first}", "--mount", "--pid", "--net", "--")

    def run(self, *command: str) -> str:
        return run(*self.command, *command)

    def _ready(self) -> bool:
        if self._process.poll() is not None:
            raise RuntimeError((self._folder / "namespaces.log").read_text())
        return (self._folder / "namespaces.ready").exists()

    @cached_property
    def _first(self) -> int:
        """PID of the namespaces' first process, as seen from outside."""
        pid = self._process.pid
        (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(child)

    def _connect(self) -> None:
        link = self._link
        run("ip", "link", "add", link, "type", "veth", "peer", "eth0", "netns", str(self._first))
        run("ip", "address", "add", f"{self._network.machine}/30", "dev", link)
        run("ip", "link", "set", link, "up")
        self.run("ip", "address", "add", f"{self._network.node}/30", "dev", "eth0")
        self.run("ip", "link", "set", "eth0", "up")
        self.run("ip", "route", "add", "default", "via", self._network.machine)
        # The API server listens on the address of its Service, so no translation is needed.
        self.run("ip", "address", "add", f"{self._network.services[1]}/32", "dev", "lo")
        run("ip", "route", "add", str(self._network.whole), "via", self._network.node)


def run(*command: str) -> str:
    """Run a command and return its output; raise an error if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


@contextlib.contextmanager
def own_cgroup() -> Iterator[str]:
    """Create a cgroup for the node's pods, separate from those of other kubelets here."""
    name = f"vramwarden-e2e-{os.getpid()}"
    if (CGROUPS / "cgroup.controllers").exists():
        hierarchies = [CGROUPS]
        for controller in ("cpuset", "cpu", "io", "memory", "pids", "hugetlb"):
            with contextlib.suppress(OSError):
                (CGROUPS / "cgroup.subtree_control").write_text(f"+{controller}")
    else:
        hierarchies = [
            path for path in CGROUPS.iterdir() if path.is_dir() and not path.is_symlink()
        ]
    try:
        for hierarchy in hierarchies:
            for left in hierarchy.glob("vramwarden-e2e-*"):
                if not Path(
                    "/proc", left.name.rpartition("-")[2]
                ).exists():  # left by a killed test run
                    remove_cgroup(left)
            (hierarchy / name).mkdir()
        yield f"/{name}"
    finally:
        for hierarchy in hierarchies:
            wait_until(f"{hierarchy / name} empty", lambda h=hierarchy: remove_cgroup(h / name))


def remove_cgroup(path: Path) -> bool:
    """Remove a cgroup and its children; return False if it still has processes."""
    if path.exists():
        with contextlib.suppress(OSError):
            for folder, _, _ in os.walk(path, topdown=False):
                Path(folder).rmdir()
    return not path.exists()
