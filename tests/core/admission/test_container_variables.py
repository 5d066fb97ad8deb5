"""Environment variables with the cap, by container and program."""

from __future__ import annotations

import pytest

from tests.core.admission.decisions import (
    EVERYWHERE,
    a_full_pod,
    assert_admitted,
    assert_unchanged,
    decide_pod,
    find_container,
    merge_into_container,
    stored_pod,
    translate,
    variable,
)
from tests.core.admission.device_plugin import CAP_ONLY, MIG, policy_and_cluster, translate_under
from tests.support.pods import a_container, a_pod, a_rule
from webhook.core.admission.decision import Phase
from webhook.core.nvidia.programs import Program
from webhook.core.policy.model import EnforceBy, Placement, VisibleDevices

MIB = "VRAMWARDEN_GPU_MEMORY_MIB"
FRACTION = "VRAMWARDEN_GPU_MEMORY_FRACTION"
FIELD = {
    "fieldRef": {
        "apiVersion": "v1",
        "fieldPath": "metadata.annotations['vramwarden.io/gpu-memory-fraction']",
    }
}
ALL = tuple(Program)
DEFAULT = ("jax", "tensorflow")
FROM = {"envFrom": [{"configMapRef": {"name": "settings"}}]}
WIDENING = [
    *("NVIDIA_IMEX_CHANNELS", "NVIDIA_MIG_CONFIG_DEVICES"),
    *("NVIDIA_MIG_MONITOR_DEVICES", "NVIDIA_NVSWITCH"),
]


def env_of(pod, name="main"):
    return {
        entry["name"]: entry.get("value", entry.get("valueFrom"))
        for entry in find_container(pod, name).get("env") or []
    }


def names_of(pod, name="main"):
    return list(env_of(pod, name))


@pytest.mark.parametrize("name", EVERYWHERE)
def test_the_container_with_vram_gets_its_cap_first_of_all(name):
    pod = a_full_pod(f"{name}=7630Mi")
    merge_into_container(pod, name, variable("A", "$(VRAMWARDEN_GPU_MEMORY_FRACTION)"))
    after = translate(pod, a_rule(programs=DEFAULT))
    assert list(env_of(after, name).items())[:3] == [
        (MIB, "7630"),
        (FRACTION, FIELD),
        ("A", "$(VRAMWARDEN_GPU_MEMORY_FRACTION)"),
    ]
    for other in {*EVERYWHERE} - {name}:
        assert env_of(after, other) == {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert_admitted(pod, a_rule(programs=DEFAULT))


def test_the_amount_is_that_of_one_gpu():
    pod = a_full_pod("main=8Gi", annotations={"vramwarden.io/gpu-count": "4"})
    assert env_of(translate(pod))[MIB] == "8192"


def test_of_several_containers_with_vram_each_gets_its_own_amount_and_no_fraction():
    pod = a_full_pod("main=8Gi, second=512Mi")
    after = translate(pod, a_rule(programs=ALL))
    assert env_of(after, "main")[MIB] == "8192"
    assert env_of(after, "second")[MIB] == "512"
    assert env_of(after, "main")["CUPY_GPU_MEMORY_LIMIT"] == str(7292 * 2**20)
    assert env_of(after, "second")["CUPY_GPU_MEMORY_LIMIT"] == str(256 * 2**20)
    for name in ("main", "second"):
        assert not {FRACTION, "XLA_CLIENT_MEM_FRACTION", "PYTORCH_ALLOC_CONF"} & {
            *names_of(after, name)
        }
    assert_admitted(pod, a_rule(programs=ALL))


def test_without_a_gpu_chosen_at_binding_there_is_no_fraction():
    rule = a_rule(placement=Placement.NONE, programs=ALL)
    names = names_of(translate(a_full_pod(), rule))
    assert names[0] == MIB
    assert not {FRACTION, "XLA_CLIENT_MEM_FRACTION", "PYTORCH_ALLOC_CONF"} & {*names}
    assert "XLA_PYTHON_CLIENT_PREALLOCATE" in names
    assert_admitted(a_full_pod(), rule)


def test_a_fraction_of_the_users_own_serves_where_there_is_none():
    rule = a_rule(placement=Placement.NONE, programs=("jax-fraction",))
    pod = a_full_pod()
    merge_into_container(pod, "main", variable(FRACTION, "0.1"))
    after = env_of(translate(pod, rule))
    assert (after[FRACTION], after["XLA_CLIENT_MEM_FRACTION"]) == ("0.1", f"$({FRACTION})")
    assert_admitted(pod, rule)


def test_programs_come_after_the_rule_s_own_variables_and_never_over_them():
    rule = a_rule(
        env=({"name": "XLA_PYTHON_CLIENT_PREALLOCATE", "value": "true"},), programs=DEFAULT
    )
    names = names_of(translate(a_full_pod(), rule))
    assert names == [
        MIB,
        FRACTION,
        "NVIDIA_VISIBLE_DEVICES",
        "XLA_PYTHON_CLIENT_PREALLOCATE",
        "NVIDIA_DRIVER_CAPABILITIES",
        "TF_FORCE_GPU_ALLOW_GROWTH",
    ]
    assert env_of(translate(a_full_pod(), rule))["XLA_PYTHON_CLIENT_PREALLOCATE"] == "true"


def test_what_a_map_of_variables_may_bring_is_left_to_it():
    pod = a_full_pod()
    merge_into_container(pod, "main", FROM)
    rule = a_rule(env=({"name": "OURS", "value": "1"},), programs=ALL)
    assert names_of(translate(pod, rule)) == [
        MIB,
        FRACTION,
        "NVIDIA_VISIBLE_DEVICES",
        "OURS",
        "NVIDIA_DRIVER_CAPABILITIES",
        *WIDENING,
    ]
    assert_admitted(pod, rule)
    find_container(pod, "main")["envFrom"] = []
    assert "CUPY_GPU_MEMORY_LIMIT" in names_of(translate(pod, rule))


@pytest.mark.parametrize("name", EVERYWHERE)
@pytest.mark.parametrize("devices", VisibleDevices)
def test_a_map_of_variables_brings_no_more_than_the_share(devices, name):
    rule = a_rule(visible_devices=devices)
    pod = a_full_pod(f"{name}=8Gi")
    for each in EVERYWHERE:
        merge_into_container(pod, each, FROM)
    merge_into_container(pod, name, variable("NVIDIA_NVSWITCH", "void"))
    after = translate(pod, rule)
    empty = dict.fromkeys(WIDENING[:3], "")
    assert env_of(after, name).items() >= {**empty, "NVIDIA_NVSWITCH": "void"}.items()
    for other in {*EVERYWHERE} - {name}:
        assert env_of(after, other) == {"NVIDIA_VISIBLE_DEVICES": "void"}
    for container in (*after["spec"]["containers"], *after["spec"]["initContainers"]):
        for entry in container["env"]:  # the API server stores no empty value
            if entry.get("value") == "":
                del entry["value"]
    assert_unchanged(decide_pod(after, rule, Phase.VALIDATE))
    del find_container(after, name)["env"][-1]
    assert decide_pod(after, rule, Phase.VALIDATE).reasons == ("Unmutated",)


@pytest.mark.parametrize(
    "known", [policy_and_cluster(MIG), policy_and_cluster(CAP_ONLY)], ids=["MIG", "CapOnly"]
)
def test_nor_does_it_beside_what_a_device_plugin_gives(known):
    after = translate_under(a_pod("4Gi", containers=[a_container(**FROM)]), known)
    assert names_of(after)[-4:] == WIDENING


@pytest.mark.parametrize("program", Program)
def test_what_the_user_set_for_a_program_stays(program):
    rule = a_rule(programs=(program,))
    added = env_of(translate(a_full_pod(), rule)).keys() - env_of(translate(a_full_pod())).keys()
    assert added
    pod = a_full_pod()
    for name in sorted(added):
        merge_into_container(pod, "main", variable(name, "mine"))
    after = env_of(translate(pod, rule))
    assert {after[name] for name in added} == {"mine"}
    assert_admitted(pod, rule)


@pytest.mark.parametrize("memory", ["main=4Gi", "main=16Gi", "second=4Gi", "main=4Gi,second=4Gi"])
@pytest.mark.parametrize("by", EnforceBy)
def test_a_pod_that_comes_again_gets_its_new_amounts(memory, by):
    rule = a_rule(programs=ALL, enforcement={"by": by}, visible_devices=VisibleDevices.VOID)
    pod = stored_pod(rule, a_full_pod("main=8Gi"))
    pod["metadata"]["annotations"]["vramwarden.io/gpu-memory"] = memory
    for name in EVERYWHERE:
        find_container(pod, name).pop("resources", None)
    after, fresh = translate(pod, rule), translate(a_full_pod(memory), rule)
    ours = {MIB, FRACTION, "CUPY_GPU_MEMORY_LIMIT", "PYTORCH_ALLOC_CONF", "XLA_CLIENT_MEM_FRACTION"}
    for name in EVERYWHERE:
        kept, wanted = env_of(after, name), env_of(fresh, name)
        assert {k: v for k, v in kept.items() if k in ours} == {
            k: v for k, v in wanted.items() if k in ours
        }
    assert_admitted(pod, rule)


@pytest.mark.parametrize("index", [0, 99], ids=["first", "last"])
@pytest.mark.parametrize("phase", Phase)
def test_a_webhook_that_puts_its_variable_first_or_last_breaks_nothing(index, phase):
    rule = a_rule(programs=ALL)
    pod = stored_pod(rule)
    find_container(pod, "main")["env"].insert(index, {"name": "PROXY", "value": "x"})
    assert_unchanged(decide_pod(pod, rule, phase))


def test_the_sidecar_and_pods_without_a_demand_get_nothing():
    after = translate(a_full_pod(), a_rule(programs=ALL))
    assert not {MIB, FRACTION, "CUPY_GPU_MEMORY_LIMIT"} & {*env_of(after, "vram-enforcer")}
    plain = a_pod(containers=[a_container(env=[{"name": MIB, "value": "1"}])])
    assert_unchanged(decide_pod(plain, a_rule(programs=ALL)))
