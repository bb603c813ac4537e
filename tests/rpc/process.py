"""A server as its users start it, in a process of its own, that a test may signal, starve or kill."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_EVALD = str(Path(sys.executable).with_name("evald"))


class ServerProcess:
    """A running `evald serve`. grpc, http: its addresses; pid: its id."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout
        self.process = process
        self.pid = process.pid
        ready = process.stdout.readline()
        addresses = re.findall(r"127\.0\.0\.1:\d+", ready)
        assert len(addresses) == 2, f"not ready: {ready!r}"
        self.grpc, self.http = addresses

    def log(self) -> str:
        """What it wrote to standard error; call it when it has ended."""
        assert self.process.stderr
        return self.process.stderr.read()


@contextmanager
def server_process(
    *arguments: str, preexec_fn: Callable[[], Any] | None = None, **environment: str
) -> Iterator[ServerProcess]:
    """A server on free ports. environment: of the server, besides the tester's own without EVALD_*."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("EVALD_")}
    process = subprocess.Popen(
        [_EVALD, "serve", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", *arguments],
        env=inherited | {"EVALD_WEB": ""} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=preexec_fn,  # noqa: PLW1509 - a limit of the process under test
    )
    try:
        yield ServerProcess(process)
    finally:
        process.kill()
        process.communicate()
