"""Runs one script: a launcher, pipes with limits, and an end that leaves nothing behind."""

import asyncio
import marshal
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import IO, Final, NamedTuple, Self, TypeAlias

_ROOT: Final = str(Path(__file__).parents[2])

# -I and -S: neither the operator's environment nor site-packages decide what the launcher imports.
_PROGRAM: Final = (
    "import sys; sys.path.append(sys.argv[1]); from evald_server.scripts.launcher import main; "
    "main(int(sys.argv[2]), int(sys.argv[3]))"
)

# As much of it as an error shows, in bytes of four for a character.
_STDERR_TAIL_BYTES: Final = 8000

_CHUNK: Final = 64 << 10

# Between two looks whether a launcher has ended. One that has answered is gone at the first or second.
_LONGEST_PAUSE_SECONDS: Final = 0.1

# A launcher ends a tree within milliseconds; one that sleeps in the kernel takes as long as it takes.
_CLOSE_SECONDS: Final = 2.0


Launcher: TypeAlias = "subprocess.Popen[bytes]"


class LaunchRequest(NamedTuple):
    """What the launcher is told.

    file: absolute path of the program. argv: the same and its arguments, after what confines it.
    user: id of the user and group to run as; None for the server's own.
    limits: by the launcher's names. landlock: what to leave of the file system; None for all of it.
    """

    file: str
    argv: Sequence[str]
    cwd: str
    environment: Mapping[str, str]
    limits: Mapping[str, int]
    user: int | None
    landlock: Mapping[str, Sequence[str]] | None


class ScriptExit(NamedTuple):
    """How a script ended.

    code: its exit code, negative for a signal; None when it never ran.
    excess: the stream that it wrote too much to, "stdout" or "stderr"; it was killed for that.
    problem: what kept it from running. timed_out: it was killed because its time was over.
    seconds: how long it was allowed to take.
    stderr: the last bytes of it.
    """

    code: int | None
    stdout: bytes = b""
    stderr: bytes = b""
    excess: str = ""
    problem: str = ""
    timed_out: bool = False
    seconds: float = 0.0


class _Excess(Exception):
    """A stream holds more than it may."""


class _Unwatched(Exception):
    """The launcher is gone without an answer: somebody killed it."""


class ScriptProcesses:
    """The scripts' processes that are alive. Belongs to one event loop."""

    def __init__(self) -> None:
        self._controls: set[socket.socket] = set()
        self._launchers: set[Launcher] = set()
        self._reaping: set[asyncio.Task[None]] = set()

    async def run(
        self, order: LaunchRequest, payload: bytes, seconds: float, output_bytes: int
    ) -> ScriptExit:
        """Run a script to its end, or kill it when its time is over, with all that it has started.

        Cancelling does the same. payload: what it reads from standard input, which is a file in memory:
        a script that does not read it holds up nobody. output_bytes: most that it may write to each of
        its two streams.
        """
        deadline = time.monotonic() + seconds
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self._controls.add(ours)
        process: Launcher | None = None
        try:
            with theirs:
                process = _start(order, payload, theirs)
            self._launchers.add(process)
            with process.stdout or nullcontext(), process.stderr or nullcontext():
                ended = await _follow(process, ours, deadline - time.monotonic(), output_bytes)
            if ended.code is not None:
                await self._reap(process)
            return ended._replace(seconds=seconds)
        finally:
            # That is the order to kill.
            ours.close()
            self._controls.discard(ours)
            if process in self._launchers:
                task = asyncio.create_task(self._reap(process))
                self._reaping.add(task)
                task.add_done_callback(self._reaping.discard)

    async def aclose(self) -> None:
        """Kill all scripts and wait for their end."""
        for control in self._controls:
            with suppress(OSError):  # the launcher has just ended
                control.shutdown(socket.SHUT_RDWR)
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await asyncio.gather(*map(self._reap, list(self._launchers)))

    async def _reap(self, launcher: Launcher) -> None:
        """Wait until a launcher has ended."""
        pause = 0.001
        while launcher.poll() is None:
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        self._launchers.discard(launcher)


def _start(order: LaunchRequest, payload: bytes, control: socket.socket) -> Launcher:
    """Start the launcher, which takes a millisecond or two.

    Not by the event loop: uvloop's way forks, which copies this process's page tables and has gRPC
    prepare for a life in the child; subprocess's way does neither.
    """
    with _MemoryFile(payload) as stdin, _MemoryFile(marshal.dumps(order._asdict())) as told:
        words = (_ROOT, str(control.fileno()), str(told.fd))
        return subprocess.Popen(  # noqa: S603 - Python itself
            [sys.executable, "-I", "-S", "-c", _PROGRAM, *words],
            bufsize=0,
            stdin=stdin.fd,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(control.fileno(), told.fd),
            start_new_session=True,
            env={},
            cwd="/",
        )


async def _follow(process: Launcher, control: socket.socket, seconds: float, output_bytes: int) -> ScriptExit:
    stdout, stderr = bytearray(), bytearray()
    streams = {
        "stdout": asyncio.create_task(_collect(process.stdout, stdout, output_bytes, output_bytes)),
        "stderr": asyncio.create_task(_collect(process.stderr, stderr, output_bytes, _STDERR_TAIL_BYTES)),
    }
    answer = asyncio.create_task(_answer(control))
    tasks = [*streams.values(), answer]
    try:
        # The launcher answers last, when nothing is left that could write.
        _, running = await asyncio.wait(tasks, timeout=max(0.0, seconds), return_when=asyncio.FIRST_EXCEPTION)
        problem, code = "", None
        excess = next((name for name, task in streams.items() if task.done() and task.exception()), "")
        timed_out = answer in running and not excess
        if answer.done() and not excess:
            try:
                code, problem = answer.result()
            except _Unwatched:
                problem = "the process that watches over it was killed"
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return ScriptExit(code, bytes(stdout), bytes(stderr), excess, problem, timed_out)


async def _collect(pipe: IO[bytes] | None, into: bytearray, limit: int, kept: int) -> None:
    """Read to the end; keep the last bytes. Raises _Excess."""
    assert pipe is not None
    fd = pipe.fileno()
    os.set_blocking(fd, False)
    seen = 0
    while chunk := await _read(fd):
        seen += len(chunk)
        into += chunk
        del into[:-kept]
        if seen > limit:
            raise _Excess


async def _read(fd: int) -> bytes:
    """The next bytes; none at the end. Like a stream of asyncio, but with nothing left to close after it."""
    loop = asyncio.get_running_loop()
    while True:
        ready = asyncio.Event()
        loop.add_reader(fd, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(fd)
        with suppress(BlockingIOError):
            return os.read(fd, _CHUNK)


async def _answer(control: socket.socket) -> tuple[int | None, str]:
    """The script's exit code, and what kept it from running. Raises _Unwatched."""
    loop = asyncio.get_running_loop()
    data = b""
    with suppress(ConnectionError):
        while chunk := await loop.sock_recv(control, _CHUNK):
            data += chunk
    code, ended, problem = data.decode("utf-8", "replace").partition("\n")
    if not ended:
        raise _Unwatched
    return int(code) if code else None, problem


class _MemoryFile:
    """A file in memory, read from its beginning."""

    def __init__(self, content: bytes) -> None:
        self.fd = os.memfd_create("evald")
        try:
            view = memoryview(content)
            while view:
                view = view[os.write(self.fd, view) :]
            os.lseek(self.fd, 0, os.SEEK_SET)
        except BaseException:
            os.close(self.fd)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)
