"""Files for the probes: when probes report them, and that this never restarts the sidecar."""

import os
import re
import signal
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sidecar.parts import wait_until
from tests.sidecar.probes import GUARDING, NOT_YET, SCRIPT, Clock, asked
from webhook.adapters import processes
from webhook.core.admission.sidecar.container import _LIVENESS as LIVENESS
from webhook.core.admission.sidecar.container import _STARTUP as STARTUP
from webhook.sidecar import heartbeat, program
from webhook.sidecar.heartbeat import Heartbeat, to_event_text, write_verdict
from webhook.sidecar.journal import EnforcerJournal

PERIOD_S, TIMEOUT_S = LIVENESS["periodSeconds"], LIVENESS["timeoutSeconds"]


@pytest.fixture
def clock(tmp_path_factory):
    return Clock(tmp_path_factory.mktemp("proc"))


def beat(folder, proc="/proc"):
    Heartbeat(str(folder), proc=str(proc)).beat()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def passed(shell, tmp_path):
    """Return a function that runs a probe after one has passed."""
    beat(tmp_path)
    assert asked(tmp_path, shell=shell) == GUARDING
    return lambda: asked(tmp_path, shell=shell)


def test_a_verdict_is_reported_once_after_a_probe_that_passed(shell, tmp_path):
    beat(tmp_path)
    write_verdict(str(tmp_path), "stopping a process: why")
    assert [asked(tmp_path, shell=shell) for _ in range(4)] == [
        GUARDING, (1, "stopping a process: why\n"), GUARDING, GUARDING,
    ]  # fmt: skip
    assert names(tmp_path) == ["heartbeat", "passed", "reported", "verdict"]


def test_a_verdict_that_no_probe_took_is_reported_after_a_restart(tmp_path):
    code = "import sys; from webhook.sidecar.heartbeat import write_verdict; "
    code += "write_verdict(sys.argv[1], 'the pod must restart: why')"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    beat(tmp_path)
    assert [asked(tmp_path) for _ in range(2)] == [GUARDING, (1, "the pod must restart: why\n")]


@pytest.mark.parametrize("verdicts", [["the same"] * 6, list("abcdef")], ids=["same", "others"])
def test_verdict_upon_verdict_makes_every_second_probe_report_the_last(verdicts, tmp_path):
    beat(tmp_path)
    said = []
    for verdict in verdicts:
        write_verdict(str(tmp_path), verdict)
        said.append(asked(tmp_path))
    assert said == [
        (1, f"{verdict}\n") if number % 2 else GUARDING for number, verdict in enumerate(verdicts)
    ]


@pytest.mark.parametrize(
    ("ago_s", "code"), [(0, 1), (39.9, 1), (40, 1), (40.01, 0), (1e6, 0), (-1, 0)]
)
def test_a_pass_of_long_ago_does_not_let_a_probe_report(ago_s, code, shell, tmp_path, clock):
    beat(tmp_path, clock.proc)
    asked(tmp_path, proc=clock.proc, shell=shell)
    write_verdict(str(tmp_path), "why")
    clock.set_s(clock.now_s + ago_s)
    beat(tmp_path, clock.proc)
    assert asked(tmp_path, proc=clock.proc, shell=shell)[0] == code


@pytest.mark.parametrize("text", ["", "nan", "soon", "9" * 5000, "-1", "07", "a[$(id)]", "* *"])
def test_a_pass_that_tells_no_time_does_not_let_a_probe_report(text, shell, tmp_path):
    beat(tmp_path)
    write_verdict(str(tmp_path), "why")
    (tmp_path / "passed").write_text(f"{text}\n", encoding="ascii")
    assert [asked(tmp_path, shell=shell) for _ in range(2)] == [GUARDING, (1, "why\n")]


def test_a_stale_heartbeat_is_what_a_probe_says_and_the_verdict_stays(shell, tmp_path, clock):
    def ask():
        return asked(tmp_path, proc=clock.proc, shell=shell, interval="")

    beat(tmp_path, clock.proc)
    ask()
    write_verdict(str(tmp_path), "why")
    clock.set_s(1020)
    want = (1, "the last observation was 20 s ago, more than 15: stuck or stopped\n")
    assert ask() == want
    beat(tmp_path, clock.proc)
    assert [ask(), ask()] == [GUARDING, (1, "why\n")]


def test_a_startup_probe_reports_no_verdict_and_does_not_count_as_a_pass(tmp_path):
    beat(tmp_path)
    write_verdict(str(tmp_path), "why")
    assert [asked(tmp_path, kind) for kind in ("startup", "startup", "liveness")] == [GUARDING] * 3
    assert asked(tmp_path, "startup") == GUARDING
    assert asked(tmp_path) == (1, "why\n")


@pytest.mark.parametrize("kind", ["a folder", "a link to nowhere"])
@pytest.mark.parametrize("name", ["passed", "reported", "verdict"])
def test_what_cannot_be_noted_is_not_reported_and_fails_no_probe(kind, name, shell, tmp_path):
    beat(tmp_path)
    if kind == "a folder":
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    else:
        (tmp_path / name).symlink_to("/nowhere/at/all")
    asked(tmp_path, shell=shell)
    if name != "verdict" or kind == "a folder":  # writing a verdict replaces a link
        write_verdict(str(tmp_path), "why")
    assert [asked(tmp_path, shell=shell) for _ in range(3)] == [GUARDING] * 3


def test_a_pass_that_cannot_be_taken_away_lets_no_probe_report(shell, tmp_path, clock):
    """The test uses a file that not even root may write, and that contains 655.36 s."""
    (tmp_path / "passed").symlink_to("/proc/sys/kernel/ngroups_max")
    assert (tmp_path / "passed").read_text(encoding="ascii") == "65536\n"
    clock.set_s(656)
    beat(tmp_path, clock.proc)
    write_verdict(str(tmp_path), "why")
    assert [asked(tmp_path, proc=clock.proc, shell=shell) for _ in range(3)] == [GUARDING] * 3


@pytest.mark.parametrize("text", ["", "\n", "7", "7 ", "7 \n", "\0\0\0", " ", "\n7 why\n"])
def test_a_verdict_without_words_is_none(text, passed, tmp_path):
    (tmp_path / "verdict").write_text(text, encoding="ascii")
    assert passed() == GUARDING


@pytest.mark.parametrize(
    "text",
    [
        "$(id) `id` ${HOME} $((1/0))", "* ? [a-z] ~", "%s%n%d %1$s", "-n -e \\c \\x41 \\",
        "'\" ; exit 0 & | > /tmp/x < y", "!! a=b -- #", "\x1b[31m",
    ],
)  # fmt: skip
def test_the_words_of_a_file_are_printed_and_nothing_else(text, passed, tmp_path):
    (tmp_path / "verdict").write_text(f"{text} {text}\nmore\n", encoding="ascii")
    first, _, rest = f"{text} {text}".partition(" ")
    assert first
    assert passed() == (1, f"{rest}\n")


def test_the_words_of_a_large_file_are_cut(shell, tmp_path):
    for name in ("verdict", "failure", "heartbeat", "passed", "reported"):
        (tmp_path / name).write_text("9 " + "x" * 200_000, encoding="ascii")
    code, said = asked(tmp_path, shell=shell)
    assert (code, len(said) < 1100) == (1, True)
    beat(tmp_path)
    asked(tmp_path, shell=shell)
    assert asked(tmp_path, shell=shell) == (1, "x" * 1000 + "\n")


@pytest.mark.parametrize("letter", ["x", "é", "語", "😀"])
@pytest.mark.parametrize("shift", range(4))
def test_a_report_and_the_kubelets_words_fit_an_event_of_each_api(letter, shift, passed, tmp_path):
    write_verdict(str(tmp_path), "." * shift + letter * 5000)
    _, said = passed()
    assert 996 < len(said.strip().encode()) <= 1000
    assert len(f"Liveness probe failed: {said}".encode()) <= 1024
    assert said.endswith(f"{letter}\n")


def test_a_probe_prints_any_letters_in_a_container_without_a_locale(passed, tmp_path):
    write_verdict(str(tmp_path), "process 7\n (語 é\t\x1b[31m \udc80)")
    assert passed() == (1, "process 7 (語 é [31m )\n")


@pytest.mark.parametrize("start", range(0x80, 0x800, 0x180))
def test_every_letter_of_two_bytes_arrives(start, passed, tmp_path):
    """Shells mark their own words by bytes that such characters may contain."""
    letters = "".join(filter(str.isprintable, map(chr, range(start, start + 0x180))))
    write_verdict(str(tmp_path), letters)
    assert passed() == (1, f"{to_event_text(letters)}\n")


@given(st.text(st.characters(), min_size=1, max_size=200).filter(to_event_text))
def test_whatever_a_verdict_says_is_what_a_probe_prints(tmp_path_factory, text):
    folder = tmp_path_factory.mktemp("run")
    beat(folder)
    asked(folder)
    write_verdict(str(folder), text)
    assert asked(folder) == (1, f"{to_event_text(text)}\n")


@given(st.text() | st.text(st.characters(), max_size=3000))
def test_any_text_becomes_one_printable_line_that_is_utf_8(text):
    line = to_event_text(text)
    assert line.isprintable()
    assert line == " ".join(line.split(" "))
    assert len(line.encode()) <= 1000
    assert line == to_event_text(line) or len(line.encode()) > 990


def test_a_verdict_is_left_before_its_event_is_written_and_only_where_it_is_to_be(tmp_path):
    beat(tmp_path)
    seen = []

    class Watched(EnforcerJournal):
        def event(self, *_, **__):
            seen.append((tmp_path / "verdict").exists())

    journal = Watched(-1, "", str(tmp_path))
    journal.verdict("info", "self-test", "all is well", report=False)
    journal.verdict("error", "cannot measure", "why")
    assert seen == [False, True]
    Watched(-1, "").verdict("error", "cannot measure", "another")
    left = (tmp_path / "verdict").read_text(encoding="utf-8")
    assert re.fullmatch("[0-9]+ cannot measure: why\n", left)


def test_a_waiting_startup_probe_that_is_killed_has_said_what_it_waits_for(tmp_path):
    out = tmp_path / "out"
    with out.open("wb") as stdout:
        waiting = subprocess.Popen(
            ["sh", SCRIPT, "startup", "600", tmp_path], stdout=stdout, start_new_session=True
        )
    wait_until(out.read_bytes)
    os.killpg(waiting.pid, signal.SIGKILL)
    waiting.wait()
    assert out.read_text(encoding="ascii") == NOT_YET


def test_a_failure_without_its_words_is_as_none(tmp_path):
    me = processes.identify(os.getpid())
    for text in ("", "1", f"{me.pid} {me.started}"):
        (tmp_path / "failure").write_text(text, encoding="ascii")
        assert asked(tmp_path)[1] == f"{NOT_YET}\n"


def test_a_failed_self_test_is_told_in_place_of_a_guard_that_is_over(tmp_path):
    beat(tmp_path)
    line = (tmp_path / "heartbeat").read_text(encoding="ascii").split()
    line[1] = "1"
    (tmp_path / "heartbeat").write_text(" ".join(line) + "\n", encoding="ascii")
    assert "which guarded, is over" in asked(tmp_path, "startup")[1]
    heartbeat.write_failure(str(tmp_path), "no driver")
    assert asked(tmp_path, "startup") == (1, "the self-test failed: no driver\n")


def test_the_numbers_leave_room_for_a_report():
    assert STARTUP["periodSeconds"] < program._PROBED_WITHIN_S
    found = re.search(
        "^PASSED_WITHIN_S=([0-9]+) ", SCRIPT.read_text(encoding="utf-8"), re.MULTILINE
    )
    assert LIVENESS["failureThreshold"] >= 3
    assert PERIOD_S + TIMEOUT_S <= int(found[1]) < 3 * PERIOD_S - TIMEOUT_S


MOMENTS = st.fixed_dictionaries(
    {
        "answers": st.booleans() | st.just(value=True),  # False: it times out before any code runs
        "beats": st.booleans() | st.just(value=True),
        "verdict": st.booleans(),
        "after_s": st.sampled_from([0.0, 1.0, 3.0, TIMEOUT_S - 0.1]),
    }
)


@given(st.lists(MOMENTS, max_size=14))
def test_no_report_is_ever_the_failure_that_restarts_the_sidecar(tmp_path_factory, moments):
    """The test plays the kubelet, which counts consecutive failures."""
    folder = tmp_path_factory.mktemp("run")
    clock = Clock(tmp_path_factory.mktemp("proc"))
    beat(folder, clock.proc)
    row = []
    for number, moment in enumerate(moments):
        clock.set_s(1000 + number * PERIOD_S + moment["after_s"])
        if moment["verdict"]:
            write_verdict(str(folder), "a verdict")
        if moment["beats"]:
            beat(folder, clock.proc)
        beat_s = int((folder / "heartbeat").read_text(encoding="ascii").split()[2]) / 100
        stale = clock.now_s - beat_s > 15
        code, said = (
            asked(folder, proc=clock.proc, interval="") if moment["answers"] else (1, "timed out")
        )
        row = [*row, said] if code else []
        if not moment["answers"]:
            continue
        assert code == 1 or not stale
        if said == "a verdict\n":
            assert not stale
            assert len(row) < LIVENESS["failureThreshold"]
            assert row.count(said) == 1
        elif code:
            assert said.startswith("the last observation was ")
