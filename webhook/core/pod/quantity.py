"""Kubernetes quantities, read and written exactly: no floats, no wrapped integers.

Grammar: `resource.Quantity` in k8s.io/apimachinery/pkg/api/resource/quantity.go.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from typing import Final, TypeVar

from webhook.core.bounds import LARGEST_EXPONENT, LONGEST_QUANTITY
from webhook.core.pod.fields import MOST_GIBIBYTES
from webhook.core.words import MAX_BYTES

_Otherwise = TypeVar("_Otherwise")

MIB: Final = 2**20

_GRAMMAR: Final = re.compile(
    r"(?P<sign>[+-]?)(?P<number>[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
    r"(?P<suffix>[KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+|)"
)
_MULTIPLIERS: Final[dict[str, Fraction]] = {
    "": Fraction(1),
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 10**3),
    **{letter: Fraction(1000**power) for power, letter in enumerate("kMGTPE", 1)},
    **{f"{letter}i": Fraction(1024**power) for power, letter in enumerate("KMGTPE", 1)},
}


class QuantityError(ValueError):
    """A text is not an amount; the message says why and, where it is clear, what was meant."""


class QuantityTooSmallError(QuantityError):
    """An amount of VRAM below one MiB."""


# Both readers remember what they could read, which has at most LONGEST_QUANTITY characters.


@lru_cache(maxsize=4096)
def parse_quantity(text: str) -> Fraction:
    """Read a Kubernetes quantity exactly; raises QuantityError.

    Values whose magnitude exceeds int64 are rejected instead of capped, as Kubernetes would do: an
    amount nobody can have is a typing error.
    """
    match = _GRAMMAR.fullmatch(text) if len(text) <= LONGEST_QUANTITY else None
    if match is None:
        raise QuantityError(_why_malformed(text))
    suffix = match["suffix"]
    multiplier = _MULTIPLIERS.get(suffix)
    if multiplier is None:
        exponent = int(suffix[1:])
        if abs(exponent) > LARGEST_EXPONENT + LONGEST_QUANTITY:
            exponent = (LARGEST_EXPONENT + LONGEST_QUANTITY) * (1 if exponent > 0 else -1)
        multiplier = Fraction(10) ** exponent
    whole, _, decimals = match["number"].partition(".")
    value = Fraction(int((whole + decimals) or "0"), 10 ** len(decimals)) * multiplier
    if match["sign"] == "-":
        value = -value
    if abs(value) > MAX_BYTES:
        raise QuantityError("is larger than 2^63-1, the largest amount Kubernetes can count")
    return value


def amount_or(written: object, otherwise: _Otherwise) -> Fraction | _Otherwise:
    """Read an amount that somebody else judges, not we."""
    try:
        return parse_quantity(str(written))
    except QuantityError:
        return otherwise


@lru_cache(maxsize=4096)
def parse_vram(text: str) -> int:
    """Read an amount of VRAM in bytes, rounded up to a whole MiB.

    Raises QuantityError: malformed, zero, negative, a part of a byte; QuantityTooSmallError: under
    one MiB, which is always a forgotten unit.
    """
    value = parse_quantity(text)
    if value <= 0:
        raise QuantityError("must be greater than zero; write a size, e.g. 8Gi")
    if value.denominator != 1 and (value < 1 or not _has_unit(text)):
        raise QuantityError("is a fraction of a byte; write a size and its unit, e.g. 512Mi")
    if value < MIB:
        raise QuantityTooSmallError(_why_too_small(text, value))
    mebibytes = -(-value // MIB)
    if mebibytes * MIB > MAX_BYTES:
        raise QuantityError("is larger than 2^63-1, the largest amount Kubernetes can count")
    return mebibytes * MIB


_UNITS: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


def format_bytes(amount_bytes: int) -> str:
    """Write bytes as the API server would: the largest binary unit that divides them."""
    zeros = (amount_bytes & -amount_bytes).bit_length() - 1  # at the end, in binary
    power = min(zeros // 10, len(_UNITS) - 1) if amount_bytes else 0
    return f"{amount_bytes >> 10 * power}{_UNITS[power]}"


def _has_unit(text: str) -> bool:
    return text.endswith(("i", "k", "M", "G", "T", "P", "E"))


def _why_too_small(text: str, value: Fraction) -> str:
    if _has_unit(text):
        return "is less than 1Mi, the smallest share"
    # Up to so many nearly everybody means GiB.
    gibibytes = f", for GiB {value}Gi" if value <= MOST_GIBIBYTES else ""
    return f"is {value} bytes; for MiB write {value}Mi{gibibytes}"


def _why_malformed(text: str) -> str:
    """Say what is wrong with a quantity, and what was probably meant."""
    stripped = text.strip()
    if not stripped:
        return "is blank; write a size, e.g. 8Gi"
    if len(text) > LONGEST_QUANTITY:
        return f"is {len(text)} characters long; write a size, e.g. 8Gi"
    squeezed = "".join(stripped.split())
    if squeezed != text and _GRAMMAR.fullmatch(squeezed):
        return f"has a space in it; write {squeezed}"
    unit = re.fullmatch(r"([0-9.]+) *([kKmMgGtTpPeE])(i?)[bB]?(ytes|its)?", stripped)
    if unit and _GRAMMAR.fullmatch(unit[1]):
        number, letter = unit[1], unit[2].upper()
        decimal = "k" if letter == "K" else letter
        if unit[3]:
            return f"is not a Kubernetes quantity; use {number}{letter}i"
        return f"is not a Kubernetes quantity; use {number}{decimal} or {number}{letter}i"
    return "is not a Kubernetes quantity; write a size, e.g. 8Gi, 8192Mi or 8G"
