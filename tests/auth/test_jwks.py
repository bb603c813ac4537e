"""The keys of an issuer: read again while calls go on, and kept when the issuer is away."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from evald_server.auth.jwks import JwksUrl, read_key_set
from evald_server.cli import main
from evald_server.connectors.http_document import fetch_document

from ..rpc.live import CONTAINS, Live, refusal, request, serving, until
from .issuer import Endpoint, Issuer, endpoint
from .keyring import bearer


@pytest.fixture(name="certs", scope="module")
def _certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certs")
    assert main(["certs", "dev", str(folder)]) == 0
    return folder


@pytest.fixture(name="issuer")
def _issuer(tmp_path: Path) -> Issuer:
    issuer = Issuer(tmp_path / "jwks.json")
    issuer.add("one")
    issuer.add("two")
    issuer.publish("one")
    return issuer


@pytest.fixture(name="remote")
def _remote(certs: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    monkeypatch.setenv("SSL_CERT_FILE", str(certs / "ca.pem"))
    with endpoint(certs) as served:
        yield served


class Steps:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """The time."""
        return self.now


@asynccontextmanager
async def _serving_url(issuer: Issuer, remote: Endpoint) -> AsyncIterator[tuple[Live, Steps]]:
    """A server that fetches its keys, and its clock for that."""
    settings = {**issuer.settings, "jwt_jwks_file": None, "jwt_jwks_url": remote.address}
    async with serving(**settings) as live:
        source: Any = live.app._gate._authenticator.tokens.source  # type: ignore[union-attr]
        source._clock = clock = Steps()
        source._tried = None
        yield live, clock


async def _counts(live: Live, token: str) -> bool:
    try:
        response = await live.unary(request(CONTAINS), metadata=bearer(token))
    except Exception:  # noqa: BLE001 - refused; the reason is the next test's business
        return False
    return response.summary.success


@asynccontextmanager
async def _load(live: Live, tokens: Any) -> AsyncIterator[list[int]]:
    """Calls one after the other, four at a time; each has to succeed."""
    done, stopped = [0], asyncio.Event()

    async def call() -> None:
        while not stopped.is_set():
            response = await live.unary(request(CONTAINS), metadata=bearer(tokens()))
            assert response.summary.success
            done[0] += 1
            await asyncio.sleep(0.005)  # the processor is for the tests beside this one, too

    async with asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(call())
        try:
            yield done
        finally:
            stopped.set()


def _signed(issuer: Issuer) -> dict[str, Iterator[str]]:
    """Tokens of each key, of 300 callers: more than may fail in a second."""
    return {
        kid: cycle([issuer.token(kid, sub=f"user-{number}") for number in range(300)]) for kid in issuer.keys
    }


def test_a_set_of_thousands_of_keys_is_refused_without_a_line_for_each(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken = [{"kty": "EC", "crv": "P-256", "kid": str(number)} for number in range(20_000)]
    with pytest.raises(ValueError, match="got 20000 keys, wanted at most 200"):
        read_key_set(json.dumps({"keys": broken}).encode())
    assert not caplog.text


async def test_keys_of_a_file_are_rotated_under_load_and_no_call_fails(issuer: Issuer) -> None:
    async with serving(**issuer.settings) as live:
        kid, ready = "one", _signed(issuer)
        source: Any = live.app._gate._authenticator.tokens.source  # type: ignore[union-attr]
        async with _load(live, lambda: next(ready[kid])) as done:
            for published in (("one", "two"), ("two",)):
                before = done[0]
                await until(lambda: done[0] > before + 20)  # noqa: B023
                keys = source.keys
                issuer.publish(*published)
                await until(lambda: source.keys is not keys)  # noqa: B023
                kid = "two"
                await until(lambda: done[0] > before + 60)  # noqa: B023
        assert not await _counts(live, issuer.token("one"))


async def test_a_file_that_breaks_leaves_the_keys_of_before(
    issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(**issuer.settings) as live:
        token = issuer.token()
        for content in ("{", '{"keys": []}', "o+w", None):
            caplog.clear()
            if content is None:
                issuer.path.unlink()
            elif content == "o+w":
                fresh = issuer.path.with_suffix(".open")
                fresh.write_bytes(issuer.key_set("two"))
                fresh.chmod(0o646)
                fresh.replace(issuer.path)
            else:
                issuer.path.write_text(content)
            await until(lambda: "last valid content of the file stays in use" in caplog.text)
            assert await _counts(live, issuer.token())
        issuer.publish("two")
        await until(lambda: _counts(live, issuer.token("two")))
        assert not await _counts(live, token)
        text = live.app.telemetry.exposition("")[0].decode()
        assert 'evald_jwks_reads_total{outcome="failed"} 4.0' in text
        assert 'evald_jwks_reads_total{outcome="ok"} 1.0' in text


async def test_keys_of_an_address_are_rotated_and_an_issuer_that_is_away_fails_no_call(
    issuer: Issuer, remote: Endpoint
) -> None:
    remote.body = issuer.key_set("one")
    async with _serving_url(issuer, remote) as (live, clock):
        await until(lambda: _counts(live, issuer.token()))
        kid, ready = "one", _signed(issuer)
        async with _load(live, lambda: next(ready[kid])) as done:
            remote.body = issuer.key_set("one", "two")
            clock.now += 600
            source: Any = live.app._gate._authenticator.tokens.source  # type: ignore[union-attr]
            await until(lambda: len(source.keys) == 2)
            kid = "two"
            remote.body = issuer.key_set("two")
            clock.now += 600
            await until(lambda: len(source.keys) == 1)
            remote.status = 500
            for _ in range(3):
                asked, before = remote.asked, done[0]
                clock.now += 1200
                await until(lambda: remote.asked > asked and done[0] > before + 5)  # noqa: B023
            remote.status = 200
        assert not await _counts(live, issuer.token("one"))


async def test_no_call_waits_while_keys_are_fetched(issuer: Issuer, remote: Endpoint) -> None:
    remote.body = issuer.key_set("one")
    async with _serving_url(issuer, remote) as (live, clock):
        await until(lambda: _counts(live, issuer.token()))
        remote.held.clear()
        remote.body = issuer.key_set("one", "two")
        asked = remote.asked
        assert not await _counts(live, issuer.token("two")), "unknown: refused, and wanted"
        clock.now += 29
        clock.now += 1
        await until(lambda: remote.asked > asked)
        # The answer is held back, and both kinds of calls go on.
        assert await _counts(live, issuer.token())
        assert (
            await refusal(live.unary(request(CONTAINS), metadata=bearer(issuer.token("two"))))
        ).reason == ("CREDENTIALS_INVALID")
        remote.held.set()
        await until(lambda: _counts(live, issuer.token("two")))


async def test_a_server_starts_while_its_issuer_is_away(
    issuer: Issuer, remote: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    remote.status = 503
    async with _serving_url(issuer, remote) as (live, clock):
        await until(lambda: "HTTP status 503" in caplog.text)
        assert not await _counts(live, issuer.token())
        remote.status, remote.body = 200, issuer.key_set("one")
        clock.now += 30
        await until(lambda: _counts(live, issuer.token()))


class Source:
    """What is at an address, and how often it was asked for."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.broken = False
        self.asked = 0

    async def fetch(self) -> bytes:
        """Return it."""
        self.asked += 1
        if self.broken:
            raise OSError("away")
        return self.body


async def test_keys_are_fetched_every_ten_minutes_and_every_30_s_where_one_is_wanted_or_that_fails(
    issuer: Issuer,
) -> None:
    clock, source = Steps(), Source(issuer.key_set("one"))
    keys = JwksUrl(source.fetch, lambda _: None, clock)

    async def asked_after(seconds: float) -> int:
        clock.now += seconds
        await keys.refresh()
        return source.asked

    assert await asked_after(0) == 1
    first = keys.keys
    assert await asked_after(599) == 1
    assert await asked_after(1) == 2
    assert keys.keys is first, "the same keys: nothing that was verified is forgotten"
    keys.want()
    assert await asked_after(29) == 2
    assert await asked_after(1) == 3
    assert await asked_after(30) == 3, "wanted once"
    source.broken = True
    assert await asked_after(570) == 4
    assert await asked_after(29) == 4
    assert await asked_after(1) == 5
    source.broken = False
    assert await asked_after(30) == 6
    assert await asked_after(30) == 6


async def test_keys_count_for_a_day_without_their_issuer(
    issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    clock, source = Steps(), Source(issuer.key_set("one"))
    keys = JwksUrl(source.fetch, lambda _: None, clock)
    await keys.refresh()
    source.broken = True
    clock.now += 86_399
    await keys.refresh()
    assert keys.keys
    clock.now += 30
    await keys.refresh()
    assert not keys.keys
    assert "no keys could be fetched for a day" in caplog.text
    source.broken = False
    clock.now += 30
    await keys.refresh()
    assert keys.keys


async def test_a_document_is_taken_from_a_checked_server_whole_and_from_where_it_was_asked_for(
    remote: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fetch(url: str = "", **named: Any) -> bytes:
        return await fetch_document(url or remote.address, **{"seconds": 20, "max_bytes": 1000, **named})

    remote.body = b"x" * 1000
    assert await fetch() == remote.body
    remote.body += b"x"
    with pytest.raises(OSError, match="more than 1000 bytes"):
        await fetch()
    remote.status, remote.location = 302, remote.address
    asked = remote.asked
    with pytest.raises(OSError, match="redirects are not followed"):
        await fetch()
    assert remote.asked == asked + 1
    remote.held.clear()
    with pytest.raises(OSError, match="no complete answer within"):
        await fetch(seconds=0.05)
    remote.held.set()
    with pytest.raises(OSError, match="TLS failed"):
        await fetch(remote.address.replace("localhost", "127.0.0.2"))
    assert main(["certs", "dev", str(tmp_path / "other")]) == 0
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "other" / "ca.pem"))
    with pytest.raises(OSError, match="TLS failed"):
        await fetch()


async def test_no_token_key_or_claim_is_in_a_log_or_metric(
    issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []
    with caplog.at_level(logging.DEBUG):
        async with serving(log_calls=True, **issuer.settings) as live:
            tokens = [issuer.token(canary="canary-claim"), issuer.token("two", canary="canary-claim")]
            tokens.append(tokens[0][:-4])
            for token in tokens:
                try:
                    await live.unary(request(CONTAINS), metadata=bearer(token))
                except Exception as error:  # noqa: BLE001 - whatever it says
                    seen.append(str(error))
            seen.append(live.app.telemetry.exposition("")[0].decode())
    seen += [caplog.text, *(str(vars(record)) for record in caplog.records)]
    secrets = ["canary-claim", *(part for token in tokens for part in token.split("."))]
    for secret in secrets:
        assert not [text for text in seen if secret in text], secret
