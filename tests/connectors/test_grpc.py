"""Agents that serve AgentService, and peers that do not."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from evald.agent.v1 import agent_service_pb2
from evald.structs import duration_ms
from evald.v1 import context_pb2
from evald_server.connectors.connector import ConnectorFailure

from .building import built, failure, texts, turn

CERTIFICATES = Path(__file__).parents[1] / "remote/certificates"

Respond = Callable[[bytes, Any], Awaitable[bytes]]


def response(**fields: Any) -> bytes:
    return agent_service_pb2.InvokeResponse(invocation=context_pb2.Invocation(**fields)).SerializeToString()


FINE = [{"role": "assistant", "text": "fine"}]


def always(data: bytes) -> Respond:
    async def respond(_request: bytes, _context: Any) -> bytes:
        return data

    return respond


@asynccontextmanager
async def serving(
    respond: Respond, credentials: grpc.ServerCredentials | None = None, **options: int
) -> AsyncIterator[str]:
    """An agent that answers Invoke with bytes. options: of the gRPC server."""
    server = grpc.aio.server(options=[(f"grpc.{name}", value) for name, value in options.items()])
    method: Any = grpc.unary_unary_rpc_method_handler(respond)
    handler = grpc.method_handlers_generic_handler("evald.agent.v1.AgentService", {"Invoke": method})
    server.add_generic_rpc_handlers([handler])
    address = "127.0.0.1:0"
    port = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def test_an_agent_gets_the_turn_and_the_headers_and_is_heard() -> None:
    got: list[Any] = []

    async def respond(data: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        got.append(agent_service_pb2.InvokeRequest.FromString(data))
        got.append(dict(context.invocation_metadata() or ()))
        usage = {"input_tokens": 3}
        return response(
            messages=FINE, token_usage=usage, cost={"currency_code": "USD", "amount": 2}, model="a-1"
        )

    async with serving(respond) as target, built("grpc", target, headers={"X-Tenant": "acme"}) as agent:
        invocation = await agent.invoke(turn("Hi", headers={"x-user": "u1"}))
        await agent.invoke(turn("Hi"))
    request, metadata = got[:2]
    assert (request.thread_id, request.turn, request.request_id) == ("thread-1", 1, "request-1")
    assert request.messages[0].text == "Hi"
    assert (metadata["x-tenant"], metadata["x-user"]) == ("acme", "u1")
    assert texts(invocation) == [("assistant", "fine")]
    assert (invocation.token_usage.input_tokens, invocation.cost.amount) == (3, 2)
    assert duration_ms(invocation.latency) > 0
    assert invocation.HasField("start_time")


async def test_a_persona_s_header_that_cannot_be_sent_is_told() -> None:
    async with serving(always(response(messages=FINE))) as target, built("grpc", target) as agent:
        failed = await failure(agent, turn(headers={"x!y": "1"}))
    assert failed.code == "CONNECTOR_CONFIG"
    assert "gRPC cannot send" in failed.message


async def test_the_agent_s_own_latency_counts() -> None:
    data = response(messages=FINE, latency={"seconds": 7}, time_to_first_token={"nanos": 5})
    async with serving(always(data)) as target, built("grpc", target) as agent:
        invocation = await agent.invoke(turn())
        assert (invocation.latency.seconds, invocation.time_to_first_token.nanos) == (7, 5)


async def test_a_secret_that_the_agent_repeats_is_in_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVALD_SECRET_A", "hush-4711")
    said = {"role": "assistant", "text": "a hush-4711", "metadata": {"key": "hush-4711"}}
    headers = {"x-a": "${EVALD_SECRET_A}"}
    began = time.monotonic()
    async with (
        serving(always(response(messages=[said]))) as target,
        built("grpc", target, headers=headers) as agent,
    ):
        invocation = await agent.invoke(turn())
    assert "hush" not in str(invocation)
    assert texts(invocation) == [("assistant", "a *********")]
    assert 0 < duration_ms(invocation.latency) <= 1000 * (time.monotonic() - began)


async def test_messages_as_json_are_read() -> None:
    data = response(messages_json='[{"type": "ai", "content": "fine"}]')
    async with serving(always(data)) as target, built("grpc", target) as agent:
        invocation = await agent.invoke(turn())
        assert texts(invocation) == [("assistant", "fine")]
        assert not invocation.messages_json


BAD: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "no message of the agent"),
    "garbage": (b"\xff\xff\xff", "cannot parse InvokeResponse"),
    "text-that-is-not-utf-8": (
        response(messages=FINE).replace(b"fine", b"\xff\xff\xff\xff"),
        "cannot parse InvokeResponse",
    ),
    "the-user": (response(messages=[{"role": "user", "text": "x"}]), "messages[0].role: got 'user'"),
    "no-role": (response(messages=[{"text": "x"}]), "messages[0].role: got ''"),
    "silence": (response(messages=[{"role": "assistant"}]), "messages[0]: got no content"),
    "another-role": (response(messages=[{"role": "banana", "text": "x"}]), "messages[0].role: got 'banana'"),
    "a-number-that-is-none": (
        response(messages=[{**FINE[0], "metadata": {"x": [float("nan")]}}]),
        "invocation.messages[0]: got NaN",
    ),
    "a-number-that-is-none-in-a-block": (
        response(
            messages=[
                {
                    "role": "assistant",
                    "blocks": {"items": [{"type": "text", "text": "x", "fields": {"y": float("inf")}}]},
                }
            ]
        ),
        "invocation.messages[0]: got NaN",
    ),
    "both": (response(messages=FINE, messages_json="[]"), "wanted one of them"),
    "bad-json": (response(messages_json="[{"), "invocation.messages: not valid JSON"),
    "another-currency": (response(messages=FINE, cost={"currency_code": "EUR"}), 'got "EUR", wanted "USD"'),
    "negative-cost": (
        response(messages=FINE, cost={"currency_code": "USD", "amount": -1}),
        "cost.amount: got -1.0",
    ),
    "endless-cost": (
        response(messages=FINE, cost={"currency_code": "USD", "amount": float("inf")}),
        "cost.amount: got inf",
    ),
    "negative-usage": (
        response(messages=FINE, token_usage={"input_tokens": -1}),
        "token_usage.input_tokens: got -1",
    ),
    "negative-latency": (response(messages=FINE, latency={"seconds": -1}), "latency: got -1s"),
    "a-latency-of-ages": (response(messages=FINE, latency={"seconds": 1 << 60}), "wanted a number from 0 to"),
    "tokens-beyond-all-sums": (
        response(messages=FINE, token_usage={"total_tokens": 1 << 62}),
        "token_usage.total_tokens: got 4611686018427387904",
    ),
    "too-long": (response(messages=[{"role": "assistant", "text": "x" * (9 << 20)}]), "longer than 8 MiB"),
    "too-many": (response(messages=FINE * 5001), "5001 messages, wanted at most 5000"),
}


@pytest.mark.parametrize("name", BAD)
async def test_what_is_no_answer_is_told(name: str) -> None:
    data, words = BAD[name]
    async with serving(always(data)) as target, built("grpc", target) as agent:
        failed = await failure(agent)
        assert failed.code == "CONNECTOR_BAD_ANSWER"
        assert words in failed.message


@pytest.mark.parametrize(
    ("status", "code", "retryable"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, "CONNECTOR_REFUSED", False),
        (grpc.StatusCode.UNAUTHENTICATED, "CONNECTOR_REFUSED", False),
        (grpc.StatusCode.UNIMPLEMENTED, "CONNECTOR_REFUSED", False),
        (grpc.StatusCode.UNAVAILABLE, "CONNECTOR_UNAVAILABLE", True),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "CONNECTOR_UNAVAILABLE", True),
        (grpc.StatusCode.INTERNAL, "CONNECTOR_UNAVAILABLE", True),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "CONNECTOR_TIMEOUT", True),
    ],
    ids=str,
)
async def test_a_status_is_told_and_the_call_is_not_repeated(
    status: grpc.StatusCode, code: str, retryable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVALD_SECRET_A", "hush-4711")
    calls = 0

    async def respond(_data: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        nonlocal calls
        calls += 1
        await context.abort(status, f"because of hush-4711 {'x' * 500}")
        raise AssertionError

    async with (
        serving(respond) as target,
        built("grpc", target, headers={"x-a": "${EVALD_SECRET_A}"}) as agent,
    ):
        failed = await failure(agent)
        assert (failed.code, failed.retryable, calls) == (code, retryable, 1)
        assert "hush" not in failed.message
        assert len(failed.message) < 450


async def test_an_agent_that_hangs_is_given_up() -> None:
    async def respond(_data: bytes, _context: Any) -> bytes:
        await asyncio.Event().wait()
        raise AssertionError

    async with serving(respond) as target, built("grpc", target, {"timeoutSeconds": 0.3}) as agent:
        failed = await failure(agent)
        assert (failed.code, failed.retryable) == ("CONNECTOR_TIMEOUT", True)
        assert "within 0.3 s" in failed.message


async def test_an_agent_that_is_not_there_is_told_with_its_target() -> None:
    async with serving(always(b"")) as target:
        pass
    async with built("grpc", target, {"maxAttempts": 1}) as agent:
        failed = await failure(agent)
        assert (failed.code, failed.retryable) == ("CONNECTOR_UNAVAILABLE", True)
        assert f"the agent at {target} cannot be reached" in failed.message


async def test_an_agent_that_was_away_is_found_again() -> None:
    async with serving(always(response(messages=FINE))) as target, built("grpc", target) as agent:
        await agent.invoke(turn())
        await agent.aclose()
        assert texts(await agent.invoke(turn())) == [("assistant", "fine")]


async def test_a_new_connection_cuts_no_call_of_the_old_one() -> None:
    began, released = asyncio.Event(), asyncio.Event()
    peers = set()

    async def respond(data: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        peers.add(context.peer())
        if agent_service_pb2.InvokeRequest.FromString(data).messages[0].text == "wait":
            began.set()
            await released.wait()
        return response(messages=FINE)

    async with serving(respond, max_connection_age_ms=100) as target, built("grpc", target) as agent:
        waiting = asyncio.create_task(agent.invoke(turn("wait")))
        await began.wait()
        while len(peers) < 3:
            with suppress(ConnectorFailure):  # a call that begins while the server closes its connection
                await agent.invoke(turn("go on"))
            await asyncio.sleep(0.02)
        released.set()
        assert texts(await waiting) == [("assistant", "fine")]


@pytest.mark.parametrize(("host", "works"), [("plugin.example", True), ("other.example", False)])
async def test_a_tls_profile_checks_the_name(host: str, works: bool) -> None:
    async def resolve(_host: str, _port: int) -> list[str]:
        return ["127.0.0.1"]

    key, chain = (CERTIFICATES.joinpath(name).read_bytes() for name in ("plugin.key", "plugin.pem"))
    credentials = grpc.ssl_server_credentials([(key, chain)])
    profiles = {"agents": {"ca_file": CERTIFICATES / "ca.pem"}}
    config = {"tls": "agents", "maxAttempts": 1}
    async with serving(always(response(messages=FINE)), credentials) as target:
        named = f"{host}:{target.rpartition(':')[2]}"
        async with built("grpc", named, config, resolve=resolve, remote_tls=profiles) as agent:
            if works:
                assert texts(await agent.invoke(turn())) == [("assistant", "fine")]
            else:
                assert (await failure(agent)).code == "CONNECTOR_UNAVAILABLE"
