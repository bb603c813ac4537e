"""Cache of judges' answers, in memory or in a SQLite file."""

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
from typing import Any, Final, NamedTuple, TypeAlias

_log = logging.getLogger("evald.judge")

# Overhead of a row besides its answer: key, size, time, and their entries in two indexes.
_ROW_BYTES: Final = 128

# Measured overhead of the Python objects around an answer in memory.
_ENTRY_BYTES: Final = 400

# An eviction frees a tenth of the cache, because each eviction scans the index.
_KEEP: Final = 0.9

# The data directory is locked, so no second server writes to the file. A backup or a shell may still lock it.
_LOCK_SECONDS: Final = 0.25

# Seconds without use of the file after an error.
_RETRY_SECONDS: Final = 60.0

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS answers (
  key BLOB PRIMARY KEY,
  answer TEXT NOT NULL,
  bytes INTEGER NOT NULL,
  used REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS answers_by_use ON answers (used);
"""


class CachedAnswer(NamedTuple):
    """An answer. data: its JSON object, None for plain text. model: the name that the endpoint reported."""

    text: str
    data: Mapping[str, Any] | None
    model: str


def cache_key(*parts: str) -> bytes:
    """Return the cache key of an answer that depends only on these parts."""
    return hashlib.sha256("\0".join(parts).encode()).digest()


class MemoryCache:
    """A cache in memory. max_bytes: total size of all answers; 0 for no cache."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        # Stored as JSON text, because the parsed object takes four times as much memory.
        self._answers: OrderedDict[bytes, bytes] = OrderedDict()

    async def get(self, key: bytes) -> CachedAnswer | None:
        """Return the cached answer, or None."""
        found = self._answers.get(key)
        if found is None:
            return None
        self._answers.move_to_end(key)
        return _load(found)

    def put(self, key: bytes, answer: CachedAnswer) -> None:
        """Store an answer, and evict the least recently used ones."""
        text = _dump(answer).encode()
        if _ENTRY_BYTES + len(text) > self._max_bytes:
            return
        self._bytes -= self._size(self._answers.pop(key, None))
        self._answers[key] = text
        self._bytes += self._size(text)
        while self._bytes > self._max_bytes:
            self._bytes -= self._size(self._answers.popitem(last=False)[1])

    async def close(self) -> None:
        """Do nothing: there are no pending writes."""

    @staticmethod
    def _size(text: bytes | None) -> int:
        return 0 if text is None else _ENTRY_BYTES + len(text)


class DiskCache:
    """A cache in a SQLite file, read and written by a separate thread.

    max_bytes: total size of all answers; the file is somewhat larger. After an error the file is not used for
    a minute; only the first error is logged.
    """

    def __init__(
        self,
        path: Path,
        max_bytes: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._clock = clock
        self._now = now
        self._db: sqlite3.Connection | None = None
        self._bytes = 0
        self._retry_at = float("-inf")
        self._warned = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="evald-judge-cache")

    async def get(self, key: bytes) -> CachedAnswer | None:
        """Return the cached answer, or None."""
        if self._clock() < self._retry_at:
            return None
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._get, key)
        except RuntimeError:  # the thread pool is closed, because the server stops
            return None

    def put(self, key: bytes, answer: CachedAnswer) -> None:
        """Store an answer, and evict the least recently used ones."""
        if self._clock() >= self._retry_at:
            with suppress(RuntimeError):  # the thread pool is closed, because the server stops
                self._thread.submit(self._put, key, answer)

    async def close(self) -> None:
        """Finish pending writes and close the file."""
        await asyncio.to_thread(self._thread.shutdown)
        if self._db is not None:
            self._db.close()
            self._db = None

    # The methods below run in the thread.

    def _get(self, key: bytes) -> CachedAnswer | None:
        try:
            db = self._open()
            row = db.execute("SELECT answer FROM answers WHERE key = ?", (key,)).fetchone()
            if row is None:
                return None
            found = _load(row[0])
            with db:
                db.execute("UPDATE answers SET used = ? WHERE key = ?", (self._now(), key))
        except (sqlite3.Error, OSError, ValueError, TypeError) as problem:
            self._failed(problem)
            return None
        return found

    def _put(self, key: bytes, answer: CachedAnswer) -> None:
        text = _dump(answer)
        size = _ROW_BYTES + len(text.encode())
        if size > self._max_bytes:
            return
        try:
            db = self._open()
            with db:
                before = db.execute("SELECT bytes FROM answers WHERE key = ?", (key,)).fetchone()
                db.execute(
                    "INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?)", (key, text, size, self._now())
                )
                self._bytes += size - (before[0] if before else 0)
                if self._bytes > self._max_bytes:
                    self._evict(db)
        except (sqlite3.Error, OSError) as problem:
            self._failed(problem)

    def _open(self) -> sqlite3.Connection:
        if self._db is None:
            self._path.touch(mode=0o600)
            db = sqlite3.connect(self._path, timeout=_LOCK_SECONDS, check_same_thread=False)
            try:
                db.execute("PRAGMA journal_mode = WAL")
                # A crash of the machine may lose the last answers, which are then requested again.
                db.execute("PRAGMA synchronous = NORMAL")
                db.executescript(_SCHEMA)
                self._bytes = _total(db)
            except sqlite3.Error:
                db.close()
                raise
            self._db = db
        return self._db

    def _evict(self, db: sqlite3.Connection) -> None:
        # Recomputed, in case rows were deleted by hand.
        self._bytes = _total(db)
        for key, size in db.execute("SELECT key, bytes FROM answers ORDER BY used").fetchall():
            if self._bytes <= self._max_bytes * _KEEP:
                break
            db.execute("DELETE FROM answers WHERE key = ?", (key,))
            self._bytes -= size

    def _failed(self, problem: Exception) -> None:
        self._retry_at = self._clock() + _RETRY_SECONDS
        if self._db is not None:
            self._db.close()
            self._db = None
        if not self._warned:
            self._warned = True
            _log.warning(
                "cannot use the judge's cache %s, so every request goes to the model: %s",
                self._path.name,
                problem,
            )


AnswerCache: TypeAlias = MemoryCache | DiskCache
"""A cache of the most recently used answers. Never raises: a broken cache behaves like an empty one."""


def _total(db: sqlite3.Connection) -> int:
    total: int = db.execute("SELECT coalesce(sum(bytes), 0) FROM answers").fetchone()[0]
    return total


def _load(text: str | bytes) -> CachedAnswer:
    return CachedAnswer(*json.loads(text))


def _dump(answer: CachedAnswer) -> str:
    # ASCII, because a model may write lone surrogates, which UTF-8 cannot encode.
    return json.dumps(answer, separators=(",", ":"))
