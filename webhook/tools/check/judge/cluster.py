"""The API server, what its user may do, and other products' webhooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from webhook.core.words import counted
from webhook.tools.check.judge.findings import CheckFinding, failed, named, ok, shortened, warning
from webhook.tools.shared.facts import known

if TYPE_CHECKING:
    from webhook.tools.check.judge.facts import Facts, Right

OLDEST: Final = (1, 29)
FENCE: Final = (1, 30)
VOID: Final = (1, 36)


def text(minor: tuple[int, int]) -> str:
    """Return a version of Kubernetes as people say it."""
    return f"{minor[0]}.{minor[1]}"


def api_server(facts: Facts) -> CheckFinding:
    """The API server answers.

    | answer | result |
    | --- | --- |
    | yes | ok |

    Without an answer there is no report at all: the command ends with one sentence.
    """
    return ok(f"{facts.url}, Kubernetes {facts.version}")


def kubernetes_version(facts: Facts) -> CheckFinding:
    """Kubernetes is new enough, and what is left out on this one.

    | version | result |
    | --- | --- |
    | before 1.29 | failed |
    | 1.29 | warning |
    | 1.30 to 1.35, 1.36 and newer | ok |
    | unreadable | warning |

    1.29: native sidecars; 1.30: admission policies; 1.36: mutating ones, and `RestartAllContainers`
    (deploy/install.md).
    """
    minor = facts.minor
    if minor == (0, 0):
        cure = f"see that it is {text(OLDEST)} or newer: `kubectl version`"
        return warning(f"its version cannot be read: {shortened(facts.version)!r}", cure)
    if minor < OLDEST:
        why = f"{text(minor)} has no native sidecars, so nothing would hold the cap of a pod"
        return failed(why, f"upgrade Kubernetes to {text(OLDEST)} or newer")
    if minor < FENCE:
        why = f"{text(minor)} has no admission policies, so nothing holds without us"
        return warning(why, f"upgrade Kubernetes to {text(FENCE)} or newer")
    left = f"; fence.void and podRestart need {text(VOID)}" if minor < VOID else ""
    return ok(f"{text(minor)}{left}")


def admission_policies(facts: Facts) -> CheckFinding | None:
    """The API server evaluates the kinds of admission policies that the fence consists of.

    | version | validating ones | mutating ones | result |
    | --- | --- | --- | --- |
    | before 1.30 | - | - | nothing |
    | 1.30 and newer | no | - | warning |
    | 1.30 to 1.35 | yes | - | ok |
    | 1.36 and newer | yes | yes | ok |
    | 1.36 and newer | yes | no | warning |
    """
    if facts.minor < FENCE:
        return None
    served = known(facts.admission)
    if "validatingadmissionpolicies" not in served:
        why = "ValidatingAdmissionPolicy of admissionregistration.k8s.io/v1 is not served"
        cure = "switch it on by --runtime-config of the API server; without it there is no fence"
        return warning(why, cure)
    if facts.minor >= VOID and "mutatingadmissionpolicies" not in served:
        why = "MutatingAdmissionPolicy is not served, so fence.void is left out"
        return warning(why, "switch on its feature gate at the API server, or do without")
    return ok()


def may_install(facts: Facts) -> CheckFinding:
    """The user may create what the chart consists of.

    | rights | result |
    | --- | --- |
    | all | ok |
    | one is missing | failed |
    """
    cure = "install as somebody with cluster-admin, or ask for these rights"
    return _lacked(known(facts.denied), "you may not", cure)


def may_grant(facts: Facts) -> CheckFinding:
    """The user has the rights that the chart gives to our accounts, or may give away any.

    RBAC lets nobody grant what they have not, short of the verb `escalate`. Rights to single
    objects, by name, are not asked for.

    | rights | result |
    | --- | --- |
    | `escalate`, or all of them | ok |
    | one is missing | failed |
    """
    cure = "install as somebody with cluster-admin: RBAC lets nobody grant rights they lack"
    return _lacked(known(facts.not_granted), "you may not grant", cure)


def _lacked(rights: tuple[Right, ...], why: str, cure: str) -> CheckFinding:
    what = [str(right) for right in rights]
    return failed(f"{why} {named(what)}", cure, what) if what else ok()


def pod_shape(facts: Facts) -> CheckFinding:
    """A pod with a native sidecar is stored as such, seen by a dry run.

    | dry run | native sidecar | result |
    | --- | --- | --- |
    | created | kept | ok |
    | created | dropped | failed |
    | denied | - | warning |
    """
    shape, where = known(facts.shape), f"in namespace {facts.test_namespace}"
    if not shape.created:
        cure = "see whether it would deny your users' pods as well; --test-namespace names another"
        return warning(f"a dry run {where} was denied: {shortened(shape.answer)}", cure)
    if not shape.native:
        cure = "switch on the feature gate SidecarContainers"
        return failed(f"{where} a native sidecar was stored as an init container", cure)
    pulls = "; AlwaysPullImages is on, so each start asks the registry"
    return ok(f"by a dry run {where}{pulls if shape.pulls_always else ''}")


def other_webhooks(facts: Facts) -> CheckFinding:
    """No webhook of others keeps our own pods from being created while it is down.

    | asked about every pod | `failurePolicy` | result |
    | --- | --- | --- |
    | yes | Fail | warning |
    | yes | Ignore | ok |
    | no | either | ok |
    """
    found = known(facts.other_webhooks)
    names = [one.name for one in found if one.fails and not one.selects]
    if names:
        why = f"{counted(len(names), 'webhook')} with failurePolicy Fail asked about every pod: "
        cure = f"exempt namespace {facts.namespace} by its namespaceSelector, or our pods wait for "
        return warning(why + named(names), f"{cure}it whenever it is down", names)
    return ok(f"{counted(len(found), 'other webhook')} asked about pods" if found else "")


def sentry_namespace(facts: Facts) -> CheckFinding | None:
    """The sentry's namespace allows hostPID.

    | namespace | Pod Security's label | made by Helm | before installing | afterwards |
    | --- | --- | --- | --- | --- |
    | missing | - | - | ok | failed |
    | there | privileged | - | ok | ok |
    | there | none | no | warning | ok |
    | there | none | yes | ok | ok |
    | there | baseline or restricted | - | failed | failed |

    Nothing where a release has no sentry. Without a label the cluster's default counts, which
    nobody can read; afterwards the sentry's pods show it.
    """
    if facts.sentry is None:
        return None
    namespace = known(facts.sentry_namespace)
    name, installed = namespace.name, bool(facts.webhook)
    allow = (
        f"`kubectl label namespace {name} pod-security.kubernetes.io/enforce=privileged "
        "--overwrite`"
    )
    if not namespace.exists:
        if installed:
            return failed(f"{name} does not exist", f"`kubectl create namespace {name}`, {allow}")
        return ok(f"the chart makes {name}")
    if namespace.level in {"baseline", "restricted"}:
        why = f"{name} has Pod Security level {namespace.level}, which denies the sentry's pods"
        return failed(why, f"{allow}, or install with --set sentry.enabled=false", [name])
    if not namespace.level and not namespace.helms and not installed:
        why = f"{name} exists, and says nothing of Pod Security"
        return warning(why, f"{allow}, and install with --set sentry.createNamespace=false", [name])
    return ok(f"{name}")
