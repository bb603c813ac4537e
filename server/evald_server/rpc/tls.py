"""TLS of the gRPC port, with certificates that change while it listens."""

from typing import Any

import grpc

from evald_server.certificates import Certificates


class TlsPort:
    """Makes the credentials of a port. require: clients need a certificate of the client CA."""

    def __init__(self, certificates: Certificates, *, require: bool) -> None:
        self._fresh: grpc.ServerCertificateConfiguration | None = None
        # Its types leave out that None keeps what there is.
        fetch: Any = self._fetch
        self.credentials = grpc.dynamic_ssl_server_credentials(
            _configuration(certificates), fetch, require_client_authentication=require
        )

    def publish(self, certificates: Certificates) -> None:
        """Use these for new connections. Open ones go on."""
        self._fresh = _configuration(certificates)

    def _fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """Return what is new, and None if nothing is. Called by gRPC at every handshake, so it must not wait."""
        fresh, self._fresh = self._fresh, None
        return fresh


def _configuration(certificates: Certificates) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(certificates.key, certificates.chain)], root_certificates=certificates.client_ca
    )
