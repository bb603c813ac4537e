"""Paired measurement: slices of both sides in turn, and the median of the ratios of neighbouring slices.

On shared machines, absolute rates drift by a third within minutes. Two slices of a second, one right after the other,
have the same conditions.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Bound:
    """The bound of a figure: a minimum or a maximum."""

    limit: float
    at_least: bool

    def holds(self, value: float) -> bool:
        return value >= self.limit if self.at_least else value <= self.limit

    def __str__(self) -> str:
        return f"{'>=' if self.at_least else '<='} {self.limit:g}"


def at_least(limit: float) -> Bound:
    return Bound(limit, at_least=True)


def at_most(limit: float) -> Bound:
    return Bound(limit, at_least=False)


@dataclass(frozen=True)
class Row:
    """One figure. values: one per round; their median is the result. detail: absolute figures behind the ratio."""

    figure: str
    bound: Bound | None
    values: Sequence[float]
    detail: str = ""

    @property
    def value(self) -> float:
        return statistics.median(self.values)

    @property
    def holds(self) -> bool:
        return self.bound is None or self.bound.holds(self.value)


@dataclass(frozen=True)
class Pairs:
    """The measurements of two sides, one per round."""

    ours: Sequence[float]
    theirs: Sequence[float]

    @property
    def ratios(self) -> list[float]:
        return [a / b for a, b in zip(self.ours, self.theirs, strict=True)]

    def plus(self, ours: float, theirs: float) -> "Pairs":
        """Return the pairs with one more round."""
        return Pairs([*self.ours, ours], [*self.theirs, theirs])

    def row(self, figure: str, bound: Bound | None, unit: str) -> Row:
        ours, theirs = statistics.median(self.ours), statistics.median(self.theirs)
        return Row(figure, bound, self.ratios, f"{number(ours)} : {number(theirs)} {unit}")


def paired(rounds: int, ours: Callable[[], float], theirs: Callable[[], float]) -> Pairs:
    """Measure both sides in turn. The first slice of each side is a warm-up and does not count."""
    slices = in_turn(rounds, ours, theirs)
    return Pairs([a for a, _ in slices], [b for _, b in slices])


def in_turn(rounds: int, ours: Callable[[], T], theirs: Callable[[], T]) -> list[tuple[T, T]]:
    """Return the slices of both sides, after a warm-up of each.

    The order alternates, because the second slice of a round may run on a slower machine.
    """
    ours()
    theirs()
    slices = []
    for turn in range(rounds):
        if turn % 2:
            second = theirs()
            slices.append((ours(), second))
        else:
            slices.append((ours(), theirs()))
    return slices


def number(value: float) -> str:
    """Format a number with three significant digits and separated thousands."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
