"""The scalar fields of policy files: what each accepts, and the sentence for what it does not.

Each type is text in the file, so a JSON Schema pattern stands beside each check; the check is the
stricter of the two, and says what to write instead.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field

from webhook.adapters.yaml_documents import show
from webhook.core.nvidia.variables import VISIBLE_DEVICES_ENV
from webhook.core.pod.quantity import MIB, QuantityError, parse_quantity, parse_vram
from webhook.core.policy.values import matches_any
from webhook.names import VRAM_RESOURCE

_LABEL_LENGTH: Final = 63
_SUBDOMAIN_LENGTH: Final = 253

DNS_LABEL: Final = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
DNS_SUBDOMAIN: Final = rf"{DNS_LABEL}(\.{DNS_LABEL})*"
LABEL_NAME: Final = r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
LABEL_KEY: Final = rf"({DNS_SUBDOMAIN}/)?{LABEL_NAME}"
LABEL_VALUE: Final = rf"({LABEL_NAME})?"
NAMESPACE_PATTERN: Final = r"[a-z0-9*]([-a-z0-9*]*[a-z0-9*])?"
RESOURCE_PATTERN: Final = r"[a-z0-9.*-]+/[A-Za-z0-9_.*-]+"
ENV_NAME: Final = r"[-._A-Za-z][-._A-Za-z0-9]*"
NO_SPACE: Final = r"\S+"
DURATION: Final = r"([0-9]+(\.[0-9]+)?(h|ms|m|s))+"

_DURATION: Final = re.compile(DURATION)
_DURATION_PART: Final = re.compile(r"([0-9]+)(?:\.([0-9]+))?(h|ms|m|s)")
_DURATION_LENGTH: Final = 32
_MS: Final = {"h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_PERCENTAGE: Final = re.compile(r"([0-9]{1,3})(?:\.([0-9]))?%")
_MAX_PERCENTAGE: Final = 50


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """A type's part of the JSON Schema, beside what its Python type says."""

    schema: dict[str, Any]


def _check(text: str, pattern: str, length: int, what: str) -> str:
    if len(text) > length:
        raise ValueError(f"{show(text)} is longer than {length} characters")
    if not re.fullmatch(pattern, text):
        raise ValueError(f"{show(text)} is not {what}")
    return text


def _text(pattern: str, length: int, what: str) -> tuple[AfterValidator, Shape]:
    """Build the check of a text field, and its part of the JSON Schema."""
    check = partial(_check, pattern=pattern, length=length, what=what)
    return AfterValidator(check), Shape({"pattern": f"^{pattern}$", "maxLength": length})


def _label_key(text: str) -> str:
    what = "a label's key; write letters, digits, - _ . with a domain before, e.g. example.com/pool"
    _check(text, LABEL_KEY, _SUBDOMAIN_LENGTH + 1 + _LABEL_LENGTH, what)
    prefix, slash, name = text.rpartition("/")
    _check(name, LABEL_NAME, _LABEL_LENGTH, what)
    if slash:
        _check(prefix, DNS_SUBDOMAIN, _SUBDOMAIN_LENGTH, what)
    return text


def _taint_key(text: str) -> str:
    return _label_key(text) if text else text


def _resource_pattern(text: str) -> str:
    what = "a resource's full name; write e.g. nvidia.com/gpu or nvidia.com/mig-*"
    _check(text, RESOURCE_PATTERN, _SUBDOMAIN_LENGTH + 1 + _LABEL_LENGTH, what)
    if matches_any(VRAM_RESOURCE, (text,)):
        raise ValueError(f"{show(text)} covers {VRAM_RESOURCE} too, which is shared; narrow it")
    return text


def _env_name(text: str) -> str:
    what = "a variable's name; write letters, digits, _ - . and no digit first"
    _check(text, ENV_NAME, _SUBDOMAIN_LENGTH, what)
    if text == VISIBLE_DEVICES_ENV:
        raise ValueError(f"{text} is set by placement; choose with the field placement")
    if text.startswith("VRAM_"):
        raise ValueError(f"{text} begins with VRAM_, which is kept for the sidecar; rename it")
    return text


def _to_text(value: object, example: str) -> str:
    """Accept text and integers, as Kubernetes does for quantities."""
    if value is None:
        raise ValueError(f"is empty; write e.g. {example}, or leave the field out")
    if type(value) not in (str, int):
        raise ValueError(f"must be text, e.g. {example}")
    return str(value)


def _vram(value: object) -> int:
    text = _to_text(value, "8Gi")
    try:
        return parse_vram(text)
    except QuantityError as error:
        raise ValueError(f"{show(text)} {error}") from None


def _quantity(value: object) -> str:
    text = _to_text(value, "8Gi")
    _parse(text)
    return text


def _parse(text: str) -> Fraction:
    try:
        return parse_quantity(text)
    except QuantityError as error:
        raise ValueError(f"{show(text)} {error}") from None


def _tolerance(value: object) -> str:
    """Read a tolerance: a percentage as it stands, or a quantity as its number of bytes."""
    text = _to_text(value, "2%")
    if text.endswith("%"):
        match = _PERCENTAGE.fullmatch(text)
        if match is None:
            raise ValueError(f"{show(text)} is not a percentage; write e.g. 2% or 2.5%")
        tenths = int(match[1]) * 10 + int(match[2] or 0)
        if tenths > _MAX_PERCENTAGE * 10:
            raise ValueError(f"{show(text)} is more than {_MAX_PERCENTAGE}%; write less")
        whole, part = divmod(tenths, 10)
        return f"{whole}.{part}%" if part else f"{whole}%"
    amount = _parse(text)
    if amount and amount < MIB:
        hint = "write a percentage, e.g. 2%, or at least 1Mi"
        raise ValueError(f"{show(text)} is no sensible tolerance; {hint}")
    if amount.denominator != 1:
        raise ValueError(f"{show(text)} is a fraction of a byte; write e.g. 256Mi")
    return str(amount)


def duration_ms(text: str) -> int:
    """Read a duration such as `1m30s` exactly, in milliseconds; raises ValueError."""
    if len(text) > _DURATION_LENGTH or not _DURATION.fullmatch(text):
        bare = re.fullmatch("[0-9]{1,9}", text)
        hint = f"add its unit, e.g. {text}s" if bare else "write e.g. 500ms, 1s or 1m30s"
        raise ValueError(f"{show(text)} is not a duration; {hint}")
    total = Fraction(0)
    for whole, decimals, unit in _DURATION_PART.findall(text):
        total += Fraction(int(whole + decimals), 10 ** len(decimals)) * _MS[unit]
    if total.denominator != 1:
        raise ValueError(f"{show(text)} is finer than a millisecond; write whole milliseconds")
    return int(total)


def _duration(value: object, least: str, most: str) -> str:
    """Read a duration within bounds and write it as the sidecar reads it: seconds, or ms."""
    text = _to_text(value, "5s")
    total_ms = duration_ms(text)
    if not duration_ms(least) <= total_ms <= duration_ms(most):
        how = "short" if total_ms < duration_ms(least) else "long"
        raise ValueError(f"{show(text)} is too {how}; choose between {least} and {most}")
    seconds, rest_ms = divmod(total_ms, 1_000)
    return f"{total_ms}ms" if rest_ms else f"{seconds}s"


def _between(least: str, most: str) -> tuple[BeforeValidator, Shape]:
    check = partial(_duration, least=least, most=most)
    return BeforeValidator(check), Shape({"pattern": f"^{DURATION}$"})


_TEXT_OR_INTEGER: Final = Shape({"type": ["string", "integer"]})

Name = Annotated[
    str, *_text(DNS_LABEL, _LABEL_LENGTH, "a name; write lower-case letters, digits and -")
]
RuntimeClassName = Annotated[
    str, *_text(DNS_SUBDOMAIN, _SUBDOMAIN_LENGTH, "a RuntimeClass's name; write e.g. nvidia")
]
NamespacePattern = Annotated[
    str,
    *_text(
        NAMESPACE_PATTERN,
        _LABEL_LENGTH,
        "a namespace; write lower-case letters, digits and -, and * for any text",
    ),
]
ClassPattern = Annotated[
    str, *_text(NAMESPACE_PATTERN, _LABEL_LENGTH, "a class's name, nor a pattern with *")
]
ResourcePattern = Annotated[
    str, AfterValidator(_resource_pattern), Shape({"pattern": f"^{RESOURCE_PATTERN}$"})
]
LabelKey = Annotated[str, AfterValidator(_label_key), Shape({"pattern": f"^{LABEL_KEY}$"})]
LabelValue = Annotated[
    str, *_text(LABEL_VALUE, _LABEL_LENGTH, "a label's value; write letters, digits, - _ .")
]
TaintKey = Annotated[str, AfterValidator(_taint_key), Shape({"pattern": f"^({LABEL_KEY})?$"})]
EnvName = Annotated[
    str,
    AfterValidator(_env_name),
    Shape({"pattern": f"^(?!{VISIBLE_DEVICES_ENV}$|VRAM_){ENV_NAME}$"}),
]
Image = Annotated[str, *_text(NO_SPACE, 1024, "an image; write e.g. registry.example/image:tag")]
Title = Annotated[
    str, *_text(r"\S(.*\S)?", 200, "a title; write one line of text without spaces around it")
]
Vram = Annotated[int, BeforeValidator(_vram), _TEXT_OR_INTEGER]
Quantity = Annotated[str, BeforeValidator(_quantity), _TEXT_OR_INTEGER]
Tolerance = Annotated[str, BeforeValidator(_tolerance), _TEXT_OR_INTEGER]
PollInterval = Annotated[str, *_between("100ms", "60s")]
Grace = Annotated[str, *_between("0s", "1h")]
BlindAfter = Annotated[str, *_between("1s", "1h")]
GpuCount = Annotated[int, Field(ge=1, le=9999), Shape({"minimum": 1, "maximum": 9999})]
NamespacePatterns = Annotated[list[NamespacePattern], Field(min_length=1), Shape({"minItems": 1})]
