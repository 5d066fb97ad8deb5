"""A tenant's process: `HOW NOTES`.

It changes its name to `gpu<MiB>` or `ghost<MiB>` once it holds that amount. From then on the driver
of the scene (`node_scene.py`) lists it, even if its name changes again. The scene also creates a
file named by its PID in the folder NOTES, and one with the suffix `.seen` after the next scan.

If the driver has limits, the tenant first allocates all that the driver allows. The rest is memory
that the driver does not count.
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
CAP_MIB, CONTEXT_MIB = 8192, 518
STOPS = (
    "stop", "rename", "fork", "ghost", "crowd", "again", "groups", "leaderless", "orphan",
    "imports", "contexts", "beside", "within",
)  # fmt: skip
LIMITED = "NVML_STUB_FILE" in os.environ
ALONE = ("modest", "supervisor", "alone")
"""Actions that cannot access other processes' files, or need not."""
INIT_STAYS = ("ghost", "orphan")
"""Actions that end while PID 1 of their process namespace stays: otherwise all of it would end."""


def holds(mib, kind="gpu"):
    assert allocated(min(mib, CAP_MIB)) == 0
    assert not LIMITED or mib < CAP_MIB or allocated(CAP_MIB) == 2
    name(f"{kind}{mib}")


def allocated(mib):
    """Allocate this amount; return the driver's code, 2 for out of memory."""
    if not LIMITED:
        return 0
    cuda = ctypes.CDLL("libcuda.so.1")
    os.umask(0)
    assert cuda.cuInit(0) == 0
    return cuda.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(mib * 2**20))


def is_seen():
    """Wait until the sentry has seen this process in the driver's list."""
    while not Path(sys.argv[2], f"{os.getpid()}.seen").exists():
        time.sleep(0.05)


def name(text):
    assert LIBC.prctl(15, text.encode(), 0, 0, 0) == 0  # PR_SET_NAME


def enforcer():
    """Return the enforcer's PID once it runs, as any process of the pod can find it."""
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
    """Stop the enforcer, and forge a heartbeat that is valid for years."""
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
    """Hold no memory, and restart a process that holds memory whenever it ends."""
    while True:
        os.waitpid(child(greedy), 0)


def fork():
    """Start a process at short intervals, which does the same."""
    for _ in range(6):
        child(lambda: time.sleep(60))
        time.sleep(0.3)
    wait()


def orphan():
    """Allocate more than the cap by a client of the driver whose creator has ended."""
    assert allocated(1) == 0
    creator = os.getpid()
    if os.fork():
        os._exit(0)
    while Path(f"/proc/{creator}").exists():
        time.sleep(0.01)
    assert [allocated(CAP_MIB), allocated(CAP_MIB)] == [0, 0]
    name(f"gpu{2 * CAP_MIB}")
    wait()


def imports():
    """Keep memory that other processes allocated before they ended, each as much as the cap."""
    for number in range(1, 9):
        assert os.waitpid(child(lambda: os._exit(allocated(CAP_MIB))), 0)[1] == 0
        name(f"gpu{number * CAP_MIB}")
    wait()


def crowd(count, mib):
    """Start processes that each hold this amount, which the driver does not count."""
    for _ in range(count):
        child(lambda: (name(f"gpu{mib}"), wait()))


def main(how):
    if os.getpid() == 1 and how in INIT_STAYS:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # otherwise no process reaps orphans
        if os.fork():
            wait()
    pid = enforcer() if os.environ.get("ENFORCED_BY") == "Sidecar" and how not in ALONE else 0
    if pid and how in STOPS:
        stop(pid)
    if how == "groups":
        os.setgroups(range(2**32 - 2 - 65536, 2**32 - 2))
    if pid and how == "kill":
        os.kill(pid, signal.SIGKILL)
    if pid and how == "starve":
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, 3))
    if how == "fork":
        for _ in range(12):
            child(fork)
    if how == "ghost":
        # The process passes its files to a child that uses no memory itself, and exits.
        child(wait)
        holds(71680, "ghost")
        is_seen()
        os._exit(0)
    if how in ("crowd", "crowded"):
        # Each process uses less than a context, and the driver counts none of it.
        crowd(200 if how == "crowd" else 60, 400)
        wait()
    if how in ("orphan", "orphaned"):
        orphan()
    if how == "imports":
        imports()
    if how == "handler":
        signal.signal(signal.SIGTERM, lambda *_: None)
    if how == "polite":
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    if how == "chroot":
        os.chroot("/run")  # a mount, so its mounts are not empty
    if how == "namespace":
        # The process uses no memory. Its child, in a separate PID namespace, uses all of it.
        assert LIBC.unshare(0x20000000) == 0  # CLONE_NEWPID
        child(lambda: (holds(71680), wait()))
        wait()
    if how in ("supervisor", "again"):
        supervise()
    if how in ("contexts", "beside", "within"):
        # The driver counts the cap, but not the memory in addition to it: seven contexts, 4,800 MiB
        # of another process, or 4,800 MiB of the same process.
        holds(CAP_MIB)
        crowd(7, CONTEXT_MIB if how == "contexts" else 1)
        if how == "within":
            name(f"gpu{CAP_MIB + 4800}")
        elif how == "beside":
            crowd(1, 4800)
        wait()
    if how in ("capped", "forked"):
        # The driver counts all of the cap but no context. "forked" has two contexts.
        holds(CAP_MIB)
        if how == "forked" and LIMITED:
            crowd(1, CONTEXT_MIB)
        name(f"gpu{CAP_MIB + LIMITED * CONTEXT_MIB}")
    elif how == "modest":
        holds(4096)
    elif how == "debugger":
        wait()
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
