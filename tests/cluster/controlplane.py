"""A real Kubernetes API server on loopback: etcd, kube-apiserver and, if asked, the controllers."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlencode

import urllib3
from pki import Authority, new_key, private_pem, public_pem

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kubernetes import client as kubernetes_client

DEFAULT_ASSETS = "/usr/local/kubebuilder/bin"  # where envtest looks, too
MISSING = (
    "cluster tests need kube-apiserver and etcd: "
    "set KUBEBUILDER_ASSETS, e.g. by `setup-envtest use -p path`"
)
# No node lifecycle, no pod garbage collection: nodes in tests are plain objects without a kubelet.
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
# Asks the kernel to kill this process with its parent, then becomes the program. A `preexec_fn`
# would run between fork and exec with threads around, about which Python 3.12 and later warn.
DIE_WITH_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # 1 is PR_SET_PDEATHSIG
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


def find_binary(name: str) -> str | None:
    """Look for a program as envtest does, then on PATH."""
    assets = os.environ.get("KUBEBUILDER_ASSETS") or DEFAULT_ASSETS
    return shutil.which(name, path=assets) or shutil.which(name)


def available() -> bool:
    """Tell whether a control plane can be started here."""
    return all(map(find_binary, ("etcd", "kube-apiserver")))


def wait_until(what: str, check: Callable[[], Any], *, timeout: float = 30) -> Any:
    """Poll until the check returns something true, and return that."""
    deadline = time.monotonic() + timeout
    while not (result := check()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout} s")
        time.sleep(0.05)
    return result


class ApiError(Exception):
    """An answer of the API server that is not a success; `status` is its Status object."""

    def __init__(self, status: dict[str, Any]) -> None:
        super().__init__(status.get("message"))
        self.status = status
        self.code = status["code"]
        self.message = status.get("message", "")


class Api:
    """Speak plain JSON with the API server: nothing is lost in a model, warnings are kept."""

    def __init__(self, url: str, pool: urllib3.PoolManager, headers=None) -> None:
        self.url = url
        self.warnings: list[str] = []  # of the latest answer
        self._pool = pool
        self._headers = headers or {}

    def acting_as(self, user: str, *groups: str) -> Api:
        """Return an Api that impersonates a user, e.g. a node's kubelet."""
        headers = urllib3.HTTPHeaderDict({"Impersonate-User": user})
        for group in groups:
            headers.add("Impersonate-Group", group)
        return Api(self.url, self._pool, headers)

    def request(
        self, method: str, path: str, body=None, *, content_type="application/json", **query: str
    ) -> dict[str, Any]:
        """Send one request; return the answer's object or raise ApiError."""
        headers = urllib3.HTTPHeaderDict(self._headers)
        headers["Content-Type"] = content_type
        url = f"{self.url}{path}?{urlencode(query)}"
        data = None if body is None else json.dumps(body)
        answer = self._pool.request(method, url, body=data, headers=headers, retries=False)
        self.warnings = [_warning_text(line) for line in answer.headers.getlist("Warning")]
        try:
            content = answer.json()
        except ValueError:
            content = {"message": answer.data.decode(errors="replace")}
        if answer.status >= 400:
            raise ApiError({"code": answer.status, **content})
        return content

    def create(self, manifest: dict[str, Any], *, dry_run: bool = False) -> dict[str, Any]:
        """Create an object of any kind."""
        query = {"dryRun": "All"} if dry_run else {}
        return self.request("POST", _collection(manifest), manifest, **query)

    def apply(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """Create or change an object by server-side apply."""
        kind, query = "application/apply-patch+yaml", {"fieldManager": "tests", "force": "true"}
        return self.request("PATCH", _path(manifest), manifest, content_type=kind, **query)

    def get(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """Read the object that has the manifest's kind, namespace and name."""
        return self.request("GET", _path(manifest))

    def delete(self, manifest: dict[str, Any], **query: str) -> None:
        """Delete the object that has the manifest's kind, namespace and name, if it is there."""
        try:
            self.request("DELETE", _path(manifest), **query)
        except ApiError as error:
            if error.code != 404:
                raise

    def list(self, path: str, **query: str) -> list[dict[str, Any]]:
        """Return the items under a path such as `/api/v1/namespaces/x/pods`."""
        return self.request("GET", path, **query)["items"]


def _warning_text(line: str) -> str:
    text = line.split(" ", 2)[2]  # 299 - "text"
    return text[1:-1].replace('\\"', '"').replace("\\\\", "\\")


def _collection(manifest) -> str:
    version, kind = manifest["apiVersion"], manifest["kind"].lower()
    namespace = manifest["metadata"].get("namespace")
    plural = kind[:-1] + "ies" if kind.endswith("y") else kind + ("es" if kind[-1] == "s" else "s")
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    return f"{root}/namespaces/{namespace}/{plural}" if namespace else f"{root}/{plural}"


def _path(manifest) -> str:
    return f"{_collection(manifest)}/{manifest['metadata']['name']}"


class ControlPlane:
    """Start etcd and kube-apiserver on entry; stop them, and forget all they stored, on exit."""

    def __init__(self, *, apiserver_args: Sequence[str] = ()) -> None:
        self._apiserver_args = apiserver_args
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._cleanup = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as on_failure:
            self._cleanup = on_failure
            folder = tempfile.TemporaryDirectory(prefix="vramwarden-cluster-")
            self.state = Path(on_failure.enter_context(folder))
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
        """Return the path of the administrator's kubeconfig."""
        return self.state / "kubeconfig"

    @property
    def ca_pem(self) -> bytes:
        """Return the certificate of the authority that signed the API server's own."""
        return self._authority.pem

    @cached_property
    def client(self) -> kubernetes_client.ApiClient:
        """Return the official client, connected as administrator."""
        from kubernetes import client  # noqa: PLC0415 - takes a second, and most tests need only `api`

        configuration = client.Configuration()
        configuration.host = self.url
        configuration.ssl_ca_cert = str(self.state / "ca.crt")
        configuration.cert_file, configuration.key_file = map(str, self._admin)
        configuration.proxy = None  # it takes a proxy from the environment even for loopback
        api_client = client.ApiClient(configuration)
        self._cleanup.callback(api_client.close)
        self._cleanup.callback(api_client.rest_client.pool_manager.clear)
        return api_client

    @property
    def core(self) -> kubernetes_client.CoreV1Api:
        """Return the official client's core API."""
        from kubernetes import client  # noqa: PLC0415

        return client.CoreV1Api(self.client)

    def kubectl(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run kubectl as administrator; the result's `returncode` is the caller's to check."""
        program = find_binary("kubectl")
        if program is None:
            raise FileNotFoundError("kubectl")
        command = [program, f"--kubeconfig={self.kubeconfig}", *arguments]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)

    def logs(self, name: str) -> str:
        """Return what `etcd`, `kube-apiserver` or `kube-controller-manager` wrote so far."""
        return (self.state / f"{name}.log").read_text(errors="replace")

    def ensure_service_account(self, namespace: str) -> None:
        """Create the service account `default`, without which no pod is admitted."""
        metadata = {"name": "default", "namespace": namespace}
        self.api.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})

    def start_controllers(self) -> None:
        """Start kube-controller-manager, once; return when its controllers run."""
        name = "kube-controller-manager"
        if name in self._processes:
            return
        self._start(
            name,
            f"--kubeconfig={self.kubeconfig}",
            "--bind-address=127.0.0.1",
            "--secure-port=0",
            "--leader-elect=false",
            f"--controllers={','.join(CONTROLLERS)}",
            f"--service-account-private-key-file={self.state / 'sa.key'}",
            f"--root-ca-file={self.state / 'ca.crt'}",
        )
        # The API server makes this namespace itself, and only the controller adds the account.
        account = {"name": "default", "namespace": "kube-public"}
        manifest = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account}
        self._wait_for(name, lambda: self.api.get(manifest))

    def _write_keys(self) -> None:
        self._authority = Authority("test-cluster-ca")
        (self.state / "ca.crt").write_bytes(self.ca_pem)
        self._serving = self._authority.issue_server(self.state, "kube-apiserver")
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
        port = free_port()
        self.url = f"https://127.0.0.1:{port}"
        self._connect()
        self._start(
            "kube-apiserver",
            f"--etcd-servers={self._etcd_url}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",  # the Service's endpoints may not be loopback
            f"--secure-port={port}",
            f"--tls-cert-file={self._serving[0]}",
            f"--tls-private-key-file={self._serving[1]}",
            f"--cert-dir={self.state}",
            f"--client-ca-file={self.state / 'ca.crt'}",
            "--authorization-mode=Node,RBAC",  # as kubeadm has it
            "--allow-privileged=true",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self.state / 'sa.pub'}",
            f"--service-account-signing-key-file={self.state / 'sa.key'}",
            *self._apiserver_args,
        )
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}}
        self._wait_for("kube-apiserver", lambda: self.api.request("GET", "/readyz"))
        self._wait_for("kube-apiserver", lambda: self.api.get(namespace))

    def _connect(self) -> None:
        ca, (certificate, key) = str(self.state / "ca.crt"), map(str, self._admin)
        pool = urllib3.PoolManager(
            maxsize=16,  # clients at once
            ca_certs=ca,
            cert_file=certificate,
            key_file=key,
        )
        self._cleanup.callback(pool.clear)
        self.api = Api(self.url, pool)
        cluster = {"server": self.url, "certificate-authority": ca}
        user = {"client-certificate": certificate, "client-key": key}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "admin", "user": user}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}],
            "current-context": "test",
        }
        self.kubeconfig.write_text(json.dumps(content))  # JSON is YAML

    def _start(self, name: str, *arguments: str) -> None:
        program = find_binary(name)
        if program is None:
            raise FileNotFoundError(name)
        launcher = [sys.executable, "-I", "-S", "-c", DIE_WITH_PARENT, str(os.getpid())]
        with (self.state / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [*launcher, program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._processes[name] = process
        self._cleanup.callback(_stop, process)

    def _wait_for(self, name: str, check: Callable[[], Any]) -> None:
        """Wait for one process; when it fails, say what it and etcd wrote last."""

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


def free_port() -> int:
    """Choose a free port, not one of those that Linux gives to outgoing connections."""
    for port in secrets.SystemRandom().sample(range(20000, 32000), 100):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise OSError("no free port on loopback")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a process and its group: politely, then by force."""
    for number, patience in ((signal.SIGTERM, 5), (signal.SIGKILL, None)):
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, number)  # it leads a session of its own
            process.wait(patience)
            return
