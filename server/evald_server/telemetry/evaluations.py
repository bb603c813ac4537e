"""Whole evaluations, one per turn."""

import re
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.core import HistogramMetricFamily, Metric

from evald.result import Verdict

from . import buckets
from .families import add_count, add_histogram, counter
from .histogram import Histogram, is_trace_id
from .labels import ASSERTION_VERDICTS, OTHER, VERDICT_NAMES, caller_value
from .room import Room

_LABEL_NAME = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")


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
        if trace_id is not None and is_trace_id(trace_id):
            self.durations.trace(seconds, trace_id)


class EvaluationTallies:
    """Gives out the tallies of whole evaluations.

    allowed_labels: the keys of a caller's labels that are exported. Raises ValueError: one is no name
    of a label.
    """

    def __init__(self, room: Room, allowed_labels: Sequence[str]) -> None:
        for name in allowed_labels:
            if not _LABEL_NAME.fullmatch(name) or name in ("rpc", "verdict"):
                raise ValueError(
                    f"allowed_labels: {name!r} cannot be a label: wanted letters, digits and '_', no digit or "
                    "'__' at the start, and neither 'rpc' nor 'verdict', which are taken"
                )
        self._room = room
        self._allowed_labels = tuple(dict.fromkeys(allowed_labels))
        self._tallies: dict[tuple[str, ...], EvaluationTally] = {}
        self._durations = Histogram(buckets.DURATION)

    def tally(self, rpc: str, labels: Mapping[str, str] | None = None) -> EvaluationTally:
        """The counters of whole evaluations by an RPC.

        rpc: name of the method, as in the contract. labels: the caller's; keys that the operator
        did not allow are dropped, values that are long or one too many become "other".
        """
        key = (rpc, *(caller_value((labels or {}).get(name, "")) for name in self._allowed_labels))
        found = self._tallies.get(key)
        if found is not None:
            return found
        if not self._room.admit("caller", len(ASSERTION_VERDICTS)):
            key = (OTHER,) * len(key)
        return self._tallies.setdefault(key, EvaluationTally(key, self._durations))

    def families(self) -> Iterator[Metric]:
        """Those of this moment."""
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
