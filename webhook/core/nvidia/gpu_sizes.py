"""Amounts of memory that no GPU has, or in which no program fits."""

from __future__ import annotations

from typing import Final

from webhook.core.words import amount, exactly

LARGEST_GPU_BYTES: Final = 288 * 2**30
"""Memory of the largest single GPU sold in 2026 (B300, MI355X)."""

SMALLEST_USEFUL_BYTES: Final = 600 * 2**20
"""Amount below which too little is left beside a CUDA context, which takes 518 MiB on an H100.

It is what `core.enforcement.limits` takes for the largest context.
"""


def warn_of_size(asked: int, largest_bytes: int | None = None) -> str:
    """Return the sentence for a pod that asks for more than any GPU has; empty if one has it.

    If the cluster's largest GPU is unknown (None), the largest that is sold counts.
    """
    has_bytes = LARGEST_GPU_BYTES if largest_bytes is None else largest_bytes
    if asked <= has_bytes:
        return ""
    which = "any GPU sold has" if largest_bytes is None else "the largest GPU here has"
    why = f"{exactly(asked)} is more than {which}: this pod will never start"
    return f"ask for {amount(has_bytes, down=True)} or less; {why}"
