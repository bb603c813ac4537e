"""Agents are called at checked addresses only, each time anew, and under their own name."""

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest

from evald_server.connectors import http_client

from ..judge.wire import Wire, answer, wire
from .building import built, failure, texts, turn

CERTIFICATES = Path(__file__).parents[1] / "remote/certificates"
FINE = answer(200, {"text": "fine"})


def resolving(*addresses: str) -> Any:
    async def resolve(_host: str, _port: int) -> list[str]:
        return list(addresses)

    return resolve


def port_of(server: Wire) -> str:
    return server.base_url.split(":")[2].removesuffix("/v1")


async def test_a_name_is_called_at_its_checked_address_under_its_name() -> None:
    async with wire(FINE) as server:
        url = f"http://Agent.Example:{port_of(server)}"
        async with built("http", url, resolve=resolving("127.0.0.1")) as agent:
            assert texts(await agent.invoke(turn())) == [("assistant", "fine")]
        assert f"host: agent.example:{port_of(server)}" in server.requests[0][0].lower()


async def test_the_next_address_is_tried_where_nobody_answers() -> None:
    async with wire(FINE) as server:
        url = f"http://agent.example:{port_of(server)}"
        async with built(
            "http", url, {"maxAttempts": 1}, resolve=resolving("127.0.0.2", "127.0.0.1")
        ) as agent:
            assert texts(await agent.invoke(turn())) == [("assistant", "fine")]


@pytest.mark.parametrize("kind", ["http", "grpc"])
@pytest.mark.parametrize("address", ["169.254.169.254", "::ffff:127.0.0.1", "fe80::1%2", "fd00:ec2::254"])
async def test_no_name_leads_to_a_forbidden_address(kind: str, address: str) -> None:
    url = "http://agent.example" if kind == "http" else "agent.example:80"
    async with built(kind, url, resolve=resolving("10.0.0.1", address)) as agent:
        failed = await failure(agent)
        assert failed.code == "CONNECTOR_CONFIG"
        assert failed.message.startswith("base_url: agent.example:80")
        assert "not allowed" in failed.message


async def test_a_name_is_checked_again_for_every_request() -> None:
    """DNS rebinding: harmless at first, the metadata service later."""
    found = ["127.0.0.1"]

    async def resolve(_host: str, _port: int) -> list[str]:
        return found

    async with wire(FINE) as server:
        url = f"http://agent.example:{port_of(server)}"
        async with built("http", url, resolve=resolve, connector_allowed=["127.0.0.1"]) as agent:
            await agent.invoke(turn())
            found[0] = "10.0.0.1"
            failed = await failure(agent)
        assert (
            "no rule allows it. The operator of the server allows targets with the setting connector_allowed"
            in failed.message
        )
        assert len(server.requests) == 1


async def test_a_name_that_is_not_known_is_told() -> None:
    async def resolve(_host: str, _port: int) -> list[str]:
        raise OSError("Name or service not known")

    for kind, url in (("http", "http://agent.example"), ("grpc", "agent.example:80")):
        async with built(kind, url, {"maxAttempts": 1}, resolve=resolve) as agent:
            failed = await failure(agent)
            assert failed.code == "CONNECTOR_UNAVAILABLE"
            assert "host name cannot be resolved" in failed.message


async def test_no_proxy_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    async with wire(FINE) as server, wire(FINE) as proxy:
        for name in ("http_proxy", "all_proxy", "HTTP_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.base_url)
        async with built("http", server.base_url) as agent:
            await agent.invoke(turn())
        assert (len(server.requests), proxy.requests) == (1, [])


async def test_an_ipv6_address_is_called() -> None:
    served = Wire([FINE])
    try:
        server = await asyncio.start_server(served.serve, "::1", 0)
    except OSError:
        pytest.skip("no IPv6 here")
    async with server, built("http", f"http://[::1]:{server.sockets[0].getsockname()[1]}") as agent:
        assert texts(await agent.invoke(turn())) == [("assistant", "fine")]
    await served.stop()


@pytest.mark.parametrize(("host", "works"), [("plugin.example", True), ("other.example", False)])
async def test_a_certificate_is_checked_against_the_name_although_an_address_is_dialled(
    host: str, works: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    trusted = ssl.create_default_context(cafile=str(CERTIFICATES / "ca.pem"))
    monkeypatch.setattr(http_client, "_tls_context", lambda: trusted)
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own.load_cert_chain(CERTIFICATES / "plugin.pem", CERTIFICATES / "plugin.key")
    served = Wire([FINE])
    server = await asyncio.start_server(served.serve, "127.0.0.1", 0, ssl=own)
    url = f"https://{host}:{server.sockets[0].getsockname()[1]}"
    async with server:
        async with built("http", url, {"maxAttempts": 1}, resolve=resolving("127.0.0.1")) as agent:
            if works:
                assert texts(await agent.invoke(turn())) == [("assistant", "fine")]
            else:
                assert "its certificate is not valid: Hostname mismatch" in (await failure(agent)).message
        await served.stop()
