"""Runs Python programs in forks of a process that has imported evald: they start in a tenth of the time."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from threading import Lock, Thread
from typing import IO, Any, Final, Self


class ForkServer:
    """The client of the fork server, which starts with the first program. environment: of its imports.

    shared: the address of one that another process has started, and ends.
    """

    def __init__(self, environment: Mapping[str, str], shared: str = "") -> None:
        self._environment = dict(environment)
        self._shared = shared
        self._folder = Path(shared).parent if shared else Path(tempfile.mkdtemp(prefix="evald-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._starting = Lock()

    @property
    def address(self) -> Path:
        """The address of its Unix socket."""
        return self._folder / "socket"

    def start(self) -> None:
        """Start it, without waiting until it listens. Does nothing the second time."""
        with self._starting:
            if not self._process and not self._shared:
                program = str(Path(__file__).with_name("fork_server.py"))
                command = [sys.executable, "-P", program, str(self.address)]
                self._process = subprocess.Popen(command, env=self._environment, stdin=subprocess.PIPE)

    def connect(self) -> socket.socket:
        """Return a connection for one program, when the fork server listens."""
        self.start()
        patience = time.monotonic() + 120
        while True:
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.connect(str(self.address))
            except (FileNotFoundError, ConnectionRefusedError):
                connection.close()
                assert not self._process or self._process.poll() is None, "the fork server has ended"
                assert time.monotonic() < patience, "the fork server does not listen"
                time.sleep(0.02)
            else:
                return connection

    def close(self) -> None:
        """End the fork server, unless it is shared. The programs that it has started continue."""
        if self._process:
            self._process.communicate()  # closes its input
        if not self._shared:
            shutil.rmtree(self._folder)


FORKS: Final[list[ForkServer]] = []
"""The one that tests share, once `conftest.py` has made it."""


class Fork:
    """A running `python ARGUMENTS`, with the interface of a text-mode `subprocess.Popen`.

    arguments: "-m", "-c" or a path first. environment: all of it. streams: standard input, output and error, each a
    file, a descriptor, or PIPE or DEVNULL of `subprocess`; None is this process's own. descriptors: the soft and hard
    limit of open files.
    """

    def __init__(
        self,
        *arguments: str,
        environment: Mapping[str, str],
        directory: Path | None = None,
        stdin: int | IO[Any] = subprocess.DEVNULL,
        stdout: int | IO[Any] | None = subprocess.PIPE,
        stderr: int | IO[Any] | None = subprocess.PIPE,
        descriptors: tuple[int, int] | None = None,
        server: ForkServer | None = None,
    ) -> None:
        self.returncode: int | None = None
        theirs: list[int] = []
        ours: list[IO[str] | None] = []
        opened: list[int] = []
        for number, stream in enumerate((stdin, stdout, stderr)):
            mine = None
            if stream == subprocess.PIPE:
                read, write = os.pipe()
                mine = open(read if number else write, "r" if number else "w", encoding="utf-8")  # noqa: PTH123, SIM115
                opened.append(write if number else read)
                theirs.append(opened[-1])
            elif stream == subprocess.DEVNULL:
                opened.append(os.open(os.devnull, os.O_RDWR))
                theirs.append(opened[-1])
            elif stream is None:
                theirs.append(number)
            else:
                theirs.append(stream if isinstance(stream, int) else stream.fileno())
            ours.append(mine)
        self.stdin, self.stdout, self.stderr = ours
        request = {
            "arguments": arguments,
            "environment": dict(environment),
            "directory": str(directory or Path.cwd()),
            "descriptors": descriptors,
        }
        self._connection = (server or FORKS[0]).connect()
        socket.send_fds(self._connection, [b"\n"], theirs)
        self._connection.sendall(json.dumps(request).encode() + b"\n")
        for descriptor in opened:
            os.close(descriptor)
        self._answers = b""
        self.pid = self._number(None)

    def _number(self, timeout: float | None) -> int:
        """Return the next number from the fork server. Raises TimeoutError."""
        self._connection.settimeout(timeout)
        while b"\n" not in self._answers:
            try:
                received = self._connection.recv(100)
            except BlockingIOError:  # as with a timeout of 0
                raise TimeoutError from None
            assert received, "the fork server has ended"
            self._answers += received
        number, _, self._answers = self._answers.partition(b"\n")
        return int(number)

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, and return the exit code."""
        if self.returncode is None:
            try:
                self.returncode = self._number(timeout)
            except TimeoutError:
                raise subprocess.TimeoutExpired("python", timeout or 0) from None
            self._connection.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal. Does nothing after the end."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended since; the fork server has not said so yet
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for the end, and return the rest of output and errors."""
        texts = ["", ""]

        def read(index: int, stream: IO[str] | None) -> None:
            if stream and not stream.closed:
                with stream:
                    texts[index] = stream.read()

        if self.stdin:
            self.stdin.close()
        readers = [Thread(target=read, args=pair) for pair in enumerate((self.stdout, self.stderr))]
        for reader in readers:
            reader.start()
        self.wait(timeout)
        for reader in readers:
            reader.join()
        return texts[0], texts[1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream:
                stream.close()
        self.wait()


def run(*arguments: str, stdin: str = "", **options: Any) -> "subprocess.CompletedProcess[str]":
    """Run `python ARGUMENTS` to its end, for at most 120 s. options: of `Fork`."""
    with tempfile.TemporaryDirectory() as folder:
        # Files, because none of them can be full while the others are waited for.
        paths = [Path(folder, name) for name in ("stdin", "stdout", "stderr")]
        paths[0].write_text(stdin, encoding="utf-8")
        with paths[0].open() as given, paths[1].open("w") as output, paths[2].open("w") as errors:
            program = Fork(*arguments, stdin=given, stdout=output, stderr=errors, **options)
        try:
            code = program.wait(120)
        finally:
            program.kill()
        texts = [path.read_text(encoding="utf-8") for path in paths[1:]]
    return subprocess.CompletedProcess(arguments, code, *texts)
