"""HTTP/1.1 on one connection: requests, responses, and the limits of each part."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import re
import socket
import ssl
import weakref
from dataclasses import replace

import pytest
import uvloop

from tests.support.pods import a_container, a_pod, a_review
from tests.support.recorded_log import RecordedLog
from tests.support.router_client import Clock, a_router, connected, no_connections, post, turns
from webhook.server import http
from webhook.server.bounds import MAX_HEAD_BYTES, MAX_HEADERS, MAX_UNSENT_BYTES
from webhook.server.certificates import FolderKeeper
from webhook.server.connections import CLOSE_S, REQUEST_S, Stage
from webhook.server.handler import Answer
from webhook.server.log import JsonLog
from webhook.server.metrics import Metrics

REVIEW = json.dumps(a_review(a_pod(), uid="here")).encode()
LINE = b"POST /mutate HTTP/1.1\r\n"
HEAD = b"Host: x\r\nContent-Type: application/json\r\n"
LENGTH = b"Content-Length: %d\r\n" % len(REVIEW)
CHUNKED = b"Transfer-Encoding: chunked\r\n"
WHOLE = LINE + HEAD + LENGTH + b"\r\n" + REVIEW


def chunk(data, extension=b""):
    return b"%x%b\r\n%b\r\n" % (len(data), extension, data)


END = b"0\r\n\r\n"


@pytest.fixture
def metrics():
    return Metrics()


@pytest.fixture
def log():
    return RecordedLog()


@pytest.fixture
def router(metrics, log):
    return a_router(log, metrics)


def send_parts(router, *parts):
    """Send parts on one connection; return the data written after each part, and the transport."""

    async def story():
        connection, line, _ = connected(router)
        line.connections._sweep()  # runs each second, and updates the Date header
        written = []
        for part in parts:
            before = len(line.written)
            connection.data_received(part)
            written.append(line.written[before:])
        return written, line

    return asyncio.run(story())


def exchange(router, *parts):
    """Send parts on one connection; return the responses, and True if it is still open.

    Each response is its status, its headers in lower case, and its body.
    """
    written, line = send_parts(router, *parts)
    came, answers = b"".join(written), []
    while came:
        head, _, rest = came.partition(b"\r\n\r\n")
        status, *lines = head.decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        size = int(headers.get("content-length", 0))
        answers.append((int(status.split()[1]), headers, rest[:size]))
        came = rest[size:]
    return answers, not line.is_closed


def status_codes(router, *parts):
    answers, is_open = exchange(router, *parts)
    return [status for status, *_ in answers], is_open


GOOD = {
    "a length": (WHOLE,),
    "byte by byte": (*(WHOLE[i : i + 1] for i in range(3)), WHOLE[3:]),
    "in chunks": (LINE + HEAD + CHUNKED + b"\r\n" + chunk(REVIEW[:50]) + chunk(REVIEW[50:]) + END,),
    "chunks that come late": (
        LINE + HEAD + CHUNKED + b"\r\n",
        chunk(REVIEW[:50])[:20],
        chunk(REVIEW[:50])[20:] + chunk(REVIEW[50:]) + END,
    ),
    "a chunk's extension": (LINE + HEAD + CHUNKED + b"\r\n" + chunk(REVIEW, b";name=value") + END,),
    "a trailer that counts for nothing": (
        LINE + HEAD + CHUNKED + b"\r\n" + chunk(REVIEW) + b"0\r\nContent-Type: text/plain\r\n\r\n",
    ),
    "an empty line before": (b"\r\n" + WHOLE,),
    "an empty line after": (WHOLE + b"\r\n",),
    "a query": (WHOLE.replace(b"/mutate", b"/mutate?timeout=5s"),),
    "headers in any case": (LINE + HEAD.upper() + LENGTH.lower() + b"\r\n" + REVIEW,),
    "bytes that are no ASCII": (LINE + HEAD + LENGTH + b"X: \xff\r\n\r\n" + REVIEW,),
}


@pytest.mark.parametrize("parts", GOOD.values(), ids=GOOD)
def test_two_reviews_in_a_row_are_answered(router, parts):
    answers, is_open = exchange(router, *parts, WHOLE)
    assert [(status, json.loads(body)["response"]["uid"]) for status, _, body in answers] == [
        (200, "here"),
        (200, "here"),
    ]
    assert is_open


def test_an_answer_has_the_headers_that_it_needs(router):
    ((status, headers, body),), _ = exchange(router, WHOLE)
    date = headers.pop("date")
    assert re.fullmatch(r"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d gmt", date)
    length = str(len(body))
    assert (status, headers) == (
        200,
        {"content-type": "application/json", "content-length": length},
    )


LAST = {
    "asked to close": (WHOLE.replace(HEAD, HEAD + b"Connection: close\r\n"), 200),
    "HTTP/1.0": (WHOLE.replace(b"1.1", b"1.0"), 200),
    "HTTP/1.0 that would keep alive": (
        WHOLE.replace(b"1.1", b"1.0").replace(HEAD, HEAD + b"Connection: keep-alive\r\n"),
        200,
    ),
    "CONNECT": (b"CONNECT x:443 HTTP/1.1\r\nHost: x\r\n\r\n", 405),
    "a websocket": (
        b"GET /mutate HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        405,
    ),
    "HTTP/2 by an upgrade": (
        LINE + HEAD + b"Connection: Upgrade\r\nUpgrade: h2c\r\n" + LENGTH + b"\r\n" + REVIEW,
        400,
    ),
    "HTTP/2 at once": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "HTTP/2 by its name": (WHOLE.replace(b"1.1", b"2.0"), 400),
    "HTTP/0.9": (WHOLE.replace(b"1.1", b"0.9"), 400),
    "a body that is not wanted": (
        LINE + b"Host: x\r\nContent-Type: text/plain\r\n" + LENGTH + b"\r\n",
        415,
    ),
}


@pytest.mark.parametrize(("request_", "status"), LAST.values(), ids=LAST)
def test_it_is_answered_and_the_connection_closed(router, request_, status):
    ((found, headers, _),), is_open = exchange(router, request_)
    assert (found, headers["connection"], is_open) == (status, "close", False)


AMBIGUOUS = {
    "both lengths": LINE + HEAD + LENGTH + CHUNKED + b"\r\n" + chunk(REVIEW) + END,
    "both lengths, the other first": LINE + HEAD + CHUNKED + LENGTH + b"\r\n" + chunk(REVIEW) + END,
    "a length twice": LINE + HEAD + LENGTH + LENGTH + b"\r\n" + REVIEW,
    "two lengths": LINE + HEAD + b"Content-Length: 5\r\n" + LENGTH + b"\r\n" + REVIEW,
    "a list of lengths": LINE + HEAD + b"Content-Length: 5, 5\r\n\r\n" + REVIEW,
    "a signed length": LINE + HEAD + b"Content-Length: +5\r\n\r\n" + REVIEW,
    "a negative length": LINE + HEAD + b"Content-Length: -5\r\n\r\n" + REVIEW,
    "a length in hex": LINE + HEAD + b"Content-Length: 0x5\r\n\r\n" + REVIEW,
    "no digits of a length": LINE + HEAD + b"Content-Length: \r\n\r\n" + REVIEW,
    "a length beyond 64 bits": LINE + HEAD + b"Content-Length: 99999999999999999999\r\n\r\n",
    "a length on two lines": LINE + HEAD + b"Content-Length: 1\r\n 2\r\n\r\n" + REVIEW,
    "a folded header": LINE + HEAD + b"X: a\r\n b\r\n" + LENGTH + b"\r\n" + REVIEW,
    "chunks of HTTP/1.0": LINE.replace(b"1.1", b"1.0") + HEAD + CHUNKED + b"\r\n" + END,
    "another coding": LINE + HEAD + b"Transfer-Encoding: gzip\r\n\r\n" + END,
    "another coding below": LINE + HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + END,
    "another coding above": LINE + HEAD + b"Transfer-Encoding: chunked, gzip\r\n\r\n" + END,
    "a coding of nearly that name": LINE + HEAD + b"Transfer-Encoding: xchunked\r\n\r\n" + END,
    "a coding twice": LINE + HEAD + CHUNKED + CHUNKED + b"\r\n" + END,
    "a coding on the next line": LINE + HEAD + b"Transfer-Encoding:\r\n chunked\r\n\r\n" + END,
    "two hosts": LINE + HEAD + b"Host: y\r\n" + LENGTH + b"\r\n" + REVIEW,
    "two content types": LINE + HEAD + b"Content-Type: text/plain\r\n" + LENGTH + b"\r\n" + REVIEW,
    "lines that end without CR": WHOLE.replace(b"\r\n", b"\n"),
    "a CR within a line": LINE + HEAD + b"X: a\rY: b\r\n" + LENGTH + b"\r\n" + REVIEW,
    "a NUL": LINE + HEAD + b"X: a\0b\r\n" + LENGTH + b"\r\n" + REVIEW,
    "a space before the colon": LINE + HEAD + b"Content-Length : 5\r\n\r\n" + REVIEW,
    "a space before a header": LINE + b" Host: x\r\n" + HEAD + LENGTH + b"\r\n" + REVIEW,
    "no colon": LINE + HEAD + b"Xabc\r\n" + LENGTH + b"\r\n" + REVIEW,
    "a chunk's size that is none": LINE + HEAD + CHUNKED + b"\r\nzz\r\n" + REVIEW,
    "a chunk's size beyond 64 bits": LINE + HEAD + CHUNKED + b"\r\nfffffffffffffffff\r\n",
    "a space after a chunk's size": LINE + HEAD + CHUNKED + b"\r\n2 \r\n{}\r\n" + END,
    "chunks that end without CR": LINE + HEAD + CHUNKED + b"\r\n2\n{}\n0\n\n",
    "a chunk longer than its size": LINE + HEAD + CHUNKED + b"\r\n2\r\n{}x\r\n" + END,
    "a method in lower case": WHOLE.replace(b"POST", b"post"),
    "an unknown method": WHOLE.replace(b"POST", b"BREW"),
    "another protocol": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "many headers": LINE + HEAD + b"a: b\r\n" * MAX_HEADERS + LENGTH + b"\r\n" + REVIEW,
}


@pytest.mark.parametrize("request_", AMBIGUOUS.values(), ids=AMBIGUOUS)
def test_an_ambiguous_request_is_rejected_and_nothing_after_it_is_read(router, metrics, request_):
    answers, is_open = exchange(router, request_, WHOLE)
    ((status, headers, sentence),) = answers
    assert (status, headers["connection"], is_open) == (400, "close", False)
    assert headers["content-type"] == "text/plain"
    assert sentence
    assert rejected_total(metrics, 400) == 1


def rejected_total(metrics, code):
    return metrics.registry.get_sample_value("vramwarden_http_rejected_total", {"code": str(code)})


def test_100_continue_is_sent_once(router):
    expecting = LINE + HEAD + b"Expect: 100-Continue\r\n" + LENGTH + b"\r\n"
    answers, is_open = exchange(router, expecting, REVIEW[:20], REVIEW[20:])
    assert [(status, body[:1]) for status, _, body in answers] == [(100, b""), (200, b"{")]
    assert is_open
    assert status_codes(router, expecting + REVIEW) == ([200], True)
    last = expecting.replace(b"Host: x", b"Host: x\r\nConnection: close")
    assert status_codes(router, last, REVIEW) == ([100, 200], False)
    assert status_codes(router, expecting.replace(b"1.1", b"1.0"), REVIEW) == ([200], False)
    bad = expecting.replace(b"/json", b"/xml")
    assert status_codes(router, bad) == ([415], False)
    large = expecting.replace(LENGTH, b"Content-Length: 99999999\r\n")
    assert status_codes(router, large, b" " * 2000) == ([413], False)


def test_an_answer_to_head_has_no_body(router):
    (first, second), line = send_parts(router, b"HEAD /mutate HTTP/1.1\r\nHost: x\r\n\r\n", WHOLE)
    head, end, body = first.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 405 ")
    assert re.search(rb"\r\ncontent-length: [1-9]", head)
    assert (end, body) == (b"\r\n\r\n", b"")
    assert second.startswith(b"HTTP/1.1 200 ")
    assert not line.is_closed


def test_rejecting_a_complete_request_leaves_the_connection_open(router):
    wrong = WHOLE.replace(b"application/json", b"text/plain")
    elsewhere = WHOLE.replace(b"/mutate", b"/x")
    assert status_codes(router, wrong, elsewhere, WHOLE) == ([415, 404, 200], True)


def is_cut_off(router, sent):
    written, line = send_parts(router, sent)
    return (written, line.is_closed, line.counted) == ([b""], True, ["protocol"])


def test_requests_in_a_row_are_answered_and_pipelined_ones_are_not(router):
    assert status_codes(router, WHOLE, WHOLE, WHOLE) == ([200, 200, 200], True)
    assert is_cut_off(router, WHOLE + WHOLE)
    assert is_cut_off(router, WHOLE + b"x")


LONG = b"x" * MAX_HEAD_BYTES
ENDLESS = {
    "a header": LINE + HEAD + b"X: " + LONG,
    "headers": LINE + HEAD + b"X: y\r\n" * (MAX_HEADERS // 2) + b"Y: " + LONG,
    "a head": LINE + HEAD + b"X: %b\r\n" % LONG + LENGTH + b"\r\n" + REVIEW,
    "a target": WHOLE.replace(b"/mutate", b"/mutate?" + LONG),
    "a chunk's extension": LINE + HEAD + CHUNKED + b"\r\n" + chunk(REVIEW, b";" + LONG),
    "a trailer": LINE + HEAD + CHUNKED + b"\r\n" + chunk(REVIEW) + b"0\r\nX: %b\r\n\r\n" % LONG,
    "empty lines": b"\r\n" * MAX_HEAD_BYTES,
}


def test_a_head_of_maximum_size_is_accepted(router):
    head, end = LINE + HEAD + LENGTH + b"X: ", b"\r\n\r\n"
    longest = head + b"x" * (MAX_HEAD_BYTES - len(head + end))
    assert status_codes(router, longest + end + REVIEW) == ([200], True)
    assert is_cut_off(router, longest + b"x" + end + REVIEW)


@pytest.mark.parametrize("sent", ENDLESS.values(), ids=ENDLESS)
def test_a_head_that_is_too_long_is_cut_off(router, sent):
    assert is_cut_off(router, sent)


@pytest.mark.parametrize(
    ("chunks", "reason", "stays"),
    [
        (4095, b"the body is not JSON", True),  # the last chunk, of size 0, counts
        (4096, b"the body comes in more than 4096 chunks", False),
    ],
)
def test_a_body_in_too_many_chunks_is_rejected(router, chunks, reason, stays):
    sent = LINE + HEAD + CHUNKED + b"\r\n" + b"1\r\n \r\n" * chunks + END
    ((status, _, body),), is_open = exchange(router, sent)
    assert (status, reason in body, is_open) == (400, True, stays)


def test_a_client_that_reads_no_answers_is_not_read_from(router, metrics, log, tmp_path):
    """Each response has 40 KB. The sockets' buffers are soon full, and reading stops."""
    privileged = {"privileged": True}
    containers = [
        a_container(f"c{i}{'x' * 50}", env=[{"name": "A" * 100}], securityContext=privileged)
        for i in range(100)
    ]
    body = json.dumps(a_review(a_pod("8Gi", containers=containers))).encode()
    whole = LINE + HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
    served = FolderKeeper(tmp_path, ("localhost",), metrics, RecordedLog()).listening_context()
    trusting = ssl.create_default_context(cafile=tmp_path / "ca.crt")

    async def story():
        connections = no_connections()
        connections.loop = asyncio.get_running_loop()
        connection = http.Connection(router, connections, connections.allocate("192.0.2.1"))
        near, far = socket.socketpair()
        _, (reader, writer) = await asyncio.gather(
            connections.loop.connect_accepted_socket(lambda: connection, far, ssl=served),
            asyncio.open_connection(sock=near, ssl=trusting, server_hostname="localhost"),
        )

        sent, read = 0, b""
        while len(log.lines) == sent < 400:
            writer.write(whole)
            sent += 1
            await turns(200)
        paused = connection._is_paused, len(log.lines)
        while read.count(b"HTTP/1.1 200 ") < sent:
            read += await reader.read(2**20)
        writer.close()
        return sent, paused

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sent, paused = runner.run(story())
    assert paused == (True, sent - 1)
    assert sent > 2
    assert len(log.lines) == sent


# State that is invisible from outside.


def answer_with(router, answer):
    """Answer all requests with a function."""
    route = router.route
    router.route = lambda *asked: replace(route(*asked), answer=lambda _body, _peer: answer())


def test_a_client_is_read_from_again_after_it_has_read(router):
    async def story():
        connection, line, slot = connected(router)
        connection.pause_writing()
        connection.data_received(WHOLE)
        paused = line.limit, line.is_paused, slot.stage, slot.due_s - line.connections.loop.time()
        connection.resume_writing()
        return paused, (line.is_paused, slot.stage)

    (limit, is_paused, state, patience_s), afterwards = asyncio.run(story())
    assert (limit, is_paused, state) == (MAX_UNSENT_BYTES, True, Stage.RECEIVING)
    assert 0 < patience_s <= http.ANSWER_S
    assert afterwards == (False, Stage.IDLE)


@pytest.mark.parametrize(
    ("path", "is_trusted"), [(b"/secret/bind", True), (b"/bind", False), (b"/mutate", False)]
)
def test_a_client_that_knows_the_path_of_bind_is_trusted(router, path, is_trusted):
    """This also applies to older connections of the same address."""

    async def story():
        connection, line, slot = connected(router)
        before = line.connections.allocate(slot.peer.address)
        connection.data_received(WHOLE.replace(b"/mutate", path))
        return before.peer.is_trusted

    assert asyncio.run(story()) is is_trusted


@pytest.mark.parametrize("read", [True, False], ids=["reads", "does not read"])
def test_an_answered_connection_may_be_closed_for_another(router, read):
    """Otherwise clients that do not read or close would keep all other clients out."""

    async def story():
        states = []
        for sent in (WHOLE, LAST["asked to close"][0], LINE + b"\r\n"):
            connection, line, slot = connected(router)
            if not read:
                connection.pause_writing()
            connection.data_received(sent)
            states.append((line.written[9:12], slot.stage))
            connection.connection_lost(None)
        return states

    after = Stage.IDLE if read else Stage.RECEIVING
    assert asyncio.run(story()) == [
        (b"200", after),
        (b"200", Stage.RECEIVING),
        (b"415", after),
    ]


def test_an_early_answer_releases_the_body(router):
    """The connection may stay open for two seconds, but its bytes no longer count."""
    connections = no_connections(Clock())
    connection, line, slot = connected(router, connections)
    connection.data_received(LINE + HEAD + b"Content-Length: 9999999\r\n\r\n" + b" " * 100_000)
    assert (line.written[9:12], connection._body, connections.body_bytes) == (b"413", b"", 0)
    written = line.written
    connection.data_received(b" " * 100_000)
    assert (line.written, connections.body_bytes, slot.due_s) == (written, 0, CLOSE_S)
    connections.loop.now_s = CLOSE_S
    connections._sweep()
    assert (connections.slots, connections.closed) == ({}, ["timeout"])


def test_a_slow_body_is_rejected(router, metrics, monkeypatch):
    monkeypatch.setattr(http, "BODY_TIMEOUT_S", 0.0)
    status, headers, body, _ = asyncio.run(post(router, "/mutate", b"{", announced=1000))
    assert (status, headers[b"connection"]) == (408, b"close")
    assert body == b"the body did not arrive within 0 s\n"
    assert rejected_total(metrics, 408) == 1


def test_a_stalled_request_is_closed_and_an_idle_connection_is_not(router):
    connections = no_connections(Clock())
    parts = {"silent": [], "half": [WHOLE[:30]], "a head": [LINE + HEAD + LENGTH + b"\r\n"]}
    used = {"idle": [WHOLE], "half again": [WHOLE, WHOLE[:30]]}
    lines = {}
    for name, sent in (parts | used).items():
        connection, lines[name], _ = connected(router, connections)
        for part in sent:
            connection.data_received(part)

    def are_open(at_s):
        connections.loop.now_s = at_s
        connections._sweep()
        return {name for name, line in lines.items() if not line.is_closed}

    assert are_open(REQUEST_S - 0.1) == set(lines)
    assert (
        are_open(REQUEST_S) == are_open(90.0) == {"idle"}
    )  # the API server closes idle connections after 90 s
    assert connections.closed == ["timeout"] * 4
    assert are_open(http.KEEPALIVE_S) == set()
    assert connections.closed == ["timeout"] * 4  # idle connections are not counted
    assert connections.slots == {}


@pytest.mark.parametrize("sent", [LINE + HEAD + LENGTH + b"\r\n{", WHOLE[:30], WHOLE, b""])
def test_a_closed_connection_leaves_nothing_behind(router, sent):
    """The garbage collector must not be needed: it would free a transport's memory too late."""

    async def story():
        connection, line, _ = connected(router)
        gone = weakref.ref(connection)
        connection.data_received(sent)
        connections = line.connections
        in_flight = connections.in_flight
        connection.connection_lost(None)
        del connection
        after = connections.in_flight, connections.body_bytes, dict(connections.slots)
        return in_flight, gone(), after

    gc.disable()
    try:
        in_flight, gone, after = asyncio.run(story())
    finally:
        gc.enable()
    assert (gone, after) == (None, (0, 0, {}))
    assert in_flight == (1 if sent.endswith(b"\r\n{") else 0)


def test_a_client_that_hung_up_is_not_answered_and_uses_no_memory(router):
    cancelled = []

    async def wait():
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    answer_with(router, wait)

    async def story():
        connection, line, slot = connected(router)
        connection.data_received(WHOLE)
        await asyncio.sleep(0)
        stage = slot.stage
        connection.connection_lost(None)
        await turns()
        return stage, line.written, cancelled, line.connections.in_flight

    assert asyncio.run(story()) == (Stage.ANSWERING, b"", [True], 0)


def hang_up_as_the_answer_is_ready(router):
    """Return the written data, the event loop's errors, and the number of requests in flight."""

    async def story():
        problems = []
        asyncio.get_running_loop().set_exception_handler(lambda _, found: problems.append(found))
        connection, line, _ = connected(router)
        connection.data_received(WHOLE)
        task = connection._task
        while not task.done():  # noqa: ASYNC110 - in the same turn as its callbacks are due
            await asyncio.sleep(0)
        connection.connection_lost(None)
        await turns()
        del connection, task
        gc.collect()
        return line.written, problems, line.connections.in_flight

    return asyncio.run(story())


def test_a_client_that_hangs_up_as_an_answer_is_ready_is_not_answered(router):
    async def ready():
        return Answer(200, b"{}")

    answer_with(router, ready)
    assert hang_up_as_the_answer_is_ready(router) == (b"", [], 0)


def test_a_bug_is_logged_even_if_no_client_waits_for_the_answer(router):
    """Otherwise the event loop would report the bug, and not as a log line."""
    log = io.BytesIO()
    router._log = JsonLog(log)

    async def stumble():
        raise RuntimeError("a bug")

    answer_with(router, stumble)
    assert hang_up_as_the_answer_is_ready(router) == (b"", [], 0)
    assert json.loads(log.getvalue())["msg"] == "request failed"


def test_a_client_that_is_cut_off_during_its_answer_is_counted_once(router, metrics):
    async def story():
        wait = asyncio.Event()

        async def answer():
            await wait.wait()
            return Answer(200, b"{}")

        answer_with(router, answer)
        connection, line, _ = connected(router)
        connection.data_received(WHOLE)
        await asyncio.sleep(0)
        connection.data_received(WHOLE)
        counted = line.is_closed, line.counted, line.connections.in_flight
        wait.set()
        await turns()
        connection.connection_lost(None)
        return counted, line.written

    assert asyncio.run(story()) == ((True, ["protocol"], 0), b"")
    assert rejected_total(metrics, 400) is None


@pytest.mark.parametrize("late", [False, True], ids=["at once", "late"])
def test_a_bug_outside_of_a_review_is_answered_and_logged(router, late):
    log = io.BytesIO()
    router._log = JsonLog(log)

    async def stumble():
        raise RuntimeError("a bug")

    def answer():
        if late:
            return stumble()
        raise RuntimeError("a bug")

    answer_with(router, answer)
    status, _, body, _ = asyncio.run(post(router, "/mutate", REVIEW))
    assert (status, body) == (500, b"vramwarden failed on this request; its log has the cause\n")
    line = json.loads(log.getvalue())
    assert (line["level"], line["msg"]) == ("error", "request failed")
    assert "RuntimeError: a bug" in line["trace"]


def test_one_answer_is_one_write(router):
    async def story():
        connection, line, _ = connected(router)
        writes = []
        line.write = writes.append
        connection.data_received(WHOLE)
        return len(writes), connection._timer, connection._task

    assert asyncio.run(story()) == (1, None, None)


def test_constant_answers_are_not_built_again(router):
    assert isinstance(router.route(b"GET", b"/", b""), Answer)
    assert router.route(b"GET", b"/", b"") is router.route(b"PUT", b"/mutate", b"")
