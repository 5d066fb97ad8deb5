"""Installed admission policies of the chart, with their parameter."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Callable
from typing import Any

from tests.chart.recorded_reviews import denial
from tests.support.charts import NAMESPACE, one
from tests.support.control_planes import Api, needs, wait_until
from webhook.adapters.kube.release_objects import CONFIG_MAP
from webhook.core.policy.fence import fence_data
from webhook.core.policy.model import Policy

Json = dict[str, Any]

POLICY, BINDING = "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"
GROUP = "/apis/admissionregistration.k8s.io/v1"
PLURALS = {
    BINDING: "validatingadmissionpolicybindings",
    POLICY: "validatingadmissionpolicies",
    "MutatingAdmissionPolicyBinding": "mutatingadmissionpolicybindings",
    "MutatingAdmissionPolicy": "mutatingadmissionpolicies",
}


class Line:
    """Keeps one policy and its binding installed, in changing versions.

    The API server learns of changes by watches. Therefore each change adds a validation that denies
    objects with a new label value. `tried` creates such an object until it is denied.
    """

    def __init__(self, api: Api, name: str, tried: Callable[[str], Any]) -> None:
        self._api = api
        self.name = name
        self._tried = tried
        self._current: tuple[Json, Policy | Json | None] | None = None
        self._mark = ""

    def use(self, objects: list[Json], rules: Policy | Json | None = None) -> None:
        """Install the policy among rendered objects, and its rules."""
        policy = one(objects, POLICY, self.name)
        if self._current == (policy, rules):
            return
        marked = copy.deepcopy(policy)
        self._mark = uuid.uuid4().hex
        is_probe = f"object.metadata.?labels[?'probe'].orValue('') == '{self._mark}'"
        if "paramKind" in policy["spec"]:
            write_parameter(self._api, rules, probe=self._mark)
            is_probe += f" && params.data['probe'] == '{self._mark}'"
        validation = {"expression": f"!({is_probe})", "message": self._mark}
        marked["spec"]["validations"].insert(0, validation)
        for thing in (marked, one(objects, BINDING, self.name)):
            apply(self._api, thing)
        wait_until(f"{self.name} is in force", self._holds)
        self._current = policy, rules

    def remove(self) -> None:
        """Remove the policy, if it exists."""
        if self._current is None:
            return
        for kind in (BINDING, POLICY):
            self._api.request("DELETE", f"{GROUP}/{PLURALS[kind]}/{self.name}")
        wait_until(f"{self.name} is out of force", lambda: not self._holds())
        self._current = None

    def _holds(self) -> bool:
        return self._mark in denial(lambda: self._tried(self._mark))


def apply(api: Api, thing: Json) -> None:
    """Apply an admission policy or its binding. The API server rejects unknown fields."""
    needs(api, thing["kind"])
    query = {"fieldManager": "tests", "force": "true", "fieldValidation": "Strict"}
    path = f"{GROUP}/{PLURALS[thing['kind']]}/{thing['metadata']['name']}"
    api.request("PATCH", path, thing, content_type="application/apply-patch+yaml", **query)


def write_parameter(api: Api, rules: Policy | Json | None, **further: str) -> None:
    """Write the parameter of a policy as replicas do, or the given data."""
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    api.apply(namespace)
    data = fence_data(rules) if isinstance(rules, Policy) else rules or {}
    api.apply(parameter({**data, **further}))


def parameter(data: dict[str, str] | None = None) -> Json:
    """Return the ConfigMap that is the fence's parameter."""
    metadata = {"name": CONFIG_MAP, "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data or {}}


def keep_parameters_followed(api: Api) -> None:
    """Create a binding that reads ConfigMaps and matches nothing, as the chart does.

    After the last such binding is deleted, API servers up to 1.36 keep using cached ConfigMaps
    (kubernetes/kubernetes issue 130887), and tests install and remove the chart.
    """
    rules = {"apiGroups": ["tests"], "apiVersions": ["v1"], "operations": ["CREATE"]}
    spec = {
        "failurePolicy": "Ignore",
        "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
        "matchConstraints": {"resourceRules": [{**rules, "resources": ["nothing"]}]},
        "validations": [{"expression": "true"}],
    }
    reference = {"name": CONFIG_MAP, "namespace": NAMESPACE, "parameterNotFoundAction": "Allow"}
    bound = {"policyName": "keep", "paramRef": reference, "validationActions": ["Deny"]}
    for kind, found in ((POLICY, spec), (BINDING, bound)):
        version = GROUP.removeprefix("/apis/")
        apply(
            api, {"apiVersion": version, "kind": kind, "metadata": {"name": "keep"}, "spec": found}
        )


def is_denied_by(why: str, name: str) -> bool:
    """Return True if the policy `name` caused the denial."""
    return f"ValidatingAdmissionPolicy '{name}'" in why
