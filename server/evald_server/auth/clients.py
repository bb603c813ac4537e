"""Client certificates as principals: a file says which names in certificates belong to whom, and which are denied."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from .authenticator import AccessDenied, denied
from .files import FileProblem, read_text, read_texts, read_toml, signature
from .principal import Principal, Role, check_name, check_types

# A URI, of which the path may end in *, or a name of DNS. What a certificate has may have more characters.
_SAN: Final = re.compile(r"[A-Za-z0-9*][\x21-\x29\x2b-\x7e]{0,2046}\*?")
_PATTERN: Final = re.compile(r"spiffe://[a-z0-9._-]+/(?:[A-Za-z0-9._-]+/)*\*")


class ClientNames(NamedTuple):
    """The names in a client certificate. names: those that count; all: these and the others."""

    names: tuple[str, ...]
    all: tuple[str, ...]


def client_names(context: Mapping[str, Sequence[bytes]]) -> ClientNames | None:
    """Return the names that gRPC tells of a connection; None if it has no client certificate.

    Its SPIFFE ID counts, else its URIs, else its names of DNS; never the common name, which anybody may write in.
    """
    if "x509_pem_cert" not in context:
        return None
    kinds = [
        tuple(value.decode("utf-8", "replace") for value in context.get(kind, ()))
        for kind in ("peer_spiffe_id", "peer_uri", "peer_dns")
    ]
    return ClientNames(
        next(filter(None, kinds), ()), tuple(dict.fromkeys(name for kind in kinds for name in kind))
    )


class _Clients(NamedTuple):
    """What stands in a file. patterns: longest first, without their `*`."""

    exact: Mapping[str, Principal]
    patterns: Sequence[tuple[str, Principal]]
    denied: frozenset[str]

    def find(self, certificate: Sequence[str]) -> Principal | None:
        for name in certificate:
            if name in self.exact:
                return self.exact[name]
        for name in certificate:
            for prefix, principal in self.patterns:
                if name.startswith(prefix) and len(name) > len(prefix):
                    return principal
        return None


class ClientFile:
    """The principals of client certificates, read again when the file changes. Raises FileProblem at first."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = signature(path)
        self._clients = _read(path)

    def reload(self) -> bool:
        """Read the file if it has changed. Returns whether it has.

        Raises FileProblem if the new one cannot be used; what stood in it before then counts. Each change raises once.
        """
        found = signature(self._path)
        if found == self._seen:
            return False
        self._seen = found
        self._clients = _read(self._path)
        return True

    def principal(self, certificate: ClientNames) -> Principal:
        """Return whose certificate this is. Raises AccessDenied."""
        clients = self._clients
        if not clients.denied.isdisjoint(certificate.all):
            raise denied("certificate: denied", clients.find(certificate.names))
        found = clients.find(certificate.names)
        if found is None:
            raise denied(
                "certificate: no principal for it" if certificate.names else "certificate: no name in it"
            )
        return Principal(
            found.name,
            found.roles,
            found.types,
            certificate.names[0],
            kind="certificate",
            certificate=certificate.all,
        )

    def ended(self, principal: Principal) -> AccessDenied | None:
        """Return why what a certificate has opened has to end; None if it may go on."""
        clients = self._clients
        if not clients.denied.isdisjoint(principal.certificate):
            return denied("certificate: denied", principal)
        if principal.kind == "certificate":
            found = clients.find(principal.certificate)
            if found is None or found.name != principal.name:
                return denied("certificate: no principal for it", principal)
        return None


def _read(path: Path) -> _Clients:
    data = read_toml(
        path,
        missing="docs/security.md says what stands in it",
        wanted="wanted TOML: a list `denied`, and tables [[clients]] with san, principal and roles",
    )
    try:
        refused = frozenset(read_texts("denied", data.pop("denied", [])))
    except TypeError as problem:
        raise FileProblem(f"{path}: {problem}") from None
    tables = data.pop("clients", [])
    if data or not isinstance(tables, list):
        raise FileProblem(f"{path}: wanted `denied` and tables [[clients]], and nothing else")
    found: dict[str, Principal] = {}
    for number, table in enumerate(tables):
        try:
            san, principal = _client(table)
            if san in found:
                raise ValueError(f"san: {san[:100]!r} is there twice")
        except (KeyError, TypeError, ValueError) as problem:
            what = f"{problem.args[0]} is missing" if isinstance(problem, KeyError) else str(problem)
            raise FileProblem(f"{path}: clients[{number}]: {what}") from None
        found[san] = principal
    patterns = [(san[:-1], principal) for san, principal in found.items() if san.endswith("/*")]
    patterns.sort(key=lambda pattern: -len(pattern[0]))
    return _Clients(found, patterns, refused)


def _client(table: Any) -> tuple[str, Principal]:
    if not isinstance(table, dict):
        raise TypeError("wanted a table")
    if unknown := table.keys() - {"san", "principal", "roles", "types"}:
        raise ValueError(f"{min(unknown)[:40]}: unknown; known are san, principal, roles and types")
    san = read_text("san", table["san"])
    if not _SAN.fullmatch(san) or (san.endswith("*") and not _PATTERN.fullmatch(san)):
        raise ValueError(
            "san: wanted the name in the certificate, or spiffe://DOMAIN/PATH/* for all below it"
        )
    principal = read_text("principal", table["principal"])
    check_name(principal)
    try:
        roles = frozenset(Role(role) for role in read_texts("roles", table["roles"]))
    except ValueError:
        raise ValueError(f"roles: wanted some of {', '.join(Role)}") from None
    types = read_texts("types", table.get("types", []))
    check_types(types)
    return san, Principal(principal, roles, types)
