"""Facts that `check` needs of a cluster, before or after the installation of vramwarden.

A cluster may have 5,000 nodes and 20,000 pods. Lists are read page by page, keeping few facts of
each object.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from webhook.adapters.kube.client import Kube, core_path
from webhook.adapters.kube.namespaces import read_labels
from webhook.adapters.kube.node_objects import SLICES
from webhook.adapters.kube.release_objects import CONFIG_MAP
from webhook.adapters.policy.files import PolicyInvalidError, load_config_map, shipped_policy_path
from webhook.core.kinds.nodes import NodeFigures, read_gpu_node
from webhook.core.node.node_fields import SharingVerdict, is_advertised
from webhook.core.node.sharing import SharingInputs, judge
from webhook.core.pod.fields import Json, as_object, find_object, find_string
from webhook.core.pod.whole_gpus import read_resource_slice
from webhook.core.policy.model import Policy
from webhook.names import (
    GPU_MEMORY_ANNOTATION,
    GPU_NODES_PATH,
    MANAGED_LABEL,
    NVIDIA_RUNTIME_CLASS,
    PREFIX,
)
from webhook.tools.snapshot.admission_rules import Scope, read_policy, read_scope
from webhook.tools.snapshot.cluster import NOT_ENDED, DryRunAnswer, fact
from webhook.tools.snapshot.node import ClusterNode
from webhook.tools.snapshot.objects import ClusterObject, FactUnavailable
from webhook.tools.snapshot.pod import ClusterPod
from webhook.tools.snapshot.release import OWN_LABELS, ReleaseFacts

HEALTHY_POD: Final = ClusterPod({"metadata": {"labels": {MANAGED_LABEL: "true"}}}, healthy=True)
"""Placeholder for each managed pod that has no problem."""
_REGISTRATION: Final = "/apis/admissionregistration.k8s.io/v1"
_UUID: Final = "GPU-"
"""Prefix of NVML's GPU UUIDs."""
_NODE_FACTS: Final = (
    *("name", "ready", "selects_agent", "taints", "runtime_handlers", "share_label", "sharing"),
    *("gpus", "advertised", "vram_bytes", "is_configured", "enforcement", "device_names"),
    *("driver", "has_sentry"),
)
_POD_FACTS: Final = (
    *("name", "namespace", "node", "managed", "pull_failure", "waiting_reason", "healthy"),
    *("waits_for_limit_s", "has_whole_gpus"),
)


class Installation(ReleaseFacts):
    """Facts of an installation, or of a cluster before the installation (`is_before`)."""

    def __init__(
        self,
        kube: Kube,
        command_version: str,
        *,
        is_before: bool = False,
        namespace: str | None = None,
        test_namespace: str = "default",
    ) -> None:
        """`test_namespace` is used for dry runs. `namespace` is the release's; None to find it."""
        super().__init__(kube, command_version, is_before=is_before, namespace=namespace)
        self.test_namespace = test_namespace

    @fact("list nodes")
    def _nodes(self) -> list[ClusterNode | None]:
        """All nodes, with None for each node without GPUs."""
        drivers = self.attempt(lambda: self.dra_drivers)

        def keep(raw: Json) -> ClusterNode | None:
            dra_drivers = None
            if drivers is not None:
                dra_drivers = tuple(sorted(drivers.get(find_string(raw, "metadata", "name"), ())))
            node = ClusterNode(raw, dra_drivers=dra_drivers or ())
            if not node.has_gpu_signs:
                return None
            if self.is_before and node.sharing is None:
                age_s = self.now_s - (node.created_s or 0.0)
                node = ClusterNode(raw, sharing=_verdict_without_agent(raw, dra_drivers, age_s))
            return node.project(*_NODE_FACTS)

        return self.kube.list_versioned(core_path("nodes"), keep)[0]

    @property
    def nodes(self) -> list[ClusterNode]:
        """Nodes that seem to have GPUs."""
        return [node for node in self._nodes if node is not None]

    @property
    def node_count(self) -> int:
        """Number of nodes, with and without GPUs."""
        return len(self._nodes)

    @fact("list resourceslices")
    def dra_drivers(self) -> Mapping[str, Collection[str]]:
        """DRA drivers whose ResourceSlices name a GPU, keyed by node."""

        def keep(found: Json) -> tuple[str, str]:
            resource_slice = read_resource_slice(found)
            node = as_object(found.get("spec")).get("nodeName")
            names_gpu = any(text.startswith(_UUID) for text in resource_slice.texts)
            return str(node), resource_slice.driver if names_gpu else ""

        drivers: dict[str, set[str]] = {}
        why = "needs resource.k8s.io/v1, which Kubernetes serves from 1.34 on"
        found = self._if_served(lambda: self.kube.list_all(SLICES, keep))
        if found is None:
            raise FactUnavailable(why)
        for node, driver in found:
            if driver:
                drivers.setdefault(node, set()).add(driver)
        return drivers

    @fact("get runtimeclasses")
    def runtime_handler(self) -> str:
        """Handler of the RuntimeClass `nvidia`; empty if the class does not exist."""
        path = f"/apis/node.k8s.io/v1/runtimeclasses/{NVIDIA_RUNTIME_CLASS}"
        return str((self.kube.find(path) or {}).get("handler") or "")

    @fact("list gpunodes")
    def gpu_nodes(self) -> Mapping[str, NodeFigures] | None:
        """GPUNodes keyed by node, without their GPUs; None if the kind is not served."""

        def keep(raw: Json) -> NodeFigures | None:
            figures = read_gpu_node(raw)
            return figures and replace(figures, gpus=())

        found = self._if_served(lambda: self.kube.list_all(GPU_NODES_PATH, keep))
        return None if found is None else {figures.name: figures for figures in found}

    # Release

    # Policy, fence and admission

    @fact("get configmaps")
    def stored_policy(self) -> Policy | PolicyInvalidError | None:
        """Policy of the release, PolicyInvalidError if it is invalid, or None if it does not exist.

        Before the installation, this is the shipped policy.
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
        """Policy of the release. Raises FactUnavailable if it is missing or invalid."""
        if isinstance(self.stored_policy, Policy):
            return self.stored_policy
        raise FactUnavailable("needs a policy that is valid")

    @fact("list admission policies")
    def fence_policies(self) -> frozenset[str]:
        """Names of vramwarden's admission policies."""
        return self._fence("policies", lambda _, found: find_string(found, "metadata", "name"))

    @fact("list admission policies")
    def bound_policies(self) -> frozenset[str]:
        """Names of admission policies that vramwarden binds with the action Deny."""

        def keep(kind: str, found: Json) -> str:
            denies = "Deny" in (find_object(found, "spec").get("validationActions") or ())
            return find_string(found, "spec", "policyName") if denies or kind == "mutating" else ""

        return self._fence("policybindings", keep)

    @fact("get configmaps")
    def fence_data(self) -> Mapping[str, str] | None:
        """Data of the ConfigMap for the admission policies; None if the ConfigMap is missing."""
        path = core_path("namespaces", self.namespace, "configmaps", CONFIG_MAP)
        found = self.kube.find(path)
        return None if found is None else find_object(found, "data")

    @fact("create pods")
    def good_pod_answer(self) -> DryRunAnswer:
        """Dry run of a pod that requests 1Gi."""
        return self._dry_run("asks", {GPU_MEMORY_ANNOTATION: "1Gi"})

    @fact("create pods")
    def wrong_pod_answer(self) -> DryRunAnswer:
        """Dry run of a pod that requests 8GB, which is no quantity."""
        return self._dry_run("wrong", {GPU_MEMORY_ANNOTATION: "8GB"})

    @fact("create pods")
    def plain_pod_answer(self) -> DryRunAnswer:
        """Dry run of a pod that requests no VRAM."""
        return self._dry_run("plain", {})

    # Pods and quotas

    @fact("list pods in all namespaces")
    def pods(self) -> list[ClusterPod]:
        """Pods that have a problem or whole GPUs; `HEALTHY_POD` for each healthy pod."""
        return self.kube.list_all(
            core_path("pods"), lambda raw: summarize(ClusterPod(raw)), fieldSelector=NOT_ENDED
        )

    @fact("list pods in all namespaces")
    def validated_namespaces(self) -> frozenset[str]:
        """Namespaces that have validator pods of NVIDIA's GPU operator and are not exempt."""
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
        """Namespaces for which the webhook configuration applies."""
        return read_scope(self.kube) or Scope()

    @fact("list resourcequotas in all namespaces")
    def quotas(self) -> list[ClusterObject]:
        """ResourceQuotas that limit a vramwarden resource."""

        def keep(raw: Json) -> ClusterObject | None:
            names_ours = any(PREFIX in key for key in find_object(raw, "spec", "hard"))
            return ClusterObject(raw) if names_ours else None

        return self.kube.list_all(core_path("resourcequotas"), keep)

    # Requests

    def _fence(self, kinds: str, name: Callable[[str, Json], str]) -> frozenset[str]:
        """Return the results of `name` for all validating and mutating objects of the fence.

        Kubernetes serves the mutating kinds from version 1.36 on.
        """
        names: set[str] = set()
        for kind in ("validating", "mutating"):
            path = f"{_REGISTRATION}/{kind}admission{kinds}"
            list_them = partial(
                self.kube.list_all, path, partial(name, kind), labelSelector=OWN_LABELS
            )
            found = self._if_served(list_them) if kind == "mutating" else list_them()
            names |= {*(found or ())}
        return frozenset(names - {""})

    def _dry_run(self, name: str, annotations: Mapping[str, str]) -> DryRunAnswer:
        """Create a pod that every Pod Security level allows, as a dry run."""
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
        return self.dry_run_create(self.test_namespace, f"vramwarden-check-{name}", pod)


def summarize(pod: ClusterPod) -> ClusterPod | None:
    """Return the facts of a pod that checks need, or None if no check needs the pod."""
    waits = pod.waiting_reason or pod.waits_for_limit_s is not None
    has_problem = pod.managed and not pod.has_ended and (pod.pull_failure or waits)
    if (pod.node and pod.has_whole_gpus) or has_problem:
        return pod.project(*_POD_FACTS)
    return HEALTHY_POD if pod.healthy else None


def _verdict_without_agent(
    node: Json, dra_drivers: tuple[str, ...] | None, age_s: float
) -> SharingVerdict:
    """Return the verdict of an agent if nothing used the node's GPUs.

    `dra_drivers` offer the node's GPUs; None if unknown.
    """
    shares = is_advertised(node)
    inputs = SharingInputs(
        dra_drivers=dra_drivers, age_s=age_s, is_advertised=shares, has_pods=None, in_use=()
    )
    return judge(node, inputs).verdict("", has_gpus=True)
