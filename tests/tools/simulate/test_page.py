"""`vramwarden simulate -o html`: the page says what the replay found, bounded and escaped."""

from __future__ import annotations

import re

import pytest

from tests.tools.pages import pictures, read_page, sections, tables, texts
from tests.tools.simulate.scene import SCENE
from webhook.core.placement.fit import Need
from webhook.tools.simulate.command import simulate
from webhook.tools.simulate.generate import generate
from webhook.tools.simulate.output import amount
from webhook.tools.simulate.page import as_html
from webhook.tools.simulate.replay.cluster import Scheduling, SimulatedPod

FULLEST = "Who is where when the cluster is fullest"
OVER_TIME = "How full the cluster is over time"
WAITS = "How long pods wait"
CAUSES = "Why pods do not start when they arrive"


def reported(pods, nodes):
    return simulate(*generate(pods, nodes, 0), Scheduling.SPREAD, record=True)


@pytest.fixture(scope="module")
def small():
    return reported(80, 6)


@pytest.fixture(scope="module")
def large():
    return reported(3900, 270)


def widths(svg, *classes):
    return sum(float(r.get("width")) for r in svg.iter("rect") if r.get("class") in classes)


def test_the_page_is_written_into_the_file_and_nothing_else(simulate, tmp_path):
    done = simulate("--nodes", "f", "--pods", "f", "-o", "html", "page.html", f=SCENE)
    assert (done.code, done.out, done.err) == (0, "", "")
    root = read_page((tmp_path / "page.html").read_text())
    assert list(sections(root)) == [FULLEST, OVER_TIME, WAITS, CAUSES]


def test_without_a_file_the_page_goes_to_standard_output(simulate):
    for dash in ((), ("-",)):
        done = simulate("--nodes", "f", "--pods", "f", "-o", "html", *dash, f=SCENE)
        assert read_page(done.out) is not None


def test_a_file_is_written_for_pages_alone(simulate, tmp_path):
    done = simulate("--nodes", "f", "--pods", "f", "f", f=SCENE)
    assert done.code == 2
    assert "only -o html is written to a file; to read f, pass it" in done.err
    assert (tmp_path / "f").read_text() == SCENE


def test_a_file_that_is_read_is_not_overwritten(simulate, tmp_path):
    done = simulate("--nodes", "f", "--pods", "f", "-o", "html", "f", f=SCENE)
    assert done.code == 2
    assert "f is read, and would be overwritten; name another file" in done.err
    assert (tmp_path / "f").read_text() == SCENE


def test_a_file_that_cannot_be_written_is_said(simulate):
    done = simulate("--nodes", "f", "--pods", "f", "-o", "html", "no/where.html", f=SCENE)
    assert (done.code, done.out) == (2, "")
    assert done.err == "Error: no/where.html cannot be written: No such file or directory\n"


def test_the_summary_holds_the_rows_of_the_text(simulate):
    done = simulate("--nodes", "f", "--pods", "f", f=SCENE)
    page = read_page(simulate("--nodes", "f", "--pods", "f", "-o", "html", f=SCENE).out)
    head, *rows = tables(page)[0]
    assert head == ["", "best fit (ours)", "first fit", "worst fit"]
    found = {name: cells for name, *cells in rows}
    for line in done.out.splitlines()[3:13]:
        name, *cells = [cell.strip() for cell in line.split("  ") if cell.strip()]
        assert found[name][: len(cells)] == cells


def test_segments_add_up_to_the_figures(small):
    root = read_page(as_html(small))
    svg = pictures(root)["Memory taken and free on each GPU, by order"]
    ours = small.outcomes["best fit"]
    assert sum(len(one.course.fullest) for one in small.outcomes.values()) < 100
    total = 3 * small.memory_bytes
    taken = sum(one.taken_bytes for one in small.outcomes.values())
    free = sum(one.free_bytes for one in small.outcomes.values())
    pods = [r for r in svg.iter("rect") if r.get("class") in {"a", "b"}]
    drawn_pods = widths(svg, "a", "b") + len(pods)  # a gap follows each
    drawn_free = widths(svg, "empty", "hatched")
    assert taken + free == total
    assert drawn_pods / (drawn_pods + drawn_free) == pytest.approx(taken / total, abs=0.005)
    titles = [title.text for r in pods for title in r.iter("title")]
    assert len(titles) == sum(
        len(gpu.pods) for one in small.outcomes.values() for gpu in one.course.fullest
    )
    by_order, by_gpu = tables(sections(root)[FULLEST])
    assert by_order[1][4:6] == [amount(ours.taken_bytes), amount(ours.free_bytes)]
    assert len(by_gpu) == 1 + 3 * small.gpus


def test_hatched_is_what_the_table_calls_too_small(small):
    svg = pictures(read_page(as_html(small)))["Memory taken and free on each GPU, by order"]
    (largest,) = {
        max(gpu.gpu.memory_bytes for gpu in one.course.fullest) for one in small.outcomes.values()
    }
    small_bytes = sum(
        gpu.free_bytes
        for one in small.outcomes.values()
        for gpu in one.course.fullest
        if gpu.free_bytes < one.course.smallest_bytes
    )
    width = (1080 - 210 - 2 * 26) / 3
    assert small_bytes
    assert widths(svg, "hatched") == pytest.approx(small_bytes * width / largest, rel=0.02)


def test_a_thousand_gpus_are_all_drawn_in_a_page_of_bounded_size(large):
    assert 950 < large.gpus < 1050
    text = as_html(large)
    svg = pictures(read_page(text))["Memory taken and free on each GPU, by order"]
    assert len(list(svg.iter("g"))) == 3 * large.gpus
    assert len(text) < 1_500_000


def test_more_gpus_than_fit_are_drawn_in_part_and_counted_in_full():
    report = reported(300, 700)
    assert report.gpus > 2 * 1200
    text = as_html(report)
    assert len(text) < 1_500_000
    section = sections(read_page(text))[FULLEST]
    assert 800 <= len(list(section.iter("g"))) / 3 <= 1200
    assert "The GPUs of one node in 3 are drawn; the table counts all." in texts_of(section)
    assert tables(section)[0][1][2] == f"{report.gpus:,}"


def texts_of(element):
    return "\n".join(element.itertext())


def test_names_of_pods_and_nodes_are_text_and_nothing_else(simulate):
    name = "<script>x</script>&\\u202e"
    scene = f"""\
nodes: [{{name: "{name}", gpus: 8Gi}}]
pods: [{{name: "{name}1", memory: 5Gi}}, {{name: "{name}2", memory: 5Gi}}]
"""
    done = simulate("--nodes", "f", "--pods", "f", "-o", "html", f=scene)
    said = texts(read_page(done.out))
    assert "<script>x</script>&\ufffd" in said
    assert "<script" not in done.out
    assert "\u202e" not in done.out


def test_what_there_is_nothing_of_is_said_in_a_sentence(simulate):
    scene = "nodes: [{name: n1, gpus: 8Gi}]\npods: [{name: p, memory: 5Gi}]\n"
    root = read_page(simulate("--nodes", "f", "--pods", "f", "-o", "html", f=scene).out)
    said = {heading: section.find("p").text for heading, section in sections(root).items()}
    assert said[OVER_TIME] == "All pods arrive at one moment and none ends, so nothing changes."
    assert said[WAITS] == "Pods start when they arrive, or never; none starts later."
    assert said[CAUSES] == "Every pod starts when it arrives."


def test_every_picture_has_a_table_and_every_series_more_than_a_colour(large):
    root = read_page(as_html(large))
    for heading, section in sections(root).items():
        assert len(pictures(section)) == 1, heading
        assert len(section.findall("details")) == 1, heading
        assert tables(section.find("details")), heading
    style = "".join(element.text for element in root.iter("style"))
    dashes = [line for line in style.splitlines() if "stroke-dasharray" in line]
    assert len(dashes) >= 2
    svg = pictures(root)["Pods that did not start when they arrived, by cause and order"]
    assert {"13  best fit", "17  first fit", "65  worst fit"} <= {t.text for t in svg.iter("text")}


def test_amounts_are_written_for_people(simulate):
    scene = """\
nodes: [{name: n1, gpus: 2x81079Mi}]
pods:
- {name: a, count: 3, memory: 16333Mi, duration: 1h}
- {name: b, count: 7, memory: 30001Mi, arrival: 10m, every: 1m, duration: 1h}
"""
    root = read_page(simulate("--nodes", "f", "--pods", "f", "-o", "html", f=scene).out)
    for section in sections(root).values():
        said = " ".join(section.itertext())
        assert not re.findall(r"[0-9]{5,}(?:Mi)?", said), section.find("h2").text
    assert "79.2Gi" in texts(root)


def test_the_table_of_waits_says_when_95_of_100_pods_have_started():
    nodes, _ = generate(1, 1, 0)
    gib = nodes[0].gpus[0].memory_bytes
    count = len(nodes[0].gpus)
    pods = [
        SimulatedPod(f"p{number}", Need(gib, count), number * 0.0, 60.0) for number in range(20)
    ]
    report = simulate(nodes, pods, Scheduling.SPREAD, record=True)
    _, row, *_ = tables(sections(read_page(as_html(report)))[WAITS])[0]
    assert row == ["best fit", "1", "19", "0", "after 18m", "19m"]


def test_nothing_lies_outside_of_its_picture(small, large):
    for report in (small, large):
        for label, svg in pictures(read_page(as_html(report))).items():
            _, _, width, height = map(float, svg.get("viewBox").split())
            for rect in svg.iter("rect"):
                x, y, w, h = (float(rect.get(key)) for key in ("x", "y", "width", "height"))
                assert w >= 0, label
                assert h >= 0, label
                assert 0 <= x <= x + w <= width + 1, (label, x, w)
                assert 0 <= y <= y + h <= height + 1, (label, y, h)
            for text in svg.iter("text"):
                x, y = float(text.get("x")), float(text.get("y"))
                assert 0 <= x <= width
                assert 8 <= y <= height
