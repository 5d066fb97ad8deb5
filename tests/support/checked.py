"""Facts of a cluster in which all is well, for `check`; tests break one of them."""

from __future__ import annotations

import json
from dataclasses import replace

from tests.support import clusters
from tests.support.api_server import merged
from webhook.core.policy.fence import GPUS_KEY, RULES_KEY
from webhook.core.policy.values import EnforceBy
from webhook.names import WEBHOOK_CONFIGURATION
from webhook.tools.check.judge.facts import (
    SOUND,
    Certificate,
    DryRun,
    Facts,
    Namespace,
    OurWebhook,
    OwnWorkload,
    PolicyFacts,
    judge_without_agent,
)
from webhook.tools.check.judge.webhook import EXPECTED
from webhook.tools.snapshot.node import ClusterNode
from webhook.tools.snapshot.pod import ClusterPod

NOW_S = 1_800_000_000.0
IMAGE = "registry.example/vramwarden/enforcer:0.1.0"
MUTATING = "MutatingWebhookConfiguration"
TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
SHARED = {
    "vramwarden.io/gpu": "true",
    "vramwarden.io/enforcement": "sidecar",
    "vramwarden.io/device-names": "runtime.nvidia.com",
    "vramwarden.io/driver-version": "580.95.05",
}


def a_stored_node(name="n1", labels=None, taints=(), metadata=None, **status):
    """Return a node with a label that brings the agent; keywords are fields of its status."""
    labels = {"nvidia.com/gpu.present": "true", **(labels or {})}
    node = clusters.a_node(name, labels=labels, taints=tuple(taints)).stored
    return merged(node, {"metadata": metadata or {}, "status": status})


def a_node(name="n1", labels=None, **fields):
    """Return a node with GPUs."""
    found = ClusterNode(a_stored_node(name, labels, **fields))
    assert found.shows_gpus
    return found


def checked_pod(path="team-a/eval", *, managed=False, **facts):
    """Return a pod with these facts."""
    namespace, _, name = path.partition("/")
    raw = {"metadata": {"namespace": namespace, "name": name}, "spec": {"containers": []}}
    return ClusterPod(raw, managed=managed, **facts)


def a_bare_node(name):
    """Return a node on which no agent runs, as `check --pre` sees it."""
    raw = a_stored_node(name)
    return ClusterNode(raw, sharing=judge_without_agent(raw, (), float("inf")))


def a_shared_node(name="n1", labels=None, *, vram="80Gi", gpus=({},), **changes):
    """Return a node that shares its GPUs, one of which has what each of `gpus` says."""
    gpu = {"uuid": "GPU-a", "memory": 80 * 2**30, "product": "H100", "index": 0}
    annotations = {
        "vramwarden.io/gpus": json.dumps([gpu | one for one in gpus]),
        "vramwarden.io/sharing": "Shared: its GPUs are shared by memory",
    }
    allocatable = {"vramwarden.io/vram": vram, **changes.pop("allocatable", {})}
    return a_node(
        name,
        {**SHARED, **(labels or {})},
        allocatable=allocatable,
        metadata={"annotations": annotations},
        **changes,
    )


def a_said_node(name="n1"):
    """Return a node of which the agent says an amount, and asks no driver."""
    return clusters.a_node(name, said=16).read


def rules(text="^(.*)$ - ^$ - translated sidecar\n"):
    """Return the data of the ConfigMap that the fence reads."""
    return {RULES_KEY: text, GPUS_KEY: "^(nvidia\\.com/gpu)$ ^$"}


def a_workload(name="webhook", **changes):
    """Return a Deployment or a DaemonSet of ours that is ready."""
    there = OwnWorkload(
        namespace=f"vramwarden-{'sentry' if name in ('sentry', 'limiter') else 'system'}",
        desired=2,
        ready=2,
        present=2,
        version="0.1.0",
        arguments=(
            *(f"--enforcer-image={IMAGE}", "--rollout=Enforce"),
            f"--webhook-configuration={WEBHOOK_CONFIGURATION}",
        ),
        secret="",
    )
    return replace(there, **changes)


def seen(limits=(), not_shared="", **written):
    """Return what GPUNodes say, by when each was written and what its node's limiter proved."""
    node = replace(clusters.a_node("n1", clusters.a_gpu(79)).figures, gpus=())
    node = replace(node, not_shared=not_shared)
    found = {name: replace(node, name=name, observed_s=at_s) for name, at_s in written.items()}
    return found | {name: replace(found[name], limit=proof) for name, proof in dict(limits).items()}


BEFORE = Facts(
    url="https://10.0.0.1:6443",
    version="v1.36.2",
    now_s=NOW_S,
    command="0.1.0",
    groups=frozenset({"apps", "nvidia.com"}),
    nodes=(a_bare_node("n1"), a_bare_node("n2")),
    node_count=3,
    drivers={},
    runtime_class="nvidia",
    own_webhooks=(),
    later_configurations=(),
    sentry_namespace=Namespace("vramwarden-sentry", exists=False),
    webhook=None,
    policy=PolicyFacts(
        rules=2,
        digest="0123456789ab",
        tolerations=(TOLERATION,),
        enforcers=frozenset({EnforceBy.SIDECAR}),
    ),
)
"""A cluster that can take vramwarden."""

INSTALLED = replace(
    BEFORE,
    nodes=(a_shared_node("n1"), a_shared_node("n2")),
    sentry_namespace=Namespace("vramwarden-sentry", level="privileged", helms=True),
    webhook=a_workload(),
    agent=a_workload("agent"),
    sentry=a_workload("sentry"),
    limiter=None,
    own_pods=(),
    own_webhooks=tuple(
        OurWebhook(
            name=name,
            kind=kind,
            configuration=WEBHOOK_CONFIGURATION,
            failure_policy=policy,
            namespace="vramwarden-system",
            path="/mutate",
        )
        for (kind, name), policy in EXPECTED.items()
    ),
    authorities=tuple(
        Certificate(f"{name} ({kind})", days_left=3000, trusts=True) for kind, name in EXPECTED
    ),
    certificate=Certificate("vramwarden-system/vramwarden-certificate", days_left=320),
    policy=replace(BEFORE.policy, fence=rules()),
    asks=DryRun(
        created=True, admitted=True, rule="default", digest="0123456789ab", has_sidecar=True
    ),
    wrong=DryRun(
        created=False,
        answer='admission webhook "mutate.vramwarden.io" denied the request: InvalidQuantity: '
        'metadata.annotations[vramwarden.io/gpu-memory]: "8GB" is not a quantity; use 8G or 8Gi',
    ),
    plain=DryRun(created=True),
    fences=frozenset(
        f"vramwarden-{name}"
        for name in (
            *("second-line", "sidecar", "debuggers", "enforcer", "exemption"),
            *("accounts", "parameter"),
        )
    ),
    fence_rules=rules(),
    has_key=True,
    gpu_nodes=seen(n1=NOW_S - 20, n2=NOW_S - 60),
    pods=(SOUND,),
)
INSTALLED = replace(INSTALLED, fence_bindings=INSTALLED.fences)
"""A release that works."""
