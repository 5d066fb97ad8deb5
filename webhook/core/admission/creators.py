"""Who creates a pod, where no review says it: for manifests, examples and workloads.

The pods of Kubernetes' own workloads are created by kube-controller-manager, whoever made the
workload. Each of its controllers has an account of its own where it runs with
`--use-service-account-credentials`, as kubeadm and most platforms have it, and otherwise all are
`system:kube-controller-manager`.

Sources: k8s.io/kubernetes plugin/pkg/auth/authorizer/rbac/bootstrappolicy/controller_policy.go (the
names of the accounts); cmd/kube-controller-manager/app/options/generic.go (the flag).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_AUTHENTICATED: Final = "system:authenticated"
_CONTROLLERS: Final = {
    "Deployment": "replicaset-controller",
    "ReplicaSet": "replicaset-controller",
    "ReplicationController": "replication-controller",
    "StatefulSet": "statefulset-controller",
    "DaemonSet": "daemon-set-controller",
    "Job": "job-controller",
    "CronJob": "job-controller",
}


@dataclass(frozen=True, slots=True)
class Creator:
    """Who creates a pod, in a namespace with which labels."""

    user: str = ""
    groups: tuple[str, ...] = ()
    namespace_labels: Mapping[str, str] = field(default_factory=dict)


ANYONE: Final = Creator()


def controllers_of(kind: str) -> tuple[Creator, ...]:
    """Return who may create the pods of a workload of Kubernetes' own, the likeliest first.

    None for a pod, for kinds of others, and for a kind from which nothing is made.
    """
    name = _CONTROLLERS.get(kind)
    return (_service_account(name), _WITHOUT_ACCOUNTS) if name else ()


CONTROLLERS: Final = tuple(sorted({*_CONTROLLERS}))
"""The workloads whose pods a controller of Kubernetes' own creates."""


def _service_account(name: str) -> Creator:
    namespace = "kube-system"
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", _AUTHENTICATED)
    return Creator(f"system:serviceaccount:{namespace}:{name}", groups)


_WITHOUT_ACCOUNTS: Final = Creator("system:kube-controller-manager", (_AUTHENTICATED,))
