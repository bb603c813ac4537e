"""Processes that can be killed: for work that may not end by itself and that no thread could be stopped in."""

import asyncio
import json
import os
import signal
from collections.abc import Mapping, Sequence
from typing import Any, Final

from evald_server.workers import Worker

# A task ends itself at its limit of processor time. This is for one that sleeps, or waits for a processor.
_WALL_FACTOR: Final = 8

# Python and one library: 0.1 s on an idle machine.
_START_SECONDS: Final = 30


class TimedOut(Exception):
    """The task did not end within its time. Its process has been killed."""


class Busy(Exception):
    """Too many tasks wait already."""


class Died(Exception):
    """The process ended by itself."""


class KillablePool:
    """A few worker processes, started when first needed.

    program: the command of a worker. It sends `null` when it is ready, then
    answers each request; both are JSON in frames. It arms ITIMER_PROF with the `seconds` of
    the request: the kernel then ends it when that much processor time is used up.
    size: most processes at a time; as many as processors, but at most 4, when not given.
    max_waiting: most tasks that wait for a process.

    Belongs to the event loop that it is first used in.
    """

    def __init__(self, program: Sequence[str], size: int | None = None, max_waiting: int = 256) -> None:
        self._program = list(program)
        self._places = asyncio.Semaphore(size or min(4, os.cpu_count() or 1))
        self._max_waiting = max_waiting
        self._waiting = 0
        self._idle: list[Worker] = []
        self._all: set[Worker] = set()
        self._ending: set[asyncio.Task[int]] = set()

    async def run(self, task: Mapping[str, Any], seconds: float) -> Any:
        """The answer of a worker. Raises TimedOut, Busy or Died. Cancelling kills the worker."""
        if self._waiting >= self._max_waiting:
            raise Busy
        request = json.dumps({**task, "seconds": seconds}).encode()
        self._waiting += 1
        try:
            await self._places.acquire()
        finally:
            self._waiting -= 1
        try:
            return await self._ask(request, seconds)
        finally:
            self._places.release()

    async def aclose(self) -> None:
        """Kill all workers and wait for their end."""
        self._idle.clear()
        for worker in self._all.copy():
            self._end(worker)
        if self._ending:
            await asyncio.wait(self._ending)

    @property
    def processes(self) -> list[int]:
        """Ids of the processes that are alive."""
        return [worker.pid for worker in self._all if not worker.ended]

    async def _ask(self, request: bytes, seconds: float) -> Any:
        worker = await self._worker()
        healthy = False
        try:
            async with asyncio.timeout(seconds * _WALL_FACTOR):
                worker.send(request)
                answer = await worker.receive()
            healthy = True
        except TimeoutError:
            raise TimedOut from None
        except (asyncio.IncompleteReadError, ConnectionError):
            code = await worker.wait()
            raise (TimedOut if code == -signal.SIGPROF else Died(f"exit code {code}")) from None
        finally:
            if healthy:
                self._idle.append(worker)
            else:
                # What a worker was interrupted in is unknown: it never gets another task.
                self._end(worker)
        return json.loads(answer)

    async def _worker(self) -> Worker:
        while self._idle:
            worker = self._idle.pop()
            if not worker.ended:
                return worker
            self._end(worker)
        worker = await Worker.start(self._program, quiet=True)
        self._all.add(worker)
        try:
            async with asyncio.timeout(_START_SECONDS):
                await worker.receive()
        except BaseException as problem:
            self._end(worker)
            if isinstance(problem, asyncio.IncompleteReadError | ConnectionError | TimeoutError):
                raise Died(f"{self._program[-1]} did not start") from None
            raise
        return worker

    def _end(self, worker: Worker) -> None:
        """Kill a worker. Its end is waited for beside."""
        worker.kill()
        if worker in self._all:
            self._all.discard(worker)
            task = asyncio.create_task(worker.wait())
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
