"""Every method of the descriptors and every state of credentials: which refusal, what is logged, what is counted."""

import logging
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest

from evald.plugin.v1 import registry_service_pb2 as registry_pb2
from evald_server.auth.keys import revoke_key
from evald_server.auth.principal import Role
from evald_server.auth.roles import METHODS, OPEN

from ..remote.scripted import REGISTRY, listening, plugin_info
from ..rpc.live import Live, refusal, serving, until
from .issuer import Issuer
from .keyring import Metadata, bearer, make_key
from .methods import EVERY_METHOD, NOT_SERVED, REFLECTION_V1, opened
from .test_tokens import HOSTILE

UNAUTHENTICATED, DENIED = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED
ALL = [*EVERY_METHOD, REFLECTION_V1]


class Asked(NamedTuple):
    """A server that takes keys and tokens, and what makes both."""

    live: Live
    issuer: Issuer
    keys: Path
    revoked: str


@pytest.fixture(name="server", scope="module")
async def _server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Asked]:
    folder = tmp_path_factory.mktemp("matrix")
    issuer = Issuer(folder / "jwks.json")
    issuer.add("one")
    issuer.add("RS256", "RS256")
    issuer.publish()
    revoked = make_key(folder / "keys.toml", "gone", *Role)
    revoke_key(folder / "keys.toml", revoked[6:18])
    settings = {"remote_allowed": ["127.0.0.1/32"], **issuer.settings}
    async with serving(keys_file=folder / "keys.toml", **settings) as live:
        live.app._gate._authenticator.tokens._failures._clock = _Seconds()  # type: ignore[union-attr]
        yield Asked(live, issuer, folder / "keys.toml", revoked)


class _Seconds:
    """A clock of which no second lasts: hundreds of cells fail in one, and the limit is not their business."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


class State(NamedTuple):
    """One state of credentials. metadata: of a call of this method. counted: kind and outcome."""

    metadata: Callable[[Asked, str], Metadata]
    code: grpc.StatusCode
    reason: str
    why: str
    counted: tuple[str, str]


def _token(**changes: Any) -> Callable[[Asked, str], Metadata]:
    return lambda server, _: bearer(server.issuer.token(roles=list(Role), **changes))


def _hostile(name: str) -> Callable[[Asked, str], Metadata]:
    return lambda server, _: bearer(HOSTILE[name][0](server.issuer))


def _wrong_role(server: Asked, method: str) -> Metadata:
    return bearer(server.issuer.token(roles=sorted(set(Role) - METHODS[method])))


INVALID = "CREDENTIALS_INVALID"
STATES = {
    "none": State(
        lambda _server, _method: (),
        UNAUTHENTICATED,
        "CREDENTIALS_MISSING",
        "no credentials",
        ("none", "missing"),
    ),
    "expired": State(
        _token(exp=int(time.time()) - 60),
        UNAUTHENTICATED,
        "CREDENTIALS_EXPIRED",
        "expired",
        ("jwt", "expired"),
    ),
    "wrong audience": State(
        _token(aud="another"), UNAUTHENTICATED, INVALID, "token: invalid_claim aud", ("jwt", "invalid")
    ),
    "alg none": State(
        _hostile("alg none"), UNAUTHENTICATED, INVALID, "token: unsupported_algorithm", ("jwt", "invalid")
    ),
    "HS256 with the public key": State(
        _hostile("HS256 with the public key"),
        UNAUTHENTICATED,
        INVALID,
        "token: unsupported_algorithm",
        ("jwt", "invalid"),
    ),
    "revoked": State(
        lambda server, _: bearer(server.revoked), UNAUTHENTICATED, INVALID, "revoked", ("key", "invalid")
    ),
    "wrong role": State(_wrong_role, DENIED, "ROLE_MISSING", "wrong role", ("jwt", "role")),
}


def _count(live: Live, kind: str, outcome: str) -> int:
    labels = {"kind": kind, "outcome": outcome}
    (family,) = live.app.telemetry.access.checks.collect()  # a whole scrape for each method takes long
    return sum(
        int(one.value) for one in family.samples if one.name.endswith("_total") and one.labels == labels
    )


def test_every_method_is_served_or_said_not_to_be(server: Asked) -> None:
    assert set(ALL) - set(server.live.app._gate._methods) == NOT_SERVED


@pytest.mark.parametrize("state", STATES)
async def test_no_method_is_open_to_who_may_not_call_it(
    state: str, server: Asked, caplog: pytest.LogCaptureFixture
) -> None:
    """Each cell: code, reason, an unread body, a line of the audit log and a counter."""
    wanted, cells = STATES[state], 0
    for method in ALL:
        if METHODS[method] is OPEN:
            continue  # the next test
        server.live.app._gate._audit._lines.clear()
        caplog.clear()
        before = _count(server.live, *wanted.counted)
        with caplog.at_level(logging.INFO, "evald.audit"):
            refused = await opened(server.live, method, wanted.metadata(server, method))
        assert (refused.code, refused.reason) == (wanted.code, wanted.reason), method
        lines: list[Any] = [record for record in caplog.records if record.name == "evald.audit"]
        assert [(line.outcome, line.method, line.reason, line.why) for line in lines] == [
            ("refused", method, wanted.reason, wanted.why)
        ]
        assert _count(server.live, *wanted.counted) == before + 1, method
        if state == "wrong role":
            assert refused.info.metadata["roles"] == ", ".join(sorted(METHODS[method]))
        cells += 1
    assert cells == len(ALL) - 3


@pytest.mark.parametrize("state", STATES)
async def test_health_is_open_whatever_is_sent(state: str, server: Asked) -> None:
    for method in ALL:
        if METHODS[method] is not OPEN:
            continue
        metadata = () if state == "wrong role" else STATES[state].metadata(server, method)
        call: Any = server.live.channel.unary_stream(method)(b"", metadata=metadata, timeout=20)
        if method in NOT_SERVED:
            assert (await refusal(call.read())).code is grpc.StatusCode.UNIMPLEMENTED
        else:
            assert await call.read(), method
        call.cancel()


@pytest.mark.parametrize("kind", ["key", "token"])
async def test_every_method_is_open_to_each_role_of_its_row(kind: str, server: Asked) -> None:
    """The positive controls: a body that cannot be read is what they all complain about, if about anything."""
    keys = {role: make_key(server.keys, f"a-{role}", role, types=("*",)) for role in Role}
    server.live.app._gate._authenticator.keys.reload()  # type: ignore[union-attr]
    for method in ALL:
        for role in METHODS[method]:
            token = keys[role] if kind == "key" else server.issuer.token(roles=[role], evald_types="*")
            call: Any = server.live.channel.stream_stream(method)(
                iter([b"\xff"]), metadata=bearer(token), timeout=20
            )
            code = None
            try:
                await call.read()
            except grpc.aio.AioRpcError as error:
                code = error.code()
            finally:
                call.cancel()
            assert code not in (UNAUTHENTICATED, DENIED, grpc.StatusCode.UNIMPLEMENTED), method


# What belongs to who has created it. Everything else has no owner: request ids are looked up by principal
# (test_gate.py), and what is stored belongs to all who have the role.
OWNED = {REGISTRY + name for name in ("Attach", "Register", "KeepAlive", "RenewLease", "Deregister")}


def test_what_is_owned_is_among_the_methods_of_plugins() -> None:
    assert {method for method in ALL if Role.PLUGIN in METHODS[method]} - OWNED == {
        method for method in ALL if "reflection" in method
    }


async def test_what_is_another_principals_is_refused_and_logged(
    server: Asked, caplog: pytest.LogCaptureFixture
) -> None:
    """The eighth state. Whose it is stands in the body, so that is read."""
    mine, other = (
        bearer(server.issuer.token(sub=sub, roles="plugin", evald_types="*")) for sub in ("mine", "other")
    )
    async with listening("acme.word") as plugin:
        register = registry_pb2.RegisterRequest(
            instance_id="lease", plugin=plugin.info, target=plugin.address
        )
        hello = registry_pb2.WorkerHello(instance_id="dials", plugin=plugin_info("acme.x"), initial_credit=1)
        connect = registry_pb2.AttachRequest(hello=hello)
        session = await _begun(server.live, "Attach", connect, mine)
        data = await server.live.raw(REGISTRY + "Register", register.SerializeToString(), metadata=mine)
        lease_id = registry_pb2.RegisterResponse.FromString(data).lease_id
        messages: dict[str, Any] = {
            "Attach": connect,
            "Register": register,
            "KeepAlive": registry_pb2.KeepAliveRequest(lease_id=lease_id),
            "RenewLease": registry_pb2.RenewLeaseRequest(lease_id=lease_id),
            "Deregister": registry_pb2.DeregisterRequest(lease_id=lease_id),
        }
        assert {REGISTRY + name for name in messages} == OWNED
        before = _denied(server.live)
        for name, message in messages.items():
            caplog.clear()
            with caplog.at_level(logging.INFO, "evald.audit"):
                refused = await refusal(_begun(server.live, name, message, other))
            assert (refused.code, refused.reason) == (DENIED, "NOT_OWNER"), name
            assert "refused principal=jwt:other" in caplog.text
            assert "reason=NOT_OWNER" in caplog.text
        assert not session.done()
        session.cancel()
        assert _denied(server.live) == before + len(messages)
        leave = messages["Deregister"].SerializeToString()
        await server.live.raw(REGISTRY + "Deregister", leave, metadata=mine)
        await until(lambda: not server.live.app.remotes.instances.by_id)


def _denied(live: Live) -> float:
    """Calls that were refused, of all methods: after a whole matrix the metric has no room left for each by itself."""
    return sum(
        float(line.rpartition(" ")[2])
        for line in live.app.telemetry.exposition("")[0].decode().splitlines()
        if line.startswith("grpc_server_handled_total") and '"PermissionDenied"' in line
    )


async def _begun(live: Live, name: str, message: Any, metadata: Metadata) -> Any:
    call: Any = live.channel.stream_stream(REGISTRY + name)(metadata=metadata, timeout=30)
    await call.write(message.SerializeToString())
    await call.read()
    return call


def test_the_matrix_has_the_states_that_were_promised() -> None:
    assert len(STATES) + 1 == 8
    assert len(ALL) >= 19
