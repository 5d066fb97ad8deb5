"""`vramwarden top -o html`: the page says what the report says, bounded and escaped."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.tools.top.page_scene import GIB, NOW_S, a_gpu, a_node, a_pod, large, small
from tests.tools.top.pages import pictures, read_page, sections, tables, texts
from webhook.tools.top.judge import join
from webhook.tools.top.show.page import as_html

LABEL = "Memory of each GPU: promised, in use and free"


def old():
    """Return a GPU whose figures take as many letters as any."""
    gpu = a_gpu(0, 190, ("x", 100.4, 99.8, 99.9))
    return join(
        [a_node("n1", replace(gpu, usable_bytes=2 * gpu.usable_bytes), age_s=900)], [], NOW_S
    )


def drawn(svg, class_):
    return [rect for rect in svg.iter("rect") if rect.get("class") == class_]


def width(svg, class_):
    return sum(float(rect.get("width")) for rect in drawn(svg, class_))


def test_parts_add_up_to_the_figures():
    report = small()
    svg = pictures(read_page(as_html(report)))[LABEL]
    unit = width(svg, "empty") / (158 * GIB)  # the whole bars, behind the parts
    gap = 1  # after each part
    own = sum(
        h.cap_bytes for n in report.nodes for g in n.gpus for h in g.pods if h.uid in report.names
    )
    assert (width(svg, "b") + 4 * gap) / unit == pytest.approx(own, rel=0.005)
    assert (width(svg, "p") + gap) / unit == pytest.approx(12 * GIB, rel=0.02)
    assert (width(svg, "trouble") + gap) / unit == pytest.approx(3.1 * GIB, rel=0.05)
    used = sum(
        h.used_bytes for n in report.nodes for g in n.gpus for h in g.pods if h.uid in report.names
    )
    assert width(svg, "a") / unit == pytest.approx(used, rel=0.005)
    assert width(svg, "o") / unit == pytest.approx(1.4 * GIB, rel=0.05)


def test_own_pods_have_names_and_those_of_others_have_none():
    svg = pictures(read_page(as_html(small())))[LABEL]
    titles = [title.text for title in svg.iter("title")]
    assert titles == [
        "n1: seen 14s ago",
        "n1 GPU 0 NVIDIA H100 80GB: 32.5Gi used of 68Gi promised, 11Gi free",
        "team-a/llama-7c9f-x2kq4: 6.1Gi used of 16Gi promised, at most 6.3Gi",
        "team-a/train-0: 25Gi used of 40Gi promised, at most 38.3Gi",
        "1 pod of others: 1.5Gi used of 12Gi promised",
        "n1 GPU 1 NVIDIA H100 80GB: 35.9Gi used of 48Gi promised, 31Gi free",
        "team-a/train-0: 25Gi used of 40Gi promised, at most 38.3Gi",
        "team-a/embed-29411-8tq5w: 7.8Gi used of 8Gi promised, at most 8Gi",
        "3.1Gi without a promise, held by pod 91ab",
    ]


def test_tables_say_who_waits_why_and_who_has_what():
    found = sections(read_page(as_html(small())))
    assert list(found) == ["GPUs", "Pods that wait", "Pods with GPU memory"]
    (waiting,) = tables(found["Pods that wait"])
    assert waiting == [
        ["pod", "asks for", "since", "node", "why"],
        ["eval-4", "60Gi", "9m", "-", "no GPU has 60Gi free"],
    ]
    (pods,) = tables(found["Pods with GPU memory"])
    assert pods[1:] == [
        ["embed-29411-8tq5w", "n1", "1", "8Gi", "7.8Gi", "97%", "8Gi", "running, near its cap"],
        ["llama-7c9f-x2kq4", "n1", "0", "16Gi", "6.1Gi", "38%", "6.3Gi", "running"],
        ["train-0", "n1", "0,1", "2 x 40Gi", "25Gi", "62%", "38.3Gi", "running"],
    ]
    (gpus,) = tables(found["GPUs"])
    assert gpus[1] == [
        *("n1 GPU 0", "NVIDIA H100 80GB", "79Gi", "68Gi", "32.5Gi", "11Gi", "0", "3", "14s ago"),
    ]


def test_a_page_has_the_parts_that_are_asked_for():
    def shown(*parts):
        return list(sections(read_page(as_html(small(), parts))))

    assert shown("nodes") == ["GPUs"]
    assert shown("pods") == ["Pods that wait", "Pods with GPU memory"]
    assert shown("workloads") == ["Workloads"]
    (rows,) = tables(sections(read_page(as_html(small(), ["workloads"])))["Workloads"])
    assert rows[-1] == ["Pod/train-0", "1", "1", "0", "40Gi", "80Gi", "50Gi", "38.3Gi"]


def test_what_is_not_known_is_never_drawn_or_written_as_nothing():
    gpu = replace(a_gpu(0, 79), promised_bytes=None, used_bytes=None, free_bytes=None)
    unmeasured = a_gpu(1, 79, ("1", 16, None, None))
    unmeasured = replace(unmeasured, used_bytes=None)
    node = a_node("n1", gpu, unmeasured)
    root = read_page(as_html(join([node], [a_pod("1", "p", "n1", 16)], NOW_S)))
    svg = pictures(root)[LABEL]
    assert len(drawn(svg, "unknown")) == 1
    assert not drawn(svg, "a")
    said = [text.text for text in svg.iter("text")]
    assert "promised unknown, unknown used" in said
    assert "unknown used of 16Gi promised, 63Gi free" in said
    (_, first, _), *_ = tables(sections(root)["GPUs"])
    assert first[2:7] == ["79Gi", "-", "-", "-", "-"]


def test_without_nodes_the_pods_are_shown_and_what_is_missing_is_said():
    why = "GPUNodes cannot be read: forbidden"
    report = join(None, [a_pod("1", "p", "n1", 16)], NOW_S, missing=[why])
    root = read_page(as_html(report))
    assert list(sections(root)) == ["Pods that wait", "Pods with GPU memory"]
    assert why in texts(root)
    assert "There are no figures of GPUs." in texts(root)


def test_memory_without_a_promise_is_seen_where_everything_is_promised():
    gpu = a_gpu(0, 79, ("x", 79, 70, 70), unmanaged=(("91ab", 0.3),))
    svg = pictures(read_page(as_html(join([a_node("n1", gpu)], [], NOW_S))))[LABEL]
    (stranger,) = drawn(svg, "trouble")
    (bar,) = drawn(svg, "empty")
    end = float(bar.get("x")) + float(bar.get("width"))
    assert float(stranger.get("width")) >= 3
    assert float(stranger.get("x")) + float(stranger.get("width")) <= end


def test_more_promised_than_there_is_stays_within_its_bar_and_is_marked():
    gpu = a_gpu(0, 24, ("1", 20, 5, 5), ("x", 20, 5, 5))
    root = read_page(as_html(join([a_node("n1", gpu)], [a_pod("1", "p", "n1", 20)], NOW_S)))
    svg = pictures(root)[LABEL]
    (bar,) = drawn(svg, "empty")
    end = float(bar.get("x")) + float(bar.get("width"))
    parts = drawn(svg, "b") + drawn(svg, "p")
    assert all(float(r.get("x")) + float(r.get("width")) <= end for r in parts)
    assert len(drawn(svg, "alarm")) == 1
    assert "n1 GPU 0: 40Gi are promised of 24Gi usable" in texts(root)


def test_old_figures_are_marked_in_words_too():
    nodes = [a_node("n1", a_gpu(0, 24), age_s=900), a_node("n2", a_gpu(0, 24))]
    svg = pictures(read_page(as_html(join(nodes, [], NOW_S))))[LABEL]
    assert [g.get("class") for g in svg.iter("g")] == ["old", "gpu"]
    assert "0 used of 0 promised, 24Gi free (15m old)" in {text.text for text in svg.iter("text")}


def test_of_many_troubles_of_a_kind_the_first_stand_there_and_the_others_are_folded():
    nodes = [a_node(f"n{n}", a_gpu(0, 24), age_s=900) for n in range(9)]
    root = read_page(as_html(join(nodes, [], NOW_S)))
    (box,) = [div for div in root.iter("div") if div.get("class") == "troubles"]
    outer = box.find("ul").findall("li")
    assert len(outer) == 4
    assert outer[3].find("details/summary").text == "6 more like the last one"
    assert len(outer[3].findall("details/ul/li")) == 6


def test_a_thousand_gpus_are_all_drawn_in_a_page_of_bounded_size():
    report = large()
    text = as_html(report)
    svg = pictures(read_page(text))[LABEL]
    gpus = [g for g in svg.iter("g") if g.get("class") in {"gpu", "old"}]
    assert len(gpus) == report.amounts.gpus == 1000
    assert len(text) < 1_000_000


def test_of_more_gpus_those_are_drawn_that_concern_the_user_first():
    nodes = [a_node(f"n{n}", *(a_gpu(i, 24) for i in range(8))) for n in range(600)]
    mine = a_gpu(0, 24, ("1", 8, 1, 1))
    nodes.append(a_node("n900", mine))
    report = join(nodes, [a_pod("1", "p", "n900", 8)], NOW_S)
    text = as_html(report)
    assert len(text) < 1_500_000
    root = read_page(text)
    svg = pictures(root)[LABEL]
    names = [text.text for text in svg.iter("title") if ": seen" in text.text]
    assert names[-1] == "n900: seen 14s ago"
    assert len(names) == 250
    assert "250 of 601 nodes are drawn" in texts(root)


def test_names_are_text_and_nothing_else():
    attack = '<script>alert(1)</script>"&\u202e'
    gpu = a_gpu(0, 24, ("1", 8, 1, 1), ("2", 8, 1, 1), product=attack)
    pods = [
        a_pod("1", attack, "n1"),
        a_pod("3", attack, gib=90, status="Pending", namespace=attack),
    ]
    report = join([a_node(attack, gpu)], pods, NOW_S, missing=[attack])
    text = as_html(report)
    assert "<script" not in text
    assert "\u202e" not in text
    assert texts(read_page(text)).count("<script>alert(1)</script>") > 5


@pytest.mark.parametrize("report", [small(), old(), large(20)], ids=["lines", "old", "rows"])
def test_nothing_lies_outside_of_the_picture(report):
    svg = pictures(read_page(as_html(report)))[LABEL]
    _, _, wide, high = map(float, svg.get("viewBox").split())
    for rect in svg.iter("rect"):
        x, y, w, h = (float(rect.get(key)) for key in ("x", "y", "width", "height"))
        assert 0 <= x <= x + w <= wide + 1
        assert 0 <= y <= y + h <= high + 1
        assert w >= 0
        assert h > 0
    for text in svg.iter("text"):
        long = 0 if "end" in text.get("class", "") else 6 * len("".join(text.itertext()))
        assert 0 <= float(text.get("x")) <= wide
        assert text.find("title") is not None or float(text.get("x")) + long <= wide
        assert 8 <= float(text.get("y")) <= high
