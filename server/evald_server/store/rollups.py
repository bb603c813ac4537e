"""Counts of verdicts by the hour and by the day, which stay when runs are deleted."""

import operator
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, select

from evald.v1 import evaluator_pb2, result_pb2, run_service_pb2

from .prepared import PreparedInsert
from .schema import DAILY_ROLLUPS, ROLLUPS, plain_text

# Where a connection holds what its transaction has counted.
_COUNTS: Final = "evald_counts"

HOUR: Final = 3_600_000_000
DAY: Final = 24 * HOUR

_TABLES: Final = {HOUR: ROLLUPS, DAY: DAILY_ROLLUPS}

# Names of evaluators are shorter; PostgreSQL has no index for much longer ones.
MAX_KEY: Final = 500

# Values from here on are no more summed than infinite ones: PostgreSQL refuses a sum that is beyond a float, and
# with it the whole commit. 10^18 values below it have one.
_TOO_LARGE: Final = 1e290

RUN: Final = "run"
ASSERTION: Final = "assertion"
METRIC: Final = "metric"

# What a verdict adds to passed, failed, error and skipped.
_ADDED: Final = {
    result_pb2.VERDICT_PASSED: (1, 0, 0, 0),
    result_pb2.VERDICT_FAILED: (0, 1, 0, 0),
    result_pb2.VERDICT_ERROR: (0, 0, 1, 0),
    result_pb2.VERDICT_SKIPPED: (0, 0, 0, 1),
}


class Rollup(NamedTuple):
    """What happened in an hour or in a day.

    hour: its begin, Unix microseconds; of a day that of its first hour, UTC. scope, key: RUN and "" for all runs
    together, ASSERTION or METRIC and the evaluator's name. value_count, value_sum: of scores; of a metric's values.
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
    return _count(at, RUN, "", verdict, score)


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
    known = value is not None and abs(value) < _TOO_LARGE  # nor NaN
    return Rollup(
        at - at % HOUR,
        scope,
        plain_text(key[:MAX_KEY]),
        *_ADDED.get(verdict, (0, 0, 0, 0)),
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
    for width, upsert in _UPSERTS.items():
        sums: dict[tuple[int, str, str], Rollup] = {}
        for one in counts:
            key = (one.hour - one.hour % width, one.scope, one.key)
            before = sums.get(key)
            added = one[3:] if before is None else map(operator.add, before[3:], one[3:])
            sums[key] = Rollup(*key, *added)
        upsert.execute(connection, [*sums.values()])


def between(connection: Connection, since: int, until: int, width: int = HOUR) -> list[Rollup]:
    """Return the counts of the hours, or with width=DAY of the days, that begin in a time.

    That of `since` is the first, although it began before.
    """
    columns = _TABLES[width].c
    wanted = select(*(columns[name] for name in Rollup._fields)).where(
        columns.hour >= since - since % width, columns.hour < until
    )
    wanted = wanted.order_by(columns.hour, columns.scope, columns.key)
    return [Rollup._make(row) for row in connection.execute(wanted)]


def _upsert(insert: Any) -> Any:
    key = ("hour", "scope", "key")
    columns = insert.table.c
    return insert.on_conflict_do_update(
        index_elements=key,
        set_={name: columns[name] + insert.excluded[name] for name in Rollup._fields if name not in key},
    )


_UPSERTS: Final = {width: PreparedInsert(table, _upsert) for width, table in _TABLES.items()}
