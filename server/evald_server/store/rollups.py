"""Counts of verdicts and values by the hour and by the day, which stay when runs are deleted."""

import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Table, func, select

from evald.v1 import evaluator_pb2, result_pb2, run_service_pb2

from .prepared import PreparedInsert
from .schema import DAILY_ROLLUPS, DAILY_VALUE_COUNTS, ROLLUPS, VALUE_COUNTS, plain_text

# Where a connection holds what its transaction has counted.
_COUNTS: Final = "evald_counts"

HOUR: Final = 3_600_000_000
DAY: Final = 24 * HOUR

# Names of evaluators are shorter; PostgreSQL has no index for much longer ones.
MAX_KEY: Final = 500

# Values from here on are no more summed than infinite ones: PostgreSQL refuses a sum that is beyond a float, and
# with it the whole commit. 10^18 values below it have one.
_TOO_LARGE: Final = 1e290

RUN: Final = "run"
ASSERTION: Final = "assertion"
METRIC: Final = "metric"

# Half the distance of rounded values, as a share of the value at most: those from 4 to 8 are 1 apart.
ROUNDING: Final = 1 / 9

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


class ValueCount(NamedTuple):
    """How often a metric had about a value in an hour or in a day. hour, key: as of a Rollup. value: see `rounded`."""

    hour: int
    key: str
    value: float
    times: int


# The first three fields say what is counted; the others are added up.
Count = Rollup | ValueCount

_TABLES: Final[dict[tuple[type[Count], int], Table]] = {
    (Rollup, HOUR): ROLLUPS,
    (Rollup, DAY): DAILY_ROLLUPS,
    (ValueCount, HOUR): VALUE_COUNTS,
    (ValueCount, DAY): DAILY_VALUE_COUNTS,
}


def of_run(run: run_service_pb2.Run, at: int) -> Rollup:
    """Count a run that has ended. at: Unix microseconds."""
    broke = run.status == run_service_pb2.RUN_STATUS_ERROR
    verdict = result_pb2.VERDICT_ERROR if broke else run.verdict
    score = run.result.score if run.result.HasField("score") else None
    return _count(at, RUN, "", verdict, score)


def of_results(results: Iterable[result_pb2.EvaluationResult], at: int) -> list[Count]:
    """Count results, except those that a later turn decides. at: Unix microseconds."""
    found: list[Count] = []
    for result in results:
        if result.pending:
            continue
        metric = result.kind == evaluator_pb2.EVALUATOR_KIND_METRIC
        field = "value" if metric else "score"
        number = getattr(result, field) if result.HasField(field) else None
        if metric and _is_unavailable(result):
            number = None
        counted = _count(at, METRIC if metric else ASSERTION, result.name, result.verdict, number)
        found.append(counted)
        if metric and counted.value_count:
            found.append(ValueCount(counted.hour, counted.key, rounded(counted.value_sum), 1))
    return found


def rounded(value: float) -> float:
    """Return a value to three binary digits, within ROUNDING of it: of whole numbers up to 8 the number itself."""
    mantissa, exponent = math.frexp(value)
    return math.ldexp(round(mantissa * 8), exponent - 3)


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


def collect(connection: Connection) -> list[Count]:
    """Return the list, empty, to which works append what they count until the commit."""
    counts: list[Count] = []
    connection.info[_COUNTS] = counts
    return counts


def count(connection: Connection, counts: Iterable[Count]) -> None:
    """Count with the commit."""
    connection.info[_COUNTS].extend(counts)


def add(connection: Connection, counts: Sequence[Count]) -> None:
    """Add to the counts there are, those of a key together: PostgreSQL keeps every version of a row for a while."""
    for (kind, width), upsert in _UPSERTS.items():
        sums: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        for one in counts:
            if type(one) is kind:
                key = (one.hour - one.hour % width, *one[1:3])
                before = sums.get(key)
                sums[key] = one[3:] if before is None else tuple(map(operator.add, before, one[3:]))
        if sums:
            upsert.execute(connection, [(*key, *added) for key, added in sums.items()])


def between(connection: Connection, since: int, until: int, width: int = HOUR) -> list[Rollup]:
    """Return the counts of the hours, or with width=DAY of the days, that begin in a time.

    That of `since` is the first, although it began before.
    """
    columns = _TABLES[Rollup, width].c
    wanted = select(*(columns[name] for name in Rollup._fields)).where(
        columns.hour >= since - since % width, columns.hour < until
    )
    wanted = wanted.order_by(columns.hour, columns.scope, columns.key)
    return [Rollup._make(row) for row in connection.execute(wanted)]


def values(
    connection: Connection, hours: Iterable[int], width: int, keys: Iterable[str]
) -> list[tuple[str, float, int]]:
    """Return what metrics measured: key, value, how often; the smallest of each key first.

    hours: the begins of the hours, or with width=DAY of the days. By a range of them SQLite would read those of all
    other keys, too.
    """
    columns = _TABLES[ValueCount, width].c
    wanted = select(columns.key, columns.value, func.sum(columns.times))
    wanted = wanted.where(columns.hour.in_(hours), columns.key.in_(keys))
    wanted = wanted.group_by(columns.key, columns.value).order_by(columns.key, columns.value)
    return [(key, value, int(times)) for key, value, times in connection.execute(wanted)]


def _upsert(insert: Any) -> Any:
    columns = insert.table.c
    names = columns.keys()
    return insert.on_conflict_do_update(
        index_elements=names[:3], set_={name: columns[name] + insert.excluded[name] for name in names[3:]}
    )


_UPSERTS: Final = {key: PreparedInsert(table, _upsert) for key, table in _TABLES.items()}
