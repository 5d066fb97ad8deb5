"""What the sidecar says by its name as a process: written and read by the same file."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webhook.core.enforcement.process_name import (
    MOST_MEBIBYTES,
    MOST_STOPS,
    read_process_name,
    write_process_name,
)

MIB = 2**20


@pytest.mark.parametrize(
    ("stops", "peak_bytes", "name"),
    [
        (0, None, "vw s0"),
        (0, 0, "vw s0 0"),
        (3, 6144 * MIB, "vw s3 6144"),
        (3, 6145 * MIB - 1, "vw s3 6144"),
        (999, MOST_MEBIBYTES * MIB, "vw s999 9999999"),
        (10**9, 2**70, "vw s999 9999999"),
        (-1, -1, "vw s0 0"),
    ],
)
def test_the_name_has_stops_and_the_peak_rounded_down(stops, peak_bytes, name):
    assert write_process_name(stops, peak_bytes) == name


@given(st.integers(0, MOST_STOPS), st.none() | st.integers(0, MOST_MEBIBYTES * MIB))
def test_what_is_written_fits_the_kernel_and_is_read_again(stops, peak_bytes):
    name = write_process_name(stops, peak_bytes)
    assert len(name.encode()) <= 15
    peak = None if peak_bytes is None else peak_bytes // MIB * MIB
    assert read_process_name(name) == read_process_name(f"{name}\n") == (stops, peak)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "python3\n",
        "vw",
        "vw s",
        "vw s ",
        "vw s1 ",
        "vw s-1 5",
        "vw s1 -5",
        "vw s+1",
        "vw s1 5 ",
        "vw s1  5",
        "vw s1\n5",
        "vw s1000",
        "vw s1 10000000",
        "vw s1 5\n\n",
        "vw s1_0 5",
        "vw s\u0663 5",
        "vw s\u00b2",
        "VW s1 5",
        " vw s1 5",
        "vw s1 5" + "0" * 100,
    ],
)
def test_any_other_name_says_nothing(text):
    assert read_process_name(text) is None


@given(st.text(max_size=40))
def test_whatever_a_tenant_writes_is_read_within_bounds(text):
    found = read_process_name(text)
    assert found is None or (0 <= found[0] <= MOST_STOPS and (found[1] or 0) >= 0)
