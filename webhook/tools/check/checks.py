"""The checks of `vramwarden check`, their outcomes and the verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Final, NamedTuple

from webhook.tools.problems import admission, installation, nodes, registration
from webhook.tools.problems.problem import Finding, Problem, Severity
from webhook.tools.snapshot.installation import Installation
from webhook.tools.snapshot.objects import FactUnavailable, NotObservable


class CheckResult(StrEnum):
    """Result of a check; the values appear in JSON."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    NOT_CHECKED = "notLookedAt"
    """The facts that the check needs are unreadable."""


class CheckVerdict(Enum):
    """Verdict on all results; the values are exit codes."""

    WORKS = 0
    FAILED = 1
    UNKNOWN = 3
    """No check has failed, but too few facts are readable for `WORKS`."""


class Occasion(Enum):
    """Occasion of a check: before and after an installation, or only with a release."""

    INSTALLED = "installed"
    OF_RELEASE = "of a release"
    BOTH = "both"


class Check(NamedTuple):
    """A check and the occasions on which it applies."""

    id: str
    claim: str
    """Statement that is true if the check finds no problem."""
    find: Callable[[Installation], Finding]
    when: Occasion = Occasion.OF_RELEASE


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """Outcome of a check: problems, a message about the correct state, or why it could not run."""

    group: str
    check: Check
    problems: tuple[Problem, ...] = ()
    """Problems, the most severe first."""
    seen: str = ""
    unavailable: FactUnavailable | None = None

    @property
    def result(self) -> CheckResult:
        """Result, according to the most severe problem."""
        if self.unavailable:
            return CheckResult.NOT_CHECKED
        if not self.problems:
            return CheckResult.OK
        is_error = self.problems[0].severity is Severity.ERROR
        return CheckResult.FAILED if is_error else CheckResult.WARNING

    @property
    def is_hidden(self) -> bool:
        """True if the check failed to read facts that a user with more permissions could read."""
        return self.unavailable is not None and not isinstance(self.unavailable, NotObservable)


WEBHOOK: Final = "webhook"
FENCE: Final = "policy and fence"
GROUPS: Final[dict[str, tuple[Check, ...]]] = {
    "Kubernetes": (
        Check(
            "kubernetes-version",
            "Kubernetes is new enough",
            installation.check_kubernetes_version,
            Occasion.BOTH,
        ),
        Check(
            "sentry-namespace",
            "the sentry's namespace allows hostPID",
            installation.check_sentry_namespace,
            Occasion.BOTH,
        ),
    ),
    "nodes with GPUs": (
        Check(
            "gpu-nodes",
            "there are nodes with GPUs, which get an agent",
            nodes.check_gpu_nodes,
            Occasion.BOTH,
        ),
        Check(
            "runtime-class",
            "NVIDIA's runtime is available",
            nodes.check_runtime_class,
            Occasion.BOTH,
        ),
        Check("sharing", "their GPUs are shared", nodes.check_sharing, Occasion.BOTH),
        Check("figures", "sentries write figures of them", nodes.check_figures),
        Check(
            "whole-gpu-pods",
            "no pod has whole GPUs of a node that is shared",
            nodes.check_whole_gpu_pods,
            Occasion.INSTALLED,
        ),
        Check("gpu-health", "their GPUs are healthy", nodes.check_gpu_health, Occasion.INSTALLED),
        Check(
            "device-names",
            "container runtimes resolve names of their GPUs",
            nodes.check_device_names,
            Occasion.INSTALLED,
        ),
        Check(
            "taints", "pods of the policy tolerate their taints", nodes.check_taints, Occasion.BOTH
        ),
        Check(
            "enforcement",
            "caps are enforced there as the policy wants it",
            nodes.check_enforcement,
            Occasion.INSTALLED,
        ),
    ),
    WEBHOOK: (
        Check(
            "release",
            "vramwarden is installed, in this command's version",
            installation.check_release,
            Occasion.INSTALLED,
        ),
        Check("replicas", "its replicas are ready", installation.check_replicas),
        Check(
            "registration",
            "the API server calls it, and last of those that change pods",
            registration.check_registration,
        ),
        Check("bind-path", "the path for bindings is written", registration.check_bind_path),
        Check("ca-bundle", "the API server trusts it", registration.check_ca_bundle),
        Check("certificate", "its certificate is valid", registration.check_certificate),
        Check("pod-good", "a pod that requests 1Gi is translated", admission.check_good_pod),
        Check("pod-wrong", "a pod that requests 8GB is denied", admission.check_wrong_pod),
        Check("pod-plain", "a pod that requests nothing is left alone", admission.check_plain_pod),
    ),
    FENCE: (
        Check("policy", "the policy is valid and in force", admission.check_policy),
        Check("fence", "the fence holds, by the policy's rules", admission.check_fence),
    ),
    "agents, sentries and pods": (
        Check(
            "daemon-sets",
            "agents, sentries and limiters are ready",
            installation.check_daemon_sets,
        ),
        Check("driver-limits", "drivers hold caps", installation.check_driver_limits),
        Check(
            "sidecar-image", "the sidecar's image can be pulled", installation.check_sidecar_image
        ),
        Check(
            "validators",
            "the policy leaves NVIDIA's validator pods alone",
            admission.check_validators,
        ),
        Check("waiting-pods", "no bound pod waits for a GPU", installation.check_waiting_pods),
        Check("quotas", "quotas of VRAM are counted", admission.check_quotas),
    ),
}
"""All checks by group, in the order in which they run and are shown.

Checks that list nodes and pods run first, because these lists use the most memory.
"""


def run_checks(installation: Installation) -> list[CheckOutcome]:
    """Run the checks that apply and return their outcomes."""
    if installation.is_before:
        occasions = {Occasion.BOTH}
    elif installation.is_missing(lambda: installation.webhook):
        occasions = {Occasion.BOTH, Occasion.INSTALLED}
    else:
        occasions = {*Occasion}
    outcomes = []
    for group, checks in GROUPS.items():
        for check in checks:
            if check.when not in occasions:
                continue
            try:
                found = check.find(installation)
            except FactUnavailable as error:
                outcomes.append(CheckOutcome(group, check, unavailable=error))
                continue
            if isinstance(found, str):
                outcomes.append(CheckOutcome(group, check, seen=found))
            elif found:
                found.sort(key=lambda problem: problem.severity is not Severity.ERROR)
                outcomes.append(CheckOutcome(group, check, tuple(found)))
    return outcomes


def find_verdict(outcomes: Sequence[CheckOutcome]) -> CheckVerdict:
    """Return the verdict on all outcomes. Facts that no user can read are ignored.

    | failed | facts read | of those on webhook, policy and fence | verdict |
    | --- | --- | --- | --- |
    | one or more | any | any | failed |
    | none | less than half | any | unknown |
    | none | half or more | not all | unknown |
    | none | half or more | all | works |
    """
    if any(outcome.result is CheckResult.FAILED for outcome in outcomes):
        return CheckVerdict.FAILED
    hidden = [outcome for outcome in outcomes if outcome.is_hidden]
    is_essential = any(outcome.group in {WEBHOOK, FENCE} for outcome in hidden)
    seen = sum(outcome.unavailable is None for outcome in outcomes)
    return CheckVerdict.UNKNOWN if is_essential or seen < len(hidden) else CheckVerdict.WORKS
