"""EvaluateSession: one conversation, turn by turn, each sent once."""

from typing import Final

from evald.chat import Conversation
from evald.context import EvaluatorContext
from evald.result import ErrorInfo, Verdict
from evald.v1 import context_pb2, evaluation_service_pb2
from evald_server import wire_pb2
from evald_server.encoding import delimited, size, varint
from evald_server.engine.contexts import InvalidContext, check_duration, check_invocation, check_numbers
from evald_server.engine.plan import Plan
from evald_server.engine.report import fill_error
from evald_server.engine.run import Evaluation

from .edge import Context, Reply, Stream, parse, settled
from .errors import CallError, invalid
from .runner import Count, EvaluationObserver, EvaluationTally, Runner, scope_of, take_progress

_Frame = wire_pb2.EvaluateSessionRequest
_Response = wire_pb2.EvaluateSessionResponse

# Negative numbers are sent as their two's complement.
_INT64: Final = (1 << 64) - 1

# Each is kept until the end, and a session may be open for days.
_MOST_REFUSED: Final = 1000

# Failed outranks error, error outranks passed, passed outranks skipped.
_WORST: Final = (Verdict.FAILED, Verdict.ERROR, Verdict.PASSED, Verdict.SKIPPED)


class Sessions:
    """The handler of EvaluateSession."""

    def __init__(self, runner: Runner, observer: EvaluationObserver) -> None:
        self._runner = runner
        self._cohort = runner.cohort
        self._counted = Count(observer, "EvaluateSession")

    async def serve(self, stream: Stream, context: Context) -> None:
        """Follow one conversation until the caller half-closes."""
        opened = await stream.read()
        if opened is None:
            raise invalid("frame", "the session ended before its open frame")
        session = self._open(opened)
        del opened
        run, answer_turn = self._cohort.run, self._answer
        while (data := await stream.read()) is not None:
            answer = run(answer_turn, session, data, stream, context)
            if not isinstance(answer, bytes):
                answer = await settled(answer)
            await stream.send(answer)
            del data, answer  # an idle session keeps nothing of its last turn
        await stream.send(session.summary().SerializeToString())

    def _open(self, data: bytes) -> "_Session":
        frame = parse(_Frame, data, "evald.v1.EvaluateSessionRequest")
        kind = frame.WhichOneof("frame")
        if kind != "open":
            raise invalid("frame", f"the first frame must be open, got {kind or 'none'}")
        return _Session(self._runner, frame.open, self._counted.tally(frame.open.labels))

    def _answer(self, session: "_Session", data: bytes, stream: Stream, context: Context) -> Reply:
        """The last frame that answers a turn; earlier ones are sent."""
        frame = parse(_Frame, data, "evald.v1.EvaluateSessionRequest")
        if not frame.HasField("turn"):
            kind = frame.WhichOneof("frame")
            raise invalid("frame", f"frames after the first must be turn, got {kind or 'none'}")
        turn = frame.turn
        turn_id = turn.turn_id
        try:
            evaluation = session.begin(turn, turn_id)
        except (CallError, InvalidContext) as problem:
            session.refuse(turn_id)
            refused = _Response(turn_id=turn_id)
            fill_error(refused.error, ErrorInfo("INVALID_ITEM", problem.message))
            return refused.SerializeToString()
        if not evaluation.run_inline():
            return self._wait(session, turn_id, evaluation, stream, context)
        started = delimited(1, session.started(self._runner.new_id()))
        self._count(session, turn_id, evaluation, context)
        return _framed(turn_id, evaluation.event(started))

    async def _wait(
        self, session: "_Session", turn_id: int, evaluation: Evaluation, stream: Stream, context: Context
    ) -> bytes:
        evaluation_id = self._runner.new_id()
        scope = scope_of(context, evaluation_id)
        started = delimited(1, session.started(evaluation_id))
        await stream.send(_framed(turn_id, started + evaluation.first_ready()))
        last = b""
        async for done in self._runner.steps(evaluation, None, scope, patient=True):
            event = evaluation.ready(done) + take_progress(evaluation)
            if evaluation.is_settled:
                last = event  # it is followed by the summary at once
            else:
                await stream.send(_framed(turn_id, event))
        self._count(session, turn_id, evaluation, context)
        return _framed(turn_id, last + evaluation.summary())

    def _count(self, session: "_Session", turn_id: int, evaluation: Evaluation, context: Context) -> None:
        verdict = evaluation.finish()
        session.note(turn_id, verdict)
        self._counted.add(verdict, evaluation.nanos, context, session.tally)


def _framed(turn_id: int, event: bytes) -> bytes:
    """A serialised evald.v1.EvaluateSessionResponse: its turn_id and event are fields 1 and 2."""
    return b"".join((b"\x08", varint(turn_id & _INT64), b"\x12", size(event), event))


class _Session:
    """The conversation so far and the plan that runs on each of its turns."""

    def __init__(self, runner: Runner, opened: wire_pb2.SessionOpen, tally: EvaluationTally) -> None:
        self.tally = tally
        self._runner = runner
        # A copy, because the frame's memory, specs included, lives as long as any part of it.
        self._pb = context_pb2.EvaluatorContext()
        self._pb.CopyFrom(opened.base_context)
        self._expected = context_pb2.Expected()
        self._expected.CopyFrom(self._pb.expected)
        self._has_expected = self._pb.HasField("expected")
        self._pb.ClearField("last_invocation")
        check_numbers(self._pb, "open.base_context")
        runner.contexts.complete(self._pb, "open.base_context")
        self._plan: Plan = runner.plan(opened.evaluators, opened.options, self._pb)
        self._conversation = Conversation(self._pb.messages)
        self._last_id: int | None = None
        self._own_expected = False
        self._turns = 0
        self._verdicts: set[Verdict] = set()
        self._failed_ids: list[int] = []
        self._refused_ids: list[int] = []

    def begin(self, turn: evaluation_service_pb2.SessionTurn, turn_id: int) -> Evaluation:
        """Add a turn. Raises CallError or InvalidContext for one that is not right, and then leaves all as it was."""
        if self._last_id is not None and turn_id <= self._last_id:
            raise invalid("turn.turn_id", f"got {turn_id}, wanted more than {self._last_id}, the last one")
        pb, contexts, last = self._pb, self._runner.contexts, turn.last_invocation
        check_invocation(last, "turn.last_invocation")
        if turn.HasField("run_duration"):
            check_duration(turn.run_duration, "turn.run_duration")
        contexts.complete_messages(last, "turn.last_invocation")
        contexts.extend(pb, turn.new_messages, turn.new_messages_json, "turn.new_messages")
        self._last_id = turn_id
        self._turns += 1
        if turn_id in self._refused_ids:
            self._refused_ids.remove(turn_id)  # sent again, and right this time
        pb.turn += 1
        pb.is_final = turn.is_final
        pb.last_invocation.CopyFrom(last)
        if turn.HasField("run_duration"):
            pb.run_duration.CopyFrom(turn.run_duration)
        if turn.HasField("expected"):
            pb.expected.CopyFrom(turn.expected)
            self._own_expected = True
        elif self._own_expected:
            pb.ClearField("expected")
            if self._has_expected:
                pb.expected.CopyFrom(self._expected)
            self._own_expected = False
        return Evaluation(self._plan, EvaluatorContext(pb, self._conversation), self._runner.threads)

    def started(self, evaluation_id: str) -> bytes:
        """The EvaluationStarted of the turn that was begun last: the plan stands in the first one only."""
        if self._turns == 1:
            return self._plan.started_with(evaluation_id)
        return delimited(1, evaluation_id.encode())

    def note(self, turn_id: int, verdict: Verdict) -> None:
        """A turn is done."""
        self._verdicts.add(verdict)
        if verdict in (Verdict.FAILED, Verdict.ERROR):
            self._failed_ids.append(turn_id)

    def refuse(self, turn_id: int) -> None:
        """A turn could not be evaluated. Raises CallError after too many of them."""
        self._refused_ids.append(turn_id)
        if len(self._refused_ids) > _MOST_REFUSED:
            raise CallError(
                "INVALID_FIELD",
                f"{len(self._refused_ids)} turns of the session could not be evaluated, which is the limit",
                limit=str(_MOST_REFUSED),
            )

    def summary(self) -> wire_pb2.EvaluateSessionResponse:
        """The last frame."""
        # A turn that was sent and has no verdict must not be forgotten: the session is inconclusive.
        verdicts = self._verdicts | {Verdict.ERROR} if self._refused_ids else self._verdicts
        worst = next((verdict for verdict in _WORST if verdict in verdicts), Verdict.SKIPPED)
        response = _Response()
        summary = response.session_summary
        summary.verdict = worst  # type: ignore[assignment]
        summary.success = worst is Verdict.PASSED
        summary.turn_count = self._turns + len(self._refused_ids)
        summary.failed_turn_ids.extend(sorted(self._failed_ids + self._refused_ids))
        return response
