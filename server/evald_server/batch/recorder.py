"""Results of a batch process, to be counted by the server's telemetry."""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

from evald.result import measurement
from evald_server.engine.plan import Plan, PlannedEvaluator
from evald_server.engine.run import EvaluationRun

Key: TypeAlias = tuple[int, int, float | None, float | None, str]
"""The evaluator's index, verdict, score, value and error code of a result."""

# Results that took no longer are counted together: they are in the first bucket of every histogram.
_SHORT_NANOS: Final = 1_000_000


class Tally(Protocol):
    """Counts the results of one evaluator type."""

    def add(
        self,
        verdict: int,
        seconds: float,
        score: float | None,
        value: float | None,
        trace_id: str | None = None,
        count: int = 1,
    ) -> None:
        """Count results. seconds: their mean."""

    def error(self, code: str) -> None:
        """Count an error code."""


class Heard(NamedTuple):
    """Results: key, number, and the mean of their seconds."""

    results: Sequence[tuple[Key, int, float]]

    def tell(self, plan: Plan, tally_of: Callable[[PlannedEvaluator], Tally]) -> None:
        """Count them. plan: equal to the one that they come from."""
        for (index, verdict, score, value, code), count, seconds in self.results:
            tally = tally_of(plan.evaluators[index])
            if code:
                for _ in range(count):
                    tally.error(code)
            tally.add(verdict, seconds, score, value, None, count)


class Recorder:
    """Collects the results of finished runs."""

    def __init__(self) -> None:
        self._short: dict[Key, list[int]] = {}
        self._long: list[tuple[Key, int, float]] = []

    def add(self, run: EvaluationRun) -> None:
        """Add the results of a run."""
        for evaluator, outcome in zip(run.plan.evaluators, run.outcomes, strict=True):
            assert outcome is not None
            result, nanos, _ = outcome
            value = measurement(result.value, result.metadata) if evaluator.is_metric else None
            code = "" if result.error is None else result.error.code
            key = (evaluator.index, int(result.verdict), result.score, value, code)
            if nanos > _SHORT_NANOS:
                self._long.append((key, 1, nanos * 1e-9))
                continue
            found = self._short.get(key)
            if found is None:
                self._short[key] = [1, nanos]
            else:
                found[0] += 1
                found[1] += nanos

    def take(self) -> Heard:
        """Return and reset the collected results."""
        short = [(key, count, nanos * 1e-9 / count) for key, (count, nanos) in self._short.items()]
        heard = Heard([*short, *self._long])
        self._short, self._long = {}, []
        return heard
