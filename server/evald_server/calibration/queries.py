"""Queries to the judge under calibration: planned in advance, run concurrently, within a cost ceiling."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from .cases import Case

# Some queries need no model, for example for an empty answer. After this number of verdicts without any cost, the judge
# is assumed to report none. It exceeds the number of master keys in the attack suite, which a guarded judge fails
# without a model.
_UNPRICED_VERDICTS: Final = 20

# A sum of floats that exactly reaches a ceiling may exceed it by less than this because of rounding.
_ROUNDING: Final = 1e-12


class Query(NamedTuple):
    """One evaluation of one case. repeat: from 0. swapped: answer b of a pair is shown first."""

    case: Case
    repeat: int = 0
    swapped: bool = False

    @property
    def expected_verdict(self) -> bool:
        """The verdict that agrees with the label; True is PASSED."""
        return self.case.expected_verdict(swapped=self.swapped)


class QueryAnswer(NamedTuple):
    """The judge's answer to one query.

    passed: the verdict, or None. code: why there is no verdict: one of evald.errorcodes.CODES,
        "SKIPPED", or the error code of the failed call.
    score: 0 to 1, the judge's confidence that the criteria are met; None when not reported.
    cost_usd, input_tokens, output_tokens: usage; None when not reported.
    latency_ms: duration of the evaluator, without the network. models: the models that were used.
    """

    passed: bool | None
    code: str = ""
    score: float | None = None
    cost_usd: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    latency_ms: float | None = None
    models: tuple[str, ...] = ()

    @property
    def used_model(self) -> bool:
        """Whether there is a verdict and a model is known to have given it."""
        return self.passed is not None and bool(self.models or self.input_tokens or self.output_tokens)


QueryFunction: TypeAlias = Callable[[Query], Awaitable[QueryAnswer]]
"""Queries the judge. A judge's error is returned as a QueryAnswer; an exception ends the calibration."""


class AnsweredQuery(NamedTuple):
    """A query with its answer."""

    query: Query
    answer: QueryAnswer


class QueryResults(NamedTuple):
    """The results of all queries. answered: in order of completion. left_out: number of queries beyond the ceiling."""

    answered: list[AnsweredQuery]
    left_out: int


class CostUnknown(ValueError):
    """A cost ceiling is set, but the judge does not report its cost."""


def plan_queries(cases: Iterable[Case], repeats: int = 1) -> list[Query]:
    """Return all queries: pairs in both orders, labelled cases `repeats` times, attacks and controls once.

    They are shuffled deterministically, so that a calibration that ends early has a fair sample.
    """
    queries = [
        Query(case, repeat, swapped)
        for case in cases
        for repeat in range(1 if case.family else repeats)
        for swapped in ((False, True) if case.pair else (False,))
    ]
    return sorted(
        queries, key=lambda one: hashlib.sha256(f"{one.repeat}/{one.swapped}/{one.case.id}".encode()).digest()
    )


async def run_queries(
    queries: Sequence[Query],
    judge: QueryFunction,
    *,
    concurrency: int = 8,
    ceiling_usd: float | None = None,
    on_answer: Callable[[AnsweredQuery], None] = lambda _: None,
) -> QueryResults:
    """Run the queries until all are answered or the cost ceiling is reached.

    concurrency: maximum number of concurrent queries, at least 1.
    ceiling_usd: checked before each query. The first query runs alone, to learn the cost of a query.
    on_answer: called with each answer as it arrives.
    Raises CostUnknown, and the exceptions of `judge`; the other queries are then cancelled.
    """
    budget = _CostBudget(ceiling_usd)
    answered: list[AnsweredQuery] = []
    waiting = iter(queries)

    async def work(some: Iterator[Query]) -> None:
        for query in some:
            if not await budget.reserve():
                return
            found = AnsweredQuery(query, await judge(query))
            answered.append(found)
            on_answer(found)
            await budget.spend(found.answer)

    if ceiling_usd is not None and queries:
        await work(iter((next(waiting),)))
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(concurrency, len(queries))):
                group.create_task(work(waiting))
    except* Exception as problems:  # noqa: BLE001 - the first one is raised again, as itself
        raise _first(problems) from None
    return QueryResults(answered, len(queries) - len(answered))


class _CostBudget:
    """The cost ceiling. Each query in flight reserves the cost of the most expensive query so far."""

    def __init__(self, ceiling_usd: float | None) -> None:
        self._ceiling = ceiling_usd
        self._spent = 0.0
        self._highest = 0.0
        self._in_flight = 0
        self._unpriced_verdicts = 0
        self._changed = asyncio.Condition()

    async def reserve(self) -> bool:
        """Wait until the ceiling allows one more query. Returns False if it never will."""
        if self._ceiling is None:
            return True
        async with self._changed:
            while self._spent + (self._in_flight + 1) * self._highest > self._ceiling + _ROUNDING:
                if not self._in_flight:
                    return False
                await self._changed.wait()
            self._in_flight += 1
        return True

    async def spend(self, answer: QueryAnswer) -> None:
        """Replace a reservation with the actual cost. Raises CostUnknown."""
        if self._ceiling is None:
            return
        async with self._changed:
            self._in_flight -= 1
            self._changed.notify_all()
            if answer.cost_usd is None:
                self._unpriced_verdicts += answer.passed is not None
                never_priced = not self._spent and self._unpriced_verdicts >= _UNPRICED_VERDICTS
                if answer.used_model or never_priced:
                    raise CostUnknown(
                        "the judge does not report its cost, so the cost limit cannot be enforced"
                    )
                return
            self._spent += answer.cost_usd
            self._highest = max(self._highest, answer.cost_usd)


def _first(problem: BaseException) -> BaseException:
    while isinstance(problem, BaseExceptionGroup):
        problem = problem.exceptions[0]
    return problem
