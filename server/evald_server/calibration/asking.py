"""Puts the questions to the judge: several at a time, within a ceiling of cost."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from .asks import Ask, Asked, Judge

# An answer may need no model, an empty one for example. So many in a row mean that no cost is ever reported:
# more than the suite has master keys, about which no judge with a guard has to ask.
_PATIENCE: Final = 20

# Floats add up to a hair more than the ceiling that they exactly reach.
_HAIR: Final = 1e-12


class CostUnknown(ValueError):
    """There is a ceiling, and the judge does not say what it costs."""


class Outcome(NamedTuple):
    """asked: in the order of completion. left_out: questions that the ceiling allowed no more."""

    asked: list[Asked]
    left_out: int


class _Purse:
    """What may still be spent. Every question under way counts as much as the dearest so far."""

    def __init__(self, ceiling_usd: float | None) -> None:
        self._ceiling = ceiling_usd
        self._spent = 0.0
        self._dearest = 0.0
        self._open = 0
        self._unpriced = 0
        self._changed = asyncio.Condition()

    async def take(self) -> bool:
        """Wait for room for one more question; False when there will be none."""
        if self._ceiling is None:
            return True
        async with self._changed:
            while self._spent + (self._open + 1) * self._dearest > self._ceiling + _HAIR:
                if not self._open:
                    return False
                await self._changed.wait()
            self._open += 1
        return True

    async def pay(self, asked: Asked) -> None:
        """Count what a question cost. Raises CostUnknown."""
        if self._ceiling is None:
            return
        cost = asked.answer.cost_usd
        async with self._changed:
            self._open -= 1
            self._changed.notify_all()
            if cost is None:
                self._unpriced += asked.answer.passed is not None
                if asked.answer.took_model or (not self._spent and self._unpriced >= _PATIENCE):
                    raise CostUnknown("the judge does not report what it costs")
                return
            self._spent += cost
            self._dearest = max(self._dearest, cost)


async def ask_all(
    asks: Sequence[Ask],
    judge: Judge,
    *,
    concurrency: int = 8,
    ceiling_usd: float | None = None,
    on_answer: Callable[[Asked], None] = lambda _: None,
) -> Outcome:
    """Ask until all is answered or the ceiling is reached.

    concurrency: most questions at a time, 1 or more.
    ceiling_usd: checked before each question. The first one is asked alone, to learn what one costs.
    on_answer: called with every answer as it comes.
    Raises CostUnknown, and whatever the judge raises; no question is then left running.
    """
    purse = _Purse(ceiling_usd)
    asked: list[Asked] = []
    waiting = iter(asks)

    async def work(some: Iterator[Ask]) -> None:
        for ask in some:
            if not await purse.take():
                return
            found = Asked(ask, await judge(ask))
            asked.append(found)
            on_answer(found)
            await purse.pay(found)

    if ceiling_usd is not None and asks:
        await work(iter((next(waiting),)))
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(concurrency, len(asks))):
                group.create_task(work(waiting))
    except* Exception as problems:  # noqa: BLE001 - one of them is raised again, as itself
        raise _first(problems) from None
    return Outcome(asked, len(asks) - len(asked))


def _first(problem: BaseException) -> BaseException:
    while isinstance(problem, BaseExceptionGroup):
        problem = problem.exceptions[0]
    return problem
