"""Registries on loopback: one serves an OCI layout, the other stores pushed images."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread


@contextmanager
def serving(layout: Path) -> Iterator[str]:
    """Serve a layout under any name, and yield the registry's address."""

    class Registry(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            _, _, place, asked = ("/" + self.path).rsplit("/", 3)
            index = json.loads((layout / "index.json").read_bytes())["manifests"]
            tags = {
                item["annotations"]["org.opencontainers.image.ref.name"]: item for item in index
            }
            digest = tags[asked]["digest"] if asked in tags else asked
            path = layout / "blobs" / digest.replace(":", "/")
            is_there = place in {"manifests", "blobs"} and path.is_file()
            content = path.read_bytes() if is_there else b""
            kinds = {item["digest"]: item["mediaType"] for item in index}
            # Clients request `/v2/` only to check that this is a registry.
            self.send_response(200 if is_there or self.path == "/v2/" else 404)
            self.send_header("Content-Type", kinds.get(digest, "application/octet-stream"))
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Docker-Content-Digest", digest)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        do_HEAD = do_GET  # noqa: N815 - as the base class wants it

        def log_message(self, *_: object) -> None:
            pass

    with _listening(Registry) as address:
        yield address


@contextmanager
def storing() -> Iterator[tuple[str, dict[str, bytes]]]:
    """Accept pushes; yield the registry's address and the contents keyed by path.

    A manifest's path is `NAME/manifests/TAG`. The path of other content is its digest.
    """
    contents: dict[str, bytes] = {}

    class Registry(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(404 if self.path.split("/")[-1] not in contents else 200)

        def do_GET(self) -> None:
            self._answer(200 if self.path == "/v2/" else 404)

        def do_POST(self) -> None:
            self._answer(202, Location=f"/upload/{len(contents)}")

        def do_PATCH(self) -> None:
            contents[self.path] = self._content()
            self._answer(202, Location=self.path)

        def do_PUT(self) -> None:
            path, _, query = self.path.partition("?")
            content = contents.pop(path, b"") + self._content()
            digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
            if path.startswith("/v2/"):
                contents[path.removeprefix("/v2/")] = content
            else:
                assert query == f"digest={digest.replace(':', '%3A')}"
                contents[digest] = content
            self._answer(201, **{"Docker-Content-Digest": digest})

        def _content(self) -> bytes:
            if "Content-Length" in self.headers:
                return self.rfile.read(int(self.headers["Content-Length"]))
            parts = []
            while size := int(self.rfile.readline(), 16):  # chunked
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)

        def _answer(self, status: int, **headers: str) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": "0", **headers}.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with _listening(Registry) as address:
        yield address, contents


@contextmanager
def _listening(registry: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), registry) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
