"""Migration of pods from any product, and properties of every migration."""

from __future__ import annotations

import copy

from hypothesis import given
from hypothesis import strategies as st

from tests.support.follow_advice import followed, lines, respelled
from tests.support.pods import a_container, a_pod, a_policy, a_request
from tests.tools.admit.migration.moving import GIB, a_limited, limits, move
from webhook.core.admission.decide import decide
from webhook.core.admission.decision import Outcome, Phase
from webhook.core.nvidia.variables import VISIBLE_DEVICES_ENV, visible_devices
from webhook.core.pod.demand import read_demand
from webhook.core.pod.views import read_pod
from webhook.core.policy.cluster import UNKNOWN_CLUSTER
from webhook.tools.admit.migration.foreign_pod import is_removed, notes_about_object
from webhook.tools.admit.migration.requests import PRODUCTS

MEMORY = "vramwarden.io/gpu-memory"
SIXTEEN = {"gpu_bytes": 16 * GIB}


def test_several_containers_are_listed_and_share_the_gpu():
    pod = a_pod(
        containers=[a_limited("a", gpu="1", gpumem="8192"), a_container("c")],
        initContainers=[a_limited("b", gpumem="2048")],
    )
    made = move("hami", pod)
    assert made.asks == f"{MEMORY}: a=8Gi, b=2Gi"
    assert made.memory == "a=8Gi, b=2Gi"
    assert made.notes == [
        (
            "spec.containers: each of a, b could get a GPU of its own; here they share the pod's, "
            "which must hold 8Gi"
        )
    ]


def test_a_sum_that_no_gpu_has_is_said():
    pod = a_pod(containers=[a_limited(name, gpumem="1000000") for name in "ab"])
    assert move("hami", pod).notes[0].endswith("must hold 2000000Mi, more than any GPU has")


def test_different_numbers_of_gpus_are_reported():
    pod = a_pod(containers=[a_limited("a", gpu="1"), a_limited("b", gpu="2")])
    made = move("whole", pod, **SIXTEEN)
    assert made == (
        pod,
        "",
        [],
        [
            (
                "spec.containers: the containers ask for different numbers of GPUs (a=1, b=2), and "
                "a pod has one number here; split the pod, or make them agree"
            )
        ],
    )


def test_variables_that_no_share_is_admitted_beside_go():
    kept = [{"name": "A", "value": "1"}, {"name": VISIBLE_DEVICES_ENV, "value": "void"}]
    gone = [
        {"name": VISIBLE_DEVICES_ENV, "value": "all"},
        {"name": "CUDA_MPS_PIPE_DIRECTORY", "value": "/mps"},
    ]
    pod = a_pod(
        containers=[
            {**a_limited("a", gpumem="1024"), "env": [gone[0], *kept, gone[1]]},
            a_container("b", env=gone),
        ]
    )
    made = move("hami", pod)
    first, second = made.pod["spec"]["containers"]
    assert first["env"] == kept
    assert "env" not in second
    assert len(made.notes) == 4
    assert is_removed(visible_devices(chosen=False))
    assert not is_removed(visible_devices(chosen=True))


def test_the_variables_of_pods_that_ask_for_nothing_stay():
    pod = a_pod(containers=[a_container(env=[{"name": VISIBLE_DEVICES_ENV, "value": "all"}])])
    assert move("hami", pod) == (pod, "", [], [])


def test_of_resources_only_theirs_go():
    resources = {
        "limits": {"cpu": "1", **limits(gpu="1", gpumem="1024")},
        "requests": limits(gpu="1", gpumem="1024"),
        "claims": [],
    }
    made = move("hami", a_pod(containers=[a_container(resources=resources)]))
    (container,) = made.pod["spec"]["containers"]
    assert container["resources"] == {"limits": {"cpu": "1"}, "claims": []}


def test_a_pod_that_asks_us_already_loses_what_theirs_is_left():
    pod = a_pod(
        "8Gi", containers=[a_limited(gpu="1", gpumem="3000")], schedulerName="hami-scheduler"
    )
    made = move("hami", pod)
    assert (made.memory, made.asks) == ("8Gi", "")
    assert made.pod["spec"] == {"containers": [a_container()]}
    assert made.notes[0] == (
        f"metadata.annotations[{MEMORY}]: the pod asks vramwarden already, so what HAMi read is "
        "removed"
    )


def test_a_pod_that_asks_us_alone_stays_as_it_is():
    env = [{"name": VISIBLE_DEVICES_ENV, "value": "all"}]
    pod = a_pod("8Gi", containers=[a_container(env=env)], schedulerName="hami-scheduler")
    for product in PRODUCTS:
        assert move(product, pod) == (pod, "", [], [])


def test_kai_annotations_beside_ours_go():
    made = move("kai", a_pod("8Gi", annotations={"gpu-memory": "2000"}))
    assert made.annotations == {MEMORY: "8Gi"}


def test_a_map_that_is_emptied_goes():
    resources = {"limits": {"vramwarden.io/vram": "8Gi"}}
    containers = [
        a_container(resources=resources, env=[{"name": VISIBLE_DEVICES_ENV, "value": "0"}])
    ]
    made = move("kai", a_pod(containers=containers, annotations={"gpu-memory": "2000"}))
    assert made.pod == a_pod(containers=[a_container(resources=resources)])


def test_quotas_and_queues_are_named_and_others_are_not():
    hard = {"pods": "3", "limits.nvidia.com/gpumem": "20000", "requests.nvidia.com/gpu": "4"}
    quota = {"spec": {"hard": hard}}
    hami, kai = PRODUCTS["hami"], PRODUCTS["kai"]
    assert [*map(str, notes_about_object(quota, "ResourceQuota", "v1", hami))] == [
        (
            "spec.hard[limits.nvidia.com/gpumem]: 20000 bounds no share; add "
            "requests.vramwarden.io/vram with the bytes that the namespace may ask for, e.g. 80Gi"
        ),
        (
            "spec.hard[requests.nvidia.com/gpu]: 4 bounds no share; add "
            "requests.vramwarden.io/vram with the bytes that the namespace may ask for, e.g. 80Gi"
        ),
    ]
    assert not [*notes_about_object(quota, "ResourceQuota", "v1", kai)]
    assert not [*notes_about_object({"spec": "?"}, "ResourceQuota", "v1", hami)]
    assert not [*notes_about_object(quota, "ResourceQuota", "example.com/v1", hami)]
    (queue,) = notes_about_object({}, "Queue", "scheduling.run.ai/v2", kai)
    assert str(queue).startswith("kind: there are no queues here")
    assert not [*notes_about_object({}, "Queue", "example.com/v1", kai)]


AMOUNTS = st.fixed_dictionaries(
    {},
    optional={
        "gpu": st.sampled_from(["0", "1", "2", "x"]),
        "gpu.shared": st.sampled_from(["1", "2"]),
        "gpumem": st.sampled_from(["0", "3000", "16Gi"]),
        "gpumem_percentage": st.sampled_from(["0", "40", "101"]),
        "gpucores": st.just("30"),
        "mig-1g.5gb": st.just("1"),
    },
)
ANNOTATIONS = st.fixed_dictionaries(
    {},
    optional={
        "gpu-memory": st.sampled_from(["2000", "0"]),
        "gpu-fraction": st.sampled_from(["0.5", "NaN"]),
        "gpu-fraction-num-devices": st.sampled_from(["1", "2"]),
        "gpu-fraction-container-name": st.sampled_from(["a", "b", "x"]),
        "nvidia.com/use-gputype": st.just("A100"),
    },
)
SCHEDULERS = st.sampled_from(["kai-scheduler", "hami-scheduler", "default-scheduler"])


@given(
    st.sampled_from(sorted(PRODUCTS)),
    AMOUNTS,
    AMOUNTS,
    ANNOTATIONS,
    st.sampled_from([{}, {"aliyun.com/gpu-count": "2"}]),
    SCHEDULERS,
)
def test_what_is_carried_over_asks_us_and_nothing_is_left_to_carry(
    product, first, second, annotations, labels, scheduler
):
    pod = a_pod(
        containers=[a_limited("a", **first), a_limited("b", **second)],
        annotations=annotations,
        labels=labels,
        schedulerName=scheduler,
    )
    made = move(product, pod, **SIXTEEN)
    again = move(product, made.pod, **SIXTEEN)
    assert again.pod == made.pod
    assert not again.asks
    assert move(product, respelled(pod), **SIXTEEN).asks == made.asks
    if made.problems or not made.asks:
        assert made.pod == pod
        return
    assert lines(copy.deepcopy(pod), made.asks)["metadata"]["annotations"].items() >= {
        (key, annotation)
        for key, annotation in made.annotations.items()
        if key.startswith("vramwarden.io/")
    }
    demand, findings = read_demand(read_pod(made.pod))
    assert demand
    assert not findings
    if not any("resources" in container for container in made.pod["spec"]["containers"]):
        for note in made.notes:
            path, detail = note.split(": ", 1)
            for after in [made.pod, *followed(made.pod, path, detail)]:
                decision = decide(a_request(after), a_policy(), UNKNOWN_CLUSTER, Phase.MUTATE)
                assert decision.outcome is Outcome.MUTATED
