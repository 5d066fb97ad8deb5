"""Changes of existing pods on a real API server, by user, field and subresource.

Denied changes are tested in tests/core/admission/test_update_*.py. A row here tests that the API
server calls the webhook, and how the response arrives.
"""

from __future__ import annotations

import pytest

from tests.support.pods import a_container, a_pod
from tests.support.webhook_on_cluster import container, denied, refused
from webhook.core.pod.findings import Reason

MEMORY = "vramwarden.io/gpu-memory"
VOID = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
LABELS = {"stage": "two", "vramwarden.io/managed": "true"}
CPU = {kind: {"cpu": "2"} for kind in ("requests", "limits")}


@pytest.fixture
def trainer(team):
    """Return a pod with a demand and a resizable container."""
    app = a_container(resources={kind: {"cpu": "1"} for kind in ("requests", "limits")})
    return team.accepts(a_pod("8Gi", containers=[app]))


def annotating(**notes):
    return {"metadata": {"annotations": notes}}


def changing(field, name, **to):
    return {"spec": {field: [{"name": name, **to}]}}


def debugging(**fields):
    debugger = a_container("debugger", stdin=True, tty=True, **fields)
    return {"spec": {"ephemeralContainers": [debugger]}}


def debugger_of(pod):
    (found,) = pod["spec"]["ephemeralContainers"]
    return found["targetContainerName"], found["env"]


@pytest.mark.parametrize(
    ("part", "change", "shown", "becomes"),
    [
        pytest.param(
            "",
            {"metadata": {"labels": {"stage": "two"}}},
            lambda pod: pod["metadata"]["labels"],
            LABELS,
            id="a label",
        ),
        pytest.param(
            "",
            annotating(note="x"),
            lambda pod: pod["metadata"]["annotations"]["note"],
            "x",
            id="another annotation",
        ),
        pytest.param(
            "",
            changing("containers", "main", image="example:2"),
            lambda pod: container(pod, "main")["image"],
            "example:2",
            id="the image of the app",
        ),
        pytest.param(
            "/ephemeralcontainers",
            debugging(
                targetContainerName="main",
                envFrom=[{"configMapRef": {"name": "somewhere"}}],
            ),
            debugger_of,
            ("main", VOID),
            id="a debugging container, which sees no GPU whatever its image says",
        ),
        pytest.param(
            "/resize",
            changing("containers", "main", resources=CPU),
            lambda pod: container(pod, "main")["resources"]["limits"]["cpu"],
            "2",
            id="the amounts of the app",
        ),
    ],
)
def test_what_may_change_does(team, trainer, part, change, shown, becomes):
    assert shown(team.patch(trainer, change, part)) == becomes


@pytest.mark.parametrize(
    ("amount", "spec"),
    [
        pytest.param(2, {}, id="two GPUs"),
        pytest.param(1, {"hostPID": True}, id="one, where no share can be held"),
    ],
)
def test_a_pod_that_keeps_its_whole_gpus_is_stored_and_changed_as_it_came(make_team, amount, spec):
    team = make_team("shared")
    app = a_container(resources={"limits": {"nvidia.com/gpu": amount}})
    stored = team.accepts(a_pod(containers=[app], **spec))
    changed = team.patch(stored, {"metadata": {"labels": {"stage": "two"}}})
    assert changed["metadata"]["labels"] == {"stage": "two"}
    assert container(changed, "main")["resources"]["limits"] == {"nvidia.com/gpu": str(amount)}
    assert "initContainers" not in changed["spec"]


@pytest.mark.parametrize(
    ("part", "change", "phase", "says"),
    [
        pytest.param(
            "",
            annotating(**{MEMORY: "16Gi"}),
            "validate",
            f"Immutable: metadata.annotations[{MEMORY}]: delete the pod and create it again with "
            'the new value; it cannot change from "8Gi" to "16Gi" on a pod that exists',
            id="our annotation",
        ),
        pytest.param(
            "",
            {"metadata": {"labels": {"vramwarden.io/managed": None}}},
            "validate",
            "Immutable: metadata.labels[vramwarden.io/managed]: leave it as it was, for only "
            'vramwarden writes it; it cannot be removed (it was "true")',
            id="our label",
        ),
        pytest.param(
            "",
            changing("initContainers", "vram-enforcer", image="example:2"),
            "validate",
            "Immutable: spec.initContainers[0].image: ",
            id="the image of the sidecar",
        ),
        pytest.param(
            "/ephemeralcontainers",
            debugging(securityContext={"privileged": True}),
            "mutate",
            "EphemeralContainer: spec.ephemeralContainers[0].securityContext.privileged: ",
            id="a debugging container that defeats the cap",
        ),
        pytest.param(
            "/resize",
            changing("initContainers", "vram-enforcer", resources=CPU),
            "validate",
            "Immutable: spec.initContainers[0].resources: ",
            id="the amounts of the sidecar",
        ),
    ],
)
def test_what_may_not_change_is_denied(team, trainer, part, change, phase, says):
    reason, _, rest = says.partition(": ")
    error = refused(lambda: team.patch(trainer, change, part))
    assert denied(error, Reason(reason), phase=phase).startswith(rest)


def test_a_debugger_past_the_mutating_webhook_is_denied_by_the_validating_one(team, trainer):
    change = debugging(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])
    with team.ours.without(team.api, team.ours.mutating):
        error = refused(lambda: team.patch(trainer, change, "/ephemeralcontainers"))
    said = denied(error, Reason.EPHEMERAL_CONTAINER, phase="validate")
    assert said.startswith("spec.ephemeralContainers[0].env[0]: remove it, or use kubectl debug ")


def test_a_pod_without_a_demand_is_debugged_in_any_way_and_gets_no_demand(team):
    pod = team.accepts(a_pod())
    team.patch(pod, debugging(securityContext={"privileged": True}), "/ephemeralcontainers")
    error = refused(lambda: team.patch(pod, annotating(**{MEMORY: "8Gi"})))
    said = denied(error, Reason.IMMUTABLE, phase="validate")
    assert said.endswith('; it cannot be added ("8Gi") on a pod that exists')


def test_kubectl_apply_names_the_update_that_is_denied(kubectl, team):
    pod = team.pod(a_pod("8Gi"))
    assert kubectl("apply", pod).returncode == 0
    pod["metadata"]["annotations"][MEMORY] = "16Gi"
    done = kubectl("apply", pod)
    assert done.returncode == 1
    assert (
        'admission webhook "validate.vramwarden.io" denied the request: Immutable: '
        f"metadata.annotations[{MEMORY}]: delete the pod and create it again with the new value; "
        'it cannot change from "8Gi" to "16Gi"'
    ) in done.stderr


def test_a_deletion_is_never_reviewed(team, trainer):
    team.api.delete(trainer, gracePeriodSeconds="0")
    assert team.pods() == []
    assert [line["operation"] for line in team.ours.reviews(team.namespace)] == ["CREATE"] * 2


def test_a_pod_may_lose_its_finalizer_and_go(team):
    manifest = a_pod("8Gi")
    manifest["metadata"]["finalizers"] = ["example.com/wait"]
    pod = team.accepts(manifest)
    team.api.delete(pod, gracePeriodSeconds="0")
    team.patch(pod, {"metadata": {"$deleteFromPrimitiveList/finalizers": ["example.com/wait"]}})
    assert team.pods() == []
