"""The loop of one run: a user talks to an agent, and every turn is evaluated.

Every step is stored before the next one builds on it, so an interrupted run continues from its stored events.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

from google.protobuf.message import Message

from evald.blocks import UnreadableContent
from evald.chat import Conversation
from evald.context import EvaluatorContext
from evald.scope import Scope
from evald.v1 import context_pb2, evaluation_service_pb2, message_pb2, result_pb2, run_service_pb2
from evald_server.connectors.connector import (
    AgentRequest,
    Connector,
    ConnectorFailure,
    YieldToCalls,
    yield_to_calls,
)
from evald_server.engine.contexts import InvalidContext
from evald_server.engine.engine import Engine
from evald_server.engine.plan import InvalidPlan, Plan, check_kinds
from evald_server.engine.response import fill_aggregated
from evald_server.engine.run import EvaluationRun
from evald_server.store.runs import RunEvent, RunEventKind, run_seconds

from .agent_call import call_agent, check_readable, goes_on
from .invocations import add_spending, merge_calls, turn_of
from .rules import COUNTED_ROLES, RunRules, StopCause, TurnFindings
from .turn_events import add_turn, end_event, fill_results, status_event

# Highest numbers of the scenario and persona fields that evaluators may read; only the run uses the others.
_SCENARIO_FIELDS: Final = 6
_PERSONA_FIELDS: Final = 2

Save: TypeAlias = Callable[[run_service_pb2.Run, Sequence[RunEvent]], Awaitable[None]]
"""Stores a run's row and events in one commit. Raises StoreProblem."""


class RunFailure(Exception):
    """A run cannot have a verdict because its scenario, its persona or its agent is broken."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class TypesMissing(Exception):
    """A run cannot continue because evaluator types of its scenario are not offered (yet)."""


class RunUser(Protocol):
    """The speaker for the user of a run."""

    @property
    def immediate(self) -> bool:
        """Whether `speak` takes no time."""

    def is_done(self, messages: Sequence[message_pb2.ChatMessage]) -> bool:
        """Return whether the user has nothing more to say after these messages."""

    async def speak(self, messages: Sequence[message_pb2.ChatMessage]) -> message_pb2.ChatMessage | None:
        """Return the user's next message; None exactly when `is_done`. Raises RunFailure."""


class EvaluationAdmission(Protocol):
    """Admission control for pending evaluators, within the server's limits."""

    async def finish(self, run: EvaluationRun, scope: Scope) -> None:
        """Run the pending evaluators to their end."""

    def seconds_for(self, plan: Plan) -> float | None:
        """Return how many seconds a plan's evaluators may take in total; None for no limit."""


class LoopParts(NamedTuple):
    """The parts that all runs of a server share.

    on_turn: called with the evaluation of every turn. yield_to_calls: awaited before each piece of work of about half a
    millisecond, so that other tasks get the event loop.
    """

    engine: Engine
    admission: EvaluationAdmission
    on_turn: Callable[[EvaluationRun], None] = lambda _run: None
    yield_to_calls: YieldToCalls = yield_to_calls


class RunLoop:
    """The loop of one run. Call `drive` once.

    run: its row, without messages and turns; changed in place. events: its stored events.
    """

    def __init__(
        self,
        run: run_service_pb2.Run,
        events: Sequence[RunEvent],
        parts: LoopParts,
        *,
        connector: Connector,
        user: RunUser,
        save: Save,
    ) -> None:
        self.run = run
        self._engine, self._admission, self._on_turn, self._yield_to_calls = parts
        self._connector = connector
        self._user = user
        self._save = save
        self._unsaved: list[RunEvent] = []
        self._began = time.monotonic() - (run_seconds(run) or 0.0)
        if run.HasField("start_time"):
            # Move the start by the length of the pause, so that the pause never counts as run time.
            run.start_time.FromNanoseconds(time.time_ns() - self._elapsed)
        self._pb = _context(run)
        self._conversation = Conversation(self._pb.messages)
        self._count = 0  # user and assistant messages
        self._timed = 0  # turns with a latency
        self._calls: list[context_pb2.Invocation] = []  # of the turn that is not evaluated yet
        self._turns: list[run_service_pb2.RunTurn] = []  # evaluated before this start
        self._turn = run_service_pb2.RunTurn()  # the last evaluated turn
        self._findings = self._earlier = TurnFindings()  # of the last turn, and of the turns before it
        self._seeds = run.scenario.messages or connector.opening
        self._turn_end = len(self._seeds)
        for event in events:
            self._restore(event)

    async def drive(self, *, wait_for_types: bool = False) -> None:
        """Play the run to its end. Raises StoreProblem. Any fault of its parts ends the run in error.

        wait_for_types: raise TypesMissing and leave the run unchanged, because missing evaluators may still register.
        """
        try:
            plan = await self._make_plan()
            if wait_for_types and not self._engine.planner.is_offered(plan):
                raise TypesMissing("no instance offers a remote evaluator of the scenario")
            self._make_rules(plan)
            await self._begin()
            await self._converse()
        except TypesMissing as problem:
            if wait_for_types:
                raise
            if not self.run.HasField("start_time"):
                await self.fail("INVALID_SCENARIO", str(problem))
                return
            await self._interrupt("INVALID_SCENARIO", str(problem))
        except (RunFailure, ConnectorFailure) as problem:
            await self.fail(problem.code, problem.message)

    async def fail(self, code: str, message: str) -> None:
        """End the run without a verdict. Raises StoreProblem."""
        self.run.error.code, self.run.error.message = code, message
        await self._finish(run_service_pb2.RUN_STATUS_ERROR, result_pb2.VERDICT_ERROR)

    async def _interrupt(self, code: str, message: str) -> None:
        """Interrupt the run, which may be resumed. An error could only be retried from the start, and the conversation
        would be lost. Raises StoreProblem."""
        self.run.error.code, self.run.error.message = code, message
        self._unsaved.append(status_event(self.run, run_service_pb2.RUN_STATUS_INTERRUPTED, self._now))
        await self._commit()

    def _restore(self, event: RunEvent) -> None:
        if event.kind is RunEventKind.MESSAGE:
            said = run_service_pb2.RunMessage.FromString(event.body)
            self._pb.messages.append(said.message)
            self._count += said.message.role in COUNTED_ROLES
            if said.HasField("invocation"):
                self._calls.append(said.invocation)
        elif event.kind is RunEventKind.TURN:
            self._turns.append(run_service_pb2.RunTurn.FromString(event.body))
            self._calls = []

    async def _make_plan(self) -> Plan:
        try:
            return await scenario_plan(self._engine, self.run.scenario)
        except (InvalidPlan, InvalidContext) as problem:
            text = f"The scenario cannot be evaluated: {problem}"
            if isinstance(problem, InvalidPlan) and problem.unknown_type:
                raise TypesMissing(text) from None
            raise RunFailure("INVALID_SCENARIO", text) from None

    def _make_rules(self, plan: Plan) -> None:
        self._plan = plan
        self._rules = RunRules(self.run.scenario, plan)
        self._waiting = [planned.index for planned in plan.evaluators if planned.awaits_final]
        for turn in self._turns:
            self._remember(turn, self._rules.findings(turn.evaluation.results))

    async def _begin(self) -> None:
        run = self.run
        run.ClearField("complete_time")
        run.ClearField("error")
        is_new = not run.HasField("start_time")
        if is_new:
            run.start_time.FromNanoseconds(time.time_ns() - self._elapsed)
        self._unsaved.append(status_event(run, run_service_pb2.RUN_STATUS_RUNNING, self._now))
        if is_new:
            self._add_messages(self._seeds, "INVALID_SCENARIO")
            self._check_room()
        await self._commit()

    def _check_room(self) -> None:
        if self._awaits_user and self._user.is_done(self._pb.messages):
            raise RunFailure(
                "INVALID_SCENARIO",
                "There is no user message to send to the agent: scenario.messages does not end "
                "with one, and the persona's script or the recording has none left",
            )
        needed = self._count + 1 + self._awaits_user
        if needed > self._rules.max_messages:
            raise RunFailure(
                "INVALID_SCENARIO",
                f"scenario.max_messages: got {self._rules.max_messages}, wanted at least {needed}, to leave room "
                "for an answer",
            )

    async def _converse(self) -> None:
        while True:
            if self._awaits_user and not await self._say():
                break
            # Also true when an earlier start stored the user's last message.
            if not self._calls and self._count >= self._rules.max_messages:
                break
            while not self._has_answered:
                await self._yield_to_calls()
                await self._call_agent()
            await self._yield_to_calls()
            if await self._evaluate():
                return
        await self._end(self._end_cause or StopCause.USER_DONE)

    @property
    def _elapsed(self) -> int:
        """The run time in nanoseconds, without pauses."""
        return round(1e9 * (time.monotonic() - self._began))

    @property
    def _now(self) -> int:
        """The time in nanoseconds since 1970. Clock changes after the start of the run have no effect."""
        run = self.run
        return (
            run.start_time.ToNanoseconds() + self._elapsed if run.HasField("start_time") else time.time_ns()
        )

    @property
    def _awaits_user(self) -> bool:
        """Whether it is the user's turn to speak."""
        if self._calls or len(self._pb.messages) > self._turn_end:
            return False
        if self.run.turn_count:
            return True
        roles = [message.role for message in self._pb.messages if message.role != "system"]
        return not roles or roles[-1] == "assistant"

    @property
    def _has_answered(self) -> bool:
        """Whether the agent's answer is complete: one that pauses continues after a mere tool call, or its result."""
        if not self._calls or not self._connector.pauses:
            return bool(self._calls)
        most = self._rules.max_messages
        if self._count >= most or len(self._calls) >= most:
            return True
        return not goes_on(self._pb.messages[-1])

    @property
    def _end_cause(self) -> StopCause | None:
        """The cause that ends the conversation after this turn in any case; None if it can continue."""
        if self._count + 1 >= self._rules.max_messages:
            return StopCause.LIMIT
        return StopCause.USER_DONE if self._user.is_done(self._pb.messages) else None

    async def _say(self) -> bool:
        """Add the user's next message. Returns False when the user has nothing more to say."""
        message = await self._user.speak(self._pb.messages)
        if message is None:
            return False
        self._add_messages([message], "INVALID_USER_MESSAGE")
        await self._commit()
        return True

    async def _call_agent(self) -> None:
        run, turn = self.run, self.run.turn_count + 1
        request = AgentRequest(
            run.thread_id,
            turn,
            self._pb.messages,
            dict(run.persona.headers),
            # The same key when the request is sent again after a restart.
            f"{run.id}-{run.attempt}-{turn}-{len(self._calls) + 1}",
        )
        answer = await call_agent(self._connector, request, self._engine.contexts)
        call = context_pb2.Invocation()
        call.CopyFrom(answer)
        call.ClearField("messages")
        self._add_messages(answer.messages, "CONNECTOR_BAD_ANSWER", call)
        self._calls.append(call)
        add_spending(run, call)
        if not self._has_answered:
            await self._commit()

    async def _evaluate(self) -> bool:
        """Evaluate the turn. Returns whether the run has ended with it."""
        end = self._end_cause
        turn = self._open_turn()
        run = await self._run(self._plan, is_final=end is not None)
        fill_aggregated(turn.evaluation, run)
        findings = self._rules.findings(turn.evaluation.results)
        cause = self._rules.stop(findings, end)
        if cause is not None and end is None:
            # Only the results show that the turn is the last. Evaluators that wait for the last turn run now.
            waiting = self._waiting
            if cause is StopCause.MET:
                waiting = [*waiting, *self._rules.must_judge_again(turn.evaluation.results)]
            if waiting:
                run.conclude(waiting, await self._run(self._part_of_plan(waiting), is_final=True))
            else:
                run.conclude()
            fill_aggregated(turn.evaluation, run)
        self._on_turn(run)
        turn.is_final = cause is not None
        self.run.turn_count = turn.turn
        self._calls = []
        self._remember(turn, findings)
        add_turn(self.run.output, turn, self._rules.criteria, self._timed)
        self._put(RunEventKind.TURN, turn)
        has_last_word = self._count < self._rules.max_messages and not self._user.is_done(self._pb.messages)
        if cause is None or (cause is end and has_last_word):
            if not self._user.immediate:
                await self._commit()
            return False
        await self._end(cause)
        return True

    def _part_of_plan(self, indexes: Sequence[int]) -> Plan:
        specs = tuple(self._plan.template.specs[index] for index in indexes)
        options = evaluation_service_pb2.EvaluateOptions(skip_auto_evaluators=True)
        try:
            plan = self._engine.planner.plan(specs, options.SerializeToString())
            check_kinds(self._plan, plan)
        except InvalidPlan as problem:
            raise RunFailure(
                "INVALID_SCENARIO", f"The scenario can no longer be evaluated: {problem}"
            ) from None
        return plan

    def _open_turn(self) -> run_service_pb2.RunTurn:
        """Return a new turn with the latest messages, and set it in the context."""
        pb, messages, start = self._pb, self._pb.messages, self._turn_end
        said = messages[start].role == "user"
        first, answer = start, start + said
        if not said and not self.run.turn_count and start and messages[start - 1].role == "user":
            first -= 1  # the scenario's own question
        last = merge_calls(self._calls)
        turn = turn_of(last, self.run.turn_count + 1, first, len(messages) - first)
        pb.turn = turn.turn
        pb.last_invocation.CopyFrom(last)
        pb.last_invocation.messages.extend(messages[answer:])
        pb.run_duration.FromNanoseconds(self._elapsed)
        return turn

    async def _run(self, plan: Plan, *, is_final: bool) -> EvaluationRun:
        """Run a plan on the open turn until all its evaluators have finished."""
        self._pb.is_final = is_final
        run = self._engine.start(plan, EvaluatorContext(self._pb, self._conversation))
        if not run.finished:
            # Store the answer first, because a judge may be slow. If nothing is pending, the turn's commit stores it.
            if self._unsaved:
                await self._commit()
            scope = Scope(evaluation_id=self._engine.new_id())
            await self._admission.finish(run, scope)
        return run

    def _remember(self, turn: run_service_pb2.RunTurn, findings: TurnFindings) -> None:
        """Set the last evaluated turn, and merge the findings of the previous one into the earlier ones."""
        before = self._findings
        self._earlier = TurnFindings(
            failed=self._earlier.failed or before.failed, broken=self._earlier.broken or before.broken
        )
        self._turn, self._findings = turn, findings
        self._turn_end = turn.first_message + turn.message_count
        self._timed += turn.HasField("latency")

    async def _end(self, cause: StopCause) -> None:
        """End the run with the verdict of its turns."""
        run, last = self.run, self._turn.evaluation
        ended = self._rules.conclude(cause, self._findings, last, self._earlier, self._count)
        run.output.max_messages_reached = cause is StopCause.LIMIT
        if ended.broken is not None:
            await self.fail(ended.broken.error.code, ended.reason)
            return
        run.result.success = ended.verdict == result_pb2.VERDICT_PASSED
        run.result.reason = ended.reason
        if last.HasField("score"):
            run.result.score = last.score
        await self._finish(run_service_pb2.RUN_STATUS_COMPLETED, ended.verdict)

    async def _finish(self, status: run_service_pb2.RunStatus, verdict: result_pb2.Verdict) -> None:
        run = self.run
        run.verdict = verdict
        fill_results(run.output, self._turn)
        self._unsaved.append(end_event(run, status, self._now))
        await self._commit()

    def _add_messages(
        self,
        messages: Sequence[message_pb2.ChatMessage],
        code: str,
        call: context_pb2.Invocation | None = None,
    ) -> None:
        """Add messages to the conversation. call: the invocation that returned them. Raises RunFailure with this code
        for too many messages, and for unreadable content."""
        index = len(self._pb.messages)
        try:
            for position, message in enumerate(messages):
                check_readable(message, f"messages[{index + position}]")
            self._engine.contexts.extend(self._pb, messages, "", "messages")
        except (InvalidContext, UnreadableContent) as problem:
            raise RunFailure(code, str(problem)) from None
        for message in messages:
            said = run_service_pb2.RunMessage(index=index, message=message)
            index += 1
            if call is not None and index == len(self._pb.messages):
                said.invocation.CopyFrom(call)
            self._put(RunEventKind.MESSAGE, said)
            self._count += message.role in COUNTED_ROLES

    def _put(self, kind: RunEventKind, body: Message) -> None:
        """Add an event to the next commit. A turn takes one sequence number for itself and one for each result."""
        run = self.run
        run.last_sequence += 1 + (
            len(body.evaluation.results) if isinstance(body, run_service_pb2.RunTurn) else 0
        )
        self._unsaved.append(RunEvent(run.last_sequence, kind, body.SerializeToString()))

    async def _commit(self) -> None:
        self.run.output.message_count = self._count
        self.run.update_time.FromNanoseconds(self._now)
        await self._save(self.run, self._unsaved)
        self._unsaved = []


async def scenario_plan(engine: Engine, scenario: context_pb2.Scenario) -> Plan:
    """Return the plan of a scenario's evaluators and criteria. Raises InvalidPlan and InvalidContext."""
    specs = [spec.SerializeToString(deterministic=True) for spec in scenario.evaluators]
    options = evaluation_service_pb2.EvaluateOptions(criteria_policy=scenario.criteria_policy)
    context = context_pb2.EvaluatorContext()
    for field in ("success_criteria", "failure_criteria", "failure_criteria_mode"):
        setattr(context.scenario, field, getattr(scenario, field))
    call = (specs, options.SerializeToString(), context)
    await engine.prepare(*call)
    return engine.plan(*call)


def _context(run: run_service_pb2.Run) -> context_pb2.EvaluatorContext:
    """Return the evaluator context of the run's turns, without messages."""
    pb = context_pb2.EvaluatorContext(attempt=run.attempt)
    pb.correlation.run_id, pb.correlation.conversation_id = run.id, run.thread_id
    if run.scenario.ByteSize():
        pb.scenario.CopyFrom(run.scenario)
        _clear_after(pb.scenario, _SCENARIO_FIELDS)
    if run.persona.ByteSize():
        pb.persona.CopyFrom(run.persona)
        _clear_after(pb.persona, _PERSONA_FIELDS)
    return pb


def _clear_after(pb: Message, last: int) -> None:
    """Clear the fields with numbers above `last`."""
    for field, _ in pb.ListFields():
        if field.number > last:
            pb.ClearField(field.name)
