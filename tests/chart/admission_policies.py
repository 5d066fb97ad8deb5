"""Put ValidatingAdmissionPolicies of the chart into force."""

from __future__ import annotations

import copy
import uuid
from typing import TYPE_CHECKING, Any

from tests.chart.recorded_reviews import denial
from tests.support.charts import one
from tests.support.control_planes import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.control_planes import Api

Json = dict[str, Any]

POLICY, BINDING = "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"
GROUP = "/apis/admissionregistration.k8s.io/v1"
PLURALS = {BINDING: "validatingadmissionpolicybindings", POLICY: "validatingadmissionpolicies"}


class Line:
    """Keeps one policy and its binding in force, in one version or another.

    The API server learns of it by a watch. So we add a validation that denies whatever has one
    label's value, new each time; `tried` makes such an object, and fails when it is denied.
    """

    def __init__(self, api: Api, name: str, tried: Callable[[str], Any]) -> None:
        self._api = api
        self._name = name
        self._tried = tried
        self._current: Json | None = None
        self._mark = ""

    def use(self, objects: list[Json]) -> None:
        """Put the policy of rendered objects into force, where it is not."""
        policy = one(objects, POLICY, self._name)
        if policy == self._current:
            return
        marked = copy.deepcopy(policy)
        self._mark = uuid.uuid4().hex
        is_probe = (
            "has(object.metadata.labels) && 'probe' in object.metadata.labels "
            f"&& object.metadata.labels['probe'] == '{self._mark}'"
        )
        validation = {"expression": f"!({is_probe})", "message": self._mark}
        marked["spec"]["validations"].insert(0, validation)
        for thing in (marked, one(objects, BINDING, self._name)):
            query = {"fieldManager": "tests", "force": "true", "fieldValidation": "Strict"}
            path = f"{GROUP}/{PLURALS[thing['kind']]}/{self._name}"
            kind = "application/apply-patch+yaml"
            self._api.request("PATCH", path, thing, content_type=kind, **query)
        wait_until(f"{self._name} is in force", self._holds)
        self._current = policy

    def remove(self) -> None:
        """Take it away, where it is."""
        if self._current is None:
            return
        for plural in PLURALS.values():
            self._api.request("DELETE", f"{GROUP}/{plural}/{self._name}")
        wait_until(f"{self._name} is out of force", lambda: not self._holds())
        self._current = None

    def _holds(self) -> bool:
        return self._mark in denial(lambda: self._tried(self._mark))


def is_denied_by(why: str, name: str) -> bool:
    """Say whether a denial is that of a policy."""
    return f"ValidatingAdmissionPolicy '{name}'" in why
