"""What is known of a cluster, and how it is read from objects of the API server.

The API server has checked the types of their fields; any may be missing. Little is kept of each,
since a cluster may have 5,000 nodes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from webhook.core.kinds.nodes import read_time
from webhook.core.node.sharing import (
    YOUNG_S,
    Beside,
    Sharing,
    claimed_before,
    is_advertised,
    judge,
    sign,
    whole_gpus,
)
from webhook.core.node.slices import claimants
from webhook.core.node.state import read_inventory
from webhook.core.nvidia.variables import VISIBLE_DEVICES_ENV
from webhook.core.pod.foreign import GIVEN_BY_OTHERS
from webhook.core.pod.lenient import as_object, as_objects
from webhook.core.pod.quantity import QuantityError, parse_quantity
from webhook.core.pod.whole import DRA_DRIVER, claim_names, has_whole_gpu, is_gpu_claim
from webhook.names import (
    ADMITTED_ANNOTATION,
    DEFAULT_NAMESPACE,
    ENFORCER_CONTAINER,
    GPU_WAITS_ANNOTATION,
    NODE_ASKS_LABEL,
    NODE_DEVICE_NAMES_LABEL,
    NODE_DRIVER_LABEL,
    NODE_ENFORCEMENT_LABEL,
    NODE_GPU_LABEL,
    NODE_SHARE_LABEL,
    VRAM_RESOURCE,
)
from webhook.tools.check.judge.findings import Unseen, shortened

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from webhook.core.node.slices import Slice
    from webhook.core.pod.gpus import Gpu

    Json = dict[str, Any]

SENTRY_NAMESPACE: Final = "vramwarden-sentry"
KEY_VOLUME: Final = "key"
NOT_ASKED: Final = Unseen("was not asked for")

AGENT_LABELS: Final = ("feature.node.kubernetes.io/pci-10de.present", "nvidia.com/gpu.present")
"""Labels that bring the agent to a node where they are `true` (`agent.affinity` of the chart)."""
AGENT_KEYS: Final = ("nvidia.com/gpu.count", NODE_SHARE_LABEL)
"""Those that do whatever they are; GPU feature discovery by itself sets none that is `true`."""
_GPU_LABELS: Final = (
    "cloud.google.com/gke-accelerator",
    "k8s.amazonaws.com/accelerator",
    "kubernetes.azure.com/accelerator",
)
"""Further signs of a GPU, which bring nobody."""
_PCI_LABEL: Final = re.compile(r"feature\.node\.kubernetes\.io/pci-[0-9a-f]{4}_10de.*\.present")
"""How node feature discovery writes NVIDIA's devices by itself: class and vendor."""
_OTHER_ANNOTATIONS: Final = {"hami.io/node-nvidia-register": "HAMi"}
_OWN_TAINTS: Final = "node.kubernetes.io/"
_MOST_REPLICAS_DIGITS: Final = 6
_VERSION: Final = re.compile(r"v?([0-9]{1,4})\.([0-9]{1,4})")


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A node on which something shows that it has GPUs."""

    name: str
    os: str
    arch: str
    kubelet: str
    ready: bool
    brings_agent: bool
    """It has a label by which the chart's default brings the agent there."""
    taints: tuple[tuple[str, str, str], ...]
    """Key, value and effect of those that keep pods away; not Kubernetes' own of a node's state."""
    handlers: frozenset[str] | None
    """Of its container runtime; None where the kubelet does not say (before 1.30)."""
    whole: tuple[str, ...]
    """Resources by which a device plugin offers its GPUs."""
    replicas: int
    """So often a device plugin offers each GPU; 1 where it does not say."""
    others: tuple[str, ...]
    """Other products that give its GPUs away."""
    share: str | None
    """Its label `vramwarden.io/share`."""
    sharing: Sharing
    """Whether it is to be shared, by the agent's own judgement, as if its GPUs were free."""
    waits: str
    """For what its agent may wait before it begins to share; empty for nothing."""
    cure: str
    """What ends it on this node that others give its GPUs away; empty where nobody does."""
    claimed_by: tuple[str, ...]
    """DRA drivers that give its GPUs away."""
    gpus: tuple[Gpu, ...]
    """As it advertises them."""
    advertised: bool
    vram_bytes: int
    """Allocatable."""
    enforcement: str
    device_names: str
    driver: str


def read_node(
    node: Mapping[str, Any], slices: Iterable[Slice] = (), now_s: float = float("inf")
) -> NodeFacts | None:
    """Read a node and its ResourceSlices; None where nothing shows that it has a GPU."""
    metadata, status = as_object(node.get("metadata")), as_object(node.get("status"))
    labels = {key: str(value) for key, value in as_object(metadata.get("labels")).items()}
    allocatable, info = as_object(status.get("allocatable")), as_object(status.get("nodeInfo"))
    whole, others = whole_gpus(node), tuple(_others(metadata, allocatable))
    brings = any(labels.get(key) == "true" for key in (*AGENT_LABELS, NODE_GPU_LABEL))
    brings = brings or any(key in labels for key in AGENT_KEYS)
    hints = any(key in labels for key in _GPU_LABELS) or any(map(_PCI_LABEL.fullmatch, labels))
    vram_bytes = _amount(allocatable.get(VRAM_RESOURCE))
    advertised, gpus = is_advertised(node), read_inventory(node).gpus
    claimed_by = claimants(slices, {gpu.uuid for gpu in gpus}) or claimed_before(node)
    if not gpus and any(one.driver == DRA_DRIVER for one in slices):
        claimed_by = (DRA_DRIVER,)  # which GPUs it has, nobody says
    if not (brings or hints or whole or others or claimed_by or vram_bytes or advertised):
        return None
    age_s = now_s - (read_time(metadata.get("creationTimestamp")) or 0.0)
    given = sign(node, claimed_by, age_s)
    conditions = as_objects(status.get("conditions"))
    handlers = status.get("runtimeHandlers")
    replicas = labels.get("nvidia.com/gpu.replicas", "")
    return NodeFacts(
        name=str(metadata.get("name")),
        os=str(info.get("operatingSystem") or labels.get("kubernetes.io/os") or "linux"),
        arch=str(info.get("architecture") or labels.get("kubernetes.io/arch") or ""),
        kubelet=str(info.get("kubeletVersion") or ""),
        ready=any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions),
        brings_agent=brings,
        taints=tuple(_taints(as_object(node.get("spec")))),
        handlers=frozenset(str(one.get("name")) for one in as_objects(handlers))
        if isinstance(handlers, list)
        else None,
        whole=whole,
        replicas=int(replicas) if _is_count(replicas) else 1,
        others=others,
        share=labels.get(NODE_SHARE_LABEL),
        sharing=judge(
            node,
            Beside(claimed_by=claimed_by, age_s=age_s, shares=advertised, has_pods=None, in_use=()),
        ),
        waits=_waits(labels, age_s),
        cure=given.cure if given else "",
        claimed_by=claimed_by,
        gpus=gpus,
        advertised=advertised,
        vram_bytes=vram_bytes,
        enforcement=labels.get(NODE_ENFORCEMENT_LABEL, ""),
        device_names=labels.get(NODE_DEVICE_NAMES_LABEL, ""),
        driver=labels.get(NODE_DRIVER_LABEL, ""),
    )


def _waits(labels: Mapping[str, str], age_s: float) -> str:
    if NODE_ASKS_LABEL in labels:
        return "for a replica of the webhook to say which pods there have whole GPUs"
    return "for who may give its GPUs away on a new node" if age_s < YOUNG_S else ""


def _others(metadata: Json, allocatable: Json) -> Iterable[str]:
    for name, amount in allocatable.items():
        if name in GIVEN_BY_OTHERS and _amount(amount):
            yield name
    annotations = as_object(metadata.get("annotations"))
    for key, product in _OTHER_ANNOTATIONS.items():
        if key in annotations:
            yield product


def _taints(spec: Json) -> Iterable[tuple[str, str, str]]:
    for taint in as_objects(spec.get("taints")):
        key, effect = str(taint.get("key")), str(taint.get("effect"))
        if effect in {"NoSchedule", "NoExecute"} and not key.startswith(_OWN_TAINTS):
            yield key, str(taint.get("value") or ""), effect


@dataclass(frozen=True, slots=True)
class OtherWebhook:
    """Somebody else's webhook that is asked about pods."""

    name: str
    """Of the configuration and the webhook."""
    fails: bool
    """No pod is created while it does not answer."""
    selects: bool
    """It selects namespaces or objects, or has conditions; else it is asked about every pod."""


@dataclass(frozen=True, slots=True)
class OurWebhook:
    """A webhook of one of our two configurations."""

    name: str
    kind: str
    """`MutatingWebhookConfiguration` or `ValidatingWebhookConfiguration`."""
    failure_policy: str
    namespace: str
    """Of its Service; empty where it is called by a URL."""
    path: str
    """On the Service, or the URL."""


def read_webhooks(kind: str, configuration: Mapping[str, Any]) -> list[OtherWebhook]:
    """Read those webhooks of somebody else's configuration that are asked about new pods."""
    name = str(as_object(configuration.get("metadata")).get("name"))
    found = []
    for hook in as_objects(configuration.get("webhooks")):
        if not any(map(_is_for_pods, as_objects(hook.get("rules")))):
            continue
        selectors = (hook.get("namespaceSelector"), hook.get("objectSelector"))
        selects = any(selectors) or bool(hook.get("matchConditions"))
        fails = hook.get("failurePolicy", "Fail") == "Fail"
        found.append(OtherWebhook(f"{kind} {name}, {hook.get('name')}", fails, selects))
    return found


def read_own_webhooks(kind: str, configuration: Mapping[str, Any]) -> list[OurWebhook]:
    """Read the webhooks of one of our configurations."""
    return [
        OurWebhook(
            str(hook.get("name")),
            kind,
            str(hook.get("failurePolicy", "Fail")),
            str(as_object(target.get("service")).get("namespace") or ""),
            str(as_object(target.get("service")).get("path") or target.get("url") or ""),
        )
        for hook in as_objects(configuration.get("webhooks"))
        for target in [as_object(hook.get("clientConfig"))]
    ]


def _is_for_pods(rule: Json) -> bool:
    def has(key: str, *wanted: str) -> bool:
        return not {"*", *wanted}.isdisjoint(map(str, rule.get(key) or ()))

    return has("operations", "CREATE") and has("apiGroups", "") and has("resources", "pods", "*/*")


@dataclass(frozen=True, slots=True)
class Right:
    """Something that an account may do, or may not."""

    verb: str
    group: str
    resource: str
    namespace: str = ""
    """Empty for all of them, and for what has none."""
    subresource: str = ""

    def __str__(self) -> str:
        """Return it as people say it, e.g. `create daemonsets.apps in vramwarden-system`."""
        of = f"{self.resource}.{self.group}" if self.group else self.resource
        below = f"{of}/{self.subresource}" if self.subresource else of
        return f"{self.verb} {below}" + (f" in {self.namespace}" if self.namespace else "")


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace, or that there is none of that name."""

    name: str
    exists: bool = True
    level: str = ""
    """Pod Security's label `enforce`; empty for the cluster's default."""
    helms: bool = False
    """Helm made it, so that an installation takes it over."""


def read_namespace(name: str, found: Mapping[str, Any] | None) -> Namespace:
    """Read a namespace; None stands for one that does not exist."""
    if found is None:
        return Namespace(name, exists=False)
    metadata = as_object(found.get("metadata"))
    labels = as_object(metadata.get("labels"))
    level = labels.get("pod-security.kubernetes.io/enforce")
    helms = labels.get("app.kubernetes.io/managed-by") == "Helm"
    return Namespace(name, level=str(level or ""), helms=helms)


@dataclass(frozen=True, slots=True)
class DryRun:
    """What the API server answered where a pod was created as a dry run."""

    created: bool
    answer: str = ""
    """Where it was not: the API server's message."""
    admitted: bool = False
    """It bears our mark."""
    rule: str = ""
    """The rule by which it was translated."""
    digest: str = ""
    """The first digits of that policy's digest."""
    has_sidecar: bool = False
    """It has a container `vram-enforcer`."""
    native: bool = True
    """Of a pod with a native sidecar: it is still one."""
    pulls_always: bool = False
    """Its images are pulled at each start, whatever it says (the plugin AlwaysPullImages)."""


def read_dry_run(pod: Mapping[str, Any]) -> DryRun:
    """Read a pod as it would have been stored."""
    annotations = as_object(as_object(pod.get("metadata")).get("annotations"))
    spec = as_object(pod.get("spec"))
    initial = as_objects(spec.get("initContainers"))
    mark = str(annotations.get(ADMITTED_ANNOTATION) or "")
    _, rule, digest, *_ = [*mark.split(" "), "", "", ""]
    return DryRun(
        created=True,
        admitted=bool(mark),
        rule=rule,
        digest=digest,
        has_sidecar=any(
            one.get("name") == ENFORCER_CONTAINER
            for one in (*initial, *as_objects(spec.get("containers")))
        ),
        native=all(one.get("restartPolicy") == "Always" for one in initial),
        pulls_always=any(
            one.get("imagePullPolicy") == "Always" for one in as_objects(spec.get("containers"))
        ),
    )


@dataclass(frozen=True, slots=True)
class Workload:
    """The webhook's Deployment, or a DaemonSet of ours."""

    namespace: str
    desired: int
    ready: int
    present: int
    """Pods that exist."""
    version: str
    """The release's, by its label."""
    image: str
    arguments: tuple[str, ...]
    secret: str
    """The Secret of a certificate that is mounted; empty for none."""
    privileged: bool = False

    def option(self, name: str) -> str:
        """Return what its program is given as `--name=...`, empty for nothing."""
        start = f"--{name}="
        found = [one.removeprefix(start) for one in self.arguments if one.startswith(start)]
        return found[-1] if found else ""


def read_workload(found: Mapping[str, Any]) -> Workload:
    """Read a Deployment or a DaemonSet."""
    metadata, spec = as_object(found.get("metadata")), as_object(found.get("spec"))
    status, labels = as_object(found.get("status")), as_object(metadata.get("labels"))
    pod = as_object(as_object(spec.get("template")).get("spec"))
    container = next(iter(as_objects(pod.get("containers"))), {})
    secrets = [
        str(as_object(volume.get("secret")).get("secretName"))
        for volume in as_objects(pod.get("volumes"))
        if "secret" in volume and volume.get("name") != KEY_VOLUME
    ]
    is_set = "replicas" not in spec
    return Workload(
        namespace=str(metadata.get("namespace")),
        desired=_count(status.get("desiredNumberScheduled") if is_set else spec.get("replicas")),
        ready=_count(status.get("numberReady" if is_set else "readyReplicas")),
        present=_count(status.get("currentNumberScheduled" if is_set else "replicas")),
        version=str(labels.get("app.kubernetes.io/version") or ""),
        image=str(container.get("image") or ""),
        arguments=tuple(map(str, container.get("args") or ())),
        secret=secrets[0] if secrets else "",
        privileged=as_object(container.get("securityContext")).get("privileged") is True,
    )


def read_sources(policy: Mapping[str, Any] | None) -> tuple[str, ...] | None:
    """Read whom the webhook's NetworkPolicy lets in; empty for everybody, None without one."""
    if policy is None:
        return None
    ways = as_objects(as_object(policy.get("spec")).get("ingress"))
    return tuple(
        str(as_object(one.get("ipBlock")).get("cidr"))
        for one in as_objects(next(iter(ways), {}).get("from"))
    )


@dataclass(frozen=True, slots=True)
class OwnPod:
    """A pod of the release that is not ready."""

    name: str
    component: str
    """`webhook`, `agent` or `sentry`."""
    node: str
    why: str


def read_own_pod(pod: Mapping[str, Any]) -> OwnPod | None:
    """Read a pod of the release; None for one that is ready, or has ended."""
    metadata, status = as_object(pod.get("metadata")), as_object(pod.get("status"))
    labels = as_object(metadata.get("labels"))
    ready = [c for c in as_objects(status.get("conditions")) if c.get("type") == "Ready"]
    if any(c.get("status") == "True" for c in ready) or status.get("phase") in _ENDED:
        return None
    waits = [one for one in map(_waiting, as_objects(status.get("containerStatuses"))) if one[0]]
    said = " ".join(waits[0][:2]).strip() if waits else ""
    why = said or next((str(c.get("message") or "") for c in ready), "") or "it is not ready"
    component = str(labels.get("app.kubernetes.io/component"))
    node = str(as_object(pod.get("spec")).get("nodeName") or "")
    return OwnPod(str(metadata.get("name")), component, node, shortened(why))


_ENDED: Final = frozenset({"Succeeded", "Failed"})
PULLS: Final = frozenset(
    {"ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull"}
)


@dataclass(frozen=True, slots=True)
class ManagedPod:
    """A pod with VRAM that has not started as it should, or whose sidecar has."""

    name: str
    """`namespace/name`."""
    pulls: str = ""
    """The sidecar's image, where it cannot be pulled."""
    why: str = ""
    """What the kubelet says of that."""
    waits: str = ""
    """Why it is bound and has no GPU."""
    has_sidecar: bool = False
    """Its sidecar runs, or did: its image was pulled."""


@dataclass(frozen=True, slots=True)
class OtherPod:
    """A pod that runs on a node and has, or may have, GPUs that we did not give it."""

    name: str
    """`namespace/name`."""
    node: str
    whole: bool
    """By a resource of a device plugin."""
    claims: tuple[str, ...]
    """Its ResourceClaims, `namespace/name`, of whatever kind."""


def read_other_pod(pod: Mapping[str, Any]) -> OtherPod | None:
    """Read a pod; None for one that has ended, has no node yet, or asks for nothing of this."""
    metadata, node = as_object(pod.get("metadata")), as_object(pod.get("spec")).get("nodeName")
    whole, claims = has_whole_gpu(pod), claim_names(pod)
    if not node or not (whole or claims):
        return None
    namespace = metadata.get("namespace")
    named = tuple(f"{namespace}/{claim}" for claim in claims)
    return OtherPod(f"{namespace}/{metadata.get('name')}", str(node), whole, named)


def read_gpu_claim(claim: Mapping[str, Any]) -> str:
    """Return the name, `namespace/name`, of a ResourceClaim that has GPUs; empty for any other."""
    metadata = as_object(claim.get("metadata"))
    name = f"{metadata.get('namespace')}/{metadata.get('name')}"
    return name if is_gpu_claim(claim) else ""


@dataclass(frozen=True, slots=True)
class ExcusedPod:
    """A pod that a release before 0.3 left its GPUs, since its containers ask for some device."""

    namespace: str
    name: str
    resources: frozenset[tuple[str, ...]]
    """Those that each such container asks for."""


def read_excused_pod(pod: Mapping[str, Any]) -> ExcusedPod | None:
    """Read a pod for `fence.void`; None for one that it found nothing to excuse in."""
    metadata, spec = as_object(pod.get("metadata")), as_object(pod.get("spec"))
    if as_object(pod.get("status")).get("phase") in _ENDED:
        return None
    found = set()
    for one in (*as_objects(spec.get("containers")), *as_objects(spec.get("initContainers"))):
        resources = as_object(one.get("resources"))
        amounts = {**as_object(resources.get("requests")), **as_object(resources.get("limits"))}
        names = tuple(sorted(name for name in amounts if _EXCUSED.search(name)))
        named = any(
            entry.get("name") == VISIBLE_DEVICES_ENV for entry in as_objects(one.get("env"))
        )
        if names and not named and not resources.get("claims"):
            found.add(names)
    namespace, name = str(metadata.get("namespace")), str(metadata.get("name"))
    return ExcusedPod(namespace, name, frozenset(found)) if found else None


# What such a release took for devices: of names with a domain all but Kubernetes' own.
_EXCUSED: Final = re.compile(r"^deviceclass\.resource\.kubernetes\.io/|^(?!.*kubernetes\.io/).*/")

SOUND: Final = ManagedPod("", has_sidecar=True)
"""Any pod of which there is nothing else to say: a cluster may have 20,000."""


def read_managed_pod(pod: Mapping[str, Any]) -> ManagedPod | None:
    """Read a pod with VRAM; None for one of which there is nothing to say here."""
    metadata, status = as_object(pod.get("metadata")), as_object(pod.get("status"))
    if status.get("phase") in _ENDED:
        return None
    name = f"{metadata.get('namespace')}/{metadata.get('name')}"
    waits = as_object(metadata.get("annotations")).get(GPU_WAITS_ANNOTATION)
    sidecars = [
        one
        for key in ("initContainerStatuses", "containerStatuses")
        for one in as_objects(status.get(key))
        if one.get("name") == ENFORCER_CONTAINER
    ]
    for one in sidecars:
        reason, message, image = _waiting(one)
        if reason in PULLS:
            return ManagedPod(name, image, shortened(message or reason), shortened(waits or ""))
    if waits:
        return ManagedPod(name, waits=shortened(waits))
    return SOUND if any(map(_has_run, sidecars)) else None


def _has_run(status: Json) -> bool:
    state = as_object(status.get("state"))
    return bool(state.get("running") or state.get("terminated"))


def _waiting(status: Json) -> tuple[str, str, str]:
    waiting = as_object(as_object(status.get("state")).get("waiting"))
    reason, message = waiting.get("reason") or "", waiting.get("message") or ""
    return str(reason), str(message), shortened(status.get("image") or "")


@dataclass(frozen=True, slots=True)
class Authorities:
    """The CAs that one of our webhooks is trusted by."""

    webhook: str
    problem: str = ""
    """Why they cannot be read, or that there are none."""
    days_left: float = 0.0
    """Of the one that is valid longest."""
    trusts: bool | None = None
    """Whether they are those of the certificate; None where that could not be seen."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """What the webhook is served with."""

    secret: str
    """`namespace/name`."""
    problem: str = ""
    days_left: float = 0.0


@dataclass(frozen=True, slots=True)
class PolicyFacts:
    """The policy that the release's ConfigMap holds, as this command reads it."""

    problems: tuple[str, ...] = ()
    rules: int = 0
    digest: str = ""
    """The first digits of it, as pods carry them."""
    comparable: bool = True
    """The release is of this command's version, so that it reads files and digests alike."""
    pinned: tuple[tuple[str, str], ...] = ()
    """Rules that name a sidecar's image, and which."""
    restarts: tuple[str, ...] = ()
    """Rules with `podRestart: RestartAllContainers`."""
    tolerations: tuple[Mapping[str, Any], ...] = ()
    """Of all rules and classes."""
    slots: tuple[tuple[str, str], ...] = ()
    """Rules with `accounting: CapOnly`, and which slots their pods ask for."""
    fence: Mapping[str, str] = field(default_factory=dict)
    """What the replicas write for the API server's own policies."""


@dataclass(frozen=True, slots=True)
class PolicyObject:
    """A policy that is an object, and what the replicas say of it."""

    name: str
    in_force: bool | None
    """None where nobody has said it yet of what it holds now."""
    message: str
    """What keeps it from being in force."""


def read_policy_object(found: Mapping[str, Any]) -> PolicyObject:
    """Read a VRAMPolicy."""
    metadata, status = as_object(found.get("metadata")), as_object(found.get("status"))
    is_known = status.get("observedGeneration") == metadata.get("generation")
    return PolicyObject(
        str(metadata.get("name")),
        status.get("inForce") is True if is_known else None,
        str(status.get("message") or ""),
    )


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a cluster; what could not be seen says why."""

    url: str
    version: str
    """The API server's, e.g. `v1.36.2`."""
    now_s: float
    """By the API server's clock."""
    command: str
    """The version of this command."""
    namespace: str = DEFAULT_NAMESPACE
    """The release's."""
    test_namespace: str = "default"
    admission: frozenset[str] | Unseen = NOT_ASKED
    """Resources of admissionregistration.k8s.io/v1 that are served."""
    groups: frozenset[str] | Unseen = NOT_ASKED
    """API groups that are served."""
    crds: frozenset[str] | Unseen = NOT_ASKED
    """Our own resources that are served."""
    nodes: tuple[NodeFacts, ...] | Unseen = NOT_ASKED
    node_count: int = 0
    slices: frozenset[str] | Unseen = NOT_ASKED
    """Drivers of all ResourceSlices; whose are of which node, `nodes` says."""
    claimed: frozenset[str] | Unseen = frozenset()
    """ResourceClaims, `namespace/name`, that have GPUs of NVIDIA's driver."""
    runtime_class: str | Unseen = NOT_ASKED
    """The handler of the RuntimeClass `nvidia`; empty where there is none."""
    other_webhooks: tuple[OtherWebhook, ...] | Unseen = NOT_ASKED
    sentry_namespace: Namespace | Unseen = NOT_ASKED
    denied: tuple[Right, ...] | Unseen = NOT_ASKED
    """What the user may not, of what an installation needs."""
    not_granted: tuple[Right, ...] | Unseen = NOT_ASKED
    """What our accounts need and the user may not grant."""
    shape: DryRun | Unseen = NOT_ASKED
    """A pod like ours, before we are there."""

    webhook: Workload | Unseen | None = NOT_ASKED
    agent: Workload | Unseen | None = NOT_ASKED
    sentry: Workload | Unseen | None = NOT_ASKED
    own_pods: tuple[OwnPod, ...] | Unseen = NOT_ASKED
    own_webhooks: tuple[OurWebhook, ...] | Unseen = NOT_ASKED
    authorities: tuple[Authorities, ...] | Unseen = NOT_ASKED
    certificate: Certificate | Unseen | None = NOT_ASKED
    policy: PolicyFacts | Unseen | None = NOT_ASKED
    policy_objects: tuple[PolicyObject, ...] | Unseen | None = NOT_ASKED
    """None where the replicas read none."""
    asks: DryRun | Unseen = NOT_ASKED
    """A pod that asks for 1Gi."""
    wrong: DryRun | Unseen = NOT_ASKED
    """A pod that asks for 8GB."""
    plain: DryRun | Unseen = NOT_ASKED
    """A pod that asks for nothing."""
    fences: frozenset[str] | Unseen = NOT_ASKED
    """Names of our admission policies."""
    fence_bindings: frozenset[str] | Unseen = NOT_ASKED
    fence_rules: Mapping[str, str] | Unseen | None = NOT_ASKED
    """The data of the ConfigMap `vramwarden-fence`."""
    sources: tuple[str, ...] | Unseen | None = NOT_ASKED
    """See `read_sources`."""
    has_key: bool | Unseen = NOT_ASKED
    """The Secret with the replicas' key exists."""
    gpu_nodes: Mapping[str, float] | Unseen = NOT_ASKED
    """When each GPUNode was written, Unix time."""
    pods: tuple[ManagedPod, ...] | Unseen = NOT_ASKED
    other_pods: tuple[OtherPod, ...] | Unseen = NOT_ASKED
    excused: tuple[ExcusedPod, ...] | Unseen = NOT_ASKED
    """Pods that ask for devices, where containers that ask for none are voided."""
    events: Mapping[str, str] | Unseen = NOT_ASKED
    """What agents say of nodes whose GPUs are in use: the newest such Event of each."""

    @property
    def minor(self) -> tuple[int, int]:
        """The API server's version as numbers."""
        return minor(self.version)


def minor(version: str) -> tuple[int, int]:
    """Read `v1.36.2-gke.100` as (1, 36); (0, 0) where it cannot be read."""
    match = _VERSION.match(version)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _amount(value: object) -> int:
    try:
        return max(0, int(parse_quantity(str(value))))
    except QuantityError:
        return 0


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _MOST_REPLICAS_DIGITS


def _count(value: object) -> int:
    return value if type(value) is int else 0
