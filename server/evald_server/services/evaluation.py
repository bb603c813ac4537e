"""Evaluate and EvaluateUnary: one turn, one plan."""

from collections.abc import Sequence
from typing import Final

from evald.v1 import evaluation_service_pb2, evaluator_pb2
from evald_server import wire_pb2
from evald_server.encoding import delimited
from evald_server.engine.planner import Planner
from evald_server.engine.run import Evaluation
from evald_server.later import later

from .answers import Answer, Answers
from .edge import Context, Reply, parse
from .errors import violation_field
from .runner import (
    Count,
    EvaluationObserver,
    EvaluationTally,
    Runner,
    check_deadline,
    scope_of,
    take_progress,
)

NAME: Final = "evald.v1.EvaluationService"

_Unary = wire_pb2.EvaluateUnaryRequest
_Request = wire_pb2.EvaluateRequest
_Event = wire_pb2.EvaluateResponse
_UnaryResponse = evaluation_service_pb2.EvaluateUnaryResponse


class Evaluations:
    """The handlers of Evaluate, EvaluateUnary and ValidateSpecs."""

    def __init__(
        self, runner: Runner, planner: Planner, answers: Answers, observer: EvaluationObserver
    ) -> None:
        self._runner = runner
        self._cohort = runner.cohort
        self._planner = planner
        self._answers = answers
        self._unary = Count(observer, "EvaluateUnary")
        self._streamed = Count(observer, "Evaluate")

    def evaluate_unary(self, data: bytes, context: Context) -> Reply:
        """One answer with everything in it."""
        return self._cohort.run(self._answer, data, context)

    def evaluate(self, data: bytes, context: Context) -> Reply:
        """The plan, results as they finish, the summary; all in one message when nothing waits."""
        return self._cohort.run(self._answer_streamed, data, context)

    def _answer(self, data: bytes, context: Context) -> Reply:
        request = parse(_Unary, data, "evald.v1.EvaluateUnaryRequest").request
        if request.request_id:
            return self._once(request, context)
        evaluation = self._begin(request, context)
        if not evaluation.run_inline():
            return self._wait(evaluation, request, context)
        return self._whole(evaluation, self._runner.new_id(), self._unary.tally(request.labels), context)

    def _answer_streamed(self, data: bytes, context: Context) -> Reply:
        request = parse(_Request, data, "evald.v1.EvaluateRequest")
        if request.request_id:
            return self._once_streamed(request, context)
        evaluation = self._begin(request, context)
        if not evaluation.run_inline():
            return self._stream(evaluation, self._runner.new_id(), request, context)
        self._finish(self._streamed, self._streamed.tally(request.labels), evaluation, context)
        return evaluation.event(delimited(1, evaluation.plan.started_with(self._runner.new_id())))

    def validate(self, data: bytes, _context: Context) -> bytes:
        """Everything wrong with specs, without running them."""
        request = parse(evaluation_service_pb2.ValidateSpecsRequest, data, "evald.v1.ValidateSpecsRequest")
        specs: Sequence[evaluator_pb2.EvaluatorSpec] = request.evaluators
        response = evaluation_service_pb2.ValidateSpecsResponse()
        for found in self._planner.violations(specs):
            response.violations.add(
                index=found.index or 0,
                path=found.path,
                reason=found.reason,
                message=f"{violation_field(found)}: {found.message}",
            )
        return response.SerializeToString()

    def _begin(self, request: wire_pb2.EvaluateRequest, context: Context) -> Evaluation:
        runner, pb = self._runner, request.context
        plan = runner.plan(request.evaluators, request.options, pb)
        check_deadline(context, plan)
        return Evaluation(plan, runner.contexts.view(pb), runner.threads)

    def _whole(
        self, evaluation: Evaluation, evaluation_id: str, tally: EvaluationTally, context: Context
    ) -> bytes:
        """A serialised evald.v1.EvaluateUnaryResponse."""
        self._finish(self._unary, tally, evaluation, context)
        return delimited(1, evaluation_id.encode()) + delimited(2, evaluation.whole())

    def _finish(self, count: Count, tally: EvaluationTally, evaluation: Evaluation, context: Context) -> None:
        count.add(evaluation.finish(), evaluation.nanos, context, tally)

    async def _wait(
        self, evaluation: Evaluation, request: wire_pb2.EvaluateRequest, context: Context
    ) -> bytes:
        evaluation_id = request.request_id or self._runner.new_id()
        # Whatever is asked before a wait need not be looked for after it, when it is in no cache any more.
        tally = self._unary.tally(request.labels)
        await self._runner.finish(evaluation, context.time_remaining(), scope_of(context, evaluation_id))
        verdict = evaluation.finish()
        later(self._unary.add, verdict, evaluation.nanos, context, tally)
        return delimited(1, evaluation_id.encode()) + delimited(2, evaluation.whole())

    async def _stream(
        self,
        evaluation: Evaluation,
        evaluation_id: str,
        request: wire_pb2.EvaluateRequest,
        context: Context,
    ) -> bytes:
        scope = scope_of(context, evaluation_id)
        tally = self._streamed.tally(request.labels)
        await context.write(
            delimited(1, evaluation.plan.started_with(evaluation_id)) + evaluation.first_ready()
        )
        last = b""
        async for done in self._runner.steps(evaluation, context.time_remaining(), scope):
            event = evaluation.ready(done) + take_progress(evaluation)
            if evaluation.is_settled:
                last = event  # it is followed by the summary at once
            else:
                await context.write(event)
        self._finish(self._streamed, tally, evaluation, context)
        return last + evaluation.summary()

    async def _once(self, request: wire_pb2.EvaluateRequest, context: Context) -> bytes:
        known = await self._claim(request)
        if known is not None:
            return known.response
        try:
            evaluation = self._begin(request, context)
            if evaluation.run_inline():
                tally = self._unary.tally(request.labels)
                answer = self._whole(evaluation, request.request_id, tally, context)
            else:
                answer = await self._wait(evaluation, request, context)
            self._keep(request, evaluation, answer)
        finally:
            self._answers.release(request.request_id)
        return answer

    async def _once_streamed(self, request: wire_pb2.EvaluateRequest, context: Context) -> bytes:
        known = await self._claim(request)
        if known is not None:
            return _replayed(known)
        try:
            evaluation = self._begin(request, context)
            if evaluation.run_inline():
                self._finish(self._streamed, self._streamed.tally(request.labels), evaluation, context)
                started = evaluation.plan.started_with(request.request_id)
                last = evaluation.event(delimited(1, started))
            else:
                last = await self._stream(evaluation, request.request_id, request, context)
            whole = delimited(1, request.request_id.encode()) + delimited(2, evaluation.whole())
            self._keep(request, evaluation, whole)
        finally:
            self._answers.release(request.request_id)
        return last

    async def _claim(self, request: wire_pb2.EvaluateRequest) -> Answer | None:
        return await self._answers.claim(request.request_id, request.SerializeToString(deterministic=True))

    def _keep(self, request: wire_pb2.EvaluateRequest, evaluation: Evaluation, answer: bytes) -> None:
        started = evaluation.plan.started_with(request.request_id)
        self._answers.keep(request.request_id, Answer(answer, started))


def _replayed(answer: Answer) -> bytes:
    """An answer that was given before, as the one message of a stream."""
    given = _UnaryResponse.FromString(answer.response)
    event = _Event(started=answer.started)
    event.results.extend(given.summary.results)
    given.summary.ClearField("results")
    event.summary.CopyFrom(given.summary)
    return event.SerializeToString()
