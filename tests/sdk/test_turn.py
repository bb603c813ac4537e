"""A turn says what the caller knows, and nothing that the caller does not know."""

import json
from functools import reduce
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict

from evald import InvalidInput, Turn
from evald.turn import as_turn

QUESTION = {"role": "user", "content": "Capital of France?"}
ANSWER = {"role": "assistant", "content": "Paris."}
COMPLETION: dict[str, Any] = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "gpt-4o",
    "choices": [
        {
            "index": 0,
            "finish_reason": "tool_calls",
            "logprobs": None,
            "message": {
                "role": "assistant",
                "content": None,
                "refusal": None,
                "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "find", "arguments": "{}"}}
                ],
            },
        }
    ],
    "usage": {
        "prompt_tokens": 14,
        "completion_tokens": 2,
        "total_tokens": 16,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 1},
    },
}
RESPONSE: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1.0,
    "model": "gpt-5",
    "status": "completed",
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "output": [
        {"id": "r1", "type": "reasoning", "summary": []},
        {
            "id": "m1",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "Let me look.", "annotations": []}],
        },
        {"id": "f1", "call_id": "c1", "type": "function_call", "name": "find", "arguments": "{}"},
    ],
    "usage": {
        "input_tokens": 14,
        "input_tokens_details": {"cached_tokens": 4},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 1},
        "total_tokens": 16,
    },
}


def sent(turn: Turn) -> dict[str, Any]:
    data: dict[str, Any] = MessageToDict(turn.to_proto(), preserving_proto_field_name=True)
    return data


def test_what_is_left_out_is_unknown() -> None:
    assert set(sent(Turn([QUESTION, ANSWER]))) == {"messages"}
    invocation = Turn([QUESTION, ANSWER]).context.last_invocation
    assert invocation.latency_ms is None
    assert invocation.token_usage is None
    assert invocation.cost_usd is None
    assert invocation.model is None


def test_an_explicit_zero_is_known() -> None:
    invocation = Turn([ANSWER], latency_ms=0, cost_usd=0, usage={"input": 0}).context.last_invocation
    assert invocation.latency_ms == 0
    assert invocation.cost_usd == 0
    assert invocation.token_usage is not None
    assert invocation.token_usage.input_tokens == 0
    assert invocation.token_usage.output_tokens is None


def openai_object(module: str, name: str, data: dict[str, Any]) -> Any:
    """As OpenAI's client makes it out of an answer. Imported here: it takes a second."""
    types = pytest.importorskip(f"openai.types.{module}", reason="older clients have no Responses")
    return getattr(types, name).construct(**data)


COMPLETIONS = {
    "chat completion": (COMPLETION, lambda: COMPLETION),
    "chat completion object": (COMPLETION, lambda: openai_object("chat", "ChatCompletion", COMPLETION)),
    "Responses": (RESPONSE, lambda: RESPONSE),
    "Responses object": (RESPONSE, lambda: openai_object("responses", "Response", RESPONSE)),
}


@pytest.mark.parametrize(("data", "make"), COMPLETIONS.values(), ids=COMPLETIONS.keys())
def test_a_response_tells_all_it_knows(data: dict[str, Any], make: Any) -> None:
    turn = Turn([QUESTION], make(), latency_ms=420)
    ctx = turn.context
    assert ctx.message_count == 2
    assert [call.name for call in ctx.turn_tool_calls] == ["find"]
    assert ctx.turn_tool_calls[0].id == "c1"
    assert ctx.last_invocation.metadata == {"finish_reason": "tool_calls"}
    assert ctx.last_invocation.model == data["model"]
    assert sent(turn)["correlation"] == {"response_id": data["id"]}
    assert sent(turn)["last_invocation"]["token_usage"] == {
        "input_tokens": "14",
        "output_tokens": "2",
        "total_tokens": "16",
        "cached_input_tokens": "4",
        "reasoning_tokens": "1",
    }


def test_the_text_of_a_responses_object_is_the_answer() -> None:
    assert Turn([QUESTION], RESPONSE).context.answer == "Let me look."


def test_an_incomplete_responses_object_says_why() -> None:
    response = RESPONSE | {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    assert Turn([QUESTION], response).context.last_invocation.metadata == {"finish_reason": "length"}


def test_what_the_caller_says_goes_before_what_the_response_says() -> None:
    turn = Turn([], COMPLETION, usage={"total": 5}, model="mine", finish_reason="stop", response_id="r")
    assert sent(turn)["last_invocation"]["token_usage"] == {"total_tokens": "5"}
    assert sent(turn)["last_invocation"]["model"] == "mine"
    assert sent(turn)["last_invocation"]["metadata"] == {"finish_reason": "stop"}
    assert sent(turn)["correlation"] == {"response_id": "r"}


RESPONSES = {
    "text": lambda: "Paris.",
    "message": lambda: ANSWER,
    "message object": lambda: openai_object("chat", "ChatCompletionMessage", ANSWER),
    "messages": lambda: [ANSWER],
    "generator": lambda: (message for message in [ANSWER]),
}


@pytest.mark.parametrize("make", RESPONSES.values(), ids=RESPONSES.keys())
def test_a_response_may_be_less_than_a_completion(make: Any) -> None:
    assert Turn([QUESTION], make()).context.answer == "Paris."


def test_a_response_follows_messages_in_json_text() -> None:
    assert Turn(json.dumps([QUESTION]), ANSWER) == Turn([QUESTION, ANSWER])


def test_messages_in_json_text_are_sent_as_they_are() -> None:
    text = json.dumps([QUESTION, ANSWER])
    for given in (text, text.encode()):
        assert Turn(given).to_proto().messages_json == text
        assert Turn(given).context.answer == "Paris."


USAGES = {
    "input/output": ({"input": 3, "output": 4}, (3, 4, None)),
    "with total": ({"input": 3, "output": 4, "total": 9}, (3, 4, 9)),
    "input_tokens": ({"input_tokens": 3, "output_tokens": 4, "total_tokens": 7}, (3, 4, 7)),
    "inputTokens": ({"inputTokens": 3, "outputTokens": 4, "totalTokens": 7}, (3, 4, 7)),
    "prompt_tokens": ({"prompt_tokens": 3, "completion_tokens": 4}, (3, 4, None)),
    "promptTokens": ({"promptTokens": 3, "completionTokens": 4}, (3, 4, None)),
    "total alone": ({"total_tokens": 7, "query_count": 2}, (None, None, 7)),
    "null is absent": ({"input": None, "output": 4}, (None, 4, None)),
    "whole floats": ({"input": 3.0}, (3, None, None)),
    "64 bits as text": ({"inputTokens": "3"}, (3, None, None)),
}


@pytest.mark.parametrize(("usage", "expected"), USAGES.values(), ids=USAGES.keys())
def test_token_usage_is_understood_in_every_spelling(
    usage: dict[str, Any], expected: tuple[int | None, ...]
) -> None:
    assert Turn([], usage=usage).context.last_invocation.token_usage == expected


@pytest.mark.parametrize("usage", [{}, {"cost": 3}, {"input": None}], ids=str)
def test_usage_that_counts_nothing_is_absent(usage: dict[str, Any]) -> None:
    assert Turn([], usage=usage).context.last_invocation.token_usage is None


LATENCIES = {
    "milliseconds": (Turn([], latency_ms=1234.5), 1234.5),
    "seconds": (Turn([], latency_seconds=1.5), 1500),
    "latencyMs": (Turn.from_dict({"lastInvocation": {"latencyMs": 12}}), 12),
    "beside the invocation": (Turn.from_dict({"latency_ms": 12}), 12),
    "latencySeconds": (Turn.from_dict({"lastInvocation": {"latencySeconds": 0.25}}), 250),
    "as protobuf writes it": (Turn.from_dict({"lastInvocation": {"latency": "0.250s"}}), 250),
}


@pytest.mark.parametrize(("turn", "milliseconds"), LATENCIES.values(), ids=LATENCIES.keys())
def test_latency_has_a_unit(turn: Turn, milliseconds: float) -> None:
    assert turn.context.last_invocation.latency_ms == milliseconds


def test_expected_text() -> None:
    assert Turn([], expected="Paris.").context.expected.text == "Paris."
    assert Turn([], expected="").context.expected.text == ""
    assert Turn([]).context.expected.text is None


def test_expected_data_messages_and_tool_calls() -> None:
    expected = Turn(
        [],
        expected={"data": {"a": [1]}, "messages": [ANSWER], "toolCalls": [{"name": "f", "args": {"x": 1}}]},
    ).context.expected
    assert expected.data == {"a": [1]}
    assert [message.text for message in expected.messages] == ["Paris.", ""]
    assert [(call.name, call.args) for call in expected.tool_calls] == [("f", {"x": 1})]


def test_expected_null_is_data() -> None:
    assert Turn([], expected={"data": None}).context.expected.has_data
    assert not Turn([], expected={"text": "x"}).context.expected.has_data


def test_a_whole_context_in_either_spelling_is_the_turn_of_its_arguments() -> None:
    turn = Turn(
        [QUESTION, ANSWER],
        turn_messages=[ANSWER],
        latency_ms=1,
        time_to_first_token_ms=2,
        usage={"input": 3},
        cost_usd=0.5,
        model="m",
        finish_reason="stop",
        expected={"text": "e"},
        scenario={"name": "s", "max_messages": 4, "failure_criteria_mode": "every_turn"},
        persona={"name": "p", "description": "d"},
        number=2,
        is_final=True,
        attempt=1,
        conversation_id="c",
        run_id="r",
        response_id="x",
        run_duration_ms=9,
        metadata={"k": 1},
    )
    camel = {
        "messages": [QUESTION, ANSWER],
        "lastInvocation": {
            "messages": [ANSWER],
            "latencyMs": 1,
            "timeToFirstTokenMs": 2,
            "tokenUsage": {"input": 3},
            "costUsd": 0.5,
            "model": "m",
            "finishReason": "stop",
        },
        "expected": {"text": "e"},
        "scenario": {
            "name": "s",
            "maxMessages": 4,
            "failureCriteriaMode": "FAILURE_CRITERIA_MODE_EVERY_TURN",
        },
        "persona": {"name": "p", "description": "d"},
        "turn": 2,
        "isFinal": True,
        "attempt": 1,
        "correlation": {"conversationId": "c", "runId": "r", "responseId": "x"},
        "runDuration": "0.009s",
        "metadata": {"k": 1},
    }
    snake = {
        "messages": [QUESTION, ANSWER],
        "turn_messages": [ANSWER],
        "latency_seconds": 0.001,
        "time_to_first_token_ms": 2,
        "usage": {"input": 3},
        "last_invocation": {"cost": {"currency_code": "USD", "amount": 0.5}, "model": "m"},
        "finish_reason": "stop",
        "expected": "e",
        "scenario": {"name": "s", "max_messages": 4, "failure_criteria_mode": "every_turn"},
        "persona": {"name": "p", "description": "d"},
        "number": 2,
        "is_final": True,
        "attempt": 1,
        "conversation_id": "c",
        "run_id": "r",
        "response_id": "x",
        "run_duration_ms": 9,
        "metadata": {"k": 1},
    }
    assert Turn.from_dict(camel) == turn
    assert Turn.from_dict(snake) == turn


def test_cost_in_another_currency_is_not_taken_for_dollars() -> None:
    turn = Turn.from_dict({"lastInvocation": {"cost": {"currencyCode": "EUR", "amount": 2}}})
    assert turn.context.last_invocation.cost_usd is None
    assert turn.to_proto().last_invocation.cost.currency_code == "EUR"


def test_keys_of_a_data_set_are_left_out_when_asked() -> None:
    record = {
        "id": "x",
        "messages": [QUESTION, ANSWER],
        "outcome": {"reward": 1},
        "usage": None,
        "start_time": "2025",
    }
    assert Turn.from_dict(record, ignore_unknown=True) == Turn([QUESTION, ANSWER])


# Deeper than `repr` can go.
DEEP: Any = reduce(lambda inner, _: [inner], range(5000), [])

made: Any = Turn  # untyped, because what is refused is mostly of the wrong type
REFUSED = {
    "text that is no list": (lambda: made("hello"), "messages", "hello"),
    "negative latency": (lambda: made([], latency_ms=-1), "latency_ms", "-1"),
    "latency is text": (lambda: made([], latency_ms="12"), "latency_ms", "'12'"),
    "NaN latency": (lambda: made([], latency_ms=float("nan")), "latency_ms", "nan"),
    "latency beyond a Duration": (lambda: made([], latency_ms=1e300), "latency", "1e+297"),
    "latency twice": (lambda: made([], latency_ms=1, latency_seconds=1), "latency", "ms and seconds"),
    "latency without a unit": (lambda: Turn.from_dict({"latency": 12}), "latency", "12"),
    "negative cost": (lambda: made([], cost_usd=-0.1), "cost_usd", "-0.1"),
    "half a token": (lambda: made([], usage={"input": 1.5}), "usage.input", "1.5"),
    "negative tokens": (lambda: made([], usage={"output_tokens": -1}), "usage.output_tokens", "-1"),
    "true tokens": (lambda: made([], usage={"total": True}), "usage.total", "True"),
    "usage is a number": (lambda: made([], usage=12), "usage", "12"),
    "thousands of digits": (lambda: made([], usage={"input": "1" * 5000}), "usage.input", "1111"),
    "a mode that is an object": (
        lambda: made([], scenario={"failure_criteria_mode": {}}),
        "scenario.failure_criteria_mode",
        "object",
    ),
    "role nested too deep": (lambda: made([{"role": DEEP, "content": "x"}]), "messages[0].role", "got "),
    "response is a number": (lambda: made([], 12), "response", "12"),
    "response is bytes": (lambda: made([], b"x"), "response", "b'x'"),
    "response without role": (lambda: made([], {"content": "x"}), "response.role", "content"),
    "response message without role": (lambda: made([], [{"content": "x"}]), "response[0].role", "missing"),
    "several choices": (
        lambda: made([], COMPLETION | {"choices": COMPLETION["choices"] * 2}),
        "response.choices",
        "2 alternatives",
    ),
    "a chunk": (
        lambda: made([], COMPLETION | {"choices": [{"delta": {"content": "x"}}]}),
        "response.choices[0].message",
        "missing",
    ),
    "unknown key": (lambda: Turn.from_dict({"isFinale": True}), "isFinale", "unknown key"),
    "unknown inner key": (
        lambda: Turn.from_dict({"lastInvocation": {"latencyMS": 1, "x": 1}}),
        "last_invocation.x",
        "unknown key",
    ),
    "given inside and outside": (
        lambda: Turn.from_dict({"latencyMs": 1, "lastInvocation": {"latencyMs": 1}}),
        "last_invocation.latency_ms",
        "outside",
    ),
    "given in both spellings": (
        lambda: Turn.from_dict({"isFinal": True, "is_final": True}),
        "is_final",
        "twice",
    ),
    "invocation is a list": (lambda: Turn.from_dict({"lastInvocation": []}), "last_invocation", "[]"),
    "unknown expectation": (lambda: made([], expected={"txt": "x"}), "expected.txt", "unknown key"),
    "expected is a number": (lambda: made([], expected=4), "expected", "4"),
    "an expected number that no double is": (
        lambda: made([], expected={"data": {"id": 2**53 + 1}}),
        "expected.data.id",
        "9007199254740993",
    ),
    "bad expected call": (
        lambda: made([], expected={"tool_calls": [{}]}),
        "expected.tool_calls[0].function.name",
        "missing",
    ),
    "number is zero point five": (lambda: made([], number=0.5), "number", "0.5"),
    "number beyond 32 bits": (lambda: made([], number=1 << 31), "number", "2147483648"),
    "is_final is text": (lambda: made([], is_final="yes"), "is_final", "'yes'"),
    "metadata is a list": (lambda: made([], metadata=[1]), "metadata", "[1]"),
    "metadata with NaN": (lambda: made([], metadata={"a": float("nan")}), "metadata.a", "nan"),
    "unknown failure mode": (
        lambda: made([], scenario={"name": "s", "failure_criteria_mode": "never"}),
        "scenario.failure_criteria_mode",
        "never",
    ),
    "persona without text": (lambda: made([], persona={"name": 3}), "persona.name", "3"),
    "a time that is none": (
        lambda: Turn.from_dict({"lastInvocation": {"startTime": "yesterday"}}),
        "start_time",
        "yesterday",
    ),
    "turn is a number": (lambda: as_turn(4), "turn", "4"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize(("make", "path", "got"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_sent_is_refused_with_its_path(make: Any, path: str, got: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        make()
    assert refused.value.path == path
    assert got in refused.value.got


def test_a_mistyped_key_names_the_nearest_one() -> None:
    with pytest.raises(InvalidInput, match="isFinale: unknown key; wanted 'is_final'"):
        Turn.from_dict({"isFinale": True})


SHORTHANDS = {
    "messages": [QUESTION, ANSWER],
    "JSON text": json.dumps([QUESTION, ANSWER]),
    "context": {"messages": [QUESTION, ANSWER]},
    "turn": Turn([QUESTION, ANSWER]),
}


@pytest.mark.parametrize("shorthand", SHORTHANDS.values(), ids=SHORTHANDS.keys())
def test_a_turn_may_be_written_shorter(shorthand: Any) -> None:
    assert as_turn(shorthand).context.answer == "Paris."
