"""The runner: plays many runs at once from a fair queue, and cancels, retries and resumes them."""

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextvars import Context, copy_context
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeVar
from weakref import WeakValueDictionary

from evald.result import Verdict
from evald.v1 import connector_service_pb2, result_pb2, run_service_pb2
from evald_server.auth.current_call import PRINCIPAL, caller
from evald_server.auth.principal import LOCAL, Principal
from evald_server.connectors.connector import Connector, ConnectorFailure, YieldToCalls, yield_to_calls
from evald_server.engine.engine import Engine
from evald_server.engine.run import EvaluationRun
from evald_server.fair_slots import FairSlots
from evald_server.judge.prompt_request import JudgeModels
from evald_server.logs import log_incident
from evald_server.monitoring import Telemetry
from evald_server.store.database import StoreProblem
from evald_server.store.retries import with_retries
from evald_server.store.runs import RunEvent, RunNotFound, run_seconds

from .loop import EvaluationAdmission, LoopParts, RunLoop, TypesMissing
from .simulator import run_user
from .turn_events import all_events, end_event, has_ended, status_event

_log = logging.getLogger("evald.runs")

T = TypeVar("T")

_QUEUED, _RUNNING = run_service_pb2.RUN_STATUS_QUEUED, run_service_pb2.RUN_STATUS_RUNNING
_ERROR, _INTERRUPTED = run_service_pb2.RUN_STATUS_ERROR, run_service_pb2.RUN_STATUS_INTERRUPTED
_CANCELLED = run_service_pb2.RUN_STATUS_CANCELLED

# Pause before the next attempt, when the store is unavailable or evaluators are missing.
_AWAY_SECONDS: Final = 1.0

# After a start, workers reconnect: they try at least every 30 s.
_RETURN_SECONDS: Final = 45.0

# Seconds of the grace period that are reserved for storing which runs were interrupted.
_RESERVE: Final = 0.5


# Fields that playing a run sets, besides its status.
_OF_ONE_ATTEMPT: Final = (
    "verdict",
    "result",
    "error",
    "output",
    "turn_count",
    "token_usage",
    "cost",
    "start_time",
    "complete_time",
)


class RunStateProblem(Exception):
    """The run's status does not allow the operation. The message says why."""


class RunRecords(Protocol):
    """The store of runs. All methods raise StoreProblem."""

    async def save(self, run: run_service_pb2.Run, events: Sequence[RunEvent] = ()) -> None:
        """Store a row and new events in one commit. Events that are already stored are ignored."""

    async def restart(self, run: run_service_pb2.Run, events: Sequence[RunEvent] = ()) -> None:
        """Delete all events of the run, then do the same as `save`."""

    async def get(self, run_id: str) -> run_service_pb2.Run | None:
        """Return a row, without messages and turns."""

    async def events(self, run_id: str, after: int = 0, limit: int = 1000) -> list[RunEvent]:
        """Return events in order."""

    async def unfinished(self) -> list[run_service_pb2.Run]:
        """Return the queued and running runs, oldest first."""


class ConnectorFactory(Protocol):
    """A factory of connectors."""

    def build(self, pb: connector_service_pb2.Connector) -> Connector:
        """Build a connector. Raises ConnectorFailure."""


class QueuedRun(NamedTuple):
    """A queued run. principal: the one that started it. context: the contextvars context in which it was queued.

    The run is played in this context. So its judge calls are charged to the principal that started it, not to the one
    whose run ended before.
    """

    run_id: str
    principal: str
    context: Context


class FairQueue:
    """A queue of runs. Principals take turns, and so do the groups of a principal's runs; groups are FIFO."""

    def __init__(self) -> None:
        # By principal and group, those whose turn is next first.
        self._runs: OrderedDict[str, OrderedDict[str, OrderedDict[str, QueuedRun]]] = OrderedDict()
        self._places: dict[str, tuple[str, str]] = {}  # principal and group by run

    def __len__(self) -> int:
        return len(self._places)

    def put(self, group: str, run_id: str) -> None:
        """Add a run of the current caller with the current context, unless it is already queued."""
        if run_id in self._places:
            return
        principal = caller().name
        self._places[run_id] = principal, group
        groups = self._runs.setdefault(principal, OrderedDict())
        groups.setdefault(group, OrderedDict())[run_id] = QueuedRun(run_id, principal, copy_context())

    def take(self, enter: Callable[[str], bool]) -> QueuedRun | None:
        """Remove and return the next run; None when none may start.

        enter: takes a slot for a run of a principal; returns whether that was possible.
        """
        principal = next(filter(enter, self._runs), None)
        if principal is None:
            return None
        group, runs = next(iter(self._runs[principal].items()))
        run = next(iter(runs.values()))
        self.remove(run.run_id)
        if principal in self._runs:
            self._runs.move_to_end(principal)
            if group in self._runs[principal]:
                self._runs[principal].move_to_end(group)
        return run

    def remove(self, run_id: str) -> None:
        """Remove a run, if it is queued."""
        if run_id not in self._places:
            return
        principal, group = self._places.pop(run_id)
        groups = self._runs[principal]
        del groups[group][run_id]
        if not groups[group]:
            del groups[group]
        if not groups:
            del self._runs[principal]


class _Draining(Exception):
    """The server is stopping, and everything of the run so far is stored."""


class Runner:
    """The runner of a server's stored runs. Call `start` first, then `begin`, and `drain` last.

    max_runs: how many runs play at a time; principals share them as in FairSlots. store_seconds: how long a run waits
    for an unavailable store before it is interrupted. yield_to_calls: see LoopParts.
    """

    def __init__(
        self,
        store: RunRecords,
        connectors: ConnectorFactory,
        models: JudgeModels,
        engine: Engine,
        admission: EvaluationAdmission,
        telemetry: Telemetry,
        *,
        max_runs: int = 64,
        store_seconds: float = 60.0,
        yield_to_calls: YieldToCalls = yield_to_calls,
    ) -> None:
        self._store = store
        self._connectors = connectors
        self._models = models
        self._telemetry = telemetry
        self._parts = LoopParts(engine, admission, self._count_turn, yield_to_calls)
        self._slots = FairSlots(max_runs)
        self._store_seconds = store_seconds
        self._queue = FairQueue()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._watchers: dict[str, set[asyncio.Event]] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._requeued: dict[str, run_service_pb2.Run] = {}  # queued again when their tasks end
        self._changes: set[asyncio.Task[Any]] = set()  # asyncio keeps only weak references to tasks
        self._paused = False
        self._wait_for_types_until = 0.0
        self._draining = False
        telemetry.runs.running.set_function(lambda: len(self._tasks))
        telemetry.runs.queued.set_function(lambda: len(self._queue))

    async def start(self, principal: Principal = LOCAL) -> None:
        """Mark running runs as interrupted, because the server stopped during them, and load the queued ones.

        `begin` starts to play them. principal: the one that they are played for. Raises StoreProblem.
        """
        context = copy_context()
        context.run(PRINCIPAL.set, principal)
        self._paused = True
        for run in await self._store.unfinished():
            if run.status == _RUNNING:
                try:
                    await self._interrupt(run, 0)
                except StoreProblem as problem:  # a full disk can still be read
                    _log.warning("run %s: cannot be marked as interrupted yet: %s", run.id, problem.message)
                    self._run_task(run.id, self._settle(run.id), context)
            else:
                context.run(self._put, run)

    def begin(self) -> None:
        """Play the queued runs. Runs with missing evaluators wait for a while: their workers may reconnect."""
        self._paused = False
        self._wait_for_types_until = time.monotonic() + _RETURN_SECONDS
        self._fill()

    async def enqueue(
        self, create: Callable[[], Awaitable[list[run_service_pb2.Run]]]
    ) -> list[run_service_pb2.Run]:
        """Queue the runs that `create` stores, and return them. Raises what `create` raises."""

        async def enqueue() -> list[run_service_pb2.Run]:
            runs = await create()
            self.submit(runs)
            return runs

        return await self._shielded(enqueue())

    def submit(self, runs: Sequence[run_service_pb2.Run]) -> None:
        """Queue stored runs."""
        for run in runs:
            if run.status == _QUEUED:
                self._put(run)
        self._fill()

    async def cancel(self, run_id: str) -> run_service_pb2.Run | None:
        """Cancel a run; None if it does not exist. Raises RunStateProblem when it has ended, and StoreProblem."""
        return await self._shielded(self._change(run_id, self._cancel))

    async def retry(self, run_id: str) -> run_service_pb2.Run | None:
        """Restart a run that ended in error; None if it does not exist. Raises RunStateProblem and StoreProblem."""
        return await self._shielded(self._change(run_id, self._retry))

    async def resume(self, run_id: str) -> run_service_pb2.Run | None:
        """Continue an interrupted run; None if it does not exist. Raises RunStateProblem and StoreProblem."""
        return await self._shielded(self._change(run_id, self._resume))

    async def _shielded(self, change: Coroutine[Any, Any, T]) -> T:
        """Run a change to its end, even if the caller is cancelled: a change must not stay half done."""
        task = asyncio.create_task(change)
        self._changes.add(task)
        task.add_done_callback(self._change_ended)
        return await asyncio.shield(task)

    def _change_ended(self, task: asyncio.Task[Any]) -> None:
        self._changes.discard(task)
        if not task.cancelled():
            task.exception()  # marks it as retrieved; the caller, if still there, gets it too

    async def _change(
        self, run_id: str, change: Callable[[str], Coroutine[Any, Any, run_service_pb2.Run | None]]
    ) -> run_service_pb2.Run | None:
        """Change a run. After a StoreProblem nobody knows what is stored, so a background task settles the run."""
        async with self._lock(run_id):
            try:
                return await change(run_id)
            except StoreProblem:
                if run_id not in self._tasks and not self._draining:
                    self._run_task(run_id, self._settle(run_id), copy_context())
                raise

    async def _cancel(self, run_id: str) -> run_service_pb2.Run | None:
        self._queue.remove(run_id)
        task = self._tasks.get(run_id)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        run = await self._store.get(run_id)
        if run is None:
            return None
        if has_ended(run):
            raise RunStateProblem(f"the run has ended: it is {_name(run)}")
        await self._save(run, [end_event(run, _CANCELLED)], 0)
        return run

    async def _retry(self, run_id: str) -> run_service_pb2.Run | None:
        run = await self._standing(run_id, _ERROR, "only a run that ended in error can be retried")
        if run is None:
            return None
        for name in _OF_ONE_ATTEMPT:
            run.ClearField(name)
        run.attempt += 1
        # A new thread id, so that agents with memory begin a new conversation.
        run.thread_id = f"{run.id}-{run.attempt}"
        await self._store.restart(run, [status_event(run, _QUEUED)])
        self._wake(run_id)
        self.submit([run])
        return run

    async def _resume(self, run_id: str) -> run_service_pb2.Run | None:
        run = await self._standing(run_id, _INTERRUPTED, "only an interrupted run can be resumed")
        if run is None:
            return None
        await self._save(run, [status_event(run, _QUEUED)], 0)
        self.submit([run])
        return run

    @contextlib.contextmanager
    def watch(self, run_id: str) -> Iterator[asyncio.Event]:
        """Yield an event that is set after each write to the run. Clear it first, then read the store."""
        event = asyncio.Event()
        self._watchers.setdefault(run_id, set()).add(event)
        try:
            yield event
        finally:
            watchers = self._watchers[run_id]
            watchers.discard(event)
            if not watchers:
                del self._watchers[run_id]

    async def drain(self, grace_seconds: float) -> None:
        """Interrupt all runs: each after its current step, at the latest when the grace period ends."""
        self._draining = True
        if not self._tasks:
            return
        _done, late = await asyncio.wait(self._tasks.values(), timeout=max(0.0, grace_seconds - _RESERVE))
        if late:
            for task in late:
                task.cancel()
            await asyncio.wait(late, timeout=_RESERVE)

    async def _standing(
        self, run_id: str, status: run_service_pb2.RunStatus, wanted: str
    ) -> run_service_pb2.Run | None:
        """Return a run with this status whose task has ended; None if it does not exist. Raises RunStateProblem."""
        run = await self._store.get(run_id)
        if run is None:
            return None
        if run.status != status:
            raise RunStateProblem(f"{wanted}; this one is {_name(run)}")
        if run_id in self._tasks:  # still closing its connections
            await asyncio.wait([self._tasks[run_id]])
        return run

    def _put(self, run: run_service_pb2.Run) -> None:
        # Runs of one StartRuns call are a group, and so are single runs against the same agent.
        self._queue.put(f"{run.execution_id or run.experiment_id or run.connector_id}", run.id)

    def _fill(self) -> None:
        while not self._paused and not self._draining:
            queued = self._queue.take(self._slots.enter)
            if queued is None:
                return
            run_id, principal, context = queued
            if run_id in self._tasks:
                self._slots.release(principal)
            else:
                self._run_task(run_id, self._execute(run_id), context, principal)

    def _run_task(
        self, run_id: str, work: Coroutine[Any, Any, None], context: Context, principal: str | None = None
    ) -> None:
        """Start a run's task. principal: the one whose slot it holds; None if it holds none."""
        task = asyncio.create_task(work, context=context)
        self._tasks[run_id] = task
        task.add_done_callback(partial(self._ended, run_id, principal), context=context)

    def _ended(self, run_id: str, principal: str | None, _task: asyncio.Task[None]) -> None:
        del self._tasks[run_id]
        if principal is not None:
            self._slots.release(principal)
        run = self._requeued.pop(run_id, None)
        if run is not None:
            self._put(run)
        self._fill()

    async def _settle(self, run_id: str) -> None:
        """Store the status of a run that has no task, once the store is available again."""
        await asyncio.sleep(_AWAY_SECONDS)
        with contextlib.suppress(RunNotFound):  # it was deleted
            await self._interrupt_stored(run_id)

    async def _execute(self, run_id: str) -> None:
        """Play a run. Whatever happens, acknowledged data is stored, and so is the run's status."""
        try:
            try:
                await self._play(run_id)
            except (_Draining, StoreProblem):
                await self._interrupt_stored(run_id)
            except RunNotFound:
                raise  # not a bug
            except asyncio.CancelledError:
                if not self._draining:
                    raise  # `_cancel` stores the new status
                await self._interrupt_stored(run_id)
            except Exception as problem:  # noqa: BLE001 - a fault in one run must not end others
                try:
                    await self._break(run_id, problem)
                except StoreProblem:
                    await self._interrupt_stored(run_id)
        except RunNotFound:
            pass  # it was deleted, or another server has taken it over

    async def _play(self, run_id: str) -> None:
        run = await self._with_retries(partial(self._store.get, run_id))
        if run is None or run.status != _QUEUED:
            return
        try:
            connector = self._connectors.build(run.connector)
        except ConnectorFailure as problem:
            run.error.code, run.error.message = problem.code, problem.message
            run.verdict = result_pb2.VERDICT_ERROR
            await self._save(run, [end_event(run, _ERROR)])
            return
        try:
            persona = run.persona if run.HasField("persona") else None
            user = run_user(run.scenario, persona, connector, self._models)
            events = await all_events(
                lambda after, limit: self._with_retries(partial(self._store.events, run_id, after, limit))
            )
            loop = RunLoop(run, events, self._parts, connector=connector, user=user, save=self._save)
            await loop.drive(
                wait_for_types=time.monotonic() < self._wait_for_types_until and not self._draining
            )
        except TypesMissing:
            await asyncio.sleep(_AWAY_SECONDS)
            self._requeued[run_id] = run
        finally:
            await connector.aclose()

    async def _break(self, run_id: str, problem: Exception) -> None:
        """End a run in error because of a bug in the server or in a connector."""
        incident = log_incident(_log, f"run {run_id} raised an exception", problem)
        run = await self._with_retries(partial(self._store.get, run_id))
        if run is not None and not has_ended(run):
            run.error.code = "INTERNAL"
            run.error.message = f"Internal error {incident.note}"
            run.verdict = result_pb2.VERDICT_ERROR
            await self._save(run, [end_event(run, _ERROR)])

    async def _interrupt_stored(self, run_id: str) -> None:
        """Mark a run as interrupted, or queue it again if it has not begun. Retries until the store accepts it.

        While draining there is only one try.
        """
        while True:
            try:
                run = await self._with_retries(partial(self._store.get, run_id))
                if run is not None and run.status == _RUNNING:
                    await self._interrupt(run)
                elif run is not None and run.status == _QUEUED:
                    self._requeued[run_id] = run
            except StoreProblem:
                if self._draining:
                    _log.error(
                        "run %s: cannot store that it was interrupted; the next start of the server does it",
                        run_id,
                    )
                    return
            else:
                return
            await asyncio.sleep(_AWAY_SECONDS)

    async def _interrupt(self, run: run_service_pb2.Run, seconds: float | None = None) -> None:
        # The run lasted until its last update; the time after that does not count.
        run.complete_time.CopyFrom(run.update_time)
        await self._save(run, [status_event(run, _INTERRUPTED)], seconds)

    async def _save(
        self, run: run_service_pb2.Run, events: Sequence[RunEvent], seconds: float | None = None
    ) -> None:
        """Store a row and events, wake watchers, and count the run in telemetry. seconds: see `_with_retries`.

        Raises StoreProblem, and _Draining when the run must stop here.
        """

        async def save() -> None:
            await self._store.save(run, events)
            # Must be in this function: a task that is cancelled meanwhile does not run the code after it.
            self._wake(run.id)
            if has_ended(run) or run.status == _INTERRUPTED:
                self._count(run)

        await self._with_retries(save, seconds)
        if self._draining and run.status == _RUNNING:
            raise _Draining

    async def _with_retries(
        self, work: Callable[[], Coroutine[Any, Any, T]], seconds: float | None = None
    ) -> T:
        """Call the store with retries. seconds: how long to try, default `store_seconds`. Raises StoreProblem."""
        return await with_retries(
            work, self._store_seconds if seconds is None else seconds, lambda: self._draining
        )

    def _wake(self, run_id: str) -> None:
        for event in self._watchers.get(run_id, ()):
            event.set()

    def _lock(self, run_id: str) -> asyncio.Lock:
        return self._locks.setdefault(run_id, asyncio.Lock())

    def _count(self, run: run_service_pb2.Run) -> None:
        outcome = _name(run)
        self._telemetry.runs.ended(
            Verdict(run.verdict).name.lower() if outcome == "completed" else outcome, run_seconds(run)
        )

    def _count_turn(self, run: EvaluationRun) -> None:
        self._telemetry.runs.turns.add()
        self._telemetry.evaluated(run, "Run", None)


def _name(run: run_service_pb2.Run) -> str:
    """Return a run's status in lower case, such as "completed"."""
    status: Any = run_service_pb2.RunStatus.Name(run.status)
    return str(status).removeprefix("RUN_STATUS_").lower()
