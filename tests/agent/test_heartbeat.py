"""Results of the kubelet's probes of the agent."""

import subprocess
import sys
import time

import pytest

from webhook.agent import heartbeat
from webhook.agent.heartbeat import VALID_FOR_S, beat, probe


def asked(*arguments):
    command = [sys.executable, "-I", "-m", "webhook.agent.heartbeat", *map(str, arguments)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return ended.returncode, ended.stdout, ended.stderr


def test_both_probes_pass_after_a_beat(tmp_path):
    beat(str(tmp_path), unready="")
    assert asked("live", tmp_path) == (0, "live\n", "")
    assert asked("ready", tmp_path) == (0, "ready\n", "")


def test_an_agent_that_is_alive_and_not_ready_says_why(tmp_path):
    beat(str(tmp_path), unready="the node has not been read yet")
    assert asked("live", tmp_path) == (0, "live\n", "")
    assert asked("ready", tmp_path) == (1, "the node has not been read yet\n", "")
    assert probe("live", str(tmp_path)) == ""


@pytest.mark.parametrize("kind", ["live", "ready"])
def test_both_probes_fail_before_the_first_beat(kind, tmp_path):
    assert asked(kind, tmp_path) == (1, "no heartbeat yet\n", "")


@pytest.mark.parametrize("kind", ["live", "ready"])
def test_a_beat_is_valid_for_a_while(kind, tmp_path, monkeypatch):
    beat(str(tmp_path), unready="")
    now_s = time.monotonic()
    monkeypatch.setattr(heartbeat.time, "monotonic", lambda: now_s + VALID_FOR_S - 1)
    assert probe(kind, str(tmp_path)) == ""
    monkeypatch.setattr(heartbeat.time, "monotonic", lambda: now_s + VALID_FOR_S + 1)
    assert "stuck or stopped" in probe(kind, str(tmp_path))


@pytest.mark.parametrize("content", [b"", b"\n", b"soon", b"nan", b"-inf x", b"\xff\xfe"])
def test_a_beat_that_is_none_fails_both(content, tmp_path):
    (tmp_path / "heartbeat").write_bytes(content)
    assert probe("live", str(tmp_path))
    assert probe("ready", str(tmp_path))


@pytest.mark.parametrize("arguments", [(), ("live",), ("dead", "x"), ("live", "x", "y")])
def test_wrong_usage_says_what_is_right(arguments):
    code, _, errors = asked(*arguments)
    assert code == 2
    assert "live|ready FOLDER" in errors
