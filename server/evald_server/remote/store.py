"""Leases on disk, so that a restarted server knows its listening plugins."""

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeVar

from .errors import Refusal

T = TypeVar("T")

_log = logging.getLogger("evald.remote")

FILE_NAME: Final = "remotes.sqlite3"

# Add new ones at the end. The file's user_version says how many have run.
_MIGRATIONS: Final = (
    """
    CREATE TABLE registrations (
        lease_id TEXT PRIMARY KEY,
        instance_id TEXT NOT NULL,
        plugin BLOB NOT NULL,
        target TEXT NOT NULL,
        tls_profile TEXT NOT NULL,
        principal TEXT NOT NULL,
        ttl_seconds REAL NOT NULL,
        registered REAL NOT NULL,
        revoked INTEGER NOT NULL
    )
    """,
    "ALTER TABLE registrations DROP COLUMN principal",  # was always empty
)

_PUT: Final = "INSERT OR REPLACE INTO registrations VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_DELETE: Final = "DELETE FROM registrations WHERE lease_id = ?"
_SELECT: Final = (
    "SELECT lease_id, instance_id, plugin, target, tls_profile, ttl_seconds, registered, revoked "
    "FROM registrations ORDER BY registered"
)


@dataclass(frozen=True, slots=True)
class StoredLease:
    """One lease. plugin: serialized PluginInfo. registered: Unix time in seconds.

    The time of expiry is not stored: a plugin cannot renew while the server is down, so a restored lease
    gets its full time.
    """

    lease_id: str
    instance_id: str
    plugin: bytes
    target: str
    tls_profile: str
    ttl_seconds: float
    registered: float
    revoked: bool = False


class LeaseStore(Protocol):
    """Stores leases. What has been awaited is durable."""

    async def load(self) -> list[StoredLease]:
        """Return all leases, oldest first. Raises Refusal."""

    async def put(self, lease: StoredLease, *, instead: str = "") -> None:
        """Store a lease. instead: id of a lease to delete. Raises Refusal."""

    async def delete(self, lease_id: str) -> None:
        """Delete a lease. Raises Refusal."""

    async def close(self) -> None:
        """Close the file."""


class NoLeaseStore:
    """Stores nothing: after a restart plugins register again, when their next renewal says EXPIRED."""

    async def load(self) -> list[StoredLease]:
        """See LeaseStore."""
        return []

    async def put(self, lease: StoredLease, *, instead: str = "") -> None:
        """See LeaseStore."""

    async def delete(self, lease_id: str) -> None:
        """See LeaseStore."""

    async def close(self) -> None:
        """See LeaseStore."""


_Statement = tuple[str, Sequence[object]]


class SqliteLeaseStore:
    """A SQLite file, written by its own thread.

    All changes requested during a commit go into the next one, because a commit waits 5 ms for the disk,
    whether it holds one row or 500.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE_NAME
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="evald-remotes-store")
        self._connection: sqlite3.Connection | None = None
        self._pending: list[tuple[list[_Statement], asyncio.Future[None]]] = []
        self._writing: asyncio.Task[None] | None = None

    async def load(self) -> list[StoredLease]:
        """See LeaseStore."""
        return await self._run(self._load)

    async def put(self, lease: StoredLease, *, instead: str = "") -> None:
        """See LeaseStore."""
        row = lease
        statements: list[_Statement] = [
            (
                _PUT,
                (
                    row.lease_id,
                    row.instance_id,
                    row.plugin,
                    row.target,
                    row.tls_profile,
                    row.ttl_seconds,
                    row.registered,
                    int(row.revoked),
                ),
            )
        ]
        if instead:
            statements.insert(0, (_DELETE, (instead,)))
        await self._write(statements)

    async def delete(self, lease_id: str) -> None:
        """See LeaseStore."""
        await self._write([(_DELETE, (lease_id,))])

    async def close(self) -> None:
        """Finish pending commits and close the file."""
        if self._writing is not None:
            await asyncio.wait([self._writing])
        connection, self._connection = self._connection, None
        if connection is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, connection.close)
        self._thread.shutdown()

    async def _write(self, statements: list[_Statement]) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pending.append((statements, done))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._commit_all())
        await done

    async def _commit_all(self) -> None:
        while self._pending:
            batch, self._pending = self._pending, []
            statements = [statement for group, _ in batch for statement in group]
            problem: Refusal | None = None
            try:
                await self._run(partial(self._commit, statements))
            except Refusal as refusal:
                problem = refusal
            for _, done in batch:
                if done.done():
                    continue
                if problem is None:
                    done.set_result(None)
                else:
                    done.set_exception(problem)

    async def _run(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except sqlite3.Error as problem:
            _log.error("registrations in %s: %s", self._path, problem)
            if getattr(problem, "sqlite_errorname", "").startswith("SQLITE_FULL"):
                raise Refusal(
                    "STORAGE_FULL", "the server's disk is full, so nothing can be registered"
                ) from None
            raise Refusal(
                "STORAGE_UNAVAILABLE", "the server cannot write to its data directory now"
            ) from None

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            connection = sqlite3.connect(
                self._path, timeout=1.0, isolation_level=None, check_same_thread=False
            )
            connection.execute("PRAGMA journal_mode = WAL")
            # Acknowledged commits survive a power failure.
            connection.execute("PRAGMA synchronous = FULL")
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version > len(_MIGRATIONS):
                connection.close()
                raise sqlite3.DatabaseError("written by a newer version of evald")
            for number, migration in enumerate(_MIGRATIONS[version:], start=version + 1):
                connection.execute("BEGIN IMMEDIATE")
                connection.execute(migration)
                connection.execute(f"PRAGMA user_version = {number}")
                connection.execute("COMMIT")
            self._connection = connection
        return self._connection

    def _load(self) -> list[StoredLease]:
        found = [StoredLease(*row) for row in self._open().execute(_SELECT).fetchall()]
        return [replace(one, revoked=bool(one.revoked)) for one in found]

    def _commit(self, statements: Sequence[_Statement]) -> None:
        connection = self._open()
        connection.execute("BEGIN IMMEDIATE")
        try:
            for text, values in statements:
                connection.execute(text, values)
            connection.execute("COMMIT")
        except sqlite3.Error:
            connection.rollback()
            raise
