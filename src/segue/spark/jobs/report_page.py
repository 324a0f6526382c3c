"""One HTML page with tables and plots, in itself: no script, no font, nothing to fetch.

Pure: values come in, text goes out. Whatever comes in is escaped here and nowhere else.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final

from segue.values import dataclass

WIDTH, HEIGHT = 720, 240
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 12, 28
TICKS: Final = 4
SERIES_MAX: Final = 6
"""As many as can be told apart by colour."""
DOTS_MAX: Final = 60
DAY_SECONDS: Final = 86_400
SHORT_SECONDS: Final = 600
"""What takes no longer is told by the second."""
TEXT_CHARACTERS_MAX: Final = 400
WHOLE_FROM: Final = 1000
"""What is larger is shown without decimals."""

Cell = str | int | float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows under names; the first column is text, the others are shown as numbers."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Lines over time, by their names: seconds since 1970, and a value."""

    title: str
    series: Mapping[str, Sequence[tuple[int, float]]]
    unit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """A bar for each name."""

    title: str
    values: Sequence[tuple[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A sentence."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Something under a heading."""

    title: str
    parts: Sequence[Table | Lines | Bars | Note]


def page(title: str, facts: Sequence[tuple[str, str]], sections: Sequence[Section]) -> str:
    """Return the whole page."""
    listed = "".join(f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>" for name, value in facts)
    body = "".join(_section(section) for section in sections)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_text(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{_text(title)}</h1>\n<dl>{listed}</dl>\n{body}</main>\n</body>\n</html>\n"
    )


def _section(section: Section) -> str:
    parts = "".join(_part(part) for part in section.parts)
    return f"<section>\n<h2>{_text(section.title)}</h2>\n{parts}</section>\n"


def _part(part: Table | Lines | Bars | Note) -> str:
    if isinstance(part, Table):
        return _table(part)
    if isinstance(part, Lines):
        return _lines(part)
    if isinstance(part, Bars):
        return _bars(part)
    return f"<p>{_text(part.text)}</p>\n"


def _table(table: Table) -> str:
    head = "".join(f"<th>{_text(name)}</th>" for name in table.columns)
    rows = "".join(
        "<tr>" + "".join(f"<td>{_text(_shown(cell))}</td>" for cell in row) + "</tr>\n"
        for row in table.rows
    )
    return (
        f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{rows}</tbody></table></div>\n"
    )


# Plots -----------------------------------------------------------------------------------------


def _lines(lines: Lines) -> str:
    """Return a plot of the largest series, each in its colour."""
    series = {name: points for name, points in lines.series.items() if points}
    if not series:
        return ""
    drawn = dict(
        sorted(series.items(), key=lambda each: -max(value for _, value in each[1]))[:SERIES_MAX]
    )
    moments = [moment for points in drawn.values() for moment, _ in points]
    first, last = min(moments), max(moments)
    top = _rounded_up(max(value for points in drawn.values() for _, value in points))
    inner = _axes(first, last, top, lines.unit)
    for number, points in enumerate(drawn.values()):
        places = [
            (_across(moment, first, last), _up(value, top)) for moment, value in sorted(points)
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        inner += f'<polyline class="line s{number}" points="{path}"/>\n'
        if len(places) <= DOTS_MAX:
            inner += "".join(
                f'<circle class="dot s{number}" cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>\n'
                for x, y in places
            )
    legend = "".join(
        f'<li><span class="key s{number}"></span>{_text(name)}</li>'
        for number, name in enumerate(drawn)
    )
    left_out = len(series) - len(drawn)
    if left_out:
        legend += f"<li>and {left_out} more, in the tables</li>"
    return _figure(lines.title, HEIGHT, inner) + f'<ul class="legend">{legend}</ul>\n'


def _axes(first: int, last: int, top: float, unit: str) -> str:
    inner = ""
    for tick in range(TICKS + 1):
        y = _up(top * tick / TICKS, top)
        inner += (
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>\n'
            f'<text class="tick" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">'
            f"{_text(_short(top * tick / TICKS) + unit)}</text>\n"
        )
    for tick, anchor in ((0, "start"), (1, "middle"), (2, "end")):
        moment = first + (last - first) * tick // 2
        if tick and first == last:
            continue
        inner += (
            f'<text class="tick" x="{_across(moment, first, last):.1f}" y="{HEIGHT - 8}" '
            f'text-anchor="{anchor}">{_text(_moment(moment, last - first))}</text>\n'
        )
    return inner


def _bars(bars: Bars) -> str:
    if not bars.values:
        return ""
    top = max(value for _, value in bars.values) or 1
    row = 24
    inner = ""
    for number, (name, value) in enumerate(bars.values):
        y = number * row
        length = (WIDTH - 2 * LEFT - RIGHT) * value / top
        inner += (
            f'<text class="tick" x="{LEFT - 6}" y="{y + 16}" text-anchor="end">{_text(name)}</text>'
            f'<rect class="bar" x="{LEFT}" y="{y + 4}" width="{length:.1f}" height="16"/>'
            f'<text class="tick" x="{LEFT + length + 6:.1f}" y="{y + 16}">'
            f"{_text(_shown(value))}</text>\n"
        )
    return _figure(bars.title, row * len(bars.values), inner)


def _figure(title: str, height: int, inner: str) -> str:
    return (
        f"<figure>\n<figcaption>{_text(title)}</figcaption>\n"
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{_text(title)}">\n'
        f"{inner}</svg>\n</figure>\n"
    )


def _across(moment: int, first: int, last: int) -> float:
    inside = WIDTH - LEFT - RIGHT
    return LEFT + (inside * (moment - first) / (last - first) if last > first else inside / 2)


def _up(value: float, top: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / top


def _rounded_up(value: float) -> float:
    """Return the next number that reads well on an axis."""
    if value <= 0:
        return 1
    power = 1.0
    while power * 10 <= value:
        power *= 10
    while power > value:
        power /= 10
    return next((step * power for step in (1, 2, 4, 5, 8) if step * power >= value), 10 * power)


# Text ------------------------------------------------------------------------------------------


def _text(text: str) -> str:
    if len(text) > TEXT_CHARACTERS_MAX:
        text = text[: TEXT_CHARACTERS_MAX - 1] + "…"
    return escape(text, quote=True)


def _shown(value: Cell) -> str:
    if value is None:
        return "-"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return (
            f"{value:,.0f}" if value == int(value) or abs(value) >= WHOLE_FROM else f"{value:.3g}"
        )
    return value


def _short(value: float) -> str:
    """Return a number as an axis has room for."""
    for size, sign in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            return f"{value / (1e3 if sign == 'k' else size):g}{sign}"
    return _shown(value)


def _moment(seconds: int, span_seconds: int) -> str:
    moment = datetime.fromtimestamp(seconds, UTC)
    if span_seconds > 10 * DAY_SECONDS:
        return moment.strftime("%Y-%m-%d")
    return moment.strftime("%m-%d %H:%M" if span_seconds > SHORT_SECONDS else "%H:%M:%S")


_STYLE: Final = """
:root{color-scheme:light dark;--paper:#fff;--ink:#1c1c1e;--faint:#6b6b70;--rule:#dcdce0;
--s0:#2563a8;--s1:#c2571a;--s2:#2f7d4f;--s3:#8a3fa0;--s4:#a8871a;--s5:#b0304f}
@media (prefers-color-scheme:dark){:root{--paper:#17181a;--ink:#ececef;--faint:#9a9aa2;
--rule:#36373b;--s0:#6fa8e8;--s1:#f0945c;--s2:#6fc492;--s3:#c993dc;--s4:#dcc05c;--s5:#ee8299}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,sans-serif}
main{max-width:52rem;margin:0 auto;padding:1rem}
h1{font-size:1.5rem}h2{font-size:1.2rem;margin:2rem 0 .5rem;overflow-wrap:anywhere}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1rem;margin:0}
dt{color:var(--faint)}dd{margin:0;overflow-wrap:anywhere}
.wide{overflow-x:auto}
table{border-collapse:collapse;min-width:60%;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .75rem .25rem 0;border-bottom:1px solid var(--rule);text-align:right}
th{color:var(--faint);font-weight:normal}
th:first-child,td:first-child{text-align:left;overflow-wrap:anywhere}
figure{margin:1rem 0 .25rem}figcaption{color:var(--faint)}
svg{width:100%;height:auto;display:block}
.grid{stroke:var(--rule)}.tick{fill:var(--faint);font-size:12px}.bar{fill:var(--s0)}
.line{fill:none;stroke-width:1.75}
.line.s0{stroke:var(--s0)}.line.s1{stroke:var(--s1)}.line.s2{stroke:var(--s2)}
.line.s3{stroke:var(--s3)}.line.s4{stroke:var(--s4)}.line.s5{stroke:var(--s5)}
.dot.s0{fill:var(--s0)}.dot.s1{fill:var(--s1)}.dot.s2{fill:var(--s2)}
.dot.s3{fill:var(--s3)}.dot.s4{fill:var(--s4)}.dot.s5{fill:var(--s5)}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:.25rem 1rem;padding:0;margin:0}
.legend li{overflow-wrap:anywhere}
.key{display:inline-block;width:.75rem;height:.75rem;margin-right:.4rem}
.key.s0{background:var(--s0)}.key.s1{background:var(--s1)}.key.s2{background:var(--s2)}
.key.s3{background:var(--s3)}.key.s4{background:var(--s4)}.key.s5{background:var(--s5)}
"""
