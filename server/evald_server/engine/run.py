"""Runs a plan on one turn.

Plain functions are called inline, in order, because a task for each check costs more than the check.
Evaluators that wait (for a thread, a remote or a judge) run in tasks with a deadline.
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
from .invoke import FAIL_FAST, NOT_FINAL, adjust, checked, crashed, discard, invoke
from .plan import Plan
from .planned_evaluator import PlannedEvaluator

_EXPIRED: Final = 1  # a time in the past, for `EvaluatorContext.stop_at`

SLICE_NANOS: Final = 10_000_000
"""Maximum time of one evaluation on the event loop: 400 times the typical duration, and short enough that ten in a
row cause no noticeable delay. The rest then runs in a thread."""

_clock = time.perf_counter_ns

# Module constants, because an enum member lookup costs as much as a whole check.
_ALL_MUST_PASS, _PASSED = Policy.ALL_MUST_PASS, Verdict.PASSED

Outcome: TypeAlias = tuple[Result, int, int]
"""A result, its duration in nanoseconds, and the Unix time in nanoseconds when a pending evaluator was invoked, else
0. A plain tuple, because a class would cost a tenth of an ordinary check."""


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """A progress report of an evaluator. index: of the evaluator. fraction: completed part, 0 to 1."""

    index: int
    message: str
    fraction: float | None


class PendingEvaluator(NamedTuple):
    """An evaluator without a result. awaitable: the return value of its function, if it was already called."""

    evaluator: PlannedEvaluator
    awaitable: Awaitable[Result] | None


class EvaluationRun:
    """The evaluation of one turn with one plan.

    The constructor calls the plain evaluators. If the run is then not `finished`, it has `pending` evaluators: call
    `run_pending` once, or `abandon`.

    outcomes: by the evaluator's index; None until available. start_nanos: Unix time of the start.
    nanos, aggregate: duration and verdict of a finished run.
    """

    aggregate: Aggregate
    nanos: int
    _news: asyncio.Event  # a pending evaluator has ended or reports progress

    def __init__(
        self, plan: Plan, ctx: EvaluatorContext, threads: Threads, slice_nanos: int = SLICE_NANOS
    ) -> None:
        """slice_nanos: maximum time of the plain evaluators in the constructor."""
        self.plan = plan
        self.ctx = ctx
        self.outcomes: list[Outcome | None] = [None] * len(plan.evaluators)
        self.pending: list[PendingEvaluator] = []
        self.finished = False
        self._threads = threads
        self._lost = False  # fail_fast: the verdict is already FAILED
        self._progress: dict[int, ProgressReport] = {}  # by evaluator: its latest report, until taken
        # Start times use the wall clock. Durations do not, because a clock change could make them negative.
        self.start_nanos = time.time_ns()
        self._began = _clock()
        self._stop = self._began + slice_nanos
        ctx.stop_at(self._stop)
        if self._run_inline() and plan.policy is _ALL_MUST_PASS:
            self.aggregate = plan.template.passed
            self.nanos = _clock() - self._began
            self.finished = True
        elif not self.pending:
            self._finish()

    def _run_inline(self) -> bool:
        """Call the plain evaluators. Returns whether all passed, enforced assertions with score 1.

        The time between two evaluators counts for the second one, which saves a look at the clock.
        """
        ctx, stop, fail_fast, outcomes = self.ctx, self._stop, self.plan.fail_fast, self.outcomes
        now, usual = self._began, True
        outcome: Any
        for evaluator in self.plan.evaluators:
            if (evaluator.conditional or fail_fast or now > stop) and self._skip_or_defer(
                evaluator, used_up=now > stop
            ):
                usual = False
                continue
            began = now
            try:
                outcome = evaluator.evaluate(ctx)
            except OutOfTime:
                now = _clock()
                self.pending.append(PendingEvaluator(evaluator, None))
                usual = False
                continue
            except Exception as problem:  # noqa: BLE001 - foreign code
                outcome = crashed(evaluator, problem)
            now = _clock()
            if outcome.__class__ is Result and not evaluator.adjusted and not fail_fast:
                score = outcome.score
                if score is None or 0 <= score <= 1:  # as in `checked`
                    outcomes[evaluator.index] = (outcome, now - began, 0)
                    if outcome.verdict is not _PASSED or (score != 1.0 and evaluator.counts):
                        usual = False
                    continue
            usual = False
            if inspect.isawaitable(outcome):
                self.pending.append(PendingEvaluator(evaluator, outcome))
            else:
                self._settle(evaluator, checked(evaluator, outcome), now - began)
        return usual

    def _skip_or_defer(self, evaluator: PlannedEvaluator, *, used_up: bool) -> bool:
        """Skip an evaluator or add it to `pending`. Returns False if it must be called now.

        used_up: whether the time slice is used up.
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
        """Run the pending evaluators, for at most `seconds`. Yields the indexes of newly finished evaluators; an
        empty list means new progress only.

        scope: of the call; the plan's options are added to it. Closing or cancelling the iterator cancels the
        evaluators that still run.
        """
        try:
            self.ctx.stop_at(0 if seconds is None else _clock() + int(seconds * 1e9))
            if self.plan.skip_cache:
                scope = scope._replace(skip_cache=True)
            if self._lost:
                self._skip(self.pending)
            elif len(self.pending) == 1 and not self.plan.include_progress:
                # In the caller's task: creating and awaiting another task costs a third of the overhead of a call to
                # another process.
                await self._invoke(self.pending[0], seconds, scope)
            else:
                tasks = self._run_tasks(seconds, self.plan.max_concurrency or concurrency, scope)
                async with aclosing(tasks):
                    async for finished in tasks:
                        yield finished
                return
            self._finish()
            yield [pending.evaluator.index for pending in self.pending]
        finally:
            self.abandon()

    async def _run_tasks(
        self, seconds: float | None, concurrency: int, scope: Scope
    ) -> AsyncGenerator[list[int]]:
        deadline = None if seconds is None else time.monotonic() + seconds
        limit = asyncio.Semaphore(concurrency)

        async def run(pending: PendingEvaluator) -> None:
            async with limit:
                left = None if deadline is None else deadline - time.monotonic()
                own = scope
                if self.plan.include_progress:
                    own = scope._replace(progress=self._reporter(pending.evaluator.index))
                await self._invoke(pending, left, own)

        news = self._news = asyncio.Event()
        tasks = {asyncio.create_task(run(pending)): pending for pending in self.pending}
        for task in tasks:
            task.add_done_callback(lambda _task: news.set())
        running = set(tasks)
        try:
            while running:
                await news.wait()
                news.clear()
                done = {task for task in running if task.done()}
                running -= done
                for task in done:
                    task.result()
                if self._lost and running:
                    for task in running:
                        task.cancel()
                    await asyncio.wait(running)
                    self._skip([tasks[task] for task in running])
                    done, running = done | running, set()
                if not running:
                    self._finish()
                if done or self._progress:
                    yield sorted(tasks[task].evaluator.index for task in done)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _reporter(self, index: int) -> Callable[[str, float | None], None]:
        """Return the function with which an evaluator reports progress, from any thread."""
        loop = asyncio.get_running_loop()

        def add(report: ProgressReport) -> None:
            self._progress[index] = report
            self._news.set()

        def report(message: str, fraction: float | None = None) -> None:
            progress = ProgressReport(index, *progress_said(message, fraction))
            with suppress(RuntimeError):  # the event loop is closed
                loop.call_soon_threadsafe(add, progress)

        return report

    def take_progress(self) -> list[ProgressReport]:
        """Return and clear the progress reports. Empty unless the plan has include_progress.

        Only the latest report of each evaluator is kept, so that reports do not pile up for a slow caller.
        """
        reports, self._progress = self._progress, {}
        return list(reports.values())

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
        plan = self.plan
        if plan.fail_fast and evaluator.counts and not self._lost:
            settled = [outcome and (outcome[0].verdict, outcome[0].score) for outcome in self.outcomes]
            self._lost = is_lost(plan.evaluators, settled, plan.policy, plan.threshold)

    def _skip(self, evaluators: Sequence[PendingEvaluator]) -> None:
        """Skip those that have no result."""
        for evaluator, _ in evaluators:
            if self.outcomes[evaluator.index] is None:
                self._settle(evaluator, FAIL_FAST, 0)

    def _finish(self) -> None:
        """Aggregate the results, all of which must be available."""
        plan, results = self.plan, self.results
        settled = [(result.verdict, result.score) for result in results]
        not_run = [index for index, result in enumerate(results) if result is FAIL_FAST]
        self.aggregate = aggregate(plan.evaluators, settled, plan.policy, plan.threshold, not_run)
        self.nanos = _clock() - self._began
        self.finished = True

    def abandon(self) -> None:
        """Close coroutines that never started, and stop evaluators that still run in a thread."""
        self.ctx.stop_at(_EXPIRED)
        for pending in self.pending:
            discard(pending.awaitable)

    @property
    def results(self) -> list[Result]:
        """The available results, in the plan's order."""
        return [outcome[0] for outcome in self.outcomes if outcome is not None]

    def conclude(self, indexes: Sequence[int] = (), final: "EvaluationRun | None" = None) -> None:
        """Mark the turn of a finished run as the final one, and aggregate the results again.

        No failure of a final turn is pending. final: a finished run whose results replace those at `indexes`.
        """
        self.ctx.is_final = True
        for index, outcome in zip(indexes, final.outcomes if final else (), strict=True):
            self.outcomes[index] = outcome
        self._finish()

    def awaiting_final(self) -> tuple[str, ...]:
        """Return the names of the enforced assertions that wait for the final turn; none if this turn is final.

        A judge that passed the turn although a failure criterion is met waits too: the criterion counts on the final
        turn only.
        """
        if self.ctx.is_final:
            return ()
        if not self.plan.waits:
            return self.plan.final_only
        met = (
            evaluator.name
            for evaluator, result in zip(self.plan.evaluators, self.results, strict=True)
            if evaluator.counts and result.verdict is _PASSED and (result.metadata or {}).get("failureMet")
        )
        return (*self.plan.final_only, *met)
