"""The geometry of plots, which the macros of `templates/plots.html` draw as SVG.

x is in percent of the width and y in pixels, so that a plot fits any screen and its text keeps its size.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

_TOP: Final = 18
_BOTTOM: Final = 148
# The labels of the grid lines are at the left, above the lines; points start to the right of them.
_LEFT: Final = 14.0
_RIGHT: Final = 96.0
_SPARK_HEIGHT: Final = 18


class Bar(NamedTuple):
    """A value with its interval on a line, in percent of the width. target: the position of a line across, or None."""

    value: float
    low: float
    width: float
    target: float | None


class Datum(NamedTuple):
    """A value to plot, with its interval. value: None leaves a gap in the line, with a cross.

    style: class in the style sheet. text: of the tooltip.
    """

    label: str
    value: float | None
    low: float
    high: float
    text: str
    style: str = ""


class Dot(NamedTuple):
    """A sample with its position."""

    x: float
    y: float
    top: float
    bottom: float
    sample: Datum


class Line(NamedTuple):
    """A series of dots."""

    name: str
    style: str
    dots: list[Dot]


class Plot(NamedTuple):
    """A plot of shares over a row of labels. grid: y and text of the horizontal lines. ticks: x and label."""

    lines: list[Line]
    grid: list[tuple[float, str]]
    ticks: list[tuple[float, str]]
    height: int = 176


def bar(
    value: float, low: float, high: float, *, start: float = 0, end: float = 1, target: float | None = None
) -> Bar:
    """Place a value and its interval on a line from `start` to `end`."""

    def place(number: float) -> float:
        share = (number - start) / (end - start)
        return round(3 + 94 * min(max(share, 0), 1), 2)

    left = place(low)
    width = round(max(place(high) - left, 0.5), 2)
    return Bar(place(value), left, width, None if target is None else place(target))


def spark(values: Sequence[float | None], most: float | None = None) -> str:
    """Draw values as small bars: a path in a box of 100 x 18, since many elements take long to render.

    None leaves a gap. most: the value of a full bar, which no value exceeds; None for the largest value.
    """
    most = most or max((abs(value) for value in values if value is not None), default=0) or 1
    starts, across = _columns(len(values))
    bars = []
    for start, value in zip(starts, values, strict=True):
        if value is not None:
            # At least 1 pixel, so that small values are visible.
            tall = f"{max(_SPARK_HEIGHT * abs(value) / most, 1):.1f}"
            bars.append(f"{start}v-{tall}{across}v{tall}z")
    return "".join(bars)


@lru_cache(64)
def _columns(size: int) -> tuple[list[str], str]:
    """Return the start of each bar, and the width of all bars, as parts of an SVG path."""
    step = 100 / max(size, 1)
    return [f"M{step * place:.1f} {_SPARK_HEIGHT}" for place in range(size)], f"h{0.75 * step:.1f}"


def share_plot(series: Sequence[tuple[str, str, Sequence[Datum]]]) -> Plot:
    """Plot series of shares, given as name, style and samples, over the same labels."""
    size = max((len(samples) for _, _, samples in series), default=0)
    lines = [
        Line(name, style, [_dot(sample, _x(index, size)) for index, sample in enumerate(samples)])
        for name, style, samples in series
    ]
    grid = [(_y(share / 100), f"{share}\u202f%") for share in (0, 25, 50, 75, 100)]
    labels = series[0][2] if series else []
    # At most 6 labels: more would overlap on a phone.
    step = -(-len(labels) // 6)
    ticks = [(_x(index, size), sample.label) for index, sample in enumerate(labels) if index % step == 0]
    return Plot(lines, grid, ticks)


def _x(index: int, size: int) -> float:
    return round(_LEFT + (_RIGHT - _LEFT) * (index / (size - 1) if size > 1 else 0.5), 2)


def _y(share: float) -> float:
    return round(_BOTTOM - (_BOTTOM - _TOP) * min(max(share, 0), 1), 1)


def _dot(sample: Datum, x: float) -> Dot:
    return Dot(x, _y(sample.value or 0), _y(sample.high), _y(sample.low), sample)
