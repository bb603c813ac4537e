"""A watch survives broken connections: every event is shown once, and the exit code is that of the run."""

import json
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from evald.v1 import result_pb2
from evald_server.cli import server_client
from evald_server.cli.parser import parse

from .broken_runs import FakeRuns, events, serve_runs

# How the first watch ends: after how many events, and with which status; None is OK.
BREAKS: list[tuple[int, grpc.StatusCode | None]] = [
    *((after, grpc.StatusCode.UNAVAILABLE) for after in (1, 3, 6)),
    (4, None),
]


@pytest.fixture(params=BREAKS, ids=[f"{code.name if code else 'OK'} after {after}" for after, code in BREAKS])
def broken(request: Any) -> Iterator[tuple[FakeRuns, str]]:
    """A server whose first watch breaks, and its address."""
    runs = FakeRuns(*request.param)
    with serve_runs(runs) as address:
        yield runs, address


def test_a_broken_watch_goes_on_after_the_last_event(evald: Any, broken: tuple[FakeRuns, str]) -> None:
    runs, address = broken
    done = evald("runs", "watch", "r1", "--json", "--server", address)
    assert done.returncode == 1, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["sequence"] for line in found] == [event.sequence for event in events()]
    assert {line["runId"] for line in found} == {"r1"}
    assert runs.asked == [0, runs.broken_after]


def test_the_conversation_stands_beside_the_results_and_then_the_tables(
    evald: Any, broken: tuple[FakeRuns, str]
) -> None:
    done = evald("runs", "watch", "r1", "--server", broken[1])
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    expected = [
        ("user       I need a slot.", "turn 1, final, 812 ms"),
        ('assistant  calls find_slots({"day": "friday"})', "✗ reference: does not match"),
        ("assistant  Friday at ten.", ""),
        ("Assertions", ""),
    ]
    for line, (said, result) in zip(lines, expected, strict=False):
        assert line.startswith(said)
        assert line.rstrip().endswith(result)
    assert "│ reference │ ✗ Fail │" in done.stdout
    assert lines[-1] == "FAILED  regex: does not match"
    assert "\x1b" not in done.stdout


def test_a_terminal_shows_each_turn_once(evald: Any) -> None:
    with serve_runs(FakeRuns(99, None)) as address:
        done = evald(
            "runs", "watch", "r1", "--server", address, TTY_COMPATIBLE="1", FORCE_COLOR="1", COLUMNS="120"
        )
    assert done.returncode == 1, done.stderr
    last = done.stdout.rpartition("\x1b[2K")[2]
    assert done.stdout.count("turn 1, final, 812 ms") == 1
    assert "✗" in last
    assert "FAILED" in last


def test_nobody_there_is_said_at_once(evald: Any) -> None:
    done = evald("runs", "watch", "r1", "--server", "127.0.0.1:1")
    assert done.returncode == 4
    assert done.stderr.startswith("evald: no evald server answers at 127.0.0.1:1 (")
    assert done.stderr.endswith(
        "refused)\n  hint: start a server with evald serve, or name another server with --server\n"
    )


def test_hostile_text_cannot_act_on_the_terminal(evald: Any) -> None:
    runs = FakeRuns(99, None)
    runs.text = "\x1b]0;owned\x07\n::error::\u202eevil [bold]markup[/bold]"
    with serve_runs(runs) as address:
        done = evald("runs", "watch", "r1", "--server", address)
    assert "\x1b" not in done.stdout
    assert "\u202e" not in done.stdout
    assert "[bold]markup[/bold]" in done.stdout
    assert not any(line.startswith("::") for line in done.stdout.splitlines())


@pytest.mark.parametrize("broken_after", [0, 3], ids=["before the first event", "later"])
async def test_a_lost_server_is_looked_for_from_its_loss_on(
    broken_after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long nothing was said before. With no time at all the first loss is survived, and no other."""
    monkeypatch.setattr(server_client, "LOST_SECONDS", 0.0)
    seen: list[int] = []
    with serve_runs(FakeRuns(broken_after, grpc.StatusCode.UNAVAILABLE)) as address:
        async with server_client.open_server(parse(["runs", "list", "--server", address])) as store:
            await store.run("r1")
            ended = await store.watch("r1", lambda event: seen.append(event.sequence))
    assert ended.verdict == result_pb2.VERDICT_FAILED
    assert seen == [event.sequence for event in events()]
