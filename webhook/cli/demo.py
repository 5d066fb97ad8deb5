"""`vramwarden demo`: certificates, server and two recorded reviews on loopback, over real TLS."""

from __future__ import annotations

import difflib
import json
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from importlib import resources
from pathlib import Path
from typing import Any, Final

import click
import yaml

from webhook.core.pod.patch import apply_patch
from webhook.names import GPU_MEMORY_ANNOTATION
from webhook.options import Failure
from webhook.tools.render.progress import Progress

Json = dict[str, Any]

_START_TIMEOUT_S: Final = 30.0
_COLOURS: Final = {"+": "green", "-": "red", "@": "cyan"}
_WRITTEN: Final = {
    "vramwarden.io/vram: 8Gi": "the scheduler counts it on each node",
    "- name: NVIDIA_VISIBLE_DEVICES": "the GPU, chosen when the pod gets its node",
    "- name: VRAMWARDEN_GPU_MEMORY_FRACTION": "what a program may allocate of the GPU",
    "- key: vramwarden.io/gpu-memory-mib": "only nodes with GPUs that are large enough",
    "- name: vram-enforcer": "a sidecar, which keeps the pod within its 8Gi",
}
"""Of what is written into the pod, the lines that say most, and what they are for."""
_NOTE: Final = 52
"""The column of what they are for."""


@click.command("demo")
@click.option("--diff", "whole", is_flag=True, help="Show all that is written into the pod.")
def demo_command(*, whole: bool) -> None:
    """Show everything at once on loopback: certificates, server, a review of each kind.

    Starts the webhook as it runs in a cluster (gunicorn, TLS, the shipped policy) on free ports,
    sends it two reviews that a real API server recorded, and stops it.
    """
    with tempfile.TemporaryDirectory(prefix="vramwarden-demo-") as folder:
        certificates = Path(folder) / "certs"
        with _server(certificates) as port:
            context = ssl.create_default_context(cafile=str(certificates / "ca.crt"))
            client = HTTPSConnection("localhost", port, timeout=10, context=context)
            _show_translation(client, _recorded("annotated"), whole=whole)
            _show_denial(client, _recorded("wrong-amount"))
            client.close()


def _recorded(name: str) -> Json:
    file = resources.files("webhook.cli") / "demo_reviews" / f"{name}.json"
    review: Json = json.loads(file.read_text())
    return review


@contextmanager
def _server(certificates: Path) -> Iterator[int]:
    """Run `vramwarden serve` on free ports until the block ends; yields the TLS port."""
    port, operations_port = _free_ports(2)
    command = [sys.executable, "-m", "webhook.cli", "serve", f"--cert-dir={certificates}"]
    command += [f"--port={port}", f"--operations-port={operations_port}"]
    click.echo(f"$ vramwarden {' '.join(command[3:])}")
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:  # noqa: S603 - ourselves
        try:
            with Progress(lambda: "waiting until the server is ready"):
                _wait_until_ready(process, operations_port)
            click.echo(f"ready: https://localhost:{port}, certificate issued by {certificates}")
            yield port
        finally:
            process.terminate()
            process.communicate()


def _wait_until_ready(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            connection = HTTPConnection("127.0.0.1", port, timeout=1)
            connection.request("GET", "/readyz")
            if connection.getresponse().status == HTTPStatus.OK:
                return
        except (OSError, HTTPException):
            time.sleep(0.05)
        finally:
            connection.close()
    process.terminate()
    said = process.communicate()[1].decode(errors="replace")
    raise Failure(f"the server did not start:\n{said}")


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [found.getsockname()[1] for found in sockets]
    for found in sockets:
        found.close()
    return ports


def _post(client: HTTPSConnection, review: Json) -> Json:
    body = json.dumps(review)
    client.request("POST", "/mutate", body, {"Content-Type": "application/json"})
    answer: Json = json.loads(client.getresponse().read())["response"]
    return answer


def _show_translation(client: HTTPSConnection, review: Json, *, whole: bool) -> None:
    pod = review["request"]["object"]
    answer = _post(client, review)
    lines = _diff(pod, apply_patch(pod, json.loads(b64decode(answer["patch"]))))
    added = [line for line in lines if line.startswith("+ ")]
    click.secho(f"\n1. A pod comes with one annotation, {_asked(pod)}", bold=True)
    rule = answer["auditAnnotations"]["rule"]
    said = f"   Allowed by rule {rule}, which writes {len(added)} lines into it"
    if whole:
        click.echo(f"{said}:")
        for line in lines:
            click.secho(f"   {line}", fg=_COLOURS.get(line[:1]))
        return
    program = _as_typed()
    click.echo(f"{said} (all: {program} demo --diff), such as:")
    for text, what in _WRITTEN.items():
        line = next(line for line in added if line.endswith(text))
        click.echo(f"   {click.style(line, fg=_COLOURS['+'])}{'':{_NOTE - len(line)}}{what}")
    click.echo(f"   For a pod of yours: {program} admit -f FILE -o diff")
    click.echo("   At first (rollout: Observe) only pods that ask for GPU memory are judged")


def _show_denial(client: HTTPSConnection, review: Json) -> None:
    asked = _asked(review["request"]["object"])
    answer = _post(client, review)
    click.secho(f"\n2. Another comes with a wrong amount, {asked}", bold=True)
    click.echo("   Denied; kubectl shows why, and what to write instead:")
    status = answer["status"]
    shown = f'admission webhook "mutate.vramwarden.io" denied the request: {status["message"]}'
    click.secho(f"   Error from server ({status['reason']}): {shown}", fg="red")


def _asked(pod: Json) -> str:
    return f"{GPU_MEMORY_ANNOTATION}: {pod['metadata']['annotations'][GPU_MEMORY_ANNOTATION]}"


def _as_typed() -> str:
    """Return how this command was called, where a shell would not find it by its name alone."""
    called = Path(sys.argv[0])
    return str(called) if called.name == "vramwarden" and not called.is_absolute() else "vramwarden"


def _diff(pod: Json, translated: Json) -> list[str]:
    files = ("as written", "as stored")
    return [*difflib.unified_diff(_yaml(pod), _yaml(translated), *files, lineterm="", n=2)]


def _yaml(pod: Json) -> list[str]:
    """Show what a developer would read: without the API server's own records."""
    metadata = {key: pod["metadata"][key] for key in ("name", "labels") if key in pod["metadata"]}
    notes = pod["metadata"].get("annotations", {})
    metadata["annotations"] = {k: v for k, v in notes.items() if "last-applied" not in k}
    shown = {"metadata": metadata, "spec": pod["spec"]}
    return yaml.safe_dump(shown, sort_keys=False, width=100).splitlines()
