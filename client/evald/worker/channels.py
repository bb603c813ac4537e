"""Channels from a worker to evald servers."""

import asyncio
import random
import socket
from typing import Any, Final

import grpc

from ..connection import MAX_MESSAGE_BYTES

# What does not get better by asking again: somebody has to change something first.
_FINAL: Final = frozenset(
    (
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.UNIMPLEMENTED,
    )
)


def is_final(code: grpc.StatusCode) -> bool:
    """Whether a refusal stays the same however often one asks."""
    return code in _FINAL


def new_channel(
    server: str, credentials: grpc.ChannelCredentials | None, authority: str = ""
) -> grpc.aio.Channel:
    """A channel with a connection of its own.

    authority: whom TLS and HTTP take the server for, where `server` is just one address of it.
    """
    options: list[tuple[str, Any]] = [
        # Another channel's connection would bring back the server that is known already, and its
        # back-off would keep this one waiting.
        ("grpc.use_local_subchannel_pool", 1),
        # The server decides how large its tasks are.
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        # 20 s: twice the least interval that the server allows; finds a dead peer of an idle session.
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.max_pings_without_data", 0),
    ]
    if authority:
        options.append(("grpc.default_authority", authority))
        if credentials is not None:
            options.append(("grpc.ssl_target_name_override", authority.rpartition(":")[0] or authority))
    if credentials is None:
        return grpc.aio.insecure_channel(server, options=options)
    return grpc.aio.secure_channel(server, credentials, options=options)


async def targets(server: str) -> list[str]:
    """The addresses behind a server's name, in random order, so that workers spread over them.

    A name with one address, or of a scheme that only gRPC understands, stays as it is.
    """
    scheme, colon, rest = server.partition(":")
    if colon and scheme in ("ipv4", "ipv6"):
        found = [f"{scheme}:{address}" for address in rest.split(",")]
    elif scheme in ("unix", "unix-abstract", "xds", "vsock"):
        found = [server]
    else:
        host, _, port = server.removeprefix("dns:").rpartition("/")[2].rpartition(":")
        found = await _resolved(host.strip("[]"), port) or [server]
    if len(found) == 1:
        return [server]
    random.SystemRandom().shuffle(found)
    return found


async def _resolved(host: str, port: str) -> list[str]:
    if not host or not port.isdigit():
        return []
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except OSError:
        return []  # gRPC asks again, and says what is wrong
    targets = [
        f"ipv6:[{address[0]}]:{port}" if family is socket.AF_INET6 else f"ipv4:{address[0]}:{port}"
        for family, _, _, _, address in found
    ]
    return list(dict.fromkeys(targets))
