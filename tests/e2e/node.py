"""A complete single-node cluster on this machine: control plane, kubelet, containerd, runc."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

from tests.e2e.images import PAUSE, busybox_image, engine, pause_image
from tests.e2e.namespaces import Namespaces, free_network, own_cgroup
from tests.e2e.nvidia_driver import ON_HOST, Driver, HostDriver
from tests.e2e.nvidia_runtime import DRIVER_ANNOTATION
from tests.e2e.nvidia_toolkit import Toolkit
from tests.support import nvml_stub, other_programs
from tests.support.cluster_programs import find_binary, start, stop, wait_until
from tests.support.control_planes import ControlPlane
from tests.support.schedulers import SCHEDULER

NODE = "node1"
NODE_MANIFEST = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}
# Version for the chart, since no test can write the stub's version into /proc.
KERNEL = {"name": "VRAMWARDEN_KERNEL_DRIVER", "value": "/kernel/version"}
NODE_VALUES = {} if ON_HOST else {"agent": {"extraEnv": [KERNEL]}}
# Each program with its Debian package; programs without one belong to Kubernetes.
PROGRAMS = {
    "kube-apiserver": "",
    "kube-controller-manager": "",
    "kube-scheduler": "",
    "kubelet": "",
    "etcd": "etcd-server",
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "ip": "iproute2",
    "busybox": "busybox-static",
    "unshare": "util-linux",
    "nsenter": "util-linux",
}
DEBIAN_PLUGINS = Path("/usr/lib/cni")
NVIDIA_BY_DEFAULT = os.environ.get("E2E_RUNTIME") == "nvidia"
"""True if containerd starts NVIDIA's runtime even for pods without a RuntimeClass."""
SNAPSHOTTER = os.environ.get("E2E_SNAPSHOTTER") or "overlayfs"

LONGEST_SOCKET = 104
"""Maximum length of a Unix socket's path in containerd."""
A_SOCKET = "vramwarden-cluster-01234567/kubelet/device-plugins/kubelet.sock"
"""Longest socket path below the folder for temporary files."""


def why_not() -> str:
    """Return the reason why no node can be started here, or "" if one can."""
    missing = [
        f"{name} ({package})" if package else name
        for name, package in PROGRAMS.items()
        if not find_binary(name)
    ]
    reasons = [
        "root" * (os.geteuid() != 0),
        ", ".join(missing),
        f"CNI plugins in {plugins()} (containernetworking-plugins)" * (not plugins().is_dir()),
        "a C compiler" * (nvml_stub.compiler() is None and not ON_HOST),
        "buildah, podman or docker, or E2E_IMAGES" * (not images_possible()),
        "a shorter TMPDIR, for sockets in it"
        * (len(f"{tempfile.gettempdir()}/{A_SOCKET}") > LONGEST_SOCKET),
    ]
    return "; ".join(filter(None, reasons))


def plugins() -> Path:
    """Return the folder of the CNI plugins."""
    found = find_binary("host-local")
    return Path(found).parent if found else DEBIAN_PLUGINS


def images_possible() -> bool:
    """Return True if vramwarden's images exist or can be built."""
    return bool(os.environ.get("E2E_IMAGES") or engine())


class NodeCluster(ControlPlane):
    """A cluster that is created on entry. On exit, its mounts, processes and links are removed.

    Everything runs in separate namespaces. API server, pods and kubelet reach each other without
    kube-proxy. There is no cluster DNS and no image registry.
    """

    controllers: Sequence[str] = ("*",)

    def _prepare(self) -> None:
        self._network = free_network()
        self.address = str(self._network.services[1])
        self.service_range = str(self._network.services)
        self.endpoint_args = (
            f"--advertise-address={self.address}",
            "--endpoint-reconciler-type=none",
        )
        self._apiserver_args = (
            "--enable-aggregator-routing=true",  # connects to pods behind a Service
            "--enable-admission-plugins=NodeRestriction",  # as with kubeadm
            "--kubelet-preferred-address-types=InternalIP",
            f"--kubelet-client-certificate={self.state / 'admin.crt'}",
            f"--kubelet-client-key={self.state / 'admin.key'}",
        )
        self._cgroup = self._cleanup.enter_context(own_cgroup())
        namespaces = Namespaces(self.state, self._network)
        self._namespaces = self._cleanup.enter_context(namespaces)

    def _through(self) -> Sequence[str]:
        return self._namespaces.command

    def _port(self) -> int:
        return 443  # port of the Service `kubernetes`

    def start_node(self) -> None:
        """Start the programs that run pods. Return when the node is ready."""
        self.start_controllers()
        config = self.kubeconfig_of(self.state, SCHEDULER, "schedulers")
        scheduler = (f"--kubeconfig={config}", "--secure-port=0", "--leader-elect=false")
        self._start("kube-scheduler", *scheduler)
        self._start_containerd()
        self.start_kubelet()
        wait_until("the node ready", self.is_ready, timeout=120)

    def import_image(self, archive: Path, *options: str) -> None:
        """Import an image; `options` are passed to `ctr images import`."""
        where = f"--snapshotter={SNAPSHOTTER}"
        self._ctr("--namespace=k8s.io", "images", "import", where, *options, str(archive))

    def kill_container(self, container_id: str) -> None:
        """Kill all processes of a container at once, as in a crash."""
        name = container_id.removeprefix("containerd://")
        self._ctr("--namespace=k8s.io", "tasks", "kill", "--all", "--signal=SIGKILL", name)

    def created_s(self, container_id: str) -> float:
        """Return the Unix time at which containerd created a container.

        The Kubernetes API has only whole seconds.
        """
        name = container_id.removeprefix("containerd://")
        info = json.loads(self._ctr("--namespace=k8s.io", "containers", "info", name))
        return datetime.fromisoformat(info["CreatedAt"]).timestamp()

    def start_kubelet(self) -> None:
        path = self.state / "kubelet.json"
        path.write_text(json.dumps(self._kubelet_settings()))
        self._start(
            "kubelet",
            f"--config={path}",
            f"--kubeconfig={self._node_kubeconfig()}",
            f"--root-dir={self.state / 'kubelet'}",
            f"--cert-dir={self.state / 'kubelet-pki'}",
            f"--hostname-override={NODE}",
            f"--node-ip={self._network.node}",
            "--node-labels=nvidia.com/gpu.present=true",  # as GPU feature discovery would
        )

    def stop_kubelet(self) -> None:
        stop(self._processes.pop("kubelet"))

    @contextlib.contextmanager
    def without_api_server(self) -> Iterator[None]:
        """Stop the API server until the block ends. Pods keep running.

        The server is killed, since a graceful stop would serve watches for another minute.
        """
        process = self._processes.pop("kube-apiserver")
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        # `through` may have started the server as a child, which can hold its port briefly.
        wait_until("the API server's port free", self._is_port_free)
        try:
            yield
        finally:
            self._start_apiserver()

    def _is_port_free(self) -> bool:
        try:
            socket.create_connection((self.address, self._port()), timeout=1).close()
        except OSError:
            return True
        return False

    def run(self, *command: str) -> str:
        return self._namespaces.run(*command)

    @property
    def driver(self) -> Driver | HostDriver:
        return HostDriver(self.state, self.run) if ON_HOST else Driver(self.state)

    @contextlib.contextmanager
    def running(self, program: str, *arguments: str, **environment: object) -> Iterator[None]:
        """Run an additional program on the node until the block ends."""
        variables = [f"{name}={value}" for name, value in environment.items()]
        log = self.state / f"{Path(program).name}.log"
        process = start(log, "env", *variables, program, *arguments, through=self._through())
        try:
            yield
        finally:
            stop(process)

    def process_of(self, container_id: str) -> tuple[int, int]:
        """Return the PID of a container's first process on the node and in its pod."""
        name = container_id.removeprefix("containerd://")
        tasks = self._ctr("--namespace=k8s.io", "tasks", "ls").splitlines()
        (pid,) = (line.split()[1] for line in tasks if line.startswith(name))
        lines = self.run("cat", f"/proc/{pid}/status").splitlines()
        (within,) = (line.split()[-1] for line in lines if line.startswith("NSpid:"))
        return int(pid), int(within)

    def offer_whole_gpus(self, count: int, remembered: int = 0) -> None:
        """Advertise this number of whole GPUs, as a device plugin would.

        The kubelet keeps a removed plugin's GPUs as capacity for five minutes or until it restarts.
        """
        self.set_amount("nvidia.com/gpu", str(count), str(max(count, remembered)))

    def set_amount(self, resource: str, amount: str | None, capacity: str | None = None) -> None:
        """Set the amount of a resource in the node's status."""
        status = {"capacity": {resource: capacity or amount}, "allocatable": {resource: amount}}
        path = f"/api/v1/nodes/{NODE}/status"
        merge = "application/merge-patch+json"
        self.api.request("PATCH", path, {"status": status}, content_type=merge)

    def is_ready(self) -> bool:
        nodes = self.api.list("/api/v1/nodes", fieldSelector=f"metadata.name={NODE}")
        conditions = [
            condition for node in nodes for condition in node["status"].get("conditions", ())
        ]
        return any(
            condition["type"] == "Ready" and condition["status"] == "True"
            for condition in conditions
        )

    def _ctr(self, *arguments: str) -> str:
        return self._namespaces.run("ctr", f"--address={self._socket}", *arguments)

    @property
    def toolkit(self) -> Toolkit:
        """NVIDIA's container toolkit; see `other_programs.why_not` if it is missing."""
        return Toolkit(self.state, self.driver, self.state / "beneath", self._namespaces.run)

    @property
    def _socket(self) -> Path:
        return self.state / "containerd.sock"

    def _start_containerd(self) -> None:
        self.driver.install()
        self.state.chmod(0o711)  # containers of any user load the library from this folder
        self._write_runtimes()
        self._write_network()
        path = self.state / "containerd.json"
        path.with_suffix(".toml").write_text(self._containerd_settings())
        self._start("containerd", f"--config={path.with_suffix('.toml')}")
        try:
            wait_until("containerd", self._answers, timeout=60)
        except TimeoutError as error:
            error.add_note(self.logs("containerd")[-2000:])
            raise
        for archive in (pause_image(self.state), busybox_image(self.state)):
            self.import_image(archive)

    def _answers(self) -> bool:
        try:
            return bool(self._ctr("version"))
        except RuntimeError:
            return False

    def _write_runtimes(self) -> None:
        """Write fast shell scripts that containerd starts instead of runc."""
        copied = shutil.copy(Path(__file__).with_name("nvidia_runtime.py"), self.state)
        runc = find_binary("runc")
        for role in ("stand-in", "beneath"):
            played = f"{self.driver.prefix}{role}"
            python = f"{sys.executable} -I -S {copied} {self.state} {played}"
            path = self.state / role
            path.write_text(
                f'#!/bin/sh\ncase " $* " in *" create "*) exec {python} {runc} "$@";; esac\n'
                f'exec {runc} "$@"\n'
            )
            path.chmod(0o755)
        is_needed = NVIDIA_BY_DEFAULT or not ON_HOST
        if is_needed and not other_programs.why_not("NVIDIA_TOOLKIT"):
            self.toolkit.install("cdi" if NVIDIA_BY_DEFAULT else "management")

    def _write_network(self) -> None:
        folder = self.state / "cni"
        folder.mkdir()
        plugin = {
            "type": "ptp",
            "ipMasq": False,
            "ipam": {
                "type": "host-local",
                "dataDir": str(self.state / "cni-data"),
                "subnet": str(self._network.pods),
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }
        settings = {"cniVersion": "0.4.0", "name": "pods", "plugins": [plugin]}
        (folder / "10-pods.conflist").write_text(json.dumps(settings))

    def _containerd_settings(self) -> str:
        state, cri = self.state, 'plugins."io.containerd.grpc.v1.cri"'
        usual = self.toolkit.runtime if NVIDIA_BY_DEFAULT else state / "stand-in"
        programs = {"runc": usual, "nvidia": self.toolkit.runtime}
        runtimes = "".join(
            f"""\
[{cri}.containerd.runtimes.{name}]
runtime_type = "io.containerd.runc.v2"
pod_annotations = ["{DRIVER_ANNOTATION}"]
[{cri}.containerd.runtimes.{name}.options]
BinaryName = "{program}"
"""
            for name, program in programs.items()
        )
        return f"""\
version = 2
root = "{state}/containerd"
state = "/run/containerd-node"
[grpc]
address = "{self._socket}"
[{cri}]
sandbox_image = "{PAUSE}"
restrict_oom_score_adj = true  # without CAP_SYS_RESOURCE the score cannot be lowered
[{cri}.containerd]
snapshotter = "{SNAPSHOTTER}"
[{cri}.cni]
bin_dir = "{plugins()}"
conf_dir = "{state}/cni"
{runtimes}"""

    def _kubelet_settings(self) -> dict[str, object]:
        resolver = self.state / "resolv.conf"
        resolver.touch()
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "containerRuntimeEndpoint": f"unix://{self._socket}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": self._cgroup,
            "failCgroupV1": False,
            "failSwapOn": False,
            "enforceNodeAllocatable": [],
            "resolvConf": str(resolver),
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": False},
                "x509": {"clientCAFile": str(self.state / "ca.crt")},
            },
            "authorization": {"mode": "AlwaysAllow"},
            # Disk and memory of this machine do not matter here.
            "evictionHard": {
                "nodefs.available": "1Mi",
                "imagefs.available": "1Mi",
                "memory.available": "50Mi",
            },
            "imageGCHighThresholdPercent": 100,
            "syncFrequency": "5s",
        }

    def _node_kubeconfig(self) -> Path:
        path = self.state / "kubelet.kubeconfig"
        if not path.exists():
            user = self._authority.issue_client(self.state, f"system:node:{NODE}", "system:nodes")
            path.write_text(json.dumps(self._kubeconfig(*map(str, user))))
        return path
