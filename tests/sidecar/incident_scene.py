"""An enforcer and workloads for an incident, all children of the scenario's process.

`tests.support.isolated_interpreter` runs it. An incident may use every name imported here.
"""

import ctypes
import fcntl
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.support.workload_processes import reuse, wait_until

__all__ = ["play", "resource", "signal", "time"]

MIB = 2**20
NO_CGROUP = "no cgroup can be made here"
CAP_MIB = 1000
PROBE = Path(__file__).resolve().parents[2] / "webhook/sidecar/probe.sh"
VERDICTS = {
    "self-test", "stopping a process", "stopping a container", "would stop a process",
    "memory did not come back", "cannot measure", "measuring again", "the pod must restart",
    "the driver changed", "not held by the driver", "held by the driver, late",
}  # fmt: skip
GAP = "no observation for a while"
PAUSE_S = 5
EVENTS = VERDICTS | {
    "killing a process", "memory came back", GAP, "a signal was rejected",
    "no heartbeat", "out of descriptors", "guarding on", "last words", "stopped",
    "held by the driver", "waiting for the driver's limit",
}  # fmt: skip
CGROUPS = next(
    (path for path in map(Path, ("/sys/fs/cgroup/unified", "/sys/fs/cgroup/freezer"))
     if path.is_dir()), Path("/sys/fs/cgroup"),
)  # fmt: skip
LIBC = ctypes.CDLL(None, use_errno=True)
PROGRAM = ("-m", "webhook.sidecar")
NOT_PROBED = "program._PROBED_WITHIN_S = 0"
"""Setting for runs without a startup probe, so that a failed self-test need not wait for one."""

SOON = f"""{NOT_PROBED}; pacing.LIST_FLOOR_S = 0.0
settings.POLL_INTERVAL = settings.BLIND_AFTER = parameters.Span('1s', '1ms', '24h')
real = time.monotonic
driver_limit.own_cgroup = lambda proc: os.environ["LEAF"]
time.monotonic = lambda: real() + os.path.getsize(os.environ['LATER'])
"""
"""Setting that reads lists whenever the total changes, with short intervals and a clock that
`Pod.later` advances."""

WITHIN_BOUNDS = {"VRAM_POLL_INTERVAL": "100ms", "VRAM_BLIND_AFTER": "1s"}


def with_constants(text):
    """Return the program's arguments with other constants, so that no test has to wait."""
    imports = (
        "import os, sys, time; from webhook.core.enforcement import pacing, parameters; "
        "from webhook.sidecar import __main__, driver_limit, guard, program, settings"
    )
    return "-c", f"{imports}\n{text}\nos._exit(__main__.main(sys.argv[1:]))"


class NoCgroupError(Exception):
    """No cgroup can be created here; a workload's processes would inherit it."""


class Workload:
    """A real process, which may have children."""

    def __init__(self, started, notes, children):
        self.started = started
        self.pid = started.pid
        self.children = children
        self._notes = notes

    @property
    def notes(self):
        return self._notes.read_text(encoding="utf-8").splitlines()

    @property
    def code(self):
        """Return the exit code, negative for a signal; None while the workload runs."""
        return self.started.poll()

    def wait(self):
        return self.started.wait(timeout=60)


class Pod:
    """The stub's file, one enforcer, and workloads."""

    def __init__(self, folder, library):
        self.folder = folder
        self.stub = folder / "stub.txt"
        self.log = folder / "calls.txt"
        self.heartbeat = folder / "run" / "heartbeat"
        self.outputs = [folder / "events.txt", folder / "termination-log", folder / "errors.txt"]
        self.seconds = folder / "seconds"
        self.enforcer = None
        self.python = sys.executable
        self.environment = {
            "PATH": "/usr/bin:/bin",
            "LD_LIBRARY_PATH": library,
            "NVML_STUB_FILE": str(self.stub),
            "NVML_STUB_LOG": str(self.log),
            "VRAM_CAP_BYTES": str(CAP_MIB * MIB),
            "VRAM_POLL_INTERVAL": "20ms",
            "VRAM_TOLERANCE": "0",
            "VRAM_GRACE": "3s",
            "VRAM_BLIND_AFTER": "100ms",
            "LATER": str(self.seconds),
            "LEAF": str(folder / "cgroups" / "pod" / "leaf"),
        }
        (folder / "run").mkdir()
        (folder / "pids").mkdir()
        for path in (*self.outputs, self.seconds):
            path.touch()
        (folder / "pids").chmod(0o777)  # each workload process writes its own amount
        self.cages = CGROUPS / f"vramwarden-{folder.parent.name}-{folder.name}"
        self.leaf = folder / "cgroups" / "pod" / "leaf"
        self._charges = []
        self._workloads = 0
        self.script()

    def script(self, text="", gpus="a", used_mib=0):
        """Write the stub's file; `used_mib` is memory of other pods on each GPU."""
        shown = [
            f"gpu GPU-{gpu} total={80000 * MIB} used={used_mib * MIB} mig=0 name=NVIDIA_H200\n"
            for gpu in gpus
        ]
        write(self.stub, "".join(shown) + text)

    def process(self, how="stays", *, user=0, children=0, container="", cage=""):
        """Start a workload; a container is named by a letter or digit of its ID.

        A workload that starts processes needs a cage: a cgroup that they inherit.
        """
        self._workloads += 1
        if cage:
            self._make_cages()
        notes = self.folder / f"notes-{self._workloads}.txt"
        script = Path(__file__).with_name("incident_workload.py")
        outputs = ",".join(map(str, self.outputs[:2]))
        command = [str(script), how, str(notes), outputs, str(user), str(children)]
        started = subprocess.Popen(
            [sys.executable, "-I", "-S", *command], stdout=subprocess.PIPE, text=True,
            preexec_fn=lambda: cage and self.cage(os.getpid(), cage),  # noqa: PLW1509
        )  # fmt: skip
        ready, *children = started.stdout.readline().split()
        assert ready == "ready"
        for pid in (started.pid, *map(int, children)):
            self.contain(pid, container)
        return Workload(started, notes, [int(child) for child in children])

    def reuse(self, old):
        """End a workload, and start another one that gets its PID."""
        return reuse(old.started, self.process)

    def contain(self, pid, container):
        """Show the process in a container in /proc, as a sibling in the pod sees it."""
        if container:
            cgroup = self.folder / f"cgroup-{container}"
            cgroup.write_text(f"0::/../cri-containerd-{container * 64}.scope\n", encoding="ascii")
            where = f"/proc/{pid}/cgroup".encode()
            assert LIBC.mount(bytes(cgroup), where, None, 4096, None) == 0  # MS_BIND

    def _make_cages(self):
        try:
            self.cages.mkdir(exist_ok=True)
        except OSError as error:
            raise NoCgroupError from error

    def cage(self, pid, container):
        """Put a process into a real cgroup that is named like a container's."""
        cage = self.cages / f"cri-containerd-{container * 64}.scope"
        cage.mkdir(parents=True, exist_ok=True)
        (cage / "cgroup.procs").write_text(str(pid), encoding="ascii")

    def caged(self, container):
        cage = self.cages / f"cri-containerd-{container * 64}.scope"
        return (cage / "cgroup.procs").read_text(encoding="ascii").split()

    def holds(self, who, mib, gpu="GPU-a", *, more_bytes=0):
        """Set the memory of a process or PID on one GPU; it has none on others."""
        self.lists(who, f"{gpu} {mib * MIB + more_bytes}")

    def lists(self, who, *lines):
        """Set the driver's list entry of a process: GPU, bytes, and the list's name."""
        pid = who if isinstance(who, int) else who.pid
        write(self.folder / "pids" / str(pid), "\n".join(lines) + "\n")

    def gives_back(self, who):
        (self.folder / "pids" / str(who.pid)).unlink()

    def has_limits(self, back_end="misc", **script):
        """Make the driver support limits; a folder with the enforcer's cgroup acts as cgroupfs."""
        self.leaf.mkdir(parents=True, exist_ok=True)
        tree = self.leaf.parents[1]
        self.script(f"limits {back_end} cgroups={tree} own={self.leaf}\n", **script)

    def limits(self, mib, gpu="GPU-a"):
        """Set or remove the driver's limit for the pod."""
        name = f"limit-{self.leaf.parent.stat().st_ino}-{gpu}"
        write(self._limits() / name, f"{mib * MIB} {mib * MIB}" if mib else "")

    def counts(self, mib, gpu="GPU-a"):
        """Set the memory that the driver counts for the pod."""
        path = self._limits() / f"charge-{gpu}"
        write(path, f"{gpu} {mib * MIB} {self.leaf.parent.stat().st_ino}")
        self._charges.append(path.open(encoding="ascii"))
        fcntl.flock(self._charges[-1], fcntl.LOCK_EX)

    def _limits(self):
        (self.folder / "limits").mkdir(exist_ok=True)
        return self.folder / "limits"

    def guard(self, **options):
        """Start the enforcer; wait for its first observation or its end."""
        self.enforcer = self.start(**options)
        wait_until(lambda: self.heartbeat.exists() or self.enforcer.poll() is not None)

    def start(self, *arguments, user=None, by=(), constants="", output=None, **environment):
        """Start the program as a user, whose only capability is to read these files."""
        events, termination_log, errors = self.outputs
        command = [self.python, "-I", *(by or with_constants(SOON + constants))]
        environment = self.environment | (WITHIN_BOUNDS if by else {}) | environment
        with events.open("ab") as stdout, errors.open("ab") as stderr:
            return subprocess.Popen(
                [*command, *arguments, "--run-folder", str(self.folder / "run"),
                 "--termination-log", str(termination_log)],
                env=environment, stdout=output or stdout, stderr=stderr,
                preexec_fn=None if user is None else lambda: become(user),  # noqa: PLW1509
            )  # fmt: skip

    def probe(self, kind="liveness", wait_s=0):
        """Return the output of the kubelet's probe, and its exit code."""
        return self._probe(kind, wait_s)()

    def waiting_probe(self):
        """Start a startup probe; return a function that returns its result once it waits."""
        answer = self._probe("startup", 600)
        wait_until((self.heartbeat.parent / "bell").exists)
        return answer

    def _probe(self, kind, wait_s):
        command = [PROBE, kind, str(wait_s), str(self.folder / "run")]
        began = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={}
        )

        def answer():
            said, _ = began.communicate(timeout=60)
            return [began.returncode, said.strip()]

        return answer

    def left(self):
        """Return the names of the files in the run folder, except a heartbeat being written."""
        names = {path.name for path in self.heartbeat.parent.iterdir()}
        return sorted(names - {"heartbeat.new"})

    def events(self, message=""):
        """Return the enforcer's log in whole lines, with its final figures only on request."""
        lines = self.outputs[0].read_text(encoding="utf-8").split("\n")[:-1]
        events = [json.loads(line) for line in lines]
        wanted = {message} if message else EVENTS - {"last words"}
        assert {event["msg"] for event in events} <= EVENTS, events
        return [event for event in events if event["msg"] in wanted]

    @property
    def name(self):
        """Return the enforcer's process name, as seen from outside."""
        return Path(f"/proc/{self.enforcer.pid}/comm").read_text(encoding="utf-8").rstrip("\n")

    @property
    def messages(self):
        """Return the logged messages, except gaps in observation, which busy machines cause."""
        reported = [event["msg"] for event in self.events()]
        return [message for message in reported if message != GAP]

    @property
    def termination_message(self):
        """Return the last termination message without the final figures after it."""
        written = self.outputs[1].read_text(encoding="utf-8")
        return written.removesuffix(self.final_figures)

    @property
    def final_figures(self):
        """Return the two lines of the final event; empty before it."""
        for said in self.events("last words")[-1:]:
            figures = [said[key] for key in ("cap_bytes", "peak_bytes", "stops", "s")]
            figures[1] = dict(sorted(figures[1].items(), key=lambda item: -item[1]))
            words = {"v": 1} | dict(zip(("cap", "peak", "stops", "s"), figures, strict=True))
            return f"ended: {said['why']}\n{json.dumps(words, separators=(',', ':'))}\n"
        return ""

    def wait_for(self, message, count=1):
        """Return the n-th event with this message."""

        def found():
            over = self.enforcer.poll() is not None
            events = self.events(message)
            assert len(events) >= count or not over, f"the enforcer ended with {over}"
            return events[count - 1 : count]

        return wait_until(found)[0]

    def wait_for_heartbeat(self):
        wait_until(self.heartbeat.exists)

    def observations(self, count):
        """Wait for this number of observations; the first one may already be in progress."""
        for _ in range(count + 1):
            before = self.heartbeat.read_text(encoding="ascii")
            wait_until(lambda: self.heartbeat.read_text(encoding="ascii") != before)  # noqa: B023

    def later(self, seconds):
        """Advance the enforcer's clock by these seconds."""
        with self.seconds.open("a", encoding="ascii") as file:
            file.write("." * seconds)

    def pause(self):
        os.kill(self.enforcer.pid, signal.SIGSTOP)
        wait_until(lambda: self.stat(self.enforcer.pid)[0] == "T")

    def stat(self, pid):
        """Return the fields of proc(5) after the name: the state, and at 19 the start time."""
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
        return stat.rpartition(")")[2].split()

    def forge(self, pid):
        """Write a heartbeat, as a tenant would, of a process that has just observed."""
        now = Path("/proc/uptime").read_text(encoding="ascii").split()[0].replace(".", "")
        self.heartbeat.write_text(f"{pid} {self.stat(pid)[19]} {now}\n", encoding="ascii")

    def go_on(self):
        os.kill(self.enforcer.pid, signal.SIGCONT)

    def wait_until(self, condition):
        return wait_until(condition)

    def hold(self, function, **options):
        """Make the driver hang in this call until the script changes; return at the first hang."""
        self.log.write_text("")
        self.script(f"hold {function}", **options)
        wait_until(lambda: self.calls("held"))

    def calls(self, name=""):
        """Return the calls of NVML so far whose name contains this string."""
        lines = self.log.read_text(encoding="ascii").split() if self.log.exists() else []
        return [line for line in lines if name in line]

    def end(self):
        """Wait for the enforcer's end, and return its exit code."""
        return self.enforcer.wait(timeout=60)

    def finish(self):
        """Stop the enforcer if it runs, and check the invariants of every incident."""
        if self.enforcer is not None and self.enforcer.poll() is None:
            wait_until(self.ends_with_the_last_verdict)
            self.enforcer.send_signal(signal.SIGINT)  # at once, even if others still run
            code = self.end()
            assert (code, self.messages[-1]) == (0, "stopped"), (code, self.messages)
        assert self.ends_with_the_last_verdict(), self.termination_message
        guarded = self.heartbeat.exists() and self.enforcer.poll() != -signal.SIGKILL
        assert bool(self.events("last words")) == guarded
        assert not self.outputs[2].read_text(encoding="utf-8")
        for event in self.events():
            assert event["ts"], event
            assert event["msg"] in EVENTS, event
            assert event["level"] in {"info", "warning", "error"}, event
            assert event["msg"] != GAP or event["s"] > PAUSE_S, event

    def empty_cages(self):
        """End the processes in cages, and remove the cgroups, which outlive the test."""
        for cage in self.cages.glob("cri-*"):
            for pid in (cage / "cgroup.procs").read_text(encoding="ascii").split():
                os.kill(int(pid), signal.SIGKILL)
            wait_until(lambda: not (cage / "cgroup.procs").read_text(encoding="ascii"))  # noqa: B023
            cage.rmdir()
        if self.cages.exists():
            self.cages.rmdir()

    def ends_with_the_last_verdict(self):
        """Return True if the termination message is the last reported verdict."""
        verdicts = [event for event in self.events() if event["msg"] in VERDICTS]
        last = "".join(f"{event['msg']}: {event['why']}\n" for event in verdicts[-1:])
        return self.termination_message == last


def write(path, text):
    beside = path.with_name(f"{path.name}.new")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


def become(user, kept=1):
    """Switch to that user with a single capability across the next exec; 1 is CAP_DAC_OVERRIDE."""
    for capability in range(64):
        if capability != kept:
            LIBC.prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP
    assert LIBC.prctl(8, 1, 0, 0, 0) == 0  # PR_SET_KEEPCAPS
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    assert LIBC.capset(header, (ctypes.c_uint32 * 6)(*[1 << kept] * 3, 0, 0, 0)) == 0
    assert LIBC.prctl(47, 2, kept, 0, 0) == 0  # PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE


def play(scenario, sent):
    """Run an incident in a pod and return its result."""
    pod = Pod(Path(sent["folder"]), sent["library"])
    try:
        result = scenario(pod, *sent["arguments"])
        pod.finish()
    except NoCgroupError:
        return NO_CGROUP
    except BaseException:
        print(*(path.read_text() for path in pod.outputs), file=sys.stderr)
        raise
    finally:
        pod.empty_cages()
    return result
