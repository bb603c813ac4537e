"""Counters for the results of one evaluator type."""

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from copy import copy

from evald.errorcodes import CODES
from evald.result import Verdict

from .histogram import Exemplar, Histogram, is_trace_id
from .labels import OTHER
from .room import Codes
from .values import Measured
from .window import PassWindow

ERROR_CODES = (*CODES, OTHER)

_ERROR_INDEX = {code: index for index, code in enumerate(ERROR_CODES)}

_FAILED, _SKIPPED = int(Verdict.FAILED), int(Verdict.SKIPPED)


class TypeSeries:
    """The series that all results of one evaluator type share, enforced or not.

    scores: of enforced assertions; None for metrics. measured: what it measures, by unit.
    """

    __slots__ = ("durations", "errors", "label", "measured", "origin", "scores")

    def __init__(
        self,
        label: str,
        origin: str,
        durations: Histogram,
        errors: Codes,
        *,
        scores: Histogram | None = None,
    ) -> None:
        self.label = label
        self.origin = origin
        self.durations = durations
        self.errors = errors
        self.scores = scores
        self.measured: dict[str, Measured] = {}


class Tally:
    """Counts the results of one evaluator type under one enforcement.

    labels: evaluator, kind, enforcement. window: of enforced assertions, else None; it begins with the
    tally. usual: see `engine.observer.Tally`.
    """

    __slots__ = (
        "_clock",
        "_duration_bounds",
        "_duration_cells",
        "_measured",
        "_score_bounds",
        "_score_cells",
        "counts",
        "exemplars",
        "labels",
        "subject",
        "verdicts",
        "window",
    )

    def __init__(
        self,
        subject: TypeSeries,
        labels: tuple[str, str, str],
        verdicts: Sequence[Verdict],
        clock: Callable[[], float],
        *,
        gates: bool,
        measured: Measured | None = None,
    ) -> None:
        self.subject = subject
        self.labels = labels
        self.verdicts = verdicts
        self.counts = [0] * (len(Verdict) + 1)  # by the verdict's number; 0 is no verdict
        self.exemplars: dict[int, Exemplar] = {}
        self.window = PassWindow(self.counts) if gates else None
        scores = subject.scores if gates else None
        self._score_bounds = scores.bounds if scores else ()
        self._score_cells = scores.cells if scores else None
        self._measured = measured
        self._duration_bounds = subject.durations.bounds
        self._duration_cells = subject.durations.cells
        self._clock = clock
        if self.window is not None:
            self.window.turn(clock())

    def measuring(self, measured: Measured) -> "Tally":
        """Return these counters with another histogram for values."""
        other = copy(self)
        other._measured = measured  # noqa: SLF001 - a copy of itself
        return other

    def add(
        self,
        verdict: int,
        seconds: float,
        score: float | None,
        value: float | None,
        trace_id: str | None = None,
        count: int = 1,
    ) -> None:
        """Count results.

        verdict: number of an `evald.Verdict`. seconds: how long the evaluator took; not counted
        when skipped, because nothing ran. value: None when the data was unavailable: the 0 that
        stands for it is no measurement. trace_id: 32 hex digits, as in `traceparent`; anything
        else is ignored. count: how many equal results; seconds is their mean.
        """
        window = self.window
        if window is not None and verdict <= _FAILED:
            now = self._clock()
            if now >= window.ends:
                window.turn(now)
            scores = self._score_cells
            if score is not None and scores is not None and 0.0 <= score <= 1.0:
                # `Histogram.observe` without its call, here and below: a third of what `add` costs.
                scores[bisect_left(self._score_bounds, score)] += count
                scores[-1] += score * count
        self.counts[verdict] += count
        if verdict != _SKIPPED:
            cells = self._duration_cells
            cells[bisect_left(self._duration_bounds, seconds)] += count
            cells[-1] += seconds * count
        if value is not None and self._measured is not None:
            self._measured.observe(value, count)
        if trace_id is not None and is_trace_id(trace_id):
            self.exemplars[verdict] = Exemplar(trace_id, 1.0, time.time())
            if verdict != _SKIPPED:
                self.subject.durations.trace(seconds, trace_id)

    def error(self, code: str) -> None:
        """Count the code of an error, besides `add`. One outside the closed list counts as "other"."""
        self.subject.errors.add(_ERROR_INDEX.get(code, len(CODES)))
