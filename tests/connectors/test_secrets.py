"""Secrets are filled in when an agent is called, and never come back."""

import json
import logging
from base64 import b64encode

import pytest

from ..judge.wire import answer, events, wire
from .building import built, failure, texts, turn

SECRET = "hush-4711-hush"
HEADERS = {"Authorization": "Bearer ${EVALD_SECRET_AGENT}"}


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVALD_SECRET_AGENT", SECRET)


async def test_the_agent_gets_the_secret_and_the_persona_s_headers() -> None:
    async with wire(answer(200, {"text": "fine"})) as server:
        async with built("http", server.base_url, headers=HEADERS | {"X-User": "connector"}) as agent:
            await agent.invoke(turn(headers={"x-user": "persona", "x-more": "1"}))
        head = server.requests[0][0].lower()
    assert f"authorization: bearer {SECRET}" in head
    assert "x-user: persona" in head
    assert "x-user: connector" not in head
    assert "x-more: 1" in head


async def test_a_secret_that_the_agent_repeats_is_in_no_answer() -> None:
    call = {"id": "1", "function": {"name": "f", "arguments": json.dumps({"key": SECRET})}}
    body = {
        "messages": [
            {"role": "assistant", "content": f"ü {SECRET} ü", "tool_calls": [call], "note": {"x": [SECRET]}},
            {"role": "tool", "content": [{"type": "text", "text": SECRET}]},
        ],
        "model": SECRET,
    }
    async with wire(answer(200, body)) as server, built("http", server.base_url, headers=HEADERS) as agent:
        invocation = await agent.invoke(turn())
    assert SECRET not in str(invocation)
    assert texts(invocation)[0] == ("assistant", "ü [redacted] ü")
    assert invocation.model == "[redacted]"


async def test_a_secret_that_the_agent_repeats_piece_by_piece_is_in_no_answer() -> None:
    pieces = events(*({"text": piece} for piece in SECRET))
    config = {"stream": "sse"}
    async with wire(answer(200, pieces)) as server, built("http", server.base_url, config, HEADERS) as agent:
        assert texts(await agent.invoke(turn())) == [("assistant", "[redacted]")]


@pytest.mark.parametrize(
    "given",
    [
        answer(401, {"detail": f"bad token {SECRET}"}),
        answer(500, f"{'x' * 295} {SECRET}"),
        answer(200, {"error": f"no: {SECRET}"}),
        answer(200, {SECRET: 1}),
        answer(200, f"<p>{SECRET}"),
        answer(200, {"role": SECRET, "content": 3}),
    ],
    ids=["refused", "failed", "reported", "key", "html", "role"],
)
async def test_a_secret_that_the_agent_repeats_is_in_no_error_and_no_log(
    given: object, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with wire(given) as server, built("http", server.base_url, headers=HEADERS) as agent:  # type: ignore[arg-type]
        failed = await failure(agent)
    assert "hush" not in failed.message
    assert "hush" not in caplog.text


@pytest.mark.parametrize(
    "spelling",
    [
        'hush/"47&11',
        'hush\\/\\"47&11',
        "\\u0068ush/\\u002247&11",
        "hush%2f%2247%2611",
        "hush/&quot;47&amp;11",
    ],
    ids=["plain", "json", "units", "address", "html"],
)
async def test_a_secret_that_the_agent_repeats_escaped_comes_back_in_no_way(
    spelling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVALD_SECRET_AGENT", 'hush/"47&11')
    call = {"id": "1", "function": {"name": "f", "arguments": f'{{"a": "{spelling}"}}'}}
    given = answer(200, {"content": f"a {spelling}", "tool_calls": [call]}), answer(401, f"no {spelling}")
    async with wire(*given) as server, built("http", server.base_url, headers=HEADERS) as agent:
        invocation, failed = await agent.invoke(turn()), await failure(agent)
    for told in (str(invocation), failed.message):
        assert "[redacted]" in told
        assert "ush" not in told


@pytest.mark.parametrize("header", ["Basic ${EVALD_SECRET_AGENT}", "basic ${EVALD_SECRET_AGENT}"])
async def test_the_password_of_basic_credentials_that_the_agent_repeats_comes_back_in_no_way(
    header: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVALD_SECRET_AGENT", b64encode(f"user:{SECRET}".encode()).decode())
    given = answer(200, {"content": f"a {SECRET}"}), answer(401, f"no {SECRET}")
    headers = {"Authorization": header}
    async with wire(*given) as server, built("http", server.base_url, headers=headers) as agent:
        invocation, failed = await agent.invoke(turn()), await failure(agent)
    assert "hush" not in str(invocation) + failed.message


@pytest.mark.parametrize(
    ("value", "words"),
    [(None, "is empty or not set"), ("", "is empty or not set"), ("line\nbreak", "is not printable ASCII")],
)
async def test_a_secret_that_cannot_be_sent_is_told_without_its_value(
    value: str | None, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EVALD_SECRET_AGENT")
    if value is not None:
        monkeypatch.setenv("EVALD_SECRET_AGENT", value)
    async with wire(answer(200, {"text": "fine"})) as server:
        async with built("http", server.base_url, headers=HEADERS) as agent:
            failed = await failure(agent)
        assert not server.requests
    assert failed.code == "CONNECTOR_CONFIG"
    assert f"the variable EVALD_SECRET_AGENT of the server's environment {words}" in failed.message
    assert "break" not in failed.message


async def test_a_persona_s_header_is_checked_like_a_connector_s() -> None:
    async with wire(answer(200, {"text": "fine"})) as server, built("http", server.base_url) as agent:
        failed = await failure(agent, turn(headers={"x-a": "${PATH}"}))
        assert (failed.code, server.requests) == ("CONNECTOR_CONFIG", [])
