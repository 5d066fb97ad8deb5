"""An empty handler on the webhook's own server: what gunicorn, TLS and HTTP cost without us."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import orjson

from webhook.adapters.policy.files import shipped_policy_path
from webhook.server.folder_certificates import FolderKeeper
from webhook.server.service import ServerSettings, Service

JSON = [(b"content-type", b"application/json")]


class EmptyApplication:
    """Allows every review as it is."""

    def __init__(self, on_start):
        self._on_start = on_start

    async def __call__(self, scope, receive, send):
        """Echo the uid, and nothing else."""
        if scope["type"] == "lifespan":
            await receive()
            self._on_start()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        message = await receive()
        body = message["body"]
        while message.get("more_body"):
            message = await receive()
            body += message["body"]
        uid = orjson.loads(body)["request"]["uid"]
        answer = orjson.dumps(
            {
                "apiVersion": "admission.k8s.io/v1",
                "kind": "AdmissionReview",
                "response": {"uid": uid, "allowed": True},
            }
        )
        length = (b"content-length", str(len(answer)).encode())
        await send({"type": "http.response.start", "status": 200, "headers": [*JSON, length]})
        await send({"type": "http.response.body", "body": answer})


class EmptyService(Service):
    """The webhook's service with nothing behind its port."""

    def load(self):
        """Return the empty application."""
        return EmptyApplication(self._loop_started)


if __name__ == "__main__":
    folder, port, operations_port = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    EmptyService(
        ServerSettings(
            policy=shipped_policy_path(),
            certificates=partial(FolderKeeper, folder, ("localhost", "127.0.0.1")),
            host="127.0.0.1",
            port=port,
            operations_host="127.0.0.1",
            operations_port=operations_port,
            enforcer_image="bench",
        )
    ).run()
