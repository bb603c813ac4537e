"""The overhead of a run: 200 runs of 12 turns, 64 at a time, with an agent and a user that take no time."""

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from uuid import uuid4

from evald.threads import Threads
from evald.v1 import connector_service_pb2, context_pb2, run_service_pb2
from evald_server.connectors.connector import AgentRequest, Connector
from evald_server.engine.contexts import Contexts
from evald_server.engine.engine import Engine
from evald_server.engine.planner import Planner
from evald_server.engine.registry import Origin, Registry
from evald_server.evaluators import BUILT_INS
from evald_server.judge.prompt_request import JudgeModel
from evald_server.monitoring import Telemetry
from evald_server.rpc.admission import Admission
from evald_server.runs.runner import Runner, RunRecords
from evald_server.runs.turn_events import has_ended
from evald_server.store.database import Database
from evald_server.store.runs import RunEvent, RunStore

from . import workload
from .lab import Lab
from .load import BrokenRun
from .pairs import Row, at_most

_RUNS: Final = 200
_TURNS: Final = 12


class InstantAgent(Connector):
    """An agent that answers every turn at once with the workload's answer. Also a connector factory, and the judges."""

    def __init__(self) -> None:
        turn = workload.context()
        self._answer = turn.last_invocation
        self._answer.messages.extend(turn.messages[-3:])

    def build(self, pb: connector_service_pb2.Connector) -> "InstantAgent":
        """Return the one agent."""
        return self

    async def invoke(self, request: AgentRequest) -> context_pb2.Invocation:
        """Return the workload's answer."""
        return self._answer

    def get(self, judge: str | None, model: str | None) -> JudgeModel:
        """Raise ValueError, because nothing here calls a model."""
        raise ValueError("no judge")


class MemoryRecords:
    """A store in memory that keeps only the rows."""

    def __init__(self) -> None:
        self._rows: dict[str, run_service_pb2.Run] = {}

    async def save(self, run: run_service_pb2.Run, events: Sequence[RunEvent] = ()) -> None:
        """Keep the row."""
        self._rows[run.id] = run

    async def restart(self, run: run_service_pb2.Run, events: Sequence[RunEvent] = ()) -> None:
        """Keep the row."""
        self._rows[run.id] = run

    async def get(self, run_id: str) -> run_service_pb2.Run | None:
        """Return the row."""
        return self._rows[run_id]

    async def events(self, run_id: str, after: int = 0, limit: int = 1000) -> list[RunEvent]:
        """Return no events, because every run is new."""
        return []

    async def unfinished(self) -> list[run_service_pb2.Run]:
        """Return no runs."""
        return []


class EndCounter:
    """A store wrapper that counts ended runs.

    done: set when all runs have ended. passed: number of runs that passed with all their turns.
    """

    def __init__(self, store: RunRecords) -> None:
        self.done = asyncio.Event()
        self.passed = 0
        self.restart, self.get, self.events, self.unfinished = (
            store.restart,
            store.get,
            store.events,
            store.unfinished,
        )
        self._store = store
        self._left = _RUNS

    async def save(self, run: run_service_pb2.Run, events: Sequence[RunEvent] = ()) -> None:
        """Store the run, and count it if it has ended."""
        await self._store.save(run, events)
        if has_ended(run):
            self.passed += run.result.success and run.turn_count == _TURNS
            self._left -= 1
            if not self._left:
                self.done.set()


def runs(lab: Lab) -> list[Row]:
    """Measure the overhead of a turn, without a store and with one on disk."""
    rows = []
    for figure, limit, play in (
        (
            "overhead of a turn of a run with five evaluators, without a store, ms of a processor",
            1,
            _unstored,
        ),
        ("the same with all of it stored in SQLite, ms", 3, _stored),
    ):
        asyncio.run(play())
        values = [asyncio.run(play()) for _ in range(lab.rounds)]
        rows.append(Row(figure, at_most(limit), values, f"{_RUNS} runs of {_TURNS} turns, 64 at a time"))
    return rows


async def _unstored() -> float:
    """Return the processor milliseconds per turn; nothing waits."""
    store, queued = MemoryRecords(), _queued()
    for run in queued:
        await store.save(run)
    return await _play(store, queued, time.process_time)


async def _stored() -> float:
    """Return the milliseconds per turn."""
    with TemporaryDirectory() as folder:
        database = Database(Path(folder) / "evald.sqlite3")
        await database.start()
        try:
            store, queued = RunStore(database), _queued()
            await store.create(queued)
            return await _play(store, queued, time.perf_counter)
        finally:
            await database.close()


async def _play(
    store: RunRecords, queued: Sequence[run_service_pb2.Run], clock: Callable[[], float]
) -> float:
    """Play all runs. Return milliseconds per turn on the given clock."""
    registry = Registry()
    for evaluator in BUILT_INS.values():
        registry.register(evaluator.definition(), Origin.BUILT_IN)
    agent, counted = InstantAgent(), EndCounter(store)
    engine = Engine(Planner(registry), Contexts(10_000), Threads())
    runner = Runner(counted, agent, agent, engine, Admission(256, 256, 1.0), Telemetry())
    began = clock()
    runner.submit(queued)
    await counted.done.wait()
    elapsed = clock() - began
    if counted.passed != _RUNS:
        raise BrokenRun(f"{counted.passed} of {_RUNS} runs passed in {_TURNS} turns")
    await runner.drain(5)
    return 1000 * elapsed / (_RUNS * _TURNS)


def _queued() -> list[run_service_pb2.Run]:
    return [_run() for _ in range(_RUNS)]


def _run() -> run_service_pb2.Run:
    run = run_service_pb2.Run(id=str(uuid4()), attempt=1, status=run_service_pb2.RUN_STATUS_QUEUED)
    run.scenario.name = "Move a trip"
    run.scenario.max_messages = 100
    run.scenario.evaluators.extend(workload.specs())
    run.persona.name = "Mia"
    run.persona.script.extend(f"Question {number}: please move my trip by a day." for number in range(_TURNS))
    return run
