"""Processes of a pod that are stopped: all but its sandbox's and, by sidecar, its enforcer's."""

from __future__ import annotations

from signal import SIGKILL, SIGTERM

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sentry.fakes import ID, OTHER, OTHER_ID, TRAINER, Node, owner
from webhook.adapters.processes import Delivery
from webhook.sentry.killer import CONTEXT_BYTES, ENDING_S, ROUNDS, Killer, PodEnd

ENFORCER_ID, PAUSE_ID = "e" * 64, "f" * 64
GIB = 2**30


def ended(node, held=None, *, sidecar=True, listed=frozenset(), clock=lambda: 0.0, **more):
    held = {ID: GIB} if held is None else held
    killer = Killer(node, sleep=lambda _: None, clock=clock)
    return killer.end(TRAINER, listed, held, sidecar=sidecar, **more)


def fail(*_):
    raise OSError


def pod():
    """Create a pod: sandbox 40, enforcer 41, its probe 42, workload 50 and 51, and another, 60."""
    node = Node(
        owner(40, container=PAUSE_ID, started=1), owner(41, container=ENFORCER_ID),
        owner(42, container=ENFORCER_ID), owner(50), owner(51), owner(60, container=OTHER_ID),
        owner(70, OTHER), owner(80, ""),
    )  # fmt: skip
    node.inner = {40: 1}
    node.enforcers = {41}
    return node


def test_all_of_a_pod_ends_except_for_sandbox_and_enforcer():
    node = pod()
    assert ended(node) == PodEnd(3, 0, sure=True)
    assert (node.killed, sorted(node.alive)) == ([50, 51, 60], [40, 41, 42, 70, 80])


def test_where_the_enforcer_is_gone_everybody_else_ends():
    node = pod()
    del node.alive[41], node.alive[42]
    assert ended(node).stopped == 3


def test_where_nothing_proves_who_the_enforcer_is_only_containers_that_hold_memory_end():
    node = pod()
    node.mounts = frozenset()
    assert ended(node) == PodEnd(2, 0, sure=False)
    assert sorted(node.alive) == [40, 41, 42, 60, 70, 80]


@pytest.mark.parametrize("sidecar", [True, False])
def test_a_process_without_a_number_in_the_pod_is_the_runtimes(sidecar):
    """An example is CRI-O's conmon, which may be in the container's cgroup and start before it."""
    node = pod()
    node.alive |= {pid: owner(pid, container=where, started=0)
                   for pid, where in ((45, PAUSE_ID), (46, ENFORCER_ID), (47, ID))}  # fmt: skip
    node.inner |= dict.fromkeys((45, 46, 47), 0)
    assert Killer(node).stop(node.alive[47], {ID: GIB}, sidecar=sidecar) is Delivery.REJECTED
    listed = {node.alive[47]}
    assert ended(node, sidecar=sidecar, listed=listed).stopped == (3 if sidecar else 5)
    assert {40, 45, 46, 47} <= node.alive.keys()


def own_namespaces(*, pause=True):
    """Create a pod whose containers have separate PID namespaces: their PIDs 1 are 50 and 60."""
    node = pod()
    del node.alive[41], node.alive[42]
    node.inner |= {50: 1, 60: 1}
    node.ends_with[50] = 51
    if not pause:  # CRI-O creates no pause process
        del node.alive[40]
    node.alive[60] = owner(60, container=OTHER_ID, started=5)
    return node


def test_by_sentry_only_the_sandbox_is_spared():
    """A container with the enforcer's name and volume, but without memory, is the user's."""
    for mounts in (frozenset({"0:99"}), frozenset()):
        node = pod()
        node.mounts = mounts
        assert Killer(node).stop(node.alive[41], {ID: GIB}, sidecar=False) is Delivery.DELIVERED
        assert ended(node, sidecar=False) == PodEnd(4, 0, sure=True)
        assert sorted(node.alive) == [40, 70, 80]


@pytest.mark.parametrize(
    ("pause", "held", "left"),
    [
        (True, {ID: GIB}, {40}),
        (True, {ID: GIB, OTHER_ID: GIB}, {40}),
        (False, {ID: GIB}, {60}),  # the oldest container has one process, which uses no memory
        (False, {ID: GIB, OTHER_ID: 1}, set()),
        (False, {ID: GIB, OTHER_ID: 0}, set()),  # the driver lists the process without an amount
        (False, {OTHER_ID: GIB}, set()),
    ],
)
def test_number_1_of_a_containers_own_namespace_is_the_users_program(pause, held, left):
    node = own_namespaces(pause=pause)
    for pid, where in ((50, ID), (60, OTHER_ID)):
        if where in held:
            delivery = Killer(node).stop(node.alive[pid], held, sidecar=False)
            assert delivery is Delivery.DELIVERED
    ended(node, held, sidecar=False)
    assert node.alive.keys() - {70, 80} == left


def test_the_oldest_container_with_a_second_process_has_no_sandbox():
    """A program may hold memory in a process that it starts, and start it again and again."""
    node = own_namespaces(pause=False)
    node.alive[61] = owner(61, container=OTHER_ID)
    ended(node, sidecar=False)
    assert node.alive.keys() == {70, 80}


@pytest.mark.parametrize("readable", [True, False])
def test_a_program_that_a_debugging_container_targets_is_no_sandbox(readable):
    """Without a sandbox process its PID 1 is the only one, and another container has none.

    If its main thread ended, its mounts cannot be read.
    """
    node = own_namespaces(pause=False)
    del node.inner[60]  # the process of the debugging container
    node.alive[60] = owner(60, container=OTHER_ID, started=20)
    node.kubelets = {50, 60}
    if not readable:
        node.has_container_mounts = fail
    assert Killer(node).stop(node.alive[50], {ID: GIB}, sidecar=False) is Delivery.DELIVERED
    node.alive[50] = owner(50)
    ended(node, sidecar=False)
    assert node.alive.keys() == {70, 80}


def test_a_sandbox_that_shares_its_namespace_is_spared_whatever_it_holds():
    node = pod()
    held = {PAUSE_ID: 70 * GIB}
    assert Killer(node).stop(node.alive[40], held, sidecar=False) is Delivery.REJECTED
    killer = Killer(node, sleep=lambda _: None)
    for again in (False, True):
        killer.end(TRAINER, {node.alive[40]}, held, sidecar=False, again=again)
        assert sorted(node.alive) == [40, 70, 80]


def test_of_processes_that_started_within_one_clock_tick_number_1_is_the_first():
    """The other process has a lower PID on the node if PIDs wrapped around meanwhile."""
    node = pod()
    node.alive[39] = owner(39, container=PAUSE_ID, started=1)
    ended(node, sidecar=False)
    assert sorted(node.alive) == [40, 70, 80]


@pytest.mark.parametrize(("kubelets", "left"), [({50}, set()), (set(), {50})])
def test_a_process_in_an_unreadable_cgroup_may_be_of_the_oldest_container(kubelets, left):
    """Its path may be too long to be shown. Then only the kubelet's mounts identify a program."""
    node = Node(owner(50, started=1), owner(51, container=""))
    node.inner, node.kubelets = {50: 1}, kubelets
    ended(node, {"": GIB}, sidecar=False)
    assert node.alive.keys() == left


@pytest.mark.parametrize("container", ["", ID])
def test_a_number_1_in_an_unreadable_cgroup_is_no_sandbox(container):
    node = Node(owner(50, container=""), owner(51, container=container), owner(60))
    node.inner = {50: 1}
    ended(node, {"": GIB, ID: GIB}, sidecar=False)
    assert node.alive == {}


@pytest.mark.parametrize(
    ("number", "handles", "sent"),
    [(SIGTERM, True, SIGTERM), (SIGTERM, False, SIGKILL), (SIGKILL, True, SIGKILL)],
)
def test_a_process_that_does_not_handle_sigterm_gets_sigkill_at_once(number, handles, sent):
    node = own_namespaces()
    node.handlers = {50} if handles else {51}
    Killer(node).stop(node.alive[50], {ID: GIB}, sidecar=False, number=number)
    assert node.signals == [(50, sent)]


def test_a_process_whose_handlers_cannot_be_read_gets_sigkill():
    node = own_namespaces()
    node.handles = fail
    Killer(node).stop(node.alive[50], {ID: GIB}, sidecar=False, number=SIGTERM)
    assert node.signals == [(50, SIGKILL)]


@pytest.mark.parametrize(
    ("enforcers", "held", "left"),
    [
        ({41}, {}, {41, 42}),
        ({41}, {ID: 70 * GIB}, {41, 42}),
        ({41}, {ENFORCER_ID: CONTEXT_BYTES}, {41, 42}),
        (
            {41},
            {ENFORCER_ID: CONTEXT_BYTES + 1},
            set(),
        ),  # the image was changed, or a process was started in it
        ({41, 60}, {OTHER_ID: 70 * GIB}, {41, 42}),  # a debugging container mounts the volume
        ({41, 60}, {ENFORCER_ID: 1, OTHER_ID: CONTEXT_BYTES}, {41, 42}),
        ({41, 60}, {ENFORCER_ID: 1, OTHER_ID: 1}, {41, 42, 60}),
    ],
)
def test_who_has_the_enforcers_volume_is_spared_while_all_hold_no_more_than_a_context(
    enforcers, held, left
):
    """The sandbox is spared even if it holds memory, which another process of its user caused."""
    node = pod()
    node.enforcers = enforcers
    for pid in sorted(enforcers):
        delivery = Killer(node).stop(node.alive[pid], held, sidecar=True)
        assert delivery is (Delivery.REJECTED if pid in left else Delivery.DELIVERED)
    ended(node, {PAUSE_ID: 70 * GIB, **held})
    assert node.alive.keys() - {40, 70, 80} == left


@pytest.mark.parametrize(
    ("held", "again", "left"),
    [
        ({"gone": 70 * GIB}, False, {40, 41, 42}),  # other processes may have its device files open
        ({"gone": 70 * GIB}, True, {40}),
        ({"gone": CONTEXT_BYTES}, True, {40, 41, 42}),
        ({PAUSE_ID: 70 * GIB}, True, {40, 41, 42}),  # the sandbox uses the memory
    ],
)
def test_what_ended_processes_hold_is_the_enforcers_where_nobody_else_was_left(held, again, left):
    node = pod()
    ended(node, held, again=again)
    assert node.alive.keys() - {70, 80} == left


def test_containers_that_hold_memory_end_first():
    node = pod()
    ended(node, {OTHER_ID: GIB})
    assert node.killed == [60, 50, 51]


def test_of_each_container_one_process_is_asked_for_its_mounts():
    node = pod()
    node.alive |= {pid: owner(pid, started=11) for pid in range(100, 200)}
    asked, ask = [], node.has_mounted
    node.has_mounted = lambda pid, devices: asked.append(pid) or ask(pid, devices)
    assert ended(node).stopped == 103
    assert len(asked) <= 2 * 4


def test_each_process_is_asked_for_its_number_once_except_the_first_ones():
    """A process that names 65536 groups takes five milliseconds to read."""
    node = own_namespaces(pause=False)
    node.alive |= {pid: owner(pid, container=OTHER_ID, started=11) for pid in range(100, 200)}
    asked, ask = [], node.inner_pid
    node.inner_pid = lambda pid: asked.append(pid) or ask(pid)
    ended(node, sidecar=False)
    assert {pid for pid in asked if asked.count(pid) > 1} <= {50, 51, 60, 100}


def test_a_pod_of_many_keeps_the_others_waiting_for_a_bounded_time():
    node = pod()
    node.alive |= {pid: owner(pid) for pid in range(100, 200)}
    clock = iter(range(1000))
    found = ended(node, {OTHER_ID: GIB}, clock=lambda: next(clock) * ENDING_S / 10)
    assert 8 < found.stopped < 11
    assert node.killed[0] == 60


def searched(node):
    """Return the PIDs killed before each search for the pod's processes, which takes a minute."""
    before, in_pod, now_s = [], node.in_pod, [0.0]

    def search(pod):
        before.append(list(node.killed))
        now_s[0] += 60.0
        return in_pod(pod)

    node.in_pod = search
    return before, lambda: now_s[0]


@pytest.mark.parametrize("sidecar", [True, False])
def test_a_process_that_holds_memory_ends_before_the_others_are_searched(sidecar):
    node = pod()
    node.alive |= {pid: owner(pid) for pid in range(100, 200)}
    listed = {node.alive[pid] for pid in (40, 41, 199)}
    node.enforcers = {41} if sidecar else set()
    before, clock = searched(node)
    found = ended(node, {PAUSE_ID: 1, ENFORCER_ID: 1, ID: GIB},
                  sidecar=sidecar, listed=listed, clock=clock)  # fmt: skip
    assert set(before[0]) == ({199} if sidecar else {41, 199})
    assert sorted(node.alive) == ([40, 41, 42, 70, 80] if sidecar else [40, 70, 80])
    assert found == PodEnd(len(node.killed), 0, sure=True)


def test_a_number_1_with_mounts_of_the_kubelet_ends_before_the_others_are_searched():
    """It holds memory, and starts so many processes that the search takes long."""
    node = own_namespaces()
    node.kubelets = {50, 60}
    before, clock = searched(node)
    ended(node, sidecar=False, listed={node.alive[50]}, clock=clock)
    assert before[0] == [50]


def test_one_process_is_stopped_without_a_search():
    node = own_namespaces()
    node.kubelets = {50}
    before, _ = searched(node)
    assert Killer(node).stop(node.alive[50], {ID: GIB}, sidecar=False) is Delivery.DELIVERED
    assert before == []


def test_a_search_that_takes_longer_than_the_signals_may_is_followed_by_them():
    """This includes a process that may be the sandbox's while the others are unknown."""
    node = own_namespaces()
    node.ends_with.clear()
    node.alive = {pid: owner(pid) for pid in range(2, 30)} | node.alive
    _, clock = searched(node)
    found = ended(node, sidecar=False, listed={node.alive[50]}, clock=clock)
    assert (node.killed[0], found.stopped, set(node.alive)) == (50, 31, {40, 70, 80})


def test_a_sandbox_that_is_known_stays_one_whatever_it_sees_later():
    """Another process of its user can make it enter a user namespace, and hold memory."""
    node = pod()
    killer = Killer(node, sleep=lambda _: None)
    for kubelets in (set(), {40}):
        node.kubelets = kubelets
        killer.end(TRAINER, {node.alive[40]}, {PAUSE_ID: GIB}, sidecar=False)
        delivery = killer.stop(node.alive[40], {PAUSE_ID: GIB}, sidecar=False)
        assert delivery is Delivery.REJECTED


def test_who_is_started_meanwhile_ends_as_well_in_a_bounded_number_of_rounds():
    node = pod()
    node.forks = {pid: [owner(pid + 1, started=pid)] for pid in range(100, 100 + 10 * ROUNDS)} | {
        50: [owner(100)]
    }
    found = ended(node)
    assert found.stopped == 2 + ROUNDS
    assert len([pid for pid in node.alive if pid >= 100]) == 1


def test_who_may_not_be_signalled_is_counted_and_asked_once():
    node = pod()
    node.refused = {50}
    assert ended(node) == PodEnd(2, 1, sure=True)


def test_one_process_is_stopped_unless_it_is_sandbox_or_enforcer():
    node = pod()
    actor = Killer(node)
    stopped = {pid: actor.stop(node.alive[pid], {}, sidecar=True) for pid in (40, 41, 50)}
    assert stopped == {
        40: Delivery.REJECTED,
        41: Delivery.REJECTED,
        50: Delivery.DELIVERED,
    }
    assert actor.stop(owner(50), {}, sidecar=True) is Delivery.GONE


def test_a_process_whose_files_are_gone_is_gone():
    node = pod()

    def fail(_pid):
        del node.alive[50]
        raise ProcessLookupError

    node.inner_pid = fail
    assert Killer(node).stop(owner(50), {}, sidecar=True) is Delivery.GONE


OWNERS = st.builds(
    owner,
    st.integers(40, 60),
    st.sampled_from([TRAINER, OTHER, ""]),
    st.sampled_from([ID, OTHER_ID, ENFORCER_ID, ""]),
    st.integers(1, 3),
)


@given(
    st.lists(OWNERS, max_size=20),
    st.dictionaries(st.integers(40, 60), st.integers(0, 3)),
    st.sets(st.integers(40, 60)),
    st.booleans(),
    st.dictionaries(
        st.sampled_from([ID, OTHER_ID, ENFORCER_ID]), st.integers(0, CONTEXT_BYTES * 3 // 2)
    ),
    st.booleans(),
    st.sets(st.integers(40, 60)),
    st.sets(st.integers(40, 60)),
)
def test_only_the_pods_processes_end_never_its_sandbox_nor_its_enforcer(
    owners, inner, enforcers, shown, held, sidecar, kubelets, listed
):
    node = Node(*owners)
    before = dict(node.alive)
    node.inner, node.enforcers, node.kubelets = inner, enforcers if shown else set(), kubelets
    node.mounts = frozenset({"0:99"}) if shown else frozenset()
    theirs = {
        pid: item.place.container for pid, item in before.items() if item.place.pod == TRAINER
    }
    theirs = {pid: container for pid, container in theirs.items() if inner.get(pid, 7) > 0}
    first = {}
    ages = {pid: (before[pid].process.started, inner.get(pid) != 1, pid) for pid in theirs}
    for pid in sorted(ages, key=ages.__getitem__):
        first.setdefault(theirs[pid], pid)
    volumes = {item for item, pid in first.items() if sidecar and pid in enforcers}
    sure = shown or not sidecar
    listed = {item for pid, item in before.items()
              if pid in listed and theirs.get(pid) in held.keys() - volumes}  # fmt: skip
    ended(node, held, sidecar=sidecar, listed=listed)
    assert set(node.killed) <= theirs.keys()
    killed = {theirs[pid] for pid in node.killed}
    left = {pid: theirs[pid] for pid in node.alive.keys() & theirs.keys()}
    assert sure or killed <= held.keys()
    if sure:
        assert not any(held.get(item, 0) == 0 for item in killed & set(volumes))
        sandbox = {pid for pid, container in left.items() if container not in volumes}
        assert len(sandbox) <= 1
        for pid in sandbox:
            alone = list(theirs.values()).count(theirs[pid]) == 1
            assert inner.get(pid, 7) == 1 or (alone and theirs[pid] not in held)
        spared = {container for pid, container in left.items() if pid not in sandbox}
        assert sum(held.get(item, 0) for item in spared) <= CONTEXT_BYTES
