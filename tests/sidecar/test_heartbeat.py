"""Results of the kubelet's probes for each heartbeat."""

import contextlib
import os
import re
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.sidecar.parts import wait_until
from tests.sidecar.probes import (
    GUARDING,
    NOT_YET,
    SCRIPT,
    Clock,
    a_beat,
    a_proc,
    asked,
    slept,
    uptime,
    why,
    with_sleep,
)
from webhook.adapters import processes
from webhook.names import ENFORCER_RUN_PATH
from webhook.sidecar.heartbeat import Heartbeat, write_failure, write_waiting

BEATS = "from webhook.sidecar.heartbeat import Heartbeat; Heartbeat(sys.argv[1]).beat(); "


@contextlib.contextmanager
def running(code, *arguments):
    """Run code in another process, from its first line of output to the end of the block."""
    code = f"import os, signal, sys, time, pathlib; {code}"
    command = [sys.executable, "-c", code, *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.first_line = process.stdout.readline().decode().strip()
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("kind", ["startup", "liveness"])
def test_both_probes_fail_before_the_first_beat_and_pass_after_it(kind, shell, tmp_path):
    heart = Heartbeat(str(tmp_path))
    assert asked(tmp_path, kind, shell=shell) == (1, f"{NOT_YET}\n")
    heart.beat()
    assert asked(tmp_path, kind, shell=shell) == GUARDING


def test_a_folder_that_is_not_there_has_no_beat_either(shell, tmp_path):
    assert asked(tmp_path / "none", "startup", 60, shell=shell) == (1, f"{NOT_YET}\n")
    with pytest.raises(FileNotFoundError):
        Heartbeat(str(tmp_path / "none")).beat()


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\n", b"1 2\n", b"1 2 3 4\n", b"1 2 3 999999999\n", b"1 2 now\n", b"1 2 -4\n",
        b"1 2 03\n", b"1 2 1e9\n", b"1 2 a[$(id)]\n", b"1 2 `id`\n", b"../1 2 3\n", b"* * *\n",
        b"1 2 99999999999999999999\n", b"\xff\xfe 2 3\n", b"\0" * 9, "a folder",
    ],
)  # fmt: skip
def test_a_malformed_heartbeat_fails_the_probe_with_the_reason(content, shell, tmp_path):
    if isinstance(content, bytes):
        (tmp_path / "heartbeat").write_bytes(content)
    else:
        (tmp_path / "heartbeat").mkdir()
    assert why(tmp_path, shell=shell) == f"the heartbeat in {tmp_path} cannot be read"


def test_where_there_is_no_clock_no_heartbeat_is_believed(shell, tmp_path):
    a_beat(tmp_path)
    assert "cannot be read" in why(tmp_path, proc=tmp_path / "none", shell=shell)


def test_a_beat_that_is_older_than_it_may_get_is_stale(shell, tmp_path):
    a_beat(tmp_path, ago_s=100)
    stale = r"the last observation was 1[0-9][0-9] s ago, more than 15: stuck or stopped"
    assert re.fullmatch(stale, why(tmp_path, shell=shell, interval=""))
    assert why(tmp_path, shell=shell, interval="60s") == ""


@pytest.mark.parametrize(
    ("interval", "limit_s"),
    [
        *[("", 15), ("100ms", 15), ("1s", 15), ("5s", 15), ("5000ms", 15)],
        *[("5.1s", 15.3), ("20s", 60), ("10.0625s", 30.18), ("00020s", 60), ("0.5m", 90)],
        *[("1m", 180), ("60s", 180), ("59s999ms", 179.99), ("20", 60), ("8.05", 24.15)],
        *[("1h", 180), ("9999999999999999h", 15), ("60000h60000h", 180)],  # beyond the maximum
        *[("1d", 15), ("s", 15), ("-60s", 15), (" 60s", 15), ("1.2.3m", 15), ("1msm", 15)],
        *[("a[$(id)]", 15), ("60s" + "0" * 40, 15), (".", 15), ("1..s", 15), ("60sm", 15)],
    ],
)
def test_a_beat_may_get_as_old_as_three_intervals_and_fifteen_seconds_at_least(
    interval, limit_s, shell, tmp_path
):
    """The age is in whole hundredths of a second."""
    limit = round(limit_s * 100)
    clock = Clock(tmp_path)
    for age, passes in ((limit, True), (limit + 1, False)):
        clock.set_s((uptime() + age) / 100)
        a_beat(tmp_path, now=round(clock.now_s * 100) - age)
        found = why(tmp_path, proc=tmp_path, shell=shell, interval=interval)
        assert (found == "") is passes, (age, found)


@pytest.mark.parametrize(
    ("clock", "hundredths"),
    [("0.05", "5"), ("0.10", "10"), ("1.08", "108"), ("8.09", "809"), ("9999999.99", "999999999")],
)
def test_times_are_told_as_the_kernel_does(clock, hundredths, shell, tmp_path):
    a_proc(tmp_path, uptime=f"{clock} 3.00\n")
    Heartbeat(str(tmp_path), proc=str(tmp_path)).beat()
    assert (tmp_path / "heartbeat").read_text(encoding="ascii").split()[2] == hundredths
    assert asked(tmp_path, proc=tmp_path, shell=shell) == GUARDING
    assert (tmp_path / "passed").read_text(encoding="ascii") == f"{hundredths}\n"


@pytest.mark.parametrize("is_over", [True, False], ids=["over", "another has its number"])
def test_a_process_that_guarded_and_is_over_is_not_believed(is_over, shell, tmp_path):
    over = subprocess.Popen(["true"])
    over.wait()
    pid = over.pid if is_over else os.getpid()
    a_beat(tmp_path, pid=pid, started=processes.identify(os.getpid()).started - 1)
    assert why(tmp_path, shell=shell) == (
        f"process {pid}, which guarded, is over; no other has taken its place yet"
    )


def test_the_beat_of_a_previous_container_counts_until_nobody(tmp_path):
    with running(f"{BEATS}print(flush=True); input()", tmp_path):
        assert asked(tmp_path) == GUARDING
    before = why(tmp_path)
    assert before.endswith("is over; no other has taken its place yet")
    ours = Heartbeat(str(tmp_path))
    assert why(tmp_path) == before
    ours.beat()
    assert why(tmp_path) == ""


def test_a_beat_replaces_the_one_before_in_one_step(tmp_path):
    heart = Heartbeat(str(tmp_path))
    heart.beat()
    first = (tmp_path / "heartbeat").open(encoding="ascii")
    with first:
        heart.beat()
        assert len(first.read().split()) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["heartbeat"]


@pytest.mark.parametrize("name", ["a) (b 1 2", ") S 1 1 1 1 1 1", "* ? ~ $(id)", "\\n a\\"])
def test_the_start_time_is_told_as_everywhere_else_whatever_the_name(name, shell, tmp_path):
    code = f"pathlib.Path('/proc/self/comm').write_text(sys.argv[2]); {BEATS}"
    code += "from webhook.adapters import processes; "
    code += "print(processes.identify(os.getpid()).started, flush=True); input()"
    with running(code, tmp_path, name) as guard:
        assert asked(tmp_path, shell=shell) == GUARDING
    assert (tmp_path / "heartbeat").read_text(encoding="ascii").split()[1] == guard.first_line


def test_a_name_of_two_lines_is_nobody_who_guards(tmp_path):
    """The kernel does not escape a line break in `stat`: the fields are on the next line."""
    code = "pathlib.Path('/proc/self/comm').write_text('a\\nb'); print(flush=True); input()"
    with running(code) as other:
        a_beat(tmp_path, pid=other.pid, started=processes.identify(other.pid).started)
        assert "is over" in why(tmp_path)


@given(st.binary(max_size=60) | st.lists(st.floats().map(str), max_size=5).map(" ".join))
@example(b"1 2 3\n")
@example("1 a[$(kill -9 $PPID)] 3\n")
def test_whatever_is_in_the_file_a_probe_answers_and_believes_nobody_else(
    tmp_path_factory, content
):
    folder = tmp_path_factory.getbasetemp()
    content = content if isinstance(content, bytes) else content.encode()
    Path(folder, "heartbeat").write_bytes(content)
    assert why(folder)


@pytest.mark.parametrize(
    "arguments", [[], ["readiness"], ["startup", "soon"], ["startup", "-1"], ["liveness", "1.5"]]
)
def test_wrong_usage_is_told(arguments, shell):
    ended = subprocess.run([*shell, SCRIPT, *arguments], capture_output=True, check=False)
    assert ended.returncode == 2
    assert ended.stdout.startswith(b"usage: ")


def test_the_folder_is_the_one_that_is_mounted():
    assert f"run=${{3:-{ENFORCER_RUN_PATH}}}" in SCRIPT.read_text(encoding="utf-8")


class Waiting:
    """A startup probe that waits."""

    def __init__(self, folder, shell=("sh",), script=SCRIPT, seconds=600):
        command = [*shell, script, "startup", str(seconds), folder]
        self.program = subprocess.Popen(command, stdout=subprocess.PIPE, env={})
        wait_until((folder / "bell").exists)

    def end(self):
        said, _ = self.program.communicate(timeout=60)
        return self.program.returncode, said.decode()


@pytest.mark.parametrize(
    ("leave", "code", "then"),
    [
        (lambda folder: Heartbeat(folder).beat(), 0, "guarding"),
        (lambda folder: write_failure(folder, "no driver"), 1, "the self-test failed: no driver"),
    ],
    ids=["passes once the enforcer beats", "fails once the self-test has"],
)
def test_a_probe_that_waits_says_what_came(leave, code, then, shell, tmp_path):
    waiting = Waiting(tmp_path, shell)
    leave(str(tmp_path))
    assert waiting.end() == (code, f"{NOT_YET}; then: {then}\n")


def test_no_ring_is_missed_whenever_it_comes(tmp_path):
    """Write a heartbeat at any moment of a probe's start. If missed, the probe waits a minute."""
    for number in range(60):
        folder = tmp_path / str(number)
        folder.mkdir()
        beat = threading.Timer(number / 10_000, Heartbeat(str(folder)).beat)
        beat.start()
        code, said = asked(folder, "startup", 50)
        beat.join()
        assert (code, said.rpartition("; then: ")[2]) == GUARDING


def test_a_probe_that_waits_reports_the_latest_reason_of_a_guard_that_waits(shell, tmp_path):
    os.mkfifo(tmp_path / "time")
    waiting = Waiting(tmp_path, shell, with_sleep(tmp_path, f"read -r _ <{tmp_path}/time"))
    for reason in ("the limiter is away", "the driver has no limit for this pod"):
        write_waiting(str(tmp_path), reason)
    (tmp_path / "time").write_text("is up\n", encoding="ascii")
    assert waiting.end() == (1, f"{NOT_YET}; then: the driver has no limit for this pod\n")
    assert slept(tmp_path) == ["600"]


def test_a_long_reason_for_waiting_is_cut_so_that_a_probe_may_report_two(tmp_path):
    write_waiting(str(tmp_path), "no limit\n\x1b[31m" + "é" * 5000)
    said = why(tmp_path)
    assert said.startswith("no limit [31mé")
    assert len(said.encode()) <= 480


def test_at_the_end_of_its_wait_a_probe_scans_again(tmp_path):
    os.mkfifo(tmp_path / "time")
    script = with_sleep(tmp_path, f"read -r _ <{tmp_path}/time")
    code = "from webhook.sidecar.heartbeat import write_waiting; "
    code += "write_waiting(sys.argv[1], 'no limit'); print(flush=True); input()"
    with running(code, tmp_path):
        waiting = Waiting(tmp_path, script=script)
        wait_until(lambda: slept(tmp_path) and state(waiting.program.pid) == "S")
    (tmp_path / "time").write_text("is up\n", encoding="ascii")
    assert waiting.end() == (1, f"no limit; then: {NOT_YET}\n")


def test_a_probe_that_has_waited_leaves_no_program_behind(shell, tmp_path):
    seconds = 1_000_000 + os.getpid()  # unique to this process
    waiting = Waiting(tmp_path, shell, seconds=seconds)

    def sleeping():
        command = ["pgrep", "-f", f"^sleep {seconds}$"]
        return subprocess.run(command, capture_output=True, check=False).stdout

    wait_until(sleeping)
    Heartbeat(str(tmp_path)).beat()
    assert waiting.end()[0] == 0
    wait_until(lambda: not sleeping())


def test_a_probe_that_can_make_no_pipe_does_not_wait(shell, tmp_path):
    (tmp_path / "bell").write_text("", encoding="ascii")
    assert asked(tmp_path, "startup", 600, shell=shell) == (1, f"{NOT_YET}\n")


# --- files that a tenant with the sidecar's user ID may put into the folder


def a_pipe(path):
    os.mkfifo(path)


def a_link(path):
    path.with_name("elsewhere").write_text("theirs", encoding="ascii")
    path.symlink_to("elsewhere")


def a_device(path):
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("plant", [a_pipe, a_link, Path.touch])
def test_a_beat_neither_waits_for_nor_follows_what_stands_in_its_place(plant, tmp_path):
    for name in ("heartbeat.new", "heartbeat", "bell"):
        plant(tmp_path / name)
    with running(BEATS, tmp_path) as beats:
        assert beats.wait(timeout=60) == 0
    assert len((tmp_path / "heartbeat").read_text(encoding="ascii").split()) == 3
    assert not (tmp_path / "heartbeat").is_symlink()
    if plant is a_link:
        assert (tmp_path / "elsewhere").read_text(encoding="ascii") == "theirs"
    elif plant is Path.touch:
        assert (tmp_path / "bell").read_bytes() == b""


@pytest.mark.parametrize("plant", [a_pipe, a_device])
@pytest.mark.parametrize("name", ["passed", "verdict", "reported"])
def test_an_enforcer_at_work_passes_whatever_stands_in_the_place_of_a_report(
    name, plant, shell, tmp_path
):
    """A blocked probe would restart the sidecar, and no heartbeat replaces these files."""
    a_beat(tmp_path)
    (tmp_path / "passed").write_text(f"{uptime()}\n", encoding="ascii")
    (tmp_path / "verdict").write_text("1 stopping a process\n", encoding="ascii")
    (tmp_path / name).unlink(missing_ok=True)
    plant(tmp_path / name)
    assert asked(tmp_path, shell=shell) == GUARDING


@pytest.mark.parametrize("plant", [a_pipe, a_device])
def test_what_is_no_file_is_not_read(plant, shell, tmp_path):
    for name in ("waiting", "failure"):
        plant(tmp_path / name)
    assert why(tmp_path, shell=shell) == NOT_YET
    plant(tmp_path / "heartbeat")
    assert why(tmp_path, shell=shell) == f"the heartbeat in {tmp_path} cannot be read"


def test_a_probe_may_take_a_second_of_cpu_and_no_more(shell, tmp_path):
    waiting = Waiting(tmp_path, shell)
    assert resource.prlimit(waiting.program.pid, resource.RLIMIT_CPU) == (1, 1)
    Heartbeat(str(tmp_path)).beat()
    waiting.end()


def test_a_probe_that_is_rung_without_end_ends_by_itself(tmp_path):
    waiting = Waiting(tmp_path)
    bell = (tmp_path / "bell").open("wb")
    with bell, subprocess.Popen(["yes"], stdout=bell) as tenant:
        code, _ = waiting.end()
        tenant.kill()
    assert code != 0


def test_nobody_waiting_costs_a_beat_nothing(tmp_path):
    os.mkfifo(tmp_path / "bell")
    Heartbeat(str(tmp_path)).beat()
    assert asked(tmp_path) == GUARDING


# --- the kernel's data about the process that a heartbeat names


@pytest.mark.parametrize("kind", ["startup", "liveness"])
def test_a_process_that_is_stopped_is_found_whatever_its_beat_says(kind, shell, tmp_path):
    with running(f"{BEATS}print(flush=True); input()", tmp_path) as guard:
        pid = guard.pid
        assert asked(tmp_path, kind, shell=shell) == GUARDING
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: state(pid) == "T")
        a_beat(tmp_path, pid=pid, started=processes.identify(pid).started)
        assert asked(tmp_path, kind, shell=shell) == (
            1, f"process {pid}, which guarded, is stopped (state T)\n",
        )  # fmt: skip


@pytest.mark.parametrize(
    ("ours", "theirs", "same"),
    [
        ("0::/\n", "0::/\n", True),
        ("0::/\n", "0::/../cri-containerd-a.scope\n", False),
        ("0::/\n", "0::/inner\n", False),
        ("0::/kubepods/a\n", "0::/kubepods/b\n", False),
        ("1:cpu:/a\n0::/a\n", "1:cpu:/a\n0::/a\n", True),
        ("1:cpu:/a\n0::/a\n", "1:cpu:/b\n0::/a\n", False),
        ("1:cpu:/a\n0::/a\n", "1:cpu:/a\n", False),
        ("0::/\n", "0::/\n0::/../b\n", False),
        ("0::/\n", "", False),
        ("0::/\n", None, False),
        (None, "0::/\n", False),
        (None, None, False),
        ("0::/* \\t\n", "0::/a \\t\n", False),
    ],
)
def test_a_process_of_another_container_is_not_believed(ours, theirs, same, shell, tmp_path):
    me = os.getpid()
    a_proc(tmp_path, self_cgroup=ours, cgroup=theirs)
    a_beat(tmp_path)
    want = f"process {me} is not of this container: the heartbeat in {tmp_path} is not the"
    assert why(tmp_path, proc=tmp_path, shell=shell) == ("" if same else f"{want} enforcer's")


def test_a_process_that_does_not_run_when_it_is_woken_is_found(tmp_path):
    """The process ignores the signal, since the test cannot deprive a process of CPU."""
    code = f"{BEATS}signal.signal(signal.SIGURG, signal.SIG_IGN); print(flush=True); input()"
    with running(code, tmp_path) as guard:
        wait_until(lambda: state(guard.pid) == "S")
        assert asked(tmp_path, script=with_sleep(tmp_path, ":")) == (
            1, f"process {guard.pid}, which guarded, does not run: starved or stopped\n",
        )  # fmt: skip
    assert slept(tmp_path) == ["0.1"] * 50


def state(pid):
    return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").split()[2]


@pytest.mark.parametrize("schedstat", ["0 0 0\n", "", "no\n", None])
def test_where_the_kernel_does_not_count_the_beat_alone_judges(schedstat, shell, tmp_path):
    a_proc(tmp_path, schedstat=schedstat)
    a_beat(tmp_path)
    assert why(tmp_path, proc=tmp_path, shell=shell) == ""


def test_a_probe_wakes_what_waits_in_a_call_and_it_waits_on(tmp_path):
    """The wait is like a call of the driver, which Python does not repeat after a signal."""
    code = f"{BEATS}import ctypes; print(flush=True); read = ctypes.CDLL(None).read; "
    code += "print(read(0, ctypes.create_string_buffer(9), 9), flush=True)"
    with running(code, tmp_path) as guard:
        wait_until(lambda: state(guard.pid) == "S")
        assert [asked(tmp_path) for _ in range(3)] == [GUARDING] * 3
        guard.stdin.write(b"four")
        guard.stdin.close()
        assert guard.stdout.read() == b"4\n"
