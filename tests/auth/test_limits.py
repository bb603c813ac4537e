"""One principal at its limits is refused, and nobody else."""

import time
from pathlib import Path
from typing import Any

import grpc
import pytest

from evald_server.auth.authenticator import Authenticator
from evald_server.auth.clients import ClientFile
from evald_server.auth.keys import KeyFile, add_key, new_key
from evald_server.auth.limits import PrincipalLimits
from evald_server.auth.principal import Principal, Role
from evald_server.auth.refusals import AccessDenied

from ..rpc.live import CONTAINS, EVALUATION, Refusal, refusal, request, serving, until
from .issuer import Issuer
from .keyring import Metadata, bearer, guarded, make_key


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


def test_more_principals_than_are_remembered_keep_their_calls_in_flight(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("evald_server.auth.limits._MAX_PRINCIPALS", 3)
    limits = PrincipalLimits(lambda _: None, 1, Clock())
    busy, idle, late = (_principal(name, rate=1.0) for name in ("busy", "idle", "late"))
    limits.begin(busy)
    limits.begin(idle)(None)
    limits.begin(late)(None)
    for known in (busy, idle, late):
        with pytest.raises(AccessDenied):
            limits.begin(known)
    limits.begin(_principal("one too many"))
    assert sorted(limits._usages) == ["busy", "one too many"]
    with pytest.raises(AccessDenied) as refused:
        limits.begin(busy)
    assert refused.value.metadata == {"limit": "in_flight"}


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


async def test_a_changed_limit_holds_for_calls_of_a_key_that_was_let_in_before(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    token, key = new_key("ci", [Role.CALLER])
    add_key(path, key)

    async def is_limited() -> bool:
        try:
            await live.unary(request(CONTAINS), metadata=bearer(token))
        except grpc.aio.AioRpcError as error:
            return Refusal(error).reason == "RATE_LIMITED"
        return False

    async with guarded(path) as live:
        assert not await is_limited()
        add_key(path, key.model_copy(update={"rate": 0.001}))
        await until(is_limited, 30)


def _limited(path: Path, *tables: str) -> Path:
    path.write_text("".join(f"[[principals]]\n{table}\n" for table in tables))
    path.chmod(0o600)
    return path


async def test_tokens_have_the_limits_of_their_subject_else_those_of_all(tmp_path: Path) -> None:
    issuer = Issuer(tmp_path / "jwks.json")
    issuer.add("one")
    issuer.publish()
    path = _limited(
        tmp_path / "clients.toml",
        'principal = "jwt:bob smith"\nrate = 0.5',
        'principal = "jwt:carol"\nin_flight = 2',
        'principal = "jwt:*"\nin_flight = 1',
    )
    async with serving(tls_clients_file=path, **issuer.settings) as live:

        def metadata(sub: str) -> Metadata:
            return bearer(issuer.token(sub=sub))

        async def call(sub: str) -> str:
            try:
                await live.unary(request(CONTAINS), metadata=metadata(sub))
            except grpc.aio.AioRpcError as error:
                return str(Refusal(error).info.metadata["limit"])
            return ""

        def session(sub: str) -> Any:
            return live.channel.stream_stream(f"{EVALUATION}EvaluateSession")(metadata=metadata(sub))

        def open_sessions() -> int:
            return len(live.app._gate._streams)

        assert [await call("bob smith") for _ in range(2)] == ["", "rate"]
        held = [session("alice"), session("carol")]
        await until(lambda: open_sessions() == 2)
        assert [await call(sub) for sub in ("alice", "carol", "dave")] == ["in_flight", "", ""]
        held.append(session("carol"))
        await until(lambda: open_sessions() == 3)
        assert await call("carol") == "in_flight"
        text = live.app.telemetry.exposition("")[0].decode()
        assert 'evald_principal_limited_total{limit="in_flight"} 2.0' in text
        assert 'evald_principal_limited_total{limit="rate"} 1.0' in text
        _limited(path, 'principal = "jwt:*"\nin_flight = 5')

        async def relieved() -> bool:
            return await call("alice") == ""

        await until(relieved)
        for one in held:
            one.cancel()


def test_limits_of_the_file_are_those_of_tokens_and_certificates_and_not_of_keys(tmp_path: Path) -> None:
    own, all_tokens = 'principal = "ci"\njudge_usd_per_day = 5\nrate = 7', 'principal = "jwt:*"\nrate = 1'
    clients = ClientFile(_limited(tmp_path / "clients.toml", own, all_tokens))
    other = _principal("other", kind="certificate")
    assert clients.limited(other) is other, "no limit of tokens"
    certified = clients.limited(_principal("ci", kind="certificate"))
    assert (certified.rate, certified.in_flight, certified.judge_usd_per_day) == (7, None, 5)
    keys = tmp_path / "keys.toml"
    text = make_key(keys, "ci", Role.CALLER)
    authenticator = Authenticator(KeyFile(keys), lambda _kind, _outcome: None, clients=clients)
    assert authenticator.authenticate([("authorization", f"Bearer {text}")]).rate is None
