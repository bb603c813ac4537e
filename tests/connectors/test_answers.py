"""Whatever an agent sends, there is an answer that can be evaluated or a ConnectorFailure that says why not."""

import json
import math
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evald.convert.context import TurnData
from evald.structs import duration_ms
from evald_server.connectors.answers import find_response, parse_body, set_times, to_invocation
from evald_server.connectors.connector import ConnectorFailure
from evald_server.connectors.paths import MISSING, look_up, parse_path
from evald_server.connectors.streams import ChatChunks, EventLines, TextPieces
from evald_server.redaction import Redactor

from ..judge.wire import chunk, completion, events

NO_SECRETS = Redactor(())
KEYS = st.sampled_from(
    [
        *(
            "role",
            "content",
            "text",
            "message",
            "messages",
            "choices",
            "delta",
            "tool_calls",
            "toolCalls",
            "function",
        ),
        *(
            "name",
            "arguments",
            "args",
            "id",
            "index",
            "type",
            "output",
            "usage",
            "cost",
            "model",
            "error",
            "parts",
        ),
        *(
            "finish_reason",
            "finishReason",
            "candidates",
            "kwargs",
            "lc",
            "data",
            "source",
            "response",
            "refusal",
        ),
    ]
)
VALUES = st.sampled_from(
    ["assistant", "user", "ai", "human", "tool", "text", "tool_use", "message", "stop", "", "{}"]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 3) | st.floats(allow_nan=False) | VALUES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=12,
)


@given(JSON)
def test_any_json_is_an_answer_or_a_failure(data: Any) -> None:
    with suppress(ConnectorFailure):
        invocation = to_invocation(find_response(data), 100)
        assert invocation.messages
        assert all(message.role not in ("", "user") for message in invocation.messages)


@given(JSON)
def test_any_completion_is_an_answer_or_a_failure(message: Any) -> None:
    data = completion() | {"choices": [{"message": message, "finish_reason": "stop"}]}
    with suppress(ConnectorFailure):
        assert to_invocation(TurnData(response=[data]), 100).messages


@given(st.lists(JSON, max_size=4), st.sampled_from(["chunks", "pieces", "path"]))
def test_any_stream_is_an_answer_or_a_failure(said: list[Any], kind: str) -> None:
    deltas = [{"choices": [{"delta": one, "finish_reason": "stop"}]} for one in said]
    pieces: Any = (
        ChatChunks() if kind == "chunks" else TextPieces(parse_path("text") if kind == "path" else None)
    )
    lines = EventLines("sse", pieces, NO_SECRETS)
    with suppress(ConnectorFailure):
        lines.add(events(*(deltas if kind == "chunks" else said)).encode())
        assert to_invocation(find_response(lines.finish()), 100).messages


@given(st.binary(max_size=60))
def test_any_bytes_are_json_or_a_failure(content: bytes) -> None:
    with suppress(ConnectorFailure):
        parse_body(content, "", NO_SECRETS)


@given(st.lists(st.integers(1, 40), max_size=30))
def test_a_stream_is_read_the_same_wherever_it_is_cut(sizes: list[int]) -> None:
    data = (": comment\r\n\r\n" + events(chunk("grü"), chunk("ße"), chunk(finish="stop"))).encode()
    lines = EventLines("sse", ChatChunks(), NO_SECRETS)
    start = 0
    for size in [*sizes, len(data)]:
        lines.add(data[start : start + size])
        start += size
    assert lines.done
    assert lines.finish()["choices"][0]["message"]["content"] == "grüße"


def test_an_event_of_endless_lines_is_left_at_its_limit() -> None:
    lines = EventLines("sse", TextPieces(None), NO_SECRETS)
    for _ in range(17):
        lines.add(b"data:\n" * 60_000)
    with pytest.raises(ConnectorFailure, match="longer than 1 MiB"):
        lines.add(b"data:\n" * 60_000)


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("a.b[0].c", 1),
        ("a.b[-1].c", 2),
        ("/a/b/1/c", 2),
        ("/x~1y/~0", 3),
        ("a.b[2].c", MISSING),
        ("a.c", MISSING),
        ("a.b.c", MISSING),
        ("/a/b/x", MISSING),
        ("a.b[0].c.d", MISSING),
        ("[0]", MISSING),
    ],
)
def test_a_path_leads_to_a_value_or_nowhere(path: str, found: Any) -> None:
    data = {"a": {"b": [{"c": 1}, {"c": 2}]}, "x/y": {"~": 3}}
    assert look_up(data, parse_path(path)) == found


def test_numbers_that_json_cannot_carry_are_no_cost() -> None:
    assert json.loads("1e999") == math.inf
    with pytest.raises(ConnectorFailure, match="cost: got inf"):
        find_response({"text": "x", "cost": math.inf})


def test_times_are_kept_to_the_nanosecond() -> None:
    invocation = to_invocation(TurnData(response="fine"), 1)
    set_times(invocation, 1.5, 0.000000001)
    assert duration_ms(invocation.latency) == 1500
    assert invocation.time_to_first_token.nanos == 1
