"""What the clients do on the wire: retries, deadlines, metadata, back-pressure, cancellation. The server is scripted."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import grpc
import pytest

from evald import Turn, errors
from evald.batch import BatchProgress
from evald.v1 import catalog_service_pb2 as catalog
from evald.v1 import catalog_service_pb2_grpc, evaluation_service_pb2_grpc, evaluator_pb2, result_pb2
from evald.v1 import evaluation_service_pb2 as evaluation

from .both import Calls, awaiting, blocking

TURN = Turn(response="hi")
PASSED = result_pb2.AggregatedEvaluation(verdict=1)  # type: ignore[arg-type]
SECONDS = 20  # bounds a test that hangs; nothing waits so long


METHODS = (
    "Evaluate",
    "EvaluateUnary",
    "EvaluateSession",
    "EvaluateBatch",
    "ListEvaluatorTypes",
    "WatchEvaluatorTypes",
)


class Scripted(
    evaluation_service_pb2_grpc.EvaluationServiceServicer, catalog_service_pb2_grpc.CatalogServiceServicer
):
    """A server whose methods are set by the test."""

    def __init__(self) -> None:
        self.attempts = 0
        self.ended = threading.Event()
        self._handlers: dict[str, Callable[[Any, grpc.ServicerContext], Any]] = {}
        for method in METHODS:
            setattr(self, method, partial(self._handle, method))

    def on(self, method: str, handle: Callable[[Any, grpc.ServicerContext], Any]) -> None:
        """handle: takes request (or iterator of requests) and context."""
        self._handlers[method] = handle

    def _handle(self, method: str, request: Any, context: grpc.ServicerContext) -> Any:
        self.attempts += 1
        context.add_callback(self.ended.set)
        return self._handlers[method](request, context)


class World:
    """A scripted server and a client of it."""

    def __init__(self, scripted: Scripted, address: str, connect: Any) -> None:
        self.on = scripted.on
        self.scripted = scripted
        self.address = address
        self._connect = connect

    @contextmanager
    def client(self, **options: Any) -> Iterator[Calls]:
        """A client with these options."""
        with self._connect(self.address, **options) as calls:
            yield calls


@pytest.fixture(params=[blocking, awaiting], ids=["Client", "AsyncClient"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    scripted = Scripted()
    pool = ThreadPoolExecutor(8)
    server = grpc.server(pool)
    evaluation_service_pb2_grpc.add_EvaluationServiceServicer_to_server(scripted, server)
    catalog_service_pb2_grpc.add_CatalogServiceServicer_to_server(scripted, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield World(scripted, f"127.0.0.1:{port}", request.param)
    server.stop(None).wait()
    pool.shutdown()


def failing(code: grpc.StatusCode, times: int, answer: Any) -> Any:
    """Fails so many times and then answers."""
    left = iter(range(times))

    def handle(request: Any, context: grpc.ServicerContext) -> Any:
        if next(left, None) is not None:
            context.abort(code, "not now")
        return answer

    return handle


def test_an_unavailable_server_is_asked_again(world: World) -> None:
    answer = evaluation.EvaluateUnaryResponse(summary=PASSED)
    world.on("EvaluateUnary", failing(grpc.StatusCode.UNAVAILABLE, 2, answer))
    with world.client() as calls:
        assert calls.call("evaluate", TURN, ["x"]).passed
    assert world.scripted.attempts == 3


def test_four_attempts_are_enough(world: World) -> None:
    world.on("EvaluateUnary", failing(grpc.StatusCode.UNAVAILABLE, 9, None))
    with world.client() as calls, pytest.raises(errors.Unavailable):
        calls.call("evaluate", TURN, ["x"])
    assert world.scripted.attempts == 4


@pytest.mark.parametrize(
    "code",
    [
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.ABORTED,
    ],
    ids=lambda code: code.name,
)
def test_nothing_else_is_asked_again(world: World, code: grpc.StatusCode) -> None:
    world.on("EvaluateUnary", failing(code, 9, None))
    with world.client() as calls, pytest.raises(errors.EvaldError) as failed:
        calls.call("evaluate", TURN, ["x"])
    assert (failed.value.code, world.scripted.attempts) == (code.name, 1)


def test_streams_are_not_repeated(world: World) -> None:
    world.on("Evaluate", failing(grpc.StatusCode.UNAVAILABLE, 9, None))
    with world.client() as calls, pytest.raises(errors.Unavailable):
        calls.take(None, "stream", TURN, ["x"])
    assert world.scripted.attempts == 1


def test_a_server_that_is_not_there_is_named() -> None:
    with blocking("127.0.0.1:1") as calls, pytest.raises(errors.Unavailable, match=r"127\.0\.0\.1:1"):
        calls.call("evaluate", TURN, ["x"], timeout=SECONDS)


def test_metadata_goes_with_every_call(world: World) -> None:
    seen: list[dict[str, Any]] = []

    def note(answer: Any) -> Any:
        def handle(request: Any, context: grpc.ServicerContext) -> Any:
            seen.append(dict(context.invocation_metadata()))
            return answer

        return handle

    world.on("EvaluateUnary", note(evaluation.EvaluateUnaryResponse(summary=PASSED)))
    world.on("Evaluate", note(iter([evaluation.EvaluateResponse(summary=PASSED)])))
    world.on("ListEvaluatorTypes", note(catalog.ListEvaluatorTypesResponse()))
    with world.client(metadata={"authorization": "Bearer x"}) as calls:
        calls.call("evaluate", TURN, ["x"])
        calls.take(None, "stream", TURN, ["x"])
        calls.call("evaluator_types")
    assert [metadata["authorization"] for metadata in seen] == ["Bearer x"] * 3


@pytest.mark.parametrize(
    ("client", "call", "least", "most"),
    [
        pytest.param({}, {}, 50, 60, id="default"),
        pytest.param({"timeout": 30}, {}, 20, 30, id="of the client"),
        pytest.param({"timeout": 30}, {"timeout": 9}, 1, 9, id="of the call"),
        pytest.param({}, {"timeout": float("inf")}, 1e6, float("inf"), id="none"),
    ],
)
def test_the_server_is_told_the_time_that_is_left(
    world: World, client: dict[str, Any], call: dict[str, Any], least: float, most: float
) -> None:
    left: list[float] = []

    def handle(request: Any, context: grpc.ServicerContext) -> Any:
        remaining: Any = context.time_remaining()
        left.append(float("inf") if remaining is None else remaining)
        return evaluation.EvaluateUnaryResponse(summary=PASSED)

    world.on("EvaluateUnary", handle)
    with world.client(**client) as calls:
        calls.call("evaluate", TURN, ["x"], **call)
    assert least < left[0] <= most + 1  # gRPC rounds up on the way


def test_time_that_runs_out_is_a_timeout_and_reaches_the_server(world: World) -> None:
    world.on("EvaluateUnary", lambda *_: world.scripted.ended.wait(SECONDS))
    with world.client() as calls, pytest.raises(errors.DeadlineExceeded):
        calls.call("evaluate", TURN, ["x"], timeout=0.5)
    assert world.scripted.ended.wait(SECONDS)


def test_a_verdict_from_the_future_is_not_passed(world: World) -> None:
    summary = result_pb2.AggregatedEvaluation(success=True)
    summary.verdict = 77  # type: ignore[assignment]
    world.on("EvaluateUnary", lambda *_: evaluation.EvaluateUnaryResponse(summary=summary))
    with world.client() as calls:
        assert not calls.call("evaluate", TURN, ["x"]).passed


def test_a_stream_that_ends_well_without_a_summary_is_an_error(world: World) -> None:
    world.on("Evaluate", lambda *_: iter([evaluation.EvaluateResponse()]))
    with world.client() as calls, pytest.raises(errors.ServerError, match="without a summary"):
        calls.take(None, "stream", TURN, ["x"])


def test_a_batch_that_ends_well_without_a_summary_is_an_error(world: World) -> None:
    world.on("EvaluateBatch", lambda *_: iter([]))
    with world.client() as calls, pytest.raises(errors.ServerError, match="without a summary"):
        calls.batch([TURN], ["x"])


def test_a_session_that_ends_well_without_a_summary_is_an_error(world: World) -> None:
    world.on("EvaluateSession", lambda *_: iter([]))
    with world.client() as calls:
        with pytest.raises(errors.ServerError, match="without a summary"), calls.session(["x"]) as session:
            session.turn(TURN)
        with pytest.raises(errors.ServerError, match="without a summary"), calls.session(["x"]):
            pass


@pytest.mark.parametrize("method", ["stream", "watch_evaluator_types"])
def test_leaving_a_stream_cancels_the_call(world: World, method: str) -> None:
    def endless(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        if method == "stream":
            yield evaluation.EvaluateResponse(results=[result_pb2.EvaluationResult(name="x")])
        else:
            entry = evaluator_pb2.EvaluatorType(type="x")
            yield catalog.WatchEvaluatorTypesResponse(upserted=entry)
        world.scripted.ended.wait(SECONDS)

    world.on("Evaluate", endless)
    world.on("WatchEvaluatorTypes", endless)
    arguments = (TURN, ["x"]) if method == "stream" else ()
    with world.client() as calls:
        assert len(calls.take(1, method, *arguments)) == 1
        assert world.scripted.ended.wait(SECONDS)


def test_an_exception_inside_a_session_cancels_the_call(world: World) -> None:
    arrived = threading.Event()

    def silent(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        next(requests)
        arrived.set()
        world.scripted.ended.wait(SECONDS)
        return iter([])

    world.on("EvaluateSession", silent)
    with world.client() as calls:
        with pytest.raises(LookupError), calls.session(["x"]):  # noqa: PT012
            assert arrived.wait(SECONDS)
            raise LookupError
        assert world.scripted.ended.wait(SECONDS)


def test_a_session_sends_the_opening_and_then_only_what_is_new(world: World) -> None:
    seen: list[Any] = []

    def answer(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        for request in requests:
            seen.append(request)
            if request.HasField("turn"):
                event = evaluation.EvaluateResponse(summary=PASSED)
                # A late frame of an earlier turn, and one of a kind from the future, disturb nobody.
                yield evaluation.EvaluateSessionResponse(turn_id=99, event={"summary": {"verdict": 2}})
                yield evaluation.EvaluateSessionResponse(turn_id=request.turn.turn_id)
                yield evaluation.EvaluateSessionResponse(turn_id=request.turn.turn_id, event=event)
        summary = evaluation.SessionSummary(verdict=1, turn_count=2)  # type: ignore[arg-type]
        yield evaluation.EvaluateSessionResponse(session_summary=summary)

    world.on("EvaluateSession", answer)
    with (
        world.client() as calls,
        calls.session(["x"], base=Turn(metadata={"a": 1}), labels={"l": "m"}) as session,
    ):
        assert session.turn(TURN).passed
        assert session.turn(Turn(response="bye", expected="ciao", run_duration_ms=7, is_final=True)).passed
    opening, first, second = seen
    assert opening.open.base_context.metadata["a"] == 1
    assert (opening.open.evaluators[0].type, dict(opening.open.labels)) == ("x", {"l": "m"})
    assert [first.turn.turn_id, second.turn.turn_id] == [1, 2]
    assert [len(first.turn.new_messages), len(second.turn.new_messages)] == [1, 1]
    assert (second.turn.expected.text, second.turn.run_duration.nanos) == ("ciao", 7_000_000)
    assert second.turn.is_final


class Holding:
    """Answers items in the order in which they come, but never more than are let go."""

    def __init__(self) -> None:
        self.messages: list[int] = []
        self.most_unanswered = 0

    def __call__(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        held: list[str] = []
        for request in requests:
            self.messages.append(len(request.items))
            held += [item.item_id for item in request.items]
            self.most_unanswered = max(self.most_unanswered, len(held))
            if len(held) >= 4:
                yield answers(held)
                held = []
        yield answers(held)
        yield evaluation.EvaluateBatchResponse(summary=evaluation.BatchSummary(item_count=1))


def answers(ids: list[str]) -> Any:
    return evaluation.EvaluateBatchResponse(
        answers=[evaluation.BatchAnswer(item_id=item_id, summary=PASSED) for item_id in ids]
    )


def test_a_batch_never_has_more_in_flight_than_allowed(world: World) -> None:
    holding = Holding()
    world.on("EvaluateBatch", holding)
    taken = 0

    def items() -> Iterator[Turn]:
        nonlocal taken
        for _ in range(40):
            taken += 1
            yield TURN

    answered: list[int] = []
    ahead: list[int] = []

    def note(progress: BatchProgress) -> None:
        answered.append(progress.done)
        ahead.append(taken - progress.done)

    with world.client() as calls:
        calls.batch(calls.items(items()), ["x"], max_in_flight=4, on_progress=note)
    assert answered[-1] == 40
    assert holding.most_unanswered <= 4
    assert max(ahead) <= 5  # four in flight, and the next one in the hand


def test_what_is_ready_leaves_in_one_message_but_at_most_256_items(world: World) -> None:
    holding = Holding()
    world.on("EvaluateBatch", holding)
    with world.client() as calls:
        calls.batch([TURN] * 2000, ["x"])
    assert sum(holding.messages) == 2000
    assert max(holding.messages) <= 256
    assert len(holding.messages) < 500


def test_a_message_of_large_items_stays_far_below_the_limit(world: World) -> None:
    sizes: list[int] = []

    def answer(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        for request in requests:
            sizes.append(request.ByteSize())
            yield answers([item.item_id for item in request.items])
        yield evaluation.EvaluateBatchResponse(summary=evaluation.BatchSummary())

    world.on("EvaluateBatch", answer)
    large = Turn(response="x" * 700_000)
    with world.client() as calls:
        calls.batch([large] * 30, ["x"])
    assert max(sizes) < 2 << 20


def test_an_item_leaves_before_a_slow_source_makes_the_next_one(world: World) -> None:
    arrived = threading.Event()

    def answer(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        for request in requests:
            if request.items:
                arrived.set()
            yield answers([item.item_id for item in request.items])
        yield evaluation.EvaluateBatchResponse(summary=evaluation.BatchSummary())

    def items() -> Iterator[Turn]:
        for _ in range(3):
            yield TURN
            assert arrived.wait(SECONDS)
            arrived.clear()

    world.on("EvaluateBatch", answer)
    with world.client() as calls:
        taken, _ = calls.batch(calls.items(items()), ["x"])
    assert len(taken) == 3


def test_a_batch_that_the_server_ends_says_why_even_in_the_middle(world: World) -> None:
    def aborting(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        yield answers([item.item_id for item in next(requests).items])
        context.abort(grpc.StatusCode.UNAVAILABLE, "stopping")

    def items() -> Iterator[Turn]:
        while True:
            yield TURN

    world.on("EvaluateBatch", aborting)
    with world.client() as calls, pytest.raises(errors.Unavailable, match="stopping"):
        calls.batch(calls.items(items()), ["x"])


def test_all_pages_of_the_catalogue_are_read(world: World) -> None:
    def page(request: Any, context: grpc.ServicerContext) -> Any:
        number = int(request.page_token or 0)
        entry = evaluator_pb2.EvaluatorType(type=f"t{number}")
        following = str(number + 1) if number < 2 else ""
        return catalog.ListEvaluatorTypesResponse(evaluator_types=[entry], next_page_token=following)

    world.on("ListEvaluatorTypes", page)
    with world.client() as calls:
        assert [entry.type for entry in calls.call("evaluator_types")] == ["t0", "t1", "t2"]


def test_a_server_without_the_method_is_unsupported(world: World) -> None:
    with world.client() as calls, pytest.raises(errors.Unsupported):
        calls.call("validate", ["x"])
