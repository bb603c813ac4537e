"""Tokens: which count, which do not, and what their claims allow."""

import base64
import hashlib
import hmac
import json
import socket
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
from joserfc import jwk, jws, jwt

from evald_server.app import App, StartError
from evald_server.auth.authenticator import Authenticator
from evald_server.auth.jwks import KeySet, read_key_set
from evald_server.auth.keys import KeyFile
from evald_server.auth.principal import Role
from evald_server.auth.refusals import AccessDenied
from evald_server.auth.tokens import TokenVerifier
from evald_server.config import Settings, load_settings

from ..rpc.live import (
    CONTAINS,
    EVALUATION,
    Live,
    no_collector,
    open_calls,
    refusal,
    request,
    serving,
    until,
)
from .issuer import AUDIENCE, ISSUER, KINDS, Issuer
from .keyring import bearer, make_key


class Tokens(NamedTuple):
    """A server that takes tokens, and their issuer."""

    live: Live
    issuer: Issuer


@pytest.fixture(name="issuer", scope="module")
def _issuer(tmp_path_factory: pytest.TempPathFactory) -> Issuer:
    issuer = Issuer(tmp_path_factory.mktemp("issuer") / "jwks.json")
    issuer.add("one")
    for algorithm in KINDS:
        issuer.add(algorithm, algorithm)
    issuer.publish()
    issuer.add("private")
    return issuer


@pytest.fixture(name="server", scope="module")
async def _server(issuer: Issuer) -> AsyncIterator[Tokens]:
    async with serving(**issuer.settings) as live:
        yield Tokens(live, issuer)


class FixedKeys:
    """A source of keys that a test changes."""

    was_read = True

    def __init__(self, keys: KeySet) -> None:
        self.keys = keys
        self.wanted = 0

    def want(self) -> None:
        """Count."""
        self.wanted += 1

    async def watch(self) -> None:
        """Nothing to read."""


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        """The time."""
        return self.now


def _verifier(issuer: Issuer, **named: Any) -> tuple[TokenVerifier, FixedKeys]:
    source = FixedKeys(read_key_set(issuer.path.read_bytes()))
    return TokenVerifier(source, ISSUER, AUDIENCE, **named), source


@pytest.mark.parametrize("algorithm", KINDS)
async def test_a_token_of_each_algorithm_evaluates(algorithm: str, server: Tokens) -> None:
    token = server.issuer.token(algorithm)
    for _ in range(2):
        assert (await server.live.unary(request(CONTAINS), metadata=bearer(token))).summary.success


def _encoded(value: Any) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _unsigned(issuer: Issuer, header: dict[str, Any], signature: str = "") -> str:
    return f"{_encoded(header)}.{_encoded(issuer.claims())}.{signature}"


def _confused(issuer: Issuer) -> str:
    """HS256, with the public key as the secret."""
    text = _unsigned(issuer, {"alg": "HS256", "kid": "RS256"}).removesuffix(".")
    secret = issuer.keys["RS256"].as_pem(private=False)
    return f"{text}.{_encoded(hmac.digest(secret, text.encode(), hashlib.sha256))}"


def _signed_by(issuer: Issuer, kid: str, key: Any, **header: Any) -> str:
    registry = jws.JWSRegistry(algorithms=list(KINDS), strict_check_header=False)
    return jwt.encode({"alg": "ES256", "kid": kid, **header}, issuer.claims(), key, registry=registry)


def _stranger(issuer: Issuer, **header: Any) -> str:
    """Signed by a key that is not in the set, with the kid of one that is."""
    return _signed_by(issuer, "one", issuer.keys["private"], **header)


def _tampered(issuer: Issuer, **changes: Any) -> str:
    header, _, signature = issuer.token().split(".")
    return f"{header}.{_encoded(issuer.claims(**changes))}.{signature}"


def _signed_list(issuer: Issuer) -> str:
    return jws.serialize_compact({"alg": "ES256", "kid": "one"}, b"[1]", issuer.keys["one"])


INVALID, EXPIRED = "CREDENTIALS_INVALID", "CREDENTIALS_EXPIRED"
OWN_JWK = {"jwk": jwk.generate_key("EC", "P-256").as_dict(private=False)}

HOSTILE: dict[str, tuple[Callable[[Issuer], str], str, str]] = {
    "alg none": (lambda i: _unsigned(i, {"alg": "none", "kid": "one"}), INVALID, "unsupported_algorithm"),
    "alg NoNe": (lambda i: _unsigned(i, {"alg": "NoNe", "kid": "one"}), INVALID, "unsupported_algorithm"),
    "HS256 with the public key": (_confused, INVALID, "unsupported_algorithm"),
    "RS512, which is not taken": (
        lambda i: _unsigned(i, {"alg": "RS512", "kid": "RS256"}, "AAAA"),
        INVALID,
        "unsupported_algorithm",
    ),
    "another family than its key's": (
        lambda i: _unsigned(i, {"alg": "RS256", "kid": "one"}, "AAAA"),
        INVALID,
        "unknown kid",
    ),
    "no alg": (lambda i: _unsigned(i, {"kid": "one"}, "AAAA"), INVALID, "missing_algorithm"),
    "alg is a list": (lambda i: _unsigned(i, {"alg": ["ES256"], "kid": "one"}), INVALID, "token: "),
    "no kid": (lambda i: i.token(header={"kid": ""}), INVALID, "unknown kid"),
    "unknown kid": (lambda i: i.token("private"), INVALID, "unknown kid"),
    "kid of another's key": (_stranger, INVALID, "bad_signature"),
    "crit that is known": (lambda i: i.token(header={"crit": ["kid"]}), INVALID, "crit in its header"),
    "crit that is not known": (
        lambda i: _unsigned(i, {"alg": "ES256", "kid": "one", "crit": ["exp2"], "exp2": 1}, "AAAA"),
        INVALID,
        "unsupported_header",
    ),
    "b64 false": (
        lambda i: _unsigned(i, {"alg": "ES256", "kid": "one", "crit": ["b64"], "b64": False}, "AAAA"),
        INVALID,
        "token: ",
    ),
    "a key of its own in jwk": (lambda i: _stranger(i, **OWN_JWK), INVALID, "jwk in its header"),
    "a key of its own at jku": (
        lambda i: _stranger(i, jku="https://127.0.0.1:9/keys"),
        INVALID,
        "bad_signature",
    ),
    "a certificate of its own in x5c": (lambda i: _stranger(i, x5c=["AAAA"]), INVALID, "bad_signature"),
    "changed claims": (lambda i: _tampered(i, roles=["admin"]), INVALID, "bad_signature"),
    "signature cut off": (lambda i: i.token()[:-8], INVALID, "bad_signature"),
    "no signature": (lambda i: i.token().rpartition(".")[0] + ".", INVALID, "bad_signature"),
    "ECDSA of zeros": (
        lambda i: _unsigned(i, {"alg": "ES256", "kid": "one"}, _encoded(bytes(64))),
        INVALID,
        "token: ",
    ),
    "another issuer": (lambda i: i.token(iss="https://other.example.org"), INVALID, "invalid_claim iss"),
    "no issuer": (lambda i: i.token(iss=None), INVALID, "missing_claim iss"),
    "another audience": (lambda i: i.token(aud=["another", "evald2"]), INVALID, "invalid_claim aud"),
    "no audience": (lambda i: i.token(aud=None), INVALID, "missing_claim aud"),
    "no subject": (lambda i: i.token(sub=None), INVALID, "missing_claim sub"),
    "a subject with a line break": (lambda i: i.token(sub="a\nb"), INVALID, "invalid_claim sub"),
    "an empty subject": (lambda i: i.token(sub=""), INVALID, "invalid_claim sub"),
    "a subject that is too long": (lambda i: i.token(sub="s" * 256), INVALID, "invalid_claim sub"),
    "a subject that is a number": (lambda i: i.token(sub=5), INVALID, "invalid_claim sub"),
    "never expires": (lambda i: i.token(exp=None), INVALID, "missing_claim exp"),
    "expires at NaN": (lambda i: i.token(exp=float("nan")), INVALID, "invalid_claim exp"),
    "expires at a text": (lambda i: i.token(exp="2999-01-01"), INVALID, "invalid_claim exp"),
    "has expired": (lambda i: i.token(exp=int(time.time()) - 31), EXPIRED, "expired"),
    "has expired, and is another's": (
        lambda i: i.token(exp=int(time.time()) - 31, aud="another"),
        INVALID,
        "invalid_claim aud",
    ),
    "not valid yet": (lambda i: i.token(nbf=int(time.time()) + 300), INVALID, "invalid_claim nbf"),
    "claims that are a list": (
        _signed_list,
        INVALID,
        "invalid_payload",
    ),
    "longer than 8 KiB": (lambda i: i.token(padding="x" * 8192), INVALID, "longer than 8 KiB"),
    "encrypted, five parts": (lambda i: f"{_unsigned(i, {'alg': 'dir', 'kid': 'one'})}.a.b", INVALID, "decode_error"),
    "a header of 400 brackets": (lambda _: f"{_encoded(b'[' * 380)}.e30.AAAA", INVALID, "decode_error"),
    "not base64": (lambda _: "ey!!.ey!!.ey!!", INVALID, "decode_error"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_token_opens_nothing(
    name: str, server: Tokens, caplog: pytest.LogCaptureFixture
) -> None:
    make, reason, why = HOSTILE[name]
    token = make(server.issuer)
    server.live.app._gate._audit._lines.clear()
    with caplog.at_level("INFO", "evald.audit"):
        for _ in range(2):
            refused = await refusal(server.live.unary(request(CONTAINS), metadata=bearer(token)))
            assert (refused.code, refused.reason) == (grpc.StatusCode.UNAUTHENTICATED, reason)
    lines: list[Any] = [record for record in caplog.records if record.name == "evald.audit"]
    assert len(lines) == 2, "failures are not cached"
    assert why in lines[0].why
    for part in token.split("."):
        assert len(part) < 8 or part not in caplog.text + refused.message


def test_there_are_as_many_hostile_tokens_as_promised() -> None:
    assert len(HOSTILE) >= 23


async def test_addresses_in_a_header_are_never_followed(server: Tokens) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        url = f"https://127.0.0.1:{listening.getsockname()[1]}/"
        for header in ({"jku": url}, {"x5u": url}):
            await refusal(
                server.live.unary(request(CONTAINS), metadata=bearer(_stranger(server.issuer, **header)))
            )
            good = server.issuer.token(header=header)
            assert (await server.live.unary(request(CONTAINS), metadata=bearer(good))).summary.success
        with pytest.raises(BlockingIOError):
            listening.accept()


async def test_a_token_of_8_kib_counts(server: Tokens) -> None:
    padding = 8192 - len(server.issuer.token(padding=""))
    token = server.issuer.token(padding="x" * (padding * 3 // 4 - 2))
    assert 8150 < len(token) <= 8192
    for _ in range(20):
        assert (await server.live.unary(request(CONTAINS), metadata=bearer(token))).summary.success


CLAIMS: dict[str, tuple[Any, set[Role]]] = {
    "a list": (["caller", "viewer"], {Role.CALLER, Role.VIEWER}),
    "a text": ("caller  viewer", {Role.CALLER, Role.VIEWER}),
    "unknown ones": (["Caller", "root", "caller", 7, None, ["admin"]], {Role.CALLER}),
    "none that is known": (["root"], set()),
    "empty": ([], set()),
    "missing": (None, set()),
    "a number": (7, set()),
    "an object": ({"admin": True}, set()),
}


@pytest.mark.parametrize("name", CLAIMS)
def test_roles_are_those_of_the_claim_that_evald_knows(name: str, issuer: Issuer) -> None:
    value, wanted = CLAIMS[name]
    verifier, _ = _verifier(issuer)
    assert verifier.verify(issuer.token(roles=value), "").roles == wanted
    verifier, _ = _verifier(issuer, roles_claim="https://example.org/evald")
    token = issuer.token(roles=["admin"], **{"https://example.org/evald": value})
    assert verifier.verify(token, "").roles == wanted


def test_types_are_those_of_their_claim_and_a_name_is_never_that_of_a_key(issuer: Issuer) -> None:
    verifier, _ = _verifier(issuer)
    principal = verifier.verify(issuer.token(evald_types="acme.* exact *bad ../x"), "")
    assert principal.types == ("acme.*", "exact")
    assert principal.name == "jwt:alice"
    assert principal.key_id.startswith("one:")


async def test_a_token_without_a_role_is_refused_and_told_so(server: Tokens) -> None:
    token = server.issuer.token(roles=["root"])
    refused = await refusal(server.live.unary(request(CONTAINS), metadata=bearer(token)))
    assert (refused.code, refused.reason) == (grpc.StatusCode.PERMISSION_DENIED, "ROLE_MISSING")
    assert "jwt:alice has no role" in refused.message
    assert refused.info.metadata["roles"] == "caller"


async def test_a_plugin_with_a_token_offers_the_types_of_its_claim(server: Tokens) -> None:
    from evald.plugin.v1 import registry_service_pb2 as registry_pb2

    from ..remote.scripted import REGISTRY, plugin_info

    async def connect(token: str, type_name: str) -> Any:
        hello = registry_pb2.WorkerHello(instance_id="one", plugin=plugin_info(type_name), initial_credit=1)
        call: Any = server.live.channel.stream_stream(f"{REGISTRY}Attach")(metadata=bearer(token))
        await call.write(registry_pb2.AttachRequest(hello=hello).SerializeToString())
        await call.read()
        return call

    token = server.issuer.token(roles="plugin", evald_types=["acme.*"])
    assert (await refusal(connect(token, "other.word"))).reason == "TYPE_NOT_ALLOWED"
    (await connect(token, "acme.word")).cancel()


def test_a_token_is_verified_again_after_a_minute_and_never_counts_after_it_has_expired(
    issuer: Issuer,
) -> None:
    now = Clock()
    verifier, source = _verifier(issuer, now=now)
    token = issuer.token(exp=int(now.now) + 90)
    principal = verifier.verify(token, "")
    now.now += 59
    assert verifier.verify(token, "") is principal
    now.now += 2
    again = verifier.verify(token, "")
    assert again is not principal
    assert again == principal
    now.now += 58
    assert verifier.verify(token, "") is again, "within the leeway of 30 s"
    now.now += 2
    with pytest.raises(AccessDenied) as refused:
        verifier.verify(token, "")
    assert refused.value.reason == EXPIRED
    assert source.wanted == 0


def test_verified_tokens_are_forgotten_when_the_keys_change(issuer: Issuer) -> None:
    verifier, source = _verifier(issuer)
    token, other = issuer.token(), issuer.token("RS256")
    verifier.verify(token, "")
    verifier.verify(other, "")
    source.keys = read_key_set(issuer.key_set("RS256"))
    with pytest.raises(AccessDenied):
        verifier.verify(token, "")
    assert source.wanted == 1
    assert verifier.verify(other, "").name == "jwt:alice"


def test_at_most_ten_thousand_tokens_are_kept(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evald_server.auth.tokens._MAX_VERIFIED", 3)
    verifier, _ = _verifier(issuer)
    for number in range(5):
        verifier.verify(issuer.token(sub=str(number)), "")
    assert len(verifier._verified[1]) == 2


def test_two_hundred_tokens_a_second_may_fail_from_one_address(issuer: Issuer) -> None:
    clock = Clock()
    verifier, _ = _verifier(issuer, clock=clock)
    known = issuer.token()
    verifier.verify(known, "ipv4:10.0.0.1:1")
    forged = _stranger(issuer)

    def reason(token: str, peer: str) -> str:
        try:
            verifier.verify(token, peer)
        except AccessDenied as refused:
            return refused.reason
        return ""

    reasons = [reason(forged, f"ipv4:10.0.0.1:{port}") for port in range(201)]
    assert reasons == [INVALID] * 200 + ["RATE_LIMITED"]
    assert reason(known, "ipv4:10.0.0.1:1") == "", "what is cached is not verified"
    callers = [issuer.token(sub=str(number)) for number in range(300)]
    assert {reason(token, "ipv4:10.0.0.3:1") for token in callers} == {""}, "those that count are not limited"
    assert reason(forged, "ipv4:10.0.0.2:1") == INVALID
    clock.now += 1
    assert reason(forged, "ipv4:10.0.0.1:1") == INVALID


async def test_who_tries_tokens_out_is_told_to_wait(issuer: Issuer) -> None:
    async with serving(**issuer.settings) as live:
        gate = live.app._gate
        assert gate._authenticator is not None
        assert gate._authenticator.tokens is not None
        gate._authenticator.tokens._failures._clock = lambda: 7.0
        forged = bearer(_stranger(issuer))
        reasons = [(await refusal(live.unary(request(CONTAINS), metadata=forged))).reason for _ in range(201)]
        assert reasons == [INVALID] * 200 + ["RATE_LIMITED"]
        text = live.app.telemetry.exposition("")[0].decode()
        assert 'evald_auth_total{kind="jwt",outcome="invalid"} 200.0' in text
        assert 'evald_auth_total{kind="jwt",outcome="limited"} 1.0' in text


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        (lambda issuer: (), "CREDENTIALS_MISSING"),
        (lambda issuer: bearer("evald_unknown"), INVALID),
        (lambda issuer: bearer(_stranger(issuer)), INVALID),
        (lambda issuer: bearer(issuer.token(exp=1)), "CREDENTIALS_EXPIRED"),
        (lambda issuer: bearer(issuer.token(roles=["viewer"])), "ROLE_MISSING"),
    ],
    ids=["no credentials", "no token", "of a stranger", "expired", "of another role"],
)
async def test_calls_that_are_refused_are_gone_and_keep_nobody_out(
    issuer: Issuer, metadata: Callable[[Issuer], Any], reason: str
) -> None:
    """gRPC lets 100 calls be open on a connection, those included that wait for the garbage collector."""
    refused, known = metadata(issuer), bearer(issuer.token())
    async with serving(**issuer.settings) as live:
        with no_collector():
            before = open_calls()
            for _ in range(120):
                assert (await refusal(live.unary(request(CONTAINS), metadata=refused))).reason == reason
            await until(lambda: open_calls() <= before + 1)  # the server hears of the last one's end
            assert (await live.unary(request(CONTAINS), metadata=known)).summary.success


async def test_keys_and_tokens_count_side_by_side(issuer: Issuer, tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    key = make_key(path, "alice", Role.CALLER)
    async with serving(keys_file=path, **issuer.settings) as live:
        for token in (key, issuer.token()):
            assert (await live.unary(request(CONTAINS), metadata=bearer(token))).summary.success
        first = request(CONTAINS, request_id="same")
        await live.unary(first, metadata=bearer(key))
        other = request(CONTAINS, request_id="same", answer="hello, too")
        assert (await live.unary(other, metadata=bearer(issuer.token()))).summary.success, "another principal"
        assert (await refusal(live.unary(request(CONTAINS)))).reason == "CREDENTIALS_MISSING"
        assert (await refusal(live.unary(request(CONTAINS), metadata=bearer(key[:-1])))).reason == INVALID
        twice = bearer(key) + bearer(issuer.token())
        assert (await refusal(live.unary(request(CONTAINS), metadata=twice))).reason == INVALID


def test_credentials_are_checked_without_grpc_too(issuer: Issuer, tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    key = make_key(path, "ci", Role.CALLER)
    verifier, _ = _verifier(issuer)
    authenticator = Authenticator(KeyFile(path), lambda _kind, _outcome: None, tokens=verifier)
    assert authenticator.authenticate([("authorization", f"Bearer {key}")]).name == "ci"
    token = [("authorization", f"Bearer {issuer.token()}")]
    assert authenticator.authenticate(token, None, "ipv4:10.0.0.1:1").name == "jwt:alice"


async def test_streams_end_when_their_key_leaves_the_set_and_when_the_token_has_expired(
    tmp_path: Path,
) -> None:
    issuer = Issuer(tmp_path / "jwks.json")
    issuer.add("one")
    issuer.add("two")
    issuer.publish()
    method = f"{EVALUATION}EvaluateSession"
    async with serving(**issuer.settings) as live:
        authenticator: Any = live.app._gate._authenticator
        tokens = authenticator.tokens
        calls: list[Any] = []
        for kid in ("one", "two"):
            # It has expired by now, within the leeway of 30 s.
            token = issuer.token(kid, exp=int(time.time()) - 5)
            calls.append(live.channel.stream_stream(method)(metadata=bearer(token)))
            await calls[-1].wait_for_connection()
        await until(lambda: len(live.app._gate._streams) == 2)
        issuer.publish("two")

        # The gate checks every 30 seconds.
        async def has_ended() -> bool:
            await live.app._gate._check_streams(authenticator)
            return bool(calls[0].done())

        await until(has_ended)
        ended = await refusal(_to_the_end(calls[0]))
        assert (ended.code, ended.reason) == (grpc.StatusCode.UNAUTHENTICATED, INVALID)
        assert not calls[1].done()
        tokens._now = lambda: time.time() + 15
        await live.app._gate._check_streams(authenticator)
        assert not live.app._rpc._ending
        tokens._now = lambda: time.time() + 30
        await live.app._gate._check_streams(authenticator)
        ended = await refusal(_to_the_end(calls[1]))
        assert (ended.code, ended.reason) == (grpc.StatusCode.UNAUTHENTICATED, EXPIRED)


async def _to_the_end(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


JWT = {"jwt_issuer": "i", "jwt_audience": "a"}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"jwt_issuer": "i"}, "wanted all or none"),
        ({"jwt_jwks_file": "f"}, "wanted all or none"),
        (JWT, "wanted all or none"),
        ({**JWT, "jwt_jwks_file": "f", "jwt_jwks_url": "https://i/k"}, "one of them"),
        ({**JWT, "jwt_jwks_url": "http://i/k"}, "wanted https"),
        ({**JWT, "jwt_jwks_url": "https://user:secret@i/k"}, "wanted https"),
        ({**JWT, "jwt_jwks_url": "https://i/k\r\nx: y"}, "wanted"),
        ({"listen": "0.0.0.0:0", **JWT, "jwt_jwks_file": "f"}, "in plaintext"),
    ],
    ids=str,
)
def test_settings_that_cannot_be_are_refused_and_named(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Settings.model_validate({"http": None, **settings})


def test_the_table_jwt_of_a_file_has_the_settings(tmp_path: Path) -> None:
    path = tmp_path / "server.toml"
    path.write_text('[jwt]\nissuer = "i"\naudience = "a"\njwks_file = "f"\nroles_claim = "r"\n')
    settings = load_settings({}, {}, path)
    assert (settings.jwt_issuer, settings.jwt_roles_claim) == ("i", "r")
    assert settings.authenticates


KEY_SETS: dict[str, tuple[Callable[[Issuer], Any], str]] = {
    "not JSON": (lambda _: b"{", "not JSON"),
    "deep": (lambda _: b"[" * 100_000, "not JSON"),
    "another object": (lambda _: b'{"key": 1}', "wanted a JSON Web Key Set"),
    "empty": (lambda _: b'{"keys": []}', "contains no usable key"),
    "private": (lambda i: {"keys": [i.keys["one"].as_dict(private=True)]}, "a private key"),
    "symmetric": (
        lambda _: {"keys": [{"kty": "oct", "kid": "a", "k": "AAAA"}]},
        "contains no usable key",
    ),
    "without a kid": (lambda i: {"keys": [_without(i, "kid")]}, "contains no usable key"),
    "for encryption": (lambda i: {"keys": [{**_without(i), "use": "enc"}]}, "contains no usable key"),
    "another algorithm's": (lambda i: {"keys": [{**_without(i), "alg": "ES384"}]}, "contains no usable key"),
    "a short RSA key": (
        lambda _: {"keys": [{"kty": "RSA", "kid": "a", "e": "AQAB", "n": "AAAA" * 40}]},
        "contains no usable key",
    ),
    "a short RSA key behind zeros": (lambda _: {"keys": [_short_key()]}, "contains no usable key"),
    "a point that is on no curve": (
        lambda i: {"keys": [{**_without(i), "x": _without(i)["y"]}]},
        "contains no usable key",
    ),
}


def _short_key() -> dict[str, Any]:
    """A key of 1,024 bits, written as one of 2,048 is."""
    key = jwk.generate_key("RSA", 1024, {"kid": "short"}, private=False)
    number = base64.urlsafe_b64decode(str(key.as_dict(private=False)["n"]) + "==").rjust(256, b"\0")
    return {**key.as_dict(private=False), "n": base64.urlsafe_b64encode(number).decode().rstrip("=")}


def _without(issuer: Issuer, *names: str) -> dict[str, Any]:
    found: dict[str, Any] = issuer.keys["one"].as_dict(private=False)
    return {name: value for name, value in found.items() if name not in names}


@pytest.mark.filterwarnings("ignore::joserfc.errors.SecurityWarning")
@pytest.mark.parametrize("name", KEY_SETS)
def test_a_key_set_that_is_of_no_use_is_refused(name: str, issuer: Issuer, tmp_path: Path) -> None:
    make, said = KEY_SETS[name]
    content = make(issuer)
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    with pytest.raises(ValueError, match=said):
        read_key_set(data)
    path = tmp_path / "jwks.json"
    path.write_bytes(data)
    settings = Settings.model_validate({**issuer.settings, "jwt_jwks_file": path, "http": None})
    with pytest.raises(StartError, match="jwt_jwks_file") as refused:
        App(settings)
    assert issuer.keys["one"].as_dict(private=True)["d"] not in str(refused.value)


def test_keys_of_other_kinds_are_left_out(issuer: Issuer) -> None:
    entries = [{"kty": "AKP", "kid": "pq"}, 7, {"kty": "oct", "kid": "one", "k": "AAAA"}, _without(issuer)]
    assert list(read_key_set(json.dumps({"keys": entries}).encode())) == [("one", "EC")]


def test_a_key_for_one_algorithm_takes_no_token_of_another(issuer: Issuer) -> None:
    entry = {**issuer.keys["RS256"].as_dict(private=False), "alg": "RS256"}
    source = FixedKeys(read_key_set(json.dumps({"keys": [entry]}).encode()))
    verifier = TokenVerifier(source, ISSUER, AUDIENCE)
    verifier.verify(issuer.token("RS256"), "")
    with pytest.raises(AccessDenied):
        verifier.verify(
            jwt.encode(
                {"alg": "PS256", "kid": "RS256"}, issuer.claims(), issuer.keys["RS256"], algorithms=["PS256"]
            ),
            "",
        )
