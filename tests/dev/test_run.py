"""`make dev` shows what it promises and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.dev import run
from tests.e2e import node
from tests.support.cluster_programs import find_binary
from tests.support.paths import ROOT

SESSION = """\
exec 2>&1
kubectl run train --image=example --annotations=vramwarden.io/gpu-memory=8Gi
kubectl wait pod train --for=condition=Ready --timeout=60s
vramwarden explain train | head -1
vramwarden top nodes | head -1
kubectl run wrong --image=example --annotations=vramwarden.io/gpu-memory=8GB || exit 7
"""
SAID = r"""pod/train created
pod/train condition met
Pod default/train runs on n[12] since \d+s: GPU [01] \(NVIDIA A10, GPU-[abc]\), cap 8Gi, .*
2 nodes, 3 GPUs, 72Gi usable: .*
Error from server \(Forbidden\): admission webhook "mutate.vramwarden.io" denied the request: \
InvalidQuantity: .*: 8GB is not a Kubernetes quantity; use 8G or 8Gi
""".replace("\\\n", "")
# Replaces the cluster of processes by one that writes a file when it ends.
MARKED = """\
import contextlib, pathlib, sys
from tests.dev import run

@contextlib.contextmanager
def marked(folder):
    try:
        yield "here", "hello"
    finally:
        pathlib.Path(sys.argv[1]).write_text(str(folder))

run.no_node, run.no_parts, run.from_parts = lambda _: "root", lambda _: "", marked
sys.exit(run.main())
"""
ROOT_ALONE = "make dev: a control plane; nodes are played, and no pod runs; node needs root\n"


def run_dev(arguments, tmp_path, **environment):
    """Run `make dev` in a folder for all its files; return the process."""
    (tmp_path / "temporary").mkdir()
    env = {**os.environ, "SHELL": "/bin/sh", "TMPDIR": str(tmp_path / "temporary"), **environment}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT, env=env, text=True, stdin=pipe, stdout=pipe, stderr=pipe,
    )  # fmt: skip


def left(tmp_path):
    """Return the processes with the folder in their environment, and the folder's files."""
    folder, found = tmp_path / "temporary", []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process ended, or belongs to another user
            if os.fsencode(folder) in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_bytes())
    return found, list(folder.iterdir())


@pytest.mark.cluster
def test_a_pod_is_placed_explained_and_one_is_denied_and_nothing_is_left(
    can_start_control_planes, tmp_path
):
    missing = [run.no_parts(tmp_path), *(name for name in run.LACKS if not find_binary(name))]
    if any(missing):
        pytest.skip(f"`make dev` needs {'; '.join(filter(None, missing))}")
    process = run_dev(["-m", "tests.dev.run"], tmp_path, COMMAND=SESSION, CLUSTER="parts")
    output, _ = process.communicate(timeout=300)
    assert re.fullmatch(SAID, output), output
    assert (process.returncode, left(tmp_path)) == (7, ([], []))


@pytest.mark.parametrize("number", run.ENDS, ids=lambda number: number.name)
@pytest.mark.parametrize("command", ["echo began; sleep 600; :", ""], ids=["COMMAND", "a shell"])
def test_a_signal_ends_it_and_takes_all_down(number, command, tmp_path):
    mark = tmp_path / "down"
    with run_dev(["-c", MARKED, str(mark)], tmp_path, COMMAND=command) as process:
        assert process.stdout.readline() == ("began\n" if command else "hello\n")
        process.send_signal(number)
        assert process.wait(60) == 128 + number
        assert process.stderr.read() == ROOT_ALONE
    assert not Path(mark.read_text()).exists()
    assert left(tmp_path) == ([], [])


PARTS = r"etcd \(envtest\), kube-apiserver \(envtest\), kubectl \(envtest\), helm \(https:.*"
NOTHING = {"PATH": "", "KUBEBUILDER_ASSETS": "/none"}


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        pytest.param("", rf"node needs helm; .*; parts needs {PARTS}; kind needs kind", id="all"),
        pytest.param("node", r"as CLUSTER says; node needs helm; kubectl; .*", id="a node"),
        pytest.param("parts", f"as CLUSTER says; parts needs {PARTS}", id="parts"),
        pytest.param("kind", "as CLUSTER says; kind needs kind", id="kind"),
    ],
)
def test_what_is_missing_is_said_with_what_to_do(wanted, said, tmp_path):
    process = run_dev(["-m", "tests.dev.run"], tmp_path, **NOTHING, CLUSTER=wanted)
    output, error = process.communicate(timeout=60)
    assert re.fullmatch(rf"make dev: {said}\. `setup-envtest .* Helm alone\n", error), error
    assert (output, process.returncode) == ("", 1)


@pytest.mark.parametrize(("length", "is_too_long"), [(40, False), (41, True)])
def test_a_node_needs_a_folder_in_which_paths_of_sockets_are_short(
    length, is_too_long, monkeypatch
):
    monkeypatch.setattr(tempfile, "tempdir", "/" + "x" * (length - 1))
    assert ("a shorter TMPDIR" in node.why_not()) is is_too_long


def test_a_cluster_that_nobody_knows_is_said_with_those_there_are(tmp_path):
    process = run_dev(["-m", "tests.dev.run"], tmp_path, CLUSTER="minikube")
    answer = process.communicate(timeout=60)
    assert answer == ("", "make dev: CLUSTER=minikube is none of node, parts, kind\n")
    assert process.returncode == 1


def test_without_images_there_is_no_node_and_the_last_line_of_their_build_is_the_reason(
    monkeypatch, tmp_path
):
    monkeypatch.setattr(run, "find_binary", lambda name: f"/bin/{name}")
    monkeypatch.setattr(run.e2e_node, "why_not", lambda: "")
    failing = tmp_path / "engine"
    failing.write_text("#!/bin/sh\necho begins; echo no such base >&2; exit 1\n")
    failing.chmod(0o755)
    monkeypatch.setenv("ENGINE", str(failing))
    monkeypatch.delenv("E2E_IMAGES", raising=False)
    assert run.no_node(tmp_path) == "images, but no such base"


def test_kind_is_set_up_by_the_readmes_commands_and_deleted(tmp_path):
    fakes = tmp_path / "bin"
    fakes.mkdir()
    for name in ("kind", "make", "helm", "kubectl"):
        (fakes / name).write_text(f'#!/bin/sh\necho {name} "$1" "$2" $KIND_CLUSTER_NAME\n')
        (fakes / name).chmod(0o755)
    code = MARKED.replace('lambda _: ""', 'lambda _: "etcd"')
    only = {
        "PATH": str(fakes),
        "KUBEBUILDER_ASSETS": str(fakes),
    }  # this machine may have other programs
    process = run_dev(["-c", code], tmp_path, **only, COMMAND="kubectl get pods; exit 3")
    output, _ = process.communicate(timeout=60)
    assert output.splitlines() == [
        "make image ENGINE=docker vramwarden-dev",
        "kind create cluster vramwarden-dev",
        "kind load docker-image vramwarden-dev",
        "helm upgrade --install vramwarden-dev",
        "kubectl get pods",
        "kind delete cluster vramwarden-dev",
    ]
    assert (process.returncode, left(tmp_path)) == (3, ([], []))
