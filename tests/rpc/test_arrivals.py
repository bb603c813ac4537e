"""When the parts of an answer arrive: each as soon as it is there, not when the next one is."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest
from google.protobuf import duration_pb2

from evald.evaluator import EvaluatorDefinition, define_evaluator
from evald.result import Kind, Verdict
from evald.scope import current_scope
from evald.v1 import evaluation_service_pb2

from .live import CONTAINS, EVALUATION, Live, refusal, request, serving, spec

Arrival = set[str]


class Gates:
    """Evaluators that answer when a test lets them."""

    def __init__(self, count: int) -> None:
        self._open = [asyncio.Event() for _ in range(count)]

    def let(self, number: int) -> None:
        self._open[number].set()

    def types(self) -> list[EvaluatorDefinition]:
        loop = asyncio.get_running_loop()

        def waits_for(gate: asyncio.Event) -> Any:
            async def evaluate(_ctx: Any) -> bool:
                # Plugins have an event loop of their own.
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(gate.wait(), loop))
                return True

            return evaluate

        return [
            define_evaluator(type=f"gate{number}", kind=Kind.ASSERTION, evaluate=waits_for(gate))
            for number, gate in enumerate(self._open)
        ]


def parts(event: evaluation_service_pb2.EvaluateResponse) -> Arrival:
    """What a message brings."""
    assert all(result.verdict == Verdict.PASSED for result in event.results)
    found = {result.name for result in event.results} | {f"progress {p.message}" for p in event.progress}
    if event.HasField("started"):
        found.add("plan")
    if event.HasField("summary"):
        found.add("summary")
        assert event.summary.success
    return found


async def by_stream(live: Live, specs: list[Any], options: Any) -> AsyncIterator[Arrival]:
    wanted = request(*specs, options=options)
    call = live.channel.unary_stream(EVALUATION + "Evaluate")(wanted.SerializeToString())
    async for data in call:
        yield parts(evaluation_service_pb2.EvaluateResponse.FromString(data))


async def by_session(live: Live, specs: list[Any], options: Any) -> AsyncIterator[Arrival]:
    opened, turn = (evaluation_service_pb2.EvaluateSessionRequest() for _ in range(2))
    opened.open.evaluators.extend(specs)
    opened.open.options.CopyFrom(options)
    turn.turn.turn_id = 1
    turn.turn.new_messages.add(role="assistant", text="hello")
    call = live.channel.stream_stream(EVALUATION + "EvaluateSession")(
        iter([opened.SerializeToString(), turn.SerializeToString()])
    )
    async for data in call:
        frame = evaluation_service_pb2.EvaluateSessionResponse.FromString(data)
        if frame.HasField("event"):
            yield parts(frame.event)


WAYS = [pytest.param(by_stream, id="Evaluate"), pytest.param(by_session, id="EvaluateSession")]


@pytest.mark.parametrize("way", WAYS)
async def test_each_result_arrives_while_the_others_still_run(
    way: Callable[..., AsyncIterator[Arrival]],
) -> None:
    """No time is measured: nothing more can come until the test lets it."""

    gates = Gates(3)
    specs = [CONTAINS, *(spec(f"gate{number}") for number in range(3))]
    async with serving(gates.types()) as live:
        arrivals = way(live, specs, evaluation_service_pb2.EvaluateOptions())
        assert await anext(arrivals) == {"plan", "contains"}
        for number in (2, 0):
            gates.let(number)
            assert await anext(arrivals) == {f"gate{number}"}
        gates.let(1)
        assert await anext(arrivals) == {"gate1", "summary"}


@pytest.mark.parametrize("way", WAYS)
async def test_progress_arrives_before_its_result(way: Callable[..., AsyncIterator[Arrival]]) -> None:
    gate, loop = asyncio.Event(), asyncio.get_running_loop()

    async def tells(_ctx: Any) -> bool:
        current_scope().progress("half", 0.5)
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(gate.wait(), loop))
        return True

    teller = define_evaluator(type="tells", kind=Kind.ASSERTION, evaluate=tells)
    async with serving([teller]) as live:
        options = evaluation_service_pb2.EvaluateOptions(include_progress=True)
        arrivals = way(live, [spec("tells")], options)
        assert await anext(arrivals) == {"plan"}
        assert await anext(arrivals) == {"progress half"}
        gate.set()
        assert await anext(arrivals) == {"tells", "summary"}


@pytest.mark.parametrize("method", ["EvaluateUnary", "Evaluate"])
async def test_a_deadline_too_short_for_what_waits_is_refused_and_nothing_is_started(method: str) -> None:
    started: list[str] = []

    async def waits(_ctx: Any) -> bool:
        started.append("waits")
        return True

    waiting = define_evaluator(type="waits", kind=Kind.ASSERTION, evaluate=waits)
    async with serving([waiting]) as live:
        both = [spec("waits"), CONTAINS]
        nested = [spec("all-of", {"evaluators": [{"type": "waits"}]})]
        for specs in (both, nested):
            call = live.unary if method == "EvaluateUnary" else live.stream
            refused = await refusal(call(request(*specs), timeout=0.04))
            assert refused.code is grpc.StatusCode.DEADLINE_EXCEEDED
        assert not started
        assert (await live.unary(request(*both), timeout=20)).summary.success
        assert started


IMPOSSIBLE = [
    ("last_invocation.latency", {"latency": duration_pb2.Duration(seconds=-5)}),
    ("last_invocation.latency", {"latency": duration_pb2.Duration(nanos=-1)}),
    ("last_invocation.time_to_first_token", {"time_to_first_token": duration_pb2.Duration(seconds=-1)}),
    ("last_invocation.token_usage.input_tokens", {"token_usage": {"input_tokens": -1}}),
    ("last_invocation.token_usage.output_tokens", {"token_usage": {"output_tokens": -1}}),
    ("last_invocation.token_usage.total_tokens", {"token_usage": {"total_tokens": -(1 << 63)}}),
    ("last_invocation.token_usage.cached_input_tokens", {"token_usage": {"cached_input_tokens": -1}}),
    ("last_invocation.token_usage.reasoning_tokens", {"token_usage": {"reasoning_tokens": -1}}),
    ("last_invocation.cost.amount", {"cost": {"currency_code": "USD", "amount": -0.01}}),
    ("last_invocation.cost.amount", {"cost": {"currency_code": "USD", "amount": float("nan")}}),
    ("last_invocation.cost.amount", {"cost": {"currency_code": "USD", "amount": float("inf")}}),
    ("last_invocation.cost.currency_code", {"cost": {"currency_code": "EUR", "amount": 0.01}}),
    ("turn", {"turn": -1}),
    ("attempt", {"attempt": -1}),
    ("run_duration", {"run_duration": duration_pb2.Duration(seconds=-1)}),
]

BUDGETS = [
    spec("latency-budget", {"maxMs": 1000}),
    spec("token-budget", {"maxTokens": 10}),
    spec("cost-within", {"maxUsd": 1, "onMissing": "pass"}),
]


def _impossible(path: str, fields: dict[str, Any]) -> evaluation_service_pb2.EvaluateRequest:
    wanted = request(*BUDGETS)
    target = wanted.context.last_invocation if path.startswith("last_invocation") else wanted.context
    target.MergeFrom(type(target)(**fields))
    return wanted


@pytest.mark.parametrize(("path", "fields"), IMPOSSIBLE, ids=lambda value: str(value)[:60].replace("\n", ""))
async def test_a_number_that_no_turn_can_have_is_refused_by_its_name(
    path: str, fields: dict[str, Any]
) -> None:
    wanted = _impossible(path, fields)
    async with serving() as live:
        for call in (live.unary, live.stream):
            refused = await refusal(call(wanted))
            assert (refused.code, refused.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
            assert refused.fields == [f"context.{path}"]
            assert "wanted" in refused.message
        batch = evaluation_service_pb2.EvaluateBatchRequest()
        batch.open.evaluators.extend(BUDGETS)
        batch.items.add(item_id="a", context=wanted.context)
        responses = await live.batch([batch])
        (answer,) = (answer for response in responses for answer in response.answers)
        assert (answer.error.code, path in answer.error.message) == ("INVALID_ITEM", True)
        total = responses[-1].summary
        assert (total.passed_count, total.error_count) == (0, 1)


async def test_a_session_refuses_them_too() -> None:
    opened, turn = (evaluation_service_pb2.EvaluateSessionRequest() for _ in range(2))
    opened.open.evaluators.extend(BUDGETS)
    turn.turn.turn_id = 1
    turn.turn.last_invocation.latency.seconds = -1
    timed = evaluation_service_pb2.EvaluateSessionRequest()
    timed.turn.turn_id = 2
    timed.turn.run_duration.seconds = -1
    async with serving() as live:
        first, second, last = await live.session([opened, turn, timed])
        assert first.error.message.startswith("turn.last_invocation.latency: got -1s")
        assert second.error.message.startswith("turn.run_duration: got -1s")
        assert not last.session_summary.success
