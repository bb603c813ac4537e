"""The client for asyncio: `Client` with asynchronous I/O."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Any, ClassVar, Self, TypeVar

import grpc
import grpc.aio

from .batch import IN_FLIGHT, BatchAnswer, BatchFlow, BatchItemLike, BatchSummary, OnProgress
from .catalog import CatalogChange, EvaluatorType, SpecViolation
from .connection import Connection, TypedErrors, rest_of, waited_too_long
from .convert.requests import (
    evaluate_request,
    get_type_request,
    list_types_request,
    unary_request,
    validate_request,
    watch_types_request,
)
from .errors import Cancelled, InvalidInput
from .evaluation import Evaluation
from .result import Kind
from .session import SessionFlow, SessionSummary
from .spec import OptionsLike, SpecLike
from .stream import EvaluationStream, Event, unfinished
from .stream_status import StreamStatus
from .turn import TurnLike, as_turn

T = TypeVar("T")


class _AsyncTypedErrors(TypedErrors):
    """TypedErrors for grpc.aio."""

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        # grpc.aio raises CancelledError for a cancelled call, too, which would end the caller's task silently.
        if isinstance(problem, asyncio.CancelledError) and not _is_being_cancelled():
            raise Cancelled(
                "the call was cancelled, for example because its client was closed", code="CANCELLED"
            ) from problem
        super().__exit__(kind, problem, trace)


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class AsyncClient(Connection):
    """A client for asyncio. It belongs to the event loop of its first call.

    It has the arguments, methods and errors of `Client`. In another event loop its methods raise InvalidInput.
    """

    _api: ClassVar[Any] = grpc.aio
    _semaphore: ClassVar[Any] = asyncio.Semaphore
    _errors_type: ClassVar[type[TypedErrors]] = _AsyncTypedErrors
    _loop: asyncio.AbstractEventLoop | None = None

    @property
    def _stubs(self) -> Any:
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._loop is None:
                self._loop = loop
        if self._loop is not loop:
            raise InvalidInput(
                "client", "already used in another event loop", "one AsyncClient for each event loop"
            )
        return super()._stubs

    async def evaluate(
        self,
        turn: TurnLike,
        evaluators: Iterable[SpecLike],
        *,
        options: OptionsLike | None = None,
        labels: Mapping[str, str] | None = None,
        request_id: str = "",
        timeout: float | None = None,  # noqa: ASYNC109 - gRPC's deadline, which reaches the server
    ) -> Evaluation:
        """As `Client.evaluate`."""
        request = unary_request(as_turn(turn).to_proto(), evaluators, options, labels, request_id)
        sent_with = self._short(timeout)
        stubs = self._stubs  # raises for a closed client and another event loop before it waits for a slot
        async with self._in_flight(sent_with) as left:
            answer = await stubs.evaluation.EvaluateUnary(request, **left)
        return Evaluation.from_pb(answer.summary, answer.evaluation_id)

    @asynccontextmanager
    async def _in_flight(self, sent_with: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Wait for a free slot among the calls in flight.

        Yields gRPC's arguments with the remaining timeout. Raises DeadlineExceeded when no slot was free in time.
        """
        began = time.monotonic()
        try:
            async with asyncio.timeout(sent_with["timeout"]):
                await self._slots.acquire()
        except TimeoutError:
            raise waited_too_long(sent_with) from None
        try:
            with self._typed_errors:
                yield rest_of(sent_with, began)
        finally:
            self._slots.release()

    def stream(
        self,
        turn: TurnLike,
        evaluators: Iterable[SpecLike],
        *,
        options: OptionsLike | None = None,
        labels: Mapping[str, str] | None = None,
        request_id: str = "",
        timeout: float | None = None,
    ) -> AsyncIterator[Event]:
        """As `Client.stream`; iterate with `async for`."""
        request = evaluate_request(as_turn(turn).to_proto(), evaluators, options, labels, request_id)
        return self._events(request, self._short(timeout))

    async def _events(self, request: Any, sent_with: dict[str, Any]) -> AsyncIterator[Event]:
        stream = EvaluationStream()
        call = self._stubs.evaluation.Evaluate(request, **sent_with)
        try:
            with self._typed_errors:
                async for response in call:
                    for event in stream.read(response):
                        yield event
        finally:
            call.cancel()
        if stream.evaluation is None:
            raise unfinished("evaluation")

    def session(
        self,
        evaluators: Iterable[SpecLike],
        *,
        base: TurnLike | None = None,
        options: OptionsLike | None = None,
        labels: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> "AsyncSession":
        """As `Client.session`; use it in an `async with` block."""
        flow = SessionFlow(base, evaluators, options, labels)
        sent_with = self._sent_with(timeout)
        return AsyncSession(lambda: self._stubs.evaluation.EvaluateSession(**sent_with), flow, self.server)

    def batch(
        self,
        items: Iterable[BatchItemLike] | AsyncIterable[BatchItemLike],
        evaluators: Iterable[SpecLike] = (),
        *,
        options: OptionsLike | None = None,
        labels: Mapping[str, str] | None = None,
        brief: bool = False,
        on_progress: OnProgress | None = None,
        max_in_flight: int = IN_FLIGHT,
        timeout: float | None = None,
    ) -> "AsyncBatch":
        """As `Client.batch`; iterate with `async for`.

        items: an iterable or an asynchronous iterable, taken in a task of its own.
        """
        flow = BatchFlow(
            items,
            evaluators,
            options,
            labels,
            brief=brief,
            max_in_flight=max_in_flight,
            max_message_bytes=self._max_message_bytes,
            on_progress=on_progress,
        )
        sent_with = self._sent_with(timeout)
        return AsyncBatch(lambda: self._stubs.evaluation.EvaluateBatch(**sent_with), flow, self.server)

    async def validate(
        self,
        evaluators: Iterable[SpecLike],
        *,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> list[SpecViolation]:
        """As `Client.validate`."""
        request = validate_request(evaluators)
        with self._typed_errors:
            answer = await self._stubs.evaluation.ValidateSpecs(request, **self._short(timeout))
        return [SpecViolation.from_pb(violation) for violation in answer.violations]

    async def evaluator_types(
        self,
        *,
        kind: Kind | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> list[EvaluatorType]:
        """As `Client.evaluator_types`."""
        found: list[EvaluatorType] = []
        token = ""
        while True:
            with self._typed_errors:
                page = await self._stubs.catalog.ListEvaluatorTypes(
                    list_types_request(kind, token), **self._short(timeout)
                )
            found += map(EvaluatorType.from_pb, page.evaluator_types)
            token = page.next_page_token
            if not token:
                return found

    async def evaluator_type(
        self,
        type_name: str,
        version: str = "",
        *,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> EvaluatorType:
        """As `Client.evaluator_type`."""
        with self._typed_errors:
            answer = await self._stubs.catalog.GetEvaluatorType(
                get_type_request(type_name, version), **self._short(timeout)
            )
        return EvaluatorType.from_pb(answer.evaluator_type)

    def watch_evaluator_types(
        self, after_revision: int = 0, *, timeout: float | None = None
    ) -> AsyncIterator[CatalogChange]:
        """As `Client.watch_evaluator_types`; iterate with `async for`."""
        return self._changes(watch_types_request(after_revision), self._sent_with(timeout))

    async def _changes(self, request: Any, sent_with: dict[str, Any]) -> AsyncIterator[CatalogChange]:
        call = self._stubs.catalog.WatchEvaluatorTypes(request, **sent_with)
        try:
            with self._typed_errors:
                async for response in call:
                    change = CatalogChange.from_pb(response)
                    if change is not None:
                        yield change
        finally:
            call.cancel()

    async def close(self) -> None:
        """As `Client.close`."""
        closing = self._close()
        if closing is not None:
            await closing

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncSession:
    """As `Session`, created by `AsyncClient.session`. Use it in one task at a time."""

    def __init__(self, start: Callable[[], Any], flow: SessionFlow, server: str) -> None:
        self._start = start
        self._server = server
        self._flow = flow
        self._call: Any = None
        self._typed_errors: Any = None

    @property
    def summary(self) -> SessionSummary | None:
        """The session's summary; None until the session has ended."""
        return self._flow.summary

    async def turn(self, turn: TurnLike) -> Evaluation:
        """As `Session.turn`."""
        if self._call is None:
            raise InvalidInput("session", "not open", "`async with client.session(...) as session:`")
        with self._flow.turn(turn) as request:
            return await self._answer(request)

    async def _answer(self, request: Any) -> Evaluation:
        async with self._typed_errors:
            # Writing to an ended call fails; reading then raises its status.
            with suppress(asyncio.InvalidStateError):
                await self._call.write(request)
            while (response := await self._call.read()) is not grpc.aio.EOF:
                evaluation = self._flow.read(response)
                if evaluation is not None:
                    return evaluation
        raise unfinished("session")

    async def __aenter__(self) -> Self:
        self._call = self._start()
        self._typed_errors = _TypedStreamErrors(self._server, self._call)
        async with self._typed_errors:
            with suppress(asyncio.InvalidStateError):
                await self._call.write(self._flow.opening)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        call, self._call = self._call, None
        try:
            if kind is None:
                async with self._typed_errors:
                    with suppress(grpc.aio.InternalError):
                        await call.done_writing()
                    while (response := await call.read()) is not grpc.aio.EOF:
                        self._flow.read(response)
                if self._flow.summary is None:
                    raise unfinished("session")
        finally:
            call.cancel()


class AsyncBatch:
    """As `Batch`, created by `AsyncClient.batch`."""

    def __init__(self, start: Callable[[], Any], flow: BatchFlow, server: str) -> None:
        self._start = start
        self._flow = flow
        self._server = server
        self._ready = asyncio.Event()
        self._room = asyncio.Event()
        self._complete = False
        self._refused: deque[BatchAnswer] = deque()

    @property
    def summary(self) -> BatchSummary | None:
        """The batch's summary; None until all answers have been read."""
        return self._flow.summary

    async def __aiter__(self) -> AsyncIterator[BatchAnswer]:
        self._flow.begin()
        call = self._start()
        typed_errors = _TypedStreamErrors(self._server, call)
        tasks = [asyncio.create_task(self._feed(call)), asyncio.create_task(self._send(call))]
        try:
            async with typed_errors:
                while (response := await call.read()) is not grpc.aio.EOF:
                    for answer in self._flow.read(response):
                        yield answer
                    self._room.set()
                    while self._refused:
                        yield self._refused.popleft()
            if self._flow.summary is None:
                raise unfinished("batch")
        except (asyncio.CancelledError, Cancelled):
            # `_feed` cancels the call when iterating over the items raises.
            feeder = tasks[0]
            if feeder.done() and not feeder.cancelled() and feeder.exception() is not None:
                await feeder
            raise
        finally:
            for task in tasks:
                task.cancel()
            call.cancel()
            # Otherwise the caller could not close `items` now, because `_feed` may still read it.
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _feed(self, call: Any) -> None:
        """Add items to the batch while fewer than `max_in_flight` are unanswered."""
        try:
            async for item in _each(self._flow.items):
                while not self._flow.room:
                    self._room.clear()
                    await self._room.wait()
                refused = self._flow.add(item)
                if refused is not None:
                    self._refused.append(refused)
                self._ready.set()
        except BaseException:
            call.cancel()
            raise
        finally:
            self._complete = True
            self._ready.set()

    async def _send(self, call: Any) -> None:
        """Send requests as fast as the server accepts them.

        gRPC's request iterator is not used: it cancels the call when a write fails, which hides the server's
        status.
        """
        try:
            while True:
                self._ready.clear()
                message = self._flow.take()
                if message is not None:
                    await call.write(message)
                elif self._complete:
                    await call.done_writing()
                    return
                else:
                    await self._ready.wait()
        except (grpc.RpcError, grpc.aio.InternalError, asyncio.InvalidStateError):
            return  # the call has ended; reading raises its status


async def _each(items: Iterable[Any] | AsyncIterable[Any]) -> AsyncIterator[Any]:
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
        return
    for place, item in enumerate(items):
        yield item
        if place % 64 == 63:  # about a millisecond of conversion; then let the event loop run
            await asyncio.sleep(0)


class _TypedStreamErrors(_AsyncTypedErrors):
    """TypedErrors for a grpc.aio stream with writes. Must be created together with the call."""

    def __init__(self, server: str, call: Any) -> None:
        super().__init__(server)
        self._status = StreamStatus(call)

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if isinstance(problem, grpc.aio.AioRpcError):
            found = await self._status.behind(problem)
            if found is not problem and found.code() is grpc.StatusCode.OK:
                return True  # the stream ended early; its reader raises `unfinished`
            problem = found
        self.__exit__(kind, problem, trace)
        return False
