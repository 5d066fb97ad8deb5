"""An API server in memory and replicas that place pods, of which one at a time takes one step.

Each request to the API server is a point at which anything else may happen first. The replicas run
the real `Binder` and `Tracker`; what they hear of changes comes as late as a test likes.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import Counter
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tests.support.logs import RecordedLog
from webhook.adapters.kube.client import KubeError
from webhook.adapters.kube.placement import GpuNode, Question, StoredList, StoredPod
from webhook.core.nvidia.device_names import DeviceNames
from webhook.core.placement.assignments import (
    Assignments,
    PodState,
    Waits,
    Whole,
    read_assignments,
    read_whole,
    write_assignments,
    write_whole,
)
from webhook.core.placement.binding_review import Binding, BindingVerdict
from webhook.core.pod.gpus import Gpu
from webhook.names import GPU_ANNOTATION, GPU_WAITS_ANNOTATION
from webhook.server.metrics import Metrics, PlacementMetrics
from webhook.server.placement.binder import Binder
from webhook.server.placement.late import LateAssignments
from webhook.server.placement.tidying import Tidying
from webhook.server.placement.tracker import Tracker

if TYPE_CHECKING:
    from collections.abc import Callable

    from webhook.core.placement.fit import Need

PATIENCE = 10_000
"""Steps after which something is taken to go on forever."""

REQUEST_S = 60.0
"""How long the API server lets a request last (`--request-timeout`)."""


class EndedError(BaseException):
    """The replica ended in the middle of what it did."""


class Task:
    """Runs a function on a thread of its own, from one request to the next."""

    _local = threading.local()
    pauses = 0
    """Of all tasks."""

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
        cls.pauses += 1
        task._back.release()
        task._go.acquire()
        if task._ended:
            raise EndedError


class World:
    """The truth: what the API server stores. Has the methods of `PlacementApi`."""

    questions = None

    def __init__(self, *gpus_mib: tuple[int, ...]) -> None:
        self.nodes = {
            f"n{number}": GpuNode(
                f"n{number}",
                tuple(
                    Gpu(
                        uuid=f"G{number}-{i}",
                        memory_bytes=size,
                        product="T",
                        index=i,
                        total_bytes=size + i if i else None,
                    )
                    for i, size in enumerate(sizes)
                ),
            )
            for number, sizes in enumerate(gpus_mib)
        }
        self.names = {name: [DeviceNames.UUID] for name in self.nodes}
        """Those that each node ever had and that show a GPU; the last ones may be old."""
        self.pods: dict[str, PodState] = {}
        self.given: dict[str, dict[str, str]] = {}
        """What pods that have GPUs carry of them."""
        self.owned: set[str] = set()
        self.without_sidecar: set[str] = set()
        self.told: dict[str, str] = {}
        self.warned: list[str] = []
        self.asked: Counter[str] = Counter()
        self.is_away = False
        self.may_assign = True
        self.versions: dict[str, int] = {}
        self.lists: dict[str, tuple[dict[str, str], int]] = {}
        self.with_whole_gpus: dict[str, list[str]] = {}
        self.time_s = 1_000_000.0
        self.events: list[tuple[str, PodState]] = []
        self._numbers = itertools.count(1)

    # What people, kubelets and the scheduler do.

    def create(self, need: Need, *, owned: bool = False, at_binding: bool = True) -> str:
        """Create a pod that waits for a node; it sees all GPUs where none is chosen at binding."""
        uid = f"p{next(self._numbers)}"
        if owned:
            self.owned.add(uid)
        self._write("ADDED", PodState(uid=uid, name=f"ns/{uid}", need=need, at_binding=at_binding))
        return uid

    def change(self, uid: str, **values) -> None:
        """Change a pod as it is stored."""
        self._write("MODIFIED", replace(self.pods[uid], **values))

    def delete(self, uid: str) -> None:
        """Delete a pod at once."""
        self.events.append(("DELETED", self.pods.pop(uid)))

    def relabel(self, node: str, names: DeviceNames | None) -> None:
        """Let a node's agent say which names its runtime resolves; None for an unknown label."""
        self.nodes[node] = replace(self.nodes[node], device_names=names)
        if names not in {None, DeviceNames.NONE}:
            self.names[node].append(names)

    def commit(self, uid: str, node: str, verdict: BindingVerdict) -> None:
        """Write what a binding says, where the pod is still there to be bound."""
        pod = self.pods.get(uid)
        if pod and not pod.at_binding:
            self.bind_bare(uid, node)
        elif pod and not pod.node and not pod.finished:
            self.given[uid] = dict(verdict.annotations)
            self.change(uid, node=node, uuids=_named(self.given[uid]))

    def bind_bare(self, uid: str, node: str) -> None:
        """Bind a pod as the API server does where we do not answer."""
        if uid in self.pods and not self.pods[uid].node and not self.pods[uid].finished:
            self.change(uid, node=node)

    def _write(self, kind: str, pod: PodState) -> None:
        waits = None
        if pod.places and pod.node and not pod.uuids:
            native = pod.uid not in self.without_sidecar
            waits = Waits(pod.uid in self.owned, native, self.told.get(pod.uid, ""))
        pod = replace(pod, waits=waits)
        self.pods[pod.uid] = pod
        self.versions[pod.uid] = next(self._numbers)
        self.events.append((kind, pod))

    def used(self, node: GpuNode) -> dict[str, int]:
        """Return what pods use of each GPU."""
        used = {gpu.uuid: 0 for gpu in node.gpus}
        for pod in self.pods.values():
            if pod.node == node.name and not pod.finished and pod.need:
                for uuid in pod.uuids:
                    used[uuid] += pod.need.memory_bytes
        return used

    def seen(self, node: GpuNode) -> int:
        """Return what pods use that see all of a node's GPUs: of whichever they like."""
        return sum(
            pod.need.memory_bytes
            for pod in self.pods.values()
            if pod.node == node.name and not (pod.finished or pod.at_binding) and pod.need
        )

    def fits(self, node: GpuNode, need: Need) -> bool:
        """Say whether a node has room by what its pods use, and can show it to a pod."""
        if node.device_names in {None, DeviceNames.NONE}:
            return False
        used, seen_bytes = self.used(node), self.seen(node)
        free = [gpu.memory_bytes - used[gpu.uuid] - seen_bytes for gpu in node.gpus]
        return sum(one >= need.memory_bytes for one in free) >= need.gpu_count

    # What replicas ask.

    def _turn(self, what: str) -> None:
        """Let others go first; then answer, unless the API server is away."""
        self.asked[what] += 1
        Task.pause()
        if self.is_away:
            raise KubeError("the API server is away")

    def now_s(self) -> float:
        return self.time_s

    def may(self, *_right: str) -> bool:
        self._turn("may")
        return self.may_assign

    def pod(self, _namespace: str, name: str) -> PodState | None:
        self._turn("pod")
        return self.pods.get(name)

    def stored_pod(self, name: str) -> StoredPod | None:
        self._turn("stored_pod")
        uid = name.partition("/")[2]
        return StoredPod(self.pods[uid], str(self.versions[uid])) if uid in self.pods else None

    def annotate(self, pod: StoredPod, annotations: dict[str, str | None]) -> None:
        self._turn("annotate")
        before = self._unchanged(pod)
        assert before.node, "assigned before it was bound"
        assert not before.uuids, "what was written is final"
        self.told[before.uid] = annotations[GPU_WAITS_ANNOTATION] or ""
        written = {key: value for key, value in annotations.items() if value is not None}
        if _named(written):
            self.given[before.uid] = written
        self.change(before.uid, uuids=_named(written))
        Task.pause()

    def delete_pod(self, pod: StoredPod) -> None:
        self._turn("delete_pod")
        assert self._unchanged(pod).waits, "only who waits is deleted"
        self.delete(pod.state.uid)
        Task.pause()

    def warn_of(self, pod: PodState, _reason: str, _sentence: str) -> None:
        self._turn("warn_of")
        self.warned.append(pod.uid)

    def _unchanged(self, pod: StoredPod) -> PodState:
        uid = pod.state.uid
        if uid not in self.pods:
            raise KubeError("gone", code=404)
        if str(self.versions[uid]) != pod.version:
            raise KubeError("conflict", code=409)
        return self.pods[uid]

    def node(self, name: str) -> GpuNode | None:
        self._turn("node")
        return self.nodes.get(name)

    def pods_on(self, node: str) -> list[PodState]:
        self._turn("pods_on")
        return [pod for pod in self.pods.values() if pod.node == node]

    def assignments(self, node: str) -> StoredList:
        self._turn("assignments")
        if node not in self.lists:
            return StoredList(node, {}, whole=False, version="")
        data, version = self.lists[node]
        found, whole = read_assignments(data)
        return StoredList(node, found, whole, str(version), read_whole(data))

    def store(
        self, node: str, assignments: Assignments, version: str, answer: Whole | None
    ) -> StoredList:
        self._turn("store")
        there = str(self.lists[node][1]) if node in self.lists else ""
        if there != version:
            raise KubeError("conflict", code=409)
        written = next(self._numbers)
        self.lists[node] = {**write_assignments(assignments), **write_whole(answer)}, written
        Task.pause()  # the answer is on its way
        return StoredList(node, assignments, whole=True, version=str(written), answer=answer)

    def whole_gpu_pods(self, node: str) -> list[str]:
        self._turn("whole_gpu_pods")
        return self.with_whole_gpus.get(node, [])

    def remove(self, stored: StoredList) -> None:
        self._turn("remove")
        if stored.node in self.lists and str(self.lists[stored.node][1]) == stored.version:
            del self.lists[stored.node]
        else:
            raise KubeError("conflict", code=409)


def _named(annotations: dict[str, str]) -> tuple[str, ...]:
    """Return the GPUs that annotations give a pod."""
    return tuple(filter(None, annotations.get(GPU_ANNOTATION, "").split(",")))


class _Binder(Binder):
    """Takes turns where the real one blocks."""

    def wait(self, answer: Future[BindingVerdict]) -> BindingVerdict:
        while not answer.done():
            Task.pause()
        return answer.result()


@dataclass
class Request:
    """A binding that the API server asks a replica about, and then writes."""

    uid: str
    node: str
    began_s: float
    answer: Future[BindingVerdict]
    replica: Replica

    def done(self) -> BindingVerdict:
        """Let the replica work until it answers."""
        for _ in range(PATIENCE):
            if self.answer.done():
                return self.answer.result()
            self.step()
        raise AssertionError("it never answers")

    def step(self) -> None:
        """Let the replica go on with each thing that it does, to the next request."""
        for task in [task for task in self.replica.tasks if not task.done]:
            task.step()


@dataclass
class Replica:
    """A replica and what it has heard of so far."""

    world: World
    knows: bool = True
    """Has listed the pods that are there."""
    heard: int = 0
    requests: list[Request] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)
    """What runs on its threads."""
    assigning: list[Task] = field(default_factory=list)
    """Of those, what assigns late."""

    def __post_init__(self) -> None:
        counted = PlacementMetrics(Metrics())
        self.log = RecordedLog()
        self.late_assignments = LateAssignments(
            self.world, counted, self.log, lambda: self.world.time_s
        )
        self.tracker = Tracker(
            self.world,
            counted,
            self.log,
            changed=lambda nodes: self.late_assignments.changed(nodes, self.tracker),
        )
        self.reserved: list[PodState] = []
        self.binder = _Binder(self.world, self.tracker, counted, self.reserved.append, run=self.run)
        self.tracker._on_nodes(list(self.world.nodes.values()))
        self.tracker.pods.is_listed = self.tracker.nodes.is_listed = True
        if self.knows:
            self.resync()

    def run(self, work: Callable[[], None]) -> Task:
        """Begin something that runs on a thread of its own."""
        self.tasks = [task for task in self.tasks if not task.done] + [Task(work)]
        return self.tasks[-1]

    def resync(self) -> None:
        """List again, as after a watch that was lost."""
        self.tracker._on_pods(list(self.world.pods.values()))
        self.heard = len(self.world.events)

    def hear(self) -> None:
        """Take the next event that is due."""
        if self.heard < len(self.world.events):
            self.tracker._on_pod(*self.world.events[self.heard])
            self.heard += 1

    def hear_node(self, name: str) -> None:
        """Take word of a node as it is now."""
        self.tracker._on_node("MODIFIED", self.world.nodes[name])

    def ask(self, uid: str, node: str, *, dry_run: bool = False) -> Request:
        """Let the API server ask about a binding."""
        binding = Binding("ns", uid, uid, node, {})
        verdict = self.binder.from_memory(binding)
        if verdict is None:
            answer = self.binder.bind(binding, dry_run=dry_run)
        else:
            answer = Future()
            answer.set_result(verdict)
        self.requests.append(Request(uid, node, self.world.time_s, answer, self))
        return self.requests[-1]

    def tidy(self, node: str, *, fresh: bool) -> Task:
        """Begin to tidy a node's list."""

        def run() -> None:
            with contextlib.suppress(KubeError):
                self.binder.tidy(node, self.world.assignments(node) if fresh else None)

        return self.run(run)

    def answer_question(self, node: str, asked: str) -> Task:
        """Begin to answer which pods with whole GPUs run on a node."""
        tidying = Tidying(self.world, self.log)
        return self.run(lambda: tidying.answer(self.binder, Question(node, asked)))

    def tidy_now(self, node: str, *, fresh: bool = True) -> None:
        """Tidy a node's list with nobody else around."""
        self.finish(self.tidy(node, fresh=fresh))

    def late(self) -> Task:
        """Begin to assign late."""
        waiting = {node: self.tracker.waiting(node) for node in self.tracker.waited_on()}
        self.assigning.append(self.run(lambda: self.late_assignments.attempt(self.binder, waiting)))
        return self.assigning[-1]

    def is_late(self) -> bool:
        """Say whether something is being assigned late."""
        return any(not task.done for task in self.assigning)

    def late_now(self) -> None:
        """Assign late with nobody else around."""
        self.finish(self.late())

    def finish(self, task: Task) -> None:
        """Work until something is done."""
        for _ in range(PATIENCE):
            for one in [one for one in self.tasks if not one.done]:
                one.step()
            if task.done:
                return
        raise AssertionError("it never ends")

    def end(self) -> None:
        """End in the middle of everything."""
        for task in self.tasks:
            task.end()
        self.requests, self.tasks, self.assigning = [], [], []

    def answer(self, request: Request, *, arrives: bool) -> None:
        """Let the API server act on an answer, unless it gave the request up."""
        self.requests.remove(request)
        verdict = request.answer.result()
        in_time = self.world.time_s - request.began_s < REQUEST_S
        if verdict.allowed and arrives and in_time:
            self.world.commit(request.uid, request.node, verdict)
