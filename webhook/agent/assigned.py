"""Who has the node's GPUs, passed on at most each ten seconds.

Each binding changes it, and each change of the node's label rewrites the Node, tens of kilobytes in
etcd, and is an event for everybody who watches nodes. The label is advice for the scheduler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from webhook.core.placement.assignments import Assignments

EVERY_S: Final = 10.0


class Assigned:
    """The latest list, and which one the node is to show."""

    def __init__(self, at_first: Assignments | None) -> None:
        self.shown = self._latest = at_first
        """None where it is not known."""
        self._shown_s = float("-inf")

    def remember(self, assignments: Assignments) -> None:
        """Remember the latest."""
        self._latest = assignments

    def due_in_s(self, now_s: float) -> float:
        """Return how long until something new is to be shown; infinite where nothing is."""
        if self._latest == self.shown:
            return float("inf")
        return max(0.0, self._shown_s + EVERY_S - now_s)

    def poll(self, now_s: float) -> bool:
        """Show the latest, if it is due; return whether it is something new."""
        if self.due_in_s(now_s) > 0:
            return False
        self.shown, self._shown_s = self._latest, now_s
        return True
