"""Whether the node's GPUs are shared: what is known for that, and what is said about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from webhook.core.node import sharing
from webhook.core.node.sharing import (
    SETTLE_S,
    Shared,
    Sharing,
    given_away,
    gpus_in_use,
    has_offered,
    is_advertised,
    judge,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from webhook.adapters.journal import Journal
    from webhook.agent.telling import NodeEvents
    from webhook.core.node.inventory import Inventory, Scan

_MESSAGES: Final = {
    sharing.NOT_SHARED: ("info", "the GPUs are not shared"),
    sharing.DRAIN: ("warning", "the GPUs are in use; waiting until they are free"),
    sharing.BESIDE_PLUGIN: ("warning", "the GPUs are shared and offered whole"),
    sharing.UNTIL_PODS_END: ("warning", "the GPUs stay shared until their pods have ended"),
}
GPUS_SHARED: Final = "GPUsShared"


class SharingOfNode:
    """Keeps what a judgement needs; says once what changes."""

    def __init__(
        self,
        events: NodeEvents,
        journal: Journal,
        scan_now: Callable[[], object],
        *,
        fixed: bool,
        lists_pods: bool,
    ) -> None:
        """`fixed`: no driver is asked; `lists_pods`: it will be heard who has the GPUs."""
        self._events = events
        self._journal = journal
        self._scan_now = scan_now
        self._fixed = fixed
        self._awaits_pods = lists_pods
        self._has_pods: bool | None = None
        self._scan: Scan | None = None
        self._offered: bool | None = None
        """Whether whole GPUs were offered when the node was last heard of."""
        self._settled_s = float("-inf")
        self._shares = False
        """Whether they were advertised, also where somebody took all of it off the node since."""
        self._last: Shared | None = None
        self._lately = False
        self._reason = ""

    def hear_node(self, node: Mapping[str, Any], now_s: float) -> None:
        """Remember until when whole GPUs count as offered, though they are not just now.

        | whole GPUs are offered | they were | count as offered |
        | --- | --- | --- |
        | yes | any | for `SETTLE_S` more |
        | no | yes, when the node was last heard of | for `SETTLE_S` more |
        | no | at some time, and the agent just started | for `SETTLE_S` more |
        | no | never, or before that | as long as it was |

        An agent often starts with its node, and so before the plugin has registered again.
        """
        before, self._offered = self._offered, bool(given_away(node))
        if self._offered or before or (before is None and has_offered(node)):
            self._settled_s = now_s + SETTLE_S

    def due_in_s(self, now_s: float) -> float:
        """Return how long until whole GPUs no longer count as offered; infinite where they do."""
        return self._settled_s - now_s if self._was_offered(now_s) else float("inf")

    def _was_offered(self, now_s: float) -> bool:
        return not self._offered and now_s < self._settled_s

    def hear_scan(self, scan: Scan) -> None:
        """Remember what is in use."""
        self._scan = scan

    def hear_pods(self, assignments: Mapping[str, Any] | None) -> None:
        """Remember whether pods have VRAM; None where that cannot be read."""
        self._awaits_pods = False
        self._has_pods = None if assignments is None else bool(assignments)

    def judge(self, node: Mapping[str, Any], inventory: Inventory, now_s: float) -> Shared:
        """Decide, and say what is new."""
        before, self._lately = self._lately, self._was_offered(now_s)
        found = self._judge(node)
        if found.shared is not Shared.NO and (
            self._last is Shared.NO or (before and not self._lately)
        ):
            # A whole-GPU pod may have started since the last scan.
            self._scan = None
            self._scan_now()
            found = self._judge(node)
        self._last = found.shared
        self._shares = (
            found.shared is Shared.YES
            and inventory.vram_bytes > 0
            and (self._shares or is_advertised(node))
        )
        self._say(found)
        return found.shared

    @property
    def is_off(self) -> bool:
        """Whether the GPUs are not shared, so that it does not matter what a driver says."""
        return self._last is Shared.NO

    def is_settled(self, inventory: Inventory) -> bool:
        """Say whether there is nothing more to wait for, once the node shows what was decided.

        | decided | GPUs to advertise | the last scan | settled |
        | --- | --- | --- | --- |
        | they are not shared | - | - | yes |
        | they cannot be shared yet | - | - | no |
        | they are shared | some | - | yes |
        | they are shared | none | every GPU answered | yes: there will be none |
        | they are shared | none | failed, or has not come | no: the driver may be on its way |
        """
        if self._last is not Shared.YES:
            return self._last is Shared.NO
        scan = self._scan
        answered = scan is not None and not scan.failed and not scan.unsure
        return inventory.vram_bytes > 0 or answered

    def _judge(self, node: Mapping[str, Any]) -> Sharing:
        return judge(
            node,
            shares=self._shares or is_advertised(node),
            has_pods=self._has_pods,
            in_use=() if self._fixed else gpus_in_use(self._scan),
            lately=self._lately,
        )

    def _say(self, found: Sharing) -> None:
        if found.shared is Shared.NOT_YET and not found.reason:
            return  # a scan is on its way
        if found.shared is Shared.YES and found.reason and self._awaits_pods:
            return  # and so is the list of who has the GPUs
        if found.shared is Shared.YES and not found.reason and self._lately:
            return  # the plugin may be back in a moment
        before, self._reason = self._reason, found.reason
        if before != found.reason:
            self._events.over(before)
        if found.reason:
            level, message = _MESSAGES[found.reason]
            self._journal.once("sharing", level, message, found.sentence)
            warning = level == "warning"
            self._events.tell(found.reason, found.sentence, warning=warning)
        elif before and found.shared is Shared.YES:
            self._journal.over("sharing", "the GPUs are shared")
            self._events.over(GPUS_SHARED)
            sentence = "the GPUs of this node are shared by memory"
            self._events.tell(GPUS_SHARED, sentence, warning=False)
        else:
            self._journal.over("sharing", "the GPUs are not shared any longer")
