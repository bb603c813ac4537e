"""gRPC channels to checked addresses, without a proxy, gRPC retries and shared connections."""

import asyncio
import logging
from typing import Any, Final

import grpc

from evald_server.config import Settings, TlsProfile
from evald_server.input_files import read_regular

from .dial_allowlist import Dial

_log = logging.getLogger("evald.remote")

# Enough for a CA bundle with hundreds of certificates.
_MAX_BYTES: Final = 4 << 20

_READY: Final = grpc.ChannelConnectivity.READY


class DialTls:
    """The files of a TLS profile, read again for every connection. Without a CA the system's roots are trusted.

    The constructor raises OSError.
    """

    def __init__(self, name: str, profile: TlsProfile) -> None:
        self._name = name
        self._files = (profile.ca_file, profile.key_file, profile.cert_file)
        self._contents = self._read()
        self._readable = True

    def credentials(self) -> grpc.ChannelCredentials:
        """Return the credentials of a new connection: of the last files that could be read."""
        try:
            self._contents, self._readable = self._read(), True
        except OSError as problem:
            if self._readable:
                _log.error("remote_tls: %s: %s; the previous certificates stay in use", self._name, problem)
            self._readable = False
        return grpc.ssl_channel_credentials(*self._contents)

    def _read(self) -> list[bytes | None]:
        return [read_regular(file, _MAX_BYTES) if file else None for file in self._files]


def read_tls_profiles(settings: Settings) -> dict[str, DialTls]:
    """Read the files of all TLS profiles. Raises ValueError that names the wrong setting."""
    profiles = {}
    for name, profile in settings.remote_tls.items():
        try:
            profiles[name] = DialTls(name, profile)
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
    return grpc.aio.secure_channel(dial.pinned, tls.credentials(), options)


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
