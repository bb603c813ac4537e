"""EvaluateBatch over a real channel."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest

from evald.batch import BatchSummary
from evald.context import EvaluatorContext
from evald.evaluator import define_evaluator
from evald.result import Kind, Result, Verdict, failed, measured, passed
from evald.v1 import evaluation_service_pb2
from evald_server.engine.registry import Origin
from evald_server.rpc.admission import Admission

from ..batch.batches import serving_with
from ..engine.scripted import definition
from ..loop import run
from .live import CONTAINS, Live, refusal, request, serving, spec

Message = evaluation_service_pb2.EvaluateBatchRequest


@pytest.fixture(scope="module", params=[0, 1], ids=["in-the-server", "in-a-process"], name="processes")
def _processes(request: pytest.FixtureRequest) -> int:
    """A server that evaluates batches itself, and one that has it done from the first item on."""
    return int(request.param)


@pytest.fixture(scope="module", name="live")
def _live(processes: int) -> Iterator[Live]:
    """One server for all tests that need no settings of their own."""
    stack = AsyncExitStack()
    yield run(stack.enter_async_context(serving_with(processes)))
    run(stack.aclose())


def opened(*specs: Any, **fields: Any) -> Message:
    return Message(open=evaluation_service_pb2.BatchOpen(evaluators=specs, **fields))


def items(*answers: str, start: int = 0) -> Message:
    message = Message()
    for number, answer in enumerate(answers, start):
        message.items.add(item_id=f"i{number}", context=request(answer=answer).context)
    return message


async def test_every_item_is_answered_and_the_summary_adds_up(live: Live) -> None:
    messages = await live.batch(
        [
            opened(
                CONTAINS,
                spec("response-length"),
                spec("contains", {"text": "you"}, name="tried", enforcement="ENFORCEMENT_SHADOW"),
            ),
            items("hello", "bye"),
            items(*["hello you"] * 600, start=2),
        ]
    )
    answers = {answer.item_id: answer for message in messages for answer in message.answers}
    assert sorted(answers, key=lambda name: int(name[1:])) == [f"i{number}" for number in range(602)]
    verdicts = [answers[f"i{number}"].summary.verdict for number in range(602)]
    assert verdicts == [Verdict.PASSED, Verdict.FAILED] + [Verdict.PASSED] * 600
    assert [message.HasField("summary") for message in messages][-1]
    summary = messages[-1].summary
    assert (summary.item_count, summary.passed_count, summary.failed_count) == (602, 601, 1)
    contains = summary.evaluators["contains"]
    assert (contains.passed_count, contains.failed_count) == (601, 1)
    assert (contains.kind, summary.evaluators["response-length"].kind) == (1, 2)
    tried = summary.evaluators["tried"]
    assert (tried.passed_count, tried.failed_count) == (600, 2)
    assert (contains.enforcement, tried.enforcement) == (1, 2)
    totals = BatchSummary.from_pb(summary).evaluators
    assert {name for name, one in totals.items() if one.shadow} == {"tried"}
    assert summary.evaluators["response-length"].mean_value == pytest.approx((5 + 3 + 9 * 600) / 602)


async def test_a_bad_item_has_an_error_of_its_own_and_the_stream_goes_on(live: Live) -> None:
    message = items("hello")
    message.items.add(item_id="typo", context=request().context, evaluators=[spec("contans")])
    message.items.add(item_id="json").context.messages_json = "["
    message.items.add(item_id="own", context=request().context, evaluators=[spec("is-json")])
    for item_id, text in (("plain", "hello"), ("bye", "bye"), ("judged", "hello")):
        item = message.items.add(item_id=item_id, context=request(answer=text).context)
        if item_id == "judged":
            item.context.scenario.success_criteria = "books a flight"
        else:
            item.context.scenario.instructions = "book a flight"
    messages = await live.batch([opened(CONTAINS), message])
    answers = {answer.item_id: answer for m in messages for answer in m.answers}
    assert answers["plain"].summary.verdict == Verdict.PASSED
    assert answers["bye"].summary.verdict == Verdict.FAILED
    assert answers["judged"].error.code == "INVALID_ITEM", "without a judge for the criteria"
    assert "context.scenario" in answers["judged"].error.message
    assert answers["typo"].error.code == answers["json"].error.code == "INVALID_ITEM"
    assert "contains" in answers["typo"].error.message
    assert answers["own"].summary.verdict == Verdict.FAILED
    assert messages[-1].summary.error_count == 3
    assert messages[-1].summary.item_count == 7


async def test_garbage_among_the_items_is_refused_with_its_number(live: Live) -> None:
    garbage = opened(CONTAINS).SerializeToString() + b"\x12\x03\xff\xff\xff"
    stream = live.channel.stream_stream("/evald.v1.EvaluationService/EvaluateBatch")(iter([garbage]))
    messages = [evaluation_service_pb2.EvaluateBatchResponse.FromString(data) async for data in stream]
    (answer,) = [answer for message in messages for answer in message.answers]
    assert "item 1 of the stream" in answer.error.message


async def test_items_that_wait_run_side_by_side_and_are_all_answered(processes: int) -> None:
    import asyncio

    running = most = 0

    async def slow(_ctx: Any) -> bool:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.05)
        running -= 1
        return True

    waiting = define_evaluator(type="slow", kind=Kind.ASSERTION, evaluate=slow)
    async with serving_with(processes, [waiting], max_inflight=16, max_queued=0) as live:
        messages = await live.batch([opened(spec("slow")), items(*["x"] * 64)])
        assert most == 16
        assert messages[-1].summary.passed_count == 64
        assert len({answer.item_id for m in messages for answer in m.answers}) == 64


async def test_brief_leaves_the_words_out_of_what_passed_only(live: Live) -> None:
    messages = await live.batch([opened(CONTAINS, brief=True), items("hello", "bye")])
    passed, failed = (answer for m in messages for answer in m.answers)
    assert not passed.summary.results[0].reason
    assert passed.summary.results[0].score == 1
    assert failed.summary.results[0].reason


@pytest.mark.parametrize(
    ("messages", "code"),
    [
        ([items("hello")], grpc.StatusCode.INVALID_ARGUMENT),
        ([opened(CONTAINS), opened(CONTAINS)], grpc.StatusCode.INVALID_ARGUMENT),
        ([opened(spec("nope"))], grpc.StatusCode.NOT_FOUND),
        ([], grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
async def test_a_batch_that_is_not_opened_right_is_refused(
    live: Live, messages: list[Message], code: grpc.StatusCode
) -> None:
    assert (await refusal(live.batch(messages))).code is code


async def test_an_item_that_the_server_fails_to_finish_is_not_left_out_in_silence(
    processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("a fault of ours")

    async def slow(_ctx: Any) -> bool:
        return True

    waiting = define_evaluator(type="slow", kind=Kind.ASSERTION, evaluate=slow)
    async with serving_with(processes, [waiting]) as live:
        monkeypatch.setattr(Admission, "run_pending", broken)
        found = await refusal(live.batch([opened(spec("slow")), items("x")]))
        assert found.code is grpc.StatusCode.INTERNAL
        assert "a fault of ours" not in found.message


async def test_an_assertion_that_becomes_a_metric_meanwhile_passes_no_item() -> None:
    def fail_and_become_a_metric(_ctx: EvaluatorContext) -> Result:
        live.app.registry.remove("strict")
        live.app.registry.register(definition("strict", lambda _ctx: measured(1), Kind.METRIC), Origin.PLUGIN)
        return failed("no")

    async with serving([definition("strict", fail_and_become_a_metric)], batch_processes=0) as live:
        sent = items("x", "y", "z")
        sent.items[2].context.scenario.instructions = "be kind"  # which may add an evaluator
        messages = await live.batch([opened(spec("strict")), sent])
    answers = {answer.item_id: answer for message in messages for answer in message.answers}
    assert answers["i0"].summary.verdict == Verdict.FAILED
    for item_id in ("i1", "i2"):
        assert "its type is a metric now" in answers[item_id].error.message
    summary = messages[-1].summary
    assert (summary.passed_count, summary.failed_count, summary.error_count) == (0, 1, 2)


async def test_many_batches_together_take_no_longer_turns_of_the_event_loop_than_one() -> None:
    ticks = 0
    seen: list[int] = []

    def slow(_ctx: EvaluatorContext) -> Result:
        seen.append(ticks)
        time.sleep(0.0002)  # of the event loop's time
        return passed("counted")

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    sent = [opened(spec("slow")), items(*["hello"] * 100)]
    async with serving([definition("slow", slow)], batch_processes=0) as live:
        ticking = asyncio.create_task(tick())
        await asyncio.gather(*(live.batch(sent) for _ in range(10)))
        ticking.cancel()
    assert len(seen) == 1000
    assert max(Counter(seen).values()) <= 8  # at four items of each batch it would be 40
