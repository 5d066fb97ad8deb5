"""Proofs from the node's GPUNode that the driver enforces caps and that a sentry acts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from webhook.adapters.kube.node_objects import FiguresSeen
from webhook.core.formatting import join_names
from webhook.core.kinds.nodes import (
    SENTRY_FRESH_S,
    NodeFigures,
    SentryFault,
    find_sentry_fault,
    unmeasured_gpus,
    write_time,
)
from webhook.core.node.inventory import Scan
from webhook.core.node.state import Conditions
from webhook.core.nvidia.drivers import Fault
from webhook.core.pod.gpus import Gpu
from webhook.names import SENTRY_ACTING_CONDITION

LIMIT_FRESH_S: Final = 240.0
"""Maximum age of the proof that the driver enforces caps, in seconds. The label also stays for
this time if the GPUNode cannot be read."""

_GONE: Final = {Fault.LIBRARY_MISSING, Fault.DRIVER_DOWN, Fault.DRIVER_CHANGED}


class GpuNodeProofs:
    """The node's GPUNode as last read, and the driver as last scanned."""

    def __init__(self, started_s: float) -> None:
        """`started_s` is the Unix time of the agent's start."""
        self._started_s = started_s
        self._seen: FiguresSeen | None = None
        self._version = ""
        """Driver version; empty before the first scan that succeeded."""
        self._gone = False
        self._acted_s = float("-inf")
        """Unix time of the newest figures that proved an acting sentry."""

    def on_figures(self, seen: FiguresSeen) -> None:
        """Store the GPUNode."""
        self._seen = seen

    def on_scan(self, scan: Scan) -> None:
        """Store the driver's version; failures that may be temporary change nothing."""
        if scan.fault is None:
            self._version, self._gone = scan.driver_version, False
        elif scan.fault in _GONE:
            self._gone = True

    def driver_enforces_caps(self, now_s: float) -> bool | None:
        """Return True if the driver enforces caps at this Unix time; None if not known yet.

        | driver, by the agent's scans | last read of GPUNode | its figures | its proof | result |
        | --- | --- | --- | --- | --- |
        | is gone, or has another version than the sentry saw | any | any | any | no |
        | any other | failed, for less than `LIMIT_FRESH_S` | | | not known |
        | any other | failed, for longer | | | no |
        | any other | does not exist | | | no |
        | any other | exists | are older than `LIMIT_FRESH_S` | any | no |
        | has not responded yet | exists | are newer | holds | not known |
        | has the version that the sentry saw | exists | are newer | holds | yes |
        | any other | exists | are newer | does not hold, or there is none | no |
        """
        if self._gone:
            return False
        if self._seen is None:
            return None if abs(now_s - self._started_s) < LIMIT_FRESH_S else False
        figures = self._seen.figures
        if figures is None or abs(now_s - figures.observed_s) > LIMIT_FRESH_S:
            return False
        if figures.limit is None or not figures.limit.holds:
            return False
        return figures.driver_version == self._version if self._version else None

    def sentry_acts(self, now_s: float, gpus: Iterable[Gpu]) -> bool | None:
        """Return True if a sentry acts on every shared GPU; None if not known yet.

        | newest figures that proved it | GPUNode | result |
        | --- | --- | --- |
        | are at most `SENTRY_FRESH_S` old | any | yes |
        | are older, or do not exist | was not read, for less than `SENTRY_FRESH_S` | not known |
        | are older, or do not exist | any other | no |

        Shorter failures, and the replacement of a sentry, change nothing. While no GPU is known,
        such as before the first scan, figures prove nothing.
        """
        gpus = tuple(gpus)
        figures = self._seen.figures if self._seen and gpus else None
        if figures is not None and not find_sentry_fault(figures, gpus, now_s):
            self._acted_s = figures.observed_s
        if abs(now_s - self._acted_s) <= SENTRY_FRESH_S:
            return True
        return None if not (self._seen and gpus) and self._is_new(now_s) else False

    def sentry_condition(
        self, now_s: float, gpus: Iterable[Gpu], api_now_s: float, *, acts: bool | None
    ) -> Conditions:
        """Return the node's condition about an acting sentry; empty if not known yet.

        `api_now_s` is Unix time by the API server's clock. `acts` is the result of `sentry_acts`.
        """
        if acts:
            status, reason, message = "True", "SentryActs", _ACTS
        elif self._is_new(now_s):
            return {}
        else:
            figures = self._seen.figures if self._seen else None
            fault = find_sentry_fault(figures, gpus, now_s) or SentryFault.NO_SENTRY
            status, reason, message = "False", fault, _why(fault, figures, gpus)
        condition = {"status": status, "reason": reason, "message": message}
        return {SENTRY_ACTING_CONDITION: {**condition, "lastTransitionTime": write_time(api_now_s)}}

    def _is_new(self, now_s: float) -> bool:
        return abs(now_s - self._started_s) <= SENTRY_FRESH_S


_ACTS: Final = "the sentry of this node measures every shared GPU and stops pods above their caps"
_WITHOUT: Final = (
    "pods whose only enforcer it is run without a cap here, and no further one comes;"
    " kubectl get pods -A -l app.kubernetes.io/component=sentry -o wide"
)
_NO_SENTRY: Final = f"no sentry of this node has written its GPUNode for {SENTRY_FRESH_S:g} s"
_NO_ACT: Final = "the sentry of this node may stop no process, or cannot follow its list of pods"


def _why(fault: SentryFault, figures: NodeFigures | None, gpus: Iterable[Gpu]) -> str:
    if fault is SentryFault.DOES_NOT_ACT:
        why = _NO_ACT
    elif fault is SentryFault.NOT_MEASURED and figures:
        why = f"the sentry of this node cannot measure {join_names(unmeasured_gpus(figures, gpus))}"
    else:
        why = _NO_SENTRY
    return f"{why}: {_WITHOUT}"
