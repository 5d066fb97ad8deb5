"""`vramwarden top -o html`: the page says what the report says, bounded and escaped."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest

from tests.support.clusters import GIB, NOW_S, a_cluster, a_gpu, a_listed_pod, a_node, a_pod, held
from tests.tools.top.pages import pictures, read_page, sections, tables, texts
from webhook.tools.top.judge import join
from webhook.tools.top.page import as_html

PRODUCT = "NVIDIA H100 80GB"
NO_ROOM = "no GPU has 60Gi free now; on all together 42Gi are free"
LABEL = "Memory of each GPU: promised, in use and free"


def seen(nodes=(), pods=(), **options):
    """Return what is seen of a cluster."""
    cluster = a_cluster(list(nodes), list(pods))
    return join(cluster.figures, cluster.listed_pods, NOW_S, **options)


def small():
    """Return two GPUs: own pods, one of others, memory without a promise, one that waits."""
    train = held("train-0", 40, 25, 38.2)
    asleep = {"held_by": "driver", "idle_since_s": NOW_S - 21_600}
    llama = held("llama", 16, 6.1, 6.2, **asleep)
    gpus = (
        a_gpu(79, llama, train, held("x", 12, 1.4, 3), product=PRODUCT),
        a_gpu(79, train, held("embed", 8, 7.8, 7.9), unmanaged={"91ab": 3.1}, product=PRODUCT),
    )
    pods = [
        a_pod("llama-7c9f-x2kq4", "16Gi", uid="llama", node="n1"),
        a_pod("train-0", "40Gi", node="n1", count=2),
        a_pod("embed-29411-8tq5w", "8Gi", uid="embed", node="n1"),
        a_pod("eval-4", "60Gi"),
    ]
    return seen([a_node("n1", *gpus)], pods, namespace="team-a")


def large(nodes=125, per_node=8):
    """Return a cluster with some own pods, and all that can be wrong somewhere."""
    drawn = random.Random(0)  # noqa: S311 - a scene
    found, pods = [], [a_pod(f"eval-{number}", "100Gi") for number in range(5)]
    for number in range(nodes):
        name, gpus = f"gpu-pool-{number}.eu-central-1", []
        size = drawn.choice([24, 48, 79, 79])
        for index in range(per_node):
            holders, left = [], size
            while left > 2 and drawn.random() < 0.85:
                cap = min(left, drawn.choice([2, 4, 8, 12, 16, 24, 40]))
                used = None if drawn.random() < 0.05 else round(cap * drawn.random(), 1)
                uid = f"{number}-{index}-{len(holders)}"
                holders.append(held(uid, cap, used, used))
                left -= cap
                if drawn.random() < 0.1:
                    pods.append(a_pod(f"train-{uid}", f"{cap}Gi", uid=uid, node=name))
            strangers = {"91ab": left / 2} if left > 4 and drawn.random() < 0.05 else {}
            healthy = drawn.random() >= 0.01
            gpus.append(a_gpu(size, *holders, unmanaged=strangers, healthy=healthy))
        found.append(a_node(name, *gpus, age_s=900 if drawn.random() < 0.05 else 20))
    return seen(found, pods)


def old():
    """Return a GPU whose figures take as many letters as any."""
    gpu = a_gpu(190, held("x", 100.4, 99.8, 99.9), usable_bytes=380 * GIB)
    return seen([a_node("n1", gpu, age_s=900)])


def bars(report):
    """Return the bar of each GPU in the picture."""
    return drawn(pictures(read_page(as_html(report)))[LABEL], "bar")


def drawn(element, css):
    return [one for one in element.iter() if css in one.get("class", "").split()]


def percent(element):
    return float(element.get("style").removeprefix("width: ").removesuffix("%"))


def share(bar, css):
    """Return the percentage of a bar that its parts of one kind cover, and the used part of it."""
    parts = [one for one in bar if one.get("class") == css]
    used = [percent(one) * percent(strip) / 100 for one in parts for strip in one]
    return sum(map(percent, parts)), sum(used)


def test_parts_add_up_to_the_figures():
    first, second = bars(small())
    assert percent(first) == percent(second) == 100
    for bar, css, promised, used in (
        (first, "cap", 56, 31.1),
        (first, "others", 12, 1.4),
        (second, "cap", 48, 32.8),
        (second, "others", 0, 0),
        (second, "unmanaged", 3.1, 0),
    ):
        shown = [one * 79 / 100 for one in share(bar, css)]
        assert shown == pytest.approx([promised, used], rel=0.002)


def test_a_smaller_gpu_has_a_shorter_bar():
    shown = bars(seen([a_node("n1", a_gpu(79), a_gpu(24, held("x", 12, 3)))]))
    assert list(map(percent, shown)) == [100, pytest.approx(2400 / 79, rel=0.001)]
    assert share(shown[1], "others") == (50, 12.5)


def test_own_pods_have_names_and_those_of_others_have_none():
    picture = pictures(read_page(as_html(small())))[LABEL]
    assert [one.get("title") for one in picture.iter() if one.get("title")] == [
        "n1: seen 14s ago",
        "n1 GPU 0 NVIDIA H100 80GB: 32.5Gi used of 68Gi promised, 11Gi free",
        "team-a/llama-7c9f-x2kq4: 6.1Gi used of its cap of 16Gi, at most 6.3Gi",
        "team-a/train-0: 25Gi used of its cap of 40Gi, at most 38.3Gi",
        "1 pod of others: 1.5Gi used of 12Gi promised",
        "n1 GPU 1 NVIDIA H100 80GB: 35.9Gi used of 48Gi promised, 31Gi free",
        "team-a/train-0: 25Gi used of its cap of 40Gi, at most 38.3Gi",
        "team-a/embed-29411-8tq5w: 7.8Gi used of its cap of 8Gi, at most 8Gi",
        "3.1Gi held by pod 91ab, without a cap",
    ]
    names = ["llama-7c9f-x2kq4", "train-0", "train-0", "embed-29411-8tq5w"]
    assert ["".join(one.itertext()) for one in drawn(picture, "cap")] == names


def test_tables_say_who_waits_why_and_who_has_what():
    found = sections(read_page(as_html(small())))
    assert list(found) == ["GPUs", "Pods that wait", "Pods with GPU memory"]
    (waiting,) = tables(found["Pods that wait"])
    assert waiting == [
        ["POD (team-a)", "NODE", "CAP", "STATE"],
        ["eval-4", "-", "60Gi", f"pending 9m: {NO_ROOM}"],
    ]
    (pods,) = tables(found["Pods with GPU memory"])
    heads = [
        "POD (team-a)",
        "NODE",
        "GPU",
        "CAP",
        "USED OF CAP",
        "PEAK",
        "HELD BY",
        "IDLE",
        "STATE",
    ]
    assert pods == [
        heads,
        ["embed-29411-8tq5w", "n1", "1", "8Gi", "7.8Gi", "8Gi", "-", "-", "running, near its cap"],
        ["llama-7c9f-x2kq4", "n1", "0", "16Gi", "6.1Gi", "6.3Gi", "driver", "6h", "running"],
        ["train-0", "n1", "0,1", "2x40Gi", "25Gi", "38.3Gi", "-", "-", "running"],
    ]
    (gpus,) = tables(found["GPUs"])
    assert gpus[1] == [
        *("n1", "0", "H100 80GB", "79Gi", "68Gi", "32.5Gi", "11Gi", "3"),
        *("0", "256Mi", "-", "14s", "GPU-n1-0", "a=llama-7c9f-x2kq4 b=train-0 c=*"),
    ]


def test_words_stand_at_the_left_and_are_broken_between_words():
    root = read_page(as_html(small()))
    heads = [(one.text, one.get("class")) for one in root.findall(".//thead/tr/th")]
    figures = {
        "CAP",
        "USED OF CAP",
        "PEAK",
        "IDLE",
        "PROMISED",
        "USED",
        "FREE",
        "PODS",
        "UNMANAGED",
    }
    assert figures <= {name for name, kind in heads if kind is None}
    assert {"NODE", "PRODUCT", "HELD BY", "STATE"} <= {
        name for name, kind in heads if kind == "text"
    }
    assert "anywhere" not in "".join(one.text for one in root.iter("style"))


def test_a_page_has_the_parts_that_are_asked_for():
    def shown(*parts):
        return list(sections(read_page(as_html(small(), parts))))

    assert shown("nodes") == ["GPUs"]
    assert shown("pods") == ["Pods that wait", "Pods with GPU memory"]
    assert shown("workloads") == ["Workloads"]
    (rows,) = tables(sections(read_page(as_html(small(), ["workloads"])))["Workloads"])
    assert rows[-1] == ["Pod/train-0", "1", "1", "0", "40Gi", "80Gi", "50Gi", "38.3Gi", "0"]


def test_what_is_not_known_is_never_drawn_or_written_as_nothing():
    gpu = a_gpu(79, used=None, promised_bytes=None, free_bytes=None)
    unmeasured = a_gpu(79, held("own", 16, None, None), used=None)
    nodes = [a_node("n1", gpu, unmeasured)]
    root = read_page(as_html(seen(nodes, [a_pod("own", "16Gi", node="n1")])))
    picture = pictures(root)[LABEL]
    assert len(drawn(picture, "unknown")) == 1
    assert not drawn(picture, "cap-used")
    assert "promised unknown, unknown used" in list(picture.itertext())
    assert "unknown used of 16Gi promised, 63Gi free" in list(picture.itertext())
    (_, first, _), *_ = tables(sections(root)["GPUs"])
    assert first[3:8] == ["79Gi", "-", "-", "-", "-"]


def test_without_nodes_the_pods_are_shown_and_what_is_missing_is_said():
    why = "GPUNodes cannot be read: forbidden"
    pods = a_cluster([], [a_pod("own", "16Gi", node="n1")]).listed_pods
    root = read_page(as_html(join(None, pods, NOW_S, missing=[why])))
    assert list(sections(root)) == ["Pods that wait", "Pods with GPU memory"]
    assert why in texts(root)
    assert "There are no figures of GPUs." in texts(root)


def test_more_promised_than_there_is_is_marked_and_said():
    overpromised = a_gpu(24, held("own", 20, 5, 5), held("x", 20, 5, 5))
    nodes = [a_node("n1", overpromised), a_node("n2", a_gpu(24))]
    root = read_page(as_html(seen(nodes, [a_pod("own", "20Gi", node="n1")])))
    assert [one.get("class") for one in drawn(root, "bar")] == ["bar empty alarm", "bar empty"]
    assert "n1 GPU 0: 40Gi are promised of 24Gi usable" in texts(root)


def test_old_figures_are_marked_in_words_too():
    nodes = [a_node("n1", a_gpu(24), age_s=900), a_node("n2", a_gpu(24))]
    picture = pictures(read_page(as_html(seen(nodes))))[LABEL]
    assert [one.get("class") for one in drawn(picture, "bar")] == ["bar empty stale", "bar empty"]
    assert "0 used of 0 promised, 24Gi free (15m old)" in list(picture.itertext())


def test_the_first_problems_with_a_reason_are_listed_and_the_others_are_folded():
    nodes = [a_node(f"n{n}", a_gpu(24), age_s=900) for n in range(9)]
    root = read_page(as_html(seen(nodes)))
    (box,) = [div for div in root.iter("div") if div.get("class") == "problems"]
    outer = box.find("ul").findall("li")
    assert len(outer) == 4
    assert outer[3].find("details/summary").text == "6 more like the last one"
    assert len(outer[3].findall("details/ul/li")) == 6


def test_a_thousand_gpus_are_all_drawn_in_a_page_of_bounded_size():
    report = large()
    text = as_html(report)
    assert len(drawn(read_page(text), "bar")) == report.amounts.gpus == 1000
    assert len(text) < 1_000_000


def test_many_gpus_are_side_by_side_and_a_table_has_500_rows():
    nodes = [a_node(f"n{n}", *[a_gpu(24)] * 8, age_s=900 if n == 1 else 14) for n in range(70)]
    root = read_page(as_html(seen(nodes, [a_pod(f"eval-{n}", "100Gi") for n in range(503)])))
    beside = [one.text for one in drawn(pictures(root)[LABEL], "end")]
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
    names = [one.text for one in drawn(root, "name")]
    assert names[0] == "n900"
    assert len(names) == 250
    assert "250 of 601 nodes are drawn" in texts(root)


ATTACK = "\"><script>alert(1)</script>'&lt;{{ report }}\u202e"


def test_names_are_text_and_nothing_else():
    gpus = (a_gpu(24, held("1", 8, 1, 1), product=ATTACK), a_gpu(24, healthy=False, fault=ATTACK))
    node = replace(a_node("n1", *gpus, not_shared=ATTACK).figures, name=ATTACK)
    pods = [
        a_listed_pod("1", "team-a", ATTACK, node="n1", status="Running"),
        a_listed_pod("3", ATTACK, ATTACK, asked_bytes=90 * GIB, status="Pending"),
    ]
    report = join([node], pods, NOW_S, missing=[ATTACK])
    text = as_html(report, ["nodes", "pods", "workloads"])
    assert "<script" not in text
    root = read_page(text)
    shown = [*root.itertext(), *(one.get("title", "") for one in root.iter())]
    assert sum(ATTACK.replace("\u202e", "?") in one for one in shown) > 15


def test_any_character_leaves_the_page_well_formed():
    codes = [*range(0x3000), 0xD800, 0xDFFF, 0xFEFF, 0xFFFE, 0xFFFF, 0x1F600]
    pieces = [
        "".join(map(chr, codes[first : first + 1500])) for first in range(0, len(codes), 1500)
    ]
    items = read_page(as_html(seen(missing=[*pieces, "x" * 10**6]))).iter("li")
    *shown, longest = ("".join(one.itertext()) for one in items)
    assert not re.search(r"[\x1b\x80-\x9f\u202a-\u202e\u2066-\u2069]", "".join(shown))
    assert [[*filter(str.isalnum, one)] for one in shown] == [
        [*filter(str.isalnum, one)] for one in pieces
    ]
    assert len(longest) == 2000


def test_no_script_runs_and_nothing_is_loaded_even_if_one_slips_through():
    assert "content=\"default-src 'none'; style-src 'unsafe-inline'\"" in as_html(seen())
