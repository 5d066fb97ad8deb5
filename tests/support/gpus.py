"""Scans and inventories, built by hand and by Hypothesis."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from tests.support.merge_patches import merged
from webhook.core.node.inventory import Inventory, Scan, TrackedGpu, apply_scan
from webhook.core.node.patches import build_patches
from webhook.core.node.state import build_desired_state
from webhook.core.nvidia.drivers import Fault, ScannedGpu
from webhook.core.nvidia.variables import DeviceNames
from webhook.core.pod.gpus import Gpu
from webhook.core.pod.quantity import MIB

GRACE_S = 300.0
DOWN = Scan(failed="the driver is not loaded", fault=Fault.DRIVER_DOWN)


def a_gpu(name="a", mib=1000, index=0):
    return Gpu(uuid=f"GPU-{name}", memory_bytes=mib * MIB, product="NVIDIA H200", index=index)


def seen(name="a", mib=1000, index=0, *, mig=False):
    usable_bytes = None if mib is None else mib * MIB
    return ScannedGpu(
        uuid=f"GPU-{name}", product="NVIDIA H200", index=index, usable_bytes=usable_bytes, mig=mig
    )


def a_scan(*gpus, **more):
    return Scan(gpus=gpus, driver_version="570.86.15", **more)


def after(*scans, start=None, grace_s=GRACE_S):
    """Return the inventory after scans at the given times."""
    inventory = start or Inventory()
    for now_s, scan in scans:
        inventory = apply_scan(inventory, scan, now_s, grace_s)
    return inventory


NAMES = st.sampled_from("abcde")
GPUS = st.lists(
    st.builds(
        ScannedGpu,
        uuid=NAMES.map("GPU-{}".format),
        product=st.sampled_from(["NVIDIA H200", "NVIDIA A100-SXM4-80GB", "é"]),
        index=st.integers(0, 7),
        usable_bytes=st.none() | st.integers(0, 3 * MIB) | st.integers(0, 2**38),
        mig=st.booleans(),
        total_bytes=st.none() | st.integers(2**38, 2**40),
    ),
    max_size=5,
    unique_by=lambda gpu: gpu.uuid,
).map(tuple)
SCANS = st.just(DOWN) | st.builds(
    Scan,
    gpus=GPUS,
    driver_version=st.sampled_from(["", "570.86.15", "580.1"]),
    unsure=st.frozensets(NAMES.map("GPU-{}".format) | st.just(""), max_size=2),
    cannot_measure=st.sampled_from(["", "the lists cannot be read"]),
    never_measures=st.booleans(),
)
PAST = st.lists(st.tuples(st.floats(0, 1e6), SCANS), max_size=4)
ANY_PAST = st.builds(
    lambda past, names: replace(after(*sorted(past, key=lambda item: item[0])), device_names=names),
    PAST,
    st.sampled_from(["", *(names.value for names in DeviceNames)]),
)
WITH_GPUS = st.builds(
    lambda past, gpus: after((1e6, a_scan(*gpus, seen("whole", 80 * 1024, 8))), start=past),
    ANY_PAST,
    GPUS,
)
INVENTORIES = ANY_PAST | WITH_GPUS

FOREIGN = {"nvidia.com/gpu.product": "NVIDIA-H200", "nvidia.com/gpu.memory": "143771"}
NODE = {
    "metadata": {"name": "n", "labels": FOREIGN, "annotations": {"a": "b"}},
    "status": {"capacity": {"cpu": "8", "nvidia.com/gpu": "2"}, "allocatable": {"cpu": "8"}},
}
TWO = Inventory(
    tracked=(TrackedGpu(a_gpu("b", 2000, 1)), TrackedGpu(a_gpu("a", 1000, 0))),
    driver_version="570.86.15",
    enforcement="sidecar",
    device_names="uuid",
    advertised=True,
)
GONE = Inventory(advertised=True)
FIXED = Inventory(fixed_bytes=48 * 1024 * MIB)


def put_right(node, inventory):
    """Return the node after the agent has reconciled it with an inventory."""
    made = build_patches(node, build_desired_state(inventory))
    for patch in filter(None, (made.metadata, made.status)):
        node = merged(node, patch)
    return node
