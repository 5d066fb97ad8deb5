"""Observations to judge, and the resulting actions."""

from __future__ import annotations

from webhook.core.enforcement.model import Cap, Observation, Process, StepState, Usage
from webhook.core.enforcement.step import step

MIB = 2**20
GPU = "GPU-0"
CAP = Cap(
    cap_bytes=1000 * MIB,
    tolerance_bytes=20 * MIB,
    grace_s=5.0,
    blind_after_s=60.0,
    terminate_when_blind=False,
    protected=frozenset({1, 7}),
)
TRAINER, LOADER = Process(100, 1000), Process(101, 1001)


def using(*usages, fault="", rejected=(), listed_at_s=None):
    """Return an observation, given usages as (process, MiB or None[, gpu])."""
    listed = tuple(
        Usage(gpu[0] if gpu else GPU, process, None if mib is None else mib * MIB)
        for process, mib, *gpu in usages
    )
    return Observation(listed, fault, frozenset(rejected), listed_at_s or {})


def run_script(script, cap=CAP, state=None):
    """Play (time, observation) pairs; return the actions as (time, action) and the last state."""
    state = state or StepState()
    log = []
    for now_s, observation in script:
        state, actions = step(state, observation, cap, now_s)
        log += [(now_s, action) for action in actions]
    return log, state


def names(log):
    return [(now_s, type(action).__name__) for now_s, action in log]
