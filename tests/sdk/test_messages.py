"""Messages, in every shape that callers have, become the contract's; what cannot is refused with its path."""

import json
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import given
from hypothesis import strategies as st

from evald.context import EvaluatorContext
from evald.errors import InvalidInput
from evald.messages import fill_messages, parse_messages_json
from evald.structs import struct_to_dict
from evald.v1 import context_pb2, evaluation_service_pb2

CALL = {"id": "c1", "type": "function", "function": {"name": "book", "arguments": '{"day": 1}'}}


def filled(messages: Any) -> context_pb2.EvaluatorContext:
    pb = context_pb2.EvaluatorContext()
    fill_messages(messages, pb.messages)
    return pb


def parsed(text: str | bytes, **limits: Any) -> context_pb2.EvaluatorContext:
    pb = context_pb2.EvaluatorContext()
    parse_messages_json(text, pb.messages, **({"max_messages": 5000} | limits))
    return pb


def one(message: dict[str, Any]) -> dict[str, Any]:
    data: dict[str, Any] = MessageToDict(filled([message]), preserving_proto_field_name=True)["messages"][0]
    return data


def nested(levels: int) -> Any:
    data: Any = 1
    for _ in range(levels):
        data = {"k": data}
    return data


MESSAGES = {
    "text": ({"role": "user", "content": "hi"}, {"role": "user", "text": "hi"}),
    "empty text is not null": ({"role": "user", "content": ""}, {"role": "user", "text": ""}),
    "null": ({"role": "assistant", "content": None}, {"role": "assistant"}),
    "absent": ({"role": "assistant"}, {"role": "assistant"}),
    "no blocks": ({"role": "user", "content": []}, {"role": "user", "blocks": {}}),
    "blocks": (
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "a"},
                {"type": "image_url", "image_url": {"url": "x"}},
                "b",
                {"text": "c"},
            ],
        },
        {
            "role": "user",
            "blocks": {
                "items": [
                    {"type": "text", "text": "a"},
                    {"type": "image_url", "fields": {"image_url": {"url": "x"}}},
                    {"type": "text", "text": "b"},
                    {"type": "text", "text": "c"},
                ]
            },
        },
    ),
    "tool answer": (
        {"role": "tool", "tool_call_id": "c1", "name": "book", "content": "ok"},
        {"role": "tool", "tool_call_id": "c1", "name": "book", "text": "ok"},
    ),
    "camelCase": (
        {"role": "tool", "toolCallId": "c1", "content": "ok"},
        {"role": "tool", "tool_call_id": "c1", "text": "ok"},
    ),
    "id and refusal": (
        {"role": "assistant", "id": "m1", "refusal": "no", "content": None},
        {"role": "assistant", "id": "m1", "refusal": "no"},
    ),
    "unknown keys go to the metadata": (
        {"role": "user", "content": "x", "valid": False, "audio": None, "metadata": {"a": [1, "b"]}},
        {"role": "user", "text": "x", "metadata": {"valid": False, "a": [1, "b"]}},
    ),
    "metadata of the caller wins over an unknown key": (
        {"role": "user", "content": "x", "a": [1, 2], "metadata": {"a": [3]}},
        {"role": "user", "text": "x", "metadata": {"a": [3]}},
    ),
    "legacy function call": (
        {"role": "assistant", "content": None, "function_call": {"name": "book", "arguments": "{}"}},
        {"role": "assistant", "tool_calls": [{"function": {"name": "book", "arguments": "{}"}}]},
    ),
    "legacy function answer": (
        {"role": "function", "name": "book", "content": "ok"},
        {"role": "tool", "name": "book", "text": "ok"},
    ),
    "a role that nobody knows": ({"role": "critic", "content": "x"}, {"role": "critic", "text": "x"}),
}


@pytest.mark.parametrize(("message", "expected"), MESSAGES.values(), ids=MESSAGES.keys())
def test_a_message_is_understood(message: dict[str, Any], expected: dict[str, Any]) -> None:
    assert one(message) == expected


BOOKED = {"function": {"name": "book", "arguments": '{"day": 1}'}}
CALLS = {
    "OpenAI": (CALL, {"id": "c1", "type": "function", **BOOKED}),
    "arguments as data": ({"function": {"name": "book", "arguments": {"day": 1}}}, BOOKED),
    "tool and input": ({"tool": "book", "input": {"day": 1}}, BOOKED),
    "name and args": ({"name": "book", "args": {"day": 1}}, BOOKED),
    "name and args as text": ({"name": "book", "args": '{"day": 1}'}, BOOKED),
    "function as a name": ({"function": "book", "arguments": {"day": 1}}, BOOKED),
    "no arguments": ({"function": {"name": "book"}}, {"function": {"name": "book"}}),
    "arguments that are no JSON stay as they are": (
        {"name": "book", "arguments": "{day"},
        {"function": {"name": "book", "arguments": "{day"}},
    ),
    "keys keep their order, letters stay letters": (
        {"name": "book", "args": {"z": "ü", "a": [True, None]}},
        {"function": {"name": "book", "arguments": '{"z": "ü", "a": [true, null]}'}},
    ),
    "unknown keys and nulls are dropped": (
        {"index": 0, "id": None, "type": None, "name": "book"},
        {"function": {"name": "book"}},
    ),
    "the same in two places": (
        {"name": "book", "args": {"day": 1}, "function": {"name": "book", "arguments": '{"day":1}'}},
        {"function": {"name": "book", "arguments": '{"day":1}'}},
    ),
    "a part of it in another place": ({"args": {"day": 1}, "function": {"name": "book"}}, BOOKED),
    "duration in milliseconds": (
        {"name": "book", "durationMs": 1500},
        {"function": {"name": "book"}, "duration": "1.500s"},
    ),
    "duration with its unit": (
        {"name": "book", "duration": "0.25s"},
        {"function": {"name": "book"}, "duration": "0.250s"},
    ),
}


@pytest.mark.parametrize(("call", "expected"), CALLS.values(), ids=CALLS.keys())
def test_a_tool_call_is_understood(call: dict[str, Any], expected: dict[str, Any]) -> None:
    assert one({"role": "assistant", "tool_calls": [call]})["tool_calls"] == [expected]


REFUSED = {
    "no role": ([{"content": "x"}], "messages[0].role", "missing"),
    "empty role": ([{"role": "", "content": "x"}], "messages[0].role", "got ''"),
    "role is a number": ([{"role": "user"}, {"role": 7}], "messages[1].role", "got 7"),
    "message is text": (["hi"], "messages[0]", "got 'hi'"),
    "content is a number": ([{"role": "user", "content": 3}], "messages[0].content", "got 3"),
    "content is an object": ([{"role": "user", "content": {"a": 1}}], "messages[0].content", "an object"),
    "block is a number": ([{"role": "user", "content": [1]}], "messages[0].content[0]", "got 1"),
    "block without type": (
        [{"role": "user", "content": [{"type": "text", "text": ""}, {"x": 1}]}],
        "messages[0].content[1].type",
        "missing",
    ),
    "tool calls are an object": (
        [{"role": "assistant", "tool_calls": CALL}],
        "messages[0].tool_calls",
        "an object",
    ),
    "call is text": ([{"role": "assistant", "tool_calls": ["f"]}], "messages[0].tool_calls[0]", "got 'f'"),
    "call without name": (
        [{"role": "assistant", "tool_calls": [CALL, {"id": "x"}]}],
        "messages[0].tool_calls[1].function.name",
        "missing",
    ),
    "call id is a number": (
        [{"role": "assistant", "tool_calls": [{"id": 1, "name": "f"}]}],
        "messages[0].tool_calls[0].id",
        "got 1",
    ),
    "arguments are no data": (
        [{"role": "assistant", "tool_calls": [{"name": "f", "args": {"a": object}}]}],
        "messages[0].tool_calls[0].args",
        "not JSON-like",
    ),
    "arguments with NaN": (
        [{"role": "assistant", "tool_calls": [{"name": "f", "args": [float("nan")]}]}],
        "messages[0].tool_calls[0].args",
        "not JSON-like",
    ),
    "endless duration": (
        [{"role": "assistant", "tool_calls": [{"name": "f", "duration_ms": 1e194}]}],
        "messages[0].tool_calls[0].duration_ms",
        "got 9.99",
    ),
    "negative duration": (
        [{"role": "assistant", "tool_calls": [{"name": "f", "duration_ms": -1}]}],
        "messages[0].tool_calls[0].duration_ms",
        "got -1",
    ),
    "legacy call without name": (
        [{"role": "assistant", "function_call": {}}],
        "messages[0].function_call.function.name",
        "missing",
    ),
    "tool_call_id is a number": ([{"role": "tool", "tool_call_id": 1}], "messages[0].tool_call_id", "got 1"),
    "metadata is text": ([{"role": "user", "metadata": "x"}], "messages[0].metadata", "got 'x'"),
    "infinity in metadata": (
        [{"role": "user", "metadata": {"a": [0, float("inf")]}}],
        "messages[0].metadata.a[1]",
        "got inf",
    ),
    "infinity under an unknown key": ([{"role": "user", "x": float("inf")}], "messages[0].x", "got inf"),
    "half of an emoji": ([{"role": "user", "content": "\ud83d"}], "messages[0]", "surrogate"),
    "half of an emoji in metadata": (
        [{"role": "user", "metadata": {"a": "\ud83d"}}],
        "messages[0].metadata.'a'",
        "surrogate",
    ),
    "messages are an object": ({"x": "user"}, "messages.role", "an object"),
    "messages are text": ("[]", "messages", "got '[]'"),
    "messages are a number": (3, "messages", "got 3"),
}


@pytest.mark.parametrize(("messages", "path", "got"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_no_message_is_refused_with_its_path(messages: Any, path: str, got: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        filled(messages)
    assert refused.value.path == path
    assert got in refused.value.got
    assert str(refused.value) == f"{path}: {refused.value.got}; wanted {refused.value.wanted}"
    assert isinstance(refused.value, ValueError)


BAD_JSON = {
    "not JSON": ("[{]", "not valid JSON"),
    "empty": ("", "not valid JSON"),
    "NaN": ('[{"role": "user", "x": NaN}]', "NaN is not JSON"),
    "infinity": ('[{"role": "user", "x": -Infinity}]', "-Infinity is not JSON"),
    "the same key twice": (
        '[{"role": "user", "content": "a", "content": "b"}]',
        "a duplicate key 'content'",
    ),
    "the same key twice, deep down": (
        '[{"role": "user", "x": [{"a": 1, "a": 1}]}]',
        "a duplicate key 'a'",
    ),
    "an object": ('{"role": "user"}', "an object"),
    "null": ("null", "got null"),
    "no UTF-8": (b'[{"role": "\xff"}]', "no UTF-8 at byte 11"),
    "brackets without end": ("[" * 100_000, "nested too deep"),
    "more digits than Python reads": (f'[{{"role": "user", "x": {"9" * 5000}}}]', "not valid JSON"),
    "a number beyond every float": (f'[{{"role": "user", "x": {"9" * 400}}}]', "got 999"),
    "a float beyond every float": ('[{"role": "user", "x": 1e999}]', "got inf"),
    "half of an emoji": ('[{"role": "user", "content": "\\ud83d"}]', "surrogate"),
}


@pytest.mark.parametrize(("text", "got"), BAD_JSON.values(), ids=BAD_JSON.keys())
def test_bad_json_is_refused(text: str | bytes, got: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parsed(text, path="context.messages_json")
    assert refused.value.path.startswith("context.messages_json")
    assert got in refused.value.got


PLACES = {
    # where the data stand: levels above them, the array counted
    "metadata": (lambda data: {"role": "user", "metadata": data}, 2),
    "an unknown key": (lambda data: {"role": "user", "x": data}, 2),
    "a block's key": (lambda data: {"role": "user", "content": [{"type": "x", "y": data}]}, 4),
    "a call's arguments": (
        lambda data: {"role": "assistant", "tool_calls": [{"name": "f", "args": data}]},
        4,
    ),
    "a function's arguments": (
        lambda data: {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": data}}]},
        5,
    ),
    "a call's unknown key": (lambda data: {"role": "assistant", "tool_calls": [{"name": "f", "x": data}]}, 4),
}


@pytest.mark.parametrize(("place", "above"), PLACES.values(), ids=PLACES.keys())
def test_32_levels_are_taken_and_33_are_not(place: Any, above: int) -> None:
    deepest = json.dumps([place(nested(32 - above))])
    request = evaluation_service_pb2.EvaluateUnaryRequest()
    request.request.context.CopyFrom(parsed(deepest))
    # What is taken can also be parsed again: protobuf has a limit of its own.
    assert evaluation_service_pb2.EvaluateUnaryRequest.FromString(request.SerializeToString()) == request

    with pytest.raises(InvalidInput) as refused:
        parsed(json.dumps([place(nested(33 - above))]))
    assert refused.value.got == "nested too deep"
    assert refused.value.wanted == "at most 32 levels"


def test_the_limit_of_messages_is_inclusive() -> None:
    text = json.dumps([{"role": "user", "content": "x"}] * 3)
    assert len(parsed(text, max_messages=3).messages) == 3
    with pytest.raises(InvalidInput, match="messages: 3 messages; wanted at most 2"):
        parsed(text, max_messages=2)


def test_an_object_with_very_many_keys_is_searched_for_duplicates_in_linear_time() -> None:
    keys = ", ".join(f'"{number}": 0' for number in range(50_000))
    with pytest.raises(InvalidInput, match="a duplicate key '49999'"):
        parsed(f'[{{"role": "user", "x": {{{keys}, "49999": 1}}}}]')


JSON_DATA = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=3)
    ),
    max_leaves=8,
)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool", "function"])},
    optional={
        "content": st.none()
        | TEXT
        | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": TEXT})),
        "name": TEXT,
        "tool_call_id": TEXT,
        "metadata": st.dictionaries(TEXT, JSON_DATA, max_size=3),
        "tool_calls": st.lists(
            st.fixed_dictionaries(
                {"name": TEXT.filter(bool), "args": st.dictionaries(TEXT, JSON_DATA, max_size=3)}
            ),
            max_size=2,
        ),
    },
)


@given(st.lists(MESSAGE, max_size=4))
def test_json_text_and_data_give_the_same_messages(messages: list[dict[str, Any]]) -> None:
    assert parsed(json.dumps(messages)) == parsed(json.dumps(messages).encode()) == filled(messages)


@given(st.lists(MESSAGE, max_size=4))
def test_nothing_is_lost_on_the_way_to_an_evaluator(messages: list[dict[str, Any]]) -> None:
    seen = EvaluatorContext(filled(messages)).messages
    assert len(seen) == len(messages)
    for message, view in zip(messages, seen, strict=True):
        content = message.get("content")
        assert view.is_null == (content is None)
        assert view.text == (
            "".join(block["text"] for block in content) if isinstance(content, list) else content or ""
        )
        assert [(call.name, call.args) for call in view.tool_calls] == [
            (call["name"], call["args"]) for call in message.get("tool_calls", [])
        ]
        assert struct_to_dict(filled([message]).messages[0].metadata) == message.get("metadata", {})


@given(JSON_DATA)
def test_any_json_is_taken_or_refused_with_a_path(data: Any) -> None:
    path = "messages"
    try:
        parsed(json.dumps(data))
    except InvalidInput as refused:
        path = refused.path
    assert path.startswith("messages")
