"""Credentials of a connection: TLS and a token."""

import errno
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, TypeAlias

import grpc

from .addresses import is_loopback
from .errors import InvalidInput
from .fields import shown

Token: TypeAlias = str | Path | Callable[[], str]
"""A token, the path of its file, or a function that returns it. File and function are read for every call."""

Metadata: TypeAlias = tuple[tuple[str, str], ...]

# Headers that HTTP/2 and gRPC accept: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md
_HEADER: Final = re.compile(r"[0-9a-z_.-]+")
_HEADER_TEXT: Final = re.compile(r"[\x20-\x7e]*")

# The beginning of an API key or of a JSON Web Token.
_TOKEN: Final = re.compile(r"evald_[a-z0-9]{12}_|eyJ")

_ON: Final = frozenset(("1", "true", "yes", "on"))
_OFF: Final = frozenset(("", "0", "false", "no", "off"))

# Limit of a token or PEM file; a file with all CAs that a system trusts has a quarter of it.
_MOST_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class Tls:
    """The TLS settings of a connection. All files are PEM.

    ca: file with the CA of the server's certificate; None means gRPC's own root certificates.
    cert, key: files with the client's certificate and its key, for servers that require one.
    server_name: name in the server's certificate, if it differs from the server's address.

    Raises InvalidInput if only one of cert and key is given.
    """

    ca: str | Path | None = None
    cert: str | Path | None = None
    key: str | Path | None = None
    server_name: str | None = None

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise InvalidInput("tls", "only one of cert and key", "both or neither")

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Read the files and return gRPC's credentials. Raises InvalidInput for an unreadable file."""
        return grpc.ssl_channel_credentials(
            _read("tls.ca", self.ca), _read("tls.key", self.key), _read("tls.cert", self.cert)
        )


@dataclass(frozen=True)
class Access:
    """The credentials of a client or worker.

    credentials: None for plaintext. tls: the files of the credentials. metadata: sent with every call.
    """

    credentials: grpc.ChannelCredentials | None
    tls: Tls | None
    token: Token | None
    metadata: Metadata

    @property
    def server_name(self) -> str | None:
        """The name in the server's certificate, if it differs from the server's address."""
        return self.tls.server_name if self.tls else None

    def current_credentials(self) -> grpc.ChannelCredentials | None:
        """Return credentials for a new channel, with the current certificates. Raises InvalidInput."""
        return self.tls.channel_credentials() if self.tls else self.credentials

    def headers(self) -> Metadata:
        """Return the metadata of a call, with the current token. Raises InvalidInput."""
        if not self.token:
            return self.metadata
        return (*self.metadata, ("authorization", f"Bearer {_current(self.token)}"))

    def options(self, server: str) -> list[tuple[str, Any]]:
        """Return gRPC's options for a channel to a server."""
        options: list[tuple[str, Any]] = []
        if self.server_name:
            options.append(("grpc.ssl_target_name_override", self.server_name))
        if is_this_machine(server):
            # A proxy from the environment would get the token in plaintext, and connect to its own loopback.
            options.append(("grpc.enable_http_proxy", 0))
        return options


def read_metadata(metadata: Any) -> Metadata:
    """Return the headers to send with every call. Raises InvalidInput, without the value: it may be a secret."""
    if metadata is None:
        return ()
    if not isinstance(metadata, Mapping):
        raise InvalidInput("metadata", f"got {type(metadata).__name__}", "an object of names and values")
    for name, value in metadata.items():
        if not isinstance(name, str) or not _HEADER.fullmatch(name):
            raise InvalidInput("metadata", shown(name), "names of a-z, 0-9, '-', '_' and '.'")
        path, found = f"metadata.{name}", f"got {type(value).__name__}"
        if name.endswith("-bin"):
            if not isinstance(value, bytes):
                raise InvalidInput(path, found, "bytes, because the name ends with -bin")
        elif not isinstance(value, str):
            raise InvalidInput(path, found, "text")
        elif not _HEADER_TEXT.fullmatch(value):
            raise InvalidInput(path, "text that cannot be sent", "printable ASCII")
    return tuple(metadata.items())


def tls_of_environment() -> Tls | None:
    """Return the settings of EVALD_TLS, EVALD_CA_FILE, EVALD_CERT_FILE and EVALD_KEY_FILE; None for plaintext.

    One of the files enables TLS; EVALD_TLS=0 disables it even then. Raises InvalidInput.
    """
    wanted = os.environ.get("EVALD_TLS", "").strip().lower()
    if wanted not in _ON | _OFF:
        raise InvalidInput("EVALD_TLS", f"{wanted[:20]!r}", "1 or 0")
    files = [os.environ.get(f"EVALD_{name}_FILE") or None for name in ("CA", "CERT", "KEY")]
    if wanted in _ON or (not wanted and any(files)):
        return Tls(*files)
    return None


def listen_credentials_of_environment() -> grpc.ServerCredentials | None:
    """Return the credentials in EVALD_TLS_CERT_FILE, EVALD_TLS_KEY_FILE and EVALD_TLS_CLIENT_CA_FILE.

    They are the server certificate of a listening worker, and the CA of its callers' certificates. The worker's
    client certificate for dialling a server is separate.

    Returns None for plaintext. Raises InvalidInput.
    """
    names = ("EVALD_TLS_CLIENT_CA_FILE", "EVALD_TLS_CERT_FILE", "EVALD_TLS_KEY_FILE")
    client_ca, cert, key = (os.environ.get(name) or None for name in names)
    if client_ca is None and cert is None and key is None:
        return None
    if cert is None or key is None:
        raise InvalidInput(names[1], "only some of the files", f"{names[1]} and {names[2]}")
    return server_credentials(Tls(client_ca, cert, key), names)


def server_credentials(
    tls: Tls, names: tuple[str, str, str] = ("tls.ca", "tls.cert", "tls.key")
) -> grpc.ServerCredentials:
    """Return the credentials of a server with certificate `cert`. With `ca`, it requires client certificates of it.

    names: names of ca, cert and key in errors. Raises InvalidInput for a missing or unreadable file.
    """
    files = zip(names, (tls.ca, tls.cert, tls.key), strict=True)
    client_ca, chain, key = (_read(name, path) for name, path in files)
    if chain is None or key is None:
        raise InvalidInput(names[1], "no certificate", f"{names[1]} and {names[2]}")
    return grpc.ssl_server_credentials([(key, chain)], client_ca, client_ca is not None)


def is_this_machine(server: str) -> bool:
    """Return whether a gRPC target is on this machine. Names except localhost count as remote."""
    scheme, colon, rest = server.partition(":")
    if colon and scheme in ("unix", "unix-abstract"):
        return True
    if colon and scheme == "dns":
        # In dns://SERVER/NAME another machine says what NAME is.
        server = rest.removeprefix("///")
    if "/" in server:
        return False
    addresses = rest.split(",") if colon and scheme in ("ipv4", "ipv6") else [server]
    return all(is_loopback(_host(one)) for one in addresses)


def _host(address: str) -> str:
    """Return an address without its port, if it has one."""
    if address.endswith("]") or (address.count(":") > 1 and "]" not in address):
        return address
    return address.rpartition(":")[0] or address


def token_of_environment() -> Token | None:
    """Return the token of EVALD_TOKEN or EVALD_TOKEN_FILE; None if neither is set. Raises InvalidInput if both are."""
    token, file = os.environ.get("EVALD_TOKEN"), os.environ.get("EVALD_TOKEN_FILE")
    if token and file:
        raise InvalidInput("EVALD_TOKEN", "both EVALD_TOKEN and EVALD_TOKEN_FILE", "one of them")
    return token or (Path(file) if file else None)


def _file(path: Path) -> bytes:
    """Return the content of a file. Raises OSError, also for a file that is too long, such as a device."""
    with path.open("rb") as stream:
        data = stream.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise OSError(errno.EFBIG, f"longer than {_MOST_BYTES >> 20} MiB", str(path))
    return data


def _token_file(path: Path) -> str:
    """Return the token in a file, which is read again when it has changed."""
    found = path.stat()
    return _token_in(path, (found.st_ino, found.st_size, found.st_mtime_ns))


@lru_cache(maxsize=16)
def _token_in(path: Path, _seen: tuple[int, int, int]) -> str:
    return _file(path).decode("ascii").strip()


def _current(token: Token) -> str:
    if isinstance(token, Path):
        try:
            text = _token_file(token)
        except (OSError, UnicodeDecodeError) as problem:
            why = problem.strerror if isinstance(problem, OSError) else "is not ASCII text"
            path = "a path that looks like a token" if _TOKEN.match(token.name) else str(token)
            raise InvalidInput("token", f"{path}: {why}", "a file with the token") from None
    else:
        text = token() if callable(token) else token
    # Messages never contain the token, not even a part of it.
    if not isinstance(text, str):
        raise InvalidInput(
            "token", f"got {type(text).__name__}", "text, a Path or a function that returns text"
        )
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise InvalidInput("token", "text that cannot be sent", "printable ASCII without spaces")
    return text


def _read(name: str, path: str | Path | None) -> bytes | None:
    if path is None:
        return None
    if not isinstance(path, str | Path):
        raise InvalidInput(name, shown(path), "the path of a PEM file")
    try:
        data = _file(Path(path))
    except OSError as problem:
        raise InvalidInput(name, f"{path}: {problem.strerror}", "a PEM file") from None
    if b"-----BEGIN " not in data:
        raise InvalidInput(name, f"{path}, which is not a PEM file", "a PEM file")
    return data
