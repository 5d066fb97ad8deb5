"""Other products' mutating webhooks that change pods after vramwarden."""

from __future__ import annotations

import copy

import pytest

from tests.support.pods import a_container, a_pod
from tests.support.webhook_configurations import OtherWebhook
from tests.support.webhook_on_cluster import container, variables
from webhook.core.pod.findings import Reason

TOKEN = {"name": "AWS_WEB_IDENTITY_TOKEN_FILE", "value": "/var/run/secrets/cloud/token"}
MOUNT = {"name": "cloud", "mountPath": "/var/run/secrets/cloud", "readOnly": True}


@pytest.fixture
def changed_by(team):
    """Return a function that installs another webhook after vramwarden's, for the team's pods."""

    def make(change, *, stubborn=False):
        policy = "IfNeeded" if stubborn else "Never"
        return OtherWebhook(
            team.api, change, sorts="after", reinvocation_policy=policy, namespace=team.namespace
        )

    return make


def every_container(pod):
    return [*pod["spec"]["containers"], *pod["spec"].get("initContainers", ())]


def annotate(pod):
    pod["metadata"].setdefault("annotations", {})["other/seen"] = "yes"
    return pod


def add_a_container(pod):
    pod["spec"]["containers"].append(a_container("proxy"))
    return pod


def add_credentials(pod):
    for found in every_container(pod):
        if TOKEN not in found.setdefault("env", []):
            found["env"].append(TOKEN)
            found.setdefault("volumeMounts", []).append(MOUNT)
    cloud = {"name": "cloud", "emptyDir": {}}
    if cloud not in pod["spec"]["volumes"]:
        pod["spec"]["volumes"].append(cloud)
    return pod


def prepend_a_native_sidecar(pod):
    names = [found["name"] for found in pod["spec"]["initContainers"]]
    if "mesh" not in names:
        mesh = a_container("mesh", restartPolicy="Always")
        pod["spec"]["initContainers"].insert(0, mesh)
    return pod


def remove_our_sidecar(pod):
    rest = [c for c in pod["spec"]["initContainers"] if c["name"] != "vram-enforcer"]
    pod["spec"]["initContainers"] = rest
    return pod


def loosen_our_sidecar(pod):
    more = {"name": "VRAM_TOLERANCE", "value": "50%"}
    container(pod, "vram-enforcer")["env"].append(more)
    return pod


def open_our_gate(pod):
    for found in every_container(pod):
        for key, name in (("env", "VRAMWARDEN_GPU_ASSIGNMENT"), ("volumeMounts", "vram-gate")):
            found[key] = [item for item in found.get(key, ()) if item["name"] != name]
    return pod


def preload_a_library(pod):
    for found in every_container(pod):
        found.setdefault("env", []).append({"name": "LD_PRELOAD", "value": "/x.so"})
    return pod


def show_all_gpus(pod):
    for found in pod["spec"]["containers"]:
        found["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    return pod


def raise_the_limit(pod):
    for amounts in container(pod, "main")["resources"].values():
        amounts["vramwarden.io/vram"] = "1Gi"
    return pod


@pytest.mark.parametrize(
    ("change", "second_patch", "added"),
    [
        (annotate, 0, ""),
        (add_a_container, 1, "proxy"),
        (add_credentials, 2, ""),  # variables and mounts of the sidecar
        (prepend_a_native_sidecar, 1, "mesh"),
    ],
)
def test_a_pod_that_another_webhook_changes_after_us_is_created_and_shows_it_no_gpu(
    team, changed_by, change, second_patch, added
):
    with changed_by(change):
        pod = team.accepts(a_pod("8Gi"))
    first, second, validated = team.calls()
    assert first[:2] == ("mutate", "mutated")
    assert second == ("mutate", "mutated" if second_patch else "allowed", second_patch)
    assert validated == ("validate", "allowed", 0)
    assert variables(container(pod, "vram-enforcer"))["VRAM_CAP_BYTES"] == str(8 * 2**30)
    if added:
        assert variables(container(pod, added)) == {"NVIDIA_VISIBLE_DEVICES": "void"}
        assert "vramwarden.io/vram" not in container(pod, added)["resources"]


def test_credentials_in_our_sidecar_are_let_be_where_their_webhook_insists(team, changed_by):
    with changed_by(add_credentials, stubborn=True):
        sidecar = container(team.accepts(a_pod("8Gi")), "vram-enforcer")
    assert TOKEN in sidecar["env"]
    assert MOUNT in sidecar["volumeMounts"]


def test_credentials_that_a_user_writes_into_our_sidecar_are_taken_out(team):
    plain = team.accepts(a_pod("8Gi"))
    keep = {key: plain["metadata"][key] for key in ("annotations", "labels")}
    pod = team.accepts(add_credentials(copy.deepcopy({**plain, "metadata": keep})))
    assert container(pod, "vram-enforcer") == container(plain, "vram-enforcer")


def test_our_sidecar_may_stand_behind_another_native_one(team, changed_by):
    with changed_by(prepend_a_native_sidecar):
        pod = team.accepts(a_pod("8Gi", initContainers=[a_container("fetch")]))
    names = [found["name"] for found in pod["spec"]["initContainers"]]
    assert names == ["mesh", "vram-enforcer", "fetch"]


@pytest.mark.parametrize(
    "change",
    [remove_our_sidecar, loosen_our_sidecar, open_our_gate, preload_a_library],
    ids=lambda c: c.__name__,
)
def test_what_another_webhook_does_to_our_sidecar_is_undone_on_the_second_look(
    team, changed_by, change
):
    plain = team.accepts(a_pod("8Gi"))
    with changed_by(change):
        pod = team.accepts(a_pod("8Gi"))
    assert container(pod, "vram-enforcer") == container(plain, "vram-enforcer")
    assert pod["spec"]["initContainers"][0]["name"] == "vram-enforcer"


INSISTED = (Reason.UNMUTATED, "spec.initContainers", "another webhook changed the pod after it")
REFUSED = {
    remove_our_sidecar: INSISTED,
    loosen_our_sidecar: INSISTED,
    open_our_gate: INSISTED,
    preload_a_library: INSISTED,
    show_all_gpus: (Reason.VISIBLE_DEVICES_OVERRIDE, "spec.containers[0].env[0]: ", ""),
    raise_the_limit: (
        *(Reason.CONFLICTING_AMOUNTS, "spec.containers[0]"),
        "asks for 8Gi; another webhook may have changed the pod after vramwarden",
    ),
}


@pytest.mark.parametrize("change", REFUSED, ids=lambda c: c.__name__)
def test_a_webhook_that_insists_shows_gpus_or_changes_amounts_gets_the_pod_refused(
    team, changed_by, change
):
    reason, where, words = REFUSED[change]
    insists = reason is Reason.UNMUTATED
    with changed_by(change, stubborn=insists):
        says = team.denies(a_pod("8Gi"), reason, phase="validate" if insists else "mutate")
    assert says.startswith(where)
    assert words in says
    assert team.pods() == []


@pytest.mark.parametrize("stubborn", [False, True])
def test_the_gate_of_a_pod_by_sentry_is_written_again_or_the_pod_is_refused(make_team, stubborn):
    team = make_team("sentry")
    plain = team.accepts(a_pod("8Gi"))
    policy = "IfNeeded" if stubborn else "Never"
    with OtherWebhook(
        team.api, open_our_gate, sorts="after", reinvocation_policy=policy, namespace=team.namespace
    ):
        if stubborn:
            says = team.denies(a_pod("8Gi"), Reason.UNMUTATED, phase="validate")
            assert says.startswith("spec.containers[0].env")
            return
        pod = team.accepts(a_pod("8Gi"))
    found, known = (
        [mount for mount in container(each, "main")["volumeMounts"] if mount["name"] == "vram-gate"]
        for each in (pod, plain)
    )
    assert found == known != []


def test_a_webhook_before_us_is_seen_on_the_first_look(team):
    with OtherWebhook(team.api, annotate, sorts="before", namespace=team.namespace):
        pod = team.accepts(a_pod("8Gi"))
    assert pod["metadata"]["annotations"]["other/seen"] == "yes"
    assert [call[0] for call in team.calls()] == ["mutate", "validate"]


def test_the_token_that_the_api_server_mounts_into_a_new_container_changes_nothing(team):
    with OtherWebhook(team.api, add_a_container, sorts="before", namespace=team.namespace):
        pod = team.accepts(a_pod("8Gi"))
    assert variables(container(pod, "proxy")) == {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert container(pod, "proxy")["volumeMounts"]
    assert team.calls()[1:] == [("mutate", "allowed", 0), ("validate", "allowed", 0)]
