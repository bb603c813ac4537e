"""Batch processes come when they are worth it, and go without taking anything with them."""

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from evald.evaluator import define_evaluator
from evald.result import Kind
from evald.v1 import evaluation_service_pb2
from evald_server.auth.principal import Role
from evald_server.engine.registry import Origin

from ..auth.keyring import bearer, guarded, make_key
from ..loop import run
from ..processes import server_process
from ..rpc.live import CONTAINS, Live, request, serving, until
from .batches import Message, Response, gone, helped, send, serving_with
from .test_equality import answers_of

_OPEN = evaluation_service_pb2.BatchOpen(evaluators=[CONTAINS])


def message(first: int, count: int, *, opens: bool = False) -> bytes:
    """Items `first` and following; every third fails."""
    made = Message(open=_OPEN if opens else None)
    for number in range(first, first + count):
        made.items.add(
            item_id=f"i{number}", context=request(answer="bye" if number % 3 == 0 else "hello").context
        )
    return made.SerializeToString()


def assert_complete(responses: Sequence[Response], count: int) -> None:
    """Every item is answered once, and rightly, and the summary says so."""
    assert answers_of(responses).keys() == {f"i{number}" for number in range(count)}
    for answer in (answer for response in responses for answer in response.answers):
        assert answer.summary.success == (int(answer.item_id[1:]) % 3 != 0), answer
    summary = responses[-1].summary
    failed = len(range(0, count, 3))
    assert (summary.item_count, summary.failed_count, summary.passed_count) == (count, failed, count - failed)
    contains = summary.evaluators["contains"]
    assert (contains.failed_count, contains.passed_count) == (failed, count - failed)


def children() -> set[int]:
    """Ids of the processes that this one has started."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError):  # the thread has ended meanwhile
            found.update(map(int, (task / "children").read_text().split()))
    return found


def stream(live: Live) -> Any:
    return live.channel.stream_stream("/evald.v1.EvaluationService/EvaluateBatch")


async def test_a_principal_with_many_batches_is_followed_by_others_at_once(tmp_path: Path) -> None:
    file, ended = tmp_path / "keys.toml", list[str]()
    callers = {name: bearer(make_key(file, name, Role.CALLER)) for name in ("greedy", "other")}
    async with guarded(file, batch_processes=1) as live:
        pool = live.app.batch_processes

        async def batch(name: str, count: int) -> None:
            call = stream(live)(iter([message(0, count, opens=True)]), metadata=callers[name])
            assert_complete([Response.FromString(data) async for data in call], count)
            ended.append(name)

        await batch("greedy", 1100)
        await until(lambda: pool.processes)
        os.kill(pool.processes[0], signal.SIGSTOP)
        batches = [asyncio.create_task(batch("greedy", 64)) for _ in range(20)]
        await until(lambda: len(pool._waiters) == 18)
        batches.append(asyncio.create_task(batch("other", 64)))
        await until(lambda: len(pool._waiters) == 19)
        os.kill(pool.processes[0], signal.SIGCONT)
        await asyncio.gather(*batches)
        # Behind the two that the process had already, and the one whose turn it was.
        assert ended[1:].index("other") <= 4


async def test_a_small_batch_starts_none_and_a_large_one_uses_them() -> None:
    async with serving(batch_processes=2) as live:
        before = children()
        assert_complete(await send(live, [message(0, 1000, opens=True)]), 1000)
        assert children() == before
        assert_complete(await send(live, [message(0, 1100, opens=True)]), 1100)
        await until(lambda: live.app.batch_processes.processes)
        assert set(live.app.batch_processes.processes) <= children() - before
        assert_complete(await send(live, [message(0, 1100, opens=True)]), 1100)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_process_that_is_killed_loses_and_doubles_nothing(
    processes: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with serving_with(processes) as live:
            victim, *others = live.app.batch_processes.processes
            # It is given messages, and never gets to answer them.
            os.kill(victim, signal.SIGSTOP)
            sent = [message(number * 50, 50, opens=not number) for number in range(20)]
            call = asyncio.create_task(send(live, sent))
            await until(lambda: _held(live, victim))
            os.kill(victim, signal.SIGKILL)
            assert_complete(await call, 1000)
            assert live.app.batch_processes.processes == others
            await gone(victim)

    with caplog.at_level("WARNING", "evald.batch"):
        run(main())
    assert re.search(r"batch process \d+ ended unexpectedly \(exit code -9\)", caplog.text)


def _held(live: Live, pid: int) -> bool:
    """Whether it has been given as much as it gets at a time."""
    return any(
        process.worker.pid == pid and process.slots == 2 for process in live.app.batch_processes._ready
    )


async def test_a_caller_that_goes_away_takes_nothing_along() -> None:
    async with serving_with(1) as live:
        (pid,) = live.app.batch_processes.processes
        before = asyncio.all_tasks()
        os.kill(pid, signal.SIGSTOP)
        call = stream(live)(iter([message(n * 50, 50, opens=not n) for n in range(20)]))
        await until(lambda: _held(live, pid))
        call.cancel()
        await until(lambda: live.app._rpc.open_streams == 0)
        os.kill(pid, signal.SIGCONT)
        assert_complete(await send(live, [message(0, 300, opens=True)]), 300)
        assert live.app.batch_processes.processes == [pid]
        await until(lambda: not _named(asyncio.all_tasks() - before, "_Batch"))


def _named(tasks: Iterable[asyncio.Task[Any]], name: str) -> list[asyncio.Task[Any]]:
    return [task for task in tasks if name in repr(task)]


async def test_a_caller_that_reads_slowly_holds_up_nobody_else() -> None:
    async with serving_with(1) as live:
        slow = stream(live)()
        for number in range(30):
            # As much as the server takes without being read.
            try:
                async with asyncio.timeout(2):
                    await slow.write(message(number * 500, 500, opens=not number))
            except TimeoutError:
                break
        assert_complete(await send(live, [message(0, 300, opens=True)]), 300)
        slow.cancel()


async def test_a_plan_that_changes_during_a_batch_holds_from_then_on() -> None:
    async with serving_with(1) as live:
        registry = live.app.registry

        async def sent() -> AsyncIterator[bytes]:
            yield message(0, 100, opens=True)
            await until(lambda: len(found) == 100)
            registry.set_auto("is-json", {})
            yield message(100, 100)
            await until(lambda: len(found) == 200)
            plugin = define_evaluator(type="polite", kind=Kind.ASSERTION, evaluate=lambda _: True, auto=True)
            registry.register(plugin, Origin.PLUGIN)
            yield message(200, 100)

        found: dict[str, list[str]] = {}
        async for data in stream(live)(sent()):
            for answer in Response.FromString(data).answers:
                found[answer.item_id] = [result.type for result in answer.summary.results]
        of = [found[f"i{number}"] for number in range(300)]
        assert of[:100] == [["contains"]] * 100
        assert of[100:200] == [["contains", "is-json"]] * 100
        assert of[200:] == [["contains", "is-json", "polite"]] * 100


def test_they_end_with_the_server_that_stops() -> None:
    async def main() -> list[int]:
        async with serving_with(2) as live:
            return live.app.batch_processes.processes

    async def all_gone(pids: Iterable[int]) -> None:
        for pid in pids:
            await gone(pid)

    pids = run(main())
    assert len(pids) == 2
    assert not set(pids) & children()
    run(all_gone(pids))


async def test_they_end_with_the_server_that_is_killed_and_not_before() -> None:
    with server_process(EVALD_BATCH_PROCESSES="1", EVALD_LOG_FORMAT="json") as server:
        async with grpc.aio.insecure_channel(server.grpc) as channel:
            call: Any = channel.stream_stream("/evald.v1.EvaluationService/EvaluateBatch")
            assert [data async for data in call(iter([message(0, 2000, opens=True)]))]
        # The first line of its log.
        assert server.process.stderr is not None
        started = await asyncio.to_thread(server.process.stderr.readline)
        (pid,) = map(int, re.findall(r"batch process (\d+) started", started))
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(pid, number)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await gone(pid)
    await gone(pid)


async def test_the_server_does_not_wait_for_a_process_to_start() -> None:
    async with serving(batch_processes=1) as live:
        pool = live.app.batch_processes
        pool.after = pool.least = 0
        assert_complete(await send(live, [message(0, 50, opens=True)]), 50)
        assert pool.processes == []
        await helped(live, 1)
