"""Callers that begin many calls take no call from others."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from evald_server.auth.principal import Role

from ..rpc.live import CONTAINS, EVALUATION, Live, Refusal, refusal, request, until
from .keyring import Metadata, bearer, guarded, make_key

UNARY = f"{EVALUATION}EvaluateUnary"
SESSION = f"{EVALUATION}EvaluateSession"

# 40 calls at a time, of which one principal may have 10.
SMALL = {"max_streams": 16, "max_inflight": 5, "max_queued": 4}


def _begun(live: Live, method: str, metadata: Metadata = ()) -> Any:
    """A call of which only the headers are sent."""
    return live.channel.stream_stream(method)(metadata=metadata)


async def _ended(call: Any) -> Refusal:
    async with asyncio.timeout(20):
        return await refusal(call.read())


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
