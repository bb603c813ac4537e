"""gRPC channels to checked addresses, without a proxy, gRPC retries and shared connections."""

import asyncio
from typing import Any, Final, NamedTuple

import grpc

from evald_server.config import Settings

from .dial_allowlist import Dial

_READY: Final = grpc.ChannelConnectivity.READY


class DialTls(NamedTuple):
    """A TLS profile. roots, key, chain: PEM; roots None means the system's roots."""

    roots: bytes | None
    key: bytes | None = None
    chain: bytes | None = None


def read_tls_profiles(settings: Settings) -> dict[str, DialTls]:
    """Read the files of all TLS profiles. Raises ValueError that names the wrong setting."""
    profiles = {}
    for name, profile in settings.remote_tls.items():
        try:
            files = (profile.ca_file, profile.key_file, profile.cert_file)
            profiles[name] = DialTls(*(file.read_bytes() if file else None for file in files))
        except OSError as problem:
            raise ValueError(f"remote_tls: {name}: {problem}") from None
    return profiles


class NotConnected(Exception):
    """There is no connection. The message gives the reason."""


def open_channel(dial: Dial, tls: DialTls | None, max_receive_bytes: int) -> grpc.aio.Channel:
    """Create a channel. It connects with the first call, or in `connect`."""
    options: list[tuple[str, Any]] = [
        ("grpc.default_authority", dial.authority),
        ("grpc.enable_http_proxy", 0),
        ("grpc.enable_retries", 0),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", max_receive_bytes),
        # The peer must not configure its own calls.
        ("grpc.service_config_disable_resolution", 1),
        # The owner of the channel reconnects, with addresses checked again.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 1000),
    ]
    if tls is None:
        return grpc.aio.insecure_channel(dial.pinned, options)
    credentials = grpc.ssl_channel_credentials(tls.roots, tls.key, tls.chain)
    return grpc.aio.secure_channel(dial.pinned, credentials, options)


async def connect(channel: grpc.aio.Channel, seconds: float) -> None:
    """Connect. Raises NotConnected."""
    try:
        async with asyncio.timeout(seconds):
            while (state := channel.get_state(try_to_connect=True)) is not _READY:
                if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                    raise NotConnected("no connection: no server listens there, or the TLS handshake failed")
                await channel.wait_for_state_change(state)
    except TimeoutError:
        raise NotConnected(f"no connection within {seconds:g}s") from None
