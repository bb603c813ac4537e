"""Read and check the PEM files of the server's certificate, its key and the clients' CA."""

import ssl
import time
from pathlib import Path
from typing import Final, NamedTuple

from .files import FileProblem
from .input_files import read_regular

# Enough for a CA bundle with hundreds of certificates.
_MAX_BYTES: Final = 4 << 20

_SSL_CODES: Final = {9: "is not valid yet", 10: "has expired"}


class CertificateFiles(NamedTuple):
    """Paths of PEM files. client_ca: the CA that signs the certificates of clients."""

    cert: Path
    key: Path
    client_ca: Path | None = None


class Certificates(NamedTuple):
    """Contents of valid files. context: for HTTP. expiries: Unix times in seconds, by setting."""

    chain: bytes
    key: bytes
    client_ca: bytes | None
    context: ssl.SSLContext
    expiries: dict[str, float]


def read_certificates(files: CertificateFiles) -> Certificates:
    """Read the files and test them with a TLS handshake in memory. Raises FileProblem."""
    chain, key, ca = contents = _read_all(files)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # As in gRPC: forward secrecy and authenticated encryption.
    context.set_ciphers("ECDHE+AESGCM")
    try:
        # Without this function OpenSSL asks for a password at the terminal.
        context.load_cert_chain(files.cert, files.key, password=_no_password)
    except _Encrypted:
        raise FileProblem(
            f"tls_key_file {files.key}: is encrypted; wanted a key without a password"
        ) from None
    except (ssl.SSLError, OSError) as problem:
        if isinstance(problem, ssl.SSLError) and problem.reason == "EE_KEY_TOO_SMALL":
            raise FileProblem(
                f"tls_cert_file {files.cert}: the key is too short; wanted an RSA key of at "
                "least 2048 bits, or an elliptic curve key"
            ) from None
        raise FileProblem(
            f"tls_cert_file {files.cert}, tls_key_file {files.key}: wanted a certificate "
            "and its key in PEM; they cannot be parsed, or do not belong together"
        ) from None
    if _read_all(files) != contents:
        # OpenSSL has read them for itself, so the context and the contents may be of two different pairs.
        raise FileProblem(
            f"tls_cert_file {files.cert}, tls_key_file {files.key}: the files changed while they were read"
        )
    expiries = {"tls_cert_file": _expiry(context, chain, files.cert)}
    if ca is not None and files.client_ca is not None:
        expiries["tls_client_ca_file"] = _ca_expiry(ca, files.client_ca)
    return Certificates(chain, key, ca, context, expiries)


class _Encrypted(Exception):
    """The key has a password."""


def _no_password() -> str:
    raise _Encrypted


def _read_all(files: CertificateFiles) -> tuple[bytes, bytes, bytes | None]:
    """Return the certificate, its key and the clients' CA. Raises FileProblem."""
    return (
        _read("tls_cert_file", files.cert),
        _read("tls_key_file", files.key),
        None if files.client_ca is None else _read("tls_client_ca_file", files.client_ca),
    )


def _read(setting: str, path: Path) -> bytes:
    try:
        data = read_regular(path, _MAX_BYTES)
    except OSError as problem:
        raise FileProblem(f"{setting} {path}: {problem.strerror}") from problem
    if b"-----BEGIN " not in data:
        raise FileProblem(f"{setting} {path}: wanted PEM")
    return data


def _ascii(pem: bytes) -> str:
    """Return PEM as Python's ssl takes it. Comments, often the names of issuers, may have other characters."""
    return pem.decode("latin-1").encode("ascii", "replace").decode("ascii")


def _expiry(context: ssl.SSLContext, chain: bytes, path: Path) -> float:
    """Return the certificate's expiry, Unix time in seconds. Raises FileProblem if no client accepts it."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    # Trust the certificate itself, whichever CA has signed it.
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        client.load_verify_locations(cadata=_ascii(chain))
        peer = _handshake(client, context)
    except ssl.SSLCertVerificationError as problem:
        what = _SSL_CODES.get(problem.verify_code, f"is refused: {problem.verify_message}")
        # With its cause, which is an OSError: one that is not valid yet will be, by the clock of this machine.
        raise FileProblem(f"tls_cert_file {path}: the certificate {what}") from problem
    except ssl.SSLError as problem:
        raise FileProblem(
            f"tls_cert_file {path}: a TLS handshake with the certificate fails: {problem.reason}"
        ) from None
    return peer


def _handshake(client: ssl.SSLContext, server: ssl.SSLContext) -> float:
    """Do a TLS handshake in memory. Returns the expiry of the server's certificate. Raises ssl.SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    caller = client.wrap_bio(to_client, to_server)
    answerer = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(10):
        for side in (caller, answerer):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            if side is caller:
                peer = caller.getpeercert()
                assert peer is not None
                return ssl.cert_time_to_seconds(str(peer["notAfter"]))
    raise ssl.SSLError("the handshake does not complete")


def _ca_expiry(ca: bytes, path: Path) -> float:
    """Return the latest expiry of the CA's certificates. Raises FileProblem if none is valid."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cadata=_ascii(ca))
    except ssl.SSLError:
        raise FileProblem(f"tls_client_ca_file {path}: wanted certificates in PEM") from None
    expiries = [ssl.cert_time_to_seconds(str(found["notAfter"])) for found in context.get_ca_certs()]
    if not expiries:
        raise FileProblem(f"tls_client_ca_file {path}: contains no CA certificate")
    if max(expiries) <= time.time():
        raise FileProblem(f"tls_client_ca_file {path}: every certificate in it has expired")
    return max(expiries)
