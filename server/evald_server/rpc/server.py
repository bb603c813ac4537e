"""Wraps the handlers of all services for gRPC: counts calls, refuses them while draining, and maps every
exception to a status.

Handlers take and return raw bytes, so that evald and not gRPC chooses the status for unreadable messages. They are
wrapped once, when the table is built, because an interceptor costs 6 % of the calls.
"""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NoReturn, TypeAlias, TypeVar

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
from .stream_tasks import StreamSlices

_log = logging.getLogger("evald.rpc")


Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"
"""gRPC's context of a call. Calls over HTTP have one with the methods that handlers use (http/calls.py)."""

Handler: TypeAlias = "grpc.RpcMethodHandler[bytes, bytes]"
Methods: TypeAlias = "dict[str, Callable[..., Awaitable[Any]]]"
_Tasks: TypeAlias = set[asyncio.Task[Any] | None]

M = TypeVar("M", bound=Message)

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
    """Parse a message. Raises CallError for unreadable bytes and for too many messages.

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

    last_call: when the last call arrived, on the clock of `time.perf_counter`. slices: the lock of StreamSlices.
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
        self.max_message_bytes = max_message_bytes
        self._max_streams = max_streams
        self._log_calls = log_calls
        # A drain waits for calls and streams. Watches, and all calls of gRPC's own services, end with the server.
        self._calls: _Tasks = set()
        self._streams: _Tasks = set()
        self._watches: _Tasks = set()
        self._standard: _Tasks = set()
        # Streams that the server ends, with the status that they end with.
        self._ending: dict[asyncio.Task[Any], CallError] = {}
        self.draining = self._holding = False
        self._stopping = asyncio.Event()
        self.last_call = -math.inf
        self._yielding = asyncio.Lock()
        self.slices = asyncio.Lock()

    def service(self, name: str, methods: Methods, *, is_standard: bool = False) -> dict[str, Handler]:
        """Return the handlers of a service. Its descriptor says what each method takes.

        A unary method takes its request, and returns its response or, if it was large, the serialised response. A watch
        takes its request and the stream of its responses; a method with a stream of requests takes the stream.
        is_standard: one of gRPC's own services. They answer while the server drains, and their streams do not count.
        """
        described = descriptor_pool.Default().FindServiceByName(name).methods_by_name
        return {
            method: self._method(described[method], handle, is_standard=is_standard)
            for method, handle in methods.items()
        }

    def _method(
        self, method: MethodDescriptor, handle: Callable[..., Awaitable[Any]], *, is_standard: bool
    ) -> Handler:
        service, name = method.containing_service.full_name, method.name
        message = GetMessageClass(method.input_type)

        async def unary(data: bytes, stream: RpcStream) -> bytes:
            response: Message | bytes = await handle(parse(message, stream.receive(data)))
            stream.tally.sent_count += 1
            return response if isinstance(response, bytes) else response.SerializeToString()

        async def watch(data: bytes, stream: RpcStream) -> None:
            # In time slices, because many may begin at once, each with thousands of messages.
            stream.slices = StreamSlices(self.slices)
            await handle(parse(message, stream.receive(data)), stream)

        async def session(_requests: object, stream: RpcStream) -> None:
            await handle(stream)

        if method.client_streaming:
            tasks = self._standard if is_standard else self._streams
            return self.handler(service, name, "bidi_stream", session, tasks)
        if method.server_streaming:
            tasks = self._standard if is_standard else self._watches
            make = grpc.unary_stream_rpc_method_handler
            return self.handler(service, name, "server_stream", watch, tasks, make)
        tasks = self._standard if is_standard else self._calls
        return self.handler(service, name, "unary", unary, tasks, grpc.unary_unary_rpc_method_handler)

    def handler(
        self,
        service: str,
        method: str,
        kind: str,
        call: Callable[[Any, "RpcStream"], Awaitable[Any]],
        tasks: _Tasks | None = None,
        make: Callable[..., Any] = grpc.stream_stream_rpc_method_handler,
    ) -> Handler:
        """Return a handler with counting, draining and errors.

        kind: of method, for the metrics. call: takes the request, or the requests, and the stream. tasks: those that
        its calls are among.
        """
        tally, name = self._metrics.rpcs.tally(service, method, kind), f"{service}/{method}"
        among = self._calls if tasks is None else tasks
        counts = among is self._streams or among is self._watches

        async def handle(request: Any, context: Context) -> Any:
            began = self.last_call = time.perf_counter()
            tally.started_count += 1
            task = asyncio.current_task()
            try:
                if self.draining and among is not self._standard:
                    await self.refuse_draining()
                if counts and self.open_streams >= self._max_streams:
                    text = f"{self._max_streams} sessions, batches, suite runs and watches are open, which is the limit"
                    text = f"{text}; end one, or try again later"
                    raise CallError("TOO_MANY_STREAMS", text, limit=str(self._max_streams))
                among.add(task)
                response = await call(request, RpcStream(context, tally, self.max_message_bytes))
            except BaseException as problem:
                await self.fail(problem, context, name, tally, began)
                raise
            finally:
                among.discard(task)
            self.ended(tally, name, "OK", began)
            return response

        handler: Handler = make(handle)
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
        clock = time.perf_counter
        self.draining = True
        began = clock()
        while (self._calls or self._streams) and clock() - began < grace_seconds:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(_POLL_SECONDS)
        if not grace_seconds:
            return
        # From here on calls are held until `end` refuses them: clients that retry at once would keep the server busy.
        self._holding = True
        began = clock()
        while (  # noqa: ASYNC110
            clock() - max(began, self.last_call) < _NO_CALL_SECONDS and clock() - began < _MAX_HOLD_SECONDS
        ):
            await asyncio.sleep(_POLL_SECONDS)

    async def refuse_draining(self) -> NoReturn:
        """Refuse a call that arrives during a drain. Raises CallError."""
        if self._holding:
            await self._stopping.wait()
        raise server_stops()

    def end(self) -> None:
        """End all calls that are still open, with UNAVAILABLE and the reason DRAINING."""
        self._stopping.set()
        for task in (*self._calls, *self._streams, *self._watches, *self._standard):
            if task is not None:
                task.cancel()

    async def yield_to_calls(self) -> None:
        """Limit background work to one step per pause, so that a small call waits for at most one step.

        Call it before each step that holds the event loop for about as long as a small call takes. A call needs several
        iterations of the loop; without pauses it would wait for a step in each of them.
        """
        async with self._yielding:
            is_busy = time.perf_counter() - self.last_call < _RECENT_SECONDS
            await asyncio.sleep(_CALL_SECONDS if is_busy else 0)

    @property
    def open_streams(self) -> int:
        """The number of open sessions, batches, suite runs and watches."""
        return len(self._streams) + len(self._watches)

    async def fail(
        self, problem: BaseException, context: Context, method: str, tally: RpcTally, began: float
    ) -> None:
        """End a failed call with the status of its exception. Returns if the exception should propagate unchanged."""
        _clear_traceback(problem)
        if isinstance(problem, grpc.aio.InternalError):
            # A message could not be sent because the caller disconnected, which gRPC may report a moment later.
            self.ended(tally, method, "CANCELLED", began)
            raise asyncio.CancelledError from None
        if isinstance(problem, asyncio.CancelledError):
            task = asyncio.current_task()
            assert task is not None
            ending = self._ending.pop(task, None) or (server_stops() if self._stopping.is_set() else None)
            if ending is None or context.cancelled():
                self.ended(tally, method, "CANCELLED", began)
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
        self.ended(tally, method, code_of(problem).name, began)
        await refuse(context, problem)

    def ended(self, tally: RpcTally, method: str, code: str, began: float) -> None:
        """Count the end of a call, and log it if the operator wants that. code: name of a `grpc.StatusCode`."""
        seconds = time.perf_counter() - began
        self._metrics.ended(tally, code, seconds)
        if self._log_calls:
            _log.info("call", extra={"method": method, "code": code, "seconds": round(seconds, 6)})

    @contextmanager
    def in_flight(self) -> Iterator[None]:
        """Count the current call as one that a drain waits for. Only calls that wait need it."""
        task = asyncio.current_task()
        self._calls.add(task)
        try:
            yield
        finally:
            self._calls.discard(task)


async def refuse(context: Context, problem: CallError) -> NoReturn:
    """End a call with an error. Always raises."""
    details = (("grpc-status-details-bin", details_of(problem)),)
    try:
        await context.abort(code_of(problem), trailer_text(problem.message), details)
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
    """Both directions of a call. Counts messages and limits the size of requests.

    slices: the time slices in which it sends; None: it sends at once.
    """

    def __init__(self, context: Context, tally: RpcTally, limit: int) -> None:
        self.context = context
        self.tally = tally
        self.slices: StreamSlices | None = None
        self._limit = limit

    def receive(self, data: bytes) -> bytes:
        """Count a message, and return it. Raises CallError for one that is too large."""
        self.tally.received_count += 1
        if len(data) > self._limit:
            raise too_large(data, self._limit)
        return data

    async def read(self) -> bytes | None:
        """Return the next message; None at the end. Raises CallError for one that is too large."""
        data = await self.context.read()
        return self.receive(data) if data.__class__ is bytes else None

    def __aiter__(self) -> "RpcStream":
        return self

    async def __anext__(self) -> bytes:
        data = await self.read()
        if data is None:
            raise StopAsyncIteration
        return data

    async def send(self, data: bytes) -> None:
        """Send a message."""
        if self.slices is not None:
            await self.slices.pause()
        self.tally.sent_count += 1
        await self.context.write(data)


def too_large(request: bytes, limit: int) -> CallError:
    """Return the error of a message above the limit of bytes."""
    return CallError(
        "MESSAGE_TOO_LARGE",
        f"the message has {len(request)} bytes; at most {limit} are allowed",
        size=str(len(request)),
        limit=str(limit),
    )


def server_stops() -> CallError:
    """Return the error of calls that a stopping server refuses or ends."""
    return CallError("DRAINING", "the server is stopping; try again, on another server if there is one")
