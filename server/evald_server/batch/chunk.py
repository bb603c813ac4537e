"""Requests to batch processes and their responses. Both are pickled."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

from evald.result import measurement
from evald_server.engine.engine import Engine
from evald_server.engine.plan import InvalidPlan, Plan, PlanLimits
from evald_server.engine.registry import Origin
from evald_server.engine.run import SLICE_NANOS, EvaluationRun
from evald_server.logs import LogFormat

T_co = TypeVar("T_co", covariant=True)

# Maximum time of an evaluation in a batch process. Longer than in the server, because no other call waits for it. The
# server evaluates unfinished ones itself and enforces their deadlines.
_LONG_SLICE_NANOS: Final = 1_000_000_000

CHUNK_SECONDS: Final = 0.25
"""Seconds after which a batch process returns the finished part of a chunk, because other callers' chunks are queued.
Only costly chunks take that long. The server then queues the remaining items behind the other callers' chunks."""

_log = logging.getLogger("evald.batch")


class ProcessConfig(NamedTuple):
    """The settings that a batch process shares with its server.

    auto: configs of the built-in types that run on every call.
    """

    limits: PlanLimits
    fail_open: bool
    max_messages: int
    auto: Mapping[str, Mapping[str, Any]]
    log_format: LogFormat
    log_level: str


class Chunk(Protocol[T_co]):
    """Work for a batch process, which evaluates it with its own engine."""

    def evaluate(self, engine: Engine) -> T_co:
        """Return the results."""


ResultKey: TypeAlias = tuple[int, int, float | None, float | None, str]
"""The evaluator's index, and verdict, score, value and error code of a result. value: None if unavailable."""

CountedResult: TypeAlias = tuple[ResultKey, int, float]
"""A result, its count, and its mean duration in seconds."""

# Results up to this duration are counted together, because they are in the first bucket of every histogram.
_SHORT_NANOS: Final = 1_000_000


def result_keys(run: EvaluationRun) -> Iterator[tuple[ResultKey, int]]:
    """Yield the results of a finished run with their durations in nanoseconds."""
    for evaluator, outcome in zip(run.plan.evaluators, run.outcomes, strict=True):
        assert outcome is not None
        result, nanos, _ = outcome
        value = measurement(result.value, result.metadata) if evaluator.is_metric else None
        code = "" if result.error is None else result.error.code
        yield (evaluator.index, int(result.verdict), result.score, value, code), nanos


class ChunkCounts(NamedTuple):
    """Telemetry of a chunk. durations: verdict and seconds of each evaluation. results: of all evaluators."""

    durations: Sequence[tuple[int, float]]
    results: Sequence[CountedResult]


class ResultCounter:
    """A counter of equal results, so that the server adds a chunk's thousands of results quickly."""

    def __init__(self) -> None:
        self._durations: list[tuple[int, float]] = []
        self._short: dict[ResultKey, list[int]] = {}
        self._long: list[CountedResult] = []

    def add(self, run: EvaluationRun) -> None:
        """Add the results of a finished run."""
        self._durations.append((int(run.aggregate.verdict), run.nanos * 1e-9))
        for key, nanos in result_keys(run):
            if nanos > _SHORT_NANOS:
                self._long.append((key, 1, nanos * 1e-9))
                continue
            found = self._short.get(key)
            if found is None:
                found = self._short[key] = [0, 0]
            found[0] += 1
            found[1] += nanos

    def counts(self) -> ChunkCounts:
        """Return the counts."""
        short = [(key, count, nanos * 1e-9 / count) for key, (count, nanos) in self._short.items()]
        return ChunkCounts(self._durations, [*short, *self._long])


def same_plan(
    engine: Engine, specs: tuple[bytes, ...], options: bytes, announced: Sequence[bytes]
) -> Plan | None:
    """Return the plan of a chunk in a batch process; None if it differs from the server's.

    specs, options: serialised, as for the planner. announced: specs of the server's plan.
    """
    try:
        plan = engine.planner.plan(specs, options)
    except InvalidPlan:
        return None
    if list(plan.template.specs) != list(announced):
        _log.warning("the plan of a batch differs from the server's; the batch is evaluated in the server")
        return None
    return plan


def slice_of(plan: Plan, seconds: float | None) -> int:
    """Return the maximum nanoseconds of an evaluation in a batch process. Not more than its limit in the server,
    because only the server enforces deadlines.

    seconds: limit for all of the plan's evaluators together in the server.
    """
    limits = [seconds, *(evaluator.timeout for evaluator in plan.evaluators)]
    nanos = [int(limit * 1e9) for limit in limits if limit is not None]
    return max(SLICE_NANOS, min([_LONG_SLICE_NANOS, *nanos]))


def can_run(plan: Plan) -> bool:
    """Return whether a batch process can evaluate a plan: built-ins only, none of which may wait."""
    return all(one.inline and one.origin is Origin.BUILT_IN for one in plan.evaluators)
