"""The store of suite runs and their cases."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from sqlalchemy import ColumnElement, Connection, bindparam, delete, func, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from evald.v1 import result_pb2, suite_service_pb2

from .database import Database
from .prepared import PreparedInsert
from .resources import IdTaken
from .schema import SUITE_CASES, SUITE_RUNS, plain_text

T = TypeVar("T")

SuiteRun = suite_service_pb2.SuiteRun

RUNNING: Final = suite_service_pb2.SUITE_RUN_STATUS_RUNNING
COMPLETED: Final = suite_service_pb2.SUITE_RUN_STATUS_COMPLETED
INTERRUPTED: Final = suite_service_pb2.SUITE_RUN_STATUS_INTERRUPTED

# Status of a deleted suite run, invisible to callers, whose cases are still being deleted in small commits.
_DELETED: Final = 0

# Number of rows per read or delete.
_AT_ONCE: Final = 500

_COUNTS: Final = {
    result_pb2.VERDICT_PASSED: "passed_count",
    result_pb2.VERDICT_FAILED: "failed_count",
    result_pb2.VERDICT_ERROR: "error_count",
    result_pb2.VERDICT_SKIPPED: "skipped_count",
}

# Fields of a suite run that are known when it begins; all others are figures of its cases.
_GIVEN: Final = (
    "id",
    "suite",
    "target",
    "status",
    "threshold",
    "trials",
    "labels",
    "metadata",
    "create_time",
)

_RUN, _CASE = SUITE_RUNS.c, SUITE_CASES.c

_ONE: Final = select(SUITE_RUNS).where(_RUN.id == bindparam("run_id"), _RUN.status != _DELETED)
_SET: Final = update(SUITE_RUNS).where(_RUN.number == bindparam("run"))
_DELETE_BROKEN: Final = delete(SUITE_CASES).where(
    _CASE.number == bindparam("run_number"),
    _CASE.verdict.not_in((result_pb2.VERDICT_PASSED, result_pb2.VERDICT_FAILED, result_pb2.VERDICT_SKIPPED)),
)
_INSERT_CASE: Final = PreparedInsert(SUITE_CASES)
_STORED: Final = select(_CASE.case_id, _CASE.whole, _CASE.attempt).where(
    _CASE.number == bindparam("run"), _CASE.case_id.in_(bindparam("ids", expanding=True))
)


class SuiteRunKey(NamedTuple):
    """The key of a running suite run. number: its key in the tables. attempt: 1, plus one for each resumption."""

    number: int
    attempt: int


class StoredCase(NamedTuple):
    """A case to store. whole: serialised CaseResult; brief: the same without trials."""

    case_id: str
    verdict: int
    brief: bytes
    whole: bytes


class FoundCase(NamedTuple):
    """A stored case. attempt: the attempt of its suite run that stored it."""

    whole: bytes
    attempt: int


class SuiteFilter(NamedTuple):
    """A filter for suite runs. Empty and 0 match all. since, until: limits of the creation time, Unix microseconds."""

    suite: str = ""
    target: str = ""
    status: int = 0
    verdict: int = 0
    since: int = 0
    until: int = 0


_EQUAL: Final = SuiteFilter._fields[:4]


class SuiteRunNotFound(Exception):
    """No suite run has the id."""


class SuiteRunState(Exception):
    """The suite run's status does not allow the operation. status: the current one."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class SuiteStore:
    """The suite runs in a database. All methods raise StoreProblem; a write is durable when the call returns."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, run: SuiteRun, opening: bytes) -> SuiteRunKey:
        """Store a new suite run. opening: data that `resume` passes to its `check`. Raises IdTaken."""
        row = _row(run) | {
            "id": run.id,
            "suite": run.suite,
            "target": run.target,
            "created": run.create_time.ToMicroseconds(),
            "attempt": 1,
            "opening": opening,
        }

        def work(connection: Connection) -> SuiteRunKey:
            newest: int | None = connection.scalar(select(func.max(_RUN.number)))
            number = max(row["created"], (newest or 0) + 1)
            try:
                connection.execute(insert(SUITE_RUNS), row | {"number": number})
            except IntegrityError:  # the number is free
                raise IdTaken(run.id) from None
            return SuiteRunKey(number, 1)

        return await self._database.write(work)

    async def resume(self, run_id: str, check: Callable[[bytes], None]) -> tuple[SuiteRunKey, SuiteRun]:
        """Set a suite run that was interrupted, or has cases in error, to RUNNING, without those cases: they run again.

        check: called with the `opening`.
        Raises SuiteRunNotFound, SuiteRunState, and what `check` raises.
        """

        def work(connection: Connection) -> tuple[SuiteRunKey, SuiteRun]:
            row = connection.execute(_ONE, {"run_id": run_id}).first()
            if row is None:
                raise SuiteRunNotFound(run_id)
            run = SuiteRun.FromString(row.body)
            if row.status != INTERRUPTED and not (row.status == COMPLETED and run.error_count):
                raise SuiteRunState(row.status)
            check(row.opening)
            connection.execute(_DELETE_BROKEN, {"run_number": row.number})
            run.status = RUNNING
            for field, _ in run.ListFields():
                if field.name not in _GIVEN:
                    run.ClearField(field.name)
            key = SuiteRunKey(row.number, row.attempt + 1)
            connection.execute(_SET, _row(run) | {"run": key.number, "attempt": key.attempt})
            return key, run

        return await self._database.write(work)

    async def add(self, key: SuiteRunKey, cases: Sequence[StoredCase], *, again: bool = False) -> list[str]:
        """Store cases, except duplicates, and return the ids of the duplicates.

        again: a retry of the previous call, which had the same cases and no answer; a case that it stored is no
        duplicate.
        """
        rows: dict[str, StoredCase] = {}
        repeated = []
        for case in cases:
            if case.case_id in rows:
                repeated.append(case.case_id)
            else:
                rows[case.case_id] = case

        def work(connection: Connection) -> list[str]:
            stored = _stored(connection, key.number, list(rows))
            new = [
                (key.number, plain_text(case.case_id), case.verdict, key.attempt, case.brief, case.whole)
                for case in rows.values()
                if case.case_id not in stored
            ]
            if new:
                _INSERT_CASE.execute(connection, new)
            return repeated + [
                name for name, found in stored.items() if not (again and found.whole == rows[name].whole)
            ]

        return await self._database.write(work)

    async def finish(self, key: SuiteRunKey, run: SuiteRun) -> None:
        """Store an ended suite run."""
        row = _row(run) | {"run": key.number, "attempt": key.attempt}

        def work(connection: Connection) -> None:
            connection.execute(_SET, row)

        await self._database.write(work)

    async def running(self) -> Sequence[str]:
        """Return the ids of the RUNNING suite runs."""
        wanted = select(_RUN.id).where(_RUN.status == RUNNING)
        return await self._database.read(lambda connection: connection.scalars(wanted).all())

    async def interrupt(self, run_id: str) -> bool:
        """Set a RUNNING suite run to INTERRUPTED, with the counts of its stored cases. Returns False for another one."""
        wanted = select(SUITE_RUNS).where(_RUN.status == RUNNING, _RUN.id == run_id)

        def work(connection: Connection) -> bool:
            row = connection.execute(wanted).first()
            if row is None:
                return False
            run = SuiteRun.FromString(row.body)
            run.status = INTERRUPTED
            _count(connection, row.number, run)
            run.reason = f"Interrupted after {run.case_count} cases"
            run.complete_time.GetCurrentTime()
            connection.execute(_SET, _row(run) | {"run": row.number, "attempt": row.attempt})
            return True

        return await self._database.write(work)

    async def get(self, run_id: str) -> SuiteRun | None:
        """Return a suite run; None if it does not exist. A RUNNING one has the counts of its stored cases."""

        def work(connection: Connection) -> SuiteRun | None:
            row = connection.execute(_ONE, {"run_id": run_id}).first()
            if row is None:
                return None
            run = SuiteRun.FromString(row.body)
            if row.status == RUNNING:
                _count(connection, row.number, run)
            return run

        return await self._database.read(work)

    async def cases(
        self,
        run_id: str,
        *,
        after: str = "",
        limit: int = _AT_ONCE,
        verdict: int = 0,
        case_id: str = "",
        brief: bool = False,
    ) -> list[tuple[str, bytes]] | None:
        """Return ids and serialised cases with an id greater than `after`, ordered by id.

        None if the suite run does not exist. brief: without trials.
        """

        def work(connection: Connection) -> list[tuple[str, bytes]] | None:
            row = connection.execute(_ONE, {"run_id": run_id}).first()
            if row is None:
                return None
            return _page(connection, row.number, after, limit, verdict=verdict, case_id=case_id, brief=brief)

        return await self._database.read(work)

    async def find(self, key: SuiteRunKey, ids: Sequence[str]) -> dict[str, FoundCase]:
        """Return the stored cases of a suite run with these ids, by id."""
        return await self._database.read(lambda connection: _stored(connection, key.number, ids))

    async def both(
        self,
        base_id: str,
        new_id: str,
        consume: Callable[[SuiteRun, SuiteRun, Iterator[bytes], Iterator[bytes]], T],
    ) -> T:
        """Call `consume` in a thread with two suite runs and their cases, ordered by id.

        The cases include trials, because only these show which evaluators judged a case. Raises SuiteRunNotFound.
        """

        def work(connection: Connection) -> T:
            runs: list[SuiteRun] = []
            numbers: list[int] = []
            for run_id in (base_id, new_id):
                row = connection.execute(_ONE, {"run_id": run_id}).first()
                if row is None:
                    raise SuiteRunNotFound(run_id)
                runs.append(SuiteRun.FromString(row.body))
                numbers.append(row.number)
            base, new = (_all(connection, number) for number in numbers)
            return consume(runs[0], runs[1], base, new)

        return await self._database.read(work)

    async def delete(self, run_id: str) -> bool:
        """Delete a suite run. Return False if it does not exist. Raises SuiteRunState while it is RUNNING."""

        def work(connection: Connection) -> bool:
            row = connection.execute(_ONE, {"run_id": run_id}).first()
            if row is None:
                return False
            if row.status == RUNNING:
                raise SuiteRunState(row.status)
            _mark_deleted(connection, [row.number])
            return True

        deleted = await self._database.write(work)
        if deleted:
            await self.purge()
        return deleted

    async def purge(self) -> None:
        """Delete the rows of suite runs marked as deleted, in small commits."""
        number = select(_RUN.number).where(_RUN.status == _DELETED).order_by(_RUN.number).limit(1)

        def work(connection: Connection) -> bool:
            run: int | None = connection.scalar(number)
            if run is None:
                return False
            ids = connection.scalars(
                select(_CASE.case_id).where(_CASE.number == run).order_by(_CASE.case_id).limit(_AT_ONCE)
            ).all()
            if ids:
                connection.execute(delete(SUITE_CASES).where(_CASE.number == run, _CASE.case_id <= ids[-1]))
            else:
                connection.execute(delete(SUITE_RUNS).where(_RUN.number == run))
            return True

        while await self._database.write(work):
            pass

    async def trim(self, *, max_age: float | None, max_count: int | None) -> int:
        """Delete the oldest suite runs, except RUNNING ones. Return the number of deleted suite runs.

        max_age: seconds since the creation. max_count: number of suite runs to keep.
        """
        there = _RUN.status != _DELETED
        old = select(_RUN.number).where(there, _RUN.status != RUNNING)

        def work(connection: Connection) -> int:
            before: list[ColumnElement[bool]] = []
            if max_age is not None:
                before.append(_RUN.created < time.time_ns() // 1000 - round(1_000_000 * max_age))
            if max_count is not None:
                newest = select(_RUN.number).where(there).order_by(_RUN.number.desc())
                last = connection.scalar(newest.offset(max_count).limit(1))
                if last is not None:
                    before.append(_RUN.number <= last)
            if not before:
                return 0
            numbers = connection.scalars(old.where(or_(*before))).all()
            _mark_deleted(connection, numbers)
            return len(numbers)

        total = await self._database.write(work)
        await self.purge()
        return total

    async def list(
        self, wanted: SuiteFilter, *, after: int | None = None, limit: int = 50
    ) -> list[tuple[int, SuiteRun]]:
        """Return suite runs, newest first, each with the number to pass as `after`."""
        statement = select(_RUN.number, _RUN.body).where(_RUN.status != _DELETED)
        for name in _EQUAL:
            if value := getattr(wanted, name):
                statement = statement.where(_RUN[name] == value)
        if wanted.since:
            statement = statement.where(_RUN.created >= wanted.since)
        if wanted.until:
            statement = statement.where(_RUN.created < wanted.until)
        if after is not None:
            statement = statement.where(_RUN.number < after)
        statement = statement.order_by(_RUN.number.desc()).limit(limit)
        return await self._database.read(
            lambda connection: [
                (number, SuiteRun.FromString(body)) for number, body in connection.execute(statement)
            ]
        )


def _row(run: SuiteRun) -> dict[str, Any]:
    """Return the columns that change."""
    return {"status": run.status, "verdict": run.verdict, "body": run.SerializeToString()}


def _mark_deleted(connection: Connection, numbers: Sequence[int]) -> None:
    """Hide suite runs from callers and free their ids."""
    for number in numbers:
        # Not printable, so that no caller's suite run can have this id.
        hidden = f"\n{number}"
        row = {"run": number, "status": _DELETED, "id": hidden, "suite": "", "target": ""}
        connection.execute(_SET, row)


def _count(connection: Connection, number: int, run: SuiteRun) -> None:
    """Set the run's counts from its stored cases."""
    counted = select(_CASE.verdict, func.count()).where(_CASE.number == number).group_by(_CASE.verdict)
    counts = {row[0]: row[1] for row in connection.execute(counted)}
    run.case_count = sum(counts.values())
    for verdict, name in _COUNTS.items():
        setattr(run, name, counts.get(verdict, 0))


def _stored(connection: Connection, number: int, ids: Sequence[str]) -> dict[str, FoundCase]:
    found = {}
    for begin in range(0, len(ids), _AT_ONCE):
        wanted = {"run": number, "ids": ids[begin : begin + _AT_ONCE]}
        for case_id, whole, attempt in connection.execute(_STORED, wanted):
            found[case_id] = FoundCase(whole, attempt)
    return found


def _page(
    connection: Connection,
    number: int,
    after: str,
    limit: int,
    *,
    verdict: int = 0,
    case_id: str = "",
    brief: bool = False,
) -> list[tuple[str, bytes]]:
    statement = select(_CASE.case_id, _CASE.brief if brief else _CASE.whole)
    statement = statement.where(_CASE.number == number, _CASE.case_id > after)
    if verdict:
        statement = statement.where(_CASE.verdict == verdict)
    if case_id:
        statement = statement.where(_CASE.case_id == case_id)
    return [(row[0], row[1]) for row in connection.execute(statement.order_by(_CASE.case_id).limit(limit))]


def _all(connection: Connection, number: int) -> Iterator[bytes]:
    after = ""
    while page := _page(connection, number, after, _AT_ONCE):
        yield from (data for _, data in page)
        after = page[-1][0]
