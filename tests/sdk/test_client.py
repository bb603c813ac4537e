"""Both clients, over a real channel to a real server."""

import asyncio
import json
import math
import threading
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

import evald
from evald import (
    AsyncClient,
    BatchItem,
    Client,
    Evaluation,
    EvaluatorResult,
    Started,
    Turn,
    Verdict,
    errors,
)
from evald.batch import BatchProgress
from evald.result import Kind
from evald_server import testing

from .both import Calls, awaiting, awaiting_server, blocking, blocking_server

TURN = Turn(
    [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Your reference is BK-12345."}],
    latency_ms=1200,
)
REFERENCE = {"type": "regex", "config": {"pattern": r"BK-\d{5}"}}
PARIS = {"type": "contains", "config": {"text": "Paris"}}


@pytest.fixture(scope="module", params=[blocking_server, awaiting_server], ids=["Client", "AsyncClient"])
def calls(request: pytest.FixtureRequest) -> Iterator[Calls]:
    with request.param(max_messages=50) as calls:
        yield calls


def test_one_turn_is_evaluated(calls: Calls) -> None:
    evaluation = calls.call(
        "evaluate",
        TURN,
        [REFERENCE, {"type": "latency-budget", "config": {"maxMs": 1000}}, "response-length"],
    )
    assert (evaluation.verdict, evaluation.passed_count, evaluation.failed_count) == (Verdict.FAILED, 1, 1)
    assert [result.name for result in evaluation.failures] == ["latency-budget"]
    assert evaluation["latency-budget"].value == 1200
    assert evaluation.metrics == {"response-length": 27}
    assert evaluation.evaluation_id


def test_arguments_reach_the_server(calls: Calls) -> None:
    options = {"aggregation": "weighted_mean", "threshold": 0.5}
    arguments = {"options": options, "labels": {"suite": "x"}, "request_id": "a-request", "timeout": 20}
    evaluation = calls.call("evaluate", TURN, [REFERENCE, PARIS], **arguments)
    assert (evaluation.verdict, evaluation.score) == (Verdict.PASSED, 0.5)
    assert evaluation.evaluation_id == "a-request"
    assert calls.call("evaluate", TURN, [REFERENCE, PARIS], **arguments) == evaluation
    with pytest.raises(errors.InvalidRequest) as refused:
        calls.call("evaluate", TURN, [PARIS], request_id="a-request")
    assert refused.value.reason == "REQUEST_ID_REUSED"


def test_a_stream_starts_with_the_plan_and_ends_with_what_evaluate_says(calls: Calls) -> None:
    evaluators = [REFERENCE, "response-length", PARIS, PARIS]
    events = calls.take(None, "stream", TURN, evaluators)
    assert isinstance(events[0], Started)
    assert [spec.name for spec in events[0].plan] == ["regex", "response-length", "contains", "contains#2"]
    assert {type(event) for event in events[1:-1]} == {EvaluatorResult}
    streamed = events[-1]
    assert isinstance(streamed, Evaluation)
    assert sorted(events[1:-1], key=lambda result: result.index) == list(streamed.results)
    unary = calls.call("evaluate", TURN, evaluators)
    assert [result.reason for result in streamed.results] == [result.reason for result in unary.results]
    assert (streamed.verdict, streamed.metrics) == (unary.verdict, unary.metrics)


def test_a_session_keeps_the_conversation(calls: Calls) -> None:
    with calls.session(["turn-count", PARIS], base=Turn(scenario="geography")) as session:
        first = session.turn(
            [{"role": "user", "content": "France?"}, {"role": "assistant", "content": "Paris."}]
        )
        second = session.turn(
            json.dumps([{"role": "user", "content": "Italy?"}, {"role": "assistant", "content": "Rome."}])
        )
        third = session.turn(Turn([{"role": "user", "content": "France?"}], "Paris!", is_final=True))
    assert [turn.passed for turn in (first, second, third)] == [True, False, True]
    assert third["turn-count"].value == 3
    assert session.summary is not None
    assert (session.summary.verdict, session.summary.turn_count) == (Verdict.FAILED, 3)
    assert session.summary.failed_turn_ids == (2,)


def test_a_turn_that_is_refused_does_not_end_the_session(calls: Calls) -> None:
    with calls.session(["response-length"]) as session:
        with pytest.raises(errors.TurnRefused) as refused:
            session.turn('[{"content": "no role"}]')
        assert refused.value.error.code == "INVALID_ITEM"
        with pytest.raises(errors.InvalidInput):
            session.turn([{"content": "no role"}])
        assert session.turn(Turn(response="four")).metrics == {"response-length": 4}


@pytest.mark.parametrize("what", ["scenario", "persona", "metadata"])
def test_what_belongs_to_a_whole_session_is_refused_for_a_turn(calls: Calls, what: str) -> None:
    with calls.session(["response-length"]) as session, pytest.raises(errors.InvalidInput, match=what):
        session.turn(Turn(response="x", **{what: {"name": "x"}}))  # type: ignore[arg-type]


def test_an_exception_inside_a_session_comes_out_as_it_is(calls: Calls) -> None:
    with pytest.raises(LookupError, match="mine"), calls.session(["response-length"]) as session:  # noqa: PT012
        session.turn(Turn(response="x"))
        raise LookupError("mine")


def test_wrong_evaluators_of_a_session_come_out_at_its_first_turn(calls: Calls) -> None:
    with pytest.raises(errors.UnknownEvaluator, match="regexp"), calls.session(["regexp"]) as session:
        session.turn(Turn(response="x"))


def answer(number: int) -> Turn:
    return Turn([{"role": "user", "content": "France?"}], "Paris." if number % 3 else "Rome.")


def test_a_batch_answers_every_item_once(calls: Calls) -> None:
    items = ((f"case-{number}", answer(number)) for number in range(600))
    answers, summary = calls.batch(calls.items(items), [PARIS, "response-length"])
    assert sorted(answer.id for answer in answers) == sorted(f"case-{number}" for number in range(600))
    assert all(answer.passed == (int(answer.id.removeprefix("case-")) % 3 > 0) for answer in answers)
    assert (summary.item_count, summary.passed_count, summary.failed_count) == (600, 400, 200)
    assert summary.evaluators["contains"].pass_rate == pytest.approx(2 / 3)
    assert summary.evaluators["response-length"].kind is Kind.METRIC
    assert summary.evaluators["response-length"].mean_value == pytest.approx((400 * 6 + 200 * 5) / 600)


def test_an_item_may_bring_its_evaluators_and_has_its_place_as_its_id(calls: Calls) -> None:
    items = [answer(0), BatchItem(answer(0), evaluators=["response-length"]), BatchItem(answer(1), id="last")]
    answers, _ = calls.batch(items, [PARIS])
    assert {answer.id: answer.verdict for answer in answers} == {
        "0": Verdict.FAILED,
        "1": Verdict.PASSED,
        "last": Verdict.PASSED,
    }


def test_a_bad_item_gets_an_error_of_its_own(calls: Calls) -> None:
    long = [{"role": "user", "content": "x"}] * 51
    items: list[Any] = [answer(1), [{"content": "no role"}], '[{"content": "no role"}]', long, answer(2)]
    answers, summary = calls.batch(items, [PARIS])
    by_id = {answer.id: answer for answer in answers}
    assert [by_id[str(place)].passed for place in range(5)] == [True, False, False, False, True]
    for place in ("1", "2", "3"):
        assert by_id[place].error.code == "INVALID_ITEM"
    assert "messages[0].role: missing" in by_id["1"].error.message
    assert (summary.item_count, summary.passed_count, summary.error_count) == (5, 2, 3)


def test_items_of_any_size_that_fit_a_message_are_sent_and_others_refused(calls: Calls) -> None:
    sizes = [10, (16 << 20) - 2000, 1_000_000, 17 << 20, 10]
    answers, summary = calls.batch([Turn(response="x" * size) for size in sizes], ["response-length"])
    by_id = {int(answer.id): answer for answer in answers}
    assert [by_id[place].passed for place in range(5)] == [True, True, True, False, True]
    assert "at most max_message_bytes of the client, 16777216" in by_id[3].reason
    assert (summary.item_count, summary.error_count) == (5, 1)


def test_a_batch_of_bad_items_alone_ends(calls: Calls) -> None:
    answers, summary = calls.batch([[{"content": "no role"}]] * 3, [PARIS])
    assert [answer.verdict for answer in answers] == [Verdict.ERROR] * 3
    assert (summary.item_count, summary.error_count) == (3, 3)


def test_an_empty_batch_ends(calls: Calls) -> None:
    answers, summary = calls.batch([], [PARIS])
    assert (answers, summary.item_count) == ([], 0)


def test_progress_goes_up_to_the_total(calls: Calls) -> None:
    seen: list[BatchProgress] = []
    calls.batch([answer(number) for number in range(30)], [PARIS], on_progress=seen.append)
    assert [progress.done for progress in seen] == sorted({progress.done for progress in seen})
    assert seen[-1] == BatchProgress(done=30, total=30, passed=20, failed=10)
    seen.clear()
    calls.batch(calls.items(answer(number) for number in range(3)), [PARIS], on_progress=seen.append)
    assert seen[-1].total is None


def test_brief_answers_to_passed_items_have_no_reasons(calls: Calls) -> None:
    answers, _ = calls.batch([("good", answer(1)), ("bad", answer(0))], [PARIS], brief=True)
    reasons = {answer.id: answer.evaluation["contains"].reason for answer in answers}
    assert not reasons["good"]
    assert "Paris" in reasons["bad"]


def test_the_items_own_exception_comes_out_of_a_batch(calls: Calls) -> None:
    def items() -> Iterator[Turn]:
        yield answer(1)
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        calls.batch(calls.items(items()), [PARIS])


def test_wrong_evaluators_end_a_batch_while_items_go_on_for_ever(calls: Calls) -> None:
    def items() -> Iterator[Turn]:
        while True:
            yield answer(1)

    with pytest.raises(errors.UnknownEvaluator, match="regexp"):
        calls.batch(calls.items(items()), ["regexp"])


def test_a_batch_can_be_left_early(calls: Calls) -> None:
    def items() -> Iterator[Turn]:
        while True:
            yield answer(1)

    answers, summary = calls.batch(calls.items(items()), [PARIS], take=5)
    assert (len(answers), summary) == (5, None)


def test_a_batch_is_iterated_over_once() -> None:
    with testing.server() as server, server.client() as client:
        batch = client.batch([TURN], [PARIS])
        assert len(list(batch)) == 1
        with pytest.raises(RuntimeError, match="once"):
            list(batch)
        batch = client.batch([TURN] * 2, [PARIS], max_in_flight=1)
        first = iter(batch)
        next(first)
        with pytest.raises(RuntimeError, match="once"):
            next(iter(batch))
        assert len(list(first)) == 1


def test_specs_are_validated_and_not_run(calls: Calls) -> None:
    assert calls.call("validate", [REFERENCE, "is-json"]) == []
    problems = calls.call("validate", [REFERENCE, "regexp", {"type": "regex", "config": {}}])
    assert [(problem.index, problem.reason) for problem in problems] == [
        (1, "UNKNOWN_TYPE"),
        (2, "INVALID_CONFIG"),
    ]


def test_the_catalogue_is_listed_by_kind_and_by_type(calls: Calls) -> None:
    everything = calls.call("evaluator_types")
    metrics = calls.call("evaluator_types", kind=Kind.METRIC)
    assert {entry.kind for entry in metrics} == {Kind.METRIC}
    assert {entry.type for entry in metrics} < {entry.type for entry in everything}
    latency = calls.call("evaluator_type", "latency-budget")
    assert latency in everything
    assert "maxMs" in latency.config_schema["properties"]
    with pytest.raises(errors.UnknownEvaluator):
        calls.call("evaluator_type", "nobody")


def test_a_watch_starts_with_the_whole_catalogue(calls: Calls) -> None:
    count = len(calls.call("evaluator_types"))
    changes = calls.take(count + 1, "watch_evaluator_types")
    assert [change.what for change in changes] == ["upserted"] * count + ["snapshot_complete"]
    assert {change.evaluator_type for change in changes[:-1]} == set(calls.call("evaluator_types"))
    with pytest.raises(errors.RevisionGone):
        calls.take(1, "watch_evaluator_types", 1 << 40)


REFUSED: dict[str, tuple[Any, type[errors.EvaldError], str]] = {
    "unknown type": (["regexp"], errors.UnknownEvaluator, 'did you mean "regex"'),
    "wrong config": ([{"type": "regex", "config": {"pattern": 3}}], errors.InvalidRequest, "config"),
    "no evaluators": ([], errors.InvalidRequest, "evaluators"),
}


@pytest.mark.parametrize(("evaluators", "kind", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_a_refused_call_raises_the_typed_error(
    calls: Calls, evaluators: Any, kind: type[errors.EvaldError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        calls.call("evaluate", TURN, evaluators)
    with pytest.raises(kind, match=message):
        calls.take(None, "stream", TURN, evaluators)


def test_a_message_that_is_too_large_is_refused_and_not_retried(calls: Calls) -> None:
    huge = Turn(response="x" * (17 << 20))
    with pytest.raises(errors.InvalidRequest, match=r"too large .*raise max_message_bytes"):
        calls.call("evaluate", huge, ["response-length"])


WRONG_TIMEOUTS = [0, -1, math.nan, True, "5", [1], 1j]


@pytest.mark.parametrize("timeout", WRONG_TIMEOUTS, ids=str)
def test_a_timeout_is_a_number_above_zero(calls: Calls, timeout: Any) -> None:
    with pytest.raises(errors.InvalidInput, match=r"^timeout: .*seconds above 0"):
        calls.call("evaluate", TURN, [PARIS], timeout=timeout)


@pytest.mark.parametrize("timeout", [math.inf, 1e18, 10**400], ids=["infinity", "float", "int"])
def test_a_timeout_that_never_ends_is_no_limit(calls: Calls, timeout: float) -> None:
    assert calls.call("evaluate", answer(1), [PARIS], timeout=timeout)
    assert calls.take(None, "stream", answer(1), [PARIS], timeout=timeout)[-1].passed


WRONG_ARGUMENTS: dict[str, tuple[str, tuple[Any, ...], dict[str, Any], str]] = {
    "labels": ("evaluate", (TURN, [PARIS]), {"labels": [("a", "b")]}, "labels: got"),
    "request_id": ("evaluate", (TURN, [PARIS]), {"request_id": 5}, "request_id: got 5"),
    "kind": ("evaluator_types", (), {"kind": "metric"}, "kind: got 'metric'"),
    "type_name": ("evaluator_type", (5,), {}, "type_name: got 5"),
    "version": ("evaluator_type", ("regex", None), {}, "version: got null"),
    "after_revision": ("watch_evaluator_types", ("5",), {}, "after_revision: got '5'"),
    "items: a number": ("batch", (5,), {}, "items: got 5"),
    "items: a text": ("batch", ("abc",), {}, "items: got 'abc'"),
    "items: one turn": ("batch", ({"response": "Paris"},), {}, "items: got an object"),
    "max_in_flight: a text": ("batch", ([],), {"max_in_flight": "5"}, "max_in_flight: got '5'"),
    "max_in_flight: NaN": ("batch", ([],), {"max_in_flight": math.nan}, "max_in_flight: got nan"),
    "max_in_flight: 0": ("batch", ([],), {"max_in_flight": 0}, "max_in_flight: got 0"),
    "brief": ("batch", ([],), {"brief": "yes"}, "brief: got 'yes'"),
}


@pytest.mark.parametrize(
    ("method", "args", "options", "message"), WRONG_ARGUMENTS.values(), ids=WRONG_ARGUMENTS
)
def test_an_argument_of_the_wrong_type_is_refused_by_name(
    calls: Calls, method: str, args: tuple[Any, ...], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(errors.InvalidInput, match=f"^{message}.*; wanted"):
        calls.batch(*args, **options) if method == "batch" else calls.call(method, *args, **options)


WRONG_SETTINGS: dict[str, tuple[str, Any]] = {
    "timeout": ("timeout", "5"),
    "tls": ("tls", "ca.pem"),
    "tls.ca": ("tls", evald.Tls(5)),  # type: ignore[arg-type]
    "token: a number": ("token", 5),
    "token: bytes": ("token", b"canary"),
    "token: a function": ("token", lambda: 5),
    "credentials": ("credentials", "canary"),
    "max_message_bytes: 0": ("max_message_bytes", 0),
    "max_message_bytes: a text": ("max_message_bytes", "16"),
    "max_message_bytes: beyond gRPC": ("max_message_bytes", 1 << 31),
    "metadata: pairs": ("metadata", [("a", "canary")]),
    "metadata: a number": ("metadata", {"a": 5}),
    "metadata: a name": ("metadata", {"Authorization": "canary"}),
    "metadata.a": ("metadata", {"a": "canary\n"}),
    "metadata.a-bin": ("metadata", {"a-bin": "canary"}),
}


@pytest.mark.parametrize(("name", "value"), WRONG_SETTINGS.values(), ids=WRONG_SETTINGS)
@pytest.mark.parametrize("kind", [blocking, awaiting], ids=["Client", "AsyncClient"])
def test_a_setting_of_the_wrong_type_is_refused_by_name_and_shows_no_secret(
    kind: Any, name: str, value: Any
) -> None:
    with (
        pytest.raises(errors.InvalidInput, match=f"^{name}.*; wanted") as refused,
        kind("127.0.0.1:1", **{name: value}) as calls,
    ):
        calls.call("evaluator_types")
    assert "canary" not in str(refused.value)


def test_a_client_can_be_shared_between_threads() -> None:
    with testing.server() as server, server.client() as client, ThreadPoolExecutor(8) as pool:
        passed = pool.map(lambda _: client.evaluate(TURN, [REFERENCE]).passed, range(64))
        assert all(passed)


_gate = threading.Event()


async def _held(_ctx: Any) -> bool:
    while not _gate.is_set():  # noqa: ASYNC110 - a thread tells
        await asyncio.sleep(0.01)
    return True


HELD = evald.define_evaluator(type="held", kind=Kind.ASSERTION, evaluate=_held)


def test_none_of_many_calls_at_once_is_refused() -> None:
    async def main(server: testing.LocalServer) -> None:
        async with server.async_client() as one, server.async_client() as other:
            calls = [client.evaluate(TURN, ["held"]) for client in (one, other) for _ in range(200)]
            assert all(evaluation.passed for evaluation in await asyncio.gather(*calls))

    _gate.set()
    with testing.server(HELD) as server:
        asyncio.run(main(server))
        with server.client() as client, ThreadPoolExecutor(200) as pool:
            assert all(pool.map(lambda _: client.evaluate(TURN, ["held"]).passed, range(400)))


def test_a_call_that_others_keep_waiting_ends_with_its_time() -> None:
    late = "waited 0.1 s because 50 other calls of this client are in flight"

    async def main(server: testing.LocalServer) -> None:
        async with server.async_client() as client:
            others = [asyncio.ensure_future(client.evaluate(TURN, ["held"])) for _ in range(50)]
            await asyncio.sleep(0)
            with pytest.raises(errors.DeadlineExceeded, match=late):
                await client.evaluate(TURN, ["held"], timeout=0.1)
            _gate.set()
            assert all(evaluation.passed for evaluation in await asyncio.gather(*others))
            assert (await client.evaluate(TURN, ["held"])).passed

    _gate.clear()
    with testing.server(HELD) as server:
        asyncio.run(main(server))
        _gate.clear()
        with server.client() as client, ThreadPoolExecutor(51) as pool:
            others = [pool.submit(client.evaluate, TURN, ["held"]) for _ in range(51)]
            problem = ""
            while late not in problem:  # the others have not taken their places yet
                try:
                    client.evaluate(TURN, ["held"], timeout=0.1)
                except errors.DeadlineExceeded as late_call:
                    problem = str(late_call)
            _gate.set()
            assert all(other.result().passed for other in others)
            assert client.evaluate(TURN, ["held"], timeout=math.inf).passed


def test_closing_a_client_that_never_called_is_harmless() -> None:
    Client("127.0.0.1:1").close()
    asyncio.run(AsyncClient("127.0.0.1:1").close())


def test_a_closed_client_calls_nobody() -> None:
    client, other = Client("127.0.0.1:1"), AsyncClient("127.0.0.1:1")
    client.close()
    for call in (client.evaluate, client.stream, client.batch):
        with pytest.raises(errors.InvalidInput, match="client: closed"):
            list(call(TURN if call != client.batch else [TURN], [PARIS]))
    with pytest.raises(errors.InvalidInput, match="client: closed"), client.session([PARIS]):
        pass

    async def call_closed() -> None:
        await other.close()
        await other.evaluate(TURN, [PARIS])

    with pytest.raises(errors.InvalidInput, match="client: closed"):
        asyncio.run(call_closed())


def test_an_async_client_belongs_to_the_event_loop_of_its_first_call() -> None:
    client = AsyncClient("127.0.0.1:1")
    with asyncio.Runner() as first, asyncio.Runner() as second:
        with pytest.raises(errors.Unavailable):
            first.run(client.evaluate(TURN, [PARIS]))
        with pytest.raises(errors.InvalidInput, match="for each event loop"):
            second.run(client.evaluate(TURN, [PARIS]))
        first.run(client.close())


async def test_closing_an_async_client_is_an_error_of_its_calls_and_cancels_no_task() -> None:
    held: list[asyncio.StreamWriter] = []
    connected = asyncio.Event()

    def hold(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.append(writer)
        connected.set()

    # It never answers. A stream would not do: grpcio 1.71 leaves those open that a generator reads.
    async with await asyncio.start_server(hold, "127.0.0.1", 0) as silent:
        address = f"127.0.0.1:{silent.sockets[0].getsockname()[1]}"
        client = AsyncClient(address)
        task = asyncio.create_task(client.evaluate(TURN, [PARIS]))
        await connected.wait()
        await client.close()
        with pytest.raises(errors.Cancelled, match="its client was closed"):
            await task

        connected.clear()
        async with AsyncClient(address) as client:
            task = asyncio.create_task(client.evaluate(TURN, [PARIS]))
            await connected.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        for writer in held:
            writer.close()


async def test_the_items_of_a_batch_that_is_left_can_be_closed() -> None:
    async def items() -> AsyncGenerator[Turn]:
        yield answer(1)
        await asyncio.Event().wait()

    given = items()
    async with testing.async_server() as server, AsyncClient(server.address) as client:
        answers: Any = aiter(client.batch(given, [PARIS]))
        assert (await anext(answers)).passed
        await answers.aclose()
        # It said that the generator is already running.
        await given.aclose()


async def test_a_session_takes_one_turn_after_the_other() -> None:
    async with (
        testing.async_server() as server,
        AsyncClient(server.address) as client,
        client.session([REFERENCE]) as session,
    ):
        # Both were waiting for ever: one reader threw away the answer of the other.
        first, second = await asyncio.gather(session.turn(TURN), session.turn(TURN), return_exceptions=True)
        assert isinstance(first, Evaluation)
        assert first.passed
        assert isinstance(second, errors.InvalidInput)
        assert "one turn at a time" in str(second)
        assert (await session.turn(TURN)).passed
    assert session.summary
    assert session.summary.turn_count == 2


ADDRESSES: dict[str, tuple[str, str]] = {
    "http://localhost:50051": ("which is a URL", 'HOST:PORT without a scheme: "localhost:50051"'),
    "http://localhost": ("which is a URL", '"localhost:50051" (50051 is evald\'s default)'),
    "https://evald.example.com/": ("which is a URL", "tls=evald.Tls()"),
    "grpc://evald:1": ("which is a URL", '"evald:1"'),
    "localhost": ("which has no port", 'HOST:PORT: "localhost:50051" (50051 is evald\'s default)'),
    "[::1]": ("which has no port", '"[::1]:50051"'),
    "::1": ("got '::1'", '"[::1]:50051"'),
    "localhost:99999": ("got 'localhost:99999'", 'such as "127.0.0.1:50051"'),
    "localhost:http": ("got 'localhost:http'", "HOST:PORT"),
    " localhost:50051": ("got ' localhost:50051'", "HOST:PORT"),
    "localhost:50051/": ("got 'localhost:50051/'", "HOST:PORT"),
}


@pytest.mark.parametrize("given", ADDRESSES)
@pytest.mark.parametrize("client", [evald.Client, evald.AsyncClient])
@pytest.mark.parametrize("by", ["argument", "variable"])
def test_what_is_no_address_is_refused_at_once_with_what_it_should_be(
    given: str, client: type[Any], by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVALD_SERVER", given)
    with pytest.raises(evald.InvalidInput) as refused:
        client(given if by == "argument" else None)
    assert refused.value.path == ("server" if by == "argument" else "EVALD_SERVER")
    got, wanted = ADDRESSES[given]
    assert got in refused.value.got
    assert wanted in refused.value.wanted


@pytest.mark.parametrize(
    "given",
    [
        "localhost:50051",
        "[::1]:50051",
        "evald_1.ns.svc:1",
        "dns:///evald",
        "ipv4:10.0.0.1:1,10.0.0.2:1",
        "unix:/tmp/evald.sock",
    ],
)
def test_every_spelling_of_grpc_is_an_address(given: str) -> None:
    assert evald.Client(given).server == given


def test_an_encrypted_connection_may_leave_the_port_to_grpc() -> None:
    assert evald.Client("evald.example.com", credentials=grpc.ssl_channel_credentials()).server
