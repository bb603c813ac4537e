"""Runs a plan on one turn.

What is plain is called right here, in order, because a task for each check
costs more than the checks. What really waits (a thread, a remote, a judge)
becomes a task with a deadline. Results are written into the messages that
are sent, once.
"""

import asyncio
import inspect
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from evald.context import EvaluatorContext
from evald.errorcodes import CODES
from evald.evaluator import ContractViolation, to_result
from evald.result import ErrorInfo, Result, Verdict, errored, skipped
from evald.scope import SCOPE, Scope
from evald.structs import dict_to_struct
from evald.v1 import message_pb2, result_pb2

from .aggregate import ALL_PASSED, Aggregate, Policy, Settled, aggregate
from .contract import cut, violation
from .plan import SHORT_REASON, Plan, Use, is_plain
from .registry import Origin
from .threads import Busy, Threads

_log = logging.getLogger("evald.engine")

_PASSED, _FAILED, _ERROR, _SKIPPED = Verdict.PASSED, Verdict.FAILED, Verdict.ERROR, Verdict.SKIPPED

NOT_FINAL: Final = skipped("Skipped (not final turn)")
FAIL_FAST: Final = skipped("Skipped (an earlier assertion failed and fail_fast is on)")

# What of the call's time is kept back to send the summary: a tenth, but not less than this.
_RESERVE_SECONDS: Final = 0.05

_SECOND: Final = 1_000_000_000  # in nanoseconds

_clock = time.perf_counter_ns


class Results(Protocol):
    """The repeated results that an evaluation writes into."""

    def __getitem__(self, index: int, /) -> result_pb2.EvaluationResult: ...

    def __iter__(self) -> Iterator[result_pb2.EvaluationResult]: ...


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


def budget(seconds: float | None) -> float | None:
    """What evaluators may use of the time that a call has left."""
    if seconds is None:
        return None
    return seconds - max(_RESERVE_SECONDS, seconds / 10)


class Evaluation:
    """One plan on one turn.

    results, summary: copies of the plan's blank ones, to be filled in.
    settled: verdict and score by index, None while a use has not answered.
    perfect: every assertion that counts has passed with score 1, and nothing else broke or was
    skipped, so that the blank summary is the right one.
    progress: what uses have said since somebody last took it away; only where the plan asks for it.
    """

    __slots__ = (
        "_began",
        "_offset",
        "_spent",
        "_wake",
        "ctx",
        "failed",
        "perfect",
        "plan",
        "progress",
        "results",
        "settled",
        "summary",
        "threads",
        "waiting",
    )

    def __init__(
        self,
        plan: Plan,
        ctx: EvaluatorContext,
        results: Results,
        summary: result_pb2.AggregatedEvaluation,
        threads: Threads,
    ) -> None:
        self.plan = plan
        self.ctx = ctx
        self.results = results
        self.summary = summary
        self.threads = threads
        self.settled = plan.settled.copy()
        self.waiting: list[Waiting] = []
        self.failed = False
        self.perfect = True
        self.progress: list[Progress] = []
        self._wake: asyncio.Future[None] | None = None
        self._spent: list[Result] = []
        self._began = _clock()
        # Start times are wall times, durations are not: a clock that is set must not make one negative.
        self._offset = time.time_ns() - self._began

    def run_inline(self) -> bool:
        """Call everything that is plain. True when nothing is left to wait for."""
        ctx = self.ctx
        fail_fast = self.plan.fail_fast
        began = _clock()
        for use, pb in zip(self.plan.uses, self.results, strict=False):
            if (use.conditional or fail_fast) and self._held_back(use, began):
                began = _clock()
                continue
            try:
                outcome = use.evaluate(ctx)
            except Exception as problem:  # noqa: BLE001 - foreign code
                outcome = crashed(use, problem)
            if outcome is not use.usual:
                if outcome.__class__ is not Result or not use.plain or not is_plain(outcome):
                    began = self._take(use, outcome, began)
                    continue
                pb.reason = outcome.reason
                value = outcome.value
                if value is not None:
                    pb.value = value
            # Four fifths of all results end here: passed with score 1, which the blank says already.
            # Where one ends the next begins: a second look at the clock would cost more than a check.
            ended = _clock()
            pb.duration.nanos = (ended - began) % _SECOND
            use.tally.add_perfect((ended - began) / _SECOND, outcome.value)
            began = ended
        return not self.waiting

    def _held_back(self, use: Use, began: int) -> bool:
        """Whether a use is not to be called now: it is skipped, or has to wait."""
        if use.final_only and not self.ctx.is_final:
            self._settle(use, NOT_FINAL, began)
        elif not use.inline:
            self.waiting.append(Waiting(use, None))
        elif self.plan.fail_fast and self.failed:
            self._settle(use, FAIL_FAST, began)
        else:
            return False
        return True

    def _take(self, use: Use, outcome: Any, began: int) -> int:
        """Take whatever a use answered. Returns when it was taken."""
        if inspect.isawaitable(outcome):
            self.settled[use.index] = None
            self.waiting.append(Waiting(use, outcome))
            return _clock()
        return self._settle(use, checked(use, outcome), began)

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
        if self.plan.fail_fast and self.failed:
            self._skip(self.waiting)
            _discard(self.waiting)
            yield [waiting.use.index for waiting in self.waiting]
            return
        deadline = None if seconds is None else time.monotonic() + seconds
        limit = asyncio.Semaphore(self.plan.max_concurrency or concurrency)
        scope = scope._replace(skip_cache=self.plan.skip_cache)
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
                if self.plan.fail_fast and self.failed and running:
                    for task in running:
                        task.cancel()
                    await asyncio.wait(running)
                    left = [tasks[task] for task in running if self.settled[tasks[task].use.index] is None]
                    self._skip(left)
                    finished += [tasks[task].use.index for task in running]
                    running = set()
                yield sorted(finished)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            _discard(self.waiting)

    def finish(self) -> Verdict:
        """Write the summary and give its verdict. Everything must have been settled."""
        summary = self.summary
        elapsed = _clock() - self._began
        if elapsed >= _SECOND:
            summary.duration.seconds = elapsed // _SECOND
        summary.duration.nanos = elapsed % _SECOND
        start, wall = summary.start_time, self._began + self._offset
        start.seconds, start.nanos = wall // _SECOND, wall % _SECOND
        if self._spent:
            self._add_spending()
        if self.perfect:
            return _PASSED
        plan = self.plan
        settled: Sequence[Settled] = self.settled  # type: ignore[assignment]
        total = aggregate(plan.uses, settled, plan.policy, plan.threshold)
        summary.verdict = int(total.verdict)  # type: ignore[assignment]
        summary.success = total.verdict is _PASSED
        for name, score in (
            ("score", total.score),
            ("min_score", total.min_score),
            ("mean_score", total.mean_score),
        ):
            if score is None:
                summary.ClearField(name)
            else:
                setattr(summary, name, score)
        summary.passed_count = total.passed
        summary.failed_count = total.failed
        summary.error_count = total.errors
        summary.skipped_count = total.skipped
        summary.reason = self._reason(total)
        if total.errors:
            self._warn(total)
        return total.verdict

    @property
    def seconds(self) -> float:
        """How long the evaluation has taken."""
        return (_clock() - self._began) / _SECOND

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
            with suppress(RuntimeError):  # the loop is closed: nobody listens any more
                loop.call_soon_threadsafe(self._say, index, message, fraction)

        return tell

    def _say(self, index: int, message: str, fraction: float | None) -> None:
        if fraction is not None and not 0 <= fraction <= 1:
            fraction = None
        self.progress.append(Progress(index, cut(message), fraction))
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def _run_one(
        self, waiting: Waiting, deadline: float | None, limit: asyncio.Semaphore, scope: Scope
    ) -> None:
        async with limit:
            if self.plan.include_progress:
                scope = scope._replace(progress=self._teller(waiting.use.index))
            SCOPE.set(scope)  # of this task alone
            began = _clock()
            left = None if deadline is None else deadline - time.monotonic()
            result = await call(waiting.use, self.ctx, self.threads, left, waiting.pending)
        self._settle(waiting.use, result, began)
        start, wall = self.results[waiting.use.index].start_time, began + self._offset
        start.seconds, start.nanos = wall // _SECOND, wall % _SECOND

    def _skip(self, waiting: Sequence[Waiting]) -> None:
        for item in waiting:
            self._settle(item.use, FAIL_FAST, _clock())

    def _settle(self, use: Use, outcome: Result, began: int) -> int:
        """Write a result down. Returns when it was there."""
        ended = _clock()
        elapsed = ended - began
        if use.adjusted:
            outcome = adjust(use, outcome)
        verdict, score, value = outcome.verdict, outcome.score, outcome.value
        pb = self.results[use.index]
        if use.counts or verdict is not _PASSED:
            self.perfect = False
        if verdict is not _PASSED:
            pb.verdict = int(verdict)  # type: ignore[assignment]
            if verdict is not _SKIPPED and not use.is_metric:
                pb.success = False
                if use.counts and verdict is _FAILED:
                    self.failed = True
            if outcome.error is not None:
                fill_error(pb.error, outcome.error)
                use.tally.error(outcome.error.code)
            if outcome.pending and not self.ctx.is_final:
                pb.pending = True
        reason = outcome.reason
        # A quarter: a character takes at most four bytes.
        pb.reason = reason if len(reason) <= SHORT_REASON and use.trusted else cut(reason)
        if score is not None:
            pb.score = score
        elif use.plain:
            pb.ClearField("score")
        if value is not None:
            pb.value = value
        if outcome.metadata:
            dict_to_struct(outcome.metadata, pb.metadata)
            if use.is_metric and outcome.metadata.get("available") is False:
                # Reported as 0 with its reason, but a 0 that nobody measured must not enter a histogram.
                value = None
        self._write_evidence(pb, outcome)
        if use.is_metric and verdict is _PASSED and outcome.value is not None:
            self.summary.metrics[use.name] = outcome.value
        if elapsed >= _SECOND:
            pb.duration.seconds = elapsed // _SECOND
        pb.duration.nanos = elapsed % _SECOND
        use.tally.add(verdict, elapsed / _SECOND, score, value)
        self.settled[use.index] = (verdict, score)
        return ended

    def _write_evidence(self, pb: result_pb2.EvaluationResult, outcome: Result) -> None:
        """What few results have."""
        for check in outcome.checks:
            pb.checks.add(text=check.text, met=check.met, evidence=check.evidence)
        if outcome.raw_request:
            dict_to_struct(outcome.raw_request, pb.raw_request)
        if outcome.cached:
            pb.cached = True
        if outcome.instance_id:
            pb.instance_id = outcome.instance_id
        if outcome.token_usage is not None or outcome.cost_usd is not None:
            self._spend(pb, outcome)

    def _spend(self, pb: result_pb2.EvaluationResult, outcome: Result) -> None:
        self._spent.append(outcome)
        usage = outcome.token_usage
        if usage is not None:
            for name in ("input_tokens", "output_tokens", "total_tokens"):
                count = getattr(usage, name)
                if count is not None:
                    setattr(pb.token_usage, name, count)
        if outcome.cost_usd is not None:
            pb.cost.currency_code, pb.cost.amount = "USD", outcome.cost_usd

    def _add_spending(self) -> None:
        summary = self.summary
        for outcome in self._spent:
            usage = outcome.token_usage
            if usage is not None:
                _add_usage(summary.token_usage, usage.input_tokens, usage.output_tokens, usage.total)
            if outcome.cost_usd is not None:
                summary.cost.currency_code = "USD"
                summary.cost.amount += outcome.cost_usd

    def _reason(self, total: Aggregate) -> str:
        if self.plan.policy is Policy.WEIGHTED_MEAN and total.mean_score is not None:
            if total.verdict is _PASSED and (total.failed or total.passed):
                if not total.failed:
                    return ALL_PASSED
                return f"Weighted mean {total.mean_score:.4g} reaches the threshold {self.plan.threshold:.4g}"
            if total.verdict is _FAILED and total.deciding is None:
                return (
                    f"Weighted mean {total.mean_score:.4g} is below the threshold {self.plan.threshold:.4g}"
                )
        if total.deciding is not None:
            return self.results[total.deciding].reason
        return "All assertions were skipped" if total.verdict is _SKIPPED else ALL_PASSED

    def _warn(self, total: Aggregate) -> None:
        for index in total.ignored_errors:
            pb = self.results[index]
            self.summary.warnings.append(
                f'"{pb.name}" gave no verdict ({pb.error.code}) and was ignored (fail open)'
            )
        for use in self.plan.uses:
            settled = self.settled[use.index]
            if settled is not None and settled[0] is _ERROR and not use.counts:
                what = "measured nothing" if use.is_metric else "gave no verdict in shadow"
                self.summary.warnings.append(f'"{use.name}" {what} ({self.results[use.index].error.code})')


async def call(
    use: Use,
    ctx: EvaluatorContext,
    threads: Threads,
    seconds: float | None,
    pending: Awaitable[Result] | None = None,
) -> Result:
    """The result of one use that may wait, within so many seconds. Never raises but when cancelled."""
    if use.timeout is not None:
        seconds = use.timeout if seconds is None else min(seconds, use.timeout)
    if seconds is not None:
        if seconds <= 0:
            return errored("TIMEOUT", "No time was left to run the evaluator")
        # Every call has a task of its own, so nobody else sees this.
        SCOPE.set(SCOPE.get()._replace(deadline=time.monotonic() + seconds))
    try:
        async with asyncio.timeout(seconds) as limit:
            outcome = await (pending if pending is not None else _begin(use, ctx, threads))
    except TimeoutError as problem:
        if not limit.expired():
            return crashed(use, problem)
        return errored("TIMEOUT", f"No result within {seconds:.3g}s", seconds=f"{seconds:.3g}")
    except asyncio.CancelledError:
        # Foreign code that cancels itself is a crash; a caller that went away is not.
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return crashed(use, RuntimeError("the evaluator cancelled itself"))
    except Busy:
        return errored("EVALUATOR_BUSY", "Earlier calls of this evaluator are stuck in all of its threads")
    except Exception as problem:  # noqa: BLE001 - foreign code
        return crashed(use, problem)
    return checked(use, outcome)


async def _begin(use: Use, ctx: EvaluatorContext, threads: Threads) -> Any:
    if use.is_async:
        coroutine: Any = use.evaluate(ctx)
        if use.origin is Origin.PLUGIN:
            return await threads.run_async(use.definition.type, coroutine)
        return await coroutine
    if use.inline or use.origin is not Origin.PLUGIN:
        outcome = use.evaluate(ctx)
    else:
        outcome = await threads.run(use.definition.type, use.evaluate, ctx)
    return await outcome if inspect.isawaitable(outcome) else outcome


def crashed(use: Use, problem: BaseException) -> Result:
    """The result of an evaluator that raised: fixed text, and an incident id that is also in the log."""
    incident = secrets.token_hex(6)
    _log.error(
        "evaluator %s raised, incident %s: Evaluator error: %s",
        use.definition.type,
        incident,
        problem,
        exc_info=problem,
    )
    if isinstance(problem, ContractViolation):
        return errored("CONTRACT_VIOLATION", f"The evaluator's answer breaks the contract: {problem}")
    return errored(
        "EVALUATOR_EXCEPTION",
        f"The evaluator raised an exception (incident {incident}; the server's log has the details)",
        incident=incident,
    )


def adjust(use: Use, result: Result) -> Result:
    """The result under the use's own threshold and negation. Errors and skips stay as they are."""
    verdict, score = result.verdict, result.score
    if verdict not in (_PASSED, _FAILED) or result.unproven:
        return result
    reason, pending = result.reason, result.pending
    if use.threshold is not None and score is not None:
        verdict = _PASSED if score >= use.threshold else _FAILED
        if verdict is not result.verdict:
            relation = "reaches" if verdict is _PASSED else "is below"
            reason = f"{reason} (score {score:.4g} {relation} the threshold {use.threshold:.4g})"
    if use.negate:
        verdict = _FAILED if verdict is _PASSED else _PASSED
        score = None if score is None else 1 - score
        reason, pending = f"Negated: {reason}", False
    return Result(
        verdict,
        reason,
        score,
        result.value,
        result.metadata,
        result.checks,
        pending and verdict is _FAILED,
        None,
        result.token_usage,
        result.cost_usd,
        result.raw_request,
        cached=result.cached,
        instance_id=result.instance_id,
    )


def checked(use: Use, outcome: Any) -> Result:
    """The outcome of foreign code as a result that holds to the contract."""
    if use.trusted and outcome.__class__ is Result:
        return outcome
    try:
        result = to_result(use.definition.kind, outcome)
        problem = violation(use.definition.kind, result)
    except Exception as error:  # noqa: BLE001 - foreign data
        problem = str(error)
    if problem is None:
        return result
    _log.error("evaluator %s broke the contract: %s", use.definition.type, problem)
    return errored("CONTRACT_VIOLATION", f"The evaluator's answer breaks the contract: {problem}")


def _discard(waiting: Sequence[Waiting]) -> None:
    """Close coroutines that were made and never begun."""
    for item in waiting:
        if inspect.iscoroutine(item.pending) and inspect.getcoroutinestate(item.pending) == "CORO_CREATED":
            item.pending.close()


def fill_error(pb: result_pb2.EvaluationError, error: ErrorInfo) -> None:
    """Write an error with what its code says of category and retry."""
    info = CODES[error.code]
    pb.code, pb.retryable = error.code, info.retryable
    pb.category = int(info.category)  # type: ignore[assignment]
    pb.message = cut(error.message)
    for key, value in error.details.items():
        pb.metadata[key] = value


def _add_usage(
    pb: message_pb2.TokenUsage, input_tokens: int | None, output_tokens: int | None, total: int | None
) -> None:
    if input_tokens is not None:
        pb.input_tokens += input_tokens
    if output_tokens is not None:
        pb.output_tokens += output_tokens
    if total is not None:
        pb.total_tokens += total
