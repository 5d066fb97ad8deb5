"""What `vramwarden check` reads, read with the rights of who runs it.

Where a right is missing the fact is `Unreadable`, which says which. Nothing is written: pods are
created as a dry run alone. Lists come in pages, and little is kept of each object.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote

from webhook.adapters.kube.certificates import KINDS
from webhook.adapters.kube.client import KubeError, joined
from webhook.adapters.kube.fence import CONFIG_MAP
from webhook.adapters.kube.namespaces import read_labels
from webhook.adapters.kube.node_watch import SLICES
from webhook.core.kinds.nodes import read_gpu_node
from webhook.core.pod.fields import as_object, text_of
from webhook.core.pod.whole import read_slice
from webhook.names import (
    DEFAULT_NAMESPACE,
    GPU_MEMORY_ANNOTATION,
    GPU_NODES_PATH,
    NVIDIA_RUNTIME_CLASS,
)
from webhook.tools.check.installed import (
    read_authorities,
    read_certificate,
    read_policy,
    shipped_policy,
)
from webhook.tools.check.judge.facts import (
    DryRun,
    Facts,
    OurWebhook,
    OwnWorkload,
    changes_new_pods,
    judge_without_agent,
    of_interest,
    read_bytes,
    read_dry_run,
    read_namespace,
    read_own_webhooks,
    read_workload,
)
from webhook.tools.check.judge.findings import NEEDS_RIGHT
from webhook.tools.check.judge.webhook import MUTATING
from webhook.tools.snapshot.node import ClusterNode
from webhook.tools.snapshot.objects import Unreadable, known
from webhook.tools.snapshot.pod import ClusterPod
from webhook.tools.snapshot.reading import NOT_ENDED
from webhook.tools.snapshot.release import (
    POLICIES,
    SENTRY_NAMESPACE,
    Scope,
    own_configurations,
    read_scope,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from webhook.adapters.kube.client import Kube
    from webhook.core.kinds.nodes import NodeFigures

    Json = dict[str, Any]

T = TypeVar("T")

_REGISTRATION: Final = "admissionregistration.k8s.io"
_OURS: Final = "app.kubernetes.io/name=vramwarden"
_APPS: Final = "/apis/apps/v1"
_UUID: Final = "GPU-"
"""How NVML's names of GPUs begin: of a slice's attributes nothing else is compared."""
_CERTIFICATES: Final = ("tls.crt", "ca.crt")
"""Of a Secret, what is no secret."""
_OF_NODES: Final = (
    *("name", "ready", "brings_agent", "taints", "handlers", "share", "sharing", "gpus"),
    *("advertised", "vram_bytes", "said", "enforcement", "device_names", "driver", "has_sentry"),
)
_OF_OWN_PODS: Final = ("name", "component", "node", "not_ready")


def read_facts(
    kube: Kube, command: str, *, pre: bool, namespace: str | None, test_namespace: str
) -> Facts:
    """Read what the checks need; raises KubeError where the API server does not answer at all.

    Also where it ceases to: what follows would wait as long.
    """
    version = str(kube.read("/version").get("gitVersion") or "")
    reader = _FactsReader(kube, namespace, test_namespace)
    facts = Facts(
        url=kube.url,
        version=version,
        now_s=kube.now_s(),
        command=command,
        test_namespace=test_namespace,
    )
    facts = reader.cluster(facts, pre=pre)
    return reader.before(facts) if pre else reader.installed(facts)


class _FactsReader:
    def __init__(self, kube: Kube, namespace: str | None, test_namespace: str) -> None:
        self._kube = kube
        self._namespace = namespace
        self._test_namespace = test_namespace

    def cluster(self, facts: Facts, *, pre: bool) -> Facts:
        """Add what is asked before an installation and afterwards."""
        drivers = self._try("list resourceslices", self._drivers)
        nodes = self._try("list nodes", lambda: self._nodes(drivers, facts.now_s, pre=pre))
        hooks = self._try("list webhook configurations", self._webhooks)
        ours = () if isinstance(hooks, Unreadable) else hooks
        led_to = (hook.namespace for hook in ours if hook.namespace)
        return replace(
            facts,
            namespace=self._namespace or next(led_to, DEFAULT_NAMESPACE),
            groups=self._try("read /apis", self._groups),
            nodes=nodes if isinstance(nodes, Unreadable) else nodes[0],
            node_count=0 if isinstance(nodes, Unreadable) else nodes[1],
            drivers=drivers,
            runtime_class=self._try("get runtimeclasses", self._runtime_class),
            own_webhooks=hooks,
            later_configurations=self._try(
                "list webhook configurations", lambda: self._later_configurations(known(hooks))
            ),
        )

    def before(self, facts: Facts) -> Facts:
        """Add what an installation needs."""
        return replace(
            facts,
            sentry_namespace=self._namespace_facts(SENTRY_NAMESPACE),
            webhook=None,
            policy=shipped_policy(facts),
        )

    def installed(self, facts: Facts) -> Facts:
        """Add what is installed, and what becomes of pods."""
        webhook = self._try("get deployments", lambda: self._webhook(facts.namespace))
        if isinstance(webhook, OwnWorkload):
            facts = replace(facts, namespace=webhook.namespace)
        namespace = facts.namespace
        agent = self._try(
            "get daemonsets", lambda: self._workload(namespace, "daemonsets/vramwarden-agent")
        )
        sentry = self._try("get daemonsets", lambda: self._sentry(namespace))
        of_sentry = sentry.namespace if isinstance(sentry, OwnWorkload) else SENTRY_NAMESPACE
        facts = replace(
            facts,
            webhook=webhook,
            agent=agent,
            sentry=sentry,
            limiter=self._try(
                "get daemonsets",
                lambda: self._workload(of_sentry, "daemonsets/vramwarden-limiter"),
            ),
            sentry_namespace=self._namespace_facts(of_sentry),
            own_pods=self._try(
                "list pods in our namespaces", lambda: self._own_pods({namespace, of_sentry})
            ),
        )
        if not webhook:
            return replace(facts, policy=shipped_policy(facts))
        fences = self._try("list admission policies", lambda: self._fence("policies"))
        facts = replace(
            facts,
            asks=self._dry_run("asks", "1Gi"),
            wrong=self._dry_run("wrong", "8GB"),
            plain=self._dry_run("plain"),
            fences=fences,
            fence_bindings=self._try(
                "list admission policies", lambda: self._fence("policybindings")
            ),
            fence_rules=self._try("get configmaps", lambda: self._data(namespace, CONFIG_MAP)),
            has_key=self._try("get secrets", lambda: self._has_key(namespace)),
            gpu_nodes=self._try("list gpunodes", self._gpu_nodes),
            pods=self._try("list pods in all namespaces", self._pods),
        )
        files = self._try("get configmaps", lambda: self._data(namespace, POLICIES))
        secret = self._try("get secrets", lambda: self._secret(known(webhook)))
        validators = self._try("list pods in all namespaces", self._validators)
        facts = replace(facts, validators=validators)
        return replace(
            facts,
            policy=read_policy(files, facts),
            authorities=read_authorities(facts.own_webhooks, secret, facts.now_s),
            certificate=read_certificate(secret, facts.now_s),
        )

    def _try(self, what: str, read: Callable[[], T]) -> T | Unreadable:
        """Return what is read, or why it cannot be; raises KubeError without any answer."""
        try:
            return read()
        except Unreadable as error:
            return error
        except KubeError as error:
            if not error.code:
                raise
            why = f"{NEEDS_RIGHT}{what}" if error.forbidden else f"{what}: {error}"
            return Unreadable(why)

    def _groups(self) -> frozenset[str]:
        found = self._kube.read("/apis").get("groups") or ()
        return frozenset(str(one.get("name")) for one in found)

    def _nodes(
        self, drivers: Mapping[str, Collection[str]] | Unreadable, now_s: float, *, pre: bool
    ) -> tuple[tuple[ClusterNode, ...], int]:
        def keep(raw: Json) -> ClusterNode | None:
            of_node: tuple[str, ...] | None = None
            if not isinstance(drivers, Unreadable):
                of_node = tuple(sorted(drivers.get(text_of(raw, "metadata", "name"), ())))
            node = ClusterNode(raw, claimed_by=of_node or ())
            if not node.shows_gpus:
                return None
            if pre and node.sharing is None:
                age_s = now_s - (node.created_s or 0.0)
                node = ClusterNode(raw, sharing=judge_without_agent(raw, of_node, age_s))
            return node.keep(*_OF_NODES)

        found, _ = self._kube.list_all(joined("nodes"), keep)
        return tuple(node for node in found if node is not None), len(found)

    def _drivers(self) -> Mapping[str, Collection[str]]:
        """Return the DRA drivers whose ResourceSlices name a GPU, by node."""

        def keep(found: Json) -> tuple[str, str]:
            one, node = read_slice(found), as_object(found.get("spec")).get("nodeName")
            names_gpu = any(text.startswith(_UUID) for text in one.texts)
            return str(node), one.driver if names_gpu else ""

        drivers: dict[str, set[str]] = {}
        try:
            found, _ = self._kube.list_all(SLICES, keep)
        except KubeError as error:
            if not error.not_found:
                raise
            why = "needs resource.k8s.io/v1, which Kubernetes serves from 1.34 on"
            raise Unreadable(why) from error
        for node, driver in found:
            if driver:
                drivers.setdefault(node, set()).add(driver)
        return drivers

    def _runtime_class(self) -> str:
        path = f"/apis/node.k8s.io/v1/runtimeclasses/{NVIDIA_RUNTIME_CLASS}"
        return str((self._kube.find(path) or {}).get("handler") or "")

    def _webhooks(self) -> tuple[OurWebhook, ...]:
        return tuple(
            hook
            for kind in KINDS
            for found in own_configurations(self._kube, kind)
            for hook in read_own_webhooks(kind, found)
        )

    def _later_configurations(self, ours: Sequence[OurWebhook]) -> tuple[str, ...]:
        def keep(found: Json) -> str:
            return text_of(found, "metadata", "name") if changes_new_pods(found) else ""

        own = [one.configuration for one in ours if one.kind == MUTATING]
        found, _ = self._kube.list_all(KINDS[MUTATING], keep)
        return tuple(sorted(name for name in found if own and name > max(own)))

    def _namespace_facts(self, name: str) -> Any:
        path = joined("namespaces", name)
        return self._try("get namespaces", lambda: read_namespace(name, self._kube.find(path)))

    def _webhook(self, namespace: str) -> OwnWorkload | None:
        found = self._workload(namespace, "deployments/vramwarden-webhook")
        if found is None and not self._namespace:
            selector = f"{_OURS},app.kubernetes.io/component=webhook"
            everywhere = self._try(
                "list deployments", lambda: self._listed("deployments", selector)
            )
            return next(iter(everywhere), None) if isinstance(everywhere, list) else None
        return found

    def _workload(self, namespace: str, name: str) -> OwnWorkload | None:
        found = self._kube.find(f"{_APPS}/namespaces/{quote(namespace, safe='')}/{name}")
        return None if found is None else read_workload(found)

    def _sentry(self, namespace: str) -> OwnWorkload | None:
        """Return the sentry, which may be in any namespace."""
        selector = f"{_OURS},app.kubernetes.io/component=sentry"
        everywhere = self._try("list daemonsets", lambda: self._listed("daemonsets", selector))
        if isinstance(everywhere, list):
            return next(iter(everywhere), None)
        name = "daemonsets/vramwarden-sentry"
        return self._workload(SENTRY_NAMESPACE, name) or self._workload(namespace, name)

    def _listed(self, resource: str, selector: str) -> list[OwnWorkload]:
        path = f"{_APPS}/{resource}"
        return self._kube.list_all(path, read_workload, labelSelector=selector)[0]

    def _own_pods(self, namespaces: set[str]) -> tuple[ClusterPod, ...]:
        def keep(raw: Json) -> ClusterPod | None:
            pod = ClusterPod(raw)
            return pod.keep(*_OF_OWN_PODS) if pod.not_ready else None

        found: list[ClusterPod | None] = []
        for namespace in sorted(namespaces):
            path = joined("namespaces", namespace, "pods")
            found += self._kube.list_all(path, keep, labelSelector=_OURS)[0]
        return tuple(pod for pod in found if pod is not None)

    def _data(self, namespace: str, name: str) -> dict[str, str] | None:
        found = self._kube.find(joined("namespaces", namespace, "configmaps", name))
        return None if found is None else dict(found.get("data") or {})

    def _secret(self, webhook: OwnWorkload) -> tuple[str, Mapping[str, bytes]] | None:
        """Return the certificates of the Secret that a release uses."""
        shared = webhook.option("cert-secret")
        title = shared or (f"{webhook.namespace}/{webhook.secret}" if webhook.secret else "")
        namespace, _, name = title.partition("/")
        if not name:
            return None

        def keep(found: Json) -> dict[str, bytes]:
            data = found.get("data") or {}
            return {key: read_bytes(data.get(key)) for key in _CERTIFICATES if data.get(key)}

        files = self._kube.find_kept(joined("namespaces", namespace, "secrets", name), keep)
        return title, files or {}

    def _has_key(self, namespace: str) -> bool:
        path = joined("namespaces", namespace, "secrets", "vramwarden-key")
        return self._kube.find_kept(path, bool) is True

    def _fence(self, what: str) -> frozenset[str]:
        """Return the names of our admission policies, or of those that a binding makes deny.

        Kubernetes serves mutating ones from 1.36 on.
        """
        names: list[str] = []

        def keep(kind: str, found: Json) -> None:
            spec = found.get("spec") or {}
            if what == "policies":
                names.append(str(found["metadata"]["name"]))
            elif kind == "mutating" or "Deny" in (spec.get("validationActions") or ()):
                names.append(str(spec.get("policyName")))

        for kind in ("validating", "mutating"):
            path = f"/apis/{_REGISTRATION}/v1/{kind}admission{what}"
            try:
                self._kube.list_all(path, partial(keep, kind), labelSelector=_OURS)
            except KubeError as error:
                if kind == "validating" or not error.not_found:
                    raise
        return frozenset(names)

    def _gpu_nodes(self) -> Mapping[str, NodeFigures] | None:
        def keep(raw: Json) -> NodeFigures | None:
            figures = read_gpu_node(raw)
            return figures and replace(figures, gpus=())

        try:
            found, _ = self._kube.list_all(GPU_NODES_PATH, keep)
        except KubeError as error:
            if not error.not_found:
                raise
            return None
        return {one.name: one for one in found if one}

    def _pods(self) -> tuple[ClusterPod, ...]:
        found, _ = self._kube.list_all(
            joined("pods"), lambda raw: of_interest(ClusterPod(raw)), fieldSelector=NOT_ENDED
        )
        return tuple(pod for pod in found if pod is not None)

    def _validators(self) -> frozenset[str]:
        found = self._try("list webhook configurations", lambda: read_scope(self._kube) or Scope())
        scope = known(found)
        pods, _ = self._kube.list_all(
            joined("pods"),
            lambda pod: str(pod["metadata"]["namespace"]),
            labelSelector="app=nvidia-device-plugin-validator",
        )
        labels = {name: read_labels(self._kube, name, scope.labels).get(name) for name in {*pods}}
        return frozenset(name for name, has in labels.items() if not scope.exempts(name, has))

    def _dry_run(self, name: str, memory: str = "") -> DryRun | Unreadable:
        path = joined("namespaces", self._test_namespace, "pods")
        try:
            created, _ = self._kube.try_create(path, _pod(name, memory))
        except KubeError as error:
            if not error.code:
                raise
            if error.lacks_right:
                return Unreadable(f"{NEEDS_RIGHT}create pods in {self._test_namespace}")
            return DryRun(created=False, answer=error.said or str(error))
        return read_dry_run(created)


def _pod(name: str, memory: str) -> Json:
    """Return a pod that any Pod Security level allows."""
    container: Json = {
        "name": "main",
        "image": "example",
        "resources": {"limits": {"cpu": "100m", "memory": "64Mi"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    spec: Json = {
        "securityContext": {
            "runAsUser": 65532,
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
    }
    annotations = {GPU_MEMORY_ANNOTATION: memory} if memory else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"vramwarden-check-{name}", "annotations": annotations},
        "spec": spec,
    }
