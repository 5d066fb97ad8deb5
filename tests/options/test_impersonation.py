"""Options for impersonation and timeouts are parsed and sent as kubectl does."""

from __future__ import annotations

import subprocess
from itertools import chain
from threading import Event

import pytest

from tests.support.api_server import write_kubeconfig
from tests.support.cluster_programs import find_binary
from tests.support.run_command import runner
from webhook.adapters.kube.connection import connect
from webhook.adapters.kube.errors import KubeError
from webhook.adapters.kube.impersonation import Identity
from webhook.cli.main import main
from webhook.options import KUBECTL_OPTIONS, _parse_timeout

BOB = {"token": "t", "as": "bob", "as-groups": ["g", "h"], "as-uid": "u1"} | {
    "as-user-extra": {"Scopes/of": ["a", "b"], "note": ["é"]}
}
BOBS = {
    "Impersonate-User": "bob", "Impersonate-Group": "g, h", "Impersonate-Uid": "u1",
    "Impersonate-Extra-Scopes%2fof": "a, b", "Impersonate-Extra-Note": "Ã©",
}  # fmt: skip
NOBODY = {"token": "t"}
ROWS = {
    "nobody": (NOBODY, [], {}),
    "the kubeconfig's": (BOB, [], BOBS),
    "a flag": (NOBODY, ["--as=eve"], {"Impersonate-User": "eve"}),
    "a service account": (
        NOBODY,
        ["--as", "system:serviceaccount:ns:name"],
        {"Impersonate-User": "system:serviceaccount:ns:name"},
    ),
    "groups and a UID": (
        NOBODY,
        ["--as=eve", "--as-group=a,b", "--as-group", "-c", "--as-uid=7"],
        {"Impersonate-User": "eve", "Impersonate-Group": "a,b, -c", "Impersonate-Uid": "7"},
    ),
    "extras": (
        NOBODY,
        ["--as=eve", "--as-user-extra=k=a", "--as-user-extra=k=b=c"],
        {"Impersonate-User": "eve", "Impersonate-Extra-K": "a, b=c"},
    ),
    "a flag before the kubeconfig": (BOB, ["--as=eve"], BOBS | {"Impersonate-User": "eve"}),
    "groups before the kubeconfig's": (BOB, ["--as-group=x"], BOBS | {"Impersonate-Group": "x"}),
    "an empty flag": (BOB, ["--as="], BOBS),
    "groups of nobody": (NOBODY, ["--as-group=x"], None),
    "a UID of nobody": (NOBODY, ["--as-uid=x"], None),
    "groups of nobody in the file": ({"token": "t", "as-groups": ["x"]}, [], None),
    "a number": ({"token": "t", "as": 7}, [], None),
    "no list": ({"token": "t", "as": "bob", "as-groups": "x"}, [], None),
    "no object": ({"token": "t", "as": "bob", "as-user-extra": ["x"]}, [], None),
    "two lines": (NOBODY, ["--as=eve\r\nX-Evil: 1"], None),
}
"""The kubeconfig's user, the options and the headers; None means an error with exit code 2."""


@pytest.mark.parametrize(
    "typed",
    [
        "--as eve -n x top pods", "--as=a --namespace=y top --as=eve pods -n x",
        "-n x --as eve --as-group=a certs status --secret=s", "--as=eve -n=x explain p",
    ],
)  # fmt: skip
def test_options_of_kubectl_stand_before_the_command_as_well(api_server, typed):
    given = ["--kubeconfig", str(api_server.kubeconfig), *typed.split()]
    runner().invoke(main, given)
    assert impersonated(api_server)["impersonate-user"] == "eve"
    asked = [request.path for request in api_server.asked]
    assert any("/namespaces/x/" in path for path in asked)
    assert not any("/namespaces/y/" in path for path in asked)


def test_they_are_those_that_a_command_takes():
    taken = (param.opts for param in main.get_command(None, "explain").params)
    assert {*chain(*taken)} - {"subject", "-o", "--output", "--version"} == KUBECTL_OPTIONS


def impersonated(api):
    """Return the impersonation headers of the last request, with lower-case names."""
    headers = api.asked[-1].headers.items()
    return {key.lower(): value for key, value in headers if key.startswith("Impersonate-")}


@pytest.mark.parametrize(("user", "typed", "sent"), ROWS.values(), ids=ROWS)
def test_who_is_impersonated_is_sent_with_each_request(api_server, user, typed, sent):
    write_kubeconfig(api_server.kubeconfig, api_server.url, **user)
    done = runner().invoke(main, ["top", f"--kubeconfig={api_server.kubeconfig}", *typed])
    if sent is None:
        assert (done.exit_code, done.stdout, api_server.asked) == (2, "", [])
        assert done.stderr.startswith("Error: ")
    else:
        assert impersonated(api_server) == {key.lower(): request for key, request in sent.items()}


@pytest.mark.process
@pytest.mark.skipif(not find_binary("kubectl"), reason="needs kubectl")
@pytest.mark.parametrize(("user", "typed", "sent"), ROWS.values(), ids=ROWS)
def test_kubectl_sends_the_same(api_server, user, typed, sent):
    write_kubeconfig(api_server.kubeconfig, api_server.url, **user)
    command = ["kubectl", f"--kubeconfig={api_server.kubeconfig}", "get", "--raw=/api", *typed]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if "unknown flag: --as-user-extra" in done.stderr:
        pytest.skip("needs kubectl 1.35 or newer")
    if sent is None:
        assert (done.returncode, api_server.asked) == (1, [])
    else:
        assert impersonated(api_server) == {key.lower(): request for key, request in sent.items()}


@pytest.mark.parametrize("command", [["top"], ["simulate"], ["explain", "p"], ["check"]], ids=str)
def test_who_may_not_act_as_somebody_learns_that(api_server, command):
    no = 'nodes is forbidden: User "ann" cannot impersonate-on:user-info:list resource "nodes"'
    api_server.fails("GET", (403, {"code": 403, "message": no}), forever=True)
    given = [f"--kubeconfig={api_server.kubeconfig}", "--as=eve"]
    done = runner().invoke(main, [*command, *given])
    said = "you may not act as eve, as --as or `as` in the kubeconfig says"
    assert (done.exit_code, done.stdout) == (3, "")
    assert done.stderr == f"Error: {api_server.url} answers 403: {no} ({said})\n"


LIMITS = {
    "0": 0, "5": 5, "+5": 5, "10s": 10, "1m": 60, "1h30m": 5400, "1.5s": 1.5, "300ms": 0.3,
    ".5s": 0.5, "0s": 0, "": None, "5ms": 0.005, "90h": 86400, "9" * 15: 86400,
    "-5": False, "abc": False, "1.5": False, "5 s": False, "5S": False, "1d": False, "s": False,
    "1s5": False, "0x5": False, " ": False,
}  # fmt: skip
"""Values of --request-timeout and their meaning in seconds; False means an error."""


@pytest.mark.parametrize("text", LIMITS)
def test_a_time_limit_is_read_as_kubectl_reads_it(api_server, text):
    limit_s = LIMITS[text]
    if limit_s is not False:
        assert _parse_timeout(text) == limit_s
    given = [f"--kubeconfig={api_server.kubeconfig}", f"--request-timeout={text}"]
    done = runner().invoke(main, ["top", *given])
    assert ("Invalid value for '--request-timeout'" in done.stderr) == (limit_s is False)
    assert (done.exit_code == 2) == (limit_s is False)


@pytest.mark.process
@pytest.mark.skipif(not find_binary("kubectl"), reason="needs kubectl")
@pytest.mark.parametrize("text", LIMITS)
def test_kubectl_takes_the_same_times(api_server, text):
    command = ["kubectl", f"--kubeconfig={api_server.kubeconfig}", "get", "--raw=/api"]
    command.append(f"--request-timeout={text}")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ("Invalid timeout value" in done.stderr) == (LIMITS[text] is False)


def drop_by_drop(piece, over):
    """Return a handler that responds forever in small parts, so that no single wait is long."""

    def answer(handler):
        while not over.wait(0.05):
            try:
                handler.wfile.write(piece)
            except OSError:
                return

    return answer


@pytest.mark.process
@pytest.mark.parametrize(
    "piece", [b"", b"HTTP/1.1 200 OK\r\nX-Y: ", b"HTTP/1.1 200 OK\r\n\r\n{"],
    ids=["nothing", "headers", "a body"],
)  # fmt: skip
@pytest.mark.parametrize("command", [["top"], ["simulate"], ["explain", "p"], ["check"]], ids=str)
def test_a_limit_bounds_the_whole_answer(api_server, piece, command):
    over = Event()
    api_server.answers = [drop_by_drop(piece, over)]
    given = [f"--kubeconfig={api_server.kubeconfig}", "--request-timeout=300ms"]
    done = runner().invoke(main, [*command, *given])
    over.set()
    url = api_server.url
    assert (done.exit_code, done.stdout) == (3, "")
    assert done.stderr == f"Error: {url} does not answer within 0.3s (--request-timeout)\n"


THINGS = "/api/v1/configmaps"
ASKS = {
    "find": (THINGS,), "read_text": (THINGS, 9), "list_all": (THINGS, str),
    "list_cached": (THINGS, str),
    "create": (THINGS, {}), "dry_run_create": (THINGS, {}), "delete": (THINGS,),
}  # fmt: skip


@pytest.mark.process
@pytest.mark.parametrize(("method", "given"), ASKS.items(), ids=ASKS)
def test_a_limit_bounds_whatever_is_asked(api_server, method, given):
    over = Event()
    api_server.answers = [drop_by_drop(b"HTTP/1.1 200 OK\r\n\r\n{", over)]
    kube = connect(api_server.kubeconfig, identity=Identity(limit_s=0.3))
    with pytest.raises(KubeError, match=r"does not answer within 0\.3s"):
        getattr(kube, method)(*given)
    over.set()
