"""Tasks of a plugin that listens and claims EvaluateStream go over one call; what one of them does hurts no other."""

import asyncio
from collections import Counter
from typing import Any

import grpc
import pytest

import evald
from evald.plugin.v1 import task_pb2

from ..rpc.live import request, run, serving, until
from .scripted import PASSED, WORD, Listening, Refused, active, code_of, listening, register

LOOPBACK = ["127.0.0.1/32"]
STREAMS = [task_pb2.CAPABILITY_EVALUATE_STREAM, task_pb2.CAPABILITY_CANCEL]
BRIEF = {"timeout": {"nanos": 200_000_000}}


def streaming(*types: str, **fields: Any) -> Any:
    """A plugin that claims EvaluateStream."""
    return listening(*types, **({"capabilities": STREAMS} | fields))


def test_all_tasks_go_over_one_call_and_are_answered_in_any_order() -> None:
    async def main() -> None:
        begun: list[str] = []

        async def last_first(task: task_pb2.EvaluationTask) -> task_pb2.EvaluationOutput:
            begun.append(task.task_id)
            place = len(begun)
            await until(lambda: len(begun) == 8)
            await asyncio.sleep((8 - place) / 100)
            return task_pb2.EvaluationOutput(verdict=1, reason=task.context.messages[-1].text)

        async with serving(remote_allowed=LOOPBACK) as live, streaming("acme.word") as plugin:
            plugin.behave = last_first
            await register(live, plugin)
            answers = await asyncio.gather(
                *(live.unary(request(WORD, answer=f"answer {number}")) for number in range(8))
            )
            said = [answer.summary.results[0].reason for answer in answers]
            assert said == [f"answer {number}" for number in range(8)]
            assert plugin.streams == 1
            assert not plugin.metadata, "no call of its own for any of them"
            assert len({task.task_id for task in plugin.tasks}) == 8

    run(main())


@pytest.mark.parametrize("why", ["not claimed", "large"])
def test_a_call_of_its_own_is_made_where_the_stream_is(why: str) -> None:
    async def main() -> None:
        capabilities = STREAMS if why == "large" else STREAMS[1:]
        answer = "x" * (2 << 20) if why == "large" else "hello"
        async with (
            serving(remote_allowed=LOOPBACK) as live,
            streaming("acme.word", capabilities=capabilities) as plugin,
        ):
            await register(live, plugin)
            assert await code_of(live, answer=answer) == ""
            assert (plugin.streams, len(plugin.metadata)) == (0, 1)

    run(main())


def test_the_time_and_the_trace_of_the_call_go_with_the_task() -> None:
    async def main() -> None:
        async with serving(remote_allowed=LOOPBACK) as live, streaming("acme.word") as plugin:
            await register(live, plugin)
            trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
            await live.unary(request(WORD), timeout=7, metadata=[("traceparent", trace)])
            (task,) = plugin.tasks
            assert 5 < task.timeout.ToNanoseconds() / 1e9 < 7
            assert dict(task.trace_context) == {"traceparent": trace}

    run(main())


def test_a_caller_that_goes_away_cancels_its_task_and_no_other() -> None:
    async def main() -> None:
        release = asyncio.Event()

        async def waits(_task: task_pb2.EvaluationTask) -> task_pb2.EvaluationOutput:
            await release.wait()
            return PASSED

        async with serving(remote_allowed=LOOPBACK) as live, streaming("acme.word") as plugin:
            plugin.behave = waits
            await register(live, plugin)
            stays = asyncio.create_task(code_of(live))
            await until(lambda: len(plugin.tasks) == 1)
            goes = asyncio.create_task(code_of(live))
            await until(lambda: len(plugin.tasks) == 2)
            goes.cancel()
            await until(lambda: plugin.cancelled == 1)
            assert plugin.given_up == [plugin.tasks[1].task_id]
            release.set()
            assert await stays == ""
            assert plugin.streams == 1
            await until(lambda: not live.app.remotes.directory.instances["listening-1"].active)

    run(main())


def test_a_task_that_is_late_is_a_timeout_and_its_late_answer_is_dropped() -> None:
    async def main() -> None:
        release = asyncio.Event()

        async def stubborn(_task: task_pb2.EvaluationTask) -> task_pb2.EvaluationOutput:
            while not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    continue
            return PASSED

        async with serving(remote_allowed=LOOPBACK) as live, streaming("acme.word") as plugin:
            plugin.behave = stubborn
            await register(live, plugin)
            assert await code_of(live, **BRIEF) == "TIMEOUT"
            await until(lambda: plugin.given_up)
            release.set()
            assert {await code_of(live) for _ in range(3)} == {""}
            assert plugin.streams == 1

    run(main())


def test_a_task_whose_stream_breaks_is_tried_once_more_elsewhere_and_the_stream_opened_anew() -> None:
    async def main() -> None:
        broken: list[task_pb2.EvaluationTask] = []

        async def breaks_once(task: task_pb2.EvaluationTask) -> task_pb2.EvaluationOutput:
            # The budget for retries is a fifth of the calls.
            if len(one.tasks) + len(two.tasks) >= 6 and not broken:
                broken.append(task)
                raise Refused(grpc.StatusCode.UNAVAILABLE)
            return PASSED

        async with (
            serving(remote_allowed=LOOPBACK) as live,
            streaming("acme.word", behave=breaks_once) as one,
            streaming("acme.word", behave=breaks_once) as two,
        ):
            await register(live, one, "one")
            await register(live, two, "two")
            assert {await code_of(live) for _ in range(12)} == {""}
            assert one.streams + two.streams == 3
            tried = [task for task in one.tasks + two.tasks if task.task_id == broken[0].task_id]
            assert sorted(task.attempt for task in tried) == [1, 2]
            assert len(one.tasks) + len(two.tasks) == 13

    run(main())


LIES: dict[str, tuple[dict[str, Any], str]] = {
    "an id that was never given": ({"answers_as": "mine"}, "CONTRACT_VIOLATION"),
    "garbage": ({"raw": b"\xff\xff"}, "CONTRACT_VIOLATION"),
    "too large": ({"raw": b"\x12\xff\xff\xff\x07" + bytes(17 << 20)}, "CONTRACT_VIOLATION"),
}


@pytest.mark.parametrize(("lie", "expected"), LIES.values(), ids=LIES)
def test_a_lie_is_a_violation_and_the_next_task_is_none_the_worse(lie: dict[str, Any], expected: str) -> None:
    async def main() -> None:
        async with serving(remote_allowed=LOOPBACK) as live, streaming("acme.word") as plugin:
            await register(live, plugin)
            for name, value in lie.items():
                setattr(plugin, name, value)
            assert await code_of(live, timeout={"seconds": 5}) == expected
            for name, value in lie.items():
                setattr(plugin, name, type(value)() if name == "answers_as" else None)
            assert await code_of(live) == ""

    run(main())


def test_a_plugin_that_claims_what_it_has_not_is_asked_without() -> None:
    async def main() -> None:
        async with (
            serving(remote_allowed=LOOPBACK) as live,
            streaming("acme.word", has_stream=False) as plugin,
        ):
            await register(live, plugin)
            assert await code_of(live) == "CONTRACT_VIOLATION"
            assert {await code_of(live) for _ in range(3)} == {""}
            assert len(plugin.metadata) == 3

    run(main())


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (grpc.StatusCode.INTERNAL, "EVALUATOR_EXCEPTION"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "EVALUATOR_BUSY"),
        (grpc.StatusCode.UNAVAILABLE, "REMOTE_UNAVAILABLE"),
    ],
    ids=lambda one: getattr(one, "name", one),
)
def test_the_status_that_a_stream_ends_with_is_that_of_its_tasks(
    code: grpc.StatusCode, expected: str
) -> None:
    async def refuses(_task: task_pb2.EvaluationTask) -> task_pb2.EvaluationOutput:
        raise Refused(code)

    async def main() -> None:
        async with serving(remote_allowed=LOOPBACK) as live, streaming("acme.word", behave=refuses) as plugin:
            await register(live, plugin)
            assert await code_of(live) == expected

    run(main())


def test_many_calls_at_once_each_get_their_own_answer() -> None:
    async def picks(task: task_pb2.EvaluationTask) -> task_pb2.EvaluationOutput:
        await asyncio.sleep(0)
        return task_pb2.EvaluationOutput(verdict=1, reason=task.context.messages[-1].text)

    async def main() -> None:
        async with (
            serving(remote_allowed=LOOPBACK, remote_max_queued=1000) as live,
            streaming("acme.word", behave=picks, max_concurrency=32) as plugin,
        ):
            await register(live, plugin)
            # A connection takes 100 calls at a time.
            for _ in range(5):
                answers = await asyncio.gather(
                    *(live.unary(request(WORD, answer=f"answer {number}")) for number in range(80))
                )
                said = Counter(answer.summary.results[0].reason for answer in answers)
                assert said == Counter(f"answer {number}" for number in range(80))
            assert plugin.streams == 1

    run(main())


def test_a_worker_that_stops_finishes_its_tasks_and_does_not_wait_for_the_stream() -> None:
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
                    (name,) = live.app.remotes.directory.instances
                    await active(live, name)
                    call = asyncio.create_task(code_of(live))
                    await begun.wait()
                assert await call == ""

    begun = asyncio.Event()
    run(main())


def test_a_worker_that_is_only_dialled_does_not_wait_for_the_stream_either() -> None:
    async def main() -> None:
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

    run(main())


def test_a_server_that_stops_lets_go_of_its_plugins() -> None:
    async def main() -> None:
        async with streaming("acme.word") as plugin:
            async with serving(remote_allowed=LOOPBACK) as live:
                await register(live, plugin)
                assert await code_of(live) == ""
            await until(lambda: not _open_calls(plugin))

    run(main())


def _open_calls(plugin: Listening) -> list[Any]:
    return [task for task in asyncio.all_tasks() if "_evaluate_stream" in repr(task.get_coro())]
