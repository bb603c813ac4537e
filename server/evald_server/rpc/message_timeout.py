"""Reads the request message of calls, with a timeout: gRPC itself would wait for ever."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from evald_server.call_errors import CallError

from .server import Handler, abort, refuse


def with_request_stream(handler: Handler, call: Callable[[Any, Any], Awaitable[Any]]) -> Handler:
    """Return a handler with the responses of another, whose requests `call` reads from the stream."""
    make: Any = (
        grpc.stream_stream_rpc_method_handler
        if handler.response_streaming
        else grpc.stream_unary_rpc_method_handler
    )
    wrapped: Handler = make(call, handler.request_deserializer, handler.response_serializer)
    return wrapped


class MessageTimeout:
    """Reads the one request message of calls. Not for streams of requests, which count as open streams.

    seconds: for how long a message may take. timed_out: called when one takes longer. most: calls that may wait; one
    more ends the call that has waited longest, because honest callers send their message at once. clock: monotonic
    seconds.
    """

    def __init__(
        self,
        seconds: float,
        timed_out: Callable[[], None],
        most: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._seconds = seconds
        self._timed_out = timed_out
        self._most = most
        self._clock = clock
        # When each call began to wait, in that order. One `expire` for all, because a timer costs 3 % of a call.
        self._waiting: dict[asyncio.Task[Any], float] = {}

    def reading(self, handler: Handler) -> Handler:
        """Wrap a handler of one request message in a handler of a stream, which reads that message.

        This costs no more than gRPC's own reading, which never ends, even for calls that ended without a message.
        """
        if handler.request_streaming:
            return handler
        # gRPC's types are those of handlers that do not await.
        handle: Any = handler.unary_unary or handler.unary_stream
        waiting, clock = self._waiting, self._clock

        async def call(_requests: Any, context: Any) -> Any:
            task = asyncio.current_task()
            assert task is not None
            waiting[task] = clock()
            if self._most is not None and len(waiting) > self._most:
                self._end(next(iter(waiting)))
            try:
                message = await context.read()
            except asyncio.CancelledError:
                if task in waiting:
                    raise
                self._timed_out()
                text = (
                    f"the request message did not arrive within {self._seconds:g} s, or too many other calls waited "
                    "for theirs; send the message together with the headers"
                )
                await refuse(context, CallError("MESSAGE_TIMEOUT", text))
            finally:
                waiting.pop(task, None)
            if message is grpc.aio.EOF:
                await abort(
                    context, grpc.StatusCode.INVALID_ARGUMENT, "the call ended without a request message"
                )
            return await handle(message, context)

        return with_request_stream(handler, call)

    def expire(self) -> None:
        """End the calls whose message takes too long. To be called every second or so."""
        oldest = self._clock() - self._seconds
        overdue = []
        for task, since in self._waiting.items():
            if since > oldest:
                break
            overdue.append(task)
        for task in overdue:
            self._end(task)

    def _end(self, task: asyncio.Task[Any]) -> None:
        del self._waiting[task]
        task.cancel()
