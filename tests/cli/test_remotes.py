"""`evald remotes` shows an operator what a server knows of its plugins."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ..forks import Fork
from ..processes import clean_environment, server_process

ROOT = Path(__file__).parents[2]


def _plugin(server: str, name: str) -> Fork:
    """A plugin with an evaluator of this name."""
    return Fork(
        *("-m", "tests.remote.plugin_process", "connect", server, name),
        directory=ROOT,
        environment=clean_environment(),
        stderr=subprocess.DEVNULL,
    )


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A server with a worker, and a static target at which nothing listens."""
    with (
        server_process(stderr=subprocess.DEVNULL, EVALD_REMOTE_TARGETS="127.0.0.1:1") as server,
        _plugin(server.grpc, "acme.word") as plugin,
    ):
        try:
            assert plugin.stdout
            assert plugin.stdout.readline().startswith("connected")
            yield server.grpc
        finally:
            plugin.kill()


def test_the_instances_are_listed_with_what_an_operator_asks_for(evald: Any, address: str) -> None:
    done = evald("remotes", "--server", address, COLUMNS="200")
    assert done.returncode == 0, done.stderr
    connected, static = (
        next(line for line in done.stdout.splitlines() if start in line) for start in ("connect-", "static:")
    )
    for word in ("acme.word 1.0.0", "connected", "active", "0/16"):
        assert word in connected
    assert "pending" in static
    assert "no connection" in done.stdout
    assert "1 of 2 instances are active." in done.stdout


def test_json_has_all_of_it_and_a_type_can_be_asked_for(evald: Any, address: str) -> None:
    done = evald("remotes", "acme.word", "--json", EVALD_SERVER=address)
    (one,) = json.loads(done.stdout)["instances"]
    assert one["mode"] == "connected"
    assert one["state"] == "active"
    assert one["evaluatorTypes"] == [{"type": "acme.word", "version": "1.0.0"}]
    assert one["plugin"] == "acme.tests"
    assert one["maxConcurrency"] == 16
    assert "expireTime" not in one
    assert json.loads(evald("remotes", "acme.nope", "--json", EVALD_SERVER=address).stdout) == {
        "instances": [],
        "unofferedTypes": [],
    }


@pytest.mark.parametrize("flags", [(), ("--json",)], ids=["text", "json"])
def test_a_watch_prints_a_line_for_every_change(
    evald_command: str, environment: Any, address: str, flags: tuple[str, ...]
) -> None:
    arguments = ("remotes", "acme.watched", "--watch", "--server", address, *flags)
    with (
        Fork(evald_command, *arguments, environment=environment({}), stderr=None) as watch,
        _plugin(address, "acme.watched") as plugin,
    ):
        assert watch.stdout
        lines = [watch.stdout.readline()]
        plugin.kill()
        plugin.wait()
        lines.append(watch.stdout.readline())
        watch.kill()
    if flags:
        events = [json.loads(line) for line in lines]
        assert [event["event"] for event in events] == ["upserted", "removed"]
        assert events[0]["instance"]["state"] == "active"
    else:
        assert [re.sub(r"^[\d:]+ ", "", line).split()[0] for line in lines] == ["active", "gone"]
        assert f"connect-{plugin.pid}" in lines[0]


def test_types_say_that_they_are_remote_and_whether_they_are_there(evald: Any, address: str) -> None:
    done = evald("types", "--server", address)
    assert "[remote]" in done.stdout
    assert "runs: in another process; 1 live" in evald("types", "acme.word", "--server", address).stdout


def test_without_a_server_it_ends_with_4(evald: Any) -> None:
    done = evald("remotes", "--server", "127.0.0.1:1")
    assert done.returncode == 4
    assert "127.0.0.1:1" in done.stderr
    assert "or name another server with --server" in done.stderr
    assert os.linesep + os.linesep not in done.stderr


def test_a_server_without_remotes_says_so(evald: Any, server_process: Any) -> None:
    done = evald("remotes", "--server", server_process.grpc)
    assert "has no remote evaluators" in done.stdout
    assert json.loads(evald("remotes", "--json", "--server", server_process.grpc).stdout) == {
        "instances": [],
        "unofferedTypes": [],
    }
