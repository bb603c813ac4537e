"""What a day has cost, on disk, so that a restart does not begin the day anew."""

import json
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Lock

_log = logging.getLogger("evald.judge")


class FileLedger:
    """A JSON file that is replaced as a whole, by a thread of its own. A crash may lose the last request's cost."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = Lock()
        self._latest: tuple[str, float] | None = None
        self._told = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="evald-judge-ledger")

    def spent(self, day: str) -> float:
        """US dollars spent on that day; 0 when the file knows nothing of it, or cannot be read."""
        try:
            data = json.loads(self._path.read_text(encoding="utf-8"))
            return max(0.0, float(data["usd"])) if data["day"] == day else 0.0
        except FileNotFoundError:
            return 0.0
        except (OSError, ValueError, KeyError, TypeError) as problem:
            self._tell(problem)
            return 0.0

    def note(self, day: str, usd: float) -> None:
        """Keep what the day has cost so far. Returns at once."""
        with self._lock:
            waiting = self._latest is not None
            self._latest = (day, usd)
        if not waiting:
            with suppress(RuntimeError):  # closed, because the server stops
                self._thread.submit(self._write)

    def close(self) -> None:
        """Write what is still to be written."""
        self._thread.shutdown()

    def _write(self) -> None:
        with self._lock:
            latest, self._latest = self._latest, None
        if latest is None:
            return
        day, usd = latest
        beside = self._path.with_suffix(".new")
        try:
            beside.write_text(json.dumps({"day": day, "usd": usd}), encoding="utf-8")
            beside.replace(self._path)
        except OSError as problem:
            self._tell(problem)

    def _tell(self, problem: Exception) -> None:
        if not self._told:
            self._told = True
            _log.warning(
                "what the judges have cost today cannot be kept in %s, so that a restart begins the day anew: %s",
                self._path.name,
                type(problem).__name__,
            )
