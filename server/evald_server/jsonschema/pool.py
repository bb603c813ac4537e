"""A few worker processes, killed when a task takes too long; a thread could not be stopped."""

import asyncio
import json
import os
import signal
from collections.abc import Mapping, Sequence
from typing import Any, Final

from evald_server.fair_slots import FairSlots, QueueFull
from evald_server.workers import ChildProcess

# A task ends at its limit of CPU time. This wall time limit is for one that sleeps or waits for a CPU.
_WALL_FACTOR: Final = 8

# Loading Python and one library takes 0.1 s on an idle machine.
_START_SECONDS: Final = 30


class TaskTimeout(Exception):
    """The task did not end within its time. Its process has been killed."""


class PoolBusy(Exception):
    """Too many tasks are already waiting."""


class WorkerDied(Exception):
    """The process ended by itself."""


class KillablePool:
    """A pool of worker processes, which start when first needed.

    program: command of a worker. It sends `null` when ready, then answers each request; all are JSON in frames. It
    arms ITIMER_PROF with the `seconds` of the request, so that the kernel kills it when that CPU time is used up.
    size: maximum number of processes; by default the number of CPUs, at most 4.
    max_waiting: maximum number of tasks that wait for a process.

    Use it in one event loop only.
    """

    def __init__(self, program: Sequence[str], size: int | None = None, max_waiting: int = 256) -> None:
        self._program = list(program)
        self._slots = FairSlots(size or min(4, os.cpu_count() or 1), max_waiting)
        self._idle: list[ChildProcess] = []
        self._all: set[ChildProcess] = set()
        self._ending: set[asyncio.Task[int]] = set()

    async def run(self, task: Mapping[str, Any], seconds: float) -> Any:
        """Return a worker's answer. Raises TaskTimeout, PoolBusy or WorkerDied. Cancelling kills the worker."""
        try:
            async with self._slots.slot():
                return await self._send(json.dumps({**task, "seconds": seconds}).encode(), seconds)
        except QueueFull:
            raise PoolBusy from None

    async def aclose(self) -> None:
        """Kill all workers and wait for their end."""
        self._idle.clear()
        for worker in self._all.copy():
            self._kill(worker)
        if self._ending:
            await asyncio.wait(self._ending)

    @property
    def processes(self) -> list[int]:
        """The ids of the live processes."""
        return [worker.pid for worker in self._all if not worker.ended]

    async def _send(self, request: bytes, seconds: float) -> Any:
        worker = await self._worker()
        healthy = False
        try:
            async with asyncio.timeout(seconds * _WALL_FACTOR):
                worker.send(request)
                answer = await worker.receive()
            healthy = True
        except TimeoutError:
            raise TaskTimeout from None
        except (asyncio.IncompleteReadError, ConnectionError):
            code = await worker.wait()
            raise (TaskTimeout if code == -signal.SIGPROF else WorkerDied(f"exit code {code}")) from None
        finally:
            if healthy:
                self._idle.append(worker)
            else:
                # Its state after an interruption is unknown, so it is not reused.
                self._kill(worker)
        return json.loads(answer)

    async def _worker(self) -> ChildProcess:
        """Return an idle worker, or start one."""
        while self._idle:
            worker = self._idle.pop()
            if not worker.ended:
                return worker
            self._kill(worker)
        worker = await ChildProcess.start(self._program, quiet=True)
        self._all.add(worker)
        try:
            async with asyncio.timeout(_START_SECONDS):
                await worker.receive()
        except BaseException as problem:
            self._kill(worker)
            if isinstance(problem, asyncio.IncompleteReadError | ConnectionError | TimeoutError):
                raise WorkerDied(f"{self._program[-1]} did not start") from None
            raise
        return worker

    def _kill(self, worker: ChildProcess) -> None:
        """Kill a worker. A background task waits for its end."""
        worker.kill()
        if worker in self._all:
            self._all.discard(worker)
            task = asyncio.create_task(worker.wait())
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
