"""A chunk of a batch: the request to a batch process and its result. Both are pickled."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from evald.result import measurement
from evald_server.engine.plan import Limits, Plan
from evald_server.engine.registry import Origin
from evald_server.engine.run import EvaluationRun
from evald_server.logs import LogFormat


class ProcessConfig(NamedTuple):
    """The settings that a batch process shares with its server.

    auto: configs of the built-in types that run on every call.
    """

    limits: Limits
    fail_open: bool
    max_messages: int
    auto: Mapping[str, Mapping[str, Any]]
    log_format: LogFormat
    log_level: str


class Chunk(NamedTuple):
    """Items that share a plan.

    specs, options: serialised, as the planner takes them. announced: specs of the server's plan; a process whose own
    plan differs must not evaluate. items: serialised BatchItem messages. brief: as in BatchOpen.
    """

    specs: tuple[bytes, ...]
    options: bytes
    announced: Sequence[bytes]
    items: Sequence[bytes]
    brief: bool


ResultKey: TypeAlias = tuple[int, int, float | None, float | None, str]
"""The evaluator's index, and verdict, score, value and error code of a result. value: None when unavailable."""

CountedResult: TypeAlias = tuple[ResultKey, int, float]
"""A result, how often it came, and the mean of its seconds."""

# Results up to this duration are counted together: they are in the first bucket of every histogram.
_SHORT_NANOS: Final = 1_000_000


def result_keys(run: EvaluationRun) -> Iterator[tuple[ResultKey, int]]:
    """Yield the results of a finished run, and their nanoseconds."""
    for evaluator, outcome in zip(run.plan.evaluators, run.outcomes, strict=True):
        assert outcome is not None
        result, nanos, _ = outcome
        value = measurement(result.value, result.metadata) if evaluator.is_metric else None
        code = "" if result.error is None else result.error.code
        yield (evaluator.index, int(result.verdict), result.score, value, code), nanos


class ResultCounter:
    """Counts equal results, so that the server adds a chunk's thousands of results quickly."""

    def __init__(self) -> None:
        self._short: dict[ResultKey, list[int]] = {}
        self._long: list[CountedResult] = []

    def add(self, run: EvaluationRun) -> None:
        """Add the results of a finished run."""
        for key, nanos in result_keys(run):
            if nanos > _SHORT_NANOS:
                self._long.append((key, 1, nanos * 1e-9))
                continue
            found = self._short.get(key)
            if found is None:
                found = self._short[key] = [0, 0]
            found[0] += 1
            found[1] += nanos

    def results(self) -> list[CountedResult]:
        """Return the results with their counts."""
        short = [(key, count, nanos * 1e-9 / count) for key, (count, nanos) in self._short.items()]
        return [*short, *self._long]


class ChunkResult(NamedTuple):
    """The result of a chunk.

    end: index after the last item that was processed, because the size of a result is limited. skipped: indexes
    of the items that the server has to evaluate itself. answers: serialised BatchAnswer messages. durations:
    verdict and seconds of each item. results: of all evaluators.
    """

    end: int
    skipped: Sequence[int]
    answers: Sequence[bytes]
    durations: Sequence[tuple[int, float]]
    results: Sequence[CountedResult]


def can_run(plan: Plan) -> bool:
    """Return whether a batch process can evaluate a plan: built-ins only, none of which may wait."""
    return all(one.inline and one.origin is Origin.BUILT_IN for one in plan.evaluators)
