"""Child processes of the server, with request frames on standard input and response frames on standard output."""

import asyncio
import os
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import IO, Final, Self

from .frames import PIPE_BYTES, receive_frame

# Interval of polling for the exit of a process.
_POLL_SECONDS: Final = 0.01


class ChildProcess:
    """A child process with its two pipes. Bound to the event loop that started it.

    It exits with the server, even if the server is killed, if its program calls `kernel.end_with_parent`.
    """

    def __init__(
        self,
        process: "subprocess.Popen[bytes]",
        reader: asyncio.StreamReader,
        reading: asyncio.ReadTransport,
        writer: asyncio.WriteTransport,
    ) -> None:
        self._process = process
        self._reader = reader
        self._reading = reading
        self._writer = writer

    @classmethod
    async def start(cls, program: Sequence[str], *, quiet: bool = False) -> Self:
        """Start a program, without waiting for its first frame. Raises OSError if it cannot be started.

        quiet: discard its standard error. By default it goes to the server's.
        """
        process, requests, answers = _started(program, quiet=quiet)
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(2 * PIPE_BYTES)
        try:
            reading, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), answers)
            writer, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, requests)
        except BaseException:  # cancelled: the server is stopping
            process.kill()
            process.wait()
            requests.close()
            answers.close()
            raise
        return cls(process, reader, reading, writer)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether the process has exited."""
        return self._process.poll() is not None

    @property
    def closed(self) -> bool:
        """Whether either side has closed its standard input."""
        return self._writer.is_closing()

    def send(self, data: bytes) -> None:
        """Send a frame. Unread data is buffered without limit."""
        self._writer.write(len(data).to_bytes(4, "big"))
        self._writer.write(data)

    async def receive(self) -> bytes:
        """Return the next frame. Raises asyncio.IncompleteReadError or ConnectionError if the process has exited."""
        return await receive_frame(self._reader)

    def close(self) -> None:
        """Close its standard input. The program should then exit."""
        self._writer.close()

    def kill(self) -> None:
        """Kill the process. Does not wait for its exit."""
        self._process.kill()

    async def end(self) -> int:
        """Kill the process and wait for its exit. Returns the exit code."""
        self.kill()
        return await self.wait()

    async def wait(self) -> int:
        """Wait for the exit of the process and return its exit code. Kills the process if cancelled."""
        try:
            while self._process.poll() is None:  # noqa: ASYNC110 - subprocess has no event for it
                await asyncio.sleep(_POLL_SECONDS)
        finally:
            self._writer.close()
            self._reading.close()
            if self._process.returncode is None:  # cancelled; a killed process exits at once
                self._process.kill()
            code = self._process.wait()
        return code


def _started(
    program: Sequence[str], *, quiet: bool
) -> "tuple[subprocess.Popen[bytes], IO[bytes], IO[bytes]]":
    """Start a process with a pipe in each direction."""
    with ExitStack() as ours, ExitStack() as theirs:
        its_requests, requests = _pipe(theirs, ours)
        answers, its_answers = _pipe(ours, theirs)
        # subprocess uses vfork on Linux. asyncio with uvloop uses fork: between fork and exec the child runs gRPC's
        # fork handlers and crashes in them (SIGSEGV) while gRPC is working.
        process = subprocess.Popen(  # noqa: S603 - Python itself
            program,
            stdin=its_requests,
            stdout=its_answers,
            stderr=subprocess.DEVNULL if quiet else None,
            start_new_session=True,
        )
        ours.pop_all()
        return process, requests, answers


def _pipe(reading: ExitStack, writing: ExitStack) -> tuple[IO[bytes], IO[bytes]]:
    """Create a pipe; these stacks close its ends. Its capacity is PIPE_BYTES if the system allows that."""
    r, w = os.pipe()
    ends = reading.enter_context(os.fdopen(r, "rb", 0)), writing.enter_context(os.fdopen(w, "wb", 0))
    with suppress(OSError, AttributeError, ImportError):
        import fcntl

        fcntl.fcntl(w, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return ends
