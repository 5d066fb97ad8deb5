"""The path of /bind: accepted paths, and writes of replicas to webhook configurations."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from certs import Bundle, issue_ca, issue_serving, read_folder
from tests.certs.handshakes import put, renewed
from tests.server.placement.binding_reviews import review
from tests.support.api_server import ApiServer
from tests.support.recorded_log import RecordedLog
from tests.support.server_process import running
from webhook.adapters.kube.certificates import KINDS
from webhook.adapters.kube.release_objects import BIND_WEBHOOK, RegistrationApi
from webhook.server.registration import BindPath, Registration, derive_bind_path, is_bind_path

NOW = datetime(2030, 5, 1, tzinfo=UTC)
FOREIGN = "/" + "f" * 32 + "/bind"


def a_set(ca=None, *, ca_pem=None):
    """Return a set with a new certificate, signed by a new CA if none is given."""
    ca = ca or issue_ca(NOW)
    pair = issue_serving(ca, ["hook"], NOW)
    ca_pem = ca.certificate_pem if ca_pem is None else ca_pem
    return Bundle(pair.certificate_pem, pair.key_pem, ca_pem, ca.key_pem)


def test_no_path_is_accepted_before_there_is_a_certificate():
    path = BindPath()
    assert not any(map(path.accepts, ("", "/", "/bind", FOREIGN)))


def test_the_path_is_derived_from_the_key_of_the_certificate():
    served = a_set()
    path = BindPath()
    path.use_certificate(served)
    assert path.current == derive_bind_path(served.key_pem)
    assert re.fullmatch("/[0-9a-f]{32}/bind", path.current)
    assert path.accepts(path.current)
    asked = (
        "/bind",
        FOREIGN,
        path.current + "/",
        path.current.upper(),
        path.current[:-1],
        "",
        "/\udcff",
        "é",
    )
    assert not any(map(path.accepts, asked))


def test_the_path_also_depends_on_the_replicas_key():
    served, other, key = a_set(), a_set(), b"0123456789abcdef" * 2
    paths = [derive_bind_path(served.key_pem), derive_bind_path(served.key_pem, key[1:])]
    paths += [derive_bind_path(item.key_pem, key) for item in (served, other)]
    assert all(map(is_bind_path, paths))
    assert len(set(paths)) == 4
    replicas = [BindPath(key) for _ in range(2)]
    for replica in replicas:
        replica.use_certificate(served)
        assert replica.current == derive_bind_path(served.key_pem, key)


def test_the_previous_path_is_accepted_until_its_ca_is_forgotten():
    old_ca, new_ca = issue_ca(NOW), issue_ca(NOW + timedelta(days=1))
    both = new_ca.certificate_pem + old_ca.certificate_pem
    path = BindPath()
    first, renewed = a_set(old_ca), a_set(old_ca)
    for served in (first, renewed):
        path.use_certificate(served)
    assert path.accepts(derive_bind_path(first.key_pem))
    switched = a_set(new_ca, ca_pem=both)
    path.use_certificate(switched)
    assert path.accepts(derive_bind_path(first.key_pem))
    assert path.accepts(derive_bind_path(renewed.key_pem))
    path.use_certificate(replace(switched, ca_pem=new_ca.certificate_pem))
    assert not path.accepts(derive_bind_path(first.key_pem))
    assert not path.accepts(derive_bind_path(renewed.key_pem))
    assert path.accepts(path.current)


def test_the_last_few_paths_of_sets_without_cas_are_accepted():
    path = BindPath()
    sets = [replace(a_set(), ca_pem=b"") for _ in range(12)]
    for served in sets:
        path.use_certificate(served)
    answered = [path.accepts(derive_bind_path(served.key_pem)) for served in sets]
    assert answered == [False] * 3 + [True] * 9


def test_the_configured_path_is_accepted_while_it_is_configured():
    path = BindPath()
    path.use_certificate(a_set())
    path.set_configured(FOREIGN)
    assert path.accepts(FOREIGN)
    for guessable in ("/bind", "", "/" + "f" * 31 + "/bind"):
        path.set_configured(guessable)
        assert not path.accepts(FOREIGN)
        assert not path.accepts(guessable)


OWNER = {"apiVersion": "v1", "kind": "Namespace", "name": "gpu", "uid": "u"}
PATHS = {kind.removesuffix("WebhookConfiguration"): f"{path}/ours" for kind, path in KINDS.items()}


class Api(ApiServer):
    """An API server with both configurations, of which only the mutating one has /bind."""

    def __init__(self, bind="", *, owned=True, url=""):
        super().__init__()
        self.put("/api/v1/namespaces/gpu", {"metadata": {"uid": "u"}})
        for kind, name in (("Mutating", BIND_WEBHOOK), ("Validating", "validate.vramwarden.io")):
            called = {"url": url} if url else {"service": {"namespace": "gpu", "path": bind}}
            webhooks = [{"name": name, "clientConfig": called}]
            metadata = {"ownerReferences": [OWNER] * owned}
            self.put(PATHS[kind], {"metadata": metadata, "webhooks": webhooks})

    @property
    def bind(self):
        """Return the clientConfig of /bind."""
        return self.objects[PATHS["Mutating"]]["webhooks"][0]["clientConfig"]

    @property
    def owners(self):
        return [self.objects[path]["metadata"]["ownerReferences"] for path in PATHS.values()]

    @property
    def writes(self):
        """Return subject and kind of each write, including failed writes."""
        kinds = {path: kind for kind, path in PATHS.items()}
        sent = [(body, kinds[path]) for _, path, body in self.sent()]
        return [("path" if "webhooks" in body else "owner", kind) for body, kind in sent]


class Replica:
    """The registration of one replica, without threads; the test sets the time."""

    def __init__(self, api):
        self.bind_path = BindPath()
        self.bind_path.use_certificate(a_set())
        self.now_s = 1000.0
        self.log = RecordedLog()
        registered = RegistrationApi(api.kube(), "ours")
        told = (self.bind_path, self.log, 120.0, lambda: self.now_s)
        self.registration = Registration(registered, *told)
        self.sync = self.registration.sync


@pytest.mark.parametrize("bind", ["", "/bind", "/x/bind"])
def test_a_path_that_is_missing_or_guessable_is_written_at_once(bind):
    api = Api(bind)
    one = Replica(api)
    assert one.registration.obstacle() == "the path of bind is not registered yet"
    assert one.sync() is True
    assert api.bind["service"]["path"] == one.bind_path.current
    assert one.registration.obstacle() == ""
    assert one.sync() is True
    assert api.writes == [("path", "Mutating")]
    assert one.log.messages == ["path of bind written"]
    assert one.bind_path.current not in str(one.log.lines)


def test_the_path_of_another_certificate_is_accepted_and_replaced_after_settling():
    api = Api(FOREIGN)
    one = Replica(api)
    assert one.sync() is True
    assert one.bind_path.accepts(FOREIGN)
    one.now_s += 119
    assert one.sync() is True
    assert api.writes == []
    api.bind["service"]["path"] = "/" + "e" * 32 + "/bind"
    one.sync()
    one.now_s += 119  # the path changed, so the settling time starts again
    one.sync()
    assert api.writes == []
    one.now_s += 1
    assert one.sync() is True
    assert api.bind["service"]["path"] == one.bind_path.current
    assert not one.bind_path.accepts(FOREIGN)


def test_replicas_with_different_keys_accept_each_others_path_and_seldom_write():
    api = Api()
    both = [Replica(api), Replica(api)]
    for minute in range(60):
        for item in (*both, *both):  # each write wakes the other replica through its watch
            item.now_s = 1000.0 + 60.0 * minute
            item.sync()
        assert all(item.bind_path.accepts(api.bind["service"]["path"]) for item in both)
    assert 1 < len(api.writes) <= 31


def test_owners_are_written_without_a_path_of_bind():
    api = Api(owned=False)
    one = Replica(api)
    assert one.sync() is False  # its resourceVersion is older than that of the written path
    assert one.sync() is True
    assert api.owners == [[OWNER], [OWNER]]
    assert api.writes == [
        ("path", "Mutating"),
        ("owner", "Mutating"),  # a conflict
        ("owner", "Validating"),
        ("owner", "Mutating"),
    ]


def test_webhooks_that_are_called_by_url_have_no_owner():
    api = Api(owned=False, url="https://192.0.2.1:9443/x")
    one = Replica(api)
    assert (one.sync(), api.writes) == (True, [("path", "Mutating")])
    assert api.bind == {"url": f"https://192.0.2.1:9443{one.bind_path.current}"}


@pytest.mark.parametrize("forbidden", ["path", "owner"])
def test_a_missing_right_is_logged_once_and_the_rest_is_written(forbidden):
    def deny(request):
        return 403 if ("webhooks" in request.body) == (forbidden == "path") else None

    api = Api(owned=False)
    api.fails("PATCH", deny, forever=True)
    one = Replica(api)
    assert [one.sync() for _ in range(3)] == [True] * 3
    assert one.registration.obstacle() == ""
    if forbidden == "path":
        written = ("", [[OWNER], [OWNER]])
        said = ["the path of bind cannot be written", *["owner written"] * 2]
    else:
        written = (one.bind_path.current, [[], []])
        said = ["path of bind written", *["the owner of a configuration cannot be written"] * 2]
    assert (api.bind["service"]["path"], api.owners) == written
    assert one.log.messages == said


def test_the_last_path_is_accepted_while_the_api_server_is_unreachable():
    api = Api(FOREIGN)
    one = Replica(api)
    one.sync()
    api.fails("GET", 500, forever=True)
    assert (one.sync(), one.sync()) == (False, False)
    assert one.bind_path.accepts(FOREIGN)
    api.recovers()
    assert one.sync() is True
    assert one.log.messages == [
        "webhook configurations cannot be read",
        "webhook configurations are read again",
    ]


def test_no_request_is_sent_without_a_certificate():
    api = Api()
    one = Replica(api)
    one.bind_path.current = ""
    assert (one.sync(), api.asked) == (False, [])
    assert one.registration.obstacle() != ""


@pytest.mark.process
def test_a_binding_at_another_path_is_404_before_its_body_arrives(tmp_path):
    with running(tmp_path) as server:
        own = server.bind_path
        assert is_bind_path(own)
        code, body = server.post(review(), own)
        assert code == 200, body
        for path in ("/bind", FOREIGN, f"{own}/", f"/x{own}", own.replace("/bind", "")):
            assert server.post(review(), path) == (
                404,
                b"reviews of pods go to /mutate or /validate\n",
            )
        with server.raw() as connection:
            connection.sendall(
                b"POST /bind HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                b"Content-Length: 100000\r\n\r\n"
            )
            assert connection.recv(100).startswith(b"HTTP/1.1 404 ")
        before = own
        put(server.certificates, renewed(read_folder(server.certificates), ["localhost"]))
        assert server.bind_path != before
        assert server.post(review(), server.bind_path)[0] == 200
        assert server.post(review(), before)[0] == 200
        secret = before.split("/")[1]
        shown = server.get("/metrics")[1] + server.get("/readyz?verbose")[1]
        assert secret not in shown + json.dumps(server.log())
        lines = server.log_file.read_text().splitlines()
        (told,) = [line for line in lines if secret in line]
        assert told == f"bindings:     https://127.0.0.1:{server.port}{before}"
