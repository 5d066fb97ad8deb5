"""No content of /proc makes a function fail unexpectedly."""

import os
import signal
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.fake_proc import ID, put, put_self, stat_line, status_lines
from tests.support.workload_processes import host_environment, processes
from webhook.core.enforcement.model import Process

PID = 2**22 + 7  # larger than any PID of Linux, so no real process has it
KNOWN = Process(PID, 4711)
NUMBERS = st.integers() | st.sampled_from([0, 1, -1, PID, 2**63, 10**5000])


def _digits(number):
    return "9" * 5000 if number == 10**5000 else str(number)


STATS = st.builds(
    lambda name, state, numbers: f"{PID} ({name}) {state} ".encode() + " ".join(numbers).encode(),
    st.text(st.characters(exclude_categories=["Cs"])),
    st.sampled_from("RSDZTtXxKWPI") | st.just(""),
    st.lists(NUMBERS.map(_digits) | st.sampled_from(["", "x", "\u0661", "-"]), max_size=60),
)
STATUSES = st.lists(
    st.builds(
        lambda name, value: f"{name}:\t{value}",
        st.sampled_from(["Name", "Tgid", "Uid", "CapEff", "State", ""]),
        st.just(str(PID)) | st.text(string.hexdigits + "\t -+_x") | NUMBERS.map(_digits),
    )
).map(lambda lines: "\n".join(lines).encode())
ANYTHING = {
    "stat": st.binary() | STATS | st.just(stat_line(PID).encode()),
    "status": st.binary() | STATUSES | st.just(status_lines(PID).encode()),
    "cmdline": st.binary(max_size=900),
    "comm": st.binary(),
    "cgroup": st.binary() | st.text(f"/:.-{ID}scope").map(str.encode),
    "attr__current": st.binary(),
}


@pytest.fixture(scope="module")
def proc(tmp_path_factory):
    return tmp_path_factory.mktemp("proc")


@given(files=st.fixed_dictionaries(ANYTHING))
def test_any_bytes_in_proc_give_an_answer_and_never_an_exception(files, proc):
    folder = put(proc, PID, **files)
    found = processes.identify(PID, proc=folder)
    if found is not None:
        assert found.pid == PID
        assert len(found.command) <= 200
        assert found.command.isprintable()
        assert found.container == "" or len(found.container) == 64
    assert processes.is_gone(KNOWN, proc=folder) in (True, False)
    assert isinstance(processes.ancestors(PID, proc=folder), tuple)
    assert host_environment.check_permission(KNOWN, proc=folder).holds in (True, False, None)
    assert processes.stop(KNOWN, signal.SIGCONT, proc=folder) is not processes.Delivery.DELIVERED


@given(ours=st.fixed_dictionaries(ANYTHING), first=ANYTHING["cgroup"], banner=st.binary())
def test_any_bytes_about_ourselves_give_an_answer(ours, first, banner, tmp_path_factory):
    proc = tmp_path_factory.mktemp("proc")
    put_self(proc, **ours)
    put(proc, PID)
    put(proc, 1, cgroup=first)
    (proc / "version").write_bytes(banner)
    for fact in (
        host_environment.check_permission(KNOWN, proc=str(proc)),
        host_environment.check_pid_namespace(proc=str(proc)),
        host_environment.check_shared_process_namespace(proc=str(proc)),
        host_environment.check_kernel(proc=str(proc)),
    ):
        assert fact.holds in (True, False, None)
        assert fact.reason.endswith(".")
        assert fact.reason.isprintable()


@given(name=st.text(st.characters(exclude_categories=["Cs"])))
def test_no_name_moves_the_fields_after_it(name, proc):
    folder = put(proc, PID, stat=stat_line(PID, name=name, started=815, parent=12))
    assert processes.identify(PID, proc=folder).started == 815
    assert processes.ancestors(PID, proc=folder)[:1] == (12,)


@pytest.mark.parametrize("kind", ["folder", "dangling", "loop", "large"])
def test_files_that_are_no_files_give_an_answer(kind, tmp_path):
    for name in ("stat", "status", "cmdline", "cgroup"):
        proc = put(tmp_path / name, PID)
        file = tmp_path / name / str(PID) / name
        file.unlink()
        if kind == "folder":
            file.mkdir()
        elif kind == "large":
            file.write_bytes(b"x" * 1_000_000)
            assert len(processes.read_file(str(file))) < 100_000
        else:
            file.symlink_to("nowhere" if kind == "dangling" else file)
        found = processes.identify(PID, proc=proc)
        assert found is None or len(found.command) <= 200
        assert host_environment.check_permission(KNOWN, proc=proc).holds is None
        assert os.listdir(proc) == [str(PID)]  # noqa: PTH208
