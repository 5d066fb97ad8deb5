"""The node's label and condition for an acting sentry, and the age limit of their proof."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.agent.stepped import FINE, GONE, GPU, NOBODY, SOMEBODY, Bench
from tests.agent.test_sharing import label, plugin
from tests.agent.test_startup_taint import TAINT, TAINTED, has_taint
from tests.support import gpus
from tests.support.clusters import a_gpu, a_node
from webhook.adapters.kube.node_objects import FiguresSeen, FiguresUnread
from webhook.agent.proofs import GpuNodeProofs
from webhook.core.kinds.nodes import SENTRY_FRESH_S

LABEL, CONDITION = "vramwarden.io/sentry", "vramwarden.io/SentryActing"
MEASURED = replace(a_gpu(9), uuid=GPU.uuid, measured=True)
ACTS = replace(a_node("n", MEASURED).figures, acts=True)
BLIND = replace(ACTS, gpus=(replace(MEASURED, measured=False),))
SECOND = replace(GPU, uuid="GPU-b", index=1)


@pytest.fixture
def bench(monkeypatch):
    """Return an agent, before its first read, of a node where a sentry is expected."""
    return Bench(monkeypatch, namespace="vramwarden", expects_sentry=True)


def figures(bench, found=ACTS, *, old_s=0.0):
    """Return a GPUNode that the sentry wrote `old_s` ago."""
    return FiguresSeen(replace(found, observed_s=bench.clock.time() - old_s))


def shown(bench):
    """Return True if the node has the label, and its condition's status and reason."""
    found = [
        condition
        for condition in bench.node["status"].get("conditions", ())
        if condition["type"] == CONDITION
    ]
    said = [(item["status"], item["reason"]) for item in found]
    assert bench.labels.get(LABEL) in {None, "true"}
    return LABEL in bench.labels, *said


TRUE = ("True", "SentryActs")
NO_SENTRY, NO_ACT = ("False", "NoSentry"), ("False", "SentryDoesNotAct")
UNMEASURED = ("False", "GPUNotMeasured")


@pytest.mark.parametrize("carried", [None, "true"])
@pytest.mark.parametrize(
    ("said", "at_once", "later"),
    [
        (figures, (True, TRUE), (False, NO_SENTRY)),
        (lambda bench: figures(bench, old_s=SENTRY_FRESH_S), (True, TRUE), (False, NO_SENTRY)),
        (lambda bench: figures(bench, old_s=SENTRY_FRESH_S + 1), (False,), (False, NO_SENTRY)),
        (lambda bench: figures(bench, old_s=-3 * SENTRY_FRESH_S), (False,), (False, NO_SENTRY)),
        (lambda _: FiguresSeen(None), (False,), (False, NO_SENTRY)),
        (lambda _: FiguresUnread("why"), None, (False, NO_SENTRY)),
        (lambda bench: figures(bench, replace(ACTS, acts=False)), (False,), (False, NO_SENTRY)),
        (lambda bench: figures(bench, BLIND), (False,), (False, NO_SENTRY)),
        (lambda bench: figures(bench, replace(ACTS, gpus=())), (False,), (False, NO_SENTRY)),
    ],
    ids=[
        "it acts", "for two minutes", "too old", "of the future", "none", "it cannot be read",
        "it only reports", "a GPU is not measured", "it sees no GPU",
    ],
)  # fmt: skip
def test_a_node_shows_a_sentry_that_acts_as_long_as_its_gpu_node_proves_it(
    said, at_once, later, carried, bench
):
    bench.hear(NOBODY, FINE, bench.edit({"metadata": {"labels": {LABEL: carried}}}))
    before = (carried == "true",)
    assert shown(bench) == before
    bench.hear(said(bench))
    assert shown(bench) == (before if at_once is None else at_once)
    bench.hear(after_s=SENTRY_FRESH_S + 1)
    assert shown(bench) == later


@pytest.mark.parametrize(
    ("found", "condition", "names"),
    [
        (replace(ACTS, acts=False), NO_ACT, "may stop no process"),
        (BLIND, UNMEASURED, GPU.uuid),
        (None, NO_SENTRY, "for 120 s"),
    ],
)
def test_the_condition_says_what_is_missing_after_two_minutes_and_when_it_is_over(
    found, condition, names, bench
):
    bench.hear(NOBODY, FINE, bench.see_node(), figures(bench))
    message = FiguresSeen(None) if found is None else figures(bench, found)
    bench.hear(message, after_s=SENTRY_FRESH_S)
    assert shown(bench) == (True, TRUE)
    bench.hear(*([figures(bench, found)] if found else []), after_s=1)
    assert shown(bench) == (False, condition)
    (written,) = bench.node["status"]["conditions"]
    assert names in written["message"]
    assert written["lastTransitionTime"] == "2023-11-14T22:32:01Z"
    assert f"conditions[{CONDITION}]: True, SentryActs -> {', '.join(condition)}" in str(
        bench.lines()[-1]["changes"]
    )
    bench.hear(figures(bench), after_s=9)
    assert shown(bench) == (True, TRUE)


def test_a_sentry_that_is_replaced_withdraws_and_writes_nothing(bench):
    bench.hear(NOBODY, FINE, bench.see_node(), figures(bench))
    sent = list(bench.sent)
    for _ in range(5):
        bench.hear(FINE, after_s=SENTRY_FRESH_S - 30)  # until the next sentry has started
        bench.hear(figures(bench))
        bench.hear(figures(bench, BLIND), after_s=30)  # the next sentry has scanned nothing yet
        bench.hear(figures(bench, replace(ACTS, acts=False)), after_s=30)
        bench.hear(figures(bench), after_s=30)
    assert shown(bench) == (True, TRUE)
    assert bench.sent == sent


def test_a_proof_lasts_two_minutes_from_what_the_sentry_saw(bench):
    bench.hear(NOBODY, FINE, bench.see_node(), figures(bench, old_s=SENTRY_FRESH_S - 20))
    for _ in range(2):
        bench.hear(after_s=10)
        assert shown(bench) == (True, TRUE)
    bench.hear(after_s=1)
    assert shown(bench) == (False, TRUE)  # the agent has run for less than two minutes


def test_nothing_is_written_while_nothing_changes(bench):
    bench.hear(NOBODY, FINE, bench.see_node(), figures(bench))
    sent = list(bench.sent)
    for _ in range(60):
        bench.hear(FINE, bench.see_node(), figures(bench), after_s=65)
    assert bench.sent == sent
    bench.hear(after_s=SENTRY_FRESH_S + 1)
    sent = list(bench.sent)
    for _ in range(60):
        bench.hear(FINE, bench.see_node(), after_s=65)
    assert bench.sent == sent


def test_each_gpu_that_is_shared_and_answers_has_to_be_measured(bench):
    two = replace(FINE, gpus=(GPU, SECOND))
    bench.hear(NOBODY, two, bench.see_node(), figures(bench))
    assert shown(bench) == (False,)
    both = replace(ACTS, gpus=(MEASURED, replace(MEASURED, uuid="GPU-b", index=1)))
    bench.hear(figures(bench, both))
    assert shown(bench) == (True, TRUE)
    lost = replace(FINE, unsure=frozenset({"GPU-b"}))
    bench.hear(lost, figures(bench), after_s=SENTRY_FRESH_S)
    bench.hear(figures(bench), after_s=1)
    assert shown(bench) == (True, TRUE)
    broken = replace(FINE, gpus=(GPU, replace(SECOND, recovery=1)))
    bench.hear(broken, figures(bench), after_s=SENTRY_FRESH_S)
    bench.hear(figures(bench), after_s=1)
    assert shown(bench) == (False, UNMEASURED)


READY = {"type": "Ready", "status": "True"}


def test_where_no_sentry_is_expected_none_is_missed(monkeypatch):
    bench = Bench(monkeypatch, namespace="vramwarden")
    old = {"type": CONDITION, "status": "False", "reason": "NoSentry", "message": "x"}
    bench.hear(NOBODY, FINE, bench.edit({"status": {"conditions": [READY, old]}}))
    bench.hear(FiguresSeen(None), after_s=SENTRY_FRESH_S + 1)
    assert bench.node["status"]["conditions"] == [READY]
    bench.hear(figures(bench))
    assert shown(bench) == (True,)


@pytest.mark.parametrize("ends", [label("false"), {}], ids=["share", "gone"])
def test_a_node_that_shares_nothing_says_nothing_of_its_sentry(ends, bench):
    bench.hear(NOBODY, FINE, bench.edit({"status": {"conditions": [READY]}}), figures(bench))
    assert shown(bench) == (True, TRUE)
    bench.hear(bench.edit(ends))
    if not ends:
        bench.hear(GONE, after_s=30)
        bench.hear(GONE, after_s=300)
    assert (bench.capacity, shown(bench)) == ("0", (False,))
    assert bench.node["status"]["conditions"] == [READY]


def test_a_node_that_is_held_still_says_that_its_sentry_is_gone(bench):
    bench.hear(SOMEBODY, FINE, bench.see_node(), figures(bench))
    bench.hear(bench.edit(label("false")), after_s=SENTRY_FRESH_S + 1)
    assert shown(bench) == (False, NO_SENTRY)


def test_a_condition_that_others_change_is_restored(bench):
    bench.hear(NOBODY, FINE, bench.see_node(), figures(bench))
    (before,) = bench.node["status"]["conditions"]
    bench.hear(bench.edit({"status": {"conditions": [{**before, "message": "x"}]}}), after_s=5)
    assert bench.node["status"]["conditions"] == [before]
    patched = {key: before[key] for key in ("type", "status", "reason", "message")}
    assert bench.sent[-1] == (True, {"status": {"conditions": [patched]}})


@pytest.mark.parametrize(("found", "waits_s"), [(ACTS, 1), (None, SENTRY_FRESH_S + 1)])
def test_the_startup_taint_waits_two_minutes_at_most_for_the_sentry(found, waits_s, monkeypatch):
    bench = Bench(monkeypatch, namespace="x", startup_taint=TAINT, expects_sentry=True)
    bench.hear(NOBODY, FINE, bench.edit(TAINTED), FiguresSeen(None))
    bench.hear(after_s=1)
    assert has_taint(bench)
    bench.hear(*([figures(bench, found)] if found else []), after_s=waits_s)
    bench.hear(after_s=1)
    assert not has_taint(bench)


@pytest.mark.parametrize(("scan", "change"), [(FINE, plugin()), (GONE, {})], ids=["whole", "none"])
def test_the_startup_taint_of_a_node_that_shares_nothing_waits_for_no_sentry(
    scan, change, monkeypatch
):
    bench = Bench(monkeypatch, namespace="x", startup_taint=TAINT, expects_sentry=True)
    bench.hear(NOBODY, scan, bench.edit(TAINTED), bench.edit(change), FiguresSeen(None))
    bench.hear(after_s=1)
    assert not has_taint(bench)


def test_an_agent_that_is_replaced_goes_by_the_gpu_node_alone(bench):
    bench.hear(NOBODY, FINE, bench.see_node(), figures(bench))
    again = bench.restarted()
    again.hear(NOBODY, FINE, again.see_node())
    assert (shown(again), again.sent) == ((True, TRUE), [])
    again.hear(figures(again, old_s=SENTRY_FRESH_S + 1))
    assert shown(again) == (False, TRUE)  # kept for two minutes: new figures may follow in a moment
    again.hear(after_s=SENTRY_FRESH_S + 1)
    assert shown(again) == (False, NO_SENTRY)


def test_figures_prove_nothing_before_the_first_scan(bench):
    now_s = bench.clock.time()
    proofs = GpuNodeProofs(now_s)
    proofs.on_figures(figures(bench, BLIND))
    assert proofs.sentry_acts(now_s, ()) is None
    assert proofs.sentry_acts(now_s, (gpus.a_gpu("a", 1000),)) is False
