"""Processes of a node: their pods, recognition of the enforcer, and signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.core.node.cgroup_trees import ID, OTHERS, OURS, THEIRS
from tests.support.fake_proc import put, stat_line, status_lines
from webhook.adapters import processes
from webhook.adapters.node_processes import NodeProcesses, Owner
from webhook.adapters.processes import Delivery
from webhook.core.enforcement.model import Process
from webhook.core.node.cgroups import NO_POD, ProcessOwner

OUR_CGROUP = f"0::/kubepods/besteffort/pod{OURS}/{'1' * 64}\n"
THEIR_CGROUP = f"0::/kubepods/burstable/pod{THEIRS}/{ID}\n"
RUN = f"/var/lib/kubelet/pods/{THEIRS}/volumes/kubernetes.io~empty-dir/vram-enforcer-run"
SLEEPS = """
import signal, time
signal.signal(signal.SIGUSR1, print)
print("ready", flush=True)
time.sleep(60)
"""


def mount(device, root, at, kind="tmpfs"):
    return f"36 35 {device} {root} {at} rw,noatime shared:1 - {kind} {kind} rw\n"


@pytest.fixture
def node(tmp_path):
    put(tmp_path, os.getpid(), cgroup=OUR_CGROUP)
    return lambda: NodeProcesses(OURS, proc=str(tmp_path))


@pytest.fixture
def sleeper():
    command = [sys.executable, "-I", "-S", "-c", SLEEPS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        started.stdout.readline()
        yield started
        started.kill()


def test_a_process_is_its_pid_start_and_place_without_its_command_line(node, tmp_path):
    put(tmp_path, 50, cgroup=THEIR_CGROUP, comm="train\n", cmdline="train\0--token=secret\0")
    owner = node().owner(50)
    assert owner == Owner(Process(50, 4711), ProcessOwner(THEIRS, ID))
    assert (owner.process.command, owner.process.container) == ("train", ID)


def test_who_ended_or_never_was_is_nobody(node, tmp_path):
    put(tmp_path, 50, stat=stat_line(50, state="Z"))
    assert [node().owner(pid) for pid in (50, 51)] == [None, None]


def test_only_the_pods_own_processes_are_found(node, tmp_path):
    put(tmp_path, 50, cgroup=THEIR_CGROUP)
    put(tmp_path, 51, cgroup="0::/system.slice/x.service\n")
    put(tmp_path, 52, cgroup=f"0::/kubepods/burstable/pod{OTHERS}/{ID}\n")
    inner = THEIR_CGROUP.strip() + f"/kubepods/pod{OTHERS}/{ID}\n"
    put(tmp_path, 53, cgroup=inner)
    assert [owner.process.pid for owner in node().in_pod(THEIRS)] == [50, 53]
    assert [owner.process.pid for owner in node().in_pod(OTHERS)] == [52]


def test_without_our_own_uid_nobody_is_placed(tmp_path):
    put(tmp_path, os.getpid(), cgroup=OUR_CGROUP)
    put(tmp_path, 50, cgroup=THEIR_CGROUP)
    node = NodeProcesses("", proc=str(tmp_path))
    assert (node.can_find_pods(), node.owner(50).place) == (False, NO_POD)
    assert NodeProcesses(OURS, proc=str(tmp_path)).can_find_pods()


@pytest.mark.parametrize(
    ("numbers", "inner"),
    [("8000\t1", 1), ("8000\t7", 7), ("8000\t7\t1", 7), ("8000", 0), ("", 0), ("8000\tx", 0)],
)
def test_the_number_in_the_pod_is_the_second(node, tmp_path, numbers, inner):
    put(tmp_path, 50, status=f"{status_lines(50)}NSpid:\t{numbers}\n")
    assert node().inner_pid(50) == inner


MANY = mount("0:7", "/", RUN.replace(THEIRS, OTHERS)) * 20_000
LONG = mount("0:7", f"/{'x' * 2**20}{RUN}", RUN)
MOUNTS = [
    (mount("0:99", "/", RUN), {"0:99"}),
    (mount("0:99", "/", RUN) + mount("0:7", "/", "/data"), {"0:99"}),
    (mount("8:1", "/", RUN, "ext4"), set()),
    (mount("0:99", "/sub", RUN), set()),
    (mount("0:99", "/", RUN.replace(THEIRS, OTHERS)), set()),
    (mount("0:99", "/", f"{RUN}/below"), set()),
    pytest.param(MANY + mount("0:99", "/", RUN), {"0:99"}, id="20,000 mounts"),
    pytest.param(LONG + mount("0:99", "/", RUN), {"0:99"}, id="after a long line"),
    ("", set()),
    ("garbage\n - tmpfs\n", set()),
]


@pytest.mark.parametrize(("seen", "devices"), MOUNTS)
def test_the_enforcers_volume_is_a_tmpfs_that_the_kubelet_mounts(node, tmp_path, seen, devices):
    put(tmp_path, 1, mountinfo=seen)
    assert node().enforcer_mounts(THEIRS) == devices


@pytest.mark.parametrize(
    ("seen", "has"),
    [
        (mount("0:99", "/", "/run/vram-enforcer"), True),
        (mount("0:98", "/", "/run/vram-enforcer"), False),
        (mount("0:99", "/", "/elsewhere"), False),
        (mount("0:99", "/sub", "/run/vram-enforcer"), False),
        (mount("0:98", "/", "/run/vram-enforcer", "ext4"), False),
    ],
)
def test_who_has_that_volume_at_its_path_is_the_enforcer(node, tmp_path, seen, has):
    put(tmp_path, 50, mountinfo=seen)
    assert node().has_mounted(50, frozenset({"0:99"})) is has


NODES_USERS = "         0          0 4294967295\n"
CONTAINERS = f"/var/lib/kubelet/pods/{THEIRS}/containers/train/0a1b2c"


PROC, TERMINATION = mount("0:9", "/", "/proc", "proc"), "/dev/termination-log"


@pytest.mark.parametrize(
    ("seen", "has"),
    [
        (mount("8:1", CONTAINERS, TERMINATION, "ext4"), True),
        (mount("8:1", CONTAINERS.removeprefix("/var/lib/kubelet"), "/x", "xfs"), True),
        (mount("8:1", CONTAINERS.replace(THEIRS, OTHERS), TERMINATION, "ext4"), False),
        (mount("8:1", "/", CONTAINERS, "ext4"), False),
        (mount("0:9", "/", "/etc/hosts"), False),
        ("", False),
    ],
)
def test_a_container_sees_a_file_of_the_kubelet(node, tmp_path, seen, has):
    put(tmp_path, "self", uid_map=NODES_USERS)
    put(tmp_path, 50, mountinfo=PROC + seen, uid_map=NODES_USERS)
    assert node().has_container_mounts(50, THEIRS) is has


@pytest.mark.parametrize(
    "seen",
    [
        "",
        mount("0:27", "/", "/"),  # the root is /dev/shm
        mount("0:9", "/", "/", "proc") + mount("0:9", "/bus", "/bus", "proc"),
        mount("0:27", "/", "/proc"),
        mount("0:9", "/sys", "/proc", "proc"),
    ],
)
def test_who_sees_no_proc_has_another_root_and_may_hide_that_file(node, tmp_path, seen):
    put(tmp_path, "self", uid_map=NODES_USERS)
    put(tmp_path, 50, mountinfo=seen, uid_map=NODES_USERS)
    assert node().has_container_mounts(50, THEIRS)


def test_who_has_more_mounts_than_are_read_may_hide_any_of_them(node, tmp_path):
    put(tmp_path, "self", uid_map=NODES_USERS)
    put(tmp_path, 50, mountinfo=PROC + MANY, uid_map=NODES_USERS)
    for ask in (
        lambda: node().has_container_mounts(50, THEIRS),
        lambda: node().has_mounted(50, frozenset({"0:99"})),
    ):
        with pytest.raises(OSError, match="too many mounts"):
            ask()


def test_who_is_in_another_user_namespace_may_have_unmounted_it(node, tmp_path):
    put(tmp_path, "self", uid_map=NODES_USERS)
    put(tmp_path, 50, mountinfo=PROC, uid_map="         0       1000          1\n")
    assert node().has_container_mounts(50, THEIRS)


@pytest.mark.parametrize(
    ("line", "handles"),
    [
        ("SigCgt:\t0000000000004000\n", True),
        ("SigCgt:\tffffffffffffbfff\n", False),
        ("SigCgt:\t0000000000000000\n", False),
        ("SigCgt:\t\n", False),
        ("SigCgt:\tx\n", False),
        ("", False),
    ],
)
def test_a_handler_of_sigterm_is_bit_15_of_the_caught_signals(node, tmp_path, line, handles):
    put(tmp_path, 50, status=f"{status_lines(50)}{line}")
    assert node().handles(50, signal.SIGTERM) is handles


def test_a_real_process_handles_what_it_has_a_handler_for(sleeper):
    made = NodeProcesses(OURS)
    numbers = (signal.SIGUSR1, signal.SIGTERM)
    assert [made.handles(sleeper.pid, number) for number in numbers] == [True, False]


def started_s(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


@pytest.fixture
def real(node, tmp_path, sleeper):
    """Return a real process that appears to be in the pod."""
    put(tmp_path, sleeper.pid, stat=stat_line(sleeper.pid, started=started_s(sleeper.pid)),
        cgroup=THEIR_CGROUP)  # fmt: skip
    made = node()
    return made, made.owner(sleeper.pid), sleeper


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_exactly_this_process_is_signalled(real, number):
    node, owner, sleeper = real
    assert node.send(owner, number) is Delivery.DELIVERED
    assert sleeper.wait(60) == -number


@pytest.mark.parametrize(
    ("change", "delivery"),
    [
        ({"cgroup": f"0::/kubepods/burstable/pod{OTHERS}/{ID}\n"}, Delivery.REJECTED),
        ({"cgroup": "0::/system.slice/x.service\n"}, Delivery.REJECTED),
        ({"cgroup": ""}, Delivery.REJECTED),
        ({"stat": "started"}, Delivery.GONE),
    ],
)
def test_nobody_is_signalled_who_is_another_or_elsewhere_by_now(real, tmp_path, change, delivery):
    node, owner, sleeper = real
    if "stat" in change:
        change = {"stat": stat_line(sleeper.pid, started=owner.process.started + 1)}
    shown = {"stat": stat_line(sleeper.pid, started=owner.process.started)} | change
    put(tmp_path, sleeper.pid, **{"cgroup": THEIR_CGROUP, **shown})
    assert node.send(owner, signal.SIGKILL) is delivery
    assert sleeper.poll() is None


def test_who_is_of_no_pod_ourselves_and_our_parents_are_never_signalled(node, tmp_path):
    put(tmp_path, os.getpid(), cgroup=THEIR_CGROUP, stat=stat_line(os.getpid(), parent=77))
    made = node()
    for pid in (1, os.getpid(), 77):
        owner = Owner(Process(pid, 4711), ProcessOwner(THEIRS, ID))
        assert made.send(owner, signal.SIGKILL) is Delivery.REJECTED
    assert made.send(Owner(Process(78, 4711), NO_POD), signal.SIGKILL) is Delivery.REJECTED


def test_without_pidfds_nobody_is_signalled(real, monkeypatch):
    node, owner, sleeper = real

    def refuse(_pid):
        raise PermissionError

    monkeypatch.setattr(os, "pidfd_open", refuse)
    assert node.send(owner, signal.SIGKILL) is Delivery.REJECTED
    assert sleeper.poll() is None


def test_who_ends_while_it_is_checked_is_gone_and_not_out_of_reach(real, tmp_path, monkeypatch):
    """A zombie is shown at the root of its cgroups."""
    node, owner, sleeper = real
    pid, reading = sleeper.pid, processes.require_cgroups

    def end_first(of, proc):
        put(tmp_path, pid, stat=stat_line(pid, started=owner.process.started, state="Z"))
        return reading(of, proc)

    monkeypatch.setattr(processes, "require_cgroups", end_first)
    assert node.send(owner, signal.SIGKILL) is Delivery.GONE


@pytest.fixture
def kin(node, tmp_path):
    """A shim 40 of the node, with sandbox 41 and a container 50 whose processes are all hidden.

    Process 50 started 51, which started 52. Process 53 is an orphan, so its parent is the sandbox.
    """
    put(tmp_path, 2, stat=stat_line(2, parent=1, started=1))
    put(tmp_path, 40, stat=stat_line(40, parent=1, started=10), cgroup="0::/system.slice/x\n")
    put(tmp_path, 41, stat=stat_line(41, parent=40, started=20),
        cgroup=f"0::/kubepods/burstable/pod{THEIRS}/{'a' * 64}\n")  # fmt: skip
    for pid, parent in {50: 40, 51: 50, 52: 51, 53: 41}.items():
        hide(tmp_path, pid, parent)
    return node


def hide(proc, pid, parent):
    """Add a process whose cgroup cannot be read, as with a path of 4096 characters."""
    path = proc / str(pid) / "cgroup"
    path.unlink(missing_ok=True)
    put(proc, pid, stat=stat_line(pid, parent=parent, started=pid))
    path.unlink()
    path.symlink_to("x" * 300)


def test_who_hides_its_cgroup_is_of_the_pod_of_its_kin(kin):
    assert [kin().owner(pid).place for pid in (50, 51, 52, 53)] == [ProcessOwner(THEIRS)] * 4
    assert [owner.process.pid for owner in kin().in_pod(THEIRS)] == [41, 50, 51, 52, 53]


def test_where_the_runtimes_process_has_several_pods_nobody_is_guessed(kin, tmp_path):
    put(tmp_path, 42, stat=stat_line(42, parent=40, started=21),
        cgroup=f"0::/kubepods/burstable/pod{OTHERS}/{ID}\n")  # fmt: skip
    assert [kin().owner(pid).place.pod for pid in (50, 51, 53)] == ["", "", THEIRS]


def test_who_is_the_first_process_of_the_nodes_is_of_no_pod(kin, tmp_path):
    hide(tmp_path, 50, 1)
    assert [kin().owner(pid).place for pid in (50, 51)] == [NO_POD, NO_POD]


def test_a_parent_that_is_younger_is_another(kin, tmp_path):
    put(tmp_path, 40, stat=stat_line(40, parent=1, started=99), cgroup=THEIR_CGROUP)
    assert kin().owner(50).place == NO_POD


def test_parents_in_a_circle_are_nobodys(kin, tmp_path):
    for pid, parent in {50: 51, 51: 50}.items():
        hide(tmp_path, pid, parent)
        (tmp_path / str(pid) / "stat").write_text(stat_line(pid, parent=parent, started=50))
    assert [kin().owner(pid).place for pid in (50, 51)] == [NO_POD, NO_POD]


def test_many_who_hide_cost_one_read_of_each_process(kin, tmp_path, monkeypatch):
    for pid in range(100, 200):
        hide(tmp_path, pid, pid - 1 if pid > 100 else 53)
    made, asked, ask = kin(), [], processes.parent_and_start
    monkeypatch.setattr(processes, "parent_and_start", lambda *of: asked.append(of[0]) or ask(*of))
    assert {made.owner(pid).place for pid in range(199, 99, -1)} == {ProcessOwner(THEIRS)}
    assert len(asked) == len(set(asked))


def test_whose_cgroup_cannot_be_read_now_is_nobody_yet(node, tmp_path):
    put(tmp_path, 50)
    (tmp_path / "50" / "cgroup").unlink()
    made = node()
    assert (made.owner(50), list(made.in_pod(THEIRS))) == (None, [])


def test_a_main_thread_that_ended_is_placed_by_another_with_version_1(node, tmp_path):
    """The kernel then shows it at the root of each hierarchy."""
    (tmp_path / str(os.getpid()) / "cgroup").write_text(f"2:cpu:{OUR_CGROUP[3:]}0::/\n")
    threads = {50: "2:cpu:/\n0::/\n", 51: "2:cpu:/\n0::/\n", 52: f"2:cpu:{THEIR_CGROUP[3:]}0::/\n"}
    put(tmp_path, 50, stat=stat_line(50, state="Z", threads=2), cgroup=threads[50])
    (tmp_path / "50" / "task").mkdir()
    for pid, cgroup in threads.items():
        put(tmp_path / "50" / "task", pid, cgroup=cgroup)
    made = node()
    assert made.owner(50).place == ProcessOwner(THEIRS, ID)
    put(tmp_path, 50, stat=stat_line(50), cgroup=threads[50])
    assert made.owner(50).place == NO_POD


def test_it_is_so_with_a_real_process(real_thread):
    pid, cgroups = real_thread
    assert processes.read_cgroups(pid, "/proc") == cgroups


@pytest.fixture
def real_thread():
    """Yield a process whose main thread has ended, and the cgroups of its other thread."""
    ends = (
        "import ctypes, platform, threading, time\n"
        "threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "print('ready', flush=True)\n"
        "ctypes.CDLL(None).syscall({'x86_64': 60}.get(platform.machine(), 93), 0)\n"
    )
    command = [sys.executable, "-I", "-S", "-c", ends]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        started.stdout.readline()
        while ") Z" not in Path(f"/proc/{started.pid}/stat").read_text():
            time.sleep(0.01)
        cgroups = Path(f"/proc/{os.getpid()}/cgroup").read_text()
        yield started.pid, cgroups
        started.kill()
