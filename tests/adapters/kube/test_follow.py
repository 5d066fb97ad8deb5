"""How objects are followed: what is reported, requested again, and waited for."""

from __future__ import annotations

import json
import random

import pytest

from webhook.adapters.kube.client import Kube, KubeError
from webhook.adapters.kube.follow import (
    LONGEST_ASKED_S,
    LONGEST_PAUSE_S,
    WATCH_S,
    Changed,
    Collection,
    Failed,
    Listed,
    follow,
)

DOWN = KubeError("down")
GONE = KubeError("too old", code=410)
NOT_FOUND = KubeError("not there", code=404)
FORBIDDEN = KubeError("forbidden", code=403)
A_MINUTE = 60.0


class Enough(BaseException):
    """Ends what works forever."""


def an_object(version, name="a"):
    return {"metadata": {"name": name, "resourceVersion": version}}


def name_of(thing):
    return thing["metadata"]["name"]


def an_event(kind, version, name="a"):
    return kind, an_object(version, name)


class Script(Kube):
    """Answers reads and watches in turn: a failure is raised, and a number lets time pass."""

    def __init__(self, reads, watches=()):
        self.reads, self.watches = iter(reads), iter(watches)
        self.read_paths, self.watched = [], []
        self.now_s, self.slept = 1000.0, []

    def list_all(self, path, keep, **query):
        self.read_paths.append((path, query))
        version, *names = self._next(self.reads)
        return [keep(an_object("1", name)) for name in names], version

    def read(self, path):
        self.read_paths.append(path)
        return self._next(self.reads)

    def watch(self, path, *, lasting_s, **query):
        self.watched.append((path, lasting_s, query))
        events = next(self.watches, Enough())
        if isinstance(events, BaseException):
            raise events
        return self._play(events)

    @property
    def since(self):
        return [query["resourceVersion"] for _, _, query in self.watched]

    def _play(self, events):
        for event in events:
            if isinstance(event, float):
                self.now_s += event
            elif isinstance(event, BaseException):
                raise event
            else:
                yield event

    def _next(self, answers):
        answer = next(answers, Enough())
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def sleep(self, pause_s):
        self.slept.append(pause_s)
        self.now_s += pause_s

    def follow(self, report=None, keep=name_of, spread=max, **of):
        """Follow to the script's end; return what was reported."""
        reported = []
        collection = Collection(kube=self, path="/api/v1/things", keep=keep, **of)
        with pytest.raises(Enough):
            follow(
                collection,
                report or reported.append,
                clock=lambda: self.now_s,
                sleep=self.sleep,
                spread=spread,
            )
        return reported


# A collection


def test_what_exists_and_each_change_is_reported_from_the_version_of_the_list():
    events = [an_event("ADDED", "6", "b"), an_event("MODIFIED", "7"), an_event("DELETED", "8")]
    script = Script([("5", "a")], [events])
    assert script.follow(labels="ours=true") == [
        Listed(["a"]),
        Changed("ADDED", "b"),
        Changed("MODIFIED", "a"),
        Changed("DELETED", "a"),
    ]
    assert script.read_paths == [("/api/v1/things", {"labelSelector": "ours=true"})]
    query = {"allowWatchBookmarks": "true", "labelSelector": "ours=true", "resourceVersion": "5"}
    assert script.watched[0] == ("/api/v1/things", WATCH_S, query)


def test_watches_that_began_together_do_not_all_end_together():
    script = Script([("5", "a")], [[]])
    script.follow(spread=min)
    assert [lasting_s for _, lasting_s, _ in script.watched] == [0.75 * WATCH_S]


def test_without_labels_all_of_a_kind_are_followed():
    script = Script([("5",)])
    assert script.follow() == []
    assert script.read_paths == [("/api/v1/things", {})]
    assert "labelSelector" not in script.watched[0][2]


def test_a_watch_goes_on_from_the_last_bookmark_or_event_without_a_new_list():
    bookmark, event = an_event("BOOKMARK", "9"), an_event("MODIFIED", "12")
    script = Script([("5", "a")], [[bookmark, A_MINUTE], [bookmark, event, A_MINUTE], [A_MINUTE]])
    assert script.follow() == [Listed(["a"]), Changed("MODIFIED", "a")]
    assert script.since == ["5", "9", "12", "12"]
    assert len(script.read_paths) == 1
    assert script.slept == [0.0] * 3


def test_a_watch_that_ends_early_without_an_event_means_a_new_list_but_not_at_once():
    script = Script([("5", "a"), ("8", "b")], [[0.25]])
    assert script.follow() == [Listed(["a"])]
    assert script.since == ["5", "8"]
    assert script.slept == [0.75]


def test_a_watch_that_ends_early_with_an_event_goes_on_but_not_at_once():
    script = Script([("5",)], [[an_event("ADDED", "6")]])
    assert script.follow() == [Listed([]), Changed("ADDED", "a")]
    assert script.since == ["5", "6"]
    assert script.slept == [1.0]


@pytest.mark.parametrize(
    "too_old", [GONE, [an_event("MODIFIED", "6"), GONE]], ids=["as status", "as event"]
)
def test_a_version_that_is_too_old_means_a_new_list_and_is_no_failure(too_old):
    script = Script([("5", "a"), ("8", "b")], [too_old, []])
    reported = script.follow()
    assert [one for one in reported if not isinstance(one, Changed)] == [
        Listed(["a"], watched=too_old is not GONE),
        Listed(["b"]),
    ]
    assert script.since == ["5", "8"]
    assert script.slept == [1.0, 1.0]


def test_versions_that_are_too_old_again_and_again_are_asked_for_ever_less_often():
    script = Script([(str(number),) for number in range(6)], [GONE] * 6)
    assert not any(isinstance(one, Failed) for one in script.follow())
    assert script.slept == [1, 2, 4, 8, 15, 15]


def test_pauses_double_up_to_a_bound_until_a_watch_succeeds():
    script = Script([*[DOWN] * 6, ("5",), DOWN], [[A_MINUTE], DOWN])
    reported = script.follow()
    assert reported == [*[Failed(DOWN)] * 6, Listed([]), Failed(DOWN), Failed(DOWN)]
    assert script.slept == [1, 2, 4, 8, 15, 15, 0, 1, 2]


def test_a_pause_is_as_long_as_the_api_server_asks_for_within_reason():
    """And a little longer, since it tells all who follow it the same."""
    busy = [KubeError("busy", code=429, retry_after_s=asked_s) for asked_s in (0, 30, 3600, 3)]
    script = Script(busy)
    script.follow()
    assert script.slept == [1, 30 * 1.25, LONGEST_ASKED_S * 1.25, 8]


def test_pauses_differ_by_a_quarter():
    slept = []

    def sleep(pause_s):
        slept.append(pause_s)
        if len(slept) == 200:
            raise Enough

    class Down(Kube):
        def __init__(self):
            """Know no API server."""

        def list_all(self, *_, **__):
            raise DOWN

    state = random.getstate()
    with pytest.raises(Enough):
        follow(Collection(kube=Down(), path="/x", keep=name_of), lambda _: None, sleep=sleep)
    longest = slept[4:]
    assert min(longest) >= 0.75 * LONGEST_PAUSE_S
    assert max(longest) <= LONGEST_PAUSE_S
    assert max(longest) - min(longest) > 0.2 * LONGEST_PAUSE_S
    assert random.getstate() == state  # others seed it, and count on what they draw


def test_a_watch_that_breaks_off_is_reported_and_all_are_listed_again():
    script = Script([("5", "a"), ("8", "b")], [[an_event("MODIFIED", "6"), DOWN], []])
    assert script.follow() == [
        Listed(["a"]),
        Changed("MODIFIED", "a"),
        Failed(DOWN),
        Listed(["b"]),
    ]
    assert script.since == ["5", "8"]


def test_where_only_the_watch_is_denied_the_list_is_reported_and_pauses_grow():
    script = Script([("5", "a")] * 3, [FORBIDDEN] * 3)
    assert script.follow() == [Listed(["a"], watched=False), Failed(FORBIDDEN)] * 3
    assert script.slept == [1, 2, 4]


# A bug


def test_a_bug_in_what_is_kept_is_reported_and_ends_nothing():
    script = Script([("5",), ("8",)], [[("MODIFIED", {})]])
    listed, failed = script.follow()
    assert listed == Listed([])
    assert isinstance(failed.error, KeyError)
    assert script.since == ["5", "8"]
    assert script.slept == [LONGEST_PAUSE_S]


def test_a_bug_in_whoever_gets_the_reports_is_reported_and_ends_nothing():
    reported = []

    def report(one):
        reported.append(one)
        if len(reported) == 1:
            raise ValueError("a bug")

    script = Script([("5", "a"), ("8", "b")], [[A_MINUTE]] * 2)
    script.follow(report)
    listed, failed, again = reported
    assert (listed, again) == (Listed(["a"]), Listed(["b"]))
    assert isinstance(failed.error, ValueError)


def test_whoever_gets_the_reports_may_end_it_by_raising_a_bug():
    def report(one):
        if isinstance(one, Failed):
            raise one.error

    collection = Collection(kube=Script([ValueError("a bug")]), path="/x", keep=name_of)
    with pytest.raises(ValueError, match="a bug"):
        follow(collection, report, sleep=lambda _: None)


# One object


def one(version="7"):
    return an_object(version, "one")


def test_one_object_is_read_before_each_watch_and_asks_for_no_right_to_list():
    changes = [an_event("MODIFIED", "8", "one"), an_event("DELETED", "9", "one"), A_MINUTE]
    script = Script([one(), NOT_FOUND], [changes, [A_MINUTE]])
    assert script.follow(name="one") == [
        Listed(["one"]),
        Changed("MODIFIED", "one"),
        Changed("DELETED", "one"),
        Listed([]),
    ]
    assert script.read_paths == ["/api/v1/things/one"] * 3
    first, second = script.watched
    query = {"fieldSelector": "metadata.name=one", "resourceVersion": "7"}
    assert first == ("/api/v1/things", WATCH_S, query)
    assert second[2]["resourceVersion"] == "0"


def test_one_object_whose_version_is_too_old_is_watched_from_what_exists():
    """Else an object that does not change would be read and watched forever, with no watch."""
    reads = [one(), one(), one(), one("900")]
    script = Script(reads, [[GONE], [an_event("ADDED", "7", "one"), A_MINUTE], [A_MINUTE]])
    assert script.follow(name="one") == [
        Listed(["one"]),
        Listed(["one"]),
        Changed("ADDED", "one"),
        Listed(["one"]),
    ]
    assert script.since == ["7", "0", "0", "900"]


def test_a_name_is_quoted():
    script = Script([NOT_FOUND])
    script.follow(name="a/b")
    assert script.read_paths == ["/api/v1/things/a%2Fb"]


# Against a server


def chunked(*events):
    def answer(handler):
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for kind, thing in events:
            line = json.dumps({"type": kind, "object": thing}).encode() + b"\n"
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
        handler.wfile.write(b"0\r\n\r\n")

    return answer


def test_a_real_client_resumes_lists_again_and_says_what_failed(kube, api_server):
    def a_list(version):
        return 200, {"metadata": {"resourceVersion": version}, "items": [an_object("1")]}

    api_server.answers = [
        a_list("5"),
        chunked(an_event("MODIFIED", "6"), an_event("BOOKMARK", "9")),
        chunked(("ERROR", {"kind": "Status", "code": 410, "message": "too old"})),
        a_list("20"),
        (410, {"kind": "Status", "message": "too old"}),
        (403, {"kind": "Status", "message": "no"}),
    ]
    reported, slept = [], []

    def report(one):
        reported.append(one)
        if isinstance(one, Failed):
            raise Enough

    collection = Collection(kube=kube, path="/api/v1/things", keep=name_of)
    with pytest.raises(Enough):
        follow(collection, report, sleep=slept.append, watch_s=1)
    assert reported[:-1] == [
        Listed(["a"]),
        Changed("MODIFIED", "a"),
        Listed(["a"], watched=False),
    ]
    assert reported[-1].error.code == 403
    asked = [path for _, path, _, _ in api_server.asked]
    assert ["watch=true" in path for path in asked] == [False, True, True, False, True, False]
    assert ["resourceVersion=9" in path for path in asked] == [*[False] * 2, True, *[False] * 3]
