"""`check` with few permissions, and with an API server that stops responding."""

from __future__ import annotations

import re

import pytest

from tests.support.api_server import ApiServer, merged
from tests.support.installations import DAEMON_SETS, HOOKS, SENTRY, SYSTEM, WEBHOOK
from tests.tools.situations.checks import ENFORCE, installed, labelled
from webhook import __version__
from webhook.adapters.kube.errors import KubeError
from webhook.tools.check.checks import GROUPS, CheckOutcome, run_checks
from webhook.tools.snapshot.installation import Installation

pytestmark = pytest.mark.process  # Helm renders the chart
DRY_RUNS = {"pod-good", "pod-wrong", "pod-plain"}
OF_NODES = {check.id for check in GROUPS["nodes with GPUs"]}


def outcomes(api: ApiServer, **options: object) -> dict[str, CheckOutcome]:
    """Return the outcomes of all checks, keyed by ID."""
    return {
        outcome.check.id: outcome
        for outcome in run_checks(Installation(api.kube(), __version__, **options))
    }


def not_ok(found: dict[str, CheckOutcome]) -> dict[str, str]:
    """Return the results that are not ok, keyed by ID."""
    return {name: str(item.result) for name, item in found.items() if item.result != "ok"}


@pytest.fixture
def cluster():
    return installed().stored()


RIGHTS = {
    "list nodes": ("", "", OF_NODES),
    "list mutatingwebhookconfigurations": (
        "list webhook configurations", "", {"registration", "bind-path", "ca-bundle"},
    ),
    "get runtimeclasses": ("", "", {"runtime-class"}),
    "get namespaces": ("", "", {"sentry-namespace"}),
    "get deployments": ("", "", {"release", "replicas", "certificate"}),
    "get daemonsets": ("", "", {"daemon-sets"}),
    "get configmaps": ("", "", {"policy", "fence", "taints", "enforcement"}),
    "get secrets": ("", "", {"certificate", "bind-path"}),
    "list pods": ("list pods in all namespaces", "", {
        "whole-gpu-pods", "sidecar-image", "validators", "waiting-pods",
    }),
    "list gpunodes": ("", "", {"figures", "driver-limits"}),
    "list resourcequotas": ("list resourcequotas in all namespaces", "", {"quotas"}),
    "list resourceslices": ("", "", set()),
    "list validatingadmissionpolicies": ("list admission policies", "", {"fence"}),
    "list mutatingadmissionpolicies": ("list admission policies", "", {"fence"}),
    "create pods": ("create pods in default", "POST", DRY_RUNS),
}  # fmt: skip
"""A permission, its name in messages, and the checks that need it."""


@pytest.mark.parametrize("right", RIGHTS)
def test_a_missing_right_is_named_and_the_rest_is_seen(cluster, right):
    named, answered, unseen = RIGHTS[right]
    if answered:
        cluster.recovers()  # the API server responds again
    cluster.denied.add(tuple(right.split()))
    found = outcomes(cluster)
    why = {name: str(found[name].unavailable) for name in not_ok(found)}
    assert why == dict.fromkeys(unseen, f"needs the right to {named or right}")


UNSERVED = {
    "mutatingadmissionpolicies": {},  # before Kubernetes 1.36
    "validatingadmissionpolicies": {"fence": "notLookedAt"},
    "resourceslices": {},
    "gpunodes": {"figures": "warning"},
}


@pytest.mark.parametrize(("kind", "results"), UNSERVED.items())
def test_a_kind_need_not_be_served(cluster, kind, results):
    cluster.unknown.add(kind)
    assert not_ok(outcomes(cluster)) == results


@pytest.mark.parametrize("kind", ["resourceslices", ""])
def test_before_an_installation_it_says_whether_dra_drivers_are_known(cluster, kind):
    cluster.unknown.add(kind)
    seen = outcomes(cluster, is_before=True)["sharing"].seen
    assert ("needs resource.k8s.io/v1" in seen) == bool(kind)


@pytest.mark.parametrize("path", ["/nodes", "/daemonsets", "POST .*/pods"])
def test_an_api_server_that_goes_away_ends_it(cluster, path):
    cluster.recovers()
    cluster.fails(path, 0)
    with pytest.raises(KubeError, match="does not answer"):
        outcomes(cluster)


def moved(api, path, namespace):
    found = api.objects[path]
    api.remove(path)
    metadata = {"metadata": {"namespace": namespace}}
    api.put(re.sub("/namespaces/[^/]+", f"/namespaces/{namespace}", path), merged(found, metadata))


def test_a_release_is_found_in_any_namespace_unless_it_is_given(cluster):
    for path in HOOKS:
        cluster.remove(path)
    moved(cluster, WEBHOOK, "gpu")
    for namespace, result in ((None, "ok"), ("gpu", "ok"), (SYSTEM, "failed")):
        assert outcomes(cluster, namespace=namespace)["release"].result == result


@pytest.mark.parametrize("namespace", [SENTRY, SYSTEM])
def test_a_sentry_is_found_by_its_name_without_the_right_to_list(cluster, namespace):
    moved(cluster, DAEMON_SETS[1], namespace)
    labelled(f"/api/v1/namespaces/{SYSTEM}", **{ENFORCE: "privileged"})(cluster)
    cluster.denied.add(("list", "daemonsets"))
    found = outcomes(cluster)
    assert not_ok(found) == {}
    assert namespace in found["sentry-namespace"].seen


def test_dry_runs_store_nothing(cluster):
    before = dict(cluster.objects)
    outcomes(cluster)
    outcomes(cluster, is_before=True)
    assert cluster.objects == before
    tried = [request for request in cluster.asked if request.method == "POST"]
    assert [request.query["dryRun"] for request in tried] == ["All"] * 3
