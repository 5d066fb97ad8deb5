"""The webhook receives a workload exactly if it has advice for it.

A real API server evaluates the expressions. The entry is `Fail`, so a condition that cannot
be evaluated causes a failure.
"""

from __future__ import annotations

import copy
import uuid
from dataclasses import replace

import pytest

from tests.chart.recorded_reviews import allowing, pointed
from tests.support.charts import one
from tests.support.pki import Authority
from tests.support.pods import a_container, a_pod, a_policy, a_request, a_rule
from tests.support.webhook_configurations import installed, serving
from webhook.core.admission.workload_review import advise
from webhook.core.pod.other_products import OTHER_PRODUCTS_BY_ANNOTATION, OTHER_PRODUCTS_BY_RESOURCE
from webhook.core.policy.cluster import UNKNOWN_CLUSTER

NAME = "advise-templates.vramwarden.io"
VALIDATING = "ValidatingWebhookConfiguration"
MEMORY = "vramwarden.io/gpu-memory"
LABELS = {"app": "infer"}
KINDS = ["Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob"]


def entry(objects):
    webhooks = one(objects, VALIDATING)["webhooks"]
    return next((webhook for webhook in webhooks if webhook["name"] == NAME), None)


def test_it_can_be_left_out(helm):
    assert entry(helm.render({"webhook": {"adviseTemplates": False}})) is None


def test_nobody_waits_for_it_and_exempt_namespaces_stay_exempt(helm):
    objects = helm.render({"exemptNamespaces": ["infra-*"]})
    found, validating = entry(objects), one(objects, VALIDATING)
    assert (found["failurePolicy"], found["timeoutSeconds"]) == ("Ignore", 2)
    assert (found["sideEffects"], found["clientConfig"]["service"]["path"]) == ("None", "/advise")
    first = found["matchConditions"][0]
    assert first["expression"] == "!request.namespace.matches('^(infra-.*)$')"
    assert found["namespaceSelector"] == validating["webhooks"][0]["namespaceSelector"]


class Sent:
    """A namespace and its workloads that were sent to the webhook."""

    def __init__(self, api, requests):
        self.api, self.requests = api, requests
        self.namespace = f"team-{uuid.uuid4().hex[:8]}"
        metadata = {"name": self.namespace}
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})

    def since(self, act):
        self.requests.clear()
        act()
        return len(self.requests)

    def creating(self, manifest):
        manifest = copy.deepcopy(manifest)
        manifest["metadata"]["namespace"] = self.namespace
        return self.since(lambda: self.api.create(manifest))


@pytest.fixture(scope="module")
def sent(control_plane, helm):
    requests = []
    found = one(helm.render(), VALIDATING)
    authority = Authority("advice-ca")
    with serving(authority, lambda review: allowing(review, requests)) as port:
        hook = pointed(entry([found]), f"https://127.0.0.1:{port}/", authority.pem)
        changed = {**found, "metadata": {"name": "advice"}, "webhooks": [hook]}
        with installed(control_plane.api, changed):
            yield Sent(control_plane.api, requests)


def a_workload(kind="Deployment", container=None, template=None, **metadata):
    """Return a workload; `template` is the metadata of its template."""
    pod = a_pod(containers=[a_container("main", **(container or {}))])
    template = {**(template or {}), "labels": {**LABELS, **(template or {}).get("labels", {})}}
    made = {"metadata": template, "spec": pod["spec"]}
    selected = {"selector": {"matchLabels": LABELS}}
    job = {"template": {**made, "spec": {**made["spec"], "restartPolicy": "Never"}}}
    specs = {
        "Deployment": {**selected, "template": made},
        "StatefulSet": {**selected, "serviceName": "infer", "template": made},
        "DaemonSet": {**selected, "template": made},
        "Job": job,
        "CronJob": {"schedule": "0 0 * * *", "jobTemplate": {"spec": job}},
    }
    return {
        "apiVersion": "batch/v1" if "Job" in kind else "apps/v1",
        "kind": kind,
        "metadata": {"name": f"w-{uuid.uuid4().hex[:8]}", **metadata},
        "spec": specs[kind],
    }


def with_limits(**limits):
    return {"container": {"resources": {"limits": limits, "requests": limits}}}


OURS = {"template": {"annotations": {MEMORY: "8Gi"}}}
OF_ITSELF = {"annotations": {MEMORY: "8Gi"}}
WHOLE = with_limits(**{"nvidia.com/gpu": "1"})
SAID = {
    "ours": {"template": {"annotations": {MEMORY: "8GB"}}},
    "a resource that is none": with_limits(**{"vramwarden.io/gpu-memory": "8Gi"}),
    "on the workload itself": OF_ITSELF,
    "as a label": {"template": {"labels": {MEMORY: "8Gi"}}},
    "as a label of the workload": {"labels": {MEMORY: "8Gi"}},
    "a near miss": {"template": {"annotations": {"vramwarden/gpu-memory": "8Gi"}}},
    "another": {"template": {"annotations": {"vram-warden.io/gpu-memory": "8Gi"}}},
    "a bare key": {"annotations": {"gpu_memory": "8Gi"}},
    **{name: with_limits(**{name: "3"}) for name in OTHER_PRODUCTS_BY_RESOURCE},
    **{key: {"template": {"annotations": {key: "2000"}}} for key in OTHER_PRODUCTS_BY_ANNOTATION},
}
NOTHING_SAID = {"the resource": with_limits(**{"vramwarden.io/vram": "8Gi"}), "a whole GPU": WHOLE}
NOT_SENT = {
    "plain": {},
    "a slice": with_limits(**{"nvidia.com/mig-1g.10gb": "1", "cpu": "1"}),
    "annotations of others": {"template": {"annotations": {"example.com/gpu-memory": "1"}}},
    "a label of others": {"template": {"labels": {"gpu": "a100"}}},
    "our label for histories": {"template": {"labels": {"vramwarden.io/workload": "x"}}},
    "keys too many to go through": {
        "template": {"annotations": {f"example.com/{n}": "" for n in range(4097)} | {MEMORY: "8GB"}}
    },
}
OF_EACH_KIND = [("a demand", OURS, False), ("a mistake", OF_ITSELF, True), ("none", {}, None)]
ROWS = [
    *(pytest.param("Deployment", fields, True, id=what) for what, fields in SAID.items()),
    *(pytest.param("Deployment", fields, False, id=what) for what, fields in NOTHING_SAID.items()),
    *(pytest.param("Deployment", fields, None, id=what) for what, fields in NOT_SENT.items()),
    *(
        pytest.param(kind, fields, said, id=f"{what} of a {kind}")
        for kind in KINDS
        for what, fields, said in OF_EACH_KIND
    ),
]


@pytest.mark.parametrize(("kind", "fields", "said"), ROWS)
def test_what_there_may_be_something_to_say_of_is_sent_and_nothing_else(sent, kind, fields, said):
    assert sent.creating(a_workload(kind, **fields)) == (said is not None)
    if said is not None:
        request = sent.requests[0]
        assert (request["kind"]["kind"], request["operation"]) == (kind, "CREATE")
        assert bool(advised(request, kind=kind)) is said


def advised(request, *rules, kind="Deployment"):
    """Return the webhook's advice for a workload."""
    group = "batch" if "Job" in kind else "apps"
    asked = replace(a_request(request["object"]), kind=f"{group}/{kind}", name="w")
    return advise(asked, a_policy(*rules), UNKNOWN_CLUSTER).warnings


def test_a_whole_gpu_is_sent_for_a_rule_may_give_a_share_in_its_place(sent):
    assert sent.creating(a_workload(**WHOLE)) == 1
    (said,) = advised(sent.requests[0], a_rule(translate_whole_gpu_bytes=16 * 2**30))
    assert "gives 16Gi of a GPU in place of a whole one" in said


def test_what_a_controller_makes_is_not_sent(sent):
    owner = {"apiVersion": "batch/v1", "kind": "CronJob", "name": "nightly", "uid": "1"}
    job = a_workload("Job", template={"annotations": {MEMORY: "8Gi"}}, ownerReferences=[owner])
    assert sent.creating(job) == 0


def test_a_change_is_sent_where_it_changes_the_spec(sent):
    workload = a_workload("StatefulSet", template={"annotations": {MEMORY: "8Gi"}})
    assert sent.creating(workload) == 1
    where = f"/apis/apps/v1/namespaces/{sent.namespace}/statefulsets/{workload['metadata']['name']}"
    merge = "application/merge-patch+json"

    def patch(change, subresource=""):
        return sent.since(
            lambda: sent.api.request("PATCH", where + subresource, change, content_type=merge)
        )

    assert patch({"metadata": {"annotations": {"a": "b"}}}) == 0
    assert patch({"spec": {"replicas": 3}}, "/scale") == 0
    assert patch({"status": {"replicas": 1}}, "/status") == 0
    template = {"metadata": {"annotations": {MEMORY: "8GB"}}}
    assert patch({"spec": {"template": template}}) == 1
