"""What a user says of a cluster: how large shares are, and which GPUs nodes have."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from webhook.core.pod.quantity import QuantityError, parse_vram
from webhook.core.policy.match import matches_any
from webhook.tools.simulate.judge.offered import GpuSource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from webhook.core.kinds.workloads import Workload
    from webhook.tools.simulate.judge.offered import Offered

_GIVEN: Final = re.compile(r"(?:([^=]+)=)?(?:([1-9][0-9]?)x)?([^x=]+)")


@dataclass(frozen=True, slots=True)
class Size:
    """How large the shares of some workloads are."""

    namespace: str
    workload: str
    """Both are names or `*` patterns."""
    memory_bytes: int
    """Per GPU; 0 where their pods are to stay whole."""


def size_of(sizes: Sequence[Size], namespace: str, pod: str, workload: Workload) -> int | None:
    """Return what the first size says that fits; a workload goes by `llama` or `Deployment/llama`.

    A pod that nothing creates, by its own name.
    """
    names = (str(workload), workload.name, pod)
    for size in sizes:
        if matches_any(namespace, (size.namespace,)) and any(
            matches_any(name, (size.workload,)) for name in names
        ):
            return size.memory_bytes
    return None


@dataclass(frozen=True, slots=True)
class GivenMemory:
    """What `--gpu-memory` says of nodes."""

    nodes: str
    """A name or `*` pattern; empty where it is for those of which nobody says it."""
    count: int | None
    total_bytes: int


def read_given(text: str) -> GivenMemory:
    """Read `80Gi`, `4x24Gi`, `old-*=24Gi` or `old-*=4x24Gi`; raises ValueError with a sentence."""
    match = _GIVEN.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not [NODES=][COUNTx]SIZE; write e.g. 80Gi or 'old-*=4x24Gi'")
    try:
        total_bytes = parse_vram(match[3])
    except QuantityError as error:
        raise ValueError(f"{match[3]!r} {error}") from error
    return GivenMemory(match[1] or "", int(match[2]) if match[2] else None, total_bytes)


def with_given(name: str, offered: Offered, given: Sequence[GivenMemory]) -> Offered:
    """Return what a node offers with what the user says of it, who knows best of a node by name."""
    is_known = offered.counted and None not in offered.totals_bytes
    for one in given:
        applies = matches_any(name, (one.nodes,)) if one.nodes else not is_known
        count = one.count or (len(offered.totals_bytes) if offered.counted else 0)
        if applies and count:
            totals = (one.total_bytes,) * count
            return replace(offered, source=GpuSource.GIVEN, totals_bytes=totals, counted=True)
    return offered
