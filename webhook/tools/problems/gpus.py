"""Problems of GPUs and of the figures that sentries write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final

from webhook.core.formatting import format_amount, format_duration, format_exact, join_names
from webhook.core.kinds.nodes import STALE_S, GpuFigures, NodeFigures
from webhook.tools.problems.problem import Code, Problem, ProblemSubject, Severity
from webhook.tools.snapshot.node import CONFIGURED, ClusterNode

UNMANAGED_FROM_BYTES: Final = 256 * 2**20
"""Minimum unmanaged memory that counts as a problem, in bytes. Displays and monitoring use less."""
SEVERITY_ORDER: Final = (
    *(Code.OVERCOMMITTED, Code.UNMANAGED_MEMORY, Code.GPU_UNHEALTHY),
    *(Code.NO_FIGURES, Code.STALE_FIGURES),
)
"""Codes of this module, the most severe first."""
_SENTRIES: Final = "kubectl get pods -A -l app.kubernetes.io/component=sentry -o wide"


def find_gpu_problems(
    nodes: Iterable[NodeFigures], now_s: float, describe_owner: Callable[[str], str]
) -> Iterator[Problem]:
    """Yield the problems of nodes and their GPUs.

    `describe_owner` describes the holder of unmanaged memory, given the UID of its pod.
    """
    for node in nodes:
        yield from find_stale_figures(node, now_s)
        for gpu in node.gpus:
            yield from _find_gpu_problems(
                ProblemSubject("GPU", f"{node.name}/{gpu.index}"), gpu, describe_owner
            )


def find_stale_figures(node: NodeFigures, now_s: float) -> Iterator[Problem]:
    """Yield a problem if a node's figures are older than `STALE_S`."""
    age_s = now_s - node.observed_s
    if age_s > STALE_S:
        message = f"figures are {format_duration(age_s)} old; does its sentry run?"
        subject = ProblemSubject("Node", node.name)
        yield Problem(Code.STALE_FIGURES, Severity.WARNING, message, _SENTRIES, subject)


def find_nodes_without_figures(
    bound_to: Iterable[str], nodes: Sequence[NodeFigures]
) -> Iterator[Problem]:
    """Yield nodes that have pods but no figures, if other nodes have figures.

    `bound_to` has the node name of each pod, or "" for a pod without a node.
    """
    reported = {node.name for node in nodes} | {""}
    for name, number in Counter(bound_to).items():
        if nodes and name not in reported:
            pods = "1 of these pods is" if number == 1 else f"{number} of these pods are"
            message = f"{pods} bound to it, and no sentry reports of it"
            subject = ProblemSubject("Node", name)
            yield Problem(Code.NO_FIGURES, Severity.WARNING, message, _SENTRIES, subject)


def explain_missing_figures(shared: Collection[ClusterNode] | None) -> str:
    """Return why no node has figures. `shared` is None if nodes are unreadable."""
    if shared and all(node.is_configured for node in shared):
        has = join_names([f"{node.name} {format_exact(node.vram_bytes)}" for node in shared])
        return f"no figures of GPUs: amounts are {CONFIGURED}: {has}"
    not_yet = f"no figures of GPUs: no node has reported yet; does the sentry run? ({_SENTRIES})"
    if shared is not None:
        return not_yet
    return f"{not_yet} There is none where amounts are {CONFIGURED}."


def _find_gpu_problems(
    subject: ProblemSubject, gpu: GpuFigures, describe_owner: Callable[[str], str]
) -> Iterator[Problem]:
    if not gpu.healthy:
        message = f"{gpu.fault or 'is lost or unhealthy'}; nothing new is placed on it"
        yield Problem(Code.GPU_UNHEALTHY, Severity.WARNING, message, subject=subject)
    promised = gpu.promised_bytes
    if promised is not None and promised > gpu.usable_bytes:
        message = (
            f"{format_exact(promised)} are promised of {format_exact(gpu.usable_bytes)} usable"
        )
        yield Problem(Code.OVERCOMMITTED, Severity.ERROR, message, subject=subject)
    for uid, held_bytes in gpu.unmanaged.items():
        if held_bytes >= UNMANAGED_FROM_BYTES:
            message = f"{format_amount(held_bytes)} are held by {describe_owner(uid)}"
            yield Problem(Code.UNMANAGED_MEMORY, Severity.WARNING, message, subject=subject)
