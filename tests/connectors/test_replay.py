"""A recording says what was recorded, turn by turn, and knows nothing that was not."""

from typing import Any

import pytest

from evald.structs import duration_ms
from evald_server.connectors.build import try_connector

from .building import built, connectors, failure, messages, stored, texts, turn

CALL = {"id": "c1", "type": "function", "function": {"name": "find_slots", "arguments": "{}"}}
RECORDING: list[dict[str, Any]] = [
    {"role": "system", "content": "Be kind."},
    {"role": "assistant", "content": "Hello!"},
    {"role": "user", "content": "A slot, please."},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "[9]"},
    {"role": "assistant", "content": "At nine?"},
    {"role": "user", "content": "Yes."},
    {"role": "assistant", "content": "Booked."},
    {"role": "user", "content": "Bye."},
]


async def test_a_recording_is_played_to_the_last_message_that_was_answered() -> None:
    async with built("replay", config={"messages": RECORDING}) as replay:
        assert replay.brings_user
        said = list(replay.opening)
        assert [message.role for message in said] == ["system", "assistant"]
        turns = []
        while (user := replay.user_message(said)) is not None:
            said.append(user)
            answer = await replay.invoke(turn()._replace(messages=said))
            said.extend(answer.messages)
            turns.append((user.text, texts(answer)))
            assert not answer.HasField("latency")
            assert not answer.HasField("token_usage")
            assert not answer.HasField("cost")
        assert turns == [
            ("A slot, please.", [("assistant", ""), ("tool", "[9]"), ("assistant", "At nine?")]),
            ("Yes.", [("assistant", "Booked.")]),
        ]
        assert said[3].tool_calls[0].function.name == "find_slots"
        assert not said[3].HasField("text")


async def test_a_turn_that_was_said_in_part_goes_on_where_it_stopped() -> None:
    async with built("replay", config={"messages": RECORDING}) as replay:
        answer = await replay.invoke(turn("A slot, please.", RECORDING[3]))
        assert texts(answer) == [("tool", "[9]"), ("assistant", "At nine?")]
        over = await failure(replay, turn("A slot, please.", *RECORDING[3:6]))
        assert (over.code, over.message) == (
            "CONNECTOR_BAD_ANSWER",
            "the recording has no more messages of turn 1",
        )


async def test_what_was_never_recorded_is_no_answer() -> None:
    async with built("replay", config={"messages": RECORDING}) as replay:
        for said in (("a", "b", "c"), ({"role": "assistant", "content": "Hello!"},)):
            assert (await failure(replay, turn(*said))).code == "CONNECTOR_BAD_ANSWER"


META = [
    {},
    {},
    {"timestamp": "2025-08-01T16:16:38.000", "cost": 9.0, "usage": {"prompt_tokens": 900}},
    {
        "timestamp": "2025-08-01T16:16:39.500",
        "cost": 0.5,
        "usage": {"prompt_tokens": 10, "completion_tokens": 2},
    },
    {"timestamp": "2025-08-01T16:16:40.000"},
    {
        "timestamp": "2025-08-01T16:16:41.250",
        "cost": 0.25,
        "usage": {"prompt_tokens": 20, "completion_tokens": 4},
    },
    None,
    {"latencyMs": 700, "model": "agent-1"},
    {},
]


@pytest.mark.parametrize("inside", [False, True], ids=["beside", "in-the-messages"])
async def test_what_was_recorded_of_a_turn_is_the_agent_s_alone(inside: bool) -> None:
    config: dict[str, Any] = {"messages": RECORDING, "messageMeta": META}
    if inside:
        config = {
            "messages": [{**said, "metadata": meta or {}} for said, meta in zip(RECORDING, META, strict=True)]
        }
    async with built("replay", config=config) as replay:
        first = await replay.invoke(turn("A slot, please."))
        assert duration_ms(first.latency) == 3250
        assert (first.cost.currency_code, first.cost.amount) == ("USD", 0.75)
        assert (first.token_usage.input_tokens, first.token_usage.output_tokens) == (30, 6)
        second = await replay.invoke(turn("A slot, please.", *RECORDING[3:6], "Yes."))
        assert (duration_ms(second.latency), second.model) == (700, "agent-1")
        assert not second.HasField("token_usage")


@pytest.mark.parametrize(
    ("called", "answered", "known"),
    [
        pytest.param({"latencyMs": 100}, {"latencyMs": 50}, 150, id="both"),
        pytest.param({}, {"latencyMs": 150}, 150, id="the-whole-turn-at-its-end"),
        pytest.param({"latencyMs": 100}, {}, None, id="a-part"),
    ],
)
async def test_a_part_of_what_a_turn_took_is_not_taken_for_the_whole(
    called: dict[str, int], answered: dict[str, int], known: float | None
) -> None:
    meta = [{}, {}, {}, called, {}, answered]
    async with built("replay", config={"messages": RECORDING, "messageMeta": [*meta, {}, {}, {}]}) as replay:
        first = await replay.invoke(turn("A slot, please."))
        assert (duration_ms(first.latency) if first.HasField("latency") else None) == known


async def test_a_recording_of_another_stack_is_read_with_its_usage() -> None:
    recording = [
        {"type": "human", "content": "A slot, please."},
        {"type": "ai", "content": "", "tool_calls": [{"name": "find_slots", "args": {"day": 1}, "id": "c1"}]},
        {"type": "tool", "content": "[9]", "tool_call_id": "c1"},
        {
            "type": "ai",
            "content": "At nine?",
            "usage_metadata": {"input_tokens": 7, "output_tokens": 3, "total_tokens": 10},
        },
        {"type": "human", "content": "Yes."},
        {"type": "ai", "content": "Booked."},
    ]
    async with built("replay", config={"messages": recording}) as replay:
        answer = await replay.invoke(turn("A slot, please."))
        assert answer.messages[0].tool_calls[0].function.arguments == '{"day": 1}'
        assert answer.token_usage.total_tokens == 10
        assert not (await replay.invoke(turn("a", "b"))).HasField("token_usage")


BAD: dict[str, tuple[dict[str, Any], str, str]] = {
    "nothing": ({}, "connector.config.messages", "missing"),
    "no-messages": ({"messages": []}, "connector.config.messages", "no user message"),
    "nobody-answers": ({"messages": RECORDING[2:3]}, "connector.config.messages", "no user message"),
    "no-role": ({"messages": [{"content": "Hi"}]}, "connector.config.messages[0].role", "missing"),
    "two-users": (
        {"messages": [RECORDING[2], RECORDING[6], RECORDING[7]]},
        "connector.config.messages[1]",
        "second user message",
    ),
    "a-bad-call": (
        {"messages": [RECORDING[2], {"role": "assistant", "tool_calls": [{}]}]},
        "connector.config.messages[1].tool_calls[0].function.name",
        "missing",
    ),
    "meta-of-others": (
        {"messages": RECORDING, "messageMeta": [{}]},
        "connector.config.messageMeta",
        "1 entries; wanted 9",
    ),
    "negative-latency": (
        {"messages": RECORDING, "messageMeta": [{"latencyMs": -1}, *META[1:]]},
        "connector.config.messageMeta[0].latency_ms",
        "0 or more",
    ),
    "no-time": (
        {"messages": RECORDING, "messageMeta": [{"timestamp": "soon"}, *META[1:]]},
        "connector.config.messageMeta[0].timestamp",
        "ISO 8601",
    ),
    **{
        f"too-much-{key}": (
            {"messages": RECORDING, "messageMeta": [{key: value}, *META[1:]]},
            f"connector.config.messageMeta[0].{path}",
            "at most",
        )
        for key, path, value in (
            ("latencyMs", "latency_ms", 1e300),
            ("cost", "cost", 1e300),
            ("timestamp", "timestamp", 1e300),
            ("usage", "usage", {"input": 1e13}),
        )
    },
    "no-usage": (
        {"messages": RECORDING, "messageMeta": [{"usage": {"input": -4}}, *META[1:]]},
        "connector.config.messageMeta[0].usage.input",
        "whole number",
    ),
    "misspelled": ({"message": RECORDING}, "connector.config.message", "did you mean"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_recording_that_cannot_be_played_is_refused_with_its_path(name: str) -> None:
    config, path, words = BAD[name]
    found = dict(connectors().violations(stored("replay", config=config)))
    assert words in found[path]


def test_too_many_messages_are_refused() -> None:
    found = connectors(max_messages=8).violations(stored("replay", config={"messages": RECORDING}))
    assert found == [("connector.config.messages", "9 messages; wanted at most 8")]


async def test_trying_a_recording_plays_its_first_turn() -> None:
    async with built("replay", config={"messages": RECORDING}) as replay:
        tried = await try_connector(replay, "something else")
        assert (tried.success, tried.messages[-1].text) == (True, "At nine?")
        assert not tried.HasField("latency")


def test_a_said_message_is_found_by_the_user_s_messages_alone() -> None:
    replay = connectors().build(stored("replay", config={"messages": RECORDING}))
    found = replay.user_message(messages("another start", RECORDING[5]))
    assert found is not None
    assert found.text == "Yes."
    assert replay.user_message(messages("a", "b")) is None
