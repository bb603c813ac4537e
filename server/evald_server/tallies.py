"""What the event loop counts, in plain lists.

One thread writes, another reads, without locks. Each list is copied in one step, which the
interpreter lock makes whole, so the buckets of a histogram always add up to its count.
"""

import re
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import NamedTuple

from evald.errorcodes import CODES
from evald.result import Verdict

OTHER = "other"
"""Label value of everything that found its label full."""

ERROR_CODES = (*CODES, OTHER)

# As Go's gRPC metrics spell the names of grpc.StatusCode: public dashboards and alerts filter on these.
GRPC_CODES: Mapping[str, str] = {
    "OK": "OK",
    "CANCELLED": "Canceled",
    "UNKNOWN": "Unknown",
    "INVALID_ARGUMENT": "InvalidArgument",
    "DEADLINE_EXCEEDED": "DeadlineExceeded",
    "NOT_FOUND": "NotFound",
    "ALREADY_EXISTS": "AlreadyExists",
    "PERMISSION_DENIED": "PermissionDenied",
    "RESOURCE_EXHAUSTED": "ResourceExhausted",
    "FAILED_PRECONDITION": "FailedPrecondition",
    "ABORTED": "Aborted",
    "OUT_OF_RANGE": "OutOfRange",
    "UNIMPLEMENTED": "Unimplemented",
    "INTERNAL": "Internal",
    "UNAVAILABLE": "Unavailable",
    "DATA_LOSS": "DataLoss",
    "UNAUTHENTICATED": "Unauthenticated",
}

_ERROR_INDEX = {code: index for index, code in enumerate(ERROR_CODES)}
_GRPC_INDEX = {code: index for index, code in enumerate(GRPC_CODES)}

_FAILED, _SKIPPED = int(Verdict.FAILED), int(Verdict.SKIPPED)
_TRACE_ID = re.compile(r"[0-9a-f]{32}")
_LARGEST = 1e300  # leaves room to add up: a sum that became infinite or NaN would stay so

_SLOT_SECONDS = 10
_SLOTS = 30
_WORST_SECONDS = 30


class Exemplar(NamedTuple):
    """A trace that shows one observation. `time`: Unix time in seconds."""

    trace_id: str
    value: float
    time: float


class Histogram:
    """Observations by bucket.

    `cells`: one count per upper bound (inclusive), the count above them all, then the sum.
    """

    __slots__ = ("bounds", "cells", "exemplars")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(float(bound) for bound in bounds)
        self.cells: list[float] = [0] * (len(self.bounds) + 2)
        self.exemplars: dict[int, Exemplar] = {}

    def observe(self, value: float) -> None:
        """Count a number. Infinities and NaN are left out."""
        if -_LARGEST < value < _LARGEST:
            cells = self.cells
            cells[bisect_left(self.bounds, value)] += 1
            cells[-1] += value

    def trace(self, value: float, trace_id: str) -> None:
        """Let the bucket of this number point to a trace."""
        self.exemplars[bisect_left(self.bounds, value)] = Exemplar(trace_id, value, time.time())


class RemoteTally:
    """How long the tasks of one remote type took."""

    __slots__ = ("durations", "label", "observe")

    def __init__(self, label: str, durations: Histogram) -> None:
        self.label = label
        self.durations = durations
        self.observe = durations.observe


class PassWindow:
    """The share of passed over the last five minutes.

    Counts only ever grow, so it is enough to note what they were when each of the last slots
    of ten seconds began.
    """

    __slots__ = ("_counts", "_slots", "ends")

    def __init__(self, counts: Sequence[int]) -> None:
        self._counts = counts
        self._slots: tuple[tuple[int, int, int], ...] = ()  # replaced, never changed: another thread reads it
        self.ends = float("-inf")

    def turn(self, now: float) -> None:
        """Begin the slot of this moment. Call once `ends` has passed, before counting."""
        slot = int(now // _SLOT_SECONDS)
        self._slots = (*self._slots[1 - _SLOTS :], (slot, self._counts[1], self._counts[2]))
        self.ends = (slot + 1) * _SLOT_SECONDS

    def ratio(self, now: float) -> float | None:
        """Passed out of passed and failed; None when there were neither."""
        oldest = int(now // _SLOT_SECONDS) - _SLOTS
        for slot, passed_before, failed_before in self._slots:
            if slot > oldest:
                passed = self._counts[1] - passed_before
                failed = self._counts[2] - failed_before
                return passed / (passed + failed) if passed + failed else None
        return None


class RecentWorst:
    """The largest number of the last 30 to 60 seconds: whoever looks every 30 seconds misses none."""

    __slots__ = ("_window", "_worsts")

    def __init__(self) -> None:
        self._window = 0
        self._worsts = (0.0, 0.0)  # of the window before, and of this one

    def observe(self, number: float, now: float) -> None:
        """Count a number of this moment."""
        self._worsts = self._at(now)
        self._window = int(now // _WORST_SECONDS)
        self._worsts = (self._worsts[0], max(self._worsts[1], number))

    def worst(self, now: float) -> float:
        """The largest one; 0 without any."""
        return max(self._at(now))

    def _at(self, now: float) -> tuple[float, float]:
        passed = int(now // _WORST_SECONDS) - self._window
        return self._worsts if passed == 0 else (self._worsts[1] if passed == 1 else 0.0, 0.0)


class Room:
    """How many more series there may be, and how many more values of each label.

    `overflows`: how often a label found no room.
    """

    __slots__ = ("_series", "_values", "overflows")

    def __init__(self, series: int, values: Mapping[str, float]) -> None:
        self._series = series
        self._values = dict(values)
        self.overflows = dict.fromkeys(values, 0)

    def admit(self, label: str, series: int, values: int = 1) -> bool:
        """Whether there is room for so many series and values of the label, which are then taken."""
        if series > self._series or values > self._values[label]:
            self.overflows[label] += 1
            return False
        self._series -= series
        self._values[label] -= values
        return True


class Codes:
    """Counts by code out of a closed list.

    A code becomes a series with its first count. When there is no room for it, `overflow` counts.
    """

    __slots__ = ("_admit", "_overflow", "cells")

    def __init__(
        self, size: int, admit: Callable[[], bool] = lambda: True, overflow: "Codes | None" = None
    ) -> None:
        self.cells = [0] * size
        self._admit = admit
        self._overflow = overflow

    def add(self, index: int) -> None:
        """Count one."""
        if self.cells[index] or self._overflow is None or self._admit():
            self.cells[index] += 1
        else:
            self._overflow.cells[index] += 1


class Measured:
    """What an evaluator measures in one unit. last: None before the first value."""

    __slots__ = ("histogram", "last")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.histogram = Histogram(bounds)
        self.last: float | None = None

    def observe(self, value: float) -> None:
        """Count a value."""
        self.histogram.observe(value)
        self.last = value


class Subject:
    """What all uses of one evaluator type count together.

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

    labels: evaluator, kind, enforcement. window: of enforced assertions, else None.
    """

    __slots__ = (
        "_clock",
        "_duration_bounds",
        "_duration_cells",
        "_first",
        "_measured",
        "_score_bounds",
        "_score_cells",
        "_top",
        "counts",
        "exemplars",
        "labels",
        "subject",
        "verdicts",
        "window",
    )

    def __init__(
        self,
        subject: Subject,
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
        self._top = bisect_left(self._score_bounds, 1.0)
        self._measured = measured
        self._duration_bounds = subject.durations.bounds
        self._duration_cells = subject.durations.cells
        self._first = self._duration_bounds[0]
        self._clock = clock

    def measuring(self, measured: Measured) -> "Tally":
        """The same counters for uses that measure in another unit."""
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
    ) -> None:
        """Count one result.

        verdict: number of an `evald.Verdict`. seconds: how long the evaluator took; not counted
        when skipped, because nothing ran. value: None as well when the data was unavailable: the
        0 that stands for it is no measurement. trace_id: 32 hex digits, as in `traceparent`;
        anything else is no trace.
        """
        window = self.window
        if window is not None and verdict <= _FAILED:
            now = self._clock()
            if now >= window.ends:
                window.turn(now)
            scores = self._score_cells
            if score is not None and scores is not None and 0.0 <= score <= 1.0:
                # `Histogram.observe` without its call, here and below: a third of what `add` costs.
                scores[bisect_left(self._score_bounds, score)] += 1
                scores[-1] += score
        self.counts[verdict] += 1
        if verdict != _SKIPPED:
            cells = self._duration_cells
            cells[bisect_left(self._duration_bounds, seconds)] += 1
            cells[-1] += seconds
        if value is not None and self._measured is not None:
            self._measured.observe(value)
        if trace_id is not None and _TRACE_ID.fullmatch(trace_id):
            self.exemplars[verdict] = Exemplar(trace_id, 1.0, time.time())
            if verdict != _SKIPPED:
                self.subject.durations.trace(seconds, trace_id)

    def add_perfect(self, seconds: float, value: float | None) -> None:
        """`add` for what most results are: passed, with score 1 where there is one, within the first bucket
        of durations. Half its time."""
        window = self.window
        if window is not None:
            now = self._clock()
            if now >= window.ends:
                window.turn(now)
            scores = self._score_cells
            if scores is not None:
                scores[self._top] += 1
                scores[-1] += 1.0
        self.counts[1] += 1
        cells = self._duration_cells
        if seconds <= self._first:
            cells[0] += 1
        else:
            cells[bisect_left(self._duration_bounds, seconds)] += 1
        cells[-1] += seconds
        if value is not None and self._measured is not None:
            self._measured.observe(value)

    def error(self, code: str) -> None:
        """Count the code of a result that is an error, besides `add`. One outside the closed list is "other"."""
        self.subject.errors.add(_ERROR_INDEX.get(code, len(CODES)))


class EvaluationTally:
    """Counts whole evaluations, one per turn, of one RPC. labels: rpc, then the caller's labels."""

    __slots__ = ("counts", "durations", "labels")

    def __init__(self, labels: tuple[str, ...], durations: Histogram) -> None:
        self.labels = labels
        self.counts = [0] * (len(Verdict) + 1)
        self.durations = durations

    def add(self, verdict: int, seconds: float, trace_id: str | None = None) -> None:
        """Count one summary: its verdict's number and how long the turn took, queueing left out."""
        self.counts[verdict] += 1
        self.durations.observe(seconds)
        if trace_id is not None and _TRACE_ID.fullmatch(trace_id):
            self.durations.trace(seconds, trace_id)


_OK = _GRPC_INDEX["OK"]


class RpcTally:
    """Counts the calls of one gRPC method. labels: grpc_type, grpc_service, grpc_method."""

    __slots__ = ("codes", "durations", "labels", "received_count", "sent_count", "started_count")

    def __init__(self, labels: tuple[str, str, str], durations: Histogram, codes: Codes) -> None:
        self.labels = labels
        self.durations = durations
        self.codes = codes
        self.started_count = 0
        self.received_count = 0
        self.sent_count = 0

    def started(self) -> None:
        """Count a call that begins."""
        self.started_count += 1

    def began(self) -> None:
        """`started` and `received`, for calls of one message."""
        self.started_count += 1
        self.received_count += 1

    def answered(self, seconds: float) -> None:
        """`sent` and `handled` with OK, for calls of one message."""
        self.sent_count += 1
        self.codes.add(_OK)
        self.durations.observe(seconds)

    def handled(self, code_name: str, seconds: float) -> None:
        """Count a call that ended. code_name: the name of a `grpc.StatusCode`; another one is UNKNOWN."""
        self.codes.add(_GRPC_INDEX.get(code_name, _GRPC_INDEX["UNKNOWN"]))
        self.durations.observe(seconds)

    def received(self, n: int = 1) -> None:
        """Count messages from the caller."""
        self.received_count += n

    def sent(self, n: int = 1) -> None:
        """Count messages to the caller."""
        self.sent_count += n
