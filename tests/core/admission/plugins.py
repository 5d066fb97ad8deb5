"""Rules whose pods NVIDIA's device plugin gives GPUs, the slices of clusters, and their answers."""

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
# As NVML reports them, in MiB: an A100 with 80 GB, and an H200.
A100 = {"1g.10gb": 9728, "1g.20gb": 19968, "2g.20gb": 19968, "3g.40gb": 40192}
H200 = {"1g.18gb": 16384, "2g.35gb": 33280}


def sliced(profiles, **labels):
    """Return a node with these slices; labels are written with _ for . and /."""
    bytes_of = {name: mib * MIB for name, mib in profiles.items()}
    return SlicedNode(bytes_of, labels or None)


def under(rule=MIG, *nodes, **changes):
    """Return a policy and a cluster with these nodes; without any, one A100 is cut into slices."""
    return a_policy(rule, **changes), Cluster(sliced_nodes=nodes or (sliced(A100),))


def answered(pod, known, phase=Phase.MUTATE):
    """Decide under what `under` returns."""
    return decide(a_request(pod), *known, phase)


def translated(pod, known):
    """Return a pod as it is stored: translated, and found to be so."""
    decision = answered(pod, known)
    assert decision.allowed, decision.message
    stored = answered(decision.obj, known, Phase.VALIDATE)
    assert stored.allowed, stored.message
    return decision.obj


def limits_of(pod):
    """Return what each container limits beside CPU and memory, by name."""
    return {
        one["name"]: (one.get("resources") or {}).get("limits") or {}
        for one in pod["spec"]["containers"]
    }


def on_nodes(pod):
    """Return the required node affinity: its terms' expressions as text."""
    affinity = pod["spec"]["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    return [list(map(_shown, term["matchExpressions"])) for term in terms]


def _shown(one):
    return f"{one['key']} {one['operator']} {','.join(one['values'])}"


def variables(container):
    return {one["name"]: one.get("value") for one in container.get("env") or []}
