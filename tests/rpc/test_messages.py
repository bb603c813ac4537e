"""What a conversation holds reaches the evaluators behind a real channel, or is refused by name."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import evald
from evald import Verdict
from evald.blocks import MAX_BLOCKS
from evald.messages import MAX_NODES, MAX_UNKNOWN_KEYS
from evald.v1 import context_pb2
from evald_server import testing

QUESTION = {"role": "user", "content": "What is the weather in Paris?"}

# Checks for absence: what vanishes in silence passes them.
ABSENCE: list[dict[str, Any]] = [
    {"type": "regex", "config": {"pattern": "degrees", "mustMatch": False}},
    {"type": "contains", "config": {"text": "degrees"}, "negate": True},
    {"type": "length-within", "config": {"max": 10}},
    {"type": "tool-use", "config": {"expectations": [{"name": "get_weather", "maxCalls": 0}]}},
    {"type": "tool-call-budget", "config": {"maxCalls": 0}},
]


# Somebody else's evaluator.
absent = evald.define_evaluator(
    type="test.absent",
    kind=evald.ASSERTION,
    evaluate=lambda ctx: "degrees" not in (ctx.answer or ""),
    description="The answer does not name degrees.",
)


@pytest.fixture(scope="module")
def client() -> Iterator[evald.Client]:
    with testing.server(absent) as server, server.client() as connected:
        yield connected


def sent(block: dict[str, Any]) -> evald.Turn:
    """A turn as a client in another language sends it: blocks as protobuf."""
    pb = context_pb2.EvaluatorContext()
    pb.messages.add(role="user", text="?")
    message = pb.messages.add(role="assistant")
    fields = dict(block)
    added = message.blocks.items.add(type=fields.pop("type"))
    if "text" in fields:
        added.text = fields.pop("text")
    added.fields.update(fields)
    turn = evald.Turn()
    turn.to_proto().CopyFrom(pb)
    return turn


UNREADABLE = {
    "text of an unknown type": {"type": "prose", "text": "18 degrees"},
    "text among the fields": {"type": "text", "content": "18 degrees"},
}


@pytest.mark.parametrize("block", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_an_unreadable_block_passes_no_check_for_absence(block: dict[str, Any], client: evald.Client) -> None:
    specs = [*ABSENCE, {"type": "test.absent"}, {"type": "turn-count"}]
    evaluation = client.evaluate(sent(block), specs)
    assert evaluation.verdict is Verdict.ERROR
    for result in evaluation.results[:-1]:
        assert result.verdict is Verdict.ERROR, result
        assert result.error
        assert result.error.code == "UNREADABLE_CONTENT"
        assert f"messages[1].blocks.items[0].type: got '{block['type']}'" in result.error.message
    # What reads no message is not concerned.
    assert evaluation.results[-1].verdict is Verdict.PASSED


CALLED = {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "delete", "arguments": "{}"}}]}
DONE = {"role": "assistant", "content": "Done."}


@pytest.mark.parametrize(
    ("messages", "turn_messages", "field"),
    [
        pytest.param([QUESTION, DONE], [CALLED, DONE], "[0]", id="a call in the turn alone"),
        pytest.param([QUESTION, CALLED, DONE], [{**DONE, "content": "Yes."}], "[0]", id="another answer"),
        pytest.param([QUESTION, CALLED, DONE], [CALLED], "[0]", id="not the last ones"),
        pytest.param([DONE], [CALLED, DONE], "", id="more than the conversation has"),
    ],
)
def test_a_turn_that_is_no_tail_of_the_conversation_is_refused(
    messages: list[Any], turn_messages: list[Any], field: str, client: evald.Client
) -> None:
    turn = evald.Turn(messages=messages, turn_messages=turn_messages)
    with pytest.raises(
        evald.errors.InvalidRequest, match="wanted exactly the last messages of the conversation"
    ) as refused:
        client.evaluate(turn, ABSENCE)
    assert refused.value.violations[0].field == f"context.last_invocation.messages{field}"


def test_it_is_refused_in_batches_streams_and_on_the_callers_side_too(client: evald.Client) -> None:
    turn = evald.Turn(messages=[QUESTION, CALLED, DONE], turn_messages=[DONE, DONE])
    wrong = "last_invocation.messages[0]: differs from message 1 of the conversation"
    answers = {one.id: one for one in client.batch({"odd": turn, "good": [QUESTION, DONE]}.items(), ABSENCE)}
    assert answers["odd"].error is not None
    assert (answers["odd"].error.code, wrong in answers["odd"].error.message) == ("INVALID_ITEM", True)
    assert answers["good"].evaluation is not None
    with pytest.raises(evald.errors.InvalidRequest, match=re.escape(wrong)):
        [*client.stream(turn, ABSENCE)]
    with pytest.raises(evald.InvalidInput, match=re.escape(wrong)):
        _ = turn.context


def test_a_turn_may_be_the_tail_of_the_conversation_or_all_there_is(client: evald.Client) -> None:
    never = {"type": "tool-use", "config": {"expectations": [{"name": "delete", "maxCalls": 0}]}}
    for messages in ([QUESTION, CALLED, DONE], []):
        turn = evald.Turn(messages=messages, turn_messages=[CALLED, DONE])
        assert client.evaluate(turn, [never]).verdict is Verdict.FAILED


@pytest.mark.parametrize("scope", ["turn", "conversation"])
@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([], "No assistant message found"),
        ([QUESTION], "No assistant message found"),
    ],
    ids=["nothing", "a question"],
)
def test_where_the_agent_has_said_nothing_no_check_of_its_calls_passes(
    messages: list[Any], why: str, scope: str, client: evald.Client
) -> None:
    types: dict[str, dict[str, Any]] = {
        "tool-use": {"expectations": [{"name": "delete", "maxCalls": 0}]},
        "tool-call-budget": {"maxCalls": 0},
        "trajectory": {"expected": []},
    }
    specs = [{"type": name, "config": {**config, "scope": scope}} for name, config in types.items()]
    specs += [{"type": "tool-use", "config": {"expectations": [{"name": "delete"}]}, "negate": True}]
    specs += [{"type": "execution-limits", "config": {"maxToolCalls": 5}}]
    *results, limits = client.evaluate(messages, specs).results
    assert [(result.verdict, result.reason) for result in results] == [(Verdict.FAILED, why)] * 4
    assert (limits.verdict, limits.reason) == (
        Verdict.FAILED,
        "0 of 1 limits met: Tool calls data not available",
    )


def test_checks_of_the_conversations_calls_look_at_earlier_turns(client: evald.Client) -> None:
    never = {"type": "tool-call-budget", "config": {"maxCalls": 0, "scope": "conversation"}}
    assert client.evaluate([QUESTION, DONE, QUESTION], [never]).passed
    assert client.evaluate([QUESTION, CALLED, QUESTION], [never]).verdict is Verdict.FAILED


SILENT: dict[str, Any] = {
    "null": {"content": None},
    "no blocks": {"content": []},
    "only an image": {"content": [{"type": "image_url", "image_url": {"url": "https://x"}}]},
    "only reasoning": {"content": [{"type": "thinking", "thinking": "hm"}]},
}


@pytest.mark.parametrize("message", SILENT.values(), ids=SILENT.keys())
def test_a_message_that_says_nothing_passes_no_check_of_the_answer(
    message: dict[str, Any], client: evald.Client
) -> None:
    specs = [*ABSENCE, {"type": "tool-use", "config": {"expectations": [{"name": "x"}]}, "negate": True}]
    messages = [QUESTION, {"role": "assistant", **message}]
    for turn in (messages, json.dumps(messages)):
        evaluation = client.evaluate(turn, specs)
        assert evaluation.verdict is Verdict.FAILED
        for result in evaluation.results:
            assert result.verdict is Verdict.FAILED, result
            assert result.reason.startswith("No assistant message ")


HOSTILE: dict[str, tuple[Callable[[], Any], str, int]] = {
    # makes the messages, what is too much, its limit
    "700,000 unknown keys": (
        lambda: [QUESTION | {f"k{n}": 0 for n in range(700_000)}],
        "keys and values",
        MAX_NODES,
    ),
    "10,000 unknown keys": (
        lambda: [QUESTION | {f"k{n}": 0 for n in range(10_000)}],
        "unknown keys",
        MAX_UNKNOWN_KEYS,
    ),
    "400,000 content blocks": (
        lambda: [{"role": "user", "content": [{"type": "text", "text": ""}] * 400_000}],
        "keys and values",
        MAX_NODES,
    ),
    "11,000 content blocks": (
        lambda: [{"role": "user", "content": [{"type": "text", "text": ""}] * 11_000}],
        "content blocks",
        MAX_BLOCKS,
    ),
    "6,000 results in one message": (
        lambda: [{"role": "user", "content": [{"type": "tool_result", "id": "c", "content": "x"}] * 6000}],
        "messages",
        5000,
    ),
}


@pytest.mark.parametrize(("messages", "what", "limit"), HOSTILE.values(), ids=HOSTILE.keys())
def test_too_much_of_anything_is_refused_with_its_numbers(
    messages: Callable[[], Any], what: str, limit: int, client: evald.Client
) -> None:
    with pytest.raises(evald.errors.InvalidRequest, match=what) as refused:
        client.evaluate(json.dumps(messages()), ["turn-count"])
    assert refused.value.metadata["limit"] == str(limit)
    assert int(refused.value.metadata["size"]) > limit
    assert refused.value.violations[0].field.startswith("context.messages_json")


def test_400_000_blocks_in_protobuf_are_an_error_of_whoever_reads_them(client: evald.Client) -> None:
    turn = evald.Turn()
    blocks = context_pb2.EvaluatorContext()
    message = blocks.messages.add(role="assistant")
    for _ in range(1000):
        message.blocks.items.add()
    for _ in range(400):
        turn.to_proto().messages.append(message)
    evaluation = client.evaluate(turn, [{"type": "contains", "config": {"text": "x"}}, "turn-count"])
    contains = evaluation["contains"]
    assert contains.error
    assert contains.error.code == "INPUT_TOO_LARGE"
    assert f"at most {MAX_BLOCKS}" in contains.error.message
    assert evaluation["turn-count"].verdict is Verdict.PASSED


def test_one_evaluator_and_one_answer_are_enough(client: evald.Client) -> None:
    assert client.evaluate("18 degrees", {"type": "contains", "config": {"text": "18"}}).passed
    assert client.evaluate("18 degrees", "response-length").metrics == {"response-length": 10}


def test_a_check_of_the_final_turn_that_may_never_come_is_warned_of(client: evald.Client) -> None:
    final = {"type": "contains", "name": "booked", "config": {"text": "BK"}, "when": "final"}
    for facts, warned in (({}, True), ({"number": 1}, False), ({"is_final": True}, False)):
        evaluation = client.evaluate(evald.Turn([QUESTION], "BK-1", **facts), final)
        assert ("'booked' waits for the final turn" in str(evaluation.warnings)) is warned
