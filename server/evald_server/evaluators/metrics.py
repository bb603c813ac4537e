"""Metrics of a turn: calls, length, tokens, latency, cost, turns."""

from math import isfinite

from evald.context import EvaluatorContext
from evald.evaluator import Evaluator
from evald.result import METRIC, Metric, Result, measured, unavailable

from .budgets import Track, reported_tokens, tokens_of
from .call_rules import CallScope, call_evidence, calls_in, joined_names
from .results import MessageChoice, too_large
from .texts import MAX_SPLIT, LengthUnit, length_of


class ToolCallCount(
    Evaluator, type="tool-call-count", kind=METRIC, metric=Metric(unit="count", minimum=0), inline=True
):
    """Number of tool calls that the agent made.

    A tool call is an entry of an assistant message's `tool_calls`, answered or not.
    """

    scope: CallScope = "turn"

    def evaluate(self, ctx: EvaluatorContext) -> Result:
        """Return the number of tool calls. metadata: the number, and the names of the first 100 in order."""
        calls = calls_in(ctx, self.scope)
        count = len(calls)
        reason = (
            f"{count} tool call(s): {joined_names(calls)}" if count else f"No tool calls in this {self.scope}"
        )
        return measured(count, reason, call_evidence(calls))


class ResponseLength(
    Evaluator, type="response-length", kind=METRIC, metric=Metric(unit="characters", minimum=0), inline=True
):
    """Length of the answer in characters (Unicode code points) or words (separated by white space, or letters of scripts without it)."""

    unit: LengthUnit = "characters"
    message: MessageChoice = "last"

    def measures(self) -> Metric | None:
        """Return the metric in the unit of the config."""
        return Metric(unit=self.unit, minimum=0)

    def evaluate(self, ctx: EvaluatorContext) -> Result:
        """Return the length in the config's unit."""
        answer = ctx.answer_of(self.message)
        if answer is None:
            if not ctx.agent_spoke("turn"):
                return unavailable(ctx.missing_answer)
            return measured(0, ctx.missing_answer, {"length": 0, "unit": self.unit})
        unit = self.unit
        if unit == "words" and len(answer) > MAX_SPLIT:
            return too_large("characters to split into words", len(answer), MAX_SPLIT)
        length = length_of(answer, unit)
        return measured(length, f"Response length: {length} {unit}", {"length": length, "unit": unit})


class TokenUsageMetric(
    Evaluator,
    type="token-usage",
    kind=METRIC,
    metric=Metric(unit="tokens", higher_is_better=False, minimum=0),
    required_data=("last_invocation.token_usage",),
    inline=True,
    type_by_config_key=dict.fromkeys(
        (
            "maxTokens",
            "max_tokens",
            "maxTotal",
            "max_total",
            "maxInput",
            "max_input",
            "maxOutput",
            "max_output",
        ),
        "token-budget",
    ),
):
    """Tokens that the turn used, as the agent reports them."""

    track: Track = "total"

    def evaluate(self, ctx: EvaluatorContext) -> Result:
        """Return the number of tokens. metadata: the reported counts, and which of them is the value."""
        usage = ctx.last_invocation.token_usage
        if usage is None:
            return unavailable("No token usage data available")
        track = self.track
        tokens = tokens_of(usage, track)
        if tokens is None:
            return unavailable(f"No {track} token usage data available")
        evidence = {**reported_tokens(usage), "tracked": track}
        return measured(tokens, f"Token usage ({track}): {tokens}", evidence)


class ResponseLatency(
    Evaluator,
    type="response-latency",
    kind=METRIC,
    metric=Metric(unit="seconds", higher_is_better=False, minimum=0),
    required_data=("last_invocation.latency",),
    inline=True,
):
    """Time from request to complete answer, in seconds."""

    def evaluate(self, ctx: EvaluatorContext) -> Result:
        """Return the latency in seconds."""
        latency_ms = ctx.last_invocation.latency_ms
        if latency_ms is None:
            return unavailable("No latency data available")
        seconds = latency_ms / 1000
        return measured(seconds, f"Response latency: {seconds:.15g}s")


class ResponseCost(
    Evaluator,
    type="response-cost",
    kind=METRIC,
    metric=Metric(unit="usd", higher_is_better=False, minimum=0),
    required_data=("last_invocation.cost",),
    inline=True,
):
    """Cost of the turn in US dollars, as the agent reports it."""

    def evaluate(self, ctx: EvaluatorContext) -> Result:
        """Return the cost in US dollars."""
        cost = ctx.last_invocation.cost_usd
        if cost is None or not isfinite(cost):
            return unavailable("No cost data available")
        return measured(cost, f"Response cost: ${cost:.6f}")


class TurnCount(
    Evaluator,
    type="turn-count",
    kind=METRIC,
    metric=Metric(unit="count", minimum=0),
    required_data=("turn",),
    inline=True,
):
    """Number of turns so far, as the caller counts them."""

    def evaluate(self, ctx: EvaluatorContext) -> Result:
        """Return the number of turns."""
        if not ctx.turn:
            return unavailable("No turn number available")
        return measured(ctx.turn, f"Turn count: {ctx.turn}")
