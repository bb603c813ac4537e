"""A gRPC port that restarts its server when that fails.

The server of grpcio 1.84 and 1.85 fails for good when a request has a path that is not UTF-8: it accepts no connection
any more, and reports that only in its log.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

import grpc

from evald_server.certificates import Certificates

_log = logging.getLogger("evald.rpc")

# The logger of the module that reads headers, and logs values that are not UTF-8, of credentials too.
_grpc_log = logging.getLogger(grpc.aio.InternalError.__module__)

# Between two checks whether a server has failed.
_CHECK_SECONDS: Final = 0.1

# A failed server is stopped when its last call has ended, however long that takes. Of more than _MAX_OLD the oldest is
# stopped at once, because calls that never end would keep servers without limit.
_UNTIL_ENDED: Final = 1e9
_MAX_OLD: Final = 8


class RpcPort:
    """One address with a gRPC server, which is replaced when it fails.

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
        _grpc_log.addFilter(_has_no_bytes)
        self._handlers = handlers
        self._options = options
        self._max_calls = max_calls
        self._certificates = certificates
        self._require = require
        self._tls: _Tls | None = None
        self._server: grpc.aio.Server | None = None
        self._old: list[grpc.aio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def bind(self, address: str) -> int:
        """Bind an address. Returns the port; 0 if the address is not available."""
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
                self._tls = _Tls(self._certificates, require=self._require)
                bound = server.add_secure_port(address, self._tls.credentials)
        except RuntimeError:
            return 0
        if bound:
            self._server = server
        return bound

    async def start(self, address: str) -> None:
        """Accept calls. address: the bound one, with its port."""
        assert self._server is not None
        await self._server.start()
        self._begin(self._keep_open(self._server, address))

    async def stop(self, grace_seconds: float | None) -> None:
        """Accept no more calls, and end those that are still open after the grace."""
        for task in self._tasks:
            task.cancel()
        servers = [*self._old, *([self._server] if self._server is not None else ())]
        await asyncio.gather(*(server.stop(grace_seconds) for server in servers))

    def publish(self, certificates: Certificates) -> None:
        """Use other certificates for new connections. Open connections keep theirs."""
        self._certificates = certificates
        if self._tls is not None:
            self._tls.publish(certificates)

    async def _keep_open(self, server: grpc.aio.Server, address: str) -> None:
        problem = await _failure(server)
        _log.error(
            "the gRPC server on %s has failed: %s; a new one replaces it, and open calls continue",
            address,
            type(problem).__name__,
        )
        if len(self._old) >= _MAX_OLD:
            await self._old[0].stop(None)
        self._old.append(server)
        self._begin(self._stopped(server))
        while not self.bind(address):  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(_CHECK_SECONDS)
        await self.start(address)

    async def _stopped(self, server: grpc.aio.Server) -> None:
        await server.stop(_UNTIL_ENDED)
        self._old.remove(server)

    def _begin(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Tls:
    """The TLS credentials of a port, whose certificates may change. require: clients need a certificate of the client CA."""

    def __init__(self, certificates: Certificates, *, require: bool) -> None:
        # The newest configuration until gRPC, in a thread of its own, has taken it.
        self._fresh: deque[grpc.ServerCertificateConfiguration] = deque(maxlen=1)
        # Any, because the type stubs omit the result None, which keeps the current certificates.
        fetch: Any = self._fetch
        self.credentials = grpc.dynamic_ssl_server_credentials(
            _configuration(certificates), fetch, require_client_authentication=require
        )

    def publish(self, certificates: Certificates) -> None:
        """Use these certificates for new connections. Open connections stay."""
        self._fresh.append(_configuration(certificates))

    def _fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """Return new certificates, else None. gRPC calls this at every handshake, so it must not block."""
        try:
            return self._fresh.pop()
        except IndexError:
            return None


def _configuration(certificates: Certificates) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(certificates.key, certificates.chain)], root_certificates=certificates.client_ca
    )


async def _failure(server: grpc.aio.Server) -> Exception:
    """Wait until a server fails. Returns its exception."""
    while True:
        try:
            await server.wait_for_termination(_CHECK_SECONDS)
        except Exception as problem:  # noqa: BLE001 - whatever it is
            return problem


def _has_no_bytes(record: logging.LogRecord) -> bool:
    """Return whether a log record of gRPC has no bytes among its arguments: these are data that callers have sent."""
    arguments = record.args.values() if isinstance(record.args, Mapping) else record.args or ()
    return not any(isinstance(argument, bytes) for argument in arguments)
