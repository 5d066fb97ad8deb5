"""Worst-case cost of a review in function calls: a constant plus a small cost per byte.

`make bench` measures time, which differs between machines, while the number of calls does not.
Loops within one call of C code are not counted: tests/core/pod/test_demand.py tests list searches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.admission.decisions import VISIBLE
from tests.support.call_count import calls
from tests.support.pods import a_container, a_pod, a_policy, a_request, a_rule
from tests.support.random_reviews import (
    NAMES_OF_OTHERS,
    OPERATIONS,
    UNEQUAL_AMOUNTS,
    answer,
    drawn,
    fitting,
    review,
)
from webhook.adapters.review_json import write_review
from webhook.core.admission.decide import decide
from webhook.core.admission.decision import Phase
from webhook.core.pod.patch import condense
from webhook.core.policy.cluster import UNKNOWN_CLUSTER
from webhook.core.policy.model import VisibleDevices
from webhook.server.connections import SMALL_BODY_BYTES

pytestmark = pytest.mark.process  # takes half a minute, since counting slows down each call

Json = dict[str, Any]

MOST_SMALL_CALLS = 125_000
"""Maximum number of calls for a review of `SMALL_BODY_BYTES`. Takes 22 ms: most calls are cheap."""
MOST_CALLS = 600_000
"""Maximum number of calls for a pod within all bounds. Takes less than 0.1 s."""
BYTES_PER_CALL = 8
"""Minimum number of bytes per call for a larger pod, whose parts are visited once."""

ROOM = 8 * 2**20 - 4096
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
# Fields that the API server adds to each container before it sends a review.
DEFAULTS = {
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
    "imagePullPolicy": "Always",
    "resources": {},
}


def fill(item: Any, room: int = ROOM) -> list[Any]:
    """Return as many copies of an item as fit into a body of 8 MiB."""
    return [item] * (room // (len(orjson.dumps(item)) + 1))


def keyed(prefix: str, value: str, room: int = ROOM) -> dict[str, str]:
    """Return as many entries as fit into a body of 8 MiB."""
    count = room // (len(prefix) + len(value) + 12)
    return {f"{prefix}{n}": value for n in range(count)}


def named(count: int, **fields: Any) -> list[Json]:
    return [a_container(f"c{n}", **DEFAULTS | fields) for n in range(count)]


def node_terms(terms: list[Json]) -> Json:
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}


def main_with(**fields: Any) -> Json:
    return {"containers": [a_container(**fields)]}


def amounts(count: int, prefix: str = "nvidia.com/mig-") -> dict[str, str]:
    return {f"{prefix}{n}": "1" for n in range(count)}


MANY = [{"key": f"k{n}", "operator": "In", "values": ["1"]} for n in range(64)]
MOUNT = {"name": "v", "mountPath": "/var/run/nvidia-container-devices/../x"}

BEYOND: dict[str, Callable[[], Json]] = {
    "containers": lambda: a_pod("c0=8Gi", containers=named(ROOM // 200)),
    "containers and list": lambda: a_pod("x=," * 900_000, containers=named(ROOM // 300)),
    "explicit amounts": lambda: a_pod(
        containers=named(ROOM // 240, resources={"limits": {"vramwarden.io/vram": "1Gi"}})
    ),
    "variables": lambda: a_pod("8Gi", **main_with(env=fill({"name": "A"}))),
    "voids": lambda: a_pod(**main_with(env=fill({"name": VISIBLE, "value": "all"}))),
    "sources": lambda: a_pod("8Gi", **main_with(envFrom=fill({}))),
    "volumes": lambda: a_pod("8Gi", volumes=fill({"name": "v"})),
    "mounts": lambda: a_pod("8Gi", **main_with(volumeMounts=fill({"name": "v"}))),
    "terms": lambda: a_pod("8Gi", affinity=node_terms(fill({"matchExpressions": MANY[:1]}))),
    "expressions": lambda: a_pod(
        "8Gi", affinity=node_terms([{"matchExpressions": fill({"key": "a"})}])
    ),
    "tolerations": lambda: a_pod("8Gi", tolerations=fill({})),
    "claims": lambda: a_pod("8Gi", resourceClaims=fill({})),
    "capabilities": lambda: a_pod(
        "8Gi", **main_with(securityContext={"capabilities": {"add": fill("A")}})
    ),
    "resources": lambda: a_pod(
        "8Gi", **main_with(resources={"limits": keyed("nvidia.com/mig-", "1")})
    ),
    "annotations": lambda: a_pod("8Gi", annotations=keyed("a", "")),
    "labels": lambda: a_pod("8Gi", labels=keyed("a", "")),
    "node selector": lambda: a_pod("8Gi", nodeSelector=keyed("a", "")),
    "enforcers": lambda: a_pod(
        "8Gi", containers=[a_container(), *fill(a_container("vram-enforcer", **DEFAULTS))]
    ),
    "containers of others": lambda: a_pod(containers=named(ROOM // 200)),
    "variables of others": lambda: a_pod(**main_with(env=fill({"name": "A"}))),
    "mounts of others": lambda: a_pod(**main_with(volumeMounts=fill({"name": "v"}))),
    "CDI annotations of others": lambda: a_pod(annotations=keyed("cdi.k8s.io/", "a")),
}
WITHIN: dict[str, Callable[[], Json]] = {
    "arguments": lambda: a_pod("8Gi", **main_with(args=[""] * (ROOM // 3))),
    "servers that nothing bounds": lambda: a_pod(
        ",".join(f"c{n}=1Gi" for n in range(255)),
        containers=named(
            255,
            image="vllm",
            args=["--gpu_memory_util"[:15] * 4] * 250,
            env=[{"name": f"A{n}", "value": "x"} for n in range(32)],
        ),
    ),
    "lines of shells": lambda: a_pod(
        ",".join(f"c{n}=1Gi" for n in range(255)),
        containers=named(
            255,
            image="vllm",
            command=[
                "sh",
                "-c",
                "vllm serve '$VRAMWARDEN_A;gpu_memory_utilization=.9 -tp 9 " * 250,
            ],
        ),
    ),
    "what we never read": lambda: a_pod("8Gi", schedulingGates=fill({}), hostAliases=fill({}, 999)),
    "command of an enforcer": lambda: a_pod(
        "8Gi", containers=[a_container(), a_container("vram-enforcer", command=fill("a"))]
    ),
    "everything at its bound": lambda: a_pod(
        ",".join(f"c{n}=1Gi" for n in range(255)),
        annotations={f"cdi.k8s.io/{n}": "x" * 4000 for n in range(1000)},
        containers=named(
            255,
            env=[{"name": f"A{n}", "value": "x"} for n in range(32)],
            volumeMounts=[MOUNT] * 32,
            securityContext={"capabilities": {"add": ["X"] * 64}},
            resources={"limits": amounts(32, "example.com/r")},
        ),
        volumes=[
            {"name": f"v{n}", "hostPath": {"path": "/data/" + "x/" * 900}} for n in range(1000)
        ],
        affinity=node_terms([{"matchExpressions": MANY}] * 256),
    ),
    "variables that are all wrong": lambda: a_pod(
        "c0=8Gi", containers=named(256, env=[{"name": VISIBLE, "value": "all"}] * 32)
    ),
    "resources that are all wrong": lambda: a_pod(
        containers=[
            a_container(
                f"c{n}",
                resources={
                    "limits": dict.fromkeys(amounts(32, f"nvidia.com/mig-{n}-"), "1.5"),
                    "requests": amounts(32, f"nvidia.com/mig-{n}r-"),
                },
            )
            for n in range(256)
        ]
    ),
    "amounts that are all wrong": lambda: a_pod(
        ",".join(f"c{n}=8GB" for n in range(32)),
        containers=named(32, resources={"limits": {"vramwarden.io/vram": "8GB"}}),
        annotations={"vramwarden.io/gpu-count": "two", "vramwarden.io/gpu-class": "none"},
    ),
    "explicit amounts that are all wrong": lambda: a_pod(
        containers=named(256, resources={"requests": {"vramwarden.io/vram": "8GB"}})
    ),
    "fractions of GPUs": lambda: a_pod(
        containers=named(32, resources={"limits": amounts(8) | {"nvidia.com/gpu": "0.5"}})
    ),
    "a resource with a name of 8 MiB": lambda: a_pod(
        "8Gi", **main_with(resources={"limits": {"nvidia.com/mig-" + "x" * ROOM: "1"}})
    ),
    "paths of 8 KiB": lambda: a_pod(
        "8Gi",
        volumes=[{"name": f"v{n}", "hostPath": {"path": "/dev/../" * 1024}} for n in range(1000)],
    ),
    "keys with our prefix": lambda: a_pod(
        "8Gi", annotations={f"vramwarden.io/{'y' * 8000}{n}": "" for n in range(1000)}
    ),
}


HOST_PATHS = {"volumes": 1000, "volume": {"hostPath": {"path": "/"}}, "vram request": "9 GB"}
SHOWING = {"mounts": 14, "mount path": "/var/run/nvidia-container-devices/all", "privileged": True}
SMALL: list[tuple[str, Phase, Json]] = [
    ("update", Phase.VALIDATE, UNEQUAL_AMOUNTS),
    ("update", Phase.VALIDATE, {**UNEQUAL_AMOUNTS, "containers": 32, "resources": 6, "limit": "1"}),
    ("create", Phase.MUTATE, NAMES_OF_OTHERS),
    ("create", Phase.VALIDATE, NAMES_OF_OTHERS),
    ("create", Phase.MUTATE, {**NAMES_OF_OTHERS, "policy": "gpu-classes"}),
    ("create", Phase.MUTATE, {**HOST_PATHS, "label": "1", "labels": 32, "keys": 200}),
    (
        "create",
        Phase.VALIDATE,
        {"containers": 85, "request": "8 GB", "memory": "{c}=8", "resources": 6, "limit": "2"},
    ),
    (
        "debug",
        Phase.MUTATE,
        {"debuggers": 133, "capabilities": 6, "variables": 1, "vram": "0.5", "containers": 13},
    ),
    ("debug", Phase.VALIDATE, {"debuggers": 50, "old": "annotations", "vram": "0", **SHOWING}),
    (
        "resize",
        Phase.MUTATE,
        {"containers": 135, "user": 1000, "vram": "8Gi", "memory": "9 GB", "injectors": 42},
    ),
    (
        "resize",
        Phase.VALIDATE,
        {"containers": 226, "old": "nothing", "memory": "{c}=1e3", "policy": "mig", "vram": ""},
    ),
    ("bind", Phase.MUTATE, {"keys": 1788, "value": "2", "other keys": 690}),
]
"""The most expensive reviews in the bench's table `worst`, and attacks."""


def assert_bounded(count: int, size_bytes: int) -> None:
    assert count <= MOST_CALLS + size_bytes // BYTES_PER_CALL


def creation(pod: Json, phase: Phase, devices: VisibleDevices) -> int:
    policy = a_policy(a_rule(visible_devices=devices))
    return calls(
        lambda: write_review("u-1", decide(a_request(pod), policy, UNKNOWN_CLUSTER, phase))
    )


def update(pod: Json, subresource: str) -> int:
    """Return the calls for an update of the label, or for added debugging containers."""
    labels = (pod["metadata"].get("labels") or {}) | {"vramwarden.io/managed": "x"}
    if subresource:
        debuggers = [{**one, "name": f"d-{one['name']}"} for one in pod["spec"]["containers"]]
        new = {**pod, "spec": {**pod["spec"], "ephemeralContainers": debuggers}}
    else:
        new = {**pod, "metadata": {**pod["metadata"], "labels": labels}}
    new["spec"] = orjson.loads(
        orjson.dumps(new["spec"])
    )  # shares no object, like a pod from the network
    request = a_request(new, operation="UPDATE", old=pod, subresource=subresource)
    return calls(
        lambda: write_review("u-1", decide(request, a_policy(), UNKNOWN_CLUSTER, Phase.MUTATE))
    )


@pytest.mark.parametrize("name", [*BEYOND, *WITHIN])
def test_the_worst_pods_of_8_mib_cost_a_bounded_number_of_calls(name):
    pod = (BEYOND | WITHIN)[name]()
    size_bytes = len(orjson.dumps(pod))
    assert_bounded(creation(pod, Phase.MUTATE, VisibleDevices.VOID), size_bytes)
    assert_bounded(creation(pod, Phase.VALIDATE, VisibleDevices.DENY), size_bytes)
    for subresource in ("", "ephemeralcontainers"):
        assert_bounded(update(pod, subresource), 2 * size_bytes)


@pytest.mark.parametrize("name", [name for name in BEYOND if "others" not in name])
def test_a_pod_of_ours_beyond_a_bound_costs_next_to_nothing(name):
    pod = BEYOND[name]()
    size_bytes = len(orjson.dumps(pod))
    # The search for a demand in the containers is one pass.
    assert creation(pod, Phase.MUTATE, VisibleDevices.DENY) <= 20_000 + size_bytes // 50


def test_a_patch_is_condensed_by_a_few_calls_for_each_operation():
    many = named(240, env=[{"name": "A"}])
    pod = a_pod(",".join(f"{one['name']}=1Gi" for one in many), containers=many)
    patch = decide(a_request(pod), a_policy(), UNKNOWN_CLUSTER, Phase.MUTATE).patch
    assert len(patch) > 900
    assert calls(lambda: condense(pod, patch, "spec")) <= 20 * len(patch)


COUNTS = st.sampled_from([0, 1, 30, 60, 255, 257, 1024, 1025, 20_000])
PODS = st.builds(
    lambda memory, containers, lists, maps, spec: a_pod(
        memory,
        containers=[
            a_container(
                f"c{n}",
                **{field: [item] * count for field, (item, count) in lists.items()},
                resources={kind: amounts(count) for kind, count in maps.items()},
            )
            for n in range(containers)
        ],
        **{field: [item] * count for field, (item, count) in spec.items()},
    ),
    memory=st.sampled_from([None, "8Gi", "8GB", "c0=8Gi,c1=1Gi", "x=," * 1000]),
    containers=st.sampled_from([1, 2, 32, 256, 257, 600]),
    lists=st.fixed_dictionaries(
        {},
        optional={
            "env": st.tuples(
                st.sampled_from(
                    [{"name": "A"}, {"name": VISIBLE, "value": "all"}, {"name": "CUDA_MPS_X"}]
                ),
                COUNTS,
            ),
            "volumeMounts": st.tuples(st.sampled_from([MOUNT, {"name": "v"}]), COUNTS),
            "envFrom": st.tuples(st.just({}), COUNTS),
            "args": st.tuples(st.just(""), COUNTS),
        },
    ).filter(lambda lists: len(lists) < 3),
    maps=st.dictionaries(
        st.sampled_from(["limits", "requests"]), st.sampled_from([1, 31, 32, 33, 3000])
    ),
    spec=st.fixed_dictionaries(
        {},
        optional={
            "volumes": st.tuples(
                st.sampled_from([{"name": "v"}, {"name": "v", "hostPath": {"path": "/dev"}}]),
                COUNTS,
            ),
            "tolerations": st.tuples(st.just({"operator": "Exists"}), COUNTS),
            "resourceClaims": st.tuples(st.just({"name": "c"}), COUNTS),
        },
    ),
)


def as_it_can_arrive(pod: Json) -> Json:
    """Return a pod with as many of its containers as fit into a body that is judged."""
    containers = pod["spec"]["containers"]
    rest = len(orjson.dumps({**pod, "spec": {**pod["spec"], "containers": []}}))
    most = max(1, (ROOM - rest) // (len(orjson.dumps(containers[-1])) + 1))
    return {**pod, "spec": {**pod["spec"], "containers": containers[:most]}}


@settings(max_examples=15)
@given(PODS.map(as_it_can_arrive), st.sampled_from(Phase), st.sampled_from(VisibleDevices))
def test_no_pod_costs_more_than_the_worst_that_we_know(pod, phase, devices):
    assert_bounded(creation(pod, phase, devices), len(orjson.dumps(pod)))


@pytest.mark.parametrize(("operation", "phase", "parts"), SMALL)
def test_the_worst_reviews_on_the_event_loop_cost_a_bounded_number_of_calls(
    operation, phase, parts
):
    body = review(operation, parts)
    assert len(body) <= SMALL_BODY_BYTES
    assert calls(answer(operation, phase, parts, body)) <= MOST_SMALL_CALLS


@settings(max_examples=40)
@given(st.randoms(use_true_random=False), st.sampled_from(OPERATIONS), st.sampled_from(Phase))
def test_no_review_on_the_event_loop_costs_more_than_the_worst(random, operation, phase):
    parts, body = fitting(random, operation, drawn(random, {}, 12), SMALL_BODY_BYTES)
    assert calls(answer(operation, phase, parts, body)) <= MOST_SMALL_CALLS
