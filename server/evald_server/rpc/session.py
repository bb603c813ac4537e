"""EvaluateSession: evaluate one conversation turn by turn. The caller sends each turn once."""

from asyncio import Future
from contextlib import aclosing
from copy import deepcopy
from typing import Final

from evald.chat import Conversation
from evald.context import EvaluatorContext
from evald.result import ErrorInfo, Verdict
from evald.v1 import context_pb2, evaluation_service_pb2
from evald_server import wire_pb2
from evald_server.call_errors import CallError, invalid
from evald_server.engine.contexts import (
    InvalidContext,
    check_duration,
    check_invocation,
    check_numbers,
)
from evald_server.engine.engine import Engine
from evald_server.engine.response import events_of, fill_error, fill_event
from evald_server.engine.run import EvaluationRun
from evald_server.monitoring import Telemetry

from .admission import Admission, scope_of
from .batching import CallBatcher
from .server import RpcStream, parse

_Frame = wire_pb2.EvaluateSessionRequest
_Response = wire_pb2.EvaluateSessionResponse

# Maximum refused turns: their ids stay in memory until the end, and a session may be open for days.
_MAX_REFUSED: Final = 1000

# Memory that a message takes beyond its serialised size, in bytes.
_MESSAGE_BYTES: Final = 200

# Most names in a text.
_NAMED: Final = 20

# Failed outranks error, error outranks passed, passed outranks skipped.
_WORST: Final = (Verdict.FAILED, Verdict.ERROR, Verdict.PASSED, Verdict.SKIPPED)


class SessionService:
    """The handler of EvaluateSession."""

    def __init__(
        self,
        engine: Engine,
        batcher: CallBatcher,
        admission: Admission,
        metrics: Telemetry,
        max_bytes: int,
    ) -> None:
        """max_bytes: of one conversation, which may stay open for days."""
        self._engine = engine
        self._batcher = batcher
        self._admission = admission
        self._metrics = metrics
        self._max_bytes = max_bytes

    async def evaluate_session(self, stream: RpcStream) -> None:
        """Evaluate the turns of one conversation until the caller half-closes."""
        conversation = await self._open(await stream.read())
        while (data := await stream.read()) is not None:
            await self._evaluate_turn(conversation, data, stream)
            del data  # free the memory while the session is idle
        await stream.send(conversation.summary().SerializeToString())

    async def _open(self, data: bytes | None) -> "ConversationState":
        if data is None:
            raise invalid("frame", "the session ended before its open frame")
        frame = parse(_Frame, data)
        kind = frame.WhichOneof("frame")
        if kind != "open":
            raise invalid("frame", f"the first frame must be open, got {kind or 'none'}")
        opened = frame.open
        await self._engine.prepare(opened.evaluators, opened.options, opened.base_context)
        return ConversationState(self._engine, opened, self._max_bytes)

    async def _evaluate_turn(self, conversation: "ConversationState", data: bytes, stream: RpcStream) -> None:
        started = self._batcher.submit(self._start_turn, conversation, data)
        answer, turn_id, run = await self._batcher.result(started) if isinstance(started, Future) else started
        if run is None:
            await stream.send(answer)
            return
        evaluation_id = self._engine.new_id()
        steps = self._admission.run_pending(run, scope_of(stream.context, evaluation_id))
        events = events_of(run, evaluation_id, steps, announce_plan=conversation.turn_count == 1)
        async with aclosing(events):
            async for event in events:
                if event.HasField("summary"):
                    self._count(conversation, turn_id, run)
                await stream.send(_Response(turn_id=turn_id, event=event).SerializeToString())

    def _start_turn(
        self, conversation: "ConversationState", data: bytes
    ) -> tuple[bytes, int, EvaluationRun | None]:
        """Evaluate a turn. Returns its response and its id, or, if evaluators wait, its id and the run."""
        frame = parse(_Frame, data)
        if not frame.HasField("turn"):
            kind = frame.WhichOneof("frame")
            raise invalid("frame", f"frames after the first must be turn, got {kind or 'none'}")
        turn = frame.turn
        try:
            run = conversation.start_turn(turn, len(data))
        except CallError as problem:
            conversation.refuse(turn.turn_id)
            response = _Response(turn_id=turn.turn_id)
            fill_error(response.error, ErrorInfo("INVALID_ITEM", problem.message))
            return response.SerializeToString(), turn.turn_id, None
        if not run.finished:
            return b"", turn.turn_id, run
        response = _Response(turn_id=turn.turn_id)
        # Only the first turn announces the plan.
        fill_event(response.event, run, self._engine.new_id(), announce_plan=conversation.turn_count == 1)
        self._count(conversation, turn.turn_id, run)
        return response.SerializeToString(), turn.turn_id, None

    def _count(self, conversation: "ConversationState", turn_id: int, run: EvaluationRun) -> None:
        conversation.record(turn_id, run)
        self._metrics.evaluated(run, "EvaluateSession", conversation.labels)


class ConversationState:
    """The conversation so far, and the plan that runs on each of its turns.

    turn_count: number of started turns. labels: the caller's.
    """

    def __init__(self, engine: Engine, opened: wire_pb2.SessionOpen, max_bytes: int) -> None:
        self.labels = dict(opened.labels)
        self.turn_count = 0
        self._engine = engine
        # A copy, because a reference to any part of the frame keeps the memory of the whole frame, with the specs.
        self._pb = context_pb2.EvaluatorContext()
        self._pb.CopyFrom(opened.base_context)
        for per_turn in ("last_invocation", "turn", "is_final", "run_duration"):
            self._pb.ClearField(per_turn)
        check_numbers(self._pb, "open.base_context")
        engine.contexts.complete(self._pb, "open.base_context")
        # The default for turns without their own `expected`.
        self._base_expected = deepcopy(self._pb.expected) if self._pb.HasField("expected") else None
        self._plan = engine.plan(opened.evaluators, opened.options, self._pb)
        self._conversation = Conversation(self._pb.messages)
        self._last_id: int | None = None
        self._waiting = self._plan.final_only  # assertions that wait for the final turn
        self._verdicts: set[Verdict] = set()
        self._failed_ids: list[int] = []
        self._refused_ids: list[int] = []
        self._max_bytes = max_bytes
        self._size = 0  # bytes of the conversation
        self._resize(self._pb.ByteSize() + _MESSAGE_BYTES * len(self._pb.messages))

    def start_turn(self, turn: evaluation_service_pb2.SessionTurn, size: int) -> EvaluationRun:
        """Add a turn and start the plan on it. If it raises CallError, nothing has changed. size: bytes of the turn."""
        turn_id, pb, contexts, last = turn.turn_id, self._pb, self._engine.contexts, turn.last_invocation
        if self._last_id is not None and turn_id <= self._last_id:
            raise invalid(
                "turn.turn_id", f"got {turn_id}, wanted more than {self._last_id}, the turn_id before"
            )
        if turn.HasField("last_invocation"):
            check_invocation(last, "turn.last_invocation")
        if turn.HasField("run_duration"):
            check_duration(turn.run_duration, "turn.run_duration")
        if last.messages or last.messages_json:
            contexts.complete_messages(last, "turn.last_invocation")
        messages = pb.messages
        before = len(messages)
        contexts.extend(pb, turn.new_messages, turn.new_messages_json, "turn.new_messages")
        try:
            contexts.begin_turn(pb, before, last)
            self._resize(self._size + size + _MESSAGE_BYTES * (len(messages) - before))
        except CallError:
            del messages[before:]
            raise
        self._size -= last.ByteSize() + turn.expected.ByteSize()  # the next turn replaces them
        self._last_id = turn_id
        self.turn_count += 1
        if turn_id in self._refused_ids:
            self._refused_ids.remove(turn_id)  # sent again, and valid now
        pb.turn += 1
        pb.is_final = turn.is_final
        # Otherwise the shorter duration, or the expected answer, of an earlier turn would be checked.
        if turn.HasField("run_duration"):
            pb.run_duration.CopyFrom(turn.run_duration)
        else:
            pb.ClearField("run_duration")
        if turn.HasField("expected"):
            pb.expected.CopyFrom(turn.expected)
        elif self._base_expected is not None:
            pb.expected.CopyFrom(self._base_expected)
        else:
            pb.ClearField("expected")
        return self._engine.start(self._plan, EvaluatorContext(pb, self._conversation))

    def record(self, turn_id: int, run: EvaluationRun) -> None:
        """Record the evaluation of a turn."""
        verdict = run.aggregate.verdict
        self._waiting = run.awaiting_final()
        self._verdicts.add(verdict)
        if verdict in (Verdict.FAILED, Verdict.ERROR):
            self._failed_ids.append(turn_id)

    def refuse(self, turn_id: int) -> None:
        """Record a turn that could not be evaluated. Raises CallError after too many of them."""
        self._refused_ids.append(turn_id)
        if len(self._refused_ids) > _MAX_REFUSED:
            raise CallError(
                "INVALID_FIELD",
                f"{len(self._refused_ids)} turns of the session were invalid, wanted at most {_MAX_REFUSED}; "
                "open a new session",
                limit=str(_MAX_REFUSED),
            )

    def summary(self) -> wire_pb2.EvaluateSessionResponse:
        """Return the last frame."""
        # A turn without a verdict makes the session inconclusive, and so does an assertion that never ran.
        verdicts = self._verdicts | {Verdict.ERROR} if self._refused_ids or self._waiting else self._verdicts
        worst = next((verdict for verdict in _WORST if verdict in verdicts), Verdict.SKIPPED)
        response = _Response()
        summary = response.session_summary
        summary.verdict = worst  # type: ignore[assignment]
        summary.success = worst is Verdict.PASSED
        summary.turn_count = self.turn_count + len(self._refused_ids)
        summary.failed_turn_ids.extend(sorted(self._failed_ids + self._refused_ids))
        if self._waiting:
            names = ", ".join(f'"{name}"' for name in self._waiting[:_NAMED])
            more = " and others" if len(self._waiting) > _NAMED else ""
            text = f"The session ended without a final turn, for which {names}{more} waited; set is_final on its last turn"
            fill_error(summary.error, ErrorInfo("NOT_FINISHED", text))
        return response

    def _resize(self, size: int) -> None:
        if size > self._max_bytes:
            raise InvalidContext(
                "turn",
                f"the conversation would take {size} bytes with this turn, wanted at most {self._max_bytes} "
                "(twice max_message_bytes); open a new session with its last messages",
                size=str(size),
                limit=str(self._max_bytes),
            )
        self._size = size
