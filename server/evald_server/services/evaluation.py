"""Evaluate and EvaluateUnary: one turn, one plan."""

import time
from collections.abc import Awaitable, Sequence
from typing import Final

from evald.v1 import evaluation_service_pb2, evaluator_pb2
from evald_server import wire_pb2
from evald_server.engine.plan import Plan, Planner
from evald_server.engine.run import Evaluation

from .answers import Answer, Answers
from .edge import Context, parse
from .errors import violation_field
from .runner import EvaluationObserver, Runner, deadline_of

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
        self._unary_tally = observer.evaluation("EvaluateUnary")
        self._stream_tally = observer.evaluation("Evaluate")

    def evaluate_unary(self, data: bytes, context: Context) -> bytes | Awaitable[bytes]:
        """One answer with everything in it."""
        request = parse(_Unary, data, "evald.v1.EvaluateUnaryRequest").request
        if request.request_id:
            return self._once(request, context)
        response = _UnaryResponse()
        plan, evaluation = self._begin_unary(request, response)
        deadline = deadline_of(context)
        if not evaluation.run_inline():
            return self._wait_unary(evaluation, response, deadline)
        return self._answer_unary(evaluation, response)

    def evaluate(self, data: bytes, context: Context) -> bytes | Awaitable[bytes]:
        """The plan, results as they finish, the summary; all in one message when nothing waits."""
        request = parse(_Request, data, "evald.v1.EvaluateRequest")
        if request.request_id:
            return self._once_streamed(request, context)
        plan = self._runner.plan(request.evaluators, request.options, request.context)
        view = self._runner.contexts.view(request.context)
        deadline = deadline_of(context)
        event = _Event()
        event.CopyFrom(plan.blank_event)
        event.started = plan.started_with(self._runner.new_id())
        evaluation = Evaluation(plan, view, event.results, event.summary, self._runner.threads)
        if not evaluation.run_inline():
            return self._stream(evaluation, event, deadline, context)
        self._stream_tally.add(evaluation.finish(), evaluation.seconds)
        return event.SerializeToString()

    def validate(self, data: bytes, _context: Context) -> bytes:
        """Everything wrong with specs, without running them."""
        request = parse(
            evaluation_service_pb2.ValidateSpecsRequest, data, "evald.v1.ValidateSpecsRequest"
        )
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
    ) -> tuple[Plan, Evaluation]:
        plan = self._runner.plan(request.evaluators, request.options, request.context)
        view = self._runner.contexts.view(request.context)
        response.evaluation_id = request.request_id or self._runner.new_id()
        summary = response.summary
        summary.CopyFrom(plan.blank)
        return plan, Evaluation(plan, view, summary.results, summary, self._runner.threads)

    def _answer_unary(
        self, evaluation: Evaluation, response: evaluation_service_pb2.EvaluateUnaryResponse
    ) -> bytes:
        self._unary_tally.add(evaluation.finish(), evaluation.seconds)
        return response.SerializeToString()

    async def _wait_unary(
        self,
        evaluation: Evaluation,
        response: evaluation_service_pb2.EvaluateUnaryResponse,
        deadline: float | None,
    ) -> bytes:
        await self._runner.finish(evaluation, _left(deadline))
        return self._answer_unary(evaluation, response)

    async def _stream(
        self,
        evaluation: Evaluation,
        event: wire_pb2.EvaluateResponse,
        deadline: float | None,
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
        async for done in self._runner.steps(evaluation, _left(deadline)):
            await context.write(part.SerializeToString())
            part = ready(done)
        self._stream_tally.add(evaluation.finish(), evaluation.seconds)
        part.summary.CopyFrom(event.summary)
        return part.SerializeToString()

    async def _once(self, request: wire_pb2.EvaluateRequest, context: Context) -> bytes:
        return (await self._claimed(request, context)).response

    async def _once_streamed(self, request: wire_pb2.EvaluateRequest, context: Context) -> bytes:
        answer = await self._claimed(request, context)
        given = _UnaryResponse.FromString(answer.response)
        event = _Event(started=answer.started)
        event.results.extend(given.summary.results)
        given.summary.ClearField("results")
        event.summary.CopyFrom(given.summary)
        return event.SerializeToString()

    async def _claimed(self, request: wire_pb2.EvaluateRequest, context: Context) -> Answer:
        deadline = deadline_of(context)
        known = await self._answers.claim(request.request_id, request.SerializeToString(deterministic=True))
        if known is not None:
            return known
        try:
            response = _UnaryResponse()
            plan, evaluation = self._begin_unary(request, response)
            if not evaluation.run_inline():
                await self._runner.finish(evaluation, _left(deadline))
            answer = Answer(
                self._answer_unary(evaluation, response), plan.started_with(request.request_id)
            )
            self._answers.keep(request.request_id, answer)
        finally:
            self._answers.release(request.request_id)
        return answer


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else deadline - time.monotonic()
