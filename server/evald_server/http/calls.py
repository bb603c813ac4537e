"""In-process calls of the server's own methods for HTTP, through gRPC's gate and handlers.

So admission, limits, draining, credentials and metrics are the same for gRPC and HTTP.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Sequence
from typing import Any, Final, NamedTuple, NoReturn, cast

import grpc
from google.protobuf.message import Message

from evald_server.auth.current_call import caller
from evald_server.call_errors import CallError
from evald_server.fair_slots import FairSlots, count_down, share
from evald_server.methods import method_for
from evald_server.rpc.errors import code_of, details_of
from evald_server.rpc.gate import Gate
from evald_server.rpc.server import Context, Handler

# Shorter than the idle timeouts of proxies.
KEEPALIVE_SECONDS: Final = 15.0

# Lists that are collected at a time. Each may have 16 MB, and collecting more of them would delay other requests.
_MAX_LISTS: Final = 2


class HttpCaller(NamedTuple):
    """The caller of a method over HTTP.

    metadata: headers by lower-case name, as gRPC's handlers read them: `authorization`, `traceparent` and others.
    peer: "ipv4:ADDRESS:PORT". deadline: in `time.monotonic()` seconds; None for none.
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
    """The context of one call: the part of gRPC's ServicerContext that handlers use."""

    def __init__(self, caller: HttpCaller, requests: AsyncIterator[bytes] | None = None) -> None:
        """requests: the caller's messages, for methods that read a stream."""
        self._caller = caller
        self._requests = requests
        # At most one message waits: a slow reader slows down only its own call.
        self.written: asyncio.Queue[bytes] = asyncio.Queue(1)
        self._expired = False

    def begin(self, call: Coroutine[Any, Any, bytes | None]) -> "asyncio.Task[bytes | None]":
        """Start a call in a task, and cancel it at the deadline."""
        task = asyncio.create_task(call)
        seconds = self.time_remaining()
        if seconds is not None:
            timer = asyncio.get_running_loop().call_later(seconds, self._expire, task)
            task.add_done_callback(lambda _: timer.cancel())
        return task

    async def outcome(self, task: "asyncio.Task[bytes | None]") -> bytes | None:
        """Return the result of a call, or raise its exception. Cancelling this cancels the call."""
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
        """Return the caller's headers."""
        return self._caller.metadata

    def peer(self) -> str:
        """Return the caller's address."""
        return self._caller.peer

    def cancelled(self) -> bool:
        """Return False: when the caller disconnects, the task is cancelled, so no code can see True."""
        return False

    async def read(self) -> object:
        """Return the caller's next message, or gRPC's EOF."""
        # Without a stream, the handler already has the only message.
        return grpc.aio.EOF if self._requests is None else await anext(self._requests, grpc.aio.EOF)

    async def write(self, message: bytes) -> None:
        """Queue a message of the response. Waits until the previous one was read."""
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
    """A client of the server's own methods, by their full names, as "evald.v1.RunService/GetRun".

    All methods raise CallFailed. Cancelling a call's task cancels the call. lists: slots to hold while collecting all
    pages of a list.
    """

    def __init__(self, gate: Gate, max_streams: int) -> None:
        """max_streams: limit of open streams. Each holds a connection, and pages need connections, too."""
        self._gate = gate
        self.lists = FairSlots(_MAX_LISTS)
        self._max_streams = max_streams
        self._streams = 0
        self._calls: Counter[str] = Counter()  # open calls by principal

    async def unary(self, method: str, request: bytes, caller: HttpCaller) -> bytes:
        """Return the response to a request, both serialised."""
        context = HttpContext(caller)
        answer = await context.outcome(context.begin(self._handle(method, request, context)))
        assert answer is not None
        return answer

    async def ask(self, request: Message, caller: HttpCaller) -> Any:
        """Call the method that takes a request of this type, and return the response message."""
        method = method_for(request)
        return method.answer.FromString(await self.unary(method.name, request.SerializeToString(), caller))

    async def stream(
        self,
        method: str,
        request: bytes | AsyncGenerator[bytes],
        caller: HttpCaller,
        first_keepalive_seconds: float = KEEPALIVE_SECONDS,
    ) -> AsyncGenerator[bytes | None]:
        """Yield the serialised messages of a response, and None after every KEEPALIVE_SECONDS without a message.

        Closing the generator cancels the call. request: the messages for methods that read a stream; the generator closes it.
        first_keepalive_seconds: seconds before the first None.
        """
        if self._streams >= self._max_streams:
            text = f"{self._max_streams} streams are open on the web port, which is the limit; end one, or try again later"
            raise _failed("TOO_MANY_STREAMS", text, self._max_streams)
        first, rest = (request, None) if isinstance(request, bytes) else (b"", request)
        context = HttpContext(caller, rest)
        task = context.begin(self._handle(method, first, context))
        message = asyncio.create_task(context.written.get())
        self._streams += 1
        seconds = first_keepalive_seconds
        try:
            while True:
                await asyncio.wait([message, task], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
                seconds = KEEPALIVE_SECONDS
                if message.done():
                    yield message.result()
                    message = asyncio.create_task(context.written.get())
                elif not task.done():
                    yield None
                elif context.written.empty():
                    await context.outcome(task)  # raises the call's failure
                    return
        finally:
            self._streams -= 1
            message.cancel()
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.exception()  # mark it as retrieved, so that asyncio does not log it
            if rest is not None:
                await rest.aclose()

    async def _handle(self, method: str, request: bytes, context: HttpContext) -> bytes | None:
        # Run in a task of its own: the gate and the handlers set context variables and cancel calls by their task.
        handler = self._gate.admit(f"/{method}", cast("Context", context), None)
        name = caller().name
        # Each holds a connection. On a server without credentials the limit of connections is enough.
        most = share(self._max_streams, name)
        if name and self._calls[name] >= most:
            text = f"{most} calls of {name} are open on the web port, which is the limit; end one, or try again later"
            raise _failed("OVERLOADED", text, most)
        self._calls[name] += 1
        try:
            answer: bytes | None = await _function(handler)(request, context)
        finally:
            count_down(self._calls, name)
        return answer


def _failed(reason: str, text: str, limit: int) -> CallFailed:
    problem = CallError(reason, text, limit=str(limit))
    return CallFailed(code_of(problem), problem.message, details_of(problem))


def _function(handler: Handler) -> Any:
    return handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
