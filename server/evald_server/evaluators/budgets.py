"""Assertions that time, tokens and cost stay within limits. All limits are inclusive."""

from collections.abc import Iterator
from functools import cached_property
from math import isclose, isfinite
from typing import Annotated, Literal

from pydantic import Field, model_validator

from evald.context import EvaluatorContext
from evald.evaluator import Evaluator
from evald.result import ASSERTION, Check, Result, TokenUsage, Verdict, failed, passed

from .results import Amount, OnMissing, missing, one_required

ScoreFormula = Annotated[
    Literal["linear", "ratio", "binary"],
    Field(
        description="Score of a value above the limit. linear: 1 - excess / limit, so that twice the limit scores 0. "
        "ratio: limit / actual. binary: 0."
    ),
]

WholeNumber = Annotated[int, Field(ge=0)]


def budget_score(actual: float, limit: float, formula: ScoreFormula) -> float:
    """Return the score of an exceeded budget, from 0 to 1. A limit of 0 scores 0 by every formula."""
    if limit == 0 or formula == "binary":
        return 0.0
    if formula == "ratio":
        return limit / actual
    return max(0.0, 1 - (actual - limit) / limit)


def _is_within(actual: float, limit: float) -> bool:
    """Return whether an amount is at most the limit. Integers exactly, floats up to binary rounding."""
    return actual <= limit or (not isinstance(actual, int) and isclose(actual, limit, rel_tol=1e-12))


class LatencyBudget(
    Evaluator,
    type="latency-budget",
    kind=ASSERTION,
    aliases={"latency": {}},
    required_data=("last_invocation.latency",),
    inline=True,
):
    """The turn was answered within `maxMs` milliseconds."""

    max_ms: Amount = Field(description="Maximum latency, in milliseconds.")
    score_formula: ScoreFormula = "linear"
    on_missing: OnMissing = "fail"

    @cached_property
    def _budget(self) -> str:
        return f"{self.max_ms:.15g}ms"

    def evaluate(self, ctx: EvaluatorContext) -> Result:
        """Compare the latency of the invocation with the budget. value: milliseconds."""
        actual = ctx.last_invocation.latency_ms
        if actual is None:
            return missing(self.on_missing, "No latency data available")
        limit = self.max_ms
        if actual <= limit:
            return passed(f"Response within budget: {actual:.15g}ms / {self._budget}", 1.0, actual)
        return failed(
            f"Response took {actual:.15g}ms, exceeding budget of {self._budget}",
            budget_score(actual, limit, self.score_formula),
            actual,
            {"actualMs": actual, "budgetMs": limit},
        )


class CompletedWithin(
    Evaluator, type="completed-within", kind=ASSERTION, required_data=("run_duration",), inline=True
):
    """The whole run, over all its turns so far, took at most `limitMs` milliseconds."""

    limit_ms: Amount = Field(description="Maximum duration of the run, in milliseconds.")
    on_missing: OnMissing = "fail"

    def evaluate(self, ctx: EvaluatorContext) -> Result:
        """Compare the duration of the run with the limit. value: milliseconds."""
        actual = ctx.run_duration_ms
        if actual is None:
            return missing(self.on_missing, "No run duration available")
        limit = self.limit_ms
        if actual <= limit:
            return passed(f"completed in {actual:.15g}ms (limit {limit:.15g}ms)", 1.0, actual)
        return failed(
            f"took {actual:.15g}ms, exceeds limit {limit:.15g}ms",
            budget_score(actual, limit, "ratio"),
            actual,
        )


class CostWithin(
    Evaluator,
    type="cost-within",
    kind=ASSERTION,
    aliases={"cost": {}},
    required_data=("last_invocation.cost",),
    inline=True,
):
    """The turn cost at most `maxUsd` US dollars."""

    max_usd: Amount = Field(description="Maximum cost, in US dollars.")
    score_formula: ScoreFormula = "ratio"
    on_missing: OnMissing = "fail"

    def evaluate(self, ctx: EvaluatorContext) -> Result:
        """Compare the cost of the invocation with the budget. value: US dollars."""
        actual = ctx.last_invocation.cost_usd
        if actual is None or not isfinite(actual):
            return missing(self.on_missing, "No cost data available")
        limit = self.max_usd
        if _is_within(actual, limit):
            return passed(f"cost ${actual:.6f} within budget ${limit:.6f}", 1.0, actual)
        return failed(
            f"cost ${actual:.6f} exceeds budget ${limit:.6f}",
            budget_score(actual, limit, self.score_formula),
            actual,
        )


Track = Annotated[
    Literal["total", "input", "output"],
    Field(description="Which tokens are counted: input (prompt), output (completion), or both."),
]


def tokens_of(usage: TokenUsage, track: Track) -> int | None:
    """Return the reported count, None if it is unknown. Half of a total is not enough for a comparison."""
    if track == "total":
        halves = usage.input_tokens, usage.output_tokens
        return None if usage.total_tokens is None and None in halves else usage.total
    return usage.input_tokens if track == "input" else usage.output_tokens


def reported_tokens(usage: TokenUsage) -> dict[str, int]:
    """Return the reported counts by name."""
    counts = {"input": usage.input_tokens, "output": usage.output_tokens, "total": usage.total_tokens}
    return {name: count for name, count in counts.items() if count is not None}


class TokenBudget(
    Evaluator,
    type="token-budget",
    kind=ASSERTION,
    required_data=("last_invocation.token_usage",),
    inline=True,
):
    """The turn used at most `maxTokens` tokens.

    Counts input and output together unless `inputOnly` or `outputOnly` is set;
    with both, `inputOnly` wins. `maxTotal`, `maxInput` and `maxOutput` set
    several budgets at once: all must hold, and the score is the lowest.
    """

    model_config = one_required("maxTokens", "maxTotal", "maxInput", "maxOutput")

    max_tokens: WholeNumber | None = Field(None, description="Maximum number of tokens.")
    input_only: bool = Field(False, description="maxTokens counts input tokens only.")
    output_only: bool = Field(False, description="maxTokens counts output tokens only.")
    max_total: WholeNumber | None = Field(None, description="Maximum number of tokens, input plus output.")
    max_input: WholeNumber | None = Field(None, description="Maximum number of input tokens.")
    max_output: WholeNumber | None = Field(None, description="Maximum number of output tokens.")
    score_formula: ScoreFormula = "linear"
    on_missing: OnMissing = "fail"

    @cached_property
    def _budgets(self) -> list[tuple[Track, int]]:
        track: Track = "input" if self.input_only else "output" if self.output_only else "total"
        budgets: list[tuple[Track, int | None]] = [
            (track, self.max_tokens),
            ("input", self.max_input),
            ("output", self.max_output),
            ("total", self.max_total),
        ]
        return [(track, limit) for track, limit in budgets if limit is not None]

    def prepare(self) -> None:
        """Raise InvalidConfig if there is no budget."""
        if not self._budgets:
            raise ValueError("no budget set; set maxTokens, or one of maxTotal, maxInput, maxOutput")

    def evaluate(self, ctx: EvaluatorContext) -> Result:
        """Compare the token usage of the invocation with every budget. value: tokens of the tightest one."""
        usage = ctx.last_invocation.token_usage
        if usage is None:
            return missing(self.on_missing, "No token usage data available")
        if len(self._budgets) > 1:
            return self._check_all(usage)
        track, limit = self._budgets[0]
        actual = tokens_of(usage, track)
        if actual is None:
            return missing(self.on_missing, f"No {track} token usage data available")
        if actual <= limit:
            return passed(f"Token usage within budget: {actual} / {limit}", 1.0, actual)
        return failed(
            f"Token usage {actual} exceeds budget of {limit}",
            budget_score(actual, limit, self.score_formula),
            actual,
            {"actualTokens": actual, "budgetTokens": limit, "usage": reported_tokens(usage)},
        )

    def _check_all(self, usage: TokenUsage) -> Result:
        checks: list[Check] = []
        lowest, value = 1.0, None
        gap: Track | None = None
        for track, limit in self._budgets:
            actual = tokens_of(usage, track)
            if actual is None:
                gap = gap or track
                continue
            kept = actual <= limit
            checks.append(Check(f"{track.title()} tokens {actual} {'<=' if kept else '>'} {limit}", kept))
            score = 1.0 if kept else budget_score(actual, limit, self.score_formula)
            if value is None or score < lowest:
                lowest, value = score, actual
        reason = "; ".join(check.text for check in checks)
        if all(check.met for check in checks):
            if gap is not None:
                return missing(self.on_missing, f"No {gap} token usage data available")
            return passed(f"Token usage within budget: {reason}", 1.0, value, checks=checks)
        evidence = {"usage": reported_tokens(usage)}
        return failed(f"Token usage exceeds budget: {reason}", lowest, value, evidence, checks)


class ExecutionLimits(
    Evaluator, type="execution-limits", kind=ASSERTION, aliases={"execution-metrics": {}}, inline=True
):
    """The run stayed within every limit that is set.

    Tool calls count over the whole conversation, tokens and cost over the
    turn. Duration is the run's, or the turn's latency where the caller gives no
    run duration. Score: limits met / limits set.
    """

    model_config = one_required("maxToolCalls", "maxTokens", "maxCostUsd", "maxDurationMs", "maxTurns")

    max_tool_calls: WholeNumber | None = Field(
        None, description="Maximum number of tool calls in the conversation."
    )
    max_tokens: WholeNumber | None = Field(
        None, description="Maximum number of tokens in the turn, input plus output."
    )
    max_cost_usd: Amount | None = Field(None, description="Maximum cost of the turn, in US dollars.")
    max_duration_ms: Amount | None = Field(None, description="Maximum duration, in milliseconds.")
    max_turns: WholeNumber | None = Field(None, description="Maximum number of turns.")
    on_missing: OnMissing = "fail"

    @model_validator(mode="after")
    def _some_limit(self) -> "ExecutionLimits":
        limits = (
            self.max_tool_calls,
            self.max_tokens,
            self.max_cost_usd,
            self.max_duration_ms,
            self.max_turns,
        )
        if all(limit is None for limit in limits):
            raise ValueError(
                "no limit set; set one of maxToolCalls, maxTokens, maxCostUsd, maxDurationMs, maxTurns"
            )
        return self

    def evaluate(self, ctx: EvaluatorContext) -> Result:
        """Check every limit that is set. `onMissing` decides about limits without data."""
        on_missing = self.on_missing
        checks: list[Check] = []
        gaps: list[str] = []
        exceeded = False
        for text, kept in self._findings(ctx):
            exceeded = exceeded or kept is False
            if kept is not None:
                checks.append(Check(text, kept))
            elif on_missing in {"fail", "pass"}:
                checks.append(Check(text, on_missing == "pass"))
            else:
                gaps.append(text)
        if gaps and not exceeded and (on_missing == "error" or not checks):
            return missing(on_missing, "; ".join(gaps))
        kept_count = sum(check.met for check in checks)
        reason = f"{kept_count} of {len(checks)} limits met: {'; '.join(check.text for check in checks)}"
        if kept_count == len(checks):
            return passed(reason, 1.0, checks=checks)
        return Result(Verdict.FAILED, reason, kept_count / len(checks), checks=checks, unproven=not exceeded)

    def _findings(self, ctx: EvaluatorContext) -> Iterator[tuple[str, bool | None]]:
        """Yield each limit as text and whether it was kept; None if its data is missing."""
        invocation = ctx.last_invocation
        if self.max_tool_calls is not None:
            calls = len(ctx.tool_calls) if ctx.agent_spoke("conversation") else None
            yield _compare("Tool calls", "{}", calls, self.max_tool_calls)
        if self.max_tokens is not None:
            usage = invocation.token_usage
            total = None if usage is None else tokens_of(usage, "total")
            yield _compare("Total tokens", "{}", total, self.max_tokens, data="Token usage")
        if self.max_cost_usd is not None:
            cost = invocation.cost_usd
            known = None if cost is None or not isfinite(cost) else cost
            yield _compare("Cost", "${:.4f}", known, self.max_cost_usd)
        if self.max_duration_ms is not None:
            run = ctx.run_duration_ms
            duration = invocation.latency_ms if run is None else run
            yield _compare("Duration", "{:.15g}ms", duration, self.max_duration_ms)
        if self.max_turns is not None:
            yield _compare("Turns", "{}", ctx.turn or None, self.max_turns)


def _compare(
    name: str, form: str, actual: float | None, limit: float, data: str | None = None
) -> tuple[str, bool | None]:
    if actual is None:
        return f"{data or name} data not available", None
    kept = _is_within(actual, limit)
    return f"{name} {form.format(actual)} {'<=' if kept else '>'} {form.format(limit)} max", kept
