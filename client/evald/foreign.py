"""Run plugin code so that its exceptions and return values affect only its own result.

`guarded` wraps every evaluator except evald's own, in servers and in workers. Every exception of the code,
including `sys.exit()`, becomes an `EvaluatorRaised`, which is an ordinary Exception: asyncio stops the event loop
for a SystemExit or KeyboardInterrupt, and treats a GeneratorExit or CancelledError as its own. Every return value
becomes a new `Result` that fulfils the contract.
"""

import asyncio
import inspect
import traceback
from collections.abc import Awaitable, Callable, Mapping
from itertools import islice
from typing import Any, Final

from .blocks import TooMany, UnreadableContent
from .context import EvaluatorContext, OutOfTime
from .contract import ContractViolation, checked, cut
from .evaluator import (
    ConfigProblem,
    Evaluate,
    Evaluator,
    EvaluatorDefinition,
    InvalidConfig,
    effective_config,
    to_result,
)
from .result import Metric, Result
from .strict_json import TooLarge

_MOST_TRACE: Final = 20_000
_MOST_SUMMARY: Final = 2000
_MOST_PROBLEMS: Final = 100


class EvaluatorRaised(Exception):
    """The exception that replaces an exception of an evaluator's own code.

    It contains only text, created in the thread of the code. The original exception may have a `__str__` that
    raises or never returns, and it keeps the objects of its frames alive.

    trace: the traceback, for the log.
    """

    def __init__(self, summary: str, trace: str = "") -> None:
        super().__init__(summary)
        self.trace = trace


def raised_by(problem: BaseException) -> EvaluatorRaised:
    """Convert any exception to an EvaluatorRaised."""
    name = type(problem).__name__
    try:
        trace = "".join(traceback.format_exception(problem))[-_MOST_TRACE:]
        text = str.__getitem__(str(problem), slice(_MOST_SUMMARY))
    except BaseException as another:  # noqa: BLE001 - foreign code as well
        return EvaluatorRaised(f"{name}, whose message cannot be read: str() raises {type(another).__name__}")
    return EvaluatorRaised(f"{name}: {text}" if text else name, trace)


def guarded(definition: EvaluatorDefinition) -> EvaluatorDefinition:
    """Wrap an evaluator so that its code cannot harm the process.

    The wrapped `compile` raises only InvalidConfig. If the evaluator's own code fails during compilation, it is
    compiled again at each call, because a model that could not be fetched may be available later. The compiled
    function returns valid Results, or awaitables of them. It raises ContractViolation, TooLarge,
    UnreadableContent, TooMany and EvaluatorRaised, OutOfTime after `check_time`, and CancelledError if its task is
    cancelled.
    """

    def compile_config(config: Mapping[str, Any]) -> Evaluate:
        guard = Guard(definition, config)
        return guard.evaluate()

    return definition._replace(compile=compile_config)


class Guard:
    """A wrapped evaluator with one config.

    config: the effective config of a class evaluator, as canonical JSON; None if not available.
    """

    def __init__(self, definition: EvaluatorDefinition, config: Mapping[str, Any]) -> None:
        self._definition = definition
        self._config = config
        self.config: str | None = None
        self._metric = definition.metric
        self._evaluate: Callable[[EvaluatorContext], Any] | None = None

    def evaluate(self) -> Evaluate:
        """Return the function that evaluates a turn. Raises InvalidConfig."""
        failure: Exception | None = None
        try:
            if inspect.iscoroutinefunction(self._compiled()):
                return self._run_async
        except InvalidConfig as problem:
            failure = _plain_problems(problem)
        except BaseException:  # noqa: BLE001, S110 - foreign code; it raises again when it is called
            pass
        if failure is not None:
            try:
                raise failure
            finally:
                del failure
        return self._run

    def measures(self) -> Metric | None:
        """Return the unit and range of the evaluator's value with this config; None if not declared."""
        return self._metric

    def _compiled(self) -> Callable[[EvaluatorContext], Any]:
        if self._evaluate is None:
            evaluate = self._definition.compile(self._config)
            evaluator = getattr(evaluate, "__self__", None)
            if isinstance(evaluator, Evaluator):
                metric = evaluator.measures()
                if metric is not None and type(metric) is not Metric:
                    raise TypeError("measures: wanted a Metric or None")
                self._metric = metric
                self.config = _effective_config(evaluator)
            self._evaluate = evaluate
        return self._evaluate

    def _run(self, ctx: EvaluatorContext) -> Result | Awaitable[Result]:
        try:
            outcome = self._compiled()(ctx)
            if inspect.isawaitable(outcome) and not self._definition.inline:
                return self._finish(lambda: outcome)
            return self._checked(outcome)
        except OutOfTime:
            raise
        except BaseException as problem:  # noqa: BLE001 - foreign code
            failure = _failure(problem)
        try:
            raise failure
        finally:
            del failure  # its traceback refers to this frame: a cycle, which only garbage collection frees

    async def _run_async(self, ctx: EvaluatorContext) -> Result:
        return await self._finish(lambda: self._compiled()(ctx))

    async def _finish(self, begin: Callable[[], Awaitable[Any]]) -> Result:
        task = _current_task()
        try:
            return self._checked(await begin())
        except OutOfTime:
            raise
        except asyncio.CancelledError as problem:
            # Foreign code that cancels itself has failed; a caller that cancels the task is no failure.
            if task is not None and task.cancelling():
                raise
            failure = _failure(problem)
        except GeneratorExit as problem:
            # Raised by the evaluator, or by Python because the coroutine was garbage-collected.
            if task is None or task is not _current_task():
                raise
            failure = _failure(problem)
        except BaseException as problem:  # noqa: BLE001 - foreign code
            failure = _failure(problem)
        try:
            raise failure
        finally:
            # Its traceback refers to this frame, and the task to it: a cycle, which only garbage collection frees.
            del failure, task

    def _checked(self, outcome: Any) -> Result:
        kind = self._definition.kind
        return checked(kind, to_result(kind, outcome, self._definition.description))


def _effective_config(evaluator: Evaluator) -> str | None:
    """Return the evaluator's effective config; None if a field is not JSON data."""
    try:
        return effective_config(evaluator)
    except BaseException:  # noqa: BLE001 - foreign code as well
        return None


def _failure(problem: BaseException) -> Exception:
    """Return the exception to raise instead of an exception of foreign code."""
    try:
        if type(problem) is ContractViolation:
            return ContractViolation(cut(str(problem)))
        if type(problem) is TooLarge:
            return TooLarge(cut(str(problem)))
        # The caller's messages were unreadable: not a failure of the evaluator.
        if type(problem) is UnreadableContent:
            return UnreadableContent(cut(problem.path), cut(problem.got), cut(problem.wanted))
        if type(problem) is TooMany:
            return TooMany(cut(problem.path), cut(problem.what), int(problem.size), int(problem.limit))
    except BaseException as another:  # noqa: BLE001 - foreign code as well
        return raised_by(another)
    return raised_by(problem)


def _plain_problems(problem: InvalidConfig) -> Exception | None:
    """Return a copy of the exception with plain text; None if its problems are unreadable."""
    try:
        problems = list(islice(problem.problems, _MOST_PROBLEMS))
        return InvalidConfig([ConfigProblem(cut(one.path), cut(one.message)) for one in problems])
    except BaseException:  # noqa: BLE001 - foreign code as well
        return None


def _current_task() -> "asyncio.Task[Any] | None":
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
