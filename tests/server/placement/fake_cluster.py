"""As much of an API server as the certificates need: one Secret, webhook configurations, watches.

`tests/cluster` has the real one; this one can go away, come back and deny.
"""

from __future__ import annotations

import copy
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Json = dict[str, Any]

SECRETS = "/api/v1/namespaces/gpu/secrets"
GROUP = "/apis/admissionregistration.k8s.io/v1"
MUTATING = f"{GROUP}/mutatingwebhookconfigurations"
VALIDATING = f"{GROUP}/validatingwebhookconfigurations"


class FakeCluster:
    """Objects by path, and who may do what: `denied` holds (method, path of a collection)."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.objects: dict[str, Json] = {}
        self.denied: set[tuple[str, str]] = set()
        self.asked: list[tuple[str, str]] = []
        self._versions = 0
        self._changed = threading.Condition()

    def put(self, path: str, found: Json) -> Json:
        """Store an object under a fresh version."""
        with self._changed:
            self._versions += 1
            metadata = found.get("metadata", {}) | {"resourceVersion": str(self._versions)}
            self.objects[path] = copy.deepcopy(found) | {"metadata": metadata}
            self._changed.notify_all()
            return self.objects[path]

    def put_configurations(self, ca_bundle: str = "") -> None:
        """Store our webhook configurations, with one webhook each."""
        for path, webhook in ((MUTATING, "mutate"), (VALIDATING, "validate")):
            entry = {"name": f"{webhook}.vramwarden.io", "clientConfig": {"caBundle": ca_bundle}}
            self.put(f"{path}/ours", {"metadata": {"name": "ours"}, "webhooks": [entry]})

    def kubeconfig(self, folder: Path) -> Path:
        """Write a kubeconfig that leads here."""
        content = {
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "c",
        }
        path = folder / "kubeconfig"
        path.write_text(json.dumps(content))
        return path

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Answer for the length of a block."""
        with ThreadingHTTPServer(("127.0.0.1", self.port), _Handler) as server:
            server.daemon_threads = True
            server.cluster = self
            server.gone = False
            thread = threading.Thread(target=server.serve_forever, args=(0.02,))
            thread.start()
            try:
                yield
            finally:
                server.gone = True
                server.shutdown()
                thread.join()

    def answer(self, method: str, path: str, body: Json) -> tuple[int, Json]:
        """Do what is asked; return status and object."""
        collection = path if method == "POST" else path.rpartition("/")[0]
        self.asked.append((method, collection))
        if (method, collection) in self.denied:
            return 403, {"message": f"{method} {collection} is forbidden"}
        if method == "POST":
            path = f"{path}/{body['metadata']['name']}"
            if path in self.objects:
                return 409, {"message": "already exists"}
            return 201, self.put(path, body)
        if path not in self.objects:
            return 404, {"message": "not found"}
        found = self.objects[path]
        if method == "PATCH":
            if body["metadata"]["resourceVersion"] != found["metadata"]["resourceVersion"]:
                return 409, {"message": "the object has been modified"}
            return 200, self.put(path, _patched(found, body))
        return 200, found

    def changes(self, *, within_s: float) -> bool:
        """Wait until something is stored, and return whether it was."""
        with self._changed:
            return self._changed.wait(within_s)


def _patched(found: Json, patch: Json) -> Json:
    """Merge as strategic merge patches do: webhooks by name, the rest by key."""
    changed = copy.deepcopy(found)
    changed["data"] = found.get("data", {}) | patch.get("data", {})
    for entry in patch.get("webhooks", ()):
        (webhook,) = (one for one in changed["webhooks"] if one["name"] == entry["name"])
        webhook["clientConfig"] |= entry["clientConfig"]
    return changed


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else {}
        parts = urlsplit(self.path)
        if "watch" in parse_qs(parts.query):
            self._watch()
            return
        status, found = self.server.cluster.answer(self.command, parts.path, body)
        content = json.dumps(found).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        # So that none is open when this server goes away.
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_PATCH(self) -> None:
        self._answer()

    def _watch(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.close_connection = True
        while not self.server.gone:
            if self.server.cluster.changes(within_s=0.05):
                try:
                    self.wfile.write(b"3\r\n{}\n\r\n")
                except OSError:
                    return

    def log_message(self, *_: object) -> None:
        """Write nothing."""
