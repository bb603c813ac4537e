"""EvaluateUnary and Evaluate: evaluate one turn with one plan, from request bytes to response bytes."""

from contextlib import aclosing
from typing import Final, TypeAlias

from evald.v1 import evaluation_service_pb2
from evald_server import wire_pb2
from evald_server.auth.current_call import caller
from evald_server.auth.limits import LONGEST_WAIT_OF_CALLS
from evald_server.engine.engine import Engine
from evald_server.engine.planner import LARGE_BYTES
from evald_server.engine.response import event_of, events_of, fill_aggregated, fill_event
from evald_server.engine.run import EvaluationRun
from evald_server.monitoring import Telemetry

from .admission import Admission, check_deadline
from .batching import CallBatcher
from .errors import violations_response
from .idempotency import IdempotencyStore, StoredResponse
from .server import Context, RpcStream, parse
from .trace_context import scope_of

NAME: Final = "evald.v1.EvaluationService"

Request: TypeAlias = wire_pb2.EvaluateRequest
_UnaryResponse = evaluation_service_pb2.EvaluateUnaryResponse


class EvaluateService:
    """The handlers of EvaluateUnary, Evaluate and ValidateSpecs."""

    def __init__(
        self,
        engine: Engine,
        batcher: CallBatcher,
        admission: Admission,
        idempotency: IdempotencyStore,
        metrics: Telemetry,
    ) -> None:
        self._engine = engine
        self._batcher = batcher
        self._admission = admission
        self._idempotency = idempotency
        self._metrics = metrics

    async def evaluate_unary(self, data: bytes, context: Context) -> bytes:
        """Respond with all results in one message."""
        request = parse(wire_pb2.EvaluateUnaryRequest, data).request
        if len(data) > LARGE_BYTES:
            await self._engine.prepare(request.evaluators, request.options, request.context)
        if not request.request_id:
            return (await self._unary(request, context)).data
        stored, _ = await self._idempotency.once(
            request, lambda: self._unary(request, context), caller().name
        )
        return stored.data

    async def evaluate(self, data: bytes, stream: RpcStream) -> None:
        """Stream the plan, each result when it is finished, and the summary; one message if no evaluator waits."""
        request = parse(wire_pb2.EvaluateRequest, data)
        if len(data) > LARGE_BYTES:
            await self._engine.prepare(request.evaluators, request.options, request.context)
        last = b""

        async def run_stream() -> StoredResponse:
            nonlocal last
            last, run = await self._stream(request, stream)
            response = _UnaryResponse(evaluation_id=request.request_id)
            fill_aggregated(response.summary, run)
            return StoredResponse(response.SerializeToString(), run.plan.template.specs)

        if not request.request_id:
            last, _ = await self._stream(request, stream)
        else:
            # Store the response before sending the last message: if that fails, the caller repeats the request.
            stored, replayed = await self._idempotency.once(request, run_stream, caller().name)
            if replayed:
                response = _UnaryResponse.FromString(stored.data)
                last = event_of(response, stored.specs).SerializeToString()
        await stream.send(last)

    async def validate(
        self, request: evaluation_service_pb2.ValidateSpecsRequest
    ) -> evaluation_service_pb2.ValidateSpecsResponse:
        """Respond with all violations of the specs, without running them."""
        return violations_response(await self._engine.planner.violations(request.evaluators))

    def _start(self, request: Request, context: Context) -> EvaluationRun:
        plan = self._engine.plan(request.evaluators, request.options, request.context)
        check_deadline(plan, context.time_remaining())
        return self._engine.start(plan, request.context)

    def _count(self, run: EvaluationRun, rpc: str, request: Request, context: Context) -> None:
        self._metrics.evaluated(run, rpc, request.labels)

    async def _unary(self, request: Request, context: Context) -> StoredResponse:
        await self._admission.turns.take(longest_wait=LONGEST_WAIT_OF_CALLS)
        # Concurrent calls run back to back up to their response: 17 to 28 % more calls/s at 16 in flight.
        data, run = await self._batcher.run(self._start_unary, request, context)
        if not run.finished:
            evaluation_id = request.request_id or self._engine.new_id()
            scope = scope_of(context, evaluation_id)
            async with aclosing(self._admission.run_pending(run, scope, context.time_remaining)) as steps:
                async for _ in steps:
                    run.take_progress()
            data = self._respond(run, evaluation_id, request, context)
        return StoredResponse(data, run.plan.template.specs)

    def _start_unary(self, request: Request, context: Context) -> tuple[bytes, EvaluationRun]:
        run = self._start(request, context)
        if not run.finished:
            return b"", run
        return self._respond(run, request.request_id or self._engine.new_id(), request, context), run

    def _respond(self, run: EvaluationRun, evaluation_id: str, request: Request, context: Context) -> bytes:
        response = _UnaryResponse(evaluation_id=evaluation_id)
        fill_aggregated(response.summary, run)
        self._count(run, "EvaluateUnary", request, context)
        return response.SerializeToString()

    async def _stream(self, request: Request, stream: RpcStream) -> tuple[bytes, EvaluationRun]:
        """Send all messages except the last, which contains the summary, and return the last and the run."""
        context = stream.context
        evaluation_id = request.request_id or self._engine.new_id()
        await self._admission.turns.take(longest_wait=LONGEST_WAIT_OF_CALLS)
        last, run = await self._batcher.run(self._start_stream, request, evaluation_id, context)
        if run.finished:
            return last, run
        scope = scope_of(context, evaluation_id)
        steps = self._admission.run_pending(run, scope, context.time_remaining)
        async with aclosing(events_of(run, evaluation_id, steps)) as events:
            async for event in events:
                if event.HasField("summary"):
                    self._count(run, "Evaluate", request, context)
                    last = event.SerializeToString()
                else:
                    await stream.send(event.SerializeToString())
        return last, run

    def _start_stream(
        self, request: Request, evaluation_id: str, context: Context
    ) -> tuple[bytes, EvaluationRun]:
        run = self._start(request, context)
        if not run.finished:
            return b"", run
        event = wire_pb2.EvaluateResponse()
        fill_event(event, run, evaluation_id)
        self._count(run, "Evaluate", request, context)
        return event.SerializeToString(), run
