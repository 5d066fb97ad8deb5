"""`vramwarden simulate -o html`: what became of a workload by each order, as one page of pictures.

Orders stand side by side, ours first. What lies on the GPUs is drawn at the first moment at which
most was taken.
"""

from __future__ import annotations

from bisect import bisect_right
from math import ceil, log10
from typing import TYPE_CHECKING, Final, NamedTuple

from webhook.core.words import amount as in_tenths
from webhook.tools.simulate.output import ROWS, WORDS, counted
from webhook.tools.simulate.output import amount as rounded
from webhook.tools.simulate.replay.cluster import Cause
from webhook.tools.top.show.drawing import charts
from webhook.tools.top.show.drawing.charts import WIDTH, Box, rectangle, short_time, words
from webhook.tools.top.show.drawing.elements import folded, page, section, table, tag

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from webhook.tools.simulate.output import Report
    from webhook.tools.simulate.replay.course import Course, FilledGpu, Moment
    from webhook.tools.top.show.drawing.elements import Element

_GIB: Final = 2**30
_MANY_BYTES: Final = 100 * _GIB
_BETWEEN: Final = 26
"""Columns."""
_MOST_BARS: Final = 64
"""GPUs that are drawn as bars with names; more are drawn as tiles."""
_NAMES: Final = 210
"""Room for those at the left of the bars."""
_MOST_TILES: Final = 1200
_MOST_NAMED: Final = 6
"""Pods in the text under the pointer."""
_MOST_STEPS: Final = 400
"""Of a curve."""
_TABLE_ROWS: Final = 24
_HOUR_S, _DAY_S = 3600, 86_400
_WAITS_S: Final = (
    *(1, 3, 10, 30, 60, 180, 600, 1800),
    *(_HOUR_S, 3 * _HOUR_S, 8 * _HOUR_S),
    *(_DAY_S, 3 * _DAY_S, 10 * _DAY_S, 30 * _DAY_S, 100 * _DAY_S, 365 * _DAY_S, 1000 * _DAY_S),
)
_NEARLY_ALL: Final = 0.95
_FLOOR: Final = 0.9
"""Where more start at once with every order, the axis of shares begins here."""


class _Column(NamedTuple):
    """An order, and where it is drawn."""

    name: str
    course: Course
    number: int
    left: float
    width: float


def as_html(report: Report) -> str:
    """Write the page of a report whose replays were recorded."""
    orders = list(report.outcomes)
    head = (
        f"{counted(report.nodes, 'node')} with {counted(report.gpus, 'GPU')} "
        f"({_amount(report.memory_bytes)}), {counted(report.pods, 'pod')}; "
        f"the scheduler {report.scheduling.value}s."
    )
    started = [f"{one.at_once:,} with {name}" for name, one in report.outcomes.items()]
    rows = [[name.strip(), *map(show, report.outcomes.values())] for name, show in ROWS.items()]
    rows.append(["GPUs needed at least", *[f"{report.lower_bound:,}"] * len(orders)])
    figures = tag("div", table(["", *_with_ours(orders)], rows), class_="figures")
    return page(
        f"vramwarden simulate: {counted(report.pods, 'pod')} on {counted(report.gpus, 'GPU')}",
        charts.patterns(),
        tag("h1", "What becomes of this workload on this cluster"),
        tag("p", head, class_="lead"),
        tag(
            "p",
            f"Of {counted(report.pods, 'pod')}, {_listed(started)} start when they arrive. The "
            "orders differ in which GPU of a node a pod gets; vramwarden's is best fit: the GPU "
            "with the least free memory that is enough.",
        ),
        figures,
        fill_map(report),
        _timeline(report),
        _waiting(report),
        _causes(report),
    )


def _amount(amount_bytes: int) -> str:
    """Write bytes as the text does where there are many, and small ones to a tenth."""
    return in_tenths(amount_bytes) if amount_bytes < _MANY_BYTES else rounded(amount_bytes)


def _columns(report: Report, gutter: float) -> list[_Column]:
    """Place the orders side by side; the gutter at their left is for names and amounts."""
    courses = {name: one.course for name, one in report.outcomes.items() if one.course}
    width = (WIDTH - gutter - _BETWEEN * (len(courses) - 1)) / len(courses)
    return [
        _Column(name, course, number, gutter + number * (width + _BETWEEN), width)
        for number, (name, course) in enumerate(courses.items())
    ]


def _with_ours(orders: Sequence[str]) -> list[str]:
    return [f"{name} (ours)" if name == orders[0] else name for name in orders]


def _listed(parts: Sequence[str]) -> str:
    return f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else parts[0]


def _heading(column: _Column, under: str) -> Iterator[Element]:
    yield words(column.left, 14, column.name + " (ours)" * (column.number == 0), "strong")
    yield words(column.left, 30, under, "faint")


# Who is where when the cluster is fullest.


def fill_map(report: Report) -> Element:
    """Draw who is on which GPU when most memory is taken, by the recorded replays of a report."""
    columns = _columns(report, 0)
    small = "free, but too small for any pod that waits; where none waits, for any pod"
    marks = [("a", "a pod"), ("empty", "free"), ("hatched", small)]
    if report.gpus <= _MOST_BARS:
        body, height = _bars(report)
        marks = [("a", "a pod"), ("b", "the next one on that GPU"), *marks[1:]]
        each = "Each bar is a GPU and as long as its memory, each segment of it a pod."
    else:
        body, height = _tiles(report)
        each = "Each column is a GPU and as tall as its memory, each piece of it a pod."
    some = ""
    if report.gpus > _MOST_TILES:
        some = f" The GPUs of one node in {_every(report.gpus)} are drawn; the table counts all."
    found = [
        table(
            ["order", "fullest after", "GPUs", "in use", "taken", "free", "of it too small"],
            [_filled(one) for one in columns],
        )
    ]
    if report.gpus <= _MOST_BARS:
        rows = [_listed_gpu(one, gpu) for one in columns for gpu in one.course.fullest]
        found.append(
            table(["order", "node", "GPU", "memory", "free", "pods"], rows, texts=("pods",))
        )
    return section(
        "Who is where when the cluster is fullest",
        f"The moment at which most memory is taken. {each} Point at it for names.{some}",
        charts.legend(marks),
        charts.picture("Memory taken and free on each GPU, by order", height, *body),
        folded("As a table", *found),
    )


def _filled(column: _Column) -> list[str]:
    course = column.course
    gpus = course.fullest
    return [
        column.name,
        short_time(course.fullest_s),
        f"{len(gpus):,}",
        f"{sum(1 for gpu in gpus if gpu.pods):,}",
        _amount(sum(gpu.taken_bytes for gpu in gpus)),
        _amount(sum(gpu.free_bytes for gpu in gpus)),
        _amount(sum(gpu.free_bytes for gpu in gpus if _is_small(gpu, course))),
    ]


def _listed_gpu(column: _Column, gpu: FilledGpu) -> list[str]:
    pods = ", ".join(f"{name} {_amount(amount_bytes)}" for name, amount_bytes in gpu.pods)
    total, free = _amount(gpu.gpu.memory_bytes), _amount(gpu.free_bytes)
    return [column.name, gpu.node, f"{gpu.gpu.index}", total, free, pods or "-"]


def _is_small(gpu: FilledGpu, course: Course) -> bool:
    return gpu.free_bytes < course.smallest_bytes


def _fullest(column: _Column) -> str:
    course = column.course
    taken = sum(gpu.taken_bytes for gpu in course.fullest)
    share = 100 * taken // max(1, sum(gpu.gpu.memory_bytes for gpu in course.fullest))
    return f"after {short_time(course.fullest_s)}: {_amount(taken)} taken ({share}%)"


def _too_small(column: _Column) -> Element:
    said = f"too small: under {_amount(column.course.smallest_bytes)}"
    return words(column.left + column.width, 14, said, "faint end")


def _bars(report: Report) -> tuple[list[Element], float]:
    """Draw a bar with a name for each GPU, and the pods on it."""
    body: list[Element] = []
    top = 0.0
    for column in _columns(report, _NAMES):
        body += [*_heading(column, _fullest(column)), _too_small(column)]
        largest = max(gpu.gpu.memory_bytes for gpu in column.course.fullest)
        top, node = 36.0, None
        for gpu in column.course.fullest:
            if gpu.node != node:
                top += 8
            if column.number == 0:
                if gpu.node != node:
                    body.append(words(0, top + 12, charts.cut(gpu.node, _NAMES - 100)))
                named = f"GPU {gpu.gpu.index} {_amount(gpu.gpu.memory_bytes)}"
                body.append(words(_NAMES - 8, top + 12, named, "faint end"))
            body += _bar(gpu, column, top, column.width / largest)
            top, node = top + 20, gpu.node
    return body, top


def _bar(gpu: FilledGpu, column: _Column, top: float, unit: float) -> Iterator[Element]:
    left = column.left
    for number, (name, amount_bytes) in enumerate(gpu.pods):
        width, class_ = amount_bytes * unit, "ab"[number % 2]
        yield rectangle(left, top, width - 1, 16, class_, f"{name}: {_amount(amount_bytes)}")
        if charts.fits(name, width):
            yield words(left + 4, top + 12, name, f"in-{class_}")
        left += width
    if gpu.free_bytes > 0:
        small = _is_small(gpu, column.course)
        title = f"{_amount(gpu.free_bytes)} free" + ", too small" * small
        width = gpu.free_bytes * unit
        yield rectangle(left, top, width, 16, "hatched" if small else "empty", title)


def _every(gpus: int) -> int:
    """Return of how many nodes one is drawn."""
    return ceil(gpus / _MOST_TILES)


def _tiles(report: Report) -> tuple[list[Element], float]:
    """Draw a small column for each GPU, those of a node side by side."""
    body: list[Element] = []
    bottom = 0.0
    for column in _columns(report, 0):
        body += [*_heading(column, _fullest(column)), _too_small(column)]
        largest = max(gpu.gpu.memory_bytes for gpu in column.course.fullest)
        nodes: dict[str, list[FilledGpu]] = {}
        for gpu in column.course.fullest:
            nodes.setdefault(gpu.node, []).append(gpu)
        x, y = 0.0, 66.0
        chosen = list(nodes.values())[:: _every(report.gpus)]
        for gpu in [gpu for gpus in chosen for gpu in gpus][:_MOST_TILES]:
            x += 3 * (gpu is nodes[gpu.node][0] and x > 0)
            if x + 6 > column.width:
                x, y = 0.0, y + 30
            body.append(_tile(gpu, column, column.left + x, y, 24 / largest))
            x += 7
        bottom = max(bottom, y)
    return body, bottom + 6


def _tile(gpu: FilledGpu, column: _Column, x: float, bottom: float, unit: float) -> Element:
    height = gpu.gpu.memory_bytes * unit
    path, y = "", bottom
    for _, amount_bytes in gpu.pods:
        tall = amount_bytes * unit
        path += f"M{x:.0f},{y:.1f}h6v-{max(0.4, tall - 0.6):.1f}h-6z"
        y -= tall
    back = "hatched" if gpu.free_bytes > 0 and _is_small(gpu, column.course) else "back"
    pods = [f"{name} {_amount(amount_bytes)}" for name, amount_bytes in gpu.pods[:_MOST_NAMED]]
    if len(gpu.pods) > _MOST_NAMED:
        pods.append(f"{len(gpu.pods) - _MOST_NAMED} more")
    title = (
        f"{gpu.node} GPU {gpu.gpu.index}: {_amount(gpu.taken_bytes)} of "
        f"{_amount(gpu.gpu.memory_bytes)} taken" + f" by {', '.join(pods)}" * bool(pods)
    )
    parts = [rectangle(round(x), bottom - height, 6, height, "back")]
    if y > bottom - height:
        parts.append(rectangle(round(x), bottom - height, 6, y - bottom + height, back))
    return tag("g", tag("title", title), *parts, tag("path", d=path, class_="a"))


# How full the cluster is over time.


def _timeline(report: Report) -> Element:
    heading = "How full the cluster is over time"
    columns = _columns(report, 84)
    moments = [one.course.moments for one in columns]
    first_s, last_s = moments[0][0].at_s, max(some[-1].at_s for some in moments)
    span_s, capacity = last_s - first_s, report.memory_bytes / _GIB
    if span_s <= 0:
        return section(heading, "All pods arrive at one moment and none ends, so nothing changes.")
    most_waiting = max(moment.waiting for some in moments for moment in some)
    times = [(at, short_time(at)) for at in charts.times(span_s)]
    body: list[Element] = []
    for column in columns:
        first = column.number == 0
        most = max(moment.taken_bytes for moment in column.course.moments)
        body += _heading(
            column, f"{_amount(most)} of {_amount(report.memory_bytes)} promised at most"
        )
        box = Box(column.left, 42, column.width, 190, span_s, capacity)
        body += _areas(column.course.moments, box, first_s)
        body += charts.across(
            box, charts.amounts(capacity), (lambda gib: f"{gib:,.0f}Gi") if first else None
        )
        if most_waiting:
            box = Box(column.left, 268, column.width, 70, span_s, most_waiting)
            ticks = [one for one in charts.amounts(most_waiting, 2) if one == int(one)]
            body += charts.across(box, ticks, "{:,.0f}".format if first else None)
            points = [(box.x(at.at_s - first_s), box.y(at.waiting)) for at in column.course.moments]
            corners = charts.steps(points, box.left + box.width)
            body.append(charts.line(corners, "alarm"))
            body.append(words(column.left, 260, "pods that wait", "faint"))
        body += charts.below(box, times)
    bottom = box.top + box.height + 24
    waits = " The line below is how many pods wait." if most_waiting else " No pod waits."
    return section(
        heading,
        "The grey area is all memory there is, as large as at the top. What is stranded is free, "
        "but in pieces that are too small for a pod of this workload, on average over its pods."
        + waits,
        charts.legend([("a", "promised to pods"), ("hatched", "stranded"), ("empty", "free")]),
        charts.picture("Memory promised, stranded and free over time, by order", bottom, *body),
        folded("As a table", _moments_table(columns, first_s, span_s)),
    )


def _areas(moments: Sequence[Moment], box: Box, first_s: float) -> Iterator[Element]:
    yield rectangle(box.left, box.top, box.width, box.height, "empty")
    right = box.left + box.width

    def corners(value: Callable[[Moment], int]) -> list[tuple[float, float]]:
        points = [(box.x(one.at_s - first_s), box.y(value(one) / _GIB)) for one in moments]
        return charts.steps(points, right)

    bottom = box.top + box.height
    promised = corners(lambda one: one.taken_bytes)
    stranded = corners(lambda one: one.taken_bytes + one.stranded_bytes)
    yield charts.area(stranded, promised, "hatched")
    yield charts.area(promised, [(box.left, bottom), (right, bottom)], "a")


def _moments_table(columns: Sequence[_Column], first_s: float, span_s: float) -> Element:
    head = ["after"]
    for column in columns:
        head += [f"{column.name}: promised", "stranded", "waiting"]
    rows = []
    for number in range(_TABLE_ROWS + 1):
        after_s = span_s * number / _TABLE_ROWS
        row = [short_time(after_s)]
        for column in columns:
            moments = column.course.moments
            at = moments[max(0, bisect_right(moments, first_s + after_s, key=_at) - 1)]
            row += [_amount(at.taken_bytes), _amount(at.stranded_bytes), f"{at.waiting:,}"]
        rows.append(row)
    return table(head, rows)


def _at(moment: Moment) -> float:
    return moment.at_s


# How long pods wait.


def _waiting(report: Report) -> Element:
    heading = "How long pods wait"
    outcomes = report.outcomes
    columns = _columns(report, 0)
    waits_s = [wait_s for one in columns for wait_s in one.course.waits_s[:1]]
    if not waits_s:
        return section(heading, "Pods start when they arrive, or never; none starts later.")
    longest_s = max(one.longest_wait_s for one in outcomes.values())
    first_s = max(one for one in _WAITS_S if one <= max(1.0, min(waits_s)))
    started = min(one.at_once for one in outcomes.values()) / report.pods
    floor, apart = (_FLOOR, 2) if started > _FLOOR else (0.0, 20)
    across = log10(max(longest_s / first_s, 2) * 1.05)
    box = Box(84, 16, WIDTH - 84 - 250, 230, across, 1 - floor)
    right = box.left + box.width

    def x_of(wait_s: float) -> float:
        return box.x(max(0.0, log10(max(wait_s, 1.0) / first_s)))

    shares = [share / 100 - floor for share in range(round(100 * floor), 101, apart)]
    ticks = [(log10(one / first_s), short_time(one)) for one in _WAITS_S if first_s <= one]
    nearly = box.y(_NEARLY_ALL - floor)
    body: list[Element] = [
        *charts.across(box, shares, lambda share: f"{100 * (share + floor):.0f}%"),
        *charts.below(box, [one for one in ticks if one[0] <= across]),
        charts.line([(box.left, nearly), (right, nearly)], "limit"),
        words(box.left + 6, nearly - 5, "95% of all pods", "faint"),
    ]
    ends, rows = [], []
    for column in columns:
        outcome, its_waits_s = outcomes[column.name], column.course.waits_s
        points = [(box.left, box.y(outcome.at_once / report.pods - floor))]
        for number in _thinned(len(its_waits_s)):
            share = (outcome.at_once + number) / report.pods
            points.append((x_of(its_waits_s[number - 1]), box.y(share - floor)))
        corners = charts.steps(points, right)
        body.append(charts.line(corners, f"curve s{column.number % 3}"))
        said = _nearly_all(outcome.at_once, its_waits_s, report.pods)
        ends.append((corners[-1][1], f"{column.name}: 95% {said}"))
        counts = (outcome.at_once, outcome.waited, outcome.never)
        row = [column.name, *(f"{count:,}" for count in counts)]
        rows.append([*row, said, short_time(outcome.longest_wait_s)])
    below = 0.0
    for y, said in sorted(ends):
        below = max(y, below)
        body.append(words(right + 8, below + 4, said))
        below += 16
    names = enumerate(_with_ours(list(outcomes)))
    return section(
        heading,
        "The share of all pods that have started at most so long after they arrived; at the left "
        "edge stand those that started at once. Times are on a logarithmic scale.",
        charts.legend([(f"curve s{number % 3}", name) for number, name in names]),
        charts.picture("Share of pods started, by how long they waited and order", 270, *body),
        folded(
            "As a table",
            table(
                ["order", "started at once", "waited", "never", "95% started", "longest wait"],
                rows,
            ),
        ),
    )


def _thinned(count: int) -> list[int]:
    """Return numbers from 1 to a count, at most as many as a curve may have."""
    steps = min(count, _MOST_STEPS)
    return [ceil(count * number / steps) for number in range(1, steps + 1)]


def _nearly_all(at_once: int, waits_s: Sequence[float], pods: int) -> str:
    """Say after how long 95 of 100 pods have started."""
    missing = ceil(pods * _NEARLY_ALL) - at_once
    if missing <= 0:
        return "at once"
    if missing > len(waits_s):
        return "never"
    return f"after {short_time(waits_s[missing - 1])}"


# Why they wait.


def _causes(report: Report) -> Element:
    heading = "Why pods do not start when they arrive"
    found = {cause for one in report.outcomes.values() for cause in one.blocked}
    if not found:
        return section(heading, "Every pod starts when it arrives.")
    most = max(count for one in report.outcomes.values() for count in one.blocked.values())
    left, room = 300, WIDTH - 300 - 190
    body: list[Element] = []
    top = 4.0
    for cause in filter(found.__contains__, Cause):
        middle = top + 8 * len(report.outcomes)
        body.append(words(left - 12, middle + 4, WORDS[cause], "end"))
        for number, (name, outcome) in enumerate(report.outcomes.items()):
            count = outcome.blocked.get(cause, 0)
            width = room * count / most
            if count:
                body.append(rectangle(left, top + 1, max(1, width), 13, f"f{number % 3}"))
            body.append(words(left + width + 6, top + 12, f"{count:,}  {name}", "faint"))
            top += 16
        top += 12
    rows = [
        [WORDS[cause], *(f"{one.blocked.get(cause, 0):,}" for one in report.outcomes.values())]
        for cause in filter(found.__contains__, Cause)
    ]
    return section(
        heading,
        "Pods that did not start when they arrived, by the first cause that holds; those that "
        "waited and those that never started.",
        charts.picture("Pods that did not start when they arrived, by cause and order", top, *body),
        folded("As a table", table(["cause", *_with_ours(list(report.outcomes))], rows)),
    )
