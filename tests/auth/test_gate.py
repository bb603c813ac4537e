"""Every method and every state of credentials, over a real channel. The methods are those of the descriptors."""

import asyncio
import errno
import hashlib
import json
import logging
import os
import threading
import zlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
from grpc_health.v1 import health_pb2

from evald_server.auth import files
from evald_server.auth.keys import KeyFile, add_key, read_keys, revoke_key
from evald_server.auth.principal import Role
from evald_server.auth.roles import METHODS, OPEN
from evald_server.input_files import read_regular

from ..rpc.live import CONTAINS, EVALUATION, Live, refusal, request, until
from .keyring import Metadata, bearer, guarded, make_key
from .methods import EVERY_METHOD, REFLECTION_V1, opened

UNAUTHENTICATED, DENIED = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED


class Guarded(NamedTuple):
    """A server, its file of keys, and a key for each role."""

    live: Live
    path: Path
    keys: dict[Role, str]

    @property
    def served(self) -> list[str]:
        """The methods that the server has."""
        return sorted(self.live.app._gate._methods)


@pytest.fixture(name="server", scope="module")
async def _server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Guarded]:
    path = tmp_path_factory.mktemp("auth") / "keys.toml"
    keys = {role: make_key(path, f"the-{role}", role, types=("acme.*",)) for role in Role}
    make_key(path, "late", Role.CALLER, expires=-1)
    async with guarded(path) as live:
        yield Guarded(live, path, keys)


def test_every_method_has_a_row_in_the_table_of_roles_and_every_row_a_method() -> None:
    assert sorted(METHODS) == sorted([*EVERY_METHOD, REFLECTION_V1])


def test_what_is_served_has_a_row(server: Guarded) -> None:
    assert set(server.served) <= METHODS.keys()
    assert len(server.served) > 40


def test_only_health_is_open() -> None:
    assert {method.split("/")[1] for method, roles in METHODS.items() if roles is OPEN} == {
        "grpc.health.v1.Health"
    }


def test_an_admin_may_do_everything_but_evaluate_offer_and_send_traces() -> None:
    evaluating = {"StartRun", "StartRuns", "RetryRun", "ResumeRun", "RunSuite"}
    closed = {method for method, roles in METHODS.items() if Role.ADMIN not in roles and roles is not OPEN}
    assert {method.split("/")[2] for method in closed if "EvaluationService" not in method} == evaluating | {
        "Attach",
        "Register",
        "KeepAlive",
        "RenewLease",
    }


def test_a_viewer_changes_nothing() -> None:
    verbs = ("Get", "List", "Watch", "Compare", "ServerReflectionInfo")
    viewed = [method.split("/")[2] for method, roles in METHODS.items() if Role.VIEWER in roles]
    assert all(method.startswith(verbs) for method in viewed)


def _typo(key: str) -> str:
    return key[:30] + ("a" if key[30] != "a" else "b") + key[31:]


def _no_key(_: Guarded) -> Metadata:
    return ()


def _forged(server: Guarded) -> Metadata:
    """The id of a key that there is, with another secret and its right checksum."""
    body = server.keys[Role.ADMIN][:19] + "A" * 43
    return bearer(f"{body}{zlib.crc32(body.encode()):08x}")


STATES: dict[str, tuple[Callable[[Guarded], Metadata], str, str]] = {
    "none": (_no_key, "CREDENTIALS_MISSING", "no credentials"),
    "empty": (lambda _: (("authorization", ""),), "CREDENTIALS_MISSING", "no credentials"),
    "expired": (lambda server: bearer(_late(server)), "CREDENTIALS_EXPIRED", "expired"),
    "revoked": (lambda server: bearer(_revoked(server)), "CREDENTIALS_INVALID", "revoked"),
    "forged": (_forged, "CREDENTIALS_INVALID", "unknown or forged"),
    "typo": (lambda server: bearer(_typo(server.keys[Role.ADMIN])), "CREDENTIALS_INVALID", "malformed"),
    "cut off": (lambda server: bearer(server.keys[Role.ADMIN][:-1]), "CREDENTIALS_INVALID", "malformed"),
    "twice": (
        lambda server: bearer(server.keys[Role.ADMIN]) + bearer(server.keys[Role.ADMIN]),
        "CREDENTIALS_INVALID",
        "more than one authorization header",
    ),
    "another scheme": (
        lambda server: (("authorization", f"Basic {server.keys[Role.ADMIN]}"),),
        "CREDENTIALS_INVALID",
        "not a bearer token",
    ),
    "no key": (lambda _: bearer("eyJhbGciOiJub25lIn0.e30."), "CREDENTIALS_INVALID", "not an API key"),
}


def _late(server: Guarded) -> str:
    return make_and_load(server, "too-late", expires=-5)


def _revoked(server: Guarded) -> str:
    key = make_key(server.path, "gone", Role.ADMIN)
    revoke_key(server.path, key[6:18])
    server.live.app._gate._authenticator.keys.reload()  # type: ignore[union-attr]
    return key


def make_and_load(server: Guarded, principal: str, *roles: Role, expires: float = 60) -> str:
    """A key that the server knows at once."""
    key = make_key(server.path, principal, *(roles or (Role.ADMIN,)), expires=expires)
    server.live.app._gate._authenticator.keys.reload()  # type: ignore[union-attr]
    return key


@pytest.mark.parametrize("state", STATES)
async def test_credentials_that_do_not_count_open_no_method_and_no_body_is_read(
    state: str, server: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    make, reason, why = STATES[state]
    metadata = make(server)
    for method in [*server.served, "/evald.v1.EvaluationService/NoSuchMethod", "/x/y"]:
        if METHODS.get(method) is OPEN:
            continue
        server.live.app._gate._audit._lines.clear()
        caplog.clear()
        with caplog.at_level(logging.INFO, "evald.audit"):
            refused = await opened(server.live, method, metadata)
        assert (refused.code, refused.reason) == (UNAUTHENTICATED, reason), method
        [line] = [record for record in caplog.records if record.name == "evald.audit"]
        assert line.outcome == "refused"  # type: ignore[attr-defined]
        assert (line.method, line.reason, line.why) == (method, reason, why)  # type: ignore[attr-defined]
        assert line.peer.startswith("ipv4:127.0.0.1:")  # type: ignore[attr-defined]


@pytest.mark.parametrize("role", Role)
async def test_a_role_opens_the_methods_of_its_row_and_no_other(role: Role, server: Guarded) -> None:
    metadata = bearer(server.keys[role])
    for method in server.served:
        allowed = METHODS[method]
        if allowed is not OPEN and role not in allowed:
            refused = await opened(server.live, method, metadata)
            assert (refused.code, refused.reason) == (DENIED, "ROLE_MISSING"), method
            continue
        call: Any = server.live.channel.stream_stream(method)(iter([b"\xff"]), metadata=metadata, timeout=20)
        code = None
        try:
            async for _ in call:
                break
        except grpc.aio.AioRpcError as error:
            code = error.code()
        finally:
            call.cancel()
        assert code not in (UNAUTHENTICATED, DENIED), method


async def test_who_lacks_a_role_is_told_which_ones_there_are(server: Guarded) -> None:
    method = f"{EVALUATION}EvaluateUnary"
    refused = await opened(server.live, method, bearer(server.keys[Role.ADMIN]))
    assert refused.info.metadata == {"method": method, "roles": "caller"}
    assert "the-admin has the role admin" in refused.message


async def test_unknown_methods_are_told_to_those_who_are_known(server: Guarded) -> None:
    refused = await opened(server.live, "/x/y", bearer(server.keys[Role.VIEWER]))
    assert (refused.code, refused.reason) == (grpc.StatusCode.UNIMPLEMENTED, "UNKNOWN_METHOD")


async def test_a_scheme_is_the_same_in_any_case(server: Guarded) -> None:
    for scheme in ("bearer", "BEARER"):
        metadata = (("authorization", f"{scheme} {server.keys[Role.CALLER]}"),)
        assert (await server.live.unary(request(CONTAINS), metadata=metadata)).summary.success


async def test_probes_need_no_key(server: Guarded) -> None:
    check = health_pb2.HealthCheckRequest().SerializeToString()
    answer = await server.live.raw("/grpc.health.v1.Health/Check", check)
    assert health_pb2.HealthCheckResponse.FromString(answer).status == health_pb2.HealthCheckResponse.SERVING


async def test_a_key_that_counts_evaluates_and_every_check_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    key = make_key(path, "ci", Role.CALLER)
    async with guarded(path) as live:
        assert (await live.unary(request(CONTAINS), metadata=bearer(key))).summary.success
        await refusal(live.unary(request(CONTAINS)))
        await refusal(live.unary(request(CONTAINS), metadata=bearer(key[:-1])))
        await refusal(live.raw("/evald.v1.PersonaService/CreatePersona", b"", metadata=bearer(key)))
        text = live.app.telemetry.exposition("")[0].decode()
        counted = {line for line in text.splitlines() if line.startswith("evald_auth_total")}
        assert counted == {
            'evald_auth_total{kind="key",outcome="ok"} 1.0',
            'evald_auth_total{kind="none",outcome="missing"} 1.0',
            'evald_auth_total{kind="key",outcome="invalid"} 1.0',
            'evald_auth_total{kind="key",outcome="role"} 1.0',
        }
        assert 'grpc_code="Unauthenticated"' in text
        assert "NoSuch" not in text


async def test_callers_without_credentials_have_the_roles_that_the_operator_gives_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys.toml"
    key = make_key(path, "ci", Role.VIEWER)
    async with guarded(path, auth_anonymous_roles=["caller"]) as live:
        assert "callers without credentials have roles (auth_anonymous_roles): caller" in caplog.text
        session: Any = live.channel.stream_stream(f"{EVALUATION}EvaluateSession")()
        await session.wait_for_connection()
        await until(lambda: len(live.app._gate._streams) == 1)
        for _ in range(2):
            assert (await live.unary(request(CONTAINS))).summary.success
        refused = await refusal(live.raw("/evald.v1.PersonaService/CreatePersona", b""))
        assert (refused.code, refused.reason) == (grpc.StatusCode.PERMISSION_DENIED, "ROLE_MISSING")
        for credentials in (key[:-1], _typo(key)):
            refused = await refusal(live.unary(request(CONTAINS), metadata=bearer(credentials)))
            assert refused.reason == "CREDENTIALS_INVALID"
        refused = await refusal(live.unary(request(CONTAINS), metadata=bearer(key)))
        assert refused.reason == "ROLE_MISSING", "who has credentials has their roles"
        make_key(path, "another", Role.CALLER)
        await until(lambda: "another" in str(live.app._gate._authenticator.keys.content))  # type: ignore[union-attr]
        assert not session.done(), "open streams outlive a reload"
        session.cancel()
        text = live.app.telemetry.exposition("")[0].decode()
        assert 'evald_auth_total{kind="none",outcome="ok"} 3.0' in text
        assert 'evald_auth_total{kind="none",outcome="role"} 1.0' in text


async def test_a_revoked_key_is_refused_and_what_it_has_opened_ends(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    revoked, kept = make_key(path, "a", Role.CALLER), make_key(path, "b", Role.CALLER)
    method = f"{EVALUATION}EvaluateSession"
    watching = "/evald.v1.CatalogService/WatchEvaluatorTypes"
    reflecting = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
    async with guarded(path) as live:
        ending: list[Any] = []
        for name in (method, watching, reflecting):
            call: Any = live.channel.stream_stream(name)(metadata=bearer(revoked))
            await call.wait_for_connection()
            if name == watching:
                await call.write(b"")
                await call.read()
            ending.append(call)
        other: Any = live.channel.stream_stream(method)(metadata=bearer(kept))
        await other.wait_for_connection()
        await until(lambda: len(live.app._gate._streams) == 4)
        revoke_key(path, revoked[6:18])
        async with asyncio.timeout(10):
            for call in ending:
                ended = await refusal(_to_the_end(call))
                assert (ended.code, ended.reason) == (UNAUTHENTICATED, "CREDENTIALS_INVALID")
        assert (await refusal(live.unary(request(CONTAINS), metadata=bearer(revoked)))).reason == (
            "CREDENTIALS_INVALID"
        )
        assert (await live.unary(request(CONTAINS), metadata=bearer(kept))).summary.success
        assert not other.done(), "another principal's stream goes on"
        other.cancel()


async def _to_the_end(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


BROKEN_FILES: dict[Callable[[Path], object], str] = {
    lambda _: None: "there is no such file",
    Path.mkdir: "Is a directory",
    os.mkfifo: "is not a regular file",
    lambda path: path.symlink_to("/dev/zero"): "run chmod 600 on it",
}


async def test_a_file_of_keys_that_breaks_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys.toml"
    key = make_key(path, "ci", Role.CALLER)
    async with guarded(path) as live:
        path.write_text("[keys.x\n")
        await until(lambda: "the last valid content of the file stays in use" in caplog.text)
        assert (await live.unary(request(CONTAINS), metadata=bearer(key))).summary.success
        for broken, said in BROKEN_FILES.items():
            path.unlink(missing_ok=True)
            broken(path)
            await until(lambda said=said: said in caplog.text)
            assert (await live.unary(request(CONTAINS), metadata=bearer(key))).summary.success
            path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
        await refused_when_revoked(live, path, key)


async def test_a_file_of_keys_that_could_not_be_read_for_a_while_is_read_without_another_change(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "keys.toml"
    key, kept = make_key(path, "ci", Role.CALLER), make_key(path, "other", Role.CALLER)
    tried = []

    def fail(*arguments: Any) -> bytes:
        if threading.current_thread() is threading.main_thread():
            return read_regular(*arguments)
        tried.append(1)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async with guarded(path) as live:
        with monkeypatch.context() as broken:
            broken.setattr(files, "read_regular", fail)
            revoke_key(path, key[6:18])
            await until(lambda: len(tried) > 2)
        await until_refused(live, key)
        assert caplog.text.count("Too many open files; the last valid content of the file stays in use") == 1
        assert (await live.unary(request(CONTAINS), metadata=bearer(kept))).summary.success


async def test_an_unexpected_fault_of_reading_keys_is_logged_and_they_are_read_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "keys.toml"
    key = make_key(path, "ci", Role.CALLER)
    async with guarded(path) as live:
        with monkeypatch.context() as broken:
            broken.setattr(KeyFile, "poll", lambda _: 1 / 0)
            await until(lambda: "a background task failed, and starts again" in caplog.text)
        await refused_when_revoked(live, path, key)


async def refused_when_revoked(live: Live, path: Path, key: str) -> None:
    """The file of keys is read again."""
    path.unlink(missing_ok=True)
    make_key(path, "another", Role.CALLER)
    await until_refused(live, key)


async def until_refused(live: Live, key: str) -> None:
    """Return when a key is refused."""

    async def is_refused() -> bool:
        try:
            await live.unary(request(CONTAINS), metadata=bearer(key))
        except grpc.aio.AioRpcError as error:
            return error.code() is UNAUTHENTICATED
        return False

    await until(is_refused, 30)


async def test_request_ids_belong_to_their_principal(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    one, two = make_key(path, "one", Role.CALLER), make_key(path, "two", Role.CALLER)
    again = make_key(path, "one", Role.CALLER)
    async with guarded(path) as live:
        same = request(CONTAINS, request_id="same")
        first = await live.unary(same, metadata=bearer(one))
        assert await live.unary(same, metadata=bearer(again)) == first, "another key of the same principal"
        other = request(CONTAINS, request_id="same", answer="hello too")
        assert (await refusal(live.unary(other, metadata=bearer(one)))).reason == "REQUEST_ID_REUSED"
        assert (await live.unary(other, metadata=bearer(two))).summary.success


async def test_refusals_of_one_address_are_logged_ten_times_a_second(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys.toml"
    make_key(path, "ci", Role.CALLER)
    async with guarded(path) as live:
        live.app._gate._audit._clock = lambda: 7.5
        with caplog.at_level(logging.INFO, "evald.audit"):
            for _ in range(30):
                await refusal(live.unary(request(CONTAINS)))
            live.app._gate._audit._clock = lambda: 8.5
            await refusal(live.unary(request(CONTAINS)))
    lines = [record for record in caplog.records if record.name == "evald.audit"]
    assert len(lines) == 11
    assert lines[-1].left_out == 20  # type: ignore[attr-defined]


async def test_who_was_added_and_revoked_is_in_the_audit_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys.toml"
    ci = make_key(path, "ci", Role.CALLER)[6:18]
    expected = []

    def told() -> list[str]:
        return [record.message for record in caplog.records if record.message.startswith("key ")]

    async def is_told(outcome: str, principal: str, key: str) -> None:
        expected.append(f"key {outcome} principal={principal} key={key}")
        await until(lambda: told() == expected)

    with caplog.at_level(logging.INFO, "evald.audit"):
        async with guarded(path):
            late = make_key(path, "late-comer", Role.VIEWER)[6:18]
            await is_told("added", "late-comer", late)
            revoke_key(path, ci)
            await is_told("revoked", "ci", ci)
            keys = read_keys(path)
            add_key(path, keys[late].model_copy(update={"roles": (Role.ADMIN,)}))
            await is_told("changed", "late-comer", late)
            path.unlink()
            add_key(path, keys[ci].model_copy(update={"note": "kept"}))
            expected.append(f"key changed principal=ci key={ci}")
            expected.append(f"key revoked principal=late-comer key={late}")
            await until(lambda: sorted(told()) == sorted(expected))


@pytest.mark.parametrize("audit_calls", [False, True])
async def test_every_call_is_in_the_audit_log_where_the_operator_wants_that(
    audit_calls: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys.toml"
    key = make_key(path, "ci", Role.CALLER)
    async with guarded(path, audit_calls=audit_calls) as live:
        with caplog.at_level(logging.INFO, "evald.audit"):
            for _ in range(2):
                await live.unary(request(CONTAINS), metadata=bearer(key))
    lines: list[Any] = [record for record in caplog.records if record.name == "evald.audit"]
    called = [(line.principal, line.key_id, line.method) for line in lines if line.outcome == "called"]
    assert called == [("ci", key[6:18], f"{EVALUATION}EvaluateUnary")] * (2 if audit_calls else 0)


async def test_a_key_is_in_no_log_metric_or_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "keys.toml"
    good = make_key(path, "ci", Role.CALLER)
    late = make_key(path, "late", Role.CALLER, expires=-5)
    seen: list[str] = []
    with caplog.at_level(logging.DEBUG):
        async with guarded(path, log_calls=True) as live:
            tokens = [good, late, _typo(good), good[:-1], "canary-of-another-kind", f"{good} {good}"]
            for token in tokens:
                for method in (
                    f"{EVALUATION}EvaluateUnary",
                    "/evald.v1.PersonaService/CreatePersona",
                    "/x/y",
                ):
                    try:
                        await live.raw(method, b"\xff", metadata=bearer(token))
                    except grpc.aio.AioRpcError as error:
                        seen += [error.details() or "", repr(error.trailing_metadata())]
            path.write_text(path.read_text() + f'\n[keys.{good[6:18]}x]\nnote = "{good}"\n')
            await until(lambda: "the last valid content" in caplog.text)
            path.write_text(f'"{good}" = \n')
            await until(lambda: caplog.text.count("the last valid content") == 2)
            seen.append(live.app.telemetry.exposition("")[0].decode())
    seen += [caplog.text, *(json.dumps(vars(record), default=str) for record in caplog.records)]
    digests = [hashlib.sha256(key.encode()).hexdigest() for key in (good, late)]
    for secret in (good[19:62], late[19:62], "canary-of-another-kind", *digests):
        assert not [text for text in seen if secret in text], secret
