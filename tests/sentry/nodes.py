"""Plays a scenario on a node of its own (`node_scene.py`), beside an API server of ours."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from functools import cache
from pathlib import Path

from tests.sidecar import incidents
from tests.support import scenes
from tests.support.agents import ApiServer

NAMESPACES = (*scenes.NAMESPACE, "--mount")
HIERARCHIES = ("/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified", "/sys/fs/cgroup")


@cache
def missing():
    """Say why no scenario can run here; empty where it can."""
    if os.geteuid() != 0:
        return "only root can make the cgroups of a node"
    if not _hierarchy():
        return "no cgroup can be made here"
    return incidents.missing()


@cache
def _hierarchy():
    """Return where a cgroup can be made, or nothing."""
    for hierarchy in HIERARCHIES:
        made = Path(hierarchy, f"vramwarden-sentry-{os.getpid()}-try")
        with contextlib.suppress(OSError):
            made.mkdir()
            usable = (made / "cgroup.procs").exists()
            made.rmdir()
            if usable:
                return hierarchy
    return ""


@contextlib.contextmanager
def own_cgroup():
    """Make a cgroup for a node; everything in it has ended when this does."""
    made = Path(_hierarchy(), f"vramwarden-sentry-{os.getpid()}-{time.monotonic_ns()}")
    made.mkdir()
    try:
        yield made
    finally:
        deadline_s = time.monotonic() + 20
        while made.exists() and time.monotonic() < deadline_s:
            with contextlib.suppress(OSError):
                for folder, _, _ in os.walk(made, topdown=False):
                    Path(folder).rmdir()
            time.sleep(0.02)


GPU_NODES = "/apis/vramwarden.io/v1alpha1/gpunodes"


class Api(ApiServer):
    """Serves the list from a file, and takes Events, conditions and the node's figures."""

    def __init__(self, folder):
        super().__init__(folder)
        self.lines = folder / "lines"
        self.lines.write_text("")
        self.written = []
        self.figures = []
        """Each state of the node's `GPUNode`, the last being what is stored."""
        self.answers = [self._serve]
        self.away = False
        self.over = threading.Event()

    def __exit__(self, *error):
        self.over.set()  # who watches still must not outlive it
        super().__exit__(*error)

    def _serve(self, handler):
        if self.away:
            handler.close_connection = True
            return
        if handler.path.startswith(GPU_NODES):
            self._serve_figures(handler)
        elif handler.path.startswith("/api/v1/nodes/"):
            labels = {"vramwarden.io/enforcement": "sidecar"}
            metadata = {"uid": "node-uid", "labels": labels}
            shared = {"capacity": {"vramwarden.io/vram": "1Gi"}}
            self._say(handler, 200, {"metadata": metadata, "status": shared})
        elif handler.command != "GET":
            method, path, _, body = self.asked[-1]
            self.written.append((method, path.partition("?")[0], body))
            self._say(handler, 201, body)
        elif "watch=true" in handler.path:
            self._watch(handler)
        else:
            self._say(handler, 200, self._list())

    def _serve_figures(self, handler):
        if handler.command == "POST" or (handler.command == "PATCH" and self.figures):
            self.figures.append(self.asked[-1][3])
        if self.figures:
            self._say(handler, 200, self.figures[-1])
        else:
            self._say(handler, 404, {"message": "not found"})

    def _list(self):
        data = {"assignments": self.lines.read_text()}
        version = str(self.lines.stat().st_mtime_ns)
        return {"metadata": {"resourceVersion": version}, "data": data}

    def _watch(self, handler):
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        before = None
        with contextlib.suppress(OSError):
            while not self.away and not self.over.wait(0.05):
                if (now := self._list()) != before:
                    before = now
                    line = json.dumps({"type": "MODIFIED", "object": now}).encode() + b"\n"
                    handler.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
        handler.close_connection = True

    def _say(self, handler, status, content):
        data = json.dumps(content).encode()
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)


def play(folder, library, api, name, **sent):
    """Return what the scenario returns."""
    sent |= {
        "folder": str(folder), "library": str(library), "kubeconfig": str(api.kubeconfig),
        "lines": str(api.lines),
    }  # fmt: skip
    log = folder / "sentry.log"
    with own_cgroup() as cgroups:
        try:
            return scenes.play(
                "tests.sentry.scenarios", name,
                within=NAMESPACES, timeout_s=300, cgroups=str(cgroups), **sent,
            )  # fmt: skip
        except AssertionError:
            print(log.read_text() if log.exists() else "")
            raise
