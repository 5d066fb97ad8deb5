"""The kubelet's probes as the kubelet runs them: the real script, by any shell, at any time."""

import os
import shutil
import subprocess
from pathlib import Path

import webhook
from webhook.adapters import processes
from webhook.sidecar.heartbeat import Heartbeat

SCRIPT = Path(webhook.__file__).with_name("sidecar") / "probe.sh"
SHELLS = {
    os.path.realpath(found): shell
    for shell in (["dash"], ["bash", "--posix"], ["busybox", "sh"], ["sh"])
    if (found := shutil.which(shell[0]))
}
"""Shell names keyed by program: `sh` is usually one of the others."""
GUARDING = (0, "guarding\n")
NOT_YET = "not guarding yet: the self-test has not finished"


def asked(
    folder, kind="liveness", seconds=0, *,
    proc="/proc", shell=("sh",), interval="60s", script=SCRIPT,
):  # fmt: skip
    """Return a probe's exit code and output; a heartbeat may be three intervals old."""
    ended = subprocess.run(
        [*shell, script, kind, str(seconds), folder, proc],
        capture_output=True, check=False, timeout=60,
        env={"VRAM_POLL_INTERVAL": interval} if interval else {},
    )  # fmt: skip
    assert ended.stderr == b""
    return ended.returncode, ended.stdout.decode(errors="surrogateescape")


def with_sleep(folder, does):
    """Return the script with a `sleep` that runs `does` and logs its duration."""
    made = folder / "probe.sh"
    sleep = f'sleep() {{ echo "$1" >>{folder}/slept; {does}; }}'
    made.write_text(f"{sleep}\n{SCRIPT.read_text(encoding='utf-8')}", encoding="utf-8")
    return made


def slept(folder):
    """Return the duration of each `sleep`."""
    noted = folder / "slept"
    return noted.read_text(encoding="ascii").split() if noted.exists() else []


def why(folder, **more):
    """Return the reason why a probe fails; empty if it passes."""
    code, said = asked(folder, "startup", **more)
    return said.removesuffix("\n") if code else ""


def uptime(proc="/proc"):
    """Return the uptime in hundredths of a second, as in heartbeats."""
    return int(Path(proc, "uptime").read_text(encoding="ascii").split()[0].replace(".", ""))


def a_beat(folder, *, pid=None, started=None, ago_s=0.0, now=None):
    """Write a heartbeat as the guard does, except for the given values."""
    me = os.getpid()
    Heartbeat(str(folder))  # which wakes for a probe
    started = processes.identify(me).started if started is None else started
    now = uptime() if now is None else now
    line = f"{pid or me} {started} {now - round(ago_s * 100)}\n"
    (folder / "heartbeat").write_text(line, encoding="ascii")


def a_proc(folder, **files):
    """Create a /proc with our own process, except for these files: content, or None for no file.

    They replace the files of our PID, except `self_cgroup` and `uptime`.
    """
    (folder / "self").mkdir()
    ours = folder / str(os.getpid())
    ours.mkdir()
    places = {ours / name: Path("/proc/self") / name for name in ("stat", "schedstat", "cgroup")}
    places[folder / "self" / "cgroup"] = Path("/proc/self/cgroup")
    places[folder / "uptime"] = Path("/proc/uptime")
    for path, real in places.items():
        name = "self_cgroup" if path.parent.name == "self" else path.name
        if name not in files:
            path.symlink_to(str(real).replace("self", str(os.getpid())))
        elif files[name] is not None:
            path.write_text(files[name], encoding="ascii")
    return folder


class Clock:
    """A clock that the test advances, in a /proc that differs only in the time."""

    def __init__(self, folder):
        self.proc = a_proc(folder, uptime="")
        self.set_s(1000.0)

    def set_s(self, now_s):
        self.now_s = now_s
        (self.proc / "uptime").write_text(f"{now_s:.2f} 7777.77\n", encoding="ascii")
