"""The checks of `vramwarden check`, and what their findings amount to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Final, NamedTuple

from webhook.tools.problems import admission, installation, nodes
from webhook.tools.problems.problem import Finding, Problem, Severity
from webhook.tools.snapshot.installation import Installation
from webhook.tools.snapshot.objects import FactUnavailable, NotObservable


class CheckResult(StrEnum):
    """Result of a check, as JSON has it."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    NOT_CHECKED = "notLookedAt"
    """The facts that the check needs could not be read."""


class CheckVerdict(Enum):
    """Sum of all results; its value is the exit code."""

    WORKS = 0
    FAILED = 1
    UNKNOWN = 3
    """Nothing has failed, and too little was seen to say that it works."""


class When(Enum):
    """Occasion of a check: before an installation, afterwards, or only if there is a release."""

    INSTALLED = "installed"
    OF_RELEASE = "of a release"
    BOTH = "both"


class Check(NamedTuple):
    """A row of the table of checks."""

    id: str
    claim: str
    """Sentence that is true if the check finds no problem."""
    find: Callable[[Installation], Finding]
    when: When = When.OF_RELEASE


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """Outcome of a check: problems, what was seen, or why nothing could be."""

    group: str
    check: Check
    problems: tuple[Problem, ...] = ()
    """The most severe ones first."""
    seen: str = ""
    unavailable: FactUnavailable | None = None

    @property
    def result(self) -> CheckResult:
        """Result by the most severe problem."""
        if self.unavailable:
            return CheckResult.NOT_CHECKED
        if not self.problems:
            return CheckResult.OK
        is_error = self.problems[0].severity is Severity.ERROR
        return CheckResult.FAILED if is_error else CheckResult.WARNING

    @property
    def is_hidden(self) -> bool:
        """True if nothing was seen, and a user with more rights could see something."""
        return self.unavailable is not None and not isinstance(self.unavailable, NotObservable)


WEBHOOK: Final = "webhook"
FENCE: Final = "policy and fence"
GROUPS: Final[dict[str, tuple[Check, ...]]] = {
    "Kubernetes": (
        Check(
            "kubernetes-version",
            "Kubernetes is new enough",
            installation.judge_kubernetes_version,
            When.BOTH,
        ),
        Check(
            "sentry-namespace",
            "the sentry's namespace allows hostPID",
            installation.judge_sentry_namespace,
            When.BOTH,
        ),
    ),
    "nodes with GPUs": (
        Check(
            "gpu-nodes",
            "there are nodes with GPUs, which get an agent",
            nodes.judge_gpu_nodes,
            When.BOTH,
        ),
        Check(
            "runtime-class", "NVIDIA's runtime is available", nodes.judge_runtime_class, When.BOTH
        ),
        Check("sharing", "their GPUs are shared", nodes.judge_sharing, When.BOTH),
        Check("figures", "sentries write figures of them", installation.judge_figures),
        Check(
            "whole-gpu-pods",
            "no pod has whole GPUs of a node that is shared",
            nodes.judge_whole_gpu_pods,
            When.INSTALLED,
        ),
        Check("gpu-health", "their GPUs are healthy", nodes.judge_gpu_health, When.INSTALLED),
        Check(
            "device-names",
            "container runtimes resolve names of their GPUs",
            nodes.judge_device_names,
            When.INSTALLED,
        ),
        Check("taints", "pods of the policy tolerate their taints", nodes.judge_taints, When.BOTH),
        Check(
            "enforcement",
            "caps are enforced there as the policy wants it",
            nodes.judge_enforcement,
            When.INSTALLED,
        ),
    ),
    WEBHOOK: (
        Check(
            "release",
            "vramwarden is installed, in this command's version",
            installation.judge_release,
            When.INSTALLED,
        ),
        Check("replicas", "its replicas are ready", installation.judge_replicas),
        Check(
            "registration",
            "the API server calls it, and last of those that change pods",
            installation.judge_registration,
        ),
        Check("bind-path", "the path for bindings is written", installation.judge_bind_path),
        Check("ca-bundle", "the API server trusts it", installation.judge_ca_bundle),
        Check("certificate", "its certificate is valid", installation.judge_certificate),
        Check("pod-good", "a pod that requests 1Gi is translated", admission.judge_good_pod),
        Check("pod-wrong", "a pod that requests 8GB is denied", admission.judge_wrong_pod),
        Check("pod-plain", "a pod that requests nothing is left alone", admission.judge_plain_pod),
    ),
    FENCE: (
        Check("policy", "the policy is valid and in force", admission.judge_policy),
        Check("fence", "the fence holds, by the policy's rules", admission.judge_fence),
    ),
    "agents, sentries and pods": (
        Check(
            "daemon-sets",
            "agents, sentries and limiters are ready",
            installation.judge_daemon_sets,
        ),
        Check("driver-limits", "drivers hold caps", installation.judge_driver_limits),
        Check(
            "sidecar-image", "the sidecar's image can be pulled", installation.judge_sidecar_image
        ),
        Check(
            "validators",
            "the policy leaves NVIDIA's validator pods alone",
            installation.judge_validators,
        ),
        Check("waiting-pods", "no bound pod waits for a GPU", installation.judge_waiting_pods),
        Check("quotas", "quotas of VRAM are counted", admission.judge_quotas),
    ),
}
"""All checks, in the order in which they are made and shown.

Lists of nodes and pods are read before policy and certificate: their pages are the largest objects.
"""


def run(facts: Installation) -> list[CheckOutcome]:
    """Return the outcome of each check that has something to judge here."""
    if facts.is_before:
        made = {When.BOTH}
    elif facts.lacks(lambda: facts.webhook):
        made = {When.BOTH, When.INSTALLED}
    else:
        made = {*When}
    outcomes = []
    for group, checks in GROUPS.items():
        for check in checks:
            if check.when not in made:
                continue
            try:
                found = check.find(facts)
            except FactUnavailable as error:
                outcomes.append(CheckOutcome(group, check, unavailable=error))
                continue
            if isinstance(found, str):
                outcomes.append(CheckOutcome(group, check, seen=found))
            elif found:
                found.sort(key=lambda one: one.severity is not Severity.ERROR)
                outcomes.append(CheckOutcome(group, check, tuple(found)))
    return outcomes


def verdict(outcomes: Sequence[CheckOutcome]) -> CheckVerdict:
    """Return the sum of all outcomes. Facts that no user can see count on neither side.

    | failed | seen | of webhook, policy and fence | verdict |
    | --- | --- | --- | --- |
    | one or more | any | any | failed |
    | none | less than half | any | unknown |
    | none | half or more | not all | unknown |
    | none | half or more | all | works |
    """
    if any(one.result is CheckResult.FAILED for one in outcomes):
        return CheckVerdict.FAILED
    hidden = [one for one in outcomes if one.is_hidden]
    is_essential = any(one.group in {WEBHOOK, FENCE} for one in hidden)
    seen = sum(one.unavailable is None for one in outcomes)
    return CheckVerdict.UNKNOWN if is_essential or seen < len(hidden) else CheckVerdict.WORKS
