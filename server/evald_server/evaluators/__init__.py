"""The built-in evaluators, written against the public SDK exactly as a user would write them."""

from typing import Final

from evald.evaluator import Evaluator

from .budgets import CompletedWithin, CostWithin, ExecutionLimits, LatencyBudget, TokenBudget
from .json_answers import FieldAccuracy, IsJson, JsonMatch, JsonSchema
from .measures import (
    ResponseCost,
    ResponseLatency,
    ResponseLength,
    TokenUsage,
    ToolCallCount,
    TurnCount,
)
from .numbers import Numeric
from .regex import Regex
from .similarity import TextSimilarity
from .texts import Contains, EndsWith, ExactMatch, FinishReason, LengthWithin, StartsWith
from .tools import ToolCallBudget, ToolUse
from .trajectory import Trajectory

BUILT_INS: Final[dict[str, type[Evaluator]]] = {
    evaluator.type: evaluator
    for evaluator in (
        CompletedWithin,
        Contains,
        CostWithin,
        EndsWith,
        ExactMatch,
        ExecutionLimits,
        FieldAccuracy,
        FinishReason,
        IsJson,
        JsonMatch,
        JsonSchema,
        LatencyBudget,
        LengthWithin,
        Numeric,
        Regex,
        ResponseCost,
        ResponseLatency,
        ResponseLength,
        StartsWith,
        TextSimilarity,
        TokenBudget,
        TokenUsage,
        ToolCallBudget,
        ToolCallCount,
        ToolUse,
        Trajectory,
        TurnCount,
    )
}
