"""Plots as SVG text: no script, no font and no picture from elsewhere. Colours come from the page's CSS."""

from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Final, NamedTuple

_ROW: Final = 34
_LABEL: Final = 180
_WIDTH: Final = 860
_NOTE: Final = 150
_AXIS: Final = 26


class Whisker(NamedTuple):
    """One row: a value with its interval. limit: of a gate. bad: it misses the gate. note: numbers in words."""

    label: str
    value: float | None
    low: float
    high: float
    note: str
    limit: float | None = None
    bad: bool = False


def whiskers(rows: Sequence[Whisker], title: str, low: float = 0.0, high: float = 1.0) -> str:
    """Values with their intervals, one below the other, on one scale. low, high: its ends."""
    plot = _WIDTH - _LABEL - _NOTE
    height = _ROW * len(rows) + _AXIS

    def x(value: float) -> float:
        return _LABEL + plot * (min(max(value, low), high) - low) / (high - low)

    parts = [_scale(x, low, high, height - _AXIS)]
    for number, row in enumerate(rows):
        y = _ROW * number + _ROW / 2
        parts.append(_text(_LABEL - 12, y, row.label, "end"))
        tone = "bad" if row.bad else "value"
        if row.value is not None:
            parts.append(
                f'<line class="{tone} thick" x1="{x(row.low):.1f}" x2="{x(row.high):.1f}" y1="{y}" y2="{y}"/>'
            )
            parts.append(f'<circle class="{tone}" cx="{x(row.value):.1f}" cy="{y}" r="5.5"/>')
        if row.limit is not None:
            at = x(row.limit)
            parts.append(f'<line class="limit" x1="{at:.1f}" x2="{at:.1f}" y1="{y - 12}" y2="{y + 12}"/>')
        parts.append(_text(_WIDTH - _NOTE + 14, y, row.note, "start", "note"))
    return _svg(_WIDTH, height, title, parts)


def confusion(
    cells: Sequence[Sequence[float]], rows: Sequence[str], columns: Sequence[str], title: str
) -> str:
    """A table of two by two whose cells are the darker the more of their row they hold."""
    side, left, top = 116, 150, 44
    parts = [
        _text(left + side * (number + 0.5), top - 16, name, "middle") for number, name in enumerate(columns)
    ]
    for line, (name, counts) in enumerate(zip(rows, cells, strict=True)):
        y = top + line * 72
        parts.append(_text(left - 12, y + 34, name, "end"))
        total = sum(counts)
        for place, count in enumerate(counts):
            share = count / total if total else 0.0
            tone = "good" if line == place else "bad"
            at = left + place * side
            parts += [
                (
                    f'<rect class="cell {tone}" x="{at}" y="{y}" width="{side - 4}" height="68" rx="6" '
                    f'fill-opacity="{0.08 + 0.72 * share:.2f}"/>'
                ),
                _text(
                    at + side / 2 - 2,
                    y + 27,
                    f"{count:g}" if count == int(count) else f"{count:.1f}",
                    "middle",
                    "count",
                ),
                _text(at + side / 2 - 2, y + 50, f"{share:.0%}" if total else "", "middle", "note"),
            ]
    return _svg(left + 2 * side + 6, top + 2 * 72, title, parts)


class Point(NamedTuple):
    """One range of scores: their mean, how often people agree, and how many there are."""

    score: float
    share: float
    low: float
    high: float
    cases: float


def reliability(points: Iterable[Point], title: str) -> str:
    """Scores against what people said. On the diagonal a score says how often people agree."""
    size, left, bottom = 250, 56, 44
    width, height = left + size + 16, size + bottom + 12

    def x(value: float) -> float:
        return left + size * value

    def y(value: float) -> float:
        return 12 + size * (1 - value)

    parts = [f'<rect class="frame" x="{left}" y="12" width="{size}" height="{size}"/>']
    parts.append(f'<line class="grid dashed" x1="{x(0)}" y1="{y(0)}" x2="{x(1)}" y2="{y(1)}"/>')
    for tick in (0.0, 0.5, 1.0):
        parts.append(_text(x(tick), y(0) + 16, f"{tick:g}", "middle", "note"))
        parts.append(_text(left - 8, y(tick), f"{tick:g}", "end", "note"))
    parts.append(_text(left + size / 2, height - 8, "judge's score", "middle", "note"))
    turn = f"rotate(-90 14 {12 + size / 2})"
    parts.append(
        f'<text class="note" text-anchor="middle" x="14" y="{12 + size / 2}" transform="{turn}">people say pass</text>'
    )
    for point in points:
        radius = min(4 + point.cases**0.5 / 2, 12)
        at = x(point.score)
        parts.append(
            f'<line class="value thin" x1="{at:.1f}" x2="{at:.1f}" y1="{y(point.low):.1f}" y2="{y(point.high):.1f}"/>'
        )
        parts.append(f'<circle class="value" cx="{at:.1f}" cy="{y(point.share):.1f}" r="{radius:.1f}"/>')
    return _svg(width, height, title, parts)


def _scale(x: Callable[[float], float], low: float, high: float, bottom: float) -> str:
    ticks = [low + (high - low) * step / 4 for step in range(5)]
    return "".join(
        f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="0" y2="{bottom}"/>'
        + _text(x(tick), bottom + 15, f"{tick:g}", "middle", "note")
        for tick in ticks
    )


def _text(x: float, y: float, text: str, anchor: str, style: str = "label") -> str:
    return (
        f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" dominant-baseline="central">'
        f"{escape(text)}</text>"
    )


def _svg(width: float, height: float, title: str, parts: Iterable[str]) -> str:
    return (
        f'<svg role="img" viewBox="0 0 {width:g} {height:g}" style="max-width:{width:g}px">'
        f"<title>{escape(title)}</title>{''.join(parts)}</svg>"
    )
