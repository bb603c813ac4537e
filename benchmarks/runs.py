"""What a run costs besides its agent: 200 runs of 12 turns, 64 at a time, the agent and the user at no cost."""

import asyncio
import time
from collections.abc import Sequence
from typing import Final
from uuid import uuid4

from evald.threads import Threads
from evald.v1 import connector_service_pb2, context_pb2, message_pb2, run_service_pb2
from evald_server.connectors.connector import AgentRequest
from evald_server.engine.contexts import Contexts
from evald_server.engine.engine import Engine
from evald_server.engine.planner import Planner
from evald_server.engine.registry import Origin, Registry
from evald_server.evaluators import BUILT_INS
from evald_server.judge.prompt_request import JudgeModel
from evald_server.monitoring import Telemetry
from evald_server.rpc.admission import Admission
from evald_server.runs.runner import Runner
from evald_server.runs.turn_events import has_ended
from evald_server.store.runs import RunEvent

from . import workload
from .lab import Lab
from .load import BrokenRun
from .pairs import Row, at_most

_RUNS: Final = 200
_TURNS: Final = 12


class InstantAgent:
    """Answers every turn as the workload's agent does, at once. Builds itself."""

    brings_user = False
    opening: Sequence[message_pb2.ChatMessage] = ()

    def __init__(self) -> None:
        turn = workload.context()
        self._answer = turn.last_invocation
        self._answer.messages.extend(turn.messages[-3:])

    def build(self, pb: connector_service_pb2.Connector) -> "InstantAgent":
        """Return the one agent."""
        return self

    async def invoke(self, request: AgentRequest) -> context_pb2.Invocation:
        """Answer."""
        return self._answer

    def user_message(self, messages: Sequence[message_pb2.ChatMessage]) -> message_pb2.ChatMessage | None:
        """Return None: it is no recording."""

    async def aclose(self) -> None:
        """Nothing to close."""

    def get(self, judge: str | None, model: str | None) -> JudgeModel:
        """Refuse: nothing here asks a model."""
        raise ValueError("no judge")


class MemoryRecords:
    """Takes everything at once and keeps the rows alone. done: set when as many as expected have ended."""

    def __init__(self, expected: int) -> None:
        self.rows: dict[str, run_service_pb2.Run] = {}
        self.done = asyncio.Event()
        self.passed = 0
        self._left = expected

    async def save(self, run: run_service_pb2.Run, events: Sequence[RunEvent] = ()) -> None:
        """Keep the row."""
        self.rows[run.id] = run
        if has_ended(run):
            self.passed += run.result.success and run.turn_count == _TURNS
            self._left -= 1
            if not self._left:
                self.done.set()

    async def restart(self, run: run_service_pb2.Run, events: Sequence[RunEvent]) -> None:
        """Keep the row."""
        await self.save(run, events)

    async def get(self, run_id: str) -> run_service_pb2.Run | None:
        """Return the row."""
        return self.rows[run_id]

    async def events(self, run_id: str, after: int = 0, limit: int = 1000) -> list[RunEvent]:
        """Return none: every run is new."""
        return []

    async def unfinished(self) -> list[run_service_pb2.Run]:
        """Return none."""
        return []


def runs(lab: Lab) -> list[Row]:
    """The overhead of a turn, the store's left out."""
    asyncio.run(_play())
    values = [asyncio.run(_play()) for _ in range(lab.rounds)]
    return [
        Row(
            "overhead of a turn of a run with five evaluators, without a store, ms",
            at_most(1),
            values,
            f"{_RUNS} runs of {_TURNS} turns, 64 at a time",
        )
    ]


async def _play() -> float:
    """Return the milliseconds of a processor that a turn takes. Nothing waits, so on a free one it takes no longer."""
    registry = Registry()
    for evaluator in BUILT_INS.values():
        registry.register(evaluator.definition(), Origin.BUILT_IN)
    agent, store = InstantAgent(), MemoryRecords(_RUNS)
    engine = Engine(Planner(registry), Contexts(10_000), Threads())
    runner = Runner(store, agent, agent, engine, Admission(256, 256, 1.0), Telemetry())
    queued = [_run() for _ in range(_RUNS)]
    for run in queued:
        await store.save(run)
    began = time.process_time()
    await runner.submit(queued)
    await store.done.wait()
    elapsed = time.process_time() - began
    if store.passed != _RUNS:
        raise BrokenRun(f"{store.passed} of {_RUNS} runs passed in {_TURNS} turns")
    return 1000 * elapsed / (_RUNS * _TURNS)


def _run() -> run_service_pb2.Run:
    run = run_service_pb2.Run(id=str(uuid4()), attempt=1, status=run_service_pb2.RUN_STATUS_QUEUED)
    run.scenario.name = "Move a trip"
    run.scenario.max_messages = 100
    run.scenario.evaluators.extend(workload.specs())
    run.persona.name = "Mia"
    run.persona.script.extend(f"Question {number}: please move my trip by a day." for number in range(_TURNS))
    return run
