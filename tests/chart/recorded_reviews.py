"""Records the reviews that an API server sends with and without the chart's conditions."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable, Iterable
from typing import Any, Self

from tests.support.control_planes import Api, ApiError
from tests.support.pki import Authority
from tests.support.webhook_configurations import installed, serving

Json = dict[str, Any]

# Admission phase, keyed by kind of configuration.
PHASES = {"MutatingWebhookConfiguration": "mutate", "ValidatingWebhookConfiguration": "validate"}
ENTRIES = ("demand", "advice")
"""vramwarden's two webhooks for pods per configuration: the one with `Fail`, and the other."""
WITNESS = "witness"


class Recorder:
    """Replaces the webhooks: allows everything and records every request.

    `witness` is an additional webhook without conditions on objects. It is called first, so it
    records everything that could be sent. All webhooks are `Fail`, so a condition that cannot be
    evaluated causes a failure.
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
                whose = dict(zip(ENTRIES, ours["webhooks"], strict=False))
                narrowed = {"matchConditions", "objectSelector"}
                demand = whose["demand"].items()
                witness = {key: value for key, value in demand if key not in narrowed}
                for name, hooks in (("aaa-witness", {WITNESS: witness}), ("vramwarden", whose)):
                    found = {**ours, "metadata": {"name": name}, "webhooks": []}
                    for who, hook in hooks.items():
                        requests = self._requests[phase, who] = []
                        port = stack.enter_context(serving(authority, _keeping(requests)))
                        url = f"https://127.0.0.1:{port}/"
                        found["webhooks"].append(pointed(hook, url, authority.pem))
                    stack.enter_context(installed(self._api, found))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def witnessed(self, phase: str) -> Json | None:
        """Return and forget the only request that could be sent since the last call."""
        requests = self._requests[phase, WITNESS]
        found = requests[-1] if requests else None
        requests.clear()
        return found

    def sent_to(self, phase: str) -> tuple[str, ...]:
        """Return and forget the entries called since the last call."""
        asked = tuple(who for who in ENTRIES if self._requests[phase, who])
        for who in ENTRIES:
            self._requests[phase, who].clear()
        return asked


def pointed(webhook: Json, url: str, ca_pem: bytes) -> Json:
    """Return a webhook that calls an address of this machine, with failurePolicy `Fail`."""
    bundle = base64.b64encode(ca_pem).decode()
    return {**webhook, "clientConfig": {"url": url, "caBundle": bundle}, "failurePolicy": "Fail"}


def _keeping(requests: list[Json]) -> Callable[[Json], Json]:
    return lambda review: allowing(review, requests)


def allowing(review: Json, requests: list[Json]) -> Json:
    """Record a request and allow it."""
    requests.append(review["request"])
    response = {"uid": review["request"]["uid"], "allowed": True}
    return {"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response}


def denial(act) -> str:
    """Call a function; return the message of the denial, or "" without a denial."""
    try:
        act()
    except ApiError as error:
        return error.message
    return ""
