"""An isolated node: pods with sidecars, tenants, bystanders, and the sentry.

Pods are as a runtime creates them: a sandbox process that only waits, and per container a cgroup
and a mount namespace. Containers share the sandbox's PID namespace, or have one each. The NVML stub
lists processes by their names, see `tenant.py`. If the driver has limits, a limiter runs, too, and
the driver counts what tenants allocate by the stub's libcuda.so.1.
"""

import contextlib
import ctypes
import json
import os
import signal
import sys
import time
import traceback
import urllib.request
from pathlib import Path

from tests.sidecar.incident_scene import LIBC, MIB, become, write

CAP_MIB = 8192
PATH = "/usr/bin:/bin"
NEWNS, NEWPID = 0x00020000, 0x20000000
CAP_KILL, CAP_SYS_ADMIN = 5, 21
BIND, REC_PRIVATE, DETACH = 0x1000, 0x4000 | 0x40000, 2
TENANT = Path(__file__).with_name("tenant.py")
GPU = "GPU-11111111-2222-3333-4444-555555555555"
OTHER_GPU = "GPU-99999999-2222-3333-4444-555555555555"
PAUSES = """
import signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
while True:
    signal.pause()
"""
CGROUPS, STATE = "/run/cgroups", Path("/run/vramwarden-limiter/state.json")
LIMITED = f"""driver 615.71.09
limits misc cgroups={CGROUPS} own=/sys/fs/cgroup in=/run/limits
live off
"""
VOLUME_IS_IN = ("enforcer", "debug")
VOLUME = "volumes/kubernetes.io~empty-dir/vram-enforcer-run"


def check(result):
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def mount(source, target, kind=None, flags=0):
    check(LIBC.mount(os.fsencode(source), os.fsencode(target), kind, flags, None))


class Driver:
    """The stub's file as one PID namespace sees it; it may enforce limits of cgroups."""

    def __init__(self, folder, library, *, limits=False, version="580.65.06"):
        self.folder = folder
        self.limits = limits
        self.version = version
        self.environment = {
            "NVML_STUB_FILE": str(folder / "stub.txt"), "LD_LIBRARY_PATH": library
        }  # fmt: skip
        folder.mkdir(parents=True)
        folder.chmod(0o755)
        self._listed = None
        self.lists({})

    def lists(self, listed):
        """List these processes, given as MiB by PID."""
        if listed == self._listed:
            return
        self._listed = listed
        lines = [f"process 0 compute {pid} {mib * MIB}\n" for pid, mib in listed.items()]
        used = sum(listed.values()) * MIB
        gpus = (
            f"gpu {GPU} total={used + 2**40} used={used} mig=0\n"
            f"gpu {OTHER_GPU} total={2**40} mig=0\n"
        )
        driver = LIMITED if self.limits else f"driver {self.version}\n"
        write(self.folder / "stub.txt", "".join([driver, gpus, *lines]))


class Pod:
    """A pod of the node."""

    def __init__(self, node, name, uid, quality="burstable", *, by="Sidecar"):
        self.node, self.name, self.uid, self.by = node, name, uid, by
        self.shares = by == "Sidecar" or node.shares
        self.cgroup = node.cgroups / "kubepods" / quality / f"pod{uid}"
        self.driver = node.has_driver(name)
        self.run = node.folder / "kubelet/pods" / uid / VOLUME
        self.run.mkdir(parents=True)
        self.notes = node.folder / f"{name}.notes"
        self.notes.mkdir()
        mount("tmpfs", self.run, b"tmpfs")
        self.run.chmod(0o777)
        self.began_s = self.ended_s = None
        self.held = {}
        self.noted = set()
        self.inner = {}
        self.ghosts = set()
        self.enforcer = 0
        self.pause = 0
        if self.shares or node.pauses:
            self.pause = self._start("pause", [sys.executable, "-I", "-S", "-c", PAUSES])

    def container(self, name):
        made = self.cgroup / (name.encode().hex() + "0" * 64)[:64]
        made.mkdir(parents=True, exist_ok=True)
        return made

    def enforced(self, user=0):
        """Start the sidecar of a pod by Sidecar."""
        if self.by == "Sidecar":
            self.sidecar(user)

    def sidecar(self, user=0):
        environment = self.driver.environment | {
            "VRAM_DRIVER_LIMIT": "Auto" if self.driver.limits else "",
            "VRAM_CAP_BYTES": str(CAP_MIB * MIB),
            "VRAM_TOLERANCE": "2%",
            "VRAM_GRACE": "1s",
            "VRAM_GPUS": f"{GPU},{OTHER_GPU}",
        }
        log = self.node.folder / f"{self.name}.log"
        log.touch()
        log.chmod(0o666)
        termination = self.node.folder / f"{self.name}.termination"
        termination.touch()
        termination.chmod(0o666)
        command = [sys.executable, "-I", "-m", "webhook.sidecar", "--run-folder",
                   "/run/vram-enforcer", "--termination-log", str(termination)]  # fmt: skip
        self.enforcer = self._start("enforcer", command, user, environment, log)

    def tenant(self, how, user=0, container="train", target=0):
        """Start a tenant, in the process namespace of `target` if that is set."""
        command = [sys.executable, "-I", "-S", str(TENANT), how, str(self.notes)]
        allocates = self.driver.environment if self.driver.limits else {}
        environment = allocates | {"ENFORCED_BY": self.by}
        return self._start(container, command, user, environment, target=target)

    def _start(self, container, command, user=0, environment=None, output=None, target=0):
        """Start a command in its container; return its PID on the node."""
        joined = (self.container(container) / "cgroup.procs").open("w")
        target = target or (self.pause if self.shares else 0)
        answer, tell = os.pipe()
        if not os.fork():
            self.node.quietly(lambda: self._runtime(container, command, user, environment or {},
                                                    output, joined, tell, target))  # fmt: skip
        os.close(tell)
        joined.close()
        with os.fdopen(answer) as lines:
            return int(lines.readline())

    def _runtime(self, container, command, user, environment, output, joined, tell, target):
        """Act as the runtime's process: start the container's first process and wait for it."""
        if target:
            with Path(f"/proc/{target}/ns/pid").open() as namespace:
                check(LIBC.setns(namespace.fileno(), NEWPID))
        else:
            check(LIBC.unshare(NEWPID))
        if child := os.fork():
            os.write(tell, f"{child}\n".encode())
            os.close(tell)
            os.waitpid(child, 0)
            os._exit(0)
        os.close(tell)
        joined.write("0")
        joined.flush()
        check(LIBC.unshare(NEWNS))
        mount("none", "/", None, REC_PRIVATE)
        mount("proc", "/proc", b"proc")
        if container != "pause":
            log = self.node.folder / f"kubelet/pods/{self.uid}/containers/{container}/log"
            log.parent.mkdir(parents=True, exist_ok=True)
            log.touch()
            mount(log, log, None, BIND)
        if container in VOLUME_IS_IN:
            mount(self.run, "/run/vram-enforcer", None, BIND)
        mount(self.container(container), "/sys/fs/cgroup", None, BIND)
        check(LIBC.umount2(os.fsencode(self.run), DETACH))
        with Path(output or os.devnull).open("ab") as out:
            os.dup2(out.fileno(), 1)
        if user:
            become(user)
        os.execve(command[0], command, {"PATH": PATH, **environment})  # noqa: S606 - our own

    def follow(self, now_s):
        """Record processes named for the stub, and when the excess began and ended."""
        alive = set()
        for path in self.cgroup.rglob("cgroup.procs"):
            alive |= set(map(int, path.read_text().split()))
        tenants = alive - {self.pause, self.enforcer}
        for pid in tenants:
            with contextlib.suppress(OSError):
                named = Path(f"/proc/{pid}/comm").read_text().strip()
                kind = "ghost" if named.startswith("ghost") else "gpu"
                if named.startswith(kind) and named.removeprefix(kind).isdecimal():
                    self.inner[pid] = self.inner.get(pid) or int(status(pid)["NSpid"].split()[1])
                    self.held[pid] = int(named.removeprefix(kind))
                    self.ghosts |= {pid} if kind == "ghost" else set()
        self.tenants = len([pid for pid in tenants if is_alive(pid)])
        kept = self.ghosts if self.tenants else set()
        self.listed = {pid: mib for pid, mib in self.held.items() if pid in alive | kept}
        self.driver.lists({self.inner[pid]: mib for pid, mib in self.listed.items()})
        for pid in self.held.keys() - self.noted:
            (self.notes / str(self.inner[pid])).touch()
        self.noted |= self.held.keys()
        if sum(self.listed.values()) > CAP_MIB * 1.02:
            self.began_s = self.began_s or now_s
            self.ended_s = None
        elif self.began_s and self.ended_s is None:
            self.ended_s = now_s

    def is_over(self, since_s):
        """Return True if the excess ended this many seconds ago, and did not begin again."""
        return bool(self.ended_s) and time.monotonic() - self.ended_s > since_s

    def report(self):
        return {
            "excess": self.began_s is not None,
            "lasted_s": self.ended_s and round(self.ended_s - self.began_s, 2),
            "pause": is_alive(self.pause),
            "enforcer": is_alive(self.enforcer),
            "tenants": self.tenants,
        }

    def line(self):
        return {
            "uid": self.uid, "pod": f"team/{self.name}", "gpus": [GPU, OTHER_GPU],
            "memory": CAP_MIB * MIB, "since": 1, "cap": CAP_MIB * MIB,
            "tolerance": CAP_MIB * MIB // 50, "late_s": 6.5,
            "by": self.by, "grace_s": 1.0, "act": True,
        } | ({"limit": "Auto"} if self.driver.limits else {})  # fmt: skip


class Node:
    def __init__(self, sent):
        self.folder = Path(sent["folder"])
        self.library = sent["library"]
        self.cgroups = Path(sent["cgroups"])
        mount("tmpfs", "/run", b"tmpfs")
        for folder in (Path("/run/vram-enforcer"), Path(CGROUPS), STATE.parent):
            folder.mkdir()
        mount(self.cgroups, CGROUPS, None, BIND)
        self.limits = sent.get("limits", False)
        self.version = sent.get("driver", "580.65.06")
        self.shares = sent.get("shares", True)
        """True if the containers of pods by Sentry share a PID namespace."""
        self.pauses = sent.get("pauses", True)
        """True if the sandboxes of pods without a shared namespace have a process."""
        self.driver = self.has_driver("node")
        self.sentry = None
        self.scanned = {}
        """Number of scans before a process was recorded, keyed by the path of its note."""

    def has_driver(self, name):
        return Driver(self.folder / name, self.library, limits=self.limits, version=self.version)

    def quietly(self, work):
        try:
            work()
        except BaseException:  # noqa: BLE001 - a forked copy must end here
            traceback.print_exc()
        os._exit(1)

    def process(self, cgroup, command, environment=None, output=None, private=False, may=None):
        """Start a process of the node in a cgroup, as root with only the capability `may`."""
        made = self.cgroups / cgroup
        made.mkdir(parents=True, exist_ok=True)
        if pid := os.fork():
            return pid

        def execute():
            (made / "cgroup.procs").write_text("0")
            if private:
                check(LIBC.unshare(0x02000000))  # CLONE_NEWCGROUP
            with Path(output or os.devnull).open("ab") as out:
                os.dup2(out.fileno(), 1)
            if may is not None:
                become(0, may)
            os.execve(command[0], command, {"PATH": PATH, **(environment or {})})  # noqa: S606 - ours

        return self.quietly(execute)

    def follow(self, pods, more=()):
        """Make the driver list the pods' processes and others of the node."""
        listed = dict(more)
        for pod in pods:
            pod.follow(time.monotonic())
            listed |= pod.listed
        self.driver.lists(listed)

    def scans(self):
        """Return the number of scans that the sentry has made, and their duration."""
        name = "vramwarden_sentry_scan_duration_seconds_"
        found = [line.removeprefix(name) for line in self.ask("/metrics").splitlines()]
        return {
            item: float(line.rpartition(" ")[2])
            for line in found
            for item in ("count", "sum")
            if line.startswith(f"{item}{{")
        }

    def note_whom_the_sentry_has_seen(self, pods):
        """Create the `.seen` files of listed processes once two scans have begun and ended."""
        new = [pod.notes / str(pid) for pod in pods for pid in map(pod.inner.get, pod.noted)]
        new = [path for path in new if not path.with_suffix(".seen").exists()]
        if new and any(event["msg"] == "started" for event in self.events()):
            count = self.scans().get("count", 0.0)
            for path in new:
                if count > self.scanned.setdefault(path, count) + 1:
                    path.with_suffix(".seen").touch()

    def start_sentry(self, uid, kubeconfig, *options, private=False, constants="pass"):
        log = self.folder / "sentry.log"
        modules = "scanner, judge"
        imports = (
            f"from webhook.adapters import host_environment; from webhook.sentry import {modules}"
        )
        options = ("--host=127.0.0.1", "--metrics-port=0", *options)
        command = ["sentry", f"--kubeconfig={kubeconfig}", *options]
        self.sentry = self._ours(uid, command, f"{imports}; {constants}", log, private, CAP_KILL)

    def start_limiter(self, uid, kubeconfig):
        command = ["limiter", f"--kubeconfig={kubeconfig}", f"--cgroups={CGROUPS}"]
        return self._ours(uid, command, "pass", self.folder / "limiter.log", False, CAP_SYS_ADMIN)

    def _ours(self, uid, command, constants, *how):
        """Start one of vramwarden's programs in a separate pod."""
        code = f"from webhook.cli.main import main; {constants}; main()"
        command = [sys.executable, "-c", code, *command, "--node=n1", "--namespace=sys"]
        environment = self.driver.environment | {
            "POD_UID": uid, "POD_NAME": "sentry-x", "PYTHONPATH": str(Path(__file__).parents[2])
        }  # fmt: skip
        cgroup = f"kubepods/besteffort/pod{uid}/{'5' * 64}"
        return self.process(cgroup, command, environment, *how)

    def limited(self):
        """Return the UIDs of pods that the driver limits, by the limiter's report."""
        text = STATE.read_text() if STATE.exists() else '{"limited": []}'
        return {item["uid"] for item in json.loads(text)["limited"]}

    def events(self):
        log = self.folder / "sentry.log"
        text = log.read_text() if log.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line[-1] == "\n"]

    def ask(self, path):
        port = next(event["port"] for event in self.events() if event["msg"] == "started")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
                return answer.read().decode()
        except urllib.error.HTTPError as error:
            return f"{error.code} {error.read().decode()}"


def status(pid):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def is_alive(pid):
    try:
        return status(pid)["State"][0] not in "ZX"
    except OSError:
        return False


def play(scenario, sent):
    node = Node(sent)
    result = scenario(node, sent)
    os.kill(node.sentry, signal.SIGTERM)
    result["code"] = os.waitstatus_to_exitcode(os.waitpid(node.sentry, 0)[1])
    return result
