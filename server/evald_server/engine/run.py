"""Runs a plan on one turn.

What is plain is called right here, in order, because a task for each check
costs more than the checks. What really waits (a thread, a remote, a judge)
becomes a task with a deadline. Results are serialised as they come.
"""

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from evald.context import EvaluatorContext, OutOfTime
from evald.contract import progress_said
from evald.result import Result, Verdict, measurement
from evald.scope import Scope
from evald.threads import Threads
from evald_server.encoding import DURATIONS, SHORT_NANOS, THREE_BYTES, duration, size, sized, timestamp

from .aggregate import is_lost
from .outcome import FAIL_FAST, NOT_FINAL, adjust, checked, crashed
from .plan import Plan, Use
from .report import result_bytes, summary_bytes
from .wait import call, discard

_PASSED: Final = Verdict.PASSED

_SECOND: Final = 1_000_000_000  # in nanoseconds

_AT_ONCE: Final = 1  # a time that is over, for `EvaluatorContext.stop_at`

SLICE_NANOS: Final = 10_000_000
"""How long one evaluation may hold the event loop: 400 times what a usual one takes, and short enough that
ten in a row are no delay that a person feels. What is left then goes on in a thread."""

# Fields on the wire: results of evald.v1.AggregatedEvaluation, results and summary of evald.v1.EvaluateResponse,
# the summary's duration and start_time, a result's start_time.
_RESULTS, _EVENT_RESULTS, _EVENT_SUMMARY = b"\x2a", b"\x12", b"\x22"
_DURATION, _SUMMARY_START, _RESULT_START = b"\x5a", b"\x8a\x01", b"\x62"

_clock = time.perf_counter_ns


@dataclass(frozen=True, slots=True)
class Progress:
    """What a use has to say before its result is there. fraction: part done, 0 to 1."""

    index: int
    message: str
    fraction: float | None


class Waiting(NamedTuple):
    """A use that has not answered yet; `pending` is set when its function has been called."""

    use: Use
    pending: Awaitable[Result] | None


class Evaluation:
    """One plan on one turn.

    outcomes: results by index as they count, None while a use has not answered.
    lost: the verdict is FAILED already; looked for only where the plan fails fast.
    perfect: every assertion that counts has passed with score 1, and nothing else broke or was
    skipped, so that the plan's summary is the right one. spent: some use spent tokens or money.
    progress: what uses have said since somebody last took it away; only where the plan asks for it.
    nanos: how long the evaluation took, once it is finished.
    """

    __slots__ = (
        "_began",
        "_parts",
        "_stop",
        "_summary",
        "_wake",
        "_wall",
        "ctx",
        "lost",
        "nanos",
        "outcomes",
        "perfect",
        "plan",
        "progress",
        "spent",
        "threads",
        "waiting",
    )

    def __init__(
        self, plan: Plan, ctx: EvaluatorContext, threads: Threads, slice_nanos: int = SLICE_NANOS
    ) -> None:
        """slice_nanos: how long `run_inline` may take."""
        self.plan = plan
        self.ctx = ctx
        self.threads = threads
        self.lost = False
        self.perfect = True
        self.spent = False
        self.outcomes: list[Result | None] = []
        self._parts: list[bytes] = []  # each an EvaluationResult behind its length
        # Start times are wall times, durations are not: a clock that is set must not make one negative.
        self._wall = time.time_ns()
        self._began = _clock()
        self._stop = self._began + slice_nanos
        ctx.stop_at(self._stop)

    def run_inline(self) -> bool:
        """Call what is plain, for as long as the slice lasts. True when nothing is left to wait for."""
        plan, ctx, stop, outcomes, parts = self.plan, self.ctx, self._stop, self.outcomes, self._parts
        self.waiting: list[Waiting] = []
        began = self._began
        outcome: Any
        for may_hold, evaluate, usual, short, long, cells, plain, use in plan.steps:
            if (may_hold or began > stop) and self._held_back(use, used_up=began > stop):
                began = _clock()
                continue
            try:
                outcome = evaluate(ctx)
            except OutOfTime:
                self._keep_place()
                self.waiting.append(Waiting(use, None))
                began = _clock()
                continue
            except Exception as problem:  # noqa: BLE001 - foreign code, which is guarded
                outcome = crashed(use, problem)
            # Where one ends the next begins: a second look at the clock would cost more than a check.
            ended = _clock()
            nanos = ended - began
            began = ended
            part = None
            if nanos < SHORT_NANOS:
                if outcome is usual:
                    micros = (nanos + 999) // 1000 or 1  # a coarse clock may see no time pass
                    part = (short if micros < THREE_BYTES else long) + DURATIONS[micros]
                elif plain and outcome.__class__ is Result:
                    part = use.passed(outcome, nanos)
            if part is not None:
                # Four fifths of all results end here.
                parts.append(part)
                outcomes.append(outcome)
                cells[0] += 1
                cells[1] += nanos
                continue
            self._keep_place()
            if inspect.isawaitable(outcome):
                self.waiting.append(Waiting(use, outcome))
            else:
                self._settle(use, checked(use, outcome), nanos)
        return not self.waiting

    def _held_back(self, use: Use, *, used_up: bool) -> bool:
        """Whether a use is not to be called now: it is skipped, or has to wait. used_up: the slice is."""
        if use.final_only and not self.ctx.is_final:
            skip = NOT_FINAL
        elif not use.inline:
            skip = None
        elif self._is_over():
            skip = FAIL_FAST
        elif used_up:
            skip = None
        else:
            return False
        self._keep_place()
        if skip is None:
            self.waiting.append(Waiting(use, None))
        else:
            self._settle(use, skip, 0)
        return True

    def _keep_place(self) -> None:
        """For a result that comes later, or is written another way."""
        self.outcomes.append(None)
        self._parts.append(b"")

    @property
    def alone(self) -> bool:
        """Whether `run_alone` will do: one use waits, and nobody wants to hear of its progress."""
        return len(self.waiting) == 1 and not self.plan.include_progress and not self._is_over()

    async def run_alone(self, seconds: float | None, scope: Scope) -> int:
        """`run_waiting` for the one use that waits, in the caller's own task: another task, and waiting for
        it, cost a third of what a call to another process adds. Gives the use's index."""
        self.progress: list[Progress] = []
        self._stop_after(seconds)
        (waiting,) = self.waiting
        try:
            return await self._settle_one(waiting, seconds, self._scope(scope))
        finally:
            self.ctx.stop_at(_AT_ONCE)

    async def run_waiting(
        self,
        seconds: float | None,
        concurrency: int,
        scope: Scope = Scope(),  # noqa: B008 - immutable
    ) -> AsyncIterator[list[int]]:
        """Run what waits, within so many seconds; give the indexes of what has just finished, none
        when there is only progress. scope: of the call; the engine adds what it knows itself.

        Closing the iterator, or cancelling it, cancels what still runs.
        """
        self.progress = []
        self._wake: asyncio.Future[None] | None = None
        if self._is_over():
            self._skip(self.waiting)
            self.abandon()
            yield [waiting.use.index for waiting in self.waiting]
            return
        deadline = None if seconds is None else time.monotonic() + seconds
        self._stop_after(seconds)
        limit = asyncio.Semaphore(self.plan.max_concurrency or concurrency)
        scope = self._scope(scope)
        tasks = {
            asyncio.create_task(self._run_one(waiting, deadline, limit, scope)): waiting
            for waiting in self.waiting
        }
        try:
            running = set(tasks)
            while running:
                done, running = await self._next(running)
                if not done:
                    yield []
                    continue
                finished = []
                for task in done:
                    task.result()
                    finished.append(tasks[task].use.index)
                if self._is_over() and running:
                    for task in running:
                        task.cancel()
                    await asyncio.wait(running)
                    left = [tasks[task] for task in running if self.outcomes[tasks[task].use.index] is None]
                    self._skip(left)
                    finished += [tasks[task].use.index for task in running]
                    running = set()
                yield sorted(finished)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.abandon()

    def finish(self) -> Verdict:
        """Sum up, and give the verdict. Everything must have been settled."""
        plan = self.plan
        outcomes: Sequence[Result] = self.outcomes  # type: ignore[assignment]
        if self.perfect and not plan.measures and not self.spent:
            verdict, summary = _PASSED, plan.perfect
        else:
            verdict, summary = summary_bytes(plan, outcomes, perfect=self.perfect)
        self.nanos = _clock() - self._began
        self._summary = b"".join(
            (summary, _DURATION, duration(self.nanos), _SUMMARY_START, timestamp(self._wall))
        )
        return verdict

    def whole(self) -> bytes:
        """The evald.v1.AggregatedEvaluation with every result. After `finish`."""
        return b"".join((_RESULTS, _RESULTS.join(self._parts), self._summary))

    def event(self, before: bytes) -> bytes:
        """What comes before, then results and summary as fields of evald.v1.EvaluateResponse. After `finish`."""
        results, summary = _EVENT_RESULTS.join(self._parts), self._summary
        return b"".join((before, _EVENT_RESULTS, results, _EVENT_SUMMARY, size(summary), summary))

    def summary(self) -> bytes:
        """The summary alone as a field of evald.v1.EvaluateResponse. After `finish`."""
        return _EVENT_SUMMARY + sized(self._summary)

    def ready(self, indexes: Sequence[int]) -> bytes:
        """Some results as fields of evald.v1.EvaluateResponse."""
        return b"".join([_EVENT_RESULTS + self._parts[index] for index in indexes])

    def first_ready(self) -> bytes:
        """The results that did not have to wait, likewise."""
        waiting = {item.use.index for item in self.waiting}
        return self.ready([use.index for use in self.plan.uses if use.index not in waiting])

    @property
    def is_settled(self) -> bool:
        """Whether every result is there."""
        return None not in self.outcomes

    def abandon(self) -> None:
        """Give up what waits and was not begun, and have what still runs in a thread stop."""
        self.ctx.stop_at(_AT_ONCE)
        for item in self.waiting:
            discard(item.pending)

    def _stop_after(self, seconds: float | None) -> None:
        """Let evaluators that check the time go on for so long."""
        self.ctx.stop_at(0 if seconds is None else _clock() + int(seconds * _SECOND))

    async def _next(
        self, running: set[asyncio.Task[None]]
    ) -> tuple[set[asyncio.Task[None]], set[asyncio.Task[None]]]:
        """Wait for a task, or for progress: then none is done."""
        if not self.plan.include_progress:
            return await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        if self._wake is None or self._wake.done():
            self._wake = asyncio.get_running_loop().create_future()
            if self.progress:
                self._wake.set_result(None)
        both: set[asyncio.Future[None]] = {*running, self._wake}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        done = {task for task in running if task.done()}
        return done, running - done

    def _teller(self, index: int) -> Callable[[str, float | None], None]:
        """What a use tells its progress with, from whatever thread it runs in."""
        loop = asyncio.get_running_loop()

        def tell(message: str, fraction: float | None = None) -> None:
            said = Progress(index, *progress_said(message, fraction))
            with suppress(RuntimeError):  # the loop is closed: nobody listens any more
                loop.call_soon_threadsafe(self._say, said)

        return tell

    def _say(self, said: Progress) -> None:
        self.progress.append(said)
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def _run_one(
        self, waiting: Waiting, deadline: float | None, limit: asyncio.Semaphore, scope: Scope
    ) -> None:
        async with limit:
            if self.plan.include_progress:
                scope = scope._replace(progress=self._teller(waiting.use.index))
            left = None if deadline is None else deadline - time.monotonic()
            await self._settle_one(waiting, left, scope)

    def _scope(self, scope: Scope) -> Scope:
        """The call's scope with what the plan adds to it."""
        return scope._replace(skip_cache=True) if self.plan.skip_cache else scope

    async def _settle_one(self, waiting: Waiting, seconds: float | None, scope: Scope) -> int:
        use = waiting.use
        began = _clock()
        result = await call(use, self.ctx, self.threads, seconds, scope, waiting.pending)
        start = _RESULT_START + timestamp(self._wall + began - self._began)
        self._settle(use, result, _clock() - began, start)
        return use.index

    def _cannot_pass(self) -> bool:
        plan, outcomes = self.plan, self.outcomes
        settled = [None if one is None else (one.verdict, one.score) for one in outcomes]
        settled += [None] * (len(plan.uses) - len(outcomes))
        return is_lost(plan.uses, settled, plan.policy, plan.threshold)

    def _is_over(self) -> bool:
        """Nothing more is to run: the caller wants it so when the verdict cannot be PASSED any more."""
        return self.lost

    def _skip(self, waiting: Sequence[Waiting]) -> None:
        for item in waiting:
            self._settle(item.use, FAIL_FAST, 0)

    def _settle(self, use: Use, outcome: Result, nanos: int, start: bytes = b"") -> None:
        """Write a result down."""
        if use.adjusted:
            outcome = adjust(use, outcome)
        verdict, score, value = outcome.verdict, outcome.score, outcome.value
        if verdict is not _PASSED or (use.counts and (score != 1 or not use.weight)):
            self.perfect = False
        if outcome.token_usage is not None or outcome.cost_usd is not None:
            self.spent = True  # not free: the plan's summary does not know of it
        index = use.index
        self.outcomes[index] = outcome
        if self.plan.fail_fast and use.counts and not self.lost:
            self.lost = self._cannot_pass()
        self._parts[index] = result_bytes(use, outcome, nanos, is_final=self.ctx.is_final, began=start)
        if outcome.error is not None:
            use.tally.error(outcome.error.code)
        if use.is_metric:
            # Reported as 0 with its reason, but a 0 that nobody measured must not enter a histogram.
            value = measurement(value, outcome.metadata)
        use.tally.add(verdict, nanos / _SECOND, score, value)
