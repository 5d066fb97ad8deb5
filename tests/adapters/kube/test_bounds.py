"""What the API server sends is read in bounded memory, and nothing is lost by it."""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import platform
import subprocess
import sys
import threading
import time
import tracemalloc
import weakref
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.agents import ApiServer
from webhook.adapters.kube import client, reading
from webhook.adapters.kube.client import Kube, KubeError, connect
from webhook.adapters.kube.follow import Changed, Collection, Listed, follow
from webhook.adapters.kube.reading import ListReader, MalformedError, ReadLock, lines
from webhook.core.placement.assignments import read_pod_state

THINGS = "/api/v1/things"
PAGE_BYTES, MOST_BYTES, LARGE_BYTES = 20_000, 40_000, 10_000


@pytest.fixture
def _small(monkeypatch):
    """Make bounds that small objects reach."""
    monkeypatch.setattr(client, "PAGE_BYTES", PAGE_BYTES)
    monkeypatch.setattr(client, "MOST_BYTES", MOST_BYTES)
    monkeypatch.setattr(client, "_PART_BYTES", 1000)
    monkeypatch.setattr(reading, "LARGE_BYTES", LARGE_BYTES)


def an_object(name, size=0, version="5"):
    """Return an object of so many bytes and some, its members in the API server's order."""
    identity = {"name": name, "namespace": "team", "uid": f"uid-{name}", "resourceVersion": version}
    metadata = {**identity, "generation": 1, "labels": {"uid": "another"}}
    return {"metadata": metadata, "spec": {"args": ["ü" * (size // 2)]}, "status": {}}


def written(thing):
    return json.dumps(thing, ensure_ascii=False, separators=(",", ":")).encode()


def name_of(thing):
    return thing["metadata"]["name"]


class Store:
    """A collection, served page by page as an API server does, object after object."""

    def __init__(self, *sizes):
        self.objects = [an_object(f"o{number}", size) for number, size in enumerate(sizes)]
        self.limits = []

    @property
    def names(self):
        return [name_of(thing) for thing in self.objects]

    def page(self, query):
        """Yield the parts of a page."""
        limit, begin = int(query["limit"][0]), int(query.get("continue", ["0"])[0])
        self.limits.append(limit)
        end = begin + limit
        metadata = {"resourceVersion": "9"}
        if end < len(self.objects):
            metadata |= {"continue": str(end), "remainingItemCount": len(self.objects) - end}
        head = {"kind": "ThingList", "apiVersion": "v1", "metadata": metadata}
        yield written(head)[:-1] + b',"items":['
        for number, thing in enumerate(self.objects[begin:end]):
            yield (b"," if number else b"") + written(thing)
        yield b"]}\n"

    def __call__(self, handler):
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        try:
            for part in self.page(parse_qs(urlsplit(handler.path).query)):
                handler.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            handler.wfile.write(b"0\r\n\r\n")
        except OSError:
            handler.close_connection = True  # the client has read enough


class Kept(dict):
    """A JSON object that can be watched being freed."""

    __hash__ = object.__hash__


# Lists


def test_pages_double_up_to_five_hundred_objects(kube, api_server):
    store = Store(*[100] * 2000)
    api_server.answers = [store]
    assert kube.list_all(THINGS, name_of) == (store.names, "9")
    assert store.limits == [50, 100, 200, 400, 500, 500, 500]


@pytest.mark.usefixtures("_small")
def test_a_page_that_is_too_large_is_asked_for_again_with_the_number_that_fits(kube, api_server):
    store = Store(*[5_000] * 12, *[100] * 600)
    api_server.answers = [store]
    assert kube.list_all(THINGS, name_of) == (store.names, "9")
    # The fourth object of a page does not fit; then pages grow as the objects become smaller.
    assert store.limits[:10] == [50, 3, 3, 3, 3, 3, 6, 12, 24, 48]
    assert max(store.limits[10:]) > 50


@pytest.mark.usefixtures("_small")
def test_objects_larger_than_a_page_are_read_one_by_one(kube, api_server):
    store = Store(100, 30_000, 30_000, 100)
    api_server.answers = [store]
    assert kube.list_all(THINGS, name_of)[0] == store.names
    assert store.limits == [50, 1, 2, 1, 1, 1]


def too_slow(handler):
    """Answer nothing more until the client hangs up."""
    handler.connection.settimeout(60)
    with contextlib.suppress(OSError):
        handler.connection.recv(1)
    handler.close_connection = True


def broken_off(handler):
    handler.send_response(200)
    handler.send_header("Content-Length", "99")
    handler.end_headers()
    handler.wfile.write(b'{"items":[')
    too_slow(handler)


TIMED_OUT = 504, {"kind": "Status", "code": 504, "message": "Timeout"}


@pytest.mark.parametrize("slow", [too_slow, broken_off, TIMED_OUT])
def test_a_page_that_takes_too_long_is_asked_for_again_with_a_tenth(slow, api_server):
    """Once each, and so to the end: what is slow for so many objects is slow again."""
    patient, hasty = (connect(api_server.kubeconfig, answer_s=seconds) for seconds in (3, 0.1))
    store = Store(*[100] * 70)
    api_server.answers = [store, slow, store, slow, store]
    assert patient.list_all(THINGS, name_of) == (store.names, "9")
    asked = [parse_qs(urlsplit(path).query) for _, path, _, _ in api_server.asked]
    limits = [int(query["limit"][0]) for query in asked]
    assert limits == [50, 100, 10, 10, *[1] * 10]
    api_server.answers = [slow]
    with pytest.raises(KubeError):
        hasty.list_all(THINGS, name_of)


@pytest.mark.usefixtures("_small")
def test_of_an_object_that_is_too_large_alone_its_identity_is_kept(kube, api_server):
    store = Store(100, 90_000, 100)
    api_server.answers = [store]
    pods, version = kube.list_all(THINGS, read_pod_state)
    assert [(pod.uid, pod.name) for pod in pods] == [
        (f"uid-{name}", f"team/{name}") for name in store.names
    ]
    assert version == "9"


class Pages(Kube):
    """Reads pages of a store without a server, by the real code."""

    def __init__(self, store):
        self.store = store
        self.url, self._answer_s = "http://x", 1.0

    def _answer(self, _method, _path, query, **_):
        pages = self.store.page({key: [value] for key, value in query.items()})

        class Answer:
            def stream(self, *_, **__):
                return pages

            def close(self):
                pages.close()

        return Answer()


@given(st.lists(st.sampled_from([0, 900, 4_000, 15_000, 25_000, 60_000]), max_size=40))
def test_whatever_the_sizes_are_each_object_is_listed_once_and_in_order(sizes):
    store = Store(*sizes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client, "PAGE_BYTES", PAGE_BYTES)
        patch.setattr(client, "MOST_BYTES", MOST_BYTES)
        assert Pages(store).list_all(THINGS, name_of) == (store.names, "9")
    # Each object can spoil one page, and each page that is read has one object at least.
    assert len(store.limits) <= 2 * len(sizes) + 1


def test_memory_stays_small_while_a_large_list_is_read(kube, api_server):
    store = Store(*[10**6] * 40)
    api_server.answers = [store]
    tracemalloc.start()
    try:
        assert kube.list_all(THINGS, name_of)[0] == store.names
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 24 * 2**20  # one page, as bytes and as text that is not ASCII


def test_one_object_of_a_page_at_a_time_is_in_memory(monkeypatch):
    there, beside = weakref.WeakSet(), []

    def an_item(pairs):
        beside.append(len(there))
        made = Kept(pairs)
        there.add(made)
        return made

    decode = json.JSONDecoder(object_pairs_hook=an_item).raw_decode
    monkeypatch.setattr(reading, "_decode", decode)
    reader = ListReader(len)
    reader.read(written({"items": [{"a": number} for number in range(5)]}).decode())
    assert (reader.kept, beside) == ([1] * 5, [0] * 5)


def test_a_list_of_one_that_is_many_is_a_failure(kube, api_server, monkeypatch):
    """Else what an API server adds that ignores `limit` would be lost."""
    monkeypatch.setattr(client, "PAGE_BYTES", 300)
    monkeypatch.setattr(client, "MOST_BYTES", 1000)
    things = [an_object(f"o{number}", 100) for number in range(9)]
    api_server.answers = [(200, {"metadata": {"continue": "x"}, "items": things})]
    with pytest.raises(KubeError, match="broke off: more than one object"):
        kube.list_all(THINGS, name_of)


WHOLE = '{"metadata":{"resourceVersion":"1"},"items":[{"a":1},{"a":2}],"kind":"L"}'


def test_a_list_is_read_whatever_the_order_and_the_spaces():
    for text in (WHOLE, json.dumps(json.loads(WHOLE), indent=1)):
        reader = ListReader(lambda thing: thing["a"])
        reader.read(text)
        assert reader.kept == [1, 2]
        assert reader.rest == {"metadata": {"resourceVersion": "1"}, "kind": "L"}


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


def test_a_bug_in_what_is_kept_is_no_failure_of_the_api_server(kube, api_server):
    def keep(_thing):
        raise ValueError("a bug")

    api_server.answers = [Store(0), (200, {})]
    with pytest.raises(ValueError, match="a bug"):
        kube.list_all(THINGS, keep)
    with pytest.raises(ValueError, match="a bug"):
        kube.find_kept(THINGS, keep)


# Single answers


@pytest.mark.usefixtures("_small")
def test_an_answer_that_is_too_large_is_a_failure_and_the_next_is_read(kube, api_server):
    api_server.answers = [(200, an_object("a", 10**6)), (200, an_object("b"))]
    with pytest.raises(KubeError, match=r"answers with more than 40000 bytes") as caught:
        kube.read(THINGS)
    assert caught.value.code == 0
    assert kube.find_kept(THINGS, name_of) == "b"


def test_of_an_object_that_does_not_exist_nothing_is_kept(kube, api_server):
    api_server.answers = [(404, {}), (403, {})]
    assert kube.find_kept(THINGS, name_of) is None
    with pytest.raises(KubeError, match="our role"):
        kube.find_kept(THINGS, name_of)


def test_what_an_api_server_says_of_a_failure_is_cut(kube, api_server):
    api_server.answers = [(422, {"message": "x" * 10**6}), (422, b'{"message": "' + b"x" * 2**25)]
    with pytest.raises(KubeError, match="answers 422: xxx") as caught:
        kube.read(THINGS)
    assert len(str(caught.value)) < 2100
    with pytest.raises(KubeError, match=r"answers 422$"):
        kube.read(THINGS)


@pytest.mark.usefixtures("_small")
def test_what_is_large_is_read_without_a_copy_of_it(monkeypatch):
    sizes = []
    loads = reading.orjson.loads
    monkeypatch.setattr(reading.orjson, "loads", lambda data: sizes.append(1) or loads(data))
    small, large = an_object("a", 100), an_object("b", LARGE_BYTES)
    assert [reading.read_object(written(one)) for one in (small, large)] == [small, large]
    assert len(sizes) == 1


@pytest.mark.usefixtures("_small")
def test_large_answers_are_read_by_one_thread_at_a_time_and_small_ones_by_all(kube, api_server):
    inside, most, small = 0, 0, []

    def keep(thing):
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        small.append(kube.find_kept(THINGS + "/small", name_of))
        time.sleep(0.02)
        inside -= 1
        return name_of(thing)

    def answer(handler):
        size = 0 if "small" in handler.path else 30_000
        data = written(an_object("a", size))
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    api_server.answers = [answer]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: kube.find_kept(THINGS, keep), range(8)))
    assert (found, small, most) == (["a"] * 8, ["a"] * 8, 1)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries free otherwise")
def test_threads_that_read_large_answers_keep_nothing_of_it(tmp_path):
    """In a process of its own, whose heaps nobody used before."""
    containers = [{"args": ["x" * 100_000] * 14}, {"args": ["\1" * 100_000] * 14},
                  {"env": [{"name": "a"}] * 200_000}]  # fmt: skip
    bodies = itertools.cycle([json.dumps({"spec": one}).encode() for one in containers])

    def answer(handler):
        data = next(bodies)
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    with ApiServer(tmp_path) as server:
        server.answers = [answer]
        command = [sys.executable, "-c", READ_BY_MANY, str(server.kubeconfig)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    before_mib, after_mib = map(int, done.stdout.split())
    assert after_mib - before_mib < 50


READ_BY_MANY = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from webhook.adapters.kube.client import connect

def resident_mib():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20

kube = connect(Path(sys.argv[1]), answer_s=60)
before_mib = resident_mib()
with ThreadPoolExecutor(32) as pool:
    list(pool.map(lambda _: kube.find_kept("/x", len), range(64)))
    print(before_mib, resident_mib())
"""


@pytest.mark.usefixtures("_small")
def test_a_large_answer_waits_for_another_a_bounded_time():
    with ReadLock(1) as first, ReadLock(0.01) as second:
        first.claim(LARGE_BYTES + 1)
        second.claim(LARGE_BYTES)
        with pytest.raises(TimeoutError, match="other large answers"):
            second.claim(LARGE_BYTES + 1)
        first.leave()
        second.claim(LARGE_BYTES + 1)
    with ReadLock(0.01) as third:
        third.claim(LARGE_BYTES + 1)


# Watches


def chunked(*parts):
    def answer(handler):
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for part in parts:
            data = part() if callable(part) else part
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        handler.wfile.write(b"0\r\n\r\n")

    return answer


def an_event(kind, thing):
    return written({"type": kind, "object": {"kind": "Thing", "apiVersion": "v1", **thing}}) + b"\n"


@pytest.mark.usefixtures("_small")
def test_of_an_event_that_is_too_large_type_and_identity_are_kept_and_the_next_follows(
    kube, api_server
):
    large = an_event("MODIFIED", an_object("a", 90_000, version="6"))
    ended = an_event("DELETED", an_object("a", 30_000, version="7"))
    api_server.answers = [chunked(large[:50], large[50:] + ended[:9], ended[9:])]
    identity = {"name": "a", "namespace": "team", "uid": "uid-a"}
    (first, cut), (second, whole) = kube.watch(THINGS, lasting_s=1)
    assert (first, cut["metadata"]) == ("MODIFIED", {**identity, "resourceVersion": "6"})
    assert not isinstance(cut["spec"], dict)
    assert (second, whole["metadata"]["resourceVersion"]) == ("DELETED", "7")
    assert whole["spec"]["args"] == ["ü" * 15_000]


@pytest.mark.usefixtures("_small")
def test_an_event_that_is_too_large_and_does_not_say_of_what_ends_the_watch(kube, api_server):
    for beginning in (
        b'{"type":"ADDED","object":{"spec":"',
        b'{"object":{"metadata":{"name":"a"},"',
    ):
        api_server.answers = [chunked(beginning + b"x" * 90_000 + b"\n")]
        with pytest.raises(KubeError, match=r"broke off: an .* that is too large"):
            list(kube.watch(THINGS, lasting_s=1))


def test_a_long_line_in_many_parts_costs_time_that_is_linear():
    """With a copy of what came before for each part it would be 400 GB."""
    count = 200_000
    started_s = time.monotonic()
    with ReadLock(1) as lock:
        found = list(lines((b"x" * 20 for _ in range(count)), 2**30, lock))
        assert found == []
        ((line, whole),) = lines([*[b"x" * 20] * count, b"\n"], 2**30, lock)
    assert (len(line), whole) == (20 * count, True)
    assert time.monotonic() - started_s < 10


def test_a_line_that_never_ends_is_forgotten_as_it_arrives():
    part = b"x" * 2**16
    tracemalloc.start()
    try:
        with ReadLock(1) as lock:
            assert list(lines((part for _ in range(1000)), 2**20, lock)) == []
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 4 * 2**20


@pytest.mark.usefixtures("_small")
def test_between_large_events_others_may_read(kube, api_server):
    taken = threading.Event()

    def keep(thing):
        taken.set()
        return name_of(thing)

    def other():
        assert taken.wait(60)
        with ReadLock(5) as lock:
            lock.claim(LARGE_BYTES + 1)
        return an_event("DELETED", an_object("b"))

    large = an_event("ADDED", an_object("a", 30_000))
    api_server.answers = [(200, {"metadata": {"resourceVersion": "1"}, "items": []}),
                          chunked(large, other)]  # fmt: skip
    reported = followed(kube, keep, enough=3)
    assert reported == [Listed([]), Changed("ADDED", "a"), Changed("DELETED", "b")]


def test_an_event_is_forgotten_before_the_next_one_arrives(kube, api_server, monkeypatch):
    there, left, taken = weakref.WeakSet(), [], threading.Event()

    def read_object(data):
        found = Kept(json.loads(data))
        found["object"] = Kept(found.get("object", {}))
        there.update([found, found["object"]])
        return found

    def second():
        assert taken.wait(60)
        time.sleep(0.1)  # until the client waits for this one
        gc.collect()
        left.append(len(there))
        return an_event("DELETED", an_object("b"))

    def keep(thing):
        taken.set()
        return name_of(thing)

    monkeypatch.setattr(client, "read_object", read_object)
    api_server.answers = [(200, {"metadata": {"resourceVersion": "1"}, "items": []}),
                          chunked(an_event("ADDED", an_object("a")), second)]  # fmt: skip
    followed(kube, keep, enough=3)
    assert left == [0]


class Enough(BaseException):
    """Ends what works forever."""


def followed(kube, keep=name_of, *, enough):
    """Follow until so much was reported, and return it."""
    reported = []

    def report(one):
        reported.append(one)
        if len(reported) == enough:
            raise Enough

    with pytest.raises(Enough):
        follow(Collection(kube=kube, path=THINGS, keep=keep), report, sleep=lambda _: None)
    return reported
