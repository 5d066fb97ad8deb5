"""What the API server holds by itself, also while no replica answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from webhook.core.policy.fence import GPUS_KEY, RULES_KEY, brings_gpus, is_intact, may_void
from webhook.core.words import counted
from webhook.tools.check.judge.cluster import FENCE
from webhook.tools.check.judge.facts import OwnWorkload
from webhook.tools.check.judge.findings import CheckFinding, failed, named, ok, warning
from webhook.tools.check.judge.webhook import upgrade
from webhook.tools.shared.facts import Unreadable, known

if TYPE_CHECKING:
    from collections.abc import Callable

    from webhook.tools.check.judge.facts import Facts

PARTS: Final = {
    "fence.secondLine": ("vramwarden-second-line",),
    "fence.sidecar": ("vramwarden-sidecar", "vramwarden-debuggers"),
    "fence.enforcer": ("vramwarden-enforcer",),
    "fence.exemption": ("vramwarden-exemption",),
    "fence.accounts": ("vramwarden-accounts",),
}
"""Values of the chart, and the admission policies that each installs."""


KEY: Final = "Secret vramwarden-key"
WEAK: Final[dict[str, tuple[Callable[[Facts], bool], str, str]]] = {
    "networkPolicy.enabled": (
        lambda facts: known(facts.sources) is None,
        "every pod reaches every port",
        "--set networkPolicy.enabled=true",
    ),
    "networkPolicy.apiServerCIDRs": (
        lambda facts: known(facts.sources) == (),
        "every pod can crowd the webhook's port",
        "--set networkPolicy.apiServerCIDRs='{CIDR of the API servers}'",
    ),
    "agent.gpuAccess": (
        lambda facts: isinstance(agent := known(facts.agent), OwnWorkload) and agent.privileged,
        "who takes over an agent is root on its node",
        "--set agent.gpuAccess=Environment, where the nodes' toolkit takes it (deploy/nodes.md)",
    ),
    KEY: (
        lambda facts: not known(facts.has_key),
        "with the webhook's token what the fences read can be forged",
        (
            "`kubectl -n NAMESPACE create secret generic vramwarden-key "
            '--from-literal=key="$(openssl rand -hex 32)"`, then '
            "`kubectl -n NAMESPACE rollout restart deployment vramwarden-webhook`"
        ),
    ),
}
"""What weakens it, beside `PARTS` and the webhooks' `failurePolicy`: whether it is so, what that
opens, and the cure."""


def weakened(facts: Facts) -> CheckFinding:
    """No value of the chart, and nothing that is missing, opens what it would close.

    | NetworkPolicy | from | agent | key | result |
    | --- | --- | --- | --- | --- |
    | there | CIDRs | unprivileged or none | there | ok |
    | missing | - | - | - | warning |
    | there | everybody | - | - | warning |
    | - | - | privileged | - | warning |
    | - | - | - | missing | warning |
    """
    found, unseen = [], []
    for name, (is_weak, _, _) in WEAK.items():
        try:
            found += [name] if is_weak(facts) else []
        except Unreadable as error:
            unseen.append(str(error))
    if found:
        why = "; ".join(f"{name}: {WEAK[name][1]}" for name in found)
        cures = (WEAK[name][2].replace("NAMESPACE", facts.namespace) for name in found)
        return warning(why, "; ".join(cures), found)
    if unseen:
        raise Unreadable(unseen[0])
    return ok()


def fence_policies(facts: Facts) -> CheckFinding | None:
    """The chart's admission policies are there, and bound.

    | Kubernetes | policy | its binding | result |
    | --- | --- | --- | --- |
    | before 1.30 | - | - | nothing |
    | 1.30 | there | there | ok |
    | 1.30 | there | missing, or denies nothing | failed |
    | 1.30 | missing | - | warning: a value may have left it out |
    """
    if facts.minor < FENCE:
        return None
    policies, bindings = known(facts.fences), known(facts.fence_bindings)
    loose = sorted(policies - bindings)
    if loose:
        return failed(
            f"without a binding that denies, so without effect: {named(loose)}",
            upgrade(facts),
            loose,
        )
    missing = [value for value, names in PARTS.items() if not policies >= {*names}]
    if missing:
        why = f"{named(missing)} is off, or was deleted: what it holds is open while we are away"
        cure = upgrade(facts, *(f"{one}=true" for one in missing))
        return warning(why, cure, missing)
    void = ["fence.void"] if "vramwarden-void" in policies else []
    return ok(", ".join(value.removeprefix("fence.") for value in [*PARTS, *void]))


def fence_rules(facts: Facts) -> CheckFinding | None:
    """The ConfigMap from which they read the policy's rules is there, and is what replicas wrote.

    | second line, or void | ConfigMap | its sum | the policy's | result |
    | --- | --- | --- | --- | --- |
    | no | - | - | - | nothing |
    | yes | missing | - | - | failed |
    | yes | there | wrong | - | failed |
    | yes | there | right | no | warning |
    | yes | there | right | yes or unknown | ok |
    """
    if facts.minor < FENCE:
        return None
    if not known(facts.fences) & {"vramwarden-second-line", "vramwarden-void"}:
        return None
    where = f"ConfigMap {facts.namespace}/vramwarden-fence"
    logs = f"`kubectl -n {facts.namespace} logs -l app.kubernetes.io/component=webhook`"
    found = known(facts.fence_rules)
    if found is None:
        why = f"{where} does not exist, so they hold nothing"
        return failed(why, f"the replicas write it; see why not: {logs}")
    if not is_intact(found):
        why = f"{where} was changed by somebody else"
        return failed(why, f"a replica restores it within seconds; if not: {logs}")
    policy = facts.policy
    expected = getattr(policy, "fence", None)
    if expected and found.get(RULES_KEY) != expected.get(RULES_KEY):
        why = f"{where} holds other rules than the policy"
        return warning(why, f"replicas follow within a minute or two; if it stays: {logs}")
    return ok(counted(found[RULES_KEY].count("\n"), "rule"))


def void_pods(facts: Facts) -> CheckFinding | None:
    """No container that runs would be voided for the first time when its pod is created again.

    A release before 0.3 left each alone that asked for any device, also where that is no GPU.

    | void | the policy | a container without the variable asks for | result |
    | --- | --- | --- | --- |
    | no | - | - | nothing |
    | yes | unknown | - | nothing |
    | yes | known | what brings GPUs, or it is no rule's | ok |
    | yes | known | other devices alone | warning |
    """
    policy = facts.policy
    data = getattr(policy, "fence", None)
    if "vramwarden-void" not in known(facts.fences) or not data:
        return None
    found = {
        pod.path: names
        for pod in known(facts.pods)
        for names in pod.devices
        if may_void(data[RULES_KEY], pod.namespace)
        and not any(brings_gpus(data[GPUS_KEY], name) for name in names)
    }
    if not found:
        return ok()
    resources = sorted({name for names in found.values() for name in names})
    why = (
        f"{counted(len(found), 'pod')}, {named(sorted(found))}: {named(resources)} brings no GPU, "
        "so NVIDIA_VISIBLE_DEVICES is void where they are created again"
    )
    cure = "nothing where they use none; else add what brings GPUs to wholeGPUResources"
    return warning(why, cure, sorted(found))
