"""Full output of `vramwarden top` on terminals, recorded in `golden`."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.api_server import merged
from tests.support.clusters import (
    GIB,
    NOW_S,
    a_cluster,
    a_gpu,
    a_listed_pod,
    a_node,
    a_pod,
    gib,
    held,
    held_nodes,
    held_pods,
    many_nodes,
    team_nodes,
    team_pods,
)
from tests.support.golden_files import assert_recorded
from webhook.core.enforcement.messages import explain_stop
from webhook.core.enforcement.model import Excess, Process
from webhook.core.enforcement.termination_message import TerminationMessage, describe_for_people
from webhook.core.kinds.workloads import Workload
from webhook.tools.render.output import clean, cut
from webhook.tools.top.columns import ASCII, UNICODE, cap_bar, gpu_bar
from webhook.tools.top.report import build_report
from webhook.tools.top.rows import sum_gpus
from webhook.tools.top.terminal import Terminal, as_lines

GOLDEN = Path(__file__).parent / "golden"
ALL = ("nodes", "pods", "workloads")
_COLOURS = re.compile(r"\033\[[0-9;]*m")


def seen(nodes=(), pods=(), **options):
    cluster = a_cluster(list(nodes), list(pods))
    return build_report(cluster.figures, cluster.listed_pods, NOW_S, namespace="team-a", **options)


def team_a():
    return seen(team_nodes(), team_pods())


def long_names():
    figures = [
        replace(node.figures, name=f"ip-10-0-12{index}-45.eu-west-1.compute.internal")
        for index, node in enumerate(team_nodes())
    ]
    long = {"namespace": "a-namespace-of-a-large-team"}
    pods = [
        merged(
            team_pod,
            {"metadata": {"name": f"{team_pod['metadata']['name']}-{'very-' * 8}long", **long}},
        )
        for team_pod in team_pods()
    ]
    return build_report(figures, a_cluster([], pods).listed_pods, NOW_S)


def nothing_known():
    unknown = {"promised_bytes": None, "free_bytes": None}
    blind, half = (a_gpu(79, used=used, **unknown) for used in (None, 30))
    lost = a_gpu(79, held("u", 8, None, None, None), used=None, healthy=False)
    return seen([a_node("n1", blind, half, lost)])


def waits_at_length():
    waits = "no GPU of node n1 has 30Gi free, which this pod needs; the largest free amount is 23Gi"
    notes = {"vramwarden.io/gpu-waits": waits}
    late = a_pod("late", "32Gi", node="n1", status="Init:0/1", age_s=30, annotations=notes)
    return seen(team_nodes()[:1], [late])


def over_its_cap():
    gpu = a_gpu(50, held("over", 20, 20.1, 20.1), held("near", 20, 20, 20))
    return seen([a_node("n1", gpu)], [a_pod(name, "20Gi", node="n1") for name in ("over", "near")])


def held_and_more():
    more = a_node("n3", a_gpu(22, held("other", 8, 2, 2), unmanaged={"rogue": 3.1}))
    return seen([*held_nodes(), more], held_pods())


def narrow():
    fails = {"uid": "llama", "node": "n1", "gpus": "GPU-n1-0", "status": "CrashLoopBackOff"}
    return seen(team_nodes()[:1], [a_pod("llama-7c9f-x2kq4", "16Gi", **fails)])


def troubled():
    def one(number):
        gpu = a_gpu(79, used=9, unmanaged={f"uid-{number}": 3})
        return a_node(f"n{number}", gpu, age_s=10 * number)

    return seen(map(one, range(14, 21)))


CASES = {
    "file": (team_a(), Terminal(), ("nodes", "pods")),
    "narrow": (narrow(), Terminal(width=60), ("nodes", "pods")),
    "ascii": (team_a(), Terminal(width=100, unicode=False), ("nodes",)),
    "held-wide": (held_and_more(), Terminal(wide=True), ("nodes", "pods")),
    "colour": (team_a(), Terminal(width=120, colour=True), ALL),
    "over-its-cap": (over_its_cap(), Terminal(width=80, colour=True), ("pods",)),
    "long-names-80": (long_names(), Terminal(width=80), ("nodes", "pods")),
    "nothing-known": (nothing_known(), Terminal(width=100), ("nodes", "pods")),
    "waits-at-length": (waits_at_length(), Terminal(width=80), ("pods",)),
    "many-gpus-80": (seen(many_nodes(6)), Terminal(width=80), ("nodes",)),
    "plugin": (seen((), team_pods()[-1:]), Terminal(command="kubectl vramwarden"), ("pods",)),
}


@pytest.mark.parametrize("case", CASES)
def test_a_report_is_drawn_as_recorded(case):
    report, term, parts = CASES[case]
    drawn = "\n".join(as_lines(report, term, parts)) + "\n"
    assert_recorded(GOLDEN / f"{case}.txt", drawn)


def test_each_recording_is_of_a_case():
    assert {path.stem for path in GOLDEN.iterdir()} == set(CASES)


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
@pytest.mark.parametrize(
    "report",
    [team_a(), long_names(), troubled(), seen(many_nodes(6))],
    ids=["short", "long", "bad", "nodes"],
)
def test_no_line_is_wider_than_the_terminal(report, width):
    for parts in (("nodes", "pods"), ("pods",), ("workloads",)):
        drawn = as_lines(report, Terminal(width=width), parts)
        to_copy = ("why a pod waits: ", "  kubectl ")
        for line in drawn:
            assert len(line) <= max(width, 72) or line.startswith(to_copy)


@pytest.mark.parametrize("height", [8, 14, 24, 60])
def test_a_screen_is_never_exceeded(height):
    report = seen(many_nodes(40), team_pods())
    assert len(as_lines(report, Terminal(width=100, height=height))) <= height


def test_colour_changes_nothing_but_colours():
    for report, term, parts in CASES.values():
        coloured = as_lines(report, replace(term, colour=True), parts)
        plain = as_lines(report, replace(term, colour=False), parts)
        assert [_COLOURS.sub("", line) for line in coloured] == plain


@given(st.text(max_size=60), st.booleans())
def test_nothing_that_others_wrote_reaches_the_terminal_as_it_is(text, wide):
    gpus = (
        a_gpu(22, held("embed", 8, 7.8), product=text, uuid=text),
        a_gpu(22, product=text, uuid=text, unmanaged={text: 3.1}),
    )
    node = replace(a_node("n2", *gpus).figures, name=text, driver_version=text)
    anything = {"status": text, "waiting_reason": text, "workload": Workload(text, text)}
    pods = [
        a_listed_pod("embed", text, text, node=text, **anything),
        a_listed_pod("x", text, text, status=text, scheduler_message=text),
        a_listed_pod("y", text, text, node="n9", **anything),
    ]
    report = build_report([node], pods, NOW_S, namespace=text, missing=[text])
    drawn = as_lines(report, Terminal(unicode=False, wide=wide), ALL)
    assert all(" " <= char <= "~" for line in drawn for char in line)


def test_what_moves_a_cursor_is_a_question_mark():
    assert clean("a\x1b[2Jb\r\n\tc\u202ed\x9be\N{CJK UNIFIED IDEOGRAPH-4E2D}") == "a?[2Jb???c?d?e?"


@pytest.mark.parametrize(
    ("width", "said"),
    [(20, "llama-7c9f-x2kq4"), (16, "llama-7c9f-x2kq4"), (9, "llam…2kq4"), (2, "l…")],
)
def test_a_name_is_cut_in_its_middle(width, said):
    assert cut("llama-7c9f-x2kq4", width, "…") == said


@given(
    st.none() | st.integers(0, 200),
    st.none() | st.integers(0, 200),
    st.integers(0, 50),
    st.integers(1, 40),
)
def test_a_bar_has_its_cells_and_claims_free_memory_only_where_all_is_known(
    used, promised, stranger, cells
):
    promised_bytes = promised and gib(promised)
    gpu = a_gpu(79, used=used, unmanaged={"x": stranger}, promised_bytes=promised_bytes)
    (row,) = seen([a_node("n", gpu)]).nodes[0].gpus
    bar = gpu_bar(sum_gpus([row]), cells, ASCII)
    assert len(bar) == cells
    if used is None or promised is None:
        assert "." not in bar
    else:
        assert "?" not in bar


def test_a_small_thing_is_seen_in_a_bar():
    (row,) = seen([a_node("n", a_gpu(79, used=2, unmanaged={"x": 1}))]).nodes[0].gpus
    assert gpu_bar(sum_gpus([row]), 10, UNICODE) == "█!········"


@pytest.mark.parametrize(
    ("used", "bar"),
    [(None, "    "), (0, "...."), (1, "#..."), (50, "##.."), (100, "####"), (150, "####")],
)
def test_a_cap_is_filled_by_what_is_used(used, bar):
    assert cap_bar(used, 100, 4, ASCII) == bar


@given(st.integers(GIB, 180 * GIB), st.integers(GIB // 4, 180 * GIB), st.integers(0, 10**6))
def test_top_the_termination_message_and_the_log_say_an_amount_and_a_time_alike(peak, cap, seconds):
    cap -= cap % 2**20
    holder = replace(held("u", 1), cap_bytes=cap, used_bytes=peak, peak_bytes=peak)
    node = a_node("n1", a_gpu(200, holder, used=190, promised_bytes=cap, uuid="GPU-0"))
    facts = {"created_s": NOW_S - seconds, "gpus": ("GPU-0",), "requested_bytes": cap}
    pod = a_listed_pod("u", "ns", "train", status="Running", node="n1", **facts)
    report = build_report([node.figures], [pod], NOW_S, namespace="ns")
    head, row = as_lines(report, Terminal(wide=True), ["pods"])[:2]
    # Amounts and times are right-aligned with their column's title.
    ends = (head.index(title) + len(title) for title in ("PEAK", "CAP", "AGE"))
    said, asked, ago = (row[:end].split()[-1] for end in ends)
    message = describe_for_people(TerminationMessage(cap, {"GPU-0": peak}, 0, seconds))
    excess = Excess(
        gpu="GPU-0", used_bytes=peak, sum_bytes=peak, cap_bytes=cap,
        peak_bytes=peak, grew_bytes=0, grew_within_s=1.0,
    )  # fmt: skip
    log = explain_stop(Process(7, 7, "python"), excess)
    assert message == f"peak {said} of {asked} on GPU-0, nothing was stopped, guarded for {ago}"
    assert f"holds {said}, the cap is {asked}; " in log
    assert f"the pod's peak was {said}, so " in log
