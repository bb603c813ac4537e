"""Time slices of the event loop, tasks and counters for streams that evaluate their messages concurrently."""

import asyncio
import time
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Final, TypeVar

from evald_server.batch.chunk import ChunkCounts
from evald_server.engine.plan import Plan
from evald_server.monitoring import Telemetry

T = TypeVar("T")

CHUNKS_PER_PROCESS: Final = 2
"""Maximum chunks of one stream per process that are being evaluated or whose answers wait for the caller."""

# Maximum time slice of a stream: about four items of a batch. With it, a call beside one batch takes three times as long
# as without the batch (p99); with 16 items, ten times.
_SLICE_SECONDS: Final = 0.0005


class StreamSlices:
    """The time slices of one stream. In each iteration of the event loop, at most one stream works.

    If ten streams worked in every iteration, a small call, which needs several iterations, would wait for ten slices in
    each of them. turns: the lock that all streams share; it is fair.
    """

    def __init__(self, turns: asyncio.Lock) -> None:
        self._turns = turns
        self._ends = 0.0

    async def pause(self) -> None:
        """Wait for the next slice if the current one is over. All tasks of the stream share it."""
        if time.perf_counter() > self._ends:
            async with self._turns:
                if time.perf_counter() > self._ends:
                    await asyncio.sleep(0)
                    self._ends = time.perf_counter() + _SLICE_SECONDS


class StreamTasks:
    """The tasks of a stream, which ends when one of them raises.

    failed: future of the first exception.
    """

    def __init__(self) -> None:
        self.failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self._all: set[asyncio.Task[None]] = set()
        self._closing = False

    def spawn(self, tasks: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine as one of these tasks."""

        def ended(task: asyncio.Task[None]) -> None:
            tasks.discard(task)
            self._all.discard(task)
            if not task.cancelled():
                problem = task.exception()
            else:  # unless `close` did it, foreign code has cancelled the task, whose results are lost: an error
                problem = None if self._closing else RuntimeError("a task of a stream was cancelled")
            if problem is not None and not self.failed.done():
                self.failed.set_result(problem)

        task = asyncio.create_task(work)
        tasks.add(task)
        self._all.add(task)
        task.add_done_callback(ended)

    async def any_of(self, tasks: set[asyncio.Task[None]]) -> None:
        """Wait until one of the tasks is done. Raises the exception of any task of the stream."""
        if tasks:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        self.check()

    def check(self) -> None:
        """Raise the exception of any task of the stream."""
        if self.failed.done():
            raise self.failed.result()

    async def close(self) -> None:
        """Cancel all tasks and wait for their end."""
        self._closing = True
        tasks = set(self._all)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


def next_part(remaining: Sequence[T], processed: int) -> Sequence[T]:
    """Return the items of the next chunk, after a process has returned the results of a part of the previous one.

    remaining: items without a result. processed: number of items with a result. The next chunk has at most twice as
    many, so that the chunks together have at most three times the items of the first one.
    """
    return remaining[: 2 * processed]


def count_chunk(
    telemetry: Telemetry, rpc: str, labels: Mapping[str, str], plan: Plan, counts: ChunkCounts
) -> None:
    """Add the counts of a batch process to the telemetry."""
    with telemetry.folding:
        evaluations = telemetry.evaluations.tally(rpc, labels)
        for verdict, seconds in counts.durations:
            evaluations.add(verdict, seconds)
        for (index, verdict, score, value, code), count, seconds in counts.results:
            planned = plan.evaluators[index]
            tally = telemetry.evaluators.of(planned)
            tally.add(verdict, seconds, score, count=count)
            if planned.metric is not None and value is not None:
                tally.measure(planned.metric.unit, value, count)
            for _ in range(count if code else 0):
                tally.error(code)
