"""Counts of verdicts by the hour, which stay when runs are deleted."""

import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, func, select
from sqlalchemy.dialects import postgresql, sqlite

from evald.v1 import evaluator_pb2, result_pb2, run_service_pb2

from .schema import ROLLUPS

# Where a connection holds what its transaction has counted.
_COUNTS: Final = "evald_counts"

HOUR: Final = 3_600_000_000

# Names of evaluators are shorter; PostgreSQL has no index for much longer ones.
MAX_KEY: Final = 500

RUN: Final = "run"
ASSERTION: Final = "assertion"
METRIC: Final = "metric"

_VERDICTS: Final = {
    result_pb2.VERDICT_PASSED: "passed",
    result_pb2.VERDICT_FAILED: "failed",
    result_pb2.VERDICT_ERROR: "error",
    result_pb2.VERDICT_SKIPPED: "skipped",
}


class Rollup(NamedTuple):
    """What happened in an hour.

    hour: its begin, Unix microseconds. scope, key: RUN and the scenario's id, ASSERTION or METRIC and the
    evaluator's name. value_count, value_sum: of scores; of a metric's values.
    """

    hour: int
    scope: str
    key: str
    passed: int
    failed: int
    error: int
    skipped: int
    value_count: int
    value_sum: float


def of_run(run: run_service_pb2.Run, at: int) -> Rollup:
    """Count a run that has ended. at: Unix microseconds."""
    broke = run.status == run_service_pb2.RUN_STATUS_ERROR
    verdict = result_pb2.VERDICT_ERROR if broke else run.verdict
    score = run.result.score if run.result.HasField("score") else None
    return _count(at, RUN, run.scenario_id, verdict, score)


def of_results(results: Iterable[result_pb2.EvaluationResult], at: int) -> list[Rollup]:
    """Count results, except those that a later turn decides. at: Unix microseconds."""
    return [_of_result(result, at) for result in results if not result.pending]


def _of_result(result: result_pb2.EvaluationResult, at: int) -> Rollup:
    metric = result.kind == evaluator_pb2.EVALUATOR_KIND_METRIC
    field = "value" if metric else "score"
    number = getattr(result, field) if result.HasField(field) else None
    if metric and _is_unavailable(result):
        number = None
    return _count(at, METRIC if metric else ASSERTION, result.name, result.verdict, number)


def _is_unavailable(result: result_pb2.EvaluationResult) -> bool:
    """Return whether the 0 of a metric stands for nothing, see EvaluationResult.value."""
    said = result.metadata.fields.get("available")
    return said is not None and said.WhichOneof("kind") == "bool_value" and not said.bool_value


def _count(at: int, scope: str, key: str, verdict: result_pb2.Verdict, value: float | None) -> Rollup:
    counts = dict.fromkeys(_VERDICTS.values(), 0)
    if verdict in _VERDICTS:
        counts[_VERDICTS[verdict]] = 1
    known = value is not None and math.isfinite(value)
    return Rollup(
        at - at % HOUR,
        scope,
        key[:MAX_KEY],
        **counts,
        value_count=int(known),
        value_sum=value if value and known else 0.0,
    )


def collect(connection: Connection) -> list[Rollup]:
    """Return the list, empty, to which works append what they count until the commit."""
    counts: list[Rollup] = []
    connection.info[_COUNTS] = counts
    return counts


def count(connection: Connection, counts: Iterable[Rollup]) -> None:
    """Count with the commit."""
    connection.info[_COUNTS].extend(counts)


def add(connection: Connection, counts: Sequence[Rollup]) -> None:
    """Add to the counts there are, those of a key together: PostgreSQL keeps every version of a row for a while."""
    if not counts:
        return
    sums: dict[tuple[int, str, str], Rollup] = {}
    for one in counts:
        key = one[:3]
        before = sums.get(key)
        sums[key] = one if before is None else Rollup(*key, *map(operator.add, before[3:], one[3:]))
    connection.execute(_UPSERTS[connection.dialect.name], [one._asdict() for one in sums.values()])


def between(connection: Connection, since: int, until: int) -> list[Rollup]:
    """Return the counts of the hours that begin at `since` or later and before `until`."""
    columns = ROLLUPS.c
    wanted = select(*(columns[name] for name in Rollup._fields)).where(
        columns.hour >= since - since % HOUR, columns.hour < until
    )
    wanted = wanted.order_by(columns.hour, columns.scope, columns.key)
    return [Rollup(*row) for row in connection.execute(wanted)]


def sums(connection: Connection, since: int, until: int, width: int) -> list[Rollup]:
    """Return the counts of several hours each: those that begin at `since` or later and before `until`.

    width: microseconds, a multiple of an hour. `hour` is the begin of each piece, counted from `since`.
    """
    columns = ROLLUPS.c
    since -= since % HOUR
    piece = (columns.hour - (columns.hour - since) % width).label("hour")
    added = [func.sum(columns[name]).label(name) for name in Rollup._fields[3:]]
    wanted = select(piece, columns.scope, columns.key, *added).where(
        columns.hour >= since, columns.hour < until
    )
    wanted = wanted.group_by(piece, columns.scope, columns.key)
    # PostgreSQL sums whole numbers to decimals.
    # PostgreSQL sums whole numbers to decimals.
    return [Rollup._make((*row[:3], *map(int, row[3:-1]), row[-1])) for row in connection.execute(wanted)]


def _upsert(insert: Any) -> Any:
    key = ("hour", "scope", "key")
    return insert.on_conflict_do_update(
        index_elements=key,
        set_={name: ROLLUPS.c[name] + insert.excluded[name] for name in Rollup._fields if name not in key},
    )


_UPSERTS: Final = {
    "sqlite": _upsert(sqlite.insert(ROLLUPS)),
    "postgresql": _upsert(postgresql.insert(ROLLUPS)),
}
