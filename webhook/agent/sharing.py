"""Decide whether the node's GPUs are shared, from what the agent's threads report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from webhook.adapters.journal import Journal
from webhook.core.kinds.nodes import read_time
from webhook.core.node.events import EventReason
from webhook.core.node.inventory import Inventory, Scan
from webhook.core.node.node_fields import explain_closed, is_advertised
from webhook.core.node.other_allocators import (
    SETTLE_S,
    SLICE_GRACE_S,
    YOUNG_S,
    find_allocator_resources,
    had_other_allocator,
    read_dra_drivers,
)
from webhook.core.node.sharing import (
    Shared,
    SharingDecision,
    SharingInputs,
    find_gpus_in_use,
    judge,
)
from webhook.core.placement.assignment_codec import WholeGpuPods
from webhook.core.placement.assignments import Assignments
from webhook.core.pod.whole_gpus import ResourceSlice, find_dra_drivers
from webhook.node_programs.events import EventWriter

_MESSAGES: Final = {
    EventReason.NOT_SHARED: "the GPUs are not shared",
    EventReason.DRAIN: "the GPUs are in use; waiting until they are free",
    EventReason.BESIDE_PLUGIN: "the GPUs are shared and offered whole",
    EventReason.UNTIL_PODS_END: "the GPUs stay shared until their pods have ended",
}

ASK_EVERY_S: Final = 30.0
"""Between questions for pods with whole GPUs, while one keeps the node from being shared; and so
long one is waited for that nobody answers."""

SHOW_EVERY_S: Final = 10.0
"""At most so often a new list of who has the GPUs is passed on to the node."""


class SharingOfNode:
    """Keeps what a judgement needs; says once what changes."""

    def __init__(
        self,
        events: EventWriter,
        journal: Journal,
        scan_now: Callable[[], object],
        api_now_s: Callable[[], float],
        *,
        fixed: bool,
        lists_pods: bool,
        reads_slices: bool,
        documentation_url: str = "",
    ) -> None:
        """`fixed`: no driver is asked; `lists_pods`: it will be heard who has the GPUs.

        `api_now_s` returns Unix time by the API server's clock; `reads_slices`: it will be heard
        which drivers offer the GPUs in ResourceSlices.
        """
        self._events = events
        self._journal = journal
        self._scan_now = scan_now
        self._api_now_s = api_now_s
        self._documentation_url = documentation_url
        self._fixed = fixed
        self._lists_pods = self._awaits_pods = lists_pods
        self._awaits_slices = reads_slices
        self._has_pods: bool | None = None
        self._scan: Scan | None = None
        self._slices: tuple[ResourceSlice, ...] | None = ()
        """None where they cannot be read."""
        self.dra_drivers: tuple[str, ...] = ()
        """The DRA drivers that offer the GPUs, or did until `SLICE_GRACE_S` ago."""
        self._claimed_until_s = float("-inf")
        self._young_until_s = float("-inf")
        self._offered: bool | None = None
        """Whether whole GPUs were offered when the node was last heard of."""
        self._settled_s = float("-inf")
        self._shares = False
        """Whether they were advertised, also where somebody took all of it off the node since."""
        self._last: SharingDecision | None = None
        self._settles = False
        self._reason: EventReason | None = None
        self._asked: tuple[str, ...] = ()
        """The names of this wait's first and last question for pods with whole GPUs."""
        self._asked_s = self._asked_first_s = float("-inf")
        self._whole: WholeGpuPods | None = None

    def on_node(self, node: Mapping[str, Any], now_s: float) -> None:
        """Remember until when whole GPUs count as offered, though they are not just now.

        | whole GPUs are offered | they were | count as offered |
        | --- | --- | --- |
        | yes | any | for `SETTLE_S` more |
        | no | yes, when the node was last heard of | for `SETTLE_S` more |
        | no | at some time, and the agent just started | for `SETTLE_S` more |
        | no | nobody knows: the node is young, and the agent just started | for `SETTLE_S` more |
        | no | never, or before that | as long as it was |

        An agent often starts with its node, and so before the plugin has registered again.
        """
        before, self._offered = self._offered, bool(find_allocator_resources(node))
        if before is None:
            self._on_first_node(node, now_s)
        first = before is None and (had_other_allocator(node) or now_s < self._young_until_s)
        if self._offered or before or first:
            self._settled_s = now_s + SETTLE_S

    def _on_first_node(self, node: Mapping[str, Any], now_s: float) -> None:
        """Remember how young a node is, and what an agent before this one knew of it."""
        metadata = node.get("metadata") or {}
        created_s = read_time(metadata.get("creationTimestamp"))
        if created_s is not None:
            self._young_until_s = now_s + YOUNG_S - (self._api_now_s() - created_s)
        self.dra_drivers = read_dra_drivers(node)
        self._claimed_until_s = now_s + SLICE_GRACE_S

    def on_slices(self, slices: Iterable[ResourceSlice] | None) -> None:
        """Remember the node's ResourceSlices; None where nobody will ever let them be read."""
        self._awaits_slices = False
        self._slices = None if slices is None else tuple(slices)

    def due_in_s(self, now_s: float) -> float:
        """Return how long until the passing of time alone may change the judgement."""
        ends = (self._settled_s, self._claimed_until_s, self._young_until_s)
        next_s = (self._asked_s + ASK_EVERY_S,) if self._asked else ()
        return min(
            (at_s - now_s for at_s in (*ends, *next_s) if at_s > now_s), default=float("inf")
        )

    def on_scan(self, scan: Scan) -> None:
        """Remember what is in use."""
        self._scan = scan

    def on_pods(
        self, assignments: Mapping[str, Any] | None, whole: WholeGpuPods | None = None
    ) -> None:
        """Remember whether pods have VRAM; None where that cannot be read.

        `whole`: what a replica of the webhook says of pods with whole GPUs.
        """
        self._awaits_pods = False
        self._has_pods = None if assignments is None else bool(assignments)
        if whole and whole.asked in self._asked:
            self._whole = whole

    def judge(self, node: Mapping[str, Any], inventory: Inventory, now_s: float) -> SharingDecision:
        """Decide, and say what is new."""
        before, self._settles = self._settles, not self._offered and now_s < self._settled_s
        self._remember_claims(inventory, now_s)
        inputs = self._inputs(node, inventory, now_s)
        found = judge(node, inputs)
        began = self._last is not None and self._last.shared is Shared.NO
        if found.shared is not Shared.NO and (began or (before and not self._settles)):
            # A whole-GPU pod may have started since the last scan.
            self._scan = None
            self._scan_now()
            inputs = self._inputs(node, inventory, now_s)
            found = judge(node, inputs)
        if found.shared is Shared.DRAINING and self._awaits_pods:
            found = SharingDecision(Shared.NOT_YET)  # the list of who has the GPUs is on its way
        self._last = found
        is_free = judge(node, replace(inputs, whole_pods=())).shared is Shared.YES
        self._ask(now_s, is_needed=is_free and found.shared is Shared.NOT_YET)
        self._shares = (
            found.shared in {Shared.YES, Shared.DRAINING}
            and inventory.vram_bytes > 0
            and (self._shares or is_advertised(node))
        )
        self._report(found)
        return found

    def _remember_claims(self, inventory: Inventory, now_s: float) -> None:
        """Remember who offers one of the GPUs by resource claims, for `SLICE_GRACE_S` more."""
        uuids = {gpu.uuid for gpu in inventory.gpus}
        uuids.update(gpu.uuid for gpu in (self._scan.gpus if self._scan else ()))
        drivers = find_dra_drivers(self._slices or (), uuids)
        if drivers:
            self.dra_drivers, self._claimed_until_s = drivers, now_s + SLICE_GRACE_S
        elif now_s >= self._claimed_until_s:
            self.dra_drivers = ()

    @property
    def question(self) -> str:
        """Question for pods with whole GPUs that the node is to carry; empty for none."""
        return self._asked[-1] if self._asked else ""

    def _ask(self, now_s: float, *, is_needed: bool) -> None:
        """Ask once nothing else keeps the node from being shared, anew each `ASK_EVERY_S`."""
        if not is_needed or not self._lists_pods:
            self._asked, self._whole = (), None
        elif not self._asked or now_s >= self._asked_s + ASK_EVERY_S:
            self._asked_first_s = self._asked_first_s if self._asked else now_s
            self._asked = (*self._asked[-1:], str(int(self._api_now_s())))
            self._asked_s = now_s

    def _whole_pods(self, now_s: float) -> tuple[str, ...] | None:
        """Return the pods with whole GPUs; None while a replica is asked for them.

        None of them where no replica answers: then none is there to give a pod a GPU either.
        """
        if not self._lists_pods:
            return ()
        if self._whole is not None:
            return self._whole.pods
        silent = bool(self._asked) and now_s - self._asked_first_s >= ASK_EVERY_S
        return () if silent else None

    @property
    def is_off(self) -> bool:
        """Whether the GPUs are not shared, so that it does not matter what a driver says."""
        return self._last is not None and self._last.shared is Shared.NO

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
        if self._last is None or self._last.shared is Shared.NOT_YET:
            return False
        if self._last.shared is Shared.NO:
            return True
        scan = self._scan
        answered = scan is not None and not scan.failed and not scan.unsure
        return inventory.vram_bytes > 0 or answered

    def _inputs(self, node: Mapping[str, Any], inventory: Inventory, now_s: float) -> SharingInputs:
        last = self._last
        drained = last.sentence if last and last.shared is Shared.DRAINING else ""
        return SharingInputs(
            dra_drivers=self.dra_drivers or (None if self._slices is None else ()),
            age_s=YOUNG_S - (self._young_until_s - now_s),
            is_settling=self._settles or self._awaits_slices,
            is_advertised=self._shares or is_advertised(node),
            draining_reason=drained or explain_closed(node),
            has_pods=self._has_pods,
            in_use=() if self._fixed else find_gpus_in_use(self._scan),
            whole_pods=self._whole_pods(now_s) if inventory.vram_bytes else (),
            whole_count=self._whole.count if self._whole else 0,
            documentation_url=self._documentation_url,
        )

    def _report(self, found: SharingDecision) -> None:
        if found.shared is Shared.NOT_YET and not found.reason:
            return  # a scan is on its way, or an answer
        before, self._reason = self._reason, found.reason
        if before and before != found.reason:
            self._events.over(before)
        if found.reason:
            level = "warning" if found.reason.warning else "info"
            self._journal.once("sharing", level, _MESSAGES[found.reason], found.sentence)
            self._events.once(found.reason, found.sentence)
        elif before and found.shared is Shared.YES:
            self._journal.over("sharing", "the GPUs are shared")
            self._events.over(EventReason.GPUS_SHARED)
            sentence = "the GPUs of this node are shared by memory"
            self._events.once(EventReason.GPUS_SHARED, sentence)
        else:
            self._journal.over("sharing", "the GPUs are not shared any longer")


class Assigned:
    """The latest list of who has the GPUs, and which one the node is to show.

    Each binding changes it, and each change of the node's label rewrites the Node, tens of
    kilobytes in etcd, and is an event for everybody who watches nodes. The label is advice for the
    scheduler.
    """

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
        return max(0.0, self._shown_s + SHOW_EVERY_S - now_s)

    def poll(self, now_s: float) -> bool:
        """Show the latest, if it is due; return whether it is something new."""
        if self.due_in_s(now_s) > 0:
            return False
        self.shown, self._shown_s = self._latest, now_s
        return True
