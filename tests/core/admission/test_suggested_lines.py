"""Each line that a message suggests is admitted by the rule that sent the message."""

from __future__ import annotations

import ast
import copy
import json
import re
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.core.admission.decisions import (
    GI,
    a_bound_pod,
    a_debugger,
    a_full_pod,
    decide_debugging,
    decide_pod,
    decide_update,
    merge_into_container,
    stored_pod,
)
from tests.core.admission.faults import (
    CONTAINER_FAULTS,
    DEBUGGER_FAULTS,
    DEMAND_FAULTS,
    SPEC_FAULTS,
)
from tests.core.admission.rules.program_rows import ROWS
from tests.core.admission.test_denial_messages import DENIALS
from tests.support.follow_advice import annotate, followed, respelled
from tests.support.paths import ROOT
from tests.support.pods import A100, a_container, a_pod, a_policy, a_request, a_rule
from webhook.core.admission.decide import decide
from webhook.core.admission.decision import Outcome, Phase
from webhook.core.pod.findings import Reason
from webhook.core.pod.memory_annotation import HELPER_CONTAINERS
from webhook.core.pod.other_products import OTHER_PRODUCTS_BY_ANNOTATION, OTHER_PRODUCTS_BY_RESOURCE
from webhook.core.policy.cluster import UNKNOWN_CLUSTER
from webhook.core.policy.gpu_resources import WHOLE_GPU_RESOURCES
from webhook.core.policy.model import Accounting, Action, Isolation, MemoryBounds, RunAs
from webhook.names import REQUEST_ANNOTATIONS

MEMORY, CLASS, COUNT = REQUEST_ANNOTATIONS
VRAM = "vramwarden.io/vram"
NO_CURE = ("TooComplex", "Unmutated")
UNNAMED = "without a name it goes to"


def judged(pod, policy):
    return decide(a_request(respelled(pod)), policy, UNKNOWN_CLUSTER, Phase.MUTATE)


def messages(decision):
    """Return reason, path and detail of each message of a decision.

    Lines that add a limit come first, since another line may remove the resource. Later list items
    come before earlier items, so that the other paths stay valid. Bounds come last.
    """
    said = [(found.reason, found.path, found.detail) for found in decision.findings]
    for note in (*decision.unread_keys, *decision.notes):
        path, detail = note.split(": ", 1)
        detail = detail.removeprefix("beside that, ")
        reason, _, rest = detail.partition(": ")
        said.append((reason, path, rest) if reason in {*Reason} else ("", path, detail))
    said.reverse()
    return sorted(
        said, key=lambda one: (one[2].startswith("asks for "), "set limits[" not in one[2])
    )


def ways(pod, said):
    """Yield a pod for each suggested line of a decision, with the findings that may remain.

    The first lines of all messages are applied together: only findings without a line may remain.
    For an alternative line of a message, the first lines about the same field are applied as well.
    """
    lines = [len(followed(pod, path, detail)) for _, path, detail in said]
    no_line = {one[:2] for one, some in zip(said, lines, strict=True) if not some}
    for chosen, (_, path, detail) in enumerate(said):
        for number in range(lines[chosen]):
            after, left = copy.deepcopy(pod), set(no_line)
            for index, (reason, where, what) in enumerate(said):
                if index == chosen:
                    after = followed(after, where, what)[number]
                elif number and where != path:
                    left |= {(reason, where), (reason, "")}  # may be of another container
                elif made := followed(after, where, what):
                    after = made[0]
            yield detail, after, left


def assert_lines_are_admitted(pod, policy):
    decision = judged(pod, policy)
    if {*decision.reasons} & {*NO_CURE} or (decision.outcome is Outcome.MALFORMED):
        return
    before = respelled(pod)
    for detail, after, left in ways(before, messages(decision)):
        again = judged(after, policy)
        wrong = [
            found
            for found in again.findings
            if (found.reason, found.path) not in left and (found.reason, "") not in left
        ]
        shown = json.dumps(after["metadata"]) + json.dumps(after["spec"])
        assert not wrong, f"{detail}\n-> {again.message or again.findings}\n{shown}"
        if not (decision.findings or left):
            before_and_after = (*again.unread_keys, *again.notes)
            known = {*decision.unread_keys, *decision.notes}
            repeated = {one for one in before_and_after if one in known or UNNAMED in one}
            assert not repeated, f"{detail}\n-> {repeated}\n{shown}"
    for warning in (*decision.unread_keys, *decision.notes):
        path, detail = warning.split(": ", 1)
        is_after_a_line = detail.startswith("beside that, ")
        for after in () if is_after_a_line else followed(before, path, detail):
            again = judged(after, policy)
            assert warning not in (*again.unread_keys, *again.notes), json.dumps(after["metadata"])


@pytest.mark.parametrize("memory", ["8Gi", "1.5Gi", "8e9"])
@pytest.mark.parametrize("names", [("main", "side"), ("istio-proxy", "main", "side", "more")])
def test_the_line_that_names_the_first_container_leaves_no_warning(names, memory):
    pod = a_pod(memory, containers=[a_container(name) for name in names])
    decision = judged(pod, a_policy())
    ((_, path, detail),) = messages(decision)
    assert path == f"metadata.annotations[{MEMORY}]"
    assert detail.startswith(f"write main={memory}; ")
    (after,) = followed(pod, path, detail)
    again = judged(after, a_policy())
    assert again.notes == ()
    assert again.obj["spec"] == decision.obj["spec"]


A10 = replace(A100, name="a10", node_selector={})
RULES = {
    "no bounds": a_rule(),
    "at most 4Gi": a_rule(memory=MemoryBounds(max_bytes=4 * GI)),
    "at most 8G": a_rule(memory=MemoryBounds(max_bytes=7630 * 2**20)),
    "at least 16Gi": a_rule(memory=MemoryBounds(min_bytes=16 * GI)),
    "between": a_rule(memory=MemoryBounds(2 * GI, 3 * GI), max_gpu_count=1),
    "of a class": a_rule(default_class="a100"),
    "a class alone": a_rule(allowed_classes=("a10",), max_gpu_count=1),
    "no class": a_rule(allowed_classes=()),
    "slots": a_rule(accounting=Accounting.CAP_ONLY),
    "a share for a GPU": a_rule(translate_whole_gpu_bytes=2 * GI),
    "non-root": a_rule(isolation=Isolation.NON_ROOT, host_paths=("/data",)),
    "as the workload": a_rule(enforcement={"run_as": RunAs.WORKLOAD}),
    "warns": a_rule(action=Action.WARN, memory=MemoryBounds(max_bytes=4 * GI)),
}
POLICIES = {
    name: a_policy(
        rule, classes={"a100": A100, "a10": A10}, whole_gpu_resources=WHOLE_GPU_RESOURCES
    )
    for name, rule in RULES.items()
}
AMOUNTS = (
    *("8GB", "8gb", "8G", "8Gi", "8 Gi", "8 GiB", "8GIB", "8Go", "8,5Gi", "1,000Mi", "8", "8192"),
    *("3k", "3000", "10k", "2k", "1Ki", "0.5", "500m", "50%", "1/2", "0", "-8Gi", "", "80GB"),
    *("NaN", "9Ei", "20Mi", "2Ti", "3Gi", "90Gi", "x"),
)
LISTS = (
    *("main=8GB", "main=8GB, side=4Gi", "main=3Gi,side=8,5Gi", "main:8Gi", "main=8Gi; side=2Gi"),
    *("8Gi, 4Gi", "main=8Gi,", "main=8Gi,main=2Gi", "other=8Gi", "main=0.5,side=50%", "main=90Gi"),
    *("main=8Gi side=2Gi", "main", "=8Gi", "main=", "side=8GB,other=1Gi", "main=2Gi,side=2Gi"),
    "3Gi",
)


def with_limits(**amounts):
    resources = {"limits": {name.replace("__", "/"): one for name, one in amounts.items()}}
    return a_pod(containers=[a_container("main", resources=resources), a_container("side")])


def limited(*amounts, memory=None, **fields):
    """Return a pod with a container for each of these limits, and a container without a limit."""
    made = [a_container(f"c{n}", resources={"limits": one}) for n, one in enumerate(amounts)]
    return a_pod(memory, containers=[*made, a_container("rest")], **fields)


GPU, HAMI, PERCENT = "nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpumem-percentage"
FOREIGN = {
    "HAMi's example": limited({GPU: "1", HAMI: "3000"}),
    "HAMi, two GPUs": limited({GPU: "2", HAMI: "3000"}),
    "HAMi, two containers": limited({GPU: "1", HAMI: "3000"}, {GPU: "1", HAMI: "1000"}),
    "HAMi, in the second container": limited({"cpu": "1"}, {GPU: "1", HAMI: "3000"}),
    "HAMi, one of two in whole": limited({GPU: "1", HAMI: "3000"}, {GPU: "1"}),
    "HAMi, in percent": limited({GPU: "1", PERCENT: "50"}),
    "HAMi, both": limited({GPU: "1", HAMI: "6000"}, {GPU: "1", PERCENT: "50"}),
    "HAMi, a unit": limited({GPU: "1", HAMI: "16Gi"}),
    "HAMi, none": limited({GPU: "1", HAMI: "0"}),
    "HAMi, too much": limited({GPU: "1", HAMI: "90000"}),
    "HAMi, compute": limited({GPU: "1", HAMI: "3000", "nvidia.com/gpucores": "30"}),
    "Volcano": limited({"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "10000"}),
    "Volcano, in GPUs": limited({"volcano.sh/vgpu-number": "2"}),
    "gpushare in GiB": limited({"aliyun.com/gpu-mem": "3"}),
    "gpushare in MiB": limited({"aliyun.com/gpu-mem": "2000"}),
    **{f"{name} alone": limited({name: "2"}) for name in OTHER_PRODUCTS_BY_RESOURCE},
    **{
        f"{key} {one}": a_pod(annotations={key: one})
        for key in OTHER_PRODUCTS_BY_ANNOTATION
        for one in ("2000", "0.5", "8Gi", "8GB")
    },
    "with a fault beside": limited({GPU: "1", HAMI: "3000"}, hostPID=True, nodeName="n"),
    "on other nodes": limited({GPU: "1", HAMI: "3000"}, nodeSelector={"vramwarden.io/gpu": "no"}),
}
NEAR = (
    {
        f"{key}: {value}": a_pod(annotations={key: value})
        for key in (
            "vramwarden/gpu-memory",
            "gpu-mem",
            "vram",
            "vramwarden.io/gpu-mem",
            "vramwarden.io/memory",
        )
        for value in ("8Gi", "8GB", "8", "8192", "90Gi", "main=2Gi", "0.5", "a b", "\x1b[2J")
    }
    | {
        f"{key}: {value}": a_pod(annotations={key: value})
        for key in ("vramwarden/gpu-count", "vramwarden/gpu-class", "vramwarden.io/gpu-cuont")
        for value in ("1", "2", "x", "a100", "a10", "02", "٣")
    }
    | {
        f"{key}: {value}, two containers": a_pod(
            annotations={key: value}, containers=[a_container("main"), a_container("side")]
        )
        for key in ("vramwarden/gpu-memory", "vramwarden.io/gpu-mem")
        for value in ("8Gi", "8GB", "90Gi", "x")
    }
    | {
        "all three": a_pod(
            annotations={
                "vramwarden/gpu-count": "2",
                "vramwarden/gpu-class": "a10",
                "vramwarden/gpu-memory": "2Gi",
            }
        ),
        "a count beside": a_pod("2Gi", annotations={"vramwarden.com/gpu-count": "2"}),
        **{
            f"label {key}: {value}": a_pod(labels={key: value})
            for key, value in (
                (MEMORY, "3Gi"),
                (MEMORY, "8GB"),
                (CLASS, "a10"),
                (COUNT, "1"),
                ("vramwarden/gpu-memory", "8GB"),
            )
        },
        **{
            f"resource {name}": limited({name: one})
            for name, one in (
                ("vramwarden.io/gpu-memory", "8Gi"),
                ("vramwarden.io/gpu-mem", "8"),
                ("vramwarden.io/gpu-count", "2"),
                ("vramwarden.io/gpu", "1"),
                ("vram-warden.io/vram", "8GB"),
            )
        },
    }
)
WHOLE = {
    f"{resource} {one}{' and a share' if memory else ''}": limited({resource: one}, memory=memory)
    for resource in (GPU, "nvidia.com/mig-1g.10gb", "amd.com/gpu", HAMI, "nvidia.com/gpu.shared")
    for one in ("1", "0.5", "-1", "2")
    for memory in (None, "3Gi", "8GB")
} | {
    "half of one in the second": limited({"cpu": "1"}, {GPU: "0.5"}),
    "requests alone": a_pod(containers=[a_container(resources={"requests": {GPU: "1"}})]),
    "half requested": a_pod(containers=[a_container(resources={"requests": {GPU: "0.5"}})]),
    "requests alone, and a share": a_pod(
        "8GB", containers=[a_container(resources={"requests": {GPU: "1"}})]
    ),
    "unequal": a_pod(
        containers=[a_container(resources={"requests": {GPU: "1"}, "limits": {GPU: "2"}})]
    ),
    "a claim": a_pod("3Gi", annotations={COUNT: "1"}, resourceClaims=[{"name": "g"}]),
}


def explicit(request=None, limit=None, memory=None, **notes):
    resources = {"requests": {VRAM: request}, "limits": {VRAM: limit}}
    kept = {kind: one for kind, one in resources.items() if one[VRAM] is not None}
    return a_pod(memory, containers=[a_container(resources=kept)], annotations=notes)


DEMANDS = {
    **{f"memory {one}": a_pod(one) for one in AMOUNTS},
    **{
        f"list {one}": a_pod(one, containers=[a_container("main"), a_container("side")])
        for one in LISTS
    },
    **{f"limit {one}": explicit(limit=one) for one in AMOUNTS},
    **{f"request {one}": explicit(one) for one in AMOUNTS},
    **{f"request {one} of 4Gi": explicit(one, "4Gi") for one in ("2Gi", "8GB", "0.5")},
    **{f"{one} beside 2Gi": explicit(limit="2Gi", memory=one) for one in ("3Gi", "8GB", "90Gi")},
    **{
        f"count {one}": a_pod("3Gi", annotations={COUNT: one}) for one in ("two", "0", "2", "99999")
    },
    **{f"count {one} of 8GB": a_pod("8GB", annotations={COUNT: one}) for one in ("two", "2")},
    **{
        f"{key} alone": a_pod(annotations={key: one}) for key, one in ((COUNT, "1"), (CLASS, "a10"))
    },
    **{
        f"class {one} of {size}": a_pod(size, annotations={CLASS: one})
        for one in ("h100", "a100", "")
        for size in ("3Gi", "30Gi", "8GB", "90Gi")
    },
    "the default container": a_pod(
        "3Gi", annotations={"kubectl.kubernetes.io/default-container": "x"}
    ),
}


DEVICES = "/var/run/nvidia-container-devices"
UNCONFINED = {"appArmorProfile": {"type": "Unconfined"}, "runAsUser": 1}
SECURED = {
    "no user": a_pod("3Gi"),
    "two users": a_pod(
        "main=1Gi,side=2Gi",
        containers=[
            a_container(name, securityContext={"runAsUser": user})
            for name, user in (("main", 1), ("side", 2))
        ],
    ),
    "two profiles": a_pod(
        "main=1Gi,side=2Gi",
        containers=[
            a_container("main", securityContext=UNCONFINED),
            a_container("side", securityContext={"runAsUser": 1}),
        ],
    ),
    "no room": a_pod("3Gi", resources={"limits": {"cpu": "1", "memory": "32Mi"}}),
    "a path": a_pod("3Gi", volumes=[{"name": "v", "hostPath": {"path": "/models"}}]),
    "a mount": a_pod(
        "3Gi",
        containers=[a_container(volumeMounts=[{"name": "v", "mountPath": f"{DEVICES}/GPU-1"}])],
        volumes=[{"name": "v", "emptyDir": {}}],
    ),
    "our volume": a_pod(
        "3Gi",
        containers=[a_container(volumeMounts=[{"name": "vram-enforcer-run", "mountPath": "/x"}])],
    ),
    "NVIDIA's runtime alone": a_pod(runtimeClassName="nvidia"),
    "a mount in every container": a_pod(
        "8Gi", annotations={"mounts.nri.io/pod": "- {source: /models, destination: /m, type: bind}"}
    ),
    "an annotation for the sidecar": a_pod(
        "8Gi", annotations={"unified-cgroup.crio.io/vram-enforcer": "cpu.max=1"}
    ),
    "a mount by annotation": a_pod(
        "3Gi",
        annotations={"mounts.nri.io/container.main": "- source: /models\n  destination: /m\n"},
    ),
    "a key of ours": a_pod(annotations={"vramwarden.io/team": "ml"}),
    "a name too many": a_pod("main=1Gi,other=1Gi"),
    "a name mistyped": a_pod(
        "sied=1Gi, main=2Gi", containers=[a_container(name) for name in ("main", "more", "side")]
    ),
    "two names mistyped": a_pod(
        "siee=1Gi, siea=2Gi", containers=[a_container(name) for name in ("main", "sied", "side")]
    ),
    "a default container mistyped": a_pod(
        "3Gi", annotations={"kubectl.kubernetes.io/default-container": "mian"}
    ),
}
HIDDEN = {
    "a GPU that it has not": a_pod(
        "3Gi", containers=[a_container(env=[{"name": "CUDA_VISIBLE_DEVICES", "value": "1"}])]
    ),
    "a GPU that it has not in its command": a_pod(
        "3Gi", containers=[a_container(command=["env", "CUDA_VISIBLE_DEVICES=1", "train"])]
    ),
    "no CUDA": a_pod(
        "3Gi",
        containers=[a_container(env=[{"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "utility"}])],
    ),
    "a sandbox": a_pod("3Gi", runtimeClassName="kata"),
}
PROGRAMS = {
    f"{name} of {memory}": a_pod(
        memory, containers=[a_container(image=row.image, **row.fields), *others]
    )
    for name, row in ROWS.items()
    if row.said
    for memory, others in (("3Gi", ()), ("main=2Gi, side=1Gi", (a_container("side"),)))
} | {
    "no room": a_pod("100Mi"),
    "no room in a list": a_pod("main=1Mi", containers=[a_container(), a_container("side")]),
    "no room in a list of two": a_pod(
        "main=1Mi, side=2Mi", containers=[a_container(), a_container("side")]
    ),
    "no room, explicitly": explicit("100Mi", "100Mi"),
    "no room, explicitly in the first of two": a_pod(
        containers=[
            a_container(name, resources={"limits": {VRAM: size}})
            for name, size in (("main", "100Mi"), ("side", "200Mi"))
        ]
    ),
    "no room, twice": explicit("100Mi", "100Mi", "100Mi"),
    "no room for the fraction, twice": a_pod(
        "1Gi",
        containers=[
            a_container(
                args=["$(VRAMWARDEN_GPU_MEMORY_FRACTION)"], resources={"limits": {VRAM: "1Gi"}}
            )
        ],
    ),
    "without VRAM": a_pod(
        "main=3Gi", containers=[a_container(), a_container("b", args=["$(VRAMWARDEN_GPU)"])]
    ),
}


def faulty():
    for number, (_, fields, _) in enumerate(SPEC_FAULTS):
        yield f"spec {number}", a_full_pod(**fields)
    for number, (_, memory, notes, _) in enumerate(DEMAND_FAULTS):
        yield f"demand {number}", a_full_pod(memory, annotations=notes)
    for number, (_, _, fields, _) in enumerate(CONTAINER_FAULTS):
        pod = a_full_pod()
        merge_into_container(pod, "main", fields)
        yield f"container {number}", pod
    for number, (pod, _, _) in enumerate(DENIALS):
        yield f"denial {number}", pod


PODS = {**PROGRAMS, **HIDDEN, **SECURED, **FOREIGN, **NEAR, **WHOLE, **DEMANDS, **dict(faulty())}


NOT_AT_ONCE = {"as the workload": {"EnforcementImpossible"}, "non-root": {"ReservedName"}}
"""Findings that a first review cannot have, keyed by policy. Resources for a sidecar are only
judged if the pod can have a sidecar, and a container with its name is only judged by name."""


@pytest.mark.parametrize("pod", PODS.values(), ids=PODS)
def test_what_a_message_tells_people_to_write_is_admitted(pod):
    for name, policy in POLICIES.items():
        if not NOT_AT_ONCE.get(name, set()) & {*judged(pod, policy).reasons}:
            assert_lines_are_admitted(pod, policy)


CHANGES = {
    **{f"memory {one}": {MEMORY: one} for one in ("16Gi", "8GB", "90Gi", None)},
    **{f"count {one}": {COUNT: one} for one in ("2", "two")},
    **{f"class {one}": {CLASS: one} for one in ("a10", "h100")},
    "a mark": {"vramwarden.io/gpu": "GPU-1"},
    "the rule": {"vramwarden.io/admitted": None},
}


FREE = {name: one for name, one in POLICIES.items() if name not in {"non-root", "as the workload"}}
"""Policies that admit a plain pod."""


@pytest.mark.parametrize("policy", FREE.values(), ids=FREE)
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_is_said_of_a_change_is_admitted(change, policy):
    manifest = a_pod("3Gi" if judged(a_pod("3Gi"), policy).patch else "16Gi")
    old = judged(manifest, policy).obj
    new = copy.deepcopy(old)
    for key, value in change.items():
        annotate(new, key, value)
        annotate(manifest, key, value)
    for found in decide_update(old, new, policy=policy).findings:
        if "create it again" in found.detail and "for VRAM" not in found.detail:
            again = [judged(one, policy) for one in followed(manifest, found.path, found.detail)]
        else:
            ways = followed(new, found.path, found.detail)
            again = [decide_update(old, one, policy=policy) for one in ways]
        assert all(one.allowed for one in again), f"{found.detail}\n-> {again[0].message}"


DEBUGGERS = [
    {"envFrom": [{"configMapRef": {"name": "m"}}]},
    {"volumeMounts": [{"name": "v", "mountPath": f"{DEVICES}/GPU-1"}]},
    {"volumeMounts": [{"name": "vram-enforcer-run", "mountPath": "/x"}]},
    {"name": "vram-enforcer"},
]
PROFILES = {
    "baseline": {},
    "restricted": {
        "runAsNonRoot": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    },
}
"""Containers that `kubectl debug` writes (k8s.io/kubectl/pkg/cmd/debug/profiles.go)."""


@pytest.mark.parametrize("user", [None, 1000])
@pytest.mark.parametrize("isolation", Isolation)
@pytest.mark.parametrize("fields", [*(one for one, _ in DEBUGGER_FAULTS), *DEBUGGERS])
def test_the_profile_that_a_denial_names_is_admitted(fields, isolation, user):
    context = {} if user is None else {"securityContext": {"runAsUser": user}}
    policy = a_policy(a_rule(isolation=isolation))
    old = stored_pod(pod=a_pod("8Gi", **context))
    for found in decide_debugging(old, a_debugger(**fields), policy=policy).findings:
        name, custom = re.search(
            r"kubectl debug --profile=(\w+)( --custom=FILE)?", found.detail
        ).groups()
        profile = PROFILES[name] | ({"runAsUser": 1000} if custom else {})
        done = decide_debugging(old, a_debugger(securityContext=profile), policy=policy)
        assert done.allowed, f"{found.detail}\n-> {done.message}"


SAYS_WHAT_TO_DO = re.compile(
    r"\b(?:write|use|set|remove|add|give|mount|keep|create|did you mean)\b"
)
SOURCES = [
    *sorted((ROOT / "webhook/core/admission/rules").glob("*.py")),
    *(
        ROOT / f"webhook/core/pod/{name}.py"
        for name in ("memory_annotation", "demand", "quantity", "suggestions")
    ),
    ROOT / "webhook/core/admission/whole_gpu_translation.py",
]


FOR_PLATFORM_TEAMS = {"translation"}
"""Modules whose messages have no advice for authors of pods."""


def sentences(source):
    """Yield the strings of a module that contain advice, split at their placeholders."""
    tree = ast.parse(source.read_text())
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) else None
        if isinstance(text, str) and id(node) not in docstrings and SAYS_WHAT_TO_DO.search(text):
            yield text


def test_every_sentence_that_says_what_to_do_is_followed_here():
    """If no pod of this file causes a sentence, add such a pod."""
    said = [
        text
        for pod in PODS.values()
        for policy in POLICIES.values()
        for decision in [judged(pod, policy)]
        for text in (*map(str, decision.findings), *decision.notes)
    ]
    bound = a_bound_pod()
    said.append(decide_pod(bound, phase=Phase.VALIDATE).message)
    old = stored_pod(pod=a_pod("8Gi"))
    for change in CHANGES.values():
        new = copy.deepcopy(old)
        for key, value in change.items():
            annotate(new, key, value)
        said.append(decide_update(old, new, policy=POLICIES["at most 4Gi"]).message)
        said.append(decide_update(old, new).message)
    said.append(decide_update(a_pod(), a_pod(labels={"vramwarden.io/managed": "true"})).message)
    non_root = a_policy(a_rule(isolation=Isolation.NON_ROOT))
    said += [
        decide_debugging(old, a_debugger(**fields), policy=non_root).message
        for fields in (*(fields for fields, _ in DEBUGGER_FAULTS), *DEBUGGERS)
    ]
    every = "\n".join(dict.fromkeys(said))
    missing = [
        f"{source.stem}: {text}"
        for source in SOURCES
        for text in sentences(source)
        if text not in every
        and text not in HELPER_CONTAINERS
        and source.stem not in FOR_PLATFORM_TEAMS
    ]
    assert missing == []


NUMBERS = st.integers(0, 200_000).map(str) | st.fractions(0, 200, max_denominator=8).map(
    lambda number: f"{float(number):g}"
)
UNITS = st.sampled_from(
    ["", "", "Gi", "G", "Mi", "M", "GB", "gb", " GiB", "Go", "k", "Ki", "m", "%", "T"]
)
SIZES = st.builds(str.__add__, NUMBERS, UNITS) | st.sampled_from(AMOUNTS)
BOUNDS = st.tuples(
    *[st.none() | st.sampled_from([2**20, GI, 7630 * 2**20, 8 * GI, 40 * GI])] * 2
).map(lambda pair: MemoryBounds(*sorted(pair)) if None not in pair else MemoryBounds(*pair))
NAMES = ("main", "side")
KEYS = [MEMORY, "gpu-memory", "vramwarden/gpu-memory", "vramwarden.io/gpu-mem"]


@st.composite
def asked(draw):
    """Draw a pod with a valid or invalid request to vramwarden or another product."""
    notes = {}
    resources = [GPU, *OTHER_PRODUCTS_BY_RESOURCE]
    match draw(st.sampled_from(["list", "annotation", "resources"])):
        case "list":
            names = draw(st.lists(st.sampled_from([*NAMES, "other"]), min_size=1, unique=True))
            entries = [f"{name}={draw(SIZES)}" for name in names]
            notes[MEMORY] = draw(st.sampled_from([", ", ",", ";"])).join(entries)
        case "annotation":
            notes[draw(st.sampled_from(KEYS))] = draw(SIZES)
        case "resources":
            resources.append(VRAM)
    for key, values in ((COUNT, ["1", "2", "9", "two"]), (CLASS, ["a100", "a10", "h100"])):
        if draw(st.integers(0, 3)) == 0:
            notes[key] = draw(st.sampled_from(values))
    made = []
    for name in NAMES:
        limits = {
            resource: draw(SIZES if resource == VRAM else NUMBERS)
            for resource in draw(st.lists(st.sampled_from(resources), max_size=2))
        }
        kinds = draw(st.sampled_from([["limits"], ["limits", "requests"], ["requests"]]))
        made.append(a_container(name, resources={kind: dict(limits) for kind in kinds}))
    return a_pod(containers=made, annotations=notes)


@example(
    a_pod(
        containers=[a_container("main", resources={}), a_container("side", resources={})],
        annotations={MEMORY: "main=8GB, side=0"},
    ),
    MemoryBounds(2**20, 8 * GI),
    None,
    ("*",),
    None,
)
@given(
    asked(),
    BOUNDS,
    st.sampled_from([None, 1, 4]),
    st.sampled_from([("*",), ("a10",), ()]),
    st.sampled_from([None, "a10"]),
)
def test_the_same_holds_for_any_amounts_and_bounds(pod, bounds, most, allowed, default):
    rule = a_rule(
        memory=bounds,
        max_gpu_count=most,
        allowed_classes=allowed,
        default_class=default,
    )
    classes = {"a100": A100, "a10": A10}
    assert_lines_are_admitted(
        pod, a_policy(rule, classes=classes, whole_gpu_resources=WHOLE_GPU_RESOURCES)
    )
