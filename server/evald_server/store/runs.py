"""The store of runs and their events."""

import logging
import random
import time
from collections.abc import Iterable, Sequence
from enum import IntEnum
from functools import cache
from typing import Any, Final, NamedTuple, NoReturn

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    Row,
    Select,
    and_,
    bindparam,
    delete,
    func,
    insert,
    literal_column,
    or_,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from evald.v1 import result_pb2, run_service_pb2

from . import rollups
from .database import Database
from .prepared import PreparedInsert, PreparedStatement
from .resources import IdTaken
from .rollups import HOUR, Count, Rollup
from .schema import COUNTERS, RUN_EVENTS, RUN_FAILURES, RUN_SNAPSHOTS, RUN_STATES, RUNS, plain_text

_log = logging.getLogger("evald.store")

Run = run_service_pb2.Run

UNFINISHED: Final = (run_service_pb2.RUN_STATUS_QUEUED, run_service_pb2.RUN_STATUS_RUNNING)

# Statuses that the rollups count: the outcome is final.
_COUNTED: Final = (run_service_pb2.RUN_STATUS_COMPLETED, run_service_pb2.RUN_STATUS_ERROR)

_SNAPSHOTS: Final = ("scenario", "persona", "connector")
_APART: Final = ("messages", "turns", *_SNAPSHOTS)

_EXECUTIONS: Final = "executions"

# Statements that run for every message are built once: building takes twice as long as executing.
_NUMBER: Final = select(RUNS.c.number).where(RUNS.c.id == bindparam("run_id"))
_STATE: Final = PreparedStatement(
    select(RUNS.c.number, RUNS.c.status, RUNS.c.verdict, RUN_STATES.c.last_sequence)
    .join(RUN_STATES, RUN_STATES.c.number == RUNS.c.number)
    .where(RUNS.c.id == bindparam("run_id"))
)
_SET_VERDICT: Final = (
    update(RUNS)
    .where(RUNS.c.number == bindparam("run"))
    .values(status=bindparam("new_status"), verdict=bindparam("new_verdict"))
)
_SET_STATE: Final = PreparedStatement(
    update(RUN_STATES)
    .where(RUN_STATES.c.number == bindparam("run"))
    .values(last_sequence=bindparam("sequence"), body=bindparam("new_body"))
)
_LAST: Final = select(func.max(RUNS.c.number))
_BETWEEN: Final = (
    select(RUNS.c.number).where(RUNS.c.number.between(bindparam("first"), bindparam("last"))).limit(1)
)
_WITH_SNAPSHOTS: Final = (
    select(RUN_STATES.c.body, RUN_SNAPSHOTS.c.body)
    .select_from(RUNS)
    .join(RUN_STATES, RUN_STATES.c.number == RUNS.c.number)
    .join(RUN_SNAPSHOTS, RUN_SNAPSHOTS.c.number == RUNS.c.number)
)
_ONE: Final = _WITH_SNAPSHOTS.where(RUNS.c.id == bindparam("run_id"))
_REQUESTED: Final = _WITH_SNAPSHOTS.where(
    # A repetition that lets the database use the partial index.
    RUNS.c.request_id == bindparam("request_id"),
    RUNS.c.request_id != literal_column("''"),
).order_by(RUNS.c.number)
_INSERT_RUN: Final = insert(RUNS)
_INSERT_STATE: Final = insert(RUN_STATES)
_INSERT_SNAPSHOT: Final = insert(RUN_SNAPSHOTS)
_INSERT_EVENT: Final = PreparedInsert(RUN_EVENTS)
_INSERT_FAILURE: Final = PreparedInsert(RUN_FAILURES, lambda insert: insert.on_conflict_do_nothing())

# Runs deleted in one commit: few, so that other writes wait only milliseconds.
_TRIM: Final = 100

# Maximum difference in microseconds between a run's number and its time of creation. Runs that are created at the same
# time differ by less. It is exceeded only if the clock was set back; then the counter stores the real maximum.
_MAX_SKEW: Final = 600_000_000
_SKEW: Final = "runs_skew"
_KNOWN_SKEW: Final = func.coalesce(
    select(COUNTERS.c.value).where(COUNTERS.c.name == _SKEW).scalar_subquery(), _MAX_SKEW
)


def run_seconds(run: run_service_pb2.Run) -> float | None:
    """Return how many seconds a run took; None if it never began or still runs."""
    if not run.HasField("start_time") or not run.HasField("complete_time"):
        return None
    return max(0.0, (run.complete_time.ToNanoseconds() - run.start_time.ToNanoseconds()) / 1e9)


class RunEventKind(IntEnum):
    """The type of an event's body."""

    MESSAGE = 1  # RunMessage
    TURN = 2  # RunTurn with its results
    STATUS = 3  # RunStatusChange
    END = 4  # empty: the run's row has the outcome


class RunEvent(NamedTuple):
    """An event of a run.

    A turn with n results takes n + 1 sequence numbers: first one for each result, then `sequence` for the turn.
    """

    sequence: int
    kind: RunEventKind
    body: bytes


class RunFilter(NamedTuple):
    """A filter for runs. Empty and 0 values match all. since, until: limits of the creation time, Unix microseconds.

    failed_evaluator: name or type of an evaluator that failed or ended in error.
    """

    scenario_id: str = ""
    persona_id: str = ""
    connector_id: str = ""
    experiment_id: str = ""
    execution_id: int = 0
    status: int = 0
    verdict: int = 0
    failed_evaluator: str = ""
    since: int = 0
    until: int = 0


# Columns that a filter compares for equality, and columns copied from fields of a run.
_EQUAL: Final = RunFilter._fields[:7]
_COPIED: Final = ("id", *_EQUAL)


class RunNotFound(Exception):
    """The run does not exist: it was deleted, or another server continues it."""


class RunActive(Exception):
    """The run is queued or running."""


class RunStore:
    """The runs in a database. All methods raise StoreProblem; a write is durable when the call returns."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, runs: Sequence[Run], request_id: str = "") -> list[Run]:
        """Store new runs, all or none, each with a STATUS event. Raises IdTaken.

        scenario, persona and connector of the runs are stored as snapshots. The returned runs have `last_sequence`
        set. A second call with the same request_id returns the runs of the first call.
        """
        prepared = []
        for run in runs:
            stored = _copy(run, ("messages", "turns"))
            stored.last_sequence = 1
            change = run_service_pb2.RunStatusChange(status=run.status, attempt=run.attempt)
            prepared.append((stored, [RunEvent(1, RunEventKind.STATUS, change.SerializeToString())]))

        def work(connection: Connection) -> list[Run]:
            if request_id:
                earlier = connection.execute(_REQUESTED, {"request_id": request_id}).all()
                if earlier:
                    return [_whole(row) for row in earlier]
            _insert(connection, prepared, request_id, newest=True)
            return [run for run, _ in prepared]

        return await self._database.write(work)

    async def import_run(self, run: Run, events: Sequence[RunEvent]) -> None:
        """Store an ended run from another server with its events in one commit. Raises IdTaken."""
        await self._database.write(lambda connection: _insert(connection, [(run, events)], ""))

    async def save(self, run: Run, events: Sequence[RunEvent] = ()) -> None:
        """Store a run's current state and its new events in one commit. Raises RunNotFound.

        Events that are already stored are ignored, so a call without an answer can be repeated. The snapshots do not
        change. If two servers continue one run, the one that has stored less is refused.
        """
        change = _Change(run, events)
        await self._database.write(change.store)

    async def restart(self, run: Run, events: Sequence[RunEvent] = ()) -> None:
        """Delete the stored events, then do the same as `save`. Raises RunNotFound."""
        change = _Change(run, events)

        def work(connection: Connection) -> None:
            number = connection.scalar(_NUMBER, {"run_id": run.id})
            if number is None:
                raise RunNotFound(run.id)
            for table in (RUN_EVENTS, RUN_FAILURES):
                connection.execute(delete(table).where(table.c.number == number))
            change.store(connection)

        await self._database.write(work)

    async def get(self, run_id: str) -> Run | None:
        """Return a run with its snapshots, without messages and turns; None if it does not exist."""
        row = await self._database.read(
            lambda connection: connection.execute(_ONE, {"run_id": run_id}).first()
        )
        return None if row is None else _whole(row)

    async def events(self, run_id: str, after: int = 0, limit: int = 1000) -> list[RunEvent]:
        """Return events with a sequence greater than `after`, in order."""
        columns = RUN_EVENTS.c
        wanted = (
            select(columns.sequence, columns.kind, columns.body)
            .join(RUNS, RUNS.c.number == columns.number)
            .where(RUNS.c.id == run_id, columns.sequence > after)
            .order_by(columns.sequence)
            .limit(limit)
        )
        return await self._database.read(
            lambda connection: [
                RunEvent(sequence, RunEventKind(kind), body)
                for sequence, kind, body in connection.execute(wanted)
            ]
        )

    async def delete(self, run_id: str) -> bool:
        """Delete a run. Return False if it does not exist. Raises RunActive."""

        def work(connection: Connection) -> bool:
            row = _STATE.execute(connection, run_id=plain_text(run_id)).first()
            if row is None:
                return False
            if row.status in UNFINISHED:
                raise RunActive(run_id)
            _delete(connection, [row.number])
            return True

        return await self._database.write(work)

    async def unfinished(self) -> list[Run]:
        """Return the queued and running runs, oldest first, with the same content as from `list`."""
        wanted = (
            select(RUN_STATES.c.body)
            .join(RUNS, RUNS.c.number == RUN_STATES.c.number)
            .where(RUNS.c.status.in_(UNFINISHED))
            .order_by(RUNS.c.number)
        )
        return await self._database.read(
            lambda connection: [Run.FromString(body) for body in connection.scalars(wanted)]
        )

    async def next_execution_id(self) -> int:
        """Return the next unused execution id; the first is 1."""

        def work(connection: Connection) -> int:
            mine = COUNTERS.c.name == _EXECUTIONS
            value: int | None = connection.scalar(select(COUNTERS.c.value).where(mine))
            if value is None:
                connection.execute(insert(COUNTERS), {"name": _EXECUTIONS, "value": 1})
                return 1
            connection.execute(update(COUNTERS).where(mine), {"value": value + 1})
            return value + 1

        return await self._database.write(work)

    async def trim(self, *, max_age: float | None, max_count: int | None) -> int:
        """Delete the oldest runs in small commits, except queued and running ones. Return the number of deleted runs.

        max_age: seconds since the creation. max_count: number of runs to keep.
        """
        columns = RUNS.c
        old: list[ColumnElement[bool]] = []
        if max_age is not None:
            before = _now() - round(1_000_000 * max_age)
            old.append(and_(columns.number < before + _KNOWN_SKEW, columns.created < before))
        if max_count is not None:
            newest = select(columns.number).order_by(columns.number.desc()).offset(max_count).limit(1)
            last = await self._database.read(lambda connection: connection.scalar(newest))
            if last is not None:
                old.append(columns.number <= last)
        if not old:
            return 0
        wanted = select(columns.number).where(or_(*old), columns.status.not_in(UNFINISHED))
        wanted = wanted.order_by(columns.number).limit(_TRIM)

        def work(connection: Connection) -> int:
            numbers = connection.scalars(wanted).all()
            _delete(connection, numbers)
            return len(numbers)

        total = 0
        while deleted := await self._database.write(work):
            total += deleted
        return total

    async def rollups(self, since: int, until: int, width: int = HOUR) -> list[Rollup]:
        """Return the rollups between two times in Unix microseconds. width: HOUR or DAY."""
        return await self._database.read(lambda connection: rollups.between(connection, since, until, width))

    async def metric_values(
        self, since: int, until: int, width: int, names: Sequence[str]
    ) -> Sequence[tuple[str, float, int]]:
        """Return the values of metrics between two times as (name, value, count), sorted by name and value.

        Values are rounded, see `rollups.rounded`.
        """
        return await self._database.read(
            lambda connection: rollups.values_between(connection, since, until, width, names)
        )

    async def list(
        self, wanted: RunFilter, *, after: int | None = None, limit: int = 50, oldest_first: bool = False
    ) -> list[tuple[int, Run]]:
        """Return runs, newest first, each with the number to pass as `after`. Their snapshots have only names."""
        given = {name: value for name, value in wanted._asdict().items() if value}
        if wanted.failed_evaluator:
            given["failed_evaluator"] = wanted.failed_evaluator[: rollups.MAX_KEY]
        if after is not None:
            given["after"] = after
        statement = _listing(frozenset(given), oldest_first=oldest_first)
        return await self._database.read(
            lambda connection: [
                (number, Run.FromString(body))
                for number, body in connection.execute(statement, {**given, "most": limit})
            ]
        )


class _Change:
    """A run's current state and its new events, serialised before they go to the database thread."""

    def __init__(self, run: Run, events: Iterable[RunEvent]) -> None:
        self._id = run.id
        self._status = run.status
        self._verdict = run.verdict
        self._last_sequence = run.last_sequence
        self._body = _body(run)
        self._events = list(events)
        at = run.update_time.ToMicroseconds() if run.HasField("update_time") else _now()
        self._at_end = rollups.of_run(run, at) if run.status in _COUNTED else None
        self._at = at

    def store(self, connection: Connection) -> None:
        """Write the change. Raises RunNotFound."""
        row = _STATE.execute(connection, run_id=plain_text(self._id)).first()
        if row is None:
            raise RunNotFound(self._id)
        number, status, verdict, last_sequence = row
        if last_sequence > self._last_sequence:
            self._taken_over()
        new = [one for one in self._events if one.sequence > last_sequence]
        if len(new) < len(self._events):
            self._check_repeated(connection, number)
        if (status, verdict) != (self._status, self._verdict):
            connection.execute(
                _SET_VERDICT, {"run": number, "new_status": self._status, "new_verdict": self._verdict}
            )
        _SET_STATE.execute(connection, run=number, sequence=self._last_sequence, new_body=self._body)
        counts: list[Count] = [] if self._at_end is None or status in _COUNTED else [self._at_end]
        _add_events(connection, number, new, self._at, counts)

    def _check_repeated(self, connection: Connection, number: int) -> None:
        """Raise RunNotFound if the stored event with this sequence differs, because another server wrote it."""
        sequence, *event = self._events[0]
        columns = RUN_EVENTS.c
        wanted = select(columns.kind, columns.body).where(
            columns.number == number, columns.sequence == sequence
        )
        stored = connection.execute(wanted).first()
        if stored is None or list(stored) != event:
            self._taken_over()

    def _taken_over(self) -> NoReturn:
        _log.error(
            "run %s: another server has taken it over; two servers must not use the same database", self._id
        )
        raise RunNotFound(self._id)


def _add_events(
    connection: Connection, number: int, events: Iterable[RunEvent], at: int, counts: list[Count]
) -> None:
    """Store events, the evaluators that failed in them, and their counts. counts: further counts to add."""
    rows = []
    failed: set[str] = set()
    for event in events:
        rows.append((number, *event))
        if event.kind is RunEventKind.TURN:
            results = run_service_pb2.RunTurn.FromString(event.body).evaluation.results
            counts += rollups.of_results(results, at)
            failed.update(
                name[: rollups.MAX_KEY]
                for result in results
                if result.verdict in (result_pb2.VERDICT_FAILED, result_pb2.VERDICT_ERROR)
                and not result.pending  # a later turn decides
                for name in (result.name, result.type)
            )
    if rows:
        _INSERT_EVENT.execute(connection, rows)
    if failed:
        _INSERT_FAILURE.execute(connection, [(plain_text(name), number) for name in sorted(failed)])
    rollups.count(connection, counts)


def _insert(
    connection: Connection,
    runs: Sequence[tuple[Run, Sequence[RunEvent]]],
    request_id: str,
    *,
    newest: bool = False,
) -> None:
    """Store runs with their events. newest: number them after all other runs, even if the clock was set back.

    Raises IdTaken.
    """
    if not runs:
        return
    created = [run.create_time.ToMicroseconds() if run.HasField("create_time") else _now() for run, _ in runs]
    if newest:
        first = _next_number(connection, created)
    else:
        first = _free_numbers(connection, max(created), len(runs))
    rows: list[dict[str, Any]] = []
    states, snapshots = [], []
    for number, ((run, _), at) in enumerate(zip(runs, created, strict=True), start=first):
        row: dict[str, Any] = {"number": number, "created": at, "request_id": request_id}
        rows.append(row | {name: getattr(run, name) for name in _COPIED})
        states.append({"number": number, "last_sequence": run.last_sequence, "body": _body(run)})
        snapshots.append({"number": number, "body": _snapshot(run)})
    try:
        connection.execute(_INSERT_RUN, rows)
    except IntegrityError:  # the numbers are free
        raise IdTaken(runs[0][0].id if len(runs) == 1 else "the id of one of the runs") from None
    connection.execute(_INSERT_STATE, states)
    connection.execute(_INSERT_SNAPSHOT, snapshots)
    for row, (run, events) in zip(rows, runs, strict=True):
        at = run.complete_time.ToMicroseconds() if run.HasField("complete_time") else row["created"]
        counts: list[Count] = [rollups.of_run(run, at)] if run.status in _COUNTED else []
        _add_events(connection, row["number"], events, at, counts)


def _next_number(connection: Connection, created: Sequence[int]) -> int:
    """Return the first number for new runs. created: the time of creation of each, Unix microseconds."""
    last: int | None = connection.scalar(_LAST)
    first = max(*created, (last or 0) + 1)
    skew = first + len(created) - min(created)
    if skew > _MAX_SKEW and skew > (connection.scalar(select(_KNOWN_SKEW)) or 0):
        connection.execute(delete(COUNTERS).where(COUNTERS.c.name == _SKEW))
        connection.execute(insert(COUNTERS), {"name": _SKEW, "value": skew})
    return first


def _free_numbers(connection: Connection, wanted: int, count: int) -> int:
    """Return the first of `count` free consecutive numbers, at or soon after `wanted`, for imported runs.

    It tries random numbers in a growing range. So many imported runs of the same second each need only a few tries.
    """
    found, step = wanted, count
    while connection.scalar(_BETWEEN, {"first": found, "last": found + count - 1}) is not None:
        step = min(2 * step, _MAX_SKEW)
        found = wanted + random.randrange(step)  # noqa: S311 - no secret
    return found


def _delete(connection: Connection, numbers: Sequence[int]) -> None:
    for table in (RUNS, RUN_STATES, RUN_SNAPSHOTS, RUN_EVENTS, RUN_FAILURES):
        connection.execute(delete(table).where(table.c.number.in_(numbers)))


@cache
def _listing(given: frozenset[str], *, oldest_first: bool) -> "Select[int, bytes]":
    """Return the statement that lists runs. given: its parameters, which are fields of a filter and "after"."""
    columns = RUNS.c
    # Sort and limit the time by `number`, because it is the last column of every filter's index.
    number = RUN_FAILURES.c.number if "failed_evaluator" in given else columns.number
    statement = select(number)
    if "failed_evaluator" in given:
        statement = (
            statement.select_from(RUN_FAILURES)
            .join(RUNS, columns.number == number)
            .where(RUN_FAILURES.c.evaluator == bindparam("failed_evaluator"))
        )
    for name in _EQUAL:
        if name in given:
            statement = statement.where(columns[name] == bindparam(name))
    if "since" in given:
        since: BindParameter[int] = bindparam("since")
        statement = statement.where(number >= since, columns.created >= since)
    if "until" in given:
        until: BindParameter[int] = bindparam("until")
        statement = statement.where(number < until + _KNOWN_SKEW, columns.created < until)
    if "after" in given:
        after: BindParameter[int] = bindparam("after")
        statement = statement.where(number > after if oldest_first else number < after)
    # Select the page first: otherwise PostgreSQL reads the states of all newer runs too.
    order = number if oldest_first else number.desc()
    page = statement.order_by(order).limit(bindparam("most")).subquery()
    listed = select(page.c.number, RUN_STATES.c.body).join(RUN_STATES, RUN_STATES.c.number == page.c.number)
    return listed.order_by(page.c.number if oldest_first else page.c.number.desc())


def listed(run: Run) -> Run:
    """Return a run in the form that `RunStore.list` returns, with only the names of its snapshots."""
    return Run.FromString(_body(run))


def _whole(row: "Row[bytes, bytes]") -> Run:
    # Protobuf merges concatenated messages: the whole snapshots replace their names.
    body, snapshot = row
    return Run.FromString(body + snapshot)


def _copy(run: Run, left_out: Sequence[str]) -> Run:
    copy = Run()
    for field, value in run.ListFields():
        if field.name in left_out:
            continue
        if field.message_type is None:
            setattr(copy, field.name, value)
        else:
            getattr(copy, field.name).CopyFrom(value)
    return copy


def _body(run: Run) -> bytes:
    body = _copy(run, _APART)
    for name in _SNAPSHOTS:
        if run.HasField(name):
            getattr(body, name).name = getattr(run, name).name
    if run.HasField("connector"):
        body.connector.type = run.connector.type
    return body.SerializeToString()


def _snapshot(run: Run) -> bytes:
    return Run(**{name: getattr(run, name) for name in _SNAPSHOTS if run.HasField(name)}).SerializeToString()


def _now() -> int:
    return time.time_ns() // 1000
