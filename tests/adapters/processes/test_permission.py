"""The check of the permission to signal agrees with the kernel."""

import os

import pytest

from tests.support.fake_proc import put, put_self, stat_line, status_lines
from tests.support.workload_processes import (
    SLEEPS,
    as_user,
    end,
    host_environment,
    in_fresh_process,
    needs_root,
    processes,
    signal,
    start,
)
from webhook.core.enforcement.model import Process

TARGET = Process(7, 4711)
SELINUX = "system_u:system_r:container_t:s0:"
SIGNAL_ANYONE = "0000000000000020"
NOTHING = "0000000000000000"


def test_the_judgement_agrees_with_what_the_kernel_does():
    """The target's saved user counts, and its effective user does not."""

    def compare():
        rows = [
            (1234, 1234, ()), (1234, 1235, ()), (1234, 0, (5,)), (1234, 0, ()), (0, 0, ()),
            (0, 1234, ()), (1234, 0, (0, 1, 2, 3, 4, 6)), (1234, 1235, (5,)),
            ("1234, 0, 1235", 1234, ()), ("1235, 0, 1234", 1234, ()),
            ("1235, 1234, 1235", 1234, ()),
        ]  # fmt: skip
        outcomes = []
        for target, sender, capabilities in rows:
            users = target if isinstance(target, str) else f"{target}, {target}, {target}"
            child = start(f"import os; os.setresuid({users}); {SLEEPS}")
            found = processes.identify(child.pid)

            def judge(found=found):
                before = host_environment.check_permission(found).holds
                return [before, processes.stop(found, signal.SIGTERM).name]

            outcomes.append(as_user(sender, judge, capabilities=capabilities))
            end(child)
        return outcomes

    needs_root()
    no, yes = [False, "REJECTED"], [True, "DELIVERED"]
    assert in_fresh_process(compare) == [yes, no, yes, no, yes, no, no, yes, yes, yes, no]


@pytest.mark.parametrize(
    ("ours", "theirs", "holds"),
    [
        ("cri-containerd.apparmor.d (enforce)\n", "cri-containerd.apparmor.d (enforce)\n", True),
        ("cri-containerd.apparmor.d (enforce)\n", "unconfined\n", None),
        ("unconfined\n", "localhost/strict (enforce)\n", None),
        ("cri-containerd.apparmor.d (enforce)\n", None, None),
        (None, "cri-containerd.apparmor.d (enforce)\n", None),
        (None, None, True),
        (f"{SELINUX}c1,c2\0", f"{SELINUX}c1,c2", True),
        (f"{SELINUX}c1,c2", f"{SELINUX}c3,c4", None),
    ],
)
def test_another_security_label_makes_it_unknown(ours, theirs, holds, tmp_path):
    put_self(tmp_path, **({} if ours is None else {"attr__current": ours}))
    proc = put(tmp_path, 7, **({} if theirs is None else {"attr__current": theirs}))
    fact = host_environment.check_permission(TARGET, proc=proc)
    assert fact.holds is holds
    assert (holds is None) == ("security label is" in fact.reason)


def test_a_label_that_stays_hidden_makes_it_unknown(tmp_path):
    put_self(tmp_path)
    proc = put(tmp_path, 7)
    for hidden in ("7", "self"):  # EISDIR instead of EACCES, since root may read everything
        (tmp_path / hidden / "attr" / "current").mkdir(parents=True)
        assert host_environment.check_permission(TARGET, proc=proc).holds is None


def test_a_user_that_differs_is_no_whatever_the_labels(tmp_path):
    put_self(tmp_path, status=status_lines(os.getpid(), uids="5\t5\t5\t5", capabilities=NOTHING))
    proc = put(tmp_path, 7, attr__current="unconfined\n")
    fact = host_environment.check_permission(TARGET, proc=proc)
    assert fact.holds is False
    assert fact.reason.startswith("We are user 5 without CAP_KILL and process 7 is user 0; run the")


@pytest.mark.parametrize(
    ("ours", "capabilities", "theirs", "holds"),
    [
        ("5 6 7 7", NOTHING, "5 0 0 0", True),
        ("5 6 7 7", NOTHING, "6 0 0 0", True),
        ("5 6 7 7", NOTHING, "0 0 6 0", True),
        ("5 6 7 7", NOTHING, "7 7 7 7", False),
        ("5 6 7 7", NOTHING, "0 5 0 5", False),
        ("5 6 7 7", SIGNAL_ANYONE, "0 0 0 0", True),
        ("0 0 0 0", "ffffffffffffffdf", "1 1 1 1", False),
        ("0 0 0 0", "000001ffffffffff", "1 1 1 1", True),
    ],
)
def test_users_count_as_kill_2_says(ours, capabilities, theirs, holds, tmp_path):
    put_self(tmp_path, status=status_lines(os.getpid(), uids=ours, capabilities=capabilities))
    proc = put(tmp_path, 7, status=status_lines(7, uids=theirs))
    assert host_environment.check_permission(TARGET, proc=proc).holds is holds


@pytest.mark.parametrize(
    "files",
    [
        {"stat": stat_line(7, started=4712)}, {"stat": stat_line(7, state="Z")}, {"stat": ""},
        {"status": "Tgid:\t7\nUid:\t0\n"}, {"status": "Tgid:\t7\n"}, {"status": ""},
    ],
)  # fmt: skip
def test_who_is_gone_or_cannot_be_read_is_unknown(files, tmp_path):
    put_self(tmp_path)
    fact = host_environment.check_permission(TARGET, proc=put(tmp_path, 7, **files))
    assert fact.holds is None
    assert "gone" in fact.reason or "cannot be read" in fact.reason


def test_who_ended_long_ago_is_said_to_be_gone(tmp_path):
    fact = host_environment.check_permission(TARGET, proc=put_self(tmp_path))
    assert fact == host_environment.Fact(None, "Process 7 is gone.")


def test_without_our_own_capabilities_it_is_unknown(tmp_path):
    put_self(tmp_path, status="Tgid:\t1\nUid:\t0\t0\t0\t0\nCapEff:\tnone\n")
    assert host_environment.check_permission(TARGET, proc=put(tmp_path, 7)).holds is None
    assert host_environment.check_permission(TARGET, proc=str(tmp_path / "none")).holds is None
