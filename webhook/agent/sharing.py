"""Decision whether the node's GPUs are shared, from the reports of the agent's threads."""

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

QUESTION_INTERVAL_S: Final = 30.0
"""Interval between questions to the webhook for pods with whole GPUs while such a pod prevents
sharing, in seconds. It is also the timeout of a response."""

DISPLAY_INTERVAL_S: Final = 10.0
"""Minimum interval between two changes of the displayed assignments, in seconds."""


class NodeSharing:
    """State of the sharing decision; reports each change once."""

    def __init__(
        self,
        events: EventWriter,
        journal: Journal,
        scan_now: Callable[[], object],
        api_now_s: Callable[[], float],
        *,
        has_fixed_amount: bool,
        watches_assignments: bool,
        watches_slices: bool,
        documentation_url: str = "",
    ) -> None:
        """`api_now_s` returns Unix time by the API server's clock.

        `has_fixed_amount` is True if no driver is scanned. `watches_assignments` and
        `watches_slices` are True if `on_pods` and `on_slices` will be called.
        """
        self._events = events
        self._journal = journal
        self._scan_now = scan_now
        self._api_now_s = api_now_s
        self._documentation_url = documentation_url
        self._has_fixed_amount = has_fixed_amount
        self._watches_assignments = self._awaits_assignments = watches_assignments
        self._awaits_slices = watches_slices
        self._has_pods: bool | None = None
        self._scan: Scan | None = None
        self._slices: tuple[ResourceSlice, ...] | None = ()
        """ResourceSlices of the node; None if they cannot be read."""
        self.dra_drivers: tuple[str, ...] = ()
        """DRA drivers that offer the GPUs, or did until `SLICE_GRACE_S` ago."""
        self._claimed_until_s = float("-inf")
        self._young_until_s = float("-inf")
        self._offers_gpus: bool | None = None
        """True if the node had other allocators when last reported; None before the first
        report."""
        self._settles_at_s = float("-inf")
        self._is_sharing = False
        """True if GPUs are advertised, even if another client removed them from the node."""
        self._last: SharingDecision | None = None
        self._is_settling = False
        self._reason: EventReason | None = None
        self._questions: tuple[str, ...] = ()
        """First and last question for pods with whole GPUs since the current wait began."""
        self._last_question_s = self._first_question_s = float("-inf")
        self._answer: WholeGpuPods | None = None

    def on_node(self, node: Mapping[str, Any], now_s: float) -> None:
        """Store the time until which another allocator counts although the node shows none.

        | whole GPUs are offered | they were offered | count as offered |
        | --- | --- | --- |
        | yes | any | for `SETTLE_S` more |
        | no | yes, when the node was last reported | for `SETTLE_S` more |
        | no | at some time, and the agent just started | for `SETTLE_S` more |
        | no | unknown: the node is young, and the agent just started | for `SETTLE_S` more |
        | no | never, or before that | unchanged |

        An agent often starts with its node, before the device plugin has registered again.
        """
        before, self._offers_gpus = self._offers_gpus, bool(find_allocator_resources(node))
        if before is None:
            self._on_first_node(node, now_s)
        first = before is None and (had_other_allocator(node) or now_s < self._young_until_s)
        if self._offers_gpus or before or first:
            self._settles_at_s = now_s + SETTLE_S

    def _on_first_node(self, node: Mapping[str, Any], now_s: float) -> None:
        """Store the node's age, and the DRA drivers that an earlier agent stored in the node."""
        metadata = node.get("metadata") or {}
        created_s = read_time(metadata.get("creationTimestamp"))
        if created_s is not None:
            self._young_until_s = now_s + YOUNG_S - (self._api_now_s() - created_s)
        self.dra_drivers = read_dra_drivers(node)
        self._claimed_until_s = now_s + SLICE_GRACE_S

    def on_slices(self, slices: Iterable[ResourceSlice] | None) -> None:
        """Store the node's ResourceSlices; None if they cannot be read."""
        self._awaits_slices = False
        self._slices = None if slices is None else tuple(slices)

    def due_in_s(self, now_s: float) -> float:
        """Return the time until the decision may change without a report, in seconds."""
        ends = (self._settles_at_s, self._claimed_until_s, self._young_until_s)
        next_s = (self._last_question_s + QUESTION_INTERVAL_S,) if self._questions else ()
        return min(
            (at_s - now_s for at_s in (*ends, *next_s) if at_s > now_s), default=float("inf")
        )

    def on_scan(self, scan: Scan) -> None:
        """Store the last scan, which shows memory in use."""
        self._scan = scan

    def on_pods(
        self, assignments: Mapping[str, Any] | None, whole: WholeGpuPods | None = None
    ) -> None:
        """Store whether pods have VRAM; `assignments` is None if the list cannot be read.

        `whole` is a webhook replica's response about pods with whole GPUs.
        """
        self._awaits_assignments = False
        self._has_pods = None if assignments is None else bool(assignments)
        if whole and whole.asked in self._questions:
            self._answer = whole

    def judge(self, node: Mapping[str, Any], inventory: Inventory, now_s: float) -> SharingDecision:
        """Return the decision, and report its changes."""
        before, self._is_settling = (
            self._is_settling,
            not self._offers_gpus and now_s < self._settles_at_s,
        )
        self._remember_claims(inventory, now_s)
        inputs = self._inputs(node, inventory, now_s)
        decision = judge(node, inputs)
        began = self._last is not None and self._last.shared is Shared.NO
        if decision.shared is not Shared.NO and (began or (before and not self._is_settling)):
            # A pod with whole GPUs may have started since the last scan.
            self._scan = None
            self._scan_now()
            inputs = self._inputs(node, inventory, now_s)
            decision = judge(node, inputs)
        if decision.shared is Shared.DRAINING and self._awaits_assignments:
            decision = SharingDecision(Shared.NOT_YET)  # the assignment list has not been read yet
        self._last = decision
        is_free = judge(node, replace(inputs, whole_pods=())).shared is Shared.YES
        self._update_question(now_s, is_needed=is_free and decision.shared is Shared.NOT_YET)
        self._is_sharing = (
            decision.shared in {Shared.YES, Shared.DRAINING}
            and inventory.vram_bytes > 0
            and (self._is_sharing or is_advertised(node))
        )
        self._report(decision)
        return decision

    def _remember_claims(self, inventory: Inventory, now_s: float) -> None:
        """Store the DRA drivers that offer one of the GPUs, for `SLICE_GRACE_S`."""
        uuids = {gpu.uuid for gpu in inventory.gpus}
        uuids.update(gpu.uuid for gpu in (self._scan.gpus if self._scan else ()))
        drivers = find_dra_drivers(self._slices or (), uuids)
        if drivers:
            self.dra_drivers, self._claimed_until_s = drivers, now_s + SLICE_GRACE_S
        elif now_s >= self._claimed_until_s:
            self.dra_drivers = ()

    @property
    def question(self) -> str:
        """Value of the node's label that asks for pods with whole GPUs; empty for none."""
        return self._questions[-1] if self._questions else ""

    def _update_question(self, now_s: float, *, is_needed: bool) -> None:
        """Ask for whole-GPU pods every `QUESTION_INTERVAL_S` if nothing else prevents sharing."""
        if not is_needed or not self._watches_assignments:
            self._questions, self._answer = (), None
        elif not self._questions or now_s >= self._last_question_s + QUESTION_INTERVAL_S:
            self._first_question_s = self._first_question_s if self._questions else now_s
            self._questions = (*self._questions[-1:], str(int(self._api_now_s())))
            self._last_question_s = now_s

    def _whole_pods(self, now_s: float) -> tuple[str, ...] | None:
        """Return the pods with whole GPUs; None while waiting for a response.

        The result is empty if no replica responds, since then no replica assigns GPUs to pods
        either.
        """
        if not self._watches_assignments:
            return ()
        if self._answer is not None:
            return self._answer.pods
        silent = bool(self._questions) and now_s - self._first_question_s >= QUESTION_INTERVAL_S
        return () if silent else None

    @property
    def is_disabled(self) -> bool:
        """True if the GPUs are not shared, so that the state of the driver does not matter."""
        return self._last is not None and self._last.shared is Shared.NO

    def is_settled(self, inventory: Inventory) -> bool:
        """Return True if the decision is final: the node can be patched and is then ready.

        | decision | GPUs to advertise | last scan | settled |
        | --- | --- | --- | --- |
        | they are not shared | - | - | yes |
        | they cannot be shared yet | - | - | no |
        | they are shared | some | - | yes |
        | they are shared | none | every GPU responded | yes: there will be none |
        | they are shared | none | failed, or has not come | no: the driver may still start |
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
            is_settling=self._is_settling or self._awaits_slices,
            is_advertised=self._is_sharing or is_advertised(node),
            draining_reason=drained or explain_closed(node),
            has_pods=self._has_pods,
            in_use=() if self._has_fixed_amount else find_gpus_in_use(self._scan),
            whole_pods=self._whole_pods(now_s) if inventory.vram_bytes else (),
            whole_count=self._answer.count if self._answer else 0,
            documentation_url=self._documentation_url,
        )

    def _report(self, decision: SharingDecision) -> None:
        if decision.shared is Shared.NOT_YET and not decision.reason:
            return  # waiting for a scan or an answer
        before, self._reason = self._reason, decision.reason
        if before and before != decision.reason:
            self._events.over(before)
        if decision.reason:
            level = "warning" if decision.reason.warning else "info"
            self._journal.once("sharing", level, _MESSAGES[decision.reason], decision.sentence)
            self._events.once(decision.reason, decision.sentence)
        elif before and decision.shared is Shared.YES:
            self._journal.over("sharing", "the GPUs are shared")
            self._events.over(EventReason.GPUS_SHARED)
            sentence = "the GPUs of this node are shared by memory"
            self._events.once(EventReason.GPUS_SHARED, sentence)
        else:
            self._journal.over("sharing", "the GPUs are not shared any longer")


class DisplayedAssignments:
    """The latest assignments, and the assignments that the node's labels of free memory show.

    Each binding changes the assignments. Each change of a label rewrites the Node, tens of
    kilobytes in etcd, and is sent to every client that watches nodes. The labels are only hints for
    the scheduler.
    """

    def __init__(self, initial: Assignments | None) -> None:
        self.shown = self._latest = initial
        """Assignments that the labels show; None if unknown."""
        self._shown_s = float("-inf")

    def remember(self, assignments: Assignments) -> None:
        """Store the latest assignments."""
        self._latest = assignments

    def due_in_s(self, now_s: float) -> float:
        """Return the time until new assignments are shown, in seconds; infinite without any."""
        if self._latest == self.shown:
            return float("inf")
        return max(0.0, self._shown_s + DISPLAY_INTERVAL_S - now_s)

    def poll(self, now_s: float) -> bool:
        """Show the latest assignments if they are due; return True if they are new."""
        if self.due_in_s(now_s) > 0:
            return False
        self.shown, self._shown_s = self._latest, now_s
        return True
