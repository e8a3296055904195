"""Line charts as SVG text, without scripts and fonts, in colours that suit light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

WIDTH: Final = 440
HEIGHT: Final = 270
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 26, 34
COLOURS: Final = 8
"""Number of colours in the page's style, --c0 … --c7."""
_DASHES: Final = ("", "6 3", "2 3", "9 3 2 3")


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line: a value for each place on the x axis, or None."""

    name: str
    values: Sequence[float | None]
    ranges: Sequence[tuple[float, float] | None] = ()
    """The lowest and highest value that may be true at each place; None where that is not known."""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Lines over named places."""

    title: str
    x_title: str
    y_title: str
    places: Sequence[str]
    lines: Sequence[Line]
    level: float | None = None
    """A horizontal line at the value that means no change."""
    top: float | None = None
    """The largest value of the axis; None for the largest of the lines."""
    band: bool = False
    """Whether ranges are drawn as one band for each line; otherwise each is an error bar."""


def svg(chart: Chart) -> str:
    """Return the chart with its legend, as a figure of a page."""
    values = [value for line in chart.lines for value in line.values if value is not None and math.isfinite(value)]
    values += [each[1] for line in chart.lines for each in line.ranges if each and math.isfinite(each[1])]
    ticks = _ticks(max([*values, chart.level or 0.0, chart.top or 0.0, 1e-9]))
    parts = [
        f'<figure><figcaption>{escape(chart.title)}</figcaption><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(chart.title)}">',
        *_axes(chart, ticks),
        *(part for number, line in enumerate(chart.lines) for part in _line(chart, line, number, ticks[-1])),
        "</svg>",
        _legend(chart.lines),
        "</figure>",
    ]
    return "\n".join(parts)


def stack(title: str, parts: Sequence[tuple[str, int, str]]) -> str:
    """Return one bar of parts (name, size, size in words) with its legend, as a figure of a page; the last is pale."""
    whole, x, drawn = sum(size for _, size, _ in parts) or 1, 0.0, []
    for number, (name, size, words) in enumerate(parts):
        width = 3 + (WIDTH - 3 * len(parts)) * size / whole  # a small part is seen, too
        said = escape(f"{name}: {words}")
        drawn.append(
            f'<rect class="part {_class(number)}" x="{x:.1f}" y="0" width="{width:.1f}" height="44">'
            f"<title>{said}</title></rect>"
        )
        x += width
    names = [Line(name=f"{name} {words}", values=()) for name, _, words in parts]
    return (
        f'<figure class="parts"><figcaption>{escape(title)}</figcaption><svg viewBox="0 0 {WIDTH} 44" role="img" '
        f'aria-label="{escape(title)}">{"".join(drawn)}</svg>{_legend(names)}</figure>'
    )


def _axes(chart: Chart, ticks: Sequence[float]) -> Iterator[str]:
    for tick in ticks:
        y = _y(tick, ticks[-1])
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="tick" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_number(tick)}</text>'
    if chart.level is not None:
        y = _y(chart.level, ticks[-1])
        yield f'<line class="level" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
    for index, place in enumerate(chart.places):
        x = _x(index, len(chart.places))
        yield f'<text class="tick" x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{escape(place)}</text>'
    yield f'<text class="axis" x="{WIDTH - RIGHT}" y="{HEIGHT - 3}" text-anchor="end">{escape(chart.x_title)}</text>'
    yield f'<text class="axis" x="{LEFT + 4}" y="{TOP - 11}">{escape(chart.y_title)}</text>'


def _line(chart: Chart, line: Line, number: int, highest: float) -> Iterator[str]:
    points = [
        (_x(index, len(chart.places)) + _aside(chart, number), _y(value, highest), chart.places[index], value)
        for index, value in enumerate(line.values)
        if value is not None and math.isfinite(value)
    ]
    if not points:
        return
    yield from _ranges(chart, line, number, highest)
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _, _ in points)
    yield f'<polyline class="line {_class(number)}" points="{path}"{_dash(number)}/>'
    for x, y, place, value in points:
        said = f"{line.name}, {chart.x_title} {place}: {_number(value)}"
        dot = f'<circle class="dot {_class(number)}" cx="{x:.1f}" cy="{y:.1f}" r="4">'
        yield f"{dot}<title>{escape(said)}</title></circle>"


def _ranges(chart: Chart, line: Line, number: int, highest: float) -> Iterator[str]:
    """Yield the band, or the error bars with their caps."""
    ends = [
        (_x(index, len(chart.places)) + _aside(chart, number), _y(each[0], highest), _y(each[1], highest))
        for index, each in enumerate(line.ranges)
        if each and all(map(math.isfinite, each))
    ]
    if chart.band and ends:
        edge = [(x, high) for x, _, high in ends] + [(x, low) for x, low, _ in reversed(ends)]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in edge)
        yield f'<polygon class="band {_class(number)}" points="{points}"/>'
    elif ends:
        bars = "".join(
            f"M{x:.1f} {low:.1f}V{high:.1f}M{x - 3:.1f} {low:.1f}h6M{x - 3:.1f} {high:.1f}h6" for x, low, high in ends
        )
        yield f'<path class="bar {_class(number)}" d="{bars}"/>'


def _aside(chart: Chart, number: int) -> float:
    """Return how far a line is moved aside, so that error bars at one place do not cover each other."""
    if chart.band or not any(any(line.ranges) for line in chart.lines):
        return 0.0
    room = 0.6 * (WIDTH - LEFT - RIGHT) / max(len(chart.places), 1)
    return (number - (len(chart.lines) - 1) / 2) * min(7.0, room / len(chart.lines))


def _legend(lines: Sequence[Line]) -> str:
    items = (
        f'<li><svg viewBox="0 0 24 10"><line class="line {_class(number)}" x1="1" x2="23" y1="5" y2="5"'
        f"{_dash(number)}/></svg>{escape(line.name)}</li>"
        for number, line in enumerate(lines)
    )
    return f'<ul class="legend">{"".join(items)}</ul>'


def _class(number: int) -> str:
    return f"c{number % COLOURS}"


def _dash(number: int) -> str:
    """Return the dashes that distinguish lines of the same colour."""
    dash = _DASHES[number // COLOURS % len(_DASHES)]
    return f' stroke-dasharray="{dash}"' if dash else ""


def _x(index: int, places: int) -> float:
    width = WIDTH - LEFT - RIGHT
    return LEFT + width * (index + 0.5) / max(places, 1)


def _y(value: float, highest: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * max(value, 0.0) / highest


def _ticks(highest: float) -> list[float]:
    """Return about five round numbers from 0 to at least `highest`."""
    rough = highest / 4
    unit = 10 ** math.floor(math.log10(rough))
    step = next(factor * unit for factor in (1, 2, 2.5, 5, 10) if factor * unit >= rough * 0.999)
    return [step * n for n in range(math.ceil(highest / step - 1e-9) + 1)]


def _number(value: float) -> str:
    """Return a number with three significant digits."""
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"
