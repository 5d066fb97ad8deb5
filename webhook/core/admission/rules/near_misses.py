"""Keys that are similar to vramwarden keys, and the line to write in their place.

This module knows no policy rules. The names of other products are in `core.pod.other_products`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from itertools import islice
from typing import Any, Final

from webhook.core.bounds import MAX_COMPARED_KEYS, MAX_COMPARED_LENGTH, MAX_HINT_KEYS
from webhook.core.pod.fields import EXAMPLE_AMOUNT, guess_amount
from webhook.core.pod.findings import quote
from webhook.core.pod.other_products import OTHER_PRODUCTS_BY_ANNOTATION, Meaning, Product
from webhook.core.pod.quantity import QuantityError, parse_count, parse_vram
from webhook.names import (
    GPU_MEMORY_ANNOTATION,
    KNOWN_KEYS,
    PREFIX,
    REQUEST_ANNOTATIONS,
    VRAM_RESOURCE,
)

KEYS_BY_NAME: Final = {key.removeprefix(PREFIX): key for key in REQUEST_ANNOTATIONS} | {
    # The resource has the same purpose as the annotation, so users may confuse their names.
    VRAM_RESOURCE.removeprefix(PREFIX): GPU_MEMORY_ANNOTATION
}
"""Annotations that request GPUs, keyed by a name without prefix that probably means them."""

MAX_HINTS: Final = 10
NOTHING_READS: Final = "nothing reads this key"

_WITHOUT_PREFIX: Final = frozenset(
    {*OTHER_PRODUCTS_BY_ANNOTATION, "gpu_memory", "gpumemory", "gpu-mem", "gpumem", "vram"}
)
"""Keys without a domain that hardly have another meaning."""

_NVIDIA: Final = "nvidia.com"
_NVIDIA_NAMES: Final = frozenset({"gpumemory", "gpumem", "vram"})
"""Unread names in NVIDIA's domain, without punctuation: NVIDIA has no such resource."""
_PUNCTUATION: Final = re.compile(r"[._-]")
_SIMPLE: Final = re.compile(r"[0-9A-Za-z.,=+/% _-]{1,256}")
_OURS: Final = re.compile(re.escape(PREFIX))
_DOMAIN: Final = PREFIX.rstrip("/")
_LETTERS: Final = VRAM_RESOURCE.removeprefix(PREFIX)
"""First letters of a domain that probably means vramwarden's: `vram.io`, `vram-share.dev`."""
_OUR_LETTERS: Final = _DOMAIN.partition(".")[0]
_FIRST_LETTER: Final = _DOMAIN[0]
_CANDIDATE: Final = re.compile("vram|warden|gpu", re.IGNORECASE)
RESOURCE_PREFIXES: Final = (_FIRST_LETTER, _NVIDIA)
"""Prefixes of resource names that may be near misses."""


def correction(key: str, value: str) -> str:
    """Return the line to write instead of a near miss, or "" for other keys."""
    intended = find_intended(key, value)
    return annotation_line(*intended) if intended else ""


def annotation_line(key: str, value: str) -> str:
    """Return the manifest line of an annotation, with an example if an amount is empty."""
    if key != GPU_MEMORY_ANNOTATION:
        return f"{key}: {quote(value)}"
    return f"{key}: {value or f'{EXAMPLE_AMOUNT}, for example,'}"


def find_intended(key: str, value: str) -> tuple[str, str] | None:
    """Return the vramwarden annotation that a key probably means, and its value.

    Returns None if the key is no near miss. An unreadable amount is empty.
    """
    intended = intended_annotation(key, value)
    if intended is None or intended[0] != GPU_MEMORY_ANNOTATION:
        return intended
    return intended[0], next(likely_amounts(intended[1]), "")


def intended_annotation(key: str, value: str) -> tuple[str, str] | None:
    """Return the intended vramwarden annotation, and the value with its unit if known."""
    domain, slash, name = key.rpartition("/")
    if not slash:
        if key not in _WITHOUT_PREFIX:
            return None
        product, meaning = OTHER_PRODUCTS_BY_ANNOTATION.get(key, (None, Meaning.MEMORY))
        return GPU_MEMORY_ANNOTATION, with_known_unit(value, product, meaning)
    if domain == _DOMAIN or len(key) > MAX_COMPARED_LENGTH:
        return None
    if domain.lower() == _NVIDIA:
        is_amount = _PUNCTUATION.sub("", name.lower()) in _NVIDIA_NAMES
        return (GPU_MEMORY_ANNOTATION, value) if is_amount else None
    if not _resembles_our_domain(domain.lower()):
        return None
    matches = get_close_matches(name.lower(), KEYS_BY_NAME, n=1)
    return (KEYS_BY_NAME[matches[0]], value) if matches else None


def with_known_unit(value: str, product: Product | None, meaning: Meaning) -> str:
    """Return an amount with a product's unit or a guessed unit, or "" if it is no amount."""
    if meaning is not Meaning.MEMORY:
        return value if value[-1:].isalpha() and value[-1] not in "mk" else ""
    try:
        number = parse_count(value)
    except QuantityError:
        return value
    return (product.format_quantity(number) if product else guess_amount(number)) or value


def likely_amounts(value: str) -> Iterator[str]:
    """Yield the amounts that a value may mean. A valid amount or a list is yielded unchanged."""
    if not _SIMPLE.fullmatch(value):
        return
    if "=" in value:
        yield value
        return
    try:
        parse_vram(value)
    except QuantityError as error:
        yield from (likely.amount for likely in error.guesses)
    else:
        yield value


def _resembles_our_domain(domain: str) -> bool:
    """Return True if a domain resembles vramwarden's, such as `vramwarden` or `vram.io`."""
    if not domain.startswith(_FIRST_LETTER):
        return False
    is_short = domain.startswith(_LETTERS) and domain.count(".") <= _DOMAIN.count(".")
    letters = "".join(filter(str.isalpha, domain))
    return (
        is_short
        or letters.startswith(_OUR_LETTERS)
        or bool(get_close_matches(domain, [_DOMAIN], cutoff=0.8))
    )


def comparable_keys(keys: Iterable[str]) -> Iterator[str]:
    """Yield the few keys that are worth a comparison of words, which takes time."""
    return islice(filter(_CANDIDATE.search, islice(keys, MAX_HINT_KEYS)), MAX_COMPARED_KEYS)


def find_near_misses(keys: Mapping[str, Any], field: str) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield each near miss in a metadata field, with the key and the value to write instead."""
    for key in comparable_keys(keys):
        if key.startswith(PREFIX) or (field == "labels" and "/" not in key):
            continue
        if type(keys[key]) is str and (intended := intended_annotation(key, keys[key])):
            yield key, intended


def find_unread(keys: Iterable[str], kind: str, field: str) -> Iterator[str]:
    """Yield keys with vramwarden's prefix that nothing reads in this metadata field of a kind."""
    read = KNOWN_KEYS.get((kind, field), ())
    return (key for key in filter(_OURS.match, keys) if key not in read)


def closest_key(key: str) -> str:
    """Return the vramwarden key most similar to a key with its prefix, or ""."""
    name = key.removeprefix(PREFIX)[:MAX_COMPARED_LENGTH].lower()
    matches = get_close_matches(name, KEYS_BY_NAME, n=1)
    return KEYS_BY_NAME[matches[0]] if matches else ""
