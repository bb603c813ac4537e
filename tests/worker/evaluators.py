"""Evaluators for tests of workers."""

import asyncio
import threading
from typing import Any, ClassVar

import evald
from evald.scope import Scope, current_scope


@evald.assertion("acme.polite", description="Says please.")
def polite(ctx: evald.EvaluatorContext) -> bool:
    return "please" in (ctx.answer or "")


@evald.metric("acme.length", metric=evald.Metric("characters"), inline=True)
def length(ctx: evald.EvaluatorContext) -> float:
    return len(ctx.answer or "")


class Sleepy(evald.Evaluator, type="acme.sleepy", kind=evald.ASSERTION):
    """An evaluator that sleeps."""

    seconds: float = 0.0

    async def evaluate(self, ctx: evald.EvaluatorContext) -> evald.Result:
        await asyncio.sleep(self.seconds)
        return evald.passed("slept")


class Blocking(evald.Evaluator, type="acme.blocking", kind=evald.ASSERTION):
    """An evaluator that blocks its thread, or as `acme.rude` the event loop, for a time or until released."""

    seconds: float = 0.0

    begun: ClassVar[threading.Event] = threading.Event()
    let_go: ClassVar[threading.Event] = threading.Event()

    def evaluate(self, ctx: evald.EvaluatorContext) -> evald.Result:
        self.begun.set()
        self.let_go.wait(self.seconds)
        return evald.passed("blocked")


class Rude(Blocking):
    """An evaluator that blocks its event loop."""

    type = "acme.rude"

    async def evaluate(self, ctx: evald.EvaluatorContext) -> evald.Result:  # type: ignore[override]
        return super().evaluate(ctx)  # the mistake under test


class Counting(evald.Evaluator, type="acme.counting", kind=evald.ASSERTION):
    """An evaluator that counts its uses in the class."""

    tag: str = ""
    seconds: float = 0.0
    held: bool = False

    let_go: ClassVar[asyncio.Event] = asyncio.Event()
    prepared: ClassVar[int] = 0
    evaluated: ClassVar[int] = 0
    ended: ClassVar[int] = 0

    def prepare(self) -> None:
        type(self).prepared += 1
        if self.tag == "wrong":
            raise ValueError("no such tag")

    async def evaluate(self, ctx: evald.EvaluatorContext) -> evald.Result:
        type(self).evaluated += 1
        try:
            await asyncio.sleep(self.seconds)
            if self.held:
                await self.let_go.wait()
        finally:
            type(self).ended += 1
        return evald.passed(f"number {type(self).evaluated}")

    @classmethod
    def reset(cls) -> None:
        cls.prepared = cls.evaluated = cls.ended = 0
        cls.let_go = asyncio.Event()


scopes: list[Scope] = []


@evald.assertion("acme.scoped")
def scoped(ctx: evald.EvaluatorContext) -> bool:
    scope = current_scope()
    scopes.append(scope)
    scope.progress("half way", 0.5)
    return True


@evald.assertion("acme.scoped-async")
async def scoped_async(ctx: evald.EvaluatorContext) -> bool:
    scope = current_scope()
    scopes.append(scope)
    scope.progress("half way", 0.5)
    await asyncio.sleep(0)
    return True


def _raise(ctx: evald.EvaluatorContext) -> Any:
    raise RuntimeError("secret-7f3a")


async def _raise_later(ctx: evald.EvaluatorContext) -> Any:
    raise RuntimeError("secret-7f3a")


async def _cancel_itself(ctx: evald.EvaluatorContext) -> Any:
    raise asyncio.CancelledError


def _assertion(name: str, evaluate: Any) -> evald.EvaluatorDefinition:
    return evald.define_evaluator(type=f"acme.{name}", kind=evald.ASSERTION, evaluate=evaluate)


def _metric(name: str, evaluate: Any) -> evald.EvaluatorDefinition:
    return evald.define_evaluator(type=f"acme.{name}", kind=evald.METRIC, evaluate=evaluate)


BROKEN = {
    "EVALUATOR_EXCEPTION": [
        _assertion("raising", _raise),
        _assertion("raising-later", _raise_later),
        _assertion("cancelling", _cancel_itself),
    ],
    "CONTRACT_VIOLATION": [
        _assertion("none", lambda _: None),
        _assertion("too-good", lambda _: evald.passed("", score=2)),
        _assertion("surrogate", lambda _: evald.passed("", metadata={"a": "\ud800"})),
        _metric("nan", lambda _: evald.measured(float("nan"), "")),
        _metric("failing", lambda _: evald.failed("")),
        _metric("scored", lambda _: evald.passed("", score=1)),
    ],
}
