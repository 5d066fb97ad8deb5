"""What `check` finds in clusters that no recorded situation shows.

The recorded situations (tests/tools/situations/checks.py) show most findings with their fixes.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.clusters import a_cluster, a_gpu
from tests.support.installations import (
    DAEMON_SETS,
    HOOKS,
    IN_SYSTEM,
    POLICIES,
    REGISTRATION,
    SENTRY,
    WEBHOOK,
    each_hook,
    patch,
)
from tests.support.policies import HEAD
from tests.tools.check.clusters import not_ok, outcomes
from tests.tools.situations.checks import (
    LATE_RULE,
    WANTS_WHOLE,
    WHOLE,
    after_days,
    before,
    fails_with,
    for_default,
    installed,
    judged_node,
    on_node,
    one_of_two_sentries,
    patched,
    removed,
    with_objects,
)
from tests.tools.situations.scenes import (
    BY_SENTRY,
    Situation,
    asks,
    gpu_node,
    one_gpu,
    rag,
    refused,
    sidecar,
    to_pods_that_ask,
    with_sentry,
)
from webhook.core.node.limits import LIMIT_COMES_S

pytestmark = pytest.mark.process  # Helm renders the chart
BY_US = 'admission webhook "mutate.vramwarden.io" denied the request: TooLarge: no'
BY_FENCE = "ValidatingAdmissionPolicy 'vramwarden-second-line' denied request: create it again"
BY_QUOTA = "pods is forbidden: exceeded quota: pods"
SHARE = {"vramwarden.io/share": "true"}
SLICE = {
    "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "n1-gpus"},
    "spec": {"driver": "gpu.nvidia.com", "nodeName": "n1", "devices": [
        {"name": "gpu-0", "attributes": {"uuid": {"string": "GPU-n1-0"}}}
    ]},
}  # fmt: skip
MOUNTED = patched(WEBHOOK, {"spec": {"template": {"spec": {
    "containers": [{"name": "webhook", "args": ["serve"]}],
    "volumes": [{"name": "tls", "secret": {"secretName": "vramwarden-certificate"}}],
}}}})  # fmt: skip
"""A certificate that cert-manager renews."""


def answers(code, message):
    """Return an installation in which pods that request VRAM get this answer."""
    return installed(answers=to_pods_that_ask(refused(code, message)))


def to_plain_pods(answer):
    """Return an installation in which pods that request nothing get this answer."""

    def step(request):
        asked = (request.body or {}).get("metadata", {}).get("annotations")
        return None if asked else answer(request) if callable(answer) else answer

    return installed(answers=step)


def translated(request):
    marked = {"annotations": {"vramwarden.io/admitted": "v1 default 0123456789ab"}}
    return 201, {**request.body, "metadata": request.body["metadata"] | marked}


def unread(situation):
    """Return a situation in which no ConfigMap may be read."""
    return replace(
        situation, changes=(*situation.changes, lambda api: api.denied.add(("get", "configmaps")))
    )


def version(text):
    return lambda api: api.texts.update({"/version": f'{{"gitVersion": "{text}"}}'})


def strict(api):
    hook = {"name": "bind.vramwarden.io", "failurePolicy": "Fail"}
    patch(api, HOOKS[0], {"webhooks": [hook]})


def waits_for_limit(seconds):
    """Return an installation with a pod that has waited for the driver's limit."""
    began = sidecar(startedAt="2027-01-15T08:00:00Z") | {"started": False}
    notes = {"vramwarden.io/driver-limit": "Auto"}
    pod = rag(status={"initContainerStatuses": [began]}, annotations=notes)
    return Situation("rag", one_gpu(pod), changes=(
        lambda api: setattr(api, "now_s", lambda: 1_800_000_000.0 + seconds),
    ))  # fmt: skip


FAILED, WARNING, UNSEEN = "failed", "warning", "notLookedAt"
ROWS = {
    "Kubernetes without a version": (
        installed(version("x1.2")), {"kubernetes-version": WARNING}, "cannot be read: 'x1.2'"),
    "the oldest Kubernetes": (installed(version("v1.31.0")), {}, ""),
    "a namespace of the sentry that exists before": (
        before(gpu_node("n1"), changes=(
            lambda api: api.put(f"/api/v1/namespaces/{SENTRY}", {"metadata": {"name": SENTRY}}),
        )),
        {"sentry-namespace": WARNING}, "--set sentry.createNamespace=false"),
    "such a namespace that Helm made": (
        before(gpu_node("n1"), changes=(
            lambda api: api.put(f"/api/v1/namespaces/{SENTRY}", {"metadata": {
                "name": SENTRY, "labels": {"app.kubernetes.io/managed-by": "Helm"}
            }}),
        )), {}, ""),
    "a namespace of the sentry that is gone": (
        installed(removed(f"/api/v1/namespaces/{SENTRY}")),
        {"sentry-namespace": FAILED}, f"`kubectl create namespace {SENTRY}`"),
    "taints of a node's state, and one that only prefers": (
        on_node(taints=[{"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"},
                        {"key": "a", "effect": "PreferNoSchedule"}]), {}, ""),
    "whole GPUs on a node that an admin shares both ways": (
        Situation("rag", replace(
            on_node(labels=SHARE).cluster,
            pods=(rag(), asks("whole", node="n1", containers=WANTS_WHOLE)),
        )),
        {"whole-gpu-pods": WARNING}, "nothing if wanted"),
    "a DRA driver before an installation": (
        before(gpu_node("n1"), changes=(lambda api: api.add(SLICE),)),
        {"sharing": WARNING}, "gpu.nvidia.com"),
    "two different verdicts": (
        with_objects(judged_node(amounts=WHOLE), gpu_node("n3", annotations={
            "vramwarden.io/sharing": "Draining: a plugin came; take it off"
        }).stored),
        {"sharing": FAILED}, "Draining: a plugin came"),
    "no sentry, which a rule wants": (
        replace(one_of_two_sentries(), changes=(removed(DAEMON_SETS[1]),)),
        {"enforcement": WARNING, "daemon-sets": WARNING}, "--set sentry.enabled=true"),
    "a sentry that only reports": (
        replace(one_of_two_sentries(), changes=(patched(DAEMON_SETS[1], {"spec": {"template": {
            "spec": {"containers": [{"name": "sentry", "args": ["sentry", "--no-act"]}]}
        }}}),)),
        {"enforcement": WARNING}, "sentry.act is false"),
    "an earlier failurePolicy": (
        installed(strict), {"registration": FAILED}, "pods without VRAM wait for vramwarden"),
    "no configuration at all": (
        installed(*map(removed, HOOKS)), {"registration": FAILED}, "not registered"),
    "a key and a path that are missing": (
        installed(
            patched(HOOKS[0], {"webhooks": [
                {"name": "bind.vramwarden.io", "clientConfig": {"service": {"path": None}}}
            ]}),
            removed(f"{IN_SYSTEM}/secrets/vramwarden-key"),
        ),
        {"bind-path": FAILED}, "create secret generic vramwarden-key"),
    "a CA of mode self with less than a year": (
        after_days(3300), {"ca-bundle": WARNING, "certificate": FAILED},
        "`vramwarden certs rotate --secret vramwarden-system/vramwarden-certificate`"),
    "a CA of another mode with less than a year": (
        replace(after_days(3300), changes=(*after_days(3300).changes, MOUNTED)),
        {"certificate": FAILED}, "Secret vramwarden-system/vramwarden-certificate has expired"),
    "no Secret with a certificate": (
        installed(patched(WEBHOOK, {"spec": {"template": {"spec": {
            "containers": [{"name": "webhook", "args": ["serve"]}]
        }}}})), {}, ""),
    "a caBundle that is no base64": (
        installed(lambda api: each_hook(api, HOOKS[0], {"caBundle": "x"})),
        {"ca-bundle": FAILED}, "has no readable certificate"),
    "a CA that has expired": (
        after_days(3700), {"ca-bundle": FAILED, "certificate": FAILED}, "CA has expired"),
    "a pod that only the fence denied": (
        answers(422, BY_FENCE), {"pod-good": FAILED, "pod-wrong": WARNING},
        "the webhook was not asked"),
    "a good pod that the policy denies": (
        answers(403, BY_US), {"pod-good": WARNING}, "denied by the policy"),
    "a pod that a quota denies": (
        answers(403, BY_QUOTA), {"pod-good": WARNING, "pod-wrong": WARNING},
        "see whether that is meant; --test-namespace"),
    "a Service that is gone": (
        fails_with('service "vramwarden-webhook" not found'),
        {"pod-good": FAILED, "pod-wrong": FAILED}, "`helm upgrade vramwarden CHART"),
    "an API server that fails by itself": (
        answers(500, "etcdserver: request timed out"),
        {"pod-good": UNSEEN, "pod-wrong": UNSEEN}, "etcdserver"),
    "a plain pod that is translated": (
        to_plain_pods(translated), {"pod-plain": FAILED}, "vramwarden.io/webhook=disabled"),
    "a plain pod that the webhook denies": (
        to_plain_pods(refused(403, BY_US)), {"pod-plain": FAILED}, "`helm upgrade"),
    "a plain pod that a quota denies": (
        to_plain_pods(refused(403, BY_QUOTA)), {"pod-plain": WARNING}, BY_QUOTA),
    "a rule that depends on labels": (
        replace(installed(answers=lambda one: (201, one.body)),
                rules="  - {name: one, match: {namespaceLabels: {tier: one}}, action: Audit}\n"),
        {"pod-good": FAILED, "pod-wrong": FAILED}, "--show-labels"),
    "a policy that ignores the namespace": (
        for_default("Ignore"), {"pod-good": FAILED, "pod-wrong": FAILED}, "--show-labels"),
    "such a policy, which cannot be read": (
        unread(for_default("Ignore")),
        {"pod-good": WARNING, "pod-wrong": WARNING, "taints": UNSEEN, "enforcement": UNSEEN,
         "policy": UNSEEN, "fence": UNSEEN},
        "a user who may read the policy"),
    "a policy without rules": (
        installed(patched(f"{IN_SYSTEM}/configmaps/vramwarden-policies", {"data": {
            "default.yaml": None, "notes.txt": "none",
        }})),
        {"policy": WARNING}, "has no rule"),
    "an invalid policy of another version": (
        installed(
            patched(WEBHOOK, {"metadata": {"labels": {"app.kubernetes.io/version": "9.9.9"}}}),
            patched(f"{IN_SYSTEM}/configmaps/vramwarden-policies", {"data": {"a.yaml": "kind: b"}}),
        ),
        {"release": WARNING, "policy": UNSEEN, "taints": UNSEEN, "enforcement": UNSEEN},
        "use the release's"),
    "no sidecar yet, and none that a rule wants": (
        Situation("rag", a_cluster([with_sentry(gpu_node("n1", a_gpu(79)))]), changes=(
            patched(POLICIES, {"data": {"default.yaml": f"{HEAD}  rules:\n{BY_SENTRY}"}}),
        )),
        {"policy": WARNING, "fence": WARNING}, "is not in force yet"),
    "a policy that is not in force, by another version": (
        installed(
            patched(WEBHOOK, {"metadata": {"labels": {"app.kubernetes.io/version": "9.9.9"}}}),
            patched(POLICIES, {"data": {"00-late.yaml": LATE_RULE}}),
        ),
        {"release": WARNING}, "some of what the command expects may differ"),
    "a part of the fence that is off": (
        installed(
            removed(f"{REGISTRATION}/validatingadmissionpolicies/vramwarden-debuggers"),
            removed(f"{REGISTRATION}/validatingadmissionpolicybindings/vramwarden-debuggers"),
        ),
        {"fence": WARNING}, "--set fence.sidecar=true"),
    "a validator that the policy ignores": (
        replace(with_objects(asks(
            "v", node="n1", namespace="gpu", status="Succeeded",
            metadata={"labels": {"app": "nvidia-device-plugin-validator"}},
        )), rules="  - {name: gpu, match: {namespaces: [gpu]}, action: Ignore}\n"), {}, ""),
    "a pod that waits for the driver's limit": (
        waits_for_limit(LIMIT_COMES_S + 1), {"driver-limits": WARNING},
        "`vramwarden explain rag -n team-a`"),
    "a pod that began to wait for it": (waits_for_limit(LIMIT_COMES_S - 2), {}, ""),
    "a node without a list of runtimes": (
        installed(patched("/api/v1/nodes/n1", {"status": {"runtimeHandlers": None}})), {}, ""),
}  # fmt: skip
"""A cluster, results that are not ok, and words of the first of them."""


@pytest.mark.parametrize(("situation", "results", "words"), ROWS.values(), ids=ROWS)
def test_what_is_not_so_is_found(situation, results, words):
    found = outcomes(situation.stored(), is_before=not situation.installed)
    assert not_ok(found) == results
    if results:
        first = found[next(iter(results))]
        problem = first.problems[0] if first.problems else first.unavailable
        assert words in str(problem)
