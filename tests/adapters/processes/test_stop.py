"""A signal reaches exactly its target process, with pidfds and without."""

import errno
import os
import signal
import subprocess

import pytest

from tests.support.fake_proc import put, put_self, stat_line
from tests.support.workload_processes import (
    ANSWERS_TERM,
    as_user,
    end,
    in_fresh_process,
    in_namespace,
    needs_root,
    processes,
    refusing_pidfds,
    reuse,
    start,
)
from webhook.core.enforcement.model import Process

DELIVERED, GONE = processes.Delivery.DELIVERED, processes.Delivery.GONE
FORKS = """
import os, sys, time
child = os.fork()
if child:
    print(child, file=sys.stderr, flush=True)
    print('ready', flush=True)
time.sleep(120)
"""


def _fails(number):
    def fail(*_):
        raise OSError(number, os.strerror(number))

    return fail


@pytest.fixture(params=["pidfd", "no open", "no send", "ENOSYS", "EPERM", "send EPERM"])
def _means(request, monkeypatch):
    """Disable pidfds in each way in which Python, a kernel or a seccomp profile can lack them."""
    if request.param == "no open":
        monkeypatch.delattr(os, "pidfd_open")
    elif request.param == "no send":
        monkeypatch.delattr(signal, "pidfd_send_signal")
    elif request.param == "send EPERM":
        monkeypatch.setattr(signal, "pidfd_send_signal", _fails(errno.EPERM))
    elif request.param != "pidfd":
        monkeypatch.setattr(os, "pidfd_open", _fails(getattr(errno, request.param)))


@pytest.mark.usefixtures("_means")
def test_a_process_obeys_term_or_dies_of_kill():
    obeys, stays = start(), start(ANSWERS_TERM)
    both = [processes.identify(child.pid) for child in (obeys, stays)]
    assert [processes.stop(found, signal.SIGTERM) for found in both] == [DELIVERED] * 2
    assert (obeys.wait(timeout=60), stays.stdout.readline()) == (-signal.SIGTERM, "SIGTERM\n")
    assert [processes.is_gone(found) for found in both] == [True, False]
    assert processes.stop(both[1], signal.SIGKILL) is DELIVERED
    assert stays.wait(timeout=60) == -signal.SIGKILL


@pytest.mark.usefixtures("_means")
def test_nothing_is_sent_to_whoever_has_another_start_time():
    child = start()
    found = processes.identify(child.pid)
    earlier = Process(found.pid, found.started - 1)
    assert processes.stop(earlier, signal.SIGKILL) is GONE
    assert child.poll() is None


@pytest.mark.usefixtures("_means")
def test_who_ended_is_gone():
    child = start()
    found = processes.identify(child.pid)
    end(child)
    assert processes.stop(found, signal.SIGTERM) is GONE


@pytest.mark.usefixtures("_means")
def test_pid_1_ourselves_and_our_parents_are_never_signalled():
    for pid in (
        1,
        0,
        -1,
        -os.getpid(),
        os.getpid(),
        os.getppid(),
        *processes.ancestors(os.getpid()),
    ):
        known = processes.identify(pid) or Process(pid, 0)
        with pytest.raises(ValueError, match="never be signalled"):
            processes.stop(known, signal.SIGCONT)


def test_our_parent_is_never_signalled_though_proc_does_not_answer(tmp_path):
    with pytest.raises(ValueError, match="never be signalled"):
        processes.stop(Process(os.getppid(), 4711), signal.SIGCONT, proc=str(tmp_path))


def test_grandparents_are_never_signalled_though_only_proc_names_them(tmp_path):
    put_self(tmp_path, stat=stat_line(os.getpid(), parent=70))
    put(tmp_path, 70, stat=stat_line(70, parent=80))
    proc = put(tmp_path, 80)
    with pytest.raises(ValueError, match="never be signalled"):
        processes.stop(Process(80, 4711), signal.SIGKILL, proc=proc)


def test_no_descriptor_stays_open():
    child = start()
    found = processes.identify(child.pid)
    before = os.listdir("/proc/self/fd")  # noqa: PTH208
    for _ in range(5):
        processes.stop(found, signal.SIGCONT)
        processes.stop(Process(child.pid, 1), signal.SIGCONT)
    assert os.listdir("/proc/self/fd") == before  # noqa: PTH208
    end(child)


def test_only_the_process_that_was_meant_ends_and_not_the_one_it_forked():
    parent = start(FORKS, stderr=subprocess.PIPE)
    forked = processes.identify(int(parent.stderr.readline()))
    found = processes.identify(parent.pid)
    assert processes.stop(found, signal.SIGKILL) is DELIVERED
    assert parent.wait(timeout=60) == -signal.SIGKILL
    assert not processes.is_gone(forked)
    assert processes.stop(forked, signal.SIGKILL) is DELIVERED
    parent.stderr.close()
    end(parent)


@pytest.mark.parametrize(
    "moment", ["before", "without pidfds", "before open", "after open", "before send"]
)
def test_a_pid_that_was_reused_between_sample_and_signal_is_left_alone(moment):
    def reused(moment):
        old, found_new = start(), []
        found = processes.identify(old.pid)

        def racing(real, *, first):
            def called(*arguments):
                result = None if first else real(*arguments)
                found_new.append(reuse(old))
                return real(*arguments) if first else result

            return called

        if moment == "without pidfds":
            del os.pidfd_open
        if moment.endswith("open"):
            os.pidfd_open = racing(os.pidfd_open, first=moment.startswith("before"))
        elif moment == "before send":
            signal.pidfd_send_signal = racing(signal.pidfd_send_signal, first=True)
        else:
            found_new.append(reuse(old))
        outcome = processes.stop(found, signal.SIGKILL).name
        (new,) = found_new
        known = [processes.is_gone(found), processes.identify(new.pid) == found]
        return [outcome, *known, new.poll(), end(new)]

    assert in_namespace(reused, moment) == ["GONE", True, False, None, -9]


def test_what_is_read_of_a_process_never_comes_from_the_next_owner_of_its_pid():
    def reused():
        old, real, all_new = start(), processes.read_cgroups, []

        def reuse_and_read(pid, proc):
            all_new.append(reuse(old))
            return real(pid, proc)

        processes.read_cgroups = reuse_and_read
        found = processes.identify(old.pid)
        return [found, end(all_new[0])]

    assert in_namespace(reused) == [None, -9]


def test_a_seccomp_profile_without_pidfds_stops_the_right_one_still():
    def below_a_filter():
        outcomes = []
        for number in (errno.EPERM, errno.ENOSYS):
            child = start()
            found = processes.identify(child.pid)

            def judge(found=found):
                try:
                    os.pidfd_open(os.getpid())
                except OSError as error:
                    return [error.errno, processes.stop(found, signal.SIGTERM).name]

            outcomes += [*refusing_pidfds(number, judge), child.wait()]
        return outcomes

    expected = [errno.EPERM, "DELIVERED", -15, errno.ENOSYS, "DELIVERED", -15]
    assert in_fresh_process(below_a_filter) == expected


def test_a_denied_signal_is_reported_and_the_process_lives_on():
    def denied():
        child = start("print('ready', flush=True); print(input(), flush=True)", stdin=-1)
        found = processes.identify(child.pid)
        through = as_user(1234, lambda: processes.stop(found, signal.SIGKILL).name)
        del os.pidfd_open
        by_number = as_user(1234, lambda: processes.stop(found, signal.SIGKILL).name)
        said, _ = child.communicate("still here")
        return [through, by_number, said]

    needs_root()
    assert in_fresh_process(denied) == ["REJECTED", "REJECTED", "still here\n"]


def test_the_pod_is_not_ended_from_a_namespace_where_pid_1_is_its_first_process():
    def denied():
        first = processes.identify(1)
        try:
            processes.stop(first, signal.SIGKILL)
        except ValueError:
            return [first.pid, processes.is_gone(first)]

    assert in_namespace(denied) == [1, False]


def test_pid_1_is_never_signalled_even_if_it_is_no_ancestor(monkeypatch):
    monkeypatch.setattr(processes, "ancestors", lambda *_, **__: ())
    with pytest.raises(ValueError, match="PID 1"):
        processes.stop(Process(1, 0), signal.SIGCONT)
