"""Plays a scenario on an isolated node (`node_scene.py`) with an API server of the tests."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from functools import cache
from pathlib import Path

from tests.sidecar import incidents
from tests.support import isolated_interpreter
from tests.support.api_server import ApiServer
from webhook.core.placement.assignment_codec import read_assignments

NAMESPACES = (*isolated_interpreter.NAMESPACE, "--mount")
V2 = "cgroup.events"
"""File that only cgroups of version 2 have."""
HIERARCHIES = ("/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified", "/sys/fs/cgroup")


@cache
def missing(file="cgroup.procs"):
    """Return the reason why no scenario can run here; empty if one can."""
    if os.geteuid() != 0:
        return "only root can make the cgroups of a node"
    if not _hierarchy(file):
        return "no cgroup can be made here"
    return incidents.missing()


@cache
def _hierarchy(file="cgroup.procs"):
    """Return a folder in which a cgroup with this file can be created; empty if there is none."""
    for hierarchy in HIERARCHIES:
        made = Path(hierarchy, f"vramwarden-sentry-{os.getpid()}-try")
        with contextlib.suppress(OSError):
            made.mkdir()
            usable = (made / file).exists()
            made.rmdir()
            if usable:
                return hierarchy
    return ""


@contextlib.contextmanager
def own_cgroup(file="cgroup.procs"):
    """Make a cgroup with this file for a node; its processes have ended when the block ends."""
    made = Path(_hierarchy(file), f"vramwarden-sentry-{os.getpid()}-{time.monotonic_ns()}")
    made.mkdir()
    try:
        yield made
    finally:
        deadline_s = time.monotonic() + 60
        while made.exists() and time.monotonic() < deadline_s:
            with contextlib.suppress(OSError):
                for folder, _, _ in os.walk(made, topdown=False):
                    Path(folder).rmdir()
            time.sleep(0.02)


class Api(ApiServer):
    """API server with the node, the list that the scene writes to a file, and the listed pods."""

    def __init__(self, folder):
        super().__init__(folder)
        self.lines = folder / "lines"
        self.lines.write_text("")
        self._left = threading.Event()
        metadata = {"uid": "node-uid", "labels": {"vramwarden.io/enforcement": "sidecar"}}
        capacity = {"capacity": {"vramwarden.io/vram": "1Gi"}}
        self.put("/api/v1/nodes/n1", {"metadata": metadata, "status": capacity})

    def __enter__(self):
        threading.Thread(target=self._follow_lines, daemon=True).start()
        return super().__enter__()

    def __exit__(self, *error):
        self._left.set()
        super().__exit__(*error)

    def _follow_lines(self):
        text = None
        while not self._left.wait(0.05):
            before, text = text, self.lines.read_text()
            if text == before:
                continue
            data = {"assignments": text}
            for uid, line in read_assignments(data)[0].items():
                namespace, _, name = line.pod.partition("/")
                path = f"/api/v1/namespaces/{namespace}/pods/{name}"
                if path not in self.objects:
                    self.put(path, {"metadata": {"uid": uid}})
            self.put("/api/v1/namespaces/sys/configmaps/gpu-assignments-n1", {"data": data})

    @property
    def written(self):
        """Method, path and body of each write, except writes of the node's `GPUNode`."""
        return [request for request in self.sent() if "/gpunodes" not in request[1]]

    @property
    def figures(self):
        """States of the node's `GPUNode`, in the order of writes."""
        asked = [(method, body) for method, path, body in self.sent() if "/gpunodes" in path]
        methods = [method for method, _ in asked]
        made = methods.index("POST") if "POST" in methods else len(asked)
        return [body for _, body in asked[made:]]


def play(folder, library, api, name, **sent):
    sent |= {
        "folder": str(folder), "library": str(library), "kubeconfig": str(api.kubeconfig),
        "lines": str(api.lines),
    }  # fmt: skip
    log = folder / "sentry.log"
    with own_cgroup(*[V2] if sent.get("limits") else []) as cgroups:
        try:
            return isolated_interpreter.play(
                "tests.sentry.scenarios", name,
                within=NAMESPACES, timeout_s=300, cgroups=str(cgroups), **sent,
            )  # fmt: skip
        except AssertionError:
            print(log.read_text() if log.exists() else "")
            raise
