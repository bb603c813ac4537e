"""evald: says whether an agent's turn was good.

Clients (`Client`, `AsyncClient`) evaluate turns on an evald server; `Evaluator`
and `define_evaluator` are for evaluators of your own. docs/sdk.md shows both.
"""

from typing import TYPE_CHECKING, Any

from . import errors
from .aio import AsyncClient
from .calls import BatchItem
from .catalog import EvaluatorType
from .client import Client
from .context import EvaluatorContext
from .errors import EvaldError, InvalidInput, TurnRefused, UnknownEvaluator
from .evaluation import Evaluation, EvaluatorResult, Started
from .result import (
    ASSERTION,
    METRIC,
    Check,
    Result,
    Verdict,
    errored,
    failed,
    measured,
    passed,
    skipped,
    unavailable,
)
from .spec import Options, Spec
from .turn import Turn

if TYPE_CHECKING:
    from .evaluator import Evaluator, EvaluatorDefinition, Metric, define_evaluator

    __version__: str

__all__ = [  # noqa: RUF022 - plain alphabetical order
    "ASSERTION",
    "AsyncClient",
    "BatchItem",
    "Check",
    "Client",
    "EvaldError",
    "Evaluation",
    "Evaluator",
    "EvaluatorContext",
    "EvaluatorDefinition",
    "EvaluatorResult",
    "EvaluatorType",
    "InvalidInput",
    "METRIC",
    "Metric",
    "Options",
    "Result",
    "Spec",
    "Started",
    "Turn",
    "TurnRefused",
    "UnknownEvaluator",
    "Verdict",
    "define_evaluator",
    "errored",
    "errors",
    "failed",
    "measured",
    "passed",
    "skipped",
    "unavailable",
]

# Authors need pydantic, callers do not: importing it would double the time of `import evald`.
_AUTHORING = frozenset(("Evaluator", "EvaluatorDefinition", "Metric", "define_evaluator"))

if not TYPE_CHECKING:  # a type checker would take it to mean that every name exists

    def __getattr__(name: str) -> Any:
        if name in _AUTHORING:
            from . import evaluator

            value = getattr(evaluator, name)
        elif name == "__version__":
            from importlib.metadata import version

            value = version("evald")
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
