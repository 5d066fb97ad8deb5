"""The program on a node of its own: what it does with lines, options and an API server away."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time

import pytest

from tests.sentry import nodes
from tests.sentry.scenarios import uid_of
from tests.support.paths import ROOT

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("sentry")]

SOON = {"late_s": 0.1}
PROGRAM = (sys.executable, "-m", "webhook.cli", "sentry")


@pytest.fixture
def api(tmp_path_factory):
    with nodes.Api(tmp_path_factory.mktemp("api")) as made:
        yield made


def watched(tmp_path, library, api, *options, for_s=9, **line):
    sent = {"line": SOON | line, "options": options, "for_s": for_s}
    return nodes.play(tmp_path, library, api, "watched", **sent)


def messages(result):
    return [one["msg"] for one in result["events"]]


def test_a_line_that_does_not_let_it_act_is_never_acted_on(tmp_path, library, api):
    result = watched(tmp_path, library, api, act=False)
    assert result["greedy"]
    assert messages(result) == ["started", "unmanaged memory"]
    owner = {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "node-uid"}
    assert api.figures[0]["metadata"] == {"name": "n1", "ownerReferences": [owner]}
    assert api.figures[0]["status"]["enforcement"] == "sidecar"
    assert [body["reason"] for verb, _, body in api.written if verb == "POST"] == ["VRAMUnmanaged"]


def test_without_act_an_excess_is_reported_once_and_nothing_is_stopped(tmp_path, library, api):
    result = watched(tmp_path, library, api, "--no-act")
    assert result["greedy"]
    assert messages(result) == ["started", "unmanaged memory", "a pod is over its cap"]
    reported = [body for verb, _, body in api.written if verb == "POST"]
    assert [body["reason"] for body in reported] == ["VRAMUnmanaged", "VRAMCapExceeded"]
    assert reported[1]["regarding"]["uid"] == uid_of(1)
    assert not [verb for verb, _, _ in api.written if verb == "PATCH"]


def test_an_api_server_that_is_away_delays_no_stop_and_takes_the_audit_away(tmp_path, library, api):
    """The list was read; from then on nobody answers."""

    def leave():
        while not any("watch=true" in path for _, path, _, _ in api.asked):
            if api.over.wait(0.05):
                return
        time.sleep(1.0)
        api.away = True

    threading.Thread(target=leave, daemon=True).start()
    result = watched(tmp_path, library, api)
    assert not result["greedy"]
    assert "stopping a process" in messages(result)
    assert "the list of who was promised what cannot be followed" in messages(result)
    assert "vramwarden_gpu_memory_unmanaged_bytes{" not in result["metrics"]
    assert (result["ready"], api.written[1:]) == ("ok\n", [])


def test_before_the_list_was_read_nothing_is_judged_and_it_says_why(tmp_path, library, api):
    api.away = True
    result = watched(tmp_path, library, api)
    assert result["greedy"]
    assert sorted(messages(result)[1:]) == [
        "the list of who was promised what cannot be followed",
        "what is seen here cannot be written as a GPUNode; retrying",
    ]
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
