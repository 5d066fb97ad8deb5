"""Replicas that place pods on an in-memory API server, taking steps one at a time.

Before each request to the API server, any other replica may take steps. The replicas run the real
`Binder`, `AssignmentLists`, `Tracker` and client. A test decides when they see watch events.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tests.support.api_server import ApiServer, merged
from tests.support.pods import a_policy, a_rule
from tests.support.recorded_log import RecordedLog
from webhook.adapters.kube.errors import KubeError
from webhook.adapters.kube.placement import GpuNode, PlacementApi, Question
from webhook.core.admission.sidecar.container import LIMIT_VARIABLE
from webhook.core.node.inventory import Inventory, TrackedGpu
from webhook.core.node.state import build_desired_state
from webhook.core.nvidia.variables import CHOSEN_PATH, VISIBLE_DEVICES_ENV, DeviceNames
from webhook.core.placement.assignment_codec import config_map_name, read_assignments
from webhook.core.placement.assignments import Assignments
from webhook.core.placement.binding_review import Binding, BindingVerdict
from webhook.core.placement.cap_terms import CapTerms
from webhook.core.placement.pod_state import PodState, terms_by_rule
from webhook.core.pod.gpus import Gpu
from webhook.core.pod.quantity import MIB
from webhook.core.policy.cluster import UNKNOWN_CLUSTER
from webhook.core.policy.model import DriverLimit, EnforceBy, Policy
from webhook.names import (
    ADMITTED_ANNOTATION,
    ASSIGNMENTS_NODE_ANNOTATION,
    BINDING_ANNOTATIONS,
    CAP_BYTES_ENV,
    ENFORCER_COMMAND,
    ENFORCER_CONTAINER,
    GPU_COUNT_ANNOTATION,
    GPU_MEMORY_ANNOTATION,
    GPU_WAITS_ANNOTATION,
    MANAGED_LABEL,
    NODE_DEVICE_NAMES_LABEL,
    NODE_DRIVER_LIMIT_LABEL,
    NODE_SENTRY_LABEL,
    NODE_SHARING_ANNOTATION,
    VRAM_RESOURCE,
)
from webhook.server.metrics import Metrics, PlacementMetrics
from webhook.server.placement.assignment_gc import AssignmentGC
from webhook.server.placement.assignment_lists import AssignmentLists
from webhook.server.placement.binder import Binder, UndecidedBinding
from webhook.server.placement.late_assigner import LateAssigner
from webhook.server.placement.tracker import Tracker
from webhook.server.placement.whole_gpu_answers import WholeGpuAnswers

T = TypeVar("T")

PATIENCE = 10_000
"""Number of steps after which a task is assumed to run forever."""

REQUEST_S = 60.0
"""Request timeout of the API server (`--request-timeout`), in seconds."""


class EndedError(BaseException):
    """The replica ended in the middle of a task."""


class Task:
    """Runs a function on a separate thread, from one request to the next."""

    _local = threading.local()
    pauses = 0
    """Number of pauses of all tasks."""

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
        """Continue to the next request or to the end; return True at the end."""
        if not self.done:
            self._go.release()
            self._back.acquire()
        if self.error:
            raise self.error
        return self.done

    def end(self) -> None:
        """End the task at its next request, which then never returns."""
        self._ended = True
        while not self.done:
            self.step()

    @classmethod
    def pause(cls) -> None:
        """Pause the current task, if any, so that other tasks can run."""
        task = getattr(cls._local, "task", None)
        if task is None:
            return
        cls.pauses += 1
        task._back.release()
        task._go.acquire()
        if task._ended:
            raise EndedError


PODS = "/api/v1/namespaces/ns/pods"
NODES = "/api/v1/nodes"
LISTS = "/api/v1/namespaces/sys/configmaps"

LIST_PODS, READ_POD, ANNOTATE = "GET /api/v1/pods", f"GET {PODS}/", f"PATCH {PODS}/"
LIST_ON_NODE = f"{LIST_PODS}.*spec.nodeName"
READ_LIST, WRITE_LIST = "GET .*/configmaps/", "(POST|PUT) .*/configmaps"
ASK_FOR_A_RIGHT = "POST .*/selfsubjectaccessreviews"
SILENT = "http://in-memory does not answer: the connection broke"
"""Error message while the API server breaks every connection."""


def list_path(node: str) -> str:
    return f"{LISTS}/{config_map_name(node)}"


def policy_with(**enforcement: str) -> Policy:
    """Return a policy with one rule per enforcer, named after the enforcer."""
    return a_policy(
        *(a_rule(name=by.lower(), enforcement={"by": by, **enforcement}) for by in EnforceBy)
    )


class World(ApiServer):
    """State that the API server stores, and the actions of users, kubelets and the scheduler."""

    def __init__(self, *gpus_mib: tuple[int, ...]) -> None:
        super().__init__()
        self.time_s = 1_000_000.0
        self.now_s = lambda: self.time_s
        self.names: dict[str, list[DeviceNames]] = {}
        """Usable device names that each node has had, keyed by node; the last may be outdated."""
        self.policy, self.cluster = policy_with(grace="5s"), UNKNOWN_CLUSTER
        self.replicas: list[Replica] = []
        self._api = self.placement_api()
        self._kept: dict[str, Any] = {}
        self._numbers = itertools.count(1)
        for number, sizes in enumerate(gpus_mib):
            self.put_node(f"n{number}", *sizes)

    def placement_api(self) -> PlacementApi:
        return PlacementApi(self.kube(now_s=lambda: self.time_s), "sys")

    def answer(self, request: Any, handler: Any = None) -> Any:
        """Pause before each request, and again before the response to a write returns."""
        Task.pause()
        uid = re.match(f"(PATCH|DELETE) {PODS}/([^/]*)", f"{request.method} {request.path}")
        before = self.pods.get(uid[2]) if uid else None
        found = super().answer(request, handler)
        if before and found and found[0] == 200:
            assert before.pending, "only who is bound and waits for GPUs is annotated or deleted"
        if request.method != "GET":
            Task.pause()
        return found

    # Actions of users, kubelets and the scheduler.

    def put_node(self, name: str, *mib: int, healthy: bool = True) -> None:
        """Store a node with GPUs of these sizes and an acting sentry, as its agent writes it."""
        gpus = (
            Gpu(
                uuid=f"G{name[1:]}-{i}",
                memory_bytes=size * MIB,
                product="T",
                index=i,
                total_bytes=(size + i) * MIB if i else None,
                healthy=healthy,
            )
            for i, size in enumerate(mib)
        )
        inventory = Inventory(tracked=tuple(map(TrackedGpu, gpus)), advertised=True)
        shown = build_desired_state(inventory, sentry_acts=True)
        metadata = {"labels": shown.labels, "annotations": shown.annotations}
        self.put(f"{NODES}/{name}", merged({}, {"metadata": metadata}))
        self.relabel(name, DeviceNames.UUID)

    def relabel(self, node: str, names: DeviceNames | None) -> None:
        """Write the device names that a node's runtime resolves; None for an unknown label."""
        label = {NODE_DEVICE_NAMES_LABEL: "of-the-future" if names is None else names.value}
        self.edit(f"{NODES}/{node}", metadata={"labels": label})
        if names not in {None, DeviceNames.NONE}:
            self.names.setdefault(node, []).append(names)

    def limit(self, node: str, *, proven: bool) -> None:
        """Write whether a node's driver enforces caps."""
        label = {NODE_DRIVER_LIMIT_LABEL: "true" if proven else None}
        self.edit(f"{NODES}/{node}", metadata={"labels": label})

    def guard(self, node: str, *, acts: bool) -> None:
        label = {NODE_SENTRY_LABEL: "true" if acts else None}
        self.edit(f"{NODES}/{node}", metadata={"labels": label})

    def hold(self, node: str, why: str | None) -> None:
        """Write why a node gives no GPUs to further pods; None if it gives them."""
        self.edit(
            f"{NODES}/{node}",
            metadata={"annotations": {NODE_SHARING_ANNOTATION: why and f"Draining: {why}"}},
        )

    def remove_nodes(self) -> None:
        for name in self.nodes:
            self.remove(f"{NODES}/{name}")

    def create(
        self,
        mib: int | None,
        count: int = 1,
        *,
        owned: bool = False,
        at_binding: bool = True,
        by: EnforceBy = EnforceBy.SIDECAR,
        limit: DriverLimit = DriverLimit.OFF,
    ) -> str:
        """Create a pod that waits for a node. Unless `at_binding`, the pod sees all GPUs.

        `owned` means that the pod has a controller, `by` is the enforcer in its rule, and `limit`
        the driver limit of its sidecar.
        """
        uid = f"p{next(self._numbers)}"
        main: dict[str, Any] = {"name": "main"}
        annotations = {}
        if mib:
            annotations = {GPU_MEMORY_ANNOTATION: f"{mib}Mi", GPU_COUNT_ANNOTATION: str(count)}
            amounts = {VRAM_RESOURCE: f"{mib * count}Mi"}
            main["resources"] = {"requests": amounts, "limits": amounts}
        if at_binding:
            source = {"fieldRef": {"fieldPath": CHOSEN_PATH}}
            main["env"] = [{"name": VISIBLE_DEVICES_ENV, "valueFrom": source}]
        annotations[ADMITTED_ANNOTATION] = f"v1 {by.lower()} 0123456789ab"
        spec: dict[str, Any] = {"containers": [main], "nodeSelector": {}}
        if by is EnforceBy.SIDECAR:
            env = [{"name": CAP_BYTES_ENV, "value": str((mib or 0) * MIB)}]
            env += [LIMIT_VARIABLE] if limit is not DriverLimit.OFF else []
            sidecar = {"name": ENFORCER_CONTAINER, "command": list(ENFORCER_COMMAND), "env": env}
            spec["initContainers"] = [sidecar | {"restartPolicy": "Always"}]
            if limit is DriverLimit.REQUIRE:
                spec["nodeSelector"] = {NODE_DRIVER_LIMIT_LABEL: "true"}
        metadata = {
            "uid": uid,
            "labels": {MANAGED_LABEL: "true"},
            "annotations": annotations,
            "ownerReferences": [{"controller": True}] if owned else [],
        }
        self.put(f"{PODS}/{uid}", {"metadata": metadata, "spec": spec})
        return uid

    def by(self, uid: str) -> EnforceBy:
        """Return the enforcer of a pod, which is the name of its rule."""
        return EnforceBy(self._annotations(uid)[ADMITTED_ANNOTATION].split(" ")[1].capitalize())

    def requires_limit(self, uid: str) -> bool:
        """Return True if a pod only runs on nodes whose driver enforces caps."""
        return bool(self.objects[f"{PODS}/{uid}"]["spec"]["nodeSelector"])

    def change(self, uid: str, **patch: Any) -> None:
        """Change a stored pod with a merge patch."""
        self.edit(f"{PODS}/{uid}", **patch)

    def annotate(self, uid: str, **annotations: str) -> None:
        """Write annotations with vramwarden's prefix on a pod."""
        ours = {
            f"vramwarden.io/{key.replace('_', '-')}": annotation
            for key, annotation in annotations.items()
        }
        self.change(uid, metadata={"annotations": ours})

    def finish(self, uid: str) -> None:
        self.change(uid, status={"phase": "Succeeded"})

    def label(self, uid: str, managed: str | None) -> None:
        """Set or remove a pod's label `managed`; watches report the removal as a deletion."""
        self.change(uid, metadata={"labels": {MANAGED_LABEL: managed}})

    def delete(self, uid: str) -> None:
        self.remove(f"{PODS}/{uid}")

    def edit(self, path: str, **patch: Any) -> None:
        """Change a stored object with a merge patch."""
        self.put(path, merged(self.objects[path], patch))

    def commit(self, uid: str, node: str, annotations: dict[str, str]) -> None:
        """Bind a pod with the annotations of its Binding, if the pod exists and is not bound."""
        pod = self.pods.get(uid)
        if pod and not pod.node and not pod.finished:
            self.change(uid, metadata={"annotations": annotations}, spec={"nodeName": node})

    def bind_bare(self, uid: str, node: str) -> None:
        """Bind a pod like the API server does if no replica answers."""
        self.commit(uid, node, {})

    def spoil(self, node: str, assignments: str = "{") -> None:
        """Overwrite a node's assignment list."""
        self.edit(list_path(node), data={"assignments": assignments})

    def lose_list(self, node: str, *, spoilt: bool) -> None:
        """Overwrite or delete a node's assignment list, if it exists."""
        if node in self.lists and spoilt:
            self.spoil(node)
        elif node in self.lists:
            self.remove(list_path(node))

    # Events that all replicas see.

    def resync(self) -> None:
        """Make all replicas list the pods again."""
        for replica in self.replicas:
            replica.resync()

    def hear_node(self) -> None:
        """Make all replicas see the current state of the first node."""
        for replica in self.replicas:
            replica.hear_node()

    # Stored state.

    @property
    def pods(self) -> dict[str, PodState]:
        return self._stored(PODS, self._api.pods.project)

    @property
    def nodes(self) -> dict[str, GpuNode]:
        return self._stored(NODES, self._api.nodes.project)

    @property
    def lists(self) -> dict[str, Any]:
        """ConfigMaps with assignment lists, keyed by node."""
        return {
            item["metadata"]["annotations"][ASSIGNMENTS_NODE_ANNOTATION]: item
            for path, item in self.objects.items()
            if path.startswith(LISTS)
        }

    def _stored(self, under: str, keep: Callable[[Any], Any]) -> dict[str, Any]:
        found = {}
        for path, stored in self.objects.items():
            folder, _, name = path.rpartition("/")
            if folder == under:
                version = stored["metadata"]["resourceVersion"]  # unique across objects
                if version not in self._kept:
                    self._kept[version] = keep(stored)
                found[name] = self._kept[version]
        return found

    def data(self, node: str) -> dict[str, str]:
        """Return the stored data of a node's assignment list."""
        return self.objects.get(list_path(node), {}).get("data", {})

    def assignments(self, node: str) -> Assignments:
        """Return the assignments in a node's list."""
        return read_assignments(self.data(node))[0]

    def told(self, uid: str) -> str:
        """Return the reason why a pod is pending, from its annotation."""
        return self._annotations(uid).get(GPU_WAITS_ANNOTATION, "")

    def given(self, uid: str) -> dict[str, str]:
        """Return the annotations that give a pod its GPUs."""
        found = self._annotations(uid)
        return {key: found[key] for key in BINDING_ANNOTATIONS if key in found}

    def _annotations(self, uid: str) -> dict[str, str]:
        return self.objects[f"{PODS}/{uid}"]["metadata"].get("annotations") or {}

    def count(self, pattern: str = "") -> int:
        """Count the requests since `asked` was cleared whose method and URL match the pattern."""
        return sum(
            bool(re.match(pattern, f"{request.method} {request.url}")) for request in self.asked
        )

    def used(self, node: GpuNode) -> dict[str, int]:
        """Return the memory that pods use on each GPU."""
        used = {gpu.uuid: 0 for gpu in node.gpus}
        for pod in self.pods.values():
            if pod.node == node.name and not pod.finished and pod.need:
                for uuid in pod.uuids:
                    used[uuid] += pod.need.memory_bytes
        return used

    def fits(self, node: GpuNode, pod: PodState) -> bool:
        """Return True if a node has free capacity for a pod and can show the pod its GPUs.

        A pod that sees all GPUs may use any of them. GPUs that are reserved for a pending pod stay
        reserved, even while the node lacks the limit that the pod requires.
        """
        is_without = pod.limit is DriverLimit.REQUIRE and not node.driver_limit
        if node.device_names in {None, DeviceNames.NONE} or is_without:
            return False
        used_bytes = self.used(node)
        seen_bytes = sum(
            pod.need.memory_bytes
            for pod in self.pods.values()
            if pod.node == node.name and not (pod.finished or pod.at_binding) and pod.need
        )
        for uid, entry in self.assignments(node.name).items():
            one = self.pods.get(uid)
            if one and one.pending and one.limit is DriverLimit.REQUIRE and one is not pod:
                for uuid in entry.uuids:
                    used_bytes[uuid] += entry.memory_bytes
        free = [gpu.memory_bytes - used_bytes[gpu.uuid] - seen_bytes for gpu in node.gpus]
        return sum(item >= pod.need.memory_bytes for item in free) >= pod.need.gpu_count


class _Lists(AssignmentLists):
    """Pauses the task instead of blocking the thread."""

    def wait(self, answer: Future[T]) -> T:
        while not answer.done():
            Task.pause()
        return answer.result()


@dataclass
class Request:
    """A binding that the API server sent to a replica."""

    uid: str
    node: str
    began_s: float
    answer: Future[BindingVerdict]
    replica: Replica

    def done(self) -> BindingVerdict:
        """Step the replica until it answers; return the verdict."""
        for _ in range(PATIENCE):
            if self.answer.done():
                return self.answer.result()
            self.step()
        raise AssertionError("it never answers")

    def step(self) -> None:
        """Step each of the replica's tasks to its next request."""
        for task in [task for task in self.replica.tasks if not task.done]:
            task.step()


@dataclass
class Replica:
    """A replica, and the watch events that it has seen."""

    world: World
    knows: bool = True
    """True if the replica has listed the pods."""
    requests: list[Request] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)
    """Tasks on the replica's threads."""
    assigning: list[Task] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.world.replicas.append(self)
        counted = PlacementMetrics(Metrics())
        self.log = RecordedLog()
        self.api = self.world.placement_api()
        self.late_assigner = LateAssigner(self.api, counted, self.log, lambda: self.world.time_s)
        self.tracker = Tracker(
            self.api,
            counted,
            self.log,
            on_nodes_changed=lambda nodes: self.late_assigner.on_nodes_changed(nodes, self.tracker),
        )
        self.reserved: list[PodState] = []
        self.lists = _Lists(
            self.api, self.tracker, counted, self.reserved.append, self.run, self._find_terms
        )
        self.binder = Binder(self.api, self.tracker, self.lists)
        self.gc = AssignmentGC(self.api, self.tracker, self.lists, self._find_terms)
        self.due: deque[tuple[str, Any]] = deque()
        """Next events of the replica's watch of pods."""
        self.tracker.pods.is_listed = self.tracker.nodes.is_listed = True
        self.hear_nodes()
        if self.knows:
            self.resync()

    def _find_terms(self, pod: PodState) -> CapTerms | None:
        return terms_by_rule(pod, self.world.policy, self.world.cluster)

    def run(self, work: Callable[[], None]) -> Task:
        self.tasks = [task for task in self.tasks if not task.done] + [Task(work)]
        return self.tasks[-1]

    def resync(self) -> None:
        """List the pods again, as after a lost watch."""
        pods, self.version = self.api.pods.read()
        self.tracker._on_pods(pods)
        self.due.clear()

    def hear(self) -> bool:
        """Apply the next watch event; return False if there is none."""
        if not self.due:
            events = self.api.pods.watch(self.version, 60)
            self.due.extend((kind, pod) for kind, pod in events if kind != "BOOKMARK")
        if not self.due:
            return False
        kind, pod = self.due.popleft()
        self.version = pod["metadata"]["resourceVersion"]
        self.tracker._on_pod(kind, self.api.pods.project(pod))
        return True

    def hear_node(self, name: str = "n0") -> None:
        self.tracker._on_node("MODIFIED", self.world.nodes[name])

    def hear_nodes(self) -> None:
        self.tracker._on_nodes(list(self.world.nodes.values()))

    def ask(self, uid: str, node: str = "n0", *, dry_run: bool = False) -> Request:
        binding = Binding("ns", uid, uid, node, {})
        found = self.binder.decide_from_memory(binding)
        if isinstance(found, UndecidedBinding):
            answer = self.binder.bind(found, dry_run=dry_run)
        else:
            answer = Future()
            answer.set_result(found)
        self.requests.append(Request(uid, node, self.world.time_s, answer, self))
        return self.requests[-1]

    def bind(self, uid: str, node: str = "n0", *, arrives: bool = True) -> BindingVerdict:
        """Bind a pod while no other replica works; return the verdict."""
        request = self.ask(uid, node)
        verdict = request.done()
        self.answer(request, arrives=arrives)
        return verdict

    def tidy(self, node: str, *, fresh: bool) -> Task:
        """Start garbage collection of a node's list."""

        def run() -> None:
            with contextlib.suppress(KubeError):
                self.gc.collect(node, self.api.read_list(node) if fresh else None)

        return self.run(run)

    def answer_question(self, node: str, asked: str) -> Task:
        """Start to answer which pods with whole GPUs run on a node."""
        answers = WholeGpuAnswers(self.api, self.lists)
        return self.run(lambda: answers.answer(Question(node, asked)))

    def tidy_now(self, node: str = "n0", *, fresh: bool = True) -> None:
        """Collect garbage in a node's list while no other replica works."""
        self.finish(self.tidy(node, fresh=fresh))

    def late(self) -> Task:
        """Start a late assignment."""
        waiting = {
            node: self.tracker.pending_pods(node) for node in self.tracker.nodes_with_pending()
        }
        self.assigning.append(self.run(lambda: self.late_assigner.assign(self.lists, waiting)))
        return self.assigning[-1]

    def is_late(self) -> bool:
        """Return True if a late assignment is in progress."""
        return any(not task.done for task in self.assigning)

    def late_now(self) -> None:
        """Assign late while no other replica works."""
        self.finish(self.late())

    def finish(self, task: Task) -> None:
        for _ in range(PATIENCE):
            for item in [task for task in self.tasks if not task.done]:
                item.step()
            if task.done:
                return
        raise AssertionError("it never ends")

    def end(self) -> None:
        """End the replica in the middle of all tasks."""
        for task in self.tasks:
            task.end()
        self.requests, self.tasks, self.assigning = [], [], []

    def answer(self, request: Request, *, arrives: bool) -> None:
        """Apply a response like the API server, unless the request timed out."""
        self.requests.remove(request)
        verdict = request.answer.result()
        in_time = self.world.time_s - request.began_s < REQUEST_S
        if verdict.allowed and arrives and in_time:
            self.world.commit(request.uid, request.node, dict(verdict.annotations))
