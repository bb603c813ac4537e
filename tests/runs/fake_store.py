"""An in-memory RunStore."""

from collections.abc import Callable, Sequence

from evald.v1.run_service_pb2 import RUN_STATUS_QUEUED, RUN_STATUS_RUNNING, Run, RunStatusChange
from evald_server.store.database import StoreProblem
from evald_server.store.runs import RunEvent, RunEventKind

FULL = StoreProblem("STORAGE_FULL", "the disk is full")


class FakeStore:
    """A store of bytes, like a database. before_write: may raise a database's errors."""

    def __init__(self) -> None:
        self.rows: dict[str, bytes] = {}
        self.log: dict[str, list[RunEvent]] = {}
        self.commits = 0
        self.before_write: Callable[[], None] = lambda: None

    async def create(self, runs: Sequence[Run], request_id: str = "") -> list[Run]:
        """Store runs, each with an event."""
        self._write()
        for run in runs:
            run.last_sequence = 1
            change = RunStatusChange(status=run.status, attempt=run.attempt)
            self.log[run.id] = [RunEvent(1, RunEventKind.STATUS, change.SerializeToString())]
            self.rows[run.id] = run.SerializeToString()
        return list(runs)

    async def save(self, run: Run, events: Sequence[RunEvent] = ()) -> None:
        """Store a row and events."""
        self._write()
        self._append(run, events)

    async def restart(self, run: Run, events: Sequence[RunEvent]) -> None:
        """Replace all events of a run."""
        self._write()
        self.log[run.id] = []
        self._append(run, events)

    async def get(self, run_id: str) -> Run | None:
        """Return the row."""
        data = self.rows.get(run_id)
        return None if data is None else Run.FromString(data)

    async def events(self, run_id: str, after: int = 0, limit: int = 1000) -> list[RunEvent]:
        """Return the events in order."""
        return [event for event in self.log[run_id] if event.sequence > after][:limit]

    async def unfinished(self) -> list[Run]:
        """Return queued and running runs, oldest first."""
        runs = [Run.FromString(data) for data in self.rows.values()]
        return [run for run in runs if run.status in (RUN_STATUS_QUEUED, RUN_STATUS_RUNNING)]

    def _write(self) -> None:
        self.before_write()
        self.commits += 1

    def _append(self, run: Run, events: Sequence[RunEvent]) -> None:
        log = self.log.setdefault(run.id, [])
        stored = log[-1].sequence if log else 0
        for event in events:
            if event.sequence > stored:  # else it is sent again
                log.append(event)
        assert not run.messages
        assert not run.turns
        assert not log or run.last_sequence == log[-1].sequence
        self.rows[run.id] = run.SerializeToString()
