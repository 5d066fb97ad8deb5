"""The lines that `vramwarden top` prints, whole, as they are recorded in `golden`."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.seen_cluster import (
    AT_S,
    GIB,
    a_gpu,
    a_listed_pod,
    a_node,
    many_nodes,
    nodes,
    pods,
)
from webhook.core.enforcement.explanation import explain_stop
from webhook.core.enforcement.step import Excess, Process
from webhook.core.enforcement.termination_message import TerminationMessage, in_words
from webhook.core.kinds.nodes import PodFigures
from webhook.core.kinds.workloads import Workload
from webhook.tools.shared.output import clean, cut
from webhook.tools.shared.pod import ClusterPod
from webhook.tools.top.judge import Order, join, ordered
from webhook.tools.top.show.bars import ASCII, UNICODE, cap_bar, gpu_bar
from webhook.tools.top.show.draw import Terminal, lines

GOLDEN = Path(__file__).parent / "golden"
UPDATE = "UPDATE_GOLDEN"
HOW = (
    f"`{UPDATE}=1 .venv/bin/pytest tests/tools/top/test_draw.py` writes what comes out now; "
    "read the difference before committing it"
)
ALL = ("nodes", "pods", "workloads")
_COLOURS = re.compile(r"\033\[[0-9;]*m")


def team_a(**options):
    seen = [
        ClusterPod({}, **vars(pod) | {"workload": Workload("Job", pod.name.partition("-")[0])})
        if pod.name.startswith("train")
        else pod
        for pod in pods()
    ]
    return join(nodes(), seen, AT_S, namespace="team-a", **options)


def long_names():
    large = "a-namespace-of-a-large-team"
    figures = [
        replace(node, name=f"ip-10-0-12{index}-45.eu-west-1.compute.internal")
        for index, node in enumerate(nodes())
    ]
    seen = [
        ClusterPod({}, **vars(pod) | {"name": f"{pod.name}-{'very-' * 8}long", "namespace": large})
        for pod in pods()
    ]
    return join(figures, seen, AT_S)


def nothing_known():
    blind = a_gpu(0, 79, None, promised_bytes=None, free_bytes=None)
    half = a_gpu(1, 79, 30, promised_bytes=None, free_bytes=None)
    lost = a_gpu(2, 79, None, [("u", 8, None, None, None)], healthy=False)
    return join([a_node("n1", blind, half, lost)], [], AT_S, namespace="team-a")


def without_figures():
    return join(
        None, pods(), AT_S, namespace="team-a", missing=["no figures of GPUs: for a reason"]
    )


def beside_the_plugin():
    broken = a_gpu(1, 79, 0, healthy=False, fault="Xid 79")
    whole = a_gpu(0, 79, 60, unmanaged=[("u", 60)])
    offered = replace(a_node("n2", whole), not_shared="nvidia.com/gpu is offered")
    held = replace(a_node("n3", a_gpu(0, 79, 9)), held="a device plugin offers them whole")
    figures = [a_node("n1", a_gpu(0, 40, 9), broken), offered, held]
    return join(figures, [], AT_S, namespace="team-a")


def waits_at_length():
    waits = "no GPU of node n1 has 30Gi free, which this pod needs; the largest free amount is 23Gi"
    seen = [
        a_listed_pod(
            "u",
            "team-a",
            "late",
            "Init:0/1",
            "n1",
            created_s=AT_S - 30,
            waits=waits,
            asked_bytes=2**35,
        )
    ]
    return join(nodes()[:1], seen, AT_S, namespace="team-a")


def troubled():
    figures = [
        a_node(f"n{number}", a_gpu(0, 79, 9, unmanaged=[(f"uid-{number}", 3)]), age_s=10 * number)
        for number in range(14, 21)
    ]
    return join(figures, [], AT_S, namespace="team-a")


CASES = {
    "beside-the-plugin": (beside_the_plugin(), Terminal(width=100), ("nodes",)),
    "file": (team_a(), Terminal(), ("nodes", "pods")),
    "terminal-120": (team_a(), Terminal(width=120), ("nodes", "pods")),
    "terminal-80": (team_a(), Terminal(width=80), ("nodes", "pods")),
    "terminal-60": (team_a(), Terminal(width=60), ("nodes", "pods")),
    "ascii": (team_a(), Terminal(width=100, unicode=False), ALL),
    "wide": (team_a(), Terminal(wide=True), ("nodes", "pods")),
    "colour": (team_a(), Terminal(width=120, colour=True), ALL),
    "pods": (team_a(), Terminal(width=100), ("pods",)),
    "workloads": (team_a(), Terminal(width=100), ("workloads",)),
    "idle-first": (ordered(team_a(), Order.IDLE), Terminal(width=110), ("nodes", "pods")),
    "long-names-80": (long_names(), Terminal(width=80), ("nodes", "pods")),
    "long-names-file": (long_names(), Terminal(), ("nodes", "pods")),
    "nothing-known": (nothing_known(), Terminal(width=100), ("nodes", "pods")),
    "without-figures": (without_figures(), Terminal(width=100), ("nodes", "pods")),
    "waits-at-length": (waits_at_length(), Terminal(width=80), ("pods",)),
    "many-troubles": (troubled(), Terminal(width=100), ("nodes",)),
    "many-gpus": (join(many_nodes(6), [], AT_S, namespace="t"), Terminal(width=120), ("nodes",)),
    "many-gpus-80": (join(many_nodes(6), [], AT_S, namespace="t"), Terminal(width=80), ("nodes",)),
    "screen": (team_a(), Terminal(width=100, height=14), ("nodes", "pods")),
    "plugin": (team_a(), Terminal(width=100, command="kubectl vramwarden"), ("pods",)),
}


@pytest.mark.parametrize("case", CASES)
def test_a_report_is_drawn_as_recorded(case):
    report, term, parts = CASES[case]
    drawn = "\n".join(lines(report, term, parts)) + "\n"
    path = GOLDEN / f"{case}.txt"
    if os.environ.get(UPDATE):
        path.write_text(drawn)
    assert drawn == path.read_text(), HOW


def test_each_recording_is_of_a_case():
    assert {path.stem for path in GOLDEN.iterdir()} == set(CASES)


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
@pytest.mark.parametrize(
    "report", [team_a(), long_names(), troubled()], ids=["short", "long", "bad"]
)
def test_no_line_is_wider_than_the_terminal(report, width):
    for parts in (("nodes", "pods"), ("pods",), ("workloads",)):
        drawn = lines(report, Terminal(width=width), parts)
        to_copy = ("why a pod waits: ", "  kubectl ")
        for line in drawn:
            assert len(line) <= max(width, 72) or line.startswith(to_copy)


@pytest.mark.parametrize("height", [8, 14, 24, 60])
def test_a_screen_is_never_exceeded(height):
    report = join(many_nodes(40), pods(), AT_S)
    assert len(lines(report, Terminal(width=100, height=height))) <= height


def test_colour_changes_nothing_but_colours():
    for report, term, parts in CASES.values():
        coloured = lines(report, replace(term, colour=True), parts)
        plain = lines(report, replace(term, colour=False), parts)
        assert [_COLOURS.sub("", line) for line in coloured] == plain


def test_without_a_colour_no_line_has_an_escape():
    for report, term, parts in CASES.values():
        assert "\033" not in "".join(lines(report, replace(term, colour=False), parts))


@given(st.text(max_size=60), st.booleans())
def test_nothing_that_others_wrote_reaches_the_terminal_as_it_is(text, wide):
    figures = [replace(nodes()[1], name=text, driver_version=text)]
    figures = [
        replace(
            node,
            gpus=tuple(
                replace(
                    gpu,
                    product=text,
                    uuid=text,
                    unmanaged=dict.fromkeys([text], 2**30) if gpu.unmanaged else {},
                )
                for gpu in node.gpus
            ),
        )
        for node in figures
    ]
    seen = [
        a_listed_pod("embed", text, text, text, text, waits=text, kind=text, workload=text),
        a_listed_pod("x", text, text, text, unscheduled=text),
        a_listed_pod("y", text, text, text, "n9", waits=text),
    ]
    report = join(figures, seen, AT_S, namespace=text, missing=[text])
    drawn = lines(report, Terminal(unicode=False, wide=wide), ALL)
    assert all(" " <= one <= "~" for line in drawn for one in line)


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
    gpu = a_gpu(
        0, 79, used, unmanaged=[("x", stranger)], promised_bytes=promised and promised * 2**30
    )
    (row,) = join([a_node("n", gpu)], [], AT_S).nodes[0].gpus
    bar = gpu_bar(row, cells, ASCII)
    assert len(bar) == cells
    if used is None or promised is None:
        assert "." not in bar
    else:
        assert "?" not in bar


def test_a_small_thing_is_seen_in_a_bar():
    (row,) = join([a_node("n", a_gpu(0, 79, 2, unmanaged=[("x", 1)]))], [], AT_S).nodes[0].gpus
    assert gpu_bar(row, 10, UNICODE) == "█!········"


@pytest.mark.parametrize(
    ("used", "bar"),
    [(None, "    "), (0, "...."), (1, "#..."), (50, "##.."), (100, "####"), (150, "####")],
)
def test_a_cap_is_filled_by_what_is_used(used, bar):
    assert cap_bar(used, 100, 4, ASCII) == bar


@given(st.integers(GIB, 180 * GIB), st.integers(GIB // 4, 180 * GIB), st.integers(0, 10**6))
def test_top_the_termination_message_and_the_log_say_an_amount_and_a_time_alike(peak, cap, seconds):
    cap -= cap % 2**20
    figures = PodFigures(uid="u", cap_bytes=cap, used_bytes=peak, peak_bytes=peak, stops=0)
    gpu = replace(a_gpu(0, 200, 190), promised_bytes=cap, pods=(figures,))
    facts = {"created_s": AT_S - seconds, "gpus": ("GPU-0",), "asked_bytes": cap}
    seen = a_listed_pod("u", "ns", "train", "Running", "n1", **facts)
    report = join([a_node("n1", gpu)], [seen], AT_S, namespace="ns")
    _, row = lines(report, Terminal(wide=True), ["pods"])[:2]
    by_top = row.split()
    message = in_words(TerminationMessage(cap, {"GPU-0": peak}, 0, seconds))
    log = explain_stop(
        Process(7, 7, "python"),
        Excess(
            gpu="GPU-0",
            used_bytes=peak,
            sum_bytes=peak,
            cap_bytes=cap,
            peak_bytes=peak,
            grew_bytes=0,
            grew_within_s=1.0,
        ),
    )
    said, asked, ago = by_top[6], by_top[3], by_top[8]
    assert message == f"peak {said} of {asked} on GPU-0, nothing was stopped, guarded for {ago}"
    assert f"holds {said}, the cap is {asked}; " in log
    assert f"the pod's peak was {said}, so " in log
