"""`make dev` with a node: pods run on it, and are stopped above their cap."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import pytest

from tests.dev.test_run import left, run_dev

SESSION = """\
exec 2>&1
run() { kubectl run $1 --image=localhost/busybox:1 --annotations=vramwarden.io/gpu-memory=$2 \
    -- sleep 3600; }
run train 8Gi
kubectl wait pod train --for=condition=Ready --timeout=60s
vramwarden explain train | head -1
vramwarden top nodes | head -1
kubectl exec train -c train -- sh -c 'echo 0 9000000000 > /scene/pids/$$; sleep 60'
kubectl logs train -c vram-enforcer | grep -o '"stopping a process", "why": "over the VRAM cap'
run wrong 8GB || exit 7
"""
SAID = r"""pod/train created
pod/train condition met
Pod default/train runs on node1 since \d+s: GPU 0 \(.*\), cap 8Gi, .*
1 node, 2 GPUs, 160Gi usable: .*
command terminated with exit code 143
"stopping a process", "why": "over the VRAM cap
Error from server \(Forbidden\): .* 8GB is not a Kubernetes quantity; use 8G or 8Gi
"""


@pytest.fixture
def folder():
    """Return a folder with a short name, for socket paths."""
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


def test_a_pod_runs_and_is_stopped_above_its_cap_and_nothing_is_left(archives, folder):
    images = {"E2E_IMAGES": str(archives[0].parent)}
    process = run_dev(["-m", "tests.dev.run"], folder, COMMAND=SESSION, CLUSTER="node", **images)
    output, chosen = process.communicate(timeout=600)
    assert chosen == "make dev: a node, whose kubelet runs pods; as CLUSTER says\n"
    assert re.fullmatch(SAID, output), output
    assert (process.returncode, left(folder)) == (7, ([], []))
