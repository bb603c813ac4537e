"""Evaluate and EvaluateUnary: one turn, one plan."""

import time
from collections.abc import Awaitable, Sequence
from typing import Final

from evald.v1 import evaluation_service_pb2, evaluator_pb2
from evald_server import wire_pb2
from evald_server.engine.planner import Planner
from evald_server.engine.run import Evaluation

from .answers import Answer, Answers
from .edge import Context, parse
from .errors import violation_field
from .runner import Count, EvaluationObserver, EvaluationTally, Runner, add_progress, deadline_of, scope_of

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
        self._planner = planner
        self._answers = answers
        self._unary = Count(observer, "EvaluateUnary")
        self._streamed = Count(observer, "Evaluate")

    def evaluate_unary(self, data: bytes, context: Context) -> bytes | Awaitable[bytes]:
        """One answer with everything in it."""
        request = parse(_Unary, data, "evald.v1.EvaluateUnaryRequest").request
        if request.request_id:
            return self._once(request, context)
        response = _UnaryResponse()
        evaluation = self._begin_unary(request, response)
        deadline = deadline_of(context)
        if not evaluation.run_inline():
            return self._wait_unary(evaluation, response, deadline, request, context)
        return self._answer_unary(evaluation, response, request, context)

    def evaluate(self, data: bytes, context: Context) -> bytes | Awaitable[bytes]:
        """The plan, results as they finish, the summary; all in one message when nothing waits."""
        request = parse(_Request, data, "evald.v1.EvaluateRequest")
        if request.request_id:
            return self._once_streamed(request, context)
        event = _Event()
        evaluation = self._begin_streamed(request, event)
        deadline = deadline_of(context)
        if not evaluation.run_inline():
            return self._stream(evaluation, event, deadline, request, context)
        self._count(self._streamed, evaluation, request, context)
        return event.SerializeToString()

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

    def _begin_unary(
        self, request: wire_pb2.EvaluateRequest, response: evaluation_service_pb2.EvaluateUnaryResponse
    ) -> Evaluation:
        plan = self._runner.plan(request.evaluators, request.options, request.context)
        view = self._runner.contexts.view(request.context)
        response.evaluation_id = request.request_id or self._runner.new_id()
        summary = response.summary
        summary.CopyFrom(plan.blank)
        return Evaluation(plan, view, summary.results, summary, self._runner.threads)

    def _begin_streamed(
        self, request: wire_pb2.EvaluateRequest, event: wire_pb2.EvaluateResponse
    ) -> Evaluation:
        plan = self._runner.plan(request.evaluators, request.options, request.context)
        view = self._runner.contexts.view(request.context)
        event.CopyFrom(plan.blank_event)
        event.started = plan.started_with(request.request_id or self._runner.new_id())
        return Evaluation(plan, view, event.results, event.summary, self._runner.threads)

    def _answer_unary(
        self,
        evaluation: Evaluation,
        response: evaluation_service_pb2.EvaluateUnaryResponse,
        request: wire_pb2.EvaluateRequest,
        context: Context,
    ) -> bytes:
        self._count(self._unary, evaluation, request, context)
        return response.SerializeToString()

    def _count(
        self,
        count: Count,
        evaluation: Evaluation,
        request: wire_pb2.EvaluateRequest,
        context: Context,
    ) -> None:
        verdict = evaluation.finish()
        tally: EvaluationTally | None = count.tally(request.labels) if request.labels else None
        count.add(verdict, evaluation.seconds, context, tally)

    async def _wait_unary(
        self,
        evaluation: Evaluation,
        response: evaluation_service_pb2.EvaluateUnaryResponse,
        deadline: float | None,
        request: wire_pb2.EvaluateRequest,
        context: Context,
    ) -> bytes:
        scope = scope_of(context, response.evaluation_id)
        await self._runner.finish(evaluation, _left(deadline), scope)
        return self._answer_unary(evaluation, response, request, context)

    async def _stream(
        self,
        evaluation: Evaluation,
        event: wire_pb2.EvaluateResponse,
        deadline: float | None,
        request: wire_pb2.EvaluateRequest,
        context: Context,
    ) -> bytes:
        def ready(indexes: Sequence[int]) -> wire_pb2.EvaluateResponse:
            part = _Event()
            for index in indexes:
                part.results.append(event.results[index])
            return part

        waiting = {item.use.index for item in evaluation.waiting}
        part = ready([use.index for use in evaluation.plan.uses if use.index not in waiting])
        part.started = event.started
        started = evaluation_service_pb2.EvaluationStarted.FromString(event.started)
        scope = scope_of(context, started.evaluation_id)
        async for done in self._runner.steps(evaluation, _left(deadline), scope):
            await context.write(part.SerializeToString())
            part = ready(done)
            add_progress(part, evaluation)
        self._count(self._streamed, evaluation, request, context)
        part.summary.CopyFrom(event.summary)
        return part.SerializeToString()

    async def _once(self, request: wire_pb2.EvaluateRequest, context: Context) -> bytes:
        deadline = deadline_of(context)
        known = await self._answers.claim(request.request_id, request.SerializeToString(deterministic=True))
        if known is not None:
            return known.response
        try:
            response = _UnaryResponse()
            evaluation = self._begin_unary(request, response)
            if not evaluation.run_inline():
                scope = scope_of(context, response.evaluation_id)
                await self._runner.finish(evaluation, _left(deadline), scope)
            answer = self._answer_unary(evaluation, response, request, context)
            self._answers.keep(
                request.request_id, Answer(answer, evaluation.plan.started_with(request.request_id))
            )
        finally:
            self._answers.release(request.request_id)
        return answer

    async def _once_streamed(self, request: wire_pb2.EvaluateRequest, context: Context) -> bytes:
        deadline = deadline_of(context)
        known = await self._answers.claim(request.request_id, request.SerializeToString(deterministic=True))
        if known is not None:
            return _replayed(known)
        try:
            event = _Event()
            evaluation = self._begin_streamed(request, event)
            if evaluation.run_inline():
                self._count(self._streamed, evaluation, request, context)
                last = event.SerializeToString()
            else:
                last = await self._stream(evaluation, event, deadline, request, context)
            response = _UnaryResponse(evaluation_id=request.request_id, summary=event.summary)
            response.summary.results.extend(event.results)
            self._answers.keep(request.request_id, Answer(response.SerializeToString(), event.started))
        finally:
            self._answers.release(request.request_id)
        return last


def _replayed(answer: Answer) -> bytes:
    """An answer that was given before, as the one message of a stream."""
    given = _UnaryResponse.FromString(answer.response)
    event = _Event(started=answer.started)
    event.results.extend(given.summary.results)
    given.summary.ClearField("results")
    event.summary.CopyFrom(given.summary)
    return event.SerializeToString()


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else deadline - time.monotonic()
