"""The journal writes one line per event, a lasting condition once, and never raises."""

import io
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webhook.adapters import journal
from webhook.adapters.journal import Journal
from webhook.server.log import JsonLog


class Heard:
    def __init__(self):
        self._out = io.BytesIO()
        self.journal = Journal(self._out.write)

    def lines(self):
        return [json.loads(line) for line in self._out.getvalue().splitlines()]

    def said(self):
        return [(line["level"], line["msg"], line.get("why")) for line in self.lines()]


@pytest.fixture
def heard():
    return Heard()


def test_a_lasting_condition_is_written_once(heard):
    for _ in range(3):
        heard.journal.once("driver", "error", "no driver", "it is not loaded", gpu="a")
    (line,) = heard.lines()
    assert line.pop("ts")
    assert line == {"level": "error", "msg": "no driver", "why": "it is not loaded", "gpu": "a"}


def test_another_message_or_another_reason_is_written_again(heard):
    written = [("no driver", "a"), ("no driver", "b"), ("no GPU", "b"), ("no driver", "a")]
    for message, why in written:
        heard.journal.once("driver", "error", message, why)
    assert heard.said() == [("error", *item) for item in written]


def test_each_condition_is_written_once_for_itself(heard):
    for about in ("pods", "nodes", "pods"):
        heard.journal.once(about, "error", "cannot follow", "why", what=about)
    assert [line["what"] for line in heard.lines()] == ["pods", "nodes"]


def test_that_it_is_over_is_written_once_and_only_where_anything_was_written(heard):
    heard.journal.over("driver", "the driver answers")
    assert heard.said() == []
    heard.journal.once("driver", "error", "no driver", "why")
    for _ in range(2):
        heard.journal.over("driver", "the driver answers", gpu="a")
    assert heard.said()[1:] == [("info", "the driver answers", None)]
    heard.journal.once("driver", "error", "no driver", "why")
    assert len(heard.said()) == 3


def test_what_is_forgotten_is_written_again_and_is_never_over(heard):
    heard.journal.once("gpu", "warning", "lost", "why")
    heard.journal.forget("gpu")
    heard.journal.over("gpu", "found")
    heard.journal.once("gpu", "warning", "lost", "why")
    assert heard.said() == [("warning", "lost", "why")] * 2


@pytest.mark.parametrize("error", [OSError("full"), ValueError("I/O operation on closed file")])
def test_an_output_that_takes_nothing_raises_nothing(error):
    def write(_line):
        raise error

    journal = Journal(write)
    journal.event("info", "started")
    journal.once("driver", "error", "no driver", "why")
    journal.over("driver", "the driver answers")


def test_a_line_is_one_call_so_that_threads_may_share_a_journal():
    calls = []
    Journal(calls.append).event("info", "started", node="a\nb")
    (line,) = calls
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1


VALUES = st.dictionaries(
    st.text(st.characters(codec="utf-8"), min_size=1),
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.text(st.characters(codec="utf-8")),
)


@given(VALUES)
def test_the_server_s_lines_say_what_all_others_do(values):
    ours, others = io.BytesIO(), io.BytesIO()
    JsonLog(ours).event("info", "review", **values)
    Journal(others.write).event("info", "review", **values)
    lines = [json.loads(item.getvalue()) for item in (ours, others)]
    for line in lines:
        if "ts" not in values:
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", line.pop("ts"))
    assert lines[0] == lines[1]


def test_a_time_is_that_of_the_line_s_own_second(monkeypatch):
    now_s = iter([1_700_000_000.9, 1_700_000_000.99, 1_700_000_001.0])
    monkeypatch.setattr(journal.time, "time", lambda: next(now_s))
    out = io.BytesIO()
    written = Journal(out.write)
    for _ in range(3):
        written.event("info", "said")
    stamps = [json.loads(line)["ts"] for line in out.getvalue().splitlines()]
    assert stamps == ["2023-11-14T22:13:20Z"] * 2 + ["2023-11-14T22:13:21Z"]


class Narrow(io.RawIOBase):
    """An output that accepts a few bytes in one call, and none in the next."""

    def __init__(self, takes):
        self.takes = list(takes)
        self.written = b""

    def write(self, data):
        if not self.takes:
            return None  # it would block
        taken = bytes(data)[: self.takes.pop(0)]
        self.written += taken
        return len(taken)


def test_an_output_that_takes_a_line_in_parts_gets_all_of_it():
    out = Narrow([5, 7, 10_000])
    JsonLog(out).event("info", "said", what="x" * 100)
    assert json.loads(out.written)["what"] == "x" * 100


def test_an_output_that_would_block_is_not_waited_for():
    out = Narrow([5])
    JsonLog(out).event("info", "said")
    assert out.written == b'{"ts"'
