"""Remote evaluators work wherever evaluators do: sessions, batches, combinators; and operators see what happens."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from evald.plugin.v1 import registry_service_pb2, task_pb2
from evald.v1 import evaluation_service_pb2, result_pb2, suite_service_pb2
from evald.v1.suite_service_pb2_grpc import SuiteServiceStub

from ..attempts import attempts
from ..loop import run
from ..rpc import suite_floor
from ..rpc.live import EVALUATION, request, serving, spec, until
from .scripted import WORD, Worker, active, answers, evaluator_type, hangs, listening, register, worker

LOOPBACK = ["127.0.0.1"]
ROOT = Path(__file__).parents[2]


async def length(task: task_pb2.EvaluationTask) -> task_pb2.EvaluationOutput:
    """Says how many messages it has seen."""
    return task_pb2.EvaluationOutput(verdict=1, score=1, reason=str(len(task.context.messages)))


async def test_each_turn_of_a_session_sends_the_conversation_so_far() -> None:
    async with serving() as live, worker(live, "acme.word", behave=length):
        opened = evaluation_service_pb2.EvaluateSessionRequest()
        opened.open.evaluators.append(WORD)
        frames = [opened]
        for number in range(1, 4):
            frame = evaluation_service_pb2.EvaluateSessionRequest()
            frame.turn.turn_id = number
            frame.turn.new_messages.add(role="user", text="hi")
            frame.turn.new_messages.add(role="assistant", text="hello")
            frames.append(frame)
        said = [
            (answer.turn_id, result.reason)
            for answer in await live.session(frames)
            for result in answer.event.results
        ]
        assert said == [(1, "2"), (2, "4"), (3, "6")]


@pytest.mark.parametrize(
    ("differs", "verdict"),
    [({"kind": 2}, 3), ({"schema": {"type": "object"}}, 3), ({"label": "Other words"}, 1)],
    ids=["metric", "schema", "label"],
)
async def test_a_type_that_has_changed_since_its_session_began_passes_nothing(
    differs: dict[str, Any], verdict: int
) -> None:
    async with serving() as live:
        stream = live.channel.stream_stream(EVALUATION + "EvaluateSession")()

        async def result_of_turn(number: int) -> result_pb2.EvaluationResult:
            turn = evaluation_service_pb2.EvaluateSessionRequest()
            turn.turn.turn_id = number
            turn.turn.new_messages.add(role="assistant", text="hello")
            await stream.write(turn.SerializeToString())
            results: list[result_pb2.EvaluationResult] = []
            while not results:
                frame = evaluation_service_pb2.EvaluateSessionResponse.FromString(await stream.read())
                results += frame.event.results
            return results[0]

        async with worker(live, "acme.word", behave=answers(verdict=2)):
            opened = evaluation_service_pb2.EvaluateSessionRequest()
            opened.open.evaluators.append(WORD)
            await stream.write(opened.SerializeToString())
            assert (await result_of_turn(1)).verdict == result_pb2.VERDICT_FAILED
        await until(lambda: not live.app.remotes.instances.by_id)
        async with worker(live, evaluator_type("acme.word", **differs), behave=answers(verdict=1)):
            result = await result_of_turn(2)
            assert result.verdict == verdict
            assert result.error.code == ("CONTRACT_VIOLATION" if verdict == 3 else "")
        stream.cancel()


@pytest.mark.parametrize("version", ["1.0.0", "2.0.0"])
@pytest.mark.parametrize("way", ["batch", "suite"])
async def test_where_an_assertion_has_become_a_metric_nothing_passes_any_more(way: str, version: str) -> None:
    async with serving() as live, AsyncExitStack() as stack:
        gating = await stack.enter_async_context(worker(live, "acme.word", behave=answers(verdict=2)))
        known = live.app.remotes.instances.by_id
        (session,) = known.values()

        async def replaced() -> None:
            await until(lambda: gating.tasks and not gating.running and not session.active)
            await gating.stop()
            await until(lambda: not known)
            metric = evaluator_type("acme.word", kind=2, version=version)
            await stack.enter_async_context(worker(live, metric, behave=answers(verdict=1, value=1)))

        async def items() -> AsyncIterator[bytes]:
            sent = evaluation_service_pb2.EvaluateBatchRequest(open={"evaluators": [WORD]})
            sent.items.add(item_id="before", context=request().context)
            yield sent.SerializeToString()
            await replaced()
            sent.ClearField("open")
            sent.items[0].item_id = "after"
            yield sent.SerializeToString()

        async def cases() -> AsyncIterator[suite_service_pb2.RunSuiteRequest]:
            yield suite_service_pb2.RunSuiteRequest(
                open=suite_floor.opened(WORD), cases=[suite_floor.recorded("before", "hello")]
            )
            await replaced()
            yield suite_service_pb2.RunSuiteRequest(cases=[suite_floor.recorded("after", "hello")])

        verdicts: dict[str, int] = {}
        if way == "batch":
            async for data in live.channel.stream_stream(EVALUATION + "EvaluateBatch")(items()):
                for answer in evaluation_service_pb2.EvaluateBatchResponse.FromString(data).answers:
                    is_error = answer.error.code == "INVALID_ITEM"
                    verdicts[answer.item_id] = suite_floor.ERROR if is_error else answer.summary.verdict
        else:
            async for response in SuiteServiceStub(live.channel).RunSuite(cases()):
                verdicts |= {result.case_id: result.verdict for result in response.results}
        assert verdicts == {"before": suite_floor.FAILED, "after": suite_floor.ERROR}


async def test_every_item_of_a_batch_has_its_own_answer() -> None:
    async def echo(task: task_pb2.EvaluationTask) -> task_pb2.EvaluationOutput:
        return task_pb2.EvaluationOutput(verdict=1, reason=task.context.messages[-1].text)

    async with serving() as live, worker(live, "acme.word", behave=echo, credit=20):
        batch = evaluation_service_pb2.EvaluateBatchRequest()
        batch.open.evaluators.append(WORD)
        for number in range(40):
            batch.items.add(item_id=str(number), context=request(answer=f"answer {number}").context)
        answers = [one for message in await live.batch([batch]) for one in message.answers]
        said = {one.item_id: one.summary.results[0].reason for one in answers}
        assert said == {str(number): f"answer {number}" for number in range(40)}


async def test_a_combinator_takes_remotes_and_keeps_their_errors_apart() -> None:
    async with (
        serving() as live,
        worker(live, "acme.word", instance_id="a"),
        worker(live, "acme.liar", instance_id="b", behave=answers(verdict=1, score=5)),
    ):
        children = [{"type": "acme.word"}, {"type": "acme.liar"}]
        both = spec("all-of", {"evaluators": children})
        either = spec("any-of", {"evaluators": children})
        broken, fine = (await live.unary(request(both, either))).summary.results
        assert broken.error.code == "UNEVALUABLE"
        assert fine.success


@pytest.mark.alone
async def test_a_caller_that_goes_away_cancels_the_call_of_a_listening_plugin_within_250_ms() -> None:
    async with serving(remote_allowed=LOOPBACK) as live, listening("acme.word", behave=hangs) as plugin:
        await register(live, plugin)
        for tried, attempt in enumerate(attempts(0.25), start=1):
            call = asyncio.create_task(live.unary(request(WORD)))
            await until(lambda: len(plugin.tasks) == tried)  # noqa: B023 - it is over by then
            with attempt:
                call.cancel()
                await until(lambda: plugin.cancelled == tried)  # noqa: B023
        await until(lambda: not live.app.remotes.instances.by_id["listening-1"].active)


async def test_a_fail_fast_call_cancels_the_remotes_that_still_run() -> None:
    async with (
        serving() as live,
        worker(live, "acme.fails", instance_id="a", behave=answers(verdict=2, score=0)),
        worker(live, "acme.word", instance_id="b", behave=hangs) as slow,
    ):
        asked = request(spec("acme.fails"), WORD, options={"fail_fast": True})
        failed, skipped = (await live.unary(asked)).summary.results
        assert (failed.verdict, skipped.verdict) == (2, 4)
        await until(lambda: slow.cancels)


def test_the_log_has_a_line_for_every_change_and_none_of_the_conversation(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async with (
            serving(remote_allowed=LOOPBACK, remote_health_seconds=0.5) as live,
            listening("acme.word") as plugin,
        ):
            await register(live, plugin)
            await live.unary(request(WORD, answer="secret words"))
            plugin.health = 2
            await until(lambda: "unhealthy" in caplog.text)
            plugin.health = 1
            await active(live, "listening-1")
            dialled = Worker(live.channel, "acme.word", behave=answers(verdict=1, score=9))
            await dialled.start()
            for _ in range(4):
                await live.unary(request(WORD, answer="secret words"))
            await dialled.stop()
            await until(lambda: ": disconnected" in caplog.text)

    with caplog.at_level(logging.INFO, "evald.remote"):
        run(main())
    lines = [record.getMessage() for record in caplog.records if record.name == "evald.remote"]
    text = "\n".join(lines)
    for wanted in (
        r"acme.tests listening-1 \(registered, 127.0.0.1:\d+\): registered for 30 s",
        r"listening-1 .*: pending -> active",
        r"listening-1 .*: active -> unhealthy: health check: its status is not",
        r"listening-1 .*: unhealthy -> active",
        r"worker-1 \(connected, .*\): connected, offers acme.word 1.0.0",
        r"worker-1 .* broke the contract of acme.word: score: ",
        r"worker-1 .*: disconnected, lost with 0 open tasks: ",
    ):
        assert re.search(wanted, text), f"{wanted} is not in\n{text}"
    assert len(lines) < 12
    assert "secret" not in text


async def test_telemetry_knows_instances_tasks_and_types_without_any() -> None:
    async with serving(remote_allowed=LOOPBACK) as live, listening("acme.word") as plugin:
        await register(live, plugin)
        async with worker(live, "acme.word"):
            for _ in range(4):
                await live.unary(request(WORD))
            text = live.app.telemetry.exposition("")[0].decode()
            for mode in ("registered", "connected"):
                labels = f'evaluator="acme.word",mode="{mode}",state="active"'
                assert f"evald_remote_instances{{{labels}}} 1.0" in text
            assert 'evald_remote_task_duration_seconds_count{evaluator="acme.word"} 4.0' in text
            assert 'origin="remote"' in text
        leaves = registry_service_pb2.DeregisterRequest(
            lease_id=next(iter(live.app.remotes.leases._leases._live))
        )
        await live.app.remotes.leases.deregister(leaves)
        await until(lambda: not live.app.remotes.instances.by_id)
        text = live.app.telemetry.exposition("")[0].decode()
        assert re.search(r'evald_remote_instances\{evaluator="acme.word",.*state="active"\} 0\.0', text)
