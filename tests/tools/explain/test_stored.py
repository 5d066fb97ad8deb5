"""Parts of a stored pod: what is not as Kubernetes stores it is read as absent."""

from __future__ import annotations

import pytest

from webhook.tools.explain.judge.stored import (
    LONGEST_MESSAGE,
    MOST,
    Ended,
    condition,
    container_name,
    enforcer_ended,
    part,
    parts,
    rule_of,
)


@pytest.mark.parametrize("odd", [None, 7, "text", [], True])
def test_what_is_no_object_reads_as_an_empty_one(odd):
    assert part({"a": odd}, "a") == part({"a": odd}, "a", "b") == {}
    assert part({"a": {"b": odd}}, "a", "b") == {}
    assert part({"a": {"b": {"c": 1}}}, "a", "b") == {"c": 1}


def test_of_a_list_the_objects_are_read_and_not_too_many():
    assert parts([1, {"a": 1}, None]) == [{"a": 1}]
    assert len(parts([{}] * (MOST + 1))) == MOST
    assert parts("text") == parts({"a": {}}) == []


def test_a_message_is_cut():
    pod = {"status": {"conditions": [{"type": "PodScheduled", "message": "x" * 32_768}]}}
    assert len(condition(pod, "PodScheduled").message) == LONGEST_MESSAGE
    assert condition(pod, "Ready") is None


@pytest.mark.parametrize(
    ("status", "ended"),
    [
        ({}, Ended(None, "")),
        ({"state": {"running": {}}}, Ended(None, "")),
        ({"state": {"terminated": {"exitCode": 70, "message": "m"}}}, Ended(70, "m")),
        ({"lastState": {"terminated": {"exitCode": 88}}, "state": {"running": {}}}, Ended(88, "")),
        ({"state": {"terminated": {"exitCode": "70", "message": 7}}}, Ended(None, "")),
    ],
)
def test_how_the_enforcer_ended_is_read_also_after_a_restart(status, ended):
    others = {"name": "main", "state": {"terminated": {"exitCode": 1}}}
    pod = {"status": {"containerStatuses": [others, {"name": "vram-enforcer", **status}]}}
    assert enforcer_ended(pod) == ended


def test_a_container_is_found_by_its_id():
    statuses = [{"name": "main", "containerID": "containerd://ab"}]
    pod = {"status": {"containerStatuses": statuses}}
    assert container_name(pod, "ab") == "main"
    assert container_name(pod, "b") == container_name(pod, "") == ""


@pytest.mark.parametrize(
    ("admitted", "rule"),
    [("v1 team 0123", '"team"'), ("v1 team", ""), ("", ""), ('v1 a"b 0', r'"a\"b"')],
)
def test_the_rule_is_read_from_our_mark(admitted, rule):
    pod = {"metadata": {"annotations": {"vramwarden.io/admitted": admitted}}}
    assert rule_of(pod) == rule
