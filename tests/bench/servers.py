"""Servers to compare, all on the first core: both sides, an empty handler, and peers."""

from __future__ import annotations

import base64
import json
import os
import signal
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from tests.bench import settings
from tests.bench.load import Target, ask
from tests.support.cluster_programs import free_port, start, stop
from tests.support.paths import REVIEWS

RECORDED = REVIEWS / "mutate-pod-annotated.json"
PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Server:
    """A running webhook, and the recorded review in the form of its product."""

    label: str
    pid: int
    port: int
    ca: Path
    review: bytes
    mutate_path: str = "/mutate"

    def target(self):
        """Request for the client."""
        return Target(self.port, self.ca, self.mutate_path, self.review)

    def patch(self):
        """Post the review once; return the patch of the response, or None without one."""
        status, body = ask(self.target())
        if status != 200:
            raise RuntimeError(f"{self.label} answered {status}: {body[:300]!r}")
        response = json.loads(body)["response"]
        if not response["allowed"]:
            raise RuntimeError(f"{self.label} denied the recorded pod: {response.get('status')}")
        encoded = response.get("patch")
        return json.loads(base64.b64decode(encoded)) if encoded else None


@contextmanager
def on_core(number):
    """Bind this thread and its new children to one of two cores, if the machine has two."""
    before = os.sched_getaffinity(0)
    if len(settings.CORES) > 1:
        os.sched_setaffinity(0, {settings.CORES[number]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def started(log, program, *arguments, folder, **environment):
    """Run a program on the first core in a folder; yield its process, and kill it at the end."""
    variables = (f"{name}={value}" for name, value in environment.items())
    through = ["env", f"--chdir={folder}", *variables]
    with on_core(0):
        process = start(log, str(program), *map(str, arguments), through=through)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGQUIT)  # without draining
        stop(process)


@contextmanager
def replica(side, folder, *options, **environment):
    """Run a replica of a commit; immediately yield its process and ports."""
    port, operations_port = free_port(), free_port()
    options = [*options, f"--port={port}", f"--operations-port={operations_port}"]
    if "--api-server" in (side.root / "webhook/cli/serve.py").read_text():
        options.append("--api-server=127.0.0.1/32")  # other addresses get only part of its time
    with started(
        folder / f"{side.label}.log", side.python,
        *("-P", "-m", "webhook.cli", "serve", f"--cert-dir={folder / 'certs'}"),
        *options,
        folder=side.root, **environment,
    ) as process:  # fmt: skip
        yield process, port, operations_port


@contextmanager
def webhook(side, folder, *options):
    """Run a replica of a commit with options of `serve`; yield it when it is ready."""
    with replica(side, folder, *options) as (process, port, operations_port):
        wait_until_ready(side.label, process, operations_port)
        yield Server(side.label, process.pid, port, folder / "certs/ca.crt", RECORDED.read_bytes())


@contextmanager
def empty(folder):
    """Run an empty handler on vramwarden's server."""
    port, operations_port = free_port(), free_port()
    script = Path(__file__).with_name("empty.py")
    with started(
        folder / "empty.log", sys.executable,
        *("-P", script, folder / "certs", port, operations_port),
        folder=folder,
    ) as process:  # fmt: skip
        wait_until_ready("empty", process, operations_port)
        yield Server("empty", process.pid, port, folder / "certs/ca.crt", RECORDED.read_bytes())


def wait_until_ready(label, process, port):
    """Poll /readyz of the plain port, at a low rate, until it returns 200."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and process.poll() is None:
        connection = HTTPConnection("127.0.0.1", port, timeout=2)
        try:
            connection.request("GET", "/readyz")
            if connection.getresponse().status == 200:
                return
        except (OSError, HTTPException):
            pass
        finally:
            connection.close()
        time.sleep(0.005)
    raise RuntimeError(f"{label} did not become ready")


@contextmanager
def temporary_folder():
    with tempfile.TemporaryDirectory(prefix="vramwarden-bench-") as name:
        yield Path(name)
