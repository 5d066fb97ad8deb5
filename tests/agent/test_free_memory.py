"""The agent's labels of free memory, from the assignments: loop and watch."""

import pytest

from tests.agent.stepped import DOWN, FINE, GONE, ZEROED, Bench
from webhook.adapters.kube.node_objects import AssignmentsSeen, AssignmentsUnread
from webhook.agent import loop
from webhook.agent.sharing import DISPLAY_INTERVAL_S, QUESTION_INTERVAL_S, DisplayedAssignments
from webhook.core.placement.assignments import Assignment
from webhook.core.placement.cap_terms import CapTerms
from webhook.core.pod.quantity import MIB

LABEL = "vramwarden.io/gpu-memory-free-mib"
UNREAD = "the list of who has which GPUs cannot be watched; free memory may be stale"


@pytest.fixture
def sharing(monkeypatch):
    return Bench(monkeypatch, namespace="vramwarden-system")


def taking(mib):
    """Return assignments that take these MiB of the only GPU, which has 1000 MiB."""
    taken_bytes = mib * MIB
    terms = CapTerms(cap_bytes=taken_bytes, tolerance_bytes=0, delay_s=1.5, enforce=True)
    one = Assignment(pod="ns/p", uuids=("GPU-a",), memory_bytes=taken_bytes, since_s=0, terms=terms)
    return {"uid": one} if mib else {}


def taken(mib):
    return AssignmentsSeen(taking(mib))


def shown(bench):
    return bench.labels.get(LABEL)


def test_without_a_namespace_all_is_free(bench):
    bench.hear(FINE, bench.see_node())
    assert shown(bench) == "1000"


def test_nothing_is_said_before_it_is_known_who_has_what(sharing):
    sharing.hear(FINE, sharing.see_node()).hear(FINE, after_s=QUESTION_INTERVAL_S)
    assert sharing.capacity == "1000Mi"
    assert shown(sharing) is None
    sharing.hear(taken(0))
    assert shown(sharing) == "1000"


def test_each_change_is_shown(sharing):
    sharing.hear(FINE, sharing.see_node(), taken(296))
    assert shown(sharing) == "704"
    sharing.hear(taken(1000), after_s=DISPLAY_INTERVAL_S)
    assert shown(sharing) == "0"
    sharing.hear(taken(0), after_s=DISPLAY_INTERVAL_S)
    assert shown(sharing) == "1000"


def test_it_is_shown_while_the_driver_is_down(sharing):
    sharing.hear(FINE, sharing.see_node(), taken(0))
    again = sharing.restarted()
    again.hear(DOWN, again.see_node(), taken(296))
    assert shown(again) == "704"


def test_it_goes_with_the_gpus(sharing):
    sharing.hear(FINE, sharing.see_node(), taken(296))
    sharing.hear(GONE, after_s=30)
    assert shown(sharing) == "0"  # lost: pods that prefer nodes by this label would be denied
    sharing.hear(GONE, after_s=300)
    assert shown(sharing) is None


def test_where_the_list_cannot_be_read_the_label_stays_and_that_is_reported_once(sharing):
    sharing.hear(FINE, sharing.see_node(), taken(296))
    for _ in range(3):
        sharing.hear(AssignmentsUnread("forbidden"), after_s=10)
    assert shown(sharing) == "704"
    assert sharing.said().count(UNREAD) == 1
    assert sharing.unready() == ""  # the label is only a hint, and everything else is correct
    sharing.hear(sharing.edit(ZEROED), after_s=1)
    assert sharing.capacity == "1000Mi"
    sharing.hear(taken(0), after_s=DISPLAY_INTERVAL_S)
    assert sharing.said()[-1] == "the list of who has which GPUs is watched"
    assert shown(sharing) == "1000"


def test_where_only_the_watch_is_denied_reads_go_on_and_that_is_reported_once(sharing):
    sharing.hear(FINE, sharing.see_node())
    for mib in (104, 200, 296):
        seen = AssignmentsSeen(taking(mib), watched=False)
        sharing.hear(seen, AssignmentsUnread("forbidden"), after_s=10)
        assert shown(sharing) == str(1000 - mib)
    assert [said for said in sharing.said() if "list" in said] == [UNREAD]


def test_many_changes_at_once_are_one_patch_and_the_last_one_is_shown(sharing):
    sharing.hear(FINE, sharing.see_node(), taken(0))
    before = len(sharing.sent)
    for tenth in range(1, 1001):
        sharing.hear(taken(tenth), after_s=0.1)
    sent = len(sharing.sent) - before
    assert sent in {100 / DISPLAY_INTERVAL_S - 1, 100 / DISPLAY_INTERVAL_S}
    sharing.hear(taken(392), after_s=DISPLAY_INTERVAL_S)
    assert shown(sharing) == "608"


def test_pods_that_are_smaller_than_a_step_cost_few_patches(sharing):
    sharing.hear(FINE, sharing.see_node(), taken(8))
    before = len(sharing.sent)
    for mib in range(8, 40):
        sharing.hear(taken(mib), after_s=DISPLAY_INTERVAL_S)
        assert shown(sharing) == "992" if mib == 8 else "960"
    assert len(sharing.sent) - before == 1


def test_pods_that_come_and_go_do_not_count_against_the_allowance(monkeypatch, sharing):
    # Faster than the allowance is refilled.
    monkeypatch.setattr("webhook.agent.sharing.DISPLAY_INTERVAL_S", 1.0)
    sharing.hear(FINE, sharing.see_node(), taken(0))
    for second in range(200):
        mib = 40 + second % 2 * 32
        sharing.hear(taken(mib), after_s=1)
        assert shown(sharing) == str(1000 - mib)
    assert sharing.said().count("node patched") <= 2
    sharing.hear(sharing.edit(ZEROED), after_s=1)
    assert sharing.capacity == "1000Mi"  # other patches are still allowed


def test_whoever_keeps_removing_the_label_costs_no_patch_a_second(sharing):
    sharing.hear(FINE, sharing.see_node(), taken(0))
    sent = []
    for _ in range(300):
        sharing.hear(sharing.edit({"metadata": {"labels": {LABEL: None}}}), after_s=1)
        sent.append(len(sharing.sent))
    assert sent[-1] - sent[-101] == 100 / loop.PATCH_INTERVAL_S


def test_an_entry_that_was_only_renewed_adds_nothing_to_the_allowance(sharing):
    sharing.hear(FINE, sharing.see_node(), taken(0))
    sent = []
    for second in range(300):
        renewed = {
            "uid": Assignment(pod="ns/p", uuids=("GPU-a",), memory_bytes=MIB, since_s=second)
        }
        sharing.hear(AssignmentsSeen(renewed), after_s=0.5)
        sharing.hear(sharing.edit(ZEROED), after_s=0.5)
        sent.append(len(sharing.sent))
    assert sent[-1] - sent[-101] == 100 / loop.PATCH_INTERVAL_S


def test_a_change_that_could_not_be_patched_is_patched_later(sharing):
    sharing.hear(FINE, sharing.see_node(), taken(0))
    sharing.api.fails("PATCH", 0, forever=True)
    sharing.hear(taken(296), after_s=DISPLAY_INTERVAL_S)
    sharing.api.recovers()
    sharing.hear(after_s=1)
    assert shown(sharing) == "704"


def test_a_fixed_amount_says_nothing_of_what_is_free(monkeypatch):
    bench = Bench(monkeypatch, namespace="vramwarden-system", fixed_bytes=48 * 2**30)
    bench.hear(bench.see_node(), taken(0))
    assert bench.capacity == "48Gi"
    assert shown(bench) is None


def test_something_new_is_due_at_once_and_then_after_ten_seconds():
    due = DisplayedAssignments({})
    assert due.due_in_s(0.0) == float("inf")
    due.remember(taking(1))
    assert (due.due_in_s(10.0), due.poll(10.0)) == (0.0, True)
    assert (due.due_in_s(10.0), due.poll(10.0)) == (float("inf"), False)
    due.remember(taking(2))
    assert (due.due_in_s(10.25), due.poll(10.25)) == (9.75, False)
    assert due.shown == taking(1)
    assert due.poll(20.0)
    assert due.shown == taking(2)
