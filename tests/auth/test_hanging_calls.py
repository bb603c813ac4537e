"""Callers that begin calls and send nothing more take no call from others."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from evald.v1 import evaluation_service_pb2
from evald_server.auth.principal import Role
from evald_server.rpc.message_timeout import MessageTimeout

from ..rpc.live import CATALOG, CONTAINS, EVALUATION, Live, Refusal, refusal, request, serving, until
from .keyring import Metadata, bearer, guarded, make_key

UNARY = f"{EVALUATION}EvaluateUnary"
SESSION = f"{EVALUATION}EvaluateSession"
HEALTH = "/grpc.health.v1.Health/"

# 40 calls at a time, of which one principal may have 10.
SMALL = {"max_streams": 16, "max_inflight": 5, "max_queued": 4}


def _begun(live: Live, method: str, metadata: Metadata = ()) -> Any:
    """A call of which only the headers are sent."""
    return live.channel.stream_stream(method)(metadata=metadata)


async def _ended(call: Any) -> Refusal:
    async with asyncio.timeout(20):
        return await refusal(call.read())


def _waiting(live: Live) -> int:
    return len(live.app._gate._messages._waiting)


@pytest.mark.parametrize(
    "method",
    [UNARY, f"{EVALUATION}Evaluate", f"{CATALOG}WatchEvaluatorTypes", f"{HEALTH}Check", f"{HEALTH}Watch"],
)
@pytest.mark.parametrize("asked", [False, True], ids=["open server", "keys"])
async def test_a_message_that_does_not_come_ends_its_call(method: str, asked: bool, tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    key = make_key(path, "ci", Role.CALLER)
    async with serving(message_timeout=0.5, **({"keys_file": path} if asked else {})) as live:
        ended = await _ended(_begun(live, method, bearer(key)))
        assert (ended.code, ended.reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, "MESSAGE_TIMEOUT")
        text = live.app.telemetry.exposition("")[0].decode()
        assert 'evald_evaluations_rejected_total{reason="message_timeout"} 1.0' in text
        assert not _waiting(live)
        assert (await live.unary(request(CONTAINS), metadata=bearer(key))).summary.success


async def test_streams_may_wait_for_their_first_message() -> None:
    async with serving(message_timeout=0.5) as live:
        session, call = _begun(live, SESSION), _begun(live, UNARY)
        assert (await _ended(call)).reason == "MESSAGE_TIMEOUT"
        assert not session.done()
        session.cancel()


@pytest.mark.parametrize("method", [UNARY, f"{EVALUATION}Evaluate", f"{HEALTH}Check"])
async def test_a_call_that_ends_without_its_message_is_answered(method: str) -> None:
    async with serving() as live:
        call = _begun(live, method)
        await call.done_writing()
        assert (await _ended(call)).code is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_message_may_come_later_than_the_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    looked, expire = [], MessageTimeout.expire

    def counted(messages: MessageTimeout) -> None:
        expire(messages)
        looked.append(messages)

    monkeypatch.setattr(MessageTimeout, "expire", counted)
    async with serving() as live:
        call = _begun(live, UNARY)
        await until(lambda: _waiting(live) == 1)
        looked.clear()
        await until(lambda: looked.count(live.app._gate._messages) == 2)
        message = evaluation_service_pb2.EvaluateUnaryRequest(request=request(CONTAINS))
        await call.write(message.SerializeToString())
        assert evaluation_service_pb2.EvaluateUnaryResponse.FromString(await call.read()).summary.success


async def test_callers_that_go_away_before_their_message_are_forgotten() -> None:
    async with serving() as live:
        calls = [_begun(live, UNARY) for _ in range(20)]
        await until(lambda: _waiting(live) == 20)
        for call in calls:
            call.cancel()
        await until(lambda: not _waiting(live))
        assert (await live.unary(request(CONTAINS))).summary.success


async def _caller(live: Live, path: Path) -> tuple[str, Metadata]:
    key = make_key(path, "greedy", Role.CALLER)
    live.app._authenticator.keys.reload()  # type: ignore[union-attr]
    return UNARY, bearer(key)


async def _caller_of_sessions(live: Live, path: Path) -> tuple[str, Metadata]:
    return SESSION, (await _caller(live, path))[1]


@pytest.mark.parametrize("greedy", [_caller, _caller_of_sessions])
async def test_nobody_takes_all_the_calls_that_a_server_holds(
    greedy: Callable[[Live, Path], Any], tmp_path: Path
) -> None:
    path = tmp_path / "keys.toml"
    honest = make_key(path, "honest", Role.CALLER)
    async with guarded(path, **SMALL) as live:
        assert live.app.settings.max_calls == 40
        method, metadata = await greedy(live, path)
        calls = [_begun(live, method, metadata) for _ in range(40)]
        answers = [asyncio.create_task(_ended(call)) for call in calls]
        await until(lambda: sum(task.done() for task in answers) == 30)
        for task in answers:
            if task.done():
                ended = task.result()
                assert (ended.code, ended.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "RATE_LIMITED")
                assert ended.info.metadata["limit"] == "in_flight"
        assert (await live.unary(request(CONTAINS), metadata=bearer(honest))).summary.success
        text = live.app.telemetry.exposition("")[0].decode()
        assert 'evald_principal_limited_total{limit="in_flight"} 30.0' in text
        for call in calls:
            call.cancel()
        await asyncio.gather(*answers, return_exceptions=True)


@pytest.mark.parametrize("asked", [False, True], ids=["open server", "keys"])
@pytest.mark.parametrize(
    ("method", "message", "reason"),
    [
        ("Check", None, "MESSAGE_TIMEOUT"),
        ("Watch", None, "MESSAGE_TIMEOUT"),
        ("Watch", b"", "TOO_MANY_STREAMS"),
    ],
)
async def test_health_is_told_whatever_callers_without_credentials_have_open(
    method: str, message: bytes | None, reason: str, asked: bool, tmp_path: Path
) -> None:
    path = tmp_path / "keys.toml"
    honest = make_key(path, "honest", Role.CALLER)
    async with serving(**SMALL, **({"keys_file": path} if asked else {})) as live:
        assert live.app.settings.max_open_calls == 5
        calls = []
        for number in range(60):
            calls.append(_begun(live, HEALTH + method))
            if message is not None:
                await calls[-1].write(message)
            if number >= 5:
                # Of those whose message does not come, the one that has waited longest.
                ended = await _ended(calls[-6 if message is None else -1])
                assert ended.reason == reason
            elif message is not None:
                assert await calls[-1].read()
            else:
                await until(lambda: len(live.app._gate._open_messages._waiting) == len(calls))
        answer = await live.raw(f"{HEALTH}Check", b"")
        serving_now = health_pb2.HealthCheckResponse.SERVING
        assert health_pb2.HealthCheckResponse.FromString(answer).status == serving_now
        assert (await live.unary(request(CONTAINS), metadata=bearer(honest))).summary.success
        for call in calls:
            call.cancel()

        async def is_accepted() -> bool:
            again = _begun(live, f"{HEALTH}Watch")
            await again.write(b"")
            try:
                return bool(await again.read())
            except grpc.aio.AioRpcError:
                return False
            finally:
                again.cancel()

        await until(is_accepted)
