"""A gRPC port that stays open.

The server of grpcio 1.84 and 1.85 gives up for good when a request has a path that is not UTF-8: it takes no connection
any more, and says so nowhere but in its log.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

import grpc

from evald_server.certificates import Certificates

from .tls import TlsPort

_log = logging.getLogger("evald.rpc")

# The logger of the module that reads headers, and logs values that are not UTF-8, of credentials too.
_grpc_log = logging.getLogger(grpc.aio.InternalError.__module__)

# Between two looks whether a server has given up.
_LOOK_SECONDS: Final = 0.1

# An old server is stopped when its last call has ended, however long that takes, but of more than these the oldest is
# stopped at once: calls that are never ended must not keep servers without end.
_UNTIL_ENDED: Final = 1e9
_MAX_OLD: Final = 8


class RpcPort:
    """One address, with a gRPC server behind it, and another when that gives up.

    handlers: of all methods. max_calls: that it holds at a time. certificates: None for plaintext. require: clients
    need a certificate.
    """

    def __init__(
        self,
        handlers: grpc.GenericRpcHandler,
        options: Sequence[tuple[str, Any]],
        max_calls: int,
        certificates: Certificates | None,
        *,
        require: bool,
    ) -> None:
        _grpc_log.addFilter(_is_of_our_own)
        self._handlers = handlers
        self._options = options
        self._max_calls = max_calls
        self._certificates = certificates
        self._require = require
        self._tls: TlsPort | None = None
        self._server: grpc.aio.Server | None = None
        self._old: list[grpc.aio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def bind(self, address: str) -> int:
        """Bind an address. Returns the port; 0 if the address cannot be had."""
        server = grpc.aio.server(
            options=self._options,
            # Above the limits on streams and waiting calls, so that gRPC never refuses first; bounds memory.
            maximum_concurrent_rpcs=self._max_calls,
        )
        server.add_generic_rpc_handlers([self._handlers])
        try:
            if self._certificates is None:
                bound = server.add_insecure_port(address)
            else:
                self._tls = TlsPort(self._certificates, require=self._require)
                bound = server.add_secure_port(address, self._tls.credentials)
        except RuntimeError:
            return 0
        if bound:
            self._server = server
        return bound

    async def start(self, address: str) -> None:
        """Take calls. address: that was bound, with the port."""
        assert self._server is not None
        await self._server.start()
        self._begin(self._keep_open(self._server, address))

    async def stop(self, grace_seconds: float | None) -> None:
        """Take no more calls, and end those that go on after the grace."""
        for task in self._tasks:
            task.cancel()
        servers = [*self._old, *([self._server] if self._server is not None else ())]
        await asyncio.gather(*(server.stop(grace_seconds) for server in servers))

    def publish(self, certificates: Certificates) -> None:
        """Use these for new connections. Open ones go on."""
        self._certificates = certificates
        if self._tls is not None:
            self._tls.publish(certificates)

    async def _keep_open(self, server: grpc.aio.Server, address: str) -> None:
        problem = await _failure(server)
        _log.error(
            "gRPC's server on %s has given up: %s; another takes its place, and open calls go on",
            address,
            type(problem).__name__,
        )
        if len(self._old) >= _MAX_OLD:
            await self._old[0].stop(None)
        self._old.append(server)
        self._begin(self._stopped(server))
        while not self.bind(address):  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(_LOOK_SECONDS)
        await self.start(address)

    async def _stopped(self, server: grpc.aio.Server) -> None:
        await server.stop(_UNTIL_ENDED)
        self._old.remove(server)

    def _begin(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _failure(server: grpc.aio.Server) -> Exception:
    """Return what a server has failed with, when it has."""
    while True:
        try:
            await server.wait_for_termination(_LOOK_SECONDS)
        except Exception as problem:  # noqa: BLE001 - whatever it is
            return problem


def _is_of_our_own(record: logging.LogRecord) -> bool:
    """Return whether a record of gRPC holds no bytes: those are what callers have sent."""
    arguments = record.args.values() if isinstance(record.args, Mapping) else record.args or ()
    return not any(isinstance(argument, bytes) for argument in arguments)
