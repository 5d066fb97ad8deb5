"""Facts of a release of vramwarden: its workloads, webhooks and certificate."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote

from certs import Bundle, describe, has_all_authorities
from webhook.adapters.kube.certificates import KINDS
from webhook.adapters.kube.client import Kube, core_path
from webhook.adapters.kube.errors import KubeError
from webhook.core.documentation import Page
from webhook.core.pod.fields import Json, as_objects, find_object, find_string
from webhook.names import DEFAULT_NAMESPACE, DOCUMENTATION_URL_ENV
from webhook.tools.snapshot.admission_rules import SENTRY_NAMESPACE, own_configurations
from webhook.tools.snapshot.cluster import ClusterFacts, fact, read_with_right
from webhook.tools.snapshot.objects import ClusterObject, FactUnavailable
from webhook.tools.snapshot.pod import ClusterPod

T = TypeVar("T")

MUTATING: Final = "MutatingWebhookConfiguration"
VALIDATING: Final = "ValidatingWebhookConfiguration"
OWN_LABELS: Final = "app.kubernetes.io/name=vramwarden"
"""Label selector for all objects that the chart installs."""
_APPS: Final = "/apis/apps/v1"
_PUBLIC_FILES: Final = ("tls.crt", "ca.crt")
"""Files in the certificate's Secret that are not confidential."""
_PODS: Final = {"pods", "*", "*/*"}
_POD_FACTS: Final = ("name", "component", "node", "not_ready")


class OwnWebhook(NamedTuple):
    """A webhook in one of vramwarden's configurations."""

    kind: str
    """`MutatingWebhookConfiguration` or `ValidatingWebhookConfiguration`."""
    configuration: str
    """Name of the configuration."""
    name: str
    failure_policy: str
    namespace: str
    """Namespace of the Service; empty if the webhook is called by URL."""
    path: str
    """Path on the Service, or the whole URL."""
    ca_pem: bytes


class OwnWorkload(ClusterObject):
    """The webhook's Deployment, or a DaemonSet of vramwarden."""

    @property
    def desired(self) -> int:
        """Number of replicas, or of nodes that should have a pod."""
        replicas = self.part("spec").get("replicas")
        return replicas if type(replicas) is int else self._status_number("desiredNumberScheduled")

    @property
    def ready_pods(self) -> int:
        """Number of ready pods."""
        return self._status_number("readyReplicas") or self._status_number("numberReady")

    @property
    def version(self) -> str:
        """Version of the release that installed the workload."""
        return self.labels.get("app.kubernetes.io/version", "")

    @property
    def arguments(self) -> list[str]:
        """Arguments of the first container."""
        return [str(argument) for argument in self._containers()[0].get("args") or ()]

    @property
    def secret(self) -> str:
        """Name of the mounted Secret with a certificate; empty without one."""
        volumes = as_objects(self.part("spec", "template", "spec").get("volumes"))
        mounted = (
            find_object(volume, "secret") for volume in volumes if volume.get("name") != "key"
        )
        return next((find_string(secret, "secretName") for secret in mounted if secret), "")

    def option(self, name: str) -> str:
        """Return the value of the option `--name=VALUE`; empty if it is not set."""
        start = f"--{name}="
        found = [
            argument.removeprefix(start)
            for argument in self.arguments
            if argument.startswith(start)
        ]
        return found[-1] if found else ""

    def variable(self, name: str) -> str:
        """Return an environment variable of the first container, or "" if it is not set."""
        variables = as_objects(self._containers()[0].get("env"))
        return next(
            (
                find_string(variable, "value")
                for variable in variables
                if variable.get("name") == name
            ),
            "",
        )

    def _containers(self) -> list[Json]:
        return as_objects(self.part("spec", "template", "spec").get("containers")) or [{}]

    def _status_number(self, field: str) -> int:
        found = self.part("status").get(field)
        return found if type(found) is int else 0


class ServedCertificate(NamedTuple):
    """The webhook's serving certificate."""

    title: str
    """Name of the Secret, written `namespace/name`."""
    bundle: Bundle
    days_left: float | None
    """Days until expiry; None if the certificate is unreadable."""


class ReleaseFacts(ClusterFacts):
    """Facts of a release of vramwarden: workloads, webhooks and certificate."""

    def __init__(
        self, kube: Kube, command_version: str, *, is_before: bool, namespace: str | None
    ) -> None:
        """`is_before` if nothing is installed yet. `namespace` of the release; None to find it."""
        super().__init__(kube)
        self.command_version = command_version
        self.is_before = is_before
        self._given_namespace = namespace

    @property
    def _now(self) -> datetime:
        return datetime.fromtimestamp(self.now_s, UTC)

    @fact("read /version")
    def version(self) -> str:
        """Version of the API server, such as `v1.36.2`."""
        return find_string(self.kube.read("/version"), "gitVersion")

    @property
    def namespace(self) -> str:
        """Namespace of the release; the most likely one if the release is not found."""
        webhook = None if self.is_before else self.attempt(lambda: self.webhook)
        return webhook.namespace if webhook else self._likely_namespace

    @property
    def _likely_namespace(self) -> str:
        hooks = self.attempt(lambda: self.own_webhooks) or ()
        called = (hook.namespace for hook in hooks if hook.namespace)
        return self._given_namespace or next(called, DEFAULT_NAMESPACE)

    @fact("get deployments")
    def webhook(self) -> OwnWorkload | None:
        """The webhook's Deployment; None if it does not exist."""
        found = self._find_workload(self._likely_namespace, "deployments/vramwarden-webhook")
        if found is None and not self._given_namespace:
            everywhere = self.attempt(lambda: self._list_workloads("deployments", "webhook"))
            found = next(iter(everywhere or ()), None)
        return found

    def page(self, page: Page) -> str:
        """Return the name of a page for messages, prefixed by the release's `documentationURL`."""
        webhook = None if self.is_before else self.attempt(lambda: self.webhook)
        return page.url(webhook.variable(DOCUMENTATION_URL_ENV) if webhook else "")

    @fact("get daemonsets")
    def agent(self) -> OwnWorkload | None:
        """The agent's DaemonSet; None if it does not exist."""
        return self._find_workload(self.namespace, "daemonsets/vramwarden-agent")

    @fact("get daemonsets")
    def sentry(self) -> OwnWorkload | None:
        """The sentry's DaemonSet, in any namespace; None if it does not exist."""
        found = self.attempt(lambda: self._list_workloads("daemonsets", "sentry"))
        if found is not None:
            return next(iter(found), None)
        name = "daemonsets/vramwarden-sentry"
        return self._find_workload(SENTRY_NAMESPACE, name) or self._find_workload(
            self.namespace, name
        )

    @fact("get daemonsets")
    def limiter(self) -> OwnWorkload | None:
        """The limiter's DaemonSet; None if it does not exist."""
        return self._find_workload(self.sentry_namespace, "daemonsets/vramwarden-limiter")

    @property
    def sentry_namespace(self) -> str:
        """Namespace of the sentry; the chart's default without a sentry."""
        sentry = None if self.is_before else self.attempt(lambda: self.sentry)
        return sentry.namespace if sentry else SENTRY_NAMESPACE

    @fact("get namespaces")
    def namespace_of_sentry(self) -> ClusterObject | None:
        """Namespace object of the sentry; None if it does not exist."""
        found = self.kube.find(core_path("namespaces", self.sentry_namespace))
        return None if found is None else ClusterObject(found)

    @fact("list pods in our namespaces")
    def unready_pods(self) -> list[ClusterPod]:
        """Pods of vramwarden that are not ready."""

        def keep(raw: Json) -> ClusterPod | None:
            pod = ClusterPod(raw)
            return pod.project(*_POD_FACTS) if pod.not_ready else None

        found: list[ClusterPod] = []
        for namespace in sorted({self.namespace, self.sentry_namespace}):
            path = core_path("namespaces", namespace, "pods")
            found += self.kube.list_all(path, keep, labelSelector=OWN_LABELS)
        return found

    @fact("list webhook configurations")
    def own_webhooks(self) -> list[OwnWebhook]:
        """Webhooks of all vramwarden configurations."""
        return [
            OwnWebhook(
                kind=kind,
                configuration=find_string(configuration, "metadata", "name"),
                name=find_string(hook, "name"),
                failure_policy=str(hook.get("failurePolicy", "Fail")),
                namespace=find_string(called, "service", "namespace"),
                path=find_string(called, "service", "path") or find_string(called, "url"),
                ca_pem=_decode(called.get("caBundle")),
            )
            for kind in KINDS
            for configuration in own_configurations(self.kube, kind)
            for hook in as_objects(configuration.get("webhooks"))
            for called in [find_object(hook, "clientConfig")]
        ]

    @fact("list webhook configurations")
    def later_configurations(self) -> list[str]:
        """Names of other configurations that change new pods after vramwarden."""

        def keep(found: Json) -> str:
            return find_string(found, "metadata", "name") if _changes_new_pods(found) else ""

        own = [
            own_webhook.configuration
            for own_webhook in self.own_webhooks
            if own_webhook.kind == MUTATING
        ]
        found = self.kube.list_all(KINDS[MUTATING], keep)
        return sorted(name for name in found if own and name > max(own))

    @fact("get secrets")
    def certificate(self) -> ServedCertificate | None:
        """The webhook's serving certificate; None without a Secret."""
        webhook = self.webhook
        mounted = f"{webhook.namespace}/{webhook.secret}" if webhook and webhook.secret else ""
        title = (webhook.option("cert-secret") if webhook else "") or mounted
        namespace, _, name = title.partition("/")
        if not name:
            return None

        def keep(found: Json) -> dict[str, bytes]:
            data = find_object(found, "data")
            return {file: _decode(data[file]) for file in _PUBLIC_FILES if data.get(file)}

        files = self.kube.find_parsed(core_path("namespaces", namespace, "secrets", name), keep)
        bundle = Bundle.from_files(files or {})
        serving = describe(bundle, self._now).serving
        return ServedCertificate(title, bundle, serving.days_left if serving else None)

    def ca_days_left(self, hook: OwnWebhook) -> float | None:
        """Return the days until the newest CA in a caBundle expires; None if unreadable."""
        found = describe(Bundle(ca_pem=hook.ca_pem), self._now).authorities
        return max((authority.days_left for authority in found), default=None)

    def lacks_ca(self, hook: OwnWebhook) -> bool:
        """Return True if a webhook's caBundle is known to lack the certificate's CA."""
        served = self.attempt(lambda: self.certificate)
        if served is None or not served.bundle.ca_pem:
            return False
        return not has_all_authorities(hook.ca_pem, served.bundle)

    @fact("get secrets")
    def has_key(self) -> bool:
        """True if the Secret with the replicas' key exists."""
        path = core_path("namespaces", self.namespace, "secrets", "vramwarden-key")
        return self.kube.find_parsed(path, bool) is True

    def is_missing(self, read: Callable[[], object]) -> bool:
        """Return True if `read` shows that an object does not exist."""
        try:
            return read() is None
        except FactUnavailable:
            return False

    def _if_served(self, read: Callable[[], T]) -> T | None:
        """Return the result of `read`, or None if the API server does not serve the kind."""
        try:
            return read()
        except KubeError as error:
            if not error.not_found:
                raise
            return None

    def _find_workload(self, namespace: str, name: str) -> OwnWorkload | None:
        found = self.kube.find(f"{_APPS}/namespaces/{quote(namespace, safe='')}/{name}")
        return None if found is None else OwnWorkload(found)

    def _list_workloads(self, resource: str, component: str) -> list[OwnWorkload]:
        selector = f"{OWN_LABELS},app.kubernetes.io/component={component}"
        path = f"{_APPS}/{resource}"
        read = partial(self.kube.list_all, path, OwnWorkload, labelSelector=selector)
        return read_with_right(f"list {resource}", read)


def _changes_new_pods(configuration: Json) -> bool:
    """Return True if a configuration has a webhook for new pods."""
    sets = (("apiGroups", {"", "*"}), ("resources", _PODS), ("operations", {"CREATE", "*"}))
    return any(
        all(matched & {*(rule.get(field) or ())} for field, matched in sets)
        for hook in as_objects(configuration.get("webhooks"))
        for rule in as_objects(hook.get("rules"))
    )


def _decode(text: Any) -> bytes:
    """Decode base64; return b"" for any other value."""
    try:
        return b64decode(str(text or ""))
    except ValueError:
        return b""
