"""Assignments and pod states for tests."""

from __future__ import annotations

from dataclasses import dataclass

from tests.support.gpus import a_gpu
from webhook.core.placement.assignments import Assignment, plan_assignments
from webhook.core.placement.fit import Denial, Need
from webhook.core.placement.pod_state import PodState
from webhook.core.pod.gpus import EVERY_GPU
from webhook.core.pod.quantity import MIB

NODE = "n1"
TWO = [a_gpu("a", 1000), a_gpu("b", 1000, 1)]
NOW_S = 10_000.0


def entry(*names, mib=100, since_s=10_000, pod="ns/p", terms=None, count=1):
    uuids = tuple(EVERY_GPU if name == EVERY_GPU else f"GPU-{name}" for name in names)
    return Assignment(
        pod=pod, uuids=uuids, memory_bytes=mib * MIB, since_s=since_s, terms=terms, count=count
    )


def pod(uid="u", mib=100, count=1, *, node="", gpus="", **more):
    """Return the state of a pod; `gpus` has short names of its GPUs."""
    need = None if mib is None else Need(mib * MIB, count)
    uuids = tuple(f"GPU-{name}" for name in gpus)
    return PodState(uid=uid, name=f"ns/{uid}", need=need, node=node, uuids=uuids, **more)


@dataclass(frozen=True)
class Plan:
    """Assignments that must be written before one binding may proceed."""

    uuids: tuple
    assignments: dict
    changed: bool


def plan(*args, **more):
    """Plan a single pod; `plan_assignments` takes several."""
    *before, one, now_s = args
    draft = plan_assignments(*before, [one], now_s, **more)
    (got,) = draft.results
    return got if isinstance(got, Denial) else Plan(got, draft.assignments, draft.changed)
