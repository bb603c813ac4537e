"""Metrics: what they measure, and 0 with a reason when there is nothing to measure."""

from typing import Any

import pytest

from evald.context import EvaluatorContext
from evald.evaluator import Evaluator, InvalidConfig
from evald.result import METRIC, Verdict
from evald_server.evaluators import metrics
from evald_server.evaluators.metrics import (
    ResponseCost,
    ResponseLatency,
    ResponseLength,
    TokenUsageMetric,
    ToolCallCount,
    TurnCount,
)

from .contexts import answered, calls, context, run

_CONVERSATION = [
    {"role": "user", "content": "one"},
    calls("a"),
    {"role": "tool", "content": "1", "tool_call_id": "call_0"},
    {"role": "assistant", "content": "done"},
    {"role": "user", "content": "two"},
    calls("a", "b"),
    calls("a"),
]


@pytest.mark.parametrize(
    ("evaluator", "config", "ctx", "value", "reason", "metadata"),
    [
        pytest.param(
            ToolCallCount,
            {},
            context(_CONVERSATION),
            3,
            "3 tool call(s): a, b, a",
            {"toolCallCount": 3, "toolNames": ["a", "b", "a"]},
            id="calls-of-the-turn",
        ),
        pytest.param(
            ToolCallCount,
            {"scope": "conversation"},
            context(_CONVERSATION),
            4,
            "4 tool call(s): a, a, b, a",
            {"toolCallCount": 4, "toolNames": ["a", "a", "b", "a"]},
            id="calls-of-the-conversation",
        ),
        pytest.param(
            ResponseLength,
            {},
            answered("Hello, world!"),
            13,
            "Response length: 13 characters",
            {"length": 13, "unit": "characters"},
            id="characters",
        ),
        pytest.param(
            ResponseLength,
            {},
            answered("😀é"),
            2,
            "Response length: 2 characters",
            {"length": 2, "unit": "characters"},
            id="code-points",
        ),
        pytest.param(
            ResponseLength,
            {"unit": "words"},
            answered("  Hello,  big\nworld "),
            3,
            "Response length: 3 words",
            {"length": 3, "unit": "words"},
            id="words",
        ),
        pytest.param(
            TokenUsageMetric,
            {},
            context(usage={"input": 500, "output": 356}),
            856,
            "Token usage (total): 856",
            {"input": 500, "output": 356, "tracked": "total"},
            id="tokens",
        ),
        pytest.param(
            TokenUsageMetric,
            {"track": "input"},
            context(usage={"input": 0, "total": 7}),
            0,
            "Token usage (input): 0",
            {"input": 0, "total": 7, "tracked": "input"},
            id="input-tokens-0",
        ),
        pytest.param(
            ResponseLatency,
            {},
            context(latency_ms=1234),
            1.234,
            "Response latency: 1.234s",
            None,
            id="latency",
        ),
        pytest.param(
            ResponseCost, {}, context(cost_usd=0.0031), 0.0031, "Response cost: $0.003100", None, id="cost"
        ),
        pytest.param(TurnCount, {}, context(turn=4), 4, "Turn count: 4", None, id="turns"),
    ],
)
def test_what_is_measured(
    evaluator: type[Evaluator],
    config: dict[str, Any],
    ctx: EvaluatorContext,
    value: float,
    reason: str,
    metadata: dict[str, Any] | None,
) -> None:
    result = run(evaluator, config, ctx)
    assert (result.verdict, result.value, result.reason) == (Verdict.PASSED, value, reason)
    assert (result.score, result.metadata) == (None, metadata)


@pytest.mark.parametrize(
    ("evaluator", "config", "ctx", "reason"),
    [
        pytest.param(ResponseLength, {}, context(), "No assistant message found", id="no-answer"),
        pytest.param(TokenUsageMetric, {}, context(), "No token usage data available", id="no-usage"),
        pytest.param(
            TokenUsageMetric,
            {"track": "output"},
            context(usage={"input": 5}),
            "No output token usage data available",
            id="no-output",
        ),
        pytest.param(ResponseLatency, {}, context(), "No latency data available", id="no-latency"),
        pytest.param(ResponseCost, {}, context(), "No cost data available", id="no-cost"),
        pytest.param(
            ResponseCost, {}, context(cost_usd=float("nan")), "No cost data available", id="nan-cost"
        ),
        pytest.param(TurnCount, {}, context(turn=0), "No turn number available", id="no-turn"),
    ],
)
def test_without_data_a_metric_is_0_and_says_so(
    evaluator: type[Evaluator], config: dict[str, Any], ctx: EvaluatorContext, reason: str
) -> None:
    result = run(evaluator, config, ctx)
    assert (result.verdict, result.value, result.reason) == (Verdict.PASSED, 0, reason)
    assert result.metadata == {"available": False}


@pytest.mark.parametrize(
    ("evaluator", "unit"),
    [
        (ToolCallCount, "count"),
        (ResponseLength, "characters"),
        (TokenUsageMetric, "tokens"),
        (ResponseLatency, "seconds"),
        (ResponseCost, "usd"),
        (TurnCount, "count"),
    ],
)
def test_every_metric_says_its_unit(evaluator: type[Evaluator], unit: str) -> None:
    definition = evaluator.definition()
    assert definition.kind is METRIC
    assert definition.metric
    assert definition.metric.unit == unit


def test_a_text_that_would_hold_up_the_server_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MAX_SPLIT", 9)
    large = run(ResponseLength, {"unit": "words"}, answered("a" * 10))
    assert large.error
    assert large.error.code == "INPUT_TOO_LARGE"
    assert run(ResponseLength, {}, answered("a" * 10)).value == 10


def test_a_limit_turns_token_usage_into_the_budget() -> None:
    others = TokenUsageMetric.definition().type_by_config_key
    assert {"maxTokens", "max_total", "maxInput", "maxOutput"} <= others.keys()
    assert set(others.values()) == {"token-budget"}


@pytest.mark.parametrize(
    ("evaluator", "config"),
    [
        (ToolCallCount, {"scope": "run"}),
        (ResponseLength, {"unit": "bytes"}),
        (TokenUsageMetric, {"track": "x"}),
    ],
)
def test_a_wrong_config_is_refused(evaluator: type[Evaluator], config: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig, match=f"config/{next(iter(config))}"):
        evaluator.definition().compile(config)
