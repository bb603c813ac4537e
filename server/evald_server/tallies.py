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
from evald.result import TokenUsage, Verdict

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


class Usual(NamedTuple):
    """Observations of one bucket that are counted elsewhere: see `engine.observer.Tally.usual`.

    column: which of the cells times scale is their sum.
    """

    cells: list[int]
    bucket: int
    column: int
    scale: float


class Histogram:
    """Observations by bucket.

    `cells`: one count per upper bound (inclusive), the count above them all, then the sum.
    """

    __slots__ = ("bounds", "cells", "exemplars", "usual")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(float(bound) for bound in bounds)
        self.cells: list[float] = [0] * (len(self.bounds) + 2)
        self.exemplars: dict[int, Exemplar] = {}
        self.usual: list[Usual] = []

    def snapshot(self) -> list[float]:
        """The cells of this moment, with what is counted elsewhere."""
        cells = self.cells[:]
        for usual in self.usual[:]:
            now = usual.cells[:]
            cells[usual.bucket] += now[0]
            cells[-1] += now[usual.column] * usual.scale
        return cells

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

    __slots__ = ("_counts", "_slots", "_usual", "ends")

    def __init__(self, counts: Sequence[int], usual: Sequence[int]) -> None:
        self._counts = counts
        self._usual = usual
        self._slots: tuple[tuple[int, int, int], ...] = ()  # replaced, never changed: another thread reads it
        self.ends = float("-inf")

    def turn(self, now: float) -> None:
        """Begin the slot of this moment. Call once `ends` has passed, before counting."""
        slot = int(now // _SLOT_SECONDS)
        self._slots = (*self._slots[1 - _SLOTS :], (slot, self._passed(), self._counts[2]))
        self.ends = (slot + 1) * _SLOT_SECONDS

    def ratio(self, now: float) -> float | None:
        """Passed out of passed and failed; None when there were neither."""
        oldest = int(now // _SLOT_SECONDS) - _SLOTS
        for slot, passed_before, failed_before in self._slots:
            if slot > oldest:
                passed = self._passed() - passed_before
                failed = self._counts[2] - failed_before
                return passed / (passed + failed) if passed + failed else None
        return None

    def _passed(self) -> int:
        return self._counts[1] + self._usual[0]


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
        "usual",
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
        self.usual = [0, 0]  # how many, and their nanoseconds
        self.window = PassWindow(self.counts, self.usual) if gates else None
        scores = subject.scores if gates else None
        self._score_bounds = scores.bounds if scores else ()
        self._score_cells = scores.cells if scores else None
        self._measured = measured
        self._duration_bounds = subject.durations.bounds
        self._duration_cells = subject.durations.cells
        self._clock = clock
        if self.window is not None:
            self.window.turn(clock())
        subject.durations.usual.append(Usual(self.usual, 0, 1, 1e-9))
        if scores is not None:
            scores.usual.append(Usual(self.usual, bisect_left(scores.bounds, 1.0), 0, 1.0))

    @property
    def measures(self) -> bool:
        """Whether values are wanted."""
        return self._measured is not None

    def count(self, verdict: Verdict) -> int:
        """How many results had this verdict."""
        return self.counts[verdict] + (self.usual[0] if verdict is Verdict.PASSED else 0)

    def tick(self, now: float) -> None:
        """Let the time pass: `usual` is counted without a look at the clock."""
        if self.window is not None and now >= self.window.ends:
            self.window.turn(now)

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

    __slots__ = ("_first", "codes", "durations", "labels", "received_count", "sent_count", "started_count")

    def __init__(self, labels: tuple[str, str, str], durations: Histogram, codes: Codes) -> None:
        self.labels = labels
        self._first = durations.bounds[0]
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

    def served(self, seconds: float) -> None:
        """`began` and `answered` in one, for calls that waited for nothing."""
        self.started_count += 1
        self.received_count += 1
        self.sent_count += 1
        codes = self.codes.cells
        if codes[_OK] and seconds <= self._first:
            codes[_OK] += 1
            cells = self.durations.cells
            cells[0] += 1
            cells[-1] += seconds
        else:
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


JUDGE_OUTCOMES = (
    "ok",
    "adapted",
    "unparseable",
    "refused",
    "truncated",
    "rate_limited",
    "unavailable",
    "timeout",
    "input_too_large",
    "cancelled",
    OTHER,
)


class ModelTally:
    """Counts the requests to one model. durations: by outcome. tokens: of a request, read and written."""

    __slots__ = ("durations", "label", "tokens")

    def __init__(self, label: str, token_bounds: Sequence[float]) -> None:
        self.label = label
        self.durations: dict[str, Histogram] = {}
        self.tokens = (Histogram(token_bounds), Histogram(token_bounds))


class JudgeTally:
    """Counts requests to the models that judge.

    evaluator: the type that asks. model: the counters of a model by its name. outcomes: as JUDGE_OUTCOMES.
    tokens: read and written. looks: into the cache, in vain and not.
    """

    __slots__ = ("_model", "_observed", "cost_usd", "evaluator", "looks", "models", "outcomes", "tokens")

    def __init__(
        self,
        evaluator: str,
        model: Callable[[str], ModelTally],
        observed: Callable[[ModelTally, str], Histogram | None],
    ) -> None:
        self.evaluator = evaluator
        self.outcomes = dict.fromkeys(JUDGE_OUTCOMES, 0)
        self.tokens = [0, 0]
        self.cost_usd = 0.0
        self.looks = [0, 0]
        self.models: dict[str, ModelTally] = {}
        self._model = model
        self._observed = observed

    def request(self, model: str, outcome: str, seconds: float) -> None:
        """Count a request that ended. outcome: one outside the closed list is "other"."""
        if outcome not in self.outcomes:
            outcome = OTHER
        self.outcomes[outcome] += 1
        durations = self._observed(self._model(model), outcome)
        if durations is not None:
            durations.observe(seconds)

    def spent(self, model: str, usage: TokenUsage | None, cost_usd: float | None) -> None:
        """Count what a request has cost, as far as known. cost_usd: US dollars."""
        if cost_usd is not None:
            self.cost_usd += cost_usd
        if usage is None:
            return
        histograms = self._model(model).tokens
        for direction, tokens in enumerate((usage.input_tokens, usage.output_tokens)):
            if tokens is not None:
                self.tokens[direction] += tokens
                histograms[direction].observe(tokens)

    def cache(self, *, hit: bool) -> None:
        """Count a look into the cache."""
        self.looks[hit] += 1
