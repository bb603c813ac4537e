"""A real server on a loopback port, and raw calls over a real channel."""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import grpc
from google.rpc import error_details_pb2, status_pb2

from evald.evaluator import EvaluatorDefinition
from evald.v1 import (
    catalog_service_pb2,
    context_pb2,
    evaluation_service_pb2,
    evaluator_pb2,
)
from evald_server.app import App
from evald_server.config import Settings
from evald_server.engine.registry import Origin

EVALUATION = "/evald.v1.EvaluationService/"
CATALOG = "/evald.v1.CatalogService/"

Request = evaluation_service_pb2.EvaluateRequest


async def until(condition: Callable[[], Any], seconds: float = 20.0) -> None:
    """Wait until a condition, which may be a coroutine, is true. Raises TimeoutError."""
    pause = 0.005
    async with asyncio.timeout(seconds):
        while not (await found if asyncio.iscoroutine(found := condition()) else found):
            await asyncio.sleep(pause)
            # What is waited for needs the processor, too.
            pause = min(2 * pause, 0.05)


class Live:
    """A server and a channel to it."""

    def __init__(self, app: App, channel: grpc.aio.Channel) -> None:
        self.app = app
        self.channel = channel

    async def raw(self, method: str, data: bytes, **call: Any) -> bytes:
        """Make a unary call with raw bytes."""
        answer: bytes = await self.channel.unary_unary(method)(data, **call)
        return answer

    async def unary(self, request: Request, **call: Any) -> evaluation_service_pb2.EvaluateUnaryResponse:
        """Call EvaluateUnary."""
        wrapped = evaluation_service_pb2.EvaluateUnaryRequest(request=request)
        data = await self.raw(EVALUATION + "EvaluateUnary", wrapped.SerializeToString(), **call)
        return evaluation_service_pb2.EvaluateUnaryResponse.FromString(data)

    async def stream(self, request: Request, **call: Any) -> list[evaluation_service_pb2.EvaluateResponse]:
        """Call Evaluate and return all its messages."""
        stream = self.channel.unary_stream(EVALUATION + "Evaluate")(request.SerializeToString(), **call)
        return [evaluation_service_pb2.EvaluateResponse.FromString(data) async for data in stream]

    async def session(
        self, frames: Iterable[evaluation_service_pb2.EvaluateSessionRequest]
    ) -> list[evaluation_service_pb2.EvaluateSessionResponse]:
        """Call EvaluateSession with all frames at once."""
        stream = self.channel.stream_stream(EVALUATION + "EvaluateSession")(
            iter([frame.SerializeToString() for frame in frames])
        )
        return [evaluation_service_pb2.EvaluateSessionResponse.FromString(data) async for data in stream]

    async def batch(
        self, messages: Iterable[evaluation_service_pb2.EvaluateBatchRequest]
    ) -> list[evaluation_service_pb2.EvaluateBatchResponse]:
        """Call EvaluateBatch with all messages at once."""
        stream = self.channel.stream_stream(EVALUATION + "EvaluateBatch")(
            iter([message.SerializeToString() for message in messages])
        )
        return [evaluation_service_pb2.EvaluateBatchResponse.FromString(data) async for data in stream]

    async def types(self, **fields: Any) -> catalog_service_pb2.ListEvaluatorTypesResponse:
        """Call ListEvaluatorTypes."""
        request = catalog_service_pb2.ListEvaluatorTypesRequest(**fields)
        data = await self.raw(CATALOG + "ListEvaluatorTypes", request.SerializeToString())
        return catalog_service_pb2.ListEvaluatorTypesResponse.FromString(data)


@asynccontextmanager
async def serving(evaluators: Iterable[EvaluatorDefinition] = (), **settings: Any) -> AsyncIterator[Live]:
    """Run a server with these plugins and settings. The client may send 32 MiB messages."""
    app = App(Settings(listen="127.0.0.1:0", **{"http": None, "web": None, **settings}))
    for evaluator in evaluators:
        app.registry.register(evaluator, Origin.PLUGIN)
    await app.start()
    options = [("grpc.max_send_message_length", 32 << 20), ("grpc.max_receive_message_length", 32 << 20)]
    try:
        async with grpc.aio.insecure_channel(app.address, options=options) as channel:
            yield Live(app, channel)
    finally:
        await app.stop(0)


def request(*specs: evaluator_pb2.EvaluatorSpec, answer: str = "hello", **fields: Any) -> Request:
    """Return a request about one short turn."""
    context = context_pb2.EvaluatorContext(turn=1)
    context.messages.add(role="user", text="hi")
    context.messages.add(role="assistant", text=answer)
    return Request(context=context, evaluators=specs, **fields)


def spec(type_name: str, config: dict[str, Any] | None = None, **fields: Any) -> evaluator_pb2.EvaluatorSpec:
    """Return a spec."""
    pb = evaluator_pb2.EvaluatorSpec(type=type_name, **fields)
    pb.config.update(config or {})
    return pb


CONTAINS = spec("contains", {"text": "hello"})


class Refusal:
    """The rich error of a refused call."""

    def __init__(self, error: grpc.aio.AioRpcError) -> None:
        self.code = error.code()
        self.message = error.details() or ""
        self.info = error_details_pb2.ErrorInfo()
        self.fields: list[str] = []
        self.descriptions: list[str] = []
        self.retry: float | None = None
        self.size = 0
        for key, value in error.trailing_metadata() or ():
            if key != "grpc-status-details-bin":
                continue
            assert isinstance(value, bytes)
            self.size = len(value)
            for detail in status_pb2.Status.FromString(value).details:
                bad = error_details_pb2.BadRequest()
                retry = error_details_pb2.RetryInfo()
                if detail.Unpack(bad):
                    self.fields += [violation.field for violation in bad.field_violations]
                    self.descriptions += [violation.description for violation in bad.field_violations]
                elif detail.Unpack(retry):
                    self.retry = retry.retry_delay.ToMilliseconds() / 1000
                else:
                    assert detail.Unpack(self.info)

    @property
    def reason(self) -> str:
        """The reason of the ErrorInfo."""
        return self.info.reason


async def refusal(call: Any) -> Refusal:
    """Return the error of a refused call; fail if it was not refused."""
    try:
        answer = await call
    except grpc.aio.AioRpcError as error:
        return Refusal(error)
    raise AssertionError(f"not refused: {answer}")


@contextmanager
def no_collector() -> Iterator[None]:
    """Disable the garbage collector for a while."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def open_calls() -> int:
    """Return the calls in memory, including those that only the garbage collector can free."""
    return sum(type(thing).__name__ == "_ServicerContext" for thing in gc.get_objects())
