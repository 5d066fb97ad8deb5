"""What of NVIDIA's driver says that a GPU itself is broken: Xids, and the recovery it asks for.

A tenant's faulty program must switch no GPU off. So an Xid is here only where NVIDIA names neither
the program nor the bus, a cable or another GPU as its usual cause; of the others, also those after
which a GPU really is unusable, the driver's state speaks (`RECOVERIES`).

Sources: NVIDIA's Xid catalog (docs.nvidia.com/deploy/xid-errors); what its device plugin leaves
out (NVIDIA/k8s-device-plugin v0.20, internal/rm/health.go); nvml.h, nvmlDeviceGpuRecoveryAction_t.
"""

from __future__ import annotations

from typing import Final

BROKEN: Final = {
    48: "uncorrectable memory error",
    64: "a bad row of its memory could not be put out of use",
    79: "it has fallen off the bus",
    95: "uncontained memory error",
    140: "unrecovered memory error",
}
"""Not 62, 119 and 120, which the driver's firmware gives up with: workloads were seen to bring that
about again and again."""

RECOVERIES: Final = {
    1: "a reset of the GPU",
    2: "a reboot of the node",
    3: "a drain of peer-to-peer traffic",
    4: "a drain and a reset of the GPU",
    5: "a recovery of the IMEX domain",
    6: "a reset of the bus",
    7: "a reboot of the system",
}
"""The recovery actions that a driver from r570 on asks for; 0 is none."""

LARGEST_XID: Final = 9999
"""What may be one: the catalog's have three digits."""


def explain_xid(xid: int) -> str:
    """Say what an Xid means; one that another release recorded may not be in the table."""
    return f"Xid {xid}: {BROKEN[xid]}" if xid in BROKEN else f"Xid {xid}"
