"""Suite cases on the server: recorded conversations, and live ones with an agent."""

import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Final
from uuid import uuid4

from evald.blocks import UnreadableContent
from evald.scope import Scope
from evald.v1 import context_pb2, suite_service_pb2
from evald_server import wire_pb2
from evald_server.connectors.connector import AgentRequest, Connector, ConnectorFailure
from evald_server.engine.contexts import InvalidContext
from evald_server.engine.run import EvaluationRun

from .agent_call import bad_answer, call_agent, check_readable, goes_on
from .invocations import merge_calls
from .loop import EvaluationAdmission
from .recorded import Answers, CaseSetup, RecordedCase, RecordedTrial

# Limit of calls per turn, for an agent that pauses at tool calls.
_MOST_CALLS: Final = 10


@dataclass(frozen=True)
class SuiteSetup(CaseSetup):
    """The data that the cases of a suite run share on the server.

    connector: reaches the agent; None without one. scope: the scope of the RPC. next_slice: waits until the suite run
    may use the event loop again.
    """

    _: KW_ONLY
    connector: Connector | None
    admission: EvaluationAdmission
    scope: Scope
    next_slice: Callable[[], Awaitable[None]]


class CaseRun(RecordedCase):
    """A case on the server. open_trials: number of trials that have not ended, plus one while trials are started."""

    def __init__(self, case: wire_pb2.SuiteCase, setup: SuiteSetup, size: int) -> None:
        super().__init__(case, setup, size)
        self.open_trials = 1
        self._suite = setup

    def trials(self) -> Iterator["TrialRun"]:
        """Yield the trials, which may run concurrently."""
        for result, answers in self._begun():
            yield TrialRun(self._case, self._suite, result, answers)


class TrialRun(RecordedTrial):
    """A trial that may call an agent or wait. Call `play` first, and `play_on` if that returns False."""

    def __init__(
        self,
        case: wire_pb2.SuiteCase,
        setup: SuiteSetup,
        result: suite_service_pb2.TrialResult,
        answers: Answers | None,
    ) -> None:
        super().__init__(case, setup, result, answers)
        self.asks_agent = answers is None
        self._suite = setup
        self._began = time.monotonic()

    async def play_on(self) -> None:
        """Play the trial to its end."""
        try:
            if self._answers is None:
                self._pb.correlation.conversation_id = str(uuid4())
            while not self._ended:
                if self.waiting is not None:
                    await self._wait(self.waiting)
                elif self._answers is not None:
                    self._take(self._answers[self._index])
                    await self._suite.next_slice()
                else:
                    await self._ask(self._suite.connector)
        except Exception as problem:  # noqa: BLE001 - as above
            self._break(problem)

    async def _ask(self, connector: Connector | None) -> None:
        """Call the agent for the next turn, and begin to evaluate it."""
        assert connector is not None
        messages, first = self._pb.messages, len(self._pb.messages)
        self._extend(self._case.turns[self._index].input, f"turns[{self._index}].input")
        answered = len(messages)
        calls: list[context_pb2.Invocation] = []
        while not calls or (connector.pauses and goes_on(messages[-1]) and len(calls) < _MOST_CALLS):
            thread = self._pb.correlation.conversation_id
            request = AgentRequest(
                thread, self._index + 1, messages, {}, f"{thread}-{self._index + 1}-{len(calls) + 1}"
            )
            answer = await call_agent(connector, request, self._setup.engine.contexts)
            try:
                for position, message in enumerate(answer.messages):
                    check_readable(message, f"answer.messages[{position}]")
                self._setup.engine.contexts.extend(self._pb, answer.messages, "", "answer.messages")
            except (InvalidContext, UnreadableContent) as problem:
                raise bad_answer(str(problem)) from None
            calls.append(answer)
        last = merge_calls(calls)
        last.ClearField("messages")
        last.messages.extend(messages[answered:])
        self._pb.run_duration.FromNanoseconds(round(1e9 * (time.monotonic() - self._began)))
        self._evaluate(last, first)

    async def _wait(self, run: EvaluationRun) -> None:
        """Run the pending evaluators of the turn to their end."""
        scope = self._suite.scope._replace(evaluation_id=self._setup.engine.new_id())
        await self._suite.admission.finish(run, scope)
        self.waiting = None
        self._add(run)

    def _break(self, problem: Exception) -> None:
        if isinstance(problem, ConnectorFailure):
            self._result.error.code, self._result.error.message = problem.code, problem.message
            self._end()
        else:
            super()._break(problem)
