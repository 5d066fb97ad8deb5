"""vramwarden's kinds, and the webhook's account with its permissions, from the chart."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.chart.recorded_reviews import denial
from tests.support.api_client import account_kubeconfig
from tests.support.charts import NAMESPACE, one
from tests.support.control_planes import Api, ControlPlane, wait_until

Json = dict[str, Any]

WEBHOOK = "vramwarden-webhook"
RIGHTS = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")


@contextlib.contextmanager
def kinds_known(api: Api, objects: list[Json]) -> Iterator[list[Json]]:
    """Create the kinds among rendered objects until the block ends; wait until they are served."""
    kinds = [thing for thing in objects if thing["kind"] == "CustomResourceDefinition"]
    for kind in kinds:
        api.apply(kind)
    for kind in kinds:
        wait_until(f"{kind['metadata']['name']} is known", lambda kind=kind: is_known(api, kind))
    yield kinds
    forget(api, kinds)


def forget(api: Api, kinds: list[Json]) -> None:
    """Delete kinds; return when the API server serves none of them."""
    for kind in kinds:
        api.delete(kind)
    wait_until("the kinds are gone", lambda: not any(is_known(api, kind) for kind in kinds))


def is_known(api: Api, kind: Json) -> bool:
    plural, _, group = kind["metadata"]["name"].partition(".")
    (version,) = (version["name"] for version in kind["spec"]["versions"])
    return not denial(lambda: api.request("GET", f"/apis/{group}/{version}/{plural}"))


@contextlib.contextmanager
def webhook_account(
    control_plane: ControlPlane, objects: list[Json], folder: Path
) -> Iterator[Path]:
    """Create the webhook's account and permissions; yield a kubeconfig with its token."""
    api = control_plane.api
    api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    rights = [one(objects, kind, WEBHOOK) for kind in RIGHTS]
    for each in rights:
        api.apply(each)
    written = folder / "kubeconfig"
    yield account_kubeconfig(api, control_plane.kubeconfig, NAMESPACE, WEBHOOK, written)
    for each in rights:
        api.delete(each)
