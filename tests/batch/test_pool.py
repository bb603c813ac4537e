"""The pool by itself: places, and the ends of processes."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import pytest
import uvloop

from evald.v1 import evaluation_service_pb2
from evald_server.batch.chunk import ProcessConfig
from evald_server.batch.item_chunk import ItemChunk, ItemChunkResult
from evald_server.batch.pool import BatchPool, BatchProcess
from evald_server.engine.plan import PlanLimits
from evald_server.engine.planner import Planner
from evald_server.engine.registry import Origin, Registry
from evald_server.engine.run import SLICE_NANOS
from evald_server.evaluators import BUILT_INS
from evald_server.workers import ChildProcess

from ..rpc.live import CONTAINS, request, spec
from .batches import gone

_CONFIG = ProcessConfig(
    PlanLimits(), fail_open=False, max_messages=100, auto={}, log_format="auto", log_level="warning"
)
_SPECS = (CONTAINS.SerializeToString(),)

_ITEM = evaluation_service_pb2.BatchItem(item_id="one", context=request().context).SerializeToString()
# Its answer is as long as its id: a few hundred fill a result, before its time is up.
_WORDY = evaluation_service_pb2.BatchItem(item_id="x" * 8192, context=request().context).SerializeToString()


Run: TypeAlias = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a test's coroutine in one of the event loops that the server has."""
    found: Run = request.param
    return found


def planner() -> Planner:
    registry = Registry()
    for evaluator in BUILT_INS.values():
        registry.register(evaluator.definition(), Origin.BUILT_IN)
    return Planner(registry)


FOUR = ItemChunk(
    _SPECS, b"", planner().plan(_SPECS).template.specs, [_ITEM] * 4, brief=False, slice_nanos=SLICE_NANOS
)

Future: TypeAlias = "asyncio.Future[ItemChunkResult | None]"


@asynccontextmanager
async def pool(*, size: int = 1, **options: Any) -> AsyncIterator[BatchPool]:
    """A pool whose processes are worth it for every item."""
    made = BatchPool(_CONFIG, size, after=0, **options)
    try:
        yield made
    finally:
        await made.aclose()


async def submitted(made: BatchPool, chunk: ItemChunk = FOUR) -> Future:
    """The result to come of a chunk, as soon as there is a process."""
    async with asyncio.timeout(30):
        while (future := await made.submit(chunk, 1)) is None:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.01)
    return future


async def started(made: BatchPool) -> int:
    """Have the pool start a process, which is idle then. Its id."""
    assert await (await submitted(made)) is not None
    return made.processes[0]


async def test_a_process_holds_two_chunks_and_who_waits_longest_is_next() -> None:
    async with pool() as made:
        pid = await started(made)
        os.kill(pid, signal.SIGSTOP)
        held = [await submitted(made) for _ in range(2)]
        order: list[int] = []

        async def wait(number: int) -> None:
            future = await submitted(made)
            order.append(number)
            await future

        waiting = [asyncio.create_task(wait(number)) for number in range(4)]
        await asyncio.sleep(0.05)
        assert order == []
        waiting[0].cancel()
        os.kill(pid, signal.SIGCONT)
        for future in held:
            result = await future
            assert result is not None
            assert (result.end, len(result.answers), result.skipped) == (4, 4, [])
        await asyncio.gather(*waiting[1:])
        assert order == [1, 2, 3]


async def test_a_chunk_for_a_process_that_has_ended_since_it_was_promised_is_given_up_at_once() -> None:
    # One that was killed may not have exited, nor its other pipe be closed, when its end is seen.
    worker = await ChildProcess.start(("cat",), quiet=True)
    try:
        process = BatchProcess(worker)
        process.end()
        assert not worker.closed
        async with asyncio.timeout(10):
            assert await process.submit(FOUR) is None
    finally:
        await worker.end()


async def test_a_place_given_to_one_who_has_just_gone_away_is_free_again() -> None:
    async with pool() as made:
        await started(made)
        # Each has its place by the first step, in which it is cancelled.
        for _ in range(5):
            task = asyncio.create_task(made.submit(FOUR, 1))
            asyncio.get_running_loop().call_soon(task.cancel)
            await asyncio.gather(task, return_exceptions=True)
        held = [await submitted(made) for _ in range(2)]
        waiting = [asyncio.create_task(made.submit(FOUR, 1)) for _ in range(2)]
        await asyncio.gather(*held)
        # The places of the two are given to those who wait, of whom one goes away just now.
        waiting[0].cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        async with asyncio.timeout(10):
            for _ in range(5):
                assert await (await submitted(made)) is not None


async def test_a_result_has_bounded_bytes_and_says_where_it_ends() -> None:
    many = FOUR._replace(items=[_WORDY] * 1000)
    async with pool() as made:
        result = await (await submitted(made, many))
        assert result is not None
        assert 4 < result.end < 1000
        assert (result.end, result.skipped) == (len(result.answers), [])
        assert sum(map(len, result.answers)) < 3 << 20


async def test_a_costly_chunk_makes_way_for_those_of_other_callers() -> None:
    expected = "the quick brown fox " * 250
    slow = [
        spec("text-similarity", {"expected": expected, "measure": "bleu"}, name=f"slow {n}")
        for n in range(60)
    ]
    specs = tuple(one.SerializeToString() for one in slow)
    item = evaluation_service_pb2.BatchItem(context=request(answer=expected[::-1]).context)
    costly = ItemChunk(
        specs, b"", planner().plan(specs).template.specs, [item.SerializeToString()] * 256, True, 10**9
    )
    async with pool() as made:
        await started(made)
        result = await (await submitted(made, costly))
        assert result is not None
        assert 0 < result.end < 256
        assert (len(result.answers), result.skipped) == (result.end, [])


async def test_those_who_wait_are_told_when_the_last_process_is_gone() -> None:
    async with pool() as made:
        pid = await started(made)
        os.kill(pid, signal.SIGSTOP)
        held = [await submitted(made) for _ in range(2)]
        waiting = asyncio.create_task(made.submit(FOUR, 1))
        await asyncio.sleep(0)
        os.kill(pid, signal.SIGKILL)
        assert await asyncio.gather(*held) == [None, None]
        assert await waiting is None
        # Another one is not started at once: what killed this one may kill that one too.
        assert await made.submit(FOUR, 1) is None
        assert not made.processes


def test_a_process_that_is_killed_while_it_writes_loses_nothing(run: Run) -> None:
    async def main() -> None:
        many = FOUR._replace(items=[_WORDY] * 1000)
        async with pool() as made:
            pid = await started(made)
            future = await submitted(made, many)
            # It writes more than a pipe holds, and nobody reads while the event loop is held up.
            time.sleep(1)  # noqa: ASYNC251
            os.kill(pid, signal.SIGKILL)
            result = await future
            assert result is None
            await gone(pid)
            await asyncio.sleep(0.05)
            assert not made.processes

    run(main())


async def test_an_idle_process_ends() -> None:
    async with pool(idle_seconds=0.2) as made:
        pid = await started(made)
        await gone(pid)
        assert not made.processes
        assert await started(made) != pid


async def test_a_process_that_does_not_answer_is_killed() -> None:
    async with pool(silent_seconds=1.0) as made:
        pid = await started(made)
        os.kill(pid, signal.SIGSTOP)
        assert await (await submitted(made)) is None
        await gone(pid)


def test_a_process_of_another_version_is_not_used(
    run: Run, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evald_server.batch.pool.version", lambda _: "0.0.1")

    async def main() -> None:
        async with pool() as made:
            async with asyncio.timeout(30):
                while "restart it" not in caplog.text:
                    assert await made.submit(FOUR, 1) is None
                    await asyncio.sleep(0.02)
            assert not made.processes

    with caplog.at_level("WARNING", "evald.batch"):
        run(main())
    assert "this server runs 0.0.1" in caplog.text


async def test_no_more_processes_than_allowed() -> None:
    async with pool(size=2) as made:
        futures = [await submitted(made)]
        async with asyncio.timeout(30):
            while len(made.processes) < 2:
                futures += [await submitted(made) for _ in range(4)]
        futures += [await submitted(made) for _ in range(9)]
        assert len(made.processes) == 2
        assert None not in await asyncio.gather(*futures)


async def test_a_plan_that_only_the_server_has_is_left_to_it_as_a_whole() -> None:
    other = planner().plan((spec("is-json").SerializeToString(),))
    unknown = (spec("only-in-the-server").SerializeToString(),)
    async with pool() as made:
        for chunk in (FOUR._replace(announced=other.template.specs), FOUR._replace(specs=unknown)):
            left = await (await submitted(made, chunk))
            assert left is not None
            assert (left.end, list(left.skipped), left.answers) == (4, [0, 1, 2, 3], [])
        done = await (await submitted(made))
        assert done is not None
        assert not done.skipped
