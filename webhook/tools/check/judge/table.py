"""Which checks there are: this table, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from webhook.tools.check.judge import cluster, fence, nodes, running, webhook
from webhook.tools.check.judge.findings import CheckFinding, Level, NobodySees
from webhook.tools.snapshot.objects import Unreadable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from webhook.tools.check.judge.facts import Facts


class CheckVerdict(Enum):
    """What all findings together amount to; its value is the exit code."""

    WORKS = 0
    FAILED = 1
    UNKNOWN = 3
    """Nothing has failed, and too little was seen to say that it works."""


class When(Enum):
    """Also before an installation, or only of what is installed."""

    INSTALLED = "installed"
    OF_RELEASE = "of a release"
    """Of what is installed, where there is a release: without one `release` has failed."""
    BOTH = "both"


@dataclass(frozen=True, slots=True)
class Check:
    """A row: what is checked, under a name that does not change."""

    when: When
    find: Callable[[Facts], CheckFinding | None]
    title: str
    """What is so where all is well."""

    @property
    def id(self) -> str:
        """The function's name, with hyphens."""
        return self.find.__name__.replace("_", "-")


@dataclass(frozen=True, slots=True)
class Result:
    """What a check found."""

    group: str
    check: Check
    finding: CheckFinding

    @property
    def unseen(self) -> bool:
        """Whether it was not seen, and somebody with more rights could."""
        return self.finding.level is Level.NOT_CHECKED and self.finding.visible


WEBHOOK: Final = "webhook"
FENCE: Final = "policy and fence"
GROUPS: Final[dict[str, tuple[Check, ...]]] = {
    "Kubernetes": (
        Check(When.BOTH, cluster.kubernetes_version, "Kubernetes is new enough"),
        Check(When.BOTH, cluster.sentry_namespace, "the sentry's namespace allows hostPID"),
    ),
    "nodes with GPUs": (
        Check(When.BOTH, nodes.gpu_nodes, "there are nodes with GPUs"),
        Check(When.BOTH, nodes.agent_labels, "labels bring the agent to them"),
        Check(When.BOTH, nodes.runtime_class, "NVIDIA's runtime can be had"),
        Check(When.BOTH, nodes.taints, "the policy's pods tolerate their taints"),
        Check(When.BOTH, nodes.sharing, "they are shared by memory"),
        Check(When.INSTALLED, nodes.whole_gpu_pods, "no pod has GPUs whole that are shared"),
        Check(When.BOTH, nodes.other_products, "no other product shares their GPUs"),
        Check(When.INSTALLED, nodes.gpus_answer, "their GPUs are healthy"),
        Check(When.INSTALLED, nodes.enforcement, "a sidecar can measure there"),
        Check(When.INSTALLED, nodes.sentry_label, "a sentry holds caps there"),
        Check(When.INSTALLED, nodes.device_names, "their runtime resolves names of GPUs"),
    ),
    WEBHOOK: (
        Check(When.INSTALLED, webhook.release, "vramwarden is installed"),
        Check(When.OF_RELEASE, webhook.release_version, "this command is of its version"),
        Check(When.OF_RELEASE, webhook.webhook_ready, "its replicas are ready"),
        Check(When.OF_RELEASE, webhook.configurations, "it is registered with the API server"),
        Check(When.OF_RELEASE, webhook.webhook_order, "it is the last to change new pods"),
        Check(When.OF_RELEASE, webhook.bind_path, "the path for bindings is written"),
        Check(When.OF_RELEASE, webhook.ca_bundle, "the API server trusts it"),
        Check(When.OF_RELEASE, webhook.certificate, "its certificate is valid"),
        Check(When.OF_RELEASE, webhook.pod_asks, "a pod that asks for 1Gi is translated"),
        Check(When.OF_RELEASE, webhook.pod_wrong, "a pod that asks for 8GB is denied"),
        Check(When.OF_RELEASE, webhook.pod_plain, "a pod that asks for nothing is left alone"),
    ),
    FENCE: (
        Check(When.OF_RELEASE, webhook.policy_valid, "the policy is valid"),
        Check(When.OF_RELEASE, webhook.policy_in_force, "it is in force"),
        Check(When.OF_RELEASE, fence.fence_policies, "the fence stands"),
        Check(When.OF_RELEASE, fence.fence_rules, "the fence knows the policy's rules"),
        Check(When.OF_RELEASE, fence.replicas_key, "the replicas have their key"),
    ),
    "agents, sentries and pods": (
        Check(When.OF_RELEASE, running.agents, "agents are ready"),
        Check(When.OF_RELEASE, running.sentries, "sentries are ready"),
        Check(When.OF_RELEASE, running.limiters, "limiters are ready"),
        Check(When.OF_RELEASE, running.figures, "sentries write figures of their nodes"),
        Check(When.OF_RELEASE, running.driver_limits, "the driver holds caps, by the limiter"),
        Check(When.OF_RELEASE, running.sidecar_image, "the sidecar's image can be pulled"),
        Check(When.OF_RELEASE, running.validators, "NVIDIA's operator may validate its nodes"),
        Check(When.OF_RELEASE, running.pods_without_gpu, "no pod is bound and waits for a GPU"),
    ),
}
"""Findings come in this order."""


def run(facts: Facts, *, pre: bool) -> list[Result]:
    """Return what each check found that has something to judge here."""
    results = []
    left_out = {When.INSTALLED, When.OF_RELEASE} if pre else set()
    if facts.webhook is None:
        left_out.add(When.OF_RELEASE)
    for group, checks in GROUPS.items():
        for check in checks:
            if check.when in left_out:
                continue
            try:
                finding = check.find(facts)
            except Unreadable as error:
                visible = not isinstance(error, NobodySees)
                finding = CheckFinding(Level.NOT_CHECKED, str(error), visible=visible)
            if finding is not None:
                results.append(Result(group, check, finding))
    return results


def verdict(results: Sequence[Result]) -> CheckVerdict:
    """Return what findings amount to. What nobody can see counts on neither side.

    | failed | seen | of webhook, policy and fence | verdict |
    | --- | --- | --- | --- |
    | one or more | any | any | failed |
    | none | less than half | any | unknown |
    | none | half or more | not all | unknown |
    | none | half or more | all | works |
    """
    if any(one.finding.level is Level.FAILED for one in results):
        return CheckVerdict.FAILED
    unseen = [one for one in results if one.unseen]
    essential = any(one.group in {WEBHOOK, FENCE} for one in unseen)
    seen = sum(one.finding.level is not Level.NOT_CHECKED for one in results)
    return CheckVerdict.UNKNOWN if essential or seen < len(unseen) else CheckVerdict.WORKS
