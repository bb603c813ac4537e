"""The clients of an evald server: `Client` blocks, `AsyncClient` is for asyncio. Their methods are the same.

What they have in common is in `convert` (requests), `evaluation` and `catalog`
(answers) and `calls` (how sessions and batches go); here is the I/O.
"""

import asyncio
import math
import queue
import threading
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc
import grpc.aio

from . import convert
from .calls import (
    DEFAULT_TIMEOUT,
    MAX_MESSAGE_BYTES,
    BatchFlow,
    BatchItemLike,
    OnProgress,
    SessionFlow,
    channel_options,
    length_of,
    server_address,
    unfinished,
)
from .catalog import CatalogChange, EvaluatorType, SpecViolation
from .errors import InvalidInput, from_rpc_error
from .evaluation import BatchAnswer, BatchSummary, Evaluation, EvaluationStream, Event, SessionSummary
from .fields import shown
from .result import Kind
from .spec import OptionsLike, SpecLike
from .turn import TurnLike, as_turn
from .v1 import catalog_service_pb2_grpc, evaluation_service_pb2_grpc

_T = TypeVar("_T")

# 1,024 items: keeps a server of several cores busy, and is far below what it would queue.
_IN_FLIGHT = 1024


class _Stubs:
    """Both services over one channel, whichever kind it is."""

    def __init__(self, channel: Any) -> None:
        self.channel = channel
        self.evaluation: Any = evaluation_service_pb2_grpc.EvaluationServiceStub(channel)
        self.catalog: Any = catalog_service_pb2_grpc.CatalogServiceStub(channel)


class _Connection:
    """Where a client connects to, and what goes with each of its calls."""

    def __init__(
        self,
        server: str | None = None,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        credentials: grpc.ChannelCredentials | None = None,
        metadata: Mapping[str, str] | None = None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        self.server = server_address(server)
        self._timeout = timeout
        self._credentials = credentials
        self._metadata = tuple((metadata or {}).items())
        self._options = channel_options(max_message_bytes)

    def _open(self, api: Any) -> _Stubs:
        """api: the module that makes the channels, grpc or grpc.aio."""
        if self._credentials is None:
            return _Stubs(api.insecure_channel(self.server, options=self._options))
        return _Stubs(api.secure_channel(self.server, self._credentials, options=self._options))

    def _sent_with(self, timeout: float | None) -> dict[str, Any]:
        """timeout: seconds; infinity for none."""
        if timeout is not None and not timeout > 0:
            raise InvalidInput("timeout", shown(timeout), "seconds above 0, or math.inf for no limit")
        limit = None if timeout is None or timeout == math.inf else timeout
        return {"timeout": limit, "metadata": self._metadata}

    def _short(self, timeout: float | None) -> dict[str, Any]:
        return self._sent_with(self._timeout if timeout is None else timeout)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.server!r})"


class _TypedErrors:
    """Raises the errors of this package instead of gRPC's."""

    def __init__(self, server: str) -> None:
        self._server = server

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(problem, grpc.RpcError):
            raise from_rpc_error(problem, self._server) from problem


class _TypedStreamErrors(_TypedErrors):
    """The same for a stream of grpc.aio that is written to. Made as soon as the call is.

    When a server ends a call while a message is on its way, grpc.aio puts an
    internal error in the place of the call's status, a moment before or after
    that comes in; so the status is noted when it does.
    """

    def __init__(self, server: str, call: Any) -> None:
        super().__init__(server)
        self._ended: grpc.aio.AioRpcError | None = None
        self._has_ended = asyncio.Event()
        call.add_done_callback(self._note)

    def _note(self, call: Any) -> None:
        if self._ended is None and not call.cancelled():
            code, details = _now(call.code()), _now(call.details())
            if details != _STATUS_LOST:
                self._ended = grpc.aio.AioRpcError(
                    code, _now(call.initial_metadata()), _now(call.trailing_metadata()), details
                )
                self._has_ended.set()

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if isinstance(problem, grpc.aio.AioRpcError) and problem.details() == _STATUS_LOST:
            with suppress(TimeoutError):
                # 1 s: it is here already, but for the turns of the event loop that it takes to see it.
                await asyncio.wait_for(self._has_ended.wait(), 1)
            problem = self._ended or problem
            if problem.code() is grpc.StatusCode.OK:
                return True  # it ended early, which its reader finds out
        self.__exit__(kind, problem, trace)
        return False


_STATUS_LOST = "Internal error from Core"


def _now(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """The result of a coroutine that has nothing to wait for."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: _T = done.value
        return result
    raise RuntimeError("the coroutine waits for something")


class Client(_Connection):
    """A client that blocks. Safe to share between threads; make one and keep it.

    server: address of the server, as gRPC spells targets ("HOST:PORT", "dns:///NAME:PORT",
        "unix:PATH"); None means $EVALD_SERVER, else 127.0.0.1:50051.
    timeout: seconds for a call with one answer or one stream of results; math.inf for no limit.
    credentials: of the channel, for example `grpc.ssl_channel_credentials()`; None means plaintext.
    metadata: sent with every call, for example {"authorization": "Bearer ..."}.
    max_message_bytes: largest message sent or received.

    Every method raises `evald.EvaldError` when the call fails, and InvalidInput,
    before anything is sent, for what cannot be sent.
    """

    def __init__(
        self,
        server: str | None = None,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        credentials: grpc.ChannelCredentials | None = None,
        metadata: Mapping[str, str] | None = None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        super().__init__(
            server,
            timeout=timeout,
            credentials=credentials,
            metadata=metadata,
            max_message_bytes=max_message_bytes,
        )
        self._stubs = self._open(grpc)
        self._typed_errors = _TypedErrors(self.server)

    def evaluate(
        self,
        turn: TurnLike,
        evaluators: Iterable[SpecLike],
        *,
        options: OptionsLike | None = None,
        labels: Mapping[str, str] | None = None,
        request_id: str = "",
        timeout: float | None = None,
    ) -> Evaluation:
        """Evaluate one turn and wait for all results.

        labels: low-cardinality labels for the server's telemetry.
        request_id: makes repeating the call safe for ten minutes; at most 128 characters.
        timeout: seconds; None means the client's.
        """
        request = convert.unary_request(as_turn(turn).to_proto(), evaluators, options, labels, request_id)
        with self._typed_errors:
            answer = self._stubs.evaluation.EvaluateUnary(request, **self._short(timeout))
        return Evaluation.from_pb(answer.summary, answer.evaluation_id)

    def stream(
        self,
        turn: TurnLike,
        evaluators: Iterable[SpecLike],
        *,
        options: OptionsLike | None = None,
        labels: Mapping[str, str] | None = None,
        request_id: str = "",
        timeout: float | None = None,
    ) -> Iterator[Event]:
        """Evaluate one turn: the plan (Started), every EvaluatorResult as soon as it is there, and
        the Evaluation last. Arguments as in `evaluate`. Leaving the loop cancels the call."""
        request = convert.evaluate_request(as_turn(turn).to_proto(), evaluators, options, labels, request_id)
        return self._events(request, self._short(timeout))

    def _events(self, request: Any, sent_with: dict[str, Any]) -> Iterator[Event]:
        stream = EvaluationStream()
        call = self._stubs.evaluation.Evaluate(request, **sent_with)
        try:
            with self._typed_errors:
                for response in call:
                    yield from stream.read(response)
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
    ) -> "Session":
        """A conversation that is evaluated turn by turn; a context manager.

        base: what is the same for all turns: scenario, persona, expected, ids, metadata, and the
            messages so far.
        timeout: seconds for the whole session; None means no limit.
        """
        context = None if base is None else as_turn(base).to_proto()
        opening = convert.session_open(context, evaluators, options, labels)
        sent_with = self._sent_with(timeout)
        return Session(
            lambda requests: self._stubs.evaluation.EvaluateSession(requests, **sent_with),
            opening,
            self._typed_errors,
        )

    def batch(
        self,
        items: Iterable[BatchItemLike],
        evaluators: Iterable[SpecLike] = (),
        *,
        options: OptionsLike | None = None,
        labels: Mapping[str, str] | None = None,
        brief: bool = False,
        on_progress: OnProgress | None = None,
        max_in_flight: int = _IN_FLIGHT,
        timeout: float | None = None,
    ) -> "Batch":
        """Many turns over one stream; iterate over the answers, in order of completion.

        items: turns, (id, turn) pairs or BatchItem objects; taken one by one in the thread that
            iterates, and only while there is room.
        brief: leave reason, checks and metadata out of the answers to items that passed.
        on_progress: called with a BatchProgress when answers have come in.
        max_in_flight: most items sent and not answered yet.
        timeout: seconds for the whole batch; None means no limit.
        """
        flow = BatchFlow(
            evaluators,
            options,
            labels,
            brief=brief,
            max_in_flight=max_in_flight,
            total=length_of(items),
            on_progress=on_progress,
        )
        sent_with = self._sent_with(timeout)
        return Batch(
            lambda requests: self._stubs.evaluation.EvaluateBatch(requests, **sent_with),
            items,
            flow,
            self._typed_errors,
        )

    def validate(
        self, evaluators: Iterable[SpecLike], *, timeout: float | None = None
    ) -> list[SpecViolation]:
        """Everything that is wrong with the specs; empty when they are fine. Runs nothing."""
        request = convert.validate_request(evaluators)
        with self._typed_errors:
            answer = self._stubs.evaluation.ValidateSpecs(request, **self._short(timeout))
        return [SpecViolation.from_pb(violation) for violation in answer.violations]

    def evaluator_types(
        self, *, kind: Kind | None = None, timeout: float | None = None
    ) -> list[EvaluatorType]:
        """All types that the server offers, by name and version. kind: assertions or metrics only."""
        found: list[EvaluatorType] = []
        token = ""
        while True:
            with self._typed_errors:
                page = self._stubs.catalog.ListEvaluatorTypes(
                    convert.list_types_request(kind or 0, token), **self._short(timeout)
                )
            found += map(EvaluatorType.from_pb, page.evaluator_types)
            token = page.next_page_token
            if not token:
                return found

    def evaluator_type(
        self, type_name: str, version: str = "", *, timeout: float | None = None
    ) -> EvaluatorType:
        """One type. version: "" means the server's default. Raises UnknownEvaluator."""
        with self._typed_errors:
            answer = self._stubs.catalog.GetEvaluatorType(
                convert.get_type_request(type_name, version), **self._short(timeout)
            )
        return EvaluatorType.from_pb(answer.evaluator_type)

    def watch_evaluator_types(
        self, after_revision: int = 0, *, timeout: float | None = None
    ) -> Iterator[CatalogChange]:
        """The catalogue and then its changes, until the loop is left.

        after_revision: go on from there; 0 sends everything first. Raises
        RevisionGone when the server has forgotten what came after it.
        """
        return self._changes(convert.watch_types_request(after_revision), self._sent_with(timeout))

    def _changes(self, request: Any, sent_with: dict[str, Any]) -> Iterator[CatalogChange]:
        call = self._stubs.catalog.WatchEvaluatorTypes(request, **sent_with)
        try:
            with self._typed_errors:
                for response in call:
                    change = CatalogChange.from_pb(response)
                    if change is not None:
                        yield change
        finally:
            call.cancel()

    def close(self) -> None:
        """End the calls that are still open and close the connection."""
        self._stubs.channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Session:
    """A conversation that is evaluated turn by turn. Made by `Client.session`; for one thread at a time."""

    def __init__(
        self, start: Callable[[Iterator[Any]], Any], opening: Any, typed_errors: _TypedErrors
    ) -> None:
        self._start = start
        self._opening = opening
        self._typed_errors = typed_errors
        self._flow = SessionFlow()
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._call: Any = None

    @property
    def summary(self) -> SessionSummary | None:
        """What the session comes to; None before it has ended."""
        return self._flow.summary

    def turn(self, turn: TurnLike) -> Evaluation:
        """Add a turn to the conversation and evaluate it.

        Its messages are those since the last turn, from whoever wrote them.
        Raises TurnRefused when this turn cannot be evaluated: the session goes on.
        """
        if self._call is None:
            raise InvalidInput("session", "not open", "`with client.session(...) as session:`")
        self._requests.put(self._flow.turn(turn))
        with self._typed_errors:
            for response in self._call:
                evaluation = self._flow.read(response)
                if evaluation is not None:
                    return evaluation
        raise unfinished("session")

    def __enter__(self) -> Self:
        self._requests.put(self._opening)
        self._call = self._start(iter(self._requests.get, None))
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._requests.put(None)
        call, self._call = self._call, None
        try:
            if kind is None:
                with self._typed_errors:
                    for response in call:
                        self._flow.read(response)
                if self._flow.summary is None:
                    raise unfinished("session")
        finally:
            call.cancel()


class Batch:
    """The answers to a batch, in order of completion. Made by `Client.batch`; iterate over it once."""

    def __init__(
        self,
        start: Callable[[Iterator[Any]], Any],
        items: Iterable[BatchItemLike],
        flow: BatchFlow,
        typed_errors: _TypedErrors,
    ) -> None:
        self._start = start
        self._items = items
        self._flow = flow
        self._typed_errors = typed_errors
        self._ready = threading.Event()
        self._complete = False

    @property
    def summary(self) -> BatchSummary | None:
        """What the batch comes to; None before all answers have been read."""
        return self._flow.summary

    def __iter__(self) -> Iterator[BatchAnswer]:
        flow = self._flow
        responses: queue.SimpleQueue[Any] = queue.SimpleQueue()
        call = self._start(self._messages())
        # A thread of its own, because gRPC cannot be asked whether a response is there already.
        threading.Thread(target=_pump, args=(call, responses), name="evald-batch", daemon=True).start()
        try:
            for item in self._items:
                refused = flow.add(item)
                self._ready.set()
                if refused is not None:
                    yield refused
                while not flow.room or not responses.empty():
                    yield from self._read(responses.get())
            self._end()
            while flow.summary is None:
                yield from self._read(responses.get())
        finally:
            self._end()
            call.cancel()

    def _messages(self) -> Iterator[Any]:
        """What is sent; runs in gRPC's own thread."""
        while True:
            self._ready.clear()
            message = self._flow.take()
            if message is not None:
                yield message
            elif self._complete:
                return
            else:
                self._ready.wait()

    def _end(self) -> None:
        self._complete = True
        self._ready.set()

    def _read(self, response: Any) -> list[BatchAnswer]:
        if response is None:
            raise unfinished("batch")
        with self._typed_errors:
            if isinstance(response, BaseException):
                raise response
        return self._flow.read(response)


def _pump(call: Any, responses: "queue.SimpleQueue[Any]") -> None:
    try:
        for response in call:
            responses.put(response)
    except grpc.RpcError as problem:
        responses.put(problem)
    else:
        responses.put(None)


class AsyncClient(_Connection):
    """A client for asyncio, to be used in one event loop. Arguments, methods and errors as in `Client`."""

    def __init__(
        self,
        server: str | None = None,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        credentials: grpc.ChannelCredentials | None = None,
        metadata: Mapping[str, str] | None = None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        super().__init__(
            server,
            timeout=timeout,
            credentials=credentials,
            metadata=metadata,
            max_message_bytes=max_message_bytes,
        )
        self._opened: _Stubs | None = None
        self._typed_errors = _TypedErrors(self.server)

    @property
    def _stubs(self) -> _Stubs:
        # Not before the first call: a channel belongs to the loop that runs when it is made.
        if self._opened is None:
            self._opened = self._open(grpc.aio)
        return self._opened

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
        """Evaluate one turn and wait for all results. As in `Client`."""
        request = convert.unary_request(as_turn(turn).to_proto(), evaluators, options, labels, request_id)
        with self._typed_errors:
            answer = await self._stubs.evaluation.EvaluateUnary(request, **self._short(timeout))
        return Evaluation.from_pb(answer.summary, answer.evaluation_id)

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
        """Evaluate one turn and get what happens as it happens. As in `Client`."""
        request = convert.evaluate_request(as_turn(turn).to_proto(), evaluators, options, labels, request_id)
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
        """A conversation that is evaluated turn by turn; an async context manager. As in `Client`."""
        context = None if base is None else as_turn(base).to_proto()
        opening = convert.session_open(context, evaluators, options, labels)
        sent_with = self._sent_with(timeout)
        return AsyncSession(lambda: self._stubs.evaluation.EvaluateSession(**sent_with), opening, self.server)

    def batch(
        self,
        items: Iterable[BatchItemLike] | AsyncIterable[BatchItemLike],
        evaluators: Iterable[SpecLike] = (),
        *,
        options: OptionsLike | None = None,
        labels: Mapping[str, str] | None = None,
        brief: bool = False,
        on_progress: OnProgress | None = None,
        max_in_flight: int = _IN_FLIGHT,
        timeout: float | None = None,
    ) -> "AsyncBatch":
        """Many turns over one stream; `async for` over the answers. As in `Client`; items may be async."""
        flow = BatchFlow(
            evaluators,
            options,
            labels,
            brief=brief,
            max_in_flight=max_in_flight,
            total=length_of(items),
            on_progress=on_progress,
        )
        sent_with = self._sent_with(timeout)
        return AsyncBatch(
            lambda: self._stubs.evaluation.EvaluateBatch(**sent_with),
            items,
            flow,
            self.server,
        )

    async def validate(
        self,
        evaluators: Iterable[SpecLike],
        *,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> list[SpecViolation]:
        """Everything that is wrong with the specs; empty when they are fine. Runs nothing."""
        request = convert.validate_request(evaluators)
        with self._typed_errors:
            answer = await self._stubs.evaluation.ValidateSpecs(request, **self._short(timeout))
        return [SpecViolation.from_pb(violation) for violation in answer.violations]

    async def evaluator_types(
        self,
        *,
        kind: Kind | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> list[EvaluatorType]:
        """All types that the server offers, by name and version. As in `Client`."""
        found: list[EvaluatorType] = []
        token = ""
        while True:
            with self._typed_errors:
                page = await self._stubs.catalog.ListEvaluatorTypes(
                    convert.list_types_request(kind or 0, token), **self._short(timeout)
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
        """One type. As in `Client`."""
        with self._typed_errors:
            answer = await self._stubs.catalog.GetEvaluatorType(
                convert.get_type_request(type_name, version), **self._short(timeout)
            )
        return EvaluatorType.from_pb(answer.evaluator_type)

    def watch_evaluator_types(
        self, after_revision: int = 0, *, timeout: float | None = None
    ) -> AsyncIterator[CatalogChange]:
        """The catalogue and then its changes, until the loop is left. As in `Client`."""
        return self._changes(convert.watch_types_request(after_revision), self._sent_with(timeout))

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
        """End the calls that are still open and close the connection."""
        if self._opened is not None:
            await self._opened.channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncSession:
    """A conversation that is evaluated turn by turn. Made by `AsyncClient.session`; one turn at a time."""

    def __init__(self, start: Callable[[], Any], opening: Any, server: str) -> None:
        self._start = start
        self._opening = opening
        self._server = server
        self._flow = SessionFlow()
        self._call: Any = None
        self._typed_errors: Any = None

    @property
    def summary(self) -> SessionSummary | None:
        """What the session comes to; None before it has ended."""
        return self._flow.summary

    async def turn(self, turn: TurnLike) -> Evaluation:
        """Add a turn to the conversation and evaluate it. As in `Session`."""
        if self._call is None:
            raise InvalidInput("session", "not open", "`async with client.session(...) as session:`")
        request = self._flow.turn(turn)
        async with self._typed_errors:
            # A call that has ended refuses to write; reading then says why it ended.
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
                await self._call.write(self._opening)
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
    """The answers to a batch, in order of completion. Made by `AsyncClient.batch`; iterate over it once."""

    def __init__(
        self,
        start: Callable[[], Any],
        items: Iterable[BatchItemLike] | AsyncIterable[BatchItemLike],
        flow: BatchFlow,
        server: str,
    ) -> None:
        self._start = start
        self._items = items
        self._flow = flow
        self._server = server
        self._ready = asyncio.Event()
        self._room = asyncio.Event()
        self._complete = False
        self._refused: deque[BatchAnswer] = deque()

    @property
    def summary(self) -> BatchSummary | None:
        """What the batch comes to; None before all answers have been read."""
        return self._flow.summary

    async def __aiter__(self) -> AsyncIterator[BatchAnswer]:
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
        except asyncio.CancelledError:
            # The feeder cancels the call when the items themselves raise.
            feeder = tasks[0]
            if feeder.done() and not feeder.cancelled() and feeder.exception() is not None:
                await feeder
            raise
        finally:
            for task in tasks:
                task.cancel()
            call.cancel()

    async def _feed(self, call: Any) -> None:
        """Take items up while there is room."""
        try:
            async for item in _each(self._items):
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
        """Send what is ready, as fast as the server takes it.

        Not left to gRPC's own request iterator: that one cancels the call when
        it cannot write, and so hides why the server ended it.
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
            return  # the call is over; whoever reads learns why


async def _each(items: Iterable[Any] | AsyncIterable[Any]) -> AsyncIterator[Any]:
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
        return
    for place, item in enumerate(items):
        yield item
        if place % 64 == 63:  # about a millisecond of converting; then the loop gets its turn
            await asyncio.sleep(0)
