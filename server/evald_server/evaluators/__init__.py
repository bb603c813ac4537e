"""The built-in evaluators, written with the public SDK as user code would be."""

# ruff: noqa: F401 - the imports are the table: an evaluator that is imported here is a built-in
from typing import Final

from evald.evaluator import Evaluator

from .budgets import CompletedWithin, CostWithin, ExecutionLimits, LatencyBudget, TokenBudget
from .field_accuracy import FieldAccuracy
from .graders import SimilarityCheck, StringCheck
from .json_answers import IsJson, JsonSchema
from .json_match import JsonMatch
from .metrics import (
    ResponseCost,
    ResponseLatency,
    ResponseLength,
    TokenUsageMetric,
    ToolCallCount,
    TurnCount,
)
from .numeric import Numeric
from .regex import Regex
from .similarity import TextSimilarity
from .texts import Contains, EndsWith, ExactMatch, FinishReason, LengthWithin, StartsWith
from .tool_use import ToolCallBudget, ToolUse
from .trajectory import Trajectory

BUILT_INS: Final[dict[str, type[Evaluator]]] = {
    found.type: found
    for found in list(vars().values())
    if isinstance(found, type) and issubclass(found, Evaluator) and found is not Evaluator
}
