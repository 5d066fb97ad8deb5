"""A real control plane on loopback: etcd, kube-apiserver and optionally the controllers."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import pytest
import urllib3

from tests.support.api_client import Api, ApiError
from tests.support.cluster_programs import find_binary, free_port, start, stop, wait_until
from tests.support.paths import ROOT
from tests.support.pki import Authority, new_key, private_pem, public_pem
from tests.support.pods import a_pod

__all__ = [
    "MISSING",
    "Api",
    "ApiError",
    "ControlPlane",
    "available",
    "find_binary",
    "free_port",
    "needs",
    "needs_pod_level_resources",
    "wait_until",
]

LOOPBACK = "127.0.0.1"
MISSING = (
    "cluster tests need kube-apiserver and etcd: "
    "set KUBEBUILDER_ASSETS, e.g. by `setup-envtest use -p path`"
)
# Node lifecycle and pod garbage collection are off, since the tests' nodes have no kubelet.
CONTROLLERS = (
    "serviceaccount-controller",
    "serviceaccount-token-controller",
    "namespace-controller",
    "garbage-collector-controller",
    "resourcequota-controller",
    "deployment-controller",
    "replicaset-controller",
    "statefulset-controller",
    "daemonset-controller",
    "job-controller",
    "cronjob-controller",
)


def available() -> bool:
    return all(map(find_binary, ("etcd", "kube-apiserver")))


def needs(api: Api, what: str, *group: str) -> None:
    """Skip the test unless the API server serves the kind or the subresource of pods."""
    if not api.serves(what, *group):
        pytest.skip(f"needs an API server that serves {' of '.join((what, *group))}")


def needs_pod_level_resources(api: Api) -> None:
    """Skip the test if the API server drops pod-level resources."""
    pod = a_pod(resources={"limits": {"cpu": "1", "memory": "1Gi"}})
    pod["metadata"]["namespace"] = "default"
    if "resources" not in api.create(pod, dry_run=True)["spec"]:
        pytest.skip("needs an API server that stores pod-level resources")


class ControlPlane:
    """etcd and kube-apiserver. They start on entry; on exit, they and their data are removed."""

    address = LOOPBACK
    """Address on which the API server listens."""
    service_range = "10.0.0.0/24"
    controllers: Sequence[str] = CONTROLLERS
    endpoint_args: Sequence[str] = (
        "--advertise-address=127.0.0.1",
        "--endpoint-reconciler-type=none",  # endpoints of a Service may not be loopback addresses
    )

    def __init__(self, *, apiserver_args: Sequence[str] = ()) -> None:
        self._apiserver_args = apiserver_args
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._cleanup = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as on_failure:
            self._cleanup = on_failure
            folder = tempfile.TemporaryDirectory(prefix="vramwarden-cluster-")
            self.state = Path(on_failure.enter_context(folder))
            self._prepare()
            self._write_keys()
            self._start_etcd()
            self._start_apiserver()
            self.ensure_service_account("default")
            self._cleanup = on_failure.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._cleanup.close()

    @property
    def kubeconfig(self) -> Path:
        """Path of the administrator's kubeconfig."""
        return self.state / "kubeconfig"

    @property
    def ca_pem(self) -> bytes:
        """Certificate of the CA that signed the API server's certificate."""
        return self._authority.pem

    def kubectl(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run kubectl as administrator. The caller checks the `returncode` of the result."""
        program = find_binary("kubectl")
        if program is None:
            raise FileNotFoundError("kubectl")
        command = [program, f"--kubeconfig={self.kubeconfig}", *arguments]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)

    def shell(self, command: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a command of a page in the root of the repository."""
        kubectl = find_binary("kubectl")
        if kubectl is None:
            pytest.skip("needs kubectl")
        path = f"{Path(kubectl).parent}:{os.environ['PATH']}"
        env |= {"PATH": path, "KUBECONFIG": str(self.kubeconfig), "HOME": "/nonexistent"}
        bash = ["bash", "-ec", command]
        return subprocess.run(bash, env=env, cwd=ROOT, capture_output=True, text=True, check=False)

    def logs(self, name: str) -> str:
        """Return the output so far of `etcd`, `kube-apiserver` or `kube-controller-manager`."""
        return (self.state / f"{name}.log").read_text(errors="replace")

    def ensure_service_account(self, namespace: str) -> None:
        """Create the ServiceAccount `default`, which the admission of pods requires."""
        metadata = {"name": "default", "namespace": namespace}
        self.api.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})

    def start_controllers(self) -> None:
        """Start kube-controller-manager unless it runs; return when its controllers work."""
        name = "kube-controller-manager"
        if name in self._processes:
            return
        self._start(
            name,
            f"--kubeconfig={self.kubeconfig}",
            "--bind-address=127.0.0.1",
            "--secure-port=0",
            "--leader-elect=false",
            f"--controllers={','.join(self.controllers)}",
            f"--service-account-private-key-file={self.state / 'sa.key'}",
            f"--root-ca-file={self.state / 'ca.crt'}",
        )
        # The API server creates this namespace. Only the controller adds the account.
        account = {"name": "default", "namespace": "kube-public"}
        manifest = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account}
        self._wait_for(name, lambda: self.api.get(manifest))

    def _prepare(self) -> None:
        pass

    def _through(self) -> Sequence[str]:
        """Return the command that starts programs; empty to start them directly."""
        return ()

    def _port(self) -> int:
        return free_port()

    def _write_keys(self) -> None:
        self._authority = Authority("test-cluster-ca")
        (self.state / "ca.crt").write_bytes(self.ca_pem)
        self._serving = self._authority.issue_server(self.state, "kube-apiserver", self.address)
        self._admin = self._authority.issue_client(self.state, "admin", "system:masters")
        key = new_key()
        (self.state / "sa.key").write_bytes(private_pem(key))
        (self.state / "sa.pub").write_bytes(public_pem(key))

    def _start_etcd(self) -> None:
        self._etcd_url = f"http://127.0.0.1:{free_port()}"
        self._start(
            "etcd",
            f"--data-dir={self.state / 'etcd'}",
            "--unsafe-no-fsync",
            f"--listen-client-urls={self._etcd_url}",
            f"--advertise-client-urls={self._etcd_url}",
            "--listen-peer-urls=http://127.0.0.1:0",
        )

    def _start_apiserver(self) -> None:
        port = self._port()
        self.url = f"https://{self.address}:{port}"
        self._connect()
        self._start(
            "kube-apiserver",
            f"--etcd-servers={self._etcd_url}",
            f"--bind-address={self.address}",
            f"--secure-port={port}",
            f"--tls-cert-file={self._serving[0]}",
            f"--tls-private-key-file={self._serving[1]}",
            f"--cert-dir={self.state}",
            f"--client-ca-file={self.state / 'ca.crt'}",
            "--authorization-mode=Node,RBAC",  # as with kubeadm
            "--allow-privileged=true",
            f"--service-cluster-ip-range={self.service_range}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self.state / 'sa.pub'}",
            f"--service-account-signing-key-file={self.state / 'sa.key'}",
            *self.endpoint_args,
            *self._apiserver_args,
        )
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}}
        self._wait_for("kube-apiserver", lambda: self.api.request("GET", "/readyz"))
        self._wait_for("kube-apiserver", lambda: self.api.get(namespace))

    def _connect(self) -> None:
        ca, (certificate, key) = str(self.state / "ca.crt"), map(str, self._admin)
        pool = urllib3.PoolManager(
            maxsize=16,  # concurrent clients
            ca_certs=ca,
            cert_file=certificate,
            key_file=key,
        )
        self._cleanup.callback(pool.clear)
        self.api = Api(self.url, pool)
        content = self._kubeconfig(certificate, key)
        self.kubeconfig.write_text(json.dumps(content))  # JSON is YAML

    def kubeconfig_of(self, folder: Path, user: str, *groups: str, namespace: str = "") -> Path:
        """Write the kubeconfig of a user without permissions, for a namespace."""
        content = self._kubeconfig(*map(str, self._authority.issue_client(folder, user, *groups)))
        content["contexts"][0]["context"]["namespace"] = namespace
        (folder / user).write_text(json.dumps(content))
        return folder / user

    def _kubeconfig(self, certificate: str, key: str) -> dict[str, Any]:
        cluster = {"server": self.url, "certificate-authority": str(self.state / "ca.crt")}
        user = {"client-certificate": certificate, "client-key": key}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "user", "user": user}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "user"}}],
            "current-context": "test",
        }

    def _start(self, name: str, *arguments: str) -> None:
        log = self.state / f"{name}.log"
        process = start(log, name, *arguments, through=self._through())
        self._processes[name] = process
        self._cleanup.callback(stop, process)

    def _wait_for(self, name: str, check: Callable[[], Any]) -> None:
        """Wait for a process. On failure, report the last output of the process and of etcd."""

        def answers() -> bool:
            for process_name, process in self._processes.items():
                if process.poll() is not None:
                    raise RuntimeError(f"{process_name} ended with {process.returncode}")
            try:
                check()
            except (ApiError, urllib3.exceptions.HTTPError):
                return False
            return True

        try:
            wait_until(name, answers, timeout=60)
        except (RuntimeError, TimeoutError) as error:
            for process_name in self._processes:
                tail = self.logs(process_name)[-2000:]
                error.add_note(f"--- the end of {process_name}'s log\n{tail}")
            raise
