"""Webhook configurations for a test: vramwarden's from deploy/, and another product's."""

from __future__ import annotations

import base64
import contextlib
import copy
import json
import socket
import ssl
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal, Self

import jsonpatch
import yaml

from tests.support.control_planes import Api, ApiError, wait_until
from tests.support.paths import DEPLOY
from tests.support.pki import Authority

Manifest = dict[str, Any]

LOCAL = DEPLOY / "local.yaml"
LOCAL_URL = "https://127.0.0.1:8443"
LOCAL_CA = "CA_BUNDLE"
LOCAL_BIND_PATH = "/BIND_PREFIX/bind"
PROBE = "webhook-probe"


def webhook_configurations(
    url_base: str, ca_bundle_pem: bytes, *, path: Path = LOCAL, bind_path: str = ""
) -> list[Manifest]:
    """Return vramwarden's configurations for a server at another address, with its CA.

    `bind_path` is the path for bindings, `Server.bind_path`.
    """
    documents = [document for document in yaml.safe_load_all(path.read_text()) if document]
    for webhook in (hook for document in documents for hook in document.get("webhooks", ())):
        target = webhook["clientConfig"]
        if not target["url"].startswith(LOCAL_URL) or target["caBundle"] != LOCAL_CA:
            raise ValueError(f"{path}: {webhook['name']} is not at {LOCAL_URL} with {LOCAL_CA}")
        where = target["url"].removeprefix(LOCAL_URL).replace(LOCAL_BIND_PATH, bind_path)
        target["url"] = url_base.rstrip("/") + where
        target["caBundle"] = base64.b64encode(ca_bundle_pem).decode()
    return documents


@contextlib.contextmanager
def installed(api: Api, *configurations: Manifest) -> Iterator[None]:
    """Install webhook configurations until the block ends."""
    try:
        for configuration in configurations:
            apply(api, configuration)
        yield
    finally:
        for configuration in configurations:
            remove(api, configuration)


def apply(api: Api, configuration: Manifest) -> None:
    """Create or replace a webhook configuration; return when it takes effect.

    The API server learns of a configuration by a watch, shortly after the write. Therefore an
    unreachable webhook is added for objects with the probe's label: once the probe is denied, the
    whole configuration is in effect.
    """
    label = uuid.uuid4().hex
    changed = copy.deepcopy(configuration)
    changed["webhooks"].append(_probe_webhook(label))
    api.apply(changed)
    name = configuration["metadata"]["name"]
    wait_until(f"{name} is in force", lambda: _probe_refused(api, label))


def remove(api: Api, configuration: Manifest) -> None:
    """Delete a webhook configuration if it exists; return when it has no effect."""
    try:
        stored = api.get(configuration)
    except ApiError as error:
        if error.code != 404:
            raise
        return
    api.delete(configuration)
    selectors = [h["objectSelector"] for h in stored["webhooks"] if h["name"].startswith(PROBE)]
    name = configuration["metadata"]["name"]
    for selector in selectors:
        label = selector["matchLabels"][PROBE]
        wait_until(f"{name} is out of force", lambda label=label: not _probe_refused(api, label))


def _probe_webhook(label: str) -> Manifest:
    return {
        "name": f"{PROBE}.tests.invalid",
        "clientConfig": {"url": "https://127.0.0.1:1/"},  # no server listens there
        "objectSelector": {"matchLabels": {PROBE: label}},
        "rules": [_rule(["configmaps"], ["CREATE"])],
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }


def _probe_refused(api: Api, label: str) -> bool:
    metadata = {"name": f"{PROBE}-{label}", "namespace": "default", "labels": {PROBE: label}}
    try:
        api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}, dry_run=True)
    except ApiError as error:
        if PROBE not in error.message:
            raise
        return True
    return False


def _rule(resources: Iterable[str], operations: Iterable[str]) -> Manifest:
    return {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": list(operations),
        "resources": list(resources),
    }


class Denied(Exception):  # noqa: N818 - a verdict, not an error
    """Raised by an OtherWebhook's function to deny the object."""


class OtherWebhook:
    """Another product's mutating webhook, which changes pods and records every review.

    `reviews` has the `request` of each AdmissionReview, in order of arrival.
    """

    def __init__(
        self,
        api: Api,
        change: Callable[[Manifest], Manifest],
        *,
        sorts: Literal["before", "after"] = "before",
        reinvocation_policy: Literal["Never", "IfNeeded"] = "Never",
        resources: Iterable[str] = ("pods",),
        operations: Iterable[str] = ("CREATE",),
        namespace: str | None = None,
        selected_by: str = "",
    ) -> None:
        """`selected_by` is the label of the objects to change; empty for all."""
        self.name = {"before": "000-other", "after": "zzz-other"}[sorts]  # ours sorts in between
        self.reviews: list[Manifest] = []
        self._api = api
        self._change = change
        self._webhook = {
            "name": "other.tests.invalid",
            "rules": [_rule(resources, operations)],
            "reinvocationPolicy": reinvocation_policy,
            "failurePolicy": "Fail",
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }
        if selected_by:
            has = [{"key": selected_by, "operator": "Exists"}]
            self._webhook["objectSelector"] = {"matchExpressions": has}
        if namespace:
            selector = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
            self._webhook["namespaceSelector"] = selector

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            authority = Authority("other-webhook-ca")
            port = stack.enter_context(serving(authority, self._answer))
            bundle = base64.b64encode(authority.pem).decode()
            target = {"url": f"https://127.0.0.1:{port}/", "caBundle": bundle}
            configuration = {
                "apiVersion": "admissionregistration.k8s.io/v1",
                "kind": "MutatingWebhookConfiguration",
                "metadata": {"name": self.name},
                "webhooks": [{**self._webhook, "clientConfig": target}],
            }
            stack.enter_context(installed(self._api, configuration))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def _answer(self, review: Manifest) -> Manifest:
        request = review["request"]
        self.reviews.append(request)
        response: Manifest = {"uid": request["uid"], "allowed": True}
        try:
            changed = self._change(copy.deepcopy(request["object"]))
        except Denied as verdict:
            response.update(allowed=False, status={"code": 403, "message": str(verdict)})
        except Exception as error:  # noqa: BLE001 - the test sees it as the reason of a denial
            response.update(allowed=False, status={"code": 500, "message": repr(error)})
        else:
            patch = jsonpatch.make_patch(request["object"], changed)
            if patch:
                encoded = base64.b64encode(patch.to_string().encode()).decode()
                response.update(patchType="JSONPatch", patch=encoded)
        return {"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response}


@contextlib.contextmanager
def serving(authority: Authority, answer: Callable[[Manifest], Manifest]) -> Iterator[int]:
    """Serve reviews over TLS on a free loopback port; yield the port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as folder:
        context.load_cert_chain(*authority.issue_server(Path(folder), "other-webhook"))
    with _Server(context, answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()
            server.hang_up()


class _Server(ThreadingHTTPServer):
    daemon_threads = False  # so that closing the server waits for its threads

    def __init__(self, context: ssl.SSLContext, answer: Callable[[Manifest], Manifest]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer
        self._context = context
        self._connections: set[socket.socket] = set()

    def get_request(self) -> tuple[socket.socket, Any]:
        """Leave the handshake to the connection's thread, so a silent client blocks no other."""
        raw, address = super().get_request()
        connection = self._context.wrap_socket(raw, server_side=True, do_handshake_on_connect=False)
        self._connections.add(connection)
        return connection, address

    def shutdown_request(self, request: socket.socket) -> None:
        self._connections.discard(request)
        super().shutdown_request(request)

    def hang_up(self) -> None:
        """Close the API server's keep-alive connections and thereby their threads."""
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                # Do not use SSLSocket's method, which detaches the session from the reading thread.
                socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore the error: the API server reports a failed call, and the test notices."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # write header and body at once

    def do_POST(self) -> None:
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        body = json.dumps(self.server.answer(review)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass
