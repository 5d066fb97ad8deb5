"""`vramwarden simulate --today -o html`: the answer as one page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from webhook.tools.simulate.output import Report
from webhook.tools.simulate.page import fill_map
from webhook.tools.simulate.replay.cluster import Scheduling
from webhook.tools.simulate.today_output import (
    HOWS,
    PRODUCTS,
    UNSIZED,
    figures,
    freed,
    hint,
    left_out,
    sentence,
    unfit,
)
from webhook.tools.top.show.drawing import charts
from webhook.tools.top.show.drawing.elements import page, section, table, tag

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from webhook.tools.simulate.judge.today import Row, Today
    from webhook.tools.simulate.today_output import TodayReport
    from webhook.tools.top.show.drawing.elements import Element


def today_as_html(report: TodayReport) -> str:
    """Write the page."""
    today, said = report.today, sentence(report.today)
    rows = [(label.strip(), f"{number:,}") for label, number in figures(today)]
    return page(
        f"vramwarden simulate: {said}",
        charts.patterns(),
        tag("h1", said[:1].upper() + said[1:]),
        tag("p", freed(today), class_="lead"),
        tag("div", table(["GPUs", ""], rows), class_="figures"),
        section(
            "GPUs by product", "Now, and as shares.", _table("product", PRODUCTS, today.products)
        ),
        section(
            "Pods by what they ask for today",
            "Those without a size stay whole.",
            _table("asks for", HOWS, today.hows),
            table(
                ["size", "pods"], [(by.value, f"{number:,}") for by, number in today.sizes.items()]
            ),
        ),
        *_details(report),
        *_drawn(today),
        section("Assumed", "", tag("ul", *(tag("li", one) for one in report.assumed))),
    )


def _details(report: TodayReport) -> Iterator[Element]:
    today = report.today
    if today.unsized:
        said = hint(today)
        rows = _table("workload", UNSIZED, today.unsized)
        yield section("Stay whole", said[:1].upper() + said[1:] + ".", rows)
    if today.packed.blocked:
        cells = [(why, f"{number:,}", first) for why, number, first in unfit(today)]
        drawn = table(["why", "pods", "first"], cells, texts=("first",))
        yield section("Would not fit", "With all GPUs that do not stay whole.", drawn)
    if found := left_out(report):
        drawn = table(["what", "number"], [(why, f"{number:,}") for why, number in found])
        yield section("Left out", "Of what was read.", drawn)


def _drawn(today: Today) -> Iterator[Element]:
    course = today.packed.course
    if course is None or not course.fullest or not today.packed.gpus_used:
        return
    gpus = course.fullest
    yield fill_map(
        Report(
            nodes=len({gpu.node for gpu in gpus}),
            gpus=len(gpus),
            memory_bytes=sum(gpu.gpu.memory_bytes for gpu in gpus),
            pods=today.pods,
            scheduling=Scheduling.PACK,
            lower_bound=today.fewest,
            outcomes={"best fit": today.packed},
        )
    )


def _table(name: str, heads: Sequence[str], rows: Sequence[Row]) -> Element:
    cells = [[row.name, *(f"{one:,}" for one in row.counts)] for row in rows]
    return table([name, *heads], cells)
