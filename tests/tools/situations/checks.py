"""Clusters and installations with problems that only `check` reports."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable
from typing import Any

from tests.support import policies
from tests.support.api_server import ApiServer, Request, merged
from tests.support.clusters import a_cluster, a_gpu, a_node, ago, held
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
from tests.tools.situations.denied import CANNOT_CALL, left_alone
from tests.tools.situations.scenes import (
    BY_SENTRY,
    Answer,
    Change,
    Json,
    Situation,
    asks,
    beside_rag,
    container,
    gpu_node,
    judged,
    one_gpu,
    rag,
    refused,
    sidecar,
    to_pods_that_ask,
    with_sentry,
)
from tests.tools.situations.waiting import WHOLE
from webhook.names import DOCUMENTATION_URL_ENV, PREFIX
from webhook.tools.snapshot.pod import LIMIT_GRACE_S

OFFERED = {"nvidia.com/gpu": "4"}
"""GPUs that a device plugin offers."""
SHARE = {f"{PREFIX}share": "true"}
MUTATING = f"{REGISTRATION}/mutatingwebhookconfigurations"
BINDINGS = f"{REGISTRATION}/validatingadmissionpolicybindings"
RUNTIME_CLASS = "/apis/node.k8s.io/v1/runtimeclasses/nvidia"
OF_SENTRY = f"/api/v1/namespaces/{SENTRY}"
ENFORCE = "pod-security.kubernetes.io/enforce"
LATE_RULE = "  rules: [{name: late, match: {namespaces: [late]}, action: Ignore}]"
BY_US = 'admission webhook "mutate.vramwarden.io" denied the request: TooLarge: no'
BY_FENCE = "ValidatingAdmissionPolicy 'vramwarden-second-line' denied request: create it again"
BY_QUOTA = "pods is forbidden: exceeded quota: pods"
SLICE = {
    "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "n1-gpus"},
    "spec": {"driver": "gpu.nvidia.com", "nodeName": "n1", "devices": [
        {"name": "gpu-0", "attributes": {"uuid": {"string": "GPU-n1-0"}}}
    ]},
}  # fmt: skip


# Situations.


def installed(*changes: Change, **more: Any) -> Situation:
    """Return a working installation on one node with these changes applied."""
    return Situation("rag", beside_rag(), changes=changes, **more)


def with_objects(*objects: Json, **more: Any) -> Situation:
    return Situation("rag", beside_rag(*objects), **more)


def on_node(*pods: Json, **node: Any) -> Situation:
    return Situation("rag", beside_rag(*pods, **node))


def before(*changes: Change) -> Situation:
    """Return a cluster in which nothing is installed yet."""
    cluster = a_cluster([gpu_node("n1"), a_node("cpu")])
    return Situation("rag", cluster, changes=changes, installed=False)


def on_nodes(*nodes: Any, **more: Any) -> Situation:
    """Return a working installation on these nodes, with the pod `rag`."""
    return Situation("rag", a_cluster([*nodes], [rag()]), **more)


def answers(code: int, message: str) -> Situation:
    """Return an installation in which the API server denies VRAM requests with this message."""
    return installed(answers=to_pods_that_ask(refused(code, message)))


def fails_with(words: str) -> Situation:
    """Return an installation whose webhook cannot be called."""
    return answers(500, f'{CANNOT_CALL}"mutate.vramwarden.io": {words}')


def to_plain_pods(answer: Answer | Callable[[Request], Answer]) -> Situation:
    """Return an installation with this response to pods that request nothing."""

    def step(request: Request) -> Answer | None:
        asked = (request.body or {}).get("metadata", {}).get("annotations")
        return None if asked else answer(request) if callable(answer) else answer

    return installed(answers=step)


def after_days(days: float, *changes: Change) -> Situation:
    passed_s = days * 86_400
    return Situation("rag", beside_rag(age_s=14 - passed_s), changes=(later(passed_s), *changes))


def two_nodes(*changes: Change) -> Situation:
    """Return two nodes, one without a working sentry, and a rule that requires a sentry."""
    acting, other = with_sentry(one_gpu().nodes[0]), gpu_node("n2", a_gpu(79))
    return on_nodes(acting, other, rules=BY_SENTRY, changes=changes)


def for_default(action: str, *changes: Change) -> Situation:
    rule = f"  - {{name: looking, match: {{namespaces: [default]}}, action: {action}}}\n"
    return installed(*changes, rules=rule)


def waits_for_limit(seconds: float) -> Situation:
    began = sidecar(startedAt=ago(0)) | {"started": False}
    notes = {f"{PREFIX}driver-limit": "Auto"}
    pod = rag(status={"initContainerStatuses": [began]}, annotations=notes)
    return Situation("rag", one_gpu(pod), changes=(later(seconds),))


# Changes.


def patched(path: str, change: Json) -> Change:
    return lambda api: patch(api, path, change)


def labelled(path: str, **labels: str | None) -> Change:
    return patched(path, {"metadata": {"labels": labels}})


def of_hook(name: str, change: Json) -> Change:
    return patched(HOOKS[0], {"webhooks": [{"name": f"{name}.vramwarden.io", **change}]})


def of_pods(path: str, **spec: Any) -> Change:
    return patched(path, {"spec": {"template": {"spec": spec}}})


def removed(path: str) -> Change:
    return lambda api: api.remove(path)


def with_policy(name: str, text: str) -> Change:
    return patched(POLICIES, {"data": {name: text}})


def later(seconds: float) -> Change:

    def pass_by(api: ApiServer) -> None:
        now_s = api.now_s() + seconds
        api.now_s = lambda: now_s

    return pass_by


def version(text: str) -> Change:
    return lambda api: api.texts.update({"/version": json.dumps({"gitVersion": text})})


def another_authority(api: ApiServer) -> None:
    each_hook(api, HOOKS[0], {"caBundle": b64encode(Authority("nobody").pem).decode()})


def earlier_name(api: ApiServer) -> None:
    found = merged(api.objects[HOOKS[0]], {"metadata": {"name": "vramwarden"}})
    api.put(f"{MUTATING}/vramwarden", found)


def later_webhook(api: ApiServer) -> None:
    rule = {"apiGroups": ["*"], "operations": ["CREATE"], "resources": ["pods"]}
    hook = {"name": "mutate.example.com", "rules": [rule]}
    api.put(f"{MUTATING}/zzz-other", {"metadata": {"name": "zzz-other"}, "webhooks": [hook]})


def limiter(api: ApiServer) -> None:
    labels = {"app.kubernetes.io/component": "limiter"}
    own = {"metadata": {"name": "vramwarden-limiter", "labels": labels}}
    found = merged(api.objects[DAEMON_SETS[1]], own | {"status": {"numberReady": 0}})
    api.put(f"{DAEMON_SETS[1].rpartition('/')[0]}/vramwarden-limiter", found)


# Objects.


def judged_node(in_use: tuple[str, ...] = (), **more: Any) -> Json:
    return judged(gpu_node("n2", **more), in_use=in_use)[0].stored


def not_ready(component: str, why: str) -> Json:
    labels = {"app.kubernetes.io/name": "vramwarden", "app.kubernetes.io/component": component}
    condition = {"type": "Ready", "status": "False", "reason": "ContainersNotReady", "message": why}
    main = container("waiting", name=component, reason="CrashLoopBackOff", message=why)
    status = {"phase": "Running", "conditions": [condition], "containerStatuses": [main]}
    return asks(f"{component}-x", node="n1", namespace=SYSTEM, status=status, labels=labels)


def translated(request: Request) -> Answer:
    marked = {"annotations": {f"{PREFIX}admitted": "v1 default 0123456789ab"}}
    return 201, {**request.body, "metadata": request.body["metadata"] | marked}


RAG_GPU = a_gpu(79, held("rag", 8, 6, 6))
EXCLUSIVE = a_gpu(
    79, healthy=False, fault="compute mode Exclusive_Process: run nvidia-smi -i GPU-n1-1 -c DEFAULT"
)
CLAIMED = judged(beside_rag().nodes[0], shares=True, dra_drivers=("gpu.nvidia.com",))[0]
DRAINING = {f"{PREFIX}sharing": "Draining: a plugin came; take it off"}
OLD_DRIVER = {f"{PREFIX}driver-version": "535.129.03", f"{PREFIX}enforcement": "none"}
FROM_STATE = {"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}
VALIDATOR = asks(
    "v", node="n1", namespace="gpu", status="Succeeded",
    metadata={"labels": {"app": "nvidia-device-plugin-validator"}},
)  # fmt: skip
WANTS_WHOLE = asks("whole", node="n1", containers=WHOLE)
NO_PATH = of_hook("bind", {"clientConfig": {"service": {"path": None}}})
SERVE = {"containers": [{"name": "webhook", "args": ["serve"]}]}
DOCUMENTED = {"containers": [{"name": "webhook", "env": [
    {"name": DOCUMENTATION_URL_ENV, "value": "https://docs.example/{page}.html"}
]}]}  # fmt: skip
MOUNTED = of_pods(WEBHOOK, **SERVE, volumes=[
    {"name": "tls", "secret": {"secretName": "vramwarden-certificate"}}
])  # fmt: skip
"""A certificate that cert-manager renews."""
ANOTHER_VERSION = labelled(WEBHOOK, **{"app.kubernetes.io/version": "9.9.9"})
FENCE_PART = ("validatingadmissionpolicies", "validatingadmissionpolicybindings")

ROWS = {
    # Kubernetes and nodes
    "The cluster can take vramwarden.": before(),
    "Kubernetes 1.30 is not supported.": installed(version("v1.30.9")),
    "Kubernetes 1.31 is the oldest that is supported.": installed(version("v1.31.0")),
    "Kubernetes has no version that can be read.": installed(version("x1.2")),
    "Pod Security denies the sentry.": installed(labelled(OF_SENTRY, **{ENFORCE: "baseline"})),
    "The sentry's namespace exists before the installation.":
        before(lambda api: api.put(OF_SENTRY, {"metadata": {"name": SENTRY}})),
    "Helm made the sentry's namespace before.": before(lambda api: api.put(OF_SENTRY, {
        "metadata": {"name": SENTRY, "labels": {"app.kubernetes.io/managed-by": "Helm"}}
    })),
    "The sentry's namespace is gone.": installed(removed(OF_SENTRY)),
    "A node with a GPU is not ready.": installed(patched(
        "/api/v1/nodes/n1", {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
    )),
    "A node has taints of its state, and one that only prefers.":
        on_node(taints=[FROM_STATE, {"key": "a", "effect": "PreferNoSchedule"}]),
    "A node with whole GPUs has no label that brings the agent.":
        with_objects(a_node("n2", amounts=OFFERED).stored),
    "There is no RuntimeClass of NVIDIA.": installed(removed(RUNTIME_CLASS)),
    "The release knows where the documentation is.":
        installed(removed(RUNTIME_CLASS), of_pods(WEBHOOK, **DOCUMENTED)),
    "A node lacks NVIDIA's runtime.":
        installed(lambda api: api.put(RUNTIME_CLASS, {"handler": "nv"})),
    "A node does not list its runtimes.":
        installed(patched("/api/v1/nodes/n1", {"status": {"runtimeHandlers": None}})),
    "The label is neither true nor false.": on_node(labels={f"{PREFIX}share": "yes"}),
    "An admin shares a node that a device plugin offers whole, too.":
        on_node(labels=SHARE, amounts=OFFERED),
    "An admin shares a node both ways, and a pod has whole GPUs.":
        on_node(WANTS_WHOLE, labels=SHARE),
    "An admin keeps a node whole.":
        with_objects(judged_node(labels={f"{PREFIX}share": "false"}, amounts=OFFERED)),
    "The device plugin does not heed its label.": with_objects(judged_node(
        labels={"nvidia.com/gpu.deploy.device-plugin": "false"}, amounts=OFFERED
    )),
    "Two nodes have different verdicts.": with_objects(
        judged_node(amounts=OFFERED), gpu_node("n3", annotations=DRAINING).stored
    ),
    "A pod has whole GPUs of a node that is shared.": with_objects(WANTS_WHOLE),
    "A DRA driver offers a GPU that is shared.": on_nodes(CLAIMED),
    "A DRA driver offers GPUs before the installation.": before(lambda api: api.add(SLICE)),
    "HAMi shares the GPUs of another node.": with_objects(judged_node(
        annotations={"hami.io/node-nvidia-register": "[]"}, amounts={"nvidia.com/gpumem": "100"}
    )),
    "A node is shared, and offers no VRAM.":
        installed(patched("/api/v1/nodes/n1", {"status": {"allocatable": {f"{PREFIX}vram": "0"}}})),
    "An agent waits until whole GPUs are free.": with_objects(judged_node(in_use=("GPU-n2-0",))),
    "One of two GPUs is in another compute mode.": on_nodes(gpu_node("n1", RAG_GPU, EXCLUSIVE)),
    "The driver of a node is too old for sidecars.":
        on_node(enforcement="none", labels=OLD_DRIVER),
    "A rule wants the sentry, which is not installed.": two_nodes(removed(DAEMON_SETS[1])),
    "A rule wants the sentry, which only reports.": two_nodes(
        of_pods(DAEMON_SETS[1], containers=[{"name": "sentry", "args": ["sentry", "--no-act"]}])
    ),
    "A pod has waited too long for the driver's limit.": waits_for_limit(LIMIT_GRACE_S + 1),
    "A pod waits for the driver's limit.": waits_for_limit(LIMIT_GRACE_S - 2),
    "The only node has a configured amount.": Situation(
        "rag", a_cluster([a_node("laptop", said=16)]), changes=(
            removed(DAEMON_SETS[1]),
            of_pods(DAEMON_SETS[0], containers=[{"name": "agent", "args": ["--vram=16Gi"]}]),
        ),
    ),
    # webhook
    "The webhook is not there.": installed(*map(removed, (WEBHOOK, *HOOKS))),
    "An invalid policy is of another version.":
        installed(ANOTHER_VERSION, with_policy("a.yaml", "kind: b")),
    "One of two replicas is not ready.": installed(
        patched(WEBHOOK, {"status": {"readyReplicas": 1}}),
        lambda api: api.add(not_ready("webhook", "its port is taken")),
    ),
    "No configuration is registered.": installed(*map(removed, HOOKS)),
    "A configuration has no webhooks.": installed(patched(HOOKS[1], {"webhooks": None})),
    "A configuration of an earlier name is left.": installed(earlier_name),
    "Pods pass without translation if the webhook is away.":
        installed(of_hook("mutate", {"failurePolicy": "Ignore"})),
    "Pods without VRAM wait for the webhook.":
        installed(of_hook("bind", {"failurePolicy": "Fail"})),
    "Another webhook changes new pods after ours.": installed(later_webhook),
    "No replica has written the path for bindings.": installed(NO_PATH),
    "The replicas have no key.": installed(removed(f"{IN_SYSTEM}/secrets/vramwarden-key")),
    "There is neither a path for bindings nor a key.":
        installed(NO_PATH, removed(f"{IN_SYSTEM}/secrets/vramwarden-key")),
    "The API server trusts another CA.": installed(another_authority),
    "The caBundle is no base64.":
        installed(lambda api: each_hook(api, HOOKS[0], {"caBundle": "x"})),
    "The certificate expires in a few days.": after_days(360),
    "The CA of mode self has less than a year.": after_days(3300),
    "A CA of another mode has less than a year.": after_days(3300, MOUNTED),
    "The CA has expired.": after_days(3700),
    "The Secret of the certificate is gone.":
        installed(removed(f"{IN_SYSTEM}/secrets/vramwarden-certificate")),
    "The certificate is in no Secret.": installed(of_pods(WEBHOOK, **SERVE)),
    # dry runs
    "The webhook does not answer in time.": fails_with("Post x: context deadline exceeded"),
    "The Service of the webhook has no endpoints.":
        fails_with('no endpoints available for service "vramwarden-webhook"'),
    "The Service of the webhook is gone.": fails_with('service "vramwarden-webhook" not found'),
    "The API server fails by itself.": answers(500, "etcdserver: request timed out"),
    "Only the fence denies a pod.": answers(422, BY_FENCE),
    "The policy denies a good pod.": answers(403, BY_US),
    "A quota denies pods.": answers(403, BY_QUOTA),
    "A plain pod is translated.": to_plain_pods(translated),
    "The webhook denies a plain pod.": to_plain_pods(refused(403, BY_US)),
    "A quota denies a plain pod.": to_plain_pods(refused(403, BY_QUOTA)),
    "The rule for the pods that are tried only records.": for_default("Audit"),
    "The rule for the pods that are tried only warns.": for_default("Warn"),
    "A rule that cannot be read ignores the pods that are tried.":
        for_default("Ignore", lambda api: api.denied.add(("get", "configmaps"))),
    "A rule depends on labels.": installed(
        answers=left_alone,
        rules="  - {name: one, match: {namespaceLabels: {tier: one}}, action: Audit}\n",
    ),
    # policy and fence
    "There is no policy.": installed(removed(POLICIES)),
    "The policy has no rule.":
        installed(patched(POLICIES, {"data": {"default.yaml": None, "notes.txt": "none"}})),
    "A policy that is not in force is of another version.":
        installed(ANOTHER_VERSION, with_policy("00-late.yaml", policies.HEAD + LATE_RULE)),
    "No rule wants the sidecar, and the policy is not in force.": Situation(
        "rag", a_cluster([with_sentry(gpu_node("n1", a_gpu(79)))]),
        changes=(with_policy("default.yaml", f"{policies.HEAD}  rules:\n{BY_SENTRY}"),),
    ),
    "A policy of the fence only warns.": installed(
        patched(f"{BINDINGS}/vramwarden-sidecar", {"spec": {"validationActions": ["Warn"]}})
    ),
    "A part of the fence is off.": installed(
        *(removed(f"{REGISTRATION}/{kind}/vramwarden-debuggers") for kind in FENCE_PART)
    ),
    "The fence has no parameter.": installed(removed(f"{IN_SYSTEM}/configmaps/vramwarden-fence")),
    # agents, sentries and pods
    "The agent is not installed.": installed(removed(DAEMON_SETS[0])),
    "An agent says why it is not ready.": installed(
        patched(DAEMON_SETS[0], {"status": {"numberReady": 0}}),
        lambda api: api.add(not_ready("agent", "the driver is not loaded")),
    ),
    "The limiter is not ready.": installed(limiter),
    "The kind GPUNode is not defined.": installed(lambda api: api.unknown.add("gpunodes")),
    "The image of a sidecar cannot be pulled.": Situation("rag", one_gpu(rag(status={
        "initContainerStatuses": [
            sidecar("waiting", reason="ImagePullBackOff", message="Back-off")
        ]
    }))),
    "NVIDIA's operator validates its nodes in a namespace that the policy denies.":
        with_objects(VALIDATOR),
    "NVIDIA's operator validates its nodes in a namespace that the policy ignores.": with_objects(
        VALIDATOR, rules="  - {name: gpu, match: {namespaces: [gpu]}, action: Ignore}\n"
    ),
}  # fmt: skip
