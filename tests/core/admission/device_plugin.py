"""Rules, clusters with slices, and decisions for pods with GPUs of NVIDIA's device plugin."""

from __future__ import annotations

from tests.support.pods import a_policy, a_request, a_rule
from webhook.core.admission.decide import decide
from webhook.core.admission.decision import Phase
from webhook.core.pod.quantity import MIB
from webhook.core.policy.cluster import Cluster, SlicedNode
from webhook.core.policy.model import Accounting

SLICE = "nvidia.com/mig-"
SLOT = "nvidia.com/gpu"
MIG = a_rule(accounting=Accounting.MIG)
CAP_ONLY = a_rule(accounting=Accounting.CAP_ONLY)
# Memory of the profiles as NVML reports it, in MiB: an A100 with 80 GB, and an H200.
A100 = {"1g.10gb": 9728, "1g.20gb": 19968, "2g.20gb": 19968, "3g.40gb": 40192}
H200 = {"1g.18gb": 16384, "2g.35gb": 33280}


def a_sliced_node(profiles, **labels):
    """Return a node with these slices. Keywords are labels, with _ for `.` and `/`."""
    bytes_of = {name: mib * MIB for name, mib in profiles.items()}
    return SlicedNode(bytes_of, labels or None)


def policy_and_cluster(rule=MIG, *nodes, **changes):
    """Return a policy and a cluster with these nodes; default: one A100 with slices."""
    return a_policy(rule, **changes), Cluster(sliced_nodes=nodes or (a_sliced_node(A100),))


def decide_under(pod, known, phase=Phase.MUTATE):
    """Return the decision under a policy and a cluster."""
    return decide(a_request(pod), *known, phase)


def translate_under(pod, known):
    decision = decide_under(pod, known)
    assert decision.allowed, decision.message
    stored = decide_under(decision.obj, known, Phase.VALIDATE)
    assert stored.allowed, stored.message
    return decision.obj


def read_limits(pod):
    """Return each container's limits except CPU and memory, keyed by container name."""
    return {
        one["name"]: (one.get("resources") or {}).get("limits") or {}
        for one in pod["spec"]["containers"]
    }


def read_node_terms(pod):
    """Return the expressions of each term of the required node affinity as strings."""
    affinity = pod["spec"]["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    return [list(map(_shown, term["matchExpressions"])) for term in terms]


def _shown(one):
    return f"{one['key']} {one['operator']} {','.join(one['values'])}"


def variables(container):
    return {one["name"]: one.get("value") for one in container.get("env") or []}
