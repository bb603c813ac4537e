"""Inputs become conversations and turns; what is none is refused with its line."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from evald_server.cli.conversations import (
    RecordedConversation,
    every_turn,
    last_turn,
    read_conversations,
    session_base,
)
from evald_server.cli.exit_codes import CommandError, ExitCode
from evald_server.suites.recorded_turns import turn_bounds

MESSAGES = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
ONE = json.dumps({"messages": MESSAGES})

INPUTS: list[Any] = [
    pytest.param(ONE, ["a"], id="object"),
    pytest.param(json.dumps({"messages": MESSAGES}, indent=2), ["a"], id="object over lines"),
    pytest.param(json.dumps(MESSAGES), ["a"], id="list of messages"),
    pytest.param(json.dumps(MESSAGES, indent=2), ["a"], id="list over lines"),
    pytest.param(f"{ONE}\n\n{ONE}\n", ["a:1", "a:3"], id="lines with a blank one"),
    pytest.param(f"[{ONE}, {ONE}]", ["a:1", "a:2"], id="list of conversations"),
    pytest.param(json.dumps({"id": 7, "messages": MESSAGES}), ["7"], id="own id"),
    pytest.param(json.dumps({"lastInvocation": {"messages": MESSAGES[1:]}}), ["a"], id="invocation alone"),
    pytest.param("[]", ["a"], id="no messages"),
    pytest.param(f"\n\n{ONE}", ["a:3"], id="blank lines first"),
    pytest.param(f"\ufeff{ONE}\n{ONE}", ["a:1", "a:2"], id="byte order mark"),
]


def _read(text: str, tmp_path: Path) -> list[RecordedConversation]:
    path = tmp_path / "a.jsonl"
    path.write_text(text, encoding="utf-8")
    return list(read_conversations([str(path)]))


@pytest.mark.parametrize(("text", "ids"), INPUTS)
def test_every_shape_is_read(text: str, ids: list[str], tmp_path: Path) -> None:
    found = _read(text, tmp_path)
    # An object that fills its file alone is named after the file.
    assert [c.id.removesuffix(":1") if len(found) == 1 else c.id for c in found] == ids


BAD: list[Any] = [
    pytest.param("", "empty", id="empty"),
    pytest.param(f"{ONE}\n{{nope\n", ":2: not valid JSON", id="bad second line"),
    pytest.param(f"{{nope\n{ONE}\n", ":1: not valid JSON", id="bad first line"),
    pytest.param('{\n"messages": [\n{"role":}\n]}', ":3: not valid JSON", id="bad line of a document"),
    pytest.param(f'{ONE}\n{{"a": 1}}\n', ":2: got only keys a, wanted a list of messages", id="no messages"),
    pytest.param('{"messages": "Hi"}', ":1: got a string, wanted a list of messages", id="messages are text"),
    pytest.param('{"messages": ["Hi"]}', "messages[0]: got a string", id="message is text"),
    pytest.param(f"{ONE}\n3\n", ":2: got a number", id="a number"),
    pytest.param(f"{json.dumps(MESSAGES)}\n{ONE}\n", ":2: a list of messages must be", id="list, then more"),
    pytest.param("[" * 100_000, ":1: not valid JSON", id="too deep"),
    pytest.param(
        '{"messages": [{"role": "assistant", "content": "no"}], "messages": []}',
        ":1: not valid JSON: got a duplicate key 'messages'",
        id="hidden messages",
    ),
    pytest.param(f'{ONE}\n{{"messages": [], "latency_ms": NaN}}', ":2: not valid JSON: NaN", id="NaN"),
]


@pytest.mark.parametrize(("text", "complaint"), BAD)
def test_what_is_no_conversation_is_refused_with_its_line(text: str, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(CommandError) as caught:
        _read(text, tmp_path)
    assert caught.value.code is ExitCode.USAGE
    assert complaint in str(caught.value)


def test_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b'{"messages": "\xff"}')
    with pytest.raises(CommandError, match="not UTF-8"):
        list(read_conversations([str(path)]))


def test_lines_are_read_when_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bad line far down does not stop what comes before it."""
    stdin = io.TextIOWrapper(io.BytesIO(f"{ONE}\n{ONE}\nnope\n".encode()))
    monkeypatch.setattr(sys, "stdin", stdin)
    found = read_conversations(["-"])
    assert next(found).place == "stdin:1"
    assert next(found).place == "stdin:2"
    with pytest.raises(CommandError, match="stdin:3"):
        next(found)


def _roles(text: str) -> list[dict[str, Any]]:
    names = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    return [{"role": names[letter], "content": letter} for letter in text]


@pytest.mark.parametrize(
    ("roles", "turns"),
    [
        pytest.param("sua", ["sua"], id="one turn"),
        pytest.param(
            "suauatau", ["sua", "uata", "u"], id="what the user says last is a turn without an answer"
        ),
        pytest.param("auaua", ["a", "ua", "ua"], id="the agent begins"),
        pytest.param("uuaa", ["uuaa"], id="several messages in a row"),
        pytest.param("uattaua", ["uatta", "ua"], id="tools belong to the turn"),
        pytest.param("u", ["u"], id="the agent never spoke"),
        pytest.param("", [""], id="nothing"),
    ],
)
def test_a_turn_is_what_the_agent_does_after_the_user(roles: str, turns: list[str]) -> None:
    assert [roles[start:end] for start, end in turn_bounds(_roles(roles))] == turns


FOREIGN: dict[str, list[Any]] = {
    "Anthropic": [
        {"role": "user", "content": "Book"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "find", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "ok"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "Done"}]},
        {"role": "user", "content": "Bye"},
        {"role": "assistant", "content": "Bye"},
    ],
    "Gemini": [
        {"role": "user", "parts": [{"text": "Book"}]},
        {"role": "model", "parts": [{"functionCall": {"name": "find", "args": {}}}]},
        {"role": "user", "parts": [{"functionResponse": {"name": "find", "response": {}}}]},
        {"role": "model", "parts": [{"text": "Done"}]},
        {"role": "user", "parts": [{"text": "Bye"}]},
        {"role": "model", "parts": [{"text": "Bye"}]},
    ],
    "LangChain": [
        {"type": "human", "content": "Book"},
        {"type": "ai", "content": "", "tool_calls": [{"name": "find", "args": {}, "id": "t"}]},
        {"type": "tool", "content": "ok", "tool_call_id": "t"},
        {"type": "ai", "content": "Done"},
        {"type": "human", "content": "Bye"},
        {"type": "ai", "content": "Bye"},
    ],
}


@pytest.mark.parametrize("messages", FOREIGN.values(), ids=FOREIGN)
def test_the_turns_of_other_frameworks_are_those_of_the_agent(messages: list[Any]) -> None:
    """A tool result that a framework calls a user's message begins no turn, and no turn is left out."""
    conversation = RecordedConversation("c", "f:1", messages, {"messages": messages})
    turns = [turn.context for turn in every_turn(conversation)]
    said = [[(one.role, one.text) for one in turn.messages] for turn in turns]
    assert said == [
        [
            ("user", "Book"),
            ("assistant", ""),
            ("tool", "ok" if "content" in messages[0] else "{}"),
            ("assistant", "Done"),
        ],
        [("user", "Bye"), ("assistant", "Bye")],
    ]
    assert [len(turn.turn_tool_calls) for turn in turns] == [1, 0]
    assert last_turn(conversation).context.turn == 2


def _conversation(roles: str, **data: Any) -> RecordedConversation:
    messages = _roles(roles)
    return RecordedConversation("c", "f:1", messages, {"messages": messages, **data})


def test_a_conversation_is_its_last_turn() -> None:
    turn = last_turn(_conversation("suauau", id=12, expected_output="done")).context
    assert [message.text for message in turn.messages] == list("suauau")
    assert turn.turn == 3
    assert turn.is_final
    assert turn.expected.text == "done"


def test_a_conversation_may_say_that_more_follows() -> None:
    assert not last_turn(_conversation("ua", isFinal=False)).context.is_final


@pytest.mark.parametrize(
    ("data", "latency_ms", "tokens", "cost"),
    [
        pytest.param({}, None, None, None, id="nothing is known"),
        pytest.param(
            {"latency_ms": 5, "usage": {"total_tokens": 7}, "cost_usd": 0.5},
            5,
            7,
            0.5,
            id="beside the messages",
        ),
        pytest.param(
            {"lastInvocation": {"latencyMs": 5, "tokenUsage": {"total": 7}, "costUsd": 0.5}},
            5,
            7,
            0.5,
            id="inside",
        ),
        pytest.param(
            {"message_meta": [{}, {"latency_ms": 5, "usage": {"total_tokens": 7}, "cost": 0.5}]},
            5,
            7,
            0.5,
            id="per message",
        ),
        pytest.param(
            {"latency_ms": 9, "message_meta": [{}, {"latency_ms": 5}]},
            9,
            None,
            None,
            id="the whole goes first",
        ),
        pytest.param(
            {
                "message_meta": [
                    {"timestamp": "2026-01-01T10:00:00"},
                    {"timestamp": "2026-01-01T10:00:01.500"},
                ]
            },
            1500,
            None,
            None,
            id="from the times",
        ),
        pytest.param({"message_meta": [{"timestamp": "noon"}, None]}, None, None, None, id="no times"),
    ],
)
def test_what_a_turn_took_is_what_is_reported(
    data: dict[str, Any], latency_ms: float | None, tokens: int | None, cost: float | None
) -> None:
    invocation = last_turn(_conversation("ua", **data)).context.last_invocation
    assert invocation.latency_ms == latency_ms
    assert (invocation.token_usage.total if invocation.token_usage else None) == tokens
    assert invocation.cost_usd == cost


@pytest.mark.parametrize("read", [last_turn, lambda conversation: list(every_turn(conversation))])
def test_an_answer_that_cannot_be_read_is_refused_and_not_left_out(read: Any) -> None:
    messages = [*_roles("uau"), {"role": "assistant", "content": [{"type": "text", "text": 5}]}]
    with pytest.raises(CommandError, match=r"f:1: messages\[3\]\.content\[0\]\.text: got 5"):
        read(RecordedConversation("c", "f:1", messages, {"messages": messages}))


def test_a_message_of_an_unknown_role_is_not_left_out() -> None:
    messages = [*_roles("uau"), {"role": "Assistant", "content": "no"}]
    turn = last_turn(RecordedConversation("c", "f:1", messages, {"messages": messages})).context
    assert (turn.turn, turn.messages[-1].text) == (2, "no")


SPENT: dict[str, Any] = {"latency_ms": 5, "usage": {"total_tokens": 7}, "cost_usd": 0.5}


@pytest.mark.parametrize(
    ("reports", "known"),
    [
        pytest.param([SPENT, SPENT], (10, 14, 1.0), id="every message reports"),
        pytest.param([None, SPENT], (5, 7, 0.5), id="the last one reports for the turn"),
        pytest.param([SPENT, None], (None, None, None), id="a part would pass a budget"),
    ],
)
def test_a_part_of_what_a_turn_took_is_not_taken_for_the_whole(
    reports: list[Any], known: tuple[float | None, int | None, float | None]
) -> None:
    meta = [None, reports[0], None, reports[1]]
    invocation = last_turn(_conversation("uata", message_meta=meta)).context.last_invocation
    tokens = invocation.token_usage.total if invocation.token_usage else None
    assert (invocation.latency_ms, tokens, invocation.cost_usd) == known


@pytest.mark.parametrize("read", [last_turn, lambda conversation: list(every_turn(conversation))])
def test_a_negative_figure_of_a_message_is_refused_with_its_place(read: Any) -> None:
    meta = [None, {"latency_ms": -900}, {"latency_ms": 1000}]
    with pytest.raises(CommandError, match="f:1: latency_ms: got -900"):
        read(_conversation("uaa", message_meta=meta))


def test_what_a_conversation_took_is_not_said_of_each_of_its_turns() -> None:
    conversation = _conversation("uaua", latency_ms=900, message_meta=[{}, {"usage": {"input": 3}}, {}, {}])
    first, second = (turn.context for turn in every_turn(conversation))
    assert first.last_invocation.latency_ms is None
    assert first.last_invocation.token_usage is not None
    assert first.last_invocation.token_usage.total == 3
    assert second.last_invocation.token_usage is None
    assert (first.is_final, second.is_final) == (False, True)
    assert [m.text for m in second.messages] == ["u", "a"]


def test_the_turns_share_what_holds_for_the_conversation() -> None:
    base = session_base(
        _conversation("ua", id="c-1", expected="x", scenario={"name": "s"}, latency_ms=3, other=1)
    )
    assert base.context.expected.text == "x"
    assert base.context.scenario is not None
    assert base.context.messages == []
    assert base.to_proto().correlation.conversation_id == "c-1"


def test_a_message_that_is_none_is_refused_with_its_place() -> None:
    conversation = RecordedConversation(
        "c", "f:4", [{"content": "no role"}], {"messages": [{"content": "no role"}]}
    )
    with pytest.raises(CommandError, match=r"f:4: messages\[0\]"):
        last_turn(conversation)
