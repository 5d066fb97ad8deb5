"""Checks of `helm test`, in the cluster: the API server calls the webhook, and answers correctly.

Pods are created as a dry run, so nothing is stored. Only the standard library is imported, so that
the checks work even if our package is broken.
"""
# ruff: noqa: INP001 - a single file that runs by itself

from __future__ import annotations

import json
import os
import ssl
import sys
from collections.abc import Iterator, Mapping
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
OK, CREATED, FORBIDDEN = 200, 201, 403
TIMEOUT_S = 40  # the API server itself gives up after 34


class Api:
    """Client of the API server with this pod's service account."""

    def __init__(
        self, host: str, port: int, context: ssl.SSLContext, headers: Mapping[str, str]
    ) -> None:
        """Connect to an API server; `headers` authenticate each request."""
        self._connection = HTTPSConnection(host, port, context=context, timeout=TIMEOUT_S)
        self._headers = {"Content-Type": "application/json", **headers}

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Send a request; return the status code, and the object or, if it is no JSON, the text."""
        data = None if body is None else json.dumps(body)
        self._connection.request(method, path, data, self._headers)
        answer = self._connection.getresponse()
        text = answer.read().decode(errors="replace")
        try:
            return answer.status, json.loads(text)
        except ValueError:
            return answer.status, text


def in_cluster() -> Api:
    """Return a client of the cluster in which this runs."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    headers = {"Authorization": f"Bearer {(ACCOUNT / 'token').read_text()}"}
    return Api(host, int(port), ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt")), headers)


def pod(name: str, memory: str = "") -> dict[str, Any]:
    """Return a pod that any Pod Security level allows."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"vramwarden-test-{name}",
            "annotations": {"vramwarden.io/gpu-memory": memory} if memory else {},
        },
        "spec": {
            "securityContext": {
                "runAsUser": 65532,
                "runAsNonRoot": True,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": "main",
                    "image": "example",
                    "resources": {"limits": {"cpu": "100m", "memory": "64Mi"}},
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"]},
                    },
                }
            ],
        },
    }


def check(api: Api, release_namespace: str, namespace: str) -> Iterator[tuple[str, str]]:
    """Yield each check's claim and the reason why it fails, empty if it holds."""
    webhook = f"/apis/apps/v1/namespaces/{release_namespace}/deployments/vramwarden-webhook"
    pods = f"/api/v1/namespaces/{namespace}/pods?dryRun=All"
    hint = f"see what the policy says of namespace {namespace}, or set test.namespace"

    code, answer = api.ask("GET", webhook)
    if code == OK:
        ready = answer["status"].get("readyReplicas", 0)
        why = "" if ready else f"none of {answer['spec']['replicas']} is; see its pods"
    else:
        why = _error_text(answer)
    yield "a replica of the webhook is ready", why

    code, answer = api.ask("POST", pods, pod("plain"))
    translated = code == CREATED and _is_translated(answer)
    why = "it was translated" if translated else _error_text(answer)
    yield "a pod that asks for nothing is left alone", why if translated or code != CREATED else ""

    code, answer = api.ask("POST", pods, pod("asks", "1Gi"))
    if code == CREATED:
        why = "" if _is_translated(answer) else f"it was not translated; {hint}"
    else:
        why = _error_text(answer)
    yield "a pod that asks for 1Gi is translated", why

    code, answer = api.ask("POST", pods, pod("wrong", "1GB"))
    why = f"it was created; {hint}" if code == CREATED else _error_text(answer)
    by_us = code == FORBIDDEN and 'webhook "mutate.vramwarden.io" denied' in why
    yield "a pod that asks for 1GB is denied by us", "" if by_us else why


def _is_translated(created: dict[str, Any]) -> bool:
    return "vramwarden.io/admitted" in created["metadata"].get("annotations", {})


def _error_text(answer: Any) -> str:
    return str(answer.get("message", answer) if isinstance(answer, dict) else answer).strip()


def main(api: Api, release_namespace: str, namespace: str) -> int:
    """Print the result of each check; return 1 if one failed."""
    failed = False
    for what, why in check(api, release_namespace, namespace):
        sys.stdout.write(f"FAILED  {what}: {why}\n" if why else f"ok      {what}\n")
        failed = failed or bool(why)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(in_cluster(), *sys.argv[1:]))
