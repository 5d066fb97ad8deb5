"""What is known of a cluster, and how it is read from objects of the API server.

The API server has checked the types of their fields; any may be missing. Little is kept of each,
since a cluster may have 5,000 nodes.
"""

from __future__ import annotations

import re
from base64 import b64decode
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from webhook.core.node.sharing import SharingInputs, is_advertised, judge
from webhook.core.pod.fields import as_object, as_objects, part, text_of
from webhook.core.policy.values import EnforceBy
from webhook.names import ADMITTED_ANNOTATION, DEFAULT_NAMESPACE, MANAGED_LABEL
from webhook.tools.snapshot.objects import Unreadable
from webhook.tools.snapshot.pod import ClusterPod

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from webhook.core.kinds.nodes import NodeFigures
    from webhook.core.node.verdict import SharingVerdict
    from webhook.tools.snapshot.node import ClusterNode

    Json = dict[str, Any]

KEY_VOLUME: Final = "key"
NOT_ASKED: Final = Unreadable("was not asked for")

_PODS: Final = {"pods", "*", "*/*"}
_VERSION: Final = re.compile(r"v?([0-9]{1,4})\.([0-9]{1,4})")


@dataclass(frozen=True, slots=True, kw_only=True)
class OurWebhook:
    """A webhook of one of our configurations."""

    name: str
    kind: str
    """`MutatingWebhookConfiguration` or `ValidatingWebhookConfiguration`."""
    configuration: str
    """The configuration's name."""
    failure_policy: str
    namespace: str
    """Of its Service; empty where it is called by a URL."""
    path: str
    """On the Service, or the URL."""
    ca_pem: bytes = b""
    """Its `caBundle`."""


def read_own_webhooks(kind: str, configuration: Mapping[str, Any]) -> list[OurWebhook]:
    """Read the webhooks of one of our configurations."""
    return [
        OurWebhook(
            name=str(hook.get("name")),
            kind=kind,
            configuration=text_of(configuration, "metadata", "name"),
            failure_policy=str(hook.get("failurePolicy", "Fail")),
            namespace=str(as_object(target.get("service")).get("namespace") or ""),
            path=str(as_object(target.get("service")).get("path") or target.get("url") or ""),
            ca_pem=read_bytes(target.get("caBundle")),
        )
        for hook in as_objects(configuration.get("webhooks"))
        for target in [as_object(hook.get("clientConfig"))]
    ]


def changes_new_pods(configuration: Mapping[str, Any]) -> bool:
    """Return True if a mutating webhook configuration has a webhook for the creation of pods."""
    sets = (("apiGroups", {"", "*"}), ("resources", _PODS), ("operations", {"CREATE", "*"}))
    return any(
        all(matched & {*(rule.get(field) or ())} for field, matched in sets)
        for hook in as_objects(configuration.get("webhooks"))
        for rule in as_objects(hook.get("rules"))
    )


def read_bytes(text: object) -> bytes:
    """Read base64; empty for anything else."""
    try:
        return b64decode(str(text or ""))
    except ValueError:
        return b""


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


@dataclass(frozen=True, slots=True, kw_only=True)
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


def read_dry_run(pod: Json) -> DryRun:
    """Read a pod as it would have been stored."""
    annotations = part(pod, "metadata", "annotations")
    mark = str(annotations.get(ADMITTED_ANNOTATION) or "")
    _, rule, digest, *_ = [*mark.split(" "), "", "", ""]
    return DryRun(
        created=True,
        admitted=bool(mark),
        rule=rule,
        digest=digest,
        has_sidecar=ClusterPod(pod).has_sidecar,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnWorkload:
    """The webhook's Deployment, or a DaemonSet of ours."""

    namespace: str
    desired: int
    ready: int
    present: int
    """Pods that exist."""
    version: str
    """The release's, by its label."""
    arguments: tuple[str, ...]
    secret: str
    """The Secret of a certificate that is mounted; empty for none."""

    def option(self, name: str) -> str:
        """Return what its program is given as `--name=...`, empty for nothing."""
        start = f"--{name}="
        found = [one.removeprefix(start) for one in self.arguments if one.startswith(start)]
        return found[-1] if found else ""


def read_workload(found: Mapping[str, Any]) -> OwnWorkload:
    """Read a Deployment or a DaemonSet."""
    metadata, spec = as_object(found.get("metadata")), as_object(found.get("spec"))
    status, labels = as_object(found.get("status")), as_object(metadata.get("labels"))
    pod = part(spec, "template", "spec")
    container = next(iter(as_objects(pod.get("containers"))), {})
    secrets = [
        str(as_object(volume.get("secret")).get("secretName"))
        for volume in as_objects(pod.get("volumes"))
        if "secret" in volume and volume.get("name") != KEY_VOLUME
    ]
    is_set = "replicas" not in spec
    return OwnWorkload(
        namespace=str(metadata.get("namespace")),
        desired=_count(status.get("desiredNumberScheduled") if is_set else spec.get("replicas")),
        ready=_count(status.get("numberReady" if is_set else "readyReplicas")),
        present=_count(status.get("currentNumberScheduled" if is_set else "replicas")),
        version=str(labels.get("app.kubernetes.io/version") or ""),
        arguments=tuple(map(str, container.get("args") or ())),
        secret=secrets[0] if secrets else "",
    )


def judge_without_agent(
    node: Json, claimed_by: tuple[str, ...] | None, age_s: float
) -> SharingVerdict:
    """Return the verdict that an agent would write if the node's GPUs were free.

    `claimed_by`: DRA drivers that offer its GPUs; None if unknown.
    """
    shares = is_advertised(node)
    inputs = SharingInputs(
        claimed_by=claimed_by, age_s=age_s, shares=shares, has_pods=None, in_use=()
    )
    return judge(node, inputs).verdict("", has_gpus=True)


SOUND: Final = ClusterPod({"metadata": {"labels": {MANAGED_LABEL: "true"}}}, sound=True)
"""Any pod of which there is nothing else to say: a cluster may have 20,000."""
_OF_PODS: Final = (
    *("path", "namespace", "node", "managed", "pull_failure", "waits", "sound"),
    *("waits_for_limit_s", "whole"),
)


def of_interest(pod: ClusterPod) -> ClusterPod | None:
    """Return little of a pod of which there is something to say; SOUND for another that works."""
    has_gpus = pod.node and pod.whole
    waits = pod.waits or pod.waits_for_limit_s is not None
    has_trouble = pod.managed and not pod.ended and (pod.pull_failure or waits)
    if has_gpus or has_trouble:
        return pod.keep(*_OF_PODS)
    return SOUND if pod.sound else None


@dataclass(frozen=True, slots=True)
class Certificate:
    """What the webhook is served with, or the CAs that one of our webhooks is trusted by."""

    name: str
    """The Secret's, `namespace/name`, or the webhook's."""
    problem: str = ""
    """Why it cannot be read, or that there is none."""
    days_left: float = 0.0
    """Of the CA that is valid longest."""
    trusts: bool | None = None
    """Whether the CAs are those of the certificate; None where that could not be seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFacts:
    """The policy that the release's ConfigMap holds, as this command reads it."""

    problems: tuple[str, ...] = ()
    rules: int = 0
    digest: str = ""
    """The first digits of it, as pods carry them."""
    tried_by: tuple[str, str] = ("", "")
    """The rule for pods that are tried, and its action; empty where there is none, or it depends on
    more than the namespace's name."""
    tolerations: tuple[Mapping[str, Any], ...] = ()
    """Of all rules and classes."""
    enforcers: frozenset[EnforceBy] = frozenset()
    """Values of `enforcement.by` in rules that do not ignore their pods."""
    validated: tuple[str, ...] = ()
    """Namespaces of `Facts.validators` whose rule has another action than Ignore."""
    fence: Mapping[str, str] = field(default_factory=dict)
    """What the replicas write for the API server's own policies; empty where the release is not of
    this command's version, so that it may read files and digests otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
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
    groups: frozenset[str] | Unreadable = NOT_ASKED
    """API groups that are served."""
    nodes: tuple[ClusterNode, ...] | Unreadable = NOT_ASKED
    node_count: int = 0
    drivers: Mapping[str, Collection[str]] | Unreadable = NOT_ASKED
    """DRA drivers that offer GPUs in ResourceSlices, by node."""
    runtime_class: str | Unreadable = NOT_ASKED
    """The handler of the RuntimeClass `nvidia`; empty where there is none."""
    sentry_namespace: Namespace | Unreadable = NOT_ASKED

    webhook: OwnWorkload | Unreadable | None = NOT_ASKED
    agent: OwnWorkload | Unreadable | None = NOT_ASKED
    sentry: OwnWorkload | Unreadable | None = NOT_ASKED
    limiter: OwnWorkload | Unreadable | None = NOT_ASKED
    own_pods: tuple[ClusterPod, ...] | Unreadable = NOT_ASKED
    """Those of the release that are not ready."""
    own_webhooks: tuple[OurWebhook, ...] | Unreadable = NOT_ASKED
    later_configurations: tuple[str, ...] | Unreadable = NOT_ASKED
    """Those of others that change new pods after ours."""
    authorities: tuple[Certificate, ...] | Unreadable = NOT_ASKED
    certificate: Certificate | Unreadable | None = NOT_ASKED
    validators: frozenset[str] | Unreadable = frozenset()
    """Namespaces, exempt ones left out, in which NVIDIA's operator validates its device plugin."""
    policy: PolicyFacts | Unreadable | None = NOT_ASKED
    asks: DryRun | Unreadable = NOT_ASKED
    """A pod that asks for 1Gi."""
    wrong: DryRun | Unreadable = NOT_ASKED
    """A pod that asks for 8GB."""
    plain: DryRun | Unreadable = NOT_ASKED
    """A pod that asks for nothing."""
    fences: frozenset[str] | Unreadable = NOT_ASKED
    """Names of our admission policies."""
    fence_bindings: frozenset[str] | Unreadable = NOT_ASKED
    fence_rules: Mapping[str, str] | Unreadable | None = NOT_ASKED
    """The data of the ConfigMap `vramwarden-fence`."""
    has_key: bool | Unreadable = NOT_ASKED
    """The Secret with the replicas' key exists."""
    gpu_nodes: Mapping[str, NodeFigures] | Unreadable | None = NOT_ASKED
    """What each GPUNode says of its node, without its GPUs; None if the kind is not served."""
    pods: tuple[ClusterPod, ...] | Unreadable = NOT_ASKED
    """Those of which there is something to say."""

    @property
    def may_have_sidecars(self) -> bool:
        """True unless the policy is valid and no rule of it is by `Sidecar`."""
        if not isinstance(self.policy, PolicyFacts) or self.policy.problems:
            return True
        return EnforceBy.SIDECAR in self.policy.enforcers


def minor(version: str) -> tuple[int, int]:
    """Read `v1.36.2-gke.100` as (1, 36); (0, 0) where it cannot be read."""
    match = _VERSION.match(version)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _count(value: object) -> int:
    return value if type(value) is int else 0
