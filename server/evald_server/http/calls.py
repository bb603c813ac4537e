"""Calls the server's own methods for HTTP: through the gate and the handlers of gRPC, in this process.

Admission, limits, draining, credentials and metrics are thereby the same, whichever way a call came.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Sequence
from functools import cache
from typing import Any, Final, NamedTuple, NoReturn, cast

import grpc
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from evald_server.rpc.errors import CallError
from evald_server.rpc.gate import Gate
from evald_server.rpc.server import Handler

# Below what proxies take for a connection that is dead.
BEAT_SECONDS: Final = 15.0

# That are collected at a time. Each may have 16 MB, and the work of more would keep other requests waiting.
_MAX_LISTS: Final = 2


class HttpCaller(NamedTuple):
    """Who calls over HTTP.

    metadata: headers by lower-case name, as gRPC's handlers read them: `authorization`, `traceparent` and others.
    peer: "ipv4:ADDRESS:PORT". deadline: `time.monotonic()` at which the answer is of no use any more; None for never.
    """

    metadata: tuple[tuple[str, str], ...] = ()
    peer: str = ""
    deadline: float | None = None


class CallFailed(Exception):
    """A call ended with a status. details: a serialised google.rpc.Status, empty if gRPC itself ended it."""

    def __init__(self, code: grpc.StatusCode, message: str, details: bytes) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = details


class HttpContext:
    """What handlers use of gRPC's context, for one call."""

    def __init__(self, caller: HttpCaller, requests: AsyncIterator[bytes] | None = None) -> None:
        """requests: what the caller sends, for methods that read a stream."""
        self._caller = caller
        self._requests = requests
        # One message waits at most, so that a slow reader holds up its own call alone.
        self.written: asyncio.Queue[bytes] = asyncio.Queue(1)
        self._expired = False

    def begin(self, call: Coroutine[Any, Any, bytes | None]) -> "asyncio.Task[bytes | None]":
        """Start a call, which is cancelled at its deadline."""
        task = asyncio.create_task(call)
        seconds = self.time_remaining()
        if seconds is not None:
            timer = asyncio.get_running_loop().call_later(seconds, self._expire, task)
            task.add_done_callback(lambda _: timer.cancel())
        return task

    async def outcome(self, task: "asyncio.Task[bytes | None]") -> bytes | None:
        """Return what a call returned. Raises what ended it; cancelled, it cancels the call."""
        try:
            return await task
        except asyncio.CancelledError:
            if self._expired:
                raise CallFailed(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", b"") from None
            raise

    def _expire(self, task: "asyncio.Task[bytes | None]") -> None:
        self._expired = True
        task.cancel()

    def time_remaining(self) -> float | None:
        """Return the seconds until the deadline; None without one."""
        deadline = self._caller.deadline
        return None if deadline is None else max(0.0, deadline - time.monotonic())

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the headers of the caller."""
        return self._caller.metadata

    def peer(self) -> str:
        """Return the address of the caller."""
        return self._caller.peer

    def cancelled(self) -> bool:
        """Return whether the caller has gone: then the task is cancelled, so never while its code runs."""
        return False

    async def read(self) -> object:
        """Return the next message of the caller, or gRPC's EOF."""
        # Without a stream the one message that there is was given to the handler.
        return grpc.aio.EOF if self._requests is None else await anext(self._requests, grpc.aio.EOF)

    async def write(self, message: bytes) -> None:
        """Hand over a message of the answer. Returns when there is room for it."""
        await self.written.put(message)

    async def abort(
        self,
        code: grpc.StatusCode,
        details: str = "",
        trailing_metadata: Sequence[tuple[str, str | bytes]] = (),
    ) -> NoReturn:
        """End the call with a status. Raises CallFailed."""
        status = next((value for name, value in trailing_metadata if name == "grpc-status-details-bin"), b"")
        raise CallFailed(code, details, cast("bytes", status))


class Calls:
    """Calls methods by their full names, as "evald.v1.RunService/GetRun".

    All methods raise CallFailed. A call whose task is cancelled is cancelled. lists: held by who asks for one page of a
    list after the other.
    """

    def __init__(self, gate: Gate, max_streams: int) -> None:
        """max_streams: that callers may have open. Each holds a connection, and pages need some, too."""
        self._gate = gate
        self.lists = asyncio.Semaphore(_MAX_LISTS)
        self._max_streams = max_streams
        self._streams = 0

    async def unary(self, method: str, request: bytes, caller: HttpCaller) -> bytes:
        """Return the answer to a request, both serialised."""
        context = HttpContext(caller)
        answer = await context.outcome(context.begin(self._handle(method, request, context)))
        assert answer is not None
        return answer

    async def ask(self, request: Message, caller: HttpCaller) -> Any:
        """Return the answer to a request, as a message. The request says by its type which method is called."""
        method = find_method(_taking(cast("Descriptor", request.DESCRIPTOR)))
        return method.answer.FromString(await self.unary(method.name, request.SerializeToString(), caller))

    async def stream(
        self,
        method: str,
        request: bytes | AsyncIterator[bytes],
        caller: HttpCaller,
        patience: float = BEAT_SECONDS,
    ) -> AsyncGenerator[bytes | None]:
        """Yield the messages of an answer, serialised, as they come, and None whenever 15 s have brought none.
        Closing it cancels the call.

        request: several messages for methods that read a stream. patience: seconds before the first None.
        """
        if self._streams >= self._max_streams:
            text = f"{self._max_streams} streams are open on the web port, which is the limit"
            problem = CallError("TOO_MANY_STREAMS", text, limit=str(self._max_streams))
            raise CallFailed(problem.code, problem.message, problem.details())
        first, rest = (request, None) if isinstance(request, bytes) else (b"", request)
        context = HttpContext(caller, rest)
        task = context.begin(self._handle(method, first, context))
        message = asyncio.create_task(context.written.get())
        self._streams += 1
        try:
            while True:
                await asyncio.wait([message, task], timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                patience = BEAT_SECONDS
                if message.done():
                    yield message.result()
                    message = asyncio.create_task(context.written.get())
                elif not task.done():
                    yield None
                elif context.written.empty():
                    await context.outcome(task)  # raises what ended it
                    return
        finally:
            self._streams -= 1
            message.cancel()
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.exception()  # somebody has looked

    async def _handle(self, method: str, request: bytes, context: HttpContext) -> bytes | None:
        # In a task of its own, because the gate and the handlers set context variables and end calls by their task.
        handler = self._gate.admit(f"/{method}", context.invocation_metadata(), None, context.peer)
        answer: bytes | None = await _function(handler)(request, context)
        return answer


class CalledMethod(NamedTuple):
    """A method, by its descriptor. name: as "evald.v1.RunService/GetRun"."""

    name: str
    request: type[Message]
    answer: type[Message]
    client_streaming: bool
    server_streaming: bool


@cache
def find_method(name: str) -> CalledMethod:
    """Return the method with a full name. Raises KeyError if the contract has none."""
    service, _, method = name.rpartition("/")
    found = descriptor_pool.Default().FindServiceByName(service).methods_by_name[method]
    return CalledMethod(
        name,
        GetMessageClass(found.input_type),
        GetMessageClass(found.output_type),
        found.client_streaming,
        found.server_streaming,
    )


@cache
def _taking(request: Descriptor) -> str:
    """Return the full name of the method that takes a request: each has one of its own, in the file of its service."""
    services = request.file.services_by_name.values()
    found = next(one for service in services for one in service.methods if one.input_type is request)
    return f"{found.containing_service.full_name}/{found.name}"


def _function(handler: Handler) -> Any:
    return handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
