"""Profiles of `kubectl debug` that policies/debug.md recommends or warns about."""

from __future__ import annotations

import re

import pytest

from tests.support.control_planes import find_binary
from tests.support.paths import ROOT
from tests.support.pods import a_container, a_pod
from webhook.names import GPU_ANNOTATION

PAGE = (ROOT / "policies" / "debug.md").read_text()


def profiles(answer: str) -> list[str]:
    row = re.search(rf"^\| (.+) \| {answer}", PAGE, re.MULTILINE)
    return re.findall(r"`(\w+)`", row[1])


@pytest.fixture
def debug_in(control_plane):
    """Return a function that creates a pod and returns a function that debugs it."""
    if not find_binary("kubectl"):
        pytest.skip("needs kubectl")

    def created(team, pod):
        name = team.accepts(pod)["metadata"]["name"]

        def debugged(*options: str) -> str:
            command = ("debug", name, f"--namespace={team.namespace}", "--image=busybox", *options)
            done = control_plane.kubectl(*command)
            if done.stderr.startswith("error: unknown "):
                pytest.skip(f"needs a newer kubectl; this one says {done.stderr.strip()}")
            return done.stderr if done.returncode else ""

        return debugged

    return created


@pytest.fixture
def debug(debug_in, team):
    return debug_in(team, a_pod("8Gi"))


@pytest.mark.parametrize("profile", profiles("works"))
def test_profiles_that_work_do(debug, profile):
    assert debug(f"--profile={profile}") == ""


@pytest.mark.parametrize("profile", profiles("denied"))
def test_profiles_that_are_denied_are(debug, profile):
    assert "EphemeralContainer: " in debug(f"--profile={profile}")


def test_without_a_profile_the_default_is_as_documented(debug, control_plane):
    options = control_plane.kubectl("debug", "--help").stdout
    default = re.search(r"--profile='(\w+)'", options)[1]
    assert f"`{default}` (the default " in PAGE
    assert ("EphemeralContainer: " in debug()) == (default in profiles("denied"))


def test_the_sidecar_cannot_be_the_target(debug):
    assert "EphemeralContainer: " in debug("--profile=baseline", "--target=vram-enforcer")


NON_ROOT = {"runAsNonRoot": True, "allowPrivilegeEscalation": False}
USER = {"securityContext": {"runAsUser": 1000}}


@pytest.mark.parametrize("of_pod", [True, False], ids=["user of the pod", "of the container"])
@pytest.mark.parametrize("profile", [*profiles("works"), *profiles("denied"), None])
def test_under_non_root_one_profile_works_with_a_user(
    debug_in, make_team, profile, of_pod, tmp_path
):
    team = make_team("isolated")
    own = NON_ROOT if of_pod else {**NON_ROOT, "runAsUser": 1000}
    pod = a_pod("8Gi", containers=[a_container(securityContext=own)], **(USER if of_pod else {}))
    debug = debug_in(team, pod)
    chosen = [f"--profile={profile}"] if profile else []
    if profile != "restricted":
        assert "use kubectl debug --profile=restricted" in debug(*chosen)
        return
    if not of_pod:
        assert "--custom=FILE, with securityContext.runAsUser in FILE" in debug(*chosen)
        assert "`securityContext: {runAsUser: 1000}`" in PAGE
        custom = tmp_path / "user.yaml"
        custom.write_text("securityContext: {runAsUser: 1000}")
        chosen.append(f"--custom={custom}")
    assert debug(*chosen) == ""


@pytest.mark.parametrize("profile", profiles("works"))
def test_a_copy_gets_a_gpu_of_its_own_with_a_profile_that_works(debug, team, profile):
    (pod,) = team.pods()
    team.patch(pod, {"metadata": {"annotations": {GPU_ANNOTATION: "GPU-1"}}}, "/status")
    said = debug("--profile=general", "--copy-to=copied")
    assert "Capability: " in said
    assert "use kubectl debug --profile=baseline" in said
    assert debug(f"--profile={profile}", "--copy-to=copied") == ""
    (copy,) = (pod for pod in team.pods() if pod["metadata"]["name"] == "copied")
    assert GPU_ANNOTATION not in copy["metadata"]["annotations"]
    assert copy["metadata"]["labels"] == pod["metadata"]["labels"]
