"""The matchConditions pass everything that `decide` evaluates, and no other pod.

The entry with `Fail` receives only real demands, the other entry everything else. With
the second line, which denies unmutated pods, only pods with vramwarden's label are validated at
creation. A real API server evaluates the expressions, a recorder records what it sends, and a
witness without conditions records what could be sent.
"""

from __future__ import annotations

import copy
import json
import re
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chart.recorded_reviews import PHASES, Recorder, denial
from tests.support import paths
from tests.support.charts import one
from tests.support.control_planes import ApiError, needs, needs_pod_level_resources
from tests.support.pods import a_container, a_pod, a_policy, a_rule
from tests.support.strategies import asking_pods
from webhook.adapters.review_json import decode_review
from webhook.core.admission.decide import decide
from webhook.core.admission.decision import Outcome, Phase
from webhook.core.nvidia.injection import INJECTORS
from webhook.core.pod.complexity import CEL_LIMITS, UPDATE_LIMITS
from webhook.core.policy.cluster import UNKNOWN_CLUSTER
from webhook.core.policy.gpu_resources import WHOLE_GPU_RESOURCES
from webhook.core.policy.model import Action, EnforceBy, Isolation, ResourceClaims, VisibleDevices
from webhook.names import OUR_VOLUMES

REVIEWS = {path.stem: json.loads(path.read_text()) for path in paths.REVIEWS.glob("*.json")}
VRAM, VISIBLE = "vramwarden.io/vram", "NVIDIA_VISIBLE_DEVICES"

# A pod is relevant if it has any of these.
POLICIES = [
    a_policy(whole_gpu_resources=("*/*gpu*", "nvidia.com/*")),
    a_policy(a_rule(visible_devices=VisibleDevices.VOID)),
    a_policy(a_rule(visible_devices=VisibleDevices.IGNORE, enforcement={"by": EnforceBy.NONE})),
    a_policy(a_rule(action=Action.WARN)),
    a_policy(
        a_rule(
            isolation=Isolation.NON_ROOT,
            host_paths=(),
            capabilities=frozenset(),
            resource_claims=ResourceClaims.DENY,
        ),
        whole_gpu_resources=WHOLE_GPU_RESOURCES,
    ),
]
LEFT_ALONE = {Outcome.ALLOWED, Outcome.SKIPPED}


def is_of_interest(request, phase: str) -> bool:
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    decoded = decode_review(review)
    return any(
        decide(decoded, policy, UNKNOWN_CLUSTER, Phase(phase)).outcome not in LEFT_ALONE
        for policy in POLICIES
    )


SECOND_LINE = {"with a second line": True, "without": False}


@pytest.fixture(scope="module", params=SECOND_LINE.values(), ids=SECOND_LINE)
def has_second_line(request):
    return request.param


@pytest.fixture(scope="module")
def recorder(control_plane, helm, has_second_line):
    objects = helm.render({"fence": {"secondLine": has_second_line}})
    with Recorder(control_plane.api, [one(objects, kind) for kind in PHASES]) as running:
        yield running


@pytest.fixture(scope="module")
def team(control_plane, recorder):
    """Return a namespace whose pods reach the recorder."""
    name = f"team-{uuid.uuid4().hex[:8]}"
    control_plane.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    control_plane.ensure_service_account(name)
    return name


class Sent:
    """Changes pods; records which phases are relevant and which were sent."""

    def __init__(self, api, recorder, namespace, *, selects_by_label):
        self.api = api
        self.recorder = recorder
        self.selects_by_label = selects_by_label
        self.namespace = namespace
        self.path = f"/api/v1/namespaces/{namespace}/pods"

    def creating(self, pod, *, dry_run=True):
        pod = copy.deepcopy(pod)
        pod.update(apiVersion="v1", kind="Pod")
        kept = {key: pod["metadata"].get(key) or {} for key in ("annotations", "labels")}
        name = f"p-{uuid.uuid4().hex}"
        pod["metadata"] = {"name": name, **{key: kept[key] for key in kept if kept[key]}}
        query = {"dryRun": "All"} if dry_run else {}
        return self.watching(lambda: self.api.request("POST", self.path, pod, **query)), name

    def patching(self, name, change, subresource="", *, must_be_sent=True):
        if subresource:
            needs(self.api, f"pods{subresource}")
        path = f"{self.path}/{name}{subresource}"
        kind = "application/strategic-merge-patch+json"
        return self.watching(
            lambda: self.api.request("PATCH", path, change, content_type=kind),
            must_be_sent=must_be_sent,
        )

    def watching(self, act, *, must_be_sent=True):
        why = denial(act)
        assert not re.search('expression|webhook "', why), (
            why
        )  # the message of a failed expression or webhook
        found = {}
        for phase in PHASES.values():
            request = self.recorder.witnessed(phase)
            entries = self.recorder.sent_to(phase)
            assert len(entries) < 2, "both entries were asked"
            if request is not None and self.is_known(request, phase):
                found[phase] = (is_of_interest(request, phase), *entries)
            else:
                assert entries == ()
        assert found or not must_be_sent, f"there was nothing to send: {why}"
        return found

    def is_known(self, request, phase):
        """Return True if label and operation alone make a request relevant."""
        if phase == "mutate" or request["operation"] == "UPDATE" or not self.selects_by_label:
            return True
        return "vramwarden.io/managed" in request["object"]["metadata"].get("labels", {})


@pytest.fixture(scope="module")
def sent(control_plane, recorder, team, has_second_line):
    return Sent(control_plane.api, recorder, team, selects_by_label=has_second_line)


HELD = "the entry for what the second line holds in an outage"


@pytest.fixture
def expected(has_second_line):
    """Return the expected result for a request that is sent to an entry in each of these phases."""
    held = "advice" if has_second_line else "demand"

    def found(of_interest, **entries):
        named = {phase: held if entry is HELD else entry for phase, entry in entries.items()}
        return {phase: (of_interest, *filter(None, [named[phase]])) for phase in entries}

    return found


def assert_nothing_is_missed(found):
    for phase, (of_interest, *entries) in found.items():
        assert entries or not of_interest, phase


ENTRIES = st.sampled_from(
    [
        {"name": "A", "value": "1"},
        {"name": VISIBLE, "value": "all"},
        {"name": VISIBLE, "value": "void"},
        {"name": VISIBLE},
        {"name": VISIBLE, "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}},
        {"name": "CUDA_MPS_PIPE_DIRECTORY", "value": "/x"},
    ]
)
AMOUNTS = st.dictionaries(
    st.sampled_from(
        [
            *("cpu", VRAM, "nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "example.com/fpga"),
            *("nvidia.com/gpumem", "deviceclass.resource.kubernetes.io/gpu.nvidia.com"),
        ]
    ),
    st.sampled_from(["1", "2", "500m", "1Gi"]),
    max_size=2,
)
MOUNTS = st.sampled_from(
    [
        [],
        [{"name": "data", "mountPath": "/data"}],
        [{"name": "vram-enforcer-run", "mountPath": "/run/vram-enforcer"}],
        [{"name": "vram-enforcer-no-token", "mountPath": "/x"}],
        [{"name": "vram-gate", "mountPath": "/x"}],
        [{"name": "data", "mountPath": "/var/run/nvidia-container-devices/all"}],
    ]
)
NON_ROOT = {"runAsNonRoot": True, "runAsUser": 1000, "allowPrivilegeEscalation": False}
CONTEXTS = st.sampled_from(
    [
        *({}, {"privileged": True}, NON_ROOT, {**NON_ROOT, "runAsUser": 0}),
        *({"capabilities": {"add": [name]}} for name in ("NET_ADMIN", "SYS_NICE", "KILL")),
    ]
)
CONTAINERS = st.fixed_dictionaries(
    {"image": st.just("example")},
    optional={
        "env": st.lists(ENTRIES, max_size=2),
        "resources": st.fixed_dictionaries({}, optional={"requests": AMOUNTS, "limits": AMOUNTS}),
        "volumeMounts": MOUNTS,
        "securityContext": CONTEXTS,
    },
)
NAMES = st.sampled_from(["main", "second", "third", "vram-enforcer", "vram-enforcer-2"])
PATHS = ("/x", "/run", "/var", "/dev/shm")  # noqa: S108 - of a node
VOLUMES = st.lists(
    st.sampled_from(["data", *OUR_VOLUMES]),
    unique=True,
).flatmap(
    lambda names: st.tuples(
        *(
            st.sampled_from([{"emptyDir": {}}, *({"hostPath": {"path": p}} for p in PATHS)]).map(
                lambda source, name=name: {"name": name, **source}
            )
            for name in names
        )
    ).map(list)
)
ENFORCER_VOLUMES = [name for name in OUR_VOLUMES if name != "vram-gate"]
"""Volumes that are a finding unless they are empty; the gate's volume is replaced."""
OURS = ["gpu-memory", "gpu-count", "gpu-class", "gpu", "admitted", "unheard-of"]
# The value of a mount that names a CDI device does not identify it.
CDI = [
    *(key for key in INJECTORS if "mounts" not in key),
    "nvidia.cdi.k8s.io/container.main",
    "cdi.k8s.io/claim",
]
ANNOTATIONS = st.dictionaries(
    st.sampled_from([f"vramwarden.io/{key}" for key in OURS] + ["example.com/a", "plain", *CDI]),
    st.sampled_from(["8Gi", "2", "", "v1 default 0123456789ab", "nvidia.com/gpu=all"]),
    max_size=2,
)
LABELS = st.dictionaries(
    st.sampled_from(["vramwarden.io/managed", "app"]), st.sampled_from(["true", "x"]), max_size=2
)


CLAIM = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}]}
SMALL = {"resources": {"limits": {"cpu": "1", "memory": "64Mi"}}}


@st.composite
def any_pods(draw):
    """Draw pods: most have nothing relevant, some have something unusual."""
    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    split = draw(st.integers(1, len(names)))
    containers = [{"name": name, **draw(CONTAINERS)} for name in names]
    spec = {"containers": containers[:split], "volumes": draw(VOLUMES)}
    if split < len(names):
        spec["initContainers"] = containers[split:]
    for field in ("hostPID", "hostIPC"):
        if draw(st.integers(0, 3)) == 0:
            spec[field] = True
    spec |= draw(st.sampled_from([{}, {}, {"securityContext": {"runAsUser": 1000}}, CLAIM, SMALL]))
    metadata = {"annotations": draw(ANNOTATIONS), "labels": draw(LABELS)}
    return {"metadata": metadata, "spec": spec}


@given(any_pods() | asking_pods())
def test_no_pod_that_matters_is_kept_from_us(sent, pod):
    pod = copy.deepcopy(pod)
    pod["spec"].pop("someFieldOfTheFuture", None)  # the API server would drop it
    found, _ = sent.creating(pod)
    assert_nothing_is_missed(found)


@pytest.mark.parametrize(
    "name", [name for name, review in REVIEWS.items() if review["request"]["kind"]["kind"] == "Pod"]
)
def test_no_recorded_pod_that_matters_is_kept_from_us(sent, name):
    request = REVIEWS[name]["request"]
    found, _ = sent.creating(request["object"] or request["oldObject"])
    assert_nothing_is_missed(found)


def with_container(field="containers", **container):
    """Return a pod in which only one container is unusual."""
    odd = {**a_container("odd"), **container}
    return (
        a_pod(containers=[a_container(), odd]) if field == "containers" else a_pod(**{field: [odd]})
    )


# Each pod has exactly one reason to be sent to the webhook.
OF_OURS = {
    "limit of VRAM": {"resources": {"limits": {VRAM: "8Gi"}}},
    "request of VRAM": {"resources": {"requests": {VRAM: "8Gi"}}},
    "reserved name": {"name": "vram-enforcer"},
    "mount": {"volumeMounts": [{"name": "vram-enforcer-run", "mountPath": "/x"}]},
    "other mount": {"volumeMounts": [{"name": "vram-enforcer-no-token", "mountPath": "/x"}]},
    "the gate": {"volumeMounts": [{"name": "vram-gate", "mountPath": "/x"}]},
}
WHOLE = {
    "limit of a GPU": {"resources": {"limits": {"nvidia.com/gpu": "500m"}}},
    "request of a GPU": {"resources": {"requests": {"nvidia.com/gpu": "1"}}},
}
BY_HAND = {
    "GPUs made visible": {"env": [{"name": VISIBLE, "value": "all"}]},
    "GPUs made visible from elsewhere": {
        "env": [{"name": VISIBLE, "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}}]
    },
}


def odd(kinds):
    return {
        f"{what} in {field}": with_container(field, **container)
        for field in ("containers", "initContainers")
        for what, container in kinds.items()
    }


MOUNTING = a_pod(
    containers=[
        a_container(
            volumeMounts=[{"name": "v", "mountPath": "/var/run/nvidia-container-devices/all"}]
        )
    ],
    volumes=[{"name": "v", "hostPath": {"path": "/dev/null"}}],
)
PLAIN = [
    a_pod(),
    a_pod(annotations={"example.com/vramwarden.io": "8Gi"}, labels={"app": "web"}),
    a_pod(containers=[a_container(env=[{"name": "A", "value": VISIBLE}], resources={})]),
    *(
        a_pod(containers=[a_container(env=[{"name": VISIBLE, **value}])])
        for value in ({}, {"value": ""}, {"value": "void"}, {"value": "none"})
    ),
    a_pod(annotations={"example.com/cdi.k8s.io": "x", "example.com/mounts.nri.io": "x"}),
    a_pod(containers=[a_container(resources={"limits": {"cpu": "1", "memory": "1Gi"}})]),
    a_pod(initContainers=[a_container("init")], volumes=[{"name": "v", "emptyDir": {}}]),
    a_pod(
        containers=[a_container(volumeMounts=[{"name": "v", "mountPath": "/v"}])],
        volumes=[{"name": "v", "emptyDir": {}}],
    ),
    a_pod(hostPID=True, containers=[a_container(securityContext={"privileged": True})]),
]
NEW = {
    "demand": {
        **{
            f"annotation {key}": a_pod(annotations={f"vramwarden.io/{key}": "8Gi"})
            for key in ("gpu-memory", "gpu-count", "gpu-class")
        },
        **odd(OF_OURS),
        **{
            f"volume {name}": a_pod(volumes=[{"name": name, "hostPath": {"path": "/x"}}])
            for name in ENFORCER_VOLUMES
        },
    },
    "advice": {**odd(WHOLE), "a mount that shows GPUs": MOUNTING},
    HELD: {
        **odd(BY_HAND),
        **{key: a_pod(annotations={key: "nvidia.com/gpu=all"}) for key in CDI},
    },
    "": {f"plain {number}": pod for number, pod in enumerate(PLAIN)},
}
"""New pods without vramwarden's label, with the entry that is called in each phase."""


@pytest.mark.parametrize(
    ("entry", "pod"),
    [
        pytest.param(entry, pod, id=what)
        for entry, pods in NEW.items()
        for what, pod in pods.items()
    ],
)
def test_a_new_pod_is_sent_to_one_entry_where_it_matters(
    sent, entry, pod, expected, has_second_line
):
    phases = ["mutate"] if has_second_line else PHASES.values()
    found, _ = sent.creating(pod)
    assert "mutate" in found  # the API server rejects some pods after that
    assert found.items() <= expected(bool(entry), **dict.fromkeys(phases, entry)).items()


GOVERNED = a_pod(
    "8Gi",
    containers=[a_container(resources={"requests": {"memory": "64Mi"}})],
    labels={"vramwarden.io/managed": "true"},
    annotations={"vramwarden.io/admitted": "v1 default 0123456789ab"},
    initContainers=[a_container("vram-enforcer", restartPolicy="Always")],
)


def annotated(key, value):
    return {"metadata": {"annotations": {f"vramwarden.io/{key}": value}}}


MARKS = ("gpu-memory", "gpu-count", "gpu-class", "gpu", "admitted")
LABEL = {"vramwarden.io/managed": "true"}
SIDECAR = a_pod(labels=LABEL, initContainers=[a_container("vram-enforcer", restartPolicy="Always")])
LABELLED = a_pod(labels=LABEL)
OF_LABELS = {
    "the label is added": (a_pod(), {"metadata": {"labels": LABEL}}),
    "the label changes": (LABELLED, {"metadata": {"labels": {"vramwarden.io/managed": "x"}}}),
    "the label is removed": (LABELLED, {"metadata": {"labels": None}}),
    "the sidecar has another image": (
        SIDECAR,
        {"spec": {"initContainers": [{"name": "vram-enforcer", "image": "other"}]}},
    ),
}
OF_MARKS = {
    **{f"{key} is added": ({}, annotated(key, "1")) for key in MARKS},
    **{f"{key} changes": ({f"vramwarden.io/{key}": "1"}, annotated(key, "2")) for key in MARKS},
    **{
        f"{key} is removed": (
            {f"vramwarden.io/{key}": "1"},
            {"metadata": {"annotations": {f"vramwarden.io/{key}": None}}},
        )
        for key in MARKS
    },
}


DEBUGGERS = st.fixed_dictionaries(
    {"name": st.sampled_from(["debug", "vram-enforcer"]), "image": st.just("example")},
    optional={
        "env": st.lists(ENTRIES, max_size=2),
        "volumeMounts": MOUNTS,
        "securityContext": CONTEXTS,
    },
)


@st.composite
def any_updates(draw):
    """Draw a possibly valid change of a pod, and its subresource."""
    if draw(st.booleans()):
        debuggers = {"spec": {"ephemeralContainers": [draw(DEBUGGERS)]}}
        return debuggers, "/ephemeralcontainers"
    metadata = {"annotations": draw(ANNOTATIONS), "labels": draw(LABELS)}
    key = "kubectl.kubernetes.io/default-container"
    metadata["annotations"] |= draw(st.sampled_from([{}, {key: "main"}, {key: "second"}]))
    images = draw(st.dictionaries(st.sampled_from(["main", "vram-enforcer"]), st.just("other")))
    field = draw(st.sampled_from(["containers", "initContainers"]))
    spec = {field: [{"name": name, "image": image} for name, image in images.items()]}
    return {"metadata": metadata, "spec": spec}, ""


@given(any_pods(), any_updates())
def test_no_update_of_any_pod_that_matters_is_kept_from_us(sent, before, update):
    labels = [pod["metadata"].get("labels", {}) for pod in (before, update[0]) if "metadata" in pod]
    if sent.selects_by_label and not any("vramwarden.io/managed" in label for label in labels):
        update[0].pop("spec", None) if not update[1] else None  # it has no vramwarden sidecar
    try:
        _, name = sent.creating(before, dry_run=False)
        sent.api.request("GET", f"{sent.path}/{name}")
    except ApiError:
        return  # the API server rejects it
    change, subresource = update
    assert_nothing_is_missed(sent.patching(name, change, subresource, must_be_sent=False))


@pytest.mark.parametrize("key", CDI)
@pytest.mark.parametrize("before", [GOVERNED, a_pod()], ids=["with a demand", "without"])
def test_devices_asked_of_the_runtime_later_are_sent(sent, before, key, expected):
    entry = "demand" if before is GOVERNED else HELD
    _, name = sent.creating(before, dry_run=False)
    for value in ("nvidia.com/gpu=0", "nvidia.com/gpu=all", None):  # added, changed, removed
        found = sent.patching(name, {"metadata": {"annotations": {key: value}}})
        assert found == expected(value is not None, validate=entry), value


GATED = copy.deepcopy(GOVERNED)
GATED["metadata"]["finalizers"] = ["example.com/tracking"]
GATED["spec"]["schedulingGates"] = [{"name": "example.com/queue"}]
GATED["metadata"]["annotations"]["cdi.k8s.io/claim"] = "example.com/nic=0"
OF_OTHERS = {
    "a finalizer is added": {"metadata": {"finalizers": ["example.com/tracking"]}},
    "an owner is added": {
        "metadata": {
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "1"}]
        }
    },
    "the last finalizer is removed": {
        "metadata": {"$deleteFromPrimitiveList/finalizers": ["example.com/tracking"]}
    },
    "a gate is removed": {
        "spec": {"schedulingGates": [{"$patch": "delete", "name": "example.com/queue"}]}
    },
    "a label is added": {"metadata": {"labels": {"app": "x"}}},
    "an annotation is added": {"metadata": {"annotations": {"example.com/a": "x"}}},
    "an image changes": {"spec": {"containers": [{"name": "main", "image": "other"}]}},
    "a toleration is added": {"spec": {"tolerations": [{"key": "a", "operator": "Exists"}]}},
}


def resized(field, name):
    resources = {"requests": {"memory": "1Gi"}}
    return {"spec": {field: [{"name": name, "resources": resources}]}}


RESIZABLE = copy.deepcopy(GOVERNED)
RESIZABLE["spec"]["initContainers"][0]["resources"] = {"requests": {"memory": "64Mi"}}


def debugging(name="debug", **container):
    return {"spec": {"ephemeralContainers": [{"name": name, "image": "example", **container}]}}


SHOWING = {"env": [{"name": VISIBLE, "value": "all"}]}
DEBUG = "/ephemeralcontainers"
GROWN = {
    "tolerations": {
        "spec": {
            "tolerations": [
                {"key": f"k{n}", "operator": "Exists"}
                for n in range(UPDATE_LIMITS["tolerations"] + 64)
            ]
        }
    },
    **{
        kind: {"metadata": {kind: {f"a{n}": "" for n in range(UPDATE_LIMITS["entries"] + 300)}}}
        for kind in ("annotations", "labels")
    },
}


def later(what, before, change, part="", *, of_interest=True, **entries):
    """Return a row: an existing pod, a change, and the entry called in each phase."""
    return pytest.param(before, change, part, of_interest, entries, id=what)


CHANGED = [
    *(later(what, *each, validate="demand") for what, each in OF_LABELS.items()),
    *(
        later(f"{what}, {whose}", a_pod(annotations=notes, labels=labels), change, validate=entry)
        for whose, labels, entry in (("of ours", LABEL, "demand"), ("of others", {}, HELD))
        for what, (notes, change) in OF_MARKS.items()
    ),
    *(  # controllers finish their work on managed pods without the webhook
        later(what, GATED, change, of_interest=False, validate="")
        for what, change in OF_OTHERS.items()
    ),
    *(
        later(f"it outgrows the bound of {what}", GOVERNED, change, validate="demand")
        for what, change in GROWN.items()
    ),
    later("their container is resized", RESIZABLE, resized("containers", "main"), "/resize",
          of_interest=False, validate=""),
    later("the sidecar is resized", RESIZABLE, resized("initContainers", "vram-enforcer"),
          "/resize", validate="demand"),
    later("ours is debugged", GOVERNED, debugging(**SHOWING), DEBUG,
          mutate="demand", validate="demand"),
    later("another is debugged", a_pod(), debugging(), DEBUG, of_interest=False,
          mutate="advice", validate="advice"),
    later("another's debugger shows GPUs", a_pod(), debugging(**SHOWING), DEBUG,
          mutate=HELD, validate=HELD),
    later("another's debugger has our name", a_pod(), debugging("vram-enforcer"), DEBUG,
          mutate="demand", validate=HELD),
]  # fmt: skip


@pytest.mark.parametrize(("before", "change", "part", "of_interest", "entries"), CHANGED)
def test_a_change_is_sent_to_one_entry_where_it_matters(
    sent, before, change, part, of_interest, entries, expected
):
    _, name = sent.creating(before, dry_run=False)
    assert sent.patching(name, change, part) == expected(of_interest, **entries)


def test_the_container_that_an_amount_is_for_is_watched(sent):
    _, name = sent.creating(GOVERNED, dry_run=False)
    change = {"metadata": {"annotations": {"kubectl.kubernetes.io/default-container": "other"}}}
    assert sent.patching(name, change)["validate"][1:] == ("demand",)


@pytest.mark.parametrize(("cpu", "of_interest"), [("3", False), ("1", True)])
def test_a_resize_of_the_whole_pod_is_sent(sent, cpu, of_interest):
    needs_pod_level_resources(sent.api)
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "resizing"}}
    sent.api.apply(node)
    status = {
        "allocatable": {"cpu": "8", "memory": "8Gi"},
        "declaredFeatures": ["InPlacePodLevelResourcesVerticalScaling"],
    }
    path, kind = "/api/v1/nodes/resizing/status", "application/merge-patch+json"
    sent.api.request("PATCH", path, {"status": status}, content_type=kind)
    pod = copy.deepcopy(GOVERNED)
    pod["spec"]["nodeName"] = "resizing"
    amounts = {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"cpu": "1"}}
    pod["spec"]["initContainers"][0]["resources"] = amounts
    pod["spec"]["containers"][0]["resources"] = copy.deepcopy(amounts)
    pod["spec"]["resources"] = {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}
    _, name = sent.creating(pod, dry_run=False)
    change = {"spec": {"resources": {"limits": {"cpu": cpu}}}}
    found = sent.patching(name, change, "/resize")
    sent.api.delete(node)
    assert found["validate"] == (of_interest, "demand")


def lists(**more):
    """Return pods at the limits of what is read, or a number of items beyond, keyed by limit."""

    def at(what):
        return CEL_LIMITS[what] + more.get(what, 0)

    def variables(count, start=0):
        return [{"name": f"A{number}", "value": ""} for number in range(start, start + count)]

    def limits(*names):
        return {"resources": {"limits": dict.fromkeys(names, "0")}}

    def with_domain(count, letters):
        return [f"x.io/{number:0{letters - 5}}" for number in range(count)]

    native = ("cpu", "memory", "ephemeral-storage", "hugepages-2Mi", "hugepages-1Gi")
    full, rest = divmod(at("allResources"), len(native))
    volume = {"volumes": [{"name": "v", "emptyDir": {}}]}

    def mounts(count):
        return [{"name": "v", "mountPath": f"/{number}"} for number in range(count)]

    def spread(total, most):
        full, rest = divmod(total, most)
        return [*[most] * full, *[rest] * bool(rest)]

    return {
        "variables": a_pod(containers=[a_container(env=variables(at("variables")))]),
        "allVariables": a_pod(
            containers=[
                a_container(f"c{number}", env=variables(count))
                for number, count in enumerate(spread(at("allVariables"), 1024))
            ]
        ),
        "containers": a_pod(
            containers=[a_container(f"c{number}") for number in range(at("containers"))]
        ),
        "entries": a_pod(annotations={f"a{number}": "" for number in range(at("entries"))}),
        "volumes": a_pod(
            volumes=[{"name": f"v{number}", "emptyDir": {}} for number in range(at("volumes"))]
        ),
        "mounts": a_pod(containers=[a_container(volumeMounts=mounts(at("mounts")))], **volume),
        "allMounts": a_pod(
            containers=[
                a_container(f"c{number}", volumeMounts=mounts(count))
                for number, count in enumerate(spread(at("allMounts"), 1024))
            ],
            **volume,
        ),
        "resources": a_pod(
            containers=[
                a_container(
                    resources={
                        "limits": {f"x.io/r{number}": "0" for number in range(at("resources") - 1)}
                    }
                )
            ]
        ),
        "allResources": a_pod(
            containers=[
                *(a_container(f"c{number}", **limits(*native)) for number in range(full)),
                a_container("rest", **limits(*native[:rest])),
            ]
        ),
        **{
            what: a_pod(
                containers=[
                    a_container(f"c{start}", **limits(*names[start : start + 64]))
                    for start in range(0, len(names), 64)
                ]
            )
            for what, names in {
                "domainResources": with_domain(at("domainResources"), 10),
                "domainCharacters": [
                    *with_domain(at("domainCharacters") // 64 - 1, 64),
                    *with_domain(1, 64 + at("domainCharacters") % 64),
                ],
            }.items()
        },
    }


# A status that lists all containers must be smaller: etcd stores at most 1.5 MiB.
STORABLE = sorted(CEL_LIMITS.keys() - {"allVariables", "allMounts"})
LARGE = lists(**{**dict.fromkeys(CEL_LIMITS, 1), "resources": 2})


@pytest.mark.parametrize("name", LARGE)
def test_a_pod_too_large_to_be_gone_through_is_sent_to_be_judged_by_its_size(sent, name):
    found, _ = sent.creating(LARGE[name])
    assert [entries for _, *entries in found.values()] == [["demand"]] * len(found)


@pytest.mark.parametrize("name", STORABLE)
def test_a_stored_pod_of_such_size_is_changed_without_us(sent, name):
    _, stored = sent.creating(LARGE[name], dry_run=False)
    for change in ({"labels": {"a": "b"}}, {"finalizers": ["example.com/tracking"]}):
        found = sent.patching(stored, {"metadata": change})
        assert [entries for _, *entries in found.values()] == [[]]


@pytest.mark.parametrize("name", STORABLE)
def test_of_such_a_pod_new_debugging_containers_are_looked_at(sent, name):
    _, stored = sent.creating(LARGE[name], dry_run=False)
    for container, entry in (("debug", "advice"), ("vram-enforcer", "demand")):
        found = sent.patching(stored, debugging(container), DEBUG)
        assert found["mutate"][1:] == (entry,)


@pytest.mark.parametrize("name", CEL_LIMITS)
def test_the_largest_lists_that_are_gone_through_cost_no_more_than_an_expression_may(sent, name):
    """The relevant item is last in each list, so the whole list is read."""
    room = {
        "entries": -1,
        "volumes": -2,
        "mounts": -1,
        "allMounts": -17,
    }  # for the volume of a token, and its mounts
    pod = copy.deepcopy(lists(**room)[name])
    found, _ = sent.creating(pod)
    has_domain = name in {"resources", "domainResources", "domainCharacters"}
    assert found["mutate"][1:] == (("advice",) if has_domain else ())
    if name == "entries":
        pod["metadata"]["annotations"]["vramwarden.io/zzz"] = ""
    else:
        pod["spec"].setdefault("volumes", []).append({"name": "vram-enforcer-x", "emptyDir": {}})
    found, _ = sent.creating(pod)
    assert found["mutate"][1:] == ("demand",)


ADMITTED = {
    "entries": lambda n: {"annotations": {f"a{number}": "" for number in range(n - 1)}},
    "volumes": lambda n: {
        "volumes": [{"name": f"v{number}", "emptyDir": {}} for number in range(n)]
    },
}


@pytest.mark.parametrize("name", ADMITTED)
def test_the_largest_pod_that_is_admitted_as_ours_is_seen_whatever_changes(sent, name):
    """Found by its label at any size, including all that mutation and other webhooks may add."""
    pod = a_pod(labels=LABEL, **ADMITTED[name](2 * CEL_LIMITS[name]))
    sidecar = a_container("vram-enforcer", restartPolicy="Always")
    pod["spec"]["initContainers"] = [sidecar]
    _, stored = sent.creating(pod, dry_run=False)
    for change in (
        {"spec": {"initContainers": [{"name": "vram-enforcer", "image": "other"}]}},
        annotated("gpu-memory", "1Gi"),
        {"metadata": {"labels": None}},
    ):
        assert sent.patching(stored, change)["validate"][1:] == ("demand",)
    for change in ({"finalizers": ["example.com/tracking"]}, {"labels": {"app": "x"}}):
        assert sent.patching(stored, {"metadata": change})["validate"][1:] == ()
