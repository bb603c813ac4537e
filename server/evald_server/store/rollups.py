"""Counts of verdicts and values by hour and by day, which stay when runs are deleted."""

import math
import operator
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import ColumnElement, Connection, Select, Table, and_, bindparam, func, select

from evald.v1 import evaluator_pb2, result_pb2, run_service_pb2

from .prepared import PreparedInsert
from .schema import DAILY_ROLLUPS, DAILY_VALUE_COUNTS, ROLLUPS, VALUE_COUNTS, plain_text

# Key in `connection.info` for the counts of the current transaction.
_COUNTS: Final = "evald_counts"

HOUR: Final = 3_600_000_000
DAY: Final = 24 * HOUR

# Maximum length of a key. Names of evaluators are shorter; PostgreSQL cannot index much longer texts.
MAX_KEY: Final = 500

# Larger values are not summed, like infinite ones: PostgreSQL refuses a sum that exceeds a float, and with it the whole
# commit. The sum of 10^18 smaller values fits.
_TOO_LARGE: Final = 1e290

RUN: Final = "run"
ASSERTION: Final = "assertion"
METRIC: Final = "metric"

# Maximum relative error of rounded values: from 4 to 8 they are 1 apart, so 4.5 is off by 1/9.
ROUNDING: Final = 1 / 9

# Increments of (passed, failed, error, skipped) for each verdict.
_ADDED: Final = {
    result_pb2.VERDICT_PASSED: (1, 0, 0, 0),
    result_pb2.VERDICT_FAILED: (0, 1, 0, 0),
    result_pb2.VERDICT_ERROR: (0, 0, 1, 0),
    result_pb2.VERDICT_SKIPPED: (0, 0, 0, 1),
}


class Rollup(NamedTuple):
    """The counts of an hour or a day.

    hour: start of the hour or of the UTC day, Unix microseconds. scope, key: RUN and "" for all runs together, or
    ASSERTION or METRIC and the evaluator's name. value_count, value_sum: of scores; for a metric, of its values.
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
    """The number of times that a metric had a rounded value in an hour or a day.

    hour, key: as in Rollup. value: see `rounded`.
    """

    hour: int
    key: str
    value: float
    times: int


Count = Rollup | ValueCount

_TABLES: Final = {HOUR: ROLLUPS, DAY: DAILY_ROLLUPS}
_VALUE_TABLES: Final = {HOUR: VALUE_COUNTS, DAY: DAILY_VALUE_COUNTS}

# Number of hours or days per span, see VALUE_COUNTS in `schema`.
_SPAN: Final = 30


def of_run(run: run_service_pb2.Run, at: int) -> Rollup:
    """Return the count of an ended run. at: Unix microseconds."""
    broke = run.status == run_service_pb2.RUN_STATUS_ERROR
    verdict = result_pb2.VERDICT_ERROR if broke else run.verdict
    score = run.result.score if run.result.HasField("score") else None
    return _count(at, RUN, "", verdict, score)


def of_results(results: Iterable[result_pb2.EvaluationResult], at: int) -> list[Count]:
    """Return the counts of results, except pending ones. at: Unix microseconds."""
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
    """Return a value rounded to three binary digits, with a relative error of at most ROUNDING.

    Whole numbers up to 8 stay unchanged.
    """
    mantissa, exponent = math.frexp(value)
    return math.ldexp(round(mantissa * 8), exponent - 3)


def _is_unavailable(result: result_pb2.EvaluationResult) -> bool:
    """Return whether a metric's 0 means "no value", see EvaluationResult.value."""
    said = result.metadata.fields.get("available")
    return said is not None and said.WhichOneof("kind") == "bool_value" and not said.bool_value


def _count(at: int, scope: str, key: str, verdict: result_pb2.Verdict, value: float | None) -> Rollup:
    known = value is not None and abs(value) < _TOO_LARGE  # False for NaN too
    return Rollup(
        at - at % HOUR,
        scope,
        plain_text(key[:MAX_KEY]),
        *_ADDED.get(verdict, (0, 0, 0, 0)),
        value_count=int(known),
        value_sum=value if value and known else 0.0,
    )


def collect(connection: Connection) -> list[Count]:
    """Return a new empty list, to which `count` appends until the commit."""
    counts: list[Count] = []
    connection.info[_COUNTS] = counts
    return counts


def count(connection: Connection, counts: Iterable[Count]) -> None:
    """Add counts to the list of the current transaction, which stores them with the commit."""
    connection.info[_COUNTS].extend(counts)


def add(connection: Connection, counts: Sequence[Count]) -> None:
    """Add counts to the tables, summed by key first: PostgreSQL keeps every version of a row for a while."""
    for width in (HOUR, DAY):
        sums: dict[tuple[int, str, str], Iterable[float]] = {}
        values: Counter[tuple[int, str, float, int]] = Counter()
        for one in counts:
            hour = one.hour - one.hour % width
            if isinstance(one, Rollup):
                key = (hour, one.scope, one.key)
                before = sums.get(key)
                sums[key] = one[3:] if before is None else tuple(map(operator.add, before, one[3:]))
            else:
                values[hour - hour % (_SPAN * width), one.key, one.value, hour] += one.times
        if sums:
            _UPSERTS[width].execute(connection, [(*key, *added) for key, added in sums.items()])
        if values:
            _VALUE_UPSERTS[width].execute(connection, [(*key, times) for key, times in values.items()])


def between(connection: Connection, since: int, until: int, width: int = HOUR) -> list[Rollup]:
    """Return the counts of all hours (or days) that begin before `until`, from the one that contains `since`.

    since, until: Unix microseconds. width: HOUR or DAY.
    """
    found = connection.execute(_BETWEEN[width], {"since": since - since % width, "until": until})
    return [Rollup._make(row) for row in found]


def values_between(
    connection: Connection, since: int, until: int, width: int, keys: Sequence[str]
) -> list[tuple[str, float, int]]:
    """Return the values of metrics as (key, value, count), sorted by key and value. Times: as in `between`."""
    first, span = since - since % width, _SPAN * width
    spans = range(first - first % span, until, span)
    wanted = {"spans": spans, "keys": keys, "since": first, "until": until}
    found = connection.execute(_VALUES_BETWEEN[width], wanted)
    return [(key, value, int(times)) for key, value, times in found]


def _select(table: Table) -> "Select[*tuple[Any, ...]]":
    columns = table.c
    wanted = select(*(columns[name] for name in Rollup._fields)).where(_within(columns))
    return wanted.order_by(columns.hour, columns.scope, columns.key)


def _select_values(table: Table) -> "Select[*tuple[Any, ...]]":
    columns = table.c
    wanted = select(columns.key, columns.value, func.sum(columns.times).label("times")).where(
        columns.span.in_(bindparam("spans", expanding=True)),
        columns.key.in_(bindparam("keys", expanding=True)),
        _within(columns),
    )
    # Group twice: the rows of a span are summed in stored order, and only the small result must be sorted.
    spans = wanted.group_by(columns.span, columns.key, columns.value).subquery().c
    found = select(spans.key, spans.value, func.sum(spans.times))
    return found.group_by(spans.key, spans.value).order_by(spans.key, spans.value)


def _within(columns: Any) -> "ColumnElement[bool]":
    return and_(columns.hour >= bindparam("since"), columns.hour < bindparam("until"))


def _upsert(insert: Any) -> Any:
    key = insert.table.primary_key.columns.keys()
    columns = {name: column for name, column in insert.table.c.items() if name not in key}
    return insert.on_conflict_do_update(
        index_elements=key,
        set_={name: column + insert.excluded[name] for name, column in columns.items()},
    )


# Built once: building takes longer than a page of the console may take.
_BETWEEN: Final = {width: _select(table) for width, table in _TABLES.items()}
_VALUES_BETWEEN: Final = {width: _select_values(table) for width, table in _VALUE_TABLES.items()}
_UPSERTS: Final = {width: PreparedInsert(table, _upsert) for width, table in _TABLES.items()}
_VALUE_UPSERTS: Final = {width: PreparedInsert(table, _upsert) for width, table in _VALUE_TABLES.items()}
