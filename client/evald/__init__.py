"""The Python SDK of evald, which evaluates the turns of AI agents.

`Client` and `AsyncClient` evaluate turns on an evald server. `Evaluator`,
`assertion` and `metric` define your own evaluators; `connect` and `serve`
run them in a separate process. See docs/sdk.md and
docs/write-a-remote-evaluator.md.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import errors
from .batch import BatchItem
from .catalog import EvaluatorType
from .context import EvaluatorContext
from .errors import EvaldError, InvalidInput, TurnRefused, UnknownEvaluator
from .evaluation import Evaluation, EvaluatorResult
from .result import (
    ASSERTION,
    METRIC,
    Check,
    Metric,
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
    from .aio import AsyncClient
    from .client import Client
    from .credentials import Tls
    from .evaluator import Evaluator, EvaluatorDefinition, assertion, define_evaluator, metric
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

# Imported on first use. Authors need pydantic and callers need gRPC; each would double the time of `import evald`.
_MODULES = {
    "AsyncClient": "aio",
    "Client": "client",
    "Tls": "credentials",
    **dict.fromkeys(
        ("Evaluator", "EvaluatorDefinition", "assertion", "define_evaluator", "metric"), "evaluator"
    ),
    **dict.fromkeys(("DiallingWorker", "ListeningWorker", "connect", "serve"), "worker"),
}

if not TYPE_CHECKING:  # with a module `__getattr__`, a type checker assumes that every name exists

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            value = getattr(import_module(f".{_MODULES[name]}", __name__), name)
        elif name == "__version__":
            from importlib.metadata import version

            value = version("evald")
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
