"""`make dev`: a cluster with vramwarden to try things on, and a shell; at its end all is gone."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.chart.served import behind_the_service, own_address, served
from tests.dev.nodes import gpu_nodes
from tests.support import charts, nvml_stub, schedulers
from tests.support.control_planes import ControlPlane, find_binary, free_port
from tests.support.documents import commands
from tests.support.paths import ROOT
from tests.support.programs import stop

ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PROGRAMS = {
    "etcd": "envtest",
    "kube-apiserver": "envtest",
    "kubectl": "envtest",
    "helm": "https://helm.sh/docs/intro/install",
}
LACKS = {
    "kube-scheduler": "pods are translated or denied, but get no node and no GPU",
    "kube-controller-manager": "Deployments and Jobs make no pods",
}
HELLO = """\
{what}
Try:
    kubectl run train --image=example --annotations=vramwarden.io/gpu-memory=8Gi
    vramwarden explain train; vramwarden top
    kubectl run wrong --image=example --annotations=vramwarden.io/gpu-memory=8GB   # is denied
{where}
Ctrl-D ends the shell, and with it all of this.
"""


def main() -> int:
    """Start what can be started here; return the exit code of COMMAND, or of the shell."""
    _on_ends(_leave)
    cluster = from_parts
    if reason := why_not():
        cluster = in_kind
        if not shutil.which("kind"):
            sys.exit(
                f"make dev needs {reason}; `setup-envtest use -p path` prints a folder for "
                "KUBEBUILDER_ASSETS. With kind and Docker it needs Helm alone."
            )
    with (
        tempfile.TemporaryDirectory(prefix="vramwarden-dev-") as folder,
        cluster(Path(folder)) as (kubeconfig, hello),
    ):
        return work(kubeconfig, hello)


def _on_ends(handler) -> None:
    for number in ENDS:
        signal.signal(number, handler)


def _leave(number: int, _: object) -> None:
    _on_ends(signal.SIG_IGN)  # what was started is taken down, however often one presses Ctrl-C
    sys.exit(128 + number)


def why_not() -> str:
    """Return what is missing for a cluster from the parts at hand; an empty text where nothing."""
    missing = [f"{name} ({source})" for name, source in PROGRAMS.items() if not find_binary(name)]
    if nvml_stub.compiler() is None:
        missing.append("a C compiler")
    if not own_address():
        missing.append("an address of this machine that is not loopback")
    return ", ".join(missing)


@contextlib.contextmanager
def from_parts(folder):
    """Run the control plane, and the product's programs as processes; nodes have no kubelet."""
    webhook = {"replicas": 1, "port": free_port(), "operationsPort": free_port()}
    values = {"rollout": "Enforce", "webhook": webhook}
    with contextlib.ExitStack() as stack:
        arguments = ("--enable-aggregator-routing=true",)  # dials a Service's pods itself
        control_plane = stack.enter_context(ControlPlane(apiserver_args=arguments))
        if find_binary("kube-controller-manager"):
            control_plane.start_controllers()
        version = control_plane.api.version
        helm = charts.Helm(folder, control_plane.kubeconfig, version)
        charts.Release(helm).install(values)
        server = stack.enter_context(served(control_plane, helm.render(values), folder))
        server.wait_for("readiness", server.ready, 120)
        stack.enter_context(behind_the_service(control_plane, server))
        stack.enter_context(gpu_nodes(control_plane, folder))
        if schedulers.available():
            stack.enter_context(schedulers.scheduler(control_plane, folder))
        lacking = "".join(
            f"\nNo {name} in KUBEBUILDER_ASSETS or on PATH: {consequence}. "
            f"https://dl.k8s.io/release/{version}/bin/linux/amd64/{name} is one."
            for name, consequence in LACKS.items()
            if not find_binary(name)
        )
        what = (
            f"Kubernetes {version} with vramwarden from this checkout. Nodes and GPUs are played: "
            f"a pod that has a node is said to run, and nothing runs.{lacking}"
        )
        where = (
            f"Policies: {server.policy}, read again within two seconds. Logs: {folder}/*log\n"
            f"What the driver of node n1 says: {folder}/n1.txt, by tests/support/nvml_stub.c."
        )
        yield control_plane.kubeconfig, HELLO.format(what=what, where=where)


@contextlib.contextmanager
def in_kind(folder):
    """Run the README's commands for a laptop, in a cluster of kind that is ours alone."""
    kubeconfig = folder / "kubeconfig"
    variables = {"KUBECONFIG": str(kubeconfig), "KIND_CLUSTER_NAME": "vramwarden-dev"}

    def run(command):
        done = subprocess.run(
            ["/bin/sh", "-c", command], check=False, cwd=ROOT, env=os.environ | variables
        )
        if done.returncode:
            sys.exit(f"make dev: this failed: {command}")

    with contextlib.ExitStack() as stack:
        for command in commands(ROOT / "README.md", "deploy/laptop.yaml"):
            if not command.startswith("kubectl"):
                run(command)
            if command.startswith("kind create"):
                stack.callback(run, "kind delete cluster")
        what = "A cluster of kind, whose nodes say that they have 16Gi; no GPU is chosen."
        where = "Policies: deploy/laptop.yaml, by the `helm upgrade` of README.md."
        yield kubeconfig, HELLO.format(what=what, where=where)


def work(kubeconfig, hello):
    """Run COMMAND, or a shell, with kubectl and our command on PATH; return its exit code."""
    ours, kubectl = Path(sys.executable).parent, Path(str(find_binary("kubectl"))).parent
    path = f"{ours}:{kubectl}:{os.environ['PATH']}"
    shell, command = os.environ.get("SHELL", "/bin/sh"), os.environ.get("COMMAND")
    if not command:
        print(hello, flush=True)
    early = []  # a signal between the start of the shell and the knowledge of it would leave it
    _on_ends(lambda number, _: early.append(number))
    with subprocess.Popen(
        [shell, *(("-c", command) if command else ())],
        env=os.environ | {"KUBECONFIG": str(kubeconfig), "PATH": path},
        start_new_session=bool(command),  # a shell for people keeps the terminal
    ) as process:
        try:
            _on_ends(_leave)
            if early:
                _leave(early[0], None)
            return process.wait()
        finally:
            # Such a shell hands a hang-up to its jobs.
            stop(process) if command else process.send_signal(signal.SIGHUP)


if __name__ == "__main__":
    sys.exit(main())
