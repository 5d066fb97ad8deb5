"""Kubernetes quantities, parsed and formatted exactly, without floats.

Grammar: `resource.Quantity` in k8s.io/apimachinery/pkg/api/resource/quantity.go.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import Final, NamedTuple, TypeVar

from webhook.core.bounds import MAX_EXPONENT, MAX_QUANTITY_LENGTH
from webhook.core.formatting import MAX_BYTES, PLAUSIBLE_GPU_BYTES
from webhook.core.pod.fields import EXAMPLE_AMOUNT, MAX_GPU_GIB

_Default = TypeVar("_Default")

_KIB: Final = 2**10
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


class Guess(NamedTuple):
    """Amount that a user probably meant."""

    amount: str
    unit: str = ""
    """Guessed unit of a number without a unit, for the message; otherwise empty."""


class QuantityError(ValueError):
    """A string is not a valid amount. The message has the reason and a suggestion."""

    def __init__(self, why: str, *guesses: Guess, verb: str = "use") -> None:
        """Create an error; `guesses` are ordered by likelihood, most likely first."""
        self.why = why
        self.guesses = guesses
        self.verb = verb
        super().__init__(f"{why}; {self.advice(guesses, EXAMPLE_AMOUNT)}")

    def advice(self, guesses: Sequence[Guess], example: str) -> str:
        """Return the suggestion: the guesses, else the example, else advice without an amount."""
        if not guesses:
            return f"write a size, e.g. {example}" if example else "write a size"
        first, *others = guesses
        text = f"for {first.unit} write " if first.unit else f"{self.verb} "
        more = (
            f", for {other.unit} {other.amount}" if other.unit else f" or {other.amount}"
            for other in others
        )
        return f"{text}{first.amount}{''.join(more)}"


class QuantityTooSmallError(QuantityError):
    """An amount of VRAM is less than one MiB."""


class QuantityTooLargeError(QuantityError):
    """An amount exceeds an int64."""

    def __init__(self) -> None:
        super().__init__("is larger than 2^63-1, the largest amount Kubernetes can count")


# The caches only store strings of at most LONGEST_QUANTITY characters.


@lru_cache(maxsize=4096)
def parse_quantity(text: str) -> Fraction:
    """Parse a Kubernetes quantity exactly; raises QuantityError.

    Values beyond int64 are rejected. Kubernetes reduces them to the maximum, but no cluster has
    such an amount, so it is a typing error.
    """
    match = _GRAMMAR.fullmatch(text) if len(text) <= MAX_QUANTITY_LENGTH else None
    if match is None:
        raise _malformed_error(text)
    suffix = match["suffix"]
    multiplier = _MULTIPLIERS.get(suffix)
    if multiplier is None:
        exponent = int(suffix[1:])
        if abs(exponent) > MAX_EXPONENT + MAX_QUANTITY_LENGTH:
            exponent = (MAX_EXPONENT + MAX_QUANTITY_LENGTH) * (1 if exponent > 0 else -1)
        multiplier = Fraction(10) ** exponent
    whole, _, decimals = match["number"].partition(".")
    value = Fraction(int((whole + decimals) or "0"), 10 ** len(decimals)) * multiplier
    if match["sign"] == "-":
        value = -value
    if abs(value) > MAX_BYTES:
        raise QuantityTooLargeError
    return value


def parse_quantity_or(written: object, otherwise: _Default) -> Fraction | _Default:
    """Return a quantity that Kubernetes has validated, or `otherwise` if it is malformed."""
    try:
        return parse_quantity(str(written))
    except QuantityError:
        return otherwise


def parse_count(text: str) -> int:
    """Parse a count, also in the API server's form (`3k`). Raises QuantityError."""
    value = parse_quantity(text)
    if value.denominator != 1 or value < 0:
        raise QuantityError("is not a whole number")
    return int(value)


def canonicalize(text: str) -> str:
    """Return a quantity in `resources` as the API server stores it.

    A quantity that is malformed, or beyond int64 without a binary unit, is returned unchanged.

    Source: `ParseQuantity` and `CanonicalizeBytes` in quantity.go, after the defaults of
    ResourceList, which round up to a thousandth (pkg/apis/core/v1/defaults.go).
    """
    return _canonicalize(text) if len(text) <= MAX_QUANTITY_LENGTH else text


@lru_cache(maxsize=4096)
def _canonicalize(text: str) -> str:
    match = _GRAMMAR.fullmatch(text)
    if match is None:
        return text
    suffix = match["suffix"]
    try:
        value = parse_quantity(text)
    except QuantityTooLargeError:
        if not suffix.endswith("i"):
            return text
        value = Fraction(MAX_BYTES if match["sign"] != "-" else -MAX_BYTES)
    sign = "-" if value < 0 else ""
    thousandths = ceil(abs(value) * 1000)
    whole, fraction = divmod(thousandths, 1000)
    if suffix.endswith("i") and not fraction and whole >= _KIB:
        return sign + format_bytes(whole)
    power = 0 if fraction else 1
    digits = thousandths if fraction else whole
    while digits and not digits % 1000:
        digits, power = digits // 1000, power + 1
    if not digits:
        return "0"
    is_exponent = suffix not in _MULTIPLIERS
    unit = _DECIMAL_UNITS[power]
    exponent = 3 * (power - 1)
    is_same = int(suffix[1:]) == exponent if is_exponent else suffix == unit
    if is_same and match["number"].rstrip(".").lstrip("0") == str(digits):
        return text  # also with a sign, leading zeros or a capital E
    if is_exponent:
        unit = f"e{exponent}" if exponent else ""
    return f"{sign}{digits}{unit}"


@lru_cache(maxsize=4096)
def parse_vram(text: str) -> int:
    """Parse an amount of VRAM in an annotation, in bytes, rounded up to a MiB.

    Raises QuantityError if the amount is malformed, not above zero or a fraction of a byte. Raises
    QuantityTooSmallError below one MiB, since the unit was probably forgotten.
    """
    value = _parse_positive(text)
    if value.denominator != 1 and (value < 1 or not _has_unit(text)):
        raise _fraction_error(value)
    if value < MIB:
        raise _too_small_error(text, value)
    return _round_up(value)


@lru_cache(maxsize=4096)
def parse_vram_resource(text: str) -> int:
    """Parse an amount of VRAM in `resources`, in bytes, not rounded.

    Raises the same errors as `parse_vram`. A fraction of a byte is an error even above one MiB,
    since the API server denies it in a pod template. Suggestions are whole bytes.
    """
    try:
        value = _parse_positive(text)
    except QuantityError as error:
        guesses = tuple(map(_round_guess, error.guesses))
        if guesses == error.guesses:
            raise
        raise QuantityError(error.why, *guesses, verb=error.verb) from None
    if value.denominator != 1:
        raise _fraction_error(value)
    if value < MIB:
        raise _too_small_error(text, value, bare=True)
    _round_up(value)
    return int(value)


def _round_guess(guess: Guess) -> Guess:
    is_whole = parse_quantity(guess.amount).denominator == 1
    return guess if is_whole else guess._replace(amount=format_bytes(parse_vram(guess.amount)))


def _parse_positive(text: str) -> Fraction:
    value = parse_quantity(text)
    if value <= 0:
        raise QuantityError("must be greater than zero")
    return value


def _round_up(value: Fraction) -> int:
    rounded = -(-value // MIB) * MIB
    if rounded > MAX_BYTES:
        raise QuantityTooLargeError
    return rounded


def _fraction_error(value: Fraction) -> QuantityError:
    part = f", and {_NO_PARTS}" if value < 1 else ""
    whole = [Guess(format_bytes(_round_up(value)))] if value > MIB else []
    return QuantityError(f"is a fraction of a byte{part}", *whole)


_UNITS: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL_UNITS: Final = ("m", "", "k", "M", "G", "T", "P", "E")


def format_bytes(amount_bytes: int) -> str:
    """Format bytes as the API server does: in the largest binary unit that divides the number."""
    zeros = (amount_bytes & -amount_bytes).bit_length() - 1  # trailing zero bits
    power = min(zeros // 10, len(_UNITS) - 1) if amount_bytes else 0
    return f"{amount_bytes >> 10 * power}{_UNITS[power]}"


def _has_unit(text: str) -> bool:
    return text.endswith(("i", "k", "M", "G", "T", "P", "E"))


_NO_PARTS: Final = "parts of a GPU are not counted"
_PART: Final = re.compile(r"[0-9.,]+%|[0-9]+/[0-9]+|0*,[0-9]+")
_NUMBER_AND_UNIT: Final = re.compile(r"([0-9.,_]+)([A-Za-z]*)")
_NUMBER: Final = re.compile(r"[0-9]+\.?[0-9]*|\.[0-9]+")
_THOUSANDS: Final = re.compile(r"[0-9]{1,3}(?:[,_][0-9]{3})+(?:\.[0-9]+)?")
_UNIT: Final = re.compile(
    "[kmgtpe](?:(?P<binary>i|[iex]bi)|ilo|ega?|iga?|era|eta|xa)?(?:s|b|o|bytes?|octets?)?",
    re.IGNORECASE,
)
"""Regular expression that matches English and French units. The first letter identifies the
unit."""


def _too_small_error(text: str, value: Fraction, *, bare: bool = False) -> QuantityTooSmallError:
    """Return the error for less than one MiB. `bare`: the API server rewrote 8000 to `8k`."""
    is_bare = text.isdigit() or (bare and text.endswith("k"))
    if not is_bare:
        return QuantityTooSmallError("is less than 1Mi, the smallest share")
    unit = "byte" if value == 1 else "bytes"
    return QuantityTooSmallError(f"is {value} {unit}", *_guess_units(str(value)))


def _malformed_error(text: str) -> QuantityError:
    squeezed = "".join(text.split())
    if not squeezed:
        return QuantityError("is blank")
    if len(text) > MAX_QUANTITY_LENGTH:
        return QuantityError(f"is {len(text)} characters long")
    if squeezed != text and _GRAMMAR.fullmatch(squeezed):
        return QuantityError("has a space in it", Guess(squeezed), verb="write")
    if _PART.fullmatch(squeezed):
        return QuantityError(f"is not a Kubernetes quantity, and {_NO_PARTS}")
    return QuantityError("is not a Kubernetes quantity", *_guess_amounts(squeezed))


def _guess_amounts(text: str) -> list[Guess]:
    """Return guesses for a malformed quantity: a number with a unit in a common spelling."""
    written = _NUMBER_AND_UNIT.fullmatch(text)
    number = _normalize_number(written[1]) if written else ""
    if written is None or not number:
        return []
    if not written[2]:
        found = _guess_units(number)
    elif unit := _UNIT.fullmatch(written[2]):
        letter = unit[0][0].upper()
        decimal = [] if unit["binary"] else ["k" if letter == "K" else letter]
        found = [Guess(number + item) for item in (*decimal, f"{letter}i")]
    else:
        return []
    return [guess for guess in found if _is_vram(guess.amount)]


def _normalize_number(written: str) -> str:
    """Return a number without thousands separators and with a decimal point, or an empty string."""
    if _THOUSANDS.fullmatch(written):
        written = written.replace(",", "").replace("_", "")
    elif written.count(",") == 1:
        written = written.replace(".", "").replace(",", ".")
    return written if _NUMBER.fullmatch(written) else ""


def _guess_units(number: str) -> list[Guess]:
    """Return guesses for a number without a unit: MiB, and GiB up to the largest GPU."""
    is_small = Fraction(number) <= MAX_GPU_GIB
    return [Guess(f"{number}Mi", "MiB"), *[Guess(f"{number}Gi", "GiB")] * is_small]


def _is_vram(amount: str) -> bool:
    try:
        return parse_vram(amount) <= PLAUSIBLE_GPU_BYTES
    except QuantityError:
        return False
