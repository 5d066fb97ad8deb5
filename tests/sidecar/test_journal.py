"""The enforcer's log and termination message; a failed write never ends a guard."""

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.sidecar.parts import ENDS_SOON, Ground, events_of
from webhook.sidecar import journal
from webhook.sidecar.journal import EnforcerJournal

TEXTS = st.text(max_size=40) | st.text(st.characters(codec="utf-8"), max_size=3000)


class Heard:
    """A journal, its output, and its termination log."""

    def __init__(self, folder):
        self.log = folder / "termination-log"
        self.log.touch()
        self._out = (folder / "out").open("a+", encoding="utf-8")
        self.begin()

    def begin(self):
        self.journal = EnforcerJournal(self._out.fileno(), str(self.log))

    def events(self):
        self._out.seek(0)
        return events_of(self._out.read())

    def messages(self):
        return [event["msg"] for event in self.events()]

    @property
    def message(self):
        return self.log.read_text(encoding="utf-8")

    def close(self):
        self._out.close()


@pytest.fixture(scope="module")
def heard_once(tmp_path_factory):
    made = Heard(tmp_path_factory.mktemp("heard"))
    yield made
    made.close()


@pytest.fixture
def heard(tmp_path):
    made = Heard(tmp_path)
    yield made
    made.close()


def test_an_event_is_one_json_line_with_time_level_and_words_first(heard):
    heard.journal.event("info", "memory came back", why="a\nb", pid=7)
    (event,) = heard.events()
    assert list(event) == ["ts", "level", "msg", "why", "pid"]
    stamp = event.pop("ts")
    assert len(stamp) == len("2026-01-01T00:00:00Z")
    assert stamp.endswith("Z")
    assert event == {"level": "info", "msg": "memory came back", "why": "a\nb", "pid": 7}


def test_the_last_verdict_is_the_termination_message_also_where_it_is_shorter(heard):
    heard.journal.verdict("error", "cannot measure", "x" * 5000)
    heard.journal.verdict("info", "measuring again", "all is well", ability="full")
    heard.journal.event("info", "stopped")
    assert heard.message == "measuring again: all is well\n"
    assert heard.messages() == ["cannot measure", "measuring again", "stopped"]
    assert (heard.events()[1]["why"], heard.events()[1]["ability"]) == ("all is well", "full")


def test_whoever_sees_the_event_of_a_verdict_finds_the_message_written(heard, monkeypatch):
    found = []

    def check(*_, **__):
        found.append(heard.message)

    monkeypatch.setattr(heard.journal, "event", check)
    heard.journal.verdict("error", "self-test", "why")
    assert found == ["self-test: why\n"]


@pytest.mark.parametrize("call", ["write", "ftruncate"])
def test_a_verdict_that_is_interrupted_leaves_a_message(call, heard, monkeypatch):
    def interrupt(*_):
        raise InterruptedByATestError

    heard.journal.verdict("error", "cannot measure", "x" * 50)
    monkeypatch.setattr(journal, "os", SimpleNamespace(**vars(os) | {call: interrupt}))
    with pytest.raises(InterruptedByATestError):
        heard.journal.verdict("info", "measuring again", "all is well")
    begins = "cannot measure: " if call == "write" else "measuring again: all is well\n"
    assert heard.message.startswith(begins)


class InterruptedByATestError(Exception):
    """Stands in for SIGKILL."""


def test_a_termination_log_is_written_only_where_the_kubelet_made_one(heard):
    heard.log.unlink()
    heard.journal.verdict("error", "self-test", "why")
    assert not heard.log.exists()
    assert len(heard.events()) == 1


@pytest.mark.parametrize("path", ["", "/", "/dev/null", "/proc/self/no/such"])
def test_a_termination_log_that_cannot_be_written_is_no_reason_to_fail(path, tmp_path):
    with (tmp_path / "out").open("w+", encoding="utf-8") as out:
        EnforcerJournal(out.fileno(), path).verdict("error", "self-test", "why")
        out.seek(0)
        assert len(events_of(out.read())) == 1


@pytest.mark.parametrize("letter", ["x", "é", "語", "😀"])
@pytest.mark.parametrize("shift", range(4))
def test_a_long_verdict_is_cut_to_what_the_kubelet_takes_and_between_letters(letter, shift, heard):
    heard.journal.verdict("error", "self-test", "." * shift + letter * 5000)
    written = heard.log.read_bytes()
    assert 4096 - 4 < len(written) <= 4096
    assert written.decode("utf-8").endswith(letter)
    assert heard.events()[0]["why"].endswith(letter * 5000)


@given(TEXTS, TEXTS)
def test_whatever_is_said_is_one_line_and_at_most_one_message(heard_once, why, value):
    before = len(heard_once.events())
    heard_once.journal.verdict("info", "self-test", why, value=value)
    (event,) = heard_once.events()[before:]
    assert (event["why"], event["value"]) == (why, value)
    assert len(heard_once.log.read_bytes()) <= 4096


def test_a_text_that_has_no_utf_8_is_written_all_the_same(heard):
    heard.journal.verdict("error", "self-test", "a\udc80b")
    assert heard.message == "self-test: a?b\n"
    assert heard.events()[0]["why"] == "a\udc80b"


WORDS = "ended: all was well\n{}\n"


@given(TEXTS)
@example("ä" * 4096)
def test_the_final_figures_stand_behind_the_last_verdict_whatever_that_says(heard_once, text):
    heard = heard_once
    heard.begin()
    heard.journal.final_figures = lambda: (WORDS, {"why": "all was well"})
    heard.journal.verdict("error", "cannot measure", text)
    heard.journal.end()
    message = heard.log.read_bytes()
    assert message.endswith(WORDS.encode())
    assert message.startswith(b"cannot measure: ")
    assert len(message) <= 4096
    message.decode()


def test_a_verdict_after_sigterm_keeps_the_final_figures_behind_it(heard):
    heard.journal.final_figures = lambda: (WORDS, {})
    heard.journal.append_final_figures()
    assert heard.message == WORDS
    heard.journal.verdict("warning", "stopping a process", "it grew")
    assert heard.message == f"stopping a process: it grew\n{WORDS}"


def test_final_figures_are_written_at_the_end_and_where_nothing_was_guarded_there_are_none(heard):
    heard.journal.verdict("info", "self-test", "fine")
    heard.journal.end()
    assert heard.messages() == ["self-test"]
    heard.begin()
    heard.journal.final_figures = lambda: (WORDS, {"why": "all was well"})
    heard.journal.verdict("info", "self-test", "fine again")
    assert heard.message == "self-test: fine again\n"
    heard.journal.end()
    assert heard.messages() == ["self-test", "self-test", "last words"]


@pytest.mark.parametrize("kind", ["closed", "full", "nobody reads"])
def test_output_that_takes_nothing_does_not_keep_the_verdict_from_the_kubelet(kind, tmp_path):
    near, far = os.pipe()
    descriptor = {"closed": far, "full": os.open("/dev/full", os.O_WRONLY), "nobody reads": far}
    os.close(near)
    if kind == "closed":
        os.close(far)
    log = tmp_path / "termination-log"
    log.touch()
    EnforcerJournal(descriptor[kind], str(log)).verdict("error", "self-test", "why")
    assert log.read_text(encoding="utf-8") == "self-test: why\n"
    os.close(descriptor["full"])
    if kind != "closed":
        os.close(far)


@pytest.mark.parametrize("end", [">&-", ">/dev/full", ">&- 2>&-"])
def test_the_program_ends_with_its_own_code_where_its_output_takes_nothing(end, tmp_path):
    ground = Ground(tmp_path, library=tmp_path)
    command = [sys.executable, *ENDS_SOON, *ground.options]
    ended = subprocess.run(
        ["sh", "-c", f'exec "$@" {end}', "sh", *command],
        env=ground.environment, capture_output=True, check=False, timeout=60,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout, ended.stderr) == (70, b"", b"")
    verdict = ground.termination_log.read_text(encoding="utf-8")
    assert verdict.startswith("self-test: VRAM_CAP_BYTES: is not set")


def test_a_file_that_took_the_number_of_closed_output_is_not_written_to(tmp_path):
    ground = Ground(tmp_path, library=tmp_path)
    code = (
        "import sys; file = open(sys.argv[1], 'w'); assert file.fileno() == 1; "
        "from webhook.sidecar import program; program._PROBED_WITHIN_S = 0; "
        "from webhook.sidecar.__main__ import start; "
        "sys.exit(start(*sys.argv[1:], only_test=False))"
    )
    command = [sys.executable, "-I", "-c", code, str(tmp_path / "file"), str(tmp_path / "log")]
    ended = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *command],
        env=ground.environment, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (70, "")
    assert (tmp_path / "file").read_text(encoding="utf-8") == ""


def test_a_guard_goes_on_where_its_output_is_closed_and_ends_with_its_own_code(pod):
    def incident(p):
        near, far = os.pipe()
        p.enforcer = p.start(output=far)
        os.close(far)
        p.wait_until(p.heartbeat.exists)
        os.close(near)
        p.script("fail * 999")
        message = p.outputs[1]
        p.wait_until(lambda: message.read_text().startswith("cannot measure: "))
        p.observations(2)
        p.enforcer.send_signal(signal.SIGTERM)
        code = p.end()
        message.write_text("")  # no event reported this
        p.heartbeat.unlink()
        return code

    assert pod.run(incident) == 0
