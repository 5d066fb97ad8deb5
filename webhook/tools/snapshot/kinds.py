"""Kinds of workloads, and of what belongs to one: how people write them, where they are read."""

from __future__ import annotations

from typing import Final, NamedTuple


class WorkloadKind(NamedTuple):
    """A kind of workload, or of what belongs to one, and where it is read."""

    name: str
    path: str
    short: str = ""
    """kubectl's short name."""

    @property
    def plural(self) -> str:
        """Its name in paths, as it is by convention."""
        kind = self.name.lower()
        if kind.endswith("y") and kind[-2:-1] not in "aeiou":
            return f"{kind[:-1]}ies"
        return f"{kind}es" if kind.endswith(("s", "x", "ch", "sh")) else f"{kind}s"

    def is_called(self, word: str) -> bool:
        """Return True if kubectl takes the word for this kind: deploy, deployments.apps."""
        name, _, group = word.lower().partition(".")
        own, _, version = self.path.removeprefix("/apis/").partition("/")
        names = (self.name.lower(), self.plural, self.short)
        return bool(name) and name in names and group in {"", own, f"{version}.{own}"}


DEPLOYMENT: Final = WorkloadKind("Deployment", "/apis/apps/v1", "deploy")
REPLICA_SET: Final = WorkloadKind("ReplicaSet", "/apis/apps/v1", "rs")
STATEFUL_SET: Final = WorkloadKind("StatefulSet", "/apis/apps/v1", "sts")
DAEMON_SET: Final = WorkloadKind("DaemonSet", "/apis/apps/v1", "ds")
JOB: Final = WorkloadKind("Job", "/apis/batch/v1")
CRON_JOB: Final = WorkloadKind("CronJob", "/apis/batch/v1", "cj")
POD: Final = WorkloadKind("Pod", "/api/v1", "po")
EVENT: Final = WorkloadKind("Event", "/api/v1")
NODE: Final = WorkloadKind("Node", "/api/v1", "no")
KINDS: Final = (POD, DEPLOYMENT, REPLICA_SET, STATEFUL_SET, DAEMON_SET, JOB, CRON_JOB)
"""Kinds that are read themselves; of any other, only the pods that it owns."""


def find_kind(word: str) -> WorkloadKind:
    """Return the kind that a word names; one without a path if it is none of ours."""
    return next((one for one in KINDS if one.is_called(word)), WorkloadKind(word.lower(), ""))
