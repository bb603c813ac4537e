"""The file that maps names in client certificates to principals, denies names, and limits principals without an API
key."""

import re
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from .files import (
    FileProblem,
    WatchedFile,
    place_problem,
    read_roles,
    read_text,
    read_texts,
    read_toml,
)
from .principal import LIMITS, ClientNames, Principal, check_limits, check_name, check_types, read_limits
from .refusals import denied

# Stands for a principal's name: the limits of all tokens whose principals have none of their own.
_ALL_TOKENS: Final = "jwt:*"

# A URI, whose path may end in *, or a DNS name. Names in certificates may have more characters.
_SAN: Final = re.compile(r"[A-Za-z0-9*][\x21-\x29\x2b-\x7e]{0,2046}\*?")
_PATTERN: Final = re.compile(r"spiffe://[a-z0-9._-]+/(?:[A-Za-z0-9._-]+/)*\*")

_MAX_KNOWN: Final = 1000

_T = TypeVar("_T")


# The bytes before an RSA key in a certificate: the algorithm rsaEncryption, without parameters.
_RSA: Final = bytes.fromhex("06092a864886f70d0101010500")
_MIN_RSA_BITS: Final = 2048

# Cache of parsed certificates: a few connections send many calls.
_FOUND: Final[dict[bytes, ClientNames]] = {}
_MAX_FOUND: Final = 1000


def client_names(context: Mapping[str, Sequence[bytes]]) -> ClientNames | None:
    """Return the names in a connection's client certificate; None if it has none.

    context: gRPC's auth_context. The SPIFFE ID identifies the client, else the URIs, else the DNS names; never the
    common name, which anybody may choose.
    """
    certificates = context.get("x509_pem_cert")
    if certificates is None:
        return None
    found = _FOUND.get(certificates[0])
    if found is None:
        if len(_FOUND) >= _MAX_FOUND:
            _FOUND.clear()
        found = _FOUND[certificates[0]] = _names(certificates[0], context)
    return found


def _names(certificate: bytes, context: Mapping[str, Sequence[bytes]]) -> ClientNames:
    texts = [
        tuple(value.decode("utf-8", "replace") for value in context.get(kind, ()))
        for kind in ("peer_spiffe_id", "peer_uri", "peer_dns")
    ]
    return ClientNames(
        next(filter(None, texts), ()),
        tuple(dict.fromkeys(name for names in texts for name in names)),
        _has_short_key(certificate),
    )


def _has_short_key(certificate: bytes) -> bool:
    """Return whether a PEM certificate has an RSA key that is too short. gRPC's TLS accepts any length."""
    der = ssl.PEM_cert_to_DER_cert(certificate.decode("ascii"))
    _, rsa, key = der.partition(_RSA)
    if not rsa:
        return False
    # A BIT STRING contains the count of its unused bits, then a SEQUENCE, which begins with the modulus.
    modulus = _content(_content(_content(key)[1:]))
    return int.from_bytes(modulus).bit_length() < _MIN_RSA_BITS


def _content(der: bytes) -> bytes:
    """Return the content of the first DER value."""
    start, length = 2, der[1]
    if length & 0x80:
        start += length & 0x7F
        length = int.from_bytes(der[2:start])
    return der[start : start + length]


class _Clients(NamedTuple):
    """The file's content. patterns: prefixes without the `*`, longest first. limits: by the principal's name.

    known: cache of principals by certificate, because a few connections send many calls.
    """

    exact: Mapping[str, Principal]
    patterns: Sequence[tuple[str, Principal]]
    denied: frozenset[str]
    limits: Mapping[str, Mapping[str, Any]]
    known: dict[ClientNames, Principal]

    def find(self, certificate: Sequence[str]) -> Principal | None:
        for name in certificate:
            if name in self.exact:
                return self.exact[name]
        for name in certificate:
            for prefix, principal in self.patterns:
                if name.startswith(prefix) and len(name) > len(prefix):
                    return principal
        return None


class ClientFile(WatchedFile[_Clients]):
    """The principals of client certificates, and the limits of these and of tokens.

    The constructor raises FileProblem.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, _read)

    def principal(self, certificate: ClientNames) -> Principal:
        """Return the principal of a certificate. Raises AccessDenied."""
        known = self.content.known
        found = known.get(certificate)
        if found is None:
            found = self._principal(certificate)
            if len(known) >= _MAX_KNOWN:
                known.clear()
            known[certificate] = found
        return found

    def _principal(self, certificate: ClientNames) -> Principal:
        clients = self.content
        if not clients.denied.isdisjoint(certificate.all):
            raise denied("certificate: denied", clients.find(certificate.names))
        if certificate.short_key:
            raise denied("certificate: an RSA key of fewer than 2048 bits", clients.find(certificate.names))
        found = clients.find(certificate.names)
        if found is None:
            raise denied(
                "certificate: no principal for it" if certificate.names else "certificate: no name in it"
            )
        return self.limited(
            Principal(
                found.name,
                found.roles,
                found.types,
                certificate.names[0],
                kind="certificate",
                certificate=certificate,
            )
        )

    def limited(self, principal: Principal) -> Principal:
        """Return a principal with its own limits; without any, a token's principal has the limits of all tokens."""
        limits = self.content.limits
        found = limits.get(principal.name) or (limits.get(_ALL_TOKENS) if principal.kind == "jwt" else None)
        return principal if found is None else replace(principal, **found)


def _read(path: Path) -> _Clients:
    data = read_toml(
        path,
        missing="docs/security.md describes its content",
        wanted="wanted TOML: a list `denied`, tables [[clients]] with san, principal and roles, and tables "
        "[[principals]] with principal and limits",
    )
    try:
        refused = frozenset(read_texts("denied", data.pop("denied", [])))
    except TypeError as problem:
        raise FileProblem(f"{path}: {problem}") from None
    clients = dict(_tables(path, "clients", data.pop("clients", []), _client))
    limits = dict(_tables(path, "principals", data.pop("principals", []), _limit))
    if data:
        raise FileProblem(f"{path}: wanted `denied`, tables [[clients]] and [[principals]], and nothing else")
    patterns = [(san[:-1], principal) for san, principal in clients.items() if san.endswith("/*")]
    patterns.sort(key=lambda pattern: -len(pattern[0]))
    return _Clients(clients, patterns, refused, limits, {})


def _tables(
    path: Path, name: str, tables: Any, read: Callable[[Mapping[str, Any]], tuple[str, _T]]
) -> Iterator[tuple[str, _T]]:
    """Yield the key and the value of each table in a list. read: parses a table into both. Raises FileProblem."""
    if not isinstance(tables, list):
        raise FileProblem(f"{path}: {name}: wanted tables [[{name}]]")
    seen = set()
    for number, table in enumerate(tables):
        try:
            if not isinstance(table, dict):
                raise TypeError("wanted a table")
            key, found = read(table)
            if key in seen:
                raise ValueError(f"{key[:100]!r} is listed twice")
        except (KeyError, TypeError, ValueError) as problem:
            raise place_problem(f"{path}: {name}[{number}]", problem) from None
        seen.add(key)
        yield key, found


def _check_fields(table: Mapping[str, Any], *known: str) -> None:
    if unknown := table.keys() - set(known):
        raise ValueError(f"{min(unknown)[:40]}: unknown; known keys: {', '.join(known)}")


def _client(table: Mapping[str, Any]) -> tuple[str, Principal]:
    _check_fields(table, "san", "principal", "roles", "types")
    san = read_text("san", table["san"])
    if not _SAN.fullmatch(san) or (san.endswith("*") and not _PATTERN.fullmatch(san)):
        raise ValueError(
            "san: wanted the name in the certificate, or spiffe://DOMAIN/PATH/* for all names below it"
        )
    principal = read_text("principal", table["principal"])
    check_name(principal)
    roles = frozenset(read_roles(table["roles"]))
    types = read_texts("types", table.get("types", []))
    check_types(types)
    return san, Principal(principal, roles, types)


def _limit(table: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    _check_fields(table, "principal", *LIMITS)
    principal = read_text("principal", table["principal"])
    if not principal.startswith("jwt:"):
        check_name(principal)
    found = read_limits(table)
    if not any(limit is not None for limit in found.values()):
        raise ValueError(f"wanted at least one of {', '.join(found)}")
    check_limits(found)
    return principal, found
