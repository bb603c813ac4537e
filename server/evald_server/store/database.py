"""The database of a server: SQLite in its data directory or in memory, or PostgreSQL.

Callers get database errors as StoreProblem, whose text contains neither paths nor SQL; the log has those.
"""

import asyncio
import logging
import os
import sqlite3
import struct
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, create_engine, delete, event, insert, make_url, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import QueuePool, StaticPool

from evald_server.call_errors import CallError

from . import rollups
from .migrations import OtherVersion, migrate
from .schema import RUN_SNAPSHOTS

T = TypeVar("T")
Work: TypeAlias = Callable[[Connection], T]

_log = logging.getLogger("evald.store")

FILE_NAME: Final = "evald.sqlite3"
MEMORY: Final = "sqlite://"

FULL: Final = "STORAGE_FULL"
UNAVAILABLE: Final = "STORAGE_UNAVAILABLE"

# Limit of a database in memory, 1 GiB in pages of 4 KiB: callers may store any number of objects.
_MEMORY_PAGES: Final = 1 << 18

_READERS: Final = 4

# How long a statement waits for a lock that a backup or a shell holds.
_LOCK_SECONDS: Final = 1.0

# Wait for the lock of a killed server: its session lives until its statement ends and PostgreSQL notices.
_TAKE_OVER_SECONDS: Final = 5.0

# Key of the session lock, which allows only one server per PostgreSQL database.
_SERVER_LOCK: Final = int.from_bytes(b"evald", "big")

# The byte that a server locks in its SQLite file: beyond the file's end, so that SQLite and backups are not disturbed.
_LOCKED_BYTE: Final = 1 << 62

# Defaults for libpq, overridden by the URL: detect a lost PostgreSQL server within seconds.
_LIBPQ: Final = {
    "connect_timeout": "5",
    "tcp_user_timeout": "10000",
    "keepalives_idle": "20",
    "keepalives_interval": "5",
    "application_name": "evald",
}

# Settings of the PostgreSQL session: detect a lost client, and limit the time of statements and locks.
_SESSION: Final = (
    "SET tcp_keepalives_idle = 20",
    "SET tcp_keepalives_interval = 5",
    "SET tcp_keepalives_count = 3",
    f"SET lock_timeout = {round(1000 * _LOCK_SECONDS)}",
    "SET statement_timeout = 10000",
)

# SQLSTATE classes for errors of the statement, not of the database: data, integrity, syntax, limits.
_STATEMENT_ERRORS: Final = ("22", "23", "42", "54")


class StoreProblem(CallError):
    """The database is unavailable. reason: STORAGE_FULL or STORAGE_UNAVAILABLE."""


class _Waiting(NamedTuple):
    work: Work[Any]
    done: "asyncio.Future[Any]"


class _Outcome(NamedTuple):
    result: Any
    problem: Exception | None = None


class Database:
    """A database with one writer thread and a few reader threads.

    url: a PostgreSQL URL, the path of a SQLite file, or MEMORY for a database that ends with the process.

    problem: why the database cannot be used; "" if the last write succeeded. on_change: called when it changes.

    All changes requested during a commit go into the next one, because a commit waits 5 ms for the disk, for one row
    as for 500. After an error, the next call connects again.
    """

    def __init__(self, url: str | Path) -> None:
        self._path = url if isinstance(url, Path) else None
        self._url: URL | None = make_url(url) if isinstance(url, str) and url != MEMORY else None
        self._is_in_memory = self._path is None and self._url is None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="evald-store-writer")
        # A database in memory has only one connection.
        self._readers: Executor = (
            self._thread
            if self._is_in_memory
            else ThreadPoolExecutor(_READERS, thread_name_prefix="evald-store-reader")
        )
        self._engine: Engine | None = None
        self._connection: Connection | None = None
        self._file: tuple[int, int] | None = None  # device and inode of the open file
        self._lock: int | None = None  # descriptor that holds the lock of that file
        self._pending: list[_Waiting] = []
        self._writing: asyncio.Task[None] | None = None
        self._closed = False
        self.problem = ""
        self.on_change: Callable[[], None] = lambda: None

    async def start(self) -> None:
        """Open the database, create it if necessary, and migrate it. Raises StoreProblem."""
        await self._run(self._thread, self._open)

    async def read(self, work: Work[T]) -> T:
        """Run `work` in a read transaction. Raises StoreProblem, and what `work` raises."""
        if not self._is_open():
            await self._run(self._thread, self._open)
        return await self._run(self._readers, partial(self._read, work))

    async def write(self, work: Work[T]) -> T:
        """Run `work` in a transaction, possibly together with other works, and return when it is durable.

        Raises StoreProblem, and what `work` raises; then nothing of it is stored. `work` may run a second time if the
        first transaction was not stored.
        """
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._pending.append(_Waiting(work, done))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._commit_all())
        return await done

    async def probe(self) -> None:
        """Update `problem`: read while there is none, else write."""
        with suppress(StoreProblem):
            await (self.write(_write_nothing) if self.problem else self.read(_read_nothing))

    def _note(self, problem: str) -> None:
        if problem != self.problem:
            self.problem = problem
            self.on_change()

    async def close(self) -> None:
        """Finish pending commits and disconnect."""
        if self._closed:
            return
        if self._writing is not None:
            await asyncio.wait([self._writing])
        self._closed = True
        await asyncio.get_running_loop().run_in_executor(self._thread, self._disconnect)
        self._readers.shutdown()
        self._unlock()
        self._thread.shutdown()

    async def _commit_all(self) -> None:
        while self._pending:
            # Drop works whose callers were cancelled in the queue.
            batch = [waiting for waiting in self._pending if not waiting.done.done()]
            self._pending = []
            works = [waiting.work for waiting in batch]
            try:
                outcomes = await self._run(self._thread, partial(self._commit, works))
            except Exception as problem:  # noqa: BLE001 - handed to the callers
                outcomes = [_Outcome(None, problem)] * len(batch)
            for waiting, outcome in zip(batch, outcomes, strict=True):
                if outcome.problem is None:
                    self._note("")
                elif isinstance(outcome.problem, StoreProblem):
                    self._note(outcome.problem.message)
                if waiting.done.done():
                    continue
                if outcome.problem is None:
                    waiting.done.set_result(outcome.result)
                else:
                    waiting.done.set_exception(outcome.problem)

    async def _run(self, executor: Executor, work: Callable[[], T]) -> T:
        if self._closed:
            raise StoreProblem(UNAVAILABLE, "the server stops")
        try:
            return await asyncio.get_running_loop().run_in_executor(executor, work)
        except StoreProblem as problem:
            self._note(problem.message)
            raise
        except DBAPIError as problem:
            if not _is_storage(problem):
                raise
            refusal = _refusal(problem)
            self._note(refusal.message)
            raise refusal from None

    # In the writer's thread.

    def _commit(self, works: Sequence[Work[Any]]) -> list[_Outcome]:
        try:
            return self._transaction(works)
        except (DBAPIError, StoreProblem) as problem:
            refusal = problem if isinstance(problem, StoreProblem) else _refusal(problem)
        if refusal.reason == FULL and len(works) > 1:
            # Commit one by one, so that a work that does not fit does not block the others.
            return [self._commit([work])[0] for work in works]
        return [_Outcome(None, StoreProblem(refusal.reason, refusal.message)) for _ in works]

    def _transaction(
        self, works: Sequence[Work[Any]], *, savepoints: bool = False, retry: bool = True
    ) -> list[_Outcome]:
        """Commit works together. savepoints: use one for each work; half as fast, so only after a work has failed."""
        if not self._is_open():
            self._open()
        connection = self._connection
        assert connection is not None
        committing = False
        try:
            with connection.begin():
                counts = rollups.collect(connection)
                run = _in_savepoint if savepoints else _run_work
                outcomes = [run(connection, work, counts) for work in works]
                rollups.add(connection, counts)
                committing = True
        except _WorkFailed as failed:
            if len(works) > 1:
                return self._transaction(works, savepoints=True)
            return [_Outcome(None, failed.problem)]
        except DBAPIError:
            if connection.invalidated:
                self._disconnect()
                # PostgreSQL was restarted. A commit without an answer may have succeeded, so it must not be repeated.
                if retry and not committing:
                    return self._transaction(works, savepoints=savepoints, retry=False)
            raise
        return outcomes

    def _is_open(self) -> bool:
        """Return whether the writer is connected, for SQLite to the file that now has the path.

        SQLite would continue to write to a removed file.
        """
        return self._connection is not None and (self._path is None or _identity(self._path) == self._file)

    def _open(self) -> None:
        if self._is_open():
            return
        self._disconnect()
        if self._path is not None:
            self._lock_file(self._path)
        engine = self._engine or self._create_engine()
        connection = engine.connect().execution_options(evald_writes=True)
        try:
            if self._url is not None:
                _take_server_lock(connection)
            with connection.begin():
                if self._url is not None:
                    # A migration of a large table may take long.
                    connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
                migrate(connection)
            if self._path is not None:
                self._file = _identity(self._path)
        except OtherVersion as problem:
            connection.invalidate()
            connection.close()
            _log.error("store: %s", problem.__cause__ or problem)
            raise StoreProblem(UNAVAILABLE, str(problem)) from None
        except BaseException:
            connection.invalidate()
            connection.close()
            raise
        # Once an engine exists, a removed file is never created again.
        self._engine, self._connection = engine, connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.invalidate()
            connection.close()
        if self._engine is not None:
            self._engine.dispose()

    def _lock_file(self, path: Path) -> None:
        """Create the file at the first start, and lock it. The lock is on the file, not on its path, because of links.

        Raises StoreProblem. SQLite reports other problems of the path.
        """
        self._unlock()
        # Readable only by the server's user, because it contains conversations.
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if self._engine is None else 0)
        with suppress(OSError):
            self._lock = os.open(path, flags, 0o600)
        if self._lock is not None:
            _take_file_lock(self._lock, path)

    def _unlock(self) -> None:
        """Release the file's lock. Never while SQLite uses the file: POSIX then releases SQLite's locks too."""
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    def _create_engine(self) -> Engine:
        if self._url is not None:
            return _postgresql(self._url)
        if self._path is None:
            engine = create_engine(
                MEMORY, poolclass=StaticPool, creator=_connect_memory, hide_parameters=True
            )
        else:
            engine = create_engine(
                MEMORY,
                poolclass=QueuePool,
                pool_size=_READERS + 1,
                max_overflow=0,
                creator=partial(self._connect_file, self._path),
                hide_parameters=True,
            )
        event.listen(engine, "begin", _begin)
        return engine

    def _connect_file(self, path: Path) -> sqlite3.Connection:
        connection = _sqlite(f"file:{quote(str(path.absolute()))}?mode=rw")
        try:
            if self._connection is None:
                connection.execute("PRAGMA journal_mode = WAL")
            # Acknowledged commits survive a power failure.
            connection.execute("PRAGMA synchronous = FULL")
        except BaseException:
            connection.close()
            raise
        return connection

    # In a reader's thread.

    def _read(self, work: Work[T], *, retry: bool = True) -> T:
        assert self._engine is not None
        with self._engine.connect() as connection:
            if self._url is not None:
                # All statements see the same data, as in SQLite.
                connection.execution_options(isolation_level="REPEATABLE READ")
            try:
                with connection.begin():
                    return work(connection)
            except DBAPIError:
                if not (retry and connection.invalidated):
                    raise
        return self._read(work, retry=False)


def _read_nothing(connection: Connection) -> None:
    connection.exec_driver_sql("SELECT 1")


def _write_nothing(connection: Connection) -> None:
    """Write a few pages, and delete them in the same transaction."""
    connection.execute(insert(RUN_SNAPSHOTS), {"number": -1, "body": bytes(16 << 10)})
    connection.execute(delete(RUN_SNAPSHOTS).where(RUN_SNAPSHOTS.c.number == -1))


def _connect_memory() -> sqlite3.Connection:
    connection = _sqlite(":memory:")
    connection.execute(f"PRAGMA max_page_count = {_MEMORY_PAGES}")
    return connection


class _WorkFailed(Exception):
    """A work has raised, so its transaction must be rolled back."""

    def __init__(self, problem: Exception) -> None:
        super().__init__()
        self.problem = problem


def _run_work(connection: Connection, work: Work[Any], _counts: object = None) -> _Outcome:
    """Run one work. Raises DBAPIError for a database error, and _WorkFailed for an error of the work."""
    try:
        return _Outcome(work(connection))
    except Exception as problem:
        if isinstance(problem, DBAPIError) and _is_storage(problem):
            raise
        raise _WorkFailed(problem) from None


def _in_savepoint(connection: Connection, work: Work[Any], counts: list[rollups.Count]) -> _Outcome:
    """Run one work, and roll back only this work if it fails. Raises DBAPIError for a database error."""
    counted = len(counts)
    # Not begin_nested(), which takes five times as long.
    connection.exec_driver_sql("SAVEPOINT work")
    try:
        outcome = _run_work(connection, work)
    except _WorkFailed as failed:
        connection.exec_driver_sql("ROLLBACK TO SAVEPOINT work")
        del counts[counted:]
        outcome = _Outcome(None, failed.problem)
    connection.exec_driver_sql("RELEASE SAVEPOINT work")
    return outcome


def _is_storage(problem: DBAPIError) -> bool:
    """Return whether the error is one of the database, not of the statement."""
    error = problem.orig
    if isinstance(error, sqlite3.Error):
        wrong = (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.ProgrammingError)
        return not isinstance(error, wrong)
    # An error without a code means that the connection is lost.
    return (getattr(error, "sqlstate", None) or "08")[:2] not in _STATEMENT_ERRORS


def _refusal(problem: DBAPIError) -> StoreProblem:
    _log.error("store: %s", problem.orig)
    error = problem.orig
    if getattr(error, "sqlite_errorname", "") == "SQLITE_FULL" or getattr(error, "sqlstate", "") == "53100":
        return StoreProblem(FULL, "the server's database is full")
    return StoreProblem(UNAVAILABLE, "the server cannot use its database now")


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _sqlite(name: str) -> sqlite3.Connection:
    return sqlite3.connect(
        name, uri=True, timeout=_LOCK_SECONDS, isolation_level=None, check_same_thread=False
    )


def _begin(connection: Connection) -> None:
    """Begin a SQLite transaction, because sqlite3 with `isolation_level=None` does not.

    A writer takes the write lock at once: a transaction that begins as a reader cannot write if another one has
    written meanwhile.
    """
    writes = connection.get_execution_options().get("evald_writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _postgresql(url: URL) -> Engine:
    options = {name: value for name, value in _LIBPQ.items() if name not in url.query}
    try:
        engine = create_engine(
            url.set(drivername="postgresql+psycopg"),
            pool_size=_READERS + 1,
            max_overflow=0,
            connect_args=options,
            hide_parameters=True,
        )
    except ModuleNotFoundError:
        raise StoreProblem(
            UNAVAILABLE, "PostgreSQL needs a package that is not installed: pip install 'evald[postgres]'"
        ) from None

    def prepare(connection: Any, record: object) -> None:
        for statement in _SESSION:
            connection.execute(statement)
        connection.commit()

    event.listen(engine, "connect", prepare)
    return engine


def _take_file_lock(file: int, path: Path) -> None:
    """Lock a SQLite file until the descriptor is closed. Only on Linux. Raises StoreProblem."""
    if sys.platform != "linux":
        return
    import fcntl

    # Lock by descriptor, because a lock by process ends when SQLite closes any connection to the file.
    lock = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, _LOCKED_BYTE, 1, 0)
    try:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, lock)
    except (BlockingIOError, PermissionError):
        raise _taken(
            "EVALD_DATA_DIR or data_dir in the config file; a link to the same file does not help"
        ) from None
    except OSError as problem:  # a file system without locks
        _log.warning(
            "%s cannot be locked (%s): make sure that no second server uses it", path, problem.strerror
        )


def _taken(setting: str) -> StoreProblem:
    return StoreProblem(
        UNAVAILABLE,
        f"another server uses this database. Stop that server, or give each one its own database: {setting}",
    )


def _take_server_lock(connection: Connection) -> None:
    """Lock the database for this session, so that two servers never write at the same time. Raises StoreProblem."""
    until = time.monotonic() + _TAKE_OVER_SECONDS
    with connection.begin():
        while not connection.scalar(text("SELECT pg_try_advisory_lock(:key)"), {"key": _SERVER_LOCK}):
            if time.monotonic() > until:
                raise _taken("EVALD_STORE or store in the config file")
            time.sleep(0.1)
