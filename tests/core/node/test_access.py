"""The agent's access to GPUs and the device names of pods: the tables, row by row."""

from dataclasses import replace
from itertools import product

import pytest

from tests.support.gpus import DOWN, a_gpu, a_scan, seen
from tests.support.page_commands import table_of
from webhook.core.node.access import (
    Access,
    GpuAccess,
    find_device_names,
    find_gpu_access_problems,
    set_device_names,
)
from webhook.core.node.inventory import Inventory, TrackedGpu
from webhook.core.nvidia.variables import DeviceNames

OTHERS = ("", "none", "0", "GPU-a", "ALL", "all,void", "runtime.nvidia.com/gpu=all", "x" * 9999)
INSIDE = ("void", "all", *OTHERS)
UNKNOWN, DEFAULT = "DeviceNamesUnknown", "DefaultRuntime"


def rows():
    """Return the rows of the table, with `any` expanded."""
    words = {"any": INSIDE, "another, or not set": OTHERS}
    for option, by, inside, then in table_of(find_device_names):
        yield from product(
            DeviceNames if option == "given" else [None],
            GpuAccess if by == "any" else [GpuAccess(by)],
            words.get(inside, (inside,)),
            [then],
        )


def test_the_table_of_names_says_each_case_once():
    cases = [(option, by, inside) for option, by, inside, _ in rows()]
    every = set(product((None, *DeviceNames), GpuAccess, INSIDE))
    assert len(cases) == len(set(cases))
    assert set(cases) == every


@pytest.mark.parametrize(("option", "by", "inside", "then"), list(rows()))
def test_names_are_those_of_the_table(option, by, inside, then):
    names = option if then == "as given" else DeviceNames(then)
    assert find_device_names(Access(by, inside, option)) is names


CDI = Access(visible_devices="void", runtime_class="nvidia")
KNOWN = Inventory(tracked=(TrackedGpu(a_gpu()),), advertised=True)


def test_names_are_known_once_a_gpu_was_seen_and_stay_while_none_answers():
    for nothing in (DOWN, a_scan()):
        assert set_device_names(KNOWN, nothing, CDI) == KNOWN
    found = set_device_names(KNOWN, a_scan(seen()), CDI)
    assert found == replace(KNOWN, device_names="runtime.nvidia.com")
    for nothing in (DOWN, a_scan()):
        assert set_device_names(found, nothing, Access(visible_devices="all")) == found


def test_names_that_changed_are_the_new_ones_at_once():
    before = replace(KNOWN, device_names="uuid")
    assert set_device_names(before, a_scan(seen()), CDI).device_names == "runtime.nvidia.com"


@pytest.mark.parametrize(
    ("access", "reasons"),
    [
        (CDI, (DEFAULT,)),
        (replace(CDI, visible_devices="all"), (DEFAULT,)),
        (replace(CDI, voided=True), ()),
        (replace(CDI, runtime_class=""), (DEFAULT,)),
        (replace(CDI, runtime_class="", voided=True), ()),
        (replace(CDI, visible_devices="GPU-a", voided=True), (UNKNOWN,)),
        (replace(CDI, runtime_class="", device_names=DeviceNames.UUID), (DEFAULT,)),
        (replace(CDI, visible_devices="GPU-a"), (UNKNOWN,)),
        (replace(CDI, visible_devices="GPU-a", runtime_class=""), (UNKNOWN,)),
        (replace(CDI, by=GpuAccess.VOLUME_MOUNTS), (UNKNOWN,)),
        (replace(CDI, by=GpuAccess.PRIVILEGED, runtime_class=""), (UNKNOWN,)),
        (replace(CDI, by=GpuAccess.PRIVILEGED, device_names=DeviceNames.UUID), ()),
        (replace(CDI, by=GpuAccess.VOLUME_MOUNTS, device_names=DeviceNames.NONE), ()),
    ],
)
def test_what_a_cluster_admin_should_change_is_said(access, reasons):
    assert tuple(problem.reason for problem in find_gpu_access_problems(access)) == reasons


@pytest.mark.parametrize(
    ("access", "words"),
    [
        (Access(GpuAccess.PRIVILEGED), ("Privileged", "agent.deviceNames", "unprivileged = true")),
        (Access(visible_devices="x" * 9999), ("'xxx", "agent.deviceNames")),
        (Access(visible_devices="all"), ("fence.void",)),
        (CDI, ("fence.void", "every pod may name")),
    ],
)
def test_the_advice_names_what_was_found_and_the_cure_in_a_few_words(access, words):
    (advice,) = find_gpu_access_problems(access)
    assert all(word in advice.why for word in words)
    assert len(advice.what) + len(advice.why) < 1024  # an Event's note, KEP-383
