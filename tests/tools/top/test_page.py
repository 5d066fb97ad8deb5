"""`vramwarden top -o html`: content, limits and escaping of the page."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from tests.support.clusters import (
    GIB,
    NOW_S,
    a_cluster,
    a_gpu,
    a_listed_pod,
    a_node,
    a_pod,
    held,
    many_nodes,
)
from tests.support.golden_files import assert_recorded
from tests.tools.top.pages import pictures, read_page, sections, tables, texts
from webhook.tools.top.page import as_html
from webhook.tools.top.report import build_report

RECORDED = Path(__file__).with_name("page.txt")
LABEL = "Memory of each GPU: promised, in use and free"


def seen(nodes=(), pods=(), **options):
    cluster = a_cluster(list(nodes), list(pods))
    return build_report(cluster.figures, cluster.listed_pods, NOW_S, **options)


def every_mark():
    """Return a report with the user's pods, other pods, unmanaged memory and all marks."""
    train = held("train-0", 40, 25, 38.2)
    llama = held("llama", 16, 6.1, 6.2, held_by="driver", idle_since_s=NOW_S - 21_600)
    unknown = {"used": None, "promised_bytes": None, "free_bytes": None}
    nodes = [
        a_node(
            "n1",
            a_gpu(79, llama, train, held("x", 12, 1.4, 3)),
            a_gpu(79, train, held("embed", 8, 7.8, 7.9), unmanaged={"91ab": 3.1, "small": 0.2}),
        ),
        a_node(
            "n2",
            a_gpu(24, held("over", 20, 5, 5), held("y", 20, 5, 5)),
            a_gpu(79, **unknown),
            a_gpu(79, held("new", 16, None, None), used=None),
            a_gpu(79, healthy=False, fault="needs a reset"),
        ),
        a_node("n3", a_gpu(24, unmanaged=dict.fromkeys(["", *"abc"], 0.5)), age_s=900),
    ]
    pods = [
        a_pod("llama-7c9f-x2kq4", "16Gi", uid="llama", node="n1"),
        a_pod("train-0", "40Gi", node="n1", count=2),
        a_pod("embed-29411-8tq5w", "8Gi", uid="embed", node="n1", owner="Job/embed"),
        a_pod("over", "20Gi", node="n2"),
        a_pod("new", "16Gi", node="n2"),
        a_pod("unseen", "8Gi", node="n7"),
        a_pod("eval-4", "75Gi"),
    ]
    return seen(nodes, pods, namespace="team-a", missing=["not all could be read"])


def drawn(element, css):
    return [child for child in element.iter() if css in child.get("class", "").split()]


def outline(root):
    """Yield the content of a page; `<` marks a text column, `+` the used part of a cap."""
    for element in root.find("body").iter():
        css, text = element.get("class", ""), " ".join((element.text or "").split())
        if element.tag == "tr":
            cells = ["<" * (cell.get("class") == "text") + (cell.text or "") for cell in element]
            yield f"    {' | '.join(cells)}"
        elif element.get("style") and not css.endswith("-used"):
            used = [f"+ {strip.get('style')}" for strip in drawn(element, f"{css}-used")]
            label = "".join(strip.tail or "" for strip in element) if css == "cap" else ""
            title = element.get("title")
            yield "  " + " ".join([css, element.get("style"), *used, title, label.strip()]).rstrip()
        elif text and element.tag not in {"th", "td"} and css != "faint end":
            yield " ".join(filter(None, [text, element.get("title")]))


def test_a_page_shows_what_is_recorded():
    root = read_page(as_html(every_mark(), ["nodes", "pods", "workloads"]))
    assert_recorded(RECORDED, "\n".join(outline(root)) + "\n")
    assert "anywhere" not in "".join(element.text for element in root.iter("style"))


def test_a_page_has_the_parts_that_are_asked_for():
    def shown(*parts):
        return list(sections(read_page(as_html(every_mark(), parts))))

    assert shown("nodes") == ["GPUs"]
    assert shown("pods") == ["Pods that wait", "Pods with GPU memory"]
    assert shown("workloads") == ["Workloads"]


def test_without_its_nodes_a_page_has_the_problems_of_the_pods_nodes_only():
    whole, of_pods = (texts(read_page(as_html(every_mark(), p))) for p in (["nodes"], ["pods"]))
    assert ("n2 GPU 3: needs a reset" in whole, "n3: figures are 15m old" in whole) == (True, True)
    assert ("n2 GPU 3: needs a reset" in of_pods, "n3" in of_pods) == (True, False)


def test_without_nodes_the_pods_are_shown():
    pods = a_cluster([], [a_pod("own", "16Gi", node="n1")]).listed_pods
    root = read_page(as_html(build_report(None, pods, NOW_S)))
    assert list(sections(root)) == ["Pods that wait", "Pods with GPU memory"]
    assert "There are no figures of GPUs." in texts(root)


def test_a_thousand_gpus_are_all_drawn_in_a_page_of_bounded_size():
    figures = a_cluster(many_nodes(125)).figures
    own = [gpu.pods[0].uid for node in figures for gpu in node.gpus]
    pods = [a_listed_pod(uid, "team-a", f"train-{uid}", node="n1") for uid in own]
    text = as_html(build_report(figures, pods, NOW_S))
    assert len(drawn(read_page(text), "bar")) == 1000
    assert len(text) < 1_000_000


def test_many_gpus_are_side_by_side_and_a_table_has_500_rows():
    nodes = [a_node(f"n{n}", *[a_gpu(24)] * 8, age_s=900 if n == 1 else 14) for n in range(70)]
    root = read_page(as_html(seen(nodes, [a_pod(f"eval-{n}", "100Gi") for n in range(503)])))
    beside = [element.text for element in drawn(pictures(root)[LABEL], "end")]
    assert beside[:3] == ["free: on one GPU, in all", "24Gi, 192Gi", "figures 15m old"]
    found = sections(root)
    assert [len(tables(found[name])[0]) for name in ("GPUs", "Pods that wait")] == [501, 501]
    said = texts(root)
    assert "As a table, the first 500" in said
    assert "\n3 more; vramwarden top shows them." in said
    assert "There are none." in said


def test_of_more_gpus_those_are_drawn_that_hold_the_users_pods_first():
    nodes = [a_node(f"n{n}", *[a_gpu(24)] * 8) for n in range(600)]
    nodes.append(a_node("n900", a_gpu(24, held("own", 8, 1, 1))))
    text = as_html(seen(nodes, [a_pod("own", "8Gi", node="n900")]))
    assert len(text) < 1_500_000
    root = read_page(text)
    names = [element.text for element in drawn(root, "name")]
    assert names[0] == "n900"
    assert len(names) == 250
    assert "250 of 601 nodes are drawn" in texts(root)


ATTACK = "\"><script>alert(1)</script>'&lt;{{ report }}\u202e"


def test_names_are_text_and_nothing_else():
    gpus = (a_gpu(24, held("1", 8, 1, 1), product=ATTACK), a_gpu(24, healthy=False, fault=ATTACK))
    node = replace(a_node("n1", *gpus, not_shared=ATTACK).figures, name=ATTACK)
    pods = [
        a_listed_pod("1", "team-a", ATTACK, node="n1", status="Running"),
        a_listed_pod("3", ATTACK, ATTACK, requested_bytes=90 * GIB, status="Pending"),
    ]
    report = build_report([node], pods, NOW_S, missing=[ATTACK])
    text = as_html(report, ["nodes", "pods", "workloads"])
    assert "<script" not in text
    root = read_page(text)
    shown = [*root.itertext(), *(element.get("title", "") for element in root.iter())]
    assert sum(ATTACK.replace("\u202e", "?") in text for text in shown) > 15


def test_any_character_leaves_the_page_well_formed():
    codes = [*range(0x3000), 0xD800, 0xDFFF, 0xFEFF, 0xFFFE, 0xFFFF, 0x1F600]
    pieces = [
        "".join(map(chr, codes[first : first + 1500])) for first in range(0, len(codes), 1500)
    ]
    items = read_page(as_html(seen(missing=[*pieces, "x" * 10**6]))).iter("li")
    *shown, longest = ("".join(item.itertext()) for item in items)
    assert not re.search(r"[\x1b\x80-\x9f\u202a-\u202e\u2066-\u2069]", "".join(shown))
    assert [[*filter(str.isalnum, text)] for text in shown] == [
        [*filter(str.isalnum, piece)] for piece in pieces
    ]
    assert len(longest) == 2000


def test_no_script_runs_and_nothing_is_loaded_even_if_one_slips_through():
    assert "content=\"default-src 'none'; style-src 'unsafe-inline'\"" in as_html(seen())
