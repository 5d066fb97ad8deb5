"""Clusters and installations that are not as they should be, of which only `check` is recorded."""

from __future__ import annotations

import json
from base64 import b64encode
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tests.support.api_server import merged
from tests.support.clusters import a_cluster, a_gpu, a_node, held
from tests.support.installations import (
    DAEMON_SETS,
    HOOKS,
    IN_SYSTEM,
    POLICIES,
    REGISTRATION,
    SENTRY,
    SYSTEM,
    WEBHOOK,
    each_hook,
    patch,
)
from tests.support.pki import Authority
from tests.support.pods import a_container
from tests.tools.situations.scenes import (
    BY_SENTRY,
    H100,
    Json,
    Named,
    Situation,
    asks,
    beside_rag,
    gpu_node,
    judged,
    one_gpu,
    rag,
    refused,
    register,
    runs,
    sidecar,
    to_pods_that_ask,
    with_sentry,
)
from webhook.names import PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.api_server import ApiServer

    Change = Callable[[ApiServer], object]

WHOLE = {"nvidia.com/gpu": "4"}
WANTS_WHOLE = [a_container(resources={"limits": {"nvidia.com/gpu": "1"}})]
HEAD = "apiVersion: vramwarden.io/v1alpha1\nkind: VRAMPolicy\nmetadata: {name: late}\nspec: "
LATE_RULE = HEAD + "{rules: [{name: late, match: {namespaces: [late]}, action: Ignore}]}"
BINDINGS = f"{REGISTRATION}/validatingadmissionpolicybindings"
MUTATING = f"{REGISTRATION}/mutatingwebhookconfigurations"
ENFORCE = "pod-security.kubernetes.io/enforce"
AWAY = 'Internal error occurred: failed calling webhook "mutate.vramwarden.io": '


def installed(*changes: Change, **more: Any) -> Situation:
    """Return an installation that works but for these changes, on one node."""
    return Situation("rag", beside_rag(), changes=changes, **more)


def with_objects(*objects: Json) -> Situation:
    """Return an installation that works, with these objects in addition."""
    return Situation(
        "rag",
        beside_rag(
            *(one for one in objects if one["kind"] == "Pod"),
            more=tuple(one for one in objects if one["kind"] != "Pod"),
        ),
    )


def on_node(**node: Any) -> Situation:
    """Return an installation that works, on a node with these properties."""
    return Situation("rag", beside_rag(**node))


def before(*nodes: Any, **more: Any) -> Situation:
    """Return a cluster in which nothing is installed yet."""
    cluster = a_cluster([*nodes, a_node("cpu")])
    return Situation("rag", cluster, installed=False, options=("--pre",), **more)


def labelled(path: str, **labels: str | None) -> Change:
    """Return a change of labels; `_` in a key stands for a hyphen."""
    return patched(path, {"metadata": {"labels": labels}})


def patched(path: str, change: Json) -> Change:
    """Return a change of an object."""
    return lambda api: patch(api, path, change)


def removed(path: str) -> Change:
    """Return a change that removes an object."""
    return lambda api: api.remove(path)


def judged_node(in_use: tuple[str, ...] = (), **more: Any) -> Json:
    """Return a node that is not shared, with the verdict of its agent."""
    return judged(gpu_node("n2", **more), shares=False, in_use=in_use)[0].stored


def ours(change: Json) -> Change:
    """Return a change of the first webhook that changes pods."""

    def make(api: ApiServer) -> None:
        name = api.objects[HOOKS[0]]["webhooks"][0]["name"]
        patch(api, HOOKS[0], {"webhooks": [{"name": name, **change}]})

    return make


def another_authority(api: ApiServer) -> None:
    """Let the API server trust another CA."""
    each_hook(api, HOOKS[0], {"caBundle": b64encode(Authority("nobody").pem).decode()})


def earlier_name(api: ApiServer) -> None:
    """Store our configuration under an earlier name, too."""
    found = merged(api.objects[HOOKS[0]], {"metadata": {"name": "vramwarden"}})
    api.put(f"{MUTATING}/vramwarden", found)


def later_webhook(api: ApiServer) -> None:
    """Store another webhook that changes new pods after ours."""
    rule = {"apiGroups": ["*"], "operations": ["CREATE"], "resources": ["pods"]}
    hook = {"name": "mutate.example.com", "rules": [rule]}
    api.put(f"{MUTATING}/zzz-other", {"metadata": {"name": "zzz-other"}, "webhooks": [hook]})


def after_days(days: float) -> Situation:
    """Return an installation that works, so many days later."""
    passed_s = days * 86_400

    def pass_by(api: ApiServer) -> None:
        now_s = api.now_s() + passed_s
        api.now_s = lambda: now_s

    return Situation("rag", beside_rag(age_s=14 - passed_s), changes=(pass_by,))


def uninstalled(api: ApiServer) -> None:
    """Remove the webhook and its configurations."""
    for path in (WEBHOOK, *HOOKS):
        api.remove(path)


def not_ready(component: str, why: str) -> Json:
    """Return a pod of ours that is not ready."""
    labels = {"app.kubernetes.io/name": "vramwarden", "app.kubernetes.io/component": component}
    condition = {"type": "Ready", "status": "False", "reason": "ContainersNotReady", "message": why}
    waiting = {"reason": "CrashLoopBackOff", "message": why}
    status = {
        "phase": "Running", "conditions": [condition],
        "containerStatuses": [{"name": component, "ready": False, "state": {"waiting": waiting}}],
    }  # fmt: skip
    return asks(f"{component}-x", node="n1", namespace=SYSTEM, status=status, labels=labels)


def fails_with(words: str) -> Situation:
    """Return an installation whose webhook the API server cannot call."""
    return installed(answers=to_pods_that_ask(refused(500, AWAY + words)))


def one_of_two_sentries() -> Situation:
    """Return two nodes, of which only one has a sentry that acts."""
    acting, other = with_sentry(one_gpu().nodes[0]), gpu_node("n2", a_gpu(79, **H100))
    return Situation("rag", a_cluster([acting, other], [rag()]), rules=BY_SENTRY)


def limited(*proofs: Any) -> Situation:
    """Return nodes whose limiters have proved this."""
    nodes = [gpu_node(f"n{n}", a_gpu(79), limit=one) for n, one in enumerate(proofs, 1)]
    return Situation("rag", a_cluster(nodes, [runs("rag", "8Gi", "n1", "GPU-n1-0")]))


def for_default(action: str) -> Situation:
    """Return a policy whose rule for the pods that are tried has another action."""
    rule = f"  - {{name: looking, match: {{namespaces: [default]}}, action: {action}}}\n"
    return installed(rules=rule)


def limiter(ready: int) -> Change:
    """Return a change that installs the limiter, which is ready on this number of nodes."""

    def make(api: ApiServer) -> None:
        labels = {"app.kubernetes.io/component": "limiter"}
        own = {"metadata": {"name": "vramwarden-limiter", "labels": labels}}
        found = merged(api.objects[DAEMON_SETS[1]], own)
        path = DAEMON_SETS[1].replace("vramwarden-sentry", "vramwarden-limiter")
        path = path.replace("namespaces/vramwarden-limiter", f"namespaces/{SENTRY}")
        api.put(path, merged(found, {"status": {"numberReady": ready}}))

    return make


LOST = a_gpu(79, healthy=False, fault="is lost", **H100)
EXCLUSIVE = a_gpu(
    79, healthy=False, fault="compute mode Exclusive_Process: run nvidia-smi -i GPU-n1-1 -c DEFAULT"
)
CLUSTER = {
    "kubernetes-too-old": (
        "Kubernetes 1.30 is not supported.",
        lambda: installed(
            lambda api: api.texts.update({"/version": json.dumps({"gitVersion": "v1.30.9"})})
        ),
    ),
    "namespace-denies-sentry": (
        "Pod Security denies the sentry.",
        lambda: installed(
            patched(f"/api/v1/namespaces/{SENTRY}", {"metadata": {"labels": {ENFORCE: "baseline"}}})
        ),
    ),
    "node-not-ready": (
        "A node with a GPU is not ready.",
        lambda: installed(patched(
            "/api/v1/nodes/n1", {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
        )),
    ),
    "no-agent-label": (
        "A node with whole GPUs has no label that brings the agent.",
        lambda: with_objects(a_node("n2", amounts=WHOLE).stored),
    ),
    "no-runtime-class": (
        "There is no RuntimeClass of NVIDIA.",
        lambda: installed(removed("/apis/node.k8s.io/v1/runtimeclasses/nvidia")),
    ),
    "no-runtime-handler": (
        "A node lacks NVIDIA's runtime.",
        lambda: installed(
            lambda api: api.put("/apis/node.k8s.io/v1/runtimeclasses/nvidia", {"handler": "nv"})
        ),
    ),
    "share-label-wrong": (
        "The label is neither true nor false.",
        lambda: on_node(labels={f"{PREFIX}share": "yes"}),
    ),
    "shared-both-ways": (
        "An admin shares a node that a device plugin offers whole, too.",
        lambda: on_node(labels={f"{PREFIX}share": "true"}, amounts=WHOLE),
    ),
    "kept-whole": (
        "An admin keeps a node whole.",
        lambda: with_objects(judged_node(labels={f"{PREFIX}share": "false"}, amounts=WHOLE)),
    ),
    "plugin-does-not-heed": (
        "The device plugin does not heed its label.",
        lambda: with_objects(judged_node(
            labels={"nvidia.com/gpu.deploy.device-plugin": "false"}, amounts=WHOLE
        )),
    ),
    "whole-gpu-pod-on-a-shared-node": (
        "A pod has whole GPUs of a node that is shared.",
        lambda: with_objects(asks("whole", node="n1", containers=WANTS_WHOLE)),
    ),
    "slice-of-a-shared-gpu": ("A DRA driver offers a GPU that is shared.",
                              lambda: Situation("rag", a_cluster(
                                  [judged(beside_rag().nodes[0], shares=True,
                                          claimed_by=("gpu.nvidia.com",))[0]], [rag()]))),
    "hami-on-a-node": (
        "HAMi shares the GPUs of another node.",
        lambda: with_objects(judged_node(
            annotations={"hami.io/node-nvidia-register": "[]"},
            amounts={"nvidia.com/gpumem": "100"},
        )),
    ),
    "node-without-memory": (
        "A node is shared, and offers no VRAM.",
        lambda: installed(patched(
            "/api/v1/nodes/n1", {"status": {"allocatable": {f"{PREFIX}vram": "0"}}}
        )),
    ),
    "node-waits-for-its-pods": (
        "An agent waits until whole GPUs are free.",
        lambda: with_objects(judged_node(in_use=("GPU-n2-0",))),
    ),
    "gpu-lost": (
        "One of two GPUs is lost.",
        lambda: Situation("rag", a_cluster(
            [gpu_node("n1", a_gpu(79, held("rag", 8, 6, 6)), LOST)], [rag()]
        )),
    ),
    "gpu-in-another-mode": (
        "One of two GPUs is in another compute mode.",
        lambda: Situation("rag", a_cluster(
            [gpu_node("n1", a_gpu(79, held("rag", 8, 6, 6)), EXCLUSIVE)], [rag()]
        )),
    ),
    "driver-too-old": (
        "The driver of a node is too old for sidecars.",
        lambda: on_node(
            enforcement="none", labels={f"{PREFIX}driver-version": "535.129.03",
                                        f"{PREFIX}enforcement": "none"},
        ),
    ),
    "configured-amounts": (
        "The only node has a configured amount.",
        lambda: Situation("rag", a_cluster([a_node("laptop", said=16)]), changes=(
            removed(DAEMON_SETS[1]),
            patched(DAEMON_SETS[0], {"spec": {"template": {"spec": {"containers": [
                {"name": "agent", "args": ["--vram=16Gi"]}
            ]}}}}),
        )),
    ),
}  # fmt: skip
INSTALLATION = {
    "not-installed": ("The webhook is not there.", lambda: installed(uninstalled)),
    "another-version": (
        "The release is of another version.",
        lambda: installed(
            patched(WEBHOOK, {"metadata": {"labels": {"app.kubernetes.io/version": "9.9.9"}}})
        ),
    ),
    "one-replica-not-ready": (
        "One of two replicas is not ready.",
        lambda: installed(
            patched(WEBHOOK, {"status": {"readyReplicas": 1}}),
            lambda api: api.add(not_ready("webhook", "its port is taken")),
        ),
    ),
    "no-validating-webhook": (
        "A configuration has no webhooks.",
        lambda: installed(patched(HOOKS[1], {"webhooks": None})),
    ),
    "earlier-configuration": (
        "A configuration of an earlier name is left.", lambda: installed(earlier_name),
    ),
    "another-failure-policy": (
        "Somebody lets pods pass when the webhook is away.",
        lambda: installed(ours({"failurePolicy": "Ignore"})),
    ),
    "webhook-after-ours": (
        "Another webhook changes new pods after ours.", lambda: installed(later_webhook),
    ),
    "no-path-for-bindings": (
        "No replica has written the path for bindings.",
        lambda: installed(patched(HOOKS[0], {"webhooks": [
            {"name": "bind.vramwarden.io", "clientConfig": {"service": {"path": None}}}
        ]})),
    ),
    "another-authority": (
        "The API server trusts another CA.",
        lambda: installed(another_authority),
    ),
    "empty-ca-bundle": (
        "A tool emptied caBundle.",
        lambda: installed(lambda api: each_hook(api, HOOKS[0], {"caBundle": ""})),
    ),
    "certificate-about-to-expire": (
        "The certificate expires in a few days.", lambda: after_days(360),
    ),
    "certificate-expired": ("The certificate has expired.", lambda: after_days(370)),
    "no-certificate": (
        "The Secret of the certificate is gone.",
        lambda: installed(removed(f"{IN_SYSTEM}/secrets/vramwarden-certificate")),
    ),
    "rule-audits": (
        "The rule for the pods that are tried only records.",
        lambda: for_default("Audit"),
    ),
    "rule-warns": ("The rule for the pods that are tried only warns.", lambda: for_default("Warn")),
    "webhook-too-slow": (
        "The webhook does not answer in time.",
        lambda: fails_with("Post x: context deadline exceeded"),
    ),
    "webhook-without-endpoints": (
        "The Service of the webhook has no endpoints.",
        lambda: fails_with('no endpoints available for service "vramwarden-webhook"'),
    ),
    "no-policy": ("There is no policy.", lambda: installed(removed(POLICIES))),
    "policy-not-in-force": (
        "No replica has taken up the policy yet.",
        lambda: installed(patched(POLICIES, {"data": {"00-late.yaml": LATE_RULE}})),
    ),
    "fence-only-warns": (
        "A policy of the fence only warns.",
        lambda: installed(
            patched(f"{BINDINGS}/vramwarden-sidecar", {"spec": {"validationActions": ["Warn"]}})
        ),
    ),
    "fence-without-rules": (
        "The fence has no parameter.",
        lambda: installed(removed(f"{IN_SYSTEM}/configmaps/vramwarden-fence")),
    ),
    "no-key": (
        "The replicas have no key.",
        lambda: installed(removed(f"{IN_SYSTEM}/secrets/vramwarden-key")),
    ),
    "no-agent": ("The agent is not installed.", lambda: installed(removed(DAEMON_SETS[0]))),
    "agent-not-ready": (
        "An agent says why it is not ready.",
        lambda: installed(
            patched(DAEMON_SETS[0], {"status": {"numberReady": 0}}),
            lambda api: api.add(not_ready("agent", "the driver is not loaded")),
        ),
    ),
    "no-sentry": ("The sentry is not installed.", lambda: installed(removed(DAEMON_SETS[1]))),
    "limiter-not-ready": ("The limiter is not ready.", lambda: installed(limiter(0))),
    "no-kind-of-figures": (
        "The kind GPUNode is not defined.",
        lambda: installed(lambda api: api.unknown.add("gpunodes")),
    ),
    "sidecar-image-not-pulled": (
        "The image of a sidecar cannot be pulled.",
        lambda: Situation("rag", one_gpu(rag(status={"initContainerStatuses": [
            sidecar("waiting", reason="ImagePullBackOff", message="Back-off")
        ]}))),
    ),
    "validator-of-the-operator": (
        "NVIDIA's operator validates its nodes in a namespace that the policy denies.",
        lambda: with_objects(asks(
            "v", node="n1", namespace="gpu", status="Succeeded",
            metadata={"labels": {"app": "nvidia-device-plugin-validator"}},
        )),
    ),
}  # fmt: skip
BEFORE = {
    "before-installation": ("The cluster can take vramwarden.", lambda: before(gpu_node("n1"))),
}  # fmt: skip

for rows in (CLUSTER, INSTALLATION, BEFORE):
    for name, (title, make) in rows.items():
        register(name, Named(title, lambda made=make: replace(made(), commands=("check",))))
