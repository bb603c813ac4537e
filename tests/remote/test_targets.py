"""Where the server may dial to: the metadata service in no spelling, names only as they were checked."""

import asyncio
import ipaddress
import shutil
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import grpc
import pytest

from evald_server.dev_certificates import make_certificates
from evald_server.remote.dial_allowlist import Dial, DialAllowlist, Resolver, read_target
from evald_server.remote.errors import Refusal

from ..rpc.live import refusal, request, serving, spec, until
from .scripted import WORD, Listening, listening, register

EVERYTHING = ("0.0.0.0/0", "::/0", "*.example", "example", "unix:/run/evald")


async def _nothing(_host: str, _port: int) -> Sequence[str]:
    raise AssertionError("a literal address must not be resolved")


def dial(text: str, *rules: str, resolve: Any = _nothing) -> Dial:
    """What the server would connect to."""
    return asyncio.run(Resolver(DialAllowlist(rules), resolve).dial(text))


def resolving(*addresses: str) -> Any:
    async def resolve(_host: str, _port: int) -> Sequence[str]:
        return addresses

    return resolve


# Link-local, loopback, unspecified, multicast and metadata, as somebody might write them.
SPELLINGS = """
169.254.169.254:80
169.254.0.1:80
ipv4:169.254.169.254:80
dns:169.254.169.254:80
dns:///169.254.169.254:80
DNS:///169.254.169.254:80
dns://8.8.8.8/169.254.169.254:80
2852039166:80
dns:///2852039166:80
0xa9fea9fe:80
0xA9FEA9FE:80
0xa9.0xfe.0xa9.0xfe:80
0251.0376.0251.0376:80
025177524776:80
169.254.43518:80
169.16689662:80
169.254.0xa9fe:80
169.254.169.254.:80
169.0254.169.254:80
[::ffff:169.254.169.254]:80
[::ffff:a9fe:a9fe]:80
[0:0:0:0:0:ffff:a9fe:a9fe]:80
[::a9fe:a9fe]:80
[::169.254.169.254]:80
[2002:a9fe:a9fe::]:80
[2002:a9fe:a9fe::1]:80
[64:ff9b::a9fe:a9fe]:80
[64:ff9b::169.254.169.254]:80
[64:ff9b:1::a9fe:a9fe]:80
[2001:0:a9fe:a9fe::1]:80
[fe80::5efe:a9fe:a9fe]:80
[2001:db8::5efe:169.254.169.254]:80
[2001:db8::200:5efe:a9fe:a9fe]:80
[fe80::1]:80
[fe80::1%eth0]:80
[fe80::1%251]:80
fe80::1:80
[fec0::1]:80
[fd00:ec2::254]:80
[::]:80
[::0.0.0.0]:80
0.0.0.0:80
0:80
0x0:80
0.1.2.3:80
[ff02::1]:80
224.0.0.1:80
239.255.255.255:80
255.255.255.255:80
240.0.0.1:80
100.100.100.200:80
168.63.129.16:80
192.0.0.192:80
127.0.0.1:80
127.1:80
127.127.127.127:80
[::1]:80
[0:0:0:0:0:0:0:1]:80
[::ffff:127.0.0.1]:80
[::ffff:0:127.0.0.1]:80
2130706433:80
0x7f000001:80
0177.0.0.1:80
\uff11\uff16\uff19.254.169.254:80
\u2460\u2465\u2468.254.169.254:80
169\u3002254\u3002169\u3002254:80
[169.254.169.254]:80
user@169.254.169.254:80
10.0.0.1@169.254.169.254:80
10.0.0.1#169.254.169.254:80
10.0.0.1\\169.254.169.254:80
10.0.0.1,169.254.169.254:80
ipv4:10.0.0.1:80,169.254.169.254:80
http://169.254.169.254:80
https://169.254.169.254:80
xds:///169.254.169.254:80
passthrough:///169.254.169.254:80
google-c2p:///169.254.169.254:80
unix:/etc/evald/socket
unix:/run/evald/../secret
unix:/run/evald/%2e%2e/secret
unix:/run/evald/%2E./secret
unix:/run/evald/socket?x
unix:/run/evald/socket#x
unix:/run/evald-other/socket
unix:relative
unix:
unix://host/run/evald/socket
unix-abstract:evald
unix-abstract:/run/evald/socket
vsock:2:80
""".split()


@pytest.mark.parametrize("text", SPELLINGS)
def test_no_spelling_of_a_forbidden_address_is_dialled_even_when_everything_is_allowed(text: str) -> None:
    with pytest.raises(Refusal) as refused:
        dial(text, *EVERYTHING)
    assert refused.value.reason in ("INVALID_FIELD", "TARGET_NOT_ALLOWED")
    assert refused.value.metadata["field"] == "target"


def test_the_table_is_long_enough_to_mean_something() -> None:
    assert len(SPELLINGS) == len(set(SPELLINGS)) >= 40


@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254",
        "::ffff:169.254.169.254",
        "64:ff9b::a9fe:a9fe",
        "2002:a9fe:a9fe::1",
        "fe80::1",
        "fe80::1%2",
        "127.0.0.1",
        "::1",
        "0.0.0.0",
        "::",
        "224.0.0.1",
        "not an address",
    ],
)
def test_no_name_leads_to_a_forbidden_address(address: str) -> None:
    for name in ("plugin.example:80", "dns:///plugin.example:80", "other.org:80"):
        with pytest.raises(Refusal) as refused:
            dial(name, *EVERYTHING, resolve=resolving("10.0.0.1", address))
        assert refused.value.reason == "TARGET_NOT_ALLOWED"


@pytest.mark.parametrize(
    ("text", "rules", "addresses", "pinned", "authority"),
    [
        ("10.1.2.3:50051", ["10.0.0.0/8"], [], "ipv4:10.1.2.3:50051", "10.1.2.3:50051"),
        ("ipv4:10.1.2.3:50051", ["10.1.2.3"], [], "ipv4:10.1.2.3:50051", "10.1.2.3:50051"),
        ("[fd12::7]:50051", ["fd12::/16"], [], "ipv6:[fd12::7]:50051", "[fd12::7]:50051"),
        ("ipv6:[FD12:0::7]:1", ["fd12::/16"], [], "ipv6:[fd12::7]:1", "[fd12::7]:1"),
        ("pii.evals.svc:50051", ["*.evals.svc"], ["10.0.0.7"], "ipv4:10.0.0.7:50051", "pii.evals.svc:50051"),
        ("PII.Evals.svc.:50051", ["*.EVALS.svc"], ["10.0.0.7"], "ipv4:10.0.0.7:50051", "pii.evals.svc:50051"),
        ("dns:///pii:5", ["pii"], ["10.0.0.7"], "ipv4:10.0.0.7:5", "pii:5"),
        ("dns:pii:5", ["10.0.0.0/8"], ["10.0.0.7"], "ipv4:10.0.0.7:5", "pii:5"),
        ("dns:5", ["10.0.0.0/8"], ["10.0.0.7"], "ipv4:10.0.0.7:5", "dns:5"),
        (
            "pii:5",
            ["pii"],
            ["10.0.0.7", "10.0.0.8", "10.0.0.7", "fd12::1"],
            "ipv4:10.0.0.7:5,10.0.0.8:5",
            "pii:5",
        ),
        ("127.0.0.1:5", ["127.0.0.0/8"], [], "ipv4:127.0.0.1:5", "127.0.0.1:5"),
        ("[::1]:5", ["::1"], [], "ipv6:[::1]:5", "[::1]:5"),
        ("localhost:5", ["127.0.0.1"], ["127.0.0.1"], "ipv4:127.0.0.1:5", "localhost:5"),
        ("unix:/run/evald/pii.sock", ["unix:/run/evald/"], [], "unix:/run/evald/pii.sock", "localhost"),
        ("unix:///run/evald/a/b", ["unix:/run/evald"], [], "unix:/run/evald/a/b", "localhost"),
        ("unix:/Run/s", ["unix:/run", "unix:/Run"], [], "unix:/Run/s", "localhost"),
        ("pii7:5", ["other", "pii7"], ["10.0.0.7"], "ipv4:10.0.0.7:5", "pii7:5"),
    ],
)
def test_what_is_allowed_is_pinned_to_checked_addresses_and_keeps_its_authority(
    text: str, rules: list[str], addresses: list[str], pinned: str, authority: str
) -> None:
    resolve = resolving(*addresses) if addresses else _nothing
    assert dial(text, *rules, resolve=resolve) == Dial(pinned, authority)


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("10.1.2.3:5", []),
        ("10.1.2.3:5", ["10.0.0.0/16", "fd12::/16", "*.svc", "unix:/run"]),
        ("127.0.0.1:5", ["0.0.0.0/0"]),
        ("[::1]:5", ["::/0"]),
        ("pii.svc:5", ["*.other"]),
        ("evilsvc:5", ["*.svc"]),
        ("svc:5", ["*.svc"]),
        ("unix:/run/evald.sock", ["unix:/run/evald"]),
        ("unix:/run/evald", ["unix:/run/evald"]),
        ("unix:/run/evald/s", ["unix:/Run/Evald"]),
    ],
)
def test_what_no_rule_names_is_refused(text: str, rules: list[str]) -> None:
    with pytest.raises(Refusal, match="not allowed"):
        dial(text, *rules, resolve=resolving("10.9.9.9"))


@pytest.mark.parametrize(
    "rule",
    [
        "",
        "10.0.0.0/33",
        "10.0.0.1/8",
        "a b",
        "unix:run",
        "2852039166",
        "*",
        "http://x",
        "*.*.svc",
        "999.1.1.1",
    ],
)
def test_a_rule_that_means_nothing_is_refused_at_the_start(rule: str) -> None:
    with pytest.raises(ValueError, match=r"wanted|not a network"):
        DialAllowlist([rule])


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":80",
        "host",
        "host:",
        "host:0",
        "host:65536",
        "host:080",
        "host:8o",
        "host:+80",
        "a..b:80",
        "-a:80",
        "x" * 300,
        f"{'.'.join(['x' * 60] * 5)}:80",
        "host:\N{SUPERSCRIPT TWO}",
        "10.0.0.7:\N{FULLWIDTH DIGIT EIGHT}",
        "http://host:80",
        "[fd12::7:80",
        "fd12::7]:80",
        "fd12::7:80",
        "[fd12::7%eth0]:80",
        "ipv4:[fd12::7]:80",
        "ipv4:host:80",
        "ipv6:10.0.0.7:80",
        "unix:socket",
        "unix://host/socket",
        "unix:/run/evald/\0socket",
        "unix:/run/evald/a socket",
        "unix:/run/evald/\N{LATIN SMALL LETTER E WITH ACUTE}",
    ],
)
def test_text_that_is_no_target_is_refused(text: str) -> None:
    with pytest.raises(Refusal) as refused:
        read_target(text)
    assert refused.value.reason == "INVALID_FIELD"


def test_targets_of_the_config_are_not_checked() -> None:
    for text, pinned in [
        ("unix:/etc/socket", "unix:/etc/socket"),
        ("169.254.169.254:80", "ipv4:169.254.169.254:80"),
    ]:
        assert asyncio.run(Resolver(None, _nothing).dial(text)).pinned == pinned


async def test_an_address_that_changes_after_the_check_is_checked_again_before_the_next_connection() -> None:
    """DNS rebinding: harmless when it registers, the metadata service when the connection is lost."""

    answers = [["127.0.0.1"]]
    asked = 0

    async def resolve(_host: str, _port: int) -> Sequence[str]:
        nonlocal asked
        asked += 1
        return answers[0]

    async with (
        serving(remote_allowed=["127.0.0.0/8", "plugin.example"]) as live,
        listening("acme.word") as plugin,
    ):
        live.app.remotes.leases._resolver._resolve = resolve
        port = plugin.address.rpartition(":")[2]
        await register(live, plugin, target=f"plugin.example:{port}")
        assert (await live.unary(request(WORD))).summary.success
        (instance,) = live.app.remotes.instances.by_id.values()
        answers[0] = ["169.254.169.254"]
        before = asked
        # Over the open connection nothing is resolved.
        assert (await live.unary(request(WORD))).summary.success
        assert asked == before
        await plugin.stop()
        await until(lambda: asked > before and "not allowed" in instance.last_error)
        await plugin.start(plugin.address)
        await asyncio.sleep(0.3)
        assert instance._connection is None


async def test_a_name_that_leads_inside_is_refused_when_it_registers() -> None:
    async with serving(remote_allowed=["plugin.example"]) as live, listening("acme.word") as plugin:
        live.app.remotes.leases._resolver._resolve = resolving("169.254.169.254")
        refused = await refusal(register(live, plugin, target="plugin.example:80"))
        assert refused.reason == "TARGET_NOT_ALLOWED"
        assert refused.fields == ["target"]


async def test_names_that_nobody_resolves_keep_no_call_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    given_up = threading.Event()
    look_up = socket.getaddrinfo

    def stuck(host: Any, *args: Any, **kwargs: Any) -> Any:
        if str(host).endswith(".example"):
            given_up.wait(60)
            raise OSError("Temporary failure in name resolution")
        return look_up(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", stuck)
    targets = [{"target": f"plugin-{number}.example:80"} for number in range(64)]
    async with serving(remote_targets=targets) as live:
        # So long a config is compiled in a thread.
        long = spec("contains", {"substrings": ["hello", "x" * 50_000]})
        try:
            async with asyncio.timeout(30):
                assert not (await live.unary(request(long))).summary.success
        finally:
            given_up.set()


async def test_no_proxy_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment's proxies would see every task, and would connect to what was not checked."""

    async with (
        Canary() as canary,
        serving(remote_allowed=["127.0.0.1"]) as live,
        listening("acme.word") as plugin,
    ):
        await live.types()  # the test's own connection stands
        for name in ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy", "HTTP_PROXY"):
            monkeypatch.setenv(name, f"http://{canary.address}")
        monkeypatch.setenv("no_proxy", "")
        await register(live, plugin)
        assert (await live.unary(request(WORD))).summary.success
        assert not canary.hits


class Canary:
    """A port that counts who comes."""

    def __init__(self) -> None:
        self.hits = 0
        self.address = ""
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        async def hit(_reader: Any, writer: asyncio.StreamWriter) -> None:
            self.hits += 1
            writer.close()

        self._server = await asyncio.start_server(hit, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.address = f"{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()


async def test_unix_sockets_work_where_they_are_allowed(tmp_path: Path) -> None:
    plugin = Listening("acme.word")
    address = await plugin.start(f"unix:{tmp_path}/plugin.sock")
    async with serving(remote_allowed=[f"unix:{tmp_path}"]) as live:
        await register(live, plugin, target=address)
        assert (await live.unary(request(WORD))).summary.success
    await plugin.stop()


def test_every_address_is_either_loopback_forbidden_or_needs_a_rule() -> None:
    everything = DialAllowlist(["0.0.0.0/0", "::/0"])
    nothing = DialAllowlist([])
    target = read_target("10.0.0.1:80")
    for text in ("8.8.8.8", "10.0.0.1", "192.168.1.1", "172.16.0.1", "100.64.0.1", "2001:4860::1", "fd12::1"):
        address = ipaddress.ip_address(text)
        everything.check(target, address)
        with pytest.raises(Refusal):
            nothing.check(target, address)


CERTIFICATES = Path(__file__).with_name("certificates")


def _credentials() -> grpc.ServerCredentials:
    key, chain = (CERTIFICATES / name for name in ("plugin.key", "plugin.pem"))
    return grpc.ssl_server_credentials([(key.read_bytes(), chain.read_bytes())])


@pytest.mark.parametrize(
    ("host", "works"), [("plugin.example", True), ("other.example", False)], ids=["its-name", "another-name"]
)
async def test_a_certificate_is_checked_against_the_name_although_an_address_is_dialled(
    host: str, works: bool
) -> None:
    plugin = Listening("acme.word")
    address = await plugin.start("127.0.0.1:0", _credentials())
    profiles = {"plugins": {"ca_file": CERTIFICATES / "ca.pem"}}
    async with serving(remote_allowed=["127.0.0.1"], remote_tls=profiles) as live:
        live.app.remotes.leases._resolver._resolve = resolving("127.0.0.1")
        target = f"{host}:{address.rpartition(':')[2]}"
        await register(live, plugin, target=target, tls_profile="plugins")
        assert (await live.unary(request(WORD))).summary.success == works
    await plugin.stop()


async def test_a_changed_tls_profile_is_used_for_the_next_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plugin, ca = Listening("acme.word"), tmp_path / "ca.pem"
    address = await plugin.start("127.0.0.1:0", _credentials())
    make_certificates(tmp_path, ["localhost"], 1)  # ca.pem is of another CA
    async with serving(remote_allowed=["127.0.0.1"], remote_tls={"plugins": {"ca_file": ca}}) as live:
        live.app.remotes.leases._resolver._resolve = resolving("127.0.0.1")
        target = f"plugin.example:{address.rpartition(':')[2]}"
        await register(live, plugin, target=target, ttl=300, tls_profile="plugins")
        (instance,) = live.app.remotes.instances.by_id.values()
        assert not instance.reachable
        shutil.copyfile(CERTIFICATES / "ca.pem", ca)
        await until(lambda: instance.reachable)
        ca.unlink()
        await plugin.stop()
        await until(lambda: not instance.reachable)
        plugin = Listening("acme.word")
        await plugin.start(address, _credentials())
        await until(lambda: instance.reachable)
        assert "the previous certificates stay in use" in caplog.text
    await plugin.stop()


async def test_a_plugin_that_registers_again_with_a_tls_profile_is_connected_anew_with_it() -> None:
    plugin = Listening("acme.word")
    await plugin.start("127.0.0.1:0")
    profiles = {"plugins": {"ca_file": CERTIFICATES / "ca.pem"}}
    async with serving(remote_allowed=["127.0.0.1"], remote_tls=profiles) as live:
        await register(live, plugin)
        assert (await live.unary(request(WORD))).summary.success
        await register(live, plugin, tls_profile="plugins")
        (instance,) = live.app.remotes.instances.by_id.values()
        await until(lambda: "TLS handshake failed" in instance.last_error)
        assert not (await live.unary(request(WORD))).summary.success, "no task goes without TLS"
    await plugin.stop()


async def test_the_operator_reads_why_a_target_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    plugin = Listening("acme.word")
    plugin.info.evaluator_types[0].label = "x" * 201
    address = await plugin.start("127.0.0.1:0")
    said = 'plugin.evaluator_types[0].label: "acme.word": got 201 characters, wanted at most 200'
    async with serving(remote_targets=[address]) as live:
        (instance,) = live.app.remotes.instances.by_id.values()
        await until(lambda: instance.last_error == said)
        assert [one.levelname for one in caplog.records if said in one.getMessage()] == ["WARNING"]
    await plugin.stop()


@pytest.mark.parametrize("profile", ["", "plugins"])
async def test_static_targets_can_have_a_tls_profile(profile: str) -> None:
    plugin = Listening("acme.word")
    address = await plugin.start("127.0.0.1:0", None if not profile else _credentials())
    host = "127.0.0.1" if not profile else "localhost"
    target = f"{host}:{address.rpartition(':')[2]}"
    settings: dict[str, Any] = {"remote_targets": [{"target": target, "tls_profile": profile}]}
    if profile:
        settings["remote_tls"] = {profile: {"ca_file": CERTIFICATES / "ca.pem"}}
    async with serving(**settings) as live:
        (instance,) = live.app.remotes.instances.by_id.values()
        if profile:  # of plugin.example, which localhost is not
            await until(lambda: instance.last_error)
            assert instance._connection is None
        else:
            await until(lambda: instance.reachable)
    await plugin.stop()
