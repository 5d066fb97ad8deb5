"""`vramwarden demo`: certificates, the server and two recorded reviews, over TLS on loopback."""

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
from webhook.tools.render.output import Progress

Json = dict[str, Any]

_START_TIMEOUT_S: Final = 30.0
_COLOURS: Final = {"+": "green", "-": "red", "@": "cyan"}
_PURPOSES: Final = {
    "vramwarden.io/vram: 8Gi": "the scheduler counts it on each node",
    "- name: NVIDIA_VISIBLE_DEVICES": "the GPU, chosen when the pod gets its node",
    "- name: VRAMWARDEN_GPU_MEMORY_FRACTION": "what a program may allocate of the GPU",
    "- key: vramwarden.io/gpu-memory-mib": "only nodes with GPUs that are large enough",
    "- name: vram-enforcer": "a sidecar, which keeps the pod within its 8Gi",
}
"""Purpose of the most important lines written into the pod, keyed by line."""
_PURPOSE_COLUMN: Final = 52


@click.command("demo")
@click.option("--diff", "whole", is_flag=True, help="Show all that is written into the pod.")
def demo_command(*, whole: bool) -> None:
    """Show certificates, the server and a review of each kind, on loopback.

    Starts the webhook as it runs in a cluster (gunicorn, TLS, the shipped policy) on free ports,
    sends it two reviews that a real API server recorded, and stops it.
    """
    with tempfile.TemporaryDirectory(prefix="vramwarden-demo-") as folder:
        certificates = Path(folder) / "certs"
        with _running_server(certificates) as port:
            context = ssl.create_default_context(cafile=str(certificates / "ca.crt"))
            client = HTTPSConnection("localhost", port, timeout=10, context=context)
            _show_allowed_pod(client, _load_review("annotated"), whole=whole)
            _show_denied_pod(client, _load_review("wrong-amount"))
            client.close()


def _load_review(name: str) -> Json:
    file = resources.files("webhook.cli") / "demo_reviews" / f"{name}.json"
    review: Json = json.loads(file.read_text())
    return review


@contextmanager
def _running_server(certificates: Path) -> Iterator[int]:
    """Run `vramwarden serve` on free ports until the block ends; yield the TLS port."""
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
    output = process.communicate()[1].decode(errors="replace")
    raise Failure(f"the server did not start:\n{output}")


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in sockets]
    for listener in sockets:
        listener.close()
    return ports


def _post(client: HTTPSConnection, review: Json) -> Json:
    body = json.dumps(review)
    client.request("POST", "/mutate", body, {"Content-Type": "application/json"})
    answer: Json = json.loads(client.getresponse().read())["response"]
    return answer


def _show_allowed_pod(client: HTTPSConnection, review: Json, *, whole: bool) -> None:
    pod = review["request"]["object"]
    answer = _post(client, review)
    lines = _diff(pod, apply_patch(pod, json.loads(b64decode(answer["patch"]))))
    added = [line for line in lines if line.startswith("+ ")]
    click.secho(f"\n1. A pod comes with one annotation, {_annotation_text(pod)}", bold=True)
    rule = answer["auditAnnotations"]["rule"]
    summary = f"   Allowed by rule {rule}, which writes {len(added)} lines into it"
    if whole:
        click.echo(f"{summary}:")
        for line in lines:
            click.secho(f"   {line}", fg=_COLOURS.get(line[:1]))
        return
    program = _program_name()
    click.echo(f"{summary} (all: {program} demo --diff), such as:")
    for text, purpose in _PURPOSES.items():
        line = next(line for line in added if line.endswith(text))
        click.echo(
            f"   {click.style(line, fg=_COLOURS['+'])}{'':{_PURPOSE_COLUMN - len(line)}}{purpose}"
        )
    click.echo(f"   For a pod of yours: {program} admit -f FILE -o diff")
    click.echo("   At first (rollout: Observe) only pods that ask for GPU memory are judged")


def _show_denied_pod(client: HTTPSConnection, review: Json) -> None:
    annotation = _annotation_text(review["request"]["object"])
    answer = _post(client, review)
    click.secho(f"\n2. Another comes with a wrong amount, {annotation}", bold=True)
    click.echo("   Denied; kubectl shows why, and what to write instead:")
    status = answer["status"]
    message = f'admission webhook "mutate.vramwarden.io" denied the request: {status["message"]}'
    click.secho(f"   Error from server ({status['reason']}): {message}", fg="red")


def _annotation_text(pod: Json) -> str:
    return f"{GPU_MEMORY_ANNOTATION}: {pod['metadata']['annotations'][GPU_MEMORY_ANNOTATION]}"


def _program_name() -> str:
    """Return the typed command if it is a relative path, otherwise its name."""
    program = Path(sys.argv[0])
    is_relative = program.name == "vramwarden" and not program.is_absolute()
    return str(program) if is_relative else "vramwarden"


def _diff(pod: Json, translated: Json) -> list[str]:
    files = ("as written", "as stored")
    return [*difflib.unified_diff(_yaml(pod), _yaml(translated), *files, lineterm="", n=2)]


def _yaml(pod: Json) -> list[str]:
    """Return a pod as YAML, without the fields that only the API server writes."""
    metadata = {key: pod["metadata"][key] for key in ("name", "labels") if key in pod["metadata"]}
    annotations = pod["metadata"].get("annotations", {})
    metadata["annotations"] = {k: v for k, v in annotations.items() if "last-applied" not in k}
    document = {"metadata": metadata, "spec": pod["spec"]}
    return yaml.safe_dump(document, sort_keys=False, width=100).splitlines()
