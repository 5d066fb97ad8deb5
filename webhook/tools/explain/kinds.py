"""Kinds of workloads, and of what belongs to one: how people write them, where they are read."""

from __future__ import annotations

from typing import Final, NamedTuple


class WorkloadKind(NamedTuple):
    """A kind of workload, or of what belongs to one, and where it is read."""

    name: str
    path: str
    words: tuple[str, ...]
    """How kubectl lets people write it."""

    @property
    def plural(self) -> str:
        """Its name in paths, as it is by convention."""
        kind = self.name.lower()
        if kind.endswith("y"):
            return f"{kind[:-1]}ies"
        return f"{kind}es" if kind.endswith(("s", "x", "ch")) else f"{kind}s"


DEPLOYMENT: Final = WorkloadKind(
    "Deployment", "/apis/apps/v1", ("deployment", "deployments", "deploy", "deployment.apps")
)
REPLICA_SET: Final = WorkloadKind(
    "ReplicaSet", "/apis/apps/v1", ("replicaset", "replicasets", "rs")
)
STATEFUL_SET: Final = WorkloadKind(
    "StatefulSet", "/apis/apps/v1", ("statefulset", "statefulsets", "sts")
)
DAEMON_SET: Final = WorkloadKind("DaemonSet", "/apis/apps/v1", ("daemonset", "daemonsets", "ds"))
JOB: Final = WorkloadKind("Job", "/apis/batch/v1", ("job", "jobs", "job.batch"))
CRON_JOB: Final = WorkloadKind("CronJob", "/apis/batch/v1", ("cronjob", "cronjobs", "cj"))
POD: Final = WorkloadKind("Pod", "/api/v1", ("pod", "pods", "po"))
EVENT: Final = WorkloadKind("Event", "/api/v1", ())
KINDS: Final = (DEPLOYMENT, REPLICA_SET, STATEFUL_SET, DAEMON_SET, JOB, CRON_JOB)
