"""Manifests for the stories, and the small programs in their containers."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from tests.e2e.images import BUSYBOX

Json = dict[str, Any]

GIB, MIB = 2**30, 2**20
IMAGE = os.environ.get("E2E_BUSYBOX") or BUSYBOX

# In a pod's command $$ stands for $. The stub lists the shell with the bytes that it wrote, on the
# first GPU that it sees; by UUID if known, since the sentry sees all GPUs of the node.
HOLD = """
mine=$NVIDIA_VISIBLE_DEVICES
case $mine in GPU-*) mine=$${mine%%,*} ;; *) mine=0 ;; esac
hold() { echo "$mine $1" > /scene/pids/new.$$$$; mv /scene/pids/new.$$$$ /scene/pids/$$$$; }
wait_for() { until [ -e /scene/$1 ]; do sleep 1; done; rm /scene/$1; }
forever() { while true; do sleep 1; done; }
"""


def holding(script: str) -> list[str]:
    """Return a command with the functions `hold BYTES` and `wait_for FILE`."""
    return ["sh", "-c", HOLD + script]


def container(command: list[str], **more: Any) -> Json:
    return {
        "name": "main",
        "image": IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": command,
        **more,
    }


def template(memory: str | None, command: list[str], **spec: Any) -> Json:
    """Return a pod template with or without an amount of VRAM."""
    annotations = {"vramwarden.io/gpu-memory": memory} if memory else {}
    containers = spec.pop("containers", None) or [container(command)]
    usual = {"terminationGracePeriodSeconds": 5, "dnsPolicy": "Default"}  # no cluster DNS
    spec = {**usual, "containers": containers, **spec}
    return {"metadata": {"annotations": annotations}, "spec": spec}


def pod(name: str, memory: str | None, command: list[str], **spec: Any) -> Json:
    made = template(memory, command, **spec)
    made["metadata"]["name"] = name
    return {"apiVersion": "v1", "kind": "Pod", **made}


def deployment(name: str, memory: str, command: list[str], **spec: Any) -> Json:
    made = template(memory, command, **spec)
    made["metadata"]["labels"] = {"app": name}
    selector = {"matchLabels": {"app": name}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {"replicas": 1, "selector": selector, "template": made},
    }


def job(name: str, memory: str, command: list[str]) -> Json:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "backoffLimit": 0,
            "template": template(memory, command, restartPolicy="Never"),
        },
    }


def statuses(found: Json) -> dict[str, Json]:
    """Return the statuses of all containers of a pod, keyed by name."""
    status = found["status"]
    kinds = ("initContainerStatuses", "containerStatuses")
    return {item["name"]: item for kind in kinds for item in status.get(kind, ())}


def processes_of(uid: str, word: bytes) -> set[str]:
    """Return the PIDs on this machine of a pod's processes with a word in their command."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has ended
            if uid in (folder / "cgroup").read_text():
                found |= {folder.name} if word in (folder / "cmdline").read_bytes() else set()
    return found


def is_ready(found: Json) -> bool:
    conditions = found["status"].get("conditions", ())
    return any(
        condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions
    )
