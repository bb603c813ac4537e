"""Metrics of whole evaluations, one per turn."""

import operator
import re
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.core import HistogramMetricFamily, Metric

from evald.result import Verdict

from .histogram import DURATION_BOUNDS, Histogram, series_count
from .prometheus import (
    ASSERTION_VERDICTS,
    OTHER,
    VERDICT_NAMES,
    add_count,
    add_histogram,
    caller_value,
    counter,
)
from .series_limit import SeriesLimit

_LABEL_NAME = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")


class EvaluationTally:
    """A tally of one RPC's evaluations with the same labels. labels: rpc, then the caller's labels."""

    def __init__(self, labels: tuple[str, ...], durations: Histogram) -> None:
        self.labels = labels
        self.counts = [0] * (len(Verdict) + 1)
        self.durations = durations

    def add(self, verdict: int, seconds: float) -> None:
        """Count one evaluation.

        verdict: number of the summary's `evald.Verdict`. seconds: duration of the evaluation, without queueing.
        """
        self.counts[verdict] += 1
        self.durations.observe(seconds)


class EvaluationMetrics:
    """The metrics of evaluations: creates and exports the tallies.

    allowed_labels: the keys of a caller's labels that are exported. The constructor raises ValueError if one is not a
    valid label name or already used.
    """

    def __init__(self, limit: SeriesLimit, allowed_labels: Sequence[str]) -> None:
        for name in allowed_labels:
            if not _LABEL_NAME.fullmatch(name) or name in ("rpc", "verdict"):
                raise ValueError(
                    f"allowed_labels: got {name!r}, wanted letters, digits and '_', without a digit or '__' at the "
                    "start; 'rpc' and 'verdict' are reserved"
                )
        limit.add_fixed(len(ASSERTION_VERDICTS) + series_count(DURATION_BOUNDS))  # the verdicts of "other"
        self._limit = limit
        self._allowed_labels = tuple(dict.fromkeys(allowed_labels))
        self._tallies: dict[tuple[str, ...], EvaluationTally] = {}
        self._durations = Histogram(DURATION_BOUNDS)

    def tally(self, rpc: str, labels: Mapping[str, str] | None = None) -> EvaluationTally:
        """Return the tally of an RPC's evaluations, the same object each time.

        rpc: name of the method, as in the protos. labels: the caller's. Keys that the operator did not allow are
        dropped. Values that are too long become "other". Above the limit, all labels become "other".
        """
        key: tuple[str, ...] = (rpc,)
        if self._allowed_labels:
            key += tuple(caller_value((labels or {}).get(name, "")) for name in self._allowed_labels)
        found = self._tallies.get(key)
        if found is not None:
            return found
        if not self._limit.reserve("caller", len(ASSERTION_VERDICTS)):
            key = (OTHER,) * len(key)
        return self._tallies.setdefault(key, EvaluationTally(key, self._durations))

    def counts(self) -> dict[str, list[int]]:
        """Return the counts of evaluations: for each RPC a list indexed by the verdict's number."""
        found: dict[str, list[int]] = {}
        for tally in list(self._tallies.values()):
            counts = found.setdefault(tally.labels[0], [0] * len(tally.counts))
            counts[:] = map(operator.add, counts, tally.counts)
        return found

    def families(self) -> Iterator[Metric]:
        """Yield the current metric families."""
        evaluations = counter("evald_evaluations", "Turns evaluated, by the verdict of their summary.")
        names = ("rpc", *self._allowed_labels)
        for tally in list(self._tallies.values()):
            labels = dict(zip(names, tally.labels, strict=True))
            for verdict in ASSERTION_VERDICTS:
                add_count(evaluations, {**labels, "verdict": VERDICT_NAMES[verdict]}, tally.counts[verdict])
        durations = HistogramMetricFamily(
            "evald_evaluation_duration_seconds",
            "Duration of the evaluation of a turn in the server, without queueing.",
            labels=(),
        )
        add_histogram(durations, [], self._durations)
        yield from (evaluations, durations)
