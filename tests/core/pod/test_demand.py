import re
from dataclasses import replace

import pytest

from tests.support.pods import a_container, a_pod
from webhook.core.placement.pod_state import read_need
from webhook.core.pod.demand import plan_demand, read_demand
from webhook.core.pod.quantity import format_bytes
from webhook.core.pod.suggestions import Suggestions
from webhook.core.pod.views import read_pod

VRAM = "vramwarden.io/vram"


def demand_of(pod):
    demand, findings = read_demand(read_pod(pod))
    assert findings == ()
    return demand


def findings_of(pod):
    demand, findings = read_demand(read_pod(pod))
    assert demand is None
    return [(finding.reason.value, finding.path, finding.detail) for finding in findings]


def asking(kind, amount, **more):
    return {kind: {VRAM: amount}, **more}


def named(*names, **more):
    return [a_container(name, **more) for name in names]


INITS = named("init") + named("side", restartPolicy="Always")
DEFAULT = "kubectl.kubernetes.io/default-container"
COUNT, CLASS = "vramwarden.io/gpu-count", "vramwarden.io/gpu-class"


def explicit(memory=None, **resources):
    return a_pod(memory, containers=named("main", resources=resources))


def of_two(memory, b=None, **more):
    return a_pod(memory, containers=[*named("a"), *named("b", resources=b)], **more)


def helped(*names, **more):
    return a_pod("8Gi", containers=named(*names), **more)


TWO = {VRAM: "2Gi"}
HAS = asking("limits", "8Gi")
DEMANDS = {
    "one quantity goes to the first container": (of_two("8Gi"), "a=8Gi"),
    "to the first that is no helper": (helped("istio-proxy", "daprd", "a", "b"), "a=8Gi"),
    "a number after a helper's name": (helped("fluid-fuse-0", "a"), "a=8Gi"),
    "to the first of helpers alone": (helped("istio-proxy", "daprd"), "istio-proxy=8Gi"),
    "to a helper that is named": (
        helped("a", "istio-proxy", annotations={DEFAULT: "istio-proxy"}),
        "istio-proxy=8Gi",
    ),
    "to the only one with an amount": (of_two("8Gi", HAS), "b=8Gi"),
    "or a request": (of_two("8Gi", asking("requests", "8Gi", **HAS)), "b=8Gi"),
    "also a helper": (
        a_pod("8Gi", containers=[*named("a"), *named("istio-proxy", resources=HAS)]),
        "istio-proxy=8Gi",
    ),
    "also an init container": (
        a_pod("8Gi", containers=named("a"), initContainers=named("init", resources=HAS)),
        "init=8Gi",
    ),
    **{
        f"to the default container, {name}": (
            of_two("8Gi", initContainers=INITS, annotations={DEFAULT: name}),
            f"{name}=8Gi",
        )
        for name in ("b", "init", "side")
    },
    "a list gives each its own": (of_two("a=8Gi, b=512Mi"), "a=8Gi,b=512Mi"),
    "an explicit limit is a demand": (explicit(limits=TWO), "main=2Gi"),
    "so are a request and its equal limit": (explicit(requests=TWO, limits=TWO), "main=2Gi"),
    "annotation and explicit amount may agree": (explicit("2048Mi", limits=TWO), "main=2Gi"),
    "they agree after rounding up": (explicit("4292Mi", limits={VRAM: "4500M"}), "main=4292Mi"),
    "also where the annotation is rounded": (
        explicit("1.1Gi", limits={VRAM: "1127Mi"}),
        "main=1127Mi",
    ),
}


@pytest.mark.parametrize(("pod", "amounts"), DEMANDS.values(), ids=DEMANDS)
def test_what_is_asked_for_by_whom(pod, amounts):
    demand = demand_of(pod)
    asked = demand.amounts.items()
    assert ",".join(f"{name}={format_bytes(amount)}" for name, amount in asked) == amounts
    assert demand.per_gpu_bytes == sum(demand.amounts.values())


def test_a_pod_that_asks_for_nothing_has_no_demand():
    assert demand_of(a_pod()) is None


@pytest.mark.parametrize(
    ("apps", "sidecars_first", "inits", "sidecars_last", "want"),
    [
        # Sums over app containers and sidecars, or the peak while an init container runs.
        ([4], [], [], [], 4),
        ([4, 2], [], [], [], 6),
        ([4], [], [8], [], 8),
        ([4], [], [8, 6], [], 8),
        ([4], [1], [8], [], 9),
        ([4], [], [8], [1], 8),
        ([8], [1], [2], [1], 10),
        ([1], [2], [2], [3], 6),
    ],
)
def test_the_cap_follows_the_effective_request_rule(
    apps, sidecars_first, inits, sidecars_last, want
):
    def sized(kind, sizes, **more):
        return [(f"{kind}{i}", size, more) for i, size in enumerate(sizes)]

    first = sized("first", sidecars_first, restartPolicy="Always")
    middle = sized("init", inits)
    last = sized("last", sidecars_last, restartPolicy="Always")
    app = sized("app", apps)
    pod = a_pod(
        ",".join(f"{name}={size}Gi" for name, size, _ in [*app, *first, *middle, *last]),
        containers=[a_container(name) for name, _, _ in app],
        initContainers=[a_container(name, **more) for name, _, more in [*first, *middle, *last]],
    )
    assert demand_of(pod).per_gpu_bytes == want * 2**30


def test_the_count_multiplies_the_resource_but_not_the_cap():
    pod = a_pod("8Gi", annotations={"vramwarden.io/gpu-count": "4"})
    demand = demand_of(pod)
    assert demand.per_gpu_bytes == 8 * 2**30
    assert demand.amounts["main"] * demand.gpu_count == 32 * 2**30


def test_an_explicit_amount_is_for_all_gpus_together():
    pod = a_pod(
        containers=[a_container(resources=asking("limits", "16Gi"))],
        annotations={"vramwarden.io/gpu-count": "2"},
    )
    assert demand_of(pod).per_gpu_bytes == 8 * 2**30


@pytest.mark.parametrize(
    ("amounts", "count", "cap_bytes"),
    [
        (["4500M"], "1", 4292 * 2**20),
        (["9G"], "2", 4292 * 2**20),
        (["9000000001"], "2", 4292 * 2**20),
        (["8589934593"], "2", 4097 * 2**20),
        (["8000000001"], "1", 7630 * 2**20),
        (["1048577", "1048577", "1048577"], "1", 4 * 2**20),  # not 6Mi: only the sum is rounded up
    ],
)
def test_the_cap_of_explicit_amounts_is_what_is_counted_rounded_up_per_gpu(
    amounts, count, cap_bytes
):
    containers = [
        a_container(f"c{number}", resources=asking("limits", amount))
        for number, amount in enumerate(amounts)
    ]
    pod = a_pod(containers=containers, annotations={"vramwarden.io/gpu-count": count})
    assert demand_of(pod).per_gpu_bytes == cap_bytes
    need, _ = read_need(read_pod(pod))
    assert (need.memory_bytes, need.gpu_count) == (cap_bytes, int(count))


DENIED = {
    **{
        f"the count {count!r}": (a_pod("8Gi", annotations={COUNT: count}), "InvalidCount: ")
        for count in ("0", "-1", "1.2", "two", "", "1e3", "99999", " 2", "²")
    },
    "a count without memory": (
        a_pod(annotations={COUNT: "2"}),
        "InvalidCount: .*needs vramwarden.io/gpu-memory",
    ),
    "a class without memory": (a_pod(annotations={CLASS: "a100"}), "InvalidQuantity: "),
    "no containers": (a_pod("8Gi", containers=[]), "UnknownContainer: "),
    "an amount left out by the annotation": (
        of_two("8Gi", {"limits": TWO}, annotations={DEFAULT: "a"}),
        f'ConflictingAmounts: remove .*gives VRAM only to "a"; {DEFAULT} names it; ',
    ),
    "a fraction of a byte in resources": (
        explicit(limits={VRAM: "1.1Gi"}),
        "InvalidQuantity: 1.1Gi is a fraction of a byte; use 1127Mi$",
    ),
    "a fraction beside the annotation": (
        explicit("1.1Gi", limits={VRAM: "1181116006400m"}),
        "InvalidQuantity: 1181116006400m is a fraction of a byte; write a size, e.g. 1127Mi$",
    ),
    "a request without a limit": (explicit(requests=TWO), "RequestsLimitsMismatch"),
    "a request below its limit": (
        explicit(requests=TWO, limits={VRAM: "4Gi"}),
        "RequestsLimitsMismatch",
    ),
    "a request, another limit": (
        explicit(requests=TWO, limits={"cpu": "1"}),
        "RequestsLimitsMismatch",
    ),
    "an explicit zero": (explicit(limits={VRAM: "0"}), "InvalidQuantity: "),
    "a sum that is too large": (of_two("a=5Ei,b=5Ei"), "TooLarge: "),
    "a sum over GPUs that is": (a_pod("5Ei", annotations={COUNT: "2"}), "TooLarge: "),
}


@pytest.mark.parametrize(("pod", "says"), DENIED.values(), ids=DENIED)
def test_a_pod_is_denied_for(pod, says):
    ((reason, _, detail),) = findings_of(pod)
    assert re.match(says, f"{reason}: {detail}")


@pytest.mark.parametrize(
    ("memory", "reason", "says"),
    [
        ("8GB", "InvalidQuantity", "8GB is not a Kubernetes quantity; use 8G or 8Gi"),
        ("8192", "TooSmall", "8192 is 8192 bytes; for MiB write 8192Mi"),
        ("8", "TooSmall", "8 is 8 bytes; for MiB write 8Mi, for GiB 8Gi"),
        ("8Gi, 4Gi", "InvalidQuantity", "write name=size"),
        ("main=8Gi; side=2Gi", "InvalidQuantity", "separate entries with a comma, name=size"),
        ("main=8Gi side=2Gi", "InvalidQuantity", "separate entries with a comma, name=size"),
        ("main:8Gi", "InvalidQuantity", '"main:8Gi" is not read as a list; separate entries with'),
        ("main=8Gi,", "InvalidQuantity", "not of the form name=size"),
        ("main=", "InvalidQuantity", "blank"),
        ("=8Gi", "InvalidQuantity", "not of the form name=size"),
        ("main=8Gi,main=8Gi", "InvalidQuantity", "stands twice"),
        ("other=8Gi", "UnknownContainer", 'no container "other"; it has main'),
        ("vram-enforcer=8Gi", "UnknownContainer", "no container"),
        (
            "mian=8Gi",
            "UnknownContainer",
            'write main in place of mian; the pod has no container "mian"; it has main',
        ),
        ("main=8GB", "InvalidQuantity", "main=8GB is not"),
        ("8Gi\u200b", "InvalidQuantity", "not a Kubernetes quantity"),
    ],
)
def test_a_malformed_annotation_is_denied_with_its_path(memory, reason, says):
    (found,) = findings_of(a_pod(memory))
    assert found[:2] == (reason, "metadata.annotations[vramwarden.io/gpu-memory]")
    assert says in found[2]


def test_all_entries_of_a_list_are_judged_at_once():
    found = findings_of(a_pod("a=8GB,main=0,b=1Gi"))
    reasons = ["UnknownContainer", "InvalidQuantity", "UnknownContainer"]
    assert [reason for reason, _, _ in found] == reasons


@pytest.mark.parametrize("memory", ["8Gi", "main=8Gi"])
def test_amounts_that_disagree_are_denied_at_the_explicit_one(memory):
    ((reason, path, _),) = findings_of(explicit(memory, limits={VRAM: "4Gi"}))
    assert reason == "ConflictingAmounts"
    assert path == "spec.containers[0].resources.limits[vramwarden.io/vram]"


def test_an_unknown_default_container_is_denied_at_its_annotation():
    found = findings_of(a_pod("8Gi", annotations={DEFAULT: "x"}))
    assert found[0][:2] == ("UnknownContainer", f"metadata.annotations[{DEFAULT}]")


class CountedName(str):
    __slots__ = ()
    compared = 0

    def __eq__(self, other):
        CountedName.compared += 1
        return str.__eq__(self, other)

    def __hash__(self):
        return str.__hash__(self)


def counted_pod(memory, count):
    pod = read_pod(a_pod(memory, containers=[a_container(f"c{n}") for n in range(count)]))
    CountedName.compared = 0
    named = (replace(container, name=CountedName(container.name)) for container in pod.containers)
    return replace(pod, containers=tuple(named))


def test_a_list_of_all_containers_costs_a_few_comparisons_for_each():
    pod = counted_pod(",".join(f"c{n}=1Mi" for n in range(256)), 256)
    demand, findings = read_demand(pod)
    assert (len(demand.amounts), findings) == (256, ())
    assert CountedName.compared <= 5 * 256


def test_a_list_is_read_until_sixteen_entries_are_wrong():
    pod = counted_pod("x=," * 1365, 256)
    demand, findings = read_demand(pod)
    assert (demand, len(findings)) == (None, 16)
    assert CountedName.compared <= 256


def test_an_amount_for_an_unknown_container_is_planned_for_the_first_free_one():
    """Messages depend on the plan, so the plan must not depend on the order of a set."""
    names = [f"c{number}" for number in range(20)]
    pod = read_pod(a_pod("x=8Gi,y=4Gi,c1=1Gi", containers=named(*names)))
    demand, findings = plan_demand(pod, Suggestions(pod.containers))
    assert [finding.reason.value for finding in findings] == ["UnknownContainer"] * 2
    assert demand.amounts == {"c0": 8 * 2**30, "c1": 2**30, "c2": 4 * 2**30}
