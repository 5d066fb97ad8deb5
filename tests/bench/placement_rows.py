"""Figures for one row of the `placement` tables; each row has its own process."""

from __future__ import annotations

import gc
import io
import json
import sys
from functools import partial
from statistics import median

from tests.bench.lists import resident_mib
from tests.bench.stored_cluster import GIB, NAMESPACE, StoredCluster, event, uid
from webhook.adapters.kube import client
from webhook.adapters.kube.placement import PlacementApi
from webhook.core.placement.binding_review import Binding, BindingOutcome, BindingVerdict
from webhook.server.log import JsonLog
from webhook.server.metrics import Metrics, PlacementMetrics
from webhook.server.placement.assignment_gc import AssignmentGC
from webhook.server.placement.assignment_lists import AssignmentLists
from webhook.server.placement.binder import Binder, UndecidedBinding
from webhook.server.placement.late_assigner import ANNOTATE_EVERY_S, LateAssigner
from webhook.server.placement.maintenance import ListMaintenance
from webhook.server.placement.tracker import Tracker
from webhook.server.placement.whole_gpu_answers import WholeGpuAnswers

ROUNDS = 5
LOG = JsonLog(io.BytesIO())


class Replica:
    """The components of `PlacementService`, without threads."""

    def __init__(self, cluster: StoredCluster) -> None:
        self.api = PlacementApi(cluster.kube(), NAMESPACE)
        counted = PlacementMetrics(Metrics())
        self.clock_s = 0.0
        self.late = LateAssigner(self.api, counted, LOG, lambda: self.clock_s)
        self.tracker = Tracker(
            self.api, counted, LOG, self._ended, self.late.on_pending, self._forget, self._changed
        )
        self.lists = AssignmentLists(
            self.api, self.tracker, counted, self.late.on_pending, run=lambda work: work()
        )
        self.binder = Binder(self.api, self.tracker, self.lists)
        self.gc = AssignmentGC(self.api, self.tracker, self.lists)
        self.maintenance = ListMaintenance(
            self.api, LOG, self.lists, self.gc, WholeGpuAnswers(self.api, self.lists)
        )

    def _ended(self, pod):
        self.maintenance.on_ended(pod)
        self.late.on_ended(pod, self.tracker)

    def _forget(self, node):
        self.lists.forget(node)

    def _changed(self, nodes):
        self.late.on_nodes_changed(nodes, self.tracker)

    def list_all(self):
        """Read all pods and nodes, as at start."""
        for collection, take, listed in (
            (self.api.nodes, self.tracker._on_nodes, "nodes"),
            (self.api.pods, self.tracker._on_pods, "pods"),
        ):
            take(collection.read()[0])
            getattr(self.tracker, listed).is_listed = True

    def hear_pod(self, line: bytearray) -> None:
        """Process a line from the watch of pods."""
        kind, thing = client._read_event(line, complete=True)
        self.tracker._on_pod(kind, self.api.pods.project(thing))

    def hear_node(self, line: bytearray) -> None:
        """Process a line from the watch of nodes."""
        kind, thing = client._read_event(line, complete=True)
        self.tracker._on_node(kind, self.api.nodes.project(thing))

    def bind(self, binding: Binding):
        found = self.binder.decide_from_memory(binding)
        return self.binder.bind(found).result() if isinstance(found, UndecidedBinding) else found

    def ends(self, line: bytearray) -> None:
        """Process the line of a pod that ended, and assign its GPU to waiting pods."""
        self.hear_pod(line)
        self.assign_late()

    def assign_late(self) -> None:
        """Run the work of the thread for late assignments once."""
        self.clock_s += 1
        due = self.late._wait_for_nodes(self.clock_s)
        self.late.assign(self.lists, {node: self.tracker.pending_pods(node) for node in due})


def measured(nodes: int, pods: int) -> list[float]:
    cluster = StoredCluster(nodes, pods)
    replica = Replica(cluster)
    list_s = cluster.timed(replica.list_all)
    for number in range(nodes):  # so that each list has been read
        replica.hear_pod(event("ADDED", cluster.pod_text(pods + number, bound=False)))
        replica.bind(_binding(pods + number, number))
    round_s = cluster.timed(replica.maintenance.collect_all)
    gc.collect()
    memory_mib = resident_mib()
    first = pods + nodes
    many = min(100, nodes)

    def newcomers(start):
        for number in range(start, start + many):
            replica.hear_pod(event("ADDED", cluster.pod_text(number, bound=False)))
        return [_binding(number, number % nodes) for number in range(start, start + many)]

    def binding(start):
        bindings = newcomers(start)

        def run():
            for binding in bindings:
                assert replica.bind(binding).outcome is BindingOutcome.PLACED

        return run, many

    def stranger(start):
        some = [Binding("team", f"x{n}", f"x{n}", "plain", {}) for n in range(start, start + many)]

        def run():
            for item in some:
                assert isinstance(replica.binder.decide_from_memory(item), BindingVerdict)

        return run, many

    def events(make, hear):
        def prepare(start):
            lines = [make(number) for number in range(start, start + many)]

            def run():
                for line in lines:
                    hear(line)

            return run, many

        return prepare

    def ended(start):
        numbers = [(start + n) % pods for n in range(min(many, pods // ROUNDS))]
        lines = [event("MODIFIED", cluster.pod_text(n, phase="Succeeded")) for n in numbers]

        def run():
            for line in lines:
                replica.hear_pod(line)
                for node in replica.lists.nodes_with_entries(
                    [replica.maintenance._events.get_nowait()]
                ):
                    replica.gc.collect(node)

        return run, len(lines)

    node = events(lambda n: event("MODIFIED", cluster.node_text(n % nodes)), replica.hear_node)
    pod = events(lambda n: event("MODIFIED", cluster.pod_text(n % pods)), replica.hear_pod)
    figures = [_median_us(cluster, item, first) for item in (stranger, binding, node, pod)]
    figures.append(_median_us(cluster, ended, 0, min(many, pods // ROUNDS)))
    rounded = [round(figure, 1) for figure in figures]
    run, times = binding(first + ROUNDS * 200)
    cluster.counted.clear()
    run()
    rounded.insert(2, cluster.counted.total() / times)
    return [round(memory_mib), round(list_s * 1e3), *rounded, round(round_s * 1e3)]


def crowded(_nodes: int, pods: int) -> list[float]:
    """Return the figures of a node with this many pods."""
    cluster = StoredCluster(1, pods)
    replica = Replica(cluster)
    replica.list_all()

    def binding(start):
        bindings = []
        for number in range(start, start + 8):
            replica.hear_pod(event("ADDED", cluster.pod_text(number, bound=False)))
            bindings.append(_binding(number, 0))

        def run():
            for binding in bindings:
                assert replica.bind(binding).outcome is BindingOutcome.PLACED

        return run, 8

    us = _median_us(cluster, binding, pods, 8)
    return [round(us), len(next(iter(cluster.lists.values()))["data"]["assignments"])]


def waiting(_nodes: int, many: int) -> list[float]:
    """Return the cost of a pod's end on a node with this many waiting pods."""
    cluster = StoredCluster(1, 8 + ROUNDS + many, gpu_bytes=GIB, waiting=many)
    replica = Replica(cluster)
    replica.list_all()
    replica.assign_late()
    took_s, asked = [], []
    for number in range(ROUNDS):
        cluster.counted.clear()
        line = event("MODIFIED", cluster.pod_text(number, phase="Succeeded"))
        replica.clock_s += ANNOTATE_EVERY_S
        took_s.append(cluster.timed(partial(replica.ends, line)))
        asked.append(dict(cluster.counted))
    reads = sum(n for each in asked for what, n in each.items() if what.startswith("GET"))
    writes = sum(n for each in asked for what, n in each.items() if not what.startswith("GET"))
    return [round(median(took_s) * 1e3, 1), round(reads / ROUNDS, 1), round(writes / ROUNDS, 1)]


def _binding(number: int, node: int) -> Binding:
    return Binding("team", f"train-{number}", uid(number), f"n{node}", {})


def _median_us(cluster, prepare, first: int, step: int = 200) -> float:
    """Return the median duration of the calls that `prepare` returns for successive objects."""
    found = []
    for number in range(ROUNDS):
        run, many = prepare(first + number * step)
        gc.collect()
        found.append(cluster.timed(run) / many * 1e6)
    return median(found)


if __name__ == "__main__":
    name, *numbers = sys.argv[1:]
    print(json.dumps(globals()[name](*map(int, numbers))))
