"""Orders of events that could overcommit a GPU, or deny a pod that fits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.server.placement.interleaving import (
    LIST_PODS,
    READ_LIST,
    READ_POD,
    SILENT,
    WRITE_LIST,
    Replica,
    Task,
    World,
    list_path,
    policy_with,
)
from tests.support.pods import a_policy, a_rule
from webhook.adapters.kube.placement import GpuNode, StoredList
from webhook.core.nvidia.variables import DeviceNames
from webhook.core.placement.assignment_codec import (
    WholeGpuPods,
    read_assignments,
    read_whole_gpu_pods,
    write_assignments,
)
from webhook.core.placement.assignments import RENEW_S
from webhook.core.placement.binding_review import Binding, BindingOutcome, BindingReason
from webhook.core.placement.cap_terms import CapTerms
from webhook.core.placement.fit import deny_without_driver_limit, deny_without_sentry
from webhook.core.placement.garbage import UNBOUND_S
from webhook.core.pod.gpus import EVERY_GPU
from webhook.core.pod.quantity import MIB
from webhook.core.policy.cluster import Cluster
from webhook.core.policy.model import DriverLimit, EnforceBy
from webhook.names import (
    DRIVER_LIMIT_ANNOTATION,
    GPU_ANNOTATION,
    GPU_MEMORY_FRACTION_ANNOTATION,
    VISIBLE_DEVICES_ANNOTATION,
)
from webhook.server.placement import assignment_gc

HELD = CapTerms(cap_bytes=6 * MIB, tolerance_bytes=125_829, delay_s=6.5, enforce=True)
"""Terms of a pod of 6 MiB."""
SIDECAR, BY_SENTRY, NONE = EnforceBy
PLACED, DENIED = BindingOutcome.PLACED, BindingOutcome.DENIED


@pytest.fixture
def world():
    """Return a world with one node that has one GPU of 10 MiB."""
    return World((10,))


@pytest.fixture
def replicas(world):
    return Replica(world), Replica(world)


@pytest.fixture
def first(replicas):
    return replicas[0]


@pytest.fixture
def second(replicas):
    return replicas[1]


def create(world, *mib, **how):
    """Create pods that all replicas know."""
    uids = [world.create(item, **how) for item in mib]
    world.resync()
    return uids


def requests(request):
    """Count the requests to the API server that one binding needs."""
    before = Task.pauses
    request.done()
    return Task.pauses - before


def asked(world):
    """Count lists of pods, reads of single pods, and writes of lists."""
    return tuple(map(world.count, (LIST_PODS, READ_POD, WRITE_LIST)))


def entered(world, node="n0"):
    return set(world.assignments(node))


def test_of_two_replicas_that_decide_at_the_same_time_one_decides_again(world, first, second):
    small, large, rival = create(world, 1, 6, 6)
    first.bind(small)
    second.bind(small)
    one, other = first.ask(large), second.ask(rival)
    for request in (one, other):
        request.step()  # up to the write of the list
    assert (one.done().outcome, other.done().outcome) == (PLACED, DENIED)
    assert entered(world) == {small, large}


def test_a_replica_that_knows_no_pod_yet_goes_by_the_list(world):
    uid, late = world.create(6), world.create(6)
    known, blind = Replica(world), Replica(world, knows=False)
    known.bind(uid)
    assert blind.bind(late).outcome is DENIED


def test_a_binding_that_comes_twice_gets_the_same_gpu(world, replicas, first):
    world.put_node("n0", 10, 10)
    world.hear_node()
    uid, other = create(world, 4, 3)
    verdict = first.bind(uid, arrives=False)
    first.bind(other)
    for replica in replicas:
        assert replica.bind(uid, arrives=False).uuids == verdict.uuids
    assert entered(world) == {uid, other}


def test_an_entry_is_renewed_so_that_a_late_binding_is_not_lost(world, first, second):
    uid, rival = create(world, 6, 6)
    first.bind(uid, arrives=False)
    world.time_s += UNBOUND_S - 10
    request = second.ask(uid)
    assert request.done().outcome is PLACED  # the API server writes the binding late
    world.time_s += 20
    first.tidy_now()
    assert entered(world) == {uid}
    assert first.bind(rival).outcome is DENIED
    second.answer(request, arrives=True)
    assert world.pods[uid].node == "n0"


def test_a_young_entry_is_not_written_again(world, first):
    uid, *_ = create(world, 6)
    first.bind(uid, arrives=False)
    lists = world.lists
    world.time_s += RENEW_S
    first.bind(uid, arrives=False)
    assert world.lists == lists


def test_tidying_does_not_remove_what_was_renewed_meanwhile(world, first, second):
    uid, *_ = create(world, 6)
    first.bind(uid, arrives=False)
    world.time_s += UNBOUND_S + 1
    tidying = second.tidy("n0", fresh=True)
    for _ in range(3):
        tidying.step()  # has read the list, and that the pod is not bound
    request = first.ask(uid)
    request.done()
    second.finish(tidying)
    assert entered(world) == {uid}


def test_an_entry_whose_binding_came_to_nothing_leaves_after_a_while(world, first):
    uid, *_ = create(world, 6)
    first.bind(uid, arrives=False)
    world.time_s += UNBOUND_S
    first.tidy_now(fresh=False)
    assert entered(world) == {uid}
    world.time_s += 1
    first.tidy_now(fresh=False)
    assert entered(world) == set()


def test_an_entry_of_an_unknown_pod_is_asked_about(world, first, second):
    uid = world.create(6)
    first.bind(uid, arrives=False)  # known from a request, not from the watch
    first.tidy_now()
    assert entered(world) == {uid}
    world.delete(uid)
    second.tidy_now()
    assert entered(world) == set()


def test_a_pod_deleted_while_it_is_bound_leaves_nothing(world, first):
    uid, rival = create(world, 6, 6)
    request = first.ask(uid)
    request.step()
    world.delete(uid)
    request.done()
    first.answer(request, arrives=True)
    assert entered(world) == {uid}
    first.resync()
    assert first.bind(rival).outcome is PLACED
    assert entered(world) == {rival}


@pytest.mark.parametrize("end", ["delete", "finish"])
def test_what_a_pod_leaves_is_free_as_soon_as_a_replica_observes_it(world, end, first, second):
    uid, rival = create(world, 6, 6)
    first.bind(uid)
    if end == "delete":
        world.delete(uid)
    else:
        world.finish(uid)
    assert second.bind(rival).outcome is DENIED
    second.resync()
    assert second.bind(rival).outcome is PLACED


def test_a_pod_that_only_lost_its_label_keeps_its_gpu(world, replicas, first):
    uid, rival = create(world, 6, 6)
    first.bind(uid)
    world.label(uid, None)
    for replica in replicas:
        while replica.hear():
            pass
        assert replica.tracker.pod(uid).gone
        assert replica.bind(rival).outcome is DENIED
        replica.tidy_now()
    assert entered(world) == {uid}
    world.delete(uid)
    assert first.bind(rival).outcome is PLACED


def test_a_pod_that_lost_its_label_while_it_waited_is_placed(world, first):
    (uid,) = create(world, 6)
    world.label(uid, None)
    first.hear()
    assert first.tracker.pod(uid).gone
    assert first.bind(uid).outcome is PLACED


def test_what_the_last_pod_of_a_node_that_is_gone_held_is_forgotten(world, first):
    (uid,) = create(world, 6)
    first.bind(uid)
    world.remove_nodes()
    first.hear_nodes()
    world.delete(uid)
    first.resync()
    first.tidy_now(fresh=False)
    assert first.lists.nodes_with_entries([first.tracker.pod(uid)]) == set()


def test_what_another_replica_removed_is_read_before_a_denial(world, first, second):
    uid, other, rival = create(world, 5, 2, 6)
    first.bind(uid)
    first.bind(other)
    world.delete(uid)
    second.resync()
    second.tidy_now()
    assert first.bind(rival).outcome is PLACED  # its cached list still has the first pod


@pytest.mark.parametrize("lost", ["deleted", "spoilt"])
def test_a_lost_list_is_rebuilt_from_the_pods_that_run(world, lost, replicas, first):
    uid, rival, small = create(world, 6, 6, 3)
    first.bind(uid)
    world.lose_list("n0", spoilt=lost == "spoilt")
    if lost == "spoilt":
        for replica in replicas:
            replica.tidy_now()  # must not mark the incomplete list as complete
    late = Replica(world, knows=False)
    assert late.bind(rival).outcome is DENIED
    assert late.bind(small).outcome is PLACED
    assert entered(world) == {uid, small}


@pytest.mark.parametrize("lost", ["deleted", "spoilt"])
def test_an_entry_that_was_lost_with_its_list_is_not_answered_from_memory(
    world, lost, first, second
):
    uid, rival = create(world, 6, 6)
    first.bind(uid, arrives=False)
    world.lose_list("n0", spoilt=lost == "spoilt")
    assert second.bind(rival).outcome is PLACED
    assert first.bind(uid).outcome is DENIED  # its cached list still has the entry
    assert entered(world) == {rival}


def test_tidying_does_not_make_a_whole_list_of_one_that_is_partly_damaged(world, first):
    uid, gone, rival = create(world, 6, 2, 6)
    first.bind(uid)
    first.bind(gone)
    world.delete(gone)
    lines = world.data("n0")["assignments"].splitlines(True)
    world.spoil("n0", "".join("{\n" if uid in line else line for line in lines))
    late = Replica(world, knows=False)
    late.tidy_now()
    assert late.bind(rival).outcome is DENIED


def test_a_pod_bound_elsewhere_frees_what_it_held():
    world = World((10,), (10,))
    first = Replica(world)
    uid, rival = create(world, 6, 6)
    first.bind(uid, arrives=False)
    first.bind(uid, "n1")
    first.resync()
    assert first.bind(rival).outcome is PLACED


def test_a_pod_that_sees_all_gpus_counts_on_each(world, first):
    (uid,), (rival,) = seeing_all(world, 6), create(world, 6)
    world.bind_bare(uid, "n0")
    first.resync()
    assert first.bind(rival).outcome is DENIED


UNTOUCHED = BindingOutcome.UNTOUCHED, BindingReason.NO_DEMAND
AWAY = BindingOutcome.UNTOUCHED, BindingReason.API_SERVER_AWAY


def seeing_all(world, *mib):
    """Create pods that see all GPUs and that all replicas know."""
    return create(world, *mib, at_binding=False)


def says(verdict):
    return verdict.outcome, verdict.reason


def test_a_pod_that_sees_all_gpus_is_entered_before_it_is_bound(world, first, second):
    (uid,) = seeing_all(world, 6)
    rival, small = create(world, 6, 4)
    assert says(first.bind(uid)) == UNTOUCHED
    (entry,) = world.assignments("n0").values()
    assert (entry.uuids, entry.memory_bytes, entry.terms) == ((EVERY_GPU,), 6 * MIB, HELD)
    assert second.bind(rival).outcome is DENIED  # the replica has not seen the pod's binding
    assert second.bind(small).outcome is PLACED
    assert says(second.bind(uid)) == UNTOUCHED
    assert entered(world) == {uid, small}


def test_a_pod_that_sees_all_gpus_is_never_denied(world, first):
    full, uid, over, unread = seeing_all(world, 10, 9, 9, 9)
    world.annotate(unread, gpu_memory="8GB")
    world.create(4)
    first.resync()
    for one in (full, uid, over, unread):
        assert says(first.bind(one)) == UNTOUCHED
    assert entered(world) == {full, uid, over, unread}
    world.relabel("n0", DeviceNames.NONE)
    first.hear_node()
    for node in ("n0", "elsewhere"):
        (one,) = seeing_all(world, 9)
        assert says(first.bind(one, node)) == UNTOUCHED
        assert one in entered(world, node)
    (one,) = seeing_all(world, 9)
    world.fails(".", 0, forever=True)
    verdict = first.bind(one)
    assert says(verdict) == AWAY
    assert verdict.message.endswith(f"could not be entered in its list: {SILENT}")
    verdict = first.binder.fallback_verdict(Binding("ns", one, one, "n0", {}), "slow")
    assert says(verdict) == AWAY
    assert verdict.message.endswith("could not be entered in its list: slow")


def test_one_that_is_denied_does_not_keep_out_one_that_sees_all_gpus(world, first):
    (uid,) = seeing_all(world, 6)
    (large,) = create(world, 11)
    asked = [first.ask(item) for item in (large, uid)]
    assert [says(request.done()) for request in asked] == [
        (DENIED, BindingReason.NO_GPU_FITS),
        UNTOUCHED,
    ]
    world.relabel("n0", DeviceNames.NONE)
    first.hear_node()
    (other,) = seeing_all(world, 6)
    asked = [first.ask(item) for item in (large, other)]
    assert [request.done().outcome for request in asked] == [DENIED, BindingOutcome.UNTOUCHED]
    assert entered(world) == {uid, other}


def test_a_dry_run_enters_nobody(world, first):
    (uid,) = seeing_all(world, 6)
    request = first.ask(uid, dry_run=True)
    assert says(request.done()) == UNTOUCHED
    assert world.lists == {}


def test_a_pod_that_sees_all_gpus_and_is_not_known_yet_is_entered_too(world):
    blind = Replica(world, knows=False)
    uid = world.create(6, at_binding=False)
    assert says(blind.bind(uid)) == UNTOUCHED
    assert entered(world) == {uid}


def test_late_assignment_leaves_alone_who_sees_all_gpus(world, first):
    (uid,) = seeing_all(world, 6)
    world.bind_bare(uid, "n0")
    first.resync()
    first.late_now()
    assert (world.given(uid), entered(world), first.tracker.pending_pods()) == ({}, set(), [])


def test_tidying_enters_who_was_bound_past_us(world, first, second):
    missed, forged = seeing_all(world, 6, 6)
    named, other = create(world, 3, by=NONE) + create(world, 3)
    first.bind(other)
    world.bind_bare(missed, "n0")
    world.commit(named, "n0", {GPU_ANNOTATION: "G0-0"})
    world.bind_bare(forged, "n0")
    second.resync()
    world.delete(forged)  # this replica has not seen the deletion
    world.asked.clear()
    second.tidy_now()
    assert asked(world) == (0, 3, 1)
    found = world.assignments("n0")
    assert {uid: item.uuids for uid, item in found.items()} == {
        other: ("G0-0",),
        named: ("G0-0",),
        missed: (EVERY_GPU,),
    }
    assert found[missed].terms == HELD
    assert terms_of(world, named) == (NONE, False, 5)
    first.resync()
    world.asked.clear()
    first.tidy_now()
    assert (world.count(), world.count(READ_LIST)) == (1, 1)


def test_many_who_were_bound_past_us_are_asked_for_in_several_rounds(world, monkeypatch, first):
    monkeypatch.setattr(assignment_gc, "ADOPTED_AT_ONCE", 3)
    (other,) = create(world, 1)
    first.bind(other)
    uids = seeing_all(world, *[1] * 5)
    for uid in uids:
        world.bind_bare(uid, "n0")
    first.resync()
    many = []
    for _ in range(3):
        world.asked.clear()
        first.tidy_now()
        many.append((world.count(READ_POD), len(entered(world))))
    assert many == [(3, 4), (2, 6), (0, 6)]


def test_a_list_that_was_never_made_is_made_of_the_pods_that_are_there(world, first):
    """This happens after an upgrade, on a node to which no pod is bound any more."""
    uid, elsewhere = seeing_all(world, 2, 2)
    world.bind_bare(uid, "n0")
    world.bind_bare(elsewhere, "named-by-somebody")
    first.resync()
    assert first.gc.unlisted_nodes([]) == {"n0"}
    first.finish(first.run(lambda: first.gc.collect("n0", StoredList("n0", {}, False, ""))))
    assert entered(world) == {uid}
    assert first.gc.unlisted_nodes(["n0"]) == set()


def test_nothing_is_written_for_a_node_whose_pods_have_no_gpus(world, first):
    create(world, 2)
    world.bind_bare(*create(world, 2), "n0")
    first.resync()
    world.asked.clear()
    first.finish(first.run(lambda: first.gc.collect("n0", StoredList("n0", {}, False, ""))))
    assert (world.lists, world.count()) == ({}, 0)


def test_tidying_restores_terms_that_were_removed(world, first, second):
    (uid,) = create(world, 2)
    first.bind(uid)
    written = world.assignments("n0")
    without = {uid: replace(written[uid], terms=None)}
    world.spoil("n0", **write_assignments(without))
    world.resync()
    second.tidy_now()
    assert world.assignments("n0") == written
    lists = world.lists
    first.tidy_now()
    assert world.lists == lists


def test_tidying_writes_the_limit_that_a_pod_has(world, first):
    world.limit("n0", proven=True)
    world.hear_node()
    (uid,) = create(world, 2, limit=DriverLimit.AUTO)
    first.bind(uid, arrives=False)
    world.commit(uid, "n0", {GPU_ANNOTATION: "G0-0"})
    world.resync()
    first.tidy_now()
    assert world.assignments("n0")[uid].terms.limit is DriverLimit.OFF


def test_a_line_that_says_badly_what_a_pod_is_held_to_is_written_again(world, first):
    (uid,) = create(world, 2)
    first.bind(uid)
    data = world.data("n0")
    world.spoil("n0", data["assignments"].replace('"act": true', '"act": 1'))
    assert world.data("n0") != data
    first.tidy_now()
    assert world.data("n0") == data


def terms_of(world, uid, node="n0"):
    """Return terms of an entry: the enforcer, whether it may stop the pod, the grace period."""
    terms = world.assignments(node)[uid].terms
    return terms and (terms.by, terms.enforce, terms.grace_s)


@pytest.mark.parametrize("late", [False, True])
def test_terms_are_written_once_and_change_with_no_later_policy(world, replicas, first, late):
    (sentry,), (none,), (sidecar,) = (create(world, 1, by=by) for by in (BY_SENTRY, NONE, SIDECAR))
    world.policy = policy_with(grace="2s")  # the policy in force when the entries are written
    for uid in (sentry, none, sidecar):
        if late:
            world.bind_bare(uid, "n0")
        else:
            first.bind(uid)
    world.resync()
    first.late_now()
    assert all(world.pods[uid].uuids for uid in (sentry, none, sidecar))
    expected = {
        sentry: (BY_SENTRY, True, 2),
        none: (NONE, False, 2),
        sidecar: (SIDECAR, True, 5),  # the sidecar read its variables when it started
    }
    assert {uid: terms_of(world, uid) for uid in expected} == expected
    world.policy = a_policy()
    (other,) = create(world, 1)
    for replica in replicas:
        replica.tidy_now()
    first.bind(other)
    assert {uid: terms_of(world, uid) for uid in expected} == expected
    world.lose_list("n0", spoilt=False)
    first.tidy_now()
    by_defaults = BY_SENTRY, True, 5
    assert terms_of(world, sentry) == terms_of(world, none) == by_defaults
    assert terms_of(world, sidecar) == expected[sidecar]


def test_while_the_labels_of_its_namespace_are_unknown_a_pod_is_measured_only(world, first):
    (uid,) = create(world, 6, by=BY_SENTRY)
    world.policy = a_policy(a_rule(name="sentry", namespace_labels={"tier": "gold"}))
    assert first.bind(uid).outcome is PLACED
    assert terms_of(world, uid) is None
    first.tidy_now()
    assert terms_of(world, uid) is None
    world.cluster = Cluster(namespaces={"ns": {"tier": "gold"}})
    first.tidy_now()
    assert terms_of(world, uid) == (BY_SENTRY, True, 5)


def answered(world, node="n0"):
    return read_whole_gpu_pods(world.data(node))


def test_of_two_replicas_that_answer_a_question_at_once_one_writes(world, replicas, second):
    pods = [f"/api/v1/namespaces/ml/pods/{name}" for name in "abcd"]
    whole = [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]
    for pod in pods:
        status = {"startTime": "2026-01-01T00:00:00Z"}
        world.put(pod, {"spec": {"nodeName": "n0", "containers": whole}, "status": status})
    tasks = [replica.answer_question("n0", "7") for replica in replicas]
    while not all(task.done for task in tasks):
        for task in [task for replica in replicas for task in replica.tasks if not task.done]:
            task.step()
    assert answered(world) == WholeGpuPods("7", 4, ("ml/a", "ml/b", "ml/c"))
    assert world.count(WRITE_LIST) == 2  # one of them conflicts
    lists = world.lists
    world.asked.clear()
    for replica in replicas:
        replica.finish(replica.answer_question("n0", "7"))
    assert (world.count(), world.count(READ_LIST)) == (2, 2)
    assert world.lists == lists
    for pod in pods:
        world.remove(pod)
    second.finish(second.answer_question("n0", "8"))
    assert answered(world) == WholeGpuPods("8", 0, ())


def test_neither_a_binding_nor_an_answer_loses_the_other(world, replicas, first, second):
    one, two, three = create(world, 1, 1, 1)
    first.bind(one)  # this replica therefore caches the list
    task = second.answer_question("n0", "7")
    for _ in range(3):
        task.step()  # reads the list, the pods, and the list again for the write
    first.bind(two)
    second.finish(task)
    assert (entered(world), answered(world)) == ({one, two}, WholeGpuPods("7", 0, ()))
    first.bind(three)  # planned on the outdated cached list
    world.finish(one)
    world.resync()
    for replica in replicas:
        replica.tidy_now()
    assert (entered(world), answered(world)) == ({two, three}, WholeGpuPods("7", 0, ()))


def test_an_answer_makes_the_list_and_tidying_keeps_it_while_the_node_is_there(world, first):
    first.tracker._on_nodes([])  # the node is not shared yet
    first.finish(first.answer_question("n0", "7"))
    first.tidy_now()
    assert answered(world) == WholeGpuPods("7", 0, ())
    world.remove_nodes()
    first.tidy_now()
    assert world.lists == {}


def test_an_answer_that_was_removed_is_given_again(world, first):
    (uid,) = create(world, 1)
    first.finish(first.answer_question("n0", "7"))
    first.bind(uid)
    data = world.data("n0")
    answer = data.keys() - {"assignments"}
    world.edit(list_path("n0"), data=dict.fromkeys(answer))
    first.finish(first.answer_question("n0", "7"))
    assert world.data("n0") == data


def test_on_a_node_that_is_held_only_what_was_promised_is_given(world, first, second):
    (before,) = create(world, 2)
    first.bind(before, arrives=False)
    new, late = create(world, 2, 2)
    world.hold("n0", "a device plugin offers its GPUs")
    world.hear_node()
    verdict = first.bind(new)
    assert verdict.outcome is DENIED
    assert "node n0 gives no GPU to further pods now: a device plugin offers" in verdict.message
    assert second.bind(before).outcome is PLACED
    (all_of_them,) = seeing_all(world, 2)
    assert says(first.bind(all_of_them)) == UNTOUCHED
    world.bind_bare(late, "n0")
    first.resync()
    first.late_now()
    assert "a device plugin offers its GPUs; it was bound while" in world.told(late)
    world.hold("n0", None)  # no replica has seen the change
    assert first.bind(new).outcome is PLACED


def test_a_demand_that_cannot_be_read_stops_only_who_waits_for_a_gpu_of_ours(world, first):
    (uid, idle), (seeing,) = create(world, 6, None), seeing_all(world, 6)
    for item in (uid, seeing):
        world.annotate(item, gpu_memory="8GB")
    first.resync()
    verdicts = [says(first.bind(item)) for item in (uid, seeing, idle)]
    assert verdicts == [(DENIED, BindingReason.UNREADABLE_DEMAND), UNTOUCHED, UNTOUCHED]


def test_a_binding_costs_the_requests_that_it_needs_and_no_more(world, first):
    uid, other = create(world, 4, 4)
    plain = world.create(None)
    assert requests(first.ask(plain, "elsewhere")) == 0  # no demand and no GPUs: from memory
    assert requests(first.ask(plain)) == 1  # a read of the unknown pod
    first.tracker._on_node("MODIFIED", GpuNode(name="silent", gpus=()))
    assert requests(first.ask(plain, "silent")) == 1
    assert requests(first.ask(uid)) == 4  # list, pods, write and its response
    assert requests(first.ask(other)) == 2  # write and its response
    assert requests(first.ask(other)) == 1  # repeated: reads the list


def test_what_is_answered_where_nothing_is_placed(world, first):
    (uid,) = create(world, 4)
    verdict = first.bind(uid, "elsewhere")
    assert (verdict.outcome, verdict.reason) == (DENIED, BindingReason.GPUS_UNKNOWN)
    assert "node elsewhere does not show its GPUs" in verdict.message
    gone = first.bind("p99")
    assert (gone.outcome, gone.reason) == (BindingOutcome.UNTOUCHED, BindingReason.NO_SUCH_POD)
    world.annotate(uid, gpu_memory="8GB")
    first.resync()
    verdict = first.bind(uid)
    assert (verdict.outcome, verdict.reason) == (DENIED, BindingReason.UNREADABLE_DEMAND)
    assert "cannot be read: " in verdict.message


def test_all_that_wait_for_a_node_are_written_at_once(world, first):
    uids = create(world, *[1] * 9)
    asked = [first.ask(uids[0])]
    asked[0].step()
    asked += [first.ask(uid) for uid in uids[1:]]
    assert len(first.tasks) == 1  # only the first request holds a thread
    assert [request.done().outcome for request in asked] == [PLACED] * 9
    assert world.count(WRITE_LIST) == 2  # one for the first request, one for all others
    assert entered(world) == set(uids)


def test_who_does_not_wait_any_more_is_not_entered(world, first):
    one, two, three = create(world, 1, 1, 1)
    asked = [first.ask(uid) for uid in (one, two, three)]
    asked[1].answer.cancel()
    assert [request.done().outcome for request in (asked[0], asked[2])] == [PLACED] * 2
    assert entered(world) == {one, three}


def test_an_answer_by_the_list_as_last_read_needs_its_write(world, first, second):
    """The write also confirms the answers to other requests in the queue."""
    one, two, three = create(world, 2, 2, 6)
    first.bind(one, arrives=False)
    second.bind(three)
    asked = [first.ask(one), first.ask(two)]
    assert [request.done().outcome for request in asked] == [PLACED] * 2
    assert entered(world) == {one, two, three}


def test_nothing_is_kept_of_a_node_once_nobody_waits_for_it_and_it_is_gone(world, first):
    (uid,) = create(world, 1)
    first.bind(uid)
    assert (first.lists._queue._queues, list(first.lists._copies)) == ({}, ["n0"])
    first.lists.forget("n0")
    assert first.lists._copies == {}
    assert first.lists.nodes_with_entries([first.tracker.pod(uid)]) == set()


class Untouched(dict):
    """A list that must not be read."""

    def __contains__(self, _uid):
        raise AssertionError("looked into")

    __iter__ = __contains__


def test_where_a_pod_that_ended_is_entered_is_found_without_reading_all_lists(world, first):
    bound, reserved = create(world, 1, 1)
    first.bind(bound)
    first.bind(reserved, arrives=False)
    first.resync()
    pods = [first.tracker.pod(uid) for uid in (bound, reserved)]
    copies = first.lists._copies
    copies |= {f"other-{number}": StoredList("", {}, True, "1") for number in range(9)}
    assert first.lists.nodes_with_entries(pods[1:] * 50) == {"n0"}
    copies |= {
        name: replace(copies[name], assignments=Untouched()) for name in copies if name != "n0"
    }
    assert first.lists.nodes_with_entries(pods[:1]) == {"n0"}


def test_without_the_api_server_only_a_pod_known_to_be_ours_is_denied(world, first):
    (ours,) = create(world, 1)
    unknown = world.create(1)
    world.fails(".", 0, forever=True)
    verdicts = [first.bind(uid) for uid in (ours, unknown)]
    assert [(verdict.outcome, verdict.reason) for verdict in verdicts] == [
        (BindingOutcome.UNAVAILABLE, BindingReason.API_SERVER_AWAY),
        (BindingOutcome.UNTOUCHED, BindingReason.API_SERVER_AWAY),
    ]
    assert verdicts[0].message == (
        f"no GPU of node n0 can be chosen for this pod now: {SILENT}; the scheduler retries"
    )


def stumble(_):
    raise RuntimeError("a bug")


def test_after_a_bug_all_in_the_line_are_answered_and_the_next_ones_too(world, first):
    uids = create(world, 1, 1, 1)
    world.fails(LIST_PODS, stumble)
    asked = [first.ask(uid) for uid in uids[:2]]
    for request in asked:
        with pytest.raises(RuntimeError, match="a bug"):
            request.done()
    assert first.bind(uids[2]).outcome is PLACED


def test_a_list_of_a_node_that_is_gone_is_deleted_once_it_is_empty(world, first):
    bound, reserved = create(world, 3, 3)
    first.bind(bound)
    first.bind(reserved, arrives=False)
    world.remove_nodes()
    first.hear_nodes()
    first.resync()
    first.tidy_now()
    assert entered(world) == {bound, reserved}  # a binding may be in progress
    world.time_s += UNBOUND_S + 1
    first.tidy_now()
    assert entered(world) == {bound}
    world.delete(bound)
    first.resync()
    first.tidy_now()
    first.tidy_now()
    assert world.lists == {}


def test_a_damaged_list_is_restored_by_tidying(world, first, second):
    uid, rival = create(world, 6, 6)
    first.bind(uid)
    world.spoil("n0")
    second.resync()
    second.tidy_now()
    assert read_assignments(world.data("n0")) == (world.assignments("n0"), True)
    assert entered(world) == {uid}
    assert first.bind(rival).outcome is DENIED


def test_many_pods_that_are_gone_are_asked_for_by_name_and_written_once(world, first, second):
    uids = create(world, *[1] * 8)
    for uid in uids:
        first.bind(uid)
    world.resync()
    world.time_s += UNBOUND_S + 1
    for uid in uids[1:]:
        world.delete(uid)
    second.resync()
    world.asked.clear()
    second.tidy_now()
    assert entered(world) == {uids[0]}
    assert asked(world) == (0, 7, 1)


def test_entries_of_bindings_under_way_stay_where_another_pod_is_gone(world, first, second):
    uids = [world.create(2) for _ in range(3)]
    for uid in uids:
        first.bind(uid, arrives=False)  # the other replica has not seen this
    gone = uids.pop()
    world.delete(gone)
    second.tidy_now()
    assert entered(world) == set(uids)


def test_of_two_replicas_one_deletes_the_list_of_a_node_that_is_gone(world, replicas, first):
    (uid,) = create(world, 3)
    first.bind(uid)
    world.delete(uid)
    world.remove_nodes()
    stored = first.api.read_list("n0")
    for replica in replicas:
        replica.hear_nodes()
        replica.resync()
        replica.gc.collect("n0", stored)
    assert world.lists == {}


def relabel(world, names):
    """Change the node's device names, and let all replicas see them."""
    world.relabel("n0", names)
    world.hear_node()


def test_a_binding_that_comes_again_gets_the_same_gpu_as_its_node_names_it_now(
    world, replicas, first
):
    world.put_node("n0", 10, 10)
    relabel(world, DeviceNames.UUID)
    other, uid = create(world, 5, 6)
    first.bind(other)
    verdict = first.bind(uid, arrives=False)
    given = {
        GPU_ANNOTATION: "G0-1",
        VISIBLE_DEVICES_ANNOTATION: "G0-1",
        GPU_MEMORY_FRACTION_ANNOTATION: "0.2727",  # 3 of 11 MiB
    }
    assert verdict.annotations == given
    world.delete(other)  # the first GPU would be chosen now
    relabel(world, DeviceNames.RUNTIME)
    named = given | {VISIBLE_DEVICES_ANNOTATION: "runtime.nvidia.com/gpu=G0-1"}
    world.resync()
    for replica in replicas:
        assert replica.bind(uid, arrives=False).annotations == named


def test_all_that_were_planned_together_get_what_is_theirs(world, first):
    relabel(world, DeviceNames.RUNTIME)
    asked = [first.ask(uid) for uid in create(world, 2, 4)]
    for verdict, fraction in zip(
        (request.done() for request in asked), ("0.1000", "0.2000"), strict=True
    ):
        assert verdict.annotations == {
            GPU_ANNOTATION: "G0-0",
            VISIBLE_DEVICES_ANNOTATION: "runtime.nvidia.com/gpu=G0-0",
            GPU_MEMORY_FRACTION_ANNOTATION: fraction,
        }
    assert world.count(WRITE_LIST) == 1


@pytest.mark.parametrize("names", [DeviceNames.NONE, None])
def test_on_a_node_whose_gpus_have_no_name_nothing_is_entered(world, names, first):
    (uid,) = create(world, 4)
    relabel(world, names)
    verdict = first.bind(uid)
    assert (verdict.outcome, verdict.reason) == (DENIED, BindingReason.NO_DEVICE_NAMES)
    assert "label vramwarden.io/device-names" in verdict.message
    assert (verdict.annotations, entered(world)) == ({}, set())
    world.relabel("n0", DeviceNames.SPECIFICATION)  # this replica has not seen the change
    assert first.bind(uid).annotations[VISIBLE_DEVICES_ANNOTATION] == "nvidia.com/gpu=G0-0"


def test_what_has_gpus_of_a_node_whose_names_do_not_work_now_keeps_them(world, first):
    uid, gone = create(world, 4, 4)
    for item in (uid, gone):
        first.bind(item)
    relabel(world, DeviceNames.NONE)
    world.delete(gone)
    world.resync()
    first.tidy_now()
    assert entered(world) == {uid}


def test_who_requires_the_drivers_limit_is_placed_where_the_node_has_it_alone(world, first):
    promised = DriverLimit.AUTO, DriverLimit.REQUIRE
    auto, requiring = (create(world, 4, limit=limit)[0] for limit in promised)
    verdict = first.bind(requiring)
    assert (verdict.outcome, verdict.reason) == (DENIED, BindingReason.NO_DRIVER_LIMIT)
    assert verdict.message == deny_without_driver_limit("n0").sentence
    assert DRIVER_LIMIT_ANNOTATION not in first.bind(auto, arrives=False).annotations
    assert world.assignments("n0")[auto].terms.limit is DriverLimit.OFF
    world.limit("n0", proven=True)  # this replica has not seen the change
    verdict = first.bind(requiring, arrives=False)
    assert verdict.annotations[DRIVER_LIMIT_ANNOTATION] == "Require"
    assert verdict.annotations[GPU_MEMORY_FRACTION_ANNOTATION] == "0.5000"  # half of the cap
    world.hear_node()
    # The pod's entry decides, because the limiter may have read it.
    assert DRIVER_LIMIT_ANNOTATION not in first.bind(auto, arrives=False).annotations
    world.limit("n0", proven=False)
    world.hear_node()
    assert first.bind(requiring).outcome is DENIED  # although the pod is entered
    assert DRIVER_LIMIT_ANNOTATION not in first.bind(auto).annotations
    limits = {uid: assignment.terms.limit for uid, assignment in world.assignments("n0").items()}
    assert limits == {auto: DriverLimit.OFF, requiring: DriverLimit.REQUIRE}


@pytest.mark.parametrize("by", EnforceBy)
def test_a_pod_by_sentry_is_placed_only_on_a_node_whose_sentry_acts(by, world, first):
    (uid,) = create(world, 4, by=by)
    world.guard("n0", acts=False)
    world.hear_node()
    verdict = first.bind(uid, arrives=False)
    denied = (DENIED, BindingReason.NO_SENTRY, deny_without_sentry("n0", 4 * MIB).sentence)
    placed = (PLACED, BindingReason.NONE, "")
    found = (verdict.outcome, verdict.reason, verdict.message)
    assert found == (denied if by is BY_SENTRY else placed)
    assert entered(world) == (set() if by is BY_SENTRY else {uid})
    world.guard("n0", acts=True)  # this replica has not seen the change
    assert first.bind(uid).outcome is PLACED


@pytest.mark.parametrize("proven", [True, False])
def test_fraction_entry_and_annotation_agree_also_when_the_label_changes(proven, world, first):
    """The label may disappear right after a pod was entered. The pod then waits for the limit."""
    world.limit("n0", proven=proven)
    world.hear_node()
    (uid,) = create(world, 4, limit=DriverLimit.AUTO)
    given = first.bind(uid, arrives=False).annotations
    assert given.get(DRIVER_LIMIT_ANNOTATION) == ("Auto" if proven else None)
    assert (given[GPU_MEMORY_FRACTION_ANNOTATION] == "0.5000") is proven  # half of the cap
    world.limit("n0", proven=not proven)
    world.hear_node()
    assert first.bind(uid).annotations == given
    limit = DriverLimit.AUTO if proven else DriverLimit.OFF
    assert world.assignments("n0")[uid].terms.limit is limit
