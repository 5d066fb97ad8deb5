"""Which checks there are: this table, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from webhook.tools.check.judge import cluster, fence, nodes, running, webhook
from webhook.tools.check.judge.findings import Finding, Level
from webhook.tools.shared.facts import Unreadable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from webhook.tools.check.judge.facts import Facts


class When(Enum):
    """Before an installation, or of what is installed."""

    PRE = "pre"
    INSTALLED = "installed"
    BOTH = "both"


@dataclass(frozen=True, slots=True)
class Check:
    """A row: what is looked at, under a name that does not change."""

    id: str
    title: str
    """What is so where all is well."""
    when: When
    find: Callable[[Facts], Finding | None]


@dataclass(frozen=True, slots=True)
class Result:
    """What a check found."""

    group: str
    check: Check
    finding: Finding


GROUPS: Final[dict[str, tuple[Check, ...]]] = {
    "Kubernetes": (
        Check("api-server", "the API server answers", When.BOTH, cluster.api_server),
        Check("kubernetes-version", "Kubernetes is new enough", When.BOTH,
              cluster.kubernetes_version),
        Check("admission-policies", "admission policies are served", When.BOTH,
              cluster.admission_policies),
        Check("may-install", "you may create what the chart creates", When.PRE,
              cluster.may_install),
        Check("may-grant", "you may grant what its accounts need", When.PRE, cluster.may_grant),
        Check("pod-shape", "a pod with a native sidecar is stored as such", When.PRE,
              cluster.pod_shape),
        Check("other-webhooks", "no other webhook holds up our pods", When.BOTH,
              cluster.other_webhooks),
        Check("sentry-namespace", "the sentry's namespace allows hostPID", When.BOTH,
              cluster.sentry_namespace),
    ),
    "nodes with GPUs": (
        Check("gpu-nodes", "there are nodes with GPUs", When.BOTH, nodes.gpu_nodes),
        Check("agent-labels", "labels bring the agent to them", When.BOTH, nodes.agent_labels),
        Check("node-systems", "they run Linux on a known processor", When.BOTH,
              nodes.node_systems),
        Check("kubelets", "their kubelets start native sidecars", When.BOTH, nodes.kubelets),
        Check("runtime-class", "NVIDIA's runtime can be had", When.BOTH, nodes.runtime_class),
        Check("taints", "the policy's pods tolerate their taints", When.BOTH, nodes.taints),
        Check("whole-gpus", "no device plugin offers their GPUs whole", When.BOTH,
              nodes.whole_gpus),
        Check("whole-gpu-pods", "no pod has GPUs whole that are shared", When.INSTALLED,
              nodes.whole_gpu_pods),
        Check("resource-claims", "no DRA driver gives away GPUs that are shared", When.BOTH,
              nodes.resource_claims),
        Check("time-slicing", "no device plugin offers one GPU several times", When.BOTH,
              nodes.time_slicing),
        Check("share-label", "their label vramwarden.io/share is true or false", When.BOTH,
              nodes.share_label),
        Check("other-products", "nobody else shares their GPUs", When.BOTH, nodes.other_products),
        Check("advertised", "they show their memory to the scheduler", When.INSTALLED,
              nodes.advertised),
        Check("gpus-answer", "their GPUs are healthy", When.INSTALLED, nodes.gpus_answer),
        Check("enforcement", "a sidecar can measure there", When.INSTALLED, nodes.enforcement),
        Check("device-names", "their runtime resolves names of GPUs", When.INSTALLED,
              nodes.device_names),
    ),
    "webhook": (
        Check("release", "vramwarden is installed", When.INSTALLED, webhook.release),
        Check("release-version", "this command is of its version", When.INSTALLED,
              webhook.release_version),
        Check("webhook-ready", "its replicas are ready", When.INSTALLED, webhook.webhook_ready),
        Check("own-images", "its image can be pulled", When.INSTALLED, webhook.own_images),
        Check("configurations", "it is registered with the API server", When.INSTALLED,
              webhook.configurations),
        Check("bind-path", "the path for bindings is written", When.INSTALLED,
              webhook.bind_path),
        Check("ca-bundle", "the API server trusts it", When.INSTALLED, webhook.ca_bundle),
        Check("certificate", "its certificate is valid", When.INSTALLED, webhook.certificate),
        Check("pod-asks", "a pod that asks for 1Gi is translated", When.INSTALLED, webhook.asks),
        Check("pod-wrong", "a pod that asks for 8GB is denied", When.INSTALLED, webhook.wrong),
        Check("pod-plain", "a pod that asks for nothing is left alone", When.INSTALLED,
              webhook.plain),
        Check("binding", "a pod gets its GPU when it is bound", When.INSTALLED, webhook.binding),
    ),
    "policy and fence": (
        Check("policy-valid", "the policy is valid", When.INSTALLED, webhook.policy_valid),
        Check("policy-in-force", "it is in force", When.INSTALLED, webhook.policy_in_force),
        Check("policy-objects", "its objects are in force", When.INSTALLED,
              webhook.policy_objects),
        Check("policy-features", "it asks for nothing that this Kubernetes lacks", When.INSTALLED,
              webhook.policy_features),
        Check("pinned-images", "no rule pins another sidecar", When.INSTALLED,
              webhook.pinned_images),
        Check("fence-policies", "the fence stands", When.INSTALLED, fence.fence_policies),
        Check("fence-rules", "the fence knows the policy's rules", When.INSTALLED,
              fence.fence_rules),
        Check("weakened", "nothing else weakens it", When.INSTALLED, fence.weakened),
        Check("void-pods", "no pod loses what fence.void left it before", When.INSTALLED,
              fence.void_pods),
    ),
    "agents, sentries and pods": (
        Check("agents", "agents are ready", When.INSTALLED, running.agents),
        Check("sentries", "sentries are ready", When.INSTALLED, running.sentries),
        Check("kinds", "our kinds are served", When.INSTALLED, running.kinds),
        Check("figures", "sentries write figures of their nodes", When.INSTALLED,
              running.figures),
        Check("sidecar-image", "the sidecar's image can be pulled", When.INSTALLED,
              running.sidecar_image),
        Check("pods-without-gpu", "no pod is bound and waits for a GPU", When.INSTALLED,
              running.pods_without_gpu),
    ),
}  # fmt: skip
"""Findings come in this order."""


def run(facts: Facts, *, pre: bool) -> tuple[Result, ...]:
    """Return what each check found that has something to look at here."""
    return tuple(_run(facts, pre=pre))


def _run(facts: Facts, *, pre: bool) -> Iterator[Result]:
    left_out = When.INSTALLED if pre else When.PRE
    for group, checks in GROUPS.items():
        for check in checks:
            if check.when is left_out:
                continue
            try:
                finding = check.find(facts)
            except Unreadable as error:
                finding = Finding(Level.NOT_LOOKED_AT, str(error))
            if finding is not None:
                yield Result(group, check, finding)
