"""Shared by streams whose messages are evaluated concurrently: turns of the event loop, tasks and counting."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, TypeVar

from evald_server.batch.chunk import ChunkCounts
from evald_server.engine.plan import Plan
from evald_server.monitoring import Telemetry

T = TypeVar("T")

CHUNKS_PER_PROCESS: Final = 2
"""Chunks of one stream that are being evaluated, or whose answers the caller has not taken yet, for each process."""

# How long a stream may work in the event loop before it waits for its next turn: that of four items of a batch, with
# which a call beside one batch takes three times as long as without it (p99); with 16 it takes ten times.
_TURN_SECONDS: Final = 0.0005


class LoopTurns:
    """Lets streams work one after the other: one of them in each iteration of the event loop.

    If all of ten streams worked in every iteration, a small call, which takes several iterations, would wait for as many
    turns of all ten.
    """

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def next(self) -> None:
        """Wait for a turn, first come first served."""
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._waiting.append(turn)
        if len(self._waiting) == 1:
            loop.call_soon(self._give)
        await turn

    def _give(self) -> None:
        turn = self._waiting.popleft()
        if not turn.done():  # cancelled
            turn.set_result(None)
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._give)


class StreamTurns:
    """The turns of one stream."""

    def __init__(self, next_turn: Callable[[], Awaitable[None]]) -> None:
        """next_turn: that of the LoopTurns that all streams share."""
        self._next = next_turn
        self._lock = asyncio.Lock()  # many tasks of a stream wait for one turn, not for as many
        self._ends = 0.0

    async def pause(self) -> None:
        """Wait for the next turn if this one is over."""
        if time.perf_counter() > self._ends:
            async with self._lock:
                if time.perf_counter() > self._ends:
                    await self._next()
                    self._ends = time.perf_counter() + _TURN_SECONDS


class StreamTasks:
    """The tasks of a stream, which ends when one of them raises.

    failed: what was raised first.
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
            else:  # by foreign code, unless this closes: what it had is lost, which must not look like an end
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
        """Stop what still runs."""
        self._closing = True
        tasks = set(self._all)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


def next_part(left: Sequence[T], processed: int) -> Sequence[T]:
    """Return how much of what a process has left over to send it next.

    processed: of the chunk before, until its result was full. Twice as much at most, so that altogether three times
    what a chunk has is sent, however many results it takes.
    """
    return left[: 2 * processed]


def count_chunk(
    telemetry: Telemetry, rpc: str, labels: Mapping[str, str], plan: Plan, counts: ChunkCounts
) -> None:
    """Count for telemetry what a batch process has evaluated."""
    evaluations = telemetry.evaluation(rpc, labels)
    for verdict, seconds in counts.durations:
        evaluations.add(verdict, seconds)
    for (index, verdict, score, value, code), count, seconds in counts.results:
        tally = telemetry.tally_of(plan.evaluators[index])
        tally.add(verdict, seconds, score, value, None, count)
        for _ in range(count if code else 0):
            tally.error(code)
