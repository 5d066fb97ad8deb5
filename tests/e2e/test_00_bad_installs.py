"""What goes wrong while it is installed is told to whoever installs it, and harms nobody else."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.cluster import SYSTEM, Release
from tests.e2e.conftest import namespace
from tests.e2e.pods import holding, pod
from tests.e2e.team import Team
from tests.support import charts

if TYPE_CHECKING:
    from collections.abc import Iterator

GROUP = "/apis/admissionregistration.k8s.io/v1"
NOBODY = "bystander"
INVALID = """\
apiVersion: vramwarden.io/v1alpha1
kind: VRAMPolicy
metadata: {name: broken}
spec:
  rules:
  - name: broken
    memory: {max: a lot}
"""


@pytest.fixture(scope="module")
def bystander(cluster: Any) -> Iterator[Team]:
    """Be a team that never heard of us."""
    cluster.api.create(namespace(NOBODY))
    team = Team(cluster, NOBODY)
    path = f"/api/v1/namespaces/{NOBODY}/serviceaccounts"
    team.wait("its service account", lambda: cluster.api.list(path))
    yield team
    cluster.api.delete(namespace(NOBODY))


@pytest.fixture
def bad(cluster: Any, tmp_path: Any) -> Iterator[Release]:
    """Have the namespace and a Helm; take away what is left of a bad release."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    cluster.api.create(namespace(SYSTEM, labels))
    release = Release(charts.Helm(tmp_path, cluster.kubeconfig), patience="20s")
    yield release
    team = Team(cluster, SYSTEM)
    if release.is_installed(failed=True):
        release.uninstall()
    names = {one["metadata"]["name"] for one in cluster.api.list("/api/v1/namespaces")}
    if SYSTEM in names:
        cluster.api.delete(namespace(SYSTEM))

    def gone() -> bool:
        found = cluster.api.list("/api/v1/namespaces")
        return SYSTEM not in {one["metadata"]["name"] for one in found}

    team.wait("the namespace gone", gone)


def starts_at_once(team: Team, name: str) -> None:
    """Check that a plain pod starts as if we had never been installed."""
    began = time.monotonic()
    team.create(pod(name, None, holding("forever")))
    team.wait_ready(name)
    print(f"{name}: a plain pod is ready after {time.monotonic() - began:.1f} s")
    team.delete_pod(name)


def test_images_that_nobody_can_pull(bad: Release, bystander: Team, values: dict[str, Any]) -> None:
    wrong = {**values, "image": {"repository": "localhost/there-is-no-such", "tag": "1"}}
    with pytest.raises(charts.HelmError) as told:
        bad.install(wrong)
    print(str(told.value).strip().splitlines()[-1])
    starts_at_once(bystander, "beside-wrong-images")


def test_no_image_names_at_all(bad: Release, bystander: Team) -> None:
    with pytest.raises(charts.HelmError, match=r"image\.repository"):
        bad.install()
    starts_at_once(bystander, "beside-nothing")


def test_a_policy_that_is_not_valid(
    bad: Release, bystander: Team, values: dict[str, Any], cluster: Any
) -> None:
    with pytest.raises(charts.HelmError) as told:
        bad.install({**values, "policies": {"files": {"broken.yaml": INVALID}}})
    print(str(told.value).strip().splitlines()[-1])
    starts_at_once(bystander, "beside-a-wrong-policy")


def test_a_namespace_that_is_deleted_by_hand(
    bad: Release, bystander: Team, values: dict[str, Any], cluster: Any
) -> None:
    bad.patience = "5m"
    bad.install(values)
    cluster.api.delete(namespace(SYSTEM))
    starts_at_once(bystander, "beside-a-deleted-namespace")

    def none_left() -> bool:
        kinds = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
        found = [one for kind in kinds for one in cluster.api.list(f"{GROUP}/{kind}")]
        return not [one for one in found if one["metadata"]["name"].startswith("vramwarden")]

    bystander.wait("the webhook configurations gone", none_left)
    made = bystander.create(pod("asks", "1Gi", ["true"], schedulerName="nobody"))
    assert "initContainers" not in made["spec"]  # nobody is left who could translate it
    bystander.delete_pod("asks")
