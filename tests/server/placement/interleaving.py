"""An API server in memory and replicas that place pods, of which one at a time takes one step.

Each request to the API server is a point at which anything else may happen first. The replicas run
the real `Binder` and `Tracker`; what they hear of changes comes as late as a test likes.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from webhook.adapters.kube.client import KubeError
from webhook.adapters.kube.placement import GpuNode, Stored
from webhook.core.placement.assignments import (
    Assignments,
    PodState,
    read_assignments,
    write_assignments,
)
from webhook.core.placement.binding_review import Binding, BindingOutcome, Verdict
from webhook.core.pod.gpus import Gpu
from webhook.server.metrics import Metrics, PlacementMetrics
from webhook.server.placement.binder import Binder
from webhook.server.placement.tracker import Tracker

if TYPE_CHECKING:
    from webhook.core.placement.fit import Need

REQUEST_S = 60.0
"""How long the API server lets a request last (`--request-timeout`)."""


class EndedError(BaseException):
    """The replica ended in the middle of what it did."""


class Task:
    """Runs a function on a thread of its own, from one request to the next."""

    _local = threading.local()

    def __init__(self, function) -> None:
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._ended = False
        self.done = False
        self.error: BaseException | None = None
        self.result = None
        threading.Thread(target=self._run, args=(function,), daemon=True).start()

    def _run(self, function) -> None:
        Task._local.task = self
        self._go.acquire()
        try:
            if not self._ended:
                self.result = function()
        except EndedError:
            pass
        except BaseException as error:  # noqa: BLE001 - raised again by `step`
            self.error = error
        self.done = True
        self._back.release()

    def step(self) -> bool:
        """Go on to the next request, or to the end; say whether that was the end."""
        if not self.done:
            self._go.release()
            self._back.acquire()
        if self.error:
            raise self.error
        return self.done

    def end(self) -> None:
        """Let the next request never return."""
        self._ended = True
        while not self.done:
            self.step()

    @classmethod
    def pause(cls) -> None:
        """Let others go first; outside of a task, nothing happens."""
        task = getattr(cls._local, "task", None)
        if task is None:
            return
        task._back.release()
        task._go.acquire()
        if task._ended:
            raise EndedError


class Turns:
    """A lock that lets others take steps while it is waited for."""

    def __init__(self) -> None:
        self._held = False

    def __enter__(self) -> None:
        while self._held:
            Task.pause()
        self._held = True

    def __exit__(self, *exception) -> None:
        self._held = False


class World:
    """The truth: what the API server stores. Has the methods of `PlacementApi`."""

    def __init__(self, *gpus_mib: tuple[int, ...]) -> None:
        self.nodes = {
            f"n{number}": GpuNode(
                f"n{number}",
                f"uid-n{number}",
                tuple(Gpu(f"G{number}-{i}", size, "T", i) for i, size in enumerate(sizes)),
            )
            for number, sizes in enumerate(gpus_mib)
        }
        self.pods: dict[str, PodState] = {}
        self.lists: dict[str, tuple[dict[str, str], int]] = {}
        self.now_s = 1_000_000.0
        self.events: list[tuple[str, PodState]] = []
        self._numbers = itertools.count(1)

    # What people, kubelets and the scheduler do.

    def create(self, need: Need) -> str:
        """Create a pod that waits for a node."""
        uid = f"p{next(self._numbers)}"
        self._write("ADDED", PodState(uid, f"ns/{uid}", need))
        return uid

    def change(self, uid: str, **values) -> None:
        """Change a pod as it is stored."""
        self._write("MODIFIED", replace(self.pods[uid], **values))

    def delete(self, uid: str) -> None:
        """Delete a pod at once."""
        self.events.append(("DELETED", self.pods.pop(uid)))

    def commit(self, uid: str, node: str, verdict: Verdict) -> None:
        """Write what a binding says, where the pod is still there to be bound."""
        pod = self.pods.get(uid)
        if pod and not pod.node and not pod.finished:
            self.change(uid, node=node, uuids=verdict.uuids)

    def _write(self, kind: str, pod: PodState) -> None:
        self.pods[pod.uid] = pod
        self.events.append((kind, pod))

    def used(self, node: GpuNode) -> dict[str, int]:
        """Return what pods use of each GPU."""
        used = {gpu.uuid: 0 for gpu in node.gpus}
        for pod in self.pods.values():
            if pod.node == node.name and not pod.finished and pod.need:
                for uuid in pod.uuids:
                    used[uuid] += pod.need.memory_bytes
        return used

    def fits(self, node: GpuNode, need: Need) -> bool:
        """Say whether a node has room by what its pods use."""
        used = self.used(node)
        free = [gpu.memory_bytes - used[gpu.uuid] for gpu in node.gpus]
        return sum(one >= need.memory_bytes for one in free) >= need.gpu_count

    # What replicas ask.

    def pod(self, _namespace: str, name: str) -> PodState | None:
        Task.pause()
        return self.pods.get(name)

    def node(self, name: str) -> GpuNode | None:
        Task.pause()
        return self.nodes.get(name)

    def pods_on(self, node: str) -> list[PodState]:
        Task.pause()
        return [pod for pod in self.pods.values() if pod.node == node]

    def assignments(self, node: str) -> Stored:
        Task.pause()
        if node not in self.lists:
            return Stored(node, {}, whole=False, version="")
        data, version = self.lists[node]
        found, whole = read_assignments(data)
        return Stored(node, found, whole, str(version))

    def store(self, node: GpuNode, assignments: Assignments, version: str) -> Stored:
        Task.pause()
        there = str(self.lists[node.name][1]) if node.name in self.lists else ""
        if there != version:
            raise KubeError("conflict", code=409)
        written = next(self._numbers)
        self.lists[node.name] = write_assignments(assignments), written
        Task.pause()  # the answer is on its way
        return Stored(node.name, assignments, whole=True, version=str(written))


class _Binder(Binder):
    """Takes turns where the real one blocks."""

    def _lock(self, node: str):
        return self._locks.setdefault(node, Turns())


@dataclass
class Request:
    """A binding that the API server asks a replica about, and then writes."""

    uid: str
    node: str
    began_s: float
    task: Task


@dataclass
class Replica:
    """A replica and what it has heard of so far."""

    world: World
    knows: bool = True
    """Has listed the pods that are there."""
    heard: int = 0
    requests: list[Request] = field(default_factory=list)
    tidying: list[Task] = field(default_factory=list)

    def __post_init__(self) -> None:
        counted = PlacementMetrics(Metrics())
        self.tracker = Tracker(self.world, counted, None)
        self.binder = _Binder(self.world, self.tracker, counted, lambda: self.world.now_s)
        self.tracker._take_nodes(list(self.world.nodes.values()))
        for listed in self.tracker._listed.values():
            listed.set()
        if self.knows:
            self.resync()

    def resync(self) -> None:
        """List again, as after a watch that was lost."""
        self.tracker._take_pods(list(self.world.pods.values()))
        self.heard = len(self.world.events)

    def hear(self) -> None:
        """Take the next event that is due."""
        if self.heard < len(self.world.events):
            self.tracker._take_pod(*self.world.events[self.heard])
            self.heard += 1

    def ask(self, uid: str, node: str) -> Request:
        """Let the API server ask about a binding."""
        binding = Binding("ns", uid, uid, node, {})
        task = Task(lambda: self.binder.bind(binding))
        self.requests.append(Request(uid, node, self.world.now_s, task))
        return self.requests[-1]

    def tidy(self, node: str, *, fresh: bool) -> None:
        """Begin to tidy a node's list."""

        def run() -> None:
            with contextlib.suppress(KubeError):
                self.binder.tidy(node, fresh=fresh)

        self.tidying.append(Task(run))

    def end(self) -> None:
        """End in the middle of everything."""
        for task in (*(request.task for request in self.requests), *self.tidying):
            task.end()
        self.requests, self.tidying = [], []

    def answer(self, request: Request, *, arrives: bool) -> None:
        """Let the API server act on an answer, unless it gave the request up."""
        self.requests.remove(request)
        verdict = request.task.result
        assert verdict.outcome in {
            BindingOutcome.PLACED,
            BindingOutcome.DENIED,
            BindingOutcome.UNTOUCHED,
            BindingOutcome.UNAVAILABLE,
        }
        in_time = self.world.now_s - request.began_s < REQUEST_S
        if verdict.outcome is BindingOutcome.PLACED and arrives and in_time:
            self.world.commit(request.uid, request.node, verdict)
