from dataclasses import replace

import pytest

from tests.support.pods import a_container, a_pod
from webhook.core.pod.demand import read_demand
from webhook.core.pod.quantity import format_bytes
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


def test_a_pod_that_asks_for_nothing_has_no_demand():
    assert demand_of(a_pod()) is None


def test_one_quantity_goes_to_the_first_container():
    demand = demand_of(a_pod("8Gi", containers=[a_container("a"), a_container("b")]))
    assert dict(demand.amounts) == {"a": 8 * 2**30}


@pytest.mark.parametrize("name", ["b", "init", "side"])
def test_one_quantity_goes_to_the_default_container_where_one_is_named(name):
    pod = a_pod(
        "8Gi",
        containers=[a_container("a"), a_container("b")],
        initContainers=[a_container("init"), a_container("side", restartPolicy="Always")],
        annotations={"kubectl.kubernetes.io/default-container": name},
    )
    assert dict(demand_of(pod).amounts) == {name: 8 * 2**30}


def test_a_list_gives_each_container_its_own():
    pod = a_pod(
        "trainer=8Gi, loader=512Mi", containers=[a_container("trainer"), a_container("loader")]
    )
    demand = demand_of(pod)
    assert dict(demand.amounts) == {"trainer": 8 * 2**30, "loader": 2**29}
    assert format_bytes(demand.per_gpu_bytes) == "8704Mi"


@pytest.mark.parametrize(
    ("apps", "sidecars_first", "inits", "sidecars_last", "want"),
    [
        # sums over app containers and sidecars, or the peak while an init container runs
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
    def named(kind, sizes, **more):
        return [(f"{kind}{i}", size, more) for i, size in enumerate(sizes)]

    first = named("first", sidecars_first, restartPolicy="Always")
    middle = named("init", inits)
    last = named("last", sidecars_last, restartPolicy="Always")
    app = named("app", apps)
    pod = a_pod(
        ",".join(f"{name}={size}Gi" for name, size, _ in [*app, *first, *middle, *last]),
        containers=[a_container(name) for name, _, _ in app],
        initContainers=[a_container(name, **more) for name, _, more in [*first, *middle, *last]],
    )
    assert demand_of(pod).per_gpu_bytes == want * 2**30


@pytest.mark.parametrize("kinds", [("limits",), ("requests", "limits")])
def test_an_explicit_amount_is_a_demand_like_the_annotation(kinds):
    resources = {kind: {VRAM: "2Gi"} for kind in kinds}
    demand = demand_of(a_pod(containers=[a_container(resources=resources)]))
    assert demand.per_gpu_bytes == 2 * 2**30


def test_annotation_and_explicit_amount_may_agree():
    pod = a_pod("2048Mi", containers=[a_container(resources=asking("limits", "2Gi"))])
    assert demand_of(pod).per_gpu_bytes == 2 * 2**30


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


@pytest.mark.parametrize("count", ["0", "-1", "1.2", "two", "", "1e3", "99999", " 2", "²"])
def test_what_is_no_count_is_denied(count):
    found = findings_of(a_pod("8Gi", annotations={"vramwarden.io/gpu-count": count}))
    assert [reason for reason, _, _ in found] == ["InvalidCount"]


def test_a_count_without_memory_is_denied():
    found = findings_of(a_pod(annotations={"vramwarden.io/gpu-count": "2"}))
    assert found[0][0] == "InvalidCount"
    assert "needs vramwarden.io/gpu-memory" in found[0][2]


def test_a_class_without_memory_is_denied():
    found = findings_of(a_pod(annotations={"vramwarden.io/gpu-class": "a100"}))
    assert found[0][0] == "InvalidQuantity"


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
    assert [reason for reason, _, _ in found] == [
        "UnknownContainer",
        "InvalidQuantity",
        "UnknownContainer",
    ]


def test_an_unknown_default_container_is_denied_at_its_annotation():
    pod = a_pod("8Gi", annotations={"kubectl.kubernetes.io/default-container": "x"})
    assert findings_of(pod)[0][:2] == (
        "UnknownContainer",
        "metadata.annotations[kubectl.kubernetes.io/default-container]",
    )


def test_a_pod_without_containers_cannot_get_vram():
    assert findings_of(a_pod("8Gi", containers=[]))[0][0] == "UnknownContainer"


@pytest.mark.parametrize(
    ("memory", "resources"),
    [
        ("8Gi", asking("limits", "4Gi")),
        ("main=8Gi", asking("limits", "4Gi")),
    ],
)
def test_amounts_that_disagree_are_denied(memory, resources):
    (found,) = findings_of(a_pod(memory, containers=[a_container(resources=resources)]))
    assert found[0] == "ConflictingAmounts"
    assert found[1] == "spec.containers[0].resources.limits[vramwarden.io/vram]"


def test_an_explicit_amount_on_a_container_that_the_annotation_leaves_out_is_denied():
    pod = a_pod(
        "8Gi", containers=[a_container("a"), a_container("b", resources=asking("limits", "1Gi"))]
    )
    (found,) = findings_of(pod)
    assert found[0] == "ConflictingAmounts"
    assert "gives it none" in found[2]


@pytest.mark.parametrize(
    "resources",
    [
        asking("requests", "2Gi"),
        {"requests": {VRAM: "2Gi"}, "limits": {VRAM: "4Gi"}},
        {"requests": {VRAM: "2Gi"}, "limits": {"cpu": "1"}},
    ],
)
def test_a_request_without_its_equal_limit_is_denied(resources):
    found = findings_of(a_pod(containers=[a_container(resources=resources)]))
    assert [reason for reason, _, _ in found] == ["RequestsLimitsMismatch"]


def test_an_explicit_zero_is_denied():
    found = findings_of(a_pod(containers=[a_container(resources=asking("limits", "0"))]))
    assert found[0][0] == "InvalidQuantity"


def test_sums_beyond_what_kubernetes_counts_are_denied():
    pod = a_pod("a=5Ei,b=5Ei", containers=[a_container("a"), a_container("b")])
    assert findings_of(pod)[0][0] == "TooLarge"
    pod = a_pod("5Ei", annotations={"vramwarden.io/gpu-count": "2"})
    assert findings_of(pod)[0][0] == "TooLarge"


class CountedName(str):
    """A name that counts how often it is compared."""

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
