"""Which Xids switch a GPU off, and which must never do so."""

import pytest

from webhook.core.nvidia.drivers import BROKEN, LARGEST_XID, RECOVERIES, explain_xid
from webhook.core.pod.gpus import LONGEST_FAULT

OF_PROGRAMS = {
    *(8, 11, 13, 31, 32, 37, 43, 44, 45, 59, 66, 67, 68, 69, 70, 71, 94, 109, 126, 127, 137),
    *(62, 119, 120),  # of firmware that workloads were seen to bring down
    *(63, 92, 154),  # they report what was done, or what the state says
    *(74, 80, 121, 144, 145, 146, 147, 148, 149, 150),  # of a link, which has another end
}
"""What a tenant's program can cause, by NVIDIA's catalog, or what blames no GPU."""


@pytest.mark.parametrize("xid", sorted(OF_PROGRAMS))
def test_what_a_program_can_cause_switches_no_gpu_off(xid):
    assert xid not in BROKEN


def test_what_is_said_of_any_fault_fits_into_an_entry():
    longest = max(map(len, RECOVERIES.values()))
    for xid in (*BROKEN, LARGEST_XID):
        assert (
            len(f"{explain_xid(xid)}; row remapping failed; needs {'x' * longest}") <= LONGEST_FAULT
        )
    assert explain_xid(79) == "Xid 79: it has fallen off the bus"
    assert explain_xid(12) == "Xid 12"
