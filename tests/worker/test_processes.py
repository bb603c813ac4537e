"""Workers as their users run them: whoever is killed, they are back by themselves; told to stop, they finish."""

import os
import queue
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..forks import Fork
from ..ports import free_address

HERE = Path(__file__).parent
# A user is promised 10 s after a restart of the server; other tests run beside this one.
BACK_SECONDS = 20.0


class Process:
    """A script of this folder. Its output is read as it comes."""

    def __init__(self, script: str, *arguments: str, **environment: str) -> None:
        reading, writing = os.pipe()
        self._output = open(reading, encoding="utf-8")  # noqa: PTH123, SIM115 - closed when it has ended
        self.process = Fork(
            str(HERE / script),
            *arguments,
            environment={"PATH": "/usr/bin:/bin", "PYTHONUNBUFFERED": "1", **environment},
            stdout=writing,
            stderr=writing,
        )
        os.close(writing)
        self.seen: list[str] = []
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self._output:
            self._lines.put(line)

    def line(self, text: str, seconds: float = 40.0) -> str:
        """The next line that has this in it."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no {text!r} within {seconds:g}s after {self.seen}") from None
            self.seen.append(line)
            if text in line:
                return line

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._output.close()


class Processes:
    """Those of one test."""

    def __init__(self) -> None:
        self._started: list[Process] = []

    def registry(self, listen: str | None = None, **environment: str) -> tuple[Process, str]:
        process = self._start(Process("registry_process.py", listen or free_address(), **environment))
        return process, process.line("ready").split()[1]

    def worker(self, way: str, server: str) -> Process:
        return self._start(Process("worker_process.py", way, server))

    def _start(self, process: Process) -> Process:
        self._started.append(process)
        return process

    def end(self) -> None:
        for process in self._started:
            process.end()


@pytest.fixture(name="processes")
def _processes() -> Iterator[Processes]:
    processes = Processes()
    yield processes
    processes.end()


@pytest.mark.parametrize(("way", "sign"), [("connect", "connected"), ("serve", "renewed")])
def test_a_worker_is_back_after_the_server_was_killed_and_started_again(
    processes: Processes, way: str, sign: str
) -> None:
    server, address = processes.registry()
    worker = processes.worker(way, address)
    server.line(sign)
    server.end()
    time.sleep(1)  # a server takes some time to start again, and the worker's attempts fail meanwhile
    server, _ = processes.registry(address)
    server.line(sign, BACK_SECONDS)
    assert worker.process.poll() is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_worker_that_is_told_to_stop_finishes_its_task(
    processes: Processes, number: signal.Signals
) -> None:
    server, address = processes.registry(SECONDS_OF_TASK="1")
    worker = processes.worker("connect", address)
    server.line("given")
    worker.line("began")
    worker.process.send_signal(number)
    server.line("draining")
    server.line("completed verdict=1")
    assert worker.process.wait(timeout=30) == 0
    worker.line("stopped")


def test_a_listening_worker_that_is_told_to_stop_gives_its_lease_back(processes: Processes) -> None:
    server, address = processes.registry()
    worker = processes.worker("serve", address)
    server.line("renewed")
    worker.process.send_signal(signal.SIGTERM)
    server.line("deregistered")
    assert worker.process.wait(timeout=30) == 0


def test_the_second_signal_ends_a_worker_at_once(processes: Processes) -> None:
    server, address = processes.registry(SECONDS_OF_TASK="60")
    worker = processes.worker("connect", address)
    server.line("given")
    worker.line("began")
    worker.process.send_signal(signal.SIGTERM)
    server.line("draining")
    worker.process.send_signal(signal.SIGTERM)
    assert worker.process.wait(timeout=30) == -signal.SIGTERM


def test_a_worker_says_what_it_does_without_any_setting_up(processes: Processes) -> None:
    _, address = processes.registry()
    worker = processes.worker("connect", address)
    assert "acme.slow 1.0.0" in worker.line("connected to")
