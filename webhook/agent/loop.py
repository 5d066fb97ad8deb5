"""The agent's loop: hears of GPUs and of the node, and puts the node right."""

from __future__ import annotations

import queue
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from webhook.adapters.kube.client import KubeError
from webhook.agent.assigned import Assigned
from webhook.agent.events import tell
from webhook.agent.heartbeat import beat
from webhook.agent.watcher import (
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    AssignmentsSeen,
    AssignmentsUnread,
    NodeSeen,
    WatchFailed,
    watch,
    watch_assignments,
    watch_gpus,
)
from webhook.core.node.inventory import Inventory, Look, notice
from webhook.core.node.state import changes, patches, recall, wanted
from webhook.core.nvidia.drivers import Fault
from webhook.names import NODE_GPU_MEMORY_FREE_LABEL

if TYPE_CHECKING:
    from collections.abc import Callable

    from webhook.adapters.journal import Journal
    from webhook.adapters.kube.client import Kube
    from webhook.adapters.nvml import Nvml
    from webhook.agent.settings import Settings
    from webhook.core.node.state import Patches

    Message = Look | NodeSeen | WatchFailed | AssignmentsSeen | AssignmentsUnread | Exception

PACE_S: Final = 5.0
"""The loop turns at least this often, to beat."""

PATCHES: Final = 20
PATCH_EVERY_S: Final = 5.0
"""So many patches at once and then one in so many seconds: whoever changes the node against us for
ever, such as an agent of another version, costs the API server no more than that."""

OWN_ECHO_S: Final = 5.0
"""The watch tells of our own patches, too, and of the state between two of them."""

CHANGED_AFTER_S: Final = 30.0
REVOKED_AFTER_S: Final = 300.0
"""How long a driver has to fail in a way that only a new container cures: it was replaced, or the
container's access to the GPUs was revoked (systemd does so on daemon-reload)."""

STUCK_AFTER_S: Final = 60.0


class NewContainerNeededError(Exception):
    """Only a new container gets the driver's library, or access to the GPUs, anew."""


class Agent:
    """Keeps the node as it should be, until it is told to stop."""

    def __init__(self, settings: Settings, kube: Kube, nvml: Nvml, journal: Journal) -> None:
        self._settings = settings
        self._kube = kube
        self._nvml = nvml
        self._journal = journal
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._node: dict[str, Any] | None = None
        self._inventory: Inventory | None = None
        self._look: Look | None = None
        self._looked_s = self._answered_s = time.monotonic()
        self._worked = False
        self._patched_s = self._next_try_s = float("-inf")
        self._pause_s = FIRST_PAUSE_S
        self._allowance = Allowance(PATCHES, PATCH_EVERY_S)
        self._assigned = Assigned(None if settings.namespace else {})
        self._owed = False
        """Pods came or went: the patch for that is not counted against whoever fights us."""
        self._undone = "the node has not been read yet"
        self._failures: dict[str, str] = {}
        self._beats = bool(settings.run_folder)

    def run(self) -> None:
        """Work for ever; raises NewContainerNeededError."""
        self._start(watch, self._kube, self._settings.node)
        if self._settings.fixed_bytes is None:
            self._start(watch_gpus, self._nvml, self._settings.interval_s)
            if self._settings.namespace:
                of = (self._settings.namespace, self._settings.node)
                self._start(watch_assignments, self._kube, *of)
        while True:
            self._beat()
            self._hear()
            now_s = time.monotonic()
            self._put_right(now_s)
            self._judge_driver(now_s)

    def _start(self, work: Callable[..., None], *arguments: Any) -> None:
        """Let a thread work; a bug in it ends the agent, and not only the thread."""

        def worked() -> None:
            try:
                work(*arguments, self._messages.put)
            except Exception as error:  # noqa: BLE001 - handed to the main thread, which raises it
                self._messages.put(error)

        threading.Thread(target=worked, name=work.__name__, daemon=True).start()

    def _hear(self) -> None:
        """Take what was told; wait a while where nothing was."""
        wait_s = min(PACE_S, self._assigned.due_in_s(time.monotonic()))
        try:
            self._take(self._messages.get(timeout=wait_s))
            while True:
                self._take(self._messages.get_nowait())
        except queue.Empty:
            return

    def _take(self, message: Message) -> None:
        match message:
            case NodeSeen(node, watched):
                self._take_node(node, watched=watched)
            case Look():
                self._looked_s = time.monotonic()
                self._journal.over("stuck", "the driver no longer hangs")
                self._look = message
                self._consider()
            case WatchFailed(why):
                self._fail("watch", "the node cannot be watched; trying on", why)
            case AssignmentsSeen(assignments, watched):
                if watched:
                    self._journal.over("assigned", "the list of who has which GPUs is watched")
                self._assigned.tell(assignments)
            case AssignmentsUnread(why):
                what = "the list of who has which GPUs cannot be watched; free memory may be stale"
                self._journal.once("assigned", "warning", what, why)
            case _:
                raise message

    def _take_node(self, node: dict[str, Any] | None, *, watched: bool) -> None:
        if watched:
            self._succeed("watch", "the node is watched")
        if node is None:
            self._undone = f"{self._kube.url} has no node {self._settings.node}"
            self._journal.once("node", "warning", "waiting for the node", self._undone)
            self._node = None
        elif not self._is_echo(node):
            self._journal.over("node", "the node is there")
            self._node = node
            if self._inventory is None:
                fixed_bytes = self._settings.fixed_bytes
                self._inventory = (
                    recall(node) if fixed_bytes is None else Inventory(fixed_bytes=fixed_bytes)
                )
                self._consider()

    def _fail(self, about: str, message: str, why: str) -> None:
        self._failures[about] = why
        self._journal.once(about, "error", message, why)

    def _succeed(self, about: str, message: str) -> None:
        self._failures.pop(about, None)
        self._journal.over(about, message)

    def _is_echo(self, node: dict[str, Any]) -> bool:
        """Tell whether this is older than what our own patch was answered with.

        Resource versions are decimal numbers that grow (KEP-5504); one that is not, is believed.
        """
        known = self._node["metadata"]["resourceVersion"] if self._node else ""
        told = node["metadata"]["resourceVersion"]
        recent = time.monotonic() - self._patched_s < OWN_ECHO_S
        return recent and known.isdecimal() and told.isdecimal() and int(told) < int(known)

    def _consider(self) -> None:
        """Learn from the latest look, once it is known what was advertised before."""
        if self._look is None or self._inventory is None:
            return
        before, grace_s = self._inventory, self._settings.grace_s
        self._inventory = notice(before, self._look, self._looked_s, grace_s)
        tell(self._journal, self._look, before, self._inventory, grace_s)

    def _put_right(self, now_s: float) -> None:
        """Patch what is not as it should be, unless the last try failed a moment ago."""
        self._owed |= self._assigned.take(now_s)
        if self._node is None or self._inventory is None or now_s < self._next_try_s:
            return
        made = patches(self._node, wanted(self._inventory, self._assigned.shown))
        listed = list(changes(self._node, made))
        self._undone = "; ".join(listed)
        if self._settings.dry_run:
            self._undone = ""
            if made:
                self._journal.once("dry run", "info", "would patch the node", "; ".join(listed))
        elif made and ((self._owed and _is_free_alone(listed)) or self._allowance.take(now_s)):
            self._patch(made, listed)
        elif made:
            what = "the node is changed by somebody else all the time; patching less often"
            self._journal.once("others", "warning", what, self._undone)
        elif self._look is None and self._settings.fixed_bytes is None:
            self._undone = "the GPUs have not been looked at yet"

    def _patch(self, made: Patches, listed: list[str]) -> None:
        """Send the patches; labels first, so that no pod meets capacity on an unlabelled node."""
        try:
            if made.metadata is not None:
                self._node = self._kube.patch_node(self._settings.node, made.metadata)
            if made.status is not None:
                self._node = self._kube.patch_node(self._settings.node, made.status, status=True)
        except KubeError as error:
            self._fail("patch", "the node cannot be patched; trying on", str(error))
            self._next_try_s = time.monotonic() + self._pause_s
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
            return
        self._undone = ""
        self._owed = False
        self._pause_s = FIRST_PAUSE_S
        self._patched_s = time.monotonic()
        self._succeed("patch", "the node can be patched")
        if not _is_free_alone(listed):
            self._journal.event("info", "node patched", node=self._settings.node, changes=listed)

    def _judge_driver(self, now_s: float) -> None:
        """Say that the driver hangs, and end where only a new container sees it again."""
        if self._settings.fixed_bytes is not None:
            return
        if now_s - self._looked_s > STUCK_AFTER_S + self._settings.interval_s:
            why = "NVML did not return from a call; the node keeps what it shows"
            self._journal.once("stuck", "error", "the driver hangs", why)
        fault = self._look.fault if self._look else None
        if fault is None and self._look is not None:
            self._worked, self._answered_s = True, self._looked_s
        since_s = now_s - self._answered_s
        if fault is Fault.DRIVER_CHANGED and since_s > CHANGED_AFTER_S:
            raise NewContainerNeededError(self._look.failed if self._look else "")
        if fault is Fault.UNKNOWN and self._worked and since_s > REVOKED_AFTER_S:
            raise NewContainerNeededError(self._look.failed if self._look else "")

    def _beat(self) -> None:
        if not self._beats:
            return
        try:
            unready = "; ".join(filter(None, (*self._failures.values(), self._undone)))
            beat(self._settings.run_folder, unready=unready)
        except OSError as error:
            self._beats = False  # said once; the probes will tell the kubelet
            self._journal.event("error", "no heartbeat", why=str(error))


def _is_free_alone(listed: list[str]) -> bool:
    """Say whether nothing but free memory changes, as it does with each pod: no news for a log."""
    return all(NODE_GPU_MEMORY_FREE_LABEL in change for change in listed)


class Allowance:
    """Lets so many things happen at once, and then one in so many seconds (a token bucket)."""

    def __init__(self, most: int, every_s: float) -> None:
        self._most = float(most)
        self._left = float(most)
        self._every_s = every_s
        self._counted_s = float("-inf")

    def take(self, now_s: float) -> bool:
        """Return whether one more may happen now, and count it."""
        self._left = min(self._most, self._left + (now_s - self._counted_s) / self._every_s)
        self._counted_s = now_s
        if self._left < 1:
            return False
        self._left -= 1
        return True
