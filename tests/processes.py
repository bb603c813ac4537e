"""Servers in processes of their own, which tests may signal or kill."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from .forks import Fork
from .isolation import ISOLATION

EVALD = str(Path(sys.executable).with_name("evald"))
ANY_PORT = "127.0.0.1:0"

# What a developer has set for terminal and server must not reach the commands under test.
_OWN = ("EVALD_", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_", "TERM")


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return this process's environment without variables that affect evald. extra: added to it."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(_OWN)}
    # The web port's default is one, and servers under test are many. A language would have argparse look for its
    # translation of each of its 200 texts in the file system, and messages under test be others.
    return kept | {"EVALD_WEB": "", "LANGUAGE": "C", "EVALD_CODE_ISOLATION": ISOLATION} | dict(extra or {})


class ServerProcess:
    """A running `evald serve`. grpc, http, web: its addresses, "127.0.0.1:PORT"; "" if it has none."""

    def __init__(self, process: "Fork | subprocess.Popen[str]", *, web: bool = False) -> None:
        assert process.stdout
        self.process = process
        self.pid = process.pid
        self.ready = process.stdout.readline() + (process.stdout.readline() if web else "")
        addresses = re.findall(r"127\.0\.0\.1:\d+", self.ready)
        assert addresses, f"not ready: {self.ready!r}"
        self.web = addresses.pop() if web else ""
        self.grpc, self.http = (*addresses, "")[:2]

    def log(self) -> str:
        """Return its standard error. Call it after the end."""
        assert self.process.stderr
        return self.process.stderr.read()


@contextmanager
def server_process(
    *arguments: str,
    descriptors: tuple[int, int] | None = None,
    stderr: int | None = subprocess.PIPE,
    **environment: str,
) -> Iterator[ServerProcess]:
    """Run a server on free ports, and kill it at the end. environment: added to the tester's.

    descriptors: its soft and hard limit of open files. stderr: where its log goes; a test that has it write more than
    64 KiB reads the pipe or takes another.
    """
    with Fork(
        *(EVALD, "serve", "--listen", ANY_PORT, "--http", ANY_PORT),
        *arguments,
        environment=clean_environment(environment),
        stderr=stderr,
        descriptors=descriptors,
    ) as process:
        try:
            yield ServerProcess(process, web="--web" in arguments)
        finally:
            process.kill()
