from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.gpus import a_gpu
from webhook.core.nvidia.programs import CONTEXT_BYTES
from webhook.core.nvidia.variables import DeviceNames
from webhook.core.placement.gpu_annotations import gpu_annotations, memory_fraction
from webhook.core.pod.quantity import MIB
from webhook.core.policy.model import DriverLimit

GIB = 1024 * MIB
SMALL = replace(a_gpu("a", 15_000), total_bytes=16_000 * MIB)
LARGE = replace(a_gpu("b", 80_000, 1), total_bytes=81_920 * MIB)
SILENT = a_gpu("c", 40_000, 2)  # its node reports no total
CAPS = st.integers(1, 2**39) | st.integers(1, 2**19).map(lambda mib: mib * MIB)
TOTALS = st.integers(MIB, 5 * 2**40 - 1)
SEVERAL = st.lists(TOTALS, min_size=1, max_size=4)


@pytest.mark.parametrize(
    ("names", "spelled"),
    [
        (DeviceNames.UUID, "GPU-a,GPU-b"),
        (DeviceNames.RUNTIME, "runtime.nvidia.com/gpu=GPU-a,runtime.nvidia.com/gpu=GPU-b"),
    ],
)
def test_a_pod_is_given_its_gpus_for_people_for_containers_and_for_programs(names, spelled):
    given = gpu_annotations(("GPU-a", "GPU-b"), [SMALL, LARGE, SILENT], names, 8900 * MIB)
    assert given == {
        "vramwarden.io/gpu": "GPU-a,GPU-b",
        "vramwarden.io/visible-devices": spelled,
        "vramwarden.io/gpu-memory-fraction": "0.0976",  # 8000 / 81920: the total of the larger one
    }


@pytest.mark.parametrize(
    ("uuids", "fraction"),
    [
        (("GPU-a",), "0.5000"),
        (("GPU-c",), "0.2000"),  # fraction of the usable memory
        (("GPU-a", "GPU-c"), "0.2000"),
        (("GPU-lost",), "0.0001"),
        (("GPU-a", "GPU-lost"), "0.0001"),
    ],
)
def test_the_fraction_is_the_smallest_over_the_gpus(uuids, fraction):
    given = gpu_annotations(uuids, [SMALL, LARGE, SILENT], DeviceNames.UUID, 8900 * MIB)
    assert given["vramwarden.io/gpu-memory-fraction"] == fraction


@pytest.mark.parametrize("limit", [DriverLimit.AUTO, DriverLimit.REQUIRE])
def test_under_a_limit_the_fraction_is_of_the_cap_that_programs_take_for_the_card(limit):
    for uuids in (("GPU-a",), ("GPU-a", "GPU-b"), ("GPU-lost",)):
        given = gpu_annotations(uuids, [SMALL, LARGE], DeviceNames.UUID, 6000 * MIB, limit)
        assert given == {
            "vramwarden.io/gpu": ",".join(uuids),
            "vramwarden.io/visible-devices": ",".join(uuids),
            "vramwarden.io/gpu-memory-fraction": "0.8500",  # 5100 / 6000
            "vramwarden.io/driver-limit": limit.value,
        }


def test_where_no_name_works_nothing_is_given():
    with pytest.raises(ValueError, match="resolves no name"):
        gpu_annotations(("GPU-a",), [SMALL], DeviceNames.NONE, GIB)


@pytest.mark.parametrize(
    ("cap", "total", "fraction"),
    [
        (8 * GIB, 80 * GIB, "0.0890"),  # 7292 / 81920 = 0.08901
        (1800 * MIB, 24_000 * MIB, "0.0375"),  # half the cap equals the cap less the margin
        (1799 * MIB, 24_000 * MIB, "0.0374"),  # half the cap
        (1801 * MIB, 24_000 * MIB, "0.0375"),
        (1802 * MIB, 8 * MIB * 1000, "0.1127"),
        (512 * MIB, 80 * GIB, "0.0031"),
        (MIB, 80 * GIB, "0.0001"),  # not 0.0000
        (1, 80 * GIB, "0.0001"),
        (20_000, 40_000, "0.2500"),
        (3 * MIB, 10 * MIB, "0.1500"),  # half of an odd cap is not rounded
        (80 * GIB, 80 * GIB, "0.9890"),
        (90 * GIB, 80 * GIB, "1.0000"),  # a GPU that became smaller than its pods' caps
    ],
)
def test_a_fraction_is_the_cap_less_a_context_of_the_total(cap, total, fraction):
    assert memory_fraction(cap, [total]) == fraction


@given(CAPS, SEVERAL)
def test_it_has_four_decimals_and_is_neither_zero_nor_above_one(cap, totals):
    fraction = memory_fraction(cap, totals)
    assert re.fullmatch(r"[01]\.[0-9]{4}", fraction)
    assert 1 <= parts(fraction) <= 10_000


@given(CAPS.filter(lambda cap: cap >= 1800 * MIB), SEVERAL)
def test_with_a_context_it_never_exceeds_the_cap(cap, totals):
    taken = parts(memory_fraction(cap, totals))
    assert all(taken * total + 10_000 * CONTEXT_BYTES <= 10_000 * cap for total in totals)


@given(CAPS, SEVERAL)
def test_as_much_is_told_as_four_decimals_can_say(cap, totals):
    one_more = parts(memory_fraction(cap, totals)) + 1
    largest = max(totals)
    too_much = one_more * largest > 10_000 * max(cap - CONTEXT_BYTES, cap // 2)
    assert one_more > 10_000 or too_much


@given(CAPS, CAPS, TOTALS, TOTALS, SEVERAL)
def test_it_grows_with_the_cap_and_shrinks_with_the_gpu(cap, more, total, larger, others):
    cap, more = sorted((cap, more))
    total, larger = sorted((total, larger))
    told = parts(memory_fraction(cap, [total]))
    assert told <= parts(memory_fraction(more, [total]))
    assert told >= parts(memory_fraction(cap, [larger]))
    assert told >= parts(memory_fraction(cap, [total, *others]))


def parts(fraction):
    """Return a fraction in ten-thousandths."""
    whole, _, decimals = fraction.partition(".")
    return int(whole) * 10_000 + int(decimals)
