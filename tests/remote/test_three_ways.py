"""Plugins come in over Attach, Register and the config file, and all are evaluators like any other."""

import asyncio
import functools
import json
from typing import Any

import grpc
import pytest

from evald.plugin.v1 import task_pb2
from evald.v1 import catalog_service_pb2, evaluation_service_pb2, evaluator_pb2, result_pb2

from ..rpc.live import CATALOG, CONTAINS, EVALUATION, Live, refusal, request, serving, spec, until
from .scripted import (
    PASSED,
    SCHEMA,
    WORD,
    Listening,
    Worker,
    active,
    answers,
    evaluator_type,
    listening,
    register,
    states,
    worker,
)

LOOPBACK = ["127.0.0.1/32"]
Type = evaluator_pb2.EvaluatorType


async def catalogue(live: Live) -> dict[str, evaluator_pb2.EvaluatorType]:
    return {
        one.type: one
        for one in (await live.types(page_size=1000)).evaluator_types
        if one.origin == Type.ORIGIN_REMOTE
    }


async def said(task: task_pb2.EvaluationTask) -> task_pb2.EvaluationOutput:
    """Whether the answer has the word of the config."""
    word = task.config.fields["word"].string_value
    found = word in task.context.messages[-1].text
    return task_pb2.EvaluationOutput(
        verdict=result_pb2.VERDICT_PASSED if found else result_pb2.VERDICT_FAILED,
        score=1.0 if found else 0.0,
        reason=f"{word!r} {'is' if found else 'is not'} there",
    )


async def _check(live: Live, instance_id: str) -> None:
    """The type works, is in the catalogue, and its results say who gave them."""
    specs = [spec("acme.word", {"word": word}, name=word) for word in ("hello", "bye")]
    results = (await live.unary(request(*specs, CONTAINS))).summary.results
    assert [one.verdict for one in results] == [1, 2, 1]
    assert [one.reason for one in results[:2]] == ["'hello' is there", "'bye' is not there"]
    assert [one.instance_id for one in results] == [instance_id, instance_id, ""]
    entry = (await catalogue(live))["acme.word"]
    assert (entry.state, entry.instance_count) == (Type.STATE_ACTIVE, 1)
    assert json.loads(entry.config_schema_json) == SCHEMA


async def test_a_plugin_is_told_which_calls_are_not_understood() -> None:
    tasks: list[task_pb2.EvaluationTask] = []

    async def behave(task: task_pb2.EvaluationTask) -> task_pb2.EvaluationOutput:
        tasks.append(task)
        return await said(task)

    call = {"id": "1", "name": "refund", "args": {}}
    messages = [
        {"role": "user", "content": "hi", "tool_calls": [call]},
        {"role": "assistant", "content": "hm", "steps": [call]},
        {"role": "tool", "tool_call_id": "2", "content": "ok"},
        {"role": "narrator", "content": "hello"},
        {"role": "assistant", "content": "hello"},
    ]
    asked = request(spec("acme.word", {"word": "hello"}))
    asked.context.ClearField("messages")
    asked.context.messages_json = json.dumps(messages)
    async with serving() as live, worker(live, "acme.word", behave=behave):
        (result,) = (await live.unary(asked)).summary.results
    assert result.verdict == result_pb2.VERDICT_PASSED
    assert [list(message.unread_calls) for message in tasks[0].context.messages] == [
        ["tool_calls"],
        ["steps[0]"],
        ["tool_call_id"],
        ["role"],
        [],
    ]


async def test_a_plugin_that_dials_out_evaluates() -> None:
    async with serving() as live, worker(live, "acme.word", behave=said):
        await _check(live, "worker-1")


async def test_a_plugin_that_registers_evaluates() -> None:
    async with serving(remote_allowed=LOOPBACK) as live, listening("acme.word", behave=said) as plugin:
        granted = await register(live, plugin)
        assert granted.ttl.seconds == 30
        assert granted.renew_interval.seconds == 10
        await _check(live, "listening-1")


async def test_a_plugin_that_the_config_names_evaluates_whenever_it_comes() -> None:
    plugin = Listening("acme.word", behave=said)
    address = await plugin.start()
    await plugin.stop()
    async with serving(remote_targets=[address]) as live:
        assert await states(live) == {f"static:{address}": "pending"}
        assert live.app.remotes.instances.by_id[f"static:{address}"].last_seen is None, "nobody answered yet"
        await plugin.start(address)
        await active(live, f"static:{address}")
        await _check(live, f"static:{address}")
        assert live.app.remotes.instances.by_id[f"static:{address}"].last_seen
        await plugin.stop()


async def test_a_plugin_without_a_health_service_is_checked_by_describe() -> None:
    async with (
        serving(remote_allowed=LOOPBACK, remote_health_seconds=0.25) as live,
        listening("acme.word", behave=said, health=None) as plugin,
    ):
        await register(live, plugin)
        await _check(live, "listening-1")
        await until(lambda: plugin.describes > 3)


async def test_the_task_says_everything_that_the_contract_promises() -> None:
    trace = (
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("baggage", "tenant=a"),
    )
    async with (
        serving(remote_allowed=LOOPBACK) as live,
        listening("acme.word") as plugin,
        worker(live, "acme.other") as dialled,
    ):
        await register(live, plugin)
        asked = request(WORD, spec("acme.other", version="1.0.0"))
        asked.context.ClearField("messages")
        asked.context.messages_json = json.dumps([{"role": "assistant", "content": "hello"}])
        answer = await live.unary(asked, metadata=trace, timeout=50)
        assert answer.summary.success
        for task in (plugin.tasks[0], dialled.tasks[0]):
            assert task.task_id
            assert task.version == "1.0.0"
            assert task.attempt == 1
            assert task.context.messages[0].text == "hello"
            assert not task.context.messages_json
            assert dict(task.trace_context) == dict(trace)
            assert 30 < task.timeout.ToMilliseconds() / 1000 < 50
        assert plugin.tasks[0].config.fields["word"].string_value == "x"
        assert plugin.metadata[0].items() >= dict(trace).items()
        deadline = plugin.deadlines[0]
        assert deadline is not None
        assert 30 < deadline < 50


async def test_a_plugin_gets_answers_without_reasoning_unless_the_spec_checks_for_absence_or_keeps_it() -> (
    None
):
    thinks = "<think>hello?</think>\nbye"
    async with serving() as live, worker(live, "acme.word", behave=said) as dialled:
        specs = [spec("acme.word", {"word": "hello"}, name=name) for name in ("plain", "keep", "negate")]
        specs[1].reasoning = evaluator_pb2.REASONING_POLICY_KEEP
        specs[2].negate = True
        asked = request(*specs)
        asked.context.ClearField("messages")
        asked.context.messages.add(role="assistant", text=thinks)
        results = (await live.unary(asked)).summary.results
        assert [one.verdict for one in results] == [2, 1, 2]
        texts = {task.context.messages[0].text for task in dialled.tasks}
        assert texts == {"bye", thinks}
        (plain, *_) = (
            task.context.messages[0] for task in dialled.tasks if task.context.messages[0].text == "bye"
        )
        assert plain.metadata["reasoning"] == "hello?"


async def test_progress_reaches_the_caller_before_the_result() -> None:
    async with serving() as live:
        dialled = Worker(live.channel, "acme.word")

        async def talks(task: task_pb2.EvaluationTask) -> task_pb2.EvaluationOutput:
            await dialled.send(progress={"task_id": task.task_id, "message": "half", "fraction": 0.5})
            await asyncio.sleep(0.05)
            return task_pb2.EvaluationOutput(verdict=result_pb2.VERDICT_PASSED)

        dialled.behave = talks
        await dialled.start()
        events = await live.stream(request(WORD, options={"include_progress": True}))
        told = [one for event in events for one in event.progress]
        assert [(one.index, one.message, one.fraction) for one in told] == [(0, "half", 0.5)]
        await dialled.stop()


async def test_a_caller_that_is_slow_to_take_progress_gets_the_latest_and_the_result() -> None:
    async with serving() as live:
        dialled = Worker(live.channel, "acme.word")

        async def chats(task: task_pb2.EvaluationTask) -> task_pb2.EvaluationOutput:
            for number in range(1000):
                message = f"{number} {'x' * 20_000}"
                await dialled.send(progress={"task_id": task.task_id, "message": message})
            return PASSED

        dialled.behave = chats
        await dialled.start()
        asked = request(WORD, options={"include_progress": True})
        stream = live.channel.unary_stream(EVALUATION + "Evaluate")(asked.SerializeToString())
        await until(lambda: dialled.tasks and not dialled.running)
        sizes, told, results = [], [], []
        async for data in stream:
            event = evaluation_service_pb2.EvaluateResponse.FromString(data)
            sizes.append(len(data))
            told += [int(one.message.split()[0]) for one in event.progress]
            results += [one.verdict for one in event.results]
        assert max(sizes) < 20_000
        assert told == sorted(told)
        assert told[-1] == 999
        assert results == [result_pb2.VERDICT_PASSED]
        await dialled.stop()


@pytest.mark.parametrize(
    ("fields", "check"),
    [
        ({"verdict": 1, "score": 0.25, "checks": [{"text": "a", "met": True}]}, lambda r: r.checks[0].met),
        ({"verdict": 2, "pending": True}, lambda r: r.pending and not r.HasField("score")),
        ({"verdict": 4, "reason": "no"}, lambda r: r.success and r.reason == "no"),
        (
            {"verdict": 3, "error": {"code": "MISSING_DATA", "message": "m", "metadata": {"a": "b"}}},
            lambda r: r.error.code == "MISSING_DATA" and r.error.metadata["a"] == "b",
        ),
        (
            {
                "verdict": 1,
                "token_usage": {"input_tokens": 3},
                "cost": {"currency_code": "USD", "amount": 0.5},
                "metadata": {"a": [1, {"b": None}]},
            },
            lambda r: (r.token_usage.input_tokens, r.cost.amount, len(r.metadata["a"])) == (3, 0.5, 2),
        ),
    ],
    ids=["checks", "pending", "skipped", "error", "spending"],
)
async def test_everything_that_an_output_can_say_is_in_the_result(fields: Any, check: Any) -> None:
    async with serving() as live, worker(live, "acme.word", behave=answers(**fields)):
        (result,) = (await live.unary(request(WORD))).summary.results
        assert result.verdict == fields["verdict"]
        assert check(result), result


async def test_what_a_remote_has_not_seen_does_not_pass_by_being_negated() -> None:
    behave = answers(verdict=2, unproven=True, score=0.0)
    async with serving() as live, worker(live, "acme.word", behave=behave):
        turned = type(WORD)()
        turned.CopyFrom(WORD)
        turned.negate = True
        answer = await live.unary(request(turned))
        assert answer.summary.results[0].verdict == 2
        assert not answer.summary.success


async def test_configs_are_checked_against_the_schema_before_anything_runs() -> None:
    async with serving() as live, worker(live, "acme.word") as dialled:
        refused = await refusal(live.unary(request(spec("acme.word", {"word": 3, "more": 1}))))
        assert refused.code is grpc.StatusCode.INVALID_ARGUMENT
        assert "evaluators[0].config.word" in refused.fields
        assert not dialled.tasks


async def test_a_type_whose_last_instance_has_gone_stays_listed_and_gives_an_error() -> None:
    async with serving() as live:
        watch = live.channel.unary_stream(CATALOG + "WatchEvaluatorTypes")(
            catalog_service_pb2.WatchEvaluatorTypesRequest(
                after_revision=(await live.types()).revision
            ).SerializeToString()
        )
        async with worker(live, "acme.word"):
            assert (await live.unary(request(WORD))).summary.success
        await until(lambda: not live.app.remotes.instances.by_id)
        entry = (await catalogue(live))["acme.word"]
        assert (entry.state, entry.instance_count) == (Type.STATE_UNAVAILABLE, 0)
        (result,) = (await live.unary(request(WORD))).summary.results
        assert (result.verdict, result.error.code) == (3, "REMOTE_UNAVAILABLE")
        seen = []
        while len(seen) < 3:
            event = catalog_service_pb2.WatchEvaluatorTypesResponse.FromString(await watch.read())
            seen.append((event.upserted.type, event.upserted.state, event.upserted.instance_count))
        assert seen == [("acme.word", 2, 0), ("acme.word", 1, 1), ("acme.word", 2, 0)]
        watch.cancel()
        async with worker(live, "acme.word"):
            assert (await live.unary(request(WORD))).summary.success


async def test_two_versions_live_side_by_side_and_most_instances_make_the_default() -> None:
    old = evaluator_type("acme.word")
    new = evaluator_type("acme.word", version="1.10.0", schema={"type": "object"})
    async with (
        serving() as live,
        worker(live, old, instance_id="a"),
        worker(live, old, instance_id="b"),
        worker(live, new, instance_id="c"),
    ):
        assert (await live.unary(request(WORD))).summary.results[0].version == "1.0.0"
        exact = await live.unary(request(spec("acme.word", version="1.10.0")))
        assert exact.summary.results[0].instance_id == "c"
        refused = await refusal(live.unary(request(spec("acme.word", version="3"))))
        assert '"1.0.0", "1.10.0"' in refused.message
        async with worker(live, new, instance_id="d"), worker(live, new, instance_id="e"):
            assert (await live.unary(request(WORD))).summary.results[0].version == "1.10.0"


async def test_what_the_next_instance_says_of_its_type_takes_the_place_of_what_the_last_one_said() -> None:
    async with serving() as live:
        says = functools.partial(evaluator_type, "acme.word")
        async with worker(live, says(label="Old", final_turn_only=True), behave=answers(verdict=2)):
            assert (await live.unary(request(WORD))).summary.verdict == result_pb2.VERDICT_SKIPPED
        await until(lambda: not live.app.remotes.instances.by_id)
        async with worker(live, says(label="New"), behave=answers(verdict=2)):
            assert (await live.unary(request(WORD))).summary.verdict == result_pb2.VERDICT_FAILED
            assert (await catalogue(live))["acme.word"].label == "New"
            # Of two at a time the first one's word counts.
            async with worker(live, says(label="Newest", final_turn_only=True), instance_id="worker-2"):
                assert (await catalogue(live))["acme.word"].label == "New"


async def test_one_plugin_offers_several_types() -> None:
    metric = evaluator_type("acme.count", kind=evaluator_pb2.EVALUATOR_KIND_METRIC)
    metric.metric.unit = "tokens"

    async def both(task: task_pb2.EvaluationTask) -> task_pb2.EvaluationOutput:
        if task.type == "acme.count":
            return task_pb2.EvaluationOutput(verdict=1, value=3, reason="3")
        return task_pb2.EvaluationOutput(verdict=1, score=1)

    async with serving() as live, worker(live, "acme.word", metric, behave=both):
        summary = (await live.unary(request(WORD, spec("acme.count")))).summary
        assert summary.success
        assert summary.metrics == {"acme.count": 3.0}
