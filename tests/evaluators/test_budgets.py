"""Budgets: inclusive limits, three ways to score what is above them, and data that is missing."""

from typing import Any

import pytest

from evald.context import EvaluatorContext
from evald.evaluator import Evaluator, InvalidConfig
from evald.result import Verdict
from evald_server.evaluators.budgets import (
    CompletedWithin,
    CostWithin,
    ExecutionLimits,
    LatencyBudget,
    ScoreFormula,
    TokenBudget,
    budget_score,
)

from .contexts import calls, context, run

PASSED, FAILED, ERROR, SKIPPED = Verdict.PASSED, Verdict.FAILED, Verdict.ERROR, Verdict.SKIPPED
USAGE = {"input": 400, "output": 600}


@pytest.mark.parametrize(
    ("actual", "limit", "formula", "score"),
    [
        pytest.param(4000, 3000, "linear", 2 / 3, id="linear"),
        pytest.param(6000, 3000, "linear", 0, id="linear-twice-the-limit"),
        pytest.param(9000, 3000, "linear", 0, id="linear-never-negative"),
        pytest.param(4000, 3000, "ratio", 0.75, id="ratio"),
        pytest.param(4000, 3000, "binary", 0, id="binary"),
        pytest.param(1, 0, "linear", 0, id="linear-limit-0"),
        pytest.param(1, 0, "ratio", 0, id="ratio-limit-0"),
    ],
)
def test_an_exceeded_budget_scores_by_its_formula(
    actual: float, limit: float, formula: ScoreFormula, score: float
) -> None:
    assert budget_score(actual, limit, formula) == pytest.approx(score)


@pytest.mark.parametrize(
    ("evaluator", "config", "ctx", "reason", "value"),
    [
        pytest.param(
            LatencyBudget,
            {"maxMs": 3000},
            context(latency_ms=1234),
            "Response within budget: 1234ms / 3000ms",
            1234,
            id="latency",
        ),
        pytest.param(
            LatencyBudget,
            {"maxMs": 0},
            context(latency_ms=0),
            "Response within budget: 0ms / 0ms",
            0,
            id="latency-0",
        ),
        pytest.param(
            LatencyBudget,
            {"max_ms": 1.5},
            context(latency_ms=1.5),
            "Response within budget: 1.5ms / 1.5ms",
            1.5,
            id="latency-fraction",
        ),
        pytest.param(
            TokenBudget,
            {"maxTokens": 1000},
            context(usage=USAGE),
            "Token usage within budget: 1000 / 1000",
            1000,
            id="tokens-equal",
        ),
        pytest.param(
            TokenBudget,
            {"maxTokens": 1000},
            context(usage={**USAGE, "total": 999}),
            "Token usage within budget: 999 / 1000",
            999,
            id="tokens-total-as-reported",
        ),
        pytest.param(
            TokenBudget,
            {"maxTokens": 500, "inputOnly": True},
            context(usage=USAGE),
            "Token usage within budget: 400 / 500",
            400,
            id="tokens-input",
        ),
        pytest.param(
            TokenBudget,
            {"maxTokens": 600, "outputOnly": True},
            context(usage=USAGE),
            "Token usage within budget: 600 / 600",
            600,
            id="tokens-output",
        ),
        pytest.param(
            TokenBudget,
            {"maxTokens": 400, "inputOnly": True, "outputOnly": True},
            context(usage=USAGE),
            "Token usage within budget: 400 / 400",
            400,
            id="tokens-input-wins",
        ),
        pytest.param(
            TokenBudget,
            {"maxTotal": 1000},
            context(usage=USAGE),
            "Token usage within budget: 1000 / 1000",
            1000,
            id="tokens-maxTotal",
        ),
        pytest.param(
            CostWithin,
            {"maxUsd": 1},
            context(cost_usd=1),
            "cost $1.000000 within budget $1.000000",
            1,
            id="cost-equal",
        ),
        pytest.param(
            CostWithin,
            {"maxUsd": 0.3},
            context(cost_usd=0.1 + 0.2),
            "cost $0.300000 within budget $0.300000",
            0.1 + 0.2,
            id="cost-rounded",
        ),
        pytest.param(
            CostWithin,
            {"maxUsd": 0},
            context(cost_usd=0),
            "cost $0.000000 within budget $0.000000",
            0,
            id="cost-0",
        ),
        pytest.param(
            CompletedWithin,
            {"limitMs": 200},
            context(run_duration_ms=200, latency_ms=999),
            "completed in 200ms (limit 200ms)",
            200,
            id="run-not-turn",
        ),
    ],
)
def test_up_to_its_limit_a_budget_is_kept(
    evaluator: type[Evaluator], config: dict[str, Any], ctx: EvaluatorContext, reason: str, value: float
) -> None:
    result = run(evaluator, config, ctx)
    assert (result.verdict, result.score, result.reason, result.value) == (PASSED, 1, reason, value)
    assert result.metadata is None


@pytest.mark.parametrize(
    ("evaluator", "config", "ctx", "score", "reason", "value"),
    [
        pytest.param(
            LatencyBudget,
            {"maxMs": 3000},
            context(latency_ms=4000),
            2 / 3,
            "Response took 4000ms, exceeding budget of 3000ms",
            4000,
            id="latency",
        ),
        pytest.param(
            LatencyBudget,
            {"maxMs": 3000, "scoreFormula": "ratio"},
            context(latency_ms=4000),
            0.75,
            "Response took 4000ms, exceeding budget of 3000ms",
            4000,
            id="latency-ratio",
        ),
        pytest.param(
            TokenBudget,
            {"maxTokens": 800},
            context(usage=USAGE),
            0.75,
            "Token usage 1000 exceeds budget of 800",
            1000,
            id="tokens",
        ),
        pytest.param(
            CostWithin,
            {"maxUsd": 1.0},
            context(cost_usd=2),
            0.5,
            "cost $2.000000 exceeds budget $1.000000",
            2,
            id="cost",
        ),
        pytest.param(
            CompletedWithin,
            {"limitMs": 200},
            context(run_duration_ms=300),
            2 / 3,
            "took 300ms, exceeds limit 200ms",
            300,
            id="run",
        ),
    ],
)
def test_above_its_limit_a_budget_fails(
    evaluator: type[Evaluator],
    config: dict[str, Any],
    ctx: EvaluatorContext,
    score: float,
    reason: str,
    value: float,
) -> None:
    result = run(evaluator, config, ctx)
    assert (result.verdict, result.reason, result.value) == (FAILED, reason, value)
    assert result.score == pytest.approx(score)


def test_several_token_budgets_all_have_to_hold_and_the_lowest_score_counts() -> None:
    config = {"maxInput": 500, "maxOutput": 400, "maxTotal": 900}
    result = run(TokenBudget, config, context(usage=USAGE))
    assert (result.verdict, result.score, result.value) == (FAILED, 0.5, 600)
    assert [(check.text, check.met) for check in result.checks] == [
        ("Input tokens 400 <= 500", True),
        ("Output tokens 600 > 400", False),
        ("Total tokens 1000 > 900", False),
    ]
    second = run(TokenBudget, {"maxInput": 300, "maxOutput": 400}, context(usage=USAGE))
    assert (second.verdict, second.score, second.value) == (FAILED, 0.5, 600)
    roomy = run(TokenBudget, {"maxInput": 400, "maxOutput": 600}, context(usage=USAGE))
    assert (roomy.verdict, roomy.score) == (PASSED, 1)


@pytest.mark.parametrize(
    ("evaluator", "config", "reason"),
    [
        pytest.param(LatencyBudget, {"maxMs": 1}, "No latency data available", id="latency"),
        pytest.param(TokenBudget, {"maxTokens": 1}, "No token usage data available", id="tokens"),
        pytest.param(CostWithin, {"maxUsd": 1}, "No cost data available", id="cost"),
        pytest.param(CompletedWithin, {"limitMs": 1}, "No run duration available", id="run"),
        pytest.param(ExecutionLimits, {"maxTurns": 1}, "Turns data not available", id="limits"),
        pytest.param(
            ExecutionLimits, {"maxTokens": 1}, "Token usage data not available", id="limit-of-tokens"
        ),
    ],
)
@pytest.mark.parametrize(
    ("policy", "verdict", "score"),
    [("fail", FAILED, 0), ("pass", PASSED, 1), ("skip", SKIPPED, None), ("error", ERROR, None)],
)
def test_missing_data_gives_the_verdict_that_was_asked_for(
    evaluator: type[Evaluator],
    config: dict[str, Any],
    reason: str,
    policy: str,
    verdict: Verdict,
    score: float | None,
) -> None:
    result = run(evaluator, {**config, "onMissing": policy}, context(turn=0))
    assert (result.verdict, result.score) == (verdict, score)
    assert reason in result.reason
    assert (result.error is not None and result.error.code == "MISSING_DATA") == (verdict is ERROR)


def test_data_that_is_missing_fails_unless_told_otherwise() -> None:
    assert run(LatencyBudget, {"maxMs": 1}, context()).verdict is FAILED


@pytest.mark.parametrize(
    ("usage", "config", "reason"),
    [
        pytest.param(
            {"output": 5},
            {"maxTokens": 9, "inputOnly": True},
            "No input token usage data available",
            id="input",
        ),
        pytest.param({"input": 5}, {"maxTotal": 9, "maxOutput": 9}, "No output token", id="one-of-two"),
        pytest.param({"input": 5}, {"maxTokens": 9}, "No total token", id="half-of-the-total"),
        pytest.param({}, {"maxTokens": 9}, "No total token usage data available", id="empty"),
    ],
)
def test_a_count_that_was_not_reported_is_no_zero(
    usage: dict[str, int], config: dict[str, Any], reason: str
) -> None:
    result = run(TokenBudget, config, context(usage=usage))
    assert result.verdict is FAILED
    assert reason in result.reason


@pytest.mark.parametrize("cost", [float("nan"), float("inf")])
def test_a_cost_that_is_no_number_counts_as_missing(cost: float) -> None:
    for evaluator, config in ((CostWithin, {"maxUsd": 1}), (ExecutionLimits, {"maxCostUsd": 1})):
        assert run(evaluator, {**config, "onMissing": "error"}, context(cost_usd=cost)).verdict is ERROR


def test_the_score_of_execution_limits_is_the_share_that_was_kept() -> None:
    config = {"maxToolCalls": 10, "maxTokens": 2000, "maxCostUsd": 0.01, "maxDurationMs": 5000, "maxTurns": 1}
    ctx = context(
        [calls("read", "read", "edit"), {"role": "user", "content": "go on"}, calls("edit")],
        usage={"input": 500, "output": 300},
        cost_usd=0.05,
        latency_ms=3000,
        turn=2,
    )
    result = run(ExecutionLimits, config, ctx)
    assert (result.verdict, result.score) == (FAILED, 0.6)
    assert [(check.text, check.met) for check in result.checks] == [
        ("Tool calls 4 <= 10 max", True),
        ("Total tokens 800 <= 2000 max", True),
        ("Cost $0.0500 > $0.0100 max", False),
        ("Duration 3000ms <= 5000ms max", True),
        ("Turns 2 > 1 max", False),
    ]
    assert result.reason.startswith("3 of 5 limits met: Tool calls 4 <= 10 max; ")


def test_the_duration_limit_prefers_the_run_to_the_turn() -> None:
    config = {"maxDurationMs": 5000}
    both = context(run_duration_ms=6000, latency_ms=10)
    assert run(ExecutionLimits, config, both).verdict is FAILED
    assert run(ExecutionLimits, config, context(latency_ms=10)).verdict is PASSED


@pytest.mark.parametrize(
    ("policy", "verdict", "score", "texts"),
    [
        ("fail", FAILED, 0.5, ["Cost data not available", "Turns 1 <= 3 max"]),
        ("pass", PASSED, 1, ["Cost data not available", "Turns 1 <= 3 max"]),
        ("skip", PASSED, 1, ["Turns 1 <= 3 max"]),
        ("error", ERROR, None, []),
    ],
)
def test_one_limit_without_data_leaves_the_others_in_force(
    policy: str, verdict: Verdict, score: float | None, texts: list[str]
) -> None:
    result = run(ExecutionLimits, {"maxCostUsd": 1, "maxTurns": 3, "onMissing": policy}, context())
    assert (result.verdict, result.score) == (verdict, score)
    assert [check.text for check in result.checks] == texts


@pytest.mark.parametrize(
    ("limits", "unproven"),
    [
        ({"maxCostUsd": 1}, True),
        ({"maxCostUsd": 1, "maxTurns": 3}, True),
        ({"maxCostUsd": 1, "maxTurns": 0}, False),
        ({"maxTurns": 0}, False),
    ],
    ids=str,
)
def test_a_limit_without_data_proves_nothing_unless_another_is_exceeded(
    limits: dict[str, float], unproven: bool
) -> None:
    result = run(ExecutionLimits, limits, context())
    assert (result.verdict, result.unproven) == (FAILED, unproven)


@pytest.mark.parametrize(("less", "verdict"), [(0, PASSED), (1, FAILED)])
def test_execution_limits_are_inclusive(less: int, verdict: Verdict) -> None:
    ctx = context([calls("a", "b")], usage={"total": 7}, run_duration_ms=9)
    for key, most in (("maxToolCalls", 2), ("maxTokens", 7), ("maxDurationMs", 9)):
        assert run(ExecutionLimits, {key: most - less}, ctx).verdict is verdict, key


def test_without_any_message_nothing_is_known_of_tool_calls() -> None:
    assert run(ExecutionLimits, {"maxToolCalls": 10}, context()).verdict is FAILED
    talked = context([{"role": "assistant", "content": "hi"}])
    assert run(ExecutionLimits, {"maxToolCalls": 10}, talked).verdict is PASSED


@pytest.mark.parametrize(
    ("evaluator", "config", "problem"),
    [
        pytest.param(LatencyBudget, {}, "config/maxMs: missing", id="required"),
        pytest.param(
            LatencyBudget, {"maxMs": -1}, "config/maxMs: .*greater than or equal to 0", id="negative"
        ),
        pytest.param(LatencyBudget, {"maxMs": "3"}, "config/maxMs: .*got '3'", id="text"),
        pytest.param(LatencyBudget, {"maxMs": float("nan")}, "config/maxMs", id="nan"),
        pytest.param(LatencyBudget, {"maxMs": 1, "scoreFormula": "x"}, "config/scoreFormula", id="formula"),
        pytest.param(LatencyBudget, {"maxMs": 1, "maxSec": 1}, "config/maxSec: unknown key", id="unknown"),
        pytest.param(TokenBudget, {}, "no budget set; set maxTokens", id="no-budget"),
        pytest.param(TokenBudget, {"maxTokens": 1.5}, "config/maxTokens", id="half-a-token"),
        pytest.param(ExecutionLimits, {}, "no limit set; set one of maxToolCalls", id="no-limit"),
        pytest.param(CostWithin, {"maxUsd": 1, "onMissing": "ignore"}, "config/onMissing", id="policy"),
    ],
)
def test_a_wrong_config_is_refused_with_its_key(
    evaluator: type[Evaluator], config: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InvalidConfig, match=problem):
        evaluator.definition().compile(config)


@pytest.mark.parametrize(
    ("config", "usage", "reported"),
    [
        ({"maxTokens": 5}, {"input": 4, "output": 3}, {"input": 4, "output": 3}),
        ({"maxTokens": 5}, {"input": 4, "output": 3, "total": 9}, {"input": 4, "output": 3, "total": 9}),
        ({"maxInput": 3}, {"input": 4}, {"input": 4}),
        ({"maxInput": 3, "maxOutput": 3}, {"input": 4, "output": 3}, {"input": 4, "output": 3}),
    ],
)
def test_tokens_over_the_budget_come_with_what_was_reported(
    config: dict[str, Any], usage: dict[str, int], reported: dict[str, int]
) -> None:
    result = run(TokenBudget, config, context(usage=usage))
    assert result.verdict is Verdict.FAILED
    assert result.metadata is not None
    assert result.metadata["usage"] == reported


@pytest.mark.parametrize("policy", ["fail", "pass", "skip", "error"])
@pytest.mark.parametrize(
    ("evaluator", "config"),
    [(TokenBudget, {"maxInput": 10, "maxOutput": 10}), (ExecutionLimits, {"maxTokens": 10, "maxCostUsd": 1})],
)
def test_missing_data_hide_no_limit_that_is_exceeded(
    evaluator: type[Evaluator], config: dict[str, Any], policy: str
) -> None:
    usage = {"input": 500} if evaluator is TokenBudget else {"total": 500}
    result = run(evaluator, {**config, "onMissing": policy}, context(usage=usage))
    assert (result.verdict, result.unproven) == (FAILED, False)
