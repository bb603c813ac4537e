"""The cost of authentication: API keys, tokens and client certificates."""

import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

import grpc
from joserfc import jwk, jwt

from evald_server.auth.keys import add_key, new_key
from evald_server.auth.principal import Role
from evald_server.cli import main as evald_command

from . import load, workload
from .lab import UNARY, Lab
from .pairs import Pairs, Row, at_least, at_most, in_turn
from .processes import Process

_ISSUER: Final = "https://issuer.example.org"
_IN_FLIGHT: Final = 16


class _Slice(NamedTuple):
    """A measured slice. calls: per second. cpu: the server's processor time per call in microseconds."""

    calls: float
    cpu: float


def auth(lab: Lab) -> list[Row]:
    """Compare servers that check credentials with one that does not. All run in one process and get equal calls."""
    directory = lab.directory
    keys, key_set, clients = directory / "keys.toml", directory / "jwks.json", directory / "clients.toml"
    key, kept = new_key("benchmark", [Role.CALLER])
    add_key(keys, kept)
    signing = jwk.generate_key("EC", "P-256", {"kid": "benchmark"})
    key_set.write_text(json.dumps({"keys": [signing.as_dict(private=False)]}))
    claims = {
        "iss": _ISSUER,
        "aud": "evald",
        "sub": "benchmark",
        "exp": int(time.time()) + 3600,
        "roles": ["caller"],
    }
    token = jwt.encode({"alg": "ES256", "kid": "benchmark"}, claims, signing)
    certificates = directory / "certs"
    if evald_command(["certs", "dev", str(certificates)]):
        raise RuntimeError("evald certs dev failed")
    clients.write_text(
        '[[clients]]\nsan = "spiffe://evald.dev/client"\nprincipal = "benchmark"\nroles = ["caller"]\n'
    )
    clients.chmod(0o600)
    issuer = {"jwt_issuer": _ISSUER, "jwt_audience": "evald", "jwt_jwks_file": str(key_set)}
    tls = {
        "tls_cert_file": str(certificates / "server.pem"),
        "tls_key_file": str(certificates / "server.key"),
        "tls_client_ca_file": str(certificates / "ca.pem"),
        "tls_client_auth": "require",
    }
    servers = [{}, {"keys_file": str(keys)}, issuer, tls, {**tls, "tls_clients_file": str(clients)}]
    process = lab.start(
        lambda: Process([sys.executable, "-m", "benchmarks.gates", *map(json.dumps, servers)])
    )
    plain, by_key, by_token, encrypted, by_certificate = json.loads(process.first_line)
    body, _ = lab.unary()

    def sent(port: int, credentials: str = "") -> Callable[[], _Slice]:
        header = ("--authorization", f"Bearer {credentials}") if credentials else ()
        # Without a warm-up, whose calls would take processor time but would not be counted.
        return lambda: _slice(
            process, lab, lambda: load.run(port, UNARY, body, lab.seconds, "--warm", "0", *header).calls
        )

    def shown(port: int) -> Callable[[], _Slice]:
        return lambda: _slice(process, lab, lambda: asyncio.run(_calls(port, certificates, lab.seconds)))

    return [
        *_rows(lab, "an API key checked / only sent", 0.97, sent(by_key, key), sent(plain, key)),
        *_rows(lab, "a JWT checked / only sent", 0.95, sent(by_token, token), sent(plain, token)),
        *_rows(
            lab, "a client certificate checked / only shown", 0.97, shown(by_certificate), shown(encrypted)
        ),
        *_rows(lab, "an API key only sent / without", None, sent(plain, key), sent(plain)),
    ]


def _rows(
    lab: Lab, what: str, limit: float | None, ours: Callable[[], _Slice], theirs: Callable[[], _Slice]
) -> Iterable[Row]:
    a, b = zip(*in_turn(lab.rounds, ours, theirs), strict=True)
    calls, cpu = (
        Pairs([getattr(one, name) for one in a], [getattr(one, name) for one in b]) for name in _Slice._fields
    )
    yield calls.row(
        f"`EvaluateUnary` with {what}, calls/s", None if limit is None else at_least(limit), "calls/s"
    )
    yield cpu.row(
        f"`EvaluateUnary` with {what}, processor time of the server",
        None if limit is None else at_most(round(2 - limit, 2)),
        "us a call",
    )


def _slice(process: Process, lab: Lab, run: Callable[[], float]) -> _Slice:
    before = process.cpu_seconds
    calls = run()
    if not calls:
        raise load.BrokenRun(f"no call was answered within {lab.seconds:g} s; give --seconds more")
    return _Slice(calls, 1e6 * (process.cpu_seconds - before) / (calls * lab.seconds))


async def _calls(port: int, certificates: Path, seconds: float) -> float:
    """Return calls per second with a client certificate, which the load generators do not support."""
    credentials = grpc.ssl_channel_credentials(
        *((certificates / name).read_bytes() for name in ("ca.pem", "client.key", "client.pem"))
    )
    request = workload.unary_request().SerializeToString()
    done = 0

    async def repeat(call: Any, end: float) -> None:
        nonlocal done
        while time.perf_counter() < end:
            await call(request)
            done += 1

    async with grpc.aio.secure_channel(f"localhost:{port}", credentials) as channel:
        call: Any = channel.unary_unary(UNARY)
        end = time.perf_counter() + seconds
        await asyncio.gather(*(repeat(call, end) for _ in range(_IN_FLIGHT)))
    return done / seconds
