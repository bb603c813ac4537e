"""The blocking client.

This module does only the I/O. `convert.requests` builds the requests; `evaluation`, `stream` and `catalog` parse
the responses; `session` and `batch` hold the state of those calls. `aio` is the same for asyncio.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Self

import grpc

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
from .errors import InvalidInput
from .evaluation import Evaluation
from .result import Kind
from .session import SessionFlow, SessionSummary
from .spec import OptionsLike, SpecLike
from .stream import EvaluationStream, Event, unfinished
from .turn import TurnLike, as_turn


class Client(Connection):
    """A blocking client. Threads can share it; create one and keep it.

    server: address of the server in gRPC's target syntax ("HOST:PORT", "dns:///NAME:PORT", "unix:PATH");
        None means $EVALD_SERVER, else 127.0.0.1:50051.
    timeout: deadline in seconds of a unary call or one stream of results; math.inf for no limit.
    tls: `evald.Tls(...)`, True for gRPC's own root certificates, False for plaintext; None reads EVALD_TLS,
        EVALD_CA_FILE, EVALD_CERT_FILE and EVALD_KEY_FILE.
    token: API key, a `Path` of its file, or a function that returns it; None reads EVALD_TOKEN or the file
        EVALD_TOKEN_FILE. Sent as `authorization: Bearer ...` with every call.
    insecure: allow sending the token to another machine without TLS.
    credentials: channel credentials, instead of tls.
    metadata: sent with every call, for example {"authorization": "Bearer ..."}; bytes for names that end with -bin.
    max_message_bytes: largest message sent or received.

    Raises InvalidInput for invalid arguments, for example a URL or a host without a port as `server`.
    Every method raises `evald.EvaldError` when the call fails. Before sending, it raises InvalidInput for invalid
    arguments.
    """

    _api: ClassVar[Any] = grpc
    _semaphore: ClassVar[Any] = threading.Semaphore
    _errors_type: ClassVar[type[TypedErrors]] = TypedErrors

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

        Returns the evaluation, whatever its verdict. Raises EvaldError when the call fails, and InvalidInput.
        """
        request = unary_request(as_turn(turn).to_proto(), evaluators, options, labels, request_id)
        sent_with = self._short(timeout)
        with self._in_flight(sent_with) as left:
            answer = self._stubs.evaluation.EvaluateUnary(request, **left)
        return Evaluation.from_pb(answer.summary, answer.evaluation_id)

    @contextmanager
    def _in_flight(self, sent_with: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Wait for a free slot among the calls in flight.

        Yields gRPC's arguments with the remaining timeout. Raises DeadlineExceeded when no slot was free in time.
        """
        began = time.monotonic()
        if not self._slots.acquire(timeout=sent_with["timeout"]):
            raise waited_too_long(sent_with)
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
    ) -> Iterator[Event]:
        """Evaluate one turn and iterate over the events.

        The events are Started with the plan, each EvaluatorResult as soon as it is available, and the Evaluation
        last. Arguments as in `evaluate`. Leaving the loop cancels the call.

        Raises InvalidInput at once; the iterator raises EvaldError when the call fails.
        """
        request = evaluate_request(as_turn(turn).to_proto(), evaluators, options, labels, request_id)
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
        """Open a session, which evaluates a conversation turn by turn. Use it in a `with` block.

        base: the data that all turns share: scenario, persona, expected, ids, metadata, and the previous messages.
        timeout: seconds for the whole session; None means no limit.

        Raises InvalidInput. The session raises EvaldError when the call fails.
        """
        flow = SessionFlow(base, evaluators, options, labels)
        sent_with = self._sent_with(timeout)
        return Session(
            lambda requests: self._stubs.evaluation.EvaluateSession(requests, **sent_with),
            flow,
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
        max_in_flight: int = IN_FLIGHT,
        timeout: float | None = None,
    ) -> "Batch":
        """Evaluate many turns over one stream. Iterate over the answers, which arrive in order of completion.

        items: turns, (id, turn) pairs or BatchItem objects. The iterating thread takes them one by one, and only
            while fewer than `max_in_flight` are unanswered.
        brief: omit reason, checks, metadata and provenance from the answers to items that passed.
        on_progress: called with a BatchProgress when answers have arrived.
        max_in_flight: maximum number of unanswered items.
        timeout: seconds for the whole batch; None means no limit.

        Raises InvalidInput. An invalid item only gets an answer with an error. The iterator raises EvaldError when
        the call fails.
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
        return Batch(
            lambda requests: self._stubs.evaluation.EvaluateBatch(requests, **sent_with),
            flow,
            self._typed_errors,
        )

    def validate(
        self, evaluators: Iterable[SpecLike], *, timeout: float | None = None
    ) -> list[SpecViolation]:
        """Validate specs without running them.

        Returns one violation per problem; an empty list if all specs are valid. Raises EvaldError and InvalidInput.
        """
        request = validate_request(evaluators)
        with self._typed_errors:
            answer = self._stubs.evaluation.ValidateSpecs(request, **self._short(timeout))
        return [SpecViolation.from_pb(violation) for violation in answer.violations]

    def evaluator_types(
        self, *, kind: Kind | None = None, timeout: float | None = None
    ) -> list[EvaluatorType]:
        """Return the server's evaluator types, ordered by name and version.

        kind: assertions or metrics only; None means both.
        timeout: seconds for each page of the list; None means the client's.

        Raises EvaldError and InvalidInput.
        """
        found: list[EvaluatorType] = []
        token = ""
        while True:
            with self._typed_errors:
                page = self._stubs.catalog.ListEvaluatorTypes(
                    list_types_request(kind, token), **self._short(timeout)
                )
            found += map(EvaluatorType.from_pb, page.evaluator_types)
            token = page.next_page_token
            if not token:
                return found

    def evaluator_type(
        self, type_name: str, version: str = "", *, timeout: float | None = None
    ) -> EvaluatorType:
        """Return one evaluator type.

        version: "" means the server's default.

        Raises UnknownEvaluator when the server does not offer it, other EvaldErrors, and InvalidInput.
        """
        with self._typed_errors:
            answer = self._stubs.catalog.GetEvaluatorType(
                get_type_request(type_name, version), **self._short(timeout)
            )
        return EvaluatorType.from_pb(answer.evaluator_type)

    def watch_evaluator_types(
        self, after_revision: int = 0, *, timeout: float | None = None
    ) -> Iterator[CatalogChange]:
        """Iterate over the catalogue and then over its changes. Leaving the loop cancels the call.

        after_revision: yield only changes after this revision; 0 yields the whole catalogue first.
        timeout: seconds; None means no limit.

        The iterator raises RevisionGone when the server no longer has the changes after that revision, and other
        EvaldErrors. Raises InvalidInput at once.
        """
        return self._changes(watch_types_request(after_revision), self._sent_with(timeout))

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
        """Cancel open calls and close the connection. Further calls raise InvalidInput."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Session:
    """A session, created by `Client.session`. It evaluates a conversation turn by turn. Use it in one thread at a time.

    The end of the `with` block waits for the summary, and raises EvaldError when the call fails.
    """

    def __init__(
        self, start: Callable[[Iterator[Any]], Any], flow: SessionFlow, typed_errors: TypedErrors
    ) -> None:
        self._start = start
        self._typed_errors = typed_errors
        self._flow = flow
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._call: Any = None

    @property
    def summary(self) -> SessionSummary | None:
        """The session's summary; None until the session has ended."""
        return self._flow.summary

    def turn(self, turn: TurnLike) -> Evaluation:
        """Add a turn to the conversation and evaluate it.

        turn: contains the messages since the previous turn, including the user's.

        Returns the turn's evaluation. Raises TurnRefused when this turn cannot be evaluated (the session stays
        open), InvalidInput for an invalid turn or a session that is not open, and other EvaldErrors when the call
        fails.
        """
        if self._call is None:
            raise InvalidInput("session", "not open", "`with client.session(...) as session:`")
        with self._flow.turn(turn) as request, self._typed_errors:
            self._requests.put(request)
            for response in self._call:
                evaluation = self._flow.read(response)
                if evaluation is not None:
                    return evaluation
        raise unfinished("session")

    def __enter__(self) -> Self:
        self._requests.put(self._flow.opening)
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
    """A batch, created by `Client.batch`. Iterating yields the answers in order of completion, only once.

    Iterating raises EvaldError when the call fails, and RuntimeError the second time.
    """

    def __init__(
        self, start: Callable[[Iterator[Any]], Any], flow: BatchFlow, typed_errors: TypedErrors
    ) -> None:
        self._start = start
        self._flow = flow
        self._typed_errors = typed_errors
        self._ready = threading.Event()
        self._complete = False

    @property
    def summary(self) -> BatchSummary | None:
        """The batch's summary; None until all answers have been read."""
        return self._flow.summary

    def __iter__(self) -> Iterator[BatchAnswer]:
        flow = self._flow
        flow.begin()
        responses: queue.SimpleQueue[Any] = queue.SimpleQueue()
        call = self._start(self._messages())
        # Read in a separate thread, because gRPC has no way to check whether a response has arrived.
        threading.Thread(target=_pump, args=(call, responses), name="evald-batch", daemon=True).start()
        try:
            for item in flow.items:
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
        """Yield the requests to send. gRPC iterates in its own thread."""
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
    except Exception as problem:  # noqa: BLE001 - raised where the responses are read
        responses.put(problem)
    else:
        responses.put(None)
