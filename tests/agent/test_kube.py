"""Access to the API server: each failure is one sentence, and most are retried."""

import json
import re
import socket
import sys
import threading

import pytest

from tests.support.api_server import write_kubeconfig
from tests.support.cluster_programs import free_port
from webhook.adapters.kube import client, transport
from webhook.adapters.kube.connection import connect
from webhook.adapters.kube.errors import KubeError, NoClusterError

NODE = {"metadata": {"name": "n", "resourceVersion": "7"}, "unknown": {"field": [1]}}


@pytest.fixture(autouse=True)
def _pauses(monkeypatch):
    monkeypatch.setattr(transport, "_FIRST_PAUSE_S", 0.01)


@pytest.fixture
def kube(api_server):
    return connect(api_server.kubeconfig)


def failing(code, message="why", **headers):
    return code, {"kind": "Status", "message": message, "code": code}, headers


def test_a_node_is_read_as_plain_json_with_our_token(kube, api_server):
    api_server.answers = [(200, NODE)]
    assert kube.node("a/b c") == NODE
    ((method, path, headers, body),) = api_server.asked
    assert (method, path, body) == ("GET", "/api/v1/nodes/a%2Fb%20c?", None)
    assert headers["authorization"] == "Bearer t0ken"


@pytest.mark.parametrize(
    ("status", "path", "kind"), [(False, "n", "merge"), (True, "n/status", "strategic-merge")]
)
def test_a_patch_is_a_merge_patch_that_says_who_we_are(status, path, kind, kube, api_server):
    api_server.answers = [(200, NODE)]
    assert kube.patch_node("n", {"a": None}, status=status) == NODE
    ((method, asked, headers, body),) = api_server.asked
    assert (method, body) == ("PATCH", {"a": None})
    assert asked == f"/api/v1/nodes/{path}?fieldManager=vramwarden"
    assert headers["Content-Type"] == f"application/{kind}-patch+json"


@pytest.mark.parametrize("code", [429, 500, 502, 503, 504])
def test_a_retryable_failure_is_retried_twice(code, kube, api_server):
    api_server.answers = [failing(code), failing(code), (200, NODE)]
    assert kube.node("n") == NODE
    api_server.answers = [failing(code)]
    with pytest.raises(KubeError, match=f"{api_server.url} answers {code}: why") as caught:
        kube.node("n")
    assert len(api_server.asked) == 6
    assert caught.value.retryable


@pytest.mark.parametrize(
    ("code", "hint"),
    [(400, "why$"), (401, "does not accept our token"), (403, "missing from our role"),
     (404, "why$"), (409, "why$"), (422, "why$")],
)  # fmt: skip
def test_a_denial_is_not_retried_and_says_what_to_do(code, hint, kube, api_server):
    api_server.answers = [failing(code)]
    with pytest.raises(KubeError, match=hint) as caught:
        kube.patch_node("n", {})
    assert len(api_server.asked) == 1
    assert (caught.value.code, caught.value.retryable) == (code, False)
    assert caught.value.not_found == (code == 404)


def test_an_overloaded_server_s_own_pause_is_kept_within_reason(kube, api_server, monkeypatch):
    pauses = []
    monkeypatch.setattr(transport.time, "sleep", pauses.append)
    busy = [failing(429, **{"Retry-After": text}) for text in ("1", "3600", "soon")]
    api_server.answers = [*busy[:2], (200, NODE)]
    kube.node("n")
    api_server.answers = [busy[2], (200, NODE)]
    kube.node("n")
    assert pauses == [1.0, 5.0, 0.01]


@pytest.mark.parametrize("body", [b"", b"<html>", b"[", b"[]", b'"x"'])
def test_an_answer_that_is_no_object_is_a_failure_with_a_sentence(body, kube, api_server):
    api_server.answers = [(200, body)]
    with pytest.raises(KubeError, match=re.escape(api_server.url)):
        kube.node("n")
    api_server.answers = [(403, body)]
    with pytest.raises(KubeError, match="answers 403 "):
        kube.node("n")


@pytest.mark.parametrize("listens", [False, True], ids=["it does not exist", "it never answers"])
def test_a_server_that_is_silent_is_tried_three_times(tmp_path, monkeypatch, listens):
    pauses = []
    monkeypatch.setattr(transport.time, "sleep", pauses.append)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        port = deaf.getsockname()[1] if listens else free_port()
        url = f"http://127.0.0.1:{port}"
        with pytest.raises(KubeError, match=f"{url} does not answer") as caught:
            connect(write_kubeconfig(tmp_path / "k", url), timeout_s=0.1).node("n")
    assert (caught.value.code, caught.value.retryable) == (0, True)
    assert pauses == [0.01, 0.02]


def test_an_answer_that_breaks_off_is_a_failure_with_a_sentence(kube, api_server):
    def short(handler):
        handler.send_response(200)
        handler.send_header("Content-Length", "100")
        handler.end_headers()
        handler.wfile.write(b'{"a"')
        handler.close_connection = True

    api_server.answers = [short]
    with pytest.raises(KubeError, match="broke off"):
        kube.node("n")


# Watching


def chunks(*parts, end=b"0\r\n\r\n"):
    def answer(handler):
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for part in parts:
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            handler.wfile.flush()
        handler.wfile.write(end)
        handler.close_connection = True

    return answer


def event(kind, thing):
    return json.dumps({"type": kind, "object": thing}).encode() + b"\n"


NODES = "/api/v1/nodes"


def test_a_watch_yields_each_event_from_the_version_that_is_named(kube, api_server):
    events = [event("ADDED", {"a": 1}), event("BOOKMARK", {}), event("DELETED", {"a": 2})]
    api_server.answers = [chunks(*events)]
    events = kube.watch(NODES, lasting_s=60, fieldSelector="metadata.name=n", resourceVersion="7")
    assert list(events) == [("ADDED", {"a": 1}), ("BOOKMARK", {}), ("DELETED", {"a": 2})]
    path = api_server.asked[0][1]
    assert path == (
        "/api/v1/nodes?watch=true&fieldSelector=metadata.name%3Dn&resourceVersion=7"
        "&timeoutSeconds=60"
    )


def test_a_watch_lasts_a_second_at_least(kube, api_server):
    api_server.answers = [chunks()]
    assert list(kube.watch(NODES, lasting_s=0.1)) == []
    assert api_server.asked[0][1].endswith("&timeoutSeconds=1")


def test_lines_arrive_whole_however_they_are_cut(kube, api_server):
    whole = event("ADDED", {"a": "x" * 100}) + event("MODIFIED", {"a": "y"})
    api_server.answers = [chunks(*(whole[at : at + 7] for at in range(0, len(whole), 7)))]
    assert [thing["a"] for _, thing in kube.watch(NODES, lasting_s=1)] == ["x" * 100, "y"]


def _too_old():
    return [failing(410), chunks(event("ERROR", {"kind": "Status", "code": 410}))]


@pytest.mark.parametrize("answer", _too_old(), ids=["as status", "as event"])
def test_a_version_that_is_too_old_is_told_apart_from_other_failures(answer, kube, api_server):
    api_server.answers = [answer]
    with pytest.raises(KubeError) as caught:
        list(kube.watch(NODES, lasting_s=1, resourceVersion="7"))
    assert caught.value.expired
    assert not KubeError("other", code=409).expired


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (chunks(event("ERROR", {"code": 500, "message": "etcd"})), "answers 500: etcd"),
        (chunks(b"{not json\n"), "broke off"),
        (chunks(b"[]\n"), "broke off"),
        (chunks(event("ADDED", NODE), end=b""), "broke off"),
        (failing(403), "our role"),
    ],
)
def test_a_watch_that_fails_says_why(answer, why, kube, api_server):
    api_server.answers = [answer]
    with pytest.raises(KubeError, match=why):
        list(kube.watch(NODES, lasting_s=1))
    assert len(api_server.asked) == 1


def test_a_watch_that_is_denied_says_so_before_it_is_read(kube, api_server):
    api_server.answers = [failing(403)]
    with pytest.raises(KubeError):
        kube.watch(NODES, lasting_s=1)


def test_a_watch_that_goes_silent_ends_by_itself(kube, api_server, monkeypatch):
    over = threading.Event()

    def events():
        yield event("ADDED", NODE)
        over.wait(60)

    monkeypatch.setattr(client, "TIMEOUT_S", 0.1)
    api_server.fails("watch=true", (200, events()))
    with pytest.raises(KubeError, match=r"broke off|does not answer"):
        list(kube.watch(NODES, lasting_s=0.1))
    over.set()


# Finding the API server


def test_a_connection_on_which_nothing_arrives_any_more_is_found_out(kube, api_server):
    api_server.answers = [(200, {})]
    kube.read("/api/v1/nodes/n")
    (connection,) = [
        item for item in kube._pool.connection_from_url(api_server.url).pool.queue if item
    ]
    option = connection.sock.getsockopt
    assert option(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert option(socket.IPPROTO_TCP, socket.TCP_NODELAY)  # the default option of urllib3 is kept
    names = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT")
    values = [option(socket.IPPROTO_TCP, getattr(socket, name)) for name in names]
    assert values == [30, 10, 3]


@pytest.fixture
def _nowhere(monkeypatch, tmp_path):
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
        monkeypatch.delenv(name, raising=False)
    module = sys.modules["kubernetes.config.kube_config"]
    monkeypatch.setattr(module, "KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))


@pytest.mark.usefixtures("_nowhere")
@pytest.mark.parametrize("content", [None, "", "{", "[]", "{}", "kind: Config", "users: 3"])
def test_a_file_that_says_nothing_of_a_cluster_is_a_sentence(content, tmp_path):
    path = tmp_path / "kubeconfig"
    if content is not None:
        path.write_text(content)
    with pytest.raises(NoClusterError, match=r"no API server is known.*--kubeconfig") as caught:
        connect(path)
    assert not caught.value.retryable


@pytest.mark.usefixtures("_nowhere")
def test_nothing_at_all_is_a_sentence():
    with pytest.raises(NoClusterError, match="from a kubeconfig"):
        connect()


@pytest.mark.usefixtures("_nowhere")
def test_in_a_pod_it_is_the_service_account_that_counts(monkeypatch):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    with pytest.raises(NoClusterError, match="this pod's service account"):
        connect()


@pytest.mark.usefixtures("_nowhere")
def test_a_named_file_counts_for_more_than_the_pod(monkeypatch, api_server):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert connect(api_server.kubeconfig).url == api_server.url
