"""`make dev`: a temporary cluster with vramwarden, and a shell."""

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
from tests.dev.nodes import gpu_nodes, wait_for_figures, wait_for_vram
from tests.e2e import images
from tests.e2e import node as e2e_node
from tests.support import charts, nvml_stub, schedulers
from tests.support.cluster_programs import stop
from tests.support.control_planes import ControlPlane, find_binary, free_port
from tests.support.page_commands import commands
from tests.support.paths import ROOT

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
    kubectl run train --image={image} --annotations=vramwarden.io/gpu-memory=8Gi{command}
    vramwarden explain train; vramwarden top{more}
    kubectl run wrong --image={image} --annotations=vramwarden.io/gpu-memory=8GB   # is denied
{where}
Ctrl-D ends the shell, and with it all of this.
"""
PLAYED = {"image": "example", "command": "", "more": ""}
HOLD = """
    kubectl exec train -- sh -c 'echo 0 9000000000 > /scene/pids/$$; sleep 9'   # is stopped
    kubectl logs train -c vram-enforcer"""
RUNS = {"image": images.BUSYBOX, "command": " -- sleep 3600", "more": HOLD}


def main() -> int:
    """Start a cluster that can run here; return the exit code of COMMAND or the shell."""
    _on_ends(_leave)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="vramwarden-dev-"))
        cluster = choose(Path(folder), os.environ.get("CLUSTER", ""))
        kubeconfig, hello = stack.enter_context(cluster(Path(folder)))
        return work(kubeconfig, hello)


def choose(folder: Path, wanted: str):
    """Return the chosen cluster, or the first that can run here; print which and why."""
    clusters = {
        "node": (no_node, on_a_node, "a node, whose kubelet runs pods"),
        "parts": (no_parts, from_parts, "a control plane; nodes are played, and no pod runs"),
        "kind": (no_kind, in_kind, "kind"),
    }
    if wanted not in ("", *clusters):
        sys.exit(f"make dev: CLUSTER={wanted} is none of {', '.join(clusters)}")
    why = "as CLUSTER says" if wanted else ""
    for name, (why_not, cluster, what) in clusters.items():
        if wanted in ("", name):
            if not (reason := why_not(folder)):
                print(f"make dev: {what}{why and f'; {why}'}", file=sys.stderr, flush=True)
                return cluster
            why = "; ".join(filter(None, (why, f"{name} needs {reason}")))
    sys.exit(
        f"make dev: {why}. `setup-envtest use -p path` prints a folder for KUBEBUILDER_ASSETS, "
        "with which, Helm and a C compiler there is a control plane; with kind and Docker it "
        "needs Helm alone"
    )


def _on_ends(handler) -> None:
    for number in ENDS:
        signal.signal(number, handler)


def _leave(number: int, _: object) -> None:
    _on_ends(signal.SIG_IGN)  # repeated Ctrl-C must not prevent the removal of the cluster
    sys.exit(128 + number)


def no_node(folder: Path) -> str:
    """Return the missing parts for a node with a kubelet; build its images if there are none."""
    missing = [name for name in ("helm", "kubectl") if not find_binary(name)]
    if reason := "; ".join(filter(None, (*missing, e2e_node.why_not()))):
        return reason
    try:
        with contextlib.redirect_stdout(sys.stderr):
            images.product_archives(folder)
    except RuntimeError as error:
        return f"images, but {str(error).splitlines()[-1]}"
    return ""


def no_parts(_: Path) -> str:
    """Return the missing parts for a cluster of processes, or "" if there are none."""
    missing = [f"{name} ({source})" for name, source in PROGRAMS.items() if not find_binary(name)]
    if nvml_stub.compiler() is None:
        missing.append("a C compiler")
    if not own_address():
        missing.append("an address of this machine that is not loopback")
    return ", ".join(missing)


def no_kind(_: Path) -> str:
    """Return the missing parts for a kind cluster, or "" if there are none."""
    return "" if shutil.which("kind") else "kind"


@contextlib.contextmanager
def on_a_node(folder):
    """Run the node of `make e2e`: real pods, which use VRAM by writing a file."""
    built = Path(os.environ.get("E2E_IMAGES") or folder)
    with e2e_node.NodeCluster() as node:
        node.start_node()
        for name in images.NAMES:
            node.import_image(built / f"{name}.tar")
        helm = charts.Helm(folder, node.kubeconfig)
        values = images.product_values() | e2e_node.NODE_VALUES
        values |= {"rollout": "Enforce", "webhook": {"replicas": 1}}
        helm.run(*charts.Release(helm).installing(values), "--wait", "--timeout=5m")
        wait_for_vram(node.api, 1)
        wait_for_figures(node.api, 1)
        what = f"Kubernetes {node.api.version} with images of this checkout, on one node."
        where = (
            f"Policies: kubectl edit configmap vramwarden-policies -n {charts.NAMESPACE}\n"
            f"Logs: kubectl logs; those of the node's own programs: {node.state}/*.log"
        )
        yield node.kubeconfig, HELLO.format(what=what, where=where, **RUNS)


@contextlib.contextmanager
def from_parts(folder):
    """Run the control plane, and vramwarden's programs as processes; nodes have no kubelet."""
    webhook = {"replicas": 1, "port": free_port(), "operationsPort": free_port()}
    values = {"rollout": "Enforce", "webhook": webhook}
    with contextlib.ExitStack() as stack:
        arguments = ("--enable-aggregator-routing=true",)  # connects to pods behind a Service
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
        yield control_plane.kubeconfig, HELLO.format(what=what, where=where, **PLAYED)


@contextlib.contextmanager
def in_kind(folder):
    """Run the commands of deploy/laptop.md in a new kind cluster."""
    kubeconfig = folder / "kubeconfig"
    variables = {"KUBECONFIG": str(kubeconfig), "KIND_CLUSTER_NAME": "vramwarden-dev"}

    def run(command):
        done = subprocess.run(
            ["/bin/sh", "-c", command], check=False, cwd=ROOT, env=os.environ | variables
        )
        if done.returncode:
            sys.exit(f"make dev: this failed: {command}")

    with contextlib.ExitStack() as stack:
        for command in commands(ROOT / "deploy" / "laptop.md", "helm upgrade"):
            run(command)
            if command.startswith("kind create"):
                stack.callback(run, "kind delete cluster")
        what = "A cluster of kind, whose nodes say that they have 16Gi; no GPU is chosen."
        where = "Policies: deploy/laptop.yaml, by the `helm upgrade` of deploy/laptop.md."
        yield kubeconfig, HELLO.format(what=what, where=where, **PLAYED)


def work(kubeconfig, hello):
    """Run COMMAND or a shell with kubectl and vramwarden on PATH; return its exit code."""
    ours, kubectl = Path(sys.executable).parent, Path(str(find_binary("kubectl"))).parent
    path = f"{ours}:{kubectl}:{os.environ['PATH']}"
    shell, command = os.environ.get("SHELL", "/bin/sh"), os.environ.get("COMMAND")
    if not command:
        print(hello, flush=True)
    early = []  # signals received before the shell's process is assigned
    _on_ends(lambda number, _: early.append(number))
    with subprocess.Popen(
        [shell, *(("-c", command) if command else ())],
        env=os.environ | {"KUBECONFIG": str(kubeconfig), "PATH": path},
        start_new_session=bool(command),  # an interactive shell keeps the terminal
    ) as process:
        try:
            _on_ends(_leave)
            if early:
                _leave(early[0], None)
            return process.wait()
        finally:
            # An interactive shell sends SIGHUP to its jobs.
            stop(process) if command else process.send_signal(signal.SIGHUP)


if __name__ == "__main__":
    sys.exit(main())
