"""A gRPC port, whose certificates may change."""

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import grpc

from evald_server.certificates import Certificates

# The logger of the module that reads headers, and logs values that are not UTF-8, of credentials too.
_grpc_log = logging.getLogger(grpc.aio.InternalError.__module__)


class RpcPort:
    """One address with a gRPC server.

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
        self._tls = None if certificates is None else _Tls(certificates, require=require)
        # max_calls is above the limits on streams and waiting calls, so that gRPC never refuses first; it bounds memory.
        self._server = grpc.aio.server(options=options, maximum_concurrent_rpcs=max_calls)
        self._server.add_generic_rpc_handlers([handlers])

    def bind(self, address: str) -> int:
        """Bind an address. Returns the port; 0 if the address is not available."""
        try:
            if self._tls is None:
                return self._server.add_insecure_port(address)
            return self._server.add_secure_port(address, self._tls.credentials)
        except RuntimeError:
            return 0

    async def start(self) -> None:
        """Accept calls."""
        await self._server.start()

    async def stop(self, grace_seconds: float | None) -> None:
        """Accept no more calls, and end those that are still open after the grace."""
        await self._server.stop(grace_seconds)

    def publish(self, certificates: Certificates) -> None:
        """Use other certificates for new connections. Open connections keep theirs."""
        if self._tls is not None:
            self._tls.publish(certificates)


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


def _has_no_bytes(record: logging.LogRecord) -> bool:
    """Return whether a log record of gRPC has no bytes among its arguments: these are data that callers have sent."""
    arguments = record.args.values() if isinstance(record.args, Mapping) else record.args or ()
    return not any(isinstance(argument, bytes) for argument in arguments)
