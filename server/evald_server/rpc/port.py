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
    need a certificate of the client CA.
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
        # The newest certificates until gRPC, in a thread of its own, has taken them.
        self._fresh: deque[grpc.ServerCertificateConfiguration] = deque(maxlen=1)
        self._credentials = None
        if certificates is not None:
            # Any, because the type stubs omit the result None, which keeps the current certificates.
            fetch: Any = self._fetch
            self._credentials = grpc.dynamic_ssl_server_credentials(
                _configuration(certificates), fetch, require_client_authentication=require
            )
        # max_calls is above the limits on streams and waiting calls, so that gRPC never refuses first; it bounds memory.
        self._server = grpc.aio.server(options=options, maximum_concurrent_rpcs=max_calls)
        self._server.add_generic_rpc_handlers([handlers])
        self.start = self._server.start
        self.stop = self._server.stop

    def bind(self, address: str) -> int:
        """Bind an address. Returns the port; 0 if the address is not available."""
        try:
            if self._credentials is None:
                return self._server.add_insecure_port(address)
            return self._server.add_secure_port(address, self._credentials)
        except RuntimeError:
            return 0

    def publish(self, certificates: Certificates) -> None:
        """Use other certificates for new connections. Open connections keep theirs."""
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
