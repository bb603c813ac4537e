"""EvaluateUnary and Evaluate: evaluate one turn with one plan, from request bytes to response bytes."""

import time
from asyncio import Future
from collections.abc import Callable
from contextlib import aclosing
from typing import Final, TypeAlias

import grpc
from google.protobuf.message import Message

from evald.v1 import evaluation_service_pb2
from evald_server import wire_pb2
from evald_server.auth.current_call import caller
from evald_server.engine.engine import Engine
from evald_server.engine.planner import LARGE_BYTES
from evald_server.engine.response import event_of, event_response, events_of, unary_response
from evald_server.engine.run import EvaluationRun
from evald_server.monitoring import Telemetry

from .admission import Admission, check_deadline, scope_of
from .batching import CallBatcher
from .idempotency import IdempotencyStore, StoredResponse
from .server import Context, Handler, RpcServer, parse, too_large

NAME: Final = "evald.v1.EvaluationService"

_Request: TypeAlias = wire_pb2.EvaluateRequest

_Started: TypeAlias = "tuple[bytes, _Request, EvaluationRun | None]"
"""The last message of the response, the request, and its run. Without a message, the call has to wait: for evaluators,
or, without a run, for an earlier call with its request_id."""


class UnaryCalls:
    """The calls of EvaluateUnary, which responds with all results in one message.

    respond: returns the message of a finished run with an evaluation id.

    Most calls need no waiting. Such a call is one function, `_start`, which the batcher calls. They do without the
    wrappers of other methods, because each function more shows in the rate (tests/rpc/test_call_count.py).
    """

    method, kind, streams = "EvaluateUnary", "unary", False
    respond: Callable[[EvaluationRun, str], Message] = staticmethod(unary_response)

    def __init__(
        self,
        rpc: RpcServer,
        engine: Engine,
        batcher: CallBatcher,
        admission: Admission,
        idempotency: IdempotencyStore,
        metrics: Telemetry,
    ) -> None:
        self._rpc = rpc
        self._engine = engine
        self._batcher = batcher
        self._admission = admission
        self._idempotency = idempotency
        self._metrics = metrics
        self._tally = metrics.rpcs.tally(NAME, self.method, self.kind)
        self._name = f"{NAME}/{self.method}"

    def handler(self) -> Handler:
        """Return gRPC's handler of the method."""
        return grpc.unary_unary_rpc_method_handler(self.handle)

    async def handle(self, data: bytes, context: Context) -> bytes | None:
        """Handle a call, from request bytes to response bytes."""
        rpc, tally = self._rpc, self._tally
        began = rpc.last_call = time.perf_counter()
        tally.started_count += 1
        tally.received_count += 1
        parsed: _Request | None = None
        try:
            if rpc.draining:
                await rpc.refuse_draining()
            if len(data) > rpc.max_message_bytes:
                raise too_large(data, rpc.max_message_bytes)
            if len(data) > LARGE_BYTES:  # compiled in a thread
                parsed = self._read(data)
                with rpc.in_flight():
                    await self._engine.prepare(parsed.evaluators, parsed.options, parsed.context)
            started = self._batcher.submit(self._start, data, parsed, context)
            last, request, run = (
                await self._batcher.result(started) if isinstance(started, Future) else started
            )
            if not last:
                with rpc.in_flight():
                    last = await (self._wait(request, run, context) if run else self._once(request, context))
            if self.streams:
                await context.write(last)
        except BaseException as problem:
            await rpc.fail(problem, context, self._name, tally, began)
            raise
        tally.sent_count += 1
        rpc.ended(tally, self._name, "OK", began)
        return None if self.streams else last

    def _start(self, data: bytes, parsed: _Request | None, context: Context) -> _Started:
        """Evaluate a call up to what waits. parsed: the data, if they were parsed before."""
        request = self._read(data) if parsed is None else parsed
        if request.request_id:
            return b"", request, None
        run = self._begin(request, context)
        if run.pending:
            return b"", request, run
        return self._respond(request, run, self._engine.new_id()), request, run

    def _begin(self, request: _Request, context: Context) -> EvaluationRun:
        engine = self._engine
        plan = engine.plan(request.evaluators, request.options, request.context)
        check_deadline(plan, context.time_remaining())
        return engine.start(plan, engine.contexts.view(request.context))

    def _respond(self, request: _Request, run: EvaluationRun, evaluation_id: str) -> bytes:
        """Return a finished run as one message."""
        response = self.respond(run, evaluation_id)
        self._metrics.evaluated(run, self.method, request.labels)
        return response.SerializeToString()

    async def _once(self, request: _Request, context: Context) -> bytes:
        """Evaluate a call with a request_id, or repeat the response of an earlier one. Returns its last message."""
        last = b""

        async def evaluate() -> StoredResponse:
            nonlocal last
            run = self._begin(request, context)
            if run.pending:
                last = await self._wait(request, run, context)
            else:
                last = self._respond(request, run, request.request_id)
            unary = unary_response(run, request.request_id).SerializeToString()
            return StoredResponse(unary, run.plan.template.specs)

        # Stored before the last message is sent: if that fails, the caller repeats the request.
        stored, replayed = await self._idempotency.once(request, evaluate, caller().name)
        return self._repeated(stored) if replayed else last

    def _read(self, data: bytes) -> _Request:
        return parse(wire_pb2.EvaluateUnaryRequest, data).request

    async def _wait(self, request: _Request, run: EvaluationRun, context: Context) -> bytes:
        """Run the evaluators that wait. Returns the last message; a stream has sent the others."""
        evaluation_id = request.request_id or self._engine.new_id()
        await self._admission.finish(run, scope_of(context, evaluation_id), context.time_remaining)
        return self._respond(request, run, evaluation_id)

    def _repeated(self, stored: StoredResponse) -> bytes:
        return stored.data


class StreamCalls(UnaryCalls):
    """The calls of Evaluate, which streams the plan, each result when it is there, and the summary: in one message if no
    evaluator waits.
    """

    method, kind, streams = "Evaluate", "server_stream", True
    respond = staticmethod(event_response)

    def handler(self) -> Handler:
        """Return gRPC's handler of the method."""
        return grpc.unary_stream_rpc_method_handler(self.handle)

    def _read(self, data: bytes) -> _Request:
        return parse(_Request, data)

    async def _wait(self, request: _Request, run: EvaluationRun, context: Context) -> bytes:
        evaluation_id, last = request.request_id or self._engine.new_id(), b""
        steps = self._admission.run_pending(run, scope_of(context, evaluation_id), context.time_remaining)
        async with aclosing(events_of(run, evaluation_id, steps)) as events:
            async for event in events:
                if event.HasField("summary"):
                    self._metrics.evaluated(run, self.method, request.labels)
                    last = event.SerializeToString()
                else:
                    self._tally.sent_count += 1
                    await context.write(event.SerializeToString())
        return last

    def _repeated(self, stored: StoredResponse) -> bytes:
        response = evaluation_service_pb2.EvaluateUnaryResponse.FromString(stored.data)
        return event_of(response, stored.specs).SerializeToString()


async def validate_specs(
    engine: Engine, request: evaluation_service_pb2.ValidateSpecsRequest
) -> evaluation_service_pb2.ValidateSpecsResponse:
    """Respond with all violations of the specs, without running them."""
    response = evaluation_service_pb2.ValidateSpecsResponse()
    for violation in await engine.planner.violations(request.evaluators):
        response.violations.add(
            index=violation.index or 0,
            path=violation.path,
            reason=violation.reason,
            message=f"{violation.field}: {violation.message}",
        )
    return response
