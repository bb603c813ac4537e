"""TLS of a gRPC port, whose certificates may change while it listens."""

from typing import Any

import grpc

from evald_server.certificates import Certificates


class TlsPort:
    """The TLS credentials of a port. require: clients need a certificate of the client CA."""

    def __init__(self, certificates: Certificates, *, require: bool) -> None:
        self._fresh: grpc.ServerCertificateConfiguration | None = None
        # Any, because the type stubs omit the result None, which keeps the current certificates.
        fetch: Any = self._fetch
        self.credentials = grpc.dynamic_ssl_server_credentials(
            _configuration(certificates), fetch, require_client_authentication=require
        )

    def publish(self, certificates: Certificates) -> None:
        """Use these certificates for new connections. Open connections stay."""
        self._fresh = _configuration(certificates)

    def _fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """Return new certificates, else None. gRPC calls this at every handshake, so it must not block."""
        fresh, self._fresh = self._fresh, None
        return fresh


def _configuration(certificates: Certificates) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(certificates.key, certificates.chain)], root_certificates=certificates.client_ca
    )
