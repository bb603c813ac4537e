"""One principal at its limits is refused, and nobody else."""

import time
from pathlib import Path
from typing import Any

import grpc
import pytest

from evald_server.auth.authenticator import AccessDenied
from evald_server.auth.keys import add_key, new_key
from evald_server.auth.limits import PrincipalLimits
from evald_server.auth.principal import Principal, Role

from ..rpc.live import CONTAINS, EVALUATION, refusal, request, until
from .keyring import bearer, guarded


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        """The time."""
        return self.now


def _principal(name: str = "ci", **limits: Any) -> Principal:
    return Principal(name, frozenset((Role.CALLER,)), **limits)


def test_a_second_s_worth_of_calls_may_begin_at_once_and_then_as_many_as_the_rate_allows() -> None:
    clock, counted = Clock(), list[str]()
    limits = PrincipalLimits(counted.append, 100, clock)
    ci = _principal(rate=4.0)
    for _ in range(4):
        limits.begin(ci)
    with pytest.raises(AccessDenied) as refused:
        limits.begin(ci)
    assert refused.value.reason == "RATE_LIMITED"
    assert refused.value.retry_seconds == pytest.approx(0.25)
    limits.begin(_principal("other", rate=4.0))
    clock.now += 0.25
    limits.begin(ci)
    with pytest.raises(AccessDenied):
        limits.begin(ci)
    clock.now += 3600
    for _ in range(4):
        limits.begin(ci)
    with pytest.raises(AccessDenied):
        limits.begin(ci)
    assert counted == ["rate"] * 3


def test_a_rate_below_one_lets_one_call_begin() -> None:
    clock = Clock()
    limits = PrincipalLimits(lambda _: None, 100, clock)
    slow = _principal(rate=0.1)
    limits.begin(slow)
    with pytest.raises(AccessDenied) as refused:
        limits.begin(slow)
    assert refused.value.retry_seconds == pytest.approx(10)
    clock.now += 10.01
    limits.begin(slow)


async def test_sessions_in_flight_are_counted_and_given_back_however_they_end(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    keys = []
    for principal, limit in (("ci", 2), ("ci", 2), ("other", 2)):
        text, key = new_key(principal, [Role.CALLER], expires=time.time() + 60, in_flight=limit)
        add_key(path, key)
        keys.append(text)
    one, again, other = keys
    async with guarded(path) as live:

        def session(key: str) -> Any:
            return live.channel.stream_stream(f"{EVALUATION}EvaluateSession")(metadata=bearer(key))

        def count() -> int:
            usage = live.app._gate._limits._usages.get("ci")
            return usage.in_flight if usage else 0

        calls = [session(one), session(again)]
        await until(lambda: count() == 2)
        refused = await refusal(live.unary(request(CONTAINS), metadata=bearer(one)))
        assert (refused.code, refused.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "RATE_LIMITED")
        assert refused.retry
        assert refused.info.metadata["limit"] == "in_flight"
        assert (await live.unary(request(CONTAINS), metadata=bearer(other))).summary.success
        calls[0].cancel()
        await until(lambda: count() == 1)
        assert (await live.unary(request(CONTAINS), metadata=bearer(again))).summary.success
        await calls[1].done_writing()
        await until(lambda: count() == 0)
        text = live.app.telemetry.exposition("")[0].decode()
        assert 'evald_principal_limited_total{limit="in_flight"} 1.0' in text


async def test_calls_over_the_rate_are_refused_with_a_time_to_come_back(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    text, key = new_key("ci", [Role.CALLER], expires=time.time() + 60, rate=0.5)
    add_key(path, key)
    async with guarded(path) as live:
        assert (await live.unary(request(CONTAINS), metadata=bearer(text))).summary.success
        refused = await refusal(live.unary(request(CONTAINS), metadata=bearer(text)))
        assert refused.reason == "RATE_LIMITED"
        assert refused.retry
        assert 0 < refused.retry <= 2
