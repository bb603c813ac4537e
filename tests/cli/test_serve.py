"""`evald serve` starts fast, says where it is, drains, and ends with the right code."""

import contextlib
import json
import os
import re
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.attempts import attempts
from tests.forks import Fork
from tests.thorough import first_of

from evald import Client, EvaldError, Evaluation
from evald_server.dev_certificates import make_certificates

# The turn waits until the test lets it go, so that nothing depends on how fast the machine is.
WAITING = """
import asyncio, pathlib
import evald

async def wait(ctx):
    pathlib.Path({started!r}).touch()
    while not pathlib.Path({release!r}).exists():
        await asyncio.sleep(0.01)
    return True

waiting = evald.define_evaluator(type="acme.waiting", kind=evald.ASSERTION, evaluate=wait)
"""
TURN = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]


class Served:
    """A running server. ready: the line it printed."""

    def __init__(self, process: "Fork | subprocess.Popen[str]") -> None:
        assert process.stdout
        self.process = process
        self.ready = process.stdout.readline()
        self.addresses = re.findall(r"127\.0\.0\.1:\d+", self.ready)


Serve = Callable[..., "contextlib.AbstractContextManager[Served]"]


@pytest.fixture
def serve(evald_command: str, environment: Any) -> Serve:
    @contextlib.contextmanager
    def start(*arguments: str, **extra: str) -> Iterator[Served]:
        with Fork(evald_command, "serve", *arguments, environment=environment(extra)) as process:
            try:
                yield Served(process)
            finally:
                process.kill()

    return start


@pytest.fixture
def serve_anew(evald_command: str, environment: Any) -> Serve:
    """As `serve`, with an interpreter of its own: what it takes to start and to end is under test."""

    @contextlib.contextmanager
    def start(*arguments: str) -> Iterator[Served]:
        with subprocess.Popen(
            [evald_command, "serve", *arguments],
            env=environment({}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                yield Served(process)
            finally:
                process.kill()

    return start


ANY_PORT = ("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0")


def _wait_until(holds: Callable[[], bool]) -> None:
    """Another process's doing: polled, for at most 30 s."""
    give_up = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < give_up, "not within 30 s"
        time.sleep(0.01)


def _processor_seconds(pid: int) -> float:
    times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, times)) / os.sysconf("SC_CLK_TCK")


def _is_ready(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}/readyz", timeout=30) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError):
        return False


def test_it_is_ready_soon_on_ports_of_its_own_choice(serve_anew: Serve) -> None:
    # Of processor time, which other processes take away from nobody: 1 s as a rule.
    for attempt in attempts(2.0):
        with serve_anew(*ANY_PORT) as server:
            attempt.seconds = _processor_seconds(server.process.pid)
            assert len(server.addresses) == 2, server.ready
            assert not any(address.endswith(":0") for address in server.addresses)
            with Client(server.addresses[0]) as client:
                assert client.evaluate(TURN, ["response-length"]).passed
            assert _is_ready(server.addresses[1])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_signal_ends_it_with_0_and_one_line_of_output(serve_anew: Serve, number: signal.Signals) -> None:
    with serve_anew(*ANY_PORT) as server:
        server.process.send_signal(number)
        stdout, stderr = server.process.communicate(timeout=60)
    assert server.process.returncode == 0, stderr
    assert server.ready.count("\n") == 1
    assert not stdout
    assert "Traceback" not in stderr


@pytest.fixture
def waiting(tmp_path: Path) -> tuple[str, Path, Path]:
    """A plugin whose evaluator waits: its path, the file that says it has begun, the file that lets it go."""
    started, release = tmp_path / "started", tmp_path / "release"
    plugin = tmp_path / "waiting.py"
    plugin.write_text(WAITING.format(started=str(started), release=str(release)))
    return str(plugin), started, release


def _call_in_background(address: str) -> tuple[threading.Thread, list[Evaluation | EvaldError]]:
    outcome: list[Evaluation | EvaldError] = []

    def call() -> None:
        with Client(address) as client:
            try:
                outcome.append(client.evaluate(TURN, ["acme.waiting"]))
            except EvaldError as problem:
                outcome.append(problem)

    thread = threading.Thread(target=call)
    thread.start()
    return thread, outcome


def test_sigterm_lets_open_calls_finish_and_refuses_new_ones(
    serve: Serve, waiting: tuple[str, Path, Path]
) -> None:
    plugin, started, release = waiting
    with serve(*ANY_PORT, "--plugin", plugin) as server:
        grpc, http = server.addresses
        thread, outcome = _call_in_background(grpc)
        _wait_until(started.exists)
        server.process.send_signal(signal.SIGTERM)
        _wait_until(lambda: not _is_ready(http))
        with Client(grpc) as client, pytest.raises(EvaldError) as refused:
            client.evaluate(TURN, ["response-length"], timeout=30)
        assert refused.value.code == "UNAVAILABLE"
        assert server.process.poll() is None
        release.touch()
        thread.join(60)
        assert server.process.wait(60) == 0
    (evaluation,) = outcome
    assert isinstance(evaluation, Evaluation), evaluation
    assert evaluation.passed


def test_a_drain_ends_with_its_grace(serve: Serve, waiting: tuple[str, Path, Path]) -> None:
    """Though the call goes on: the test lets it go only afterwards."""
    plugin, started, release = waiting
    with serve(*ANY_PORT, "--plugin", plugin, EVALD_DRAIN_GRACE="0.2") as server:
        thread, outcome = _call_in_background(server.addresses[0])
        _wait_until(started.exists)
        server.process.send_signal(signal.SIGTERM)
        # Less than the 10 s of grace that there are by default.
        assert server.process.wait(9) == 0
        release.touch()
        thread.join(60)
    assert len(outcome) == 1


def test_a_second_signal_ends_it_at_once(serve: Serve, waiting: tuple[str, Path, Path]) -> None:
    plugin, started, release = waiting
    with serve(*ANY_PORT, "--plugin", plugin, EVALD_DRAIN_GRACE="60") as server:
        thread, _ = _call_in_background(server.addresses[0])
        _wait_until(started.exists)
        server.process.send_signal(signal.SIGTERM)
        _wait_until(lambda: not _is_ready(server.addresses[1]))
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(30) == -signal.SIGTERM
        release.touch()
        thread.join(60)


def test_the_command_line_goes_before_the_environment_and_that_before_the_file(
    serve: Serve, tmp_path: Path
) -> None:
    config = tmp_path / "evald.toml"
    config.write_text('listen = "127.0.0.1:1"\nhttp = "127.0.0.1:1"\nreflection = false\n')
    with serve("--config", str(config), "--listen", "127.0.0.1:0", EVALD_HTTP="") as server:
        assert len(server.addresses) == 1
        assert "HTTP" not in server.ready


@pytest.mark.parametrize(
    ("arguments", "extra", "complaint"),
    [
        pytest.param(["--listen", "50051"], {}, "--listen: got '50051', wanted HOST:PORT", id="no host"),
        pytest.param(["--listen", "0.0.0.0:0"], {}, "insecure_public", id="public without protection"),
        pytest.param([], {"EVALD_MAX_MESSAGES": "many"}, "EVALD_MAX_MESSAGES", id="bad variable"),
        pytest.param(["--config", "none.toml"], {}, "none.toml", id="no config file"),
        pytest.param(["--plugin", "none.py"], {}, 'Evaluator plugin "none.py" not found', id="no plugin"),
        pytest.param(["--data-dir", "/dev/null/x"], {}, "/dev/null/x", id="no directory"),
    ],
)
def test_what_cannot_be_served_ends_with_2(
    evald: Any, arguments: list[str], extra: dict[str, str], complaint: str
) -> None:
    done = evald("serve", *ANY_PORT, *arguments, **extra)
    assert done.returncode == 2
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr
    assert not done.stdout


@pytest.mark.parametrize("option", ["--listen", "--http"])
def test_a_port_that_is_taken_ends_with_2_and_advice(evald: Any, server_process: Any, option: str) -> None:
    taken = server_process.grpc if option == "--listen" else server_process.http
    done = evald("serve", *ANY_PORT, option, taken)
    assert done.returncode == 2
    assert taken in done.stderr
    assert "Port 0 picks a free one" in done.stderr


def test_the_log_is_json_where_no_terminal_is(serve: Serve, tmp_path: Path) -> None:
    plugin = tmp_path / "boom.py"
    plugin.write_text(
        "import evald\n"
        "def boom(ctx):\n    raise RuntimeError('why')\n"
        "boom = evald.define_evaluator(type='acme.boom', kind=evald.ASSERTION, evaluate=boom)\n"
    )
    with serve(*ANY_PORT, "--plugin", str(plugin)) as server:
        with Client(server.addresses[0]) as client:
            evaluation = client.evaluate(TURN, ["acme.boom"])
        server.process.send_signal(signal.SIGTERM)
        _, stderr = server.process.communicate(timeout=60)
    entries = [json.loads(line) for line in stderr.splitlines()]
    (entry,) = [entry for entry in entries if entry["level"] == "error"]
    error = evaluation.results[0].error
    assert error
    assert error.metadata["incident"] in entry["message"]
    assert "RuntimeError: why" in entry["exception"]


def test_the_settings_are_listed_with_their_variables(evald: Any) -> None:
    from evald_server.config import Settings

    done = evald("serve", "--settings")
    assert done.returncode == 0
    for name in Settings.model_fields:
        assert f"EVALD_{name.upper()}" in done.stdout


@pytest.mark.parametrize("secured", first_of(["plaintext", "TLS", "client certificates"], 1))
def test_health_finds_the_port_by_the_settings_of_the_server(
    evald: Any, serve: Serve, tmp_path: Path, secured: str
) -> None:
    settings: dict[str, str] = {}
    if secured != "plaintext":
        # The certificate does not name the address that the command asks.
        make_certificates(tmp_path, ["evald.example"], days=1)
        settings = {
            "EVALD_TLS_CERT_FILE": str(tmp_path / "server.pem"),
            "EVALD_TLS_KEY_FILE": str(tmp_path / "server.key"),
        }
    if secured == "client certificates":
        settings |= {
            "EVALD_TLS_CLIENT_CA_FILE": str(tmp_path / "ca.pem"),
            "EVALD_TLS_CLIENT_AUTH": "require",
        }
    everywhere = {"EVALD_METRICS_PUBLIC": "true", "EVALD_DRAIN_DELAY": "60"}
    with serve("--listen", "127.0.0.1:0", "--http", "0.0.0.0:0", **settings, **everywhere) as served:
        (http,) = re.findall(r"HTTP on (0\.0\.0\.0:\d+)", served.ready)
        asked = {**settings, **everywhere, "EVALD_HTTP": http, "http_proxy": "http://127.0.0.1:1"}
        for option, said in (((), "ok\n"), (("--ready",), "ready\n")):
            done = evald("health", *option, **asked)
            assert (done.returncode, done.stdout) == (0, said), done.stderr
        served.process.terminate()
        deadline = time.monotonic() + 30
        while (done := evald("health", "--ready", **asked)).returncode == 0:
            assert time.monotonic() < deadline
        assert (done.returncode, done.stdout) == (1, "not ready\n")
        assert evald("health", **asked).returncode == 0
        served.process.kill()
        served.process.wait()
    done = evald("health", **asked)
    assert done.returncode == 4
    assert f"{http}/healthz: Connection refused" in done.stderr


@pytest.mark.parametrize("address", ["", "127.0.0.1:0"])
def test_health_needs_a_port_that_is_known(evald: Any, address: str) -> None:
    done = evald("health", "--http", address)
    assert done.returncode == 2
    assert f"http: got {address!r}, wanted the address of the HTTP port" in done.stderr
