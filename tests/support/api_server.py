"""In-memory API server with objects, versions, watches, pages and scripted faults.

The server has two entry points. `kube()` returns the product's client without sockets or threads.
A `with` block serves HTTP on loopback, for processes and for tests that read bytes.
`tests/cluster/test_in_memory_api_server.py` compares the server with a real API server.
The server has no schemas, defaults or admission, and deletes objects immediately.
"""

from __future__ import annotations

import contextlib
import copy
import gzip
import io
import json
import re
import ssl
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qs, unquote, urlsplit

import jsonpatch
import urllib3

from tests.support.api_client import path_of, plural_of
from tests.support.merge_patches import merged
from webhook.adapters.kube.client import Kube

Json = dict[str, Any]

KINDS = {
    plural_of(kind): kind
    for kind in (
        *("Pod", "Node", "Namespace", "Secret", "Event", "ConfigMap", "ServiceAccount", "Lease"),
        *("ResourceQuota", "LimitRange", "NetworkPolicy", "Deployment", "DaemonSet"),
        *("StatefulSet", "ReplicaSet"),
        *("Job", "CronJob", "RuntimeClass", "ResourceSlice", "ResourceClaim"),
        *("SelfSubjectAccessReview", "CustomResourceDefinition", "ValidatingAdmissionPolicy"),
        *("ValidatingAdmissionPolicyBinding", "MutatingAdmissionPolicy"),
        *("MutatingAdmissionPolicyBinding", "MutatingWebhookConfiguration"),
        *("ValidatingWebhookConfiguration", "GPUNode", "VRAMHistory"),
    )
}
"""Kinds that the server serves, keyed by path."""
HAVE_STATUS = {"pods", "nodes", "namespaces", "deployments", "daemonsets"}
"""Kinds whose status changes only through `/status`."""
SELECTABLE = {
    "pods": {"spec.nodeName", "status.phase", "status.podIP", "spec.restartPolicy"},
    "nodes": {"spec.unschedulable"},
    "secrets": {"type"},
    "resourceslices": {"spec.nodeName", "spec.driver"},
    "events": {"regarding.kind", "regarding.name", "regarding.namespace", "regarding.uid",
               "involvedObject.kind", "involvedObject.name", "involvedObject.namespace",
               "involvedObject.uid", "reason", "type"},
}  # fmt: skip
"""Fields for field selectors, besides name and namespace."""
VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
REASONS = {
    400: "BadRequest", 403: "Forbidden", 404: "NotFound", 409: "Conflict", 410: "Expired",
    415: "UnsupportedMediaType", 422: "Invalid", 429: "TooManyRequests", 500: "InternalError",
}  # fmt: skip


class Request(NamedTuple):
    method: str
    url: str
    headers: dict[str, str]
    body: Any

    @property
    def path(self) -> str:
        return unquote(urlsplit(self.url).path)

    @property
    def query(self) -> dict[str, str]:
        found = parse_qs(urlsplit(self.url).query, keep_blank_values=True)
        return {key: values[0] for key, values in found.items()}


class Place(NamedTuple):
    """Object or collection that a path refers to; `name` is empty for a collection."""

    root: str
    namespace: str
    kind: str
    name: str
    part: str

    @property
    def is_ours(self) -> bool:
        """True for kinds of vramwarden's CustomResourceDefinitions."""
        return self.root.startswith("/apis/vramwarden.io/")

    @property
    def path(self) -> str:
        of = f"/namespaces/{self.namespace}" if self.namespace else ""
        return f"{self.root}{of}/{self.kind}/{self.name}"


class Denied(Exception):  # noqa: N818 - an answer, not an error
    """An error response."""

    def __init__(self, code: int, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.status = {
            "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
            "reason": reason or REASONS.get(code, ""), "message": message,
        }  # fmt: skip


class Change(NamedTuple):
    """A change of an object; `before` is None at its creation, `after` at its deletion."""

    version: int
    place: Place
    before: Json | None
    after: Json | None


Step = Any
"""A status code (0 breaks the connection), or (status, content, headers), or a function of the
request that returns one of these, or None to process the request as usual, and that may wait.
An iterator as content is sent part by part."""


class ApiServer:
    """Objects by path, such as `/api/v1/nodes/n1`, and permissions.

            api = ApiServer()
            api.put("/api/v1/nodes/n1", {"status": {"capacity": {}}})
            api.fails("PATCH .*/nodes/", 500)  # the next request only
            api.denied.add(("list", "pods"))
            api.kube().node("n1")

    If `answers` are given, each request gets the next one in place of all that, and the last
    answers the rest: a `Step` or, through HTTP, a function of the handler.
    """

    def __init__(
        self, folder: Any = None, *, port: int = 0, tls: ssl.SSLContext | None = None
    ) -> None:
        self.objects: dict[str, Json] = {}
        self.texts: dict[str, str] = {}
        """Plain text, such as logs and metrics, keyed by path."""
        self.asked: list[Request] = []
        self.denied: set[tuple[str, str]] = set()
        """Forbidden pairs of verb and kind."""
        self.unknown: set[str] = set()
        """Kinds that are not defined in this cluster."""
        self.answers: list[Step] = []
        self.now_s: Callable[[], float] = time.time
        self.url = "http://in-memory"
        self._folder, self._port, self._tls = folder, port, tls
        self._faults: list[tuple[str, list[Step], bool]] = []
        self._version, self._oldest = 100, 0
        self._changes: list[Change] = []
        self._changed = threading.Condition(threading.RLock())
        self._over = True

    # Methods for tests

    def put(self, path: str, found: Json) -> Json:
        """Store an object at a path, replacing any other. Return the stored object."""
        place = _place(path)
        with self._changed:
            return self._store(place, self.objects.get(path), copy.deepcopy(found))

    def add(self, *manifests: Json) -> Self:
        """Store objects at the paths that their kinds, namespaces and names imply."""
        for manifest in manifests:
            self.put(path_of(manifest), manifest)
        return self

    def remove(self, path: str) -> None:
        with self._changed:
            self._store(_place(path), self.objects[path], None)

    def forget_changes(self) -> None:
        """Make all versions so far too old for a watch."""
        self._oldest, self._changes = self._version, []

    def fails(self, pattern: str, *steps: Step, forever: bool = False) -> None:
        """Respond to the next matching requests with these steps, or to all with one step.

        The pattern is matched against method and URL.
        """
        self._faults.append((pattern, list(steps), forever))

    def loses_the_answer(self, request: Request) -> int:
        """Process a request, then break the connection; a step for `fails("PATCH", this)`."""
        with self._changed:
            self._do(request)
        return 0

    def recovers(self) -> None:
        """Remove scripted faults that have not occurred yet."""
        self._faults = []

    def sent(self, *methods: str) -> list[tuple[str, str, Any]]:
        """Return method, path and body of requests with these methods; by default, of writes."""
        wanted = methods or tuple(VERBS)
        return [
            (request.method, request.path, request.body)
            for request in self.asked
            if request.method in wanted
        ]

    def kube(self, *, tries: int = 1, now_s: Callable[[], float] | None = None) -> Kube:
        """Return the product's client. Its watches end after the stored events."""
        found = Kube(
            SimpleNamespace(
                configuration=SimpleNamespace(host=self.url, auth_settings=dict),
                rest_client=SimpleNamespace(pool_manager=_Pool(self)),
            ),
            tries,
        )
        if now_s:
            found.now_s = now_s
        return found

    def __enter__(self) -> Self:
        self._over = False
        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), _handler_of(self))
        self._server.daemon_threads = True
        if self._tls:
            self._server.socket = self._tls.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http{'s' if self._tls else ''}://127.0.0.1:{self._server.server_port}"
        if self._folder:
            self.kubeconfig = write_kubeconfig(self._folder / "kubeconfig", self.url)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop the server: watches end and connections are refused."""
        with self._changed:
            self._over = True  # ends open watches
            self._changed.notify_all()
        self._server.shutdown()
        self._server.server_close()

    # Server implementation

    def answer(
        self, request: Request, handler: BaseHTTPRequestHandler | None = None
    ) -> tuple[int, dict[str, str], bytes | Iterator[bytes]] | None:
        """Return status, headers and content. Raises ConnectionError to break the connection.

        Return None if one of `answers` wrote to the handler.
        """
        date = {"Date": formatdate(self.now_s(), usegmt=True)}
        write = None
        try:
            with self._changed:
                self.asked.append(request)
                step = self._step(request)
            write = step if self.answers and handler and callable(step) else None
            if callable(step) and not write:
                step = step(request)  # may wait while the server handles other requests
            if isinstance(step, int):
                raise Denied(step, f"the script says {step}") if step else ConnectionError
            with self._changed:
                status, content, *more = (200, b"") if write else step or self._do(request)
        except Denied as denied:
            status, content, more = denied.code, denied.status, []
        if write:
            write(handler)
            return None
        headers = date | (more[0] if more else {})
        if isinstance(content, Iterator):
            return status, headers, content
        if isinstance(content, str):
            content = content.encode()
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        zipped = "Content-Encoding" in headers or status != 200
        if request.headers.get("Accept-Encoding") == "gzip" and not zipped:
            data, headers = gzip.compress(data), headers | {"Content-Encoding": "gzip"}
        return status, headers, data

    def _step(self, request: Request) -> Step:
        if self.answers:
            return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        for pattern, steps, forever in self._faults:
            if steps and re.search(pattern, f"{request.method} {request.url}"):
                return steps[0] if forever else steps.pop(0)
        return None

    def _do(self, request: Request) -> tuple[int, Any]:
        path, query = request.path, request.query
        if path in self.texts:
            return 200, self.texts[path]
        if not re.match("/api/v1/.|/apis/[^/]+/[^/]+/.", path):
            return 200, self.objects.get(path) or _not_found(path)
        place = _place(path)
        if place.kind in self.unknown or place.kind not in KINDS:
            raise Denied(404, "the server could not find the requested resource")
        verb = VERBS.get(request.method) or (
            "get" if place.name else "watch" if "watch" in query else "list"
        )
        if (verb, place.kind) in self.denied:
            what = f'cannot {verb} resource "{place.kind}"'
            raise Denied(403, f"{place.kind} is forbidden: {what}")
        if verb == "list":
            return 200, self._list(place, query, request.headers.get("Accept", ""))
        if verb == "watch":
            return 200, self._watch(place, query)
        if verb == "create":
            return 201, self._create(place, request.body, query)
        found = self.objects.get(place.path)
        if place.part == "status" and place.is_ours:
            raise Denied(404, "the server could not find the requested resource")
        if found is None or place.part not in {"", "status"}:
            raise Denied(404, f'{place.kind} "{place.name}" not found')
        if verb == "get":
            return 200, found
        if verb == "delete":
            _check_preconditions(place, found, (request.body or {}).get("preconditions") or {})
            self._store(place, found, None)
            return 200, {"kind": "Status", "apiVersion": "v1", "status": "Success"}
        return 200, self._update(place, found, _changed(place, found, request))

    def _list(self, place: Place, query: dict[str, str], accept: str) -> Json:
        found = self._found(place, query)
        version, start = str(self._version), 0
        if token := query.get("continue"):
            version, _, at = token.partition("/")
            start = int(at)
            if int(version) < self._oldest:
                raise Denied(410, "The provided continue parameter is too old", "Expired")
        limit = int(query.get("limit") or 0) or len(found)
        metadata: Json = {"resourceVersion": version}
        if len(found) > start + limit:
            metadata["continue"] = f"{version}/{start + limit}"
        page = found[start : start + limit]
        if "as=Table" in accept:
            rows = [
                {"cells": _cells(item), "object": {"metadata": item["metadata"]}} for item in page
            ]
            columns = [{"name": name} for name in ("Name", "Status", "Node")]
            return {
                "kind": "Table",
                "metadata": metadata,
                "columnDefinitions": columns,
                "rows": rows,
            }
        if not place.is_ours:
            page = [{k: v for k, v in item.items() if k not in TYPE} for item in page]
        return {
            "kind": KINDS[place.kind] + "List",
            "apiVersion": _version_of(place),
            "metadata": metadata,
            "items": page,
        }

    def _found(self, place: Place, query: dict[str, str]) -> list[Json]:
        paths = sorted(path for path in self.objects if self._is_in(path, place))
        return [self.objects[path] for path in paths if _selected(place, self.objects[path], query)]

    def _watch(self, place: Place, query: dict[str, str]) -> Iterator[bytes]:
        since = query.get("resourceVersion", "")
        at = int(since) if since not in {"", "0"} else -1
        if -1 < at < self._oldest:
            gone = Denied(
                410, f"too old resource version: {at} ({self._version})", "Expired"
            ).status
            return iter([_event("ERROR", gone)])
        events = self._events(place, query, at, time.monotonic() + float(query["timeoutSeconds"]))
        return iter([b"".join(events)]) if self._over else events

    def _events(
        self, place: Place, query: dict[str, str], at: int, deadline_s: float
    ) -> Iterator[bytes]:
        with self._changed:
            if at < 0:
                at, there = self._version, self._found(place, query)
            else:
                there = []
        for item in there:
            yield _event("ADDED", item)
        while True:
            with self._changed:
                new = [change for change in self._changes if change.version > at]
                at = self._version
            for change in new:
                if self._is_in(change.place.path, place) and (line := _seen(change, place, query)):
                    yield line
            left_s = deadline_s - time.monotonic()
            with self._changed:
                if self._version > at:
                    continue
                if self._over or left_s <= 0 or not self._changed.wait(left_s):
                    break
        if "allowWatchBookmarks" in query:
            yield _event("BOOKMARK", {"metadata": {"resourceVersion": str(at)}})

    def _create(self, place: Place, body: Json, query: dict[str, str]) -> Json:
        made = copy.deepcopy(body)
        if place.kind == "selfsubjectaccessreviews":
            asked = made["spec"].get("resourceAttributes") or {}
            denied = (asked.get("verb"), asked.get("resource")) in self.denied
            return made | {"status": {"allowed": not denied}}
        metadata = made.setdefault("metadata", {})
        if prefix := not metadata.get("name") and metadata.get("generateName"):
            made_up = (place._replace(name=prefix + uuid.uuid4().hex[:5]) for _ in count())
            place = next(item for item in made_up if item.path not in self.objects)
            metadata["name"] = place.name
        place = place._replace(name=metadata["name"])
        if place.path in self.objects:
            raise Denied(409, f'{place.kind} "{place.name}" already exists', "AlreadyExists")
        if metadata.get("resourceVersion"):
            raise Denied(500, "resourceVersion should not be set on objects to be created")
        for key in ("uid", "creationTimestamp"):
            metadata.pop(key, None)
        if place.kind == "pods":
            made["status"] = {"phase": "Pending"}
        elif place.kind in HAVE_STATUS - {"nodes", "namespaces"}:
            made.pop("status", None)
        if query.get("dryRun"):
            made = self._stamped(place, made, 0)
            del made["metadata"]["resourceVersion"]
            return made
        return self._store(place, None, made)

    def _update(self, place: Place, found: Json, new: Json) -> Json:
        """Store the part of an object that requests to its path may change."""
        if place.part == "status":
            new = {**found, "metadata": new["metadata"], "status": new.get("status")}
        elif place.kind in HAVE_STATUS:
            new = {**new, "status": found.get("status")}
        new = {key: value for key, value in new.items() if value is not None}
        kept = ("uid", "resourceVersion", "creationTimestamp", "name", "namespace")
        old = {key: found["metadata"][key] for key in kept if key in found["metadata"]}
        new["metadata"] = {**new["metadata"], **old}
        return found if new == found else self._store(place, found, new)

    def _store(self, place: Place, before: Json | None, after: Json | None) -> Json:
        """Record a change under a new version and notify the watches."""
        self._version += 1
        if after is None:
            gone = copy.deepcopy(self.objects.pop(place.path))
            gone["metadata"]["resourceVersion"] = str(self._version)
            self._changes.append(Change(self._version, place, gone, None))
        else:
            after = self._stamped(place, after, self._version)
            self.objects[place.path] = after
            self._changes.append(Change(self._version, place, before, after))
        self._changed.notify_all()
        return after or {}

    def _stamped(self, place: Place, after: Json, version: int) -> Json:
        after = {"apiVersion": _version_of(place), "kind": KINDS[place.kind]} | after
        now = datetime.fromtimestamp(self.now_s(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        metadata = {
            "uid": str(uuid.uuid4()), "creationTimestamp": now, **(after.get("metadata") or {}),
            "name": place.name, "resourceVersion": str(version),
        }  # fmt: skip
        if place.namespace:
            metadata["namespace"] = place.namespace
        return {**after, "metadata": metadata}

    @staticmethod
    def _is_in(path: str, place: Place) -> bool:
        one = _place(path)
        return (one.root, one.kind) == (place.root, place.kind) and (
            place.namespace in {"", one.namespace}
        )


TYPE = ("apiVersion", "kind")


def _place(path: str) -> Place:
    parts = path.strip("/").split("/")
    start = 2 if parts[0] == "api" else 3
    root, rest, namespace = "/" + "/".join(parts[:start]), parts[start:], ""
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] != "status":
        namespace, rest = rest[1], rest[2:]
    kind, name, *part = [*rest, ""][: max(2, len(rest))]
    return Place(root, namespace, kind, name, "/".join(part))


def _version_of(place: Place) -> str:
    return place.root.removeprefix("/apis/").removeprefix("/api/")


def _not_found(path: str) -> Json:
    raise Denied(404, f"the server could not find {path}")


def _check_preconditions(place: Place, found: Json, wanted: Json) -> None:
    for key, value in wanted.items():
        if value != found["metadata"].get(key):
            raise Denied(409, f'{place.kind} "{place.name}": the {key} in the precondition differs')


def _changed(place: Place, found: Json, request: Request) -> Json:
    """Return the object after a request. Raises Denied if its resourceVersion is outdated."""
    if request.method == "PUT":
        new = copy.deepcopy(request.body)
        if place.is_ours and not new["metadata"].get("resourceVersion"):
            raise Denied(422, "metadata.resourceVersion: must be specified for an update")
    else:
        kind = request.headers.get("Content-Type", "")
        if "json-patch" in kind:
            new = jsonpatch.apply_patch(found, request.body)
        elif "strategic" in kind and place.is_ours:
            raise Denied(415, "strategic merge patches are not supported for this kind")
        else:
            new = merged(found, request.body, strategic="strategic" in kind)
    _check_version(place, found, new)
    if new["metadata"].get("uid") not in {None, "", found["metadata"]["uid"]}:
        code = 409 if request.method == "PUT" else 422
        raise Denied(code, "metadata.uid: Invalid value: field is immutable")
    return new


def _check_version(place: Place, found: Json, new: Json) -> None:
    version = new["metadata"].get("resourceVersion")
    if version not in {None, "", found["metadata"]["resourceVersion"]}:
        raise Denied(409, f'{place.kind} "{place.name}": the object has been modified')


def _selected(place: Place, found: Json, query: dict[str, str]) -> bool:
    labels = found["metadata"].get("labels") or {}
    wanted = filter(None, query.get("labelSelector", "").split(","))
    return all(_has(labels, item) for item in wanted) and all(
        _chosen(place, found, item)
        for item in filter(None, query.get("fieldSelector", "").split(","))
    )


def _has(labels: dict[str, str], wanted: str) -> bool:
    key, sign, value = (part.strip() for part in re.split("(!=|==?|$)", wanted, maxsplit=1))
    if not sign:
        return key[1:] not in labels if key.startswith("!") else key in labels
    return (labels.get(key) == value) == (sign != "!=")


def _chosen(place: Place, found: Json, wanted: str) -> bool:
    key, sign, value = re.split("(!=|==?)", wanted, maxsplit=1)
    if key not in {"metadata.name", "metadata.namespace"} | SELECTABLE.get(place.kind, set()):
        raise Denied(400, f"field label not supported: {key}")
    at: Any = found
    for part in key.split("."):
        at = (at or {}).get(part)
    text = {True: "true", False: "false", None: ""}.get(at, at)
    if key == "spec.unschedulable":
        text = text or "false"
    return (text == value) == (sign != "!=")


def _cells(found: Json) -> list[str]:
    status = found.get("status") or {}
    said = status.get("reason") or status.get("phase") or ""
    return [found["metadata"]["name"], said, (found.get("spec") or {}).get("nodeName") or "<none>"]


def _event(kind: str, found: Json) -> bytes:
    return json.dumps({"type": kind, "object": found}).encode() + b"\n"


def _seen(change: Change, place: Place, query: dict[str, str]) -> bytes | None:
    """Return the event that a watch with these selectors gets for a change, or None."""
    was = change.before is not None and _selected(place, change.before, query)
    now = change.after is not None and _selected(place, change.after, query)
    if now:
        return _event("MODIFIED" if was else "ADDED", change.after or {})
    if not was:
        return None
    gone = copy.deepcopy(change.before or {})
    gone["metadata"]["resourceVersion"] = str(change.version)
    return _event("DELETED", gone)


class _Pool:
    """Connection pool of the client that calls the server directly."""

    def __init__(self, api: ApiServer) -> None:
        self._api = api

    def request(self, method: str, url: str, *, body: Any, headers: Any, **_: Any) -> Any:
        path = url.removeprefix(self._api.url)
        sent = Request(method, path, headers, None if body is None else json.loads(body))
        try:
            status, answered, content = self._api.answer(sent)
        except ConnectionError as error:
            raise urllib3.exceptions.ProtocolError("the connection broke") from error
        if isinstance(content, Iterator):
            return _Parts(content, answered, status)
        return urllib3.HTTPResponse(
            io.BytesIO(content), headers=answered, status=status, preload_content=False
        )

    def clear(self) -> None:
        pass


class _Parts(urllib3.HTTPResponse):
    """Response whose parts are read as they arrive, as with chunked encoding."""

    def __init__(self, parts: Iterator[bytes], headers: dict[str, str], status: int) -> None:
        super().__init__(headers=headers, status=status, preload_content=False)
        self._parts = parts

    def stream(self, amt: Any = 2**16, **_: Any) -> Any:
        for part in self._parts:
            yield from (part[at : at + amt] for at in range(0, len(part), amt))


def _handler_of(api: ApiServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            headers = {name: ", ".join(self.headers.get_all(name) or ()) for name in self.headers}
            request = Request(self.command, self.path, headers, body)
            if api._over or self.server is not api._server:  # the server was stopped or replaced
                self.close_connection = True
                return
            try:
                answered = api.answer(request, self)
            except ConnectionError:
                self.close_connection = True
                return
            if answered is None:
                return
            status, headers, content = answered
            self.send_response_only(status)
            parts = isinstance(content, Iterator)
            size = {"Transfer-Encoding": "chunked"} if parts else {"Content-Length": len(content)}
            for name, value in (size | headers).items():
                self.send_header(name, value)
            self.end_headers()
            with contextlib.suppress(OSError):  # the client has disconnected
                for part in content if parts else ():
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
                self.wfile.write(b"0\r\n\r\n" if parts else content)

        do_PATCH = do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815 - the base class wants it so

        def log_message(self, *_: object) -> None:
            pass

    return Handler


def write_kubeconfig(
    path: Path, url: str, *, namespace: str = "", cluster: Json | None = None, **user: Any
) -> Path:
    """Write a kubeconfig for an API server, with a token unless `user` is given.

    `cluster` has additional fields of the cluster, such as `certificate-authority`.
    """
    context = {"cluster": "c", "user": "u", "namespace": namespace}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": url, **(cluster or {})}}],
        "users": [{"name": "u", "user": user or {"token": "t0ken"}}],
        "contexts": [{"name": "c", "context": context}],
        "current-context": "c",
    }
    path.write_text(json.dumps(content))
    return path
