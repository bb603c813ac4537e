"""Runs scripts: starts a launcher for each, limits its time and output, and leaves no process behind."""

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

# -I and -S: neither the operator's environment nor site-packages affect the launcher's imports.
_PROGRAM: Final = (
    "import sys; sys.path.append(sys.argv[1]); from evald_server.scripts.launcher import main; "
    "main(int(sys.argv[2]), int(sys.argv[3]))"
)

# An error shows 2,000 characters of at most four bytes each.
_STDERR_TAIL_BYTES: Final = 8000

_CHUNK: Final = 64 << 10
_WRITTEN_AT_ONCE: Final = 2 << 20

# Longest interval of polling for the launcher's end. After its answer a launcher ends by the first or second poll.
_LONGEST_PAUSE_SECONDS: Final = 0.1

# A launcher kills a tree within milliseconds, unless it is blocked in the kernel, which may take arbitrarily long.
_CLOSE_SECONDS: Final = 2.0


Launcher: TypeAlias = "subprocess.Popen[bytes]"


class LaunchRequest(NamedTuple):
    """The request to the launcher.

    file: absolute path of the program. argv: the arguments of bubblewrap if it isolates, then the program and its arguments.
    user: id of the user and group to run as; None for the server's own.
    limits: by the launcher's names.
    """

    file: str
    argv: Sequence[str]
    cwd: str
    environment: Mapping[str, str]
    limits: Mapping[str, int]
    user: int | None


class ScriptExit(NamedTuple):
    """The end of a script.

    code: its exit code, negative for a signal; None when it never ran.
    excess: the stream that exceeded its limit, "stdout" or "stderr"; the script was killed for that.
    problem: why it could not run. timed_out: it was killed because its time was over.
    seconds: its time limit.
    stderr: its last bytes.
    """

    code: int | None
    stdout: bytes = b""
    stderr: bytes = b""
    excess: str = ""
    problem: str = ""
    timed_out: bool = False
    seconds: float = 0.0


class _Excess(Exception):
    """A stream has exceeded its limit."""


class _LauncherKilled(Exception):
    """The launcher has ended without an answer, because it was killed."""


class ScriptProcesses:
    """Runs scripts and tracks their processes. Belongs to one event loop."""

    def __init__(self) -> None:
        self._controls: set[socket.socket] = set()
        self._launchers: set[Launcher] = set()
        self._reaping: set[asyncio.Task[None]] = set()

    async def run(
        self, request: LaunchRequest, payload: bytes, seconds: float, output_bytes: int
    ) -> ScriptExit:
        """Run a script. On timeout or cancellation, kill it with all its descendants.

        payload: its standard input, passed as a file in memory, so that the server need not wait for the script.
        output_bytes: limit of each of its two streams.
        """
        deadline = time.monotonic() + seconds
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self._controls.add(ours)
        process: Launcher | None = None
        try:
            with theirs, _MemoryFile() as stdin, _MemoryFile() as request_file:
                await stdin.write(payload)
                await request_file.write(marshal.dumps(request._asdict()))
                process = _start(stdin, request_file, theirs)
            self._launchers.add(process)
            with process.stdout or nullcontext(), process.stderr or nullcontext():
                ended = await _follow(process, ours, deadline - time.monotonic(), output_bytes)
            if ended.code is not None:
                await self._reap(process)
            return ended._replace(seconds=seconds)
        finally:
            # The launcher kills the script when this socket closes.
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


def _start(stdin: "_MemoryFile", request_file: "_MemoryFile", control: socket.socket) -> Launcher:
    """Start the launcher, which takes a millisecond or two.

    The event loop is not used for that: uvloop forks, which copies this process's page tables and makes gRPC prepare
    for running in the child. subprocess does neither.
    """
    words = (_ROOT, str(control.fileno()), str(request_file.fd))
    return subprocess.Popen(  # noqa: S603 - Python itself
        [sys.executable, "-I", "-S", "-c", _PROGRAM, *words],
        bufsize=0,
        stdin=stdin.fd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=(control.fileno(), request_file.fd),
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
        # The launcher answers last, when no process is left that could write.
        done, running = await asyncio.wait(
            tasks, timeout=max(0.0, seconds), return_when=asyncio.FIRST_EXCEPTION
        )
        problem, code = "", None
        excess = next((name for name, task in streams.items() if task.done() and task.exception()), "")
        # Also if only a stream is open: a process outside the tree may hold it, and its output is not complete.
        timed_out = bool(running) and not any(task.exception() for task in done)
        if answer.done() and not excess:
            try:
                code, problem = answer.result()
            except _LauncherKilled:
                problem = "its supervisor process was killed"
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return ScriptExit(code, bytes(stdout), bytes(stderr), excess, problem, timed_out)


async def _collect(pipe: IO[bytes] | None, into: bytearray, limit: int, kept: int) -> None:
    """Read to the end and keep the last bytes. Raises _Excess."""
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
    """Return the next bytes, b"" at the end. Unlike an asyncio stream, it leaves nothing to close."""
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
    """Return the script's exit code, and why it could not run. Raises _LauncherKilled."""
    loop = asyncio.get_running_loop()
    data = b""
    with suppress(ConnectionError):
        while chunk := await loop.sock_recv(control, _CHUNK):
            data += chunk
    code, ended, problem = data.decode("utf-8", "replace").partition("\n")
    if not ended:
        raise _LauncherKilled
    return int(code) if code else None, problem


class _MemoryFile:
    """A file in memory, whose reader starts at the beginning."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("evald")

    async def write(self, content: bytes) -> None:
        """Write the content in parts, so that the event loop is not blocked."""
        view, written = memoryview(content), 0
        while written < len(view):
            # pwrite does not move the file position.
            written += os.pwrite(self.fd, view[written : written + _WRITTEN_AT_ONCE], written)
            if written < len(view):
                await asyncio.sleep(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)
