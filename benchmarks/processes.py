"""Child processes of the benchmarks: servers, and workers that count their operations in a given time."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

ROOT: Final = Path(__file__).parents[1]


class Process:
    """A child process that prints a line when it is ready. The end of the `with` block kills it."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None, setup: str | None = None
    ) -> None:
        began = time.perf_counter()
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={name: value for name, value in os.environ.items() if not name.startswith("EVALD_")}
            | dict(environment or {}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if setup is not None:
            self.write_line(setup)
        self.first_line = self.read_line()
        self.start_seconds = time.perf_counter() - began

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def resident_bytes(self) -> int:
        """The private memory of the process, without shared pages."""
        fields = dict(
            line.split(":", 1) for line in Path(f"/proc/{self.pid}/smaps_rollup").read_text().splitlines()[1:]
        )
        return sum(int(fields[name].split()[0]) for name in ("Private_Clean", "Private_Dirty")) << 10

    @property
    def cpu_seconds(self) -> float:
        """The processor time that its living threads have used."""
        tasks = Path(f"/proc/{self.pid}/task").iterdir()
        return 1e-9 * sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)

    @property
    def children(self) -> int:
        """The number of its living child processes."""
        return sum(
            len((task / "children").read_text().split()) for task in Path(f"/proc/{self.pid}/task").iterdir()
        )

    def read_line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{' '.join(map(str, self._process.args))} ended without a word")  # type: ignore[arg-type]
        return line.strip()

    def write_line(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def finish(self, seconds: float) -> None:
        """Close its standard input, and wait up to `seconds` until it ends by itself."""
        self._process.communicate(timeout=seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()


class Server(Process):
    """A gRPC server on a free port, which its first output line contains."""

    @property
    def port(self) -> int:
        found = re.search(r"127\.0\.0\.1:(\d+)", self.first_line)
        if found is None:
            raise RuntimeError(f"got {self.first_line!r}, wanted a line with 127.0.0.1:PORT")
        return int(found[1])

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"


class BenchmarkWorker(Process):
    """A process that repeats one operation for a given number of seconds."""

    def per_second(self, seconds: float) -> float:
        self.write_line(str(seconds))
        done, took = json.loads(self.read_line())
        return float(done / took)


def evald(**settings: Any) -> Server:
    """Start `evald serve` with only these settings."""
    environment = {f"EVALD_{name.upper()}": str(value) for name, value in ({"web": ""} | settings).items()}
    command = [
        sys.executable,
        "-m",
        "evald_server",
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--http",
        "127.0.0.1:0",
    ]
    return Server(command, environment)


def completions(seconds: float = 0.0) -> Server:
    """Start an OpenAI-compatible endpoint that answers after `seconds`."""
    return Server([sys.executable, "-m", "benchmarks.completions", str(seconds)])


def echo(payloads: Path) -> Server:
    """Start the echo server with the gRPC options of an evald server."""
    from evald_server.app import server_options
    from evald_server.config import load_settings

    options = json.dumps(server_options(load_settings(environ={})))
    return Server([sys.executable, "-m", "benchmarks.echo", str(payloads), options])
