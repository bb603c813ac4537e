"""The server's status of an ended grpc.aio stream."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

import grpc

T = TypeVar("T")

_LOST: Final = "Internal error from Core"


class StreamStatus:
    """The status of a grpc.aio stream with writes. Must be created together with the call.

    If a server ends a call during a write, grpc.aio reports INTERNAL instead of the call's status. This happens to
    half of the calls that are rejected before their first message is read. The status arrives just before the error,
    and is recorded here, or just after it: then `behind` waits for it.
    """

    def __init__(self, call: Any) -> None:
        self._call = call
        self._status: grpc.aio.AioRpcError | None = None
        call.add_done_callback(self._note)

    async def behind(self, problem: grpc.aio.AioRpcError) -> grpc.aio.AioRpcError:
        """Return the error with the server's status. Returns `problem` if it has the status, or if none arrives."""
        if problem.details() != _LOST:
            return problem
        # Poll for at most 100 ms: the status arrives within a few iterations of the event loop, without an event.
        for _ in range(100):
            self._note(self._call)
            if self._status is not None:
                return self._status
            await asyncio.sleep(0.001)
        return problem

    def _note(self, call: Any) -> None:
        if self._status is None and not call.cancelled() and _now(call.details()) != _LOST:
            self._status = grpc.aio.AioRpcError(
                _now(call.code()),
                _now(call.initial_metadata()),
                _now(call.trailing_metadata()),
                _now(call.details()),
            )


def _now(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends and return its result."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise RuntimeError("the coroutine waits for something")
