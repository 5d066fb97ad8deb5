"""What other GPU-sharing projects translate, asked of ours."""

from __future__ import annotations

import re

import pytest

from tests.core.admission.decisions import CONFIG_MAP, VISIBLE, VRAM, container_of, decided
from tests.core.admission.survey import counted, limited, row, seeing
from tests.support.pods import RULE, a_container, a_pod, a_rule
from webhook.core.admission.decide import Outcome, Phase
from webhook.core.policy.values import VisibleDevices

OURS = {
    "fieldRef": {
        "apiVersion": "v1",
        "fieldPath": "metadata.annotations['vramwarden.io/visible-devices']",
    }
}


def vram_of(pod):
    """Return what each container gets, as requests and limits say alike."""
    amounts = {}
    for field in ("containers", "initContainers"):
        for container in pod["spec"].get(field, []):
            resources = container.get("resources", {})
            if VRAM in resources.get("limits", {}):
                assert resources["requests"][VRAM] == resources["limits"][VRAM]
                amounts[container["name"]] = resources["limits"][VRAM]
    return amounts


def seen_by(pod):
    """Return what each container of the user sees."""
    return {
        container["name"]: entry.get("value", entry.get("valueFrom"))
        for field in ("containers", "initContainers")
        for container in pod["spec"].get(field, [])
        if container["name"] != "vram-enforcer"
        for entry in container.get("env", [])
        if entry["name"] == VISIBLE
    }


def cap_of(pod):
    env = {entry["name"]: entry.get("value") for entry in container_of(pod, "vram-enforcer")["env"]}
    return int(env["VRAM_CAP_BYTES"])


SIDE = a_container("side")


NVIDIA = a_rule(runtime_class_name="nvidia")


TRANSLATED = [
    row(8, "KAI", "bytes in scientific form", a_pod("8e9"), RULE, vram_of, {"main": "7630Mi"}),
    row(
        12,
        "KAI",
        "two GPUs of 1000Mi each",
        counted("2", "1000Mi"),
        RULE,
        vram_of,
        {"main": "2000Mi"},
    ),
    row(12, "KAI", "but a cap per GPU", counted("2", "1000Mi"), RULE, cap_of, 1000 * 2**20),
    row(
        21,
        "KAI",
        "only the container that is named",
        a_pod("main=8Gi", containers=[SIDE, a_container()]),
        RULE,
        vram_of,
        {"main": "8Gi"},
    ),
    row(
        23,
        "KAI",
        "an init container that is named",
        a_pod("init=8Gi", initContainers=[a_container("init")]),
        RULE,
        vram_of,
        {"init": "8Gi"},
    ),
    row(
        26,
        "KAI",
        "GPUs hidden beside a share",
        a_pod("8Gi", containers=[seeing("none")]),
        RULE,
        seen_by,
        {"main": OURS},
    ),
    row(
        29,
        "KAI",
        "a CPU container beside a share",
        a_pod("main=8Gi", containers=[SIDE, a_container()]),
        RULE,
        seen_by,
        {"side": "void", "main": OURS},
    ),
    row(
        30,
        "KAI",
        "a CPU container that had chosen GPUs",
        a_pod("main=8Gi", containers=[seeing("0", name="side"), a_container()]),
        a_rule(visible_devices=VisibleDevices.VOID),
        seen_by,
        {"side": "void", "main": OURS},
    ),
    row(
        30,
        "KAI",
        "a CPU pod that had chosen GPUs",
        a_pod(containers=[seeing("0"), seeing(source=CONFIG_MAP, name="side")]),
        a_rule(visible_devices=VisibleDevices.VOID),
        seen_by,
        {"main": "void", "side": "void"},
    ),
    row(
        32,
        "KAI",
        "a runtime class from the policy",
        a_pod("8Gi"),
        NVIDIA,
        lambda pod: pod["spec"]["runtimeClassName"],
        "nvidia",
    ),
    row(
        33,
        "KAI",
        "a runtime class of its own",
        a_pod("8Gi", runtimeClassName="own"),
        NVIDIA,
        lambda pod: pod["spec"]["runtimeClassName"],
        "own",
    ),
    row(
        34,
        "KAI",
        "no runtime class in the policy",
        a_pod("8Gi"),
        RULE,
        lambda pod: "runtimeClassName" in pod["spec"],
        False,
    ),
    row(
        38,
        "HAMi",
        "another scheduler",
        a_pod("8Gi", schedulerName="other"),
        RULE,
        lambda pod: pod["spec"]["schedulerName"],
        "other",
    ),
    row(49, "HAMi", "a size with its unit", a_pod("16Gi"), RULE, vram_of, {"main": "16Gi"}),
    row(50, "HAMi", "a size with decimals", a_pod("16.0Gi"), RULE, vram_of, {"main": "16Gi"}),
    row(
        55,
        "HAMi",
        "an init container without VRAM",
        a_pod("8Gi", initContainers=[a_container("init")]),
        RULE,
        seen_by,
        {"main": OURS, "init": "void"},
    ),
    row(
        56,
        "HAMi",
        "a runtime class of the user",
        a_pod("8Gi", runtimeClassName="kata"),
        NVIDIA,
        lambda pod: pod["spec"]["runtimeClassName"],
        "kata",
    ),
    row(
        57,
        "HAMi",
        "a larger init container sets the peak",
        a_pod("main=4Gi,init=6Gi", initContainers=[a_container("init")]),
        RULE,
        cap_of,
        6 * 2**30,
    ),
    row(
        57,
        "HAMi",
        "app containers are summed",
        a_pod(
            "main=4Gi,side=4Gi,init=6Gi",
            containers=[a_container(), SIDE],
            initContainers=[a_container("init")],
        ),
        RULE,
        cap_of,
        8 * 2**30,
    ),
    row(
        59,
        "HAMi",
        "a GPU chosen by hand is not the one it gets",
        a_pod("8Gi", annotations={"vramwarden.io/gpu": "GPU-1"}),
        RULE,
        lambda pod: pod["metadata"]["annotations"].get("vramwarden.io/gpu"),
        None,
    ),
    row(
        73,
        "DRA",
        "an index or UUID that nobody knows is taken off",
        a_pod("8Gi", annotations={"vramwarden.io/visible-devices": "99"}),
        RULE,
        lambda pod: pod["metadata"]["annotations"].get("vramwarden.io/visible-devices"),
        None,
    ),
    row(
        65,
        "Koordinator",
        "an amount written as a limit",
        a_pod(containers=[limited("16Gi", VRAM)]),
        RULE,
        vram_of,
        {"main": "16Gi"},
    ),
    row(
        82,
        "KAI",
        "a native sidecar is summed",
        a_pod("main=4Gi,proxy=3Gi", initContainers=[a_container("proxy", restartPolicy="Always")]),
        RULE,
        cap_of,
        7 * 2**30,
    ),
]


@pytest.mark.parametrize(("pod", "rule", "read", "wanted"), TRANSLATED)
def test_what_peers_translate_is_translated(pod, rule, read, wanted):
    decision = decided(pod, rule)
    assert decision.outcome is Outcome.MUTATED, decision.message
    assert read(decision.obj) == wanted
    assert decided(decision.obj, rule, Phase.VALIDATE).outcome is Outcome.ALLOWED


@pytest.mark.parametrize("name", [row(24, "KAI", "a name with dots", "train.v1.2")])
def test_names_we_make_are_labels_whatever_the_pods_name_is(name):
    pod = a_pod("8Gi")
    pod["metadata"]["name"] = name
    after = decided(pod, name=name).obj
    assert after["metadata"]["name"] == name
    volumes = {volume["name"] for volume in after["spec"]["volumes"]}
    enforcer = container_of(after, "vram-enforcer")
    assert volumes == {mount["name"] for mount in enforcer["volumeMounts"]}
    for made in volumes | {enforcer["name"]}:
        assert re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", made)
