"""The example plugins and callers in other languages, with a real server between them."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import evald

from ..ports import free_address
from .examples import ENVIRONMENT, LANGUAGES, Language, Plugin, run, started

pytestmark = pytest.mark.interop

# How long a plugin of either kind may take to be back after the server was killed: 10 s, and as much again for a
# machine on which other steps of CI compile.
BACK_SECONDS = 20


class Server:
    """A running `evald serve` that lets plugins on the loopback interface register."""

    def __init__(self, command: str, data: Path, **settings: str) -> None:
        self.address = free_address()
        self._command = command
        self._environment = ENVIRONMENT | {
            "EVALD_REMOTE_ALLOWED": "127.0.0.0/8",
            # What goes away is noticed by its connection, long before a ping would tell.
            "EVALD_REMOTE_PING_SECONDS": "60",
            "EVALD_DATA_DIR": str(data),
            **settings,
        }
        self.start()

    def start(self) -> None:
        """Start it, the second time at the same address."""
        self.process = subprocess.Popen(
            [self._command, "serve", "--listen", self.address, "--http", ""],
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdout
        ready = self.process.stdout.readline()
        found = re.search(r"127\.0\.0\.1:\d+", ready)
        assert found, f"wanted a line with the address, got {ready!r}"
        self.address = found[0]

    def end(self, signal_: signal.Signals = signal.SIGTERM) -> None:
        """Stop or kill it."""
        self.process.send_signal(signal_)
        try:
            self.process.wait(timeout=20)
        finally:
            self.process.kill()
            self.process.communicate()


@contextmanager
def serving(command: str, data: Path, **settings: str) -> Iterator[Server]:
    server = Server(command, data, **settings)
    try:
        yield server
    finally:
        server.end()


@pytest.fixture(scope="module")
def server(evald_command: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(evald_command, tmp_path_factory.mktemp("data")) as server:
        yield server


def until(holds: Callable[[], Any], seconds: float = BACK_SECONDS) -> None:
    """Wait until something holds; an error of the call means that it does not yet."""
    end = time.monotonic() + seconds
    while True:
        problem: Exception | None = None
        try:
            if holds():
                return
        except evald.EvaldError as error:
            problem = error
        assert time.monotonic() < end, f"not within {seconds:g}s; last error: {problem}"
        time.sleep(0.05)


def is_active(client: evald.Client, type_: str) -> bool:
    states = {entry.type: entry.state for entry in client.evaluator_types()}
    return states.get(type_) == "active"


def conversation(answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": "Well?"}, {"role": "assistant", "content": answer}]


def check(client: evald.Client, language: Language) -> None:
    """Its plugin says what it should, through the server."""
    specs = [{"type": language.assertion, "config": dict(language.config)}, language.metric]
    assert client.evaluate(conversation(language.good), specs).passed
    bad = client.evaluate(conversation(language.bad), specs)
    assert bad.verdict is evald.Verdict.FAILED, bad
    assert bad.metrics == {language.metric: pytest.approx(language.value)}


WAYS = ("connect", "register", "static")


@contextmanager
def plugged(
    way: str, language: Language, server: Server, evald_command: str, data: Path
) -> Iterator[tuple[Plugin, str]]:
    """The plugin, known to a server in one of the three ways, and that server's address."""
    if way == "connect":
        with started(language, "--connect", server.address) as plugin:
            yield plugin, server.address
    elif way == "register":
        with started(language, "--listen", "127.0.0.1:0", "--register", server.address) as plugin:
            yield plugin, server.address
    else:
        with (
            started(language, "--listen", "127.0.0.1:0") as plugin,
            serving(evald_command, data, EVALD_REMOTE_TARGETS=plugin.listening()) as own,
        ):
            yield plugin, own.address


@pytest.mark.parametrize("way", WAYS)
def test_a_plugin_evaluates_through_the_server_until_it_stops(
    way: str, language: Language, server: Server, evald_command: str, tmp_path: Path
) -> None:
    with (
        plugged(way, language, server, evald_command, tmp_path) as (plugin, address),
        evald.Client(address) as client,
    ):
        until(lambda: is_active(client, language.assertion))
        check(client, language)

        wrong = run(language, [*language.caller, address, f'{language.assertion}={{"noSuchKey": 1}}'])
        assert wrong.returncode == 2, wrong
        assert "evaluators[0].config" in wrong.stderr

        assert plugin.terminate() == 0
        until(lambda: not is_active(client, language.assertion))


def test_callers_in_every_language_reach_plugins_in_every_language(
    language: Language, server: Server, built: dict[str, str | None]
) -> None:
    """This language's plugin, and the callers of all that are built."""
    with started(language, "--connect", server.address), evald.Client(server.address) as client:
        until(lambda: is_active(client, language.assertion))
        failing = f"{language.assertion}={json.dumps(language.caller_fails)}"
        for caller in (each for each in LANGUAGES if built.get(each.name, "not built") is None):
            ended = run(caller, [*caller.caller, server.address, language.metric])
            assert ended.returncode == 0, ended
            assert re.search(rf"PASSED +{re.escape(language.metric)} +value ", ended.stdout), ended.stdout
            ended = run(caller, [*caller.caller, server.address, failing, language.metric])
            assert ended.returncode == 1, ended
            assert re.search(rf"FAILED +{re.escape(language.assertion)} +score 0", ended.stdout), ended.stdout
            assert ended.stdout.splitlines()[-1].startswith("FAILED: ")


def test_a_caller_tells_a_good_turn_from_a_bad_one_from_a_bad_call(
    language: Language, server: Server
) -> None:
    good = run(language, [*language.caller, server.address])
    assert good.returncode == 0, good
    lines = good.stdout.splitlines()
    assert {line.split()[1] for line in lines[:-1]} == {"tool-use", "regex"}
    assert lines[-1] == "PASSED: All evaluators passed"

    bad = run(language, [*language.caller, server.address, 'contains={"text": "Porto"}', "response-length"])
    assert bad.returncode == 1, bad
    assert "value 79" in bad.stdout

    refused = run(language, [*language.caller, server.address, "regex", 'regex={"pattern": "("}'])
    assert refused.returncode == 2, refused
    assert "  evaluators[0].config.pattern: missing" in refused.stderr
    assert "  evaluators[1].config.pattern: RE2 does not accept the pattern: missing )" in refused.stderr

    nobody = run(language, [*language.caller, "127.0.0.1:1"])
    assert nobody.returncode == 2, nobody
    assert "unavailable" in nobody.stderr.lower()


@pytest.mark.parametrize("way", ["connect", "register"])
def test_a_plugin_is_back_by_itself_after_the_server_was_killed(
    way: str, language: Language, evald_command: str, tmp_path: Path
) -> None:
    with serving(evald_command, tmp_path) as server, plugged(way, language, server, "", tmp_path) as _:
        with evald.Client(server.address) as client:
            until(lambda: is_active(client, language.assertion))
        server.end(signal.SIGKILL)
        server.start()
        with evald.Client(server.address) as client:
            until(lambda: is_active(client, language.assertion))
            check(client, language)


def test_a_killed_plugin_is_missed_at_once(language: Language, server: Server) -> None:
    with evald.Client(server.address) as client:
        with started(language, "--connect", server.address) as plugin:
            until(lambda: is_active(client, language.assertion))
            os.kill(plugin.process.pid, signal.SIGKILL)
            until(lambda: not is_active(client, language.assertion))
        answer = client.evaluate(
            conversation(language.good), [{"type": language.assertion, "config": dict(language.config)}]
        )
        assert answer.verdict is evald.Verdict.ERROR
        assert answer.results[0].error.code == "REMOTE_UNAVAILABLE"
