"""The path of /bind: which paths are answered, who writes it where, and what else is 404."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from certs import Bundle, ensure, issue_ca, issue_serving, read
from tests.server.placement.binding_reviews import review
from tests.support.programs import free_port
from tests.support.servers import running
from webhook.adapters.kube.client import KubeError
from webhook.adapters.kube.registration import Registered
from webhook.server.bind_path import BindPath, bind_path, is_bind_path
from webhook.server.log import JsonLog
from webhook.server.registration import Registration

NOW = datetime(2030, 5, 1, tzinfo=UTC)
FOREIGN = "/" + "f" * 32 + "/bind"


def a_set(ca=None, *, ca_pem=None):
    """Return a set with a certificate of its own; of its own CA, unless one is given."""
    ca = ca or issue_ca(NOW)
    pair = issue_serving(ca, ["hook"], NOW)
    ca_pem = ca.certificate_pem if ca_pem is None else ca_pem
    return Bundle(pair.certificate_pem, pair.key_pem, ca_pem, ca.key_pem)


def test_before_there_is_a_certificate_nothing_is_answered():
    path = BindPath()
    assert not any(map(path.answers, ("", "/", "/bind", FOREIGN)))


def test_the_path_follows_from_the_key_of_the_certificate():
    served = a_set()
    path = BindPath()
    path.serve(served)
    assert path.own == bind_path(served.key_pem)
    assert re.fullmatch("/[0-9a-f]{32}/bind", path.own)
    assert path.answers(path.own)
    asked = ("/bind", FOREIGN, path.own + "/", path.own.upper(), path.own[:-1], "", "/\udcff", "é")
    assert not any(map(path.answers, asked))


def test_who_knows_the_certificate_alone_does_not_know_the_path():
    served, other, key = a_set(), a_set(), b"0123456789abcdef" * 2
    paths = [bind_path(served.key_pem), bind_path(served.key_pem, key[1:])]
    paths += [bind_path(one.key_pem, key) for one in (served, other)]
    assert all(map(is_bind_path, paths))
    assert len(set(paths)) == 4
    replicas = [BindPath(key) for _ in range(2)]
    for one in replicas:
        one.serve(served)
        assert one.own == bind_path(served.key_pem, key)


def test_the_path_before_is_answered_until_its_ca_is_forgotten():
    old_ca, new_ca = issue_ca(NOW), issue_ca(NOW + timedelta(days=1))
    both = new_ca.certificate_pem + old_ca.certificate_pem
    path = BindPath()
    first, renewed = a_set(old_ca), a_set(old_ca)
    for served in (first, renewed):
        path.serve(served)
    assert path.answers(bind_path(first.key_pem))
    switched = a_set(new_ca, ca_pem=both)
    path.serve(switched)
    assert path.answers(bind_path(first.key_pem))
    assert path.answers(bind_path(renewed.key_pem))
    path.serve(replace(switched, ca_pem=new_ca.certificate_pem))
    assert not path.answers(bind_path(first.key_pem))
    assert not path.answers(bind_path(renewed.key_pem))
    assert path.answers(path.own)


def test_of_sets_without_cas_the_last_few_paths_are_answered():
    path = BindPath()
    sets = [replace(a_set(), ca_pem=b"") for _ in range(12)]
    for served in sets:
        path.serve(served)
    answered = [path.answers(bind_path(served.key_pem)) for served in sets]
    assert answered == [False] * 3 + [True] * 9


def test_what_stands_in_the_configuration_is_answered_while_it_stands_there():
    path = BindPath()
    path.serve(a_set())
    path.configured(FOREIGN)
    assert path.answers(FOREIGN)
    for guessable in ("/bind", "", "/" + "f" * 31 + "/bind"):
        path.configured(guessable)
        assert not path.answers(FOREIGN)
        assert not path.answers(guessable)


class Api:
    """Webhook configurations in memory."""

    def __init__(self, bind="", namespace="gpu", *, owned=True):
        one = Registered(
            kind="Mutating",
            name="ours",
            version="1",
            bind=bind,
            url="",
            namespace=namespace,
            owned=owned,
        )
        self.found = [
            one,
            Registered(
                kind="Validating",
                name="ours",
                version="1",
                bind=None,
                url="",
                namespace=namespace,
                owned=owned,
            ),
        ]
        self.failures = {}
        self.written = []

    def read(self):
        self._fail("read")
        return tuple(self.found)

    def write_path(self, registered, path):
        self._write("path", registered, bind=path)

    def write_owner(self, registered):
        self._write("owner", registered, owned=True)

    def _write(self, what, registered, **changes):
        self._fail(what)
        at = [one.kind for one in self.found].index(registered.kind)
        if self.found[at].version != registered.version:
            raise KubeError("changed", code=409)
        self.written.append((what, registered.kind))
        self.found[at] = replace(self.found[at], version=registered.version + "+", **changes)

    def _fail(self, what):
        if code := self.failures.get(what):
            raise KubeError(f"{what} fails", code=code)


class Replica:
    """One replica's part, without threads, and the time in the test's hand."""

    def __init__(self, api):
        self.bind_path = BindPath()
        self.bind_path.serve(a_set())
        self.now_s = 1000.0
        self._log = io.BytesIO()
        self.registration = Registration(
            api, self.bind_path, JsonLog(self._log), 120.0, lambda: self.now_s
        )
        self.sync = self.registration.sync

    def said(self):
        return [json.loads(line)["msg"] for line in self._log.getvalue().splitlines()]


@pytest.mark.parametrize("bind", ["", "/bind", "/x/bind"])
def test_a_path_that_is_missing_or_guessable_is_written_at_once(bind):
    api = Api(bind)
    one = Replica(api)
    assert one.registration.obstacle() == "the path of bind is not registered yet"
    assert one.sync() is True
    assert api.found[0].bind == one.bind_path.own
    assert one.registration.obstacle() == ""
    assert one.sync() is True
    assert api.written == [("path", "Mutating")]
    assert one.said() == ["path of bind written"]
    assert one.bind_path.own not in one._log.getvalue().decode()


def test_the_path_of_another_certificate_is_answered_and_replaced_when_it_has_settled():
    api = Api(FOREIGN)
    one = Replica(api)
    assert one.sync() is True
    assert one.bind_path.answers(FOREIGN)
    one.now_s += 119
    assert one.sync() is True
    assert api.written == []
    api.found[0] = replace(api.found[0], bind="/" + "e" * 32 + "/bind")
    one.sync()
    one.now_s += 119  # it changed meanwhile, so the time begins again
    one.sync()
    assert api.written == []
    one.now_s += 1
    assert one.sync() is True
    assert api.found[0].bind == one.bind_path.own
    assert not one.bind_path.answers(FOREIGN)


def test_two_replicas_of_different_keys_answer_each_others_path_and_seldom_write():
    api = Api()
    both = [Replica(api), Replica(api)]
    for minute in range(60):
        for one in (*both, *both):  # each write wakes the other one by its watch
            one.now_s = 1000.0 + 60.0 * minute
            one.sync()
        assert all(one.bind_path.answers(api.found[0].bind) for one in both)
    assert 1 < len(api.written) <= 31


def test_owners_are_written_beside_and_need_no_path():
    api = Api(owned=False)
    one = Replica(api)
    assert one.sync() is False  # what it knows is older than the path
    assert one.sync() is True
    assert [found.owned for found in api.found] == [True, True]
    assert sorted(api.written) == [
        ("owner", "Mutating"),
        ("owner", "Validating"),
        ("path", "Mutating"),
    ]


def test_webhooks_called_by_url_have_no_namespace_to_belong_to():
    api = Api(namespace="", owned=False)
    one = Replica(api)
    assert (one.sync(), api.written) == (True, [("path", "Mutating")])


def test_a_right_that_is_missing_is_said_once_and_keeps_nothing_else_from_being_done():
    api = Api(owned=False)
    api.failures = {"path": 403}
    one = Replica(api)
    for _ in range(3):
        assert one.sync() is True
    assert one.registration.obstacle() == ""
    assert api.written == [("owner", "Mutating"), ("owner", "Validating")]
    assert one.said().count("the path of bind cannot be written") == 1
    api = Api(owned=False)
    api.failures = {"owner": 403}
    one = Replica(api)
    for _ in range(3):
        assert one.sync() is True
    assert api.written == [("path", "Mutating")]
    assert one.said().count("the owner of a configuration cannot be written") == 2


def test_while_the_api_server_is_away_the_last_path_stays_answered():
    api = Api(FOREIGN)
    one = Replica(api)
    one.sync()
    api.failures = {"read": 500}
    assert (one.sync(), one.sync()) == (False, False)
    assert one.bind_path.answers(FOREIGN)
    api.failures = {}
    assert one.sync() is True
    assert one.said() == [
        "webhook configurations cannot be read",
        "webhook configurations are read again",
    ]


def test_without_a_certificate_nothing_is_asked():
    one = Replica(Api())
    one.bind_path.own = ""
    assert one.sync() is False
    assert one.registration.obstacle() != ""


@pytest.mark.process
def test_at_any_other_path_a_binding_is_404_before_its_body_comes(tmp_path):
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
        before, names = own, ["localhost", "127.0.0.1", "another.name"]
        ensure(server.certificates, names, datetime.now(UTC))
        assert server.bind_path != before
        assert server.post(review(), server.bind_path)[0] == 200
        assert server.post(review(), before)[0] == 200
        secret = before.split("/")[1]
        shown = server.get("/metrics")[1] + server.get("/readyz?verbose")[1]
        assert secret not in shown + json.dumps(server.log())
        lines = server.log_file.read_text().splitlines()
        (told,) = [line for line in lines if secret in line]
        assert told == f"bindings:     https://127.0.0.1:{server.port}{before}"
        assert read(server.certificates).ca_key_pem


@pytest.mark.process
def test_a_configuration_that_nobody_can_reach_ends_the_start_in_a_sentence(tmp_path):
    port = free_port()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "webhook.cli", "serve", f"--cert-dir={tmp_path}/certs"),
            *("--webhook-configuration=ours", f"--port={port}", "--operations-port=0"),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PATH": "/bin", "HOME": str(tmp_path)},
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "no API server is known from a kubeconfig (~/.kube/config): " in done.stderr
