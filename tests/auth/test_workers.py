"""Workers over TLS, with a token and certificates from files that change while they run."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import grpc
import pytest

import evald
from evald import InvalidInput, Tls
from evald.worker import DiallingWorker, ListeningWorker
from evald_server.app import App
from evald_server.auth.principal import Role
from evald_server.cli import main
from evald_server.config import Settings

from ..ports import free_address
from ..rpc.live import until
from ..worker.evaluators import polite
from ..worker.registry import registry, take
from .keyring import make_key

TURN = [{"role": "user", "content": "Tea?"}, {"role": "assistant", "content": "Yes, please."}]
# A worker tries again after at most 3 s, after others that wait as long.
BACK_SECONDS = 30.0


@pytest.fixture(name="made", scope="module")
def _made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certs")
    for name in ("one", "two"):
        assert main(["certs", "dev", str(folder / name)]) == 0
    return folder


@pytest.fixture(name="certs")
def _certs(made: Path, tmp_path: Path) -> Path:
    """The files in use, which a test may replace."""
    return Path(shutil.copytree(made / "one", tmp_path / "certs"))


def client_files(certs: Path) -> Tls:
    return Tls(certs / "ca.pem", certs / "client.pem", certs / "client.key")


def environment(certs: Path, key: Path) -> dict[str, str]:
    return {
        "EVALD_CA_FILE": str(certs / "ca.pem"),
        "EVALD_CERT_FILE": str(certs / "client.pem"),
        "EVALD_KEY_FILE": str(certs / "client.key"),
        "EVALD_TOKEN_FILE": str(key),
    }


def listening_environment(certs: Path) -> dict[str, str]:
    return {
        "EVALD_TLS_CERT_FILE": str(certs / "server.pem"),
        "EVALD_TLS_KEY_FILE": str(certs / "server.key"),
        "EVALD_TLS_CLIENT_CA_FILE": str(certs / "ca.pem"),
    }


@asynccontextmanager
async def secured(certs: Path, keys: Path, address: str = "127.0.0.1:0", **more: Any) -> AsyncIterator[App]:
    """A server that wants certificates and keys, and dials with a certificate of its own."""
    dialling = {
        "ca_file": certs / "ca.pem",
        "cert_file": certs / "client.pem",
        "key_file": certs / "client.key",
    }
    app = App(
        Settings.model_validate(
            {
                "listen": address,
                "http": None,
                "keys_file": keys,
                "tls_cert_file": certs / "server.pem",
                "tls_key_file": certs / "server.key",
                "tls_client_ca_file": certs / "ca.pem",
                "tls_client_auth": "require",
                "remote_allowed": ["127.0.0.1/32"],
                "remote_tls": {"workers": dialling},
                **more,
            }
        )
    )
    await app.start()
    try:
        yield app
    finally:
        await app.stop(0)


def key_of(folder: Path, role: Role) -> Path:
    path = folder / f"{role}.key"
    path.write_text(make_key(folder / "keys.toml", f"the-{role}", role, types=("acme.*",)) + "\n")
    return path


async def evaluates(app: App, certs: Path, caller: Path) -> bool:
    async with evald.AsyncClient(app.address, tls=client_files(certs), token=caller) as client:
        return (await client.evaluate(TURN, ["acme.polite"])).passed


@pytest.mark.parametrize("way", ["dials", "registers", "is configured"])
async def test_the_environment_is_all_that_a_worker_needs(
    way: str, certs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listening ones require a certificate of the server that dials them."""
    plugin, caller = (key_of(tmp_path, role) for role in (Role.PLUGIN, Role.CALLER))
    for name, value in {**environment(certs, plugin), **listening_environment(certs)}.items():
        monkeypatch.setenv(name, value)
    configured = ListeningWorker(polite)
    async with configured:
        targets = [{"target": configured.address, "tls_profile": "workers"}] if way == "is configured" else []
        async with secured(certs, tmp_path / "keys.toml", remote_targets=targets) as app:
            worker: Any = nullcontext()
            if way == "dials":
                worker = DiallingWorker(polite, server=app.address)
            elif way == "registers":
                worker = ListeningWorker(polite, register=app.address, tls_profile="workers")
            async with worker:
                instances = app.remotes.instances.by_id
                await until(lambda: any(one.reachable for one in instances.values()))
                assert await evaluates(app, certs, caller)


async def test_a_worker_that_listens_with_tls_refuses_callers_without_a_certificate(
    certs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in listening_environment(certs).items():
        monkeypatch.setenv(name, value)
    async with ListeningWorker(polite) as worker:
        for tls, welcome in (
            (client_files(certs), True),
            (Tls(certs / "ca.pem"), False),
            (None, False),
        ):
            channel = (
                grpc.aio.secure_channel(worker.address, tls.channel_credentials())
                if tls
                else grpc.aio.insecure_channel(worker.address)
            )
            async with channel:
                describe: Any = channel.unary_unary("/evald.plugin.v1.EvaluatorPluginService/Describe")
                if welcome:
                    assert await describe(b"", timeout=10)
                else:
                    with pytest.raises(grpc.aio.AioRpcError) as refused:
                        await describe(b"", timeout=10)
                    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"EVALD_TLS_CERT_FILE": "/nowhere"}, "EVALD_TLS_CERT_FILE"),
        ({"EVALD_TLS_CERT_FILE": "server.pem"}, "EVALD_TLS_CERT_FILE and EVALD_TLS_KEY_FILE"),
        ({"EVALD_TLS_CLIENT_CA_FILE": "ca.pem"}, "EVALD_TLS_CERT_FILE and EVALD_TLS_KEY_FILE"),
    ],
)
def test_half_of_a_certificate_is_refused(
    given: dict[str, str], said: str, certs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in given.items():
        monkeypatch.setenv(name, str(certs / value))
    with pytest.raises(InvalidInput, match=said):
        ListeningWorker(polite)


@pytest.mark.parametrize("way", ["dials", "registers"])
async def test_a_worker_reads_its_certificates_again(
    way: str, certs: Path, made: Path, tmp_path: Path
) -> None:
    """The server gets certificates of another CA, and so does the worker: it comes back."""
    plugin, caller = (key_of(tmp_path, role) for role in (Role.PLUGIN, Role.CALLER))
    options: dict[str, Any] = {"tls": client_files(certs), "token": plugin}
    async with secured(certs, tmp_path / "keys.toml") as app:
        address = app.address
        worker: Any = (
            DiallingWorker(polite, server=address, **options)
            if way == "dials"
            else ListeningWorker(polite, register=address, **options)
        )
        await worker.__aenter__()
        await until(lambda: any(one.reachable for one in app.remotes.instances.by_id.values()))
    shutil.copytree(made / "two", certs, dirs_exist_ok=True)
    async with secured(certs, tmp_path / "keys.toml", address) as app:
        instances = app.remotes.instances.by_id
        await until(lambda: any(one.reachable for one in instances.values()), BACK_SECONDS)
        assert await evaluates(app, certs, caller)
        await worker.__aexit__(None, None, None)


@pytest.mark.parametrize("way", ["dials", "registers"])
async def test_a_worker_outlives_the_file_of_its_token(
    way: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    token = tmp_path / "token"
    token.write_text("canary-token")
    async with registry() as server:
        server.renew_ms = 50
        worker: Any = (
            DiallingWorker(polite, server=server.address, token=token)
            if way == "dials"
            else ListeningWorker(polite, register=server.address, token=token)
        )
        async with worker:
            if way == "dials":
                link = await server.link()
                token.unlink()
                await link.break_off()
            else:
                # Not before it has its lease: at its start, a file that is not there ends it.
                await take(server.renewed)
                token.unlink()
                await server.stop()
                while not server.renewed.empty():
                    server.renewed.get_nowait()
                await server.start(server.address)
            await until(lambda: "a file with the token" in caplog.text)
            token.write_text("another-token")
            async with asyncio.timeout(BACK_SECONDS):
                await (server.new_link.get() if way == "dials" else server.renewed.get())
    assert "canary" not in caplog.text


@pytest.mark.parametrize("way", ["dials", "registers"])
async def test_a_file_that_is_not_there_ends_a_worker_at_its_start(way: str, tmp_path: Path) -> None:
    async with registry() as server:
        options: dict[str, Any] = {"token": tmp_path / "none"}
        if way == "dials":
            async with DiallingWorker(polite, server=server.address, **options) as dialling:
                with pytest.raises(InvalidInput, match="a file with the token"):
                    await dialling.wait()
        else:
            async with ListeningWorker(polite, register=server.address, **options) as listening:
                with pytest.raises(InvalidInput, match="a file with the token"):
                    await listening.wait()
        assert server.registered.empty()
        assert not server.hellos


async def test_a_worker_serves_three_servers_and_a_fourth_that_starts_later(
    certs: Path, tmp_path: Path
) -> None:
    plugin, caller = (key_of(tmp_path, role) for role in (Role.PLUGIN, Role.CALLER))
    keys = tmp_path / "keys.toml"
    fourth = free_address()
    async with secured(certs, keys) as one, secured(certs, keys) as two, secured(certs, keys) as three:
        apps = [one, two, three]
        server = "ipv4:" + ",".join([*(app.address for app in apps), fourth])
        async with DiallingWorker(polite, server=server, tls=client_files(certs), token=plugin) as worker:
            for app in apps:
                await until(lambda app=app: app.remotes.instances.by_id)
                assert await evaluates(app, certs, caller)
            async with secured(certs, keys, fourth) as four:
                await until(lambda: four.remotes.instances.by_id, 35)
                assert await evaluates(four, certs, caller)
                assert len(worker.server_ids) == 4
