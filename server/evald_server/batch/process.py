"""One batch process, as the server sees it."""

import asyncio
import marshal
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import IO, Any, Final, NamedTuple, Self

from evald_server.frames import PIPE_BYTES, frame, receive_frame

from .rules import CLOSE, EVALUATE, OPEN, Report, Rules, Work

# -P: what lies in the working directory is none of ours.
_PROGRAM: Final = (sys.executable, "-P", "-m", "evald_server.batch")

# Python and the evaluators: 0.3 s on an idle machine, and it starts beside what made the server want it.
_START_SECONDS: Final = 60

# Between two looks whether a process has ended that was just killed, or has closed its pipe.
_LOOK_SECONDS: Final = 0.01


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

    def __init__(
        self,
        process: "subprocess.Popen[bytes]",
        reader: asyncio.StreamReader,
        reading: asyncio.ReadTransport,
        writer: asyncio.WriteTransport,
    ) -> None:
        self.held = 0
        self.dismissed = False
        self.since = time.monotonic()
        self._process = process
        self._reader = reader
        self._reading = reading
        self._writer = writer
        self._asked: deque[asyncio.Future[Report | None]] = deque()
        self._open: set[int] = set()
        self._closing: list[int] = []
        self._gone = False

    @classmethod
    async def start(cls, rules: Rules, version: str) -> Self:
        """A process that is ready. Raises NotStarted. version: of this server, which must be the process's
        too: the package may have been upgraded below a server that runs."""
        try:
            process, requests, answers = _started()
        except OSError as problem:
            raise NotStarted(f"{problem.strerror}: {sys.executable}") from None
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(2 * PIPE_BYTES)
        try:
            reading, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), answers)
            writer, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, requests)
        except BaseException:  # the server stops just now
            process.kill()
            process.wait()
            requests.close()
            answers.close()
            raise
        self = cls(process, reader, reading, writer)
        try:
            writer.write(frame(rules.packed()))
            async with asyncio.timeout(_START_SECONDS):
                its = (await receive_frame(reader)).decode()
            if its != version:
                raise NotStarted(f"evald {its} is installed by now, this server is {version}: restart it")
        except BaseException as problem:
            await self.end()
            if isinstance(problem, asyncio.IncompleteReadError | TimeoutError):
                raise NotStarted(f"{' '.join(_PROGRAM)} did not become ready") from None
            raise
        return self

    @property
    def pid(self) -> int:
        """Its id."""
        return self._process.pid

    def evaluate(self, job: Job, data: bytes, start: int, *, brief: bool) -> "asyncio.Future[Report | None]":
        """Have the items of a serialised evald.v1.EvaluateBatchRequest evaluated, from that index on.

        None: it is gone; nothing has been evaluated then.
        """
        answer: asyncio.Future[Report | None] = asyncio.get_running_loop().create_future()
        # Its end may be seen by one pipe before it is by the other.
        if self._gone or self._writer.is_closing():
            answer.set_result(None)
            return answer
        while self._closing:
            self._tell(CLOSE, self._closing.pop(), None)
        if job.number not in self._open:
            self._open.add(job.number)
            self._tell(OPEN, job.number, tuple(job.work))
        self._tell(EVALUATE, job.number, (start, brief))
        # The length by itself: joined, the data would be copied.
        self._writer.write(len(data).to_bytes(4, "big"))
        self._writer.write(data)
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
                data = await receive_frame(self._reader)
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
        self._writer.close()

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()

    async def end(self) -> int:
        """End it at once, if it has not ended by itself. Its exit code."""
        self.kill()
        try:
            while self._process.poll() is None:  # noqa: ASYNC110 - nothing tells of its end
                await asyncio.sleep(_LOOK_SECONDS)
        finally:
            self._writer.close()
            self._reading.close()
            # When this is cancelled: the kernel does not take long to end what was killed.
            code = self._process.wait()
        return code

    def _tell(self, kind: int, number: int, detail: Any) -> None:
        self._writer.write(frame(marshal.dumps((kind, number, detail))))


def _started() -> "tuple[subprocess.Popen[bytes], IO[bytes], IO[bytes]]":
    """A process, and the pipes to it and from it."""
    with ExitStack() as ours, ExitStack() as theirs:
        its_requests, requests = _pipe(theirs, ours)
        answers, its_answers = _pipe(ours, theirs)
        # Not asyncio's: under uvloop that forks, and gRPC complains of forks on standard error.
        process = subprocess.Popen(  # noqa: S603 - Python itself
            _PROGRAM, stdin=its_requests, stdout=its_answers
        )
        ours.pop_all()
        return process, requests, answers


def _pipe(reading: ExitStack, writing: ExitStack) -> tuple[IO[bytes], IO[bytes]]:
    """Both ends of a pipe that takes a whole message of a batch at once, where the system allows it. They are
    closed with these."""
    r, w = os.pipe()
    ends = reading.enter_context(os.fdopen(r, "rb", 0)), writing.enter_context(os.fdopen(w, "wb", 0))
    with suppress(OSError, AttributeError, ImportError):
        import fcntl

        fcntl.fcntl(w, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return ends
