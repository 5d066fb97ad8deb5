"""Responses of any size are read in bounded memory, without losing an object."""

from __future__ import annotations

import gc
import itertools
import json
import platform
import subprocess
import sys
import threading
import tracemalloc
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.api_server import ApiServer
from webhook.adapters.kube import bounded_json, client, transport
from webhook.adapters.kube.bounded_json import (
    LargeAnswerLock,
    ListReader,
    MalformedError,
    split_lines,
)
from webhook.adapters.kube.connection import connect
from webhook.adapters.kube.errors import KubeError
from webhook.adapters.kube.follow import Changed, Collection, Listed, follow
from webhook.core.placement.pod_state import read_pod_state

THINGS = "/api/v1/things"
PAGE_BYTES, MAX_OBJECT_BYTES, LARGE_BYTES = 20_000, 40_000, 10_000


@pytest.fixture
def _small(monkeypatch):
    """Lower the limits, so that small objects reach them."""
    monkeypatch.setattr(client, "PAGE_BYTES", PAGE_BYTES)
    for module in (client, transport):
        monkeypatch.setattr(module, "MAX_OBJECT_BYTES", MAX_OBJECT_BYTES)
    monkeypatch.setattr(transport, "_PART_BYTES", 1000)
    monkeypatch.setattr(bounded_json, "LARGE_BYTES", LARGE_BYTES)


def an_object(name, size=0, version="5"):
    """Return an object of about `size` bytes, with its members in the API server's order."""
    identity = {"name": name, "namespace": "team", "uid": f"uid-{name}", "resourceVersion": version}
    metadata = {**identity, "generation": 1, "labels": {"uid": "another"}}
    return {"metadata": metadata, "spec": {"args": ["ü" * (size // 2)]}, "status": {}}


def to_json(thing):
    return json.dumps(thing, ensure_ascii=False, separators=(",", ":")).encode()


def name_of(thing):
    return thing["metadata"]["name"]


class Store:
    """A collection that is served in pages, as by an API server."""

    def __init__(self, *sizes):
        self.objects = [an_object(f"o{number}", size) for number, size in enumerate(sizes)]
        self.limits = []

    @property
    def names(self):
        return [name_of(thing) for thing in self.objects]

    def __call__(self, request):
        """Return a page, as a step of the API server's script."""
        return 200, self._page(request.query)

    def _page(self, query):
        limit, begin = int(query["limit"]), int(query.get("continue", "0"))
        self.limits.append(limit)
        end = begin + limit
        metadata = {"resourceVersion": "9"}
        if end < len(self.objects):
            metadata |= {"continue": str(end), "remainingItemCount": len(self.objects) - end}
        head = {"kind": "ThingList", "apiVersion": "v1", "metadata": metadata}
        yield to_json(head)[:-1] + b',"items":['
        for number, thing in enumerate(self.objects[begin:end]):
            yield (b"," if number else b"") + to_json(thing)
        yield b"]}\n"


def serving(*steps):
    """Return a client of an API server with these responses; the last response is repeated."""
    api = ApiServer()
    api.answers = list(steps)
    return api.kube()


class WeakDict(dict):
    """A JSON object that supports weak references."""

    __hash__ = object.__hash__


# Lists


def test_pages_double_up_to_five_hundred_objects():
    store = Store(*[100] * 2000)
    assert serving(store).list_versioned(THINGS, name_of) == (store.names, "9")
    assert store.limits == [50, 100, 200, 400, 500, 500, 500]


@pytest.mark.usefixtures("_small")
def test_a_page_that_is_too_large_is_asked_for_again_with_the_number_that_fits():
    store = Store(*[5_000] * 12, *[100] * 600)
    assert serving(store).list_versioned(THINGS, name_of) == (store.names, "9")
    # The fourth object does not fit into its page. Later pages grow as the objects become smaller.
    assert store.limits[:10] == [50, 3, 3, 3, 3, 3, 6, 12, 24, 48]
    assert max(store.limits[10:]) > 50


@pytest.mark.usefixtures("_small")
def test_objects_larger_than_a_page_are_read_one_by_one():
    store = Store(100, 30_000, 30_000, 100)
    assert serving(store).list_all(THINGS, name_of) == store.names
    assert store.limits == [50, 1, 2, 1, 1, 1]


def test_a_page_that_takes_too_long_is_asked_for_again_with_a_tenth():
    """The lower limit stays until the end of the list, since a larger page would be slow again."""
    store = Store(*[100] * 70)

    def slow(request):
        store.limits.append(int(request.query["limit"]))
        return 504

    kube = serving(store, slow, store, slow, store)
    assert kube.list_versioned(THINGS, name_of) == (store.names, "9")
    assert store.limits == [50, 100, 10, 10, *[1] * 10]


@pytest.fixture
def silence():
    """Return a function that blocks until the end of the test."""
    over = threading.Event()
    yield lambda: over.wait(60)
    over.set()


@pytest.mark.parametrize("begins", [False, True], ids=["it never begins", "it breaks off"])
def test_an_answer_that_takes_too_long_says_so(silence, api_server, begins):
    def parts():
        yield b'{"items":['
        silence()

    def slow(_request):
        return (200, parts()) if begins else silence() and 0

    api_server.fails("GET", slow, forever=True)
    with pytest.raises(KubeError) as caught:
        connect(api_server.kubeconfig, tries=1, timeout_s=0.2).list_all(THINGS, name_of)
    assert caught.value.slow


@pytest.mark.usefixtures("_small")
def test_of_an_object_that_is_too_large_alone_its_identity_is_kept():
    store = Store(100, 90_000, 100)
    pods, version = serving(store).list_versioned(THINGS, read_pod_state)
    assert [(pod.uid, pod.name) for pod in pods] == [
        (f"uid-{name}", f"team/{name}") for name in store.names
    ]
    assert version == "9"


@given(st.lists(st.sampled_from([0, 900, 4_000, 15_000, 25_000, 60_000]), max_size=40))
def test_whatever_the_sizes_are_each_object_is_listed_once_and_in_order(sizes):
    store = Store(*sizes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client, "PAGE_BYTES", PAGE_BYTES)
        patch.setattr(client, "MAX_OBJECT_BYTES", MAX_OBJECT_BYTES)
        assert serving(store).list_versioned(THINGS, name_of) == (store.names, "9")
    # Each object can make one page too large, and each page that is read has at least one object.
    assert len(store.limits) <= 2 * len(sizes) + 1


def test_memory_stays_small_while_a_large_list_is_read():
    store = Store(*[10**6] * 40)
    kube = serving(store)
    tracemalloc.start()
    try:
        assert kube.list_all(THINGS, name_of) == store.names
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 24 * 2**20  # one page, as bytes and as text that is not ASCII


def test_one_object_of_a_page_at_a_time_is_in_memory(monkeypatch):
    there, beside = weakref.WeakSet(), []

    def an_item(pairs):
        beside.append(len(there))
        made = WeakDict(pairs)
        there.add(made)
        return made

    decode = json.JSONDecoder(object_pairs_hook=an_item).raw_decode
    monkeypatch.setattr(bounded_json, "_decode", decode)
    reader = ListReader(len)
    reader.read(to_json({"items": [{"a": number} for number in range(5)]}).decode())
    assert (reader.projected, beside) == ([1] * 5, [0] * 5)


def test_a_list_of_one_that_is_many_is_a_failure(monkeypatch):
    """Otherwise objects would be lost if the API server ignored `limit`."""
    monkeypatch.setattr(client, "PAGE_BYTES", 300)
    monkeypatch.setattr(client, "MAX_OBJECT_BYTES", 1000)
    things = [an_object(f"o{number}", 100) for number in range(9)]
    kube = serving((200, {"metadata": {"continue": "x"}, "items": things}))
    with pytest.raises(KubeError, match="broke off: more than one object"):
        kube.list_all(THINGS, name_of)


WHOLE = '{"metadata":{"resourceVersion":"1"},"items":[{"a":1},{"a":2}],"kind":"L"}'


def test_a_list_is_read_whatever_the_order_and_the_spaces():
    for text in (WHOLE, json.dumps(json.loads(WHOLE), indent=1)):
        reader = ListReader(lambda thing: thing["a"])
        reader.read(text)
        assert reader.projected == [1, 2]
        assert reader.other_members == {"metadata": {"resourceVersion": "1"}, "kind": "L"}


@pytest.mark.parametrize("end", range(len(WHOLE)))
def test_a_list_that_ends_early_is_malformed(end):
    with pytest.raises(MalformedError):
        ListReader(dict).read(WHOLE[:end])


@pytest.mark.parametrize(
    "text",
    ["", "[]", '"x"', '{"items":[1]}', '{"items":[{},]}', '{"items":[{}{}]}', '{"items" []}',
     '{"items":[' + '{"a":' * 100_000],
)  # fmt: skip
def test_what_is_no_list_is_malformed(text):
    with pytest.raises(MalformedError):
        ListReader(dict).read(text)


def test_a_bug_in_what_is_kept_is_no_failure_of_the_api_server():
    def keep(_thing):
        raise ValueError("a bug")

    kube = serving(Store(0), (200, {}))
    with pytest.raises(ValueError, match="a bug"):
        kube.list_all(THINGS, keep)
    with pytest.raises(ValueError, match="a bug"):
        kube.find_parsed(THINGS, keep)


# Single objects


@pytest.mark.usefixtures("_small")
def test_an_answer_that_is_too_large_is_a_failure_and_the_next_is_read():
    kube = serving((200, an_object("a", 10**6)), (200, an_object("b")))
    with pytest.raises(KubeError, match=r"answers with more than 40000 bytes") as caught:
        kube.read(THINGS)
    assert caught.value.code == 0
    assert kube.find_parsed(THINGS, name_of) == "b"


def test_what_an_api_server_says_of_a_failure_is_cut():
    kube = serving((422, {"message": "x" * 10**6}), (422, b'{"message": "' + b"x" * 2**25))
    with pytest.raises(KubeError, match="answers 422: xxx") as caught:
        kube.read(THINGS)
    assert len(str(caught.value)) < 2100
    with pytest.raises(KubeError, match=r"answers 422$"):
        kube.read(THINGS)


@pytest.mark.usefixtures("_small")
def test_what_is_large_is_read_without_a_copy_of_it(monkeypatch):
    sizes = []
    loads = bounded_json.orjson.loads
    monkeypatch.setattr(bounded_json.orjson, "loads", lambda data: sizes.append(1) or loads(data))
    small, large = an_object("a", 100), an_object("b", LARGE_BYTES)
    assert [bounded_json.read_object(to_json(found)) for found in (small, large)] == [small, large]
    assert len(sizes) == 1


class AwaitedLock:
    """A lock that sets an event once a number of threads wait for it."""

    def __init__(self, waiting):
        self._lock, self.all_wait = threading.Lock(), threading.Event()
        self._wanted, self._waiting = waiting, []

    def acquire(self, timeout):
        if self._lock.acquire(blocking=False):
            return True
        self._waiting.append(1)
        if len(self._waiting) >= self._wanted:
            self.all_wait.set()
        return self._lock.acquire(timeout=timeout)

    def release(self):
        self._lock.release()


@pytest.mark.usefixtures("_small")
def test_large_answers_are_read_by_one_thread_at_a_time_and_small_ones_by_all(monkeypatch):
    lock, inside, small = AwaitedLock(7), [], []
    monkeypatch.setattr(bounded_json, "_large_answer_lock", lock)

    def answer(request):
        return 200, to_json(an_object("a", 0 if "small" in request.path else 30_000))

    kube = serving(answer).with_retries(1, timeout_s=60)

    def keep(thing):
        inside.append(1)
        small.append(kube.find_parsed(THINGS + "/small", name_of))
        assert lock.all_wait.wait(60)
        assert len(inside) == 1
        inside.pop()
        return name_of(thing)

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: kube.find_parsed(THINGS, keep), range(8)))
    assert (found, small) == (["a"] * 8, ["a"] * 8)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries free otherwise")
def test_threads_that_read_large_answers_keep_nothing_of_it(tmp_path):
    """The code runs in a separate process with fresh heaps."""
    containers = [{"args": ["x" * 100_000] * 14}, {"args": ["\1" * 100_000] * 14},
                  {"env": [{"name": "a"}] * 200_000}]  # fmt: skip
    bodies = itertools.cycle([json.dumps({"spec": spec}).encode() for spec in containers])

    with ApiServer(tmp_path) as server:
        server.fails("GET", lambda _: (200, next(bodies)), forever=True)
        command = [sys.executable, "-c", READ_BY_MANY, str(server.kubeconfig)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    before_mib, after_mib = map(int, done.stdout.split())
    assert after_mib - before_mib < 50


READ_BY_MANY = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from webhook.adapters.kube.connection import connect

def resident_mib():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20

kube = connect(Path(sys.argv[1]), timeout_s=60)
before_mib = resident_mib()
with ThreadPoolExecutor(32) as pool:
    list(pool.map(lambda _: kube.find_parsed("/x", len), range(64)))
    print(before_mib, resident_mib())
"""


@pytest.mark.usefixtures("_small")
def test_a_large_answer_waits_for_another_a_bounded_time():
    with LargeAnswerLock(1) as first, LargeAnswerLock(0.01) as second:
        first.claim(LARGE_BYTES + 1)
        second.claim(LARGE_BYTES)
        with pytest.raises(TimeoutError, match="other large answers"):
            second.claim(LARGE_BYTES + 1)
        first.release()
        second.claim(LARGE_BYTES + 1)
    with LargeAnswerLock(0.01) as third:
        third.claim(LARGE_BYTES + 1)


# Watches


def an_event(kind, thing):
    return to_json({"type": kind, "object": {"kind": "Thing", "apiVersion": "v1", **thing}}) + b"\n"


@pytest.mark.usefixtures("_small")
def test_of_an_event_that_is_too_large_type_and_identity_are_kept_and_the_next_follows():
    large = an_event("MODIFIED", an_object("a", 90_000, version="6"))
    ended = an_event("DELETED", an_object("a", 30_000, version="7"))
    kube = serving((200, iter([large[:50], large[50:] + ended[:9], ended[9:]])))
    identity = {"name": "a", "namespace": "team", "uid": "uid-a"}
    (first, cut), (second, whole) = kube.watch(THINGS, lasting_s=1)
    assert (first, cut["metadata"]) == ("MODIFIED", {**identity, "resourceVersion": "6"})
    assert not isinstance(cut["spec"], dict)
    assert (second, whole["metadata"]["resourceVersion"]) == ("DELETED", "7")
    assert whole["spec"]["args"] == ["ü" * 15_000]


@pytest.mark.usefixtures("_small")
def test_an_event_that_is_too_large_and_does_not_say_of_what_ends_the_watch():
    for beginning in (
        b'{"type":"ADDED","object":{"spec":"',
        b'{"object":{"metadata":{"name":"a"},"',
    ):
        kube = serving((200, beginning + b"x" * 90_000 + b"\n"))
        with pytest.raises(KubeError, match=r"broke off: an .* that is too large"):
            list(kube.watch(THINGS, lasting_s=1))


def test_a_long_line_in_many_parts_costs_time_that_is_linear():
    """Copying the start of the line for each part would copy 400 GB."""
    count = 200_000
    with LargeAnswerLock(1) as lock:
        found = list(split_lines((b"x" * 20 for _ in range(count)), 2**30, lock))
        assert found == []
        ((line, whole),) = split_lines([*[b"x" * 20] * count, b"\n"], 2**30, lock)
    assert (len(line), whole) == (20 * count, True)


def test_a_line_that_never_ends_is_forgotten_as_it_arrives():
    part = b"x" * 2**16
    tracemalloc.start()
    try:
        with LargeAnswerLock(1) as lock:
            assert list(split_lines((part for _ in range(1000)), 2**20, lock)) == []
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 4 * 2**20


def watched(events):
    """Return a client of an API server with an empty list and a watch of these events."""
    return serving((200, {"metadata": {"resourceVersion": "1"}, "items": []}), (200, events))


@pytest.mark.usefixtures("_small")
def test_between_large_events_others_may_read():
    def events():
        yield an_event("ADDED", an_object("a", 30_000))
        with LargeAnswerLock(60) as lock:
            lock.claim(LARGE_BYTES + 1)
        yield an_event("DELETED", an_object("b"))

    reported = followed(watched(events()), enough=3)
    assert reported == [Listed([]), Changed("ADDED", "a"), Changed("DELETED", "b")]


def test_an_event_is_forgotten_before_the_next_one_arrives(monkeypatch):
    there, left = weakref.WeakSet(), []

    def read_object(data):
        found = WeakDict(json.loads(data))
        found["object"] = WeakDict(found.get("object", {}))
        there.update([found, found["object"]])
        return found

    def events():
        yield an_event("ADDED", an_object("a"))
        gc.collect()
        left.append(len(there))
        yield an_event("DELETED", an_object("b"))

    monkeypatch.setattr(client, "read_object", read_object)
    followed(watched(events()), enough=3)
    assert left == [0]


class Enough(BaseException):
    """Raised to end `follow`."""


def followed(kube, *, enough):
    """Follow until there are `enough` reports, and return the reports."""
    reported = []

    def report(received):
        reported.append(received)
        if len(reported) == enough:
            raise Enough

    with pytest.raises(Enough):
        follow(Collection(kube=kube, path=THINGS, project=name_of), report, sleep=lambda _: None)
    return reported
