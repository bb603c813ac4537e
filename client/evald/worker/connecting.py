"""Connections of a worker to evald servers: channels, addresses, backoff."""

import asyncio
import random
import socket
from collections.abc import Awaitable
from typing import Any, Final

import grpc

from ..connection import CONNECTION_OPTIONS, MAX_MESSAGE_BYTES
from ..credentials import Access
from ..errors import cause_of_no_connection

# Short enough that a worker reconnects within 10 s of a restart. Long enough that a thousand workers, with jitter,
# make only some hundred attempts per second.
MAX_DELAY_SECONDS: Final = 3.0

# A retry is pointless: an operator must change the configuration first.
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


class Backoff:
    """Exponential backoff with full jitter. Each delay is random between 0 and a bound that doubles.

    first: bound of the first delay in seconds. maximum: largest bound.
    Source: M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.
    """

    def __init__(
        self, first: float = 0.2, maximum: float = MAX_DELAY_SECONDS, rng: random.Random | None = None
    ) -> None:
        self._first = first
        self._maximum = maximum
        self._bound = first
        self._rng = rng or random.SystemRandom()

    def next(self) -> float:
        """Return the next delay in seconds."""
        delay = self._rng.uniform(0, self._bound)
        self._bound = min(self._maximum, 2 * self._bound)
        return delay

    def reset(self) -> None:
        """Reset the bound to the first one. Call it after a success."""
        self._bound = self._first


async def first_of(*waits: Awaitable[Any]) -> None:
    """Wait until one of them ends, and cancel the others. Raises the exception of one that ended with it."""
    tasks = [asyncio.ensure_future(one) for one in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()


def is_final(code: grpc.StatusCode) -> bool:
    """Return whether a retry after this status is pointless."""
    return code in _FINAL


def status_text(problem: grpc.aio.AioRpcError) -> str:
    """Return a status for the log, with the likely cause if there was no connection."""
    details = problem.details() or ""
    cause = cause_of_no_connection(details)
    return f"{problem.code().name} {details}{': ' if cause else ''}{cause}"


def new_channel(server: str, access: Access, authority: str = "") -> grpc.aio.Channel:
    """Open a channel with its own connection. Raises InvalidInput for unreadable certificates.

    authority: host name for TLS and HTTP, if `server` is only one of its addresses.
    """
    # Read the certificates again: a worker runs longer than they are valid.
    credentials = access.current_credentials()
    options: list[tuple[str, Any]] = [
        # With its own connection, for a shared one would reach the server that is already connected.
        *CONNECTION_OPTIONS,
        # No limit here: the server limits the size of its tasks.
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ]
    if authority:
        options.append(("grpc.default_authority", authority))
        if credentials is not None and access.server_name is None:
            options.append(("grpc.ssl_target_name_override", authority.rpartition(":")[0] or authority))
    options += access.options(server)
    if credentials is None:
        return grpc.aio.insecure_channel(server, options=options)
    return grpc.aio.secure_channel(server, credentials, options=options)


def listed_addresses(server: str) -> list[str]:
    """Return the addresses of an "ipv4:" or "ipv6:" target, each as a target; an empty list for other targets."""
    scheme, _, rest = server.partition(":")
    return [f"{scheme}:{address}" for address in rest.split(",")] if scheme in ("ipv4", "ipv6") else []


async def resolve_addresses(server: str) -> list[str]:
    """Resolve a server's name. Returns its addresses as targets.

    The list is empty for a name without an address, and for a scheme that only gRPC can resolve.
    """
    if listed := listed_addresses(server):
        return listed
    if server.partition(":")[0] in ("unix", "unix-abstract", "xds", "vsock"):
        return []
    host, _, port = server.removeprefix("dns:").rpartition("/")[2].rpartition(":")
    return await _resolved(host.strip("[]"), port)


async def resolve_targets(server: str) -> list[str]:
    """Resolve a server's name. Returns its addresses in random order, to distribute workers over them.

    Returns only the name itself if it has one address, or cannot be resolved here.
    """
    found = await resolve_addresses(server)
    if len(found) <= 1:
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
        return []  # gRPC resolves it again, and reports the problem
    targets = [
        f"ipv6:[{address[0]}]:{port}" if family is socket.AF_INET6 else f"ipv4:{address[0]}:{port}"
        for family, _, _, _, address in found
    ]
    return list(dict.fromkeys(targets))
