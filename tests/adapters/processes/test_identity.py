"""Identity, end and ancestors of real processes."""

import os
import signal
import threading
import time

import pytest

from tests.support.fake_proc import ID, OTHER_ID, put, stat_line
from tests.support.workload_processes import (
    SLEEPS,
    Path,
    as_user,
    end,
    in_fresh_process,
    in_namespace,
    needs_root,
    processes,
    start,
    wait_until,
)
from webhook.core.enforcement.model import Process

NAMES_ITSELF = "import sys; open('/proc/self/comm', 'w').write(sys.argv[1]); " + SLEEPS
ENDS_ITS_MAIN_THREAD = """
import ctypes, platform, threading, time
threading.Thread(target=time.sleep, args=(120,)).start()
print('ready', flush=True)
ctypes.CDLL(None).syscall({'x86_64': 60}.get(platform.machine(), 93), 0)
"""


def test_a_process_is_its_pid_its_start_time_and_its_command():
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    child = start(SLEEPS, "--epochs", "3")
    after = time.clock_gettime(time.CLOCK_BOOTTIME)
    found = processes.identify(child.pid)
    assert found.pid == child.pid
    ticks = os.sysconf("SC_CLK_TCK")
    assert before * ticks - 1 <= found.started <= after * ticks + 1
    assert found.command.endswith("--epochs 3")
    assert found == processes.identify(child.pid)
    assert not processes.is_gone(found)


@pytest.mark.parametrize("name", ["a b", "a) S 1 1", "((x", ") Z 1", "a\nTgid:\t1", "a\rTgid:\t1"])
def test_no_name_that_a_process_gives_itself_changes_what_is_read(name):
    child = start(NAMES_ITSELF, name)
    plain = start(SLEEPS)
    found = processes.identify(child.pid)
    assert 0 <= processes.identify(plain.pid).started - found.started < 1000
    assert processes.ancestors(child.pid)[0] == os.getpid()
    assert not processes.is_gone(found)


def test_a_command_is_printable_and_cut():
    found = processes.identify(start(SLEEPS, "a\nb\x1b[31m\u202e\x85" + "c" * 300).pid)
    assert len(found.command) == 200
    assert found.command.isprintable()


def test_a_process_without_arguments_is_named_by_its_short_name(tmp_path):
    proc = put(tmp_path, 7, cmdline="\0\0", comm="kworker/0:1\n")
    assert processes.identify(7, proc=proc).command == "kworker/0:1"


def test_nobody_is_nobody():
    child = start()
    found = processes.identify(child.pid)
    end(child)
    assert processes.identify(child.pid) is None
    assert processes.is_gone(found)
    assert all(processes.identify(pid) is None for pid in (0, -1, 2**22 + 1, 2**64))


def test_a_zombie_is_gone_for_its_memory_is_free():
    child = start()
    found = processes.identify(child.pid)
    os.kill(child.pid, signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert child.pid in processes.pids()
    assert processes.is_gone(found)
    assert processes.identify(child.pid) is None
    assert processes.stop(found, signal.SIGTERM) is processes.Delivery.GONE


def test_a_process_whose_main_thread_ended_seems_a_zombie_and_is_not_gone():
    child = start(ENDS_ITS_MAIN_THREAD)
    wait_until(lambda: processes._stat(child.pid, "/proc")[0] == "Z")
    found = processes.identify(child.pid)
    assert found is not None
    assert not processes.is_gone(found)
    assert processes.stop(found, signal.SIGKILL) is processes.Delivery.DELIVERED
    assert child.wait(timeout=60) == -signal.SIGKILL
    assert processes.is_gone(found)


def test_a_thread_is_no_process():
    halt = threading.Event()
    thread = threading.Thread(target=halt.wait)
    thread.start()
    try:
        assert Path(f"/proc/{thread.native_id}/stat").exists()  # as the kernel shows it
        assert processes.identify(thread.native_id) is None
        its_stat = processes._stat(thread.native_id, "/proc")
        forged = Process(thread.native_id, int(its_stat[19]))
        assert processes.stop(forged, signal.SIGKILL) is processes.Delivery.GONE
    finally:
        halt.set()
        thread.join()


@pytest.mark.parametrize("malformed", ["", "7 (python) S", stat_line(7, started="never")])
def test_what_proc_does_not_show_is_not_known_to_be_gone(malformed, tmp_path):
    proc = put(tmp_path, 7, stat=malformed)
    known = Process(7, 4711)
    assert not processes.is_gone(known, proc=proc)
    assert processes.identify(7, proc=proc) is None
    assert processes.stop(known, signal.SIGKILL, proc=proc) is processes.Delivery.REJECTED


def test_a_file_that_may_not_be_read_is_not_known_to_be_gone():
    def hidden():
        folder = Path("/tmp") / f"hidden-{os.getpid()}"  # noqa: S108
        folder.mkdir(mode=0o700)
        try:
            known = processes.Process(7, 4711)
            return as_user(1234, lambda: processes.is_gone(known, proc=f"{folder}/x"))
        finally:
            folder.rmdir()

    needs_root()
    assert in_fresh_process(hidden) is False


def test_a_process_that_ends_while_it_is_identified_is_nobody(monkeypatch):
    child = start()
    monkeypatch.setattr(processes, "read_cgroups", lambda *_: end(child) and "")
    assert processes.identify(child.pid) is None


def test_parents_are_listed_from_the_nearest_up():
    code = "import os; child = os.fork(); child or os.execlp('sleep', 'sleep', '120'); "
    parent = start(f"{code}print('ready', flush=True); print(child, flush=True); os.wait()")
    child = int(parent.stdout.readline())
    assert processes.ancestors(child)[:2] == (parent.pid, os.getpid())
    assert processes.ancestors(parent.pid) == (os.getpid(), *processes.ancestors(os.getpid()))
    os.kill(child, signal.SIGKILL)


def test_parents_that_name_each_other_come_to_an_end(tmp_path):
    put(tmp_path, 7, stat=stat_line(7, parent=8))
    proc = put(tmp_path, 8, stat=stat_line(8, parent=7))
    assert processes.ancestors(7, proc=proc) == (8, 7)


def test_only_processes_are_listed(tmp_path):
    for name in ("self", "1x", "0", "\u0661", "sys"):
        (tmp_path / name).mkdir()
    for pid in (100, 20, 3, 11, 4000, 1):
        put(tmp_path, pid)
    assert processes.pids(proc=str(tmp_path)) == (1, 3, 11, 20, 100, 4000)
    assert processes.pids(proc=str(tmp_path / "none")) == ()


def test_what_runs_is_known_by_its_container_and_its_command_is_not_asked_for(tmp_path):
    """Reading the command waits for the process's memory lock, which a driver may hold."""
    put(tmp_path, 7, cgroup=f"0::/../cri-containerd-{ID}.scope")
    put(tmp_path, 8, stat=stat_line(8, state="Z", threads=2, started=5))  # its main thread ended
    put(tmp_path, 9, stat=stat_line(9, state="Z"))
    put(tmp_path, 10, stat=stat_line(10, end=-1))
    put(tmp_path, 11, stat="what")
    put(tmp_path, 12, cgroup=f"1:cpu:/{OTHER_ID}\n0::/\n")
    for name in ("cmdline", "comm"):
        (tmp_path / "7" / name).unlink()
        os.mkfifo(tmp_path / "7" / name)
    found = list(processes.list_processes(proc=str(tmp_path)))
    assert found == [Process(7, 4711), Process(8, 5), Process(12, 4711)]
    assert [item.container for item in found] == [ID, "", OTHER_ID]


def test_in_a_namespace_the_pids_are_the_namespaces_own():
    def probe():
        child = start()
        found = processes.identify(child.pid)
        return [processes.pids(), child.pid, found.pid, processes.ancestors(child.pid), os.getpid()]

    pids, child, found, parents, me = in_namespace(probe)
    assert pids == [1, me, child]
    assert found == child
    assert parents == [me, 1]


def test_a_thread_in_proc_is_recognized_by_having_no_signal_for_its_end(tmp_path):
    proc = put(tmp_path, 7, stat=stat_line(7, end=-1))
    assert processes.identify(7, proc=proc) is None


def test_who_has_many_groups_costs_no_more_than_others_and_hides_nothing():
    """65,536 groups take 700 KB in the middle of `status`."""
    child = as_child_with_groups(65536)
    try:
        assert len(processes.read_file(f"/proc/{child}/status")) == 65536
        assert processes.read_status(child, "/proc")["NSpid"].split()[0] == str(child)
        assert processes.identify(child).pid == child
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_what_a_tenant_can_blow_up_is_not_read_to_identify_anybody(tmp_path):
    proc = put(tmp_path, 7)
    (tmp_path / "7" / "status").unlink()
    assert processes.identify(7, proc=proc) == Process(7, 4711)


def as_child_with_groups(count):
    needs_root()
    ready, tell = os.pipe()
    if not (child := os.fork()):
        os.setgroups(range(2**32 - 2 - count, 2**32 - 2))
        os.write(tell, b".")
        while True:
            signal.pause()
    os.read(ready, 1)
    os.close(ready)
    os.close(tell)
    return child
