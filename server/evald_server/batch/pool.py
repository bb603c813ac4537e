"""The batch processes of a server: started when a batch is worth it, shared by all batches."""

import asyncio
import itertools
import logging
import time
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Final
from weakref import WeakKeyDictionary

from evald_server.engine.plan import Plan
from evald_server.engine.registry import Origin

from .process import BatchProcess, Job, NotStarted
from .rules import Rules, Work

_log = logging.getLogger("evald.batch")

# Messages that a process holds: one that it works on, and one more, so that it never waits for the next.
_AHEAD: Final = 2

_LONGEST_BACKOFF_SECONDS: Final = 60.0


class Pool:
    """The processes.

    size: most of them; 0 for none. after: items of one batch for which it is worth starting one. least: items
    of one message for which it is worth asking one: that costs the server as much as evaluating about four. idle_seconds:
    for which an idle process lives. silent_seconds: after which one that does not answer is killed: 256 items take
    10 ms, and the slowest that a sender could make a few seconds. Belongs to the event loop that it is first used in.
    """

    def __init__(
        self,
        rules: Rules,
        version: str,
        size: int,
        *,
        after: int = 1024,
        least: int = 16,
        idle_seconds: float = 300.0,
        silent_seconds: float = 60.0,
    ) -> None:
        self.size = size
        self.after = after
        self.least = least
        self._rules = rules
        self._version = version
        self._idle_seconds = idle_seconds
        self._silent_seconds = silent_seconds
        self._numbers = itertools.count(1)
        self._jobs: WeakKeyDictionary[Plan, Job | None] = WeakKeyDictionary()
        self._ready: list[BatchProcess] = []
        self._waiters: deque[asyncio.Future[BatchProcess | None]] = deque()
        self._runs: set[asyncio.Task[None]] = set()
        self._watch: asyncio.Task[None] | None = None
        self._failures = 0
        self._not_before = 0.0
        self._closed = False

    @property
    def processes(self) -> list[int]:
        """Ids of the processes that are ready."""
        return [process.pid for process in self._ready]

    def job(self, plan: Plan, specs: Sequence[bytes], options: bytes) -> Job | None:
        """What the items of a plan share, for `BatchProcess.evaluate`; None when no batch process can run it.

        specs, options: of the plan, serialised. Lives as long as the plan: batches that share one have one job."""
        if plan in self._jobs:
            return self._jobs[plan]
        job = None
        if all(one.inline and one.origin is Origin.BUILT_IN for one in plan.evaluators):
            job = Job(next(self._numbers), Work(tuple(specs), options, tuple(plan.template.specs)))
            weakref.finalize(plan, self._close, job.number).atexit = False
        self._jobs[plan] = job
        return job

    def is_for(self, taken: int, count: int) -> bool:
        """Whether a batch that has had so many items may hand over a message with so many of them. Processes that
        run are there for every batch; for a small one none is started."""
        return count >= self.least and (bool(self._ready) or (self.size > 0 and taken >= self.after))

    async def place(self, items: int) -> BatchProcess | None:
        """A process that has room for one more message, which it must be given at once; None when there is no
        process. Whoever has waited longest is first. items: of the batch, so far."""
        if items >= self.after and (not self._ready or all(process.held for process in self._ready)):
            self._start_one()
        if not self._ready:
            return None
        process = min(self._ready, key=lambda process: process.held)
        if process.held < _AHEAD and not self._waiters:
            process.held += 1
            return process
        waiter: asyncio.Future[BatchProcess | None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            given = waiter.result() if waiter.done() and not waiter.cancelled() else None
            if given is not None:
                self._free(given)
            raise
        finally:
            with suppress(ValueError):
                self._waiters.remove(waiter)

    async def aclose(self) -> None:
        """End all processes."""
        self._closed = True
        if self._watch is not None:
            self._watch.cancel()
        for task in self._runs:
            task.cancel()
        if self._runs:
            await asyncio.wait(self._runs)

    def _start_one(self) -> None:
        """Start another process, if there may be one. Does not wait for it."""
        if len(self._runs) >= self.size or self._closed or time.monotonic() < self._not_before:
            return
        task = asyncio.create_task(self._run())
        self._runs.add(task)
        task.add_done_callback(self._runs.discard)
        if self._watch is None:
            self._watch = asyncio.create_task(self._look_after())

    def _close(self, number: int) -> None:
        for process in self._ready:
            process.close(number)

    async def _run(self) -> None:
        """The life of one process."""
        try:
            process = await BatchProcess.start(self._rules, self._version)
        except NotStarted as problem:
            _log.warning("no batch process: %s; batches are evaluated in the server", problem)
            self._back_off()
            return
        _log.info("batch process %d started", process.pid)
        try:
            self._ready.append(process)
            self._hand_out(process)
            await process.listen(lambda: self._answered(process))
        finally:
            if process in self._ready:  # nobody has told it to end
                self._remove(process)
            code = await process.end()
            if process.dismissed or self._closed:
                _log.info("batch process %d ended", process.pid)
            else:
                _log.warning(
                    "batch process %d ended by itself (exit code %d); what it had is evaluated in the server",
                    process.pid,
                    code,
                )
                self._back_off()

    def _answered(self, process: BatchProcess) -> None:
        self._failures = 0
        self._free(process)

    def _free(self, process: BatchProcess) -> None:
        process.held -= 1
        self._hand_out(process)

    def _hand_out(self, process: BatchProcess) -> None:
        """Give what room a process has to those who wait."""
        while self._waiters and process.held < _AHEAD and process in self._ready:
            waiter = self._waiters.popleft()
            if not waiter.done():
                process.held += 1
                waiter.set_result(process)

    def _remove(self, process: BatchProcess) -> None:
        self._ready.remove(process)
        if not self._ready:
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def _back_off(self) -> None:
        self._failures += 1
        self._not_before = time.monotonic() + min(2.0**self._failures, _LONGEST_BACKOFF_SECONDS)

    async def _look_after(self) -> None:
        """End what is idle, and what has not said anything for too long."""
        while True:
            await asyncio.sleep(min(5.0, self._idle_seconds / 4, self._silent_seconds / 4))
            now = time.monotonic()
            for process in self._ready[:]:
                quiet = now - process.since
                if process.held and quiet > self._silent_seconds:
                    process.kill()
                elif not process.held and quiet > self._idle_seconds:
                    self._remove(process)
                    process.dismiss()
