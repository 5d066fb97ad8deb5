"""The profiles of `kubectl debug` that policies/pods.md promises, and those that it warns of."""

from __future__ import annotations

import re

import pytest

from tests.support.control_planes import find_binary
from tests.support.paths import ROOT
from tests.support.pods import a_pod
from webhook.names import GPU_ANNOTATION

PODS = (ROOT / "policies" / "pods.md").read_text()


def profiles(answer: str) -> list[str]:
    """Return the profiles of the row that ends so."""
    row = re.search(rf"^\| (.+) \| {answer}", PODS, re.MULTILINE)
    return re.findall(r"`(\w+)`", row[1])


@pytest.fixture
def debug(control_plane, team):
    """Return a function that debugs a pod with VRAM, and returns what kubectl says."""
    if not find_binary("kubectl"):
        pytest.skip("needs kubectl")
    pod = team.accepts(a_pod("8Gi"))["metadata"]["name"]

    def debugged(*options: str) -> str:
        command = ("debug", pod, f"--namespace={team.namespace}", "--image=busybox", *options)
        done = control_plane.kubectl(*command)
        return done.stderr if done.returncode else ""

    return debugged


@pytest.mark.parametrize("profile", profiles("works"))
def test_profiles_that_work_do(debug, profile):
    assert debug(f"--profile={profile}") == ""


@pytest.mark.parametrize("profile", profiles("denied"))
def test_profiles_that_are_denied_are(debug, profile):
    assert "EphemeralContainer: " in debug(f"--profile={profile}")


def test_without_a_profile_the_default_is_denied_as_documented(debug):
    assert "`general` (the default)" in PODS
    assert "EphemeralContainer: " in debug()


def test_the_sidecar_cannot_be_the_target(debug):
    assert "EphemeralContainer: " in debug("--profile=baseline", "--target=vram-enforcer")


@pytest.mark.parametrize("profile", profiles("works"))
def test_a_copy_gets_a_gpu_of_its_own_with_a_profile_that_works(debug, team, profile):
    (pod,) = team.pods()
    team.patch(pod, {"metadata": {"annotations": {GPU_ANNOTATION: "GPU-1"}}}, "/status")
    assert "PrivilegedContainer: " in debug("--copy-to=copied")
    assert debug(f"--profile={profile}", "--copy-to=copied") == ""
    (copy,) = (one for one in team.pods() if one["metadata"]["name"] == "copied")
    assert GPU_ANNOTATION not in copy["metadata"]["annotations"]
    assert copy["metadata"]["labels"] == pod["metadata"]["labels"]
