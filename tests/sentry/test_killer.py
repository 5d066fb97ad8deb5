"""All of a pod ends, except for its sandbox and its enforcer, and nothing else does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sentry.worlds import ID, OTHER, OTHER_ID, TRAINER, Node, owner
from webhook.adapters.processes import Delivery
from webhook.sentry.killer import CONTEXT_BYTES, ENDING_S, ROUNDS, Killer, PodEnd

ENFORCER_ID = "e" * 64
GIB = 2**30


def ended(node, held=None, **more):
    held = {ID: GIB} if held is None else held
    return Killer(node, sleep=lambda _: None).end(TRAINER, held, **more)


def pod():
    """Make a pod: sandbox 40, enforcer 41, its probe 42, workload 50, 51 and 60 beside it."""
    node = Node(
        owner(40, container="f" * 64), owner(41, container=ENFORCER_ID),
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


@pytest.mark.parametrize("number", [0, 1])
def test_who_has_no_number_of_its_own_in_the_pod_is_the_runtimes(number):
    node = pod()
    node.inner[50] = node.inner[60] = number
    ended(node)
    assert {50, 60} <= node.alive.keys()


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
        ),  # its image was changed, or somebody did it
        ({41, 60}, {OTHER_ID: 70 * GIB}, {41, 42}),  # a debugger has the volume
        ({41, 60}, {ENFORCER_ID: 1, OTHER_ID: CONTEXT_BYTES}, {41, 42}),
        ({41, 60}, {ENFORCER_ID: 1, OTHER_ID: 1}, {41, 42, 60}),
    ],
)
def test_who_has_the_enforcers_volume_is_spared_while_all_hold_no_more_than_a_context(
    enforcers, held, left
):
    """And the sandbox whatever it holds: somebody of its user made it, and the others end."""
    node = pod()
    node.enforcers = enforcers
    for pid in sorted(enforcers):
        delivery = Killer(node).stop(node.alive[pid], held)
        assert delivery is (Delivery.REJECTED if pid in left else Delivery.DELIVERED)
    ended(node, {"f" * 64: 70 * GIB, **held})
    assert node.alive.keys() - {40, 70, 80} == left


@pytest.mark.parametrize(
    ("held", "again", "left"),
    [
        ({"gone": 70 * GIB}, False, {40, 41, 42}),  # others of the pod may have its files
        ({"gone": 70 * GIB}, True, {40}),
        ({"gone": CONTEXT_BYTES}, True, {40, 41, 42}),
        ({"f" * 64: 70 * GIB}, True, {40, 41, 42}),  # the sandbox holds it
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


def test_a_pod_of_many_keeps_the_others_waiting_for_a_bounded_time():
    node = pod()
    node.alive |= {pid: owner(pid) for pid in range(100, 200)}
    clock = iter(range(1000))
    actor = Killer(node, sleep=lambda _: None, clock=lambda: next(clock) * ENDING_S / 10)
    assert actor.end(TRAINER, {OTHER_ID: GIB}).stopped < 11
    assert node.killed[0] == 60


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
    stopped = {pid: actor.stop(node.alive[pid], {}) for pid in (40, 41, 50)}
    assert stopped == {
        40: Delivery.REJECTED,
        41: Delivery.REJECTED,
        50: Delivery.DELIVERED,
    }
    assert actor.stop(owner(50), {}) is Delivery.GONE


def test_a_process_whose_files_are_gone_is_gone():
    node = pod()

    def fail(_pid):
        del node.alive[50]
        raise ProcessLookupError

    node.inner_pid = fail
    assert Killer(node).stop(owner(50), {}) is Delivery.GONE


OWNERS = st.builds(
    owner,
    st.integers(40, 60),
    st.sampled_from([TRAINER, OTHER, ""]),
    st.sampled_from([ID, OTHER_ID, ENFORCER_ID, ""]),
)


@given(
    st.lists(OWNERS, max_size=20),
    st.dictionaries(st.integers(40, 60), st.integers(0, 3)),
    st.sets(st.integers(40, 60)),
    st.booleans(),
    st.dictionaries(
        st.sampled_from([ID, OTHER_ID, ENFORCER_ID]), st.integers(0, CONTEXT_BYTES * 3 // 2)
    ),
)
def test_only_the_pods_processes_end_never_the_sandbox_nor_who_is_spared_as_the_enforcer(
    owners, inner, enforcers, shown, held
):
    node = Node(*owners)
    before = dict(node.alive)
    node.inner, node.enforcers = inner, enforcers if shown else set()
    node.mounts = frozenset({"0:99"}) if shown else frozenset()
    first = {}
    for pid in sorted(before):
        if before[pid].place.pod == TRAINER:
            first.setdefault(before[pid].place.container, pid)
    volumes = {container for container, pid in first.items() if pid in enforcers}
    ended(node, held)
    killed = {before[pid].place.container for pid in node.killed}
    for pid in node.killed:
        assert before[pid].place.pod == TRAINER
        assert inner.get(pid, 7) > 1
    assert shown or killed <= held.keys()
    if shown:
        assert not any(held.get(one, 0) == 0 for one in killed & volumes)
        left = {one.place.container for pid, one in node.alive.items()
                if one.place.pod == TRAINER and inner.get(pid, 7) > 1}  # fmt: skip
        assert left <= volumes
        assert sum(held.get(one, 0) for one in left) <= CONTEXT_BYTES
