"""The agent's loop: receives reports from its threads, and patches the node."""

from __future__ import annotations

import threading
import time
from typing import Any, Final, NoReturn

from webhook.adapters.journal import Journal
from webhook.adapters.kube.client import Kube
from webhook.adapters.kube.errors import KubeError
from webhook.adapters.kube.follow import LONGEST_PAUSE_S
from webhook.adapters.kube.node_objects import (
    AssignmentsSeen,
    AssignmentsUnread,
    FiguresSeen,
    FiguresUnread,
    NodeSeen,
    NodeUnread,
    SlicesSeen,
    SlicesUnread,
    watch_assignments,
    watch_figures,
    watch_node,
    watch_slices,
)
from webhook.adapters.node_nvml import NodeNvml
from webhook.agent.events import log_changes, write_events
from webhook.agent.heartbeat import beat
from webhook.agent.proofs import GpuNodeProofs
from webhook.agent.scanner import watch_gpus
from webhook.agent.settings import AgentSettings
from webhook.agent.sharing import DisplayedAssignments, NodeSharing
from webhook.core.node.access import (
    DriverStatus,
    explain_unready,
    find_gpu_access_problems,
    is_hanging,
    needs_new_container,
    record_scan,
    set_device_names,
)
from webhook.core.node.events import TokenBucket
from webhook.core.node.inventory import Inventory, Scan, apply_scan, read_inventory
from webhook.core.node.patches import (
    Patches,
    build_patches,
    build_taint_removal,
    describe_changes,
    is_free_memory_only,
    is_stale_report,
)
from webhook.core.node.sharing import Shared, SharingDecision, apply_sharing
from webhook.core.node.state import Conditions, build_desired_state
from webhook.core.placement.assignments import promised_bytes
from webhook.names import AGENT_REPORTER, SENTRY_ACTING_CONDITION
from webhook.node_programs.events import EventWriter
from webhook.node_programs.program import Inbox, NewContainerNeededError

Message = (
    Scan | NodeSeen | NodeUnread | AssignmentsSeen | AssignmentsUnread
    | SlicesSeen | SlicesUnread | FiguresSeen | FiguresUnread
)  # fmt: skip

LONGEST_WAIT_S: Final = 5.0
"""Maximum wait for a report, in seconds; the heartbeat is written at least this often."""

FIRST_PAUSE_S: Final = 1.0

PATCH_BURST: Final = 20
PATCH_INTERVAL_S: Final = 5.0
"""Interval between patches, in seconds, after a burst of `PATCH_BURST`. It limits the load on
the API server if another controller, such as an agent of another version, keeps undoing
patches."""


class Agent:
    """Keeps the node in its desired state until the agent is stopped."""

    def __init__(
        self, settings: AgentSettings, kube: Kube, nvml: NodeNvml, journal: Journal
    ) -> None:
        self._settings = settings
        self._kube = kube
        self._nvml = nvml
        self._journal = journal
        self._inbox: Inbox[Message] = Inbox()
        self._node: dict[str, Any] | None = None
        self._inventory: Inventory | None = None
        self._scan: Scan | None = None
        self._driver = DriverStatus(scanned_s=time.monotonic(), answered_s=time.monotonic())
        self._patched_s = self._next_try_s = float("-inf")
        self._pause_s = FIRST_PAUSE_S
        self._allowance = TokenBucket(PATCH_BURST, PATCH_INTERVAL_S)
        self._assigned = DisplayedAssignments(None if settings.namespace else {})
        self._proofs = GpuNodeProofs(time.time())
        self._promised_bytes: int | None = None
        """Amount assigned to the node's pods, in bytes; None if unknown."""
        self._pods_changed = False
        """True if assignments changed: then a patch of free memory does not count against the
        limit."""
        self._unready_reason = "the node has not been read yet"
        self._failures: dict[str, str] = {}
        self._beats = bool(settings.run_folder)
        self._scan_now = threading.Event()
        self._events = EventWriter(
            kube,
            journal,
            node=settings.node,
            reporter=AGENT_REPORTER,
            instance=settings.node,
            action="Advertise",
        )
        has_fixed_amount = settings.fixed_bytes is not None
        self._sharing = NodeSharing(
            self._events,
            journal,
            self._scan_now.set,
            kube.now_s,
            has_fixed_amount=has_fixed_amount,
            watches_assignments=bool(settings.namespace) and not has_fixed_amount,
            watches_slices=not has_fixed_amount,
            documentation_url=settings.documentation_url,
        )

    def run(self) -> NoReturn:
        """Run until an exception: a bug, a signal, or NewContainerNeededError."""
        start, send, settings = self._inbox.start, self._inbox.put, self._settings
        start(watch_node, self._kube, settings.node, send)
        if not settings.dry_run:
            start(self._events.write_all)
        if settings.fixed_bytes is None:
            driver = (self._nvml, settings.kernel_driver)
            start(watch_gpus, *driver, settings.interval_s, self._scan_now, send)
            start(watch_slices, self._kube, settings.node, send)
            start(watch_figures, self._kube, settings.node, send)
            if settings.namespace:
                start(watch_assignments, self._kube, settings.namespace, settings.node, send)
        while True:
            self._beat()
            self._receive()
            now_s = time.monotonic()
            self._reconcile(now_s)
            self._check_driver(now_s)

    def _receive(self) -> None:
        now_s = time.monotonic()
        wait_s = min(LONGEST_WAIT_S, self._assigned.due_in_s(now_s), self._sharing.due_in_s(now_s))
        message = self._inbox.get(wait_s)
        while message is not None:
            self._on_report(message)
            message = self._inbox.get()

    def _on_report(self, message: Message) -> None:
        match message:
            case NodeSeen(node, watched):
                self._on_node(node, watched=watched)
            case Scan():
                self._journal.over("stuck", "the driver no longer hangs")
                self._scan = message
                self._sharing.on_scan(message)
                self._proofs.on_scan(message)
                self._driver = record_scan(self._driver, message, time.monotonic())
                self._apply_latest_scan()
            case NodeUnread(why):
                self._fail("watch", "the node cannot be watched; retrying", why)
            case AssignmentsSeen(assignments, watched, whole):
                if watched:
                    self._journal.over("assigned", "the list of who has which GPUs is watched")
                self._assigned.remember(assignments)
                self._promised_bytes = promised_bytes(assignments)
                self._sharing.on_pods(assignments, whole)
            case AssignmentsUnread(why):
                what = "the list of who has which GPUs cannot be watched; free memory may be stale"
                self._journal.once("assigned", "warning", what, why)
                self._promised_bytes = None
                self._sharing.on_pods(None)
            case SlicesSeen(slices):
                self._journal.over("slices", "the node's ResourceSlices are watched")
                self._sharing.on_slices(slices)
            case SlicesUnread(why, refused):
                what = "ResourceSlices cannot be read; what is shared stays, and no more is"
                if refused:  # the API server is older than Kubernetes 1.34
                    what = "ResourceSlices cannot be read; only a label tells of a DRA driver"
                    self._sharing.on_slices(None)
                self._journal.once("slices", "info" if refused else "warning", what, why)
            case FiguresSeen():
                if message.watched:
                    self._journal.over("figures", "the node's GPUNode is watched")
                self._proofs.on_figures(message)
            case FiguresUnread(why):
                what = "the node's GPUNode cannot be watched; what follows from it may be stale"
                self._journal.once("figures", "warning", what, why)

    def _on_node(self, node: dict[str, Any] | None, *, watched: bool) -> None:
        if watched:
            self._succeed("watch", "the node is watched")
        if node is None:
            self._unready_reason = f"{self._kube.url} has no node {self._settings.node}"
            self._journal.once("node", "warning", "waiting for the node", self._unready_reason)
            self._node = None
        elif not is_stale_report(node, self._node, time.monotonic() - self._patched_s):
            self._journal.over("node", "the node exists")
            self._node = node
            self._sharing.on_node(node, time.monotonic())
            if self._inventory is None:
                fixed_bytes = self._settings.fixed_bytes
                self._inventory = (
                    read_inventory(node)
                    if fixed_bytes is None
                    else Inventory(fixed_bytes=fixed_bytes)
                )
                self._apply_latest_scan()

    def _fail(self, about: str, message: str, why: str) -> None:
        self._failures[about] = why
        self._journal.once(about, "error", message, why)

    def _succeed(self, about: str, message: str) -> None:
        self._failures.pop(about, None)
        self._journal.over(about, message)

    def _apply_latest_scan(self) -> None:
        """Apply the latest scan, once the inventory stored in the node has been read."""
        if self._scan is None or self._inventory is None:
            return
        before, grace_s = self._inventory, self._settings.grace_s
        after = apply_scan(before, self._scan, self._driver.scanned_s, grace_s)
        self._inventory = set_device_names(after, self._scan, self._settings.access)
        log_changes(self._journal, self._scan, before, self._inventory, grace_s)
        if not self._sharing.is_disabled:
            write_events(self._events, self._scan, before, self._inventory, grace_s)

    def _report_access_problems(self, shared: Shared, inventory: Inventory) -> None:
        """Report access settings that a cluster admin should change, once, if GPUs are shared."""
        if shared is not Shared.YES or not inventory.gpus or not (self._scan and self._scan.gpus):
            return
        for advice in find_gpu_access_problems(self._settings.access):
            self._journal.once(advice.reason, "warning", advice.what, advice.why)
            self._events.once(advice.reason, f"{advice.what}: {advice.why}")

    def _reconcile(self, now_s: float) -> None:
        """Patch the node to its desired state, unless a retry is not due yet."""
        self._pods_changed |= self._assigned.poll(now_s)
        if self._node is None or self._inventory is None or now_s < self._next_try_s:
            return
        decision = self._sharing.judge(self._node, self._inventory, now_s)
        self._report_access_problems(decision.shared, self._inventory)
        patches, changes = self._plan_patches(decision, self._node, self._inventory)
        self._unready_reason = "; ".join(changes)
        if self._settings.dry_run:
            self._unready_reason = ""
            if patches:
                self._journal.once("dry run", "info", "would patch the node", "; ".join(changes))
        elif patches and (
            (self._pods_changed and is_free_memory_only(patches)) or self._may_patch(now_s)
        ):
            self._patch(patches, changes)
        elif patches:
            what = "somebody else keeps changing the node; patching less often"
            self._journal.once("others", "warning", what, self._unready_reason)
        elif (
            decision.shared is not Shared.NO
            and self._scan is None
            and self._settings.fixed_bytes is None
        ):
            self._unready_reason = "the GPUs have not been scanned yet"

    def _plan_patches(
        self, decision: SharingDecision, node: dict[str, Any], inventory: Inventory
    ) -> tuple[Patches, list[str]]:
        """Return the patches that the node needs; the startup taint is removed last."""
        now_s, gpus = time.time(), inventory.gpus
        acts = self._proofs.sentry_acts(now_s, gpus)
        conditions: Conditions = {SENTRY_ACTING_CONDITION: None}
        if self._settings.expects_sentry:
            api_now_s = self._kube.now_s()
            conditions = self._proofs.sentry_condition(now_s, gpus, api_now_s, acts=acts)
        state = apply_sharing(
            node,
            build_desired_state(
                inventory,
                self._assigned.shown,
                driver_enforces_caps=self._proofs.driver_enforces_caps(now_s),
                sentry_acts=acts,
                conditions=conditions,
            ),
            decision,
            promised_bytes=self._promised_bytes,
            question=self._sharing.question,
            dra_drivers=self._sharing.dra_drivers,
            unshared=inventory.unshared,
        )
        patches = build_patches(node, state)
        awaits_sentry = bool(decision.shared is not Shared.NO and gpus and not conditions)
        if patches or awaits_sentry or not self._sharing.is_settled(inventory):
            return patches, list(describe_changes(node, patches))
        key = self._settings.startup_taint
        taint = build_taint_removal(node, key)
        return Patches(taint), [f"taints[{key}]: removed"] if taint else []

    def _may_patch(self, now_s: float) -> bool:
        left = self._allowance.take(now_s)
        self._allowance = left or self._allowance
        return left is not None

    def _patch(self, patches: Patches, changes: list[str]) -> None:
        try:
            for patch, is_status in patches.in_order():
                self._node = self._kube.patch_node(self._settings.node, patch, status=is_status)
                self._sharing.on_node(self._node, time.monotonic())
        except KubeError as error:
            self._fail("patch", "the node cannot be patched; retrying", str(error))
            self._next_try_s = time.monotonic() + self._pause_s
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
            return
        self._unready_reason = ""
        self._pods_changed = False
        self._pause_s = FIRST_PAUSE_S
        self._patched_s = time.monotonic()
        self._succeed("patch", "the node can be patched")
        if not is_free_memory_only(patches):
            self._journal.event("info", "node patched", node=self._settings.node, changes=changes)

    def _check_driver(self, now_s: float) -> None:
        """Report a hanging driver; raises NewContainerNeededError if a new container is needed."""
        if self._settings.fixed_bytes is not None:
            return
        if is_hanging(self._driver, now_s, self._settings.interval_s):
            why = "NVML did not return from a call; the node keeps what it shows"
            self._journal.once("stuck", "error", "the driver hangs", why)
        why = explain_unready(self._driver)
        self._failures.pop("driver", None)
        if self._sharing.is_disabled:
            return
        if needs_new_container(self._driver, now_s):
            raise NewContainerNeededError(why or self._driver.why)
        if why:
            self._failures["driver"] = why

    def _beat(self) -> None:
        if not self._beats:
            return
        try:
            unready = "; ".join(filter(None, (*self._failures.values(), self._unready_reason)))
            beat(self._settings.run_folder, unready=unready)
        except OSError as error:
            self._beats = False  # logged once; the probes will report it
            self._journal.event("error", "no heartbeat", why=str(error))
