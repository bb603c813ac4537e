"""Workers can be killed, are bounded in number, and never outlive what they are for."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop

from evald_server.frames import write_frame
from evald_server.jsonschema import worker
from evald_server.jsonschema.check import NEWEST
from evald_server.jsonschema.pool import KillablePool, PoolBusy, TaskTimeout, WorkerDied

# A worker that does as it is told.
PROGRAM = """
import json, os, signal, sys, time
def send(value):
    data = json.dumps(value).encode()
    sys.stdout.buffer.write(len(data).to_bytes(4, "big") + data)
    sys.stdout.buffer.flush()
send(None)
while header := sys.stdin.buffer.read(4):
    task = json.loads(sys.stdin.buffer.read(int.from_bytes(header, "big")))
    signal.setitimer(signal.ITIMER_PROF, task["seconds"])
    if task["do"] == "spin":
        while True: pass
    if task["do"] == "sleep":
        time.sleep(60)
    if task["do"] == "exit":
        os._exit(3)
    signal.setitimer(signal.ITIMER_PROF, 0)
    send([os.getpid(), task.get("value")])
"""
COMMAND = [sys.executable, "-c", PROGRAM]
ECHO = {"do": "echo", "value": "ü" * 100_000}

Check = Callable[[KillablePool], Awaitable[None]]


def with_pool(check: Check, *, loop: Callable[..., Any] = asyncio.run, **options: Any) -> None:
    async def run() -> None:
        pool = KillablePool(COMMAND, **options)
        try:
            await check(pool)
        finally:
            await pool.aclose()
        assert pool.processes == []

    loop(run())


@pytest.mark.parametrize("loop", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_task_is_answered_by_a_process_that_is_used_again(loop: Callable[..., Any]) -> None:
    async def check(pool: KillablePool) -> None:
        assert pool.processes == [], "started before the first task"
        first = await pool.run(ECHO, 5)
        second = await pool.run(ECHO, 5)
        assert first == second == [pool.processes[0], ECHO["value"]]

    with_pool(check, loop=loop)


@pytest.mark.parametrize(
    ("do", "seconds"), [pytest.param("spin", 0.05, id="busy"), pytest.param("sleep", 0.01, id="asleep")]
)
@pytest.mark.parametrize("loop", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_task_over_its_time_is_killed_and_the_next_one_gets_a_new_process(
    loop: Callable[..., Any], do: str, seconds: float
) -> None:
    async def check(pool: KillablePool) -> None:
        before, _ = await pool.run(ECHO, 5)
        with pytest.raises(TaskTimeout):
            await pool.run({"do": do}, seconds)
        after, _ = await pool.run(ECHO, 5)
        assert after != before
        assert pool.processes == [after]

    with_pool(check, loop=loop, size=1)


def test_a_process_that_ends_by_itself_is_told_apart_and_replaced() -> None:
    async def check(pool: KillablePool) -> None:
        with pytest.raises(WorkerDied, match="3"):
            await pool.run({"do": "exit"}, 5)
        assert (await pool.run(ECHO, 5))[1] == ECHO["value"]

    with_pool(check, size=1)


def test_a_program_that_does_not_start_is_an_error_not_a_hang() -> None:
    async def run() -> None:
        pool = KillablePool([sys.executable, "-c", "raise SystemExit"])
        with pytest.raises(WorkerDied, match="did not start"):
            await pool.run(ECHO, 5)
        await pool.aclose()

    asyncio.run(run())


def test_cancelling_kills_the_process() -> None:
    async def check(pool: KillablePool) -> None:
        first, _ = await pool.run(ECHO, 5)
        task = asyncio.create_task(pool.run({"do": "sleep"}, 60))
        await asyncio.sleep(0.05)  # until the worker has the task; the result does not depend on it
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await pool.run(ECHO, 5))[0] != first

    with_pool(check, size=1)


def test_no_more_processes_run_than_the_size_and_no_more_tasks_wait_than_allowed() -> None:
    async def check(pool: KillablePool) -> None:
        tasks = [asyncio.create_task(pool.run(ECHO, 5)) for _ in range(7)]
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        refused = [outcome for outcome in outcomes if isinstance(outcome, PoolBusy)]
        answered = [outcome for outcome in outcomes if isinstance(outcome, list)]
        assert len(refused) + len(answered) == 7
        # Two places are taken when the third begins to wait, and four may wait.
        assert 1 <= len(refused) <= 3
        assert len({pid for pid, _ in answered}) <= 2
        assert len(pool.processes) <= 2

    with_pool(check, size=2, max_waiting=4)


def test_closing_ends_processes_at_work() -> None:
    async def run() -> None:
        pool = KillablePool(COMMAND)
        await pool.run(ECHO, 5)
        task = asyncio.create_task(pool.run({"do": "sleep"}, 60))
        await asyncio.sleep(0)  # until it has begun
        await pool.aclose()
        with suppress(WorkerDied):
            await task
        assert pool.processes == []

    asyncio.run(run())


def start_schema_worker() -> "subprocess.Popen[bytes]":
    process = subprocess.Popen(
        [sys.executable, "-P", str(Path(worker.__file__))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout
    assert process.stdout.read(8) == b"\0\0\0\4null"
    return process


def test_the_schema_worker_ends_with_the_server() -> None:
    with start_schema_worker() as process:
        assert process.stdin
        process.stdin.close()
        assert process.wait(timeout=10) == 0


def test_the_kernel_ends_a_schema_worker_that_nobody_watches() -> None:
    pair = {"$defs": {"a40": {"type": "string"}}, "$ref": "#/$defs/a0"}
    for level in range(40):
        below = {"$ref": f"#/$defs/a{level + 1}"}
        pair["$defs"][f"a{level}"] = {"anyOf": [below, below]}  # type: ignore[index]
    request = {"schema": json.dumps(pair), "draft": NEWEST, "text": "1", "seconds": 0.05}
    with start_schema_worker() as process:
        assert process.stdin
        write_frame(process.stdin, json.dumps(request).encode())
        assert process.wait(timeout=20) == -signal.SIGPROF
