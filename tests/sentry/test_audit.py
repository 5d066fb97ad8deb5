"""Which memory nobody was promised, and when nothing is said of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.sentry.worlds import MIB, OTHER, TRAINER, a_line, a_look, held, hold
from webhook.core.placement.assignments import Assignment
from webhook.sentry.audit import Audit
from webhook.sentry.figures import OLD_LIST_S
from webhook.sentry.observer import Look

FOREVER = -1e9


def found(look, lines, now_s=100.0, first_s=0.0, fresh_s=FOREVER):
    audit = Audit()
    audit.know(lines)
    audit.see(look, first_s)
    audit.see(look, now_s)
    unmanaged = audit.unmanaged(now_s, fresh_s)
    return {(one.gpu.uuid, one.pod): one.held_bytes // MIB for one in unmanaged}


def test_the_table_of_the_docstring():
    look = a_look(
        held(50, 100), held(51, 30), held(60, 200, OTHER), held(70, 300, ""), held(71, 400, None),
        b=(held(50, 500),),
    )  # fmt: skip
    assert found(look, {TRAINER: a_line()}) == {
        ("GPU-a", OTHER): 200,
        ("GPU-a", ""): 700,
        ("GPU-b", TRAINER): 500,
    }


def test_a_line_of_any_release_and_kind_manages():
    look = a_look(held(50, 100), b=(held(50, 100),))
    old = Assignment("team/train", ("*",), 1, 1)
    for line in (old, a_line("*"), a_line("*", held=hold(may_act=False))):
        assert found(look, {TRAINER.upper(): line}) == {}


def test_a_pod_is_not_called_unmanaged_in_its_first_minute():
    look = a_look(held(60, 200, OTHER))
    assert found(look, {}, now_s=59.9) == {}
    assert found(look, {}, now_s=60.0) == {("GPU-a", OTHER): 200}


def test_nor_in_the_first_minute_of_a_list_that_is_followed_again():
    look = a_look(held(60, 200, OTHER))
    assert found(look, {}, now_s=200.0, fresh_s=141.0) == {}
    assert found(look, {}, now_s=200.0, fresh_s=140.0) == {("GPU-a", OTHER): 200}


def test_while_the_list_cannot_be_followed_nothing_is_said():
    assert found(a_look(held(70, 300, "")), {}, fresh_s=None) == {}


def test_what_has_no_figure_adds_nothing():
    assert found(a_look(held(60, None, OTHER), held(70, None, "")), {}) == {}


def test_a_gpus_last_list_counts_until_the_next_and_not_where_it_is_gone():
    audit = Audit()
    audit.see(a_look(held(70, 300, "")), 0.0)
    look = a_look()
    audit.see(Look(look.gpus, {}), 1.0)
    assert [one.held_bytes for one in audit.unmanaged(1.0, FOREVER)] == [300 * MIB]
    audit.see(Look(), 2.0)
    assert (audit.unmanaged(2.0, FOREVER), audit.holds) == ((), False)


def test_a_list_that_could_not_be_read_again_for_long_says_nothing_of_now():
    audit, look = Audit(), a_look(held(70, 300, ""))
    audit.see(look, 0.0)
    unlisted = Look(look.gpus, {})
    audit.see(unlisted, OLD_LIST_S - 1)
    assert (len(audit.unmanaged(0.0, FOREVER)), audit.holds) == (1, True)
    audit.see(unlisted, OLD_LIST_S)
    assert (audit.unmanaged(0.0, FOREVER), audit.holds) == ((), False)


def test_it_is_said_who_holds_how_much_where():
    audit = Audit()
    audit.know({TRAINER: a_line()})
    listed = (held(50, 500), held(60, 200, OTHER), held(70, 300, ""))
    audit.see(a_look(b=listed), 0.0)
    where, others = "Mi on GPU 1 (GPU-b) are held by", "it can push others out"
    assert [one.sentence() for one in audit.unmanaged(60.0, FOREVER)] == [
        f"300{where} processes of no pod; they can push pods out of memory",
        f"500{where} pod uid {TRAINER}, which was given other GPUs; {others}",
        f"200{where} pod uid {OTHER}, which was promised none; {others}",
    ]


@given(
    st.lists(st.sampled_from([TRAINER, OTHER]), max_size=4),
    st.lists(st.tuples(st.integers(50, 60), st.integers(1, 900)), max_size=5),
)
def test_a_managed_pod_on_its_own_gpus_is_never_unmanaged(managed, listed):
    look = a_look(*(held(pid, mib) for pid, mib in listed))
    lines = {uid: a_line() for uid in managed} | {TRAINER: a_line()}
    assert found(look, lines) == {}
