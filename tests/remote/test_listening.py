"""Plugins that listen get each task in a call of its own; what one of them does hurts no other."""

import asyncio
from collections import Counter
from pathlib import Path

import evald
from evald.plugin.v1 import task_pb2

from ..loop import run
from ..rpc.live import request, serving, until
from .scripted import PASSED, WORD, active, code_of, listening, register, worker

LOOPBACK = ["127.0.0.1/32"]


async def test_a_caller_that_goes_away_cancels_its_task_and_no_other() -> None:
    release = asyncio.Event()

    async def waits(_task: task_pb2.EvaluationTask) -> task_pb2.EvaluationOutput:
        await release.wait()
        return PASSED

    async with serving(remote_allowed=LOOPBACK) as live, listening("acme.word") as plugin:
        plugin.behave = waits
        await register(live, plugin)
        stays = asyncio.create_task(code_of(live))
        await until(lambda: len(plugin.tasks) == 1)
        goes = asyncio.create_task(code_of(live))
        await until(lambda: len(plugin.tasks) == 2)
        goes.cancel()
        await until(lambda: plugin.cancelled == 1)
        release.set()
        assert await stays == ""
        await until(lambda: not live.app.remotes.instances.by_id["listening-1"].active)


async def test_a_lease_runs_out_beside_a_worker_that_has_none(tmp_path: Path) -> None:
    async with (
        serving(remote_allowed=LOOPBACK, data_dir=tmp_path) as live,
        worker(live, "acme.other", instance_id="dials"),
        listening("acme.word") as plugin,
    ):
        for _ in range(2):
            await register(live, plugin, ttl=2)
        store = live.app.remotes.leases._store
        assert len(await store.load()) == 1, "a new lease takes the place of the old one"
        await until(lambda: list(live.app.remotes.instances.by_id) == ["dials"])


async def test_many_calls_at_once_each_get_their_own_answer() -> None:
    async def picks(task: task_pb2.EvaluationTask) -> task_pb2.EvaluationOutput:
        await asyncio.sleep(0)
        return task_pb2.EvaluationOutput(verdict=1, reason=task.context.messages[-1].text)

    async with (
        serving(remote_allowed=LOOPBACK, remote_max_queued=1000) as live,
        listening("acme.word", behave=picks, max_concurrency=32) as plugin,
    ):
        await register(live, plugin)
        # A connection takes 100 calls at a time.
        for _ in range(5):
            answers = await asyncio.gather(
                *(live.unary(request(WORD, answer=f"answer {number}")) for number in range(80))
            )
            said = Counter(answer.summary.results[0].reason for answer in answers)
            assert said == Counter(f"answer {number}" for number in range(80))


def test_a_worker_that_stops_finishes_its_tasks() -> None:
    class Slow(evald.Evaluator):
        type = "acme.word"
        kind = evald.ASSERTION

        word: str = ""

        async def evaluate(self, ctx: evald.EvaluatorContext) -> evald.Result:
            begun.set()
            await asyncio.sleep(0.5)
            return evald.passed("in the end")

    async def main() -> None:
        async with serving(remote_allowed=LOOPBACK) as live:
            worker = evald.ListeningWorker(Slow, register=live.app.address, grace_seconds=30)
            async with asyncio.timeout(15):
                async with worker:
                    await worker.registered()
                    (name,) = live.app.remotes.instances.by_id
                    await active(live, name)
                    call = asyncio.create_task(code_of(live))
                    await begun.wait()
                assert await call == ""

    begun = asyncio.Event()
    run(main())


async def test_a_worker_that_is_only_dialled_stops_without_waiting() -> None:
    worker = evald.ListeningWorker(
        evald.define_evaluator(
            type="acme.word", kind=evald.ASSERTION, evaluate=lambda _: True, config_schema={}
        ),
        listen="127.0.0.1:0",
        grace_seconds=30,
    )
    async with asyncio.timeout(15), worker, serving(remote_targets=[worker.address]) as live:
        await active(live, f"static:{worker.address}")
        assert await code_of(live) == ""
        # Nobody has given back a lease: the server hears of it from the connection alone.
        await worker.__aexit__(None, None, None)
