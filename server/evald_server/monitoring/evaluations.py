"""Metrics of whole evaluations, one per turn."""

import operator
import re
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.core import HistogramMetricFamily, Metric

from evald.result import Verdict

from .histogram import DURATION_BOUNDS, Histogram, is_trace_id
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
    """Counts the evaluations of one RPC with one set of labels. labels: rpc, then the caller's labels."""

    def __init__(self, labels: tuple[str, ...], durations: Histogram) -> None:
        self.labels = labels
        self.counts = [0] * (len(Verdict) + 1)
        self.durations = durations

    def add(self, verdict: int, seconds: float, trace_id: str | None = None) -> None:
        """Count one evaluation.

        verdict: number of the `evald.Verdict` of its summary. seconds: how long the turn took, without queueing.
        trace_id: 32 hex digits, as in `traceparent`; anything else is ignored.
        """
        self.counts[verdict] += 1
        self.durations.observe(seconds)
        if trace_id is not None and is_trace_id(trace_id):
            self.durations.set_exemplar(seconds, trace_id)


class EvaluationMetrics:
    """Creates and exports the tallies of evaluations.

    allowed_labels: the keys of a caller's labels that are exported. Raises ValueError if one is not a valid or
    free label name.
    """

    def __init__(self, limit: SeriesLimit, allowed_labels: Sequence[str]) -> None:
        for name in allowed_labels:
            if not _LABEL_NAME.fullmatch(name) or name in ("rpc", "verdict"):
                raise ValueError(
                    f"allowed_labels: {name!r} cannot be a label: wanted letters, digits and '_', no digit or "
                    "'__' at the start, and neither 'rpc' nor 'verdict', which are taken"
                )
        self._limit = limit
        self._allowed_labels = tuple(dict.fromkeys(allowed_labels))
        self._tallies: dict[tuple[str, ...], EvaluationTally] = {}
        self._durations = Histogram(DURATION_BOUNDS)

    def tally(self, rpc: str, labels: Mapping[str, str] | None = None) -> EvaluationTally:
        """Return the tally of an RPC's evaluations, the same object each time.

        rpc: name of the method, as in the contract. labels: the caller's. Keys that the operator did not allow
        are dropped; values that are too long, or above the limit, become "other".
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
        """Return the evaluations by RPC and the number of their verdict."""
        found: dict[str, list[int]] = {}
        for tally in list(self._tallies.values()):
            counts = found.setdefault(tally.labels[0], [0] * len(tally.counts))
            counts[:] = map(operator.add, counts, tally.counts)
        return found

    def families(self) -> Iterator[Metric]:
        """Yield the current families."""
        evaluations = counter("evald_evaluations", "Turns evaluated, by the verdict of their summary.")
        names = ("rpc", *self._allowed_labels)
        for tally in list(self._tallies.values()):
            labels = dict(zip(names, tally.labels, strict=True))
            for verdict in ASSERTION_VERDICTS:
                add_count(evaluations, {**labels, "verdict": VERDICT_NAMES[verdict]}, tally.counts[verdict])
        durations = HistogramMetricFamily(
            "evald_evaluation_duration_seconds",
            "How long the evaluation of a turn took in the server, queueing left out.",
            labels=(),
        )
        add_histogram(durations, [], self._durations)
        yield from (evaluations, durations)
