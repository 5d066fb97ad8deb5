"""Exit codes of a node's program. A bug in one of its threads ends the program."""

from __future__ import annotations

import os
import signal
from functools import partial

import pytest

from webhook.adapters.kube.errors import KubeError
from webhook.node_programs import program
from webhook.node_programs.program import (
    Inbox,
    NewContainerNeededError,
    NotStartedError,
    run_program,
)


def ended(monkeypatch, work):
    """Return the exit code, and what was sent for which signals."""
    signals = {}
    monkeypatch.setattr(program.signal, "signal", signals.__setitem__)
    monkeypatch.setattr(program, "connect", lambda _: "kube")
    return run_program(None, partial(work, signals))


def raising(error, *_):
    raise error


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KubeError("none"), 1, '"no API server", "why": "none"'),
        (NotStartedError("no port", "it is taken"), 1, '"no port", "why": "it is taken"'),
        (NewContainerNeededError("replaced"), 75, 'is needed", "why": "replaced"'),
    ],
)
def test_each_end_has_its_code_and_its_line(monkeypatch, capfd, error, code, said):
    assert ended(monkeypatch, lambda *_: raising(error)) == code
    assert said in capfd.readouterr().out


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it(monkeypatch, capfd, number):
    assert ended(monkeypatch, lambda signals, *_: signals[number](number, None)) == 0
    assert '"msg": "stopped"' in capfd.readouterr().out


def test_a_bug_is_not_hidden(monkeypatch):
    with pytest.raises(ZeroDivisionError):
        ended(monkeypatch, lambda *_: 1 // 0)


def test_reports_of_threads_come_in_order_and_a_bug_of_one_ends_the_main_thread():
    inbox = Inbox()
    inbox.start(lambda *sent: [inbox.put(request) for request in sent], 1, 2)
    assert [inbox.get(60), inbox.get(60), inbox.get(), inbox.get(0.001)] == [1, 2, None, None]
    inbox.start(lambda: os.kill("not a process", 0))
    with pytest.raises(TypeError):
        inbox.get(60)
