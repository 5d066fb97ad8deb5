"""Record what an API server sends under the chart's configurations, and without conditions."""

from __future__ import annotations

import base64
import contextlib
import copy
from typing import TYPE_CHECKING, Any, Self

from tests.support.control_planes import ApiError
from tests.support.pki import Authority
from tests.support.webhook_configurations import _serving as serving
from tests.support.webhook_configurations import installed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.support.control_planes import Api

Json = dict[str, Any]

# The name of our webhook by the kind of its configuration.
PHASES = {"MutatingWebhookConfiguration": "mutate", "ValidatingWebhookConfiguration": "validate"}


class Recorder:
    """Answers in the webhooks' place: allows everything, and keeps every request.

    Beside each of our webhooks stands a `witness`: the same without matchConditions, which is asked
    first and so shows what there was to send.
    """

    def __init__(self, api: Api, configurations: Iterable[Json]) -> None:
        self._api = api
        self._configurations = list(configurations)
        self._requests: dict[tuple[str, str], list[Json]] = {}

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            authority = Authority("recorder-ca")
            for ours in self._configurations:
                phase = PHASES[ours["kind"]]
                for who, conditions in (("witness", False), ("ours", True)):
                    requests = self._requests[phase, who] = []
                    port = stack.enter_context(serving(authority, _keeping(requests)))
                    found = pointed(ours, f"https://127.0.0.1:{port}/", authority.pem)
                    if not conditions:
                        del found["webhooks"][0]["matchConditions"]
                        found["metadata"]["name"] = "aaa-witness"
                    stack.enter_context(installed(self._api, found))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def witnessed(self, phase: str) -> Json | None:
        """Return the only request that there was to send since the last call, and forget all."""
        requests = self._requests[phase, "witness"]
        found = requests[-1] if requests else None
        requests.clear()
        return found

    def was_sent(self, phase: str) -> bool:
        """Say whether our webhook was asked since the last call, and forget it."""
        requests = self._requests[phase, "ours"]
        asked = bool(requests)
        requests.clear()
        return asked


def pointed(configuration: Json, url: str, ca_pem: bytes) -> Json:
    """Return a configuration that calls an address of this machine."""
    found = copy.deepcopy(configuration)
    for webhook in found["webhooks"]:
        bundle = base64.b64encode(ca_pem).decode()
        webhook["clientConfig"] = {"url": url, "caBundle": bundle}
    return found


def _keeping(requests: list[Json]):
    def answer(review: Json) -> Json:
        requests.append(review["request"])
        response = {"uid": review["request"]["uid"], "allowed": True}
        return {"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response}

    return answer


def denial(act) -> str:
    """Do something; return why the API server denied it, or nothing."""
    try:
        act()
    except ApiError as error:
        return error.message
    return ""
