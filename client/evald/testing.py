"""Run evaluators on a turn in unit tests, without a server. Needs only the SDK.

For a server in the test process see `evald_server.testing`.
"""

import asyncio
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .context import EvaluatorContext
from .contract import violation
from .result import Result
from .turn import TurnLike, as_turn

if TYPE_CHECKING:
    from .evaluator import Evaluator, EvaluatorDefinition

__all__ = ["context", "evaluate"]


def context(turn: TurnLike, config: Mapping[str, Any] | None = None) -> EvaluatorContext:
    """Return the context that an evaluator gets for a turn.

    config: value of `ctx.config`, for function evaluators.

    Raises InvalidInput for an invalid turn.
    """
    return as_turn(turn).context.with_config(config or {})


def evaluate(
    evaluator: "type[Evaluator] | EvaluatorDefinition",
    config: Mapping[str, Any] | None = None,
    turn: TurnLike | EvaluatorContext = (),
) -> Result:
    """Run an evaluator on a turn, as a server would, and return its result.

    evaluator: an `Evaluator` class, or an `EvaluatorDefinition`. An async evaluator cannot be run while an
        event loop runs in this thread.

    Raises InvalidConfig (a ValueError) for an invalid config, InvalidInput for an invalid turn, ValueError for a
    result that breaks the contract, and any exception of the evaluator itself.
    """
    from .evaluator import to_result

    definition = evaluator.definition() if isinstance(evaluator, type) else evaluator
    ctx = turn if isinstance(turn, EvaluatorContext) else context(turn)
    outcome = definition.compile(config or {})(ctx)
    if inspect.isawaitable(outcome):
        outcome = asyncio.run(_result_of(outcome))
    result = to_result(definition.kind, outcome, definition.description)
    problem = violation(definition.kind, result)
    if problem:
        raise ValueError(f"{definition.type} breaks the contract: {problem}")
    return result


async def _result_of(outcome: Any) -> Any:
    return await outcome
