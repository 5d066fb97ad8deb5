"""Warnings about requests in other products' form and near misses of vramwarden keys."""

from __future__ import annotations

import pytest

from tests.core.admission.decisions import assert_unchanged, decide_pod
from tests.support.pods import a_container, a_pod, a_policy, a_rule
from webhook.core.admission.decision import Phase
from webhook.core.admission.rules.near_misses import comparable_keys, correction
from webhook.core.pod.other_products import OTHER_PRODUCTS_BY_ANNOTATION
from webhook.core.policy.gpu_resources import WHOLE_GPU_RESOURCES
from webhook.core.policy.model import Action, MemoryBounds

MEMORY, COUNT = "vramwarden.io/gpu-memory", "vramwarden.io/gpu-count"
BESIDE = f" and {MEMORY}: 8Gi, for example"


def notes(pod, **rule):
    decision = decide_pod(pod, a_rule(**rule))
    assert_unchanged(decision)
    return decision.warnings


def with_limits(**limits):
    return a_pod(containers=[a_container("main", resources={"limits": limits})])


def theirs(product, line):
    return f"remove it, and write the annotation {line}; {product} reads it, vramwarden does not"


@pytest.mark.parametrize(
    ("name", "amount", "said"),
    [
        ("nvidia.com/gpumem", "3000", theirs("HAMi", f"{MEMORY}: 3000Mi")),
        ("nvidia.com/gpumem", "3k", theirs("HAMi", f"{MEMORY}: 3000Mi")),
        ("aliyun.com/gpu-mem", "2k", theirs("gpushare", f"{MEMORY}: 2000Mi")),
        ("volcano.sh/vgpu-memory", "10k", theirs("Volcano", f"{MEMORY}: 10000Mi")),
        ("nvidia.com/gpumem-percentage", "50", theirs("HAMi", f"{MEMORY}: 8Gi, for example")),
        ("aliyun.com/gpu-mem", "3", theirs("gpushare", f"{MEMORY}: 3Gi")),
        ("volcano.sh/vgpu-memory", "3000", theirs("Volcano", f"{MEMORY}: 3000Mi")),
        ("volcano.sh/gpu-memory", "1024", theirs("Volcano", f"{MEMORY}: 1024Mi")),
        ("volcano.sh/vgpu-number", "1", theirs("Volcano", f"{MEMORY}: 8Gi, for example")),
        (
            "nvidia.com/gpucores",
            "30",
            "remove it; HAMi reads it, vramwarden does not, and compute is not divided here",
        ),
        (
            "vramwarden.io/gpu-memory",
            "8Gi",
            f"remove it and write the annotation {MEMORY}: 8Gi; no node has this resource",
        ),
        (
            "vramwarden.io/gpu-mem",
            "8Gi",
            f"remove it and write the annotation {MEMORY}: 8Gi; no node has this resource",
        ),
        (
            "vramwarden.io/gpu-count",
            "2",
            f'remove it and write the annotation {COUNT}: "2"{BESIDE}; no node has this resource',
        ),
        (
            "vramwarden.io/gpu",
            "1",
            "write vramwarden.io/vram: 8Gi in its place; no node has this resource",
        ),
        (
            "nvidia.com/gpu-memory",
            "8Gi",
            f"remove it and write the annotation {MEMORY}: 8Gi; no node has this resource",
        ),
        (
            "vram-warden.io/vram",
            "8Gi",
            f"remove it and write the annotation {MEMORY}: 8Gi; no node has this resource",
        ),
    ],
)
def test_a_resource_that_nothing_here_counts_earns_the_line_to_write(name, amount, said):
    path = f"spec.containers[0].resources.limits[{name}]"
    assert notes(with_limits(**{name: amount})) == (f"{path}: {said}",)


@pytest.mark.parametrize(("gpus", "more"), [("1", ""), ("2", f' and {COUNT}: "2"')])
def test_several_gpus_of_hami_become_a_count_and_one_needs_none(gpus, more):
    (note,) = notes(with_limits(**{"nvidia.com/gpu": gpus, "nvidia.com/gpumem": "3000"}))
    line = f"{MEMORY}: 3000Mi{more}"
    assert f": remove it and nvidia.com/gpu, and write the annotation {line};" in note


def test_what_several_containers_ask_for_is_one_line():
    limits = [{"nvidia.com/gpu": "1", "nvidia.com/gpumem": one} for one in ("3k", "1000")]
    first, second = (
        a_container(f"c{n}", resources={"limits": one}) for n, one in enumerate(limits)
    )
    line = f"{MEMORY}: c0=3000Mi, c1=1000Mi"
    assert [
        note.partition("write the annotation ")[2].partition(";")[0]
        for note in notes(a_pod(containers=[first, second]))
    ] == [line, line]
    (note,) = notes(a_pod(containers=[a_container("web"), second]))
    assert f": remove it and nvidia.com/gpu, and write the annotation {MEMORY}: c1=1000Mi;" in note


def test_what_else_is_wrong_with_a_share_is_said_beside_the_line():
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3k"}
    pod = a_pod(containers=[a_container(resources={"limits": limits})], hostPID=True)
    _, beside = notes(pod)
    assert beside.startswith("spec.hostPID: beside that, HostPID: remove hostPID; the sidecar")
    (note,) = notes(
        pod | {"spec": {**pod["spec"], "hostPID": False}}, memory=MemoryBounds(None, 2**31)
    )
    why = 'asks for 3000Mi per GPU; rule "default" allows at most 2Gi'
    assert f"{MEMORY}: 2Gi, for example ({why});" in note


def test_a_request_without_a_limit_is_found_and_one_with_it_only_once():
    resources = {"requests": {"aliyun.com/gpu-mem": "3"}, "limits": {}}
    pod = a_pod(containers=[a_container("main", resources=resources)])
    (note,) = decide_pod(pod, a_rule()).notes
    assert note.startswith("spec.containers[0].resources.requests[aliyun.com/gpu-mem]: remove it")
    resources["limits"] = resources["requests"]
    assert len(notes(pod)) == 1


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("vramwarden/gpu-memory", "8Gi", f"{MEMORY}: 8Gi"),
        ("vram-warden.io/gpu-memory", "8Gi", f"{MEMORY}: 8Gi"),
        ("vramwarden.com/gpu-memory", "8Gi", f"{MEMORY}: 8Gi"),
        ("vramwarden.iox/gpu-mem", "8Gi", f"{MEMORY}: 8Gi"),
        ("vramwarden/gpu-memory", "8GB", f"{MEMORY}: 8G"),
        ("vramwardn.io/gpu-count", "2", f'{COUNT}: "2"{BESIDE}'),
        ("vramwarden/gpu-class", "a100", f'vramwarden.io/gpu-class: "a100"{BESIDE}'),
        ("gpu-memory", "8Gi", f"{MEMORY}: 8Gi"),
        ("gpu_memory", "8", f"{MEMORY}: 8Gi"),
        ("gpumemory", "8192", f"{MEMORY}: 8192Mi"),
        ("vram", "8Gi", f"{MEMORY}: 8Gi"),
        ("vram.io/gpu-memory", "8Gi", f"{MEMORY}: 8Gi"),
        ("vram-share.dev/gpu-count", "2", f'{COUNT}: "2"{BESIDE}'),
        ("nvidia.com/gpu-memory", "8Gi", f"{MEMORY}: 8Gi"),
        ("nvidia.com/gpu.mem", "8GB", f"{MEMORY}: 8G"),
        ("vramwarden/gpu-memory", "8Gi\n\x1b[2J", f"{MEMORY}: 8Gi, for example"),
    ],
)
def test_a_key_that_nearly_is_ours_earns_the_line_to_write(key, value, line):
    assert notes(a_pod(annotations={key: value})) == (
        f"metadata.annotations[{key}]: write {line} in its place; nothing reads this key",
    )


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("gpu-memory", "2000", f"{MEMORY}: 2000Mi"),
        ("gpu-fraction", "0.5", f"{MEMORY}: 8Gi, for example"),
    ],
)
def test_what_kai_reads_is_said_to_be_kais(key, value, line):
    assert notes(a_pod(annotations={key: value})) == (
        f"metadata.annotations[{key}]: write {line}; KAI reads it, vramwarden does not",
    )


def test_a_label_that_nearly_is_ours_earns_the_line_to_write():
    (note,) = notes(a_pod(labels={"vramwarden/gpu-memory": "8Gi"}))
    assert note == (
        f"metadata.labels[vramwarden/gpu-memory]: write {MEMORY}: 8Gi under metadata.annotations; "
        "nothing reads this key"
    )


@pytest.mark.parametrize(
    "pod",
    [
        with_limits(**{"nvidia.com/gpu": "1", "cpu": "1", "example.com/gpu-memory": "1"}),
        with_limits(**{"vendor.example/fpga": "1", "hugepages-2Mi": "1Gi"}),
        a_pod(annotations={"example.com/gpu-memory": "8Gi", "vendor.io/gpu-memory": "8Gi"}),
        a_pod(annotations={"nvidia.com/gpu.deploy": "true", "nvidia.com/vgpu-mode": "a"}),
        a_pod(labels={"vramwarden.io/workload": "gpu-memory", "team": "ml"}),
        a_pod(annotations={"gpu": "yes", "memory": "8Gi", "vramwarden/team": "ml"}),
        a_pod(labels={"gpu-memory": "8Gi", "gpu": "a100"}),
    ],
)
def test_what_is_anybodys_earns_no_warning(pod):
    assert notes(pod) == ()


@pytest.mark.parametrize("key", OTHER_PRODUCTS_BY_ANNOTATION)
def test_a_pod_that_asks_by_our_name_may_ask_by_theirs_too(key):
    assert decide_pod(a_pod("8Gi", annotations={key: "2000"}), a_rule()).notes == ()


def test_a_pod_that_asks_twice_is_denied_and_reads_no_hint():
    resources = {"limits": {"nvidia.com/gpumem": "3000"}}
    pod = a_pod("8Gi", containers=[a_container("main", resources=resources)])
    policy = a_policy(whole_gpu_resources=WHOLE_GPU_RESOURCES)
    decision = decide_pod(pod, policy=policy)
    assert decision.reasons == ("WholeGPUAndShare",)
    assert decision.notes == ()
    (note,) = decide_pod(pod).notes  # under a policy that does not count it as a GPU
    assert note.endswith("[nvidia.com/gpumem]: remove it; HAMi reads it, vramwarden does not")


def test_a_rule_that_ignores_warns_of_nothing_and_neither_does_validation():
    pod = with_limits(**{"nvidia.com/gpumem": "3000"})
    assert decide_pod(pod, a_rule(action=Action.IGNORE)).notes == ()
    assert decide_pod(pod, phase=Phase.VALIDATE).notes == ()


def test_few_warnings_are_given_and_few_keys_compared(monkeypatch):
    compared = []
    real = correction.__globals__["get_close_matches"]

    def counting(word, *arguments, **options):
        compared.append(word)
        return real(word, *arguments, **options)

    monkeypatch.setitem(correction.__globals__, "get_close_matches", counting)
    limits = {f"vramwarde.io/gpu-memory{n}": "8Gi" for n in range(30)}
    containers = [a_container(f"c{n}", resources={"limits": limits}) for n in range(2)]
    keys = {f"vramwarde.io/gpu-memory{n}": "8Gi" for n in range(1000)}
    pod = a_pod(annotations=keys, labels=keys, containers=containers)
    assert len(decide_pod(pod, a_rule()).notes) == 10
    odd = {f"vramwardxx.{n}/gpu": "8Gi" for n in range(30)}
    containers = [a_container(f"c{n}", resources={"limits": odd}) for n in range(2)]
    keys = {f"vramwardxx.{n}/gpu": "8Gi" for n in range(1000)}
    compared.clear()
    decide_pod(a_pod(annotations=keys, labels=keys, containers=containers), a_rule())
    assert len(compared) <= 3 * 2 * 32


def test_of_however_many_keys_only_the_first_are_read():
    keys = (f"example.com/{n}" for n in range(10_000))
    assert list(comparable_keys(keys)) == []
    assert next(keys) == "example.com/4096"
