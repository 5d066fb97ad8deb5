"""Read what other products take for numbers of GPUs and amounts of memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from webhook.core.pod.findings import quoted
from webhook.core.pod.quantity import MIB, QuantityError, format_bytes, parse_quantity
from webhook.core.pod.units import MOST_GIBIBYTES
from webhook.tools.admit.judge.migration.source import amounts
from webhook.tools.admit.judge.migration.values import Asked, NotCarriedError, Share

if TYPE_CHECKING:
    from collections.abc import Callable
    from fractions import Fraction

    from webhook.core.pod.views import Container
    from webhook.tools.admit.judge.migration.source import Source
    from webhook.tools.admit.judge.migration.values import Note

_MOST_BYTES: Final = MOST_GIBIBYTES * 2**30
_MOST_GPUS: Final = 9999
"""As many as the annotation `gpu-count` may say."""


def by_container(source: Source, read: Callable[[Container], Share | None]) -> Asked:
    """Read each container; what is wrong with one does not hide what is wrong with the next."""
    shares: dict[str, Share] = {}
    problems: list[Note] = []
    for container in source.pod.containers:
        try:
            share = read(container)
        except NotCarriedError as error:
            problems.append(error.note)
        else:
            if share is not None:
                shares[container.name] = share
    return Asked(shares, tuple(problems))


def whole_number(container: Container, name: str) -> tuple[str, int] | None:
    """Return a resource's path and number, from its limit or else its request; None without it."""
    found = next(amounts(container, name), None)
    return None if found is None else (found[0], read_whole(*found))


def read_whole(path: str, text: str) -> int:
    """Read a number that has no unit and no fraction; raises NotCarriedError."""
    try:
        number = parse_quantity(text)
    except QuantityError:
        number = None
    if number is None or number.denominator != 1 or number < 0:
        raise NotCarriedError(path, f"{quoted(text)} is not a whole number; correct it first")
    return int(number)


def gpu_count(path: str, number: int) -> int:
    """Check a number of GPUs, of which our annotation takes so many."""
    if 0 < number <= _MOST_GPUS:
        return number
    raise NotCarriedError(path, f"no pod gets {number} GPUs; correct the number first")


def in_units(path: str, number: int, unit_bytes: int) -> int:
    """Return an amount in bytes, in whole MiB and rounded up."""
    amount_bytes = -(-number * unit_bytes // MIB) * MIB
    if amount_bytes <= _MOST_BYTES:
        return amount_bytes
    detail = (
        f"{number} units of {format_bytes(unit_bytes)} are more than any GPU has; "
        "say what one unit is, e.g. --gpu-memory-unit 1Mi, or correct the number"
    )
    raise NotCarriedError(path, detail)


def part_of_gpu(path: str, what: str, part: Fraction, gpu_bytes: int | None) -> int:
    """Return a part of a GPU, in whole MiB and rounded down, so that all parts fit into one."""
    if gpu_bytes is None:
        detail = f"{what}, and nothing here says how much that is; say it: --gpu-memory 16Gi"
        raise NotCarriedError(path, detail)
    return max(MIB, int(gpu_bytes * part) // MIB * MIB)
