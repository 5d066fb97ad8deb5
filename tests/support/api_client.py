"""JSON client of an API server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import urllib3


class ApiError(Exception):
    """Error response of the API server; `status` is its Status object."""

    def __init__(self, status: dict[str, Any]) -> None:
        super().__init__(status.get("message"))
        self.status = status
        self.code = status["code"]
        self.message = status.get("message", "")


class Api:
    """Client that returns plain JSON, so that models lose no fields, and records warnings."""

    def __init__(self, url: str, pool: urllib3.PoolManager, headers=None) -> None:
        self.url = url
        self.warnings: list[str] = []  # of the latest response
        self._pool = pool
        self._headers = headers or {}

    def acting_as(self, user: str, *groups: str) -> Api:
        """Return a client that impersonates a user, such as a node's kubelet."""
        headers = urllib3.HTTPHeaderDict({"Impersonate-User": user})
        for group in groups:
            headers.add("Impersonate-Group", group)
        return Api(self.url, self._pool, headers)

    def request(
        self, method: str, path: str, body=None, *, content_type="application/json", **query: str
    ) -> dict[str, Any]:
        """Send a request and return the object. Raises ApiError."""
        headers = urllib3.HTTPHeaderDict(self._headers)
        headers["Content-Type"] = content_type
        url = f"{self.url}{path}?{urlencode(query)}"
        data = None if body is None else json.dumps(body)
        answer = self._pool.request(method, url, body=data, headers=headers, retries=False)
        self.warnings = [_warning_text(line) for line in answer.headers.getlist("Warning")]
        try:
            content = answer.json()
        except ValueError:
            content = {"message": answer.data.decode(errors="replace")}
        if answer.status >= 400:
            raise ApiError({"code": answer.status, **content})
        return content

    @property
    def version(self) -> str:
        return str(self.request("GET", "/version")["gitVersion"])

    def serves(self, what: str, group: str = "admissionregistration.k8s.io/v1") -> bool:
        """Return True if the API server serves a kind of `group` or a subresource of pods."""
        try:
            found = self.request("GET", "/api/v1" if "/" in what else f"/apis/{group}")["resources"]
        except ApiError as error:
            if error.code == 404:
                return False
            raise
        return what in {item[key] for item in found for key in ("kind", "name")}

    def create(self, manifest: dict[str, Any], *, dry_run: bool = False) -> dict[str, Any]:
        query = {"dryRun": "All"} if dry_run else {}
        return self.request("POST", _collection(manifest), manifest, **query)

    def apply(self, manifest: dict[str, Any]) -> dict[str, Any]:
        kind, query = "application/apply-patch+yaml", {"fieldManager": "tests", "force": "true"}
        return self.request("PATCH", path_of(manifest), manifest, content_type=kind, **query)

    def get(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """Read the object that the manifest identifies."""
        return self.request("GET", path_of(manifest))

    def delete(self, manifest: dict[str, Any], **query: str) -> None:
        """Delete the object that the manifest identifies, if it exists."""
        try:
            self.request("DELETE", path_of(manifest), **query)
        except ApiError as error:
            if error.code != 404:
                raise

    def list(self, path: str, **query: str) -> list[dict[str, Any]]:
        """Return the items of a list, given its path, such as `/api/v1/namespaces/x/pods`."""
        return self.request("GET", path, **query)["items"]


def token_of(api: Api, namespace: str, account: str, **spec: Any) -> str:
    """Return a ServiceAccount token, as a kubelet requests it for a pod."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    return str(api.request("POST", path, {"spec": spec})["status"]["token"])


def account_kubeconfig(api: Api, admins: Path, namespace: str, account: str, written: Path) -> Path:
    """Write a kubeconfig with a ServiceAccount's token and namespace."""
    token = token_of(api, namespace, account)
    config = json.loads(admins.read_text())
    config["users"][0]["user"] = {"token": token}
    config["contexts"][0]["context"]["namespace"] = namespace
    written.write_text(json.dumps(config))
    return written


def _warning_text(line: str) -> str:
    text = line.split(" ", 2)[2]  # 299 - "text"
    return text[1:-1].replace('\\"', '"').replace("\\\\", "\\")


def plural_of(kind: str) -> str:
    """Return the plural name of a kind for API paths."""
    kind = kind.lower()
    return f"{kind[:-1]}ies" if kind[-1] == "y" else f"{kind}es" if kind[-1] == "s" else f"{kind}s"


def _collection(manifest) -> str:
    version, plural = manifest["apiVersion"], plural_of(manifest["kind"])
    namespace = manifest["metadata"].get("namespace")
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    return f"{root}/namespaces/{namespace}/{plural}" if namespace else f"{root}/{plural}"


def path_of(manifest: dict[str, Any]) -> str:
    """Return the API path of the object that the manifest identifies."""
    return f"{_collection(manifest)}/{manifest['metadata']['name']}"
