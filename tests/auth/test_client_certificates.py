"""Client certificates as principals: which count, whose they are, and what ends with them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from evald import AsyncClient, Tls
from evald.errors import Unavailable
from evald.plugin.v1 import registry_service_pb2 as registry_pb2
from evald_server.app import App, StartError, server_options
from evald_server.auth.authenticator import Authenticator
from evald_server.auth.clients import ClientFile, client_names
from evald_server.auth.principal import Role, anonymous
from evald_server.auth.refusals import AccessDenied
from evald_server.auth.roles import METHODS, OPEN
from evald_server.cli.serve import announce
from evald_server.config import Settings
from evald_server.files import FileProblem

from ..remote.scripted import REGISTRY, plugin_info
from ..rpc.live import CONTAINS, EVALUATION, Live, Refusal, refusal, request, until
from .authority import Authority
from .keyring import Metadata, bearer, make_key
from .methods import opened

HOST = "127.0.0.1"
UNAUTHENTICATED, DENIED = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED
INVALID = "CREDENTIALS_INVALID"

CLIENTS = """
denied = ["spiffe://evald.dev/ci/stolen", "stolen.example.org"]

[[clients]]
san = "spiffe://evald.dev/ci/a"
principal = "ci"
roles = ["caller"]

[[clients]]
san = "spiffe://evald.dev/ci/stolen"
principal = "ci"
roles = ["caller"]

[[clients]]
san = "https://plugins.example.org/pii"
principal = "pii"
roles = ["plugin"]
types = ["acme.*"]

[[clients]]
san = "host.example.org"
principal = "host"
roles = ["caller"]

[[clients]]
san = "spiffe://evald.dev/idle"
principal = "idle"
roles = []
"""

SANS = {
    "ci": "URI:spiffe://evald.dev/ci/a",
    "stolen": "URI:spiffe://evald.dev/ci/stolen",
    "pii": "URI:https://plugins.example.org/pii",
    "host": "DNS:other.example.org,DNS:host.example.org",
    "host and stolen": "DNS:host.example.org,DNS:stolen.example.org",
    "two principals": "URI:spiffe://evald.dev/ci/a,DNS:host.example.org",
    "stranger": "URI:spiffe://evald.dev/other",
    "idle": "URI:spiffe://evald.dev/idle",
    "no name": "",
    "host.example.org": "",
}


@pytest.fixture(name="authority", scope="module")
def _authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    authority = Authority(tmp_path_factory.mktemp("certs") / "ca")
    for name, san in SANS.items():
        authority.sign(name, san)
    authority.sign("expired", SANS["ci"], until="20200102000000Z")
    authority.sign("rsa", SANS["ci"], key="rsa:2048")
    authority.sign("server's", SANS["ci"], usage="serverAuth")
    return authority


class Server:
    """A server with a plain port and one that requires certificates."""

    def __init__(self, app: App, authority: Authority, keys: Path, clients: Path) -> None:
        self.app = app
        self.authority = authority
        self.keys = keys
        self.clients = clients

    @asynccontextmanager
    async def connected(self, name: str | None, address: str | None = None) -> AsyncIterator[Live]:
        """A channel with a client certificate."""
        address = address or self.app.mtls_address
        assert address
        async with grpc.aio.secure_channel(address, self.authority.credentials(name)) as channel:
            yield Live(self.app, channel)

    async def refused(self, name: str | None, **call: Any) -> Refusal:
        """How a call with a certificate is refused of which nothing but the headers is sent."""
        async with self.connected(name) as live:
            return await opened(live, f"{EVALUATION}EvaluateUnary", **call)


@asynccontextmanager
async def _serving(authority: Authority, folder: Path, **more: Any) -> AsyncIterator[Server]:
    keys, clients = folder / "keys.toml", folder / "clients.toml"
    clients.write_text(CLIENTS)
    if not keys.exists():
        make_key(keys, "other", Role.CALLER)
    settings = {
        "listen": f"{HOST}:0",
        "listen_mtls": f"{HOST}:0",
        "http": None,
        "keys_file": keys,
        "tls_cert_file": authority.folder / "server.pem",
        "tls_key_file": authority.folder / "server.key",
        "tls_client_ca_file": authority.folder / "ca.pem",
        "tls_clients_file": clients,
        "tls_reload_seconds": 0.05,
        **more,
    }
    app = App(Settings.model_validate(settings))
    await app.start()
    try:
        yield Server(app, authority, keys, clients)
    finally:
        await app.stop(0)


@pytest.fixture(name="server", scope="module")
async def _server(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    async with _serving(authority, tmp_path_factory.mktemp("server"), remote_connect=True) as server:
        yield server


async def test_a_certificate_says_who_calls(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "evald.audit"):
        for name, principal in (("ci", "ci"), ("host", "host")):
            async with server.connected(name) as live:
                assert (await live.unary(request(CONTAINS))).summary.success
                assert await live.stream(request(CONTAINS))
                refused = await opened(live, "/evald.v1.PersonaService/CreatePersona")
                assert (refused.code, refused.reason) == (DENIED, "ROLE_MISSING")
            assert f"used principal={principal} key=" in caplog.text
    text = server.app.telemetry.exposition("")[0].decode()
    assert 'evald_auth_total{kind="certificate",outcome="ok"}' in text
    assert 'evald_auth_total{kind="certificate",outcome="role"}' in text


REFUSED: dict[str, str] = {
    "stolen": "certificate: denied",
    "host and stolen": "certificate: denied",
    "stranger": "certificate: no principal for it",
    "no name": "certificate: no name in it",
    "host.example.org": "certificate: no name in it",
    "two principals": "certificate: several of its names are in the file",
}


@pytest.mark.parametrize("token", ["without a token", "with a token that counts"])
@pytest.mark.parametrize("name", REFUSED)
async def test_a_certificate_that_is_denied_or_nobodys_opens_nothing(
    name: str, token: str, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    metadata: Metadata = ()
    if token.startswith("with a"):
        metadata = bearer(make_key(server.keys, "ci", Role.CALLER))
        assert server.app._authenticator is not None
        assert server.app._authenticator.keys is not None
        server.app._authenticator.keys.reload()
    server.app._gate._audit._lines.clear()
    with caplog.at_level("INFO", "evald.audit"):
        refused = await server.refused(name, metadata=metadata)
    assert (refused.code, refused.reason) == (UNAUTHENTICATED, INVALID)
    assert REFUSED[name] in [getattr(record, "why", "") for record in caplog.records]
    assert "spiffe" not in refused.message


async def test_with_a_certificate_and_a_token_both_count_and_the_token_says_who_calls(
    authority: Authority, tmp_path: Path
) -> None:
    admin = make_key(tmp_path / "keys.toml", "root", Role.ADMIN)
    async with _serving(authority, tmp_path) as server, server.connected("ci") as live:
        refused = await opened(live, f"{EVALUATION}EvaluateUnary", bearer(admin))
        assert "root has the role admin" in refused.message
        for wrong in (bearer(admin[:-1]), bearer(admin) + bearer(admin), (("authorization", "Basic x"),)):
            refused = await opened(live, f"{EVALUATION}EvaluateUnary", wrong)
            assert (refused.code, refused.reason) == (UNAUTHENTICATED, INVALID)
        assert (await live.unary(request(CONTAINS))).summary.success
        async with server.connected("idle") as idle:
            refused = await opened(idle, f"{EVALUATION}EvaluateUnary")
            assert (refused.code, refused.reason) == (DENIED, "ROLE_MISSING")
            await idle.raw("/evald.v1.CatalogService/ListEvaluatorTypes", b"", metadata=bearer(admin))
        async with server.connected("rsa") as rsa:
            assert (await rsa.unary(request(CONTAINS))).summary.success


async def test_the_other_port_takes_keys_and_sees_no_certificate(
    authority: Authority, tmp_path: Path
) -> None:
    key = make_key(tmp_path / "keys.toml", "k", Role.CALLER)
    async with (
        _serving(authority, tmp_path) as server,
        server.connected("ci", server.app.address) as live,
    ):
        assert (await refusal(live.unary(request(CONTAINS)))).reason == "CREDENTIALS_MISSING"
        assert (await live.unary(request(CONTAINS), metadata=bearer(key))).summary.success
        assert [code async for code in _health(live)] == ["SERVING"]


async def test_the_line_that_says_ready_names_both_ports(
    authority: Authority, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with _serving(authority, tmp_path) as server:
        announce(server.app)
        said = capsys.readouterr().out
        assert (
            f"gRPC on {server.app.address}, with client certificates on {server.app.mtls_address}\n" in said
        )


async def test_who_shows_no_certificate_that_counts_hears_what_may_be_wrong(server: Server) -> None:
    folder = server.authority.folder
    ca, address = folder / "ca.pem", server.app.mtls_address
    for tls in (None, Tls(ca), Tls(ca, folder / "expired.pem", folder / "expired.key")):
        async with AsyncClient(address, tls=tls, timeout=5) as client:
            with pytest.raises(
                Unavailable, match=r"no connection to the server at 127\S+ .* may require TLS, or a client"
            ):
                await client.evaluator_types()


async def _health(live: Live) -> AsyncIterator[str]:
    from grpc_health.v1 import health_pb2

    data = await live.raw("/grpc.health.v1.Health/Check", b"")
    yield health_pb2.HealthCheckResponse.ServingStatus.Name(
        health_pb2.HealthCheckResponse.FromString(data).status
    )


async def test_every_method_is_checked_on_the_port_of_certificates(server: Server) -> None:
    for name in ("stolen", "idle"):
        async with server.connected(name) as live:
            for method in [*server.app._gate._methods, "/x/y"]:
                if METHODS.get(method) is OPEN:
                    continue
                refused = await opened(live, method)
                wanted = (UNAUTHENTICATED, INVALID) if name == "stolen" else (DENIED, "ROLE_MISSING")
                if name == "idle" and method == "/x/y":
                    wanted = (grpc.StatusCode.UNIMPLEMENTED, "UNKNOWN_METHOD")
                assert (refused.code, refused.reason) == wanted, method


async def test_all_kinds_of_calls_work_on_the_port_of_certificates(server: Server) -> None:
    async with server.connected("ci") as live:
        call: Any = live.channel.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")(
            iter([b"\x3a\x00"])
        )
        assert b"evald.v1.EvaluationService" in await call.read()
        call.cancel()
        watch: Any = live.channel.unary_stream("/evald.v1.CatalogService/WatchEvaluatorTypes")(b"")
        assert await watch.read()
        watch.cancel()
        bad = await refusal(live.raw(f"{EVALUATION}EvaluateUnary", b"\xff"))
        assert bad.reason == "UNREADABLE_MESSAGE"
        empty: Any = live.channel.stream_unary(f"{EVALUATION}EvaluateUnary")(iter(()))
        with pytest.raises(grpc.aio.AioRpcError, match="without a request message"):
            await empty
        big = request(CONTAINS, answer="hello " * 300_000)
        assert (await live.unary(big)).summary.success
    async with server.connected("pii") as live:
        hello = registry_pb2.WorkerHello(instance_id="i", plugin=plugin_info("acme.x"), initial_credit=1)
        session: Any = live.channel.stream_stream(f"{REGISTRY}Attach")()
        await session.write(registry_pb2.AttachRequest(hello=hello).SerializeToString())
        assert await session.read()
        session.cancel()


HANDSHAKES: dict[str, bool] = {
    "wrong CA": False,
    "expired": False,
    "server's": False,
    "none": False,
    "ci": True,
}


@pytest.mark.parametrize("state", HANDSHAKES)
async def test_a_handshake_needs_a_certificate_that_counts(
    state: str, server: Server, tmp_path: Path
) -> None:
    name, authority = (None if state == "none" else state), server.authority
    credentials = authority.credentials(name if name != "wrong CA" else None)
    if state == "wrong CA":
        other = Authority(tmp_path / "other")
        credentials = other.credentials(other.sign("ci", SANS["ci"]), authority.folder)
    assert server.app.mtls_address
    async with grpc.aio.secure_channel(server.app.mtls_address, credentials) as channel:
        live = Live(server.app, channel)
        if HANDSHAKES[state]:
            assert (await live.unary(request(CONTAINS))).summary.success
            return
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await live.unary(request(CONTAINS), timeout=10)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


DENY = 'denied = ["spiffe://evald.dev/ci/a"]\n'


def _without_ci(text: str) -> str:
    return text.replace('san = "spiffe://evald.dev/ci/a"', 'san = "spiffe://evald.dev/elsewhere"')


def _as_viewer(text: str) -> str:
    return text.replace('principal = "ci"\nroles = ["caller"]', 'principal = "ci"\nroles = ["viewer"]')


COUNTS_NO_LONGER: dict[str, tuple[Callable[[str], str], grpc.StatusCode, str]] = {
    "denied": (lambda text: DENY + text.partition("\n\n")[2], UNAUTHENTICATED, INVALID),
    "denied, with a token": (lambda text: DENY + text.partition("\n\n")[2], UNAUTHENTICATED, INVALID),
    "taken out": (_without_ci, UNAUTHENTICATED, INVALID),
    "taken out, with a token": (_without_ci, UNAUTHENTICATED, INVALID),
    "another role": (_as_viewer, DENIED, "ROLE_MISSING"),
}


@pytest.mark.parametrize("how", COUNTS_NO_LONGER)
async def test_a_certificate_that_counts_no_longer_is_refused_and_what_it_has_opened_ends(
    how: str, authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key = make_key(tmp_path / "keys.toml", "tokened", Role.CALLER)
    metadata = bearer(key) if "token" in how else ()
    async with (
        _serving(authority, tmp_path) as server,
        server.connected("ci") as live,
        server.connected("host") as other,
    ):
        calls: list[Any] = []
        for one in (live, other):
            calls.append(one.channel.stream_stream(f"{EVALUATION}EvaluateSession")(metadata=metadata))
            await calls[-1].wait_for_connection()
        await until(lambda: len(server.app._gate._streams) == 2)
        change, code, reason = COUNTS_NO_LONGER[how]
        with caplog.at_level("INFO", "evald.audit"):
            server.clients.write_text(change(CLIENTS))
            async with asyncio.timeout(20):
                ended = await refusal(_to_the_end(calls[0]))
        assert (ended.code, ended.reason) == (code, reason)
        assert "clients changed" in caplog.text
        refused = await refusal(live.unary(request(CONTAINS), metadata=metadata))
        assert (refused.code, refused.reason) == (code, reason)
        assert (await other.unary(request(CONTAINS), metadata=metadata)).summary.success
        assert not calls[1].done(), "another's stream goes on"


async def _to_the_end(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


async def test_a_file_of_clients_that_breaks_changes_nothing(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with _serving(authority, tmp_path) as server, server.connected("ci") as live:
        server.clients.write_text("[[clients]]\n")
        await until(lambda: "clients[0]: san is missing" in caplog.text)
        assert "the last valid content of the file stays in use" in caplog.text
        assert (await live.unary(request(CONTAINS))).summary.success
        server.clients.write_text("")
        reads = 'evald_auth_file_reads_total{file="tls_clients_file",outcome="%s"} 1.0'
        await until(lambda: reads % "ok" in server.app.telemetry.exposition("")[0].decode())
        assert reads % "failed" in server.app.telemetry.exposition("")[0].decode()


async def test_new_certificates_are_served_on_both_ports(authority: Authority, tmp_path: Path) -> None:
    folder = tmp_path / "certs"
    folder.mkdir()
    for name in ("ca.pem", "server.pem", "server.key"):
        (folder / name).write_bytes((authority.folder / name).read_bytes())
    other = Authority(tmp_path / "other")
    files = {
        "tls_cert_file": folder / "server.pem",
        "tls_key_file": folder / "server.key",
        "tls_client_ca_file": folder / "ca.pem",
    }
    async with _serving(authority, tmp_path, **files) as server:
        for name in ("ca.pem", "server.key", "server.pem"):
            (folder / name).write_bytes((other.folder / name).read_bytes())
        await until(
            lambda: 'evald_tls_reloads_total{outcome="ok"}' in server.app.telemetry.exposition("")[0].decode()
        )
        credentials = other.credentials(other.sign("ci", SANS["ci"]))
        for address in (server.app.address, str(server.app.mtls_address)):
            async with grpc.aio.secure_channel(address, credentials) as channel:
                assert [code async for code in _health(Live(server.app, channel))] == ["SERVING"]


async def test_connections_are_renewed_and_no_call_fails(authority: Authority, tmp_path: Path) -> None:
    async with (
        _serving(authority, tmp_path, max_connection_age=0.2) as server,
        server.connected("ci") as live,
    ):
        session: Any = live.channel.stream_stream(f"{EVALUATION}EvaluateSession")()
        await session.wait_for_connection()
        ports: set[str] = set()
        admit = server.app._gate._authenticator.authenticate  # type: ignore[union-attr]

        def seen(headers: Any, certificate: Any = None, peer: str = "") -> Any:
            ports.add(peer)
            return admit(headers, certificate, peer)

        server.app._gate._authenticator.authenticate = seen  # type: ignore[union-attr,method-assign]

        async def several() -> bool:
            assert (await live.unary(request(CONTAINS))).summary.success
            return len(ports) >= 3

        await until(several)
        assert not session.done(), "streams go on"
        session.cancel()


def test_connections_have_an_age_where_they_are_encrypted() -> None:
    tls = Settings.model_validate({"http": None, "tls_cert_file": "a", "tls_key_file": "b"})
    assert dict(server_options(tls))["grpc.max_connection_age_ms"] == 1_800_000
    assert "grpc.max_connection_age_ms" not in dict(server_options(Settings(http=None)))


def test_a_name_counts_whole_and_as_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "clients.toml"
    path.write_text(CLIENTS)
    clients = ClientFile(path)
    for name, principal in {
        "spiffe://evald.dev/ci/a": "ci",
        "https://plugins.example.org/pii": "pii",
        "host.example.org": "host",
    }.items():
        assert clients.principal((name,)).name == principal
        assert clients.principal(("another.example.org", name)).name == principal
        for other in (name[:-1], f"{name}/", f"{name}/a", f"sub.{name}", name.upper(), f"{name}*"):
            with pytest.raises(AccessDenied):
                clients.principal((other,))


def test_a_certificate_says_who_calls_also_where_callers_without_credentials_have_roles(
    tmp_path: Path,
) -> None:
    path = tmp_path / "clients.toml"
    path.write_text(CLIENTS)
    everybody = anonymous(frozenset((Role.CALLER,)))
    authenticator = Authenticator(None, lambda *_: None, clients=ClientFile(path), anonymous=everybody)
    assert authenticator.authenticate(()) is everybody
    assert authenticator.authenticate((), ("spiffe://evald.dev/ci/a",)).name == "ci"
    with pytest.raises(AccessDenied):
        authenticator.authenticate((), ("spiffe://evald.dev/unknown",))


def test_what_a_certificate_has_opened_is_not_given_to_another_principal(tmp_path: Path) -> None:
    path = tmp_path / "clients.toml"
    path.write_text(CLIENTS)
    clients = ClientFile(path)
    authenticator = Authenticator(None, lambda *_: None, clients=clients)
    opened_by = authenticator.authenticate((), ("spiffe://evald.dev/ci/a",))
    assert authenticator.current(opened_by) == opened_by
    path.write_text(CLIENTS.replace('principal = "ci"', 'principal = "somebody-else"'))
    assert clients.reload()
    with pytest.raises(AccessDenied) as refused:
        authenticator.current(opened_by)
    assert refused.value.why == "belongs to another principal now"


def test_the_names_are_the_uris_and_the_dns_names_and_never_the_common_name() -> None:
    context = {
        "x509_pem_cert": [b"..."],
        "x509_common_name": [b"root"],
        "peer_spiffe_id": [b"spiffe://a/b"],
        "peer_uri": [b"spiffe://a/b"],
        "peer_dns": [b"d", b"e"],
    }
    assert client_names(context) == ("spiffe://a/b", "d", "e")
    assert client_names({"x509_pem_cert": [b"..."], "x509_common_name": [b"root"]}) == ()
    assert client_names({"transport_security_type": [b"ssl"]}) is None


CLIENT = '[[clients]]\nsan = "a.example.org"\nprincipal = "a"\nroles = ["caller"]\n'

BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "gone": (lambda path: path.unlink(), "there is no such file"),
    "garbage": (lambda path: path.write_text("canary = ["), "wanted TOML"),
    "others may write it": (lambda path: path.chmod(0o666), "chmod 600"),
    "another key": (lambda path: path.write_text("denid = []\n" + CLIENT), "denid: unknown; known keys: clients, denied, principals"),
    "denied is a text": (lambda path: path.write_text('denied = "a"'), "denied: wanted a list"),
    "a denied pattern": (lambda path: path.write_text('denied = ["spiffe://e/*"]'), "denied: wanted a list of"),
    "clients is a text": (lambda path: path.write_text('clients = "a"'), "clients: wanted tables"),
    "clients are texts": (lambda path: path.write_text('clients = ["a"]'), "clients[0]: wanted a table"),
    "no principal": (lambda path: path.write_text(CLIENT.replace("principal", "#")), "principal is missing"),
    "an unknown field": (lambda path: path.write_text(CLIENT + "rates = 1"), "rates: unknown"),
    "an unknown role": (lambda path: path.write_text(CLIENT.replace("caller", "root")), "roles: wanted a list of one or more of"),
    "a name that cannot be": (lambda path: path.write_text(CLIENT.replace('"a"', '"jwt:a"')), "principal: wanted"),
    "types that cannot be": (lambda path: path.write_text(CLIENT + 'types = ["*a"]'), "types: wanted"),
    "a pattern": (lambda path: path.write_text(CLIENT.replace("a.example.org", "spiffe://a/*")), "san: wanted a whole name"),
    "a pattern of DNS": (lambda path: path.write_text(CLIENT.replace("org", "*")), "san: wanted a whole name"),
    "twice": (lambda path: path.write_text(CLIENT + CLIENT), "is listed twice"),
    "limits of nobody": (lambda path: path.write_text(CLIENT + "[[principals]]\nrate = 5"), "principals[0]: principal is missing"),
    "limits without one": (lambda path: path.write_text(CLIENT + '[[principals]]\nprincipal = "jwt:a"'), "principals[0]: wanted at least one of"),
    "a limit that cannot be": (lambda path: path.write_text(CLIENT + '[[principals]]\nprincipal = "a"\nrate = -1'), "principals[0]: rate: got -1, wanted"),
    "a limit that is no number": (lambda path: path.write_text(CLIENT + '[[principals]]\nprincipal = "a"\nin_flight = true'), "principals[0]: in_flight: got True, wanted 1 to 1000000 calls"),
    "limits of what cannot be": (lambda path: path.write_text(CLIENT + '[[principals]]\nprincipal = "a*"\nrate = 5'), "principals[0]: principal: wanted"),
    "limits twice": (lambda path: path.write_text(CLIENT + 2 * '[[principals]]\nprincipal = "jwt:*"\nrate = 5\n'), "principals[1]: 'jwt:*' is listed twice"),
    "an unknown limit": (lambda path: path.write_text(CLIENT + '[[principals]]\nprincipal = "a"\nrates = 5'), "principals[0]: rates: unknown"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_file_of_clients_that_cannot_be_is_refused_and_the_place_named(
    name: str, authority: Authority, tmp_path: Path
) -> None:
    change, said = BROKEN[name]
    path = tmp_path / "clients.toml"
    path.write_text(CLIENT)
    ClientFile(path)
    change(path)
    with pytest.raises(FileProblem) as problem:
        ClientFile(path)
    assert said in str(problem.value)
    assert "canary" not in str(problem.value)
    settings = {
        "http": None,
        "tls_cert_file": authority.folder / "server.pem",
        "tls_key_file": authority.folder / "server.key",
        "tls_client_ca_file": authority.folder / "ca.pem",
        "tls_client_auth": "require",
        "tls_clients_file": path,
    }
    with pytest.raises(StartError, match="tls_clients_file"):
        App(Settings.model_validate(settings))


TLS = {"tls_cert_file": "a", "tls_key_file": "b"}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"listen_mtls": f"{HOST}:0"}, "tls_client_ca_file"),
        (TLS | {"listen_mtls": f"{HOST}:0"}, "tls_client_ca_file"),
        (
            TLS | {"listen_mtls": f"{HOST}:0", "tls_client_ca_file": "c", "tls_client_auth": "require"},
            "listen_mtls needs",
        ),
        (TLS | {"tls_clients_file": "f"}, "tls_clients_file needs a port"),
        (TLS | {"listen_mtls": "0.0.0.0:0", "tls_client_ca_file": "c"}, "calls are not authenticated"),
        ({"listen_mtls": "nowhere"}, "wanted HOST:PORT"),
    ],
    ids=str,
)
def test_settings_that_cannot_be_are_refused_and_named(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Settings.model_validate({"http": None, **settings})


def test_a_public_port_is_safe_with_certificates_alone() -> None:
    mtls = TLS | {"listen": "0.0.0.0:0", "tls_client_ca_file": "c", "tls_client_auth": "require"}
    Settings.model_validate({"http": None, **mtls, "tls_clients_file": "f"})
