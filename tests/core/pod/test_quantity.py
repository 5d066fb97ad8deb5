from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webhook.core.formatting import MAX_BYTES
from webhook.core.pod.fields import guess_amount
from webhook.core.pod.quantity import (
    MIB,
    QuantityError,
    QuantityTooSmallError,
    canonicalize,
    format_bytes,
    parse_quantity,
    parse_vram,
    parse_vram_resource,
)


@pytest.mark.parametrize(
    ("written", "want"),
    [
        ("8Gi", "8Gi"),
        ("8192Mi", "8Gi"),
        ("8589934592", "8Gi"),
        ("8G", "7630Mi"),
        ("8e9", "7630Mi"),
        ("8E9", "7630Mi"),
        ("8e+9", "7630Mi"),
        ("+8Gi", "8Gi"),
        ("0.5Gi", "512Mi"),
        (".5Gi", "512Mi"),
        ("1.Gi", "1Gi"),
        ("16.0Gi", "16Gi"),
        ("1.1Gi", "1127Mi"),
        ("1048577", "2Mi"),
        ("1024Gi", "1Ti"),
        ("1Ti", "1Ti"),
        ("9223372036854775807", None),
        ("8796093022207Mi", "8796093022207Mi"),
    ],
)
def test_an_amount_is_rounded_up_to_a_mebibyte_and_written_canonically(written, want):
    if want is None:
        with pytest.raises(QuantityError, match="larger than"):
            parse_vram(written)
    else:
        assert format_bytes(parse_vram(written)) == want


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("", "blank"),
        ("   ", "blank"),
        ("0", "greater than zero"),
        ("0Gi", "greater than zero"),
        ("-1", "greater than zero"),
        ("-8Gi", "greater than zero"),
        ("0.5", "fraction of a byte"),
        ("500m", "fraction of a byte"),
        ("1048576.5", "fraction of a byte"),
        ("0.0001Ki", "fraction of a byte"),
        ("1e-400", "fraction of a byte"),
        ("8GB", "use 8G or 8Gi"),
        ("8GiB", "use 8Gi"),
        ("8gi", "use 8Gi"),
        ("8 Gi", "write 8Gi"),
        ("8Gi\n", "write 8Gi"),
        *((same, "use 8G or 8Gi$") for same in ("8gb", "8g", "8Go", "8gigs", "8GBytes")),
        *((same, "use 8Gi$") for same in ("8GIB", "8 GiB", "8Gio", "8gibibytes")),
        *((half, "parts of a GPU are not counted") for half in ("50%", "1/2", "0,5", "0.5")),
        ("8,5Gi", "use 8.5Gi$"),
        ("8,5GB", "use 8.5G or 8.5Gi$"),
        ("8,5", "for MiB write 8.5Mi, for GiB 8.5Gi$"),
        ("1.024,5Mi", "use 1024.5Mi$"),
        ("8PB", "not a Kubernetes quantity; write a size"),
        ("NaN", "not a Kubernetes quantity"),
        ("inf", "not a Kubernetes quantity"),
        ("Infinity", "not a Kubernetes quantity"),
        ("0x10", "not a Kubernetes quantity"),
        ("1e", "not a Kubernetes quantity"),
        ("Gi", "not a Kubernetes quantity"),
        (".", "not a Kubernetes quantity"),
        ("1,5Gi", "use 1.5Gi$"),
        ("1_000Mi", "use 1000Mi$"),
        ("٣Gi", "not a Kubernetes quantity"),
        ("8Gi8Gi", "not a Kubernetes quantity"),
        ("1e309", "larger than"),
        ("1e1000000000000", "larger than"),
        ("9Ei", "larger than"),
        ("8Ei", "larger than"),
        ("9" * 300, "characters long"),
    ],
)
def test_what_is_no_amount_is_rejected_in_words_that_help(written, says):
    with pytest.raises(QuantityError, match=says):
        parse_vram(written)


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("8192", "is 8192 bytes; for MiB write 8192Mi$"),
        ("1025", "for MiB write 1025Mi$"),
        ("8", "for MiB write 8Mi, for GiB 8Gi$"),
        ("1", "for MiB write 1Mi, for GiB 1Gi$"),
        ("1048575", "for MiB write 1048575Mi$"),
        ("1", "^is 1 byte;"),
        *(
            (less, "^is less than 1Mi, the smallest share;")
            for less in ("1Ki", "0.9Mi", "3k", "1.5k", "8e3")
        ),
    ],
)
def test_less_than_a_mebibyte_is_too_small_and_a_bare_number_gets_its_unit(written, says):
    with pytest.raises(QuantityTooSmallError, match=says):
        parse_vram(written)


@pytest.mark.parametrize(
    ("written", "bytes_written"),
    [("4500M", 4_500_000_000), ("8000000001", 8_000_000_001), ("1.5Gi", 1536 * MIB), ("8e9", 8e9)],
)
def test_an_amount_in_resources_is_not_rounded(written, bytes_written):
    assert parse_vram_resource(written) == bytes_written


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("1.1Gi", "^is a fraction of a byte; use 1127Mi$"),
        ("1181116006400m", "^is a fraction of a byte; use 1127Mi$"),
        ("0.3Gi", "^is a fraction of a byte; use 308Mi$"),
        ("1048576.5", "^is a fraction of a byte; use 2Mi$"),
        ("1,1Gi", "use 1127Mi$"),
        ("1.1GB", "use 1.1G or 1127Mi$"),
        ("1.5", "^is a fraction of a byte; write a size"),
        ("500m", "parts of a GPU are not counted"),
        ("8k", "^is 8000 bytes; for MiB write 8000Mi$"),  # the API server converts 8000 to this
        ("0", "greater than zero"),
        ("8Ei", "larger than"),
        ("9223372036854775807", "larger than"),
    ],
)
def test_what_the_api_server_stores_otherwise_is_no_amount_in_resources(written, says):
    with pytest.raises(QuantityError, match=says):
        parse_vram_resource(written)


SPELLINGS = {
    "8192Mi": "8Gi",
    "1.5Gi": "1536Mi",
    "1.1Gi": "1181116006400m",
    "0.5Mi": "512Ki",
    "512": "512",
    "0.5Ki": "512",
    "1023.5Ki": "1048064",
    "1Ki": "1Ki",
    "1.5Ki": "1536",
    "7630Mi": "7630Mi",
    "4500M": "4500M",
    "4.5G": "4500M",
    "8000M": "8G",
    "8589934592": "8589934592",
    "8000000000": "8G",
    "8e9": "8e9",
    "8E9": "8E9",
    "8e+9": "8e+9",
    "8E0": "8E0",
    "+8G": "+8G",
    "08.G": "08.G",
    "8.0E9": "8e9",
    "8000e6": "8e9",
    "8.5e9": "8500e6",
    "80e8": "8e9",
    "1.5e0": "1500e-3",
    "1e-4": "1e-3",
    "+8Gi": "8Gi",
    "2000m": "2",
    "2.0": "2",
    "0.5": "500m",
    "500u": "1m",
    "1n": "1m",
    "0": "0",
    "0Gi": "0",
    "8192": "8192",
    "8000": "8k",
    "9Ei": "9223372036854775807",
}
"""Spellings of an amount and the form that the API server stores, which
`tests/cluster/test_amounts.py` verifies with a real API server."""


@pytest.mark.parametrize(("written", "stored"), SPELLINGS.items())
def test_a_quantity_is_written_as_the_api_server_stores_it(written, stored):
    assert canonicalize(written) == canonicalize(stored) == stored


@pytest.mark.parametrize("written", ["8GB", "", "x" * 300, "1e30"])
def test_what_is_no_quantity_that_can_be_counted_stays_as_it_is_written(written):
    assert canonicalize(written) == written


@given(st.integers(1, MAX_BYTES), st.sampled_from(["", "Ki", "k", "M", "Gi", "e3", "m"]))
def test_the_api_servers_spelling_has_the_same_value(number, unit):
    written = f"{number}{unit}"
    try:
        value = parse_quantity(written)
    except QuantityError:
        return
    assert parse_quantity(canonicalize(written)) == value


@pytest.mark.parametrize(
    ("number", "amount"),
    [(8, "8Gi"), (0.5, "512Mi"), (1.5, "1.5Gi"), (1024, "1024Gi"), (8192, "8192Mi")],
)
def test_a_number_without_a_unit_is_guessed(number, amount):
    assert guess_amount(number) == amount


@pytest.mark.parametrize("number", [0, -8, 2**20, 8e9])
def test_a_number_that_may_be_bytes_is_not(number):
    assert guess_amount(number) == ""


@pytest.mark.parametrize("number", ["2000m", "2", "2.0", "2e0", "0.002k"])
def test_a_quantity_has_one_value_however_it_is_written(number):
    assert parse_quantity(number) == 2


@given(st.integers(min_value=1, max_value=MAX_BYTES // MIB))
def test_what_is_written_canonically_is_read_back_exactly(mebibytes):
    assert parse_vram(format_bytes(mebibytes * MIB)) == mebibytes * MIB


@given(st.integers(min_value=MIB, max_value=MAX_BYTES - MIB))
def test_rounding_never_gives_less_and_never_a_whole_mebibyte_more(amount_bytes):
    rounded = parse_vram(str(amount_bytes))
    assert amount_bytes <= rounded < amount_bytes + MIB
    assert rounded % MIB == 0


@given(st.text())
def test_any_text_is_an_amount_or_an_error(text):
    try:
        assert isinstance(parse_quantity(text), Fraction)
    except QuantityError as error:
        assert str(error)
