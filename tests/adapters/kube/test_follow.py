"""Following objects: reports, requests and pauses."""

from __future__ import annotations

import random

import pytest

from tests.adapters.kube.scripts import A_MINUTE, Enough, Script, an_event, an_object, simplify
from tests.support.api_server import ApiServer
from webhook.adapters.kube.follow import (
    LONGEST_PAUSE_S,
    LONGEST_RETRY_AFTER_S,
    WATCH_S,
    Changed,
    Collection,
    Failed,
    Listed,
    follow,
)

THINGS = "/api/v1/things"
BOOKMARK = an_event("BOOKMARK", "9")


def name_of(thing):
    return thing["metadata"]["name"]


def followed(script, report=None, jitter=max, **of):
    """Follow until the script ends; return the reports."""
    reported = []
    collection = Collection(kube=script.kube(), path=THINGS, project=name_of, **of)
    with pytest.raises(Enough):
        follow(
            collection,
            report or (lambda received: reported.append(simplify(received))),
            clock=lambda: script.clock_s,
            sleep=script.sleep,
            jitter=jitter,
        )
    return reported


# Requests


def test_what_exists_and_each_change_is_reported_from_the_version_of_the_list():
    events = [an_event("ADDED", "6", "b"), an_event("MODIFIED", "7"), an_event("DELETED", "8")]
    script = Script([("5", "a")], [events])
    assert followed(script, labels="ours=true") == [
        Listed(["a"]),
        Changed("ADDED", "b"),
        Changed("MODIFIED", "a"),
        Changed("DELETED", "a"),
    ]
    assert script.reads == [(THINGS, {"labelSelector": "ours=true", "limit": "50"})]
    query = {"watch": "true", "allowWatchBookmarks": "true", "labelSelector": "ours=true"}
    query |= {"resourceVersion": "5", "timeoutSeconds": f"{WATCH_S:.0f}"}
    assert script.watches[0] == (THINGS, query)


def test_without_labels_all_of_a_kind_are_followed():
    script = Script([("5",)])
    assert followed(script) == []
    assert script.reads == [(THINGS, {"limit": "50"})]
    assert "labelSelector" not in script.watches[0][1]


def test_watches_that_began_together_do_not_all_end_together():
    script = Script([("5", "a")], [[]])
    followed(script, jitter=min)
    ((_, query),) = script.watches
    assert query["timeoutSeconds"] == f"{0.75 * WATCH_S:.0f}"


def test_one_object_is_read_before_each_watch_and_asks_for_no_right_to_list():
    """The name is quoted."""
    script = Script([an_object("7", "a/b"), 404], [[A_MINUTE]])
    assert followed(script, name="a/b") == [Listed(["a/b"])]
    assert [request.url for request in script.asked if "watch" not in request.query] == [
        f"{THINGS}/a%2Fb?", f"{THINGS}/a%2Fb?",
    ]  # fmt: skip
    query = {"watch": "true", "fieldSelector": "metadata.name=a/b", "resourceVersion": "7"}
    assert script.watches[0] == (THINGS, query | {"timeoutSeconds": f"{WATCH_S:.0f}"})


# Order of requests, reports and pauses


def busy(after_s):
    return 429, {"message": "busy"}, {"Retry-After": str(after_s)}


COLLECTIONS = {
    "a watch goes on from the last bookmark or event without a new list": (
        [("5", "a")],
        [[BOOKMARK, A_MINUTE], [BOOKMARK, an_event("MODIFIED", "12"), A_MINUTE], [A_MINUTE]],
        [Listed(["a"]), Changed("MODIFIED", "a")],
        ["5", "9", "12", "12"],
        [0, 0, 0],
    ),
    "a watch that ends early without an event means a new list, but not at once": (
        [("5", "a"), ("8", "b")],
        [[0.25]],
        [Listed(["a"])],
        ["5", "8"],
        [0.75],
    ),
    "a watch that ends early with an event goes on, but not at once": (
        [("5",)],
        [[an_event("ADDED", "6")]],
        [Listed([]), Changed("ADDED", "a")],
        ["5", "6"],
        [1],
    ),
    "a version that is too old, as a status, means a new list and is no failure": (
        [("5", "a"), ("8", "b")],
        [410, []],
        [Listed(["a"], watched=False), Listed(["b"])],
        ["5", "8"],
        [1, 1],
    ),
    "as an event": (
        [("5", "a"), ("8", "b")],
        [[an_event("MODIFIED", "6"), 410], []],
        [Listed(["a"]), Changed("MODIFIED", "a"), Listed(["b"])],
        ["5", "8"],
        [1, 1],
    ),
    "versions that are too old again and again are asked for ever less often": (
        [(str(number),) for number in range(6)],
        [410] * 6,
        [Listed([], watched=False)] * 6,
        ["0", "1", "2", "3", "4", "5"],
        [1, 2, 4, 8, 15, 15],
    ),
    "pauses double up to a bound until a watch succeeds": (
        [*[0] * 6, ("5",), 0],
        [[A_MINUTE], 0],
        [*[Failed(0)] * 6, Listed([]), Failed(0), Failed(0)],
        ["5", "5"],
        [1, 2, 4, 8, 15, 15, 0, 1, 2],
    ),
    # The pause is a little longer, since the API server sends the same value to all clients.
    "a pause is as long as the API server asks for, within reason": (
        [busy(0), busy(30), busy(3600), busy(3)],
        [],
        [Failed(429)] * 4,
        [],
        [1, 30 * 1.25, LONGEST_RETRY_AFTER_S * 1.25, 8],
    ),
    "a watch that breaks off is reported, and all are listed again": (
        [("5", "a"), ("8", "b")],
        [[an_event("MODIFIED", "6"), 0], []],
        [Listed(["a"]), Changed("MODIFIED", "a"), Failed(0), Listed(["b"])],
        ["5", "8"],
        [1, 1],
    ),
    "where only the watch is denied the list is reported, and pauses grow": (
        [("5", "a")] * 3,
        [403] * 3,
        [Listed(["a"], watched=False), Failed(403)] * 3,
        ["5", "5", "5"],
        [1, 2, 4],
    ),
    "a bug in what is kept is reported and ends nothing": (
        [("5",), ("8",)],
        [[("MODIFIED", {})]],
        [Listed([]), Failed(KeyError)],
        ["5", "8"],
        [LONGEST_PAUSE_S],
    ),
}


@pytest.mark.parametrize(
    ("reads", "watches", "reported", "since", "slept"), COLLECTIONS.values(), ids=COLLECTIONS
)
def test_a_collection_is_followed(reads, watches, reported, since, slept):
    script = Script(reads, watches)
    assert (followed(script), script.watch_versions, script.slept) == (reported, since, slept)


def one(version="7"):
    return an_object(version, "one")


ONE_OBJECT = {
    "changes are reported, and that it is gone": (
        [one(), 404],
        [[an_event("MODIFIED", "8", "one"), an_event("DELETED", "9", "one"), A_MINUTE], [A_MINUTE]],
        [Listed(["one"]), Changed("MODIFIED", "one"), Changed("DELETED", "one"), Listed([])],
        ["7", "0"],
    ),
    # Otherwise an unchanged object would be read again and again, and the watch would not work.
    "where its version is too old it is watched from what exists": (
        [one(), one(), one(), one("900")],
        [[410], [an_event("ADDED", "7", "one"), A_MINUTE], [A_MINUTE]],
        [Listed(["one"]), Listed(["one"]), Changed("ADDED", "one"), Listed(["one"])],
        ["7", "0", "0", "900"],
    ),
}


@pytest.mark.parametrize(
    ("reads", "watches", "reported", "since"), ONE_OBJECT.values(), ids=ONE_OBJECT
)
def test_one_object_is_followed(reads, watches, reported, since):
    script = Script(reads, watches)
    assert (followed(script, name="one"), script.watch_versions) == (reported, since)


def test_pauses_differ_by_a_quarter():
    slept = []

    def sleep(pause_s):
        slept.append(pause_s)
        if len(slept) == 200:
            raise Enough

    api, state = ApiServer(), random.getstate()
    api.fails("GET", 0, forever=True)
    with pytest.raises(Enough):
        follow(
            Collection(kube=api.kube(), path=THINGS, project=name_of), lambda _: None, sleep=sleep
        )
    longest = slept[4:]
    assert min(longest) >= 0.75 * LONGEST_PAUSE_S
    assert max(longest) <= LONGEST_PAUSE_S
    assert max(longest) - min(longest) > 0.2 * LONGEST_PAUSE_S
    assert random.getstate() == state  # other code may seed it and rely on its numbers


def test_a_bug_in_whoever_gets_the_reports_is_reported_and_ends_nothing():
    reported = []

    def report(received):
        reported.append(simplify(received))
        if len(reported) == 1:
            raise ValueError("a bug")

    followed(Script([("5", "a"), ("8", "b")], [[A_MINUTE]] * 2), report)
    assert reported == [Listed(["a"]), Failed(ValueError), Listed(["b"])]


def test_whoever_gets_the_reports_may_end_it_by_raising_a_bug():
    def report(received):
        if isinstance(received, Failed):
            raise received.error

    def keep(_):
        raise ValueError("a bug")

    collection = Collection(kube=Script([("5", "a")]).kube(), path=THINGS, project=keep)
    with pytest.raises(ValueError, match="a bug"):
        follow(collection, report, sleep=lambda _: None)
