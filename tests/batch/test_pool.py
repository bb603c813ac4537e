"""The pool by itself: places, and the ends of processes."""

import asyncio
import gc
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any, TypeAlias

import pytest
import uvloop

from evald_server.batch.pool import Pool
from evald_server.batch.process import BatchProcess, Job
from evald_server.batch.rules import Rules
from evald_server.engine.plan import Limits, Plan
from evald_server.engine.planner import Planner
from evald_server.engine.registry import Origin, Registry
from evald_server.evaluators import BUILT_INS

from ..rpc.live import CONTAINS, request, spec
from .batches import Message, gone

_RULES = Rules(Limits(), fail_open=False, max_messages=100, auto={}, log=("auto", "warning"))
_SPECS = (CONTAINS.SerializeToString(),)

_FOUR = Message()
for _ in range(4):
    _FOUR.items.add(item_id="one", context=request().context)
FOUR = _FOUR.SerializeToString()


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


@asynccontextmanager
async def pool(*, size: int = 1, its_version: str = version("evald"), **options: Any) -> AsyncIterator[Pool]:
    """A pool whose processes are worth it for every item."""
    made = Pool(_RULES, its_version, size, after=0, **options)
    try:
        yield made
    finally:
        await made.aclose()


async def started(made: Pool) -> BatchProcess:
    """A process of the pool that has room for another message than the one it is given next."""
    async with asyncio.timeout(30):
        while (process := await made.place(1)) is None:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.01)
    return process


def job_of(made: Pool, plan: Plan) -> Job:
    job = made.job(plan, _SPECS, b"")
    assert job is not None
    return job


def test_who_waits_longest_gets_the_next_place(run: Run) -> None:
    async def main() -> None:
        plan = planner().plan(_SPECS)
        async with pool() as made:
            process = await started(made)
            assert await made.place(1) is process
            # It holds two now, and more than that it never gets.
            waiting = [asyncio.create_task(made.place(1)) for _ in range(3)]
            await asyncio.sleep(0)
            waiting[0].cancel()
            for _ in range(2):
                report = await process.evaluate(job_of(made, plan), FOUR, 0, brief=False)
                assert report is not None
                assert (report.end, report.verdicts[1], report.left) == (4, 4, [])
            assert await asyncio.gather(*waiting[1:]) == [process, process]
            assert process.held == 2

    run(main())


def test_a_place_given_to_one_who_has_just_gone_away_is_free_again(run: Run) -> None:
    async def main() -> None:
        async with pool() as made:
            process = await started(made)
            await made.place(1)
            waiting = asyncio.create_task(made.place(1))
            await asyncio.sleep(0)
            made._free(process)
            waiting.cancel()
            assert isinstance(
                (await asyncio.gather(waiting, return_exceptions=True))[0], asyncio.CancelledError
            )
            assert process.held == 1

    run(main())


def test_a_message_is_evaluated_from_any_item_on(run: Run) -> None:
    async def main() -> None:
        plan = planner().plan(_SPECS)
        async with pool() as made:
            process = await started(made)
            report = await process.evaluate(job_of(made, plan), FOUR, 3, brief=False)
            assert report is not None
            assert (report.end, report.verdicts[1], [counts[1] for counts in report.sums.counts]) == (
                4,
                1,
                [1] * len(plan.evaluators),
            )

    run(main())


def test_those_who_wait_are_told_when_the_last_process_is_gone(run: Run) -> None:
    async def main() -> None:
        plan = planner().plan(_SPECS)
        async with pool() as made:
            process = await started(made)
            os.kill(process.pid, signal.SIGSTOP)
            await made.place(1)
            answers = [process.evaluate(job_of(made, plan), FOUR, 0, brief=False) for _ in range(2)]
            waiting = asyncio.create_task(made.place(1))
            await asyncio.sleep(0)
            os.kill(process.pid, signal.SIGKILL)
            assert await asyncio.gather(*answers) == [None, None]
            assert await waiting is None
            # Another one is not started at once: what killed this one may kill that one too.
            assert await made.place(1) is None
            assert not made.processes
            assert await process.evaluate(job_of(made, plan), FOUR, 0, brief=False) is None

    run(main())


def test_an_idle_process_ends(run: Run) -> None:
    async def main() -> None:
        async with pool(idle_seconds=0.2) as made:
            process = await started(made)
            plan = planner().plan(_SPECS)
            assert await process.evaluate(job_of(made, plan), FOUR, 0, brief=False)
            await gone(process.pid)
            assert not made.processes
            assert (await started(made)).pid != process.pid

    run(main())


def test_a_process_that_does_not_answer_is_killed(run: Run) -> None:
    async def main() -> None:
        async with pool(silent_seconds=0.3) as made:
            process = await started(made)
            os.kill(process.pid, signal.SIGSTOP)
            plan = planner().plan(_SPECS)
            assert await process.evaluate(job_of(made, plan), FOUR, 0, brief=False) is None
            await gone(process.pid)

    run(main())


def test_a_process_of_another_version_is_not_used(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with pool(its_version="0.0.1") as made:
            async with asyncio.timeout(30):
                while "restart it" not in caplog.text:
                    assert await made.place(1) is None
                    await asyncio.sleep(0.02)
            assert not made.processes

    with caplog.at_level("WARNING", "evald.batch"):
        run(main())
    assert "this server is 0.0.1" in caplog.text


def test_no_more_processes_than_allowed(run: Run) -> None:
    async def main() -> None:
        async with pool(size=2) as made:
            first = await started(made)
            await made.place(1)
            waiting = [asyncio.create_task(made.place(1)) for _ in range(9)]
            others = {process async for process in _placed(waiting[:2])}
            assert len(others | {first}) == 2
            assert len(made.processes) == 2
            for task in waiting:
                task.cancel()

    run(main())


async def _placed(waiting: list["asyncio.Task[BatchProcess | None]"]) -> AsyncIterator[BatchProcess]:
    async with asyncio.timeout(30):
        for task in waiting:
            process = await task
            assert process is not None
            yield process


def test_a_plan_that_only_the_server_has_is_left_to_it_as_a_whole(run: Run) -> None:
    async def main() -> None:
        plan = planner().plan(_SPECS)
        other = planner().plan((spec("is-json").SerializeToString(),))
        async with pool() as made:
            process = await started(made)
            job = job_of(made, plan)
            lying = job._replace(work=job.work._replace(announced=tuple(other.template.specs)))
            report = await process.evaluate(lying, FOUR, 1, brief=False)
            assert report is not None
            assert (report.end, report.left, report.answers) == (4, [1, 2, 3], b"")

    run(main())


def test_batches_of_one_plan_share_a_job_that_ends_with_the_plan(run: Run) -> None:
    async def main() -> None:
        plan = planner().plan(_SPECS)
        async with pool() as made:
            process = await started(made)
            job = job_of(made, plan)
            assert made.job(plan, _SPECS, b"") is job
            await process.evaluate(job, FOUR, 0, brief=False)
            del plan
            gc.collect()  # the planner, which keeps plans, and its registry know each other
            assert process._closing == [job.number]
            assert not made._jobs

    run(main())
