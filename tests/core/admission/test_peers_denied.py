"""What other GPU-sharing projects reject or leave alone, asked of ours."""

from __future__ import annotations

import pytest

from tests.core.admission.decisions import CONFIG_MAP, VRAM, decided
from tests.core.admission.survey import CLASS, counted, limited, row, seeing
from tests.support.pods import a_container, a_pod
from webhook.core.admission.decide import Outcome, Phase

APP_AND_WHOLE = [a_container(), limited("1", name="second")]


DENIED = [
    row(1, "KAI", "a negative size", a_pod("-1"), ["InvalidQuantity"]),
    row(1, "KAI", "a negative size with its unit", a_pod("-1Gi"), ["InvalidQuantity"]),
    row(2, "KAI", "a size of zero", a_pod("0"), ["InvalidQuantity"]),
    row(
        3,
        "KAI",
        "a share and a whole GPU",
        a_pod("8Gi", containers=[limited("1")]),
        ["WholeGPUAndShare"],
    ),
    row(
        3,
        "KAI",
        "a share and a MIG slice",
        a_pod("8Gi", containers=[limited("1", "nvidia.com/mig-1g.10gb")]),
        ["WholeGPUAndShare"],
    ),
    row(
        4,
        "KAI",
        "whole GPU in the second container",
        a_pod("8Gi", containers=APP_AND_WHOLE),
        ["WholeGPUAndShare"],
    ),
    row(
        5,
        "KAI",
        "two sizes",
        a_pod("8Gi", containers=[limited("4Gi", VRAM)]),
        ["ConflictingAmounts"],
    ),
    *(
        row(6, "KAI", f"a fraction of {size}", a_pod(size), ["InvalidQuantity"])
        for size in ("0.5", "1.5", "1.2", "-1", "-0.5")
    ),
    *(
        row(7, "KAI", f"a size of {size}", a_pod(size), ["InvalidQuantity"])
        for size in ("NaN", "nan", "inf", "Infinity", "-inf")
    ),
    row(8, "KAI", "half a byte in scientific form", a_pod("5e-1"), ["InvalidQuantity"]),
    *(
        row(9, "KAI", f"hex {size}", a_pod(size), ["InvalidQuantity"])
        for size in ("0x1p-1", "0x8", "0x200000000")
    ),
    row(10, "KAI", "a count without a size", counted("2"), ["InvalidCount"]),
    *(
        row(11, "KAI", f"a count of {count}", counted(count, "8Gi"), ["InvalidCount"])
        for count in ("1.2", "0", "-2", "two")
    ),
    row(
        15,
        "KAI",
        "a thousandth of a GPU and a share",
        a_pod("8Gi", containers=[limited("2m")]),
        ["FractionalWholeGPU", "WholeGPUAndShare"],
    ),
    row(19, "KAI", "a share for no container", a_pod("8Gi", containers=[]), ["UnknownContainer"]),
    row(22, "KAI", "a container that is not there", a_pod("other=8Gi"), ["UnknownContainer"]),
    row(
        25,
        "KAI",
        "all GPUs by hand",
        a_pod(containers=[a_container(), seeing("all", name="second")]),
        ["VisibleDevicesOverride"],
    ),
    row(
        25,
        "KAI",
        "all GPUs by hand in an init container",
        a_pod(initContainers=[seeing("all", name="init")]),
        ["VisibleDevicesOverride"],
    ),
    *(
        row(27, "KAI", f"GPU {value} by hand", a_pod(m, containers=[seeing(value)]), wanted)
        for value in ("0", "0,1")
        for m, wanted in ((None, ["VisibleDevicesOverride"]), ("8Gi", ["VisibleDevicesOverride"]))
    ),
    row(
        28,
        "KAI",
        "GPUs by a config map",
        a_pod(containers=[seeing(source=CONFIG_MAP)]),
        ["VisibleDevicesOverride"],
    ),
    row(36, "HAMi", "no containers", a_pod("8Gi", containers=[]), ["UnknownContainer"]),
    row(37, "HAMi", "a node chosen by hand", a_pod("8Gi", nodeName="n"), ["NodeNamePreset"]),
    row(
        52,
        "HAMi",
        "a request alone",
        a_pod(containers=[a_container(resources={"requests": {VRAM: "8Gi"}})]),
        ["RequestsLimitsMismatch"],
    ),
    row(53, "HAMi", "zero is no missing limit", a_pod("0Gi"), ["InvalidQuantity"]),
    row(
        53,
        "HAMi",
        "an explicit zero is no missing limit",
        a_pod(containers=[limited("0", VRAM)]),
        ["InvalidQuantity"],
    ),
    row(54, "HAMi", "no size is made up for a count", counted("1"), ["InvalidCount"]),
    row(
        59,
        "HAMi",
        "another type than the class has",
        a_pod("8Gi", annotations={CLASS: "a100"}, nodeSelector={"nvidia.com/gpu.product": "T4"}),
        ["NodeSelectorConflict"],
    ),
    row(
        61,
        "Koordinator",
        "two sizes in the second container",
        a_pod("main=8Gi,second=1Gi", containers=[a_container(), limited("2Gi", VRAM, "second")]),
        ["ConflictingAmounts"],
    ),
    row(62, "Koordinator", "two shares of nothing", counted("2", "0"), ["InvalidQuantity"]),
    row(73, "DRA", "less than a MiB", a_pod("1023Ki"), ["TooSmall"]),
    row(
        77,
        "device-plugin",
        "an unknown choice falls back to nothing",
        a_pod("8Gi", annotations={CLASS: "nonesuch"}),
        ["UnknownClass"],
    ),
]


@pytest.mark.parametrize(("pod", "reasons"), DENIED)
@pytest.mark.parametrize("phase", Phase)
def test_what_peers_deny_is_denied(pod, reasons, phase):
    decision = decided(pod, phase=phase)
    assert decision.outcome is Outcome.DENIED
    assert list(decision.reasons) == reasons


LEFT_ALONE = [
    row(13, "KAI", "two whole GPUs", a_pod(containers=[limited("2")])),
    row(14, "KAI", "two whole GPUs in thousandths", a_pod(containers=[limited("2000m")])),
    row(
        16,
        "KAI",
        "whole GPUs in two containers",
        a_pod(containers=[limited("1"), limited("2", name="second")]),
    ),
    row(19, "KAI", "a pod without containers", a_pod(containers=[])),
    row(20, "KAI", "a pod without an annotation", a_pod(annotations={"team": "a"})),
    *(
        row(26, "KAI", f"GPUs hidden by {value!r}", a_pod(containers=[seeing(value)]))
        for value in ("void", "none", "")
    ),
    row(31, "KAI", "a MIG slice", a_pod(containers=[limited("1", "nvidia.com/mig-1g.5gb")])),
    row(39, "HAMi", "a pod without a GPU", a_pod(containers=[limited("500m", "cpu")])),
]


@pytest.mark.parametrize("pod", LEFT_ALONE)
@pytest.mark.parametrize("phase", Phase)
def test_what_peers_leave_alone_is_left_alone(pod, phase):
    decision = decided(pod, phase=phase)
    assert (decision.outcome, decision.patch, decision.findings) == (Outcome.ALLOWED, (), ())
