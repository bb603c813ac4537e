"""Runs a plan on one turn.

Plain functions are called right here, in order, because a task for each check costs more than the checks.
Whatever waits (a thread, a remote, a judge) becomes a task with a deadline.
"""

import asyncio
import inspect
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from evald.context import EvaluatorContext, OutOfTime
from evald.contract import progress_said
from evald.result import Result, Verdict
from evald.scope import Scope
from evald.threads import Threads

from .aggregate import Aggregate, Policy, aggregate, is_lost
from .invoke import discard, invoke
from .plan import Plan, PlannedEvaluator
from .postprocess import FAIL_FAST, NOT_FINAL, adjust, checked, crashed, is_score

_SECOND_NANOS: Final = 1_000_000_000

_EXPIRED: Final = 1  # a time in the past, for `EvaluatorContext.stop_at`

SLICE_NANOS: Final = 10_000_000
"""How long one evaluation may hold the event loop: 400 times what a typical one takes, and short enough
that ten in a row are no delay that a person notices. What is left then runs in a thread."""

_clock = time.perf_counter_ns

# Module constants, because looking a member up on the enum class costs as much as a whole check.
_ALL_MUST_PASS, _PASSED = Policy.ALL_MUST_PASS, Verdict.PASSED


Outcome: TypeAlias = tuple[Result, int, int]
"""A result, how many nanoseconds it took, and the Unix time in nanoseconds at which a pending evaluator was
invoked, else 0. A plain tuple, because a class of its own would cost a tenth of an ordinary check."""


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """What an evaluator reported before its result. index: of the evaluator. fraction: part done, 0 to 1."""

    index: int
    message: str
    fraction: float | None


class PendingEvaluator(NamedTuple):
    """An evaluator without a result. awaitable: what its function returned, when it was called already."""

    evaluator: PlannedEvaluator
    awaitable: Awaitable[Result] | None


class EvaluationRun:
    """One plan on one turn.

    The constructor calls the plain evaluators. A run that is not `finished` then has `pending` evaluators:
    call `run_pending` once, or `abandon`.

    outcomes: by the evaluator's index; None while there is none. start_nanos: Unix time of the start.
    nanos, aggregate: duration and verdict of a finished run.
    """

    __slots__ = (
        "_began",
        "_lost",
        "_progress",
        "_stop",
        "_threads",
        "_wake",
        "aggregate",
        "ctx",
        "finished",
        "nanos",
        "outcomes",
        "pending",
        "plan",
        "start_nanos",
    )

    aggregate: Aggregate
    nanos: int

    def __init__(
        self, plan: Plan, ctx: EvaluatorContext, threads: Threads, slice_nanos: int = SLICE_NANOS
    ) -> None:
        """slice_nanos: how long the plain evaluators may take here."""
        self.plan = plan
        self.ctx = ctx
        self.outcomes: list[Outcome | None] = [None] * len(plan.evaluators)
        self.pending: list[PendingEvaluator] = []
        self.finished = False
        self._threads = threads
        self._lost = False  # fail_fast: the verdict is FAILED already
        self._progress: dict[int, ProgressReport] = {}  # the latest of each evaluator that was not taken yet
        self._wake: asyncio.Future[None] | None = None
        # Start times are wall times, durations are not: setting the clock must not make one negative.
        self.start_nanos = time.time_ns()
        self._began = _clock()
        self._stop = self._began + slice_nanos
        ctx.stop_at(self._stop)
        self._run_inline()
        if not self.pending:
            self._finish()

    def _run_inline(self) -> None:
        ctx, stop, fail_fast, outcomes = self.ctx, self._stop, self.plan.fail_fast, self.outcomes
        now = self._began
        outcome: Any
        for evaluator in self.plan.evaluators:
            if (evaluator.conditional or fail_fast or now > stop) and self._skip_or_defer(
                evaluator, used_up=now > stop
            ):
                continue
            began = _clock()
            try:
                outcome = evaluator.evaluate(ctx)
            except OutOfTime:
                now = _clock()
                self.pending.append(PendingEvaluator(evaluator, None))
                continue
            except Exception as problem:  # noqa: BLE001 - foreign code
                outcome = crashed(evaluator, problem)
            now = _clock()
            if (
                outcome.__class__ is Result
                and not evaluator.adjusted
                and not fail_fast
                and is_score(outcome.score)
            ):
                outcomes[evaluator.index] = (outcome, now - began, 0)
            elif inspect.isawaitable(outcome):
                self.pending.append(PendingEvaluator(evaluator, outcome))
            else:
                self._settle(evaluator, checked(evaluator, outcome), now - began)

    def _skip_or_defer(self, evaluator: PlannedEvaluator, *, used_up: bool) -> bool:
        """Skip an evaluator, or add it to `pending`. Returns False when it is to be called now.

        used_up: the time slice is.
        """
        if evaluator.final_only and not self.ctx.is_final:
            self._settle(evaluator, NOT_FINAL, 0)
        elif evaluator.inline and self._lost:
            self._settle(evaluator, FAIL_FAST, 0)
        elif used_up or not evaluator.inline:
            self.pending.append(PendingEvaluator(evaluator, None))
        else:
            return False
        return True

    async def run_pending(
        self,
        seconds: float | None,
        concurrency: int,
        scope: Scope = Scope(),  # noqa: B008 - immutable
    ) -> AsyncGenerator[list[int]]:
        """Run what is pending, within so many seconds. Yields the indexes of what has just finished; an empty
        list means that there is progress only.

        scope: of the call; the plan's options are added to it. Closing the iterator, or cancelling it,
        cancels what still runs.
        """
        try:
            if self._lost:
                self._skip(self.pending)
                self._finish()
                yield [pending.evaluator.index for pending in self.pending]
                return
            self.ctx.stop_at(0 if seconds is None else _clock() + int(seconds * _SECOND_NANOS))
            if self.plan.skip_cache:
                scope = scope._replace(skip_cache=True)
            if len(self.pending) == 1 and not self.plan.include_progress:
                # In the caller's task: one more task, and waiting for it, cost a third of what a call to
                # another process adds.
                await self._invoke(self.pending[0], seconds, scope)
                self._finish()
                yield [self.pending[0].evaluator.index]
                return
            tasks = self._run_tasks(seconds, self.plan.max_concurrency or concurrency, scope)
            async with aclosing(tasks):
                async for finished in tasks:
                    yield finished
        finally:
            self.abandon()

    async def _run_tasks(
        self, seconds: float | None, concurrency: int, scope: Scope
    ) -> AsyncGenerator[list[int]]:
        deadline = None if seconds is None else time.monotonic() + seconds
        limit = asyncio.Semaphore(concurrency)
        tasks = {
            asyncio.create_task(self._run_one(pending, deadline, limit, scope)): pending
            for pending in self.pending
        }
        try:
            running = set(tasks)
            while running:
                done, running = await self._next(running)
                finished = []
                for task in done:
                    task.result()
                    finished.append(tasks[task].evaluator.index)
                if self._lost and running:
                    for task in running:
                        task.cancel()
                    await asyncio.wait(running)
                    left = [tasks[task] for task in running]
                    self._skip([one for one in left if self.outcomes[one.evaluator.index] is None])
                    finished += [one.evaluator.index for one in left]
                    running = set()
                if not running:
                    self._finish()
                yield sorted(finished)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def results(self) -> list[Result]:
        """The results in the plan's order, of those that are there."""
        return [outcome[0] for outcome in self.outcomes if outcome is not None]

    def ready(self) -> list[int]:
        """The indexes of the results that are there."""
        return [index for index, outcome in enumerate(self.outcomes) if outcome is not None]

    def take_progress(self) -> list[ProgressReport]:
        """Return and clear what pending evaluators have reported; only where the plan asks for it.

        Of each evaluator only the latest report: what a caller is slow to take must not pile up.
        """
        reports, self._progress = self._progress, {}
        return list(reports.values())

    def conclude(self, indexes: Sequence[int] = (), final: "EvaluationRun | None" = None) -> None:
        """Make the turn of a finished run the last one, after all: no failure of it is pending any more.

        final: a finished run whose results take the place of those at these indexes.
        """
        self.ctx.is_final = True
        for index, outcome in zip(indexes, final.outcomes if final else (), strict=True):
            self.outcomes[index] = outcome
        self._finish()

    def abandon(self) -> None:
        """Close coroutines that were never begun, and have evaluators that still run in a thread stop."""
        self.ctx.stop_at(_EXPIRED)
        for pending in self.pending:
            discard(pending.awaitable)

    async def _next(
        self, running: set[asyncio.Task[None]]
    ) -> tuple[set[asyncio.Task[None]], set[asyncio.Task[None]]]:
        """Wait for a task, or for progress. Returns the tasks that are done and those that run."""
        if not self.plan.include_progress:
            return await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        if self._wake is None or self._wake.done():
            self._wake = asyncio.get_running_loop().create_future()
            if self._progress:
                self._wake.set_result(None)
        both: set[asyncio.Future[None]] = {*running, self._wake}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        done = {task for task in running if task.done()}
        return done, running - done

    def _reporter(self, index: int) -> Callable[[str, float | None], None]:
        """A function with which an evaluator reports progress, from whatever thread it runs in."""
        loop = asyncio.get_running_loop()

        def report(message: str, fraction: float | None = None) -> None:
            said = ProgressReport(index, *progress_said(message, fraction))
            with suppress(RuntimeError):  # the loop is closed: nobody listens any more
                loop.call_soon_threadsafe(self._add_progress, said)

        return report

    def _add_progress(self, report: ProgressReport) -> None:
        self._progress[report.index] = report
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def _run_one(
        self, pending: PendingEvaluator, deadline: float | None, limit: asyncio.Semaphore, scope: Scope
    ) -> None:
        async with limit:
            if self.plan.include_progress:
                scope = scope._replace(progress=self._reporter(pending.evaluator.index))
            left = None if deadline is None else deadline - time.monotonic()
            await self._invoke(pending, left, scope)

    async def _invoke(self, pending: PendingEvaluator, seconds: float | None, scope: Scope) -> None:
        began = _clock()
        result = await invoke(pending.evaluator, self.ctx, self._threads, seconds, scope, pending.awaitable)
        nanos = _clock() - began
        self._settle(pending.evaluator, result, nanos, self.start_nanos + began - self._began)

    def _settle(self, evaluator: PlannedEvaluator, result: Result, nanos: int, start_nanos: int = 0) -> None:
        """Record a result."""
        if evaluator.adjusted:
            result = adjust(evaluator, result)
        self.outcomes[evaluator.index] = (result, nanos, start_nanos)
        if self.plan.fail_fast and evaluator.counts and not self._lost:
            self._lost = self._cannot_pass()

    def _cannot_pass(self) -> bool:
        plan = self.plan
        settled = [
            None if outcome is None else (outcome[0].verdict, outcome[0].score) for outcome in self.outcomes
        ]
        return is_lost(plan.evaluators, settled, plan.policy, plan.threshold)

    def _skip(self, pending: Sequence[PendingEvaluator]) -> None:
        for one in pending:
            self._settle(one.evaluator, FAIL_FAST, 0)

    def _finish(self) -> None:
        """Sum up. Every result is there."""
        plan, results = self.plan, self.results
        if plan.policy is _ALL_MUST_PASS and _all_passed(plan.evaluators, results):
            self.aggregate = plan.template.passed
        else:
            settled = [(result.verdict, result.score) for result in results]
            not_run = [index for index, result in enumerate(results) if result is FAIL_FAST]
            self.aggregate = aggregate(plan.evaluators, settled, plan.policy, plan.threshold, not_run)
        self.nanos = _clock() - self._began
        self.finished = True


def _all_passed(evaluators: Sequence[PlannedEvaluator], results: Sequence[Result]) -> bool:
    """Return whether all passed, the enforced assertions with score 1, so that there is nothing to sum up."""
    for evaluator, result in zip(evaluators, results, strict=True):
        if result.verdict is not _PASSED or (result.score != 1.0 and evaluator.counts):
            return False
    return True
