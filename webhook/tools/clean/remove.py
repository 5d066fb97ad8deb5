"""Find and remove what an uninstalled release left in a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, NamedTuple
from urllib.parse import quote

from webhook.adapters.kube.client import Kube, core_path
from webhook.adapters.kube.errors import KubeError
from webhook.core.formatting import format_count, join_names
from webhook.core.node.node_fields import node_labels
from webhook.core.node.patches import NodeLeftovers, find_leftovers
from webhook.core.pod.fields import Json, find_string
from webhook.names import NODE_SHARE_LABEL
from webhook.options import ExitCode
from webhook.tools.snapshot.cluster import NOT_ENDED, read_with_right
from webhook.tools.snapshot.objects import FactUnavailable

_OURS: Final = "app.kubernetes.io/name=vramwarden"
_REGISTRATION: Final = "/apis/admissionregistration.k8s.io/v1"
_RBAC: Final = "/apis/rbac.authorization.k8s.io/v1"
_WORKLOADS: Final = ("/apis/apps/v1/deployments", "/apis/apps/v1/daemonsets")
_LEFT_OBJECTS: Final = (
    f"{_REGISTRATION}/mutatingwebhookconfigurations",
    f"{_REGISTRATION}/validatingwebhookconfigurations",
    f"{_REGISTRATION}/validatingadmissionpolicybindings",
    f"{_REGISTRATION}/validatingadmissionpolicies",
    f"{_REGISTRATION}/mutatingadmissionpolicybindings",
    f"{_REGISTRATION}/mutatingadmissionpolicies",
    f"{_RBAC}/clusterrolebindings",
    f"{_RBAC}/clusterroles",
    f"{_RBAC}/rolebindings",
    f"{_RBAC}/roles",
)
"""Collections of objects that a release creates outside its namespaces."""
_DEFINITIONS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


class StoredName(NamedTuple):
    """Namespace, name and UID of a stored object."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    def path(self, collection: str) -> str:
        """Return the object's API path, given the collection's path for all namespaces."""
        start, _, kind = collection.rpartition("/")
        parts = ("namespaces", self.namespace, kind) if self.namespace else (kind,)
        return "/".join((start, *(quote(part, safe="") for part in (*parts, self.name))))


def why_installed(kube: Kube) -> str:
    """Return why nothing can be removed yet, or "" if vramwarden is uninstalled.

    While agents run, they would restore what is removed.
    """
    found = [our for path in _WORKLOADS for our in _list_ours(kube, path)]
    if found:
        release = f"`helm uninstall vramwarden --namespace {found[0].namespace}`"
        return (
            f"vramwarden is still installed ({join_names(map(str, found))}), and its agents "
            f"would write it all again; uninstall it first: {release}"
        )
    if pods := _list_ours(kube, core_path("pods"), fieldSelector=NOT_ENDED):
        return (
            f"pods of vramwarden still end ({join_names(map(str, pods))}); wait until they are gone"
        )
    return ""


class Cleaner:
    """Removes what a release left, or with `dry_run` only reports it."""

    def __init__(
        self,
        kube: Kube,
        report: Callable[[str, ExitCode], None],
        *,
        dry_run: bool,
        everything: bool,
    ) -> None:
        """`report` is called with a line per node and kind. `everything` is the option --all."""
        self._kube = kube
        self._report = report
        self._dry_run = dry_run
        self._everything = everything
        self._kept: list[str] = []

    def run(self) -> None:
        """Clean all kinds and nodes. After a failure, continue with the next one.

        Raises KubeError if the API server does not respond or does not know the user.
        """
        for path in _LEFT_OBJECTS:
            self._remove_objects(path, self._find(path))
        self._clean_nodes()
        definitions = self._find(_DEFINITIONS)
        if self._everything:
            self._remove_objects(_DEFINITIONS, definitions)
        elif definitions:
            self._kept.append(f"{join_names(map(str, definitions))} with their objects")
        if self._kept:
            kept = " and ".join(self._kept)
            text = f"kept for another installation: {kept}; --all removes this, too"
            self._report(text, ExitCode.DONE)

    def _clean_nodes(self) -> None:
        kept = () if self._everything else (NODE_SHARE_LABEL,)
        shared = set()

        def keep(node: Json) -> tuple[str, NodeLeftovers] | None:
            name = find_string(node, "metadata", "name")
            if any(item in node_labels(node) for item in kept):
                shared.add(name)
            found = find_leftovers(node, kept)
            return (name, found) if found else None

        try:
            nodes = read_with_right(
                "list nodes", lambda: self._kube.list_all(core_path("nodes"), keep)
            )
        except FactUnavailable as error:
            self._report(f"nodes: {error.why}", ExitCode.UNANSWERED)
            return
        for name, found in nodes:
            if self._is_done(f"node {name}", partial(self._patch, name, found)):
                self._report_removed(f"node {name}", str(found))
        if shared:
            self._kept.append(
                f"the label {NODE_SHARE_LABEL} of {format_count(len(shared), 'node')}"
            )

    def _patch(self, name: str, found: NodeLeftovers) -> None:
        for patch, is_status in found.patches().in_order():
            self._kube.patch_node(name, patch, status=is_status)

    def _find(self, path: str) -> list[StoredName]:
        try:
            return _list_ours(self._kube, path)
        except FactUnavailable as error:
            self._report(f"{_kind(path)}: {error.why}", ExitCode.UNANSWERED)
            return []

    def _remove_objects(self, path: str, objects: Iterable[StoredName]) -> None:
        kind, removed = _kind(path), []
        for item in objects:
            delete = partial(self._kube.delete, item.path(path), uid=item.uid)
            if self._is_done(f"{kind} {item}", delete):
                removed.append(str(item))
        if removed:
            self._report_removed(kind, ", ".join(removed))

    def _is_done(self, what: str, remove: Callable[[], None]) -> bool:
        """Call `remove`. Return True if the object is gone, or would be without `dry_run`."""
        try:
            if not self._dry_run:
                remove()
        except KubeError as error:
            if not error.code or error.unauthorized:
                raise
            if not error.not_found:
                self._report(f"{what}: not removed: {error}", ExitCode.UNANSWERED)
            return error.not_found
        return True

    def _report_removed(self, where: str, what: str) -> None:
        verb = "would remove" if self._dry_run else "removed"
        self._report(f"{where}: {verb} {what}", ExitCode.DONE)


def _list_ours(kube: Kube, path: str, **query: str) -> list[StoredName]:
    """Return a collection's objects with vramwarden's label; none if the kind is not served."""

    def keep(found: Json) -> StoredName:
        fields = (find_string(found, "metadata", key) for key in ("namespace", "name", "uid"))
        return StoredName(*fields)

    def read() -> list[StoredName]:
        try:
            return kube.list_all(path, keep, labelSelector=_OURS, **query)
        except KubeError as error:
            if error.not_found:
                return []
            raise

    return read_with_right(f"list {_kind(path)}", read)


def _kind(path: str) -> str:
    return path.rpartition("/")[2]
