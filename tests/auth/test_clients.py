"""Clients, workers and commands that use TLS and tokens, as arguments say it, and as the environment does."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest

import evald
from evald import InvalidInput, Tls
from evald.connection import open_to
from evald.credentials import is_this_machine
from evald.worker import DiallingWorker, ListeningWorker
from evald_server.app import App
from evald_server.auth.principal import Role
from evald_server.cli import main
from evald_server.config import Settings

from ..rpc.live import until
from .keyring import guarded, make_key

TURN = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
SPECS: list[Any] = [{"type": "contains", "config": {"text": "hello"}}]
LOOPBACK = ["127.0.0.1/32"]


@evald.assertion(type="acme.polite")
def polite(ctx: evald.EvaluatorContext) -> bool:
    """The answer says hello."""
    return "hello" in (ctx.answer or "")


class Secured(NamedTuple):
    """A server with TLS that requires client certificates, and keys."""

    app: App
    certs: Path
    keys: dict[Role, Path]

    @property
    def tls(self) -> Tls:
        """What a client needs."""
        return Tls(self.certs / "ca.pem", self.certs / "client.pem", self.certs / "client.key")

    def environment(self, role: Role) -> dict[str, str]:
        """The same as variables."""
        return {
            "EVALD_SERVER": self.app.address,
            "EVALD_CA_FILE": str(self.certs / "ca.pem"),
            "EVALD_CERT_FILE": str(self.certs / "client.pem"),
            "EVALD_KEY_FILE": str(self.certs / "client.key"),
            "EVALD_TOKEN_FILE": str(self.keys[role]),
        }


@pytest.fixture(name="server", scope="module")
async def _server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    certs = folder / "certs"
    assert main(["certs", "dev", str(certs)]) == 0
    keys = {}
    for role in Role:
        keys[role] = folder / f"{role}.key"
        keys[role].write_text(make_key(folder / "keys.toml", f"the-{role}", role, types=("acme.*",)) + "\n")
    app = App(
        Settings.model_validate(
            {
                "listen": "127.0.0.1:0",
                "http": None,
                "web": None,
                "keys_file": folder / "keys.toml",
                "tls_cert_file": certs / "server.pem",
                "tls_key_file": certs / "server.key",
                "tls_client_ca_file": certs / "ca.pem",
                "tls_client_auth": "require",
                "remote_allowed": LOOPBACK,
            }
        )
    )
    await app.start()
    yield Secured(app, certs, keys)
    await app.stop(0)


async def test_a_token_is_a_text_a_file_or_a_function(server: Secured) -> None:
    path = server.keys[Role.CALLER]
    for token in (path, path.read_text().strip(), lambda: path.read_text().strip()):
        async with evald.AsyncClient(server.app.address, tls=server.tls, token=token) as client:
            assert (await client.evaluate(TURN, SPECS)).verdict is evald.Verdict.PASSED
    async with evald.AsyncClient(server.app.address, tls=server.tls) as client:
        with pytest.raises(evald.errors.Unauthenticated) as refused:
            await client.evaluate(TURN, SPECS)
        assert refused.value.reason == "CREDENTIALS_MISSING"
    async with evald.AsyncClient(server.app.address, tls=server.tls, token=server.keys[Role.ADMIN]) as client:
        with pytest.raises(evald.errors.PermissionDenied):
            await client.evaluate(TURN, SPECS)


async def test_a_file_of_a_token_is_read_again(server: Secured, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("wrong")
    async with evald.AsyncClient(server.app.address, tls=server.tls, token=path) as client:
        with pytest.raises(evald.errors.Unauthenticated):
            await client.evaluate(TURN, SPECS)
        path.write_text(server.keys[Role.CALLER].read_text())
        assert (await client.evaluate(TURN, SPECS)).verdict is evald.Verdict.PASSED
        path.unlink()
        with pytest.raises(InvalidInput, match="a file with the token"):
            await client.evaluate(TURN, SPECS)


async def test_the_environment_says_the_same(server: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in server.environment(Role.CALLER).items():
        monkeypatch.setenv(name, value)

    def blocking() -> evald.Verdict:
        with evald.Client() as client:
            return client.evaluate(TURN, SPECS).verdict

    assert await asyncio.to_thread(blocking) is evald.Verdict.PASSED


async def test_another_name_in_the_certificate_is_said(server: Secured, tmp_path: Path) -> None:
    token = server.keys[Role.CALLER]
    good, other = (replace(server.tls, server_name=name) for name in ("localhost", "other.example.org"))
    async with evald.AsyncClient(server.app.address, tls=good, token=token) as client:
        await client.evaluate(TURN, SPECS)
    async with evald.AsyncClient(server.app.address, tls=other, token=token, timeout=5) as client:
        with pytest.raises(evald.errors.EvaldError):
            await client.evaluate(TURN, SPECS)


@pytest.mark.parametrize("way", ["dials", "listens"])
async def test_workers_come_in_with_a_token(way: str, server: Secured) -> None:
    options: dict[str, Any] = {"tls": server.tls, "token": server.keys[Role.PLUGIN]}
    worker: Any = (
        DiallingWorker(polite, server=server.app.address, **options)
        if way == "dials"
        else ListeningWorker(polite, register=server.app.address, **options)
    )
    caller = evald.AsyncClient(server.app.address, tls=server.tls, token=server.keys[Role.CALLER])
    async with worker, caller:
        if way == "dials":
            await worker.connected()
        await until(lambda: any(one.reachable for one in server.app.remotes.instances.by_id.values()))
        assert (await caller.evaluate(TURN, ["acme.polite"])).verdict is evald.Verdict.PASSED
    await until(lambda: not server.app.remotes.instances.by_id)


COMMANDS: dict[str, tuple[Role, list[str]]] = {
    "evaluate": (Role.CALLER, ["evaluate", "TURN", "-e", "response-length", "--json"]),
    "types": (Role.VIEWER, ["types", "--json"]),
    "remotes": (Role.VIEWER, ["remotes", "--json"]),
    "runs": (Role.VIEWER, ["runs", "list"]),
    "scenarios": (Role.ADMIN, ["scenarios", "list"]),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("how", ["options", "environment"])
async def test_commands_reach_a_secured_server(
    command: str, how: str, server: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    role, arguments = COMMANDS[command]
    turn = tmp_path / "turn.json"
    turn.write_text(json.dumps({"messages": TURN}))
    words = [str(turn) if word == "TURN" else word for word in arguments]
    if how == "options":
        certs = server.certs
        words += ["--server", server.app.address, "--ca", str(certs / "ca.pem"), "--tls"]
        words += ["--cert", str(certs / "client.pem"), "--key", str(certs / "client.key")]
        words += ["--token-file", str(server.keys[role])]
    else:
        for name, value in server.environment(role).items():
            monkeypatch.setenv(name, value)
    assert await asyncio.to_thread(main, words) == 0


def test_a_token_is_never_sent_in_plaintext_to_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for server in (
        "evald.example.org:50051",
        "10.0.0.7:50051",
        "dns:///evald:50051",
        "ipv4:127.0.0.1:1,10.0.0.7:1",
    ):
        with pytest.raises(InvalidInput, match="without TLS") as refused:
            evald.Client(server, token="canary-token")
        assert "canary" not in str(refused.value)
        evald.Client(server, token="canary-token", insecure=True)
        evald.Client(server, token="canary-token", tls=True)
        evald.Client(server)
        with pytest.raises(InvalidInput, match="without TLS"):
            DiallingWorker(polite, server=server, token="canary-token")
        with pytest.raises(InvalidInput, match="without TLS"):
            ListeningWorker(polite, register=server, token="canary-token")
    monkeypatch.setenv("EVALD_TOKEN", "canary-token")
    with pytest.raises(InvalidInput, match="without TLS"):
        evald.AsyncClient("evald.example.org:50051")
    evald.AsyncClient("127.0.0.1:50051")


@pytest.mark.parametrize(
    ("server", "ours"),
    [
        ("127.0.0.1:1", True),
        ("127.8.8.8:1", True),
        ("localhost:1", True),
        ("[::1]:1", True),
        ("unix:/run/evald.sock", True),
        ("dns:///localhost:1", True),
        ("ipv4:127.0.0.1:1", True),
        ("ipv6:[::1]:1", True),
        ("localhost.example.org:1", False),
        ("127.0.0.1.example.org:1", False),
        ("dns:localhost:1", True),
        ("dns://8.8.8.8/evald:1", False),
        ("dns://8.8.8.8/localhost:1", False),
        ("ipv4:127.0.0.1:1,8.8.8.8:1", False),
        ("0.0.0.0:1", False),
        ("xds:///localhost:1", False),
        ("evald", False),
    ],
)
def test_only_addresses_of_this_machine_count_as_its_own(server: str, ours: bool) -> None:
    assert is_this_machine(server) is ours


async def test_what_stays_on_this_machine_goes_through_no_proxy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    key = make_key(tmp_path / "keys.toml", "a", Role.CALLER, Role.PLUGIN, Role.VIEWER, types=("acme.*",))
    asked: list[bytes] = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readline())
        writer.close()

    listener = await asyncio.start_server(proxy, "127.0.0.1", 0)
    for name in ("grpc_proxy", "https_proxy", "http_proxy"):
        monkeypatch.setenv(name, "http://{}:{}".format(*listener.sockets[0].getsockname()))
    for name in ("no_grpc_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("EVALD_TOKEN", key)
    async with listener, guarded(tmp_path / "keys.toml") as live:
        address = live.app.address
        async with evald.AsyncClient(address, timeout=5) as client:
            assert (await client.evaluate(TURN, SPECS)).passed
        async with DiallingWorker(polite, server=address) as worker, asyncio.timeout(5):
            await worker.connected()
        assert await asyncio.to_thread(main, ["types", "--server", address]) == 0
    assert "contains" in capsys.readouterr().out
    assert not asked


@pytest.mark.parametrize(
    ("environment", "arguments", "said"),
    [
        ({"EVALD_TLS": "maybe"}, {}, "EVALD_TLS"),
        ({"EVALD_CERT_FILE": "a"}, {}, "one of cert and key"),
        ({"EVALD_CA_FILE": "/nowhere"}, {}, "tls.ca"),
        ({"EVALD_TOKEN": "a", "EVALD_TOKEN_FILE": "b"}, {}, "one of them"),
        pytest.param(
            {},
            {"tls": True, "credentials": grpc.local_channel_credentials()},
            "both tls and credentials",
            id="tls and credentials",
        ),
    ],
    ids=str,
)
def test_what_contradicts_itself_is_refused_before_anything_is_sent(
    environment: dict[str, str], arguments: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InvalidInput, match=said):
        evald.Client("127.0.0.1:1", **arguments)


def test_a_token_that_cannot_be_sent_is_refused_without_showing_it() -> None:
    in_wrong_place = Path("evald_abcdefghijkl_canary"), Path("eyJcanary.canary.canary")
    for token in ("canary token", "canary\ntoken", "canäry", lambda: "", *in_wrong_place):
        _, access = open_to("127.0.0.1:1", token=token)
        with pytest.raises(InvalidInput) as refused:
            access.headers()
        assert "can" not in str(refused.value).replace("cannot", "")
