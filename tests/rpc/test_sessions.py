"""EvaluateSession over a real channel."""

import json
from typing import Any

import grpc
import pytest

from evald.evaluator import define_evaluator
from evald.result import Kind, Verdict
from evald.v1 import context_pb2, evaluation_service_pb2, message_pb2

from .live import CONTAINS, refusal, serving, spec

Frame = evaluation_service_pb2.EvaluateSessionRequest
PASSED, FAILED, ERROR = Verdict.PASSED, Verdict.FAILED, Verdict.ERROR


def opened(*specs: Any, **base: Any) -> Frame:
    frame = Frame()
    frame.open.evaluators.extend(specs)
    frame.open.base_context.MergeFrom(context_pb2.EvaluatorContext(**base))
    frame.open.base_context.messages.add(role="system", text="be kind")
    return frame


def turn(turn_id: int, answer: str, tools: tuple[str, ...] = (), **fields: Any) -> Frame:
    frame = Frame()
    frame.turn.turn_id = turn_id
    for key, value in fields.items():
        setattr(frame.turn, key, value)
    frame.turn.new_messages.add(role="user", text="hi")
    calls = [message_pb2.ToolCall(function=message_pb2.FunctionCall(name=name)) for name in tools]
    if calls:
        frame.turn.new_messages.add(role="assistant", tool_calls=calls)
    frame.turn.new_messages.add(role="assistant", text=answer)
    return frame


async def test_each_turn_is_evaluated_on_the_conversation_so_far() -> None:
    specs = (
        CONTAINS,
        spec("tool-call-count"),
        spec("tool-call-count", {"scope": "conversation"}, name="all"),
        spec("turn-count"),
    )
    async with serving() as live:
        # A turn that takes longer than a slice, on a busy machine, is sent in several messages.
        whole: dict[int, evaluation_service_pb2.EvaluateSessionResponse] = {}
        for frame in await live.session(
            [opened(*specs), turn(1, "hello", ("a", "b")), turn(2, "bye", ("c",)), turn(5, "hello")]
        ):
            whole.setdefault(frame.turn_id, evaluation_service_pb2.EvaluateSessionResponse()).MergeFrom(frame)
        *turns, last = whole.values()
        assert list(whole) == [1, 2, 5, 0]
        assert [frame.event.summary.verdict for frame in turns] == [PASSED, FAILED, PASSED]
        metrics = [dict(frame.event.summary.metrics) for frame in turns]
        assert [m["tool-call-count"] for m in metrics] == [2, 1, 0]
        assert [m["all"] for m in metrics] == [2, 3, 3]
        assert [m["turn-count"] for m in metrics] == [1, 2, 3]
        assert [bool(frame.event.started.plan) for frame in turns] == [True, False, False]
        assert len({frame.event.started.evaluation_id for frame in turns}) == 3
        summary = last.session_summary
        assert (summary.verdict, summary.turn_count, list(summary.failed_turn_ids)) == (FAILED, 3, [2])


async def test_turn_ids_may_begin_below_zero() -> None:
    async with serving() as live:
        frames = await live.session([opened(CONTAINS), turn(-7, "hello"), turn(0, "hello")])
        assert [frame.turn_id for frame in frames[:-1]] == [-7, 0]


async def test_final_only_evaluators_run_on_the_final_turn() -> None:
    async with serving() as live:
        *turns, last = await live.session(
            [
                opened(spec("contains", {"text": "hello"}, turn_policy=2)),
                turn(1, "x"),
                turn(2, "hello", is_final=True),
            ]
        )
        assert [frame.event.results[0].verdict for frame in turns] == [Verdict.SKIPPED, PASSED]
        assert last.session_summary.success


async def test_a_turn_that_is_not_right_is_refused_and_the_session_goes_on() -> None:
    bad = turn(3, "hello")
    bad.turn.ClearField("new_messages")
    bad.turn.new_messages_json = '[{"role": 7}]'
    both = turn(4, "hello")
    both.turn.new_messages_json = json.dumps([{"role": "user", "content": "x"}])
    hidden = turn(4, "hello")
    call = hidden.turn.last_invocation.messages.add(role="assistant").tool_calls.add(id="c")
    call.function.name = "delete"
    async with serving() as live:
        frames = await live.session(
            [
                opened(CONTAINS, spec("tool-call-count", {"scope": "conversation"})),
                turn(2, "hello", ("a",)),
                turn(2, "hello"),
                bad,
                both,
                hidden,
                turn(5, "hello", ("b",)),
            ]
        )
        kinds = [frame.WhichOneof("frame") for frame in frames]
        assert kinds == ["event", *["error"] * 4, "event", "session_summary"]
        assert {frame.error.code for frame in frames[1:5]} == {"INVALID_ITEM"}
        assert "turn.last_invocation.messages[0]: differs from message 5" in frames[4].error.message
        assert "turn.turn_id: got 2, wanted more than 2" in frames[1].error.message
        assert "turn.new_messages_json" in frames[2].error.message
        assert frames[-1].session_summary.turn_count == 6
        counted = [frames[index].event.summary.metrics["tool-call-count"] for index in (0, 5)]
        assert counted == [1, 2], "refused turns add nothing to the conversation, and remove nothing"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("last_invocation.latency", {"latency": {"seconds": -1}}),
        ("last_invocation.cost.amount", {"cost": {"amount": float("nan")}}),
        ("last_invocation.token_usage.input_tokens", {"token_usage": {"input_tokens": -1}}),
        ("last_invocation.messages_json", {"messages_json": "[{"}),
        ("run_duration", {"seconds": -1}),
    ],
)
async def test_a_turn_with_numbers_that_cannot_be_is_refused(field: str, value: dict[str, Any]) -> None:
    wrong = turn(1, "hello")
    part = wrong.turn.run_duration if field == "run_duration" else wrong.turn.last_invocation
    part.MergeFrom(type(part)(**value))
    async with serving() as live:
        refused, evaluated, last = await live.session([opened(CONTAINS), wrong, turn(2, "hello")])
        assert refused.error.code == "INVALID_ITEM"
        assert f"turn.{field}" in refused.error.message
        assert evaluated.event.summary.success
        assert (last.session_summary.verdict, list(last.session_summary.failed_turn_ids)) == (ERROR, [1])


def _fail(_ctx: Any) -> bool:
    raise RuntimeError("broken")


async def test_a_turn_whose_evaluator_breaks_is_among_the_failed_ones() -> None:
    broken = define_evaluator(type="broken", kind=Kind.ASSERTION, evaluate=_fail)
    async with serving([broken]) as live:
        *_, last = await live.session([opened(spec("broken")), turn(1, "hello")])
        summary = last.session_summary
        assert (summary.verdict, summary.success, list(summary.failed_turn_ids)) == (ERROR, False, [1])


def json_turn(turn_id: int, text: str) -> Frame:
    frame = Frame()
    frame.turn.turn_id = turn_id
    frame.turn.new_messages_json = text
    frame.turn.is_final = True
    return frame


ANSWER = json.dumps([{"role": "assistant", "content": "hello"}])


@pytest.mark.parametrize(
    ("frames", "verdict", "count", "named"),
    [
        pytest.param([turn(1, "hello"), json_turn(2, "[{")], ERROR, 2, [2], id="the final turn is broken"),
        pytest.param([json_turn(1, "[{"), turn(2, "hello")], ERROR, 2, [1], id="the first turn is broken"),
        pytest.param([json_turn(1, "[{")], ERROR, 1, [1], id="the only turn is broken"),
        pytest.param([turn(1, "bye"), json_turn(2, "[{")], FAILED, 2, [1, 2], id="failed outranks it"),
        pytest.param([turn(1, "hello"), turn(1, "bye")], ERROR, 2, [1], id="an id for the second time"),
        pytest.param(
            [turn(1, "hello"), json_turn(2, "[{"), json_turn(2, ANSWER)], PASSED, 2, [], id="sent again"
        ),
        pytest.param(
            [json_turn(1, "[{"), json_turn(1, "[{"), json_turn(1, ANSWER)], ERROR, 2, [1], id="once too often"
        ),
    ],
)
async def test_a_session_does_not_forget_a_turn_that_could_not_be_evaluated(
    frames: list[Frame], verdict: Verdict, count: int, named: list[int]
) -> None:
    async with serving() as live:
        summary = (await live.session([opened(CONTAINS), *frames]))[-1].session_summary
        assert (summary.verdict, summary.success) == (verdict, verdict is PASSED)
        assert (summary.turn_count, list(summary.failed_turn_ids)) == (count, named)


async def test_a_session_of_nothing_but_broken_turns_is_ended() -> None:
    async with serving() as live:
        refused = await refusal(live.session([opened(CONTAINS), *[json_turn(1, "[{")] * 1001]))
        assert refused.code is grpc.StatusCode.INVALID_ARGUMENT
        assert "1001 turns" in refused.message


@pytest.mark.parametrize(
    ("frames", "text"),
    [
        ([turn(1, "x")], "first frame must be open"),
        ([Frame()], "first frame must be open"),
        ([opened(CONTAINS), opened(CONTAINS)], "must be turn"),
        ([], "before its open frame"),
        ([opened()], "checks nothing must not pass"),
        ([opened(CONTAINS, attempt=-1)], "open.base_context.attempt: got -1"),
        ([opened(CONTAINS, messages_json="[]")], "open.base_context.messages_json: got both"),
    ],
)
async def test_frames_out_of_order_end_the_session_with_a_clear_error(frames: list[Frame], text: str) -> None:
    async with serving() as live:
        refused = await refusal(live.session(frames))
        assert refused.code is grpc.StatusCode.INVALID_ARGUMENT
        assert text in refused.message


async def test_a_turns_own_expected_text_holds_for_that_turn_only() -> None:
    first = opened(spec("exact-match"))
    first.open.base_context.expected.text = "a"
    second = turn(2, "b")
    second.turn.expected.text = "b"
    async with serving() as live:
        frames = await live.session([first, turn(1, "a"), second, turn(3, "a")])
        assert [frame.event.summary.verdict for frame in frames[:3]] == [PASSED] * 3


async def test_a_turn_without_an_expected_text_has_not_that_of_the_turn_before() -> None:
    first = turn(1, "a")
    first.turn.expected.text = "a"
    async with serving() as live:
        *turns, last = await live.session([opened(spec("exact-match")), first, turn(2, "a")])
        assert [frame.event.summary.verdict for frame in turns] == [PASSED, FAILED]
        assert list(last.session_summary.failed_turn_ids) == [2]


async def test_an_empty_session_is_skipped_not_passed() -> None:
    async with serving() as live:
        (only,) = await live.session([opened(CONTAINS)])
        assert only.session_summary.verdict == Verdict.SKIPPED
        assert not only.session_summary.success


async def test_what_one_turn_reports_is_not_carried_to_the_next() -> None:
    first = opened(spec("completed-within", {"limitMs": 5000}), spec("turn-count"), spec("response-latency"))
    base = first.open.base_context
    base.turn, base.is_final, base.run_duration.seconds = 7, True, 1
    timed = turn(2, "b")
    timed.turn.run_duration.seconds = 1
    timed.turn.last_invocation.latency.seconds = 2
    async with serving() as live:
        *turns, last = await live.session([first, turn(1, "a"), timed, turn(3, "c")])
        assert [frame.event.summary.verdict for frame in turns] == [FAILED, PASSED, FAILED]
        assert turns[2].event.results[0].reason == "No run duration available"
        assert [frame.event.summary.metrics["turn-count"] for frame in turns] == [1, 2, 3]
        assert [frame.event.summary.metrics.get("response-latency") for frame in turns] == [None, 2, None]
        assert list(last.session_summary.failed_turn_ids) == [1, 3]


def long_turn(turn_id: int, size: int) -> Frame:
    return turn(turn_id, "x" * size)


async def test_the_conversation_of_a_session_has_a_limit() -> None:
    async with serving(max_message_bytes=10_000) as live:
        frames = [opened(CONTAINS), *(long_turn(number, 8_000) for number in (1, 2, 3)), turn(3, "hello")]
        _, _, refused, last, summary = await live.session(frames)
        assert refused.error.code == "INVALID_ITEM"
        assert "wanted at most 20000 (twice max_message_bytes)" in refused.error.message
        # The refused turn is no part of the conversation, which goes on.
        assert last.event.summary.verdict == PASSED
        assert (summary.session_summary.turn_count, list(summary.session_summary.failed_turn_ids)) == (
            3,
            [1, 2],
        )


async def test_what_a_turn_reports_is_counted_until_the_next_one() -> None:
    async with serving(max_message_bytes=10_000) as live:
        frames = [opened(CONTAINS)]
        for number in range(1, 7):
            frame = turn(number, "hello")
            frame.turn.expected.text = "x" * 8_000
            frames.append(frame)
        *answers, summary = await live.session(frames)
        assert {answer.event.summary.verdict for answer in answers} == {PASSED}
        assert summary.session_summary.verdict == PASSED


WAITING: dict[str, Any] = {
    "when: final": spec("contains", {"text": "hello"}, turn_policy=2, name="late"),
    "onlyFinal": spec("json-schema", {"schema": {"type": "string"}, "onlyFinal": True}, name="late"),
    "in a combinator": spec(
        "any-of",
        {
            "evaluators": [
                {"type": "all-of", "config": {"evaluators": [{"type": "is-json", "when": "final"}]}}
            ]
        },
        name="late",
    ),
    "required": spec("contains", {"text": "hello"}, turn_policy=2, name="late", required=True),
    "fails open": spec("contains", {"text": "hello"}, turn_policy=2, name="late", error_policy=2),
}


@pytest.mark.parametrize("late", WAITING.values(), ids=WAITING.keys())
@pytest.mark.parametrize(
    ("turns", "beside", "verdict"),
    [
        ([turn(1, "hello"), turn(2, "hello")], [], ERROR),
        ([turn(1, "hello"), turn(2, "hello")], [CONTAINS], ERROR),
        ([turn(1, "bye"), turn(2, "hello")], [CONTAINS], FAILED),
        ([], [CONTAINS], ERROR),
    ],
    ids=["alone", "beside a pass", "beside a failure", "no turn"],
)
async def test_a_session_without_its_final_turn_is_an_error_that_names_who_waited(
    turns: list[Frame], beside: list[Any], verdict: Verdict, late: Any
) -> None:
    async with serving() as live:
        last = (await live.session([opened(late, *beside), *turns]))[-1].session_summary
        assert (last.verdict, last.success) == (verdict, False)
        assert last.error.code == "NOT_FINISHED"
        assert '"late"' in last.error.message
        assert "set is_final on its last turn" in last.error.message


async def test_a_turn_after_the_final_one_leaves_the_session_unfinished() -> None:
    async with serving() as live:
        frames = [opened(WAITING["required"]), turn(1, "hello", is_final=True), turn(2, "hello")]
        *_, last = await live.session(frames)
        assert (last.session_summary.verdict, last.session_summary.error.code) == (ERROR, "NOT_FINISHED")


async def test_only_enforced_assertions_are_waited_for() -> None:
    shadow = spec("contains", {"text": "bye"}, turn_policy=2, enforcement=2)
    metric = spec("response-length", turn_policy=2)
    async with serving() as live:
        last = (await live.session([opened(CONTAINS, shadow, metric), turn(1, "hello")]))[-1]
        assert last.session_summary.verdict == PASSED
        assert not last.session_summary.HasField("error")


@pytest.mark.parametrize(
    "said",
    [
        [{"role": "assistant", "text": "hello"}],
        [{"role": "user", "text": "hi"}, {"role": "assistant", "text": "hello"}],
    ],
    ids=["the answer of the turn before", "all of the turn before"],
)
async def test_the_messages_of_a_turn_are_no_earlier_ones(said: list[dict[str, str]]) -> None:
    late = Frame()
    late.turn.turn_id = 2
    for message in said:
        late.turn.last_invocation.messages.add(**message)
    async with serving() as live:
        _, refused, last = await live.session([opened(CONTAINS), turn(1, "hello"), late])
        assert refused.error.code == "INVALID_ITEM"
        assert "turn.last_invocation.messages: got" in refused.error.message
        assert last.session_summary.verdict == ERROR


async def test_a_turn_without_messages_takes_nothing_from_the_turn_before() -> None:
    first = turn(1, "hello", ("a", "b"))
    first.turn.last_invocation.latency.seconds = 1
    first.turn.last_invocation.token_usage.total_tokens = 5
    first.turn.expected.text = "hello"
    empty = Frame()
    empty.turn.turn_id = 2
    specs = [
        *(
            spec("contains", {"text": "hello", "message": which}, name=which)
            for which in ("last", "first", "all")
        ),
        spec("exact-match"),
        spec("latency-budget", {"maxMs": 5000}),
        spec("token-budget", {"maxTokens": 50}),
        spec("tool-use", {"expectations": [{"name": "a"}], "scope": "turn"}),
        spec("tool-call-budget", {"maxCalls": 5}),
    ]
    async with serving() as live:
        before, after, last = await live.session([opened(*specs), first, empty])
        assert {result.verdict for result in before.event.results} == {PASSED}
        assert {result.verdict for result in after.event.results} == {FAILED}
        assert after.event.results[0].reason == "No assistant message found"
        assert list(last.session_summary.failed_turn_ids) == [2]
