"""The cost of judges of the day by account, kept over restarts."""

import json
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

_log = logging.getLogger("evald.limits")

SPENDING_FILE: Final = "judge-spending.json"
"""Name of the file in the data directory."""

SERVER: Final = ""
"""The account of the whole server. A principal's account has the principal's name."""


UNUSABLE: Final = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    OverflowError,
    RecursionError,
)
"""The exceptions of reading a file that does not contain totals."""


def utc_day() -> str:
    """Return today's date in UTC, as in "2026-01-31"."""
    return datetime.now(UTC).strftime("%Y-%m-%d")


def read_totals(path: Path, day: str) -> dict[str, float]:
    """Return the totals in a file by account; empty if the file is of another day.

    Raises an exception of UNUSABLE for a file that cannot be used.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    if data["day"] != day:
        return {}
    totals = {SERVER: data["usd"], **data.get("principals", {})}
    found = {account: float(total) for account, total in totals.items()}
    if not all(total >= 0 for total in found.values()):
        raise ValueError("a total is negative or not a number")
    return found


class DayTotals:
    """Totals of the current day (UTC) by account.

    path: JSON file that keeps the totals over a restart; None: no file. A separate thread replaces the whole file. A
    crash may lose the last change. today: returns the current day.
    """

    def __init__(
        self,
        path: Path | None = None,
        today: Callable[[], str] = utc_day,
    ) -> None:
        self._path = path
        self._today = today
        self._lock = threading.Lock()
        self._changed = False
        self._warned = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="evald-day-totals")
        self._day = today()
        self._totals = self._load()

    def __contains__(self, account: str) -> bool:
        return account in self._totals

    def __len__(self) -> int:
        return len(self._totals)

    def get(self, account: str) -> float:
        """Return today's total of an account."""
        self._start_new_day()
        return self._totals.get(account, 0.0)

    def add(self, accounts: Sequence[str], amount: float) -> None:
        """Add an amount, which may be negative, to accounts, and schedule a write. Returns at once."""
        self._start_new_day()
        with self._lock:
            for account in accounts:
                self._totals[account] = max(0.0, self._totals.get(account, 0.0) + amount)
            if self._path is None or self._changed:
                return
            self._changed = True
        with suppress(RuntimeError):  # closed, because the server stops
            self._thread.submit(self._write, self._path)

    def close(self) -> None:
        """Finish pending writes. May block until the file is written."""
        self._thread.shutdown()

    def _start_new_day(self) -> None:
        day = self._today()
        if day != self._day:
            with self._lock:
                self._day, self._totals = day, {}

    def _load(self) -> dict[str, float]:
        if self._path is None:
            return {}
        try:
            return read_totals(self._path, self._day)
        except UNUSABLE as problem:
            self._warn(self._path, problem)
            return {}

    def _write(self, path: Path) -> None:
        with self._lock:
            self._changed = False
            day, totals = self._day, dict(self._totals)
        whole = totals.pop(SERVER, 0.0)
        temporary = path.with_suffix(".new")
        try:
            text = json.dumps({"day": day, "usd": whole, "principals": totals})
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(path)
        except OSError as problem:
            self._warn(path, problem)

    def _warn(self, path: Path, problem: Exception) -> None:
        """Log the first problem only."""
        if not self._warned:
            self._warned = True
            _log.warning(
                "cannot use %s, so a restart resets today's totals to 0: %s",
                path.name,
                type(problem).__name__,
            )
