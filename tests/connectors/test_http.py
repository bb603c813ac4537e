"""Agents over HTTP: what they answer in any usual form, and what is no answer."""

import asyncio
import json
import threading
from typing import Any

import pytest

from evald.structs import duration_ms
from evald.v1 import context_pb2
from evald_server.config import Settings
from evald_server.connectors import answers, http_client
from evald_server.connectors.build import Connectors, try_connector
from evald_server.connectors.connector import AgentRequest, ConnectorOptions
from evald_server.connectors.headers import HeaderSecrets, ResolvedHeaders
from evald_server.connectors.network_agent import NetworkAgent
from evald_server.connectors.targets import AgentTargets

from ..judge.wire import Answer, answer, chunk, completion, events, wire
from .building import built, failure, messages, stored, texts, turn

CALL = {"id": "c1", "type": "function", "function": {"name": "book", "arguments": '{"slot":9}'}}
LANGCHAIN_CALL = {"name": "book", "args": {"slot": 9}, "id": "c1"}
USER = {"role": "user", "content": "Hi"}

# Without any config.
USUAL: dict[str, tuple[Any, list[tuple[str, str]]]] = {
    "completion": (completion("fine"), [("assistant", "fine")]),
    "message": ({"message": "fine"}, [("assistant", "fine")]),
    "empty-message": ({"message": ""}, [("assistant", "")]),
    "message-object": ({"message": {"content": "fine"}}, [("assistant", "fine")]),
    "message-with-role": ({"message": {"role": "assistant", "content": "fine"}}, [("assistant", "fine")]),
    "a-message-itself": ({"role": "assistant", "content": "fine"}, [("assistant", "fine")]),
    **{
        key: ({key: "fine"}, [("assistant", "fine")])
        for key in ("content", "text", "output", "response", "reply")
    },
    "a-failed-tool": ({"role": "tool", "content": "no", "status": "error"}, [("tool", "no")]),
    "a-failed-tool-of-langchain": (
        {"type": "tool", "content": "no", "status": "error", "tool_call_id": "1"},
        [("tool", "no")],
    ),
    "after-a-byte-order-mark": (b'\xef\xbb\xbf{"text": "fine"}', [("assistant", "fine")]),
    "text-alone": ('"fine"', [("assistant", "fine")]),
    "messages": (
        {
            "messages": [
                {"role": "tool", "tool_call_id": "c1", "content": "[]"},
                {"role": "assistant", "content": "fine"},
            ]
        },
        [("tool", "[]"), ("assistant", "fine")],
    ),
    "messages-with-the-history": (
        {"messages": [{"role": "system", "content": "s"}, USER, {"role": "assistant", "content": "fine"}]},
        [("assistant", "fine")],
    ),
    "a-list": ([USER, {"role": "assistant", "content": "fine"}], [("assistant", "fine")]),
    "langchain": (
        {"messages": [{"type": "human", "content": "Hi"}, {"type": "ai", "content": "fine"}]},
        [("assistant", "fine")],
    ),
    "nested": ({"output": {"message": {"content": "fine"}}, "ok": True}, [("assistant", "fine")]),
    "responses-api-with-an-odd-reason": (
        {"output": [{"type": "message", "content": "fine"}], "incomplete_details": {"reason": ["x"]}},
        [("assistant", "fine")],
    ),
    "responses-api": (
        {
            "object": "response",
            "output": [
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "fine"}]}
            ],
        },
        [("assistant", "fine")],
    ),
}


async def test_an_answer_is_read_when_others_had_their_turn() -> None:
    times = 0

    async def yield_to_calls() -> None:
        nonlocal times
        times += 1

    async with wire(answer(200, {"text": "fine"})) as server:
        agent = Connectors(Settings(), yield_to_calls=yield_to_calls).build(stored("http", server.base_url))
        assert texts(await agent.invoke(turn())) == [("assistant", "fine")]
        await agent.aclose()
    assert times, "and more often where the machine is slow"


@pytest.mark.parametrize(("length", "in_a_thread"), [(1000, False), (100_000, True)])
async def test_a_long_answer_is_read_in_a_thread(
    length: int, in_a_thread: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []

    def parse_body(*given: Any) -> Any:
        threads.append(threading.get_ident())
        return answers.parse_body(*given)

    monkeypatch.setattr(http_client, "parse_body", parse_body)
    given = answer(200, {"text": "x" * length})
    async with wire(given) as server, built("http", server.base_url) as agent:
        await agent.invoke(turn())
    assert [thread != threading.get_ident() for thread in threads] == [in_a_thread]


@pytest.mark.parametrize("name", USUAL)
async def test_usual_answers_need_no_config(name: str) -> None:
    body, said = USUAL[name]
    async with wire(answer(200, body)) as server, built("http", server.base_url) as agent:
        invocation = await agent.invoke(turn())
        assert texts(invocation) == said
        assert invocation.HasField("latency")
        assert not invocation.HasField("time_to_first_token")


async def test_calls_usage_cost_and_model_beside_a_text_are_read() -> None:
    body = {
        "content": None,
        "toolCalls": [LANGCHAIN_CALL],
        "usage": {"prompt_tokens": 5, "completion_tokens": 2},
        "costUsd": 0.25,
        "model": "agent-1",
    }
    async with wire(answer(200, body)) as server, built("http", server.base_url) as agent:
        invocation = await agent.invoke(turn())
    (message,) = invocation.messages
    assert not message.HasField("text")
    assert (message.tool_calls[0].function.name, message.tool_calls[0].function.arguments) == (
        "book",
        '{"slot": 9}',
    )
    assert (invocation.token_usage.input_tokens, invocation.token_usage.output_tokens) == (5, 2)
    assert (invocation.cost.amount, invocation.model) == (0.25, "agent-1")


@pytest.mark.parametrize("inner", [{}, {"usage": {"input": 1}, "cost": 2, "model": "inner"}])
async def test_numbers_around_an_answer_count_where_it_has_none_itself(inner: dict[str, Any]) -> None:
    around = {"usage": {"input": 3}, "cost": 4, "model": "outer"}
    body = {**around, "data": {**inner, "message": {"content": "fine"}}}
    async with wire(answer(200, body)) as server, built("http", server.base_url) as agent:
        invocation = await agent.invoke(turn())
    said = (invocation.token_usage.input_tokens, invocation.cost.amount, invocation.model)
    assert said == ((1, 2, "inner") if inner else (3, 4, "outer"))


async def test_a_call_in_the_older_form_beside_a_text_is_read() -> None:
    body = {"text": "fine", "function_call": {"name": "book", "arguments": "{}"}}
    async with wire(answer(200, body)) as server, built("http", server.base_url) as agent:
        (message,) = (await agent.invoke(turn())).messages
    assert (message.text, message.tool_calls[0].function.name) == ("fine", "book")


STEPS = [{"tool": "book", "input": {}}]
UNREAD: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    # config, the agent's answer, what looks like a call and is not read
    "beside-a-text": ({}, {"text": "fine", "toolUses": STEPS}, ["toolUses[0]"]),
    "around-a-message": ({}, {"output": {"content": "fine"}, "trace": {"steps": STEPS}}, ["trace.steps[0]"]),
    "at-no-path": ({"textPath": "a"}, {"a": "fine", "toolCalls": STEPS}, ["toolCalls[0]"]),
    "only-once": (
        {"textPath": "a", "toolCallsPath": "b"},
        {"a": "fine", "b": [CALL], "again": [CALL], "others": STEPS},
        ["others[0]"],
    ),
    "the-part-is-chosen": (
        {"messagesPath": "m"},
        {"m": [{"role": "assistant", "content": "fine"}], "old": STEPS},
        [],
    ),
    "events": ({"stream": "sse"}, {"toolUses": STEPS}, ["events[0].toolUses[0]"]),
}


@pytest.mark.parametrize("name", UNREAD)
async def test_calls_that_are_not_read_are_named(name: str) -> None:
    config, body, paths = UNREAD[name]
    said = answer(200, events(body, {"text": "fine", "toolUses": []}) if "stream" in config else body)
    async with wire(said) as server, built("http", server.base_url, config) as agent:
        invocation = await agent.invoke(turn())
    assert texts(invocation) == [("assistant", "fine")]
    assert list(invocation.messages[0].unread_calls) == paths


async def test_what_is_sent_is_the_conversation_and_can_be_said_in_a_template() -> None:
    said = (
        "Hi",
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "[]"},
        "Go {{turn}}",
    )
    config = {
        "method": "PUT",
        "path": "/chat/{{threadId}}?turn={{turn}}",
        "body": {
            "say": "> {{message}}",
            "all": "{{ messages }}",
            "meta": [{"turn": "{{turn}}", "x": 1.5}],
            "id": "{{threadId}}",
        },
    }
    async with wire(answer(200, {"text": "ok"})) as server:
        async with built("http", server.base_url) as agent:
            await agent.invoke(turn(*said))
        async with built("http", f"{server.base_url}/", config) as agent:
            await agent.invoke(turn(*said)._replace(thread_id="a/b"))
        (head, default), (templated_head, templated) = server.requests
    assert default["message"] == "Go {{turn}}"
    assert default["threadId"] == "thread-1"
    assert default["messages"] == [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "[]"},
        {"role": "user", "content": "Go {{turn}}"},
    ]
    assert "idempotency-key: request-1" in head.lower()
    assert templated_head.startswith("PUT /v1/chat/a%2Fb?turn=1 HTTP/1.1")
    assert templated == {
        "say": "> Go {{turn}}",
        "all": default["messages"],
        "meta": [{"turn": 1, "x": 1.5}],
        "id": "a/b",
    }


PATHS: dict[str, tuple[dict[str, Any], Any]] = {
    "text": (
        {"textPath": "a.b[0].c", "toolCallsPath": "/a/calls"},
        {"a": {"b": [{"c": "fine"}], "calls": [CALL]}},
    ),
    "messages": (
        {"messagesPath": "/0/turn~1s"},
        [{"turn/s": [{"role": "assistant", "content": "fine", "tool_calls": [CALL]}]}],
    ),
    "the-last": ({"textPath": "all[-1]", "toolCallsPath": "calls"}, {"all": ["x", "fine"], "calls": [CALL]}),
}


@pytest.mark.parametrize("name", PATHS)
async def test_paths_say_where_the_answer_is(name: str) -> None:
    config, body = PATHS[name]
    async with wire(answer(200, body)) as server, built("http", server.base_url, config) as agent:
        invocation = await agent.invoke(turn())
    assert texts(invocation) == [("assistant", "fine")]
    assert [call.id for call in invocation.messages[0].tool_calls] == ["c1"]


async def test_paths_say_where_the_numbers_are() -> None:
    body = {"text": "fine", "m": {"i": 3, "o": 4, "usd": 0.5, "name": "agent-1"}}
    paths = {"usagePath": {"input": "m.i", "output": "m.o"}, "costPath": "m.usd", "modelPath": "m.name"}
    async with wire(answer(200, body)) as server, built("http", server.base_url, paths) as agent:
        invocation = await agent.invoke(turn())
    assert (invocation.token_usage.input_tokens, invocation.token_usage.output_tokens) == (3, 4)
    assert (invocation.cost.currency_code, invocation.cost.amount, invocation.model) == (
        "USD",
        0.5,
        "agent-1",
    )


async def test_numbers_that_an_agent_leaves_out_stay_unknown() -> None:
    paths = {"usagePath": "m.usage", "costPath": "m.usd", "modelPath": "m.name"}
    async with wire(answer(200, {"text": "fine"})) as server, built("http", server.base_url, paths) as agent:
        invocation = await agent.invoke(turn())
    assert not any(map(invocation.HasField, ("token_usage", "cost", "model")))


SSE = [{"text": "fi"}, {"text": "ne", "usage": {"input_tokens": 3}}]
STREAMS: dict[str, tuple[dict[str, Any], str]] = {
    "sse": ({"stream": "sse"}, events(*SSE)),
    "sse-without-an-end-mark": ({"stream": "sse"}, events(*SSE, done=False)),
    "sse-with-comments": (
        {"stream": "sse"},
        ': hello\r\n\r\nevent: piece\r\nid: 1\r\ndata: {"text":\r\ndata: "fi"}\r\n\r\n' + events(SSE[1]),
    ),
    "sse-with-more-after-the-end-mark": ({"stream": "sse"}, events(*SSE) + "data: x\n\ndata: {"),
    "sse-of-an-older-model": (
        {"stream": "sse", "deltaPath": "choices[0].text"},
        events({"choices": [{"text": "fi"}]}, {"choices": [{"text": "ne"}], "usage": {"input_tokens": 3}}),
    ),
    "sse-of-a-model-by-a-path": (
        {"stream": "sse", "deltaPath": "choices[0].delta.content"},
        events(chunk("fi"), chunk("ne", "stop"), {"choices": [], "usage": {"prompt_tokens": 3}}),
    ),
    "sse-of-a-model": (
        {"stream": "sse"},
        events(chunk("fi"), chunk("ne", "stop"), chunk() | {"choices": [], "usage": {"prompt_tokens": 3}}),
    ),
    "sse-with-the-whole-text-at-the-end": (
        {"stream": "sse"},
        events(
            {"type": "delta", "delta": "fi"}, {"type": "delta", "delta": "ne"}, {**SSE[1], "text": "fine"}
        ),
    ),
    "sse-with-the-whole-text-in-an-event-of-another-type": (
        {"stream": "sse", "deltaPath": "text"},
        events(
            *({"type": "delta", **one} for one in SSE),
            {"type": "final", "text": "fine"},
            {"type": "end", "text": ""},
        ),
    ),
    "sse-of-a-role": ({"stream": "sse"}, events(*({"role": "model", **one} for one in SSE))),
    "ndjson": ({"stream": "ndjson"}, "".join(f"{json.dumps(one)}\n\n" for one in SSE).rstrip()),
    "delta-path": (
        {"stream": "ndjson", "deltaPath": "d[0].t", "usagePath": "n"},
        '{"d": [{"t": "fi"}]}\n{"d": []}\n{"d": [{"t": "ne"}], "n": {"input": 3}}\n',
    ),
}


@pytest.mark.parametrize("name", STREAMS)
async def test_streamed_pieces_are_joined_and_the_first_is_timed(name: str) -> None:
    config, body = STREAMS[name]
    async with wire(answer(200, body)) as server, built("http", server.base_url, config) as agent:
        invocation = await agent.invoke(turn())
    assert texts(invocation) == [("assistant", "fine")]
    assert invocation.token_usage.input_tokens == 3
    assert 0 < duration_ms(invocation.time_to_first_token) <= duration_ms(invocation.latency)


BOOK = {"id": "c1", "name": "book", "args": {}}
STREAMED_CALLS: dict[str, tuple[list[dict[str, Any]], list[str]]] = {
    "in-several-events": ([{"tool_calls": [BOOK]}, {"toolCalls": [{"name": "pay"}]}], ["book", "pay"]),
    "then-null": ([{"tool_calls": [BOOK]}, {"tool_calls": None}], ["book"]),
    "then-none": ([{"tool_calls": [BOOK]}, {"tool_calls": []}], ["book"]),
    "repeated": ([{"tool_calls": [BOOK]}, {"tool_calls": [BOOK, {"name": "pay"}]}], ["book", "pay"]),
    "two-alike-without-ids": ([{"tool_calls": [{"name": "pay"}]}] * 2, ["pay", "pay"]),
    "each-an-event": ([{"type": "tool_call", **BOOK}, {"type": "tool-use", "tool": "pay"}], ["book", "pay"]),
    "one-that-is-no-list": ([{"tool_calls": BOOK}], ["book"]),
}


@pytest.mark.parametrize("name", STREAMED_CALLS)
@pytest.mark.parametrize(
    ("config", "said"), [({}, []), ({}, [{"text": "x"}]), ({"deltaPath": "text"}, [{"text": "x"}])]
)
async def test_no_call_of_a_stream_is_lost(
    name: str, config: dict[str, Any], said: list[dict[str, Any]]
) -> None:
    sent, called = STREAMED_CALLS[name]
    given, config = answer(200, events(*sent, *said)), {**config, "stream": "sse"}
    async with wire(given) as server, built("http", server.base_url, config) as agent:
        (message,) = (await agent.invoke(turn())).messages
    assert [call.function.name for call in message.tool_calls] == called
    assert message.text == ("x" if said else "")


@pytest.mark.parametrize(
    "delta",
    [{"tool_calls": [{"index": 0, "function": {"name": "book"}}]}, {"function_call": {"name": "book"}}],
)
async def test_calls_that_a_path_leaves_out_are_no_answer(delta: dict[str, Any]) -> None:
    sent = events(chunk("fi"), chunk(**delta))
    config = {"stream": "sse", "deltaPath": "choices[0].delta.content"}
    async with wire(answer(200, sent)) as server, built("http", server.base_url, config) as agent:
        assert "tool calls are not read with config.deltaPath" in (await failure(agent)).message


async def test_the_text_of_a_tool_is_not_that_of_the_agent() -> None:
    sent = events({"type": "tool_result", "content": "secret"}, {"role": "assistant", "text": "fine"})
    async with wire(answer(200, sent)) as server, built("http", server.base_url, {"stream": "sse"}) as agent:
        assert texts(await agent.invoke(turn())) == [("assistant", "fine")]


async def test_a_stream_is_left_when_it_says_that_it_is_over() -> None:
    endless = answer(200, events({"text": "fine"}), length=10_000, end="hang")
    async with wire(endless) as server, built("http", server.base_url, {"stream": "sse"}) as agent:
        assert texts(await agent.invoke(turn())) == [("assistant", "fine")]


def _many(text: str) -> str:
    return json.dumps({"messages": [{"role": "assistant", "content": text}] * 6000})


BAD = "CONNECTOR_BAD_ANSWER"
FAULTS: dict[str, tuple[Answer, str, str]] = {
    "nothing": (answer(200, b""), BAD, "empty"),
    "no-content": (Answer(b"HTTP/1.1 204 No Content\r\n\r\n"), BAD, "empty"),
    "html": (answer(200, "<!doctype html><p>Sign in", content_type="text/html"), BAD, "HTML or XML"),
    "html-of-text-alone": (answer(200, "Sign in", content_type="text/html"), BAD, "HTML or XML"),
    "html-unsaid": (answer(200, "\n<html>"), BAD, "HTML or XML"),
    "garbage": (answer(200, b"\x00\x01\x02"), BAD, "not valid JSON"),
    "plain-text": (answer(200, "fine", content_type="text/plain"), BAD, "not valid JSON"),
    "not-utf-8": (answer(200, b'{"text": "\xff"}'), BAD, "not UTF-8 at byte 10"),
    "half-a-surrogate": (answer(200, b'{"text": "\\ud800"}'), BAD, "answer: half of a surrogate"),
    "nan": (answer(200, b'{"text": "fine", "cost": NaN}'), BAD, "not valid JSON"),
    "half": (answer(200, b'{"text": "fi', length=100, end="close"), BAD, "is incomplete"),
    "half-and-reset": (answer(200, b'{"text": "fi', length=100, end="reset"), BAD, "is incomplete"),
    "half-a-json": (answer(200, b'{"text": "fi'), BAD, "not valid JSON"),
    "too-long": (answer(200, {"text": "x" * (8 << 20)}), BAD, "longer than 8 MiB"),
    "too-many-values": (answer(200, [1] * 200_000), BAD, "or more keys and values"),
    "too-many-messages": (answer(200, _many("x")), BAD, "6000 messages, wanted at most 5000"),
    "too-deep": (answer(200, "[" * 100_000 + "]" * 100_000), BAD, "deeper"),
    "compressed": (answer(200, b"\x1f\x8b", content_encoding="gzip"), BAD, "compressed"),
    "unknown-keys": (answer(200, {"foo": 1, "bar": "x"}), BAD, "the keys foo, bar"),
    "no-keys": (answer(200, {}), BAD, "no keys"),
    "null": (answer(200, b"null"), BAD, "got null"),
    "a-number": (answer(200, b"3"), BAD, "got 3"),
    "an-error": (answer(200, {"error": {"message": "out of order"}}), BAD, "out of order"),
    **{
        f"a-report-of-an-error-by-{next(iter(said))}": (
            answer(200, {"message": "no", **said}),
            BAD,
            "reports an error",
        )
        for said in (
            {"status": "error"},
            {"success": False},
            {"ok": False},
            {"errors": ["no"]},
            {"type": "error"},
            {"is_error": True},
            {"isError": True},
            {"statusCode": 500},
            {"status_code": 400},
            {"code": 599},
        )
    },
    "an-error-further-in": (answer(200, {"output": {"error": "broken", "text": "x"}}), BAD, "broken"),
    "a-status-of-a-failure": (answer(200, {"message": "no", "status": "failed"}), BAD, "reports an error"),
    "another-role": (answer(200, {"role": "banana", "content": "x"}), BAD, "role"),
    "two-texts": (
        answer(200, {"role": "assistant", "content": "x", "parts": [{"type": "text", "text": "y"}]}),
        BAD,
        "`parts` lacks",
    ),
    "a-system-message": (answer(200, [{"role": "system", "content": "x"}]), BAD, "got 'system'"),
    "half-a-surrogate-in-a-key": (answer(200, b'{"\\ud800": 1}'), BAD, "the keys"),
    "a-cost-of-many-digits": (
        answer(200, '{"text": "x", "cost": 1' + "0" * 400 + "}"),
        BAD,
        "of 401 characters",
    ),
    "a-list-as-a-type": (answer(200, {"output": [{"type": ["x"]}]}), BAD, "output"),
    "no-message": (answer(200, {"messages": []}), BAD, "no message of the agent"),
    "only-the-user": (answer(200, {"messages": [USER]}), BAD, "no message of the agent"),
    "null-content": (answer(200, {"role": "assistant", "content": None}), BAD, "got no content"),
    "silence-after-a-call": (
        answer(
            200, {"messages": [{"role": "tool", "content": "[]"}, {"role": "assistant", "content": None}]}
        ),
        BAD,
        "messages[1]: got no content",
    ),
    "a-wrong-type": (answer(200, {"role": "assistant", "content": 3}), BAD, "content: got 3 (int)"),
    "a-wrong-call": (
        answer(200, {"text": "x", "tool_calls": [{}]}),
        BAD,
        "tool_calls[0].function.name: missing",
    ),
    "a-wrong-usage": (answer(200, {"text": "x", "usage": {"input": -1}}), BAD, "usage.input"),
    "a-wrong-cost": (answer(200, {"text": "x", "cost": -1}), BAD, "cost: got -1"),
    "400": (answer(400, {"detail": "no field x"}), "CONNECTOR_REFUSED", "no field x"),
    "401": (answer(401, b""), "CONNECTOR_REFUSED", "check the credentials in headers"),
    "404": (answer(404, "nope"), "CONNECTOR_REFUSED", "are base_url and config right?: 'nope'"),
    "redirect": (answer(302, b"", location="http://127.0.0.1:9/"), "CONNECTOR_REFUSED", "redirects"),
    "500": (answer(500, "<h1>It broke</h1>" + "x" * 1000), "CONNECTOR_UNAVAILABLE", "It broke"),
    "503": (answer(503, b"", retry_after="0"), "CONNECTOR_UNAVAILABLE", "no more requests now"),
    "429": (answer(429, b""), "CONNECTOR_REFUSED", "no more requests now"),
    "no-http": (
        Answer(b"SSH-2.0-OpenSSH\r\n", "close"),
        "CONNECTOR_UNAVAILABLE",
        "closed without an HTTP answer",
    ),
    "closed": (Answer(b"", "close"), "CONNECTOR_UNAVAILABLE", "without an HTTP answer"),
    "reset": (Answer(b"", "reset"), "CONNECTOR_UNAVAILABLE", "without an HTTP answer"),
    "silence": (Answer(b"", "hang"), "CONNECTOR_TIMEOUT", "within 0.5 s; config.timeoutSeconds"),
    "silence-in-the-body": (answer(200, "{", length=9, end="hang"), "CONNECTOR_TIMEOUT", "within 0.5 s"),
}


@pytest.mark.parametrize("name", FAULTS)
async def test_a_fault_is_told_once_and_the_request_is_not_repeated(name: str) -> None:
    given, code, words = FAULTS[name]
    config = {"timeoutSeconds": 0.5 if name.startswith("silence-") or name == "silence" else 30}
    async with wire(given) as server, built("http", server.base_url, config) as agent:
        failed = await failure(agent)
        assert (failed.code, len(server.requests)) == (code, 1)
        assert words in failed.message
        assert len(failed.message) < 600


REPORTED = [
    ("", {"status": "error"}),
    ("", {"status": "ERROR"}),
    ("", {"status": "Failed"}),
    ("", {"success": False}),
    ("data", {"status": "failure"}),
    ("data answer", {"success": False}),
]


@pytest.mark.parametrize(("place", "report"), REPORTED)
async def test_an_answer_within_a_report_of_an_error_is_none(place: str, report: dict[str, Any]) -> None:
    body: dict[str, Any] = {"data": {"answer": {"text": "Sorry."}}}
    inner = body
    for key in place.split():
        inner = inner[key]
    inner.update(report)
    for config in ({"textPath": "data.answer.text"}, {"textPath": "/data/answer/text"}):
        async with wire(answer(200, body)) as server, built("http", server.base_url, config) as agent:
            failed = await failure(agent)
        assert (failed.code, "the agent reports an error" in failed.message) == (BAD, True)


STREAM_FAULTS: dict[str, tuple[str, Answer, str, str]] = {
    "no-pieces": ("sse", answer(200, events({"foo": 1})), BAD, "the events: foo"),
    "nothing": ("sse", answer(200, b""), BAD, "the stream has no text"),
    "no-stream": ("sse", answer(200, {"text": "fine"}), BAD, "not a stream of server-sent events"),
    "html": ("ndjson", answer(200, "<html>\n"), BAD, "not JSON: '<html>'"),
    "no-json": ("sse", answer(200, "data: fine\n\n"), BAD, "not JSON: 'fine'"),
    "not-utf-8": ("ndjson", answer(200, b'{"text": "\xff"}'), BAD, "not JSON"),
    "an-error": ("sse", answer(200, events({"text": "fi"}, {"error": "broken"})), BAD, "broken"),
    "an-error-event": ("sse", answer(200, 'event: error\ndata: {"why": "broken"}\n\n'), BAD, "broken"),
    "half": (
        "sse",
        answer(200, events({"text": "fi"}, done=False), length=999, end="close"),
        BAD,
        "is incomplete",
    ),
    "half-a-completion": (
        "sse",
        answer(200, events(chunk("fi"), done=False)),
        BAD,
        "without a finish_reason",
    ),
    "an-error-event-without-data": (
        "sse",
        answer(200, events({"text": "fi"}, done=False) + "event: error\n\n"),
        BAD,
        "an error",
    ),
    "an-error-by-its-type": (
        "sse",
        answer(200, events({"text": "fi"}, {"type": "error", "message": "no"})),
        BAD,
        "an error",
    ),
    "a-message-of-the-user": ("sse", answer(200, events({"role": "user", "text": "x"})), BAD, "got 'user'"),
    "an-error-before-the-end": (
        "sse",
        answer(200, events({"text": "fi"}, {"type": "error", "message": "no"}, {"type": "end"})),
        BAD,
        "reports an error",
    ),
    "chunks-and-calls": (
        "sse",
        answer(200, events({"tool_calls": [BOOK]}, chunk("ne", "stop"))),
        BAD,
        "and other events with text or tool calls",
    ),
    "chunks-and-texts": (
        "sse",
        answer(200, events({"text": "fi"}, chunk("ne", "stop"))),
        BAD,
        "and other events with text",
    ),
    "an-error-in-a-line": ("ndjson", answer(200, '{"text": "fi"}\n{"type": "error"}\n'), BAD, "an error"),
    "html-after-the-start": (
        "sse",
        answer(200, events({"text": "fi"}, done=False) + "<html>\n"),
        BAD,
        "<html>",
    ),
    "too-many-values": ("ndjson", answer(200, json.dumps([1] * 200_000)), BAD, "or more keys and values"),
    "too-deep": ("ndjson", answer(200, "[" * 10_000), BAD, "deeper"),
    "endless-line": ("ndjson", answer(200, b"x" * (2 << 20)), BAD, "longer than 1 MiB"),
    "endless-lines": ("sse", answer(200, (b"data: " + b"x" * 60_000 + b"\n") * 20), BAD, "longer than 1 MiB"),
    "trickle": (
        "sse",
        answer(200, events({"text": "fi"}, done=False), length=999, end="hang"),
        "CONNECTOR_TIMEOUT",
        "within 0.5 s",
    ),
}


@pytest.mark.parametrize("name", STREAM_FAULTS)
async def test_a_fault_of_a_stream_is_no_answer(name: str) -> None:
    kind, given, code, words = STREAM_FAULTS[name]
    config = {"stream": kind, "timeoutSeconds": 0.5 if name == "trickle" else 30}
    async with wire(given) as server, built("http", server.base_url, config) as agent:
        failed = await failure(agent)
        assert failed.code == code
        assert words in failed.message


async def test_data_as_deep_as_evald_reads_are_no_fault_of_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EVALD_SECRET_AGENT", "hush-4711-hush")
    headers = {"authorization": "${EVALD_SECRET_AGENT}"}
    deep = '{"text": "fine", "x": ' + "[" * 499 + "]" * 499 + "}"
    async with wire(answer(200, deep)) as server, built("http", server.base_url, {}, headers) as agent:
        assert texts(await agent.invoke(turn())) == [("assistant", "fine")]


@pytest.mark.parametrize("fault", [TypeError, OverflowError, RecursionError, UnicodeError])
async def test_an_answer_that_breaks_its_reader_is_told_and_logged_without_its_text(
    fault: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    class BrokenAgent(NetworkAgent):
        async def answer(self, request: AgentRequest, headers: ResolvedHeaders) -> context_pb2.Invocation:
            raise fault("what the agent said")

    options = ConnectorOptions(AgentTargets(()), HeaderSecrets(()), {}, 1)
    failed = await failure(BrokenAgent(stored("http"), None, options))
    assert (failed.code, failed.message) == (BAD, "the answer cannot be read")
    assert fault.__name__ in caplog.text
    assert "said" not in caplog.text


async def test_a_failure_that_repeats_the_agent_is_short_and_printable() -> None:
    body = {
        "role": "assistant",
        "content": "x",
        "tool_calls": [{"\ud800\n" * 50 + str(at): 1} for at in range(50)],
    }
    async with wire(answer(200, body)) as server, built("http", server.base_url) as agent:
        failed = await failure(agent)
    assert failed.code == BAD
    assert len(failed.message) <= 2000
    assert failed.message.isprintable()


async def test_an_endless_stream_is_left_at_its_limit() -> None:
    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        piece = b'data: {"text": "' + b"x" * 60_000 + b'"}\n\n'
        try:
            while True:
                writer.write(piece)
                await writer.drain()
        except ConnectionError:
            closed.set()

    closed = asyncio.Event()
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, built("http", url, {"stream": "sse"}) as agent:
        assert "longer than 8 MiB" in (await failure(agent)).message
        await closed.wait()


async def test_an_agent_that_is_not_there_is_tried_again_and_then_told_with_its_address() -> None:
    async with wire(answer(200, {"text": "fine"})) as server:
        gone = server.base_url
    async with built("http", gone, {"maxAttempts": 2}) as agent:
        failed = await failure(agent)
        assert (failed.code, failed.retryable) == ("CONNECTOR_UNAVAILABLE", True)
        assert f"the agent at {gone}: it cannot be reached (connection refused)" in failed.message


@pytest.mark.parametrize("name", ["429", "500", "503", "closed", "reset", "half"])
async def test_an_agent_that_repeats_no_work_is_asked_again_with_the_same_key(name: str) -> None:
    config = {"retry": True}
    async with wire(FAULTS[name][0], answer(200, {"text": "fine"})) as server:
        async with built("http", server.base_url, config) as agent:
            assert texts(await agent.invoke(turn())) == [("assistant", "fine")]
        assert len(server.requests) == 2
        assert all("idempotency-key: request-1" in head.lower() for head, _ in server.requests)


async def test_trying_a_connector_says_what_came_of_it() -> None:
    good = answer(200, {"text": "fine", "usage": {"input": 1}})
    async with wire(good, answer(500, "x")) as server, built("http", server.base_url) as agent:
        tried = await try_connector(agent)
        assert (tried.success, tried.messages[0].text, tried.token_usage.input_tokens) == (
            True,
            "fine",
            1,
        )
        assert tried.HasField("latency")
        assert server.bodies[0]["message"] == "Hello"
        failed = await try_connector(agent, "Anybody?")
        assert (failed.success, list(failed.messages)) == (False, [])
        assert failed.error.startswith("CONNECTOR_UNAVAILABLE: the agent at http://127.0.0.1:")


async def test_a_trial_ends_although_the_agent_hangs() -> None:
    async with wire(Answer(b"", "hang")) as server, built("http", server.base_url) as agent:
        tried = await try_connector(agent, timeout_seconds=0.2)
    assert tried.error.startswith("CONNECTOR_TIMEOUT: no answer within 0.2 s")
    assert not tried.success


async def test_a_request_that_is_too_large_is_not_sent() -> None:
    config = {"body": ["{{messages}}"] * 10}
    async with wire(answer(200, {"text": "fine"})) as server, built("http", server.base_url, config) as agent:
        failed = await failure(agent, turn("x" * (4 << 20)))
        assert (failed.code, server.requests) == ("CONNECTOR_CONFIG", [])
    assert "at most 33554432" in failed.message


async def test_nothing_of_one_conversation_reaches_the_next() -> None:
    """No cookies are kept."""
    async with wire(answer(200, {"text": "fine"}, set_cookie="session=1")) as server:
        async with built("http", server.base_url) as agent:
            await agent.invoke(turn())
            await agent.invoke(turn())
        assert all("cookie" not in head.lower() for head, _ in server.requests)


async def test_many_turns_at_once_are_kept_apart() -> None:
    async with wire(answer(200, {"text": "fine"})) as server, built("http", server.base_url) as agent:
        asked = [turn()._replace(messages=messages(f"m{number}")) for number in range(32)]
        await asyncio.gather(*map(agent.invoke, asked))
        assert sorted(body["message"] for body in server.bodies) == sorted(
            f"m{number}" for number in range(32)
        )
