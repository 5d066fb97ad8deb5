"""Law: in any order of events no GPU is overcommitted, and all pods that fit are bound in the end.

Between two steps of a replica anything may happen: other bindings, deletions, restarts, lost lists,
late watches, lost answers, and pods that are bound without vramwarden and assigned late. Nodes get
other device names, and their drivers start or stop to enforce caps. Pods have each enforcer, and
the policy changes. Some pods see all GPUs of their node: they are never denied, and all of them
have entries in the end.
"""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.server.placement.interleaving import Replica, World, policy_with
from webhook.core.nvidia.variables import DeviceNames, format_visible_devices
from webhook.core.placement.binding_review import BindingOutcome
from webhook.core.placement.garbage import UNBOUND_S
from webhook.core.pod.gpus import EVERY_GPU
from webhook.core.policy.model import DriverLimit, EnforceBy
from webhook.names import (
    DRIVER_LIMIT_ANNOTATION,
    GPU_ANNOTATION,
    GPU_MEMORY_FRACTION_ANNOTATION,
    VISIBLE_DEVICES_ANNOTATION,
)

NEEDS = st.tuples(st.integers(3, 9), st.sampled_from([1, 1, 1, 2]))
NODES = st.lists(st.lists(st.integers(8, 10), min_size=1, max_size=2), min_size=1, max_size=2)
AT_ONCE = 6
NAMES = [DeviceNames.RUNTIME, DeviceNames.NONE, DeviceNames.UUID, None]
PAUSES_S = (1, 20, 50, 70, UNBOUND_S + 5)


def pick(things, number):
    things = list(things)
    return things[number % len(things)] if things else None


class Story:
    """Actions that may happen. Each has three numbers that select its objects."""

    def __init__(self, sizes, needs):
        self.world = World(*map(tuple, sizes))
        self.needs = needs
        for number, need in enumerate(needs):
            owned, limit = bool(number % 2), pick(DriverLimit, number)
            by = {2: EnforceBy.SENTRY, 3: EnforceBy.NONE}.get(number, EnforceBy.SIDECAR)
            self.world.create(*need, owned=owned, at_binding=number != 1, by=by, limit=limit)
        self.replicas = [Replica(self.world), Replica(self.world)]
        self.checked = set()
        self.terms = {}
        """Terms keyed by node and pod, once the pod has GPUs there."""

    def tasks(self):
        return [task for replica in self.replicas for task in replica.tasks if not task.done]

    def create(self, need, owned, seeing):
        how = {"at_binding": bool(seeing % 4), "limit": pick(DriverLimit, seeing)}
        how["by"] = pick(EnforceBy, seeing // 12)
        self.world.create(*pick(self.needs, need), owned=bool(owned % 2), **how)

    def change_policy(self, grace_s, *_):
        self.world.policy = policy_with(grace=f"{grace_s}s")

    def ask(self, pod, node, replica):
        waiting = [uid for uid, pod in self.world.pods.items() if not pod.node]
        asked = [request for replica in self.replicas for request in replica.requests]
        if waiting and len(asked) < AT_ONCE:
            pick(self.replicas, replica).ask(pick(waiting, pod), pick(self.world.nodes, node))

    def bare(self, pod, node, *_):
        """Bind a pod like the API server after a timeout or while no replica is running.

        Tasks for that pod continue, and their answers are ignored.
        """
        asked = [request for replica in self.replicas for request in replica.requests]
        waiting = [(uid, "") for uid, pod in self.world.pods.items() if not pod.node]
        uid, on = pick(
            [(request.uid, request.node) for request in asked] or waiting or [("", "")], pod
        )
        self.world.bind_bare(uid, on or pick(self.world.nodes, node))
        for replica in self.replicas:
            replica.requests = [request for request in replica.requests if request.uid != uid]

    def late(self, replica, *_):
        if len(self.tasks()) < AT_ONCE:
            pick(self.replicas, replica).late()

    def work(self, which, steps, *_):
        task = pick(self.tasks(), which)
        for _ in range(steps % 3 + 1):
            if task:
                task.step()

    def answer(self, which, lost, *_):
        done = [
            (replica, request)
            for replica in self.replicas
            for request in replica.requests
            if request.answer.done()
        ]
        if done:
            replica, request = pick(done, which)
            pod = self.world.pods.get(request.uid)
            assert not pod or pod.at_binding or request.answer.result().allowed
            replica.answer(request, arrives=bool(lost % 5))

    def delete(self, pod, *_):
        uid = pick(self.world.pods, pod)
        if uid:
            self.world.delete(uid)

    def finish(self, pod, *_):
        uid = pick([uid for uid, pod in self.world.pods.items() if pod.node], pod)
        if uid:
            self.world.finish(uid)

    def unlabel(self, pod, *_):
        """Remove a pod's label, which watches report as a deletion, and set the label again."""
        uid = pick(self.world.pods, pod)
        if uid:
            self.world.label(uid, None)
            self.world.label(uid, "true")

    def hear(self, replica, events, node):
        for _ in range(events % 5 + 1):
            pick(self.replicas, replica).hear()
        pick(self.replicas, replica).hear_node(pick(self.world.nodes, node))

    def relabel(self, node, names, *_):
        self.world.relabel(pick(self.world.nodes, node), pick(NAMES, names))

    def limit(self, node, proven, *_):
        self.world.limit(pick(self.world.nodes, node), proven=bool(proven % 2))

    def resync(self, replica, *_):
        pick(self.replicas, replica).resync()

    def restart(self, replica, *_):
        number = replica % len(self.replicas)
        self.replicas[number].end()
        self.replicas[number] = Replica(self.world)

    def tidy(self, replica, node, fresh):
        if len(self.tasks()) < AT_ONCE:
            pick(self.replicas, replica).tidy(pick(self.world.nodes, node), fresh=bool(fresh % 2))

    def wait(self, seconds, *_):
        self.world.time_s += pick(PAUSES_S, seconds)

    def lose_list(self, node, spoilt, *_):
        """Delete or overwrite a list while no binding is in progress."""
        if not any(replica.requests or replica.is_late() for replica in self.replicas):
            name = pick(self.world.nodes, node)
            self.world.lose_list(name, spoilt=bool(spoilt % 2))
            self.terms = {key: term for key, term in self.terms.items() if key[0] != name}

    def check(self):
        """Check the memory that pods use, and the annotations of pods that got GPUs."""
        for uid, pod in self.world.pods.items():
            if pod.uuids and uid not in self.checked:
                self.checked.add(uid)
                check_given(self.world, uid)
        for node in self.world.nodes.values():
            check_terms(self.world, node.name, self.terms)
            used = self.world.used(node)
            assert not [gpu for gpu in node.gpus if used[gpu.uuid] > gpu.memory_bytes], used

    def end(self):
        """End all replicas, and check that a new one binds exactly the pods that fit."""
        for replica in self.replicas:
            replica.end()
        self.world.time_s += UNBOUND_S + 5
        replica = Replica(self.world)
        for name in self.world.nodes:
            replica.tidy_now(name)
        for pod in self.world.pods.values():
            if pod.node and not pod.finished and not pod.at_binding:
                assert self.world.assignments(pod.node)[pod.uid].uuids == (EVERY_GPU,)
        replica.late_now()
        self.check()
        replica.resync()
        for pod in replica.tracker.pending_pods():
            assert not self.world.fits(self.world.nodes[pod.node], pod), self.world.lists
        for uid, pod in list(self.world.pods.items()):
            for node in self.world.nodes.values():
                if not self.world.pods[uid].node and not pod.finished:
                    if not pod.at_binding:
                        assert not self.bind(replica, uid, node.name)
                        continue
                    room = self.world.fits(node, pod)
                    assert self.bind(replica, uid, node.name) == room, self.world.lists
                    self.check()
        for uid in list(self.world.pods):
            self.world.delete(uid)
        replica.resync()
        for name in self.world.nodes:
            replica.tidy_now(name)
            assert self.world.assignments(name) == {}, "entries of pods that are gone"

    def bind(self, replica, uid, node):
        """Bind a pod while no other replica works; return True if the pod was placed."""
        verdict = replica.bind(uid, node)
        if self.world.pods[uid].uuids:
            names = self.world.nodes[node].device_names
            visible = self.world.given(uid)[VISIBLE_DEVICES_ANNOTATION]
            assert visible == format_visible_devices(self.world.pods[uid].uuids, names)
        return verdict.outcome is BindingOutcome.PLACED


def check_terms(world, node, known):
    """Check the terms of entries. Once a pod may run with its GPUs, its terms never change."""
    for uid, entry in world.assignments(node).items():
        pod = world.pods.get(uid)
        if pod:
            assert entry.terms.by is world.by(uid)
            assert entry.terms.enforce is (entry.terms.by is not EnforceBy.NONE)
            assert entry.terms.cap_bytes == entry.memory_bytes == pod.need.memory_bytes
        if pod and pod.node == node and pod.uuids and not pod.finished:
            assert known.setdefault((node, uid), entry.terms) == entry.terms


def check_given(world, uid):
    """Check the annotations of a pod with GPUs against its entry, its node and its demand."""
    pod, given = world.pods[uid], world.given(uid)
    entry = world.assignments(pod.node)[uid]
    sizes = {gpu.uuid: gpu.total_bytes or gpu.memory_bytes for gpu in world.nodes[pod.node].gpus}
    # Amounts are a few MiB here, so half of the cap is more than the cap less a CUDA context.
    fraction = min(Fraction(entry.memory_bytes // 2, sizes[uuid]) for uuid in entry.uuids)
    limit = given.get(DRIVER_LIMIT_ANNOTATION)
    assert entry.terms.limit is pod.limit is DriverLimit(limit or "Off")
    assert limit or not world.requires_limit(uid)
    expected = {
        GPU_ANNOTATION: ",".join(entry.uuids),
        VISIBLE_DEVICES_ANNOTATION: given[VISIBLE_DEVICES_ANNOTATION],
        GPU_MEMORY_FRACTION_ANNOTATION: f"0.{max(1, int(fraction * 10_000)):04}",
    }
    if limit:
        expected |= {GPU_MEMORY_FRACTION_ANNOTATION: "0.5000", DRIVER_LIMIT_ANNOTATION: limit}
    assert given == expected
    assert len(entry.uuids) == pod.need.gpu_count
    spelled = [format_visible_devices(entry.uuids, names) for names in world.names[pod.node]]
    assert given[VISIBLE_DEVICES_ANNOTATION] in spelled


OFTEN = ["work"] * 16 + ["ask"] * 6 + ["answer"] * 6 + ["hear"] * 3 + ["late"] * 3
SELDOM = ["bare"] * 4 + ["create", "tidy", "tidy", "wait", "delete", "finish", "unlabel"]
SELDOM += ["resync", "restart", "lose_list", "relabel", "limit", "limit", "change_policy"]
NUMBER = st.integers(0, 59)
HAPPENINGS = st.lists(
    st.tuples(st.sampled_from(OFTEN + SELDOM), NUMBER, NUMBER, NUMBER), min_size=60, max_size=150
)


@settings(max_examples=settings.default.max_examples * 5 // 2)
@given(sizes=NODES, needs=st.lists(NEEDS, min_size=3, max_size=6), happenings=HAPPENINGS)
def test_no_gpu_is_overcommitted_and_what_fits_is_assigned_in_the_end(sizes, needs, happenings):
    story = Story(sizes, needs)
    try:
        for what, *numbers in happenings:
            getattr(story, what)(*numbers)
            story.check()
        story.end()
    finally:
        for replica in story.replicas:
            replica.end()
