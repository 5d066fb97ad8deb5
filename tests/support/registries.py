"""A registry on loopback that serves one OCI layout, to whoever reads it as registries are read."""

from __future__ import annotations

import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def serving(layout: Path) -> Iterator[str]:
    """Serve a layout under any name, and yield the registry's address."""

    class Registry(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            _, _, place, asked = ("/" + self.path).rsplit("/", 3)
            index = json.loads((layout / "index.json").read_bytes())["manifests"]
            tags = {one["annotations"]["org.opencontainers.image.ref.name"]: one for one in index}
            digest = tags[asked]["digest"] if asked in tags else asked
            path = layout / "blobs" / digest.replace(":", "/")
            is_there = place in {"manifests", "blobs"} and path.is_file()
            content = path.read_bytes() if is_there else b""
            kinds = {one["digest"]: one["mediaType"] for one in index}
            # The address `/v2/` asks only whether this is a registry.
            self.send_response(200 if is_there or self.path == "/v2/" else 404)
            self.send_header("Content-Type", kinds.get(digest, "application/octet-stream"))
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Docker-Content-Digest", digest)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        do_HEAD = do_GET  # noqa: N815 - as the base class wants it

        def log_message(self, *_: object) -> None:
            """Keep quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Registry) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
