"""What is common to pictures: their frame, axes, areas and curves, bars, legends and ticks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from webhook.tools.top.show.drawing.elements import tag

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from webhook.tools.top.show.drawing.elements import Child, Element

WIDTH: Final = 1080
"""Of every picture, in units that are pixels on a wide screen."""
_LETTER: Final = 7.0
"""How wide a character is at most, on average, in the pictures' small text."""
_TIMES_S: Final = (
    *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800),
    *(3600, 7200, 10800, 21600, 43200),
    *(86400 * days for days in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)),
)


class Box(NamedTuple):
    """Where a chart is in its picture; `most_x` and `most_y` are the values at its far edges."""

    left: float
    top: float
    width: float
    height: float
    most_x: float
    most_y: float

    def x(self, value: float) -> float:
        """Return where a value lies."""
        return self.left + self.width * value / self.most_x

    def y(self, value: float) -> float:
        """Return where a value lies; values grow upwards."""
        return self.top + self.height * (1 - value / self.most_y)


def picture(label: str, height: float, *children: Child) -> Element:
    """Return a picture; `label` is what it says to those who cannot see it."""
    drawn = tag(
        "svg",
        *children,
        viewBox=f"0 0 {WIDTH} {round(height)}",
        role="img",
        aria_label=label,
    )
    return tag("div", drawn, class_="wide")


def patterns() -> Element:
    """Return what `hatched` and `trouble` are filled with; once on a page."""
    hatch = tag(
        "pattern",
        tag("rect", width=6, height=6, class_="hatch-under"),
        tag("path", d="M0,0v6", class_="hatch-line"),
        id="hatch",
        width=6,
        height=6,
        patternUnits="userSpaceOnUse",
        patternTransform="rotate(45)",
    )
    dots = tag(
        "pattern",
        tag("rect", width=5, height=5, class_="dot-under"),
        tag("circle", cx=2.5, cy=2.5, r=1, class_="dot"),
        id="dots",
        width=5,
        height=5,
        patternUnits="userSpaceOnUse",
    )
    return tag("svg", tag("defs", hatch, dots), class_="defs", aria_hidden="true")


def words(x: float, y: float, content: str, class_: str = "") -> Element:
    """Return text whose base line begins here."""
    return (
        tag("text", content, x=x, y=y, class_=class_) if class_ else tag("text", content, x=x, y=y)
    )


def rectangle(
    x: float, y: float, width: float, height: float, class_: str, title: str = ""
) -> Element:
    """Return a rectangle, with a text that is shown under the pointer."""
    inside = (tag("title", title),) if title else ()
    return tag("rect", *inside, x=x, y=y, width=width, height=height, class_=class_)


def line(points: Iterable[tuple[float, float]], class_: str) -> Element:
    """Return a line through points."""
    return tag("path", d="M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in points), class_=class_)


def area(
    points: Sequence[tuple[float, float]], floor: Sequence[tuple[float, float]], class_: str
) -> Element:
    """Return what lies between two lines from left to right."""
    return line([*points, *reversed(floor)], class_)


def steps(points: Sequence[tuple[float, float]], until: float) -> list[tuple[float, float]]:
    """Return the corners of a line that keeps its height until the next point."""
    found: list[tuple[float, float]] = []
    for x, y in points:
        if found:
            found.append((x, found[-1][1]))
        found.append((x, y))
    return [*found, (until, found[-1][1])] if found else []


def across(
    box: Box, ticks: Sequence[float], show: Callable[[float], str] | None = None
) -> Iterator[Element]:
    """Yield lines from left to right at values, with their names at the left if there are any."""
    for value in ticks:
        y = box.y(value)
        yield line([(box.left, y), (box.left + box.width, y)], "grid")
        if show:
            yield words(box.left - 6, y + 4, show(value), "faint end")


def below(box: Box, ticks: Iterable[tuple[float, str]]) -> Iterator[Element]:
    """Yield marks under a chart at values, with their names."""
    bottom = box.top + box.height
    for value, name in ticks:
        x = box.x(value)
        yield line([(x, bottom), (x, bottom + 4)], "grid")
        yield words(x, bottom + 17, name, "faint middle")


def legend(entries: Iterable[tuple[str, str]]) -> Element:
    """Return what the classes of a picture mean."""
    items = []
    for class_, meaning in entries:
        if class_.startswith("curve"):
            sample = line([(1, 7), (25, 7)], class_)
        else:
            sample = rectangle(1, 1, 24, 12, class_)
        drawn = tag("svg", sample, viewBox="0 0 26 14", aria_hidden="true")
        items.append(tag("li", drawn, meaning))
    return tag("ul", *items, class_="legend")


def fits(content: str, width: float) -> bool:
    """Say whether small text has room in a rectangle."""
    return len(content) * _LETTER + 6 <= width


def cut(content: str, width: float) -> str:
    """Return text with its middle left out where it has no room: names differ at both ends."""
    most = max(4, int(width / _LETTER))
    if len(content) <= most:
        return content
    return f"{content[: most - most // 2 - 1]}…{content[-(most // 2) :]}"


def amounts(most: float, count: int = 4) -> list[float]:
    """Return round values from 0 to at most the given one: 1, 2 or 5 times a power of ten apart."""
    step = 1.0
    while most / step > count:
        step *= 2.5 if f"{step:.0f}".startswith("2") else 2
    return [step * number for number in range(int(most / step) + 1)]


def times(most_s: float, count: int = 4) -> list[float]:
    """Return round times from 0 to at most the given one."""
    step = next((one for one in _TIMES_S if most_s / one <= count), _TIMES_S[-1])
    while most_s / step > count:
        step *= 2
    return [float(step * number) for number in range(int(most_s / step) + 1)]


def short_time(seconds: float) -> str:
    """Write a time with the unit that suits it, and the next smaller one if that is not 0."""
    rest = round(seconds)
    found = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        number, rest = divmod(rest, size)
        if number:
            found.append(f"{number}{unit}")
        elif found:
            break
    return "".join(found[:2]) or "0s"
