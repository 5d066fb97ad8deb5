"""Facts of an installation of vramwarden, or of a cluster that is to get one.

Lists are read page by page, and little is kept of each object: a cluster may have 5,000 nodes and
20,000 pods.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote

from certs import Bundle, describe, has_all_authorities
from webhook.adapters.kube.certificates import KINDS
from webhook.adapters.kube.client import Kube, core_path
from webhook.adapters.kube.errors import KubeError
from webhook.adapters.kube.namespaces import read_labels
from webhook.adapters.kube.node_objects import SLICES
from webhook.adapters.kube.release_objects import CONFIG_MAP
from webhook.adapters.policy.files import PolicyInvalidError, load_config_map, shipped_policy_path
from webhook.core.documentation import Page
from webhook.core.kinds.nodes import NodeFigures, read_gpu_node
from webhook.core.node.node_fields import SharingVerdict, is_advertised
from webhook.core.node.sharing import SharingInputs, judge
from webhook.core.pod.fields import Json, as_object, as_objects, find_object, find_string
from webhook.core.pod.whole_gpus import read_resource_slice
from webhook.core.policy.model import Policy
from webhook.names import (
    DEFAULT_NAMESPACE,
    DOCUMENTATION_URL_ENV,
    GPU_MEMORY_ANNOTATION,
    GPU_NODES_PATH,
    MANAGED_LABEL,
    NVIDIA_RUNTIME_CLASS,
    PREFIX,
)
from webhook.tools.snapshot.facts import ClusterFacts, DryRunAnswer, asking, fact
from webhook.tools.snapshot.node import ClusterNode
from webhook.tools.snapshot.objects import ClusterObject, FactUnavailable
from webhook.tools.snapshot.pod import ClusterPod
from webhook.tools.snapshot.reading import NOT_ENDED
from webhook.tools.snapshot.release import (
    SENTRY_NAMESPACE,
    Scope,
    own_configurations,
    read_policy,
    read_scope,
)

T = TypeVar("T")

MUTATING: Final = "MutatingWebhookConfiguration"
VALIDATING: Final = "ValidatingWebhookConfiguration"
HEALTHY_POD: Final = ClusterPod({"metadata": {"labels": {MANAGED_LABEL: "true"}}}, healthy=True)
"""Stands for every managed pod that has no problem."""
_REGISTRATION: Final = "/apis/admissionregistration.k8s.io/v1"
_OURS: Final = "app.kubernetes.io/name=vramwarden"
_APPS: Final = "/apis/apps/v1"
_UUID: Final = "GPU-"
"""Beginning of NVML's names of GPUs."""
_PUBLIC_FILES: Final = ("tls.crt", "ca.crt")
"""Files of the certificate's Secret that are not secret."""
_PODS: Final = {"pods", "*", "*/*"}
_OF_NODES: Final = (
    *("name", "ready", "brings_agent", "taints", "handlers", "share", "sharing", "gpus"),
    *("advertised", "vram_bytes", "said", "enforcement", "device_names", "driver", "has_sentry"),
)
_OF_OWN_PODS: Final = ("name", "component", "node", "not_ready")
_OF_PODS: Final = (
    *("name", "namespace", "node", "managed", "pull_failure", "waits", "healthy"),
    *("waits_for_limit_s", "whole"),
)


class OwnWebhook(NamedTuple):
    """A webhook of one of our configurations."""

    kind: str
    """`MutatingWebhookConfiguration` or `ValidatingWebhookConfiguration`."""
    configuration: str
    """Name of the configuration."""
    name: str
    failure_policy: str
    namespace: str
    """Namespace of its Service; empty if a URL is called."""
    path: str
    """Path on the Service, or the URL."""
    ca_pem: bytes


class OwnWorkload(ClusterObject):
    """The webhook's Deployment, or a DaemonSet of vramwarden."""

    @property
    def desired(self) -> int:
        """Number of replicas, or of nodes that should have a pod."""
        replicas = self.part("spec").get("replicas")
        return replicas if type(replicas) is int else self._number("desiredNumberScheduled")

    @property
    def ready_pods(self) -> int:
        """Number of ready pods."""
        return self._number("readyReplicas") or self._number("numberReady")

    @property
    def version(self) -> str:
        """Version of the release."""
        return self.labels.get("app.kubernetes.io/version", "")

    @property
    def arguments(self) -> list[str]:
        """Arguments of its first container."""
        return [str(one) for one in self._containers()[0].get("args") or ()]

    @property
    def secret(self) -> str:
        """Name of the mounted Secret with a certificate; empty without one."""
        volumes = as_objects(self.part("spec", "template", "spec").get("volumes"))
        mounted = (find_object(one, "secret") for one in volumes if one.get("name") != "key")
        return next((find_string(one, "secretName") for one in mounted if one), "")

    def option(self, name: str) -> str:
        """Return the value of the program's option `--name=VALUE`; empty if it is not given."""
        start = f"--{name}="
        found = [one.removeprefix(start) for one in self.arguments if one.startswith(start)]
        return found[-1] if found else ""

    def variable(self, name: str) -> str:
        """Return the value of a variable of its first container; empty if it is not set."""
        variables = as_objects(self._containers()[0].get("env"))
        return next((find_string(one, "value") for one in variables if one.get("name") == name), "")

    def _containers(self) -> list[Json]:
        return as_objects(self.part("spec", "template", "spec").get("containers")) or [{}]

    def _number(self, field: str) -> int:
        found = self.part("status").get(field)
        return found if type(found) is int else 0


class ServedCertificate(NamedTuple):
    """Certificate that the webhook serves with."""

    title: str
    """Name of its Secret, `namespace/name`."""
    bundle: Bundle
    days_left: float | None
    """None if it cannot be read."""


class Installation(ClusterFacts):
    """Facts of an installation, or with `is_before` of a cluster that is to get one."""

    def __init__(
        self,
        kube: Kube,
        command_version: str,
        *,
        is_before: bool = False,
        namespace: str | None = None,
        test_namespace: str = "default",
    ) -> None:
        """Pods are tried in `test_namespace`; `namespace` is the release's, if it is known."""
        super().__init__(kube)
        self.command_version = command_version
        self.is_before = is_before
        self.test_namespace = test_namespace
        self._given_namespace = namespace

    @property
    def _now(self) -> datetime:
        return datetime.fromtimestamp(self.now_s, UTC)

    @fact("read /version")
    def version(self) -> str:
        """Version of the API server, as `v1.36.2`."""
        return find_string(self.kube.read("/version"), "gitVersion")

    # Nodes

    @fact("list nodes")
    def _nodes(self) -> list[ClusterNode | None]:
        """All nodes; None for one without GPUs, which is only counted."""
        drivers = self.attempt(lambda: self.dra_drivers)

        def keep(raw: Json) -> ClusterNode | None:
            dra_drivers = None
            if drivers is not None:
                dra_drivers = tuple(sorted(drivers.get(find_string(raw, "metadata", "name"), ())))
            node = ClusterNode(raw, dra_drivers=dra_drivers or ())
            if not node.shows_gpus:
                return None
            if self.is_before and node.sharing is None:
                age_s = self.now_s - (node.created_s or 0.0)
                node = ClusterNode(raw, sharing=_verdict_without_agent(raw, dra_drivers, age_s))
            return node.keep(*_OF_NODES)

        return self.kube.list_versioned(core_path("nodes"), keep)[0]

    @property
    def nodes(self) -> list[ClusterNode]:
        """Nodes that show that they have GPUs."""
        return [one for one in self._nodes if one is not None]

    @property
    def node_count(self) -> int:
        """Number of all nodes."""
        return len(self._nodes)

    @fact("list resourceslices")
    def dra_drivers(self) -> Mapping[str, Collection[str]]:
        """DRA drivers whose ResourceSlices name a GPU, by node."""

        def keep(found: Json) -> tuple[str, str]:
            one, node = read_resource_slice(found), as_object(found.get("spec")).get("nodeName")
            names_gpu = any(text.startswith(_UUID) for text in one.texts)
            return str(node), one.driver if names_gpu else ""

        drivers: dict[str, set[str]] = {}
        why = "needs resource.k8s.io/v1, which Kubernetes serves from 1.34 on"
        found = self._unless_unknown(lambda: self.kube.list_all(SLICES, keep))
        if found is None:
            raise FactUnavailable(why)
        for node, driver in found:
            if driver:
                drivers.setdefault(node, set()).add(driver)
        return drivers

    @fact("get runtimeclasses")
    def runtime_handler(self) -> str:
        """Handler of the RuntimeClass `nvidia`; empty if there is none."""
        path = f"/apis/node.k8s.io/v1/runtimeclasses/{NVIDIA_RUNTIME_CLASS}"
        return str((self.kube.find(path) or {}).get("handler") or "")

    @fact("list gpunodes")
    def gpu_nodes(self) -> Mapping[str, NodeFigures] | None:
        """GPUNodes without their GPUs, by node; None if the kind is not served."""

        def keep(raw: Json) -> NodeFigures | None:
            figures = read_gpu_node(raw)
            return figures and replace(figures, gpus=())

        found = self._unless_unknown(lambda: self.kube.list_all(GPU_NODES_PATH, keep))
        return None if found is None else {one.name: one for one in found}

    # The release

    @property
    def namespace(self) -> str:
        """Namespace of the release, as far as it is known."""
        webhook = None if self.is_before else self.attempt(lambda: self.webhook)
        return webhook.namespace if webhook else self._likely_namespace

    @property
    def _likely_namespace(self) -> str:
        hooks = self.attempt(lambda: self.own_webhooks) or ()
        called = (hook.namespace for hook in hooks if hook.namespace)
        return self._given_namespace or next(called, DEFAULT_NAMESPACE)

    @fact("get deployments")
    def webhook(self) -> OwnWorkload | None:
        """The webhook's Deployment; None if there is none."""
        found = self._workload(self._likely_namespace, "deployments/vramwarden-webhook")
        if found is None and not self._given_namespace:
            everywhere = self.attempt(lambda: self._listed("deployments", "webhook"))
            found = next(iter(everywhere or ()), None)
        return found

    def page(self, page: Page) -> str:
        """Return how messages name a page: by the release's `documentationURL`, if it is known."""
        webhook = None if self.is_before else self.attempt(lambda: self.webhook)
        return page.at(webhook.variable(DOCUMENTATION_URL_ENV) if webhook else "")

    @fact("get daemonsets")
    def agent(self) -> OwnWorkload | None:
        """The agent's DaemonSet; None if there is none."""
        return self._workload(self.namespace, "daemonsets/vramwarden-agent")

    @fact("get daemonsets")
    def sentry(self) -> OwnWorkload | None:
        """The sentry's DaemonSet, in any namespace; None if there is none."""
        found = self.attempt(lambda: self._listed("daemonsets", "sentry"))
        if found is not None:
            return next(iter(found), None)
        name = "daemonsets/vramwarden-sentry"
        return self._workload(SENTRY_NAMESPACE, name) or self._workload(self.namespace, name)

    @fact("get daemonsets")
    def limiter(self) -> OwnWorkload | None:
        """The limiter's DaemonSet; None if there is none."""
        return self._workload(self.sentry_namespace, "daemonsets/vramwarden-limiter")

    @property
    def sentry_namespace(self) -> str:
        """Name of the namespace that the sentry is in, or is to be in."""
        sentry = None if self.is_before else self.attempt(lambda: self.sentry)
        return sentry.namespace if sentry else SENTRY_NAMESPACE

    @fact("get namespaces")
    def namespace_of_sentry(self) -> ClusterObject | None:
        """The sentry's namespace; None if it does not exist."""
        found = self.kube.find(core_path("namespaces", self.sentry_namespace))
        return None if found is None else ClusterObject(found)

    @fact("list pods in our namespaces")
    def unready_pods(self) -> list[ClusterPod]:
        """Pods of vramwarden that are not ready."""

        def keep(raw: Json) -> ClusterPod | None:
            pod = ClusterPod(raw)
            return pod.keep(*_OF_OWN_PODS) if pod.not_ready else None

        found: list[ClusterPod] = []
        for namespace in sorted({self.namespace, self.sentry_namespace}):
            path = core_path("namespaces", namespace, "pods")
            found += self.kube.list_all(path, keep, labelSelector=_OURS)
        return found

    @fact("list webhook configurations")
    def own_webhooks(self) -> list[OwnWebhook]:
        """Webhooks of all configurations of vramwarden."""
        return [
            OwnWebhook(
                kind=kind,
                configuration=find_string(configuration, "metadata", "name"),
                name=find_string(hook, "name"),
                failure_policy=str(hook.get("failurePolicy", "Fail")),
                namespace=find_string(called, "service", "namespace"),
                path=find_string(called, "service", "path") or find_string(called, "url"),
                ca_pem=_decoded(called.get("caBundle")),
            )
            for kind in KINDS
            for configuration in own_configurations(self.kube, kind)
            for hook in as_objects(configuration.get("webhooks"))
            for called in [find_object(hook, "clientConfig")]
        ]

    @fact("list webhook configurations")
    def later_configurations(self) -> list[str]:
        """Names of other configurations whose webhooks change new pods after ours."""

        def keep(found: Json) -> str:
            return find_string(found, "metadata", "name") if _changes_new_pods(found) else ""

        own = [one.configuration for one in self.own_webhooks if one.kind == MUTATING]
        found = self.kube.list_all(KINDS[MUTATING], keep)
        return sorted(name for name in found if own and name > max(own))

    @fact("get secrets")
    def certificate(self) -> ServedCertificate | None:
        """Certificate that the webhook serves with; None without a Secret."""
        webhook = self.webhook
        mounted = f"{webhook.namespace}/{webhook.secret}" if webhook and webhook.secret else ""
        title = (webhook.option("cert-secret") if webhook else "") or mounted
        namespace, _, name = title.partition("/")
        if not name:
            return None

        def keep(found: Json) -> dict[str, bytes]:
            data = find_object(found, "data")
            return {one: _decoded(data[one]) for one in _PUBLIC_FILES if data.get(one)}

        files = self.kube.find_projected(core_path("namespaces", namespace, "secrets", name), keep)
        bundle = Bundle.from_files(files or {})
        serving = describe(bundle, self._now).serving
        return ServedCertificate(title, bundle, serving.days_left if serving else None)

    def ca_days_left(self, hook: OwnWebhook) -> float | None:
        """Return the days left of the newest CA in a webhook's caBundle; None if unreadable."""
        found = describe(Bundle(ca_pem=hook.ca_pem), self._now).authorities
        return max((one.days_left for one in found), default=None)

    def lacks_ca(self, hook: OwnWebhook) -> bool:
        """Return True if a webhook's caBundle is known to lack the CA of the certificate."""
        served = self.attempt(lambda: self.certificate)
        if served is None or not served.bundle.ca_pem:
            return False
        return not has_all_authorities(hook.ca_pem, served.bundle)

    @fact("get secrets")
    def has_key(self) -> bool:
        """True if the Secret with the replicas' key exists."""
        path = core_path("namespaces", self.namespace, "secrets", "vramwarden-key")
        return self.kube.find_projected(path, bool) is True

    # Policy, fence and admission

    @fact("get configmaps")
    def stored_policy(self) -> Policy | PolicyInvalidError | None:
        """Policy of the release, or why it is invalid; None without one.

        Before an installation, the shipped policy.
        """
        webhook = self.attempt(lambda: self.webhook) if not self.is_before else None
        image = webhook.option("enforcer-image") if webhook else ""
        try:
            if self.is_before:
                path = shipped_policy_path()
                return load_config_map({path.name: path.read_text()}, "", enforcer_image=image)
            found = read_policy(self.kube, self.namespace, enforcer_image=image)
        except PolicyInvalidError as error:
            if webhook and webhook.version != self.command_version:
                why = "this command and the release are of different versions, and read policies "
                raise FactUnavailable(f"{why}differently") from error
            return error
        return found

    @property
    def policy(self) -> Policy:
        """The policy; raises FactUnavailable if there is none, or it is invalid."""
        if isinstance(self.stored_policy, Policy):
            return self.stored_policy
        raise FactUnavailable("needs a policy that is valid")

    @fact("list admission policies")
    def fence_policies(self) -> frozenset[str]:
        """Names of our admission policies."""
        return self._fence("policies", lambda _, found: find_string(found, "metadata", "name"))

    @fact("list admission policies")
    def bound_policies(self) -> frozenset[str]:
        """Names of the admission policies that a binding of ours puts into effect."""

        def keep(kind: str, found: Json) -> str:
            denies = "Deny" in (find_object(found, "spec").get("validationActions") or ())
            return find_string(found, "spec", "policyName") if denies or kind == "mutating" else ""

        return self._fence("policybindings", keep)

    @fact("get configmaps")
    def fence_data(self) -> Mapping[str, str] | None:
        """Data of the ConfigMap that the admission policies read; None if it does not exist."""
        path = core_path("namespaces", self.namespace, "configmaps", CONFIG_MAP)
        found = self.kube.find(path)
        return None if found is None else find_object(found, "data")

    @fact("create pods")
    def tried_good(self) -> DryRunAnswer:
        """Dry run of a pod that requests 1Gi."""
        return self._try("asks", {GPU_MEMORY_ANNOTATION: "1Gi"})

    @fact("create pods")
    def tried_wrong(self) -> DryRunAnswer:
        """Dry run of a pod that requests 8GB, which is no quantity."""
        return self._try("wrong", {GPU_MEMORY_ANNOTATION: "8GB"})

    @fact("create pods")
    def tried_plain(self) -> DryRunAnswer:
        """Dry run of a pod that requests no VRAM."""
        return self._try("plain", {})

    # Pods and quotas

    @fact("list pods in all namespaces")
    def pods(self) -> list[ClusterPod]:
        """Pods that have a problem or whole GPUs, and HEALTHY_POD once for each that has none."""
        return self.kube.list_all(
            core_path("pods"), lambda raw: summarize(ClusterPod(raw)), fieldSelector=NOT_ENDED
        )

    @fact("list pods in all namespaces")
    def validated_namespaces(self) -> frozenset[str]:
        """Namespaces that are not exempt and in which NVIDIA's operator validates its plugin."""
        pods = self.kube.list_all(
            core_path("pods"),
            lambda pod: find_string(pod, "metadata", "namespace"),
            labelSelector="app=nvidia-device-plugin-validator",
        )
        scope = self.scope if pods else Scope()
        labels = {name: read_labels(self.kube, name, scope.labels).get(name) for name in {*pods}}
        return frozenset(name for name, has in labels.items() if not scope.exempts(name, has))

    @fact("list webhook configurations")
    def scope(self) -> Scope:
        """Namespaces that the webhook configuration covers."""
        return read_scope(self.kube) or Scope()

    @fact("list resourcequotas in all namespaces")
    def quotas(self) -> list[ClusterObject]:
        """ResourceQuotas that name a resource of vramwarden."""

        def keep(raw: Json) -> ClusterObject | None:
            names_ours = any(PREFIX in key for key in find_object(raw, "spec", "hard"))
            return ClusterObject(raw) if names_ours else None

        return self.kube.list_all(core_path("resourcequotas"), keep)

    # How it is read

    def lacks(self, read: Callable[[], object]) -> bool:
        """Return True if an object is known not to exist."""
        try:
            return read() is None
        except FactUnavailable:
            return False

    def _unless_unknown(self, read: Callable[[], T]) -> T | None:
        """Return the result of `read`; None if the API server does not serve the kind."""
        try:
            return read()
        except KubeError as error:
            if not error.not_found:
                raise
            return None

    def _workload(self, namespace: str, name: str) -> OwnWorkload | None:
        found = self.kube.find(f"{_APPS}/namespaces/{quote(namespace, safe='')}/{name}")
        return None if found is None else OwnWorkload(found)

    def _listed(self, resource: str, component: str) -> list[OwnWorkload]:
        selector = f"{_OURS},app.kubernetes.io/component={component}"
        path = f"{_APPS}/{resource}"
        read = partial(self.kube.list_all, path, OwnWorkload, labelSelector=selector)
        return asking(f"list {resource}", read)

    def _fence(self, kinds: str, name: Callable[[str, Json], str]) -> frozenset[str]:
        """Return names that are read from validating and mutating objects of our fence.

        Kubernetes serves the mutating ones from 1.36 on.
        """
        names: set[str] = set()
        for kind in ("validating", "mutating"):
            path = f"{_REGISTRATION}/{kind}admission{kinds}"
            list_them = partial(self.kube.list_all, path, partial(name, kind), labelSelector=_OURS)
            found = self._unless_unknown(list_them) if kind == "mutating" else list_them()
            names |= {*(found or ())}
        return frozenset(names - {""})

    def _try(self, name: str, annotations: Mapping[str, str]) -> DryRunAnswer:
        """Create a pod that each Pod Security level allows as a dry run."""
        container: Json = {
            "name": "main",
            "image": "example",
            "resources": {"limits": {"cpu": "100m", "memory": "64Mi"}},
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            },
        }
        security = {
            "runAsUser": 65532,
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        spec = {"securityContext": security, "containers": [container]}
        pod = {"metadata": {"annotations": {**annotations}}, "spec": spec}
        return self.try_create(self.test_namespace, f"vramwarden-check-{name}", pod)


def summarize(pod: ClusterPod) -> ClusterPod | None:
    """Return the facts of a pod that checks need; None for a pod that no check is about."""
    waits = pod.waits or pod.waits_for_limit_s is not None
    has_problem = pod.managed and not pod.ended and (pod.pull_failure or waits)
    if (pod.node and pod.whole) or has_problem:
        return pod.keep(*_OF_PODS)
    return HEALTHY_POD if pod.healthy else None


def _verdict_without_agent(
    node: Json, dra_drivers: tuple[str, ...] | None, age_s: float
) -> SharingVerdict:
    """Return the verdict that an agent would write if the node's GPUs were free.

    `dra_drivers`: DRA drivers that offer its GPUs; None if unknown.
    """
    shares = is_advertised(node)
    inputs = SharingInputs(
        dra_drivers=dra_drivers, age_s=age_s, is_advertised=shares, has_pods=None, in_use=()
    )
    return judge(node, inputs).verdict("", has_gpus=True)


def _changes_new_pods(configuration: Json) -> bool:
    """Return True if a configuration has a webhook for the creation of pods."""
    sets = (("apiGroups", {"", "*"}), ("resources", _PODS), ("operations", {"CREATE", "*"}))
    return any(
        all(matched & {*(rule.get(field) or ())} for field, matched in sets)
        for hook in as_objects(configuration.get("webhooks"))
        for rule in as_objects(hook.get("rules"))
    )


def _decoded(text: Any) -> bytes:
    """Decode base64; empty for anything else."""
    try:
        return b64decode(str(text or ""))
    except ValueError:
        return b""
