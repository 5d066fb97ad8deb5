"""Pods that are not created, and installations that do not work."""

from __future__ import annotations

from tests.support.clusters import a_cluster, a_gpu, a_node, ago
from tests.support.installations import DAEMON_SETS, POLICIES, WEBHOOK, patch
from tests.support.pods import a_container
from tests.tools.situations.scenes import (
    H100,
    Situation,
    a_deployment,
    a_workload,
    asks,
    beside_rag,
    denied,
    failed_create,
    foreign_node,
    full,
    full_nodes,
    in_team,
    lacks_gpu,
    refused,
    scheduler_says,
    situation,
    to_pods_that_ask,
    unseen,
    waits,
)

AMOUNT = "  - {name: team, match: {namespaces: [team-a]}, memory: {max: 64Gi}}\n"
AWAY = (
    'Internal error occurred: failed calling webhook "mutate.vramwarden.io": failed to call '
    "webhook: Post "
    '"https://vramwarden-webhook.vramwarden-system.svc:443/mutate?timeout=10s": tls: failed to '
    "verify certificate: x509: certificate signed by unknown authority"
)
QUOTA = (
    'pods "train-5d9c7-" is forbidden: exceeded quota: gpus, requested: '
    "requests.vramwarden.io/vram=8Gi, used: requests.vramwarden.io/vram=40Gi, limited: "
    "requests.vramwarden.io/vram=40Gi"
)


def denied_deployment(template: dict, says: str, *more: dict, **fields) -> Situation:
    """Return a Deployment that cannot create its one pod, because of what the API server says."""
    made = a_deployment("train", template, says)
    event = failed_create("ReplicaSet/train-5d9c7", says)
    return Situation("deployment/train", beside_rag(more=(*made, event, *more)), **fields)


@situation
def denied_at_creation() -> Situation:
    """Our webhook denies the pods of a Deployment: too much memory, and no number of GPUs."""
    template = unseen("train", "80Gi", annotations={"vramwarden.io/gpu-count": "two"})
    return denied_deployment(template, denied(template, AMOUNT), rules=AMOUNT)


@situation
def denied_job() -> Situation:
    """Our webhook denies the pods of a Job, and only an Event says so."""
    template = unseen("train", "8GB")
    event = failed_create("Job/train", denied(template))
    return Situation("job/train", beside_rag(more=(a_workload("Job", "train", template), event)))


@situation
def limit_range_adds_a_gpu() -> Situation:
    """A LimitRange adds a whole GPU to containers that ask for memory of one."""
    template = unseen("train", "8Gi")
    whole = [a_container(resources={"limits": {"nvidia.com/gpu": "1"}})]
    says = denied(unseen("train", "8Gi", containers=whole))
    limits = {
        "apiVersion": "v1", "kind": "LimitRange",
        "metadata": {"name": "gpus", "namespace": "team-a"},
        "spec": {"limits": [{"type": "Container", "max": {"nvidia.com/gpu": "1"}}]},
    }  # fmt: skip
    return denied_deployment(template, says, limits, answers=in_team(refused(403, says)))


@situation
def out_of_quota() -> Situation:
    """A quota denies the pods of a Deployment."""
    return denied_deployment(unseen("train", "8Gi"), QUOTA, answers=in_team(refused(403, QUOTA)))


@situation
def quota_that_counts_nothing() -> Situation:
    """A quota names our resource with the prefix `limits.`, which Kubernetes does not count."""
    quota = {
        "apiVersion": "v1", "kind": "ResourceQuota",
        "metadata": {"name": "gpus", "namespace": "team-a"},
        "spec": {"hard": {"limits.vramwarden.io/vram": "10Gi"}},
        "status": {"hard": {"limits.vramwarden.io/vram": "10Gi"}, "used": {}},
    }  # fmt: skip
    return Situation("rag", beside_rag(more=(quota,)))


@situation
def webhook_unreachable() -> Situation:
    """The API server does not trust the webhook's certificate, so no pod with memory is created."""
    answer = to_pods_that_ask(refused(500, AWAY))
    return denied_deployment(unseen("train", "8Gi"), AWAY, answers=answer)


@situation
def policy_invalid() -> Situation:
    """Somebody stored a policy with a typing error; replicas go on with the last valid one."""
    broken = "apiVersion: vramwarden.io/v1alpha1\nkind: VRAMPolicy\nmetadata: {name: z}\nspec: "

    def store(api):
        patch(api, POLICIES, {"data": {"zz.yaml": broken + "{rulez: []}\n"}})

    return Situation("rag", beside_rag(), changes=(store,))


@situation
def agent_down() -> Situation:
    """The agent runs on no node; two nodes keep what it wrote, and a new one has nothing."""
    new = foreign_node("n4", a_gpu(79, **H100), why="its agent does not advertise them")
    cluster = full(waits("next", "30Gi"))
    cluster = a_cluster([*cluster.nodes, new], list(cluster.pods))

    def stop(api):
        patch(api, DAEMON_SETS[0], {"status": {"numberReady": 0}})

    return Situation("next", cluster, changes=(stop,))


@situation
def sentry_down() -> Situation:
    """The sentry runs on no node; its figures are 20 minutes old."""

    def stop(api):
        patch(api, DAEMON_SETS[1], {"status": {"numberReady": 0}})

    cluster = a_cluster(full_nodes(age_s=1200), [*full().pods, waits("next", "30Gi")])
    return Situation("next", cluster, changes=(stop,))


@situation
def webhook_down() -> Situation:
    """No replica of the webhook is ready: a pod was bound without a GPU, and nobody says so."""
    status = {"phase": "Pending", "startTime": ago(240)}
    pod = asks("late-0", "20Gi", node="n1", age_s=240,
               status=status | lacks_gpu("initContainerStatuses", "vram-enforcer"))  # fmt: skip
    refuses = AWAY.partition("tls: ")[0] + "dial tcp 10.0.0.7:443: connect: connection refused"

    def stop(api):
        patch(api, WEBHOOK, {"status": {"readyReplicas": 0}})

    answer = to_pods_that_ask(refused(500, refuses))
    return Situation("late-0", full(pod), answers=answer, changes=(stop,))


@situation
def rights_to_view_one_namespace() -> Situation:
    """A developer with the role `view` in one namespace asks why a pod waits."""
    return Situation("eval-5", full(waits("eval-5", "30Gi")), views=True)


@situation
def rights_to_view_a_denied_workload() -> Situation:
    """A developer with the role `view` asks why a Deployment has no pods."""
    template = unseen("train", "8GB")
    return denied_deployment(template, denied(template), views=True)


@situation
def suspended_by_kueue() -> Situation:
    """Kueue keeps a Job suspended, so it has no pods."""
    job = a_workload("Job", "queued", unseen("queued", "8Gi"), suspend=True)
    return Situation("job/queued", beside_rag(more=(job,)))


@situation
def no_gpu_node() -> Situation:
    """No node has a GPU."""
    says = scheduler_says("1 node(s) didn't match Pod's node affinity/selector", nodes=1)
    return Situation("next", a_cluster([a_node("cpu")], [waits("next", "8Gi", says)]))
