from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webhook.core.pod.fields import with_unit
from webhook.core.pod.quantity import (
    MIB,
    QuantityError,
    QuantityTooSmallError,
    format_bytes,
    parse_quantity,
    parse_vram,
)
from webhook.core.words import MAX_BYTES


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
        ("3k", "^is 3000 bytes; for MiB write 3000Mi$"),
        ("1.5k", "^is 1500 bytes; for MiB write 1500Mi$"),
        *((less, "^is less than 1Mi, the smallest share;") for less in ("1Ki", "0.9Mi")),
    ],
)
def test_less_than_a_mebibyte_is_too_small_and_a_bare_number_gets_its_unit(written, says):
    with pytest.raises(QuantityTooSmallError, match=says):
        parse_vram(written)


@pytest.mark.parametrize(
    ("number", "amount"),
    [(8, "8Gi"), (0.5, "512Mi"), (1.5, "1.5Gi"), (1024, "1024Gi"), (8192, "8192Mi")],
)
def test_a_number_without_a_unit_is_guessed(number, amount):
    assert with_unit(number) == amount


@pytest.mark.parametrize("number", [0, -8, 2**20, 8e9])
def test_a_number_that_may_be_bytes_is_not(number):
    assert with_unit(number) == ""


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
