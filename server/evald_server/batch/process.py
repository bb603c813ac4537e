"""One batch process, as the server sees it."""

import asyncio
import marshal
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Self

from evald_server.workers import Worker

from .rules import CLOSE, EVALUATE, OPEN, Report, Rules, Work

# -P: what lies in the working directory is none of ours.
_PROGRAM: Final = (sys.executable, "-P", "-m", "evald_server.batch")

# Python and the evaluators: 0.3 s on an idle machine, and it starts beside what made the server want it.
_START_SECONDS: Final = 60


class NotStarted(Exception):
    """No batch process could be started. The message says why."""


class Job(NamedTuple):
    """A work by its number, which is its own in this server."""

    number: int
    work: Work


class BatchProcess:
    """A process that evaluates messages, in the order in which it gets them.

    held: how many messages it has been promised or given and has not answered. since: when it was last
    given something, or heard of. dismissed: it was told to end. Belongs to the event loop that it was started in.
    """

    def __init__(self, worker: Worker) -> None:
        self.held = 0
        self.dismissed = False
        self.since = time.monotonic()
        self._worker = worker
        self._asked: deque[asyncio.Future[Report | None]] = deque()
        self._open: set[int] = set()
        self._closing: list[int] = []
        self._gone = False

    @classmethod
    async def start(cls, rules: Rules, version: str) -> Self:
        """A process that is ready. Raises NotStarted. version: of this server, which must be the process's
        too: the package may have been upgraded below a server that runs."""
        try:
            worker = await Worker.start(_PROGRAM)
        except OSError as problem:
            raise NotStarted(f"{problem.strerror}: {sys.executable}") from None
        try:
            worker.send(rules.packed())
            async with asyncio.timeout(_START_SECONDS):
                its = (await worker.receive()).decode()
            if its != version:
                raise NotStarted(f"evald {its} is installed by now, this server is {version}: restart it")
        except BaseException as problem:
            await worker.end()
            if isinstance(problem, asyncio.IncompleteReadError | TimeoutError):
                raise NotStarted(f"{' '.join(_PROGRAM)} did not become ready") from None
            raise
        return cls(worker)

    @property
    def pid(self) -> int:
        """Its id."""
        return self._worker.pid

    def evaluate(self, job: Job, data: bytes, start: int, *, brief: bool) -> "asyncio.Future[Report | None]":
        """Have the items of a serialised evald.v1.EvaluateBatchRequest evaluated, from that index on.

        None: it is gone; nothing has been evaluated then.
        """
        answer: asyncio.Future[Report | None] = asyncio.get_running_loop().create_future()
        # Its end may be seen by one pipe before it is by the other.
        if self._gone or self._worker.closed:
            answer.set_result(None)
            return answer
        while self._closing:
            self._tell(CLOSE, self._closing.pop(), None)
        if job.number not in self._open:
            self._open.add(job.number)
            self._tell(OPEN, job.number, tuple(job.work))
        self._tell(EVALUATE, job.number, (start, brief))
        self._worker.send_large(data)
        self._asked.append(answer)
        self.since = time.monotonic()
        return answer

    def close(self, number: int) -> None:
        """Nothing more is coming for the job of that number. May be called at any moment, by the collector."""
        if number in self._open:
            self._open.discard(number)
            self._closing.append(number)

    async def listen(self, answered: Callable[[], None]) -> None:
        """Take answers until it is gone. answered: called for each."""
        try:
            while True:
                data = await self._worker.receive()
                self.since = time.monotonic()
                answer = self._asked.popleft()
                # Cancelled when its caller has gone away.
                if not answer.done():
                    answer.set_result(Report.unpacked(data))
                answered()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._gone = True
            for answer in self._asked:
                if not answer.done():
                    answer.set_result(None)
            self._asked.clear()

    def dismiss(self) -> None:
        """Let it end. For one that has nothing to do."""
        self.dismissed = True
        self._worker.close()

    def kill(self) -> None:
        """End it at once."""
        self._worker.kill()

    async def end(self) -> int:
        """End it at once, if it has not ended by itself. Its exit code."""
        return await self._worker.end()

    def _tell(self, kind: int, number: int, detail: Any) -> None:
        self._worker.send(marshal.dumps((kind, number, detail)))
