"""A tenant's process: `HOW NOTES`.

It names itself `gpu<MiB>` or `ghost<MiB>` once it holds so much. The scene (`node_scene.py`) makes
the driver list it from then on, whatever it is named later, and puts a file named by its number
into the folder NOTES, and one with `.seen` behind it once the sentry has scanned since.
"""

import ctypes
import os
import platform
import resource
import signal
import sys
import threading
import time
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)
RUN = "root/run/vram-enforcer"


def holds(mib, kind="gpu"):
    name(f"{kind}{mib}")


def is_seen():
    """Wait until the sentry has seen this process in the driver's list."""
    while not Path(sys.argv[2], f"{os.getpid()}.seen").exists():
        time.sleep(0.05)


def name(text):
    assert LIBC.prctl(15, text.encode(), 0, 0, 0) == 0  # PR_SET_NAME


def enforcer():
    """Return the enforcer's number once it guards, as anybody in the pod finds it."""
    while True:
        for path in Path("/proc").glob("[1-9]*"):
            try:
                if b"webhook.sidecar" not in (path / "cmdline").read_bytes():
                    continue
                if list((path / RUN).glob("heartbeat")):
                    return int(path.name)
            except OSError:
                continue
        time.sleep(0.05)


def stop(pid):
    """Stop it, and forge its heartbeat: valid for years."""
    os.kill(pid, signal.SIGSTOP)
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        time.sleep(0.01)
    heartbeat = Path(f"/proc/{pid}/{RUN}/heartbeat")
    words = heartbeat.read_text().split()
    heartbeat.write_text(" ".join([*words[:-1], "999999999"]) + "\n")


def wait():
    while True:
        signal.pause()


def child(work):
    if not (pid := os.fork()):
        work()
        os._exit(0)
    return pid


def greedy():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    holds(71680)
    wait()


def supervise():
    """Hold nothing, and start who does again and again."""
    while True:
        os.waitpid(child(greedy), 0)


def fork():
    """Start somebody every moment, who does the same."""
    for _ in range(6):
        child(lambda: time.sleep(60))
        time.sleep(0.3)
    wait()


def main(how):
    # Another's files are out of its reach, or no concern.
    alone = how in ("modest", "supervisor", "alone")
    pid = 0 if alone else enforcer()
    if how in ("stop", "rename", "fork", "ghost", "crowd", "again", "groups", "leaderless"):
        stop(pid)
    if how == "groups":
        os.setgroups(range(2**32 - 2 - 65536, 2**32 - 2))
    if how == "kill":
        os.kill(pid, signal.SIGKILL)
    if how == "starve":
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, 3))
    if how == "fork":
        for _ in range(12):
            child(fork)
    if how == "ghost":
        # It hands its files on to a child that holds nothing of its own, and ends.
        child(wait)
        holds(71680, "ghost")
        is_seen()
        os._exit(0)
    if how == "crowd":
        for _ in range(200):
            child(lambda: (holds(400), wait()))
        wait()
    if how in ("supervisor", "again"):
        supervise()
    if how == "modest":
        holds(4096)
    else:
        holds(71680)
        if how == "leaderless":
            threading.Thread(target=wait).start()
            is_seen()
            LIBC.syscall({"x86_64": 60}.get(platform.machine(), 93), 0)
        if how == "rename":
            is_seen()
            name("vram-enforcer")
    wait()


main(sys.argv[1])
