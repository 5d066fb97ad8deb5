"""The real server with gunicorn as a process, and a TLS client."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any

from certs import read_folder
from tests.support.cluster_programs import free_port
from webhook.server.registration import derive_bind_path

Json = dict[str, Any]

JSON = {"Content-Type": "application/json"}
POLICY = """\
apiVersion: vramwarden.io/v1alpha1
kind: VRAMPolicy
metadata: {name: test}
spec:
  rules:
  - name: watched
    match: {namespaces: [watched]}
    action: Warn
  - name: default
    memory: {max: 40Gi}
"""


@dataclass
class Server:
    process: subprocess.Popen[bytes]
    port: int
    operations_port: int
    certificates: Path
    policy: Path
    log_file: Path

    def trust(self, ca_pem: bytes) -> None:
        """Make clients trust a CA, for a server whose certificates are in a Secret."""
        self.certificates.mkdir(exist_ok=True)
        (self.certificates / "ca.crt").write_bytes(ca_pem)

    def context(self) -> ssl.SSLContext:
        """Client context that trusts only the server's CA."""
        return ssl.create_default_context(cafile=str(self.certificates / "ca.crt"))

    @property
    def bind_path(self) -> str:
        """Path for bindings, which depends on the current certificate."""
        return derive_bind_path(read_folder(self.certificates).key_pem)

    def client(self, timeout: float = 60, source: str = "127.0.0.1") -> HTTPSConnection:
        """Return a keep-alive connection from a local address."""
        return HTTPSConnection(
            "localhost",
            self.port,
            timeout=timeout,
            context=self.context(),
            source_address=(source, 0),
        )

    def raw(self, timeout: float = 60, source: str = "127.0.0.1") -> ssl.SSLSocket:
        """Return a TLS connection from a local address."""
        plain = socket.create_connection(("127.0.0.1", self.port), timeout, (source, 0))
        return self.context().wrap_socket(plain, server_hostname="localhost")

    def post(
        self, review: Json | bytes, path: str = "/mutate", **headers: str
    ) -> tuple[int, bytes]:
        body = (
            review if isinstance(review, bytes) else json.dumps(review, ensure_ascii=False).encode()
        )
        client = self.client()
        try:
            client.request("POST", path, body, {"Content-Type": "application/json", **headers})
            answer = client.getresponse()
            return answer.status, answer.read()
        finally:
            client.close()

    def review(self, review: Json, path: str = "/mutate") -> Json:
        """Post a review; return the response in it."""
        status, body = self.post(review, path)
        assert status == 200, body
        return json.loads(body)["response"]

    def get(self, path: str) -> tuple[int, str]:
        """Send a GET request to the plain port; return status and body."""
        client = HTTPConnection("127.0.0.1", self.operations_port, timeout=60)
        try:
            client.request("GET", path)
            answer = client.getresponse()
            return answer.status, answer.read().decode()
        finally:
            client.close()

    def log(self) -> list[Json]:
        lines = self.log_file.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def messages(self) -> list[str]:
        return [line["msg"] for line in self.log()]

    def wait_for(self, what: str, check: Any, timeout_s: float = 60) -> None:
        deadline = time.monotonic() + timeout_s
        while not check():
            assert time.monotonic() < deadline, (
                f"{what} did not happen\n{self.log_file.read_text()}"
            )
            time.sleep(0.05)

    def ready(self, path: str = "/readyz") -> bool:
        """Return True if a probe succeeds, by default the readiness probe."""
        assert self.process.poll() is None, self.log_file.read_text()
        try:
            return self.get(path)[0] == 200
        except (OSError, HTTPException):
            return False

    def stop(self) -> int:
        """Send SIGTERM to the server and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)

    def quit(self) -> None:
        """Stop the server without draining, which would wait for idle connections."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGQUIT)
            self.process.wait(timeout=60)


@contextmanager
def running(
    folder: Path,
    *options: str,
    policy: str | None = POLICY,
    cert_dir: bool = True,
    ready: bool = True,
    program: str = "webhook.cli",
    **env: str,
) -> Iterator[Server]:
    """Run a server until the block ends; wait until it is `ready` unless that is impossible.

    A test may run another module instead of the command, such as a slow one.
    """
    policies = folder / "policies"
    policies.mkdir(exist_ok=True)
    if policy is not None:
        (policies / "policy.yaml").write_text(policy)
    port, operations_port = free_port(), free_port()
    certificates, log_file = folder / "certs", folder / "log"
    cert_dir &= not any(option.startswith("--cert-secret") for option in options)
    command = [
        *(sys.executable, "-m", program, "serve", f"--policy={policies}"),
        *((f"--cert-dir={certificates}",) if cert_dir else ()),
        *(f"--port={port}", f"--operations-port={operations_port}"),
        *options,
    ]
    with (
        log_file.open("wb") as log,
        subprocess.Popen(command, stderr=log, stdout=log, env={**os.environ, **env}) as process,
    ):
        server = Server(process, port, operations_port, certificates, policies, log_file)
        try:
            if ready:
                server.wait_for("readiness", server.ready)
            yield server
        finally:
            try:
                server.quit()
            except subprocess.TimeoutExpired:
                process.kill()
