"""What nobody measured is reported as 0, and is in no map of metrics and in no mean."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from evald.structs import struct_to_dict
from evald.v1 import context_pb2, evaluation_service_pb2, evaluator_pb2, result_pb2

from ..rpc.live import Live, Request, spec
from .batches import Message, send, serving_with

# Every metric that may lack its data.
LACKING = ("response-cost", "response-latency", "response-length", "token-usage", "turn-count")


def measured() -> context_pb2.EvaluatorContext:
    """A turn of which all is known."""
    context = context_pb2.EvaluatorContext(messages=[{"role": "assistant", "text": "x" * 100}], turn=100)
    context.last_invocation.latency.FromSeconds(100)
    context.last_invocation.token_usage.total_tokens = 100
    context.last_invocation.cost.amount = 100
    context.last_invocation.cost.currency_code = "USD"
    return context


def unknown() -> context_pb2.EvaluatorContext:
    """A turn of which nothing is known, not even the answer."""
    return context_pb2.EvaluatorContext(messages=[{"role": "user", "text": "x"}])


def specs() -> list[evaluator_pb2.EvaluatorSpec]:
    return [spec(name) for name in LACKING]


def assert_reported(result: result_pb2.EvaluationResult) -> None:
    """0, with a reason, and said to be unavailable."""
    assert (result.verdict, result.HasField("value"), result.value) == (result_pb2.VERDICT_PASSED, True, 0)
    assert result.reason
    assert struct_to_dict(result.metadata)["available"] is False


async def test_the_map_of_metrics_has_what_was_measured_and_nothing_else() -> None:
    async with serving_with(0) as live:
        known, lacking = [
            (await live.unary(Request(context=context, evaluators=specs()))).summary
            for context in (measured(), unknown())
        ]
        streamed = (await live.stream(Request(context=unknown(), evaluators=specs())))[-1].summary
    assert dict(known.metrics) == dict.fromkeys(LACKING, 100.0)
    assert (dict(lacking.metrics), dict(streamed.metrics)) == ({}, {})
    for result in lacking.results:
        assert_reported(result)


@pytest.fixture(scope="module", params=[0, 2], ids=["inline", "processes"])
async def server(request: pytest.FixtureRequest) -> AsyncIterator[Live]:
    async with serving_with(request.param) as live:
        yield live


@pytest.mark.parametrize("brief", [False, True], ids=["whole", "brief"])
async def test_a_mean_of_a_batch_is_that_of_what_was_measured(server: Live, brief: bool) -> None:
    contexts = [measured(), unknown()] * 500
    message = Message(
        open=evaluation_service_pb2.BatchOpen(evaluators=specs(), brief=brief),
        items=[
            evaluation_service_pb2.BatchItem(item_id=str(number), context=context)
            for number, context in enumerate(contexts)
        ],
    )

    responses = await send(server, [message.SerializeToString()])
    answers = {int(answer.item_id): answer.summary for one in responses for answer in one.answers}
    assert len(answers) == len(contexts)
    for number, summary in answers.items():
        assert len(summary.metrics) == (0 if number % 2 else len(LACKING))
        if number % 2:
            for result in summary.results:
                assert_reported(result)
    totals = {name: responses[-1].summary.evaluators[name] for name in LACKING}
    assert {name: totals[name].mean_value for name in LACKING} == dict.fromkeys(LACKING, 100.0)


async def test_a_metric_that_nobody_could_measure_has_no_mean() -> None:
    message: Any = Message(open=evaluation_service_pb2.BatchOpen(evaluators=specs()))
    message.items.add(context=unknown())
    async with serving_with(0) as live:
        responses = await send(live, [message.SerializeToString()])
    totals = {name: responses[-1].summary.evaluators[name] for name in LACKING}
    assert [totals[name].HasField("mean_value") for name in LACKING] == [False] * len(LACKING)
