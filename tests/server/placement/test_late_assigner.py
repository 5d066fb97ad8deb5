"""Pods bound without vramwarden: they get GPUs late, stay pending, or are deleted."""

from __future__ import annotations

import pytest

from tests.server.placement.interleaving import (
    ANNOTATE,
    ASK_FOR_A_RIGHT,
    LIST_ON_NODE,
    READ_LIST,
    WRITE_LIST,
    Replica,
    World,
    list_path,
)
from webhook.core.nvidia.variables import DeviceNames
from webhook.core.placement.binding_review import BindingOutcome
from webhook.core.placement.fit import (
    RETRIES,
    deny_unnamed_gpus,
    deny_without_driver_limit,
    deny_without_sentry,
)
from webhook.core.pod.quantity import MIB
from webhook.core.policy.model import DriverLimit, EnforceBy
from webhook.names import (
    DRIVER_LIMIT_ANNOTATION,
    GPU_ANNOTATION,
    GPU_MEMORY_FRACTION_ANNOTATION,
    VISIBLE_DEVICES_ANNOTATION,
)
from webhook.server.bounds import MAX_WAITING_UPDATES
from webhook.server.placement import assignment_lists
from webhook.server.placement.assignment_lists import AT_ONCE
from webhook.server.placement.late_assigner import (
    ANNOTATE_EVERY_S,
    CHECK_RIGHTS_EVERY_S,
    DELAY_S,
    NODES_AT_ONCE,
    PATIENCE_S,
)


@pytest.fixture
def world():
    """Return a world with one node that has one GPU of 10 MiB."""
    return World((10,))


def bare(world, *mib, node="n0", **how):
    """Create pods that were bound without vramwarden."""
    uids = [world.create(item, **how) for item in mib]
    for uid in uids:
        world.bind_bare(uid, node)
    return uids


def entered(world):
    return set(world.assignments("n0"))


def late(replica):
    """Make a replica list all pods and assign late."""
    replica.resync()
    replica.late_now()


def said(replica):
    return [(level, message) for level, message, _ in replica.log.lines]


def test_a_pod_that_was_bound_without_us_gets_its_gpu_and_an_entry(world):
    (uid,) = bare(world, 6)
    replica = Replica(world)
    replica.late_now()
    assert (world.pods[uid].uuids, entered(world)) == (("G0-0",), {uid})
    assert said(replica) == [("info", "assigned late")]
    assert replica.late_assigner._metrics.late.labels("assigned")._value.get() == 1


def test_the_list_is_written_before_the_pod(world):
    (uid,) = bare(world, 6)
    replica = Replica(world)
    task = replica.late()
    while not world.pods[uid].uuids:
        assert not task.done
        for found_task in list(replica.tasks):
            found_task.step()
        if world.pods[uid].uuids:
            assert entered(world) == {uid}


def test_of_two_replicas_one_writes_and_what_it_wrote_is_final(world):
    (uid,) = bare(world, 6)
    replicas = Replica(world), Replica(world)
    tasks = [replica.late() for replica in replicas]
    for _ in range(100):
        for replica in replicas:
            for task in [task for task in replica.tasks if not task.done]:
                task.step()
    assert all(task.done for task in tasks)
    assert (world.pods[uid].uuids, entered(world)) == (("G0-0",), {uid})
    outcomes = sorted(said(replica) for replica in replicas)
    assert outcomes == [[], [("info", "assigned late")]]


def test_what_was_entered_for_a_binding_that_was_given_up_is_what_the_pod_gets(world):
    world.put_node("n0", 10, 10)
    other, uid = world.create(5), world.create(6)
    replica = Replica(world)
    replica.bind(other)
    assert replica.bind(uid, arrives=False).uuids == ("G0-1",)
    world.bind_bare(uid, "n0")
    world.delete(other)  # the first GPU would be chosen now
    late(replica)
    assert world.pods[uid].uuids == ("G0-1",)


def test_where_no_room_is_a_pod_is_told_once_and_gets_what_becomes_free(world):
    first, second = bare(world, 6, 6)
    replica = Replica(world)
    replica.late_now()
    assert world.told(second) == (
        "no GPU of node n0 has 6Mi free, which this pod needs; the largest free amount is 4Mi, on "
        "GPU 0 (G0-0); it was bound while vramwarden was away, and is tried again whenever a pod "
        "ends there or the node changes"
    )
    before = world.count(ANNOTATE)
    late(replica)
    assert world.count(ANNOTATE) == before
    world.finish(first)
    late(replica)
    assert (world.pods[second].uuids, world.told(second)) == (("G0-0",), "")
    assert entered(world) == {second}


def test_another_reason_is_told_only_so_often(world):
    _, uid = bare(world, 3, 9)
    replica = Replica(world)
    replica.late_now()
    assert "the largest free amount is 7Mi" in world.told(uid)
    small = world.create(2)
    late(replica)
    replica.bind(small)
    late(replica)
    assert "the largest free amount is 7Mi" in world.told(uid)
    world.time_s += ANNOTATE_EVERY_S
    late(replica)
    assert "the largest free amount is 5Mi" in world.told(uid)


@pytest.mark.parametrize("owned", [True, False])
def test_after_five_minutes_a_pod_with_a_controller_goes_elsewhere(world, owned):
    (first,) = bare(world, 6)
    (second,) = bare(world, 6, owned=owned)
    replica = Replica(world)
    replica.late_now()
    world.time_s += PATIENCE_S - 1
    late(replica)
    assert set(world.pods) == {first, second}
    world.time_s += 1
    late(replica)
    assert set(world.pods) == ({first} if owned else {first, second})
    assert world.pods[first].uuids == ("G0-0",)


def test_without_the_right_nothing_is_reserved_and_it_is_said_once(world):
    (uid,) = bare(world, 6)
    world.denied.add(("patch", "pods"))
    replica = Replica(world)
    for _ in range(3):
        late(replica)
    assert (world.pods[uid].uuids, entered(world), world.count(ASK_FOR_A_RIGHT)) == ((), set(), 1)
    assert said(replica) == [("warning", "pods that were bound without us are not assigned late")]
    newcomer = world.create(6)
    replica.resync()
    assert replica.ask(newcomer).done().outcome is BindingOutcome.PLACED
    assert not replica.lists.assigns_late
    world.denied.clear()
    world.time_s += CHECK_RIGHTS_EVERY_S
    world.delete(newcomer)
    late(replica)
    assert world.pods[uid].uuids == ("G0-0",)
    assert replica.lists.assigns_late


def test_who_waits_on_the_node_comes_before_newcomers_in_the_same_write(world):
    (waiting,) = bare(world, 6)
    newcomer = world.create(6)
    replica = Replica(world)
    replica.lists.assigns_late = True
    verdict = replica.ask(newcomer).done()
    assert verdict.outcome is BindingOutcome.DENIED
    small = world.create(3)
    replica.resync()
    writes = world.count(WRITE_LIST)
    assert replica.ask(small).done().outcome is BindingOutcome.PLACED
    assert entered(world) == {waiting, small}
    assert world.count(WRITE_LIST) == writes + 1
    assert [pod.uid for pod in replica.reserved] == [waiting]


def test_a_dry_run_reserves_nothing_for_anybody(world):
    bare(world, 3)
    newcomer = world.create(6)
    replica = Replica(world)
    replica.lists.assigns_late = True
    verdict = replica.ask(newcomer, dry_run=True).done()
    assert (verdict.outcome, entered(world)) == (BindingOutcome.PLACED, set())


def test_a_pod_that_cannot_be_written_keeps_no_other_from_its_gpu(world):
    refused, other = bare(world, 3, 3)
    world.fails(f"{ANNOTATE}{refused}/", 403, forever=True)
    replica = Replica(world)
    for _ in range(3):
        late(replica)
    assert (world.pods[refused].uuids, world.pods[other].uuids) == ((), ("G0-0",))
    message = "pods that were bound without us cannot be given their GPUs; retrying"
    assert [line for line in said(replica) if line[0] == "error"] == [("error", message)]
    assert replica.late_assigner._metrics.late.labels("forbidden")._value.get() == 3


def test_a_pod_that_was_changed_meanwhile_is_read_and_given_its_gpu_again(world):
    (uid,) = bare(world, 6)
    world.fails(f"{ANNOTATE}{uid}/", 409)
    replica = Replica(world)
    replica.late_now()
    assert (world.pods[uid].uuids, world.count(ANNOTATE)) == (("G0-0",), 2)
    assert said(replica) == [("info", "assigned late")]


def test_while_the_api_server_is_away_nothing_is_decided(world):
    (uid,) = bare(world, 6)
    replica = Replica(world)
    world.fails(".", 0, forever=True)
    replica.late_now()
    assert said(replica) == [("error", "our rights cannot be read; retrying")]
    world.recovers()
    world.time_s += ANNOTATE_EVERY_S
    late(replica)
    assert world.pods[uid].uuids == ("G0-0",)


def test_its_thread_leaves_a_pod_to_another_replica_first_and_then_takes_it_once(world):
    (uid,) = bare(world, 6)
    replica = Replica(world)
    assigning = replica.late_assigner
    assigning.on_pending(world.pods[uid])
    assigning.on_pending(world.pods[uid])
    assert assigning._wait_for_nodes(assigning._clock()) == []
    world.time_s += DELAY_S
    assert assigning._wait_for_nodes(assigning._clock() + 10) == ["n0"]
    assert assigning._wait_for_nodes(assigning._clock()) == []


def test_a_bug_on_one_node_keeps_no_pod_of_another_from_its_gpu():
    world = World((10,), (10,))
    (first,), (second,) = bare(world, 6), bare(world, 6, node="n1")
    replica = Replica(world)

    def stumble(_):
        raise RuntimeError("a bug")

    world.fails(f"GET {list_path('n0')}", stumble)
    with pytest.raises(RuntimeError, match="a bug"):
        late(replica)
    assert (world.pods[first].uuids, world.pods[second].uuids) == ((), ("G1-0",))


def test_a_pod_that_lost_its_controller_meanwhile_is_not_deleted(world):
    bare(world, 6)
    (uid,) = bare(world, 6, owned=True)
    replica = Replica(world)
    replica.late_now()
    world.time_s += PATIENCE_S
    world.change(uid, metadata={"ownerReferences": None})  # this replica does not see the change
    replica.late_now()
    assert uid in world.pods


def test_however_many_wait_on_a_node_its_list_is_read_and_planned_once(world, monkeypatch):
    bare(world, *[3] * 3 * NODES_AT_ONCE)
    replica = Replica(world)
    replica.lists._queue._run = lambda work: work()  # as if the queue's thread were always faster
    planned = []
    plan_assignments = assignment_lists.plan_assignments

    def counted(*some, **more):
        planned.append(1)
        return plan_assignments(*some, **more)

    monkeypatch.setattr(assignment_lists, "plan_assignments", counted)
    replica.late_now()
    assert [world.count(item) for item in (READ_LIST, LIST_ON_NODE, WRITE_LIST)] == [1, 1, 1]
    assert len(planned) == 2  # again after verifying that the pods in the way still exist
    replica.resync()
    world.asked.clear()
    replica.late_now()  # denied pods are tried again; nothing has changed
    assert (world.count(), world.count(READ_LIST)) == (1, 1)
    assert len([pod for pod in world.pods.values() if pod.uuids]) == 3


def test_many_that_wait_are_not_all_told_each_time_that_the_free_amount_changes(world):
    waiting = bare(world, *[9] * 4 * MAX_WAITING_UPDATES)[1:]  # one of the pods gets a GPU
    replica = Replica(world)
    replica.late_now()
    assert all("the largest free amount is 1Mi," in world.told(uid) for uid in waiting)
    world.asked.clear()
    for mib in range(11, 18):
        world.put_node("n0", mib)
        replica.hear_node()
        world.time_s += ANNOTATE_EVERY_S
        late(replica)
    assert world.count(ANNOTATE) <= 7 * MAX_WAITING_UPDATES
    assert all(amount_told(world, uid) > 1 for uid in waiting)  # but each is updated in turn


def amount_told(world, uid):
    return int(world.told(uid).split("the largest free amount is ")[1].split("Mi,")[0])


def test_many_nodes_at_a_time_would_leave_bindings_no_thread(world):
    world = World(*[(10,)] * (3 * AT_ONCE))
    uids = [uid for node in world.nodes for uid in bare(world, 6, node=node)]
    replica = Replica(world)
    task, most = replica.late(), 0
    while not task.done:
        lines = [
            found_task
            for found_task in replica.tasks
            if found_task is not task and not found_task.done
        ]
        most = max(most, len(lines))
        for line in [task, *lines]:
            line.step()
    assert most <= AT_ONCE // 2
    assert all(world.pods[uid].uuids for uid in uids)


def test_when_something_ends_who_waits_on_that_node_is_tried_again(world):
    world = World((10,), (10,))
    first, _ = bare(world, 6, 6)
    bare(world, 6, node="n1")
    replica = Replica(world)
    assigning = replica.late_assigner
    assigning.on_ended(world.pods[first], replica.tracker)
    world.time_s += DELAY_S
    assert assigning._wait_for_nodes(assigning._clock()) == ["n0"]


@pytest.mark.parametrize("names", [DeviceNames.NONE, None])
def test_on_a_node_whose_gpus_have_no_name_a_pod_waits_until_the_node_changes(world, names):
    (uid,) = bare(world, 6)
    world.relabel("n0", names)
    replica = Replica(world)
    replica.late_now()
    assert (world.pods[uid].uuids, entered(world)) == ((), set())
    sentence = deny_unnamed_gpus("n0", names).sentence.removesuffix(RETRIES)
    assert world.told(uid) == (
        f"{sentence}; it was bound while vramwarden was away, and is tried again whenever a pod "
        "ends there or the node changes"
    )
    for heard, due in ((names, []), (DeviceNames.RUNTIME, ["n0"])):
        world.relabel("n0", heard)
        replica.hear_node()
        world.time_s += DELAY_S
        assert replica.late_assigner._wait_for_nodes(world.time_s) == due
    late(replica)
    assert (world.pods[uid].uuids, world.told(uid)) == (("G0-0",), "")


def test_who_requires_the_drivers_limit_waits_for_it_and_keeps_no_other_waiting(world):
    requiring, other = bare(world, 6, limit=DriverLimit.REQUIRE) + bare(world, 6)
    replica = Replica(world)
    replica.late_now()
    assert world.told(requiring).startswith(
        deny_without_driver_limit("n0").sentence.removesuffix(RETRIES)
    )
    assert world.given(other)[GPU_ANNOTATION] == "G0-0"
    world.delete(other)
    world.limit("n0", proven=True)
    replica.hear_node()
    late(replica)
    assert world.given(requiring)[DRIVER_LIMIT_ANNOTATION] == "Require"
    assert world.told(requiring) == ""


def test_by_sentry_a_pod_waits_for_a_sentry_that_acts_and_keeps_no_other_waiting(world):
    guarded, other = bare(world, 6, by=EnforceBy.SENTRY) + bare(world, 6)
    world.guard("n0", acts=False)
    replica = Replica(world)
    replica.late_now()
    why = deny_without_sentry("n0", 6 * MIB).sentence
    assert "n0" in why
    assert "6Mi" in why
    assert world.told(guarded).startswith(why.removesuffix(RETRIES))
    assert world.given(other)[GPU_ANNOTATION] == "G0-0"
    world.delete(other)
    world.guard("n0", acts=True)
    replica.hear_node()
    late(replica)
    assert (world.pods[guarded].uuids, world.told(guarded)) == (("G0-0",), "")


def test_a_gpu_that_is_healthy_again_is_given_to_who_waits(world):
    (uid,) = bare(world, 6)
    world.put_node("n0", 10, healthy=False)
    replica = Replica(world)
    replica.late_now()
    assert "has no GPU that is healthy now" in world.told(uid)
    world.put_node("n0", 10)
    replica.hear_node()
    world.time_s += DELAY_S
    assert replica.late_assigner._wait_for_nodes(world.time_s) == ["n0"]


def test_a_pod_that_is_assigned_late_carries_all_that_a_binding_would_have_given_it(world):
    world.relabel("n0", DeviceNames.DEVICE_PLUGIN)
    (uid,) = bare(world, 6)
    replica = Replica(world)
    replica.late_now()
    assert world.given(uid) == {
        GPU_ANNOTATION: "G0-0",
        VISIBLE_DEVICES_ANNOTATION: "k8s.device-plugin.nvidia.com/gpu=G0-0",
        GPU_MEMORY_FRACTION_ANNOTATION: "0.3000",
    }
