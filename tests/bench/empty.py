"""Empty handler on the webhook's server: the cost of gunicorn, TLS and HTTP."""

from __future__ import annotations

import sys
from functools import partial
from ipaddress import ip_network
from pathlib import Path

import orjson

from webhook.adapters.policy.files import shipped_policy_path
from webhook.server.certificates import FolderKeeper
from webhook.server.handler import Answer
from webhook.server.router import Router
from webhook.server.service import ServerSettings, Service


class EmptyReviews:
    """Allows every review unchanged."""

    def answer(self, _phase, body):
        """Return a response with the UID of the request."""
        uid = orjson.loads(body)["request"]["uid"]
        answer = {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "response": {"uid": uid, "allowed": True},
        }
        return Answer(200, orjson.dumps(answer))

    too_large = answer


class EmptyService(Service):
    """The webhook's service with an empty router."""

    def router(self):
        return Router(EmptyReviews(), None, self._metrics, self._log, is_bind_path=lambda _: False)


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
            api_servers=[ip_network("127.0.0.1/32")],
        )
    ).run()
