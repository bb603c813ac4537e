"""Runs with a scripted agent, user and judge."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias
from uuid import uuid4

from google.protobuf import json_format

from evald.convert.spec import spec_to_pb
from evald.messages import parse_messages_json
from evald.threads import Threads
from evald.v1.context_pb2 import Invocation, Persona, Scenario
from evald.v1.message_pb2 import ChatMessage
from evald.v1.run_service_pb2 import RUN_STATUS_QUEUED, Run
from evald_server.connectors.connector import AgentRequest
from evald_server.engine.combinators import combinators
from evald_server.engine.contexts import Contexts
from evald_server.engine.engine import Engine
from evald_server.engine.planner import Planner
from evald_server.engine.registry import Origin, Registry
from evald_server.evaluators import BUILT_INS
from evald_server.judge.llm_judge import judge_definition
from evald_server.rpc.admission import Admission
from evald_server.runs.loop import LoopParts, RunLoop, RunUser
from evald_server.runs.turn_events import whole_run

from ..engine.scripted import FOREIGN, GAUGE, SCRIPTED, WAITING
from ..judge.scripted import Reply, ScriptedModels
from .fake_store import FakeStore

Answer: TypeAlias = "str | Sequence[Mapping[str, Any]] | Invocation | Exception"
"""What the agent answers: a text, messages in OpenAI's shape, anything, or what is raised."""


# Their schemas take a tenth of a second.
_BUILT_INS = [evaluator.definition() for evaluator in BUILT_INS.values()]


def messages(data: Any) -> list[ChatMessage]:
    """Return messages from OpenAI's shape."""
    into = Invocation()
    parse_messages_json(json.dumps(data), into.messages, max_messages=10_000, path="messages")
    return list(into.messages)


def invocation(answer: Answer, milliseconds: int = 5) -> Invocation:
    """Return an answer as an invocation."""
    if isinstance(answer, Invocation):
        return answer
    assert not isinstance(answer, Exception)
    made = Invocation()
    if isinstance(answer, str):
        made.messages.add(role="assistant", text=answer)
    else:
        made.messages.extend(messages(answer))
    made.latency.FromMilliseconds(milliseconds)
    return made


class ScriptedAgent:
    """A connector with a list of answers, of which the last is repeated. pauses: see Connector."""

    brings_user = False
    opening = ()

    def __init__(self, *answers: Answer, pauses: bool = False) -> None:
        self.pauses = pauses
        self.answers = answers or ("an answer",)
        self.requests: list[AgentRequest] = []
        self.closed = False

    async def invoke(self, request: AgentRequest) -> Invocation:
        """Return the next answer."""
        answer = self.answers[min(len(self.requests), len(self.answers) - 1)]
        self.requests.append(request)
        if isinstance(answer, Exception):
            raise answer
        return invocation(answer)

    def user_message(self, messages: Sequence[ChatMessage]) -> ChatMessage | None:
        """Return None."""
        return None

    async def aclose(self) -> None:
        """Record the call."""
        self.closed = True


class Talker:
    """A user with many lines, who may fail at one of them, counted from 0. lines: their number."""

    def __init__(
        self,
        lines: int = 1000,
        *,
        immediate: bool = True,
        problem: Exception | None = None,
        fails_at: int = 0,
    ) -> None:
        self.immediate = immediate
        self.said = 0
        self._lines = lines
        self._problem = problem
        self._fails_at = fails_at

    def is_done(self, messages: Sequence[ChatMessage]) -> bool:
        """Return whether all lines are said."""
        return self._spoken(messages) >= self._lines

    async def speak(self, messages: Sequence[ChatMessage]) -> ChatMessage | None:
        """Return the next line."""
        if self.is_done(messages):
            return None
        if self._problem is not None and self._spoken(messages) == self._fails_at:
            raise self._problem
        self.said += 1
        return ChatMessage(role="user", text=f"question {self._spoken(messages) + 1}")

    def _spoken(self, messages: Sequence[ChatMessage]) -> int:
        return sum(message.role == "user" and message.text.startswith("question") for message in messages)


def engine(*judge: Reply, definitions: Sequence[Any] = (), **planner: Any) -> Engine:
    """Return an engine like a server's. judge: the judge's answers."""
    registry, threads = Registry(), Threads()
    models = ScriptedModels(*judge or ({},))
    for definition in (*_BUILT_INS, *combinators(threads), judge_definition(models), SCRIPTED, GAUGE):
        registry.register(definition, Origin.BUILT_IN)
    for definition in (FOREIGN, WAITING, *definitions):
        registry.register(definition, Origin.PLUGIN)
    made = Engine(Planner(registry, **planner), Contexts(10_000), threads)
    made.models, made.registry = models, registry  # type: ignore[attr-defined]
    return made


def scenario(
    evaluators: Sequence[Mapping[str, Any]] = (), seeds: Sequence[Mapping[str, Any]] = (), **fields: Any
) -> Scenario:
    """Return a scenario; fields in camel case or snake case."""
    made = Scenario(name="booking")
    json_format.ParseDict(fields, made)
    made.evaluators.extend(spec_to_pb(spec) for spec in evaluators)
    made.messages.extend(messages(seeds) if seeds else ())
    return made


def queued(scenario: Scenario, persona: Persona | None = None, **fields: Any) -> Run:
    """Return a queued run, like StartRun."""
    run = Run(id=str(uuid4()), thread_id=str(uuid4()), attempt=1, status=RUN_STATUS_QUEUED, **fields)
    run.scenario.CopyFrom(scenario)
    if persona is not None:
        run.persona.CopyFrom(persona)
    run.create_time.GetCurrentTime()
    return run


def parts(engine: Engine, on_turn: Callable[[Any], None] = lambda _run: None) -> LoopParts:
    """Return the parts of a loop, with the server's admission."""
    return LoopParts(engine, Admission(256, 256, 1.0), on_turn)


async def play(
    scenario: Scenario,
    agent: Any = None,
    user: RunUser | None = None,
    *judge: Reply,
    store: FakeStore | None = None,
    **more: Any,
) -> Run:
    """Play a scenario to its end. Returns the run with messages and turns."""
    store = store or FakeStore()
    run = queued(scenario, more.pop("persona", None))
    await store.create([run])
    return await go_on(
        store, run.id, agent or ScriptedAgent(), user or Talker(), parts(engine(*judge, **more))
    )


async def go_on(store: FakeStore, run_id: str, agent: Any, user: RunUser, shared: LoopParts) -> Run:
    """Play a stored run to its end."""
    run = await store.get(run_id)
    assert run is not None
    events = await store.events(run_id)
    await RunLoop(run, events, shared, connector=agent, user=user, save=store.save).drive()
    return await whole(store, run_id)


async def whole(store: FakeStore, run_id: str) -> Run:
    """Return a run like GetRun."""
    run = await store.get(run_id)
    assert run is not None
    return whole_run(run, await store.events(run_id))
