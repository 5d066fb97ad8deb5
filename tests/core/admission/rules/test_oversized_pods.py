"""Pods that are too large to be judged are denied if they must be judged, else unchanged."""

from __future__ import annotations

import copy
from itertools import product
from typing import Any

import pytest

from tests.core.admission.decisions import (
    VISIBLE,
    VRAM,
    a_bound_pod,
    a_debugger,
    assert_admitted,
    assert_denied,
    assert_unchanged,
    decide_debugging,
    decide_pod,
    decide_update,
    merge_fields,
    reasons_and_paths,
    stored_pod,
    variable,
)
from tests.support.pods import a_container, a_pod, a_policy, a_rule
from webhook.core.admission.decision import Outcome, Phase
from webhook.core.pod.complexity import find_excesses
from webhook.core.policy.cluster import Cluster, SlicedNode
from webhook.core.policy.model import (
    Accounting,
    Action,
    DriverLimit,
    EnforceBy,
    Rollout,
    VisibleDevices,
)

GIB = 2**30
CDI = {"nvidia.cdi.k8s.io/pod": "nvidia.com/gpu=all"}


def many(count: int, what: str = "v") -> list[dict[str, Any]]:
    return [{"name": f"{what}{n}"} for n in range(count)]


def named(count: int, start: int = 1, **fields: Any) -> list[dict[str, Any]]:
    return [a_container(f"c{n}", **fields) for n in range(start, start + count)]


def entries(count: int) -> dict[str, str]:
    return {f"example.com/{n}": "1" for n in range(count)}


def with_main(**fields: Any) -> dict[str, Any]:
    return {"containers": [a_container(**fields)]}


def terms(count: int, *kinds: str) -> dict[str, Any]:
    expressions = [{"key": "a", "operator": "Exists"}]
    required = [{"matchExpressions": expressions}] * count
    field = "requiredDuringSchedulingIgnoredDuringExecution"
    return {
        kind: {field: {"nodeSelectorTerms": required} if kind == "nodeAffinity" else required}
        for kind in kinds
    }


def preferred(count: int, kind: str) -> dict[str, Any]:
    preference = {"weight": 1, "preference": {"matchExpressions": []}}
    return {kind: {"preferredDuringSchedulingIgnoredDuringExecution": [preference] * count}}


def expressions(count: int) -> dict[str, Any]:
    found = [{"key": f"k{n}", "operator": "Exists"} for n in range(count)]
    field = "requiredDuringSchedulingIgnoredDuringExecution"
    return {
        "nodeAffinity": {field: {"nodeSelectorTerms": [{}, {"matchExpressions": found}]}},
    }


def capabilities(add: int, drop: int) -> dict[str, Any]:
    names = [f"CAP{n}" for n in range(add + drop)]
    return {"securityContext": {"capabilities": {"add": names[:add], "drop": names[add:]}}}


def all_variables(count: int) -> dict[str, Any]:
    full, rest = divmod(count, 1024)
    containers = [a_container(), *named(full, env=many(1024)), a_container("r", env=many(rest))]
    return {"containers": containers}


def all_mounts(count: int) -> dict[str, Any]:
    full, rest = divmod(count, 1024)
    last = a_container("r", volumeMounts=many(rest))
    return {"containers": [a_container(), *named(full, volumeMounts=many(1024)), last]}


def all_resources(count: int, name: str = "hugepages-{}Mi") -> dict[str, Any]:
    """Return a main container and other containers with limits of at most 32 resources each."""
    containers = [a_container()]
    for start in range(0, count, 32):
        amounts = {name.format(n): "0" for n in range(start, min(count, start + 32))}
        containers.append(a_container(f"r{start}", resources={"limits": amounts}))
    return {"containers": containers}


def long_names(count: int) -> dict[str, Any]:
    """Return a container with other products' resource names of `count` characters in total."""
    names = [f"example.com/{'x' * 50}{n:02}" for n in range(30)]
    names.append("example.com/".ljust(count - 30 * 64, "x"))
    limits = dict.fromkeys([*names, VRAM], "8Gi")
    return {"containers": [a_container(), a_container("r", resources={"limits": limits})]}


ALL, MAIN, AFFINITY = "spec.containers", "spec.containers[0]", "spec.affinity"
NODE = "nodeAffinity"
TERMS = f"{AFFINITY}.{NODE}.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
# A function that returns content of a given size, the bound, the path of the first item beyond it,
# and a word of the message.
BOUNDS = [
    (lambda n: {"containers": [a_container(), *named(n - 1)]}, 256, ALL, ""),
    (lambda n: {"containers": [a_container()], "initContainers": named(n - 1)}, 256, ALL, ""),
    (lambda n: with_main(env=many(n)), 1024, f"{MAIN}.env", "ConfigMap"),
    (all_variables, 8192, ALL, "in all"),
    (lambda n: with_main(envFrom=[{}] * n), 256, f"{MAIN}.envFrom", ""),
    (lambda n: {"volumes": many(n)}, 1024, "spec.volumes", ""),
    (lambda n: with_main(volumeMounts=many(n)), 1024, f"{MAIN}.volumeMounts", ""),
    (all_mounts, 8192, ALL, "in all"),
    (lambda n: {"affinity": terms(n, NODE)}, 256, AFFINITY, ""),
    (lambda n: {"affinity": terms(n, "podAffinity")}, 256, AFFINITY, ""),
    (lambda n: {"affinity": preferred(n, NODE)}, 256, AFFINITY, ""),
    (lambda n: {"affinity": terms(n - 9, NODE) | preferred(9, "podAffinity")}, 256, AFFINITY, ""),
    (lambda n: {"affinity": expressions(n)}, 64, f"{TERMS}[1]", "in one term"),
    (lambda n: {"tolerations": [{"operator": "Exists"}] * n}, 256, "spec.tolerations", ""),
    (lambda n: {"resourceClaims": many(n)}, 256, "spec.resourceClaims", ""),
    (lambda n: with_main(resources={"claims": many(n)}), 256, f"{MAIN}.resources.claims", ""),
    (lambda n: with_main(resources={"limits": entries(n)}), 32, f"{MAIN}.resources.limits", ""),
    (all_resources, 1024, ALL, "resources in all"),
    (lambda n: all_resources(n, name="example.com/{}"), 64, ALL, "resources with a domain in all"),
    (long_names, 2048, ALL, "characters in the names"),
    (
        lambda n: with_main(**capabilities(n - 4, 4)),
        *(64, f"{MAIN}.securityContext.capabilities", ""),
    ),
    (lambda n: {"nodeSelector": entries(n)}, 1024, "spec.nodeSelector", ""),
    (lambda n: {"labels": entries(n)}, 1024, "metadata.labels", ""),
    (lambda n: {"annotations": entries(n - 1)}, 1024, "metadata.annotations", ""),
]


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize(("make", "most", "path", "word"), BOUNDS)
def test_one_more_than_a_bound_is_denied_with_one_finding(make, most, path, word, phase):
    decision = decide_pod(a_pod("main=8Gi", **make(most + 1)), phase=phase)
    assert_denied(decision, "TooComplex", path)
    assert f"has {most + 1} " in decision.message
    assert word in decision.message
    assert decision.notes == ()


TIERS = [
    pytest.param(by, accounting, limit, id=f"{by.value}-{accounting.value}-{limit.value}")
    for by, accounting, limit in product(
        EnforceBy, Accounting, (DriverLimit.AUTO, DriverLimit.REQUIRE)
    )
    if by is not EnforceBy.SENTRY
    or (accounting is not Accounting.CAP_ONLY and limit is DriverLimit.AUTO)
]
"""Combinations that a policy may have. `Off` gives a pod the same as `Auto`."""
SLICED = Cluster(sliced_nodes=(SlicedNode({f"{n}g.{n}gb": n * GIB for n in range(1, 17)}),))


@pytest.mark.parametrize(("by", "accounting", "limit"), TIERS)
@pytest.mark.parametrize(("make", "most", "path", "word"), BOUNDS)
def test_a_pod_at_a_bound_is_as_fine_with_what_we_add(
    make, most, path, word, by, accounting, limit
):
    rule = a_rule(
        env=tuple({"name": f"R{n}", "value": "1"} for n in range(9)),
        tolerations=tuple({"key": f"r{n}", "operator": "Exists"} for n in range(9)),
        node_selector={f"example.com/s{n}": "1" for n in range(9)},
        accounting=accounting,
        enforcement={"by": by, "driver_limit": limit},
    )
    pod = a_pod("main=8Gi", **make(most))
    assert find_excesses(pod) == {}
    assert "TooComplex" not in decide_pod(pod).reasons
    first = decide_pod(pod, rule, cluster=SLICED)
    if first.findings:  # denied for another reason at this bound
        assert "TooComplex" not in first.reasons
        return
    assert first.outcome is Outcome.MUTATED
    assert_unchanged(decide_pod(first.obj, rule, cluster=SLICED))
    assert_unchanged(decide_pod(first.obj, rule, cluster=SLICED, phase=Phase.VALIDATE))
    later = changed(first.obj, labels={"app": "x"})
    assert decide_update(first.obj, later, policy=a_policy(rule), cluster=SLICED).findings == ()


def test_a_pod_with_a_slice_of_each_profile_is_as_fine():
    pod = a_pod(
        ", ".join(f"c{n}={n}Gi" for n in range(1, 17)),
        containers=named(16),
        affinity=expressions(64),
    )
    rule = a_rule(accounting=Accounting.MIG)
    first = decide_pod(pod, rule, cluster=SLICED)
    assert first.outcome is Outcome.MUTATED
    assert_unchanged(decide_pod(first.obj, rule, cluster=SLICED, phase=Phase.VALIDATE))


def test_the_room_for_what_we_add_is_bounded_too():
    mark = {"vramwarden.io/admitted": "v1 rule 0123456789ab"}
    pod = a_pod("main=8Gi", annotations=mark, tolerations=[{"operator": "Exists"}] * 321)
    decision = decide_pod(pod)
    assert_denied(decision, "TooComplex", "spec.tolerations")
    assert "it has 321 tolerations, and at most 320" in decision.message
    path = "metadata.annotations[vramwarden.io/admitted]"
    pod = a_pod("main=8Gi", annotations={"vramwarden.io/admitted": "v1 " + "x" * 4094})
    assert_denied(decide_pod(pod), "TooComplex", path)


@pytest.mark.parametrize(
    "key", ["gpu-memory", "gpu-count", "gpu-class", "admitted", "gpu", "visible-devices"]
)
def test_an_annotation_of_ours_has_at_most_4096_characters(key):
    path = f"metadata.annotations[vramwarden.io/{key}]"
    long = a_pod("8Gi", annotations={} if key == "gpu-memory" else {f"vramwarden.io/{key}": ""})
    long["metadata"]["annotations"][f"vramwarden.io/{key}"] = "x" * 4097
    assert_denied(decide_pod(long), "TooComplex", path)
    long["metadata"]["annotations"][f"vramwarden.io/{key}"] = "x" * 4096
    assert "TooComplex" not in decide_pod(long).reasons


def test_a_list_with_thousands_of_entries_is_one_finding():
    decision = decide_pod(a_pod("x=," * 60_000, containers=named(15_000)))
    assert reasons_and_paths(decision) == [
        ("TooComplex", "metadata.annotations[vramwarden.io/gpu-memory]"),
        ("TooComplex", "spec.containers"),
    ]


def test_all_that_is_too_much_is_reported_at_once_and_once():
    pod = a_pod(
        "8Gi",
        containers=[a_container(), *named(3, env=many(1025), **capabilities(65, 0))],
        volumes=many(1025),
    )
    assert reasons_and_paths(decide_pod(pod)) == [
        ("TooComplex", "spec.volumes"),
        ("TooComplex", "spec.containers[1].env"),
        ("TooComplex", "spec.containers[1].securityContext.capabilities"),
    ]


def test_a_large_pod_within_the_bounds_is_translated():
    containers = [a_container(), *named(250, env=many(30), volumeMounts=many(30, "m"))]
    assert_admitted(a_pod("main=8Gi", containers=containers, volumes=many(1000)))


@pytest.mark.parametrize(
    ("rule", "outcome"),
    [
        ({"action": Action.ENFORCE}, Outcome.DENIED),
        ({"action": Action.WARN}, Outcome.WARNED),
        ({"action": Action.AUDIT}, Outcome.AUDITED),
        ({"action": Action.IGNORE}, Outcome.SKIPPED),
        ({"namespaces": ("elsewhere",)}, Outcome.SKIPPED),
    ],
    ids=str,
)
def test_the_rule_decides_about_size_as_about_all_else(rule, outcome):
    pod = a_pod("main=8Gi", tolerations=[{}] * 257)
    decision = decide_pod(pod, a_rule(**rule))
    assert (decision.outcome, decision.patch, decision.obj) == (outcome, (), pod)


# --- pods that vramwarden does not manage

LARGE = {"tolerations": [{"operator": "Exists"}] * 257}
NOT_OURS = [
    {},
    {"annotations": {"example.com/gpu-memory": "8Gi"}},
    {"annotations": {"kubectl.kubernetes.io/default-container": "main"}},
    {"annotations": {"cdi.k8s.io/x": "example.com/nic=1"}},
    {"annotations": {"vramwarden.io/gpu-mem": "8Gi"}},
    with_main(resources={"limits": {"nvidia.com/gpu": "1"}}),
    with_main(resources={"limits": None, "requests": {}}),
    with_main(**variable(VISIBLE, "void")),
    with_main(**variable(VISIBLE)),
    with_main(**variable("CUDA_MPS_PIPE_DIRECTORY", "/mps")),
    with_main(envFrom=[{"configMapRef": {"name": "x"}}]),
    with_main(volumeMounts=[{"name": "v", "mountPath": "/var/run"}]),
]
OURS = [
    {"memory": "8Gi"},
    {"memory": "8GB"},
    {"annotations": {"vramwarden.io/gpu-count": "2"}},
    {"annotations": {"vramwarden.io/gpu": "GPU-1"}},
    {"annotations": {"vramwarden.io/admitted": ""}},
    {"labels": {"vramwarden.io/managed": "false"}},
    with_main(resources={"limits": {VRAM: "8Gi"}}),
    {"initContainers": [a_container("i", resources={"requests": {VRAM: "x"}})]},
    {"containers": [a_container("vram-enforcer")]},
    {"volumes": [{"name": "vram-enforcer-run"}]},
    with_main(volumeMounts=[{"name": "vram-enforcer-run"}]),
]
SHOWING = [
    {"annotations": CDI},
    with_main(**variable(VISIBLE, "all")),
    {"initContainers": [a_container("i", **variable(VISIBLE, fieldRef={}))]},
    with_main(volumeMounts=[{"name": "v", "mountPath": "/var/run/nvidia-container-devices/0"}]),
]


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("fields", NOT_OURS, ids=str)
def test_a_large_pod_of_somebody_else_is_left_alone(fields, phase):
    pod = a_pod(**fields, **LARGE)
    decision = decide_pod(pod, phase=phase)
    assert_unchanged(decision)
    assert decision.obj == pod


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("fields", [*OURS, *SHOWING], ids=str)
def test_a_large_pod_with_something_of_ours_is_denied(fields, phase):
    assert_denied(
        decide_pod(a_pod(**fields, **LARGE), phase=phase), "TooComplex", "spec.tolerations"
    )


@pytest.mark.parametrize("fields", SHOWING, ids=str)
def test_a_rule_that_ignores_visible_devices_has_nothing_to_judge_in_a_large_pod(fields):
    rule = a_rule(visible_devices=VisibleDevices.IGNORE)
    assert_unchanged(decide_pod(a_pod(**fields, **LARGE), rule))


# --- updates of pods that were stored before bounds existed


def stored(**fields: Any):
    return a_pod(**fields, **LARGE)


def changed(pod, **metadata: Any):
    new = copy.deepcopy(pod)
    for field, entries in metadata.items():
        new["metadata"].setdefault(field, {}).update(entries)
    return new


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("subresource", ["", "resize"])
@pytest.mark.parametrize("fields", [*NOT_OURS, *OURS, *SHOWING], ids=str)
def test_a_large_pod_that_is_stored_may_change_in_what_is_not_ours(fields, subresource, phase):
    old = stored(**fields)
    new = changed(old, labels={"app": "x"}, annotations={"example.com/a": "1"})
    new["metadata"]["finalizers"] = ["example.com/f"]
    new["spec"]["activeDeadlineSeconds"] = 1
    assert_unchanged(decide_update(old, new, subresource=subresource, phase=phase))


def image(pod):
    pod["spec"]["containers"][0]["image"] = "example:2"


def amount(pod):
    pod["spec"]["containers"][0]["resources"] = {"limits": {VRAM: "1Gi"}}


def amounts_of_pod(pod):
    pod["spec"]["resources"] = {"limits": {"cpu": "11m"}}


@pytest.mark.parametrize(
    ("change", "fields", "denied"),
    [
        *(pytest.param(image, fields, False, id=f"image {fields}") for fields in NOT_OURS),
        pytest.param(image, {"memory": "8Gi"}, True, id="image, with a demand"),
        pytest.param(amount, {"memory": "8Gi"}, True, id="amount, with a demand"),
        pytest.param(amounts_of_pod, {}, False, id="amounts of the pod"),
        pytest.param(amounts_of_pod, {"memory": "8Gi"}, True, id="its amounts, with a demand"),
    ],
)
def test_a_large_pod_with_a_demand_stays_as_it_is_and_others_may_change(change, fields, denied):
    old = stored(**fields, resources={"limits": {"cpu": "2"}})
    new = copy.deepcopy(old)
    change(new)
    decision = decide_update(old, new, subresource="resize" if change is amounts_of_pod else "")
    if denied:
        assert_denied(decision, "TooComplex", "spec.tolerations")
    else:
        assert_unchanged(decision)


@pytest.mark.parametrize(
    "metadata",
    [
        {"annotations": {"vramwarden.io/gpu-memory": "8Gi"}},
        {"annotations": {"vramwarden.io/gpu-waits": "x"}},
        {"labels": {"vramwarden.io/managed": "true"}},
        {"annotations": CDI},
    ],
    ids=str,
)
def test_a_large_pod_is_denied_an_update_that_adds_something_of_ours(metadata):
    old = stored()
    assert_denied(decide_update(old, changed(old, **metadata)), "TooComplex", "spec.tolerations")


@pytest.mark.parametrize("phase", Phase)
def test_a_large_pod_without_a_demand_may_be_debugged(phase):
    old = stored()
    assert_unchanged(decide_debugging(old, a_debugger(envFrom=[{}]), phase=phase))
    showing = decide_debugging(old, a_debugger(**variable(VISIBLE, "all")), phase=phase)
    assert_denied(showing, "TooComplex", "spec.tolerations")


def test_debugging_containers_count_as_containers_and_only_new_ones_are_judged():
    old = a_pod(containers=named(200), ephemeralContainers=named(56, 300, **variable(VISIBLE, "0")))
    assert_unchanged(decide_debugging(old, a_debugger()))
    showing = decide_debugging(old, a_debugger(**variable(VISIBLE, "all")))
    assert_denied(showing, "TooComplex", "spec.containers")
    bound = a_bound_pod()
    bound["spec"]["ephemeralContainers"] = named(256)
    assert_denied(decide_debugging(bound, a_debugger()), "TooComplex", "spec.containers")
    policy = a_policy(a_rule(action=Action.WARN))
    assert_denied(
        decide_debugging(bound, a_debugger(), policy=policy), "TooComplex", "spec.containers"
    )


# --- pods with our label or annotations, written by any client


MARKED = [
    {"labels": {"vramwarden.io/managed": "true"}},
    {"labels": {"vramwarden.io/managed": ""}},
    {"annotations": {"vramwarden.io/admitted": "v1 default 0123456789ab"}},
]
ANY_RULE = {
    **{str(action): a_rule(action=action) for action in Action},
    "none": a_rule(namespaces=("elsewhere",)),
}
HUGE = {"tolerations": [{"operator": "Exists"}] * 321}
ROLLOUTS = pytest.mark.parametrize("rollout", Rollout)
RULES = pytest.mark.parametrize("rule", ANY_RULE.values(), ids=ANY_RULE)


@ROLLOUTS
@RULES
@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("marks", MARKED, ids=str)
def test_a_large_pod_with_our_marks_is_denied_by_whatever_rule(marks, phase, rule, rollout):
    decision = decide_pod(a_pod(**marks, **HUGE), rule, phase, cluster=Cluster(rollout))
    assert_denied(decision, "TooComplex", "spec.tolerations")


@ROLLOUTS
@RULES
@pytest.mark.parametrize(
    ("fields", "path"),
    [
        (HUGE, "spec.tolerations"),
        ({"annotations": entries(1281)}, "metadata.annotations"),
        ({"labels": entries(1281)}, "metadata.labels"),
        ({"nodeSelector": entries(1281)}, "spec.nodeSelector"),
        ({"affinity": preferred(259, "nodeAffinity")}, "spec.affinity"),
    ],
    ids=["tolerations", "annotations", "labels", "nodeSelector", "affinity"],
)
def test_a_pod_of_ours_does_not_outgrow_the_bounds(fields, path, rule, rollout):
    old = stored_pod()
    new = copy.deepcopy(old)
    merge_fields(
        new["metadata"], {key: fields[key] for key in fields if key in {"annotations", "labels"}}
    )
    merge_fields(new["spec"], {key: fields[key] for key in fields if key not in new["metadata"]})
    decision = decide_update(old, new, policy=a_policy(rule), cluster=Cluster(rollout))
    assert_denied(decision, "TooComplex", path)


@ROLLOUTS
@RULES
@pytest.mark.parametrize("marks", MARKED, ids=str)
def test_what_is_stored_so_changes_but_does_not_grow(marks, rule, rollout):
    """The Job of a pod that was stored before bounds existed must be able to end."""
    old = a_pod(**marks, **HUGE)
    known = {"policy": a_policy(rule), "cluster": Cluster(rollout)}
    for fields in ({"finalizers": []}, {"ownerReferences": []}, {"labels": {"app": "x"}}):
        new = copy.deepcopy(old)
        merge_fields(new["metadata"], fields)
        assert decide_update(old, new, **known).findings == ()
    new["spec"]["tolerations"].append({"operator": "Exists"})
    assert_denied(decide_update(old, new, **known), "TooComplex", "spec.tolerations")


def test_what_a_kubelet_shows_of_a_static_pod_is_never_denied_for_its_size():
    pod = a_pod(**MARKED[0], **HUGE)
    pod["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "1"}
    for groups, outcome in (("system:nodes", Outcome.SKIPPED), ("a", Outcome.DENIED)):
        assert decide_pod(pod, groups=(groups,)).outcome is outcome


# --- messages with long names


def test_a_path_and_a_text_are_cut_whatever_users_call_their_things():
    name = "nvidia.com/mig-" + "x" * 2000
    pod = a_pod("8Gi", **with_main(resources={"limits": {name: "0.5"}, "requests": {name: "1"}}))
    decision = decide_pod(pod)
    assert set(decision.reasons) == {
        "FractionalWholeGPU",
        "RequestsLimitsMismatch",
        "WholeGPUAndShare",
    }
    assert all(len(found.path) <= 512 for found in decision.findings)
    assert all(len(found.detail) <= 1024 for found in decision.findings)


def test_a_malformed_field_with_a_long_name_is_named_in_short():
    decision = decide_pod(a_pod("8Gi", annotations={"x" * 100_000: 1}))
    assert decision.outcome is Outcome.MALFORMED
    assert len(decision.message) < 700


def test_the_names_of_long_containers_are_cut_in_the_text():
    pod = a_pod("main=8Gi", containers=[a_container("x" * 100_000), a_container("y" * 100_000)])
    (finding,) = decide_pod(pod).findings
    assert len(finding.detail) < 300
