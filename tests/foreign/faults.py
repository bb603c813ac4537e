"""Faults that the code of evaluators may raise, and the forms of evaluators."""

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn

import evald
from evald.evaluator import EvaluatorDefinition

TURN_THAT_BREAKS = "boom"
"""The answer of the turn on which an evaluator raises; on any other it passes."""


class OwnBaseException(BaseException):
    """A subclass of BaseException, as a plugin may define."""


class SilentError(Exception):
    """An exception whose text cannot be read."""

    def __str__(self) -> str:
        raise SystemExit(3)

    __repr__ = __str__


class LyingError(Exception):
    """An exception whose class cannot be read."""

    @property
    def __class__(self) -> Any:  # type: ignore[override]
        raise KeyboardInterrupt


def _recurse() -> None:
    _recurse()


def _raise(problem: BaseException) -> NoReturn:
    raise problem


FAULTS: dict[str, Callable[[], object]] = {
    "system-exit": lambda: _raise(SystemExit(0)),
    "keyboard-interrupt": lambda: _raise(KeyboardInterrupt()),
    "generator-exit": lambda: _raise(GeneratorExit()),
    "cancelled": lambda: _raise(asyncio.CancelledError()),
    "own-base": lambda: _raise(OwnBaseException("own")),
    "stop-iteration": lambda: _raise(StopIteration(1)),
    "stop-async-iteration": lambda: _raise(StopAsyncIteration()),
    "recursion": _recurse,
    "memory": lambda: _raise(MemoryError()),
    "timeout": lambda: _raise(TimeoutError()),
    "silent": lambda: _raise(SilentError()),
    "lying": lambda: _raise(LyingError()),
    "group": lambda: _raise(ExceptionGroup("group", [ValueError(1)])),
    "base-group": lambda: _raise(BaseExceptionGroup("group", [SystemExit(1), OwnBaseException()])),
    "plain": lambda: _raise(ValueError("plain")),
}


def _breaks(ctx: evald.EvaluatorContext) -> bool:
    return ctx.answer == TURN_THAT_BREAKS


def _function(name: str, fault: Callable[[], object], *, inline: bool) -> EvaluatorDefinition:
    def evaluate(ctx: evald.EvaluatorContext) -> bool:
        if _breaks(ctx):
            fault()
        return True

    return evald.define_evaluator(type=name, kind=evald.ASSERTION, evaluate=evaluate, inline=inline)


def _thread(name: str, fault: Callable[[], object]) -> EvaluatorDefinition:
    return _function(name, fault, inline=False)


def _inline(name: str, fault: Callable[[], object]) -> EvaluatorDefinition:
    return _function(name, fault, inline=True)


def _async(name: str, fault: Callable[[], object]) -> EvaluatorDefinition:
    async def evaluate(ctx: evald.EvaluatorContext) -> bool:
        await asyncio.sleep(0)
        if _breaks(ctx):
            fault()
        return True

    return evald.define_evaluator(type=name, kind=evald.ASSERTION, evaluate=evaluate)


def _class(name: str, fault: Callable[[], object]) -> EvaluatorDefinition:
    class Written(evald.Evaluator):
        type: ClassVar[str] = name
        kind = evald.ASSERTION

        def evaluate(self, ctx: evald.EvaluatorContext) -> evald.Result:
            if _breaks(ctx):
                fault()
            return evald.passed("fine")

    return Written.definition()


def _async_class(name: str, fault: Callable[[], object]) -> EvaluatorDefinition:
    class Written(evald.Evaluator):
        type: ClassVar[str] = name
        kind = evald.ASSERTION

        async def evaluate(self, ctx: evald.EvaluatorContext) -> evald.Result:
            if _breaks(ctx):
                fault()
            return evald.passed("fine")

    return Written.definition()


def _awaitable(name: str, fault: Callable[[], object]) -> EvaluatorDefinition:
    """Return a plain function whose awaitable result raises."""

    class Later:
        def __init__(self, *, breaks: bool) -> None:
            self.breaks = breaks

        def __await__(self) -> Any:
            if self.breaks:
                fault()
            yield from asyncio.sleep(0).__await__()
            return evald.passed("fine")

    class Written(evald.Evaluator):
        type: ClassVar[str] = name
        kind = evald.ASSERTION

        def evaluate(self, ctx: evald.EvaluatorContext) -> Any:
            return Later(breaks=_breaks(ctx))

    return Written.definition()


def _unprepared(name: str, fault: Callable[[], object]) -> EvaluatorDefinition:
    """A class that raises while its config is prepared, if the config says so."""

    class Written(evald.Evaluator):
        type: ClassVar[str] = name
        kind = evald.ASSERTION

        breaks: bool = False

        def prepare(self) -> None:
            if self.breaks:
                fault()

        def evaluate(self, ctx: evald.EvaluatorContext) -> evald.Result:
            return evald.passed("fine")

    return Written.definition()


FORMS: dict[str, Callable[[str, Callable[[], object]], EvaluatorDefinition]] = {
    "thread": _thread,
    "inline": _inline,
    "async": _async,
    "class": _class,
    "async-class": _async_class,
    "awaitable": _awaitable,
}

UNPREPARED = {fault: _unprepared(f"acme.unprepared.{fault}", how) for fault, how in FAULTS.items()}


def broken_evaluators(prefix: str) -> list[EvaluatorDefinition]:
    """Return an evaluator for each form and fault, named "PREFIX.FORM.FAULT"."""
    return [
        make(f"{prefix}.{form}.{fault}", how) for form, make in FORMS.items() for fault, how in FAULTS.items()
    ]


@evald.assertion("acme.sibling")
async def sibling(ctx: evald.EvaluatorContext) -> bool:
    """Pass, in the event loop that all async plugins share."""
    await asyncio.sleep(0)
    return True
