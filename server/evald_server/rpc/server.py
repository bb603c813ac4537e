"""Wraps the handlers of all services for gRPC: counts calls, refuses them while draining, and maps every
exception to a status.

Handlers take and return raw bytes, so that evald and not gRPC chooses the status for unreadable messages. They are
wrapped once, when the table is built, because an interceptor costs 6 % of the calls.
"""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, NoReturn, Protocol, TypeAlias, TypeVar

import grpc
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from evald_server.call_errors import CallError, invalid
from evald_server.engine.plan import InvalidPlan
from evald_server.logs import log_incident
from evald_server.monitoring import RpcTally, Telemetry
from evald_server.wire_limits import BeyondWireLimit, parse_message

from .errors import as_call_error, code_of, details_of, trailer_text
from .stream_tasks import LoopSlices, StreamSlices

_log = logging.getLogger("evald.rpc")


class Context(Protocol):
    """The part of gRPC's ServicerContext that handlers use. Calls over HTTP have a context with the same methods."""

    def time_remaining(self) -> float | None:
        """Return the seconds until the deadline; None without one."""

    def invocation_metadata(self) -> Any:
        """Return pairs of name and value."""

    def peer(self) -> str:
        """Return the address of the caller."""

    def cancelled(self) -> bool:
        """Return whether the caller has cancelled the call."""

    async def read(self) -> Any:
        """Return the next message, or gRPC's EOF."""

    async def write(self, message: bytes, /) -> None:
        """Send a message."""

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = (), /
    ) -> NoReturn:
        """End the call with a status. Always raises."""
        raise NotImplementedError


Handler: TypeAlias = "grpc.RpcMethodHandler[bytes, bytes]"
UnaryHandler: TypeAlias = Callable[[bytes, Context], Awaitable[bytes]]
ServerStreamHandler: TypeAlias = Callable[[bytes, "RpcStream"], Awaitable[None]]
StreamHandler: TypeAlias = Callable[["RpcStream"], Awaitable[None]]
Methods: TypeAlias = "dict[str, Callable[..., Awaitable[Any]]]"

M = TypeVar("M", bound=Message)
T = TypeVar("T")

# A call that gRPC has received but not passed to its handler when the server stops ends with CANCELLED. So the server is
# stopped once no call has arrived for _NO_CALL_SECONDS, and after _MAX_HOLD_SECONDS at the latest.
_NO_CALL_SECONDS: Final = 0.05
_MAX_HOLD_SECONDS: Final = 0.5

_POLL_SECONDS: Final = 0.01

# Background work pauses for _CALL_SECONDS between two steps if a call has arrived within _RECENT_SECONDS. A small call
# takes 0.5 ms on an idle loop; with a shorter pause it waits for two steps, which raises the p99.
_RECENT_SECONDS: Final = 0.25
_CALL_SECONDS: Final = 0.002


def parse(kind: type[M], data: bytes, place: str = "") -> M:
    """Parse a message. Raises CallError for unreadable bytes and for too large maps.

    place: of the message in another one, for the error, as "item 3 of the stream".
    """
    try:
        return parse_message(kind, data)
    except BeyondWireLimit as problem:
        raise invalid(problem.path, problem.got) from None
    except DecodeError:
        # Messages whose parts stay bytes stand for those of the contract.
        name = kind.DESCRIPTOR.full_name.replace("evald.wire.", "evald.v1.")
        name = f"{name} ({place})" if place else name
        raise CallError(
            "UNREADABLE_MESSAGE",
            f"cannot parse {name} from the {len(data)} bytes received: they are malformed or another message, contain "
            f"text that is not UTF-8, or contain JSON data nested deeper than 32 levels",
            expected=name,
        ) from None


class RpcServer:
    """Builds the gRPC handlers of all services, and drains them together.

    on_message: called when the request message of a call has arrived, which may be long after its metadata, with the full
    name of the method and whether the response is a stream; raises CallError if the caller has lost the right to call.
    """

    def __init__(
        self,
        metrics: Telemetry,
        *,
        max_message_bytes: int,
        max_streams: int,
        log_calls: bool = False,
    ) -> None:
        self._metrics = metrics
        self._max_message_bytes = max_message_bytes
        self._max_streams = max_streams
        self._log_calls = log_calls
        # Tasks of unary calls and of streams in flight, and of the streams that only their callers end.
        self._calls: set[asyncio.Task[Any] | None] = set()
        self._streams: set[asyncio.Task[Any] | None] = set()
        self._endless: set[asyncio.Task[Any]] = set()
        # Streams that the server ends, with the status that they end with.
        self._ending: dict[asyncio.Task[Any], CallError] = {}
        self._stopping = False
        self._holding = False
        self._last_held = 0.0
        self._last_call = -math.inf
        self._yielding = asyncio.Lock()
        self.draining = False
        self.slices = LoopSlices()
        self.on_message: Callable[[str, bool], None] = lambda _method, _streams: None

    def service(self, name: str, methods: Methods) -> dict[str, Handler]:
        """Return the handlers of a service. Its descriptor says what each method takes.

        A unary method takes its request, and returns its response or, if it was large, the serialised response. A watch
        takes its request and the stream of its responses; a method with a stream of requests takes the stream.
        """
        described = descriptor_pool.Default().FindServiceByName(name).methods_by_name
        return {method: self._method(described[method], handle) for method, handle in methods.items()}

    def _method(self, method: MethodDescriptor, handle: Callable[..., Awaitable[Any]]) -> Handler:
        service, name = method.containing_service.full_name, method.name
        if method.client_streaming:
            return self.stream(service, name, handle)
        kind = GetMessageClass(method.input_type)

        async def call(data: bytes, _context: Context) -> bytes:
            response: Message | bytes = await handle(parse(kind, data))
            return response if isinstance(response, bytes) else response.SerializeToString()

        async def watch(data: bytes, stream: RpcStream) -> None:
            await handle(parse(kind, data), stream)

        if method.server_streaming:
            return self.server_stream(service, name, watch, is_watch=True)
        return self.unary(service, name, call)

    def unary(self, service: str, method: str, handle: UnaryHandler) -> Handler:
        """Return a handler of a unary call."""
        tally = self._metrics.rpcs.tally(service, method, "unary")

        full_name = f"/{service}/{method}"

        async def call(request: bytes, context: Context) -> bytes:
            self._received(full_name, request, tally, streams=False)
            response = await handle(request, context)
            tally.sent_count += 1
            return response

        return grpc.unary_unary_rpc_method_handler(self._wrapped(service, method, tally, call))

    def server_stream(
        self, service: str, method: str, handle: ServerStreamHandler, *, is_watch: bool = False
    ) -> Handler:
        """Return a handler of one request and several responses.

        is_watch: the responses continue until the caller ends the stream. It counts as an open stream, but a drain does
        not wait for it. Watches send in time slices of the event loop, because many may begin at once, each with
        thousands of messages.
        """
        tally = self._metrics.rpcs.tally(service, method, "server_stream")

        full_name = f"/{service}/{method}"

        async def call(request: bytes, context: Context) -> None:
            self._received(full_name, request, tally, streams=True)
            slices = StreamSlices(self.slices.next) if is_watch else None
            await handle(request, RpcStream(context, tally, self._max_message_bytes, slices))

        wrapped = self._wrapped(service, method, tally, call, open_streams=is_watch)
        return grpc.unary_stream_rpc_method_handler(self.endless(wrapped) if is_watch else wrapped)

    def stream(
        self,
        service: str,
        method: str,
        handle: StreamHandler,
        *,
        kind: str = "bidi_stream",
        open_streams: bool = True,
    ) -> Handler:
        """Return a handler that reads the requests itself.

        kind: of method, for the metrics. open_streams: its calls count as open streams.
        """
        tally = self._metrics.rpcs.tally(service, method, kind)

        async def call(_requests: object, context: Context) -> None:
            await handle(RpcStream(context, tally, self._max_message_bytes))

        wrapped = self._wrapped(service, method, tally, call, open_streams=open_streams)
        return grpc.stream_stream_rpc_method_handler(wrapped)

    def endless(self, handle: Callable[[Any, Context], Awaitable[None]]) -> Any:
        """Wrap a handler of streams that only their callers end: a drain ends them instead of waiting."""

        async def handler(request: Any, context: Context) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._endless.add(task)
            try:
                await handle(request, context)
            except asyncio.CancelledError:
                problem = self._ending.pop(task, None) or (server_stops() if self._stopping else None)
                if problem is None:
                    raise
                task.uncancel()
                await refuse(context, problem)
            finally:
                self._endless.discard(task)

        return handler

    def end_stream(self, task: asyncio.Task[Any], problem: CallError) -> None:
        """End an open stream with a status. Does nothing if it has ended."""
        if not task.done() and task not in self._ending:
            self._ending[task] = problem
            task.add_done_callback(lambda done: self._ending.pop(done, None))
            task.cancel()

    async def drain(self, grace_seconds: float) -> None:
        """Refuse new calls, and wait for those in flight for at most grace_seconds. Returns when gRPC's server can be
        stopped, 0.5 s after the grace at the latest. Call `end` next."""
        clock = time.monotonic
        self.draining = True
        began = clock()
        while self._in_flight() and clock() - began < grace_seconds:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(_POLL_SECONDS)
        if not grace_seconds:
            return
        # From here on calls are held until `end` refuses them: clients that retry at once would keep the server busy.
        self._holding = True
        self._last_held = began = clock()
        while (now := clock()) - self._last_held < _NO_CALL_SECONDS and now - began < _MAX_HOLD_SECONDS:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_SECONDS)

    def end(self) -> None:
        """End all calls that are still open, with UNAVAILABLE and the reason DRAINING."""
        self._stopping = True
        for task in (*self._calls, *self._streams, *self._endless):
            if task is not None:
                task.cancel()

    async def yield_to_calls(self) -> None:
        """Limit background work to one step per pause, so that a small call waits for at most one step.

        Call it before each step that holds the event loop for about as long as a small call takes. A call needs several
        iterations of the loop; without pauses it would wait for a step in each of them.
        """
        async with self._yielding:
            is_busy = time.perf_counter() - self._last_call < _RECENT_SECONDS
            await asyncio.sleep(_CALL_SECONDS if is_busy else 0)

    def _in_flight(self) -> bool:
        """Return whether there are calls that a drain waits for."""
        return bool(self._calls) or not self._streams <= self._endless

    async def _refuse(self) -> NoReturn:
        """Refuse a call that arrives during a drain. Raises CallError."""
        if self._holding:
            self._last_held = time.monotonic()
            task = asyncio.current_task()
            self._calls.add(task)
            try:
                await asyncio.Event().wait()
            finally:
                self._calls.discard(task)
        raise server_stops()

    @property
    def open_streams(self) -> int:
        """The number of open streams."""
        return len(self._streams)

    def _received(self, method: str, request: bytes, tally: RpcTally, *, streams: bool) -> None:
        tally.received_count += 1
        self.on_message(method, streams)
        if len(request) > self._max_message_bytes:
            raise _too_large(request, self._max_message_bytes)

    def _wrapped(
        self,
        service: str,
        method: str,
        tally: RpcTally,
        call: Callable[[Any, Context], Awaitable[T]],
        *,
        open_streams: bool = False,
    ) -> Callable[[Any, Context], Awaitable[T]]:
        """Wrap a handler with counting, draining and errors. open_streams: its calls count as open streams."""
        name = f"{service}/{method}"
        in_flight = self._streams if open_streams else self._calls

        async def handler(request: Any, context: Context) -> T:
            began = self._last_call = time.perf_counter()
            tally.started_count += 1
            task = asyncio.current_task()
            try:
                if self.draining:
                    await self._refuse()
                if open_streams and len(self._streams) >= self._max_streams:
                    raise _too_many_streams(self._max_streams)
                in_flight.add(task)
                response = await call(request, context)
            except BaseException as problem:
                await self._end(problem, context, name, tally, began)
                raise
            finally:
                in_flight.discard(task)
            self._handled(tally, name, "OK", began)
            return response

        return handler

    async def _end(
        self, problem: BaseException, context: Context, method: str, tally: RpcTally, began: float
    ) -> None:
        """Abort a failed call with the mapped status. Returns if the exception should propagate unchanged."""
        _clear_traceback(problem)
        if isinstance(problem, grpc.aio.InternalError):
            # A message could not be sent because the caller disconnected, which gRPC may report a moment later.
            self._handled(tally, method, "CANCELLED", began)
            raise asyncio.CancelledError from None
        if isinstance(problem, asyncio.CancelledError):
            task = asyncio.current_task()
            assert task is not None
            ending = self._ending.pop(task, None) or (server_stops() if self._stopping else None)
            if ending is None or context.cancelled():
                self._handled(tally, method, "CANCELLED", began)
                return
            task.uncancel()
            problem = ending
        elif not isinstance(problem, Exception):
            return
        if isinstance(problem, InvalidPlan):
            problem = as_call_error(problem)
        if not isinstance(problem, CallError):
            incident = log_incident(_log, f"{method} failed", problem)
            problem = CallError(
                "INTERNAL", f"evald failed to handle the call {incident.note}", incident=incident.id
            )
        if problem.reason in ("OVERLOADED", "TOO_MANY_STREAMS"):
            self._metrics.saturation.rejected(problem.reason.lower())
        self._handled(tally, method, code_of(problem).name, began)
        await refuse(context, problem)

    def _handled(self, tally: RpcTally, method: str, code: str, began: float) -> None:
        seconds = time.perf_counter() - began
        tally.handled(code, seconds)
        if self._log_calls:
            _log.info("call", extra={"method": method, "code": code, "seconds": round(seconds, 6)})


async def refuse(context: Context, problem: CallError) -> NoReturn:
    """End a call with an error. Always raises."""
    await abort(context, code_of(problem), problem.message, details_of(problem))


async def abort(
    context: Context, code: grpc.StatusCode, message: str, details: bytes | None = None
) -> NoReturn:
    """End a call with a status. details: a google.rpc.Status. Always raises."""
    try:
        await context.abort(
            code, trailer_text(message), (("grpc-status-details-bin", details),) if details else ()
        )
    except grpc.aio.InternalError:  # the caller has disconnected
        raise asyncio.CancelledError from None
    except BaseException as aborted:
        _clear_traceback(aborted)
        raise


def _clear_traceback(problem: BaseException) -> None:
    """Clear the traceback when the task ends, to break the call, exception, frame cycle.

    Otherwise finished calls stay until the garbage collector runs, and gRPC refuses new calls on a connection
    while as many exist, finished or not, as may be open (tests/rpc/test_ended_calls.py).
    """

    def clear(_task: object) -> None:
        problem.__traceback__ = problem.__context__ = problem.__cause__ = None

    task = asyncio.current_task()
    if task is not None:
        task.add_done_callback(clear)


class RpcStream:
    """Both directions of a stream. Counts messages and limits the size of requests.

    context: of the call. slices: the time slices in which it sends; None: it sends at once.
    """

    def __init__(
        self, context: Context, tally: RpcTally, limit: int, slices: StreamSlices | None = None
    ) -> None:
        self.context = context
        self._tally = tally
        self._limit = limit
        self._slices = slices

    def __aiter__(self) -> "RpcStream":
        return self

    async def __anext__(self) -> bytes:
        data = await self.read()
        if data is None:
            raise StopAsyncIteration
        return data

    async def read(self) -> bytes | None:
        """Return the next message; None at the end. Raises CallError for one that is too large."""
        data = await self.context.read()
        if not isinstance(data, bytes):
            return None
        self._tally.received_count += 1
        if len(data) > self._limit:
            raise _too_large(data, self._limit)
        return data

    async def send(self, data: bytes) -> None:
        """Send a message."""
        if self._slices is not None:
            await self._slices.pause()
        self._tally.sent_count += 1
        await self.context.write(data)


async def refuse_unknown(_stream: RpcStream) -> None:
    """Refuse a call of a method that does not exist, and say where to find those that do. Always raises."""
    raise CallError(
        "UNKNOWN_METHOD",
        "this server has no such method; server reflection and protos/README.md list the methods that it has",
    )


def _too_large(request: bytes, limit: int) -> CallError:
    return CallError(
        "MESSAGE_TOO_LARGE",
        f"the message has {len(request)} bytes; at most {limit} are allowed",
        size=str(len(request)),
        limit=str(limit),
    )


def _too_many_streams(limit: int) -> CallError:
    return CallError(
        "TOO_MANY_STREAMS",
        f"{limit} sessions, batches, suite runs and watches are open, which is the limit; end one, or try again later",
        limit=str(limit),
    )


def server_stops() -> CallError:
    """Return the error of calls that a stopping server refuses or ends."""
    return CallError("DRAINING", "the server is stopping; try again, on another server if there is one")
