"""The program on an isolated node: assignments, options, and loss of the API server."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import urllib.request

import pytest

from tests.sentry import nodes
from tests.sentry.scenarios import uid_of
from tests.support.cluster_programs import wait_until
from tests.support.paths import ROOT

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("sentry")]

UNFOLLOWED = "the list of who was promised what cannot be followed"
UNMANAGED = "vramwarden_gpu_memory_unmanaged_bytes{"
PROGRAM = (sys.executable, "-m", "webhook.cli", "sentry")


@pytest.fixture
def api(tmp_path_factory):
    with nodes.Api(tmp_path_factory.mktemp("api")) as made:
        yield made


def once_said(tmp_path, over, *wanted):
    """Wait until the sentry's log has these messages; return True if it ever had."""
    log = tmp_path / "sentry.log"
    while not (log.exists() and all(f'"{item}"' in log.read_text() for item in wanted)):
        if over.wait(0.05):
            return False
    return True


def watched(tmp_path, library, api, *options, until, meanwhile=lambda _: None):
    """Run the sentry until it logged these messages; `meanwhile` may wait for others."""
    over = threading.Event()

    def tell():
        meanwhile(over)
        if once_said(tmp_path, over, *until):
            (tmp_path / "enough").touch()

    thread = threading.Thread(target=tell)
    thread.start()
    try:
        return nodes.play(tmp_path, library, api, "watched", options=options)
    finally:
        over.set()
        thread.join()


def metrics_of(tmp_path):
    started = json.loads((tmp_path / "sentry.log").read_text().splitlines()[0])
    with urllib.request.urlopen(f"http://127.0.0.1:{started['port']}/metrics") as answer:
        return answer.read().decode()


def messages(result):
    return [event["msg"] for event in result["events"]]


def posted(api):
    return [body for verb, _, body in api.written if verb == "POST"]


def test_without_act_an_excess_is_reported_once_and_nothing_is_stopped(tmp_path, library, api):
    both = ["unmanaged memory", "a pod is over its cap"]

    def both_are_events(over):
        while len(posted(api)) < 2 and not over.wait(0.05):
            pass

    result = watched(tmp_path, library, api, "--no-act", until=both, meanwhile=both_are_events)
    assert result["greedy"]
    assert messages(result) == ["started", *both]
    reported = posted(api)
    assert [body["reason"] for body in reported] == ["VRAMUnmanaged", "VRAMCapExceeded"]
    assert reported[1]["regarding"]["uid"] == uid_of(1)
    assert not [verb for verb, _, _ in api.written if verb == "PATCH"]


def test_an_api_server_that_is_away_delays_no_stop_and_takes_the_audit_away(tmp_path, library, api):
    """The API server stops responding after the list was read."""

    def leave(over):
        while not any("watch" in request.query for request in api.asked) and not over.wait(0.05):
            pass
        api.stop()
        once_said(tmp_path, over, *until)
        wait_until("no audit", lambda: over.is_set() or UNMANAGED not in metrics_of(tmp_path))

    until = [UNFOLLOWED, "memory came back"]
    result = watched(tmp_path, library, api, until=until, meanwhile=leave)
    assert not result["greedy"]
    assert "stopping a process" in messages(result)
    assert UNMANAGED not in result["metrics"]
    assert (result["ready"], api.written[1:]) == ("ok\n", [])


def test_before_the_list_was_read_nothing_is_judged_and_it_says_why(tmp_path, library, api):
    api.stop()
    both = [UNFOLLOWED, "what is seen here cannot be written as a GPUNode; retrying"]
    result = watched(tmp_path, library, api, until=both)
    assert result["greedy"]
    assert sorted(messages(result)[1:]) == both
    assert api.figures == []
    assert result["ready"].startswith("503 the list of who was promised what has not been read yet")
    assert result["live"] == "ok\n"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "no node is named"),
        (("--node=n1",), "no namespace is named"),
        (("--node=n1", "--namespace=sys", "--metrics-port=70000"), "70000"),
    ],
)
def test_wrong_usage_is_code_two(options, said):
    ended = subprocess.run(
        [*PROGRAM, *options], capture_output=True, text=True, check=False, cwd=ROOT, env={}
    )
    assert (ended.returncode, said in ended.stderr) == (2, True)


def test_without_an_api_server_or_a_port_it_ends_with_one(tmp_path, api):
    options = ("--node=n1", "--namespace=sys", "--host=127.0.0.1")
    ports = api.url.rpartition(":")[2]
    for more, said in (
        ((f"--kubeconfig={tmp_path / 'none'}",), "no API server"),
        ((f"--kubeconfig={api.kubeconfig}", f"--metrics-port={ports}"), "no port"),
    ):
        ended = subprocess.run(
            [*PROGRAM, *options, *more], capture_output=True, text=True, check=False, cwd=ROOT,
            env={}, timeout=60,
        )  # fmt: skip
        assert (ended.returncode, json.loads(ended.stdout)["msg"]) == (1, said)
