"""The second line: the API server alone denies unmutated pods, and GPUs exposed by hand.

The cluster has only this vramwarden policy, and a rule for namespaces of each name. A row is
a pod in a namespace, or a change of an existing pod, and the message that denies it; without one
it is admitted.
"""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chart.admission_policies import is_denied_by, parameter
from tests.chart.fenced import Fenced, mirrored, with_observed
from tests.support.charts import NAMESPACE
from tests.support.control_planes import wait_until
from tests.support.device_annotations import DENIED, HONEST
from tests.support.pods import A100, a_container, a_pod, a_policy, a_request, a_rule
from tests.support.strategies import asking_pods
from webhook.core.admission.decide import decide
from webhook.core.admission.decision import Outcome, Phase
from webhook.core.pod.complexity import CEL_LIMITS
from webhook.core.policy.cluster import Cluster, SlicedNode
from webhook.core.policy.model import (
    Accounting,
    Action,
    EnforceBy,
    GPUClass,
    Placement,
    VisibleDevices,
)
from webhook.names import BINDING_ANNOTATIONS

NAME = "vramwarden-second-line"
SAYS = {
    "untranslated": "create the pod again; it asks for GPU memory and was not translated, or has "
    "lost the label vramwarden.io/managed",
    "no gate": "create the pod again; it would start before it has a GPU",
    "no sidecar": "it asks for GPU memory and lacks the sidecar vram-enforcer",
    "variable": "remove NVIDIA_VISIBLE_DEVICES; it shows GPUs that nobody accounts for",
    "annotation": "remove the annotation by which devices are injected (cdi.k8s.io, devices.gke.io "
    "and others); it shows GPUs that nobody accounts for",
    "marks": "and the label vramwarden.io/managed; only vramwarden writes them",
    "size": "make the pod smaller; it is too large to be judged",
}
GOVERNED = {
    "watched-*": {"action": Action.WARN},
    "audited": {"action": Action.AUDIT},
    "*-ignored": {"action": Action.IGNORE},
    "team-*": {"pod_labels": {"tier": "free"}},
    "*-team": {},
    "lenient": {"visible_devices": VisibleDevices.IGNORE},
    "voiding": {"visible_devices": VisibleDevices.VOID},
    "unplaced": {"placement": Placement.NONE},
    "trusted": {"placement": Placement.NONE, "enforcement": {"by": EnforceBy.NONE}},
    "by-sentry": {"enforcement": {"by": EnforceBy.SENTRY}},
    "by-none": {"enforcement": {"by": EnforceBy.NONE}},
    "sharing": {"translate_whole_gpu_bytes": 16 * 2**30},
    "sliced": {"accounting": Accounting.MIG},
    "slotted": {"accounting": Accounting.CAP_ONLY},
    "both": {"allowed_classes": ("*",)},
    "*": {},
}
"""Special fields of a rule, keyed by namespace pattern; the first match applies."""
RULES = [
    a_rule(name=f"r{number}", namespaces=(pattern,), **{"allowed_classes": ("a100",), **fields})
    for number, (pattern, fields) in enumerate(GOVERNED.items())
]
SLICED = GPUClass("sliced", {}, (), Accounting.MIG)
POLICY = a_policy(*RULES, classes={"a100": A100, "sliced": SLICED})
KNOWN = Cluster(sliced_nodes=(SlicedNode({"1g.10gb": 9728 * 2**20}),))
OBSERVED = a_policy(a_rule(namespaces=("observed",)))


def translated(pod, namespace="default"):
    policy = OBSERVED if namespace == "observed" else POLICY
    decision = decide(a_request(pod, namespace=namespace), policy, KNOWN, Phase.MUTATE)
    assert decision.outcome is Outcome.MUTATED, decision.message
    return copy.deepcopy(decision.obj)


def changed(pod, path, value):
    """Return a pod with the value at a path replaced; None removes the field."""
    pod = holder = copy.deepcopy(pod)
    *keys, last = path
    for key in keys:
        holder = holder[key]
    if value is None:
        del holder[last]
    else:
        holder[last] = value
    return pod


# Variables that expose GPUs, and other variables

VISIBLE, VRAM = "NVIDIA_VISIBLE_DEVICES", "vramwarden.io/vram"
OURS, OTHER, FRACTION = (
    {"fieldRef": {"fieldPath": f"metadata.annotations['vramwarden.io/{key}']"}}
    for key in ("visible-devices", "gpu", "gpu-memory-fraction")
)


def named(**entry):
    return {"name": VISIBLE, **entry}


def visible(**entry):
    return a_container(env=[{"name": "A", "value": "all"}, named(**entry)])


SHOWING = {
    "all": {"value": "all"},
    "an index": {"value": "0"},
    "a GPU": {"value": "GPU-1"},
    "another variable": {"value": "$(A)"},
    "another annotation": {"valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['a']"}}},
    "our annotation": {"valueFrom": OURS},
    "another annotation of ours": {"valueFrom": OTHER},
    "a ConfigMap": {"valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}},
}
SHOWING_NONE = [{"value": "void"}, {"value": "none"}, {"value": ""}, {}]
BY_VARIABLE = a_pod(containers=[visible(value="all")])
CDI_KEY = "nvidia.cdi.k8s.io/container.main"
CDI = a_pod(annotations={CDI_KEY: "nvidia.com/gpu=all"})
INJECTING = {
    "one container": {CDI_KEY: "nvidia.com/gpu=all"},
    "the pod": {"nvidia.cdi.k8s.io/pod": "nvidia.com/gpu=0"},
    "the bare key": {"nvidia.cdi.k8s.io": "nvidia.com/gpu=0"},
    "CRI-O's": {"cdi.k8s.io/x": "k8s.device-plugin.nvidia.com/gpu=0"},
    "management": {"nvidia.cdi.k8s.io/pod": "management.nvidia.com/gpu=all"},
    "second of two": {"cdi.k8s.io/x": "example.com/fpga=0,nvidia.com/gpu=0"},
    "after a blank": {"cdi.k8s.io/x": "example.com/fpga=0, runtime.nvidia.com/gpu=0"},
}
INJECTING_NONE = {
    "cdi.k8s.io/x": "example.com/fpga=0",
    "cdi.k8s.io/y": "my-nvidia.com/gpu=0",
    "cdi.k8s.io/z": "nvidia.com.example.com/gpu=0",
    "example.com/cdi.k8s.io": "nvidia.com/gpu=0",
    "cdi.k8s.iox": "nvidia.com/gpu=0",
}
MARKS = [*BINDING_ANNOTATIONS]
LABEL = {"vramwarden.io/managed": "true"}
MARKED = a_pod(labels=LABEL, annotations={"vramwarden.io/gpu": "GPU-1"})
NOBODY_HELD = ("watched-a", "audited", "an-ignored", "team-a", "observed")


def shown(main=(), second=(), namespace="default"):
    """Return a mutated pod with two containers and additional device variables."""
    pod = translated(a_pod("8Gi", containers=[a_container(), a_container("second")]), namespace)
    for container, entries in zip(pod["spec"]["containers"], (main, second), strict=True):
        container["env"] = [named(**entry) for entry in entries] or container.get("env", [])
    return pod


# Pods at creation


def new(what, pod, said="", namespace="default"):
    return pytest.param(pod, namespace, said, id=what)


LIMITED = {"resources": {"limits": {VRAM: "8Gi"}}}
EXPLICIT = a_pod(containers=[a_container(**LIMITED)])
ASKING = {
    "an annotation": a_pod("8Gi"),
    "a resource": EXPLICIT,
    "a list": a_pod("main=8Gi"),
    "an init container": a_pod(initContainers=[a_container("init", **LIMITED)]),
}
SIDECAR, NOTES = ("spec", "initContainers", 0), ("metadata", "annotations")
ADMITTED = (*NOTES, "vramwarden.io/admitted")
LOST = {
    "the sidecar": (SIDECAR, None, "no sidecar"),
    "the sidecar's name": ((*SIDECAR, "name"), "other", "no sidecar"),
    "the cap": ((*SIDECAR, "env", 0), {"name": "VRAM_CAP_BYTES"}, "no sidecar"),
    "the number": ((*SIDECAR, "env", 0, "value"), "none", "no sidecar"),
    "the shared processes": (("spec", "shareProcessNamespace"), None, "no sidecar"),
    "its process namespace": (("spec", "shareProcessNamespace"), False, "no sidecar"),
    "the label's value": (
        *(("metadata", "labels"), {"vramwarden.io/managed": "false"}, "untranslated"),
    ),
    "the label": (("metadata", "labels"), None, "untranslated"),
    "the mark": (ADMITTED, None, "untranslated"),
    "the amount": (("spec", "containers", 0, "resources"), None, "untranslated"),
}
"""Path in a mutated pod, the value that replaces it, and the message of the denial."""
NOT_ASKING = {
    "nothing": a_pod(),
    "annotations of others": a_pod(annotations={"example.com/a": "1"}, labels={"app": "web"}),
    "a whole GPU": a_pod(containers=[a_container(resources={"limits": {"nvidia.com/gpu": "1"}})]),
    "a variable": a_pod(initContainers=[a_container("i", env=[{"name": "A", "value": "1"}])]),
}
EXEMPT = ("kube-system", "gpu-operator", "nvidia-device-plugin", NAMESPACE, "kube-flannel")
OF_CLASS = {"vramwarden.io/gpu-class": "sliced"}
PLUGINS = [("sliced", {}), ("slotted", {}), ("both", OF_CLASS), ("both", {})]
"""Namespaces whose GPUs a plugin counts, so pods need no vramwarden amount."""
POSING = {**visible(valueFrom=OURS), "name": "vram-enforcer"}
MOST = {f"example.com/a{number}": "" for number in range(1280)}
LARGE = {
    **{
        f"{count} variables": a_pod(containers=[a_container(env=[{"name": "A"}] * count)])
        for count in (2561, 60_000)
    },
    "containers": a_pod(containers=[a_container(f"c{number}") for number in range(515)]),
    "annotations": a_pod(annotations={f"a{number}": "" for number in range(2561)}),
    **{
        what: a_pod(
            containers=[
                a_container(f"c{index}", resources={"limits": dict.fromkeys(names, "0")})
                for index, names in enumerate(each)
            ]
        )
        for what, each in {
            "resources": [[f"a.com/{number}" for number in range(67)]],
            "resources in all": [
                ["cpu", "memory", "ephemeral-storage", "hugepages-2Mi", "hugepages-1Gi"]
            ]
            * 513,
            "resources with a domain": [[f"a{i}.com/{n}" for n in range(33)] for i in range(8)],
            "characters": [[f"a{i}.com/{'x' * 57}{n:02}" for n in range(16)] for i in range(7)],
        }.items()
    },
}
WHOLE = {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1"}}
WHOLE_GPU = a_pod(containers=[a_container(resources=WHOLE)])


def in_plugins():
    """Yield rows of pods that request the resources of a plugin."""
    for namespace, notes in PLUGINS:
        for how, asks in {"annotation": a_pod("8Gi"), "resource": EXPLICIT}.items():
            pod = copy.deepcopy(asks)
            pod["metadata"].setdefault("annotations", {}).update(notes)
            done = translated(pod, namespace)
            what = f"{namespace}{' of a class' * bool(notes)}, by {how}"
            yield new(what, pod, "untranslated", namespace)
            yield new(f"{what}, translated", done, "", namespace)
            yield new(f"{what}, unmarked", changed(done, ADMITTED, None), "untranslated", namespace)
            if namespace == "slotted" or (namespace == "both" and not notes):
                bare = changed(done, SIDECAR, None)
                yield new(f"{what}, without the sidecar", bare, "no sidecar", namespace)


GATE, ASSIGNMENT = "vram-gate", "VRAMWARDEN_GPU_ASSIGNMENT"
GATED = {
    "default": ["vram-enforcer"],
    **{namespace: ["main", "init", "side"] for namespace in ("by-sentry", "by-none")},
}
"""Containers with the gate, keyed by namespace; a fourth container has no VRAM."""
OF_GATE = {
    "without the variable": lambda env, _: env.remove(by_name(env, ASSIGNMENT)),
    "with the variable twice": lambda env, _: env.append({"name": ASSIGNMENT, "value": "0.5"}),
    "with the same variable twice": lambda env, _: env.append(by_name(env, ASSIGNMENT)),
    "with a variable by hand": lambda env, _: env.append(
        {"name": env.pop(env.index(by_name(env, ASSIGNMENT)))["name"], "value": "0.5"}
    ),
    "from another annotation": lambda env, _: by_name(env, ASSIGNMENT).update(valueFrom=OTHER),
    "without the mount": lambda _, mounts: mounts.remove(by_name(mounts, GATE)),
    "with a writable mount": lambda _, mounts: by_name(mounts, GATE).update(readOnly=False),
    "with a mount of all": lambda _, mounts: by_name(mounts, GATE).pop("subPathExpr"),
    "with a second mount": lambda _, mounts: mounts.append({"name": GATE, "mountPath": "/x"}),
}


def by_name(entries, name):
    return next(found_entry for found_entry in entries if found_entry["name"] == name)


def gated_pods():
    """Yield rows of pods whose gate another webhook removed after vramwarden."""
    asking = a_pod(
        "main=8Gi,init=8Gi,side=8Gi",
        containers=[a_container(), a_container("second")],
        initContainers=[a_container("init"), a_container("side", restartPolicy="Always")],
    )
    for namespace, names in GATED.items():
        done = translated(asking, namespace)
        yield new(f"gated, {namespace}", done, "", namespace)
        for name in names:
            for what, change in OF_GATE.items():
                pod = copy.deepcopy(done)
                container = by_name(pod["spec"]["containers"] + pod["spec"]["initContainers"], name)
                change(container["env"], container["volumeMounts"])
                yield new(f"{name} {what}, {namespace}", pod, "no gate", namespace)
        pod = copy.deepcopy(done)
        volume = by_name(pod["spec"]["volumes"], GATE)
        del volume["emptyDir"]
        volume["configMap"] = {"name": "m"}
        yield new(f"gated by another volume, {namespace}", pod, "no gate", namespace)


def with_annotation(pod):
    """Return a pod of `device_annotations` without its last annotation, and that annotation."""
    (key, *_), pod = pod["metadata"]["annotations"], copy.deepcopy(pod)
    value = pod["metadata"]["annotations"].pop(key)
    if pod["metadata"]["annotations"]:
        return translated(a_pod("8Gi", containers=pod["spec"]["containers"])), {key: value}
    return pod, {key: value}


def annotated(pod, notes):
    return changed(pod, NOTES, {**pod["metadata"].get("annotations", {}), **notes})


INJECTORS = {
    **{f"honest: {what}": (*with_annotation(pod), "") for what, pod in HONEST.items()},
    **{f"denied: {what}": (*with_annotation(pod), "annotation") for what, pod in DENIED.items()},
    **{what: (a_pod(), notes, "annotation") for what, notes in INJECTING.items()},
    "none of GPUs": (a_pod(), INJECTING_NONE, ""),
}
"""A pod, annotations, and the message that denies the pod with them."""
OF_GPUS = {
    f"honest: {what}"
    for what in ("TCPX", "TCPXO", "G4", "Kata", "Kata by model", "its own card", "two of two")
}
"""Valid pods that name GPUs because they have some."""


def placed(pod):
    """Return a pod whose creator chose the node."""
    return changed(pod, ("spec", "nodeName"), "n1")


CREATED = [
    # Demands, mutated or not
    *(new(f"asks by {how}", pod, "untranslated") for how, pod in ASKING.items()),
    *(new(f"asks for {what}", pod) for what, pod in NOT_ASKING.items()),
    *(new(f"asks in {name}", a_pod("8Gi"), "", name) for name in EXEMPT),
    *(
        new(f"asks in {name}", a_pod("8Gi"), said, name)
        for said, names in {
            "untranslated": (
                *("my-kube-x", "kube", "gpu-operator-2", "a-nvidia-b"),  # not quite exempt
                *("watched", "a-watched-a", "ignored", "a-team", "observed"),
            ),
            "": ("watched-a", "audited", "an-ignored", "team-a", "team-team", "labelled"),
        }.items()
        for name in names
    ),
    *(
        new(f"is translated in {name}", translated(a_pod("8Gi"), name), "", name)
        for name in ("default", "a-team", "trusted", "unplaced", "observed", "both")
    ),
    *(
        new(f"lost {what}", changed(translated(a_pod("8Gi")), *change), said)
        for what, (*change, said) in LOST.items()
    ),
    new(
        "lost the mark, where no sidecar is",
        changed(translated(a_pod("8Gi"), "trusted"), ADMITTED, None),
        "untranslated",
        "trusted",
    ),
    *in_plugins(),
    *gated_pods(),
    new("has a whole GPU where that is a share", WHOLE_GPU, "", "sharing"),
    new("has a share in its place", translated(WHOLE_GPU, "sharing"), "", "sharing"),
    new(
        "has a share in its place, unmarked",
        changed(translated(WHOLE_GPU, "sharing"), ADMITTED, None),
        "untranslated",
        "sharing",
    ),
    # GPUs named by hand
    *(
        new(
            f"{field} names {what}",
            a_pod(**{"containers": [a_container("other")], field: [visible(**entry)]}),
            "variable",
        )
        for field in ("containers", "initContainers")
        for what, entry in SHOWING.items()
    ),
    *(new(f"names none: {item}", a_pod(containers=[visible(**item)])) for item in SHOWING_NONE),
    *(
        new(f"{what}, {namespace}", pod, "", namespace)
        for namespace in (*NOBODY_HELD, "lenient", "kube-system", "labelled")
        for what, pod in {"by variable": BY_VARIABLE, "by annotation": CDI}.items()
    ),
    new("by variable, where it is voided", BY_VARIABLE, "", "voiding"),
    new("by annotation, where variables are voided", CDI, "annotation", "voiding"),
    new("as translation does", shown([{"valueFrom": OURS}])),
    new("from another annotation", shown([{"valueFrom": OTHER}]), "variable"),
    new("as translation does, elsewhere", shown((), [{"valueFrom": OURS}]), "variable"),
    new("in place of translation", shown([{"value": "all"}]), "variable"),
    new("all, where none are chosen", shown(namespace="unplaced"), "", "unplaced"),
    new(
        "all, elsewhere",
        shown((), [{"value": "all"}], namespace="unplaced"),
        "variable",
        "unplaced",
    ),
    new("as if it were the sidecar", a_pod(containers=[POSING]), "variable"),
    new(
        "by the sidecar",
        changed(
            translated(a_pod("8Gi")),
            (*SIDECAR, "env"),
            [
                {"name": "VRAM_CAP_BYTES", "value": "1"},
                named(valueFrom=OURS),
                {"name": "VRAMWARDEN_GPU_ASSIGNMENT", "valueFrom": FRACTION},
            ],
        ),
    ),
    *(
        new(f"is annotated, {what}", annotated(pod, notes), said)
        for what, (pod, notes, said) in INJECTORS.items()
    ),
    *(
        new(f"is annotated where its creator chose the node, {what}",
            placed(annotated(pod, notes)), "annotation" if what in OF_GPUS else said)
        for what, (pod, notes, said) in INJECTORS.items()
    ),
    # The lists have the webhook's limits.
    new("one more among many", a_pod(annotations={**MOST, "cdi.k8s.io/b": ""}), "annotation"),
    new(
        "the last of many",
        a_pod(annotations={**dict(list(MOST.items())[1:]), "cdi.k8s.io/b": ""}),
    ),
    # Fields that only vramwarden writes
    new("our label without a demand", a_pod(labels=LABEL), "marks"),
    *(new(f"{key} without a demand", a_pod(annotations={key: "1"}), "marks") for key in MARKS),
    *(
        new(f"{key} beside one, {name}",
            annotated(translated(a_pod("8Gi"), name), {key: "1"}), "marks", name)
        for name in ("default", "observed")
        for key in MARKS
    ),
    *(new(f"marks in {name}", MARKED, "", name) for name in (*NOBODY_HELD, *EXEMPT, "labelled")),
    # A large pod must not bypass the policy. The API server would need seconds to evaluate longer
    # lists.
    *(new(f"too many {what}", pod, "size") for what, pod in LARGE.items()),
    *(new(f"too many {what}, exempt", pod, "", "nvidia-driver") for what, pod in LARGE.items()),
]  # fmt: skip


# Existing pods


@pytest.fixture(scope="module")
def cluster(control_plane, helm):
    """Return the cluster. Two of its pods could not be created later."""
    found = Fenced(control_plane, helm, NAME)
    found.namespace("labelled", {"vramwarden.io/webhook": "disabled"})
    found.stored = {name: found.create(pod, dry_run=False) for name, pod in STORED.items()}
    debugger = {"spec": {"ephemeralContainers": [{**visible(value="all"), "name": "showing"}]}}
    found.patch(found.stored["is debugged"], debugger, "/ephemeralcontainers", dry_run=False)
    yield found.under(with_observed(POLICY, OBSERVED))
    found.close()


STORED = {"is debugged": a_pod(), "is annotated": CDI}
DEBUG = "/ephemeralcontainers"


def later(what, pod, change, said="", part="", namespace="default"):
    """Return a row for a change of one of `STORED`."""
    return pytest.param(pod, change, part, namespace, said, id=what)


def annotating(**notes):
    return {"metadata": {"annotations": notes}}


def debugging(container, name="new"):
    return {"spec": {"ephemeralContainers": [{**container, "name": name}]}}


CHANGED = [
    *(
        later(f"is annotated, {what}", pod, annotating(**notes), said)
        for what, (pod, notes, said) in INJECTORS.items()
    ),
    *(
        later(
            f"is annotated once it is bound, {what}",
            placed(pod),
            annotating(**notes),
            "annotation" if what in OF_GPUS else said,
        )
        for what, (pod, notes, said) in INJECTORS.items()
    ),
    *(
        later(f"of one that is annotated already, {what}", "is annotated", change, said)
        for what, change, said in (
            ("a label", {"metadata": {"labels": {"app": "web"}}}, ""),
            ("another annotation", annotating(a="1"), ""),
            ("the annotation goes", annotating(**{CDI_KEY: None}), ""),
            ("it changes", annotating(**{CDI_KEY: "nvidia.com/gpu=1"}), "annotation"),
        )
    ),
    *(
        later(f"a debugger that {what}", "is debugged", debugging(container, name), said, DEBUG)
        for what, container, name, said in (
            ("shows none", a_container(), "new", ""),
            ("names none", visible(value="void"), "new", ""),
            ("names one", visible(value="0"), "new", "variable"),
            ("names ours", visible(valueFrom=OURS), "new", "variable"),
            ("poses as the sidecar", visible(valueFrom=OURS), "vram-enforcer", "variable"),
        )
    ),
    *(
        later(f"a debugger, {name}", a_pod(), debugging(visible(value="all")), "", DEBUG, name)
        for name in (*NOBODY_HELD, "lenient")
    ),
]


def assert_says(why, said):
    if not said:
        assert why == ""
    else:
        assert is_denied_by(why, NAME)
        assert SAYS[said] in why


@pytest.mark.parametrize(("pod", "namespace", "said"), CREATED)
def test_what_is_said_of_a_pod_that_is_created(cluster, pod, namespace, said):
    assert_says(cluster.denies(pod, namespace), said)


@pytest.mark.parametrize(("pod", "change", "part", "namespace", "said"), CHANGED)
def test_what_is_said_of_a_change(cluster, pod, change, part, namespace, said):
    is_there = isinstance(pod, str)
    stored = cluster.stored[pod] if is_there else cluster.create(pod, namespace, dry_run=False)
    assert_says(cluster.rejects(stored, change, part), said)


def test_mirror_pods_of_kubelets_are_left_alone_and_forged_ones_are_not(cluster):
    with mirrored(cluster, a_pod("8Gi")) as (kubelet, pod):
        assert cluster.denies(pod, api=kubelet) == ""
        assert_says(cluster.denies(pod), "untranslated")


def test_the_gates_of_the_largest_pod_cost_no_more_than_an_expression_may(cluster):
    """All containers wait. A list that exceeds its limit would be denied as too large."""
    pod = translated(a_pod("8Gi"), "by-sentry")
    (main,) = pod["spec"]["containers"]
    variables, mounts = CEL_LIMITS["allVariables"] // 512 - 1, CEL_LIMITS["allMounts"] // 512 - 2
    main["env"] += [{"name": "A"}] * (variables - len(main["env"]))
    main["volumeMounts"] += [{"name": "data", "mountPath": f"/{n}"} for n in range(mounts)]
    pod["spec"]["volumes"].append({"name": "data", "emptyDir": {}})
    pod["spec"]["containers"] = [{**main, "name": f"c{number}"} for number in range(512)]
    assert cluster.denies(pod, "by-sentry") == ""
    last = pod["spec"]["containers"][-1]
    last["env"] = [*last["env"], {"name": ASSIGNMENT}]
    assert_says(cluster.denies(pod, "by-sentry"), "no gate")


@given(asking_pods())
def test_what_the_webhook_translates_is_never_denied(cluster, pod):
    pod = copy.deepcopy(pod)
    pod["spec"].pop("someFieldOfTheFuture", None)
    decision = decide(a_request(pod, namespace="default"), POLICY, KNOWN, Phase.MUTATE)
    if decision.outcome is Outcome.MUTATED:
        assert not is_denied_by(cluster.denies(decision.obj), NAME)
        assert is_denied_by(cluster.denies(pod), NAME)


ENTRIES = st.lists(
    st.sampled_from([*SHOWING.values(), *SHOWING_NONE]).map(lambda entry: named(**entry))
    | st.just({"name": "A", "value": "all"}),
    max_size=2,
)
ANNOTATIONS = st.dictionaries(
    st.sampled_from(["nvidia.cdi.k8s.io/pod", "nvidia.cdi.k8s.io", "cdi.k8s.io/x", "a.com/x"]),
    st.sampled_from(["nvidia.com/gpu=0", "a.nvidia.com/gpu=0", "xnvidia.com/a=b", "a.com/b=c"]),
    max_size=2,
)


@given(ENTRIES, ENTRIES, ANNOTATIONS)
def test_it_judges_as_the_webhook_does(cluster, first, second, annotations):
    pod = a_pod(
        containers=[a_container(env=first)],
        initContainers=[a_container("init", env=second)],
        annotations=annotations,
    )
    request = a_request(pod, namespace="default")
    decision = decide(request, POLICY, KNOWN, Phase.VALIDATE)
    assert bool(cluster.denies(pod)) == (decision.outcome is Outcome.DENIED)


def test_without_the_parameter_or_without_rules_nothing_is_denied(cluster, api):
    """This test must be the last one."""
    api.delete(parameter())
    wait_until("it is gone", lambda: cluster.denies(BY_VARIABLE) == "")
    for rules in (None, a_policy(rules=())):
        if rules:
            cluster.under(rules)
        assert [cluster.denies(pod) for pod in (a_pod("8Gi"), BY_VARIABLE, CDI, MARKED)] == [""] * 4
        pod, debugger = cluster.create(a_pod(), dry_run=False), debugging(visible(value="all"))
        assert cluster.rejects(pod, debugger, DEBUG) == ""
