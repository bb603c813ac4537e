"""Worker sessions: credits, pings, cancellation, drain, take-over, and frames that no worker should send."""

import asyncio
from typing import Any

import grpc
import pytest

from evald.plugin.v1 import registry_service_pb2 as registry_pb2
from evald.plugin.v1 import task_pb2
from evald.v1 import result_pb2
from evald_server.remote import plugin_type

from ..attempts import attempts
from ..loop import expect_thread
from ..rpc.live import Live, refusal, request, serving, spec, until
from .scripted import (
    PASSED,
    REGISTRY,
    WORD,
    Worker,
    evaluator_type,
    hangs,
    plugin_info,
    registrations,
    states,
    worker,
)

AttachRequest = registry_pb2.AttachRequest


async def test_a_worker_never_gets_a_task_without_credit() -> None:
    async def slow(_task: task_pb2.EvaluationTask) -> task_pb2.EvaluationOutput:
        await asyncio.sleep(0.02)
        return PASSED

    async with serving() as live, worker(live, "acme.word", behave=slow, credit=3) as dialled:
        answers = await asyncio.gather(*(live.unary(request(WORD)) for _ in range(20)))
        assert all(answer.summary.success for answer in answers)
        assert dialled.most_open == 3
        assert len(dialled.tasks) == 20


async def test_credit_can_be_granted_later_and_taken_back() -> None:
    async with (
        serving(remote_max_queue_seconds=0.1) as live,
        worker(live, "acme.word", credit=0) as dialled,
    ):
        (busy,) = (await live.unary(request(WORD))).summary.results
        assert busy.error.code == "EVALUATOR_BUSY"
        assert not dialled.tasks
        waiting = asyncio.create_task(live.unary(request(WORD)))
        await asyncio.sleep(0.02)
        await dialled.send(credit={"delta": 2})
        assert (await waiting).summary.success
        await dialled.send(credit={"delta": -2})
        await asyncio.sleep(0.05)
        (busy,) = (await live.unary(request(WORD))).summary.results
        assert busy.error.code == "EVALUATOR_BUSY"


async def test_a_caller_that_goes_away_cancels_the_task_within_250_ms_and_its_credit_comes_back() -> None:
    for attempt in attempts(0.25):
        async with serving() as live, worker(live, "acme.word", behave=hangs, credit=1) as dialled:
            call = asyncio.create_task(live.unary(request(WORD)))
            await until(lambda: dialled.running)
            with attempt:
                call.cancel()
                await until(lambda: dialled.cancels == [dialled.tasks[0].task_id])
            # This worker says nothing of a cancelled task; that it has none any more shows in its pong.
            (session,) = live.app.remotes.instances.by_id.values()
            assert not session.free
            await until(lambda: not dialled.running)


async def test_the_credit_of_a_cancelled_task_is_back_after_the_next_pong() -> None:
    async with (
        serving(remote_ping_seconds=0.5) as live,
        worker(live, "acme.word", behave=hangs, credit=1) as dialled,
    ):
        (late,) = (
            await live.unary(request(spec("acme.word", timeout={"nanos": 50_000_000})))
        ).summary.results
        assert late.error.code == "TIMEOUT"
        (session,) = live.app.remotes.instances.by_id.values()
        await until(lambda: session.free)
        assert dialled.pings


async def test_a_worker_that_reads_again_gets_no_tasks_that_nobody_waits_for() -> None:
    """Unsent they have filled the memory: 3 GB within ten seconds."""
    late = spec("acme.word", timeout={"nanos": 90_000_000})  # too short to say anything about the worker
    async with (
        serving(remote_ping_seconds=60) as live,
        worker(live, "acme.word", credit=10) as dialled,
    ):
        dialled.reads.clear()
        answers = await asyncio.gather(*(live.unary(request(late, answer="x" * 2_000_000)) for _ in range(9)))
        assert {one.summary.results[0].error.code for one in answers} == {"TIMEOUT"}
        (session,) = live.app.remotes.instances.by_id.values()
        dialled.reads.set()
        assert (await live.unary(request(WORD))).summary.success
        # What was under way has been sent to its end: 4 to 6 tasks, by what gRPC has taken; all 10 if none were dropped.
        assert len(dialled.tasks) <= 7
        await until(lambda: session.load == 0 and not session.active)


async def test_a_cancelled_task_that_the_worker_still_works_on_keeps_its_credit() -> None:
    async def stubborn(_task: task_pb2.EvaluationTask) -> task_pb2.EvaluationOutput:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if finish.is_set():
                    raise

    finish = asyncio.Event()
    async with (
        serving(remote_ping_seconds=0.5, remote_max_queue_seconds=0.1) as live,
        worker(live, "acme.word", behave=stubborn, credit=1) as dialled,
    ):
        timeout = spec("acme.word", timeout={"nanos": 30_000_000})
        assert (await live.unary(request(timeout))).summary.results[0].error.code == "TIMEOUT"
        pings = dialled.pings
        await until(lambda: dialled.pings > pings + 2)
        assert (await live.unary(request(WORD))).summary.results[0].error.code == "EVALUATOR_BUSY"
        assert len(dialled.tasks) == 1
        await dialled.complete(dialled.tasks[0].task_id)
        await until(lambda: next(iter(live.app.remotes.instances.by_id.values())).free)
        finish.set()


async def test_a_worker_that_answers_no_ping_is_given_up_and_told_why() -> None:
    async with (
        serving(remote_ping_seconds=0.1) as live,
        worker(live, "acme.word", behave=hangs, pongs=False) as silent,
    ):
        call = asyncio.create_task(live.unary(request(WORD)))
        code, text = await silent.ended()
        assert (code, text) == (grpc.StatusCode.ABORTED, "no pong within 0.1s")
        (result,) = (await call).summary.results
        assert result.error.code == "REMOTE_UNAVAILABLE"
        assert not await states(live)


async def test_a_pong_with_another_nonce_is_no_pong() -> None:
    async with (
        serving(remote_ping_seconds=0.1) as live,
        worker(live, "acme.word", pongs=False) as confused,
    ):
        await until(lambda: confused.pings)
        await confused.send(pong={"nonce": 77})
        assert (await confused.ended())[0] is grpc.StatusCode.ABORTED
        assert confused.pings == 1, "no ping follows one without its pong"


async def test_a_draining_worker_finishes_what_it_has_and_gets_nothing_new() -> None:
    release = asyncio.Event()

    async def waits(_task: task_pb2.EvaluationTask) -> task_pb2.EvaluationOutput:
        await release.wait()
        return PASSED

    async with serving() as live, worker(live, "acme.word", behave=waits) as dialled:
        call = asyncio.create_task(live.unary(request(WORD)))
        await until(lambda: dialled.running)
        await dialled.send(draining={"reason": "new version"})

        async def drains() -> bool:
            return (await states(live)) == {"worker-1": "draining"}

        await until(drains)
        (result,) = (await live.unary(request(WORD))).summary.results
        assert result.error.code == "REMOTE_UNAVAILABLE"
        release.set()
        assert (await call).summary.success
        await dialled.finish()
        assert (await dialled.ended())[0] is grpc.StatusCode.OK
        await until(lambda: not live.app.remotes.instances.by_id)


async def test_a_draining_worker_finishes_what_it_has_beside_the_next_one_of_its_id() -> None:
    release = asyncio.Event()

    async def waits(_task: task_pb2.EvaluationTask) -> task_pb2.EvaluationOutput:
        await release.wait()
        return PASSED

    async with serving() as live, worker(live, "acme.word", behave=waits) as old:
        # More than may be tried a second time.
        calls = [asyncio.create_task(live.unary(request(WORD))) for _ in range(3)]
        await until(lambda: len(old.running) == len(calls))
        await old.send(draining={"reason": "new version"})

        async def drains() -> bool:
            return (await states(live)) == {"worker-1": "draining"}

        await until(drains)
        async with worker(live, "acme.word") as new:
            assert (await live.unary(request(WORD))).summary.success
            assert len(new.tasks) == 1
            release.set()
            assert all([(await call).summary.success for call in calls])
            await old.finish()
            assert (await old.ended())[0] is grpc.StatusCode.OK
            assert (await states(live)) == {"worker-1": "active"}
            assert (await live.unary(request(WORD))).summary.success


async def test_a_server_that_stops_tells_its_workers_and_waits_for_their_tasks_only() -> None:
    async def slow(_task: task_pb2.EvaluationTask) -> task_pb2.EvaluationOutput:
        await asyncio.sleep(0.3)
        return PASSED

    async with serving(drain_grace=30.0) as live, worker(live, "acme.word", behave=slow) as dialled:
        call = asyncio.create_task(live.unary(request(WORD)))
        await until(lambda: dialled.running)
        keeping: Any = live.channel.stream_stream(f"{REGISTRY}KeepAlive")()
        await keeping.write(registry_pb2.KeepAliveRequest(lease_id="x").SerializeToString())
        await keeping.read()
        loop = asyncio.get_running_loop()
        began = loop.time()
        await live.app.stop()
        assert loop.time() - began < 20, "sessions and renewals must not use up the whole grace"
        assert (await call).summary.success
        assert dialled.draining is not None
        assert dialled.draining.grace_period.seconds == 30
        assert dialled.draining.reconnect_delay.ToMilliseconds() > 0
        assert (await dialled.ended())[0] is grpc.StatusCode.OK
        assert (await refusal(keeping.read())).reason == "DRAINING"


async def test_a_broken_stream_fails_nobody_when_the_worker_is_back_soon() -> None:
    async with serving() as live:
        # Retries have to be earned.
        async with worker(live, "acme.word"):
            for _ in range(5):
                await live.unary(request(WORD))
        async with worker(live, "acme.word", behave=hangs) as first:
            call = asyncio.create_task(live.unary(request(WORD)))
            await until(lambda: first.running)
            first.kill()
            async with worker(live, "acme.word") as second:
                assert (await call).summary.success
                assert second.tasks[0].task_id == first.tasks[0].task_id
                assert (first.tasks[0].attempt, second.tasks[0].attempt) == (1, 2)


async def test_a_new_session_of_the_same_process_takes_the_old_ones_place() -> None:
    async with serving() as live, worker(live, "acme.word") as old:
        new = Worker(live.channel, "acme.word")
        await new.start()
        assert (await old.ended())[0] is grpc.StatusCode.ABORTED
        assert (await live.unary(request(WORD))).summary.success
        assert new.tasks
        assert len((await registrations(live)).registrations) == 1
        await new.stop()


def _hello(**fields: Any) -> dict[str, Any]:
    return {"plugin": plugin_info("acme.word"), "instance_id": "w", "initial_credit": 1} | fields


@pytest.mark.parametrize(
    ("frames", "reason", "field"),
    [
        ([], "INVALID_FIELD", "frame"),
        ([{"credit": {"delta": 1}}], "INVALID_FIELD", "frame"),
        ([{}], "INVALID_FIELD", "frame"),
        ([{"hello": _hello(instance_id="")}], "INVALID_FIELD", "hello.instance_id"),
        ([{"hello": _hello(instance_id="a\nb")}], "INVALID_FIELD", "hello.instance_id"),
        ([{"hello": _hello(instance_id="static:x")}], "INVALID_FIELD", "hello.instance_id"),
        ([{"hello": _hello(initial_credit=-1)}], "INVALID_FIELD", "hello.initial_credit"),
        ([{"hello": _hello(plugin=plugin_info())}], "INVALID_FIELD", "hello.plugin.evaluator_types"),
        ([{"hello": _hello(plugin=plugin_info("acme.word", name=""))}], "INVALID_FIELD", "hello.plugin.name"),
        (
            [{"hello": _hello(plugin=plugin_info("acme.word", contract_versions=["v9"]))}],
            "CONTRACT_VERSION_UNSUPPORTED",
            "hello.plugin.contract_versions",
        ),
        ([{"hello": _hello()}, {"hello": _hello()}], "INVALID_FIELD", "frame"),
        ([{"hello": _hello()}, b"\xff\xff"], "UNREADABLE_MESSAGE", ""),
        ([b"\xff\xff"], "UNREADABLE_MESSAGE", ""),
    ],
    ids=[
        "nothing",
        "no-hello",
        "empty",
        "no-id",
        "unprintable-id",
        "reserved-id",
        "negative-credit",
        "no-types",
        "no-name",
        "other-contract",
        "two-hellos",
        "garbage",
        "garbage-first",
    ],
)
async def test_frames_that_break_the_protocol_end_the_session_with_a_reason(
    frames: list[Any], reason: str, field: str
) -> None:
    async with serving() as live:
        refused = await refusal(_talk(live, frames))
        assert refused.reason == reason
        assert refused.fields == ([field] if field else [])
        await until(lambda: not live.app.remotes.instances.by_id)


async def _talk(live: Live, frames: list[Any]) -> None:
    call: Any = live.channel.stream_stream(f"{REGISTRY}Attach")()
    for frame in frames:
        data = frame if isinstance(frame, bytes) else AttachRequest(**frame).SerializeToString()
        await call.write(data)
    if not frames:
        await call.done_writing()
    while await call.read() is not grpc.aio.EOF:
        pass


async def test_unknown_frames_progress_and_answers_for_nobody_are_skipped() -> None:
    async with serving() as live, worker(live, "acme.word") as dialled:
        await dialled.send_raw(b"\xa2\x06\x01x")  # field 100
        await dialled.send(progress={"task_id": "nope", "message": "?"})
        assert (await live.unary(request(WORD))).summary.success
        await dialled.complete(dialled.tasks[0].task_id)  # a second time
        await dialled.send(pong={"nonce": 3, "active_tasks": -5})
        assert (await live.unary(request(WORD))).summary.success
        (session,) = live.app.remotes.instances.by_id.values()
        assert session.active == 0


async def test_an_answer_to_a_task_that_was_never_given_is_a_contract_violation() -> None:
    async with serving() as live:
        liar = Worker(live.channel, "acme.word")

        async def another(_task: task_pb2.EvaluationTask) -> task_pb2.EvaluationOutput:
            await liar.complete("somebody-elses")
            return await hangs(_task)

        liar.behave = another
        await liar.start()
        (result,) = (await live.unary(request(WORD))).summary.results
        assert result.error.code == "CONTRACT_VIOLATION"
        assert "task_id" in result.error.message
        await liar.stop()


async def test_a_worker_cannot_answer_the_task_of_another_one() -> None:
    answered = asyncio.Event()

    async def fails(_task: task_pb2.EvaluationTask) -> task_pb2.EvaluationOutput:
        await answered.wait()
        return task_pb2.EvaluationOutput(verdict=result_pb2.VERDICT_FAILED, score=0, reason="bad")

    async with (
        serving() as live,
        worker(live, "acme.word", behave=fails) as honest,
        worker(live, "acme.other", behave=hangs, instance_id="other") as other,
    ):
        calls = [asyncio.create_task(live.unary(request(spec(name)))) for name in ("acme.word", "acme.other")]
        await until(lambda: honest.tasks and other.tasks)
        await other.complete(honest.tasks[0].task_id, PASSED)
        await other.complete(other.tasks[0].task_id, PASSED)
        # A late or repeated answer is no reason to give up a task that the worker still has.
        assert (await calls[1]).summary.success
        answered.set()
        assert (await calls[0]).summary.verdict == result_pb2.VERDICT_FAILED


async def test_workers_can_be_kept_out() -> None:
    async with serving(remote_connect=False) as live:
        call: Any = live.channel.stream_stream(f"{REGISTRY}Attach")()
        # The server refuses before a frame arrives. A write that fails then hides the status: grpcio makes it INTERNAL.
        refused = await refusal(call.read())
        assert (refused.code, refused.reason) == (
            grpc.StatusCode.PERMISSION_DENIED,
            "CONNECT_NOT_ALLOWED",
        )


async def test_a_hundred_types_come_and_go_with_their_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    held_up = expect_thread(monkeypatch, plugin_type, "read_plugin")
    types = [evaluator_type(f"acme.t{number}") for number in range(100)]
    async with serving() as live:
        async with worker(live, *types, credit=100):
            specs = [spec(one.type) for one in types]
            assert (await live.unary(request(*specs))).summary.passed_count == 100
            assert held_up == [False], "a hundred schemas take a second"
        await until(lambda: not live.app.remotes.instances.by_id)
        (result,) = (await live.unary(request(spec("acme.t7")))).summary.results
        assert result.error.code == "REMOTE_UNAVAILABLE"
