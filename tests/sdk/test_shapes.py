"""Messages of other stacks, written by hand in their documented shapes: read whole, or refused by name.

Real objects and recorded dumps of the libraries are in tests/frameworks.
"""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evald import InvalidInput, Turn
from evald.blocks import MAX_BLOCKS
from evald.context import EvaluatorContext
from evald.messages import MAX_NODES, MAX_UNKNOWN_KEYS, parse_messages_json
from evald.shapes import FAMILIES
from evald.shapes.usage import add_usages
from evald.turn import as_turn
from evald.v1 import context_pb2

QUESTION = {"role": "user", "content": "What is the weather in Paris?"}
ARGS = {"city": "Paris"}
RESULT = "18 degrees"
ANSWER = "It is 18 degrees in Paris."

CONVERSATIONS: dict[str, list[Any]] = {
    "pairs": [
        ("user", "What is the weather in Paris?"),
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "name": "get_weather", "args": ARGS}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": RESULT},
        ("ai", ANSWER),
    ],
    "AI SDK 5 UI messages": [
        {"id": "1", "role": "user", "parts": [{"type": "text", "text": "What is the weather in Paris?"}]},
        {
            "id": "2",
            "role": "assistant",
            "metadata": {"model": "m"},
            "parts": [
                {"type": "step-start"},
                {"type": "reasoning", "text": "Look it up.", "state": "done"},
                {
                    "type": "tool-get_weather",
                    "toolCallId": "c1",
                    "state": "output-available",
                    "input": ARGS,
                    "output": RESULT,
                },
                {"type": "data-progress", "data": {"text": "half"}},
            ],
        },
        {"id": "3", "role": "assistant", "parts": [{"type": "text", "text": ANSWER, "state": "done"}]},
    ],
    "AI SDK 5 dynamic tools": [
        QUESTION,
        {
            "role": "assistant",
            "parts": [
                {
                    "type": "dynamic-tool",
                    "toolName": "get_weather",
                    "toolCallId": "c1",
                    "state": "output-available",
                    "input": ARGS,
                    "output": RESULT,
                }
            ],
        },
        {"role": "assistant", "parts": [{"type": "text", "text": ANSWER}]},
    ],
    "AI SDK 4 UI messages": [
        QUESTION,
        {
            "role": "assistant",
            "content": "",
            "toolInvocations": [
                {
                    "state": "result",
                    "toolCallId": "c1",
                    "toolName": "get_weather",
                    "args": ARGS,
                    "result": RESULT,
                }
            ],
        },
        {"role": "assistant", "content": ANSWER},
    ],
    "AI SDK model messages": [
        {"role": "user", "content": [{"type": "text", "text": "What is the weather in Paris?"}]},
        {
            "role": "assistant",
            "content": [{"type": "tool-call", "toolCallId": "c1", "toolName": "get_weather", "input": ARGS}],
        },
        {
            "role": "tool",
            "content": [
                {
                    "type": "tool-result",
                    "toolCallId": "c1",
                    "toolName": "get_weather",
                    "output": {"type": "text", "value": RESULT},
                }
            ],
        },
        {"role": "assistant", "content": [{"type": "text", "text": ANSWER}]},
    ],
    "OTel GenAI": [
        {"role": "user", "parts": [{"type": "text", "content": "What is the weather in Paris?"}]},
        {
            "role": "assistant",
            "parts": [{"type": "tool_call", "id": "c1", "name": "get_weather", "arguments": ARGS}],
            "finish_reason": "tool_call",
        },
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": RESULT}]},
        {"role": "assistant", "parts": [{"type": "text", "content": ANSWER}], "finish_reason": "stop"},
    ],
    "Bedrock and Strands": [
        {"role": "user", "content": [{"text": "What is the weather in Paris?"}]},
        {
            "role": "assistant",
            "content": [
                {"reasoningContent": {"reasoningText": {"text": "Look it up.", "signature": "s"}}},
                {"toolUse": {"toolUseId": "c1", "name": "get_weather", "input": ARGS}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"toolResult": {"toolUseId": "c1", "status": "success", "content": [{"text": RESULT}]}}
            ],
        },
        {"role": "assistant", "content": [{"text": ANSWER}]},
    ],
    "ADK events": [
        {
            "author": "user",
            "invocationId": "i1",
            "content": {"role": "user", "parts": [{"text": "What is the weather in Paris?"}]},
        },
        {
            "author": "weather",
            "invocationId": "i1",
            "content": {
                "role": "model",
                "parts": [{"functionCall": {"id": "c1", "name": "get_weather", "args": ARGS}}],
            },
            "usageMetadata": {"promptTokenCount": 10, "candidatesTokenCount": 5},
        },
        {
            "author": "weather",
            "invocationId": "i1",
            "content": {
                "role": "user",
                "parts": [
                    {"functionResponse": {"id": "c1", "name": "get_weather", "response": {"result": RESULT}}}
                ],
            },
        },
        {
            "author": "weather",
            "invocationId": "i1",
            "partial": True,
            "content": {"parts": [{"text": "It is 18"}]},
        },
        {
            "author": "weather",
            "invocationId": "i1",
            "content": {"role": "model", "parts": [{"text": ANSWER}]},
            "actions": {"stateDelta": {}},
        },
    ],
    "Anthropic params": [
        QUESTION,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Look it up.", "signature": "s"},
                {"type": "tool_use", "id": "c1", "name": "get_weather", "input": ARGS},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": RESULT}]},
        {"role": "assistant", "content": ANSWER},
    ],
    "Google contents without roles on prompts": [
        {"parts": [{"text": "What is the weather in Paris?"}]},
        {"role": "model", "parts": [{"function_call": {"name": "get_weather", "args": ARGS}}]},
        {
            "role": "function",
            "parts": [{"function_response": {"name": "get_weather", "response": {"r": RESULT}}}],
        },
        {"role": "model", "parts": [{"text": ANSWER}]},
    ],
    "Responses items": [
        {"role": "user", "content": [{"type": "input_text", "text": "What is the weather in Paris?"}]},
        {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "x"},
        {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": '{"city": "Paris"}'},
        {"type": "function_call_output", "call_id": "c1", "output": RESULT},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": ANSWER}]},
    ],
    "LangChain dumps": [
        {"type": "human", "content": "What is the weather in Paris?"},
        {"type": "ai", "content": "", "tool_calls": [{"name": "get_weather", "args": ARGS, "id": "c1"}]},
        {"type": "tool", "content": RESULT, "tool_call_id": "c1", "status": "success"},
        {"type": "ai", "content": [{"type": "text", "text": ANSWER}], "tool_calls": []},
    ],
}


@pytest.mark.parametrize("messages", CONVERSATIONS.values(), ids=CONVERSATIONS.keys())
@pytest.mark.parametrize("as_text", [False, True], ids=["data", "JSON text"])
def test_a_conversation_is_read_whole(messages: list[Any], as_text: bool) -> None:
    ctx = Turn(json.dumps(messages) if as_text else messages).context
    assert [message.role for message in ctx.messages] == ["user", "assistant", "tool", "assistant"]
    assert ctx.messages[0].text == "What is the weather in Paris?"
    assert ctx.answer == ANSWER
    assert [(call.name, call.args) for call in ctx.turn_tool_calls] == [("get_weather", ARGS)]
    assert RESULT in ctx.messages[2].text
    assert ctx.messages[2].tool_call_id == (ctx.turn_tool_calls[0].id or None)


def test_messages_of_several_stacks_may_be_mixed() -> None:
    mixed = [
        *CONVERSATIONS["Bedrock and Strands"][:2],
        CONVERSATIONS["OTel GenAI"][2],
        CONVERSATIONS["Responses items"][4],
    ]
    ctx = Turn(mixed).context
    assert (ctx.answer, [call.name for call in ctx.tool_calls]) == (ANSWER, ["get_weather"])


ANSWERS: dict[str, tuple[Any, dict[str, Any]]] = {
    # response, what it says
    "Anthropic": (
        {
            "id": "r1",
            "type": "message",
            "role": "assistant",
            "model": "m1",
            "content": [{"type": "text", "text": ANSWER}],
            "stop_reason": "max_tokens",
            "usage": {
                "input_tokens": 3,
                "cache_read_input_tokens": 4,
                "cache_creation_input_tokens": 5,
                "output_tokens": 6,
            },
        },
        {"input": 12, "output": 6, "model": "m1", "reason": "length", "id": "r1"},
    ),
    "Google": (
        {
            "candidates": [{"content": {"parts": [{"text": ANSWER}]}, "finishReason": "SAFETY"}],
            "usageMetadata": {
                "promptTokenCount": 3,
                "candidatesTokenCount": 4,
                "thoughtsTokenCount": 5,
                "totalTokenCount": 12,
            },
            "modelVersion": "m1",
            "responseId": "r1",
        },
        {"input": 3, "output": 9, "model": "m1", "reason": "content_filter", "id": "r1"},
    ),
    "Converse": (
        {
            "output": {"message": {"role": "assistant", "content": [{"text": ANSWER}]}},
            "stopReason": "end_turn",
            "usage": {"inputTokens": 3, "outputTokens": 4, "totalTokens": 7},
            "metrics": {"latencyMs": 250},
        },
        {"input": 3, "output": 4, "model": None, "reason": "stop", "latency": 250},
    ),
    "OTel": (
        {"role": "assistant", "parts": [{"type": "text", "content": ANSWER}], "finish_reason": "length"},
        {"input": None, "output": None, "model": None, "reason": "length"},
    ),
}


@pytest.mark.parametrize(("response", "said"), ANSWERS.values(), ids=ANSWERS.keys())
def test_an_answer_says_its_usage_model_and_reason(response: Any, said: dict[str, Any]) -> None:
    turn = Turn([QUESTION], response)
    invocation = turn.context.last_invocation
    usage = invocation.token_usage
    assert turn.context.answer == ANSWER
    assert (usage.input_tokens if usage else None, usage.output_tokens if usage else None) == (
        said["input"],
        said["output"],
    )
    assert invocation.model == said["model"]
    assert invocation.metadata["finish_reason"] == said["reason"]
    assert turn.to_proto().correlation.response_id == said.get("id", "")
    assert invocation.latency_ms == said.get("latency")


def test_the_tokens_of_earlier_turns_do_not_count() -> None:
    def said(text: str, tokens: int) -> dict[str, Any]:
        usage = {"input_tokens": tokens, "output_tokens": 1, "total_tokens": tokens + 1}
        return {"type": "ai", "content": text, "usage_metadata": usage}

    asked = {"type": "human", "content": "?"}
    turn = Turn([asked, said("a", 100), asked, said("b", 2)], said("c", 3))
    assert turn.context.last_invocation.token_usage == (5, 2, 7)


@pytest.mark.parametrize(("written_by", "added"), [({"model_name": "m"}, None), ({}, (3, 1, 4))])
def test_tokens_that_a_model_of_langchain_does_not_report_are_not_known(
    written_by: dict[str, Any], added: tuple[int, ...] | None
) -> None:
    usage = {"input_tokens": 3, "output_tokens": 1, "total_tokens": 4}
    first = {"type": "ai", "content": "a", "usage_metadata": usage}
    second = {"type": "ai", "content": "b", "response_metadata": written_by}
    assert Turn([], [first, second]).context.last_invocation.token_usage == added


@pytest.mark.parametrize(
    ("first", "second", "added"),
    [
        ({"input": 3, "output": 1}, {"input": 2, "output": 2}, (5, 3, 8)),
        ({"input": 3, "output": 1}, {"total": 5}, (None, None, 9)),
        ({"input": 3}, {"total": 5}, (None, None, None)),
        ({"input": 3, "output": 1}, {"input": 2}, (5, None, None)),
        ({"input": 3, "output": 1, "cachedInputTokens": 2}, {"input": 2, "output": 2}, (5, 3, 8)),
    ],
)
def test_tokens_that_one_of_several_answers_does_not_report_are_not_known(
    first: dict[str, int], second: dict[str, int], added: tuple[int | None, ...]
) -> None:
    usage = add_usages([first, second])
    total = usage.get("total_tokens")
    if total is None and {"input_tokens", "output_tokens"} <= usage.keys():
        total = usage["input_tokens"] + usage["output_tokens"]
    assert (usage.get("input_tokens"), usage.get("output_tokens"), total) == added


def test_the_turn_of_adk_events_is_the_last_invocation() -> None:
    """A user message that came while it ran begins no turn of its own."""

    def event(author: str, text: str, invocation: str) -> dict[str, Any]:
        return {"author": author, "invocation_id": invocation, "content": {"parts": [{"text": text}]}}

    events = [
        event("user", "1", "i1"),
        event("a", "one", "i1"),
        event("user", "2", "i2"),
        event("a", "two", "i2"),
        event("user", "go on", "i2"),
        event("a", "three", "i2"),
    ]
    assert [message.text for message in Turn(events).context.turn_messages] == ["two", "go on", "three"]


BLOCKS: dict[str, tuple[Any, str, list[str]]] = {
    # a block of an assistant message, the text and the calls that it has to become
    "hosted web search": (
        {"type": "web_search_call", "id": "w", "action": {"query": "x"}},
        "",
        ["web_search"],
    ),
    "server tool": (
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
        "",
        ["web_search"],
    ),
    "custom tool": ({"type": "custom_tool_call", "call_id": "c", "name": "grep", "input": "x"}, "", ["grep"]),
    "MCP call": (
        {"type": "mcp_call", "id": "m", "name": "find", "arguments": "{}", "output": "x"},
        "",
        ["find"],
    ),
    "Google's code": ({"executable_code": {"code": "1+1", "language": "PYTHON"}}, "", ["code_execution"]),
    "LangChain's wrapper": (
        {"type": "non_standard", "value": {"type": "tool_use", "id": "c", "name": "f", "input": {}}},
        "",
        ["f"],
    ),
    "text in content": ({"type": "text", "content": "hi"}, "hi", []),
    "Assistants API": ({"type": "text", "text": {"value": "hi", "annotations": []}}, "hi", []),
    "Bedrock citations": ({"citationsContent": {"content": [{"text": "hi"}], "citations": []}}, "hi", []),
    "spoken": ({"type": "output_audio", "transcript": "hi"}, "hi", []),
    "a tool named call": (
        {"type": "tool-call", "toolCallId": "c", "state": "input-available", "input": {}},
        "",
        ["call"],
    ),
    "image": ({"type": "image_url", "image_url": {"url": "https://x"}}, "", []),
    "Google's image": ({"inlineData": {"mimeType": "image/png", "data": "xxxx"}}, "", []),
    "what holds neither": ({"type": "hologram", "url": "https://x"}, "", []),
    "thought": ({"text": "hm", "thought": True}, "", []),
}


@pytest.mark.parametrize(("block", "text", "calls"), BLOCKS.values(), ids=BLOCKS.keys())
def test_a_block_is_read(block: Any, text: str, calls: list[str]) -> None:
    ctx = Turn([QUESTION, {"role": "assistant", "content": [{"type": "text", "text": ""}, block]}]).context
    assert (ctx.answer or "") == text
    assert [call.name for call in ctx.turn_tool_calls] == calls


def test_the_bytes_of_an_image_are_not_sent() -> None:
    image = {"inlineData": {"mimeType": "image/png", "data": "QUJD" * 100}}
    turn = Turn([{"role": "user", "parts": [{"text": "?"}, image]}])
    assert b"QUJD" not in turn.to_proto().SerializeToString()
    assert b"image/png" in turn.to_proto().SerializeToString()


def test_a_call_that_stands_in_two_places_is_one_call() -> None:
    call = {"id": "c1", "name": "f", "input": {}}
    twice = {"role": "assistant", "content": [{"type": "tool_use", **call}], "tool_calls": [call]}
    again = {
        "role": "assistant",
        "content": [{"type": "tool_use", **call}, {"type": "tool_use", **call, "id": "c2"}],
    }
    assert [call.id for call in Turn([twice]).context.tool_calls] == ["c1"]
    assert [call.id for call in Turn([again]).context.tool_calls] == ["c1", "c2"]


def test_two_calls_in_two_places_are_two_calls() -> None:
    part = {"type": "tool_use", "name": "g", "input": {}}
    for other in (
        {"content": [part], "tool_calls": [{"name": "f"}]},
        {"content": [{**part, "id": "c1"}], "tool_calls": [{"id": "c1", "function": {"name": "f"}}]},
        {"content": [part], "function_call": {"name": "f", "arguments": "{}"}},
    ):
        calls = Turn([{"role": "assistant", **other}]).context.tool_calls
        assert {call.name for call in calls} == {"f", "g"}


def test_a_text_in_content_that_no_part_has_is_read() -> None:
    called = {"type": "dynamic-tool", "toolName": "f", "input": {}}
    message = {"role": "assistant", "content": "done", "parts": [called]}
    ctx = Turn([QUESTION, message]).context
    assert (ctx.answer, [call.name for call in ctx.turn_tool_calls]) == ("done", ["f"])
    repeated = {**message, "parts": [{"type": "text", "text": "all\ndone"}, called]}
    assert Turn([QUESTION, repeated]).context.answer == "all\ndone"


FAILURES = {
    "Anthropic": [{"type": "tool_result", "tool_use_id": "c", "content": "no", "is_error": True}],
    "Bedrock": [{"toolResult": {"toolUseId": "c", "content": [{"text": "no"}], "status": "error"}}],
    "AI SDK": [{"type": "tool-result", "toolCallId": "c", "output": {"type": "error-text", "value": "no"}}],
    "MCP": [
        {
            "type": "tool_result",
            "id": "c",
            "content": {"content": [{"type": "text", "text": "no"}], "isError": True},
        }
    ],
}


@pytest.mark.parametrize("content", FAILURES.values(), ids=FAILURES.keys())
def test_a_tool_s_failure_is_known_as_one(content: list[Any]) -> None:
    [message] = Turn([{"role": "user", "content": content}]).context.messages
    assert (message.role, message.text, message.tool_call_id) == ("tool", "no", "c")
    assert message.metadata == {"is_error": True}


class Unheard:
    """An object of a library that nobody knows."""


REFUSED: dict[str, tuple[Any, str, tuple[str, ...]]] = {
    # a message, the path of what is wrong, what the error must name
    "a text block without text": (
        {"role": "assistant", "content": [{"type": "text", "value": "hi"}]},
        "messages[0].content[0].text",
        ("missing",),
    ),
    "a call without a name": (
        {"role": "assistant", "content": [{"type": "tool_use", "input": {}}]},
        "messages[0].content[0].name",
        ("missing",),
    ),
    "text under another key": ({"role": "assistant", "text": "hi"}, "messages[0].text", ("`content`",)),
    "a call with two names": (
        {"role": "assistant", "tool_calls": [{"name": "f", "function": {"name": "g"}}]},
        "messages[0].tool_calls[0].function.name",
        ("'g'", "'f' (str) in another place"),
    ),
    "a call with two arguments": (
        {"role": "assistant", "tool_calls": [{"name": "f", "args": {"a": 1}, "input": {"a": 2}}]},
        "messages[0].tool_calls[0].input",
        ("in another place",),
    ),
    "another text in content than in parts": (
        {"role": "assistant", "content": "bye", "parts": [{"type": "text", "text": "hi"}]},
        "messages[0].content",
        ("'bye'", "`parts` lacks"),
    ),
    "content blocks beside parts": (
        {"role": "assistant", "content": [{"text": "bye"}], "parts": [{"text": "hi"}]},
        "messages[0].content",
        ("`parts` lacks",),
    ),
    "unknown object": (Unheard(), "messages[0]", ("Unheard", "LangChain", "Pydantic AI", "ADK")),
    "unknown dict": ({"speaker": "a", "says": "x"}, "messages[0].role", ("missing", "speaker", "LangChain")),
    "LangChain's removal": ({"type": "remove", "content": "", "id": "1"}, "messages[0].role", ("missing",)),
    "several candidates": (
        {"candidates": [{"content": {}}, {"content": {}}]},
        "messages[0].candidates",
        ("2 alternatives",),
    ),
    "an item that refers to another": (
        {"type": "item_reference", "id": "x"},
        "messages[0].role",
        ("missing",),
    ),
}


@pytest.mark.parametrize(("message", "path", "named"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_not_understood_is_refused_by_name(message: Any, path: str, named: tuple[str, ...]) -> None:
    with pytest.raises(InvalidInput) as refused:
        Turn([message])
    assert refused.value.path == path
    for word in named:
        assert word in str(refused.value)


def test_an_unknown_object_as_the_turn_or_the_answer_is_refused_by_its_type() -> None:
    for make in (lambda: as_turn(Unheard()), lambda: Turn(Unheard()), lambda: Turn([], Unheard())):  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match=r"Unheard.*known formats: OpenAI Agents"):
            make()


SHORTER: dict[str, Any] = {
    "the answer": ANSWER,
    "a pair": ("assistant", ANSWER),
    "a list of pairs": [("user", "?"), ("assistant", ANSWER)],
    "one message": {"role": "assistant", "content": ANSWER},
    "one answer": {"choices": [{"message": {"role": "assistant", "content": ANSWER}}]},
    "an answer of Google": {"candidates": [{"content": {"parts": [{"text": ANSWER}]}}]},
}


@pytest.mark.parametrize("turn", SHORTER.values(), ids=SHORTER.keys())
def test_a_turn_may_be_as_short_as_its_answer(turn: Any) -> None:
    assert as_turn(turn).context.answer == ANSWER


def test_a_mistyped_key_of_a_context_is_still_refused() -> None:
    with pytest.raises(InvalidInput, match="isFinale: unknown key"):
        as_turn({"messages": [QUESTION], "isFinale": True})


SAYING_NOTHING: dict[str, dict[str, Any]] = {
    "null": {"content": None},
    "absent": {},
    "no blocks": {"content": []},
    "only an image": {"content": [{"type": "image_url", "image_url": {"url": "x"}}]},
    "only reasoning": {"content": [{"type": "thinking", "thinking": "hm"}]},
    "no parts": {"parts": []},
    "empty text": {"content": ""},
    "an empty text block": {"content": [{"type": "text", "text": ""}]},
    "a call": {"content": None, "tool_calls": [{"name": "f"}]},
    "a call beside an empty text": {"content": "", "tool_calls": [{"name": "f"}]},
    "a refusal": {"content": None, "refusal": "no"},
    "a refusal as a block": {"content": [{"type": "refusal", "refusal": "no"}]},
}


@pytest.mark.parametrize("message", SAYING_NOTHING.values(), ids=SAYING_NOTHING.keys())
def test_a_turn_without_text_has_no_answer(message: dict[str, Any]) -> None:
    ctx = Turn([QUESTION, {"role": "assistant", **message}]).context
    for which in ("last", "first", "all"):
        assert ctx.answer_of(which) is None  # type: ignore[arg-type]
    assert ctx.missing_answer.startswith("No assistant message with text")


@pytest.mark.parametrize("role", ["User", "customer", "Assistant", "bot"])
def test_an_answer_before_a_message_of_an_unknown_role_is_not_read(role: str) -> None:
    answer, other = {"role": "assistant", "content": ANSWER}, {"role": role, "content": "Hi"}
    with pytest.raises(InvalidInput, match=rf"messages\[2\].role: got '{role}'"):
        _ = Turn([QUESTION, answer, other]).context.answer
    assert Turn([QUESTION, other, answer]).context.answer == ANSWER


def test_what_was_there_instead_of_an_answer_is_named() -> None:
    assert Turn([QUESTION]).context.missing_answer == "No assistant message found"
    image = {"role": "assistant", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
    assert Turn([image]).context.missing_answer == "No assistant message with text: only image_url"
    strange = [{"role": role, "content": "Hi"} for role in ("bot", "bot", "tool")]
    assert Turn([QUESTION, *strange]).context.missing_answer.endswith("found: only of 'bot', 'tool'")
    many = [{"role": f"r{number}", "content": "Hi"} for number in range(9)]
    assert Turn(many).context.missing_answer.endswith("'r4' and 4 more")


LIMITS: dict[str, tuple[Any, str]] = {
    "unknown keys": (
        [{"role": "user", "content": "x", **{f"k{n}": 0 for n in range(MAX_UNKNOWN_KEYS + 1)}}],
        f"{MAX_UNKNOWN_KEYS + 1} unknown keys; wanted at most {MAX_UNKNOWN_KEYS}",
    ),
    "blocks of one message": (
        [{"role": "user", "content": [{"type": "text", "text": "x"}] * (MAX_BLOCKS + 1)}],
        f"{MAX_BLOCKS + 1} content blocks; wanted at most {MAX_BLOCKS}",
    ),
    "blocks of all messages": (
        [{"role": "user", "content": [{"type": "text", "text": "x"}] * 1000}] * (MAX_BLOCKS // 1000 + 1),
        f"{MAX_BLOCKS + 1000} content blocks; wanted at most {MAX_BLOCKS}",
    ),
    "tool messages out of one": (
        [{"role": "user", "content": [{"type": "tool_result", "id": "c", "content": "x"}] * 5001}],
        "5001 messages; wanted at most 5000",
    ),
    "keys and values": ([{"role": "user", "metadata": {"a": [0] * (MAX_NODES + 1)}}], f"at most {MAX_NODES}"),
}


@pytest.mark.parametrize(("messages", "refusal"), LIMITS.values(), ids=LIMITS.keys())
def test_a_limit_is_refused_with_its_numbers(messages: list[Any], refusal: str) -> None:
    pb = context_pb2.EvaluatorContext()
    with pytest.raises(InvalidInput, match=refusal):
        parse_messages_json(json.dumps(messages), pb.messages, max_messages=5000)


def test_commas_within_a_text_are_no_values() -> None:
    text = '1,2,[3]:{4}\\",' * MAX_NODES
    assert Turn(json.dumps([{"role": "assistant", "content": text}])).context.answer == text


def sent_block(kind: str, text: str | None = None, **fields: Any) -> EvaluatorContext:
    """A block as a client in another language sends it."""
    pb = context_pb2.EvaluatorContext()
    message = pb.messages.add(role="assistant")
    block = message.blocks.items.add(type=kind)
    if text is not None:
        block.text = text
    block.fields.update(fields)
    return EvaluatorContext(pb)


TEXT, CALL = "text", "call"

SENT_BLOCKS: dict[str, tuple[EvaluatorContext, str]] = {
    # a block, and what of it is not understood
    "text": (sent_block("text", "x"), ""),
    "output_text": (sent_block("output_text", "x"), ""),
    "no type": (sent_block("", "x"), ""),
    "image": (sent_block("image_url", image_url={"url": "x"}), ""),
    "unknown, but neither text nor call": (sent_block("hologram", url="x", width=3), ""),
    "unknown, with a tool's definition": (
        sent_block("offer", tools=[{"name": "f", "input_schema": {}}], metadata={"calls": [{"tool": "f"}]}),
        "",
    ),
    "AI SDK's data": (sent_block("data-weather", data={"text": "x"}), ""),
    "Anthropic's call": (sent_block("tool_use", id="c", name="f", input={"text": "x"}), CALL),
    "AI SDK's call": (sent_block("tool-call", toolName="f"), CALL),
    "a call by its keys": (sent_block("act", arguments={}), CALL),
    "a call in a text": (sent_block("text", "x", functionCall={"name": "f", "args": {}}), CALL),
    "a call in an image": (sent_block("image", steps=[{"tool": "f", "input": {}}]), CALL),
    "a type of a tool": (sent_block("super_tool", data={}), CALL),
    "unknown text": (sent_block("prose", "x"), TEXT),
    "unknown text among the fields": (sent_block("prose", content="x"), TEXT),
    "unknown text under an unknown key": (sent_block("prose", paragraphs=[{"words": ["x"]}]), TEXT),
    "text among the fields": (sent_block("text", content="x"), TEXT),
}


@pytest.mark.parametrize(("ctx", "unread"), SENT_BLOCKS.values(), ids=SENT_BLOCKS.keys())
def test_a_block_that_came_as_protobuf_does_not_vanish(ctx: EvaluatorContext, unread: str) -> None:
    readers: dict[str, list[Any]] = {
        TEXT: [
            lambda: ctx.answer,
            lambda: ctx.answer_of("all"),
            lambda: ctx.messages[0].text,
            ctx.serialized,
        ],
        CALL: [lambda: ctx.turn_tool_calls, lambda: ctx.tool_calls, lambda: ctx.messages[0].tool_calls],
    }
    for kind, reads in readers.items():
        for read in reads:
            if kind == unread:
                with pytest.raises(InvalidInput, match=rf"blocks\.items\[0\]\.type: .*{unread}"):
                    read()
            else:
                read()
    for_remotes = context_pb2.EvaluatorContext()
    if unread != TEXT:
        for_remotes.ParseFromString(ctx.serialized())
        marks = list(for_remotes.messages[0].unread_calls)
        assert marks == (["blocks.items[0].type"] if unread == CALL else [])


def test_too_many_blocks_in_protobuf_are_refused() -> None:
    pb = context_pb2.EvaluatorContext()
    for _ in range(2):
        blocks = pb.messages.add(role="assistant").blocks
        for _ in range(MAX_BLOCKS // 2 + 1):
            blocks.items.add()
    ctx = EvaluatorContext(pb)
    for read in (lambda: ctx.answer, lambda: ctx.answer_of("all"), lambda: ctx.messages, ctx.serialized):
        with pytest.raises(InvalidInput, match=f"{MAX_BLOCKS + 2} content blocks"):
            read()


WORDS = st.sampled_from(
    [
        *(
            "role",
            "content",
            "parts",
            "type",
            "text",
            "tool_calls",
            "id",
            "name",
            "input",
            "arguments",
            "state",
        ),
        *("toolUse", "toolResult", "functionCall", "function_response", "toolInvocations", "output", "kind"),
        *(
            "messages",
            "candidates",
            "choices",
            "author",
            "invocationId",
            "source",
            "data",
            "kwargs",
            "lc",
            "usage",
        ),
        *(
            "part_kind",
            "summary",
            "value",
            "message",
            "inner_messages",
            "chat_message",
            "stop_reason",
            "isError",
        ),
    ]
)
VALUES = st.sampled_from(
    [
        *(
            "assistant",
            "user",
            "model",
            "ai",
            "human",
            "tool",
            "text",
            "tool_use",
            "tool-call",
            "tool_result",
        ),
        *(
            "reasoning",
            "request",
            "response",
            "message",
            "function_call",
            "mcp_call",
            "non_standard",
            "TextMessage",
        ),
        *(
            "ToolCallRequestEvent",
            "ToolCallExecutionEvent",
            "tool-return",
            "user-prompt",
            "retry-prompt",
            "chat",
        ),
        *(None, 1, True, "", "x"),
    ]
)
SHAPES = st.recursive(
    VALUES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=5),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None)
@given(SHAPES)
def test_whatever_is_given_is_read_or_refused(value: Any) -> None:
    for make in (lambda: Turn([value]), lambda: Turn([], value), lambda: as_turn(value)):
        # Anything but InvalidInput would be a fault of ours.
        with suppress(InvalidInput):
            make()


def test_every_family_has_a_name_and_a_reader_of_its_own() -> None:
    assert len(set(FAMILIES.values())) == len(FAMILIES)
    assert all(FAMILIES)
