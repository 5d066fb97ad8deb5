"""A policy without rules changes no pod; the server reports that in log, metrics and probes."""

from __future__ import annotations

import io
import json

import pytest

from tests.support.policies import IMAGE, write
from webhook.adapters.policy.files import PolicySource
from webhook.server.log import JsonLog
from webhook.server.metrics import Metrics
from webhook.server.policies import PolicyReload

WARNING = ("warning", "the policy has no rules, so every pod is left alone")


class Server:
    """The server's handling of a policy folder, without threads and sockets."""

    def __init__(self, folder):
        self._log = io.BytesIO()
        self._metrics = Metrics()
        policies = PolicySource(folder, IMAGE)
        self.reload = PolicyReload(policies, self._metrics, JsonLog(self._log))

    def lines(self):
        lines = [json.loads(line) for line in self._log.getvalue().splitlines()]
        self._log.seek(0)
        self._log.truncate()
        return lines

    def said(self):
        return [(line["level"], line["msg"]) for line in self.lines()]

    @property
    def rules(self):
        return self._metrics.registry.get_sample_value("vramwarden_policy_rules")


@pytest.fixture
def folder(tmp_path):
    return write(tmp_path / "policy")


def test_a_start_without_rules_is_a_warning(folder):
    server = Server(folder)
    server.reload.show()
    assert server.said() == [WARNING]
    assert server.rules == 0


def test_a_start_with_rules_warns_of_nothing_and_they_are_counted(folder):
    server = Server(write(folder, a="  rules: [{name: a, match: {namespaces: [a]}}, {name: b}]"))
    server.reload.show()
    assert server.said() == []
    assert server.rules == 2


def test_rules_that_hardly_do_what_they_say_are_one_warning(folder):
    server = Server(write(folder, a="  rules: [{name: a}, {name: b}, {name: c}]"))
    server.reload.show()
    (line,) = server.lines()
    words = "the policy has rules that hardly do what they say; move or narrow them"
    assert (line["level"], line["msg"]) == ("warning", words)
    assert ["applies to no pod" in text for text in line["rules"]] == [True, True]


def test_a_reload_that_takes_the_last_rule_away_is_a_warning_once(folder):
    server = Server(write(folder, a="  rules: [{name: a}]"))
    (folder / "a.yaml").unlink()
    server.reload.refresh()
    assert server.said() == [("info", "policy loaded"), WARNING]
    assert server.rules == 0
    server.reload.refresh()
    assert server.said() == []


def test_a_rejected_policy_leaves_the_count_of_the_one_in_force(folder):
    server = Server(write(folder, a="  rules: [{name: a}]"))
    server.reload.show()
    write(folder, a="  rules: [{name: b}, {name: b}]")
    server.reload.refresh()
    assert [level for level, _ in server.said()] == ["error"]
    assert server.rules == 1
