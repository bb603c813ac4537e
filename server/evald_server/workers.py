"""A child process that the server sends requests to: frames on its standard input, answers on its standard output."""

import asyncio
import os
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import IO, Final, Self

from .frames import PIPE_BYTES, receive_frame

# Interval of polling for the end of a process.
_LOOK_SECONDS: Final = 0.01


class Worker:
    """A child process with its two pipes. Belongs to the event loop that it was started in.

    It ends with the server, however that ends, if its program calls `kernel.end_with_parent`.
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
        """Start a program, without waiting for its first frame. Raises OSError.

        quiet: discard its standard error, which goes to the server's otherwise.
        """
        process, requests, answers = _started(program, quiet=quiet)
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
        return cls(process, reader, reading, writer)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    @property
    def closed(self) -> bool:
        """Whether its input was closed by either side."""
        return self._writer.is_closing()

    def send(self, data: bytes) -> None:
        """Send a frame. What the process does not read yet is buffered here."""
        self._writer.write(len(data).to_bytes(4, "big"))
        self._writer.write(data)

    async def receive(self) -> bytes:
        """Return the next frame. Raises asyncio.IncompleteReadError or ConnectionError when the process has ended."""
        return await receive_frame(self._reader)

    def close(self) -> None:
        """Close its input: the program should end then."""
        self._writer.close()

    def kill(self) -> None:
        """Kill it."""
        self._process.kill()

    async def end(self) -> int:
        """Kill it and wait for its end. Returns the exit code."""
        self.kill()
        return await self.wait()

    async def wait(self) -> int:
        """Wait until it has ended. Returns the exit code."""
        try:
            while self._process.poll() is None:  # noqa: ASYNC110 - nothing tells of its end
                await asyncio.sleep(_LOOK_SECONDS)
        finally:
            self._writer.close()
            self._reading.close()
            if self._process.returncode is None:  # cancelled: the kernel does not take long to end it
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
        # By subprocess, which uses vfork on Linux, and not by asyncio: uvloop's way is fork, and between that
        # and exec the child runs gRPC's handlers of forks, in which it crashes (SIGSEGV) when gRPC is at work.
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
    """Create a pipe whose ends are closed by these stacks, large enough for a chunk of a batch if the system allows."""
    r, w = os.pipe()
    ends = reading.enter_context(os.fdopen(r, "rb", 0)), writing.enter_context(os.fdopen(w, "wb", 0))
    with suppress(OSError, AttributeError, ImportError):
        import fcntl

        fcntl.fcntl(w, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return ends
