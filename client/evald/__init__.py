"""The Python SDK of evald, which evaluates the turns of AI agents.

Clients (`Client`, `AsyncClient`) evaluate turns on an evald server; `Evaluator`,
`assertion` and `metric` are for evaluators of your own, `connect` and `serve`
run those in a process of their own. docs/sdk.md and
docs/write-a-remote-evaluator.md show them.
"""

from typing import TYPE_CHECKING, Any

from . import errors
from .aio import AsyncClient
from .batch import BatchItem
from .catalog import EvaluatorType
from .client import Client
from .context import EvaluatorContext
from .credentials import Tls
from .errors import EvaldError, InvalidInput, TurnRefused, UnknownEvaluator
from .evaluation import Evaluation, EvaluatorResult
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
    unproven,
)
from .spec import Options, Spec, SpecLike
from .stream import Started
from .turn import Turn

if TYPE_CHECKING:
    from .evaluator import Evaluator, EvaluatorDefinition, Metric, assertion, define_evaluator, metric
    from .worker import DiallingWorker, ListeningWorker, connect, serve

    __version__: str

__all__ = [  # noqa: RUF022 - plain alphabetical order
    "ASSERTION",
    "AsyncClient",
    "BatchItem",
    "Check",
    "Client",
    "DiallingWorker",
    "EvaldError",
    "Evaluation",
    "Evaluator",
    "EvaluatorContext",
    "EvaluatorDefinition",
    "EvaluatorResult",
    "EvaluatorType",
    "InvalidInput",
    "ListeningWorker",
    "METRIC",
    "Metric",
    "Options",
    "Result",
    "Spec",
    "SpecLike",
    "Started",
    "Tls",
    "Turn",
    "TurnRefused",
    "UnknownEvaluator",
    "Verdict",
    "assertion",
    "connect",
    "define_evaluator",
    "errored",
    "errors",
    "failed",
    "measured",
    "metric",
    "passed",
    "serve",
    "skipped",
    "unavailable",
    "unproven",
]

# Authors need pydantic, callers do not: importing it would double the time of `import evald`.
_AUTHORING = frozenset(
    ("Evaluator", "EvaluatorDefinition", "Metric", "assertion", "define_evaluator", "metric")
)
_SERVING = frozenset(("DiallingWorker", "ListeningWorker", "connect", "serve"))

if not TYPE_CHECKING:  # a type checker would take it to mean that every name exists

    def __getattr__(name: str) -> Any:
        if name in _AUTHORING:
            from . import evaluator

            value = getattr(evaluator, name)
        elif name in _SERVING:
            from . import worker

            value = getattr(worker, name)
        elif name == "__version__":
            from importlib.metadata import version

            value = version("evald")
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
