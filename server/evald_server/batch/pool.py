"""The batch processes of a server: started for large batches, shared by all of them.

`concurrent.futures.ProcessPoolExecutor` is not used: if a process is killed while it writes a result, the executor's
thread reads forever, and the server cannot exit (seen in CPython 3.11.7).
"""

import asyncio
import logging
import pickle
import sys
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Any, Final, TypeVar

from evald_server.auth.current_call import caller
from evald_server.fair_slots import RoundRobinQueue
from evald_server.workers import ChildProcess

from .chunk import Chunk, ProcessConfig

T = TypeVar("T")

# -P, so that files in the working directory cannot be imported.
_PROGRAM: Final = (sys.executable, "-P", "-m", "evald_server.batch")

# Chunks per process: the current one and the next, so that it never waits.
_CHUNKS_HELD: Final = 2

# Starting takes 0.5 s on an idle machine, longer under the load for which processes are started.
_START_SECONDS: Final = 60

_LONGEST_BACKOFF_SECONDS: Final = 60.0

_log = logging.getLogger("evald.batch")


class BatchProcess:
    """A batch process.

    slots: number of its sent and assigned chunks. ended: it accepts no more chunks. dismissed: the server ended it.
    """

    def __init__(self, worker: ChildProcess) -> None:
        self.worker = worker
        self.slots = 0
        self.ended = False
        self.dismissed = False
        self._pending: deque[asyncio.Future[Any]] = deque()  # in the order of the chunks
        self._timer: asyncio.TimerHandle | None = None

    def submit(self, chunk: Chunk[T]) -> "asyncio.Future[T | None]":
        """Send a chunk. The future gives its result, or None if the process has ended."""
        future: asyncio.Future[T | None] = asyncio.get_running_loop().create_future()
        # One pipe may report the end of the process before the other does.
        if self.ended or self.worker.closed:
            future.set_result(None)
        else:
            self.worker.send(pickle.dumps(chunk))
            self._pending.append(future)
        return future

    def answered(self, result: object) -> None:
        """Return the result of the oldest chunk to its caller."""
        self.slots -= 1
        future = self._pending.popleft()
        if not future.done():  # cancelled by its caller
            future.set_result(result)

    def end(self) -> None:
        """Give the pending chunks the result None and accept no more, because the process has ended."""
        self.ended = True
        self.set_timer(0, None)
        for future in self._pending:
            if not future.done():
                future.set_result(None)

    def set_timer(self, seconds: float, action: Callable[[], None] | None) -> None:
        """Replace the timer."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, action) if action else None


class BatchPool:
    """A pool of at most `size` batch processes. Use it in one event loop only."""

    def __init__(
        self,
        config: ProcessConfig,
        size: int,
        *,
        after: int = 1024,
        least: int = 16,
        idle_seconds: float = 300.0,
        silent_seconds: float = 60.0,
    ) -> None:
        """after: minimum items of a batch before processes are started. least: minimum items of a message that is
        sent to a process; sending costs the server as much as evaluating about four. idle_seconds: time after which
        an idle process ends. silent_seconds: time after which a process that does not respond is killed; 256 items
        take 10 ms, the slowest possible ones a few seconds."""
        self.size = size
        self.after = after
        self.least = least
        self._config = config
        self._idle_seconds = idle_seconds
        self._silent_seconds = silent_seconds
        self._ready: list[BatchProcess] = []
        self._waiters: RoundRobinQueue[asyncio.Future[BatchProcess | None]] = RoundRobinQueue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._failures = 0
        self._not_before = 0.0
        self._closed = False

    @property
    def processes(self) -> list[int]:
        """The ids of the ready processes."""
        return [process.worker.pid for process in self._ready]

    def prepare(self) -> None:
        """Start all processes for an expected large batch, without waiting for them."""
        for _ in range(self.size):
            self._start_one()

    def is_worth_it(self, taken: int, count: int) -> bool:
        """Return whether processes should evaluate the next `count` items of a batch, after `taken` items so far.

        Small batches use processes that already run, but start none.
        """
        return count >= self.least and (bool(self._ready) or (self.size > 0 and taken >= self.after))

    async def submit(self, chunk: Chunk[T], taken: int) -> "asyncio.Future[T | None] | None":
        """Send a chunk to the least busy process. While all are full, principals take turns.

        taken: items of the batch so far. Returns None if there is no process. The future gives None if the process
        ended or could not evaluate the chunk; nothing of the chunk counts then.
        """
        if taken >= self.after and all(process.slots for process in self._ready):
            self._start_one()
        process = await self._acquire()
        if process is None:
            return None
        future = process.submit(chunk)
        self._set_timer(process)
        return future

    async def aclose(self) -> None:
        """Kill all processes and wait for their end."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _acquire(self) -> BatchProcess | None:
        """Acquire a slot of a process. Returns None if there is no process."""
        waiter: asyncio.Future[BatchProcess | None] = asyncio.get_running_loop().create_future()
        self._waiters.add(caller().name, waiter)
        self._assign()
        try:
            return await waiter
        except asyncio.CancelledError:
            process = waiter.result() if waiter.done() and not waiter.cancelled() else None
            if process is not None:
                process.slots -= 1
                self._assign()
            raise

    def _assign(self) -> None:
        """Assign free slots. Without a process, all waiters get None."""
        while self._waiters.by_principal:
            process = min(self._ready, key=lambda process: process.slots, default=None)
            if process is not None and process.slots >= _CHUNKS_HELD:
                return
            waiter = self._waiters.pop()
            if waiter.done():  # cancelled
                continue
            if process is not None:
                process.slots += 1
            waiter.set_result(process)

    def _start_one(self) -> None:
        """Start another process if allowed, without waiting for it."""
        if len(self._tasks) >= self.size or self._closed or time.monotonic() < self._not_before:
            return
        task = asyncio.create_task(self._run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self) -> None:
        """Start a process, receive its results, and clean up when it ends."""
        try:
            worker = await ChildProcess.start(_PROGRAM)
        except OSError as problem:
            self._not_started(f"{problem.strerror}: {sys.executable}")
            return
        process = BatchProcess(worker)
        ready, code = False, 0
        try:
            ready = await self._is_ready(worker)
            if ready:
                _log.info("batch process %d started", worker.pid)
                self._ready.append(process)
                self._set_timer(process)
                self._assign()
                await self._receive(process)
        finally:
            self._remove(process)
            process.end()
            code = await worker.end()
        if process.dismissed:
            _log.info("batch process %d ended", worker.pid)
        elif ready:
            _log.warning(
                "batch process %d ended unexpectedly (exit code %d); its items are evaluated in the server",
                worker.pid,
                code,
            )
            self._back_off()

    async def _is_ready(self, worker: ChildProcess) -> bool:
        """Compare versions, send the config and wait until the process is ready."""
        ours = version("evald")
        try:
            async with asyncio.timeout(_START_SECONDS):
                its = (await worker.receive()).decode()
                if its != ours:  # the package was upgraded while the server runs
                    self._not_started(
                        f"evald {its} is installed now, but this server runs {ours}; restart it"
                    )
                    return False
                worker.send(pickle.dumps(self._config))
                await worker.receive()
        except (asyncio.IncompleteReadError, ConnectionError, TimeoutError):
            self._not_started(f"{' '.join(_PROGRAM)} did not become ready")
            return False
        return True

    def _not_started(self, why: str) -> None:
        _log.warning("no batch process: %s; batches are evaluated in the server", why)
        self._back_off()

    async def _receive(self, process: BatchProcess) -> None:
        """Receive results until the process ends."""
        while True:
            try:
                data = await process.worker.receive()
            except (asyncio.IncompleteReadError, ConnectionError):
                return
            self._failures = 0
            process.answered(pickle.loads(data))  # noqa: S301 - from our own child
            self._set_timer(process)
            self._assign()

    def _set_timer(self, process: BatchProcess) -> None:
        """Set the timer that kills a process that does not respond, or ends one that stays idle."""
        if process.slots:
            process.set_timer(self._silent_seconds, process.worker.kill)
        else:
            process.set_timer(self._idle_seconds, partial(self._dismiss, process))

    def _dismiss(self, process: BatchProcess) -> None:
        self._remove(process)
        process.dismissed = True
        process.worker.close()

    def _remove(self, process: BatchProcess) -> None:
        if process in self._ready:
            self._ready.remove(process)
            self._assign()

    def _back_off(self) -> None:
        self._failures += 1
        self._not_before = time.monotonic() + min(2.0**self._failures, _LONGEST_BACKOFF_SECONDS)
