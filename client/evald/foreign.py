"""Run authors' code so that whatever it raises or returns affects its own result only.

`guarded` wraps every evaluator that is not evald's own, in servers and in workers. Whatever the code raises,
`sys.exit()` included, becomes an `EvaluatorRaised`, an ordinary exception: asyncio stops the event loop for a
SystemExit or KeyboardInterrupt, and treats a GeneratorExit or CancelledError as its own. Whatever the code
returns becomes a new `Result` that fulfils the contract.
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
    Metric,
    effective_config,
    to_result,
)
from .result import Result
from .strict_json import TooLarge

_MOST_TRACE: Final = 20_000
_MOST_SUMMARY: Final = 2000
_MOST_PROBLEMS: Final = 100


class EvaluatorRaised(Exception):
    """An evaluator's own code raised an exception, which the message describes.

    Holds text only, made where the code ran: the original exception may have a `__str__` that raises or never
    returns, and it keeps alive whatever its frames hold.

    trace: the traceback, for the log.
    """

    def __init__(self, summary: str, trace: str = "") -> None:
        super().__init__(summary)
        self.trace = trace


def raised_by(problem: BaseException) -> EvaluatorRaised:
    """Convert what was raised to an EvaluatorRaised."""
    name = type(problem).__name__
    try:
        trace = "".join(traceback.format_exception(problem))[-_MOST_TRACE:]
        text = str.__getitem__(str(problem), slice(_MOST_SUMMARY))
    except BaseException as another:  # noqa: BLE001 - foreign code as well
        return EvaluatorRaised(f"{name}, whose text cannot be had: it raises {type(another).__name__}")
    return EvaluatorRaised(f"{name}: {text}" if text else name, trace)


def guarded(definition: EvaluatorDefinition) -> EvaluatorDefinition:
    """Wrap an evaluator so that its code cannot harm the process.

    `compile` then raises InvalidConfig only. If the evaluator's own code fails during compilation, it is
    compiled again at each call, because a model that could not be fetched may be available the next time. The
    compiled function returns valid Results, or awaitables of them. It raises ContractViolation, TooLarge and
    EvaluatorRaised, OutOfTime after `check_time`, and CancelledError when its task is cancelled.
    """

    def compile_config(config: Mapping[str, Any]) -> Evaluate:
        guard = Guard(definition, config)
        return guard.evaluate()

    return definition._replace(compile=compile_config)


class Guard:
    """A wrapped evaluator with one config.

    config: the effective one of a class evaluator, as canonical JSON; None where it cannot be had.
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
        except BaseException:  # noqa: BLE001, S110 - foreign code; it says so again when it is called
            pass
        if failure is not None:
            try:
                raise failure
            finally:
                del failure
        return self._run

    def measures(self) -> Metric | None:
        """Return how to read the evaluator's number with this config; None when there is nothing to say."""
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
            if inspect.isawaitable(outcome):
                return self._finish(lambda: outcome)
            return self._checked(outcome)
        except OutOfTime:
            raise
        except BaseException as problem:  # noqa: BLE001 - foreign code
            failure = _failure(problem)
        try:
            raise failure
        finally:
            del failure  # its traceback holds this frame: a cycle would keep the call until a collection

    async def _run_async(self, ctx: EvaluatorContext) -> Result:
        return await self._finish(lambda: self._compiled()(ctx))

    async def _finish(self, begin: Callable[[], Awaitable[Any]]) -> Result:
        task = _current_task()
        try:
            return self._checked(await begin())
        except OutOfTime:
            raise
        except asyncio.CancelledError as problem:
            # Foreign code that cancels itself is a crash; a caller that went away is not.
            if task is not None and task.cancelling():
                raise
            failure = _failure(problem)
        except GeneratorExit as problem:
            # Raised by the evaluator, or thrown in because its task has been forgotten.
            if task is None or task is not _current_task():
                raise
            failure = _failure(problem)
        except BaseException as problem:  # noqa: BLE001 - foreign code
            failure = _failure(problem)
        try:
            raise failure
        finally:
            del failure  # its traceback holds this frame: a cycle would keep the call until a collection

    def _checked(self, outcome: Any) -> Result:
        kind = self._definition.kind
        return checked(kind, to_result(kind, outcome, self._definition.description))


def _effective_config(evaluator: Evaluator) -> str | None:
    """Return the evaluator's effective config; None when a field is no JSON data."""
    try:
        return effective_config(evaluator)
    except BaseException:  # noqa: BLE001 - foreign code as well
        return None


def _failure(problem: BaseException) -> Exception:
    """Convert what authors' code raised to the exception to raise instead."""
    try:
        if type(problem) is ContractViolation:
            return ContractViolation(cut(str(problem)))
        if type(problem) is TooLarge:
            return TooLarge(cut(str(problem)))
        # The caller's messages, which this evaluator could not read.
        if type(problem) is UnreadableContent:
            return UnreadableContent(cut(problem.path), cut(problem.got), cut(problem.wanted))
        if type(problem) is TooMany:
            return TooMany(cut(problem.path), cut(problem.what), int(problem.size), int(problem.limit))
    except BaseException as another:  # noqa: BLE001 - foreign code as well
        return raised_by(another)
    return raised_by(problem)


def _plain_problems(problem: InvalidConfig) -> Exception | None:
    """Copy the problems as plain text; None when they cannot be read."""
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
