"""Visible GPUs of containers, for each value of a rule's visibleDevices."""

from __future__ import annotations

import pytest

from tests.core.admission.decisions import (
    CONFIG_MAP,
    EVERYWHERE,
    VISIBLE,
    a_full_pod,
    assert_admitted,
    assert_denied,
    assert_unchanged,
    decide_pod,
    find_container,
    limits,
    merge_into_container,
    translate,
    variable,
)
from tests.support.pods import a_rule
from webhook.core.admission.decision import Outcome, Phase
from webhook.core.policy.model import Action, VisibleDevices


@pytest.mark.parametrize("name", EVERYWHERE)
@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize(
    "entry",
    [variable(VISIBLE, "all"), variable(VISIBLE, "0"), variable(VISIBLE, **CONFIG_MAP)],
    ids=str,
)
def test_a_pod_without_a_demand_sees_no_gpu_by_hand(entry, name, phase):
    pod = a_full_pod(None)
    holder = merge_into_container(pod, name, entry)
    decision = decide_pod(pod, phase=phase)
    assert_denied(decision, "VisibleDevicesOverride", f"{holder}.env[0]")


@pytest.mark.parametrize("value", ["void", "none", "", None])
@pytest.mark.parametrize("devices", VisibleDevices)
def test_hiding_the_gpus_is_always_allowed(value, devices):
    pod = a_full_pod(None)
    merge_into_container(pod, "init", variable(VISIBLE, value))
    assert_unchanged(decide_pod(pod, a_rule(visible_devices=devices)))


@pytest.mark.parametrize("name", EVERYWHERE)
@pytest.mark.parametrize(
    "source", [variable(VISIBLE, "all"), variable(VISIBLE, **CONFIG_MAP)], ids=str
)
def test_a_rule_may_void_what_is_set_by_hand(source, name):
    rule = a_rule(visible_devices=VisibleDevices.VOID)
    pod = a_full_pod(None)
    merge_into_container(pod, name, variable("A", "1"))
    merge_into_container(pod, name, source)
    merge_into_container(pod, name, variable("B", "2"))
    decision = decide_pod(pod, rule)
    assert decision.outcome is Outcome.MUTATED
    assert find_container(decision.obj, name)["env"] == [
        {"name": "A", "value": "1"},
        {"name": VISIBLE, "value": "void"},
        {"name": "B", "value": "2"},
    ]
    find_container(decision.obj, name)["env"] = find_container(pod, name)["env"]
    assert decision.obj == pod


def test_a_pod_with_another_fault_is_not_voided():
    pod = a_full_pod(None)
    merge_into_container(pod, "main", variable(VISIBLE, "all"))
    merge_into_container(pod, "second", limits("nvidia.com/gpu", "500m"))
    for action in (Action.ENFORCE, Action.WARN):
        rule = a_rule(visible_devices=VisibleDevices.VOID, action=action)
        decision = decide_pod(pod, rule)
        assert (decision.reasons, decision.patch) == (("FractionalWholeGPU",), ())


@pytest.mark.parametrize("name", EVERYWHERE)
@pytest.mark.parametrize("phase", Phase)
def test_a_rule_may_ignore_what_is_set_by_hand(name, phase):
    pod = a_full_pod(None)
    merge_into_container(pod, name, variable(VISIBLE, "all"))
    assert_unchanged(decide_pod(pod, a_rule(visible_devices=VisibleDevices.IGNORE), phase))


@pytest.mark.parametrize(
    ("devices", "second"), [(VisibleDevices.VOID, "void"), (VisibleDevices.IGNORE, "all")]
)
def test_with_a_demand_the_containers_with_vram_see_their_gpu_whatever_the_rule(devices, second):
    rule = a_rule(visible_devices=devices)
    pod = a_full_pod()
    merge_into_container(pod, "main", variable(VISIBLE, "all"))
    merge_into_container(pod, "second", variable(VISIBLE, "all"))
    after = translate(pod, rule)
    (main,) = (e for e in find_container(after, "main")["env"] if e["name"] == VISIBLE)
    field = "metadata.annotations['vramwarden.io/visible-devices']"
    assert main["valueFrom"]["fieldRef"]["fieldPath"] == field
    assert find_container(after, "second")["env"] == [{"name": VISIBLE, "value": second}]
    assert_admitted(pod, rule)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((f"NVIDIA_{name}", "enabled") for name in ("GDS", "MOFED", "GDRCOPY")),
        *((f"NVIDIA_{name}", "void") for name in ("IMEX_CHANNELS", "NVSWITCH")),
    ],
)
def test_variables_that_show_no_gpu_pass_beside_a_demand(name, value):
    pod = a_full_pod()
    merge_into_container(pod, "main", variable(name, value))
    assert_admitted(pod)


@pytest.mark.parametrize("devices", VisibleDevices)
@pytest.mark.parametrize("name", ["nvidia", "nvidia-legacy"])
def test_a_pod_that_names_nvidias_runtime_and_asks_for_no_gpu_is_warned_of(name, devices):
    rule = a_rule(visible_devices=devices)
    decision = decide_pod(a_full_pod(None, runtimeClassName=name), rule)
    assert_unchanged(decision)
    start = f'spec.runtimeClassName: remove it; with "{name}" an image can show the pod every GPU '
    warned = [one.startswith(start) for one in decision.warnings]
    assert warned == ([] if devices is VisibleDevices.IGNORE else [True])


def with_claim(pod):
    pod["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "one"}]


@pytest.mark.parametrize(
    "edit",
    [
        lambda pod: merge_into_container(pod, "main", limits("nvidia.com/gpu", "1")),
        lambda pod: [
            merge_into_container(pod, name, variable(VISIBLE, "void")) for name in EVERYWHERE
        ],
        lambda pod: pod["spec"].update(runtimeClassName="gvisor"),
        with_claim,
    ],
    ids=["a whole GPU", "void by hand", "another class", "a claim"],
)
def test_nobody_else_is_warned_of_a_runtime_class(edit):
    pod = a_full_pod(None, runtimeClassName="nvidia")
    edit(pod)
    assert decide_pod(pod).warnings == ()
    assert not any(
        "RuntimeClass" in one for one in decide_pod(a_full_pod(runtimeClassName="nvidia")).warnings
    )


@pytest.mark.parametrize("devices", VisibleDevices)
def test_limits_of_the_driver_are_denied_whatever_the_rule_says_of_devices(devices):
    pod = a_full_pod()
    holder = merge_into_container(pod, "init", variable("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=1G"))
    decision = decide_pod(pod, a_rule(visible_devices=devices))
    assert_denied(decision, "DriverVariable", f"{holder}.env[0]")
