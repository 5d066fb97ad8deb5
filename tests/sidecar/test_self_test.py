"""The enforcer's self-test before any workload starts: each check, and the result."""

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sidecar.parts import ID, ScriptedNvml, put, put_self, stat_line, status_lines
from webhook.sidecar.self_test import Ability, SelfCheck, SelfTest, self_test

CHECKS = ["kernel", "process-namespace", "shared-processes", "permission", "library"]
WITH_LIBRARY = [*CHECKS, "driver", "gpus"]
CODES = [1, 2, 3, 4, 6, 7, 9, 10, 12, 13, 15, 16, 18, 25, 28, 999]
RIGHTS = {
    "root with KILL": {"uids": "0\t0\t0\t0", "capabilities": "20"},
    "user 1000": {"uids": "1000\t1000\t1000\t1000", "capabilities": "0"},
}
LINUX = "Linux version 6.8.0-45-generic (buildd@lcy02) (gcc-13) #45-Ubuntu SMP\n"


class Pod:
    """The /proc of a pod whose pause process already exists, and a working GPU."""

    def __init__(self, folder):
        self.proc = folder
        self.nvml = ScriptedNvml(a={})
        (folder / "version").write_text(LINUX, encoding="ascii")
        put_self(folder, stat=stat_line(os.getpid(), parent=0))
        put(folder, 1, comm="pause\n", cgroup=f"0::/../cri-containerd-{ID}.scope")

    def is_us(self, **files):
        put(self.proc, os.getpid(), **{"stat": stat_line(os.getpid(), parent=0)} | files)

    def has(self, rights, **files):
        """Set our capabilities, or make them unreadable."""
        status = status_lines(os.getpid(), **RIGHTS[rights]) if rights in RIGHTS else "Name:\tx\n"
        self.is_us(**{"status": status} | files)

    def runs(self, pid, *, user=0, **files):
        put(self.proc, pid, status=status_lines(pid, uids="\t".join([str(user)] * 4)), **files)

    def self_test(self, **settings):
        return self_test(self.nvml, proc=str(self.proc), **settings)

    def has_kernel(self, banner):
        (self.proc / "version").unlink()
        if banner:
            (self.proc / "version").write_text(banner, encoding="ascii")

    def has_namespace(self, name):
        (self.proc / "self" / "ns" / "pid").unlink()
        (self.proc / "self" / "ns" / "pid").symlink_to(name)

    def has_proc_of(self, pid):
        """Show another process as ourselves in /proc, or none."""
        (self.proc / "self").unlink()
        if pid:
            self.runs(pid)
            (self.proc / str(pid) / "ns").mkdir()
            (self.proc / str(pid) / "ns" / "pid").symlink_to("pid:[4026532198]")
            (self.proc / "self").symlink_to(str(pid))

    def check(self, name):
        (found,) = (check for check in self.self_test().checks if check.name == name)
        return found


@pytest.fixture
def pod(tmp_path):
    return Pod(tmp_path)


def failing(outcome):
    return [check.name for check in outcome.checks if check.passed is False]


def test_where_all_is_well_every_check_holds(pod):
    outcome = pod.self_test()
    assert [(check.name, check.passed) for check in outcome.checks] == [
        (name, True) for name in WITH_LIBRARY
    ]
    assert outcome.ability is Ability.FULL
    assert outcome.why == "Driver 570.86.15 reports processes' memory in a container."
    assert outcome.checks[-1].reason == "Visible: GPU-a (H200)."


def test_every_check_says_a_sentence(pod):
    for code in (None, 9):
        pod.nvml.codes = {"open": code} if code else {}
        for check in pod.self_test().checks:
            assert check.reason[:1].isupper() or check.reason.startswith("libnvidia-ml")
            assert check.reason.endswith(".")


BLIND = {
    "gVisor": (
        lambda pod: pod.has_kernel("Linux version 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016\n"),
        ("kernel", ""),
    ),
    "WSL": (
        lambda pod: pod.has_kernel(
            "Linux version 5.15.90.1-microsoft-standard-WSL2 (o@b) (gcc) #1 SMP\n"
        ),
        ("kernel", ""),
    ),
    "the node's PID namespace": (
        lambda pod: pod.has_namespace("pid:[4026531836]"),
        ("process-namespace", "hostPID"),
    ),
    "a proc of another": (lambda pod: pod.has_proc_of(4711), ("process-namespace", "")),
    "a proc without us": (lambda pod: pod.has_proc_of(None), ("process-namespace", "")),
    "no GPU": (
        lambda pod: pod.nvml.listed.clear(),
        ("gpus", "The driver shows no GPU to this container."),
    ),
    "MIG mode": (
        lambda pod: setattr(pod.nvml, "mig", True),
        ("gpus", "GPU GPU-a is in MIG mode"),
    ),
} | {
    f"driver {version}": (lambda pod, of=version: setattr(pod.nvml, "version", of), ("driver", why))
    for version, why in {
        "535.54.03": "Driver 535.54.03 is too old for a sidecar; 570 or newer is needed.",
        "565.77": "is too old", "": "cannot be read", "newest": "cannot be read",
    }.items()
} | {
    f"{method} {code}": (
        lambda pod, method=method, code=code: pod.nvml.codes.update({method: code}),
        ("library" if method in ("open", "driver_version") else "gpus", f"returned {code})."),
    )
    for method in ("open", "driver_version", "devices", "device_used_bytes", "processes")
    for code in CODES
}  # fmt: skip
"""Causes of blindness: the check that fails, and part of its reason."""


@pytest.mark.parametrize(("change", "want"), BLIND.values(), ids=BLIND)
def test_what_cannot_be_measured_makes_it_blind(change, want, pod):
    change(pod)
    outcome = pod.self_test()
    check, why = want
    assert failing(outcome) == [check]
    assert outcome.ability is Ability.BLIND
    assert why in outcome.why
    after = [] if check == "library" else WITH_LIBRARY[len(CHECKS) :]
    assert [check.name for check in outcome.checks] == [*CHECKS, *after]


def test_a_kernel_without_a_banner_is_unknown_and_makes_it_no_blinder(pod):
    pod.has_kernel(None)
    assert (pod.check("kernel").passed, pod.self_test().ability) == (None, Ability.FULL)


def test_being_alone_as_the_first_process_makes_it_blind(pod, monkeypatch):
    (pod.proc / "self").unlink()
    monkeypatch.setattr(os, "getpid", lambda: 1)
    put_self(pod.proc, stat=stat_line(1, parent=0))
    outcome = pod.self_test()
    assert failing(outcome) == ["shared-processes"]
    assert outcome.ability is Ability.BLIND
    assert "our container's alone" in outcome.why


@pytest.mark.parametrize("first", ["0::/", f"0::/../cri-containerd-{ID}.scope"])
def test_what_only_cgroups_say_of_a_shared_namespace_keeps_no_workload_from_starting(first, pod):
    pod.is_us(stat=stat_line(os.getpid(), parent=1), cgroup=first)
    pod.runs(1, cgroup=first)
    assert pod.check("shared-processes").passed is None
    assert pod.self_test().ability is Ability.FULL


@pytest.mark.parametrize(
    ("ours", "theirs", "holds", "ability"),
    [
        ("root with KILL", 1234, True, Ability.FULL),
        ("user 1000", 1000, None, Ability.FULL),
        ("user 1000", 1234, False, Ability.OBSERVE),
        ("user 1000", 0, False, Ability.OBSERVE),
        ("user 1000", None, None, Ability.FULL),
        ("root with KILL", None, True, Ability.FULL),
        ("who knows", None, None, Ability.FULL),
        ("who knows", 1234, None, Ability.FULL),
    ],
)
def test_a_process_that_our_signals_do_not_reach_leaves_us_observing(
    ours, theirs, holds, ability, pod
):
    pod.has(ours)
    if theirs is not None:
        pod.runs(9, user=theirs)
    assert pod.check("permission").passed is holds
    assert pod.self_test().ability is ability


def test_one_process_out_of_reach_among_others_is_enough(pod):
    pod.has("user 1000")
    for pid, user in ((8, 1000), (9, 1234), (10, 1000)):
        pod.runs(pid, user=user)
    assert "process 9 is user 1234" in pod.self_test().why


def test_neither_the_first_process_nor_ourselves_nor_parents_are_asked_about(pod):
    pod.has("user 1000", stat=stat_line(os.getpid(), parent=8))
    pod.runs(8, stat=stat_line(8, parent=0))
    pod.runs(1, cgroup=f"0::/../{ID}", stat=stat_line(1, parent=0))
    assert pod.self_test().ability is Ability.FULL


@pytest.mark.parametrize("version", ["570.86.15", "580.65.06", "615.12"])
def test_newer_drivers_work(version, pod):
    pod.nvml.version = version
    assert pod.self_test().ability is Ability.FULL


def test_a_gpu_that_does_not_answer_beside_one_that_does_is_named(pod):
    pod.nvml.listed["GPU-b"] = {}
    pod.nvml.codes = {"devices GPU-b": 15}
    assert pod.self_test().ability is Ability.FULL
    said = pod.check("gpus").reason
    assert said.startswith("Visible: GPU-a (H200). Not answering: GPU-b: ")


@given(st.dictionaries(st.sampled_from(WITH_LIBRARY), st.sampled_from([True, False, None])))
def test_what_follows_from_the_checks(holds):
    outcome = SelfTest(
        tuple(SelfCheck(name, fact, f"About {name}.") for name, fact in holds.items())
    )
    failed = {name for name, fact in holds.items() if fact is False}
    if failed == {"permission"}:
        assert outcome.ability is Ability.OBSERVE
    else:
        assert outcome.ability is (Ability.BLIND if failed else Ability.FULL)
    for name in failed:
        assert f"About {name}." in outcome.why
    assert json.loads(json.dumps(outcome.values())) == {
        "ability": outcome.ability.value,
        "checks": {
            name: {"holds": fact, "reason": f"About {name}."} for name, fact in holds.items()
        },
    }
