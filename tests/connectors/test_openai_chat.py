"""An OpenAI-compatible endpoint, and tools whose answers the config has."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from evald.structs import duration_ms
from evald_server.connectors import openai_chat

from ..judge.wire import Answer, answer, chunk, completion, events, wire
from .building import built, failure, texts, turn

CONFIG: dict[str, Any] = {"model": "gpt-x"}
BOOK = {"type": "function", "function": {"name": "book", "parameters": {"type": "object"}}}
TOOLS = {**CONFIG, "tools": [BOOK], "toolResults": {"book": {"ref": "BK-12345"}}}


def calling(*names: str) -> dict[str, Any]:
    calls = [
        {"id": f"c-{name}", "type": "function", "function": {"name": name, "arguments": "{}"}}
        for name in names
    ]
    return completion(None, "tool_calls", tool_calls=calls)


async def test_the_conversation_is_sent_as_it_is_with_the_config_s_keys() -> None:
    config = {**CONFIG, "systemPrompt": "Be kind.", "parameters": {"temperature": 0, "seed": 7}}
    said = ("Hi", {"role": "assistant", "content": "Hello", "id": "m1", "metadata": {"x": 1}}, "A slot?")
    async with wire(answer(200, completion("At nine"))) as server:
        async with built("openai-chat", server.base_url, config) as agent:
            invocation = await agent.invoke(turn(*said))
        (head, body) = server.requests[0]
    assert head.startswith("POST /v1/chat/completions HTTP/1.1")
    assert body == {
        "model": "gpt-x",
        "temperature": 0,
        "seed": 7,
        "messages": [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Hello"},
            {"role": "user", "content": "A slot?"},
        ],
    }
    assert texts(invocation) == [("assistant", "At nine")]
    assert (invocation.model, invocation.token_usage.total_tokens) == ("judge-1", 110)
    assert invocation.metadata.fields["finish_reason"].string_value == "stop"
    assert invocation.HasField("latency")


async def test_calls_are_answered_from_the_config_and_the_model_is_asked_again() -> None:
    first, last = calling("book", "cancel"), completion("BK-12345")
    first["usage"]["cost"], last["usage"]["cost"] = 0.25, 0.5
    async with wire(answer(200, first), answer(200, last)) as server:
        async with built("openai-chat", server.base_url, TOOLS) as agent:
            invocation = await agent.invoke(turn())
        heads, bodies = [head for head, _ in server.requests], server.bodies
    assert texts(invocation) == [
        ("assistant", ""),
        ("tool", '{"ref": "BK-12345"}'),
        ("tool", '{"error": "unknown tool \'cancel\'"}'),
        ("assistant", "BK-12345"),
    ]
    assert bodies[1]["messages"] == [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "tool_calls": first["choices"][0]["message"]["tool_calls"]},
        {"role": "tool", "tool_call_id": "c-book", "content": '{"ref": "BK-12345"}'},
        {"role": "tool", "tool_call_id": "c-cancel", "content": '{"error": "unknown tool \'cancel\'"}'},
    ]
    assert bodies[1]["tools"] == [BOOK]
    assert invocation.token_usage.total_tokens == 220
    assert (invocation.cost.currency_code, invocation.cost.amount) == ("USD", 0.75)
    assert ["idempotency-key: request-1\r" in head.lower() for head in heads] == [True, False]


async def test_a_long_answer_is_read_in_a_thread_in_later_rounds_too(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    async def in_thread_if_large(size: int, work: Callable[..., Any], *given: Any) -> Any:
        sizes.append(size)
        return work(*given)

    monkeypatch.setattr(openai_chat, "in_thread_if_large", in_thread_if_large)
    first = answer(200, {**calling("book"), "long": "x" * 100_000})
    async with (
        wire(first, answer(200, completion())) as server,
        built("openai-chat", server.base_url, TOOLS) as agent,
    ):
        await agent.invoke(turn())
    assert sizes[1] > sizes[0] > 100_000


async def test_what_one_of_several_requests_does_not_report_is_missing() -> None:
    first, last = calling("book"), completion("BK-12345")
    first["usage"]["cost"] = 0.25
    del last["usage"]
    async with (
        wire(answer(200, first), answer(200, last)) as server,
        built("openai-chat", server.base_url, TOOLS) as agent,
    ):
        invocation = await agent.invoke(turn())
    assert not invocation.HasField("cost")
    assert not invocation.HasField("token_usage")
    assert invocation.HasField("latency")


async def test_a_model_that_only_calls_tools_is_left_after_the_last_round() -> None:
    config = {**TOOLS, "maxToolRounds": 2}
    async with wire(answer(200, calling("book"))) as server:
        async with built("openai-chat", server.base_url, config) as agent:
            invocation = await agent.invoke(turn())
        assert len(server.requests) == 3
    assert [message.role for message in invocation.messages] == ["assistant", "tool"] * 2 + ["assistant"]


async def test_calls_without_answers_in_the_config_are_the_answer() -> None:
    async with wire(answer(200, calling("book"))) as server:
        async with built("openai-chat", server.base_url, {**CONFIG, "tools": [BOOK]}) as agent:
            invocation = await agent.invoke(turn())
        assert len(server.requests) == 1
    assert invocation.messages[0].tool_calls[0].function.name == "book"


def delta(index: int, **call: Any) -> dict[str, Any]:
    return chunk(tool_calls=[{"index": index, **call}])


async def test_a_streamed_answer_is_that_of_one_sent_at_once() -> None:
    last = chunk() | {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}}
    calls = events(
        chunk(""),
        delta(0, id="c-book", type="function", function={"name": "book", "arguments": ""}),
        delta(1, id="c-x", function={"name": "x", "arguments": "{}"}),
        delta(0, function={"arguments": '{"slot"'}),
        delta(0, function={"arguments": ": 9}"}),
        chunk(finish="tool_calls"),
        last,
    )
    spoken = events(chunk("BK-"), chunk("12345"), chunk(finish="stop"), chunk(""), last)
    began = time.monotonic()
    async with wire(answer(200, calls), answer(200, spoken, content_type="text/event-stream")) as server:
        async with built("openai-chat", server.base_url, {**TOOLS, "stream": True}) as agent:
            invocation = await agent.invoke(turn())
        assert server.bodies[0]["stream"] is True
        assert server.bodies[0]["stream_options"] == {"include_usage": True}
    book, other = invocation.messages[0].tool_calls
    assert (book.id, book.function.name, book.function.arguments) == ("c-book", "book", '{"slot": 9}')
    assert (other.id, other.function.arguments) == ("c-x", "{}")
    assert texts(invocation)[-1] == ("assistant", "BK-12345")
    assert invocation.token_usage.total_tokens == 8
    passed_ms = 1000 * (time.monotonic() - began)
    assert 0 < duration_ms(invocation.time_to_first_token) <= duration_ms(invocation.latency) <= passed_ms


STREAMED_CALLS: dict[str, tuple[list[dict[str, Any]], list[tuple[str, str]]]] = {
    "one-index-for-all": (
        [
            delta(0, id="a", function={"name": "book", "arguments": "{"}),
            delta(0, id="a", function={"name": "book", "arguments": "}"}),
            delta(0, id="b", function={"name": "book", "arguments": "{}"}),
        ],
        [("book", "{}"), ("book", "{}")],
    ),
    "one-index-and-no-ids": (
        [
            delta(0, function={"name": "book", "arguments": "{"}),
            delta(0, function={"arguments": "}"}),
            delta(0, function={"name": "pay", "arguments": "{}"}),
        ],
        [("book", "{}"), ("pay", "{}")],
    ),
    "another-id-per-piece": (
        [delta(0, id="a", function={"name": "book"}), delta(0, id="b", function={"arguments": "{}"})],
        [("book", "{}")],
    ),
    "a-name-again-without-its-id": (
        [
            delta(0, id="a", function={"name": "book", "arguments": "{"}),
            delta(0, function={"name": "book", "arguments": "}"}),
        ],
        [("book", "{}")],
    ),
    "no-index": (
        [chunk(tool_calls=[{"function": {"name": "book"}}, {"function": {"name": "pay"}}])],
        [("book", ""), ("pay", "")],
    ),
    "the-older-form": (
        [
            chunk(function_call={"name": "book", "arguments": ""}),
            chunk(function_call={"arguments": '{"slot"'}),
            chunk(function_call={"arguments": ": 9}"}),
        ],
        [("book", '{"slot": 9}')],
    ),
    "arguments-as-an-object": (
        [delta(0, function={"name": "book", "arguments": {"slot": 9}})],
        [("book", '{"slot": 9}')],
    ),
}


@pytest.mark.parametrize("name", STREAMED_CALLS)
async def test_no_streamed_call_is_lost(name: str) -> None:
    sent, called = STREAMED_CALLS[name]
    given, config = answer(200, events(*sent, chunk(finish="tool_calls"))), {**CONFIG, "stream": True}
    async with wire(given) as server, built("openai-chat", server.base_url, config) as agent:
        (message,) = (await agent.invoke(turn())).messages
    assert [(call.function.name, call.function.arguments) for call in message.tool_calls] == called


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_is_an_answer(stream: bool) -> None:
    whole = completion(None, refusal="I will not.")
    pieces = events(chunk(refusal="I will"), chunk(refusal=" not."), chunk(finish="stop"))
    given, config = answer(200, pieces if stream else whole), {**CONFIG, "stream": stream}
    async with wire(given) as server, built("openai-chat", server.base_url, config) as agent:
        assert (await agent.invoke(turn())).messages[0].refusal == "I will not."


BAD = "CONNECTOR_BAD_ANSWER"
FAULTS: dict[str, tuple[Any, str, str]] = {
    "another-protocol": ({"message": "fine"}, BAD, "wanted a chat completion"),
    "an-error": ({"error": {"message": "overloaded", "code": 502}}, BAD, "overloaded"),
    "no-choices": (completion() | {"choices": []}, BAD, "0 alternatives"),
    "two-choices": (completion() | {"choices": completion()["choices"] * 2}, BAD, "2 alternatives"),
    "no-message": (completion() | {"choices": [{}]}, BAD, "choices[0].message: missing"),
    "null-content": (completion(None), BAD, "no content, tool calls or refusal"),
    "a-number": (completion(3), BAD, "content: got 3"),
    "a-call-without-a-name": (completion(None, tool_calls=[{"id": "x"}]), BAD, "function.name: missing"),
    "a-cost": (completion() | {"usage": {"cost": "free"}}, BAD, "usage.cost: got 'free'"),
    "an-error-in-a-choice": (
        completion("fi")
        | {"choices": [{**completion("fi")["choices"][0], "error": {"message": "overloaded"}}]},
        BAD,
        "overloaded",
    ),
    "an-error-at-the-end": (completion("fi", "error"), BAD, "reports an error"),
    "a-list": ([completion()], BAD, "wanted a chat completion"),
}


@pytest.mark.parametrize("name", FAULTS)
async def test_what_is_no_completion_is_no_answer(name: str) -> None:
    body, code, words = FAULTS[name]
    async with wire(answer(200, body)) as server, built("openai-chat", server.base_url, CONFIG) as agent:
        failed = await failure(agent)
        assert (failed.code, len(server.requests)) == (code, 1)
        assert words in failed.message


STREAM_FAULTS: dict[str, tuple[str, str]] = {
    "no-finish": (events(chunk("fi")), "without a finish_reason"),
    "no-chunks": (events({"text": "fine"}), "wanted a chunk of a chat completion"),
    "no-delta": (events({"choices": [{"message": {}}]}), "delta: missing"),
    "a-second-answer": (events({"choices": [{"index": 1, "delta": {}}]}), "a second answer"),
    "calls-of-another-type": (events(chunk(tool_calls=["book"])), "wanted objects"),
    "an-error-at-the-end": (events(chunk("fi"), chunk(finish="error")), "reports an error"),
    "text-in-blocks": (
        events(chunk("fi"), chunk(content=[{"type": "text", "text": "ne"}]), chunk(finish="stop")),
        "delta.content: got [{'type': 'text', 'text': 'ne'}] (list), wanted text",
    ),
    "sent-at-once": (json.dumps(completion()), "not a stream of server-sent events"),
}


@pytest.mark.parametrize("name", STREAM_FAULTS)
async def test_what_is_no_streamed_completion_is_no_answer(name: str) -> None:
    body, words = STREAM_FAULTS[name]
    config = {**CONFIG, "stream": True}
    async with wire(answer(200, body)) as server, built("openai-chat", server.base_url, config) as agent:
        assert words in (await failure(agent)).message


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        (answer(429, b"", retry_after="0"), 2),
        (answer(429, b""), 2),
        (answer(503, b"", retry_after="0"), 2),
        (answer(503, b""), 2),
        (answer(502, "<html>bad gateway</html>", content_type="text/html"), 2),
        (answer(504, b"", end="close"), 2),
        (Answer(b"", "reset"), 2),
        (Answer(b"", "close"), 2),
        (Answer(b"HTTP/1.1 200 O", "close"), 2),
        (answer(200, b"", length=9, end="close"), 2),
        (answer(500, b""), 1),
        (answer(501, b""), 1),
        (answer(400, b""), 1),
        (answer(408, b""), 1),
        (answer(429, b"", retry_after="3600"), 1),
        (answer(503, b"", retry_after="3600"), 1),
        (answer(200, "{", length=9, end="close"), 1),
    ],
)
async def test_only_a_request_whose_answer_has_not_begun_is_repeated(given: Answer, asked: int) -> None:
    async with wire(given, answer(200, completion("fine"))) as server:
        async with built("openai-chat", server.base_url, CONFIG) as agent:
            if asked == 2:
                assert texts(await agent.invoke(turn())) == [("assistant", "fine")]
            else:
                await failure(agent)
        assert len(server.requests) == asked
        # Another agent may have begun to work.
        server.answers.insert(0, given)
        async with built("http", server.base_url, {"path": "/chat/completions"}) as agent:
            await failure(agent)
        assert len(server.requests) == asked + 1


async def test_a_fault_that_stays_is_told_with_the_number_of_requests() -> None:
    async with wire(answer(502, "bad gateway", retry_after="0")) as server:
        async with built("openai-chat", server.base_url, {**CONFIG, "maxAttempts": 2}) as agent:
            failed = await failure(agent)
        assert len(server.requests) == 2
    assert failed.code == "CONNECTOR_UNAVAILABLE"
    assert failed.message.endswith("HTTP 502: it failed: 'bad gateway'; gave up after 2 requests")


CUT: dict[str, dict[str, Any]] = {
    "null": completion(None, "length"),
    "empty": completion("", "length"),
    "blank": completion("\n ", "length", reasoning_content="Let me think"),
    "blocks": completion([], "length"),
}


@pytest.mark.parametrize("name", CUT)
async def test_an_answer_without_content_because_of_the_token_limit_says_so(name: str) -> None:
    for kind, config in (("openai-chat", CONFIG), ("http", {"path": "/chat/completions"})):
        async with wire(answer(200, CUT[name])) as server, built(kind, server.base_url, config) as agent:
            failed = await failure(agent)
        assert failed.code == "CONNECTOR_BAD_ANSWER"
        assert "limit of tokens (finish_reason length); raise the limit" in failed.message
    streamed = answer(200, events(chunk(""), chunk(finish="length")))
    async with (
        wire(streamed) as server,
        built("openai-chat", server.base_url, {**CONFIG, "stream": True}) as agent,
    ):
        assert "limit of tokens" in (await failure(agent)).message


async def test_an_answer_that_was_cut_off_or_calls_a_tool_is_an_answer() -> None:
    cut, call = completion("It is", "length"), {**calling("book")}
    call["choices"][0]["finish_reason"] = "length"
    async with (
        wire(answer(200, cut), answer(200, call)) as server,
        built("openai-chat", server.base_url, CONFIG) as agent,
    ):
        assert texts(await agent.invoke(turn())) == [("assistant", "It is")]
        assert (await agent.invoke(turn())).messages[0].tool_calls


ADDRESSES = {
    "/openai/deployments/o1?api-version=2025-01-01": "/openai/deployments/o1/chat/completions?api-version=2025-01-01",
    "/v1/?a=1&b=%20x&a=2": "/v1/chat/completions?a=1&b=%20x&a=2",
    "?region=eu": "/chat/completions?region=eu",
    "/v1?": "/v1/chat/completions",
}


@pytest.mark.parametrize("address", ADDRESSES)
async def test_the_query_of_the_address_is_sent_with_every_request(address: str) -> None:
    async with wire(answer(200, completion())) as server:
        host = server.base_url.removesuffix("/v1")
        async with built("openai-chat", host + address, CONFIG) as agent:
            await agent.invoke(turn())
        async with built("http", host + address, {"path": "/chat/completions?turn={{turn}}"}) as agent:
            await agent.invoke(turn())
    first, second = (head.split(" ")[1] for head, _ in server.requests)
    path, _, query = ADDRESSES[address].partition("?")
    assert first == ADDRESSES[address]
    assert second == f"{path}?turn=1" + (f"&{query}" if query else "")
