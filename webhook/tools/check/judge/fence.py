"""What the API server holds by itself, also while no replica answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from webhook.core.policy.fence import RULES_KEY
from webhook.core.words import counted
from webhook.tools.check.judge.findings import CheckFinding, failed, named, ok, warning
from webhook.tools.check.judge.webhook import upgrade
from webhook.tools.snapshot.objects import known

if TYPE_CHECKING:
    from webhook.tools.check.judge.facts import Facts

PARTS: Final = {
    "fence.secondLine": ("vramwarden-second-line",),
    "fence.sidecar": ("vramwarden-sidecar", "vramwarden-debuggers"),
    "fence.enforcer": ("vramwarden-enforcer",),
    "fence.exemption": ("vramwarden-exemption",),
    "fence.accounts": ("vramwarden-accounts",),
}
"""Values of the chart, and the admission policies that each installs."""


def fence_policies(facts: Facts) -> CheckFinding:
    """The chart's admission policies are there, and bound.

    | policy | its binding | result |
    | --- | --- | --- |
    | there | there | ok |
    | there | missing, or denies nothing | failed |
    | missing | - | warning: a value may have left it out |
    """
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
    """The ConfigMap from which they read the policy's rules is there, and has these rules.

    | second line, or void | ConfigMap | the policy's rules | result |
    | --- | --- | --- | --- |
    | no | - | - | nothing |
    | yes | missing | - | failed |
    | yes | there | no | warning |
    | yes | there | yes or unknown | ok |
    """
    if not known(facts.fences) & {"vramwarden-second-line", "vramwarden-void"}:
        return None
    where = f"ConfigMap {facts.namespace}/vramwarden-fence"
    logs = f"`kubectl -n {facts.namespace} logs -l app.kubernetes.io/component=webhook`"
    found = known(facts.fence_rules)
    if found is None:
        why = f"{where} does not exist, so they hold nothing"
        return failed(why, f"the replicas write it; see why not: {logs}")
    policy = facts.policy
    expected = getattr(policy, "fence", None)
    if expected and found.get(RULES_KEY) != expected.get(RULES_KEY):
        why = f"{where} holds other rules than the policy"
        return warning(why, f"replicas follow within a minute or two; if it stays: {logs}")
    return ok(counted(found.get(RULES_KEY, "").count("\n"), "rule"))


def replicas_key(facts: Facts) -> CheckFinding:
    """The Secret with the key by which replicas know what one of them wrote exists.

    | Secret `vramwarden-key` | result |
    | --- | --- |
    | there | ok |
    | missing | warning |
    """
    if known(facts.has_key):
        return ok()
    why = "Secret vramwarden-key: with the webhook's token what the fences read can be forged"
    cure = f"`kubectl -n {facts.namespace} create secret generic vramwarden-key "
    cure += '--from-literal=key="$(openssl rand -hex 32)"`, then '
    cure += f"`kubectl -n {facts.namespace} rollout restart deployment vramwarden-webhook`"
    return warning(why, cure)
