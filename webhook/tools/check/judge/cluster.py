"""The API server, and the sentry's namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from webhook.tools.check.judge.facts import minor
from webhook.tools.check.judge.findings import CheckFinding, failed, ok, warning
from webhook.tools.snapshot.objects import known

if TYPE_CHECKING:
    from webhook.tools.check.judge.facts import Facts

OLDEST: Final = (1, 31)
VOID: Final = (1, 36)


def text(minor: tuple[int, int]) -> str:
    """Return a version of Kubernetes as people say it."""
    return f"{minor[0]}.{minor[1]}"


def kubernetes_version(facts: Facts) -> CheckFinding:
    """Kubernetes is new enough, and what is left out on this one.

    | version | result |
    | --- | --- |
    | before 1.31 | failed |
    | 1.31 to 1.35, 1.36 and newer | ok |
    | unreadable | warning |

    1.36: mutating admission policies, and `RestartAllContainers` (deploy/install.md).
    """
    version = minor(facts.version)
    if version == (0, 0):
        cure = f"see that it is {text(OLDEST)} or newer: `kubectl version`"
        return warning(f"its version cannot be read: {facts.version!r}", cure)
    if version < OLDEST:
        why = f"{text(version)} is not supported, and Helm rejects the chart"
        return failed(why, f"upgrade Kubernetes to {text(OLDEST)} or newer")
    left = f"; fence.void and podRestart need {text(VOID)}" if version < VOID else ""
    return ok(f"{text(version)}, {facts.url}{left}")


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
