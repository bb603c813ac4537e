"""TLS on both ports: who gets in, what is refused, and certificates that change while the server listens."""

import asyncio
import http.client
import logging
import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

import evald
from evald_server.app import App, StartError
from evald_server.auth.principal import Role
from evald_server.certificates import CertificateFiles, read_certificates
from evald_server.cli import main
from evald_server.config import Settings
from evald_server.files import FileProblem, WatchedFiles

from ..rpc.live import CONTAINS, EVALUATION, Live, refusal, request, until
from .keyring import bearer, make_key

HOST = "127.0.0.1"


@pytest.fixture(name="certs", scope="module")
def _certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certs")
    for name in ("one", "two"):
        assert main(["certs", "dev", str(folder / name)]) == 0
    return folder


def _files(folder: Path, **more: Any) -> dict[str, Any]:
    return {
        "tls_cert_file": folder / "server.pem",
        "tls_key_file": folder / "server.key",
        "tls_reload_seconds": 0.05,
        **more,
    }


@asynccontextmanager
async def _serving(**settings: Any) -> AsyncIterator[App]:
    app = App(Settings.model_validate({"listen": f"{HOST}:0", "http": None, "web": None, **settings}))
    await app.start()
    try:
        yield app
    finally:
        await app.stop(0)


def _credentials(folder: Path, *, client: Path | None = None) -> grpc.ChannelCredentials:
    pair = (None, None) if client is None else ((client / "client.key"), (client / "client.pem"))
    key, chain = (None if one is None else one.read_bytes() for one in pair)
    return grpc.ssl_channel_credentials((folder / "ca.pem").read_bytes(), key, chain)


async def _succeeds(app: App, credentials: grpc.ChannelCredentials | None, **call: Any) -> bool:
    channel = (
        grpc.aio.insecure_channel(app.address)
        if credentials is None
        else grpc.aio.secure_channel(app.address, credentials)
    )
    async with channel:
        try:
            response = await Live(app, channel).unary(request(CONTAINS), timeout=10, **call)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
            return False
        return response.summary.success


async def test_a_caller_needs_tls_and_the_right_ca(certs: Path) -> None:
    async with _serving(**_files(certs / "one")) as app:
        assert await _succeeds(app, _credentials(certs / "one"))
        assert not await _succeeds(app, _credentials(certs / "two"))
        assert not await _succeeds(app, None)


@pytest.mark.parametrize(
    ("served", "dialled", "says"),
    [
        pytest.param(None, "one", "it does not use TLS", id="TLS to plaintext"),
        pytest.param("one", None, "it may require TLS", id="plaintext to TLS"),
        pytest.param("one", "two", "signed by a CA that is not trusted here", id="other CA"),
    ],
)
async def test_callers_and_workers_read_why_there_is_no_connection(
    certs: Path, caplog: pytest.LogCaptureFixture, served: str | None, dialled: str | None, says: str
) -> None:
    checked = evald.assertion("acme.checked")(lambda _ctx: True)
    tls = False if dialled is None else evald.Tls(certs / dialled / "ca.pem")
    async with _serving(**_files(certs / served) if served else {}) as app:
        async with evald.AsyncClient(app.address, tls=tls) as client:
            with pytest.raises(evald.EvaldError, match=says):
                await client.evaluate(evald.Turn(response="Hi"), ["is-json"])
        async with evald.DiallingWorker(checked, server=app.address, tls=tls):
            await until(lambda: says in caplog.text)
        async with evald.ListeningWorker(checked, register=app.address, tls=tls):
            await until(lambda: caplog.text.count(says) > 1 and "registration with" in caplog.text)


async def test_a_port_that_requires_client_certificates_takes_those_of_its_ca(certs: Path) -> None:
    one, two = certs / "one", certs / "two"
    required = {"tls_client_ca_file": one / "ca.pem", "tls_client_auth": "require"}
    async with _serving(**_files(one, **required)) as app:
        assert await _succeeds(app, _credentials(one, client=one))
        assert not await _succeeds(app, _credentials(one))
        assert not await _succeeds(app, _credentials(one, client=two))


async def test_keys_are_asked_for_under_tls(certs: Path, tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    key = make_key(path, "ci", Role.CALLER)
    async with _serving(keys_file=path, **_files(certs / "one")) as app:
        assert await _succeeds(app, _credentials(certs / "one"), metadata=bearer(key))
        async with grpc.aio.secure_channel(app.address, _credentials(certs / "one")) as channel:
            refused = await refusal(Live(app, channel).unary(request(CONTAINS)))
        assert refused.reason == "CREDENTIALS_MISSING"


def _context(**changes: Any) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2", "http/1.1"])
    if "ciphers" in changes:
        context.set_ciphers(changes["ciphers"])
    context.minimum_version = changes.get("version", ssl.TLSVersion.MINIMUM_SUPPORTED)
    context.maximum_version = changes.get("version", ssl.TLSVersion.MAXIMUM_SUPPORTED)
    return context


def _certificate(address: str, context: ssl.SSLContext) -> bytes | None:
    host, port = address.rsplit(":", 1)
    with (
        socket.create_connection((host, int(port)), timeout=10) as plain,
        context.wrap_socket(plain) as connection,
    ):
        return connection.getpeercert(binary_form=True)


def _der(path: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert(path.read_text())


@pytest.mark.parametrize("port", ["gRPC", "HTTP"])
async def test_old_protocols_and_ciphers_are_refused_on_all_ports(port: str, certs: Path) -> None:
    async with _serving(**_files(certs / "one"), http=f"{HOST}:0") as app:
        address = app.address if port == "gRPC" else app.http_address
        assert address
        for context in (
            _context(version=ssl.TLSVersion.TLSv1_2),
            _context(version=ssl.TLSVersion.TLSv1_3),
        ):
            assert await asyncio.to_thread(_certificate, address, context)
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            old = _context(version=ssl.TLSVersion.TLSv1_1, ciphers="DEFAULT:@SECLEVEL=0")
        cbc = _context(version=ssl.TLSVersion.TLSv1_2, ciphers="ECDHE-ECDSA-AES128-SHA256")
        for context in (old, cbc):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await asyncio.to_thread(_certificate, address, context)


def _swap(target: Path, source: Path, *names: str) -> None:
    for name in names:
        fresh = target / f"{name}.fresh"
        shutil.copyfile(source / name, fresh)
        fresh.replace(target / name)


async def test_a_new_certificate_is_served_to_new_connections_and_no_call_fails(
    certs: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "certs"
    shutil.copytree(certs / "one", folder)
    async with _serving(**_files(folder), http=f"{HOST}:0") as app:
        assert app.http_address
        async with grpc.aio.secure_channel(app.address, _credentials(certs / "one")) as channel:
            live, swapped, calls = Live(app, channel), asyncio.Event(), 0

            async def load() -> None:
                nonlocal calls
                while not swapped.is_set():
                    assert (await live.unary(request(CONTAINS))).summary.success
                    calls += 1

            loading = asyncio.create_task(load())
            _swap(folder, certs / "two", "server.pem", "server.key")
            for address in (app.address, app.http_address):
                for _ in range(200):
                    served = await asyncio.to_thread(_certificate, address, _context())
                    if served == _der(certs / "two" / "server.pem"):
                        break
                else:
                    raise AssertionError(f"{address} still serves the old certificate")
            swapped.set()
            await loading
            assert calls
            assert (await live.unary(request(CONTAINS))).summary.success, "the open connection goes on"
        assert await _succeeds(app, _credentials(certs / "two"))
        assert not await _succeeds(app, _credentials(certs / "one"))
        text = app.telemetry.exposition("")[0].decode()
        assert 'evald_tls_reloads_total{outcome="ok"}' in text
        assert 'evald_tls_certificate_expiry_seconds{file="tls_cert_file"}' in text


def _sign_again(folder: Path, start: str, end: str) -> None:
    """Sign the server's key again, for another time."""
    openssl = ["openssl", "ca", "-batch", "-config", "ca.cnf", "-startdate", start, "-enddate", end]
    (folder / "ca.cnf").write_text(
        "[ca]\ndefault_ca=d\n[d]\ndatabase=index\nnew_certs_dir=.\nserial=serial\ncertificate=ca.pem\n"
        "private_key=ca.key\ndefault_md=sha256\npolicy=p\n[p]\ncommonName=supplied\n"
    )
    (folder / "index").touch()
    (folder / "serial").write_text("01\n")
    for command in (
        ["openssl", "req", "-new", "-key", "server.key", "-out", "old.csr", "-subj", "/CN=old"],
        [*openssl, "-in", "old.csr", "-out", "server.pem", "-notext"],
    ):
        subprocess.run(command, cwd=folder, check=True, capture_output=True)


async def test_comments_in_certificates_may_have_any_characters(certs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "certs"
    shutil.copytree(certs / "one", folder)
    for name in ("server.pem", "ca.pem"):
        (folder / name).write_text("# Autorité de Köln\n" + (folder / name).read_text())
    settings = _files(folder) | {"tls_client_ca_file": folder / "ca.pem", "tls_client_auth": "require"}
    async with _serving(**settings) as app:
        assert await _succeeds(app, _credentials(folder, client=folder))


def test_a_pair_that_changes_while_it_is_read_is_not_used(
    certs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The certificate is already the new one, and the key follows before OpenSSL reads both for itself."""
    folder = tmp_path / "certs"
    shutil.copytree(certs / "one", folder)
    _swap(folder, certs / "two", "server.pem")
    ciphers = ssl.SSLContext.set_ciphers

    def swap_first(context: ssl.SSLContext, wanted: str) -> None:
        _swap(folder, certs / "two", "server.key")
        ciphers(context, wanted)

    files = CertificateFiles(folder / "server.pem", folder / "server.key")
    with monkeypatch.context() as patched:
        patched.setattr(ssl.SSLContext, "set_ciphers", swap_first)
        with pytest.raises(FileProblem, match="changed while they were read"):
            read_certificates(files)
    found = read_certificates(files)
    assert (found.chain, found.key) == (files.cert.read_bytes(), files.key.read_bytes())


def test_a_certificate_that_is_not_valid_yet_is_used_as_soon_as_it_is(
    certs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "certs"
    shutil.copytree(certs / "one", folder)
    files = CertificateFiles(folder / "server.pem", folder / "server.key")
    store = WatchedFiles("tls", (files.cert, files.key), partial(read_certificates, files))
    _sign_again(folder, "20980101000000Z", "20990101000000Z")
    with pytest.raises(FileProblem, match="is not valid yet"):
        store.reload()
    assert not store.reload(), "told once"
    trust = ssl.SSLContext.load_verify_locations

    def trust_at_any_time(context: ssl.SSLContext, **named: Any) -> None:
        context.verify_flags |= 0x200000  # X509_V_FLAG_NO_CHECK_TIME
        trust(context, **named)

    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", trust_at_any_time)
    assert store.reload()
    assert store.content.chain == files.cert.read_bytes()
    assert not store.reload()


BROKEN: dict[str, Callable[[Path, Path], object]] = {
    "garbage": lambda folder, _: (folder / "server.pem").write_text("-----BEGIN CERTIFICATE-----\nAAAA\n"),
    "empty": lambda folder, _: (folder / "server.pem").write_text(""),
    "gone": lambda folder, _: (folder / "server.key").unlink(),
    "a pipe": lambda folder, _: ((folder / "server.key").unlink(), os.mkfifo(folder / "server.key", 0o600)),
    "mismatched": lambda folder, two: _swap(folder, two, "server.key"),
    "expired": lambda folder, _: _sign_again(folder, "20200101000000Z", "20200102000000Z"),
    "a client's": lambda folder, _: (
        shutil.copyfile(folder / "client.pem", folder / "server.pem"),
        shutil.copyfile(folder / "client.key", folder / "server.key"),
    ),
    "a key with a password": lambda folder, _: subprocess.run(
        ["openssl", "ec", "-in", "server.key", "-aes256", "-passout", "pass:canary", "-out", "server.key"],
        cwd=folder,
        check=True,
        capture_output=True,
    ),
}


@pytest.mark.parametrize("how", BROKEN)
async def test_files_that_do_not_work_change_nothing_but_a_counter_and_a_log_line(
    how: str, certs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "certs"
    shutil.copytree(certs / "one", folder)
    key_lines = (folder / "server.key").read_text().splitlines()[1:-1]
    async with _serving(**_files(folder)) as app:
        BROKEN[how](folder, certs / "two")
        await until(lambda: "the last valid content of the file stays in use" in caplog.text)
        assert await _succeeds(app, _credentials(certs / "one"))
        assert 'evald_tls_reloads_total{outcome="failed"}' in app.telemetry.exposition("")[0].decode()
        for line in (*key_lines, "canary"):
            assert line not in caplog.text
        # And when the files are mended they count again.
        _swap(folder, certs / "two", "server.pem", "server.key")
        await until(
            lambda: 'evald_tls_reloads_total{outcome="ok"}' in app.telemetry.exposition("")[0].decode()
        )
    again = tmp_path / "again"
    shutil.copytree(certs / "one", again)
    BROKEN[how](again, certs / "two")
    with pytest.raises(FileProblem):
        read_certificates(CertificateFiles(again / "server.pem", again / "server.key"))


async def test_files_that_every_user_can_write_are_refused_and_a_key_that_all_can_read_is_reported(
    certs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = Path(shutil.copytree(certs / "one", tmp_path / "files"))
    key = folder / "server.key"
    async with _serving(**_files(folder)):
        assert "can read the key" not in caplog.text
    key.chmod(0o644)
    async with _serving(**_files(folder)) as app:
        assert "can read the key; run chmod 600" in caplog.text
        key.chmod(0o646)
        await until(lambda: "the last valid content of the file stays in use" in caplog.text)
        assert await _succeeds(app, _credentials(certs / "one"))
    with pytest.raises(StartError, match=r"tls_key_file .* every user can write this file; run chmod o-w"):
        async with _serving(**_files(folder)):
            pass


async def test_a_ca_of_clients_is_changed_without_a_restart(certs: Path, tmp_path: Path) -> None:
    one, two, ca = certs / "one", certs / "two", tmp_path / "ca.pem"
    shutil.copyfile(one / "ca.pem", ca)
    settings = _files(one, tls_client_ca_file=ca, tls_client_auth="require")
    async with _serving(**settings) as app:
        assert not await _succeeds(app, _credentials(one, client=two))
        ca.write_bytes((two / "ca.pem").read_bytes())
        await until(
            lambda: 'evald_tls_reloads_total{outcome="ok"}' in app.telemetry.exposition("")[0].decode()
        )
        assert await _succeeds(app, _credentials(one, client=two))
        assert not await _succeeds(app, _credentials(one, client=one))


def _get(address: str, ca: Path | None, path: str, **headers: str) -> int:
    port = int(address.rsplit(":", 1)[1])
    if ca is None:
        connection = http.client.HTTPConnection(HOST, port, timeout=10)
    else:
        context = ssl.create_default_context(cafile=str(ca))
        connection = http.client.HTTPSConnection(HOST, port, timeout=10, context=context)
    try:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()


async def test_a_public_http_port_asks_for_a_key_for_metrics_and_not_for_probes(
    certs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "evald.audit")
    path = tmp_path / "keys.toml"
    viewer, caller = make_key(path, "v", Role.VIEWER), make_key(path, "c", Role.CALLER)
    settings = _files(certs / "one", keys_file=path, http="0.0.0.0:0")
    ca = certs / "one" / "ca.pem"
    async with _serving(**settings) as app:

        async def get(path: str, **headers: str) -> int:
            return await asyncio.to_thread(_get, str(app.http_address), ca, path, **headers)

        assert [await get(probe) for probe in ("/healthz", "/readyz")] == [200, 200]
        assert await get("/metrics") == 401
        assert await get("/metrics", Authorization="Bearer nothing") == 401
        assert await get("/metrics", Authorization=f"Bearer {caller}") == 403
        assert await get("/metrics", Authorization=f"Bearer {viewer}") == 200
        lines: list[Any] = [one for one in caplog.records if one.name == "evald.audit"]
        assert [(line.outcome, line.principal, getattr(line, "reason", "")) for line in lines] == [
            ("refused", "", "CREDENTIALS_MISSING"),
            ("refused", "", "CREDENTIALS_INVALID"),
            ("refused", "c", "ROLE_MISSING"),
            ("used", "v", ""),
        ]
        assert all(line.peer.startswith("ipv4:127.0.0.1:") for line in lines[:3])
    async with _serving(**settings, http_tls=False, metrics_public=True) as app:
        assert await asyncio.to_thread(_get, str(app.http_address), None, "/metrics") == 200


async def test_who_does_not_shake_hands_keeps_no_probe_out(certs: Path) -> None:
    async with _serving(**_files(certs / "one"), http=f"{HOST}:0") as app:
        assert app.http_address
        host, port = app.http_address.rsplit(":", 1)
        silent = [socket.create_connection((host, int(port))) for _ in range(5)]
        try:
            assert (
                await asyncio.to_thread(_get, app.http_address, certs / "one" / "ca.pem", "/healthz") == 200
            )
        finally:
            for one in silent:
                one.close()


PUBLIC = {"listen": "0.0.0.0:0", "http": None, "web": None}


@pytest.mark.parametrize("missing", ["encryption and authentication", "encryption", "authentication", ""])
async def test_a_public_port_that_lacks_something_says_what(
    missing: str, certs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings: dict[str, Any] = {} if "encryption" in missing else _files(certs / "one")
    if "authentication" not in missing:
        make_key(tmp_path / "keys.toml", "ci", Role.CALLER)
        settings["keys_file"] = tmp_path / "keys.toml"
    public = {"listen": "0.0.0.0:0", "web": "0.0.0.0:0"}
    async with _serving(**settings, **public, insecure_public=True) as app:
        said = [record.getMessage() for record in caplog.records if "without" in record.getMessage()]
        ports = (app.address, app.web_address) if missing else ()
        assert said == [f"listening on {port} without {missing}" for port in ports]


TLS = {"tls_cert_file": "a", "tls_key_file": "b"}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (PUBLIC, "set tls_cert_file, tls_key_file and keys_file"),
        (PUBLIC | TLS, "calls are not authenticated: set keys_file"),
        (PUBLIC | {"keys_file": "k"}, "keys would be sent in plaintext"),
        ({"http": "0.0.0.0:0"}, "http: 0.0.0.0:0 can be reached"),
        ({"http": "0.0.0.0:0", "keys_file": "k", **TLS, "http_tls": False}, "http: 0.0.0.0:0 can be reached"),
        ({"tls_cert_file": "a"}, "wanted both or none"),
        ({"auth_anonymous_roles": ["caller"]}, "auth_anonymous_roles needs keys_file"),
        ({"auth_anonymous_roles": ["admin"], "keys_file": "k"}, "auth_anonymous_roles"),
        ({"tls_client_ca_file": "a"}, "needs tls_cert_file"),
        (TLS | {"tls_client_ca_file": "a"}, "tls_client_ca_file needs"),
        (TLS | {"tls_client_auth": "require"}, "tls_client_ca_file needs"),
    ],
    ids=str,
)
def test_settings_that_are_not_safe_are_refused_and_named(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Settings.model_validate(settings)


@pytest.mark.parametrize(
    "settings",
    [
        PUBLIC | TLS | {"keys_file": "k"},
        PUBLIC | {"insecure_public": True},
        {"http": "0.0.0.0:0", "metrics_public": True},
        {"http": "0.0.0.0:0", "keys_file": "k", **TLS},
        {"keys_file": "k"},
    ],
    ids=str,
)
def test_settings_that_are_safe_are_taken(settings: dict[str, Any]) -> None:
    Settings.model_validate(settings)


def test_a_key_is_its_owners_alone_and_nothing_is_overwritten(certs: Path) -> None:
    for name in ("ca.key", "server.key", "client.key"):
        assert (certs / "one" / name).stat().st_mode & 0o777 == 0o600
    assert main(["certs", "dev", str(certs / "one")]) == 2


def test_without_openssl_the_command_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["certs", "dev", str(tmp_path / "certs")]) == 2
    assert "the program openssl was not found" in capsys.readouterr().err
    assert list((tmp_path / "certs").iterdir()) == []


async def test_a_private_key_is_in_no_log_metric_or_error(
    certs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        async with _serving(**_files(certs / "one"), http=f"{HOST}:0") as app:
            await _succeeds(app, _credentials(certs / "two"))
            async with grpc.aio.secure_channel(app.address, _credentials(certs / "one")) as channel:
                refused = await refusal(Live(app, channel).raw(f"{EVALUATION}EvaluateUnary", b"\xff"))
            text = app.telemetry.exposition("")[0].decode()
    for line in (certs / "one" / "server.key").read_text().splitlines()[1:-1]:
        assert line not in caplog.text + text + refused.message
