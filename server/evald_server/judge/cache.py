"""Answers that need not be bought again."""

import asyncio
import hashlib
import json
import logging
import sqlite3
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

_log = logging.getLogger("evald.judge")

# What a row takes beside its answer: key, size, time, and their place in two indexes.
_ROW_BYTES: Final = 128

# What the Python objects around an answer in memory take, measured.
_ENTRY_BYTES: Final = 400

# Evicting is done a tenth at a time, because each time costs a scan of the index.
_KEEP: Final = 0.9

# Another process may hold the lock for as long as it writes a few rows.
_LOCK_SECONDS: Final = 0.25

# After a fault the file is left alone for so long.
_REST_SECONDS: Final = 60.0

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS answers (
  key BLOB PRIMARY KEY,
  answer TEXT NOT NULL,
  bytes INTEGER NOT NULL,
  used REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS answers_by_use ON answers (used);
"""


class Kept(NamedTuple):
    """An answer. data: its JSON object, None for plain text. model: as the endpoint named it."""

    text: str
    data: Mapping[str, Any] | None
    model: str


def digest(*parts: str) -> bytes:
    """The key of an answer, out of everything that it depends on."""
    return hashlib.sha256("\0".join(parts).encode()).digest()


class Cache(Protocol):
    """Keeps answers. Never raises: a cache that is broken is empty."""

    async def get(self, key: bytes) -> Kept | None:
        """The answer, if it is there."""

    def put(self, key: bytes, answer: Kept) -> None:
        """Keep an answer. Returns at once."""

    async def close(self) -> None:
        """Finish what is under way."""


class NoCache:
    """Keeps nothing."""

    async def get(self, key: bytes) -> Kept | None:
        """Nothing is there."""
        return None

    def put(self, key: bytes, answer: Kept) -> None:
        """Forget it."""

    async def close(self) -> None:
        """Nothing is under way."""


class MemoryCache:
    """In memory, for servers without a data directory. most_bytes: of all answers together."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._bytes = 0
        # As text: an answer's JSON object takes four times as much.
        self._answers: OrderedDict[bytes, bytes] = OrderedDict()

    async def get(self, key: bytes) -> Kept | None:
        """The answer, if it is there."""
        found = self._answers.get(key)
        if found is None:
            return None
        self._answers.move_to_end(key)
        return _read(found)

    def put(self, key: bytes, answer: Kept) -> None:
        """Keep an answer; the ones that were not used for longest make room."""
        written = _written(answer).encode()
        if _ENTRY_BYTES + len(written) > self._most:
            return
        before = self._answers.pop(key, None)
        if before is not None:
            self._bytes -= _ENTRY_BYTES + len(before)
        self._answers[key] = written
        self._bytes += _ENTRY_BYTES + len(written)
        while self._bytes > self._most:
            _, oldest = self._answers.popitem(last=False)
            self._bytes -= _ENTRY_BYTES + len(oldest)

    async def close(self) -> None:
        """Nothing is under way."""


class DiskCache:
    """In a SQLite file that several servers may share. A thread of its own does all reading and writing.

    most_bytes: of all answers together; the file is somewhat larger. When the file cannot be read or written,
    there is no cache for a minute, and one line in the log.
    """

    def __init__(
        self,
        path: Path,
        most_bytes: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._most = most_bytes
        self._clock = clock
        self._now = now
        self._db: sqlite3.Connection | None = None
        self._bytes = 0
        self._resume = float("-inf")
        self._told = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="evald-judge-cache")

    async def get(self, key: bytes) -> Kept | None:
        """The answer, if it is there."""
        if self._clock() < self._resume:
            return None
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._get, key)
        except RuntimeError:  # closed, because the server stops
            return None

    def put(self, key: bytes, answer: Kept) -> None:
        """Keep an answer; the ones that were not used for longest make room."""
        if self._clock() >= self._resume:
            with suppress(RuntimeError):  # closed, because the server stops
                self._thread.submit(self._put, key, answer)

    async def close(self) -> None:
        """Write what is under way, and close the file."""
        await asyncio.to_thread(self._thread.shutdown)
        if self._db is not None:
            self._db.close()
            self._db = None

    # Everything below runs in the thread.

    def _get(self, key: bytes) -> Kept | None:
        try:
            db = self._open()
            row = db.execute("SELECT answer FROM answers WHERE key = ?", (key,)).fetchone()
            if row is None:
                return None
            found = _read(row[0])
            with db:
                db.execute("UPDATE answers SET used = ? WHERE key = ?", (self._now(), key))
        except (sqlite3.Error, OSError, ValueError, TypeError) as problem:
            self._rest(problem)
            return None
        return found

    def _put(self, key: bytes, answer: Kept) -> None:
        text = _written(answer)
        size = _ROW_BYTES + len(text.encode())
        if size > self._most:
            return
        try:
            db = self._open()
            with db:
                before = db.execute("SELECT bytes FROM answers WHERE key = ?", (key,)).fetchone()
                db.execute(
                    "INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?)", (key, text, size, self._now())
                )
                self._bytes += size - (before[0] if before else 0)
                if self._bytes > self._most:
                    self._evict(db)
        except (sqlite3.Error, OSError) as problem:
            self._rest(problem)

    def _open(self) -> sqlite3.Connection:
        if self._db is None:
            self._path.touch(mode=0o600)
            db = sqlite3.connect(self._path, timeout=_LOCK_SECONDS, check_same_thread=False)
            try:
                db.execute("PRAGMA journal_mode = WAL")
                # A crash of the machine may lose the last answers, which can be bought again.
                db.execute("PRAGMA synchronous = NORMAL")
                db.executescript(_SCHEMA)
                self._bytes = _total(db)
            except sqlite3.Error:
                db.close()
                raise
            self._db = db
        return self._db

    def _evict(self, db: sqlite3.Connection) -> None:
        # Counted anew, because other servers write to the file as well.
        total = _total(db)
        for key, size in db.execute("SELECT key, bytes FROM answers ORDER BY used").fetchall():
            if total <= self._most * _KEEP:
                break
            db.execute("DELETE FROM answers WHERE key = ?", (key,))
            total -= size
        self._bytes = total

    def _rest(self, problem: Exception) -> None:
        self._resume = self._clock() + _REST_SECONDS
        if self._db is not None:
            self._db.close()
            self._db = None
        if not self._told:
            self._told = True
            _log.warning(
                "the judge's cache %s cannot be used, so every answer is asked for anew: %s",
                self._path.name,
                problem,
            )


def _total(db: sqlite3.Connection) -> int:
    total: int = db.execute("SELECT coalesce(sum(bytes), 0) FROM answers").fetchone()[0]
    return total


def _read(written: str | bytes) -> Kept:
    text, data, model = json.loads(written)
    return Kept(text, data, model)


def _written(answer: Kept) -> str:
    return json.dumps(answer, ensure_ascii=False, separators=(",", ":"))
