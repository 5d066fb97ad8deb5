"""The amount to ask for, of a pod whose peak is known: one margin, one rounding, for every reader.

The sidecar, the sentry, `explain`, `advise` and warnings at admission name the same amount for the
same peak.
"""

from __future__ import annotations

from typing import Final

from webhook.core.formatting import format_amount, format_exact

MARGIN_PERCENT: Final = 15
_GIB: Final = 2**30
_COARSE_ABOVE_BYTES: Final = 8 * _GIB


def sufficient_request(peak_bytes: int) -> int:
    """Return the request per GPU, in bytes, for a pod that held at most `peak_bytes` on one GPU.

    It is the peak and 15 %, rounded up to whole 256Mi, above 8Gi to whole Gi. The margin is for
    what was not seen: a process that is stopped, or denied memory, may have needed more.
    """
    wanted = -(-peak_bytes * (100 + MARGIN_PERCENT) // 100)
    grain = _GIB if wanted > _COARSE_ABOVE_BYTES else _GIB // 4
    return max(1, -(-wanted // grain)) * grain


def advise_request(peak_bytes: int) -> str:
    """Return the end of a sentence about a pod over its cap: its peak, and what to write."""
    asks = format_exact(sufficient_request(peak_bytes))
    return (
        f"the pod's peak was {format_amount(peak_bytes)}, so write vramwarden.io/gpu-memory: "
        f"{asks} (the peak and {MARGIN_PERCENT} %)"
    )
