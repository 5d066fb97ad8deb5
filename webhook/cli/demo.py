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
from contextlib import contextmanager
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import yaml

from webhook.core.pod.patch import apply_patch
from webhook.options import Failure

if TYPE_CHECKING:
    from collections.abc import Iterator

Json = dict[str, Any]

_START_TIMEOUT_S: Final = 30.0
_COLOURS: Final = {"+": "green", "-": "red", "@": "cyan"}


@click.command("demo")
def demo_command() -> None:
    """Show everything at once on loopback: certificates, server, a review of each kind.

    Starts the webhook as it runs in a cluster (gunicorn, TLS, the shipped policy) on free ports,
    sends it two reviews that a real API server recorded, and stops it.
    """
    with tempfile.TemporaryDirectory(prefix="vramwarden-demo-") as folder:
        certificates = Path(folder) / "certs"
        with _server(certificates) as port:
            context = ssl.create_default_context(cafile=str(certificates / "ca.crt"))
            client = HTTPSConnection("localhost", port, timeout=10, context=context)
            click.secho("\n1. A developer creates a pod with one annotation", bold=True)
            _show_translation(client, _recorded("annotated"))
            click.secho("\n2. Another one asks for half a GPU", bold=True)
            _show_denial(client, _recorded("half-a-gpu"))
            client.close()
    click.secho("\nThe server has drained and stopped.", bold=True)


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


def _show_translation(client: HTTPSConnection, review: Json) -> None:
    pod = review["request"]["object"]
    answer = _post(client, review)
    translated = apply_patch(pod, json.loads(b64decode(answer["patch"])))
    click.echo(f"   allowed: {answer['allowed']}; {answer['auditAnnotations']}; the pod changes:\n")
    lines = difflib.unified_diff(
        _yaml(pod), _yaml(translated), "as written", "as stored", lineterm="", n=2
    )
    for line in lines:
        click.secho(f"   {line}", fg=_COLOURS.get(line[:1]))


def _show_denial(client: HTTPSConnection, review: Json) -> None:
    answer = _post(client, review)
    click.echo(f"   allowed: {answer['allowed']}; what kubectl shows:\n")
    status = answer["status"]
    shown = f'admission webhook "mutate.vramwarden.io" denied the request: {status["message"]}'
    click.secho(f"   Error from server ({status['reason']}): {shown}", fg="red")


def _yaml(pod: Json) -> list[str]:
    """Show what a developer would read: without the API server's own records."""
    metadata = {key: pod["metadata"][key] for key in ("name", "labels") if key in pod["metadata"]}
    notes = pod["metadata"].get("annotations", {})
    metadata["annotations"] = {k: v for k, v in notes.items() if "last-applied" not in k}
    shown = {"metadata": metadata, "spec": pod["spec"]}
    return yaml.safe_dump(shown, sort_keys=False, width=100).splitlines()
