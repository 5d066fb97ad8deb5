"""An admitted pod is checked at every later change, at any size and in every rollout.

The tests use everything that the chart installs on a real API server: the webhook's decisions, and
the API server's own decisions, including requests that it does not send to the webhook.
"""

from __future__ import annotations

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.chart.admission_policies import is_denied_by
from tests.chart.recorded_reviews import denial
from tests.cluster.attacked import GATE_VOLUME, NODE, WHOLE_GATE, attacked
from tests.support import charts
from tests.support.control_planes import ApiError, wait_until
from tests.support.pods import a_container, a_pod
from webhook.adapters.policy.files import load_policy
from webhook.adapters.review_json import decode_review
from webhook.core.admission.decide import decide
from webhook.core.admission.decision import Outcome, Phase
from webhook.core.pod.complexity import (
    AFFINITY_TERMS,
    CEL_LIMITS,
    ENTRIES,
    MOUNTS,
    TOLERATIONS,
    VARIABLES,
    VOLUMES,
)
from webhook.core.policy.cluster import Cluster
from webhook.core.policy.model import Rollout
from webhook.names import WEBHOOK_CONFIGURATION

SIDECAR = "vram-enforcer"
LABEL = {"vramwarden.io/managed": "true"}
RUN = {"name": "vram-enforcer-run", "mountPath": "/run/vram-enforcer"}


@pytest.fixture(scope="module", params=[Rollout.OBSERVE, Rollout.ENFORCE])
def mallory(request, control_plane, tmp_path_factory):
    if not charts.available():
        pytest.skip(charts.MISSING)
    helm = charts.Helm(tmp_path_factory.mktemp("helm"))
    folder = tmp_path_factory.mktemp("server")
    with attacked(control_plane, helm, folder, request.param, void=False) as tenant:
        policy = load_policy(folder / "policies", enforcer_image="vramwarden/enforcer:x")
        tenant.policy, tenant.cluster = policy, Cluster(request.param)
        yield tenant


def volumes(count):
    return {"volumes": [{"name": f"v{number}", "emptyDir": {}} for number in range(count)]}


def notes(count):
    return {f"example.com/n{number}": "" for number in range(count)}


@pytest.fixture(scope="module")
def giant(mallory):
    """Return an admitted pod with the maximum number of volumes, including those added."""
    pod = mallory.has("8Gi", **volumes(1021))
    assert len(pod["spec"]["volumes"]) > 1024
    assert pod["spec"]["initContainers"][0]["name"] == SIDECAR
    return pod


@pytest.fixture(scope="module")
def small(mallory):
    return mallory.has("8Gi")


def swapping(**fields):
    return lambda tenant, pod: tenant.patch(
        pod, {"spec": {"initContainers": [{"name": SIDECAR, **fields}]}}
    )


def debugging(**fields):
    return lambda tenant, pod: tenant.debug(pod, **fields)


def annotating(**marks):
    return lambda tenant, pod: tenant.annotate(pod, **marks)


def noting(count):
    return lambda tenant, pod: tenant.patch(pod, {"metadata": {"annotations": notes(count)}})


SWAPS = {
    "another image": swapping(image="evil.example/x:1"),
    "another privileged debugger": debugging(securityContext={"privileged": True}),
    "a debugger that may trace": debugging(
        securityContext={"capabilities": {"add": ["SYS_PTRACE", "SYS_ADMIN"]}}
    ),
    "a debugger of the sidecar": debugging(targetContainerName=SIDECAR),
    "a debugger with its volume": debugging(volumeMounts=[RUN]),
    "a debugger that shows GPUs": debugging(
        env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    ),
    "another amount": annotating(gpu_memory="1Gi"),
    "a GPU": annotating(gpu="GPU-x"),
    "no label": lambda tenant, pod: tenant.patch(
        pod, {"metadata": {"labels": {"vramwarden.io/managed": None}}}
    ),
    "more annotations than are judged": noting(4100),
}


WHOLE_ON_A_NODE = a_pod(
    containers=[a_container(resources={"limits": {"nvidia.com/gpu": "1"}})], nodeName=NODE
)
MOUNT = "- {source: /home/x/py, destination: /usr/lib/python3.11, type: bind}"


def test_whole_gpus_past_the_scheduler_are_denied_once_a_rollout_enforces(mallory):
    denied = denial(lambda: mallory.create(WHOLE_ON_A_NODE))
    if mallory.cluster.rollout is Rollout.OBSERVE:
        assert denied == ""
    else:
        assert "NodeNamePreset: spec.nodeName: " in denied


@pytest.mark.parametrize(
    "key",
    ["mounts.nri.io/container.vram-enforcer", "io.kubernetes.cri-o.UnifiedCgroup.vram-enforcer"],
)
def test_no_annotation_of_a_runtime_names_the_sidecar_under_any_rollout(mallory, small, key):
    notes = {key: MOUNT}
    later = {"metadata": {"annotations": notes}}
    for attempt in (
        lambda: mallory.create(a_pod("8Gi", annotations=notes)),
        lambda: mallory.patch(small, later),
    ):
        assert f"ReservedName: metadata.annotations[{key}]" in denial(attempt)


@pytest.mark.parametrize("tries", SWAPS.values(), ids=SWAPS)
def test_a_large_pod_of_ours_stays_as_it_was_admitted(mallory, giant, tries):
    with pytest.raises(ApiError):
        tries(mallory, giant)


@pytest.mark.parametrize(
    "metadata",
    [
        {"finalizers": ["example.com/tracking"]},
        {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "1"}]},
        {"labels": {"app": "x"}, "annotations": {"example.com/a": "1"}},
    ],
    ids=str,
)
def test_what_others_do_to_it_goes_on(mallory, giant, metadata):
    mallory.patch(giant, {"metadata": metadata}, api=mallory.admin)


@pytest.mark.parametrize("marks", [LABEL, {}], ids=["label", "mark"])
def test_no_forged_giant_is_stored(mallory, marks):
    mark = {} if marks else {"vramwarden.io/admitted": "v1 default 0123456789ab"}
    pod = a_pod(labels=marks, annotations=mark, **volumes(2 * CEL_LIMITS["volumes"]))
    assert "TooComplex" in denial(lambda: mallory.create(pod))


SHOWING = {"name": "v1", "mountPath": "/var/run/nvidia-container-devices/all"}


@pytest.mark.parametrize(
    ("container", "always"),
    [({"volumeMounts": [SHOWING]}, False), ({"name": SIDECAR}, True)],
    ids=["shows GPUs", "poses as ours"],
)
def test_debuggers_of_a_large_pod_of_hers_are_looked_at(mallory, container, always):
    pod = mallory.has(**volumes(1030))
    why = denial(lambda: mallory.debug(pod, **container))
    held = always or mallory.cluster.rollout is Rollout.ENFORCE
    assert ("TooComplex" in why or is_denied_by(why, "vramwarden-debuggers")) is held
    mallory.debug(pod)


# --- without a registered webhook


@pytest.fixture
def unseen(mallory):
    """Remove vramwarden's webhooks for the tenant's pods. Only the API server's policies remain."""
    path = "/apis/admissionregistration.k8s.io/v1"
    kinds = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
    paths = {kind: f"{path}/{kind}/{WEBHOOK_CONFIGURATION}" for kind in kinds}
    stored = {kind: mallory.admin.request("GET", paths[kind]) for kind in kinds}
    for kind, found in stored.items():
        mallory.admin.request("DELETE", paths[kind])
        for field in ("resourceVersion", "uid", "creationTimestamp", "generation", "managedFields"):
            found["metadata"].pop(field, None)
    wrong = a_pod("8GB")
    wait_until("nobody is called", lambda: "use 8G" not in denial(lambda: mallory.create(wrong)))
    yield
    for kind, found in stored.items():
        mallory.admin.request("POST", f"{path}/{kind}", found)
    wait_until("the webhook is called", lambda: "use 8G" in denial(lambda: mallory.create(wrong)))


def test_the_sidecar_and_our_marks_stay_without_any_webhook(mallory, giant, small, unseen):
    for pod in (giant, small):
        why = denial(lambda p=pod: swapping(image="evil.example/x:1")(mallory, p))
        assert is_denied_by(why, "vramwarden-sidecar")
        for how in ({"targetContainerName": SIDECAR}, {"volumeMounts": [RUN]}):
            why = denial(lambda p=pod, h=how: mallory.debug(p, **h))
            assert is_denied_by(why, "vramwarden-debuggers") or "Not found" in why
        for part, api in (("", None), ("/status", mallory.admin)):
            for mark in ({"gpu": "GPU-x"}, {"admitted": None}, {"admitted": "v1 other 0"}):
                why = denial(lambda p=pod, m=mark, t=part, a=api: mallory.annotate(p, t, a, **m))
                assert "by vramwarden alone" in why
        mallory.debug(pod)
        mallory.patch(pod, {"metadata": {"finalizers": ["example.com/t"]}}, api=mallory.admin)
    plain = mallory.has()
    gated = mallory.has(volumes=[GATE_VOLUME])
    for pod, how in ((plain, {"name": SIDECAR}), (gated, {"volumeMounts": [WHOLE_GATE]})):
        why = denial(lambda p=pod, h=how: mallory.debug(p, **h))
        assert is_denied_by(why, "vramwarden-debuggers")
    mallory.debug(plain)


# --- every stored pod and every change

TERMS = "preferredDuringSchedulingIgnoredDuringExecution"
BOUNDS = {
    "volumes": (VOLUMES, volumes),
    "variables": (
        VARIABLES,
        lambda n: {
            "containers": [
                a_container(env=[{"name": f"A{i}", "value": ""} for i in range(n)]),
            ]
        },
    ),
    "mounts": (
        MOUNTS,
        lambda n: {
            **volumes(1),
            "containers": [
                a_container(volumeMounts=[{"name": "v0", "mountPath": f"/{i}"} for i in range(n)])
            ],
        },
    ),
    "tolerations": (
        TOLERATIONS,
        lambda n: {"tolerations": [{"key": f"k{i}", "operator": "Exists"} for i in range(n)]},
    ),
    "annotations": (ENTRIES, lambda n: {"annotations": notes(n)}),
    "labels": (ENTRIES, lambda n: {"labels": notes(n)}),
    "terms": (
        AFFINITY_TERMS,
        lambda n: {
            "schedulingGates": [{"name": "a/b"}],
            "affinity": {
                "nodeAffinity": {
                    TERMS: [
                        {
                            "weight": 1,
                            "preference": {
                                "matchExpressions": [{"key": "a", "operator": "Exists"}]
                            },
                        }
                    ]
                    * n
                }
            },
        },
    ),
}


@st.composite
def pods(draw):
    """Draw a pod near a limit: an admitted pod, one with forged marks, or neither."""
    bound, make = BOUNDS[draw(st.sampled_from(sorted(BOUNDS)))]
    near = st.sampled_from(
        [bound.most + bound.ours + off for off in (-5, -3, -1, 0, 1)]
        + [bound.most + off for off in (-5, -3, -1, 0, 1)]
        + [2 * (bound.most + bound.ours) + 1]
    )
    fields = make(draw(near))
    labels = fields.pop("labels", {}) | draw(st.sampled_from([{}, {}, LABEL]))
    memory = draw(st.sampled_from(["8Gi", "8Gi", "8Gi", None]))
    return a_pod(memory, labels=labels, **fields)


def grown(kind, count):
    """Return a change that adds a number of items of a kind to a pod."""

    def change(pod):
        if kind == "tolerations":
            more = [{"key": f"x{i}", "operator": "Exists"} for i in range(count)]
            pod["spec"].setdefault("tolerations", []).extend(more)
        elif kind == "terms":
            affinity = pod["spec"].setdefault("affinity", {}).setdefault("nodeAffinity", {})
            term = {"weight": 1, "preference": {"matchExpressions": []}}
            affinity.setdefault(TERMS, []).extend([copy.deepcopy(term) for _ in range(count)])
        else:
            more = {f"example.com/x{i}": "" for i in range(count)}
            pod["metadata"][kind] = {**(pod["metadata"].get(kind) or {}), **more}

    return change


def setting(kind, key, value):
    def change(pod):
        held = pod["metadata"].setdefault(kind, {})
        held.pop(key, None) if value is None else held.update({key: value})

    return change


def swapped(pod):
    for container in pod["spec"].get("initContainers", []):
        if container["name"] == SIDECAR:
            container["image"] = "evil.example/x:1"


def debugged(**fields):
    def change(pod):
        one = {"name": "d", "image": "busybox", "terminationMessagePolicy": "File", **fields}
        pod["spec"].setdefault("ephemeralContainers", []).append(one)

    return change


CHANGES = st.one_of(
    st.builds(
        grown,
        st.sampled_from(["tolerations", "terms", "annotations", "labels"]),
        st.sampled_from([1, 5, 70, 300, 1300, 2600]),
    ),
    st.sampled_from(
        [
            swapped,
            setting("annotations", "vramwarden.io/gpu-memory", "1Gi"),
            setting("annotations", "vramwarden.io/gpu", "GPU-x"),
            setting("annotations", "vramwarden.io/admitted", None),
            setting("annotations", "nvidia.cdi.k8s.io/x", "nvidia.com/gpu=all"),
            setting("labels", "vramwarden.io/managed", None),
            setting("labels", "vramwarden.io/managed", "true"),
            setting("labels", "app", "x"),
            debugged(),
            debugged(name=SIDECAR),
            debugged(targetContainerName=SIDECAR),
            debugged(securityContext={"privileged": True}),
            debugged(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]),
        ]
    ),
)


def judged(tenant, old, new, subresource):
    request = {
        "uid": "1",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "subResource": subresource,
        "operation": "UPDATE",
        "namespace": old["metadata"]["namespace"],
        "name": old["metadata"]["name"],
        "userInfo": {"username": "mallory", "groups": ["system:authenticated"]},
        "object": new,
        "oldObject": old,
    }
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    return decide(decode_review(review), tenant.policy, tenant.cluster, Phase.VALIDATE)


@settings(max_examples=60)
@given(pod=pods(), change=CHANGES)
def test_what_the_webhook_would_deny_of_a_stored_pod_the_api_server_denies(mallory, pod, change):
    try:
        stored = mallory.create(pod, dry_run=False)
    except ApiError:
        return  # too large for the webhook or the API server
    try:
        _changes_as_judged(mallory, stored, change)
    finally:
        mallory.delete(stored)


def _changes_as_judged(tenant, stored, change):
    new = copy.deepcopy(stored)
    change(new)
    part = "ephemeralcontainers" if new["spec"].get("ephemeralContainers") else ""
    decision = judged(tenant, stored, new, part)
    path = tenant.path(stored, f"/{part}" if part else "")
    why = denial(lambda: tenant.api.request("PUT", path, new, dryRun="All"))
    if decision.outcome is Outcome.DENIED:
        assert why, decision.findings
    assert "expression" not in why
